package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"gad/internal/compute"
)

// Each gradient against central finite differences, in float64: for a loss
// Σ c_i*y_i over an operation's outputs y, the operation's gradient for dy = c
// must be the loss's derivative by each input.

var rng = rand.New(rand.NewPCG(3, 4))

func zeros(n int) compute.Tensor { return compute.View(&memory{data: make([]float64, n)}) }

func normal(n int) compute.Tensor {
	t := zeros(n)
	for i, x := 0, F64(t); i < n; i++ {
		x[i] = rng.NormFloat64()
	}
	return t
}

func newParam(rows, cols int) *compute.Param {
	return &compute.Param{Rows: rows, Cols: cols, W: normal(rows * cols), G: zeros(rows * cols)}
}

func weigh(c, y compute.Tensor) (sum float64) {
	for i, v := range F64(y) {
		sum += F64(c)[i] * v
	}
	return sum
}

// differ compares grad with the loss's central differences by x. The step of
// 1e-5 leaves an error of some 1e-10 of the loss's scale.
func differ(t *testing.T, name string, x, grad compute.Tensor, loss func() float64) {
	t.Helper()
	const step = 1e-5
	most := 0.0
	for _, g := range F64(grad) {
		most = max(most, math.Abs(g))
	}
	for i := range F64(x) {
		at := &F64(x)[i]
		was := *at
		*at = was + step
		up := loss()
		*at = was - step
		down := loss()
		*at = was
		want, got := (up-down)/(2*step), F64(grad)[i]
		if math.Abs(got-want) > 1e-7*(math.Abs(want)+most+1) {
			t.Errorf("%s: derivative by [%d]: %v, finite difference %v", name, i, got, want)
		}
	}
	if most == 0 {
		t.Errorf("%s: all derivatives are 0: the test shows nothing", name)
	}
}

func TestEmbedGrad(t *testing.T) {
	b, table, y, c, ids := New(), newParam(5, 3), zeros(12), normal(12), []int32{4, 0, 4, 2}
	b.EmbedGrad(table, c, ids)
	differ(t, "table", table.W, table.G,
		func() float64 { b.Embed(y, table, ids); return weigh(c, y) })
}

func TestRMSNormGrad(t *testing.T) {
	const N, D, eps = 4, 7, 0.01
	b, x, w, y, rstd, c, dx :=
		New(), normal(N*D), newParam(1, D), zeros(N*D), zeros(N), normal(N*D), zeros(N*D)
	loss := func() float64 { b.RMSNorm(y, rstd, x, w, eps); return weigh(c, y) }
	loss()
	b.RMSNormGrad(dx, w, c, x, rstd, false)
	differ(t, "x", x, dx, loss)
	differ(t, "w", w.W, w.G, loss)
}

func TestLinearGrad(t *testing.T) {
	const N, I, O = 4, 5, 3
	b, x, w, bias, y, c, dx :=
		New(), normal(N*I), newParam(O, I), newParam(1, O), zeros(N*O), normal(N*O), zeros(N*I)
	loss := func() float64 { b.Linear(y, x, w, bias, false); return weigh(c, y) }
	b.LinearGrad(dx, w, bias, c, x, false)
	differ(t, "x", x, dx, loss)
	differ(t, "w", w.W, w.G, loss)
	differ(t, "b", bias.W, bias.G, loss)
}

func TestRopeInverse(t *testing.T) {
	// Rope is in place and linear: its gradient is the turn back of dy.
	const N, H, E = 3, 2, 6
	b, x, y, c, pos := New(), normal(N*H*E), zeros(N*H*E), normal(N*H*E), []int32{2, 0, 1}
	table := zeros(N * E)
	for p := range N {
		for e := range E / 2 {
			sin, cos := math.Sincos(float64(p) * math.Pow(1e4, -2*float64(e)/E))
			F64(table)[p*E+e], F64(table)[p*E+E/2+e] = cos, sin
		}
	}
	dx := zeros(N * H * E)
	b.Copy(dx, c)
	b.Rope(dx, H, E, pos, table, true)
	differ(t, "x", x, dx, func() float64 {
		b.Copy(y, x)
		b.Rope(y, H, E, pos, table, false)
		return weigh(c, y)
	})
}

func TestAttentionGrad(t *testing.T) {
	t.Run("apart",
		func(t *testing.T) { attentionGrad(t, compute.Pack{Start: []int32{0, 4, 4, 5, 8}}) })
	t.Run("branches", func(t *testing.T) {
		attentionGrad(t, compute.Pack{Start: []int32{0, 3, 5, 6, 8}, Parent: []int32{-1, 0, 0, -1}})
	})
	t.Run("branches of branches", func(t *testing.T) { attentionGrad(t, nested) })
}

