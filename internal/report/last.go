package report

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"gad/internal/vfs"
)

// LastWord is the end of a run's last session, from log.jsonl.
type LastWord struct {
	End     End       // "" if the session was cut off, or goes on
	Text    string    // the entry with the end, or else the last entry
	At      time.Time // the time of that entry
	Command string    // the session's command line
}

// entry is the part of a line of log.jsonl that is read.
type entry struct {
	Time    time.Time
	Level   string
	Msg     string
	Command string
	Step    int
	End     End
}

// begins reports whether the entry is a session's first.
func (e entry) begins() bool { return e.Command != "" && (e.Msg == "start" || e.Msg == "resume") }

// add updates the word with the next entry.
func (w *LastWord) add(e entry) {
	switch {
	case e.begins():
		*w = LastWord{Text: e.Msg, At: e.Time, Command: e.Command}
	case e.End != "" || w.End == "":
		w.End, w.Text, w.At = e.End, e.Msg, e.Time
	}
}

// ReadLastWord reads log.jsonl of the run folder dir. Lines that are not entries are skipped. A
// missing file is fs.ErrNotExist.
func ReadLastWord(fsys vfs.FS, dir string) (w LastWord, err error) {
	path := filepath.Join(dir, logName)
	err = eachLine(fsys, path, func(line []byte, _ int64) error {
		var e entry
		if json.Unmarshal(line, &e) == nil {
			w.add(e)
		}
		return nil
	})
	if err != nil {
		return w, fmt.Errorf("report: %s: %w", path, err)
	}
	return w, nil
}
