package algos

import (
	"fmt"
	"math"
	"slices"
)

// AdvantageConfig chooses the estimator that turns scores into advantages. A
// zero field takes the default that its comment states.
type AdvantageConfig struct {
	Name        string  // one of AdvantageNames; default "grpo"
	Gamma       float64 // discount of reinforce_plus_plus and gigpo, in (0, 1]; default 1
	ZScoreFloor float64 // smallest divisor of zscore; default 0.1
	ClipAbs     float64 // advantages are clipped to +-ClipAbs; default 0: not clipped
	StepWeight  float64 // weight of gigpo's step part; default 1
	// grpo, grpo_passk, gigpo: do not divide by sigma (norm_adv_by_std false); default false
	MeanOnly bool

	// N is the number of responses that each prompt was to have; default 0: as many as it has. If it
	// is 2 or more, a group of which one response is left has advantage 0 where a response is
	// compared with its group: there is nothing to compare it with.
	N int

	// GroupStats is the unit of a group's statistics; default "episodes": each response counts
	// once, as in the papers. "turns": each of its Steps counts as a response with the episode's
	// score, so that longer episodes weigh more (verl-agent's compute_mean_std_cross_steps,
	// AgentFlow).
	GroupStats string

	// Power is GRGC's gamma (arXiv 2609.39757): scores are first standardised within their group
	// and raised, sign(z)|z|^Power, so that the best and the worst count for more than the middle;
	// default 1: scores as they are. It excludes TokenRewards.
	Power float64
}

// TurnStep is one step of a multi-turn response.
type TurnStep struct {
	Start, End int     // its tokens, [Start, End)
	Reward     float64 // received after it
	// Anchor is the state in which the step was taken: steps of one prompt with equal strings are
	// compared; "": with none.
	Anchor string
}

// AdvantageInput describes S responses of at most T tokens.
type AdvantageInput struct {
	Scores []float64   // [S] one score per response, after the KL is subtracted, if it is on
	Group  []int       // [S] the prompt of each response, in any order
	Mask   [][]float64 // [S][T] 1 on response tokens, else 0
	// [S][T], reinforce_plus_plus; nil puts the score on each row's last response token
	TokenRewards [][]float64
	Len          []int // [S] tokens, opo; nil counts the mask
	// [S] steps in their order, gigpo and GroupStats turns; nil: each response is one turn
	Steps [][]TurnStep
	// [S] where each response begins, for tree_grpo and tree_node; nil: no response branches. With
	// branches the masks cover own tokens only
	Branches []Branch
}

// estimator computes [S] values, which are broadcast over tokens, or [S][T] values. steps then adds
// the part of each step of a response.
type estimator struct {
	scalar func(c AdvantageConfig, in AdvantageInput, groups [][]int) ([]float64, error)
	tokens func(c AdvantageConfig, in AdvantageInput, groups [][]int) ([][]float64, error)
	steps  func(c AdvantageConfig, in AdvantageInput, advST [][]float64) error
}

var estimators = map[string]estimator{
	"grpo":                         {scalar: grpo},
	"dr_grpo":                      {scalar: drGRPO},
	"rloo":                         {scalar: rloo},
	"opo":                          {scalar: opo},
	"grpo_passk":                   {scalar: passK},
	"global":                       {scalar: global},
	"rank":                         {scalar: rank},
	"zscore":                       {scalar: zscore},
	"reinforce_plus_plus":          {tokens: reinforcePP},
	"reinforce_plus_plus_baseline": {tokens: reinforcePPBaseline},
	"gigpo":                        {scalar: grpo, steps: gigpo},
	"tree_grpo":                    {tokens: treeGRPO},
	"tree_node":                    {tokens: treeNode},
}

// AdvantageNames returns the names of the estimators.
func AdvantageNames() []string { return names(estimators) }

