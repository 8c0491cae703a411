package collect

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"gad/apps/collect/collecttest"
	"gad/apps/env/games"
	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/fault"
)

// calculator is the game of that name, and the command of its environment: see TestMain.
var calculator = games.Games()[1]

const calculates = `CALCULATOR=yes "$GAD"`

// acts is gad data collect of n rows of the calculator's, which prompts.jsonl has, from a server.
func acts(t *testing.T, s *endpointtest.Server, n int, output string, more ...func(r *Run)) Run {
	t.Helper()
	rows, err := calculator.Make(1, "train", n)
	if err != nil {
		t.Fatal(err)
	}
	lines := make([]string, n)
	for i, row := range rows {
		raw, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		lines[i] = string(raw)
	}
	collecttest.Put(t, "prompts.jsonl", lines...)
	return with(asks(s, output, in(calculates)), more...)
}

// in has the teacher act in an environment.
func in(command string) func(r *Run) {
	return func(r *Run) {
		r.Settings.Env = command
		r.Env = &Env{Workers: 1, Timeout: time.Minute, MaxTurns: 20}
	}
}

// whole reads the conversations of an output, and says whether all have their episodes.
func whole(t *testing.T, path string, n int) {
	t.Helper()
	cols := data.DefaultColumns()
	set, err := data.OpenFiles([]string{path}, data.Options{Columns: cols,
		Format: data.FormatAuto, Turns: data.TurnsAll})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	if set.Len() != n {
		t.Errorf("%s: %d rows, want %d", path, set.Len(), n)
	}
	for i := range set.Len() {
		if row, err := set.Row(i); err != nil || len(row.Turns) == 0 {
			t.Errorf("%s: row %d: %v, %+v", path, i, err, row)
		}
	}
}

