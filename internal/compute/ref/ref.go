// Package ref is the reference backend: every operation of compute.Backend as
// the obvious loop of its comment, in float64, on one goroutine.
//
// It is the specification that the other backends are tested against, so
// nothing here is clever. Sums run over ascending indices. Names end in their
// shapes; the legend is that of package compute.
package ref

import (
	"fmt"
	"math"
	"sort"

	"gad/internal/compute"
)

// Backend is the reference backend. Its operations are done when they return.
type Backend struct {
	inUse, peak int64
}

var _ compute.Backend = (*Backend)(nil)

// New returns a reference backend.
func New() *Backend { return new(Backend) }

// memory is a block of float64 elements. Uploads to a quantised class are rounded to its values.
type memory struct {
	data  []float64
	class compute.Class
}

// Len returns the number of elements.
func (m *memory) Len() int { return len(m.data) }

// F64 returns t's elements, not a copy. A test writes values that float32 cannot hold through it,
// such as a finite difference's step.
func F64(t compute.Tensor) []float64 {
	if t.Absent() {
		return nil
	}
	m := t.Mem().(*memory)
	if cols, row := t.Rows(); cols > 0 {
		panic(fmt.Sprintf("ref: rows of %d elements that begin %d apart: want contiguous elements",
			cols, row))
	}
	return m.data[t.Off() : t.Off()+t.Len() : t.Off()+t.Len()]
}

// columns replaces each of ts that is columns by a contiguous copy, equal columns by the same one.
// back copies the contents back to the columns.
func columns(ts ...*compute.Tensor) (back func()) {
	type copied struct{ from, to compute.Tensor }
	var all []copied
	each := func(c copied, f func(from, to []float64)) {
		cols, row := c.from.Rows()
		data := c.from.Mem().(*memory).data[c.from.Off():]
		for n := range c.from.Len() / cols {
			f(data[n*row:n*row+cols], F64(c.to)[n*cols:(n+1)*cols])
		}
	}
next:
	for _, t := range ts {
		if cols, _ := t.Rows(); cols == 0 {
			continue
		}
		for _, c := range all {
			if c.from == *t {
				*t = c.to
				continue next
			}
		}
		c := copied{*t, compute.View(&memory{data: make([]float64, t.Len())})}
		each(c, func(from, to []float64) { copy(to, from) })
		all, *t = append(all, c), c.to
	}
	return func() {
		for _, c := range all {
			each(c, func(from, to []float64) { copy(from, to) })
		}
	}
}

// size returns t's elements, and panics unless there are n.
func size(op, name string, t compute.Tensor, n int) []float64 {
	compute.CheckLen(op, name, t, n)
	return F64(t)
}

// Name returns "ref".
func (b *Backend) Name() string { return "ref" }

// Alloc returns n zeroed elements, float64 in any class; it does not fail.
func (b *Backend) Alloc(what string, c compute.Class, n int) (compute.Tensor, error) {
	if n < 0 {
		panic(fmt.Sprintf("ref: Alloc: %q: %d elements", what, n))
	}
	b.inUse += 8 * int64(n)
	b.peak = max(b.peak, b.inUse)
	return compute.View(&memory{make([]float64, n), c}), nil
}

// Free gives t's block back.
func (b *Backend) Free(t compute.Tensor) {
	if t.Absent() {
		return
	}
	m := t.Mem().(*memory)
	if t.Len() != len(m.data) {
		panic("ref: Free: not a whole block, or freed before")
	}
	b.inUse -= 8 * int64(len(m.data))
	m.data = nil
}

// As returns t's first n elements: all classes have the same type.
func (b *Backend) As(t compute.Tensor, _ compute.Class,
	n int) compute.Tensor {
	return t.Slice(0, n)
}

// Memory returns the number of bytes allocated now, and its maximum so far.
func (b *Backend) Memory() (inUse, peak int64) { return b.inUse, b.peak }

// Alone returns true: every row has a loop of its own.
func (b *Backend) Alone() bool { return true }

// Available returns 0: unknown.
func (b *Backend) Available() int64 { return 0 }

// Element returns 8, for float64, times c.Unit(): quantised classes store decoded values.
func (b *Backend) Element(c compute.Class) int64 { return 8 * int64(c.Unit()) }

// Block returns bytes: allocations are not rounded up.
func (b *Backend) Block(bytes int64) int64 { return bytes }

// DerivedBytes returns 0: there are no copies.
func (b *Backend) DerivedBytes(compute.Class, bool, int, int) int64 { return 0 }

