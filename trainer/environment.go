package trainer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gad/actor"
	"gad/algos"
	"gad/critic"
	"gad/data"
	"gad/internal/env"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/episode"
)

// This file is what a step has beside that of single answers where the student acts in an
// environment (doc/environments.md): episodes are played, their tokens are put together and taken
// apart, and the environment's rewards are added up.

// openEnvironment starts the environment's programs. One that is none is found out before anything
// is written.
func (t *Trainer) openEnvironment() error {
	c := t.cfg.Env
	if !t.cfg.Acts(t.Stage) {
		return nil
	}
	return t.busy("starting the environment", func() (err error) {
		ctx, kill := context.WithCancel(context.Background())
		pool, err := env.Open(ctx, env.Options{Command: c.Command, Workers: c.Workers,
			Timeout: time.Duration(c.Timeout) * time.Second})
		if err != nil {
			kill()
			return fmt.Errorf("%w: %w", config.ErrConfig, err)
		}
		t.env, t.killEnv = pool, kill
		if t.step > 0 {
			return nil // it has played
		}
		r := &round{}
		if r.batch, err = t.enc.Batch(t.set, []int{int(t.rows[0])}); err != nil {
			return err
		}
		tasks, err := t.tasks(r, []int{int(t.rows[0])})
		if err != nil {
			return err
		}
		if err = t.player().Try(ctx, tasks[0]); err != nil && !errors.Is(err, episode.ErrStart) {
			err = fmt.Errorf("%w: tried on row %d: %w", config.ErrConfig, t.rows[0], err)
		}
		return err
	})
}

// player plays in the run's environment.
func (t *Trainer) player() *episode.Player {
	c := t.cfg
	return &episode.Player{Tok: t.tok, Env: t.env, Seed: t.seed(), Step: uint64(t.step),
		Limits: episode.Limits{Prompt: c.Data.MaxPrompt, Turn: c.Data.MaxResponse,
			Turns: c.Env.MaxTurns, Tokens: c.Env.MaxTokens}}
}

func (t *Trainer) closeEnvironment() {
	if t.env != nil {
		t.env.Close()
		t.killEnv()
	}
}

// act plays rollout.n episodes for each prompt of r. A broken one is in none of r's lists.
func (t *Trainer) act(m Metrics, r *round, keys []int, advance func(int)) error {
	tasks, err := t.tasks(r, keys)
	if err != nil {
		return err
	}
	played, err := t.together(t.context(), t.player(), tasks,
		func(i int) int { return i / t.cfg.Rollout.N }, advance)
	if err != nil {
		return err
	}
	if m["env/fault_frac"], err = t.faults(played); err != nil {
		return err
	}
	r.roll = &actor.Rollout{}
	for i, e := range played {
		if e.Fault == "" {
			r.add(e, i/t.cfg.Rollout.N)
		}
	}
	r.roll.OldST, r.roll.Episode = r.roll.SampledST, episodeOf(r.episodes)
	t.describeEpisodes(m, r)
	return nil
}

// context is Run's; outside of it, one that does not end.
func (t *Trainer) context() context.Context {
	if t.ctx == nil {
		return context.Background()
	}
	return t.ctx
}

// faults is the share of episodes that the environment has broken. Too many end the run.
func (t *Trainer) faults(played []episode.Episode) (share float64, err error) {
	n, first := 0, ""
	for _, e := range played {
		if e.Fault != "" {
			if n++; n == 1 {
				first = e.Fault
			}
		}
	}
	if err = t.tooMany(n, len(played), first); err == nil && n > 0 {
		t.log.Warn(fmt.Sprintf("%d of %d episodes are broken and not counted; the first: %s", n,
			len(played), first))
	}
	return float64(n) / float64(len(played)), err
}

// tooMany is the error that ends a run of whose episodes n are broken, the first for a reason; nil
// where env.max_faults allows them.
func (t *Trainer) tooMany(n, of int, first string) error {
	if float64(n)/float64(of) <= t.cfg.Env.MaxFaults {
		return nil
	}
	return fault.As(fault.ErrRunning, fmt.Errorf("env: %d of %d episodes are broken, more than env.max_faults %g allows; the first: %s: mend the environment; the same command resumes from the last checkpoint", n, of, t.cfg.Env.MaxFaults, first))
}

