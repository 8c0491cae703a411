package actor

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/model"
)

// softCase is a case of testdata/golden/sft.json.
type softCase struct {
	Weight float64
	Labels [][]*struct {
		IDs      []int32
		LogProbs []float64
	}
	Loss, KL float64
	GradNorm float64 `json:"grad_norm"`
}

// labels are a case's as SoftSFT takes them.
func (c softCase) labels(t *testing.T) *Soft {
	t.Helper()
	s := &Soft{Weight: c.Weight}
	for _, row := range c.Labels {
		labels := make([]model.SoftLabel, len(row))
		for i, l := range row {
			if l == nil {
				continue
			}
			var err error
			if labels[i], err = model.NewSoftLabel(l.IDs, l.LogProbs); err != nil {
				t.Fatal(err)
			}
		}
		s.Labels = append(s.Labels, labels)
	}
	return s
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fromFolder is an actor over testdata/model/qwen2_tied, and the sequences there.
func fromFolder(t *testing.T, edit func(*Config)) (*Actor, compute.Backend, []model.Seq) {
	t.Helper()
	be, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	const dir = "../testdata/model/qwen2_tied"
	m, err := model.Load(be, dir, model.Options{Kind: model.LM, Trainable: true})
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.GradClip = 0
	if edit != nil {
		edit(&cfg)
	}
	a, err := New(m, cfg, DefaultRollout(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); be.Close() })
	var of struct {
		Sequences []struct {
			IDs    []int32
			Prompt int
		}
	}
	readJSON(t, filepath.Join(dir, "expected.json"), &of)
	var seqs []model.Seq
	for _, s := range of.Sequences {
		seqs = append(seqs, model.Answer(s.IDs, s.Prompt))
	}
	return a, be, seqs
}

// Loss and gradient are PyTorch's, in one pack and in several.
func TestSoftSFTAgainstPyTorch(t *testing.T) {
	var golden struct{ Cases []softCase }
	readJSON(t, "../testdata/golden/sft.json", &golden)
	if len(golden.Cases) < 5 {
		t.Fatal("too few cases")
	}
	for i, c := range golden.Cases {
		for _, pack := range []int{16, 4096} {
			a, _, seqs := fromFolder(t, func(c *Config) { c.MaxTokenLen = pack })
			st, err := a.SoftSFT(seqs, c.labels(t))
			if err != nil {
				t.Fatal(err)
			}
			near := func(what string, got, want float64) {
				if !(math.Abs(got-want) <= 2e-5*(1+math.Abs(want))) {
					t.Errorf("case %d, packs of %d: %s %.8g, want %.8g", i, pack, what, got, want)
				}
			}
			near("loss", st.Loss, c.Loss)
			near("norm of the gradient", st.GradNorm, c.GradNorm)
			if c.Weight > 0 {
				near("KL", st.SoftKL/st.Soft.Tokens, c.KL)
			} else if st.Soft != (model.SoftFigures{}) {
				t.Errorf("case %d: weight 0: %+v", i, st.Soft)
			}
		}
	}
}

// Without labels, with labels that say nothing and with a weight of 0, the update has the bits of
// SFT; with one label it has not.
func TestSoftSFTWithoutLabels(t *testing.T) {
	var want [][]float32
	var wantStats Stats
	for i, soft := range []func(seqs []model.Seq) *Soft{
		func([]model.Seq) *Soft { return nil },
		func(seqs []model.Seq) *Soft { return &Soft{Weight: 1, Labels: make([][]model.SoftLabel, len(seqs))} },
		func(seqs []model.Seq) *Soft {
			s := &Soft{Weight: 1}
			for _, seq := range seqs {
				s.Labels = append(s.Labels, make([]model.SoftLabel, seq.Trained()))
			}
			return s
		},
		func(seqs []model.Seq) *Soft {
			s := &Soft{Labels: make([][]model.SoftLabel, len(seqs))}
			s.Labels[1] = make([]model.SoftLabel, seqs[1].Trained())
			s.Labels[1][3] = model.SoftLabel{IDs: []int32{5}, Logp: []float64{-1}, Rest: 1 - math.Exp(-1)}
			return s
		},
		func(seqs []model.Seq) *Soft {
			s := &Soft{Weight: 1, Labels: make([][]model.SoftLabel, len(seqs))}
			s.Labels[1] = make([]model.SoftLabel, seqs[1].Trained())
			s.Labels[1][3] = model.SoftLabel{IDs: []int32{5}, Logp: []float64{-1}, Rest: 1 - math.Exp(-1)}
			return s
		},
	} {
		a, be, seqs := fromFolder(t, nil)
		st, err := a.SoftSFT(seqs, soft(seqs))
		if err != nil {
			t.Fatal(err)
		}
		var got [][]float32
		for _, p := range a.m.Params() {
			w := make([]float32, p.Len())
			be.Download(w, p.W)
			got = append(got, w)
		}
		if i == 0 {
			want, wantStats = got, st
			continue
		}
		same := st == wantStats
		for k := range want {
			same = same && slices.Equal(got[k], want[k])
		}
		if last := i == 4; same == last {
			t.Errorf("case %d: the bits of SFT: %v", i, same)
		}
	}
}

// Probabilities that are the student's own have no gradient at the label, whichever the tail.
func TestSoftSFTOfTheStudentItself(t *testing.T) {
	a, _, seqs := fromFolder(t, nil)
	for _, k := range []int{1, 4, 97} {
		labels, err := a.m.AllSoftLabels(seqs, k, 97, 1, 4096)
		if err != nil {
			t.Fatal(err)
		}
		st, err := a.SoftSFT(seqs, &Soft{1, labels})
		if err != nil || st.GradNorm > 1e-5 || st.SoftKL > 1e-5 {
			t.Errorf("%d tokens: gradient of norm %g, KL %g, %v", k, st.GradNorm, st.SoftKL, err)
		}
		a, _, seqs = fromFolder(t, nil)
	}
}

// A label that no vocabulary has is an error, and weights that are not finite leave the step out.
func TestSoftSFTRefuses(t *testing.T) {
	a, be, seqs := fromFolder(t, nil)
	soft := &Soft{Weight: 1, Labels: make([][]model.SoftLabel, len(seqs))}
	soft.Labels[0] = make([]model.SoftLabel, seqs[0].Trained())
	soft.Labels[0][0] = model.SoftLabel{IDs: []int32{97}, Logp: []float64{-1}, Rest: .5}
	const want = "actor: soft labels: model: soft labels: sequence 0, token 0: id 97: outside the vocabulary of 97: use labels of the model's own tokenizer"
	if _, err := a.SoftSFT(seqs, soft); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	soft.Labels[0][0].IDs[0] = 5
	p := a.m.Params()[0]
	w := make([]float32, p.Len())
	be.Download(w, p.W)
	w[int(seqs[0].IDs[0])*32] = float32(math.NaN())
	be.Upload(p.W, w)
	for _, soft := range []*Soft{nil, soft} {
		if st, err := a.SoftSFT(seqs, soft); err != nil || st.Skipped != 1 || st.Passes != 0 {
			t.Errorf("%+v, %v: want a step that is left out", st, err)
		}
	}
}
