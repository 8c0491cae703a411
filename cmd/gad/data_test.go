package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/collect/collecttest"
)

// What the data commands print beside the reports of data, whose messages its own tests have: row
// and tokens as a student reads them, rows of both sets, what a copy leaves out; and then the
// error.
func TestDataReports(t *testing.T) {
	linked(t, "student", "rows.parquet", "rows.jsonl")
	for name, text := range map[string]string{
		"bad.jsonl":   `{"content":"a","teacher_response":"b"}` + "\n" + `{"content":"c","teacher_response":" "}`,
		"val.jsonl":   `{"content":"Add 1+1+1","teacher_response":"It is 3."}`,
		"given.jsonl": `{"instruction":"i","input":"x","response":"a"}` + "\n" + `{"instruction":"j","input":"","response":"b"}`,
		"think.jsonl": `{"content":"<|im_start|>user","teacher_response":"<think>a</think>It is 3.<|im_end|>","documents":"r","score":1}`,
		"more.csv":    "id,score,content,teacher_response\n1,0.5,Add 1+1+1,\"It is, I say, 3.\"",
	} {
		collecttest.Put(t, name, text)
	}
	for _, c := range []struct {
		line    string
		printed []string // lines
		err     string   // "" is none
	}{
		{"data validate --data bad.jsonl",
			[]string{`error: bad.jsonl: row 1: no teacher answer in column "teacher_response" (missing, ` +
				`empty or blank): write one or remove the row`,
				`1 error, 0 warnings`},
			"data: bad.jsonl: training refuses rows (errors: 1): correct or remove them"},
		{"data validate --data more.csv --model student --max-prompt-length 64 --max-response-length 14 --val-data val.jsonl", []string{
			`note: 1 of 1 validation rows have a prompt that is also in the training data, 0 of them also the same answer`}, ""},
		{"data convert --data more.csv --data val.jsonl --output new.jsonl",
			[]string{`new.jsonl: 2 rows`, `columns left out: score`}, ""},
		{"data validate --data new.jsonl", []string{`0 errors, 0 warnings`}, ""},
		{"data inspect --data given.jsonl --content-key instruction --teacher-key response", []string{
			`  input                string  not read`,
			`warning: given.jsonl: not read, although answers may speak of it: "input": give --format alpaca (data.format=alpaca)`}, ""},
		{"data convert --data given.jsonl --content-key instruction --teacher-key response --output given.arrow", []string{
			`warning: given.jsonl: not read, although answers may speak of it: "input": give --format alpaca (data.format=alpaca)`, `columns left out: input`}, ""},
		{"data inspect --data val.jsonl --row 0 --model student", []string{
			`row 0`, `prompt: 26 tokens`, `answer: 7 tokens, 26 to 32; the last is its end token, "<|im_end|>"`, `  | It is 3.<|im_end|>`}, ""},
		{"data inspect --data think.jsonl --model student", []string{
			`warning: think.jsonl: row 0: column "documents" is not read, although the answer may speak of it: put what matters into the prompt`,
			`  | <|im_start|>user<|im_end|>`}, ""},
		{"data inspect --data val.jsonl --model student --max-response-length 4", []string{
			`answer: 4 tokens, 26 to 29; cut at data.max_response_length 4 of 7, so without an end token`,
			`  | It is `}, ""},
	} {
		code, out, said := gad(strings.Fields(c.line)...)
		if c.err == "" && (code != exitDone || said != "") ||
			c.err != "" && (code != exitInput || said != "gad: "+c.err+"\n") {
			t.Errorf("%s: exit status %d, says %swant %s", c.line, code, said, c.err)
		}
		for _, want := range c.printed {
			if !strings.Contains("\n"+out, "\n"+want+"\n") {
				t.Errorf("%s\nprints\n%s\nwithout %s", c.line, out, want)
			}
		}
	}
	for line, texts := range map[string]string{
		"data inspect --data rows.parquet":                       "parquet, 50 rows|content|teacher_response|TEACHER",
		"data validate --data rows.parquet --model student":      "p50|p99|0 of 50 (0.0 %) over the limit of 1536|0 errors",
		"data validate --data rows.jsonl --model student --json": `"errors":0`,
	} {
		out, _ := must(t, strings.Fields(line)...)
		for text := range strings.SplitSeq(texts, "|") {
			if !strings.Contains(out, text) {
				t.Errorf("%s prints no %q:\n%s", line, text, out)
			}
		}
		if strings.HasSuffix(line, "--json") && (!json.Valid([]byte(out)) ||
			strings.Count(out, "\n") != 1) {
			t.Errorf("%s prints %s", line, out)
		}
	}
}

// Settings of the data that are lists: flags, overrides and files, and what an older run wrote as
// one text, are the same settings. Those of a run are taken again from another folder.
func TestDataSettings(t *testing.T) {
	saved, err := filepath.Abs("../../testdata/layouts/dolly_saved")
	if err != nil {
		t.Fatal(err)
	}
	f, work := linked(t, "student")
	lines := strings.SplitAfter(fileText(f.path("test.jsonl")), "\n")
	put(t, "a.jsonl", strings.Join(lines[:5], ""))
	put(t, "b.jsonl", strings.Join(lines[5:], ""))
	put(t, "old.yaml", "data:\n  train_files: a.jsonl"+string(filepath.ListSeparator)+
		"b.jsonl\n  val_files: \"\"\n")
	put(t, "new.yaml", "data:\n  train_files: [a.jsonl, b.jsonl]\n")
	const limits = " data.max_prompt_length=64 data.max_response_length=14 data.train_batch_size=4 "
	const line = "sft --model student --steps 1" + limits
	const list = "--data a.jsonl --data b.jsonl"
	for _, given := range []string{list, "--config new.yaml",
		"data.train_files=[a.jsonl,b.jsonl]"} {
		answered(t, []exchange{{line + "--output run --dry-run " + given, exitDone,
			[]string{"\n train_files: [a.jsonl, b.jsonl]\n val_files: []\n"}}})
	}
	var students []string
	for _, given := range []string{list, "--data [ab].jsonl", "--config old.yaml"} {
		run := fmt.Sprint("run", len(students))
		does(t, line+"--output "+run+" "+given)
		students = append(students, readFile(t, run+"/global_step_1/actor/model.safetensors"))
		if students[0] != students[len(students)-1] {
			t.Errorf("%s: another student than by %s", given, list)
		}
	}
	t.Chdir(t.TempDir())
	answered(t, []exchange{{"sft --steps 2 --output " + filepath.Join(work, "run2"), exitDone,
		[]string{"step 2/2"}}})
	// A public layout trains as it is, and the run says how it is read.
	answered(t, []exchange{{"sft --model " + f.path("student") + " --data " + saved +
		" --output run --steps 1 data.train_batch_size=3 data.max_prompt_length=110 " +
		"data.max_response_length=18", exitDone,
		[]string{`not read: "category"` + "\n", "3 rows"}}})
}
