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

// Gad is what a study needs of the program around it.
type Gad interface {
	// Run runs one command line, without the program's name. What it prints goes to
	// out, what it says to log. When ctx ends a training command saves and returns an
	// error that is ErrInterrupted; the same command goes on. An error that is ErrFinal
	// would come again. Several may run at a time.
	Run(ctx context.Context, args []string, out, log io.Writer) error

	// Checkpoint is the newest checkpoint of a run folder: a folder that holds actor/.
	Checkpoint(run string) (dir string, err error)

	// Plan checks the settings of a training command and says what it will take. The
	// seconds of a step are measured if timed is set, else 0.
	Plan(args []string, timed bool) (Needs, error)
}

// Needs are what a training command will take.
type Needs struct {
	Bytes       int64   // of memory
	Free        int64   // bytes of memory that there are now, 0 if unknown
	Steps       int     // in all, 0 if unknown
	StepSeconds float64 // 0 if it was not measured
}

// What callers branch on.
var (
	// ErrInterrupted reports a study that was asked to stop and can go on.
	ErrInterrupted = fault.ErrInterrupted
	// ErrFinal reports a command that would fail again.
	ErrFinal = errors.New("would fail again")
)

// node is a stage of one seed with all that comes before it: what arms share is one
// node.
type node struct {
	plan   *Plan
	stage  *Stage
	seed   uint64
	parent *node  // nil for the first stage
	like   *node  // the last stage of the arm whose cost a fill copies
	id     string // of everything that decides what it computes
	label  string // for people
	prio   int    // of the first arm and seed that needs it
}

// chain is the node after all that comes before it.
func (n *node) chain() (list []*node) {
	if n.parent != nil {
		list = n.parent.chain()
	}
	return append(list, n)
}

// The files of a node. The run's folder is gad's own, so that what the study knows of
// it lies beside it.
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

// done is what the study keeps of a finished stage.
type done struct {
	Command string  `json:"command"`
	Steps   int     `json:"steps"`
	Actor   string  `json:"actor"` // the student, below the stage's folder
	TFLOP   float64 `json:"tflop"`
	Seconds float64 `json:"seconds"` // of its steps and saves

	Warnings []string `json:"warnings,omitempty"` // of its log, each once: a discriminator that has not learned, for one
}

// failed is what the study keeps of a stage that would fail again.
type failed struct {
	Command string `json:"command"`
	Why     string `json:"why"`
}

// fill is how many steps were found to fit the budget.
type fill struct {
	Steps   int     `json:"steps"`
	Budget  float64 `json:"budget"`   // TFLOP, or seconds
	Before  float64 `json:"before"`   // what the stages before it have taken
	PerStep float64 `json:"per_step"` // mean of the probe
	Probed  int     `json:"probed"`   // steps of the probe
}

// version of what the ids are made of.
const version = 1

// graph is the plan as nodes and cells.
type graph struct {
	nodes []*node // parents first
	cells []*cell // seed by seed
	byID  map[string]*node
	sums  map[string]string // digests by path
}

// cell is an arm with a seed.
type cell struct {
	arm  *Arm
	seed uint64
	last *node
}

// build makes the graph. The ids hold digests of data and student, so that a changed
// file is another stage.
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

// add is the node of the same id, or n itself.
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
		{&key.Teacher, "teacher", n.teacher()}} {
		if *f.into, err = g.sum(fsys, f.what, f.path); err != nil {
			return nil, err
		}
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

// model is the student that the first stage of a chain starts from, "" for later ones.
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

func (n *node) teacher() string { return withSeed(n.stage.Teacher, n.seed) }

// settings are the common ones and the stage's own, which win.
func (n *node) settings() []string {
	return append(append([]string{}, n.plan.Common...), n.stage.Set...)
}

// sum is a digest of a file, or of the files in a folder. Paths are lists, as gad
// takes them.
func (g *graph) sum(fsys vfs.FS, what, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	if s, ok := g.sums[path]; ok {
		return s, nil
	}
	h := sha256.New()
	for _, p := range filepath.SplitList(path) {
		if err := digest(fsys, h, p, "."); err != nil {
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

// ErrInput reports data or a student that is not there.
var ErrInput = errors.New("cannot be read")

// digest writes names and bytes of what is at path, through symbolic links, to w.
func digest(fsys vfs.FS, w io.Writer, path, name string) error {
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
			continue // locks, and what systems leave
		}
		if err := digest(fsys, w, filepath.Join(path, e.Name()), name+"/"+e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// args is the command line that runs the node in the folder out with so many steps, 0
// for what the settings say; extra settings win over all. from is the student that it
// starts from, which is its parent's.
func (n *node) args(out, from string, steps, threads int, extra ...string) []string {
	a := []string{n.stage.Run}
	if n.stage.Run == "train" {
		a = append(a, "--resume", n.parent.run())
	} else {
		a = append(a, "--model", from)
	}
	return append(a, n.common(out, steps, threads, extra...)...)
}

func (n *node) common(out string, steps, threads int, extra ...string) (a []string) {
	a = append(a, "--data", n.data())
	if n.stage.Ratings != "" {
		a = append(a, "--ratings", n.ratings())
	}
	if n.stage.Teacher != "" {
		a = append(a, "--teacher", n.teacher())
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

// environment are the flags about it. A stage that is off it plays with each of the teacher's
// turns as a row; it says that it leaves the environment of the stage before it, since a run's
// folder cannot name a program.
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

func (p *Plan) device() (a []string) {
	if p.Device != "" {
		a = append(a, "--device", p.Device)
	}
	if p.Precision != "" {
		a = append(a, "--precision", p.Precision)
	}
	return a
}

// planned is the command line that gad is asked to plan in the node's place: before
// the stages that it comes after have run there is only the student, and a stage of
// the game would take over what the stage before it was told. The folder is one that
// is never there: a run under way would insist on its own settings.
func (n *node) planned(threads int) []string {
	a := []string{n.stage.Run, "--model", n.chain()[0].model()}
	own := n.common(n.file("planned"), n.stage.Steps, threads)
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

// shell is a command line as a person would type it.
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

// row is the metrics of a step.
type row map[string]float64

// metrics are those of a run, without what is not finite.
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

// warnings are those of a run's log.jsonl, each once; none where there is no log.
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

// tflop is what a step computed, in 1e12 floating-point operations.
func (r row) tflop() float64 { return r["perf/tflops"] * r["timing_s/step"] }

// seconds is what a step took, with the checkpoint before it.
func (r row) seconds() float64 {
	return r["timing_s/step"] - r["timing_s/val"] +
		r["timing_s/save"]
}

// costs are what each step cost in the budget's unit.
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

// cost is what a stage cost in the budget's unit.
func (b Budget) cost(d done) float64 {
	if b.Seconds > 0 {
		return d.Seconds
	}
	return d.TFLOP
}

// readJSON reads a file of the study's own; ok is false where it is not there.
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

func writeJSON(fsys vfs.FS, path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("study: %s: %w", path, err)
	}
	return vfs.WriteFile(fsys, path, append(raw, '\n'))
}
