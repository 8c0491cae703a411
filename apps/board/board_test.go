package board

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/internal/conf"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/config"
)

// folder is a run folder for a test.
type folder struct {
	t   *testing.T
	dir string
	rec *report.Recorder
}

// begin makes a run folder with settings and a log.
func begin(t *testing.T, dir string, o report.Options, settings ...string) *folder {
	t.Helper()
	r, err := report.Open(vfs.OS, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	if err := c.Load("", settings...); err != nil {
		t.Fatal(err)
	}
	text, err := conf.Marshal(&c)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "config.yaml"), string(text))
	t.Cleanup(func() { r.Close() })
	return &folder{t, dir, r}
}

func (f *folder) step(n int, values map[string]float64) {
	f.t.Helper()
	if err := f.rec.Step(n, values); err != nil {
		f.t.Fatal(err)
	}
}

func (f *folder) samples(n int, list ...report.Sample) {
	f.t.Helper()
	if err := f.rec.Samples(report.InTraining, n, list); err != nil {
		f.t.Fatal(err)
	}
}

func (f *folder) validated(n int, list ...report.Sample) {
	f.t.Helper()
	if err := f.rec.Samples(report.InValidation, n, list); err != nil {
		f.t.Fatal(err)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func grow(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// show opens a board that looks at its folders whenever it is asked.
func show(t *testing.T, paths ...string) *Board {
	t.Helper()
	b, err := Open(nil, paths)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	b.now = func() time.Time { at = at.Add(time.Minute); return at }
	return b
}

// game is a step of a healthy game.
func game(step int) map[string]float64 {
	return map[string]float64{"critic/d_acc_distinct": 0.8, "critic/d_loss": 0.5,
		"critic/d_loss_distinct": 0.5, "actor/pg_loss": 0.1, "actor/pg_clipfrac": 0.2,
		"actor/kl_loss": 0.01,
		"actor/entropy": 1, "adv/std": 1, "timing_s/step": 2 + float64(step%2),
		"rollout/len_mean": 10, "teacher/len_mean": 10}
}

// Each stage is told by its metrics, with the figures that say how it goes.
func TestStages(t *testing.T) {
	root := t.TempDir()
	for _, c := range []struct {
		name     string
		values   map[string]float64
		stage    string
		headline []string
	}{
		{"a", map[string]float64{"actor/sft_loss": 1, "timing_s/step": 2}, "sft",
			[]string{"actor/sft_loss", "timing_s/step"}},
		{"b", map[string]float64{"critic/d_loss": 1, "critic/d_acc_fresh": 0.5,
			"actor/sft_loss": 1}, "warmup",
			[]string{"critic/d_acc_fresh", "critic/d_loss", "actor/sft_loss"}},
		{"c", game(1), "train", []string{"critic/d_acc_distinct", "actor/pg_clipfrac",
			"actor/kl_loss", "timing_s/step"}},
		{"d", map[string]float64{"dpo/loss": 1, "dpo/acc": 0.5, "dpo/margin": 0,
			"val/rouge_l": 0.3}, "dpo",
			[]string{"dpo/loss", "dpo/acc", "dpo/margin", "val/rouge_l"}},
	} {
		f := begin(t, filepath.Join(root, c.name), report.Options{TotalSteps: 9, Command: "gad"})
		f.step(1, c.values)
		r := show(t, f.dir).Summary().Runs[0]
		if r.Stage != c.stage || !slices.Equal(r.Headline, c.headline) {
			t.Errorf("%s: stage %q, headline %q; want %q, %q", c.name, r.Stage, r.Headline, c.stage,
				c.headline)
		}
	}
	late := begin(t, filepath.Join(t.TempDir(), "late"), report.Options{})
	// of a game whose discriminator learns alone first
	late.step(1, map[string]float64{"critic/d_loss": 1})
	b := show(t, late.dir)
	first := b.Summary().Runs[0].Stage
	late.step(2, game(2))
	if now := b.Summary().Runs[0].Stage; first != "warmup" || now != "train" {
		t.Errorf("stage %q, then %q", first, now)
	}
	s := show(t, root).Summary() // the folder of all of them
	var names []string
	for i, r := range s.Runs {
		names = append(names, r.Name)
		if r.ID != i || r.Total != 9 || r.State != "cut off" || r.Verdict != "early" ||
			len(r.Problems) > 0 {
			t.Errorf("run %d: %+v", i, r)
		}
	}
	if want := []string{"a", "b", "c", "d"}; !slices.Equal(names, want) {
		t.Errorf("runs %q, want %q", names, want)
	}
	for i, m := range s.Metrics {
		if m.Doc == "" || m.Group == "" || m.Title == "" || i > 0 &&
			m.Group < s.Metrics[i-1].Group && m.Name == "" {
			t.Errorf("metric %+v", m)
		}
	}
	if s.Metrics[0].Name != "critic/d_loss" {
		t.Errorf("the first metric is %q: not the order of the table", s.Metrics[0].Name)
	}
}

// Every group of metrics has a title.
func TestTitles(t *testing.T) {
	for _, m := range report.Metrics() {
		if group, _, _ := strings.Cut(m.Name, "/"); titles[group] == "" {
			t.Errorf("group %q: no title", group)
		}
	}
	for stage, list := range headlines {
		for _, either := range list {
			for _, name := range either {
				if _, ok := report.Lookup(name); !ok {
					t.Errorf("headline of %s: %q is not declared", stage, name)
				}
			}
		}
	}
}

// A board follows a run: steps that are added, a torn line, a resume that takes steps
// back, the end. What has not changed has the same version.
func TestFollows(t *testing.T) {
	f := begin(t, filepath.Join(t.TempDir(), "run"),
		report.Options{TotalSteps: 40, Command: "gad train"})
	b := show(t, f.dir)
	see := func(when string, steps int, state, verdict string) Summary {
		t.Helper()
		s := b.Summary()
		r := s.Runs[0]
		if r.Steps != steps || r.State != state || r.Verdict != verdict {
			t.Errorf("%s: %d steps, %s, %s; want %d, %s, %s", when, r.Steps, r.State, r.Verdict,
				steps, state, verdict)
		}
		if again := b.Summary(); again.Version != s.Version {
			t.Errorf("%s: version %d, then %d", when, s.Version, again.Version)
		}
		return s
	}
	first := see("no steps", 0, "cut off", "early")
	for step := 1; step <= 25; step++ {
		values := game(step)
		if step%5 == 0 {
			values["val/rouge_l"] = float64(step) / 100
		}
		f.step(step, values)
	}
	now := see("25 steps", 25, "cut off", "clear")
	if now.Version == first.Version {
		t.Error("the version is the same after 25 steps")
	}
	r := now.Runs[0]
	if r.Recent["timing_s/step"] != 2.5 || r.Last["timing_s/step"] != 3 || r.First != 1 ||
		r.Recent["val/rouge_l"] != 0.25 || r.Step != 25 || r.Total != 40 || r.At == nil {
		t.Errorf("figures %+v", r)
	}
	grow(t, filepath.Join(f.dir, "metrics.jsonl"), `{"step":26,"critic/d_a`)
	see("torn", 25, "cut off", "clear")
	f.rec.Close()
	for step := 24; step <= 25; step++ {
		_ = os.Remove(filepath.Join(f.dir, "samples", fmt.Sprintf("step_%d.jsonl", step)))
	}
	f = begin(t, f.dir, report.Options{TotalSteps: 40, ResumeStep: 5, Command: "gad resume"})
	see("resumed", 5, "cut off", "early")
	for step := 6; step <= 40; step++ {
		values := game(step)
		values["critic/d_acc_distinct"] = 1
		f.step(step, values)
	}
	f.rec.End(report.Finished, "done")
	r = see("finished", 40, "finished", "sick").Runs[0]
	if len(r.Findings) != 1 || r.Findings[0].Name != "discriminator always right" ||
		r.Findings[0].Rule == "" || r.Findings[0].Advice == "" || r.Findings[0].Seen == "" {
		t.Errorf("findings %+v", r.Findings)
	}
	if len(r.Sessions) != 2 || r.Sessions[1].Step != 5 || r.Said != "done" {
		t.Errorf("sessions %+v, said %q", r.Sessions, r.Said)
	}
}

// A run that was resumed and is further on than before, when somebody looks again, is seen
// as it is now: verdict, curves, and the scores of steps that were computed again.
func TestResumedUnseen(t *testing.T) {
	f := begin(t, filepath.Join(t.TempDir(), "run"),
		report.Options{TotalSteps: 40, Command: "gad train"})
	b := show(t, f.dir)
	to := func(last int, from int, acc, score float64) {
		for step := from; step <= last; step++ {
			values := game(step)
			values["critic/d_acc_distinct"] = acc
			f.step(step, values)
			f.samples(step, report.Sample{Row: 1, Prompt: "p", Student: "s", Teacher: "t",
				StudentScore: score})
		}
	}
	to(30, 1, 0.8, 1)
	before := b.Summary()
	if r, sc := before.Runs[0], b.scores()[0]; r.Verdict != "clear" || sc.Student.P50[20] != 1 ||
		len(sc.Step) != 30 {
		t.Fatalf("%s, scores %v", r.Verdict, sc.Student.P50)
	}
	f.rec.Close()
	f = begin(t, f.dir, report.Options{TotalSteps: 40, ResumeStep: 5, Command: "gad resume"})
	to(30, 6, 1, 2)
	after := b.Summary()
	if r := after.Runs[0]; r.Verdict != "sick" || r.Last["critic/d_acc_distinct"] != 1 ||
		r.Judged != 30 || after.Version == before.Version {
		t.Errorf("%s, d_acc %v, %d steps judged, version %d after %d", r.Verdict,
			r.Last["critic/d_acc_distinct"], r.Judged, after.Version, before.Version)
	}
	if sc := b.scores()[0]; sc.Student.P50[20] != 2 || sc.Student.P50[4] != 1 {
		t.Errorf("scores %v", sc.Student.P50)
	}
}

// Damage is shown as such, and what can be read is shown beside it.
func TestDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	f := begin(t, dir, report.Options{})
	f.step(1, game(1))
	f.samples(1, report.Sample{Row: 1, Prompt: "p", Student: "s", Teacher: "t"})
	grow(t, filepath.Join(dir, "metrics.jsonl"), strings.Repeat("zzz\n", 7)+`{"step":9,"old/name":2}`+"\n")
	grow(t, filepath.Join(dir, "samples", "step_1.jsonl"), "zzz\n")
	put(t, filepath.Join(dir, "samples", "step_3.jsonl"), "")
	if err := os.Mkdir(filepath.Join(dir, "samples", "step_4.jsonl"), 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "config.yaml"), "actor: {optm: 3}\n")
	b := show(t, dir)
	r := b.Summary().Runs[0]
	want := []string{"metrics.jsonl: line 2: not a JSON object",
		"metrics.jsonl: line 3: not a JSON object", "metrics.jsonl: line 4: not a JSON object",
		"metrics.jsonl: line 5: not a JSON object",
		"metrics.jsonl: line 6: not a JSON object", "metrics.jsonl: 2 more lines are no records", `settings: ` + dir + `/config.yaml:1:9: setting "actor.optm": unknown: did you mean "actor.optim"?`}
	if !slices.Equal(r.Problems, want) || r.Steps != 2 || r.Step != 9 || len(r.Settings) != 0 {
		t.Errorf("problems %q, %d steps, %d settings", r.Problems, r.Steps, len(r.Settings))
	}
	s := b.Summary()
	if m := s.Metrics[len(s.Metrics)-1]; m.Name != "old/name" || m.Group != "other" || m.Doc == "" {
		t.Errorf("a metric of another version: %+v", m)
	}
	samples, err := b.runs[0].readSamples(b.fs, 0, 1)
	if err != nil || samples.Damaged != 1 || len(samples.Rows) != 1 {
		t.Errorf("samples %+v, %v", samples, err)
	}
	if sc := b.scores()[0]; len(sc.Step) != 1 || sc.Problem != "" {
		t.Errorf("scores %+v", sc)
	}
	d, err := b.Document(Limits{Points: 10, Steps: 10})
	if err != nil || !slices.ContainsFunc(d.Samples, func(s Samples) bool {
		return s.Step == 4 && strings.Contains(s.Problem, "step_4.jsonl: not a regular file")
	}) {
		t.Errorf("document: %v", err)
	}
}

// Paths that hold no run are refused with the way out.
func TestOpen(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	for _, dir := range []string{"x/run", "y/run", "y/empty", "z", "run/global_step_3"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"x/run/metrics.jsonl", "y/run/log.jsonl", "z/file",
		"run/config.yaml"} {
		put(t, name, "")
	}
	const way = ": give the --output of gad sft, dpo, opd, warmup or train, or a folder of such runs"
	for path, want := range map[string]string{
		"none":              "configuration: board: none: no such folder" + way,
		"z/file":            "configuration: board: z/file: is a file" + way,
		"z":                 "configuration: board: z: contains no run" + way,
		"":                  "configuration: board: the name of a run is empty" + way,
		"run/global_step_3": "configuration: board: run/global_step_3: is a checkpoint: give its run, run",
	} {
		if _, err := Open(nil, []string{path}); err == nil || err.Error() != want ||
			!errors.Is(err, config.ErrConfig) {
			t.Errorf("%q: %v\nwant %s", path, err, want)
		}
	}
	if _, err := Open(nil, []string{"run", "./run/"}); err == nil ||
		err.Error() != "configuration: board: run: is given twice: give each run once" {
		t.Errorf("twice: %v", err)
	}
	var names []string
	for _, r := range show(t, "x", "y", "run").Summary().Runs {
		names = append(names, r.Name)
	}
	if want := []string{"x/run", "y/run", filepath.Base(root) + "/run"}; !slices.Equal(names,
		want) {
		t.Errorf("names %q, want %q", names, want)
	}
}

// A run that begins in a folder of runs appears, behind those that are shown.
func TestNewRuns(t *testing.T) {
	root := t.TempDir()
	put(t, filepath.Join(root, "m", "metrics.jsonl"), "")
	b := show(t, root)
	first := b.Summary()
	put(t, filepath.Join(root, "a", "config.yaml"), "")
	if err := os.Mkdir(filepath.Join(root, "z"), 0o755); err != nil {
		t.Fatal(err)
	}
	now := b.Summary()
	if len(first.Runs) != 1 || len(now.Runs) != 2 || now.Runs[0].Name != "m" ||
		now.Runs[1].Name != "a" || now.Runs[1].ID != 1 || now.Version == first.Version {
		t.Errorf("runs %+v, before %+v", now.Runs, first.Runs)
	}
	if again := b.Summary(); len(again.Runs) != 2 || again.Version != now.Version {
		t.Errorf("again: %d runs", len(again.Runs))
	}
}

// Every stretch of a thinned curve has the mean, the least and the largest of its values.
func TestThin(t *testing.T) {
	var steps []int
	var at []int32
	var x []float64
	for i := range 1000 {
		steps = append(steps, 3*i+1) // gaps
		if i%5 == 4 {
			continue // a metric that not every step has
		}
		at = append(at, int32(i))
		x = append(x, math.Sin(float64(i)*1.7)*float64(i))
	}
	x[10], x[11], x[12] = math.NaN(), math.Inf(1), math.Inf(-1)
	for _, in := range []Curves{{From: 1, To: 2998, Points: 50, Width: 60},
		{From: 500, To: 700, Points: 50, Width: 5}, {From: 1, To: 2998, Points: 0, Width: 1},
		{From: 9000, To: 9001, Width: 1}} {
		got := thin(steps, at, x, in)
		type bucket struct {
			step, n          int
			sum, least, most float64
		}
		var want []bucket
		for k := 0; in.From+k*in.Width <= in.To; k++ {
			b := bucket{least: math.Inf(1), most: math.Inf(-1)}
			for i, a := range at {
				if s := steps[a]; s >= in.From+k*in.Width && s < in.From+(k+1)*in.Width &&
					s <= in.To && finite(x[i]) {
					b = bucket{s, b.n + 1, b.sum + x[i], min(b.least, x[i]), max(b.most, x[i])}
				}
			}
			if b.n > 0 {
				want = append(want, b)
			}
		}
		if len(got.Step) != len(want) {
			t.Fatalf("%+v: %d points, want %d", in, len(got.Step), len(want))
		}
		near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(b) }
		for i, w := range want {
			ok := got.Step[i] == w.step && near(got.Mean[i], w.sum/float64(w.n))
			if in.Width > 1 {
				ok = ok && got.N[i] == w.n && near(got.Min[i], w.least) && near(got.Max[i], w.most)
			} else {
				ok = ok && got.Mean[i] == w.sum && got.Min == nil
			}
			if !ok {
				t.Errorf("%+v: point %d: %d %g; want %+v", in, i, got.Step[i], got.Mean[i], w)
			}
		}
		if bad := got.NotFinite; in.From == 1 && !slices.Equal(bad, []int{37, 40, 46}) ||
			in.From > 1 && len(bad) > 0 {
			t.Errorf("%+v: not finite at %v", in, bad)
		}
	}
	huge := thin([]int{1, 2}, []int32{0, 1}, []float64{math.MaxFloat64, math.MaxFloat64},
		Curves{From: 1, To: 2, Points: 1, Width: 2})
	if !finite(huge.Mean[0]) {
		t.Errorf("mean of two large values: %v", huge.Mean)
	}
}