// nested is a pack of depth 4, with siblings, an only child and a segment of no tokens.
var nested = compute.Pack{Start: []int32{0, 2, 3, 5, 6, 6, 7, 9, 10, 11},
	Parent: []int32{-1, 0, 1, 2, 1, 4, 0, 6, -1}}

func attentionGrad(t *testing.T, p compute.Pack) {
	a := compute.AttnShape{H: 4, K: 2, E: 3, Scale: 0.7}
	N := int(p.Start[p.Segments()])
	b, q, k, v := New(), normal(N*a.H*a.E), normal(N*a.K*a.E), normal(N*a.K*a.E)
	o, lse, c := zeros(N*a.H*a.E), zeros(N*a.H), normal(N*a.H*a.E)
	dq, dk, dv := zeros(q.Len()), zeros(k.Len()), zeros(v.Len())
	loss := func() float64 { b.Attention(o, lse, q, k, v, a, p); return weigh(c, o) }
	loss()
	b.AttentionGrad(dq, dk, dv, c, o, lse, q, k, v, a, p)
	differ(t, "q", q, dq, loss)
	differ(t, "k", k, dk, loss)
	differ(t, "v", v, dv, loss)
}

// A pack of any depth has the values and the gradients of a plain attention of all tokens to
// all, with a mask that is written out: a token sees the tokens from which a walk down the
// parents leads to it. Of a window, those of the last positions.
func TestAttentionOfBranchesIsMasked(t *testing.T) {
	p, N := nested, int(nested.Start[nested.Segments()])
	var segment, position []int // of each token
	for s := range p.Segments() {
		before := 0
		for up := p.Parent[s]; up >= 0; up = p.Parent[up] {
			before += int(p.Start[up+1] - p.Start[up])
		}
		for i := range int(p.Start[s+1] - p.Start[s]) {
			segment, position = append(segment, s), append(position, before+i)
		}
	}
	sees := func(i, j, window int) bool {
		if window > 0 && position[j] <= position[i]-window || position[j] > position[i] {
			return false
		}
		for s := segment[i]; s >= 0; s = int(p.Parent[s]) {
			if s == segment[j] {
				return true
			}
		}
		return false
	}
	for _, window := range []int{0, 1, 2, 4} {
		a := compute.AttnShape{H: 4, K: 2, E: 3, Scale: 0.7, Window: window}
		b, q, k, v := New(), normal(N*a.H*a.E), normal(N*a.K*a.E), normal(N*a.K*a.E)
		o, lse, do := zeros(q.Len()), zeros(N*a.H), normal(q.Len())
		dq, dk, dv := zeros(q.Len()), zeros(k.Len()), zeros(v.Len())
		b.Attention(o, lse, q, k, v, a, p)
		b.AttentionGrad(dq, dk, dv, do, o, lse, q, k, v, a, p)
		wo, wq, wk, wv := zeros(q.Len()), zeros(q.Len()), zeros(k.Len()), zeros(v.Len())
		dot := func(x, y compute.Tensor, i, j int) (sum float64) {
			for e := range a.E {
				sum += F64(x)[i+e] * F64(y)[j+e]
			}
			return sum
		}
		pairs := 0.0
		for h := range a.H {
			for i := range N {
				at := (i*a.H + h) * a.E
				key := func(j int) int { return (j*a.K + h/(a.H/a.K)) * a.E }
				prob, sum := make([]float64, N), 0.0
				for j := range N {
					if sees(i, j, window) {
						prob[j] = math.Exp(a.Scale * dot(q, k, at, key(j)))
						pairs++
					}
					sum += prob[j]
				}
				mean := 0.0
				for j := range N {
					prob[j] /= sum
					mean += prob[j] * dot(do, v, at, key(j))
				}
				for j := range N {
					ds := a.Scale * prob[j] * (dot(do, v, at, key(j)) - mean)
					for e := range a.E {
						F64(wo)[at+e] += prob[j] * F64(v)[key(j)+e]
						F64(wq)[at+e] += ds * F64(k)[key(j)+e]
						F64(wk)[key(j)+e] += ds * F64(q)[at+e]
						F64(wv)[key(j)+e] += prob[j] * F64(do)[at+e]
					}
				}
			}
		}
		for _, x := range []struct {
			name      string
			got, want compute.Tensor
		}{{"o", o, wo}, {"dq", dq, wq}, {"dk", dk, wk}, {"dv", dv, wv}} {
			for i, want := range F64(x.want) {
				if got := F64(x.got)[i]; math.Abs(got-want) > 1e-12 {
					t.Errorf("window %d: %s[%d] is %v, by the mask %v", window, x.name, i, got, want)
				}
			}
		}
		if got := p.Pairs(window) * float64(a.H); got != pairs {
			t.Errorf("window %d: Pairs says %g pairs of all heads, the mask has %g", window, got,
				pairs)
		}
	}
}

