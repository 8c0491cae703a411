package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

var update = flag.Bool("update", false, "write the golden checkpoint of this format anew")

// content is what the tests commit as a step: files in folders and beside them.
func content(step int) map[string]string {
	return map[string]string{
		"actor/config.json":       fmt.Sprintf(`{"step":%d}`, step),
		"actor/model.safetensors": strings.Repeat(fmt.Sprintf("weights of %d ", step), 40),
		"actor/deep/er/file":      fmt.Sprintf("deep %d", step),
		"optimizer.safetensors":   strings.Repeat(fmt.Sprint(step), 100),
	}
}

// fill writes content(step), in two writes a file.
func fill(step int) func(*Dir) error {
	return func(d *Dir) error {
		for _, name := range []string{"actor/config.json", "actor/model.safetensors",
			"actor/deep/er/file", "optimizer.safetensors"} {
			text := content(step)[name]
			w, err := d.Create(name)
			if err != nil {
				return err
			}
			_, err = io.WriteString(w, text[:len(text)/2])
			if err == nil {
				_, err = io.WriteString(w, text[len(text)/2:])
			}
			if err := cmp.Or(err, w.Close()); err != nil {
				return err
			}
		}
		return nil
	}
}

// holds says whether a folder holds exactly these files, apart from a manifest.
func holds(fsys vfs.FS, dir string, want map[string]string) error {
	seen := 0
	var walk func(below string) error
	walk = func(below string) error {
		list, err := fsys.ReadDir(filepath.Join(dir, below))
		if err != nil {
			return err
		}
		for _, e := range list {
			name := path.Join(below, e.Name())
			if e.IsDir() {
				if err := walk(name); err != nil {
					return err
				}
				continue
			}
			if name == manifestName {
				continue
			}
			b, err := fsys.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			text, ok := want[name]
			if !ok || text != string(b) {
				return fmt.Errorf("%s: file %q has %d bytes, not its own", dir, name, len(b))
			}
			seen++
		}
		return nil
	}
	if err := walk("."); err != nil {
		return err
	}
	if seen != len(want) {
		return fmt.Errorf("%s: %d files of %d", dir, seen, len(want))
	}
	return nil
}

func commitSteps(t testing.TB, fsys vfs.FS, run string, steps ...int) {
	t.Helper()
	for _, s := range steps {
		if err := Commit(fsys, run, s, fill(s)); err != nil {
			t.Fatal(err)
		}
	}
}

