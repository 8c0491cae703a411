package main

import (
	"os"
	"strings"
	"testing"

	"gad/apps/serve"
)

// Mistakes with gad serve and gad chat.
func TestMistakesOfServe(t *testing.T) {
	f := ready(t)
	work := t.TempDir()
	t.Chdir(work)
	t.Setenv(keyVariable, "")
	for name, to := range map[string]string{"student": f.path("student"), "sft": f.path("sft"), "critic": f.path("warmup", "global_step_4", "critic")} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"short.key": "secret\n", "bad.key": "a key with a blank\n", "empty.key": "", "open.key": strings.Repeat("k", 20)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod("open.key", 0o644); err != nil {
		t.Fatal(err)
	}
	taken, err := serve.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	mistaken(t, []string{work, f.path("student")}, []mistake{
		{"serve", 2, `serve: --model is missing: see gad serve --help`},
		{"serve --model student student", 2, `serve: unexpected argument "student": this command takes flags only`},
		{"serve --model student --port 80", 2, `serve: unknown flag --port: give --listen 127.0.0.1:PORT`},
		{"serve --model nowhere", 3, `model: nowhere: no such folder: give a Hugging Face model folder`},
		{"serve --model sft", 3, `model: sft: is a run: give sft/global_step_60/actor`},
		{"serve --model critic", 3, `model: critic: a Qwen2ForSequenceClassification folder has no language-model head: expected a Qwen2ForCausalLM folder`},
		{"serve --model student --listen 8000", 2, `serve: --listen 8000: must be an address and a port, such as 127.0.0.1:8000`},
		{"serve --model student --listen 0.0.0.0:8000", 2, `serve: --listen 0.0.0.0:8000: other machines reach this address: set an API key in GAD_API_KEY or --api-key-file`},
		{"serve --model student --listen :8000", 2, `serve: --listen :8000: other machines reach this address: set an API key in GAD_API_KEY or --api-key-file`},
		{"serve --model student --listen " + address, 2, `serve: --listen ` + address + `: bind: address already in use: choose another port`},
		{"serve --model student --api-key-file none.key", 2, `endpoint: key file none.key: does not exist`},
		{"serve --model student --api-key-file short.key", 2, `serve: --api-key-file short.key: has 6 characters: a key must have 16 to 1024`},
		{"serve --model student --api-key-file empty.key", 2, `endpoint: key file empty.key: is empty`},
		{"serve --model student --api-key-file bad.key", 2, `endpoint: key file bad.key has spaces, line ends or other characters that no key has`},
		{"serve --model student --api-key-file open.key", 2, `endpoint: key file open.key: mode 0644: others can read it: chmod 600 open.key`},
		{"serve --model student --slots 0", 2, `serve: --slots 0: must be from 1 to 4096`},
		{"serve --model student --context 1", 2, `serve: --context 1: must be from 2 to 16777216`},
		{"serve --model student --context 129", 2, `serve: --context 129: the model takes 128 tokens: lower it`},
		{"serve --model student --cache-tokens 130", 2, `serve: cache of 130 tokens: a request of 128 takes 144: raise --cache-tokens or lower --context`},
		{"serve --model student --max-tokens 0", 2, `serve: --max-tokens 0: must be from 1 to 16777216`},
		{"serve --model student --max-queue -1", 2, `serve: --max-queue -1: must be from 1 to 65536`},
		{"serve --model student --grace -1", 2, `serve: --grace -1: must be from 0 to 86400`},
		{"serve --model student --device tpu", 2, `device: "tpu": use cpu or cuda`},
		{"chat", 2, `chat: --model is missing: see gad chat --help`},
		{"chat --model sft", 3, `model: sft: is a run: give sft/global_step_60/actor`},
		{"chat --model student --prompt x", 2, `chat: unknown flag --prompt: see gad chat --help`},
		{"chat --model student --max-new-tokens 0", 2, `chat: --max-new-tokens 0: must be at least 1`},
		{"chat --model student --top-k -1", 2, `chat: --top-k -1: must be at least 0`},
		{"chat --model student --top-p 1.5", 2, `chat: --top-p 1.5: must be from 0 to 1`},
	})
	t.Setenv(keyVariable, strings.Repeat("k", 20))
	mistaken(t, []string{work}, []mistake{
		{"serve --model student --api-key-file short.key", 2, `serve: --api-key-file and GAD_API_KEY: give one of them`},
	})
	t.Setenv(keyVariable, "a key with a blank")
	mistaken(t, []string{work}, []mistake{
		{"serve --model student", 2, `serve: GAD_API_KEY: has a character that cannot be in a key: use letters, digits and signs of ASCII`},
	})
	t.Setenv(keyVariable, "short")
	mistaken(t, []string{work}, []mistake{
		{"serve --model student", 2, `serve: GAD_API_KEY: has 5 characters: a key must have 16 to 1024`},
	})
}