func TestSwiGLUGrad(t *testing.T) {
	const n = 20
	b, gate, up, y, c, dgate, dup :=
		New(), normal(n), normal(n), zeros(n), normal(n), zeros(n), zeros(n)
	loss := func() float64 { b.Gated(compute.SiLU, y, gate, up); return weigh(c, y) }
	b.GatedGrad(compute.SiLU, compute.Tensor{}, dgate, dup, c, gate, up)
	differ(t, "gate", gate, dgate, loss)
	differ(t, "up", up, dup, loss)
}

func TestLogProbGrad(t *testing.T) {
	const N, D, V = 5, 4, 9
	rows, targets := []int32{3, 0, 0, 4}, []int32{8, 2, 3, 2}
	b, h, w, dh := New(), normal(N*D), newParam(V, D), zeros(N*D)
	out := compute.HeadOut{LogpR: zeros(4), EntR: zeros(4), LseR: zeros(4)}
	dlogp, dent := normal(4), normal(4)
	loss := func() float64 {
		b.LogProb(out, h, w, rows, targets, 1.3)
		return weigh(dlogp, out.LogpR) + weigh(dent, out.EntR)
	}
	loss()
	b.LogProbGrad(dh, w, out, dlogp, dent, h, rows, targets, 1.3)
	differ(t, "h", h, dh, loss)
	differ(t, "w", w.W, w.G, loss)
}

func TestScoreGrad(t *testing.T) {
	const N, D = 5, 4
	rows := []int32{4, 1}
	b, h, w, s, c, dh := New(), normal(N*D), newParam(1, D), zeros(2), normal(2), zeros(N*D)
	b.ScoreGrad(dh, w, c, h, rows)
	loss := func() float64 { b.Score(s, h, w, rows); return weigh(c, s) }
	differ(t, "h", h, dh, loss)
	differ(t, "w", w.W, w.G, loss)
}

// TestEntropy: of equal logits over V tokens it is log V; of one certain token, 0.
func TestEntropy(t *testing.T) {
	const V = 6
	b, h, w := New(), zeros(1), newParam(V, 1)
	out := compute.HeadOut{LogpR: zeros(1), EntR: zeros(1), LseR: zeros(1)}
	b.LogProb(out, h, w, []int32{0}, []int32{2}, 1)
	if got := F64(out.EntR)[0]; math.Abs(got-math.Log(V)) > 1e-15 {
		t.Errorf("entropy of equal logits %v, want log %d", got, V)
	}
	F64(h)[0] = 1e4
	F64(w.W)[3] = 1 + 10
	b.LogProb(out, h, w, []int32{0}, []int32{3}, 1)
	if got := F64(out.EntR)[0]; math.Abs(got) > 1e-9 {
		t.Errorf("entropy of a certain token %v, want 0", got)
	}
}

// TestAdamWStep: the first step of one weight by hand. M/(1-β1) is the gradient
// g and V/(1-β2) its square, so that W moves by LR*(g/(|g|+Eps) + Decay*W).
func TestAdamWStep(t *testing.T) {
	b, p := New(), newParam(1, 1)
	p.M, p.V, p.Decay = zeros(1), zeros(1), true
	F64(p.W)[0], F64(p.G)[0] = 2, -8
	b.AdamW([]*compute.Param{p},
		compute.AdamW{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1, Decay: 0.5, GradScale: 0.25,
			Step: 1})
	want := 2 - 0.1*(-2.0/(2+1)+0.5*2)
	if got := F64(p.W)[0]; math.Abs(got-want) > 1e-12 {
		t.Errorf("weight after one step %v, want %v", got, want)
	}
	if m, v := F64(p.M)[0], F64(p.V)[0]; math.Abs(m+0.2) > 1e-12 || math.Abs(v-0.04) > 1e-12 ||
		F64(p.G)[0] != -8 {
		t.Errorf("moments %v and %v, gradient %v; want -0.2, 0.04, -8", m, v, F64(p.G)[0])
	}
}
