package report

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/internal/vfs"
)

// lineCases are lines as gad writes them, and lines that are almost so.
var lineCases = []string{
	`{"step":1,"critic/d_acc":0.5,"critic/d_loss":-1e-7,"time":"2026-01-02T03:04:05.000Z"}`,
	`{"step":2}`,
	`{"step":3,"critic/d_acc":"NaN","critic/d_loss":"+Inf","critic/pairs":"-Inf"}`,
	`{"step":4,"critic/d_acc":01}`,
	`{"step":4,"critic/d_acc":1.}`,
	`{"step":4,"critic/d_acc":.5}`,
	`{"step":4,"critic/d_acc":+1}`,
	`{"step":4,"critic/d_acc":1e999}`,
	`{"step":4,"critic/d_acc":0x1p1}`,
	`{"step":4,"critic/d_acc":Inf}`,
	`{"step":4,"critic/d_acc":"Inf"}`,
	`{"step":4,"critic/d_acc":1,"critic/d_acc":2}`,
	`{"step":4,"critic/d_acc":1}{"step":5}`,
	`{"step":4,"critic/d_acc":1} `,
	`{"step":4,"critic/d_acc":1`,
	`{"step":4,"critic/d_acc":1,}`,
	`{"step":4,,"critic/d_acc":1}`,
	`{"step":4,"critic/d_acc" :1}`,
	`{ "step": 4, "critic/d_acc": 1 }`,
	`{"critic/d_acc":1,"step":4}`,
	`{"step":4,"step":5}`,
	`{"step":0}`, `{"step":-1}`, `{"step":04}`, `{"step":4.0}`, `{"step":"4"}`, `{"step":99999999999999999999}`, `{}`, ``, `[]`, `null`,
	`{"step":4,"time":"2026-01-02"}`, `{"step":4,"time":5}`, `{"step":4,"time":"2026-01-02T03:04:05.000Z","time":"2026-01-02T03:04:05.000Z"}`,
	`{"step":4,"critic\/d_acc":1}`, `{"step":4,"a\b":1}`,
	"{\"step\":4,\"critic/d_\xff\":1}", "{\"step\":4,\"a\x01\":1}", `{"step":4,"é":1}`,
	`{"step":4,"critic/d_acc":null}`, `{"step":4,"critic/d_acc":[1]}`, `{"step":4,"critic/d_acc":{"x":1}}`, `{"step":4,"critic/d_acc":true}`, `{"step":4,"critic/d_acc":}`,
}

// sameAsStrict wants the fast reader to take a line as parseRow does, or to leave it to
// parseRow. It reports which.
func sameAsStrict(t *testing.T, line string) (quick bool) {
	t.Helper()
	c := &Curves{}
	for _, name := range []string{"critic/d_acc", "critic/d_loss", "critic/pairs", `a\b`, "a\x01", "critic/d_\xff"} {
		c.curve(name)
	}
	step, at, ok := c.parseFast(1, line)
	if !ok {
		return false
	}
	want, err := parseRow([]byte(line))
	if err != nil {
		t.Errorf("%q: read, parseRow refuses it: %v", line, err)
		return true
	}
	got := Row{step, map[string]float64{}, at}
	for _, p := range c.line {
		got.Values[p.c.Name] = p.x
	}
	if string(appendRow(nil, got)) != string(appendRow(nil, want)) || !got.Time.Equal(want.Time) {
		t.Errorf("%q: read as %v, parseRow %v", line, got, want)
	}
	return true
}

func TestQuickLines(t *testing.T) {
	for i, line := range lineCases {
		if quick := sameAsStrict(t, line); quick != (i < 3) {
			t.Errorf("%q: read fast: %v", line, quick)
		}
	}
}

func FuzzQuickLine(f *testing.F) {
	for _, line := range lineCases {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) { sameAsStrict(t, line) })
}

