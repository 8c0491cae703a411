package trainer

import (
	"fmt"
	"slices"
	"strings"

	"gad/actor"
	"gad/checkpoint"
	"gad/data"
	"gad/internal/compute/cpu"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// stage is what a run does with its rows, step after step. To add one: a type that embeds basic and
// overrides the methods in which it differs, an entry of stages, and its passes in
// config/passes.go.
type stage interface {
	// reads returns how the stage reads the training data.
	reads(data.Stages) data.Options
	// usable returns the rows that the stage can learn from, and adds a note to s about the others.
	usable(rows []int32, s *start) ([]int32, error)
	// check refuses rows and settings with which no step can be taken; note is a warning or "".
	check(u encode.Usable) (note string, err error)
	// total returns the steps of the run, given the steps that the settings ask for. waitSteps
	// returns how many of the first steps the student does not learn in.
	total(planned int) int
	waitSteps() int

	// open opens the stage's models and state other than the student, new or resumed.
	open(s *start) error
	// networks returns the stage's networks but the student and the reference. hasReference reports
	// whether the stage needs the reference.
	networks() []network
	hasReference() bool
	close() error

	// step takes a step, and adds its figures to m.
	step(m Metrics) error
	// passes lists the passes of a step with the given number of prompts. heads returns how many
	// products with a network's head a pass takes for its loss.
	passes(prompts int) []config.Pass
	heads(x config.Pass) float64
	// stepSeqs returns all sequences of the step just taken, passSeqs the sequences of one of its
	// passes.
	stepSeqs() []model.Seq
	passSeqs(x config.Pass) []model.Seq

	// save writes the stage's own files into a checkpoint, and its small state into s. bytes
	// returns an upper bound of the files' size.
	save(d *checkpoint.Dir, s *saved.State) error
	bytes() int64

	// warning returns a warning to print before the first step, about the start s, or after the
	// last step, with s nil; "": none. length returns the number of steps of the run, in words.
	warning(s *start) string
	length() string
	// soft reports whether soft labels are learned where rows have them. asksChecker reports
	// whether the checker scores the student's answers in training.
	soft() bool
	asksChecker() bool
}

// stages are the kinds of runs. draws makes a stage's seed its own: train does not repeat the rows
// and the random numbers of the warm-up.
var stages = map[config.Stage]struct {
	draws uint64
	make  func(basic, *start) stage
}{
	config.SFT:    {0, newSFT},
	config.Warmup: {1, newGame},
	config.Train:  {2, newGame},
	config.DPO:    {3, newDPO},
	config.OPD:    {4, newOPD},
}

// basic is a stage with nothing but the student. All stages embed it.
type basic struct {
	t    *Trainer
	kind config.Stage
}

func (basic) usable(rows []int32, _ *start) ([]int32, error) { return rows, nil }
func (basic) total(planned int) int                          { return planned }
func (basic) waitSteps() int                                 { return 0 }
func (basic) open(*start) error                              { return nil }
func (basic) networks() []network                            { return nil }
func (basic) close() error                                   { return nil }
func (basic) save(_ *checkpoint.Dir, _ *saved.State) error   { return nil }
func (basic) bytes() int64                                   { return 0 }
func (basic) warning(*start) string                          { return "" }

func (b basic) reads(stages data.Stages) data.Options {
	return b.t.cfg.TrainOptions(b.kind, stages)
}

func (b basic) length() string     { return report.Count(b.t.total, "step") }
func (b basic) hasReference() bool { return b.t.cfg.NeedsReference(b.kind) }
func (b basic) soft() bool         { return b.t.cfg.SoftLabels(b.kind) }
func (b basic) asksChecker() bool  { return b.t.cfg.ChecksAnswers(b.kind) }

func (b basic) check(u encode.Usable) (note string, err error) {
	c := b.t.cfg
	if err := c.CheckBatch(c.StepAnswers(b.kind), c.Data.MaxPrompt+b.t.enc.MaxResponse,
		cpu.MemoryAvailable()); err != nil {
		return "", err
	}
	return u.CheckPairs(strings.Join(c.Data.TrainFiles, " "), c, b.kind)
}

func (b basic) passes(prompts int) []config.Pass {
	return b.t.cfg.Passes(b.kind, prompts, b.t.be.Alone())
}

func (b basic) heads(x config.Pass) float64 {
	return b.t.cfg.LossHeads(b.kind, x, b.t.train.soft)
}

// network is a model of the run.
type network struct {
	of     config.Network
	model  *model.Model
	optim  *model.Optimizer // nil: frozen, and in no checkpoint
	name   string           // its folder in a checkpoint
	states string           // the optimizer's file there
	reads  []model.Seq      // of a teacher: the step's sequences, as it has read them
}

// networks returns the networks of the run but a teacher, the student first. Ranks divide their
// work and require equal weights; a teacher is computed by each rank alone.
func (t *Trainer) networks() []network {
	list := append([]network{{of: config.Student, model: t.actor.Model(),
		optim: t.actor.Optimizer(), name: "actor", states: saved.ActorOptimizer}},
		t.stage.networks()...)
	if t.reference != nil {
		list = append(list, network{of: config.Reference, model: t.reference.Model()})
	}
	if t.judges.heldOut != nil {
		list = append(list, network{of: config.Discriminator, model: t.judges.heldOut})
	}
	return slices.DeleteFunc(list, func(n network) bool { return n.of == config.Teacher })
}

// trainable returns the networks that have an optimizer.
func (t *Trainer) trainable() []network {
	return slices.DeleteFunc(t.networks(), func(n network) bool { return n.optim == nil })
}

// learnTeachers takes one optimizer step of cross entropy on the teacher's answers, and adds its
// metrics to m.
func (b basic) learnTeachers(m Metrics, rows encode.Batch) error {
	t := b.t
	learned := t.form.trainSeqs(rows.Teachers())
	var st actor.Stats
	err := t.phase(m, "update_actor", t.actor.Model(), learned, 1, func() (err error) {
		st, err = t.actor.SoftSFT(learned, b.softLabels(rows, learned))
		return err
	})
	if err != nil {
		return err
	}
	if st.Passes > 0 { // otherwise it was skipped whole, and has no figure
		m["actor/sft_loss"], m["actor/entropy"] = st.Loss, st.Entropy
		b.describeSoft(m, rows, st)
	}
	return t.noteUpdates(m, "actor", st.GradNorm, st.LR, st.Updates, st.Skipped, st.Streak)
}

// describeTeacher adds the metrics of the teacher's answers to m.
func (basic) describeTeacher(m Metrics, rows encode.Batch) {
	var lens, cut float64
	for _, row := range rows {
		lens += float64(row.Teacher.Trained())
		if row.TeacherCut {
			cut++
		}
	}
	m["teacher/unique_frac"] = uniqueFrac(rows.Teachers(), nil)
	m["teacher/len_mean"], m["teacher/truncated_frac"] =
		lens/float64(len(rows)), cut/float64(len(rows))
	if x, ok := m["rollout/len_mean"]; ok {
		m["rollout/len_ratio"] = x / m["teacher/len_mean"]
	}
}

// noteUpdates adds the metrics of a network's optimizer steps to m. It returns ErrNumerical after
// too many consecutive skipped steps (a score, loss or gradient was not finite).
func (t *Trainer) noteUpdates(m Metrics, who string, gradNorm, lr float64,
	updates, skipped, streak int) error {
	if updates > 0 {
		m[who+"/grad_norm"], m[who+"/lr"] = gradNorm, lr
		t.past.skipped[who] = 0
	}
	t.past.skipped[who] += streak
	if skipped > 0 {
		m[who+"/skipped_updates"] = float64(skipped)
		t.log.Warn(
			fmt.Sprintf(
				"%s: a score, loss or gradient is not finite: update skipped, weights unchanged",
				who))
	}
	if t.past.skipped[who] >= t.cfg.Trainer.MaxSkips {
		return fmt.Errorf("%w: %s: %d optimizer steps in a row with a score, loss or gradient that is not finite (trainer.max_skips): lower %s.optim.lr and %s", ErrNumerical, who, t.past.skipped[who], who, t.recoveryAdvice())
	}
	return nil
}

// recoveryAdvice returns where to resume from after the numbers have broken down, for an error
// message.
func (t *Trainer) recoveryAdvice() string {
	if t.past.lastGood > 0 {
		return fmt.Sprintf(
			"resume from global_step_%d, the last checkpoint before updates were skipped",
			t.past.lastGood)
	}
	return "start again with another --output"
}
