// Package eval implements gad eval: students answer held-out rows, and are compared with the
// teacher and with each other by figures, by fresh discriminators, by an external checker and by a
// judge behind an endpoint.
//
//	eval.go     Options and the run: plan, answer, measure, judge, print; start here
//	judge.go    a judge at work: its journal, its limits, its cost
//	answers.go  --answers: a judge over files, without a model
//	table.go    the table for people
//
//	environment.go  --env: students play episodes in an environment, and so does the teacher
//	acted.go        figures of episodes, and their table
package eval

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"gad/apps/session"
	"gad/data"
	"gad/device"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/encode"
	"gad/trainer/quality"
	"gad/trainer/saved"
)

// Options is the flags of gad eval.
type Options struct {
	Models         []string // folders; each is compared with the first
	Adapter        string   // adapter of the one model; "": none
	Quant          string   // format of the models' weights (model.Options.Quant)
	Chat           session.ChatOptions
	Against        string // folder of another language model; "": none
	Rows           session.Rows
	Device         device.Options
	Output         string // file with a line of JSON for each answer; "": none
	DryRun, JSON   bool
	Temperature    float64
	Seed           uint64
	MaxPrompt      int           // tokens
	MaxResponse    int           // tokens; 0 is 1536, or half of the smallest context
	MaxTokens      int           // tokens of one forward pass
	Chunks         *model.Chunks // chunks of answers; nil: as each student's run says
	Checker        string
	CheckerTimeout time.Duration
	Disc           quality.DiscOptions // From "": the student's folder; "random": random weights
	Budget         quality.DiscBudget

	Judge   *JudgeOptions // nil: no judge
	Answers []string      // files that the judge reads, in the place of Models and Rows

	Acting *Acting // students play episodes; nil: they answer rows
}

// defaultResponse is the default of the longest answer, in tokens.
const defaultResponse = 1536

// Run runs gad eval.
func Run(s *session.Session, o Options) error {
	if len(o.Answers) > 0 {
		return judgeAnswers(s, o)
	}
	if o.Acting != nil {
		return act(s, o)
	}
	e := &evaluation{s: s, o: o}
	defer e.close()
	return e.run()
}

// evaluation is a run of gad eval.
type evaluation struct {
	s    *session.Session
	o    Options
	ctx  context.Context
	be   compute.Backend
	free int64 // bytes of device memory before any model is loaded
	set  *data.Set
	rows []int

	students []*student
	against  model.Config   // of --against; Architecture "": none
	other    *session.Model // the model of --against; nil while it is not in memory
	limit    int            // most tokens of an answer, the same for all students
	judging  *judging       // nil without --judge

	answering atomic.Bool  // students have begun to answer
	saved     atomic.Int64 // number of answers in --output
	counted   atomic.Int64 // number of answers in the newest save, done or under way
}

// outputFile returns the file of --output.
func (e *evaluation) outputFile() session.Output {
	return session.Output{Command: "eval", Path: e.o.Output}
}

// stopMessage returns the message of the first Ctrl-C.
func (e *evaluation) stopMessage() string {
	switch out := e.o.Output; {
	case out != "" && e.answering.Load():
		return "stopping; complete answers are written to " + out +
			"; a second Ctrl-C stops at once, without that"
	case e.judging != nil && !e.answering.Load():
		return "stopping; what the judge has said is kept in " + e.judging.o.Journal +
			"; a second Ctrl-C stops at once"
	}
	return "stopping; a second Ctrl-C stops at once"
}

// savedState returns, for messages, what --output holds if the process ends now.
func (e *evaluation) savedState() string {
	n := e.saved.Load()
	if n == 0 && e.o.Output != "" { // a first save may be on the disk before it is noted
		if _, err := e.s.FS.Stat(e.o.Output); err == nil {
			n = e.counted.Load()
		}
	}
	if n > 0 {
		return fmt.Sprintf("%s has %d answers, as they were before", e.o.Output, n)
	}
	return "nothing is written"
}

// student is one of the models, with its plan and its results.
type student struct {
	dir     string
	shape   model.Config
	disc    quality.DiscOptions
	l       *session.Model // nil while it is not in memory
	tokens  string         // tokenizer.json
	batch   encode.Batch
	plan    quality.Plan
	results *quality.Results
	whole   bool // answers are complete and measured, except by fresh discriminators
	chunks  model.Chunks
	slots   int // answers sampled at a time; 0: not chosen yet
}