// The range of the charts is that of all runs, and a narrower one has more detail.
func TestSeries(t *testing.T) {
	root := t.TempDir()
	f, g :=
		begin(t, filepath.Join(root, "a"), report.Options{}),
		begin(t, filepath.Join(root, "b"), report.Options{})
	for step := 1; step <= 300; step++ {
		f.step(step, map[string]float64{"actor/sft_loss": float64(step)})
	}
	g.step(500, map[string]float64{"actor/sft_loss": 1})
	b := show(t, root)
	b.Summary()
	s := b.series(Range{}, 100)
	if s.From != 1 || s.To != 500 || s.Width != 5 || len(s.Runs) != 2 ||
		len(s.Runs[0]["actor/sft_loss"].Step) != 60 {
		t.Errorf("all: from %d to %d by %d", s.From, s.To, s.Width)
	}
	s = b.series(Range{11, 20}, 100)
	if c := s.Runs[0]["actor/sft_loss"]; s.Width != 1 ||
		!slices.Equal(c.Mean, []float64{11, 12, 13, 14, 15, 16, 17, 18, 19, 20}) {
		t.Errorf("10 steps: %+v", c)
	}
	if s = show(t, begin(t, filepath.Join(root, "c"), report.Options{}).dir).series(Range{},
		100); s.From != 0 || s.To != 0 || len(s.Runs[0]) != 0 {
		t.Errorf("no steps: %+v", s)
	}
}

