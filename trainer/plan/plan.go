// Package plan computes the memory, disk space and time of a run before it starts, and the settings
// with which it fits.
//
//	plan.go     a plan, and its table
//	memory.go   bytes of memory and disk
//	step.go     the time of a step, measured on a slice of the model
//	predict.go  the time of a step on a GPU that is not there
//	time.go     the time of a run
//	ranks.go    the traffic between ranks
//	fit.go      the cheapest settings that fit a memory
//	cards.go    the table of common GPUs in doc/memory.md
package plan

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gad/checkpoint"
	"gad/data"
	"gad/internal/compute/cost"
	"gad/internal/compute/cpu"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// ErrTooLarge reports a run that cannot fit this machine.
var ErrTooLarge = errors.New("does not fit")

// Plan holds the resources that a run will take.
type Plan struct {
	Stage      config.Stage
	Memory     []Item // bytes, all held at once
	MemoryFree int64  // bytes available now; 0: unknown
	Host       []Item // bytes in the memory of a GPU's host
	HostFree   int64
	// if Memory or Host does not fit: settings that would, or that none would
	Fits        string
	Fit         *Fit // result of NewFitting
	Disk        []Item
	DiskFree    int64
	Rows, Steps int
	LeftOut     int     // estimated number of rows that the length limits leave out
	leftOutFor  string  // why
	Chosen      string  // rows that data.where leaves, in words; "": all
	PromptMean  float64 // tokens
	AnswerMean  float64 // tokens, of the teacher, cut at the limit and by teacher.horizon
	// tokens of the prompts that the teacher reads (teacher.prompt_key); 0: PromptMean
	TeacherPromptMean float64
	ValRows           int     // rows that a validation reads
	StepTime          []Timed // an estimate from a short measurement
	// seconds of a step whose answers all have the longest length; 0: unknown
	AtLimit   float64
	Repeated  []Repeated // work between steps
	Measured  string     // what was measured, in words
	Predicted bool       // StepTime is predicted for a GPU that this machine need not have
	Faster    string     // a setting with which a predicted step is shorter; "": none

	limit      int // longest answer, tokens
	chunks     model.Chunks
	lastOnly   bool    // the discriminator reads a thought's last chunk
	whole      float64 // AnswerMean without a horizon
	soft       bool    // rows have log-probabilities of the teacher
	checkpoint int64   // bytes of a checkpoint
	// the run that this one starts from has validated the student already
	validated bool

	together                      int   // rollout.max_num_seqs where that is 0: see choose
	actorGradient, criticGradient int64 // bytes
	actorWeights, criticWeights   int64 // bytes of the weights in the precision that computes

	ranks     int // of the run; 0 means 1
	footprint model.Footprint
	shape     model.Config
	teacher   theirs
}

// Item is a named number of bytes.
type Item struct {
	Name  string
	Bytes int64
	Note  string
}

// Timed is a named part of a step with its time.
type Timed struct {
	Name    string
	Seconds float64
}

// theirs is a teacher's work beside the student's.
type theirs struct {
	cost  float64 // operations of a token under the teacher, divided by the student's
	apart float64 // prompts that it reads for each prompt of the student
}

// New returns the plan of a run of the stage: it reads the model's configuration and the data, and
// times a slice of the model on be. Without the device, be is nil: then memory is planned for f,
// and nothing is timed; or be is a model of its cost (package cost), on which a step is predicted.
// free, unless 0, is the memory to plan for, in bytes, instead of the device's.
func New(be model.Backend, f model.Footprint, free int64, fsys checkpoint.FS, c config.Config,
	stage config.Stage) (*Plan, error) {
	return newPlan(be, f, free, fsys, c, stage, false)
}

// NewFitting returns the plan of c with the settings added by which it fits (Plan.Fit). If none
// fit, it is the plan of c, without a Fit.
func NewFitting(be model.Backend, f model.Footprint, free int64, fsys checkpoint.FS,
	c config.Config, stage config.Stage) (*Plan, error) {
	return newPlan(be, f, free, fsys, c, stage, true)
}

