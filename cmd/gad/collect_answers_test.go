package main

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

	"gad/internal/endpoint/endpointtest"
)

// put writes a file of lines.
func put(t *testing.T, name string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// drop removes a file.
func drop(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

// TestCollectBlankPrompts: what asks nothing is not sent, and is named before anything is
// asked.
func TestCollectBlankPrompts(t *testing.T) {
	t.Chdir(t.TempDir())
	s := teacher(t, &endpointtest.Server{})
	put(t, "prompts.jsonl",
		`{"content":"one"}`,
		`{"content":" \n\t"}`,
		`{"content":[{"role":"system","content":"be brief"}]}`,
		`{"content":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":""}]}`,
		`{"content":"two"}`)
	line := []string{"data", "collect", "--prompts", "prompts.jsonl", "--output", "rows.jsonl",
		"--base-url", s.URL, "--model", "big"}
	const left = "left out, as they have no prompt (no user turn, or a blank one): rows 1, 2, 3\n"
	if out, _ := must(t, append(line, "--dry-run")...); !strings.HasPrefix(out,
		left+"big: 2 answers to 2 rows; ") || len(s.Calls()) > 0 {
		t.Errorf("prints %q, %d calls", out, len(s.Calls()))
	}
	out, said := must(t, line...)
	rows := collected(t, "rows.jsonl")
	if !strings.HasPrefix(out, "rows.jsonl: 2 answers to 5 prompts\n") ||
		strings.Count(said, left) != 1 || len(s.Calls()) != 2 || len(rows) != 2 ||
		rows[1].Teacher != "answer 0 to two" {
		t.Errorf("prints %q, says %q, %d calls, %d rows", out, said, len(s.Calls()), len(rows))
	}
	put(t, "prompts.jsonl", `{"content":""}`, `{"content":" "}`)
	code, out, said := gad(append(line[:5:5], append([]string{"others.jsonl"}, line[6:]...)...)...)
	if want := "gad: data: prompts.jsonl: no row has a prompt (no user turn, or a blank one): name the column of the prompts with --content-key\n"; code != exitInput || out != "" || said != want {
		t.Errorf("exit status %d, prints %q, says %q", code, out, said)
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
	s := teacher(t, &endpointtest.Server{
		Answer: func(c endpointtest.Call, choice int) (string, string) {
			if well[c.Prompt] || well["all"] {
				return endpointtest.Echo(c, choice)
			}
			return " ", map[string]string{"b": "content_filter", "c": "length"}[c.Prompt]
		}})
	put(t, "prompts.jsonl", `{"content":"a"}`, `{"content":"b"}`, `{"content":"c"}`)
	line := []string{"data", "collect", "--prompts", "prompts.jsonl", "--output", "rows.jsonl",
		"--base-url", s.URL, "--model", "big"}
	run := func(calls, rows int, want string, extra ...string) {
		t.Helper()
		before := len(s.Calls())
		out, _ := must(t, append(slices.Clone(line), extra...)...)
		if n := len(s.Calls()) - before; n != calls || len(collected(t, "rows.jsonl")) != rows ||
			!strings.Contains(out, want) {
			t.Errorf("%d calls, %d rows, prints %q", n, len(collected(t, "rows.jsonl")), out)
		}
		drop(t, "rows.jsonl")
	}
	both := "the teacher has answered without text: rows 1 (content_filter), 2 (length): remove rows.jsonl and give --retry-empty to ask them again\n"
	run(3, 1, both)
	run(0, 1, both)
	run(2, 1, both, "--retry-empty") // once each, however often it is empty
	well["b"] = true
	run(2, 2, "the teacher has answered without text: row 2 (length): ", "--retry-empty")
	// the second answer is found behind the first
	run(0, 2, "the teacher has answered without text: row 2 (length): ")
	// two more of each: one of b has text
	run(2, 6, "", "--n", "3", "--retry-empty", "--limit", "2")
	well["all"] = true
	run(1, 3, "", "--retry-empty")

	well = map[string]bool{}
	line[5] = "none.jsonl"
	code, out, said := gad(line...)
	if want := "gad: collect: none.jsonl: there is no answer to write: the teacher has answered without text: rows 0 (), 1 (content_filter), 2 (length): --retry-empty asks them again\n"; code != exitFailed || out != "" || !strings.HasSuffix(said, strings.Replace(want, "()", "(no finish_reason)", 1)) {
		t.Errorf("exit status %d, prints %q, says %q", code, out, said)
	}
}

// TestCollectSeeds: with --seed, each request has a seed of its own, whatever its prompt: an
// endpoint draws the same random numbers for the same seed. A larger -n goes on with the seeds that
// it would have had from the start.
func TestCollectSeeds(t *testing.T) {
	t.Chdir(t.TempDir())
	s := teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			fmt.Fprintf(w, `{"choices":[{"finish_reason":"stop","message":{"content":"%s by %v"}}]}`, c.Prompt, c.Raw["seed"]) // n is not known
			return true
		}})
	put(t, "prompts.jsonl", `{"content":"a"}`, `{"content":"b"}`, `{"content":"a"}`)
	answers := func(out, seed, n string) []string {
		var got []string
		must(t, "data", "collect", "--prompts", "prompts.jsonl", "--output", out,
			"--base-url", s.URL, "--model", "big", "--seed", seed, "--n", n)
		for _, r := range collected(t, out) {
			got = append(got, r.Teacher)
		}
		drop(t, out) // and not its journal
		return got
	}
	one := answers("more.jsonl", "7", "1")
	more, whole := answers("more.jsonl", "7", "2"), answers("whole.jsonl", "7", "2")
	if !slices.Equal(more, whole) || !slices.Equal(one, []string{whole[0], whole[2], whole[4]}) {
		t.Errorf("with one answer %q, with one more %q, with two %q", one, more, whole)
	}
	seeds := map[string]bool{}
	for _, answer := range slices.Concat(whole, answers("other.jsonl", "8", "1")) {
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
	s := teacher(t, &endpointtest.Server{
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
	put(t, "prompts.jsonl", `{"content":[{"role":"user","content":"sum?"}],"tools":[{"type":"function","function":{"name":"sum"}}],"env":{"n": 1.50}}`,
		`{"content":[{"role":"user","content":"1+2"},{"role":"assistant","content":"","tool_calls":`+call+`},{"role":"tool","content":"3","tool_call_id":"c1"}],"tools":[{"type":"function","function":{"name":"sum"}}]}`)
	line := []string{"data", "collect", "--prompts", "prompts.jsonl", "--output", "rows.jsonl",
		"--base-url", s.URL, "--model", "big", "--concurrency", "1"}
	must(t, line...)
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
	drop(t, "rows.jsonl")
	must(t, append(line, "--keep-thinking")...)
	if got := read(); len(asked) != 2 || !strings.Contains(got, `"teacher_response":[{"role":"assistant","content":"3.","reasoning_content":"I see."}]`) || !strings.Contains(got, `"content":"","reasoning_content":"I add.","tool_calls":`) {
		t.Errorf("%d requests; with thoughts\n%s", len(asked), got)
	}
	must(t, "data", "convert", "--data", "rows.jsonl", "--output", "rows.parquet")
	if out, _ := must(t, "data", "inspect", "--data", "rows.parquet", "--row", "1"); !strings.Contains(out, `(thought) "I see."`) {
		t.Error(out)
	}
}

// TestCollectUncounted: --max-cost holds at an endpoint that counts no tokens, and the
// tally says how it was counted.
func TestCollectUncounted(t *testing.T) {
	t.Chdir(t.TempDir())
	s := teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			fmt.Fprintf(w, `{"choices":[{"finish_reason":"stop","message":{"content":"%s"}}]}`, strings.Repeat("long", 1000))
			return true
		}})
	promptFile(t, "prompts.jsonl", 10)
	put(t, "prices.json", `{"big": {"input": 0, "output": 1000}}`)
	line := []string{"data", "collect", "--prompts", "prompts.jsonl", "--output", "rows.arrow",
		"--base-url", s.URL, "--model", "big", "--prices", "prices.json", "--concurrency", "1"}
	code, _, said := gad(append(line, "--max-cost", "5.5")...)
	if want := "collect: the answers so far have cost $6.00, which is --max-cost 5.5: the same command with a higher one asks for the others\n"; code != exitFailed || !strings.HasSuffix(said, want) || len(s.Calls()) != 6 {
		t.Errorf("exit status %d, %q, %d calls", code, said, len(s.Calls()))
	}
	out, _ := must(t, line...)
	if want := "counted by the endpoint, and at 4 bytes per token where it counts nothing (10 of 10 requests): 22 tokens of prompts, 10k of answers, $10.00 (by this command: 8 tokens of prompts, 4000 of answers, $4.00)\n"; !strings.Contains(out, want) {
		t.Errorf("prints %s want %s", out, want)
	}
}

