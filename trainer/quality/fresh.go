package quality

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gad/critic"
	"gad/data"
	"gad/internal/fault"
	"gad/internal/philox"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/trainer/encode"
)

// DiscOptions holds the settings of the training of fresh discriminators. A zero field takes the
// default that its comment states.
type DiscOptions struct {
	From  string       // folder of a model to start from; empty: random weights of Shape
	Shape model.Config // architecture, where From is empty
	Steps int          // optimizer steps
	Batch int          // pairs of one optimizer step; default 4
	LR    float64      // peak learning rate; default 0.0512/hidden width: 4e-4 at 128
	Seed  uint64       // of the first of Seeds trainings; the others count up
	Seeds int          // trainings, each with its own split, head and order; default 1
	// number of an answer's first tokens that the discriminator reads; default all
	Read int

	Stages data.Stages // nil shows nothing
	Stop   func() bool // asked before each step: true ends with fault.ErrInterrupted; nil: never
}

// DefaultDiscSteps, with the defaults of DiscOptions, is a number of steps after which every seed
// had learned, on the task on which they were chosen; with half the learning rate, one in three had
// not (doc/LOG.md).
const DefaultDiscSteps = 800

// Fresh holds the verdict of discriminators that never played against the student.
type Fresh struct {
	// Acc is the share of held-out pairs that differ in which the teacher's answer
	// scores higher, an equal score counting one half; mean over the seeds. 0.5
	// cannot tell. NaN where no held-out pair differs.
	Acc  float64
	CI95 [2]float64 // of Acc: bootstrap over seeds and prompts
	// Control is the same figure for pairs of the teacher's answer and the same
	// answer with one token replaced, under the same budget. It shows whether the training ranks
	// pairs that are known to be rankable.
	Control     float64
	ControlCI95 [2]float64 // of Control, likewise
	// Trained is the accuracy on pairs that the discriminators learned, up to trainedPairs of each,
	// mean over the seeds.
	Trained float64
	Pairs   int // pairs that differ, of all rows
	// share of the rows in which student and teacher gave the same tokens: not in Acc, not in the
	// training
	Ties     float64
	TiesCI95 [2]float64 // of Ties: Wilson
	Seeds    int
	// Learned reports that Acc is meaningful: Acc or the control is above chance by enough
	// (learnedControl), and the discriminators rank the pairs that they learned (learnedTrained). A
	// discriminator that does not rank even these has not learned, and its 0.5 says nothing about
	// the student.
	Learned bool
}

// learnedControl is the least lower end of the interval of the control, or of the accuracy itself,
// with which a training counts as learned; learnedTrained is the least accuracy on its own pairs.
const (
	learnedControl = 0.6
	learnedTrained = 0.6
)

// learned reports whether trainings have learned: by the intervals of their accuracy and of the
// control's, and by the accuracy on their own pairs (NaN where there were none). An accuracy above
// chance on unseen pairs needs no control; the control is for a 0.5.
func learned(asked, control [2]float64, trained float64) bool {
	return (control[0] >= learnedControl || asked[0] >= learnedControl) &&
		!(trained < learnedTrained)
}

// sure is the difference of scores beyond which a pair is not learned: its loss is below 1e-13, and
// gradients so small are slow to compute (critic's flush).
const sure = 30

// trainedPairs bounds the pairs of a training that are scored again at its end.
const trainedPairs = 128

// TrainFresh trains o.Seeds fresh discriminators on the student's answers in j and as many on the
// control, each on half of the rows, and returns their accuracy on the other half.
func TrainFresh(be model.Backend, o DiscOptions, j *Results) (f Fresh, err error) {
	o, err = o.withDefaults(j)
	if err != nil {
		return f, err
	}
	read := j.truncate(o.Read)
	real, control := read.pairs(), read.controlPairs(o.Seed)
	f = Fresh{Seeds: o.Seeds}
	f.Pairs, f.Ties, f.TiesCI95 = read.ties()
	v, trained, err := o.trials(be, real, "")
	if err != nil {
		return f, err
	}
	f.Acc, f.CI95, f.Trained = v.mean(), v.interval(o.Seed), trained
	c, _, err := o.trials(be, control, ", control")
	if err != nil {
		return f, err
	}
	f.Control, f.ControlCI95 = c.mean(), c.interval(o.Seed)
	f.Learned = learned(f.CI95, f.ControlCI95, f.Trained)
	j.freshVerdicts = v
	j.Eval.FreshDSteps, j.Eval.FreshDSeeds, j.Eval.FreshDRead = o.Steps, o.Seeds, o.Read
	return f, nil
}

