package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"unicode/utf8"

	"gad/internal/vfs"
)

const (
	manifestName = "manifest.json"
	// formatVersion is the version that this package writes. It reads this one and all earlier
	// ones.
	formatVersion = 1
	maxManifest   = 1 << 19 // bytes; some thousands of files
)

// fileEntry is the manifest's entry of one file.
type fileEntry struct {
	Name   string `json:"name"` // path below the checkpoint, with slashes
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // 64 lower-case hexadecimal digits
}

// manifest is the file manifest.json: everything that a checkpoint holds,
// sorted by name, except itself.
type manifest struct {
	Version int         `json:"format_version"`
	Files   []fileEntry `json:"files"`
}

// encodeManifest returns the one text that represents these files.
func encodeManifest(files []fileEntry) []byte {
	m := manifest{Version: formatVersion, Files: append([]fileEntry{}, files...)}
	sort.Slice(m.Files, func(i, j int) bool { return m.Files[i].Name < m.Files[j].Name })
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	// Names are valid UTF-8, the rest is numbers: it cannot fail.
	_ = e.Encode(m)
	return b.Bytes()
}

// parseManifest parses a manifest. It refuses a text that differs in any byte from encodeManifest
// of its contents: so a duplicate key, a key in another case or a flipped bit in the white space
// cannot pass.
func parseManifest(data []byte) ([]fileEntry, error) {
	if len(data) > maxManifest {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrCorrupt, maxManifest)
	}
	var v struct {
		Version *int `json:"format_version"`
	}
	if err := json.Unmarshal(data, &v); err != nil || v.Version == nil {
		return nil, fmt.Errorf("%w: not a manifest", ErrCorrupt)
	}
	if *v.Version > formatVersion {
		return nil,
			fmt.Errorf("format %d was written by a newer version, this one reads up to %d: upgrade",
				*v.Version, formatVersion)
	}
	if *v.Version < 1 {
		return nil, fmt.Errorf("%w: format %d does not exist", ErrCorrupt, *v.Version)
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%w: not a manifest", ErrCorrupt)
	}
	for i, f := range m.Files {
		if err := checkName(f.Name); err != nil {
			return nil, fmt.Errorf("%w: file %q: %w", ErrCorrupt, f.Name, err)
		}
		if i > 0 && f.Name <= m.Files[i-1].Name {
			return nil, fmt.Errorf("%w: file %q: out of order or listed twice", ErrCorrupt, f.Name)
		}
		sum, err := hex.DecodeString(f.SHA256)
		if err != nil || len(sum) != sha256.Size || hex.EncodeToString(sum) != f.SHA256 {
			return nil, fmt.Errorf("%w: file %q: sha256 is not 64 lower-case hexadecimal digits",
				ErrCorrupt, f.Name)
		}
		if f.Size < 0 {
			return nil, fmt.Errorf("%w: file %q: size %d", ErrCorrupt, f.Name, f.Size)
		}
	}
	if !bytes.Equal(encodeManifest(m.Files), data) {
		return nil, fmt.Errorf("%w: changed after it was written", ErrCorrupt)
	}
	return m.Files, nil
}

// checkName refuses names that a file of a checkpoint cannot have on every system, and names that
// the package uses itself.
func checkName(name string) error {
	switch {
	case !fs.ValidPath(name) || name == ".":
		return errors.New("not a path below the checkpoint")
	case !utf8.ValidString(name) || strings.ContainsAny(name, `\:`):
		return errors.New(`a name may not contain \ or :`)
	case name == manifestName:
		return errors.New("the name belongs to the manifest")
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f {
			return errors.New("a name may not contain control characters")
		}
	}
	return nil
}

var errTooLarge = errors.New("file is too large")

