package board

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gad/internal/conf"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// Run is a run without its curves and samples.
type Run struct {
	ID    int    `json:"id"`
	Name  string `json:"name"`
	Path  string `json:"path"`  // as given to Open
	Stage string `json:"stage"` // "": not known yet
	Step  int    `json:"step"`  // last recorded step
	Total int    `json:"total"` // planned steps; 0: unknown
	Steps int    `json:"steps"` // number of recorded steps
	First int    `json:"first"` // first recorded step

	State    string           `json:"state"` // running, finished, interrupted, ..., cut off, or no log
	Said     string           `json:"said"`  // last message of the log
	At       *time.Time       `json:"at"`    // time of that message
	Holder   string           `json:"holder,omitempty"`
	Sessions []report.Session `json:"sessions"`

	Verdict  string    `json:"verdict"` // clear, sick, or early: too few steps to judge
	Judged   int       `json:"judged"`  // number of steps behind the verdict
	Findings []Finding `json:"findings"`
	Problems []string  `json:"problems"` // errors of reading

	Headline []string       `json:"headline"` // metrics to look at first
	Last     map[string]num `json:"last"`
	Recent   map[string]num `json:"recent"` // means of the finite values among the last 20

	Settings map[string]string `json:"settings"`
	Changed  []string          `json:"changed"` // settings that differ from the stage's defaults

	After    *Origin          `json:"after,omitempty"` // run that the student comes from
	Repeats  string           `json:"repeats"`         // common name of the runs that differ in their seed alone; "": none
	Warnings []report.Warning `json:"warnings"`

	SampleSteps []int `json:"sample_steps"` // thinned out if there are many
	SampleCount int   `json:"sample_count"`
	Validated   int   `json:"validated"` // number of validations with samples
}

// Finding is a sign of a sick run.
type Finding struct {
	Name   string `json:"name"`
	Seen   string `json:"seen"`
	Rule   string `json:"rule"`
	Advice string `json:"advice"`
}

// num is a float64 whose NaN and infinities become strings in JSON, such as "NaN".
type num float64

// MarshalJSON returns the number, or a string if it is not finite.
func (n num) MarshalJSON() ([]byte, error) {
	x := float64(n)
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return strconv.AppendQuote(nil, strconv.FormatFloat(x, 'g', -1, 64)), nil
	}
	return strconv.AppendFloat(nil, x, 'g', -1, 64), nil
}

// headlines lists the metrics that show whether a stage goes well. Of each inner list a run shows
// the first metric that it has.
var headlines = map[config.Stage][][]string{
	config.SFT: {{"actor/sft_loss", "ranking/loss"}, {"ranking/agree"}, {"val/teacher_nll"},
		{"val/rouge_l"}, {"actor/grad_norm"},
		{"timing_s/step"}},
	config.Warmup: {{"critic/d_acc_distinct", "critic/d_acc_fresh"}, {"critic/d_loss"},
		{"actor/sft_loss"}, {"val/rouge_l"}, {"timing_s/step"}},
	config.Train: {{"critic/d_acc_distinct", "critic/d_acc_fresh"}, {"actor/pg_clipfrac"},
		{"actor/kl_loss", "reward/kl_mean"}, {"val/rouge_l"}, {"timing_s/step"}},
	config.OPD: {{"opd/divergence", "opd/reverse_kl"}, {"actor/entropy"}, {"actor/pg_clipfrac"},
		{"val/rouge_l"},
		{"timing_s/step"}},
	config.DPO: {{"dpo/loss"}, {"dpo/acc"}, {"dpo/margin"}, {"val/rouge_l"}, {"timing_s/step"}},
}

// run is the state of one run folder, as of the last refresh.
type run struct {
	path, absPath, name string

	curves      report.Curves
	log         report.Log
	samples     []int     // steps with samples of training
	valSteps    []int     // steps with samples of validation
	samplesTime time.Time // modification time of the folder of samples when it was listed
	stage       config.Stage
	holder      string

	settings   map[string]string
	configTime time.Time // modification time of config.yaml

	findings []report.Finding
	enough   bool
	judged   int // number of steps diagnosed

	problems    []string
	fingerprint string // changes with the content
	scores      map[int]stepScores
}

