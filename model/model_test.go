package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/compute/ref"
	"gad/internal/hostile"
	"gad/internal/safetensors"
	"gad/model/internal/architecture"
	"gad/model/internal/files"
)

const fixtures = "../testdata/model"

// backends are all that a test of the whole model runs on.
var backends = []struct {
	name string
	new  func() compute.Backend
}{
	{"ref", func() compute.Backend { return ref.New() }},
	{"cpu", func() compute.Backend {
		be, err := cpu.New(cpu.Options{})
		if err != nil {
			panic(err)
		}
		return be
	}},
}

// onBackends runs a test on each backend; with -short on the CPU alone. What a model computes does
// not depend on the backend's code, but for what fixtures and differences say (onEachBackend).
func onBackends(t *testing.T, f func(t *testing.T, be compute.Backend)) {
	on(t, testing.Short(), f)
}

// onEachBackend runs a test of figures on each backend.
func onEachBackend(t *testing.T, f func(t *testing.T, be compute.Backend)) { on(t, false, f) }

// on runs a test on each backend, or on all but the reference.
func on(t *testing.T, fast bool, f func(t *testing.T, be compute.Backend)) {
	for _, b := range backends {
		if fast && b.name == "ref" {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			be := b.new()
			t.Cleanup(func() {
				if err := be.Close(); err != nil {
					t.Error(err)
				}
			})
			f(t, be)
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// architectures are the names of families, in order.
var architectures = slices.Sorted(maps.Keys(architecture.Families))

// some returns the families or folders that a test tries on a backend. Without GAD_LONG it takes
// every second, on the reference every sixth; the length of the test's name says which.
func some(t *testing.T, be compute.Backend, of []string) (out []string) {
	every := 2
	if _, slow := be.(*ref.Backend); slow {
		every = 6
	}
	for i, name := range of {
		if hostile.InTurn(i, len(t.Name()), every) {
			out = append(out, name)
		}
	}
	return out
}

// tiny is a configuration of the named architecture in which every size differs, with what
// is particular to its family.
func tiny(arch string) Config {
	f := architecture.Families[arch]
	c := Config{
		Architecture: arch, Hidden: 12, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 6, FFN: 20,
		Vocab: 29, MaxPosition: 128,
		RMSEps: 1e-5, RopeTheta: 1e4, QKVBias: f.Spec.QKVBias,
		QKNorm:    f.Spec.QKNorm != architecture.NoNorm,
		InitRange: 0.4, TieEmbeddings: arch == "Qwen2" || arch == "Granite",
	}
	switch f.Windows {
	case architecture.EveryLayer:
		c.Window = 5
	case architecture.LayerByType:
		c.Window, c.Sliding = 5, []bool{true, false}
		if f.LocalRope != architecture.Alike {
			c.LocalTheta = 100
		}
	}
	if f.NoRope == architecture.ByLayer {
		c.NoRope = []bool{false, true}
	}
	switch f.Mixer {
	case architecture.ShortConv:
		c.Mixer = Mixer{Layers: []bool{true, false}, Taps: 3}
	case architecture.DeltaRule:
		c.RotaryDim = 4
		c.Mixer = Mixer{Layers: []bool{true, false}, Taps: 3, KeyHeads: 2, ValueHeads: 4, KeyDim: 7,
			ValueDim: 11}
	}
	if f.AttentionOf != "" {
		c.AttnScale = 0.3
	}
	if f.QueryScale { // the positions of tests are beyond the original ones
		c.RopeScaling = &RopeScaling{Type: "yarn", Factor: 4, OriginalMaxPosition: 6, BetaFast: 2,
			BetaSlow: 0.1, AttentionFactor: 1.2, QueryBeta: 0.4}
	}
	if f.LongRope {
		c.RotaryDim = 4
		c.RopeScaling = &RopeScaling{Type: "longrope", OriginalMaxPosition: 128, Stretched: 512,
			AttentionFactor: 1.1, ShortFactors: []float64{1.1, 2.3},
			LongFactors: []float64{1.5, 9}}
	}
	if f.Caps {
		c.ScoreCap, c.LogitCap = 1.5, 2.5
	}
	if f.Multipliers {
		c.EmbedScale, c.ResidualScale, c.LogitDivisor = 3, 0.4, 2
	}
	return c
}

// load loads a fixture, or fails.
func load(t testing.TB, be compute.Backend, name string, o Options) *Model {
	t.Helper()
	m, err := Load(be, filepath.Join(fixtures, name), o)
	must(t, err)
	return m
}

// shake makes norms and biases differ from their initial ones and zeros, so
// that a gradient that misses them is seen.
func shake(m *Model) {
	for i, p := range m.params {
		if len(p.Shape) == 1 {
			m.fill(p,
				func(j int) float32 { return float32(0.75+math.Sin(float64(7*i+j))/2) - p.Offset })
		}
	}
}

// seqsOf makes sequences of the given lengths; a prompt is a third, at least one.
func seqsOf(vocab int, lengths ...int) []Seq {
	var out []Seq
	for i, n := range lengths {
		ids := make([]int32, 0, n)
		for j := range n {
			ids = append(ids, int32((7*i*i+5*j+j*j*(i+1))%vocab))
		}
		out = append(out, Answer(ids, max(1, n/3)))
	}
	return out
}

// dir is a folder that Save can write to.
type dir string

func (d dir) create(name string) (io.WriteCloser, error) {
	return os.Create(filepath.Join(string(d), name))
}

type expected struct {
	Sequences []struct {
		IDs    []int32 `json:"ids"`
		Prompt int     `json:"prompt"`
	} `json:"sequences"`
	Values []struct {
		Temperature float64     `json:"temperature"`
		Logp        [][]float32 `json:"logp"`
		Entropy     [][]float32 `json:"entropy"`
	} `json:"values"`
	Scores []float32 `json:"scores"`
}

func (e expected) seqs() []Seq {
	var s []Seq
	for _, x := range e.Sequences {
		s = append(s, Answer(x.IDs, x.Prompt))
	}
	return s
}

func readExpected(t *testing.T, name string) expected {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(fixtures, name, "expected.json"))
	must(t, err)
	var e expected
	must(t, json.Unmarshal(b, &e))
	return e
}

// near compares rows of values with an absolute tolerance.
func near(t *testing.T, what string, got, want [][]float32, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d rows, want %d", what, len(got), len(want))
	}
	worst := 0.0
	for i := range want {
		if len(got[i]) != len(want[i]) {
			t.Fatalf("%s: row %d: %d values, want %d", what, i, len(got[i]), len(want[i]))
		}
		for j := range want[i] {
			d := math.Abs(float64(got[i][j]) - float64(want[i][j]))
			worst = max(worst, d)
			if !(d <= tol) {
				t.Fatalf("%s: row %d: token %d: %g, want %g", what, i, j, got[i][j], want[i][j])
			}
		}
	}
	t.Logf("%s: largest difference %.2g", what, worst)
}

// same wants equal bits.
func same(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: value %d: %x (%g), want %x (%g)", what, i, math.Float32bits(got[i]),
				got[i], math.Float32bits(want[i]), want[i])
		}
	}
}

