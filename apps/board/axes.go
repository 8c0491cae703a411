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

// Origin is the run that another run's student comes from.
type Origin struct {
	Run  int    `json:"run"`  // the run's ID; -1: not on this board
	Path string `json:"path"` // of the run's folder
	Step int    `json:"step"` // step of the student's checkpoint; 0: unknown
}

// Axis is the time and the operations of a run up to each step: a curve can be drawn over them, and
// after the curve of the run that the student comes from.
type Axis struct {
	Step    []int     `json:"step"`
	Seconds []float64 `json:"seconds"` // of computation since the run's start: the sum of timing_s/step
	TFLOP   []float64 `json:"tflop"`   // operations since the run's start: the sum of perf/tflops times timing_s/step
	Before  Distance  `json:"before"`  // sum over the runs that the student comes from
}

// Distance is the steps, time and operations from the start of a run to a point of it.
type Distance struct {
	Steps   int     `json:"steps"`
	Seconds float64 `json:"seconds"`
	TFLOP   float64 `json:"tflop"`
}

var checkpointPath = regexp.MustCompile(`^(.*?)[/\\]global_step_([0-9]{1,12})(?:[/\\]actor)?[/\\]?$`)

// origin returns the run that r's student comes from, by the settings and the log of r; nil for
// none.
func (r *run) origin(runs []*run) *Origin {
	path, whole := r.text("trainer.resume_from"), false
	if path == "" {
		path, whole = r.text("model.path"), true
	}
	if path == "" {
		return nil
	}
	a := &Origin{Run: -1, Path: path}
	if m := checkpointPath.FindStringSubmatch(path); m != nil {
		a.Path = m[1]
		a.Step, _ = strconv.Atoi(m[2])
	} else if whole { // a model outside of any run
		return nil
	}
	a.Path = filepath.Clean(a.Path)
	if a.Path == r.absPath { // resumed in place
		return nil
	}
	if a.Step == 0 {
		a.Step = r.log.From
	}
	// Runs that were moved together are still next to each other.
	for _, at := range []string{a.Path,
		filepath.Join(filepath.Dir(r.absPath), filepath.Base(a.Path))} {
		if i := slices.IndexFunc(runs,
			func(o *run) bool { return o != r && o.absPath == at }); i >= 0 {
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

// text returns a setting of type text, without YAML's quotes.
func (r *run) text(key string) string {
	v := r.settings[key]
	if bare, err := strconv.Unquote(v); err == nil {
		return bare
	}
	return v
}

// progress returns the time and the operations of r from its start to each recorded step.
func (r *run) progress() (seconds, tflop []float64) {
	n := len(r.curves.Steps)
	seconds, tflop = make([]float64, n), make([]float64, n)
	at := func(name string, to []float64) {
		if c := r.curves.Get(name); c != nil {
			for i, k := range c.At {
				if x := c.X[i]; x > 0 && x < maxPlausible {
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

// maxPlausible bounds the seconds and the TFLOP a second of a step. Larger values in a file could
// make sums infinite, for which JSON has no number.
const maxPlausible = 1e12

// mostStages bounds a chain of origins, which could be a circle.
const mostStages = 16

// axes returns the axes of all runs, with at most points each; 0: every step.
func (b *Board) axes(points int) []Axis {
	out := make([]Axis, len(b.runs))
	seconds, tflop := make([][]float64, len(b.runs)), make([][]float64, len(b.runs))
	for i, r := range b.runs {
		seconds[i], tflop[i] = r.progress()
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

// Settings that may differ between repetitions of one run: ownSettings in any way, seedPaths by the
// seed in the path.
var (
	ownSettings = []string{"trainer.seed", "trainer.default_local_dir", "trainer.threads"}
	seedPaths   = []string{"trainer.resume_from", "model.path", "model.adapter_path",
		"model.reward_path", "data.train_files", "data.val_files"}
)

// repeats reports whether two runs differ in their seed alone.
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
			!differBySeeds(v, a.settings["trainer.seed"], w, b.settings["trainer.seed"]) {
			return false
		}
	}
	return true
}

var number = regexp.MustCompile(`[0-9]+`)

// differBySeeds reports whether two texts differ only in numbers that are the seeds of their runs.
func differBySeeds(a, seedA, b, seedB string) bool {
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

// repetitions returns a common name for runs that differ in their seed alone, such as the runs of a
// study; "" for the others.
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

// commonName returns the common beginning and end of names with a star between: game-s*.
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
	for _, k := range list { // beginning and end may overlap in a name
		end = end[max(0, len(begin)+len(end)-len(runs[k].name)):]
	}
	const digits = "0123456789" // seeds 1 and 10 share a digit
	begin, end = strings.TrimRight(begin, digits), strings.TrimLeft(end, digits)
	return strings.ToValidUTF8(begin, "") + "*" + strings.ToValidUTF8(end, "")
}

// mostWarnings bounds the warnings of a run in a summary.
const mostWarnings = 200

// warnings returns the last warnings of the run's log.
func (r *run) warnings() []report.Warning {
	list := r.log.Warnings
	if list = list[max(0, len(list)-mostWarnings):]; list == nil {
		list = []report.Warning{}
	}
	return slices.Clone(list)
}
