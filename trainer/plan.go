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
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
)

// ErrTooLarge reports a run that cannot fit this machine.
var ErrTooLarge = errors.New("does not fit")

// Plan is what a run will take, known before it starts.
type Plan struct {
	Stage       Stage
	Memory      []Item // bytes, all held at once
	MemoryFree  int64  // bytes available now; 0 is unknown
	Fits        string // if Memory is more than that: settings that would fit, or that none would
	Disk        []Item
	DiskFree    int64
	Rows, Steps int
	PromptMean  float64 // tokens
	AnswerMean  float64 // tokens, of the teacher, cut at the limit
	StepTime    []Timed // an estimate from a short measurement
	Measured    string
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
// device, be is nil: then the memory is f's, and nothing is timed. free, unless 0,
// is the memory to plan for in the place of what the device has, in bytes.
func NewPlan(be model.Backend, f model.Footprint, free int64, fsys checkpoint.FS, c Config, stage Stage) (*Plan, error) {
	fsys = vfs.OrDisk(fsys)
	if be == nil && f == nil {
		return nil, fmt.Errorf("%w: trainer: a plan has neither a backend nor a footprint: give device.Options.Footprint", ErrConfig)
	}
	dir := c.Model.Path
	if c.Trainer.Resume != "" {
		ckpt, _, err := FindCheckpoint(fsys, c.Trainer.Resume)
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(ckpt, "actor")
	}
	if dir == "" {
		return nil, fmt.Errorf("%w: plan: no student: give model.path (flag --model)", ErrConfig)
	}
	shape, err := model.ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	if n := c.Data.MaxPrompt + c.Data.MaxResponse; shape.MaxPosition > 0 && n > shape.MaxPosition {
		return nil, fmt.Errorf("%w: model: %s: data.max_prompt_length + data.max_response_length = %d, but max_position_embeddings is %d: lower them", ErrConfig, dir, n, shape.MaxPosition)
	}
	p := &Plan{Stage: stage, PromptMean: float64(c.Data.MaxPrompt), AnswerMean: float64(c.Data.MaxResponse), Steps: c.Trainer.TotalSteps}
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
	p.Memory = p.planMemory(f, shape, c)
	if p.tooLarge() {
		p.Fits = p.smaller(f, shape, c)
	}
	p.planDisk(shape, c)
	if c.Trainer.Output != "" {
		if p.DiskFree, err = fsys.Free(c.Trainer.Output); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errors.ErrUnsupported) {
			return nil, fmt.Errorf("plan: %w", err)
		}
	}
	if be == nil || p.tooLarge() {
		return p, nil // nothing to time it on, or the measurement itself might not fit
	}
	return p, p.measureTime(be, shape, c)
}

// measureData reads up to 512 rows for their mean lengths.
func (p *Plan) measureData(dir string, c Config) error {
	tok, err := tokenizer.Load(dir)
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
	p.Rows, p.PromptMean, p.AnswerMean = set.Len(), prompts/max(n, 1), answers/max(n, 1)
	if p.Steps == 0 {
		p.Steps = (c.Trainer.TotalEpochs*set.Len() + c.Data.TrainBatchSize - 1) / c.Data.TrainBatchSize
	}
	return nil
}

func (p *Plan) tooLarge() bool { return p.MemoryFree > 0 && total(p.Memory) > p.MemoryFree }

// smaller looks for settings that fit, those that cost least first: activations
// computed again, packs of one sequence, fewer sequences sampled at a time.
func (p *Plan) smaller(f compute.Footprint, shape model.Config, c Config) string {
	var told []string
	try := func(setting string) bool {
		told = append(told, setting)
		return total(p.planMemory(f, shape, c)) <= p.MemoryFree
	}
	said := func() string {
		return fmt.Sprintf("with %s it needs %s", strings.Join(told, " "), bytesText(total(p.planMemory(f, shape, c))))
	}
	if !c.Actor.Recompute || !c.Critic.Recompute {
		c.Actor.Recompute, c.Critic.Recompute = true, true
		if try("actor.recompute=true critic.recompute=true") {
			return said()
		}
	}
	one := c.Data.MaxPrompt + c.Data.MaxResponse
	if c.Actor.MaxTokenLen > one || c.Critic.MaxTokenLen > one {
		c.Actor.MaxTokenLen, c.Critic.MaxTokenLen = min(c.Actor.MaxTokenLen, one), min(c.Critic.MaxTokenLen, one)
		if try(fmt.Sprintf("actor.max_token_len=%d critic.max_token_len=%d", c.Actor.MaxTokenLen, c.Critic.MaxTokenLen)) {
			return said()
		}
	}
	if p.Stage != SFT {
		for c.Rollout.MaxNumSeqs > 1 {
			c.Rollout.MaxNumSeqs /= 2
			if try(fmt.Sprintf("rollout.max_num_seqs=%d", c.Rollout.MaxNumSeqs)) {
				return said()
			}
			told = told[:len(told)-1]
		}
	}
	return fmt.Sprintf("no batch size fits; the smallest needs %s: use a smaller student, shorter answers or more memory", bytesText(total(p.planMemory(f, shape, c))))
}

