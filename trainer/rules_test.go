package trainer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gad/data"
	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/encode"
)

// What gad data validate calls an error, training refuses, by the same words; what
// it calls a warning, or nothing, training takes. Each row stands behind a good one.
func TestValidateAndTrainingAgree(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	turns := func(s string) string { return `{"content":[` + s + `],"teacher_response":"It is 3."}` }
	user := `{"role":"user","content":"Add 1+1+1"}`
	rows := []struct {
		name, line string
		kind       string // of the error; "" where training takes the row
	}{
		{"good", turns(user), ""},
		{"text", `{"content":"Add 1+1+1","teacher_response":"It is 3."}`, ""},
		{"system and tool turns", turns(`{"role":"system","content":""},` + user + `,{"role":"assistant","content":"x"},{"role":"tool","content":"y"}`), ""},
		{"answer as last turn", `{"content":[` + user + `,{"role":"assistant","content":"It is 3."}]}`, ""},
		{"token ids", `{"prompt_ids":[1,2],"teacher_response":"It is 3."}`, ""},
		{"blank user turn", turns(`{"role":"user","content":" "}`), ""},
		{"ends with the system", turns(user + `,{"role":"system","content":"s"}`), ""},
		{"control character", turns(`{"role":"user","content":"a\u0007"}`), ""},
		{"replacement character", turns(`{"role":"user","content":"a\ufffd"}`), ""},
		{"cut answer", `{"content":"q","teacher_response":"` + strings.Repeat("It is 3. ", 20) + `"}`, ""},
		{"duplicate", `{"content":"Add 2+1+1","teacher_response":"It is 4."}`, ""},
		{"unknown role", turns(`{"role":"human","content":"q"},` + user), data.KindRole},
		{"role in another case", turns(`{"role":"User","content":"q"}`), ""},
		{"no user turn", turns(`{"role":"system","content":"s"}`), data.KindNoUser},
		{"no turns", `{"content":[],"teacher_response":"a"}`, data.KindNoUser},
		{"only an answer", `{"content":[{"role":"assistant","content":"a"}]}`, data.KindNoUser},
		{"no prompt", `{"teacher_response":"a"}`, data.KindFault},
		{"null answer", `{"content":"q","teacher_response":null}`, data.KindNoTeacher},
		{"empty answer", `{"content":"q","teacher_response":""}`, data.KindNoTeacher},
		{"blank answer", `{"content":"q","teacher_response":"   "}`, data.KindNoTeacher},
		{"answer of other blanks", `{"content":"q","teacher_response":"\u00a0\n"}`, data.KindNoTeacher},
		{"two answers", `{"content":[` + user + `,{"role":"assistant","content":"a"}],"teacher_response":"b"}`, data.KindFault},
		{"not UTF-8", "{\"content\":\"\xff\",\"teacher_response\":\"a\"}", data.KindFault},
		{"turn without content", turns(`{"role":"user"}`), data.KindFault},
		{"number for an answer", `{"content":"q","teacher_response":3}`, ""},
		{"not a token", `{"prompt_ids":[1,99999],"teacher_response":"a"}`, data.KindTokens},
		{"long prompt", turns(`{"role":"user","content":"` + strings.Repeat("Add 1+1+1 ", 40) + `"}`), data.KindLongPrompt},
		{"damaged", `{"content":"q",`, data.KindUnreadable},
	}
	for _, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rows.jsonl")
			if err := os.WriteFile(path, []byte(`{"content":"Add 2+1+1","teacher_response":"It is 4.","prompt_ids":null}`+"\n"+c.line+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			cfg := settings(config.SFT, filepath.Join(t.TempDir(), "run"), "data.train_files="+path,
				"trainer.total_steps=1", "data.train_batch_size=2")
			set, err := data.Open(path, data.DefaultColumns())
			if err != nil {
				t.Fatal(err)
			}
			defer set.Close()
			report, err := data.Validate(set, encode.NewEncoder(fixed.tok),
				data.Limits{MaxPrompt: cfg.Data.MaxPrompt, MaxResponse: cfg.Data.MaxResponse})
			if err != nil {
				t.Fatal(err)
			}
			if report.OK() != (c.kind == "") || c.kind != "" && report.Counts[c.kind] == 0 {
				t.Errorf("validate: want %q\n%s", c.kind, report)
			}
			says := ""
			for _, p := range report.Problems {
				if p.Severity == data.SeverityError && says == "" {
					says = fmt.Sprintf(
						"data: %s: row 1: %s (gad data validate lists all such rows)", path,
						p.Detail)
				}
			}
			for stage, model := range map[config.Stage]string{config.SFT: fixed.student,
				config.Warmup: fixed.student, config.DPO: fixed.student, config.Train: ""} {
				cfg := settings(stage, filepath.Join(t.TempDir(), "run"), "data.train_files="+path,
					"trainer.total_steps=1", "data.train_batch_size=2")
				if cfg.Model.Path = model; model == "" {
					cfg.Trainer.Resume = fixed.warmup
				}
				tr, err := Open(cfg, stage, Options{FS: vfs.OS, Backend: be})
				if err == nil {
					err = tr.Close()
				}
				if got := fmt.Sprint(err); err != nil && got != says || err == nil && says != "" {
					t.Errorf("%s: %v\nvalidate: %s", stage, err, says)
				}
				if bad := new(data.RowError); err != nil &&
					(!errors.As(err, &bad) || bad.Kind != c.kind || bad.Row != 1) {
					t.Errorf("%s: %+v: want a RowError of kind %q", stage, bad, c.kind)
				}
			}
			// what evaluation draws
			_, err = encode.Encoder{Tok: fixed.tok, MaxPrompt: cfg.Data.MaxPrompt,
				MaxResponse: cfg.Data.MaxResponse}.Batch(set, []int{0, 1})
			if got := fmt.Sprint(err); err != nil && got != says || err == nil && says != "" {
				t.Errorf("batch: %v\nvalidate: %s", err, says)
			}
		})
	}
}

