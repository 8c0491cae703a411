package study

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gad/internal/report"
	"gad/internal/vfs"
)

// Options is a study's surroundings: file system, program, machine, clock.
type Options struct {
	FS    vfs.FS
	Gad   Gad
	Jobs  int       // commands at a time; 0 is as many as cores and memory allow
	Cores int       // cores that the commands share
	Log   io.Writer // for people: a line at the start of a command and one at its end
	Now   func() time.Time
}

// Files of a study's report, below its folder.
const (
	TablesName = "study.md"
	JSONName   = "study.json"
)

// session is one run of the program on a study: the graph of stages and the tasks left to do.
type session struct {
	*graph
	Options
	plan    *Plan
	threads int
	tasks   []*task // by priority; a task starts when its dependencies are finished
	logMu   sync.Mutex
}

// task is a stage to run or an evaluation.
type task struct {
	node     *node
	eval     *evaluation // nil for a stage
	prio     int         // index of the first cell that needs it
	deps     []*task
	state    int
	err      error
	duration time.Duration
}

const (
	waiting = iota
	running
	finished
	broken // it failed, or a dependency did
)

// evaluation is one run of gad eval: the student of a cell's last stage, a set, a temperature.
type evaluation struct {
	node        *node
	set         Set
	temperature float64
	id          string // by identify: digest of everything that decides the result
}

// open returns a session with its tasks; those whose results are on disk are finished.
func open(p *Plan, o Options) (*session, error) {
	g, err := build(o.FS, p)
	if err != nil {
		return nil, err
	}
	s := &session{graph: g, Options: o, plan: p, threads: 1}
	byNode := map[*node]*task{}
	for _, n := range g.nodes {
		t := &task{node: n, prio: n.prio}
		for _, before := range []*node{n.parent, n.like} {
			if before != nil {
				t.deps = append(t.deps, byNode[before])
			}
		}
		if _, ok, err := s.readStage(n); err != nil {
			return nil, err
		} else if ok {
			t.state = finished
		}
		byNode[n] = t
		s.tasks = append(s.tasks, t)
	}
	seen := map[string]bool{}
	for i, c := range g.cells {
		for _, e := range s.evaluations(c.last) {
			if err := s.identify(e); err != nil {
				return nil, err
			}
			if seen[e.id] {
				continue // two arms that are the same
			}
			seen[e.id] = true
			t := &task{node: c.last, eval: e, prio: i, deps: []*task{byNode[c.last]}}
			if _, ok, err := s.readEval(e); err != nil {
				return nil, err
			} else if ok {
				t.state = finished
			}
			s.tasks = append(s.tasks, t)
		}
	}
	slices.SortStableFunc(s.tasks, func(a, b *task) int { return cmp.Compare(a.prio, b.prio) })
	return s, nil
}

// readStage reads the record of a finished stage; ok is false while it is not finished.
func (s *session) readStage(n *node) (d stageRecord, ok bool, err error) {
	ok, err = readJSON(s.FS, n.file(doneName), &d)
	return d, ok, err
}

// evaluations returns a node's evaluations, temperatures within sets, without ids.
func (s *session) evaluations(n *node) (list []*evaluation) {
	for _, set := range s.plan.Eval.Sets {
		for _, t := range s.plan.Eval.Temperatures {
			list = append(list, &evaluation{node: n, set: set, temperature: t})
		}
	}
	return list
}

// identify sets an evaluation's id.
func (s *session) identify(e *evaluation) error {
	data, err := s.digest(s.FS, "eval: "+e.set.Name, withSeed(e.set.Path, e.node.seed))
	if err != nil {
		return err
	}
	key := []any{version, e.node.id, data, e.temperature, s.plan.Eval.Rows, s.plan.Eval.Checker,
		s.plan.limit()}
	if s.plan.Env != "" {
		key = append(key, "env", s.plan.Env, s.plan.limits())
	}
	if s.plan.Eval.Against != "" {
		other, err := s.digest(s.FS, "eval: against", withSeed(s.plan.Eval.Against, e.node.seed))
		if err != nil {
			return err
		}
		key = append(key, "against", other)
	}
	if e.node.measuresFidelity() {
		key = append(key, "fidelity", s.plan.Eval.Fidelity)
	}
	if s.plan.Eval.DiscSteps > 0 {
		key = append(key, "disc", s.plan.Eval.DiscSteps, s.plan.Eval.DiscSeeds)
	}
	text, err := json.Marshal(key)
	if err != nil {
		return fmt.Errorf("study: %w", err)
	}
	sum := sha256.Sum256(text)
	e.id = fmt.Sprintf("s%d-%s-t%g-%s", e.node.seed, e.set.Name, e.temperature,
		hex.EncodeToString(sum[:5]))
	return nil
}

