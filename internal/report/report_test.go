package report

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"

	"go.uber.org/zap"
)

// steady is a clock that advances by step at each reading.
func steady(step time.Duration) func() time.Time {
	t := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return func() time.Time { t = t.Add(step); return t }
}

func open(t *testing.T, fsys vfs.FS, dir string, opt Options) *Recorder {
	t.Helper()
	if opt.Now == nil {
		opt.Now = steady(0)
	}
	r, err := Open(fsys, dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t *testing.T, fsys vfs.FS, path string) string {
	t.Helper()
	b, err := fsys.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func put(t *testing.T, fsys vfs.FS, path, text string) {
	t.Helper()
	if err := vfs.MakeDirs(fsys, filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFile(fsys, path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestDeclared: every name of doc/algorithms.md, "Metrics" is declared, once, with a text and a
// format that works.
func TestDeclared(t *testing.T) {
	for group, names := range map[string]string{
		"critic":   "d_loss d_acc d_acc_fresh student_value_mean teacher_value_mean score_gap grad_norm lr",
		"actor":    "pg_loss pg_clipfrac ppo_kl kl_loss kl_share entropy grad_norm lr sft_loss",
		"adv":      "mean std max zero_var_groups_frac",
		"rollout":  "len_mean len_max truncated_frac repeat_frac logp_diff_max tokens_per_s",
		"teacher":  "len_mean truncated_frac",
		"val":      "rouge_l teacher_nll len_ratio check held_out_d",
		"timing_s": "rollout old_logp ref_logp score check update_critic update_actor save step",
		"perf":     "tokens_per_s tflops mfu replayed_frac declined_products mem_peak_bytes",
		"train":    "epoch prompts",
		"reward":   "kl_coef check_mean",
	} {
		for _, n := range strings.Fields(names) {
			if _, ok := Lookup(group + "/" + n); !ok {
				t.Errorf("%s/%s is not declared", group, n)
			}
		}
	}
	name := regexp.MustCompile(`^[a-z_]+/[a-z0-9_]+$`)
	md := Markdown()
	groups := map[string]bool{}
	last := ""
	for _, m := range Metrics() {
		if !name.MatchString(m.Name) || m.Doc == "" {
			t.Errorf("bad declaration %+v", m)
		}
		if out := fmt.Sprintf(m.Format, 0.25); strings.Contains(out, "%") {
			t.Errorf("%s: format %q prints %q", m.Name, m.Format, out)
		}
		if !strings.Contains(md, "| `"+m.Name+"` | "+m.Unit+" | "+m.Doc+" |\n") {
			t.Errorf("%s is missing in Markdown", m.Name)
		}
		g := strings.Split(m.Name, "/")[0]
		if g != last && groups[g] {
			t.Errorf("group %s stands in two places", g)
		}
		groups[g], last = true, g
	}
	if n := strings.Count(md, "## "); n != len(groups)+1 { // and the signs
		t.Errorf("Markdown has %d sections for %d groups", n, len(groups))
	}
	for n, want := range map[string]bool{"timing_s/step": true, "perf/mfu": true,
		"rollout/tokens_per_s": true, "rollout/len_mean": false, "train/prompts": false} {
		if Timing(n) != want {
			t.Errorf("Timing(%s) = %v", n, !want)
		}
	}
}

func TestMetricsFile(t *testing.T) {
	dir := t.TempDir()
	r := open(t, vfs.OS, dir, Options{})
	must(t, r.Step(1, map[string]float64{
		"timing_s/step": 1.5, "rollout/tokens_per_s": 10, "critic/d_acc": 0.30000000000000004,
		"actor/ppo_kl":  1e-9,
		"train/prompts": 1, "perf/mem_peak_bytes": 1 << 40, "rollout/len_mean": 143,
		"actor/lr": 1e-6}))
	must(t,
		r.Step(3,
			map[string]float64{"adv/std": math.NaN(), "adv/max": math.Inf(1),
				"adv/mean":    math.Inf(-1),
				"reward/mean": math.Copysign(0, -1), "reward/kl_mean": math.MaxFloat64}))
	must(t, r.Step(4, nil))
	must(t, r.Sync())
	must(t, r.Close())
	want := `{"step":1,"actor/lr":0.000001,"actor/ppo_kl":1e-09,"critic/d_acc":0.30000000000000004,"rollout/len_mean":143,"train/prompts":1,"perf/mem_peak_bytes":1099511627776,"rollout/tokens_per_s":10,"timing_s/step":1.5,` + atNoon + `}
{"step":3,"adv/max":"+Inf","adv/mean":"-Inf","adv/std":"NaN","reward/kl_mean":1.7976931348623157e+308,"reward/mean":-0,` + atNoon + `}
{"step":4,` + atNoon + `}
`
	got := read(t, vfs.OS, filepath.Join(dir, "metrics.jsonl"))
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	for _, line := range strings.Split(strings.TrimSpace(got), "\n") {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
	rows, err := ReadMetrics(vfs.OS, dir)
	must(t, err)
	if len(rows) != 3 || rows[0].Step != 1 || rows[1].Step != 3 ||
		rows[0].Values["critic/d_acc"] != 0.30000000000000004 ||
		!math.IsNaN(rows[1].Values["adv/std"]) || rows[1].Values["adv/mean"] != math.Inf(-1) ||
		!math.Signbit(rows[1].Values["reward/mean"]) {
		t.Errorf("read back %v", rows)
	}
	stripped, err := StripTimings([]byte(got))
	must(t, err)
	first, _, _ := strings.Cut(string(stripped), "\n")
	if want := `{"step":1,"actor/lr":0.000001,"actor/ppo_kl":1e-09,"critic/d_acc":0.30000000000000004,"rollout/len_mean":143,"train/prompts":1}`; first != want {
		t.Errorf("without timings %s", first)
	}
}

// atNoon is the time of a step on the tests' clock.
const atNoon = `"time":"2026-01-02T03:04:05.000Z"`

func TestFloatRoundTrip(t *testing.T) {
	for _, x := range []float64{0, 1, -1, 1e-7, 9.999999e-7, 1e-6, 1e20, 1e21, 1.0 / 3, 5e-324,
		math.MaxFloat64, 0.1, 123456789, 1 << 53} {
		row, err := parseRow(appendRow(nil,
			Row{Step: 1, Values: map[string]float64{"train/epoch": x}}))
		if err != nil || row.Values["train/epoch"] != x {
			t.Errorf("%v read back as %v: %v", x, row.Values, err)
		}
	}
}

func TestStepRefused(t *testing.T) {
	dir := t.TempDir()
	r := open(t, vfs.OS, dir, Options{ResumeStep: 4})
	err := r.Step(5, map[string]float64{"critic/d_acc": 1, "critic/dacc": 1})
	if want := `report: metric "critic/dacc": not declared: add it to the table in internal/report/metrics.go`; !errors.Is(err, ErrUndeclared) || err.Error() != want {
		t.Errorf("undeclared: %v", err)
	}
	must(t, r.Step(5, nil)) // the refused step has written nothing and blocks nothing
	for step, want := range map[int]string{
		0: "report: step 0: steps count from 1",
		4: "report: step 4 after step 5: each step is recorded once",
		5: "report: step 5 after step 5: each step is recorded once",
	} {
		if err := r.Step(step, nil); err == nil || err.Error() != want {
			t.Errorf("step %d: %v, want %s", step, err, want)
		}
	}
	must(t, r.Close())
	must(t, r.Close())
	if err := r.Step(6, nil); err == nil || err.Error() != "report: step after Close" {
		t.Errorf("after Close: %v", err)
	}
	if err := r.Samples(InTraining, 6, nil); err == nil ||
		err.Error() != "report: samples after Close" {
		t.Errorf("after Close: %v", err)
	}
	if got := read(t, vfs.OS,
		filepath.Join(dir, "metrics.jsonl")); got != "{\"step\":5,"+atNoon+"}\n" {
		t.Errorf("file %q", got)
	}
}

// TestResumeCuts: after a resume each step stands exactly once, whatever the end of the file looks
// like, and the recorder has the rows of the file.
func TestResumeCuts(t *testing.T) {
	l := func(step int) string { return fmt.Sprintf("{\"step\":%d,\"critic/d_acc\":0.5}\n", step) }
	wide := strings.Replace(l(2), ",", ","+strings.Repeat(" ", 3*lineBuffer), 1)
	for name, c := range map[string]struct {
		resume     int
		text, want string
	}{
		"nothing to cut":     {2, l(1) + l(2), l(1) + l(2)},
		"empty":              {0, "", ""},
		"later steps":        {2, l(1) + l(2) + l(3) + l(4), l(1) + l(2)},
		"from the beginning": {0, l(1) + l(2), ""},
		"torn line":          {2, l(1) + l(2) + l(3)[:9], l(1) + l(2)},
		"torn needed line":   {2, l(1) + l(2)[:9], l(1)},
		"only a torn line":   {3, "{", ""},
		// it may be the front of a longer number
		"whole, no newline":  {2, l(1) + strings.TrimSpace(l(2)), l(1)},
		"zeros at the end":   {2, l(1) + l(2) + "\x00\x00\x00\n" + l(3), l(1) + l(2)},
		"garbled later line": {2, l(1) + l(2) + "{\"step\":3,}\n" + l(4) + "x", l(1) + l(2)},
		"steps left out":     {8, l(3) + l(7) + l(9), l(3) + l(7)},
		"huge garbled line":  {1, l(1) + strings.Repeat("x", 3*maxLine) + "\n", l(1)},
		"line in pieces":     {2, l(1) + wide + l(3), l(1) + wide},
	} {
		fsys := vfstest.NewCrash()
		put(t, fsys, "/run/metrics.jsonl", c.text)
		put(t, fsys, "/run/.metrics.jsonl.tmp", "left by a crash")
		r := open(t, fsys, "/run", Options{ResumeStep: c.resume})
		values := map[string]float64{"critic/d_acc": 0.25}
		must(t, r.Step(c.resume+1, values))
		values["critic/d_acc"] = 9 // the caller's again
		rows := r.Rows()
		must(t, r.Close())
		want := c.want + fmt.Sprintf("{\"step\":%d,\"critic/d_acc\":0.25,%s}\n", c.resume+1, atNoon)
		if got := read(t, fsys, "/run/metrics.jsonl"); got != want {
			t.Errorf("%s: got %q, want %q", name, clip(got), want)
		}
		if kept, err := ReadMetrics(fsys, "/run"); err != nil || !reflect.DeepEqual(rows, kept) {
			t.Errorf("%s: has rows %v, and the file %v: %v", name, rows, kept, err)
		}
		if _, err := fsys.Stat("/run/.metrics.jsonl.tmp"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the temporary file stays: %v", name, err)
		}
	}
}

func clip(s string) string { return s[:min(len(s), 300)] }

// TestResumeRefuses: damage in the middle would cost records that cannot be made again.
func TestResumeRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"{\"step\":1}\ngarbage\n{\"step\":2}\n":      `report: /run: metrics.jsonl: line 2: not a JSON object: step 2 follows: move the file away to continue without its records`,
		"{\"step\":1}\n{\"step\":9}\n{\"step\":2}\n": `report: /run: metrics.jsonl: line 2: step 9: step 2 follows: move the file away to continue without its records`,
		"{\"step\":2}\n{\"step\":2}\n":               `report: /run: metrics.jsonl: line 2: step 2 after step 2: move the file away to continue without its records`,
	} {
		fsys := vfstest.NewCrash()
		put(t, fsys, "/run/metrics.jsonl", text)
		if _, err := Open(fsys, "/run", Options{ResumeStep: 5}); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		if got := read(t, fsys, "/run/metrics.jsonl"); got != text {
			t.Errorf("the refused file was changed: %q", got)
		}
	}
}

func TestReadMetricsRefuses(t *testing.T) {
	for line, want := range map[string]string{
		`[1]`:                    `not a JSON object`,
		``:                       `not a JSON object`,
		`{"step":1`:              `not a whole JSON object`,
		`{"step":1} {}`:          `more than one JSON object`,
		`{"a":1}`:                `no "step"`,
		`{"step":0}`:             `"step": expected one positive integer`,
		`{"step":1.5}`:           `"step": expected one positive integer`,
		`{"step":"1"}`:           `"step": expected one positive integer`,
		`{"step":1,"step":2}`:    `"step": expected one positive integer`,
		`{"step":1,"a":1,"a":2}`: `"a": appears twice`,
		`{"step":1,"a":"x"}`:     `"a": expected a number`,
		`{"step":1,"time":5}`:    `"time": expected one time, such as "2006-01-02T15:04:05.000Z"`,
		`{"step":1,"a":null}`:    `"a": expected a number`,
		`{"step":1,"a":[1]}`:     `"a": expected a number`,
		`{"step":1,"a":1e999}`:   `"a": 1e999: not a float64`,
		`{"step":4}`:             `step 4 after step 7`,
	} {
		fsys := vfstest.NewCrash()
		put(t, fsys, "/run/metrics.jsonl", "{\"step\":7}\n"+line+"\n")
		want := "report: /run/metrics.jsonl: line 2: " + want
		if _, err := ReadMetrics(fsys, "/run"); err == nil || err.Error() != want {
			t.Errorf("%s: got  %v\nwant %s", line, err, want)
		}
	}
	if _, err := ReadMetrics(vfs.OS, t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func FuzzParseRow(f *testing.F) {
	f.Add([]byte(`{"step":1,"a/b":0.5,"c":"NaN"}`))
	f.Add([]byte(`{"step":1,"a":[{}]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseRow(line)
		if err != nil {
			return
		}
		again, err := parseRow(appendRowAny(r))
		if err != nil || again.Step != r.Step || len(again.Values) != len(r.Values) {
			t.Fatalf("%v: %+v read back as %+v", err, r, again)
		}
	})
}

// appendRowAny is appendRow for names that are not plain ASCII.
func appendRowAny(r Row) []byte {
	b := fmt.Appendf(nil, `{"step":%d`, r.Step)
	for n, v := range r.Values {
		k, _ := json.Marshal(n)
		b = appendFloat(append(append(append(b, ','), k...), ':'), v)
	}
	return append(b, '}')
}

func TestSamples(t *testing.T) {
	fsys := vfstest.NewCrash()
	r := open(t, fsys, "/run", Options{})
	s := Sample{Row: 7, Prompt: "a <b> & \"c\"\n", Student: "é\x1b\xff", Teacher: "",
		StudentScore: 0.1, TeacherScore: math.NaN(), Advantage: -1}
	for _, step := range []int{1, 2, 10} {
		must(t, r.Samples(InTraining, step, []Sample{s, {}}))
	}
	must(t, r.Samples(InTraining, 2, []Sample{{}}))
	must(t, r.Close())
	want := `{"row":7,"prompt":"a <b> & \"c\"\n","student":"é\u001b\ufffd","teacher":"","student_score":0.1,"teacher_score":"NaN","advantage":-1}
{"row":0,"prompt":"","student":"","teacher":"","student_score":0,"teacher_score":0,"advantage":0}
`
	if got := read(t, fsys, "/run/samples/step_1.jsonl"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := read(t, fsys, "/run/samples/step_2.jsonl"); strings.Count(got, "\n") != 1 {
		t.Errorf("the second write of step 2 is not alone: %s", got)
	}
	put(t, fsys, "/run/samples/.step_1.jsonl.tmp", "left by a crash")
	put(t, fsys, "/run/samples/notes.txt", "a user's file")
	put(t, fsys, "/run/samples/val_2.jsonl", "kept")
	put(t, fsys, "/run/samples/val_3.jsonl", "to be run again")
	open(t, fsys, "/run", Options{ResumeStep: 2}).Close()
	if got := list(t, fsys,
		"/run/samples"); got != "notes.txt step_1.jsonl step_2.jsonl val_2.jsonl" {
		t.Errorf("after the resume: %s", got)
	}
}

func list(t *testing.T, fsys vfs.FS, dir string) string {
	t.Helper()
	es, err := fsys.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range es {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// event is what the test's own reader finds in an event file.
type event struct {
	wall    float64
	step    int64
	version string
	start   bool
	values  map[string]float32
}

// readEvents reads an event file by the book: TFRecord framing with both checksums, then protocol
// buffer fields.
func readEvents(t *testing.T, b []byte) []event {
	t.Helper()
	// fields calls f with each field of a message.
	fields := func(b []byte, f func(num, wire int, n uint64, s []byte)) {
		for len(b) > 0 {
			tag, k := binary.Uvarint(b)
			b = b[k:]
			num, wire := int(tag>>3), int(tag&7)
			switch wire {
			case 0:
				n, k := binary.Uvarint(b)
				f(num, wire, n, nil)
				b = b[k:]
			case 1:
				f(num, wire, binary.LittleEndian.Uint64(b), nil)
				b = b[8:]
			case 2:
				n, k := binary.Uvarint(b)
				f(num, wire, 0, b[k:k+int(n)])
				b = b[k+int(n):]
			case 5:
				f(num, wire, uint64(binary.LittleEndian.Uint32(b)), nil)
				b = b[4:]
			default:
				t.Fatalf("wire type %d", wire)
			}
		}
	}
	unmask := func(m uint32) uint32 { m -= 0xa282ead8; return m>>17 | m<<15 }
	var out []event
	for len(b) > 0 {
		n := binary.LittleEndian.Uint64(b)
		if got, want := crcBitwise(b[:8]), unmask(binary.LittleEndian.Uint32(b[8:])); got != want {
			t.Fatalf("checksum of the length: %08x, file says %08x", got, want)
		}
		data := b[12 : 12+n]
		if got, want :=
			crcBitwise(data), unmask(binary.LittleEndian.Uint32(b[12+n:])); got != want {
			t.Fatalf("checksum of the data: %08x, file says %08x", got, want)
		}
		b = b[16+n:]
		e := event{values: map[string]float32{}}
		fields(data, func(num, wire int, n uint64, s []byte) {
			switch fmt.Sprint(num, "/", wire) {
			case "1/1":
				e.wall = math.Float64frombits(n)
			case "2/0":
				e.step = int64(n)
			case "3/2":
				e.version = string(s)
			case "5/2":
				fields(s, func(num, wire int, _ uint64, s []byte) {
					tag, val := "", float32(0)
					fields(s, func(num, wire int, n uint64, s []byte) {
						switch fmt.Sprint(num, "/", wire) {
						case "1/2":
							tag = string(s)
						case "2/5":
							val = math.Float32frombits(uint32(n))
						default:
							t.Fatalf("Summary.Value field %d/%d", num, wire)
						}
					})
					e.values[tag] = val
				})
			case "7/2":
				fields(s,
					func(num, wire int, n uint64, _ []byte) {
						e.start = num == 1 && wire == 0 &&
							n == 1
					})
			default:
				t.Fatalf("Event field %d/%d", num, wire)
			}
		})
		out = append(out, e)
	}
	return out
}

// crcBitwise is CRC-32C by its definition, independent of the tables of hash/crc32.
func crcBitwise(b []byte) uint32 {
	c := ^uint32(0)
	for _, x := range b {
		c ^= uint32(x)
		for range 8 {
			c = c>>1 ^ 0x82f63b78&-(c&1)
		}
	}
	return ^c
}

func TestEvents(t *testing.T) {
	if got := crcBitwise([]byte("123456789")); got != 0xe3069283 { // the check value of CRC-32C
		t.Fatalf("the test's own CRC is wrong: %08x", got)
	}
	fsys := vfstest.NewCrash()
	now := time.Unix(1_700_000_000, 500_000_000)
	clock := func() time.Time { return now }
	r := open(t, fsys, "/run", Options{Now: clock})
	must(t,
		r.Step(1, map[string]float64{"critic/d_loss": 0.6931471805599453, "adv/std": math.NaN()}))
	must(t, r.Step(2, map[string]float64{"critic/d_loss": 0.5}))
	must(t, r.Close())
	r = open(t, fsys, "/run", Options{Now: clock, ResumeStep: 300}) // in the same second
	must(t, r.Step(301, map[string]float64{"critic/d_loss": 0.25}))
	must(t, r.Close())
	if got := list(t, fsys,
		"/run/tb"); got != "events.out.tfevents.1700000000.gad events.out.tfevents.1700000001.gad" {
		t.Fatalf("files %s", got)
	}
	a := readEvents(t, []byte(read(t, fsys, "/run/tb/events.out.tfevents.1700000000.gad")))
	if len(a) != 4 || a[0].version != "brain.Event:2" || !a[1].start || a[1].step != 1 ||
		a[2].step != 1 || a[3].step != 2 ||
		a[2].wall != 1_700_000_000.5 || len(a[2].values) != 2 ||
		a[2].values["critic/d_loss"] != float32(0.6931471805599453) ||
		a[2].values["adv/std"] == a[2].values["adv/std"] {
		t.Errorf("first file %+v", a)
	}
	b := readEvents(t, []byte(read(t, fsys, "/run/tb/events.out.tfevents.1700000001.gad")))
	if want := map[string]float32{"critic/d_loss": 0.25}; len(b) != 3 || !b[1].start ||
		b[1].step != 301 || b[2].step != 301 || !reflect.DeepEqual(b[2].values, want) {
		t.Errorf("second file %+v", b)
	}
}

func TestLogFile(t *testing.T) {
	fsys := vfstest.NewCrash()
	put(t, fsys, "/run/log.jsonl", "{\"msg\":\"before\"}\n{\"msg\":\"to")
	r := open(t, fsys, "/run", Options{ResumeStep: 3, Command: "gad train --resume run"})
	r.Log().Named("ckpt").With(zap.Int("shards", 2)).Warn("slow disk", zap.Float64("s", math.NaN()))
	r.Log().Debug("detail")
	must(t, r.Step(4, map[string]float64{"critic/d_acc": 0.5}))
	must(t, r.Close())
	r.Log().Info("after Close: dropped")
	want := `{"msg":"before"}
{"level":"info","time":"2026-01-02T03:04:05Z","msg":"resume","step":3,"command":"gad train --resume run"}
{"level":"warn","time":"2026-01-02T03:04:05Z","logger":"ckpt","msg":"slow disk","shards":2,"s":"NaN"}
{"level":"debug","time":"2026-01-02T03:04:05Z","msg":"detail"}
{"level":"info","time":"2026-01-02T03:04:05Z","msg":"step 4  d_acc 0.50","step":4,"critic/d_acc":0.5}
`
	if got := read(t, fsys, "/run/log.jsonl"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	must(t, r.Err())
}

// script is a run that uses every kind of write: begin or resume, steps, samples, sync, close.
func script(fsys vfs.FS, resume int) error {
	r, err := Open(fsys, "/out/run", Options{ResumeStep: resume, Now: steady(0)})
	if err != nil {
		return err
	}
	for step := resume + 1; step <= resume+2; step++ {
		r.Log().Info("working")
		if err := errors.Join(r.Step(step, map[string]float64{"critic/d_acc": float64(step)}),
			r.Samples(InTraining, step, []Sample{{Row: step}})); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	return errors.Join(r.Sync(), r.Close())
}

// prior is a file system on which a run has recorded steps 1 to 4 and then, torn, a fifth.
func prior(t *testing.T) *vfstest.CrashFS {
	fsys := vfstest.NewCrash()
	must(t, script(fsys, 0))
	must(t, script(fsys, 2))
	for _, name := range []string{"metrics.jsonl", "log.jsonl"} {
		put(t, fsys, "/out/run/"+name, read(t, fsys, "/out/run/"+name)+`{"step":5,`)
	}
	return fsys
}

const fourSteps = "{\"step\":1,\"critic/d_acc\":1," + atNoon +
	"}\n{\"step\":2,\"critic/d_acc\":2," + atNoon + "}\n{\"step\":3,\"critic/d_acc\":3," + atNoon +
	"}\n{\"step\":4,\"critic/d_acc\":4," + atNoon + "}\n"

// TestEveryErrorIsReported: whichever operation fails, once or for ever, the run hears of it; and a
// run begun again ends with the right records.
func TestEveryErrorIsReported(t *testing.T) {
	for _, forever := range []bool{false, true} {
		for i := 0; ; i++ {
			under := prior(t)
			fsys := vfstest.NewError(under, i, forever)
			err := script(fsys, 2)
			if fsys.Faults() == 0 {
				if i < 40 {
					t.Errorf("only %d operations", i)
				}
				must(t, err)
				break
			}
			if !errors.Is(err, vfstest.ErrInjected) {
				t.Errorf("operation %d (%s) failed and the run ended with %v", i, fsys.Op(i), err)
			}
			must(t, script(under, 2))
			if got := read(t, under, "/out/run/metrics.jsonl"); got != fourSteps {
				t.Errorf("operation %d (%s): then %q", i, fsys.Op(i), got)
			}
		}
	}
}

func TestFullDisk(t *testing.T) {
	need := func() int64 {
		b := vfstest.NewBudget(prior(t), math.MaxInt64)
		must(t, script(b, 2))
		return b.BytesUsed()
	}()
	for n := int64(0); n < need; n += max(1, need/64) {
		under := prior(t)
		if err := script(vfstest.NewBudget(under, n), 2); err == nil {
			t.Errorf("room for %d of %d bytes and no error", n, need)
		}
		must(t, script(under, 2))
		if got := read(t, under, "/out/run/metrics.jsonl"); got != fourSteps {
			t.Errorf("room for %d bytes: then %q", n, got)
		}
	}
}

// TestCrash: power fails at any operation of a resumed run. The records of the steps that the
// resume builds on (1 and 2, synced) are there, and the run begun again ends as if nothing had
// happened.
func TestCrash(t *testing.T) {
	for i := 0; ; i++ {
		under := prior(t)
		// after operation i nothing reaches the disk any more
		fsys := vfstest.NewError(under, i, true)
		script(fsys, 2)
		for _, keep := range []int{0, 10, 50, 100} {
			disk := under.CrashClone(keep, uint64(i))
			if got := read(t, disk, "/out/run/metrics.jsonl"); !strings.HasPrefix(got,
				fourSteps[:len(fourSteps)/2]) {
				t.Errorf("crash at operation %d (%s), %d %%: steps 1 and 2 are gone: %q", i,
					fsys.Op(i), keep, got)
			}
			must(t, script(disk, 2))
			if got := read(t, disk, "/out/run/metrics.jsonl"); got != fourSteps {
				t.Errorf("crash at operation %d (%s), %d %%: then %q", i, fsys.Op(i), keep, got)
			}
			if got := list(t, disk,
				"/out/run/samples"); got != "step_1.jsonl step_2.jsonl step_3.jsonl step_4.jsonl" {
				t.Errorf("crash at operation %d, %d %%: samples %s", i, keep, got)
			}
		}
		if fsys.Faults() == 0 {
			break
		}
	}
}

// TestSyncKeepsAll: what was recorded before Sync is there after a loss of power, and leaving out
// any one sync shows.
func TestSyncKeepsAll(t *testing.T) {
	for _, samples := range []bool{false, true} {
		files := []string{"metrics.jsonl", "log.jsonl", "tb/events.out.tfevents.1767323045.gad"}
		if samples {
			files = append(files, "samples/step_1.jsonl")
		}
		// lost runs with sync number at left out; it returns a file that a crash after Sync
		// damages, and that sync.
		lost := func(at int) (file, skipped string) {
			disk := vfstest.NewCrash()
			fsys := vfstest.NewForgetful(disk, at)
			r := open(t, fsys, "/out/run", Options{})
			must(t, r.Step(1, map[string]float64{"critic/d_acc": 1}))
			if samples {
				must(t, r.Samples(InTraining, 1, []Sample{{}}))
			}
			must(t, r.Sync())
			after := disk.CrashClone(0, 1)
			for _, p := range files {
				if got, _ := after.ReadFile("/out/run/" + p); string(got) != read(t, disk,
					"/out/run/"+p) {
					file = p
				}
			}
			must(t, r.Close())
			return file, fsys.SkippedSync()
		}
		if p, _ := lost(-1); p != "" {
			t.Fatalf("%s is not whole after Sync and a crash", p)
		}
		var idle []string
		for n := 0; ; n++ {
			p, skipped := lost(n)
			if skipped == "" {
				break
			}
			if p == "" {
				idle = append(idle, skipped)
			}
		}
		// The folders tb and samples are made durable when they are made, and the run's folder is
		// synced for its own files in between: each of these but the last is covered by the next.
		want := []string{"syncdir /out/run"}
		if samples {
			want = append(want, want[0])
		}
		if !reflect.DeepEqual(idle, want) {
			t.Errorf("samples %v: syncs whose absence costs nothing: %q, want %q", samples, idle,
				want)
		}
	}
}

func TestConsoleOnly(t *testing.T) {
	var b bytes.Buffer
	r := open(t, vfs.OS, "", Options{Console: NewConsole(&b, false)})
	r.Log().Info("hello")
	must(t, r.Step(1, map[string]float64{"critic/d_acc": 1}))
	must(t, r.Samples(InTraining, 1, []Sample{{}}))
	must(t, r.Sync())
	must(t, r.Close())
	if got, want := b.String(), "03:04:05  hello\n03:04:05  step 1  d_acc 1.00\n03:04:05  d_acc: the discriminator's accuracy on the pairs it learns from\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestOpenRefusesAFile(t *testing.T) {
	p := filepath.Join(t.TempDir(), "run")
	must(t, os.WriteFile(p, nil, 0o666))
	if _, err := Open(vfs.OS, p, Options{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v", err)
	}
}
