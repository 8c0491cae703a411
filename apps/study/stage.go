package study

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gad/internal/fault"
	"gad/internal/report"
	"gad/internal/vfs"
)

// Gad is the program whose commands a study runs.
type Gad interface {
	// Run runs one command line, given without the program's name. Results go to out,
	// messages to log. When ctx ends, a training command saves a checkpoint and returns
	// ErrInterrupted; the same command resumes. ErrFinal means that the command would fail
	// again. Run is safe for concurrent use.
	Run(ctx context.Context, args []string, out, log io.Writer) error

	// Checkpoint returns the newest checkpoint of a run folder: a folder that holds actor/.
	Checkpoint(run string) (dir string, err error)

	// Plan checks the settings of a training command and returns its needs. It measures the
	// seconds of a step only if timed is set.
	Plan(args []string, timed bool) (Needs, error)
}

// Needs is the memory and time of a training command.
type Needs struct {
	Bytes       int64   // memory that the command takes
	Free        int64   // free memory in bytes now, 0 if unknown
	Steps       int     // of the whole run, 0 if unknown
	StepSeconds float64 // 0 if not measured
}

// Errors that callers branch on.
var (
	// ErrInterrupted reports a study that was stopped and can be resumed.
	ErrInterrupted = fault.ErrInterrupted
	// ErrFinal reports a command that would fail again.
	ErrFinal = errors.New("would fail again")
)

// node is a stage of one seed after a chain of earlier stages. Arms that begin alike share nodes.
type node struct {
	plan   *Plan
	stage  *Stage
	seed   uint64
	parent *node  // nil for the first stage
	like   *node  // with budget.like: the last stage of the arm whose cost is the budget
	id     string // with a digest of everything that decides its result
	label  string // for people
	prio   int    // index of the first cell that needs it
}

// chain returns the nodes from the first stage to n.
func (n *node) chain() (list []*node) {
	if n.parent != nil {
		list = n.parent.chain()
	}
	return append(list, n)
}

// Paths of a node: its folder, a file of the study there, and the run folder, which gad alone
// writes.
func (n *node) dir() string             { return filepath.Join(n.plan.Dir, "stages", n.id) }
func (n *node) file(name string) string { return filepath.Join(n.dir(), name) }
func (n *node) run() string             { return n.file("run") }

const (
	doneName   = "done.json"
	failedName = "failed.json"
	fillName   = "fill.json"
	logName    = "log.txt"
	probeName  = "probe"
)

// stageRecord is the study's file of a finished stage, done.json.
type stageRecord struct {
	Command string  `json:"command"`
	Steps   int     `json:"steps"`
	Actor   string  `json:"actor"` // the student, below the stage's folder
	TFLOP   float64 `json:"tflop"`
	Seconds float64 `json:"seconds"` // steps and saves

	Warnings []string `json:"warnings,omitempty"` // distinct ones in its log
}

// failureRecord is the study's file of a stage that failed with ErrFinal, failed.json.
type failureRecord struct {
	Command string `json:"command"`
	Why     string `json:"why"`
}

// fillRecord is the study's file of a stage with steps: fill, fill.json.
type fillRecord struct {
	Steps   int     `json:"steps"`
	Budget  float64 `json:"budget"`   // TFLOP, or seconds
	Before  float64 `json:"before"`   // cost of the stages before it
	PerStep float64 `json:"per_step"` // mean cost of the probe's steps
	Probed  int     `json:"probed"`   // number of the probe's steps
}

// version is part of every id: a change of how ids are computed raises it.
const version = 1

// graph is the plan as nodes (stages) and cells (arms with seeds).
type graph struct {
	nodes []*node // parents first
	cells []*cell // seed by seed
	byID  map[string]*node
	sums  map[string]string // digests by path
}

// cell is an arm with a seed; last is its last stage.
type cell struct {
	arm  *Arm
	seed uint64
	last *node
}

