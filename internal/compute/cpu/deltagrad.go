package cpu

import (
	"math"
	"slices"

	"gad/internal/compute"
)

// The gradient goes through the chunks twice: forward, to keep u, g and the states behind whole
// chunks, and backward. With dS' the gradient by the state behind a whole chunk (of n tokens), w_i
// = β_i*du_i, and the names of delta.go,
//
//	du_j = Σ_{i>=j} D_ij*(q̂_i·k̂_j)*do_i + D_nj*dS'ᵀk̂_j - Σ_{i>j} D_ij*(k̂_i·k̂_j)*w_i
//	dv_i = w_i;  db_i = (1-β_i)*du_i·u_i
//	dk̂_i = -Σ_{j<i} D_ij*(w_i·u_j)*k̂_j - Γ_i*S w_i
//	dq̂_i = Σ_{j<=i} D_ij*(do_i·u_j)*k̂_j + Γ_i*S do_i
//	dk̂_j += Σ_{i>=j} D_ij*(do_i·u_j)*q̂_i - Σ_{i>j} D_ij*(w_i·u_j)*k̂_i + D_nj*dS' u_j
//	dS = Γ_n*dS' + Σ_i Γ_i*(q̂_i⊗do_i - k̂_i⊗w_i)
//
// and the gradient by the decay of token t is Σ_{i>=t} (do_i·o_i - w_i·v_i) + Σ dS'∘S' over the
// rest of its chunk, since what scales g_i by a little scales o_i and v_i's part of u_i alike. A
// branch that begins inside a chunk adds to du and dk̂ of the tokens before it, and to the gradient
// of their decays; these are its ancestors', which are taken after it.

// deltaGrad is what the tasks of GatedDeltaGrad read besides.
type deltaGrad struct {
	on              bool
	dx, da, db      []float32
	do              []float32
	u               []float32 // [N,H,W]
	states          []float32 // [folds,H,W*E] behind whole chunks
	dends           []float32 // gradients by the states of segments that have branches
	rest            []float64 // [branching,H] what branches leave to the decays of the chunk
	g, dg           []float64 // [N,H] decays from the chunk's beginning; gradients by the decays
	first, last     []int     // by segment: its first fold; the last fold before its end, or -1
	before, lengths []int     // by segment: tokens before it, and of its own
}

// deltaBack is a worker's memory for the gradient of one chunk of a key head.
type deltaBack struct {
	buf []float32

	ds     []float32 // gradient by the state of a segment without branches
	keys   []float32 // k̂ as columns [E,C]
	k, dk  []float32 // k̂ of the chunk's rows, then q̂ of the segment's; their gradients [2C,ldE]
	u, du  []float32 // [C,ldW]
	wdo    []float32 // w, and then do [2C,ldW]
	tmp    []float32 // [C,ldW]
	uT     []float32 // u as columns [F,C]
	x      []float32 // w_i·u_j, then do_i·u_j [2C,ldC]
	sT     []float32 // S or dS', transposed, in panels [E/nr][W][nr]
	rows   []int32   // of the tokens before the segment's in the chunk
	path   []int32
	rest   []float64 // [G]
	folded int       // folds of the first pass, counted through the segments
}

