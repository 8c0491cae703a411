package cpu

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
)

// attnJob is a task of Attention or AttentionGrad: the queries lo to hi-1, counted
// within segment n, of one query head or, packing, of one key/value head. at is where
// that head's packed keys of the segment begin.
type attnJob struct {
	compute.Segment
	n, head int
	lo, hi  int
	at      int
}

// keyRun is the keys of one segment that a job's queries see: those of an ancestor, whole, or
// those of its own segment. In a row of scores the runs lie one behind the other, without gaps,
// the outermost ancestor's first.
type keyRun struct {
	first, length int // tokens of the segment
	at            int // where its packed keys of the job's head begin
	col           int // column of the first key's score: its position
}

// family is a task of AttentionGrad: one key/value head of the segments s0 to s1-1, a
// sequence, or a beginning and what follows it.
type family struct {
	head, s0, s1 int
	pairs        int // about twice the number of pairs of query and key
}

// attnArgs is what the tasks of the attention operations read.
type attnArgs struct {
	compute.AttnShape
	q, k, v, o, lse    []float32
	do, dq, dk, dv     []float32
	keys, values, rows []float32 // packed: columns, and rows of keys
	delta              []float32 // [N,H] do·o
	block              gradBlock // that all workers share
	families           []family  // of AttentionGrad
	own                []family  // those that a worker has alone
	pack               compute.Pack
	base               []int   // [S] where a segment's packed keys begin
	path               []int32 // the ancestors of each segment, segment by segment
	above              []int   // [S+1] where those of a segment begin in path
	pages              compute.Pages
}

// gradBlock is the queries that AttentionGrad takes at a time, with their memory:
// scores and the scores' gradients, and do and q, packed.
type gradBlock struct {
	attnJob
	s, ds, doP, qP []float32
}

const (
	// queryTiles is how many register tiles of queries a task of Attention has.
	queryTiles = 4
	// gradTiles is how many AttentionGrad takes at a time: the chains of dk and dv
	// are stored and fetched again as often as there are such blocks.
	gradTiles = 8
	// packedKeys is how many keys a task packs.
	packedKeys = 256
	// skew lies between the rows of scores, so that the rows of a tile do not fall
	// into the same few sets of the cache.
	skew = 16
)

// up rounds n up to whole column panels.
func (b *Backend) up(n int) int { return (n + b.k.nr - 1) / b.k.nr * b.k.nr }

// transposed packs the transpose of rows of E elements, ld apart, into lanes of
// a panel that has width of them: dst[x*width+r] = src[r*ld+x]. It may fill up
// to nr/2-1 lanes more, with anything, since whole blocks are faster.
func (b *Backend) transposed(dst []float32, width int, src []float32, ld, rows, E int) {
	half := b.k.nr / 2
	if whole := (rows + half - 1) / half * half; (whole-1)*ld+E <= len(src) {
		rows = whole
	}
	b.k.transpose(dst, width, src, ld, rows, E)
}

// packColumns packs the transpose of the rows lo to hi-1 of E elements, ld apart,
// into column panels: [length/nr][E][nr]. lo is a multiple of nr. What fills up the
// last panel is arbitrary.
func (b *Backend) packColumns(dst, src []float32, ld, lo, hi, E int) {
	nr := b.k.nr
	for j := lo; j < hi; j += nr {
		b.transposed(dst[j*E:], nr, src[j*ld:], ld, min(nr, hi-j), E)
	}
}

// packRows packs the rows lo to hi-1, of length, into panels of their columns:
// [E/nr][length][nr], so that a product finds its rows one behind the other.
func (b *Backend) packRows(dst, src []float32, ld, lo, hi, length, E int) {
	nr := b.k.nr
	for e := 0; e < E; e += nr {
		n := min(nr, E-e)
		if n == nr && lo < hi {
			b.k.rows(dst[e*length+lo*nr:], src[lo*ld+e:], ld, hi-lo)
			continue
		}
		for j := lo; j < hi; j++ {
			copy(dst[e*length+j*nr:][:n], src[j*ld+e:])
		}
	}
}

// panels makes b panels of columns that packRows made of length rows.
func (p *product) panels(k *kernels, b []float32, length int) *product {
	p.b, p.panel, p.ldb = b, length*k.nr, k.nr
	return p
}

