package collect

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/apps/collect/collecttest"
	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/fault"
)

// asks is gad data collect of prompts.jsonl from a server.
func asks(s *endpointtest.Server, output string, more ...func(r *Run)) Run {
	cols := data.DefaultColumns()
	r := Run{Options: Options{Settings: Settings{Model: "big"}, N: 1, Output: output},
		Prompts: session.Rows{Command: "data collect", Paths: []string{"prompts.jsonl"},
			Format: data.FormatAuto, Content: cols.Content}, // answers are not read
		Limits: endpoint.Options{BaseURL: s.URL, Concurrency: 16, Retries: 10}}
	return with(r, more...)
}

// with is r, changed.
func with(r Run, more ...func(r *Run)) Run {
	for _, change := range more {
		change(&r)
	}
	return r
}

// into has another output.
func into(output string) func(r *Run) { return func(r *Run) { r.Output = output } }

func partial(r *Run) { r.Partial = true }
func dry(r *Run)     { r.DryRun = true }
func batches(r *Run) { r.Batch, r.Poll = true, time.Millisecond }

// ask runs r and returns what its error is, nil, fault.ErrUsage, fault.ErrRunning or another, what
// it prints, and what it says.
//
//lint:ignore ST1008 a test reads the kind first
func ask(r Run) (kind error, out, said string) {
	client, err := endpoint.New(r.Limits)
	if err != nil {
		return err, "", err.Error()
	}
	r.Client = client
	out, said, err = sessiontest.Run(r.Collect)
	for _, kind := range []error{fault.ErrUsage, fault.ErrRunning} {
		if errors.Is(err, kind) {
			err = kind
		}
	}
	return err, out, said
}

// must runs r, which has to succeed.
func must(t *testing.T, r Run) (out, said string) {
	t.Helper()
	kind, out, said := ask(r)
	if kind != nil {
		t.Fatalf("%v: %s%s", kind, out, said)
	}
	return out, said
}