// together plays tasks, those of a group on one rank, and gives every rank the episodes of all, in
// the order of the tasks. When ctx ends on one rank, it is model.ErrStopped on all.
func (t *Trainer) together(ctx context.Context, p *episode.Player, tasks []episode.Task,
	group func(i int) int, advance func(int)) ([]episode.Episode, error) {
	ranks := t.ranks.Size()
	var mine []episode.Task
	for i, task := range tasks {
		if group(i)%ranks == t.ranks.Rank() {
			mine = append(mine, task)
		}
	}
	p.Broken = func(n int, first string) error { return t.tooMany(n, len(tasks), first) }
	played, err := t.playMine(ctx, p, mine, advance)
	if ranks == 1 || err != nil && !errors.Is(err, model.ErrStopped) {
		return played, err
	}
	if stopped, err := t.ranks.Any("stop of a rollout", err != nil); err != nil || stopped {
		return nil, cmp.Or(err, model.ErrStopped)
	}
	parts, err := t.exchange(played)
	if err != nil {
		return nil, err
	}
	all, next := make([]episode.Episode, len(tasks)), make([]int, ranks)
	for i := range all {
		from := group(i) % ranks
		all[i] = parts[from][next[from]]
		next[from]++
	}
	return all, nil
}

// add adds an episode to the answers of a prompt.
func (r *round) add(e episode.Episode, prompt int) {
	cut := e.Cut || e.Open
	r.episodes, r.group, r.cut =
		append(r.episodes, e), append(r.group, prompt), append(r.cut, cut)
	for i, seq := range e.Seqs {
		r.roll.Seqs, r.roll.SampledST =
			append(r.roll.Seqs, seq), append(r.roll.SampledST, e.Logp[i])
		r.roll.Group, r.roll.Truncated = append(r.roll.Group, prompt), append(r.roll.Truncated, cut)
	}
}

// tasks are the episodes of a step, those of a prompt side by side. They have the same world: the
// environment's seed is the row's.
func (t *Trainer) tasks(r *round, keys []int) ([]episode.Task, error) {
	var tasks []episode.Task
	for p, at := range r.batch.Rows {
		row, err := t.set.Row(at)
		if err != nil {
			return nil, err
		}
		task, err := episode.TaskOf(row, t.seed(), uint64(t.step), uint64(keys[p]))
		if err != nil {
			return nil, err
		}
		if !t.cfg.Env.OtherStart {
			task.Begins = r.batch.Prompts[p]
		}
		for s := range t.cfg.Rollout.N {
			task.Sample = s
			tasks = append(tasks, task)
		}
	}
	return tasks, nil
}

// playMine plays this rank's episodes.
func (t *Trainer) playMine(ctx context.Context, p *episode.Player, tasks []episode.Task,
	advance func(int)) ([]episode.Episode, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	e, sampling, err := t.actor.Engine(
		p.Limits.Engine(t.cfg.Rollout.MaxNumSeqs, len(tasks)))
	if err != nil {
		return nil, err
	}
	defer e.Close()
	p.Progress, p.Slots = advance, t.cfg.Rollout.MaxNumSeqs
	if p.Sampling == (model.Sampling{}) {
		p.Sampling = sampling
	}
	return p.Play(ctx, e, tasks)
}

// exchange gives every rank the episodes of all.
func (t *Trainer) exchange(mine []episode.Episode) ([][]episode.Episode, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(mine); err != nil {
		return nil, fmt.Errorf("trainer: episodes: %w", err)
	}
	all, err := t.ranks.Gather("episodes", b.Bytes())
	if err != nil {
		return nil, err
	}
	parts := make([][]episode.Episode, len(all))
	for i, raw := range all {
		if err := gob.NewDecoder(bytes.NewReader(raw)).Decode(&parts[i]); err != nil {
			return nil, fmt.Errorf("trainer: episodes of rank %d: %w", i, err)
		}
	}
	return parts, nil
}

// episodeOf is the episode of each sequence.
func episodeOf(list []episode.Episode) (of []int) {
	for i, e := range list {
		for range e.Seqs {
			of = append(of, i)
		}
	}
	return of
}

// sequences are those of each answer.
func (r *round) sequences() [][]model.Seq {
	out := make([][]model.Seq, len(r.group))
	for s, seq := range r.roll.Seqs {
		a := s
		if r.roll.Episode != nil {
			a = r.roll.Episode[s]
		}
		out[a] = append(out[a], seq)
	}
	return out
}

// written are the tokens that the student wrote in each answer, in a tree those that it shares with
// others too.
func (r *round) written() [][]int32 {
	if r.branches != nil {
		return r.wroteA
	}
	out := make([][]int32, len(r.group))
	for a, seqs := range r.sequences() {
		for _, seq := range seqs {
			out[a] = append(out[a], seq.TrainedIDs()...)
		}
	}
	return out
}

// firsts are the answers' first sequences, as indices.
func (r *round) firsts() []int {
	out, s := make([]int, len(r.group)), 0
	for a, seqs := range r.sequences() {
		out[a] = s
		s += len(seqs)
	}
	return out
}

