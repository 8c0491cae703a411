package model

import (
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/compute/ref"
	"gad/internal/safetensors"
	"gad/model/internal/files"
)

// adaptedOn makes a frozen base and models of it, with adapters that are not zero.
func adaptedOn(t *testing.T, be compute.Backend, arch string, l LoRA) (base, lm, scorer *Model) {
	t.Helper()
	base, err := New(be, tiny(arch), Options{Seed: 3})
	must(t, err)
	shake(base)
	lm, err = base.Adapt(Options{Trainable: true, LoRA: l, Seed: 5})
	must(t, err)
	scorer, err = base.Adapt(Options{Kind: Scorer, Trainable: true, LoRA: l, Seed: 6, ScoreInit: 1})
	must(t, err)
	return base, lm, scorer
}

// Before it is trained an adapted model has its base's bits; afterwards the base has not
// moved, and the merged weights give the adapted model's values.
func TestAdapt(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		families := some(t, be, architectures)
		for i, arch := range slices.Concat(families, families) {
			l := []LoRA{{Rank: 4}, {Rank: 3, Alpha: 5, RSLoRA: true,
				Targets: "q_proj, down_proj"}}[i/len(families)]
			if arch == "Phi3" && l.Rank == 3 {
				l.Targets = "q_proj, k_proj, v_proj, down_proj"
			}
			base, lm, scorer := adaptedOn(t, be, arch, l)
			seqs := seqsOf(29, 9, 21, 4)
			was, _, err := base.LogProbs(seqs, 0.7)
			must(t, err)
			got, _, err := lm.LogProbs(seqs, 0.7)
			must(t, err)
			for i := range was {
				same(t, "an adapter whose B is zero", got[i], was[i])
			}
			var before [][]float32
			for _, p := range base.params {
				before = append(before, values(be, p.W))
			}
			want := 0 // an A, shared by the parts of one matrix, and a B for each
			for i := range base.blocks {
				of := layout{blocks: base.blocks[i : i+1], family: base.family}
				want += len(of.peftModules(l))
				for _, target := range l.targets() {
					want += len(base.blocks[i].weights(target))
				}
			}
			if len(lm.Params()) != want ||
				len(scorer.Params()) != want+1 {
				t.Fatalf("%d and %d parameters, want %d and one more", len(lm.Params()),
					len(scorer.Params()), want)
			}
			for _, m := range []*Model{lm, scorer} {
				opt, err := NewOptimizer(m,
					AdamWConfig{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01})
				must(t, err)
				for range 3 {
					if m == lm {
						must(t, lm.LogProbGrad(seqs, 0.7,
							func(logp, ent [][]float32) (_, _ [][]float32, err error) {
								return logp,
									nil, nil
							}))
					} else {
						must(t, scorer.ScoreGrad(seqs,
							func(s []float32) ([]float32, error) { return s, nil }))
					}
					_, _, err = opt.step(0.05)
					must(t, err)
				}
			}
			for i, p := range base.params {
				same(t, "the base's "+p.Name, values(be, p.W), before[i])
			}
			trained, _, err := lm.LogProbs(seqs, 0.7)
			must(t, err)
			if math.Abs(float64(trained[0][0]-was[0][0])) < 1e-3 {
				t.Error("three steps changed nothing")
			}
			merged, err := lm.Merged()
			must(t, err)
			func() { // three rows at a time, and a rest
				defer func(n int) { mergeElements = n }(mergeElements)
				mergeElements = 3 * base.cfg.Hidden
				parts, err := lm.Merged()
				must(t, err)
				for i, p := range parts.params {
					same(t, "merged in parts: "+p.Name, values(be, p.W),
						values(be, merged.params[i].W))
				}
				must(t, parts.Close())
			}()
			for i, w := range lm.Weights() {
				whole := merged.Weights()[i]
				n := 1
				for _, d := range whole.Shape {
					n *= d
				}
				want, got := make([]float32, n), make([]float32, n)
				must(t, whole.Read(want, 0))
				must(t, w.Read(got[:3], 0))
				must(t, w.Read(got[3:], 3))
				if w.Name != whole.Name || !slices.Equal(w.Shape, whole.Shape) {
					t.Fatalf("weight %d is %s %v, want %s", i, w.Name, w.Shape, whole.Name)
				}
				same(t, "one merged weight at a time: "+w.Name, got, want)
			}
			one, _, err := merged.LogProbs(seqs, 0.7)
			must(t, err)
			for i := range one {
				for j := range one[i] {
					if d := math.Abs(float64(one[i][j] - trained[i][j])); d > 1e-5 {
						t.Fatalf("sequence %d: token %d: merged %g, unmerged %g", i, j, one[i][j],
							trained[i][j])
					}
				}
			}
			scores, err := scorer.Scores(seqs)
			must(t, err)
			judge, err := scorer.Merged()
			must(t, err)
			flat, err := judge.Scores(seqs)
			must(t, err)
			for i := range scores {
				if math.Abs(float64(scores[i]-flat[i])) > 1e-5 {
					t.Errorf("merged score %g, unmerged %g", flat[i], scores[i])
				}
			}
			// A folder of the adapter gives the bits again, whoever is closed first.
			dir := t.TempDir()
			create := func(name string) (io.WriteCloser,
				error) {
				return os.Create(filepath.Join(dir, name))
			}
			must(t, lm.Save(create, "", 0))
			c, err := ReadAdapterConfig(dir)
			must(t, err)
			if c.Base != "" || c.Kind != LM || c.LoRA.Rank != l.Rank ||
				!c.LoRA.same(l) {
				t.Errorf("read %+v of %+v", c, l)
			}
			again, err := Load(be, dir, Options{Base: base})
			must(t, err)
			must(t, base.Close())
			back, _, err := again.LogProbs(seqs, 0.7)
			must(t, err)
			for i := range back {
				for j := range back[i] { // the reference backend has more digits than a file
					if d := math.Abs(float64(back[i][j] - trained[i][j])); d > 0 &&
						(be.Name() != "ref" || d > 1e-6) {
						t.Fatalf("saved and loaded: sequence %d: token %d: %g, was %g", i, j,
							back[i][j], trained[i][j])
					}
				}
			}
			for _, m := range []*Model{again, merged, judge, scorer, lm} {
				must(t, m.Close())
			}
		}
	})
}

