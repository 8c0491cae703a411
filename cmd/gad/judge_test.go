package main

import (
	"strings"
	"testing"

	"gad/apps/collect/collecttest"
	"gad/internal/endpoint/endpointtest"
)

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
