package quality

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"gad/internal/fault"
	"gad/internal/report"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/encode"
)

// How well a reward orders a student's own answers to one prompt. A student's group-relative
// advantages depend on that order alone; how often a discriminator tells the teacher's answer from
// the student's (d_acc) says little about it. If the teacher's weights are known, so is the truth:
// at the optimum of the Bradley-Terry loss the score is
//
//	log p_T(y|x) - log p_S(y|x) + const(x)
//
// (GAD, arXiv 2511.10643, with Goodfellow et al. 2014, proposition 1, for the pair loss), p_S the
// student at the temperature of the rollouts.

// Group holds a student's answers to one prompt, each with its true value.
type Group struct {
	Answers []Graded
	Teacher model.Seq // the teacher's answer, as the discriminator reads it
}

// Graded is one answer with its true value.
type Graded struct {
	Seq    model.Seq // as the discriminator reads it: a cut answer has no end token
	Text   string
	Cut    bool
	Tokens int     // of the answer, its end included
	LogP   float64 // log p_S(y|x), nats
	Ratio  float64 // log p_T(y|x) - log p_S(y|x), nats: the truth
}

// Sample samples n answers to each prompt of b from the student m at o.Temperature and sets their
// LogP, at that temperature.
func Sample(m *model.Model, tok *tokenizer.Tokenizer, b encode.Batch, n int,
	o Options) ([]Group, error) {
	groups, keys := make([]Group, len(b)), make([]uint64, len(b))
	for p, row := range b {
		groups[p] = Group{Answers: make([]Graded, n), Teacher: row.Teacher}
		keys[p] = uint64(row.Index)
	}
	ending := encode.Encoder{Tok: tok}.Ending()
	advance, done := o.Stages.Begin("answers, tokens", n*len(b)*o.MaxResponse)
	_, err := m.GenerateAll(b.Prompts(), keys,
		model.SampleOptions{N: n, MaxNew: o.MaxResponse, EOS: tok.EOS(), Seed: o.Seed,
			Slots: o.Slots, Stop: o.Stop,
			Sampling: model.Sampling{Temperature: o.Temperature, TopP: 1},
			Done: func(p, k int, c model.Completion) {
				groups[p].Answers[k] = Graded{Seq: ending.Seq(b[p].Prompt, c.IDs, c.Truncated),
					Text: tok.Decode(c.IDs, true), Cut: c.Truncated, Tokens: len(c.IDs)}
				advance(o.MaxResponse - len(c.IDs))
			}}, advance)
	done()
	if err != nil {
		return nil, interruption(err)
	}
	logp, err := totals(m, sequences(groups), o.Temperature, "the student's probabilities", o)
	if err != nil {
		return nil, err
	}
	for i, x := range each(groups) {
		x.LogP = logp[i]
	}
	return groups, nil
}

// SetTruth sets the log-ratios of groups to a teacher that samples at the given temperature.
// promptsP holds the tokens that the teacher reads before the answers to each prompt.
func SetTruth(teacher *model.Model, groups []Group, promptsP [][]int32, temperature float64,
	o Options) error {
	var seqs []model.Seq
	for p, g := range groups {
		for _, x := range g.Answers {
			seqs = append(seqs, model.Answer(slices.Concat(promptsP[p], x.Seq.Response()),
				len(promptsP[p])))
		}
	}
	logp, err := totals(teacher, seqs, temperature, "the teacher's probabilities", o)
	if err != nil {
		return err
	}
	for i, x := range each(groups) {
		x.Ratio = logp[i] - x.LogP
	}
	return nil
}

// totals returns the log-probability of each sequence's answer, in nats.
func totals(m *model.Model, seqs []model.Seq, temperature float64, what string,
	o Options) ([]float64, error) {
	out, all := make([]float64, len(seqs)), 0
	for _, s := range seqs {
		all += len(s.IDs)
	}
	advance, done := o.Stages.Begin(what+", tokens", all)
	defer done()
	for _, pack := range model.Packs(seqs, min(o.MaxTokens, shownTokens)) {
		if o.stopped() {
			return nil, fault.ErrInterrupted
		}
		logp, _, err := m.LogProbs(model.Pick(seqs, pack), temperature)
		if err != nil {
			return nil, err
		}
		for i, s := range pack {
			for _, x := range logp[i] {
				out[s] += float64(x)
			}
			advance(len(seqs[s].IDs))
		}
	}
	return out, nil
}

// interruption replaces model.ErrStopped by fault.ErrInterrupted, and returns any other error
// unchanged.
func interruption(err error) error {
	if errors.Is(err, model.ErrStopped) {
		return fault.ErrInterrupted
	}
	return err
}

