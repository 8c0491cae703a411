package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"gad/internal/compute"
)

// Benchmarks print what they reach beside what the machine can do, measured in
// the same run: multiply-adds on registers alone, for as many goroutines as
// there are workers; and for the optimizer, a copy of memory.

// peakGFLOPS is the rate of multiply-adds without any memory.
func peakGFLOPS(b *Backend) float64 {
	if loop, flops := dots(b.Name()); b.k16 != nil && loop != nil {
		return b.rate(loop, float64(flops)) / 1e9
	}
	return b.fma() / 1e9
}

// bench opens a backend for each variant, and for native bfloat16 products, runs fn and reports the
// rate of work a call, in units of 1e9 a second: on average, in the fastest call (what a machine
// shared with others can be judged by), and the peak; and tokens a second, where a call has so
// many.
func bench(bm *testing.B, unit string, peak func(*Backend) float64,
	fn func(b *Backend) (work float64, op func()), tokens ...int) {
	for i, variant := range Variants16() {
		bm.Run(variant, func(bm *testing.B) {
			o := Options{Variant: variant}
			if i >= len(Variants()) {
				o.Precision = BF16
			}
			b, err := New(o)
			if err != nil {
				bm.Fatal(err)
			}
			defer b.Close()
			work, op := fn(b)
			op()
			best := time.Duration(math.MaxInt64)
			for bm.Loop() {
				began := time.Now()
				op()
				best = min(best, time.Since(began))
			}
			bm.ReportMetric(work*float64(bm.N)/bm.Elapsed().Seconds()/1e9, unit)
			bm.ReportMetric(work/best.Seconds()/1e9, "best-"+unit)
			bm.ReportMetric(peak(b), "peak-"+unit)
			for _, n := range tokens {
				bm.ReportMetric(float64(n)*float64(bm.N)/bm.Elapsed().Seconds(), "tokens/s")
			}
		})
	}
}

func random(b *Backend, n int) compute.Tensor {
	t, _ := b.Alloc("bench", compute.Wide, n)
	for i, x := 0, f32("bench", "t", t, n); i < n; i++ {
		x[i] = float32(rand.NormFloat64()) * 0.3
	}
	return t
}

func randomParam(b *Backend, rows, cols int) *compute.Param {
	n := rows * cols
	return &compute.Param{Rows: rows, Cols: cols, W: random(b, n), G: random(b, n), M: random(b, n),
		V: fill(b, n, 1)}
}

func fill(b *Backend, n int, v float32) compute.Tensor {
	t, _ := b.Alloc("bench", compute.Wide, n)
	for i, x := 0, f32("bench", "t", t, n); i < n; i++ {
		x[i] = v
	}
	return t
}

func BenchmarkLinear(bm *testing.B) {
	for _, s := range [][3]int{
		// small models: training, decoding
		{2048, 128, 128}, {2048, 128, 384}, {2048, 384, 128}, {32, 128, 384}, {1, 128, 384},
		{8, 192, 512},
		// 25M
		{2048, 384, 384}, {2048, 384, 2816}, {2048, 2816, 384}, {2048, 384, 8192}, {256, 384, 2816},
		{1, 384, 8192},
		// 0.5B
		{1024, 896, 896}, {1024, 896, 4864}, {1024, 4864, 896}, {32, 896, 4864}, {1, 896, 4864},
	} {
		N, I, O := s[0], s[1], s[2]
		bm.Run(fmt.Sprintf("N=%d/I=%d/O=%d", N, I, O), func(bm *testing.B) {
			bench(bm, "GFLOP/s", peakGFLOPS, func(b *Backend) (float64, func()) {
				x, y, w := random(b, N*I), random(b, N*O), randomParam(b, O, I)
				return 2 * float64(N) * float64(I) * float64(O),
					func() { b.Linear(y, x, w, nil, false) }
			})
		})
	}
}