// refresh reads the additions to the folder, and reports whether there were any. An unreadable part
// is a problem of the run and not an error: the rest is shown.
func (r *run) refresh(fsys vfs.FS) (changed bool) {
	r.problems = nil
	note := func(err error) {
		if err != nil {
			r.problems = append(r.problems, err.Error())
		}
	}
	before, sessions := r.curves.Anew, len(r.log.Sessions)
	note(r.curves.Read(fsys, r.path))
	note(r.log.Read(fsys, r.path))
	if r.curves.Anew != before || len(r.log.Sessions) != sessions {
		r.judged, r.scores = 0, nil // resumed: later steps are computed anew
	}
	if n := r.curves.Bad; n > 0 {
		r.problems = append(r.problems, r.curves.Damaged...)
		if n > len(r.curves.Damaged) {
			r.problems = append(r.problems,
				fmt.Sprintf("metrics.jsonl: %d more lines are no records", n-len(r.curves.Damaged)))
		}
	}
	note(r.listSamples(fsys))
	note(r.readSettings(fsys))
	r.readStage(fsys)
	mark := func() string {
		w := r.log.Word()
		return fmt.Sprint(r.curves.Anew, len(r.log.Sessions), len(r.curves.Steps), r.curves.Bad,
			w.At, w.Text, len(r.log.Warnings), len(r.samples), len(r.valSteps), r.configTime, r.stage,
			r.problems)
	}
	// Asking for the holder tries the lock, which could collide with a process that takes it in
	// that moment. So a free lock is tried again only after the folder has changed.
	is := mark()
	if r.log.Word().End != "" {
		r.holder = ""
	} else if r.holder != "" || is != r.fingerprint {
		was := r.holder
		r.holder = holder(r.path)
		changed = r.holder != was
	}
	changed = changed || is != r.fingerprint
	r.fingerprint = is
	r.judge()
	return changed
}

// listSamples lists the steps with samples, if their folder has changed: there may be 100,000
// files. A change within two seconds of the last may have the same time, so that a recent list is
// not trusted.
func (r *run) listSamples(fsys vfs.FS) error {
	info, err := fsys.Stat(filepath.Join(r.path, "samples"))
	if err == nil && info.ModTime().Equal(r.samplesTime) {
		return nil
	}
	r.samplesTime = time.Time{}
	if err == nil && time.Since(info.ModTime()) > 2*time.Second {
		r.samplesTime = info.ModTime()
	}
	if r.samples, err = report.SampleSteps(fsys, r.path, report.InTraining); err != nil {
		return err
	}
	r.valSteps, err = report.SampleSteps(fsys, r.path, report.InValidation)
	return err
}

// judge looks for the signs of a sick run. In a long run it does so once in a while, since it reads
// all steps.
func (r *run) judge() {
	n := len(r.curves.Steps)
	if n < r.judged || n > r.judged+r.judged/200 || n > r.judged && r.log.Word().End != "" {
		r.findings, r.enough = report.Diagnose(r.curves.Rows())
		r.judged = n
	}
}

// readStage finds the run's stage by its metrics and, where these are ambiguous, its checkpoints.
func (r *run) readStage(fsys vfs.FS) {
	has := func(name string) bool { return r.curves.Get(name) != nil }
	switch {
	case has("dpo/loss"):
		r.stage = config.DPO
	case !has("critic/pairs") && (has("opd/reverse_kl") || has("opd/divergence")):
		r.stage = config.OPD
	case has("actor/pg_loss"):
		r.stage = config.Train
	case r.stage != "": // already known
	case has("critic/d_loss"):
		r.stage = config.Warmup
		// a game whose discriminator learns alone first
		if stage, err := saved.StageOf(fsys, r.path); err == nil {
			r.stage = stage
		}
	case has("actor/sft_loss"), has("ranking/loss"):
		r.stage = config.SFT
	}
}

// readSettings reads config.yaml if it has changed.
func (r *run) readSettings(fsys vfs.FS) error {
	path := filepath.Join(r.path, "config.yaml")
	info, err := fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		r.settings, r.configTime = nil, time.Time{}
		return nil
	} else if err != nil {
		return fmt.Errorf("board: %w", err)
	}
	if r.settings != nil && info.ModTime().Equal(r.configTime) {
		return nil
	}
	c := config.Default()
	if err := c.Load(path); err != nil {
		var problems conf.Problems
		if errors.As(err, &problems) && len(problems) > 1 {
			return fmt.Errorf("%v (and %d more)", problems[0], len(problems)-1)
		}
		return err
	}
	r.configTime, r.settings = info.ModTime(), map[string]string{}
	for _, s := range conf.Describe(&c) {
		r.settings[s.Key] = s.Default
	}
	return nil
}

