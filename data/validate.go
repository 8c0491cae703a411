package data

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Encoder measures text in tokens, as the run will encode it.
type Encoder interface {
	// PromptLen returns the tokens of a conversation in the student's chat
	// template, up to where the answer begins.
	PromptLen(msgs []Message) (int, error)

	// AnswerLen returns the tokens of an answer with its end-of-sequence token.
	AnswerLen(text string) int
}

// Limits are a run's bounds, in tokens. 0 is no bound.
type Limits struct {
	MaxPrompt   int `json:"maxPrompt"`   // data.max_prompt_length
	MaxResponse int `json:"maxResponse"` // data.max_response_length
}

// Severity says whether a problem makes its row unusable.
type Severity string

const (
	SeverityError   Severity = "error"   // the row cannot be used
	SeverityWarning Severity = "warning" // the row can be used, but look at it
)

// Problem is something wrong with one row.
type Problem struct {
	Severity Severity `json:"severity"`
	Kind     string   `json:"kind"` // one of the Kind constants
	File     string   `json:"file"`
	Row      int      `json:"row"`   // in the file, from 0
	Index    int      `json:"index"` // in the set, from 0
	Column   string   `json:"column"`
	Detail   string   `json:"detail"`
}

// String is one line: severity, file, row, column and detail.
func (p Problem) String() string {
	return fmt.Sprintf("%s: %s: row %d: column %q: %s: %s", p.Severity, p.File, p.Row, p.Column, p.Kind, p.Detail)
}

// Kinds of problems.
const (
	KindUnreadable  = "unreadable"        // the file is damaged here
	KindFault       = "unusable row"      // what Row refuses
	KindNoTeacher   = "no teacher answer" // missing, empty or blank
	KindNoUser      = "no user turn"
	KindRole        = "unknown role"
	KindLastTurn    = "prompt does not end with the user"
	KindBlank       = "blank turn"
	KindTemplate    = "chat template fails"
	KindLongPrompt  = "prompt over the limit"
	KindLongAnswer  = "answer over the limit" // it would be cut
	KindControl     = "control characters"
	KindReplacement = "replacement characters" // damaged before it came here
	KindDuplicate   = "duplicate row"
)

// maxListed bounds the problems of one kind that a report lists; all are
// counted.
const maxListed = 20

// Lengths describes a distribution: nearest-rank percentiles.
type Lengths struct {
	P50 int `json:"p50"`
	P90 int `json:"p90"`
	P99 int `json:"p99"`
	Max int `json:"max"`
}

// Report is what Validate found.
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
	Errors        int            `json:"errors"`
	Warnings      int            `json:"warnings"`
	Counts        map[string]int `json:"counts"`   // problems by kind
	Problems      []Problem      `json:"problems"` // at most 20 of each kind
	Notes         []string       `json:"notes"`    // about the set as a whole
}

// OK says that every row can be used.
func (r *Report) OK() bool { return r.Errors == 0 }

var knownRoles = []string{"system", "developer", "user", "assistant", "tool"}

// Validate reads every row and reports what is wrong. enc may be nil: lengths
// are then counted in characters and held against no limit. The error is
// non-nil only where the set cannot be read at all; what is wrong with rows
// stands in the report.
func Validate(s *Set, enc Encoder, lim Limits) (*Report, error) {
	if s.Len() == 0 {
		return nil, fmt.Errorf("data: %s: no rows", s.path)
	}
	r := &Report{Path: s.path, Rows: s.Len(), Unit: "tokens", Limits: lim, Counts: map[string]int{}, Notes: s.Warnings()}
	if enc == nil {
		r.Unit = "characters"
	}
	var promptLens, answerLens []int
	type answers struct {
		first   [sha256.Size]byte
		several bool
	}
	byPrompt := map[[sha256.Size]byte]*answers{}
	rowOf := map[[sha256.Size]byte]int{}
	noTeacher := 0
	for i := range s.Len() {
		add := func(sev Severity, kind, column, detail string) {
			if sev == SeverityError {
				r.Errors++
			} else {
				r.Warnings++
			}
			if r.Counts[kind]++; r.Counts[kind] <= maxListed {
				file, at := s.locate(i)
				r.Problems = append(r.Problems, Problem{sev, kind, file, at, i, column, detail})
			}
		}
		row, err := s.Row(i)
		var bad *rowFault
		switch {
		case errors.As(err, &bad):
			add(SeverityError, KindFault, bad.column, strings.Trim(bad.value+": "+bad.rule, ": "))
			continue
		case err != nil:
			file, at := s.locate(i)
			add(SeverityError, KindUnreadable, "", strings.TrimPrefix(err.Error(), fmt.Sprintf("data: %s: row %d: ", file, at)))
			continue
		}

		if row.Messages != nil {
			checkTurns(row.Messages, s.has.Content, add)
			n := 0
			if enc == nil {
				for _, m := range row.Messages {
					n += utf8.RuneCountInString(m.Content)
				}
			} else if n, err = enc.PromptLen(row.Messages); err != nil {
				add(SeverityError, KindTemplate, s.has.Content, err.Error())
			}
			promptLens = append(promptLens, n)
		} else {
			promptLens = append(promptLens, len(row.PromptIDs))
		}
		if n := promptLens[len(promptLens)-1]; enc != nil && lim.MaxPrompt > 0 && n > lim.MaxPrompt {
			r.LongPrompts++
			add(SeverityError, KindLongPrompt, s.has.Content, fmt.Sprintf("%d tokens, the limit is %d", n, lim.MaxPrompt))
		}

		teacher := s.has.Teacher
		if teacher == "" {
			teacher = s.has.Content
		}
		if strings.TrimSpace(row.Teacher) == "" {
			noTeacher++
			if !s.HasResponse() || s.has.Teacher != "" {
				add(SeverityError, KindNoTeacher, teacher, "missing, empty or blank")
			}
		}
		for _, a := range []struct{ column, text string }{{teacher, row.Teacher}, {s.has.Response, row.Response}} {
			if a.text == "" {
				continue
			}
			checkText(a.text, a.column, "", add)
			n := utf8.RuneCountInString(a.text)
			if enc != nil {
				n = enc.AnswerLen(a.text)
			}
			answerLens = append(answerLens, n)
			if enc != nil && lim.MaxResponse > 0 && n > lim.MaxResponse {
				r.CutAnswers++
				add(SeverityWarning, KindLongAnswer, a.column, fmt.Sprintf("%d tokens, the limit is %d: it would be cut", n, lim.MaxResponse))
			}
		}

		h := sha256.New()
		hashPrompt(h, row)
		prompt := [sha256.Size]byte(h.Sum(nil))
		hashString(h, row.Teacher)
		hashString(h, row.Response)
		hashIDs(h, row.ResponseIDs)
		whole := [sha256.Size]byte(h.Sum(nil))
		if first, ok := rowOf[whole]; ok {
			file, at := s.locate(first)
			add(SeverityWarning, KindDuplicate, s.has.Content, fmt.Sprintf("same prompt and answer as row %d of %s", at, file))
		} else {
			rowOf[whole] = i
		}
		if p := byPrompt[prompt]; p == nil {
			byPrompt[prompt] = &answers{first: whole}
		} else if p.first != whole && !p.several {
			p.several = true
			r.SharedPrompts++
		}
	}
	r.Answers = len(answerLens)
	r.Prompt, r.Answer = lengths(promptLens), lengths(answerLens)
	if noTeacher == s.Len() && s.HasResponse() && s.has.Teacher == "" {
		r.Notes = append(r.Notes, "no row has a teacher answer: the set is good for logprobs and score, not for training")
	}
	r.Digest = s.Digest()
	return r, nil
}

