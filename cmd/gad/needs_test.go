package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gad/apps/collect/collecttest"
	"gad/apps/pull/hubtest"
	"gad/internal/endpoint/endpointtest"
)

// environment are the variables that a case of mistakes sets, or has unset.
var environment = []string{"OPENAI_API_KEY", "GAD_API_KEY", "BAD_KEY", "NO_KEY", "WRONG_KEY",
	"RIGHT_KEY",
	"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK",
	"PMI_SIZE", "MPI_LOCALRANKID",
	"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
	"SLURM_LAUNCH_NODE_IPADDR",
	"JOB_COMPLETION_INDEX", addrVar, secretVar, secretFileVar}

// needs make in the current folder what no text can write. They return names, and what stands
// for them in the lines of the case.
var needs = map[string]func(t *testing.T, f *fixture) []string{
	// $TEACHER is an endpoint that nobody may ask.
	"teacher": func(t *testing.T, _ *fixture) []string {
		s := collecttest.Teacher(t, &endpointtest.Server{
			Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
				endpointtest.Fail(w, 500, "", "nobody should ask")
				return true
			}})
		t.Cleanup(func() {
			if n := len(s.Calls()); n > 0 {
				t.Errorf("%d calls", n)
			}
		})
		return []string{"$TEACHER", s.URL}
	},
	// $TAKEN is a port that somebody listens on.
	"port": func(t *testing.T, _ *fixture) []string {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return []string{"$TAKEN", strconv.Itoa(l.Addr().(*net.TCPAddr).Port)}
	},
	// $HUB has repositories of several kinds, $CACHE has none of them.
	"hub": func(t *testing.T, f *fixture) []string {
		s, cache := hub(t, map[string]*hubtest.Repo{
			"models/org/student": hubtest.Folder(t, f.path("student")),
			"models/org/pickled": {Files: map[string][]byte{"config.json": nil,
				"pytorch_model.bin": nil}},
			"models/org/M-GGUF": {Files: map[string][]byte{"M-Q8_0.gguf": nil, "M-F16.gguf": nil,
				"M-Q2_K-00001-of-00002.gguf": nil}},
			"datasets/org/rows": {Files: map[string][]byte{"a.py": nil}},
		})
		t.Cleanup(func() {
			if made := tree(t, filepath.Dir(cache)); len(made) > 1 {
				t.Errorf("made %d files beside the cache", len(made))
			}
		})
		return []string{"$HUB", s.URL, "$CACHE", cache}
	},
	// foreign is a model with another tokenizer.
	"foreign": func(t *testing.T, f *fixture) []string {
		corpus := filepath.Join(t.TempDir(), "corpus.txt")
		collecttest.Put(t, corpus, strings.Repeat(
			"another text of other words, which gives another tokenizer. ", 50))
		must(t, "init", "--config", f.path("config.json"), "--corpus", corpus, "--output",
			"foreign")
		return nil
	},
	// lfs is a model whose weights were not fetched.
	"lfs": func(t *testing.T, f *fixture) []string {
		if err := os.Mkdir("lfs", 0o755); err != nil {
			t.Fatal(err)
		}
		collecttest.Put(t, "lfs/model.safetensors",
			"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123")
		for name, text := range tree(t, f.path("student")) {
			if strings.HasSuffix(name, ".json") {
				collecttest.Put(t, filepath.Join("lfs", name), text)
			}
		}
		return nil
	},
	// begun.jsonl.partial and far.jsonl.partial are of interrupted commands.
	"begun": func(t *testing.T, f *fixture) []string {
		collecttest.Put(t, "begun.jsonl.partial",
			generateBegun(t, f.path("student"), f.path("test.jsonl"), 1, 3, 0.8))
		return nil
	},
	"far": func(t *testing.T, f *fixture) []string {
		collecttest.Put(t, "far.jsonl.partial",
			generateBegun(t, f.path("student"), f.path("test.jsonl"), 1, 3, 0.8)+
				`{"key":"7/0","record":{"row":7,"sample":0,"response":"x","tokens":1,"truncated":false,"finish_reason":"stop"}}`+"\n")
		return nil
	},
	// unigram is a student whose tokenizer cannot be read; why others cannot: tokenizer's tests.
	"unigram": func(t *testing.T, f *fixture) []string {
		if err := os.CopyFS("unigram", os.DirFS(f.path("student"))); err != nil {
			t.Fatal(err)
		}
		const file = "unigram/tokenizer.json"
		collecttest.Put(t, file, regexp.MustCompile(`"type":\s*"BPE"`).ReplaceAllString(
			readFile(t, file), `"type":"Unigram"`))
		return nil
	},
}