// Scratch returns 0: no temporary memory outlives a call.
func (b *Backend) Scratch(compute.Work) int64 { return 0 }

// Overhead returns 0.
func (b *Backend) Overhead() int64 { return 0 }

// DecodeMultiple returns 1.
func (b *Backend) DecodeMultiple() int { return 1 }

// Joined returns true, so that columns have a specification.
func (b *Backend) Joined() bool { return true }

// Upload copies src to dst; for a quantised class it stores the decoded values of src's codes.
func (b *Backend) Upload(dst compute.Tensor, src []float32) {
	if m, _ := dst.Mem().(*memory); m != nil && m.class.Quantised() {
		compute.CheckBlocks("Upload", "dst", dst)
		x, codes := make([]float32, compute.QuantBlock), make([]byte, m.class.CodeBytes())
		d := size("Upload", "dst", dst, len(src))
		for lo := 0; lo < len(src); lo += compute.QuantBlock {
			m.class.Decode(x, codes, m.class.Encode(codes, src[lo:]))
			for i, v := range x {
				d[lo+i] = float64(v)
			}
		}
		return
	}
	for i, d := 0, size("Upload", "dst", dst, len(src)); i < len(src); i++ {
		d[i] = float64(src[i])
	}
}

// Download copies src to dst, rounding to float32.
func (b *Backend) Download(dst []float32, src compute.Tensor) {
	for i, s := range size("Download", "src", src, len(dst)) {
		dst[i] = float32(s)
	}
}

// Sync has nothing to wait for.
func (b *Backend) Sync() error { return nil }

// Close has nothing to free that the collector does not.
func (b *Backend) Close() error { return nil }

// Repeat runs op.
func (b *Backend) Repeat(_ string, _ compute.Indices, op func()) { op() }

// Zero sets t to zero.
func (b *Backend) Zero(t compute.Tensor) { clear(F64(t)) }

// Copy copies src to dst.
func (b *Backend) Copy(dst, src compute.Tensor) {
	d := size("Copy", "dst", dst, src.Len())
	if m, _ := dst.Mem().(*memory); m != nil && m.class.Quantised() {
		x := make([]float32, src.Len())
		b.Download(x, src)
		b.Upload(dst, x)
		return
	}
	copy(d, F64(src))
}

// Add adds x to y.
func (b *Backend) Add(y, x compute.Tensor) {
	yy := size("Add", "y", y, x.Len())
	for i, v := range F64(x) {
		yy[i] += v
	}
}

// Refresh has nothing to do: this backend computes with W.
func (b *Backend) Refresh(p *compute.Param) {}

// Scale multiplies t by s.
func (b *Backend) Scale(t compute.Tensor, s float64) {
	for i, x := range F64(t) {
		F64(t)[i] = x * float64(float32(s))
	}
}

// Embed gathers rows of the table.
func (b *Backend) Embed(yND compute.Tensor, table *compute.Param, ids []int32) {
	D := table.Cols
	y, w := size("Embed", "y", yND, len(ids)*D), F64(table.W)
	for n, id := range ids {
		for d := range D {
			y[n*D+d] = w[int(id)*D+d]
		}
	}
}

// EmbedGrad adds to rows of the table's gradient.
func (b *Backend) EmbedGrad(table *compute.Param, dyND compute.Tensor, ids []int32) {
	if table.G.Absent() {
		return
	}
	D := table.Cols
	dy, g := size("EmbedGrad", "dy", dyND, len(ids)*D), F64(table.G)
	for n, id := range ids {
		for d := range D {
			g[int(id)*D+d] += dy[n*D+d]
		}
	}
}

// RMSNorm normalises rows by their root mean square.
func (b *Backend) RMSNorm(yND, rstdN, xND compute.Tensor, w *compute.Param, eps float64) {
	defer columns(&xND)()
	D := w.Cols
	N := compute.RowsOf("RMSNorm", "x", xND, D)
	y, rstd, x, wD :=
		size("RMSNorm", "y", yND, N*D), size("RMSNorm", "rstd", rstdN, N), F64(xND), F64(w.W)
	offset := float64(w.Offset)
	for n := range N {
		sum := 0.0
		for d := range D {
			sum += x[n*D+d] * x[n*D+d]
		}
		rstd[n] = 1 / math.Sqrt(sum/float64(D)+eps)
		for d := range D {
			y[n*D+d] = x[n*D+d] * rstd[n] * (offset + wD[d])
		}
	}
}

