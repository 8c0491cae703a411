package eval

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/device"
	"gad/internal/fault"
	"gad/trainer/modeltest"
	"gad/trainer/quality"
)

// evals returns the options of gad eval for models on ten rows, with answers of at most 14 tokens
// and without discriminators.
func evals(models ...string) Options {
	rows := rowsIn(modeltest.Letters("test.jsonl"))
	rows.Limit = 10
	return Options{Models: models, Rows: rows, Device: device.Options{Name: "cpu", Threads: 1},
		Seed: 1, MaxPrompt: 1 << 20, MaxResponse: 14, MaxTokens: 8192,
		CheckerTimeout: time.Minute, Disc: quality.DiscOptions{Batch: 4, Seeds: 3},
		Budget: quality.DiscBudget{Seconds: 600, Fixed: true}}
}

func asJSON(o Options) Options {
	o.JSON = true
	return o
}

func limited(o Options, rows int) Options {
	o.Rows.Limit = rows
	return o
}

// withDisc adds fresh discriminators of so many steps.
func withDisc(o Options, steps int) Options {
	o.Disc.Steps = steps
	return o
}

func run(t *testing.T, o Options) (printed, said string) {
	t.Helper()
	return sessiontest.Must(t, func(s *session.Session) error { return Run(s, o) })
}

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
	t.Parallel()
	plain := evals(modeltest.Student(t))
	five := withDisc(plain, 5)
	printed, said := run(t, asJSON(five))
	e := sessiontest.Lines[evalFigures](t, printed)[0]
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
	text, _ := run(t, five)
	for _, name := range []string{"10 rows, greedy", "ROUGE-L", "teacher NLL", "length ratio",
		"fresh discriminator", "on pairs it learned from", "control"} {
		if !strings.Contains(text, name) {
			t.Errorf("does not print %q:\n%s", name, text)
		}
	}
	printed, _ = run(t, asJSON(limited(plain, 3)))
	if strings.Contains(printed, "fresh_d_") || !strings.Contains(printed, `"rows":3`) {
		t.Errorf("no discriminators, three rows: %s", printed)
	}
	// A checker that says 1 of every row has Wilson's interval, as its label has.
	checked := plain
	checked.Checker = `while read line; do echo '{"score": 1, "label": "right"}'; done`
	text, _ = run(t, checked)
	if want := "checker's score               1.000 [0.722, 1.000]\n  right                       1.000 [0.722, 1.000]\n"; !strings.Contains(text, want) {
		t.Errorf("prints\n%swant %q", text, want)
	}
	// One row has no interval.
	printed, _ = run(t, asJSON(limited(checked, 1)))
	if strings.Contains(printed, "_ci95") || !strings.Contains(printed, `"check":1,`) {
		t.Errorf("one row: %s", printed)
	}
	text, said = run(t, limited(five, 1))
	if n := strings.Count(text, "[-]"); n != 8 || strings.Count(text, "[") != n {
		t.Errorf("one row prints\n%s", text)
	}
	if want := "no fresh discriminator: 1 row: a discriminator learns from half of the rows and is tested on the others\n"; !strings.Contains(text, want) || !strings.Contains(said, want) {
		t.Errorf("one row prints\n%sand says\n%s", text, said)
	}
	// Steps that are not asked for are lowered to what ten rows can teach.
	most := withDisc(plain, quality.DefaultDiscSteps)
	most.Budget.Fixed, most.Disc.Seeds = false, 1
	printed, _ = run(t, asJSON(most))
	if e := sessiontest.Lines[evalFigures](t, printed)[0]; e.Steps != 50 ||
		!strings.Contains(e.Note, "50 of 800 steps, which are") {
		t.Errorf("%d steps: %s", e.Steps, printed)
	}
}