// checkTurns looks at a prompt's turns.
func checkTurns(turns []Message, column string, add func(Severity, string, string, string)) {
	users := 0
	for i, m := range turns {
		at := "turn " + strconv.Itoa(i)
		if m.Role == "user" {
			users++
			if strings.TrimSpace(m.Content) == "" {
				add(SeverityWarning, KindBlank, column, at+" of the user says nothing")
			}
		}
		if !slices.Contains(knownRoles, m.Role) {
			add(SeverityError, KindRole, column, fmt.Sprintf("%s: %s is none of %s", at, preview(m.Role, 20), strings.Join(knownRoles, ", ")))
		}
		checkText(m.Content, column, at+": ", add)
	}
	switch {
	case users == 0:
		add(SeverityError, KindNoUser, column, fmt.Sprintf("%d turns", len(turns)))
	case turns[len(turns)-1].Role != "user" && turns[len(turns)-1].Role != "tool":
		add(SeverityWarning, KindLastTurn, column, "its last turn is of "+preview(turns[len(turns)-1].Role, 20))
	}
}

// checkText looks for letters that no person wrote.
func checkText(s, column, at string, add func(Severity, string, string, string)) {
	control := strings.IndexFunc(s, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t'
	})
	if control >= 0 {
		r, _ := utf8.DecodeRuneInString(s[control:])
		add(SeverityWarning, KindControl, column, fmt.Sprintf("%s%U at byte %d", at, r, control))
	}
	if i := strings.IndexRune(s, utf8.RuneError); i >= 0 {
		add(SeverityWarning, KindReplacement, column, fmt.Sprintf("%sU+FFFD at byte %d: the text was damaged when it was made", at, i))
	}
}

// lengths returns the nearest-rank percentiles of n: the smallest value that
// at least p percent of the values do not exceed. It sorts n.
func lengths(n []int) Lengths {
	if len(n) == 0 {
		return Lengths{}
	}
	slices.Sort(n)
	rank := func(p float64) int { return n[max(int(math.Ceil(p*float64(len(n))/100)), 1)-1] }
	return Lengths{rank(50), rank(90), rank(99), n[len(n)-1]}
}

// String lays the report out for a terminal.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d rows, digest %s\n", r.Path, r.Rows, r.Digest)
	fmt.Fprintf(&b, "%-8s %8s %8s %8s %8s  %s\n", "length", "p50", "p90", "p99", "max", r.Unit)
	line := func(name string, l Lengths, over, of, limit int) {
		fmt.Fprintf(&b, "%-8s %8d %8d %8d %8d", name, l.P50, l.P90, l.P99, l.Max)
		if r.Unit == "tokens" && limit > 0 && of > 0 {
			fmt.Fprintf(&b, "  %d of %d (%.1f %%) over the limit of %d", over, of, 100*float64(over)/float64(of), limit)
		}
		b.WriteByte('\n')
	}
	line("prompt", r.Prompt, r.LongPrompts, r.Rows, r.Limits.MaxPrompt)
	line("answer", r.Answer, r.CutAnswers, r.Answers, r.Limits.MaxResponse)
	if r.SharedPrompts > 0 {
		fmt.Fprintf(&b, "%d prompts come with several different answers\n", r.SharedPrompts)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	listed := map[string]int{}
	for _, p := range r.Problems {
		fmt.Fprintln(&b, p)
		listed[p.Kind]++
	}
	var kinds []string
	for kind, n := range r.Counts {
		if n > listed[kind] {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	for _, kind := range kinds {
		fmt.Fprintf(&b, "... and %d more: %s\n", r.Counts[kind]-listed[kind], kind)
	}
	fmt.Fprintf(&b, "%d errors, %d warnings\n", r.Errors, r.Warnings)
	return b.String()
}
