// Package fidelity implements gad fidelity: it measures how well discriminators order a student's
// own answers to one prompt, compared with a teacher whose weights are known
// (trainer/quality/fidelity.go).
package fidelity

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"gad/apps/session"
	"gad/critic"
	"gad/data"
	"gad/device"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/quality"
	"gad/trainer/saved"
)

// Options says which discriminators order whose answers, and which teacher knows the truth.
type Options struct {
	Critics []string // checkpoints, runs or critic folders; empty: the trivial rewards alone
	Student string   // model folder; "": the student next to the first discriminator
	Teacher string
	Rows    session.Rows
	N       int // answers to each prompt, at least 2

	Temperature        float64 // of the answers; 0: as in the first discriminator's run
	TeacherTemperature float64 // at which the teacher would sample
	System             string  // system message for the teacher alone
	MaxPrompt          int     // tokens; longer prompts are left out; 0: as in the run
	MaxResponse        int     // tokens of an answer; 0: as in the run
	MaxTokens          int     // tokens of a forward pass
	Seed               uint64
	JSON               bool
	Output             string // file of the answers with their figures; "": none
	Device             device.Options
}

// Result is the JSON of gad fidelity.
type Result struct {
	Student            string             `json:"student"`
	Teacher            string             `json:"teacher"`
	Prompts            int                `json:"prompts"`
	Answers            int                `json:"answers"` // to each prompt
	Cut                float64            `json:"truncated_frac"`
	Temperature        float64            `json:"temperature"`
	TeacherTemperature float64            `json:"teacher_temperature"`
	Rewards            []quality.Fidelity `json:"rewards"`
}

// answer is a line of Options.Output.
type answer struct {
	Row         int                `json:"row"`
	Sample      int                `json:"sample"`
	PromptIDs   []int32            `json:"prompt_ids"`
	ResponseIDs []int32            `json:"response_ids"`
	Response    string             `json:"response"`
	Truncated   bool               `json:"truncated"`
	LogP        float64            `json:"student_logp"`
	Ratio       float64            `json:"log_ratio"`
	Scores      map[string]float64 `json:"scores"` // by discriminator
}

// Run measures the discriminators and prints the result, or writes JSON.
func Run(s *session.Session, o Options) error {
	r := &run{s: s, o: o}
	defer r.close()
	ctx, stop := s.Stoppable(
		func() string { return "stopping; a second Ctrl-C stops at once" },
		func() string { return "nothing is written" })
	defer stop()
	r.ctx = ctx
	if o.Output != "" {
		lock, err := r.outputFile().Claim(s.FS)
		if err != nil {
			return err
		}
		defer lock.Unlock()
	}
	result, err := r.measure()
	if errors.Is(err, fault.ErrInterrupted) {
		return fault.As(fault.ErrStopped, errors.New("fidelity: stopped: nothing is written"))
	}
	if err != nil {
		return err
	}
	if o.JSON {
		return session.PrintJSON(s.Out, result)
	}
	fmt.Fprintf(s.Out, "%s, %d answers each of %s at temperature %g; teacher %s at %g; 95 %% intervals in brackets\n%s\n",
		report.Count(result.Prompts, "prompt"), result.Answers, result.Student, result.Temperature,
		result.Teacher, result.TeacherTemperature, quality.FidelityHead)
	for _, f := range result.Rewards {
		fmt.Fprintln(s.Out, f)
	}
	return nil
}

// run is a run of gad fidelity.
type run struct {
	s   *session.Session
	o   Options
	ctx context.Context

	be      compute.Backend
	set     *data.Set
	student *session.Model
	rows    []int
	batch   encode.Batch
	read    [][]int32 // the rows' prompts as the teacher reads them
	groups  []quality.Group
	opt     quality.Options
}

// close frees models, device and rows.
func (r *run) close() {
	if r.student != nil {
		r.student.Model.Close()
	}
	if r.be != nil {
		r.be.Close()
	}
	if r.set != nil {
		r.set.Close()
	}
}