// TestCollectCached: tokens from a cache cost what the file says of them, or the full price.
func TestCollectCached(t *testing.T) {
	t.Chdir(t.TempDir())
	s := teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			fmt.Fprint(w, `{"choices":[{"finish_reason":"stop","message":{"content":"a"}}],"usage":{"prompt_tokens":1000,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":800}}}`)
			return true
		}})
	promptFile(t, "prompts.jsonl", 10)
	for prices, want := range map[string]string{
		`{"big": {"input": 1000, "output": 10000, "cached_input": 100}}`: "10k tokens of prompts (8000 from a cache), 100 of answers, $3.80\n", // 10 (0.2 + 0.08 + 0.1)
		`{"big": {"input": 1000, "output": 10000, "cached_input": 0}}`:   "10k tokens of prompts (8000 from a cache), 100 of answers, $3.00\n",
		`{"big": {"input": 1000, "output": 10000}}`:                      "10k tokens of prompts (8000 from a cache), 100 of answers, $11.00\n",
	} {
		put(t, "prices.json", prices)
		out, _ := must(t, "data", "collect", "--prompts", "prompts.jsonl", "--output", "rows.arrow",
			"--base-url", s.URL, "--model", "big", "--prices", "prices.json")
		if !strings.Contains(out, want) {
			t.Errorf("%s: prints %s", prices, out)
		}
		drop(t, "rows.arrow")
		drop(t, "rows.arrow.journal")
	}
}

