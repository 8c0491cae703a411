package trainer

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"gad/checkpoint"
	"gad/data"
	"gad/internal/compute"
	"gad/internal/compute/cost"
	"gad/internal/compute/cpu"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
)

// ErrTooLarge reports a run that cannot fit this machine.
var ErrTooLarge = errors.New("does not fit")

// Plan is what a run will take, known before it starts.
type Plan struct {
	Stage       Stage
	Memory      []Item // bytes, all held at once
	MemoryFree  int64  // bytes available now; 0 is unknown
	Host        []Item // bytes in the host's memory, beside a GPU's
	HostFree    int64
	Fits        string // if Memory or Host is more than that: settings that would fit, or that none would
	Fit         *Fit   // what FitPlan found
	Disk        []Item
	DiskFree    int64
	Rows, Steps int
	PromptMean  float64 // tokens
	AnswerMean  float64 // tokens, of the teacher, cut at the limit
	ValRows     int     // that a validation reads
	StepTime    []Timed // an estimate from a short measurement
	AtLimit     float64 // seconds of a step in which the student writes as much as it may; 0 is not known
	Beside      []Often // what a run does beside its steps
	Measured    string  // on what
	Predicted   bool    // StepTime is a model's of a GPU that this machine may not have

	limit      int   // of an answer, tokens
	checkpoint int64 // bytes of one
	validated  bool  // the run that this one starts from has measured the student that it ended with

	actorGradient, criticGradient int64 // bytes
	actorWeights, criticWeights   int64 // bytes that are computed with

	ranks     int // of the run; 0 is 1
	footprint model.Footprint
	shape     model.Config
}

// Item is a named number of bytes.
type Item struct {
	Name  string
	Bytes int64
	Note  string
}

// Timed is a named stretch of a step.
type Timed struct {
	Name    string
	Seconds float64
}

func total(items []Item) (n int64) {
	for _, i := range items {
		n += i.Bytes
	}
	return n
}

// NewPlan reads the model's configuration and the data, times a slice of the
// model on be, and adds up what a run of the stage takes there. Without the
// device, be is nil: then the memory is f's, and nothing is timed; or it is a model of its
// cost (package cost), on which a step is predicted. free, unless 0,
// is the memory to plan for in the place of what the device has, in bytes.
func NewPlan(be model.Backend, f model.Footprint, free int64, fsys checkpoint.FS, c Config, stage Stage) (*Plan, error) {
	return newPlan(be, f, free, fsys, c, stage, false)
}

// FitPlan is NewPlan of c with the settings that Plan.Fit adds to it. Where none fit, the
// plan is c's, and has no Fit.
func FitPlan(be model.Backend, f model.Footprint, free int64, fsys checkpoint.FS, c Config, stage Stage) (*Plan, error) {
	return newPlan(be, f, free, fsys, c, stage, true)
}

