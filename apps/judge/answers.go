package judge

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"gad/internal/chat"
)

// maxLine bounds a line of a file of answers, in bytes.
const maxLine = 64 << 20

// line is the fields that a judge reads of a line of gad generate --output or gad eval --output.
type line struct {
	Model    string          `json:"model"`
	Row      *int            `json:"row"`
	Content  json.RawMessage `json:"content"`
	Teacher  *string         `json:"teacher_response"`
	Response *string         `json:"response"`
}

// fileAnswer is a student's answer in a file.
type fileAnswer struct {
	at       string // file and line, for messages
	question Question
	answer   string
}

// ReadAnswers reads students' answers from files of gad generate or gad eval. A file's students are
// distinguished by its model column; without one, the student has the file's name. All must have
// answered the same rows, of which it returns the first limit (0: all); rows are their numbers in
// the data.
func ReadAnswers(paths []string,
	limit int) (questions []Question, students []Student, rows []int, err error) {
	var names []string
	answers := map[string]map[int]fileAnswer{} // by name and row
	for _, path := range paths {
		own := map[string]string{} // names of this file's students by model
		err := eachLine(path, func(n int, l line) error {
			at := fmt.Sprintf("%s: line %d", path, n)
			prompt, err := conversation(l.Content)
			switch {
			case err != nil:
				return fmt.Errorf("judge: %s: %w: a line has content, teacher_response and response, as gad generate --data writes it", at, err)
			case l.Response == nil:
				return fmt.Errorf("judge: %s: has no response: give a file of answers, as gad generate --data writes it", at)
			}
			name, ok := own[l.Model]
			if !ok {
				if name = l.Model; name == "" {
					name = path
				} else if _, taken := answers[name]; taken { // of another file
					name = path + ": " + name
				}
				if _, taken := answers[name]; taken {
					return fmt.Errorf("judge: %s: given twice: name each file once", path)
				}
				own[l.Model] = name
				names, answers[name] = append(names, name), map[int]fileAnswer{}
			}
			row := len(answers[name])
			if l.Row != nil {
				row = *l.Row
			}
			if other, twice := answers[name][row]; twice {
				return fmt.Errorf("judge: %s: row %d has an answer already, in line %s: one answer to a prompt is judged: make the file with -n 1", at, row, other.at[len(path)+len(": line "):])
			}
			g := fileAnswer{at: at, question: Question{Prompt: prompt}, answer: *l.Response}
			if l.Teacher != nil {
				g.question.Teacher = *l.Teacher
			}
			answers[name][row] = g
			return nil
		})
		if err != nil {
			return nil, nil, nil, err
		}
		if len(own) == 0 {
			return nil, nil, nil, fmt.Errorf(
				"judge: %s: has no answers: give a file that gad generate --data wrote", path)
		}
	}
	for _, name := range names {
		all := slices.Sorted(maps.Keys(answers[name]))
		for _, row := range all[min(cmp.Or(limit, len(all)), len(all)):] {
			delete(answers[name], row)
		}
	}
	for _, name := range names[1:] {
		if err := sameRows(answers[names[0]], answers[name], names[0], name); err != nil {
			return nil, nil, nil, err
		}
	}
	rows = slices.Sorted(maps.Keys(answers[names[0]]))
	for _, row := range rows {
		questions = append(questions, answers[names[0]][row].question)
	}
	for _, name := range names {
		s := Student{Name: name}
		for _, row := range rows {
			s.Answers = append(s.Answers, answers[name][row].answer)
		}
		students = append(students, s)
	}
	return questions, students, rows, nil
}

// sameRows refuses two students that did not answer the same questions.
func sameRows(a, b map[int]fileAnswer, nameA, nameB string) error {
	for _, x := range []struct {
		has, lacks       map[int]fileAnswer
		nameHas, nameNot string
	}{{a, b, nameA, nameB}, {b, a, nameB, nameA}} {
		for _, row := range slices.Sorted(maps.Keys(x.has)) {
			if _, ok := x.lacks[row]; !ok {
				return fmt.Errorf("judge: row %d: %s answers it, %s does not: give answers to the same rows, or --limit", row, x.nameHas, x.nameNot)
			}
		}
	}
	for _, row := range slices.Sorted(maps.Keys(a)) {
		if !slices.Equal(a[row].question.Prompt, b[row].question.Prompt) {
			return fmt.Errorf(
				"judge: row %d: %s and %s have other prompts: give answers to the same data", row,
				nameA, nameB)
		}
		if a[row].question.Teacher != b[row].question.Teacher {
			return fmt.Errorf("judge: row %d: %s and %s have other teacher's answers: give answers to the same data", row, nameA, nameB)
		}
	}
	return nil
}

// conversation reads a prompt: text, or turns.
func conversation(raw json.RawMessage) ([]chat.Message, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil && text != "" {
		return []chat.Message{{Role: "user", Content: text}}, nil
	}
	var turns []chat.Message
	if err := json.Unmarshal(raw, &turns); err != nil || len(turns) == 0 {
		return nil, errors.New("has no conversation")
	}
	return Texts(turns), nil
}

// Texts returns a conversation as a judge reads it: each turn's role, and its text with its calls.
func Texts(turns []chat.Message) []chat.Message {
	texts := make([]chat.Message, len(turns))
	for i, m := range turns {
		texts[i] = chat.Message{Role: m.Role, Content: m.Text()}
	}
	return texts
}

// eachLine calls take with the number (from 1) and the content of each line of a file of JSON
// lines. It skips empty lines.
func eachLine(path string, take func(n int, l line) error) error {
	f, err := os.Open(path)
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		why := e.Err.Error()
		if errors.Is(err, fs.ErrNotExist) {
			why = "does not exist"
		}
		return fmt.Errorf("judge: %s: %s: give a file that gad generate --data wrote", path, why)
	} else if err != nil {
		return fmt.Errorf("judge: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("judge: %s: is not a file: give one that gad generate --data wrote", path)
	}
	r := bufio.NewReaderSize(f, 1<<20)
	for n := 1; ; n++ {
		var text []byte
		for more := true; more; {
			part, isPrefix, err := r.ReadLine()
			if err == io.EOF && text == nil {
				return nil
			}
			if err != nil && err != io.EOF {
				return fmt.Errorf("judge: %s: %w", path, err)
			}
			if text = append(text, part...); len(text) > maxLine {
				return fmt.Errorf("judge: %s: line %d has more than %d MB: give a file of answers",
					path, n, maxLine>>20)
			}
			more = isPrefix && err == nil
		}
		if len(text) == 0 {
			continue
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return fmt.Errorf("judge: %s: line %d: is no JSON object of an answer: give a file that gad generate --data wrote", path, n)
		}
		if err := take(n, l); err != nil {
			return err
		}
	}
}
