package model

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
	"gad/internal/safetensors"
	"gad/model/internal/files"
)

func weights(m *Model) map[string][]float32 {
	w := map[string][]float32{}
	for _, p := range m.params {
		w[p.Name] = values(m.be, p.W)
	}
	return w
}

func sameWeights(t *testing.T, what string, got, want *Model) {
	t.Helper()
	g, w := weights(got), weights(want)
	if !slices.Equal(slices.Sorted(maps.Keys(g)), slices.Sorted(maps.Keys(w))) {
		t.Fatalf("%s: other parameters", what)
	}
	for name := range w {
		same(t, what+": "+name, g[name], w[name])
	}
}

// Loading what was saved gives the same bits, for each architecture, in one file
// and in shards, and config.json keeps the keys that gad does not know.
func TestSaveLoad(t *testing.T) {
	be := ref.New()
	for _, name := range append(lmFolders, "qwen2_scorer") {
		kind := LM
		if name == "qwen2_scorer" {
			kind = Scorer
		}
		m := load(t, be, name, Options{Kind: kind})
		for _, maxShard := range []int64{0, 20_000} {
			d := t.TempDir()
			must(t, m.Save(dir(d).create, "", maxShard))
			again, err := Load(be, d, Options{Kind: kind})
			must(t, err)
			sameWeights(t, name, again, m)
			if again.Config().DType != m.Config().DType {
				t.Errorf("%s: dtype %s, want %s", name, again.Config().DType, m.Config().DType)
			}
			if _, err := os.Stat(filepath.Join(d, safetensors.IndexName)); (err == nil) != (maxShard > 0) {
				t.Errorf("%s: shards of %d bytes: index: %v", name, maxShard, err)
			}
			var was, is map[string]any
			for path, v := range map[string]*map[string]any{filepath.Join(fixtures, name): &was,
				d: &is} {
				b, err := os.ReadFile(filepath.Join(path, "config.json"))
				must(t, err)
				must(t, json.Unmarshal(b, v))
			}
			if text, ok := was["text_config"].(map[string]any); ok { // the rest is left
				was = text
			}
			for k, v := range was {
				a, _ := json.Marshal(v)
				b, _ := json.Marshal(is[k])
				if string(a) != string(b) {
					t.Errorf("%s: key %s: %s, want %s", name, k, b, a)
				}
			}
		}
		must(t, m.Close())
	}
}

// A scorer starts from a language model's folder, keeps its backbone and saves
// as a classifier; a language model does not start from a classifier.
func TestScorerFromLM(t *testing.T) {
	be := ref.New()
	for _, name := range []string{"qwen2_tied", "qwen2_untied"} {
		lm := load(t, be, name, Options{})
		zero := load(t, be, name, Options{Kind: Scorer})
		s, err := zero.Scores(seqsOf(97, 5, 9))
		must(t, err)
		same(t, "scores of a zero head", s, []float32{0, 0})
		m := load(t, be, name, Options{Kind: Scorer, ScoreInit: 0.5, Seed: 3})
		w, l := weights(m), weights(lm)
		delete(l, files.HeadName)
		for n := range l {
			same(t, n, w[n], l[n])
		}
		sum := 0.0
		for _, x := range w[files.ScoreName] {
			sum += float64(x) * float64(x)
		}
		if std := math.Sqrt(sum / 32); std < 0.3 || std > 0.7 {
			t.Errorf("%s: head of standard deviation %g, want about 0.5", name, std)
		}
		d := t.TempDir()
		must(t, m.Save(dir(d).create, "", 0))
		again, err := Load(be, d, Options{Kind: Scorer})
		must(t, err)
		sameWeights(t, name, again, m)
		b, err := os.ReadFile(filepath.Join(d, "config.json"))
		must(t, err)
		for _, s := range []string{`"Qwen2ForSequenceClassification"`, `"num_labels": 1`} {
			if !strings.Contains(string(b), s) {
				t.Errorf("%s: config.json lacks %s", name, s)
			}
		}
		if _, err := Load(be, d, Options{}); err == nil ||
			!strings.Contains(err.Error(), "ForCausalLM") {
			t.Errorf("a language model from a classifier: %v", err)
		}
	}
}

