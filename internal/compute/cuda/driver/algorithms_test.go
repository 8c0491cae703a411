//go:build nvidia

package driver

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// BenchmarkAlgorithms times the algorithms that cuBLASLt's heuristics offer for the products of
// Qwen2.5-1.5B, of which a plan takes the first: it says what that leaves. Operands that a second
// product would find in the cache are there several times.
func BenchmarkAlgorithms(b *testing.B) {
	d := device(b)
	const most, cache = 32, 256 << 20
	for _, p := range []struct {
		name           string
		m, n, k        int64
		transA, transB bool
		out            DType
		beta           float32
	}{
		{"decode qkv", 256, 2048, 1536, false, true, BF16, 0},
		{"decode o", 256, 1536, 1536, false, true, F32, 1},
		{"decode gateup", 256, 17920, 1536, false, true, BF16, 0},
		{"decode down", 256, 1536, 8960, false, true, F32, 1},
		{"64 rows o", 64, 1536, 1536, false, true, F32, 1},
		{"64 rows gateup", 64, 17920, 1536, false, true, BF16, 0},
		{"64 rows down", 64, 1536, 8960, false, true, F32, 1},
		{"head", 2048, 151936, 1536, false, true, BF16, 0},
		{"forward qkv", 16384, 2048, 1536, false, true, BF16, 0},
		{"forward o", 16384, 1536, 1536, false, true, F32, 1},
		{"forward gateup", 16384, 17920, 1536, false, true, BF16, 0},
		{"forward down", 16384, 1536, 8960, false, true, F32, 1},
		{"dx o", 16384, 1536, 1536, false, false, BF16, 0},
		{"dx gateup", 16384, 1536, 17920, false, false, BF16, 0},
		{"dx down", 16384, 8960, 1536, false, false, BF16, 0},
		{"dW o", 1536, 1536, 16384, true, false, F32, 1},
		{"dW gateup", 17920, 1536, 16384, true, false, F32, 1},
		{"dW down", 1536, 8960, 16384, true, false, F32, 1},
	} {
		b.Run(fmt.Sprintf("%s/%dx%d_over_%d", p.name, p.m, p.n, p.k), func(b *testing.B) {
			b.Cleanup(d.Enter())
			if Emulated() != nil {
				b.Skip("NOT MEASURED on an emulated device")
			}
			size := map[DType]int64{F32: 4, BF16: 2}[p.out]
			one := 2*(p.m*p.k+p.n*p.k) + size*p.m*p.n
			copies := int(max(1, cache/one))
			mats := make([][3]Mat, copies)
			for i := range mats {
				x := [3]Mat{{Type: p.out, Rows: p.m, Cols: p.n},
					{Type: BF16, Rows: p.m, Cols: p.k}, {Type: BF16, Rows: p.k, Cols: p.n}}
				for j := range x {
					if j == 1 && p.transA || j == 2 && p.transB {
						x[j].Rows, x[j].Cols = x[j].Cols, x[j].Rows
					}
					x[j].Ld = x[j].Cols
					words := map[DType]int64{F32: 1, BF16: 2}[x[j].Type]
					n := x[j].Rows * x[j].Cols / words
					x[j].P = alloc(b, d, 4*n)
					fill(b, d, x[j].P, n)
				}
				mats[i] = x
			}
			s := shapeOf(mats[0][0], mats[0][1], mats[0][2], p.transA, p.transB, 0)
			plan, err := d.lt.describe(s, mats[0][1], mats[0][2], mats[0][0], 0)
			must(b, err)
			defer d.lt.drop(plan)
			var found [most]heuristicResult
			var count int32
			must(b, ltError(purego.SyscallN(d.lt.heuristic, d.lt.handle, plan.op, plan.a, plan.b,
				plan.c, plan.c, d.lt.pref, most, uintptr(unsafe.Pointer(&found[0])),
				uintptr(unsafe.Pointer(&count)))))
			start, err := d.Event()
			must(b, err)
			end, err := d.Event()
			must(b, err)
			scalars := [2]float32{1, p.beta}
			times := make([]float64, count)
			flops := 2 * float64(p.m) * float64(p.n) * float64(p.k)
			rounds := int(max(8, min(200, 40e9*100/flops)))
			for i := range times {
				run := func(n int) error {
					for j := range n {
						x := mats[j%copies]
						if err := ltError(purego.SyscallN(d.lt.matmul, d.lt.handle, plan.op,
							uintptr(unsafe.Pointer(&scalars[0])), uintptr(x[2].P), plan.a,
							uintptr(x[1].P), plan.b, uintptr(unsafe.Pointer(&scalars[1])),
							uintptr(x[0].P), plan.c, uintptr(x[0].P), plan.c,
							uintptr(unsafe.Pointer(&found[i].algo)), uintptr(d.lt.workspace),
							uintptr(d.lt.space), d.streamHandle())); err != nil {
							return err
						}
					}
					return nil
				}
				if err := run(2); err != nil {
					times[i] = math.Inf(1)
					continue
				}
				must(b, start.Record())
				must(b, run(rounds))
				must(b, end.Record())
				ms, err := end.Since(start)
				must(b, err)
				times[i] = 1e3 * float64(ms) / float64(rounds)
			}
			best := 0
			for i, us := range times {
				if us < times[best] {
					best = i
				}
				b.Logf("%d: %.1f us, waves %.2f, workspace %d, id tile splitk reduction swizzle custom stages inner cluster: %v",
					i, us, found[i].waves, found[i].workspace, d.lt.configOf(&found[i].algo))
			}
			tuned := -1.0 // one of the first's kind gives other bits
			config := d.lt.tune(d, s, plan, mats[0][0], mats[0][1], mats[0][2], found[:count])
			for i := range times {
				if d.lt.configOf(&found[i].algo) == config {
					tuned = float64(i)
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(tuned, "tuned-index")
			b.ReportMetric(times[0], "first-us")
			b.ReportMetric(times[best], "best-us")
			b.ReportMetric(float64(best), "best-index")
			b.ReportMetric(float64(count), "offered")
			b.ReportMetric(flops/times[best]/1e6, "TFLOP/s")
			must(b, start.Close(), end.Close())
		})
	}
}

// fill writes n words of pseudorandom bfloat16 pairs, which are small float32s as well: products
// of zeros run faster than those of a model.
func fill(t testing.TB, d *Device, p Ptr, n int64) {
	t.Helper()
	const words = 1 << 16
	x := make([]uint32, words)
	state := uint32(1)
	for i := range x {
		half := func() uint32 {
			state = state*1664525 + 1013904223
			return 0x3c00 | state>>31<<15 | state>>16&0x1ff // 0.008 to 0.06 and the sign
		}
		x[i] = half()<<16 | half()
	}
	host := pinned(t, d, 4*words)
	for i, v := range x {
		*(*uint32)(unsafe.Pointer(&host[4*i])) = v
	}
	for at := int64(0); at < n; at += words {
		must(t, d.CopyIn(p+Ptr(4*at), unsafe.Pointer(&host[0]), 4*min(words, n-at)))
	}
	must(t, d.Sync())
}
