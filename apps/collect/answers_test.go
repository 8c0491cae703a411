package collect

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gad/apps/collect/collecttest"
	"gad/apps/session/sessiontest"
	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/fault"
	"gad/internal/vfs"
)

// TestCollectBlankPrompts: what asks nothing is not sent, and is named before anything is
// asked.
func TestCollectBlankPrompts(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{})
	collecttest.Put(t, "prompts.jsonl",
		`{"content":"one"}`,
		`{"content":" \n\t"}`,
		`{"content":[{"role":"system","content":"be brief"}]}`,
		`{"content":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":""}]}`,
		`{"content":"two"}`)
	line := asks(s, "rows.jsonl")
	const left = "left out, as they have no prompt (no user turn, or a blank one): rows 1, 2, 3\n"
	if out, _ := must(t, with(line, dry)); !strings.HasPrefix(out,
		left+"big: 2 answers to 2 rows; ") || len(s.Calls()) > 0 {
		t.Errorf("prints %q, %d calls", out, len(s.Calls()))
	}
	out, said := must(t, line)
	rows := sessiontest.Rows(t, "rows.jsonl")
	if !strings.HasPrefix(out, "rows.jsonl: 2 answers to 5 prompts\n") ||
		strings.Count(said, left) != 1 || len(s.Calls()) != 2 || len(rows) != 2 ||
		rows[1].Teacher != "answer 0 to two" {
		t.Errorf("prints %q, says %q, %d calls, %d rows", out, said, len(s.Calls()), len(rows))
	}
	collecttest.Put(t, "prompts.jsonl", `{"content":""}`, `{"content":" "}`)
	code, out, said := ask(with(line, func(r *Run) { r.Output = "others.jsonl" }))
	if want := "gad: data: prompts.jsonl: no row has a prompt (no user turn, or a blank one): name the column of the prompts with --content-key\n"; code == nil || code == fault.ErrUsage || code == fault.ErrRunning || out != "" || said != want {
		t.Errorf("%v, prints %q, says %q", code, out, said)
	}
	if _, err := os.Stat("others.jsonl.journal"); err == nil {
		t.Error("a journal of nothing was made")
	}
}

// TestCollectEmptyAnswers: they are named and left out, and not paid for again unless that
// is asked for.
func TestCollectEmptyAnswers(t *testing.T) {
	t.Chdir(t.TempDir())
	well := map[string]bool{"a": true}
	s := collecttest.Teacher(t, &endpointtest.Server{
		Answer: func(c endpointtest.Call, choice int) (string, string) {
			if well[c.Prompt] || well["all"] {
				return endpointtest.Echo(c, choice)
			}
			return " ", map[string]string{"b": "content_filter", "c": "length"}[c.Prompt]
		}})
	collecttest.Put(t, "prompts.jsonl", `{"content":"a"}`, `{"content":"b"}`, `{"content":"c"}`)
	line := asks(s, "rows.jsonl")
	again := func(r *Run) { r.Empty = true }
	run := func(calls, rows int, want string, more ...func(r *Run)) {
		t.Helper()
		before := len(s.Calls())
		out, _ := must(t, with(line, more...))
		if n := len(s.Calls()) - before; n != calls || len(sessiontest.Rows(t, "rows.jsonl")) != rows ||
			!strings.Contains(out, want) {
			t.Errorf("%d calls, %d rows, prints %q", n, len(sessiontest.Rows(t, "rows.jsonl")), out)
		}
		collecttest.Drop(t, "rows.jsonl")
	}
	both := "the teacher has answered without text: rows 1 (content_filter), 2 (length): remove rows.jsonl and give --retry-empty to ask them again\n"
	run(3, 1, both)
	run(0, 1, both)
	run(2, 1, both, again) // once each, however often it is empty
	well["b"] = true
	run(2, 2, "the teacher has answered without text: row 2 (length): ", again)
	// the second answer is found behind the first
	run(0, 2, "the teacher has answered without text: row 2 (length): ")
	// two more of each: one of b has text
	run(2, 6, "", again, func(r *Run) { r.N, r.Prompts.Limit = 3, 2 })
	well["all"] = true
	run(1, 3, "", again)

	well = map[string]bool{}
	line.Output = "none.jsonl"
	code, out, said := ask(line)
	if want := "gad: collect: none.jsonl: there is no answer to write: the teacher has answered without text: rows 0 (), 1 (content_filter), 2 (length): --retry-empty asks them again\n"; code != fault.ErrRunning || out != "" || !strings.HasSuffix(said, strings.Replace(want, "()", "(no finish_reason)", 1)) {
		t.Errorf("%v, prints %q, says %q", code, out, said)
	}
}

