// Package modeltest makes a tiny student for tests: a tokenizer of some 300 tokens, a model of 32
// dimensions, and weights trained briefly on short answers, so that some of the student's samples
// end and some are cut. Training takes some seconds, once a process.
package modeltest

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"gad/actor"
	"gad/critic"
	"gad/data"
	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
)

// Shape is the student's configuration without its vocabulary.
var Shape = model.Config{Architecture: "Qwen2", Hidden: 32, Layers: 2, Heads: 4, KVHeads: 2,
	HeadDim: 8, FFN: 64,
	MaxPosition: 128, RMSEps: 1e-6, RopeTheta: 10000, TieEmbeddings: true, QKVBias: true,
	DType: "float32"}

// Root returns the path of a file of the repository, given the parts of its path from the root.
func Root(parts ...string) string {
	dir := "."
	for range 8 {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Join(dir, "..")
	}
	return filepath.Join(append([]string{dir}, parts...)...)
}

// Letters returns the path of a file of testdata/letters: questions with a teacher's answers of a
// few words, and a text to train a tokenizer on.
func Letters(name string) string { return Root("testdata", "letters", name) }

// train returns the student's tokenizer.
var train = sync.OnceValues(func() (*tokenizer.Tokenizer, error) {
	corpus, err := os.Open(Letters("corpus.txt"))
	if err != nil {
		return nil, err
	}
	defer corpus.Close()
	return tokenizer.Train(corpus, tokenizer.TrainOptions{VocabSize: 300})
})

// Tokenizer returns the student's tokenizer.
func Tokenizer(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	return must(t, train)
}

// Backend returns a CPU backend with one worker, which closes when the test ends.
func Backend(t testing.TB) model.Backend {
	t.Helper()
	be := must(t, func() (compute.Backend, error) { return cpu.New(cpu.Options{Workers: 1}) })
	t.Cleanup(func() { be.Close() })
	return be
}

// Rows opens a file of testdata/letters as a data set, which closes when the test ends.
func Rows(t testing.TB, name string) *data.Set {
	t.Helper()
	set := must(t,
		func() (*data.Set, error) { return data.Open(Letters(name), data.DefaultColumns()) })
	t.Cleanup(func() { set.Close() })
	return set
}

// Blank writes a folder of the student with random weights and returns its path.
func Blank(t testing.TB) string { return folder(t, blank) }

// Student writes a folder of the trained student and returns its path.
func Student(t testing.TB) string { return folder(t, learned) }

// Critic writes a folder of a discriminator of the student's shape, with random weights, and
// returns its path.
func Critic(t testing.TB) string { return folder(t, scorer) }

// files has the contents of a model folder's files, by name.
type files map[string]*bytes.Buffer

var (
	blank   = sync.OnceValues(func() (files, error) { return build(0) })
	learned = sync.OnceValues(func() (files, error) { return build(60) })
	scorer  = sync.OnceValues(func() (files, error) {
		return newFiles(model.Options{Kind: model.Scorer, Seed: 2, ScoreInit: 1}, nil)
	})
)

// build returns the files of a student after so many steps on the teacher's answers.
func build(steps int) (files, error) {
	return newFiles(model.Options{Kind: model.LM, Trainable: true, Seed: 1},
		func(m *model.Model, tok *tokenizer.Tokenizer) error { return learn(m, tok, steps) })
}

// newFiles returns the files of a new model, after do has changed it; do may be nil.
func newFiles(o model.Options, do func(*model.Model, *tokenizer.Tokenizer) error) (files, error) {
	tok, err := train()
	if err != nil {
		return nil, err
	}
	be, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		return nil, err
	}
	defer be.Close()
	shape := Shape
	shape.Vocab = tok.Size()
	m, err := model.New(be, shape, o)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if do != nil {
		if err := do(m, tok); err != nil {
			return nil, err
		}
	}
	out := files{}
	for name, content := range tok.Files() {
		out[name] = bytes.NewBuffer(content)
	}
	return out, m.Save(func(name string) (io.WriteCloser, error) {
		out[name] = &bytes.Buffer{}
		return unclosed{out[name]}, nil
	}, "float32", 1<<30)
}

// learn takes steps of cross entropy, each on 8 of the first 40 rows of train.jsonl.
func learn(m *model.Model, tok *tokenizer.Tokenizer, steps int) error {
	if steps == 0 {
		return nil
	}
	cfg := actor.DefaultConfig()
	cfg.Optim.LR, cfg.GradClip = 5e-3, 1
	a, err := actor.New(m, cfg, actor.DefaultRollout(), steps, 14)
	if err != nil {
		return err
	}
	set, err := data.Open(Letters("train.jsonl"), data.DefaultColumns())
	if err != nil {
		return err
	}
	defer set.Close()
	order, ending :=
		data.NewOrder(40, 1, 0, 1), critic.Ending{EOS: tok.EOS(), Turn: tok.EndOfTurn()}
	for range steps {
		var seqs []model.Seq
		for _, at := range order.Next(8) {
			r, err := set.Row(at)
			if err != nil {
				return err
			}
			var turns []tokenizer.Message
			for _, m := range r.Messages {
				turns = append(turns, tokenizer.Message{Role: m.Role, Content: m.Content})
			}
			prompt, err := tok.ChatPrompt(turns)
			if err != nil {
				return err
			}
			seqs = append(seqs, ending.Seq(prompt,
				append(tok.EncodeText(r.Teacher), tok.EndOfTurn()), false))
		}
		if _, err := a.SFT(seqs); err != nil {
			return err
		}
	}
	return nil
}

// unclosed is a writer with a Close that does nothing.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// folder writes files to a new folder, which is removed when the test ends, and returns its path.
func folder(t testing.TB, made func() (files, error)) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range must(t, made) {
		if err := vfs.WriteFile(vfs.OS, filepath.Join(dir, name), content.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// must returns f's value, or fails the test on its error.
func must[T any](t testing.TB, f func() (T, error)) T {
	t.Helper()
	x, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

var update = flag.Bool("update", false, "rewrite golden files")

// Updating reports whether the tests run with -update.
func Updating() bool { return *update }

// Golden fails the test if got differs from the file at path, or writes the file if the tests run
// with -update.
func Golden(t testing.TB, path string, got []byte) {
	t.Helper()
	if *update {
		if err := vfs.OS.MkdirAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		if err := vfs.WriteFile(vfs.OS, path, got); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	g, w := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(g), len(w)) {
		if !bytes.Equal(g[i], w[i]) {
			t.Fatalf("%s: line %d differs (rewrite it with -update if it should):\n%s\nwant\n%s",
				path, i+1, g[i], w[i])
		}
	}
	t.Fatalf("%s: %d lines, want %d (rewrite it with -update if it should have them)", path, len(g),
		len(w))
}