// evalRecord is the study's file of an evaluation.
type evalRecord struct {
	Command string         `json:"command"`
	Result  map[string]any `json:"result"` // as gad eval --json printed it
}

// path returns the path of an evaluation's record.
func (e *evaluation) path() string {
	return filepath.Join(e.node.plan.Dir, "evals", e.id+".json")
}

// readEval reads an evaluation's record; ok is false where there is none.
func (s *session) readEval(e *evaluation) (a evalRecord, ok bool, err error) {
	ok, err = readJSON(s.FS, e.path(), &a)
	return a, ok, err
}

// Run runs the parts of a study that have not been run, and writes its tables. It returns the
// report also with an error: ErrInterrupted, or the errors of the commands that failed. A command
// whose failure is not ErrFinal is tried again by the next run of the study.
func Run(ctx context.Context, p *Plan, o Options) (*Report, error) {
	s, err := open(p, o)
	if err != nil {
		return nil, err
	}
	if err := vfs.MakeDirs(s.FS, filepath.Join(p.Dir, "evals")); err != nil {
		return nil, vfs.Target(err)
	}
	if s.countWaiting() > 0 {
		if err := s.prepare(); err != nil {
			return nil, err
		}
		if err := s.rehearse(ctx); err != nil {
			return nil, err
		}
	}
	stopped := s.loop(ctx)
	report, err := s.report()
	if err == nil {
		err = s.write(report)
	}
	if err != nil {
		return nil, err
	}
	if stopped == nil {
		stopped = s.taskErrors()
	}
	return report, stopped
}

// Tables returns the report over the results so far and runs nothing. Unless write is set it writes
// nothing either, so that another process may be running the study.
func Tables(p *Plan, o Options, write bool) (*Report, error) {
	s, err := open(p, o)
	if err != nil {
		return nil, err
	}
	report, err := s.report()
	if err != nil || !write {
		return report, err
	}
	if err := vfs.MakeDirs(s.FS, p.Dir); err != nil {
		return nil, vfs.Target(err)
	}
	return report, s.write(report)
}

// countWaiting returns the number of tasks that have not started.
func (s *session) countWaiting() (n int) {
	for _, t := range s.tasks {
		if t.state == waiting {
			n++
		}
	}
	return n
}

// prepare asks gad to plan each stage, so that a wrong setting fails before hours of training, and
// sets Jobs and threads from the memory and cores at hand.
func (s *session) prepare() error {
	needs, err := s.needs(false)
	if err != nil {
		return err
	}
	var most, free int64
	for _, n := range needs {
		most, free = max(most, n.Bytes), max(free, n.Free)
	}
	fit := math.MaxInt32
	if most > 0 && free > 0 {
		fit = int(free / 10 * 9 / most)
	}
	switch {
	case s.Jobs == 0 && s.plan.Device == "cuda":
		s.Jobs = 1
	case s.Jobs == 0:
		s.Jobs = max(1, min(s.Cores, len(s.cells), fit))
	case s.Jobs > 1 && s.Jobs > fit:
		return fmt.Errorf(
			"study: --jobs %d: one command takes up to %s, %s are free: %w: use --jobs %d", s.Jobs,
			gigabytes(most), gigabytes(free), ErrMemory, max(1, fit))
	}
	s.threads = max(1, s.Cores/s.Jobs)
	return nil
}

// ErrMemory reports more jobs than fit in memory.
var ErrMemory = errors.New("does not fit in memory")

// gigabytes returns a number of bytes as text, in GB.
func gigabytes(n int64) string { return fmt.Sprintf("%.3g GB", float64(n)/1e9) }

