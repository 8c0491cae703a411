package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/endpoint/endpointtest"
)

// Mistakes with a judge: gad eval --judge and --answers.
func TestMistakesOfJudge(t *testing.T) {
	_, work := linked(t, "student")
	write := func(name string, lines ...string) {
		if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const (
		a0 = `{"row":0,"sample":0,"content":[{"role":"user","content":"Add 1+1"}],"teacher_response":"2","response":"3"}`
		a1 = `{"row":1,"sample":0,"content":[{"role":"user","content":"Add 1+2"}],"teacher_response":"3","response":"3"}`
	)
	write("rows.jsonl", `{"content":"Add 1+1","teacher_response":"2"}`)
	write("mute.jsonl", `{"content":"Add 1+1","response":"2"}`)
	write("a.jsonl", a0, a1)
	write("short.jsonl", a0)
	write("twice.jsonl", a0, strings.Replace(a0, `"sample":0`, `"sample":1`, 1))
	write("other.jsonl", strings.Replace(a0, "Add 1+1", "Add 7+7", 1), a1)
	write("taught.jsonl", strings.Replace(a0, `"teacher_response":"2"`, `"teacher_response":"two"`, 1), a1)
	write("ids.jsonl", `{"row":0,"prompt_ids":[1,2],"response":"3"}`)
	write("tokens.jsonl", `{"prompt_ids":[1,2],"teacher_response":"2"}`)
	write("broken.jsonl", a0, `{"row":1,`)
	write("empty.jsonl", "")
	write("diary.txt", "Dear diary")
	write("prices.json", `{"other": {"input": 1, "output": 2}}`)
	write("damaged.jsonl", `{"key":"1","rec`, `{"key":"3","rec`)
	refusing, err := endpointtest.Start(&endpointtest.Server{Key: "another", Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
		if c.Model == "none" {
			endpointtest.Fail(w, 404, "model_not_found", "no such model")
		} else {
			endpointtest.Fail(w, 400, "invalid_request", "temperature is not for this model\x1b[2J")
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

	const (
		by = " --judge http://127.0.0.1:1/v1 --judge-model m"
		ev = "eval --model student --data rows.jsonl"
		an = "eval --answers a.jsonl"
	)
	wants := an + " --judge " + refusing.URL + " --judge-journal " + filepath.Join(t.TempDir(), "j.jsonl")
	mistaken(t, []string{work}, []mistake{
		{ev + " --judge-model m", 2, `eval: --judge-model: needs --judge URL, the endpoint of a judge`},
		{an, 2, `eval: --answers: needs --judge URL, the endpoint of a judge`},
		{an + " --judge http://127.0.0.1:1/v1", 2, `eval: --judge-model is missing: see gad eval --help`},
		{an + by + " --model student", 2, `eval: --model: not with --answers, which has prompts and answers: leave it out`},
		{an + by + " --data rows.jsonl", 2, `eval: --data: not with --answers, which has prompts and answers: leave it out`},
		{an + by + " --disc-steps 0", 2, `eval: --disc-steps: not with --answers, which has prompts and answers: leave it out`},
		{an + by + " --answers a.jsonl", 2, `eval: --answers a.jsonl: given twice: name each file once`},
		{an + by + " more", 2, `eval: unexpected argument "more": this command takes flags only`},
		{an + by + " --limit -1", 2, `eval: --limit -1: must be at least 0`},
		{an + by + " --dry-run --output out.jsonl", 2, `eval: --dry-run writes nothing: leave --output out`},
		{ev + by + " --judge-mode best", 2, `eval: --judge-mode "best": must be score, pair or both`},
		{ev + by + " --judge-against second", 2, `eval: --judge-against "second": must be teacher or first`},
		{ev + by + " --judge-mode score --judge-against first", 2, `eval: --judge-against is for pairs: leave it out, or give --judge-mode pair or both`},
		{ev + by + " --judge-mode pair --judge-teacher", 2, `eval: --judge-teacher is for grades: leave it out, or give --judge-mode score or both`},
		{ev + by + " --judge-against first", 2, `eval: --judge-against first: needs two students or more: name another one`},
		{an + by + " --judge-against first", 2, `eval: --judge-against first: needs two students or more: name another one`},
		{ev + by + " --judge-max-tokens 0", 2, `eval: --judge-max-tokens 0: must be 1 to 1048576`},
		{ev + by + " --judge-concurrency 5000", 2, `eval: --judge-concurrency 5000: must be 1 to 4096`},
		{ev + by + " --judge-temperature 3", 2, `eval: --judge-temperature 3: must be from 0 to 2`},
		{ev + by + " --judge-extra [1]", 2, `eval: --judge-extra: must be one JSON object, such as {"max_completion_tokens": 4096, "max_tokens": null}`},
		{ev + by + ` --judge-extra {"stream":true}`, 2, `eval: --judge-extra: "stream" cannot be set here: gad sets it`},
		{ev + by + " --judge-rpm -1", 2, `eval: --judge-rpm -1: must be from 0 to 1e+12`},
		{ev + by + " --judge-tpm NaN", 2, `eval: --judge-tpm NaN: must be from 0 to 1e+12`},
		{ev + " --judge ftp://host --judge-model m --judge-key-env=", 2, `endpoint: base URL "ftp://host": must begin with https:// or http://`},
		{ev + " --judge https://example.com/v1 --judge-model m", 2, `endpoint: the environment variable OPENAI_API_KEY is not set: export it with the key of the endpoint`},
		{ev + " --judge http://example.com/v1 --judge-model m --judge-key-env=", 2, `endpoint: base URL "http://example.com/v1": http:// to another machine sends key and prompts as plain text: use https://, or allow it with --insecure-http`},
		{ev + by + " --judge-key-env NO_KEY", 2, `endpoint: the environment variable NO_KEY is not set: export it with the key of the endpoint`},
		{ev + by + " --judge-key-env sk-12345", 2, `endpoint: what is given as the key's variable is not the name of an environment variable, such as OPENAI_API_KEY: give the name, never the key`},
		{ev + by + " --prices nowhere.json", 3, `endpoint: price file nowhere.json: does not exist: write one such as {"m": {"input": 2.5, "output": 10}}, in USD per million tokens`},
		{ev + by + " --prices prices.json", 3, `endpoint: price file prices.json: has no model "m", only other`},
		{ev + " --prices prices.json", 2, `eval: --prices: needs --judge URL, the endpoint of a judge`},
		{ev + by + " --judge-journal no/j.jsonl", 2, `eval: no/j.jsonl: there is no folder no: create it or give another --judge-journal`},
		{ev + by + " --judge-journal ./new.jsonl --output new.jsonl", 2, `eval: new.jsonl: --output and --judge-journal are the same file: give two`},
		{"eval --model student --data tokens.jsonl" + by, 3, `judge: row 0: has no text of the prompt, only token ids: a judge reads text: give data with a content column`},
		{ev + by + " --judge-journal diary.txt", 2, `eval: diary.txt: is not a judgment journal: give another --judge-journal`},
		{an + by + " --judge-journal a.jsonl", 2, `eval: a.jsonl: is not a judgment journal: give another --judge-journal`},
		{an + by + " --judge-journal student", 2, `eval: student: is not a judgment journal: give another --judge-journal`},
		{an + by + " --judge-journal damaged.jsonl", 3, `endpoint: journal damaged.jsonl: has no record of a journal: give another output, or remove the file`},
		{an + by + " --output a.jsonl", 2, `eval: a.jsonl: exists: nothing is overwritten: remove it or give another --output`},
		{"eval --model student --data mute.jsonl" + by, 3, `judge: row 0: has no teacher's answer: give --judge-mode score, or --judge-against first`},
		{"eval --answers mute.jsonl" + by, 3, `judge: row 0: has no teacher's answer: give --judge-mode score, or --judge-against first`},
		{"eval --answers nowhere.jsonl" + by, 3, `judge: nowhere.jsonl: does not exist: give a file that gad generate --data wrote`},
		{"eval --answers student" + by, 3, `judge: student: is not a file: give one that gad generate --data wrote`},
		{"eval --answers empty.jsonl" + by, 3, `judge: empty.jsonl: has no answers: give a file that gad generate --data wrote`},
		{"eval --answers rows.jsonl" + by, 3, `judge: rows.jsonl: line 1: has no response: give a file of answers, as gad generate --data writes it`},
		{"eval --answers ids.jsonl" + by, 3, `judge: ids.jsonl: line 1: has no conversation: a line has content, teacher_response and response, as gad generate --data writes it`},
		{"eval --answers broken.jsonl" + by, 3, `judge: broken.jsonl: line 2: is no JSON object of an answer: give a file that gad generate --data wrote`},
		{"eval --answers twice.jsonl" + by, 3, `judge: twice.jsonl: line 2: row 0 has an answer already, in line 1: one answer to a prompt is judged: make the file with -n 1`},
		{an + " --answers short.jsonl" + by, 3, `judge: row 1: a.jsonl answers it, short.jsonl does not: give answers to the same rows, or --limit`},
		{an + " --answers other.jsonl" + by, 3, `judge: row 0: a.jsonl and other.jsonl have other prompts: give answers to the same data`},
		{an + " --answers taught.jsonl" + by, 3, `judge: row 0: a.jsonl and taught.jsonl have other teacher's answers: give answers to the same data`},
	})
	// What an endpoint says: the estimate is printed before.
	for _, c := range []struct{ line, want string }{
		{wants + " --judge-model m", `endpoint: ` + host + `: status 401 invalid_api_key: the endpoint wants a key: name its environment variable with --judge-key-env`},
		{wants + " --judge-model m --judge-key-env WRONG_KEY", `endpoint: ` + host + `: status 401 invalid_api_key: the key is not accepted: check the key and what it may use`},
		{wants + " --judge-model none --judge-key-env RIGHT_KEY", `endpoint: ` + host + `: status 404 model_not_found: no such model: check the base URL and the model`},
		{wants + " --judge-model m --judge-key-env RIGHT_KEY", `judge: no request of 2 has a reply: endpoint: ` + host + `: status 400 invalid_request: temperature is not for this model [2J`},
		{strings.Replace(wants, refusing.URL, "http://"+nobody+"/v1", 1) + " --judge-model m", `judge: ` + nobody + `: cannot connect: connection refused: check the address, and that the judge runs`},
	} {
		code, out, said := gad(strings.Fields(c.line)...)
		lines := strings.Split(strings.TrimSuffix(said, "\n"), "\n")
		if code != exitFailed || out != "" || len(lines) != 2 || !strings.Contains(lines[0], ": 8 requests at most") || lines[1] != "gad: "+c.want {
			t.Errorf("%s: exit status %d, prints %q\n got %s\nwant gad: %s", c.line, code, out, said, c.want)
		}
	}
}
