// Package actor is the student: it answers prompts and learns by the policy objective
// (actor.go), by the teacher's answers (Actor.SFT) or by preferences (dpo.go).
//
// Legend: P prompts, G answers each, S = P*G sequences, T response tokens.
package actor

import (
	"errors"
	"fmt"
	"slices"

	"gad/algos"
	"gad/model"
)

// Actor is the student with its optimizer.
type Actor struct {
	// Stop is called while Rollout samples: true ends it with model.ErrStopped. It may be nil.
	Stop func() bool
	// Reference is the frozen policy, which Update reads where Config.ExactKL, and Beta says which
	// divergence from it is meant (model.LogProbDivergenceGrad); New makes it 1, KL to Reference.
	// Top above 0 means the loss of soft labels instead: its Top most probable tokens and a tail.
	Reference *model.Model
	Beta      float64
	Top       int

	cfg    Config
	roll   RolloutConfig
	m      *model.Model
	opt    *model.Optimizer
	policy *algos.Policy[float32]
	sft    *algos.Policy[float32]
	maxNew int
	merges bool         // sampling reads merged weights
	merged *model.Model // the merged weights; nil until the first rollout
}

// Open loads the student from the model folder dir. updates is the number of
// optimizer steps planned, over which the learning rate is scheduled: Config.Updates
// in a step. maxNew is the longest answer in tokens. With cfg.LoRA new adapters are drawn from seed
// 0.
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

// New wraps a student that is already loaded.
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
	merges := m.Base() != nil && (roll.Merged == "true" || roll.Merged == "auto" && !m.Alone())
	return &Actor{Beta: 1, cfg: cfg, roll: roll, m: m, opt: opt, policy: policy, sft: sft,
		maxNew: maxNew,
		merges: merges}, nil
}

// Model is the student's network.
func (a *Actor) Model() *model.Model { return a.m }

// Optimizer is the student's AdamW state.
func (a *Actor) Optimizer() *model.Optimizer { return a.opt }

// Close frees weights and compiled objectives.
func (a *Actor) Close() error {
	errs := []error{a.policy.Close(), a.sft.Close()}
	if a.merged != nil {
		errs = append(errs, a.merged.Close())
	}
	return errors.Join(append(errs, a.m.Close())...)
}

// Merges reports whether sampling reads weights with the adapters added. Its log-probabilities
// then differ from the trainer's by rounding.
func (a *Actor) Merges() bool { return a.merges }

// sampler is the model that sampling reads: the student, or its weights with the present
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

// Rollout is the student's answers: G to each of P prompts. Answer g of prompt p is sequence
// p*G+g, or in chunks episode p*G+g, each chunk a sequence.
type Rollout struct {
	Seqs      []model.Seq // [S] prompt and response, with the end token if the answer has one
	Group     []int       // [S] prompt of each
	Episode   []int       // [S] episode of each, ascending; nil: each sequence is its own episode
	Truncated []bool      // [S] cut at the limit
	SampledST [][]float32 // log-probabilities as the sampler saw them
	OldST     [][]float32 // denominator of the ratio: SampledST, or after Old the trainer's
	EntST     [][]float32 // entropies, nats; nil until Old is called
	// tokens [S] of the answer that a sequence ends, where the first of them are context: its
	// tree's other answers have learned them. A mean over an answer's tokens counts them; nil:
	// there are none
	Whole []int
	// what Actor.Reference reads with an exact KL: the same answers behind its own prompts; nil:
	// Seqs
	Read []model.Seq
	// soft labels of the answers' tokens, in the place of Actor.Reference; nil: that gives them
	LabelsST [][]model.SoftLabel
}

// Mask gives the responses' lengths [S] and their mask [S][T], 1 on response
// tokens, T the longest.
func (r *Rollout) Mask() (lenS []int, maskST [][]float64) {
	t := 1
	for _, seq := range r.Seqs {
		lenS = append(lenS, seq.Trained())
		t = max(t, seq.Trained())
	}
	for _, n := range lenS {
		row := make([]float64, t)
		for i := range row[:n] {
			row[i] = 1
		}
		maskST = append(maskST, row)
	}
	return lenS, maskST
}