// heads lists the jobs that pack keys and values for each key/value head: width
// is how many elements a key takes, rounded up, and size what all keys take.
func (b *Backend) heads(p compute.Pack, K, width int) (size int) {
	a := &b.attn
	b.jobs, a.pack, a.base = b.jobs[:0], p, a.base[:0]
	a.path, a.above = a.path[:0], append(a.above[:0], 0)
	for n := range p.Segments() {
		g := p.Segment(n)
		a.base, a.path = append(a.base, size), p.Ancestors(a.path, n)
		a.above = append(a.above, len(a.path))
		for head := range K {
			for lo := 0; lo < g.Len; lo += packedKeys {
				b.jobs = append(b.jobs, attnJob{Segment: g, n: n, head: head, lo: lo,
					hi: min(g.Len, lo+packedKeys), at: size})
			}
			size += b.up(g.Len) * width
		}
	}
	return size
}

// job returns the queries lo to hi-1 of segment n, whose Segment is g, and query head h.
func (b *Backend) job(n int, g compute.Segment, h, lo, hi int) attnJob {
	return attnJob{Segment: g, n: n, head: h, lo: lo, hi: hi, at: b.keysAt(n, h)}
}

// keysAt returns where the packed keys of segment n begin that query head h reads.
func (b *Backend) keysAt(n, h int) int {
	a := &b.attn
	return a.base[n] + h/(a.H/a.K)*b.up(a.pack.Tokens(n))*b.up(a.E)
}

// ancestors calls fn on the runs of keys before the job's segment, in order.
func (b *Backend) ancestors(j attnJob, fn func(r keyRun)) {
	a, col := &b.attn, 0
	for _, s := range a.path[a.above[j.n]:a.above[j.n+1]] {
		r := keyRun{first: int(a.pack.Start[s]), length: a.pack.Tokens(int(s)),
			at: b.keysAt(int(s), j.head), col: col}
		fn(r)
		col += r.length
	}
}

// seen returns the first of a run's keys at position first or later, moved back to the beginning of
// its panel; the run's length or more if the run has no such key.
func (b *Backend) seen(r keyRun, first int) int { return max(0, first-r.col) / b.k.nr * b.k.nr }

// ld returns the distance between the job's rows of scores. A row has the scores of the keys before
// the segment, then of the segment's own.
func (b *Backend) ld(j attnJob) int { return b.up(j.Before+b.up(j.hi)) + skew }

// softmax makes scores s of one query into exp(scale*s - most), in place, most
// being the largest scaled score, capped if a.Cap says so; it returns that and the exponentials'
// sum.
func (b *Backend) softmax(s []float32, scale float32) (most, sum float32) {
	if limit := b.attn.Cap; limit > 0 {
		compute.SoftCap(s, b.attn.Scale, limit)
		scale = 1
	}
	most = b.k.scaleMax(s, scale)
	return most, b.k.expSum(s, most)
}

// Attention computes causal attention within each sequence.
func (b *Backend) Attention(oNHE, lseNH, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape,
	p compute.Pack) {
	H, K, E := a.H, a.K, a.E
	N := compute.RowsOf("Attention", "q", qNHE, H*E)
	at := &b.attn
	at.AttnShape = a
	at.o, at.lse, at.q =
		f32("Attention", "o", oNHE, N*H*E), f32("Attention", "lse", lseNH, N*H),
		f32("Attention", "q", qNHE, N*H*E)
	at.k, at.v = f32("Attention", "k", kNKE, N*K*E), f32("Attention", "v", vNKE, N*K*E)
	p.Check("Attention", N)

	size := b.heads(p, K, b.up(E))
	packed := b.grow(&b.packed, 2*size)
	at.keys, at.values = packed[:size], packed[size:]
	b.run(len(b.jobs), func(b *Backend, _ *worker, t int) {
		j, a := b.jobs[t], &b.attn
		K, E := a.K, a.E
		at := j.First*K*E + j.head*E
		b.packColumns(a.keys[j.at:], a.k[at:], K*E, j.lo, j.hi, E)
		b.packRows(a.values[j.at:], a.v[at:], K*E, j.lo, j.hi, j.Len, E)
	})

	mr := b.k.mr
	b.jobs = b.jobs[:0]
	for n := range p.Segments() {
		g := p.Segment(n)
		for h := range H {
			for lo := 0; lo < g.Len; lo += queryTiles * mr {
				b.jobs = append(b.jobs, b.job(n, g, h, lo, min(g.Len, lo+queryTiles*mr)))
			}
		}
	}
	// Long ones first: the workers finish together.
	slices.SortStableFunc(b.jobs,
		func(x, y attnJob) int { return cmp.Compare(y.Before+y.hi, x.Before+x.hi) })
	if len(b.jobs) > 0 {
		j := b.jobs[0]
		b.room(mr * (b.up(j.Before+j.hi) + 2*b.k.nr + skew))
	}
	b.run(len(b.jobs), (*Backend).attend)
}