func values(be compute.Backend, x compute.Tensor) []float32 {
	v := make([]float32, x.Len())
	be.Download(v, x)
	return v
}

// lmFolders are the language models of testdata/model and scorerFolders the scorers, all that
// scripts/fixtures_model.py has written: a new architecture is tested once its folder is there.
var lmFolders, scorerFolders = func() (lms, scorers []string) {
	entries, err := os.ReadDir(fixtures)
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), "_scorer") {
			scorers = append(scorers, e.Name())
		} else {
			lms = append(lms, e.Name())
		}
	}
	return lms, scorers
}()

// Log-probabilities, entropies and gradients against transformers, per
// architecture and way of storing weights.
func TestAgainstTransformers(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, be compute.Backend) {
		for _, name := range lmFolders {
			t.Run(name, func(t *testing.T) {
				e := readExpected(t, name)
				m := load(t, be, name, Options{Trainable: true})
				defer m.Close()
				seqs := e.seqs()
				for _, v := range e.Values {
					logp, ent, err := m.LogProbs(seqs, v.Temperature)
					must(t, err)
					near(t, "log-probability", logp, v.Logp, 1e-4)
					near(t, "entropy", ent, v.Entropy, 1e-4)
				}
				must(t, m.LogProbGrad(seqs, 1,
					func(logp, _ [][]float32) (d, _ [][]float32, err error) {
						near(t, "log-probability in training", logp, e.Values[0].Logp, 1e-4)
						n := 0
						for _, r := range logp {
							n += len(r)
						}
						for _, r := range logp {
							g := make([]float32, len(r))
							for j := range g {
								g[j] = -1 / float32(n)
							}
							d = append(d, g)
						}
						return d, nil, nil
					}))
				gradients(t, m, name)
			})
		}
		for _, name := range scorerFolders {
			t.Run(name, func(t *testing.T) {
				e := readExpected(t, name)
				m := load(t, be, name, Options{Kind: Scorer, Trainable: true})
				defer m.Close()
				s, err := m.Scores(e.seqs())
				must(t, err)
				near(t, "score", [][]float32{s}, [][]float32{e.Scores}, 1e-4)
				must(t, m.ScoreGrad(e.seqs(), func(s []float32) ([]float32, error) {
					near(t, "score in training", [][]float32{s}, [][]float32{e.Scores}, 1e-4)
					return []float32{1, 2, 3, 4}, nil
				}))
				gradients(t, m, name)
			})
		}
	})
}