// RMSNormGrad computes the gradient of RMSNorm.
func (b *Backend) RMSNormGrad(dxND compute.Tensor, w *compute.Param, dyND, xND,
	rstdN compute.Tensor, acc bool) {
	defer columns(&dxND, &xND)()
	D := w.Cols
	N := compute.RowsOf("RMSNormGrad", "x", xND, D)
	dx, dy := size("RMSNormGrad", "dx", dxND, N*D), size("RMSNormGrad", "dy", dyND, N*D)
	x, rstd, wD, gD := F64(xND), size("RMSNormGrad", "rstd", rstdN, N), F64(w.W), F64(w.G)
	offset := float64(w.Offset)
	for n := range N {
		dot := 0.0
		for d := range D {
			dot += dy[n*D+d] * (offset + wD[d]) * x[n*D+d]
		}
		for d := range D {
			i := n*D + d
			if gD != nil {
				gD[d] += dy[i] * x[i] * rstd[n]
			}
			t := rstd[n] * (dy[i]*(offset+wD[d]) - x[i]*rstd[n]*rstd[n]*dot/float64(D))
			if acc {
				t += dx[i]
			}
			dx[i] = t
		}
	}
}

// Linear multiplies x by w's transpose and adds the bias.
func (b *Backend) Linear(yNO, xNI compute.Tensor, w, bias *compute.Param, acc bool) {
	defer columns(&yNO)()
	O, I := w.Rows, w.Cols
	N := compute.RowsOf("Linear", "x", xNI, I)
	y, x, wOI := size("Linear", "y", yNO, N*O), F64(xNI), F64(w.W)
	for n := range N {
		for o := range O {
			sum := 0.0
			for i := range I {
				sum += x[n*I+i] * wOI[o*I+i]
			}
			if bias != nil {
				sum += F64(bias.W)[o]
			}
			if acc {
				sum += y[n*O+o]
			}
			y[n*O+o] = sum
		}
	}
}

// LinearAdd computes Linear without a bias, and adds r.
func (b *Backend) LinearAdd(yNO, rNO, xNI compute.Tensor, w *compute.Param) {
	b.Copy(yNO, rNO)
	b.Linear(yNO, xNI, w, nil, true)
}

// Linears calls Linear for each of ps.
func (b *Backend) Linears(ps []compute.Projection, xNI compute.Tensor) {
	for _, p := range ps {
		b.Linear(p.Y, xNI, p.W, p.B, false)
	}
}

// LinearsGrad calls LinearGrad for each of ps.
func (b *Backend) LinearsGrad(dxNI compute.Tensor, ps []compute.Projection, xNI compute.Tensor) {
	for i, p := range ps {
		b.LinearGrad(dxNI, p.W, p.B, p.Y, xNI, i > 0)
	}
}

// LinearGrad computes the gradient of Linear.
func (b *Backend) LinearGrad(dxNI compute.Tensor, w, bias *compute.Param, dyNO, xNI compute.Tensor,
	acc bool) {
	defer columns(&dxNI, &dyNO)()
	O, I := w.Rows, w.Cols
	N := compute.RowsOf("LinearGrad", "dy", dyNO, O)
	dy, wOI := F64(dyNO), F64(w.W)
	if !dxNI.Absent() {
		dx := size("LinearGrad", "dx", dxNI, N*I)
		for n := range N {
			for i := range I {
				sum := 0.0
				for o := range O {
					sum += dy[n*O+o] * wOI[o*I+i]
				}
				if acc {
					sum += dx[n*I+i]
				}
				dx[n*I+i] = sum
			}
		}
	}
	if !w.G.Absent() && !xNI.Absent() {
		x, g := size("LinearGrad", "x", xNI, N*I), F64(w.G)
		for o := range O {
			for i := range I {
				sum := 0.0
				for n := range N {
					sum += dy[n*O+o] * x[n*I+i]
				}
				g[o*I+i] += sum
			}
		}
	}
	if bias != nil && !bias.G.Absent() {
		g := F64(bias.G)
		for o := range O {
			sum := 0.0
			for n := range N {
				sum += dy[n*O+o]
			}
			g[o] += sum
		}
	}
}

