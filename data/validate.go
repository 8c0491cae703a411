package data

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"gad/data/layout"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Problem is a mistake of one row, or the same mistake of several.
type Problem struct {
	Severity Severity `json:"severity"`
	Kind     string   `json:"kind"` // one of the Kind constants
	File     string   `json:"file"`
	Row      int      `json:"row"`   // in the file, from 0; the first of several
	Index    int      `json:"index"` // of that row in the set, from 0
	Column   string   `json:"column"`
	Detail   string   `json:"detail"` // of the first row
	Count    int      `json:"count"`  // rows
	Rows     []int    `json:"rows"`   // the first of them, in the file

	varies bool // Detail differs from row to row
}

// String returns a line: severity, file, rows and the mistake.
func (p Problem) String() string {
	if p.varies {
		return fmt.Sprintf("%s: %s: %s, of the same kind; row %d: %s", p.Severity, p.File,
			rowsText(p.Rows, p.Count), p.Row, p.Detail)
	}
	return fmt.Sprintf("%s: %s: %s: %s", p.Severity, p.File, rowsText(p.Rows, p.Count), p.Detail)
}

const (
	maxListed = 20 // problems of one kind that a report lists; all are counted
	maxNamed  = 5  // rows that a problem names

	// different prompts from which on an equal answer is reported, if they are 1 % of the rows too
	leastEqual = 3
	maxEqual   = 3 // such answers that are reported
)

// Lengths describes a distribution: nearest-rank percentiles.
type Lengths struct {
	P50 int `json:"p50"`
	P90 int `json:"p90"`
	P99 int `json:"p99"`
	Max int `json:"max"`
}

// Report is the result of Validate.
type Report struct {
	Path          string         `json:"path"`
	Rows          int            `json:"rows"`
	Digest        string         `json:"digest"`
	Unit          string         `json:"unit"` // of the lengths: "tokens", or "characters" without an encoder
	Limits        Limits         `json:"limits"`
	Prompt        Lengths        `json:"prompt"`
	Answer        Lengths        `json:"answer"`
	LongPrompts   int            `json:"longPrompts"`   // prompts over the limit
	CutAnswers    int            `json:"cutAnswers"`    // answers over the limit
	Answers       int            `json:"answers"`       // rows with an answer
	SharedPrompts int            `json:"sharedPrompts"` // prompts that come with several different answers
	Errors        int            `json:"errors"`        // rows and kinds; a row may have several
	Warnings      int            `json:"warnings"`
	Counts        map[string]int `json:"counts"`        // problems by kind
	Problems      []Problem      `json:"problems"`      // at most 20 of each kind; equal ones of several rows are one
	Turns         int            `json:"turns"`         // of the teacher, that are learned
	TrainedTokens int            `json:"trainedTokens"` // of these turns within the limit, with their ends; 0 without an encoder
	Rewritten     int            `json:"rewritten"`     // rows whose turns cannot grow as one sequence (data.turns=all); counted with an encoder
	EarlierTurns  int            `json:"earlierTurns"`  // rows with answers of the assistant before the last, which are prompt
	Envs          int            `json:"envs"`          // rows with something for an environment
	Soft          int            `json:"soft"`          // rows with log-probabilities of the teacher
	Hard          int            `json:"hard"`          // of these, those whose log-probabilities are not read
	SoftTokens    int            `json:"softTokens"`    // of TrainedTokens, those with soft labels
	Equal         []EqualAnswer  `json:"equal"`         // answers that several different prompts have, the most frequent first
	Notes         []string       `json:"notes"`         // about the set as a whole

	talks bool // some row has several turns of an assistant, or a turn with more than a text
}

// EqualAnswer is an answer that stands in rows with different prompts.
type EqualAnswer struct {
	Text    string `json:"text"` // its beginning
	Prompts int    `json:"prompts"`
	Row     int    `json:"row"` // in the set, from 0; the first
}