// TestCollectOddAnswers: an answer as an array of parts, or with usage that is no usage,
// is paid for once.
func TestCollectOddAnswers(t *testing.T) {
	t.Chdir(t.TempDir())
	s := teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if c.Prompt == "a" {
				fmt.Fprint(w, `{"choices":[{"finish_reason":"stop","message":{"content":[{"type":"text","text":"in parts"}]}}],"usage":{"prompt_tokens":1.0,"completion_tokens":2.0}}`)
			} else {
				fmt.Fprint(w, `{"choices":[{"finish_reason":"model_length","message":{"content":"cut"}}],"usage":"many"}`)
			}
			return true
		}})
	put(t, "prompts.jsonl", `{"content":"a"}`, `{"content":"b"}`)
	out, _ := must(t, "data", "collect", "--prompts", "prompts.jsonl", "--output", "rows.parquet",
		"--base-url", s.URL, "--model", "big")
	rows := collected(t, "rows.parquet")
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
	s := teacher(t, &endpointtest.Server{})
	put(t, "prompts.jsonl", `{"content":"a"}`, `{"content":[{"role":"system","content":"s"},{"role":"user","content":"b"}]}`, `{"content":"a"}`)
	put(t, "rows.jsonl.journal", // of the first version that collected
		`{"key":"settings","record":{"model":"big","system":"be brief","temperature":0.5,"top_p":0.9,"max_tokens":100,"seed":3,"extra":{"a":[true],"b":1}}}`,
		`{"key":"fb21917996c5739c0b03252c98c35e82/0","record":{"choices":[{"content":"one","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4},"model":"big-2026","id":"chatcmpl-1"}}`,
		`{"key":"07b07d917e5d68d4461cda53e3d0bb43/0","record":{"choices":[{"content":"two","finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":4},"model":"big-2026","id":"chatcmpl-1","batch":true}}`,
		`{"key":"098e0433b72565d8d3fd8414f41e859f/0","record":{"choices":[{"content":"three","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4},"model":"big-2026","id":"chatcmpl-1"}}`)
	must(t, "data", "collect", "--prompts", "prompts.jsonl", "--output", "rows.jsonl", "--base-url",
		s.URL, "--model", "big",
		"--system", "be brief", "--temperature", "0.5", "--top-p", "0.9", "--max-tokens", "100", "--seed", "3", "--extra", `{"b":1,"a":[true]}`)
	rows := collected(t, "rows.jsonl")
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
	s := teacher(t, &endpointtest.Server{
		Answer: func(c endpointtest.Call, choice int) (string, string) {
			if strings.HasPrefix(c.Prompt, "refuse") {
				return "As an AI I cannot.", "stop"
			}
			return "to " + c.Prompt, "length"
		}})
	put(t, "prompts.jsonl", `{"instruction":"refuse 1","input":"","history":[]}`, `{"instruction":"refuse","input":"2","history":[]}`,
		`{"instruction":"refuse 3","history":[["q","a"]]}`, `{"instruction":"go"}`, `{"instruction":"go"}`, `{"instruction":"go"}`)
	out, said := must(t, "data", "collect", "--prompts", "prompts.jsonl", "--output", "rows.jsonl",
		"--base-url", s.URL, "--model", "big",
		"--extra", `{"max_completion_tokens": 20}`)
	for _, want := range []string{
		`prompts.jsonl: not read, although answers may speak of it: "history": put what matters into the prompt` + "\n",
		"estimate: 14 tokens of prompts, 120 of answers (at 4 bytes per token of a prompt, and the most that --extra max_completion_tokens allows, 20 tokens per answer)\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("says %s want %s", said, want)
		}
	}
	if checked, _ := must(t, "data", "validate", "--data", "rows.jsonl"); strings.Contains(checked,
		"not read") {
		t.Errorf("validate of what was collected prints %s", checked)
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
	t.Setenv("OPENAI_API_KEY", "sk-0123456789")
	s := teacher(t, &endpointtest.Server{
		Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			endpointtest.Fail(w, 402, "", "Insufficient Balance")
			return true
		}})
	put(t, "p.jsonl", `{"content":"a"}`, `{"content":"b"}`)
	const collect = "data collect --output x.arrow --model big "
	here := collect + "--prompts p.jsonl --base-url " + s.URL + " "
	plain := httptest.NewServer(nil)
	defer plain.Close()
	for line, want := range map[string]string{
		here: "gad: endpoint: " + strings.TrimSuffix(strings.TrimPrefix(s.URL, "http://"), "/v1") +
			": status 402: Insufficient Balance\n",
		collect + "--prompts p.jsonl --base-url " +
			strings.Replace(plain.URL, "http:", "https:", 1) + "/v1": "gad: endpoint: " +
			strings.TrimPrefix(plain.URL, "http://") +
			": speaks http and not https: check the base URL\n",
	} {
		code, out, said := gad(strings.Fields(line)...)
		if code != exitFailed || out != "" || !strings.HasSuffix(said, want) || len(s.Calls()) > 2 {
			t.Errorf("%s: exit status %d, prints %q, %d calls\n got %s want %s", line, code, out,
				len(s.Calls()), said, want)
		}
	}
}