// readSmall reads a whole file of at most max bytes.
func readSmall(fsys vfs.FS, name string, max int64) ([]byte, error) {
	f, err := vfs.OpenRegular(fsys, name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	err = cmp.Or(err, f.Close())
	if err == nil && int64(len(data)) > max {
		err = fmt.Errorf("%w: more than %d bytes", errTooLarge, max)
	}
	return data, err
}

// Verify reads all of a checkpoint and returns nil if it holds the files of its manifest with the
// sizes and digests given there, and nothing else. Otherwise the error is ErrCorrupt; other errors
// mean that the checkpoint could not be checked: an I/O error, or a format of a newer version.
func Verify(fsys FS, dir string) error {
	fsys = vfs.OrDisk(fsys)
	_, _, err := Inspect(fsys, dir)
	return err
}

// Inspect verifies a checkpoint as Verify does, and returns the SHA-256 of its manifest in
// hexadecimal, which identifies every byte of the checkpoint, and its size in bytes.
func Inspect(fsys FS, dir string) (digest string, size int64, err error) {
	fsys = vfs.OrDisk(fsys)
	files, err := readManifest(fsys, dir)
	if err != nil {
		return "", 0, err
	}
	if err := checkListing(fsys, dir, files); err != nil {
		return "", 0, err
	}
	for _, f := range files {
		if err := copyFile(fsys, dir, f, io.Discard); err != nil {
			return "", 0, err
		}
		size += f.Size
	}
	m := encodeManifest(files) // equal to the bytes that were read: see parseManifest
	sum := sha256.Sum256(m)
	return hex.EncodeToString(sum[:]), size + int64(len(m)), nil
}

// readManifest reads the manifest of a checkpoint.
func readManifest(fsys vfs.FS, dir string) ([]fileEntry, error) {
	// The list comes first: opening a FIFO of this name would wait.
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", dir, err)
	}
	name := filepath.Join(dir, manifestName)
	for _, e := range entries {
		if e.Name() != manifestName {
			continue
		}
		if !e.Type().IsRegular() {
			return nil, fmt.Errorf("checkpoint: %s: %w: it is not a regular file", name, ErrCorrupt)
		}
		data, err := readSmall(fsys, name, maxManifest)
		if errors.Is(err, errTooLarge) {
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		var files []fileEntry
		if err == nil {
			files, err = parseManifest(data)
		}
		if err != nil {
			return nil, fmt.Errorf("checkpoint: %s: %w", name, err)
		}
		return files, nil
	}
	return nil, fmt.Errorf("checkpoint: %s: %w: it has no %s", dir, ErrCorrupt, manifestName)
}

// checkListing compares the names and file types below dir with the manifest, before any file is
// opened.
func checkListing(fsys vfs.FS, dir string, files []fileEntry) error {
	missing := map[string]bool{}
	dirs := map[string]bool{}
	for _, f := range files {
		missing[f.Name] = true
		for d := path.Dir(f.Name); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	bad := func(name, what string) error {
		return fmt.Errorf("checkpoint: %s: file %q: %w: %s", dir, name, ErrCorrupt, what)
	}
	var walk func(below string) error
	walk = func(below string) error {
		entries, err := fsys.ReadDir(filepath.Join(dir, filepath.FromSlash(below)))
		if err != nil {
			return fmt.Errorf("checkpoint: %s: %w", dir, err)
		}
		for _, e := range entries {
			name := path.Join(below, e.Name())
			switch {
			case e.IsDir():
				if !dirs[name] {
					return bad(name, "a folder that the manifest does not list")
				}
				if err := walk(name); err != nil {
					return err
				}
			case name == manifestName:
			case !missing[name]:
				return bad(name, "the manifest does not list it")
			case !e.Type().IsRegular():
				return bad(name, "not a regular file")
			default:
				delete(missing, name)
			}
		}
		return nil
	}
	if err := walk("."); err != nil {
		return err
	}
	for _, f := range files {
		if missing[f.Name] {
			return bad(f.Name, "missing")
		}
	}
	return nil
}

// copyFile copies a file of the checkpoint to w, and compares its size and
// digest with the manifest.
func copyFile(fsys vfs.FS, dir string, want fileEntry, w io.Writer) error {
	name := filepath.Join(dir, filepath.FromSlash(want.Name))
	f, err := vfs.OpenRegular(fsys, name)
	if err != nil {
		return fmt.Errorf("checkpoint: %s: %w", name, err)
	}
	h := sha256.New()
	// One byte more than expected is enough to know that it is too long.
	buf := make([]byte, min(want.Size, 1<<18-1)+1)
	n, err := io.CopyBuffer(io.MultiWriter(h, w), io.LimitReader(onlyReader{f}, want.Size+1), buf)
	if err = cmp.Or(err, f.Close()); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", name, err)
	}
	switch {
	case n < want.Size:
		return fmt.Errorf("checkpoint: %s: %w: %d bytes, the manifest says %d", name, ErrCorrupt, n,
			want.Size)
	case n > want.Size:
		return fmt.Errorf("checkpoint: %s: %w: more than the %d bytes of the manifest", name,
			ErrCorrupt, want.Size)
	case hex.EncodeToString(h.Sum(nil)) != want.SHA256:
		return fmt.Errorf("checkpoint: %s: %w: its SHA-256 differs from the manifest", name,
			ErrCorrupt)
	}
	return nil
}

// onlyReader hides a file's other methods, with which io.Copy would go around
// the buffer.
type onlyReader struct{ io.Reader }
