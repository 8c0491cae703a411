//go:build nvidia

package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
)

var _ compute.Connectable = (*Backend)(nil)

// ncclSettings are the choices of NCCL that the order of a sum depends on. They are set unless
// the user has set them: by itself NCCL chooses by size, topology and version. NVLS sums
// inside of the switch, in no fixed order.
var ncclSettings = []struct{ name, value string }{{"NCCL_ALGO", "Ring"}, {"NCCL_PROTO", "Simple"},
	{"NCCL_NVLS_ENABLE", "0"}}

// pin sets them, and says what holds.
func pin() (said string) {
	var list []string
	for _, p := range ncclSettings {
		if v, ok := os.LookupEnv(p.name); ok && v != p.value {
			list = append(list, fmt.Sprintf("%s=%s (set by the user)", p.name, v))
			continue
		}
		os.Setenv(p.name, p.value)
		list = append(list, p.name+"="+p.value)
	}
	return strings.Join(list, ", ")
}

// ncclOff in GAD_NCCL has gradients go over the host's memory.
const ncclOff = "off"

// Connect connects the ranks' devices by NCCL, if all ranks have the library.
func (b *Backend) Connect(ranks compute.Ranks) (how string, err error) {
	b.outside("Connect")
	if b.comm != nil {
		return "", errors.New("cuda: NCCL: connected already")
	}
	const over = "gradients go over the host's memory, which is slow: "
	var lib *driver.NCCL
	mine := "not wanted (GAD_NCCL=off)"
	if os.Getenv("GAD_NCCL") != ncclOff {
		if lib, err = driver.OpenNCCL(); err == nil {
			mine = "NCCL " + lib.Version()
		} else if os.Getenv("GAD_NCCL") != "" { // the user's word
			return "", fmt.Errorf("cuda: %w", err)
		} else {
			mine = err.Error()
		}
	}
	settings := pin()
	all, err := ranks.Gather("version of NCCL", []byte(mine+"\n"+settings))
	if err != nil {
		return "", err
	}
	for r, theirs := range all {
		name, set, _ := strings.Cut(string(theirs), "\n")
		switch first, _, _ := strings.Cut(string(all[0]), "\n"); {
		case !strings.HasPrefix(name, "NCCL "):
			return fmt.Sprintf("%srank %d: %s", over, r, name), nil
		case name != first:
			return "", fmt.Errorf("cuda: rank 0 has %s, rank %d has %s: they must be the same: install one, or name its file in GAD_NCCL", first, r, name)
		case set != settings:
			return "", fmt.Errorf("cuda: NCCL: rank %d has %s, rank %d has %s: they must be the same: set them alike on all ranks", ranks.Rank(), settings, r, set)
		}
	}
	var id []byte
	if ranks.Rank() == 0 {
		if id, err = lib.ID(); err != nil {
			return "", fmt.Errorf("cuda: NCCL: %w", err)
		}
	}
	if all, err = ranks.Gather("NCCL's id", id); err != nil {
		return "", err
	}
	err = ranks.Device("connecting GPUs", 0, 0, func(keepOn func() error) error {
		defer b.dev.Enter()()
		if b.comm, err = b.dev.Connect(lib, all[0], ranks.Rank(), ranks.Size(),
			keepOn); err != nil {
			return err
		}
		return b.firstSum(ranks, keepOn)
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("gradients go by %s (%s), %s", mine, lib.Name(), settings), nil
}

// firstSum sums the ranks' numbers. NCCL 2.22 and later take their buffers, and meet what does
// not connect, with the first call: that is to be before the models take their memory, and
// before the first answers are sampled.
func (b *Backend) firstSum(ranks compute.Ranks, keepOn func() error) error {
	t, err := b.Alloc("the first sum of NCCL", compute.Wide, 1)
	if err != nil {
		return err
	}
	defer b.Free(t)
	x, n := [1]float32{float32(ranks.Rank() + 1)}, ranks.Size()
	b.Upload(t, x[:])
	if err := b.AllReduce(t, keepOn); err != nil {
		return err
	}
	b.Download(x[:], t)
	if err := b.Sync(); err != nil {
		return err
	}
	if want := float32(n * (n + 1) / 2); x[0] != want {
		return fmt.Errorf(
			"cuda: NCCL: the first sum is %g, not %g: the GPUs, or what connects them, do not work",
			x[0], want)
	}
	return nil
}

// Connected reports whether AllReduce can be called.
func (b *Backend) Connected() bool { return b.comm != nil }

// AllReduce leaves in t the sum of all ranks' t, and waits for it.
func (b *Backend) AllReduce(t compute.Tensor, keepOn func() error) error {
	b.outside("AllReduce")
	defer b.enter()()
	x := wide("AllReduce", "t", t, t.Len())
	if b.err != nil || x.n == 0 {
		return b.err
	}
	err := b.comm.AllReduce(x.p, int64(x.n), keepOn)
	b.graph.epoch++
	return err
}

// GatherWeights fills the tensors of each rank with what that rank has in them, and waits for
// it. Of a Master the first plane is what products read, the second the rest.
func (b *Backend) GatherWeights(byRank [][]compute.Tensor, rest bool, keepOn func() error) error {
	b.outside("GatherWeights")
	defer b.enter()()
	var pieces []driver.Piece
	for rank, list := range byRank {
		for _, t := range list {
			v := local("GatherWeights", "t", t, t.Len())
			p, bytes := v.p, int64(v.n)*v.t.step()
			switch {
			case v.t == code || v.t == bf16:
				panic(fmt.Sprintf("cuda: GatherWeights: t is %v, want Wide or Master", v.t))
			case rest && v.t == master:
				p = v.lo
			case rest:
				continue
			}
			if bytes > 0 {
				pieces = append(pieces, driver.Piece{P: p, Bytes: bytes, Owner: rank})
			}
		}
	}
	if b.err != nil {
		return b.err
	}
	err := b.comm.Broadcast(pieces, keepOn)
	b.graph.epoch++
	return err
}
