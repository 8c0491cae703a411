package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"

	"gad/checkpoint"
	"gad/data"
	"gad/internal/compute"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer"
)

// evalSlots is how many answers are sampled at a time.
const evalSlots = 64

// evalFlags are those of gad eval; gad plan --stage eval takes their defaults.
func evalFlags() []cli.Flag {
	return append(append([]cli.Flag{
		adapterFlag("model"),
		weightsFlag(),
		&cli.StringSliceFlag{Name: "model", Usage: modelUsage + "; repeat it for each model to compare: all are compared with the first"},
		&cli.StringFlag{Name: "against", Usage: modelUsage + " with the same tokenizer, such as the teacher's if you have its weights: adds the exact KL between each student and it, in both directions, and how probable it finds the students' answers; it takes no part in training"},
		&cli.StringFlag{Name: "output", Usage: "output file: every answer with its figures, one JSON line per row and model"},
		&cli.BoolFlag{Name: "dry-run", Usage: "print an estimate of memory and time, and stop"},
		&cli.Float64Flag{Name: "temperature", Usage: "sampling temperature of the answers; 0 is greedy"},
		&cli.IntFlag{Name: "max-prompt-length", Value: 1 << 20, DefaultText: "no limit", Usage: "longest prompt, tokens; longer ones are refused"},
		&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of sampling, of the intervals and of the fresh discriminators"},
		&cli.StringFlag{Name: "checker", Usage: "command line that scores the answers, run by sh -c (see doc/the-game.md)"},
		&cli.IntFlag{Name: "checker-timeout", Value: 60, Usage: "time limit for the checker, in seconds"},
		&cli.Float64Flag{Name: "disc-minutes", Value: 10, Usage: "time limit for the fresh discriminators of one model, in minutes: first their steps, then their seeds are reduced to fit; 0 is no limit"},
		&cli.IntFlag{Name: "disc-steps", Value: trainer.DefaultDiscSteps, Usage: "optimizer steps of each fresh discriminator, on half of the rows; 0 trains none; a number given here is kept unless --disc-minutes is given too"},
		&cli.IntFlag{Name: "disc-batch", Value: 4, Usage: "pairs per step of a fresh discriminator"},
		&cli.Float64Flag{Name: "disc-lr", DefaultText: "0.0512/hidden width", Usage: "peak learning rate of a fresh discriminator"},
		&cli.IntFlag{Name: "disc-seeds", Value: 3, Usage: "fresh discriminators, each with its own split and head"},
		&cli.StringFlag{Name: "disc-from", DefaultText: "the student's folder", Usage: modelUsage + " that the fresh discriminators start from, or random: random weights of the student's shape"},
	}, rowFlags()...), append(judgeFlags(), deviceFlags()...)...)
}

// evalCommand is gad eval.
func (p *program) evalCommand() *cli.Command {
	return &cli.Command{
		Name:  "eval",
		Usage: "compare students with the teacher, and with each other, on held-out rows, by figures and by a judge",
		Flags: evalFlags(),
		Action: func(c *cli.Context) error {
			if err := checkEvalFlags(c); err != nil {
				return err
			}
			if c.IsSet("answers") {
				return p.judgeAnswers(c)
			}
			e := &evaluation{p: p, c: c, con: p.console()}
			defer e.close()
			return e.run()
		},
	}
}