// jsonLines are the objects of a file of JSON lines.
func jsonLines(t *testing.T, path string) (all []map[string]any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var o map[string]any
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

// A teacher that does what the scripted one does makes the rows of gad task make, in each format;
// nobody is asked twice, and the rows pass gad env check and gad data validate.
func TestCollectEpisodes(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{Answer: collecttest.AddsAsText,
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if c.Number%40 == 4 { // tried again inside of an episode
				endpointtest.Fail(w, 500, "", "trouble")
				return true
			}
			return false
		}})
	const out = "rows.jsonl"
	run := acts(t, s, 30, out,
		func(r *Run) { r.Price = &endpoint.Price{Input: 1000, Output: 2000} })
	said, _ := must(t, with(run, dry, in(calculates), func(r *Run) {
		r.MaxTokens, r.Env.MaxTurns = 50, 8
	}))
	if !strings.Contains(said, "big: 30 episodes to 30 rows; estimate: ") || !strings.Contains(said, "the most that --max-turns allows, 8 turns, each with all before it; the most that --max-tokens allows, 50 tokens per answer, a guess of 100 per reply of the environment") {
		t.Errorf("prints %s", said)
	}
	printed, _ := must(t, run)
	made, got := jsonLines(t, "prompts.jsonl"), jsonLines(t, out)
	if len(got) != 30 {
		t.Fatalf("%d rows", len(got))
	}
	turns := 0
	for i, row := range got {
		for _, column := range []string{"content", "teacher_response", "env"} {
			if !reflect.DeepEqual(row[column], made[i][column]) {
				t.Errorf("row %d: %s is %v, want %v", i, column, row[column], made[i][column])
			}
		}
		if row["reward"] != 1.0 || row["label"] != "right" || row["finish_reason"] != "stop" {
			t.Errorf("row %d: %v", i, row)
		}
		for _, m := range row["teacher_response"].([]any) {
			if m.(map[string]any)["role"] == "assistant" {
				turns++
			}
		}
	}
	asked := map[string]int{}
	prompt, answer := 0, 0
	for _, c := range s.Calls() {
		if c.Number%40 == 4 {
			continue
		}
		asked[fmt.Sprint(c.Messages)]++
		text, _ := collecttest.AddsAsText(c, 0)
		answer += endpointtest.Tokens(text)
		for _, m := range c.Messages {
			prompt += endpointtest.Tokens(m.Content)
		}
	}
	for key, n := range asked {
		if n != 1 {
			t.Errorf("%d answers to %s", n, key)
		}
	}
	if len(asked) != turns {
		t.Errorf("%d answers, %d turns", len(asked), turns)
	}
	want := fmt.Sprintf("mean reward 1, %.3g turns an episode; right 30\ncounted by the endpoint: %d tokens of prompts, %d of answers, $%.2f\n",
		float64(turns)/30, prompt, answer, float64(prompt)/1000+float64(answer)/500) +
		"columns left out: teacher_response\n"
	if printed != out+": 30 episodes to 30 prompts\n"+want {
		t.Errorf("prints %q, want %q", printed, want)
	}
	whole(t, out, 30)
	// From the journal alone, in the other formats: nobody is asked.
	calls := len(s.Calls())
	for _, ext := range []string{"arrow", "parquet"} {
		other := "rows." + ext
		raw, err := os.ReadFile(out + ".journal")
		if err == nil {
			err = os.WriteFile(other+".journal", raw, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		must(t, with(run, func(r *Run) { r.Output = other }))
		rows, want := sessiontest.Rows(t, other), sessiontest.Rows(t, out)
		for i := range want {
			if !reflect.DeepEqual(rows[i], want[i]) {
				t.Errorf("%s: row %d: %+v, want %+v", ext, i, rows[i], want[i])
			}
		}
	}
	if n := len(s.Calls()); n != calls {
		t.Errorf("%d calls more", n-calls)
	}
	// Lines of the journal that are lost: the answers are asked for again, replies are not.
	raw, err := os.ReadFile(out + ".journal")
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	lost := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		for _, kind := range []string{"/e0/reset\"", "/reply\"", "\"choices\""} {
			if strings.Contains(line, kind) && !lost[kind] {
				line, lost[kind] = "", true
			}
		}
		kept = append(kept, line)
	}
	if err := os.WriteFile(out+".journal", []byte(strings.Join(kept, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(out)
	if err := errors.Join(err, os.Remove(out)); err != nil {
		t.Fatal(err)
	}
	must(t, run)
	if after, err := os.ReadFile(out); err != nil || string(after) != string(before) ||
		len(lost) != 3 || len(s.Calls()) != calls+1 {
		t.Errorf("%v; %d calls more without %v", err, len(s.Calls())-calls, lost)
	}
	calls++
	// Two samples of a row are two episodes; those that are there are not asked again.
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	must(t, with(run, func(r *Run) { r.N = 2 }))
	if n := len(jsonLines(t, out)); n != 60 {
		t.Errorf("%d rows of two samples", n)
	}
	more := 0
	for _, c := range s.Calls()[calls:] {
		if c.Number%40 != 4 {
			more++
		}
	}
	if more != turns {
		t.Errorf("%d answers more, want %d", more, turns)
	}
	// What the journal was begun with.
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	if code, _, said := ask(with(run, in("true"))); code != fault.ErrUsage ||
		!strings.Contains(said, "its answers are of other settings: --env was ") {
		t.Errorf("%v, %s", code, said)
	}
}

// Calls that the endpoint gives as calls: the environment reads them in the hermes form, the
// teacher's next request has them with the ids that the tool's messages answer, and so have rows.
func TestCollectEpisodesCalls(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{})
	s.Misbehave = func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
		call, a, b := collecttest.Adds(c.Messages)
		if !call {
			fmt.Fprintf(w, `{"choices":[{"finish_reason":"stop","message":{"content":"The sum is %d."}}]}`, a)
			return true
		}
		fmt.Fprintf(w, `{"choices":[{"finish_reason":"tool_calls","message":{"content":null,"tool_calls":[ {"id":"c%d","type":"function","function":{"name":"add","arguments":"{\"a\": %d, \"b\": %d}"}} ]}}]}`, c.Number, a, b)
		return true
	}
	const out = "rows.jsonl"
	must(t, acts(t, s, 5, out))
	for i, row := range jsonLines(t, out) {
		list := row["teacher_response"].([]any)
		first, second := list[0].(map[string]any), list[1].(map[string]any)
		calls, _ := first["tool_calls"].([]any)
		if row["reward"] != 1.0 || len(calls) != 1 || second["role"] != "tool" ||
			second["tool_call_id"] != calls[0].(map[string]any)["id"] {
			t.Errorf("row %d: %v", i, row)
		}
	}
	later := 0
	for _, c := range s.Calls() {
		messages := c.Raw["messages"].([]any)
		if len(messages) < 4 {
			continue
		}
		later++
		turn, tool := messages[2].(map[string]any), messages[3].(map[string]any)
		calls, _ := turn["tool_calls"].([]any)
		if len(calls) != 1 || tool["tool_call_id"] != calls[0].(map[string]any)["id"] {
			t.Errorf("asked %v", messages)
		}
	}
	if later == 0 {
		t.Error("no later turn")
	}
	whole(t, out, 5)
}

// --keep leaves episodes out of the output and not of the journal; limits, cut answers and empty
// ones end or mark an episode.
func TestCollectEpisodesKeep(t *testing.T) {
	t.Chdir(t.TempDir())
	var questions []map[string]any
	question := func(i int) string {
		return questions[i]["content"].([]any)[1].(map[string]any)["content"].(string)
	}
	s := collecttest.Teacher(t, &endpointtest.Server{
		Answer: func(c endpointtest.Call, choice int) (string, string) {
			asked, turn := c.Messages[1].Content, (len(c.Messages)-2)/2
			switch {
			case asked == question(1):
				return "The sum is 0.", "stop"
			case asked == question(2) && turn == 1:
				return "", "content_filter"
			case asked == question(3):
				return "Let me think.", "stop" // never ends
			case asked == question(4) && turn == 0:
				return "<tool_call>\n{\"name\"", "length"
			}
			return collecttest.AddsAsText(c, choice)
		}})
	const out = "rows.jsonl"
	run := acts(t, s, 12, out)
	questions = jsonLines(t, "prompts.jsonl")
	within := func(turns, tokens int, keep string) Run {
		return with(run, in(calculates), func(r *Run) {
			r.Env.MaxTurns, r.Env.MaxTokens = turns, tokens
			var err error
			if keep != "" {
				if r.Env.Keep, err = ParseKeep(keep); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	printed, _ := must(t, within(6, 0, "reward>=1"))
	for _, want := range []string{": 9 episodes to 12 prompts\n",
		"; right 9, wrong 1; invalid turns: 7; answers cut short (not learned: a higher --max-tokens): 1; ended at a limit (--max-turns, --episode-tokens: marked as cut): 1; ended by an empty answer (left out): 1\n",
		"left out by --keep \"reward>=1\": 2 episodes, which stay in " + out + ".journal\n"} {
		if !strings.Contains(printed, want) {
			t.Errorf("prints %q, want %q", printed, want)
		}
	}
	cut := jsonLines(t, out)[1]["teacher_response"].([]any)[0].(map[string]any)
	if cut["train"] != false || !strings.HasPrefix(cut["content"].(string), "<tool_call>") {
		t.Errorf("the cut turn is %v", cut)
	}
	calls := len(s.Calls())
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	if code, _, said := ask(within(6, 0, "turns>40")); code != fault.ErrRunning ||
		!strings.Contains(said, `there is no episode to write: --keep "turns>40" leaves out all: mean reward `) {
		t.Errorf("%v, %s", code, said)
	}
	must(t, within(6, 0, ""))
	rows := jsonLines(t, out)
	if len(rows) != 11 || rows[1]["reward"] != 0.0 || rows[1]["label"] != "wrong" ||
		rows[2]["finish_reason"] != "length" || len(rows[2]["teacher_response"].([]any)) != 11 {
		t.Errorf("%d rows, %v", len(rows), rows)
	}
	// A higher limit goes on where the episode was cut: two turns, and the environment ends it.
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	must(t, within(20, 0, ""))
	if rows := jsonLines(t, out); rows[2]["label"] != "lost" || len(s.Calls()) != calls+2 {
		t.Errorf("%d calls more, %v", len(s.Calls())-calls, rows[2])
	}
	// A conversation may have so many tokens.
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	must(t, within(20, 30, ""))
	for _, row := range jsonLines(t, out) {
		if n := len(row["teacher_response"].([]any)); n != 1 {
			t.Errorf("%d messages within 30 tokens: %v", n, row)
		}
	}
}

// guess is an environment whose first messages are its own, for rows without any.
const guess = `field() { printf %s "$line" | sed -n "s/.*\"$1\":\"\{0,1\}\([0-9]\{1,16\}\)[\",}].*/\1/p"; }
say() { echo '{"id":'"$(field id),$1}"; }
while read -r line; do
  case $line in
  *'"op":"hello"'*) echo '{"name":"guess","version":1,"episodes":4}' ;;
  *'"op":"reset"'*) RESET ;;
  *'"op":"step"'*) STEP ;;
  esac
done
`

// What an environment may do wrong: who pays, what is said, what is written.
func TestCollectEpisodesFaults(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{})
	var b strings.Builder
	for i := range 10 {
		fmt.Fprintf(&b, `{"content":[{"role":"user","content":"p%d"}],"env":{"n":%d}}`+"\n", i, i)
	}
	if err := os.WriteFile("prompts.jsonl", []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	ok, end := `say '"append":[]'`, `say '"done":true,"reward":1'`
	for i, x := range []struct {
		name, reset, step string
		command           string
		code              error
		calls             int
		says              string
	}{
		{"no program", "", "", "false", fault.ErrUsage, 0, `gad: env: "false": the program ended with exit status 1 before its hello`},
		{"rebuilt", ok, `say '"prompt":[{"role":"user","content":"now"}]'`, "", fault.ErrUsage, -1, `answers with prompt, the whole of the next context: such an episode is no one conversation, as rows are: collect in an environment that answers with append`},
		{"all", ok, `say '"reward":"much"'`, "", fault.ErrRunning, -1, "3 of 10 episodes ("},
		{"two", `case $line in *'"n":3'*|*'"n":7'*) say '"error":"bad row"' ;; *) ` + ok + ` ;; esac`, end, "", nil, 8, `the environment says "bad row"`},
		{"three", `case $line in *'"n":3'*|*'"n":5'*|*'"n":7'*) say '"error":"bad row"' ;; *) ` + ok + ` ;; esac`, end, "", fault.ErrRunning, -1, ") are faults of the environment, and a share of 0.2 may be: see doc/environments.md; the same command plays them again"},
	} {
		script := strings.NewReplacer("RESET", x.reset, "STEP", x.step).Replace(guess)
		if err := os.WriteFile("env.sh", []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		before := len(s.Calls())
		out := fmt.Sprintf("rows%d.jsonl", i)
		code, _, said := ask(asks(s, out, in(cmp.Or(x.command, "sh env.sh")), func(r *Run) {
			r.Limits.Concurrency = 1 // or another fault is under way as the third ends the run
		}))
		calls := len(s.Calls()) - before
		if code != x.code || !strings.Contains(said, x.says) || x.calls >= 0 && calls != x.calls {
			t.Errorf("%s: %v, %d calls\n%s", x.name, code, calls, said)
		}
		if _, err := os.Stat(out); (err == nil) != (x.code == nil) {
			t.Errorf("%s: output: %v", x.name, err)
		}
		if x.code == nil && len(jsonLines(t, out)) != 8 {
			t.Errorf("%s: %d rows", x.name, len(jsonLines(t, out)))
		}
	}
	// Nothing was paid for: nothing is left.
	s.Misbehave = func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
		endpointtest.Fail(w, 401, "", "no key")
		return true
	}
	if code, _, said := ask(asks(s, "unpaid.jsonl", in("sh env.sh"))); code != fault.ErrRunning {
		t.Errorf("%v, %s", code, said)
	}
	if left, err := filepath.Glob("unpaid*"); err != nil || len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	// Another environment in the middle of an episode: what was paid for does not fit it.
	s.Misbehave = func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
		if len(c.Messages) > 1 {
			endpointtest.Fail(w, 400, "", "not now")
		}
		return len(c.Messages) > 1
	}
	run := asks(s, "other.jsonl", in("sh env.sh"), func(r *Run) { r.Prompts.Limit = 1 })
	for i, x := range []struct{ word, says string }{{"go", "gad: row 0: endpoint: "},
		{"come", `gad: row 0, sample 0: env: "sh env.sh": not deterministic: played again from its seed and the answers of other.jsonl.journal, the reply to turn 0 is another: was "ntent\":\"go\"}]}", is "ntent\":\"come\"}]}"`}} {
		script := strings.NewReplacer("RESET", ok, "STEP",
			`say '"append":[{"role":"user","content":"`+x.word+`"}]'`).Replace(guess)
		if err := os.WriteFile("env.sh", []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		before := len(s.Calls())
		code, _, said := ask(run)
		if calls := len(s.Calls()) - before; code != fault.ErrRunning || !strings.Contains(said,
			x.says) || calls != 2-2*i {
			t.Errorf("%s: %v, %d calls\n%s", x.word, code, calls, said)
		}
	}
	s.Misbehave = nil
	// Rows without messages: the environment gives the first.
	if err := os.WriteFile("none.jsonl", []byte(strings.Repeat(`{"content":[],"env":"maze"}`+"\n", 3)), 0o644); err != nil {
		t.Fatal(err)
	}
	script := strings.NewReplacer("RESET", `say '"append":[{"role":"user","content":"seed '"$(field seed)"'"}]'`, "STEP", end).Replace(guess)
	if err := os.WriteFile("env.sh", []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	seed := int64(5)
	must(t, asks(s, "none-out.jsonl", in("sh env.sh"), func(r *Run) {
		r.Prompts.Paths, r.Seed, r.System = []string{"none.jsonl"}, &seed, "be brief"
	}))
	seeds := map[string]bool{}
	for _, r := range sessiontest.Rows(t, "none-out.jsonl") {
		if len(r.Messages) != 1 || !strings.HasPrefix(r.Messages[0].Content, "seed ") ||
			r.Env != data.JSON(`"maze"`) {
			t.Errorf("row %+v", r)
		}
		seeds[r.Messages[0].Content] = true
	}
	if len(seeds) != 3 {
		t.Errorf("equal rows have the seeds %v", seeds)
	}
	for _, c := range s.Calls()[len(s.Calls())-3:] {
		if len(c.Messages) != 2 || c.Messages[0].Content != "be brief" {
			t.Errorf("asked %v", c.Messages)
		}
	}
}
