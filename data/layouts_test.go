package data

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const layoutFixtures = "../testdata/layouts"

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
		if strings.HasPrefix(line, "length ") || strings.HasPrefix(line, "prompt ") ||
			strings.HasPrefix(line, "answer ") || strings.HasPrefix(line, "learned ") ||
			strings.HasSuffix(line, " warnings") || strings.HasSuffix(line, " warning") {
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
	user := func(text string) []Message { return []Message{{Role: "user", Content: text}} }
	thought := func(thought, text string) []Message {
		return []Message{{Role: "assistant", Content: text, Thinking: thought}}
	}
	const weather = `[{"type":"function","function":{"name":"weather","description":"the weather of a city"}}]`
	for _, c := range []struct {
		name  string
		rows  []Row // those that can be used; Index is not compared
		words []string
	}{
		{"gpteacher", []Row{
			{Messages: user(
				"Write a function that returns the area of a rectangle.\nwidth: 5, height: 8"),
				Teacher: "def area(w, h):\n    return w * h\n\narea(5, 8)  # 40"},
			{Messages: user("Say hello in three languages."), Teacher: "Hello, Hallo, Salut"},
			{Messages: user("Sort the numbers.\n3 1 2"), Teacher: "1 2 3"},
		}, []string{`note: F: read as alpaca: prompt from column "instruction" and "input", teacher's answer from column "response" (data.format=alpaca)`}},
		{"gsm8k", []Row{
			{Messages: user("A box has 3 rows of 4 eggs. How many eggs are there?"),
				Teacher: "There are 3*4=<<3*4=12>>12 eggs.\n#### 12"},
			{Messages: user("Tom has 5 pens and buys 2. How many has he?"),
				Teacher: "He has 5+2=<<5+2=7>>7 pens.\n#### 7"},
			{Messages: user("Half of 18?"), Teacher: "18/2=<<18/2=9>>9\n#### 9"},
		}, []string{`note: F: read as qa: prompt from column "question", teacher's answer from column "answer" (data.format=qa)`}},
		{"codealpaca", []Row{
			{Messages: user("Create an array of length 3."), Teacher: "arr = [0] * 3"},
			{Messages: user("What does the code print?\nprint(1 + 1)"), Teacher: "2"},
			{Messages: user("Name a loop keyword."), Teacher: "for"},
		}, []string{`note: F: read as alpaca: prompt from column "instruction" and "input", teacher's answer from column "output" (data.format=alpaca)`}},
		{"dolly", []Row{
			{Messages: user("When did the ship sail?\nThe ship Anna sailed from Riga in 1871."),
				Teacher: "In 1871."},
			{Messages: user("Name a fruit."), Teacher: "An apple."},
			{Messages: user("Who wrote it?\nThe letter is signed by Ida."), Teacher: "Ida."},
		}, []string{
			`note: F: read as alpaca: prompt from column "instruction" and "context", teacher's answer from column "response" (data.format=alpaca)`,
			`note: F: not read: "category"`,
		}},
		{"openai", []Row{
			{Messages: []Message{{Role: "system", Content: "Be brief."},
				{Role: "user", Content: "Capital of France?"},
				{Role: "assistant", Content: "Paris."}, {Role: "user", Content: "And of Spain?"}},
				Teacher: "Madrid."},
			{Messages: []Message{{Role: "system", Content: "Be brief."},
				{Role: "user", Content: "2+2?"}}, Teacher: "4."},
		}, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`note: 1 of 3 rows have earlier answers of the assistant: these are prompt, only the last is learned`,
			`error: F: row 2: column "messages": turn 3: the last answer has weight 0 or "train": false: it is not to be learned: remove the row, or the turns after the answer that is`,
		}},
		{"openai_tools", []Row{
			{Messages: []Message{{Role: "user", Content: "Weather in Rome?"},
				{Role: "assistant", ToolCalls: `[{"id":"c1","type":"function","function":{"name":"weather","arguments":"{\"city\": \"Rome\"}"}}]`},
				{Role: "tool", Content: "21 degrees", ToolCallID: "c1"}}, Tools: weather,
				Teacher: "It is 21 degrees in Rome."},
			{Messages: user("Hello"), Tools: weather, Teacher: "Hello."},
			{Messages: user("Bye"), Teacher: "Bye."},
		}, []string{
			`note: F: read as messages: prompt from column "messages", tools from "tools", teacher's answer is its last assistant turn (data.format=messages)`,
			`note: 1 of 3 rows have earlier answers of the assistant: these are prompt, only the last is learned`,
		}},
		{"openai_parts", []Row{
			{Messages: user("Name a colour."), Teacher: "Red."},
			{Messages: user("Bye"), Teacher: "Bye."},
		}, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`error: F: row 1: column "messages": turn 0: its content has a part of type "image_url", and only text is read: remove the row`,
		}},
		{"sharegpt_weight", []Row{
			{ID: "a", Messages: []Message{{Role: "system", Content: "Be brief."},
				{Role: "user", Content: "2+3?"}}, Teacher: "5."},
			{ID: "b", Messages: user("Name a bird."), Teacher: "A robin."},
		}, []string{
			`note: F: read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)`,
			`error: F: row 2: column "conversations": turn 1: the last answer has weight 0 or "train": false: it is not to be learned: remove the row, or the turns after the answer that is`,
		}},
		{"reasoning", []Row{
			{Messages: user("5*5?"), Teacher: "25.", Turns: thought("Five fives are 25.", "25.")},
			{Messages: user("Hello"), Teacher: "Hello."},
			{Messages: user("6*6?"), Teacher: "36.", Turns: thought("Six sixes are 36.", "36.")},
		}, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
		}},
		{"reasoning_map", []Row{
			{Messages: user("5*5?"), Teacher: "25.", Turns: thought("Five fives are 25.", "25.")},
			{Messages: user("Hello"), Teacher: "Hello."},
			{Messages: user("6*6?"), Teacher: "36.", Turns: thought("Six sixes are 36.", "36.")},
		}, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
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
			path := filepath.Join(layoutFixtures, c.name+ext)
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
				if len(rows) == s.Len() { // without bad rows
					copied := filepath.Join(t.TempDir(), "copy.parquet")
					if err := Convert(s, copied); err != nil {
						t.Fatal(err)
					}
					if openTest(t, copied).Digest() != digest {
						t.Error("another digest after a conversion")
					}
				}
				got, want := said(t, path), c.words
				if ext == "_saved" { // two files: row 2 is row 0 of the second
					got = slices.DeleteFunc(got,
						func(l string) bool { return strings.HasPrefix(l, "error") })
					want = slices.DeleteFunc(slices.Clone(want),
						func(l string) bool { return strings.HasPrefix(l, "error") })
				}
				if !slices.Equal(got, want) {
					t.Errorf("says\n%s\nwant\n%s", strings.Join(got, "\n"),
						strings.Join(want, "\n"))
				}
			})
		}
	}
}