// TestCollect: the answers of a teacher that misbehaves at first, in the order of the
// prompts, in a file that gad data validate and training take.
func TestCollect(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{Key: "sk-teacher-0123456789",
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			switch {
			case c.Before > 0:
			case c.Number%7 == 3:
				endpointtest.Cut(w)
				return true
			case c.Number%7 == 5:
				endpointtest.HalfJSON(w)
				return true
			}
			return false
		},
		Answer: func(c endpointtest.Call, choice int) (string, string) {
			switch c.Prompt {
			case "p4":
				return "", "content_filter"
			case "p5":
				return "this is cut", "length"
			}
			return endpointtest.Echo(c, choice)
		}})
	collecttest.Prompts(t, "prompts.jsonl", 40)
	half := 0.5
	line := asks(s, "rows.arrow", func(r *Run) {
		r.Limits.Key, r.System, r.Temperature, r.MaxTokens = s.Key, "be brief", &half, 100
	})
	out, _ := must(t, with(line, func(r *Run) {
		r.Price, r.MaxCost = &endpoint.Price{Input: 1000, Output: 2000}, 20
	}))
	rows := sessiontest.Rows(t, "rows.arrow")
	if len(rows) != 39 {
		t.Fatalf("%d rows", len(rows))
	}
	prompt, answer := 0, 0
	for i, r := range rows {
		if i >= 4 {
			i++ // the empty answer is left out
		}
		want, finish := fmt.Sprintf("answer 0 to p%d", i), "stop"
		if i == 5 {
			want, finish = "this is cut", "length"
		}
		if r.ID != fmt.Sprintf("r%d", i) || r.Teacher != want || r.Finish != finish ||
			r.Messages[len(r.Messages)-1].Content != fmt.Sprintf("p%d", i) ||
			len(r.Messages) != 1+[]int{0, 1, 0}[i%3] {
			t.Errorf("row %d: %+v", i, r)
		}
	}
	for _, c := range s.Calls() {
		if c.Before > 1 {
			t.Errorf("prompt %s was asked for the third time", c.Prompt)
		}
		i, system := 0, "be brief"
		if _, err := fmt.Sscanf(c.Prompt, "p%d", &i); i%3 == 1 && err == nil {
			system = fmt.Sprintf("be %d", i)
		}
		if got := fmt.Sprint(c.Messages); got != fmt.Sprintf("[{system %s} {user p%d}]", system,
			i) {
			t.Errorf("asked %v", c.Messages)
		}
		if fmt.Sprintf("%v %v %v", c.Raw["temperature"], c.Raw["max_tokens"],
			c.Raw["model"]) != "0.5 100 big" {
			t.Errorf("asked %v", c.Raw)
		}
	}
	for _, n := range s.Answered() {
		if n != 1 {
			t.Errorf("answered %v", s.Answered())
		}
	}
	for i := range 40 {
		prompt += endpointtest.Tokens(fmt.Sprintf("p%d", i))
		if i%3 == 1 {
			prompt += endpointtest.Tokens(fmt.Sprintf("be %d", i))
		} else {
			prompt += endpointtest.Tokens("be brief")
		}
		switch i {
		case 4:
		case 5:
			answer += endpointtest.Tokens("this is cut")
		default:
			answer += endpointtest.Tokens(fmt.Sprintf("answer 0 to p%d", i))
		}
	}
	want := fmt.Sprintf("rows.arrow: 39 answers to 40 prompts\n1 cut short (finish_reason length or the like: marked, they make no pair in training), 1 empty (left out)\nthe teacher has answered without text: row 4 (content_filter): remove rows.arrow and give --retry-empty to ask them again\ncounted by the endpoint: %d tokens of prompts, %d of answers, $%.2f\ncolumns left out: level\n",
		prompt, answer, float64(prompt)/1000+float64(answer)/500)
	if out != want {
		t.Errorf("prints %q, want %q", out, want)
	}
	// The key is in no file.
	for _, name := range []string{"rows.arrow", "rows.arrow.journal"} {
		if raw, err := os.ReadFile(name); err != nil || strings.Contains(string(raw), s.Key) {
			t.Errorf("%s holds the key: %v", name, err)
		}
	}
	// The journal is enough to write the output again; nobody is asked.
	calls := len(s.Calls())
	before, err := os.ReadFile("rows.arrow")
	if err := errors.Join(err, os.Remove("rows.arrow")); err != nil {
		t.Fatal(err)
	}
	must(t, line)
	if after, err := os.ReadFile("rows.arrow"); err != nil || !slices.Equal(before, after) ||
		len(s.Calls()) != calls {
		t.Errorf("%v; another file, or %d calls more", err, len(s.Calls())-calls)
	}
}

// TestCollectSeveral: n answers are n rows, whether the endpoint knows n, does not, or
// refuses it, and more are asked for later.
func TestCollectSeveral(t *testing.T) {
	for _, x := range []struct{ knows, refuses bool }{{true, false}, {false, false},
		{false, true}} {
		knows := x.knows
		t.Chdir(t.TempDir())
		s := &endpointtest.Server{}
		s.Answer = func(c endpointtest.Call, choice int) (string, string) {
			return fmt.Sprintf("%s %d %d", c.Prompt, c.Before, choice), "stop"
		}
		if !knows {
			s.Misbehave = func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
				if x.refuses && c.N > 1 {
					endpointtest.Fail(w, 400, "", "'n' must be 1")
					return true
				}
				fmt.Fprintf(w, `{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"%s %d"}}]}`, c.Prompt, c.Before)
				return true
			}
		}
		collecttest.Teacher(t, s)
		if err := os.WriteFile("prompts.jsonl",
			[]byte("{\"content\":\"a\"}\n{\"content\":\"b\"}\n{\"content\":\"a\"}\n"),
			0o644); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 3} {
			must(t, asks(s, "rows.jsonl", func(r *Run) { r.N = n }))
			rows := sessiontest.Rows(t, "rows.jsonl")
			// equal prompts have answers of their own
			if len(rows) != 3*n || rows[0].Teacher == rows[2*n].Teacher {
				t.Fatalf("n %d: %d rows: %+v", n, len(rows), rows)
			}
			for i, r := range rows {
				if want := []string{"a", "b", "a"}[i/n]; r.Messages[0].Content != want ||
					!strings.HasPrefix(r.Teacher, want+" ") {
					t.Errorf("n %d: row %d: %+v", n, i, r)
				}
			}
			if err := os.Remove("rows.jsonl"); err != nil {
				t.Fatal(err)
			}
		}
		want := 3 + 3 // one answer of each, then two more in a request
		if !knows {
			want = 3 + 6
		}
		got := len(s.Calls())
		// before the first answer to one alone
		if refused := got - want; x.refuses && refused >= 1 && refused <= 3 {
			got = want
		}
		if got != want {
			t.Errorf("%+v: %d calls, want %d", x, got, want)
		}
	}
}

