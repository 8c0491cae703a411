package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/data"
	"gad/trainer/quality"
)

// evalFigures are what gad eval prints always, and of fresh discriminators.
type evalFigures struct {
	Model       string     `json:"model"`
	Rows        int        `json:"rows"`
	Temperature float64    `json:"temperature"`
	RougeL      float64    `json:"rouge_l"`
	NLL         float64    `json:"teacher_nll"`
	LenRatio    float64    `json:"len_ratio"`
	D1          float64    `json:"distinct_1"`
	D2          float64    `json:"distinct_2"`
	Truncated   float64    `json:"truncated_frac"`
	Repeat      float64    `json:"repeat_frac"`
	RougeCI     [2]float64 `json:"rouge_l_ci95"`
	NLLCI       [2]float64 `json:"teacher_nll_ci95"`
	LenCI       [2]float64 `json:"len_ratio_ci95"`
	D1CI        [2]float64 `json:"distinct_1_ci95"`
	D2CI        [2]float64 `json:"distinct_2_ci95"`
	TruncatedCI [2]float64 `json:"truncated_frac_ci95"`
	RepeatCI    [2]float64 `json:"repeat_frac_ci95"`
	Fresh       *float64   `json:"fresh_d_acc"`
	FreshCI     []float64  `json:"fresh_d_acc_ci95"`
	Trained     *float64   `json:"fresh_d_trained"`
	Control     *float64   `json:"fresh_d_control"`
	ControlCI   []float64  `json:"fresh_d_control_ci95"`
	Ties        *float64   `json:"fresh_d_ties"`
	TiesCI      []float64  `json:"fresh_d_ties_ci95"`
	Learned     *bool      `json:"fresh_d_learned"`
	Steps       int        `json:"fresh_d_steps"`
	Seeds       int        `json:"fresh_d_seeds"`
	Read        int        `json:"fresh_d_read"`
	Note        string     `json:"fresh_d_note"`
}

