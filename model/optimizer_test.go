package model

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
)

func adamw() AdamWConfig {
	return AdamWConfig{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, ClipNorm: 0.5}
}

// trainStep puts a gradient into m that depends on its weights.
func trainStep(t *testing.T, m *Model) {
	t.Helper()
	must(t, m.LogProbGrad(seqsOf(m.cfg.Vocab, 9, 14), 1,
		func(logp, ent [][]float32) (_, _ [][]float32, err error) {
			for _, r := range logp {
				for j := range r {
					r[j] = -1
				}
			}
			return logp, nil, nil
		}))
}

// state is every bit of weights and moments.
func state(m *Model) [][]float32 {
	var s [][]float32
	for _, p := range m.params {
		s = append(s, values(m.be, p.W), values(m.be, p.M), values(m.be, p.V))
	}
	return s
}

func sameState(t *testing.T, what string, got, want [][]float32) {
	t.Helper()
	for i := range want {
		same(t, what, got[i], want[i])
	}
}

// Steps against AdamW written out by hand in float64, with clipping by the
// global norm and decay on matrices only.
func TestOptimizer(t *testing.T) {
	onEachBackend(t, func(t *testing.T, be compute.Backend) {
		m, err := New(be, tiny("Qwen2"), Options{Trainable: true, Seed: 1})
		must(t, err)
		defer m.Close()
		c := adamw()
		o, err := NewOptimizer(m, c)
		must(t, err)
		type hand struct{ w, m, v []float64 }
		hands := make([]hand, len(m.params))
		for i, p := range m.params {
			w := values(be, p.W)
			hands[i] = hand{make([]float64, len(w)), make([]float64, len(w)),
				make([]float64, len(w))}
			for j, x := range w {
				hands[i].w[j] = float64(x)
			}
		}
		for step := 1; step <= 3; step++ {
			lr := 0.01 * float64(step)
			trainStep(t, m)
			sum := 0.0
			var grads [][]float32
			for _, p := range m.params {
				g := values(be, p.G)
				grads = append(grads, g)
				for _, x := range g {
					sum += float64(x) * float64(x)
				}
			}
			want := math.Sqrt(sum)
			norm, skipped, err := o.step(lr)
			must(t, err)
			if skipped || math.Abs(norm-want) > 1e-6*want {
				t.Fatalf("step %d: norm %g, skipped %t, want %g", step, norm, skipped, want)
			}
			if want <= c.ClipNorm {
				t.Fatalf("norm %g is not clipped: the test shows nothing", want)
			}
			for i, p := range m.params {
				decay := 0.0
				if len(p.Shape) == 2 {
					decay = c.WeightDecay
				}
				h := hands[i]
				for j := range h.w {
					g := float64(grads[i][j]) * c.ClipNorm / (want + 1e-6)
					h.m[j] = c.Beta1*h.m[j] + (1-c.Beta1)*g
					h.v[j] = c.Beta2*h.v[j] + (1-c.Beta2)*g*g
					mh, vh :=
						h.m[j]/(1-math.Pow(c.Beta1, float64(step))),
						h.v[j]/(1-math.Pow(c.Beta2, float64(step)))
					h.w[j] -= lr*decay*h.w[j] + lr*mh/(math.Sqrt(vh)+c.Eps)
				}
				for j, x := range values(be, p.W) {
					// An element whose gradient is rounding alone moves by up to lr in
					// either direction: only the bias of k has such.
					tol := 1e-5
					if p == m.blocks[0].bk || p == m.blocks[1].bk {
						tol = 3 * lr
					}
					if math.Abs(float64(x)-h.w[j]) > tol {
						t.Fatalf("step %d: %s[%d] = %g, want %g", step, p.Name, j, x, h.w[j])
					}
				}
				for _, x := range values(be, p.G) {
					if x != 0 {
						t.Fatalf("gradient of %s is not zeroed", p.Name)
					}
				}
			}
		}
		if o.Steps() != 3 || o.Skipped() != 0 {
			t.Errorf("%d steps, %d skipped", o.Steps(), o.Skipped())
		}
	})
}

// A gradient that is not finite changes no bit of the state.
func TestOptimizerSkips(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		m, err := New(be, tiny("Qwen2"), Options{Trainable: true, Seed: 1})
		must(t, err)
		defer m.Close()
		o, err := NewOptimizer(m, adamw())
		must(t, err)
		trainStep(t, m)
		_, _, err = o.step(0.01)
		must(t, err)
		before := state(m)
		for i, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			trainStep(t, m)
			p := m.params[2*i]
			be.Upload(p.G.Slice(1, 2), []float32{float32(bad)})
			norm, skipped, err := o.step(0.01)
			must(t, err)
			if !skipped || !math.IsNaN(norm) && !math.IsInf(norm, 0) {
				t.Errorf("gradient %g: norm %g, skipped %t", bad, norm, skipped)
			}
		}
		sameState(t, "state after skipped steps", state(m), before)
		if o.Steps() != 1 || o.Skipped() != 3 {
			t.Errorf("%d steps, %d skipped, want 1 and 3", o.Steps(), o.Skipped())
		}
		for _, lr := range []float64{-1, math.NaN(), math.Inf(1)} {
			if _, _, err := o.step(lr); err == nil {
				t.Errorf("learning rate %g: accepted", lr)
			}
		}
		// The gradients were cleared: the next step is a clean one.
		trainStep(t, m)
		if _, skipped, err := o.step(0.01); skipped || err != nil {
			t.Errorf("step after a skipped one: %t %v", skipped, err)
		}
	})
}