// gradients compares every gradient tensor by name, and where the fixture has them the weights
// after one step of AdamW.
func gradients(t *testing.T, m *Model, name string) {
	t.Helper()
	compareTensors(t, m, "gradient", filepath.Join(fixtures, name, "expected_grad.safetensors"),
		func(p *compute.Param) compute.Tensor { return p.G }, 1e-2, 1e-4)
	stepped := filepath.Join(fixtures, name, "expected_step.safetensors")
	if _, err := os.Stat(stepped); err != nil {
		return
	}
	opt, err := NewOptimizer(m,
		AdamWConfig{Beta1: 0.9, Beta2: 0.999, Eps: 1e-4, WeightDecay: 0.01})
	must(t, err)
	_, _, err = opt.step(1e-2)
	must(t, err)
	compareTensors(t, m, "weight after a step", stepped,
		func(p *compute.Param) compute.Tensor { return p.W }, 0, 5e-5)
}

// compareTensors compares a tensor of every parameter with the one of its name in a file: the norm
// of the difference against the norm of what is expected and a floor.
func compareTensors(t *testing.T, m *Model, what, path string,
	of func(p *compute.Param) compute.Tensor, floor, tol float64) {
	t.Helper()
	file, err := safetensors.Open(path)
	must(t, err)
	defer file.Close()
	f := m.cfg.arrangement().View(files.FileOf(file))
	if len(f.Names()) != len(m.params) {
		t.Errorf("%s: %d tensors, want %d", what, len(m.params), len(f.Names()))
	}
	worst := 0.0
	for _, p := range m.params {
		x, ok := f.Tensor(p.Name)
		if !ok {
			t.Errorf("no expected %s for %s", what, p.Name)
			continue
		}
		want := make([]float32, p.Len())
		must(t, x.Read(want, 0))
		var diff, norm float64
		for i, g := range values(m.be, of(p)) {
			d := float64(g) - float64(want[i])
			diff, norm = diff+d*d, norm+float64(want[i])*float64(want[i])
		}
		// The bias of k shifts all scores of a query alike: its gradient is zero up
		// to rounding, which the absolute term allows for.
		rel := math.Sqrt(diff) / (math.Sqrt(norm) + floor)
		worst = max(worst, rel)
		if !(rel <= tol) {
			t.Errorf("%s of %s: off by %.3g of its norm %.3g", what, p.Name, rel, math.Sqrt(norm))
		}
	}
	t.Logf("%s: largest relative difference %.2g", what, worst)
}