// attend computes one job of Attention.
func (b *Backend) attend(wk *worker, t int) {
	j, a := b.jobs[t], &b.attn
	H, E, mr, scale := a.H, a.E, b.k.mr, float32(a.Scale)
	ld := b.ld(j)
	s := wk.buf[0][:mr*ld]
	var norm [maxTile]float32
	n := j.hi - j.lo
	tiles := (n + mr - 1) / mr
	for t := range tiles {
		lo, hi := j.lo+n*t/tiles, j.lo+n*(t+1)/tiles
		at := (j.First+lo)*H*E + j.head*E
		first := a.First(j.Before + lo + 1)
		b.ancestors(j, func(r keyRun) { // columns beyond the run's are the next one's
			if from := b.seen(r, first); from < r.length {
				p := product{m: hi - lo, n: b.up(r.length) - from, k: E, a: a.q[at:], rs: H * E,
					cs: 1, c: s[r.col+from:], ldc: ld}
				p.columns(b.k, a.keys[r.at+from*E:]).all(b.k, wk)
			}
		})
		from := b.own(j, lo)
		p := product{m: hi - lo, n: b.up(hi) - from, k: E, a: a.q[at:], rs: H * E, cs: 1,
			c: s[j.Before+from:], ldc: ld}
		p.columns(b.k, a.keys[j.at+from*E:]).all(b.k, wk)
		for i := range hi - lo {
			row, own := s[i*ld:i*ld+j.Before+hi], j.Before+lo+i+1
			first := a.First(own)
			most, sum := b.softmax(row[first:own], scale)
			a.lse[(j.First+lo+i)*H+j.head], norm[i] =
				float32(float64(most)+math.Log(float64(sum))), 1/sum
			clear(row[own:])
			clear(row[:first])
		}
		begun := false
		b.ancestors(j, func(r keyRun) {
			if from := b.seen(r, first); from < r.length {
				p := product{m: hi - lo, n: E, k: r.length - from, a: s[r.col+from:], rs: ld,
					cs: 1, c: a.o[at:], ldc: H * E, acc: begun}
				p.panels(b.k, a.values[r.at+from*b.k.nr:], r.length).all(b.k, wk)
				begun = true
			}
		})
		p = product{m: hi - lo, n: E, k: hi - from, a: s[j.Before+from:], rs: ld, cs: 1,
			c: a.o[at:], ldc: H * E, acc: begun}
		p.panels(b.k, a.values[j.at+from*b.k.nr:], j.Len).all(b.k, wk)
		for i := range hi - lo {
			b.k.scale(a.o[at+i*H*E:at+i*H*E+E], norm[i])
		}
	}
}

// own returns where the keys of j's own segment begin that its queries from the lo-th on see, at
// the beginning of a panel.
func (b *Backend) own(j attnJob, lo int) int {
	return b.seen(keyRun{col: j.Before}, b.attn.First(j.Before+lo+1))
}

// maxTile is the most rows that any variant's register tile has.
const maxTile = 16