// TestCollectFails: what cannot be answered is listed, the output waits for it or is
// partial, and the same command asks for it alone.
func TestCollectFails(t *testing.T) {
	t.Chdir(t.TempDir())
	well := false
	s := collecttest.Teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			switch {
			case well:
			case c.Prompt == "p2":
				endpointtest.Fail(w, 400, "context_length_exceeded", "too long")
				return true
			case c.Prompt == "p7":
				endpointtest.HalfJSON(w)
				return true
			}
			return false
		}})
	collecttest.Prompts(t, "prompts.jsonl", 10)
	line := asks(s, "rows.arrow")
	line.Limits.Retries = 1
	code, out, said := ask(line)
	host := strings.TrimSuffix(strings.TrimPrefix(s.URL, "http://"), "/v1")
	for _, want := range []string{
		"gad: row 2: endpoint: " + host +
			": status 400 context_length_exceeded: too long (1 try)\n",
		"gad: row 7: endpoint: " + host +
			": status 200: not a chat completion: unexpected end of JSON input (2 tries)\n",
		"gad: data collect: rows.arrow: 2 of 10 rows have no answer: the same command asks again, --partial writes the others\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("says %s, want %s", said, want)
		}
	}
	if _, err := os.Stat("rows.arrow"); code != fault.ErrRunning || out != "" || err == nil {
		t.Errorf("%v, prints %q", code, out)
	}
	// Whatever is left is refused, and the others can be written nonetheless.
	out, _ = must(t, with(line, partial))
	if rows := sessiontest.Rows(t, "rows.arrow"); len(rows) != 8 || rows[2].ID != "r3" ||
		!strings.HasPrefix(out, "rows.arrow: 8 answers to 10 prompts\n") {
		t.Errorf("prints %q", out)
	}
	if err := os.Remove("rows.arrow"); err != nil {
		t.Fatal(err)
	}
	well = true
	calls := len(s.Calls())
	must(t, line)
	if rows := sessiontest.Rows(t, "rows.arrow"); len(rows) != 10 || len(s.Calls()) != calls+2 {
		t.Errorf("%d rows, %d calls more", len(rows), len(s.Calls())-calls)
	}
}

// TestCollectEstimate: what it will cost is said before, and refused above the limit.
func TestCollectEstimate(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{})
	collecttest.Prompts(t, "prompts.jsonl", 10)
	line := asks(s, "rows.arrow", func(r *Run) { r.Price = &endpoint.Price{Output: 1000} })
	out, _ := must(t, with(line, dry, func(r *Run) { r.MaxTokens = 50 }))
	if want := "big: 10 answers to 10 rows; estimate: 22 tokens of prompts, 500 of answers, $0.50 (at 4 bytes per token of a prompt, and the most that --max-tokens allows, 50 tokens per answer)\n"; out != want {
		t.Errorf("prints %q, want %q", out, want)
	}
	code, _, said := ask(with(line, func(r *Run) { r.MaxCost = 4 }))
	if want := "gad: collect: estimate: 22 tokens of prompts, 5000 of answers, $5.00 (at 4 bytes per token of a prompt, and a guess of 500 tokens per answer): with what was spent that is $5.00, more than --max-cost 4: give a higher one, fewer prompts (--limit) or a lower --max-tokens\n"; code != fault.ErrUsage || !strings.HasSuffix(said, want) {
		t.Errorf("%v, %q", code, said)
	}
	if len(s.Calls()) > 0 {
		t.Errorf("%d calls", len(s.Calls()))
	}
	if names, err := filepath.Glob("rows*"); err != nil || len(names) > 0 {
		t.Errorf("made %v", names)
	}
	// The answers turn out to be longer than was guessed.
	s.Answer = func(endpointtest.Call, int) (string, string) {
		return strings.Repeat("long", 1500),
			"stop"
	}
	code, _, said = ask(with(line, func(r *Run) { r.MaxCost, r.Limits.Concurrency = 6, 1 }))
	if want := "collect: the answers so far have cost $6.00, which is --max-cost 6: the same command with a higher one asks for the others\n"; code != fault.ErrRunning || !strings.HasSuffix(said, want) || len(s.Calls()) != 4 {
		t.Errorf("%v, %q, %d calls", code, said, len(s.Calls()))
	}
}