// Weights in bfloat16 and an optimizer's state with master weights go on with
// the bits of the run that was not interrupted.
func TestOptimizerResume(t *testing.T) {
	b := backends[len(backends)-1] // float32: what a run uses
	be := b.new()
	defer be.Close()
	m, err := New(be, tiny("Qwen3"), Options{Trainable: true, Seed: 1})
	must(t, err)
	defer m.Close()
	o, err := NewOptimizer(m, adamw())
	must(t, err)
	step := func(m *Model, o *Optimizer) {
		trainStep(t, m)
		_, _, err := o.step(0.01)
		must(t, err)
	}
	step(m, o)
	d := t.TempDir()
	must(t, m.Save(dir(d).create, "bfloat16", 0))
	path := filepath.Join(d, "optimizer.safetensors")
	var buf bytes.Buffer
	must(t, o.Save(&buf, true))
	must(t, os.WriteFile(path, buf.Bytes(), 0o600))

	m2, err := Load(be, d, Options{Trainable: true})
	must(t, err)
	defer m2.Close()
	o2, err := NewOptimizer(m2, adamw())
	must(t, err)
	must(t, o2.Load(path))
	if b.name != "ref" { // whose float64 a file of float32 does not hold
		for range 2 {
			step(m, o)
			step(m2, o2)
		}
		sameState(t, "state after resume", state(m2), state(m))
	}
	if o2.Steps() != o.Steps() && b.name != "ref" {
		t.Errorf("%d steps after resume, want %d", o2.Steps(), o.Steps())
	}
	var again bytes.Buffer
	must(t, o2.Save(&again, true))
	must(t, o2.Load(path))
	if again.Reset(); o2.Save(&again, true) != nil || !bytes.Equal(again.Bytes(), buf.Bytes()) {
		t.Error("load and save give other bytes")
	}

	// What does not belong to the model, or is damaged, changes nothing.
	other, err := New(be, tiny("Qwen2"), Options{Trainable: true})
	must(t, err)
	defer other.Close()
	oo, err := NewOptimizer(other, adamw())
	must(t, err)
	if oo.Load(path) == nil {
		t.Error("the state of another model: accepted")
	}
	before := state(m2)
	nan := bytes.Clone(buf.Bytes())
	copy(nan[len(nan)-4:], []byte{0, 0, 0xc0, 0x7f})
	must(t, os.WriteFile(path, nan, 0o600))
	if o2.Load(path) == nil {
		t.Error("NaN in the state: accepted")
	}
	if o2.Load(filepath.Join(d, "model.safetensors")) == nil {
		t.Error("a model's weights as the state: accepted")
	}
	sameState(t, "state after refused loads", state(m2), before)
}

func TestOptimizerErrors(t *testing.T) {
	be := ref.New()
	frozen, err := New(be, tiny("Qwen2"), Options{})
	must(t, err)
	if _, err := NewOptimizer(frozen, adamw()); err == nil {
		t.Error("frozen model: accepted")
	}
	m, err := New(be, tiny("Qwen2"), Options{Trainable: true})
	must(t, err)
	for _, f := range []func(*AdamWConfig){
		func(c *AdamWConfig) { c.Beta1 = 1 },
		func(c *AdamWConfig) { c.Beta2 = math.NaN() },
		func(c *AdamWConfig) { c.Eps = 0 },
		func(c *AdamWConfig) { c.WeightDecay = -1 },
		func(c *AdamWConfig) { c.ClipNorm = math.NaN() },
	} {
		c := adamw()
		f(&c)
		if _, err := NewOptimizer(m, c); err == nil {
			t.Errorf("%+v: accepted", c)
		}
	}
}

func TestSchedule(t *testing.T) {
	for _, c := range []struct {
		s    Schedule
		step int
		want float64
	}{
		{Schedule{}, 1, 1},
		{Schedule{Warmup: 4}, 1, 0.25},
		{Schedule{Warmup: 4}, 4, 1},
		{Schedule{Warmup: 4}, 400, 1},
		{Schedule{Kind: "linear", Warmup: 2, Total: 12}, 1, 0.5},
		{Schedule{Kind: "linear", Warmup: 2, Total: 12}, 2, 1},
		{Schedule{Kind: "linear", Warmup: 2, Total: 12}, 7, 0.5},
		{Schedule{Kind: "linear", Warmup: 2, Total: 12}, 12, 0},
		{Schedule{Kind: "linear", Total: 10, Floor: 0.2}, 99, 0.2},
		{Schedule{Kind: "cosine", Total: 12}, 4, 0.75},
		{Schedule{Kind: "cosine", Total: 12}, 6, 0.5},
		{Schedule{Kind: "cosine", Total: 12, Floor: 0.1}, 12, 0.1},
	} {
		must(t, c.s.Validate())
		c.s.Peak = 3
		if got := c.s.At(c.step); math.Abs(got-3*c.want) > 1e-12 {
			t.Errorf("%+v: step %d: %g, want %g", c.s, c.step, got, 3*c.want)
		}
	}
	for _, s := range []Schedule{{Kind: "exponential"}, {Warmup: -1}, {Floor: 2}, {Kind: "cosine"},
		{Kind: "linear", Warmup: 5, Total: 5}, {Kind: "linear", Total: 1}} {
		if s.Validate() == nil {
			t.Errorf("%+v: accepted", s)
		}
	}
}
