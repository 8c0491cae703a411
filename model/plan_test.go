package model

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/compute/cuda"
	"gad/internal/compute/ref"
	"gad/model/internal/files"
)

// qwen7B is the shape of Qwen2.5-7B.
var qwen7B = Config{Architecture: "Qwen2", Hidden: 3584, Layers: 28, Heads: 28, KVHeads: 4,
	HeadDim: 128, FFN: 18944, Vocab: 152064, MaxPosition: 32768, RMSEps: 1e-6, RopeTheta: 1e6,
	QKVBias: true}

// Bytes a parameter, and what moments in 8 bits and in the host's memory take, counted by
// hand on a shape whose parameters are known.
func TestPlanOfMoments(t *testing.T) {
	f := cuda.Options{}
	n := qwen7B.ParamCount(LM)
	vectors, coded8, scales := int64(0), int64(0), int64(0)
	for _, w := range qwen7B.arrange(LM).params {
		switch {
		case len(w.Shape) == 1:
			vectors += int64(w.Len())
		case w.Name != files.EmbedName && w.Name != files.HeadName:
			coded8 += int64(w.Len())
			scales += int64((w.Len() + 255) / 256)
		}
	}
	if vectors != 28*(2*3584+3584+2*512)+3584 ||
		coded8 != 28*(2*3584*3584+2*512*3584+3*18944*3584) {
		t.Fatalf("%d elements of vectors, %d of linear layers", vectors, coded8)
	}
	eight := 2*coded8 + 8*scales + 8*(n-coded8)
	// blocks says that got is want, in blocks of whole pages: 2 % more, or 3 % of moments in 8
	// bits.
	blocks := func(got, want int64) bool {
		most := want / 50
		if want == eight {
			most = want * 3 / 100
		}
		return got >= want && got <= want+most
	}
	for _, c := range []struct {
		o             PlanOptions
		moments, host int64
	}{
		{PlanOptions{Trainable: true}, 8 * n, 0},
		{PlanOptions{Trainable: true, Offload: true}, 0, 8 * n},
		{PlanOptions{Trainable: true, Moments8: true}, eight, 0},
		{PlanOptions{Trainable: true, Moments8: true, Offload: true}, 0, eight},
	} {
		p := qwen7B.Plan(f, c.o)
		if !blocks(p.Moments, c.moments) || p.HostMoments != c.host {
			t.Errorf("%+v: moments of %d bytes and %d on the host, want %d and %d", c.o, p.Moments,
				p.HostMoments, c.moments, c.host)
		}
		if !blocks(p.Weights, 4*n) || p.Copies != 0 || p.Gradients < 4*n ||
			p.Gradients > 4*n+28*12*256+2<<20 {
			t.Errorf("%+v: weights %d, copies %d, gradients %d, want 4, 0 and 4 bytes a parameter",
				c.o, p.Weights, p.Copies, p.Gradients)
		}
	}
	frozen := qwen7B.Plan(f, PlanOptions{})
	if !blocks(frozen.Weights, 2*n+2*vectors) || frozen.Copies != 0 {
		t.Errorf("frozen: weights %d and copies %d, want 2 bytes a parameter, and 4 of a vector's",
			frozen.Weights, frozen.Copies)
	}
	// Where there is no other memory, offloaded moments stay where they are.
	be := ref.New()
	defer be.Close()
	small := tiny("Qwen3")
	if p, q :=
		small.Plan(be, PlanOptions{Trainable: true, Offload: true}),
		small.Plan(be, PlanOptions{Trainable: true}); p.HostMoments != 0 || p.Moments != q.Moments {
		t.Errorf("one memory: %d bytes of moments and %d on the host, want %d and none", p.Moments,
			p.HostMoments, q.Moments)
	}
}

// Caches lie in a lent buffer one after another, each at a multiple of 64 elements, as
// long as they fit.
func TestPlanOfLentCache(t *testing.T) {
	f := cuda.Options{} // 2 bytes in a cache, 4 in the buffer
	for _, c := range []struct {
		room, caches, n int
		want            int64
	}{
		{0, 4, 100, 4 * 512}, // a block each
		{64, 4, 100, 3 * 512},
		{128, 4, 100, 2 * 512},
		{192, 4, 100, 512},
		{256, 4, 100, 0},
		{64, 1, 128, 0},
		{64, 1, 129, 512}, // half an element more
		{0, 3, 1 << 20, 3 * 2 << 20},
		{0, 3, 1<<20 + 1, 3 * 4 << 20},
	} {
		if got := cacheBytes(f, c.room, slices.Repeat([]elements{{compute.Narrow, c.n}},
			c.caches)); got != c.want {
			t.Errorf("%d caches of %d in a buffer of %d: %d bytes beside it, want %d", c.caches,
				c.n, c.room, got, c.want)
		}
	}
	o := PlanOptions{Slots: 64, N: 8, Prompts: 128, PromptTokens: 2048, MaxNew: 1536}
	frozen := qwen7B.Plan(f, o)
	o.Trainable = true
	if p := qwen7B.Plan(f, o); frozen.Lent != 0 || p.Cache != 0 || p.Lent != frozen.Cache {
		t.Errorf("trained: %d bytes of cache and %d in the gradients, frozen %d and %d", p.Cache,
			p.Lent, frozen.Cache, frozen.Lent)
	}
	// Adapters' gradients take no more than four of the caches, and a model's that learns in
	// turn all of them.
	o.LoRA = LoRA{Rank: 64}
	one := frozen.Cache / int64(2*qwen7B.Layers)
	if p := qwen7B.Plan(f, o); p.Lent != p.Gradients/one*one || p.Lent != 4*one ||
		p.Cache != frozen.Cache-p.Lent {
		t.Errorf("adapters with %d bytes of gradients: %d bytes of cache and %d in the gradients",
			p.Gradients, p.Cache, p.Lent)
	}
	o.Turns = 4 * qwen7B.ParamCount(Scorer)
	if p := qwen7B.Plan(f, o); p.Cache != 0 || p.Lent != frozen.Cache {
		t.Errorf("adapters, in turn with a whole model: %d bytes of cache and %d in the gradients",
			p.Cache, p.Lent)
	}
}

