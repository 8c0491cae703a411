//go:build nvidia

package driver

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"gad/internal/compute/cuda/kernels"
)

// nccl is the library; where there is none the test is skipped, but not on the emulated device,
// which comes with one.
func nccl(t *testing.T) *NCCL {
	t.Helper()
	n, err := OpenNCCL()
	if errors.Is(err, ErrNoNCCL) && os.Getenv("GAD_NCCL") == "" && Emulated() == nil {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// One rank is a communicator too: what goes in comes out, on any GPU.
func TestNCCLOneRank(t *testing.T) {
	d := device(t)
	n := nccl(t)
	t.Logf("NCCL %s (%s)", n.Version(), n.Name())
	id, err := n.ID()
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(time.Minute)
	c, err := d.Connect(n, id, 0, 1, func() error {
		if time.Now().After(end) {
			return errors.New("a minute has passed")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 1000, 1 << 20} {
		x := filled(0, size)
		if err := reduced(d, c, x, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		for i, want := range filled(0, size) {
			if x[i] != want {
				t.Fatalf("%d elements: element %d is %g, want %g", size, i, x[i], want)
			}
		}
	}
	if _, err := gathered(d, c, 0, 1, []int64{5, 300_001, 64},
		func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// filled is what a rank sums.
func filled(rank, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32((i*7+rank*29)%1013) / 997
	}
	return x
}

// reduced is x on d, summed over the ranks. It is doubled first by a copy that is queued, which
// the sum has to come after.
func reduced(d *Device, c *Communicator, x []float32, keepOn func() error) error {
	bytes := int64(4 * len(x))
	from, err := d.Alloc(bytes)
	if err != nil {
		return err
	}
	defer d.Release(from)
	to, err := d.Alloc(bytes)
	if err != nil {
		return err
	}
	defer d.Release(to)
	pinned, err := d.AllocPinned(int(bytes))
	if err != nil {
		return err
	}
	defer d.Unpin(pinned)
	host := unsafe.Slice((*float32)(unsafe.Pointer(&pinned[0])), len(x))
	copy(host, x)
	if err := errors.Join(d.Set32(to, 0x7fc00000, int64(len(x))),
		d.CopyIn(from, unsafe.Pointer(&pinned[0]), bytes), d.CopyDev(to, from, bytes)); err != nil {
		return err
	}
	if err := c.AllReduce(to, int64(len(x)), keepOn); err != nil {
		return err
	}
	if err := errors.Join(d.CopyOut(unsafe.Pointer(&pinned[0]), to, bytes), d.Sync()); err != nil {
		return err
	}
	copy(x, host)
	return nil
}

// ranksOf starts ranks as processes of this test's binary on the emulated device; env is for one
// of them, by rank; limit is how many seconds each waits. Each says how it ended in its last line.
func ranksOf(t *testing.T, ranks, limit int, env map[int][]string) []string {
	t.Helper()
	device(t)
	if Emulated() == nil {
		t.Skip("NOT TESTED: needs the emulated device, which several processes can have")
	}
	n := nccl(t)
	id, err := n.ID()
	if err != nil {
		t.Fatal(err)
	}
	said := make([]string, ranks)
	var wg sync.WaitGroup
	for r := range ranks {
		wg.Go(func() {
			c := exec.Command("/proc/self/exe", "-test.run=^TestNCCLChild$", "-test.v",
				"-test.timeout=100s")
			c.Env = append(append(os.Environ(), "GAD_TEST_RANK="+strconv.Itoa(r),
				"GAD_TEST_LIMIT="+strconv.Itoa(limit), "GAD_TEST_RANKS="+strconv.Itoa(ranks),
				"GAD_TEST_ID="+hex.EncodeToString(id)), env[r]...)
			out, err := c.CombinedOutput()
			for line := range strings.Lines(string(out)) {
				if rest, ok := strings.CutPrefix(line, "ended: "); ok {
					said[r] = strings.TrimSpace(rest)
				}
			}
			if said[r] == "" || err != nil {
				said[r] = fmt.Sprintf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	return said
}

// TestNCCLChild is one rank of ranksOf.
func TestNCCLChild(t *testing.T) {
	if os.Getenv("GAD_TEST_ID") == "" {
		t.Skip("runs in a child of TestNCCL")
	}
	sum, err := child()
	if err != nil {
		sum = err.Error()
	}
	fmt.Printf("\nended: %s\n", sum)
}

func child() (sum string, err error) {
	rank, _ := strconv.Atoi(os.Getenv("GAD_TEST_RANK"))
	ranks, _ := strconv.Atoi(os.Getenv("GAD_TEST_RANKS"))
	id, err := hex.DecodeString(os.Getenv("GAD_TEST_ID"))
	if err != nil {
		return "", err
	}
	d, err := Open(0, kernels.PTX)
	if err != nil {
		return "", err
	}
	defer d.Enter()()
	defer func() {
		if e := d.Close(); err == nil {
			err = e
		}
	}()
	n, err := OpenNCCL()
	if err != nil {
		return "", err
	}
	seconds, _ := strconv.Atoi(os.Getenv("GAD_TEST_LIMIT"))
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	keepOn := func() error {
		if time.Now().After(end) {
			return errors.New("late")
		}
		return nil
	}
	if os.Getenv("GAD_TEST_NEW_ID") != "" { // a call of rank 0
		if _, err := n.ID(); err != nil {
			return "", err
		}
	}
	c, err := d.Connect(n, id, rank, ranks, keepOn)
	if err != nil {
		return "", err
	}
	defer func() {
		if e := c.Close(); err == nil {
			err = e
		}
	}()
	h := sha256.New()
	for _, size := range []int{1, 70, 1000, 2<<16 + 3} {
		if os.Getenv("GAD_TEST_LONG") != "" {
			size++
		}
		x := filled(rank, size)
		if err := reduced(d, c, x, keepOn); err != nil {
			return "", err
		}
		for i, got := range x {
			var exact float64
			for r := range ranks {
				exact += float64(filled(r, i+1)[i])
			}
			if math.Abs(float64(got)-exact) > 1e-6*exact {
				return "", fmt.Errorf("%d elements: element %d is %g, want %g", size, i, got, exact)
			}
			if i > 2000 {
				break
			}
		}
		fmt.Fprint(h, x)
	}
	for _, sizes := range [][]int64{{5, 300_001, 0, 64, 7}, {1 << 20, 1}} {
		x, err := gathered(d, c, rank, ranks, sizes, keepOn)
		if err != nil {
			return "", err
		}
		h.Write(x)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// gathered is pieces of so many bytes on d, with gaps between, of which each rank has filled its
// own by a copy that is queued; the others' come from them, and nothing comes into the gaps.
func gathered(d *Device, c *Communicator, rank, ranks int, sizes []int64,
	keepOn func() error) ([]byte, error) {
	const gap = 48
	var n int64
	var pieces []Piece
	shift := 0
	if os.Getenv("GAD_TEST_ROOT") != "" {
		shift = 1
	}
	for i, size := range sizes {
		if size > 0 {
			pieces = append(pieces, Piece{Ptr(n), size, (i + shift) % ranks})
		}
		n += size + gap
	}
	pinned, err := d.AllocPinned(int(n))
	if err != nil {
		return nil, err
	}
	defer d.Unpin(pinned)
	filled := func(i int64, by int) byte { return byte(i*7 + int64(by)*31 + i>>8) }
	const nobody = 0xa5
	for i := range pinned {
		pinned[i] = nobody
	}
	for _, p := range pieces {
		for i := int64(p.P); p.Owner == rank && i < int64(p.P)+p.Bytes; i++ {
			pinned[i] = filled(i, p.Owner)
		}
	}
	on, err := d.Alloc(n)
	if err != nil {
		return nil, err
	}
	defer d.Release(on)
	moved := append([]Piece(nil), pieces...)
	for i := range moved {
		moved[i].P += on
	}
	if err := d.CopyIn(on, unsafe.Pointer(&pinned[0]), n); err != nil {
		return nil, err
	}
	if err := c.Broadcast(moved, keepOn); err != nil {
		return nil, err
	}
	if err := errors.Join(d.CopyOut(unsafe.Pointer(&pinned[0]), on, n), d.Sync()); err != nil {
		return nil, err
	}
	want := bytes.Repeat([]byte{nobody}, int(n))
	for _, p := range pieces {
		for i := int64(p.P); i < int64(p.P)+p.Bytes; i++ {
			want[i] = filled(i, p.Owner)
		}
	}
	for i := range want {
		if pinned[i] != want[i] {
			return nil, fmt.Errorf("byte %d of pieces of %v is %d, want %d", i, sizes, pinned[i],
				want[i])
		}
	}
	return want, nil
}

// Ranks get the same bits, and again when they are started anew.
func TestNCCLRanks(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		first := ranksOf(t, ranks, 60, nil)
		for _, said := range [][]string{first, ranksOf(t, ranks, 60, nil)} {
			for r := range ranks {
				if len(said[r]) != 2*sha256.Size || said[r] != first[0] {
					t.Errorf("rank %d of %d: %s, rank 0 %s", r, ranks, said[r], first[0])
				}
			}
		}
	}
}

// Each call that fails is named, and no rank waits for ever. Nor does one whose peer hangs, does
// not come, or sums something else.
func TestNCCLFaults(t *testing.T) {
	const late = "driver: device 0: late"
	fail := func(call string) []string {
		return []string{"GAD_EMU_NCCL_FAIL=" + call,
			"GAD_TEST_NEW_ID=1"}
	}
	hang := func(call string) []string { return []string{"GAD_EMU_NCCL_HANG=" + call} }
	said := func(call string) string {
		return "driver: device 0: " + call +
			": ncclSystemError (2), unhandled system error (NCCL_DEBUG=WARN says more)"
	}
	for _, c := range []struct {
		name     string
		env      []string // of rank 1
		one      string   // what rank 1 says
		zero     string   // what rank 0 says; "" is the sum
		zeroSums bool
	}{
		{name: "version", env: fail("ncclGetVersion"), one: "driver: no NCCL: libnccl.so.2: ncclGetVersion: ncclSystemError (2): install NCCL 2.14 or later, or name the file in GAD_NCCL", zero: late},
		{name: "old", env: []string{"GAD_EMU_NCCL_VERSION=21304"}, one: "driver: no NCCL: libnccl.so.2: version 2.13.4: gad knows 2.14 to 2.99: install NCCL 2.14 or later, or name the file in GAD_NCCL", zero: late},
		{name: "no file", env: []string{"GAD_NCCL=/nonexistent/libnccl.so"}, one: "driver: no NCCL: /nonexistent/libnccl.so: cannot open shared object file: No such file or directory: install NCCL 2.14 or later, or name the file in GAD_NCCL", zero: late},
		{name: "id", env: fail("ncclGetUniqueId"), one: "ncclGetUniqueId: ncclSystemError (2), unhandled system error (NCCL_DEBUG=WARN says more)", zero: late},
		{name: "init", env: fail("ncclCommInitRankConfig"), one: said("ncclCommInitRankConfig"),
			zero: late},
		{name: "state", env: fail("ncclCommGetAsyncError"), one: said("ncclCommGetAsyncError"),
			zero: late},
		{name: "state later", env: fail("ncclCommGetAsyncError:9"),
			one: said("ncclCommGetAsyncError"), zero: late},
		{name: "sum", env: fail("ncclAllReduce"), one: said("ncclAllReduce"), zero: late},
		{name: "sum later", env: fail("ncclAllReduce:2"), one: said("ncclAllReduce"), zero: late},
		{name: "network", env: fail("async:1"), one: "driver: device 0: ncclAllReduce: ncclRemoteError (6), remote process exited or there was a network error (NCCL_DEBUG=WARN says more)", zero: late},
		{name: "broadcast", env: fail("ncclBroadcast:1"), one: said("ncclBroadcast"), zero: late},
		{name: "hangs in a broadcast", env: hang("ncclBroadcast:4"), one: late, zero: late},
		{name: "finalize", env: fail("ncclCommFinalize"), one: said("ncclCommFinalize"),
			zeroSums: true},
		{name: "destroy", env: fail("ncclCommDestroy"), one: said("ncclCommDestroy"),
			zeroSums: true},
		{name: "hangs when connecting", env: hang("ncclCommInitRankConfig"), one: late, zero: late},
		{name: "hangs in a sum", env: hang("ncclAllReduce:1"), one: late, zero: late},
		{name: "hangs at the end", env: hang("ncclCommFinalize"), zeroSums: true},
		{name: "hangs in an abort",
			env: []string{"GAD_EMU_NCCL_HANG=ncclCommAbort", "GAD_EMU_NCCL_FAIL=ncclAllReduce"},
			one: said("ncclAllReduce"), zero: late},
		{name: "other sizes", env: []string{"GAD_TEST_LONG=1"}},
		{name: "other roots", env: []string{"GAD_TEST_ROOT=1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // most of it waits
			begun := time.Now()
			limit := 4
			if c.zeroSums {
				limit = 60
			}
			got := ranksOf(t, 2, limit, map[int][]string{1: c.env})
			if took := time.Since(begun); took > 40*time.Second {
				t.Errorf("took %v", took)
			}
			// refused: by whom depends on which comes first
			if strings.HasPrefix(c.name, "other ") {
				if !strings.Contains(got[0]+got[1], "ncclInvalidUsage (5)") &&
					!strings.Contains(got[0]+got[1], "CUDA_ERROR_LAUNCH_FAILED") {
					t.Errorf("%q", got)
				}
				return
			}
			if c.one != "" && got[1] != c.one {
				t.Errorf("rank 1: %s\nwant %s", got[1], c.one)
			}
			if c.zero != "" && got[0] != c.zero || c.zeroSums && len(got[0]) != 2*sha256.Size {
				t.Errorf("rank 0: %s\nwant %s", got[0], c.zero)
			}
		})
	}
}
