package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/pull/hubtest"
)

// hub is a hub with these repositories, and an empty cache beside it.
func hub(t *testing.T, repos map[string]*hubtest.Repo) (s *hubtest.Server, cache string) {
	t.Helper()
	s, err := hubtest.Start(repos)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	cache = filepath.Join(t.TempDir(), "hub")
	t.Setenv("HF_ENDPOINT", s.URL)
	t.Setenv("HF_HUB_CACHE", cache)
	return s, cache
}

// folderRepo is a repository with the files of a folder.
func folderRepo(t *testing.T, dir string) *hubtest.Repo {
	t.Helper()
	repo := &hubtest.Repo{Files: map[string][]byte{"README.md": []byte("# a repository"),
		"pytorch_model.bin": make([]byte, 2000)}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if repo.Files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return repo
}

// A model and a data set are fetched, and every command finds them by their names, with no
// hub to ask.
func TestPullAndUse(t *testing.T) {
	f := ready(t)
	rows, err := os.ReadFile(f.path("rows.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	repo := folderRepo(t, f.path("student"))
	s, cache := hub(t, map[string]*hubtest.Repo{
		"models/org/student": repo,
		"models/org/M-GGUF": {Files: map[string][]byte{"M-Q8_0.gguf": []byte("GGUF no more"),
			"M-F16.gguf": []byte("GGUF"), "README.md": nil}},
		"datasets/org/rows": {Files: map[string][]byte{"data/train.jsonl": rows,
			"load.py": []byte("import os")}},
	})
	t.Chdir(t.TempDir())
	dir := filepath.Join(cache, "models--org--student", "snapshots", repo.ID())
	out, said := must(t, "pull", "org/student", "--dry-run")
	if !strings.Contains(out, "model.safetensors") || strings.Contains(out, ".bin") ||
		!strings.Contains(out, "; to fetch: ") || said != "" {
		t.Errorf("--dry-run: %s%s", out, said)
	}
	if _, err := os.Stat(cache); err == nil {
		t.Error("--dry-run writes")
	}
	if out, said = must(t, "pull", "org/student"); out != dir+"\n" ||
		!strings.HasSuffix(said, " fetched\n") {
		t.Errorf("pull: %q, %q", out, said)
	}
	if out, said = must(t, "pull", "org/student", "--revision", "main"); out != dir+"\n" ||
		!strings.HasSuffix(said, "; 0 B fetched\n") {
		t.Errorf("pull again: %q, %q", out, said)
	}
	if out, _ = must(t, "pull", "org/M-GGUF:q8_0"); out != filepath.Join(cache,
		"models--org--M-GGUF", "snapshots")+"/"+filepath.Base(filepath.Dir(out))+"/M-Q8_0.gguf\n" {
		t.Errorf("a GGUF file: %s", out)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(strings.TrimSpace(out)),
		"M-F16.gguf")); err == nil {
		t.Error("the other GGUF file was fetched too")
	}
	out, _ = must(t, "pull", "--dataset", "org/rows")
	if _, err := os.Stat(filepath.Join(strings.TrimSpace(out), "load.py")); err == nil {
		t.Error("a data set's program was fetched")
	}
	s.Close()
	want, _ := must(t, "generate", "--model", f.path("student"), "--prompt", "a",
		"--max-new-tokens", "4")
	for _, line := range []string{
		"generate --model org/student --prompt a --max-new-tokens 4",
		"generate --model org/student@main --prompt a --max-new-tokens 4",
		"generate --model org/student@" + repo.ID() + " --prompt a --max-new-tokens 4",
	} {
		if got, _ := must(t, strings.Fields(line)...); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	os.WriteFile("run.yaml", []byte("model:\n  path: org/student\n"), 0o644)
	for _, line := range []string{
		"data validate --data org/rows --model org/student",
		"data inspect --data org/rows",
		"logprobs --model org/student --data org/rows --limit 1",
		"eval --model org/student --data org/rows --limit 2 --disc-steps 0 --max-response-length 8",
		"sft --model org/student --data org/rows --val-data org/rows --output a --steps 1 SET",
		"sft --data org/rows --output b --steps 1 SET model.path=org/student",
		"sft --config run.yaml --data org/rows --output c --steps 1 SET",
		"plan --stage sft --model org/student --data org/rows --output d SET",
		"resume a --steps 2",
	} {
		must(t, strings.Fields(strings.ReplaceAll(line, "SET", strings.Join(small, " ")))...)
	}
	if saved, err := os.ReadFile("b/config.yaml"); err != nil ||
		!strings.Contains(string(saved), dir) {
		t.Errorf("the run's settings do not name %s: %v", dir, err)
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	if out, _ := must(t, "pull", "org/student"); out != dir+"\n" {
		t.Errorf("offline: %s", out)
	}
	calls := 0
	for _, c := range s.Calls() {
		if strings.HasSuffix(c.File, ".bin") || strings.HasSuffix(c.File, ".py") {
			t.Errorf("asks for %s", c.File)
		}
		calls++
	}
	t.Logf("%d requests for a model, a file and a data set", calls)
}

// What the environment or the hub refuses: one line, the way out, and the exit status of its kind.
// What else is refused: TestRefused of apps/pull.
func TestPullRefused(t *testing.T) {
	f := ready(t)
	repo := folderRepo(t, f.path("student"))
	s, cache := hub(t, map[string]*hubtest.Repo{"models/org/student": repo})
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		set, line string
		code      int
		want      string
	}{
		{"HF_ENDPOINT=ftp://hub", "pull a/b", 2, `pull: HF_ENDPOINT "ftp://hub": must begin with https:// or http://`},
		{"HF_ENDPOINT=http://127.0.0.1:1", "pull a/b --retries 0", 1, `pull: 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused (1 try): what has come is kept: run the same command again later`},
		{"HF_TOKEN=hf_wrong", "pull org/student", 3, `pull: org/student: the hub refuses the token of HF_TOKEN (the hub says: Invalid credentials in Authorization header): create another on ` + s.URL + `/settings/tokens, or set HF_HUB_DISABLE_IMPLICIT_TOKEN=1 for none`},
		{"HF_HUB_OFFLINE=1", "pull org/student", 3, `pull: org/student: the cache ` + cache + ` does not have it, and HF_HUB_OFFLINE is set: unset it`},
	} {
		t.Run(c.set, func(t *testing.T) {
			name, value, _ := strings.Cut(c.set, "=")
			t.Setenv(name, value)
			if code, out, said := gad(strings.Fields(c.line)...); code != c.code || out != "" ||
				said != "gad: "+c.want+"\n" {
				t.Errorf("exit status %d, %q\n got %swant gad: %s", code, out, said, c.want)
			}
		})
	}
	// A part of a model.
	must(t, "pull", "org/student")
	os.Remove(filepath.Join(cache, "models--org--student", "snapshots", repo.ID(),
		"model.safetensors"))
	if code, _, said := gad("generate", "--model", "org/student", "--prompt", "x"); code != 3 || said != `gad: model: org/student: there is no such folder, and the cache `+cache+` has only a part of it: has no weights: neither model.safetensors nor model.safetensors.index.json: it has config.json, generation_config.json, special_tokens_map.json, tokenizer.json, tokenizer_config.json: run gad pull org/student`+"\n" {
		t.Errorf("exit status %d, %s", code, said)
	}
}

// pythonAgrees is what scripts/peers/hub.py prints at its end.
type pythonAgrees struct {
	Version string
	Checks  int
}

// Python's huggingface_hub takes the tests' hub for a hub, and the cache that each of both
// writes for its own: scripts/peers/hub.sh names the Python.
func TestPythonAgrees(t *testing.T) {
	python := os.Getenv("GAD_HUB_PYTHON")
	if python == "" {
		t.Skip("NOT TESTED: GAD_HUB_PYTHON names no Python with huggingface_hub")
	}
	path, f := built(t), ready(t)
	student := folderRepo(t, f.path("student"))
	gguf := make([]byte, 3_000_000)
	for i := range gguf {
		gguf[i] = byte(i * i >> 7)
	}
	s, cache := hub(t, map[string]*hubtest.Repo{
		"models/org/student": student,
		"models/org/M-GGUF": {Files: map[string][]byte{"sub/M-Q8_0.gguf": gguf,
			"sub/M-F16.gguf": gguf[:2_000_000]}},
		"datasets/org/rows": {Files: map[string][]byte{"data/train.jsonl": []byte(`{"content":"a","teacher_response":"b"}` + "\n")}},
	})
	s.Page = 3
	p := start(t, python, filepath.Join("..", "..", "scripts", "peers", "hub.py"), path, s.URL,
		filepath.Dir(cache))
	if code := p.end(t, patience); code != 0 {
		t.Fatalf("exit status %d\n%s", code, p.said.String())
	}
	var agrees pythonAgrees
	if err := json.Unmarshal([]byte(lastLine(p.said.String())), &agrees); err != nil ||
		agrees.Checks < 10 {
		t.Fatalf("%v\n%s", err, p.said.String())
	}
	for _, c := range s.Calls() {
		if c.Kind == "cdn" && c.Header.Get("Authorization") != "" {
			t.Error("the CDN gets a token")
		}
	}
	t.Logf("huggingface_hub %s: %d checks agree", agrees.Version, agrees.Checks)
}