// needs returns what gad plan says of each stage of the study, for the first seed. With timed it
// also measures the seconds of a step.
func (s *session) needs(timed bool) (map[*Stage]Needs, error) {
	needs := map[*Stage]Needs{}
	for _, c := range s.cells {
		if c.seed != s.plan.Seeds[0] {
			break
		}
		for _, n := range c.last.chain() {
			if _, ok := needs[n.stage]; ok {
				continue
			}
			got, err := s.Gad.Plan(n.planArgs(max(1, s.Cores/max(1, s.Jobs))), timed)
			if err != nil {
				return nil, fmt.Errorf("study: arm %q, stage %s: %w", c.arm.Name, n.label, err)
			}
			needs[n.stage] = got
		}
	}
	return needs, nil
}

// rehearse evaluates the untrained student on two rows of each set, so that unreadable data or a
// broken checker fails before hours of training.
func (s *session) rehearse(ctx context.Context) error {
	seed := s.plan.Seeds[0]
	for _, set := range s.plan.Eval.Sets {
		n := &node{plan: s.plan, seed: seed}
		args := s.evalArgs(&evaluation{node: n, set: set}, withSeed(s.plan.Model, seed), 2, "8", 0)
		if _, err := s.runEval(ctx, args); err != nil {
			if errors.Is(err, ErrInterrupted) {
				return err
			}
			return fmt.Errorf("study: eval: %s: trial on two rows before any training: %w",
				set.Name, err)
		}
	}
	return nil
}

// evalArgs returns the command line that evaluates a student on the first rows of a set (0: all),
// with answers of at most limit tokens ("": gad's default) and fresh discriminators of discSteps
// steps.
func (s *session) evalArgs(e *evaluation, student string, rows int, limit string,
	discSteps int) []string {
	a := []string{"eval", "--model", student, "--data", withSeed(e.set.Path, e.node.seed),
		"--temperature", fmt.Sprint(e.temperature), "--seed", fmt.Sprint(e.node.seed)}
	if rows > 0 {
		a = append(a, "--limit", fmt.Sprint(rows))
	}
	a = append(a, s.plan.rowFlags()...)
	if v := lastSetting(s.plan.Common, "data.template"); v != "" {
		a = append(a, "--template", v)
	}
	if limit != "" {
		a = append(a, "--max-response-length", limit)
	}
	if s.plan.Env != "" {
		a = append(append(append(a, "--env", s.plan.Env), s.plan.limits()...), s.plan.device()...)
		return append(a, "--threads", fmt.Sprint(s.threads), "--json")
	}
	if c := s.plan.Eval.Checker; c != "" {
		a = append(a, "--checker", c)
	}
	if other := s.plan.Eval.Against; other != "" {
		a = append(a, "--against", withSeed(other, e.node.seed))
	}
	if n := s.plan.Eval.DiscSeeds; n > 0 && discSteps > 0 {
		a = append(a, "--disc-seeds", fmt.Sprint(n))
	}
	a = append(a, s.plan.device()...)
	return append(a, "--threads", fmt.Sprint(s.threads), "--disc-steps", fmt.Sprint(discSteps),
		"--json")
}

// runEval runs a command that prints a JSON object, and returns the object. Such a command has
// nothing to save: when ctx ends, runEval returns ErrInterrupted without waiting for it.
func (s *session) runEval(ctx context.Context, args []string) (result map[string]any, err error) {
	type outcome struct {
		out []byte
		err error
	}
	got := make(chan outcome, 1)
	go func() {
		var out, said bytes.Buffer
		err := s.Gad.Run(ctx, args, &out, &said)
		got <- outcome{out.Bytes(), err}
	}()
	select {
	case <-ctx.Done():
		return nil, ErrInterrupted
	case o := <-got:
		if o.err != nil {
			return nil, o.err
		}
		if err := json.Unmarshal(o.out, &result); err != nil {
			return nil, fmt.Errorf("gad %s printed no JSON object: %w", args[0], err)
		}
		return result, nil
	}
}

