package model

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gad/internal/comm"
	"gad/internal/comm/commtest"
	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/hostile"
)

// The parts of all ranks are every element once, about as many for each, and begin where
// sums of squares and 8-bit moments have a block.
func TestCut(t *testing.T) {
	params := func(shapes ...[]int) (list []*compute.Param) {
		for _, s := range shapes {
			list = append(list, &compute.Param{Shape: s, Rows: s[0], Cols: s[1]})
		}
		return list
	}
	if partUnit%compute.MomentBlock != 0 || partUnit%new(cpu.Backend).SumBlock() != 0 {
		t.Errorf("parts begin at multiples of %d: not of the blocks of moments or of sums",
			partUnit)
	}
	inside := 0
	for _, list := range [][]*compute.Param{
		params([]int{1, 10}),
		params([]int{1000, 100}, []int{1, 100}, []int{300, 100}, []int{1, 7}, []int{100, 1000}),
		params([]int{1, 64}, []int{1, 64}, []int{1, 63}, []int{8192, 1}, []int{1, 1}),
		params([]int{50_000, 64}),
	} {
		all := 0
		for _, p := range list {
			all += p.Len()
		}
		for _, ranks := range []int{1, 2, 4, 8, 64} {
			cuts := cut(list, ranks, false)
			if len(cuts) != ranks+1 || cuts[0] != 0 || cuts[ranks] != extent(list) {
				t.Fatalf("%d ranks: cuts %v of %d", ranks, cuts, extent(list))
			}
			next := make([]int, len(list)) // the first element that nobody has yet
			for r := range ranks {
				n := 0
				for i, x := range partsOf(list, cuts[r], cuts[r+1]) {
					if x.hi == x.lo {
						continue
					}
					if x.lo != next[i] || x.lo%partUnit != 0 || x.hi > list[i].Len() {
						t.Errorf("%d ranks: rank %d has elements %d to %d of parameter %d, of which %d are taken", ranks, r, x.lo, x.hi, i, next[i])
					}
					if x.lo > 0 {
						inside++
					}
					next[i], n = x.hi, n+x.hi-x.lo
					if whole := x.lo == 0 && x.hi == list[i].Len(); whole != (x.step == list[i]) {
						t.Errorf(
							"elements %d to %d of parameter %d, whole %t, are stepped otherwise",
							x.lo, x.hi, i, whole)
					}
				}
				if float64(n) > float64(all)/float64(ranks)+partUnit {
					t.Errorf("%d ranks: rank %d has %d of %d elements", ranks, r, n, all)
				}
			}
			for i, p := range list {
				if next[i] != p.Len() {
					t.Errorf("%d ranks: nobody has the elements of parameter %d from %d on", ranks,
						i, next[i])
				}
			}
		}
	}
	if inside == 0 {
		t.Error("no parameter is cut: the test shows nothing")
	}
}

// large has parameters that are cut.
func large() Config {
	c := wide("Qwen2")
	c.Vocab, c.FFN = 1200, 320
	return c
}

// bare hides what a backend can do beside compute.Backend.
type bare struct{ compute.Backend }