// AnswerTally counts equal answers: a refusal, a template, or an endpoint's cache gives many
// prompts the same one. The zero tally is empty.
type AnswerTally struct{ of map[[16]byte]*EqualAnswer } // by the beginning of a digest

// Add counts the answer to one more prompt.
func (t *AnswerTally) Add(answer string, row int) {
	sum := sha256.Sum256([]byte(strings.TrimSpace(answer)))
	key := [16]byte(sum[:])
	if t.of == nil {
		t.of = map[[16]byte]*EqualAnswer{}
	}
	if a := t.of[key]; a != nil {
		a.Prompts++
		return
	}
	t.of[key] = &EqualAnswer{layout.Preview(answer, 60), 1, row}
}

// Equal returns the answers to 3 prompts or more that are 1 % of the rows or more, the most
// frequent first, and a line for people on each of the first.
func (t *AnswerTally) Equal(rows int) (equal []EqualAnswer, notes []string) {
	for _, a := range t.of {
		if a.Prompts >= leastEqual && a.Prompts*100 >= rows {
			equal = append(equal, *a)
		}
	}
	slices.SortFunc(equal,
		func(a, b EqualAnswer) int { return cmp.Or(b.Prompts-a.Prompts, a.Row-b.Row) })
	for _, a := range equal[:min(len(equal), maxEqual)] {
		notes = append(notes, fmt.Sprintf(
			"%d of %d rows have the same answer, %s, to different prompts (the first is row %d)",
			a.Prompts, rows, a.Text, a.Row))
	}
	if more := len(equal) - maxEqual; more > 0 {
		notes = append(notes, fmt.Sprintf("%s more: to %d or more different prompts each",
			layout.CountOf(more, "such answer"), leastEqual))
	}
	return equal, notes
}

// OK reports whether training takes every row.
func (r *Report) OK() bool { return r.Errors == 0 }