// Advantages computes the advantage of every token: advST, exactly 0 where the mask is 0. Errors
// wrap ErrUnknownName, ErrConfig, ErrShape or ErrNotFinite.
func Advantages(c AdvantageConfig, in AdvantageInput) ([][]float64, error) {
	if c.Name == "" {
		c.Name = "grpo"
	}
	est, err := lookup("advantage estimator", c.Name, estimators)
	if err != nil {
		return nil, err
	}
	if c.Gamma == 0 {
		c.Gamma = 1
	}
	if c.ZScoreFloor == 0 {
		c.ZScoreFloor = .1
	}
	if c.StepWeight == 0 {
		c.StepWeight = 1
	}
	if c.Power == 0 {
		c.Power = 1
	}
	if !(c.Power > 0) || math.IsInf(c.Power, 0) {
		return nil, fmt.Errorf("algos: advantage estimator %q: power %g: must be above 0: %w",
			c.Name, c.Power, ErrConfig)
	}
	if !(c.Gamma > 0 && c.Gamma <= 1) || !(c.ZScoreFloor > 0) || !(c.ClipAbs >= 0) ||
		math.IsNaN(c.StepWeight) || math.IsInf(c.StepWeight, 0) {
		return nil, fmt.Errorf("algos: advantage estimator %q: gamma %g must be in (0, 1], z-score floor %g above 0, clip %g 0 or above, step weight %g finite: %w",
			c.Name, c.Gamma, c.ZScoreFloor, c.ClipAbs, c.StepWeight, ErrConfig)
	}
	if err := in.check(c.Name); err != nil {
		return nil, err
	}
	if c.Power != 1 && in.TokenRewards != nil && est.tokens != nil {
		return nil, fmt.Errorf("algos: advantage estimator %q: power %g: is of whole responses' scores, and this one reads token rewards: use grpo: %w", c.Name, c.Power, ErrConfig)
	}
	var advST [][]float64
	switch c.GroupStats {
	case "", "episodes":
		advST, err = est.estimate(c, in)
	case "turns":
		if advST, err = est.estimate(c, in.splitTurns()); err == nil {
			advST = in.joinTurns(advST)
		}
	default:
		return nil,
			fmt.Errorf(
				"algos: advantage estimator %q: group statistics of %q: use episodes or turns: %w",
				c.Name, c.GroupStats, ErrConfig)
	}
	if err == nil && est.steps != nil {
		err = est.steps(c, in, advST)
	}
	if err != nil {
		return nil, err
	}
	for s, row := range advST {
		for t := range row {
			if in.Mask[s][t] == 0 {
				row[t] = 0
				continue
			}
			if c.ClipAbs > 0 {
				row[t] = min(max(row[t], -c.ClipAbs), c.ClipAbs)
			}
			if math.IsNaN(row[t]) || math.IsInf(row[t], 0) {
				return nil,
					fmt.Errorf(
						"algos: advantage estimator %q: response %d token %d: %g: skip this step: %w",
						c.Name, s, t, row[t], ErrNotFinite)
			}
		}
	}
	return advST, nil
}

// estimate runs the estimator without its steps.
func (est estimator) estimate(c AdvantageConfig, in AdvantageInput) (advST [][]float64, err error) {
	groups := groupRows(in.Group)
	if c.Power != 1 {
		if in.Scores, err = power(c.Power, in, groups); err != nil {
			return nil, err
		}
	}
	if est.tokens != nil {
		return est.tokens(c, in, groups)
	}
	advS, err := est.scalar(c, in, groups)
	if err != nil {
		return nil, err
	}
	return broadcast(advS, in.Mask), nil
}

// splitTurns returns an input with a response for each step, which has the score of its response.
func (in AdvantageInput) splitTurns() AdvantageInput {
	if in.Steps == nil {
		return in
	}
	var out AdvantageInput
	for s, steps := range in.Steps {
		for _, step := range steps {
			out.Scores, out.Group = append(out.Scores, in.Scores[s]), append(out.Group, in.Group[s])
			out.Mask = append(out.Mask, in.Mask[s][step.Start:step.End])
			if in.TokenRewards != nil {
				out.TokenRewards =
					append(out.TokenRewards, in.TokenRewards[s][step.Start:step.End])
			}
		}
	}
	return out
}

