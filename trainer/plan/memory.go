package plan

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"slices"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// Need returns the bytes of memory that a run takes in all, with prompts and answers of every
// length up to their limits; with several ranks, the bytes of each.
func Need(f model.Footprint, shape model.Config, c config.Config, stage config.Stage,
	ranks int) int64 {
	p := longestRun(c, stage, ranks)
	return Total(p.planMemory(networksOf(f, shape), c))
}

// longestRun returns a plan whose prompts and answers have their largest lengths.
func longestRun(c config.Config, stage config.Stage, ranks int) Plan {
	p := Plan{Stage: stage, ranks: ranks, PromptMean: float64(c.Data.MaxPrompt),
		AnswerMean: float64(c.LongestSampled(stage)), whole: float64(c.MaxAnswer(stage)),
		chunks: c.Chunks(stage), lastOnly: c.Critic.Reads == "last",
		teacher: theirs{apart: apart(c, stage)}}
	if c.Coach.On(stage) && c.LoadsTeacher(stage) {
		p.TeacherPromptMean =
			float64(c.Teacher.LongestPrompt(c.Data) + c.Coach.Longer(stage))
	}
	return p
}

// Slots returns rollout.max_num_seqs of a run: as it is set or, where it is 0, as many as free
// bytes of memory have room for; on several ranks on each of them. A free of 0 is not known.
func Slots(f model.Footprint, free int64, shape model.Config, c config.Config, stage config.Stage,
	ranks int) int {
	p := longestRun(c, stage, ranks)
	p.MemoryFree = free
	p.choose(f, shape, c)
	return p.slots(c)
}

// slots returns how many answers are sampled at the same time.
func (p *Plan) slots(c config.Config) int {
	return cmp.Or(c.Rollout.MaxNumSeqs, p.together, model.DefaultSlots)
}

// planError is the share of the memory that choose leaves free: a plan is within so much of what a
// run takes.
const planError = 0.04

// choose sets how many answers are sampled at the same time where the settings leave it open. A
// validation samples one answer to each of its rows: of as many prompts, the cache has more.
func (p *Plan) choose(f model.Footprint, shape model.Config, c config.Config) {
	validation := c
	validation.Rollout.N, validation.Rollout.Tree.Trees, validation.Data.TrainBatchSize =
		1, 0, c.Trainer.ValRows
	answers := c.Data.TrainBatchSize * c.Answers(p.Stage)
	if p.Stage == config.SFT || p.MemoryFree == 0 {
		answers = 0
	}
	p.together = model.Together(f, answers, func(n int) bool {
		needs := func(c config.Config) int64 {
			c.Rollout.MaxNumSeqs = n
			return Total(p.planMemory(networksOf(f, shape), c))
		}
		most := int64((1 - planError) * float64(p.MemoryFree))
		return needs(c) <= most && (len(c.Data.ValFiles) == 0 || needs(validation) <= most)
	})
}

// LabelMemory returns the bytes that soft labels add to a run.
func LabelMemory(f model.Footprint, shape model.Config, c config.Config, stage config.Stage) int64 {
	if !c.SoftLabels(stage) {
		return 0
	}
	p := Plan{Stage: stage, PromptMean: float64(c.Data.MaxPrompt),
		AnswerMean: float64(c.MaxAnswer(stage)), chunks: c.Chunks(stage)}
	tokens, _, _ := p.packTokens(c)
	return shape.KLMemory(f, model.Config{}, tokens) + model.SoftMemory(tokens, labelTokens)
}

// labelTokens is the assumed number of tokens in a soft label.
const labelTokens = 20

// Total sums the bytes of items.
func Total(items []Item) (n int64) {
	for _, i := range items {
		n += i.Bytes
	}
	return n
}

// networks computes the memory of networks on one device: of one shape each network once, since fit
// tries combinations of settings in which networks come again.
type networks struct {
	f     model.Footprint
	shape model.Config
	known map[model.PlanOptions]model.Plan
}

// networksOf returns the networks of a shape.
func networksOf(f model.Footprint, shape model.Config) networks {
	return networks{f, shape, map[model.PlanOptions]model.Plan{}}
}