// BenchmarkFewRows is products as decoding makes them: the weights, packed, rotate through
// 64 MiB, and the rate is that at which they are read, beside that of reading alone.
func BenchmarkFewRows(bm *testing.B) {
	for _, s := range [][2]int{{384, 2816}, {2816, 384}, {896, 4864}, {4864, 896}} {
		for _, N := range []int{1, 8, 32} {
			I, O := s[0], s[1]
			bm.Run(fmt.Sprintf("N=%d/I=%d/O=%d", N, I, O), func(bm *testing.B) {
				peak := func(b *Backend) float64 {
					read, _ := b.bandwidth(1 << 24)
					return read / 1e9
				}
				bench(bm, "GB/s", peak, func(b *Backend) (float64, func()) {
					bytes := 4 * I * O
					if b.k16 != nil {
						bytes = 2 * I * O
					}
					ws := make([]*compute.Param, 64<<20/bytes)
					for i := range ws {
						ws[i] = &compute.Param{Rows: O, Cols: I, W: random(b, O*I)}
						b.linear(0, nil, nil, 0, ws[i], nil, false) // packs it
					}
					x, y, next := random(b, N*I), random(b, N*O), 0
					return float64(bytes), func() {
						b.Linear(y, x, ws[next%len(ws)], nil, false)
						next++
					}
				})
			})
		}
	}
}

func BenchmarkLinearGrad(bm *testing.B) {
	for _, s := range [][3]int{{2048, 128, 128}, {2048, 128, 384}, {2048, 384, 128},
		{1024, 896, 896}, {1024, 896, 4864}, {1024, 4864, 896}} {
		N, I, O := s[0], s[1], s[2]
		bm.Run(fmt.Sprintf("N=%d/I=%d/O=%d", N, I, O), func(bm *testing.B) {
			bench(bm, "GFLOP/s", peakGFLOPS, func(b *Backend) (float64, func()) {
				x, dx, dy, w := random(b, N*I), random(b, N*I), random(b, N*O), randomParam(b, O, I)
				return 4 * float64(N) * float64(I) * float64(O),
					func() { b.LinearGrad(dx, w, nil, dy, x, false) }
			})
		})
	}
}

// BenchmarkInputGrad is the gradient of a product's input alone, through weights that are
// kept as it reads them, and frozen ones, which are unpacked for it at each call.
func BenchmarkInputGrad(bm *testing.B) {
	for _, s := range [][3]int{{256, 384, 2816}, {1024, 384, 2816}, {2048, 384, 384},
		{256, 896, 4864}, {1024, 896, 4864}, {1024, 4864, 896}, {4096, 896, 4864}} {
		N, I, O := s[0], s[1], s[2]
		for _, class := range []compute.Class{compute.Narrow, compute.Frozen} {
			bm.Run(fmt.Sprintf("N=%d/I=%d/O=%d/%v", N, I, O, class), func(bm *testing.B) {
				bench(bm, "GFLOP/s", peakGFLOPS, func(b *Backend) (float64, func()) {
					dx, dy, w := random(b, N*I), random(b, N*O), randomParam(b, O, I)
					w.G = compute.Tensor{}
					values := make([]float32, O*I)
					b.Download(values, w.W)
					w.W, _ = b.Alloc("bench", class, O*I)
					b.Upload(w.W, values)
					return 2 * float64(N) * float64(I) * float64(O),
						func() { b.LinearGrad(dx, w, nil, dy, compute.Tensor{}, false) }
				})
			})
		}
	}
}

// BenchmarkAttention counts the multiply-adds below the diagonal: two products
// forward, five backward.
func BenchmarkAttention(bm *testing.B) {
	for _, s := range []struct {
		S, L    int
		H, K, E int
	}{{32, 64, 4, 2, 32}, {8, 256, 4, 2, 32}, {4, 500, 6, 2, 32}, {2, 512, 14, 2, 64},
		{8, 256, 6, 2, 64}, {1, 1024, 1, 1, 64}} {
		a := compute.AttnShape{H: s.H, K: s.K, E: s.E, Scale: 1 / math.Sqrt(float64(s.E))}
		N := s.S * s.L
		flops := 4 * float64(s.S) * float64(s.L) * float64(s.L+1) / 2 * float64(s.H*s.E)
		start := make([]int32, s.S+1)
		for i := range start {
			start[i] = int32(i * s.L)
		}
		name := fmt.Sprintf("S=%d/L=%d/H=%d/K=%d/E=%d", s.S, s.L, s.H, s.K, s.E)
		make8 := func(b *Backend) (q, k, v, o, lse, dq, dk, dv compute.Tensor) {
			QW, KW := N*s.H*s.E, N*s.K*s.E
			return random(b, QW), random(b, KW), random(b, KW), random(b, QW), random(b, N*s.H),
				random(b, QW), random(b, KW), random(b, KW)
		}
		bm.Run("forward/"+name, func(bm *testing.B) {
			bench(bm, "GFLOP/s", peakGFLOPS, func(b *Backend) (float64, func()) {
				q, k, v, o, lse, _, _, _ := make8(b)
				return flops, func() { b.Attention(o, lse, q, k, v, a, compute.Pack{Start: start}) }
			}, N)
		})
		bm.Run("backward/"+name, func(bm *testing.B) {
			bench(bm, "GFLOP/s", peakGFLOPS, func(b *Backend) (float64, func()) {
				q, k, v, o, lse, dq, dk, dv := make8(b)
				b.Attention(o, lse, q, k, v, a, compute.Pack{Start: start})
				return flops * 2.5,
					func() {
						b.AttentionGrad(dq, dk, dv, q, o, lse, q, k, v, a,
							compute.Pack{Start: start})
					}
			}, N)
		})
		bm.Run("decode/"+name, func(bm *testing.B) {
			bench(bm, "GFLOP/s", peakGFLOPS, func(b *Backend) (float64, func()) {
				q, k, v, o, _, _, _, _ := make8(b)
				const P = 16
				pages := compute.Pages{PageTokens: P}
				for i := range s.S {
					var table []int32
					for p := range s.L / P {
						table = append(table, int32(i*(s.L/P)+p))
					}
					pages.Table, pages.Len =
						append(pages.Table, table), append(pages.Len, int32(s.L/P*P))
				}
				W := s.S * s.H * s.E
				return 4 * float64(s.S*(s.L/P*P)*s.H*s.E),
					func() { b.AttentionDecode(o.Slice(0, W), q.Slice(0, W), k, v, a, pages) }
			}, s.S)
		})
	}
}

