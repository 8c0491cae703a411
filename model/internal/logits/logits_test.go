package logits

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gad/internal/compute"
)

// A row's sums and its largest logits, by their definitions.
func TestRowOfLogits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		z := make([]float32, 1+r.IntN(20))
		for i := range z {
			z[i] = float32(r.IntN(9)) - 4 // many are equal
		}
		ids := []int32{}
		for i := range z {
			if r.IntN(3) == 0 {
				ids = append(ids, int32(i))
			}
		}
		inv := 0.5 + r.Float64()
		sum, tail := 0.0, 0.0
		order := make([]int32, len(z))
		for i, x := range z {
			e := math.Exp(inv * float64(x))
			if sum += e; !slices.Contains(ids, int32(i)) {
				tail += e
			}
			order[i] = int32(i)
		}
		lse, rest := SumApart(z, ids, inv)
		if math.Abs(lse-math.Log(sum)) > 1e-12 || math.Abs(rest-tail/sum) > 1e-12 {
			t.Fatalf("%v apart from %v: %g and %g, want %g and %g", z, ids, lse, rest, math.Log(sum),
				tail/sum)
		}
		slices.SortStableFunc(order, func(a, b int32) int { return int(z[b]) - int(z[a]) })
		n := r.IntN(len(z) + 2)
		if got := Largest(z, n); !slices.Equal(got, order[:min(n, len(z))]) {
			t.Fatalf("the %d largest of %v: %v, want %v", n, z, got, order)
		}
	}
	if Rows(1) != Elements || Rows(Elements+1) != 1 {
		t.Errorf("%d rows of one logit, %d of too many", Rows(1), Rows(Elements+1))
	}
	seen := make([]bool, 37)
	EachRow(5, 37, func(i int) { seen[i] = true })
	if slices.Contains(seen[5:], false) || slices.Contains(seen[:5], true) {
		t.Errorf("rows 5 to 36: %v", seen)
	}
}

// What is drawn is allowed, and as often as its probability says.
func TestPick(t *testing.T) {
	z := []float32{2, 0, float32(math.Log(3)), 5, 0, float32(math.NaN())}
	allowed := []bool{false, true, true, false, true}
	const n = 1000
	counts := map[int32]int{}
	for i := range n {
		id, logp, ok := Pick(z, allowed, compute.Sampling{Temperature: 1}, (float64(i)+.5)/n)
		want := map[int32]float64{1: .2, 2: .6, 4: .2}[id]
		if !ok || math.Abs(math.Exp(float64(logp))-want) > 1e-6 {
			t.Fatalf("token %d with log-probability %g, %v", id, logp, ok)
		}
		counts[id]++
	}
	if counts[1] != 200 || counts[2] != 600 || counts[4] != 200 {
		t.Errorf("drawn %v", counts)
	}
	for _, c := range []struct {
		s    compute.Sampling
		u    float64
		want int32
	}{
		{compute.Sampling{}, .9, 2},                            // the most probable
		{compute.Sampling{Temperature: 1, TopK: 2}, .1, 1},     // of equal ones the lower id stays
		{compute.Sampling{Temperature: 1, TopK: 2}, .999, 2},   // 4 is cut
		{compute.Sampling{Temperature: 1, TopP: .5}, .999, 2},  // 2 alone has .6
		{compute.Sampling{Temperature: 1, MinP: .5}, .001, 2},  // the others have a third of it
		{compute.Sampling{Temperature: 1, MinP: .25}, .001, 1}, // all stay
	} {
		if id, _, ok := Pick(z, allowed, c.s, c.u); !ok || id != c.want {
			t.Errorf("%+v at %g: token %d, want %d", c.s, c.u, id, c.want)
		}
	}
	last := []bool{false, false, false, false, false, true}
	if _, _, ok := Pick(z, last, compute.Sampling{}, 0); ok {
		t.Error("a token was drawn where none can be")
	}
}
