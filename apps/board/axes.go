package board

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gad/internal/report"
)

// After is where a run's student comes from.
type After struct {
	Run  int    `json:"run"`  // the run's ID; -1 = it is not on this board
	Path string `json:"path"` // of its folder
	Step int    `json:"step"` // after which the student was taken; 0 = not known
}

// Axis says how far a run is at its steps: a curve can be drawn over time or operations,
// and behind the run that its student comes from.
type Axis struct {
	Step    []int     `json:"step"`
	Seconds []float64 `json:"seconds"` // computed since the run's start: the sum of timing_s/step
	TFLOP   []float64 `json:"tflop"`   // operations since then: the sum of perf/tflops times timing_s/step
	Before  Distance  `json:"before"`  // the run's start, in the runs that its student comes from
}

// Distance is a way from the start of a run.
type Distance struct {
	Steps   int     `json:"steps"`
	Seconds float64 `json:"seconds"`
	TFLOP   float64 `json:"tflop"`
}

var checkpointPath = regexp.MustCompile(`^(.*?)[/\\]global_step_([0-9]{1,12})(?:[/\\]actor)?[/\\]?$`)

// origin finds the run that r's student comes from, by the settings of r and by its log; nil:
// there is none.
func (r *run) origin(runs []*run) *After {
	path, whole := r.text("trainer.resume_from"), false
	if path == "" {
		path, whole = r.text("model.path"), true
	}
	if path == "" {
		return nil
	}
	a := &After{Run: -1, Path: path}
	if m := checkpointPath.FindStringSubmatch(path); m != nil {
		a.Path = m[1]
		a.Step, _ = strconv.Atoi(m[2])
	} else if whole { // a model that is no run's
		return nil
	}
	a.Path = filepath.Clean(a.Path)
	if a.Path == r.whole { // resumed in place
		return nil
	}
	if a.Step == 0 {
		a.Step = r.log.From
	}
	// A folder that was moved lies beside its runs as before.
	for _, at := range []string{a.Path,
		filepath.Join(filepath.Dir(r.whole), filepath.Base(a.Path))} {
		if i := slices.IndexFunc(runs,
			func(o *run) bool { return o != r && o.whole == at }); i >= 0 {
			a.Run = i
			break
		}
	}
	if a.Run >= 0 && a.Step == 0 {
		if steps := runs[a.Run].curves.Steps; len(steps) > 0 {
			a.Step = steps[len(steps)-1]
		}
	}
	return a
}

// text is a setting that is a text, without the quotes in which YAML has it.
func (r *run) text(key string) string {
	v := r.settings[key]
	if bare, err := strconv.Unquote(v); err == nil {
		return bare
	}
	return v
}

// travelled is how far r is at each of its recorded steps.
func (r *run) travelled() (seconds, tflop []float64) {
	n := len(r.curves.Steps)
	seconds, tflop = make([]float64, n), make([]float64, n)
	at := func(name string, to []float64) {
		if c := r.curves.Get(name); c != nil {
			for i, k := range c.At {
				if x := c.X[i]; x > 0 && x < beyond {
					to[k] = x
				}
			}
		}
	}
	at("timing_s/step", seconds)
	at("perf/tflops", tflop)
	for i := range n {
		tflop[i] *= seconds[i]
		if i > 0 {
			seconds[i] += seconds[i-1]
			tflop[i] += tflop[i-1]
		}
	}
	return seconds, tflop
}

// beyond is more seconds, and more TFLOP a second, than a step has; what a file says beside that
// would make sums infinite, for which JSON has no number.
const beyond = 1e12

// mostStages bounds how many runs stand behind each other, should they do so in a circle.
const mostStages = 16