// each lists pointers to the answers of all groups, in order.
func each(groups []Group) (all []*Graded) {
	for p := range groups {
		for k := range groups[p].Answers {
			all = append(all, &groups[p].Answers[k])
		}
	}
	return all
}

// sequences lists the answers of all groups as the discriminator reads them.
func sequences(groups []Group) (seqs []model.Seq) {
	for _, x := range each(groups) {
		seqs = append(seqs, x.Seq)
	}
	return seqs
}

// ReadSeqs returns the sequences that a discriminator reads of groups: all answers in order, then a
// teacher's answer for each group.
func ReadSeqs(groups []Group) (seqs []model.Seq) {
	seqs = sequences(groups)
	for _, g := range groups {
		seqs = append(seqs, g.Teacher)
	}
	return seqs
}

// Fidelity holds the figures of one reward's order of the answers of a group. Means are over the
// prompts in which both the reward and the truth vary; intervals are 95 % bootstrap intervals over
// prompts.
type Fidelity struct {
	Reward string `json:"reward"`
	// Rho is Spearman's rank correlation of reward and truth within a prompt, ties by mean ranks.
	Rho     *float64    `json:"rho"`
	RhoCI95 *[2]float64 `json:"rho_ci95,omitempty"`
	// Pairs is the share of pairs of answers to one prompt that the reward puts in the truth's
	// order; equal rewards count one half.
	Pairs     *float64    `json:"pairs"`
	PairsCI95 *[2]float64 `json:"pairs_ci95,omitempty"`
	// Partial is the rank correlation given the mean log p_S of the answer, that is, beyond
	// fluency: (r_rt - r_rf r_tf) / sqrt((1 - r_rf²)(1 - r_tf²)) of the mean correlations.
	Partial     *float64    `json:"partial_rho,omitempty"`
	PartialCI95 *[2]float64 `json:"partial_rho_ci95,omitempty"`
	// Length is the rank correlation of the reward with the answer's number of tokens.
	Length *float64 `json:"length_rho,omitempty"`
	// Spread is the standard deviation of the reward within a prompt, mean over prompts.
	Spread float64 `json:"spread"`
	// Acc is the share of the answers that the reward puts below the teacher's answer to the same
	// prompt; for discriminators only.
	Acc     *float64 `json:"d_acc,omitempty"`
	Prompts int      `json:"prompts"` // with a correlation
}

// The rewards that need no discriminator.
const (
	ByTruth   = "log p_T - log p_S"
	ByFluency = "mean log p_S"
	BySum     = "sum log p_S"
	ByLength  = "length"
)

// MeasureTrivial measures the truth itself and the rewards that need no discriminator.
func MeasureTrivial(groups []Group, seed uint64) []Fidelity {
	var out []Fidelity
	for _, r := range []struct {
		name string
		of   func(x *Graded) float64
	}{
		{ByTruth, func(x *Graded) float64 { return x.Ratio }},
		{ByFluency, fluency},
		{BySum, func(x *Graded) float64 { return x.LogP }},
		{ByLength, func(x *Graded) float64 { return float64(x.Tokens) }},
	} {
		var reward []float64
		for _, x := range each(groups) {
			reward = append(reward, r.of(x))
		}
		out = append(out, Measure(r.name, groups, reward, seed))
	}
	return out
}

// fluency returns the mean log-probability of an answer's tokens under the student.
func fluency(x *Graded) float64 { return x.LogP / float64(max(1, x.Seq.Trained())) }

// Measure returns the fidelity of a reward [answers of all groups]. Further rewards, one for each
// group, belong to the teachers' answers and give d_acc.
func Measure(name string, groups []Group, reward []float64, seed uint64) Fidelity {
	var byRho, byPartner, byFluency, byLength, right, pairs, spread []float64
	answers := each(groups)
	acc, of := 0.0, 0.0
	at := 0
	for p, g := range groups {
		n := len(g.Answers)
		r, truth, fluent, length := reward[at:at+n], make([]float64, n), make([]float64, n),
			make([]float64, n)
		for k, x := range g.Answers {
			truth[k], fluent[k], length[k] = x.Ratio, fluency(&x), float64(x.Tokens)
			if len(reward) > len(answers) {
				acc += rankScore(float32(reward[len(answers)+p]), float32(r[k]))
				of++
			}
		}
		at += n
		byRho = append(byRho, Spearman(r, truth))
		byFluency = append(byFluency, Spearman(r, fluent))
		byPartner = append(byPartner, Spearman(truth, fluent))
		byLength = append(byLength, Spearman(r, length))
		hit, all := inOrder(r, truth)
		right, pairs = append(right, hit), append(pairs, all)
		_, std := report.Moments(r)
		spread = append(spread, std)
	}
	f := Fidelity{Reward: name, Spread: math.NaN()}
	if len(spread) > 0 {
		f.Spread, _ = report.Moments(spread)
	}
	for _, x := range byRho {
		if !math.IsNaN(x) {
			f.Prompts++
		}
	}
	mean := func(xs []float64) func(int, []float64) float64 {
		return func(_ int, w []float64) float64 { return meanOf(xs, w) }
	}
	f.Rho, f.RhoCI95 = interval(len(groups), seed, mean(byRho))
	f.Pairs, f.PairsCI95 = interval(len(groups), seed, func(_ int, w []float64) float64 {
		var hit, all float64
		for p := range right {
			hit, all = hit+w[p]*right[p], all+w[p]*pairs[p]
		}
		return hit / all
	})
	if name != ByFluency && name != ByTruth {
		f.Partial, f.PartialCI95 = interval(len(groups), seed, func(_ int, w []float64) float64 {
			rt, rf, tf := meanOf(byRho, w), meanOf(byFluency, w), meanOf(byPartner, w)
			return (rt - rf*tf) / math.Sqrt((1-rf*rf)*(1-tf*tf))
		})
	}
	f.Length, _ = interval(len(groups), seed, mean(byLength))
	if of > 0 {
		share := acc / of
		f.Acc = &share
	}
	return f
}