// plan returns the memory of a network.
func (n networks) plan(shape model.Config, o model.PlanOptions) model.Plan {
	if !reflect.DeepEqual(shape, n.shape) { // a teacher's
		return shape.Plan(n.f, o)
	}
	m, ok := n.known[o]
	if !ok {
		m = shape.Plan(n.f, o)
		n.known[o] = m
	}
	return m
}

// planMemory returns the memory of the models and of their passes.
func (p *Plan) planMemory(known networks, c config.Config) (items []Item) {
	f, shape := known.f, known.shape
	add := func(name string, n int64) {
		if n > 0 {
			items = append(items, Item{name, n, ""})
		}
	}
	game, policy := p.Stage.HasCritic(), p.Stage.HasPolicy()
	if c.Actor.LoRA.On() || game && c.Critic.LoRA.On() {
		base := known.plan(shape, model.PlanOptions{Kind: model.LM, Quant: c.LoRABase()})
		add("base: frozen weights, for all roles", base.Weights)
		add("base: copy of the weights for fast products", base.Copies)
	}
	actorTokens, criticTokens, forward := p.packTokens(c)
	var scratch int64
	var parts, others []model.Plan // with recompute as set; and switched, for the note
	recompute := !c.Actor.Recompute || game && !c.Critic.Recompute
	part := func(name string, o model.PlanOptions) {
		o.Forward = max(o.Forward, forward)
		m := known.plan(shape, o)
		scratch = max(scratch, m.Scratch)
		parts = append(parts, m)
		if c.Coach.OwnNotes(p.Stage) > 0 && o.Slots > 0 { // the same weights write notes afterwards
			notes := shape.Plan(f, asking(c, p.Stage, o))
			scratch, m.Cache = max(scratch, notes.Scratch), max(m.Cache, notes.Cache)
			parts, others = append(parts, notes), append(others, notes)
		}
		o.Recompute = recompute
		others = append(others, known.plan(shape, o))
		add(name+": weights", m.Weights)
		add(name+": copy of the weights for fast products", m.Copies)
		if !game {
			add(name+": gradients", m.Gradients)
		}
		add(name+": optimizer", m.Moments)
		if o.Ranks > 1 && m.Moments > 0 {
			o.Ranks = 1
			items[len(items)-1].Note = fmt.Sprintf(
				"its part of %s, on %d ranks (trainer.shard_optimizer)",
				report.Bytes(known.plan(shape, o).Moments), p.ranks)
		}
		add(name+": key/value cache", m.Cache)
	}
	sampled := func(o model.PlanOptions, n int) model.PlanOptions {
		o.Slots, o.N, o.Prompts, o.PromptTokens, o.MaxNew =
			p.slots(c), n, c.Data.TrainBatchSize, c.Data.MaxPrompt,
			c.LongestSampled(p.Stage)
		if len(c.Data.ValFiles) > 0 { // a validation has whole answers
			o.MaxNew = c.MaxAnswer(p.Stage)
		}
		o.Chunks = c.Chunks(p.Stage)
		return o
	}
	student := p.divideStates(c, c.StudentPlan())
	discriminator := p.divideStates(c, c.DiscriminatorPlan())
	own := known.plan(shape, student)
	p.actorGradient, p.actorWeights, p.criticGradient, p.criticWeights =
		own.Gradients, own.Computed, 0, 0
	if game {
		own = known.plan(shape, discriminator)
		p.criticGradient, p.criticWeights = own.Gradients, own.Computed
	}
	if n := int64(log2(c.Trainer.Shards)); n > 0 {
		add(fmt.Sprintf("sums of gradients of shards (trainer.shards=%d)", c.Trainer.Shards),
			n*max(p.actorGradient, p.criticGradient))
		items[len(items)-1].Note = "on the host; with several ranks less: gad plan --ranks"
	}
	student.Tokens, discriminator.Tokens = actorTokens, criticTokens
	if game { // they learn in turn
		own := known.plan(shape, c.StudentPlan()).Gradients
		other := known.plan(shape, discriminator).Gradients
		add("gradients: one buffer for student and discriminator", max(own, other))
		student.Turns = other
	}
	if policy && !c.Merges(p.Stage) {
		student = sampled(student, c.Answers(p.Stage))
		if lent := known.plan(shape, student).Lent; lent > 0 && game {
			items[len(items)-1].Note = fmt.Sprintf(
				"while answers are sampled, %s of key/value cache are kept there",
				report.Bytes(lent))
		}
	}
	part("actor", student)
	if c.Merges(p.Stage) {
		part("sampling, adapters merged",
			sampled(model.PlanOptions{Kind: model.LM, Merged: true}, c.Answers(p.Stage)))
	}
	if game {
		part("critic", discriminator)
	}
	switch {
	case p.Stage == config.DPO: // the reference answers, once a prompt
		part("reference", sampled(model.PlanOptions{Kind: model.LM, LoRA: c.Actor.LoRA,
			Quant: c.Actor.LoRA.Base}, 1))
	case policy && c.NeedsReference(p.Stage):
		part("reference", model.PlanOptions{Kind: model.LM, LoRA: c.Actor.LoRA,
			Quant: c.Actor.LoRA.Base})
	}
	if c.LoadsTeacher(p.Stage) {
		own := shape
		for i, x := range teacherShapes(c, own) {
			name := "teacher"
			if c.Teacher.By != "" {
				name += ", " + filepath.Base(c.Teacher.Folders()[i])
			}
			shape = x
			part(name, model.PlanOptions{Kind: model.LM, Quant: c.Teacher.Weights,
				Forward: p.teacherTokens(c, actorTokens)})
		}
		shape = own
		if c.Teacher.Renew > 0 && c.Coach.PlainOf(p.Stage, c.Data.TrainBatchSize) > 0 {
			part("teacher, a copy of the student", model.PlanOptions{Kind: model.LM,
				LoRA: c.Actor.LoRA, Quant: c.Actor.LoRA.Base,
				Forward: p.teacherTokens(c, actorTokens)})
		}
	}
	if c.Divergence(p.Stage) {
		name, labels := "divergence: the teacher's states, logits by the chunk", actorTokens
		if len(c.Teacher.Servers()) > 0 { // of a whole step; of a loaded one, of a pack at a time
			name = "divergence: the teacher's labels, logits by the chunk"
			labels = c.Data.TrainBatchSize * c.Rollout.N * c.LongestSampled(p.Stage)
		}
		n := shape.KLMemory(f, model.Config{}, actorTokens)
		for _, x := range teacherShapes(c, shape) {
			n = max(n, shape.KLMemory(f, x, actorTokens))
		}
		if c.Teacher.Loss == "topk" {
			n += model.SoftMemory(labels, c.Teacher.TopK)
		}
		add(name, n)
	}
	if p.soft {
		add("soft labels: logits by the chunk", LabelMemory(f, shape, c, p.Stage))
	}
	if inReward, inLoss := c.ExactKL(p.Stage); inReward || inLoss {
		tokens := actorTokens
		if inReward { // in packs of forward passes
			tokens = forward
		}
		add("exact KL: the reference's states, logits by the chunk",
			shape.KLMemory(f, shape, tokens))
	}
	if c.Trainer.HeldOutCritic != "" {
		shape = heldOutShape(c, shape)
		part("held-out critic", model.PlanOptions{Kind: model.Scorer})
	}
	// Memory that the models share.
	add("activations", model.SharedActivations(parts...))
	note := fmt.Sprintf("actor.recompute=%t", recompute)
	if game {
		note += fmt.Sprintf(" critic.recompute=%t", recompute)
	}
	items[len(items)-1].Note = fmt.Sprintf("%s with %s",
		report.Bytes(model.SharedActivations(others...)), note)
	add("scratch memory", scratch)
	add("CUDA context and libraries", f.Overhead())
	if x, ok := f.(compute.RanksFootprint); ok && p.ranks > 1 {
		add("NCCL's buffers", x.RanksOverhead())
		items[len(items)-1].Note = "an estimate, at NCCL's defaults: not measured"
	}
	return items
}

