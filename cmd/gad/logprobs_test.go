package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/data"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/hostile"
)

// What an endpoint says of its tokens is kept beside the answer by bytes, in the journal and in the
// rows; what is none, cannot be read or is of another text is counted, and the answer is kept.
func TestCollectLogprobs(t *testing.T) {
	t.Chdir(t.TempDir())
	whole := func(text string, others int) map[string]any {
		return endpointtest.InThrees(text, others).(map[string]any)
	}
	edited := func(text string, edit func(token map[string]any)) any {
		l := whole(text, 2)
		edit(l["content"].([]any)[1].(map[string]any))
		return l
	}
	s := teacher(t, &endpointtest.Server{
		Answer: func(c endpointtest.Call, _ int) (string, string) { return "ä€😀 " + c.Prompt, "stop" },
		Logprobs: func(c endpointtest.Call, text string) any {
			switch c.Prompt {
			case "none":
				return nil
			case "null":
				return map[string]any{"content": nil}
			case "fewer":
				return whole(text, 0)
			case "other":
				return whole(strings.ToUpper(text), 2)
			case "unknown":
				return edited(text, func(token map[string]any) { token["bytes"] = nil })
			case "byte 256":
				return edited(text, func(token map[string]any) { token["bytes"] = []int{256, 0, 0} })
			case "more than 0":
				return edited(text, func(token map[string]any) { token["logprob"] = 3.5 })
			case "a number":
				return 7
			case "long":
				return edited(text, func(token map[string]any) {
					token["token"] = strings.Repeat("x", 1<<20)
					other := token["top_logprobs"].([]any)[1].(map[string]any)
					other["bytes"] = slices.Repeat([]int{120}, 1<<20)
				})
			}
			return whole(text, 2)
		}})
	var lines []string
	for _, prompt := range []string{"good", "none", "null", "fewer", "other", "unknown", "byte 256",
		"more than 0", "a number", "long"} {
		lines = append(lines, `{"content":"`+prompt+`"}`)
	}
	put(t, "prompts.jsonl", lines...)
	line := []string{"data", "collect", "--prompts", "prompts.jsonl", "--output", "rows.jsonl",
		"--base-url", s.URL, "--model", "big", "--top-logprobs", "3", "--concurrency", "1"}
	const said = "log-probabilities: 3 answers of 10; fewer than 3 tokens at each place: 1; the endpoint has sent none: 2; left out: 5 (the first: row 4: the bytes of the tokens do not write the answer)\n"
	out, _ := must(t, line...)
	if !strings.HasPrefix(out, "rows.jsonl: 10 answers to 10 prompts\n"+said) {
		t.Errorf("prints %q\nwants %q", out, said)
	}
	for _, c := range s.Calls() {
		if c.Raw["logprobs"] != true || c.Raw["top_logprobs"] != 3. {
			t.Fatalf("asked for %v", c.Raw)
		}
	}
	const good = `[[[195,164,226],-0.25,"0",-2,"1",-3],[[130,172,240],-0.25,"0",-2,"1",-3],[[159,152,128],-0.25,"0",-2,"1",-3],[" go",-0.25,"0",-2,"1",-3],["od",-0.25,"0",-2,"1",-3]]`
	rows := collected(t, "rows.jsonl")
	for i, row := range rows {
		if has := row.Logprobs != nil; has != (i == 0 || i == 3 || i == 9) ||
			row.LogprobsFault() != "" || !strings.HasPrefix(row.Teacher, "ä€😀 ") {
			t.Errorf("row %d: %+v", i, row)
		}
	}
	if got := rows[0].Logprobs.String(); got != good {
		t.Errorf("%s\nwant %s", got, good)
	}
	if l := rows[9].Logprobs[1]; len(l) != 3 || len(l[1].Bytes) != 1<<20 {
		t.Errorf("a token of 1 MiB: %.200v", l)
	}
	raw, err := os.ReadFile("rows.jsonl.journal")
	if err != nil || !strings.Contains(string(raw), `"logprobs":`+good) ||
		!strings.Contains(string(raw), `"logprobs":"token 1: not log-probabilities of tokens: byte 0 is \"256\": write whole numbers from 0 to 255"`) ||
		strings.Contains(string(raw), "top_logprobs\":[") {
		t.Errorf("%v: %.2000s", err, raw)
	}
	// From the journal again, in other formats, for nothing.
	for _, name := range []string{"rows.jsonl", "rows.arrow", "rows.parquet"} {
		drop(t, "rows.jsonl")
		if name != "rows.jsonl" {
			if err := os.Rename("rows.jsonl.journal", name+".journal"); err != nil {
				t.Fatal(err)
			}
		}
		again := slices.Clone(line)
		again[5] = name
		calls := len(s.Calls())
		if out, _ := must(t, again...); !strings.Contains(out, said) || len(s.Calls()) != calls {
			t.Errorf("%s: prints %q, %d calls", name, out, len(s.Calls())-calls)
		}
		for i, row := range collected(t, name) {
			if row.Logprobs.String() != rows[i].Logprobs.String() {
				t.Errorf("%s: row %d: %v", name, i, row.Logprobs)
			}
		}
		if name != "rows.jsonl" {
			if err := os.Rename(name+".journal", "rows.jsonl.journal"); err != nil {
				t.Fatal(err)
			}
			put(t, "rows.jsonl")
		}
	}
	drop(t, "rows.jsonl")
	// Others than those of the journal are refused; who asks for none gets and keeps none.
	other := slices.Clone(line)
	other[11] = "5"
	const want = "gad: collect: rows.jsonl.journal: its answers are of other settings: --top-logprobs was 3, now it is 5: give the same, or another --output\n"
	if code, _, said := gad(other...); code != exitUsage || said != want {
		t.Errorf("exit status %d, says %q", code, said)
	}
	plain := append(slices.Clone(line[:10]), "--extra", `{"logprobs":true}`)
	plain[5] = "plain.jsonl"
	if out, _ := must(t, plain...); strings.Contains(out, "log-probabilities") {
		t.Errorf("prints %q", out)
	}
	if raw, err := os.ReadFile("plain.jsonl.journal"); err != nil ||
		strings.Contains(string(raw), "InThrees") || strings.Contains(string(raw), `"logprobs":[`) {
		t.Errorf("%v: %.2000s", err, raw)
	}
	for _, row := range collected(t, "plain.jsonl") {
		if row.Logprobs != nil {
			t.Errorf("%+v", row)
		}
	}
	// By the batch API.
	s.Batch.Looks = 1
	batch := append(slices.Clone(line), "--batch", "--poll", "10ms")
	batch[5] = "batch.jsonl"
	if out, _ := must(t, batch...); !strings.Contains(out, said) {
		t.Errorf("prints %q", out)
	}
}