// checkEvalFlags refuses what gad eval cannot mean.
func checkEvalFlags(c *cli.Context) error {
	if err := cmp.Or(noArguments(c), checkJudgeFlags(c)); err != nil {
		return err
	}
	if c.Int("limit") < 0 {
		return usage("eval: --limit %d: must be at least 0", c.Int("limit"))
	}
	if c.Bool("dry-run") && c.String("output") != "" {
		return usage("eval: --dry-run writes nothing: leave --output out")
	}
	if c.IsSet("against") && c.String("against") == "" {
		return usage("eval: --against is empty: give a model folder, or leave it out")
	}
	if c.IsSet("answers") {
		return nil
	}
	models := c.StringSlice("model")
	if len(models) == 0 || slices.Contains(models, "") {
		return usage("eval: --model is missing: see gad eval --help")
	}
	for i, m := range models {
		if slices.Contains(models[:i], m) {
			return usage("eval: --model %s: given twice: name two models to compare", m)
		}
	}
	if err := errors.Join(need(c, "data"), inRange(c, "temperature", 1e6)); err != nil {
		return err
	}
	if c.Int("disc-steps") < 0 || c.Int("disc-batch") < 1 || c.Int("disc-seeds") < 1 || !(c.Float64("disc-lr") >= 0) {
		return usage("eval: --disc-steps %d, --disc-batch %d, --disc-seeds %d, --disc-lr %g: must be at least 0, 1, 1 and 0",
			c.Int("disc-steps"), c.Int("disc-batch"), c.Int("disc-seeds"), c.Float64("disc-lr"))
	}
	if err := inRange(c, "disc-minutes", 1e6); err != nil {
		return err
	}
	if n := c.Int("checker-timeout"); n < 1 || n > 1e6 {
		return usage("eval: --checker-timeout %d: must be 1 to 1000000 seconds", n)
	}
	for _, name := range []string{"max-response-length", "max-prompt-length", "max-token-len"} {
		if c.Int(name) < 1 {
			return usage("eval: --%s %d: must be at least 1", name, c.Int(name))
		}
	}
	return nil
}

// evaluation is one gad eval.
type evaluation struct {
	p    *program
	c    *cli.Context
	con  *report.Console
	ctx  context.Context
	be   compute.Backend
	free int64 // bytes, before anything is loaded
	set  *data.Set
	rows []int

	students []*student
	against  model.Config // of --against; Architecture "" is none
	other    *loaded      // that model; nil while it is not in memory
	limit    int          // tokens of an answer, the same for all
	judging  *judging     // nil without --judge

	answering atomic.Bool  // students answer, or have answered
	saved     atomic.Int64 // answers in --output
}

// stopping is said at the first Ctrl-C.
func (e *evaluation) stopping() string {
	switch out := e.c.String("output"); {
	case out != "" && e.answering.Load():
		return "stopping; complete answers are written to " + out + "; a second Ctrl-C stops at once, without that"
	case e.judging != nil && !e.answering.Load():
		return "stopping; what the judge has said is kept in " + e.judging.path + "; a second Ctrl-C stops at once"
	}
	return "stopping; a second Ctrl-C stops at once"
}

// state is what is kept if the process ends now.
func (e *evaluation) state() string {
	if n := e.saved.Load(); n > 0 {
		return fmt.Sprintf("%s has %d answers, as they were before", e.c.String("output"), n)
	}
	return "nothing is written"
}

// student is one of the models.
type student struct {
	dir    string
	shape  model.Config
	disc   trainer.DiscOptions
	l      *loaded // nil while it is not in memory
	tokens string  // tokenizer.json
	batch  *trainer.Batch
	plan   trainer.EvalPlan
	judged *trainer.Judged
}

func (e *evaluation) close() {
	e.con.Close()
	for _, s := range e.students {
		s.unload()
	}
	e.unloadOther()
	_ = e.judging.close() // every judgment in it is synced
	if e.be != nil {
		e.be.Close()
	}
	if e.set != nil {
		e.set.Close()
	}
}

func (s *student) unload() {
	if s.l != nil {
		s.l.m.Close()
		s.l = nil
	}
}

func (e *evaluation) unloadOther() {
	if e.other != nil {
		e.other.m.Close()
		e.other = nil
	}
}

func (e *evaluation) options() trainer.EvalOptions {
	var against *model.Config
	if e.against.Architecture != "" {
		against = &e.against
	}
	return trainer.EvalOptions{Quant: e.c.String("weights"), Against: against, MaxPrompt: e.c.Int("max-prompt-length"), MaxResponse: e.limit, Temperature: e.c.Float64("temperature"), Seed: e.c.Uint64("seed"),
		Slots: min(evalSlots, len(e.rows)), MaxTokens: e.c.Int("max-token-len"), Stages: e.con.Busy, Stop: func() bool { return e.ctx.Err() != nil }}
}