// Steps with divided moments have the bits of whole ones: norms, weights and saved states,
// also after a step that is left out, and where the backend cannot sum by blocks. Each rank
// takes the memory of its part. A state is loaded on any number of ranks.
func TestShardedOptimizer(t *testing.T) {
	t.Parallel()
	type backends struct {
		name string
		open func() (be, wrapped compute.Backend, err error)
	}
	onCPU := func() (*cpu.Backend, error) { return cpu.New(cpu.Options{Workers: 1}) }
	for _, b := range []backends{
		{"cpu",
			func() (compute.Backend, compute.Backend, error) {
				be, err := onCPU()
				return be, be,
					err
			}},
		{"cpu, bare",
			func() (compute.Backend, compute.Backend, error) {
				be, err := onCPU()
				return be,
					bare{be}, err
			}},
	} {
		for _, eight := range []bool{false, true} {
			if !hostile.Long() && eight != (b.name == "cpu") {
				continue // each once
			}
			t.Run(fmt.Sprint(b.name, ", 8 bits ", eight), func(t *testing.T) {
				c := adamw()
				c.Moments8 = eight
				type result struct {
					norms  []float64
					saved  []byte
					bytes  int64 // of moments
					sizeOf int64 // by Bytes
				}
				dir := t.TempDir()
				// run takes steps on so many ranks, from a state or none, and gives what each has.
				run := func(ranks int, from string, steps int) []result {
					results := make([]result, ranks)
					for r, err := range commtest.Run(ranks, time.Minute, func(g *comm.Group) error {
						closer, be, err := b.open()
						if err != nil {
							return err
						}
						defer closer.Close()
						m, err := New(be, large(), Options{Trainable: true, Repeat: true, StatesOver: g})
						if err != nil {
							return err
						}
						defer m.Close()
						if err := m.Split(g, 4); err != nil {
							return err
						}
						x := &results[g.Rank()]
						before, _ := be.Memory()
						o, err := NewOptimizer(m, c)
						if err != nil {
							return err
						}
						after, _ := be.Memory()
						if x.bytes = after - before; o.Sharded() != (ranks > 1) {
							return fmt.Errorf("%d ranks: sharded: %t", ranks, o.Sharded())
						}
						if from != "" {
							if err := o.Load(from); err != nil {
								return err
							}
						}
						for step := range steps {
							if err := shardGradients(m, step == 1); err != nil {
								return err
							}
							norm, skipped, err := o.step(0.001)
							if err != nil {
								return err
							}
							if skipped != (step == 1) {
								return fmt.Errorf("step %d: skipped: %t", step, skipped)
							}
							x.norms = append(x.norms, norm)
						}
						var w bytes.Buffer
						err = o.Save(&w, true)
						x.saved, x.sizeOf = w.Bytes(), o.Bytes()
						return err
					}) {
						if err != nil {
							t.Fatalf("%d ranks, rank %d: %v", ranks, r, err)
						}
					}
					return results
				}
				want := run(1, "", 4)[0]
				for _, ranks := range []int{2, 4} {
					sum, most := int64(0), int64(0)
					for r, got := range run(ranks, "", 4) {
						for i := range want.norms {
							if a, b := got.norms[i], want.norms[i]; a != b &&
								!(i == 1 && math.IsNaN(a) == math.IsNaN(b)) {
								t.Errorf("%d ranks, rank %d, step %d: norm %v, want %v", ranks, r,
									i, a, b)
							}
						}
						if !bytes.Equal(got.saved, want.saved) || got.sizeOf != want.sizeOf {
							t.Errorf("%d ranks: rank %d saves another state", ranks, r)
						}
						sum, most = sum+got.bytes, max(most, got.bytes)
					}
					if sum != want.bytes || 10*most*int64(ranks) > 14*want.bytes {
						t.Errorf("%d ranks: moments of %d bytes in all, %d the most of a rank; one process has %d", ranks, sum, most, want.bytes)
					}
					if plan := large().Plan(cpu.Footprint{},
						PlanOptions{Trainable: true, Moments8: eight,
							Ranks: ranks}).Moments; plan != most {
						t.Errorf("%d ranks: %d bytes planned, the most taken are %d", ranks, plan,
							most)
					}
				}
				// Three steps, then one, on other numbers of ranks.
				path := filepath.Join(dir, "state")
				must(t, os.WriteFile(path, run(4, "", 3)[3].saved, 0o600))
				last := run(1, path, 1)[0]
				for _, ranks := range []int{2, 4} {
					for r, got := range run(ranks, path, 1) {
						if !bytes.Equal(got.saved, last.saved) || got.norms[0] != last.norms[0] {
							t.Errorf("%d ranks: rank %d goes on to another state", ranks, r)
						}
					}
				}
			})
		}
	}
}

// A moment that is not finite on one rank is saved by none.
func TestSickShard(t *testing.T) {
	for r, err := range commtest.Run(4, time.Minute, func(g *comm.Group) error {
		be, err := cpu.New(cpu.Options{Workers: 1})
		if err != nil {
			return err
		}
		defer be.Close()
		m, err := New(be, large(), Options{Trainable: true, Repeat: true, StatesOver: g})
		if err != nil {
			return err
		}
		defer m.Close()
		o, err := NewOptimizer(m, adamw())
		if err != nil {
			return err
		}
		if x := o.parts[0]; x.lo > 0 && x.hi > x.lo {
			be.Upload(x.step.V.Slice(5, 6), []float32{float32(math.NaN())})
		}
		return o.Save(io.Discard, false)
	}) {
		// All find it in the same piece, or are told by the first.
		const want = `tensor "v.model.embed_tokens.weight": element 57349: NaN: not finite: it is not saved: go back to an earlier checkpoint`
		if told := (*comm.Aborted)(nil); err == nil || !errors.Is(err, ErrNotFinite) &&
			!errors.As(err, &told) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("rank %d: %v\nwant %s", r, err, want)
		}
	}
}

// shardGradients leaves the gradients of four shards of different lengths in m; sick makes
// one in the third not finite.
func shardGradients(m *Model, sick bool) error {
	_, err := EachShard(m, func(k int) ([]bool, error) {
		return nil, m.LogProbGrad(seqsOf(m.cfg.Vocab, 9+k, 14), 1,
			func(logp, _ [][]float32) (_, _ [][]float32, err error) {
				for _, r := range logp {
					for j := range r {
						r[j] = -1
						if sick && k == 2 {
							r[j] = float32(math.Inf(1))
						}
					}
				}
				return logp, nil, nil
			})
	})
	return err
}