// What the limit of answers cuts is counted before the first step; a run whose
// discriminator would never see a pair is refused.
func TestCutAnswers(t *testing.T) {
	be := ready(t)
	dir := t.TempDir()
	write := func(name string, long, short int) string {
		var b strings.Builder
		for i := range long + short {
			answer := "It is 3."
			if i < long {
				answer = strings.Repeat("It is 3. ", 4+i%3)
			}
			fmt.Fprintf(&b, "{\"content\":\"Add %d+1+1\",\"teacher_response\":%q}\n", i, answer)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	enc := encode.NewEncoder(fixed.tok)
	longest, most := len(enc.Answer(strings.Repeat("It is 3. ", 6))), len(enc.Answer("It is 3."))
	all, some := write("all.jsonl", 30, 0), write("some.jsonl", 3, 37)
	limit := fmt.Sprintf("data.max_response_length=%d", most)
	set := fmt.Sprintf("data.max_response_length=%d would keep all", longest)
	for _, c := range []struct {
		stage config.Stage
		path  string
		extra string
		note  string
		err   string
	}{
		{config.SFT, all, "", fmt.Sprintf("30 of 30 teacher answers (100.0 %%) are cut at data.max_response_length %d: the student never learns to end an answer: %s", most, set), ""},
		{config.SFT, some, "", fmt.Sprintf("3 of 40 teacher answers (7.5 %%) are cut at data.max_response_length %d and do not teach the student to end an answer: %s", most, set), ""},
		{config.Warmup, all, "", "", fmt.Sprintf("configuration: data: %s: none of 30 rows can make a pair, since every teacher answer is over data.max_response_length %d: %s; or set critic.truncated=include", all, most, set)},
		{config.Train, all, "", "", fmt.Sprintf("configuration: data: %s: none of 30 rows can make a pair, since every teacher answer is over data.max_response_length %d: %s; or set critic.truncated=include", all, most, set)},
		{config.DPO, all, "", "", fmt.Sprintf("configuration: data: %s: none of 30 rows can make a pair, since every teacher answer is over data.max_response_length %d: %s; or set dpo.truncated=include", all, most, set)},
		{config.Warmup, all, "critic.truncated=include", fmt.Sprintf("30 of 30 teacher answers (100.0 %%) are cut at data.max_response_length %d and take part in pairs without an end (critic.truncated=include): %s", most, set), ""},
		{config.Warmup, some, "", fmt.Sprintf("3 of 40 teacher answers (7.5 %%) are cut at data.max_response_length %d and make no pairs (critic.truncated=exclude): %s", most, set), ""},
		{config.DPO, some, "", fmt.Sprintf("3 of 40 teacher answers (7.5 %%) are cut at data.max_response_length %d and make no pairs (dpo.truncated=exclude): %s", most, set), ""},
		{config.Warmup, some, "data.truncated_teachers=filter",
			"3 of 40 rows are over the length limits and left out", ""},
		{config.Warmup, all, "data.truncated_teachers=filter", "", fmt.Sprintf("data: %s: none of 30 rows is within data.max_prompt_length 64 and data.max_response_length %d: raise them", all, most)},
	} {
		t.Run(fmt.Sprint(c.stage, filepath.Base(c.path), c.extra), func(t *testing.T) {
			overrides := []string{"data.train_files=" + c.path, limit, "trainer.total_steps=1"}
			if c.extra != "" {
				overrides = append(overrides, c.extra)
			}
			var console strings.Builder
			cfg := settings(c.stage, filepath.Join(t.TempDir(), "run"), overrides...)
			tr, err := Open(cfg, c.stage, Options{FS: vfs.OS, Backend: be, Console: &console})
			if err == nil {
				err = tr.Close()
			}
			if got := fmt.Sprint(err); err != nil && got != c.err || err == nil && c.err != "" {
				t.Errorf("got  %v\nwant %s", err, c.err)
			}
			if c.err == "" && !strings.Contains(console.String(), c.note) {
				t.Errorf("console\n%s\nlacks %s", &console, c.note)
			}
			if c.err != "" {
				if _, err := os.Stat(cfg.Trainer.Output); err == nil {
					t.Error("the run folder was made")
				}
			}
		})
	}
}

// Rows of the validation data that are also trained on are told when a run begins.
func TestSharedRows(t *testing.T) {
	be := ready(t)
	open := func(val string, extra ...string) string {
		var console strings.Builder
		tr, err := Open(settings(config.SFT, filepath.Join(t.TempDir(), "run"),
			append([]string{"data.val_files=" + val, "trainer.total_steps=1"}, extra...)...),
			config.SFT, Options{FS: vfs.OS, Backend: be, Console: &console})
		if err != nil {
			t.Fatal(err)
		}
		tr.Close()
		return console.String()
	}
	if said := open(fixed.data, "trainer.val_rows=10"); !strings.Contains(said, "10 of 10 validation rows have a prompt that is also in the training data (10 of them also the same answer)") {
		t.Errorf("the training data as validation data:\n%s", said)
	}
	if said := open(fixed.val); strings.Contains(said, "validation rows") {
		t.Errorf("other data:\n%s", said)
	}
}

// The data settings of a run that an older gad wrote are scalars; lists and scalars
// give the same run.
func TestSeveralTrainFiles(t *testing.T) {
	be := ready(t)
	whole, err := os.ReadFile(fixed.data)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	lines := strings.SplitAfter(strings.TrimSpace(string(whole))+"\n", "\n")
	half := len(lines) / 2
	for name, part := range map[string][]string{"a.jsonl": lines[:half], "b.jsonl": lines[half:]} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(part, "")),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	digest := func(files ...string) string {
		cfg := settings(config.SFT, filepath.Join(t.TempDir(), "run"), "trainer.total_steps=1")
		cfg.Data.TrainFiles = files
		tr, err := Open(cfg, config.SFT, Options{FS: vfs.OS, Backend: be})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		return tr.train.set.Digest()
	}
	want := digest(fixed.data)
	for _, paths := range [][]string{
		{filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "b.jsonl")},
		{filepath.Join(dir, "*.jsonl")},
		{filepath.Join(dir, "a.jsonl") + string(os.PathListSeparator) +
			filepath.Join(dir, "b.jsonl")},
	} {
		if got := digest(paths...); got != want {
			t.Errorf("%q: digest %s, want %s", paths, got, want)
		}
	}
}