// joinTurns copies the advantages of turns, one row per step, back into rows per response.
func (in AdvantageInput) joinTurns(turns [][]float64) [][]float64 {
	if in.Steps == nil {
		return turns
	}
	advST := make([][]float64, len(in.Mask))
	for s, steps := range in.Steps {
		advST[s] = make([]float64, len(in.Mask[s]))
		for _, step := range steps {
			copy(advST[s][step.Start:step.End], turns[0])
			turns = turns[1:]
		}
	}
	return advST
}

// check refuses inputs that do not fit together, and scores that are not finite.
func (in AdvantageInput) check(name string) error {
	S := len(in.Scores)
	bad := func(format string, args ...any) error {
		return fmt.Errorf("algos: advantage estimator %q: %s: %w", name,
			fmt.Sprintf(format, args...), ErrShape)
	}
	switch {
	case S == 0:
		return bad("no responses")
	case len(in.Group) != S:
		return bad("%d scores, %d group indices", S, len(in.Group))
	case len(in.Mask) != S:
		return bad("%d scores, %d mask rows", S, len(in.Mask))
	case in.Len != nil && len(in.Len) != S:
		return bad("%d scores, %d lengths", S, len(in.Len))
	case in.TokenRewards != nil && len(in.TokenRewards) != S:
		return bad("%d scores, %d rows of token rewards", S, len(in.TokenRewards))
	case in.Steps != nil && len(in.Steps) != S:
		return bad("%d scores, %d rows of steps", S, len(in.Steps))
	case in.Branches != nil && len(in.Branches) != S:
		return bad("%d scores, %d branches", S, len(in.Branches))
	}
	for s, score := range in.Scores {
		if math.IsNaN(score) || math.IsInf(score, 0) {
			return fmt.Errorf(
				"algos: advantage estimator %q: score of response %d is %g: skip this step: %w",
				name, s, score, ErrNotFinite)
		}
		if in.TokenRewards != nil && len(in.TokenRewards[s]) != len(in.Mask[s]) {
			return bad("response %d: %d token rewards, mask of %d", s, len(in.TokenRewards[s]),
				len(in.Mask[s]))
		}
		for t, m := range in.Mask[s] {
			if m != 0 && m != 1 {
				return bad("mask[%d,%d] = %g: must be 0 or 1", s, t, m)
			}
		}
	}
	for s, steps := range in.Steps {
		end := 0
		for k, step := range steps {
			if step.Start < end || step.End < step.Start || step.End > len(in.Mask[s]) {
				return bad("response %d step %d: tokens [%d,%d) of %d behind [,%d): must ascend", s,
					k, step.Start, step.End, len(in.Mask[s]), end)
			}
			end = step.End
			if math.IsNaN(step.Reward) || math.IsInf(step.Reward, 0) {
				return fmt.Errorf("algos: advantage estimator %q: reward of response %d step %d is %g: skip this step: %w", name, s, k, step.Reward, ErrNotFinite)
			}
		}
	}
	return nil
}

// groupRows returns the rows of each group, groups in order of first appearance.
func groupRows(groupS []int) [][]int {
	at := map[int]int{}
	var groups [][]int
	for s, g := range groupS {
		i, ok := at[g]
		if !ok {
			i = len(groups)
			at[g] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], s)
	}
	return groups
}

// broadcast repeats advS over each row's response tokens.
func broadcast(advS []float64, maskST [][]float64) [][]float64 {
	advST := make([][]float64, len(maskST))
	for s, mask := range maskST {
		advST[s] = make([]float64, len(mask))
		for t, m := range mask {
			advST[s][t] = advS[s] * m
		}
	}
	return advST
}

