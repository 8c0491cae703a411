package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"gad/internal/compute"
)

// TestCodes: what is looked up is what compute.Moments counts: for numbers about each edge,
// the lowest and highest of each upper half of a float32, and random ones.
func TestCodes(t *testing.T) {
	for name, by := range map[string]struct {
		fast *codes
		slow *compute.Moments
	}{"first moments": {signedCodes, compute.Signed}, "second moments": {squaresCodes, compute.Squares}} {
		one := func(y float32) {
			if y != y || math.Abs(float64(y)) > 1 || y < 0 && by.slow == compute.Squares {
				return
			}
			var code [1]uint8
			by.fast.encode(code[:], []float32{y}, 1)
			if want := by.slow.Encode(y); code[0] != want {
				t.Fatalf("%s: code of %v (%#x) is %d, want %d", name, y, math.Float32bits(y), code[0], want)
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

		// Numbers that are not finite are given some code.
		var some [4]uint8
		by.fast.encode(some[:], []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 3}, float32(math.NaN()))
		by.fast.encode(some[:], []float32{math.Float32frombits(math.MaxUint32), float32(math.Inf(1)), float32(math.Inf(-1)), 3}, float32(math.Inf(1)))

		all, back := make([]uint8, 256), make([]float32, 256)
		for i := range all {
			all[i] = uint8(i)
		}
		by.fast.decode(back, all, 0.37)
		for i, x := range back {
			if want := by.slow.Value[i] * 0.37; x != want {
				t.Fatalf("%s: code %d is %v, want %v", name, i, x, want)
			}
		}
	}
}