// mask gives the answers' trained tokens [A] and their mask [A][T], T the most.
func (r *round) mask() (lenA []int, maskAT [][]float64) {
	most := 1
	lenA = make([]int, len(r.group))
	for a, seqs := range r.sequences() {
		for _, seq := range seqs {
			lenA[a] += seq.Trained()
		}
		most = max(most, lenA[a])
	}
	for _, n := range lenA {
		row := make([]float64, most)
		for i := range row[:n] {
			row[i] = 1
		}
		maskAT = append(maskAT, row)
	}
	return lenA, maskAT
}

// byAnswer joins the rows of an answer's sequences.
func (r *round) byAnswer(xST [][]float32) [][]float32 {
	if r.roll.Episode == nil {
		return xST
	}
	out := make([][]float32, len(r.group))
	for s, a := range r.roll.Episode {
		out[a] = append(out[a], xST[s]...)
	}
	return out
}

// bySequence takes the rows of answers apart; the inverse of byAnswer. Rows keep their padding
// where they are whole.
func (r *round) bySequence(xAT [][]float64) [][]float64 {
	if r.roll.Episode == nil {
		return xAT
	}
	out, at := make([][]float64, len(r.roll.Seqs)), make([]int, len(r.group))
	for s, a := range r.roll.Episode {
		n := r.roll.Seqs[s].Trained()
		out[s] = xAT[a][at[a] : at[a]+n]
		at[a] += n
	}
	return out
}

// acted are the sums [A] of what the environment gave for the turns of each episode.
func (t *Trainer) acted(m Metrics, r *round) []float64 {
	sums := make([]float64, len(r.episodes))
	for a := range r.episodes {
		sums[a] = r.episodes[a].Reward(t.cfg.Env.InvalidPenalty)
	}
	m["reward/env_mean"], _, _ = moments(sums)
	return sums
}

// steps are the turns of episodes with the reward of each,
//
//	w_d d_k/(sigma_d+1e-6) + w_e e_k/(sigma_e+1e-6)
//
// with the weights of the terms d and env, the environment's rewards e, and the standard deviations
// of the episodes' sums within the prompt's group, or 1 where both terms are there and
// this one has no z. With critic.level=turn d_k is what a turn adds to the
// discriminator's score; otherwise the score is the last turn's d and the others' are 0, as of an
// environment that rewards the end alone.
func (t *Trainer) steps(r *round) [][]algos.TurnStep {
	if r.episodes == nil || r.branches != nil {
		return nil
	}
	terms := t.cfg.Rewarded(t.Stage)
	has := func(name string) bool {
		return slices.ContainsFunc(terms, func(x config.Term) bool { return x.Name == name })
	}
	both := has(config.TermD) && has(config.TermEnv)
	weigh := func(name string, x, sigma float64) float64 {
		for _, term := range terms {
			if term.Name != name {
				continue
			}
			if both && !term.Z {
				return term.Weight * x
			}
			return term.Weight * x / (sigma + 1e-6)
		}
		return 0
	}
	sums := make([]float64, len(r.episodes))
	for a := range r.episodes {
		sums[a] = r.episodes[a].Reward(t.cfg.Env.InvalidPenalty)
	}
	sigmaD, sigmaE := spreadWithin(float64s(r.scoreA), r.group), spreadWithin(sums, r.group)
	out := make([][]algos.TurnStep, len(r.episodes))
	for a := range r.episodes {
		e, at := &r.episodes[a], 0
		rewards, d := e.Rewards(t.cfg.Env.InvalidPenalty), make([]float64, len(e.Turns))
		if d[len(d)-1] = float64(r.scoreA[a]); r.turnA != nil {
			d = critic.TurnRewards(r.turnA[a])
		}
		for _, seq := range e.Seqs {
			for _, span := range seq.Spans {
				k, n := len(out[a]), span.To-span.From
				out[a] = append(out[a], algos.TurnStep{Start: at, End: at + n,
					Anchor: e.Turns[k].Anchor,
					Reward: weigh(config.TermD, d[k], sigmaD[a]) +
						weigh(config.TermEnv, rewards[k], sigmaE[a])})
				at += n
			}
		}
	}
	return out
}

// spreadWithin is the unbiased standard deviation of each one's group.
func spreadWithin(x []float64, group []int) []float64 {
	members := map[int][]float64{}
	for i, g := range group {
		members[g] = append(members[g], x[i])
	}
	out := make([]float64, len(x))
	for i, g := range group {
		_, out[i], _ = moments(members[g])
	}
	return out
}