// newPlan implements New and NewFitting.
func newPlan(be model.Backend, f model.Footprint, free int64, fsys checkpoint.FS, c config.Config,
	stage config.Stage, fit bool) (*Plan, error) {
	fsys = vfs.OrDisk(fsys)
	if be == nil && f == nil {
		return nil, fmt.Errorf("%w: trainer: a plan has neither a backend nor a footprint: give device.Options.Footprint", config.ErrConfig)
	}
	if complaint := c.CheckOffload(stage); complaint != "" {
		return nil, fmt.Errorf("%w: plan: %s", config.ErrConfig, complaint)
	}
	dir, measured := c.Model.Path, false
	if c.Trainer.Resume != "" {
		ckpt, _, err := saved.Find(fsys, c.Trainer.Resume)
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(ckpt, "actor")
		// the run itself checks the rest of the state
		if s, err := saved.Read(fsys, ckpt); err == nil {
			measured = s.Validated != nil
		}
	}
	if dir == "" {
		return nil, fmt.Errorf("%w: plan: no student: give model.path (flag --model)",
			config.ErrConfig)
	}
	if err := saved.CheckModel(fsys, dir); err != nil {
		return nil, err
	}
	shape, err := model.ReadConfig(dir)
	if err != nil {
		return nil, err
	}
	device := f
	if be != nil {
		device = be
	}
	if err := shape.CheckDevice(device); err != nil {
		return nil, err
	}
	if c.LoadsTeacher(stage) {
		if slices.Contains(c.Teacher.Folders(), "") {
			return nil, fmt.Errorf("%w: plan: no teacher: give teacher.path (flag --teacher)",
				config.ErrConfig)
		}
		for _, m := range c.Teacher.List() {
			if m.URL != "" {
				continue
			}
			if err := saved.CheckModel(fsys, m.Path); err != nil {
				return nil, fmt.Errorf("%s: %w", m.Key, err)
			}
			shape, err := model.ReadConfig(m.Path)
			if err != nil {
				continue // opening the run reports it
			}
			if err := m.CheckLongest(&c, stage, shape.MaxPosition); err != nil {
				return nil, err
			}
		}
	}
	if err := c.Rollout.Validate(); err != nil && stage != config.SFT {
		return nil, fmt.Errorf("%w: %w", config.ErrConfig, err)
	}
	if err := c.CheckSizes(stage, dir, shape); err != nil {
		return nil, err
	}
	if err := c.CheckBatch(c.StepAnswers(stage), c.Data.MaxPrompt+c.MaxAnswer(stage),
		cpu.MemoryAvailable()); err != nil {
		return nil, err
	}
	p := &Plan{Stage: stage, PromptMean: float64(c.Data.MaxPrompt),
		AnswerMean: c.MeanSampled(stage, float64(c.MaxAnswer(stage))), Steps: c.Trainer.TotalSteps,
		validated: measured, whole: float64(c.MaxAnswer(stage)),
		chunks: c.Chunks(stage), lastOnly: c.Critic.Reads == "last"}
	if c.LoadsTeacher(stage) && (c.Teacher.PromptKey != "" || c.Coach.On(stage)) {
		p.TeacherPromptMean =
			float64(c.Teacher.LongestPrompt(c.Data) + c.Coach.Longer(stage))
	}
	p.teacher.apart = apart(c, stage)
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
	if t := c.Trainer; stage.HasCritic() && t.CriticWarmupUntil > 0 { // the largest number
		p.Steps = max(p.Steps, t.CriticWarmup) + max(0, t.CriticWarmupMax-t.CriticWarmup)
	}
	card, predicted := be.(*cost.Backend)
	if be != nil && !predicted && c.Trainer.Device == "cuda" { // a predicted card's host is unknown
		p.HostFree = cpu.MemoryAvailable()
	}
	if fit && p.MemoryFree == 0 {
		return nil,
			fmt.Errorf("%w: plan: --fit: the memory of the device is not known: give --memory GB",
				config.ErrConfig)
	}
	p.footprint, p.shape = f, shape
	if c.LoadsTeacher(stage) {
		length := (p.PromptMean + p.AnswerMean) / 2
		read := (p.promptOf(config.Teacher)/max(p.teacher.apart, 1) + p.AnswerMean) / 2
		for _, x := range teacherShapes(c, shape) { // as if each scored as many rows
			p.teacher.cost += x.FLOPsPerToken(read, true) / shape.FLOPsPerToken(length, true) /
				float64(len(c.Teacher.Folders()))
		}
	}
	p.choose(f, shape, c)
	p.setMemory(f, shape, c)
	if p.tooLarge() || fit {
		// Moments that an earlier stage stored in float32 stay in float32.
		found := p.fit(f, shape, c, c.Trainer.Resume != "")
		p.Fits = p.wayOut(found, f, shape, c)
		if fit && found.fits {
			p.Fit, c = found, found.config
			p.choose(f, shape, c)
			p.setMemory(f, shape, c)
		}
	}
	p.planDisk(shape, c)
	p.limit = int(c.MeanSampled(stage, float64(c.MaxAnswer(stage))))
	if c.Trainer.Output != "" {
		if p.DiskFree, err = fsys.Free(c.Trainer.Output); err != nil &&
			!errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errors.ErrUnsupported) {
			return nil, fmt.Errorf("plan: %w", err)
		}
	}
	if be == nil || p.tooLarge() || be.Available() > 0 && Total(p.Memory) > be.Available() {
		return p, nil // nothing to time it on, or the measurement itself might not fit
	}
	timed := func() error { return p.measureTime(be, shape, c) }
	if predicted {
		timed = func() error { return p.predictTime(card, shape, c) }
	}
	if err := timed(); err != nil {
		return p, err
	}
	p.addCheckpoints(c)
	return p, nil
}

