// Package critic is the discriminator: it scores the student's and the
// teacher's sequences on the same path and learns to tell them apart
// (GAD, arXiv 2511.10643, equations 1 to 3).
//
//	critic.go     the update: mini-batches and optimizer steps
//	head.go       how a network's output becomes scores
//	pairs.go      the pairs of a mini-batch, and which of their scores are known
//	turns.go      scores by turn, and what a pair of sequences compares
//	objective.go  loss of a mini-batch and its gradient with respect to the scores
//	learn.go      passes of a mini-batch through the network, pack by pack
//	replay.go     the pool of past negatives
//	signal.go     statistics of a batch's scores
//	ending.go     how a sequence ends
//	config.go     settings
//
// Legend: P prompts, S student sequences (G of each prompt), n pairs of a
// student sequence with its prompt's teacher sequence.
package critic

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gad/algos"
	"gad/model"
)

// Critic is the discriminator with its optimizer.
type Critic struct {
	Scorer
	Replay *Buffer // the pool of past negatives; nil when off

	opt   *model.Optimizer
	loss  *algos.Discriminator[float32]
	group algos.GroupSpread[float32]
	seed  uint64
}

// Open loads the discriminator from dir: a scorer as a checkpoint holds it, or a
// language model, whose head is then replaced by a fresh value head drawn from
// seed; with head likelihood a language model, which keeps its head. updates is the number of
// optimizer steps planned, over which the learning rate is scheduled: Config.Updates in a step.
func Open(be model.Backend, dir string, cfg Config, updates int, seed uint64) (*Critic, error) {
	shape, err := model.ReadConfig(dir)
	if err != nil {
		return nil, fmt.Errorf("critic: %w", err)
	}
	m, err := model.Load(be, dir, model.Options{Kind: cfg.Kind(), Trainable: true,
		Recompute: cfg.Recompute, LoRA: cfg.LoRA, Seed: seed, ScoreInit: cfg.HeadStd(shape.Hidden)})
	if err != nil {
		return nil, fmt.Errorf("critic: %w", err)
	}
	c, err := New(m, cfg, updates, seed)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return c, nil
}

// New wraps a network of kind cfg.Kind that is already loaded.
func New(m *model.Model, cfg Config, updates int, seed uint64) (*Critic, error) {
	scorer, err := NewScorer(m, cfg)
	if err != nil {
		return nil, err
	}
	opt, err := model.NewOptimizer(m, cfg.Optim.AdamW(cfg.GradClip, updates))
	if err != nil {
		return nil, fmt.Errorf("critic: %w", err)
	}
	loss, err := algos.NewDiscriminator[float32](cfg.objective())
	if err != nil {
		return nil, fmt.Errorf("critic: %w", err)
	}
	c := &Critic{Scorer: *scorer, opt: opt, loss: loss, seed: seed}
	if cfg.Replay.Size > 0 {
		c.Replay = &Buffer{Cap: cfg.Replay.Size}
	}
	return c, nil
}

// Optimizer returns the discriminator's AdamW state.
func (c *Critic) Optimizer() *model.Optimizer { return c.opt }

// Close frees the weights.
func (c *Critic) Close() error { return errors.Join(c.loss.Close(), c.group.Close(), c.m.Close()) }

// ScoreBoth sets ScoreS and ScoreP of b, and TurnS and TurnP with level turn. Student and teacher
// sequences of a prompt pass forward together, which computes their prompt once.
func (c *Critic) ScoreBoth(b *Batch) error {
	score, turns, err := c.scoreTurns(slices.Concat(b.Students, b.Teachers))
	if err != nil {
		return err
	}
	b.ScoreS, b.ScoreP = splitSides(score, len(b.Students))
	b.TurnS, b.TurnP = splitSides(turns, len(b.Students))
	return nil
}

// splitSides splits xs into the students' part, its first elements, and the teachers'; both are nil
// if xs is nil.
func splitSides[T any](xs []T, students int) (studentS, teacherP []T) {
	n := min(students, len(xs))
	return xs[:n:n], xs[n:]
}

// Batch is a step's input to the discriminator: sequences of both sides, and which of them form
// pairs.
type Batch struct {
	Step     int
	Students []model.Seq // [S]
	Group    []int       // [S] index of each student sequence's teacher
	Teachers []model.Seq // [P]
	Skip     []bool      // [S] student sequences that are in no pair

	// ScoreS [S] and ScoreP [P] are the scores under the present weights, if the caller has them;
	// nil: Update computes them. With level turn they are the last turns' scores, and Update takes
	// TurnS [S][turns] and TurnP [P][turns], the scores of all turns, instead.
	ScoreS, ScoreP []float32
	TurnS, TurnP   [][]float32

	base [][]float64 // [S+P] baselines of head likelihood (Scorer.baseline); else nil
}

// Pairs returns the number of pairs in b, ties included.
func (b *Batch) Pairs() (n int) {
	for _, skip := range b.Skip {
		if !skip {
			n++
		}
	}
	return n
}

// Tie reports whether student sequence s equals its teacher's, token by token and turn by turn.
// Both then have the same scores under any weights.
func (b *Batch) Tie(s int) bool {
	student, teacher := b.Students[s], b.Teachers[b.Group[s]]
	return slices.Equal(student.IDs, teacher.IDs) && slices.Equal(student.Spans, teacher.Spans)
}