// planMemory adds up what the models take.
func (p *Plan) planMemory(f compute.Footprint, shape model.Config, c Config) (items []Item) {
	add := func(name string, n int64) {
		if n > 0 {
			items = append(items, Item{name, n, ""})
		}
	}
	answers, slots := c.Rollout.N, c.Rollout.MaxNumSeqs
	if !p.Stage.hasCritic() {
		slots = 0
	}
	longest := max(c.Actor.MaxTokenLen, int(p.PromptMean+p.AnswerMean))
	var scratch int64
	var parts, others []model.Plan // as set, and with recompute as the note says
	recompute := !c.Actor.Recompute || p.Stage.hasCritic() && !c.Critic.Recompute
	part := func(name string, o model.PlanOptions) {
		m := shape.Plan(f, o)
		scratch = max(scratch, m.Scratch)
		parts = append(parts, m)
		o.Recompute = recompute
		others = append(others, shape.Plan(f, o))
		add(name+": weights", m.Weights)
		add(name+": packed copy of the weights", m.Copies)
		add(name+": gradients", m.Gradients)
		add(name+": optimizer", m.Moments)
		add(name+": key/value cache", m.Cache)
	}
	defer func() { // what the models share, last
		add("activations", model.SharedActivations(parts...))
		note := fmt.Sprintf("actor.recompute=%t", recompute)
		if p.Stage.hasCritic() {
			note += fmt.Sprintf(" critic.recompute=%t", recompute)
		}
		items[len(items)-1].Note = fmt.Sprintf("%s with %s", bytesText(model.SharedActivations(others...)), note)
		add("scratch memory", scratch)
		add("CUDA context and libraries", f.Overhead())
	}()
	defer func() { // the last of the models
		if c.Trainer.HeldOutCritic != "" {
			shape = c.heldOutShape(shape)
			part("held-out critic", model.PlanOptions{Kind: model.Scorer, Tokens: longest})
		}
	}()
	part("actor", model.PlanOptions{Kind: model.LM, Trainable: true, Recompute: c.Actor.Recompute, Tokens: longest,
		Slots: slots, N: answers, Prompts: c.Data.TrainBatchSize, PromptTokens: c.Data.MaxPrompt, MaxNew: c.Data.MaxResponse})
	if p.Stage == SFT {
		return items
	}
	if p.Stage == DPO { // the reference answers, once a prompt
		part("reference", model.PlanOptions{Kind: model.LM, Tokens: longest,
			Slots: c.Rollout.MaxNumSeqs, N: 1, Prompts: c.Data.TrainBatchSize, PromptTokens: c.Data.MaxPrompt, MaxNew: c.Data.MaxResponse})
		return items
	}
	part("critic", model.PlanOptions{Kind: model.Scorer, Trainable: true, Recompute: c.Critic.Recompute, Tokens: max(c.Critic.MaxTokenLen, int(p.PromptMean+p.AnswerMean))})
	if c.needsReference(p.Stage) {
		part("reference", model.PlanOptions{Kind: model.LM, Tokens: longest})
	}
	return items
}

func (p *Plan) planDisk(shape model.Config, c Config) {
	models := shape.ParamCount(model.LM)
	if p.Stage.hasCritic() {
		models += shape.ParamCount(model.Scorer)
	}
	one := 12 * models // weights and two moments, float32
	keep := int64(c.Trainer.MaxToKeep) + 1
	if c.Trainer.KeepBest != "" {
		keep++
	}
	p.Disk = []Item{{fmt.Sprintf("%d checkpoints of %s (one being written)", keep, bytesText(one)), keep * one, ""}}
	if c.needsReference(p.Stage) {
		p.Disk = append(p.Disk, Item{"reference", 4 * shape.ParamCount(model.LM), ""})
	}
}

