package cpu

import (
	"cmp"
	"math"
	"slices"

	"gad/internal/compute"
)

// The gated delta rule goes through a sequence in chunks of deltaChunk tokens, counted from the
// sequence's beginning. With S the state before a chunk, g_i the sum of the decays from its first
// token to token i, Γ_i = exp(g_i) and D_ij = exp(g_i - g_j), what token i adds to the state is
//
//	u_i = β_i*(v_i - Γ_i*k̂_iᵀS) - Σ_{j<i} β_i*D_ij*(k̂_i·k̂_j)*u_j
//	o_i = Γ_i*q̂_iᵀS + Σ_{j<=i} D_ij*(q̂_i·k̂_j)*u_j
//
// and behind its last token n the state is Γ_n*S + Σ_j D_nj*k̂_j⊗u_j: products of matrices but for
// the solution of a triangular system, which goes by blocks of rows. Every element is one chain
// over ascending indices, whatever rows a call has. So a state that is kept holds S, and k̂, u and
// g of the tokens since: a call that goes on from it, with one token or with a branch, gives the
// bits of the whole.

// deltaChunk is the tokens of a chunk: a multiple of each variant's nr.
const deltaChunk = 32

// deltaArgs is what the tasks of the gated delta rule read.
type deltaArgs struct {
	compute.DeltaShape
	k                *kernels
	G, W             int // value heads of a key head; F in whole panels
	part             int // elements of a key head's part of a state
	x, a, b, o       []float32
	A                []float64 // [H] exp(A)
	dt, states, ends []float32
	pack             compute.Pack
	st               compute.States
	end              []int // by segment that has branches: its part of ends, else -1
	jobs             []family
	grad             deltaGrad
}

// deltaWork is a worker's memory for one chunk of a key head.
type deltaWork struct {
	buf []float32

	state  []float32 // of a sequence that leaves none behind
	kq     []float32 // k̂ and then q̂ of the call's rows [2C,E]
	kk, qk []float32 // k̂_i·k̂_j and q̂_i·k̂_j [C,ldC]
	d      []float32 // D [C,ldC]
	m, p   []float32 // factors of u_j in u_i and o_i [C,ldC]
	r      []float32 // a panel of rows times S [2C,nr]
	ue     []float32 // a panel of D_nj*u_j [C,nr]
	decay  []float64 // g of the chunk [C]
	beta   []float32 // [C]
}

// deltaLd is the distance between rows of deltaChunk elements: not a power of 2.
const deltaLd = deltaChunk + skew

// A key head's part of a state: deltaHeader elements, of which the first two are the tokens since S
// and 1 if S is not zero; k̂ of these tokens as columns [E,C]; for each value head g
// as the sums of two numbers [2,C], S in panels [W/nr][E][nr], and u likewise [W/nr][C][nr].
const deltaHeader = 16

// deltaPart returns the elements of a key head's part of a state.
func (f Footprint) deltaPart(s compute.DeltaShape) int {
	k, _ := f.kernels()
	W := (s.F + k.nr - 1) / k.nr * k.nr
	return deltaHeader + s.E*deltaChunk + s.H/s.K*(2*deltaChunk+W*(s.E+deltaChunk))
}

// DeltaState returns the elements of the state S of all value heads, and of the tokens since.
func (f Footprint) DeltaState(s compute.DeltaShape) int { return s.K * f.deltaPart(s) }

// values returns g, S and u of value head v of a key head's part of a state.
func (a *deltaArgs) values(s []float32, v int) (g, S, u []float32) {
	s = s[deltaHeader+a.E*deltaChunk+v*(2*deltaChunk+a.W*(a.E+deltaChunk)):]
	g, s = s[:2*deltaChunk], s[2*deltaChunk:]
	return g, s[:a.W*a.E], s[a.W*a.E : a.W*(a.E+deltaChunk)]
}

// GatedDelta computes the gated delta rule, a task for each sequence, or beginning and what follows
// it, and key head.
func (b *Backend) GatedDelta(oNHF, xNC, aNH, bNH compute.Tensor, A, dt *compute.Param,
	s compute.DeltaShape, p compute.Pack, st compute.States) {
	const op = "GatedDelta"
	N := compute.CheckGatedDelta(op, xNC, aNH, bNH, A, dt, s, p, st, b.DeltaState(s))
	if N == 0 {
		return
	}
	b.deltaOperands(op, N, xNC, aNH, bNH, A, dt, s, p)
	a := &b.delta
	a.o, a.st = f32(op, "o", oNHF, N*s.H*s.F), st
	a.states = opt(op, "states", st.Rows, st.Rows.Len())
	a.grad.on = false
	b.run(len(a.jobs), func(b *Backend, wk *worker, t int) { b.delta.forward(wk, t) })
}

