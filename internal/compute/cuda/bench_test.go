//go:build nvidia

package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"gad/internal/compute"
	"gad/internal/compute/computetest"
)

// The benchmarks run each operation at the shapes of Qwen2.5, and print what it
// reaches beside the machine's limits, measured in the same run. They time some
// operations in the queue up to the device's end, so that launches are hidden as
// in a step.
//
// GAD_BENCH_MODELS chooses among the shapes, "0.5B 1.5B 3B" unless set; tiny is for
// an emulated device.

// widths are a model's.
type widths struct{ D, H, K, E, F, V int }

var shapes = map[string]widths{
	"tiny": {128, 2, 1, 64, 192, 320},
	"0.5B": {896, 14, 2, 64, 4864, 151936},
	"1.5B": {1536, 12, 2, 128, 8960, 151936},
	"3B":   {2048, 16, 2, 128, 11008, 151936},
	"7B":   {3584, 28, 4, 128, 18944, 152064},
}

// bench is a benchmark's state for one model.
type bench struct {
	*testing.B
	be   compute.Backend
	roof compute.Roof
	widths
	N    int // tokens of a pack
	L, R int // length of a sequence; rows that are decoded
	mem  []compute.Tensor
}

// benchmarks runs f for each model, with the machine's limits measured.
func benchmarks(b *testing.B, f func(x *bench)) {
	models := strings.Fields(os.Getenv("GAD_BENCH_MODELS"))
	if len(models) == 0 {
		models = []string{"0.5B", "1.5B", "3B"}
	}
	be, err := Open(Options{})
	if errors.Is(err, ErrUnavailable) && os.Getenv("GAD_REQUIRE_CUDA") == "" {
		b.Skipf("NOT MEASURED: %v", err)
	}
	if err != nil {
		b.Fatal(err)
	}
	defer be.Close()
	side := 8192
	if models[0] == "tiny" {
		side = 64
	}
	roof, err := compute.MeasureRoof(be, side)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("limits", func(b *testing.B) { computetest.Limits(b, roof) })
	for _, model := range models {
		w, ok := shapes[model]
		if !ok {
			b.Fatalf("GAD_BENCH_MODELS: %q: want some of tiny, 0.5B, 1.5B, 3B and 7B", model)
		}
		b.Run(model, func(b *testing.B) {
			x := &bench{B: b, be: be, roof: roof, widths: w, N: 16384, L: 4096, R: 256}
			if model == "tiny" {
				x.N, x.L, x.R = 64, 32, 8
			}
			f(x)
		})
	}
}

// random is memory for one case.
func (x *bench) random(c compute.Class, n int) compute.Tensor {
	x.Helper()
	t, err := compute.Random(x.be, c, n)
	if err != nil {
		x.Fatal(err)
	}
	x.mem = append(x.mem, t)
	return t
}

// zeros is memory for one case, which may be the host's.
func (x *bench) zeros(c compute.Class, n int) compute.Tensor {
	x.Helper()
	t, err := x.be.Alloc("zeros", c, n)
	if err != nil {
		x.Fatal(err)
	}
	x.mem = append(x.mem, t)
	x.be.Zero(t)
	return t
}

func (x *bench) narrow(n int) compute.Tensor { return x.random(compute.Narrow, n) }
func (x *bench) wide(n int) compute.Tensor   { return x.random(compute.Wide, n) }

// param is a matrix, or a vector if rows is 1, with a gradient and moments if trained.
func (x *bench) param(rows, cols int, trained bool) *compute.Param {
	p := &compute.Param{Name: "bench", Shape: []int{rows, cols}, Rows: rows, Cols: cols,
		Decay: true}
	class := compute.Frozen
	switch {
	case rows == 1:
		class = compute.Wide
	case trained:
		class = compute.Master
	}
	p.W = x.random(class, rows*cols)
	if trained {
		p.G, p.M, p.V = x.wide(rows*cols), x.wide(rows*cols), x.wide(rows*cols)
		x.be.Zero(p.V) // squares: not below 0
	}
	x.be.Refresh(p)
	return p
}

