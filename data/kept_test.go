package data

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

// counted is an encoder of bytes that counts what it is asked for.
type counted struct{ calls atomic.Int64 }

func (c *counted) Prompt(r Row) (ids []int32, err error) {
	c.calls.Add(1)
	if len(r.PromptIDs) > 0 {
		return r.PromptIDs, nil
	}
	for _, m := range r.Messages {
		ids = append(append(ids, 70000), c.ids(m.Content)...)
	}
	return ids, nil
}

func (c *counted) Lost(text string) (int, string) { return strings.Count(text, "7"), "" }

// Reply is the ids of each turn, behind one another; those of assistants are learned.
func (c *counted) Reply(r Row) (ids []int32, learned []Span, err error) {
	for _, m := range r.Turns {
		from := len(ids)
		ids = append(append(ids, c.ids(m.Content+m.Thinking+string(m.ToolCalls))...), 1<<24)
		if m.Role == "assistant" && !m.Context {
			learned = append(learned, Span{from, len(ids)})
		}
	}
	return ids, learned, nil
}

// Soft labels the first token of the answer of a row with log-probabilities.
func (c *counted) Soft(r Row, answer []int32) ([]SoftLabel, string) {
	soft := make([]SoftLabel, len(answer))
	soft[0] = SoftLabel{IDs: answer[:1], LogProbs: []float32{r.Logprobs[0][0].LogProb}}
	return soft, ""
}

func (c *counted) Shows(Row) error { return nil }

func (c *counted) Answer(text string) []int32 { return append(c.ids(text), 1<<24) }

func (c *counted) ids(text string) (ids []int32) {
	for _, b := range []byte(text) {
		ids = append(ids, int32(b))
	}
	return ids
}

// keptTestRows is the number of rows of the cache tests: two windows and 17 rows. Without GAD_LONG
// it also reduces the window to a quarter, for all tests of this package.
var keptTestRows = func() int {
	if !hostile.Long() {
		window /= 4
	}
	return 2*window + 17
}()

// keptData writes rows of all kinds to a file.
func keptData(t *testing.T, dir string, change func(i int, row string) string) string {
	t.Helper()
	var b strings.Builder
	for i := range keptTestRows {
		row := fmt.Sprintf(`{"content":"add %d","teacher_response":"it is %d","id":"r%d"}`, i, i+1, i)
		switch i % 5 {
		case 1:
			row = fmt.Sprintf(`{"content":[{"role":"system","content":"be brief"},{"role":"user","content":"é\n%d"}],"teacher_response":"\"%d\"","response":"%d?"}`, i, i, i)
		case 2:
			row = fmt.Sprintf(`{"prompt_ids":[%d,70001,16777217],"teacher_response":"given","response_ids":[1,%d]}`, i, i)
		case 3:
			row = fmt.Sprintf(`{"content":"add %d","teacher_response":"it is","teacher_logprobs":[["it",-0.%d,[255],-3],[" is",0]]}`, i, i)
			if i%2 == 0 {
				row = strings.Replace(row, "it is", "it was", 1)
			}
		}
		if change != nil {
			row = change(i, row)
		}
		b.WriteString(row + "\n")
	}
	path := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// passed is what a set gives after Encode.
type passed struct {
	measures []Measure
	examples []Example
	rows     []Row
	digest   string
	calls    int // of the encoder in Encode
	warnings []string
	err      string
}

// pass opens the file, encodes it and reads all of it, by way of then where that is not nil.
func pass(t *testing.T, path string, o EncodeOptions, then func(*Set)) passed {
	t.Helper()
	return passAs(t, path, Options{}, o, then)
}

// passAs is pass of files that are read in a way of their own.
func passAs(t *testing.T, path string, read Options, o EncodeOptions, then func(*Set)) (p passed) {
	t.Helper()
	s, err := OpenFiles([]string{path}, read)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var mu sync.Mutex
	o.Keys = true
	o.Keep.Warn = func(text string) {
		mu.Lock()
		defer mu.Unlock()
		p.warnings = append(p.warnings, text)
	}
	enc := &counted{}
	err = s.Encode(enc, o, func(i int, m Measure) bool {
		if i != len(p.measures) {
			t.Fatalf("row %d comes after %d others", i, len(p.measures))
		}
		p.measures = append(p.measures, m)
		return len(p.measures) < keptTestRows // as a run that takes all
	})
	p.calls = int(enc.calls.Load())
	if err != nil {
		p.err = err.Error()
		return p
	}
	if then != nil {
		then(s)
	}
	for i := range s.Len() {
		ex, err := s.Example(i, enc, o.Limits)
		if err != nil {
			t.Fatal(err)
		}
		row, err := s.Row(i)
		if err != nil {
			t.Fatal(err)
		}
		p.examples, p.rows = append(p.examples, ex), append(p.rows, row)
	}
	p.digest = s.Digest()
	return p
}

// equal wants what a set without kept rows gives.
func (p passed) equal(t *testing.T, what string, want passed) {
	t.Helper()
	if p.err != want.err || p.digest != want.digest || !slices.Equal(p.measures, want.measures) {
		t.Fatalf("%s: digest %.12s and %d measures (%s), want %.12s and %d (%s)", what, p.digest,
			len(p.measures), p.err, want.digest, len(want.measures), want.err)
	}
	for i := range want.rows {
		if !reflect.DeepEqual(p.examples[i], want.examples[i]) ||
			!reflect.DeepEqual(p.rows[i], want.rows[i]) {
			t.Fatalf("%s: row %d is\n%+v\n%+v\nwant\n%+v\n%+v", what, i, p.examples[i], p.rows[i],
				want.examples[i], want.rows[i])
		}
	}
}

// keptFiles are the files in dir.
func keptFiles(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, filepath.Join(dir, e.Name()))
	}
	return names
}