// interval returns a statistic of n prompts and its bootstrap interval, each nil if it is not
// finite.
func interval(n int, seed uint64,
	statistic func(replicate int, weight []float64) float64) (*float64, *[2]float64) {
	once := make([]float64, n)
	for i := range once {
		once[i] = 1
	}
	return finiteOr(statistic(0, once)), finite(textmetrics.Interval(n, seed, statistic))
}

// meanOf returns the weighted mean of the elements that are not NaN; NaN if all are.
func meanOf(xs, w []float64) float64 {
	var sum, of float64
	for i, x := range xs {
		if !math.IsNaN(x) {
			sum, of = sum+w[i]*x, of+w[i]
		}
	}
	return sum / of
}

// inOrder counts the pairs whose truths differ: hit of them are ordered by the reward as by the
// truth, an equal reward counting one half.
func inOrder(reward, truth []float64) (hit, all float64) {
	for i := range reward {
		for j := range i {
			if truth[i] == truth[j] {
				continue
			}
			all++
			switch d := (reward[i] - reward[j]) * (truth[i] - truth[j]); {
			case d > 0:
				hit++
			case reward[i] == reward[j]:
				hit += 0.5
			}
		}
	}
	return hit, all
}

// Spearman returns the rank correlation of xs and ys: Pearson's correlation of their ranks, ties by
// their mean rank; NaN if one of them does not vary.
func Spearman(xs, ys []float64) float64 {
	if !report.Varies(xs) || !report.Varies(ys) {
		return math.NaN()
	}
	a, b := meanRanks(xs), meanRanks(ys)
	ma, sa := report.Moments(a)
	mb, sb := report.Moments(b)
	cov := 0.0
	for i := range a {
		cov += (a[i] - ma) * (b[i] - mb)
	}
	return cov / float64(len(a)-1) / (sa * sb)
}

// meanRanks returns the rank of each value, from 1, ties by the mean of their ranks.
func meanRanks(xs []float64) []float64 {
	order, out := indices(len(xs)), make([]float64, len(xs))
	sort.SliceStable(order, func(i, j int) bool { return xs[order[i]] < xs[order[j]] })
	for lo := 0; lo < len(order); {
		hi := lo
		for hi < len(order) && xs[order[hi]] == xs[order[lo]] {
			hi++
		}
		for _, i := range order[lo:hi] {
			out[i] = float64(lo+hi+1) / 2
		}
		lo = hi
	}
	return out
}

// String returns the fidelity as a line for people.
func (f Fidelity) String() string {
	cell := func(x *float64, ci *[2]float64) string {
		switch {
		case x == nil:
			return "-"
		case ci == nil:
			return fmt.Sprintf("%.3f", *x)
		}
		return fmt.Sprintf("%.3f [%.3f, %.3f]", *x, ci[0], ci[1])
	}
	return fmt.Sprintf("%-22s  %-24s  %-24s  %-24s  %-8s  %-8.3g  %s", f.Reward,
		cell(f.Rho, f.RhoCI95), cell(f.Pairs, f.PairsCI95), cell(f.Partial, f.PartialCI95),
		cell(f.Length, nil), f.Spread, cell(f.Acc, nil))
}

// FidelityHead is the heading of the lines of Fidelity.String.
var FidelityHead = fmt.Sprintf("%-22s  %-24s  %-24s  %-24s  %-8s  %-8s  %s", "reward",
	"rank correlation", "pairs in order", "given fluency", "length", "spread", "d_acc")