// GatedDeltaGrad computes the gradient of GatedDelta, in the tasks of GatedDelta.
func (b *Backend) GatedDeltaGrad(dxNC, daNH, dbNH, doNHF, oNHF, xNC, aNH, bNH compute.Tensor, A,
	dt *compute.Param, s compute.DeltaShape, p compute.Pack) {
	const op = "GatedDeltaGrad"
	N := compute.CheckGatedDelta(op, xNC, aNH, bNH, A, dt, s, p, compute.States{}, b.DeltaState(s))
	if N == 0 {
		return
	}
	H, E := s.H, s.E
	b.deltaOperands(op, N, xNC, aNH, bNH, A, dt, s, p)
	a, d := &b.delta, &b.delta.grad
	a.o, a.st, a.states = f32(op, "o", oNHF, N*H*s.F), compute.States{}, nil
	d.on = true
	d.dx, d.da, d.db = f32(op, "dx", dxNC, N*s.Width()), f32(op, "da", daNH, N*H),
		f32(op, "db", dbNH, N*H)
	d.do = f32(op, "do", doNHF, N*H*s.F)
	folds := a.number()
	sizes := [...]int{N * H * a.W, folds * H * a.W * E, len(a.ends) / b.DeltaState(s) * H * a.W * E}
	memory := b.grow(&b.mix.kept, sizes[0]+sizes[1]+sizes[2])
	d.u, memory = memory[:sizes[0]], memory[sizes[0]:]
	d.states, d.dends = memory[:sizes[1]], memory[sizes[1]:]
	clear(d.dends)
	d.g, d.dg = slices.Grow(d.g[:0], N*H)[:N*H], slices.Grow(d.dg[:0], N*H)[:N*H]
	branching := len(d.dends) / (a.W * E)
	d.rest = slices.Grow(d.rest[:0], branching)[:branching]
	clear(d.rest)
	for w := range b.workers {
		a.backRoom(&b.workers[w].back)
	}
	b.run(len(a.jobs), func(b *Backend, wk *worker, t int) {
		a.forward(wk, t)
		a.backward(wk, t)
	})
	b.g, b.m = opt(op, "A.G", A.G, H), opt(op, "dt.G", dt.G, H)
	b.N = N
	b.run(H, func(b *Backend, _ *worker, h int) {
		a, d := &b.delta, &b.delta.grad
		var sumA, sumT float64
		for n := range b.N {
			i := n*a.H + h
			decay, slope, _ := a.gates(n, h)
			d.da[i] = float32(d.dg[i] * slope)
			sumA += d.dg[i] * decay
			sumT += d.dg[i] * slope
		}
		if b.g != nil {
			b.g[h] += float32(sumA)
		}
		if b.m != nil {
			b.m[h] += float32(sumT)
		}
	})
}

// number numbers the states behind whole chunks, and returns how many there are.
func (a *deltaArgs) number() (folds int) {
	p := a.pack
	d := &a.grad
	d.first, d.last, d.before, d.lengths = d.first[:0], d.last[:0], d.before[:0], d.lengths[:0]
	for n := range p.Segments() {
		before, last := 0, -1
		if p.Branched(n) {
			up := p.Parent[n]
			before, last = d.before[up]+d.lengths[up], d.last[up]
		}
		length := p.Tokens(n)
		d.before, d.lengths, d.first = append(d.before, before), append(d.lengths, length),
			append(d.first, folds)
		if more := (before+length)/deltaChunk - before/deltaChunk; more > 0 {
			folds += more
			last = folds - 1
		}
		d.last = append(d.last, last)
	}
	return folds
}

// backRoom makes a worker's memory.
func (a *deltaArgs) backRoom(w *deltaBack) {
	const C = deltaChunk
	ldE, ldW, wide := a.wide(a.E)+skew, a.W+skew, a.wide(a.E)
	sizes := [...]int{a.G * a.W * a.E, C * a.E, 2 * C * ldE, 2 * C * ldE, C * ldW, C * ldW,
		2 * C * ldW, C * ldW, C * a.W, 2 * C * deltaLd, wide * a.W}
	total := 0
	for _, n := range sizes {
		total += n
	}
	rest := local(&w.buf, total)
	clear(rest) // columns that nobody writes are finite
	for i, at := range []*[]float32{&w.ds, &w.keys, &w.k, &w.dk, &w.u, &w.du, &w.wdo, &w.tmp, &w.uT,
		&w.x, &w.sT} {
		*at, rest = rest[:sizes[i]], rest[sizes[i]:]
	}
	w.rest = slices.Grow(w.rest[:0], a.G)[:a.G]
}

// keep keeps u, g and the states of a chunk that deltaRows has done.
func (a *deltaArgs) keep(wk *worker, S, u []float32, h, lo, n0, m int, full bool) {
	d, nr := &a.grad, a.k.nr
	for i := range m {
		to := d.u[((lo+i)*a.H+h)*a.W:][:a.W]
		for q := 0; q < a.W; q += nr {
			copy(to[q:q+nr], u[q*deltaChunk+(n0+i)*nr:])
		}
		d.g[(lo+i)*a.H+h] = wk.delta.decay[n0+i]
	}
	if full {
		copy(d.states[(wk.back.folded*a.H+h)*a.W*a.E:], S)
	}
}