func (e *evaluation) run() (err error) {
	if out := e.c.String("output"); out != "" {
		lock, lockErr := claimOutput("eval", out)
		if lockErr != nil {
			return lockErr
		}
		defer func() { err = cmp.Or(err, lock.Unlock()) }()
	}
	if err := e.open(); err != nil {
		return err
	}
	ctx, stop := e.p.interruptible(
		func(string) { e.con.Print(e.stopping()) },
		func(string) { e.con.Close(); e.con.Print("stopped at once by a second signal: " + e.state()) })
	defer stop()
	e.ctx = ctx
	if err := e.plan(); err != nil {
		return e.stopped(err)
	}
	if e.c.Bool("dry-run") {
		for _, s := range e.students {
			e.title(e.p.out, s)
			fmt.Fprint(e.p.out, s.plan)
		}
	}
	if e.judging != nil {
		w := e.p.err
		if e.c.Bool("dry-run") {
			w = e.p.out
		}
		e.judging.estimate(w, len(e.students))
	}
	for _, s := range e.students {
		if err := s.plan.Check(); err != nil {
			return err
		}
	}
	if e.c.Bool("dry-run") {
		return nil
	}
	if e.judging != nil { // a judge that does not answer is seen before the students work
		if err := e.judging.begin(); err != nil {
			return err
		}
		if err := e.judging.references(ctx); err != nil {
			return e.judging.stopped(err)
		}
	}
	e.answering.Store(true)
	for _, s := range e.students {
		if err := e.judge(s); err != nil {
			return e.stopped(err)
		}
	}
	e.unloadOther()
	if err := e.ask(); err != nil {
		return err
	}
	if err := e.fresh(); err != nil {
		return e.stopped(err)
	}
	return e.print()
}

// open reads all that can be wrong before anything is computed.
func (e *evaluation) open() (err error) {
	if e.judging, err = openJudge(e.p, e.c, e.con); err != nil {
		return err
	}
	if e.set, e.rows, err = e.p.openRows(e.c); err != nil {
		return err
	}
	if e.judging != nil {
		if e.judging.questions, err = e.questions(); err != nil {
			return err
		}
		if err := e.judging.check(len(e.c.StringSlice("model")), func(q int) string { return fmt.Sprintf("row %d", e.rows[q]) }); err != nil {
			return err
		}
	}
	e.limit = e.c.Int("max-response-length")
	if !e.c.IsSet("max-response-length") {
		e.limit = 1536
	}
	if models := e.c.StringSlice("model"); len(models) > 1 && e.c.IsSet("adapter") {
		return usage("eval: --adapter goes with one --model, %d are given: give folders of adapters that name their base as --model", len(models))
	}
	if dir := e.c.String("against"); dir != "" {
		if err := trainer.CheckModelFolder(files(), dir); err != nil {
			return fmt.Errorf("--against: %w", err)
		}
		if e.against, err = model.ReadConfig(dir); err != nil {
			return fmt.Errorf("--against: %w", err)
		}
		if e.against.Kind() != model.LM {
			return fmt.Errorf("model: %s: is a discriminator, which has no distribution over tokens: give --against a language model", dir)
		}
	}
	for _, dir := range e.c.StringSlice("model") {
		if err := trainer.CheckModelFolder(files(), dir); err != nil {
			return err
		}
		if err := e.sameTokens(dir); err != nil {
			return err
		}
		shape, err := model.ReadConfig(dir)
		if err != nil {
			return err
		}
		if most := e.positions(shape); most > 1 && !e.c.IsSet("max-response-length") {
			e.limit = min(e.limit, most/2)
		}
		disc, err := e.discriminator(dir, shape)
		if err != nil {
			return err
		}
		e.students = append(e.students, &student{dir: dir, shape: shape, disc: disc})
	}
	if e.be, err = openDevice(flagged(e.c)); err == nil {
		e.free = e.be.Available()
	}
	return err
}

