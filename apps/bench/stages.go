package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"gad/actor"
	"gad/algos"
	"gad/critic"
	"gad/internal/compute"
	estimate "gad/internal/compute/cost"
	"gad/model"
	"gad/reference"
	"gad/trainer/config"
)

// Stage is the measurement of a stage of training, or of a part of one, at the shape's size.
type Stage struct {
	Name string `json:"stage"`
	Size string `json:"size"`
	Stat
	Use
	Tokens    int     `json:"tokens"` // tokens that passed through the model, or were sampled
	PerSecond float64 `json:"tokens_per_second"`
	Allocs    uint64  `json:"allocs"`                 // heap objects of a run after the first
	AllocB    uint64  `json:"alloc_bytes"`            // their size
	Peak      int64   `json:"peak_bytes"`             // of the device's memory, since the device was opened
	Planned   int64   `json:"plan_bytes"`             // the same by model.Config.Plan
	Cold      bool    `json:"cold,omitempty"`         // only the first run was measured
	Note      string  `json:"note,omitempty"`         // why there is no measurement
	Unfit     string  `json:"does_not_fit,omitempty"` // of a prediction: why it does not fit

	Parts []Stage `json:"parts,omitempty"` // parts of a GAD step, in order
	Ops   []Used  `json:"ops,omitempty"`   // operations of one more run; on a CPU, and in predictions

	Steps *estimate.Graphs `json:"graphs,omitempty"` // of a prediction
}

// game is the models and inputs of the stages: a student, later a discriminator and a
// reference, with random weights, called as a step of the trainer calls them.
type game struct {
	be      compute.Backend
	cfg     model.Config
	load    Load
	base    *model.Model // frozen, for all roles; nil without LoRA
	actor   *actor.Actor
	critic  *critic.Critic
	ref     *reference.Policy
	sft     []model.Seq // of an SFT step; all but the first token is response
	prompts [][]int32   // [Prompts] or [Samples], whichever is more
	rows    []uint64
	teach   []model.Seq // [Prompts]
	step    int
}

// ids returns n tokens, other ones for every salt.
func ids(n, salt, vocab int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*7919 + salt*104729 + 1) % vocab)
	}
	return out
}

// newGame returns a game with inputs and a student.
func newGame(be compute.Backend, c model.Config, load Load) (*game, error) {
	g := &game{be: be, cfg: c, load: load}
	for i := range load.Seqs {
		g.sft = append(g.sft, model.Answer(ids(load.Length, i, c.Vocab), 1))
	}
	for i := range max(load.Samples, load.Prompts) {
		g.prompts, g.rows =
			append(g.prompts, ids(load.Prompt, 1000+i, c.Vocab)), append(g.rows, uint64(i))
	}
	for i := range load.Prompts {
		g.teach = append(g.teach,
			model.Answer(
				append(ids(load.Prompt, 1000+i, c.Vocab), ids(load.New, 2000+i, c.Vocab)...),
				load.Prompt))
	}
	if load.Rank > 0 {
		var err error
		if g.base, err = model.New(be, c,
			model.Options{Kind: model.LM, Repeat: true, Quant: load.Weights}); err != nil {
			return nil, err
		}
	}
	m, err := g.model(model.Options{Kind: model.LM, Trainable: true, Recompute: load.Recompute,
		Repeat: true})
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	roll := actor.DefaultRollout()
	roll.N, roll.MaxNumSeqs = load.N, load.Slots
	ac := actor.DefaultConfig()
	ac.MaxTokenLen = load.Micro
	if g.actor, err = actor.New(m, ac, roll, 1000, load.New); err != nil {
		return nil, errors.Join(err, m.Close(), g.close())
	}
	return g, nil
}

// model returns a model with its own weights, or with adapters on the base.
func (g *game) model(o model.Options) (*model.Model, error) {
	if g.base == nil {
		return model.New(g.be, g.cfg, o)
	}
	o.LoRA = g.load.lora()
	return g.base.Adapt(o)
}

// complete adds discriminator and reference.
func (g *game) complete() error {
	if g.critic != nil && g.ref != nil {
		return nil
	}
	cc := critic.DefaultConfig()
	cc.MaxTokenLen = g.load.Micro
	m, err := g.model(model.Options{Kind: model.Scorer, Trainable: true,
		Recompute: g.load.Recompute, Repeat: true, ScoreInit: cc.ScoreInit, Turns: g.actor.Model()})
	if err != nil {
		return err
	}
	m.Share(g.actor.Model())
	if g.critic, err = critic.New(m, cc, 1000*cc.Updates(g.load.Prompts), 1); err != nil {
		return errors.Join(err, m.Close())
	}
	if m, err = g.model(model.Options{Kind: model.LM, Repeat: true}); err != nil {
		return err
	}
	m.Share(g.actor.Model())
	g.ref = reference.New(m, g.load.Micro)
	return nil
}