// Quantiles by hand: a teacher's answer counts once, NaN does not.
func TestDistribution(t *testing.T) {
	s := distribution([]report.Sample{
		{Row: 1, StudentScore: 1, TeacherScore: 10}, {Row: 1, StudentScore: 3, TeacherScore: 10},
		{Row: 2, StudentScore: 5, TeacherScore: 20}, {Row: 2, StudentScore: 5, TeacherScore: 20},
		{Row: 3, StudentScore: math.NaN(), TeacherScore: math.NaN()},
	})
	if s.answers != 4 || s.student[2] != 4 || s.teacher[2] != 15 ||
		s.spread != [5]float64{0.1, 0.25, 0.5, 0.75, 0.9} {
		t.Errorf("%+v", s)
	}
	if q := quantiles([]float64{4, 0, 2, 1, 3}); !reflect.DeepEqual(q,
		[5]float64{0.4, 1, 2, 3, 3.6}) {
		t.Errorf("quantiles %v", q)
	}
	if s := distribution(nil); s.answers != 0 || !math.IsNaN(s.student[0]) {
		t.Errorf("nothing: %+v", s)
	}
}

// Of many steps with samples the same ones are read as a run grows, and the last.
func TestScored(t *testing.T) {
	list := func(n int) (l []int) {
		for i := range n {
			l = append(l, i+1)
		}
		return l
	}
	for n, want := range map[int]int{0: 0, 1: 1, 128: 128, 129: 65, 130: 66, 1000: 126} {
		if got := sampledSteps(list(n)); len(got) != want || n > 0 &&
			(got[0] != 1 || got[len(got)-1] != n) {
			t.Errorf("%d steps: %d are read, want %d", n, len(got), want)
		}
	}
	if got := spread(list(10), 4); !slices.Equal(got, []int{1, 4, 7, 10}) {
		t.Errorf("spread: %v", got)
	}
	if got := spread(list(10), 1); !slices.Equal(got, []int{10}) {
		t.Errorf("spread to one: %v", got)
	}
}

