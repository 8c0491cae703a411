package model

import (
	"testing"

	"gad/internal/compute/cuda"
	"gad/internal/compute/ref"
)

// qwen7B is the shape of Qwen2.5-7B.
var qwen7B = Config{Architecture: "Qwen2", Hidden: 3584, Layers: 28, Heads: 28, KVHeads: 4, HeadDim: 128, FFN: 18944, Vocab: 152064, MaxPosition: 32768, RMSEps: 1e-6, RopeTheta: 1e6, QKVBias: true}

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
		case w.Name != embedName && w.Name != headName:
			coded8 += int64(w.Len())
			scales += int64((w.Len() + 255) / 256)
		}
	}
	if vectors != 28*(2*3584+3584+2*512)+3584 || coded8 != 28*(2*3584*3584+2*512*3584+3*18944*3584) {
		t.Fatalf("%d elements of vectors, %d of linear layers", vectors, coded8)
	}
	eight := 2*coded8 + 8*scales + 8*(n-coded8)
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
		if p.Moments != c.moments || p.HostMoments != c.host {
			t.Errorf("%+v: moments of %d bytes and %d on the host, want %d and %d", c.o, p.Moments, p.HostMoments, c.moments, c.host)
		}
		if p.Weights != 4*n || p.Copies != 0 || p.Gradients != 4*n {
			t.Errorf("%+v: weights %d, copies %d, gradients %d, want 4, 0 and 4 bytes a parameter", c.o, p.Weights, p.Copies, p.Gradients)
		}
	}
	frozen := qwen7B.Plan(f, PlanOptions{})
	if frozen.Weights != 2*n+2*vectors || frozen.Copies != 0 {
		t.Errorf("frozen: weights %d and copies %d, want 2 bytes a parameter, and 4 of a vector's", frozen.Weights, frozen.Copies)
	}
	// Where there is no other memory, offloaded moments stay where they are.
	be := ref.New()
	defer be.Close()
	small := tiny("Qwen3")
	if p, q := small.Plan(be, PlanOptions{Trainable: true, Offload: true}), small.Plan(be, PlanOptions{Trainable: true}); p.HostMoments != 0 || p.Moments != q.Moments {
		t.Errorf("one memory: %d bytes of moments and %d on the host, want %d and none", p.Moments, p.HostMoments, q.Moments)
	}
}

// Caches lie in a lent buffer one after another, each at a multiple of 64 elements, as
// long as they fit.
func TestPlanOfLentCache(t *testing.T) {
	f := cuda.Options{} // 2 bytes in a cache, 4 in the buffer
	for _, c := range []struct {
		lent, tensors, n int
		want             int64
	}{
		{0, 4, 100, 800},
		{49, 4, 100, 800},
		{50, 4, 100, 600},
		{113, 4, 100, 600}, // the second begins at 64
		{114, 4, 100, 400},
		{64*3 + 50, 4, 100, 0},
		{64*3 + 49, 4, 100, 200},
		{51, 1, 101, 0}, // half an element more
		{50, 1, 101, 202},
	} {
		if got := beyond(f, c.lent, c.tensors, c.n); got != c.want {
			t.Errorf("%d caches of %d in a buffer of %d: %d bytes beside it, want %d", c.tensors, c.n, c.lent, got, c.want)
		}
	}
	o := PlanOptions{Slots: 64, N: 8, Prompts: 128, PromptTokens: 2048, MaxNew: 1536}
	whole := qwen7B.Plan(f, o)
	one := whole.Cache / int64(2*qwen7B.Layers)
	o.Lent = int(one) // at 4 bytes an element
	if got := qwen7B.Plan(f, o); got.Cache != whole.Cache-4*one || got.Total() != whole.Total()-4*one {
		t.Errorf("lent the memory of four: %d bytes of %d are left", got.Cache, whole.Cache)
	}
}
