// Package actor is the student: it answers prompts (Actor.Rollout), and learns from its own
// answers, from the teacher's, or from answers that are compared with each other.
//
//	actor.go    answers, the policy update (Update) and cross entropy (SFT): start here
//	config.go   settings of the update and of sampling
//	soft.go     cross entropy with soft labels
//	joint.go    an update whose loss compares whole sequences
//	dpo.go      such an update by preferences
//	ranking.go  such an update by the order of scored answers
//
// Legend: P prompts, G answers each, S = P*G sequences, T response tokens.
package actor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gad/algos"
	"gad/model"
)

// Actor is the student with its optimizer.
type Actor struct {
	cfg    Config
	roll   RolloutConfig
	m      *model.Model
	opt    *model.Optimizer
	policy *algos.Policy[float32]
	sft    *algos.Policy[float32]
	target Target
	maxNew int
	merges bool         // sampling reads merged weights
	merged *model.Model // the merged weights; nil until the first rollout
}

// Target is the distribution that the exact KL of the loss (Config.ExactKL) is measured to.
type Target struct {
	Policy *model.Model // frozen; nil: the sequences have a Teacher or Labels
	Beta   float64      // of model.LogProbDivergenceGrad; 1 is the KL to Policy
	Top    int          // above 0: the soft labels of Policy's Top most probable tokens and a tail
}

// SetTarget sets the target of the exact KL.
func (a *Actor) SetTarget(target Target) { a.target = target }

// Open loads the student from the model folder dir. updates is the number of optimizer steps
// planned, over which the learning rate is scheduled: Config.Updates in a step. maxNew is the
// longest answer in tokens. With cfg.LoRA new adapters are drawn from seed 0.
func Open(be model.Backend, dir string, cfg Config, roll RolloutConfig, updates,
	maxNew int) (*Actor, error) {
	m, err := model.Load(be, dir,
		model.Options{Kind: model.LM, Trainable: true, Recompute: cfg.Recompute, LoRA: cfg.LoRA})
	if err != nil {
		return nil, fmt.Errorf("actor: %w", err)
	}
	a, err := New(m, cfg, roll, updates, maxNew)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return a, nil
}

// New wraps a student that is already loaded. updates and maxNew are as in Open.
func New(m *model.Model, cfg Config, roll RolloutConfig, updates, maxNew int) (*Actor, error) {
	opt, err := model.NewOptimizer(m, cfg.Optim.AdamW(cfg.GradClip, updates))
	if err != nil {
		return nil, fmt.Errorf("actor: %w", err)
	}
	objective := cfg.objective()
	objective.ByEpisode = roll.Chunk > 0 || roll.Tree.Branches()
	policy, err := algos.NewPolicy[float32](objective)
	if err != nil {
		return nil, fmt.Errorf("actor: %w", err)
	}
	sft, err := algos.NewPolicy[float32](algos.PolicyConfig{Loss: "sft", Agg: "token-mean"})
	if err != nil {
		return nil, fmt.Errorf("actor: %w", err)
	}
	merges := m.Base() != nil && (roll.Merged == "true" ||
		roll.Merged == "auto" && !m.Alone() && !model.Quantised(cfg.LoRA.Base))
	return &Actor{cfg: cfg, roll: roll, m: m, opt: opt, policy: policy, sft: sft, maxNew: maxNew,
		merges: merges}, nil
}

// MaxNew returns the longest answer, in tokens, of a rollout.
func (a *Actor) MaxNew() int { return a.maxNew }

// SetMaxNew sets the longest answer, in tokens, of later rollouts and updates.
func (a *Actor) SetMaxNew(n int) { a.maxNew = n }

// Model returns the student's network.
func (a *Actor) Model() *model.Model { return a.m }

// Optimizer returns the student's AdamW state.
func (a *Actor) Optimizer() *model.Optimizer { return a.opt }

// Close frees weights and compiled objectives.
func (a *Actor) Close() error {
	errs := []error{a.policy.Close(), a.sft.Close()}
	if a.merged != nil {
		errs = append(errs, a.merged.Close())
	}
	return errors.Join(append(errs, a.m.Close())...)
}