// build returns the graph of a plan. Ids contain digests of data and models, so that a stage with a
// changed input is another stage and runs again.
func build(fsys vfs.FS, p *Plan) (*graph, error) {
	g := &graph{byID: map[string]*node{}, sums: map[string]string{}}
	for _, seed := range p.Seeds {
		for i := range p.Arms {
			last, err := g.arm(fsys, p, &p.Arms[i], seed)
			if err != nil {
				return nil, err
			}
			for _, n := range last.chain() {
				n.prio = min(n.prio, len(g.cells))
			}
			g.cells = append(g.cells, &cell{&p.Arms[i], seed, last})
		}
	}
	return g, nil
}

// arm adds the stages of an arm with a seed to the graph and returns the last.
func (g *graph) arm(fsys vfs.FS, p *Plan, a *Arm, seed uint64) (last *node, err error) {
	for _, s := range a.Stages {
		n := &node{plan: p, stage: s, seed: seed, parent: last, prio: math.MaxInt}
		if s.Fill && p.Budget.Like != "" {
			if n.like, err = g.arm(fsys, p, p.arm(p.Budget.Like), seed); err != nil {
				return nil, err
			}
		}
		if last, err = g.add(fsys, n); err != nil {
			return nil, err
		}
	}
	return last, nil
}

// add sets n's id and returns the graph's node of that id; it adds n where there is none.
func (g *graph) add(fsys vfs.FS, n *node) (*node, error) {
	key := struct {
		Version                   int
		Parent, Like, Model, Data string
		Val, Run, Preset          string
		Device, Precision         string
		Steps, CriticWarmup       int
		Fill                      bool
		Budget                    Budget
		Set                       []string
		Seed                      uint64
		Env                       string `json:",omitempty"` // studies without one keep their ids
		NoEnv                     bool   `json:",omitempty"`
		Ratings, Teacher          string `json:",omitempty"`
	}{Version: version, Run: n.stage.Run, Preset: n.stage.Preset, Device: n.plan.Device,
		Precision: n.plan.Precision,
		Steps:     n.stage.Steps, CriticWarmup: n.stage.CriticWarmup, Fill: n.stage.Fill,
		Set: n.settings(), Seed: n.seed, Env: n.plan.environment(n.stage),
		NoEnv: n.stage.NoEnv}
	if n.parent != nil {
		key.Parent = n.parent.id
	}
	if n.like != nil {
		key.Like = n.like.id
	}
	if n.stage.Fill {
		key.Budget = n.plan.Budget
		key.Budget.Like = "" // the arm's name decides nothing, its stages do
	}
	var err error
	for _, f := range []struct {
		into       *string
		what, path string
	}{{&key.Model, "model", n.model()}, {&key.Data, "data", n.data()},
		{&key.Val, "val_data", n.val()}, {&key.Ratings, "ratings", n.ratings()},
		{&key.Teacher, "teacher", n.teacher("")}} {
		if *f.into, err = g.digest(fsys, f.what, f.path); err != nil {
			return nil, err
		}
	}
	if n.stage.Teacher == ownStudent { // whose bytes the stages before it decide
		key.Teacher = ownStudent
	}
	text, err := json.Marshal(key)
	if err != nil {
		return nil, fmt.Errorf("study: %w", err)
	}
	sum := sha256.Sum256(text)
	n.id = fmt.Sprintf("s%d-%s-%s", n.seed, n.stage.Run, hex.EncodeToString(sum[:5]))
	if n.label = n.stage.Name; n.label == "" {
		n.label = n.stage.Run
	}
	if same := g.byID[n.id]; same != nil {
		return same, nil
	}
	g.byID[n.id] = n
	g.nodes = append(g.nodes, n)
	return n, nil
}

// model returns the folder of the student with which the first stage of a chain starts, "" for
// later stages.
func (n *node) model() string {
	if n.parent != nil {
		return ""
	}
	return withSeed(n.plan.Model, n.seed)
}