// close frees models, rows, journal and device.
func (e *evaluation) close() {
	e.s.Console.Close()
	for _, s := range e.students {
		s.unload()
	}
	e.unloadOther()
	_ = e.judging.close() // every judgment in the journal is synced
	if e.be != nil {
		e.be.Close()
	}
	if e.set != nil {
		e.set.Close()
	}
}

// inContext returns the tokens of an answer of limit tokens that are in one context.
func (s *student) inContext(limit int) int {
	if s.chunks.On() {
		return min(limit, s.chunks.Size)
	}
	return limit
}

// unload frees the student's model.
func (s *student) unload() {
	if s.l != nil {
		s.l.Model.Close()
		s.l = nil
	}
}

// unloadOther frees the model of --against.
func (e *evaluation) unloadOther() {
	if e.other != nil {
		e.other.Model.Close()
		e.other = nil
	}
}

// options returns the settings of a student's evaluation.
func (e *evaluation) options(s *student) quality.Options {
	var against *model.Config
	if e.against.Architecture != "" {
		against = &e.against
	}
	return quality.Options{Quant: e.o.Quant, Against: against, MaxPrompt: e.o.MaxPrompt,
		MaxResponse: e.limit, Chunks: s.chunks, Temperature: e.o.Temperature, Seed: e.o.Seed,
		Slots: min(cmp.Or(s.slots, session.Slots), len(e.rows)), MaxTokens: e.o.MaxTokens,
		Stages: e.s.Console.Busy,
		Stop:   func() bool { return e.ctx.Err() != nil }}
}

// run runs all parts in order.
func (e *evaluation) run() (err error) {
	if out := e.o.Output; out != "" {
		lock, lockErr := e.outputFile().Claim(e.s.FS)
		if lockErr != nil {
			return lockErr
		}
		defer func() { err = cmp.Or(err, lock.Unlock()) }()
	}
	if err := e.open(); err != nil {
		return err
	}
	ctx, stop := e.s.Stoppable(e.stopMessage, e.savedState)
	defer stop()
	e.ctx = ctx
	if err := e.plan(); err != nil {
		return e.stopError(err)
	}
	if e.o.DryRun {
		for _, s := range e.students {
			e.title(e.s.Out, s)
			fmt.Fprint(e.s.Out, s.plan)
		}
	}
	if e.judging != nil {
		w := e.s.Err
		if e.o.DryRun {
			w = e.s.Out
		}
		e.judging.estimate(w, len(e.students))
	}
	for _, s := range e.students {
		if err := s.plan.Check(); err != nil {
			return err
		}
	}
	if e.o.DryRun {
		return nil
	}
	if err := e.tryChecker(); err != nil {
		return e.stopError(err)
	}
	if e.judging != nil { // a judge that does not answer fails before the students answer
		if err := e.judging.begin(); err != nil {
			return err
		}
		if err := e.judging.references(ctx); err != nil {
			return e.judging.stopError(err)
		}
	}
	e.answering.Store(true)
	for _, s := range e.students {
		if err := e.measure(s); err != nil {
			return e.stopError(err)
		}
	}
	e.unloadOther()
	if err := e.askJudge(); err != nil {
		return err
	}
	if err := e.trainFresh(); err != nil {
		return e.stopError(err)
	}
	return e.print()
}

// open checks and reads all inputs before anything is computed, and opens the device.
func (e *evaluation) open() (err error) {
	if e.judging, err = openJudge(e.s, e.o); err != nil {
		return err
	}
	if e.set, e.rows, err = e.o.Rows.List(e.s); err != nil {
		return err
	}
	if e.judging != nil {
		if e.judging.questions, err = e.questions(); err != nil {
			return err
		}
		if err := e.judging.check(len(e.o.Models),
			func(q int) string { return fmt.Sprintf("row %d", e.rows[q]) }); err != nil {
			return err
		}
	}
	e.limit = cmp.Or(e.o.MaxResponse, defaultResponse)
	if dir := e.o.Against; dir != "" {
		if err := saved.CheckModel(e.s.FS, dir); err != nil {
			return fmt.Errorf("--against: %w", err)
		}
		if e.against, err = model.ReadConfig(dir); err != nil {
			return fmt.Errorf("--against: %w", err)
		}
		if e.against.Kind() != model.LM {
			return fmt.Errorf("model: %s: is a discriminator, which has no distribution over tokens: give --against a language model", dir)
		}
	}
	for _, dir := range e.o.Models {
		if err := saved.CheckModel(e.s.FS, dir); err != nil {
			return err
		}
		if err := e.sameTokens(dir); err != nil {
			return err
		}
		shape, err := model.ReadConfig(dir)
		if err != nil {
			return err
		}
		if most := e.positions(shape); most > 1 && e.o.MaxResponse == 0 {
			e.limit = min(e.limit, most/2)
		}
		disc, err := e.discriminator(dir, shape)
		if err != nil {
			return err
		}
		chunks, err := e.s.AnswerChunks("eval", dir, e.o.Chunks)
		if err != nil {
			return err
		}
		e.students = append(e.students,
			&student{dir: dir, shape: shape, disc: disc, chunks: chunks})
	}
	if e.o.MaxResponse == 0 {
		longest := 0
		for _, s := range e.students {
			if s.chunks.On() {
				longest = max(longest, s.chunks.Longest())
			}
		}
		e.limit = cmp.Or(longest, e.limit)
	}
	if e.be, err = session.OpenDevice(e.o.Device); err == nil {
		e.free = e.be.Available()
	}
	return err
}