// close frees all models.
func (g *game) close() error {
	var errs []error
	if g.actor != nil {
		errs = append(errs, g.actor.Close())
	}
	if g.critic != nil {
		errs = append(errs, g.critic.Close())
	}
	if g.ref != nil {
		errs = append(errs, g.ref.Close())
	}
	if g.base != nil {
		errs = append(errs, g.base.Close())
	}
	return errors.Join(errs...)
}

// sftStep takes one step of cross entropy.
func (g *game) sftStep() error {
	_, err := g.actor.SFT(g.sft)
	return err
}

// generate samples one answer to each of Samples prompts, all at the same time.
func (g *game) generate() error {
	g.step++
	_, err := g.actor.Model().Generate(g.prompts[:g.load.Samples], g.rows[:g.load.Samples],
		model.SampleOptions{N: 1, MaxNew: g.load.New,
			Slots: g.load.Samples, Seed: 1, Step: uint64(g.step),
			Sampling: compute.Sampling{Temperature: 1}}, nil)
	return err
}

// settings returns the settings of a run with the load, as far as they decide the passes of a step.
func (l Load) settings() config.Config {
	c := config.StageDefaults(config.Train)
	c.Data.TrainBatchSize, c.Rollout.N = l.Prompts, l.N
	c.Actor.LoRA, c.Critic.LoRA = l.lora(), l.lora()
	return c
}

// titles lists the names of a step's parts in reports.
var titles = map[string]string{"old_logp": "old log-probabilities",
	"update_critic": "critic update",
	"ref_logp":      "reference log-probabilities", "update_actor": "actor update"}

// part is a part of a GAD step; advantages have no passes.
type part struct {
	name   string
	passes []config.Pass
}

// parts returns the parts of a GAD step that every step has, in order: advantages come before the
// last.
func (g *game) parts() (list []part) {
	c := g.load.settings()
	for _, x := range c.Passes(config.Train, g.load.Prompts, g.be.Alone()) {
		if x.When != config.Always {
			continue
		}
		name := cmp.Or(titles[x.Part], x.Part)
		if n := len(list); n > 0 && list[n-1].name == name {
			list[n-1].passes = append(list[n-1].passes, x)
			continue
		}
		list = append(list, part{name, []config.Pass{x}})
	}
	return slices.Insert(list, len(list)-1, part{name: "advantages"})
}

// gadStep takes a step of the game (trainer/step.go) without rows, metrics and checkpoints. It
// calls done with the name and the seconds of each part at its end.
func (g *game) gadStep(done func(part string, seconds float64)) error {
	g.step++
	var (
		r      actor.Rollout
		scoreS []float32
		err    error
	)
	rows := make([]int, g.load.Prompts)
	for i := range rows {
		rows[i] = i
	}
	run := map[string]func() error{
		"rollout": func() error {
			r, err = g.actor.Rollout(context.Background(), g.prompts[:g.load.Prompts], nil,
				actor.Key{Seed: 1, Step: g.step, Rows: rows}, nil)
			return err
		},
		// where the actor's are not equal to the sampler's, nor the update's own
		"old log-probabilities": func() error {
			c, later := g.load.settings(), r
			for first := c.FirstRatios(config.Train, g.load.Prompts); later[0].Group < first; {
				later[0].Old, later = nil, later[1:]
			}
			return g.actor.RecomputeOld(later)
		},
		"critic update": func() error {
			st, err := g.critic.Update(
				critic.Batch{Step: g.step, Students: r.Seqs(), Group: r.Groups(),
					Teachers: g.teach, Skip: make([]bool, len(r))})
			scoreS = st.ScoreS
			return err
		},
		"reference log-probabilities": func() error {
			refST, err := g.ref.LogProbs(r.Seqs(), actor.DefaultRollout().Temperature)
			if err == nil {
				r.SetRef(refST)
			}
			return err
		},
		"advantages": func() error {
			maskST := r.Mask()
			scores := make([]float64, len(scoreS))
			for s, x := range scoreS {
				scores[s] = float64(x)
			}
			advST, err := algos.Advantages(algos.AdvantageConfig{},
				algos.AdvantageInput{Scores: scores, Group: r.Groups(), Mask: maskST})
			if err == nil {
				r.SetAdv(advST)
			}
			return err
		},
		"actor update": func() error {
			_, err = g.actor.Update(r)
			return err
		},
	}
	for _, part := range g.parts() {
		began, f := time.Now(), run[part.name]
		if f == nil {
			return fmt.Errorf("bench: %s: a part of a step that bench does not run", part.name)
		}
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		done(part.name, time.Since(began).Seconds())
	}
	return nil
}

