package eval

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"gad/apps/judge"
	"gad/apps/judge/judgetest"
	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/apps/task"
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
		if math.Abs(judgetest.Value(f.Score)-score) > 1e-9 || math.Abs(judgetest.Value(f.Win)-win) > 1e-9 ||
			math.Abs(judgetest.Value(f.PairWin)-c.pair) > 1e-9 ||
			math.IsNaN(c.swap) != (f.Swap == nil) || f.Swap != nil &&
			math.Abs(*f.Swap-c.swap) > 1e-9 || !math.IsNaN(c.lc) &&
			math.Abs(judgetest.Value(f.LCWin)-c.lc) > c.near+1e-9 {
			t.Errorf("%s: score %g win %g pair %g LC %g swap %g, want %g %g %g %g %g", f.Name,
				judgetest.Value(f.Score), judgetest.Value(f.Win), judgetest.Value(f.PairWin), judgetest.Value(f.LCWin), judgetest.Value(f.Swap),
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
	if again := judgetest.ReadOutput(t, printed).Judge; again.Tally.Asked != 0 || len(again.Students) != 3 ||
		again.Students[1].Scored != 40 || again.Students[1].PairWin != nil {
		t.Errorf("%s", printed)
	}
}