// backward computes the gradients of one task, of which deltaForward has kept what it needs.
func (a *deltaArgs) backward(wk *worker, t int) {
	const C = deltaChunk
	d, w := &a.grad, &wk.back
	f, size, P := a.jobs[t], a.W*a.E, a.Width()
	for n := int(a.pack.Start[f.s0]); n < int(a.pack.Start[f.s1]); n++ {
		row := d.dx[n*P:]
		clear(row[f.head*a.E:][:a.E])
		clear(row[(a.K+f.head)*a.E:][:a.E])
		clear(row[2*a.K*a.E+f.head*a.G*a.F:][:a.G*a.F])
	}
	for n := f.s1 - 1; n >= f.s0; n-- {
		ds := w.ds
		if at := a.end[n]; at >= 0 {
			ds = d.dends[(at*a.H+f.head*a.G)*size:][:a.G*size]
			copy(w.rest, d.rest[at*a.H+f.head*a.G:])
		} else {
			clear(ds)
			clear(w.rest)
		}
		first, before, length := int(a.pack.Start[n]), d.before[n], d.lengths[n]
		a.path(w, n, before%C)
		fold := d.last[n]
		for end := before + length; end > before; {
			lo := max(before, (end-1)/C*C)
			c := deltaPiece{head: f.head, n0: lo % C, lo: first + lo - before, m: end - lo,
				full: end%C == 0, fold: fold}
			if c.full {
				if fold--; fold < d.first[n] { // the state before is an ancestor's
					fold = -1
					if a.pack.Branched(n) {
						fold = d.last[a.pack.Parent[n]]
					}
				}
			}
			c.begin = fold
			a.pieceGrad(wk, c, ds)
			end = lo
		}
		if !a.pack.Branched(n) {
			continue
		}
		up := a.end[a.pack.Parent[n]]
		a.k.add(d.dends[(up*a.H+f.head*a.G)*size:][:a.G*size], ds)
		for v, x := range w.rest {
			if before%C > 0 {
				d.rest[up*a.H+f.head*a.G+v] += x
			}
		}
	}
}

// path sets rows to the n0 tokens before segment n.
func (a *deltaArgs) path(w *deltaBack, n, n0 int) {
	w.rows, w.path = w.rows[:0], a.pack.Ancestors(w.path[:0], n)
	for _, s := range slices.Backward(w.path) {
		for m := a.pack.Start[s+1] - 1; m >= a.pack.Start[s] && len(w.rows) < n0; m-- {
			w.rows = append(w.rows, m)
		}
	}
	slices.Reverse(w.rows)
}

// deltaPiece is the rows lo to lo+m-1 of a segment, which lie in one chunk behind n0 tokens. begin
// is the fold before the chunk, -1 for none. If the piece is full, it ends with the chunk, and fold
// is the state behind it.
type deltaPiece struct {
	head, n0, lo, m int
	full            bool
	fold, begin     int
}

// pieceGrad computes the gradients of a piece. ds is the gradient by the states behind it, and
// becomes that by the states before its chunk.
func (a *deltaArgs) pieceGrad(wk *worker, c deltaPiece, ds []float32) {
	d, w := &a.grad, &wk.back
	E, P := a.E, a.Width()
	ldE, n := a.wide(E)+skew, c.n0+c.m
	for i := range c.n0 {
		copy(w.k[i*ldE:i*ldE+E], a.x[c.row(w, i)*P+(a.K+c.head)*E:])
		a.unit(w.k[i*ldE:i*ldE+E], 1)
	}
	a.unitKeys(w.k[c.n0*ldE:], ldE, c.head, c.lo, c.m)
	a.k.transpose(w.keys, deltaChunk, w.k, ldE, n, E)
	a.scores(&wk.delta, w.keys, w.k[c.n0*ldE:], ldE, c.n0, c.m)
	clear(w.dk[:(n+c.m)*ldE])
	for v := range a.G {
		a.valueGrad(wk, c, v, ds[v*a.W*E:(v+1)*a.W*E])
	}
	for i := range n {
		row := c.row(w, i) * P
		dk := d.dx[row+(a.K+c.head)*E:][:E]
		a.k.add(dk, w.dk[i*ldE:i*ldE+E])
		if i < c.n0 {
			continue
		}
		a.unitGrad(dk, w.k[i*ldE:i*ldE+E], a.x[row+(a.K+c.head)*E:][:E], 1)
		dq, at := d.dx[row+c.head*E:][:E], (c.m+i)*ldE
		copy(dq, w.dk[at:at+E])
		a.unitGrad(dq, w.k[at:at+E], a.x[row+c.head*E:][:E], float64(E))
	}
}