// Curves follow a file as it grows, wait for a torn line's rest, and begin again where a
// resume has replaced the file.
func TestCurvesFollow(t *testing.T) {
	for name, fsys := range map[string]vfs.FS{"disk": vfs.OS, "without seek": unseekable{vfs.OS}} {
		dir := t.TempDir()
		path := filepath.Join(dir, "metrics.jsonl")
		var c Curves
		see := func(when string, steps []int, losses ...float64) {
			t.Helper()
			if err := c.Read(fsys, dir); err != nil {
				t.Fatal(err)
			}
			var got []float64
			if loss := c.Get("critic/d_loss"); loss != nil {
				got = loss.X
			}
			if !slices.Equal(c.Steps, steps) || !slices.Equal(got, losses) {
				t.Errorf("%s: %s: steps %v, losses %v", name, when, c.Steps, got)
			}
		}
		see("missing", nil)
		put(t, vfs.OS, path,
			"{\"step\":1,\"critic/d_loss\":1}\n{\"step\":2}\n{\"step\":3,\"critic/d_loss\"")
		see("torn", []int{1, 2}, 1)
		f, err := vfs.OS.OpenAppend(path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f,
			":3}\nbroken\n{\"step\":3}\n{\"step\":4,\"zzz\":1,\"aaa\":2,\"actor/lr\":3}\n")
		f.Close()
		see("grown", []int{1, 2, 3, 4}, 1, 3)
		want := []string{"metrics.jsonl: line 4: not a JSON object",
			"metrics.jsonl: line 5: step 3 after step 3"}
		if !slices.Equal(c.Damaged, want) || c.Bad != 2 {
			t.Errorf("%s: damage %q", name, c.Damaged)
		}
		if want := []string{"critic/d_loss", "actor/lr", "aaa", "zzz"}; !slices.Equal(c.Names,
			want) {
			t.Errorf("%s: names %q, want %q", name, c.Names, want)
		}
		if at := c.Get("critic/d_loss").At; !slices.Equal(at, []int32{0, 2}) {
			t.Errorf("%s: records %v", name, at)
		}
		see("nothing new", []int{1, 2, 3, 4}, 1, 3)
		if _, err := cutMetrics(vfs.OS, path, 1); err != nil { // a resume after step 1
			t.Fatal(err)
		}
		see("cut", []int{1}, 1)
		if c.Bad != 0 || len(c.Names) != 1 {
			t.Errorf("%s: after a cut: %d bad lines, %q", name, c.Bad, c.Names)
		}
		put(t, vfs.OS, path, "{\"step\":1}\n{\"step\":2,\"critic/d_loss\":7}\n{\"step\":3}\n{\"step\":4}\n{\"step\":5}\n") // resumed, and further by now
		see("replaced by a longer one", []int{1, 2, 3, 4, 5}, 7)
		if err := os.Truncate(path, int64(len("{\"step\":1}\n"))); err != nil { // the same file
			t.Fatal(err)
		}
		see("cut in place", []int{1})
		if err := vfs.OS.Remove(path); err != nil {
			t.Fatal(err)
		}
		see("removed", nil)
	}
}

// unseekable is a file system whose files cannot seek, as those of the test doubles.
type unseekable struct{ vfs.FS }

func (u unseekable) Open(path string) (vfs.File, error) {
	f, err := u.FS.Open(path)
	return struct{ vfs.File }{f}, err
}

