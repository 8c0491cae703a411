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
	"gad/trainer/encode"
	"gad/trainer/episode"
)

// episodes is the form of conversations with an environment (doc/environments.md): an answer is an
// episode of turns, in one sequence, or in several if contexts are rebuilt.
type episodes struct {
	single
	env  *env.Pool // nil before open
	stop func()    // ends the environment's programs at once
	all  tally     // of the step's episodes so far, over all draws of prompts and rounds of trees
}

// tally counts the episodes of a step, and those of them that the environment broke.
type tally struct {
	step, played, broken int
	first                string // the reason of the first broken one
	warned               int    // broken episodes that a warning has counted
}

// add adds episodes to the tally.
func (c *tally) add(played []episode.Episode) {
	c.played += len(played)
	for _, e := range played {
		if e.Fault != "" {
			c.broken, c.first = c.broken+1, cmp.Or(c.first, e.Fault)
		}
	}
}

// ofStep returns the tally of the present step.
func (f *episodes) ofStep() *tally {
	if f.all.step != f.t.step {
		f.all = tally{step: f.t.step}
	}
	return &f.all
}

// open starts the environment's programs. A command that is not an environment fails here, before
// the run folder is written.
func (f *episodes) open() error {
	t, c := f.t, f.t.cfg.Env
	return t.busy("starting the environment", func() (err error) {
		ctx, kill := context.WithCancel(context.Background())
		pool, err := env.Open(ctx, env.Options{Command: c.Command, Workers: c.Workers,
			Timeout: time.Duration(c.Timeout) * time.Second})
		if err != nil {
			kill()
			return fmt.Errorf("%w: %w", config.ErrConfig, err)
		}
		f.env, f.stop = pool, kill
		if t.step > 0 {
			return nil // tried when the run began
		}
		first := int(t.train.rows[0])
		b, err := t.enc.Batch(t.train.set, []int{first})
		if err != nil {
			return err
		}
		tasks, err := f.tasks(newRound(b, []int{first}))
		if err != nil {
			return err
		}
		if err = f.player().Try(ctx, tasks[0]); err != nil && !errors.Is(err, episode.ErrStart) {
			err = fmt.Errorf("%w: tried on row %d: %w", config.ErrConfig, first, err)
		}
		return err
	})
}

func (f *episodes) close() {
	if f.env != nil {
		f.env.Close()
		f.stop()
	}
}

func (f *episodes) kill() {
	if f.env != nil {
		f.stop()
	}
}

func (f *episodes) longest() int { return f.t.cfg.Env.MaxTokens }

// player returns a player of the run's environment at the present step.
func (f *episodes) player() *episode.Player {
	t, c := f.t, f.t.cfg
	return &episode.Player{Tok: t.tok, Env: f.env, Seed: t.seed(), Step: uint64(t.step),
		Limits: episode.Limits{Prompt: c.Data.MaxPrompt, Turn: c.Data.MaxResponse,
			Turns: c.Env.MaxTurns, Tokens: c.Env.MaxTokens}}
}

// sample plays rollout.n episodes for each prompt. A broken episode is no answer.
func (f *episodes) sample(m Metrics, r *round) error {
	t, n := f.t, f.t.cfg.Rollout.N
	tasks, err := f.tasks(r)
	if err != nil {
		return err
	}
	advance, done := t.rec.Progress("rollout", len(tasks)*t.enc.MaxResponse)
	defer done()
	played, err := f.playAll(t.context(), f.player(), tasks,
		func(i int) int { return i / n }, advance, f.ofStep())
	if err != nil {
		return err
	}
	if m["env/fault_frac"], err = f.faults(f.ofStep()); err != nil {
		return err
	}
	for i := range played {
		e := &played[i]
		if e.Fault != "" {
			continue
		}
		var seqs actor.Rollout
		for k, seq := range e.Seqs {
			seqs = append(seqs, &actor.Sequence{Seq: seq, Cut: e.Cut || e.Open, Sampled: e.Logp[k],
				Old: e.Logp[k]})
		}
		a := newAnswer(e.Cut || e.Open, seqs...)
		a.episode = e
		r.groups[i/n].answers = append(r.groups[i/n].answers, a)
	}
	f.describePlayed(m, r)
	return nil
}

// faults returns the share of broken episodes, and an error if there are too many. It warns of
// episodes that broke since its last warning.
func (f *episodes) faults(c *tally) (share float64, err error) {
	if err = f.faultError(c.broken, c.played, c.first); err == nil && c.broken > c.warned {
		c.warned = c.broken
		f.t.log.Warn(fmt.Sprintf("%d of %d episodes are broken and not counted; the first: %s",
			c.broken, c.played, c.first))
	}
	return float64(c.broken) / float64(c.played), err
}