func BenchmarkHead(bm *testing.B) {
	for _, s := range [][3]int{{1024, 128, 800}, {256, 896, 20000}} {
		R, D, V := s[0], s[1], s[2]
		rows, targets := make([]int32, R), make([]int32, R)
		for r := range rows {
			rows[r], targets[r] = int32(r), int32(r%V)
		}
		flops := 2 * float64(R) * float64(D) * float64(V)
		name := fmt.Sprintf("R=%d/D=%d/V=%d", R, D, V)
		bm.Run("LogProb/"+name, func(bm *testing.B) {
			bench(bm, "GFLOP/s", peakGFLOPS, func(b *Backend) (float64, func()) {
				h, w, out :=
					random(b, R*D), randomParam(b, V, D),
					compute.HeadOut{LogpR: random(b, R), EntR: random(b, R), LseR: random(b, R)}
				return flops, func() { b.LogProb(out, h, w, rows, targets, 1) }
			})
		})
		bm.Run("LogProbGrad/"+name, func(bm *testing.B) {
			bench(bm, "GFLOP/s", peakGFLOPS, func(b *Backend) (float64, func()) {
				h, w, out :=
					random(b, R*D), randomParam(b, V, D),
					compute.HeadOut{LogpR: random(b, R), EntR: random(b, R), LseR: random(b, R)}
				dh, d := random(b, R*D), random(b, R)
				b.LogProb(out, h, w, rows, targets, 1)
				return 3 * flops, func() { b.LogProbGrad(dh, w, out, d, d, h, rows, targets, 1) }
			})
		})
		bm.Run("Sample/"+name, func(bm *testing.B) {
			bench(bm, "GFLOP/s", peakGFLOPS, func(b *Backend) (float64, func()) {
				const R = 32
				h, w := random(b, R*D), randomParam(b, V, D)
				ids, logp, u := make([]int32, R), make([]float32, R), make([]float64, R)
				return 2 * R * float64(D) * float64(V),
					func() { b.Sample(ids, logp, h, w, compute.Sampling{Temperature: 1}, u) }
			})
		})
	}
}

// BenchmarkElementwise and BenchmarkAdamW report bytes moved to and from
// memory, beside a copy's.
func copyRate(b *Backend) float64 {
	x, y := random(b, 1<<22), random(b, 1<<22)
	best := 0.0
	for range 5 {
		began := time.Now()
		b.Copy(x, y)
		best = max(best, 8*float64(x.Len())/time.Since(began).Seconds()/1e9)
	}
	return best
}

func BenchmarkAdamW(bm *testing.B) {
	bench(bm, "GB/s", copyRate, func(b *Backend) (float64, func()) {
		p := randomParam(b, 2048, 2048)
		return 7 * 4 * float64(p.Len()), func() {
			b.AdamW([]*compute.Param{p},
				compute.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, GradScale: 1, Step: 3})
		}
	})
}