// deltaOperands sets the operands, the tasks, and the memory of the workers and of segments that
// have branches.
func (b *Backend) deltaOperands(op string, N int, xNC, aNH, bNH compute.Tensor, A,
	dt *compute.Param, s compute.DeltaShape, p compute.Pack) {
	a, H := &b.delta, s.H
	a.DeltaShape, a.k, a.G, a.W, a.part, a.pack = s, b.k, H/s.K, b.up(s.F), b.deltaPart(s), p
	a.x, a.a, a.b = f32(op, "x", xNC, N*s.Width()), f32(op, "a", aNH, N*H), f32(op, "b", bNH, N*H)
	a.dt = f32(op, "dt", dt.W, H)
	a.A = a.A[:0]
	for _, x := range f32(op, "A", A.W, H) {
		a.A = append(a.A, math.Exp(float64(x)))
	}
	a.jobs, a.end = a.jobs[:0], a.end[:0]
	branching := 0
	for n := 0; n < p.Segments(); {
		f := family{s0: n, s1: n + 1}
		for ; f.s1 < p.Segments() && p.Branched(f.s1); f.s1++ {
		}
		f.pairs = int(p.Start[f.s1] - p.Start[n])
		for ; n < f.s1; n++ {
			at := -1
			if n+1 < f.s1 && int(p.Parent[n+1]) == n {
				at = branching
				branching++
			}
			a.end = append(a.end, at)
		}
		for f.head = range s.K {
			a.jobs = append(a.jobs, f)
		}
	}
	slices.SortStableFunc(a.jobs, func(x, y family) int { return cmp.Compare(y.pairs, x.pairs) })
	a.ends = b.grow(&b.mix.ends, branching*b.DeltaState(s))
	for w := range b.workers {
		a.room(&b.workers[w].delta)
	}
}

// room makes a worker's memory.
func (a *deltaArgs) room(w *deltaWork) {
	const C = deltaChunk
	sizes := []int{a.part, 2 * C * a.E, C * deltaLd, C * deltaLd, C * deltaLd, C * deltaLd,
		C * deltaLd, 2 * C * a.k.nr, C * a.k.nr, C}
	total := 0
	for _, n := range sizes {
		total += n
	}
	rest := local(&w.buf, total)
	for i, at := range []*[]float32{&w.state, &w.kq, &w.kk, &w.qk, &w.d, &w.m, &w.p, &w.r, &w.ue,
		&w.beta} {
		*at, rest = rest[:sizes[i]], rest[sizes[i]:]
	}
	w.decay = slices.Grow(w.decay[:0], C)[:C]
}

// place returns the memory of segment n's state of a key head: of its slot, of those that branches
// go on from, or of the worker.
func (a *deltaArgs) place(wk *worker, n, head int) []float32 {
	size := a.part
	switch to := a.st.Target(n); {
	case to >= 0:
		return a.states[(to*a.K+head)*size:][:size]
	case a.end[n] >= 0:
		return a.ends[(a.end[n]*a.K+head)*size:][:size]
	}
	return wk.delta.state
}

// begin returns segment n's state of a key head before its first token.
func (a *deltaArgs) begin(wk *worker, n, head int) []float32 {
	s := a.place(wk, n, head)
	from := a.st.Source(n)
	switch {
	case a.pack.Branched(n):
		copy(s, a.place(wk, int(a.pack.Parent[n]), head))
	case from >= 0:
		if from != a.st.Target(n) {
			copy(s, a.states[(from*a.K+head)*len(s):][:len(s)])
		}
	default:
		s[0], s[1] = 0, 0
		for v := range a.G {
			_, S, _ := a.values(s, v)
			clear(S)
		}
	}
	return s
}

// forward computes one task of GatedDelta.
func (a *deltaArgs) forward(wk *worker, t int) {
	f := a.jobs[t]
	for n := f.s0; n < f.s1; n++ {
		s := a.begin(wk, n, f.head)
		if a.grad.on {
			wk.back.folded = a.grad.first[n]
		}
		for lo, end := int(a.pack.Start[n]), int(a.pack.Start[n+1]); lo < end; {
			hi := min(end, lo+deltaChunk-int(s[0]))
			a.rows(wk, s, f.head, lo, hi)
			lo = hi
		}
	}
}

