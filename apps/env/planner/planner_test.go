package planner

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gad/apps/env/games"
	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/env"
	"gad/internal/vfs"
)

// begun is an episode of a row, and its first reply.
func begun(t *testing.T, others roles, row string, seed uint64) (*episode, env.Reply) {
	t.Helper()
	e := &episode{others: others}
	r, err := e.Reset(context.Background(), seed, env.Row{Env: json.RawMessage(row)})
	if row == "" {
		r, err = e.Reset(context.Background(), seed, env.Row{})
	}
	if err != nil || len(r.Prompt) != 2 || r.Append != nil || !r.Valid || r.Anchor == "" {
		t.Fatalf("%s: %+v, %v", row, r, err)
	}
	return e, r
}

func plan(goal, tool, command string) string {
	return "Sub-Goal: " + goal + "\nTool: " + tool + "\nCommand: " + command
}

func (e *episode) turn(t *testing.T, text string) env.Reply {
	t.Helper()
	r, err := e.Step(context.Background(), env.Turn{Text: text})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

const (
	threeNumbers = `{"numbers":[75,35,48]}`
	spiders      = `{"question":"How many legs have 2 spiders?","answer":"16","facts":["An ant has 6 legs.","A spider has 8 legs."]}`
)

// A sum by hand: the views are rebuilt from the memory, to the byte.
func TestSum(t *testing.T) {
	e, r := begun(t, byRule{}, threeNumbers, 1)
	const system = `Plan the next step towards the answer. A step uses one tool:
add: the sum of two integers, such as 12 + 30
multiply: the product of two integers, such as 12 * 3
End with three lines:
Sub-Goal: what the step is for
Tool: its name
Command: what the tool gets`
	want := func(r env.Reply, user string) {
		t.Helper()
		if r.Prompt[0].Content != system || r.Prompt[1].Content != user ||
			r.Prompt[0].Role != "system" || r.Prompt[1].Role != "user" {
			t.Errorf("%+v\nwant\n%s\n%s", r.Prompt, system, user)
		}
	}
	want(r, "Question: What is 75 + 35 + 48?\nMemory: empty")
	r = e.turn(t, "I begin with the first two.\n"+plan("the first two", "add", "75+35")+"\n")
	want(r, "Question: What is 75 + 35 + 48?\nMemory:\n1. the first two | add(75 + 35) = 110")
	if !r.Valid || r.Reward != 0 || r.Done {
		t.Errorf("%+v", r)
	}
	r = e.turn(t, "48 more")
	want(r, "Question: What is 75 + 35 + 48?\nMemory:\n1. the first two | add(75 + 35) = 110\n"+
		"Your last answer was no step: it does not end with the three lines.")
	if r.Valid || r.Reward != 0 || r.Done {
		t.Errorf("%+v", r)
	}
	r = e.turn(t, plan("the rest", "add", "110 + 48"))
	if !r.Done || r.Reward != 1 || r.Label != "right" || !r.Valid || r.Prompt != nil {
		t.Errorf("%+v", r)
	}
	if _, err := e.Step(context.Background(), env.Turn{Text: "x"}); err == nil {
		t.Error("a turn behind the end")
	}
}

// A question with facts: search, then the number that it has found.
func TestSearch(t *testing.T) {
	e, r := begun(t, byRule{}, spiders, 1)
	if !strings.Contains(r.Prompt[0].Content, "\nsearch: the known fact") {
		t.Errorf("no search among the tools: %s", r.Prompt[0].Content)
	}
	for _, c := range [][2]string{{"whales", "nothing found"},
		{"legs of an ant", "An ant has 6 legs."}, {"Spider LEGS", "A spider has 8 legs."}} {
		r = e.turn(t, plan("legs", "search", c[0]))
		if !r.Valid || r.Done ||
			!strings.HasSuffix(r.Prompt[1].Content, "search("+c[0]+") = "+c[1]) {
			t.Errorf("%s: %+v", c[0], r)
		}
	}
	if r = e.turn(t, plan("both", "multiply", "8 * 2")); !r.Done || r.Reward != 1 {
		t.Errorf("%+v", r)
	}
}

func TestInvalid(t *testing.T) {
	const lines, tools = "it does not end with the three lines", "it names none of the tools"
	const sum, product = "add wants two integers such as 12 + 30",
		"multiply wants two integers such as 12 * 3"
	const bytes = "each line needs 1 to 200 bytes that can be printed"
	for text, why := range map[string]string{
		"":                                    lines,
		"158":                                 lines,
		plan("x", "add", ""):                  bytes,
		plan("", "add", "1 + 2"):              bytes,
		plan("x", "add", "1 + 2\nThat is 3."): lines,
		plan("x\x07", "add", "1 + 2"):         bytes,
		plan(strings.Repeat("x", 201), "add", "1 + 2"):                      bytes,
		plan("x", "divide", "4 / 2"):                                        tools,
		plan("x", "Add", "1 + 2"):                                           tools,
		plan("x", "search", "spider"):                                       tools, // without facts
		plan("x", "add", "1 * 2"):                                           sum,
		plan("x", "add", "1 + 2 + 3"):                                       sum,
		plan("x", "multiply", "1.5 * 2"):                                    product,
		plan("x", "multiply", "1234567890 * 2"):                             product,
		strings.Replace(plan("x", "add", "1 + 2"), "Command", "Context", 1): lines,
	} {
		e, first := begun(t, byRule{}, threeNumbers, 1)
		r := e.turn(t, text)
		if r.Valid || r.Done || r.Reward != 0 || r.Anchor != first.Anchor ||
			!strings.HasSuffix(r.Prompt[1].Content,
				"\nMemory: empty\nYour last answer was no step: "+why+".") {
			t.Errorf("%q: %+v, want %s", text, r, why)
		}
	}
	e, _ := begun(t, byRule{}, threeNumbers, 1)
	r, err := e.Step(context.Background(), env.Turn{Text: plan("x", "add", "1 + 2"), Cut: true})
	if err != nil || r.Valid {
		t.Errorf("a turn that was cut: %+v, %v", r, err)
	}
}

// Eight turns end an episode, invalid ones too: with a step it is wrong, without one lost.
func TestLimit(t *testing.T) {
	for text, label := range map[string]string{plan("x", "add", "1 + 2"): "wrong",
		"what?": "lost"} {
		e, _ := begun(t, byRule{}, threeNumbers, 1)
		for i := 1; i <= maxTurns; i++ {
			r := e.turn(t, text)
			if r.Done != (i == maxTurns) || r.Done && (r.Label != label || r.Reward != 0 ||
				r.Valid != (label == "wrong")) {
				t.Errorf("%q, turn %d: %+v", text, i, r)
			}
		}
	}
}

// The anchor is what has been run and what came of it: neither sub-goals nor turns without a step.
func TestAnchors(t *testing.T) {
	anchors := func(texts ...string) (all []string) {
		e, r := begun(t, byRule{}, threeNumbers, 1)
		all = []string{r.Anchor}
		for _, text := range texts {
			all = append(all, e.turn(t, text).Anchor)
		}
		return all
	}
	a := anchors(plan("one way", "add", "75 + 35"), plan("again", "add", "75 + 35"))
	b := anchors("?", plan("another", "add", " 75+35 "), plan("else", "add", "35 + 75"))
	if a[0] != b[0] || b[0] != b[1] || a[1] != b[2] || a[1] == a[0] || a[2] == a[1] ||
		a[2] == b[3] {
		t.Errorf("%v\n%v", a, b)
	}
}

func TestRows(t *testing.T) {
	for row, want := range map[string]string{
		`[]`:                            "cannot unmarshal",
		`{}`:                            "question or answer is missing",
		`{"question":"Q"}`:              "question or answer is missing",
		`{"question":"Q","answer":"?"}`: "question or answer is missing",
		`{"question":"Q","answer":"1","number":[1]}`: "unknown field",
		`{"numbers":[1]}`:                            "1 numbers: must be 2 to 7",
		`{"numbers":[1,-1000001]}`:                   "number -1000001: must be",
		`{"numbers":[1,-9223372036854775808]}`:       "must be -1000000 to 1000000",
		`{"numbers":[1,2],"answer":"3"}`:             "numbers beside question or answer",
		`{"question":"Q","answer":"1","facts":[""]}`: "text 2 of question, answer and facts",
	} {
		e := &episode{others: byRule{}}
		_, err := e.Reset(context.Background(), 1, env.Row{Env: json.RawMessage(row)})
		if err == nil || !strings.HasPrefix(err.Error(), "env planner: column env: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", row, err, want)
		}
	}
	content := env.Row{Content: []env.Message{{Role: "user", Content: "1 + 2"}}}
	if _, err := (&episode{others: byRule{}}).Reset(context.Background(), 1, content); err == nil {
		t.Error("content without column env")
	}
}