// Rope rotates pairs of a head by their position's angles.
func (b *Backend) Rope(xNHE compute.Tensor, heads, headDim int, pos []int32, table compute.Tensor,
	inverse bool) {
	defer columns(&xNHE)()
	H, E := heads, headDim
	x, tab := size("Rope", "x", xNHE, len(pos)*H*E), F64(table)
	for n, p := range pos {
		row := tab[int(p)*E : int(p)*E+E]
		for h := range H {
			head := x[(n*H+h)*E : (n*H+h+1)*E]
			for e := range E / 2 {
				c, s := row[e], row[E/2+e]
				if inverse {
					s = -s
				}
				u, v := head[e], head[e+E/2]
				head[e], head[e+E/2] = u*c-v*s, v*c+u*s
			}
		}
	}
}

// attend computes attention of one query over the keys and values at(j), j < n. It returns the log
// of the sum of exponentials.
func attend(oE, qE []float64, n int, a compute.AttnShape,
	at func(j int) (kE, vE []float64)) float64 {
	s, most := make([]float64, n), math.Inf(-1)
	for j := range n {
		k, _ := at(j)
		for e := range qE {
			s[j] += qE[e] * k[e]
		}
		s[j] = capped(s[j]*a.Scale, a.Cap)
		most = max(most, s[j])
	}
	sum := 0.0
	for j := range n {
		sum += math.Exp(s[j] - most)
	}
	lse := most + math.Log(sum)
	clear(oE)
	for j := range n {
		_, v := at(j)
		p := math.Exp(s[j] - lse)
		for e := range oE {
			oE[e] += p * v[e]
		}
	}
	return lse
}

// capped returns limit*tanh(x/limit), or x if limit is 0.
func capped(x, limit float64) float64 {
	if limit == 0 {
		return x
	}
	return limit * math.Tanh(x/limit)
}

// capSlope returns the derivative of capped where its value is y.
func capSlope(y, limit float64) float64 {
	if limit == 0 {
		return 1
	}
	return 1 - y/limit*(y/limit)
}

// Attention computes causal attention within each sequence.
func (b *Backend) Attention(oNHE, lseNH, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape,
	p compute.Pack) {
	defer columns(&qNHE, &kNKE, &vNKE)()
	H, K, E := a.H, a.K, a.E
	N := compute.RowsOf("Attention", "q", qNHE, H*E)
	o, lse, q :=
		size("Attention", "o", oNHE, N*H*E), size("Attention", "lse", lseNH, N*H), F64(qNHE)
	k, v := size("Attention", "k", kNKE, N*K*E), size("Attention", "v", vNKE, N*K*E)
	p.Check("Attention", N)
	for n := range p.Segments() {
		g, rows := p.Segment(n), sequence(p, n)
		for i := range g.Len {
			for h := range H {
				at := (g.First+i)*H*E + h*E
				from := a.First(g.Before + i + 1)
				lse[(g.First+i)*H+h] = attend(o[at:at+E], q[at:at+E], g.Before+i+1-from, a,
					func(j int) (kE, vE []float64) {
						at := rows[from+j]*K*E + h/(H/K)*E
						return k[at : at+E], v[at : at+E]
					})
			}
		}
	}
}

// sequence returns the rows of the sequence that ends with segment n, by position: its ancestors'
// rows, the outermost first, then its own.
func sequence(p compute.Pack, n int) (rows []int) {
	for _, s := range append(p.Ancestors(nil, n), int32(n)) {
		for i := p.Start[s]; i < p.Start[s+1]; i++ {
			rows = append(rows, int(i))
		}
	}
	return rows
}