// Merges reports whether sampling reads weights into which the adapters are merged. Its
// log-probabilities then differ from the trainer's by rounding.
func (a *Actor) Merges() bool { return a.merges }

// sampler returns the model that sampling reads: the student, or its weights with the present
// adapters merged.
func (a *Actor) sampler() (*model.Model, error) {
	if !a.merges {
		return a.m, nil
	}
	if a.merged != nil {
		return a.merged, a.m.Remerge(a.merged)
	}
	merged, err := a.m.Merged()
	if errors.Is(err, model.ErrMemory) && a.roll.Merged == "auto" {
		a.merges = false
		return a.m, nil
	}
	if err != nil {
		return nil, err
	}
	merged.Share(a.m)
	a.merged = merged
	return merged, nil
}

// Rollout holds the student's answers as sequences. The answers to a prompt are adjacent, and so
// are the sequences of an answer.
type Rollout []*Sequence

// Sequence is one sequence of an answer: the whole, a chunk of a thought, or turns of an episode
// with one context. Slices hold a value for each of its T trained tokens.
type Sequence struct {
	Seq    model.Seq // prompt and response, with the end token if the answer has one
	Group  int       // prompt that is answered
	Answer int       // number of the answer in the rollout, ascending
	Cut    bool      // the answer was cut at the limit
	// tokens of the whole answer, where its first tokens are context that another answer of its
	// tree learns; a mean over an answer's tokens counts them too. 0: Seq's trained tokens
	Whole int

	Sampled []float32 // log-probabilities as the sampler saw them
	// denominator of the ratio: Sampled, or see RecomputeOld. In the first mini-batch of an update it
	// may be nil: the update's own forward pass is then its own denominator
	Old    []float32
	Ref    []float32         // the reference's log-probabilities: see NeedsReference
	Adv    []float64         // advantages
	Read   model.Seq         // sequence that the target's policy reads; without IDs: Seq
	Labels []model.SoftLabel // learned instead of the tokens: see SoftSFT and Target
	// frozen; the exact KL is measured to it in the place of Target.Policy
	Teacher *model.Model
}

// Seqs returns the sequences' tokens.
func (r Rollout) Seqs() []model.Seq {
	seqs := make([]model.Seq, len(r))
	for i, s := range r {
		seqs[i] = s.Seq
	}
	return seqs
}

// Prompts returns the number of prompts up to the last one that has an answer: in an environment
// the last ones may have none.
func (r Rollout) Prompts() int {
	if len(r) == 0 {
		return 0
	}
	return r[len(r)-1].Group + 1
}

// Groups returns the index of each sequence's prompt [S].
func (r Rollout) Groups() []int {
	group := make([]int, len(r))
	for i, s := range r {
		group[i] = s.Group
	}
	return group
}

// Mask returns the mask of the responses [S][T]: 1 on trained tokens, T the longest.
func (r Rollout) Mask() (maskST [][]float64) {
	t := 1
	for _, s := range r {
		t = max(t, s.Seq.Trained())
	}
	for _, s := range r {
		row := make([]float64, t)
		for i := range s.Seq.Trained() {
			row[i] = 1
		}
		maskST = append(maskST, row)
	}
	return maskST
}

// SetAdv sets the sequences' advantages advST [S][T]. Values after a row's trained tokens are not
// read.
func (r Rollout) SetAdv(advST [][]float64) {
	for i, s := range r {
		s.Adv = advST[i]
	}
}

// SetRef sets the reference's log-probabilities refST [S][T] of the sequences.
func (r Rollout) SetRef(refST [][]float32) {
	for i, s := range r {
		s.Ref = refST[i]
	}
}

// Key is the key of a rollout's random numbers: a draw is a function of seed, step, row, sample
// and position. Rows are the numbers of the prompts.
type Key struct {
	Seed uint64
	Step int
	Rows []int // [P]
}

