package trainer

import (
	"math"
	"slices"

	"gad/actor"
	"gad/algos"
	"gad/model"
	"gad/trainer/config"
)

// shape turns the discriminator's scores into rewards: clip, length term,
// overlong penalty; answers cut at the limit take their group's smallest reward.
func shape(c config.AlgorithmConfig, scoreA []float32, lenA []int, cutA []bool, group []int,
	limit int) ([]float64, error) {
	rewardA, err := algos.ScoreReg{ClipAbs: c.ScoreClip,
		LengthBeta: c.LengthCoef}.Apply(float64s(scoreA), lenA)
	if err != nil {
		return nil, err
	}
	overlong := algos.Overlong{MaxLen: limit, Buffer: c.Overlong.Len, Factor: c.Overlong.Factor}
	for a := range rewardA {
		rewardA[a] += overlong.Penalty(lenA[a])
	}
	if c.TruncReward != "group_min" {
		return rewardA, nil
	}
	least := map[int]float64{}
	for a, x := range rewardA {
		if y, ok := least[group[a]]; !ok || x < y {
			least[group[a]] = x
		}
	}
	for a, cut := range cutA {
		if cut {
			rewardA[a] = least[group[a]]
		}
	}
	return rewardA, nil
}

// gtpo weighs one advantage a response by token (arXiv 2508.03772).
func gtpo(advS []float64, r *actor.Rollout, T int) ([][]float64, error) {
	tokensS, entropyS := make([][]int, len(r.Seqs)), make([]float64, len(r.Seqs))
	for s, seq := range r.Seqs {
		for _, id := range seq.Response() {
			tokensS[s] = append(tokensS[s], int(id))
		}
		entropyS[s], _, _ = moments(float64s(r.EntST[s]))
	}
	return algos.GTPO{}.Apply(advS, tokensS, entropyS, r.Group, T)
}

// padded is x in float64 with rows as long as the mask's.
func padded(x [][]float32, maskST [][]float64) [][]float64 {
	out := make([][]float64, len(x))
	for s, row := range x {
		out[s] = make([]float64, len(maskST[s]))
		for t, v := range row {
			out[s][t] = float64(v)
		}
	}
	return out
}

