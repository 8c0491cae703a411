package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"gad/internal/endpoint/endpointtest"
)

// Mistakes of whoever asks a teacher or a judge: what is refused before anything is asked,
// and what an endpoint refuses for all.
func TestMistakesOfAsking(t *testing.T) {
	work := t.TempDir()
	t.Chdir(work)
	t.Setenv("OPENAI_API_KEY", "sk-0123456789")
	s := teacher(t, &endpointtest.Server{Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
		endpointtest.Fail(w, 402, "", "Insufficient Balance")
		return true
	}})
	put(t, "p.jsonl", `{"content":"a"}`, `{"content":"b"}`)
	put(t, "blank.jsonl", `{"content":""}`, `{"content":" "}`)
	put(t, "half.json", `{"big": {"input": 2.5}}`)
	put(t, "cached.json", `{"big": {"input": 2.5, "output": 10, "cached_input": -1}}`)
	put(t, "a.jsonl", `{"row":0,"content":"Add 1+1","teacher_response":"2","response":"3"}`)
	// One line of somebody else's, without a line end: it is not taken for a journal that
	// a kill has cut short.
	for _, name := range []string{"mine.arrow.journal", "diary.txt"} {
		if err := os.WriteFile(name, []byte("Dear diary"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const collect = "data collect --output x.arrow --model big "
	here := collect + "--prompts p.jsonl --base-url " + s.URL + " "
	mistaken(t, []string{work}, []mistake{
		{here + "--input-tpm 0", 2, `data collect: --input-tpm 0: must be above 0`},
		{here + "--output-tpm -1", 2, `data collect: --output-tpm -1: must be above 0`},
		{here + "--output-tpm many", 2, `data collect: --output-tpm "many": must be a number: see gad data collect --help`},
		{here + "--prices half.json", 3, `endpoint: price file half.json: model "big": needs input and output: write 0 for what costs nothing`},
		{here + "--prices cached.json", 3, `endpoint: price file cached.json: model "big": prices must not be negative`},
		{collect + "--prompts p.jsonl --base-url me:sk-1@example.com/v1", 2, `endpoint: the base URL has an @ in it: give one such as https://api.openai.com/v1, and the key in the environment`},
		{collect + "--prompts blank.jsonl --base-url " + s.URL, 3, `data: blank.jsonl: no row has a prompt (no user turn, or a blank one): name the column of the prompts with --content-key`},
		{strings.Replace(here, "x.arrow", "mine.arrow", 1), 3, `endpoint: journal mine.arrow.journal: has no record of a journal: give another output, or remove the file`},
		{collect + "--base-url " + s.URL + " --prompts none.jsonl", 3, `data: none.jsonl: does not exist: give a data file or a folder`},
		{collect + "--base-url " + s.URL + " --prompts none/none.jsonl", 3, `data: none/none.jsonl: does not exist: give a data file or a folder`},
		{"eval --answers none.jsonl --judge " + s.URL + " --judge-model m", 3, `judge: none.jsonl: does not exist: give a file that gad generate --data wrote`},
		{"eval --answers a.jsonl --judge " + s.URL + " --judge-model m --judge-journal diary.txt", 2, `eval: diary.txt: is not a judgment journal: give another --judge-journal`},
	})
	if n := len(s.Calls()); n > 0 {
		t.Errorf("%d calls", n)
	}
	plain := httptest.NewServer(nil)
	defer plain.Close()
	for line, want := range map[string]string{
		here: "gad: endpoint: " + strings.TrimSuffix(strings.TrimPrefix(s.URL, "http://"), "/v1") + ": status 402: Insufficient Balance\n",
		collect + "--prompts p.jsonl --base-url " + strings.Replace(plain.URL, "http:", "https:", 1) + "/v1": "gad: endpoint: " + strings.TrimPrefix(plain.URL, "http://") + ": speaks http and not https: check the base URL\n",
	} {
		code, out, said := gad(strings.Fields(line)...)
		if code != exitFailed || out != "" || !strings.HasSuffix(said, want) || len(s.Calls()) > 2 {
			t.Errorf("%s: exit status %d, prints %q, %d calls\n got %s want %s", line, code, out, len(s.Calls()), said, want)
		}
	}
}
