package task

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"gad/apps/session"
)

// CheckRows runs a task's checker: it reads rows from in, one JSON object a line, and writes for
// each a line with score 1 or 0 and the answer's form.
func CheckRows(in io.Reader, out io.Writer) error {
	dec, w := json.NewDecoder(bufio.NewReader(in)), bufio.NewWriter(out)
	for line := 1; ; line++ {
		var row struct {
			Prompt    *string `json:"prompt"`
			Response  *string `json:"response"`
			Truncated bool    `json:"truncated"`
		}
		switch err := dec.Decode(&row); {
		case errors.Is(err, io.EOF):
			return w.Flush()
		case err != nil:
			return fmt.Errorf(
				"task check: row %d of standard input: %w: give one JSON object per line", line,
				err)
		case row.Prompt == nil || row.Response == nil:
			return fmt.Errorf("task check: row %d of standard input: prompt or response is missing: each row needs both", line)
		}
		g, err := Check(*row.Prompt, *row.Response)
		if err != nil {
			return fmt.Errorf("task check: row %d of standard input: %w", line, err)
		}
		score := 0
		if g.Valid && !row.Truncated {
			score = 1
		}
		if err := session.PrintJSON(w,
			map[string]any{"score": score, "label": g.Form}); err != nil {
			return err
		}
	}
}