// Validate reads every row and returns its problems. Errors are rows that training refuses, by the
// same code (Example); warnings are rows that it takes. enc may be nil: lengths are then counted in
// characters and compared with no limit. The error is non-nil only if the set cannot be read at
// all.
func Validate(s *Set, enc Encoder, lim Limits) (*Report, error) {
	if s.Len() == 0 {
		return nil, fmt.Errorf("data: %s: no rows", s.path)
	}
	r := &Report{Path: s.path, Rows: s.Len(), Unit: "tokens", Limits: lim, Counts: map[string]int{},
		Notes: slices.Concat(s.notes, s.warn)}
	if chosen := s.Chosen(); chosen != "" {
		r.Notes = append(r.Notes, chosen)
	}
	if _, others := s.Overlooked(); others != "" {
		r.Notes = append(r.Notes, others)
	}
	if enc == nil {
		r.Unit = "characters"
	}
	var promptLens, answerLens []int
	type answers struct {
		first   Key
		several bool
	}
	byPrompt := map[Key]*answers{}
	rowOf := map[Key]int{}
	var tally AnswerTally
	groups := map[[4]string]int{} // severity, kind, file and group -> index in Problems
	listed := map[string]int{}    // problems of a kind
	training, noTeacher := s.forTraining(), 0
	advance, done := s.Stage("checking rows", s.Len())
	defer done()
	s.sequential(true)
	defer s.sequential(false)
	inOrder(s.Len(), func(i int) (e examined) {
		add := func(f finding) { e.findings = append(e.findings, f) }
		if e.Example, e.err = s.examine(i, enc, lim, training, add); e.err != nil {
			return e
		}
		if e.Row.Response != "" {
			column := s.layoutOf(i).Response
			checkText(e.Row.Response, column, enc, add)
			if enc != nil {
				e.response = enc.Answer(e.Row.Response)
				checkAnswer(len(e.response), column, lim, add)
			}
		}
		e.prompt, e.whole = e.Row.Keys()
		e.rewritten = enc != nil && s.rewritten(i, enc)
		return e
	}, func(i int, e examined) bool {
		file, at := s.locate(i)
		add := func(f finding) {
			if f.severity == SeverityError {
				r.Errors++
			} else {
				r.Warnings++
			}
			r.Counts[f.kind]++
			key := [4]string{string(f.severity), f.kind, file, f.group}
			k, known := groups[key]
			if !known {
				if listed[f.kind]++; listed[f.kind] > maxListed {
					return
				}
				k = len(r.Problems)
				groups[key] = k
				r.Problems = append(r.Problems,
					Problem{Severity: f.severity, Kind: f.kind, File: file, Row: at, Index: i,
						Column: f.column, Detail: f.text})
			}
			p := &r.Problems[k]
			p.varies = p.varies || p.Detail != f.text
			if p.Count++; len(p.Rows) < maxNamed {
				p.Rows = append(p.Rows, at)
			}
		}
		for _, f := range e.findings {
			add(f)
		}
		advance(1)
		if e.err != nil {
			return true
		}
		row := e.Row

		n := len(e.Example.Prompt)
		if enc == nil && len(row.PromptIDs) > 0 {
			n = len(row.PromptIDs)
		} else if enc == nil {
			for _, m := range row.Messages {
				n += utf8.RuneCountInString(m.Content)
			}
		}
		if promptLens = append(promptLens, n); enc != nil && lim.MaxPrompt > 0 &&
			n > lim.MaxPrompt {
			r.LongPrompts++
		}
		count := func(n int) {
			if answerLens = append(answerLens, n); enc != nil && lim.MaxResponse > 0 &&
				n > lim.MaxResponse {
				r.CutAnswers++
			}
		}
		measure := func(text string, tokens []int32) int {
			if enc == nil {
				return utf8.RuneCountInString(text)
			}
			return len(tokens)
		}
		if strings.TrimSpace(row.Teacher) == "" {
			noTeacher++
		} else {
			text := row.Teacher
			for i, m := range row.Turns {
				if i < len(row.Turns)-1 || m.Thinking != "" {
					text += m.Content + m.Thinking + string(m.ToolCalls)
				}
			}
			count(measure(text, e.Answer))
			r.Turns += max(row.learnedTurns(), 1)
			limit := len(e.Answer)
			if lim.MaxResponse > 0 {
				limit = min(limit, lim.MaxResponse)
			}
			spans := e.Spans
			if spans == nil {
				spans = []Span{{0, limit}}
			}
			for _, p := range spans {
				r.TrainedTokens += max(min(p.To, limit)-p.From, 0)
			}
			for _, label := range e.Example.Soft[:min(limit, len(e.Example.Soft))] {
				if label.IDs != nil {
					r.SoftTokens++
				}
			}
			if _, ok := rowOf[e.whole]; !ok { // a duplicate row is another warning
				tally.Add(row.Teacher, i)
			}
		}
		if e.rewritten {
			r.Rewritten++
		}
		if row.Env != "" {
			r.Envs++
		}
		if row.Logprobs != nil {
			r.Soft++
		}
		if e.Hard != "" {
			r.Hard++
		}
		if slices.ContainsFunc(row.Messages,
			func(m Message) bool { return m.Role == "assistant" }) {
			r.EarlierTurns++
			r.talks = true
		}
		r.talks = r.talks || row.Turns != nil
		if row.Response != "" {
			count(measure(row.Response, e.response))
		}

		if first, ok := rowOf[e.whole]; ok {
			file, at := s.locate(first)
			add(finding{SeverityWarning, KindDuplicate, s.layoutOf(i).Content,
				fmt.Sprintf("same prompt and answer as row %d of %s", at, file), ""})
		} else {
			rowOf[e.whole] = i
		}
		if p := byPrompt[e.prompt]; p == nil {
			byPrompt[e.prompt] = &answers{first: e.whole}
		} else if p.first != e.whole && !p.several {
			p.several = true
			r.SharedPrompts++
		}
		return true
	})
	var notes []string
	r.Equal, notes = tally.Equal(s.Len())
	r.Notes = append(r.Notes, notes...)
	if r.Rewritten > 0 && s.opt.Turns != TurnsAll {
		r.Notes = append(r.Notes,
			fmt.Sprintf("%s of several turns cannot be one sequence (data.turns=all), since %v",
				layout.CountOf(r.Rewritten, "row"), ErrAppend))
	}
	if r.EarlierTurns > 0 && training && s.opt.Turns == TurnsLast {
		r.Notes = append(r.Notes, fmt.Sprintf("%d of %d rows have earlier answers of the assistant: these are prompt, only the last is learned", r.EarlierTurns, s.Len()))
	}
	r.Answers = len(answerLens)
	r.Prompt, r.Answer = MeasureLengths(promptLens), MeasureLengths(answerLens)
	if noTeacher == s.Len() && !training {
		r.Notes = append(r.Notes,
			"no row has a teacher answer: the set is good for logprobs and score, not for training")
	}
	if training && r.Answers > 0 && r.CutAnswers == r.Answers {
		r.Notes = append(r.Notes, fmt.Sprintf("every answer is over the limit of %d tokens and no row can make a pair: warmup, train and dpo refuse the set; %d would keep all answers, %d 99 %%", lim.MaxResponse, r.Answer.Max, r.Answer.P99))
	}
	r.Digest = s.Digest()
	return r, nil
}