// TestCollectSeeds: with --seed, each request has a seed of its own, whatever its prompt: an
// endpoint draws the same random numbers for the same seed. A larger -n goes on with the seeds that
// it would have had from the start.
func TestCollectSeeds(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			fmt.Fprintf(w, `{"choices":[{"finish_reason":"stop","message":{"content":"%s by %v"}}]}`, c.Prompt, c.Raw["seed"]) // n is not known
			return true
		}})
	collecttest.Put(t, "prompts.jsonl", `{"content":"a"}`, `{"content":"b"}`, `{"content":"a"}`)
	answers := func(out string, seed int64, n int) []string {
		var got []string
		must(t, asks(s, out, func(r *Run) { r.Seed, r.N = &seed, n }))
		for _, r := range sessiontest.Rows(t, out) {
			got = append(got, r.Teacher)
		}
		collecttest.Drop(t, out) // and not its journal
		return got
	}
	one := answers("more.jsonl", 7, 1)
	more, whole := answers("more.jsonl", 7, 2), answers("whole.jsonl", 7, 2)
	if !slices.Equal(more, whole) || !slices.Equal(one, []string{whole[0], whole[2], whole[4]}) {
		t.Errorf("with one answer %q, with one more %q, with two %q", one, more, whole)
	}
	seeds := map[string]bool{}
	for _, answer := range slices.Concat(whole, answers("other.jsonl", 8, 1)) {
		_, seed, _ := strings.Cut(answer, " by ")
		if x, err := strconv.ParseFloat(seed, 64); err != nil || x < 0 || x > math.MaxInt32 {
			t.Errorf("%q: not a seed of 31 bits", answer)
		}
		seeds[seed] = true
	}
	if len(seeds) != 9 {
		t.Errorf("nine requests have %d seeds", len(seeds))
	}
}