// ties returns the number of pairs that differ, and the share of equal pairs with its interval.
func (j *Results) ties() (pairs int, share float64, ci [2]float64) {
	ties := 0
	for p := range j.Seqs {
		switch {
		case j.cutUnequally(p):
		case slices.Equal(j.Seqs[p].IDs, j.Batch[p].Teacher.IDs):
			ties++
		default:
			pairs++
		}
	}
	return pairs, float64(ties) / float64(max(1, ties+pairs)), textmetrics.Wilson(ties, ties+pairs)
}

// SetTies sets the share of equal pairs if no discriminator is trained.
func (j *Results) SetTies() {
	_, share, ci := j.ties()
	j.Eval.FreshDTies, j.Eval.FreshDTiesCI95 = &share, finite(ci)
}

// SetFresh sets the figures of fresh discriminators in e; without their accuracy if they have not
// learned.
func (e *Evaluation) SetFresh(f Fresh) {
	e.FreshDTies, e.FreshDLearned = &f.Ties, &f.Learned
	e.FreshDTiesCI95, e.FreshDControlCI95 = finite(f.TiesCI95), finite(f.ControlCI95)
	e.FreshDControl, e.FreshDTrained = finiteOr(f.Control), finiteOr(f.Trained)
	if f.Learned && !math.IsNaN(f.Acc) {
		e.FreshDAcc, e.FreshDCI95 = &f.Acc, finite(f.CI95)
	}
}

// withDefaults returns the options with defaults filled in and the shape of From; it refuses
// options that cannot train.
func (o DiscOptions) withDefaults(j *Results) (DiscOptions, error) {
	o.Batch, o.Seeds = cmp.Or(o.Batch, 4), cmp.Or(o.Seeds, 1)
	if o.Steps < 1 || o.Batch < 1 || o.Seeds < 1 {
		return o, fmt.Errorf("trainer: fresh discriminator: %d steps of %d pairs, %d seeds: steps, pairs and seeds must each be at least 1", o.Steps, o.Batch, o.Seeds)
	}
	if len(j.Seqs) < 2 {
		return o, fmt.Errorf("trainer: fresh discriminator: %d rows: needs at least 2", len(j.Seqs))
	}
	if o.From != "" {
		shape, err := model.ReadConfig(o.From)
		if err != nil {
			return o, err
		}
		o.Shape = shape
	}
	return o, nil
}

// truncate returns j with answers of at most the given number of tokens, 0 for all, for a
// discriminator. Both sides are cut alike.
func (j *Results) truncate(tokens int) *Results {
	if tokens == 0 {
		return j
	}
	cut := func(s model.Seq) model.Seq { return s.Upto(s.Prompt() + tokens) }
	out := &Results{Truncated: j.Truncated}
	for _, s := range j.Seqs {
		out.Seqs = append(out.Seqs, cut(s))
	}
	for _, row := range j.Batch {
		out.Batch = append(out.Batch,
			encode.Row{Teacher: cut(row.Teacher), TeacherCut: row.TeacherCut})
	}
	return out
}

// pairSet holds one pair of sequences per row; skip leaves a row out of training and figure.
type pairSet struct {
	worse, better []model.Seq
	skip          []bool
}

// cutUnequally reports whether the limit cut the teacher's answer of row p and not the student's:
// the missing end alone would tell the two apart.
func (j *Results) cutUnequally(p int) bool { return j.Batch[p].TeacherCut && !j.Truncated[p] }