// TestCollectBatch: the batch API at half the price, with replies lost, downloads cut,
// lines twice and in no order, and requests that fail.
func TestCollectBatch(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{
		Batch: endpointtest.BatchRules{Looks: 2, LoseReply: 1, CutFile: 1, Twice: true,
			Refuse:  func(prompt string) bool { return prompt == "p3" },
			Foreign: `{"custom_id":"batch/1/file","response":{"status_code":200,"body":{"choices":[{"message":{"content":"x"}}]}}}` + "\nnot JSON\n"}})
	collecttest.Prompts(t, "prompts.jsonl", 10)
	line := asks(s, "rows.arrow", batches, func(r *Run) {
		r.N, r.Price = 2, &endpoint.Price{Output: 1000}
	})
	host := strings.TrimSuffix(strings.TrimPrefix(s.URL, "http://"), "/v1")
	code, _, said := ask(line)
	if want := "gad: row 3: endpoint: " + host + ": status 400 refused: not this (1 try)\ngad: data collect: rows.arrow: 1 of 10 rows have no answer: the same command asks again, --partial writes the others\n"; code != fault.ErrRunning || !strings.HasSuffix(said, want) {
		t.Errorf("%v\n%s want %s", code, said, want)
	}
	if n := s.Batches(); n != 1 {
		t.Errorf("%d batches", n)
	}
	s.Batch = endpointtest.BatchRules{}
	out, _ := must(t, line)
	rows := sessiontest.Rows(t, "rows.arrow")
	for i, r := range rows {
		if r.ID != fmt.Sprintf("r%d", i/2) ||
			r.Teacher != fmt.Sprintf("answer %d to p%d", i%2, i/2) {
			t.Errorf("row %d: %+v", i, r)
		}
	}
	if len(rows) != 20 || s.Batches() != 2 || len(s.Calls()) != 0 || s.Answered()["p3"] != 1 ||
		s.Answered()["p5"] != 1 {
		t.Errorf("%d rows, %d batches, %d calls, answered %v", len(rows), s.Batches(),
			len(s.Calls()), s.Answered())
	}
	// 20 answers of 4 tokens, at half of 1000 dollars per million
	if want := "counted by the endpoint: 13 tokens of prompts, 80 of answers, $0.04 (by this command: 1 tokens of prompts, 8 of answers, $0.00)\n"; !strings.Contains(out, want) {
		t.Errorf("prints %s want %s", out, want)
	}
}