// row returns the pack's row of the chunk's row i.
func (c deltaPiece) row(w *deltaBack, i int) int {
	if i < c.n0 {
		return int(w.rows[i])
	}
	return c.lo + i - c.n0
}

// unitGrad makes dy, the gradient by the y that unit made of x and 1/sqrt(scale), that by x.
func (a *deltaArgs) unitGrad(dy, y, x []float32, scale float64) {
	r := 1 / math.Sqrt(a.k.sumSquares(x)+compute.DeltaEps) / math.Sqrt(scale)
	a.k.axpy(dy, y, -float32(scale)*a.k.dot(dy, y))
	a.k.scale(dy, float32(r))
}

// deltaValue is one value head of a piece. Of its n tokens the first n0 are before the segment.
type deltaValue struct {
	deltaPiece
	back        *deltaBack
	fwd         *deltaWork
	ds          []float32
	v, h, n     int
	at          int // of its values in a row of x
	ldE, ldW    int
	wi, do      []float32 // w and do of the piece's tokens; before du is known, wi holds nothing
	last, decay float64   // g of the last token; what the decays behind the piece's get
}

// valueGrad computes what one value head of a piece gives. ds is as in pieceGrad.
func (a *deltaArgs) valueGrad(wk *worker, c deltaPiece, v int, ds []float32) {
	w, h := &wk.back, c.head*a.G+v
	x := deltaValue{deltaPiece: c, back: w, fwd: &wk.delta, ds: ds, v: v, h: h, n: c.n0 + c.m,
		at: 2*a.K*a.E + h*a.F, ldE: a.wide(a.E) + skew, ldW: a.W + skew}
	x.wi, x.do = w.wdo[:c.m*x.ldW], w.wdo[c.m*x.ldW:2*c.m*x.ldW]
	a.gather(&x)
	a.factors(x.fwd, c.n0, c.m, nil)
	x.last, x.decay = x.fwd.decay[x.n-1], w.rest[v]
	if c.full {
		a.behind(&x)
	}
	a.solveBack(&x)
	a.gateGrad(&x)
	a.scoreGrad(&x)
	a.keyGrad(&x)
	a.stateGrad(&x)
}

// gather copies u, g and du, as far as branches gave it, of a chunk's rows, and do and β of the
// piece's.
func (a *deltaArgs) gather(x *deltaValue) {
	d, w, W, F := &a.grad, x.back, a.W, a.F
	for j := range x.n {
		row := x.row(w, j)
		copy(w.u[j*x.ldW:j*x.ldW+W], d.u[(row*a.H+x.h)*W:])
		x.fwd.decay[j] = d.g[row*a.H+x.h]
		du := w.du[j*x.ldW : j*x.ldW+W]
		clear(du)
		if j < x.n0 {
			continue
		}
		copy(du, d.dx[row*a.Width()+x.at:][:F])
		to := x.do[(j-x.n0)*x.ldW : (j-x.n0)*x.ldW+W]
		copy(to, d.do[(row*a.H+x.h)*F:][:F])
		clear(to[F:])
		_, _, x.fwd.beta[j-x.n0] = a.gates(row, x.h)
	}
}