// pairs returns the student's answers against the teacher's. Pairs of equal answers, which no
// discriminator can tell apart, and pairs cut unequally are left out.
func (j *Results) pairs() pairSet {
	s := pairSet{worse: j.Seqs, better: j.Batch.Teachers(), skip: make([]bool, len(j.Seqs))}
	for p := range s.skip {
		s.skip[p] = j.cutUnequally(p) || slices.Equal(s.worse[p].IDs, s.better[p].IDs)
	}
	return s
}

// controlPairs returns the teacher's answers against copies with one token replaced by a token that
// fits: it stands between the same two tokens in an answer, else after the same token, else
// anywhere, each as often as it occurs. A token that does not fit could be recognised without the
// prompt, or by its neighbours alone.
func (j *Results) controlPairs(seed uint64) pairSet {
	teachers := j.Batch.Teachers()
	s := pairSet{worse: slices.Clone(teachers), better: teachers, skip: make([]bool, len(teachers))}
	for p := range s.skip {
		s.skip[p] = j.cutUnequally(p)
	}
	type context struct{ before, after int32 }
	const start, any = -1, -2
	fits := func(ids []int32, i, first int) [3]context { // of the token at i, the closest first
		before := int32(start)
		if i > first {
			before = ids[i-1]
		}
		return [3]context{{before, ids[i+1]}, {before, any}, {any, any}}
	}
	seen := map[context][]int32{}
	for p, seq := range teachers {
		for i := seq.Prompt(); i < len(seq.IDs)-1 && !s.skip[p]; i++ { // without the end
			for _, c := range fits(seq.IDs, i, seq.Prompt()) {
				seen[c] = append(seen[c], seq.IDs[i])
			}
		}
	}
	for p, seq := range teachers {
		n := len(seq.IDs) - 1 - seq.Prompt()
		if s.skip[p] = s.skip[p] || n < 1; s.skip[p] {
			continue
		}
		at := seq.Prompt() + philox.IntN(n, seed, philox.Data, uint64(p), 0, 0)
		ids := slices.Clone(seq.IDs)
		for near, c := range fits(ids, at, seq.Prompt()) {
			others := slices.DeleteFunc(slices.Clone(seen[c]),
				func(id int32) bool { return id == seq.IDs[at] })
			if len(others) > 0 {
				ids[at] = others[philox.IntN(len(others), seed, philox.Data, uint64(p),
					1+uint64(near), 0)]
				break
			}
		}
		s.worse[p] = model.Answer(ids, seq.Prompt())
		s.skip[p] = ids[at] == seq.IDs[at] // all answers are one token again and again
	}
	return s
}

// trials trains one discriminator for each seed, and returns their verdicts. trained is the
// accuracy on pairs that they learned, mean over the seeds; NaN without such pairs.
func (o DiscOptions) trials(be model.Backend, s pairSet,
	kind string) (v verdicts, trained float64, err error) {
	for k := range o.Seeds {
		verdictP, right, err := o.trial(be, s, o.Seed+uint64(k),
			fmt.Sprintf("fresh discriminator %d of %d%s", k+1, o.Seeds, kind))
		if err != nil {
			return nil, 0, err
		}
		v, trained = append(v, verdictP), trained+right
	}
	return v, trained / float64(o.Seeds), nil
}