// Drawn questions are answered by a planner that reads nothing but its views.
func TestDrawn(t *testing.T) {
	kinds := map[string]int{}
	for seed := range uint64(60) {
		e, r := begun(t, byRule{}, "", seed)
		if again, _ := begun(t, byRule{}, "", seed); again.q.Question != e.q.Question {
			t.Fatalf("seed %d draws two questions", seed)
		}
		question, _, _ := strings.Cut(strings.TrimPrefix(r.Prompt[1].Content, "Question: "), "\n")
		var a, b, c int
		var thing string
		if n, _ := fmt.Sscanf(question, "What is %d * %d + %d?", &a, &b, &c); n == 3 {
			kinds["product"]++
			e.turn(t, plan("product", "multiply", fmt.Sprintf("%d * %d", a, b)))
			r = e.turn(t, plan("sum", "add", fmt.Sprintf("%d + %d", a*b, c)))
		} else if n, _ := fmt.Sscanf(question, "How many %s are in %d boxes?", &thing, &b); n == 2 {
			kinds["fact"]++
			found := e.turn(t, plan("a box", "search", "box of "+thing)).Prompt[1].Content
			at := strings.LastIndex(found, " holds ")
			if _, err := fmt.Sscanf(found[at:], " holds %d.", &a); err != nil {
				t.Fatalf("%s: %v", found, err)
			}
			r = e.turn(t, plan("all", "multiply", fmt.Sprintf("%d * %d", a, b)))
		} else {
			kinds["sum"]++
			numbers := strings.Split(strings.Trim(question, "What is?"), " + ")
			total := numbers[0]
			for _, n := range numbers[1:] {
				r = e.turn(t, plan("sum", "add", total+" + "+n))
				total = e.memory[len(e.memory)-1].Result
			}
		}
		if !r.Done || r.Reward != 1 {
			t.Errorf("%s: %+v", question, r)
		}
	}
	if kinds["product"] < 10 || kinds["fact"] < 10 || kinds["sum"] < 10 {
		t.Errorf("drawn: %v", kinds)
	}
}