// axes are those of all runs, with at most points each; 0 = every step.
func (b *Board) axes(points int) []Axis {
	out := make([]Axis, len(b.runs))
	seconds, tflop := make([][]float64, len(b.runs)), make([][]float64, len(b.runs))
	for i, r := range b.runs {
		seconds[i], tflop[i] = r.travelled()
		index := make([]int, len(r.curves.Steps))
		for k := range index {
			index[k] = k
		}
		if points > 0 {
			index = spread(index, max(points, 2))
		}
		a := Axis{Step: []int{}, Seconds: []float64{}, TFLOP: []float64{}}
		for _, k := range index {
			a.Step, a.Seconds, a.TFLOP =
				append(a.Step, r.curves.Steps[k]), append(a.Seconds, short(seconds[i][k])),
				append(a.TFLOP, short(tflop[i][k]))
		}
		out[i] = a
	}
	for i, r := range b.runs {
		for at, n := r.origin(b.runs), 0; at != nil && n < mostStages; n++ {
			d := &out[i].Before
			d.Steps += at.Step
			if at.Run < 0 {
				break
			}
			steps := b.runs[at.Run].curves.Steps
			if k, _ := slices.BinarySearch(steps, at.Step+1); k > 0 {
				d.Seconds, d.TFLOP = d.Seconds+seconds[at.Run][k-1], d.TFLOP+tflop[at.Run][k-1]
			}
			at = b.runs[at.Run].origin(b.runs)
		}
	}
	return out
}

// Settings that may differ between repetitions of one run: ownSettings in any way, seedPaths
// by the seed that stands in them.
var (
	ownSettings = []string{"trainer.seed", "trainer.default_local_dir", "trainer.threads"}
	seedPaths   = []string{"trainer.resume_from", "model.path", "model.adapter_path",
		"model.reward_path", "data.train_files", "data.val_files"}
)

// repeats reports whether two runs differ in nothing but their seed.
func repeats(a, b *run) bool {
	if a.settings == nil || b.settings == nil || a.stage != b.stage ||
		a.settings["trainer.seed"] == b.settings["trainer.seed"] {
		return false
	}
	for k, v := range a.settings {
		w := b.settings[k]
		if v == w || slices.Contains(ownSettings, k) {
			continue
		}
		if !slices.Contains(seedPaths, k) ||
			!seedsApart(v, a.settings["trainer.seed"], w, b.settings["trainer.seed"]) {
			return false
		}
	}
	return true
}

var number = regexp.MustCompile(`[0-9]+`)

// seedsApart reports whether two texts differ only in numbers that are the one's and the
// other's seed.
func seedsApart(a, seedA, b, seedB string) bool {
	x, y := number.FindAllString(a, -1), number.FindAllString(b, -1)
	if len(x) != len(y) || number.ReplaceAllString(a, "#") != number.ReplaceAllString(b, "#") {
		return false
	}
	for i := range x {
		if x[i] != y[i] && (x[i] != seedA || y[i] != seedB) {
			return false
		}
	}
	return true
}

// repetitions gives runs that differ in nothing but their seed, such as those of a study, one
// name; the others have none.
func repetitions(runs []*run) []string {
	names := make([]string, len(runs))
	taken := map[string]bool{}
	for i, r := range runs {
		list := []int{i}
		for k := i + 1; k < len(runs) && names[i] == ""; k++ {
			if names[k] == "" && !slices.ContainsFunc(list,
				func(l int) bool { return !repeats(runs[l], runs[k]) }) {
				list = append(list, k)
			}
		}
		if len(list) < 2 || r.settings == nil {
			continue
		}
		name := commonName(runs, list)
		for n := 2; taken[name]; n++ {
			name = fmt.Sprintf("%s (%d)", commonName(runs, list), n)
		}
		taken[name] = true
		for _, k := range list {
			names[k] = name
		}
	}
	return names
}

// commonName is what names have in common, with a star for the rest: game-s*.
func commonName(runs []*run, list []int) string {
	begin, end := runs[list[0]].name, runs[list[0]].name
	for _, k := range list[1:] {
		name := runs[k].name
		for !strings.HasPrefix(name, begin) {
			begin = begin[:len(begin)-1]
		}
		for !strings.HasSuffix(name, end) {
			end = end[1:]
		}
	}
	for _, k := range list { // a part of a name that is in both
		end = end[max(0, len(begin)+len(end)-len(runs[k].name)):]
	}
	const digits = "0123456789" // of seeds 1 and 10
	begin, end = strings.TrimRight(begin, digits), strings.TrimLeft(end, digits)
	return strings.ToValidUTF8(begin, "") + "*" + strings.ToValidUTF8(end, "")
}

// mostWarnings bounds the warnings of a run that are shown.
const mostWarnings = 200

func (r *run) warnings() []report.Warning {
	list := r.log.Warnings
	if list = list[max(0, len(list)-mostWarnings):]; list == nil {
		list = []report.Warning{}
	}
	return slices.Clone(list)
}