// --against adds the distance to another model: none to itself, and differences that are
// those of the figures. Without it nothing is said of it.
func TestEvalAgainst(t *testing.T) {
	sft, student := modeltest.Student(t), modeltest.Blank(t)
	alone := evals(sft, student)
	alone.Temperature = 1
	o := alone
	o.Against, o.Output = sft, filepath.Join(t.TempDir(), "rows.jsonl")
	printed, said := run(t, asJSON(o))
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
	raw, err := os.ReadFile(o.Output)
	if err != nil {
		t.Fatal(err)
	}
	o.Output = ""
	if rows := sessiontest.Lines[quality.Row](t, string(raw)); len(rows) != 20 ||
		*rows[3].ReverseKL != 0 || !(*rows[13].ReverseKL > 0) || !(*rows[13].ForwardKL > 0) ||
		!(*rows[13].Fluency < 0) {
		t.Errorf("%s", raw)
	}
	text, _ := run(t, o)
	for _, want := range []string{"reverse KL, nats per token    0.000 [-]",
		"\nforward KL, sampled           0.000 [-]", "\nfluency, log p per token      -",
		" worse\n",
		"\nKL and fluency: against " + sft +
			", both distributions at temperature 1, means over tokens\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	greedy := o
	greedy.Temperature = 0
	text, _ = run(t, greedy)
	if want := "; the student's answers are drawn at temperature 0, so that reverse KL, sampled, is no estimate of its own KL\n"; !strings.Contains(text, want) {
		t.Errorf("greedy: %s", text)
	}
	if text, _ = run(t, alone); strings.Contains(text, "KL") ||
		strings.Contains(text, "fluency") {
		t.Errorf("without --against: %s", text)
	}
	o.DryRun = true
	text, _ = run(t, o)
	if !strings.Contains(text, "other model: weights and activations") ||
		!strings.Contains(text, "logits of both") {
		t.Errorf("--dry-run: %s", text)
	}
}

// gad eval --output has a line for each row and model, whose means are the figures of
// the summary, and which gad reads as data.
func TestEvalOutput(t *testing.T) {
	t.Parallel()
	sft, student := modeltest.Student(t), modeltest.Blank(t)
	table := withDisc(evals(student, sft), 5)
	table.Disc.Seeds = 2
	table.Checker = `while read line; do echo '{"score": 0.5, "label": "half"}'; done`
	o := asJSON(table)
	o.Output = filepath.Join(t.TempDir(), "rows.jsonl")
	printed, _ := run(t, o)
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
	raw, err := os.ReadFile(o.Output)
	if err != nil {
		t.Fatal(err)
	}
	rows := sessiontest.Lines[quality.Row](t, string(raw))
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
	same, _ := run(t, evals(sft, copied))
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
	text, _ := run(t, table)
	for _, want := range []string{"A  " + student + "\n", "B  " + sft + "\n", "B - A, paired", "better", "0.500 [-]  ", "+0.000 [-]\n", "[-]: no interval, because there is one row, or all rows are equal and the figure is no share of rows\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	for _, c := range []struct {
		limit    int
		want, no string
	}{{1, "A: 100 % of the answers are cut at the limit, so all figures of them but the teacher NLL are of beginnings: give a larger --max-response-length, or train the student to end its answers (gad sft)\nB: 100 % of ", ""}, {60, "", "B: "}} {
		few := limited(evals(student, sft), 3)
		few.MaxResponse = c.limit
		short, _ := run(t, few)
		_, below, _ := strings.Cut(short, "repeated 4-grams")
		if !strings.Contains(below, c.want) || c.no != "" && strings.Contains(below, c.no) {
			t.Errorf("at a limit of %d tokens:\n%s", c.limit, short)
		}
	}
	if got := sessiontest.Rows(t, o.Output); len(got) != 20 || got[13].Response == "" {
		t.Errorf("the output as data: %d rows", len(got))
	}
}

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

// A checker in gad eval: mean, interval and labels, for programs and for people; one
// that fails is a failure of the run, on one line.
func TestEvalChecker(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	o := evals(modeltest.Student(t))
	o.Checker = `n=0; while read -r line; do n=$((n+1)); if test $n -le 4; then echo '{"score":1,"label":"good"}'; else echo '{"score":0,"label":"bad"}'; fi; done`
	printed, _ := run(t, asJSON(o))
	e := sessiontest.Lines[struct {
		evalFigures
		Check  float64            `json:"check"`
		CI     [2]float64         `json:"check_ci95"`
		Labels map[string]float64 `json:"labels"`
	}](t, printed)[0]
	if !near(e.Check, 0.4) || !(e.CI[0] > 0 && e.CI[0] < 0.3 && e.CI[1] > 0.5 && e.CI[1] < 1) ||
		len(e.Labels) != 2 || !near(e.Labels["good"], 0.4) || !near(e.Labels["bad"], 0.6) {
		t.Errorf("%s", printed)
	}
	text, _ := run(t, o)
	if !strings.Contains(text, "checker's score               0.400 [0.") || !strings.Contains(text, "\n  bad                         0.600 [0.313, 0.832]\n  good                        0.400 [0.168, 0.687]\n") {
		t.Errorf("prints\n%s", text)
	}
	for command, want := range map[string]string{
		"exit 2":                     `gad: tried on the teacher's answer to row 0: checker: "exit 2": row 0 has no score: printed 0 of 1: ended with exit status 2: must end with exit status 0`,
		"head -n 9 | sed 's/.*/1/'":  `gad: checker: "head -n 9 | sed 's/.*/1/'": row 9 has no score: printed 9 of 10: print one line per row, in order`,
		"sleep 60 --checker-timeout": "",
	} {
		if want == "" {
			command, want = "sleep 60", `gad: tried on the teacher's answer to row 0: checker: "sleep 60": row 0 has no score: printed 0 of 1: not finished after 1s, so it was stopped: make it faster, or raise the time limit (trainer.checker_timeout, --checker-timeout)`
		}
		o.CheckerTimeout, o.Checker = time.Second, command
		out, said, err := sessiontest.Run(func(s *session.Session) error { return Run(s, o) })
		if err == nil || errors.Is(err, fault.ErrUsage) || !strings.HasSuffix(said, "\n"+want+"\n") ||
			strings.Count(said, "gad: ") != 1 || out != "" {
			t.Errorf("%s: %s%swant %s", command, out, said, want)
		}
	}
}

// Answers that the checker has no score for are left out of its figure, and counted; where all are,
// there is no figure.
func TestEvalWithoutScores(t *testing.T) {
	student := modeltest.Blank(t)
	o := asJSON(evals(student))
	o.Checker = `sed '1,3s/.*/null/;4s/.*/1/;5,$s/.*/0.5/'`
	o.Output = filepath.Join(t.TempDir(), "rows.jsonl")
	printed, said := run(t, o)
	type figures struct {
		evalFigures
		Check     *float64    `json:"check"`
		CI        *[2]float64 `json:"check_ci95"`
		Unchecked int         `json:"unchecked"`
	}
	e := sessiontest.Lines[figures](t, printed)[0]
	if e.Check == nil || math.Abs(*e.Check-4./7) > 1e-9 || e.Unchecked != 3 || e.CI == nil ||
		!(e.CI[0] == 0.5 && e.CI[1] > 0.6 && e.CI[1] <= 1) {
		t.Errorf("%s", printed)
	}
	if !strings.Contains(said, student+
		": the checker has no score for 3 of 10 answers: left out") {
		t.Errorf("says\n%s", said)
	}
	raw, err := os.ReadFile(o.Output)
	if err != nil || strings.Count(string(raw), `"check":`) != 7 {
		t.Errorf("rows with a score: %v\n%s", err, raw)
	}
	o.Output, o.Checker = "", "sed 's/.*/null/'"
	printed, said = run(t, o)
	if e := sessiontest.Lines[figures](t, printed)[0]; e.Check != nil || e.CI != nil ||
		e.Unchecked != 10 || !strings.Contains(said, "10 of 10 answers") {
		t.Errorf("%s\n%s", printed, said)
	}
}

// The first save counts from when its file is there, noted or not: a process that ends at once says
// what is on the disk.
func TestFirstSaveCounts(t *testing.T) {
	var said bytes.Buffer
	e := &evaluation{s: sessiontest.New(&said, &said, t.Context()),
		o: Options{Output: filepath.Join(t.TempDir(), "rows.jsonl")}}
	e.counted.Store(4) // under way
	if got := e.savedState(); got != "nothing is written" {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(e.o.Output, []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := e.savedState(); got != e.o.Output+" has 4 answers, as they were before" {
		t.Errorf("%q", got)
	}
}