// What an endpoint that was named wrongly answers: one line, and nothing stays.
func TestNewcomersEndpoints(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("OPENAI_API_KEY", "")
	put(t, "p.jsonl", `{"content":"a"}`)
	server := httptest.NewServer(nil) // has no /chat/completions
	defer server.Close()
	const collect = "data collect --prompts p.jsonl --output x.arrow --model big --base-url "
	here := collect + server.URL + "/v1 "

	// A server on this machine that wants a key, where none is sent unless asked for.
	guarded := teacher(t, &endpointtest.Server{Key: "sk-right"})
	code, _, said := gad(strings.Fields(collect + guarded.URL)...)
	if want := ": status 401 invalid_api_key: the endpoint wants a key: name its environment variable with --key-env, or its file with --key-file\n"; code != 1 || !strings.HasSuffix(said, want) {
		t.Errorf("exit status %d\n got %s want %s", code, said, want)
	}

	// An endpoint without batches.
	code, _, said = gad(strings.Fields(here + "--batch")...)
	if want := ": status 404: not found: check the base URL and the model, or leave out --batch, which not every endpoint has\n"; code != 1 || !strings.HasSuffix(said, want) {
		t.Errorf("exit status %d\n got %s want %s", code, said, want)
	}

	// A base URL without its /v1. Nothing stays of it.
	code, out, said := gad(strings.Fields(collect + server.URL)...)

	if want := ": status 404: not found: most base URLs end in /v1: try " + server.URL +
		"/v1\n"; code != 1 || out != "" || !strings.HasSuffix(said, want) {
		t.Errorf("exit status %d, prints %q\n got %s want %s", code, out, said, want)
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
	t.Setenv("TEACHER_KEY", "sk-wrong-0123456789")
	if err := os.WriteFile("p.jsonl", []byte(`{"content":"a"}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
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
		teacher(t, c.s)
		code, out, said := gad("data", "collect", "--prompts", "p.jsonl", "--output", "x.arrow",
			"--model", "big", "--base-url", c.s.URL, "--key-env", "TEACHER_KEY")
		host := strings.TrimSuffix(strings.TrimPrefix(c.s.URL, "http://"), "/v1")
		if want := "gad: endpoint: " + host + ": " + c.want + "\n"; code != 1 || out != "" ||
			!strings.HasSuffix(said, want) || strings.Contains(said, "sk-") {
			t.Errorf("exit status %d, prints %q\n got %s want %s", code, out, said, want)
		}
		if names, err := filepath.Glob("x*"); err != nil || len(names) > 0 {
			t.Errorf("made %v", names)
		}
	}
}

// What --partial leaves out is said, with the way to get it.
func TestPartialSaysWhatIsMissing(t *testing.T) {
	t.Chdir(t.TempDir())
	s := teacher(t, &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if c.Prompt == "b" {
				endpointtest.Fail(w, 400, "", "not this")
				return true
			}
			return false
		}})
	put(t, "p.jsonl", `{"content":"a"}`, `{"content":"b"}`, `{"content":"c"}`)
	line := strings.Fields(
		"data collect --prompts p.jsonl --model big --output x.jsonl --partial --base-url " + s.URL)
	code, out, _ := gad(line...)
	if want := "x.jsonl: 2 answers to 3 prompts\n1 of 3 rows have no answer: remove x.jsonl, and the same command asks again\n"; code != exitDone || !strings.HasPrefix(out, want) {
		t.Errorf("exit status %d, prints %s", code, out)
	}
	s.Misbehave = nil
	drop(t, "x.jsonl")
	if code, out, _ := gad(line...); code != exitDone ||
		!strings.HasPrefix(out, "x.jsonl: 3 answers to 3 prompts\ncounted") {
		t.Errorf("again: exit status %d, prints %s", code, out)
	}
}

// The estimate says how long the limits that are given make it last.
func TestEstimateOfTime(t *testing.T) {
	t.Chdir(t.TempDir())
	lines := make([]string, 40)
	for i := range lines {
		lines[i] = `{"content":"` + strings.Repeat("a", 396) + `"}` // 100 tokens with the role
	}
	put(t, "p.jsonl", lines...)
	for flags, want := range map[string]string{
		"":                                 "",
		"--rpm 100":                        "",
		"--rpm 10":                         "; about 4 min by --rpm",
		"--input-tpm 1000":                 "; about 4 min by --input-tpm",
		"--output-tpm 1000":                "; about 2 min by --output-tpm",
		"--tpm 1000":                       "; about 6 min by --tpm",
		"--tpm 1000 --rpm 0.25":            "; about 2.7 h by --rpm",
		"--tpm 1000 --batch":               "",
		"--tpm 3000 --output-tpm 100":      "; about 20 min by --output-tpm",
		"--tpm 1000000 --output-tpm 10000": "",
	} {
		out, _ := must(t, strings.Fields("data collect --prompts p.jsonl --base-url http://127.0.0.1:9/v1 --model m --output x.jsonl --max-tokens 50 --dry-run "+flags)...)
		if want := "m: 40 answers to 40 rows; estimate: 4000 tokens of prompts, 2000 of answers (at 4 bytes per token of a prompt, and the most that --max-tokens allows, 50 tokens per answer)" + want + "\n"; out != want {
			t.Errorf("%s: prints %s want %s", flags, out, want)
		}
	}
}
