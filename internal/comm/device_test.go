package comm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gad/internal/comm"
	"gad/internal/comm/commtest"
)

// polled is a device's work that takes so long; hung never ends.
func polled(keepOn func() error, took time.Duration) error {
	for begun := time.Now(); took == hung ||
		time.Since(begun) < took; time.Sleep(time.Millisecond) {
		if err := keepOn(); err != nil {
			return fmt.Errorf("driver: aborted: %w", err)
		}
	}
	return nil
}

const hung = -1

// What ranks do on their devices: who is late is waited for, and whatever goes wrong on one
// is the error of all, with its phase, without the device's own words around it.
func TestDevice(t *testing.T) {
	t.Parallel()
	const short = 400 * time.Millisecond
	for _, c := range []struct {
		name string
		rank func(g *comm.Group, r int, limit time.Duration) error
		want string // on all ranks; "" is none
	}{
		{"works", func(g *comm.Group, r int, limit time.Duration) error {
			time.Sleep(time.Duration(r) * limit / 4)
			return g.Device("gradients", 100, 0,
				func(keepOn func() error) error { return polled(keepOn, limit/4) })
		}, ""},
		{"other models", func(g *comm.Group, r int, limit time.Duration) error {
			return g.Device("gradients", 100+r/3, 0,
				func(func() error) error { t.Errorf("rank %d begins", r); return nil })
		}, "numbers here, another count on rank"},
		{"a device fails", func(g *comm.Group, r int, limit time.Duration) error {
			return g.Device("gradients", 100, 0, func(keepOn func() error) error {
				if r == 2 {
					return errors.New("driver: device 0: no link")
				}
				return polled(keepOn, hung)
			})
		}, "ranks: phase update_actor, gradients, rank 2 on "},
		{"the devices hang", func(g *comm.Group, r int, limit time.Duration) error {
			return g.Device("gradients", 100, 0,
				func(keepOn func() error) error { return polled(keepOn, hung) })
		}, "ranks: phase update_actor, gradients: all ranks answer, but their GPUs are not done within %v (trainer.rank_timeout): a GPU or the network between them hangs (NCCL_DEBUG=INFO says more)"},
		{"a rank hangs inside", func(g *comm.Group, r int, limit time.Duration) error {
			return g.Device("gradients", 100, 0, func(keepOn func() error) error {
				if r == 3 {
					time.Sleep(4 * limit)
				}
				return polled(keepOn, hung)
			})
		}, "ranks: phase update_actor, gradients: rank 3 on "},
		{"a rank does not come", func(g *comm.Group, r int, limit time.Duration) error {
			if r == 1 {
				time.Sleep(4 * limit)
			}
			return g.Device("gradients", 100, 0,
				func(keepOn func() error) error { return polled(keepOn, hung) })
		}, "ranks: phase update_actor, gradients: rank 1 on "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			patiently(t, short, func(limit time.Duration) (wrong []string) {
				begun := time.Now()
				errs := commtest.Run(4, limit, func(g *comm.Group) error {
					g.Enter("update_actor")
					return c.rank(g, g.Rank(), limit)
				})
				for r, err := range errs {
					switch want := strings.ReplaceAll(c.want, "%v", limit.String()); {
					case want == "" && err != nil:
						wrong = append(wrong, fmt.Sprintf("rank %d: %v", r, err))
					case want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
						!errors.Is(err, comm.ErrRanks) || strings.Contains(err.Error(), "aborted")):
						wrong = append(wrong, fmt.Sprintf("rank %d: %v\nwant %s", r, err, want))
					}
				}
				if took := time.Since(begun); took > 20*limit {
					wrong = append(wrong, fmt.Sprintf("took %v", took))
				}
				return wrong
			})
		})
	}
	var alone *comm.Group
	if err := alone.Device("gradients", 1, 0,
		func(keepOn func() error) error { return polled(keepOn, short/8) }); err != nil {
		t.Error(err)
	}
}

// Device's bytes are counted as what the caller says.
func TestDeviceTraffic(t *testing.T) {
	noErrors(t, commtest.Run(4, time.Minute, func(g *comm.Group) error {
		before := g.Traffic().SumBytes
		if err := g.Device("gradients", 1000, 4*1000*2*3/4,
			func(func() error) error { return nil }); err != nil {
			return err
		}
		if got := g.Traffic().SumBytes - before; got != 4*1000*2*3/4 {
			return fmt.Errorf("%d bytes", got)
		}
		return nil
	}))
}
