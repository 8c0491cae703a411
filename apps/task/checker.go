package task

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"gad/apps/session"
)

// CheckRows runs a task's checker: it reads rows from in, one JSON object a line, and writes for
// each a line with score 1 or 0 and the answer's form.
func CheckRows(in io.Reader, out io.Writer) error {
	return answerRows("task check", in, out, func(_, _ string) (map[string]any, error) {
		return map[string]any{}, nil
	})
}

// NoteRows runs a task's coach: it writes CheckRows' lines with notes on the answer.
func NoteRows(in io.Reader, out io.Writer) error {
	return answerRows("task notes", in, out, func(prompt, answer string) (map[string]any, error) {
		notes, err := Notes(prompt, answer)
		return map[string]any{"notes": notes}, err
	})
}

// answerRows writes a line for each row of in: the answer's score and form, and what more returns.
// name is the command's, for errors.
func answerRows(name string, in io.Reader, out io.Writer,
	more func(prompt, answer string) (map[string]any, error)) error {
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
				"%s: row %d of standard input: %w: give one JSON object per line", name,
				line, err)
		case row.Prompt == nil || row.Response == nil:
			return fmt.Errorf(
				"%s: row %d of standard input: prompt or response is missing: each row needs both", name, line)
		}
		g, err := Check(*row.Prompt, *row.Response)
		if err != nil {
			return fmt.Errorf("%s: row %d of standard input: %w", name, line, err)
		}
		score := 0
		if g.Valid && !row.Truncated {
			score = 1
		}
		fields, err := more(*row.Prompt, *row.Response)
		if err != nil {
			return fmt.Errorf("%s: row %d of standard input: %w", name, line, err)
		}
		fields["score"], fields["label"] = score, g.Form
		if err := session.PrintJSON(w, fields); err != nil {
			return err
		}
	}
}

// Notes says what is wrong in an answer to a question: the first wrong step of its walk, or what it
// lacks. A question of other tasks is an error.
func Notes(prompt, answer string) (string, error) {
	if w, ok := walkOf(prompt); ok {
		said, want := strings.Fields(answer), strings.Fields(w.answer())
		switch at := firstWrong(said, want); {
		case at == len(want) && at == len(said):
			return "Right.", nil
		case at == len(want):
			return "Stop there: after " + want[at-1] + " comes nothing.", nil
		case at == 0:
			return "The walk begins " + want[0] + ".", nil
		default:
			return "After " + strings.Join(want[max(0, at-4):at], " ") + " comes " + want[at] + ".",
				nil
		}
	}
	p, ok := problemOf(prompt)
	if !ok {
		_, err := Check(prompt, answer)
		return "", err
	}
	if resultFirst.MatchString(answer) {
		return "Walk first.", nil
	}
	if !walkFirst.MatchString(answer) {
		return "By way of the walk, now the result.", nil
	}
	walk := p.walk()
	said := strings.FieldsFunc(strings.TrimPrefix(answer, "By way of "),
		func(r rune) bool { return r == ' ' || r == ',' || r == '.' })
	said = said[:len(said)-2] // the result, after "now"
	switch at := firstWrong(said, walk); {
	case at == len(walk) && at == len(said) && answer == p.answer(WalkFirst):
		return "Right.", nil
	case at == len(walk) && at == len(said):
		return "The walk ends " + walk[at-1] + ": now " + walk[at-1] + ".", nil
	case at == len(walk):
		return fmt.Sprintf("The walk has %d ways.", len(walk)), nil
	case at == 0:
		return "The walk begins " + walk[0] + ".", nil
	default:
		return "Facing " + walk[at-1] + ", go " + p.ops[at-1] + ": " + walk[at] + ".", nil
	}
}

// firstWrong returns the number of words with which both lists begin alike.
func firstWrong(said, want []string) (at int) {
	for at < len(said) && at < len(want) && said[at] == want[at] {
		at++
	}
	return at
}