// measureData reads up to 512 rows for their mean lengths.
func (p *Plan) measureData(dir string, c config.Config) error {
	tok, err := saved.ChatTokenizer(dir,
		tokenizer.ChatOptions{Variables: c.Data.Template, Template: c.Data.ChatTemplate})
	if err != nil {
		return err
	}
	set, err := data.OpenFiles(c.Data.TrainFiles, c.TrainOptions(p.Stage, nil))
	if err != nil {
		return err
	}
	defer set.Close()
	if err := set.ForTokenizer(tok.Digest()); err != nil {
		return err
	}
	p.Chosen = set.Chosen()
	enc := encode.Encoder{Tok: tok, MaxPrompt: c.Data.MaxPrompt, MaxResponse: c.MaxAnswer(p.Stage)}
	theirs := enc
	if p.TeacherPromptMean > 0 {
		first := c.Teacher.Folders()[0] // several have templates of one kind, as the plan counts
		if theirs.Tok, err = saved.ChatTokenizer(first,
			tokenizer.ChatOptions{Variables: c.Teacher.Template}); err != nil {
			return fmt.Errorf("teacher %s: %w", first, err)
		}
	}
	const most = 512
	var prompts, answers, n, read, teachers, whole float64
	for i := 0; i < set.Len(); i += max(1, set.Len()/most) {
		r, err := set.Row(i)
		if err != nil {
			return err
		}
		ids, err := enc.Prompt(r)
		if err != nil {
			return fmt.Errorf("data: row %d: %w", r.Index, err)
		}
		read++
		all := enc.Answer(r.Teacher)
		if r.Turns != nil {
			if all, _, err = enc.Reply(r); err != nil {
				return fmt.Errorf("data: row %d: %w", r.Index, err)
			}
		}
		p.soft = p.soft || r.Logprobs != nil && r.LogprobsFault() == ""
		answer := enc.Response(all)
		if c.Data.Overlong == "filter" && len(ids) > c.Data.MaxPrompt ||
			c.Data.TruncTeacher == "filter" && (!answer.Finished || r.Unfinished()) {
			continue // as the run leaves it out
		}
		if p.TeacherPromptMean > 0 {
			asked, err := encode.ForTeacher(r, c.Teacher.System)
			if err != nil {
				return err
			}
			ids, err := theirs.Prompt(asked)
			if err != nil {
				return fmt.Errorf("data: row %d: the teacher's chat template: %w", r.Index, err)
			}
			teachers += float64(len(ids))
		}
		prompts, whole, n = prompts+float64(len(ids)), whole+float64(answer.Len()), n+1
		answers += c.MeanSampled(p.Stage, float64(answer.Len()))
	}
	if n == 0 && read > 0 {
		return fmt.Errorf("data: %s: none of %s is within data.max_prompt_length %d and data.max_response_length %d: raise them", strings.Join(set.Files(), " "), report.Count(int(read), "row"), c.Data.MaxPrompt, c.Data.MaxResponse)
	}
	rows := int(math.Round(float64(set.Len()) * n / max(read, 1)))
	if c.LearnsRanking(p.Stage) {
		all := make([]int32, set.Len())
		for i := range all {
			all[i] = int32(i)
		}
		ranked, err := enc.Rankable(set, all, c.Rollout.N)
		if err != nil {
			return err
		}
		rows = int(math.Round(float64(rows) * float64(len(ranked)) / float64(len(all))))
	}
	if err := c.CheckRows(rows); err != nil {
		return err
	}
	p.leftOutFor = "over the length limits"
	if c.LearnsRanking(p.Stage) {
		p.leftOutFor += " or have equal scores"
	}
	p.Rows, p.LeftOut, p.PromptMean, p.AnswerMean =
		rows, set.Len()-rows, prompts/max(n, 1), answers/max(n, 1)
	p.TeacherPromptMean, p.whole = teachers/max(n, 1), whole/max(n, 1)
	if p.TeacherPromptMean > 0 { // notes as long as they may be
		p.TeacherPromptMean += float64(c.Coach.Longer(p.Stage))
	}
	if len(c.Data.ValFiles) > 0 {
		val, err := data.OpenFiles(c.Data.ValFiles, c.Data.ValOptions(nil))
		if err != nil {
			return fmt.Errorf("data.val_files: %w", err)
		}
		defer val.Close()
		p.ValRows = min(c.Trainer.ValRows, val.Len())
	}
	if p.Steps == 0 {
		p.Steps = (c.Trainer.TotalEpochs*rows + c.Data.TrainBatchSize - 1) / c.Data.TrainBatchSize
	}
	return nil
}

