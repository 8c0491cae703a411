package cpu

import (
	"testing"
	"time"

	"gad/internal/compute"
)

// BenchmarkGatedDelta relates the gated delta rule to attention, in turn: 2,048 tokens of Qwen3.5's
// 0.8B (16 heads of 128 and 128; attention has 8 heads of 256 and 2 of keys), in GFLOP/s of the
// minimum of each (compute.Elements), their ratio, and tokens a second; and of a decoding step of
// 16 sequences. One worker: on a shared machine two seldom run at once.
func BenchmarkGatedDelta(bm *testing.B) {
	const N = 2048
	s := compute.DeltaShape{K: 16, H: 16, E: 128, F: 128}
	shape := compute.AttnShape{H: 8, K: 2, E: 256, Scale: 1. / 16}
	p := compute.Pack{Start: []int32{0, N}}
	e := compute.Elements{}
	run := func(name string, fn func(b *Backend) (ours, theirs func(), flops [2]float64)) {
		for _, variant := range Variants() {
			bm.Run(name+"/"+variant, func(bm *testing.B) {
				b, err := New(Options{Variant: variant, Workers: 1})
				if err != nil {
					bm.Fatal(err)
				}
				defer b.Close()
				ours, theirs, flops := fn(b)
				ours()
				theirs()
				best := [2]time.Duration{1 << 62, 1 << 62}
				for bm.Loop() {
					for i, op := range []func(){ours, theirs} {
						began := time.Now()
						op()
						best[i] = min(best[i], time.Since(began))
					}
				}
				rate := func(i int) float64 { return flops[i] / best[i].Seconds() / 1e9 }
				bm.ReportMetric(rate(0), "GFLOP/s")
				bm.ReportMetric(rate(1), "attention-GFLOP/s")
				bm.ReportMetric(rate(0)/rate(1), "ratio")
				bm.ReportMetric(best[0].Seconds()*1e3, "ms")
				bm.ReportMetric(best[1].Seconds()*1e3, "attention-ms")
			})
		}
	}
	operands := func(b *Backend, N int) (x, a, beta, o compute.Tensor, A, dt *compute.Param) {
		return random(b, N*s.Width()), random(b, N*s.H), random(b, N*s.H), random(b, N*s.H*s.F),
			randomParam(b, 1, s.H), randomParam(b, 1, s.H)
	}
	run("forward", func(b *Backend) (func(), func(), [2]float64) {
		x, a, beta, o, A, dt := operands(b, N)
		q, k, v, out, lse := random(b, N*2048), random(b, N*512), random(b, N*512),
			random(b, N*2048), random(b, N*8)
		return func() { b.GatedDelta(o, x, a, beta, A, dt, s, p, compute.States{}) },
			func() { b.Attention(out, lse, q, k, v, shape, p) },
			[2]float64{e.GatedDelta(N, s, compute.States{}).FLOPs, e.Attention(shape, p).FLOPs}
	})
	run("gradient", func(b *Backend) (func(), func(), [2]float64) {
		x, a, beta, o, A, dt := operands(b, N)
		dx, da, db, do := random(b, N*s.Width()), random(b, N*s.H), random(b, N*s.H),
			random(b, N*s.H*s.F)
		q, k, v, out, lse := random(b, N*2048), random(b, N*512), random(b, N*512),
			random(b, N*2048), random(b, N*8)
		dq, dk, dv := random(b, N*2048), random(b, N*512), random(b, N*512)
		b.GatedDelta(o, x, a, beta, A, dt, s, p, compute.States{})
		b.Attention(out, lse, q, k, v, shape, p)
		return func() { b.GatedDeltaGrad(dx, da, db, do, o, x, a, beta, A, dt, s, p) },
			func() { b.AttentionGrad(dq, dk, dv, out, out, lse, q, k, v, shape, p) },
			[2]float64{e.GatedDeltaGrad(N, s).FLOPs, e.AttentionGrad(shape, p).FLOPs}
	})
	run("decode", func(b *Backend) (func(), func(), [2]float64) {
		const R, page = 16, 64
		x, a, beta, o, A, dt := operands(b, R)
		states := fill(b, R*b.DeltaState(s), 0)
		rows, pages := compute.Pack{Start: []int32{0}}, compute.Pages{PageTokens: page}
		slots := make([]int32, R)
		for r := range slots {
			slots[r] = int32(r)
			rows.Start = append(rows.Start, int32(r+1))
			var table []int32
			for i := range N / page {
				table = append(table, int32(r*N/page+i))
			}
			pages.Table, pages.Len = append(pages.Table, table), append(pages.Len, N)
		}
		st := compute.States{Rows: states, From: slots, To: slots}
		for range 100 { // behind a chunk
			b.GatedDelta(o, x, a, beta, A, dt, s, rows, st)
		}
		q, k, v, out := random(b, R*2048), random(b, R*N*512), random(b, R*N*512), random(b, R*2048)
		return func() { b.GatedDelta(o, x, a, beta, A, dt, s, rows, st) },
			func() { b.AttentionDecode(out, q, k, v, shape, pages) },
			[2]float64{e.GatedDelta(R, s, st).FLOPs, e.AttentionDecode(shape, pages).FLOPs}
	})
}