// The plan is what two models take that learn in turn, and whose caches lie in their
// gradients.
func TestPlanOfTurns(t *testing.T) {
	be := ref.New()
	defer be.Close()
	c := tiny("Qwen3")
	student, err := New(be, c, Options{Trainable: true})
	must(t, err)
	scorer, err := New(be, c, Options{Kind: Scorer, Trainable: true, Turns: student})
	must(t, err)
	scorer.Share(student)
	for _, m := range []*Model{student, scorer} {
		_, err := NewOptimizer(m, adamw())
		must(t, err)
	}
	o := PlanOptions{Trainable: true, Slots: 12, N: 6, Prompts: 2, PromptTokens: 21, MaxNew: 9}
	o.Turns = c.Plan(be, PlanOptions{Kind: Scorer, Trainable: true}).Gradients
	plan, other := c.Plan(be, o), c.Plan(be, PlanOptions{Kind: Scorer, Trainable: true})
	prompt := make([]int32, o.PromptTokens)
	_, err = student.Generate([][]int32{prompt, prompt}, []uint64{0, 1},
		SampleOptions{N: o.N, MaxNew: o.MaxNew, Slots: o.Slots}, nil)
	must(t, err)
	_, peak := be.Memory()
	want := plan.Total() + other.Total() - min(plan.Gradients, other.Gradients)
	small := int64(8 * (128*c.HeadDim + 82*c.Hidden)) // the rotary table, outputs at prompts' ends
	if peak < want || peak > want+small || plan.Lent == 0 || plan.Cache == 0 {
		t.Errorf("planned %d bytes, %d of cache in the gradients and %d beside them; took %d", want,
			plan.Lent, plan.Cache, peak)
	}
	must(t, scorer.Close())
	must(t, student.Close())
}

// On the CPU the plan of layers of the gated delta rule is what they take, within 5 %: the
// operation's scratch memory, the states of sequences.
func TestPlanOfDeltaRule(t *testing.T) {
	t.Parallel()
	c := tiny("Qwen3_5")
	c.Hidden, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.RotaryDim, c.FFN = 128, 4, 4, 2, 64, 16, 320
	c.Mixer = Mixer{Layers: []bool{true, true, true, false}, Taps: 4, KeyHeads: 2, ValueHeads: 4,
		KeyDim: 64, ValueDim: 32}
	c.MaxPosition = 1024
	prompt := make([]int32, 200)
	seqs := seqsOf(c.Vocab, 700, 324)
	for _, o := range []PlanOptions{
		{Tokens: 1024},
		{Tokens: 1024, Trainable: true},
		{Tokens: 1024, Trainable: true, Recompute: true},
		{Slots: 24, N: 8, Prompts: 3, PromptTokens: len(prompt), MaxNew: 12},
	} {
		be, err := cpu.New(cpu.Options{})
		must(t, err)
		m, err := New(be, c, Options{Trainable: o.Trainable, Recompute: o.Recompute,
			Repeat: true})
		must(t, err)
		switch {
		case o.Slots > 0:
			_, err = m.Generate([][]int32{prompt, prompt, prompt}, []uint64{0, 1, 2},
				SampleOptions{N: o.N, MaxNew: o.MaxNew, Slots: o.Slots}, nil)
			must(t, err)
		case o.Trainable:
			_, err = NewOptimizer(m, adamw())
			must(t, err)
			must(t, m.LogProbGrad(seqs, 1,
				func(l, e [][]float32) (_, _ [][]float32, err error) { return l, e, nil }))
		default:
			_, _, err = m.LogProbs(seqs, 1)
			must(t, err)
		}
		_, peak := be.Memory()
		plan := c.Plan(be, o)
		t.Logf("%+v: planned %d, took %d", o, plan.Total(), peak)
		if d := float64(plan.Total())/float64(peak) - 1; d < -0.05 || d > 0.05 {
			t.Errorf("%+v: planned %d bytes (%+v), took %d", o, plan.Total(), plan, peak)
		}
		states := int64(0) // of 24 samples and of a prompt
		for i := range c.Layers {
			for _, n := range c.states(be, i) {
				states += be.Block(4 * 25 * int64(n))
			}
		}
		if attention := c.withLayers([]int{3}).Plan(be, o); o.Slots > 0 &&
			plan.Cache != attention.Cache+states {
			t.Errorf("caches of %d bytes: want %d by position, %d of states", plan.Cache,
				attention.Cache, states)
		}
		must(t, m.Close())
		must(t, be.Close())
	}
}

// A device without kernels for so wide keys refuses the model by name.
func TestDeviceRefusesDeltaRule(t *testing.T) {
	c := tiny("Qwen3_5")
	must(t, c.CheckDevice(cuda.Options{}))
	c.Mixer.KeyDim = 256
	must(t, c.CheckDevice(cpu.Footprint{}))
	if err := c.CheckDevice(cuda.Options{}); !errors.Is(err, ErrUnsupported) ||
		!strings.Contains(err.Error(), "gated delta rule") {
		t.Errorf("%v", err)
	}
}
