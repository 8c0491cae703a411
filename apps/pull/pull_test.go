package pull

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gad/apps/pull/hubtest"
	"gad/internal/vfs"
)

// random are n bytes that are the same each time.
func random(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// student is a repository as the hub has them: with what gad reads, and what it must not fetch.
func student() *hubtest.Repo {
	return &hubtest.Repo{Files: map[string][]byte{
		"config.json":              []byte(`{"model_type":"qwen2"}`),
		"generation_config.json":   []byte(`{}`),
		"tokenizer.json":           random(5000, 1),
		"tokenizer_config.json":    []byte(`{"eos_token":"x"}`),
		"model.safetensors":        random(300_000, 2),
		"pytorch_model.bin":        random(2000, 3),
		"consolidated.safetensors": random(3000, 4),
		"README.md":                []byte("# a model"),
		".gitattributes":           []byte("*.safetensors filter=lfs"),
		"onnx/model.onnx":          random(1500, 5),
		"training_args.pt":         []byte("a pickle"),
	}}
}

var fetched = []string{"config.json", "generation_config.json", "model.safetensors",
	"tokenizer.json", "tokenizer_config.json"}

// start is a hub with these repositories.
func start(t testing.TB, repos map[string]*hubtest.Repo) *hubtest.Server {
	t.Helper()
	s, err := hubtest.Start(repos)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// options fetch a name from s into cache, with short pauses.
func options(t testing.TB, s *hubtest.Server, cache, name string) Options {
	t.Helper()
	n, err := ParseName(name, false)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Environment: Environment{Endpoint: s.URL, Cache: cache}, Name: n, Retries: 3,
		Timeout: 5 * time.Second, pause: time.Millisecond}
}

// run is gad pull.
func run(o Options) (*Pull, error) {
	p, err := Open(context.Background(), o)
	if err != nil {
		return nil, err
	}
	return p, p.Fetch(context.Background())
}

// wrong says what is under a final name in a cache and is not what the repository has; "" is
// nothing. whole wants all of names in main's snapshot.
func wrong(fsys vfs.FS, cache string, repo *hubtest.Repo, whole []string) string {
	r := repoDir{fsys, cache, Name{Repo: "org/student"}}
	right := map[string]bool{}
	for _, content := range repo.Files {
		right[hubtest.SHA256(content)], right[hubtest.BlobSHA1(content)] = true, true
	}
	blobs, _ := fsys.ReadDir(r.path("blobs"))
	for _, b := range blobs {
		content, err := fsys.ReadFile(r.path("blobs", b.Name()))
		switch {
		case strings.HasSuffix(b.Name(), ".incomplete"):
		case err != nil:
			return err.Error()
		case b.Name() != hubtest.SHA256(content) && b.Name() != hubtest.BlobSHA1(content) ||
			!right[b.Name()]:
			return fmt.Sprintf("blob %s has other bytes", b.Name())
		}
	}
	found := 0
	entries, _ := fsys.ReadDir(r.snapshot(repo.ID()))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue // of vfs.TempName
		}
		content, err := fsys.ReadFile(filepath.Join(r.snapshot(repo.ID()), e.Name()))
		if err != nil || !bytes.Equal(content, repo.Files[e.Name()]) {
			return fmt.Sprintf("snapshot %s: %v, or other bytes", e.Name(), err)
		}
		found++
	}
	snapshots, _ := fsys.ReadDir(r.path("snapshots"))
	if len(snapshots) > 1 || len(snapshots) == 1 && snapshots[0].Name() != repo.ID() {
		return fmt.Sprintf("snapshots: %v", snapshots)
	}
	switch ref, err := fsys.ReadFile(r.ref()); {
	case err == nil && (string(ref) != repo.ID() || found != len(fetched)):
		return fmt.Sprintf("refs/main is %q, with %d files", ref, found)
	case whole != nil && (err != nil || found != len(whole)):
		return fmt.Sprintf("refs/main: %v; %d files", err, found)
	}
	for _, name := range whole {
		if _, err := fsys.Stat(filepath.Join(r.snapshot(repo.ID()), name)); err != nil {
			return err.Error()
		}
	}
	return ""
}