// RowProblems returns the problems of row i alone, such as Validate finds them, but not its
// duplicates.
func (s *Set) RowProblems(i int, enc Encoder, lim Limits) (problems []Problem) {
	file, at := s.locate(i)
	_, _ = s.examine(i, enc, lim, s.forTraining(), func(f finding) { // the error is a finding too
		problems = append(problems,
			Problem{Severity: f.severity, Kind: f.kind, File: file, Row: at, Index: i,
				Column: f.column, Detail: f.text, Count: 1, Rows: []int{at}})
	})
	return problems
}

// rewritten reports whether the whole conversation of row i cannot be one sequence; of the rows of
// one conversation only the first counts.
func (s *Set) rewritten(i int, enc Encoder) bool {
	if _, turn := s.inFile(i); turn > 0 {
		return false
	}
	raw, err := s.raw(i)
	if err != nil {
		return false
	}
	l := s.layoutOf(i)
	c, bad := converse(l, raw)
	if bad != nil {
		return false
	}
	row, bad := c.answerOf(l, TurnsAll, 0)
	if bad != nil || len(row.Turns) < 2 {
		return false
	}
	_, _, err = enc.Reply(row)
	return errors.Is(err, ErrAppend)
}

// learnedTurns returns the number of the row's Turns that are learned.
func (r Row) learnedTurns() (n int) {
	for _, m := range r.Turns {
		if answers(m) && !m.Context {
			n++
		}
	}
	return n
}

// forTraining reports whether the rows should carry teacher answers: a set of given answers without
// any is one for logprobs and score.
func (s *Set) forTraining() bool { return !s.HasResponse() || s.HasTeacher() }

// Shared returns the number of rows of val whose prompt is in train too, and the number whose
// prompt and answer are. A row that cannot be read does not count.
func Shared(train, val *Set) (prompts, rows int, err error) {
	promptsOf, rowsOf := map[Key]int{}, map[Key]int{}
	each := func(s *Set, f func(prompt, row Key)) error {
		advance, done := s.Stage("comparing rows", s.Len())
		defer done()
		for i := range s.Len() {
			row, err := s.Row(i)
			var bad *layout.Fault
			if err != nil && !errors.As(err, &bad) {
				return err
			}
			if err == nil {
				f(row.Keys())
			}
			advance(1)
		}
		return nil
	}
	err = each(val, func(prompt, row Key) { promptsOf[prompt]++; rowsOf[row]++ })
	if err != nil {
		return 0, 0, err
	}
	err = each(train, func(prompt, row Key) {
		prompts, rows = prompts+promptsOf[prompt], rows+rowsOf[row]
		delete(promptsOf, prompt) // each counts once, however often the training set has it
		delete(rowsOf, row)
	})
	return prompts, rows, err
}

