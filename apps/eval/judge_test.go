package eval

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gad/apps/judge"
	"gad/apps/judge/judgetest"
	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/apps/task"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/fault"
	"gad/trainer/modeltest"
)

// A student that is always right, one that guesses and one that pads its answers, on
// the demo's task: a judge by rule gives the figures that counting gives.
func TestJudgeOfTheDemo(t *testing.T) {
	t.Chdir(t.TempDir())
	const n = 100
	kind := func(first float64) []task.Row {
		rows, err := task.Kind{First: first}.Make(1, task.Test, n)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	teacher, walks, results := kind(0.75), kind(0), kind(1)
	number := map[string]int{}
	for i, r := range teacher {
		number[r.Prompt] = i
	}
	right := func(prompt, answer string) bool {
		g, err := task.Check(prompt, answer)
		if err != nil {
			t.Error(err)
		}
		return g.Valid
	}
	longer := func(i int) bool { return i%4 != 3 }     // the padded answer, than the teacher's
	longWins := func(i int) bool { return i/4%5 != 0 } // four in five, on both sides
	server := judgetest.Server(t,
		func(prompt string) string { // wrong one time in ten
			i := number[prompt]
			if i%10 == 0 {
				return "I cannot say."
			}
			return walks[i].Answer
		},
		func(prompt, answer string) int {
			if right(prompt, answer) {
				return 9
			}
			return 3
		},
		func(prompt, a, b string) string {
			rightA, rightB := right(prompt, a), right(prompt, b)
			switch {
			case strings.Contains(a+b, "!") && (len(a) > len(b)) == longWins(number[prompt]),
				rightA && !rightB && !strings.Contains(b, "!"):
				return "A"
			case strings.Contains(a+b, "!"), rightB && !rightA:
				return "B"
			case strings.HasPrefix(prompt, "Facing north"): // this judge likes what it sees first
				return "A"
			}
			return "tie"
		})
	pad := func(i int) string {
		text := "! " + walks[i].Answer
		if longer(i) {
			return text + strings.Repeat("!", len(teacher[i].Answer)+30-len(text))
		}
		return text[:len(teacher[i].Answer)-30]
	}
	guess := func(i int) string {
		if i%4 == 0 {
			return results[i].Answer
		}
		// as long
		opposite := map[string]string{"north": "south", "south": "north", "east": "west",
			"west": "east"}[results[i].Result]
		return strings.Replace(results[i].Answer, "Now "+results[i].Result, "Now "+opposite, 1)
	}
	o := Options{JSON: true, Output: "rows.jsonl", Judge: &JudgeOptions{URL: server.URL,
		Model: "rule", Mode: judge.Both, Against: AgainstTeacher, Teacher: true,
		Journal: "judgments.jsonl", MaxTokens: 1024, Concurrency: 16},
		Answers: []string{"guesses.jsonl", "walks.jsonl", "pads.jsonl"}}
	run := func(o Options) string {
		t.Helper()
		printed, _ := sessiontest.Must(t, func(s *session.Session) error { return Run(s, o) })
		return printed
	}
	for name, answer := range map[string]func(i int) string{
		"walks": func(i int) string { return walks[i].Answer }, "guesses": guess, "pads": pad} {
		var b strings.Builder
		for i, r := range teacher {
			line, err := json.Marshal(
				map[string]any{"row": i, "content": r.Prompt, "teacher_response": r.Answer,
					"response": answer(i)})
			if err != nil {
				t.Fatal(err)
			}
			b.Write(append(line, '\n'))
		}
		if err := os.WriteFile(name+".jsonl", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	printed := run(o)
	got := judgetest.ReadOutput(t, printed).Judge
	var names []string
	for _, f := range got.Students {
		names = append(names, f.Name)
	}
	if !slices.Equal(names, []string{"guesses.jsonl", "walks.jsonl", "pads.jsonl", "teacher"}) ||
		got.Questions != n || got.Against != judge.Teacher || got.Model != "rule" {
		t.Fatalf("%v: %s", names, printed)
	}
	grades := func(right func(i int) bool) (score, win float64) {
		for i := range n {
			s, r := 3., 9.
			if right(i) {
				s = 9
			}
			if i%10 == 0 {
				r = 3
			}
			score += 100 * s / (s + r) / n
			if s > r {
				win += 1. / n
			}
		}
		return score, win
	}
	always := func(int) bool { return true }
	differ, swapped := 0., 0. // walks and the teacher
	for i, r := range teacher {
		if r.Answer != walks[i].Answer {
			differ++
			if strings.HasPrefix(r.Prompt, "Facing north") {
				swapped++
			}
		}
	}
	same := 0. // guesses and the teacher, which the judge is not asked about
	guessPref, guessSwap := 0., 0.
	for i, r := range teacher {
		switch {
		case guess(i) == r.Answer:
			same++
			guessPref += 0.5
		case i%4 == 0: // both right, in two forms
			guessPref += 0.5
			if strings.HasPrefix(r.Prompt, "Facing north") {
				guessSwap++
			}
		}
	}
	for _, c := range []struct {
		student              int
		right                func(i int) bool
		pair, lc, swap, near float64
	}{
		// all as long as the teacher's
		{0, func(i int) bool { return i%4 == 0 }, guessPref / n, guessPref / n,
			guessSwap / (n - same), 0},
		{1, always, 0.5, 0.5, swapped / differ, 0},
		// 4/5 of the 75 longer ones, 1/5 of the 25 shorter ones; the rest is the ridge
		{2, func(i int) bool { return false }, 0.65, 0.5, 0, 0.02},
		{3, always, 0.5, 0.5, math.NaN(), 0},
	} {
		f := got.Students[c.student]
		score, win := grades(c.right)
		if math.Abs(judgetest.Value(f.Score)-score) > 1e-9 ||
			math.Abs(judgetest.Value(f.Win)-win) > 1e-9 ||
			math.Abs(judgetest.Value(f.PairWin)-c.pair) > 1e-9 ||
			math.IsNaN(c.swap) != (f.Swap == nil) || f.Swap != nil &&
			math.Abs(*f.Swap-c.swap) > 1e-9 || !math.IsNaN(c.lc) &&
			math.Abs(judgetest.Value(f.LCWin)-c.lc) > c.near+1e-9 {
			t.Errorf("%s: score %g win %g pair %g LC %g swap %g, want %g %g %g %g %g", f.Name,
				judgetest.Value(f.Score), judgetest.Value(f.Win), judgetest.Value(f.PairWin),
				judgetest.Value(f.LCWin), judgetest.Value(f.Swap),
				score, win, c.pair, c.lc, c.swap)
		}
		if f.Scored != n || f.Paired != n || f.ScoreCI95 == nil ||
			!(f.ScoreCI95[0] <= score && score <= f.ScoreCI95[1]) {
			t.Errorf("%s: %+v", f.Name, f)
		}
	}
	if swapped == 0 || swapped == differ || same == 0 || got.Students[2].LCSlope == nil ||
		*got.Students[2].LCSlope < 1 {
		t.Error("the rule tests nothing")
	}
	if len(got.Differences) != 3 || string(got.Differences[0]["model"]) != `"walks.jsonl"` || string(got.Differences[0]["minus"]) != `"guesses.jsonl"` || !strings.Contains(string(got.Differences[0]["score"]), `"ci95":[`) {
		t.Errorf("differences %s", got.Differences)
	}
	// Asked once: references for all, grades of texts that differ, pairs of texts that differ.
	calls, graded := len(server.Calls()), n+int(differ)+(n-int(same))+n
	if want := n + graded + 2*int(differ) + 2*(n-int(same)) + 2*n; calls != want ||
		got.Tally.Asked != want {
		t.Errorf("%d calls, want %d: %+v", calls, want, got.Tally)
	}
	// Again, for people: nothing is asked.
	o.JSON, o.Output = false, ""
	table := run(o)
	if !strings.HasSuffix(table, fmt.Sprintf("judgments.jsonl: 0 requests made, 0 tokens to the judge, 0 from it; %d were in it before\n", got.Tally.Asked)) || !strings.Contains(table, "\nteacher ") ||
		!strings.HasPrefix(table, "A  guesses.jsonl\nB  walks.jsonl\nC  pads.jsonl\njudge rule: 100 prompts, pairs against the teacher; 95 % intervals in brackets\n") || !strings.Contains(table, " ▲  ") {
		t.Errorf("prints\n%s", table)
	}
	raw, err := os.ReadFile("rows.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var rows []AnswerRow
	for line := range strings.Lines(string(raw)) {
		var r AnswerRow
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	if len(rows) != 3*n || rows[0].Model != "guesses.jsonl" || rows[0].Row != 0 ||
		rows[n].Judge.Grade == nil || *rows[n].Judge.Grade != 9 || rows[0].Response != guess(0) {
		t.Errorf("%d rows, %+v", len(rows), rows[0])
	}
	// The rows are a file of answers themselves, whose models are told apart.
	o.JSON, o.Answers, o.Rows.Limit = true, []string{"rows.jsonl"}, 40
	o.Judge.Mode, o.Judge.Teacher = judge.Score, false
	printed = run(o)
	if again := judgetest.ReadOutput(t, printed).Judge; again.Tally.Asked != 0 ||
		len(again.Students) != 3 ||
		again.Students[1].Scored != 40 || again.Students[1].PairWin != nil {
		t.Errorf("%s", printed)
	}
}

// judgeAt returns the options of a judge behind an endpoint.
func judgeAt(url string) JudgeOptions {
	return JudgeOptions{URL: url, Model: "m", Mode: judge.Both, Against: AgainstTeacher,
		Journal: "judgments.jsonl", MaxTokens: 2048, Concurrency: 16}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// gad eval --judge has its students answer, and the judge's figures stand beside the
// others; the answers that it keeps are judged again without a model, and for nothing.
func TestEvalJudge(t *testing.T) {
	student, sft := modeltest.Blank(t), modeltest.Student(t)
	data, err := filepath.Abs(modeltest.Letters("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	server := judgetest.Server(t, func(prompt string) string { return "it is so" },
		func(_, answer string) int { return 1 + len(answer)%10 },
		func(_, a, b string) string {
			switch {
			case len(a) > len(b):
				return "A"
			case len(a) < len(b):
				return "B"
			}
			return "tie"
		})
	server.Key = "sk-of-the-judge"
	t.Setenv("JUDGE_KEY", server.Key)
	prices := []byte(`{"m": {"input": 100, "output": 1000}}`)
	if err := os.WriteFile("prices.json", prices, 0o644); err != nil {
		t.Fatal(err)
	}
	about := judgeAt(server.URL)
	about.KeyEnv, about.Prices = "JUDGE_KEY", "prices.json"
	o := evals(student, sft)
	o.Rows.Paths, o.Judge = []string{data}, &about
	dryRun := o
	dryRun.DryRun = true
	dry, _ := run(t, dryRun)
	if want := "judge m at " + strings.TrimSuffix(strings.TrimPrefix(server.URL, "http://"), "/v1") + ": 70 requests at most, less those in judgments.jsonl, plus one more for each verdict that cannot be read; estimate: "; !strings.Contains(dry, want) || !strings.Contains(dry, " from it, $") || len(server.Calls()) != 0 {
		t.Errorf("--dry-run prints\n%s", dry)
	}
	if _, err := os.Stat("judgments.jsonl"); err == nil {
		t.Error("--dry-run makes a journal")
	}
	o.Output = "rows.jsonl"
	table, said := run(t, o)
	if !strings.Contains(said, "70 requests at most") ||
		!strings.Contains(table,
			"\njudge m: 10 prompts, pairs against the teacher; 95 % intervals in brackets\n") ||
		!strings.Contains(table, "\nB - A  ") {
		t.Errorf("prints\n%s%s", table, said)
	}
	calls := len(server.Calls())
	if calls < 30 || calls > 70 {
		t.Errorf("%d calls", calls)
	}
	made := regexp.MustCompile(`judgments.jsonl: (\d+) requests made, (\d+) tokens to the judge, (\d+) from it, \$([\d.]+); 0 were in it before\n`).FindStringSubmatch(table)
	if made == nil || made[1] != fmt.Sprint(calls) {
		t.Fatalf("prints\n%s", table)
	}
	var to, from, cost float64
	fmt.Sscan(strings.Join(made[2:], " "), &to, &from, &cost)
	if to < 1000 || math.Abs(cost-(to*100+from*1000)/1e6) > 0.005 {
		t.Errorf("%g and %g tokens cost %g", to, from, cost)
	}
	var grades float64
	type row struct {
		Model string
		Judge *judge.Verdict
	}
	var given strings.Builder // the lines of the second
	for line := range strings.Lines(readFile(t, "rows.jsonl")) {
		var r row
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Judge == nil ||
			r.Judge.Grade == nil {
			t.Fatalf("%v: %s", err, line)
		}
		if r.Model == sft {
			grades += *r.Judge.Grade / 10
			given.WriteString(line)
		}
	}
	o.Output = ""
	printed, _ := run(t, asJSON(o))
	j := judgetest.ReadOutput(t, printed).Judge
	if j.Tally.Asked != 0 || len(server.Calls()) != calls ||
		math.Abs(judgetest.Value(j.Students[1].Grade)-grades) > 1e-9 || j.Students[1].Name != sft ||
		!strings.Contains(printed, `"rouge_l":`) || !strings.Contains(printed, `"cost_usd":0,`) ||
		len(j.Differences) != 1 {
		t.Errorf("the second time: %s", printed)
	}
	// One model; and its answers from the file.
	single := o
	single.Models = []string{sft}
	printed, _ = run(t, asJSON(single))
	one := judgetest.ReadOutput(t, printed).Judge.Students[0]
	if !strings.Contains(printed, `{"rows":10,`) ||
		judgetest.Value(one.Score) != judgetest.Value(j.Students[1].Score) ||
		judgetest.Value(one.LCWin) != judgetest.Value(j.Students[1].LCWin) {
		t.Errorf("one model: %s", printed)
	}
	files := Options{JSON: true, Seed: 1, Judge: &about, Answers: []string{"rows.jsonl"}}
	printed, _ = run(t, files)
	if given := judgetest.ReadOutput(t, printed).Judge; given.Tally.Asked != 0 ||
		judgetest.Value(given.Students[1].Score) != judgetest.Value(one.Score) ||
		judgetest.Value(given.Students[1].PairWin) != judgetest.Value(one.PairWin) ||
		len(server.Calls()) != calls {
		t.Errorf("answers from the file: %s", printed)
	}
	if err := os.WriteFile("answers.jsonl", []byte(given.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	pairs := about
	pairs.Mode = judge.Pair
	printed, _ = run(t, Options{JSON: true, Seed: 1, Judge: &pairs,
		Answers: []string{"answers.jsonl"}})
	if given := judgetest.ReadOutput(t, printed).Judge; given.Tally.Asked != 0 ||
		judgetest.Value(given.Students[0].PairWin) != judgetest.Value(one.PairWin) ||
		given.Students[0].Score != nil {
		t.Errorf("answers of one model: %s", printed)
	}
	// A line of the journal that is damaged is asked again, and only that.
	lost := strings.Split(readFile(t, "judgments.jsonl"), "\n")
	lost[3] = lost[3][:len(lost[3])/2]
	if err := os.WriteFile("judgments.jsonl", []byte(strings.Join(lost, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	printed, said = run(t, files)
	if given := judgetest.ReadOutput(t, printed).Judge; given.Tally.Asked != 1 ||
		judgetest.Value(given.Students[1].Score) != judgetest.Value(one.Score) ||
		!strings.Contains(said,
			"judgments.jsonl: 1 line damaged and dropped: what was in it is asked again\n") {
		t.Errorf("after a damaged line: %s%s", printed, said)
	}
	for _, name := range []string{"judgments.jsonl", "rows.jsonl", "answers.jsonl"} {
		if strings.Contains(readFile(t, name), server.Key) {
			t.Errorf("%s holds the key", name)
		}
	}
	if names, err := filepath.Glob(".*"); err != nil || len(names) > 0 {
		t.Errorf("left behind: %v %v", names, err)
	}
}

// What a judge's endpoint says: the estimate is printed before.
func TestJudgeRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	const rows = `{"row":0,"sample":0,"content":[{"role":"user","content":"Add 1+1"}],"teacher_response":"2","response":"3"}
{"row":1,"sample":0,"content":[{"role":"user","content":"Add 1+2"}],"teacher_response":"3","response":"3"}
`
	if err := os.WriteFile("a.jsonl", []byte(rows), 0o644); err != nil {
		t.Fatal(err)
	}
	refusing, err := endpointtest.Start(
		&endpointtest.Server{Key: "another",
			Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
				if c.Model == "none" {
					endpointtest.Fail(w, 404, "model_not_found", "no such model")
				} else {
					endpointtest.Fail(w, 400, "invalid_request",
						"temperature is not for this model\x1b[2J")
				}
				return true
			}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(refusing.Close)
	host := strings.TrimSuffix(strings.TrimPrefix(refusing.URL, "http://"), "/v1")
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := dead.Addr().String()
	dead.Close()
	t.Setenv("WRONG_KEY", "sk-wrong")
	t.Setenv("RIGHT_KEY", "another")

	for _, c := range []struct{ url, model, key, want string }{
		{refusing.URL, "m", "", `endpoint: ` + host + `: status 401 invalid_api_key: the endpoint wants a key: name its environment variable with --judge-key-env`},
		{refusing.URL, "m", "WRONG_KEY", `endpoint: ` + host + `: status 401 invalid_api_key: the key is not accepted: check the key and what it may use`},
		{refusing.URL, "none", "RIGHT_KEY", `endpoint: ` + host + `: status 404 model_not_found: no such model: check the base URL and the model`},
		{refusing.URL, "m", "RIGHT_KEY", `judge: no request of 2 has a reply: endpoint: ` + host + `: status 400 invalid_request: temperature is not for this model [2J`},
		{"http://" + nobody + "/v1", "m", "", `judge: ` + nobody + `: cannot connect: connection refused: check the address, and that the judge runs`},
	} {
		j := judgeAt(c.url)
		j.Model, j.KeyEnv, j.Journal = c.model, c.key, filepath.Join(t.TempDir(), "j.jsonl")
		o := Options{Seed: 1, Judge: &j, Answers: []string{"a.jsonl"}}
		out, said, err := sessiontest.Run(func(s *session.Session) error { return Run(s, o) })
		lines := strings.Split(strings.TrimSuffix(said, "\n"), "\n")
		if err == nil || errors.Is(err, fault.ErrUsage) || out != "" || len(lines) != 2 ||
			!strings.Contains(lines[0], ": 8 requests at most") || lines[1] != "gad: "+c.want {
			t.Errorf("%+v: %v, prints %q\n got %s\nwant gad: %s", c, err, out, said, c.want)
		}
	}
}