// behind adds to du, and to the decays, what the gradient by the state behind a whole chunk gives.
func (a *deltaArgs) behind(x *deltaValue) {
	nr, E, W, w := a.k.nr, a.E, a.W, x.back
	S := a.grad.states[(x.fold*a.H+x.h)*W*E:][:W*E]
	x.decay = 0
	for e := 0; e < W*E; e += nr {
		x.decay += float64(a.k.dot(x.ds[e:e+nr], S[e:e+nr]))
	}
	for q := 0; q < W; q += nr {
		a.tile(x.n, w.k, x.ldE, 1, x.ds[q*E:], nr, w.tmp[q:], x.ldW, E, 0)
	}
	for j := range x.n {
		a.k.axpy(w.du[j*x.ldW:][:W], w.tmp[j*x.ldW:][:W],
			float32(math.Exp(x.last-x.fwd.decay[j])))
	}
}

// solveBack adds to du what the outputs give, and goes back through the triangle: blocks of rows,
// the last first, whose w is added to du of the rows before.
func (a *deltaArgs) solveBack(x *deltaValue) {
	nr, mr, w, fw, n0, ld := a.k.nr, a.k.mr, x.back, x.fwd, x.n0, x.ldW
	for q := 0; q < a.W; q += nr {
		for j := 0; j < x.n; j += mr {
			i := max(0, j-n0)
			a.tile(min(mr, x.n-j), fw.p[i*deltaLd+j:], 1, deltaLd, x.do[i*ld+q:], ld,
				w.du[j*ld+q:], ld, x.m-i, 1)
		}
		for end := x.m; end > 0; {
			i := max(0, end-mr)
			for r := end - 1; r >= i; r-- {
				row := x.wi[r*ld+q : r*ld+q+nr]
				copy(row, w.du[(n0+r)*ld+q:])
				a.k.scale(row, fw.beta[r])
				if r > i {
					a.tile(r-i, fw.m[r*deltaLd+n0+i:], 1, deltaLd, row, ld, w.du[(n0+i)*ld+q:], ld,
						1, 1)
				}
			}
			if n0+i > 0 {
				a.tile(n0+i, fw.m[i*deltaLd:], 1, deltaLd, x.wi[i*ld+q:], ld, w.du[q:], ld, end-i, 1)
			}
			end = i
		}
	}
}

// gateGrad writes the gradients of v, β and the decays of the piece's tokens; those before have du.
func (a *deltaArgs) gateGrad(x *deltaValue) {
	d, w, F, P := &a.grad, x.back, a.F, a.Width()
	for i := x.m - 1; i >= 0; i-- {
		row, at := x.lo+i, (x.lo+i)*a.H+x.h
		du, wi := w.du[(x.n0+i)*x.ldW:][:F], x.wi[i*x.ldW:][:F]
		d.db[at] = a.k.dot(du, w.u[(x.n0+i)*x.ldW:][:F]) * (1 - x.fwd.beta[i])
		copy(d.dx[row*P+x.at:][:F], wi)
		x.decay += float64(a.k.dot(x.do[i*x.ldW:][:F], a.o[at*F:][:F])) -
			float64(a.k.dot(wi, a.x[row*P+x.at:][:F]))
		d.dg[at] = x.decay
	}
	w.rest[x.v] = x.decay
	for j := range x.n0 {
		a.k.add(d.dx[x.row(w, j)*P+x.at:][:F], w.du[j*x.ldW:][:F])
	}
}

