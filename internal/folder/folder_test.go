package folder

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tree makes files, and symbolic links where the text begins with "->".
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(path), 0o777)
		if to, link := strings.CutPrefix(text, "->"); err == nil && link {
			if err := os.Symlink(filepath.FromSlash(to), path); err != nil {
				t.Skip(err)
			}
		} else if err == nil {
			err = os.WriteFile(path, []byte(text), 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Row 15: no name and no link leads out of the folder, and nothing but a regular
// file is opened. A file that is opened is read, so one that got through is seen.
func TestNoPathLeavesItsFolder(t *testing.T) {
	const rev = "cache/models--a--b/snapshots/0123/"
	hash := strings.Repeat("ab", 32)
	const hub2 = "unmarked/models--a--b/snapshots/0123/"
	dir := tree(t, map[string]string{
		"outside": "secret",
		"m/file":  "good", "m/sub/file": "good", "m/dots..": "good",
		"m/inside": "->file", "m/sub/up": "->../file",
		"m/out": "->../outside", "m/far": "->/etc/passwd", "m/zero": "->/dev/zero",
		"m/nowhere": "->gone", "m/loop": "->loop",
		"m/dir": "->..", "m/twice": "->out",
		"cache/models--a--b/blobs/aa": "good", rev + "config.json": "->../../blobs/aa",
		rev + "data/part": "->../../../blobs/aa",
		rev + "other":     "->../../../models--c--d/blobs/bb", rev + "out": "->../../../../outside",
		rev + "far":                             "->/etc/passwd",
		"cache/models--c--d/blobs/bb":           "secret",
		"cache/plain--a--b/blobs/aa":            "secret",
		"cache/plain--a--b/snapshots/0123/file": "->../../blobs/aa",
		"cache/models--a--b/refs/0123/file":     "->../../blobs/aa",
		"cache/datasets--x/snapshots/1/file":    "->../../blobs/aa",
		"cache/datasets--x/blobs/aa":            "good",
		// contents that several repositories share
		"cache/blobs/.huggingface-shared-blobs": "1\n", "cache/blobs/ab/" + hash: "good",
		"cache/blobs/ab/linked":              "->../../../outside",
		"cache/blobs/ab/" + hash[:62] + "00": "->" + hash,
		rev + "shared":                       "->../../blobs/s1",
		"cache/models--a--b/blobs/s1":        "->../../blobs/ab/" + hash,
		rev + "nohash":                       "->../../blobs/s2",
		"cache/models--a--b/blobs/s2":        "->../../blobs/ab/linked",
		rev + "notfile":                      "->../../blobs/s3",
		"cache/models--a--b/blobs/s3":        "->../../blobs/ab/" + hash[:62] + "00",
		rev + "other2":                       "->../../blobs/s4",
		"cache/models--a--b/blobs/s4":        "->../../models--c--d/blobs/bb",
		rev + "deep":                         "->../../blobs/s5",
		"cache/models--a--b/blobs/s5":        "->../../blobs/ab/../../../outside",
		hub2 + "shared":                      "->../../blobs/s1",
		"unmarked/models--a--b/blobs/s1":     "->../../blobs/ab/" + hash,
		"unmarked/blobs/ab/" + hash:          "secret",
		"link":                               "->" + strings.TrimSuffix(rev, "/"),
	})
	refused, read := 0, 0
	for _, c := range []struct{ folder, name, want string }{
		{"m", "file", ""}, {"m", "sub/file", ""}, {"m", "inside", ""}, {"m", "sub/up", ""},
		{"m", "dots..", ""},
		{"m", "../outside", "not a name inside"}, {"m", "sub/../../outside", "not a name inside"},
		{"m", "..", "not a name inside"},
		{"m", filepath.Join(dir, "outside"), "not a name inside"},
		{"m", "/etc/passwd", "not a name inside"}, {"m", "/dev/zero", "not a name inside"},
		{"m", "", "not a name inside"}, {"m", "file\x00", "not a name inside"},
		{"m", "\x00", "not a name inside"},
		{"m", "out", "a symbolic link out of the folder"},
		{"m", "far", "a symbolic link out of the folder"},
		{"m", "zero", "a symbolic link out of the folder"},
		{"m", "nowhere", "or a broken link"}, {"m", "loop", "or a broken link"},
		{"m", "twice", "a symbolic link out of the folder"}, {"m", "dir/outside", "escapes"},
		{"m", "sub", "not a regular file"}, {"m", ".", "not a regular file"},
		{"m", "gone", "no such file"},
		{strings.TrimSuffix(rev, "/"), "config.json", ""}, {rev + "data", "part", ""},
		{rev + ".", "data/part", ""}, {"link", "config.json", ""},
		{rev, "other", "a symbolic link out of the folder"},
		{rev, "out", "a symbolic link out of the folder"},
		{rev, "far", "a symbolic link out of the folder"},
		{rev, "../../blobs/aa", "not a name inside"},
		{"cache/datasets--x/snapshots/1", "file", ""},
		{rev, "shared", ""}, {"link", "shared", ""},
		{rev, "nohash", "a symbolic link out of the folder"},
		{rev, "notfile", "a symbolic link out of the folder"},
		{rev, "other2", "a symbolic link out of the folder"},
		{rev, "deep", "a symbolic link out of the folder"},
		{hub2, "shared", "a symbolic link out of the folder"},
		{"cache/plain--a--b/snapshots/0123", "file", "a symbolic link out of the folder"},
		{"cache/models--a--b/refs/0123", "file", "a symbolic link out of the folder"},
	} {
		f, err := Open(filepath.Join(dir, filepath.FromSlash(c.folder)))
		if err != nil {
			t.Errorf("%s: %v", c.folder, err)
			continue
		}
		text, err := f.ReadFile(c.name, 100)
		switch {
		case c.want == "" && (err != nil || string(text) != "good"):
			t.Errorf("%s: %q: %q, %v", c.folder, c.name, text, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: %q: %q, %v, want %q", c.folder, c.name, text, err, c.want)
		case c.want == "":
			read++
		default:
			refused++
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("row 15: names in a folder: %d refused, %d inside it read", refused, read)
	if _, err := Open(filepath.Join(dir, "gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	f, err := Open(filepath.Join(dir, "m"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadFile("file", 3); err == nil ||
		!strings.Contains(err.Error(), "more than 3 bytes") {
		t.Errorf("over the limit: %v", err)
	}
	if text, err := f.ReadFile("file", 4); err != nil || string(text) != "good" {
		t.Errorf("at the limit: %q, %v", text, err)
	}
}

// A pipe would keep Open waiting for who writes to it.
func TestPipesAreNotOpened(t *testing.T) {
	dir := t.TempDir()
	if !mkfifo(t, filepath.Join(dir, "pipe")) {
		t.Skip("no pipes with names here")
	}
	for what, open := range map[string]func() error{
		"Folder.Open": func() error {
			f, err := Open(dir)
			if err == nil {
				defer f.Close()
				_, err = f.Open("pipe")
			}
			return err
		},
		"File":           func() error { _, err := File(filepath.Join(dir, "pipe")); return err },
		"File, a device": func() error { _, err := File("/dev/zero"); return err },
		"File, a folder": func() error { _, err := File(dir); return err },
	} {
		done := make(chan error, 1)
		go func() { done <- open() }()
		select {
		case err := <-done:
			if err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: waits", what)
		}
	}
}
