// Package board shows runs: what their folders hold as one document, a page of it on
// this machine that follows them (gad board), and the same page as one file (gad report).
//
//	run.go     reads one run folder, and follows it
//	curves.go  thins a metric out to the points of a chart
//	axes.go    how far a run is at its steps, the run it continues, repetitions with other seeds
//	scores.go  samples: distributions of their scores, one prompt over the validations
//	serve.go   the page and its data over HTTP, on the loopback interface only
//	file.go    the page with its data in one HTML file
//	page/      the page: HTML, CSS and JavaScript without any library
//
// It reads and never writes. What a run's folder says is data: names, settings and
// samples reach the page as JSON and the document as text, never as markup.
package board

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gad/checkpoint"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/config"
)

// Format is the version of the document's shape: a change that a reader of an older one
// would not understand raises it.
const Format = 1

// Document is all that is shown. gad board --json prints it, a report holds it, and the
// server has its parts at /api/board, /api/series, /api/scores, /api/samples and
// /api/answers.
type Document struct {
	Summary
	Curves  Curves    `json:"series"`
	Scores  []Scores  `json:"scores"`  // by run
	Samples []Samples `json:"samples"` // of some steps of each run
	Answers []Answers `json:"answers"` // of validation, run by run
}

// Summary is what is known of the runs, their curves and samples apart.
type Summary struct {
	Format  int       `json:"format"`
	Version int       `json:"version"` // changes whenever anything has changed
	Written time.Time `json:"written"`
	Metrics []Metric  `json:"metrics"` // those that a run has, in the order in which people read them
	Runs    []Run     `json:"runs"`
	Keys    []Setting `json:"settings"` // all settings, in the order of doc/settings.md
}

// Metric declares a metric.
type Metric struct {
	Name  string `json:"name"`
	Group string `json:"group"`
	Title string `json:"title"` // of the group
	Unit  string `json:"unit"`  // "" = a plain number
	Doc   string `json:"doc"`
}

// Setting declares a setting.
type Setting struct {
	Key string `json:"key"`
	Doc string `json:"doc"`
}

// titles say what the groups of metrics are about.
var titles = map[string]string{
	"train": "progress", "critic": "the discriminator", "reward": "rewards", "adv": "advantages",
	"actor":   "the student's updates",
	"episode": "episodes in the environment", "tree": "trees of answers", "env": "the environment",
	"dpo": "preferences", "opd": "on-policy distillation", "soft": "soft labels",
	"ranking": "the order of scored answers",
	"rollout": "the student's answers", "teacher": "the teacher's answers",
	"start": "validation before the first step", "val": "validation",
	"timing_s": "time of a step", "perf": "speed and memory",
}

// ErrNoRun is wrapped by the error of a folder that holds no run.
var ErrNoRun = errors.New("contains no run")

// Board is some runs. All methods may be called from several goroutines.
type Board struct {
	fs  vfs.FS
	now func() time.Time

	mu      sync.Mutex // guards what follows
	runs    []*run     // a run keeps its place: it is the run's ID
	folders []string   // of runs: new ones may appear
	seen    map[string]bool
	version int
	read    time.Time // when the folders were last looked at
}

// Open reads the runs at paths. A folder that holds no run itself stands for the runs
// directly in it, such as those of gad demo, and for those that begin there later.
func Open(fsys vfs.FS, paths []string) (*Board, error) {
	// A page that another board has left open does not take this one for that.
	b := &Board{fs: vfs.OrDisk(fsys), now: time.Now, seen: map[string]bool{},
		version: int(time.Now().UnixMilli())}
	for _, path := range paths {
		dirs, err := b.expand(path)
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			if !b.take(dir) {
				return nil, fmt.Errorf("%w: board: %s: is given twice: give each run once",
					config.ErrConfig, dir)
			}
		}
		if dir := filepath.Clean(path); dirs[0] != dir {
			b.folders = append(b.folders, dir)
		}
	}
	name(b.runs)
	b.refresh()
	return b, nil
}

// take adds the run at dir, unless it is there already.
func (b *Board) take(dir string) bool {
	whole, err := filepath.Abs(dir)
	if err != nil {
		whole = dir // the name of the working folder is lost: it is as good as any
	}
	if b.seen[whole] {
		return false
	}
	b.seen[whole] = true
	b.runs = append(b.runs, &run{path: dir, whole: whole})
	return true
}