// overwrite replaces a file's bytes in place.
func overwrite(t testing.TB, fsys vfs.FS, path string, data []byte) {
	t.Helper()
	f, err := fsys.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// systems runs a test on the real file system and on the one in memory.
func systems(t *testing.T, f func(t *testing.T, fsys vfs.FS, run string)) {
	t.Run("OS", func(t *testing.T) { f(t, vfs.OS, filepath.Join(t.TempDir(), "runs", "r")) })
	t.Run("memory", func(t *testing.T) { f(t, vfstest.NewCrash(), "/runs/r") })
}

func TestCommitLatestPrune(t *testing.T) {
	systems(t, func(t *testing.T, fsys vfs.FS, run string) {
		if _, _, _, err := Latest(fsys, run); !errors.Is(err, ErrNone) {
			t.Errorf("a run that is not there: %v", err)
		}
		if err := Clean(fsys, run); err != nil {
			t.Errorf("Clean of a run that is not there: %v", err)
		}
		commitSteps(t, fsys, run, 2, 4, 9, 10, 11)
		step, dir, warnings, err := Latest(fsys, run)
		if step != 11 || dir != filepath.Join(run, "global_step_11") || len(warnings) != 0 ||
			err != nil {
			t.Fatalf("Latest: %d %q %v %v", step, dir, warnings, err)
		}
		if err := holds(fsys, dir, content(11)); err != nil {
			t.Error(err)
		}
		if b, err := fsys.ReadFile(filepath.Join(run, trackerName)); string(b) != "11" ||
			err != nil {
			t.Errorf("tracker %q, %v", b, err)
		}
		if err := Prune(fsys, run, 2, func(s int) bool { return s == 4 }, nil); err != nil {
			t.Fatal(err)
		}
		if steps, err := Steps(fsys, run); fmt.Sprint(steps) != "[4 10 11]" || err != nil {
			t.Errorf("after Prune: %v %v", steps, err)
		}
		if err := Prune(fsys, run, 0, nil, nil); err != nil {
			t.Fatal(err)
		}
		if steps, err := Steps(fsys, run); fmt.Sprint(steps) != "[11]" || err != nil {
			t.Errorf("Prune to nothing must keep the newest: %v %v", steps, err)
		}
		list, err := fsys.ReadDir(run)
		if err != nil || len(list) != 2 {
			t.Errorf("the run folder holds %v, %v", list, err)
		}
		if err := Prune(fsys, run, -1, nil, nil); err == nil {
			t.Error("Prune accepted -1")
		}
		if err := Commit(fsys, run, -1, fill(1)); err == nil {
			t.Error("Commit accepted step -1")
		}
	})
}

// A step that is there stays: the same bytes are no error, others are.
func TestCommitAgain(t *testing.T) {
	systems(t, func(t *testing.T, fsys vfs.FS, run string) {
		commitSteps(t, fsys, run, 1, 2)
		if err := Commit(fsys, run, 2, fill(2)); err != nil {
			t.Errorf("the same again: %v", err)
		}
		if err := Commit(fsys, run, 2, fill(3)); !errors.Is(err, ErrExists) ||
			!strings.Contains(err.Error(), "global_step_2") {
			t.Errorf("others: %v", err)
		}
		dir := stepDir(run, 2)
		if err := errors.Join(Verify(fsys, dir), holds(fsys, dir, content(2))); err != nil {
			t.Error(err)
		}
		// A broken one is replaced.
		overwrite(t, fsys, filepath.Join(dir, "optimizer.safetensors"), []byte("rot"))
		if err := Commit(fsys, run, 2, fill(2)); err != nil {
			t.Errorf("over a broken one: %v", err)
		}
		if err := errors.Join(Verify(fsys, dir), holds(fsys, dir, content(2))); err != nil {
			t.Error(err)
		}
		if list, err := fsys.ReadDir(run); err != nil || len(list) != 3 {
			t.Errorf("the run folder holds %v, %v", list, err)
		}
	})
}

func TestCommitRefuses(t *testing.T) {
	for _, c := range []struct {
		name, want string
		fill       func(*Dir) error
	}{
		{"fill's error", "mine", func(*Dir) error { return errors.New("mine") }},
		{"a file left open", "not closed",
			func(d *Dir) error { _, err := d.Create("a"); return err }},
		{"a file twice", "created twice", func(d *Dir) error {
			return errors.Join(d.WriteFile("a", nil), d.WriteFile("a", nil))
		}},
		{"an error that fill ignores", "not a path below",
			func(d *Dir) error { _, _ = d.Create("../a"); return nil }},
		{"a file that is a folder", "a", func(d *Dir) error {
			return errors.Join(d.WriteFile("a/b", nil), d.WriteFile("a", nil))
		}},
		{"a folder that is a file", "a/b", func(d *Dir) error {
			return errors.Join(d.WriteFile("a", nil), d.WriteFile("a/b", nil))
		}},
	} {
		systems(t, func(t *testing.T, fsys vfs.FS, run string) {
			err := Commit(fsys, run, 1, c.fill)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
			if list, err := fsys.ReadDir(run); err != nil || len(list) != 0 {
				t.Errorf("%s: the run folder holds %v, %v", c.name, list, err)
			}
		})
	}
}

// Names that leave the checkpoint, or that another system reads otherwise, are
// refused before anything is opened.
func TestNames(t *testing.T) {
	run := filepath.Join(t.TempDir(), "r")
	for _, name := range []string{"", ".", "..", "../a", "a/../../b", "a/..", "/a", "a/", "a//b", "./a", `..\a`, `a\b`, "C:a", "a\x00b", "a\nb", "a\xff", "manifest.json"} {
		err := Commit(vfs.OS, run, 1, func(d *Dir) error { return d.WriteFile(name, []byte("x")) })
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("file %q", name)) {
			t.Errorf("%q: %v", name, err)
		}
		text := bytes.ReplaceAll(encodeManifest([]fileEntry{{"NAME", 1, strings.Repeat("0", 64)}}), []byte(`"NAME"`), mustJSON(name))
		if _, err := parseManifest(text); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q in a manifest: %v", name, err)
		}
	}
	if list, err := os.ReadDir(filepath.Dir(run)); err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
	for _, name := range []string{"a", "a b/ü.json", "actor/manifest.json", ".hidden", "..a"} {
		if err := checkName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func mustJSON(s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err)
	}
	return bytes.TrimSpace(b.Bytes())
}

