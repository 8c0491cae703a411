package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"gad/internal/compute"
)

// TestPick: of rows side by side, each gets the token that draw, which adds up one row
// from its first token on, gets for it.
func TestPick(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var w worker
	for _, V := range []int{1, 2, 255, 256, 257, 512, 1000, 3 * markEvery} {
		for rows := 1; rows <= drawRows; rows++ {
			for trial := range 50 {
				prob, u := make([]float32, rows*V), make([]float64, rows)
				for i := range prob {
					prob[i] = float32(math.Exp(4 * rng.NormFloat64()))
					if rng.IntN(3) == 0 {
						prob[i] = 0
					}
					if trial == 0 {
						prob[i] = 0
					}
				}
				if trial == 1 {
					prob[rng.IntN(len(prob))] = float32(math.NaN())
				}
				for i := range u {
					u[i] = []float64{rng.Float64(), 0, math.Nextafter(1, 0)}[rng.IntN(3)]
				}
				got := make([]int32, rows)
				w.pick(got, prob, V, u)
				for i, id := range got {
					if want := w.draw(prob[i*V:(i+1)*V], compute.Sampling{Temperature: 1},
						u[i]); id != want {
						t.Fatalf("%d tokens, row %d of %d, u %v: token %d, want %d", V, i, rows,
							u[i], id, want)
					}
				}
			}
		}
	}
}