// below lists the runs directly in a folder.
func (b *Board) below(folder string) (dirs []string, err error) {
	entries, err := b.fs.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("board: %w", err)
	}
	for _, e := range entries {
		if dir := filepath.Join(folder, e.Name()); e.IsDir() && b.isRun(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// isRun reports whether a folder holds a run: its settings, its metrics or its log.
func (b *Board) isRun(dir string) bool {
	for _, name := range []string{"config.yaml", "metrics.jsonl", "log.jsonl"} {
		if info, err := b.fs.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}

// expand is the run at path, or the runs directly in it.
func (b *Board) expand(path string) (dirs []string, err error) {
	way := "give the --output of gad " + config.StageNames() + ", or a folder of such runs"
	clean := filepath.Clean(path)
	info, err := b.fs.Stat(clean)
	switch {
	case path == "":
		return nil, fmt.Errorf("%w: board: the name of a run is empty: %s", config.ErrConfig, way)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: board: %s: no such folder: %s", config.ErrConfig, path, way)
	case err != nil:
		return nil, fmt.Errorf("board: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("%w: board: %s: is a file: %s", config.ErrConfig, path, way)
	case strings.HasPrefix(filepath.Base(clean), "global_step_"):
		return nil, fmt.Errorf("%w: board: %s: is a checkpoint: give its run, %s", config.ErrConfig,
			path, filepath.Dir(clean))
	case b.isRun(clean):
		return []string{clean}, nil
	}
	if dirs, err = b.below(clean); err != nil {
		return nil, err
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("%w: board: %s: %w: %s", config.ErrConfig, path, ErrNoRun, way)
	}
	return dirs, nil
}

// name gives each run the shortest end of its path that no other has.
func name(runs []*run) {
	tails := func(r *run, n int) string {
		parts := strings.Split(filepath.ToSlash(r.whole), "/")
		return strings.Join(parts[max(0, len(parts)-n):], "/")
	}
	for _, r := range runs {
		for n := 1; ; n++ {
			r.name = tails(r, n)
			same := slices.IndexFunc(runs,
				func(o *run) bool { return o != r && tails(o, n) == r.name })
			if same < 0 || n > 64 {
				break
			}
		}
	}
}

// fresh is for how long what was read is good: several pages ask at the same time.
const fresh = 500 * time.Millisecond

// refresh looks at the folders again, unless it has just done so.
func (b *Board) refresh() {
	if b.now().Sub(b.read) < fresh {
		return
	}
	changed := false
	for _, folder := range b.folders {
		dirs, _ := b.below(folder) // a folder that is gone has no new runs
		for _, dir := range dirs {
			if b.take(dir) {
				changed = true
				name(b.runs)
			}
		}
	}
	for _, r := range b.runs {
		changed = r.refresh(b.fs) || changed
	}
	if changed {
		b.version++
	}
	b.read = b.now()
}

// Summary is what is known of the runs now.
func (b *Board) Summary() Summary {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	return b.summary()
}

func (b *Board) summary() Summary {
	s := Summary{Format: Format, Version: b.version, Written: b.now().UTC(), Metrics: []Metric{},
		Runs: []Run{}, Keys: settingKeys()}
	has := map[string]bool{}
	again := repetitions(b.runs)
	for i, r := range b.runs {
		s.Runs = append(s.Runs, r.summary(i))
		s.Runs[i].After, s.Runs[i].Repeats = r.origin(b.runs), again[i]
		for _, name := range r.curves.Names {
			has[name] = true
		}
	}
	for _, m := range report.Metrics() {
		if has[m.Name] {
			delete(has, m.Name)
			group, _, _ := strings.Cut(m.Name, "/")
			s.Metrics = append(s.Metrics, Metric{m.Name, group, titles[group], m.Unit, m.Doc})
		}
	}
	for _, r := range b.runs { // of other versions of gad, in the order of their names
		for _, name := range r.curves.Names {
			if has[name] {
				delete(has, name)
				s.Metrics = append(s.Metrics,
					Metric{name, "other", "not declared in this version of gad", "",
						"this version of gad does not declare this metric"})
			}
		}
	}
	return s
}

// Limits bound a document.
type Limits struct {
	Points int // most points of a curve; 0 = every step
	Steps  int // most steps of a run whose samples are contained; 0 = none
}

// Document is everything.
func (b *Board) Document(l Limits) (*Document, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	d := &Document{Summary: b.summary(), Curves: b.series(Range{}, l.Points), Scores: b.scores(),
		Samples: []Samples{}, Answers: []Answers{}}
	for i, r := range b.runs {
		for _, step := range spread(r.samples, l.Steps) {
			s, err := r.readSamples(b.fs, i, step)
			if errors.Is(err, fs.ErrNotExist) {
				continue // a resume has just removed it
			} else if err != nil {
				s.Problem = err.Error()
			}
			d.Samples = append(d.Samples, s)
		}
		d.Answers = append(d.Answers, r.readAnswers(b.fs, i, l.Steps))
	}
	return d, nil
}

// spread picks at most n of a list, evenly, the last always and the first if n is at least 2.
func spread(list []int, n int) (some []int) {
	switch {
	case n <= 0 || len(list) == 0:
		return nil
	case n >= len(list):
		return slices.Clone(list)
	case n == 1:
		return list[len(list)-1:]
	}
	for i := range n {
		some = append(some, list[i*(len(list)-1)/(n-1)])
	}
	return some
}

// holder is who works in the folder now.
func holder(dir string) string {
	who, err := checkpoint.Holder(dir)
	if err != nil {
		return ""
	}
	return who
}