// laneSum sums x in a fixed order, which is part of an advantage's definition: scores that differ
// in their last digits only, or not at all, are divided by a sigma near 0, which makes the order of
// the sum visible. It is the order of the library that computed the golden vectors: 4 accumulators
// of 4 lanes each,
//
//	acc[j][l] = sum of x[16 i + 4 j + l]     whole blocks of 16; every 16th block moves acc to an upper level
//	acc[0][l] += further whole groups of 4
//	sum = ((rest + lane 0) + lane 1) + ...   lane l = ((acc[0]+acc[1])+acc[2])+acc[3]
func laneSum(x []float64) float64 {
	var acc, upper [4][4]float64
	i := 0
	for block := 0; i+16 <= len(x); block++ {
		if block > 0 && block%16 == 0 {
			for j := range acc {
				for l := range acc[j] {
					upper[j][l] += acc[j][l]
				}
			}
			acc = [4][4]float64{}
		}
		for j := range acc {
			for l := range acc[j] {
				acc[j][l] += x[i]
				i++
			}
		}
	}
	for j := range acc {
		for l := range acc[j] {
			acc[j][l] += upper[j][l]
		}
	}
	for ; i+4 <= len(x); i += 4 {
		for l := range acc[0] {
			acc[0][l] += x[i+l]
		}
	}
	var sum float64
	for ; i < len(x); i++ {
		sum += x[i]
	}
	for l := range acc[0] {
		sum += ((acc[0][l] + acc[1][l]) + acc[2][l]) + acc[3][l]
	}
	return sum
}

// moments returns the mean and the unbiased standard deviation of x; the latter is 0 for fewer than
// two values.
func moments(x []float64) (mu, sigma float64) {
	mu = laneSum(x) / float64(len(x))
	if len(x) < 2 {
		return mu, 0
	}
	for _, v := range x {
		sigma += float64((v - mu) * (v - mu)) // rounded before the sum on every architecture
	}
	return mu, math.Sqrt(sigma / float64(len(x)-1))
}

// pick returns the elements of x at the given rows.
func pick[T any](x []T, rows []int) []T {
	y := make([]T, len(rows))
	for i, r := range rows {
		y[i] = x[r]
	}
	return y
}

// mapGroups returns [S] values computed group by group: f gets the scores and rows of a group. What
// AdvantageConfig.N says is left of a group has 0.
func mapGroups(c AdvantageConfig, in AdvantageInput, groups [][]int,
	f func(scores []float64, rows []int) []float64) ([]float64, error) {
	advS := make([]float64, len(in.Scores))
	for _, rows := range groups {
		if len(rows) == 1 && c.N > 1 {
			continue
		}
		for i, v := range f(pick(in.Scores, rows), rows) {
			advS[rows[i]] = v
		}
	}
	return advS, nil
}

// mapValues returns f of each element.
func mapValues(x []float64, f func(float64) float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = f(v)
	}
	return y
}

// loneSigma is sigma+1e-6 for a group of one, sigma = 1, in float32: the source's constant is
// single precision there, and its results are matched to 1e-9.
const loneSigma = 1 + 0x1p-20

// grpo computes (s-mu)/(sigma+1e-6), with mu = 0 and sigma = 1 for a group of one (DeepSeekMath,
// arXiv 2402.03300, section 4.1.2).
func grpo(c AdvantageConfig, in AdvantageInput, groups [][]int) ([]float64, error) {
	return mapGroups(c, in, groups, func(s []float64, _ []int) []float64 {
		mu, by := 0., loneSigma
		if len(s) > 1 {
			var sigma float64
			mu, sigma = moments(s)
			by = sigma + 1e-6
		}
		if c.MeanOnly {
			by = 1
		}
		return mapValues(s, func(v float64) float64 { return (v - mu) / by })
	})
}

// power reshapes the scores before any estimator (GRGC, arXiv 2609.39757):
//
//	z = (s-mu)/(sigma+1e-6),  s' = sign(z)|z|^gamma        within each group
func power(gamma float64, in AdvantageInput, groups [][]int) ([]float64, error) {
	z, err := grpo(AdvantageConfig{}, in, groups)
	return mapValues(z,
		func(v float64) float64 { return math.Copysign(math.Pow(math.Abs(v), gamma), v) }), err
}

// drGRPO computes s-mu: without division there is no bias towards easy prompts (arXiv 2503.20783).
func drGRPO(c AdvantageConfig, in AdvantageInput, groups [][]int) ([]float64, error) {
	c.MeanOnly = true
	return grpo(c, in, groups)
}