// Longrope's short factors hold for the original positions, the last one included; a longer
// sequence, whose positions transformers would all turn by the long factors, is refused.
func TestLongRopeEnds(t *testing.T) {
	m := load(t, ref.New(), "phi3", Options{})
	defer m.Close()
	seqs := seqsOf(97, 64)
	whole, _, err := m.LogProbs(seqs, 1)
	must(t, err)
	part, _, err := m.LogProbs([]Seq{Answer(seqs[0].IDs[:63], seqs[0].Prompt())}, 1)
	must(t, err)
	same(t, "before the last position", part[0], whole[0][:len(part[0])])
	if _, _, err = m.LogProbs(seqsOf(97, 65), 1); err == nil ||
		!strings.Contains(err.Error(), "longrope's original_max_position_embeddings 64") {
		t.Errorf("%v", err)
	}
}

func TestPacks(t *testing.T) {
	var seqs []Seq
	for _, n := range []int{3, 4, 10, 1, 1, 1, 7} {
		seqs = append(seqs, Seq{IDs: make([]int32, n)})
	}
	got, _ := json.Marshal(Packs(seqs, 7))
	if want := "[[0,1],[2],[3,4,5],[6]]"; string(got) != want {
		t.Errorf("packs %s, want %s", got, want)
	}
	if p := Packs(nil, 7); len(p) != 0 {
		t.Errorf("packs of nothing: %v", p)
	}
}

// Sequences with the same prompt are neighbours, and its tokens count once; only where
// they alone are more than a pack are they divided, whatever else there is.
func TestPacksShare(t *testing.T) {
	answers := func(prompt int32, length int, answers ...int) (seqs []Seq) {
		for _, n := range answers {
			s := Answer(make([]int32, length+n), length)
			s.IDs[0] = prompt
			seqs = append(seqs, s)
		}
		return seqs
	}
	for _, c := range []struct {
		name string
		seqs []Seq
		want string
	}{
		{"a prompt of five, three answers: ten tokens", answers(1, 5, 1, 2, 2), "[[0,1,2]]"},
		{"two prompts", slices.Concat(answers(1, 3, 1, 1), answers(2, 3, 1, 1)), "[[0,1,2,3]]"},
		{"the second does not fit", slices.Concat(answers(1, 3, 1, 1), answers(2, 3, 1, 2)),
			"[[0,1],[2,3]]"},
		{"gathered where the first stands",
			slices.Concat(answers(1, 4, 1), answers(2, 2, 1), answers(1, 4, 1)), "[[0,2,1]]"},
		{"more than a pack: by themselves",
			slices.Concat(answers(9, 1, 1), answers(1, 4, 3, 3, 3, 3), answers(8, 1, 1)),
			"[[0],[1,2],[3,4],[5]]"},
		{"the rest of it has room", slices.Concat(answers(1, 4, 3, 3, 3), answers(8, 1, 1)),
			"[[0,1],[2,3]]"},
		// 4 + 1 + 4
		{"no answer: the prompt's last token is its own", answers(1, 5, 0, 3), "[[0,1]]"},
		{"the same first token of another length",
			slices.Concat(answers(1, 5, 1), answers(1, 4, 2)), "[[0],[1]]"},
	} {
		if got, _ := json.Marshal(Packs(c.seqs, 10)); string(got) != c.want {
			t.Errorf("%s: packs %s, want %s", c.name, got, c.want)
		}
	}
	if got := fmt.Sprint(Segments(
		slices.Concat(answers(1, 5, 1, 0), answers(2, 3, 2)))); got != "[{4 0} {2 4} {1 4} {5 0}]" {
		t.Errorf("segments %s", got)
	}
}

