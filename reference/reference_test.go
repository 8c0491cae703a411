package reference

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gad/internal/compute/cpu"
	"gad/model"
)

// The reference gives the bits that the student gave when its folder was
// written, however the sequences are packed, and has no gradients.
func TestLogProbs(t *testing.T) {
	be, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	m, err := model.New(be, model.Config{Architecture: "Llama", Vocab: 48, Hidden: 16, Layers: 1,
		Heads: 2, KVHeads: 1, HeadDim: 8, FFN: 32,
		MaxPosition: 64, RMSEps: 1e-6, RopeTheta: 10000, DType: "float32"},
		model.Options{Kind: model.LM, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := t.TempDir()
	create := func(name string) (io.WriteCloser,
		error) {
		return os.Create(filepath.Join(dir, name))
	}
	if err := m.Save(create, "float32", 1<<30); err != nil {
		t.Fatal(err)
	}
	seqs := []model.Seq{model.Answer([]int32{1, 2, 3, 4, 5}, 2), model.Answer([]int32{6, 7, 8}, 1)}
	want, _, err := m.AllLogProbs(seqs, 0.8, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, tokens := range []int{1, 100} {
		p, err := Open(be, dir, tokens)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.LogProbs(seqs, 0.8)
		if err != nil {
			t.Fatal(err)
		}
		for s := range want {
			if !slices.Equal(got[s], want[s]) {
				t.Errorf("%d tokens a pass: sequence %d: %v, want %v", tokens, s, got[s], want[s])
			}
		}
		for _, x := range p.m.Params() {
			if !x.G.Absent() || !x.M.Absent() {
				t.Errorf("%s has a gradient or a moment", x.Name)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := Open(be, filepath.Join(dir, "nowhere"), 1); err == nil {
		t.Error("a folder that is not there opens")
	}
}