// rloo computes s minus the mean of the others, n/(n-1)*(s-mu); alone in its group, s (arXiv
// 2402.14740).
func rloo(c AdvantageConfig, in AdvantageInput, groups [][]int) ([]float64, error) {
	return mapGroups(c, in, groups, func(s []float64, _ []int) []float64 {
		n := float64(len(s))
		if n < 2 {
			return s
		}
		mu, _ := moments(s)
		return mapValues(s, func(v float64) float64 { return v*n/(n-1) - mu*n/(n-1) })
	})
}

// opo subtracts the length-weighted mean of the scores, the baseline of least variance; alone in
// its group, s (arXiv 2505.23585).
func opo(c AdvantageConfig, in AdvantageInput, groups [][]int) ([]float64, error) {
	length := func(row int) (n float64) {
		if in.Len != nil {
			return float64(in.Len[row])
		}
		for _, m := range in.Mask[row] {
			n += m
		}
		return n
	}
	return mapGroups(c, in, groups, func(s []float64, rows []int) []float64 {
		var sum, total float64
		for i, r := range rows {
			sum += float64(length(r) * s[i])
			total += length(r)
		}
		if len(s) < 2 || total == 0 {
			return s
		}
		return mapValues(s, func(v float64) float64 { return v - sum/total })
	})
}

// passK rewards only the best response, by its lead over the second: (s1-s2)/(sigma+1e-6) (arXiv
// 2503.19595).
func passK(c AdvantageConfig, in AdvantageInput, groups [][]int) ([]float64, error) {
	for _, rows := range groups {
		if len(rows) < 2 && c.N < 2 {
			return nil, fmt.Errorf("algos: advantage estimator %q: group %d has %d response: needs 2 or more: raise rollout.n: %w", c.Name, in.Group[rows[0]], len(rows), ErrShape)
		}
	}
	return mapGroups(c, in, groups, func(s []float64, _ []int) []float64 {
		adv := make([]float64, len(s))
		best, second := 0, -1
		for i := 1; i < len(s); i++ {
			switch {
			case s[i] > s[best]:
				best, second = i, best
			case second < 0 || s[i] > s[second]:
				second = i
			}
		}
		adv[best] = s[best] - s[second]
		if _, sigma := moments(s); !c.MeanOnly {
			adv[best] /= sigma + 1e-6
		}
		return adv
	})
}

// global normalises over the whole batch: (s-mean)/(std+1e-8).
func global(_ AdvantageConfig, in AdvantageInput, _ [][]int) ([]float64, error) {
	mu, sigma := moments(in.Scores)
	return mapValues(in.Scores, func(v float64) float64 { return (v - mu) / (sigma + 1e-8) }), nil
}

// rank replaces scores by their tie-averaged ranks rho in 1..n: (rho-(n+1)/2)/sqrt(n(n+1)/12). Any
// monotone drift of the discriminator leaves it unchanged.
func rank(c AdvantageConfig, in AdvantageInput, groups [][]int) ([]float64, error) {
	return mapGroups(c, in, groups, func(s []float64, _ []int) []float64 {
		n := float64(len(s))
		return mapValues(s, func(v float64) float64 {
			var below, equal float64
			for _, o := range s {
				below += indicator(o < v)
				equal += indicator(o == v)
			}
			rho := below + (equal+1)/2
			return (rho - (n+1)/2) / math.Sqrt(n*(n+1)/12)
		})
	})
}

// zscore computes (s-mu)/max(sigma, floor): small gaps stay small.
func zscore(c AdvantageConfig, in AdvantageInput, groups [][]int) ([]float64, error) {
	return mapGroups(c, in, groups, func(s []float64, _ []int) []float64 {
		mu, sigma := moments(s)
		return mapValues(s, func(v float64) float64 { return (v - mu) / max(sigma, c.ZScoreFloor) })
	})
}