// validateActing plays one episode greedily in the world of each validation row, which is the same
// at every step, and measures how likely the student finds what the teacher did there.
func (t *Trainer) validateActing(m Metrics) error {
	c := t.cfg
	batch, err := t.enc.Batch(t.val, t.valRows)
	if err != nil {
		return err
	}
	var tasks []episode.Task
	for p, at := range batch.Rows {
		row, err := t.val.Row(at)
		if err != nil {
			return err
		}
		task, err := episode.TaskOf(row, c.Trainer.Seed, 0, uint64(at))
		if err != nil {
			return err
		}
		if !c.Env.OtherStart {
			task.Begins = batch.Prompts[p]
		}
		tasks = append(tasks, task)
	}
	ctx := context.Background() // it is finished, but before the first step
	if t.step == 0 && t.ranks.Size() == 1 {
		ctx = t.context()
	}
	advance, done := t.rec.Progress("validation: episodes", len(tasks)*c.Env.MaxTokens)
	defer done()
	p := t.player()
	p.Sampling = model.Sampling{TopP: 1} // temperature 0
	played, err := t.together(ctx, p, tasks, func(i int) int { return i }, advance)
	if err != nil {
		return err
	}
	if _, err := t.faults(played); err != nil {
		return err
	}
	var rewards []float64
	var samples []report.Sample
	for i := range played {
		e := &played[i]
		if e.Fault != "" {
			continue
		}
		rewards = append(rewards, e.Reward(c.Env.InvalidPenalty))
		if len(samples) == c.Trainer.SaveSamples {
			continue
		}
		s := report.Sample{Row: batch.Rows[i], Prompt: batch.PromptText[i],
			StudentScore: math.NaN(), TeacherScore: math.NaN(), Advantage: math.NaN(),
			Turns: t.spoken(e, nil)}
		s.Student = transcript(s.Turns)
		if s.Teacher, err = t.acts(t.val, s.Row); err != nil {
			return err
		}
		samples = append(samples, s)
	}
	logp, _, err := t.actor.Model().AllLogProbs(batch.Teachers, 1, c.Actor.MaxTokenLen)
	if err != nil {
		return err
	}
	nll, n := 0.0, 0.0
	for _, row := range logp {
		for _, x := range row {
			nll -= float64(x)
			n++
		}
	}
	m["val/env_reward"], _, _ = moments(rewards)
	m["val/teacher_nll"] = nll / n
	t.noteValidation(m)
	if len(samples) == 0 {
		return nil
	}
	return t.rec.Samples(report.InValidation, t.step, samples)
}

// acts is what the teacher did on a row, as text.
func (t *Trainer) acts(set *data.Set, at int) (string, error) {
	row, err := set.Row(at)
	if err != nil {
		return "", err
	}
	var turns []report.Turn
	for _, m := range row.Turns {
		turns = append(turns, report.Turn{Role: m.Role, Text: m.Content})
	}
	return transcript(turns), nil
}

// describeEpisodes adds the metrics of what was played.
func (t *Trainer) describeEpisodes(m Metrics, r *round) {
	var turns, invalid, context, new, computed, shared, again float64
	for _, e := range r.episodes {
		turns += float64(len(e.Turns))
		for _, turn := range e.Turns {
			if !turn.Valid {
				invalid++
			}
		}
		context, new, computed =
			context+float64(e.Context), new+float64(e.New), computed+float64(e.Computed)
		shared, again = shared+float64(e.Before), again+float64(e.Again)
	}
	if r.branches != nil {
		m["perf/env_replay_frac"] = again / max(turns-shared+again, 1)
	}
	m["episode/turns_mean"] = turns / float64(len(r.episodes))
	m["episode/invalid_frac"] = invalid / max(turns, 1)
	m["perf/prefill_ratio"] = computed / max(new, 1)
	m["episode/context_mean"] = context / max(turns, 1)
}

// transcript is a conversation as text.
func transcript(turns []report.Turn) string {
	var b strings.Builder
	for i, turn := range turns {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(turn.Role + ": " + turn.Text)
	}
	return b.String()
}

// spoken is an episode for a reader, with the discriminator's scores of its turns, where it gives
// them.
func (t *Trainer) spoken(e *episode.Episode, scoreK []float32) (list []report.Turn) {
	for _, m := range e.Spoken {
		list = append(list, report.Turn{Role: m.Role, Text: m.Content})
	}
	for k, turn := range e.Turns {
		m := &list[turn.At]
		span := e.Script.Spans[k]
		m.IDs, m.Reward, m.Valid = e.Script.IDs[span.From:span.To], &turn.Reward, &turn.Valid
		if scoreK == nil {
			continue
		}
		if score := float64(scoreK[k]); !math.IsNaN(score) && !math.IsInf(score, 0) {
			m.Score = &score
		}
	}
	return list
}