// faultError returns the error that ends the run if n of of episodes are broken, more than
// env.max_faults allows; otherwise nil. first is the reason of the first.
func (f *episodes) faultError(n, of int, first string) error {
	if float64(n)/float64(of) <= f.t.cfg.Env.MaxFaults {
		return nil
	}
	return fault.As(fault.ErrRunning, fmt.Errorf("env: %d of %d episodes are broken, more than env.max_faults %g allows; the first: %s: mend the environment; the same command resumes from the last checkpoint", n, of, f.t.cfg.Env.MaxFaults, first))
}

// playAll plays tasks, and returns all episodes on every rank, in the order of the tasks. The tasks
// of a group are played on one rank. When ctx ends on one rank, the error is model.ErrStopped on
// all. The episodes are added to c, by which env.max_faults is checked.
func (f *episodes) playAll(ctx context.Context, p *episode.Player, tasks []episode.Task,
	group func(i int) int, advance func(int), c *tally) (all []episode.Episode, err error) {
	defer func() { c.add(all) }()
	ranks := f.t.ranks.Size()
	var mine []episode.Task
	for i, task := range tasks {
		if group(i)%ranks == f.t.ranks.Rank() {
			mine = append(mine, task)
		}
	}
	p.Broken = func(n int, first string) error {
		return f.faultError(c.broken+n, c.played+len(tasks), cmp.Or(c.first, first))
	}
	played, err := f.playMine(ctx, p, mine, advance)
	if ranks == 1 || err != nil && !errors.Is(err, model.ErrStopped) {
		return played, err
	}
	if stopped, err := f.t.ranks.Any("stop of a rollout", err != nil); err != nil || stopped {
		return nil, cmp.Or(err, model.ErrStopped)
	}
	parts, err := f.exchange(played)
	if err != nil {
		return nil, err
	}
	all = make([]episode.Episode, len(tasks))
	next := make([]int, ranks)
	for i := range all {
		from := group(i) % ranks
		all[i] = parts[from][next[from]]
		next[from]++
	}
	return all, nil
}

// tasks returns the tasks of a step, the tasks of a prompt adjacent. They have the same world: the
// environment's seed is the row's.
func (f *episodes) tasks(r *round) ([]episode.Task, error) {
	t := f.t
	var tasks []episode.Task
	for _, g := range r.groups {
		task, err := f.task(t.train.set, g.Row, t.seed(), uint64(t.step), uint64(g.key))
		if err != nil {
			return nil, err
		}
		for s := range t.cfg.Rollout.N {
			task.Sample = s
			tasks = append(tasks, task)
		}
	}
	return tasks, nil
}

// task returns the task of an episode on a row of set.
func (f *episodes) task(set *data.Set, at encode.Row, seed, step,
	key uint64) (episode.Task, error) {
	row, err := set.Row(at.Index)
	if err != nil {
		return episode.Task{}, err
	}
	task, err := episode.TaskOf(row, seed, step, key)
	if !f.t.cfg.Env.OtherStart {
		task.Begins = at.Prompt
	}
	return task, err
}

// playMine plays this rank's tasks.
func (f *episodes) playMine(ctx context.Context, p *episode.Player, tasks []episode.Task,
	advance func(int)) ([]episode.Episode, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	e, sampling, err := f.t.actor.Engine(
		p.Limits.Engine(f.t.cfg.Rollout.MaxNumSeqs, len(tasks)))
	if err != nil {
		return nil, err
	}
	defer e.Close()
	p.Progress, p.Slots = advance, f.t.cfg.Rollout.MaxNumSeqs
	if p.Sampling == (model.Sampling{}) {
		p.Sampling = sampling
	}
	return p.Play(ctx, e, tasks)
}