// positions returns the longest sequence that a student, and the model of --against, can read.
func (e *evaluation) positions(student model.Config) int {
	if e.against.MaxPosition > 0 {
		return min(student.MaxPosition, e.against.MaxPosition)
	}
	return student.MaxPosition
}

// sameTokens refuses a student whose tokenizer differs from that of --against.
func (e *evaluation) sameTokens(dir string) error {
	if e.against.Architecture == "" {
		return nil
	}
	mine, err := saved.Tokenizer(dir)
	if err != nil {
		return err
	}
	difference, err := saved.CompareTokenizers(mine, e.o.Against, "--against")
	return cmp.Or(err, difference)
}

// discriminator returns the settings of a student's fresh discriminators.
func (e *evaluation) discriminator(dir string,
	shape model.Config) (o quality.DiscOptions, err error) {
	o = e.o.Disc
	o.Shape, o.Seed, o.Stages, o.Stop =
		shape, e.o.Seed, e.s.Console.Busy, func() bool { return e.ctx.Err() != nil }
	if o.Steps == 0 {
		return o, nil
	}
	switch o.From {
	case "":
		o.From, err = model.BaseDir(dir) // of adapters: a discriminator trains all weights
		return o, err
	case "random":
		o.From = ""
		return o, nil
	}
	mine, err := saved.Tokenizer(dir)
	if err != nil {
		return o, err
	}
	if err := saved.CheckTokenIDs(mine, o.From, "--disc-from"); err != nil {
		return o, err
	}
	o.Shape, err = model.ReadConfig(o.From)
	return o, err
}

// load loads a student unless it is in memory.
func (e *evaluation) load(s *student) (err error) {
	if s.l != nil {
		return nil
	}
	_, done := e.s.Console.Busy("loading "+s.dir, 0)
	defer done()
	s.l, err = session.Load(e.be,
		session.Source{Path: s.dir, Adapter: e.o.Adapter, Quant: e.o.Quant,
			Chat: e.o.Chat}, model.LM)
	if err == nil && e.ctx.Err() != nil { // loading does not look at ctx
		return fault.ErrInterrupted
	}
	return err
}

// plan encodes the rows, times each student and prints how long the evaluation will take.
func (e *evaluation) plan() error {
	total := 0.0
	for _, s := range e.students {
		o := e.options(s)
		tok, err := saved.ChatTokenizer(s.dir, e.o.Chat)
		if err != nil {
			return err
		}
		s.tokens = string(tok.Files()["tokenizer.json"])
		if s.batch, err = quality.EncodeRows(tok, e.set, e.rows, o); err != nil {
			if row, ok := errors.AsType[*data.RowError](err); ok &&
				row.Kind == data.KindLongPrompt {
				return fault.Usagef("eval: %s: row %d: the prompt is longer than --max-prompt-length %d: raise it, or leave it out", row.File, row.Row, o.MaxPrompt)
			}
			return err
		}
		if err := session.CheckLengths("eval", "max-response-length", s.batch.Prompts(), e.rows,
			s.inContext(o.MaxResponse), e.positions(s.shape)); err != nil {
			return err
		}
		from := time.Now()
		if err := e.load(s); err != nil {
			return err
		}
		took := time.Since(from).Seconds()
		if err := session.CheckChunks("eval", s.l, s.chunks); err != nil {
			return err
		}
		s.slots = s.l.Together(s.batch.Prompts(), 1, o.MaxResponse, s.chunks)
		o.Slots = e.options(s).Slots
		_, done := e.s.Console.Busy("measuring", 0)
		pace, err := quality.MeasurePace(e.be, s.l.Model, s.l.Tokenizer, s.batch, o.Slots,
			s.disc.Steps > 0, func() bool { return e.ctx.Err() != nil })
		done()
		if err != nil {
			return err
		}
		pace.Load = took
		s.plan = quality.PlanOf(e.be, e.free, s.shape, s.batch, pace, o, s.disc, e.o.Budget)
		for s.plan.Check() != nil && s.slots > session.Slots { // what comes later takes memory too
			s.slots /= 2
			o.Slots = e.options(s).Slots
			s.plan = quality.PlanOf(e.be, e.free, s.shape, s.batch, pace, o, s.disc, e.o.Budget)
		}
		s.plan.Checker = e.o.Checker != ""
		total += s.plan.Total()
		if len(e.students) > 1 {
			s.unload()
		}
		if !e.o.DryRun {
			e.title(e.s.Err, s)
			fmt.Fprint(e.s.Err, s.plan.Time())
		}
	}
	if len(e.students) > 1 {
		fmt.Fprintf(e.s.Err, "%d models: about %s\n", len(e.students),
			time.Duration(total*float64(time.Second)).Round(time.Second))
	}
	return nil
}