// Rows that are kept are the same rows, and are encoded once.
func TestKeptRows(t *testing.T) {
	path, dir := keptData(t, t.TempDir(), nil), filepath.Join(t.TempDir(), "made", "here")
	keep := EncodeOptions{Keep: Keep{Dir: dir, Encoder: "bytes"}}
	want := pass(t, path, EncodeOptions{}, nil)
	if want.calls != keptTestRows || want.measures[1].Prompt != 14 {
		t.Fatalf("%d prompts encoded, the second of %d tokens", want.calls, want.measures[1].Prompt)
	}
	cold := pass(t, path, keep, nil)
	cold.equal(t, "cold", want)
	warm := pass(t, path, keep, nil)
	warm.equal(t, "warm", want)
	if files := keptFiles(t, dir); cold.calls != keptTestRows || warm.calls != 0 ||
		len(files) != 1 || len(cold.warnings)+len(warm.warnings) > 0 {
		t.Errorf("%d rows encoded, then %d; files %v; %q %q", cold.calls, warm.calls, files,
			cold.warnings, warm.warnings)
	}

	// A prompt over the limit is refused in the same words.
	short := EncodeOptions{Limits: Limits{MaxPrompt: 13}}
	long := pass(t, path, short, nil)
	short.Keep = keep.Keep
	if again := pass(t, path, short, nil); long.err == "" || again.err != long.err ||
		!slices.Equal(again.measures, long.measures) {
		t.Errorf("over the limit: %q after %d rows, want %q after %d", again.err,
			len(again.measures), long.err, len(long.measures))
	}

	// Small data, an encoder that cannot be named, and a part of the rows make no file.
	for _, k := range []Keep{{Dir: dir, Encoder: "bytes", Least: 1 << 20}, {Dir: dir},
		{Encoder: "bytes"}} {
		if p := pass(t, path, EncodeOptions{Keep: k}, nil); p.calls != keptTestRows {
			t.Errorf("%+v: %d rows encoded", k, p.calls)
		}
	}
}