func newPlan(be model.Backend, f model.Footprint, free int64, fsys checkpoint.FS, c Config, stage Stage, fit bool) (*Plan, error) {
	fsys = vfs.OrDisk(fsys)
	if be == nil && f == nil {
		return nil, fmt.Errorf("%w: trainer: a plan has neither a backend nor a footprint: give device.Options.Footprint", ErrConfig)
	}
	if complaint := c.offloads(stage); complaint != "" {
		return nil, fmt.Errorf("%w: plan: %s", ErrConfig, complaint)
	}
	dir, measured := c.Model.Path, false
	if c.Trainer.Resume != "" {
		ckpt, _, err := FindCheckpoint(fsys, c.Trainer.Resume)
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(ckpt, "actor")
		if s, err := readState(fsys, ckpt); err == nil { // what else it says, the run itself checks
			measured = s.Validated != nil
		}
	}
	if dir == "" {
		return nil, fmt.Errorf("%w: plan: no student: give model.path (flag --model)", ErrConfig)
	}
	if err := CheckModelFolder(fsys, dir); err != nil {
		return nil, err
	}
	shape, err := model.ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	if err := c.Rollout.Validate(); err != nil && stage != SFT {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if err := c.checkSizes(stage, dir, shape); err != nil {
		return nil, err
	}
	if err := c.checkBatch(c.stepAnswers(stage), c.Data.MaxPrompt+c.Data.MaxResponse, cpu.MemoryAvailable()); err != nil {
		return nil, err
	}
	p := &Plan{Stage: stage, PromptMean: float64(c.Data.MaxPrompt), AnswerMean: float64(c.Data.MaxResponse), Steps: c.Trainer.TotalSteps, validated: measured}
	if len(c.Data.TrainFiles) > 0 {
		if err := p.measureData(dir, c); err != nil {
			return nil, err
		}
	}
	if p.MemoryFree = free; be != nil {
		f = be
		if free == 0 {
			p.MemoryFree = be.Available()
		}
	}
	if t := c.Trainer; stage.hasCritic() && t.CriticWarmupUntil > 0 { // at the most
		p.Steps = max(p.Steps, t.CriticWarmup) + max(0, t.CriticWarmupMax-t.CriticWarmup)
	}
	card, predicted := be.(*cost.Backend)
	if be != nil && !predicted && c.Trainer.Device == "cuda" { // another machine's is not known
		p.HostFree = cpu.MemoryAvailable()
	}
	if fit && p.MemoryFree == 0 {
		return nil, fmt.Errorf("%w: plan: --fit: the memory of the device is not known: give --memory GB", ErrConfig)
	}
	p.footprint, p.shape = f, shape
	p.take(f, shape, c)
	if p.tooLarge() || fit {
		// What an earlier stage kept in float32 is read in float32.
		found := p.fit(f, shape, c, c.Trainer.Resume != "")
		p.Fits = p.sentence(found, f, shape, c)
		if fit && found.fits {
			p.Fit, c = found, found.config
			p.take(f, shape, c)
		}
	}
	p.planDisk(shape, c)
	p.limit = c.Data.MaxResponse
	if c.Trainer.Output != "" {
		if p.DiskFree, err = fsys.Free(c.Trainer.Output); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errors.ErrUnsupported) {
			return nil, fmt.Errorf("plan: %w", err)
		}
	}
	if be == nil || p.tooLarge() || be.Available() > 0 && total(p.Memory) > be.Available() {
		return p, nil // nothing to time it on, or the measurement itself might not fit
	}
	timed := func() error { return p.measureTime(be, shape, c) }
	if predicted {
		timed = func() error { return p.predictTime(card, shape, c) }
	}
	if err := timed(); err != nil {
		return p, err
	}
	p.beside(c)
	return p, nil
}

// measureData reads up to 512 rows for their mean lengths.
func (p *Plan) measureData(dir string, c Config) error {
	tok, err := LoadTokenizer(dir)
	if err != nil {
		return err
	}
	set, err := data.OpenFiles(c.Data.TrainFiles, c.Data.Options(nil))
	if err != nil {
		return err
	}
	defer set.Close()
	enc := encoder{tok: tok, maxPrompt: c.Data.MaxPrompt, maxResponse: c.Data.MaxResponse}
	const most = 512
	var prompts, answers, n float64
	for i := 0; i < set.Len(); i += max(1, set.Len()/most) {
		r, err := set.Row(i)
		if err != nil {
			return err
		}
		ids, err := enc.Prompt(r)
		if err != nil {
			return fmt.Errorf("data: row %d: %w", r.Index, err)
		}
		answer, _ := enc.answer(r.Teacher)
		prompts, answers, n = prompts+float64(len(ids)), answers+float64(len(answer)), n+1
	}
	if err := c.checkRows(set.Len()); err != nil {
		return err
	}
	p.Rows, p.PromptMean, p.AnswerMean = set.Len(), prompts/max(n, 1), answers/max(n, 1)
	if len(c.Data.ValFiles) > 0 {
		o := c.Data.Options(nil)
		o.Split = c.Data.ValSplit
		val, err := data.OpenFiles(c.Data.ValFiles, o)
		if err != nil {
			return fmt.Errorf("data.val_files: %w", err)
		}
		defer val.Close()
		p.ValRows = min(c.Trainer.ValRows, val.Len())
	}
	if p.Steps == 0 {
		p.Steps = (c.Trainer.TotalEpochs*set.Len() + c.Data.TrainBatchSize - 1) / c.Data.TrainBatchSize
	}
	return nil
}

// take notes what a run of c takes.
func (p *Plan) take(f model.Footprint, shape model.Config, c Config) {
	p.Memory, p.Host = p.planMemory(f, shape, c), p.planHost(f, shape, c)
}

func (p *Plan) tooLarge() bool {
	return p.MemoryFree > 0 && total(p.Memory) > p.MemoryFree || p.hostTooLarge()
}