// Rows that spell out a control token are told when a run begins, and when a later run reads the
// rows that the first has kept.
func TestSpelledControlTokens(t *testing.T) {
	be := ready(t)
	least := cacheMin
	cacheMin = 1
	defer func() { cacheMin = least }()
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	const row = `{"content":[{"role":"user","content":"1 %s?"}],"teacher_response":"It is 3.%s"}` + "\n"
	if err := os.WriteFile(rows, fmt.Appendf(nil, row+row+row, "a", "", "b", "<|im_end|>",
		"[INST]", ""), 0o644); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	const want = `2 of 3 rows spell out a control token (the first: row 1, "<|im_end|>"), which the student reads and learns as letters: remove it, or write turns (gad data validate lists them)`
	for _, said := range []string{"are kept for", "are read from"} {
		var console strings.Builder
		tr, err := Open(settings(config.SFT, filepath.Join(t.TempDir(), "run"),
			"data.train_files="+rows, "data.train_batch_size=1", "data.cache_dir="+cache),
			config.SFT, Options{FS: vfs.OS, Backend: be, Console: &console})
		if err != nil {
			t.Fatal(err)
		}
		tr.Close()
		if got := console.String(); strings.Count(got, want) != 1 || !strings.Contains(got, said) {
			t.Errorf("%s: console:\n%s", said, got)
		}
	}
}