// measure times a case: make allocates and returns the operation, and how many
// multiply-adds (times two) and bytes of memory it needs at the least.
func (x *bench) measure(name string, make func(x *bench) (flops, bytes float64, op func())) {
	x.Run(name, func(b *testing.B) {
		y := *x
		y.B, y.mem = b, nil
		flops, bytes, op := make(&y)
		defer func() {
			for _, t := range y.mem {
				y.be.Free(t)
			}
		}()
		wait := func() {
			if err := y.be.Sync(); err != nil {
				b.Fatal(err)
			}
		}
		op()
		wait()
		began := time.Now()
		op()
		wait()
		// As many at a time as hide the wait at the end.
		turn := int(min(1000, 20*time.Millisecond/max(1, time.Since(began))+1))
		for b.Loop() {
			for range turn {
				op()
			}
			wait()
		}
		each := b.Elapsed().Seconds() / float64(b.N*turn)
		b.ReportMetric(1e9*each, "ns/op")
		computetest.ReportRoof(b, y.roof, flops, bytes, each)
	})
}

// BenchmarkGEMM is the matrix products of a block, forward and backward, for a
// pack and, forward, for the rows of a decoding step: q, k and v are one, and gate and up.
func BenchmarkGEMM(b *testing.B) {
	benchmarks(b, func(x *bench) {
		for _, m := range []struct {
			name string
			I, O int
			wide bool // the result is added to the residual stream
		}{{"qkv", x.D, (x.H + 2*x.K) * x.E, false}, {"o", x.H * x.E, x.D, true},
			{"gateup", x.D, 2 * x.F, false}, {"down", x.F, x.D, true}} {
			I, O := float64(m.I), float64(m.O)
			for _, n := range []int{x.N, x.R} {
				N := float64(n)
				x.measure(fmt.Sprintf("forward/%s/N=%d", m.name, n),
					func(x *bench) (float64, float64, func()) {
						out, bytes := x.narrow, 2*(N*I+I*O+N*O)
						if m.wide {
							out, bytes = x.wide, 2*(N*I+I*O)+8*N*O
						}
						y, in, w := out(n*m.O), x.narrow(n*m.I), x.param(m.O, m.I, false)
						return 2 * N * I * O, bytes, func() { x.be.Linear(y, in, w, nil, m.wide) }
					})
			}
			N := float64(x.N)
			x.measure(fmt.Sprintf("backward/%s/N=%d", m.name, x.N),
				func(x *bench) (float64, float64, func()) {
					out, each := x.narrow, 2.0
					if m.wide {
						out, each = x.wide, 4
					}
					dy, in, dx, w :=
						out(x.N*m.O), x.narrow(x.N*m.I), x.narrow(x.N*m.I), x.param(m.O, m.I, true)
					return 4 * N * I * O, each*N*O + 4*N*I + 10*I*O,
						func() { x.be.LinearGrad(dx, w, nil, dy, in, false) }
				})
		}
	})
}

