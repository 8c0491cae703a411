package trainer

import (
	"fmt"
	"slices"
	"strings"

	"gad/actor"
	"gad/checkpoint"
	"gad/internal/compute/cpu"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// stage is what a run does with its rows, step after step. A new one is a type that embeds basic
// and has the methods in which it differs, a row of stages, and its passes in config/passes.go.
type stage interface {
	// usable returns the rows that the stage can learn from, and notes in s what is left out.
	usable(rows []int32, s *start) ([]int32, error)
	// check refuses rows and settings with which no step can be taken; note is what is to be known.
	check(u encode.Usable) (note string, err error)
	// total returns the steps of the run where so many were asked for; waits, the steps of them in
	// which the student does not learn yet.
	total(planned int) int
	waits() int

	// open opens what the stage has beside the student, as the run begins or goes on.
	open(s *start) error
	// networks returns those beside the student, and compares whether the reference is one.
	networks() []network
	compares() bool
	close() error

	// step takes a step, and notes its figures.
	step(m Metrics) error
	// passes lists what a step computes with so many prompts; heads is how many products with a
	// network's head a pass takes for its loss.
	passes(prompts int) []config.Pass
	heads(x config.Pass) float64
	// passed returns all sequences of the step just taken, passedBy those of one of its passes.
	passed() []model.Seq
	passedBy(x config.Pass) []model.Seq

	// save writes what a checkpoint keeps beside the networks, and notes the rest in s. bytes is
	// the size of what it writes, from above.
	save(d *checkpoint.Dir, s *saved.State) error
	bytes() int64

	// warning returns what is to be known before the first step, of the start s, or, without one,
	// behind the last; "" is nothing. length returns how many steps the run has, in words.
	warning(s *start) string
	length() string
	// soft reports whether soft labels are learned where rows have them, checks whether the checker
	// is asked about the student's answers.
	soft() bool
	checks() bool
}

// stages are the kinds of runs. A stage's draws are its own: train does not draw the rows and the
// answers of the warm-up again.
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

// basic is a stage without anything beside the student, and what stages have in common.
type basic struct {
	t    *Trainer
	kind config.Stage
}

func (basic) usable(rows []int32, _ *start) ([]int32, error) { return rows, nil }
func (basic) total(planned int) int                          { return planned }
func (basic) waits() int                                     { return 0 }
func (basic) open(*start) error                              { return nil }
func (basic) networks() []network                            { return nil }
func (basic) close() error                                   { return nil }
func (basic) save(_ *checkpoint.Dir, _ *saved.State) error   { return nil }
func (basic) bytes() int64                                   { return 0 }
func (basic) warning(*start) string                          { return "" }

func (b basic) length() string { return report.Count(b.t.total, "step") }
func (b basic) compares() bool { return b.t.cfg.NeedsReference(b.kind) }
func (b basic) soft() bool     { return b.t.cfg.SoftLabels(b.kind) }
func (b basic) checks() bool   { return b.t.cfg.ChecksAnswers(b.kind) }

func (b basic) check(u encode.Usable) (note string, err error) {
	c := b.t.cfg
	if err := c.CheckBatch(c.StepAnswers(b.kind), c.Data.MaxPrompt+b.t.enc.MaxResponse,
		cpu.MemoryAvailable()); err != nil {
		return "", err
	}
	return u.Pairs(strings.Join(c.Data.TrainFiles, " "), c, b.kind)
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
}

// networks returns all of the run, the student first. What ranks divide among them, and want to be
// alike, are those but a teacher, which each passes forward alone.
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

// learning returns the networks that learn.
func (t *Trainer) learning() []network {
	return slices.DeleteFunc(t.networks(), func(n network) bool { return n.optim == nil })
}

// learnTeachers takes one optimizer step of cross entropy on the teacher's answers.
func (b basic) learnTeachers(m Metrics, rows encode.Batch) error {
	t := b.t
	learned := t.form.learned(rows.Teachers())
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
	return t.updated(m, "actor", st.GradNorm, st.LR, st.Updates, st.Skipped, st.Streak)
}

// describeTeacher adds the metrics of the teacher's answers.
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

// updated notes the optimizer steps of a network, and ends the run after too many in a row that
// were left out because a score, loss or gradient was not finite.
func (t *Trainer) updated(m Metrics, who string, gradNorm, lr float64,
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
		return fmt.Errorf("%w: %s: %d optimizer steps in a row with a score, loss or gradient that is not finite (trainer.max_skips): lower %s.optim.lr and %s", ErrNumerical, who, t.past.skipped[who], who, t.wayBack())
	}
	return nil
}

// wayBack says where to go on from when the numbers have broken down.
func (t *Trainer) wayBack() string {
	if t.past.good > 0 {
		return fmt.Sprintf(
			"resume from global_step_%d, the last checkpoint before updates were skipped",
			t.past.good)
	}
	return "start again with another --output"
}
