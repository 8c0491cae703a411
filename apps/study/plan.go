// Package study compares ways of training: arms x seeds from one YAML file. Each arm is a list of
// stages, each stage one command line of gad. Stages that arms share run once. A killed study goes
// on with the same command. The tables show means, intervals over seeds, paired differences and the
// cost of each arm. The package knows no model and no trainer: its caller gives it a [Gad].
//
//	plan.go   reads the study's file: start here
//	stage.go  the graph of stages, their files and their command lines
//	run.go    runs stages and evaluations, and finds the steps that fill a budget
//	stats.go  means, intervals and paired differences
//	table.go  the report: study.json and study.md
//	data.go   the report's tables as tab-separated values
package study

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gad/internal/conf"
	"gad/internal/report"
)

// Plan is a study as its file describes it. Its paths are ready for gad's command line: absolute,
// or relative to the working directory.
type Plan struct {
	File      string // path of the YAML file
	Name      string
	Dir       string // output folder
	Data      string // training data; {seed} stands for the seed
	ValData   string // data of the val/ metrics, "" for none
	Model     string // the student's folder; {seed} stands for the seed
	Device    string // cpu or cuda, "" for gad's default
	Precision string
	Env       string // command of the environment in which students act; "" for none
	Seeds     []uint64
	Common    []string // settings of every stage, KEY=VALUE
	Eval      Eval
	Budget    Budget
	Arms      []Arm
	Compare   []string // names of the arms that all others are compared with
	Metrics   []string // metrics of training in the tables
}

// Eval says how the student at the end of an arm is evaluated.
type Eval struct {
	Sets         []Set
	Checker      string // command, "" for none
	Temperatures []float64
	Rows         int // of each set, 0 for all
	// folder of the model in the KL with each student, "" for none; {seed} stands for the seed
	Against string
	// answers to a prompt when gad fidelity measures the discriminator of an arm's last stage against
	// the model Against, 0 for no measurement
	Fidelity  int
	DiscSteps int // steps of a fresh discriminator, 0 for no fresh discriminators
	DiscSeeds int // number of fresh discriminators for a student, 0 for gad's default
}

// Set is a file of held-out rows, with its name in the tables.
type Set struct{ Name, Path string }

// Budget is the cost that every arm may have. At most one of its fields is set.
type Budget struct {
	TFLOP   float64 // 1e12 floating-point operations
	Seconds float64
	Like    string // name of an arm: the floating-point operations it takes with the same seed
}

// given reports whether the study has a budget.
func (b Budget) given() bool { return b != Budget{} }

// Arm is one way of training: its stages, in order.
type Arm struct {
	Name   string
	Stages []*Stage
}

// Stage is one command of gad.
type Stage struct {
	Name         string // under stages, "" where it stands in an arm
	Run          string // one of commands
	Steps        int    // 0: the settings decide
	Fill         bool   // as many steps as the budget leaves
	CriticWarmup int    // -1: the settings decide
	Preset       string
	Data         string // replaces the plan's data, unless ""
	NoEnv        bool   // the stage does not act in the plan's environment
	Ratings      string // file of gad data rate; {seed} stands for the seed
	// a model whose probabilities the stage reads; {seed} stands for the seed, and ownStudent alone
	// for the student that the stage starts from
	Teacher string
	Set     []string // settings, KEY=VALUE
}

// ownStudent is the teacher of a stage whose student is to learn from its own weights at the start
// of the stage, which read more than it does.
const ownStudent = "{student}"

var stageKeys = []string{"run", "steps", "set", "preset", "critic_warmup", "data", "env",
	"ratings", "teacher"}

// commands lists the commands that a stage can run.
var commands = []string{"sft", "dpo", "opd", "warmup", "train"}

// game reports whether the stage is a stage of the game, which has a discriminator.
func (s *Stage) game() bool { return s.Run == "warmup" || s.Run == "train" }

// noEnv is the value of a stage's key env that keeps the stage off the study's environment.
const noEnv = "none"

// DefaultMetrics are the metrics that show a dead game (doc/metrics.md): tables have them where the
// study's file names no metrics.
var DefaultMetrics = []string{"critic/d_acc", "critic/d_acc_distinct", "critic/tie_frac",
	"critic/collapsed_groups_frac"}

