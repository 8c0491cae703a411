// Package trainer runs the stages, which config.Stages lists. It is the loop; what the loop
// stands on has rooms of its own below this folder, none of which imports the loop: config,
// saved, encode, episode, export, plan and quality.
//
//	step.go          a step of the game: start here
//	dpo.go           a step of DPO
//	ranking.go       a step of SFT by the order of scored answers
//	opd.go           a step of OPD, and its teacher; spell.go: one with another tokenizer
//	soft.go          soft labels of the teacher's answers
//	reward.go        from scores to rewards, and groups that are replaced
//	passes.go        the forward passes that a step takes, and those that it need not
//	criticwarmup.go  the steps in which the discriminator learns alone
//	environment.go   episodes: what a step has beside that of single answers
//	tree.go          answers that branch
//	judges.go        the checker and the held-out discriminator
//	validate.go      the student on held-out rows
//
//	open.go          the order in which a run is opened or resumed
//	start.go         what a run starts from, and its folder
//	data.go          rows, and what is said of them
//	models.go        student, discriminator and reference
//	introduce.go     what a run says before its first step
//
//	run.go           the steps of a run, its end, and signs of a sick one
//	state.go         checkpoints
//	account.go       what a step has cost
//	ranks.go         several processes
//	devices.go       their devices
//	trainer.go       the run itself
package trainer

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"gad/actor"
	"gad/algos"
	"gad/checkpoint"
	"gad/critic"
	"gad/data"
	"gad/internal/checker"
	"gad/internal/compute"
	"gad/internal/env"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/reference"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// What callers branch on.
var (
	// ErrInterrupted reports a run that was asked to stop, has saved, and can go on.
	ErrInterrupted = fault.ErrInterrupted
	// ErrNumerical reports a run that stopped because its numbers broke down.
	ErrNumerical = errors.New("numerical stop")
)

// Ranks are the processes that train together.
type Ranks = model.Ranks

// Options are what a run needs from the process around it.
type Options struct {
	FS      checkpoint.FS // nil is the disk
	Backend model.Backend // where to compute, from device.Open
	Console io.Writer     // for people; nil is silent
	TTY     bool
	Command string   // as typed, for the log
	Notes   []string // warnings that are given when the run begins
	Ranks   *Ranks   // the processes that train together; nil is this one alone
	Teacher Scores   // the server of teacher.url
	// settings that a preset gave and nobody else: a warm-up among them fits itself to a short run
	Preset []string
}

// Scores is a server that scores a teacher's tokens.
type Scores interface {
	// Check tries it on some sequences, with k alternatives; piece is the text of a token.
	Check(ctx context.Context, seqs []model.Seq, k int, piece func(id int32) []byte) error
	// Score gives the log-probabilities of the trained tokens [S][T] at temperature 1 and, with k
	// above 0, labels of the k most probable tokens.
	Score(ctx context.Context, seqs []model.Seq, k int) (logpST [][]float32,
		labelsST [][]model.SoftLabel, err error)
}

// Trainer is one run of one stage.
type Trainer struct {
	Stage config.Stage

	preset    []string // Options.Preset
	cfg       config.Config
	fs        vfs.FS
	be        compute.Backend
	ranks     *model.Ranks  // nil is one process
	traffic   model.Traffic // of ranks, at the end of the last step
	joined    string        // how the ranks' devices are connected; "" is not at all
	tok       *tokenizer.Tokenizer
	enc       encode.Encoder
	set, val  *data.Set
	rows      []int32     // usable rows of set
	chosen    string      // digest of rows: see digestRows
	valRows   []int       // rows of val that an evaluation takes
	order     *data.Order // of places in rows
	soft      bool        // the student learns soft labels that rows have
	actor     *actor.Actor
	critic    *critic.Critic    // nil in SFT, DPO and OPD
	reference *reference.Policy // nil where no KL is on
	teacher   *teacher          // nil where no probabilities of a teacher are read
	heldOut   *model.Model      // a discriminator that does not play; nil without one
	checker   *checker.Checker  // nil without one
	env       *env.Pool         // nil without one
	killEnv   func()
	ctx       context.Context // of Run; nil outside of it
	kl        algos.AdaptiveKL
	dpo       *algos.DPO[float64] // nil but in DPO
	frozen    *frozenPairs        // of DPO; nil keeps none
	con       *report.Console
	notes     []string
	rec       *report.Recorder
	log       *zap.Logger
	lock      *checkpoint.Lock

	stepRows    []int   // of the step under way
	done        work    // of the last step
	peak        float64 // floating-point operations a second; what perf/mfu is a share of
	step, total int     // steps done, steps to do
	// steps asked for: total, unless the discriminator's time alone ends by what it has learned
	planned  int
	disc     saved.Discriminator
	free     int64        // bytes of memory that were available when the run began; 0 is unknown
	saved    atomic.Int64 // step of the newest checkpoint; Abort reads it from another goroutine
	verified map[int]bool // checkpoints that this process has written or read
	// step of the last commit with no update skipped just before; 0 is none
	good     int
	counts   compute.Counts
	saveTime float64 // seconds of a save that no step has reported yet
	before   saved.Updates
	best     saved.Best
	// the newest validation, of this run or of the one it starts from; nil is none
	validated *saved.Validation
	named     map[string]bool // signs that this process has warned of
	// a check has found the sampler's log-probabilities to differ from the trainer's
	oldDiffers bool
	// thoughtless has it said once that no thought is there to be read.
	thoughtless sync.Once
	skipped     map[string]int
	baseDType   string // the student's, before training
}

// seed is the run's, made different for each stage: train does not draw the
// rows and the answers of the warm-up again.
func (t *Trainer) seed() uint64 {
	stage := map[config.Stage]uint64{config.SFT: 0, config.Warmup: 1, config.Train: 2,
		config.DPO: 3, config.OPD: 4}[t.Stage]
	return t.cfg.Trainer.Seed + stage<<56
}

// Config is the resolved configuration.
func (t *Trainer) Config() config.Config { return t.cfg }

// Steps are the steps done so far and the steps that the run has in all.
func (t *Trainer) Steps() (done, total int) { return t.step, t.total }

// Close frees everything and gives the run folder back. It does not save.
func (t *Trainer) Close() error {
	var errs []error
	t.con.Close()
	if t.rec != nil {
		errs = append(errs, t.rec.Close())
	}
	if t.actor != nil {
		errs = append(errs, t.actor.Close())
	}
	if t.critic != nil {
		errs = append(errs, t.critic.Close())
	}
	if t.reference != nil {
		errs = append(errs, t.reference.Close())
	}
	if t.dpo != nil {
		errs = append(errs, t.dpo.Close())
	}
	if t.teacher != nil {
		errs = append(errs, t.teacher.Close())
	}
	t.closeEnvironment()
	errs = append(errs, t.closeJudges())
	for _, set := range []*data.Set{t.set, t.val} {
		if set != nil {
			errs = append(errs, set.Close())
		}
	}
	if t.lock != nil {
		errs = append(errs, t.lock.Unlock())
	}
	return errors.Join(errs...)
}