// Whatever rows depend on is in the name of their file.
func TestKeptRowsAreOfTheirData(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	path := keptData(t, home, nil)
	keep := EncodeOptions{Keep: Keep{Dir: dir, Encoder: "bytes"}}
	pass(t, path, keep, nil)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// One letter, and size and times as they were.
	keptData(t, home, func(i int, row string) string {
		if i == window*3/2/5*5 { // in the second window
			return strings.Replace(row, "add", "ADD", 1)
		}
		return row
	})
	if err := os.Chtimes(path, before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}
	want := pass(t, path, EncodeOptions{}, nil)
	changed := pass(t, path, keep, nil)
	changed.equal(t, "changed", want)
	other := pass(t, path, EncodeOptions{Keep: Keep{Dir: dir, Encoder: "others"}}, nil)
	if files := keptFiles(t, dir); changed.calls != keptTestRows || other.calls != keptTestRows ||
		len(files) != 3 {
		t.Errorf("%d rows encoded after a change, %d for another encoder; files %v", changed.calls,
			other.calls, files)
	}

	// A row that training refuses, or a pass that ends early, leaves nothing.
	bad := keptData(t, t.TempDir(), func(i int, row string) string {
		if i == 2*window-48 {
			return `{"content":"x","teacher_response":""}`
		}
		return row
	})
	if p := pass(t, bad, keep, nil); !strings.Contains(p.err,
		fmt.Sprintf("row %d: no teacher answer", 2*window-48)) || len(p.measures) != 2*window-48 {
		t.Errorf("%q after %d rows", p.err, len(p.measures))
	}
	s := openTest(t, bad)
	err = s.Encode(&counted{}, keep, func(i int, m Measure) bool { return i < 20 })
	if files := keptFiles(t, dir); err != nil || len(files) != 3 {
		t.Errorf("%v; files %v", err, files)
	}
}

// How a file is read is in the name too: other columns and another format of the same bytes
// are other rows.
func TestKeptRowsAreOfTheirReading(t *testing.T) {
	path := keptData(t, t.TempDir(), func(i int, _ string) string {
		return fmt.Sprintf(`{"prompt":"add %d","completion":"it is %d","chosen":"%d","rejected":"7","question":"what is %d"}`, i, i+1, i+1, i)
	})
	other := DefaultColumns()
	other.Content, other.Teacher = "question", "completion"
	keep := EncodeOptions{Keep: Keep{Dir: t.TempDir(), Encoder: "bytes"}}
	digests := map[string]bool{}
	for _, read := range []Options{{Format: FormatPromptCompletion}, {Format: FormatPreference},
		{Format: FormatMessages, Columns: other}} {
		want := passAs(t, path, read, EncodeOptions{}, nil)
		got := passAs(t, path, read, keep, nil)
		got.equal(t, read.Format, want)
		if got.calls != keptTestRows || len(got.rows) == 0 {
			t.Errorf("%s: %d rows encoded of %d, want all: those of another reading were taken",
				read.Format, got.calls, len(got.rows))
		}
		digests[got.digest] = true
	}
	if len(digests) != 3 {
		t.Errorf("%d different data sets, want 3: the rows do not tell the readings apart",
			len(digests))
	}
}

// Rows that are chosen are kept apart from others of the same files, and read as they are chosen.
func TestKeptRowsAreOfTheirChoice(t *testing.T) {
	path := keptData(t, t.TempDir(), func(i int, _ string) string {
		return fmt.Sprintf(`{"prompt":"add %d","completion":"it is %d","level":%d}`, i, i+1, i%2)
	})
	keep := EncodeOptions{Keep: Keep{Dir: t.TempDir(), Encoder: "bytes"}}
	for _, where := range []string{"level = 0", "level = 1", "", "level = 1"} {
		read := Options{Format: FormatPromptCompletion, Choice: Choice{Where: where}}
		want := passAs(t, path, read, EncodeOptions{}, nil)
		passAs(t, path, read, keep, nil)
		got := passAs(t, path, read, keep, nil)
		got.equal(t, where, want)
		if got.calls != 0 {
			t.Errorf("%q: %d rows were encoded again", where, got.calls)
		}
	}
}