func (p *Plan) hostTooLarge() bool { return p.HostFree > 0 && total(p.Host) > p.HostFree }

// merges reports whether sampling reads a merged copy of the weights.
func (c *Config) merges(stage Stage) bool {
	return c.Actor.LoRA.On() && stage.hasCritic() && (c.Rollout.Merged == "true" || c.Rollout.Merged == "auto" && c.Trainer.Device == "cuda")
}

// student and discriminator are what is trained, without passes.
func (c *Config) student() model.PlanOptions {
	return model.PlanOptions{Kind: model.LM, Trainable: true, LoRA: c.Actor.LoRA, Recompute: c.Actor.Recompute,
		Moments8: c.Actor.Optim.Moments == "8bit", Offload: c.Actor.Optim.Offload}
}

func (c *Config) discriminator() model.PlanOptions {
	return model.PlanOptions{Kind: model.Scorer, Trainable: true, LoRA: c.Critic.LoRA, Recompute: c.Critic.Recompute,
		Moments8: c.Critic.Optim.Moments == "8bit", Offload: c.Critic.Optim.Offload}
}

// base is how LoRA's base is kept: the student's, which the discriminator's adapters stand on
// too, or the discriminator's own.
func (c *Config) base() string {
	if c.Actor.LoRA.On() {
		return c.Actor.LoRA.Base
	}
	return c.Critic.LoRA.Base
}

// OverRanks makes it the plan of one of several ranks: with trainer.shard_optimizer each
// takes less memory than one process.
func (p *Plan) OverRanks(c Config, ranks int) {
	if p.ranks = ranks; p.Fit != nil {
		c = p.Fit.config
	}
	p.take(p.footprint, p.shape, c)
}

// divided is o with AdamW's states divided among the ranks, if c says so.
func (p *Plan) divided(c Config, o model.PlanOptions) model.PlanOptions {
	if c.Trainer.ShardOptimizer {
		o.Ranks = p.ranks
	}
	return o
}

// planHost adds up what lies in the memory of a GPU's host.
func (p *Plan) planHost(f model.Footprint, shape model.Config, c Config) (items []Item) {
	if n := shape.Plan(f, p.divided(c, c.student())).HostMoments; n > 0 {
		items = append(items, Item{"actor: optimizer", n, ""})
	}
	if n := shape.Plan(f, p.divided(c, c.discriminator())).HostMoments; n > 0 && p.Stage.hasCritic() {
		items = append(items, Item{"critic: optimizer", n, ""})
	}
	return items
}

// packTokens is how many tokens the largest packs have: those that student and
// discriminator learn from, and those of forward passes alone. A pack has max_token_len, or
// all that there is.
func (p *Plan) packTokens(c Config) (actor, critic, forward int) {
	batch, answers := c.Data.TrainBatchSize, 1 // answers to a prompt
	ofActor, ofCritic := batch, batch          // prompts of an update
	switch {
	case p.Stage.hasCritic():
		answers = c.Rollout.N + 1 // and the teacher's
		if c.Critic.PPOMiniBatch > 0 {
			ofCritic = min(c.Critic.PPOMiniBatch, batch)
		}
		if !c.learnsTeacher(p.Stage) {
			ofActor = c.Actor.MiniBatch(batch)
		}
	case p.Stage == DPO:
		answers = 2
	}
	prompt := c.Data.MaxPrompt + answers*c.Data.MaxResponse
	longest := int(p.PromptMean + p.AnswerMean)
	tokens := func(limit, prompts int) int { return max(min(limit, prompts*prompt), longest) }
	actor, critic = tokens(c.Actor.MaxTokenLen, ofActor), tokens(c.Critic.MaxTokenLen, ofCritic)
	if c.Critic.Replay.Size > 0 { // earlier pairs come with it
		critic = max(c.Critic.MaxTokenLen, longest)
	}
	forward = tokens(max(c.Actor.MaxTokenLen, c.Critic.MaxTokenLen), batch)
	if len(c.Data.ValFiles) > 0 {
		forward = max(forward, min(c.Actor.MaxTokenLen, c.Trainer.ValRows*(c.Data.MaxPrompt+c.Data.MaxResponse)))
	}
	return actor, critic, forward
}