// Key is the key of a rollout's random numbers: a draw is a function of seed, step, row, sample
// and position. Rows are the numbers of the prompts.
type Key struct {
	Seed uint64
	Step int
	Rows []int // [P]
}

// Rollout samples G answers to each prompt. progress, if not nil, is called
// with the number of tokens made since its last call.
func (a *Actor) Rollout(prompts [][]int32, eos []int32, key Key,
	progress func(int)) (*Rollout, error) {
	out, err := a.Answers(prompts, a.roll.N, nil, eos, key, progress)
	if err != nil {
		return nil, err
	}
	r := &Rollout{}
	for p, answers := range out {
		for g, c := range answers {
			at := 0
			for _, seq := range a.roll.Thought().Seqs(prompts[p], c.IDs) {
				n := seq.Trained()
				r.Seqs, r.Group = append(r.Seqs, seq), append(r.Group, p)
				r.Truncated = append(r.Truncated, c.Truncated)
				r.SampledST = append(r.SampledST, c.Logp[at:at+n:at+n])
				at += n
				if a.roll.Chunk > 0 {
					r.Episode = append(r.Episode, p*len(answers)+g)
				}
			}
		}
	}
	r.OldST = r.SampledST
	return r, nil
}

// Answers samples n answers to each prompt [P][n], as Rollout does. With begun [P] and n 1 it goes
// on with answers whose first tokens stand at the prompts' ends.
func (a *Actor) Answers(prompts [][]int32, n int, begun []model.Begun, eos []int32, key Key,
	progress func(int)) ([][]model.Completion, error) {
	rows := make([]uint64, len(key.Rows))
	for i, r := range key.Rows {
		rows[i] = uint64(r)
	}
	m, err := a.sampler()
	if err != nil {
		return nil, fmt.Errorf("actor: rollout: %w", err)
	}
	out, err := m.GenerateAll(prompts, rows, model.SampleOptions{
		N: n, MaxNew: a.maxNew, Chunks: a.roll.Thought(), Begun: begun, Slots: a.roll.MaxNumSeqs,
		EOS: eos, Seed: key.Seed, Step: uint64(key.Step), Stop: a.Stop, Sampling: a.sampling(),
	}, progress)
	if err != nil {
		return nil, fmt.Errorf("actor: rollout: %w", err)
	}
	return out, nil
}

// Engine is an engine of the weights that Rollout samples from, and how it samples.
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

func (a *Actor) sampling() model.Sampling {
	return model.Sampling{Temperature: a.roll.Temperature, TopK: a.roll.TopK, TopP: a.roll.TopP,
		MinP: a.roll.MinP}
}

// Old sets OldST and EntST: log-probabilities and entropies under the weights that sampled,
// computed by the trainer's forward pass.
func (a *Actor) Old(r *Rollout) (err error) {
	r.OldST, r.EntST, err = a.m.AllLogProbs(r.Seqs, a.roll.Temperature, a.cfg.MaxTokenLen)
	if err != nil {
		return fmt.Errorf("actor: %w", err)
	}
	return nil
}

// NeedsReference reports whether Update reads reference log-probabilities.
func (a *Actor) NeedsReference() bool { return a.cfg.HasKL() && !a.cfg.ExactKL() }

// Stats describe an update: sums over all its mini-batches, divided by Passes
// where they are means.
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