// TestCollectBatchEnds: of a batch that ends before its time the answers that came are
// kept, and a new one is made of the others.
func TestCollectBatchEnds(t *testing.T) {
	for _, end := range []string{"expired", "cancelled", "failed", "EXPIRED"} {
		t.Chdir(t.TempDir())
		s := collecttest.Teacher(t, &endpointtest.Server{Batch: endpointtest.BatchRules{End: end}})
		collecttest.Prompts(t, "prompts.jsonl", 10)
		line := asks(s, "rows.arrow", batches)
		code, _, said := ask(line)
		if code != fault.ErrRunning || !strings.Contains(said, "batch_"+end+": not done in time (1 try)") ||
			!strings.Contains(said, "5 of 10 rows have no answer") {
			t.Errorf("%v\n%s", code, said)
		}
		s.Batch.End = ""
		must(t, line)
		if len(sessiontest.Rows(t, "rows.arrow")) != 10 || s.Batches() != 2 {
			t.Errorf("%s: %d batches", end, s.Batches())
		}
		for prompt, n := range s.Answered() {
			if n != 1 {
				t.Errorf("%s: %s was answered %d times", end, prompt, n)
			}
		}
	}
}

// TestCollectRefused: an endpoint that refuses everything is not asked for everything,
// unless it has answered before.
func TestCollectRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	well := 10
	s := collecttest.Teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			var i int
			if _, err := fmt.Sscanf(c.Prompt, "p%d", &i); err == nil && i < well {
				return false
			}
			endpointtest.Fail(w, 400, "", "not this")
			return true
		}})
	collecttest.Prompts(t, "prompts.jsonl", 100)
	line := asks(s, "rows.arrow")
	must(t, with(line, partial))
	if n := len(s.Calls()); len(sessiontest.Rows(t, "rows.arrow")) != 10 || n != 100 {
		t.Fatalf("%d calls", n)
	}
	if err := os.Remove("rows.arrow"); err != nil {
		t.Fatal(err)
	}
	if must(t, with(line, partial)); len(s.Calls()) != 190 {
		t.Errorf("%d calls, want 90 more", len(s.Calls())-100)
	}
	well = 0
	line.Output = "others.arrow"
	code, _, said := ask(with(line, partial))
	if n := len(s.Calls()) - 190; code != fault.ErrRunning || n < 20 || n > 40 ||
		!strings.HasSuffix(said, "status 400: not this: every request so far was refused\n") {
		t.Errorf("%v, %d calls, %s", code, n, said)
	}
}

// TestCollectOtherPrompts: prompts that were added or moved ask for what is new, and no more.
func TestCollectOtherPrompts(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{})
	line := asks(s, "rows.jsonl")
	for _, prompts := range []string{"a b c", "c new a b a"} {
		var b strings.Builder
		for _, prompt := range strings.Fields(prompts) {
			fmt.Fprintf(&b, "{\"content\":%q}\n", prompt)
		}
		if err := os.WriteFile("prompts.jsonl", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		must(t, line)
		var got []string
		for _, r := range sessiontest.Rows(t, "rows.jsonl") {
			got = append(got, r.Messages[0].Content)
			if r.Teacher != "answer 0 to "+r.Messages[0].Content {
				t.Errorf("%+v", r)
			}
		}
		if strings.Join(got, " ") != prompts {
			t.Errorf("got %v", got)
		}
		if err := os.Remove("rows.jsonl"); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Answered(); len(s.Calls()) != 5 || n["a"] != 2 || n["b"] != 1 || n["c"] != 1 {
		t.Errorf("answered %v", n)
	}
}

// TestCollectEstimateBySample: once there are answers, the estimate is by them.
func TestCollectEstimateBySample(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{
		Answer: func(endpointtest.Call, int) (string, string) {
			return strings.Repeat("long", 30),
				"stop"
		}})
	collecttest.Prompts(t, "prompts.jsonl", 40)
	line := asks(s, "rows.arrow", func(r *Run) { r.MaxTokens = 1000 })
	must(t, with(line, func(r *Run) { r.Prompts.Limit = 25 }))
	if err := os.Remove("rows.arrow"); err != nil {
		t.Fatal(err)
	}
	out, _ := must(t, with(line, dry))
	want := "rows.arrow.journal: answers that are there already: 25 of 40\nbig: 15 answers to 15 rows; estimate: 24 tokens of prompts, 450 of answers (by the 25 answers so far: 6.6 bytes per token of a prompt, 30 tokens per answer)\n"
	if out != want || len(s.Calls()) != 25 {
		t.Errorf("prints %q, want %q; %d calls", out, want, len(s.Calls()))
	}
}