// What shares a prompt has the bits of what does not, and gradients equal but for the
// order of the sums over those that share it.
func TestSharedPrompts(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 5))
	var seqs []Seq
	// a prompt's length, and its answers'
	for _, g := range [][]int{{40, 9, 1, 30}, {1, 5, 7}, {3, 0, 4}, {12, 6}, {70, 33, 2, 0, 19}} {
		prompt := make([]int32, g[0])
		for i := range prompt {
			prompt[i] = int32(r.IntN(29))
		}
		for _, n := range g[1:] {
			ids := slices.Clone(prompt)
			for range n {
				ids = append(ids, int32(r.IntN(29)))
			}
			seqs = append(seqs, Answer(ids, len(prompt)))
		}
	}
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, arch := range some(t, be, architectures) {
			lm, scorer := networks(t, be, arch)
			defer lm.Close()
			defer scorer.Close()
			var tokens, told []int // of each pass, and how often they were told
			lm.Watch(func(n int) { tokens[len(tokens)-1] += n; told[len(told)-1]++ })
			begin := func() { tokens, told = append(tokens, 0), append(told, 0) }
			type result struct{ values, grads [][]float32 }
			pass := func(apart bool) (out result) {
				lm.unshared, scorer.unshared = apart, apart
				begin()
				l, e, err := lm.LogProbs(seqs, 0.8)
				must(t, err)
				v, err := scorer.Scores(seqs)
				must(t, err)
				out.values = append(append(append(out.values, l...), e...), v)
				begin()
				learns(t, lm, seqs, l, e)
				must(t, scorer.ScoreGrad(seqs, func(score []float32) ([]float32, error) {
					same(t, "score with a gradient", score, v)
					return score, nil
				}))
				for _, m := range []*Model{lm, scorer} {
					for _, p := range m.params {
						out.grads = append(out.grads, values(be, p.G))
						be.Zero(p.G)
					}
				}
				return out
			}
			want, got := pass(true), pass(false)
			for i := range want.values {
				same(t, "value", got.values[i], want.values[i])
			}
			worst := worstGradient(got.grads, want.grads)
			limit := 1e-5
			if be.Name() == "ref" {
				limit = 1e-12 // but for the rounding of what is read
			}
			if worst > limit {
				t.Errorf("%s: a gradient is off by %.3g of its norm", be.Name(), worst)
			}
			if sum := tokens[2]; tokens[0] <= sum || tokens[1] <= sum {
				t.Errorf("tokens of the passes %v: want fewer with shared prompts", tokens)
			}
			// Each pass tells all its tokens, and does so from block to block.
			if l := len(lm.blocks); tokens[0] != tokens[1] || tokens[2] != tokens[3] ||
				told[0] != l || told[1] != 2*l {
				t.Errorf("tokens of the passes %v, told in %v parts by %d blocks", tokens, told, l)
			}
			t.Logf("%s, %s: gradients off by %.2g, tokens %v", be.Name(), arch, worst, tokens)
		}
	})
}