// AttentionGrad computes the gradient of Attention.
func (b *Backend) AttentionGrad(dqNHE, dkNKE, dvNKE, doNHE, oNHE, lseNH, qNHE, kNKE,
	vNKE compute.Tensor, a compute.AttnShape, p compute.Pack) {
	defer columns(&dqNHE, &dkNKE, &dvNKE, &qNHE, &kNKE, &vNKE)()
	H, K, E := a.H, a.K, a.E
	N := compute.RowsOf("AttentionGrad", "q", qNHE, H*E)
	q, do := F64(qNHE), size("AttentionGrad", "do", doNHE, N*H*E)
	o, lse := size("AttentionGrad", "o", oNHE, N*H*E), size("AttentionGrad", "lse", lseNH, N*H)
	k, v := size("AttentionGrad", "k", kNKE, N*K*E), size("AttentionGrad", "v", vNKE, N*K*E)
	dq := size("AttentionGrad", "dq", dqNHE, N*H*E)
	dk, dv := size("AttentionGrad", "dk", dkNKE, N*K*E), size("AttentionGrad", "dv", dvNKE, N*K*E)
	clear(dq)
	clear(dk)
	clear(dv)
	p.Check("AttentionGrad", N)
	for n := range p.Segments() {
		g, rows := p.Segment(n), sequence(p, n)
		for i := g.First; i < g.First+g.Len; i++ {
			for h := range H {
				qi := i*H*E + h*E
				delta := 0.0
				for e := range E {
					delta += do[qi+e] * o[qi+e]
				}
				n := g.Before + i - g.First + 1
				for j := a.First(n); j < n; j++ {
					kj := rows[j]*K*E + h/(H/K)*E
					dot, dp := 0.0, 0.0
					for e := range E {
						dot += q[qi+e] * k[kj+e]
						dp += do[qi+e] * v[kj+e]
					}
					s := capped(a.Scale*dot, a.Cap)
					p := math.Exp(s - lse[i*H+h])
					ds := p * (dp - delta) * capSlope(s, a.Cap)
					for e := range E {
						dv[kj+e] += p * do[qi+e]
						dq[qi+e] += a.Scale * ds * k[kj+e]
						dk[kj+e] += a.Scale * ds * q[qi+e]
					}
				}
			}
		}
	}
}

// CacheWrite scatters rows into a cache.
func (b *Backend) CacheWrite(cache, xNW compute.Tensor, width int, slots []int32) {
	defer columns(&xNW)()
	c, x := F64(cache), size("CacheWrite", "x", xNW, len(slots)*width)
	for n, slot := range slots {
		copy(c[int(slot)*width:(int(slot)+1)*width], x[n*width:])
	}
}

// RopeCache rotates q, and the keys as it writes them to the cache.
func (b *Backend) RopeCache(qNHE, kNKE, vNKE, kCache, vCache compute.Tensor, a compute.AttnShape,
	pos []int32, table compute.Tensor, slots []int32) {
	W := a.K * a.E
	b.Rope(qNHE, a.H, a.E, pos, table, false)
	b.CacheWrite(kCache, kNKE, W, slots)
	b.CacheWrite(vCache, vNKE, W, slots)
	for n, slot := range slots {
		b.Rope(kCache.Slice(int(slot)*W, (int(slot)+1)*W), a.K, a.E, pos[n:n+1], table, false)
	}
}

// AttentionDecode computes Attention for one query a row over paged keys and values.
func (b *Backend) AttentionDecode(oRHE, qRHE, kCache, vCache compute.Tensor, a compute.AttnShape,
	pages compute.Pages) {
	defer columns(&qRHE)()
	H, K, E := a.H, a.K, a.E
	R := len(pages.Len)
	o, q := size("AttentionDecode", "o", oRHE, R*H*E), size("AttentionDecode", "q", qRHE, R*H*E)
	k, v := F64(kCache), F64(vCache)
	for r := range R {
		for h := range H {
			at := (r*H + h) * E
			from := a.First(int(pages.Len[r]))
			attend(o[at:at+E], q[at:at+E], int(pages.Len[r])-from, a,
				func(j int) (kE, vE []float64) {
					j += from
					slot := int(pages.Table[r][j/pages.PageTokens])*pages.PageTokens +
						j%pages.PageTokens
					at := slot*K*E + h/(H/K)*E
					return k[at : at+E], v[at : at+E]
				})
		}
	}
}

// gatedConv computes y of GatedConv from u, of which row n reads the rows back[n].
func gatedConv(y, g, w, u []float64, back []int32, D, J int) {
	for i := range y {
		n, d := i/D, i%D
		v := 0.0
		for j, m := range back[n*J : (n+1)*J] {
			if m >= 0 {
				v += w[d*J+j] * u[int(m)*D+d]
			}
		}
		y[i] = g[n*3*D+D+d] * v
	}
}

// gatedInputs computes u of GatedConv: b*x.
func gatedInputs(u, g []float64, D int) {
	for i := range u {
		row := g[i/D*3*D:]
		u[i] = row[i%D] * row[2*D+i%D]
	}
}

// GatedConv convolves b*x over the tokens that each token sees last, and gates the sum by c.
func (b *Backend) GatedConv(yND, uND, gN3D compute.Tensor, w *compute.Param, p compute.Pack) {
	before := p.Before(nil)
	N := len(before)
	D, J := compute.CheckGatedConv("GatedConv", N, gN3D, w)
	y, u, g := size("GatedConv", "y", yND, N*D), size("GatedConv", "u", uND, N*D), F64(gN3D)
	gatedInputs(u, g, D)
	gatedConv(y, g, F64(w.W), u, compute.Back(nil, before, J), D, J)
}