// loop starts tasks as soon as their dependencies are finished, at most Jobs at a time, and returns
// when none can start. After ctx ends it waits for stages, which save a checkpoint, and not for
// evaluations.
func (s *session) loop(ctx context.Context) error {
	type outcome struct {
		*task
		err  error
		took time.Duration
	}
	results := make(chan outcome, len(s.tasks))
	begun := s.Now()
	stop, busy, saving := ctx.Done(), 0, 0
	for {
		for busy < s.Jobs && ctx.Err() == nil {
			t := s.next()
			if t == nil {
				break
			}
			t.state = running
			busy++
			if t.eval == nil {
				saving++
			}
			go func() {
				from := s.Now()
				err := s.do(ctx, t)
				results <- outcome{t, err, s.Now().Sub(from)}
			}()
		}
		if ctx.Err() != nil && saving == 0 {
			return ErrInterrupted
		}
		if busy == 0 {
			return nil
		}
		select {
		case <-stop:
			stop = nil
		case ended := <-results:
			t := ended.task
			t.err, t.duration = ended.err, ended.took
			busy--
			if t.eval == nil {
				saving--
			}
			t.state = finished
			if t.err != nil {
				t.state = broken
			}
			if errors.Is(t.err, ErrInterrupted) {
				t.state = waiting
				continue
			}
			s.logEnd(t, begun)
			if t.eval != nil && ctx.Err() == nil {
				if err := s.cellDone(t); err != nil {
					return err
				}
			}
		}
	}
}

// next returns the first task that can start, nil for none. It marks tasks that depend on a broken
// one broken.
func (s *session) next() *task {
	for _, t := range s.tasks {
		if t.state != waiting {
			continue
		}
		ready := true
		for _, d := range t.deps {
			if d.state == broken && t.state == waiting {
				t.state, t.err = broken, d.err
			}
			ready = ready && d.state == finished
		}
		if ready {
			return t
		}
	}
	return nil
}

// cellDone rewrites the tables after the last evaluation of a cell.
func (s *session) cellDone(t *task) error {
	for _, other := range s.tasks {
		if other.eval != nil && other.node == t.node && other.state != finished {
			return nil
		}
	}
	report, err := s.report()
	if err != nil {
		return err
	}
	return s.write(report)
}

// taskName returns a task's name for people: the first arm that needs it, seed, stage or
// evaluation.
func (s *session) taskName(t *task) string {
	c := s.cells[t.prio]
	what := t.node.label
	if t.eval != nil {
		what = fmt.Sprintf("eval of %s at temperature %g", t.eval.set.Name, t.eval.temperature)
	}
	return fmt.Sprintf("%s, seed %d: %s", c.arm.Name, t.node.seed, what)
}

