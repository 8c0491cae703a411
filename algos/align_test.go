package algos

import (
	"math"
	"math/rand/v2"
	"testing"
	"unicode/utf8"
)

// A text of nine bytes, worked by hand.
func TestAlignBytes(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		name             string
		student, teacher []int
		logp, want       []float64
	}{
		{"by hand", []int{3, 5, 9}, []int{2, 5, 6, 9}, []float64{-1, -.5, -.2, -.4},
			[]float64{-1.25, -.25, -.6}},
		{"the same tokens", []int{3, 5, 9}, []int{3, 5, 9}, []float64{-1, -.5, -.25},
			[]float64{-1, -.5, -.25}},
		{"one token of theirs", []int{1, 2, 4}, []int{4}, []float64{-3}, []float64{-1, -1, -1}},
		{"one token of ours", []int{4}, []int{1, 2, 4}, []float64{-3, -2, -1}, []float64{-6}},
		{"ours without bytes", []int{0, 3, 3, 5}, []int{4, 5}, []float64{-1, -2},
			[]float64{nan, -.5, nan, -2.5}},
		{"theirs without bytes", []int{3, 5}, []int{0, 3, 3, 5, 5}, []float64{-1, -2, -4, -8, -16},
			[]float64{-3, -28}},
		{"no bytes at all", []int{0, 0}, []int{0}, []float64{-1}, []float64{nan, nan}},
		{"nothing", nil, nil, nil, nil},
	} {
		got, err := AlignBytes(c.student, c.teacher, c.logp)
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%s: %v, %v", c.name, got, err)
			continue
		}
		for i, want := range c.want {
			if math.Abs(got[i]-want) > 1e-15 || math.IsNaN(got[i]) != math.IsNaN(want) {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
				break
			}
		}
	}
	for _, c := range []struct {
		student, teacher []int
		logp             []float64
	}{
		{[]int{3}, []int{3}, nil}, {[]int{3}, []int{4}, []float64{-1}},
		{[]int{3, 2}, []int{2}, []float64{-1}}, {[]int{-1}, []int{-1}, []float64{-1}},
		{nil, []int{2}, []float64{-1}},
	} {
		if got, err := AlignBytes(c.student, c.teacher, c.logp); err == nil {
			t.Errorf("%v beside %v: %v", c.student, c.teacher, got)
		}
	}
}

// Over 10,000 random pairs of splits of random UTF-8, within characters too, the sum over the text
// is kept, exactly where the shares are exact numbers; a token gets of no other's bytes.
func TestAlignBytesKeepsTheSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const unit = 720720 // has the divisors 1 to 16
	split := func(n int) (ends []int) {
		for at := 0; at < n; {
			at += min(n-at, 1+rng.IntN(1+rng.IntN(9)))
			ends = append(ends, at)
			for rng.IntN(12) == 0 {
				ends = append(ends, at)
			}
		}
		return ends
	}
	for round := range 10_000 {
		var text []byte
		for range 1 + rng.IntN(40) {
			text = utf8.AppendRune(text, []rune{'a', ' ', 'é', '漢', '🙂', '\n'}[rng.IntN(6)])
		}
		student, teacher := split(len(text)), split(len(text))
		logp, sum := make([]float64, len(teacher)), 0.0
		for j := range logp {
			logp[j] = -unit * float64(rng.IntN(1000)) / (1 << 30)
			sum += logp[j]
		}
		got, err := AlignBytes(student, teacher, logp)
		if err != nil {
			t.Fatal(err)
		}
		kept, at := 0.0, 0
		for i, x := range got {
			if (student[i] == at) != math.IsNaN(x) {
				t.Fatalf("round %d: token %d of %d bytes: %g", round, i, student[i]-at, x)
			}
			if !math.IsNaN(x) {
				kept += x
			}
			at = student[i]
		}
		if kept != sum {
			t.Fatalf("round %d: the sum is %g, was %g: %v, %v", round, kept, sum, student, teacher)
		}
	}
}