// wide returns n elements in whole panels.
func (a *deltaArgs) wide(n int) int { return (n + a.k.nr - 1) / a.k.nr * a.k.nr }

// tile computes nr columns of a product of m rows, with the arguments of kernels.gemm.
func (a *deltaArgs) tile(m int, x []float32, rs, cs int, y []float32, ldb int, c []float32, ldc, k,
	acc int) {
	blocks := (m + a.k.mr - 1) / a.k.mr
	for t := range blocks {
		i, end := m*t/blocks, m*(t+1)/blocks
		a.k.gemm[end-i-1](x[i*rs:], rs, cs, y, ldb, c[i*ldc:], ldc, k, acc)
	}
}

// unit makes y, in place, y over its length, times s.
func (a *deltaArgs) unit(y []float32, s float64) {
	a.k.scale(y, float32(s/math.Sqrt(a.k.sumSquares(y)+compute.DeltaEps)))
}

// gates returns the decay of token n of value head h, its derivative by a, and β.
func (a *deltaArgs) gates(n, h int) (g, slope float64, beta float32) {
	z := float64(a.a[n*a.H+h]) + float64(a.dt[h])
	soft := max(z, 0) + math.Log1p(math.Exp(-math.Abs(z)))
	return -a.A[h] * soft, -a.A[h] / (1 + math.Exp(-z)),
		float32(1 / (1 + math.Exp(-float64(a.b[n*a.H+h]))))
}

// unitKeys writes the normalised keys and queries of m rows from lo on to kq, the keys first. The
// rows are copied before: they come from memory, and the processor asks for several at once.
func (a *deltaArgs) unitKeys(kq []float32, ld, head, lo, m int) {
	C, E := a.Width(), a.E
	for i := range m {
		row := a.x[(lo+i)*C:]
		copy(kq[i*ld:i*ld+E], row[(a.K+head)*E:])
		copy(kq[(m+i)*ld:(m+i)*ld+E], row[head*E:])
	}
	for i := range m {
		a.unit(kq[i*ld:i*ld+E], 1)
		a.unit(kq[(m+i)*ld:(m+i)*ld+E], 1/math.Sqrt(float64(E)))
	}
}

// factors writes the factors of u_j in u_i, negative and with β unless it is nil, and in o_i,
// of m rows from the chunk's row n0 on.
func (a *deltaArgs) factors(w *deltaWork, n0, m int, beta []float32) {
	for i := range m {
		row, n := i*deltaLd, n0+i+1
		d, gi := w.d[row:row+n], w.decay[n0+i]
		for j, g := range w.decay[:n] {
			d[j] = float32(gi - g)
		}
		a.k.expSum(d, 0)
		s := float32(-1)
		if beta != nil {
			s = -beta[i]
		}
		f, p := w.m[row:row+n], w.p[row:row+deltaChunk]
		a.k.mulScale(f, w.kk[row:row+n], d, s)
		a.k.mulScale(p[:n], w.qk[row:row+n], d, 1)
		clear(p[n:])
		f[n-1] = 0
	}
}

// scores writes k̂_i·k̂_j and q̂_i·k̂_j of m rows from the chunk's row n0 on: keys, as
// columns, and kq.
func (a *deltaArgs) scores(w *deltaWork, keys, kq []float32, ld, n0, m int) {
	nr, E := a.k.nr, a.E
	for j := 0; j < n0+m; j += nr {
		i := max(0, j-n0) // rows before do not see these columns
		a.tile(m-i, kq[i*ld:], ld, 1, keys[j:], deltaChunk, w.kk[i*deltaLd+j:], deltaLd, E, 0)
		a.tile(m-i, kq[(m+i)*ld:], ld, 1, keys[j:], deltaChunk, w.qk[i*deltaLd+j:], deltaLd, E, 0)
	}
}