// work is the work of a stage: the least operations, the least bytes that pass memory, and tokens.
type work struct {
	compute.Cost
	tokens int
}

// plus returns the sum of two works.
func (w work) plus(v work) work { return work{w.Plus(v.Cost), w.tokens + v.tokens} }

// pass returns the work of a forward pass over n sequences of length tokens, heads of which have
// logits. times scales the operations: 3 with the backward pass.
func (g *game) pass(times float64, n, length, heads int) work {
	return g.continuation(times, 0, n, length, heads)
}

// continuation returns the work of pass where each sequence continues a prefix of before tokens,
// which are not computed again.
func (g *game) continuation(times float64, before, n, length, heads int) work {
	tokens := float64(n * length)
	f := tokens*g.cfg.FLOPsPerToken(float64(before)+float64(length+1)/2, false) +
		2*float64(heads)*float64(g.cfg.Vocab*g.cfg.Hidden)
	return work{compute.Cost{FLOPs: times * f}, n * length}
}

// sampling returns the work of n answers to each of prompts: prompts pass once, then New-1 steps
// compute a token of every answer. Each step reads all weights, and the keys and values that it
// attends to, a prompt's once for all its answers; it reads and writes the states of all answers.
func (g *game) sampling(prompts, n int) work {
	l, c, e := g.load, g.cfg, elementsOf(g.be)
	w := g.pass(1, prompts, l.Prompt, prompts)
	answers := float64(prompts * n)
	steps := float64(l.New - 1)
	middle := float64(l.Prompt) + float64(l.New)/2 // positions that a token sees, on average
	w.FLOPs += answers * steps * c.FLOPsPerToken(middle, true)
	cached := float64(prompts*l.Prompt) + answers*float64(l.New)/2
	w.Bytes = steps * (e.Weight*float64(c.ParamCount(model.LM)) +
		e.Narrow*cached*float64(c.Cached()) + 2*e.Wide*answers*float64(c.Stated()))
	w.tokens = prompts * n * l.New
	return w
}

// works returns the work of each part of a GAD step, and the sum, without the least bytes, which
// only sampling has.
func (g *game) works() (works map[string]work, all work) {
	l, c := g.load, g.load.settings()
	works = map[string]work{}
	for _, part := range g.parts() {
		var w work
		for _, x := range part.passes {
			if x.Kind == config.Sample {
				w = w.plus(g.sampling(l.Prompts, x.Students))
				continue
			}
			n, heads := l.Prompts*x.Answers(), 0
			if x.Network != config.Discriminator {
				heads = n * l.New
			}
			times := c.Forwards(x) // prompts pass once for all their answers
			prompts, answers :=
				g.pass(times, l.Prompts, l.Prompt, 0), g.continuation(times, l.Prompt, n, l.New, heads)
			w = w.plus(prompts).plus(answers)
		}
		works[part.name], all = w, all.plus(w)
	}
	all.Bytes = 0
	return works, all
}

// stagesOf returns the stages without measurements, with the memory planned for them.
func stagesOf(be compute.Footprint, c model.Config, load Load) (sft, gen, gad Stage) {
	sft = Stage{Name: "SFT step", Size: fmt.Sprintf("%d x %d tokens", load.Seqs, load.Length)}
	gen = Stage{Name: "generation",
		Size: fmt.Sprintf("%d answers x %d tokens", load.Samples, load.New)}
	gad = Stage{Name: "GAD step",
		Size: fmt.Sprintf("%d prompts x %d answers x %d tokens", load.Prompts, load.N, load.New)}

	// tokens of the longest pass, which is the discriminator's
	longest := load.Prompts * (load.Prompt + (load.N+1)*load.New)
	lm := model.PlanOptions{Trainable: true, Recompute: load.Recompute, LoRA: load.lora(),
		Quant:  load.Weights,
		Tokens: load.Seqs * load.Length,
		Slots:  max(load.Samples, min(load.Prompts*load.N, load.Slots)),
		N:      1, Prompts: max(load.Samples, load.Prompts*load.N), PromptTokens: load.Prompt,
		MaxNew: load.New}
	var base int64
	if load.Rank > 0 {
		base = c.Plan(be, model.PlanOptions{Quant: load.Weights}).Total()
	}
	needs := base + c.Plan(be, lm).Total()
	lm.Tokens = max(lm.Tokens, min(longest, load.Micro))
	plans := []model.Plan{c.Plan(be, lm),
		c.Plan(be,
			model.PlanOptions{Kind: model.Scorer, Trainable: true, Recompute: load.Recompute,
				LoRA: lm.LoRA, Quant: load.Weights, Tokens: lm.Tokens}),
		c.Plan(be, model.PlanOptions{LoRA: lm.LoRA, Quant: load.Weights, Tokens: lm.Tokens})}
	whole, scratch := base+model.SharedActivations(plans...), int64(0)
	for _, p := range plans {
		whole, scratch = whole+p.Total()-p.Activations-p.Scratch, max(scratch, p.Scratch)
	}
	// student and discriminator learn in turn
	whole += scratch - min(plans[0].Gradients, plans[1].Gradients)
	sft.Planned, gen.Planned, gad.Planned = needs, needs, whole
	return sft, gen, gad
}