// measureTime times a forward and backward pass and a short generation of a model
// of the same width with at most two layers, and scales by floating-point operations.
func (p *Plan) measureTime(be compute.Backend, shape model.Config, c Config) error {
	small := shape
	small.Layers = min(2, shape.Layers)
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
	perTrained, perForward, perDecoded := scale*train/trained, scale*forward/trained, scale*decode/float64(slots*fresh)
	prompts := float64(c.Data.TrainBatchSize)
	seqsPerStep, whole := prompts*float64(c.Rollout.N), p.PromptMean+p.AnswerMean
	p.Measured = fmt.Sprintf("%s, %d of %d layers, %d tokens", be.Name(), small.Layers, shape.Layers, int(trained))
	if p.Stage == SFT {
		p.StepTime = []Timed{{"update_actor", prompts * whole * perTrained}}
		return nil
	}
	if p.Stage == DPO {
		p.StepTime = p.pairTime(c, perForward, perDecoded, perTrained)
		return nil
	}
	add := func(name string, seconds float64) {
		if seconds > 0 {
			p.StepTime = append(p.StepTime, Timed{name, seconds})
		}
	}
	add("rollout", prompts*p.PromptMean*perForward+seqsPerStep*p.AnswerMean*perDecoded)
	// The answers to a prompt pass with it once.
	answers := prompts*p.PromptMean + seqsPerStep*p.AnswerMean
	teacher := c.learnsTeacher(p.Stage)
	if c.Actor.ReadsEntropy() || !teacher && c.Actor.OldLogProb != "rollout" && (c.Actor.OldLogProb == "recompute" || !be.Alone()) {
		add("old_logp", answers*perForward)
	}
	judged := answers + prompts*p.AnswerMean
	critic, scores := judged*perTrained*float64(c.Critic.PPOEpochs), judged*perForward*c.scoredBefore(c.Data.TrainBatchSize)
	if c.Algorithm.FilterGroups.Enable { // the scores say which groups to replace
		add("score", scores)
		add("update_critic", critic)
	} else {
		add("update_critic", critic+scores)
	}
	if teacher {
		add("update_actor", prompts*whole*perTrained)
		return nil
	}
	if c.needsReference(p.Stage) {
		add("ref_logp", answers*perForward)
	}
	add("update_actor", answers*perTrained*float64(c.Actor.PPOEpochs))
	return nil
}

// Check refuses what cannot fit, naming the numbers.
func (p *Plan) Check(c Config) error {
	if p.tooLarge() {
		return fmt.Errorf("%w: plan: %w in memory: needs %s, %s are available: %s",
			ErrConfig, ErrTooLarge, bytesText(total(p.Memory)), bytesText(p.MemoryFree), p.Fits)
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
			fmt.Fprintf(&b, "  %-44s %10s", i.Name, bytesText(i.Bytes))
			if i.Note != "" {
				fmt.Fprintf(&b, "  (%s)", i.Note)
			}
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "  %-44s %10s", "total", bytesText(total(items)))
		if free > 0 {
			fmt.Fprintf(&b, " of %s available", bytesText(free))
		}
		b.WriteByte('\n')
	}
	items("memory", p.Memory, p.MemoryFree)
	items("disk", p.Disk, p.DiskFree)
	fmt.Fprintf(&b, "tokens\n  mean prompt %.0f, mean answer %.0f", p.PromptMean, p.AnswerMean)
	if p.Rows > 0 {
		fmt.Fprintf(&b, " (teacher's, over %s)", report.Count(p.Rows, "row"))
	} else {
		b.WriteString(" (the length limits, because no --data is given)")
	}
	b.WriteByte('\n')
	if len(p.StepTime) > 0 {
		fmt.Fprintf(&b, "time of a step, extrapolated from a short measurement (%s)\n", p.Measured)
		sum := 0.0
		for _, t := range p.StepTime {
			fmt.Fprintf(&b, "  %-44s %10s\n", t.Name, secondsText(t.Seconds))
			sum += t.Seconds
		}
		fmt.Fprintf(&b, "  %-44s %10s\n", "step", secondsText(sum))
		if p.Steps > 0 {
			fmt.Fprintf(&b, "  %-44s %10s\n", fmt.Sprintf("%d steps", p.Steps), secondsText(sum*float64(p.Steps)))
		}
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
