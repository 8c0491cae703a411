// Package trainer trains a student. It is the loop. The packages below it, which the loop uses and
// which do not import it, are config, saved, encode, episode, export, plan and quality.
//
// A run has one stage, which defines a step, and one form of an answer, which defines the sequences
// in which the student writes and learns it. The loop takes steps, records, validates and saves,
// and does not know which stage and form it has. Between the two stand the records of a round:
// groups, each a prompt with its answers.
//
//	step.go           a step of the game: start here
//	round.go          the records of a step: groups of answers, with scores and advantages
//	stage.go          the interface of a stage, and what all stages share
//	onpolicy.go       the stages whose student learns from its own answers
//	reward.go         of the game: from scores to rewards, and groups that are replaced
//	passes.go         of the game: forward passes, only where their results are read
//	criticwarmup.go   of the game: the steps in which the discriminator learns alone
//	discriminator.go  of the game: the discriminator, opened and saved
//	teacher.go        a teacher that gives probabilities; spell.go: one with another tokenizer
//	opd.go            on-policy distillation
//	dpo.go            DPO
//	sft.go            SFT; soft.go: soft labels; ranking.go: learning the order of scored answers
//
//	form.go           the interface of a form of answers
//	single.go         one text
//	chunks.go         a thought in chunks
//	episodes.go       a conversation with an environment
//	tree.go           answers of these forms that branch
//
//	open.go           the order in which a run is opened or resumed
//	start.go          the checkpoint that a run starts from, and its folder
//	data.go           rows, and notes about them
//	models.go         student and reference
//	introduce.go      the lines that a run prints before its first step
//
//	run.go            the steps of a run, its end, and signs of a sick one
//	validate.go       the student on held-out rows
//	judges.go         the checker and the held-out discriminator
//	state.go          checkpoints
//	account.go        time, tokens and operations of a step
//	ranks.go          several processes
//	devices.go        their devices
//	trainer.go        the run itself
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

// Errors that callers test for.
var (
	// ErrInterrupted reports a run that was asked to stop, has saved, and can go on.
	ErrInterrupted = fault.ErrInterrupted
	// ErrNumerical reports a run that stopped because its numbers broke down.
	ErrNumerical = errors.New("numerical stop")
)

// Ranks are the processes that train together.
type Ranks = model.Ranks

// Options holds what a run needs from the process around it.
type Options struct {
	FS      checkpoint.FS // nil is the disk
	Backend model.Backend // where to compute, from device.Open
	Console io.Writer     // for people; nil is silent
	TTY     bool
	Command string   // as typed, for the log
	Notes   []string // warnings that are given when the run begins
	Ranks   *Ranks   // the processes that train together; nil is this one alone
	// servers of teacher.url and teacher.models, by their addresses
	Teachers map[string]Scores
	// keys of the settings that only a preset gave; a warm-up among them is cut to fit a short run
	Preset []string
}

// Scores is a server that scores a teacher's tokens.
type Scores interface {
	// Check tries the server on some sequences, with k alternatives; piece returns a token's text.
	Check(ctx context.Context, seqs []model.Seq, k int, piece func(id int32) []byte) error
	// Score gives the log-probabilities of the trained tokens [S][T] at temperature 1 and, with k
	// above 0, labels of the k most probable tokens.
	Score(ctx context.Context, seqs []model.Seq, k int) (logpST [][]float32,
		labelsST [][]model.SoftLabel, err error)
}

// Trainer is one run of one stage: the loop, and the state that stages and forms read.
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

	con    *report.Console
	rec    *report.Recorder
	log    *zap.Logger
	warned map[string]bool // names of the signs that this process has warned of
	lock   *checkpoint.Lock
}

// progress is the state of a run other than its weights. Most of it is saved in checkpoints.
type progress struct {
	// steps that the settings ask for; total differs where the discriminator learns alone until its
	// loss is low enough (game.total)
	planned  int
	saved    atomic.Int64 // step of the newest checkpoint; Abort reads it from another goroutine
	verified map[int]bool // checkpoints that this process has written or read
	lastGood int          // step of the last commit with no update skipped just before it; 0: none
	before   saved.Updates
	best     saved.Best
	// the newest validation, of this run or of the run that it starts from; nil: none
	validated *saved.Validation
	// a check has found the sampler's log-probabilities to differ from the trainer's
	oldDiffers bool
	skipped    map[string]int // consecutive skipped updates, by network
	baseDType  string         // the student's, before training
	slots      int            // rollout.max_num_seqs of the memory; 0: the settings'
}

// sick reports whether the latest updates of a network were skipped.
func (p *progress) sick() bool { return p.skipped["actor"]+p.skipped["critic"] > 0 }

// seed returns the run's seed, different for each stage.
func (t *Trainer) seed() uint64 { return t.cfg.Trainer.Seed + stages[t.Stage].draws<<56 }

// Config returns the resolved configuration.
func (t *Trainer) Config() config.Config { return t.cfg }

// Steps returns the steps done so far and the steps that the run has in all.
func (t *Trainer) Steps() (done, total int) { return t.step, t.total }

// Close frees the run's memory, closes its files and unlocks its folder. It does not save.
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
