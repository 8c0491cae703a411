package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/endpoint/endpointtest"
)

// Mistakes with gad data collect. No key is shown, nothing is asked, and nothing is left.
func TestMistakesOfCollect(t *testing.T) {
	work := t.TempDir()
	t.Chdir(work)
	t.Setenv("OPENAI_API_KEY", "")
	t.Setenv("BAD_KEY", "sk-1\nsk-2")
	s := teacher(t, &endpointtest.Server{Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
		endpointtest.Fail(w, 500, "", "nobody should ask")
		return true
	}})
	for name, content := range map[string]string{
		"p.jsonl":     `{"content":"a"}` + "\n",
		"ids.jsonl":   `{"prompt_ids":[1,2]}` + "\n",
		"empty.jsonl": "",
		"there.arrow": "mine",
		"open.key":    "sk-1",
		"prices.json": `{"small": {"input": 1, "output": 2}}`,
		"euro.json":   `{"big": {"prompt": 1}}`,
		"minus.json":  `{"big": {"input": -1, "output": 2}}`,
		// a journal of other settings
		"old.arrow.journal":   `{"key":"settings","record":{"model":"big","system":"","temperature":0.5,"top_p":null,"max_tokens":10,"seed":null}}` + "\n",
		"batch.arrow.journal": `{"key":"batch/0/file","record":{"file":"file-1","requests":1}}` + "\n",
		"torn.arrow.journal":  "{\"key\":\"x\"\n{}\n",
	} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(work, "open.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	const collect = "data collect --prompts p.jsonl --output x.arrow --model big "
	here := collect + "--base-url " + s.URL + " "
	mistaken(t, []string{work}, []mistake{
		{"collect", 2, `unknown command "collect": did you mean gad data collect?`},
		{"data collect", 2, `data collect: --prompts is missing: see gad data collect --help`},
		{"data collect --prompts p.jsonl", 2, `data collect: --output is missing: see gad data collect --help`},
		{"data collect --prompts p.jsonl --output x.arrow", 2, `data collect: --base-url is missing: see gad data collect --help`},
		{"data collect --prompts p.jsonl --output x.arrow --base-url https://a/v1", 2, `data collect: --model is missing: see gad data collect --help`},
		{"data collect --data p.jsonl --output x.arrow", 2, `data collect: unknown flag --data: give the prompts with --prompts`},
		{"data collect --prompts p.jsonl --output x.txt --model big --base-url https://a/v1", 2, `data: x.txt: suffix ".txt": names no format: use .arrow, .arrows, .stream, .parquet or .jsonl`},
		{collect + "--base-url a/v1", 2, `endpoint: base URL "a/v1": must begin with https:// or http://`},
		{collect + "--base-url a/v1 --key-env=", 2, `endpoint: base URL "a/v1": must begin with https:// or http://`},
		{collect + "--base-url http://a/v1 --key-env=", 2, `endpoint: base URL "http://a/v1": http:// to another machine sends key and prompts as plain text: use https://, or allow it with --insecure-http`},
		{collect + "--base-url https://me:sk-1@a/v1 --key-env=", 2, `endpoint: base URL of host "a" has a user or password in it: give the key in the environment`},
		{here + "--key-env sk-1", 2, `endpoint: what is given as the key's variable is not the name of an environment variable, such as OPENAI_API_KEY: give the name, never the key`},
		{here + "--key-env BAD_KEY", 2, `endpoint: the environment variable BAD_KEY has spaces, line ends or other characters that no key has`},
		{here + "--key-env NONE --key-file none", 2, `data collect: --key-env and --key-file: give one of them`},
		{here + "--key-file none", 2, `endpoint: key file none: does not exist`},
		{here + "--key-file open.key", 2, `endpoint: key file open.key: mode 0644: others can read it: chmod 600 open.key`},
		{here + "--concurrency 0", 2, `data collect: --concurrency 0: must be at least 1`},
		{here + "--concurrency 5000", 2, `endpoint: concurrency 5000: must be 1 to 4096`},
		{here + "--rpm 0", 2, `data collect: --rpm 0: must be above 0`},
		{here + "--tpm -5", 2, `data collect: --tpm -5: must be above 0`},
		{here + "--timeout 0s", 2, `data collect: --timeout 0s: must be above 0`},
		{here + "--retries -1", 2, `data collect: --retries -1: must be at least 0`},
		{here + "-n 0", 2, `data collect: -n 0: must be 1 to 1024`},
		{here + "--max-tokens 0", 2, `data collect: --max-tokens 0: must be at least 1`},
		{here + "--temperature -1", 2, `data collect: --temperature -1: must be from 0 to 100`},
		{here + "--top-p 2", 2, `data collect: --top-p 2: must be from 0 to 1`},
		{here + "--limit -1", 2, `data collect: --limit -1: must be at least 0`},
		{here + "--extra {", 2, `data collect: --extra: must be one JSON object, such as {"max_completion_tokens": 2048}`},
		{here + `--extra {"n":2}`, 2, `data collect: --extra: "n" cannot be set here: gad sets it`},
		{here + `--extra {"max_tokens":9} --max-tokens 4`, 2, `data collect: --extra: "max_tokens" and --max-tokens: give one of them`},
		{here + "--system @open.key", 2, `data collect: --system "@open.key": would be sent as it is: give the text, --system "$(cat open.key)"`},
		{here + "--poll 1s", 2, `data collect: --poll: is for --batch: give that, or leave it out`},
		{here + "--batch --poll 1ms", 2, `data collect: --poll 1ms: must be at least 10ms`},
		{strings.Replace(here, "x.arrow", "batch.arrow", 1), 2, `data collect: batch.arrow.journal: batches under way: 1: give --batch, which waits for their answers, as they are paid for`},
		{here + "--max-cost 5", 2, `data collect: --max-cost: needs --prices FILE`},
		{here + "--prices prices.json --max-cost 0", 2, `data collect: --max-cost 0: must be above 0`},
		{here + "--prices none.json", 3, `endpoint: price file none.json: does not exist: write one such as {"big": {"input": 2.5, "output": 10}}, in USD per million tokens`},
		{here + "--prices prices.json", 3, `endpoint: price file prices.json: has no model "big", only small`},
		{here + "--prices euro.json", 3, `endpoint: price file euro.json: json: unknown field "prompt": write {"MODEL": {"input": 2.5, "output": 10}}, in USD per million tokens`},
		{here + "--prices minus.json", 3, `endpoint: price file minus.json: model "big": prices must not be negative`},
		{strings.Replace(here, "x.arrow", "there.arrow", 1), 2, `data collect: there.arrow: exists: nothing is overwritten: remove it or give another --output`},
		{strings.Replace(here, "x.arrow", "none/x.arrow", 1), 2, `data collect: none/x.arrow: there is no folder none: create it or give another --output`},
		{strings.Replace(here, "p.jsonl", "none.jsonl", 1), 3, `data: none.jsonl: does not exist: give a data file or a folder`},
		{strings.Replace(here, "p.jsonl", "ids.jsonl", 1), 3, `data: row 0: has no conversation that a teacher could be asked: give one as text`},
		{strings.Replace(here, "x.arrow", "old.arrow", 1), 2, `collect: old.arrow.journal: its answers are of other settings: --temperature was 0.5, now it is not given: give the same, or another --output`},
		{strings.Replace(here, "x.arrow", "old.arrow", 1) + "--temperature 0.5 --max-tokens 20", 2, `collect: old.arrow.journal: its answers are of other settings: --max-tokens was 10, now it is 20: give the same, or another --output`},
		{strings.Replace(here, "x.arrow", "torn.arrow", 1), 3, `endpoint: journal torn.arrow.journal: has no record of a journal: give another output, or remove the file`},
	})
	if n := len(s.Calls()); n > 0 {
		t.Errorf("%d calls", n)
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
		{&endpointtest.Server{Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			endpointtest.Fail(w, 404, "model_not_found", "no big here")
			return true
		}}, "status 404 model_not_found: no big here: check the base URL and the model"},
		{&endpointtest.Server{Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "https://example.com/v1/chat/completions", http.StatusTemporaryRedirect)
			return true
		}}, "status 307: the endpoint redirects elsewhere, which is not followed: give the URL that it redirects to as base URL"},
	} {
		teacher(t, c.s)
		code, out, said := gad("data", "collect", "--prompts", "p.jsonl", "--output", "x.arrow", "--model", "big", "--base-url", c.s.URL, "--key-env", "TEACHER_KEY")
		host := strings.TrimSuffix(strings.TrimPrefix(c.s.URL, "http://"), "/v1")
		if want := "gad: endpoint: " + host + ": " + c.want + "\n"; code != 1 || out != "" || !strings.HasSuffix(said, want) || strings.Contains(said, "sk-") {
			t.Errorf("exit status %d, prints %q\n got %s want %s", code, out, said, want)
		}
		if names, err := filepath.Glob("x*"); err != nil || len(names) > 0 {
			t.Errorf("made %v", names)
		}
	}
}