// allGroups is 0 to n-1, and spreadGroups those of them whose largest and smallest rewards
// differ by more than least.
func allGroups(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func spreadGroups(rewardS []float64, group []int, n int, least float64) (spread []int, err error) {
	keepS, _, err := algos.KeepGroups(rewardS, group, least)
	if err != nil {
		return nil, err
	}
	seen := make([]bool, n)
	for s, keep := range keepS {
		if p := group[s]; keep && !seen[p] {
			seen[p] = true
			spread = append(spread, p)
		}
	}
	return spread, nil
}

// take appends the groups of from that keep names.
func (r *round) take(from *round, keep []int) {
	first := len(r.batch.Rows)
	b, fb := r.batch, from.batch
	b.Rows = append(b.Rows, model.Pick(fb.Rows, keep)...)
	b.Prompts = append(b.Prompts, model.Pick(fb.Prompts, keep)...)
	b.Teachers = append(b.Teachers, model.Pick(fb.Teachers, keep)...)
	b.TeacherCut = append(b.TeacherCut, model.Pick(fb.TeacherCut, keep)...)
	b.TeacherText = append(b.TeacherText, model.Pick(fb.TeacherText, keep)...)
	b.PromptText = append(b.PromptText, model.Pick(fb.PromptText, keep)...)
	if from.scoreP != nil {
		r.scoreP = append(r.scoreP, model.Pick(from.scoreP, keep)...)
	}
	if from.turnA != nil {
		r.turnP = append(r.turnP, model.Pick(from.turnP, keep)...)
	}

	at := map[int]int{} // group of from -> group of r
	for i, p := range keep {
		at[p] = first + i
	}
	rows := func(group []int) (rows, to []int) {
		for i, p := range group {
			if g, ok := at[p]; ok {
				rows, to = append(rows, i), append(to, g)
			}
		}
		return rows, to
	}
	seqs, groups := rows(from.roll.Group)
	a, fa := r.roll, from.roll
	a.Group = append(a.Group, groups...)
	a.Seqs = append(a.Seqs, model.Pick(fa.Seqs, seqs)...)
	a.Truncated = append(a.Truncated, model.Pick(fa.Truncated, seqs)...)
	a.SampledST = append(a.SampledST, model.Pick(fa.SampledST, seqs)...)
	a.OldST = append(a.OldST, model.Pick(fa.OldST, seqs)...)
	if fa.EntST != nil {
		a.EntST = append(a.EntST, model.Pick(fa.EntST, seqs)...)
	}
	answers, groups := rows(from.group)
	r.group = append(r.group, groups...)
	r.cut = append(r.cut, model.Pick(from.cut, answers)...)
	r.forCritic = append(r.forCritic, model.Pick(from.forCritic, answers)...)
	if from.episodes != nil {
		r.episodes = append(r.episodes, model.Pick(from.episodes, answers)...)
	}
	for i, s := range seqs {
		if fa.Episode == nil {
			break
		}
		next := len(a.Episode) == 0 || i == 0 || fa.Episode[s] != fa.Episode[seqs[i-1]]
		switch n := len(a.Episode); {
		case n == 0:
			a.Episode = append(a.Episode, 0)
		case next:
			a.Episode = append(a.Episode, a.Episode[n-1]+1)
		default:
			a.Episode = append(a.Episode, a.Episode[n-1])
		}
	}
	if from.scoreA != nil {
		r.scoreA = append(r.scoreA, model.Pick(from.scoreA, answers)...)
	}
	if from.turnA != nil {
		r.turnA = append(r.turnA, model.Pick(from.turnA, answers)...)
	}
	if from.checkA != nil {
		r.checkA = append(r.checkA, model.Pick(from.checkA, answers)...)
	}
}

func float64s(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// moments are the mean, the unbiased standard deviation and the largest size of xs.
func moments(xs []float64) (mean, std, largest float64) {
	for _, x := range xs {
		mean += x / float64(len(xs))
		largest = max(largest, math.Abs(x))
	}
	for _, x := range xs {
		std += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(std / max(float64(len(xs)-1), 1)), largest
}

// rewarded are the scores [A] that rewards are made of: the discriminator's, or with
// w = algorithm.checker_weight above 0
//
//	(1-w) z(score) + w z(check),  z(x) = (x - mean) / (std + 1e-6) within the prompt's group
//
// so that w is the checker's share whatever the discriminator's scale. In an environment the same
// holds of algorithm.env_weight and the sum of an episode's rewards.
func (t *Trainer) rewarded(m Metrics, r *round) []float32 {
	other, w := r.checkA, t.cfg.Algorithm.CheckerWeight
	if r.episodes != nil {
		other, w = t.acted(m, r), t.cfg.Algorithm.EnvWeight
	} else if other != nil {
		m["reward/check_mean"], _, _ = moments(other)
	}
	if other == nil || w == 0 {
		return r.scoreA
	}
	return mixed(w, zWithin(float64s(r.scoreA), r.group), zWithin(other, r.group))
}

func mixed(w float64, scoreZ, checkZ []float64) []float32 {
	out := make([]float32, len(scoreZ))
	for s := range out {
		out[s] = float32(float64((1-w)*scoreZ[s]) + float64(w*checkZ[s]))
	}
	return out
}

// zWithin is x standardised within its group, by the unbiased standard deviation; a
// group whose values are all equal is 0.
func zWithin(xS []float64, group []int) []float64 {
	members := map[int][]int{}
	for s, p := range group {
		members[p] = append(members[p], s)
	}
	z := make([]float64, len(xS))
	for _, at := range members {
		xs := model.Pick(xS, at)
		mean, std, _ := moments(xs)
		flat := !slices.ContainsFunc(xs, func(x float64) bool { return x != xs[0] })
		for _, s := range at {
			if !flat {
				z[s] = (xS[s] - mean) / (std + 1e-6)
			}
		}
	}
	return z
}
