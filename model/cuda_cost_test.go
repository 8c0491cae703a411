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

// counted is the CUDA engine, with its commands by operation.
type counted struct {
	compute.Backend
	commands func() (launches, copies int)
	by       map[string]commands
}

func (c *counted) op(name string, f func()) {
	l, n := c.commands()
	f()
	l1, n1 := c.commands()
	x := c.by[name]
	c.by[name] = commands{x.calls + 1, x.launches + l1 - l, x.copies + n1 - n}
}

func (c *counted) Upload(t compute.Tensor, x []float32) {
	c.op("Upload", func() { c.Backend.Upload(t, x) })
}
func (c *counted) Download(x []float32, t compute.Tensor) {
	c.op("Download", func() { c.Backend.Download(x, t) })
}
func (c *counted) Zero(t compute.Tensor)    { c.op("Zero", func() { c.Backend.Zero(t) }) }
func (c *counted) Copy(d, s compute.Tensor) { c.op("Copy", func() { c.Backend.Copy(d, s) }) }
func (c *counted) Add(y, x compute.Tensor)  { c.op("Add", func() { c.Backend.Add(y, x) }) }
func (c *counted) Scale(t compute.Tensor, s float64) {
	c.op("Scale", func() { c.Backend.Scale(t, s) })
}
func (c *counted) Refresh(p *compute.Param) { c.op("Refresh", func() { c.Backend.Refresh(p) }) }
func (c *counted) Embed(y compute.Tensor, w *compute.Param, ids []int32) {
	c.op("Embed", func() { c.Backend.Embed(y, w, ids) })
}
func (c *counted) EmbedGrad(w *compute.Param, dy compute.Tensor, ids []int32) {
	c.op("EmbedGrad", func() { c.Backend.EmbedGrad(w, dy, ids) })
}
func (c *counted) RMSNorm(y, r, x compute.Tensor, w *compute.Param, eps float64) {
	c.op("RMSNorm", func() { c.Backend.RMSNorm(y, r, x, w, eps) })
}
func (c *counted) RMSNormGrad(dx compute.Tensor, w *compute.Param, dy, x, r compute.Tensor, acc bool) {
	c.op("RMSNormGrad", func() { c.Backend.RMSNormGrad(dx, w, dy, x, r, acc) })
}
func (c *counted) Linear(y, x compute.Tensor, w, b *compute.Param, acc bool) {
	c.op("Linear", func() { c.Backend.Linear(y, x, w, b, acc) })
}
func (c *counted) Linears(ps []compute.Projection, x compute.Tensor) {
	c.op("Linear", func() { c.Backend.Linears(ps, x) })
}
func (c *counted) LinearsGrad(dx compute.Tensor, ps []compute.Projection, x compute.Tensor) {
	c.op("LinearGrad", func() { c.Backend.LinearsGrad(dx, ps, x) })
}
func (c *counted) LinearGrad(dx compute.Tensor, w, b *compute.Param, dy, x compute.Tensor, acc bool) {
	c.op("LinearGrad", func() { c.Backend.LinearGrad(dx, w, b, dy, x, acc) })
}
func (c *counted) Rope(x compute.Tensor, h, e int, pos []int32, t compute.Tensor, inverse bool) {
	c.op("Rope", func() { c.Backend.Rope(x, h, e, pos, t, inverse) })
}
func (c *counted) Attention(o, l, q, k, v compute.Tensor, a compute.AttnShape, p compute.Pack) {
	c.op("Attention", func() { c.Backend.Attention(o, l, q, k, v, a, p) })
}
func (c *counted) AttentionGrad(dq, dk, dv, do, o, l, q, k, v compute.Tensor, a compute.AttnShape, p compute.Pack) {
	c.op("AttentionGrad", func() { c.Backend.AttentionGrad(dq, dk, dv, do, o, l, q, k, v, a, p) })
}
func (c *counted) CacheWrite(to, x compute.Tensor, width int, slots []int32) {
	c.op("CacheWrite", func() { c.Backend.CacheWrite(to, x, width, slots) })
}
func (c *counted) AttentionDecode(o, q, k, v compute.Tensor, a compute.AttnShape, p compute.Pages) {
	c.op("AttentionDecode", func() { c.Backend.AttentionDecode(o, q, k, v, a, p) })
}
func (c *counted) SwiGLU(y, g, u compute.Tensor) {
	c.op("SwiGLU", func() { c.Backend.SwiGLU(y, g, u) })
}
func (c *counted) RopeCache(q, k, v, kc, vc compute.Tensor, a compute.AttnShape, pos []int32, t compute.Tensor, slots []int32) {
	c.op("RopeCache", func() { c.Backend.RopeCache(q, k, v, kc, vc, a, pos, t, slots) })
}
func (c *counted) SwiGLUGrad(y, dg, du, dy, g, u compute.Tensor) {
	c.op("SwiGLUGrad", func() { c.Backend.SwiGLUGrad(y, dg, du, dy, g, u) })
}
func (c *counted) LogProb(out compute.HeadOut, h compute.Tensor, w *compute.Param, rows, targets []int32, t float64) {
	c.op("LogProb", func() { c.Backend.LogProb(out, h, w, rows, targets, t) })
}
func (c *counted) LogProbGrad(dh compute.Tensor, w *compute.Param, out compute.HeadOut, dl, de, h compute.Tensor, rows, targets []int32, t float64) {
	c.op("LogProbGrad", func() { c.Backend.LogProbGrad(dh, w, out, dl, de, h, rows, targets, t) })
}
func (c *counted) Sample(ids []int32, logp []float32, h compute.Tensor, w *compute.Param, s compute.Sampling, u []float64) {
	c.op("Sample", func() { c.Backend.Sample(ids, logp, h, w, s, u) })
}
func (c *counted) Score(s, h compute.Tensor, w *compute.Param, rows []int32) {
	c.op("Score", func() { c.Backend.Score(s, h, w, rows) })
}
func (c *counted) ScoreGrad(dh compute.Tensor, w *compute.Param, ds, h compute.Tensor, rows []int32) {
	c.op("ScoreGrad", func() { c.Backend.ScoreGrad(dh, w, ds, h, rows) })
}
func (c *counted) SumSquares(ts []compute.Tensor) (s float64) {
	c.op("SumSquares", func() { s = c.Backend.SumSquares(ts) })
	return s
}
func (c *counted) LinearAdd(y, r, x compute.Tensor, w *compute.Param) {
	c.op("LinearAdd", func() { c.Backend.LinearAdd(y, r, x, w) })
}
func (c *counted) AdamW(ps []*compute.Param, a compute.AdamW) {
	c.op("AdamW", func() { c.Backend.AdamW(ps, a) })
}