// examined is Validate's result for a row alone.
type examined struct {
	Example
	prompt, whole Key
	response      []int32
	rewritten     bool
	findings      []finding
	err           error
}

// MeasureLengths returns the nearest-rank percentiles of n: the smallest value that
// at least p percent of the values do not exceed. It sorts n.
func MeasureLengths(n []int) Lengths {
	if len(n) == 0 {
		return Lengths{}
	}
	slices.Sort(n)
	rank := func(p float64) int { return n[max(int(math.Ceil(p*float64(len(n))/100)), 1)-1] }
	return Lengths{rank(50), rank(90), rank(99), n[len(n)-1]}
}

// String returns the report for a terminal.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, digest %s\n", r.Path, layout.CountOf(r.Rows, "row"), r.Digest)
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	fmt.Fprintf(&b, "%-8s %8s %8s %8s %8s  %s\n", "length", "p50", "p90", "p99", "max", r.Unit)
	line := func(name string, l Lengths, over, of, limit int) {
		fmt.Fprintf(&b, "%-8s %8d %8d %8d %8d", name, l.P50, l.P90, l.P99, l.Max)
		if r.Unit == "tokens" && limit > 0 && of > 0 {
			fmt.Fprintf(&b, "  %d of %d (%.1f %%) over the limit of %d", over, of,
				100*float64(over)/float64(of), limit)
		}
		b.WriteByte('\n')
	}
	line("prompt", r.Prompt, r.LongPrompts, r.Rows, r.Limits.MaxPrompt)
	line("answer", r.Answer, r.CutAnswers, r.Answers, r.Limits.MaxResponse)
	if r.talks && r.Turns > 0 {
		fmt.Fprintf(&b, "learned  %s", layout.CountOf(r.Turns, "turn"))
		if r.Unit == "tokens" {
			fmt.Fprintf(&b, ", %s", layout.CountOf(r.TrainedTokens, "token"))
		}
		b.WriteByte('\n')
	}
	if r.Envs > 0 {
		fmt.Fprintf(&b, "env      %s\n", layout.CountOf(r.Envs, "row"))
	}
	if r.Soft > 0 {
		fmt.Fprintf(&b, "soft     %s with log-probabilities of the teacher",
			layout.CountOf(r.Soft, "row"))
		if r.Unit == "tokens" {
			fmt.Fprintf(&b, ": %d of %d tokens (%.1f %%) have soft labels", r.SoftTokens,
				r.TrainedTokens, 100*float64(r.SoftTokens)/float64(max(r.TrainedTokens, 1)))
		}
		if r.Hard > 0 {
			fmt.Fprintf(&b, "; %s not read", layout.CountOf(r.Hard, "row"))
		}
		b.WriteByte('\n')
	}
	if r.SharedPrompts > 0 {
		verb := "come"
		if r.SharedPrompts == 1 {
			verb = "comes"
		}
		fmt.Fprintf(&b, "%s %s with several different answers\n",
			layout.CountOf(r.SharedPrompts, "prompt"), verb)
	}
	shown := map[string]int{}
	for _, p := range r.Problems {
		fmt.Fprintln(&b, p)
		shown[p.Kind] += p.Count
	}
	var kinds []string
	for kind, n := range r.Counts {
		if n > shown[kind] {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	for _, kind := range kinds {
		fmt.Fprintf(&b, "... and %d more: %s\n", r.Counts[kind]-shown[kind], kind)
	}
	fmt.Fprintf(&b, "%s, %s\n", layout.CountOf(r.Errors, "error"),
		layout.CountOf(r.Warnings, "warning"))
	return b.String()
}