// scorable is the line of a scoring of a few rows by the fixture's student, and its folder. One
// row has a thought, and one is longer than the teacher's context of 128 tokens.
func scorable(t *testing.T) (dir string, line []string) {
	t.Helper()
	f := ready(t)
	dir = t.TempDir()
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.SplitAfter(string(raw), "\n")[:5]
	rows = append(rows, `{"content":"Add 1+1+1","teacher_response":[{"role":"assistant","content":"It is 3.","reasoning_content":"hm"}]}`+"\n",
		`{"content":"Add 1+1+1","teacher_response":"`+strings.Repeat("It is 3. ", 30)+`"}`+"\n")
	put(t, filepath.Join(dir, "rows.jsonl"), strings.TrimSuffix(strings.Join(rows, ""), "\n"))
	return dir, []string{"data", "score", "--teacher", f.path("train", "global_step_3", "actor"),
		"--data", filepath.Join(dir, "rows.jsonl"), "--top-logprobs", "4"}
}

// What a local teacher gives the tokens of an answer is what gad logprobs says of them, in each
// format, and a student with its tokenizer has soft labels at all of them.
func TestDataScore(t *testing.T) {
	dir, line := scorable(t)
	printed, _ := must(t, "logprobs", "--model", line[3], "--data", filepath.Join(dir, "rows.jsonl"),
		"--limit", "5")
	want := objects[rowOut](t, printed)
	tokens := 0
	for _, row := range want {
		tokens += len(row.LogProbs)
	}
	for _, name := range []string{"out.jsonl", "out.arrow", "out.parquet"} {
		out := filepath.Join(dir, name)
		printed, _ := must(t, append(line, "--output", out)...)
		if !strings.HasSuffix(printed,
			"\nlonger than the teacher's context, and scored as far as that goes: 1 row\nwithout log-probabilities: 1 row (the first: row 5: the answer is more than a text, which a template writes)\n") {
			t.Errorf("prints %q", printed)
		}
		rows := collected(t, out)
		if len(rows) != 7 || rows[5].Logprobs != nil || rows[6].LogprobsFault() != "" {
			t.Fatalf("%d rows: %+v", len(rows), rows[5:])
		}
		for i, row := range rows[:5] {
			if len(row.Logprobs) != len(want[i].LogProbs) || row.LogprobsFault() != "" {
				t.Fatalf("row %d: %d tokens, want %d; %s", i, len(row.Logprobs),
					len(want[i].LogProbs), row.LogprobsFault())
			}
			for k, at := range row.Logprobs {
				if d := at[0].LogProb - want[i].LogProbs[k]; d > 1e-5 || d < -1e-5 || len(at) < 3 {
					t.Errorf("row %d: token %d: %v, want %g", i, k, at, want[i].LogProbs[k])
				}
			}
		}
		scored, last := 0, rows[6].Logprobs
		for k, at := range last {
			if at[0].LogProb > data.NoLogProb {
				scored = k + 1
			}
		}
		if scored == 0 || scored >= len(last) {
			t.Errorf("%d of %d tokens of an answer that is longer than the context", scored, len(last))
		}
		if said := fmt.Sprintf("%s: 6 rows of 7 with log-probabilities, %d tokens; the teacher's mean NLL is ", out, tokens+scored); !strings.HasPrefix(printed, said) {
			t.Errorf("prints %q\nwants %q", printed, said)
		}
		printed, _ = must(t, "data", "validate", "--data", out, "--model", line[3])
		if said := fmt.Sprintf("soft     6 rows with log-probabilities of the teacher: %d of ", tokens+scored); !strings.Contains(printed, said) {
			t.Errorf("%s\nwants %s", printed, said)
		}
	}
	// Labels that are there are replaced, and another system message gives others.
	other := slices.Clone(line)
	other[5] = filepath.Join(dir, "out.jsonl")
	for name, flags := range map[string][]string{"same": nil, "system": {"--system", "Be brief."}} {
		out := filepath.Join(dir, name+".jsonl")
		must(t, append(append(slices.Clone(other), flags...), "--output", out)...)
		a, b := collected(t, other[5])[0].Logprobs.String(), collected(t, out)[0].Logprobs.String()
		if equal := a == b; equal != (name == "same") {
			t.Errorf("%s: the same log-probabilities: %v", name, equal)
		}
	}
	// A GGUF file is a teacher too; its weights are rounded.
	gguf := filepath.Join(dir, "teacher.gguf")
	must(t, "export", "--model", line[3], "--output", gguf, "--gguf", "f16")
	other = slices.Clone(line)
	other[3] = gguf
	must(t, append(other, "--output", filepath.Join(dir, "gguf.jsonl"))...)
	a, b := collected(t, filepath.Join(dir, "out.jsonl")), collected(t, filepath.Join(dir, "gguf.jsonl"))
	for i := range a {
		for k, at := range a[i].Logprobs {
			if d := at[0].LogProb - b[i].Logprobs[k][0].LogProb; d > .05 || d < -.05 {
				t.Errorf("row %d: token %d: by the GGUF file %v, want %v", i, k, b[i].Logprobs[k], at)
			}
		}
	}
}