// The server answers its own page alone, and only questions.
func TestServerRefuses(t *testing.T) {
	f := begin(t, filepath.Join(t.TempDir(), "run"), report.Options{})
	f.step(1, game(1))
	f.samples(1, report.Sample{Row: 1, Prompt: "p", Student: "s", Teacher: "t"})
	f.validated(0, report.Sample{Row: 4, Prompt: "q", Student: "s", Teacher: "t"})
	put(t, filepath.Join(f.dir, "secret.txt"), "SECRET")
	put(t, filepath.Join(filepath.Dir(f.dir), "secret.txt"), "SECRET")
	server := httptest.NewServer(show(t, f.dir).Handler())
	defer server.Close()
	for _, c := range []struct {
		method, path, host, site string
		code                     int
		want                     string
	}{
		{"GET", "/", "", "", 200, "<!doctype html>"},
		{"HEAD", "/", "", "", 200, ""},
		{"GET", "/", "localhost:9999", "", 200, "<!doctype html>"},
		{"GET", "/", "[::1]:80", "", 200, "<!doctype html>"},
		{"GET", "/", "evil.example", "", 403, "127.0.0.1 and localhost only"},
		{"GET", "/", "127.0.0.1.evil.example", "", 403, "only"},
		{"GET", "/api/board", "evil.example:6161", "", 403, "only"},
		{"GET", "/", "", "cross-site", 200, "<!doctype html>"},
		{"GET", "/api/board", "", "cross-site", 403, "own page"},
		{"GET", "/api/samples?run=0&step=1", "", "same-site", 403, "own page"},
		{"GET", "/api/samples?run=0&step=1", "", "same-origin", 200, `"prompt":"p"`},
		{"POST", "/api/board", "", "", 405, "for reading"},
		{"DELETE", "/api/board", "", "", 405, "for reading"},
		{"OPTIONS", "/api/board", "", "", 405, "for reading"},
		{"GET", "/api/board", "", "", 200, `"runs":[{"id":0`},
		{"GET", "/api/series", "", "", 200, `"from":1`},
		{"GET", "/api/series?points=0", "", "", 200, `"points":0`},
		{"GET", "/api/series?points=1000000", "", "", 400,
			"points: expected a number from 0 to 100000"},
		{"GET", "/api/series?from=5&to=4", "", "", 400, "to: is less than from"},
		{"GET", "/api/series?from=x", "", "", 400, "from: expected a number"},
		{"GET", "/api/series?from=-1", "", "", 400, "from: expected a number"},
		{"GET", "/api/series?from=99999999999999999999", "", "", 400, "from: expected a number"},
		{"GET", "/api/scores", "", "", 200, `"step":[1]`},
		{"GET", "/api/answers?run=0", "", "", 200, `"prompts":[{"row":4,"prompt":"q","teacher":"t","step":[0],"student":["s"]}],"thinned":false}`},
		{"GET", "/api/answers?run=0", "", "cross-site", 403, "own page"},
		{"GET", "/api/answers?run=1", "", "", 404, "run: there are 1"},
		{"GET", "/api/answers?run=-1", "", "", 400, "run: expected a number"},
		{"GET", "/api/samples?run=1&step=1", "", "", 404, "run: there are 1"},
		{"GET", "/api/samples?run=0&step=2", "", "", 404, "has no samples of step 2"},
		{"GET", "/api/samples?run=0&step=../../secret.txt", "", "", 400, "step: expected a number"},
		{"GET", "/api/samples?run=../x&step=1", "", "", 400, "run: expected a number"},
		{"GET", "/secret.txt", "", "", 404, ""},
		{"GET", "/../secret.txt", "", "", 404, ""},
		{"GET", "/%2e%2e/secret.txt", "", "", 404, ""},
		{"GET", "/api/%2e%2e%2fsecret.txt", "", "", 404, ""},
		{"GET", "/page/board.html", "", "", 404, ""},
		{"GET", "/config.yaml", "", "", 404, ""},
	} {
		r, err := http.NewRequest(c.method, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.RawPath, r.URL.RawQuery, _ = strings.Cut(c.path, "?")
		// as it stands, dots and all
		if r.URL.Path, err = url.PathUnescape(r.URL.RawPath); err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		client := &http.Client{
			CheckRedirect: func(*http.Request,
				[]*http.Request) error {
				return http.ErrUseLastResponse
			}}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var body bytes.Buffer
		_, err = body.ReadFrom(answer.Body)
		answer.Body.Close()
		code := answer.StatusCode
		if code/100 == 3 {
			code = 404 // to a cleaned path, which is none
		}
		if err != nil || code != c.code || !strings.Contains(body.String(), c.want) ||
			strings.Contains(body.String(), "SECRET") {
			t.Errorf("%s %s of %q from %q: %d %.200s; want %d %s", c.method, c.path, c.host, c.site,
				answer.StatusCode, body.String(), c.code, c.want)
		}
		h := answer.Header
		if p := h.Get("Content-Security-Policy"); !strings.HasPrefix(p,
			"default-src 'none'; script-src 'self';") || strings.Contains(p, "unsafe") ||
			h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("Cross-Origin-Resource-Policy") != "same-origin" ||
			h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: headers %v", c.path, h)
		}
	}
}

