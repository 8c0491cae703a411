package trainer

import (
	"math"
	"slices"

	"gad/actor"
	"gad/algos"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/trainer/config"
)

// rewards are the answers' rewards before the KL term.
func (t *Trainer) rewards(m Metrics, r *round) []float64 {
	lenA := make([]int, len(r.group))
	for a, ids := range r.written() {
		lenA[a] = len(ids)
	}
	return shape(t.cfg.Algorithm, t.rewarded(m, r), t.lengthTerm(m, r, lenA), lenA, r.cut, r.group,
		t.cfg.Answer(t.Stage))
}

// shape turns scores, the sums of terms, into rewards: clip, length term (nil: none), overlong
// penalty; answers cut at the limit take their group's smallest reward.
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
	b.Soft = append(b.Soft, model.Pick(fb.Soft, keep)...)
	b.Hard = append(b.Hard, model.Pick(fb.Hard, keep)...)
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
	if from.branches != nil {
		r.branches = append(r.branches, model.Pick(from.branches, answers)...)
		r.wroteA = append(r.wroteA, model.Pick(from.wroteA, answers)...)
		a.Whole = append(a.Whole, model.Pick(fa.Whole, seqs)...)
	}
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
	if from.behindA != nil {
		r.behindA = append(r.behindA, model.Pick(from.behindA, answers)...)
		r.teacherA = append(r.teacherA, model.Pick(from.teacherA, answers)...)
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

// rewarded are the sums [A] of the reward's terms but for length, which stands outside of the clip:
// see config.Rewarded. The checker's scores and the environment's rewards have metrics wherever
// they are known, all terms of algorithm.terms have one.
func (t *Trainer) rewarded(m Metrics, r *round) []float32 {
	known := map[string][]float64{config.TermD: float64s(r.scoreA),
		config.TermCheck: neutral(r.checkA, r.group), config.TermTeacher: r.teacherA}
	if r.episodes != nil {
		known[config.TermEnv] = t.acted(m, r)
	} else if r.checkA != nil {
		checked := slices.DeleteFunc(slices.Clone(r.checkA), math.IsNaN)
		m["reward/unchecked_frac"] = 1 - float64(len(checked))/float64(len(r.checkA))
		if len(checked) > 0 {
			m["reward/check_mean"], _, _ = moments(checked)
		}
	}
	var sumA []float64
	for _, x := range t.cfg.Rewarded(t.Stage) {
		if x.Name == config.TermLength {
			continue
		}
		if x.Name == config.TermRougeL {
			known[x.Name] = t.rougeL(r)
		}
		sumA = t.addTerm(m, r, x, sumA, known[x.Name])
	}
	out := make([]float32, len(r.group))
	for a, v := range sumA {
		out[a] = float32(v)
	}
	return out
}

// lengthTerm is what the term length adds to the reward of each answer; nil where there is none.
func (t *Trainer) lengthTerm(m Metrics, r *round, lenA []int) (sumA []float64) {
	for _, x := range t.cfg.Rewarded(t.Stage) {
		if x.Name == config.TermLength {
			logA := make([]float64, len(lenA))
			for a, n := range lenA {
				logA[a] = math.Log1p(float64(n))
			}
			sumA = t.addTerm(m, r, x, sumA, logA)
		}
	}
	return sumA
}

// addTerm adds term x, whose values are valueA, to sumA; nil is a sum of no terms.
func (t *Trainer) addTerm(m Metrics, r *round, x config.Term, sumA,
	valueA []float64) []float64 {
	c := t.cfg.Algorithm
	counts := func(a int) bool { return !x.Wrong || r.checkA[a] < c.RightAt }
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
		valueA = zWithin(valueA, r.group)
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

// rougeL is ROUGE-L of each answer's text and the teacher's.
func (t *Trainer) rougeL(r *round) []float64 {
	out := make([]float64, len(r.group))
	for a, ids := range r.written() {
		out[a] = textmetrics.RougeL(t.tok.Decode(ids, true), r.batch.TeacherText[r.group[a]])
	}
	return out
}

// neutral is the checker's scores with one for each answer that has none (NaN): the mean of its
// prompt's other scores, so that it is neither good nor bad among them; where the prompt has none,
// the mean of all, which moves no advantage within the prompt; 0 without any.
func neutral(checkA []float64, group []int) []float64 {
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