// positions is how many a sequence may have: the model of --against reads the answers too.
func (e *evaluation) positions(student model.Config) int {
	if e.against.MaxPosition > 0 {
		return min(student.MaxPosition, e.against.MaxPosition)
	}
	return student.MaxPosition
}

// sameTokens refuses a student whose tokens are not those of --against.
func (e *evaluation) sameTokens(dir string) error {
	if e.against.Architecture == "" {
		return nil
	}
	mine, err := trainer.LoadTokenizer(dir)
	if err != nil {
		return err
	}
	return trainer.CheckAgainst(mine, e.c.String("against"), "--against")
}

// discriminator says how fresh discriminators of a student are trained.
func (e *evaluation) discriminator(dir string, shape model.Config) (o trainer.DiscOptions, err error) {
	o = trainer.DiscOptions{From: e.c.String("disc-from"), Shape: shape, Steps: e.c.Int("disc-steps"), Batch: e.c.Int("disc-batch"),
		LR: e.c.Float64("disc-lr"), Seed: e.c.Uint64("seed"), Seeds: e.c.Int("disc-seeds"), Stages: e.con.Busy, Stop: func() bool { return e.ctx.Err() != nil }}
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
	mine, err := trainer.LoadTokenizer(dir)
	if err != nil {
		return o, err
	}
	if err := trainer.SameTokens(mine, o.From, "--disc-from"); err != nil {
		return o, err
	}
	o.Shape, err = model.ReadConfig(o.From)
	return o, err
}

func (e *evaluation) budget() trainer.DiscBudget {
	b := trainer.DiscBudget{Seconds: 60 * e.c.Float64("disc-minutes"), Fixed: e.c.IsSet("disc-steps")}
	if b.Fixed && !e.c.IsSet("disc-minutes") {
		b.Seconds = 0
	}
	return b
}

// load brings a student into memory.
func (e *evaluation) load(s *student) (err error) {
	if s.l != nil {
		return nil
	}
	_, done := e.con.Busy("loading "+s.dir, 0)
	defer done()
	s.l, err = loadOn(e.be, s.dir, e.c.String("adapter"), e.c.String("weights"), model.LM)
	if err == nil && e.ctx.Err() != nil { // loading itself is not stopped
		return trainer.ErrInterrupted
	}
	return err
}

// plan encodes the rows, times each student and says how long it will take.
func (e *evaluation) plan() error {
	o, total := e.options(), 0.0
	for _, s := range e.students {
		tok, err := trainer.LoadTokenizer(s.dir)
		if err != nil {
			return err
		}
		s.tokens = string(tok.Files()["tokenizer.json"])
		if s.batch, err = trainer.EncodeRows(tok, e.set, e.rows, o); err != nil {
			if row, ok := errors.AsType[*data.RowError](err); ok && row.Kind == data.KindLongPrompt {
				return usage("eval: %s: row %d: the prompt is longer than --max-prompt-length %d: raise it, or leave it out", row.File, row.Row, o.MaxPrompt)
			}
			return err
		}
		if err := fitting("eval", "max-response-length", s.batch.Prompts, e.rows, o.MaxResponse, e.positions(s.shape)); err != nil {
			return err
		}
		from := time.Now()
		if err := e.load(s); err != nil {
			return err
		}
		took := time.Since(from).Seconds()
		_, done := e.con.Busy("measuring", 0)
		pace, err := trainer.MeasurePace(e.be, s.l.m, s.l.tok, s.batch, o.Slots, s.disc.Steps > 0, func() bool { return e.ctx.Err() != nil })
		done()
		if err != nil {
			return err
		}
		pace.Load = took
		s.plan = trainer.PlanEval(e.be, e.free, s.shape, s.batch, pace, o, s.disc, e.budget())
		s.plan.Checker = e.c.String("checker") != ""
		total += s.plan.Total()
		if len(e.students) > 1 {
			s.unload()
		}
		if !e.c.Bool("dry-run") {
			e.title(e.p.err, s)
			fmt.Fprint(e.p.err, s.plan.Time())
		}
	}
	if len(e.students) > 1 {
		fmt.Fprintf(e.p.err, "%d models: about %s\n", len(e.students), time.Duration(total*float64(time.Second)).Round(time.Second))
	}
	return nil
}