// TestCollectThinksAndCalls: a thought is in the journal, and with --keep-thinking in the output;
// the tools and calls of a row go to the teacher, arguments as texts, and a call is an answer.
func TestCollectThinksAndCalls(t *testing.T) {
	t.Chdir(t.TempDir())
	var asked []string
	s := collecttest.Teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			tools, _ := json.Marshal(c.Raw["tools"])
			messages, _ := json.Marshal(c.Raw["messages"])
			asked = append(asked, fmt.Sprintf("%s %s", tools, messages))
			if c.Prompt == "sum?" {
				fmt.Fprint(w, `{"choices":[{"finish_reason":"tool_calls","message":{"content":null,"reasoning":"I add.","tool_calls":[{"id":"c2","type":"function","function":{"name":"sum","arguments":"{\"x\": [1, 2]}"}}]}}]}`)
				return true
			}
			fmt.Fprint(w, `{"choices":[{"finish_reason":"stop","message":{"content":"3.","reasoning_content":"I see."}}]}`)
			return true
		}})
	call := `[{"id":"c1","type":"function","function":{"name":"sum","arguments":{"x":[1,2]}}}]`
	collecttest.Put(t, "prompts.jsonl", `{"content":[{"role":"user","content":"sum?"}],"tools":[{"type":"function","function":{"name":"sum"}}],"env":{"n": 1.50}}`,
		`{"content":[{"role":"user","content":"1+2"},{"role":"assistant","content":"","tool_calls":`+call+`},{"role":"tool","content":"3","tool_call_id":"c1"}],"tools":[{"type":"function","function":{"name":"sum"}}]}`)
	line := asks(s, "rows.jsonl")
	line.Limits.Concurrency = 1
	must(t, line)
	read := func() string {
		raw, err := os.ReadFile("rows.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	teacherTurn := `"teacher_response":[{"role":"assistant","content":"","tool_calls":[{"id":"c2","type":"function","function":{"name":"sum","arguments":"{\"x\": [1, 2]}"}}]}]`
	if got := read(); !strings.Contains(got, teacherTurn) || !strings.Contains(got, `"teacher_response":"3."`) || !strings.Contains(got, `"tool_calls":`+call) || strings.Count(got, `"tools":[{"type":"function"`) != 2 || strings.Count(got, `"env":{"n":1.50}`) != 1 || strings.Contains(got, "reasoning") {
		t.Errorf("rows\n%s", got)
	}
	slices.Sort(asked)
	for i, want := range []string{`"content":"1+2"`, `"content":"sum?"`} {
		if !strings.HasPrefix(asked[i], `[{"function":{"name":"sum"},"type":"function"}] `) || !strings.Contains(asked[i], want) {
			t.Errorf("asked %s", asked[i])
		}
	}
	if want := `"arguments":"{\"x\":[1,2]}"`; !strings.Contains(asked[0], want) || !strings.Contains(asked[0], `"tool_call_id":"c1"`) {
		t.Errorf("asked %s, want %s", asked[0], want)
	}
	collecttest.Drop(t, "rows.jsonl")
	must(t, with(line, func(r *Run) { r.Thinking = true }))
	if got := read(); len(asked) != 2 || !strings.Contains(got, `"teacher_response":[{"role":"assistant","content":"3.","reasoning_content":"I see."}]`) || !strings.Contains(got, `"content":"","reasoning_content":"I add.","tool_calls":`) {
		t.Errorf("%d requests; with thoughts\n%s", len(asked), got)
	}
}

// TestCollectUncounted: --max-cost holds at an endpoint that counts no tokens, and the
// tally says how it was counted.
func TestCollectUncounted(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			fmt.Fprintf(w, `{"choices":[{"finish_reason":"stop","message":{"content":"%s"}}]}`, strings.Repeat("long", 1000))
			return true
		}})
	collecttest.Prompts(t, "prompts.jsonl", 10)
	line := asks(s, "rows.arrow", func(r *Run) {
		r.Price, r.Limits.Concurrency = &endpoint.Price{Output: 1000}, 1
	})
	code, _, said := ask(with(line, func(r *Run) { r.MaxCost = 5.5 }))
	if want := "collect: the answers so far have cost $6.00, which is --max-cost 5.5: the same command with a higher one asks for the others\n"; code != fault.ErrRunning || !strings.HasSuffix(said, want) || len(s.Calls()) != 6 {
		t.Errorf("%v, %q, %d calls", code, said, len(s.Calls()))
	}
	out, _ := must(t, line)
	if want := "counted by the endpoint, and at 4 bytes per token where it counts nothing (10 of 10 requests): 22 tokens of prompts, 10k of answers, $10.00 (by this command: 8 tokens of prompts, 4000 of answers, $4.00)\n"; !strings.Contains(out, want) {
		t.Errorf("prints %s want %s", out, want)
	}
}

// TestCollectCached: tokens from a cache cost what the file says of them, or the full price.
func TestCollectCached(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			fmt.Fprint(w, `{"choices":[{"finish_reason":"stop","message":{"content":"a"}}],"usage":{"prompt_tokens":1000,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":800}}}`)
			return true
		}})
	collecttest.Prompts(t, "prompts.jsonl", 10)
	for prices, want := range map[string]string{
		`{"big": {"input": 1000, "output": 10000, "cached_input": 100}}`: "10k tokens of prompts (8000 from a cache), 100 of answers, $3.80\n", // 10 (0.2 + 0.08 + 0.1)
		`{"big": {"input": 1000, "output": 10000, "cached_input": 0}}`:   "10k tokens of prompts (8000 from a cache), 100 of answers, $3.00\n",
		`{"big": {"input": 1000, "output": 10000}}`:                      "10k tokens of prompts (8000 from a cache), 100 of answers, $11.00\n",
	} {
		collecttest.Put(t, "prices.json", prices)
		price, err := endpoint.ReadPrice(vfs.OS, "prices.json", "big")
		if err != nil {
			t.Fatal(err)
		}
		out, _ := must(t, asks(s, "rows.arrow", func(r *Run) { r.Price = &price }))
		if !strings.Contains(out, want) {
			t.Errorf("%s: prints %s", prices, out)
		}
		collecttest.Drop(t, "rows.arrow")
		collecttest.Drop(t, "rows.arrow.journal")
	}
}

