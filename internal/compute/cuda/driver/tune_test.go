//go:build nvidia

package driver

import (
	"math/rand/v2"
	"testing"
)

// A large product takes the fastest algorithm that gives the bits of the heuristics' first, once a
// class of shapes; where one of the first's kind gives other bits, or there is no memory to try
// them, it takes the first.
func TestTuned(t *testing.T) {
	d := device(t)
	emulated := Emulated()
	if emulated == nil {
		t.Skip("NOT TESTED: only the emulated device offers algorithms on demand")
	}
	defer func(n int64) { leastTuned = n }(leastTuned)
	r := rand.New(rand.NewPCG(13, 14))
	a, b := d.random(t, r, BF16, 72, 4096, 0, 0), d.random(t, r, BF16, 4096, 48, 0, 0)
	for _, out := range []DType{BF16, F32} {
		// product is the result of the first rows, and the tile of its algorithm.
		c := d.random(t, r, out, 72, 48, 8, 0)
		product := func(rows int64) (got []float32, tile uint32) {
			t.Helper()
			some, result := a.Mat, c.Mat
			some.Rows, result.Rows = rows, rows
			must(t, d.Set32(c.P, 0, 10))
			blocks, pinned := emulated.Allocs(), emulated.PinnedBlocks()
			must(t, d.Matmul(result, some, b.Mat, false, false, 1, 0, 0))
			if emulated.Allocs() != blocks || emulated.PinnedBlocks() != pinned {
				t.Errorf("%v: memory is left of %d rows", out, rows)
			}
			p := d.lt.plans[shapeOf(result, some, b.Mat, false, false, 0)]
			return d.download(t, c)[:rows*c.Ld], d.lt.configOf(&p.algo)[1]
		}
		again := func(least int64) {
			d.lt.forget()
			clear(d.lt.tuned)
			leastTuned = least
		}
		again(1 << 62)
		plain, _ := product(72)
		same := func(got []float32) {
			t.Helper()
			for i := range got {
				if i%int(c.Ld) < int(c.Cols) && got[i] != plain[i] {
					t.Fatalf("%v: [%d] = %v, not %v", out, i, got[i], plain[i])
				}
			}
		}
		for _, step := range []struct {
			offer     string
			least     int64
			fail      int
			first     bool // its algorithm is the heuristics' first
			products  int  // at the least
			soon      int64
			soonFirst bool
		}{
			{offer: "", least: 1, fail: -1, first: true, products: 1, soon: 70, soonFirst: true},
			{offer: "same", least: 1 << 62, fail: -1, first: true, products: 1, soon: 70,
				soonFirst: true},
			{offer: "same", least: 1, fail: -1, products: 20, soon: 70},
			{offer: "same", least: 1, fail: 0, first: true, products: 1, soon: 70, soonFirst: true},
			{offer: "same", least: 1, fail: 1, first: true, products: 1, soon: 70, soonFirst: true},
			{offer: "order", least: 1, fail: -1, first: true, products: 4, soon: 70,
				soonFirst: true},
		} {
			t.Setenv("GAD_EMU_ALGORITHMS", step.offer)
			again(step.least)
			before := emulated.Work()
			emulated.FailAlloc(step.fail)
			got, tile := product(72)
			emulated.FailAlloc(-1)
			if n := emulated.Work().Since(before).Products; n < step.products ||
				step.products == 1 && n > 1 {
				t.Errorf("%v %+v: %d products", out, step, n)
			}
			if first := tile == 15; first != step.first {
				t.Errorf("%v %+v: tile %d", out, step, tile)
			}
			same(got)
			before = emulated.Work()
			got, tile = product(step.soon)
			if first := tile == 15; first != step.soonFirst {
				t.Errorf("%v %+v: tile %d of the next shape", out, step, tile)
			}
			if n := emulated.Work().Since(before).Products; n != 1 {
				t.Errorf("%v %+v: %d products for the next shape", out, step, n)
			}
			same(got)
		}
	}
	if x, y := classOf(shape{m: 16384, n: 1536, k: 1536}), classOf(shape{m: 18000, n: 1536,
		k: 1536}); x != y {
		t.Errorf("%+v and %+v are two classes", x, y)
	}
	if x, y := classOf(shape{m: 16384}), classOf(shape{m: 16383}); x == y {
		t.Errorf("%+v and 16383 rows are one class", x)
	}
}