// New weights are a function of the seed, saved in any dtype they come back
// rounded once, and a copy has the same bits on the same and another backend.
func TestNewSaveCopy(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, arch := range some(t, be, architectures) {
			c := tiny(arch)
			if arch == "Llama" {
				c.RopeScaling = &RopeScaling{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4,
					OriginalMaxPosition: 32}
			}
			a, err := New(be, c, Options{Seed: 1})
			must(t, err)
			b, err := New(be, c, Options{Seed: 1})
			must(t, err)
			sameWeights(t, "same seed", b, a)
			other, err := New(be, c, Options{Seed: 2})
			must(t, err)
			if slices.Equal(values(be, other.embed.W), values(be, a.embed.W)) {
				t.Error("another seed gives the same weights")
			}
			logp := func(m *Model) []float32 {
				l, _, err := m.LogProbs(seqsOf(29, 9), 1)
				must(t, err)
				return l[0]
			}
			want := logp(a)
			logp(other) // so that what is derived from the weights exists before they change
			must(t, other.CopyWeights(a))
			sameWeights(t, "copy", other, a)
			same(t, "log-probabilities after the copy", logp(other), want)
			elsewhere, err := New(ref.New(), c, Options{Seed: 9})
			must(t, err)
			d := t.TempDir()
			must(t, a.Save(dir(d).create, "bfloat16", 0))
			read, err := Load(be, d, Options{})
			must(t, err)
			must(t, elsewhere.CopyWeights(read))
			sameWeights(t, "copy to another backend", elsewhere, read)
			got, want2 := read.Config(), c
			got.raw, want2.DType = nil, "bfloat16"
			if g, w := mustJSON(t, got), mustJSON(t, want2); g != w {
				t.Errorf("%s: configuration %s, want %s", arch, g, w)
			}
			for name, w := range weights(read) {
				for i, x := range w {
					if y := weights(a)[name][i]; math.Abs(float64(x-y)) > math.Abs(float64(y))/256 {
						t.Fatalf("%s: %s[%d]: %g became %g", arch, name, i, y, x)
					}
				}
				break
			}
			for _, m := range []*Model{a, b, other, elsewhere, read} {
				must(t, m.Close())
			}
		}
		x, err := New(be, tiny("Qwen2"), Options{})
		must(t, err)
		y, err := New(be, tiny("Llama"), Options{})
		must(t, err)
		if x.CopyWeights(y) == nil {
			t.Error("copy of another architecture: accepted")
		}
	})
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return string(b)
}

// rewritten is a fixture's folder whose tensors pass through f.
func rewritten(t *testing.T, name string,
	f func(ts []safetensors.Source) []safetensors.Source) string {
	t.Helper()
	in, err := safetensors.OpenFolder(filepath.Join(fixtures, name))
	must(t, err)
	defer in.Close()
	var ts []safetensors.Source
	for _, n := range in.Names() {
		x, _ := in.Tensor(n)
		ts = append(ts, safetensors.Source{Name: n, DType: x.DType, Shape: x.Shape,
			Write: func(w io.Writer) error { _, err := w.Write(x.Data); return err }})
	}
	d := edited(t, name, nil)
	must(t, safetensors.WriteFolder(dir(d).create, f(ts), 0, nil))
	return d
}

// The cache of Hugging Face lays a model out as links; it is read as it lies, and
// a link that leads out of the model's own part of the cache is refused.
func TestHuggingFaceCache(t *testing.T) {
	hub := t.TempDir()
	top := filepath.Join(hub, "models--a--b")
	dir := filepath.Join(top, "snapshots", "0123")
	must(t, os.MkdirAll(dir, 0o777))
	must(t, os.CopyFS(filepath.Join(top, "blobs"),
		os.DirFS(filepath.Join(fixtures, "llama3_sharded"))))
	entries, err := os.ReadDir(filepath.Join(top, "blobs"))
	must(t, err)
	for _, e := range entries {
		if err := os.Symlink("../../blobs/"+e.Name(), filepath.Join(dir, e.Name())); err != nil {
			t.Skip(err)
		}
	}
	m, err := Load(ref.New(), dir, Options{})
	must(t, err)
	want, err := Load(ref.New(), filepath.Join(fixtures, "llama3_sharded"), Options{})
	must(t, err)
	sameWeights(t, "from the cache", m, want)
	for _, name := range []string{"config.json", "model.safetensors.index.json",
		"model-00002-of-00003.safetensors"} {
		link := filepath.Join(dir, name)
		must(t, os.Rename(filepath.Join(top, "blobs", name), filepath.Join(hub, name)))
		must(t, os.Remove(link))
		must(t, os.Symlink("../../../"+name, link))
		if _, err := Load(ref.New(), dir, Options{}); err == nil ||
			!strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "cp -rL") {
			t.Errorf("%s outside: %v", name, err)
		}
		must(t, os.Rename(filepath.Join(hub, name), filepath.Join(top, "blobs", name)))
		must(t, os.Remove(link))
		must(t, os.Symlink("../../blobs/"+name, link))
	}
}

