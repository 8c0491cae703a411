package vfs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

// write creates a file and leaves it unsynced.
func write(t *testing.T, fsys vfs.FS, path, text string) {
	t.Helper()
	f, err := fsys.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, fsys vfs.FS, path string) string {
	t.Helper()
	b, err := fsys.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The file system in memory must answer as the real one does, or what the crash
// tests show would not hold for it: one table for both.
func TestConformance(t *testing.T) {
	for _, sys := range []struct {
		name string
		fsys vfs.FS
		root string
	}{
		{"OS", vfs.OS, t.TempDir()},
		{"CrashFS", vfstest.NewCrash(), "/"},
		{"ErrorFS", vfstest.NewError(vfstest.NewCrash(), -1, false), "/"},
		{"Forgetful", vfstest.NewForgetful(vfstest.NewCrash(), -1), "/"},
		{"Budget", vfstest.NewBudget(vfstest.NewCrash(), 1<<20), "/"},
	} {
		t.Run(sys.name, func(t *testing.T) {
			fsys := sys.fsys
			at := func(names ...string) string {
				return filepath.Join(
					append([]string{sys.root}, names...)...)
			}
			want := func(what string, err, target error) {
				t.Helper()
				if target == nil && err != nil || target != nil && !errors.Is(err, target) {
					t.Errorf("%s: error %v, want %v", what, err, target)
				}
			}
			want("MkdirAll", fsys.MkdirAll(at("a", "b")), nil)
			want("MkdirAll again", fsys.MkdirAll(at("a", "b")), nil)
			want("Mkdir of what is there", fsys.Mkdir(at("a")), fs.ErrExist)
			want("Mkdir without a parent", fsys.Mkdir(at("x", "y")), fs.ErrNotExist)
			_, err := fsys.Create(at("x", "f"))
			want("Create without a parent", err, fs.ErrNotExist)
			_, err = fsys.Open(at("f"))
			want("Open of nothing", err, fs.ErrNotExist)
			_, err = fsys.Stat(at("f"))
			want("Stat of nothing", err, fs.ErrNotExist)
			_, err = fsys.ReadFile(at("f"))
			want("ReadFile of nothing", err, fs.ErrNotExist)
			_, err = fsys.ReadDir(at("f"))
			want("ReadDir of nothing", err, fs.ErrNotExist)
			want("SyncDir of nothing", fsys.SyncDir(at("x")), fs.ErrNotExist)
			want("Remove of nothing", fsys.Remove(at("f")), fs.ErrNotExist)
			want("RemoveAll of nothing", fsys.RemoveAll(at("x", "y")), nil)
			want("Rename of nothing", fsys.Rename(at("f"), at("g")), fs.ErrNotExist)

			write(t, fsys, at("f"), "long text")
			write(t, fsys, at("f"), "one")
			if got := read(t, fsys, at("f")); got != "one" {
				t.Errorf("Create did not empty the file: %q", got)
			}
			f, err := fsys.OpenAppend(at("f"))
			want("OpenAppend", err, nil)
			_, err = io.WriteString(f, " two")
			want("Write", err, nil)
			info, err := f.Stat()
			want("File.Stat", err, nil)
			if info.Size() != 7 || info.Name() != "f" || info.IsDir() {
				t.Errorf("File.Stat: %q %d", info.Name(), info.Size())
			}
			want("Sync", f.Sync(), nil)
			want("Close", f.Close(), nil)
			want("Close twice", f.Close(), fs.ErrClosed)
			_, err = io.WriteString(f, "three")
			want("Write after Close", err, fs.ErrClosed)
			want("Sync after Close", f.Sync(), fs.ErrClosed)
			if got := read(t, fsys, at("f")); got != "one two" {
				t.Errorf("OpenAppend: %q", got)
			}
			f, err = fsys.Open(at("f"))
			want("Open", err, nil)
			if _, err := f.Write([]byte("x")); err == nil {
				t.Error("a file from Open can be written")
			}
			if b, err := io.ReadAll(f); string(b) != "one two" || err != nil {
				t.Errorf("Read: %q %v", b, err)
			}
			want("Close", f.Close(), nil)

			write(t, fsys, at("g"), "g")
			want("Rename over a file", fsys.Rename(at("g"), at("f")), nil)
			if got := read(t, fsys, at("f")); got != "g" {
				t.Errorf("Rename: %q", got)
			}
			write(t, fsys, at("a", "b", "h"), "h")
			want("Mkdir", fsys.Mkdir(at("c")), nil)
			if err := fsys.Rename(at("c"), at("a")); err == nil {
				t.Error("Rename over a folder with files passed")
			}
			if err := fsys.Rename(at("f"), at("a")); err == nil {
				t.Error("Rename of a file over a folder passed")
			}
			if err := fsys.Rename(at("c"), at("f")); err == nil {
				t.Error("Rename of a folder over a file passed")
			}
			want("Rename of a folder", fsys.Rename(at("a"), at("d")), nil)
			if got := read(t, fsys, at("d", "b", "h")); got != "h" {
				t.Errorf("Rename of a folder: %q", got)
			}
			if err := fsys.Remove(at("d")); err == nil {
				t.Error("Remove of a folder with files passed")
			}
			list, err := fsys.ReadDir(at())
			want("ReadDir", err, nil)
			var names []string
			for _, e := range list {
				names = append(names, fmt.Sprint(e.Name(), e.IsDir(), e.Type().IsRegular()))
			}
			if got := strings.Join(names, " "); got != "ctrue false dtrue false ffalse true" {
				t.Errorf("ReadDir: %s", got)
			}
			want("Symlink", fsys.Symlink(filepath.Join("..", "d", "b"), at("c", "link")), nil)
			want("Symlink over what is there", fsys.Symlink("x", at("f")), fs.ErrExist)
			if to, err := fsys.Readlink(at("c", "link")); err != nil ||
				to != filepath.Join("..", "d", "b") {
				t.Errorf("Readlink: %q %v", to, err)
			}
			if _, err := fsys.Readlink(at("f")); err == nil {
				t.Error("Readlink of a file passed")
			}
			if got := read(t, fsys, at("c", "link", "h")); got != "h" {
				t.Errorf("through a link: %q", got)
			}
			if info, err := fsys.Stat(at("c", "link")); err != nil || !info.IsDir() {
				t.Errorf("Stat through a link: %v", err)
			}
			if list, err := fsys.ReadDir(at("c")); err != nil || len(list) != 1 ||
				list[0].Type() != fs.ModeSymlink {
				t.Errorf("ReadDir of a link: %v %v", list, err)
			}
			want("Symlink to nothing", fsys.Symlink("nothing", at("c", "broken")), nil)
			_, err = fsys.Stat(at("c", "broken"))
			want("Stat of a broken link", err, fs.ErrNotExist)
			want("Rename over a link", fsys.Rename(at("c", "broken"), at("c", "link")), nil)
			want("Remove of a link", fsys.Remove(at("c", "link")), nil)
			want("SyncDir", fsys.SyncDir(at("d")), nil)
			want("RemoveAll", fsys.RemoveAll(at("d")), nil)
			want("Remove", fsys.Remove(at("c")), nil)
			_, err = fsys.Stat(at("d", "b"))
			want("Stat below what was removed", err, fs.ErrNotExist)
			if n, err := fsys.Free(at("no", "such", "folder")); err != nil || n <= 0 {
				t.Errorf("Free: %d %v", n, err)
			}
		})
	}
}

// What the crash model itself promises.
func TestCrashClone(t *testing.T) {
	c := vfstest.NewCrash()
	write(t, c, "/kept", strings.Repeat("k", 1000))
	f, err := c.OpenAppend("/kept")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), c.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, strings.Repeat("u", 1000)); err != nil {
		t.Fatal(err)
	}
	write(t, c, "/unsynced", "x")

	none, all := c.CrashClone(0, 1), c.CrashClone(100, 1)
	if got := read(t, none, "/kept"); got != strings.Repeat("k", 1000) {
		t.Errorf("at 0 %%: the synced file has %d bytes", len(got))
	}
	if _, err := none.Stat("/unsynced"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("at 0 %%: the unsynced name: %v", err)
	}
	if got := read(t, all, "/kept") + read(t, all, "/unsynced"); len(got) != 2001 {
		t.Errorf("at 100 %%: %d bytes", len(got))
	}
	lengths, names := map[int]bool{}, map[bool]bool{}
	for seed := range uint64(50) {
		half := c.CrashClone(50, seed)
		text := read(t, half, "/kept")
		if !strings.HasPrefix(text, strings.Repeat("k", 1000)) ||
			strings.Trim(text[1000:], "u\x00") != "" {
			t.Fatalf("seed %d: synced bytes lost or invented", seed)
		}
		_, err := half.Stat("/unsynced")
		lengths[strings.Count(text, "u")], names[err == nil] = true, true
		if again := read(t, c.CrashClone(50, seed), "/kept"); again != text {
			t.Fatalf("seed %d: two clones differ", seed)
		}
	}
	if len(lengths) < 3 || len(names) != 2 {
		t.Errorf("50 seeds gave %d contents and %d outcomes for a name", len(lengths), len(names))
	}
}