// A model is fetched whole, with nothing that gad does not read; the second time nothing but the
// list is asked for; and Find has it without a connection.
func TestPull(t *testing.T) {
	repo := student()
	s := start(t, map[string]*hubtest.Repo{"models/org/student": repo})
	s.Page = 2 // several pages
	cache := filepath.Join(t.TempDir(), "hub")
	o := options(t, s, cache, "org/student")
	if _, err := Find(vfs.OS, cache, o.Name); err == nil ||
		!strings.Contains(err.Error(), "does not have it") {
		t.Errorf("Find before: %v", err)
	}
	p, err := run(o)
	if err != nil {
		t.Fatal(err)
	}
	if bad := wrong(vfs.OS, cache, repo, fetched); bad != "" {
		t.Error(bad)
	}
	for _, c := range s.Calls() {
		if c.Kind == "cdn" && c.Header.Get("Authorization") != "" {
			t.Error("the CDN gets the token")
		}
	}
	at := len(s.Calls())
	again, err := run(o)
	if err != nil || again.Missing() != 0 || again.Path() != p.Path() {
		t.Errorf("again: %v, %d bytes missing", err, again.Missing())
	}
	for _, c := range s.Calls()[at:] {
		if c.Kind == "file" || c.Kind == "cdn" {
			t.Errorf("again: asks for %s", c.File)
		}
	}
	s.Close()
	found, err := Find(vfs.OS, cache, o.Name)
	if err != nil || found != p.Path() ||
		found != filepath.Join(cache, "models--org--student", "snapshots", repo.ID()) {
		t.Errorf("Find: %s, %v", found, err)
	}
	if to, err := os.Readlink(filepath.Join(found, "model.safetensors")); err != nil ||
		to != filepath.Join("..", "..", "blobs", hubtest.SHA256(repo.Files["model.safetensors"])) {
		t.Errorf("link: %s, %v", to, err)
	}
	os.Remove(filepath.Join(found, "model.safetensors"))
	if _, err := Find(vfs.OS, cache, o.Name); err == nil ||
		!strings.Contains(err.Error(), "has only a part of it: has no weights") {
		t.Errorf("Find of a part: %v", err)
	}
}

// The files that are chosen, and the words where there are none.
func TestChoose(t *testing.T) {
	index := `{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`
	ggufs := "M-Q8_0.gguf M-Q4_K_M.gguf M-IQ4_K_M.gguf M-F16.gguf mmproj-M-Q8_0.gguf UD/M-Q4_K_M.gguf big-Q6_K-00001-of-00002.gguf big-Q6_K-00002-of-00002.gguf m.q5_0.gguf"
	for _, c := range []struct {
		name, has, want string // want begins with ! for an error that contains it
	}{
		{"o/m", "config.json model.safetensors model.safetensors.index.json x.bin",
			"config.json model.safetensors"},
		{"o/m", "config.json model.safetensors.index.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors model-00003-of-00002.safetensors tokenizer.json", "config.json tokenizer.json model.safetensors.index.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors"},
		{"o/m", "config.json model.safetensors.index.json model-00001-of-00002.safetensors", `!names "model-00002-of-00002.safetensors", which the repository does not have`},
		{"o/m", "adapter_config.json adapter_model.safetensors tokenizer.json",
			"adapter_config.json adapter_model.safetensors tokenizer.json"},
		{"o/m", "model.safetensors", "!has weights and no config.json"},
		{"o/m", "config.json pytorch_model.bin",
			"!only pickles such as pytorch_model.bin, which can run programs"},
		{"o/m", "config.json tf_model.h5", "!has no weights: neither model.safetensors nor"},
		{"o/m", "", "!it has no files"},
		{"o/m", "M-Q8_0.gguf M-F16.gguf",
			"!name one, as in gad pull o/m:FILE: it has M-F16.gguf, M-Q8_0.gguf"},
		{"o/m:Q8_0", ggufs, "M-Q8_0.gguf"},
		{"o/m:q8_0", ggufs, "M-Q8_0.gguf"},
		{"o/m:Q5_0", ggufs, "m.q5_0.gguf"},
		{"o/m:Q4_K_M", ggufs, "!several files have the tag Q4_K_M: give one by its name: M-Q4_K_M.gguf, UD/M-Q4_K_M.gguf"},
		{"o/m:UD/M-Q4_K_M.gguf", ggufs, "UD/M-Q4_K_M.gguf"},
		{"o/m:Q6_K", ggufs, "!is in several parts (big-Q6_K-00001-of-00002.gguf): gad reads GGUF files of one part"},
		{"o/m:big-Q6_K-00002-of-00002.gguf", ggufs, "!is one part of several"},
		{"o/m:Q4_K", ggufs, "!there is no such file: the repository has M-F16.gguf"},
		{"o/m:x.bin", "x.bin config.json", "!gad reads no such file"},
		{"o/m:none.gguf", "config.json", "!there is no such file: the repository has config.json"},
	} {
		n, err := ParseName(c.name, false)
		if err != nil {
			t.Fatal(err)
		}
		var files []File
		for _, f := range strings.Fields(c.has) {
			files = append(files, File{Path: f, Size: 10})
		}
		chosen, err := choose(n, files, func(File) ([]byte, error) { return []byte(index), nil })
		got := ""
		for _, f := range chosen {
			got += " " + f.Path
		}
		if want, bad := strings.CutPrefix(c.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s of %s: %q, %v, want %q", c.name, c.has, got, err, want)
			}
		} else if err != nil || strings.TrimSpace(got) != c.want {
			t.Errorf("%s of %s: %q, %v, want %q", c.name, c.has, got, err, c.want)
		}
	}
	n := Name{Repo: "o/d", Dataset: true, File: "data/train-*.parquet"}
	chosen, err := choose(n, []File{{Path: "data/train-1.parquet"}, {Path: "data/test-1.parquet"},
		{Path: "x.py"}, {Path: "data/train-2.parquet"}}, nil)
	if err != nil || len(chosen) != 2 {
		t.Errorf("data set: %v %v", chosen, err)
	}
}

