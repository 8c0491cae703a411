package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// What the data commands print of sets that are odd: the report, then the error.
func TestDataReports(t *testing.T) {
	f := ready(t)
	rows, err := filepath.Abs("../../testdata/rows")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.Symlink(f.path("student"), "student"); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"bad.jsonl":   strings.Repeat(`{"content":[{"role":"human","content":"q"},{"role":"user","content":"q"}],"teacher_response":"a"}`+"\n", 3000),
		"cut.jsonl":   strings.Repeat(`{"content":"Add 1+1+1","teacher_response":"`+strings.Repeat("It is 3. ", 9)+`"}`+"\n", 2),
		"val.jsonl":   `{"content":"Add 1+1+1","teacher_response":"It is 3."}` + "\n",
		"given.jsonl": `{"instruction":"i","input":"x","response":"a"}` + "\n" + `{"instruction":"j","input":"","response":"b"}` + "\n",
		"same.jsonl":  strings.Repeat(`{"content":"QUESTION","teacher_response":"As an AI I cannot."}`+"\n", 3),
		"think.jsonl": `{"content":"<|im_start|>user","teacher_response":"<think>a</think>It is 3.<|im_end|>","documents":"r","score":1}` + "\n",
		"kto.jsonl":   `{"prompt":"q","completion":"a","label":false}` + "\n",
		"more.csv":    "id,score,content,teacher_response\n1,0.5,Add 1+1+1,\"It is, I say, 3.\"\n",
	} {
		for k := 1; strings.Contains(text, "QUESTION"); k++ {
			text = strings.Replace(text, "QUESTION", strings.Repeat("q", k), 1)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		line    string
		code    int
		printed []string // lines
		err     string
	}{
		{"data validate --data bad.jsonl", exitInput, []string{
			`error: bad.jsonl: rows 0, 1, 2, 3, 4 and 2995 more: turn 0 of column "content" has the unknown role "human": use system, developer, user, assistant, tool`,
			`warning: bad.jsonl: rows 1, 2, 3, 4, 5 and 2994 more: same prompt and answer as row 0 of bad.jsonl`,
			`3000 errors, 2999 warnings`,
		}, "data: bad.jsonl: training refuses rows (errors: 3000): correct or remove them"},
		{"data validate --data cut.jsonl --model student --max-prompt-length 64 --max-response-length 14 --val-data val.jsonl", exitDone, []string{
			`note: every answer is over the limit of 14 tokens and no row can make a pair: warmup, train and dpo refuse the set; 55 would keep all answers, 55 99 %`,
			`note: 1 of 1 validation rows have a prompt that is also in the training data, 0 of them also the same answer`,
			`warning: cut.jsonl: rows 0 and 1: answer in column "teacher_response" has 55 tokens and is cut at data.max_response_length 14`,
		}, ""},
		{"data convert --data more.csv --data val.jsonl --output new.jsonl", exitDone, []string{`new.jsonl: 2 rows`, `columns left out: score`}, ""},
		{"data validate --data new.jsonl", exitDone, []string{`0 errors, 0 warnings`}, ""},
		{"data convert --data " + rows + "/sharegpt.parquet --output share.arrow", exitDone, []string{`share.arrow: 12 rows`,
			`note: ` + rows + `/sharegpt.parquet: read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)`}, ""},
		{"data validate --data share.arrow --data " + rows + "/*.tsv", exitDone, []string{`0 errors, 16 warnings`}, ""},
		{"data validate --data given.jsonl --content-key instruction --teacher-key response",
			exitDone, []string{
				`warning: given.jsonl: row 0: column "input" is not read, although the answer may speak of it: give --format alpaca (data.format=alpaca)`,
				`0 errors, 1 warning`}, ""},
		{"data inspect --data given.jsonl --content-key instruction --teacher-key response",
			exitDone, []string{
				`  input                string  not read`,
				`warning: given.jsonl: not read, although answers may speak of it: "input": give --format alpaca (data.format=alpaca)`}, ""},
		{"data convert --data given.jsonl --content-key instruction --teacher-key response --output given.arrow", exitDone, []string{
			`warning: given.jsonl: not read, although answers may speak of it: "input": give --format alpaca (data.format=alpaca)`, `columns left out: input`}, ""},
		{"data validate --data same.jsonl", exitDone, []string{
			`note: 3 of 3 rows have the same answer, "As an AI I cannot.", to different prompts (the first is row 0)`}, ""},
		{"data validate --data think.jsonl", exitDone, []string{
			`warning: think.jsonl: row 0: column "documents" is not read, although the answer may speak of it: put what matters into the prompt`,
			`warning: think.jsonl: row 0: "<|im_start|>" in a text of column "content": gad reads it as these letters, never as a control token: remove it, or write turns`,
			`warning: think.jsonl: row 0: "<|im_end|>" in a text of column "teacher_response": gad reads it as these letters, never as a control token: remove it, or write turns`,
			`warning: think.jsonl: row 0: answer in column "teacher_response" contains <think>: the student learns to think aloud too, unless you cut that out`,
			`0 errors, 4 warnings`}, ""},
		{"data inspect --data kto.jsonl", exitDone, []string{
			`warning: kto.jsonl: column "label" is not read: rows with false, which KTO has as bad answers, count as answers too: remove them first`}, ""},
		{"data inspect --data val.jsonl --row 0 --model student", exitDone, []string{
			`row 0`, `prompt: 26 tokens`, `answer: 7 tokens, 26 to 32; the last is its end token, "<|im_end|>"`, `  | It is 3.<|im_end|>`}, ""},
		{"data inspect --data think.jsonl --model student", exitDone, []string{
			`warning: think.jsonl: row 0: column "documents" is not read, although the answer may speak of it: put what matters into the prompt`,
			`  | <|im_start|>user<|im_end|>`}, ""},
		{"data inspect --data val.jsonl --model student --max-response-length 4", exitDone,
			[]string{
				`answer: 4 tokens, 26 to 29; cut at data.max_response_length 4 of 7, so without an end token`, `  | It is `}, ""},
		{"data inspect --data " + rows + "/id_struct.parquet", exitDone, []string{
			`warning: ` + rows + `/id_struct.parquet: column "id": type struct<a: int64>: expected a string or an integer: convert the column: left out`}, ""},
	} {
		code, out, said := gad(strings.Fields(c.line)...)
		if want := "gad: " + c.err + "\n"; code != c.code || c.err != "" && said != want ||
			c.err == "" && said != "" {
			t.Errorf("%s: exit status %d, says %swant %d %s", c.line, code, said, c.code, c.err)
		}
		for _, want := range c.printed {
			if !strings.Contains("\n"+out, "\n"+want+"\n") {
				t.Errorf("%s\nprints\n%s\nwithout %s", c.line, out, want)
			}
		}
	}
}

