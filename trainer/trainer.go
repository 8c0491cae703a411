// Package trainer trains a student: it is the loop, and the rooms that the loop stands on lie below
// this folder, none of which imports the loop: config, saved, encode, episode, export, plan and
// quality.
//
// A run has one stage, which says what a step is, and one form of an answer, which says in which
// sequences the student writes and learns it. The loop takes steps, records, validates and saves,
// and learns the names of neither. Between the two stand the records of a round: groups of a prompt
// with its answers.
//
//	step.go          a step of the game: start here
//	round.go         what a step plays: groups, and answers with what is known of them
//	stage.go         what a stage is, and what all have in common
//	onpolicy.go      the stages whose student learns from its own answers
//	reward.go        of the game: from scores to rewards, and groups that are replaced
//	passes.go        of the game: forward passes, those that it need not take left out
//	criticwarmup.go  of the game: the steps in which the discriminator learns alone
//	discriminator.go of the game: the discriminator, opened and saved
//	teacher.go       a teacher that gives probabilities; spell.go: one with another tokenizer
//	opd.go           on-policy distillation
//	dpo.go           DPO
//	sft.go           SFT; soft.go: soft labels; ranking.go: by the order of scored answers
//
//	form.go          what a form of an answer is
//	single.go        one text
//	chunks.go        a thought in chunks
//	episodes.go      a conversation with an environment
//	tree.go          answers of these forms that branch
//
//	open.go          the order in which a run is opened or resumed
//	start.go         what a run starts from, and its folder
//	data.go          rows, and what is said of them
//	models.go        student and reference
//	introduce.go     what a run says before its first step
//
//	run.go           the steps of a run, its end, and signs of a sick one
//	validate.go      the student on held-out rows
//	judges.go        the checker and the held-out discriminator
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
	"sync/atomic"

	"go.uber.org/zap"

	"gad/actor"
	"gad/checkpoint"
	"gad/data"
	"gad/internal/compute"
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

// Trainer is one run of one stage: the loop, and what stages and forms stand on.
type Trainer struct {
	Stage config.Stage

	cfg   config.Config
	stage stage // what a step is
	form  form  // what an answer is

	fs    vfs.FS
	be    compute.Backend
	ranks *model.Ranks // nil is one process

	tok   *tokenizer.Tokenizer
	enc   encode.Encoder
	train trainData
	val   valData

	actor     *actor.Actor
	reference *reference.Policy // nil where no KL is on
	judges    judges

	ctx         context.Context // of Run; nil outside of it
	step, total int             // steps done, steps to do
	past        progress
	meter       meter

	con   *report.Console
	rec   *report.Recorder
	log   *zap.Logger
	named map[string]bool // signs that this process has warned of
	lock  *checkpoint.Lock
}

// progress is what a run has come to. Most of it stands in checkpoints.
type progress struct {
	// steps asked for: those of the run, unless the discriminator's time alone ends by what it has
	// learned
	planned  int
	saved    atomic.Int64 // step of the newest checkpoint; Abort reads it from another goroutine
	verified map[int]bool // checkpoints that this process has written or read
	good     int          // step of the last commit with no update skipped just before; 0 is none
	before   saved.Updates
	best     saved.Best
	// the newest validation, of this run or of the one it starts from; nil is none
	validated *saved.Validation
	// a check has found the sampler's log-probabilities to differ from the trainer's
	oldDiffers bool
	skipped    map[string]int // updates left out in a row, of each network
	baseDType  string         // the student's, before training
	slots      int            // rollout.max_num_seqs of the memory; 0: the settings'
}

// sick reports whether updates have just been left out.
func (p *progress) sick() bool { return p.skipped["actor"]+p.skipped["critic"] > 0 }

// seed returns the run's seed, made different for each stage.
func (t *Trainer) seed() uint64 { return t.cfg.Trainer.Seed + stages[t.Stage].draws<<56 }

// Config returns the resolved configuration.
func (t *Trainer) Config() config.Config { return t.cfg }

// Steps returns the steps done so far and the steps that the run has in all.
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
	if t.stage != nil {
		errs = append(errs, t.stage.close())
		t.form.close()
	}
	if t.reference != nil {
		errs = append(errs, t.reference.Close())
	}
	errs = append(errs, t.judges.close())
	for _, set := range []*data.Set{t.train.set, t.val.set} {
		if set != nil {
			errs = append(errs, set.Close())
		}
	}
	if t.lock != nil {
		errs = append(errs, t.lock.Unlock())
	}
	return errors.Join(errs...)
}