// Read reads a study's file. The error is [conf.Problems], each with file, line and column.
func Read(path string) (*Plan, error) {
	root, err := conf.ReadTree(path)
	if err != nil {
		return nil, err
	}
	r := reader{path: path}
	p := r.plan(root)
	if err := root.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// reader turns a study's file into a Plan. Mistakes go to the nodes of the file's tree.
type reader struct {
	path   string
	env    bool // the study has an environment
	stages map[string]*Stage
	names  []string            // names under stages, in order
	named  map[string][]string // lists of settings by name
}

// file returns a path of the study's file, made relative to the folder of that file.
func (r *reader) file(n *conf.Node) string {
	p := conf.Value[string](n)
	if n != nil && p == "" {
		n.Bad("empty: give a path")
	}
	return r.beside(p)
}

// beside returns a path of the study's file for commands, which start in the working directory.
func (r *reader) beside(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(filepath.Dir(r.path), filepath.FromSlash(p))
}

// files returns the path or the list of paths in a node, as file does.
func (r *reader) files(n *conf.Node) string {
	list := filepath.SplitList(conf.Value[string](n))
	if len(list) < 2 {
		return r.file(n)
	}
	for i, p := range list {
		list[i] = r.beside(p)
	}
	return strings.Join(list, string(filepath.ListSeparator))
}

// plan returns the study at the root of a file's tree.
func (r *reader) plan(root *conf.Node) *Plan {
	root.Group("name", "output", "data", "val_data", "model", "device", "precision", "env",
		"seeds", "common", "eval", "budget", "settings", "stages", "arms", "compare", "metrics")
	r.lists(root.Get("settings"))
	stem := strings.TrimSuffix(filepath.Base(r.path), filepath.Ext(r.path))
	p := &Plan{File: r.path, Name: conf.Value[string](root.Get("name")),
		Dir:  r.file(root.Get("output")),
		Data: r.files(root.Get("data")), ValData: r.files(root.Get("val_data")),
		Model:     r.file(root.Get("model")),
		Device:    conf.Value[string](root.Get("device")),
		Precision: conf.Value[string](root.Get("precision")),
		Env:       conf.Value[string](root.Get("env")),
		Seeds:     conf.Values[uint64](root.Get("seeds")), Common: r.settings(root.Get("common")),
		Compare: conf.Values[string](root.Get("compare")), Metrics: DefaultMetrics}
	if p.Name == "" {
		p.Name = stem
	}
	if n := root.Get("env"); n != nil && p.Env == "" {
		n.Bad("empty: give a command, such as '\"$GAD\" env doors'")
	}
	r.env = p.Env != ""
	if p.Dir == "" {
		p.Dir = filepath.Join(filepath.Dir(r.path), stem+".study")
	}
	for _, key := range []string{"data", "model", "seeds", "arms", "eval"} {
		if root.Get(key) == nil {
			root.Bad("%q is missing", key)
		}
	}
	r.choice(root.Get("device"), p.Device, []string{"cpu", "cuda"})
	r.choice(root.Get("precision"), p.Precision, []string{"auto", "bf16", "f32"})
	if n := root.Get("seeds"); n != nil && len(p.Seeds) == 0 {
		n.Bad("expected at least one seed, such as [1, 2, 3]")
	}
	for i, s := range p.Seeds {
		if slices.Contains(p.Seeds[:i], s) {
			root.Get("seeds").Bad("seed %d appears twice", s)
		}
	}
	if n := root.Get("metrics"); n != nil {
		p.Metrics = conf.Values[string](n)
		var all []string
		for _, m := range report.Metrics() {
			all = append(all, m.Name)
		}
		for _, text := range p.Metrics {
			_, name := summaryOf(text)
			if slices.Contains(all, name) {
				continue
			}
			if near := conf.Nearest(name, all); near != "" {
				n.Bad("%q: no such metric: did you mean %q?", name, near)
			} else {
				n.Bad("%q: no such metric: doc/metrics.md lists all", name)
			}
		}
	}
	p.Eval = r.eval(root.Get("eval"))
	p.Budget = r.budget(root.Get("budget"))
	r.stages = map[string]*Stage{}
	if n := root.Get("stages"); n != nil {
		for _, name := range n.Group() {
			s := r.stage(n.Get(name))
			s.Name = name
			r.stages[name], r.names = s, append(r.names, name)
		}
	}
	r.arms(p, root)
	return p
}

// choice reports a value that is not one of the choices as a mistake at its node.
func (r *reader) choice(n *conf.Node, value string, choices []string) {
	if n == nil || slices.Contains(choices, value) {
		return
	}
	if near := conf.Nearest(value, choices); near != "" {
		n.Bad("%q: did you mean %q?", value, near)
		return
	}
	n.Bad("%q: expected one of: %s", value, strings.Join(choices, ", "))
}

// lists reads the named lists of settings. A list may contain, by name, the lists above it.
func (r *reader) lists(n *conf.Node) {
	r.named = map[string][]string{}
	if n == nil {
		return
	}
	for _, name := range n.Group() {
		if strings.Contains(name, "=") {
			n.Get(name).Bad("%q: a name has no =", name)
		}
		r.named[name] = r.settings(n.Get(name))
	}
}

// settings returns the settings of a list, KEY=VALUE, with names of lists replaced by their
// settings. It does not check the keys: gad does.
func (r *reader) settings(n *conf.Node) (list []string) {
	for _, e := range n.List() {
		s := conf.Value[string](e)
		key, _, ok := strings.Cut(s, "=")
		if named, known := r.named[s]; known {
			list = append(list, named...)
			continue
		}
		if near := conf.Nearest(s, slices.Sorted(maps.Keys(r.named))); !ok && near != "" {
			e.Bad("%q: no such list of settings: did you mean %q?", s, near)
			continue
		}
		switch {
		case !ok || key == "" || strings.HasPrefix(s, "-"):
			e.Bad("%q: expected SETTING=VALUE, such as actor.optim.lr=3e-3", s)
		case slices.Contains([]string{"trainer.seed", "trainer.default_local_dir",
			"trainer.resume_from", "model.path", "data.train_files", "trainer.threads",
			"trainer.device", "trainer.precision"}, key):
			e.Bad("%q: the study sets it: see seeds, output, model, data, device and precision, and the flag --jobs", key)
		case key == "env.command":
			e.Bad("%q: write env: COMMAND at the top of the study", key)
		case key == "trainer.total_steps":
			e.Bad("%q: write steps: N in the stage", key)
		}
		list = append(list, s)
	}
	return list
}

// eval returns how the file wants students to be evaluated.
func (r *reader) eval(n *conf.Node) (e Eval) {
	if n == nil {
		return e
	}
	n.Group("data", "checker", "temperatures", "rows", "also", "against", "fidelity",
		"disc_steps", "disc_seeds")
	if n.Get("data") == nil {
		n.Bad("%q is missing", "data")
	}
	e = Eval{Sets: []Set{{"test", r.file(n.Get("data"))}},
		Checker:      conf.Value[string](n.Get("checker")),
		Temperatures: []float64{1}, Rows: conf.Value[int](n.Get("rows")),
		Against:   r.file(n.Get("against")),
		Fidelity:  conf.Value[int](n.Get("fidelity")),
		DiscSteps: conf.Value[int](n.Get("disc_steps")),
		DiscSeeds: conf.Value[int](n.Get("disc_seeds"))}
	for _, x := range []struct {
		key   string
		value int
	}{{"rows", e.Rows}, {"fidelity", e.Fidelity}, {"disc_steps", e.DiscSteps},
		{"disc_seeds", e.DiscSeeds}} {
		if x.value < 0 {
			n.Get(x.key).Bad("%d: below the minimum 0", x.value)
		}
	}
	for _, key := range []string{"checker", "against", "fidelity", "disc_steps", "disc_seeds"} {
		if m := n.Get(key); m != nil && r.env {
			m.Bad("is for single answers: with env the environment's reward is the figure: leave it out")
		}
	}
	if f := n.Get("fidelity"); f != nil && (e.Fidelity == 1 || e.Against == "") {
		f.Bad("%d: is answers to each prompt, at least 2, by which a discriminator is held against the model of eval.against: give both", e.Fidelity)
	}
	if e.DiscSeeds > 0 && e.DiscSteps == 0 {
		n.Get("disc_seeds").Bad("there are no fresh discriminators without disc_steps")
	}
	if t := n.Get("temperatures"); t != nil {
		if e.Temperatures = conf.Values[float64](t); len(e.Temperatures) == 0 {
			t.Bad("expected at least one, such as [1, 0]")
		}
		for _, x := range e.Temperatures {
			if x < 0 {
				t.Bad("%g: below the minimum 0", x)
			}
		}
	}
	if also := n.Get("also"); also != nil {
		for _, name := range also.Group() {
			if name == "test" {
				also.Get(name).Bad("is the name of eval.data: choose another")
			}
			e.Sets = append(e.Sets, Set{name, r.file(also.Get(name))})
		}
	}
	return e
}

// budget returns the file's budget.
func (r *reader) budget(n *conf.Node) (b Budget) {
	if n == nil {
		return b
	}
	if names := n.Group("tflop", "seconds", "like"); len(names) != 1 {
		n.Bad("expected one of tflop, seconds and like")
	}
	b = Budget{conf.Value[float64](n.Get("tflop")), conf.Value[float64](n.Get("seconds")),
		conf.Value[string](n.Get("like"))}
	for _, key := range []string{"tflop", "seconds"} {
		if m := n.Get(key); m != nil && !(conf.Value[float64](m) > 0) {
			m.Bad("must be above 0")
		}
	}
	return b
}

// teacher returns the teacher that a stage names.
func (r *reader) teacher(n *conf.Node) string {
	if n != nil && n.IsText() && conf.Value[string](n) == ownStudent {
		return ownStudent
	}
	return r.file(n)
}

// stage returns the stage that a mapping of the file describes.
func (r *reader) stage(n *conf.Node) *Stage {
	n.Group(stageKeys...)
	s := &Stage{Run: conf.Value[string](n.Get("run")), Preset: conf.Value[string](n.Get("preset")),
		Data: r.files(n.Get("data")), Ratings: r.file(n.Get("ratings")),
		Teacher: r.teacher(n.Get("teacher")), Set: r.settings(n.Get("set")), CriticWarmup: -1}
	if n.Get("run") == nil {
		n.Bad("%q is missing: one of: %s", "run", strings.Join(commands, ", "))
	}
	r.choice(n.Get("run"), s.Run, commands)
	if s.Preset != "" && !s.game() {
		n.Get("preset").Bad("is for warmup and train: it changes nothing in %s", s.Run)
	}
	if lastSetting(s.Set, "trainer.checker") != "" {
		n.Get("set").Bad(
			"trainer.checker: give it in common: a stage takes no checker from the one before it")
	}
	switch m := n.Get("teacher"); {
	case m == nil && s.Run == "opd":
		n.Bad("%q is missing: the model that opd learns from", "teacher")
	case m != nil && (s.Run == "sft" || s.Run == "dpo"):
		m.Bad("is for opd, warmup and train: %s learns from the rows alone", s.Run)
	}
	if m := n.Get("env"); m != nil {
		s.NoEnv = true
		switch value := conf.Value[string](m); {
		case value != noEnv:
			m.Bad("%q: expected none: the environment is the study's env", value)
		case !s.game():
			m.Bad("is for warmup and train: %s acts in no environment", s.Run)
		case !r.env:
			m.Bad("the study has no env")
		}
	}
	if steps := n.Get("steps"); steps != nil {
		text, err := conf.Value[string](steps), error(nil)
		if s.Fill = text == "fill"; !s.Fill && steps.IsText() {
			if s.Steps, err = strconv.Atoi(text); err != nil || s.Steps < 1 {
				steps.Bad("%q: expected a number of steps, or fill", text)
			}
		}
		if s.Fill && s.Run == "warmup" {
			steps.Bad(
				"fill is for sft, dpo, opd and train: the steps of a warm-up do not cost the same")
		}
	}
	if w := n.Get("critic_warmup"); w != nil {
		if s.CriticWarmup = conf.Value[int](w); s.CriticWarmup < 0 {
			w.Bad("%d: below the minimum 0", s.CriticWarmup)
		}
		if !s.game() {
			w.Bad("%s has no discriminator", s.Run)
		}
	}
	if s.Fill && (s.CriticWarmup > 0 || lastSetting(s.Set, "trainer.critic_warmup") != "" ||
		lastSetting(s.Set, "trainer.critic_warmup_until") != "") {
		n.Get("steps").Bad("fill is for stages whose steps cost the same: leave out the steps that train the discriminator alone")
	}
	return s
}

// arms reads the arms into p, and checks the budget and the comparisons that name arms.
func (r *reader) arms(p *Plan, root *conf.Node) {
	arms := root.Get("arms")
	names := arms.Group()
	filled := map[string]bool{}
	for _, name := range names {
		arm, n := Arm{Name: name}, arms.Get(name)
		list := n.List()
		if len(list) == 0 {
			n.Bad("expected at least one stage")
		}
		for i, e := range list {
			s := r.member(e)
			if s == nil {
				continue
			}
			before := ""
			if i > 0 && len(arm.Stages) > 0 {
				before = arm.Stages[len(arm.Stages)-1].Run
			}
			if s.Run == "train" && before != "warmup" && before != "train" {
				e.Bad("train needs a discriminator: put a warmup before it")
			}
			if s.Fill {
				filled[name] = true
				if i < len(list)-1 {
					e.Bad("steps: fill is for the last stage of an arm: what comes after it has no budget left")
				}
				if !p.Budget.given() {
					e.Bad("steps: fill needs a budget, such as budget: {tflop: 8} or {like: %s}",
						names[0])
				}
			}
			arm.Stages = append(arm.Stages, s)
		}
		p.Arms = append(p.Arms, arm)
	}
	known := func(n *conf.Node, name string) {
		if near := conf.Nearest(name, names); near != "" && !slices.Contains(names, name) {
			n.Bad("%q: no such arm: did you mean %q?", name, near)
		} else if !slices.Contains(names, name) {
			n.Bad("%q: no such arm: there are: %s", name, strings.Join(names, ", "))
		}
	}
	if n := root.Get("budget").Get("like"); n != nil {
		known(n, p.Budget.Like)
		if filled[p.Budget.Like] {
			n.Bad("%q itself has steps: fill", p.Budget.Like)
		}
	}
	for _, c := range p.Compare {
		known(root.Get("compare"), c)
	}
	if len(p.Compare) == 0 && len(p.Arms) > 0 {
		p.Compare = []string{p.Arms[0].Name}
	}
}

// member returns the stage of an element of an arm, which is a mapping or the name of a stage; nil
// after a mistake.
func (r *reader) member(n *conf.Node) *Stage {
	if !n.IsText() {
		return r.stage(n)
	}
	name := conf.Value[string](n)
	if s := r.stages[name]; s != nil {
		return s
	}
	if near := conf.Nearest(name, r.names); near != "" {
		n.Bad("%q: no such stage: did you mean %q?", name, near)
	} else {
		n.Bad("%q: no such stage: name one under stages, or write {run: %s, ...}", name, "sft")
	}
	return nil
}

// limit returns the longest answer, in tokens, that the settings of every stage allow; "" if they
// do not set it.
func (p *Plan) limit() string { return lastSetting(p.Common, "data.max_response_length") }

// rowFlags returns the flags by which evaluations read the rows' columns as training does.
func (p *Plan) rowFlags() (flags []string) {
	for _, f := range []struct{ key, flag string }{{"data.content_key", "--content-key"},
		{"data.teacher_key", "--teacher-key"}, {"data.format", "--format"}} {
		if v := lastSetting(p.Common, f.key); v != "" {
			flags = append(flags, f.flag, v)
		}
	}
	return flags
}

// limits returns the flags of gad eval --env that repeat settings of every stage.
func (p *Plan) limits() (a []string) {
	for _, f := range []struct{ key, flag string }{{"data.max_prompt_length", "max-prompt-length"},
		{"env.max_tokens", "max-tokens"}, {"env.max_turns", "max-turns"},
		{"env.workers", "env-workers"}, {"env.timeout", "env-timeout"}} {
		if v := lastSetting(p.Common, f.key); v != "" {
			a = append(a, "--"+f.flag, v)
		}
	}
	return a
}

// lastSetting returns the last value that settings give a key, "" for none.
func lastSetting(settings []string, key string) (value string) {
	for _, s := range settings {
		if v, ok := strings.CutPrefix(s, key+"="); ok {
			value = v
		}
	}
	return value
}

// environment returns the command of the environment in which the stage acts, "" for none.
func (p *Plan) environment(s *Stage) string {
	if s.NoEnv || !s.game() {
		return ""
	}
	return p.Env
}

// arm returns the arm of a name, which must be in the plan.
func (p *Plan) arm(name string) *Arm {
	i := slices.IndexFunc(p.Arms, func(a Arm) bool { return a.Name == name })
	return &p.Arms[i]
}

// withSeed returns a path with {seed} replaced by the seed.
func withSeed(path string, seed uint64) string {
	return strings.ReplaceAll(path, "{seed}", fmt.Sprint(seed))
}

// text returns the budget as the report shows it.
func (b Budget) text() string {
	switch {
	case b.TFLOP > 0:
		return number(b.TFLOP) + " TFLOP"
	case b.Seconds > 0:
		return number(b.Seconds) + " s"
	case b.Like != "":
		return "as many FLOPs as " + b.Like
	}
	return "none"
}

// number returns x with three significant digits.
func number(x float64) string {
	if math.Abs(x) >= 999.5 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