// asking returns o, by which answers are sampled, for notes on all of them.
func asking(c config.Config, stage config.Stage, o model.PlanOptions) model.PlanOptions {
	all := c.Data.TrainBatchSize
	o.N, o.Prompts = 1, (all-c.Coach.PlainOf(stage, all))*o.N
	o.PromptTokens = c.Coach.LongestQuestion(c.Data.MaxPrompt, c.LongestSampled(stage))
	o.MaxNew = c.Coach.OwnNotes(stage)
	return o
}

// planHost returns the memory on a GPU's host.
func (p *Plan) planHost(known networks, c config.Config) (items []Item) {
	if n := known.plan(known.shape, p.divideStates(c, c.StudentPlan())).HostMoments; n > 0 {
		items = append(items, Item{"actor: optimizer", n, ""})
	}
	if n := known.plan(known.shape, p.divideStates(c, c.DiscriminatorPlan())).HostMoments; n > 0 &&
		p.Stage.HasCritic() {
		items = append(items, Item{"critic: optimizer", n, ""})
	}
	return items
}

// packTokens returns the tokens of the largest packs: packs that the student and the discriminator
// learn, and packs of forward passes alone. A pack has max_token_len tokens, or all that there are.
func (p *Plan) packTokens(c config.Config) (actor, critic, forward int) {
	batch := c.Data.TrainBatchSize
	ofActor, ofCritic := batch, batch // prompts of an update
	for _, x := range c.Passes(p.Stage, batch, true) {
		switch {
		case x.Kind != config.Learn:
		case x.Network == config.Student:
			ofActor = x.Mini
		default:
			ofCritic = x.Mini
		}
	}
	// tokens of a network's largest pack: a prompt with all its answers, and the longest sequence
	tokens := func(network config.Network, limit, prompts int) int {
		whole := int(p.answerTokens(network, float64(c.LongestSampled(p.Stage))))
		prompt := c.Data.MaxPrompt + c.StepAnswers(p.Stage)*whole
		return max(min(limit, prompts*prompt), p.longest(network))
	}
	actor = tokens(config.Student, c.Actor.MaxTokenLen, ofActor)
	critic = tokens(config.Discriminator, c.Critic.MaxTokenLen, ofCritic)
	if c.Critic.Replay.Size > 0 { // earlier pairs join the pack
		critic = max(c.Critic.MaxTokenLen, p.longest(config.Discriminator))
	}
	most := max(c.Actor.MaxTokenLen, c.Critic.MaxTokenLen)
	forward = tokens(config.Student, most, batch)
	if p.Stage.HasCritic() {
		forward = max(forward, tokens(config.Discriminator, most, batch))
	}
	if len(c.Data.ValFiles) > 0 {
		answer := c.Data.MaxResponse
		if p.chunks.On() {
			answer = int(p.answerTokens(config.Student, float64(c.MaxAnswer(p.Stage))))
		}
		forward = max(forward, min(c.Actor.MaxTokenLen,
			c.Trainer.ValRows*(c.Data.MaxPrompt+answer)))
		if c.HasHorizon(p.Stage) { // a whole answer may be longer than all that is learned
			forward = max(forward, int(p.PromptMean+p.whole))
		}
	}
	return actor, critic, forward
}