// A sequence has the same bits alone, in any pack, at any place in it.
func TestPackIndependence(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		lm := load(t, be, "qwen2_tied", Options{})
		defer lm.Close()
		scorer := load(t, be, "qwen2_scorer", Options{Kind: Scorer})
		defer scorer.Close()
		seqs := seqsOf(97, 9, 1, 33, 2, 17, 64, 5)
		var logp, ent [][]float32
		var score []float32
		for _, s := range seqs {
			l, e, err := lm.LogProbs([]Seq{s}, 0.8)
			must(t, err)
			v, err := scorer.Scores([]Seq{s})
			must(t, err)
			logp, ent, score = append(logp, l[0]), append(ent, e[0]), append(score, v[0])
		}
		orders := [][]int{{0, 1, 2, 3, 4, 5, 6}, {6, 5, 4, 3, 2, 1, 0}, {2, 2, 5}, {3, 0, 4, 1}}
		for r := rand.New(rand.NewPCG(7, 7)); len(orders) < 32; {
			orders = append(orders, r.Perm(len(seqs))[:1+r.IntN(len(seqs))])
		}
		for _, order := range orders {
			var part []Seq
			for _, i := range order {
				part = append(part, seqs[i])
			}
			l, e, err := lm.LogProbs(part, 0.8)
			must(t, err)
			v, err := scorer.Scores(part)
			must(t, err)
			for j, i := range order {
				same(t, "log-probability", l[j], logp[i])
				same(t, "entropy", e[j], ent[i])
				same(t, "score", v[j:j+1], score[i:i+1])
			}
		}
		t.Logf("row 7: neighbours: %d sequences alone and in %d compositions of a batch: log-probability, entropy and score bit-equal", len(seqs), len(orders))
	})
}

// Recomputing blocks changes no bit, neither of values nor of gradients; nor
// does the memory left by another pack.
func TestRecompute(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		var left []int64
		families := some(t, be, architectures)
		for _, arch := range slices.Concat(families, families) {
			var grads [2][][]float32
			var logps [2][][]float32
			for i, recompute := range []bool{false, true} {
				m, err := New(be, tiny(arch),
					Options{Trainable: true, Recompute: recompute, Seed: 3})
				must(t, err)
				shake(m)
				_, _, err = m.LogProbs(seqsOf(29, 40), 1) // leaves its activations behind
				must(t, err)
				seqs := seqsOf(29, 9, 21, 4)
				must(t, m.LogProbGrad(seqs, 0.7,
					func(logp, ent [][]float32) (_, _ [][]float32, err error) {
						logps[i] = logp
						return logp, ent, nil
					}))
				for _, p := range m.params {
					grads[i] = append(grads[i], values(be, p.G))
				}
				l, _, err := m.LogProbs(seqs, 0.7)
				must(t, err)
				for j := range l {
					same(t, "inference against training", l[j], logps[i][j])
				}
				must(t, m.Close())
			}
			for j := range grads[0] {
				same(t, "gradient", grads[1][j], grads[0][j])
			}
			for j := range logps[0] {
				same(t, "log-probability", logps[1][j], logps[0][j])
			}
			inUse, _ := be.Memory()
			left = append(left, inUse)
		}
		// What stays is the backend's own scratch: nothing of a model.
		if n := len(families); left[2*n-1] != left[n-1] {
			t.Errorf("%d bytes in use after closing %d models, %d after as many more", left[n-1], n,
				left[2*n-1])
		}
	})
}

// The number of workers changes no bit of values, gradients or samples.
func TestWorkers(t *testing.T) {
	var want [][]float32
	for _, workers := range []int{1, 2, 5} {
		be, err := cpu.New(cpu.Options{Workers: workers})
		must(t, err)
		m := load(t, be, "qwen3", Options{Trainable: true})
		var got [][]float32
		must(t, m.LogProbGrad(seqsOf(97, 50, 7, 31), 0.7,
			func(logp, ent [][]float32) (_, _ [][]float32, err error) {
				got = append(append(got, logp...), ent...)
				return logp, ent, nil
			}))
		for _, p := range m.params {
			got = append(got, values(be, p.G))
		}
		prompts, rows := samplePrompts()
		out, err := m.Generate(prompts, rows, sampleOptions(), nil)
		must(t, err)
		for _, cs := range out {
			for _, c := range cs {
				got = append(got, c.Logp)
			}
		}
		if want == nil {
			want = got
		}
		for i := range want {
			same(t, "workers", got[i], want[i])
		}
		must(t, m.Close())
		must(t, be.Close())
	}
}