// trial trains one discriminator on half of the rows, drawn by seed, and tests it on the other rows
// (verdictP [rows]), and on pairs that it has learned (trained).
func (o DiscOptions) trial(be model.Backend, s pairSet, seed uint64,
	name string) (verdictP []float64, trained float64, err error) {
	rows := len(s.skip)
	verdictP = make([]float64, rows)
	for p := range verdictP {
		verdictP[p] = math.NaN()
	}
	// The remaining pairs are split, not the rows: a half of the rows could have no pair.
	order := shuffle(rows, seed, 0)
	order = slices.DeleteFunc(order, func(p int) bool { return s.skip[p] })
	learn, asked := order[:len(order)/2], order[len(order)/2:]
	if len(learn) == 0 {
		return verdictP, math.NaN(), nil
	}
	cr, err := o.open(be, seed)
	if err != nil {
		return nil, 0, err
	}
	defer cr.Close()
	batch := func(at []int) (b critic.Batch, err error) {
		b = critic.Batch{Students: model.Pick(s.worse, at), Teachers: model.Pick(s.better, at),
			Group: indices(len(at)), Skip: make([]bool, len(at))}
		return b, cr.ScoreBoth(&b)
	}
	seen, err := o.learn(cr, learn, seed, name, batch)
	if err != nil {
		return nil, 0, err
	}
	known := slices.DeleteFunc(slices.Clone(learn), func(p int) bool { return !seen[p] })
	known = known[:min(len(known), trainedPairs)]
	advance, done := o.Stages.Begin(name+", tested", len(known)+len(asked))
	defer done()
	ask := func(at []int, tell func(p int, verdict float64)) error {
		for some := range slices.Chunk(at, 8) {
			if o.Stop != nil && o.Stop() {
				return fault.ErrInterrupted
			}
			b, err := batch(some)
			if err != nil {
				return err
			}
			for i, p := range some {
				tell(p, rankScore(b.ScoreP[i], b.ScoreS[i]))
			}
			advance(len(some))
		}
		return nil
	}
	if err := ask(known, func(_ int, verdict float64) { trained += verdict }); err != nil {
		return nil, 0, err
	}
	trained /= float64(len(known))
	return verdictP, trained, ask(asked, func(p int, verdict float64) { verdictP[p] = verdict })
}

// learn takes the steps of a training on the given pairs, and returns the pairs that it has
// reached.
func (o DiscOptions) learn(cr *critic.Critic, learn []int, seed uint64, name string,
	batch func(at []int) (critic.Batch, error)) (seen map[int]bool, err error) {
	advance, done := o.Stages.Begin(name, o.Steps)
	defer done()
	seen = map[int]bool{}
	var pass []int
	for step := range o.Steps {
		if o.Stop != nil && o.Stop() {
			return nil, fault.ErrInterrupted
		}
		at := make([]int, 0, o.Batch)
		for i := step * o.Batch; len(at) < o.Batch; i++ {
			if i%len(learn) == 0 || pass == nil {
				pass = shuffle(len(learn), seed, 1+uint64(i/len(learn)))
			}
			at = append(at, learn[pass[i%len(learn)]])
			seen[at[len(at)-1]] = true
		}
		b, err := batch(at)
		if err != nil {
			return nil, err
		}
		for i := range at {
			b.Skip[i] = b.ScoreP[i]-b.ScoreS[i] > sure
		}
		if _, err := cr.Update(b); err != nil {
			return nil, err
		}
		advance(1)
	}
	return seen, nil
}

// rankScore returns 1 if the better one scores higher, one half if both score alike, otherwise 0.
func rankScore(better, worse float32) float64 {
	switch {
	case better > worse:
		return 1
	case better == worse:
		return 0.5
	}
	return 0
}

// open opens the discriminator before its first step. With its settings a discriminator of small
// width learned to read answers at all: a head whose scores are of order 1, a slow start, a short
// memory of squared gradients.
func (o DiscOptions) open(be model.Backend, seed uint64) (*critic.Critic, error) {
	c := critic.DefaultConfig()
	width := float64(o.Shape.Hidden)
	c.Optim.LR = o.LR
	if o.LR == 0 {
		c.Optim.LR = 0.0512 / width
	}
	c.Optim.LRScheduler, c.Optim.WarmupSteps, c.Optim.Beta2, c.GradClip =
		"linear", min(100, o.Steps/4), 0.98, 1
	c.ScoreInit = 5.66 / math.Sqrt(width)
	if o.From != "" {
		return critic.Open(be, o.From, c, o.Steps*c.Updates(o.Batch), seed)
	}
	m, err := model.New(be, o.Shape,
		model.Options{Kind: model.Scorer, Trainable: true, Seed: seed, ScoreInit: c.ScoreInit})
	if err != nil {
		return nil, err
	}
	return critic.New(m, c, o.Steps*c.Updates(o.Batch), seed)
}

// shuffle returns the numbers 0 to n-1 in an order drawn by seed and pass.
func shuffle(n int, seed, pass uint64) []int {
	order := indices(n)
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(philox.Uint64(seed, philox.Replay, pass, uint64(a), 1),
			philox.Uint64(seed, philox.Replay, pass, uint64(b), 1)), a-b)
	})
	return order
}