// Stats are means over the pairs of an update, taken before each optimizer step. Accuracy and the
// group term are of the last turns' scores.
type Stats struct {
	Pairs     float64 // number of pairs in the means
	Loss, Acc float64 // means over pairs; a tie has loss ln 2 (bt) and counts as wrong
	GroupTerm float64 // GRGC's group term before its weight, mean over pairs
	Pooled    float64 // share of the pairs that came from the pool
	GradNorm  float64 // before clipping, mean over optimizer steps
	LR        float64 // of the last optimizer step
	Updates   int     // optimizer steps taken
	Skipped   int     // optimizer steps left out for a non-finite score or gradient
	Streak    int     // steps left out since the last optimizer step taken

	// ScoreS [S] and ScoreP [P] are the batch's scores under the weights before the first optimizer
	// step; TurnS and TurnP are the scores of all turns, nil with level episode.
	ScoreS, ScoreP []float32
	TurnS, TurnP   [][]float32
}

// Update takes the discriminator's optimizer steps on b, one for each mini-batch of prompts,
// PPOEpochs times over the batch. Afterwards the student sequences enter the pool, if it is live.
//
// The forward pass of a gradient computes scores as well, so Update needs no scores beforehand. It
// collects the scores of the batch under the weights before the first optimizer step from the
// passes of the first mini-batch; only sequences that these did not score need a forward pass of
// their own (scoreRest).
func (c *Critic) Update(b Batch) (st Stats, err error) {
	prompts := len(b.Teachers)
	mini := c.cfg.MiniBatch(prompts)
	if b.base, err = c.baseline(slices.Concat(b.Students, b.Teachers)); err != nil {
		return st, err
	}
	fresh := c.newScores(b) // under the weights before the first optimizer step
	present := fresh        // under the present weights; nil after an optimizer step
	batches := 0            // mini-batches so far: the key of their random draws
	for range c.cfg.PPOEpochs {
		for lo := 0; lo < prompts; lo += mini {
			set, err := c.gather(b, lo, min(lo+mini, prompts), batches, present)
			if err != nil {
				return st, err
			}
			batches++
			if len(set.student) == 0 { // nothing but ties, which have no gradient
				st.add(set, lossStats{})
				continue
			}
			res, err := c.learn(set)
			if present != nil {
				set.copyScores(present)
				if err == nil {
					err = c.scoreRest(present, b) // before the weights change
				}
			}
			if errors.Is(err, algos.ErrNotFinite) {
				st.skip() // nothing of this mini-batch reaches the weights
				if err := c.opt.ZeroGrad(); err != nil {
					return st, fmt.Errorf("critic: %w", err)
				}
				continue
			}
			if err != nil {
				return st, err
			}
			st.add(set, res)
			step, err := c.opt.Step()
			if err != nil {
				return st, fmt.Errorf("critic: optimizer: %w", err)
			}
			if st.count(step); !step.Skipped {
				present = nil
			}
		}
	}
	if present != nil { // no optimizer step was taken
		if err := c.scoreRest(present, b); err != nil {
			return st, err
		}
	}
	score, turns := fresh.bySequence(c.cfg.byTurn())
	st.ScoreS, st.ScoreP = splitSides(score, len(b.Students))
	st.TurnS, st.TurnP = splitSides(turns, len(b.Students))
	st.finish()
	if c.Replay != nil && c.cfg.Replay.Live {
		c.Replay.Add(b)
	}
	return st, nil
}

// add adds the sums over a mini-batch's pairs. loss and acc of res are means over all pairs in
// which ties, whose loss is ln 2 each, count as 0.
func (st *Stats) add(set *pairSet, res lossStats) {
	ties := float64(set.ties)
	n := float64(len(set.student)) + ties
	st.Pairs += n
	st.Loss += n*res.loss + math.Ln2*ties
	st.Acc += n * res.acc
	st.GroupTerm += n * res.groupTerm
	st.Pooled += float64(set.pooled)
}

// count counts an optimizer step.
func (st *Stats) count(step model.StepStats) {
	if step.Skipped {
		st.skip()
		return
	}
	st.Streak = 0
	st.LR = step.LR
	st.GradNorm += step.GradNorm
	st.Updates++
}

// skip counts an optimizer step that was left out.
func (st *Stats) skip() {
	st.Skipped++
	st.Streak++
}

// finish turns sums into means.
func (st *Stats) finish() {
	if n := st.Pairs; n > 0 {
		st.Loss, st.Acc, st.GroupTerm, st.Pooled = st.Loss/n, st.Acc/n, st.GroupTerm/n, st.Pooled/n
	}
	st.GradNorm /= float64(max(st.Updates, 1))
}

// Updates returns the number of optimizer steps of one update on a batch of prompts.
func (c Config) Updates(batch int) int { return c.PPOEpochs * ceilDiv(batch, c.MiniBatch(batch)) }

// MiniBatch returns the number of prompts of one optimizer step, for batches of the given size.
func (c Config) MiniBatch(prompts int) int {
	if c.PPOMiniBatch > 0 {
		return min(c.PPOMiniBatch, prompts)
	}
	return prompts
}

// ceilDiv returns a/b rounded up, for b of 1 or more.
func ceilDiv(a, b int) int { return (a + b - 1) / max(b, 1) }