func TestLoadRefuses(t *testing.T) {
	be := ref.New()
	floats := func(name string, shape []int, v float32) safetensors.Source {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := make([]float32, n)
		x[n-1] = v
		return safetensors.Source{Name: name, DType: safetensors.F32, Shape: shape,
			Write: func(w io.Writer) error {
				return safetensors.EncodeFloat32(w, safetensors.F32,
					x)
			}}
	}
	replace := func(name string,
		by ...safetensors.Source) func(ts []safetensors.Source) []safetensors.Source {
		return func(ts []safetensors.Source) []safetensors.Source {
			ts = slices.DeleteFunc(ts, func(s safetensors.Source) bool { return s.Name == name })
			return append(ts, by...)
		}
	}
	for _, c := range []struct {
		what   string
		folder string
		f      func(ts []safetensors.Source) []safetensors.Source
		says   string
	}{
		{"missing", "qwen2_tied", replace("model.norm.weight"),
			"1 tensors missing: model.norm.weight"},
		{"unexpected", "qwen2_tied", replace("", floats("model.extra", []int{2}, 0)),
			"1 tensors unexpected: model.extra"},
		{"shape", "qwen2_tied", replace("model.norm.weight",
			floats("model.norm.weight", []int{16, 2}, 0)),
			"model.norm.weight is [16 2], config.json says [32]"},
		{"NaN", "qwen2_tied", replace("model.norm.weight",
			floats("model.norm.weight", []int{32}, float32(math.NaN()))), "element 31"},
		{"tied heads that differ", "qwen2_tied", replace("", floats(files.HeadName, []int{97, 32}, 1)),
			"tie_word_embeddings"},
		{"labels", "qwen2_scorer", replace(files.ScoreName, floats(files.ScoreName, []int{2, 32}, 0)),
			"score.weight is [2 32]"},
	} {
		d := rewritten(t, c.folder, c.f)
		kind := LM
		if c.folder == "qwen2_scorer" {
			kind = Scorer
		}
		if _, err := Load(be, d, Options{Kind: kind}); err == nil ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
		if inUse, _ := be.Memory(); inUse != 0 {
			t.Errorf("%s: %d bytes left allocated", c.what, inUse)
		}
	}
	// An equal copy of the tied head, and buffers of old folders, are in order.
	d := rewritten(t, "qwen2_tied", func(ts []safetensors.Source) []safetensors.Source {
		i := slices.IndexFunc(ts, func(s safetensors.Source) bool { return s.Name == files.EmbedName })
		head := ts[i]
		head.Name = files.HeadName
		return append(ts, head, floats("model.layers.0.self_attn.rotary_emb.inv_freq", []int{4}, 1))
	})
	m, err := Load(be, d, Options{})
	must(t, err)
	sameWeights(t, "tied head present", m, load(t, be, "qwen2_tied", Options{}))
}

// full fails the n-th allocation.
type full struct {
	compute.Backend
	left int
}

func (f *full) Alloc(what string, c compute.Class, n int) (compute.Tensor, error) {
	if f.left--; f.left < 0 {
		return compute.Tensor{}, errFull
	}
	return f.Backend.Alloc(what, c, n)
}

var errFull = errors.New("no memory left")

// Whichever allocation fails, the error comes back and nothing stays allocated.
func TestOutOfMemory(t *testing.T) {
	for n := 0; ; n++ {
		be := &full{ref.New(), n}
		err := func() error {
			m, err := New(be, tiny("Qwen3"), Options{Trainable: true})
			if err != nil {
				return err
			}
			defer m.Close()
			o, err := NewOptimizer(m, adamw())
			if err != nil {
				return err
			}
			if _, err := m.Generate([][]int32{{1, 2, 3}}, []uint64{0},
				SampleOptions{N: 2, MaxNew: 3}, nil); err != nil {
				return err
			}
			if err := m.LogProbGrad(seqsOf(29, 5, 7), 1,
				func(l, e [][]float32) (_, _ [][]float32, err error) {
					return l, e,
						nil
				}); err != nil {
				return err
			}
			_, _, err = o.step(1e-3)
			return err
		}()
		if inUse, _ := be.Memory(); inUse != 0 {
			t.Fatalf("allocation %d: %d bytes left", n, inUse)
		}
		if err == nil {
			if n < 100 {
				t.Fatalf("only %d allocations", n)
			}
			return
		}
		if !errors.Is(err, errFull) {
			t.Fatalf("allocation %d: %v", n, err)
		}
	}
}

// A failing file's error comes back, whichever write it is.
func TestSaveErrors(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied", Options{})
	defer m.Close()
	if m.Save(dir(t.TempDir()).create, "int8", 0) == nil {
		t.Error("dtype int8: accepted")
	}
	for n := 0; ; n++ {
		s := &sink{left: n}
		err := m.Save(func(string) (io.WriteCloser, error) { return s, s.op() }, "", 20_000)
		if err == nil {
			if n < 10 {
				t.Fatalf("only %d operations", n)
			}
			return
		}
		if !errors.Is(err, errFull) {
			t.Fatalf("operation %d: %v", n, err)
		}
	}
}

// sink fails its n-th operation.
type sink struct{ left int }

func (s *sink) op() error {
	if s.left--; s.left == -1 {
		return errFull
	}
	return nil
}
func (s *sink) Write(p []byte) (int, error) {
	if err := s.op(); err != nil {
		return 0, err
	}
	return len(p), nil
}
func (s *sink) Close() error { return s.op() }
