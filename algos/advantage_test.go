package algos

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// someResponses are 4 prompts of 3 responses each, groups interleaved.
func someResponses(seed uint64) AdvantageInput {
	r := rand.New(rand.NewPCG(seed, 1))
	var in AdvantageInput
	for s := range 12 {
		in.Scores = append(in.Scores, r.NormFloat64())
		in.Group = append(in.Group, []int{7, -3, 0, 7000}[(s*5+s/4)%4])
		n := 1 + r.IntN(5)
		mask := make([]float64, 5)
		for t := range n {
			mask[t] = 1
		}
		in.Mask = append(in.Mask, mask)
		in.Steps = append(in.Steps, []TurnStep{{0, n, in.Scores[s], "start"}})
		in.Branches = append(in.Branches, Branch{Tree: s, Parent: -1})
	}
	return in
}

// For every estimator: masked tokens get exactly 0, the order of responses and the
// numbering of prompts do not matter, the clip holds, and the input is left alone.
func TestAdvantageProperties(t *testing.T) {
	for _, name := range AdvantageNames() {
		in := someResponses(3)
		scores := slices.Clone(in.Scores)
		adv, err := Advantages(AdvantageConfig{Name: name}, in)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(scores, in.Scores) {
			t.Errorf("%s changed its input", name)
		}
		order := rand.New(rand.NewPCG(4, 4)).Perm(len(in.Scores))
		var mixed AdvantageInput
		for _, s := range order {
			mixed.Scores = append(mixed.Scores, in.Scores[s])
			mixed.Group = append(mixed.Group, 3*in.Group[s]+1)
			mixed.Mask = append(mixed.Mask, in.Mask[s])
			mixed.Steps = append(mixed.Steps, in.Steps[s])
			mixed.Branches = append(mixed.Branches, in.Branches[s])
		}
		again, err := Advantages(AdvantageConfig{Name: name}, mixed)
		if err != nil {
			t.Fatal(err)
		}
		var spread float64
		for i, s := range order {
			near(t, name+" reordered", tolerance{1e-9, 1e-12}, again[i], adv[s])
			for k, m := range in.Mask[s] {
				if m == 0 && adv[s][k] != 0 {
					t.Errorf("%s: masked token has advantage %g", name, adv[s][k])
				}
				spread = max(spread, math.Abs(adv[s][k]))
			}
		}
		if spread == 0 {
			t.Errorf("%s: all advantages are 0", name)
		}
		clipped, err := Advantages(AdvantageConfig{Name: name, ClipAbs: spread / 2}, in)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range flat(clipped) {
			if want := min(max(flat(adv)[i], -spread/2), spread/2); v != want {
				t.Errorf("%s: clipped advantage %g, want %g", name, v, want)
			}
		}
	}
}

// Advantages of a group sum to 0 wherever a baseline is the group's own mean.
func TestAdvantagesSumToZero(t *testing.T) {
	for _, name := range []string{"grpo", "dr_grpo", "rloo", "rank", "zscore"} {
		adv := scalars(t, AdvantageConfig{Name: name},
			AdvantageInput{Scores: []float64{.3, -2, 5, 5}})
		var sum float64
		for _, a := range adv {
			sum += a
		}
		if math.Abs(sum) > 1e-12 {
			t.Errorf("%s: sum %g", name, sum)
		}
	}
}

// One answer that is left of several is compared with nothing; the other groups are as they were.
func TestOneLeftOfAGroup(t *testing.T) {
	in := AdvantageInput{Scores: []float64{-8, 1, 3, 2}, Group: []int{0, 1, 1, 1},
		Len: []int{1, 1, 1, 1}, Mask: [][]float64{{1}, {1}, {1}, {1}}}
	for _, name := range []string{"grpo", "dr_grpo", "rloo", "opo", "grpo_passk", "rank", "zscore"} {
		whole, errWhole := Advantages(AdvantageConfig{Name: name}, in)
		left, err := Advantages(AdvantageConfig{Name: name, N: 4}, in)
		if err != nil || left[0][0] != 0 {
			t.Errorf("%s: one of four: %v, %v, want 0", name, left, err)
		}
		for i := 1; errWhole == nil && i < 4; i++ {
			if left[i][0] != whole[i][0] {
				t.Errorf("%s: %v beside one of four, %v beside one of one", name, left, whole)
			}
		}
	}
}

func TestAdvantageRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		name  string
		spoil func(*AdvantageConfig, *AdvantageInput)
		want  error
	}{
		"unknown name": {"grop", func(*AdvantageConfig, *AdvantageInput) {}, ErrUnknownName},
		"no responses": {"grpo",
			func(_ *AdvantageConfig, in *AdvantageInput) { *in = AdvantageInput{} }, ErrShape},
		"short groups": {"grpo",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Group = in.Group[1:] }, ErrShape},
		"short mask": {"grpo",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Mask = in.Mask[1:] }, ErrShape},
		"fractional mask": {"grpo",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Mask[2][0] = .5 }, ErrShape},
		"short lengths": {"opo",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Len = []int{1} }, ErrShape},
		"short rewards": {"reinforce_plus_plus",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.TokenRewards = [][]float64{{1}} },
			ErrShape},
		"NaN score": {"grpo",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Scores[3] = math.NaN() },
			ErrNotFinite},
		"infinite score": {"rank",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Scores[3] = math.Inf(-1) },
			ErrNotFinite},
		"NaN token reward": {"reinforce_plus_plus",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.TokenRewards = nanRewards(in.Mask) },
			ErrNotFinite},
		"overflow": {"dr_grpo",
			func(_ *AdvantageConfig, in *AdvantageInput) {
				in.Scores[0], in.Scores[5] = 1e308,
					-1e308
			}, nil},
		"pass@k of one": {"grpo_passk",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Group[0] = 99 }, ErrShape},
		"gamma": {"gigpo", func(c *AdvantageConfig, _ *AdvantageInput) { c.Gamma = 1.5 },
			ErrConfig},
		"floor": {"zscore",
			func(c *AdvantageConfig, _ *AdvantageInput) { c.ZScoreFloor = -1 }, ErrConfig},
		"clip": {"grpo",
			func(c *AdvantageConfig, _ *AdvantageInput) { c.ClipAbs = math.NaN() }, ErrConfig},
		"no steps": {"gigpo",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Steps = nil }, ErrShape},
		"step outside": {"gigpo",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Steps[0][0].End = 6 }, ErrShape},
		"steps overlap": {"grpo",
			func(_ *AdvantageConfig, in *AdvantageInput) {
				in.Steps[0] = []TurnStep{{Start: 0, End: 1}, {Start: 0, End: 1}}
			}, ErrShape},
		"step backwards": {"grpo",
			func(_ *AdvantageConfig, in *AdvantageInput) {
				in.Steps[0][0] = TurnStep{Start: 1, End: 0}
			}, ErrShape},
		"step before the start": {"gigpo",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Steps[0][0].Start = -1 }, ErrShape},
		"infinite step reward": {"gigpo",
			func(_ *AdvantageConfig, in *AdvantageInput) { in.Steps[0][0].Reward = math.Inf(1) },
			ErrNotFinite},
		"group statistics": {"grpo",
			func(c *AdvantageConfig, _ *AdvantageInput) { c.GroupStats = "tokens" }, ErrConfig},
		"one token to whiten": {"reinforce_plus_plus",
			func(_ *AdvantageConfig, in *AdvantageInput) {
				*in = AdvantageInput{Scores: []float64{1}, Group: []int{0}, Mask: [][]float64{{1}}}
			}, ErrShape},
	} {
		in, cfg := someResponses(1), AdvantageConfig{Name: c.name}
		c.spoil(&cfg, &in)
		_, err := Advantages(cfg, in)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want == ErrUnknownName &&
			!strings.Contains(err.Error(), "reinforce_plus_plus_baseline") {
			t.Errorf("%s: does not list the names: %v", name, err)
		}
	}
}

func nanRewards(mask [][]float64) (rewards [][]float64) {
	for _, row := range mask {
		rewards = append(rewards, make([]float64, len(row)))
	}
	rewards[0][0] = math.NaN()
	return rewards
}

// laneSum's order is written down: 5000 numbers by the formula in its comment.
func TestLaneSum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{0, 1, 3, 4, 7, 8, 15, 16, 17, 100, 168, 255, 256, 257, 300, 5000} {
		x := make([]float64, n)
		var exact float64
		for i := range x {
			x[i] = float64(r.IntN(1 << 20)) // integers add without rounding
			exact += x[i]
		}
		if got := laneSum(x); got != exact {
			t.Errorf("%d numbers: %g, want %g", n, got, exact)
		}
	}
	// 1 and -1 meet first in lane 0, so 1e-17 survives; a sum from left to right loses it.
	if got := laneSum([]float64{1, 1e-17, 0, 0, -1, 0, 0, 0}); got != 1e-17 {
		t.Errorf("order: %g", got)
	}
}

func TestRewardRefusals(t *testing.T) {
	refused := func(name string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := KLPenalty("k9", nil, nil)
	refused("unknown estimator", err, ErrUnknownName)
	_, err = KLPenalty("k1", []float64{1}, nil)
	refused("uneven log-probabilities", err, ErrShape)
	_, _, _, err = KLInReward("k1", 1, nil, nil, nil, nil)
	refused("nothing to reward", err, ErrShape)
	_, _, _, err = KLInReward("k1", 1, []float64{1}, [][]float64{{1}}, [][]float64{{1}},
		[][]float64{{1, 1}})
	refused("long mask", err, ErrShape)
	_, _, err = KeepGroups([]float64{1}, nil, 0)
	refused("no groups", err, ErrShape)
	_, err = RolloutWeights("turn", 2, 1, 1, []float32{1}, []float32{1}, []float32{1})
	refused("unknown level", err, ErrUnknownName)
	_, err = RolloutWeights("token", 0, 1, 1, []float32{1}, []float32{1}, []float32{1})
	refused("limit", err, ErrConfig)
	_, err = RolloutWeights("token", 2, 1, 2, []float32{1}, []float32{1}, []float32{1})
	refused("short row", err, ErrShape)
}

// doc/algorithms.md, "Rewards": the clip.
func TestScoreShaping(t *testing.T) {
	if got := (ScoreReg{ClipAbs: 5}).Apply([]float64{1, -61}); !slices.Equal(got,
		[]float64{1, -5}) {
		t.Errorf("clip: %v", got)
	}
	if got := (ScoreReg{}).Apply([]float64{1e9}); got[0] != 1e9 {
		t.Errorf("off: %v", got)
	}
}