// reinforcePP computes REINFORCE++ (arXiv 2501.03262): discounted token returns G_t = r_t + gamma
// G_{t+1}, reset after a masked token, whitened over the batch.
func reinforcePP(c AdvantageConfig, in AdvantageInput, _ [][]int) ([][]float64, error) {
	retST := make([][]float64, len(in.Mask))
	for s, mask := range in.Mask {
		retST[s] = make([]float64, len(mask))
		var ret float64
		last := true
		for t := len(mask) - 1; t >= 0; t-- {
			var reward float64
			switch {
			case mask[t] == 0:
			case in.TokenRewards != nil:
				reward = in.TokenRewards[s][t]
			case last:
				reward, last = in.Scores[s], false
			}
			ret = reward + float64(c.Gamma*ret)
			retST[s][t] = ret
			if mask[t] == 0 {
				ret = 0
			}
		}
	}
	return retST, whiten(c.Name, retST, in.Mask)
}

// reinforcePPBaseline computes s-mu (alone in its group, s), broadcast, then whitened over the
// batch.
func reinforcePPBaseline(c AdvantageConfig, in AdvantageInput,
	groups [][]int) ([][]float64, error) {
	c.MeanOnly = true
	advS, err := grpo(c, in, groups)
	if err != nil {
		return nil, err
	}
	advST := broadcast(advS, in.Mask)
	return advST, whiten(c.Name, advST, in.Mask)
}

// whiten replaces x by (x-mean)*rsqrt(var+1e-8), both over the unmasked
// entries, sums divided by count+1e-8 and the variance corrected by n/(n-1).
func whiten(name string, x, mask [][]float64) error {
	var n float64
	var masked []float64
	for s := range x {
		for t, m := range mask[s] {
			n += m
			masked = append(masked, x[s][t]*m)
		}
	}
	if n < 2 {
		return fmt.Errorf(
			"algos: advantage estimator %q: %g response tokens: whitening needs 2 or more: %w",
			name, n, ErrShape)
	}
	mean := laneSum(masked) / (n + 1e-8)
	i := 0
	for s := range x {
		for t, m := range mask[s] {
			masked[i] = (x[s][t] - mean) * (x[s][t] - mean) * m
			i++
		}
	}
	scale := 1 / math.Sqrt(laneSum(masked)/(n+1e-8)*(n/(n-1))+1e-8)
	for s := range x {
		for t := range x[s] {
			x[s][t] = (x[s][t] - mean) * scale
		}
	}
	return nil
}

// gigpo adds to each response's advantage within its prompt's group the advantage of each of its
// steps among all steps taken from the same state of the same prompt (GiGPO, arXiv 2505.10978, eq.
// 5 to 8):
//
//	R_k = sum_{j>=k} gamma^(j-k) reward_j
//	A   = A_episode + w (R_k - mean)/(sigma+1e-6)
//
// A step whose state no other step has, or without an anchor, adds nothing.
func gigpo(c AdvantageConfig, in AdvantageInput, advST [][]float64) error {
	if in.Steps == nil {
		return fmt.Errorf("algos: advantage estimator %q: needs the steps of multi-turn responses: use grpo for single turns: %w", c.Name, ErrShape)
	}
	type state struct {
		group  int
		anchor string
	}
	number := map[state]int{} // states in the order in which they are seen
	var steps []TurnStep
	var returns []float64
	var rowOf, stateOf []int
	for s, own := range in.Steps {
		R := make([]float64, len(own))
		var ret float64
		for k, step := range slices.Backward(own) {
			ret = step.Reward + float64(c.Gamma*ret)
			R[k] = ret
		}
		for k, step := range own {
			if step.Anchor == "" {
				continue
			}
			at := state{in.Group[s], step.Anchor}
			if _, seen := number[at]; !seen {
				number[at] = len(number)
			}
			steps, returns = append(steps, step), append(returns, R[k])
			rowOf, stateOf = append(rowOf, s), append(stateOf, number[at])
		}
	}
	for _, peers := range groupRows(stateOf) {
		if len(peers) < 2 {
			continue
		}
		R := pick(returns, peers)
		mu, sigma := moments(R)
		for i, k := range peers {
			a := R[i] - mu
			if !c.MeanOnly {
				a /= sigma + 1e-6
			}
			for t := steps[k].Start; t < steps[k].End; t++ {
				advST[rowOf[k]][t] += float64(c.StepWeight * a)
			}
		}
	}
	return nil
}
