package board

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"gad/internal/vfs"
	"gad/trainer/config"
)

var (
	//go:embed page/board.html
	pageHTML []byte
	//go:embed page/board.css
	style []byte
	//go:embed page/board.js
	script []byte
)

// Placeholders in board.html for the head and for the end of the body.
var (
	headMark = []byte("<!-- head -->\n")
	dataMark = []byte("<!-- data -->\n")
)

// livePage is the page of the server: style, script and data are separate resources.
var livePage = bytes.Replace(bytes.Replace(pageHTML, headMark,
	[]byte(
		"<link rel=\"stylesheet\" href=\"board.css\">\n<script src=\"board.js\" defer></script>\n"),
	1), dataMark, nil, 1)

// reportMark begins every report: a file without it is not overwritten.
const reportMark = "<!-- written by gad report -->\n"

// Page returns the page with the document in it as one HTML file. Its policy allows no loading, and
// no script but its own.
func (d *Document) Page() ([]byte, error) {
	data, err := json.Marshal(d) // escapes <, > and &: no text can end the element
	if err != nil {
		return nil, fmt.Errorf("board: %w", err)
	}
	hash := func(b []byte) string {
		sum := sha256.Sum256(b)
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	var head, end bytes.Buffer
	fmt.Fprintf(&head, "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src %s; style-src %s; img-src data:; base-uri 'none'; form-action 'none'\">\n",
		hash(script), hash(style))
	fmt.Fprintf(&head, "<style>%s</style>\n", style)
	fmt.Fprintf(&end,
		"<script type=\"application/json\" id=\"data\">%s</script>\n<script>%s</script>\n", data,
		script)
	page := bytes.Replace(pageHTML, headMark, head.Bytes(), 1)
	page = bytes.Replace(page, dataMark, end.Bytes(), 1)
	return append([]byte(reportMark), page...), nil
}

// Write writes the page with the document to path and returns its size in bytes. It replaces an
// older report and refuses to replace any other file.
func (d *Document) Write(fsys vfs.FS, path string) (size int, err error) {
	fsys = vfs.OrDisk(fsys)
	if err := Writable(fsys, path); err != nil {
		return 0, err
	}
	page, err := d.Page()
	if err != nil {
		return 0, err
	}
	if err := vfs.WriteFile(fsys, path, page); err != nil {
		return 0, fmt.Errorf("board: %w", vfs.Target(err))
	}
	return len(page), nil
}

// Writable refuses a path at which there is anything but a report.
func Writable(fsys vfs.FS, path string) (err error) {
	info, err := fsys.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		dir := filepath.Dir(path)
		if _, err := fsys.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf(
				"%w: board: %s: there is no folder %s: make it, or choose another file",
				config.ErrConfig, path, dir)
		}
		return nil
	case err != nil:
		return fmt.Errorf("board: %s: %w", path, vfs.Target(err))
	case info.IsDir():
		return fmt.Errorf("%w: board: %s: is a folder: give the name of a file", config.ErrConfig,
			path)
	case !info.Mode().IsRegular(): // to open a pipe would block
		return fmt.Errorf("%w: board: %s: is not a regular file: give the name of one",
			config.ErrConfig, path)
	}
	f, err := fsys.Open(path)
	if err != nil {
		return fmt.Errorf("board: %s: %w", path, vfs.Target(err))
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	begin := make([]byte, len(reportMark))
	if n, err := io.ReadFull(f, begin); err != nil && n == len(begin) ||
		string(begin[:n]) != reportMark {
		return fmt.Errorf(
			"%w: board: %s: already exists, and is no report of gad: choose another file",
			config.ErrConfig, path)
	}
	return nil
}