// The page asks for a summary again only when something has changed.
func TestSince(t *testing.T) {
	f := begin(t, filepath.Join(t.TempDir(), "run"), report.Options{})
	b := show(t, f.dir)
	ask := func(since int) (s Summary) {
		t.Helper()
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", fmt.Sprintf("/api/board?since=%d", since), nil)
		r.Host = "localhost"
		b.Handler().ServeHTTP(w, r)
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
			t.Fatalf("%v: %s", err, w.Body)
		}
		return s
	}
	s := ask(0)
	if len(s.Runs) != 1 || len(ask(s.Version).Runs) != 0 {
		t.Errorf("an unchanged board is sent again")
	}
	f.step(1, game(1))
	if again := ask(s.Version); len(again.Runs) != 1 || again.Runs[0].Steps != 1 {
		t.Errorf("after a step: %+v", again)
	}
	// A page that a board of other runs has left open asks the next one, at the same port.
	time.Sleep(50 * time.Millisecond)
	b = show(t, begin(t, filepath.Join(t.TempDir(), "run"), report.Options{}).dir)
	if other := ask(s.Version); len(other.Runs) != 1 || other.Version <= s.Version {
		t.Errorf("another board has version %d after %d", other.Version, s.Version)
	}
}

// A prompt's answers are those of all validations, in order; of many validations the first,
// the last and some between them are read.
func TestAnswersOverTheSteps(t *testing.T) {
	f := begin(t, filepath.Join(t.TempDir(), "run"), report.Options{TotalSteps: 100})
	for step := range 100 {
		f.validated(step, report.Sample{Row: 2, Prompt: "p", Teacher: "t",
			Student: fmt.Sprint(step)}, report.Sample{Row: 5, Prompt: "q"})
	}
	put(t, filepath.Join(f.dir, "samples", "val_99.jsonl"), "no sample\n")
	d, err := show(t, f.dir).Document(Limits{Steps: 3})
	if err != nil {
		t.Fatal(err)
	}
	want := []Answers{{Run: 0, Thinned: true, Prompts: []Prompt{
		{Row: 2, Prompt: "p", Teacher: "t", Step: []int{0, 49}, Student: []string{"0", "49"}},
		{Row: 5, Prompt: "q", Step: []int{0, 49}, Student: []string{"", ""}}}}}
	if !reflect.DeepEqual(d.Answers, want) {
		t.Errorf("%+v\nwant %+v", d.Answers, want)
	}
}