// The gradients of adapters and head are the loss's, by finite differences.
func TestAdaptGradients(t *testing.T) {
	be := backends[0].new()
	defer be.Close()
	_, lm, scorer := adaptedOn(t, be, "Qwen2", LoRA{Rank: 2, Alpha: 3})
	seqs := seqsOf(29, 6, 9)
	for _, m := range []*Model{lm, scorer} {
		for _, p := range m.params { // B is zero, and then A has no gradient
			x := values(be, p.W)
			for i := range x {
				x[i] += float32(0.1 * math.Sin(float64(3*i+len(p.Name))))
			}
			be.Upload(p.W, x)
			be.Refresh(p)
		}
		loss := func() (sum float64) {
			if m == lm {
				l, _, err := m.LogProbs(seqs, 1)
				must(t, err)
				for _, row := range l {
					for _, x := range row {
						sum += float64(x)
					}
				}
				return sum
			}
			s, err := m.Scores(seqs)
			must(t, err)
			for _, x := range s {
				sum += float64(x)
			}
			return sum
		}
		if m == lm {
			must(t, m.LogProbGrad(seqs, 1, func(logp, _ [][]float32) (d, _ [][]float32, err error) {
				for _, row := range logp {
					one := make([]float32, len(row))
					for i := range one {
						one[i] = 1
					}
					d = append(d, one)
				}
				return d, nil, nil
			}))
		} else {
			must(t, m.ScoreGrad(seqs,
				func(s []float32) ([]float32, error) { return []float32{1, 1}, nil }))
		}
		for _, p := range m.params {
			x, g := values(be, p.W), values(be, p.G)
			for _, i := range []int{0, len(x) / 2, len(x) - 1} {
				const h = 1e-2
				was := x[i]
				at := func(v float32) float64 {
					x[i] = v
					be.Upload(p.W, x)
					be.Refresh(p)
					return loss()
				}
				slope := (at(was+h) - at(was-h)) / (2 * h)
				at(was)
				if math.Abs(slope-float64(g[i])) > 2e-3*(1+math.Abs(slope)) {
					t.Errorf("%s %s[%d]: gradient %g, slope %g", m.opt.Kind, p.Name, i, g[i], slope)
				}
			}
		}
	}
}