// What Curves have read are the rows that ReadMetrics reads.
func TestCurvesAreTheRows(t *testing.T) {
	dir := t.TempDir()
	r := open(t, vfs.OS, dir, Options{})
	for step := 1; step <= 50; step++ {
		values := map[string]float64{"critic/d_loss": 1 / float64(step), "timing_s/step": 0.5,
			"critic/d_acc": float64(step % 2)}
		if step%7 == 0 {
			values["val/rouge_l"] = math.Sqrt(float64(step))
			values["adv/std"] = math.NaN()
		}
		if err := r.Step(step, values); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	want, err := ReadMetrics(vfs.OS, dir)
	if err != nil {
		t.Fatal(err)
	}
	var c Curves
	if err := c.Read(vfs.OS, dir); err != nil {
		t.Fatal(err)
	}
	got := c.Rows()
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
	for i := range want {
		if string(appendRow(nil, got[i])) != string(appendRow(nil, want[i])) {
			t.Errorf("row %d: %s, want %s", i, appendRow(nil, got[i]), appendRow(nil, want[i]))
		}
	}
}

// More metrics in a file than any run has are left out.
func TestCurvesAreBounded(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	for step := 1; step <= 30; step++ {
		fmt.Fprintf(&b, `{"step":%d`, step)
		for i := range 100 {
			fmt.Fprintf(&b, `,"m%d_%d":1`, step, i)
		}
		b.WriteString("}\n")
	}
	b.WriteString(`{"step":31`)
	for i := range maxNames + 1 {
		fmt.Fprintf(&b, `,"x%d":1`, i)
	}
	b.WriteString("}\n{\"step\":32," + strings.Repeat(" ", maxLine) +
		"\"m1_1\":5}\n{\"step\":33,\"m1_1\":5}\n")
	put(t, vfs.OS, filepath.Join(dir, "metrics.jsonl"), b.String())
	var c Curves
	if err := c.Read(vfs.OS, dir); err != nil {
		t.Fatal(err)
	}
	want := []string{"metrics.jsonl: line 31: more than 1000 metrics",
		"metrics.jsonl: line 32: not a JSON object"}
	if len(c.Names) != maxNames || len(c.Steps) != 31 || !slices.Equal(c.Damaged, want) {
		t.Errorf("%d names, %d steps, %q", len(c.Names), len(c.Steps), c.Damaged)
	}
}

// The log tells the sessions, the length and the end, as ReadLastWord does.
func TestLogFollows(t *testing.T) {
	dir := t.TempDir()
	var l Log
	same := func(when string, total, sessions int) {
		t.Helper()
		if err := l.Read(vfs.OS, dir); err != nil {
			t.Fatal(err)
		}
		want, err := ReadLastWord(vfs.OS, dir)
		if err != nil {
			t.Fatal(err)
		}
		if l.Word() != want || l.Total != total || len(l.Sessions) != sessions {
			t.Errorf("%s: %+v, total %d, %d sessions; want %+v, %d, %d", when, l.Word(), l.Total,
				len(l.Sessions), want, total, sessions)
		}
	}
	if err := l.Read(vfs.OS, dir); err != nil || l.Word() != (LastWord{}) {
		t.Errorf("no log: %v, %+v", err, l.Word())
	}
	r := open(t, vfs.OS, dir, Options{TotalSteps: 9, Command: "gad train"})
	same("started", 0, 1)
	for step := 1; step <= 3; step++ {
		if err := r.Step(step, map[string]float64{"critic/d_loss": 1}); err != nil {
			t.Fatal(err)
		}
	}
	same("three steps", 9, 1)
	r.Log().Warn(`odd,"step":4}`)
	same("a warning", 9, 1)
	r.End(Interrupted, "saved")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	same("interrupted", 9, 1)
	put(t, vfs.OS, filepath.Join(dir, "log.jsonl"),
		read(t, vfs.OS, filepath.Join(dir, "log.jsonl"))+"no entry\n{\"msg\":")
	same("torn", 9, 1)
	r = open(t, vfs.OS, dir, Options{TotalSteps: 12, ResumeStep: 2, Command: "gad resume",
		Now: steady(time.Second)})
	defer r.Close()
	if err := r.Step(3, map[string]float64{"critic/d_loss": 1}); err != nil {
		t.Fatal(err)
	}
	same("resumed", 12, 2)
	r.Log().Info("run: train from other run/global_step_7, 12 steps") // of a first session only
	r.Log().Warn("late")
	same("warned again", 12, 2)
	if want := []Warning{{3, `odd,"step":4}`}, {3, "late"}}; !slices.Equal(l.Warnings, want) || l.From != 0 {
		t.Errorf("warnings %+v, want %+v; from step %d", l.Warnings, want, l.From)
	}
	if s := l.Sessions[1]; s.Step != 2 || s.Command != "gad resume" || s.At.IsZero() {
		t.Errorf("second session %+v", s)
	}
}

// Samples are read as they were written, damaged lines apart.
func TestReadSamples(t *testing.T) {
	dir := t.TempDir()
	r := open(t, vfs.OS, dir, Options{})
	defer r.Close()
	half := 0.5
	want := []Sample{
		{7, "a <b>\u2028", "</script><script>alert(1)</script>", "te\"acher", -1.5, 2, 0.25,
			[]Turn{{Role: "assistant", Text: "<b>", IDs: []int32{1, 2}}}, nil, nil,
			"<i>\u2028notes</i>"},
		{8, "", "", "", math.NaN(), math.Inf(1), math.Inf(-1),
			nil, []int{3, 5}, &TreePlace{Tree: 1, Leaf: 3, Parent: 2, Nodes: []TreeNode{
				{From: 1, To: 4, Leaves: 2, Value: &half, Advantage: &half}, {From: 4, To: 9,
					Leaves: 1}}}, ""},
	}
	for _, step := range []int{2, 10} {
		if err := r.Samples(InTraining, step, want); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "samples", "step_10.jsonl")
	put(t, vfs.OS, path, read(t, vfs.OS, path)+"{\"row\":1}\nno\n{\"row\":1,\"prompt\":\"\",\"student\":\"\",\"teacher\":\"\",\"advantage\":\"x\"}\n{\"row\":9")
	for _, name := range []string{"step_3.jsonl.tmp", ".step_4.jsonl", "step_05.jsonl",
		"val_1.jsonl.tmp", "other", "step_6"} {
		put(t, vfs.OS, filepath.Join(dir, "samples", name), "")
	}
	steps, err := SampleSteps(vfs.OS, dir, InTraining)
	if err != nil || !reflect.DeepEqual(steps, []int{2, 10}) {
		t.Errorf("steps %v, %v", steps, err)
	}
	if err := r.Samples(InValidation, 5, want[:1]); err != nil {
		t.Fatal(err)
	}
	if steps, err := SampleSteps(vfs.OS, dir, InValidation); err != nil ||
		!reflect.DeepEqual(steps, []int{5}) {
		t.Errorf("steps of validation %v, %v", steps, err)
	}
	if got, damaged, err := ReadSamples(vfs.OS, dir, InValidation, 5); err != nil || damaged != 0 ||
		!reflect.DeepEqual(got, want[:1]) {
		t.Errorf("of validation: %v, %d damaged, %v", got, damaged, err)
	}
	got, damaged, err := ReadSamples(vfs.OS, dir, InTraining, 10)
	if err != nil || damaged != 3 || len(got) != 2 {
		t.Fatalf("%v, %d damaged, %v", got, damaged, err)
	}
	for i := range want {
		g, w := got[i], want[i]
		same := reflect.DeepEqual(g.Tree, w.Tree)
		if g.Tree, w.Tree = nil, nil; !same || fmt.Sprint(g) != fmt.Sprint(w) {
			t.Errorf("sample %v, want %v", got[i], want[i])
		}
	}
	if _, _, err := ReadSamples(vfs.OS, dir, InTraining, 3); err == nil ||
		!strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing: %v", err)
	}
	if steps, err := SampleSteps(vfs.OS, t.TempDir(), InTraining); steps != nil || err != nil {
		t.Errorf("no samples: %v, %v", steps, err)
	}
}