// settingKeys returns the declarations of all settings.
func settingKeys() []Setting {
	c := config.Default()
	keys := []Setting{}
	for _, s := range conf.Describe(&c) {
		keys = append(keys, Setting{s.Key, s.Doc})
	}
	return keys
}

// changedSettings returns the settings that differ from the stage's defaults.
func (r *run) changedSettings() []string {
	changed := []string{}
	if r.settings == nil {
		return changed
	}
	c := config.StageDefaults(r.stage)
	for _, s := range conf.Describe(&c) {
		if r.settings[s.Key] != s.Default && c.Ignores(r.stage, s.Key) == "" {
			changed = append(changed, s.Key)
		}
	}
	return changed
}

// usedSettings returns the settings that the run's stage reads.
func (r *run) usedSettings() map[string]string {
	c, out := config.Default(), make(map[string]string, len(r.settings))
	for k, v := range r.settings {
		if r.stage == "" || c.Ignores(r.stage, k) == "" {
			out[k] = v
		}
	}
	return out
}

// window is the number of last values in a mean of Recent; for val/ it is the last value.
const window = 20

// mostListed bounds the steps of samples that a summary lists.
const mostListed = 400

// summary returns the run as JSON has it; id is its index on the board.
func (r *run) summary(id int) Run {
	c := &r.curves
	s := Run{ID: id, Name: r.name, Path: r.path, Stage: string(r.stage), Total: r.log.Total,
		Steps:  len(c.Steps),
		Holder: r.holder, Sessions: slices.Clone(r.log.Sessions), Judged: r.judged,
		Problems: slices.Clone(r.problems), Findings: []Finding{},
		Warnings: r.warnings(), Headline: []string{}, Last: map[string]num{},
		Recent:  map[string]num{},
		Changed: r.changedSettings(), SampleSteps: spread(r.samples, mostListed),
		SampleCount: len(r.samples), Validated: len(r.valSteps)}
	if s.Sessions == nil {
		s.Sessions = []report.Session{}
	}
	if s.Problems == nil {
		s.Problems = []string{}
	}
	if s.SampleSteps == nil {
		s.SampleSteps = []int{}
	}
	s.Settings = r.usedSettings()
	if n := len(c.Steps); n > 0 {
		s.First, s.Step = c.Steps[0], c.Steps[n-1]
	}
	s.Total = max(s.Total, 0)
	word := r.log.Word()
	s.Said = word.Text
	if !word.At.IsZero() {
		at := word.At.UTC()
		s.At = &at
	}
	switch {
	case r.holder != "":
		s.State = "running"
	case word.End != "":
		s.State = string(word.End)
	case word.At.IsZero():
		s.State = "no log"
	default:
		s.State = "cut off"
	}
	for _, f := range r.findings {
		s.Findings = append(s.Findings, Finding{f.Name, f.Seen, f.Doc, f.Advice})
	}
	switch {
	case len(s.Findings) > 0:
		s.Verdict = "sick"
	case !r.enough:
		s.Verdict = "early"
	default:
		s.Verdict = "clear"
	}
	for _, either := range headlines[r.stage] {
		for _, name := range either {
			if c.Get(name) != nil {
				s.Headline = append(s.Headline, name)
				break
			}
		}
	}
	for _, name := range c.Names {
		xs := c.Get(name).X
		if len(xs) == 0 {
			continue
		}
		s.Last[name] = num(xs[len(xs)-1])
		if strings.HasPrefix(name, "val/") { // 20 validations would be most of the run
			s.Recent[name] = s.Last[name]
			continue
		}
		sum, n := 0.0, 0
		for _, x := range xs[max(0, len(xs)-window):] {
			if !math.IsNaN(x) && !math.IsInf(x, 0) {
				sum, n = sum+x, n+1
			}
		}
		s.Recent[name] = num(sum / float64(n)) // NaN where none is finite
	}
	return s
}