// TestCollectOddAnswers: an answer as an array of parts, or with usage that is no usage,
// is paid for once.
func TestCollectOddAnswers(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if c.Prompt == "a" {
				fmt.Fprint(w, `{"choices":[{"finish_reason":"stop","message":{"content":[{"type":"text","text":"in parts"}]}}],"usage":{"prompt_tokens":1.0,"completion_tokens":2.0}}`)
			} else {
				fmt.Fprint(w, `{"choices":[{"finish_reason":"model_length","message":{"content":"cut"}}],"usage":"many"}`)
			}
			return true
		}})
	collecttest.Put(t, "prompts.jsonl", `{"content":"a"}`, `{"content":"b"}`)
	out, _ := must(t, asks(s, "rows.parquet"))
	rows := sessiontest.Rows(t, "rows.parquet")
	if len(s.Calls()) != 2 || len(rows) != 2 || rows[0].Teacher != "in parts" ||
		rows[1].Teacher != "cut" || rows[0].Unfinished() || !rows[1].Unfinished() ||
		!strings.Contains(out, "1 cut short (finish_reason length or the like: ") {
		t.Errorf("%d calls, %+v, prints %s", len(s.Calls()), rows, out)
	}
}

// TestJournalOfBefore: what earlier versions have paid for is found. A change of the keys
// would have everybody pay again.
func TestJournalOfBefore(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{})
	collecttest.Put(t, "prompts.jsonl", `{"content":"a"}`, `{"content":[{"role":"system","content":"s"},{"role":"user","content":"b"}]}`, `{"content":"a"}`)
	collecttest.Put(t, "rows.jsonl.journal", // of the first version that collected
		`{"key":"settings","record":{"model":"big","system":"be brief","temperature":0.5,"top_p":0.9,"max_tokens":100,"seed":3,"extra":{"a":[true],"b":1}}}`,
		`{"key":"fb21917996c5739c0b03252c98c35e82/0","record":{"choices":[{"content":"one","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4},"model":"big-2026","id":"chatcmpl-1"}}`,
		`{"key":"07b07d917e5d68d4461cda53e3d0bb43/0","record":{"choices":[{"content":"two","finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":4},"model":"big-2026","id":"chatcmpl-1","batch":true}}`,
		`{"key":"098e0433b72565d8d3fd8414f41e859f/0","record":{"choices":[{"content":"three","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4},"model":"big-2026","id":"chatcmpl-1"}}`)
	temperature, topP, seed := 0.5, 0.9, int64(3)
	must(t, asks(s, "rows.jsonl", func(r *Run) {
		r.Settings = Settings{Model: "big", System: "be brief", Temperature: &temperature,
			TopP: &topP, MaxTokens: 100, Seed: &seed,
			Extra: map[string]any{"b": 1.0, "a": []any{true}}}
	}))
	rows := sessiontest.Rows(t, "rows.jsonl")
	if len(s.Calls()) > 0 || len(rows) != 3 ||
		rows[0].Teacher+rows[1].Teacher+rows[2].Teacher != "onetwothree" ||
		rows[1].Finish != "length" {
		t.Errorf("%d calls, %+v", len(s.Calls()), rows)
	}
}

// TestCollectSays: what the prompts lose is said before anything is paid for, a limit in
// --extra counts in the estimate, and equal and cut answers are said after.
func TestCollectSays(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{
		Answer: func(c endpointtest.Call, choice int) (string, string) {
			if strings.HasPrefix(c.Prompt, "refuse") {
				return "As an AI I cannot.", "stop"
			}
			return "to " + c.Prompt, "length"
		}})
	collecttest.Put(t, "prompts.jsonl", `{"instruction":"refuse 1","input":"","history":[]}`, `{"instruction":"refuse","input":"2","history":[]}`,
		`{"instruction":"refuse 3","history":[["q","a"]]}`, `{"instruction":"go"}`, `{"instruction":"go"}`, `{"instruction":"go"}`)
	out, said := must(t, asks(s, "rows.jsonl", func(r *Run) {
		r.Extra = map[string]any{"max_completion_tokens": 20.0}
	}))
	for _, want := range []string{
		`prompts.jsonl: not read, although answers may speak of it: "history": put what matters into the prompt` + "\n",
		"estimate: 14 tokens of prompts, 120 of answers (at 4 bytes per token of a prompt, and the most that --extra max_completion_tokens allows, 20 tokens per answer)\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("says %s want %s", said, want)
		}
	}
	for _, want := range []string{
		"3 of 6 rows have the same answer, \"As an AI I cannot.\", to different prompts (the first is row 0)\n",
		"3 cut short (finish_reason length or the like: marked, they make no pair in training): a higher --extra max_completion_tokens than 20, and another --output, asks for whole answers\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("prints %s want %s", out, want)
		}
	}
}

