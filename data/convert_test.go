package data

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

var outSuffixes = []string{".arrow", ".arrows", ".stream", ".parquet", ".jsonl"}

func TestConvertThroughEveryFormat(t *testing.T) {
	for _, from := range []string{"rows.jsonl", "ids.jsonl"} {
		want := readAll(t, openTest(t, filepath.Join(fixtures, from)))
		digest := openTest(t, filepath.Join(fixtures, from)).Digest()
		dir := t.TempDir()
		path := filepath.Join(fixtures, from)
		for i, ext := range slices.Concat(outSuffixes,
			[]string{".arrow", ".jsonl", ".parquet", ".arrows"}) {
			out := filepath.Join(dir, fmt.Sprintf("step%d%s", i, ext))
			if err := Convert(openTest(t, path), out); err != nil {
				t.Fatal(err)
			}
			s := openTest(t, out)
			if got := readAll(t, s); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s -> %s: got %#v", path, out, got)
			}
			if s.Digest() != digest {
				t.Errorf("%s -> %s: digest changed", path, out)
			}
			path = out
		}
	}
}

// Batches and row groups must begin and end where they should.
func TestConvertManyRows(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.jsonl")
	var b strings.Builder
	const n = 2*outBatchRows + 7
	for i := range n {
		fmt.Fprintf(&b, `{"content":[{"role":"user","content":"question %d"}],"teacher_response":"answer %d","response":"r%d"}`+"\n", i, i, i%3)
	}
	writeTest(t, in, b.String())
	s := openTest(t, in)
	for _, ext := range outSuffixes {
		out := filepath.Join(dir, "out"+ext)
		if err := Convert(s, out); err != nil {
			t.Fatal(err)
		}
		o := openTest(t, out)
		if o.Len() != n || o.Digest() != s.Digest() {
			t.Errorf("%s: %d rows, want %d, or another digest", ext, o.Len(), n)
		}
		if !o.HasResponse() {
			t.Errorf("%s: the response column is lost", ext)
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, filepath.Join(fixtures, "rows.jsonl"))
	there := filepath.Join(dir, "there.arrow")
	writeTest(t, there, "old")
	if err := Convert(s, there); !errors.Is(err, ErrExists) {
		t.Errorf("existing file: %v", err)
	}
	if text, _ := os.ReadFile(there); string(text) != "old" {
		t.Error("existing file was touched")
	}
	if err := Convert(s, filepath.Join(dir, "out.csv")); err == nil ||
		!strings.Contains(err.Error(), "use .arrow") {
		t.Errorf("unknown suffix: %v", err)
	}
	if err := Convert(s, filepath.Join(dir, "no", "out.arrow")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
	onlyFiles(t, dir, "there.arrow")
}

// Every file operation that fails is reported, and nothing half-made stays
// under the file's name.
func TestConvertReportsEveryFault(t *testing.T) {
	s := openTest(t, filepath.Join(fixtures, "rows.jsonl"))
	for _, ext := range outSuffixes {
		for at := 0; ; at++ {
			dir := t.TempDir()
			out := filepath.Join(dir, "out"+ext)
			fsys := vfstest.NewError(vfs.OS, at, false)
			err := writeRows(fsys, s, nil, out)
			if fsys.Faults() == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if at < 5 {
					t.Errorf("%s: only %d operations", ext, at)
				}
				break
			}
			if err == nil {
				t.Errorf("%s: operation %d (%s) failed and was not reported", ext, at, fsys.Op(at))
			}
			if o, err := Open(out, DefaultColumns()); err == nil {
				if o.Digest() != s.Digest() {
					t.Errorf("%s: operation %d: a damaged file is there", ext, at)
				}
				o.Close()
			}
		}
	}
}

func TestConvertSurvivesPowerLoss(t *testing.T) {
	s := openTest(t, filepath.Join(fixtures, "rows.jsonl"))
	disk := vfstest.NewCrash()
	if err := disk.Mkdir("/d"); err != nil {
		t.Fatal(err)
	}
	if err := disk.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	if err := writeRows(disk, s, nil, "/d/out.jsonl"); err != nil {
		t.Fatal(err)
	}
	want, err := disk.ReadFile("/d/out.jsonl")
	if err != nil || len(want) == 0 {
		t.Fatal(err)
	}
	got, err := disk.CrashClone(0, 1).ReadFile("/d/out.jsonl")
	if err != nil || string(got) != string(want) {
		t.Errorf("after the loss of all that was not synced: %d bytes of %d, %v", len(got),
			len(want), err)
	}
}

func TestSplit(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.jsonl")
	var b strings.Builder
	for i := range 400 {
		fmt.Fprintf(&b, `{"content":"question %d","teacher_response":"answer %d"}`+"\n", i%300, i)
	}
	writeTest(t, in, b.String())
	s := openTest(t, in)
	outA, outB := filepath.Join(dir, "a.arrow"), filepath.Join(dir, "b.jsonl")
	nA, nB, err := Split(s, 0.1, 3, outA, outB)
	if err != nil {
		t.Fatal(err)
	}
	if nA+nB != 400 || math.Abs(float64(nA)-40) > 1 {
		t.Errorf("%d and %d rows, want 40 and 360", nA, nB)
	}
	prompts := map[string]bool{}
	answers := map[string]bool{}
	for _, r := range readAll(t, openTest(t, outA)) {
		prompts[r.Messages[0].Content] = true
		answers[r.Teacher] = true
	}
	for _, r := range readAll(t, openTest(t, outB)) {
		if prompts[r.Messages[0].Content] {
			t.Errorf("prompt %q is on both sides", r.Messages[0].Content)
		}
		answers[r.Teacher] = true
	}
	if len(answers) != 400 {
		t.Errorf("%d different answers of 400 arrived", len(answers))
	}

	// the same seed gives the same split, another seed another
	digest := openTest(t, outA).Digest()
	for seed, same := range map[uint64]bool{3: true, 4: false} {
		a := filepath.Join(dir, fmt.Sprintf("a%d.jsonl", seed))
		if _, _, err := Split(s, 0.1, seed, a,
			filepath.Join(dir, fmt.Sprintf("b%d.jsonl", seed))); err != nil {
			t.Fatal(err)
		}
		if got := openTest(t, a).Digest() == digest; got != same {
			t.Errorf("seed %d: same split %v, want %v", seed, got, same)
		}
	}

	for _, f := range []float64{0, 1, -1, math.NaN()} {
		if _, _, err := Split(s, f, 1, filepath.Join(dir, "x.jsonl"),
			filepath.Join(dir, "y.jsonl")); err == nil {
			t.Errorf("fraction %v was taken", f)
		}
	}
	if _, _, err := Split(s, 0.5, 1, outA, filepath.Join(dir, "y.jsonl")); !errors.Is(err,
		ErrExists) {
		t.Errorf("existing output: %v", err)
	}
	one := filepath.Join(dir, "one.jsonl")
	writeTest(t, one, `{"content":"q","teacher_response":"a"}`)
	if _, _, err := Split(openTest(t, one), 0.5, 1, filepath.Join(dir, "x.jsonl"),
		filepath.Join(dir, "y.jsonl")); err == nil ||
		!strings.Contains(err.Error(), "one side would be empty") {
		t.Errorf("one prompt: %v", err)
	}
}

func writeTest(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func onlyFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("folder holds %q, want %q", got, want)
	}
}