// WriteFolder refuses what is there, and what is not finished.
func TestWriteFolder(t *testing.T) {
	systems(t, func(t *testing.T, fsys vfs.FS, run string) {
		out := filepath.Join(run, "model")
		if err := WriteFolder(fsys, out,
			func(d *Dir) error { _, err := d.Create("a"); return err }); err == nil ||
			!strings.Contains(err.Error(), "not closed") {
			t.Errorf("a file left open: %v", err)
		}
		if list, err := fsys.ReadDir(run); err != nil || len(list) != 0 {
			t.Errorf("after a failure: %v %v", list, err)
		}
		if err := cmp.Or(WriteFolder(fsys, out, fill(1)),
			holds(fsys, out, content(1))); err != nil {
			t.Error(err)
		}
		if err := WriteFolder(fsys, out, fill(1)); !errors.Is(err, ErrExists) {
			t.Errorf("over a folder: %v", err)
		}
	})
}

// Several goroutines write files of one checkpoint.
func TestConcurrentFiles(t *testing.T) {
	run := t.TempDir()
	want := map[string]string{"empty": ""}
	for i := range 20 {
		want[fmt.Sprintf("d%d/f%d", i%4, i)] = strings.Repeat(fmt.Sprint(i), 5000)
	}
	err := Commit(vfs.OS, run, 1, func(d *Dir) error {
		var wg sync.WaitGroup
		errs := make(chan error, len(want))
		for name, text := range want {
			wg.Go(func() { errs <- d.WriteFile(name, []byte(text)) })
		}
		wg.Wait()
		close(errs)
		var all error
		for err := range errs {
			all = errors.Join(all, err)
		}
		return all
	})
	if err := errors.Join(err, Verify(vfs.OS, stepDir(run, 1)),
		holds(vfs.OS, stepDir(run, 1), want)); err != nil {
		t.Error(err)
	}
}

// An older checkpoint is used with a warning; never one that does not verify.
func TestLatestGoesBack(t *testing.T) {
	fsys := vfstest.NewCrash()
	commitSteps(t, fsys, "/r", 1, 2, 3)
	overwrite(t, fsys, "/r/global_step_3/actor/config.json", []byte(`{"step":4}`))
	step, _, warnings, err := Latest(fsys, "/r")
	if step != 2 || len(warnings) != 1 || !strings.Contains(warnings[0], "global_step_3") ||
		err != nil {
		t.Errorf("%d %q %v", step, warnings, err)
	}
	// The damaged one is not one of those that Prune keeps: 2 is, and stays.
	if err := Prune(fsys, "/r", 1, nil, nil); err != nil {
		t.Fatal(err)
	}
	if steps, _ := Steps(fsys, "/r"); fmt.Sprint(steps) != "[2 3]" {
		t.Errorf("after Prune: %v", steps)
	}
	if err := fsys.RemoveAll("/r/global_step_3"); err != nil {
		t.Fatal(err)
	}
	step, _, warnings, err = Latest(fsys, "/r")
	if step != 2 || len(warnings) != 1 ||
		!strings.Contains(warnings[0], "step 3, whose folder is missing") || err != nil {
		t.Errorf("%d %q %v", step, warnings, err)
	}
	overwrite(t, fsys, "/r/global_step_2/actor/deep/er/file", []byte("x"))
	if _, _, _, err = Latest(fsys, "/r"); !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNone) {
		t.Errorf("none verifies: %v", err)
	}
	if err := Prune(fsys, "/r", 0, nil, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Prune with none that verifies: %v", err)
	}
	if steps, _ := Steps(fsys, "/r"); fmt.Sprint(steps) != "[2]" {
		t.Errorf("Prune removed: %v", steps)
	}
	if err := fsys.RemoveAll("/r/global_step_2"); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err = Latest(fsys, "/r"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a tracker and no checkpoint: %v", err)
	}
	overwrite(t, fsys, "/r/"+trackerName, []byte("not a number"))
	if _, _, _, err = Latest(fsys, "/r"); !errors.Is(err, ErrNone) {
		t.Errorf("nothing: %v", err)
	}
}