// Rollout samples G answers to each prompt. progress, if not nil, is called with the number of
// tokens made since its last call. When ctx ends, the error wraps model.ErrStopped.
func (a *Actor) Rollout(ctx context.Context, prompts [][]int32, eos []int32, key Key,
	progress func(int)) (r Rollout, err error) {
	out, err := a.Answers(ctx, prompts, a.roll.N, nil, eos, key, progress)
	if err != nil {
		return nil, err
	}
	number := 0
	for p, answers := range out {
		for _, c := range answers {
			for _, s := range Sequences(a.roll.Thought(), prompts[p], c) {
				s.Group, s.Answer = p, number
				r = append(r, s)
			}
			number++
		}
	}
	return r, nil
}

// Sequences cuts an answer c into its sequences: one, or one for each of its chunks.
func Sequences(chunks model.Chunks, prompt []int32, c model.Completion) (list Rollout) {
	at := 0
	for _, seq := range chunks.Seqs(prompt, c.IDs) {
		logp := c.Logp[at:][:seq.Trained():seq.Trained()]
		list = append(list, &Sequence{Seq: seq, Cut: c.Truncated, Sampled: logp, Old: logp})
		at += len(logp)
	}
	return list
}

// Answers samples n answers to each prompt [P][n], as Rollout does. With begun [P] and n 1 it
// continues answers whose first tokens are the ends of the prompts.
func (a *Actor) Answers(ctx context.Context, prompts [][]int32, n int, begun []model.Begun,
	eos []int32, key Key, progress func(int)) ([][]model.Completion, error) {
	return a.generate(ctx, prompts, model.SampleOptions{N: n, MaxNew: a.maxNew,
		Chunks: a.roll.Thought(), Begun: begun, EOS: eos}, key, progress)
}

// Texts samples one text of at most maxNew tokens after each prompt [P], which is no answer to
// learn from, with the sampling settings of Rollout.
func (a *Actor) Texts(ctx context.Context, prompts [][]int32, maxNew int, eos []int32, key Key,
	progress func(int)) (texts []model.Completion, err error) {
	out, err := a.generate(ctx, prompts, model.SampleOptions{N: 1, MaxNew: maxNew, EOS: eos}, key,
		progress)
	for _, x := range out {
		texts = append(texts, x...)
	}
	return texts, err
}

// generate samples texts as o says, with the actor's settings of sampling.
func (a *Actor) generate(ctx context.Context, prompts [][]int32, o model.SampleOptions, key Key,
	progress func(int)) ([][]model.Completion, error) {
	rows := make([]uint64, len(key.Rows))
	for i, r := range key.Rows {
		rows[i] = uint64(r)
	}
	m, err := a.sampler()
	if err != nil {
		return nil, fmt.Errorf("actor: rollout: %w", err)
	}
	o.Slots, o.Seed, o.Step, o.Stop, o.Sampling =
		a.roll.MaxNumSeqs, key.Seed, uint64(key.Step), StopFunc(ctx), a.sampling()
	out, err := m.GenerateAll(prompts, rows, o, progress)
	if err != nil {
		return nil, fmt.Errorf("actor: rollout: %w", err)
	}
	return out, nil
}

// Engine returns an engine of the weights that Rollout samples from, and the sampling settings.
func (a *Actor) Engine(o model.EngineOptions) (*model.Engine, model.Sampling, error) {
	m, err := a.sampler()
	if err != nil {
		return nil, model.Sampling{}, fmt.Errorf("actor: rollout: %w", err)
	}
	e, err := m.NewEngine(o)
	if err != nil {
		return nil, model.Sampling{}, fmt.Errorf("actor: rollout: %w", err)
	}
	return e, a.sampling(), nil
}

// sampling returns the settings by which Rollout samples.
func (a *Actor) sampling() model.Sampling {
	return model.Sampling{Temperature: a.roll.Temperature, TopK: a.roll.TopK, TopP: a.roll.TopP,
		MinP: a.roll.MinP}
}

// StopFunc returns a function that reports whether ctx has ended. Samplers call it once a token, so
// it takes no lock.
func StopFunc(ctx context.Context) func() bool {
	return func() bool {
		select {
		case <-ctx.Done():
			return true
		default:
			return false
		}
	}
}