// AttentionGrad computes the gradient of Attention. The queries of one head are taken in
// blocks; a block's probabilities and their gradients are made, added to dv and dk
// of the keys that it sees, and multiplied with these keys to dq. dv and dk are
// chains over a key/value head's query heads, and over the queries of each, both
// ascending: those of a segment, then those of its descendants. A worker has one
// key/value head of one family; where these are too few or too unequal, all workers
// share a block, each with some of the keys, and then with some of the queries, which
// moves no chain.
func (b *Backend) AttentionGrad(dqNHE, dkNKE, dvNKE, doNHE, oNHE, lseNH, qNHE, kNKE,
	vNKE compute.Tensor, a compute.AttnShape, p compute.Pack) {
	H, K, E := a.H, a.K, a.E
	const op = "AttentionGrad"
	N := compute.RowsOf(op, "q", qNHE, H*E)
	at := &b.attn
	at.AttnShape = a
	at.dq, at.dk, at.dv =
		f32(op, "dq", dqNHE, N*H*E), f32(op, "dk", dkNKE, N*K*E), f32(op, "dv", dvNKE, N*K*E)
	at.do, at.o, at.lse =
		f32(op, "do", doNHE, N*H*E), f32(op, "o", oNHE, N*H*E), f32(op, "lse", lseNH, N*H)
	at.q, at.k, at.v =
		f32(op, "q", qNHE, N*H*E), f32(op, "k", kNKE, N*K*E), f32(op, "v", vNKE, N*K*E)
	p.Check(op, N)

	width, nr, mr := b.up(E), b.k.nr, b.k.mr
	size := b.heads(p, K, width)
	packed := b.grow(&b.packed, 3*size+N*H)
	at.keys, at.values, at.rows, at.delta =
		packed[:size], packed[size:2*size], packed[2*size:3*size], packed[3*size:]
	b.run(len(b.jobs), func(b *Backend, _ *worker, t int) {
		j, a := b.jobs[t], &b.attn
		H, K, E, G := a.H, a.K, a.E, a.H/a.K
		at := j.First*K*E + j.head*E
		b.packColumns(a.keys[j.at:], a.k[at:], K*E, j.lo, j.hi, E)
		b.packColumns(a.values[j.at:], a.v[at:], K*E, j.lo, j.hi, E)
		b.packRows(a.rows[j.at:], a.k[at:], K*E, j.lo, j.hi, j.Len, E)
		for i := j.lo; i < j.hi; i++ {
			clear(a.dk[at+i*K*E : at+i*K*E+E])
			clear(a.dv[at+i*K*E : at+i*K*E+E])
			for h := j.head * G; h < (j.head+1)*G; h++ {
				n := (j.First+i)*H + h
				a.delta[n] = b.k.dot(a.do[n*E:n*E+E], a.o[n*E:n*E+E])
			}
		}
	})

	// The largest families first.
	left, longest := b.divide(p)
	step, ld := gradTiles*mr, b.up(longest)+2*nr+skew
	b.room(step*ld, step*ld, step*width, step*width)
	workers, shared := b.pool.workers, 0
	for ; shared < len(at.families) && workers > 1; shared++ {
		f := at.families[shared]
		work, even := f.pairs*workers, (len(at.families)-shared)%workers == 0
		if left >= 3*work || even && 21*left >= 20*work || f.pairs < 4*nr*nr {
			break // left to one worker, it is done when the others are
		}
		left -= f.pairs
		b.blocks(f, &b.workers[0].buf, func(j gradBlock) {
			b.attn.block = j
			b.run(b.gradParts(j), func(b *Backend, w *worker, t int) {
				j, nr := b.attn.block, b.k.nr
				all, parts := b.gradPanels(j), b.gradParts(j)
				lo, hi := all*t/parts*nr, all*(t+1)/parts*nr
				b.ancestors(j.attnJob, func(r keyRun) {
					n := b.up(r.length)
					b.byKeysBefore(w, j, r, min(lo, n), min(hi, n))
					lo, hi = max(lo-n, 0), max(hi-n, 0)
				})
				b.byKeys(w, j, lo, hi)
			})
			b.run((j.hi-j.lo+mr-1)/mr,
				func(b *Backend, w *worker, t int) { b.byQueries(w, b.attn.block, t) })
		})
	}
	at.own = at.families[shared:]
	b.run(len(at.own), func(b *Backend, w *worker, t int) {
		b.blocks(b.attn.own[t], &w.buf, func(j gradBlock) {
			b.ancestors(j.attnJob, func(r keyRun) { b.byKeysBefore(w, j, r, 0, r.length) })
			b.byKeys(w, j, 0, b.up(j.hi))
			for t := range (j.hi - j.lo + b.k.mr - 1) / b.k.mr {
				b.byQueries(w, j, t)
			}
		})
	})
}

// divide makes the families of a pack, the largest first. left is the pairs of all, and
// longest the most keys that a query sees.
func (b *Backend) divide(p compute.Pack) (left, longest int) {
	a := &b.attn
	a.families = a.families[:0]
	for n := 0; n < p.Segments(); {
		f := family{s0: n, s1: n + 1}
		for ; f.s1 < p.Segments() && p.Branched(f.s1); f.s1++ {
		}
		for n = f.s0; n < f.s1; n++ {
			g := p.Segment(n)
			f.pairs += g.Len * (2*g.Before + g.Len)
			longest = max(longest, g.Before+g.Len)
		}
		for f.head = range a.K {
			a.families = append(a.families, f)
			left += f.pairs
		}
	}
	slices.SortStableFunc(a.families,
		func(x, y family) int { return cmp.Compare(y.pairs, x.pairs) })
	return left, longest
}