// A file that was written anew in the same place, and is longer than the old one was, is
// read from its beginning.
func TestCurvesOfAnotherFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, metricsName)
	write := func(text string) {
		t.Helper()
		// the same file, cut and written
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lines := func(n int, loss float64) (text string) {
		for step := 1; step <= n; step++ {
			text += fmt.Sprintf("{\"step\":%d,\"critic/d_loss\":%g}\n", step, loss)
		}
		return text
	}
	var c Curves
	see := func(n, anew int, loss float64) {
		t.Helper()
		if err := c.Read(vfs.OS, dir); err != nil {
			t.Fatal(err)
		}
		if x := c.Get("critic/d_loss"); len(c.Steps) != n || c.Bad != 0 || c.Anew != anew ||
			len(x.X) != n || x.X[0] != loss {
			t.Errorf(
				"%d steps, %d bad lines, anew %d times, %+v; want %d steps of %g, anew %d times",
				len(c.Steps), c.Bad, c.Anew, x, n, loss, anew)
		}
	}
	write(lines(10, 0.25))
	see(10, 0, 0.25)
	write(lines(30, 0.75))
	see(30, 1, 0.75)
	write(lines(30, 0.75) + lines(1, 0.5)[:9]) // grows, and is not whole
	see(30, 1, 0.75)
	write(lines(31, 0.75))
	see(31, 1, 0.75)
	write(lines(30, 0.5))
	see(30, 2, 0.5)
	write(strings.Repeat("x", 2*maxLine) + "\n" + lines(3, 0.5))
	if err := c.Read(vfs.OS, dir); err != nil || c.Anew != 3 || c.Bad != 1 || len(c.Steps) != 3 {
		t.Errorf("after a long line: %v, anew %d times, %d bad lines, %d steps", err, c.Anew, c.Bad,
			len(c.Steps))
	}
	write(strings.Repeat("x", 2*maxLine) + "\n" + lines(4, 0.5))
	if err := c.Read(vfs.OS, dir); err != nil || c.Anew != 3 || c.Bad != 1 || len(c.Steps) != 4 {
		t.Errorf("after a long line: %v, anew %d times, %d bad lines, %d steps", err, c.Anew, c.Bad,
			len(c.Steps))
	}
}