// logf writes a line to Log, with the time.
func (s *session) logf(format string, args ...any) {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	fmt.Fprintf(s.Log, "%s  %s\n", s.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// logEnd logs how a task ended, and an estimate of the study's end. started is when the loop began.
func (s *session) logEnd(t *task, begun time.Time) {
	if t.err != nil {
		s.logf("%s: failed: %v", s.taskName(t), t.err)
		return
	}
	text := fmt.Sprintf("took %s", t.duration.Round(time.Second))
	if d, ok, err := s.readStage(t.node); t.eval == nil && ok && err == nil {
		text = fmt.Sprintf("%d steps, %s TFLOP, %s", d.Steps, number(d.TFLOP), text)
	}
	ended, total, spent, seen := 0, 0, time.Duration(0), map[string][]time.Duration{}
	for _, t := range s.tasks {
		total++
		if t.state == finished || t.state == broken {
			ended++
		}
		if t.duration > 0 {
			spent += t.duration
			seen[t.kind()] = append(seen[t.kind()], t.duration)
		}
	}
	var left time.Duration
	for _, t := range s.tasks {
		if t.state != waiting && t.state != running {
			continue
		}
		list := seen[t.kind()]
		if len(list) == 0 { // no such task yet: as long as others
			for _, l := range seen {
				list = append(list, l...)
			}
		}
		var sum time.Duration
		for _, d := range list {
			sum += d
		}
		left += sum / time.Duration(max(1, len(list)))
	}
	if left > 0 {
		text += fmt.Sprintf("; %d of %d, eta %s", ended, total,
			(left / time.Duration(s.Jobs)).Round(time.Second))
	} else {
		text += fmt.Sprintf("; %d of %d, %s in all", ended, total,
			s.Now().Sub(begun).Round(time.Second))
	}
	s.logf("%s: %s", s.taskName(t), text)
}

// kind returns a key that tasks of about equal duration share.
func (t *task) kind() string {
	if t.eval != nil {
		return "eval " + t.eval.set.Name
	}
	return fmt.Sprintf("%p", t.node.stage)
}

// do runs a task.
func (s *session) do(ctx context.Context, t *task) error {
	if t.eval != nil {
		return s.evaluate(ctx, t)
	}
	return s.runStage(ctx, t)
}

// evaluate runs an evaluation, with gad fidelity where the stage is measured, and writes its
// record.
func (s *session) evaluate(ctx context.Context, t *task) error {
	d, _, err := s.readStage(t.node)
	if err != nil {
		return err
	}
	args := s.evalArgs(t.eval, filepath.Join(t.node.dir(), d.Actor), s.plan.Eval.Rows,
		s.plan.limit(), s.plan.Eval.DiscSteps)
	result, err := s.runEval(ctx, args)
	if err != nil {
		return err
	}
	command := shell(args)
	if t.node.measuresFidelity() {
		args := s.fidelityArgs(t.eval, filepath.Join(t.node.dir(), filepath.Dir(d.Actor)))
		found, err := s.runEval(ctx, args)
		if err != nil {
			return err
		}
		maps.Copy(result, fidelityOf(found))
		command += "\n" + shell(args)
	}
	return writeJSON(s.FS, t.eval.path(), evalRecord{command, result})
}

// measuresFidelity reports whether the stage has a discriminator that the study measures with gad
// fidelity.
func (n *node) measuresFidelity() bool {
	return n.plan.Eval.Fidelity > 0 && (n.stage.Run == "warmup" || n.stage.Run == "train")
}

// fidelityArgs returns the command line that measures a checkpoint's discriminator against the
// model of eval.against.
func (s *session) fidelityArgs(e *evaluation, checkpoint string) []string {
	a := []string{"fidelity", "--critic", checkpoint, "--teacher",
		withSeed(s.plan.Eval.Against, e.node.seed), "--data", withSeed(e.set.Path, e.node.seed),
		"--n", fmt.Sprint(s.plan.Eval.Fidelity), "--seed", fmt.Sprint(e.node.seed)}
	if n := s.plan.Eval.Rows; n > 0 {
		a = append(a, "--limit", fmt.Sprint(n))
	}
	a = append(append(a, s.plan.rowFlags()...), s.plan.device()...)
	return append(a, "--threads", fmt.Sprint(s.threads), "--json")
}

// fidelityOf returns the figures of gad fidelity's JSON by the keys of report.FigureOf: the last
// reward's, which is the discriminator, and fluency's correlation with the truth.
func fidelityOf(found map[string]any) map[string]any {
	out := map[string]any{}
	rewards, _ := found["rewards"].([]any)
	for i, r := range rewards {
		of, _ := r.(map[string]any)
		switch {
		case i == len(rewards)-1:
			out["fidelity"], out["fidelity_pairs"] = of["rho"], of["pairs"]
		case of["reward"] == "mean log p_S":
			out["fidelity_fluency"] = of["rho"]
		}
	}
	return out
}

// runStage runs a stage, or resumes it, and writes its record. A failure from an earlier run of the
// study that was ErrFinal is returned again.
func (s *session) runStage(ctx context.Context, t *task) error {
	n := t.node
	var before failureRecord
	if ok, err := readJSON(s.FS, n.file(failedName), &before); err != nil {
		return err
	} else if ok {
		return fmt.Errorf("%s (known from an earlier run of the study; remove %s to try again): %w",
			before.Why, n.file(failedName), ErrFinal)
	}
	if err := vfs.MakeDirs(s.FS, n.dir()); err != nil {
		return err
	}
	from := n.model()
	if n.parent != nil {
		d, _, err := s.readStage(n.parent)
		if err != nil {
			return err
		}
		from = filepath.Join(n.parent.dir(), filepath.FromSlash(d.Actor))
	}
	log, err := s.FS.OpenAppend(n.file(logName))
	if err != nil {
		return fmt.Errorf("study: %w", err)
	}
	defer log.Close()
	steps, err := s.steps(ctx, t, from, log)
	if err != nil {
		return s.noteFinal(n, "", err)
	}
	args := n.args(n.run(), from, steps, s.threads)
	s.logf("%s: %s", s.taskName(t), shell(args))
	fmt.Fprintf(log, "$ %s\n", shell(args))
	if err := s.Gad.Run(ctx, args, log, log); err != nil {
		return s.noteFinal(n, shell(args), err)
	}
	dir, err := s.Gad.Checkpoint(n.run())
	if err != nil {
		return err
	}
	actor, err := filepath.Rel(n.dir(), filepath.Join(dir, "actor"))
	if err != nil {
		return fmt.Errorf("study: %w", err)
	}
	rows, err := metrics(s.FS, n.run())
	if err != nil {
		return err
	}
	d := stageRecord{Command: shell(args), Steps: len(rows), Actor: filepath.ToSlash(actor)}
	for _, r := range rows {
		d.TFLOP += r.tflop()
		d.Seconds += r.seconds()
	}
	if d.Warnings, err = warnings(s.FS, n.run()); err != nil {
		return err
	}
	return writeJSON(s.FS, n.file(doneName), d)
}

// noteFinal returns err, after writing it to failed.json if it is ErrFinal, so that later runs of
// the study do not try again.
func (s *session) noteFinal(n *node, command string, err error) error {
	if errors.Is(err, ErrFinal) {
		if failing := writeJSON(s.FS, n.file(failedName),
			failureRecord{command, oneLine(err)}); failing != nil {
			return errors.Join(err, failing)
		}
	}
	return err
}

// oneLine returns an error's text with line breaks replaced by semicolons.
func oneLine(
	err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

// The probe of a stage with steps: fill runs at learning rate 0, so that its steps cost as much as
// the run's first ones. It takes probeSteps to probeMost steps, until the standard error of the
// mean cost is probeError of the mean.
const (
	probeSteps = 8
	probeMost  = 64
	probeError = 0.005
)

var probeSettings = []string{"actor.optim.lr=0", "actor.optim.lr_warmup_steps=0",
	"critic.optim.lr=0", "critic.optim.lr_warmup_steps=0",
	"trainer.save_freq=0", "trainer.test_freq=0", "trainer.save_samples=0"}

// steps returns the number of steps of a stage, 0 where its settings decide. For steps: fill it
// runs a probe once and keeps the result in fill.json:
//
// steps = (budget - cost of the stages before) / cost of a step
func (s *session) steps(ctx context.Context, t *task, from string, log io.Writer) (int, error) {
	n := t.node
	if !n.stage.Fill {
		return n.stage.Steps, nil
	}
	var f fillRecord
	probe := n.file(probeName)
	if ok, err := readJSON(s.FS, n.file(fillName), &f); err != nil {
		return 0, err
	} else if ok {
		return f.Steps, s.FS.RemoveAll(probe) // a kill may have left it
	}
	b := s.plan.Budget
	var err error
	if f.Budget, err = s.budget(n); err != nil {
		return 0, err
	}
	if n.parent != nil {
		if f.Before, _, err = s.chainCost(n.parent, b); err != nil {
			return 0, err
		}
	}
	if f.Before >= f.Budget {
		return 0, fmt.Errorf("earlier stages used %s of the budget of %s, so nothing is left for \"steps: fill\": raise the budget or shorten them: %w", number(f.Before), number(f.Budget), ErrFinal)
	}
	for want := probeSteps; ; {
		args := n.args(probe, from, want, s.threads, probeSettings...)
		fmt.Fprintf(log, "$ %s\n", shell(args))
		if err := s.Gad.Run(ctx, args, log, log); err != nil {
			return 0, err
		}
		rows, err := metrics(s.FS, probe)
		if err != nil {
			return 0, err
		}
		costs := b.costs(rows)
		if len(costs) > 2 && b.Seconds > 0 {
			costs = costs[1:] // the first step of a process is slower
		}
		mean, sd := report.Moments(costs)
		if !(mean > 0) {
			return 0, fmt.Errorf("steps: fill: the probe of %d steps cost nothing: %s has neither perf/tflops nor timing_s/step", len(rows), filepath.Join(probe, "metrics.jsonl"))
		}
		f.PerStep, f.Probed = mean, len(rows)
		need := int(math.Ceil(math.Pow(sd/mean/probeError, 2)))
		if need = min(need, probeMost); need <= want {
			break
		}
		want = need
	}
	f.Steps = max(1, int(math.Round((f.Budget-f.Before)/f.PerStep)))
	if err := writeJSON(s.FS, n.file(fillName), f); err != nil {
		return 0, err
	}
	s.logf("%s: %d steps fill the budget of %s: %s per step, %s before it", s.taskName(t), f.Steps,
		number(f.Budget), number(f.PerStep), number(f.Before))
	return f.Steps, s.FS.RemoveAll(probe)
}

// budget returns the cost that an arm which ends with n may have, in the budget's unit.
func (s *session) budget(n *node) (float64, error) {
	b := s.plan.Budget
	if n.like == nil {
		return max(b.TFLOP, b.Seconds), nil
	}
	cost, _, err := s.chainCost(n.like, b)
	return cost, err
}

// chainCost returns the cost of n and all stages before it, in the budget's unit; ok reports
// whether all of them are finished.
func (s *session) chainCost(n *node, b Budget) (cost float64, ok bool, err error) {
	for _, m := range n.chain() {
		d, have, err := s.readStage(m)
		if err != nil || !have {
			return cost, false, err
		}
		cost += b.cost(d)
	}
	return cost, true, nil
}

// taskErrors returns an error for the tasks that failed with an error other than ErrFinal: their
// number and the first error; nil for none.
func (s *session) taskErrors() error {
	n, first := 0, error(nil)
	for _, t := range s.tasks {
		if t.state == broken && !errors.Is(t.err, ErrFinal) {
			if n++; first == nil {
				first = fmt.Errorf("%s: %w", s.taskName(t), t.err)
			}
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf(
		"study: %d of %d parts failed: run the same command to try them again; the first error: %w",
		n, len(s.tasks), first)
}

// DryRun writes the command lines that Run would run, and their expected time.
func DryRun(p *Plan, o Options, w io.Writer) error {
	s, err := open(p, o)
	if err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	needs, err := s.needs(true)
	if err != nil {
		return err
	}
	var seconds, known float64
	stages, evals, filled := 0, 0, 0
	var per float64 // of the budget, for stages that fill it
	if p.Budget.Seconds > 0 {
		per = p.Budget.Seconds
	}
	for _, t := range s.tasks {
		if t.state != waiting {
			continue
		}
		if t.eval != nil {
			evals++
			continue
		}
		stages++
		n := t.node
		from := n.model()
		if n.parent != nil {
			from = filepath.Join(n.parent.run(), "global_step_N", "actor")
			if k := n.parent.stage.Steps; k > 0 {
				from = filepath.Join(n.parent.run(), fmt.Sprintf("global_step_%d", k), "actor")
			}
		}
		args := n.args(n.run(), from, n.stage.Steps, s.threads)
		line := shell(args)
		need := needs[n.stage]
		switch {
		case n.stage.Fill:
			line = strings.Replace(line, " --threads ", " --steps FILL --threads ", 1)
			seconds += per
			filled++
		case need.StepSeconds > 0:
			seconds += need.StepSeconds * float64(need.Steps)
			known++
		}
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "%d stages and %d evaluations to do, %d at a time with %d threads each", stages,
		evals, s.Jobs, s.threads)
	if known > 0 {
		fmt.Fprintf(w, "; about %s",
			time.Duration(seconds/float64(s.Jobs)*float64(time.Second)).Round(time.Second))
		if filled > 0 && per == 0 {
			fmt.Fprintf(w, " and %d stages that fill the budget of %s", filled, p.Budget.text())
		}
		fmt.Fprint(w, ", without evaluations")
	}
	fmt.Fprintln(w)
	return nil
}