// Public layouts train as they are: arrays, lines, Parquet, and folders of datasets.
func TestLayoutsTrain(t *testing.T) {
	f := ready(t)
	layouts, err := filepath.Abs("../../testdata/layouts")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for k, c := range []struct{ file, note string }{
		{"gpteacher.json", `read as alpaca: prompt from column "instruction" and "input", teacher's answer from column "response" (data.format=alpaca)`},
		{"gsm8k.parquet", `read as qa: prompt from column "question", teacher's answer from column "answer" (data.format=qa)`},
		{"codealpaca.jsonl", `read as alpaca: prompt from column "instruction" and "input", teacher's answer from column "output" (data.format=alpaca)`},
		{"dolly_saved", `not read: "category"`},
		{"preference_turns.parquet", `not read: "rejected"`},
		{"reasoning.arrow", `read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`},
	} {
		run := "run" + strconv.Itoa(k)
		code, _, said := gad("sft", "--model", f.path("student"), "--data",
			filepath.Join(layouts, c.file), "--output", run, "--steps", "1",
			"data.train_batch_size=3", "data.max_prompt_length=110", "data.max_response_length=18")
		if code != exitDone || !strings.Contains(said, c.note+"\n") ||
			!strings.Contains(said, "3 rows") {
			t.Errorf("%s: exit status %d, says %s want %s", c.file, code, said, c.note)
		}
	}
}

// Settings of the data that are lists: flags, overrides and files, and what an older
// run wrote as one text.
func TestDataSettings(t *testing.T) {
	f := ready(t)
	t.Chdir(t.TempDir())
	if err := os.Symlink(f.path("student"), "student"); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(raw), "\n")
	for name, text := range map[string]string{"a.jsonl": strings.Join(lines[:5], ""),
		"b.jsonl": strings.Join(lines[5:], ""),
		"old.yaml": "data:\n  train_files: a.jsonl" + string(filepath.ListSeparator) +
			"b.jsonl\n  val_files: \"\"\n",
		"new.yaml": "data:\n  train_files: [a.jsonl, b.jsonl]\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	first := ""
	for i, given := range []string{"--data a.jsonl --data b.jsonl", "--data [ab].jsonl",
		"--config old.yaml", "--config new.yaml", "data.train_files=[a.jsonl,b.jsonl]"} {
		flags, overrides := given, ""
		if !strings.HasPrefix(given, "--") {
			flags, overrides = "", given
		}
		run := filepath.Join("runs", string(rune('a'+i)))
		line := "sft --model student " + flags + " --output " + run + " --steps 2 data.max_prompt_length=64 data.max_response_length=14 data.train_batch_size=4 " + overrides
		if code, _, said := gad(strings.Fields(line)...); code != exitDone {
			t.Fatalf("%s: exit status %d\n%s", line, code, said)
		}
		model, err := os.ReadFile(filepath.Join(run, "global_step_2", "actor", "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(model)
		} else if string(model) != first {
			t.Errorf("%s: another student than by --data a.jsonl --data b.jsonl", given)
		}
		// the run's own settings load, from another folder too
		t.Run(given, func(t *testing.T) {
			abs, err := filepath.Abs(run)
			if err != nil {
				t.Fatal(err)
			}
			t.Chdir(t.TempDir())
			if code, _, said := gad("sft", "--output", abs, "--steps", "3"); code != exitDone ||
				!strings.Contains(said, "step 3/3") {
				t.Errorf("exit status %d\n%s", code, said)
			}
		})
	}
}
