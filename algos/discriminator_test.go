package algos

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func newDisc[F Float](t testing.TB, c DiscConfig) *Discriminator[F] {
	t.Helper()
	d, err := NewDiscriminator[F](c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// softplus and sigmoid keep full precision where Gorgonia's are cut.
func TestSoftplusAndSigmoidAreExact(t *testing.T) {
	for _, c := range [][3]float64{ // x, softplus, sigmoid; from 40-digit arithmetic
		{-745, 5e-324, 5e-324}, {-40, 4.248354255291589e-18, 4.248354255291589e-18},
		{-1, 0.31326168751822286, 0.2689414213699951},
		{0, 0.6931471805599453, 0.5}, {16.5, 16.500000068256, 0.999999931744},
		{20, 20.000000002061153, 0.9999999979388463}, {800, 800, 1},
	} {
		tol := tolerance{2e-12, 5e-324}
		if !tol.ok(softplus(c[0]), c[1]) || !tol.ok(sigmoid(c[0]), c[2]) {
			t.Errorf("x=%g: softplus %.17g, sigmoid %.17g, want %.17g, %.17g", c[0], softplus(c[0]),
				sigmoid(c[0]), c[1], c[2])
		}
	}
}

// Both losses against central differences, in every score, with shared teachers,
// weights, a pair left out, L2, and gaps up to 40.
func TestDiscriminatorAgainstDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	student, teacher := make([]float64, 7), make([]float64, 3)
	for i := range student {
		student[i] = r.NormFloat64() * float64(1+6*(i%3))
	}
	for i := range teacher {
		teacher[i] = r.NormFloat64() * float64(1+20*(i%2))
	}
	pair := []int{0, 2, 1, 0, 0, 1, 2}
	weight := []float64{.1, .2, .15, .3, 0, .05, .2}
	for _, c := range []DiscConfig{{}, {Loss: "bce"}, {Loss: "bt", L2: .01}} {
		d := newDisc[float64](t, c)
		loss := func() float64 {
			var sum float64
			for i, s := range student {
				u := teacher[pair[i]]
				v := softplus(s - u)
				if c.Loss == "bce" {
					v = softplus(s) + softplus(-u)
				}
				sum += weight[i] * (v + c.L2*(s*s+u*u))
			}
			return sum
		}
		got, err := d.Step(student, teacher, pair, weight)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "loss", golden64, []float64{got.Loss}, []float64{loss()})
		for _, side := range []struct{ x, grad []float64 }{{student, got.DStudent},
			{teacher, got.DTeacher}} {
			for i, x := range side.x {
				const h = 1e-5
				side.x[i] = x + h
				up := loss()
				side.x[i] = x - h
				want := (up - loss()) / (2 * h)
				side.x[i] = x
				if math.Abs(side.grad[i]-want) > 1e-9*(1+math.Abs(up)) {
					t.Errorf("%+v: score %d: gradient %g, differences %g", c, i, side.grad[i], want)
				}
			}
		}
		if c.L2 == 0 && c.Loss != "bce" {
			// Only differences count: a constant added to all scores has no gradient.
			var sum float64
			for _, g := range append(slices.Clone(got.DStudent), got.DTeacher...) {
				sum += g
			}
			if math.Abs(sum) > 1e-15 {
				t.Errorf("gradient of a common bias: %g", sum)
			}
		}
	}
}