func (n *node) data() string {
	if n.stage.Data != "" {
		return withSeed(n.stage.Data, n.seed)
	}
	return withSeed(n.plan.Data, n.seed)
}

func (n *node) val() string { return withSeed(n.plan.ValData, n.seed) }

func (n *node) ratings() string { return withSeed(n.stage.Ratings, n.seed) }

// teacher returns the folder of the stage's teacher, "" for none. from is the student with which
// the stage starts.
func (n *node) teacher(from string) string {
	if n.stage.Teacher == ownStudent {
		return from
	}
	return withSeed(n.stage.Teacher, n.seed)
}

// settings returns the settings of every stage, then the stage's own, which win.
func (n *node) settings() []string {
	return append(append([]string{}, n.plan.Common...), n.stage.Set...)
}

// digest returns a digest of a file, or of the files in a folder, and keeps it by path. A path may
// be a list of paths, as gad takes it.
func (g *graph) digest(fsys vfs.FS, what, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	if s, ok := g.sums[path]; ok {
		return s, nil
	}
	h := sha256.New()
	for _, p := range filepath.SplitList(path) {
		if err := hashPath(fsys, h, p, "."); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return "", fmt.Errorf("study: %s: %s: no such file or folder: paths are relative to the study's file: %w", what, p, ErrInput)
			}
			return "", fmt.Errorf("study: %s: %w", what, err)
		}
	}
	s := hex.EncodeToString(h.Sum(nil))
	g.sums[path] = s
	return s, nil
}

// ErrInput reports data or a model that cannot be read.
var ErrInput = errors.New("cannot be read")