// measure samples the answers, computes the truth and every reward's fidelity, and writes the
// output.
func (r *run) measure() (*Result, error) {
	critics, err := r.resolve()
	if err != nil {
		return nil, err
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	if r.groups, err = quality.Sample(r.student.Model, r.student.Tokenizer, r.batch, r.o.N,
		r.opt); err != nil {
		return nil, err
	}
	if err := r.truth(); err != nil {
		return nil, err
	}
	result := &Result{Student: r.o.Student, Teacher: r.o.Teacher, Prompts: len(r.groups),
		Answers: r.o.N, Temperature: r.o.Temperature, TeacherTemperature: r.o.TeacherTemperature,
		Rewards: quality.MeasureTrivial(r.groups, r.o.Seed)}
	scores := make([][]float64, len(critics)) // of each discriminator
	for i, dir := range critics {
		if scores[i], err = r.score(dir); err != nil {
			return nil, err
		}
		result.Rewards = append(result.Rewards,
			quality.Measure(r.o.Critics[i], r.groups, scores[i], r.o.Seed))
	}
	for _, g := range r.groups {
		for _, x := range g.Answers {
			if x.Cut {
				result.Cut += 1 / float64(len(r.groups)*r.o.N)
			}
		}
	}
	return result, r.write(scores)
}

// resolve returns the folders of the discriminators. Options that are not set get the values of the
// first one's run.
func (r *run) resolve() (critics []string, err error) {
	o := &r.o
	for i, path := range o.Critics {
		dir := path
		if _, err := model.ReadConfig(path); err != nil { // no model: a checkpoint or a run
			if dir, _, err = saved.Find(r.s.FS, path); err != nil {
				return nil, err
			}
			dir = filepath.Join(dir, "critic")
		}
		if _, err := r.s.CheckCritic(session.Source{Path: dir}); err != nil {
			return nil, err
		}
		critics = append(critics, dir)
		if i > 0 {
			continue
		}
		above := filepath.Dir(filepath.Clean(dir))
		o.Student = cmp.Or(o.Student, filepath.Join(above, "actor"))
		c, err := r.settings(above)
		if err != nil {
			return nil, err
		}
		o.Temperature = cmp.Or(o.Temperature, c.Rollout.Temperature)
		o.MaxPrompt, o.MaxResponse =
			cmp.Or(o.MaxPrompt, c.Data.MaxPrompt), cmp.Or(o.MaxResponse, c.Data.MaxResponse)
	}
	d := config.Default()
	o.Temperature = cmp.Or(o.Temperature, 1)
	o.MaxPrompt, o.MaxResponse =
		cmp.Or(o.MaxPrompt, d.Data.MaxPrompt), cmp.Or(o.MaxResponse, d.Data.MaxResponse)
	if o.Student == "" {
		return nil, fault.Usagef("fidelity: --model is missing: name the student, or a discriminator with --critic")
	}
	if err := saved.CheckPart(r.s.FS, o.Student, "actor"); err != nil {
		return nil, err
	}
	return critics, nil
}

// settings returns the settings of the run that made a checkpoint; zero for an exported checkpoint.
func (r *run) settings(checkpoint string) (c config.Config, err error) {
	path := filepath.Join(filepath.Dir(checkpoint), saved.ConfigName)
	if _, err := r.s.FS.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	stage, err := saved.StageOf(r.s.FS, checkpoint)
	if err != nil {
		return c, err
	}
	c = config.StageDefaults(stage)
	return c, c.Load(path)
}

// open encodes the rows for student and teacher, and loads the student.
func (r *run) open() (err error) {
	o := r.o
	if r.set, r.rows, err = o.Rows.List(r.s); err != nil {
		return err
	}
	tok, err := saved.Tokenizer(o.Student)
	if err != nil {
		return err
	}
	difference, err := saved.CompareTokenizers(tok, o.Teacher, "--teacher")
	if err := cmp.Or(err, difference); err != nil {
		return err
	}
	r.opt = quality.Options{MaxResponse: o.MaxResponse, Temperature: o.Temperature, Seed: o.Seed,
		Slots: session.Slots, MaxTokens: o.MaxTokens, Stages: r.s.Console.Busy,
		Stop: func() bool { return r.ctx.Err() != nil }}
	if err := r.dropLongPrompts(tok); err != nil {
		return err
	}
	if r.batch, err = quality.EncodeRows(tok, r.set, r.rows,
		quality.Options{MaxPrompt: o.MaxPrompt, MaxResponse: o.MaxResponse,
			Stages: r.opt.Stages, Stop: r.opt.Stop}); err != nil {
		return err
	}
	shape, err := model.ReadConfig(o.Student)
	if err != nil {
		return err
	}
	if err := session.CheckLengths("fidelity", "max-response-length", r.batch.Prompts(), r.rows,
		o.MaxResponse, shape.MaxPosition); err != nil {
		return err
	}
	if err := r.readPrompts(tok); err != nil {
		return err
	}
	if r.be, err = session.OpenDevice(o.Device); err != nil {
		return err
	}
	_, done := r.s.Console.Busy("loading "+o.Student, 0)
	defer done()
	r.student, err = session.Load(r.be, session.Source{Path: o.Student}, model.LM)
	return err
}

// dropLongPrompts leaves out the rows whose prompts exceed MaxPrompt.
func (r *run) dropLongPrompts(tok *tokenizer.Tokenizer) error {
	var keep []int
	for _, row := range r.rows {
		ids, err := encode.Prompt(tok, r.set, row)
		if err != nil {
			return err
		}
		if len(ids) <= r.o.MaxPrompt {
			keep = append(keep, row)
		}
	}
	if n := len(r.rows) - len(keep); n > 0 {
		r.s.Console.Warn(fmt.Sprintf("%s: prompts longer than %d tokens: left out",
			report.Count(n, "row"), r.o.MaxPrompt))
	}
	if r.rows = keep; len(keep) < 2 {
		return fault.Usagef("fidelity: %s: figures need at least 2 prompts",
			report.Count(len(keep), "row"))
	}
	return nil
}

// readPrompts sets the prompts that the teacher reads, and refuses those that it cannot read with
// an answer.
func (r *run) readPrompts(tok *tokenizer.Tokenizer) error {
	r.read = r.batch.Prompts()
	if r.o.System != "" {
		r.read = nil
		for _, i := range r.rows {
			row, err := r.set.Row(i)
			if err != nil {
				return err
			}
			if row, err = encode.WithSystem(row, r.o.System); err != nil {
				return fmt.Errorf("--teacher-system: %w", err)
			}
			ids, err := encode.Encoder{Tok: tok}.Prompt(row)
			if err != nil {
				return fmt.Errorf("data: row %d: %w", i, err)
			}
			r.read = append(r.read, ids)
		}
	}
	shape, err := model.ReadConfig(r.o.Teacher)
	if err != nil {
		return fmt.Errorf("--teacher: %w", err)
	}
	if err := session.CheckLengths("fidelity", "max-response-length", r.read, r.rows,
		r.o.MaxResponse, shape.MaxPosition); err != nil {
		return fmt.Errorf("--teacher: %w", err)
	}
	return nil
}

// truth loads the teacher and computes the answers' probabilities under it.
func (r *run) truth() error {
	_, done := r.s.Console.Busy("loading "+r.o.Teacher, 0)
	teacher, err := model.Load(r.be, r.o.Teacher, model.Options{Kind: model.LM})
	done()
	if err != nil {
		return fmt.Errorf("--teacher: %w", err)
	}
	defer teacher.Close()
	if err := teacher.SetTokens(r.student.Tokenizer.Tokens()); err != nil {
		return fmt.Errorf("--teacher: %w", err)
	}
	teacher.Share(r.student.Model)
	return quality.SetTruth(teacher, r.groups, r.read, r.o.TeacherTemperature, r.opt)
}

// score returns the scores that one discriminator gives the answers.
func (r *run) score(dir string) ([]float64, error) {
	if err := saved.CheckTokenIDs(r.student.Tokenizer, dir, "--critic"); err != nil {
		return nil, err
	}
	c, err := r.s.LoadCritic(r.be, session.Source{Path: dir}, r.student.Model, "", r.o.MaxTokens)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	seqs, tokens := quality.ReadSeqs(r.groups), 0
	for _, x := range seqs {
		tokens += len(x.IDs)
	}
	advance, done := r.s.Console.Busy("scores of "+dir+", tokens", tokens)
	defer done()
	c.Scorer.Model().Watch(advance)
	scores, err := scoreAll(c.Scorer, seqs)
	if err == nil && r.ctx.Err() != nil {
		err = fault.ErrInterrupted
	}
	return scores, err
}

// scoreAll returns the scores of sequences.
func scoreAll(c *critic.Scorer, seqs []model.Seq) ([]float64, error) {
	scoreS, err := c.Score(seqs)
	out := make([]float64, len(scoreS))
	for i, x := range scoreS {
		out[i] = float64(x)
	}
	return out, err
}

// write writes the answers with their figures to --output.
func (r *run) write(scores [][]float64) error {
	if r.o.Output == "" {
		return nil
	}
	var b bytes.Buffer
	at := 0
	for p, g := range r.groups {
		for k, x := range g.Answers {
			n := x.Seq.Prompt()
			line := answer{Row: r.batch[p].Index, Sample: k, PromptIDs: x.Seq.IDs[:n],
				ResponseIDs: slices.Clone(x.Seq.IDs[n:]), Response: x.Text, Truncated: x.Cut,
				LogP: x.LogP, Ratio: x.Ratio, Scores: map[string]float64{}}
			for i := range scores {
				line.Scores[r.o.Critics[i]] = scores[i][at]
			}
			at++
			if err := session.PrintJSON(&b, line); err != nil {
				return err
			}
		}
	}
	return r.outputFile().Write(r.s.FS, b.Bytes(), "fidelity: nothing is written")
}

// outputFile returns the file of --output.
func (r *run) outputFile() session.Output {
	return session.Output{Command: "fidelity", Path: r.o.Output}
}