// The teacher scored once with its gradient collected is the teacher repeated for
// each of its pairs; and pairs may be split over calls, given their weights.
func TestDiscriminatorSharesTeacherAndSplits(t *testing.T) {
	student, teacher := []float64{.5, -1, 2, 3, 0, 1}, []float64{1, .25}
	pair := []int{0, 0, 0, 1, 1, 1}
	d := newDisc[float64](t, DiscConfig{L2: .1})
	whole, err := d.Step(student, teacher, pair, nil)
	if err != nil {
		t.Fatal(err)
	}
	repeated, err := d.Step(student, []float64{1, 1, 1, .25, .25, .25}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "collected", golden64, whole.DTeacher, []float64{
		repeated.DTeacher[0] + repeated.DTeacher[1] + repeated.DTeacher[2],
		repeated.DTeacher[3] + repeated.DTeacher[4] + repeated.DTeacher[5]})
	if whole.DiscStats != repeated.DiscStats || !slices.Equal(whole.DStudent, repeated.DStudent) {
		t.Errorf("shared %+v, repeated %+v", whole, repeated)
	}
	var sum DiscStats
	var dStudent []float64
	dTeacher := make([]float64, 2)
	for _, cut := range [][2]int{{0, 1}, {1, 5}, {5, 6}} {
		n := cut[1] - cut[0]
		r, err := d.Step(student[cut[0]:cut[1]], teacher, pair[cut[0]:cut[1]],
			slices.Repeat([]float64{1. / 6}, n))
		if err != nil {
			t.Fatal(err)
		}
		sum = sum.Add(r.DiscStats)
		dStudent = append(dStudent, r.DStudent...)
		for i, g := range r.DTeacher {
			dTeacher[i] += g
		}
	}
	near(t, "split", golden64,
		append(
			[]float64{sum.Loss, sum.Acc, sum.StudentMean, sum.TeacherMean, sum.Gap,
				float64(sum.Pairs)},
			append(dStudent, dTeacher...)...),
		append([]float64{whole.Loss, whole.Acc, whole.StudentMean, whole.TeacherMean, whole.Gap, 6},
			append(slices.Clone(whole.DStudent), whole.DTeacher...)...))
	near(t, "means", golden64,
		[]float64{whole.Acc, whole.StudentMean, whole.TeacherMean, whole.Gap},
		[]float64{3. / 6, 5.5 / 6, .625, .625 - 5.5/6})
}

// A pair of weight 0 is left out, whatever its scores; otherwise a NaN stops the step.
func TestDiscriminatorPairsLeftOut(t *testing.T) {
	d := newDisc[float32](t, DiscConfig{})
	want, err := d.Step([]float32{1, 2}, []float32{3, 3}, nil, []float32{.5, .5})
	if err != nil {
		t.Fatal(err)
	}
	nan := float32(math.NaN())
	got, err := d.Step([]float32{1, nan, 2}, []float32{3, nan, 3}, nil, []float32{.5, 0, .5})
	if err != nil {
		t.Fatal(err)
	}
	if got.DiscStats != want.DiscStats ||
		!slices.Equal(got.DStudent, []float32{want.DStudent[0], 0, want.DStudent[1]}) ||
		got.DTeacher[1] != 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// A tie is no success: the accuracy is strict.
	if tie, err := d.Step([]float32{3}, []float32{3}, nil, nil); err != nil || tie.Acc != 0 {
		t.Errorf("tie: %+v, %v", tie, err)
	}
	for name, c := range map[string]struct {
		student, teacher []float32
		pair             []int
		weight           []float32
		want             error
	}{
		"NaN":            {[]float32{nan}, []float32{1}, nil, nil, ErrNotFinite},
		"infinite":       {[]float32{1}, []float32{float32(math.Inf(1))}, nil, nil, ErrNotFinite},
		"NaN weight":     {[]float32{1}, []float32{1}, nil, []float32{nan}, ErrNotFinite},
		"overflow":       {[]float32{3e38}, []float32{-3e38}, nil, nil, ErrNotFinite},
		"nothing":        {nil, nil, nil, nil, ErrShape},
		"no pairing":     {[]float32{1, 2}, []float32{1}, nil, nil, ErrShape},
		"short pairing":  {[]float32{1, 2}, []float32{1}, []int{0}, nil, ErrShape},
		"pair outside":   {[]float32{1, 2}, []float32{1}, []int{0, 1}, nil, ErrShape},
		"pair below":     {[]float32{1, 2}, []float32{1}, []int{0, -1}, nil, ErrShape},
		"short weighing": {[]float32{1, 2}, []float32{1}, []int{0, 0}, []float32{1}, ErrShape},
	} {
		if _, err := d.Step(c.student, c.teacher, c.pair, c.weight); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewDiscriminator[float32](DiscConfig{Loss: "hinge"}); !errors.Is(err,
		ErrUnknownName) || !strings.Contains(err.Error(), "bce, bt") {
		t.Errorf("unknown loss: %v", err)
	}
	if _, err := NewDiscriminator[float32](DiscConfig{L2: -1}); !errors.Is(err, ErrConfig) {
		t.Errorf("negative l2: %v", err)
	}
}
