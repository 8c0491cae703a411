//go:build nvidia

package model

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"gad/internal/comm"
	"gad/internal/comm/commtest"
	"gad/internal/compute"
	"gad/internal/compute/cuda"
	"gad/internal/compute/cuda/driver"
)

// On GPUs too steps with divided moments have the bits of whole ones on as many ranks: norms,
// weights and saved states, in both precisions, with moments of either width, also on the
// host, and of adapters. Each rank takes the memory that is planned, and sends what is counted.
func TestCUDAShardedOptimizer(t *testing.T) {
	gpu(t, cuda.F32).Close()
	if driver.Emulated() == nil {
		t.Skip("NOT TESTED: needs the emulated device, which several ranks can have")
	}
	c := large()
	for _, x := range []struct {
		name      string
		precision string
		ranks     []int
		config    AdamWConfig
		lora      LoRA
	}{
		{"f32", cuda.F32, []int{2}, AdamWConfig{}, LoRA{}},
		{"bf16", cuda.BF16, []int{2, 4}, AdamWConfig{}, LoRA{}},
		{"8 bits", cuda.BF16, []int{4}, AdamWConfig{Moments8: true}, LoRA{}},
		{"offload", cuda.BF16, []int{2}, AdamWConfig{Offload: true}, LoRA{}},
		{"LoRA", cuda.BF16, []int{2}, AdamWConfig{}, LoRA{Rank: 64}},
	} {
		t.Run(x.name, func(t *testing.T) {
			conf := adamw()
			conf.Moments8, conf.Offload = x.config.Moments8, x.config.Offload
			type result struct {
				norms []float64
				saved []byte
				bytes int64 // of moments, on the device
				sent  int64 // in one step, for sums and weights
			}
			run := func(ranks int, sharded bool) []result {
				results := make([]result, ranks)
				for r, err := range commtest.Run(ranks, time.Minute, func(g *comm.Group) error {
					be, err := cuda.Open(cuda.Options{Precision: x.precision})
					if err != nil {
						return err
					}
					defer be.Close()
					if ranks > 1 {
						if _, err := be.(compute.Connectable).Connect(g); err != nil {
							return err
						}
					}
					o := Options{Trainable: true, Seed: 1}
					if sharded {
						o.StatesOver = g
					}
					var m *Model
					if x.lora.On() {
						base, err := New(be, c, Options{Seed: 1})
						if err != nil {
							return err
						}
						defer base.Close()
						o.LoRA = x.lora
						if m, err = base.Adapt(o); err != nil {
							return err
						}
					} else if m, err = New(be, c, o); err != nil {
						return err
					}
					defer m.Close()
					if err := m.Split(g, 4); err != nil {
						return err
					}
					before, _ := be.Memory()
					opt, err := NewOptimizer(m, conf)
					if err != nil {
						return err
					}
					after, _ := be.Memory()
					mine := &results[g.Rank()]
					mine.bytes = after - before
					for step := range 3 {
						if err := shardGradients(m, step == 1); err != nil {
							return err
						}
						sent := g.Traffic().SumBytes
						norm, skipped, err := opt.step(0.001)
						if err != nil {
							return err
						}
						if skipped != (step == 1) {
							return fmt.Errorf("step %d: skipped: %t", step, skipped)
						}
						mine.norms, mine.sent = append(mine.norms, norm), g.Traffic().SumBytes-sent
					}
					// the rest is on its owner alone
					if sharded && x.precision == cuda.BF16 && !x.lora.On() {
						if err := opt.Save(io.Discard, true); !errors.Is(err, errNarrowed) {
							return fmt.Errorf("saved before the weights were whole: %v", err)
						}
						if g.Failed() {
							return nil
						}
					}
					if err := opt.WholeWeights(); err != nil {
						return err
					}
					var w bytes.Buffer
					err = opt.Save(&w, true)
					mine.saved = w.Bytes()
					// nobody frees what another rank waits for
					if _, failed := g.Gather("end", nil); err == nil {
						err = failed
					}
					return err
				}) {
					if err != nil {
						t.Fatalf("%d ranks, rank %d: %v", ranks, r, err)
					}
				}
				return results
			}
			f := cuda.Options{Precision: x.precision}
			plan := func(ranks int) Plan {
				return c.Plan(f, PlanOptions{Trainable: true, LoRA: x.lora, Moments8: conf.Moments8,
					Offload: conf.Offload, Ranks: ranks})
			}
			for _, ranks := range x.ranks {
				want := run(ranks, false)[0]
				most := int64(0)
				for r, got := range run(ranks, true) {
					for i := range want.norms {
						if a, b := got.norms[i], want.norms[i]; a != b &&
							!(i == 1 && math.IsNaN(a) == math.IsNaN(b)) {
							t.Errorf("%d ranks, rank %d, step %d: norm %v, want %v", ranks, r, i, a,
								b)
						}
					}
					if !bytes.Equal(got.saved, want.saved) {
						t.Errorf("%d ranks: rank %d saves another state", ranks, r)
					}
					if gathered := got.sent -
						want.sent; gathered != plan(ranks).Computed*int64(ranks-1)/int64(ranks) ||
						gathered == 0 {
						t.Errorf("%d ranks: rank %d counts %d bytes of weights", ranks, r, gathered)
					}
					most = max(most, got.bytes)
				}
				if p := plan(ranks).Moments; p != most || plan(1).Moments != want.bytes ||
					most > want.bytes || most == want.bytes && most > 0 {
					t.Errorf("%d ranks: %d bytes of moments planned, the most taken are %d, of %d",
						ranks, p, most, want.bytes)
				}
				if r := plan(ranks).HostMoments; (r > 0) != conf.Offload {
					t.Errorf("%d ranks: %d bytes of moments on the host planned", ranks, r)
				}
			}
		})
	}
}
