package checker

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"unicode"
)

// MaxNotes is the largest length of notes, in bytes.
const MaxNotes = 16 << 10

// maxCopied is the number of consecutive words of an answer that notes on it may not have.
const maxCopied = 8

// parseNotes reads one line of a coach. A line of another form has no notes.
func parseNotes(line string) (Verdict, error) {
	return Verdict{Score: math.NaN(), Notes: notesOf(line)}, nil
}

// notesOf returns the notes in a JSON object; "" without notes.
func notesOf(line string) string {
	var o struct {
		Notes json.RawMessage `json:"notes"`
	}
	var notes string
	if json.Unmarshal([]byte(line), &o) != nil || json.Unmarshal(o.Notes, &notes) != nil {
		return ""
	}
	return notes
}

// CleanNotes returns notes on an answer to a prompt as a teacher may read them: without control
// characters, and without white space around them. It refuses notes without text, notes that are
// longer than MaxNotes, and notes with the answer's own text: a part of it, or eight of its words
// in a row that are not the prompt's. A teacher that reads the answer would say it again.
func CleanNotes(notes, answer, prompt string) (string, error) {
	if len(notes) > MaxNotes {
		return "", errors.New("has notes of more than 16384 bytes")
	}
	notes, answer = readable(notes), readable(answer)
	words := strings.Fields(strings.ToLower(notes))
	if len(words) == 0 {
		return "", errors.New("has notes without text")
	}
	said := " " + strings.Join(strings.Fields(strings.ToLower(answer)), " ") + " "
	if strings.Contains(said, " "+strings.Join(words, " ")+" ") {
		return "", errors.New("has notes that are the answer's own text")
	}
	own := Runs(answer)
	for run := range Runs(prompt) { // whose words anybody may use
		delete(own, run)
	}
	for run := range Runs(notes) {
		if own[run] {
			return "", errors.New("has notes with eight words of the answer in a row")
		}
	}
	return notes, nil
}

// readable returns a text without control characters, and without white space around it.
func readable(text string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD")))
}

// Runs returns all sequences of eight words of a text.
func Runs(text string) map[string]bool {
	words := strings.Fields(strings.ToLower(text))
	out := map[string]bool{}
	for i := range max(0, len(words)-maxCopied+1) {
		out[strings.Join(words[i:i+maxCopied], " ")] = true
	}
	return out
}