// A file that is damaged anywhere is found out, when it is opened or when the damage
// is read; rows are then encoded again and are the same.
func TestKeptRowsAreNotTrusted(t *testing.T) {
	t.Parallel()
	path, dir := keptData(t, t.TempDir(), nil), t.TempDir()
	keep := EncodeOptions{Keep: Keep{Dir: dir, Encoder: "bytes"}}
	want := pass(t, path, EncodeOptions{}, nil)
	pass(t, path, keep, nil)
	file := keptFiles(t, dir)[0]
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damage := map[string]func(b []byte) []byte{
		"empty":     func(b []byte) []byte { return nil },
		"cut short": func(b []byte) []byte { return b[:len(b)-1] },
		"half":      func(b []byte) []byte { return b[:len(b)/2] },
		"longer":    func(b []byte) []byte { return append(b, 0) },
		"zeros":     func(b []byte) []byte { clear(b[len(b)/4 : len(b)/2]); return b },
		"start cut": func(b []byte) []byte { return b[8:] },
	}
	for _, at := range []int{0, 100, len(good) / 3, len(good) / 2, len(good) - footSize - 8*3 - 100,
		len(good) - footSize - 3, len(good) - footSize + 2, len(good) - footSize + 20,
		len(good) - 20, len(good) - 1} {
		damage[fmt.Sprintf("byte %d of %d", at,
			len(good))] = func(b []byte) []byte { b[at] ^= 0x10; return b }
	}
	for what, change := range damage {
		if err := os.WriteFile(file, change(slices.Clone(good)), 0o644); err != nil {
			t.Fatal(err)
		}
		p := pass(t, path, keep, nil)
		p.equal(t, what, want)
		if len(p.warnings) != 1 || !strings.HasPrefix(p.warnings[0], file+": ") ||
			!strings.HasSuffix(p.warnings[0], ": rows are encoded again") {
			t.Errorf("%s: %q", what, p.warnings)
		}
		if b, err := os.ReadFile(file); err == nil && string(b) != string(good) {
			t.Errorf("%s: the damaged file is still there", what)
		}
	}

	// Another set's file under this name; and a file that goes while it is read.
	pass(t, path, EncodeOptions{Keep: Keep{Dir: dir, Encoder: "others"}}, nil)
	for _, f := range keptFiles(t, dir) {
		if f != file {
			if err := os.Rename(f, file); err != nil {
				t.Fatal(err)
			}
		}
	}
	p := pass(t, path, keep, nil)
	p.equal(t, "foreign", want)
	if len(p.warnings) != 1 ||
		!strings.Contains(p.warnings[0], "holds other rows than its name says") {
		t.Errorf("foreign: %q", p.warnings)
	}
	p = pass(t, path, keep, func(*Set) {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	})
	p.equal(t, "cut while it is read", want)
	if len(p.warnings) != 1 {
		t.Errorf("cut while it is read: %q", p.warnings)
	}
}

// Two runs that keep the same rows at once do each other no harm.
func TestKeptRowsOfTwoRuns(t *testing.T) {
	path, dir := keptData(t, t.TempDir(), nil), t.TempDir()
	want := pass(t, path, EncodeOptions{}, nil)
	var wg sync.WaitGroup
	got := make([]passed, 4)
	for i := range got {
		wg.Go(
			func() {
				got[i] = pass(t, path, EncodeOptions{Keep: Keep{Dir: dir, Encoder: "bytes"}},
					nil)
			})
	}
	wg.Wait()
	for i, p := range got {
		p.equal(t, fmt.Sprint("run ", i), want)
		if len(p.warnings) > 0 {
			t.Errorf("run %d: %q", i, p.warnings)
		}
	}
	if files := keptFiles(t, dir); len(files) != 1 {
		t.Errorf("files %v", files)
	}
}

// A fault of any operation costs the file and not the rows; none leaves a part of one.
func TestKeptRowsSurviveFaults(t *testing.T) {
	t.Parallel()
	path := keptData(t, t.TempDir(), nil)
	want := pass(t, path, EncodeOptions{}, nil)
	for at := 1; ; at++ {
		if !hostile.InTurn(at, 0, 3) {
			continue
		}
		dir := filepath.Join(t.TempDir(), "cache")
		faults := vfstest.NewError(vfs.OS, at, true)
		p := pass(t, path, EncodeOptions{Keep: Keep{FS: faults, Dir: dir, Encoder: "bytes"}}, nil)
		p.equal(t, faults.Op(at), want)
		if faults.Faults() == 0 {
			if at < 8 {
				t.Errorf("only %d operations", at)
			}
			break
		}
		again := pass(t, path, EncodeOptions{Keep: Keep{Dir: dir, Encoder: "bytes"}}, nil)
		again.equal(t, "after "+faults.Op(at), want)
	}
	p := pass(t, path, EncodeOptions{
		Keep: Keep{FS: vfstest.NewBudget(vfs.OS, 1<<16), Dir: t.TempDir(), Encoder: "bytes"}}, nil)
	p.equal(t, "full disk", want)
	if len(p.warnings) != 1 || !strings.Contains(p.warnings[0], "are free, which is too little: name a folder on another disk with data.cache_dir, or none") {
		t.Errorf("full disk: %q", p.warnings)
	}
}

