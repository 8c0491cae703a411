package main

import (
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"gad/internal/endpoint/endpointtest"
)

// What a newcomer got wrong with the commands that connect: one line, no words of Go's
// packages, nothing written.
func TestMistakesOfANewcomer(t *testing.T) {
	f, work := linked(t, "student")
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"rows.jsonl": string(raw), "p.jsonl": `{"content":"a"}` + "\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"prices", "folder.arrow.journal"} {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(nil) // has no /chat/completions
	defer server.Close()
	for _, name := range []string{"OPENAI_API_KEY", "GAD_API_KEY"} {
		t.Setenv(name, "")
	}
	const (
		collect = "data collect --prompts p.jsonl --output x.arrow --model big --base-url "
		ev      = "eval --model student --data rows.jsonl --judge-model m --judge "
	)
	here := collect + server.URL + "/v1 "
	mistaken(t, []string{work}, []mistake{
		{collect + "127.0.0.1:8000/v1", 2, `endpoint: the base URL cannot be read: give one such as https://api.openai.com/v1`},
		{collect + "localhost:8000/v1", 2, `endpoint: base URL "localhost:8000/v1": must begin with https:// or http://`},
		{collect + "http://example.com/v1", 2, `endpoint: base URL "http://example.com/v1": http:// to another machine sends key and prompts as plain text: use https://, or allow it with --insecure-http`},
		{collect + "https://example.com/v1/chat/completions", 2, `endpoint: base URL "https://example.com/v1/chat/completions": give the part before /chat/completions`},
		{ev + "example.com/v1", 2, `endpoint: base URL "example.com/v1": must begin with https:// or http://`},
		{here + "--key-file sk-0123456789", 2, `endpoint: the key file does not exist: give the name of a file that has the key, never the key`},
		{"serve --model student --api-key-file 0123456789abcdef0123456789abcdef", 2, `endpoint: the key file does not exist: give the name of a file that has the key, never the key`},
		{here + "--prices prices", 3, `endpoint: price file prices: is a folder: give a file`},
		{strings.Replace(here, "x.arrow", "folder.arrow", 1), 3, `endpoint: journal folder.arrow.journal: is a folder: remove it, or give another output`},
		{here + "--timeout 5", 2, `data collect: --timeout "5": must be a time with its unit, such as 90s or 10m: see gad data collect --help`},
		{here + "--temperature warm", 2, `data collect: --temperature "warm": must be a number: see gad data collect --help`},
		{here + "-n two", 2, `data collect: -n "two": must be a whole number: see gad data collect --help`},
		{here + "--limit 99999999999999999999", 2, `data collect: --limit "99999999999999999999": must be a smaller number: see gad data collect --help`},
		{here + "--partial=perhaps", 2, `data collect: --partial "perhaps": must be true or false: see gad data collect --help`},
		{"serve --model student --grace 10s", 2, `serve: --grace "10s": must be a number: see gad serve --help`},
		{"serve --model student --listen 127.0.0.1:99999", 2, `serve: --listen 127.0.0.1:99999: port 99999: must be from 0 to 65535`},
		{"board --port x run", 2, `board: --port "x": must be a whole number: see gad board --help`},
		{"sft: SET --ranks two", 2, `sft: --ranks "two": must be a whole number: see gad sft --help`},
	})

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

	if want := ": status 404: not found: most base URLs end in /v1: try " + server.URL + "/v1\n"; code != 1 || out != "" || !strings.HasSuffix(said, want) {
		t.Errorf("exit status %d, prints %q\n got %s want %s", code, out, said, want)
	}
	for _, name := range []string{"x.arrow", "x.arrow.journal"} {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s was made", name)
		}
	}
}

// Ranks by hand: RANK and WORLD_SIZE, with the address of rank 0.
func TestMistakesOfRanksByHand(t *testing.T) {
	_, work := linked(t, "student", "test.jsonl=rows.jsonl")
	const sft = "sft: SET trainer.shards=4"
	for _, c := range []struct {
		rank, size, addr, secret, file string
		code                           int
		want                           string
	}{
		{"0", "2", "127.0.0.1:29600", "", "", 2, `sft: a script has started rank 0 of 2 without MPI, so they connect by TCP: set GAD_RANKS_SECRET to the same random text on all ranks, or GAD_RANKS_SECRET_FILE to a file with it (doc/ranks.md), or give --ranks 1`},
		{"0", "2", "127.0.0.1:29600", "short", "", 2, `ranks: the secret of GAD_RANKS_SECRET or GAD_RANKS_SECRET_FILE has 5 bytes: must have at least 16: such as the output of: openssl rand -hex 16`},
		{"0", "2", "127.0.0.1:29600", "", "nowhere", 2, `ranks: GAD_RANKS_SECRET_FILE: nowhere: no such file or directory`},
		{"0", "2", "127.0.0.1", "0123456789abcdef", "", 2, `sft: GAD_RANKS_ADDR is "127.0.0.1": must be host:port of rank 0, such as node0:29600`},
		{"0", "2", "node0:many", "0123456789abcdef", "", 2, `sft: GAD_RANKS_ADDR is "node0:many": must be host:port of rank 0, such as node0:29600`},
		{"2", "2", "127.0.0.1:29600", "0123456789abcdef", "", 2, `ranks: a script says rank 2 of 2: ranks count from 0: correct RANK, or give --ranks 1`},
		{"1", "3", "127.0.0.1:29600", "0123456789abcdef", "", 2, `sft: a script has started 3 ranks: there must be 2, 4 or another power of two`},
	} {
		for name, value := range map[string]string{"RANK": c.rank, "WORLD_SIZE": c.size, "GAD_RANKS_ADDR": c.addr, "GAD_RANKS_SECRET": c.secret, "GAD_RANKS_SECRET_FILE": c.file} {
			t.Setenv(name, value)
		}
		mistaken(t, []string{work}, []mistake{{sft, c.code, c.want}})
	}
}

// A message that has no room is not the fault of the conversation before it.
func TestChatMessageTooLong(t *testing.T) {
	model := ready(t).path("student")
	long := strings.Repeat("Add 1+2+3 ", 40)
	for _, c := range []struct {
		in   string
		args []string
		want string
	}{
		{long + "\n", nil, "gad: chat: the message of line 1 has 417 tokens, the model takes 128 with the answer: shorten it\n"},
		{"Add 1+2+3\n", []string{"--system", long}, "gad: chat: the message of line 1 with the system message has 435 tokens, the model takes 128 with the answer: shorten one of them\n"},
	} {
		code, out, said := talking(t, c.in, append([]string{"--model", model}, c.args...)...)
		if want := c.want + "gad: chat: line 1 got no answer\n"; code != exitFailed || out != "" || said != want {
			t.Errorf("%q: exit status %d, prints %q\n got %s want %s", c.args, code, out, said, want)
		}
	}
}
