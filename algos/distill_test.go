package algos

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// The expectation of the policy gradient over a vocabulary of ten, each token as often as the
// student samples it, is the gradient of KL(S || T) with respect to the student's logits,
// S_v (log S_v - log T_v - KL), which differences confirm.
func TestDistillAdvantages(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	softmax := func(z []float64) []float64 {
		sum, p := 0.0, make([]float64, len(z))
		for i, x := range z {
			p[i] = math.Exp(x)
			sum += p[i]
		}
		for i := range p {
			p[i] /= sum
		}
		return p
	}
	for range 20 {
		const V = 10
		z, y := make([]float64, V), make([]float64, V)
		for i := range z {
			z[i], y[i] = rng.NormFloat64(), rng.NormFloat64()
		}
		S, T := softmax(z), softmax(y)
		kl := func(z []float64) (sum float64) {
			for v, s := range softmax(z) {
				sum += s * (math.Log(s) - math.Log(T[v]))
			}
			return sum
		}
		teacher, student := make([][]float32, V), make([][]float32, V)
		for v := range V { // ten answers of one token
			teacher[v], student[v] =
				[]float32{float32(math.Log(T[v]))}, []float32{float32(math.Log(S[v]))}
		}
		adv, mean, err := DistillAdvantages(teacher, student)
		if err != nil {
			t.Fatal(err)
		}
		plain := 0.0
		for v := range V {
			plain -= adv[v][0] / V
		}
		if math.Abs(mean-plain) > 1e-12 {
			t.Errorf("the mean of -A is %g, want %g", mean, plain)
		}
		for v := range V {
			got := 0.0
			for token := range V { // -A grad log S(token), as often as it is sampled
				score := -S[v]
				if token == v {
					score++
				}
				got -= S[token] * adv[token][0] * score
			}
			const h = 1e-5
			up, down := append([]float64(nil), z...), append([]float64(nil), z...)
			up[v], down[v] = up[v]+h, down[v]-h
			want := (kl(up) - kl(down)) / (2 * h)
			if exact := S[v] * (math.Log(S[v]) - math.Log(T[v]) - kl(z)); math.Abs(exact-
				want) > 1e-8 {
				t.Fatalf("the test's own gradient is wrong: %g and %g", exact, want)
			}
			if math.Abs(got-want) > 1e-6 {
				t.Errorf("logit %d: the expected gradient is %g, want %g", v, got, want)
			}
		}
	}
	same := [][]float32{{-1, -2.5}, {-.25}}
	adv, kl, err := DistillAdvantages(same, same)
	if err != nil || kl != 0 {
		t.Errorf("%v: a teacher that is the student: divergence %g", err, kl)
	}
	for _, row := range adv {
		for _, a := range row {
			if a != 0 {
				t.Errorf("a teacher that is the student: advantage %g", a)
			}
		}
	}
	inf := float32(math.Inf(-1))
	if _, _, err := DistillAdvantages([][]float32{{-1, inf}}, [][]float32{{-1, -1}}); !errors.Is(
		err, ErrNotFinite) {
		t.Errorf("a token without probability: %v", err)
	}
	for _, teacher := range [][][]float32{{{-1}}, {{-1}, {-1, -1}}} {
		if _, _, err := DistillAdvantages(teacher, [][]float32{{-1}, {-1}}); err == nil {
			t.Errorf("%v is taken for the student's tokens", teacher)
		}
	}
}

// A teacher's advantages are added as they are, and padding stays.
func TestAddTeacher(t *testing.T) {
	game := [][]float64{{2, 2, 2, 7}, {-1, -1, 9, 9}}
	teacher := [][]float64{{.5, -1, 0}, {0, 4}}
	got, share, err := AddTeacher(game, teacher, .5)
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range [][]float64{{2.25, 1.5, 2, 7}, {-1, 1, 9, 9}} {
		for i, x := range want {
			if got[s][i] != x {
				t.Errorf("response %d: %v, want %v", s, got[s], want)
				break
			}
		}
	}
	if want := 2.75 / (2.75 + 8); math.Abs(share-want) > 1e-12 {
		t.Errorf("the teacher's share is %g, want %g", share, want)
	}
	if game[0][0] != 2 {
		t.Error("the game's advantages were written to")
	}
	if _, share, err := AddTeacher([][]float64{{0}}, [][]float64{{0}}, 1); err != nil || share != 0 {
		t.Errorf("nothing from both: share %g, %v", share, err)
	}
	for _, teacher := range [][][]float64{{{1}}, {{1}, {1, 2, 3, 4, 5}}} {
		if _, _, err := AddTeacher(game, teacher, 1); err == nil {
			t.Errorf("%v is taken for the same tokens", teacher)
		}
	}
}
