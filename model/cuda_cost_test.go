//go:build nvidia

package model

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cost"
	"gad/internal/compute/cuda"
)

// commands are what an operation queued.
type commands struct{ calls, launches, copies int }

// counted is the compute.Observer that counts the CUDA engine's commands by operation.
type counted struct {
	commands func() (launches, copies int)
	by       map[string]commands

	op               string // the operation that runs
	launches, copies int    // commands before it
}

func (c *counted) Before(op string, _ compute.Cost) {
	c.op = op
	c.launches, c.copies = c.commands()
}

func (c *counted) After() {
	l, n := c.commands()
	x := c.by[c.op]
	c.by[c.op] = commands{x.calls + 1, x.launches + l - c.launches, x.copies + n - c.copies}
}

// The model of cost queues what the engine queues, operation by operation: kernels and products
// exactly, copies too but for lists of tiles. Each part of a step is run twice; the second is
// compared, because the first makes copies of weights, and grows memory.
func TestCUDAModelOfCost(t *testing.T) {
	for _, c := range []struct {
		name  string
		shape Config
		lora  int
		optim AdamWConfig
		quant string
	}{
		{"Qwen2", tensorCore("Qwen2", 64), 0, AdamWConfig{}, ""},
		{"Qwen3, moments in 8 bits", tensorCore("Qwen3", 64), 0, AdamWConfig{Moments8: true}, ""},
		{"Llama, moments on the host", tensorCore("Llama", 128), 0, AdamWConfig{Offload: true}, ""},
		{"Qwen2, LoRA", tensorCore("Qwen2", 64), 8, AdamWConfig{}, ""},
		{"Llama, LoRA on q4_0", tensorCore("Llama", 64), 8, AdamWConfig{}, "q4_0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := gpu(t, cuda.BF16)
			real := &counted{commands: engine.(interface{ Commands() (int, int) }).Commands,
				by: map[string]commands{}}
			observed := compute.Observe(engine, compute.Elements{}, real)
			card := cost.New(cost.Cards[0])
			for _, part := range []string{"student, activations kept", "student, recomputation",
				"discriminator", "generation"} {
				c.optim.Beta1, c.optim.Beta2, c.optim.Eps, c.optim.ClipNorm = 0.9, 0.95, 1e-8, 1
				step := func(be compute.Backend,
					taken func() map[string]commands) map[string]commands {
					o := Options{Kind: LM, Trainable: true,
						Recompute: part == "student, recomputation", Seed: 3, ScoreInit: 0.1}
					if part == "discriminator" {
						o.Kind = Scorer
					}
					var m *Model
					var err error
					if c.lora > 0 {
						base, err := New(be, c.shape, Options{Kind: LM, Seed: 1, Quant: c.quant})
						must(t, err)
						defer base.Close()
						o.LoRA = DefaultLoRA()
						o.LoRA.Rank = c.lora
						m, err = base.Adapt(o)
						must(t, err)
					} else {
						m, err = New(be, c.shape, o)
						must(t, err)
					}
					defer m.Close()
					opt, err := NewOptimizer(m, c.optim)
					must(t, err)
					// Packs whose tokens, prompts shared, are whole blocks of 8 elements.
					seqs := answered(seqsOf(c.shape.Vocab, 70, 5, 33), 1, 60)
					for range 2 {
						taken()
						switch part {
						case "discriminator":
							must(t, m.ScoreGrad(seqs,
								func(s []float32) ([]float32,
									error) {
									return []float32{1, -1, 0.5, -0.5, 1}, nil
								}))
						case "generation":
							for range 2 { // the second replays graphs
								_, err := m.Generate([][]int32{{1, 2, 3}, {4, 5, 6, 7}},
									[]uint64{0, 1},
									SampleOptions{N: 3, MaxNew: 8, Slots: 6, Seed: 1,
										Sampling: Sampling{Temperature: 1}}, nil)
								must(t, err)
							}
							continue
						default:
							must(t, m.LogProbGrad(seqs, 1,
								func(l, e [][]float32) (dl, de [][]float32, err error) {
									for i := range l {
										dl = append(dl, make([]float32, len(l[i])))
										for k := range dl[i] {
											dl[i][k] = 0.1
										}
									}
									return dl, nil, nil
								}))
						}
						_, _, err := opt.step(1e-3)
						must(t, err)
					}
					return taken()
				}
				got := step(card, func() map[string]commands {
					by := map[string]commands{}
					uses, _ := card.Take()
					for _, u := range uses {
						by[u.Op] = commands{u.Calls, u.Launches, u.Copies}
					}
					return by
				})
				want := step(observed, func() map[string]commands {
					by := real.by
					real.by = map[string]commands{}
					return by
				})
				names := slices.Sorted(maps.Keys(want))
				for op := range got {
					if _, ok := want[op]; !ok {
						t.Errorf("%s: %s: in the model of cost alone", part, op)
					}
				}
				if len(names) < 5 {
					t.Errorf("%s: only %v were counted", part, names)
				}
				for _, op := range names {
					g, w := got[op], want[op]
					t.Logf("%-26s %-16s %4d calls %4d launches %4d copies", part, op, w.calls,
						w.launches, w.copies)
					more := 0
					// the engine finds that two lists of tiles are equal, as those of short
					// sequences are
					if op == "AttentionGrad" {
						more = w.calls
					}
					if g.launches != w.launches || g.calls != w.calls && op != "Linear" ||
						g.copies < w.copies || g.copies > w.copies+more {
						t.Errorf("%s: %s: the model of cost has %s, the engine %s", part, op, g, w)
					}
				}
			}
		})
	}
}

func (c commands) String() string {
	return fmt.Sprintf("%d launches and %d copies", c.launches, c.copies)
}