// teacherTokens returns the tokens of a teacher's largest pack, if it reads prompts of its own: in
// a pass of its own, or beside the student's packs, of ofActor tokens, which have as many prompts.
func (p *Plan) teacherTokens(c config.Config, ofActor int) int {
	longer := c.Coach.Longer(p.Stage)
	if !c.LoadsTeacher(p.Stage) || c.Teacher.PromptKey == "" && longer == 0 {
		return 0
	}
	n, read := float64(c.StepAnswers(p.Stage)), p.promptOf(config.Teacher)
	most := c.Teacher.LongestPrompt(c.Data) + longer
	longest := most + c.LongestSampled(p.Stage)
	if !c.Divergence(p.Stage) {
		whole := int(p.teacher.apart)*most + int(n)*c.LongestSampled(p.Stage)
		return max(min(c.Actor.MaxTokenLen, c.Data.TrainBatchSize*whole), longest)
	}
	group := p.PromptMean + n*p.AnswerMean
	if k := p.teacher.apart; k > 1 { // the answers of whole prompts, and of what is left of the pack
		whole := math.Floor(float64(ofActor) / group)
		whole = min(whole, float64(c.Data.TrainBatchSize))
		left := math.Floor((float64(ofActor) - whole*group - p.PromptMean) / max(p.AnswerMean, 1))
		answers := max(whole*n+max(min(left, n-1), 0), 1)
		return max(int(answers*(read/k+p.AnswerMean)), longest)
	}
	prompts := math.Ceil(float64(ofActor) / group)
	prompts = min(prompts, float64(c.Data.TrainBatchSize))
	return max(int(prompts*(read+n*p.AnswerMean)), longest)
}