// Log-probabilities, scores, gradients and a step of AdamW against peft, on adapters that
// peft saved (scripts/fixtures_lora.py).
func TestAgainstPeft(t *testing.T) { onEachBackend(t, againstPeft) }

func againstPeft(t *testing.T, be compute.Backend) {
	const dir = "../testdata/lora"
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, entry := range entries {
		t.Run(entry.Name(), func(t *testing.T) {
			folder := filepath.Join(dir, entry.Name())
			c, err := ReadAdapterConfig(folder)
			must(t, err)
			m, err := Load(be, folder, Options{Kind: c.Kind, Trainable: true, LoRA: c.LoRA})
			must(t, err)
			defer m.Close()
			var e struct {
				Sequences []struct {
					IDs    []int32
					Prompt int
					Logp   []float32
					Score  float32
				}
			}
			b, err := os.ReadFile(filepath.Join(folder, "expected.json"))
			must(t, err)
			must(t, json.Unmarshal(b, &e))
			var seqs []Seq
			var logp [][]float32
			var score []float32
			n := 0
			for _, s := range e.Sequences {
				seqs, logp, score =
					append(seqs, Answer(s.IDs, s.Prompt)), append(logp, s.Logp),
					append(score, s.Score)
				n += len(s.Logp)
			}
			if c.Kind == LM {
				must(t, m.LogProbGrad(seqs, 1,
					func(got, _ [][]float32) (d, _ [][]float32, err error) {
						near(t, "log-probability", got, logp, 1e-4) // of some 10 nats: 1e-5 of them
						for _, r := range got {
							d = append(d, slices.Repeat([]float32{-1 / float32(n)}, len(r)))
						}
						return d, nil, nil
					}))
			} else {
				must(t, m.ScoreGrad(seqs, func(got []float32) ([]float32, error) {
					near(t, "score", [][]float32{got}, [][]float32{score}, 1e-5)
					return []float32{1, 2, 3}, nil
				}))
			}
			file, err := safetensors.Open(filepath.Join(folder, "expected_step.safetensors"))
			must(t, err)
			defer file.Close()
			f := m.cfg.arrangement().View(files.FileOf(file))
			if len(f.Names()) != 2*len(m.params) {
				t.Errorf("%d tensors expected of %d parameters", len(f.Names()), len(m.params))
			}
			compare := func(what string, of func(p *compute.Param) compute.Tensor) {
				worst := 0.0
				for _, p := range m.params {
					x, ok := f.Tensor(what + peftName(p))
					if !ok {
						t.Fatalf("no %s%s is expected", what, peftName(p))
					}
					want := make([]float32, p.Len())
					must(t, x.Read(want, 0))
					var diff, norm float64
					for i, g := range values(be, of(p)) {
						d := float64(g) - float64(want[i])
						diff, norm = diff+d*d, norm+float64(want[i])*float64(want[i])
					}
					worst = max(worst, math.Sqrt(diff/norm))
				}
				t.Logf("%s largest relative difference %.2g", what, worst)
				tol := 1e-5
				if m.cfg.Mixer.Layers != nil { // float32's roundings of products of three activations
					tol = 2e-5
				}
				if m.cfg.Stateful() { // and of norms of small outputs: see scripts/fixtures_model.py
					tol = 2e-4
				}
				if !(worst <= tol) {
					t.Errorf("%s: off by %.3g of the norm", what, worst)
				}
			}
			compare("grad.", func(p *compute.Param) compute.Tensor { return p.G })
			opt, err := NewOptimizer(m,
				AdamWConfig{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01})
			must(t, err)
			_, _, err = opt.step(1e-2)
			must(t, err)
			compare("step.", func(p *compute.Param) compute.Tensor { return p.W })
		})
	}
}

