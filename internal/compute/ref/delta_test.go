package ref

import (
	"fmt"
	"math"
	"testing"

	"gad/internal/compute"
)

// trees are packs of sequences that stand alone, share prompts, branch again, and are empty.
var trees = []compute.Pack{
	{Start: []int32{0, 5, 5, 6, 9}},
	{Start: []int32{0, 3, 5, 6, 8}, Parent: []int32{-1, 0, 0, -1}},
	{Start: []int32{0, 2, 4, 4, 5, 7, 8}, Parent: []int32{-1, 0, 1, 2, 0, -1}},
}

func TestSiLUConvGrad(t *testing.T) {
	for _, p := range trees {
		const D, J = 3, 4
		N := int(p.Start[p.Segments()])
		b, x, w, y, c, dx :=
			New(), normal(N*D), newParam(D, J), zeros(N*D), normal(N*D), zeros(N*D)
		loss := func() float64 { b.SiLUConv(y, x, w, p, compute.States{}); return weigh(c, y) }
		b.SiLUConvGrad(dx, w, c, x, p)
		differ(t, fmt.Sprint(p, ": x"), x, dx, loss)
		differ(t, fmt.Sprint(p, ": w"), w.W, w.G, loss)
	}
}

// Decays near 0 and 1, and β near 0 and 1, by what a, b and A are shifted.
func TestGatedDeltaGrad(t *testing.T) {
	for _, p := range trees {
		for _, shift := range []struct{ a, b, A float64 }{{}, {-6, 6, 0}, {3, -6, 1}, {0, 0, -3}} {
			s := compute.DeltaShape{K: 2, H: 4, E: 3, F: 2}
			N := int(p.Start[p.Segments()])
			x, a, beta, A, dt := normal(N*s.Width()), normal(N*s.H), normal(N*s.H), newParam(1, s.H),
				newParam(1, s.H)
			for i := range F64(a) {
				F64(a)[i] += shift.a
				F64(beta)[i] += shift.b
			}
			for i := range F64(A.W) {
				F64(A.W)[i] += shift.A
			}
			b, o, c := New(), zeros(N*s.H*s.F), normal(N*s.H*s.F)
			loss := func() float64 {
				b.GatedDelta(o, x, a, beta, A, dt, s, p, compute.States{})
				return weigh(c, o)
			}
			dx, da, db := zeros(x.Len()), zeros(a.Len()), zeros(a.Len())
			loss()
			b.GatedDeltaGrad(dx, da, db, c, o, x, a, beta, A, dt, s, p)
			name := fmt.Sprint(p, shift)
			differ(t, name+": x", x, dx, loss)
			differ(t, name+": a", a, da, loss)
			differ(t, name+": b", beta, db, loss)
			differ(t, name+": A", A.W, A.G, loss)
			differ(t, name+": dt", dt.W, dt.G, loss)
		}
	}
}

// A pack in several calls, by states, gives what one call gives; and so does each sequence alone.
func TestStates(t *testing.T) {
	s := compute.DeltaShape{K: 1, H: 2, E: 3, F: 2}
	const N, J = 9, 4
	b, C := New(), s.Width()
	x, a, beta, A, dt, w := normal(N*C), normal(N*2), normal(N*2), newParam(1, 2), newParam(1, 2),
		newParam(C, J)
	run := func(conv, delta compute.Tensor, lo, hi int, st [2]compute.States) {
		p := compute.Pack{Start: []int32{0, int32(hi - lo)}}
		b.SiLUConv(conv.Slice(lo*C, hi*C), x.Slice(lo*C, hi*C), w, p, st[0])
		b.GatedDelta(delta.Slice(lo*4, hi*4), x.Slice(lo*C, hi*C), a.Slice(lo*2, hi*2),
			beta.Slice(lo*2, hi*2), A, dt, s, p, st[1])
	}
	conv, delta := zeros(N*C), zeros(N*4)
	run(conv, delta, 0, N, [2]compute.States{})
	convs, deltas := normal(3*3*C), normal(3*b.DeltaState(s))
	conv2, delta2 := zeros(N*C), zeros(N*4)
	at, from := 0, int32(-1)
	for i, n := range []int{1, 1, 4, 2, 1} {
		to := int32(i) % 3
		if i == 2 {
			to = from
		}
		run(conv2, delta2, at, at+n, [2]compute.States{
			{Rows: convs, From: []int32{from}, To: []int32{to}},
			{Rows: deltas, From: []int32{from}, To: []int32{to}}})
		at, from = at+n, to
	}
	for i, v := range F64(conv) {
		if got := F64(conv2)[i]; math.Abs(got-v) > 1e-14 {
			t.Fatalf("convolution in parts: [%d]: %v, whole %v", i, got, v)
		}
	}
	for i, v := range F64(delta) {
		if got := F64(delta2)[i]; math.Abs(got-v) > 1e-14 {
			t.Fatalf("delta rule in parts: [%d]: %v, whole %v", i, got, v)
		}
	}
}
