package data

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// said is what Validate prints of a file between its digest and its last line, without the
// lengths and the file's name, and all of it that is an error, too.
func said(t *testing.T, paths ...string) (lines []string) {
	t.Helper()
	s, err := OpenFiles(paths, Options{})
	if err != nil {
		return []string{strings.ReplaceAll(err.Error(), paths[0], "F")}
	}
	defer s.Close()
	r, err := Validate(s, words{}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(r.String()), "\n")[1:] {
		if strings.HasPrefix(line, "length ") || strings.HasPrefix(line, "prompt ") || strings.HasPrefix(line, "answer ") || strings.HasSuffix(line, " warnings") || strings.HasSuffix(line, " warning") {
			continue
		}
		for _, name := range s.Files() {
			line = strings.ReplaceAll(line, name, "F")
		}
		lines = append(lines, strings.ReplaceAll(line, paths[0], "F"))
	}
	if err := s.NeedTeacher(); err != nil {
		lines = append(lines, strings.ReplaceAll(err.Error(), paths[0], "F"))
	}
	return lines
}

// Public layouts as JSON lines, Parquet, Arrow and folders of datasets, which pyarrow and
// datasets wrote: the same rows, digest and words from each.
func TestLayoutFiles(t *testing.T) {
	user := func(text string) []Message { return []Message{{"user", text}} }
	for _, c := range []struct {
		name  string
		rows  []Row // those that can be used; Index is not compared
		words []string
	}{
		{"gpteacher", []Row{
			{Messages: user("Write a function that returns the area of a rectangle.\nwidth: 5, height: 8"), Teacher: "def area(w, h):\n    return w * h\n\narea(5, 8)  # 40"},
			{Messages: user("Say hello in three languages."), Teacher: "Hello, Hallo, Salut"},
			{Messages: user("Sort the numbers.\n3 1 2"), Teacher: "1 2 3"},
		}, []string{`note: F: read as alpaca: prompt from column "instruction" and "input", teacher's answer from column "response" (data.format=alpaca)`}},
		{"gsm8k", []Row{
			{Messages: user("A box has 3 rows of 4 eggs. How many eggs are there?"), Teacher: "There are 3*4=<<3*4=12>>12 eggs.\n#### 12"},
			{Messages: user("Tom has 5 pens and buys 2. How many has he?"), Teacher: "He has 5+2=<<5+2=7>>7 pens.\n#### 7"},
			{Messages: user("Half of 18?"), Teacher: "18/2=<<18/2=9>>9\n#### 9"},
		}, []string{`note: F: read as qa: prompt from column "question", teacher's answer from column "answer" (data.format=qa)`}},
		{"codealpaca", []Row{
			{Messages: user("Create an array of length 3."), Teacher: "arr = [0] * 3"},
			{Messages: user("What does the code print?\nprint(1 + 1)"), Teacher: "2"},
			{Messages: user("Name a loop keyword."), Teacher: "for"},
		}, []string{`note: F: read as alpaca: prompt from column "instruction" and "input", teacher's answer from column "output" (data.format=alpaca)`}},
		{"dolly", []Row{
			{Messages: user("When did the ship sail?\nThe ship Anna sailed from Riga in 1871."), Teacher: "In 1871."},
			{Messages: user("Name a fruit."), Teacher: "An apple."},
			{Messages: user("Who wrote it?\nThe letter is signed by Ida."), Teacher: "Ida."},
		}, []string{
			`note: F: read as alpaca: prompt from column "instruction" and "context", teacher's answer from column "response" (data.format=alpaca)`,
			`note: F: not read: "category"`,
		}},
		{"openai", []Row{
			{Messages: []Message{{"system", "Be brief."}, {"user", "Capital of France?"}, {"assistant", "Paris."}, {"user", "And of Spain?"}}, Teacher: "Madrid."},
			{Messages: []Message{{"system", "Be brief."}, {"user", "2+2?"}}, Teacher: "4."},
		}, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`note: 1 of 3 rows have earlier answers of the assistant: these are prompt, only the last is learned`,
			`error: F: row 2: column "messages": turn 3: the last answer has weight 0: it is not to be learned: remove the row, or the turns after the answer that is`,
		}},
		{"openai_tools", []Row{
			{Messages: user("Hello"), Teacher: "Hello."},
			{Messages: user("Bye"), Teacher: "Bye."},
		}, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`note: F: not read, although answers may speak of them: "tools": put what matters into the prompt`,
			`note: F: not read: "messages[].tool_call_id"`,
			`error: F: row 0: column "messages": turn 1: has tool_calls, which gad does not read: remove the row`,
			`warning: F: row 1: column "tools" is not read, although the answer may speak of it: put what matters into the prompt`,
		}},
		{"openai_parts", []Row{
			{Messages: user("Name a colour."), Teacher: "Red."},
			{Messages: user("Bye"), Teacher: "Bye."},
		}, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`error: F: row 1: column "messages": turn 0: its content has a part of type "image_url", and only text is read: remove the row`,
		}},
		{"sharegpt_weight", []Row{
			{ID: "a", Messages: []Message{{"system", "Be brief."}, {"user", "2+3?"}}, Teacher: "5."},
			{ID: "b", Messages: user("Name a bird."), Teacher: "A robin."},
		}, []string{
			`note: F: read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)`,
			`error: F: row 2: column "conversations": turn 1: the last answer has weight 0: it is not to be learned: remove the row, or the turns after the answer that is`,
		}},
		{"reasoning", []Row{
			{Messages: user("5*5?"), Teacher: "25."},
			{Messages: user("Hello"), Teacher: "Hello."},
			{Messages: user("6*6?"), Teacher: "36."},
		}, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`note: F: not read, although answers may speak of them: "messages[].reasoning_content": put what matters into the prompt`,
			`warning: F: rows 0 and 2: key "reasoning_content" of the turns in column "messages" is not read, although the answer may speak of it: put what matters into the prompt`,
		}},
		{"preference", []Row{
			{Messages: user("Name a river."), Teacher: "The Rhine."},
			{Messages: user("Name a lake."), Teacher: "Lake Como."},
			{Messages: user("Name a sea."), Teacher: "The Baltic Sea."},
		}, []string{
			`note: F: read as preference: prompt from column "prompt", teacher's answer from column "chosen" (data.format=preference)`,
			`note: F: not read: "rejected"`,
		}},
		{"preference_turns", []Row{
			{Messages: user("Name a river."), Teacher: "The Rhine."},
			{Messages: user("Name a lake."), Teacher: "Lake Como."},
			{Messages: user("Name a sea."), Teacher: "The Baltic Sea."},
		}, []string{
			`note: F: read as preference: prompt from column "chosen", teacher's answer is its last assistant turn (data.format=preference)`,
			`note: F: not read: "rejected"`,
		}},
	} {
		var digest string
		for _, ext := range []string{".jsonl", ".json", ".parquet", ".arrow", "_saved"} {
			path := filepath.Join("../testdata/layouts", c.name+ext)
			if found, _ := filepath.Glob(path); found == nil {
				continue
			}
			t.Run(c.name+ext, func(t *testing.T) {
				s := openTest(t, path)
				var rows []Row
				for i := range s.Len() {
					if row, err := s.Row(i); err == nil {
						row.Index = 0
						rows = append(rows, row)
					}
				}
				if !reflect.DeepEqual(rows, c.rows) {
					t.Errorf("rows\n got %+v\nwant %+v", rows, c.rows)
				}
				if digest == "" {
					digest = s.Digest()
				} else if s.Digest() != digest {
					t.Error("another digest than the JSON lines")
				}
				got, want := said(t, path), c.words
				if ext == "_saved" { // two files: row 2 is row 0 of the second
					got = slices.DeleteFunc(got, func(l string) bool { return strings.HasPrefix(l, "error") })
					want = slices.DeleteFunc(slices.Clone(want), func(l string) bool { return strings.HasPrefix(l, "error") })
				}
				if !slices.Equal(got, want) {
					t.Errorf("says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			})
		}
	}
}
