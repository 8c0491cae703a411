package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gad/internal/compute"
)

// TestPackedGradients: a gradient whose operands are packed, in one part or several, has the
// bits of a product with matrices as they lie, from which no tile differs in its chains.
func TestPackedGradients(t *testing.T) {
	defer func(limit int) { unpackLimit = limit }(unpackLimit)
	for _, variant := range Variants() {
		b, err := New(Options{Workers: 2, Variant: variant})
		if err != nil {
			t.Fatal(err)
		}
		for _, limit := range []int{unpackLimit, 16 << 10} {
			unpackLimit = limit
			for _, s := range [][3]int{{packedRows, 130, 200}, {packedRows - 1, 40, 50},
				{kBlock + 70, 97, 130}, {kBlock + 131, 14, 33}, {97, 200, 5}, {200, 1, 140}} {
				N, O, I := s[0], s[1], s[2]
				rng := rand.New(rand.NewPCG(5, 6))
				some := func(n int) compute.Tensor {
					x := fill(b, n, 0)
					for i, data := 0, f32("test", "x", x, n); i < n; i++ {
						data[i] = float32(rng.NormFloat64())
					}
					return x
				}
				x, dy, dx, w :=
					some(N*I), some(N*O), some(N*I),
					&compute.Param{Rows: O, Cols: I, W: some(O * I), G: some(O * I)}
				wantX, wantG := fill(b, N*I, 0), fill(b, O*I, 0)
				b.Copy(wantX, dx)
				b.Copy(wantG, w.G)
				of := func(y compute.Tensor) []float32 { return f32("test", "y", y, y.Len()) }
				plain := func(p product, right []float32) {
					p.rowMajor(b.k, right, I)
					for i := 0; i < p.m; i += b.k.mr { // no task of so few rows packs anything
						p.tiles(b.k, &b.workers[0], i, min(p.m, i+b.k.mr), 0, p.width(b))
					}
				}
				plain(product{m: N, n: I, k: O, a: of(dy), rs: O, cs: 1, c: of(wantX), ldc: I,
					acc: true}, of(w.W))
				plain(product{m: O, n: I, k: N, a: of(dy), rs: 1, cs: O, c: of(wantG), ldc: I,
					acc: true}, of(x))
				b.LinearGrad(dx, w, nil, dy, x, true)
				what := fmt.Sprintf("%s, parts of %d bytes: N=%d O=%d I=%d", variant, limit, N, O,
					I)
				equalBits(t, what+": dx", of(dx), of(wantX))
				equalBits(t, what+": G", of(w.G), of(wantG))
			}
		}
		b.Close()
	}
}