// RecomputeOld sets Old of each sequence to the log-probabilities under the present weights, by the
// trainer's forward pass. It must run before the update.
func (a *Actor) RecomputeOld(r Rollout) error {
	oldST, _, err := a.m.AllLogProbs(r.Seqs(), a.roll.Temperature, a.cfg.MaxTokenLen)
	if err != nil {
		return fmt.Errorf("actor: %w", err)
	}
	for i, s := range r {
		s.Old = oldST[i]
	}
	return nil
}

// NeedsReference reports whether Update reads reference log-probabilities.
func (a *Actor) NeedsReference() bool { return a.cfg.HasKL() && !a.cfg.ExactKL() }

// Stats describes an update: sums over all its mini-batches, divided by Passes where they are
// means.
type Stats struct {
	algos.PolicyStats
	Entropy  float64           // mean over tokens, nats
	KLShare  float64           // the KL's share of the loss, mean over mini-batches
	GradNorm float64           // before clipping, mean over optimizer steps
	LR       float64           // of the last optimizer step
	Passes   int               // mini-batches seen
	Updates  int               // optimizer steps taken
	Skipped  int               // optimizer steps left out for a non-finite gradient
	Soft     model.SoftFigures // of soft labels, sums over tokens
	Streak   int               // steps left out since the last optimizer step taken

	// FirstRatioMin and FirstRatioMax are the extreme sequence ratios of the
	// first mini-batch, before any step was taken: 1 where sampler and trainer agree.
	FirstRatioMin, FirstRatioMax float64

	SoftKL float64 // of SoftSFT: the sum of KL(label || student) over the tokens of Soft, nats
}

// Update takes the policy's optimizer steps: ppo_epochs passes over the batch, one step for each
// mini-batch of prompts. Rows of the objective are sequences, or their spans with ratio_level=turn.
func (a *Actor) Update(r Rollout) (Stats, error) {
	prompts := r.Prompts()
	mini := a.cfg.MiniBatch(prompts)
	var st Stats
	for epoch := range a.cfg.PPOEpochs {
		for lo := 0; lo < prompts; lo += mini {
			n := min(mini, prompts-lo)
			shards := make([]Rollout, a.m.Shards())
			for _, s := range r {
				if lo <= s.Group && s.Group < lo+n {
					k := a.m.Shard(s.Group-lo, n)
					shards[k] = append(shards[k], s)
				}
			}
			u := &update{policy: a.policy, temperature: a.roll.Temperature,
				byTurn: a.cfg.ByTurn(), first: epoch == 0 && lo == 0}
			if err := a.learn(&st, u, shards); err != nil {
				return st, err
			}
		}
	}
	st.finish()
	return st, nil
}

// SFT takes one optimizer step of cross entropy on the given sequences'
// responses (mean over tokens): the baseline SeqKD and the paper's warm-up.
func (a *Actor) SFT(seqs []model.Seq) (Stats, error) { return a.SoftSFT(seqs, nil) }

// SoftSFT takes the step of SFT with soft labels (see Soft); soft nil is SFT.
func (a *Actor) SoftSFT(seqs []model.Seq, soft *Soft) (Stats, error) {
	u := &update{policy: a.sft, temperature: 1}
	shards := make([]Rollout, a.m.Shards())
	for i, seq := range seqs {
		s := &Sequence{Seq: seq, Answer: i}
		if soft != nil {
			s.Labels, u.soft = soft.Labels[i], soft.Weight
		}
		k := a.m.Shard(i, len(seqs))
		shards[k] = append(shards[k], s)
	}
	var st Stats
	if err := a.learn(&st, u, shards); err != nil {
		return st, err
	}
	st.finish()
	return st, nil
}

// update is one optimizer step of a token objective.
type update struct {
	policy      *algos.Policy[float32]
	temperature float64
	byTurn      bool    // each span is a row of the objective; otherwise each sequence
	first       bool    // the weights are still those that sampled
	soft        float64 // weight of the sequences' labels in SoftSFT
	norm        algos.Norm
	rows        map[int]int // of each answer: its rows that have tokens
	tokens      map[int]int // of each answer
}

