package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// words makes a token of each word; the template refuses prompts that say so.
type words struct{}

func (words) Prompt(r Row) ([]int32, error) {
	if r.PromptIDs != nil {
		for i, id := range r.PromptIDs {
			if id > 100 {
				return nil, fmt.Errorf("prompt_ids[%d] is no token", i)
			}
		}
		return r.PromptIDs, nil
	}
	n := 0
	for _, m := range r.Messages {
		if m.Content == "refuse me" {
			return nil, errors.New("template says no")
		}
		n += len(strings.Fields(m.Content))
	}
	return make([]int32, n), nil
}

func (words) Lost(text string) (int, string) {
	return strings.Count(text, "\u2603"), "U+2603 is left out"
}

func (words) Shows(r Row) error {
	if r.Tools == `[{"name":"unseen"}]` {
		return errors.New("tools: the template does not write them")
	}
	return nil
}

func (w words) Reply(r Row) (ids []int32, learned []Span, err error) {
	for _, m := range r.Turns {
		if m.Name == "rewritten" {
			return nil, nil, fmt.Errorf("turn: %w", ErrAppend)
		}
		from := len(ids)
		ids = append(ids, w.Answer(m.Content+" "+string(m.ToolCalls))...)
		if m.Role == "assistant" && !m.Context {
			learned = append(learned, Span{from, len(ids)})
		}
	}
	return ids, learned, nil
}

func (words) Soft(r Row, answer []int32) ([]SoftLabel, string) {
	soft := make([]SoftLabel, len(answer))
	soft[0] = SoftLabel{IDs: answer[:1], LogProbs: []float32{r.Logprobs[0][0].LogProb}}
	return soft, ""
}

func (words) Answer(text string) []int32 { return make([]int32, len(strings.Fields(text))+1) }

func TestValidateFindsEachProblem(t *testing.T) {
	user := func(content string) string {
		return fmt.Sprintf(`[{"role":"user","content":%q}]`, content)
	}
	for _, c := range []struct {
		kind     string
		severity Severity
		line     string
		column   string
		detail   string
	}{
		{KindNoTeacher, SeverityError, `{"content":` + user("q") + `}`, "teacher_response", "missing"},
		{KindNoTeacher, SeverityError, `{"content":` + user("q") + `,"teacher_response":" \n"}`, "teacher_response", "blank"},
		{KindNoUser, SeverityError, `{"content":[{"role":"system","content":"s"}],"teacher_response":"a"}`, "content", "no user turn"},
		{KindRole, SeverityError, `{"content":[{"role":"human","content":"h"},{"role":"user","content":"q"}],"teacher_response":"a"}`, "content", `turn 0 of column "content" has the unknown role "human"`},
		{KindLastTurn, SeverityWarning, `{"content":[{"role":"user","content":"q"},{"role":"system","content":"s"}],"teacher_response":"a"}`, "content", `"system"`},
		{KindBlank, SeverityWarning, `{"content":` + user(" ") + `,"teacher_response":"a"}`, "content", "turn 0"},
		{KindLongPrompt, SeverityError, `{"content":` + user("1 2 3 4 5 6") + `,"teacher_response":"a"}`, "content", "prompt has 6 tokens, data.max_prompt_length is 5"},
		{KindLongAnswer, SeverityWarning, `{"content":` + user("q") + `,"teacher_response":"1 2 3 4"}`, "teacher_response", "has 5 tokens and is cut at data.max_response_length 4"},
		{KindTokens, SeverityError, `{"prompt_ids":[1,2000],"teacher_response":"a"}`, "prompt_ids", "prompt_ids[1] is no token"},
		{KindNoUser, SeverityError, `{"content":[],"teacher_response":"a"}`, "content", "no user turn"},
		{KindTemplate, SeverityError, `{"content":` + user("refuse me") + `,"teacher_response":"a"}`, "content", "template says no"},
		{KindControl, SeverityWarning, `{"content":` + user("q") + `,"teacher_response":"a\u0007b"}`, "teacher_response", "U+0007 at byte 1"},
		{KindReplacement, SeverityWarning, `{"content":` + user("a\ufffd") + `,"teacher_response":"a"}`, "content", "U+FFFD at byte 1"},
		{KindLost, SeverityWarning, `{"content":` + user("a \u2603\u2603") + `,"teacher_response":"a"}`, "content", "2 characters without a token in the student's vocabulary in a text in column \"content\" (the first: U+2603 is left out): use a student"},
		{KindLost, SeverityWarning, `{"content":` + user("q") + `,"teacher_response":"\u2603"}`, "teacher_response", "1 character without a token"},
		{KindUnread, SeverityWarning, `{"content":` + user("q") + `,"teacher_response":"a","context":"c"}`, "context", "is not read"},
		{KindMarks, SeverityWarning, `{"content":` + user("q <|im_end|>") + `,"teacher_response":"a"}`, "content", "<|im_end|>"},
		{KindThinking, SeverityWarning, `{"content":` + user("q") + `,"teacher_response":"<think>"}`, "teacher_response", "<think>"},
		{KindDuplicate, SeverityWarning, `{"content":` + user("good") + `,"teacher_response":"fine"}`, "content", "as row 0"},
		{KindFault, SeverityError, "{\"content\":\"\xff\",\"teacher_response\":\"a\"}", "content",
			"not valid UTF-8"},
		{KindFault, SeverityError, `{"teacher_response":"a"}`, "content", "no prompt"},
		{KindUnreadable, SeverityError, `{"content":`, "", `key "content": EOF: file is cut short`},
	} {
		t.Run(c.kind, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.jsonl")
			writeTest(t, path, `{"content":`+user("good")+`,"teacher_response":"fine","prompt_ids":null}`+"\n\n"+c.line+"\n")
			r, err := Validate(openTest(t, path), words{}, Limits{MaxPrompt: 5, MaxResponse: 4})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Problems) != 1 || r.Counts[c.kind] != 1 {
				t.Fatalf("problems %v, counts %v", r.Problems, r.Counts)
			}
			p := r.Problems[0]
			if p.Kind != c.kind || p.Severity != c.severity || p.File != path || p.Row != 1 ||
				p.Index != 1 || p.Column != c.column || !strings.Contains(p.Detail, c.detail) {
				t.Errorf("got %+v", p)
			}
			if r.OK() != (c.severity == SeverityWarning) || r.Errors+r.Warnings != 1 {
				t.Errorf("OK %v with %d errors, %d warnings", r.OK(), r.Errors, r.Warnings)
			}
			if !strings.Contains(r.String(), p.String()) {
				t.Errorf("report does not show the problem:\n%s", r)
			}
		})
	}
}

