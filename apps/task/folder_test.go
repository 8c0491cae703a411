package task

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/internal/fault"
	"gad/internal/hostile"
)

// contents returns the files below dir.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := os.ReadFile(filepath.Join(dir, name))
		files[name] = string(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Each kind's folder: the files, their rows, and the same bytes from the same command, also where
// it was interrupted.
func TestFolder(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	for _, k := range Kinds() {
		f := k.Folder()
		f.Dir, f.Seed, f.StudentSeed, f.Counts[Train] = filepath.Join(t.TempDir(), "task"), 3, 3, 50
		if !hostile.Long() {
			for split, n := range f.Counts {
				f.Counts[split] = min(n, 50)
			}
		}
		sessiontest.Must(t, f.Write)
		for _, split := range Splits {
			for _, ext := range []string{".arrow", ".jsonl"} {
				set, err := data.Open(f.path(split+ext), data.DefaultColumns())
				if n, ok := f.Counts[split]; !ok {
					if err == nil {
						t.Errorf("%s: %s%s was made", k.Name, split, ext)
					}
				} else if err != nil || set.Len() != n {
					t.Errorf("%s: %s%s: %v, want %d rows", k.Name, split, ext, err, n)
				}
				if err == nil {
					set.Close()
				}
			}
		}
		set, err := data.Open(f.path("noted.arrow"), data.DefaultColumns())
		if err != nil || set.Len() == 0 || set.Len() >= f.Counts[Train] {
			t.Fatalf("%s: noted.arrow: %v", k.Name, err)
		}
		set.Close()
		before := contents(t, f.Dir)
		sessiontest.Must(t, f.Write) // again: nothing is left to do
		for _, name := range []string{"student", "test.arrow"} {
			if err := os.RemoveAll(f.path(name)); err != nil {
				t.Fatal(err)
			}
		}
		sessiontest.Must(t, f.Write) // interrupted: the rest is made
		after := contents(t, f.Dir)
		if len(before) < 10 || len(after) != len(before) {
			t.Errorf("%s: %d files, were %d", k.Name, len(after), len(before))
		}
		for name := range before {
			if before[name] != after[name] {
				t.Errorf("%s: %s differs", k.Name, name)
			}
		}
	}
}

// A folder of another task, of this one with other numbers, or of other files is left as it is.
func TestFolderIsNotOverwritten(t *testing.T) {
	f := Kinds()[0].Folder()
	f.Dir, f.Counts[Train] = filepath.Join(t.TempDir(), "task"), 20
	sessiontest.Must(t, f.Write)
	before := contents(t, f.Dir)
	const another = ": contains another task, or this one with another seed or number of rows: nothing is overwritten: give another --output\n"
	for want, change := range map[string]func(f *Folder){
		"rows" + another:    func(f *Folder) { f.Counts = map[string]int{Train: 21} },
		"student" + another: func(f *Folder) { f.StudentSeed++ },
		"files: contains other files: nothing is overwritten: give another --output\n": func(f *Folder) {
			f.Dir = t.TempDir()
			if err := os.WriteFile(filepath.Join(f.Dir, "notes"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		},
	} {
		f := f
		change(&f)
		_, want, _ = strings.Cut(want, ":")
		_, said, err := sessiontest.Run(f.Write)
		if !errors.Is(err, fault.ErrUsage) || said != "gad: task make: "+f.Dir+":"+want {
			t.Errorf("%v: %s", err, said)
		}
	}
	for name, text := range contents(t, f.Dir) {
		if before[name] != text {
			t.Errorf("%s was changed", name)
		}
	}
}
