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

// A model and a data set are fetched, and every command finds them by their names, with no
// hub to ask.
func TestPullAndUse(t *testing.T) {
	f := ready(t)
	rows := []byte(readFile(t, f.path("rows.jsonl")))
	repo := hubtest.Folder(t, f.path("student"))
	s, cache := hub(t, map[string]*hubtest.Repo{
		"models/org/student": repo,
		"models/org/M-GGUF": {Files: map[string][]byte{"M-Q8_0.gguf": []byte("GGUF no more"),
			"M-F16.gguf": []byte("GGUF"), "README.md": nil}},
		"datasets/org/rows": {Files: map[string][]byte{"data/train.jsonl": rows,
			"load.py": []byte("import os")}},
	})
	t.Chdir(t.TempDir())
	dir := filepath.Join(cache, "models--org--student", "snapshots", repo.ID())
	out, said := does(t, "pull org/student --dry-run")
	if _, err := os.Stat(cache); err == nil || !strings.Contains(out, "model.safetensors") ||
		strings.Contains(out, ".bin") || !strings.Contains(out, "; to fetch: ") || said != "" {
		t.Errorf("--dry-run: %s%s", out, said)
	}
	for line, ends := range map[string]string{"pull org/student": " fetched\n",
		"pull org/student --revision main": "; 0 B fetched\n"} {
		if ends[0] == ';' {
			does(t, "pull org/student")
		}
		if out, said = does(t, line); out != dir+"\n" || !strings.HasSuffix(said, ends) {
			t.Errorf("%s: %q, %q", line, out, said)
		}
	}
	out, _ = does(t, "pull org/M-GGUF:q8_0")
	file := strings.TrimSpace(out)
	if filepath.Base(file) != "M-Q8_0.gguf" || filepath.Dir(filepath.Dir(file)) != filepath.Join(cache,
		"models--org--M-GGUF", "snapshots") {
		t.Errorf("a GGUF file: %s", out)
	}
	out, _ = does(t, "pull --dataset org/rows")
	for what, path := range map[string]string{
		"the other GGUF file":   filepath.Join(filepath.Dir(file), "M-F16.gguf"),
		"a data set's program ": filepath.Join(strings.TrimSpace(out), "load.py")} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s was fetched too", what)
		}
	}
	s.Close()
	const ask = " --prompt a --max-new-tokens 4"
	want, _ := does(t, "generate --model "+f.path("student")+ask)
	for _, name := range []string{"org/student", "org/student@main", "org/student@" + repo.ID()} {
		if got, _ := does(t, "generate --model "+name+ask); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	put(t, "run.yaml", "model:\n  path: org/student\n")
	for _, line := range []string{
		"data validate --data org/rows --model org/student",
		"data inspect --data org/rows",
		"logprobs --model org/student --data org/rows --limit 1",
		"eval --model org/student --data org/rows --limit 2 --disc-steps 0 --max-response-length 8",
		"sft --model org/student --data org/rows --val-data org/rows --output a --steps 1 SMALL",
		"sft --data org/rows --output b --steps 1 SMALL model.path=org/student",
		"sft --config run.yaml --data org/rows --output c --steps 1 SMALL",
		"plan --stage sft --model org/student --data org/rows --output d SMALL",
		"resume a --steps 2",
	} {
		does(t, line)
	}
	if saved := fileText("b/config.yaml"); !strings.Contains(saved, dir) {
		t.Errorf("the run's settings do not name %s", dir)
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	if out, _ := does(t, "pull org/student"); out != dir+"\n" {
		t.Errorf("offline: %s", out)
	}
	for _, c := range s.Calls() {
		if strings.HasSuffix(c.File, ".bin") || strings.HasSuffix(c.File, ".py") {
			t.Errorf("asks for %s", c.File)
		}
	}
}

// What the hub, its cache or the environment refuses ends with the exit status of its kind; the
// lines: TestRefused and TestPull of apps/pull.
func TestPullRefused(t *testing.T) {
	s, cache := hub(t, map[string]*hubtest.Repo{"models/org/student": hubtest.Folder(t,
		ready(t).path("student"))})
	t.Chdir(t.TempDir())
	none := `the cache ` + cache + ` does not have it`
	for set, c := range map[string]exchange{
		"HF_ENDPOINT=ftp://hub": {"pull a/b", exitUsage,
			[]string{`=gad: pull: HF_ENDPOINT "ftp://hub": `}},
		"HF_ENDPOINT=http://127.0.0.1:1": {"pull a/b --retries 0", exitFailed,
			[]string{"=gad: pull: 127.0.0.1:1: "}},
		"HF_TOKEN=hf_wrong": {"pull org/student", exitInput,
			[]string{"=create another on " + s.URL}},
		"HF_HUB_OFFLINE=1": {"pull org/student", exitInput,
			[]string{"=gad: pull: org/student: " + none + ", and HF_HUB_OFFLINE is set: unset it\n"}},
		"HF_TOKEN=": {"generate --model org/student --prompt x", exitInput,
			[]string{"=gad: model: org/student: there is no such folder, and " + none +
				": run gad pull org/student\n"}},
	} {
		t.Run(set, func(t *testing.T) {
			name, value, _ := strings.Cut(set, "=")
			t.Setenv(name, value)
			answered(t, []exchange{c})
		})
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
	student := hubtest.Folder(t, f.path("student"))
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