// indices returns the numbers 0 to n-1.
func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// The bounds of DiscOptions.Fit.
const (
	// passes over the pairs that are learned: with more, their texts are memorised
	discPasses = 40
	// the fewest steps that were seen to learn (doc/LOG.md): seeds and tokens are reduced before
	// fewer are taken
	discWell  = 100
	discLeast = 50 // the fewest steps that are tried
)

// discGrid and readGrid list the numbers of steps and of tokens to which a time limit may shorten a
// training: few, so that a slightly slower machine gives the same figures.
var (
	discGrid = []int{50, 75, 100, 150, 200, 300, 400, 600, 800, 1200, 1600, 2400, 3200}
	readGrid = []int{0, 512, 256, 128, 64}
)

// DiscCost is the time of one training in seconds: Once, and for each Step.
type DiscCost struct{ Once, Step float64 }

// total returns the seconds of seeds trainings of steps each, and of as many controls.
func (c DiscCost) total(steps, seeds int) float64 {
	return float64(2*seeds) * (c.Once + float64(steps)*c.Step) // and as many controls
}

// Fit lowers the steps to the number that pairs can use, and steps, seeds and tokens to a time
// limit in seconds, 0 for none. cost returns the cost of one training that reads read tokens of an
// answer, 0 for all. fixed keeps the steps from being lowered for the pairs. note lists the
// reductions, for people. If less than a useful training is left, why is the reason, and none must
// be run.
func (o DiscOptions) Fit(pairs int, cost func(read int) DiscCost, seconds float64,
	fixed bool) (out DiscOptions, note, why string) {
	o.Batch, o.Seeds = cmp.Or(o.Batch, 4), cmp.Or(o.Seeds, 1)
	if pairs < 2 {
		return o, "", fmt.Sprintf("%d pairs that differ: a discriminator learns from half of them and is tested on the others", pairs)
	}
	asked, seeds := o.Steps, o.Seeds
	var notes []string
	if most := max(discLeast, (discPasses*(pairs/2)+o.Batch-1)/o.Batch); !fixed && o.Steps > most {
		o.Steps = most
		notes = append(notes, fmt.Sprintf("%d of %d steps, which are %d passes over %d pairs",
			o.Steps, asked, o.Steps*o.Batch/(pairs/2), pairs/2))
	}
	if seconds <= 0 || cost(0).total(o.Steps, o.Seeds) <= seconds {
		return o, strings.Join(notes, "; "), ""
	}
	affords := func(c DiscCost, seeds int) (steps int) {
		for _, n := range append(discGrid, o.Steps) {
			if n <= o.Steps && c.total(n, seeds) <= seconds {
				steps = max(steps, n)
			}
		}
		return steps
	}
	for _, enough := range []int{min(o.Steps, discWell), min(o.Steps, discLeast)} {
		for _, read := range readGrid {
			for n := seeds; n > 0; n-- {
				steps := affords(cost(read), n)
				if steps < enough {
					continue
				}
				var kept []string
				if steps < o.Steps {
					kept = append(kept, fmt.Sprintf("%d of %d steps", steps, o.Steps))
				}
				if n < seeds {
					kept = append(kept, fmt.Sprintf("%d of %d seeds", n, seeds))
				}
				if read > 0 {
					kept = append(kept, fmt.Sprintf("the first %d tokens of each answer", read))
				}
				o.Steps, o.Seeds, o.Read = steps, n, read
				notes = append(notes, strings.Join(kept,
					", ")+", to stay within "+minutes(seconds)+" (--disc-minutes)")
				return o, strings.Join(notes, "; then "), ""
			}
		}
	}
	least := cost(readGrid[len(readGrid)-1]).total(min(o.Steps, discLeast), 1)
	return o, "", fmt.Sprintf("it needs at least %d steps, which take longer than %s here: give --disc-minutes %.0f, or use a GPU", min(o.Steps, discLeast), minutes(seconds), math.Ceil(least/60))
}

// minutes formats seconds as minutes.
func minutes(seconds float64) string {
	if seconds == 60 {
		return "1 minute"
	}
	return fmt.Sprintf("%.3g minutes", seconds/60)
}