// exchange sends this rank's episodes to all ranks, and returns the episodes of each rank.
func (f *episodes) exchange(mine []episode.Episode) ([][]episode.Episode, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(mine); err != nil {
		return nil, fmt.Errorf("trainer: episodes: %w", err)
	}
	all, err := f.t.ranks.Gather("episodes", b.Bytes())
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

// credit adds the episodes' turns to in, each with its reward
//
//	w_d d_k/(sigma_d+1e-6) + w_e e_k/(sigma_e+1e-6)
//
// with the weights of the terms d and env, the environment's rewards e, and the standard deviations
// of the episodes' sums within the prompt's group. A standard deviation counts as 1 if these sums
// are equal, and if the reward has both terms and this term has no z. With critic.level=turn, d_k
// is the increase of the discriminator's score at turn k; otherwise the score is d of the last
// turn, and d of the others is 0, as in an environment that rewards the end alone.
func (f *episodes) credit(r *round, terms []config.Term, in *algos.AdvantageInput) {
	penalty := f.t.cfg.Env.InvalidPenalty
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
	answers := r.answers()
	scoreA := each(r, func(_ *group, a *answer) float64 { return float64(a.score) })
	sums := f.envRewards(r)
	sigmaD, sigmaE := spreadWithin(scoreA, in.Group), spreadWithin(sums, in.Group)
	in.Steps = make([][]algos.TurnStep, len(answers))
	for i, a := range answers {
		e, at := a.episode, 0
		rewards, d := e.Rewards(penalty), make([]float64, len(e.Turns))
		if d[len(d)-1] = scoreA[i]; a.turns != nil {
			d = critic.TurnRewards(a.turns)
		}
		for _, s := range a.seqs {
			for _, span := range s.Seq.Spans {
				k, n := len(in.Steps[i]), span.To-span.From
				in.Steps[i] = append(in.Steps[i], algos.TurnStep{Start: at, End: at + n,
					Anchor: e.Turns[k].Anchor,
					Reward: weigh(config.TermD, d[k], sigmaD[i]) +
						weigh(config.TermEnv, rewards[k], sigmaE[i])})
				at += n
			}
		}
	}
}

// envRewards returns the sum of the environment's rewards of each episode [A].
func (f *episodes) envRewards(r *round) []float64 {
	return each(r, func(_ *group, a *answer) float64 {
		return a.episode.Reward(f.t.cfg.Env.InvalidPenalty)
	})
}

// spreadWithin returns for each value the unbiased standard deviation of its group; 1 where the
// group's values are equal.
func spreadWithin(x []float64, group []int) []float64 {
	members := map[int][]float64{}
	for i, g := range group {
		members[g] = append(members[g], x[i])
	}
	out := make([]float64, len(x))
	for i, g := range group {
		if out[i] = 1; report.Varies(members[g]) {
			_, out[i] = report.Moments(members[g])
		}
	}
	return out
}

// validate plays one greedy episode on each validation row, in the same world at every step, and
// measures the student's NLL of the teacher's turns on these rows.
func (f *episodes) validate(m Metrics) error {
	t, c := f.t, f.t.cfg
	batch, err := t.enc.Batch(t.val.set, t.val.rows)
	if err != nil {
		return err
	}
	var tasks []episode.Task
	for _, row := range batch {
		task, err := f.task(t.val.set, row, c.Trainer.Seed, 0, uint64(row.Index))
		if err != nil {
			return err
		}
		tasks = append(tasks, task)
	}
	ctx := context.Background() // it is finished, but before the first step
	if t.step == 0 && t.ranks.Size() == 1 {
		ctx = t.context()
	}
	advance, done := t.rec.Progress("validation: episodes", len(tasks)*c.Env.MaxTokens)
	defer done()
	p := f.player()
	p.Sampling = model.Sampling{TopP: 1} // temperature 0
	var count tally
	played, err := f.playAll(ctx, p, tasks, func(i int) int { return i }, advance, &count)
	if err != nil {
		return err
	}
	if _, err := f.faults(&count); err != nil {
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
		s := report.Sample{Row: batch[i].Index, Prompt: batch[i].PromptText,
			StudentScore: math.NaN(), TeacherScore: math.NaN(), Advantage: math.NaN(),
			Turns: sampleTurns(e, nil)}
		s.Student = transcript(s.Turns)
		if s.Teacher, err = teacherTranscript(t.val.set, s.Row); err != nil {
			return err
		}
		samples = append(samples, s)
	}
	logp, _, err := t.actor.Model().AllLogProbs(batch.Teachers(), 1, c.Actor.MaxTokenLen)
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
	m["val/env_reward"], _ = report.Moments(rewards)
	m["val/teacher_nll"] = nll / n
	t.noteValidation(m)
	if len(samples) == 0 {
		return nil
	}
	return t.rec.Samples(report.InValidation, t.step, samples)
}

// teacherTranscript returns the teacher's turns on a row as text.
func teacherTranscript(set *data.Set, at int) (string, error) {
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

// describe adds the metric of the environment's rewards to m.
func (f *episodes) describe(m Metrics, r *round) error {
	m["reward/env_mean"], _ = report.Moments(f.envRewards(r))
	return nil
}

func (f *episodes) fillSample(s *report.Sample, a *answer) (err error) {
	s.Turns = sampleTurns(a.episode, a.turns)
	s.Student = transcript(s.Turns)
	s.Teacher, err = teacherTranscript(f.t.train.set, s.Row)
	return err
}

func (*episodes) validationText(m Metrics) string {
	return fmt.Sprintf("greedy reward %.3f, NLL of the teacher's turns %.3f", m["val/env_reward"],
		m["val/teacher_nll"])
}

func (f *episodes) validationInputs() (acts bool, of []any) {
	c := f.t.cfg
	return true, []any{c.Env.Command, c.Env.OtherStart, c.Trainer.Seed}
}

func (f *episodes) whole(_ *group, a *answer) model.Seq {
	return f.t.enc.Ending().Turns(a.episode.Script, a.episode.Open)
}

// describePlayed adds the metrics of a round's episodes to m, unless all of them are broken.
func (f *episodes) describePlayed(m Metrics, r *round) {
	if len(r.answers()) == 0 {
		return
	}
	var turns, invalid, context, new, computed float64
	for _, a := range r.answers() {
		e := a.episode
		turns += float64(len(e.Turns))
		for _, turn := range e.Turns {
			if !turn.Valid {
				invalid++
			}
		}
		context, new, computed =
			context+float64(e.Context), new+float64(e.New), computed+float64(e.Computed)
	}
	m["episode/turns_mean"] = turns / float64(len(r.answers()))
	m["episode/invalid_frac"] = invalid / max(turns, 1)
	m["perf/prefill_ratio"] = computed / max(new, 1)
	m["episode/context_mean"] = context / max(turns, 1)
}

// transcript returns a conversation as text, a line per turn.
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

// sampleTurns returns an episode's turns for a sample, with the discriminator's scores by turn;
// scoreK may be nil.
func sampleTurns(e *episode.Episode, scoreK []float32) (list []report.Turn) {
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

// Below: the methods of branchable, for trees.

// branchPoints returns the numbers of tokens at the ends of turns.
func (f *episodes) branchPoints(_, _ int, a *answer) (list []int) {
	at := 0
	for _, span := range a.episode.Script.Spans {
		at += span.To - span.From
		list = append(list, at)
	}
	return list
}

func (f *episodes) ownSeqs(g *group, x *leaf, _ []model.Span) (list actor.Rollout) {
	for i, seq := range x.episode.Seqs {
		if len(seq.Spans) == 0 { // a context without turns of its own
			continue
		}
		if i == 0 {
			seq.Shared = x.episode.Script.Prompt()
		}
		list = append(list, &actor.Sequence{Seq: seq, Sampled: x.episode.Logp[i]})
	}
	return list
}

func (f *episodes) mark(a *answer, tokens int) int { return turnCount(a.episode, tokens) }

func (f *episodes) grower(g *grove) grower {
	return &branchedEpisodes{f: f, g: g, kept: episode.Keep(f.env)}
}

// branchedEpisodes samples the episodes of trees.
type branchedEpisodes struct {
	f    *episodes
	g    *grove
	kept *episode.Kept // this rank's environments, held open while the trees grow
}

// grow samples episodes, the episodes of a tree on one rank. A branch forks its parent's
// environment, or replays the parent's turns in a new one, which leads to the same state. A broken
// episode is no answer.
func (b *branchedEpisodes) grow(list []offshoot, number []int) error {
	f, t, g := b.f, b.f.t, b.g
	var tasks []episode.Task
	for i, x := range list {
		of := g.r.groups[x.prompt]
		task, err := f.task(t.train.set, of.Row, t.seed(), uint64(t.step), uint64(of.key))
		if err != nil {
			return err
		}
		if task.Sample = number[i]; x.At > 0 {
			parent := g.leavesP[x.prompt][x.Parent]
			task.Replay = parent.episode.Replay(parent.sample, turnCount(parent.episode, x.At))
		}
		tasks = append(tasks, task)
	}
	advance, done := t.rec.Progress("rollout", len(tasks)*t.enc.MaxResponse)
	defer done()
	player := f.player()
	player.Kept = b.kept
	tree := func(i int) int { return list[i].prompt*g.f.c.Trees + list[i].Tree }
	played, err := f.playAll(t.context(), player, tasks, tree, advance, f.ofStep())
	if err != nil {
		return err
	}
	for i, x := range list {
		if e := &played[i]; e.Fault == "" {
			g.add(x, &leaf{own: e.Trained(), sample: number[i],
				answer: &answer{ids: e.Script.TrainedIDs(), cut: e.Cut || e.Open, episode: e}})
		}
	}
	return nil
}

// end adds the metrics of all sampled episodes to m.
func (b *branchedEpisodes) end(m Metrics, r *round) (err error) {
	if m["env/fault_frac"], err = b.f.faults(b.f.ofStep()); err != nil {
		return err
	}
	var turns, shared, again float64
	for _, a := range r.answers() {
		e := a.episode
		turns, shared, again = turns+float64(len(e.Turns)), shared+float64(e.Before),
			again+float64(e.Again)
	}
	m["perf/env_replay_frac"] = again / max(turns-shared+again, 1)
	b.f.describePlayed(m, r)
	return nil
}

func (b *branchedEpisodes) close() { b.kept.Close() }

// turnCount returns the number of an episode's first turns that have the given number of tokens
// together.
func turnCount(e *episode.Episode, tokens int) (k int) {
	for ; tokens > 0; k++ {
		tokens -= e.Script.Spans[k].To - e.Script.Spans[k].From
	}
	return k
}