// tryChecker has the checker score one answer: a program that cannot be run must fail before the
// students answer.
func (e *evaluation) tryChecker() error {
	if e.o.Checker == "" {
		return nil
	}
	_, done := e.s.Console.Busy("trying the checker", 0)
	err := quality.TryChecker(e.ctx, e.set, e.rows, e.o.Checker, e.o.CheckerTimeout)
	done()
	if e.ctx.Err() != nil {
		return fault.ErrInterrupted
	}
	if err != nil {
		return fault.As(fault.ErrRunning, err)
	}
	return nil
}

// title writes a student's folder, where there are several students.
func (e *evaluation) title(w io.Writer, s *student) {
	if len(e.students) > 1 {
		fmt.Fprintf(w, "%s\n", s.dir)
	}
}

// measure measures one student, without fresh discriminators, and saves what is known to --output
// after each part.
func (e *evaluation) measure(s *student) (err error) {
	if err := e.load(s); err != nil {
		return err
	}
	o := e.options(s)
	if s.results, err = quality.Answer(s.l.Model, s.l.Tokenizer, s.batch, o); err != nil {
		return err
	}
	if err := e.save(); err != nil {
		return err
	}
	from := time.Now()
	if err := s.results.TeacherNLL(s.l.Model, o); err != nil {
		return err
	}
	s.plan = s.plan.Calibrate(time.Since(from).Seconds())
	if err := e.compareWithOther(s); err != nil {
		return err
	}
	s.unload()
	if command := e.o.Checker; command != "" {
		_, done := e.s.Console.Busy("checker", 0)
		err := s.results.Check(e.ctx, e.set, command, e.o.CheckerTimeout)
		done()
		if e.ctx.Err() != nil {
			return fault.ErrInterrupted
		}
		if err != nil {
			return fault.As(fault.ErrRunning, err)
		}
		if n := s.results.Eval.Unchecked; n > 0 {
			text := fmt.Sprintf("%s: the checker has no score for %d of %s: left out", s.dir, n,
				report.Count(len(s.results.Answers), "answer"))
			if said := s.results.CheckerSaid; said != "" {
				text += "; it said: " + said
			}
			e.s.Console.Warn(text)
		}
	}
	s.results.Intervals(o.Seed)
	s.whole = true
	if len(e.students) > 1 {
		s.results.Eval.Model = s.dir
	}
	return e.save()
}

// compareWithOther measures a loaded student against the model of --against, which stays in memory
// for the next student.
func (e *evaluation) compareWithOther(s *student) (err error) {
	dir := e.o.Against
	if dir == "" {
		return nil
	}
	if e.other == nil {
		_, done := e.s.Console.Busy("loading "+dir, 0)
		e.other, err = session.Load(e.be, session.Source{Path: dir}, model.LM)
		done()
		if err != nil {
			return fmt.Errorf("--against: %w", err)
		}
	}
	return s.results.MeasureDivergence(s.l.Model, e.other.Model, dir, e.options(s))
}