func TestPackErrors(t *testing.T) {
	be := ref.New()
	m, err := New(be, tiny("Qwen2"), Options{Trainable: true})
	must(t, err)
	defer m.Close()
	long := make([]int32, 129)
	for name, s := range map[string]Seq{
		"empty":            {},
		"no prompt":        {IDs: []int32{1, 2}},
		"prompt too long":  Answer([]int32{1, 2}, 3),
		"unknown token":    Answer([]int32{1, 29}, 1),
		"negative token":   Answer([]int32{-1, 2}, 1),
		"beyond positions": Answer(long, 1),
	} {
		if _, _, err := m.LogProbs([]Seq{s}, 1); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	ok := []Seq{Answer([]int32{1, 2, 3}, 1)}
	for _, temperature := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, _, err := m.LogProbs(ok, temperature); err == nil {
			t.Errorf("temperature %g: accepted", temperature)
		}
	}
	if _, err := m.Scores(ok); err == nil {
		t.Error("scores of a language model: accepted")
	}
	stop := errors.New("stop")
	if err := m.LogProbGrad(ok, 1,
		func(_, _ [][]float32) (_, _ [][]float32, err error) { return nil, nil, stop }); !errors.Is(
		err, stop) {
		t.Errorf("error of seed: %v", err)
	}
	for _, d := range [][][]float32{nil, {{1}}, {{1, 2, 3}}, {{1, 2}, {}}} {
		if err := m.LogProbGrad(ok, 1,
			func(_, _ [][]float32) (_, _ [][]float32, err error) {
				return d, nil,
					nil
			}); err == nil {
			t.Errorf("gradient of wrong shape %v: accepted", d)
		}
	}
	frozen, err := New(be, tiny("Qwen2"), Options{})
	must(t, err)
	defer frozen.Close()
	if err := frozen.LogProbGrad(ok, 1, nil); err == nil {
		t.Error("gradient of a frozen model: accepted")
	}
	// Nothing to predict: no values, no error.
	l, e, err := m.LogProbs([]Seq{Answer([]int32{1, 2}, 2)}, 1)
	if err != nil || len(l) != 1 || len(l[0]) != 0 || len(e) != 1 {
		t.Errorf("empty response: %v %v %v", l, e, err)
	}
}

// worstGradient is the largest distance of a gradient from the one that is wanted, in shares of
// the latter's norm.
func worstGradient(got, want [][]float32) (worst float64) {
	for i := range want {
		var diff, norm float64
		for j, w := range want[i] {
			d := float64(got[i][j]) - float64(w)
			diff, norm = diff+d*d, norm+float64(w)*float64(w)
		}
		worst = max(worst, math.Sqrt(diff)/(math.Sqrt(norm)+1e-3))
	}
	return worst
}

// networks are a student and a discriminator with shaken weights, which the caller closes.
func networks(t *testing.T, be compute.Backend, arch string) (lm, scorer *Model) {
	t.Helper()
	lm, err := New(be, tiny(arch), Options{Trainable: true, Seed: 3})
	must(t, err)
	scorer, err = New(be, tiny(arch), Options{Kind: Scorer, Trainable: true, Seed: 4, ScoreInit: 1})
	must(t, err)
	shake(lm)
	shake(scorer)
	return lm, scorer
}

// learns adds the gradient of log-probabilities and entropies by themselves, which must be those
// of the pass without one.
func learns(t *testing.T, lm *Model, seqs []Seq, logpST, entST [][]float32) {
	t.Helper()
	must(t, lm.LogProbGrad(seqs, 0.8,
		func(logp, ent [][]float32) (_, _ [][]float32, err error) {
			for i := range logp {
				same(t, "log-probability with a gradient", logp[i], logpST[i])
				same(t, "entropy with a gradient", ent[i], entST[i])
			}
			return logp, ent, nil
		}))
}