// GatedConvGrad computes the gradients of g and w.
func (b *Backend) GatedConvGrad(dgN3D, uND compute.Tensor, w *compute.Param, dyND,
	gN3D compute.Tensor, p compute.Pack) {
	const op = "GatedConvGrad"
	before := p.Before(nil)
	N := len(before)
	D, J := compute.CheckGatedConv(op, N, gN3D, w)
	dg, u, dy, g := size(op, "dg", dgN3D, 3*N*D), size(op, "u", uND, N*D), size(op, "dy", dyND, N*D),
		F64(gN3D)
	back, wDJ, du, gDJ := compute.Back(nil, before, J), F64(w.W), make([]float64, N*D), F64(w.G)
	gatedInputs(u, g, D)
	for i := range u {
		n, d := i/D, i%D
		v, dv := 0.0, dy[i]*g[n*3*D+D+d]
		for j, m := range back[n*J : (n+1)*J] {
			if m < 0 {
				continue
			}
			at := int(m)*D + d
			v += wDJ[d*J+j] * u[at]
			du[at] += wDJ[d*J+j] * dv
			if gDJ != nil {
				gDJ[d*J+j] += dv * u[at]
			}
		}
		dg[n*3*D+D+d] = dy[i] * v
	}
	for i, x := range du {
		at := i/D*3*D + i%D
		dg[at], dg[at+2*D] = x*g[at+2*D], x*g[at]
	}
}

// GatedConvDecode computes GatedConv for one token a row over paged u.
func (b *Backend) GatedConvDecode(yRD, gR3D, cache compute.Tensor, w *compute.Param, slots []int32,
	pages compute.Pages) {
	R := len(slots)
	D, J := compute.CheckGatedConv("GatedConvDecode", R, gR3D, w)
	y, g, u := size("GatedConvDecode", "y", yRD, R*D), F64(gR3D), F64(cache)
	for i := range y {
		row := g[i/D*3*D:]
		u[int(slots[i/D])*D+i%D] = row[i%D] * row[2*D+i%D]
	}
	gatedConv(y, g, F64(w.W), u, pages.Back(nil, J), D, J)
}

// Gated gates up by act(gate).
func (b *Backend) Gated(act compute.Activation, yNF, gateNF, upNF compute.Tensor) {
	defer columns(&gateNF, &upNF)()
	op, n := act.Unit(), gateNF.Len()
	y, up := size(op, "y", yNF, n), size(op, "up", upNF, n)
	for i, x := range F64(gateNF) {
		value, _ := activate(act, x)
		y[i] = value * up[i]
	}
}

// GatedGrad computes the gradient of Gated.
func (b *Backend) GatedGrad(act compute.Activation, yNF, dgateNF, dupNF, dyNF, gateNF,
	upNF compute.Tensor) {
	defer columns(&dgateNF, &dupNF, &dyNF, &gateNF, &upNF)()
	op, n := act.Grad(), gateNF.Len()
	if !yNF.Absent() {
		b.Gated(act, yNF, gateNF, upNF)
	}
	dgate, dup := size(op, "dgate", dgateNF, n), size(op, "dup", dupNF, n)
	dyNFv, up := size(op, "dy", dyNF, n), size(op, "up", upNF, n)
	for i, x := range F64(gateNF) {
		dy := dyNFv[i]
		value, slope := activate(act, x)
		dgate[i] = dy * up[i] * slope
		dup[i] = dy * value
	}
}

// tanhC is c of GELUTanh, and tanhCube the factor of the cube.
var tanhC = math.Sqrt(2 / math.Pi)

const tanhCube = 0.044715

// activate returns an activation's value and derivative at x.
func activate(act compute.Activation, x float64) (value, slope float64) {
	s := 1 / (1 + math.Exp(-x))
	switch act {
	case compute.SiLU:
		return x / (1 + math.Exp(-x)), s * (1 + x*(1-s))
	case compute.GELUTanh:
		t := math.Tanh(tanhC * (x + tanhCube*x*x*x))
		return x / 2 * (1 + t), (1+t)/2 + x/2*(1-t*t)*tanhC*(1+3*tanhCube*x*x)
	}
	return s, s / (1 + math.Exp(x)) // 1 - s of a large x has no digits
}