// Every figure has an interval that holds it; the estimate comes before the work.
func TestEval(t *testing.T) {
	f := ready(t)
	args := []string{"eval", "--model", f.path("sft", "global_step_60", "actor"), "--data",
		f.path("test.jsonl"), "--max-response-length", "14"}
	plain, args := args, append(slices.Clone(args), "--disc-steps", "5")
	printed, said := must(t, append(args, "--json")...)
	e := objects[evalFigures](t, printed)[0]
	if e.Rows != 10 || !(e.RougeL > 0.3 && e.RougeL <= 1) || !(e.NLL > 0 && e.NLL < 4) ||
		!(e.LenRatio > 0.3 && e.LenRatio < 3) || e.Ties == nil || e.Control == nil ||
		e.Trained == nil ||
		e.Learned == nil || *e.Learned != (e.Fresh != nil) || len(e.ControlCI) != 2 ||
		len(e.TiesCI) != 2 || e.Steps != 5 || e.Seeds != 3 || e.Model != "" {
		t.Errorf("%s", printed)
	}
	for name, x := range map[string]struct {
		value float64
		ci    [2]float64
	}{"rouge_l": {e.RougeL, e.RougeCI}, "teacher_nll": {e.NLL, e.NLLCI},
		"len_ratio": {e.LenRatio, e.LenCI}, "distinct_1": {e.D1, e.D1CI},
		"distinct_2": {e.D2, e.D2CI}, "truncated_frac": {e.Truncated, e.TruncatedCI}} {
		if x.ci == [2]float64{} && strings.HasPrefix(name, "distinct") {
			continue // no interval: leaving any answer out changes nothing
		}
		if !(x.ci[0] <= x.value && x.value <= x.ci[1]) {
			t.Errorf("%s: %g is not within its interval %v", name, x.value, x.ci)
		}
	}
	for _, text := range []string{"estimate, from a measurement of", "  answers  ",
		"  teacher NLL  ", "fresh discriminators (2 x 3 of 5 steps)", "  total  "} {
		if !strings.Contains(said, text) {
			t.Errorf("the estimate lacks %q:\n%s", text, said)
		}
	}
	text, _ := must(t, args...)
	for _, name := range []string{"10 rows, greedy", "ROUGE-L", "teacher NLL", "length ratio",
		"fresh discriminator", "on pairs it learned from", "control"} {
		if !strings.Contains(text, name) {
			t.Errorf("does not print %q:\n%s", name, text)
		}
	}
	printed, _ = must(t, append(plain, "--json", "--disc-steps", "0", "--limit", "3")...)
	if strings.Contains(printed, "fresh_d_") || !strings.Contains(printed, `"rows":3`) {
		t.Errorf("--disc-steps 0 --limit 3: %s", printed)
	}
	// A checker that says 1 of every row has Wilson's interval, as its label has.
	text, _ = must(t, append(plain, "--disc-steps", "0", "--checker", `while read line; do echo '{"score": 1, "label": "right"}'; done`)...)
	if want := "checker's score               1.000 [0.722, 1.000]\n  right                       1.000 [0.722, 1.000]\n"; !strings.Contains(text, want) {
		t.Errorf("prints\n%swant %q", text, want)
	}
	// One row has no interval.
	printed, _ = must(t, append(plain, "--json", "--disc-steps", "0", "--limit", "1", "--checker", `while read line; do echo '{"score": 1, "label": "right"}'; done`)...)
	if strings.Contains(printed, "_ci95") || !strings.Contains(printed, `"check":1,`) {
		t.Errorf("one row: %s", printed)
	}
	text, said = must(t, append(args, "--limit", "1")...)
	if n := strings.Count(text, "[-]"); n != 8 || strings.Count(text, "[") != n {
		t.Errorf("one row prints\n%s", text)
	}
	if want := "no fresh discriminator: 1 row: a discriminator learns from half of the rows and is tested on the others\n"; !strings.Contains(text, want) || !strings.Contains(said, want) {
		t.Errorf("one row prints\n%sand says\n%s", text, said)
	}
	// Steps that are not asked for are lowered to what ten rows can teach.
	printed, _ = must(t, "eval", "--model", f.path("sft", "global_step_60", "actor"), "--data",
		f.path("test.jsonl"), "--max-response-length", "14", "--json", "--disc-seeds", "1")
	if e := objects[evalFigures](t, printed)[0]; e.Steps != 50 ||
		!strings.Contains(e.Note, "50 of 800 steps, which are") {
		t.Errorf("%d steps: %s", e.Steps, printed)
	}
}