func TestValidateMeasures(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	var b strings.Builder
	for i := 1; i <= 100; i++ {
		fmt.Fprintf(&b, `{"content":%q,"teacher_response":%q}`+"\n", strings.Repeat("p ", i), strings.Repeat("a ", 2*i-1))
	}
	fmt.Fprintln(&b, `{"content":"p ","teacher_response":"another"}`)
	writeTest(t, path, b.String())
	s := openTest(t, path)
	r, err := Validate(s, words{}, Limits{MaxPrompt: 98, MaxResponse: 150})
	if err != nil {
		t.Fatal(err)
	}
	// prompts are 1, 1, 2, ... 100 words; answers are 2, 2, 4, ... 200 with their end
	if want := (Lengths{50, 90, 99, 100}); r.Prompt != want {
		t.Errorf("prompt %v, want %v", r.Prompt, want)
	}
	if want := (Lengths{100, 180, 198, 200}); r.Answer != want {
		t.Errorf("answer %v, want %v", r.Answer, want)
	}
	if r.LongPrompts != 2 || r.CutAnswers != 25 || r.Answers != 101 || r.SharedPrompts != 1 {
		t.Errorf("%d long prompts, %d cut of %d answers, %d shared prompts", r.LongPrompts,
			r.CutAnswers, r.Answers, r.SharedPrompts)
	}
	if len(r.Problems) != 2 || r.Problems[0].Count != 25 || r.Counts[KindLongAnswer] != 25 {
		t.Errorf("%d problems listed, %v counted", len(r.Problems), r.Counts)
	}
	if text := r.String(); !strings.Contains(text, "25 of 101 (24.8 %) over the limit of 150") ||
		!strings.Contains(text,
			"rows 75, 76, 77, 78, 79 and 20 more, of the same kind; row 75: answer in column") {
		t.Errorf("report:\n%s", text)
	}
	if r.Digest != s.Digest() {
		t.Error("digest differs from the set's")
	}
	var back Report
	if text, err := json.Marshal(r); err != nil || json.Unmarshal(text, &back) != nil ||
		back.CutAnswers != 25 {
		t.Errorf("the report does not survive JSON: %v", err)
	}

	plain, err := Validate(s, nil, Limits{MaxPrompt: 1, MaxResponse: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !plain.OK() || plain.Unit != "characters" || plain.Prompt.Max != 200 {
		t.Errorf("without an encoder: %+v", plain)
	}
}

func TestValidateFixtures(t *testing.T) {
	for _, path := range sameRows(t) {
		r, err := Validate(openTest(t, path), words{}, Limits{MaxPrompt: 100, MaxResponse: 1000})
		if err != nil {
			t.Fatal(err)
		}
		// the empty question, a control token as text, and one prompt with two answers
		if !r.OK() || r.Warnings != 2 || r.Counts[KindBlank] != 1 || r.Counts[KindMarks] != 1 ||
			r.SharedPrompts != 1 || r.EarlierTurns != 1 {
			t.Errorf("%s:\n%s", path, r)
		}
	}
	for _, ext := range []string{"arrow", "parquet", "jsonl"} {
		r, err := Validate(openTest(t, filepath.Join(fixtures, "ids."+ext)), words{}, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if !r.OK() || len(r.Notes) != 1 || r.Prompt.Max != 3 {
			t.Errorf("ids.%s:\n%s", ext, r)
		}
	}
}

func TestInspect(t *testing.T) {
	for _, c := range []struct {
		path string
		want []string
	}{
		{"snappy.parquet", []string{"parquet, 12 rows", "teacher_response     string", "list<struct<role: string, content: string>>", "<- teacher's answer", `TEACHER    "4"`, `user       "What is 2+2?"`}},
		{"file_plain.arrow", []string{"arrow file, 12 rows", "list<", "score"}},
		{"saved", []string{"arrow stream, 12 rows", "in 3 files",
			"data-00002-of-00003.arrow: arrow stream, 4 rows"}},
		{"ids.arrow", []string{"prompt     3 tokens"}},
	} {
		info := Inspect(openTest(t, filepath.Join(fixtures, c.path)), 0)
		for _, w := range c.want {
			if !strings.Contains(info.String(), w) {
				t.Errorf("%s: no %q in\n%s", c.path, w, info)
			}
		}
		if _, err := json.Marshal(info); err != nil {
			t.Error(err)
		}
	}
}