// rowsOf returns the rows of the objective that a sequence has, as spans of its trained tokens.
func (u *update) rowsOf(s *Sequence) (rows []model.Span) {
	if !u.byTurn {
		return []model.Span{{From: 0, To: s.Seq.Trained()}}
	}
	at := 0
	for _, p := range s.Seq.Spans {
		rows = append(rows, model.Span{From: at, To: at + p.To - p.From})
		at += p.To - p.From
	}
	return rows
}

// count sets the totals over all sequences of the step by which the loss is divided.
func (u *update) count(shards []Rollout, maxNew int) {
	u.norm = algos.Norm{FixedLen: float64(maxNew)}
	u.rows, u.tokens = map[int]int{}, map[int]int{}
	for _, s := range slices.Concat(shards...) {
		for _, row := range u.rowsOf(s) {
			if n := row.To - row.From; n > 0 {
				u.norm.Tokens += float64(n)
				u.norm.Seqs++
				u.rows[s.Answer]++
				u.tokens[s.Answer] += n
			}
		}
		if s.Whole > 0 {
			u.tokens[s.Answer] = s.Whole
		}
	}
	u.norm.Episodes = float64(len(u.rows))
}

// learn takes one optimizer step on the given sequences, by shard. The loss is divided by totals
// over all of them, so that the result does not depend on shards and micro-batches.
func (a *Actor) learn(st *Stats, u *update, shards []Rollout) error {
	u.count(shards, a.maxNew)
	if u.norm.Seqs == 0 {
		return nil
	}
	sumsK, err := model.EachShard(a.m, func(k int) ([]shardSums, error) {
		return a.learnShard(u, shards[k])
	})
	if err != nil {
		return err
	}
	sums, finite := addShards(sumsK)
	if !finite { // nothing of this mini-batch reaches the weights
		st.skip()
		return a.opt.ZeroGrad()
	}
	if st.Passes == 0 {
		st.FirstRatioMin, st.FirstRatioMax = sums.RatioMin, sums.RatioMax
	}
	st.PolicyStats = st.PolicyStats.Add(sums.PolicyStats)
	st.KLShare += sums.KLShare(u.policy.Config().KLCoef)
	st.Entropy += sums.Entropy
	st.Soft = st.Soft.Add(sums.Soft)
	st.SoftKL += sums.SoftKL
	st.Passes++
	step, err := a.opt.Step()
	if err != nil {
		return fmt.Errorf("actor: optimizer: %w", err)
	}
	if step.Skipped {
		st.skip()
		return nil
	}
	st.Updates++
	st.Streak = 0
	st.GradNorm += step.GradNorm
	st.LR = step.LR
	return nil
}

// skip counts an optimizer step that was left out for a value that is not finite.
func (st *Stats) skip() {
	st.Skipped++
	st.Streak++
}

// shardSums holds the statistics of one shard of a mini-batch.
type shardSums struct {
	algos.PolicyStats
	Entropy float64 // sum over tokens, nats
	Soft    model.SoftFigures
	SoftKL  float64 // sum over the tokens of Soft, nats
}

// addShards adds up the shards' statistics, in the order of shards. finite is false if learnShard
// returned none for a shard, because a loss was not finite.
func addShards(sumsK [][]shardSums) (total shardSums, finite bool) {
	for _, sums := range sumsK {
		if len(sums) == 0 {
			return total, false
		}
		total.PolicyStats = total.PolicyStats.Add(sums[0].PolicyStats)
		total.Entropy += sums[0].Entropy
		total.Soft = total.Soft.Add(sums[0].Soft)
		total.SoftKL += sums[0].SoftKL
	}
	return total, true
}

