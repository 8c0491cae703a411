package ref

import (
	"math"

	"gad/internal/compute"
)

// slotOf returns the elements of slot n of states, or zeros for no slot.
func slotOf(st compute.States, n, width int) []float64 {
	if n < 0 {
		return make([]float64, width)
	}
	return F64(st.Rows)[n*width : (n+1)*width]
}

// convRows calls fn for each segment with the J-1 rows of x before it and its own, one behind the
// other, and the number of its first token.
func convRows(x []float64, p compute.Pack, st compute.States, D, J int,
	fn func(first int, rows []float64)) {
	behind := make([][]float64, p.Segments())
	for n := range behind {
		g := p.Segment(n)
		before := slotOf(st, st.Source(n), (J-1)*D)
		if p.Branched(n) {
			before = behind[p.Parent[n]]
		}
		rows := append(append([]float64(nil), before...), x[g.First*D:(g.First+g.Len)*D]...)
		behind[n] = rows[g.Len*D:]
		fn(g.First, rows)
		if to := st.Target(n); to >= 0 {
			copy(slotOf(st, to, (J-1)*D), behind[n])
		}
	}
}

// SiLUConv convolves x over the tokens that each token sees last, and applies silu.
func (b *Backend) SiLUConv(yND, xND compute.Tensor, w *compute.Param, p compute.Pack,
	st compute.States) {
	N, D, J := compute.CheckSiLUConv("SiLUConv", xND, w, p, st)
	y, wDJ := size("SiLUConv", "y", yND, N*D), F64(w.W)
	if N == 0 {
		return
	}
	convRows(F64(xND), p, st, D, J, func(first int, rows []float64) {
		for i := range len(rows) - (J-1)*D {
			v, d := 0.0, i%D
			for j := range J {
				v += wDJ[d*J+j] * rows[i+j*D]
			}
			y[first*D+i] = v / (1 + math.Exp(-v))
		}
	})
}

// SiLUConvGrad computes the gradients of x and w.
func (b *Backend) SiLUConvGrad(dxND compute.Tensor, w *compute.Param, dyND, xND compute.Tensor,
	p compute.Pack) {
	const op = "SiLUConvGrad"
	N, D, J := compute.CheckSiLUConv(op, xND, w, p, compute.States{})
	dx, dy, x := size(op, "dx", dxND, N*D), size(op, "dy", dyND, N*D), F64(xND)
	if N == 0 {
		return
	}
	wDJ, gDJ, back := F64(w.W), F64(w.G), compute.Back(nil, p.Before(nil), J)
	clear(dx)
	for i := range dx {
		n, d, v := i/D, i%D, 0.0
		for j, m := range back[n*J : (n+1)*J] {
			if m >= 0 {
				v += wDJ[d*J+j] * x[int(m)*D+d]
			}
		}
		s := 1 / (1 + math.Exp(-v))
		dv := dy[i] * s * (1 + v*(1-s))
		for j, m := range back[n*J : (n+1)*J] {
			if m < 0 {
				continue
			}
			dx[int(m)*D+d] += wDJ[d*J+j] * dv
			if gDJ != nil {
				gDJ[d*J+j] += dv * x[int(m)*D+d]
			}
		}
	}
}

// deltaToken is one token of a value head.
type deltaToken struct {
	q, k           []float64 // normalised, q divided by sqrt(E)
	v              []float64
	rq, rk         float64 // 1/sqrt(Σ² + eps) of q and k as they were
	decay, slope   float64 // g, and its derivative by a + dt
	soft, beta     float64 // softplus(a + dt)
	before, behind []float64
}

// deltaRule is the operands of GatedDelta.
type deltaRule struct {
	compute.DeltaShape
	x, a, b, A, dt []float64
}

