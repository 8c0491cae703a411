package algos

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// PyTorch's cross entropy against softmax(score/tau), and its gradient.
func TestRankingAgainstPyTorch(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "golden", "ranking.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Name              string
			Tau, Loss         float64
			Logp, Score, Grad [][]float64
		}
	}
	if err := json.Unmarshal(raw, &golden); err != nil || len(golden.Cases) < 8 {
		t.Fatalf("%d cases, %v", len(golden.Cases), err)
	}
	for _, c := range golden.Cases {
		var logp, score, grad []float64
		var group []int
		for g := range c.Logp {
			for k := range c.Logp[g] {
				logp, score = append(logp, c.Logp[g][k]), append(score, c.Score[g][k])
				grad, group = append(grad, c.Grad[g][k]), append(group, g)
			}
		}
		loss, d, err := Ranking(logp, score, group, c.Tau)
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		near(t, c.Name+": loss", golden64, []float64{loss}, []float64{c.Loss})
		near(t, c.Name+": gradient", golden64, d, grad)
	}
}

// ListNet (Cao et al., ICML 2007), worked by hand, with the answers of two groups mixed.
func TestPaperListwiseRanking(t *testing.T) {
	const tau = .5
	loss, d, err := Ranking([]float64{-10, -40, -11, -300}, []float64{1, 0, 1.5, 2},
		[]int{0, 1, 0, 1}, tau)
	if err != nil {
		t.Fatal(err)
	}
	q0, p0 := sigmoid((1-1.5)/tau), sigmoid(1)
	q1, p1 := sigmoid(-2/tau), sigmoid(260)
	near(t, "loss", golden64, []float64{loss},
		[]float64{-(q0*math.Log(p0) + (1-q0)*math.Log(1-p0) + q1*math.Log(p1) + (1-q1)*-260) / 2})
	near(t, "gradient", golden64, d,
		[]float64{(p0 - q0) / 2, (p1 - q1) / 2, (q0 - p0) / 2, (q1 - p1) / 2})
	near(t, "tau", golden64,
		[]float64{AnnealTau(0, 10), AnnealTau(3, 10), AnnealTau(9, 10), AnnealTau(99, 10),
			AnnealTau(0, 1)}, []float64{1, .7, .1, .1, .1})
}

func TestRankingRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		logp, score []float64
		group       []int
		tau         float64
		want        error
	}{
		"tau":              {[]float64{1}, []float64{1}, []int{0}, 0, ErrConfig},
		"no answers":       {nil, nil, nil, 1, ErrShape},
		"too few scores":   {[]float64{1, 2}, []float64{1}, []int{0, 0}, 1, ErrShape},
		"a NaN":            {[]float64{math.NaN()}, []float64{1}, []int{0}, 1, ErrNotFinite},
		"an infinite mark": {[]float64{1}, []float64{math.Inf(1)}, []int{0}, 1, ErrNotFinite},
	} {
		if _, _, err := Ranking(c.logp, c.score, c.group, c.tau); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