// logits returns the scaled logits of one row, and the log of the sum of their exponentials.
func logits(hD []float64, w *compute.Param, invTemp float64) (zV []float64, lse float64) {
	D, wVD := w.Cols, F64(w.W)
	zV = make([]float64, w.Vocab())
	most := math.Inf(-1)
	for v := range zV {
		for d := range D {
			zV[v] += hD[d] * wVD[v*D+d]
		}
		zV[v] = invTemp * capped(zV[v], w.Cap)
		most = max(most, zV[v])
	}
	sum := 0.0
	for _, z := range zV {
		sum += math.Exp(z - most)
	}
	return zV, most + math.Log(sum)
}

// LogProb computes the language-model head's log-probabilities and entropies.
func (b *Backend) LogProb(out compute.HeadOut, hND compute.Tensor, w *compute.Param, rows,
	targets []int32, invTemp float64) {
	D, R := w.Cols, len(rows)
	compute.CheckHead("LogProb", hND, w, rows, targets)
	h, logp := F64(hND), size("LogProb", "logp", out.LogpR, R)
	ent, lse := size("LogProb", "ent", out.EntR, R), size("LogProb", "lse", out.LseR, R)
	for r, n := range rows {
		var zV []float64
		zV, lse[r] = logits(h[int(n)*D:int(n)*D+D], w, invTemp)
		logp[r] = zV[targets[r]] - lse[r]
		mean := 0.0
		for _, z := range zV {
			mean += math.Exp(z-lse[r]) * z
		}
		ent[r] = lse[r] - mean
	}
}

// LogProbGrad computes the gradient of LogProb.
func (b *Backend) LogProbGrad(dhND compute.Tensor, w *compute.Param, out compute.HeadOut, dlogpR,
	dentR, hND compute.Tensor, rows, targets []int32, invTemp float64) {
	D, R := w.Cols, len(rows)
	h, wVD, gVD, dh := F64(hND), F64(w.W), F64(w.G), F64(dhND)
	ent, lse := size("LogProbGrad", "ent", out.EntR, R), size("LogProbGrad", "lse", out.LseR, R)
	dlogp := size("LogProbGrad", "dlogp", dlogpR, R)
	for r, n := range rows {
		hD := h[int(n)*D : int(n)*D+D]
		zV, _ := logits(hD, w, invTemp)
		for v, z := range zV {
			p := math.Exp(z - lse[r])
			dz := -dlogp[r] * p
			if v == int(targets[r]) {
				dz += dlogp[r]
			}
			if !dentR.Absent() {
				dz -= size("LogProbGrad", "dent", dentR, R)[r] * p * (z - lse[r] + ent[r])
			}
			dz *= capSlope(z/invTemp, w.Cap)
			for d := range D {
				if dh != nil {
					dh[int(n)*D+d] += invTemp * dz * wVD[v*D+d]
				}
				if gVD != nil {
					gVD[v*D+d] += invTemp * dz * hD[d]
				}
			}
		}
	}
}

// Sample draws one token a row. TopP is a share of the probability left by TopK; of equally
// probable tokens the lower id counts as the more probable.
func (b *Backend) Sample(ids []int32, logp []float32, hRD compute.Tensor, w *compute.Param,
	s compute.Sampling, u []float64) {
	D, R := w.Cols, len(ids)
	h := size("Sample", "h", hRD, R*D)
	invTemp := 1.0
	if s.Temperature > 0 {
		invTemp = 1 / s.Temperature
	}
	for r := range R {
		zV, lse := logits(h[r*D:r*D+D], w, invTemp)
		ids[r] = choose(zV, lse, s, u[r])
		logp[r] = float32(zV[ids[r]] - lse)
	}
}

// choose draws one token from a row's logits by the uniform number u.
func choose(zV []float64, lse float64, s compute.Sampling, u float64) int32 {
	order := make([]int, len(zV))
	for v := range order {
		order[v] = v
	}
	sort.SliceStable(order, func(i, j int) bool { return zV[order[i]] > zV[order[j]] })
	if s.Temperature == 0 {
		return int32(order[0])
	}
	p := func(v int) float64 { return math.Exp(zV[v] - lse) }
	if s.TopK > 0 && s.TopK < len(order) {
		order = order[:s.TopK]
	}
	total := 0.0
	for _, v := range order {
		total += p(v)
	}
	if s.TopP > 0 && s.TopP < 1 {
		n, sum := 0, 0.0
		for sum < s.TopP*total && n < len(order) {
			sum += p(order[n])
			n++
		}
		order = order[:n]
	}
	if s.MinP > 0 {
		n := 0
		for n < len(order) && p(order[n]) >= s.MinP*p(order[0]) {
			n++
		}
		order = order[:n]
	}
	sort.Ints(order)
	total = 0
	for _, v := range order {
		total += p(v)
	}
	sum := 0.0
	for _, v := range order {
		sum += p(v)
		if sum > u*total {
			return int32(v)
		}
	}
	return int32(order[len(order)-1])
}