// Names, good and bad.
func TestParseName(t *testing.T) {
	for text, want := range map[string]Name{
		"Qwen/Qwen2.5-0.5B":      {Repo: "Qwen/Qwen2.5-0.5B"},
		"a/b@v1.0":               {Repo: "a/b", Revision: "v1.0"},
		"a/b@refs/pr/3:x/y.gguf": {Repo: "a/b", Revision: "refs/pr/3", File: "x/y.gguf"},
		"a/b:Q8_0":               {Repo: "a/b", File: "Q8_0"},
	} {
		if n, err := ParseName(text, false); err != nil || n != want || n.String() != text {
			t.Errorf("%s: %+v %v", text, n, err)
		}
	}
	for _, text := range []string{"", "a", "a/b/c", "/a/b", "../b", "a/..", "a/b--c", "a/b..c", "-a/b", "a/b.git", "a/b@", "a/b@../x", "a/b@x//y", "a/b:", "a/b:../x", "a/b:/etc/passwd", `a/b:x\y`, "a/b:x\ny", "https://huggingface.co/a/b", "a b/c", "a/b@-\x00", "a/b@x/../y", "a/b:.", "é/b"} {
		if n, err := ParseName(text, false); err == nil {
			t.Errorf("%q is taken for %+v", text, n)
		}
	}
}

// The environment means what it means to the hub's own client.
func TestEnvironment(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	secret := filepath.Join(home, "hf", "token")
	os.MkdirAll(filepath.Dir(secret), 0o755)
	os.WriteFile(secret, []byte("hf_fromfile\n"), 0o600)
	for _, c := range []struct {
		set  string
		want Environment
	}{
		{"", Environment{Endpoint: publicHub, Cache: home + "/.cache/huggingface/hub"}},
		{"XDG_CACHE_HOME=/x", Environment{Endpoint: publicHub, Cache: "/x/huggingface/hub"}},
		{"HF_HOME=~/hf HF_ENDPOINT=https://mirror/",
			Environment{Endpoint: "https://mirror", Cache: home + "/hf/hub", Token: "hf_fromfile",
				TokenFile: secret}},
		{"HF_HOME=$HOME/hf HF_HUB_DISABLE_IMPLICIT_TOKEN=1",
			Environment{Endpoint: publicHub, Cache: home + "/hf/hub"}},
		{"HF_HOME=~/hf HF_HUB_CACHE=/c HUGGINGFACE_HUB_CACHE=/d HF_TOKEN=hf_env",
			Environment{Endpoint: publicHub, Cache: "/c", Token: "hf_env"}},
		{"HUGGINGFACE_HUB_CACHE=/d HF_HUB_OFFLINE=yes",
			Environment{Endpoint: publicHub, Cache: "/d", Offline: true}},
		{"HF_HUB_CACHE=/c HF_TOKEN_PATH=" + secret,
			Environment{Endpoint: publicHub, Cache: "/c", Token: "hf_fromfile", TokenFile: secret}},
	} {
		set := map[string]string{"HOME": home}
		for _, kv := range strings.Fields(c.set) {
			k, v, _ := strings.Cut(kv, "=")
			set[k] = v
		}
		if e, err := FromEnvironment(vfs.OS, func(k string) string { return set[k] }); err != nil ||
			e != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.set, e, err, c.want)
		}
	}
	if _, err := FromEnvironment(vfs.OS,
		func(k string) string {
			return map[string]string{
				"HF_TOKEN": "hf_ab\ncd"}[k]
		}); err == nil || strings.Contains(err.Error(), "hf_ab") {
		t.Errorf("a token of two lines: %v", err)
	}
}

func TestModelName(t *testing.T) {
	for path, want := range map[string]string{
		"/c/models--org--My-Student/snapshots/0123": "My-Student",
		"/c/models--gpt2/snapshots/0123":            "gpt2",
		"/runs/snapshots/student":                   "student",
		"/runs/student":                             "student",
	} {
		if got := ModelName(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