// gradPanels returns how many panels of keys a block sees, and gradParts how many tasks share them.
func (b *Backend) gradPanels(j gradBlock) int {
	n := b.up(j.hi)
	b.ancestors(j.attnJob, func(r keyRun) { n += b.up(r.length) })
	return n / b.k.nr
}
func (b *Backend) gradParts(j gradBlock) int { return min(b.gradPanels(j), 2*b.pool.workers) }

// byKeysBefore takes the block j through the keys k0 to k1-1 of an ancestor, from the first of
// a panel on: scores s, their gradients ds, and what these add to dv and dk. Without a window
// all queries see all of them. The next columns of s and ds may be another worker's.
func (b *Backend) byKeysBefore(wk *worker, j gradBlock, r keyRun, k0, k1 int) {
	a, mr := &b.attn, b.k.mr
	k0, k1 = max(k0, b.seen(r, a.First(j.Before+j.lo+1))), min(k1, r.length)
	if k0 >= k1 {
		return
	}
	H, scale := a.H, float32(a.Scale)
	M, ld := j.hi-j.lo, b.ld(j.attnJob)
	s, ds := j.s[r.col:], j.ds[r.col:]
	tiles := (M + mr - 1) / mr
	for t := range tiles {
		lo, hi := M*t/tiles, M*(t+1)/tiles
		b.gradScores(wk, j, lo, hi, r.at, k0, k1-k0, r.col+k0)
		for i := lo; i < hi; i++ {
			n, first := (j.First+j.lo+i)*H+j.head, min(k1, a.First(j.Before+j.lo+i+1)-r.col)
			if first > k0 {
				clear(s[i*ld+k0 : i*ld+first])
				clear(ds[i*ld+k0 : i*ld+first])
			}
			if first = max(first, k0); first < k1 {
				a.softGrad(b.k, s[i*ld+first:i*ld+k1], ds[i*ld+first:i*ld+k1], scale, n)
			}
		}
	}
	for j0 := k0; j0 < k1; j0 += mr {
		b.gradKeys(wk, j, r.first+j0, min(mr, k1-j0), r.col+j0, 0)
	}
}

// softGrad makes scores s of query and head n into probabilities, and ds, do·v, into the gradient
// of the scores before the scale.
func (a *attnArgs) softGrad(k *kernels, s, ds []float32, scale float32, n int) {
	if a.Cap == 0 {
		k.softGrad(s, ds, scale, a.lse[n], a.delta[n])
		return
	}
	compute.SoftCap(s, a.Scale, a.Cap)
	for i, x := range s {
		t := float64(x) / a.Cap
		p := float32(math.Exp(float64(x - a.lse[n])))
		s[i], ds[i] = p, p*(ds[i]-a.delta[n])*(float32(1-t*t)*scale)
	}
}

// byKeys takes the block j through the keys k0 to k1-1 of its own segment, all that lie
// in whole panels.
func (b *Backend) byKeys(wk *worker, j gradBlock, k0, k1 int) {
	a, mr := &b.attn, b.k.mr
	H, scale := a.H, float32(a.Scale)
	M, ld := j.hi-j.lo, b.ld(j.attnJob)
	s, ds := j.s[j.Before:], j.ds[j.Before:]
	tiles := (M + mr - 1) / mr
	k0 = max(k0, b.own(j.attnJob, j.lo))
	for t := range tiles {
		lo, hi := M*t/tiles, M*(t+1)/tiles
		n := min(k1, b.up(j.lo+hi)) - k0
		if n <= 0 {
			continue
		}
		b.gradScores(wk, j, lo, hi, j.at, k0, n, j.Before+k0)
		for i := lo; i < hi; i++ {
			own, n := j.lo+i+1, (j.First+j.lo+i)*H+j.head
			first := min(k1, a.First(j.Before+own)-j.Before)
			if first > k0 {
				clear(s[i*ld+k0 : i*ld+first])
				clear(ds[i*ld+k0 : i*ld+first])
			}
			if first, end := max(first, k0), min(own, k1); end > first {
				a.softGrad(b.k, s[i*ld+first:i*ld+end], ds[i*ld+first:i*ld+end], scale, n)
			}
			// Zeros as far as a tile that has the query's own key may reach.
			if z0, z1 := max(own, k0), min(own+mr, k1); z1 > z0 {
				clear(s[i*ld+z0 : i*ld+z1])
				clear(ds[i*ld+z0 : i*ld+z1])
			}
		}
	}
	for j0 := k0; j0 < min(k1, j.hi); j0 += mr {
		// queries before do not see these keys
		b.gradKeys(wk, j, j.First+j0, min(mr, k1-j0, j.hi-j0), j.Before+j0, max(0, j0-j.lo))
	}
}