// BenchmarkMoments is AdamW's step of 25M parameters by the ways to keep the moments, in
// nanoseconds a parameter.
func BenchmarkMoments(bm *testing.B) {
	for _, class := range []compute.Class{compute.Wide, compute.Code} {
		bm.Run(class.String(), func(bm *testing.B) {
			bench(bm, "parameters/ns", func(*Backend) float64 { return 0 },
				func(b *Backend) (float64, func()) {
					p := &compute.Param{Rows: 5000, Cols: 5000, W: random(b, 25e6),
						G: random(b, 25e6)}
					p.M, _ = b.Alloc("bench", class, p.Len())
					p.V, _ = b.Alloc("bench", class, p.Len())
					if class == compute.Code {
						p.MScale, p.VScale =
							fill(b, compute.Blocks(p.Len()), 0), fill(b, compute.Blocks(p.Len()), 0)
					}
					return float64(p.Len()), func() {
						b.AdamW([]*compute.Param{p},
							compute.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8,
								GradScale: 1,
								Step:      3})
					}
				})
		})
	}
}

func BenchmarkElementwise(bm *testing.B) {
	const N, D = 2048, 384
	for name, op := range map[string]func(b *Backend, x, y, z, r compute.Tensor,
		w *compute.Param) (float64, func()){
		"SwiGLU": func(b *Backend, x, y, z, r compute.Tensor, w *compute.Param) (float64, func()) {
			return 12 * N * D, func() { b.Gated(compute.SiLU, z, x, y) }
		},
		"SwiGLUGrad": func(b *Backend, x, y, z, r compute.Tensor, w *compute.Param) (float64,
			func()) {
			return 20 * N * D, func() { b.GatedGrad(compute.SiLU, compute.Tensor{}, z, z, x, y, x) }
		},
		"RMSNorm": func(b *Backend, x, y, z, r compute.Tensor, w *compute.Param) (float64, func()) {
			return 8 * N * D, func() { b.RMSNorm(y, r, x, w, 1e-6) }
		},
		"RMSNormGrad": func(b *Backend, x, y, z, r compute.Tensor, w *compute.Param) (float64,
			func()) {
			return 12 * N * D, func() { b.RMSNormGrad(z, w, y, x, r, false) }
		},
		"SumSquares": func(b *Backend, x, y, z, r compute.Tensor, w *compute.Param) (float64,
			func()) {
			ts := []compute.Tensor{x}
			return 4 * N * D, func() { b.SumSquares(ts) }
		},
	} {
		bm.Run(name, func(bm *testing.B) {
			bench(bm, "GB/s", copyRate, func(b *Backend) (float64, func()) {
				return op(b, random(b, N*D), random(b, N*D), random(b, N*D), fill(b, N, 1),
					randomParam(b, 1, D))
			})
		})
	}
}

// BenchmarkPool is the price of handing out nothing.
func BenchmarkPool(bm *testing.B) {
	p := newPool(2, idleSpins)
	defer p.close()
	for bm.Loop() {
		p.run(2, func(_, _ int) {})
	}
}

// BenchmarkQuant is products with weights in blocks beside frozen ones, of few and of many
// rows, and as N=0 the dequantising of all of the weights alone.
func BenchmarkQuant(bm *testing.B) {
	const I, O = 1536, 8192
	for _, N := range []int{0, 1, 8, 32, 512} {
		for _, class := range []compute.Class{compute.Frozen, compute.Q8, compute.Q4} {
			if N == 0 && class == compute.Frozen {
				continue
			}
			bm.Run(fmt.Sprintf("N=%d/%v", N, class), func(bm *testing.B) {
				bench(bm, "GFLOP/s", peakGFLOPS, func(b *Backend) (float64, func()) {
					x, y, w := random(b, max(N, 1)*I), random(b, max(N, 1)*O), randomParam(b, O, I)
					values := make([]float32, O*I)
					b.Download(values, w.W)
					w.W, _ = b.Alloc("bench", class, O*I)
					b.Upload(w.W, values)
					linear := func() { b.Linear(y, x, w, nil, false) }
					linear()
					if N > 0 {
						return 2 * float64(N) * I * O, linear
					}
					f := frozenOf("bench", w)
					return O * I, func() {
						b.froze.f = f
						b.run(O/f.quant.lanes, func(b *Backend, w *worker, t int) {
							for i := 0; i < I; i += kBlock {
								b.froze.f.part(w.deq, t, i/compute.QuantBlock,
									kBlock/compute.QuantBlock)
							}
						})
					}
				})
			})
		}
	}
}