// setMemory sets the memory of a run of c, on device and host.
func (p *Plan) setMemory(f model.Footprint, shape model.Config, c config.Config) {
	known := networksOf(f, shape)
	p.Memory, p.Host = p.planMemory(known, c), p.planHost(known, c)
}

// tooLarge reports whether memory of device or host does not suffice.
func (p *Plan) tooLarge() bool {
	return p.MemoryFree > 0 && Total(p.Memory) > p.MemoryFree || p.hostTooLarge()
}

func (p *Plan) hostTooLarge() bool { return p.HostFree > 0 && Total(p.Host) > p.HostFree }

// SetRanks makes p the plan of one of several ranks: with trainer.shard_optimizer each takes less
// memory than one process.
func (p *Plan) SetRanks(c config.Config, ranks int) {
	if p.ranks = ranks; p.Fit != nil {
		c = p.Fit.config
	}
	p.choose(p.footprint, p.shape, c)
	p.setMemory(p.footprint, p.shape, c)
}

// Warnings returns the warnings about the settings c and about the length of the run, with which
// the run itself would begin.
func (p *Plan) Warnings(c config.Config) []string {
	warnings := c.Warnings(p.Stage)
	if p.Steps > 0 {
		warnings = append(warnings, c.LengthWarnings(p.Stage, p.Rows, p.Steps)...)
	}
	return warnings
}

// Check returns an error with the numbers if the plan does not fit.
func (p *Plan) Check(c config.Config) error {
	if p.tooLarge() {
		where, needs, free := "memory", p.Memory, p.MemoryFree
		if p.hostTooLarge() && (free == 0 || Total(needs) <= free) {
			where, needs, free = "the host's memory", p.Host, p.HostFree
		}
		return fmt.Errorf("%w: plan: %w in %s: needs %s, %s are available: %s",
			config.ErrConfig, ErrTooLarge, where, report.Bytes(Total(needs)), report.Bytes(free),
			p.Fits)
	}
	if need := Total(p.Disk); p.DiskFree > 0 && need > p.DiskFree {
		return fmt.Errorf("%w: plan: %w on the disk of %s: needs %s, %s are free: lower trainer.max_ckpt_to_keep, or give another --output: %w",
			config.ErrConfig, ErrTooLarge, c.Trainer.Output, report.Bytes(need),
			report.Bytes(p.DiskFree), checkpoint.ErrSpace)
	}
	return nil
}

// String formats the plan as a table.
func (p *Plan) String() string {
	var b strings.Builder
	items := func(title string, items []Item, free int64) {
		fmt.Fprintf(&b, "%s\n", title)
		for _, i := range items {
			fmt.Fprintf(&b, "  %-52s %10s", i.Name, report.Bytes(i.Bytes))
			if i.Note != "" {
				fmt.Fprintf(&b, "  (%s)", i.Note)
			}
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "  %-52s %10s", "total", report.Bytes(Total(items)))
		if free > 0 {
			fmt.Fprintf(&b, " of %s available", report.Bytes(free))
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
	if p.TeacherPromptMean > 0 {
		fmt.Fprintf(&b, ", mean prompt that the teacher reads %.0f", p.TeacherPromptMean)
	}
	if p.Rows > 0 {
		fmt.Fprintf(&b, " (teacher's, over %s", report.Count(p.Rows, "row"))
		if p.LeftOut > 0 {
			fmt.Fprintf(&b, "; about %d more are %s and left out", p.LeftOut, p.leftOutFor)
		}
		b.WriteByte(')')
		if p.Chosen != "" {
			b.WriteString("\n  " + p.Chosen)
		}
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
			fmt.Fprintf(&b, "  %-52s %10s\n", t.Name, report.Seconds(t.Seconds))
		}
		fmt.Fprintf(&b, "  %-52s %10s\n", "step", report.Seconds(p.step()))
		b.WriteString(p.Faster)
		b.WriteString(p.runText())
	}
	return b.String()
}