// gradScores makes the scores of the block's queries lo to hi-1 with n keys, of which the
// first is the k0-th of those packed at keys, and do·v of the same: the columns of s and
// ds from col on.
func (b *Backend) gradScores(wk *worker, j gradBlock, lo, hi, keys, k0, n, col int) {
	a, ld := &b.attn, b.ld(j.attnJob)
	H, E := a.H, a.E
	at := (j.First+j.lo+lo)*H*E + j.head*E
	p := product{m: hi - lo, n: n, k: E, a: a.q[at:], rs: H * E, cs: 1, c: j.s[lo*ld+col:], ldc: ld}
	p.columns(b.k, a.keys[keys+k0*E:]).all(b.k, wk)
	p = product{m: hi - lo, n: n, k: E, a: a.do[at:], rs: H * E, cs: 1, c: j.ds[lo*ld+col:],
		ldc: ld}
	p.columns(b.k, a.values[keys+k0*E:]).all(b.k, wk)
}

// gradKeys adds what the block's queries from x on give to dv and dk of the m keys whose
// first is token n and column col of s and ds.
func (b *Backend) gradKeys(wk *worker, j gradBlock, n, m, col, x int) {
	a, M, ld, nr := &b.attn, j.hi-j.lo, b.ld(j.attnJob), b.k.nr
	H, K, E := a.H, a.K, a.E
	at := n*K*E + j.head/(H/K)*E
	p := product{m: m, n: E, k: M - x, a: j.s[x*ld+col:], rs: 1, cs: ld, c: a.dv[at:], ldc: K * E,
		acc: true}
	p.panels(b.k, j.doP[x*nr:], M).all(b.k, wk)
	p = product{m: m, n: E, k: M - x, a: j.ds[x*ld+col:], rs: 1, cs: ld, c: a.dk[at:], ldc: K * E,
		acc: true}
	p.panels(b.k, j.qP[x*nr:], M).all(b.k, wk)
}

// byQueries makes dq of the t-th of the block's tiles.
func (b *Backend) byQueries(wk *worker, j gradBlock, t int) {
	a, M, ld, mr := &b.attn, j.hi-j.lo, b.ld(j.attnJob), b.k.mr
	H, E, tiles := a.H, a.E, (M+mr-1)/mr
	lo, hi := M*t/tiles, M*(t+1)/tiles
	at := (j.First+j.lo+lo)*H*E + j.head*E
	first, begun := a.First(j.Before+j.lo+lo+1), false
	b.ancestors(j.attnJob, func(r keyRun) {
		if from := b.seen(r, first); from < r.length {
			p := product{m: hi - lo, n: E, k: r.length - from, a: j.ds[lo*ld+r.col+from:], rs: ld,
				cs: 1, c: a.dq[at:], ldc: H * E, acc: begun}
			p.panels(b.k, a.rows[r.at+from*b.k.nr:], r.length).all(b.k, wk)
			begun = true
		}
	})
	from := b.own(j.attnJob, j.lo+lo)
	p := product{m: hi - lo, n: E, k: j.lo + hi - from, a: j.ds[lo*ld+j.Before+from:], rs: ld,
		cs: 1, c: a.dq[at:], ldc: H * E, acc: begun}
	p.panels(b.k, a.rows[j.at+from*b.k.nr:], j.Len).all(b.k, wk)
}

// blocks calls fn on the blocks of a family, in order, with the memory for one.
func (b *Backend) blocks(f family, buf *[4][]float32, fn func(j gradBlock)) {
	a := &b.attn
	H, E, G := a.H, a.E, a.H/a.K
	step, width := gradTiles*b.k.mr, b.up(E)
	doP, qP := buf[2][:step*width], buf[3][:step*width]
	for h := f.head * G; h < (f.head+1)*G; h++ {
		for n := f.s0; n < f.s1; n++ {
			g := a.pack.Segment(n)
			for lo := 0; lo < g.Len; lo += step {
				j := b.job(n, g, h, lo, min(g.Len, lo+step))
				at, size := (g.First+lo)*H*E+h*E, step*b.ld(j)
				b.packRows(doP, a.do[at:], H*E, 0, j.hi-lo, j.hi-lo, E)
				b.packRows(qP, a.q[at:], H*E, 0, j.hi-lo, j.hi-lo, E)
				fn(gradBlock{j, buf[0][:size], buf[1][:size], doP, qP})
			}
		}
	}
}