// Three roles on one base take at most a quarter more than the base and the activations
// that they share, at the shape of gad bench; and what Plan says.
func TestAdaptMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	be, err := cpu.New(cpu.Options{})
	must(t, err)
	defer be.Close()
	c := Config{Architecture: "Qwen2", Vocab: 4096, Hidden: 384, Layers: 3, Heads: 6, KVHeads: 2,
		HeadDim: 64, FFN: 2816, MaxPosition: 512,
		RMSEps: 1e-6, RopeTheta: 1e6, TieEmbeddings: true, QKVBias: true, DType: "float32"}
	// 8 is 1.28 times the base: the adapters of so narrow a model are a tenth of it each
	l := LoRA{Rank: 4}
	base, err := New(be, c, Options{Repeat: true})
	must(t, err)
	lm, err := base.Adapt(Options{Trainable: true, LoRA: l})
	must(t, err)
	scorer, err := base.Adapt(Options{Kind: Scorer, Trainable: true, LoRA: l})
	must(t, err)
	frozen, err := base.Adapt(Options{LoRA: l})
	must(t, err)
	scorer.Share(lm)
	frozen.Share(lm)
	for _, m := range []*Model{lm, scorer} {
		_, err := NewOptimizer(m, AdamWConfig{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8})
		must(t, err)
	}
	seqs := seqsOf(c.Vocab, 50, 50, 28)
	must(t, lm.LogProbGrad(seqs, 1,
		func(logp, ent [][]float32) (_, _ [][]float32, err error) { return logp, nil, nil }))
	must(t, scorer.ScoreGrad(seqs,
		func(s []float32) ([]float32, error) { return []float32{1, 1, 1}, nil }))
	_, _, err = frozen.LogProbs(seqs, 1)
	must(t, err)
	_, peak := be.Memory()
	const n = 128
	of := c.Plan(be, PlanOptions{Kind: LM})
	one := of.Weights + of.Copies
	plans := []Plan{c.Plan(be, PlanOptions{Kind: LM, Trainable: true, LoRA: l, Tokens: n}),
		c.Plan(be, PlanOptions{Kind: Scorer, Trainable: true, LoRA: l, Tokens: n}),
		c.Plan(be, PlanOptions{Kind: LM, LoRA: l, Tokens: n})}
	whole, scratch := one+SharedActivations(plans...), int64(0)
	for _, p := range plans {
		whole, scratch = whole+p.Total()-p.Activations-p.Scratch, max(scratch, p.Scratch)
	}
	whole += scratch
	limit := one*5/4 + SharedActivations(plans...) + scratch
	t.Logf("base %.1f MB, peak %.1f MB, planned %.1f MB, limit %.1f MB", float64(one)/1e6,
		float64(peak)/1e6, float64(whole)/1e6, float64(limit)/1e6)
	if peak > limit {
		t.Errorf("peak of %d bytes, more than %d", peak, limit)
	}
	if d := float64(peak)/float64(whole) - 1; d > 0.05 || d < -0.1 {
		t.Errorf("peak of %d bytes, planned %d", peak, whole)
	}
	for _, m := range []*Model{lm, scorer, frozen, base} {
		must(t, m.Close())
	}
}

// Targets that no layer has are refused, so that nothing is trained in silence, and so are some of
// the layers that a family stores as one matrix.
func TestAdaptRefusesTargets(t *testing.T) {
	be := ref.New()
	for _, c := range []struct{ arch, targets, want string }{
		{"Llama", "q_proj,in_proj", "in_proj: no layer of this llama has it"},
		{"Lfm2", "in_proj", ""}, {"Lfm2", "q_proj", ""}, {"Llama", allLinear, ""},
		{"Qwen3_5", "q_proj", ""}, {"Qwen3_5", "out_proj,in_proj_a", ""},
		{"Qwen3_5", "in_proj", "in_proj: no layer of this qwen3_5_text has it"},
		{"Phi3", "q_proj", "q_proj without k_proj,v_proj: phi3 stores them as one matrix qkv_proj"},
		{"Phi3", "q_proj,k_proj,v_proj", ""},
	} {
		base, err := New(be, tiny(c.arch), Options{})
		must(t, err)
		m, err := base.Adapt(Options{LoRA: LoRA{Rank: 2, Targets: c.targets}, Trainable: true})
		switch {
		case err == nil && c.want == "":
			must(t, m.Close())
		case err == nil || c.want == "" || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s, %s: %v, want %q", c.arch, c.targets, err, c.want)
		}
		must(t, base.Close())
	}
}