// trainFresh trains the fresh discriminators of all students under one budget: accuracies can be
// compared only after equal training.
func (e *evaluation) trainFresh() error {
	var plans []quality.Plan
	for _, s := range e.students {
		if s.disc.Steps == 0 {
			return nil
		}
		plans = append(plans, s.plan.Refit(s.results, s.disc, e.o.Budget))
	}
	quality.EqualizeDiscriminators(plans)
	for i, s := range e.students {
		plan, note := plans[i], &s.results.Eval.FreshDNote
		if *note = plan.DiscWhy; *note != "" {
			if len(e.rows) > 1 { // the share of answers equal to the teacher's is still known
				s.results.SetTies()
			}
			continue
		}
		if *note = plan.DiscNote; *note != "" && *note != s.plan.DiscNote {
			about := ""
			if len(e.students) > 1 {
				about = s.dir + ": "
			}
			e.s.Console.Print(about + "fresh discriminators are shortened: " + *note)
		}
		f, err := quality.TrainFresh(e.be, plan.Disc, s.results)
		if err != nil {
			return err
		}
		s.results.Eval.SetFresh(f)
		if err := e.save(); err != nil {
			return err
		}
	}
	return nil
}

// save writes the answers and figures so far to --output.
func (e *evaluation) save() error {
	if e.o.Output == "" {
		return nil
	}
	if e.saved.Load() == 0 { // it was absent at the start
		if err := e.outputFile().CheckAbsent(e.s.FS); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	var n int64
	for k, s := range e.students {
		if s.results == nil {
			continue
		}
		rows, err := s.results.Rows(s.dir, e.set)
		if err != nil {
			return err
		}
		for q, r := range rows { // verdicts come when all rows are complete
			if err := session.PrintJSON(&b, judgedRow{r, e.judging.verdict(k, q)}); err != nil {
				return err
			}
		}
		n += int64(len(rows))
	}
	e.counted.Store(n)
	if err := e.outputFile().Write(e.s.FS, b.Bytes(), "eval: "+e.savedState()); err != nil {
		return err
	}
	e.saved.Store(n)
	return nil
}

// stopError saves the answers of an interrupted evaluation and returns an error that says how many;
// it returns other errors unchanged.
func (e *evaluation) stopError(err error) error {
	if !errors.Is(err, fault.ErrInterrupted) {
		return err
	}
	e.s.Console.Close()
	kept, all := 0, len(e.rows)*len(e.students)
	for _, s := range e.students {
		if s.results != nil {
			for _, done := range s.results.Done {
				if done {
					kept++
				}
			}
		}
	}
	whole := 0
	for whole < len(e.students) && e.students[whole].whole {
		whole++
	}
	if whole > 0 && !e.o.JSON {
		printFigures(e.s.Out, compare(e.students[:whole], e.o.Seed), e.students[:whole])
	}
	switch out := e.o.Output; {
	case out == "":
		return fault.As(fault.ErrStopped,
			errors.New("eval: stopped: nothing is kept without --output FILE"))
	case kept == 0:
		return fault.As(fault.ErrStopped,
			errors.New("eval: stopped before the first answer was complete: nothing is written"))
	default:
		if err := e.save(); err != nil {
			return err
		}
		return fault.As(fault.ErrStopped,
			fmt.Errorf("eval: stopped: %d of %d answers are in %s", kept, all, out))
	}
}

// compare returns the figures of the students and their differences from the first.
func compare(students []*student, seed uint64) (all comparedJSON) {
	first := students[0]
	for i, s := range students {
		all.Models = append(all.Models, s.results.Eval)
		if i > 0 {
			d := modelDifferences{model: s.dir, minus: first.dir,
				values: s.results.Minus(first.results, s.tokens == first.tokens, seed)}
			if s.results.Eval.Temperature == 0 {
				equal := 0.0
				for p, text := range s.results.Answers {
					if text == first.results.Answers[p] {
						equal += 1 / float64(len(s.results.Answers))
					}
				}
				d.equal = &equal
			}
			all.Differences = append(all.Differences, d)
		}
	}
	return all
}

// printFigures writes the table of students.
func printFigures(w io.Writer, all comparedJSON, students []*student) {
	printEvaluations(w, all)
	for _, s := range students[1:] {
		if s.tokens != students[0].tokens {
			fmt.Fprintf(w, "%s has another tokenizer than %s: figures per token are not compared\n",
				s.dir, students[0].dir)
		}
	}
}

// print writes the summary.
func (e *evaluation) print() error {
	all := compare(e.students, e.o.Seed)
	all.Judge = e.judging.json()
	switch {
	case e.o.JSON && len(e.students) == 1:
		return session.PrintJSON(e.s.Out, evaluatedJSON{all.Models[0], all.Judge})
	case e.o.JSON:
		return session.PrintJSON(e.s.Out, all)
	}
	printFigures(e.s.Out, all, e.students)
	e.judging.print(e.s.Out)
	if out := e.o.Output; out != "" {
		fmt.Fprintf(e.s.Out, "%s: %s\n", out, report.Count(len(e.rows)*len(e.students), "answer"))
	}
	return nil
}