// unit returns x normalised and times s, and 1/sqrt(Σx² + eps).
func unit(x []float64, s float64) (y []float64, r float64) {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	r = 1 / math.Sqrt(sum+compute.DeltaEps)
	for _, v := range x {
		y = append(y, v*r*s)
	}
	return y, r
}

// token returns token n of value head h, whose state before it is S.
func (r *deltaRule) token(n, h int, S []float64) (t deltaToken) {
	K, H, E, F := r.K, r.H, r.E, r.F
	row, key := r.x[n*r.Width():(n+1)*r.Width()], h/(H/K)
	t.q, t.rq = unit(row[key*E:(key+1)*E], 1/math.Sqrt(float64(E)))
	t.k, t.rk = unit(row[(K+key)*E:(K+key+1)*E], 1)
	t.v = row[2*K*E+h*F : 2*K*E+(h+1)*F]
	z := r.a[n*H+h] + r.dt[h]
	t.soft = max(z, 0) + math.Log1p(math.Exp(-math.Abs(z)))
	t.decay = -math.Exp(r.A[h]) * t.soft
	t.slope = -math.Exp(r.A[h]) / (1 + math.Exp(-z))
	t.beta = 1 / (1 + math.Exp(-r.b[n*H+h]))
	t.before = S
	return t
}

// step writes the output of t, and makes the state behind it.
func (t *deltaToken) step(o []float64) {
	E, F := len(t.k), len(t.v)
	S := make([]float64, E*F)
	for i, x := range t.before {
		S[i] = math.Exp(t.decay) * x
	}
	d := t.rest(S)
	for e, k := range t.k {
		for f := range F {
			S[e*F+f] += k * t.beta * d[f]
		}
	}
	for f := range o {
		o[f] = 0
		for e, q := range t.q {
			o[f] += q * S[e*F+f]
		}
	}
	t.behind = S
}

// rest returns v - k̂ᵀS.
func (t *deltaToken) rest(S []float64) (d []float64) {
	d = append(d, t.v...)
	for e, k := range t.k {
		for f := range d {
			d[f] -= k * S[e*len(d)+f]
		}
	}
	return d
}

// DeltaState returns the elements of S of all value heads.
func (b *Backend) DeltaState(s compute.DeltaShape) int { return s.H * s.E * s.F }

// forward computes all tokens of a pack, and returns them [N,H].
func (r *deltaRule) forward(o []float64, p compute.Pack, st compute.States) (all []deltaToken) {
	H, size := r.H, r.E*r.F
	all = make([]deltaToken, len(r.a))
	ends := make([][][]float64, p.Segments()) // by segment and value head: the state behind it
	for n := range ends {
		g := p.Segment(n)
		before := slotOf(st, st.Source(n), H*size)
		for h := range H {
			S := before[h*size : (h+1)*size]
			if p.Branched(n) {
				S = ends[p.Parent[n]][h]
			}
			for i := g.First; i < g.First+g.Len; i++ {
				t := r.token(i, h, S)
				t.step(o[(i*H+h)*r.F : (i*H+h+1)*r.F])
				all[i*H+h], S = t, t.behind
			}
			ends[n] = append(ends[n], S)
		}
		if to := st.Target(n); to >= 0 {
			for h, S := range ends[n] {
				copy(slotOf(st, to, H*size)[h*size:], S)
			}
		}
	}
	return all
}

// GatedDelta computes the gated delta rule token by token.
func (b *Backend) GatedDelta(oNHF, xNC, aNH, bNH compute.Tensor, A, dt *compute.Param,
	s compute.DeltaShape, p compute.Pack, st compute.States) {
	const op = "GatedDelta"
	N := compute.CheckGatedDelta(op, xNC, aNH, bNH, A, dt, s, p, st, b.DeltaState(s))
	if N == 0 {
		return
	}
	r := deltaRule{s, F64(xNC), F64(aNH), F64(bNH), F64(A.W), F64(dt.W)}
	r.forward(size(op, "o", oNHF, N*s.H*s.F), p, st)
}