// scoreGrad writes the gradients by k̂_i·k̂_j and q̂_i·k̂_j. From here on wi is -Γ_i*w_i, and do
// Γ_i*do_i: what the state before the chunk gets.
func (a *deltaArgs) scoreGrad(x *deltaValue) {
	const C = deltaChunk
	w, nr, m, F, ld := x.back, a.k.nr, x.m, a.F, x.ldW
	a.k.transpose(w.uT, C, w.u, ld, x.n, F)
	x1, x2 := w.x[:m*deltaLd], w.x[m*deltaLd:2*m*deltaLd]
	for j := 0; j < x.n; j += nr {
		i := max(0, j-x.n0)
		a.tile(m-i, x.wi[i*ld:], ld, 1, w.uT[j:], C, x1[i*deltaLd+j:], deltaLd, F, 0)
		a.tile(m-i, x.do[i*ld:], ld, 1, w.uT[j:], C, x2[i*deltaLd+j:], deltaLd, F, 0)
	}
	for i := range m {
		r1, r2 := x1[i*deltaLd:i*deltaLd+C], x2[i*deltaLd:i*deltaLd+C]
		at, own := x.fwd.d[i*deltaLd:], x.n0+i+1
		a.k.mulScale(r1[:own], r1[:own], at[:own], -1)
		a.k.mulScale(r2[:own], r2[:own], at[:own], 1)
		r1[own-1] = 0
		clear(r1[own:])
		clear(r2[own:])
		decay := float32(math.Exp(x.fwd.decay[x.n0+i]))
		a.k.scale(x.wi[i*ld:][:a.W], -decay)
		a.k.scale(x.do[i*ld:][:a.W], decay)
	}
}

// keyGrad adds to the gradients of the keys and queries what their products and the state before
// the chunk give.
func (a *deltaArgs) keyGrad(x *deltaValue) {
	w, nr, mr, m, n, n0, ld := x.back, a.k.nr, a.k.mr, x.m, x.n, x.n0, x.ldE
	x1, x2, own := w.x, w.x[m*deltaLd:], w.k[n0*ld:]
	if x.begin >= 0 {
		a.turn(w.sT, a.grad.states[(x.begin*a.H+x.h)*a.W*a.E:][:a.W*a.E])
	}
	for q := 0; q < a.E; q += nr {
		for i := 0; i < m; i += mr { // the piece's keys and queries
			rows, k := min(mr, m-i), min(n, n0+i+mr)
			a.tile(rows, x1[i*deltaLd:], deltaLd, 1, w.k[q:], ld, w.dk[(n0+i)*ld+q:], ld, k, 1)
			a.tile(rows, x2[i*deltaLd:], deltaLd, 1, w.k[q:], ld, w.dk[(n+i)*ld+q:], ld, k, 1)
		}
		for j := 0; j < n; j += mr { // and all keys
			i, rows := max(0, j-n0), min(mr, n-j)
			a.tile(rows, x1[i*deltaLd+j:], 1, deltaLd, own[i*ld+q:], ld, w.dk[j*ld+q:], ld, m-i, 1)
			a.tile(rows, x2[i*deltaLd+j:], 1, deltaLd, own[(m+i)*ld+q:], ld, w.dk[j*ld+q:], ld, m-i,
				1)
		}
		if x.begin >= 0 {
			a.tile(2*m, w.wdo, x.ldW, 1, w.sT[q*a.W:], nr, w.dk[n0*ld+q:], ld, a.F, 1)
		}
	}
}

// stateGrad makes ds the gradient by the state before the chunk; if the chunk is whole, the keys
// get what ds was.
func (a *deltaArgs) stateGrad(x *deltaValue) {
	w, nr := x.back, a.k.nr
	if x.full {
		a.turn(w.sT, x.ds)
		for j := range x.n {
			a.k.scale(w.u[j*x.ldW:][:a.W], float32(math.Exp(x.last-x.fwd.decay[j])))
		}
		for q := 0; q < a.E; q += nr {
			a.tile(x.n, w.u, x.ldW, 1, w.sT[q*a.W:], nr, w.dk[q:], x.ldE, a.F, 1)
		}
		a.k.scale(x.ds, float32(math.Exp(x.last)))
	}
	for q := 0; q < a.W; q += nr {
		a.tile(a.E, w.k[x.n0*x.ldE:], 1, x.ldE, w.wdo[q:], x.ldW, x.ds[q*a.E:], nr, 2*x.m, 1)
	}
}

// turn writes the transpose of a state, or of the gradient by one, in panels.
func (a *deltaArgs) turn(dst, S []float32) {
	nr := a.k.nr
	for q := 0; q < a.W; q += nr {
		for e := 0; e < a.E; e += nr {
			a.k.transpose(dst[e*a.W+q*nr:], nr, S[q*a.E+e*nr:], nr, min(nr, a.E-e), nr)
		}
	}
}
