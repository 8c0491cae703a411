package main

import (
	"encoding/json"
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

	"gad/apps/collect/collecttest"
	"gad/apps/judge"
	"gad/apps/judge/judgetest"
	"gad/internal/endpoint/endpointtest"
)

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
	f := ready(t)
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
	sft, student := f.path("sft", "global_step_60", "actor"), f.path("student")
	if err := os.WriteFile("prices.json", []byte(`{"m": {"input": 100, "output": 1000}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	about := []string{"--judge", server.URL, "--judge-model", "m", "--judge-key-env", "JUDGE_KEY",
		"--prices", "prices.json"}
	args := append([]string{"eval", "--data", f.path("test.jsonl"), "--max-response-length", "14",
		"--disc-steps", "0", "--model", student, "--model", sft, "--output", "rows.jsonl"},
		about...)
	dry, _ := must(t, append(
		slices.DeleteFunc(slices.Clone(args),
			func(a string) bool { return a == "--output" || a == "rows.jsonl" }), "--dry-run")...)
	if want := "judge m at " + strings.TrimSuffix(strings.TrimPrefix(server.URL, "http://"), "/v1") + ": 70 requests at most, less those in judgments.jsonl, plus one more for each verdict that cannot be read; estimate: "; !strings.Contains(dry, want) || !strings.Contains(dry, " from it, $") || len(server.Calls()) != 0 {
		t.Errorf("--dry-run prints\n%s", dry)
	}
	if _, err := os.Stat("judgments.jsonl"); err == nil {
		t.Error("--dry-run makes a journal")
	}
	table, said := must(t, args...)
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
	for _, line := range strings.Split(strings.TrimSpace(readFile(t, "rows.jsonl")), "\n") {
		var r row
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Judge == nil ||
			r.Judge.Grade == nil {
			t.Fatalf("%v: %s", err, line)
		}
		if r.Model == sft {
			grades += *r.Judge.Grade / 10
		}
	}
	printed, _ := must(t, append(slices.Clone(args[:len(args)-len(about)-2]),
		append(about, "--json")...)...)
	j := judgetest.ReadOutput(t, printed).Judge
	if j.Tally.Asked != 0 || len(server.Calls()) != calls || math.Abs(judgetest.Value(j.Students[1].Grade)-grades) > 1e-9 || j.Students[1].Name != sft || !strings.Contains(printed, `"rouge_l":`) || !strings.Contains(printed, `"cost_usd":0,`) || len(j.Differences) != 1 {
		t.Errorf("the second time: %s", printed)
	}
	// One model; and its answers from the file.
	printed, _ = must(t, append(
		[]string{"eval", "--data", f.path("test.jsonl"), "--max-response-length", "14",
			"--disc-steps", "0", "--model", sft, "--json"}, about...)...)
	one := judgetest.ReadOutput(t, printed).Judge.Students[0]
	if !strings.Contains(printed, `{"rows":10,`) || judgetest.Value(one.Score) != judgetest.Value(j.Students[1].Score) || judgetest.Value(one.LCWin) != judgetest.Value(j.Students[1].LCWin) {
		t.Errorf("one model: %s", printed)
	}
	printed, _ = must(t, append([]string{"eval", "--answers", "rows.jsonl", "--json"}, about...)...)
	if given := judgetest.ReadOutput(t, printed).Judge; given.Tally.Asked != 0 ||
		judgetest.Value(given.Students[1].Score) != judgetest.Value(one.Score) ||
		judgetest.Value(given.Students[1].PairWin) != judgetest.Value(one.PairWin) || len(server.Calls()) != calls {
		t.Errorf("answers from the file: %s", printed)
	}
	must(t, "generate", "--model", sft, "--data", f.path("test.jsonl"), "--output", "answers.jsonl",
		"--max-new-tokens", "14", "--temperature", "0")
	printed, _ = must(t, append(
		[]string{"eval", "--answers", "answers.jsonl", "--json", "--judge-mode", "pair"},
		about...)...)
	if given := judgetest.ReadOutput(t, printed).Judge; given.Tally.Asked != 0 ||
		judgetest.Value(given.Students[0].PairWin) != judgetest.Value(one.PairWin) || given.Students[0].Score != nil {
		t.Errorf("answers of gad generate: %s", printed)
	}
	// A line of the journal that is damaged is asked again, and only that.
	lost := strings.Split(readFile(t, "judgments.jsonl"), "\n")
	lost[3] = lost[3][:len(lost[3])/2]
	if err := os.WriteFile("judgments.jsonl", []byte(strings.Join(lost, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	printed, said = must(t, append([]string{"eval", "--answers", "rows.jsonl", "--json"},
		about...)...)
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
	collecttest.Put(t, "a.jsonl",
		`{"row":0,"sample":0,"content":[{"role":"user","content":"Add 1+1"}],"teacher_response":"2","response":"3"}`,
		`{"row":1,"sample":0,"content":[{"role":"user","content":"Add 1+2"}],"teacher_response":"3","response":"3"}`)
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
	t.Setenv("NO_KEY", "")
	t.Setenv("OPENAI_API_KEY", "")

	wants := "eval --answers a.jsonl --judge " + refusing.URL + " --judge-journal " +
		filepath.Join(t.TempDir(), "j.jsonl")
	for _, c := range []struct{ line, want string }{
		{wants + " --judge-model m", `endpoint: ` + host + `: status 401 invalid_api_key: the endpoint wants a key: name its environment variable with --judge-key-env`},
		{wants + " --judge-model m --judge-key-env WRONG_KEY", `endpoint: ` + host + `: status 401 invalid_api_key: the key is not accepted: check the key and what it may use`},
		{wants + " --judge-model none --judge-key-env RIGHT_KEY", `endpoint: ` + host + `: status 404 model_not_found: no such model: check the base URL and the model`},
		{wants + " --judge-model m --judge-key-env RIGHT_KEY", `judge: no request of 2 has a reply: endpoint: ` + host + `: status 400 invalid_request: temperature is not for this model [2J`},
		{strings.Replace(wants, refusing.URL, "http://"+nobody+"/v1", 1) + " --judge-model m", `judge: ` + nobody + `: cannot connect: connection refused: check the address, and that the judge runs`},
	} {
		code, out, said := gad(strings.Fields(c.line)...)
		lines := strings.Split(strings.TrimSuffix(said, "\n"), "\n")
		if code != exitFailed || out != "" || len(lines) != 2 ||
			!strings.Contains(lines[0], ": 8 requests at most") || lines[1] != "gad: "+c.want {
			t.Errorf("%s: exit status %d, prints %q\n got %s\nwant gad: %s", c.line, code, out,
				said, c.want)
		}
	}
}

// A judge that never gives a verdict ends the command with 1 and says where the replies and
// the answers are.
func TestMistakenJudge(t *testing.T) {
	t.Chdir(t.TempDir())
	// not for this machine's servers, unless it is named
	t.Setenv("OPENAI_API_KEY", "sk-for-another")
	s := collecttest.Teacher(t, &endpointtest.Server{
		Answer: func(endpointtest.Call, int) (string, string) { return "I like both.", "stop" }})
	collecttest.Put(t, "a.jsonl", `{"row":0,"sample":0,"content":"Add 1+1","teacher_response":"2","response":"3"}`)
	const why = "gad: judge: no verdict can be read, of 3: the reply has no JSON object with reference and answer: read the replies in judgments.jsonl, then try another judge, a larger --judge-max-tokens or --judge-extra\n"
	line := "eval --answers a.jsonl --judge-model m --judge " + s.URL
	for range 2 { // the second time nothing is asked
		if code, out, said := gad(strings.Fields(line)...); code != exitFailed || out != "" ||
			!strings.HasSuffix(said, why) || len(s.Calls()) != 7 {
			t.Errorf("exit status %d after %d calls, prints %q, %s", code, len(s.Calls()), out,
				said)
		}
	}
	for _, c := range s.Calls() {
		if key := c.Header.Get("Authorization"); key != "" {
			t.Fatalf("sends %s", key)
		}
	}
}