// decodeRows is the rows r0 to r1-1 of AttentionDecode, whose first shared
// positions lie in the same pages; the longest sees so many.
type decodeRows struct{ r0, r1, shared, longest int }

// alikeRows is how many rows a group of AttentionDecode has at most: of the tokens of one
// prompt each has those between it and the group's first to itself.
const alikeRows = 64

// alike groups neighbouring rows that share pages: samples of one prompt, or its tokens. A
// group is cut where workers would go idle, and where the next row shares so little that
// those before lose more than it gains.
func (b *Backend) alike(pages compute.Pages, K int) {
	P, R := pages.PageTokens, len(pages.Len)
	most := min(max(1, R*K/(2*b.pool.workers)), alikeRows)
	b.rows = b.rows[:0]
	for r := 0; r < R; {
		g := decodeRows{r, r + 1, int(pages.Len[r]), int(pages.Len[r])}
		for ; g.r1 < R && g.r1-r < most; g.r1++ {
			x, y, n := pages.Table[r], pages.Table[g.r1], 0
			for n < min(g.shared, int(pages.Len[g.r1]))/P && x[n] == y[n] {
				n++
			}
			if n == 0 || (g.r1-r-1)*(g.shared-n*P) > n*P {
				break
			}
			g.shared, g.longest = n*P, max(g.longest, int(pages.Len[g.r1]))
		}
		if g.r1 == r+1 {
			g.shared = 0
		}
		b.rows = append(b.rows, g)
		r = g.r1
	}
}

// AttentionDecode computes Attention for one query a row over paged keys and values.
func (b *Backend) AttentionDecode(oRHE, qRHE, kCache, vCache compute.Tensor, a compute.AttnShape,
	pages compute.Pages) {
	H, K, E, P := a.H, a.K, a.E, pages.PageTokens
	R, at := len(pages.Len), &b.attn
	at.AttnShape, at.pages = a, pages
	at.o, at.q = f32("AttentionDecode", "o", oRHE, R*H*E), f32("AttentionDecode", "q", qRHE, R*H*E)
	slots := compute.RowsOf("AttentionDecode", "kCache", kCache, K*E)
	at.k, at.v =
		f32("AttentionDecode", "kCache", kCache, slots*K*E),
		f32("AttentionDecode", "vCache", vCache, slots*K*E)
	for r, n := range pages.Len {
		if n < 1 || int(n) > len(pages.Table[r])*P {
			panic(fmt.Sprintf("cpu: AttentionDecode: row %d sees %d positions of %d pages", r, n,
				len(pages.Table[r])))
		}
		compute.CheckIndices("AttentionDecode", "Table", pages.Table[r][:(int(n)+P-1)/P], slots/P)
	}
	b.alike(pages, K)
	scores, panel, queries := 0, 0, 0
	for _, rows := range b.rows {
		M, ld, wide := b.decodeSize(rows)
		scores, panel, queries = max(scores, M*ld), E*wide, max(queries, M*(E+1))
	}
	b.room(scores, panel, queries)
	b.run(len(b.rows)*K, (*Backend).attendDecode)
}

// decodeSize returns how many queries a task of AttentionDecode has, the distance of their rows of
// scores, and the width of its panel of keys with the lanes that transposed may fill beyond it.
func (b *Backend) decodeSize(rows decodeRows) (M, ld, wide int) {
	nr := b.k.nr
	return (rows.r1 - rows.r0) * (b.attn.H / b.attn.K), b.up(rows.longest) + nr + skew, nr + nr/2
}