// A scoring that was interrupted, wherever, has the same bytes in the end; one with other settings
// does not go on.
func TestDataScoreResumes(t *testing.T) {
	dir, line := scorable(t)
	out := filepath.Join(dir, "out.jsonl")
	must(t, append(line, "--output", out)...)
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	// the journal of a whole command, which removes it: by another name
	full, kept := filepath.Join(dir, "full.jsonl"), filepath.Join(dir, "kept")
	if err := errors.Join(os.WriteFile(full+".partial", nil, 0o644),
		os.Link(full+".partial", kept)); err != nil {
		t.Fatal(err)
	}
	must(t, append(line, "--output", full)...)
	partial, err := os.ReadFile(kept)
	lines := bytes.SplitAfter(partial, []byte("\n"))
	if err != nil || len(lines) != 1+7+1 { // settings, rows, nothing behind them
		t.Fatalf("%d records (%v):\n%s", len(lines), err, partial)
	}
	for k := range len(lines) {
		drop(t, full)
		cut := bytes.Join(lines[:k], nil)
		cut = append(cut, lines[k][:len(lines[k])/2]...)
		if err := os.WriteFile(full+".partial", cut, 0o644); err != nil {
			t.Fatal(err)
		}
		must(t, append(line, "--output", full)...)
		if got, err := os.ReadFile(full); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("cut in record %d: %v\n%s\nwant\n%s", k, err, got, want)
		}
		if _, err := os.Stat(full + ".partial"); err == nil {
			t.Error("the journal is still there")
		}
	}
	drop(t, full)
	if err := os.WriteFile(full+".partial", partial, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ flag, value, said string }{
		{"--top-logprobs", "5", "--top-logprobs was 4, now it is 5"},
		{"--system", "x", `--system was not given, now it is "x"`},
		{"--limit", "3", "--limit was 7, now it is 3"},
		{"--weights", "q8_0", `--weights was "native", now it is "q8_0"`},
	} {
		args := append(slices.Clone(line), "--output", full)
		if k := slices.Index(args, c.flag); k >= 0 {
			args[k+1] = c.value
		} else {
			args = append(args, c.flag, c.value)
		}
		code, _, said := gad(args...)
		if code != exitUsage || said != "gad: data score: "+full+".partial: cannot be resumed: "+c.said+
			": give the same settings, or another --output\n" {
			t.Errorf("%s %s: %d, %s", c.flag, c.value, code, said)
		}
	}
}