// What an endpoint refuses for all, and one that speaks no https.
func TestRefusedForAll(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{
		Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			endpointtest.Fail(w, 402, "", "Insufficient Balance")
			return true
		}})
	collecttest.Put(t, "prompts.jsonl", `{"content":"a"}`, `{"content":"b"}`)
	plain := httptest.NewServer(nil)
	defer plain.Close()
	for url, want := range map[string]string{
		s.URL: "gad: endpoint: " + strings.TrimSuffix(strings.TrimPrefix(s.URL, "http://"), "/v1") +
			": status 402: Insufficient Balance\n",
		strings.Replace(plain.URL, "http:", "https:", 1) + "/v1": "gad: endpoint: " +
			strings.TrimPrefix(plain.URL, "http://") +
			": speaks http and not https: check the base URL\n",
	} {
		code, out, said := ask(asks(s, "x.arrow", func(r *Run) { r.Limits.BaseURL = url }))
		if code != fault.ErrRunning || out != "" || !strings.HasSuffix(said, want) || len(s.Calls()) > 2 {
			t.Errorf("%s: %v, prints %q, %d calls\n got %s want %s", url, code, out,
				len(s.Calls()), said, want)
		}
	}
}

// What an endpoint that was named wrongly answers: one line, and nothing stays.
func TestNewcomersEndpoints(t *testing.T) {
	t.Chdir(t.TempDir())
	collecttest.Put(t, "prompts.jsonl", `{"content":"a"}`)
	server := httptest.NewServer(nil) // has no /chat/completions
	defer server.Close()

	// A server on this machine that wants a key, where none is sent unless asked for.
	guarded := collecttest.Teacher(t, &endpointtest.Server{Key: "sk-right"})
	code, _, said := ask(asks(guarded, "x.arrow"))
	if want := ": status 401 invalid_api_key: the endpoint wants a key: name its environment variable with --key-env, or its file with --key-file\n"; code != fault.ErrRunning || !strings.HasSuffix(said, want) {
		t.Errorf("%v\n got %s want %s", code, said, want)
	}

	// An endpoint without batches.
	code, _, said = ask(asks(guarded, "x.arrow", batches, func(r *Run) {
		r.Limits.BaseURL = server.URL + "/v1"
	}))
	if want := ": status 404: not found: check the base URL and the model, or leave out --batch, which not every endpoint has\n"; code != fault.ErrRunning || !strings.HasSuffix(said, want) {
		t.Errorf("%v\n got %s want %s", code, said, want)
	}

	// A base URL without its /v1. Nothing stays of it.
	code, out, said := ask(asks(guarded, "x.arrow", func(r *Run) { r.Limits.BaseURL = server.URL }))

	if want := ": status 404: not found: most base URLs end in /v1: try " + server.URL +
		"/v1\n"; code != fault.ErrRunning || out != "" || !strings.HasSuffix(said, want) {
		t.Errorf("%v, prints %q\n got %s want %s", code, out, said, want)
	}
	for _, name := range []string{"x.arrow", "x.arrow.journal"} {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s was made", name)
		}
	}
}