// The model of cost queues what the engine queues, operation by operation: kernels and
// products exactly, copies too but for lists of tiles. Each part of a step is run twice; the second is compared,
// because the first makes copies of weights, and grows memory.
func TestCUDAModelOfCost(t *testing.T) {
	for _, c := range []struct {
		name  string
		shape Config
		lora  int
		optim AdamWConfig
	}{
		{"Qwen2", tensorCore("Qwen2", 64), 0, AdamWConfig{}},
		{"Qwen3, moments in 8 bits", tensorCore("Qwen3", 64), 0, AdamWConfig{Moments8: true}},
		{"Llama, moments on the host", tensorCore("Llama", 128), 0, AdamWConfig{Offload: true}},
		{"Qwen2, LoRA", tensorCore("Qwen2", 64), 8, AdamWConfig{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := gpu(t, cuda.BF16)
			real := &counted{Backend: engine, commands: engine.(interface{ Commands() (int, int) }).Commands, by: map[string]commands{}}
			card := cost.New(cost.Cards[0])
			for _, part := range []string{"student, activations kept", "student, recomputation", "discriminator", "generation"} {
				c.optim.Beta1, c.optim.Beta2, c.optim.Eps, c.optim.ClipNorm = 0.9, 0.95, 1e-8, 1
				step := func(be compute.Backend, taken func() map[string]commands) map[string]commands {
					o := Options{Kind: LM, Trainable: true, Recompute: part == "student, recomputation", Seed: 3, ScoreInit: 0.1}
					if part == "discriminator" {
						o.Kind = Scorer
					}
					var m *Model
					var err error
					if c.lora > 0 {
						base, err := New(be, c.shape, Options{Kind: LM, Seed: 1})
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
							must(t, m.ScoreGrad(seqs, func(s []float32) ([]float32, error) { return []float32{1, -1, 0.5, -0.5, 1}, nil }))
						case "generation":
							for range 2 { // the second replays graphs
								_, err := m.Generate([][]int32{{1, 2, 3}, {4, 5, 6, 7}}, []uint64{0, 1}, SampleOptions{N: 3, MaxNew: 8, Slots: 6, Seed: 1, Sampling: Sampling{Temperature: 1}}, nil)
								must(t, err)
							}
							continue
						default:
							must(t, m.LogProbGrad(seqs, 1, func(l, e [][]float32) (dl, de [][]float32, err error) {
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
				want := step(real, func() map[string]commands {
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
					t.Logf("%-26s %-16s %4d calls %4d launches %4d copies", part, op, w.calls, w.launches, w.copies)
					more := 0
					if op == "AttentionGrad" { // the engine finds that two lists of tiles are equal, as those of short sequences are
						more = w.calls
					}
					if g.launches != w.launches || g.calls != w.calls && op != "Linear" || g.copies < w.copies || g.copies > w.copies+more {
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