// packs are ways to fill a pack: sequences of one length; of lengths from 1/32 of it to
// the whole, as answers have; and prompts of 1/8 of it with eight answers of 1/32 each,
// which share their prompt or, as many tokens more, have it each.
func (x *bench) packs() map[string]compute.Pack {
	var equal, mixed, shared, apart, game compute.Pack
	add := func(p *compute.Pack, tokens int, parent int32) {
		if p.Start == nil {
			p.Start = []int32{0}
		}
		p.Start, p.Parent =
			append(p.Start, p.Start[len(p.Start)-1]+int32(tokens)), append(p.Parent, parent)
	}
	for range x.N / x.L {
		add(&equal, x.L, -1)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for at := 0; at < x.N; {
		n := min(x.N-at, x.L/32+rng.IntN(x.L-x.L/32))
		add(&mixed, n, -1)
		at += n
	}
	const answers = 8
	prompt, answer := x.L/8, x.L/32
	for range x.N / (prompt + answers*answer) {
		parent := int32(shared.Segments())
		add(&shared, prompt, -1)
		for range answers {
			add(&shared, answer, parent)
			add(&apart, prompt+answer, -1)
		}
	}
	add(&game, x.L/16, -1) // a GAD step's own: answers of 1,536 tokens, but for tiny
	for range answers {
		add(&game, 3*x.L/8, 0)
	}
	of := fmt.Sprintf("%d x %dx%d on %d", x.N/(prompt+answers*answer), answers, answer, prompt)
	return map[string]compute.Pack{fmt.Sprintf("%dx%d", x.N/x.L, x.L): equal,
		fmt.Sprintf("%d mixed", mixed.Segments()): mixed,
		of + " shared": shared, of + " apart": apart, x.step(): game}
}

// step is the name of the pack of a GAD step.
func (x *bench) step() string { return fmt.Sprintf("8x%d on %d shared", 3*x.L/8, x.L/16) }

// BenchmarkAttention counts the multiply-adds of the pairs of a query and a key that it
// sees: two products forward, five backward.
func BenchmarkAttention(b *testing.B) {
	benchmarks(b, func(x *bench) {
		a := compute.AttnShape{H: x.H, K: x.K, E: x.E, Scale: 1 / math.Sqrt(float64(x.E))}
		for name, pack := range x.packs() {
			pairs := 0.0
			for s := range pack.Segments() {
				g := pack.Segment(s)
				n := float64(g.Len)
				pairs += n*(n+1)/2 + n*float64(g.Before)
			}
			flops := 4 * pairs * float64(x.H*x.E)
			N := int(pack.Start[pack.Segments()])
			nq, nk := N*x.H*x.E, N*x.K*x.E
			x.measure("forward/"+name, func(x *bench) (float64, float64, func()) {
				q, o, k, v, lse :=
					x.narrow(nq), x.narrow(nq), x.narrow(nk), x.narrow(nk), x.wide(N*x.H)
				return flops, 4 * float64(nq+nk),
					func() { x.be.Attention(o, lse, q, k, v, a, pack) }
			})
			x.measure("backward/"+name, func(x *bench) (float64, float64, func()) {
				q, o, k, v, lse :=
					x.narrow(nq), x.narrow(nq), x.narrow(nk), x.narrow(nk), x.wide(N*x.H)
				dq, do, dk, dv := x.narrow(nq), x.narrow(nq), x.narrow(nk), x.narrow(nk)
				x.be.Attention(o, lse, q, k, v, a, pack)
				return 2.5 * flops, 8 * float64(nq+nk),
					func() { x.be.AttentionGrad(dq, dk, dv, do, o, lse, q, k, v, a, pack) }
			})
			if name != x.step() {
				continue
			}
			x.measure("backward by heads alone/"+name, func(x *bench) (float64, float64, func()) {
				q, o, k, v, lse :=
					x.narrow(nq), x.narrow(nq), x.narrow(nk), x.narrow(nk), x.wide(N*x.H)
				dq, do, dk, dv := x.narrow(nq), x.narrow(nq), x.narrow(nk), x.narrow(nk)
				x.be.Attention(o, lse, q, k, v, a, pack)
				return 2.5 * flops, 8 * float64(nq+nk), func() {
					least := &x.be.(*Backend).least
					*least = math.MaxInt
					x.be.AttentionGrad(dq, dk, dv, do, o, lse, q, k, v, a, pack)
					*least = leastQueries
				}
			})
		}
	})
}

// BenchmarkDecode is one query for each of 256 rows over cached keys and values.
func BenchmarkDecode(b *testing.B) {
	benchmarks(b, func(x *bench) {
		a := compute.AttnShape{H: x.H, K: x.K, E: x.E, Scale: 1 / math.Sqrt(float64(x.E))}
		const P = 16
		for _, length := range []int{x.L / 8, x.L / 2, x.L} {
			x.measure(fmt.Sprintf("R=%d/L=%d", x.R, length),
				func(x *bench) (float64, float64, func()) {
					n := blocks(length, P)
					order := rand.New(rand.NewPCG(3, 4)).Perm(x.R * n) // pages lie anywhere
					pages := compute.Pages{PageTokens: P, Table: make([][]int32, x.R),
						Len: make([]int32, x.R)}
					for r := range x.R {
						for _, p := range order[r*n : (r+1)*n] {
							pages.Table[r] = append(pages.Table[r], int32(p))
						}
						pages.Len[r] = int32(length)
					}
					cache := x.R * n * P * x.K * x.E
					q, o, k, v :=
						x.narrow(x.R*x.H*x.E), x.narrow(x.R*x.H*x.E), x.narrow(cache),
						x.narrow(cache)
					seen := float64(x.R * length)
					return 4 * seen * float64(x.H*x.E), 4 * seen * float64(x.K*x.E),
						func() { x.be.AttentionDecode(o, q, k, v, a, pages) }
				})
		}
	})
}

// BenchmarkHead counts one product of rows and vocabulary in LogProb and Sample,
// three in LogProbGrad.
func BenchmarkHead(b *testing.B) {
	benchmarks(b, func(x *bench) {
		cases := []struct {
			name  string
			R     int
			times float64
			stats limits // of LogProb
		}{{"LogProb", x.N / 2, 1, headLimits.stats}, {"LogProbGrad", x.N / 2, 3, headLimits.stats},
			{"Sample", x.R, 1, headLimits.stats}, {"Sample by surveys", x.R, 1, headLimits.stats},
			{"Sample top-p 0.95", x.R, 1, headLimits.stats}}
		for _, rows := range []int{4096, 8192} {
			for _, megabytes := range []int64{32, 128, 512, 1280} {
				cases = append(cases, cases[0])
				c := &cases[len(cases)-1]
				c.stats.rows, c.stats.logits = rows, megabytes<<20
				c.name = fmt.Sprintf("LogProb, %d rows and %d MB", rows, megabytes)
			}
		}
		for _, c := range cases {
			R, D, V := float64(c.R), float64(x.D), float64(x.V)
			x.measure(fmt.Sprintf("%s/R=%d", c.name, c.R),
				func(x *bench) (float64, float64, func()) {
					h, w := x.narrow(c.R*x.D), x.param(x.V, x.D, c.times > 1)
					bytes := 2 * (R*D + V*D)
					if c.times > 1 {
						bytes += 2*R*D + 8*V*D
					}
					rows, targets := make([]int32, c.R), make([]int32, c.R)
					for r := range rows {
						rows[r], targets[r] = int32(r), int32(r%x.V)
					}
					out := compute.HeadOut{LogpR: x.wide(c.R), EntR: x.wide(c.R), LseR: x.wide(c.R)}
					ids, logp, u := make([]int32, c.R), make([]float32, c.R), make([]float64, c.R)
					for r := range u {
						u[r] = (float64(r) + 0.5) / R
					}
					op := func() {
						head := &x.be.(*Backend).head.stats
						defer func(l limits) { *head = l }(*head)
						*head = c.stats
						x.be.LogProb(out, h, w, rows, targets, 1)
					}
					switch c.name {
					case "LogProbGrad":
						op()
						dh, d := x.narrow(c.R*x.D), x.wide(c.R)
						op = func() { x.be.LogProbGrad(dh, w, out, d, d, h, rows, targets, 1) }
					case "Sample", "Sample by surveys":
						op = func() {
							surveys := &x.be.(*Backend).surveys
							defer func() { *surveys = false }()
							*surveys = c.name != "Sample"
							x.be.Sample(ids, logp, h, w, compute.Sampling{Temperature: 1},
								u)
						}
					case "Sample top-p 0.95":
						op = func() {
							x.be.Sample(ids, logp, h, w,
								compute.Sampling{Temperature: 1, TopP: 0.95}, u)
						}
					}
					return c.times * 2 * R * D * V, bytes, op
				})
		}
	})
}

// BenchmarkQuantised measures a layer's products with weights in blocks, made bfloat16 in registers
// or unpacked, beside Frozen ones: from how many rows on unpacking is faster.
func BenchmarkQuantised(b *testing.B) {
	benchmarks(b, func(x *bench) {
		engine := x.be.(*Backend)
		defer func() { engine.few = fewRows }()
		for _, m := range []struct {
			name string
			I, O int
		}{{"o", x.H * x.E, x.D}, {"gateup", x.D, 2 * x.F}, {"down", x.F, x.D}} {
			for _, class := range []compute.Class{compute.Frozen, compute.Q8, compute.Q4} {
				for _, n := range []int{16, 64, 128, x.R, x.N} {
					for way, few := range map[string]int{"registers": n, "unpacked": 0} {
						if way == "registers" && (class == compute.Frozen || n > 512) {
							continue
						}
						N, I, O := float64(n), float64(m.I), float64(m.O)
						weights := float64(compute.Bytes(x.be, class, m.I*m.O))
						x.measure(fmt.Sprintf("%s/%v/%s/N=%d", m.name, class, way, n),
							func(x *bench) (float64, float64, func()) {
								y, in := x.narrow(n*m.O), x.narrow(n*m.I)
								w := &compute.Param{Name: "bench", Rows: m.O, Cols: m.I,
									W: x.random(class, m.O*m.I)}
								return 2 * N * I * O, 2*N*(I+O) + weights, func() {
									engine.few = few
									x.be.Linear(y, in, w, nil, false)
								}
							})
					}
				}
			}
		}
	})
}

// BenchmarkAdamW is the optimizer's step of the largest matrix, with its moments in each
// class, and the norm of its gradient. Bytes that cross the bus to the host's memory count
// as the device's: the rate says how fast the bus is.
func BenchmarkAdamW(b *testing.B) {
	benchmarks(b, func(x *bench) {
		n := float64(x.V) * float64(x.D)
		for _, c := range []compute.Class{compute.Wide, compute.Code, compute.Wide | compute.Host,
			compute.Code | compute.Host} {
			x.measure(fmt.Sprint("step, moments ", c), func(x *bench) (float64, float64, func()) {
				p := x.param(x.V, x.D, true)
				bytes := 28 * n
				if host := c & compute.Host; c != compute.Wide {
					p.M, p.V = x.zeros(c, p.Len()), x.zeros(c, p.Len())
					if c&^compute.Host == compute.Code {
						bytes = 16 * n
						p.MScale, p.VScale =
							x.zeros(compute.Wide|host, compute.Blocks(p.Len())),
							x.zeros(compute.Wide|host, compute.Blocks(p.Len()))
					}
				}
				return 0, bytes, func() {
					x.be.AdamW([]*compute.Param{p},
						compute.AdamW{LR: 1e-6, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.01,
							GradScale: 1, Step: 3})
				}
			})
		}
		x.measure("norm", func(x *bench) (float64, float64, func()) {
			g := []compute.Tensor{x.wide(x.V * x.D)}
			return 0, 4 * n, func() { x.be.SumSquares(g) }
		})
	})
}

// normGrad returns a case of RMSNormGrad, in one pass for rows of up to so many columns.
func normGrad(onePass int) func(x *bench) (bytes float64, op func()) {
	return func(x *bench) (float64, func()) {
		dx, dy, in, r, w :=
			x.wide(x.N*x.D), x.narrow(x.N*x.D), x.wide(x.N*x.D), x.wide(x.N), x.param(1, x.D, true)
		return 14 * float64(x.N*x.D), func() {
			of := &x.be.(*Backend).onePass
			defer func(n int) { *of = n }(*of)
			*of = onePass
			x.be.RMSNormGrad(dx, w, dy, in, r, true)
		}
	}
}

// BenchmarkElementwise is everything else that a block has, for a pack.
func BenchmarkElementwise(b *testing.B) {
	benchmarks(b, func(x *bench) {
		N, D, F, Q := float64(x.N), float64(x.D), float64(x.F), float64(x.H*x.E)
		ids, pos := make([]int32, x.N), make([]int32, x.N)
		rng := rand.New(rand.NewPCG(5, 6))
		for n := range ids {
			// few ids are most of a text
			ids[n], pos[n] = int32(float64(x.V)*math.Pow(rng.Float64(), 4)), int32(n%x.L)
		}
		for _, c := range []struct {
			name string
			make func(x *bench) (bytes float64, op func())
		}{
			{"RMSNorm", func(x *bench) (float64, func()) {
				y, in, r, w :=
					x.narrow(x.N*x.D), x.wide(x.N*x.D), x.wide(x.N), x.param(1, x.D, false)
				return 6 * N * D, func() { x.be.RMSNorm(y, r, in, w, 1e-6) }
			}},
			{"RMSNormGrad", normGrad(onePassNorm)},
			{"RMSNormGrad in two passes", normGrad(0)},
			{"Rope", func(x *bench) (float64, func()) {
				q, table := x.narrow(x.N*x.H*x.E), x.wide(x.L*x.E)
				return 4 * N * Q, func() { x.be.Rope(q, x.H, x.E, pos, table, false) }
			}},
			{"SwiGLU", func(x *bench) (float64, func()) {
				y, g, u := x.narrow(x.N*x.F), x.narrow(x.N*x.F), x.narrow(x.N*x.F)
				return 6 * N * F, func() { x.be.Gated(compute.SiLU, y, g, u) }
			}},
			{"SwiGLUGrad", func(x *bench) (float64, func()) {
				y, dg, du, g, u :=
					x.narrow(x.N*x.F), x.narrow(x.N*x.F), x.narrow(x.N*x.F), x.narrow(x.N*x.F),
					x.narrow(x.N*x.F)
				return 12 * N * F, func() { x.be.GatedGrad(compute.SiLU, y, dg, du, dg, g, u) }
			}},
			{"Embed", func(x *bench) (float64, func()) {
				y, w := x.wide(x.N*x.D), x.param(x.V, x.D, false)
				return 6 * N * D, func() { x.be.Embed(y, w, ids) }
			}},
			{"EmbedGrad", func(x *bench) (float64, func()) {
				dy, w := x.wide(x.N*x.D), x.param(x.V, x.D, true)
				return 8 * N * D, func() { x.be.EmbedGrad(w, dy, ids) }
			}},
			{"Copy", func(x *bench) (float64, func()) {
				y, in := x.wide(x.N*x.D), x.wide(x.N*x.D)
				return 8 * N * D, func() { x.be.Copy(y, in) }
			}},
		} {
			x.measure(c.name, func(x *bench) (float64, float64, func()) {
				bytes, op := c.make(x)
				return 0, bytes, op
			})
		}
	})
}