// planMemory adds up what the models take.
func (p *Plan) planMemory(f model.Footprint, shape model.Config, c Config) (items []Item) {
	add := func(name string, n int64) {
		if n > 0 {
			items = append(items, Item{name, n, ""})
		}
	}
	game := p.Stage.hasCritic()
	if c.Actor.LoRA.On() || game && c.Critic.LoRA.On() {
		base := shape.Plan(f, model.PlanOptions{Kind: model.LM, Quant: c.base()})
		add("base: frozen weights, for all roles", base.Weights)
		add("base: copy of the weights for fast products", base.Copies)
	}
	actorTokens, criticTokens, forward := p.packTokens(c)
	var scratch int64
	var parts, others []model.Plan // as set, and with recompute as the note says
	recompute := !c.Actor.Recompute || game && !c.Critic.Recompute
	part := func(name string, o model.PlanOptions) {
		o.Forward = forward
		m := shape.Plan(f, o)
		scratch = max(scratch, m.Scratch)
		parts = append(parts, m)
		o.Recompute = recompute
		others = append(others, shape.Plan(f, o))
		add(name+": weights", m.Weights)
		add(name+": copy of the weights for fast products", m.Copies)
		if !game {
			add(name+": gradients", m.Gradients)
		}
		add(name+": optimizer", m.Moments)
		if o.Ranks > 1 && m.Moments > 0 {
			o.Ranks = 1
			items[len(items)-1].Note = fmt.Sprintf("its part of %s, on %d ranks (trainer.shard_optimizer)", bytesText(shape.Plan(f, o).Moments), p.ranks)
		}
		add(name+": key/value cache", m.Cache)
	}
	sampled := func(o model.PlanOptions, n int) model.PlanOptions {
		o.Slots, o.N, o.Prompts, o.PromptTokens, o.MaxNew = c.Rollout.MaxNumSeqs, n, c.Data.TrainBatchSize, c.Data.MaxPrompt, c.Data.MaxResponse
		return o
	}
	student, discriminator := p.divided(c, c.student()), p.divided(c, c.discriminator())
	own := shape.Plan(f, student)
	p.actorGradient, p.actorWeights, p.criticGradient, p.criticWeights = own.Gradients, own.Computed, 0, 0
	if game {
		own = shape.Plan(f, discriminator)
		p.criticGradient, p.criticWeights = own.Gradients, own.Computed
	}
	if n := int64(log2(c.Trainer.Shards)); n > 0 {
		add(fmt.Sprintf("sums of gradients of shards (trainer.shards=%d)", c.Trainer.Shards), n*max(p.actorGradient, p.criticGradient))
		items[len(items)-1].Note = "on the host; with several ranks less: gad plan --ranks"
	}
	student.Tokens, discriminator.Tokens = actorTokens, criticTokens
	if game { // they learn in turn
		own, other := shape.Plan(f, c.student()).Gradients, shape.Plan(f, discriminator).Gradients
		add("gradients: one buffer for student and discriminator", max(own, other))
		student.Turns = other
		if !c.merges(p.Stage) {
			student = sampled(student, c.Rollout.N)
			if lent := shape.Plan(f, student).Lent; lent > 0 {
				items[len(items)-1].Note = fmt.Sprintf("while answers are sampled, %s of key/value cache are kept there", bytesText(lent))
			}
		}
	}
	part("actor", student)
	if c.merges(p.Stage) {
		part("sampling, adapters merged", sampled(model.PlanOptions{Kind: model.LM, Merged: true}, c.Rollout.N))
	}
	if game {
		part("critic", discriminator)
	}
	switch {
	case p.Stage == DPO: // the reference answers, once a prompt
		part("reference", sampled(model.PlanOptions{Kind: model.LM, LoRA: c.Actor.LoRA}, 1))
	case game && c.needsReference(p.Stage):
		part("reference", model.PlanOptions{Kind: model.LM, LoRA: c.Actor.LoRA})
	}
	if c.Trainer.HeldOutCritic != "" {
		shape = c.heldOutShape(shape)
		part("held-out critic", model.PlanOptions{Kind: model.Scorer})
	}
	// What the models share.
	add("activations", model.SharedActivations(parts...))
	note := fmt.Sprintf("actor.recompute=%t", recompute)
	if game {
		note += fmt.Sprintf(" critic.recompute=%t", recompute)
	}
	items[len(items)-1].Note = fmt.Sprintf("%s with %s", bytesText(model.SharedActivations(others...)), note)
	add("scratch memory", scratch)
	add("CUDA context and libraries", f.Overhead())
	if x, ok := f.(compute.RanksFootprint); ok && p.ranks > 1 {
		add("NCCL's buffers", x.RanksOverhead())
		items[len(items)-1].Note = "an estimate, at NCCL's defaults: not measured"
	}
	return items
}