// measureStages times the stages: an SFT step and generation with a fifth of the budget each, a GAD
// step with the rest.
func measureStages(be compute.Backend, l Limits, c model.Config, load Load,
	budget time.Duration) ([]Stage, error) {
	began := time.Now()
	left := func() time.Duration { return budget - time.Since(began) }
	be, prof := withProfile(be)
	load = load.resolved(be, c)
	sft, gen, gad := stagesOf(be, c, load)
	needs, whole := sft.Planned, gad.Planned
	room := be.Available()
	note := func(needs int64) string {
		if room > 0 && needs > room {
			return fmt.Sprintf("not measured: needs %.1f GB of %.1f GB", float64(needs)/1e9,
				float64(room)/1e9)
		}
		return ""
	}
	if sft.Note = note(needs); sft.Note != "" {
		gen.Note, gad.Note = sft.Note, note(whole)
		return []Stage{sft, gen, gad}, nil
	}
	g, err := newGame(be, c, load)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	err = func() error {
		sftWork := g.pass(load.lora().TrainPasses(), load.Seqs, load.Length,
			load.Seqs*(load.Length-1))
		if err := sft.measure(g, l, sftWork, budget/5, left(), g.sftStep); err != nil {
			return err
		}
		if err := gen.measure(g, l, g.sampling(load.Samples, 1), budget/5, left(),
			g.generate); err != nil {
			return err
		}
		for _, s := range []struct {
			*Stage
			run func() error
		}{{&sft, g.sftStep}, {&gen, g.generate}} {
			if prof != nil && s.Note == "" && s.Seconds < left().Seconds() {
				var err error
				if s.Ops, err = prof.measure(l, s.run); err != nil {
					return err
				}
			}
		}
		if gad.Note = note(whole); gad.Note != "" {
			return nil
		}
		if err := g.complete(); err != nil {
			return err
		}
		works, all := g.works()
		var order []string
		times := map[string][]float64{}
		run := func() error {
			order = order[:0]
			return g.gadStep(func(part string, seconds float64) {
				order, times[part] = append(order, part), append(times[part], seconds)
			})
		}
		if err := gad.measure(g, l, all, left(), left()*5/4, run); err != nil {
			return err
		}
		for _, name := range order {
			ts := times[name]
			if !gad.Cold {
				ts = ts[1:]
			}
			part := Stage{Name: name, Stat: summary(ts)}
			part.count(l, works[name])
			gad.Parts = append(gad.Parts, part)
		}
		return nil
	}()
	if err := errors.Join(err, g.close()); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return []Stage{sft, gen, gad}, nil
}

// measure runs a stage once, unless it would not end within left at half of the limit's speed, then
// again as often as share allows. It keeps the figures of the later runs; of the first where there
// was time for no other.
func (s *Stage) measure(g *game, l Limits, w work, share, left time.Duration,
	run func() error) error {
	least, _ := l.least(w.Cost)
	if expected := 2 * least; expected > left.Seconds() {
		s.Note = fmt.Sprintf("not measured: would take about %.3g s, with %.3g s left: "+
			"raise --seconds", expected, max(0, left.Seconds()))
		return nil
	}
	var times []float64
	var last runtime.MemStats
	for began := time.Now(); len(times) < 12; {
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		at := time.Now()
		if err := run(); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		took := time.Since(at)
		runtime.ReadMemStats(&last)
		s.Allocs, s.AllocB = last.Mallocs-before.Mallocs, last.TotalAlloc-before.TotalAlloc
		times = append(times, took.Seconds())
		if time.Since(began)+took > share {
			break
		}
	}
	if s.Cold = len(times) == 1; !s.Cold {
		times = times[1:]
	}
	s.Stat = summary(times)
	_, s.Peak = g.be.Memory()
	s.count(l, w)
	return nil
}

// count sets the stage's tokens, rate and share from its work and its time.
func (s *Stage) count(l Limits, w work) {
	s.Use, s.Tokens = l.use(w.Cost, s.Seconds), w.tokens
	if s.Seconds > 0 {
		s.PerSecond = float64(w.tokens) / s.Seconds
	}
}