func (e *evaluation) title(w io.Writer, s *student) {
	if len(e.students) > 1 {
		fmt.Fprintf(w, "%s\n", s.dir)
	}
}

// judge measures one student, without fresh discriminators; --output holds after each part what is known.
func (e *evaluation) judge(s *student) (err error) {
	if err := e.load(s); err != nil {
		return err
	}
	o := e.options()
	if s.judged, err = trainer.Answer(s.l.m, s.l.tok, s.batch, o); err != nil {
		return err
	}
	if err := e.save(); err != nil {
		return err
	}
	from := time.Now()
	if err := s.judged.TeacherNLL(s.l.m, o); err != nil {
		return err
	}
	s.plan = s.plan.Calibrate(time.Since(from).Seconds())
	if err := e.compareWithOther(s); err != nil {
		return err
	}
	s.unload()
	if command := e.c.String("checker"); command != "" {
		_, done := e.con.Busy("checker", 0)
		err := s.judged.Check(e.ctx, e.set, command, time.Duration(e.c.Int("checker-timeout"))*time.Second)
		done()
		if e.ctx.Err() != nil {
			return trainer.ErrInterrupted
		}
		if err != nil {
			return marked{errRunning, err}
		}
	}
	s.judged.Intervals(o.Seed)
	if len(e.students) > 1 {
		s.judged.Eval.Model = s.dir
	}
	return e.save()
}

// compareWithOther measures a student that is loaded against the model of --against, which
// stays in memory for the next.
func (e *evaluation) compareWithOther(s *student) (err error) {
	dir := e.c.String("against")
	if dir == "" {
		return nil
	}
	if e.other == nil {
		_, done := e.con.Busy("loading "+dir, 0)
		e.other, err = loadOn(e.be, dir, "", "", model.LM)
		done()
		if err != nil {
			return fmt.Errorf("--against: %w", err)
		}
	}
	return s.judged.Against(s.l.m, e.other.m, dir, e.options())
}

// fresh trains the discriminators of all students, under one budget: accuracies compare
// where the trainings are alike.
func (e *evaluation) fresh() error {
	var plans []trainer.EvalPlan
	for _, s := range e.students {
		if s.disc.Steps == 0 {
			return nil
		}
		plans = append(plans, s.plan.Refit(s.judged, s.disc, e.budget()))
	}
	trainer.AlikeDiscriminators(plans)
	for i, s := range e.students {
		plan, note := plans[i], &s.judged.Eval.FreshDNote
		if *note = plan.DiscWhy; *note != "" {
			if len(e.rows) > 1 { // how many answers are the teacher's own is still worth knowing
				s.judged.SetTies()
			}
			continue
		}
		if *note = plan.DiscNote; *note != "" && *note != s.plan.DiscNote {
			about := ""
			if len(e.students) > 1 {
				about = s.dir + ": "
			}
			e.con.Print(about + "fresh discriminators are shortened: " + *note)
		}
		f, err := trainer.JudgeFresh(e.be, plan.Disc, s.judged)
		if err != nil {
			return err
		}
		s.judged.Eval.SetFresh(f)
		if err := e.save(); err != nil {
			return err
		}
	}
	return nil
}