// attendDecode computes one task of AttentionDecode.
func (b *Backend) attendDecode(wk *worker, t int) {
	a := &b.attn
	pages, o, q, k, v := a.pages, a.o, a.q, a.k, a.v
	H, K, E, P, nr, scale := a.H, a.K, a.E, a.pages.PageTokens, b.k.nr, float32(a.Scale)
	rows, g, G := b.rows[t/K], t%K, H/K
	// run is where position j's keys or values are, and how many positions up to
	// end follow it in memory.
	run := func(table []int32, j, end int) (off, n int) {
		page := j / P
		off, n = (int(table[page])*P+j%P)*K*E+g*E, P-j%P
		for j+n < end && table[page+1] == table[page]+1 {
			page, n = page+1, n+P
		}
		return off, min(n, end-j)
	}
	M, ld, wide := b.decodeSize(rows)
	s, panel := wk.buf[0][:M*ld], wk.buf[1][:E*wide]
	qM, norm := wk.buf[2][:M*E], wk.buf[2][M*E:M*(E+1)]
	for r := rows.r0; r < rows.r1; r++ {
		copy(qM[(r-rows.r0)*G*E:], q[(r*H+g*G)*E:(r*H+g*G+G)*E])
	}
	begin := rows.longest // the first position that one of the rows sees
	for r := rows.r0; r < rows.r1; r++ {
		begin = min(begin, a.First(int(pages.Len[r])))
	}
	// scores are those of m queries from i on with the keys lo to hi-1.
	scores := func(i, m int, table []int32, lo, hi int) {
		for j := lo; j < hi; j += nr {
			for x, end := j, min(hi, j+nr); x < end; {
				off, n := run(table, x, end)
				b.transposed(panel[x-j:], wide, k[off:], K*E, n, E)
				x += n
			}
			p := product{m: m, n: nr, k: E, a: qM[i*E:], rs: E, cs: 1, c: s[i*ld+j:], ldc: ld,
				b: panel, ldb: wide}
			p.all(b.k, wk)
		}
	}
	// sums go on with the m outputs of row r from the values lo to hi-1.
	sums := func(i, m int, table []int32, lo, hi int, o []float32) {
		for j := lo; j < hi; {
			off, n := run(table, j, hi)
			p := product{m: m, n: E, k: n, a: s[i*ld+j:], rs: ld, cs: 1, c: o, ldc: E,
				acc: j > begin}
			p.rowMajor(b.k, v[off:], K*E)
			p.near(b.k, wk)
			j += n
		}
	}
	scores(0, M, pages.Table[rows.r0], begin, rows.shared)
	for r := rows.r0; r < rows.r1; r++ {
		i, length := (r-rows.r0)*G, int(pages.Len[r])
		scores(i, G, pages.Table[r], max(begin, rows.shared), length)
		first := a.First(length)
		for h := i; h < i+G; h++ {
			_, sum := b.softmax(s[h*ld+first:h*ld+length], scale)
			clear(s[h*ld+begin : h*ld+first])
			norm[h] = 1 / sum
		}
	}
	// The queries are done with: their place takes the outputs.
	sums(0, M, pages.Table[rows.r0], begin, rows.shared, qM)
	for r := rows.r0; r < rows.r1; r++ {
		i, at := (r-rows.r0)*G, (r*H+g*G)*E
		sums(i, G, pages.Table[r], max(begin, rows.shared), int(pages.Len[r]), qM[i*E:])
		copy(o[at:at+G*E], qM[i*E:])
		for h := range G {
			b.k.scale(o[at+h*E:at+h*E+E], norm[i+h])
		}
	}
}

// CacheWrite scatters rows into a cache.
func (b *Backend) CacheWrite(cache, xNW compute.Tensor, width int, slots []int32) {
	n := compute.RowsOf("CacheWrite", "cache", cache, width)
	c, x :=
		f32("CacheWrite", "cache", cache, n*width), f32("CacheWrite", "x", xNW, len(slots)*width)
	compute.CheckIndices("CacheWrite", "slots", slots, n)
	for i, slot := range slots {
		copy(c[int(slot)*width:(int(slot)+1)*width], x[i*width:])
	}
}

// RopeCache rotates q, and the keys as it writes them to the cache.
func (b *Backend) RopeCache(qNHE, kNKE, vNKE, kCache, vCache compute.Tensor, a compute.AttnShape,
	pos []int32, table compute.Tensor, slots []int32) {
	const op = "RopeCache"
	if len(slots) != len(pos) {
		panic(fmt.Sprintf("cpu: %s: %d slots for %d positions", op, len(slots), len(pos)))
	}
	W := a.K * a.E
	b.Rope(qNHE, a.H, a.E, pos, table, false)
	b.CacheWrite(kCache, kNKE, W, slots)
	b.CacheWrite(vCache, vNKE, W, slots)
	b.rotate(op, f32(op, "kCache", kCache, kCache.Len()), slots, a.K, a.E, pos, table)
}