// The folder is bounded: the oldest files go, and what killed processes left.
func TestKeptRowsAreBounded(t *testing.T) {
	path, dir := keptData(t, t.TempDir(), nil), t.TempDir()
	keep := func(encoder string, most int64) passed {
		return pass(t, path, EncodeOptions{Keep: Keep{Dir: dir, Encoder: encoder, Most: most}}, nil)
	}
	keep("a", 0)
	first := keptFiles(t, dir)[0]
	info, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	size := info.Size()
	left, mine, young := first+".1-1.tmp", filepath.Join(dir, "my.rows"), first+".2-2.tmp"
	old := time.Now().Add(-48 * time.Hour)
	for _, name := range []string{left, mine, young} {
		if err := os.WriteFile(name, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{first, left, mine} {
		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
	}
	keep("b", 2*size+size/2)
	if n := len(keptFiles(t, dir)); n != 4 { // a, b, mine, young
		t.Errorf("%d files, want 4: %v", n, keptFiles(t, dir))
	}
	keep("c", 2*size+size/2)
	files := keptFiles(t, dir)
	if slices.Contains(files, first) || slices.Contains(files, left) ||
		!slices.Contains(files, mine) || !slices.Contains(files, young) || len(files) != 4 {
		t.Errorf("%v: the oldest, %s, should have gone", files, first)
	}
	p := keep("d", size/2)
	if len(p.warnings) != 1 || !strings.Contains(p.warnings[0], "raise that") ||
		len(keptFiles(t, dir)) != 4 {
		t.Errorf("too large: %q, files %v", p.warnings, keptFiles(t, dir))
	}
}

// A set whose rows are kept holds next to nothing for each of them, also after many were read.
func TestKeptRowsHoldNoMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	held := func(n int) (bytes int64) {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "{\"content\":%q,\"teacher_response\":%q}\n",
				fmt.Sprint("question ", i), strings.Repeat("answer ", 40))
		}
		path, dir := filepath.Join(t.TempDir(), "rows.jsonl"), t.TempDir()
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		b.Reset()
		keep := EncodeOptions{Keep: Keep{Dir: dir, Encoder: "bytes"}}
		all := func(int, Measure) bool { return true }
		cold := openTest(t, path)
		if err := cold.Encode(&counted{}, keep, all); err != nil {
			t.Fatal(err)
		}
		cold.Close()
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		s, enc := openTest(t, path), &counted{}
		if err := s.Encode(enc, keep, all); err != nil {
			t.Fatal(err)
		}
		for i := range 2000 {
			if _, err := s.Example(i*7919%n, enc, Limits{}); err != nil {
				t.Fatal(err)
			}
		}
		bytes = heap() - before
		if enc.calls.Load() != 0 {
			t.Errorf("%d rows encoded", enc.calls.Load())
		}
		return bytes
	}
	few, many := held(1000), held(30000)
	t.Logf("%d bytes for 1000 rows, %d for 30000", few, many)
	if many-few > 29000 {
		t.Errorf("%d bytes for 1000 rows, %d for 30000: more than one byte for each", few, many)
	}
}

// A build that no version names is told from another by its file: what it kept is not read
// by the next one, which may encode otherwise.
func TestKeptRowsAreOfThisBuild(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	before := program()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if again := program(); !slices.Equal(before, again) {
		t.Fatalf("%q and then %q", before, again)
	}
	later := info.ModTime().Add(-time.Hour)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Skipf("the test's own file cannot be touched: %v", err)
	}
	defer os.Chtimes(path, info.ModTime(), info.ModTime())
	if slices.Equal(before, program()) {
		t.Errorf("%q for both builds", before)
	}
}