// --against adds the distance to another model: none to itself, and differences that are
// those of the figures. Without it nothing is said of it.
func TestEvalAgainst(t *testing.T) {
	f := ready(t)
	sft, student, out :=
		f.path("sft", "global_step_60", "actor"), f.path("student"),
		filepath.Join(t.TempDir(), "rows.jsonl")
	args := []string{"eval", "--model", sft, "--model", student, "--data", f.path("test.jsonl"),
		"--max-response-length", "14", "--disc-steps", "0", "--temperature", "1"}
	printed, said := must(t, append(args, "--against", sft, "--json", "--output", out)...)
	type distance struct {
		Against        string
		Reverse        *float64  `json:"reverse_kl"`
		ReverseCI      []float64 `json:"reverse_kl_ci95"`
		Sampled        *float64  `json:"reverse_kl_sampled"`
		Forward        *float64  `json:"forward_kl"`
		ForwardSampled *float64  `json:"forward_kl_sampled"`
		Fluency        *float64  `json:"fluency"`
		FluencyCI      []float64 `json:"fluency_ci95"`
	}
	var all struct {
		Models      []distance
		Differences []map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(printed), &all); err != nil || len(all.Models) != 2 {
		t.Fatalf("%v: %s", err, printed)
	}
	self, other := all.Models[0], all.Models[1]
	if self.Against != sft || *self.Reverse != 0 || *self.Sampled != 0 || *self.Forward != 0 ||
		*self.ForwardSampled != 0 || self.ReverseCI != nil || len(self.FluencyCI) != 2 {
		t.Errorf("a model and itself: %s", printed)
	}
	if !(*other.Reverse > 0.1) || !(*other.Forward > 0.1) || !(*other.Fluency < *self.Fluency) ||
		len(other.ReverseCI) != 2 {
		t.Errorf("another: %s", printed)
	}
	var d quality.Difference
	if err := json.Unmarshal(all.Differences[0]["reverse_kl"], &d); err != nil ||
		d.Value != *other.Reverse || d.CI95 == nil || !(d.CI95[0] > 0) {
		t.Errorf("%v, %s", err, printed)
	}
	if !strings.Contains(said, "  against the other model  ") {
		t.Errorf("the estimate says\n%s", said)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if rows := objects[quality.Row](t, string(raw)); len(rows) != 20 || *rows[3].ReverseKL != 0 ||
		!(*rows[13].ReverseKL > 0) || !(*rows[13].ForwardKL > 0) || !(*rows[13].Fluency < 0) {
		t.Errorf("%s", raw)
	}
	text, _ := must(t, append(args, "--against", sft)...)
	for _, want := range []string{"reverse KL, nats per token    0.000 [-]",
		"\nforward KL, sampled           0.000 [-]", "\nfluency, log p per token      -",
		" worse\n",
		"\nKL and fluency: against " + sft +
			", both distributions at temperature 1, means over tokens\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	text, _ = must(t, append(slices.Clone(args[:len(args)-2]), "--against", sft)...)
	if want := "; the student's answers are drawn at temperature 0, so that reverse KL, sampled, is no estimate of its own KL\n"; !strings.Contains(text, want) {
		t.Errorf("greedy: %s", text)
	}
	if text, _ = must(t, args...); strings.Contains(text, "KL") ||
		strings.Contains(text, "fluency") {
		t.Errorf("without --against: %s", text)
	}
	text, _ = must(t, append(args, "--against", sft, "--dry-run")...)
	if !strings.Contains(text, "other model: weights and activations") ||
		!strings.Contains(text, "logits of both") {
		t.Errorf("--dry-run: %s", text)
	}
}

// gad eval --output has a line for each row and model, whose means are the figures of
// the summary, and which gad reads as data.
func TestEvalOutput(t *testing.T) {
	f := ready(t)
	out := filepath.Join(t.TempDir(), "rows.jsonl")
	sft, student := f.path("sft", "global_step_60", "actor"), f.path("student")
	args := []string{"eval", "--model", student, "--model", sft, "--data", f.path("test.jsonl"),
		"--max-response-length", "14", "--disc-steps", "5", "--disc-seeds", "2",
		"--checker", `while read line; do echo '{"score": 0.5, "label": "half"}'; done`}
	printed, _ := must(t, append(args, "--output", out, "--json")...)
	var all struct {
		Models []struct {
			evalFigures
			Check   float64            `json:"check"`
			CheckCI []float64          `json:"check_ci95"`
			Labels  map[string]float64 `json:"labels"`
		} `json:"models"`
		Differences []map[string]json.RawMessage `json:"differences"`
	}
	if err := json.Unmarshal([]byte(printed), &all); err != nil || len(all.Models) != 2 ||
		len(all.Differences) != 1 {
		t.Fatalf("%v: %s", err, printed)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	rows := objects[quality.Row](t, string(raw))
	if len(rows) != 20 {
		t.Fatalf("%d rows", len(rows))
	}
	for k, name := range []string{student, sft} {
		var rouge, asked, right, cut float64
		for i, r := range rows[10*k : 10*k+10] {
			if r.Model != name || r.Row != i || r.TeacherNLL == nil || r.Check == nil ||
				*r.Check != 0.5 || r.Label != "half" || len(r.Fresh) != 2 || r.Tokens < 1 ||
				len(r.Content) == 0 || r.Teacher == "" {
				t.Errorf("line %d: %+v", 10*k+i, r)
			}
			rouge += r.RougeL / 10
			if r.Truncated {
				cut += 0.1
			}
			for _, v := range r.Fresh {
				if v != nil {
					asked++
					right += *v
				}
			}
		}
		m := all.Models[k]
		if m.Model != name || !near(rouge, m.RougeL) || !near(cut, m.Truncated) || m.Check != 0.5 ||
			m.Labels["half"] != 1 || asked < 8 || asked > 10 {
			t.Errorf("%s: rows give ROUGE-L %g, cut %g, %g verdicts; the summary %+v", name, rouge,
				cut, asked, m)
		}
		if m.Fresh != nil && !near(right/asked, *m.Fresh) {
			t.Errorf("%s: verdicts %g, accuracy %g", name, right/asked, *m.Fresh)
		}
	}
	var equal, alike float64
	for i, r := range rows[:10] {
		if r.Response == rows[10+i].Response {
			alike += 0.1
		}
	}
	if err := json.Unmarshal(all.Differences[0]["equal_answers"], &equal); err != nil ||
		!near(equal, alike) {
		t.Errorf("equal answers %g (%v), the rows have %g", equal, err, alike)
	}
	copied := filepath.Join(t.TempDir(), "copied")
	if err := os.CopyFS(copied, os.DirFS(sft)); err != nil {
		t.Fatal(err)
	}
	same, _ := must(t, "eval", "--model", sft, "--model", copied, "--data", f.path("test.jsonl"),
		"--max-response-length", "14", "--disc-steps", "0")
	if !strings.Contains(same, "\nB and A answer 1.000 of the rows by the same text\n") {
		t.Errorf("a model and itself:\n%s", same)
	}
	var d quality.Difference
	if err := json.Unmarshal(all.Differences[0]["rouge_l"], &d); err != nil ||
		!near(d.Value, all.Models[1].RougeL-all.Models[0].RougeL) || d.CI95 == nil ||
		d.CI95[0] <= 0 {
		t.Errorf("difference of ROUGE-L %s: %v; an SFT student is better than an untrained one",
			all.Differences[0]["rouge_l"], err)
	}
	text, _ := must(t, args...)
	for _, want := range []string{"A  " + student + "\n", "B  " + sft + "\n", "B - A, paired", "better", "0.500 [-]  ", "+0.000 [-]\n", "[-]: no interval, because there is one row, or all rows are equal and the figure is no share of rows\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	for _, c := range []struct {
		limit, want string
		no          string
	}{{"1", "A: 100 % of the answers are cut at the limit, so all figures of them but the teacher NLL are of beginnings: give a larger --max-response-length, or train the student to end its answers (gad sft)\nB: 100 % of ", ""}, {"60", "", "B: "}} {
		short, _ := must(t, "eval", "--model", student, "--model", sft, "--data",
			f.path("test.jsonl"), "--limit", "3", "--disc-steps", "0", "--max-response-length",
			c.limit)
		_, below, _ := strings.Cut(short, "repeated 4-grams")
		if !strings.Contains(below, c.want) || c.no != "" && strings.Contains(below, c.no) {
			t.Errorf("at a limit of %s tokens:\n%s", c.limit, short)
		}
	}
	printed, _ = must(t, "logprobs", "--model", sft, "--data", out)
	if got := objects[rowOut](t, printed); len(got) != 20 || len(got[13].Response) < 2 {
		t.Errorf("logprobs of the output: %d rows: %s", len(got), printed)
	}
}

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

// gad plan --stage eval and gad eval --dry-run print the same parts, and write nothing.
func TestEvalPlan(t *testing.T) {
	f := ready(t)
	model, rows := f.path("sft", "global_step_60", "actor"), f.path("test.jsonl")
	for _, args := range [][]string{{"plan", "--stage", "eval"}, {"eval", "--dry-run"}} {
		printed, _ := must(t, append(args, "--model", model, "--data", rows)...)
		for _, text := range []string{"memory\n", "student: key/value cache",
			"fresh discriminators (2 x 3 of 50 steps)", "estimate, from a measurement",
			"50 of 800 steps, which are 40 passes over 5 pairs"} {
			if !strings.Contains(printed, text) {
				t.Errorf("%v does not print %q:\n%s", args, text, printed)
			}
		}
	}
}

// gad generate --data answers every row with every sample; each answer is that of the
// same row alone, and the file is data for gad score.
func TestGenerateData(t *testing.T) {
	f := ready(t)
	actor, rows := f.path("train", "global_step_3", "actor"), f.path("test.jsonl")
	dir := t.TempDir()
	args := func(name string, extra ...string) []string {
		return append([]string{"generate", "--model", actor, "--data", rows, "--output",
			filepath.Join(dir, name), "-n", "3", "--max-new-tokens", "12", "--temperature", "1"},
			extra...)
	}
	printed, _ := must(t, args("all.jsonl")...)
	if !strings.Contains(printed, "30 answers to 10 rows") {
		t.Errorf("prints %q", printed)
	}
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	all := read("all.jsonl")
	answers := objects[answerLine](t, all)
	if len(answers) != 30 {
		t.Fatalf("%d answers", len(answers))
	}
	for i, a := range answers {
		if a.Row != i/3 || a.Sample != i%3 || len(a.Content) == 0 || a.Teacher == "" ||
			a.Tokens < 1 || a.Truncated != (a.Finish == "length") ||
			a.Truncated != (a.Tokens == 12 && a.Finish != "stop") {
			t.Errorf("line %d: %+v", i, a)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "all.jsonl.partial")); !os.IsNotExist(err) {
		t.Errorf("the journal is left: %v", err)
	}
	// What an environment gets of a row stays with its answers.
	env := filepath.Join(dir, "env.jsonl")
	if err := os.WriteFile(env, []byte(`{"content":"q","env":{"n": 1.50}}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, "generate", "--model", actor, "--data", env, "--output",
		filepath.Join(dir, "acted.jsonl"), "-n", "2", "--max-new-tokens", "2")
	if got := read("acted.jsonl"); strings.Count(got, `,"env":{"n":1.50},`) != 2 {
		t.Errorf("generate writes\n%s", got)
	}
	// The rows before a limit are the same, whatever comes after them.
	must(t, args("two.jsonl", "--limit", "2")...)
	if two := read("two.jsonl"); !strings.HasPrefix(all, two) || strings.Count(two, "\n") != 6 {
		t.Errorf("--limit 2 gives other answers:\n%s", two)
	}
	must(t, args("other.jsonl", "--seed", "2")...)
	if read("other.jsonl") == all {
		t.Error("another seed gives the same answers")
	}
	scores, _ := must(t, "score", "--critic", f.path("train", "global_step_3", "critic"), "--data",
		filepath.Join(dir, "all.jsonl"))
	if got := objects[rowOut](t, scores); len(got) != 30 {
		t.Errorf("%d scores", len(got))
	}

	// From any part of the journal the same bytes come.
	head, lines :=
		generateBegun(t, actor, rows, 3, 12, 1),
		strings.SplitAfter(strings.TrimSuffix(all, "\n"), "\n")
	for k, part := range map[string]string{
		"nothing":               head,
		"some, out of order":    head + lines[7] + lines[2] + lines[0] + lines[1],
		"a line cut short":      head + lines[0] + lines[1][:20],
		"a last line unended":   head + strings.TrimSuffix(lines[4], "\n"),
		"the same answer twice": head + lines[4] + lines[4],
	} {
		keyed := head
		for line := range strings.Lines(strings.TrimPrefix(part, head)) {
			i := slices.IndexFunc(lines, func(whole string) bool {
				return strings.HasPrefix(whole, strings.TrimSuffix(line, "\n"))
			})
			keyed += fmt.Sprintf(`{"key":"%d/%d","record":`, i/3, i%3) +
				strings.Replace(line, "\n", "}\n", 1)
		}
		name := strings.ReplaceAll(k, " ", "-") + ".jsonl"
		if err := os.WriteFile(filepath.Join(dir, name+".partial"), []byte(keyed),
			0o644); err != nil {
			t.Fatal(err)
		}
		_, said := must(t, args(name)...)
		if read(name) != all {
			t.Errorf("%s: other bytes than without an interruption", k)
		}
		if n := strings.Count(part, "\n") - 1; n > 0 && !strings.Contains(said, "resuming, ") {
			t.Errorf("%s: does not say that it resumes: %s", k, said)
		}
	}
}

// answerLine is a line of gad generate --output.
type answerLine struct {
	Row       int               `json:"row"`
	Sample    int               `json:"sample"`
	Content   []json.RawMessage `json:"content"`
	Teacher   string            `json:"teacher_response"`
	Response  string            `json:"response"`
	Tokens    int               `json:"tokens"`
	Truncated bool              `json:"truncated"`
	Finish    string            `json:"finish_reason"`
}

// generateBegun returns the first line of the journal of gad generate --data: the settings of n
// answers to a prompt, of limit tokens at most.
func generateBegun(t *testing.T, dir, rows string, n, limit int, temperature float64) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	for _, e := range entries {
		if content := fileText(filepath.Join(dir, e.Name())); !e.IsDir() {
			fmt.Fprintf(sum, "%s %d\n%s", e.Name(), len(content), content)
		}
	}
	set, err := data.Open(rows, data.DefaultColumns())
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	return fmt.Sprintf(`{"key":"settings","record":{"model_sha256":"%x","data_digest":"%s","content_key":"content","teacher_key":"teacher_response","n":%d,"max_new_tokens":%d,"temperature":%g,"top_p":1,"min_p":0,"top_k":0,"seed":1,"device":"cpu","precision":"auto"}}`+"\n",
		sum.Sum(nil), set.Digest(), n, limit, temperature)
}

// Token by token the same text comes as at once, characters whole.
func TestStream(t *testing.T) {
	f := ready(t)
	actor := f.path("train", "global_step_3", "actor")
	for _, seed := range []string{"1", "2", "3", "4"} {
		args := []string{"generate", "--model", actor, "--prompt", "Add 1+2+3", "--max-new-tokens",
			"40", "--temperature", "3", "--seed", seed}
		whole, _ := must(t, args...)
		streamed, _ := must(t, append(args, "--stream")...)
		if streamed != whole {
			t.Errorf("seed %s: streamed %q, at once %q", seed, streamed, whole)
		}
	}
}

// The prompt may come from standard input.
func TestPromptFromStdin(t *testing.T) {
	f := ready(t)
	actor := f.path("train", "global_step_3", "actor")
	want, _ := must(t, "generate", "--model", actor, "--prompt", "Add 1+2+3", "--max-new-tokens",
		"12", "--temperature", "1")
	file := filepath.Join(t.TempDir(), "prompt")
	old := os.Stdin
	defer func() { os.Stdin = old }()
	for content, wrong := range map[string]string{"Add 1+2+3\n": "",
		"\n": "standard input is empty", "\xff\xfe": "standard input is not UTF-8 text"} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		in, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		os.Stdin = in
		code, got, said := gad("generate", "--model", actor, "--prompt", "-", "--max-new-tokens",
			"12", "--temperature", "1")
		in.Close()
		if wrong == "" && got != want || wrong != "" &&
			(code != exitUsage || said != "gad: generate: --prompt -: "+wrong+"\n") {
			t.Errorf("%q: exit status %d, prints %q, says %q", content, code, got, said)
		}
	}
}
