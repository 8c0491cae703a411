package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/hostile"
)

// TestCodes: what each variant looks up is what compute.Moments counts: for numbers about each
// edge, those at the ends of a cell, and random ones.
func TestCodes(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]struct {
		fast *codes
		slow *compute.Moments
	}{"first moments": {signedCodes, compute.Signed},
		"second moments": {squaresCodes, compute.Squares}} {
		var waiting []float32
		one := func(y float32) {
			if y != y || math.Abs(float64(y)) > 1 || y < 0 && by.slow == compute.Squares {
				return
			}
			waiting = append(waiting, y)
		}
		for c, mid := range by.slow.Mid {
			inf := float32(math.Inf(1))
			for _, y := range []float32{mid, math.Nextafter32(mid, inf),
				math.Nextafter32(mid, -inf), by.slow.Value[c]} {
				one(y)
			}
		}
		for upper := range uint32(1 << 16) {
			one(math.Float32frombits(upper << 16))
			one(math.Float32frombits(upper<<16 | 0x7fff))
			one(math.Float32frombits(upper<<16 | 0x8000))
			one(math.Float32frombits(upper<<16 | 0xffff))
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for range hostile.Share(200000) {
			one(math.Float32frombits(rng.Uint32()))
			one(float32(2*rng.Float64() - 1))
		}
		one(math.SmallestNonzeroFloat32)
		one(-math.SmallestNonzeroFloat32)
		one(float32(math.Copysign(0, -1)))

		// A block at a time, of any length.
		compare := func(x []float32, most float32) {
			t.Helper()
			for n := 16; len(x) > 0; n = n%37 + 1 {
				n = min(n, len(x))
				got, want := make([]uint8, n+1), make([]uint8, n)
				for i := range want {
					want[i] = by.slow.Encode(x[i] / most)
				}
				for _, k := range available() {
					got[n] = 77
					by.fast.encode(k, got[:n], x, most)
					for i, code := range want {
						if got[i] != code {
							t.Fatalf("%s: %s: code of %v/%v (%#x) is %d, want %d", k.name, name,
								x[i], most, math.Float32bits(x[i]/most), got[i], code)
						}
					}
					if got[n] != 77 {
						t.Fatalf("%s: %s: %d codes: wrote beyond them", k.name, name, n)
					}
				}
				x = x[n:]
			}
		}
		compare(waiting, 1)
		for range 1000 {
			most := float32(math.Exp(60*rng.Float64() - 40))
			x := make([]float32, 256)
			for i := range x {
				x[i] = float32(rng.Float64()) * most
				if i%2 > 0 {
					mid := by.slow.Mid[rng.IntN(255)] * most
					x[i] = math.Float32frombits(math.Float32bits(mid) + uint32(rng.IntN(7)) - 3)
				}
				if by.slow == compute.Signed && i%3 == 0 {
					x[i] = -x[i]
				}
			}
			compare(x, most)
		}
		for _, most := range []float32{1e-45, 1e-40, 1e-31, 1e31, math.MaxFloat32} {
			compare(slices.Repeat([]float32{most, most / 3, most / 1e3, most / 1e6, 0}, 5), most)
		}
		for c, mid := range by.fast.mid[:255] {
			if c > 0 && cell(mid) == cell(by.fast.mid[c-1]) {
				t.Errorf("%s: %d, %#x, is not alone in its cell", name, c, mid)
			}
		}
		// Numbers that are not finite are given some code.
		odd := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 3,
			math.Float32frombits(math.MaxUint32)}
		for _, most := range odd {
			for _, k := range available() {
				by.fast.encode(k, make([]uint8, 25), slices.Repeat(odd, 5), most)
			}
		}

		all, back := make([]uint8, 256), make([]float32, 257)
		for i := range all {
			all[i] = uint8(255 - i)
		}
		for _, n := range []int{0, 1, 15, 16, 17, 255, 256} {
			for _, k := range available() {
				back[n] = 77
				by.fast.decode(k, back[:n], all[:n], 0.37)
				for i, x := range back[:n] {
					if want := by.slow.Value[255-i] * 0.37; x != want {
						t.Fatalf("%s: %s: code %d is %v, want %v", k.name, name, 255-i, x, want)
					}
				}
				if back[n] != 77 {
					t.Fatalf("%s: %s: %d numbers: wrote beyond them", k.name, name, n)
				}
			}
		}
	}
}