var percents = []int{0, 10, 50, 100}

// crashes runs f on copies of a file system, stopped before each of its
// operations in turn, and hands check every crashed state.
func crashes(start func() *vfstest.CrashFS, wrap func(vfs.FS) vfs.FS, f func(vfs.FS) error,
	check func(c *vfstest.CrashFS, acked bool) error) (states int, err error) {
	for at := 0; ; at++ {
		mem := start()
		faulty := vfstest.NewError(mem, at, true)
		acked := f(wrap(faulty)) == nil
		for _, pct := range percents {
			for seed := range uint64(8) {
				states++
				if err := check(mem.CrashClone(pct, seed), acked); err != nil {
					return states, fmt.Errorf(
						"crash before operation %d (%s), %d %% kept, seed %d: %w", at,
						faulty.Op(at), pct, seed, err)
				}
			}
		}
		if faulty.Faults() == 0 {
			return states, nil
		}
	}
}

// WriteFile and MakeDirs: old or new at every crash, new once acknowledged, and
// each of their syncs is needed.
func TestCompositionsSurviveCrashes(t *testing.T) {
	old, data := strings.Repeat("o", 300), strings.Repeat("n", 500)
	start := func() *vfstest.CrashFS {
		c := vfstest.NewCrash()
		if err := errors.Join(vfs.MakeDirs(c, "/run"),
			vfs.WriteFile(c, "/run/f", []byte(old))); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, test := range []struct {
		name  string
		f     func(vfs.FS) error
		check func(c *vfstest.CrashFS, acked bool) error
	}{
		{"WriteFile",
			func(fsys vfs.FS) error { return vfs.WriteFile(fsys, "/run/f", []byte(data)) },
			func(c *vfstest.CrashFS, acked bool) error {
				b, err := c.ReadFile("/run/f")
				if err != nil || string(b) != data && (acked || string(b) != old) {
					return fmt.Errorf("%d bytes, %v, acknowledged %v", len(b), err, acked)
				}
				return nil
			}},
		{"MakeDirs", func(fsys vfs.FS) error { return vfs.MakeDirs(fsys, "/run/a/b/c") },
			func(c *vfstest.CrashFS, acked bool) error {
				if info, err := c.Stat("/run/a/b/c"); acked && (err != nil || !info.IsDir()) {
					return fmt.Errorf("the folder is gone: %v", err)
				}
				return nil
			}},
	} {
		states, err := crashes(start, func(f vfs.FS) vfs.FS { return f }, test.f, test.check)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		count := vfstest.NewForgetful(start(), -1)
		if err := test.f(count); err != nil {
			t.Fatal(err)
		}
		for i := range count.Syncs() {
			if _, err := crashes(start, func(f vfs.FS) vfs.FS { return vfstest.NewForgetful(f, i) },
				test.f, test.check); err == nil {
				t.Errorf("%s: no crash shows that sync %d is missing", test.name, i)
			}
		}
		t.Logf("%s: %d crashed states right, each of %d syncs shown to be needed", test.name,
			states, count.Syncs())
	}
}

// Each operation that fails is reported, with its cause, and the old file stays.
func TestWriteFileReportsEveryFault(t *testing.T) {
	for at := 0; ; at++ {
		mem := vfstest.NewCrash()
		if err := vfs.WriteFile(mem, "/f", []byte("old")); err != nil {
			t.Fatal(err)
		}
		faulty := vfstest.NewError(mem, at, false)
		err := vfs.WriteFile(faulty, "/f", []byte("new"))
		if faulty.Faults() == 0 {
			if err != nil || at < 6 {
				t.Fatalf("%d operations, %v", at, err)
			}
			break
		}
		if !errors.Is(err, vfstest.ErrInjected) {
			t.Errorf("operation %d (%s): error %v", at, faulty.Op(at), err)
		}
		if got := read(t, mem, "/f"); got != "old" && got != "new" {
			t.Errorf("operation %d (%s): file holds %q", at, faulty.Op(at), got)
		}
		if _, err := mem.Stat(vfs.TempName("/f")); err == nil {
			t.Errorf("operation %d (%s): the temporary file stays", at, faulty.Op(at))
		}
	}
}

func TestBudget(t *testing.T) {
	b := vfstest.NewBudget(vfstest.NewCrash(), 16+5)
	f, err := b.Create("/f")
	if err != nil {
		t.Fatal(err)
	}
	n, err := f.Write([]byte("1234567"))
	if n != 5 || !errors.Is(err, syscall.ENOSPC) || b.BytesUsed() != 21 {
		t.Errorf("wrote %d, %v, used %d", n, err, b.BytesUsed())
	}
	if free, err := b.Free("/"); free != 0 || err != nil {
		t.Errorf("Free: %d %v", free, err)
	}
	if err := b.Mkdir("/d"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Mkdir: %v", err)
	}
	if got := read(t, b, "/f"); got != "12345" {
		t.Errorf("file holds %q", got)
	}
}

func TestOSWriteFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := vfs.MakeDirs(vfs.OS, dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "f")
	for _, text := range []string{"one", "two"} {
		if err := vfs.WriteFile(vfs.OS, path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); string(b) != text || err != nil {
			t.Errorf("%q %v", b, err)
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 {
		t.Errorf("folder holds %v, %v", list, err)
	}
	if err := vfs.MakeDirs(vfs.OS, path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("MakeDirs over a file: %v", err)
	}
	if !slices.Contains(strings.Split(vfs.TempName(path), string(filepath.Separator)), ".f.tmp") {
		t.Errorf("TempName: %s", vfs.TempName(path))
	}
}