// apart returns how many prompts a teacher reads for each prompt of the student: with notes one for
// each answer, which do not pass as one.
func apart(c config.Config, stage config.Stage) float64 {
	if c.Coach.On(stage) {
		return float64(c.Answers(stage))
	}
	return 1
}

// teacherShapes returns the shapes that a plan counts for the teachers that are loaded; shape for a
// folder that cannot be read, which opening the run reports.
func teacherShapes(c config.Config, shape model.Config) (list []model.Config) {
	for _, dir := range c.Teacher.Folders() {
		cfg, err := model.ReadConfig(dir)
		small := func() bool { return cfg.ParamCount(model.LM) < shape.ParamCount(model.LM) }
		if err != nil || c.Teacher.Renew > 0 && c.Coach.Plain == 0 && small() {
			cfg = shape // a copy of the student takes its place
		}
		list = append(list, cfg)
	}
	return list
}

// teacherShape returns the largest of teacherShapes, on which passes are timed.
func teacherShape(c config.Config, shape model.Config) model.Config {
	return slices.MaxFunc(teacherShapes(c, shape), func(a, b model.Config) int {
		return cmp.Compare(a.ParamCount(model.LM), b.ParamCount(model.LM))
	})
}

// divideStates returns o with AdamW's states divided among the ranks, if c asks for it.
func (p *Plan) divideStates(c config.Config, o model.PlanOptions) model.PlanOptions {
	if c.Trainer.ShardOptimizer {
		o.Ranks = p.ranks
	}
	return o
}

// heldOutShape returns the shape that a plan counts for the held-out discriminator; shape if its
// folder cannot be read, which opening the run reports.
func heldOutShape(c config.Config, shape model.Config) model.Config {
	if cfg, err := saved.ReadHeldOut(c.Trainer.HeldOutCritic); err == nil {
		return cfg
	}
	return shape
}

// planDisk sets the disk space of checkpoints and reference.
func (p *Plan) planDisk(shape model.Config, c config.Config) {
	// Weights in float32, and the moments as they are in memory.
	one := 4*shape.TrainedCount(model.LM, c.Actor.LoRA) +
		shape.Plan(cpu.Footprint{}, c.StudentPlan()).Moments
	if p.Stage.HasCritic() {
		one += 4*shape.TrainedCount(c.Critic.Kind(), c.Critic.LoRA) +
			shape.Plan(cpu.Footprint{}, c.DiscriminatorPlan()).Moments
	}
	p.checkpoint = one
	keep := c.Trainer.MaxToKeep
	if p.Steps > 0 { // a run that writes fewer keeps fewer
		keep = min(keep, everyAndLast(c.Trainer.SaveFreq)(p.Steps))
	}
	keep++
	if c.Trainer.KeepBest != "" {
		keep++
	}
	p.Disk = []Item{{fmt.Sprintf("%d checkpoints of %s (one being written)", keep,
		report.Bytes(one)), int64(keep) * one, ""}}
	if c.NeedsReference(p.Stage) {
		p.Disk = append(p.Disk, Item{"reference", 4 * shape.TrainedCount(model.LM, c.Actor.LoRA),
			""})
	}
}