// Names that look like a step and are none.
func TestStepsIgnores(t *testing.T) {
	run := t.TempDir()
	for _, name := range []string{"global_step_01", "global_step_+1", "global_step_-1",
		"global_step_", "global_step_1x", "Global_step_1", "global_step_99999999999999999999",
		"global_step_0"} {
		if err := os.Mkdir(filepath.Join(run, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(run, "global_step_5"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("global_step_0", filepath.Join(run, "global_step_6")); err != nil {
		t.Log(err)
	}
	if steps, err := Steps(vfs.OS, run); fmt.Sprint(steps) != "[0]" || err != nil {
		t.Errorf("%v %v", steps, err)
	}
}

// Every flipped byte of every file of a checkpoint is seen, the manifest's too;
// so is every file cut by a byte, longer by one, missing, added, or swapped for
// something that is not a file.
func TestVerifySeesEveryChange(t *testing.T) {
	fsys := vfstest.NewCrash()
	commitSteps(t, fsys, "/r", 7)
	dir := "/r/global_step_7"
	if err := Verify(fsys, dir); err != nil {
		t.Fatal(err)
	}
	names := []string{manifestName}
	for name := range content(7) {
		names = append(names, name)
	}
	tried, seen := 0, 0
	see := func(what string) {
		t.Helper()
		tried++
		if err := Verify(fsys, dir); err == nil {
			t.Errorf("%s: not seen", what)
		} else {
			seen++
			if !strings.HasPrefix(err.Error(), "checkpoint: "+dir) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: message %q", what, err)
			}
		}
	}
	for _, name := range names {
		p := path.Join(dir, name)
		good, err := fsys.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for i := range good {
			for _, flip := range []byte{1 << (i % 8), 0x20, 0xff} { // 0x20: the other case
				b := bytes.Clone(good)
				b[i] ^= flip
				overwrite(t, fsys, p, b)
				see(fmt.Sprintf("%s: byte %d ^ %02x", name, i, flip))
			}
		}
		if len(good) > 0 {
			overwrite(t, fsys, p, good[:len(good)-1])
			see(name + " cut")
		}
		overwrite(t, fsys, p, append(bytes.Clone(good), '\n'))
		see(name + " longer")
		if err := fsys.Remove(p); err != nil {
			t.Fatal(err)
		}
		see(name + " missing")
		if err := fsys.Mkdir(p); err != nil {
			t.Fatal(err)
		}
		see(name + " a folder")
		if err := fsys.Remove(p); err != nil {
			t.Fatal(err)
		}
		overwrite(t, fsys, p, good)
		if err := Verify(fsys, dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, extra := range []string{"x", "actor/x", "actor/deep/manifest.json"} {
		overwrite(t, fsys, path.Join(dir, extra), nil)
		see("extra file " + extra)
		if err := fsys.Remove(path.Join(dir, extra)); err != nil {
			t.Fatal(err)
		}
	}
	if err := fsys.Mkdir(dir + "/folder"); err != nil {
		t.Fatal(err)
	}
	see("extra folder")
	t.Logf("row 12: checkpoint: %d of %d changes of a byte, a length or a name detected", seen,
		tried)
}

// Links, devices and FIFOs in a checkpoint are refused, and none is opened.
func TestVerifyRefusesLinks(t *testing.T) {
	for _, c := range []struct{ name, file, target string }{
		{"link to the same bytes", "actor/config.json", "outside"},
		{"device", "optimizer.safetensors", "/dev/zero"},
		{"manifest a link", "manifest.json", "outside"},
		{"folder a link", "actor", "outside"},
	} {
		run := t.TempDir()
		commitSteps(t, vfs.OS, run, 1)
		p := filepath.Join(stepDir(run, 1), c.file)
		to := c.target
		if to == "outside" {
			to = filepath.Join(t.TempDir(), "moved")
			if err := os.Rename(p, to); err != nil {
				t.Fatal(err)
			}
		} else if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, p); err != nil {
			t.Skip(err)
		}
		if err := Verify(vfs.OS, stepDir(run, 1)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestManifestRefuses(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	good := encodeManifest([]fileEntry{{"b", 2, sum}, {"a", 1, sum}})
	if files, err := parseManifest(good); err != nil || len(files) != 2 || files[0].Name != "a" {
		t.Fatalf("%v %v", files, err)
	}
	replace := func(old, new string) []byte {
		if !bytes.Contains(good, []byte(old)) {
			t.Fatalf("%q is not in the manifest", old)
		}
		return bytes.Replace(good, []byte(old), []byte(new), 1)
	}
	for _, c := range []struct {
		name, want string
		text       []byte
	}{
		{"empty", "not a manifest", nil},
		{"null", "not a manifest", []byte("null")},
		{"cut short", "not a manifest", good[:len(good)-3]},
		{"no version", "not a manifest", []byte(`{"files":[]}`)},
		{"version 0", "does not exist", replace(`_version": 1`, `_version": 0`)},
		{"version of the future", "format 2 was written by a newer version", replace(`_version": 1`, `_version": 2`)},
		{"key twice", "changed after", replace(`"size": 1`, `"size": 3, "size": 1`)},
		{"key in another case", "changed after", replace(`"size": 1`, `"Size": 1`)},
		{"unknown key", "changed after", replace(`"size": 1`, `"x": 0, "size": 1`)},
		{"digest in capitals", "64 lower-case", replace("ab", "AB")},
		{"digest short", "64 lower-case", replace("abab", "ab")},
		{"digest not hexadecimal", "64 lower-case", replace("ab", "xy")},
		{"negative size", "size -1", replace(`"size": 1`, `"size": -1`)},
		{"size 2^64", "not a manifest", replace(`"size": 1`, `"size": 18446744073709551616`)},
		{"file twice", "listed twice", replace(`"b"`, `"a"`)},
		{"out of order", "out of order", replace(`"b"`, `"A"`)},
		{"path out", "not a path below", replace(`"a"`, `"../a"`)},
		{"bytes after", "not a manifest", append(bytes.Clone(good), "{}"...)},
		{"too large", "more than", bytes.Repeat([]byte(" "), maxManifest+1)},
	} {
		_, err := parseManifest(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if future := c.name == "version of the future"; errors.Is(err, ErrCorrupt) == future {
			t.Errorf("%s: %v: ErrCorrupt is wrong", c.name, err)
		}
	}
	// A checkpoint of a newer version is no reason to go back to an older one.
	fsys := vfstest.NewCrash()
	commitSteps(t, fsys, "/r", 1, 2)
	p := "/r/global_step_2/" + manifestName
	b, err := fsys.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, fsys, p, bytes.Replace(b, []byte(`version": 1`), []byte(`version": 9`), 1))
	if step, _, _, err := Latest(fsys, "/r"); err == nil ||
		!strings.Contains(err.Error(), "upgrade") || errors.Is(err, ErrCorrupt) {
		t.Errorf("Latest: %d, %v", step, err)
	}
}

func FuzzManifest(f *testing.F) {
	sum := strings.Repeat("ab", 32)
	f.Add(encodeManifest([]fileEntry{{"b", 2, sum}, {"a/c", 1, sum}}))
	f.Add(encodeManifest(nil))
	f.Add([]byte(`{"format_version":2,"files":[{"name":"../x","size":-1,"sha256":""}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		files, err := parseManifest(b)
		if err != nil {
			return
		}
		if !bytes.Equal(encodeManifest(files), b) {
			t.Fatal("accepted in a second spelling")
		}
		for _, e := range files {
			if !filepath.IsLocal(e.Name) || e.Size < 0 || len(e.SHA256) != 64 {
				t.Fatalf("accepted %+v", e)
			}
		}
	})
}

// Row 12: a damaged manifest is refused, each prefix and each flipped bit too.
func TestHostileFormats(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	dir := t.TempDir()
	hostile.Format{
		Name:   "manifest",
		Small:  encodeManifest([]fileEntry{{"b", 2, sum}, {"a/c", 1, sum}}),
		Whole:  true,
		Seeds:  [][]byte{encodeManifest(nil)},
		Words:  []string{`{`, `}`, `[`, `]`, `"`, `,`, "null", `"format_version": 2`, `"../x"`, `"size": -1`, "\n"},
		Prefix: "checkpoint: ",
		Read: func(text []byte) error {
			if err := os.WriteFile(filepath.Join(dir, manifestName), text, 0o666); err != nil {
				return err
			}
			files, err := readManifest(vfs.OS, dir)
			if err == nil && !bytes.Equal(encodeManifest(files), text) {
				t.Errorf("accepted in a second spelling: %q", text)
			}
			return err
		},
	}.Try(t)
}

// A manifest full of files costs a bounded multiple of itself.
func TestManifestMemory(t *testing.T) {
	text := []byte(`{"format_version":1,"files":[` + strings.Repeat("{},", 170_000) + `{}]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := parseManifest(text)
	runtime.ReadMemStats(&after)
	used := after.TotalAlloc - before.TotalAlloc
	if err == nil || used > 64<<20 {
		t.Errorf("%v, %d bytes allocated for %d", err, used, len(text))
	}
	t.Logf("a hostile manifest of %d bytes allocates %d in all", len(text), used)
}

// Checkpoints of every format that was ever released stay readable.
func TestReleasedFormats(t *testing.T) {
	if *update {
		run := filepath.Join("testdata", fmt.Sprintf("format%d", formatVersion))
		if err := os.RemoveAll(run); err != nil {
			t.Fatal(err)
		}
		commitSteps(t, vfs.OS, run, 7)
	}
	for v := 1; v <= formatVersion; v++ {
		run := filepath.Join("testdata", fmt.Sprintf("format%d", v))
		step, dir, warnings, err := Latest(vfs.OS, run)
		if step != 7 || len(warnings) != 0 || err != nil {
			t.Errorf("format %d: %d %v %v", v, step, warnings, err)
			continue
		}
		if err := holds(vfs.OS, dir, content(7)); err != nil {
			t.Error(err)
		}
	}
	t.Logf("row 17: checkpoints of formats 1 to %d are read; format %d is refused in TestManifestRefuses", formatVersion, formatVersion+1)
}

func TestExport(t *testing.T) {
	systems(t, func(t *testing.T, fsys vfs.FS, run string) {
		commitSteps(t, fsys, run, 5)
		src := stepDir(run, 5)
		out := filepath.Join(filepath.Dir(run), "out", "whole")
		if err := Export(fsys, src, out); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(Verify(fsys, out), holds(fsys, out, content(5))); err != nil {
			t.Error(err)
		}
		part := filepath.Join(filepath.Dir(run), "out", "actor")
		if err := Export(fsys, filepath.Join(src, "actor"), part); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for name, text := range content(5) {
			if below, ok := strings.CutPrefix(name, "actor/"); ok {
				want[below] = text
			}
		}
		if err := holds(fsys, part, want); err != nil {
			t.Error(err)
		}
		if _, err := fsys.Stat(filepath.Join(part, manifestName)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a model folder got a manifest: %v", err)
		}
		if list, err := fsys.ReadDir(filepath.Dir(out)); err != nil || len(list) != 2 {
			t.Errorf("beside the exports: %v %v", list, err)
		}
		if err := Export(fsys, src, out); !errors.Is(err, ErrExists) {
			t.Errorf("over an export: %v", err)
		}
		for _, src := range []string{run, filepath.Join(src, "no"), filepath.Join(run, "no"),
			filepath.Join(src, "actor", "deep")} {
			to := filepath.Join(filepath.Dir(run), "bad")
			if err := Export(fsys, src, to); err == nil {
				t.Errorf("exported %s", src)
			}
			if _, err := fsys.Stat(to); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the target is there", src)
			}
		}
		overwrite(t, fsys, filepath.Join(src, "actor", "config.json"), []byte(`{"step":6}`))
		for _, s := range []string{src, filepath.Join(src, "actor")} {
			to := filepath.Join(filepath.Dir(run), "bad")
			if err := Export(fsys, s, to); !errors.Is(err, ErrCorrupt) {
				t.Errorf("a broken checkpoint: %v", err)
			}
			if _, err := fsys.Stat(to); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the target is there", src)
			}
		}
	})
}

func TestCheckSpace(t *testing.T) {
	b := vfstest.NewBudget(vfstest.NewCrash(), 1000)
	if err := CheckSpace(b, "/r/new", 1000); err != nil {
		t.Error(err)
	}
	err := CheckSpace(b, "/r/new", 1001)
	if !errors.Is(err, ErrSpace) {
		t.Fatal(err)
	}
	for _, part := range []string{"/r/new", "1001 bytes needed", "1000 free"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
	if err := CheckSpace(vfs.OS, filepath.Join(t.TempDir(), "a", "b"), 1<<62); !errors.Is(err,
		ErrSpace) {
		t.Errorf("4 EiB on a real disk: %v", err)
	}
	if err := CheckSpace(vfs.OS, t.TempDir(), 1); err != nil {
		t.Error(err)
	}
}

// The speed of a commit and of a verification: SHA-256 and the disk.
func BenchmarkCommitVerify(b *testing.B) {
	data := make([]byte, 64<<20)
	run := b.TempDir()
	b.Run("Commit", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if err := os.RemoveAll(run); err != nil {
				b.Fatal(err)
			}
			if err := Commit(vfs.OS, run, 1,
				func(d *Dir) error { return d.WriteFile("f", data) }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Verify", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if err := Verify(vfs.OS, stepDir(run, 1)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Prune counts checkpoints that verify, reads none that this process committed,
// and each other one once.
func TestPruneCountsWhatVerifies(t *testing.T) {
	fsys := vfstest.NewCrash()
	commitSteps(t, fsys, "/r", 1, 2, 3, 4, 5)
	overwrite(t, fsys, "/r/global_step_4/actor/config.json", []byte(`{"step":9}`))
	good := map[int]bool{5: true}
	counted := vfstest.NewError(fsys, -1, false)
	if err := Prune(counted, "/r", 2, nil, good); err != nil {
		t.Fatal(err)
	}
	// 5 and 3 are the two that verify; 4 is between them and waits for its turn.
	if steps, _ := Steps(fsys, "/r"); fmt.Sprint(steps) != "[3 4 5]" {
		t.Errorf("kept %v", steps)
	}
	if !good[3] || !good[5] || good[4] || len(good) != 2 {
		t.Errorf("known to verify: %v", good)
	}
	for i := range counted.Ops() {
		if op := counted.Op(i); strings.HasPrefix(op, "open /r/global_step_5/") {
			t.Errorf("read again: %s", op)
		}
	}
	commitSteps(t, fsys, "/r", 6)
	good[6] = true
	counted = vfstest.NewError(fsys, -1, false)
	if err := Prune(counted, "/r", 2, nil, good); err != nil {
		t.Fatal(err)
	}
	for i := range counted.Ops() {
		if op := counted.Op(i); strings.HasPrefix(op, "open ") {
			t.Errorf("known checkpoints are read: %s", op)
		}
	}
	if steps, _ := Steps(fsys, "/r"); fmt.Sprint(steps) != "[5 6]" {
		t.Errorf("kept %v", steps)
	}
}

// A prune that ends early has removed the oldest: what is left are the newest checkpoints, without
// a gap.
func TestPruneRemovesTheOldestFirst(t *testing.T) {
	for at, left := 0, 0; left != 1; at++ {
		fsys := vfstest.NewCrash()
		commitSteps(t, fsys, "/r", 1, 2, 3, 4, 5)
		err := Prune(vfstest.NewError(fsys, at, true), "/r", 1, nil, map[int]bool{5: true})
		steps, listErr := Steps(fsys, "/r")
		if listErr != nil {
			t.Fatal(listErr)
		}
		if left = len(steps); left == 0 || steps[0] != 6-left || steps[left-1] != 5 {
			t.Errorf("stopped before operation %d (%v), it leaves %v", at, err, steps)
			return
		}
	}
}

// The tracker names a checkpoint that verifies once a run has been gone on with,
// whatever happened to the one that it named: damage, removal, a garbled tracker.
func TestRecover(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(c *vfstest.CrashFS)
		step int
		warn string
	}{
		"nothing":        {func(*vfstest.CrashFS) {}, 3, ""},
		"a flipped byte": {func(c *vfstest.CrashFS) { overwrite(t, c, "/r/global_step_3/actor/config.json", []byte(`{"step":4}`)) }, 2, "global_step_3"},
		"a file is gone": {
			func(c *vfstest.CrashFS) { _ = c.Remove("/r/global_step_3/actor/config.json") }, 2,
			"corrupt checkpoint: missing"},
		"the folder is gone": {func(c *vfstest.CrashFS) { _ = c.RemoveAll("/r/global_step_3") }, 2,
			"step 3, whose folder is missing"},
		"no tracker": {func(c *vfstest.CrashFS) { _ = c.Remove("/r/" + trackerName) }, 3,
			""},
		"a garbled tracker": {
			func(c *vfstest.CrashFS) { overwrite(t, c, "/r/"+trackerName, []byte("1e3")) }, 3, ""},
		"an older tracker": {
			func(c *vfstest.CrashFS) { overwrite(t, c, "/r/"+trackerName, []byte("1")) }, 3, ""},
	} {
		fsys := vfstest.NewCrash()
		commitSteps(t, fsys, "/r", 1, 2, 3)
		c.harm(fsys)
		if err := fsys.MkdirAll("/r/" + commitPrefix + "global_step_4"); err != nil {
			t.Fatal(err)
		}
		step, dir, warnings, err := Recover(fsys, "/r")
		if step != c.step || dir != stepDir("/r", c.step) || err != nil || len(warnings) > 1 ||
			(len(warnings) == 1) != (c.warn != "") ||
			!strings.Contains(strings.Join(warnings, ""), c.warn) {
			t.Errorf("%s: step %d, %q, %v", name, step, warnings, err)
		}
		if b, err := fsys.ReadFile("/r/" + trackerName); string(b) != fmt.Sprint(c.step) ||
			err != nil {
			t.Errorf("%s: the tracker says %q, %v", name, b, err)
		}
		if _, err := fsys.Stat("/r/" + commitPrefix + "global_step_4"); !errors.Is(err,
			fs.ErrNotExist) {
			t.Errorf("%s: what a kill left is still there: %v", name, err)
		}
		// A loss of power right after takes nothing of that back.
		if b, err := fsys.CrashClone(0,
			1).ReadFile("/r/" + trackerName); string(b) != fmt.Sprint(c.step) || err != nil {
			t.Errorf("%s: after a loss of power the tracker says %q, %v", name, b, err)
		}
	}
}