// GPTeacher as its authors publish it: every row with its input, by encoding/json. The folder
// with the files (github.com/teknium1/GPTeacher) is named by GAD_GPTEACHER.
func TestGPTeacher(t *testing.T) {
	dir := os.Getenv("GAD_GPTEACHER")
	if dir == "" {
		t.Skip("GAD_GPTEACHER names no folder with GPTeacher's JSON files")
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: no JSON files: %v", dir, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var want []struct{ Instruction, Input, Response string }
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		s, inputs := openTest(t, path), 0
		for i, row := range readAll(t, s) {
			w := want[i]
			if strings.TrimSpace(w.Input) != "" {
				inputs++
				w.Instruction += "\n" + w.Input
			}
			if len(row.Messages) != 1 ||
				row.Messages[0] != (Message{Role: "user", Content: w.Instruction}) ||
				row.Teacher != w.Response {
				t.Fatalf("%s: row %d: %+v", path, i, row)
			}
		}
		if s.Len() != len(want) {
			t.Errorf("%s: %d rows of %d", path, s.Len(), len(want))
		}
		t.Logf("%s: %d rows, %d of them with an input", path, s.Len(), inputs)
	}
}

// shown is a row on one line.
func shown(r Row) string {
	var b strings.Builder
	for _, m := range r.Messages {
		b.WriteString(m.Role + ": " + m.Content + " | ")
	}
	return strings.ReplaceAll(b.String()+"TEACHER: "+r.Teacher, "\n", "/")
}

