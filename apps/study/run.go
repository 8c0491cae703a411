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

// Options are what a study needs from the process around it.
type Options struct {
	FS    vfs.FS
	Gad   Gad
	Jobs  int       // commands at a time; 0 is as many as cores and memory allow
	Cores int       // that the commands share
	Log   io.Writer // for people: a line when a command begins and one when it has ended
	Now   func() time.Time
}

// Tables is what the report of a study is written to, below its folder.
const (
	TablesName = "study.md"
	JSONName   = "study.json"
)

// session is one run of the program on a study.
type session struct {
	*graph
	Options
	plan    *Plan
	threads int
	tasks   []*task // in the order in which they are begun, if they can be
	saying  sync.Mutex
}

// task is a stage or an evaluation.
type task struct {
	node  *node
	eval  *evaluation // nil for a stage
	prio  int
	deps  []*task
	state int
	err   error
	took  time.Duration
}

const (
	waiting = iota
	running
	finished
	broken // it, or something before it
)

// evaluation is what a cell ends with, on a set at a temperature.
type evaluation struct {
	node        *node
	set         Set
	temperature float64
	id          string
}

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
		if _, ok, err := s.done(n); err != nil {
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
			if _, ok, err := s.evaluated(e); err != nil {
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

func (s *session) done(n *node) (d done, ok bool, err error) {
	ok, err = readJSON(s.FS, n.file(doneName), &d)
	return d, ok, err
}

func (s *session) evaluations(n *node) (list []*evaluation) {
	for _, set := range s.plan.Eval.Sets {
		for _, t := range s.plan.Eval.Temperatures {
			list = append(list, &evaluation{node: n, set: set, temperature: t})
		}
	}
	return list
}

// identify gives an evaluation its id.
func (s *session) identify(e *evaluation) error {
	data, err := s.sum(s.FS, "eval: "+e.set.Name, withSeed(e.set.Path, e.node.seed))
	if err != nil {
		return err
	}
	key := []any{version, e.node.id, data, e.temperature, s.plan.Eval.Rows, s.plan.Eval.Checker,
		s.plan.limit()}
	if s.plan.Env != "" {
		key = append(key, "env", s.plan.Env, s.plan.limits())
	}
	if s.plan.Eval.Against != "" {
		other, err := s.sum(s.FS, "eval: against", withSeed(s.plan.Eval.Against, e.node.seed))
		if err != nil {
			return err
		}
		key = append(key, "against", other)
	}
	if e.node.scores() {
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

// answered is what the study keeps of an evaluation.
type answered struct {
	Command string         `json:"command"`
	Result  map[string]any `json:"result"` // as gad eval --json printed it
}

func (e *evaluation) path() string {
	return filepath.Join(e.node.plan.Dir, "evals", e.id+".json")
}

func (s *session) evaluated(e *evaluation) (a answered, ok bool, err error) {
	ok, err = readJSON(s.FS, e.path(), &a)
	return a, ok, err
}

// Run runs what of the study has not been run, and writes its tables. It returns them
// also when the study was interrupted, with ErrInterrupted, or when some of its
// commands failed, with their errors: what failed and would not fail for certain is
// tried again when the study is run again.
func Run(ctx context.Context, p *Plan, o Options) (*Report, error) {
	s, err := open(p, o)
	if err != nil {
		return nil, err
	}
	if err := vfs.MakeDirs(s.FS, filepath.Join(p.Dir, "evals")); err != nil {
		return nil, vfs.Target(err)
	}
	if s.left() > 0 {
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
		stopped = s.failures()
	}
	return report, stopped
}

// Tables makes the tables of a study from what is there, and runs nothing. Without write it
// writes nothing either, so that another process may run the study.
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

// left is how many tasks there are to do.
func (s *session) left() (n int) {
	for _, t := range s.tasks {
		if t.state == waiting {
			n++
		}
	}
	return n
}

// prepare asks gad about each kind of stage, so that a wrong setting is found before
// hours have gone, and settles how many commands run at a time.
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

func gigabytes(n int64) string { return fmt.Sprintf("%.3g GB", float64(n)/1e9) }

// needs are what each stage of the plan needs, asked of its first seed.
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
			got, err := s.Gad.Plan(n.planned(max(1, s.Cores/max(1, s.Jobs))), timed)
			if err != nil {
				return nil, fmt.Errorf("study: arm %q, stage %s: %w", c.arm.Name, n.label, err)
			}
			needs[n.stage] = got
		}
	}
	return needs, nil
}

// rehearse evaluates the untrained student on two rows of each set, so that data that
// cannot be read, or a checker that does not work, is found before hours have gone.
func (s *session) rehearse(ctx context.Context) error {
	seed := s.plan.Seeds[0]
	for _, set := range s.plan.Eval.Sets {
		n := &node{plan: s.plan, seed: seed}
		args := s.evalArgs(&evaluation{node: n, set: set}, withSeed(s.plan.Model, seed), 2, "8", 0)
		if _, err := s.answers(ctx, args); err != nil {
			if errors.Is(err, ErrInterrupted) {
				return err
			}
			return fmt.Errorf("study: eval: %s: trial on two rows before any training: %w",
				set.Name, err)
		}
	}
	return nil
}

// evalArgs is the command line of an evaluation of a student on some rows, 0 for all, with
// fresh discriminators of so many steps.
func (s *session) evalArgs(e *evaluation, student string, rows int, limit string,
	discSteps int) []string {
	a := []string{"eval", "--model", student, "--data", withSeed(e.set.Path, e.node.seed),
		"--temperature", fmt.Sprint(e.temperature), "--seed", fmt.Sprint(e.node.seed)}
	if rows > 0 {
		a = append(a, "--limit", fmt.Sprint(rows))
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

// answers runs an evaluation. It has nothing to save: when ctx ends it is left to
// itself, and the process goes.
func (s *session) answers(ctx context.Context, args []string) (result map[string]any, err error) {
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

// loop begins tasks as soon as what they need is done, at most Jobs at a time.
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
			t.err, t.took = ended.err, ended.took
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
			s.tell(t, begun)
			if t.eval != nil && ctx.Err() == nil {
				if err := s.cellDone(t); err != nil {
					return err
				}
			}
		}
	}
}

// next is the first task that can begin. What comes after a broken one is broken.
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

// cellDone brings the tables up to date when the last evaluation of a cell has ended.
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

// who names the first arm and the seed that need a task.
func (s *session) who(t *task) string {
	c := s.cells[t.prio]
	what := t.node.label
	if t.eval != nil {
		what = fmt.Sprintf("eval of %s at temperature %g", t.eval.set.Name, t.eval.temperature)
	}
	return fmt.Sprintf("%s, seed %d: %s", c.arm.Name, t.node.seed, what)
}

func (s *session) say(format string, args ...any) {
	s.saying.Lock()
	defer s.saying.Unlock()
	fmt.Fprintf(s.Log, "%s  %s\n", s.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// tell says how a task has ended, and when the study may.
func (s *session) tell(t *task, begun time.Time) {
	if t.err != nil {
		s.say("%s: failed: %v", s.who(t), t.err)
		return
	}
	text := fmt.Sprintf("took %s", t.took.Round(time.Second))
	if d, ok, err := s.done(t.node); t.eval == nil && ok && err == nil {
		text = fmt.Sprintf("%d steps, %s TFLOP, %s", d.Steps, number(d.TFLOP), text)
	}
	ended, total, spent, seen := 0, 0, time.Duration(0), map[string][]time.Duration{}
	for _, t := range s.tasks {
		total++
		if t.state == finished || t.state == broken {
			ended++
		}
		if t.took > 0 {
			spent += t.took
			seen[t.kind()] = append(seen[t.kind()], t.took)
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
	s.say("%s: %s", s.who(t), text)
}

// kind is what tasks have in common that take about as long.
func (t *task) kind() string {
	if t.eval != nil {
		return "eval " + t.eval.set.Name
	}
	return fmt.Sprintf("%p", t.node.stage)
}

func (s *session) do(ctx context.Context, t *task) error {
	if t.eval != nil {
		return s.evaluate(ctx, t)
	}
	return s.stage(ctx, t)
}

func (s *session) evaluate(ctx context.Context, t *task) error {
	d, _, err := s.done(t.node)
	if err != nil {
		return err
	}
	args := s.evalArgs(t.eval, filepath.Join(t.node.dir(), d.Actor), s.plan.Eval.Rows,
		s.plan.limit(), s.plan.Eval.DiscSteps)
	result, err := s.answers(ctx, args)
	if err != nil {
		return err
	}
	command := shell(args)
	if t.node.scores() {
		args := s.fidelityArgs(t.eval, filepath.Join(t.node.dir(), filepath.Dir(d.Actor)))
		found, err := s.answers(ctx, args)
		if err != nil {
			return err
		}
		maps.Copy(result, fidelityOf(found))
		command += "\n" + shell(args)
	}
	return writeJSON(s.FS, t.eval.path(), answered{command, result})
}

// scores reports whether the stage has a discriminator that the study measures.
func (n *node) scores() bool {
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
	return append(append(a, s.plan.device()...), "--threads", fmt.Sprint(s.threads), "--json")
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

// stage runs a stage, or goes on with it.
func (s *session) stage(ctx context.Context, t *task) error {
	n := t.node
	var before failed
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
		d, _, err := s.done(n.parent)
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
	s.say("%s: %s", s.who(t), shell(args))
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
	d := done{Command: shell(args), Steps: len(rows), Actor: filepath.ToSlash(actor)}
	for _, r := range rows {
		d.TFLOP += r.tflop()
		d.Seconds += r.seconds()
	}
	if d.Warnings, err = warnings(s.FS, n.run()); err != nil {
		return err
	}
	return writeJSON(s.FS, n.file(doneName), d)
}

// noteFinal keeps err if it would come again, so that it is not waited for.
func (s *session) noteFinal(n *node, command string, err error) error {
	if errors.Is(err, ErrFinal) {
		if failing := writeJSON(s.FS, n.file(failedName),
			failed{command, oneLine(err)}); failing != nil {
			return errors.Join(err, failing)
		}
	}
	return err
}

func oneLine(
	err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

// The probe of a fill: steps at learning rate 0, so that they cost what the first
// steps of the run will, as many as it takes for the mean to be known to exact.
const (
	probeSteps = 8
	probeMost  = 64
	exact      = 0.005
)

var probeSettings = []string{"actor.optim.lr=0", "actor.optim.lr_warmup_steps=0",
	"critic.optim.lr=0", "critic.optim.lr_warmup_steps=0",
	"trainer.save_freq=0", "trainer.test_freq=0", "trainer.save_samples=0"}

// steps is how many steps the stage takes, 0 for what its settings say. Those of a
// fill are found once and kept.
//
//	steps = (budget - cost of the stages before) / cost of a step
func (s *session) steps(ctx context.Context, t *task, from string, log io.Writer) (int, error) {
	n := t.node
	if !n.stage.Fill {
		return n.stage.Steps, nil
	}
	var f fill
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
		if f.Before, _, err = s.spent(n.parent, b); err != nil {
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
		need := int(math.Ceil(math.Pow(sd/mean/exact, 2)))
		if need = min(need, probeMost); need <= want {
			break
		}
		want = need
	}
	f.Steps = max(1, int(math.Round((f.Budget-f.Before)/f.PerStep)))
	if err := writeJSON(s.FS, n.file(fillName), f); err != nil {
		return 0, err
	}
	s.say("%s: %d steps fill the budget of %s: %s per step, %s before it", s.who(t), f.Steps,
		number(f.Budget), number(f.PerStep), number(f.Before))
	return f.Steps, s.FS.RemoveAll(probe)
}

// budget is what an arm may cost that ends with n.
func (s *session) budget(n *node) (float64, error) {
	b := s.plan.Budget
	if n.like == nil {
		return max(b.TFLOP, b.Seconds), nil
	}
	cost, _, err := s.spent(n.like, b)
	return cost, err
}

// spent is what n and all before it have cost in the budget's unit; ok says that all
// of them are done.
func (s *session) spent(n *node, b Budget) (cost float64, ok bool, err error) {
	for _, m := range n.chain() {
		d, have, err := s.done(m)
		if err != nil || !have {
			return cost, false, err
		}
		cost += b.cost(d)
	}
	return cost, true, nil
}

// failures joins the errors of tasks that failed and may not fail again.
func (s *session) failures() error {
	n, first := 0, error(nil)
	for _, t := range s.tasks {
		if t.state == broken && !errors.Is(t.err, ErrFinal) {
			if n++; first == nil {
				first = fmt.Errorf("%s: %w", s.who(t), t.err)
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

// DryRun says what Run would do: the command lines, and the time that they are
// expected to take.
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
