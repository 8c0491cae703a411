package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"gad/internal/compute"
)

// encodeBlock is what a step of AdamW encodes a block with.
func encodeBlock(b *Backend, by *codes, x []float32, most float32) []uint8 {
	out := make([]uint8, len(x))
	b.encode(by, out, x, make([]float32, len(x)), most)
	return out
}

// TestCodes: what is looked up is what compute.Moments counts: for numbers about each edge,
// those at the ends of a cell, and random ones.
func TestCodes(t *testing.T) {
	b, err := New(Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for name, by := range map[string]struct {
		fast *codes
		slow *compute.Moments
	}{"first moments": {signedCodes, compute.Signed}, "second moments": {squaresCodes, compute.Squares}} {
		one := func(y float32) {
			if y != y || math.Abs(float64(y)) > 1 || y < 0 && by.slow == compute.Squares {
				return
			}
			if got, want := encodeBlock(b, by.fast, []float32{y}, 1)[0], by.slow.Encode(y); got != want {
				t.Fatalf("%s: code of %v (%#x) is %d, want %d", name, y, math.Float32bits(y), got, want)
			}
		}
		for c, mid := range by.slow.Mid {
			inf := float32(math.Inf(1))
			for _, y := range []float32{mid, math.Nextafter32(mid, inf), math.Nextafter32(mid, -inf), by.slow.Value[c]} {
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
		for range 200000 {
			one(math.Float32frombits(rng.Uint32()))
			one(float32(2*rng.Float64() - 1))
		}
		one(math.SmallestNonzeroFloat32)
		one(-math.SmallestNonzeroFloat32)
		one(float32(math.Copysign(0, -1)))

		// Shares of a scale, of which many are at an edge: there the inverse does not do.
		edges := 0
		for range 3000 {
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
			for i, got := range encodeBlock(b, by.fast, x, most) {
				want := by.slow.Encode(x[i] / most)
				if got != want {
					t.Fatalf("%s: code of %v/%v is %d, want %d", name, x[i], most, got, want)
				}
				if by.slow.Encode(x[i]*(1/most)) != want {
					edges++
				}
			}
		}
		if edges < 100 {
			t.Errorf("%s: %d codes are others by the inverse: too few to tell", name, edges)
		}
		for _, most := range []float32{1e-45, 1e-40, 1e-31, 1e31, math.MaxFloat32} {
			x := []float32{most, most / 3, most / 1e3, most / 1e6, 0}
			for i, got := range encodeBlock(b, by.fast, x, most) {
				if want := by.slow.Encode(x[i] / most); got != want {
					t.Fatalf("%s: code of %v/%v is %d, want %d", name, x[i], most, got, want)
				}
			}
		}
		// None is so close to an end of its cell that the inverse could be beyond it, and
		// no two are in one.
		for c, mid := range by.fast.mid[:255] {
			if cell(mid-8) != cell(mid+8) || c > 0 && cell(mid) == cell(by.fast.mid[c-1]) {
				t.Errorf("%s: %d, %#x, is at an end of its cell, or not alone there", name, c, mid)
			}
		}
		// Numbers that are not finite are given some code.
		odd := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 3, math.Float32frombits(math.MaxUint32)}
		for _, most := range odd {
			encodeBlock(b, by.fast, odd, most)
		}

		all, back := make([]uint8, 256), make([]float32, 256)
		for i := range all {
			all[i] = uint8(i)
		}
		for _, n := range []int{0, 1, 3, 4, 7, 256} {
			by.fast.decode(back[:n], all[:n])
			for i, x := range back[:n] {
				if want := by.slow.Value[i]; x != want {
					t.Fatalf("%s: code %d is %v, want %v", name, i, x, want)
				}
			}
		}
	}
}