// Update takes the policy's optimizer steps: ppo_epochs passes over the
// batch, one step for each mini-batch of prompts. advST is zero where a token
// does not count; refST is read only where NeedsReference. Rows of the objective are sequences, or
// their spans with ratio_level=turn.
func (a *Actor) Update(r *Rollout, advST [][]float64, refST [][]float32) (Stats, error) {
	prompts := r.Group[len(r.Group)-1] + 1
	mini := a.cfg.MiniBatch(prompts)
	var st Stats
	for range a.cfg.PPOEpochs {
		for lo := 0; lo < prompts; lo += mini {
			n := min(mini, prompts-lo)
			shards := make([][]int, a.m.Shards())
			for s, p := range r.Group {
				if p >= lo && p < lo+n {
					k := a.m.Shard(p-lo, n)
					shards[k] = append(shards[k], s)
				}
			}
			b := policyRows{seqs: r.Seqs, read: r.Read, labels: r.LabelsST, episode: r.Episode,
				whole: r.Whole, byTurn: a.cfg.ByTurn(), old: r.OldST, ref: refST,
				sampled: r.SampledST, adv: advST}
			if err := a.learn(&st, a.policy, b, shards, a.roll.Temperature); err != nil {
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

// SoftSFT is SFT with soft labels: see Soft. nil is SFT.
func (a *Actor) SoftSFT(seqs []model.Seq, soft *Soft) (Stats, error) {
	var st Stats
	shards := make([][]int, a.m.Shards())
	for i := range seqs {
		k := a.m.Shard(i, len(seqs))
		shards[k] = append(shards[k], i)
	}
	if err := a.learn(&st, a.sft, policyRows{seqs: seqs, soft: soft}, shards, 1); err != nil {
		return st, err
	}
	st.finish()
	return st, nil
}

// policyRows are the inputs of an objective, by sequence; nil: the objective does not read them.
type policyRows struct {
	seqs              []model.Seq
	read              []model.Seq // by Actor.Reference, with an exact KL; nil: seqs
	labels            [][]model.SoftLabel
	episode           []int // of each sequence; nil: it is an episode of its own
	whole             []int // Rollout.Whole
	byTurn            bool  // each span is a row of the objective; otherwise each sequence
	old, ref, sampled [][]float32
	adv               [][]float64
	soft              *Soft // labels of the sequences; nil: all are hard
	// rows with tokens of each episode, and those tokens; learn counts them
	turns, tokens map[int]int
}

// episodeOf is the episode of sequence s.
func (in policyRows) episodeOf(s int) int {
	if in.episode == nil {
		return s
	}
	return in.episode[s]
}

// rowsOf cuts the trained tokens of sequence s into the rows of the objective.
func (in policyRows) rowsOf(s int) (rows []model.Span) {
	seq := in.seqs[s]
	if !in.byTurn {
		return []model.Span{{From: 0, To: seq.Trained()}}
	}
	at := 0
	for _, p := range seq.Spans {
		rows = append(rows, model.Span{From: at, To: at + p.To - p.From})
		at += p.To - p.From
	}
	return rows
}

// learn is one optimizer step on the given rows, by shard. The loss is divided by totals over all
// rows, so that the result does not depend on shards and micro-batches.
func (a *Actor) learn(st *Stats, policy *algos.Policy[float32], in policyRows, shards [][]int,
	temperature float64) error {
	norm := algos.Norm{FixedLen: float64(a.maxNew)}
	in.turns, in.tokens = map[int]int{}, map[int]int{}
	for _, s := range slices.Concat(shards...) {
		for _, row := range in.rowsOf(s) {
			if n := row.To - row.From; n > 0 {
				norm.Tokens += float64(n)
				norm.Seqs++
				in.turns[in.episodeOf(s)]++
				in.tokens[in.episodeOf(s)] += n
			}
		}
		if in.whole != nil {
			in.tokens[in.episodeOf(s)] = in.whole[s]
		}
	}
	norm.Episodes = float64(len(in.turns))
	if norm.Seqs == 0 {
		return nil
	}
	sumsK, err := model.EachShard(a.m, func(k int) ([]shardSums, error) {
		return a.learnShard(policy, in, shards[k], norm, temperature)
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
	st.KLShare += sums.KLShare(policy.Config().KLCoef)
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

// shardSums are the statistics of one shard of a mini-batch.
type shardSums struct {
	algos.PolicyStats
	Entropy float64 // sum over tokens, nats
	Soft    model.SoftFigures
	SoftKL  float64 // sum over the tokens of Soft, nats
}

// addShards adds up the shards' statistics, in the order of shards. finite is false if
// learnShard had none for some shard.
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

// learnShard adds the gradient of the given rows to the student's gradients, and returns their
// statistics: one element, or none if a loss is not finite.
func (a *Actor) learnShard(policy *algos.Policy[float32], in policyRows, rows []int,
	norm algos.Norm, temperature float64) ([]shardSums, error) {
	seqs := model.Pick(in.seqs, rows)
	var sums shardSums
	for _, pack := range model.Packs(seqs, a.cfg.MaxTokenLen) {
		seed := func(logpST, entST, klST [][]float32) (dlogpST, dentST, dklST [][]float32,
			err error) {
			b, at, err := a.pad(logpST, entST, klST, in, model.Pick(rows, pack))
			if err != nil {
				return nil, nil, nil, err
			}
			res, err := policy.Step(b, norm)
			if err != nil {
				return nil, nil, nil, err
			}
			sums.PolicyStats = sums.PolicyStats.Add(res.PolicyStats)
			for _, row := range entST {
				for _, e := range row {
					sums.Entropy += float64(e)
				}
			}
			return unpad(res.DLogp, logpST, at, b.T), unpad(res.DEntropy, logpST, at, b.T),
				unpad(res.DKL, logpST, at, b.T), nil
		}
		var err error
		if policy == a.policy && a.cfg.ExactKL() {
			own := model.Pick(seqs, pack)
			read := own
			if in.read != nil {
				read = model.Pick(in.read, model.Pick(rows, pack))
			}
			var soft model.SoftFigures
			switch {
			case in.labels != nil:
				soft, err = a.m.LogProbTailGrad(own,
					model.Pick(in.labels, model.Pick(rows, pack)), temperature, seed)
			case a.Top > 0:
				soft, err = a.m.LogProbTopKGrad(own, a.Reference, read, a.Top, temperature, seed)
			default:
				err = a.m.LogProbDivergenceGrad(own, a.Reference, read, a.Beta, temperature, seed)
			}
			sums.Soft = sums.Soft.Add(soft)
		} else if own := model.Pick(rows, pack); in.soft.any(own) {
			err = a.softGrad(&sums, model.Pick(seqs, pack), in.soft, own, temperature, seed)
		} else {
			err = a.m.LogProbGrad(model.Pick(seqs, pack), temperature,
				func(logpST, entST [][]float32) (dlogpST, dentST [][]float32, err error) {
					dlogpST, dentST, _, err = seed(logpST, entST, nil)
					return dlogpST, dentST, err
				})
		}
		if errors.Is(err, algos.ErrNotFinite) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("actor: %w", err)
		}
	}
	return []shardSums{sums}, nil
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

// pad lays the rows of a micro-batch one below the other. pack is the sequences of the pack, at
// where each row comes from; klST is nil where no exact KL is in the loss. Rows and columns are
// rounded up, with mask 0, so that few shapes of the objective are ever compiled.
func (a *Actor) pad(logpST, entST, klST [][]float32, in policyRows,
	pack []int) (b algos.PolicyBatch[float32], at []rowAt, err error) {
	t := 1
	for i, s := range pack {
		for _, row := range in.rowsOf(s) {
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
	if in.old != nil {
		b.Old = of(model.Pick(in.old, pack))
	}
	if in.ref != nil {
		b.Ref = of(model.Pick(in.ref, pack))
	}
	if in.adv != nil {
		b.Adv = matrix(func(dst []float32, row rowAt) {
			for t := range dst {
				dst[t] = float32(in.adv[pack[row.seq]][row.From+t])
			}
		})
	}
	b.Turns, b.Tokens = make([]float32, b.B), make([]float32, b.B)
	for i, row := range at {
		episode := in.episodeOf(pack[row.seq])
		b.Turns[i], b.Tokens[i] = float32(in.turns[episode]), float32(in.tokens[episode])
	}
	if in.sampled != nil && a.cfg.RolloutIS != "none" {
		b.RolloutWeight, err = algos.RolloutWeights(a.cfg.RolloutIS, a.cfg.RolloutISThresh, b.B,
			b.T, b.Old, of(model.Pick(in.sampled, pack)), b.Mask)
	}
	return b, at, err
}

// unpad puts the rows of a padded gradient back into the shape of like, by sequence.
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

// roundUp is n up to the next of 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, ...: a
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