// rows goes on from the state s of a key head with the rows lo to hi-1, which lie in one chunk.
func (a *deltaArgs) rows(wk *worker, s []float32, head, lo, hi int) {
	const C = deltaChunk
	w, nr := &wk.delta, a.k.nr
	E, F, H, m, n0 := a.E, a.F, a.H, hi-lo, int(s[0])
	keys := s[deltaHeader : deltaHeader+E*C]
	a.unitKeys(w.kq, E, head, lo, m)
	a.k.transpose(keys[n0:], C, w.kq, E, m, E)
	a.scores(w, keys, w.kq, E, n0, m)
	full, folded, rows := n0+m == C, s[1] != 0, 2*m
	if a.grad.on {
		rows = m
	}
	for v := range a.G {
		h := head*a.G + v
		g, S, u := a.values(s, v)
		sum := 0.0
		for j := range n0 {
			sum = float64(g[2*j]) + float64(g[2*j+1])
			w.decay[j] = sum
		}
		for i := range m {
			d, _, beta := a.gates(lo+i, h)
			sum += d
			high := float32(sum)
			low := float32(sum - float64(high))
			sum = float64(high) + float64(low)
			g[2*(n0+i)], g[2*(n0+i)+1], w.decay[n0+i], w.beta[i] = high, low, sum, beta
		}
		a.factors(w, n0, m, w.beta)
		for f := 0; f < F; f += nr {
			uq, Sq, cols := u[f*C:f*C+C*nr], S[f*E:f*E+E*nr], min(nr, F-f)
			if folded { // by the queries too, unless the output is known
				a.tile(rows, w.kq, E, 1, Sq, nr, w.r, nr, E, 0)
			}
			for i := range m {
				row := uq[(n0+i)*nr : (n0+i+1)*nr]
				copy(row, a.x[(lo+i)*a.Width()+2*a.K*E+h*F+f:][:cols])
				clear(row[cols:])
				if folded {
					decay := float32(math.Exp(w.decay[n0+i]))
					a.k.axpy(row, w.r[i*nr:(i+1)*nr], -decay)
					if !a.grad.on {
						a.k.scale(w.r[(m+i)*nr:(m+i+1)*nr], decay)
					}
				}
				a.k.scale(row, w.beta[i])
			}
			a.solve(w.m, uq, n0, m)
			if !a.grad.on {
				a.addOutputs(w, uq, n0, m, folded)
				for i := range m {
					copy(a.o[((lo+i)*H+h)*F+f:][:cols], w.r[(m+i)*nr:])
				}
			}
			if full {
				a.fold(w, keys, Sq, uq)
			}
		}
		if a.grad.on {
			a.keep(wk, S, u, h, lo, n0, m, full)
		}
	}
	if s[0] = float32(n0 + m); full {
		s[0], s[1] = 0, 1
		wk.back.folded++
	}
}

// addOutputs adds to a panel of outputs, in r behind m rows, or makes it of, what u gives.
func (a *deltaArgs) addOutputs(w *deltaWork, u []float32, n0, m int, add bool) {
	nr, mr := a.k.nr, a.k.mr
	for i := 0; i < m; i += mr {
		end := min(m, i+mr)
		a.tile(end-i, w.p[i*deltaLd:], deltaLd, 1, u, nr, w.r[(m+i)*nr:], nr, n0+end, asInt(add))
	}
}

// solve adds to the rows n0 to n0+m-1 of a panel of u what the rows before each give, by the
// factors.
func (a *deltaArgs) solve(factors, u []float32, n0, m int) {
	nr, mr := a.k.nr, a.k.mr
	for i := 0; i < m; i += mr {
		end := min(m, i+mr)
		a.tile(end-i, factors[i*deltaLd:], deltaLd, 1, u, nr, u[(n0+i)*nr:], nr, n0+i, 1)
		for r := i + 1; r < end; r++ {
			a.tile(1, factors[r*deltaLd+n0+i:], deltaLd, 1, u[(n0+i)*nr:], nr, u[(n0+r)*nr:], nr,
				r-i, 1)
		}
	}
}

// fold makes a panel of the state behind a chunk of the one before.
func (a *deltaArgs) fold(w *deltaWork, keys, S, u []float32) {
	const C = deltaChunk
	nr, E, last := a.k.nr, a.E, w.decay[C-1]
	a.k.scale(S, float32(math.Exp(last)))
	for j := range C {
		row := w.ue[j*nr : (j+1)*nr]
		copy(row, u[j*nr:])
		a.k.scale(row, float32(math.Exp(last-w.decay[j])))
	}
	a.tile(E, keys, C, 1, w.ue, nr, S, nr, C, 1)
}