// helped is a helper at a server that answers by these functions of the prompt.
func helped(t *testing.T, dir string,
	answer func(prompt string) string) (*Helper, *endpointtest.Server) {
	t.Helper()
	s, err := endpointtest.Start(&endpointtest.Server{
		Answer: func(c endpointtest.Call, _ int) (string, string) {
			return answer(c.Prompt), "stop"
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	client, err := endpoint.New(endpoint.Options{BaseURL: s.URL, Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	return &Helper{Client: client, Model: "m", Dir: dir, FS: vfs.OrDisk(nil)}, s
}

// clever is a helper for the spiders.
func clever(prompt string) string {
	switch {
	case strings.HasPrefix(prompt, "Write the command"):
		if strings.Contains(prompt, "Tool: search") {
			return "The query is short.\nCommand: spider"
		}
		if strings.Contains(prompt, "Context: nothing") {
			return "I do not know."
		}
		return "Command: 8 * 2\r\n"
	case strings.HasPrefix(prompt, "Is what is in memory"):
		if strings.Contains(prompt, "= 16") {
			return "Not CONTINUE: STOP"
		}
		return "I should not STOP, so CONTINUE."
	}
	return "Two spiders.\nAnswer: 16."
}

func helpedEpisode(t *testing.T, h *Helper) (replies []env.Reply) {
	t.Helper()
	e, r := begun(t, h, spiders, 1)
	replies = append(replies, r)
	for _, text := range []string{
		plan("legs", "search", "spider"), // the form of a planner without a helper
		"Sub-Goal: legs\nTool: search\nContext: spiders",
		"Sub-Goal: both\nTool: multiply\nContext: nothing",
		"Sub-Goal: both\nTool: multiply\nContext: a spider has 8 legs, there are 2",
	} {
		replies = append(replies, e.turn(t, text))
	}
	return replies
}

// A helper's three roles, at temperature 0; what it has answered is in the journal, and an episode
// that is played again, here or in another process, asks for nothing.
func TestHelper(t *testing.T) {
	dir := t.TempDir()
	h, s := helped(t, dir, clever)
	replies := helpedEpisode(t, h)
	final := replies[4]
	if replies[1].Valid || !replies[2].Valid || !replies[3].Valid || !final.Done ||
		final.Reward != 1 || final.Label != "right" {
		t.Errorf("%+v", replies)
	}
	if text := replies[3].Prompt[1].Content; !strings.HasSuffix(text, `
1. legs | search(spider) = A spider has 8 legs.
2. both | multiply() = no result: multiply wants two integers such as 12 * 3`) {
		t.Errorf("%s", text)
	}
	asked := len(s.Calls())
	if asked != 3+3+1 { // commands, conclusions, the final answer
		t.Errorf("%d requests, want 7", asked)
	}
	for _, c := range s.Calls() {
		if c.Raw["temperature"] != 0.0 || c.Model != "m" {
			t.Errorf("a request with %v", c.Raw)
		}
	}
	want, _ := json.Marshal(replies)
	other := &Helper{Client: h.Client, Model: "m", Dir: dir, FS: h.FS}
	for _, h := range []*Helper{h, other} {
		if got, _ := json.Marshal(helpedEpisode(t, h)); !bytes.Equal(got, want) {
			t.Errorf("another episode\n%s\nwant\n%s", got, want)
		}
	}
	if n := len(s.Calls()); n != asked {
		t.Errorf("%d requests for an episode that was known", n-asked)
	}
	helpedEpisode(t, &Helper{Client: h.Client, Model: "m", FS: h.FS})
	if n := len(s.Calls()); n != 2*asked {
		t.Errorf("%d requests without the journal, want %d", n-asked, asked)
	}

	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != asked {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		if err := os.WriteFile(f, []byte("{}\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	e, _ := begun(t, &Helper{Client: h.Client, Model: "m", Dir: dir, FS: h.FS}, spiders, 1)
	_, err = e.Step(context.Background(),
		env.Turn{Text: "Sub-Goal: legs\nTool: search\nContext: spiders"})
	if err == nil || !strings.HasPrefix(err.Error(), "env planner: turn 1: "+dir) ||
		!strings.HasSuffix(err.Error(),
			".json: is no answer of the helper: remove it, to ask again") {
		t.Errorf("a damaged journal: %v", err)
	}
}

// A helper that answers wrongly, or not: a wrong answer, no conclusion, a fault.
func TestHelperFails(t *testing.T) {
	h, _ := helped(t, "", func(prompt string) string {
		if strings.HasPrefix(prompt, "Answer") {
			return "Answer: 16 legs"
		}
		return clever(prompt)
	})
	if r := helpedEpisode(t, h)[4]; !r.Done || r.Reward != 0 || r.Label != "wrong" {
		t.Errorf("%+v", r)
	}
	h, _ = helped(t, "", func(string) string { return "well" })
	e, _ := begun(t, h, spiders, 1)
	for i := 1; i <= maxTurns; i++ {
		r := e.turn(t, "Sub-Goal: legs\nTool: search\nContext: spiders")
		if r.Done != (i == maxTurns) || r.Reward != 0 {
			t.Errorf("turn %d: %+v", i, r)
		}
	}
	h, s := helped(t, "", clever)
	s.Close()
	e, _ = begun(t, h, spiders, 1)
	_, err := e.Step(context.Background(),
		env.Turn{Text: "Sub-Goal: legs\nTool: search\nContext: spiders"})
	if err == nil || !strings.HasPrefix(err.Error(), "env planner: turn 1: endpoint: ") {
		t.Errorf("no server: %v", err)
	}
}

// TestMain is the environment where PLANNER is set: with a helper at the address that it is, and a
// journal in the folder JOURNAL, or by rule.
func TestMain(m *testing.M) {
	at, child := os.LookupEnv("PLANNER")
	if !child {
		os.Exit(m.Run())
	}
	var h *Helper
	if at != "" {
		client, err := endpoint.New(endpoint.Options{BaseURL: at})
		if err != nil {
			panic(err)
		}
		h = &Helper{Client: client, Model: "m", Dir: os.Getenv("JOURNAL"), FS: vfs.OrDisk(nil)}
	}
	if err := Serve(os.Stdin, os.Stdout, h); err != nil {
		panic(err)
	}
}

// By rule and with a helper: nothing that the planner answers breaks the protocol, and a teacher's
// plan is played.
func TestPlanner(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server, err := endpointtest.Start(&endpointtest.Server{
		Answer: func(c endpointtest.Call, _ int) (string, string) {
			return fmt.Sprintf("Command: %d + 1\nAnswer: %d\nCONTINUE", c.Number, c.Number), "stop"
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	dir := t.TempDir()
	turn := func(text string) string { return fmt.Sprintf(`{"role":"assistant","content":%q}`, text) }
	// What the helper adds is the number of the request: never the sum.
	helped := turn("Sub-Goal: all\nTool: add\nContext: all")
	for _, c := range []struct {
		command, turns string
		episodes       int
	}{
		{"PLANNER=", turn(plan("all", "add", "1 + 2")) + "," + turn(plan("all", "add", "3 + 3")), 2048},
		{"PLANNER=" + server.URL + " JOURNAL=" + dir, strings.Repeat(helped+",", 7) + helped, 32},
	} {
		row := `{"content":[],"env":{"numbers":[1,2,3]},"teacher_response":[` + c.turns + "]}\n"
		teacher, err := games.ReadRows(strings.NewReader(row))
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range [][]games.Recorded{nil, teacher} {
			pool, err := env.Open(t.Context(), env.Options{Command: c.command + " '" + self + "'",
				Workers: 2, Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			broken, err := games.Check(t.Context(), pool, 1, rows, &out)
			pool.Close()
			if err != nil || len(broken) > 0 || !strings.HasPrefix(out.String(), fmt.Sprintf(
				"planner: protocol version 1, %d episodes at once\n", c.episodes)) ||
				strings.Contains(out.String(), "\n1 episodes of the teacher\n") != (rows != nil) {
				t.Errorf("%s: %v, %q\n%s", c.command, err, broken, out.String())
			}
		}
	}
	// The helper answers by the number of the request: equal replies are the journal's.
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if n := len(server.Calls()); err != nil || n == 0 || len(files) != n {
		t.Errorf("%d requests, %d files, %v", n, len(files), err)
	}
}

// The environment on its standard input and output, to the byte.
func TestServe(t *testing.T) {
	in := `{"op":"hello","version":1}
{"op":"reset","id":7,"seed":3,"row":{"content":[],"env":{"numbers":[1,2]}}}
{"op":"step","id":7,"turn":"Sub-Goal: all\nTool: add\nCommand: 1 + 2","cut":false}
{"op":"close","id":7}
{"op":"reset","id":8,"seed":3,"row":{"content":[],"env":{"numbers":[1]}}}
`
	want := `{"name":"planner","version":1,"episodes":1024,"fork":true}
{"anchor":"memory 0 e3b0c44298fc1c14","id":7,"prompt":[{"role":"system","content":"Plan the next step towards the answer. A step uses one tool:\nadd: the sum of two integers, such as 12 + 30\nmultiply: the product of two integers, such as 12 * 3\nEnd with three lines:\nSub-Goal: what the step is for\nTool: its name\nCommand: what the tool gets"},{"role":"user","content":"Question: What is 1 + 2?\nMemory: empty"}]}
{"done":true,"id":7,"label":"right","reward":1,"valid":true}
{"error":"env planner: column env: 1 numbers: must be 2 to 7","id":8}
`
	var out bytes.Buffer
	err := Serve(strings.NewReader(in), &out, nil)
	lines := strings.SplitAfter(out.String(), "\n")
	if len(lines) == 5 && strings.Contains(lines[1], `"id":8`) { // episodes do not wait for others
		lines = []string{lines[0], lines[2], lines[3], lines[1]}
	} else if len(lines) == 5 && strings.Contains(lines[2], `"id":8`) {
		lines = []string{lines[0], lines[1], lines[3], lines[2]}
	}
	if got := strings.Join(lines, ""); err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}
