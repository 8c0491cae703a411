package journal_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gad/internal/journal"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, err := journal.Open(path, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := j.Append(fmt.Sprint(i), map[string]any{"text": "a\nb<>", "i": i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Append("3", "another"); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(whole); cut >= 0; cut-- { // a kill at any byte
		if err := os.WriteFile(path, whole[:cut], 0o666); err != nil {
			t.Fatal(err)
		}
		j, err := journal.Open(path, journal.Options{})
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		want := strings.Count(string(whole[:cut]), "\n")
		if j.Len() != want {
			t.Fatalf("cut at %d: %d records, want %d", cut, j.Len(), want)
		}
		if r, ok := j.Lookup("3"); ok != (want > 3) || ok && string(r) != `{"i":3,"text":"a\nb<>"}` {
			t.Fatalf("cut at %d: record 3 is %s", cut, r)
		}
		if err := errors.Join(j.Append("new", 1), j.Close()); err != nil {
			t.Fatal(err)
		}
		if now, _ := os.ReadFile(path); !strings.HasSuffix("\n"+string(now),
			"\n{\"key\":\"new\",\"record\":1}\n") {
			t.Fatalf("cut at %d: ends with %q", cut, now[max(0, len(now)-60):])
		}
	}
	// also the first line: the others have been paid for
	for _, damaged := range []string{"2", "0"} {
		if err := os.WriteFile(path, []byte(strings.Replace(string(whole), `"key":"`+damaged, `"key:"`+damaged, 1)), 0o666); err != nil {
			t.Fatal(err)
		}
		for _, dropped := range []int{1, 0} {
			j, err := journal.Open(path, journal.Options{})
			if err != nil || j.Len() != 9 || j.DroppedLines() != dropped {
				t.Fatalf("a damaged line: %v", err)
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// what a loss of power may leave of a first line
	if err := os.WriteFile(path, make([]byte, 4096), 0o666); err != nil {
		t.Fatal(err)
	}
	if j, err := journal.Open(path, journal.Options{}); err != nil || j.Len() != 0 {
		t.Errorf("zeros: %v", err)
	} else if err := errors.Join(j.Append("new", 1), j.Close()); err != nil {
		t.Error(err)
	}
	for _, diary := range []string{"my diary\n{}\n", "my diary", `{"my": "diary"}`} { // also without a line end
		if err := os.WriteFile(path, []byte(diary), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := journal.Open(path, journal.Options{}); err == nil ||
			!strings.HasSuffix(err.Error(),
				": has no record of a journal: give another output, or remove the file") {
			t.Errorf("got %v", err)
		}
		if raw, err := os.ReadFile(path); err != nil || string(raw) != diary {
			t.Errorf("%v: %q has become %q", err, diary, raw)
		}
	}
}

// TestJournalPowerLoss: what Append has taken is there after a loss of power, whatever of
// the rest is kept; so is what Put took before.
func TestJournalPowerLoss(t *testing.T) {
	for _, percent := range []int{0, 50, 100} {
		fsys := vfstest.NewCrash()
		j, err := journal.Open("/j", journal.Options{FS: fsys})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 21 {
			add := j.Put
			if i%5 == 0 {
				add = j.Append
			}
			if err := add(fmt.Sprint(i), i); err != nil {
				t.Fatal(err)
			}
			after, err := journal.Open("/j",
				journal.Options{FS: fsys.CrashClone(percent, uint64(i))})
			if err != nil {
				t.Fatal(err)
			}
			if safe := i/5*5 + 1; after.Len() < safe || after.Len() > i+1 {
				t.Errorf("%d %% kept: %d records after %d, of which %d are safe", percent,
					after.Len(), i+1, safe)
			}
		}
	}
}

// TestJournalFaults: with any one operation of the disk failing, a record is either
// there afterwards or its Append has said that it failed.
func TestJournalFaults(t *testing.T) {
	for at := 0; ; at++ {
		path := filepath.Join(t.TempDir(), "j")
		fsys := vfstest.NewError(vfs.OS, at, false)
		kept := map[string]bool{}
		if j, err := journal.Open(path, journal.Options{FS: fsys}); err == nil {
			for i := range 5 {
				kept[fmt.Sprint(i)] = j.Append(fmt.Sprint(i), i) == nil
			}
			_ = j.Close()
		}
		j, err := journal.Open(path, journal.Options{})
		if err != nil {
			t.Fatalf("operation %d (%s): %v", at, fsys.Op(at), err)
		}
		for key, ok := range kept {
			if _, has := j.Lookup(key); ok && !has {
				t.Errorf("operation %d (%s): record %s is lost", at, fsys.Op(at), key)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if fsys.Faults() == 0 {
			return
		}
	}
}

// holding is a file system whose files sync when they are told to.
type holding struct {
	vfs.FS
	begun, end chan struct{}
}

func (h *holding) OpenAppend(path string) (vfs.File, error) {
	f, err := h.FS.OpenAppend(path)
	return heldFile{f, h}, err
}

type heldFile struct {
	vfs.File
	h *holding
}

func (f heldFile) Sync() error {
	f.h.begun <- struct{}{}
	<-f.h.end
	return f.File.Sync()
}

// A record that is written while a sync runs is not in it: its Append waits for another one, which
// all such records share.
func TestAppendDuringASync(t *testing.T) {
	h := &holding{FS: vfs.OS, begun: make(chan struct{}), end: make(chan struct{})}
	j, err := journal.Open(filepath.Join(t.TempDir(), "j"), journal.Options{FS: h})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan string)
	add := func(key string) {
		go func() {
			if err := j.Append(key, 1); err != nil {
				t.Error(err)
			}
			done <- key
		}()
	}
	add("first")
	<-h.begun
	add("second")
	add("third")
	for j.Len() < 3 { // written, not synced
		runtime.Gosched()
	}
	h.end <- struct{}{}
	if key := <-done; key != "first" {
		t.Errorf("the first sync ends the append of the %s record", key)
	}
	select {
	case <-h.begun: // another sync, for both
	case key := <-done:
		t.Fatalf("the append of the %s record has returned without a sync that began behind it", key)
	}
	h.end <- struct{}{}
	if a, b := <-done, <-done; a == b {
		t.Errorf("%s twice", a)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

func TestDigest(t *testing.T) {
	seen := map[string]bool{}
	for _, parts := range [][]any{{"a", "b"}, {"ab"}, {"a\nb"}, {"a", 1}, {"a", nil},
		{[]string{"a", "b"}}, {map[string]int{"b": 1, "a": 2}}} {
		seen[journal.Digest(parts...)] = true
	}
	if len(seen) != 7 {
		t.Errorf("%d digests", len(seen))
	}
	if got := journal.Digest(map[string]int{"a": 2, "b": 1}); !seen[got] || len(got) != 32 {
		t.Errorf("got %s", got)
	}
}

// counting counts the writes and syncs of what is appended.
type counting struct {
	vfs.FS
	writes, syncs int
}

type counted struct {
	vfs.File
	of *counting
}

func (c *counting) OpenAppend(path string) (vfs.File, error) {
	f, err := c.FS.OpenAppend(path)
	return counted{f, c}, err
}

func (c counted) Write(b []byte) (int, error) { c.of.writes++; return c.File.Write(b) }
func (c counted) Sync() error                 { c.of.syncs++; return c.File.Sync() }

// What Put takes is synced every few seconds, not for each record.
func TestPutIsSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := &counting{FS: vfs.OS}
		const every = 5 * time.Second
		j, err := journal.Open(filepath.Join(t.TempDir(), "j"),
			journal.Options{FS: fsys, SyncEvery: every})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			if i%5 == 0 {
				time.Sleep(every)
			}
			if err := j.Put(fmt.Sprint(i), i); err != nil {
				t.Fatal(err)
			}
		}
		if fsys.writes != 10 || fsys.syncs != 2 || j.Len() != 10 {
			t.Errorf("%d writes, %d syncs, %d records", fsys.writes, fsys.syncs, j.Len())
		}
		for range 2 { // the second has nothing to do
			if err := j.Sync(); err != nil || fsys.syncs != 3 {
				t.Errorf("%d syncs, %v", fsys.syncs, err)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if err := j.Sync(); err == nil {
			t.Error("a closed journal is synced")
		}
	})
}

// Foreign looks at the first bytes of what is there.
func TestForeign(t *testing.T) {
	dir := t.TempDir()
	for content, foreign := range map[string]bool{"": false, `{"ke`: false, "{\"key\":\"x\",\"record\":1}\n": false, "Dear diary": true, `{"my":"diary"}`: true} {
		path := filepath.Join(dir, "j")
		if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
		if got, err := journal.Foreign(vfs.OS, path); got != foreign || err != nil {
			t.Errorf("%q: %v, %v", content, got, err)
		}
	}
	for name, foreign := range map[string]bool{dir: true, filepath.Join(dir, "none"): false} {
		if got, err := journal.Foreign(vfs.OS, name); got != foreign || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