// Rows with characters that the student's vocabulary lacks are told when a run begins, and
// when a later run reads the rows that the first has kept.
func TestLostCharacters(t *testing.T) {
	be := ready(t)
	least := cacheMin
	cacheMin = 1
	defer func() { cacheMin = least }()
	student := t.TempDir()
	if err := os.CopyFS(student, os.DirFS(fixed.student)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(student, "tokenizer.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	byte4 := regexp.MustCompile(`\n *"Ą": [0-9]+,`) // U+0104 stands for byte 4
	if len(byte4.FindAll(text, -1)) != 1 {
		t.Fatal("the student's vocabulary has no line for byte 4")
	}
	if err := os.WriteFile(path, byte4.ReplaceAll(text, nil), 0o644); err != nil {
		t.Fatal(err)
	}
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	const row = `{"content":[{"role":"user","content":"1 %s?"}],"teacher_response":"It is 3.%s"}` + "\n"
	if err := os.WriteFile(rows, []byte(fmt.Sprintf(row+row+row, "a", "", "b", `\u0004`, `\u0004`, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	const want = "2 of 3 rows have characters without a token in the student's vocabulary (the first: row 1, U+0004 '\\x04' is left out): gad data validate counts them"
	for _, c := range []struct{ student, said string }{{student, "are kept for"},
		{student, "are read from"}, {fixed.student, ""}} {
		var console strings.Builder
		tr, err := Open(settings(config.SFT, filepath.Join(t.TempDir(), "run"),
			"model.path="+c.student, "data.train_files="+rows, "data.train_batch_size=1",
			"data.cache_dir="+cache), config.SFT,
			Options{FS: vfs.OS, Backend: be, Console: &console})
		if err != nil {
			t.Fatal(err)
		}
		tr.Close()
		if got := strings.Count(console.String(), want); got != 1 && c.said != "" || got != 0 &&
			c.said == "" || !strings.Contains(console.String(), c.said) {
			t.Errorf("%s: said %d times; console:\n%s", c.said, got, &console)
		}
	}
}