// Layouts of public data sets and of other trainers' files, a row or two each: what the last row
// becomes, or why it cannot be used, and every word about what is not read. Nothing of a row
// may be missing from both.
func TestLayouts(t *testing.T) {
	for _, c := range []struct {
		name, text string
		row        string // the last, as shown has it; "" cannot be used
		words      []string
	}{
		{"gsm8k.jsonl", `{"question":"q","answer":"a #### 1"}`, `user: q | TEACHER: a #### 1`, []string{
			`note: F: read as qa: prompt from column "question", teacher's answer from column "answer" (data.format=qa)`,
		}},
		{"gsm8k_solutions.jsonl", `{"question":"q","ground_truth":"#### 4","6b_finetuning":{"solution":"s","is_correct":false}}`, `user: q | TEACHER: `, []string{
			`note: F: read as qa: prompt from column "question", without a column of the teacher's answers (data.format=qa)`,
			`note: F: not read: "ground_truth", "6b_finetuning"`,
			`error: F: row 0: no teacher answer: there is no column "teacher_response", and the conversation in column "question" does not end with one: name the column of the answers (--teacher-key, data.teacher_key)`,
			`data: F: column "teacher_response" is missing: name the teacher's column with data.teacher_key, one of "ground_truth", "6b_finetuning"`,
		}},
		{"seed_instances.jsonl", `{"id":"seed_0","name":"n","instruction":"i","instances":[{"input":"x","output":"y"}],"is_classification":false}`, `user: i | TEACHER: `, []string{
			`note: F: read as alpaca: prompt from column "instruction", without a column of the teacher's answers (data.format=alpaca)`,
			`note: F: not read: "name", "instances"`,
			`error: F: row 0: no teacher answer: there is no column "teacher_response", and the conversation in column "instruction" does not end with one: name the column of the answers (--teacher-key, data.teacher_key)`,
			`data: F: has no answers but those inside of "instances": jq -c '{instruction} + .instances[]' OLD > NEW`,
		}},
		{"codealpaca_both.jsonl", `{"instruction":"i","input":"x","output":"o","response":"r"}`, `user: i/x | TEACHER: o`, []string{
			`note: F: read as alpaca: prompt from column "instruction" and "input", a student's answer from "response", teacher's answer from column "output" (data.format=alpaca)`,
		}},
		{"gpteacher.json", `[{"instruction":"i","input":"x","response":"r"}]`, `user: i/x | TEACHER: r`, []string{
			`note: F: read as alpaca: prompt from column "instruction" and "input", teacher's answer from column "response" (data.format=alpaca)`,
		}},
		{"gpteacher_late_input.jsonl", strings.Repeat(`{"instruction":"i","response":"r"}`+"\n", 70) + `{"instruction":"i","input":"x","response":"r"}`, `user: i/x | TEACHER: r`, []string{
			`note: F: read as alpaca: prompt from column "instruction", teacher's answer from column "response" (data.format=alpaca)`,
			`warning: F: rows 1, 2, 3, 4, 5 and 64 more: same prompt and answer as row 0 of F`,
		}},
		{"gpteacher_keys.jsonl", `{"instruction":"i","input":"x","response":"r"}`, `user: i/x | TEACHER: r`, []string{
			`note: F: read as alpaca: prompt from column "instruction" and "input", teacher's answer from column "response" (data.format=alpaca)`,
		}},
		{"yaml.yaml", `- instruction: i` + "\n" + `  output: o` + "\n" + ``, ``, []string{
			`data: F: is neither Arrow IPC, Parquet, JSON nor a .csv or .tsv file (first bytes "- instru"): convert it to one of these`,
		}},
		{"ipynb.ipynb", `{` + "\n" + ` "cells": [],` + "\n" + ` "metadata": {}` + "\n" + `}` + "\n" + ``, ``, []string{
			`data: F: row 0: the object does not end on its line: write one object per line (jq -c . OLD > NEW)`,
		}},
		{"pretty.json", `{` + "\n" + `  "instruction": "i",` + "\n" + `  "output": "o"` + "\n" + `}` + "\n" + ``, ``, []string{
			`data: F: row 0: the object does not end on its line: write one object per line (jq -c . OLD > NEW)`,
		}},
		{"openai_turns.jsonl", `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"q2"},{"role":"assistant","content":"a2"}]}`, `system: s | user: q | assistant: a | user: q2 | TEACHER: a2`, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`note: 1 of 1 rows have earlier answers of the assistant: these are prompt, only the last is learned`,
		}},
		{"openai_weight.jsonl", `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","weight":0}]}`, ``, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`error: F: row 0: column "messages": turn 1: the last answer has weight 0 or "train": false: it is not to be learned: remove the row, or the turns after the answer that is`,
			`data: F: row 0: column "messages": turn 1: the last answer has weight 0 or "train": false: it is not to be learned: remove the row, or the turns after the answer that is (gad data validate lists all such rows)`,
		}},
		{"openai_tool_calls.jsonl", `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"c"}]},{"role":"tool","tool_call_id":"c","content":"21"},{"role":"assistant","content":"a"}],"tools":[{"type":"function"}],"parallel_tool_calls":false}`, ``, []string{
			`note: F: read as messages: prompt from column "messages", tools from "tools", teacher's answer is its last assistant turn (data.format=messages)`,
			`error: F: row 0: column "messages": turn 1: column "tool_calls": call 0: names no function: write {"function": {"name": ..., "arguments": {...}}}`,
			`data: F: row 0: column "messages": turn 1: column "tool_calls": call 0: names no function: write {"function": {"name": ..., "arguments": {...}}} (gad data validate lists all such rows)`,
		}},
		{"openai_function_call.jsonl", `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","function_call":{"name":"f"}}]}`, ``, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`error: F: row 0: column "messages": turn 1: has function_call, which gad does not read: write tool_calls, or remove the row`,
			`data: F: row 0: column "messages": turn 1: has function_call, which gad does not read: write tool_calls, or remove the row (gad data validate lists all such rows)`,
		}},
		{"openai_parts.jsonl", `{"messages":[{"role":"user","content":[{"type":"text","text":"q"}]},{"role":"assistant","content":"a"}]}`, `user: q | TEACHER: a`, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
		}},
		{"openai_image.jsonl", `{"messages":[{"role":"user","content":[{"type":"text","text":"q"},{"type":"image_url","image_url":{"url":"u"}}]},{"role":"assistant","content":"a"}]}`, ``, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`error: F: row 0: column "messages": turn 0: its content has a part of type "image_url", and only text is read: remove the row`,
			`data: F: row 0: column "messages": turn 0: its content has a part of type "image_url", and only text is read: remove the row (gad data validate lists all such rows)`,
		}},
		{"openai_preference.jsonl", `{"input":{"messages":[{"role":"user","content":"q"}],"tools":[]},"preferred_output":[{"role":"assistant","content":"a"}],"non_preferred_output":[{"role":"assistant","content":"b"}]}`, ``, []string{
			`data: F: columns "input", "preferred_output", "non_preferred_output": they are preference data as OpenAI has it: keep the preferred answers, jq -c '{messages: (.input.messages + .preferred_output)}' OLD > NEW`,
		}},
		{"trl_chosen_turns.jsonl", `{"chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}]}`, `user: q | TEACHER: a`, []string{
			`note: F: read as preference: prompt from column "chosen", teacher's answer is its last assistant turn (data.format=preference)`,
			`note: F: not read: "rejected"`,
		}},
		{"trl_prompt_chosen.jsonl", `{"prompt":"q","chosen":"a","rejected":"b"}`, `user: q | TEACHER: a`, []string{
			`note: F: read as preference: prompt from column "prompt", teacher's answer from column "chosen" (data.format=preference)`,
			`note: F: not read: "rejected"`,
		}},
		{"trl_prompt_turns_chosen.jsonl", `{"prompt":[{"role":"user","content":"q"}],"chosen":[{"role":"assistant","content":"a"}],"rejected":[{"role":"assistant","content":"b"}]}`, `user: q | TEACHER: a`, []string{
			`note: F: read as preference: prompt from column "prompt", teacher's answer from column "chosen" (data.format=preference)`,
			`note: F: not read: "rejected"`,
		}},
		{"ultrafeedback.jsonl", `{"prompt":"q","chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}],"score_chosen":8.0}`, `user: q | TEACHER: a`, []string{
			`note: F: read as preference: prompt from column "prompt", teacher's answer from column "chosen" (data.format=preference)`,
			`note: F: not read: "rejected"`,
		}},
		{"preference_other_prompt.jsonl", `{"prompt":"p","chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"rejected":[]}`, ``, []string{
			`note: F: read as preference: prompt from column "prompt", teacher's answer from column "chosen" (data.format=preference)`,
			`note: F: not read: "rejected"`,
			`error: F: row 0: column "chosen": 2 turns: they do not begin with the prompt in column "prompt": keep the last turn alone`,
		}},
		{"hh.jsonl", `{"chosen":"\n\nHuman: q\n\nAssistant: a","rejected":"\n\nHuman: q\n\nAssistant: b"}`, ``, []string{
			`data: F: column "chosen": preference data whose prompt stands in the text of the answers: write the prompt in a column "prompt" and the answers without it`,
		}},
		{"sharegpt_chosen.jsonl", `{"conversations":[{"from":"human","value":"q"}],"chosen":{"from":"gpt","value":"a"},"rejected":{"from":"gpt","value":"b"}}`, `user: q | TEACHER: `, []string{
			`note: F: read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)`,
			`note: F: not read: "chosen", "rejected"`,
			`error: F: row 0: no teacher answer: there is no column "teacher_response", and the conversation in column "conversations" does not end with one: name the column of the answers (--teacher-key, data.teacher_key)`,
			`data: F: no conversation in column "conversations" ends with a turn of gpt: if the teacher's answers are the turns in "chosen": jq -c '.conversations += [.chosen]' OLD > NEW`,
		}},
		{"kto.jsonl", `{"prompt":"q","completion":"a","label":true}` + "\n" + `{"prompt":"q2","completion":"bad","label":false}`, `user: q2 | TEACHER: bad`, []string{
			`note: F: read as prompt_completion: prompt from column "prompt", teacher's answer from column "completion" (data.format=prompt_completion)`,
			`note: F: column "label" is not read: rows with false, which KTO has as bad answers, count as answers too: remove them first`,
		}},
		{"trl_completion.jsonl", `{"prompt":"q","completion":"a"}`, `user: q | TEACHER: a`, []string{
			`note: F: read as prompt_completion: prompt from column "prompt", teacher's answer from column "completion" (data.format=prompt_completion)`,
		}},
		{"trl_completion_turns.jsonl", `{"prompt":[{"role":"user","content":"q"}],"completion":[{"role":"assistant","content":"a"}]}`, `user: q | TEACHER: a`, []string{
			`note: F: read as prompt_completion: prompt from column "prompt", teacher's answer from column "completion" (data.format=prompt_completion)`,
		}},
		{"trl_completion_3.jsonl", `{"prompt":[{"role":"user","content":"q"}],"completion":[{"role":"assistant","content":"a"},{"role":"user","content":"q2"},{"role":"assistant","content":"a2"}]}`, `user: q | assistant: a | user: q2 | TEACHER: a2`, []string{
			`note: F: read as prompt_completion: prompt from column "prompt", teacher's answer from column "completion" (data.format=prompt_completion)`,
			`note: 1 of 1 rows have earlier answers of the assistant: these are prompt, only the last is learned`,
		}},
		{"prompt_response.jsonl", `{"prompt":"q","response":"a"}`, `user: q | TEACHER: a`, []string{
			`note: F: read as prompt_completion: prompt from column "prompt", teacher's answer from column "response" (data.format=prompt_completion)`,
		}},
		{"sharegpt_system_turn.jsonl", `{"conversations":[{"from":"system","value":"s"},{"from":"human","value":"q"},{"from":"gpt","value":"a"},{"from":"human","value":"q2"},{"from":"gpt","value":"a2"}]}`, `system: s | user: q | assistant: a | user: q2 | TEACHER: a2`, []string{
			`note: F: read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)`,
			`note: 1 of 1 rows have earlier answers of the assistant: these are prompt, only the last is learned`,
		}},
		{"sharegpt_human_last.jsonl", `{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"},{"from":"human","value":"q2"}]}` + "\n" + `{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}`, `user: q | TEACHER: a`, []string{
			`note: F: read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)`,
			`note: 1 of 2 rows have earlier answers of the assistant: these are prompt, only the last is learned`,
			`error: F: row 0: no teacher answer: there is no column "teacher_response", and the conversation in column "conversations" ends with a turn of the user: remove that turn, or name the column of the answers (--teacher-key, data.teacher_key)`,
		}},
		{"sharegpt_function_call.jsonl", `{"conversations":[{"from":"human","value":"q"},{"from":"function_call","value":"{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},{"from":"observation","value":"21"},{"from":"gpt","value":"a"}],"tools":"[]"}`, `user: q | assistant:  | tool: 21 | TEACHER: a`, []string{
			`note: F: read as sharegpt: prompt from column "conversations", tools from "tools", teacher's answer is its last turn of gpt (data.format=sharegpt)`,
			`note: 1 of 1 rows have earlier answers of the assistant: these are prompt, only the last is learned`,
		}},
		{"sharegpt_bing.jsonl", `{"conversations":[{"from":"user","value":"q"},{"from":"bing","value":"b"},{"from":"user","value":"q"},{"from":"bing","value":"b"}]}` + "\n" + `{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}`, `user: q | TEACHER: a`, []string{
			`note: F: read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)`,
			`error: F: row 0: turn 1 of column "conversations" has the unknown role "bing": use system, developer, user, assistant, tool`,
			`warning: F: row 0: the prompt in column "conversations" ends with a turn of "bing", not of the user`,
			`error: F: row 0: no teacher answer: there is no column "teacher_response", and the conversation in column "conversations" does not end with one: name the column of the answers (--teacher-key, data.teacher_key)`,
		}},
		{"speaker_text.jsonl", `{"dialogue":[{"speaker":"user","text":"q"},{"speaker":"assistant","text":"a"}]}`, ``, []string{
			`data: F: columns "dialogue": no "content" among them, and they are no known format of rows: did you mean --content-key dialogue (data.content_key=dialogue)?`,
		}},
		{"messages_speaker.jsonl", `{"messages":[{"speaker":"user","text":"q"},{"speaker":"assistant","text":"a"}]}`, ``, []string{
			`data: F: column "messages": its turns have the keys "speaker", "text", not "role" and "content": rename them: jq -c '.messages |= map({role: .speaker, content: .text})' OLD > NEW`,
		}},
		{"ultrachat.jsonl", `{"prompt":"q","prompt_id":"x","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`, `user: q | TEACHER: a`, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`note: F: not read: "prompt", "prompt_id"`,
		}},
		{"openhermes.jsonl", `{"source":"s","category":null,"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}],"model_name":null}`, `user: q | TEACHER: a`, []string{
			`note: F: read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)`,
			`note: F: not read: "source"`,
		}},
		{"lmsys.jsonl", `{"conversation_id":"c","model":"m","conversation":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"turn":1,"language":"English","openai_moderation":[{"flagged":false}],"redacted":false}`, `user: q | TEACHER: a`, []string{
			`note: F: read as messages: prompt from column "conversation", teacher's answer is its last assistant turn (data.format=messages)`,
			`note: F: not read: "conversation_id", "model", "language", "openai_moderation"`,
		}},
		{"messages_json_text.jsonl", `{"messages":"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"}]"}`, `user: q | TEACHER: a`, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
		}},
		{"csv_json_sharegpt.csv", `conversations` + "\n" + `"[{""from"":""human"",""value"":""q""},{""from"":""gpt"",""value"":""a""}]"` + "\n" + ``, ``, []string{
			`note: F: read as messages: prompt from column "conversations", teacher's answer is its last assistant turn (data.format=messages)`,
			`error: F: row 0: column "conversations": "[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"g"...: its turns have the keys "from", "value": give --format sharegpt (data.format=sharegpt)`,
			`data: F: row 0: column "conversations": "[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"g"...: its turns have the keys "from", "value": give --format sharegpt (data.format=sharegpt) (gad data validate lists all such rows)`,
		}},
		{"csv_python.csv", `messages` + "\n" + `"[{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}]"` + "\n" + ``, ``, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
			`error: F: row 0: column "messages": "[{'role': 'user', 'content': 'q'}, {'rol"...: a conversation as Python prints it, not text: write it as JSON (json.dumps)`,
			`data: F: row 0: column "messages": "[{'role': 'user', 'content': 'q'}, {'rol"...: a conversation as Python prints it, not text: write it as JSON (json.dumps) (gad data validate lists all such rows)`,
		}},
		{"csv_capitals.csv", `Question,Answer` + "\n" + `q,a` + "\n" + ``, ``, []string{
			`data: F: columns "Question", "Answer": no "content" among them, and they are no known format of rows: did you mean --content-key Question --teacher-key Answer (data.content_key=Question data.teacher_key=Answer)?`,
		}},
		{"mixed_rows.jsonl", `{"content":"q","teacher_response":"a"}` + "\n" + `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`, ``, []string{
			`note: F: not read: "messages"`,
			`error: F: row 1: column "content": null: the row has no prompt but that in column "messages", and other rows have theirs in "content": write all rows alike, or in a file for each kind`,
		}},
		{"system_content.jsonl", `{"system":"s","content":"q","teacher_response":"a"}`, `system: s | user: q | TEACHER: a`, []string{
			`note: F: system message from column "system"`,
		}},
		{"system_messages.jsonl", `{"system":"s","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`, `system: s | user: q | TEACHER: a`, []string{
			`note: F: read as messages: prompt from column "messages", system message from "system", teacher's answer is its last assistant turn (data.format=messages)`,
		}},
		{"system_twice.jsonl", `{"system":"s","messages":[{"role":"system","content":"t"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`, ``, []string{
			`note: F: read as messages: prompt from column "messages", system message from "system", teacher's answer is its last assistant turn (data.format=messages)`,
			`error: F: row 0: column "system": "s": differs from the system turn "t": keep the system message in one place only`,
			`data: F: row 0: column "system": "s": differs from the system turn "t": keep the system message in one place only (gad data validate lists all such rows)`,
		}},
		{"history.jsonl", `{"instruction":"i","input":"","output":"o","system":"s","history":[["q0","a0"]]}` + "\n" + `{"instruction":"j","input":"","output":"p","history":[]}`, `user: j | TEACHER: p`, []string{
			`note: F: read as alpaca: prompt from column "instruction" and "input", system message from "system", teacher's answer from column "output" (data.format=alpaca)`,
			`warning: F: row 0: column "history" is not read, although the answer may speak of it: put what matters into the prompt`,
		}},
		{"dolly.jsonl", `{"instruction":"i","context":"c","response":"r","category":"closed_qa"}`, `user: i/c | TEACHER: r`, []string{
			`note: F: read as alpaca: prompt from column "instruction" and "context", teacher's answer from column "response" (data.format=alpaca)`,
			`note: F: not read: "category"`,
		}},
		{"orca.jsonl", `{"id":"x","system_prompt":"s","question":"q","response":"r"}`, `system: s | user: q | TEACHER: r`, []string{
			`note: F: read as qa: prompt from column "question", system message from "system_prompt", teacher's answer from column "response" (data.format=qa)`,
		}},
		{"metamath.jsonl", `{"query":"q","response":"r","type":"GSM","original_question":"o"}`, `user: q | TEACHER: r`, []string{
			`note: F: read as qa: prompt from column "query", teacher's answer from column "response" (data.format=qa)`,
			`note: F: not read: "type", "original_question"`,
		}},
		{"math.jsonl", `{"problem":"p","level":"Level 5","type":"Algebra","solution":"s"}`, `user: p | TEACHER: s`, []string{
			`note: F: read as qa: prompt from column "problem", teacher's answer from column "solution" (data.format=qa)`,
			`note: F: not read: "level", "type"`,
		}},
		{"squad.jsonl", `{"id":"1","title":"t","context":"c","question":"q","answers":{"text":["a"],"answer_start":[0]}}`, `user: q/c | TEACHER: `, []string{
			`note: F: read as qa: prompt from column "question" and "context", without a column of the teacher's answers (data.format=qa)`,
			`note: F: not read: "title", "answers"`,
			`error: F: row 0: no teacher answer: there is no column "teacher_response", and the conversation in column "question" does not end with one: name the column of the answers (--teacher-key, data.teacher_key)`,
			`data: F: has no answers but those inside of "answers": write one as a text in a column "answer"`,
		}},
		{"flan.jsonl", `{"inputs":"q","targets":"a","task":"t"}`, ``, []string{
			`data: F: columns "inputs", "targets", "task": no "content" among them, and they are no known format of rows: did you mean --content-key inputs --teacher-key targets (data.content_key=inputs data.teacher_key=targets)?`,
		}},
		{"verl.jsonl", `{"data_source":"gsm8k","prompt":[{"role":"user","content":"q"}],"ability":"math","reward_model":{"ground_truth":"4"},"extra_info":{"answer":"a"}}`, `user: q | TEACHER: `, []string{
			`note: F: read as prompt_completion: prompt from column "prompt", without a column of the teacher's answers (data.format=prompt_completion)`,
			`note: F: not read: "data_source", "ability", "reward_model", "extra_info"`,
			`error: F: row 0: no teacher answer: there is no column "teacher_response", and the conversation in column "prompt" does not end with one: name the column of the answers (--teacher-key, data.teacher_key)`,
			`data: F: column "teacher_response" is missing: name the teacher's column with data.teacher_key, one of "data_source", "ability", "reward_model", "extra_info"`,
		}},
		{"reasoning.jsonl", `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning_content":"r"}]}`, `user: q | TEACHER: a`, []string{
			`note: F: read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`,
		}},
		{"reasoning_column.jsonl", `{"prompt":"q","completion":"a","reasoning":"r"}`, `user: q | TEACHER: a`, []string{
			`note: F: read as prompt_completion: prompt from column "prompt", thoughts from "reasoning", teacher's answer from column "completion" (data.format=prompt_completion)`,
		}},
		{"control_tokens.jsonl", `{"content":"<|im_start|>user\nq<|im_end|>","teacher_response":"a"}` + "\n" + `{"content":"q","teacher_response":"a<|eot_id|>"}` + "\n" + `{"content":"r","teacher_response":"b</s>"}` + "\n" + `{"content":"[INST] q [/INST]","teacher_response":"c"}`, `user: [INST] q [/INST] | TEACHER: c`, []string{
			`warning: F: rows 0 and 3, of the same kind; row 0: "<|im_start|>" in a text of column "content": gad reads it as these letters, never as a control token: remove it, or write turns`,
			`warning: F: rows 1 and 2, of the same kind; row 1: "<|eot_id|>" in a text of column "teacher_response": gad reads it as these letters, never as a control token: remove it, or write turns`,
		}},
		{"think.jsonl", `{"content":"q","teacher_response":"<think>hm</think>a"}` + "\n" + `{"content":"p","teacher_response":"b"}`, `user: p | TEACHER: b`, []string{
			`warning: F: row 0: answer in column "teacher_response" contains <think>: the student learns to think aloud too, unless you cut that out`,
		}},
		{"refusals.jsonl", `{"content":"q0","teacher_response":"As an AI I cannot."}` + "\n" + `{"content":"q1","teacher_response":"As an AI I cannot."}` + "\n" + `{"content":"q2","teacher_response":"As an AI I cannot."}`, `user: q2 | TEACHER: As an AI I cannot.`, []string{
			`note: 3 of 3 rows have the same answer, "As an AI I cannot.", to different prompts (the first is row 0)`,
		}},
		{"one_text.jsonl", `{"text":"### Human: q### Assistant: a"}`, ``, []string{
			`data: F: columns "text": no "content" among them, and they are no known format of rows: did you mean --content-key text (data.content_key=text)?`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.name)
			writeTest(t, path, c.text)
			row := ""
			if s, err := Open(path, DefaultColumns()); err == nil {
				if r, err := s.Row(s.Len() - 1); err == nil {
					row = shown(r)
				}
				s.Close()
			}
			if row != c.row {
				t.Errorf("row\n got %s\nwant %s", row, c.row)
			}
			if got := said(t, path); !slices.Equal(got, c.words) {
				t.Errorf("says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.words, "\n"))
			}
		})
	}
}
