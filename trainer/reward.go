package trainer

import (
	"math"
	"slices"

	"gad/algos"
	"gad/internal/report"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/trainer/config"
)

// rewards returns the answers' rewards [A] before the KL term.
func (g *game) rewards(m Metrics, r *round) []float64 {
	lenA := each(r, func(_ *group, a *answer) int { return len(a.ids) })
	cutA := each(r, func(_ *group, a *answer) bool { return a.cut })
	return shape(g.t.cfg.Algorithm, g.termSums(m, r), g.lengthTerm(m, r, lenA), lenA, cutA,
		r.group(), g.t.enc.MaxResponse)
}

// shape turns scores, the sums of terms, into rewards: clip, length term (nil: none), overlong
// penalty. With trunc_reward group_min, answers cut at the limit take their group's smallest
// reward. limit is the longest answer in tokens.
func shape(c config.AlgorithmConfig, scoreA []float32, lengthA []float64, lenA []int, cutA []bool,
	group []int, limit int) []float64 {
	rewardA := algos.ScoreReg{ClipAbs: c.ScoreClip}.Apply(float64s(scoreA))
	for a, x := range lengthA {
		rewardA[a] += x
	}
	overlong := algos.Overlong{MaxLen: limit, Buffer: c.Overlong.Len, Factor: c.Overlong.Factor}
	for a := range rewardA {
		rewardA[a] += overlong.Penalty(lenA[a])
	}
	if c.TruncReward != "group_min" {
		return rewardA
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
	return rewardA
}

// allGroups returns the indices 0 to n-1.
func allGroups(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// spreadGroups returns the indices of the groups, of n, whose largest and smallest rewards differ
// by more than least.
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

// float64s converts x to float64.
func float64s(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// termSums returns the sums [A] of the reward's terms but length, which is added after the clip
// (config.Rewarded). It adds the metrics of the checker's scores, wherever they are known, and of
// all terms of algorithm.terms.
func (g *game) termSums(m Metrics, r *round) []float32 {
	if checkA := checkScores(r); g.readsChecker() {
		known := slices.DeleteFunc(slices.Clone(checkA), math.IsNaN)
		m["reward/unchecked_frac"] = 1 - float64(len(known))/float64(len(checkA))
		if len(known) > 0 {
			m["reward/check_mean"], _ = report.Moments(known)
		}
	}
	var sumA []float64
	for _, x := range g.terms {
		if x.Name != config.TermLength {
			sumA = g.addTerm(m, r, x, sumA, g.termValues(r, x.Name))
		}
	}
	out := make([]float32, len(r.answers()))
	for a, v := range sumA {
		out[a] = float32(v)
	}
	return out
}

// termValues returns the values [A] of a term of the reward other than length.
func (g *game) termValues(r *round, name string) []float64 {
	switch name {
	case config.TermCheck:
		return imputeScores(checkScores(r), r.group())
	case config.TermTeacher:
		return each(r, func(_ *group, a *answer) float64 { return a.thoughtLogp })
	case config.TermEnv:
		penalty := g.t.cfg.Env.InvalidPenalty
		return each(r, func(_ *group, a *answer) float64 { return a.episode.Reward(penalty) })
	case config.TermRougeL:
		return each(r, func(of *group, a *answer) float64 {
			return textmetrics.RougeL(g.t.tok.Decode(a.ids, true), of.TeacherText)
		})
	}
	return each(r, func(_ *group, a *answer) float64 { return float64(a.score) })
}

// checkScores returns the checker's scores [A], NaN where missing.
func checkScores(r *round) []float64 {
	return each(r, func(_ *group, a *answer) float64 { return a.check })
}

// hasTerm reports whether the reward has the term.
func (g *game) hasTerm(name string) bool {
	return slices.ContainsFunc(g.terms, func(x config.Term) bool { return x.Name == name })
}

// readsChecker reports whether the reward reads the checker's scores.
func (g *game) readsChecker() bool {
	return slices.ContainsFunc(g.terms,
		func(x config.Term) bool { return x.Name == config.TermCheck || x.Wrong })
}

// lengthTerm returns the weighted values [A] of the term length; nil if the reward has no such
// term.
func (g *game) lengthTerm(m Metrics, r *round, lenA []int) (sumA []float64) {
	for _, x := range g.terms {
		if x.Name == config.TermLength {
			logA := make([]float64, len(lenA))
			for a, n := range lenA {
				logA[a] = math.Log1p(float64(n))
			}
			sumA = g.addTerm(m, r, x, sumA, logA)
		}
	}
	return sumA
}

// addTerm adds term x, with the values valueA, to the sums sumA, and returns them; sumA nil is an
// empty sum.
func (g *game) addTerm(m Metrics, r *round, x config.Term, sumA, valueA []float64) []float64 {
	c, checkA := g.t.cfg.Algorithm, checkScores(r)
	counts := func(a int) bool { return !x.Wrong || checkA[a] < c.RightAt }
	if c.Terms != "" {
		sum, n := 0.0, 0.0
		for a, v := range valueA {
			if counts(a) {
				sum, n = sum+v, n+1
			}
		}
		if n > 0 {
			m["reward/term_"+x.Name] = sum / n
		}
		if x.Wrong {
			m["reward/wrong_frac"] = n / float64(len(valueA))
		}
	}
	if x.Z {
		valueA = zWithin(valueA, r.group())
	}
	first := sumA == nil
	if first {
		sumA = make([]float64, len(valueA))
	}
	for a, v := range valueA {
		if v = float64(x.Weight * v); !counts(a) {
			v = 0
		}
		if first {
			sumA[a] = v
		} else {
			sumA[a] += v
		}
	}
	return sumA
}

// imputeScores replaces missing scores of the checker (NaN) by the mean of the prompt's others, so
// that such an answer is neither good nor bad among them. If the prompt has none it takes the mean
// of all, which moves no advantage within the prompt; without any, 0.
func imputeScores(checkA []float64, group []int) []float64 {
	if !slices.ContainsFunc(checkA, math.IsNaN) {
		return checkA
	}
	const all = -1
	sum, n := map[int]float64{}, map[int]float64{}
	for a, x := range checkA {
		if !math.IsNaN(x) {
			for _, p := range []int{group[a], all} {
				sum[p] += x
				n[p]++
			}
		}
	}
	out := slices.Clone(checkA)
	for a, p := range group {
		if n[p] == 0 {
			p = all
		}
		if math.IsNaN(out[a]) {
			out[a] = sum[p] / max(n[p], 1)
		}
	}
	return out
}

// zWithin returns x standardised within its group, by the unbiased standard deviation; a group
// whose values are all equal gets 0.
func zWithin(xS []float64, group []int) []float64 {
	members := map[int][]int{}
	for s, p := range group {
		members[p] = append(members[p], s)
	}
	z := make([]float64, len(xS))
	for _, at := range members {
		xs := model.Pick(xS, at)
		mean, std := report.Moments(xs)
		if !report.Varies(xs) {
			continue
		}
		for _, s := range at {
			z[s] = (xS[s] - mean) / (std + 1e-6)
		}
	}
	return z
}