// learnShard adds the gradient of the given sequences to the student's gradients, and returns their
// statistics: one element, or none if a loss is not finite.
func (a *Actor) learnShard(u *update, shard Rollout) ([]shardSums, error) {
	var sums shardSums
	for _, pack := range shard.packs(a.cfg.MaxTokenLen) {
		seed := func(logpST, entST, klST [][]float32) (dlogpST, dentST, dklST [][]float32,
			err error) {
			b, rows, err := a.pad(u, pack, logpST, entST, klST)
			if err != nil {
				return nil, nil, nil, err
			}
			res, err := u.policy.Step(b, u.norm)
			if err != nil {
				return nil, nil, nil, err
			}
			sums.PolicyStats = sums.PolicyStats.Add(res.PolicyStats)
			for _, row := range entST {
				for _, e := range row {
					sums.Entropy += float64(e)
				}
			}
			return unpad(res.DLogp, logpST, rows, b.T), unpad(res.DEntropy, logpST, rows, b.T),
				unpad(res.DKL, logpST, rows, b.T), nil
		}
		err := a.passes(u, pack, &sums, seed)
		if errors.Is(err, algos.ErrNotFinite) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("actor: %w", err)
		}
	}
	return []shardSums{sums}, nil
}

// packs divides the sequences into packs of at most so many tokens, each of one Teacher: the
// sequences of the first one's come first.
func (r Rollout) packs(tokens int) (packs []Rollout) {
	for rest := r; len(rest) > 0; {
		var own, others Rollout
		for _, s := range rest {
			if s.Teacher == rest[0].Teacher {
				own = append(own, s)
			} else {
				others = append(others, s)
			}
		}
		for _, at := range model.Packs(own.Seqs(), tokens) {
			packs = append(packs, model.Pick(own, at))
		}
		rest = others
	}
	return packs
}

// seeds computes an objective's gradients with respect to log-probabilities, entropies and exact KL
// of a pack, all [S][T]. klST is nil where no exact KL is in the loss.
type seeds func(logpST, entST, klST [][]float32) (dlogpST, dentST, dklST [][]float32, err error)

// passes passes a pack forward and backward: by its tokens' log-probabilities, by its soft labels,
// or by the exact KL to the target.
func (a *Actor) passes(u *update, pack Rollout, sums *shardSums, seed seeds) error {
	if u.policy == a.policy && a.cfg.ExactKL() {
		figures, err := a.exactKL(pack, u.temperature, seed)
		sums.Soft = sums.Soft.Add(figures)
		return err
	}
	if u.soft > 0 && pack.labelled() {
		return a.softGrad(sums, pack, u.soft, u.temperature, seed)
	}
	return a.m.LogProbGrad(pack.Seqs(), u.temperature,
		func(logpST, entST [][]float32) (dlogpST, dentST [][]float32, err error) {
			dlogpST, dentST, _, err = seed(logpST, entST, nil)
			return dlogpST, dentST, err
		})
}

// exactKL passes a pack forward and backward by log-probabilities and the exact KL to the target.
func (a *Actor) exactKL(pack Rollout, temperature float64, seed seeds) (model.SoftFigures, error) {
	seqs, read, labelsST := pack.Seqs(), pack.Seqs(), make([][]model.SoftLabel, len(pack))
	for i, s := range pack {
		if labelsST[i] = s.Labels; s.Read.IDs != nil {
			read[i] = s.Read
		}
	}
	target := a.target
	if teacher := pack[0].Teacher; teacher != nil {
		target.Policy = teacher
	}
	switch {
	case target.Policy == nil:
		return a.m.LogProbTailGrad(seqs, labelsST, temperature, seed)
	case target.Top > 0:
		return a.m.LogProbTopKGrad(seqs, target.Policy, read, target.Top, temperature, seed)
	}
	return model.SoftFigures{}, a.m.LogProbDivergenceGrad(seqs, target.Policy, read, target.Beta,
		temperature, seed)
}

// finish turns sums over mini-batches into means.
func (st *Stats) finish() {
	n := float64(max(st.Passes, 1))
	st.Loss, st.PGLoss, st.KLLoss, st.EntropyLoss =
		st.Loss/n, st.PGLoss/n, st.KLLoss/n, st.EntropyLoss/n
	st.KLShare /= n
	st.Entropy /= max(st.TokenSum, 1)
	st.GradNorm /= float64(max(st.Updates, 1))
}

