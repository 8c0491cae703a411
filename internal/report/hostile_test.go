package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/hostile"
	"gad/internal/vfs"
)

// Damaged metrics, logs and samples are read as far as they go: the board shows runs that
// others sent.
func TestHostileFormats(t *testing.T) {
	dir := t.TempDir()
	written := func(name string, text []byte) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var metrics, log, samples strings.Builder
	for _, line := range lineCases[:3] {
		metrics.WriteString(line + "\n")
	}
	log.WriteString(`{"level":"info","time":"2026-01-02T03:04:05Z","msg":"start","command":"gad train"}` + "\n" +
		`{"level":"info","time":"2026-01-02T03:04:06Z","msg":"step 1/9  d_acc 0.5","step":1}` + "\n" +
		`{"level":"info","time":"2026-01-02T03:04:07Z","msg":"done","end":"finished"}` + "\n")
	for _, s := range []Sample{{1, "p", "s", "t", 1, 2, 3, nil, nil, nil, "n\n<"},
		{2, "é\u2028", "<b>", "\\", -1e-9, 0, 1e300, nil, []int{4},
			&TreePlace{Parent: -1, Nodes: []TreeNode{{To: 4, Leaves: 1}}}, ""}} {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		samples.Write(append(b, '\n'))
	}
	words := []string{`{"step":`, `,"`, `":`, `"NaN"`, "\n", "{}", `{"`, "1e999", strings.Repeat("[", 1000), `\u0000`, `"time":"2026-01-02T03:04:05.000Z"`}
	for _, f := range []hostile.Format{
		{Name: "metrics.jsonl", Small: []byte(metrics.String()), Words: words,
			Read: func(text []byte) error {
				written("metrics.jsonl", text)
				var c Curves
				if err := c.Read(vfs.OS, dir); err != nil {
					return err
				}
				for _, name := range c.Names {
					curve := c.Get(name)
					if len(curve.At) != len(curve.X) || len(curve.At) > 0 &&
						int(curve.At[len(curve.At)-1]) >= len(c.Steps) {
						t.Errorf("%q: %d places, %d values, %d steps", name, len(curve.At),
							len(curve.X), len(c.Steps))
					}
				}
				Diagnose(c.Rows())
				if c.Bad > 0 {
					return errors.New("report: " + c.Damaged[0])
				}
				return nil
			}},
		{Name: "log.jsonl", Small: []byte(log.String()), Words: words,
			Read: func(text []byte) error {
				written("log.jsonl", text)
				var l Log
				err := l.Read(vfs.OS, dir)
				if word, werr := ReadLastWord(vfs.OS, dir); err == nil &&
					(werr != nil || word != l.Word()) {
					t.Errorf("%q: last word %+v, ReadLastWord has %+v, %v", text, l.Word(), word,
						werr)
				}
				if err == nil && len(l.Sessions) != 1 {
					err = fmt.Errorf("report: %d sessions", len(l.Sessions))
				}
				return err
			}},
		{Name: "samples", Small: []byte(samples.String()), Words: words,
			Read: func(text []byte) error {
				written("samples/step_1.jsonl", text)
				_, damaged, err := ReadSamples(vfs.OS, dir, InTraining, 1)
				if err == nil && damaged > 0 {
					err = fmt.Errorf("report: %d damaged lines", damaged)
				}
				return err
			}},
	} {
		f.Prefix = "report: "
		f.Try(t)
	}
}
