// Package board shows runs: the contents of their folders as one document, a page on this machine
// that follows them (gad board), and the same page as one file (gad report).
//
//	board.go   the document, and the runs on a board: start here
//	run.go     reads one run folder, and follows it
//	curves.go  thins a metric out to the points of a chart
//	axes.go    time and operations of a run's steps, its origin, repetitions with other seeds
//	scores.go  samples: distributions of their scores, one prompt over the validations
//	serve.go   the page and its data over HTTP, on the loopback interface only
//	file.go    the page with its data in one HTML file
//	page/      the page: HTML, CSS and JavaScript without any library
//
// The package reads and never writes. The contents of a run's folder are untrusted: names, settings
// and samples reach the page as JSON and the document as text, never as markup.
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

// Format is the version of the document's schema. An incompatible change raises it.
const Format = 1

// Document is everything that the page shows. gad board --json prints it, a report contains it, and
// the server has its parts at /api/board, /api/series, /api/scores, /api/samples and
// /api/answers.
type Document struct {
	Summary
	Curves  Curves    `json:"series"`
	Scores  []Scores  `json:"scores"`  // by run
	Samples []Samples `json:"samples"` // samples of some steps of each run
	Answers []Answers `json:"answers"` // validation answers, by run
}

// Summary is the runs without curves and samples.
type Summary struct {
	Format  int       `json:"format"`
	Version int       `json:"version"` // changes with every change of the content
	Written time.Time `json:"written"`
	Metrics []Metric  `json:"metrics"` // metrics that any run has, in reading order
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

// titles lists the titles of the groups of metrics.
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

// ErrNoRun reports a folder without a run.
var ErrNoRun = errors.New("contains no run")

// Board is a set of runs that it follows. Its methods are safe for concurrent use.
type Board struct {
	fs  vfs.FS
	now func() time.Time

	mu      sync.Mutex // guards the fields below
	runs    []*run     // by ID; a run is never removed
	folders []string   // folders in which new runs may appear
	seen    map[string]bool
	version int
	read    time.Time // time of the last refresh
}

// Open reads the runs at paths. A folder that is not a run stands for the runs directly in it, such
// as the output of gad demo, now and later.
func Open(fsys vfs.FS, paths []string) (*Board, error) {
	// The version begins at the time, so that a page left open by another board reloads.
	b := &Board{fs: vfs.OrDisk(fsys), now: time.Now, seen: map[string]bool{},
		version: int(time.Now().UnixMilli())}
	for _, path := range paths {
		dirs, err := b.resolve(path)
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			if !b.addRun(dir) {
				return nil, fmt.Errorf("%w: board: %s: is given twice: give each run once",
					config.ErrConfig, dir)
			}
		}
		if dir := filepath.Clean(path); dirs[0] != dir {
			b.folders = append(b.folders, dir)
		}
	}
	setNames(b.runs)
	b.refresh()
	return b, nil
}

// addRun adds the run at dir; false if it is on the board already.
func (b *Board) addRun(dir string) bool {
	whole, err := filepath.Abs(dir)
	if err != nil {
		whole = dir // the working folder has no path any more
	}
	if b.seen[whole] {
		return false
	}
	b.seen[whole] = true
	b.runs = append(b.runs, &run{path: dir, absPath: whole})
	return true
}

// runsIn returns the runs directly in a folder.
func (b *Board) runsIn(folder string) (dirs []string, err error) {
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

// isRun reports whether a folder is a run: it has settings, metrics or a log.
func (b *Board) isRun(dir string) bool {
	for _, name := range []string{"config.yaml", "metrics.jsonl", "log.jsonl"} {
		if info, err := b.fs.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}

// resolve returns the run at path, or the runs directly in it.
func (b *Board) resolve(path string) (dirs []string, err error) {
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
	if dirs, err = b.runsIn(clean); err != nil {
		return nil, err
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("%w: board: %s: %w: %s", config.ErrConfig, path, ErrNoRun, way)
	}
	return dirs, nil
}

// setNames gives each run the shortest end of its path that no other run has.
func setNames(runs []*run) {
	tails := func(r *run, n int) string {
		parts := strings.Split(filepath.ToSlash(r.absPath), "/")
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

// fresh is the time for which a refresh is valid: several pages ask at the same time.
const fresh = 500 * time.Millisecond

// refresh reads the changes of all folders, unless the last refresh is still fresh.
func (b *Board) refresh() {
	if b.now().Sub(b.read) < fresh {
		return
	}
	changed := false
	for _, folder := range b.folders {
		dirs, _ := b.runsIn(folder) // a removed folder has no new runs
		for _, dir := range dirs {
			if b.addRun(dir) {
				changed = true
				setNames(b.runs)
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

// Summary returns the current summary.
func (b *Board) Summary() Summary {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	return b.summary()
}

// summary returns the summary without a refresh. The caller holds mu.
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
	for _, r := range b.runs { // metrics of other versions of gad, by name
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

// Limits bounds the size of a document.
type Limits struct {
	Points int // most points of a curve; 0: every step
	Steps  int // most steps of a run with samples; 0: no samples
}

// Document returns the current document.
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

// spread returns at most n elements of a list at even distances: the last one always, the first if
// n is at least 2.
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

// holder returns the process that has locked the folder, "" for none.
func holder(dir string) string {
	who, err := checkpoint.Holder(dir)
	if err != nil {
		return ""
	}
	return who
}