// rowAt is a row of a micro-batch: trained tokens [From, To) of sequence seq of its pack.
type rowAt struct {
	seq int
	model.Span
}

// pad lays the rows of a pack into a rectangle [B][T]; at says which tokens each row holds. The
// rectangle is for the array library alone: its programs have static shapes. Rows and columns are
// rounded up, with mask 0, so that few shapes are ever compiled; unpad reverses it. klST is nil
// where no exact KL is in the loss.
func (a *Actor) pad(u *update, pack Rollout, logpST, entST,
	klST [][]float32) (b algos.PolicyBatch[float32], at []rowAt, err error) {
	t := 1
	for i, s := range pack {
		for _, row := range u.rowsOf(s) {
			at = append(at, rowAt{i, row})
			t = max(t, row.To-row.From)
		}
	}
	b.B, b.T = roundUp(len(at)), roundUp(t)
	matrix := func(fill func(dst []float32, row rowAt)) []float32 {
		x := make([]float32, b.B*b.T)
		for i, row := range at {
			fill(x[i*b.T:][:row.To-row.From], row)
		}
		return x
	}
	of := func(x [][]float32) []float32 { // by sequence of the pack
		return matrix(func(dst []float32, row rowAt) { copy(dst, x[row.seq][row.From:]) })
	}
	known := func(field func(*Sequence) []float32) []float32 { // nil: no sequence has it
		n := 0
		for _, s := range pack {
			if field(s) != nil || s.Seq.Trained() == 0 {
				n++
			}
		}
		switch {
		case !slices.ContainsFunc(pack, func(s *Sequence) bool { return field(s) != nil }):
			return nil
		case n < len(pack):
			err = fmt.Errorf("actor: %d of a pack's %d sequences lack log-probabilities that the others have", len(pack)-n, len(pack))
			return nil
		}
		return matrix(func(dst []float32, row rowAt) { copy(dst, field(pack[row.seq])[row.From:]) })
	}
	b.Logp = of(logpST)
	b.Mask = matrix(func(dst []float32, _ rowAt) {
		for t := range dst {
			dst[t] = 1
		}
	})
	if entST != nil {
		b.Entropy = of(entST)
	}
	if klST != nil {
		b.KL = of(klST)
	}
	if b.Old = known(func(s *Sequence) []float32 { return s.Old }); b.Old == nil && u.first {
		b.Old = b.Logp // a ratio of 1
	}
	b.Ref = known(func(s *Sequence) []float32 { return s.Ref })
	if pack[0].Adv != nil { // SFT has none
		b.Adv = matrix(func(dst []float32, row rowAt) {
			for t := range dst {
				dst[t] = float32(pack[row.seq].Adv[row.From+t])
			}
		})
	}
	b.Turns, b.Tokens = make([]float32, b.B), make([]float32, b.B)
	for i, row := range at {
		answer := pack[row.seq].Answer
		b.Turns[i], b.Tokens[i] = float32(u.rows[answer]), float32(u.tokens[answer])
	}
	sampled := known(func(s *Sequence) []float32 { return s.Sampled })
	if err == nil && sampled != nil && a.cfg.RolloutIS != "none" {
		b.RolloutWeight, err = algos.RolloutWeights(a.cfg.RolloutIS, a.cfg.RolloutISThresh, b.B,
			b.T, b.Old, sampled, b.Mask)
	}
	return b, at, err
}

// unpad copies the rows of a padded gradient back into the shape of like, by sequence; nil stays
// nil.
func unpad(x []float32, like [][]float32, at []rowAt, t int) [][]float32 {
	if x == nil {
		return nil
	}
	out := make([][]float32, len(like))
	for i := range like {
		out[i] = make([]float32, len(like[i]))
	}
	for i, row := range at {
		copy(out[row.seq][row.From:row.To], x[i*t:])
	}
	return out
}

// roundUp returns the next of 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, ...: a
// power of two or the middle of two.
func roundUp(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	if mid := p / 4 * 3; p > 8 && n <= mid {
		return mid
	}
	return p
}