// GatedDeltaGrad computes the gradient of GatedDelta, the last token first.
func (b *Backend) GatedDeltaGrad(dxNC, daNH, dbNH, doNHF, oNHF, xNC, aNH, bNH compute.Tensor, A,
	dt *compute.Param, s compute.DeltaShape, p compute.Pack) {
	const op = "GatedDeltaGrad"
	none := compute.States{}
	N := compute.CheckGatedDelta(op, xNC, aNH, bNH, A, dt, s, p, none, b.DeltaState(s))
	K, H, E, F, C := s.K, s.H, s.E, s.F, s.Width()
	dx, da, db := size(op, "dx", dxNC, N*C), size(op, "da", daNH, N*H), size(op, "db", dbNH, N*H)
	do := size(op, "do", doNHF, N*H*F)
	compute.CheckLen(op, "o", oNHF, N*H*F)
	clear(dx)
	r := deltaRule{s, F64(xNC), F64(aNH), F64(bNH), F64(A.W), F64(dt.W)}
	all := r.forward(make([]float64, N*H*F), p, none)
	before, dS := p.Before(nil), make([][]float64, N*H)
	dg := make([]float64, N*H)
	for i := N*H - 1; i >= 0; i-- {
		n, h := i/H, i%H
		t, key := &all[i], h/(H/K)
		if dS[i] == nil {
			dS[i] = make([]float64, E*F)
		}
		dSi, doi := dS[i], do[i*F:(i+1)*F]
		S := make([]float64, E*F) // exp(g)*S before
		for j, x := range t.before {
			S[j] = math.Exp(t.decay) * x
		}
		rest := t.rest(S)
		dq, dk, dd, dbeta := make([]float64, E), make([]float64, E), make([]float64, F), 0.0
		for e, q := range t.q {
			for f, g := range doi {
				dq[e] += t.behind[e*F+f] * g
				dSi[e*F+f] += q * g
			}
		}
		for e, k := range t.k {
			for f := range dd {
				dd[f] += dSi[e*F+f] * k
			}
		}
		dv := dx[n*C+2*K*E+h*F : n*C+2*K*E+(h+1)*F]
		for f, g := range dd {
			dbeta += g * rest[f]
			dv[f] = t.beta * g
		}
		for e, k := range t.k {
			for f := range dd {
				at := e*F + f
				dk[e] += dSi[at]*t.beta*rest[f] - S[at]*dv[f]
				dSi[at] -= k * dv[f]
				dg[i] += S[at] * dSi[at]
				dSi[at] *= math.Exp(t.decay)
			}
		}
		da[i] = dg[i] * t.slope
		db[i] = dbeta * t.beta * (1 - t.beta)
		scale := 1 / math.Sqrt(float64(E))
		addUnit(dx[n*C+key*E:n*C+(key+1)*E], dq, t.q, t.rq*scale, 1/scale)
		addUnit(dx[n*C+(K+key)*E:n*C+(K+key+1)*E], dk, t.k, t.rk, 1)
		if m := before[n]; m >= 0 {
			up := int(m)*H + h
			if dS[up] == nil {
				dS[up] = make([]float64, E*F)
			}
			for j, g := range dSi {
				dS[up][j] += g
			}
		}
		dS[i] = nil
	}
	for i := range da {
		if !A.G.Absent() {
			F64(A.G)[i%H] += dg[i] * all[i].decay
		}
		if !dt.G.Absent() {
			F64(dt.G)[i%H] += da[i]
		}
	}
}

// addUnit adds to dx the gradient by what unit normalised, given dy by its result y: r is the
// factor that made y, and y times back has the length 1.
func addUnit(dx, dy, y []float64, r, back float64) {
	dot := 0.0
	for e, v := range y {
		dot += dy[e] * v * back
	}
	for e, v := range y {
		dx[e] += r * (dy[e] - v*back*dot)
	}
}