// A scoring that is killed with signal 9 again and again has the same bytes in the end, and scores
// no row twice that was in the journal.
func TestDataScoreKill(t *testing.T) {
	slow(t)
	t.Parallel()
	path, f := built(t), ready(t)
	dir := t.TempDir()
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var rows bytes.Buffer
	for range 40 { // some chunks
		rows.Write(raw)
	}
	in := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(in, rows.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	line := []string{path, "data", "score", "--teacher",
		f.path("train", "global_step_3", "actor"), "--data", in, "--threads", "1", "--output"}
	begun := time.Now()
	if p := start(t, "env", append(line, filepath.Join(dir, "whole.jsonl"))...); p.end(t, patience) != exitDone {
		t.Fatal(p.said.String())
	}
	took := time.Since(begun)
	want, err := os.ReadFile(filepath.Join(dir, "whole.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	out := filepath.Join(dir, "out.jsonl")
	killed, inside := 0, 0
	for most := hostile.Share(12); ; {
		p := start(t, "env", append(line, out)...)
		if killed < most {
			time.Sleep(time.Duration(r.Int64N(int64(took))))
			p.Process.Kill()
		}
		code := p.end(t, patience)
		// it may be killed between its output and its end
		if _, err := os.Stat(out); code == exitDone || code == -1 && err == nil {
			got, err := os.ReadFile(out)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("seed %d: %d kills: other bytes (%v)", seed, killed, err)
			}
			if killed >= most {
				break
			}
			drop(t, out)
			continue
		}
		if code != -1 {
			t.Fatalf("seed %d: exit status %d\n%s", seed, code, p.said.String())
		}
		killed++
		journal, _ := os.ReadFile(out + ".partial")
		if n := bytes.Count(journal, []byte("\n")); n > 1 && n <= 40*50 {
			inside++
		}
	}
	t.Logf("gad data score: %d kills, %d of them with some rows done, 0 other bytes (a run takes %s; seed %d)",
		killed, inside, took.Round(time.Millisecond), seed)
}