// Score computes the value head's scores.
func (b *Backend) Score(sR, hND compute.Tensor, w *compute.Param, rows []int32) {
	D := w.Cols
	s, h, wD := size("Score", "s", sR, len(rows)), F64(hND), F64(w.W)
	for r, n := range rows {
		s[r] = 0
		for d := range D {
			s[r] += h[int(n)*D+d] * wD[d]
		}
	}
}

// ScoreGrad computes the gradient of Score.
func (b *Backend) ScoreGrad(dhND compute.Tensor, w *compute.Param, dsR, hND compute.Tensor,
	rows []int32) {
	D := w.Cols
	dh, ds, h, wD, gD :=
		F64(dhND), size("ScoreGrad", "ds", dsR, len(rows)), F64(hND), F64(w.W), F64(w.G)
	for r, n := range rows {
		for d := range D {
			if dh != nil {
				dh[int(n)*D+d] += ds[r] * wD[d]
			}
			if gD != nil {
				gD[d] += ds[r] * h[int(n)*D+d]
			}
		}
	}
}

// SumSquares returns the sum of the squares of all elements.
func (b *Backend) SumSquares(ts []compute.Tensor) float64 {
	sum := 0.0
	for _, t := range ts {
		for _, x := range F64(t) {
			sum += x * x
		}
	}
	return sum
}

// AdamW takes one optimizer step for each of ps.
func (b *Backend) AdamW(ps []*compute.Param, a compute.AdamW) {
	for _, p := range ps {
		adamW(p, a)
	}
}

// adamW takes one optimizer step for p.
func adamW(p *compute.Param, a compute.AdamW) {
	n := p.Len()
	w, g := size("AdamW", "W", p.W, n), size("AdamW", "G", p.G, n)
	m, v := size("AdamW", "M", p.M, n), size("AdamW", "V", p.V, n)
	coded := !p.MScale.Absent()
	if coded {
		m, v = decode(p.M, p.MScale, compute.Signed), decode(p.V, p.VScale, compute.Squares)
	}
	decay := 0.0
	if p.Decay {
		decay = a.Decay
	}
	c1, c2 := 1-math.Pow(a.Beta1, float64(a.Step)), 1-math.Pow(a.Beta2, float64(a.Step))
	for i := range n {
		gi := g[i] * a.GradScale
		m[i] = a.Beta1*m[i] + (1-a.Beta1)*gi
		v[i] = a.Beta2*v[i] + (1-a.Beta2)*gi*gi
		w[i] = w[i]*(1-a.LR*decay) - a.LR/c1*m[i]/(math.Sqrt(v[i]/c2)+a.Eps)
	}
	if coded {
		encode(p.M, p.MScale, m, compute.Signed)
		encode(p.V, p.VScale, v, compute.Squares)
	}
}

// decode returns the moments that codes and their blocks' scales stand for.
func decode(codes, scales compute.Tensor, by *compute.Moments) []float64 {
	c := F64(codes)
	s := size("AdamW", "scales", scales, compute.Blocks(len(c)))
	x := make([]float64, len(c))
	for i := range x {
		x[i] = float64(by.Value[uint8(c[i])] * float32(s[i/compute.MomentBlock]))
	}
	return x
}

// encode sets codes and scales to the moments x, each code the nearest.
func encode(codes, scales compute.Tensor, x []float64, by *compute.Moments) {
	c, s := F64(codes), F64(scales)
	for block := range s {
		lo, hi := block*compute.MomentBlock, min(len(x), (block+1)*compute.MomentBlock)
		most := float32(0)
		for _, xi := range x[lo:hi] {
			most = max(most, float32(math.Abs(xi)))
		}
		s[block] = float64(most)
		for i := lo; i < hi; i++ {
			y := float32(0)
			if most > 0 {
				y = float32(x[i]) / most
			}
			c[i] = float64(by.Encode(y))
		}
	}
}