// hashPath writes the names and bytes of the file or folder at path to w. It follows symbolic links
// and skips hidden files in folders.
func hashPath(fsys vfs.FS, w io.Writer, path, name string) error {
	info, err := fsys.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s: neither a file nor a folder: %w", path, ErrInput)
		}
		f, err := fsys.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		fmt.Fprintf(w, "%q %d\n", name, info.Size())
		_, err = io.Copy(w, f)
		return err
	}
	entries, err := fsys.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue // locks and files of the operating system
		}
		if err := hashPath(fsys, w, filepath.Join(path, e.Name()), name+"/"+e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// args returns the command line that runs the node.
//
// out is the run folder, from the student with which a stage other than train starts, steps the
// number of steps (0: the settings decide). Extra settings win over all others.
func (n *node) args(out, from string, steps, threads int, extra ...string) []string {
	a := []string{n.stage.Run}
	if n.stage.Run == "train" {
		a = append(a, "--resume", n.parent.run())
	} else {
		a = append(a, "--model", from)
	}
	return append(a, n.common(out, from, steps, threads, extra...)...)
}

// common returns the flags and settings of every stage's command line, the settings last; args
// describes the arguments.
func (n *node) common(out, from string, steps, threads int, extra ...string) (a []string) {
	a = append(a, "--data", n.data())
	if n.stage.Ratings != "" {
		a = append(a, "--ratings", n.ratings())
	}
	if n.stage.Teacher != "" {
		a = append(a, "--teacher", n.teacher(from))
	}
	if n.plan.ValData != "" {
		a = append(a, "--val-data", n.val())
	}
	a = append(a, "--output", out, "--seed", fmt.Sprint(n.seed))
	if n.stage.Preset != "" {
		a = append(a, "--preset", n.stage.Preset)
	}
	a = append(a, n.environment()...)
	if n.stage.CriticWarmup >= 0 {
		a = append(a, "--critic-warmup", fmt.Sprint(n.stage.CriticWarmup))
	}
	if steps > 0 {
		a = append(a, "--steps", fmt.Sprint(steps))
	}
	a = append(append(a, n.plan.device()...), "--threads", fmt.Sprint(threads))
	return append(append(a, n.settings()...), extra...)
}

// environment returns the flags that concern the environment. A stage without the study's
// environment plays each turn of the teacher's as a row; after a stage that acted in it, --env ""
// leaves it, since a run's folder cannot name a program.
func (n *node) environment() (a []string) {
	if cmd := n.plan.environment(n.stage); cmd != "" {
		return []string{"--env", cmd}
	}
	if !n.stage.NoEnv {
		return nil
	}
	if n.stage.Run == "train" && n.parent != nil && n.plan.environment(n.parent.stage) != "" {
		a = append(a, "--env", "")
	}
	return append(a, "--turns", "each")
}

// device returns the flags of device and precision.
func (p *Plan) device() (a []string) {
	if p.Device != "" {
		a = append(a, "--device", p.Device)
	}
	if p.Precision != "" {
		a = append(a, "--precision", p.Precision)
	}
	return a
}

// planArgs returns the command line of gad plan for the node.
//
// The stages before it may not have run. So it starts from the study's student, and train repeats
// the settings that it would inherit from earlier stages of the game. Its output is a folder that
// is never there: an existing run would insist on its own settings.
func (n *node) planArgs(threads int) []string {
	from := n.chain()[0].model()
	a := []string{n.stage.Run, "--model", from}
	own := n.common(n.file("planned"), from, n.stage.Steps, threads)
	flags := own[:len(own)-len(n.settings())]
	a = append(a, flags...)
	if n.stage.Run == "train" {
		for _, before := range n.chain() {
			if before != n && before.stage.game() {
				a = append(a, before.settings()...)
			}
		}
	}
	return append(a, n.settings()...)
}

// shell returns a command line, quoted for a POSIX shell, that begins with gad.
func shell(args []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-"
	words := []string{"gad"}
	for _, a := range args {
		if a == "" || strings.Trim(a, plain) != "" {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// row is the metrics of a step by name.
type row map[string]float64

// metrics returns the metrics of each step of a run, without values that are not finite.
func metrics(fsys vfs.FS, run string) (rows []row, err error) {
	recorded, err := report.ReadMetrics(fsys, run)
	if err != nil {
		return nil, fmt.Errorf("study: %w", err)
	}
	for _, r := range recorded {
		maps.DeleteFunc(r.Values,
			func(_ string, x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
		rows = append(rows, r.Values)
	}
	return rows, nil
}

// warnings returns the distinct warnings in a run's log.jsonl; none where there is no log.
func warnings(fsys vfs.FS, run string) (list []string, err error) {
	path := filepath.Join(run, "log.jsonl")
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("study: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry struct{ Level, Msg string }
		// a kill may cut a line short
		if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Level == "warn" &&
			!slices.Contains(list, entry.Msg) {
			list = append(list, entry.Msg)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("study: %s: %w", path, err)
	}
	return list, nil
}

// tflop returns the computation of a step, in 1e12 floating-point operations.
func (r row) tflop() float64 { return r["perf/tflops"] * r["timing_s/step"] }

// seconds returns the time of a step and the checkpoint before it, without validation.
func (r row) seconds() float64 {
	return r["timing_s/step"] - r["timing_s/val"] +
		r["timing_s/save"]
}

// costs returns the cost of each step in the budget's unit.
func (b Budget) costs(rows []row) (list []float64) {
	for _, r := range rows {
		if b.Seconds > 0 {
			list = append(list, r.seconds())
		} else {
			list = append(list, r.tflop())
		}
	}
	return list
}

// cost returns the cost of a finished stage in the budget's unit.
func (b Budget) cost(d stageRecord) float64 {
	if b.Seconds > 0 {
		return d.Seconds
	}
	return d.TFLOP
}

// readJSON reads a JSON file of the study; ok is false where it does not exist.
func readJSON(fsys vfs.FS, path string, into any) (ok bool, err error) {
	raw, err := fsys.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return false, fmt.Errorf("study: %s: %w: remove it; it will be written again", path, err)
	}
	return true, nil
}

// writeJSON writes a JSON file of the study.
func writeJSON(fsys vfs.FS, path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("study: %s: %w", path, err)
	}
	return vfs.WriteFile(fsys, path, append(raw, '\n'))
}