// save writes what is known of all rows to --output.
func (e *evaluation) save() error {
	path := e.c.String("output")
	if path == "" {
		return nil
	}
	if e.saved.Load() == 0 { // it was not there at the start
		if err := absent("eval", path); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	var n int64
	for k, s := range e.students {
		if s.judged == nil {
			continue
		}
		rows, err := s.judged.Rows(s.dir, e.set)
		if err != nil {
			return err
		}
		for q, r := range rows { // with a verdict, all of them are there
			if err := printJSON(&b, judgedRow{r, e.judging.verdict(k, q)}); err != nil {
				return err
			}
		}
		n += int64(len(rows))
	}
	if err := vfs.WriteFile(files(), path, b.Bytes()); err != nil {
		return marked{errRunning, checkpoint.ExplainFull(files(), path, int64(b.Len()), fmt.Errorf("eval: %s: %w", e.state(), err))}
	}
	e.saved.Store(n)
	return nil
}

// stopped keeps what an interrupted evaluation has, and says what that is.
func (e *evaluation) stopped(err error) error {
	if !errors.Is(err, trainer.ErrInterrupted) {
		return err
	}
	e.con.Close()
	kept, all := 0, len(e.rows)*len(e.students)
	for _, s := range e.students {
		if s.judged != nil {
			for _, done := range s.judged.Done {
				if done {
					kept++
				}
			}
		}
	}
	switch out := e.c.String("output"); {
	case out == "":
		return marked{errStopped, errors.New("eval: stopped: nothing is kept without --output FILE")}
	case kept == 0:
		return marked{errStopped, errors.New("eval: stopped before the first answer was complete: nothing is written")}
	default:
		if err := e.save(); err != nil {
			return err
		}
		return marked{errStopped, fmt.Errorf("eval: stopped: %d of %d answers are in %s", kept, all, out)}
	}
}

// compared is the JSON of several models.
type compared struct {
	Models      []trainer.Evaluation `json:"models"`
	Differences []differences        `json:"differences"`
	Judge       *judged              `json:"judge,omitempty"`
}

// evaluated is the JSON of one model.
type evaluated struct {
	trainer.Evaluation
	Judge *judged `json:"judge,omitempty"`
}

// differences are the figures of a model minus those of the first.
type differences struct {
	model, minus string
	of           map[string]trainer.Difference
}

// MarshalJSON puts the names beside the figures.
func (d differences) MarshalJSON() ([]byte, error) {
	all := map[string]any{"model": d.model, "minus": d.minus}
	for key, x := range d.of {
		all[key] = x
	}
	return json.Marshal(all)
}

// print is the summary.
func (e *evaluation) print() error {
	first := e.students[0]
	var all compared
	for i, s := range e.students {
		all.Models = append(all.Models, s.judged.Eval)
		if i > 0 {
			all.Differences = append(all.Differences, differences{s.dir, first.dir, s.judged.Minus(first.judged, s.tokens == first.tokens, e.c.Uint64("seed"))})
		}
	}
	all.Judge = e.judging.json()
	switch {
	case e.c.Bool("json") && len(e.students) == 1:
		return printJSON(e.p.out, evaluated{all.Models[0], all.Judge})
	case e.c.Bool("json"):
		return printJSON(e.p.out, all)
	}
	printEvaluations(e.p.out, all)
	for _, s := range e.students[1:] {
		if s.tokens != first.tokens {
			fmt.Fprintf(e.p.out, "%s has another tokenizer than %s: figures per token are not compared\n", s.dir, first.dir)
		}
	}
	e.judging.print(e.p.out)
	if out := e.c.String("output"); out != "" {
		fmt.Fprintf(e.p.out, "%s: %s\n", out, report.Count(len(e.rows)*len(e.students), "answer"))
	}
	return nil
}

// printEvaluations is the table for people: a line for each figure, a column for each
// model, and one for each difference to the first.
func printEvaluations(w io.Writer, all compared) {
	first := all.Models[0]
	how := "greedy"
	if first.Temperature > 0 {
		how = fmt.Sprintf("temperature %g", first.Temperature)
	}
	fmt.Fprintf(w, "%s, %s; 95 %% intervals in brackets\n", report.Count(first.Rows, "row"), how)
	const name, column = 30, 26
	lacks := false // an interval
	line := func(cells ...string) {
		lacks = lacks || slices.ContainsFunc(cells, func(c string) bool { return strings.HasSuffix(c, noInterval) })
		var b strings.Builder
		fmt.Fprintf(&b, "%-*s", name, cells[0])
		for _, c := range cells[1:] {
			fmt.Fprintf(&b, "%-*s  ", column, c)
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	if len(all.Models) > 1 {
		head := []string{""}
		for i, m := range all.Models {
			fmt.Fprintf(w, "%s  %s\n", letter(i), m.Model)
			head = append(head, letter(i))
		}
		for i := range all.Differences {
			head = append(head, letter(i+1)+" - A, paired")
		}
		line(head...)
	}
	cell := func(x float64, ci *[2]float64) string {
		if ci == nil {
			return fmt.Sprintf("%.3f %s", x, noInterval)
		}
		return fmt.Sprintf("%.3f [%.3f, %.3f]", x, ci[0], ci[1])
	}
	var keys []trainer.Figure // of any model, labels that only one has included
	byModel := make([]map[string]trainer.Figure, len(all.Models))
	for i := range all.Models {
		byModel[i] = map[string]trainer.Figure{}
		for _, f := range all.Models[i].Figures() {
			byModel[i][f.Key] = f
			if !slices.ContainsFunc(keys, func(k trainer.Figure) bool { return k.Key == f.Key }) {
				keys = append(keys, f)
			}
		}
	}
	slices.SortStableFunc(keys, func(a, b trainer.Figure) int { return figureRank(a.Key) - figureRank(b.Key) })
	for _, k := range keys {
		cells := []string{k.Name}
		for i := range all.Models {
			if f, ok := byModel[i][k.Key]; ok {
				cells = append(cells, cell(f.Value, f.CI95))
			} else {
				cells = append(cells, "")
			}
		}
		for _, d := range all.Differences {
			cells = append(cells, difference(d.of, k.Key, k.Better))
		}
		line(cells...)
	}
	printFresh(all, line, cell)
	printCut(w, all.Models)
	printAgainst(w, all.Models)
	if lacks {
		fmt.Fprintf(w, "%s: no interval, because there is one row, or all rows are equal and the figure is no share of rows\n", noInterval)
	}
}

// mostCut is the share of a student's answers that may end at the limit before the table
// says that it compares beginnings.
const mostCut = 0.5

// printCut says whose answers are mostly cut: ROUGE-L, length and repetition are then those
// of the answers' beginnings.
func printCut(w io.Writer, models []trainer.Evaluation) {
	for i, m := range models {
		if m.TruncatedFrac <= mostCut {
			continue
		}
		who := ""
		if len(models) > 1 {
			who = letter(i) + ": "
		}
		fmt.Fprintf(w, "%s%.0f %% of the answers are cut at the limit, so all figures of them but the teacher NLL are of beginnings: give a larger --max-response-length, or train the student to end its answers (gad sft)\n", who, 100*m.TruncatedFrac)
	}
}

// printAgainst says what the figures about --against are.
func printAgainst(w io.Writer, models []trainer.Evaluation) {
	if models[0].Against == "" {
		return
	}
	fmt.Fprintf(w, "KL and fluency: against %s, both distributions at temperature 1, means over tokens", models[0].Against)
	if t := models[0].Temperature; t != 1 {
		fmt.Fprintf(w, "; the student's answers are drawn at temperature %g, so that reverse KL, sampled, is no estimate of its own KL", t)
	}
	fmt.Fprintln(w)
	for i, m := range models {
		if m.AgainstCut > 0 {
			fmt.Fprintf(w, "%s: %s hold a token that only one of the two models has, and are read up to there\n", letter(i), report.Count(m.AgainstCut, "answer"))
		}
	}
}

// letter names a model in the table.
func letter(i int) string { return string(rune('A' + i%26)) }

// noInterval stands in the table where a figure has no interval.
const noInterval = "[-]"

// figureRank puts the shares of labels behind the checker's score.
func figureRank(key string) int {
	switch {
	case key == "check":
		return 0
	case strings.HasPrefix(key, "label: "):
		return 1
	}
	return 2
}

// difference is one cell: the difference, its interval, and what it means.
func difference(of map[string]trainer.Difference, key string, better int) string {
	d, ok := of[key]
	if !ok {
		return ""
	}
	if d.CI95 == nil {
		return fmt.Sprintf("%+.3f %s", d.Value, noInterval)
	}
	says := "within noise"
	switch up := d.CI95[0] > 0; {
	case d.CI95[0] <= 0 && d.CI95[1] >= 0:
	case better == 0 && up:
		says = "more"
	case better == 0:
		says = "less"
	case up == (better > 0):
		says = "better"
	default:
		says = "worse"
	}
	return fmt.Sprintf("%+.3f [%+.3f, %+.3f] %s", d.Value, d.CI95[0], d.CI95[1], says)
}

// printFresh is the part of the table about fresh discriminators.
func printFresh(all compared, line func(...string), cell func(float64, *[2]float64) string) {
	row := func(name, note string, of func(e trainer.Evaluation) string) {
		cells, any := []string{name}, false
		for _, e := range all.Models {
			cells = append(cells, of(e))
			any = any || cells[len(cells)-1] != ""
		}
		if any {
			line(append(cells, note)...)
		}
	}
	interval := func(x *float64, ci *[2]float64) string {
		if x == nil {
			return ""
		}
		return cell(*x, ci)
	}
	number := func(x *float64) string {
		if x == nil {
			return ""
		}
		return fmt.Sprintf("%.3f", *x)
	}
	cells, any := []string{"fresh discriminator"}, false
	for _, e := range all.Models {
		says := ""
		switch {
		case e.FreshDAcc != nil:
			says = cell(*e.FreshDAcc, e.FreshDCI95)
		case e.FreshDTies != nil && *e.FreshDTies == 1:
			says = "all answers equal"
		case e.FreshDLearned != nil && *e.FreshDLearned:
			says = "too few pairs to judge"
		case e.FreshDLearned != nil:
			says = "not learned: no finding"
		case e.FreshDNote != "":
			says = "none"
		}
		any = any || says != ""
		cells = append(cells, says)
	}
	if !any {
		return
	}
	for _, d := range all.Differences {
		cells = append(cells, difference(d.of, "fresh_d_acc", -1))
	}
	if len(all.Models) == 1 && all.Models[0].FreshDAcc != nil {
		cells = append(cells, "held-out accuracy; 0.5: cannot tell student from teacher")
	}
	line(cells...)
	row("  on pairs it learned from", "", func(e trainer.Evaluation) string { return number(e.FreshDTrained) })
	row("  control", "the same training on the teacher's answers and copies of them with one token replaced", func(e trainer.Evaluation) string { return interval(e.FreshDControl, e.FreshDControlCI95) })
	row("  same text as the teacher's", "answers that are left out of it", func(e trainer.Evaluation) string { return interval(e.FreshDTies, e.FreshDTiesCI95) })
	row("  trained", "", func(e trainer.Evaluation) string {
		if e.FreshDSteps == 0 {
			return ""
		}
		text := fmt.Sprintf("%d x %d steps", e.FreshDSeeds, e.FreshDSteps)
		if e.FreshDRead > 0 {
			text += fmt.Sprintf(", %d tokens", e.FreshDRead)
		}
		return text
	})
	notes := map[string][]string{} // the models that each is about
	for i, e := range all.Models {
		if e.FreshDLearned != nil && !*e.FreshDLearned && (e.FreshDTies == nil || *e.FreshDTies < 1) && e.FreshDSteps > 0 {
			notes[whyNotLearned(e)] = append(notes[whyNotLearned(e)], letter(i))
		}
		if e.FreshDNote != "" {
			text := "fresh discriminators were shortened: " + e.FreshDNote
			if e.FreshDSteps == 0 {
				text = "no fresh discriminator: " + e.FreshDNote
			}
			notes[text] = append(notes[text], letter(i))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(notes)) {
		if about := notes[n]; len(about) < len(all.Models) {
			n += " (" + strings.Join(about, ", ") + ")"
		}
		line(n)
	}
}

// whyNotLearned says why no accuracy is reported, and what to do.
func whyNotLearned(e trainer.Evaluation) string {
	why := "neither its accuracy nor the control is clearly above chance"
	if e.FreshDTrained != nil && *e.FreshDTrained < 0.6 {
		why = "it does not even rank the pairs that it learned from"
	}
	return "the fresh discriminator has not learned: " + why + ": give more rows, more --disc-minutes or another --disc-lr"
}