func (p *Plan) planDisk(shape model.Config, c Config) {
	// Weights in float32, and the moments as they are in memory.
	one := 4*shape.TrainedCount(model.LM, c.Actor.LoRA) + shape.Plan(cpu.Footprint{}, c.student()).Moments
	if p.Stage.hasCritic() {
		one += 4*shape.TrainedCount(model.Scorer, c.Critic.LoRA) + shape.Plan(cpu.Footprint{}, c.discriminator()).Moments
	}
	p.checkpoint = one
	keep := int64(c.Trainer.MaxToKeep) + 1
	if c.Trainer.KeepBest != "" {
		keep++
	}
	p.Disk = []Item{{fmt.Sprintf("%d checkpoints of %s (one being written)", keep, bytesText(one)), keep * one, ""}}
	if c.needsReference(p.Stage) {
		p.Disk = append(p.Disk, Item{"reference", 4 * shape.TrainedCount(model.LM, c.Actor.LoRA), ""})
	}
}

// measureTime times a forward and backward pass and a short generation of a model
// of the same width with at most two layers, and scales by floating-point operations.
func (p *Plan) measureTime(be compute.Backend, shape model.Config, c Config) error {
	small := shape.FirstLayers(2)
	m, err := model.New(be, small, model.Options{Kind: model.LM, Trainable: true, Seed: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	length := max(2, min(int(p.PromptMean+p.AnswerMean), 512))
	const tokens = 512
	var seqs []model.Seq
	for n := 0; n < tokens; n += length {
		ids := make([]int32, length)
		for i := range ids {
			ids[i] = int32((n + i*7) % shape.Vocab)
		}
		seqs = append(seqs, model.Seq{IDs: ids, Prompt: length / 2})
	}
	trained := float64(len(seqs) * length)
	zero := func(logpST, entST [][]float32) ([][]float32, [][]float32, error) {
		d := make([][]float32, len(logpST))
		for i := range d {
			d[i] = make([]float32, len(logpST[i]))
		}
		return d, nil, nil
	}
	best := func(f func() error) (float64, error) {
		fastest := 0.0
		for i := range 3 {
			start := time.Now()
			if err := f(); err != nil {
				return 0, err
			}
			if s := time.Since(start).Seconds(); i == 0 || s < fastest {
				fastest = s
			}
		}
		return fastest, nil
	}
	train, err := best(func() error { return m.LogProbGrad(seqs, 1, zero) })
	if err != nil {
		return err
	}
	forward, err := best(func() error { _, _, err := m.LogProbs(seqs, 1); return err })
	if err != nil {
		return err
	}
	slots, fresh := min(c.Rollout.MaxNumSeqs, c.Data.TrainBatchSize*c.Rollout.N), 8
	decode, err := best(func() error {
		_, err := m.Generate([][]int32{{1, 2, 3}}, []uint64{0}, model.SampleOptions{N: slots, MaxNew: fresh, Slots: slots,
			Sampling: model.Sampling{Temperature: 1, TopP: 1}}, nil)
		return err
	})
	if err != nil {
		return err
	}
	scale := shape.FLOPsPerToken(float64(length)/2, true) / small.FLOPsPerToken(float64(length)/2, true)
	p.Measured = fmt.Sprintf("%s, %d of %d layers, %d tokens", be.Name(), small.Layers, shape.Layers, int(trained))
	p.time(c, be.Alone(), tokenTimes{scale * train / trained, scale * forward / trained, scale * decode / float64(slots*fresh)})
	return nil
}

// stretches are the parts that a step of the game is made of, in seconds.
type stretches struct {
	rollout float64
	answers float64 // a forward pass over prompts and the student's answers
	judged  float64 // one over prompts and all answers
	critic  float64 // the discriminator's updates, the student's on its answers,
	actor   float64
	teacher float64 // and on the teacher's
}

// arrange lists which of them a step of c has.
func (p *Plan) arrange(c Config, alone bool, t stretches) (step []Timed) {
	add := func(name string, seconds float64) {
		if seconds > 0 {
			step = append(step, Timed{name, seconds})
		}
	}
	add("rollout", t.rollout)
	teacher := c.learnsTeacher(p.Stage)
	if c.Actor.ReadsEntropy() || !teacher && c.Actor.OldLogProb != "rollout" && (c.Actor.OldLogProb == "recompute" || !alone) {
		add("old_logp", t.answers)
	}
	scores := t.judged * c.scoredBefore(c.Data.TrainBatchSize)
	if c.Algorithm.FilterGroups.Enable { // the scores say which groups to replace
		add("score", scores)
		add("update_critic", t.critic)
	} else {
		add("update_critic", t.critic+scores)
	}
	if teacher {
		add("update_actor", t.teacher)
		return step
	}
	if c.needsReference(p.Stage) {
		add("ref_logp", t.answers)
	}
	add("update_actor", t.actor)
	return step
}

// Warnings are those of the settings c and of the length of the run, which the run itself
// would begin with.
func (p *Plan) Warnings(c Config) []string {
	warnings := c.Warnings(p.Stage)
	if p.Steps > 0 {
		warnings = append(warnings, c.lengthWarnings(p.Stage, p.Rows, p.Steps)...)
	}
	return warnings
}

// Check refuses what cannot fit, naming the numbers.
func (p *Plan) Check(c Config) error {
	if p.tooLarge() {
		where, needs, free := "memory", p.Memory, p.MemoryFree
		if p.hostTooLarge() && (free == 0 || total(needs) <= free) {
			where, needs, free = "the host's memory", p.Host, p.HostFree
		}
		return fmt.Errorf("%w: plan: %w in %s: needs %s, %s are available: %s",
			ErrConfig, ErrTooLarge, where, bytesText(total(needs)), bytesText(free), p.Fits)
	}
	if need := total(p.Disk); p.DiskFree > 0 && need > p.DiskFree {
		return fmt.Errorf("%w: plan: %w on the disk of %s: needs %s, %s are free: lower trainer.max_ckpt_to_keep, or give another --output: %w",
			ErrConfig, ErrTooLarge, c.Trainer.Output, bytesText(need), bytesText(p.DiskFree), checkpoint.ErrSpace)
	}
	return nil
}

// String is the plan as a table.
func (p *Plan) String() string {
	var b strings.Builder
	items := func(title string, items []Item, free int64) {
		fmt.Fprintf(&b, "%s\n", title)
		for _, i := range items {
			fmt.Fprintf(&b, "  %-52s %10s", i.Name, bytesText(i.Bytes))
			if i.Note != "" {
				fmt.Fprintf(&b, "  (%s)", i.Note)
			}
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "  %-52s %10s", "total", bytesText(total(items)))
		if free > 0 {
			fmt.Fprintf(&b, " of %s available", bytesText(free))
		}
		b.WriteByte('\n')
	}
	b.WriteString(p.Fit.String())
	items("memory", p.Memory, p.MemoryFree)
	if len(p.Host) > 0 {
		items("memory of the host", p.Host, p.HostFree)
	}
	items("disk", p.Disk, p.DiskFree)
	fmt.Fprintf(&b, "tokens\n  mean prompt %.0f, mean answer %.0f", p.PromptMean, p.AnswerMean)
	if p.Rows > 0 {
		fmt.Fprintf(&b, " (teacher's, over %s)", report.Count(p.Rows, "row"))
	} else {
		b.WriteString(" (the length limits, because no --data is given)")
	}
	b.WriteByte('\n')
	if len(p.StepTime) > 0 {
		how := "extrapolated from a short measurement"
		if p.Predicted {
			how = "predicted, nothing was measured"
		}
		fmt.Fprintf(&b, "time of a step, %s (%s)\n", how, p.Measured)
		for _, t := range p.StepTime {
			fmt.Fprintf(&b, "  %-52s %10s\n", t.Name, secondsText(t.Seconds))
		}
		fmt.Fprintf(&b, "  %-52s %10s\n", "step", secondsText(p.step()))
		b.WriteString(p.runText())
	}
	return b.String()
}

func bytesText(n int64) string {
	x := float64(n)
	for _, unit := range []string{"B", "kB", "MB", "GB", "TB"} {
		if x < 999.5 {
			return fmt.Sprintf("%.3g %s", x, unit)
		}
		x /= 1000
	}
	return fmt.Sprintf("%.3g PB", x)
}

func secondsText(s float64) string {
	switch {
	case s < 1:
		return fmt.Sprintf("%.0f ms", 1000*s)
	case s < 120:
		return fmt.Sprintf("%.1f s", s)
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}