// What a wrong key, a wrong model and a server elsewhere bring is one line too; there are
// no answers, so nothing stays.
func TestMistakesAtTheEndpoint(t *testing.T) {
	work := t.TempDir()
	t.Chdir(work)
	collecttest.Put(t, "prompts.jsonl", `{"content":"a"}`)
	for _, c := range []struct {
		s    *endpointtest.Server
		want string
	}{
		{&endpointtest.Server{Key: "sk-right"}, "status 401 invalid_api_key: the key is not accepted: check the key and what it may use"},
		{&endpointtest.Server{
			Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
				endpointtest.Fail(w, 404, "model_not_found", "no big here")
				return true
			}}, "status 404 model_not_found: no big here: check the base URL and the model"},
		{&endpointtest.Server{
			Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, "https://example.com/v1/chat/completions",
					http.StatusTemporaryRedirect)
				return true
			}}, "status 307: the endpoint redirects elsewhere, which is not followed: give the URL that it redirects to as base URL"},
	} {
		collecttest.Teacher(t, c.s)
		code, out, said := ask(asks(c.s, "x.arrow", func(r *Run) {
			r.Limits.Key = "sk-wrong-0123456789"
		}))
		host := strings.TrimSuffix(strings.TrimPrefix(c.s.URL, "http://"), "/v1")
		if want := "gad: endpoint: " + host + ": " + c.want + "\n"; code != fault.ErrRunning || out != "" ||
			!strings.HasSuffix(said, want) || strings.Contains(said, "sk-") {
			t.Errorf("%v, prints %q\n got %s want %s", code, out, said, want)
		}
		if names, err := filepath.Glob("x*"); err != nil || len(names) > 0 {
			t.Errorf("made %v", names)
		}
	}
}

// What --partial leaves out is said, with the way to get it.
func TestPartialSaysWhatIsMissing(t *testing.T) {
	t.Chdir(t.TempDir())
	s := collecttest.Teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if c.Prompt == "b" {
				endpointtest.Fail(w, 400, "", "not this")
				return true
			}
			return false
		}})
	collecttest.Put(t, "prompts.jsonl", `{"content":"a"}`, `{"content":"b"}`, `{"content":"c"}`)
	line := asks(s, "x.jsonl", partial)
	code, out, _ := ask(line)
	if want := "x.jsonl: 2 answers to 3 prompts\n1 of 3 rows have no answer: remove x.jsonl, and the same command asks again\n"; code != nil || !strings.HasPrefix(out, want) {
		t.Errorf("%v, prints %s", code, out)
	}
	s.Misbehave = nil
	collecttest.Drop(t, "x.jsonl")
	if code, out, _ := ask(line); code != nil ||
		!strings.HasPrefix(out, "x.jsonl: 3 answers to 3 prompts\ncounted") {
		t.Errorf("again: %v, prints %s", code, out)
	}
}

// The estimate says how long the limits that are given make it last.
func TestEstimateOfTime(t *testing.T) {
	t.Chdir(t.TempDir())
	lines := make([]string, 40)
	for i := range lines {
		lines[i] = `{"content":"` + strings.Repeat("a", 396) + `"}` // 100 tokens with the role
	}
	collecttest.Put(t, "prompts.jsonl", lines...)
	for _, x := range []struct {
		rpm, tpm, in, out float64
		batch             bool
		want              string
	}{
		{want: ""},
		{rpm: 100, want: ""},
		{rpm: 10, want: "; about 4 min by --rpm"},
		{in: 1000, want: "; about 4 min by --input-tpm"},
		{out: 1000, want: "; about 2 min by --output-tpm"},
		{tpm: 1000, want: "; about 6 min by --tpm"},
		{tpm: 1000, rpm: 0.25, want: "; about 2.7 h by --rpm"},
		{tpm: 1000, batch: true, want: ""},
		{tpm: 3000, out: 100, want: "; about 20 min by --output-tpm"},
		{tpm: 1000000, out: 10000, want: ""},
	} {
		nobody := &endpointtest.Server{URL: "http://127.0.0.1:9/v1"}
		out, _ := must(t, asks(nobody, "x.jsonl", dry, func(r *Run) {
			r.Model, r.MaxTokens, r.Batch = "m", 50, x.batch
			r.Limits.RequestsPerMinute, r.Limits.TokensPerMinute = x.rpm, x.tpm
			r.Limits.InputTokensPerMinute, r.Limits.OutputTokensPerMinute = x.in, x.out
		}))
		if want := "m: 40 answers to 40 rows; estimate: 4000 tokens of prompts, 2000 of answers (at 4 bytes per token of a prompt, and the most that --max-tokens allows, 50 tokens per answer)" + x.want + "\n"; out != want {
			t.Errorf("%+v: prints %s want %s", x, out, want)
		}
	}
}
