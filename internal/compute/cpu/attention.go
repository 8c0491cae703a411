package cpu

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
)

// attnJob is a task of Attention or AttentionGrad: the queries lo to hi-1, counted
// within their sequence, of one query head or, packing, of one key/value head.
// at is where that head's packed keys begin.
type attnJob struct {
	first, length int // the sequence's tokens
	head          int
	lo, hi        int
	at            int
}

// attnArgs is what the tasks of the attention operations read.
type attnArgs struct {
	compute.AttnShape
	q, k, v, o, lse    []float32
	do, dq, dk, dv     []float32
	keys, values, rows []float32 // packed: columns, and rows of keys
	delta              []float32 // [N,H] do·o
	block              gradBlock // that all workers share
	own                []attnJob // heads that a worker has alone
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
func (b *Backend) heads(start []int32, K, width int) (size int) {
	b.jobs = b.jobs[:0]
	for s := 0; s+1 < len(start); s++ {
		first, length := int(start[s]), int(start[s+1]-start[s])
		for g := range K {
			for lo := 0; lo < length; lo += packedKeys {
				b.jobs = append(b.jobs, attnJob{first, length, g, lo, min(length, lo+packedKeys), size})
			}
			size += b.up(length) * width
		}
	}
	return size
}

// softmax makes scores s of one query into exp(scale*s - most), in place, most
// being the largest scaled score; it returns that and the exponentials' sum.
func (b *Backend) softmax(s []float32, scale float32) (most, sum float32) {
	most = b.k.scaleMax(s, scale)
	return most, b.k.expSum(s, most)
}

// Attention is causal attention within each sequence. Keys and values are packed
// once; a task then takes some queries of one head, a register tile at a time,
// through scores, softmax and the sum of values, so that the scores stay in the
// first-level cache. Panels of keys behind a tile are left out; scores behind a
// query's own position become zeros at the chain's end and change nothing.
func (b *Backend) Attention(oNHE, lseNH, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape, start []int32) {
	H, K, E := a.H, a.K, a.E
	N := rowsOf("Attention", "q", qNHE, H*E)
	at := &b.attn
	at.AttnShape = a
	at.o, at.lse, at.q = f32("Attention", "o", oNHE, N*H*E), f32("Attention", "lse", lseNH, N*H), f32("Attention", "q", qNHE, N*H*E)
	at.k, at.v = f32("Attention", "k", kNKE, N*K*E), f32("Attention", "v", vNKE, N*K*E)
	packOf("Attention", start, N)

	width := b.up(E)
	size := b.heads(start, K, width)
	packed := b.grow(&b.packed, 2*size)
	at.keys, at.values = packed[:size], packed[size:]
	b.run(len(b.jobs), func(b *Backend, _ *worker, t int) {
		j, a := b.jobs[t], &b.attn
		K, E := a.K, a.E
		at := j.first*K*E + j.head*E
		b.packColumns(a.keys[j.at:], a.k[at:], K*E, j.lo, j.hi, E)
		b.packRows(a.values[j.at:], a.v[at:], K*E, j.lo, j.hi, j.length, E)
	})

	mr := b.k.mr
	b.jobs, size = b.jobs[:0], 0
	for s := 0; s+1 < len(start); s++ {
		first, length := int(start[s]), int(start[s+1]-start[s])
		for h := range H {
			for lo := 0; lo < length; lo += queryTiles * mr {
				b.jobs = append(b.jobs, attnJob{first, length, h, lo, min(length, lo+queryTiles*mr), size + h/(H/K)*b.up(length)*width})
			}
		}
		size += K * b.up(length) * width
	}
	// Long ones first: the workers finish together.
	slices.SortStableFunc(b.jobs, func(x, y attnJob) int { return cmp.Compare(y.hi, x.hi) })
	if len(b.jobs) > 0 {
		b.room(mr * (b.up(b.jobs[0].hi) + skew))
	}
	b.run(len(b.jobs), (*Backend).attend)
}

// attend is a task of Attention.
func (b *Backend) attend(wk *worker, t int) {
	j, a := b.jobs[t], &b.attn
	H, E, mr, scale := a.H, a.E, b.k.mr, float32(a.Scale)
	ld := b.up(j.hi) + skew
	s := wk.buf[0][:mr*ld]
	var norm [maxTile]float32
	n := j.hi - j.lo
	tiles := (n + mr - 1) / mr
	for t := range tiles {
		lo, hi := j.lo+n*t/tiles, j.lo+n*(t+1)/tiles
		at := (j.first+lo)*H*E + j.head*E
		p := product{m: hi - lo, n: b.up(hi), k: E, a: a.q[at:], rs: H * E, cs: 1, c: s, ldc: ld}
		p.columns(b.k, a.keys[j.at:]).all(b.k, wk)
		for i := range hi - lo {
			row, own := s[i*ld:i*ld+hi], lo+i+1
			most, sum := b.softmax(row[:own], scale)
			a.lse[(j.first+lo+i)*H+j.head], norm[i] = float32(float64(most)+math.Log(float64(sum))), 1/sum
			clear(row[own:])
		}
		p = product{m: hi - lo, n: E, k: hi, a: s, rs: ld, cs: 1, c: a.o[at:], ldc: H * E}
		p.panels(b.k, a.values[j.at:], j.length).all(b.k, wk)
		for i := range hi - lo {
			b.k.scale(a.o[at+i*H*E:at+i*H*E+E], norm[i])
		}
	}
}

// maxTile is the most rows that any variant's register tile has.
const maxTile = 16

// AttentionGrad is the gradient of Attention. The queries of one head are taken in
// blocks; a block's probabilities and their gradients are made, added to dv and dk
// of the keys that it sees, and multiplied with these keys to dq. dv and dk are
// chains over a key/value head's query heads, and over the queries of each, both
// ascending. A worker has one key/value head of one sequence; where these are
// too few or too unequal, all workers share a block, each with some of the keys,
// and then with some of the queries, which moves no chain.
func (b *Backend) AttentionGrad(dqNHE, dkNKE, dvNKE, doNHE, oNHE, lseNH, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape, start []int32) {
	H, K, E := a.H, a.K, a.E
	const op = "AttentionGrad"
	N := rowsOf(op, "q", qNHE, H*E)
	at := &b.attn
	at.AttnShape = a
	at.dq, at.dk, at.dv = f32(op, "dq", dqNHE, N*H*E), f32(op, "dk", dkNKE, N*K*E), f32(op, "dv", dvNKE, N*K*E)
	at.do, at.o, at.lse = f32(op, "do", doNHE, N*H*E), f32(op, "o", oNHE, N*H*E), f32(op, "lse", lseNH, N*H)
	at.q, at.k, at.v = f32(op, "q", qNHE, N*H*E), f32(op, "k", kNKE, N*K*E), f32(op, "v", vNKE, N*K*E)
	packOf(op, start, N)

	width, nr, mr := b.up(E), b.k.nr, b.k.mr
	size := b.heads(start, K, width)
	packed := b.grow(&b.packed, 3*size+N*H)
	at.keys, at.values, at.rows, at.delta = packed[:size], packed[size:2*size], packed[2*size:3*size], packed[3*size:]
	b.run(len(b.jobs), func(b *Backend, _ *worker, t int) {
		j, a := b.jobs[t], &b.attn
		H, K, E, G := a.H, a.K, a.E, a.H/a.K
		at := j.first*K*E + j.head*E
		b.packColumns(a.keys[j.at:], a.k[at:], K*E, j.lo, j.hi, E)
		b.packColumns(a.values[j.at:], a.v[at:], K*E, j.lo, j.hi, E)
		b.packRows(a.rows[j.at:], a.k[at:], K*E, j.lo, j.hi, j.length, E)
		for i := j.lo; i < j.hi; i++ {
			clear(a.dk[at+i*K*E : at+i*K*E+E])
			clear(a.dv[at+i*K*E : at+i*K*E+E])
			for h := j.head * G; h < (j.head+1)*G; h++ {
				n := (j.first+i)*H + h
				a.delta[n] = b.k.dot(a.do[n*E:n*E+E], a.o[n*E:n*E+E])
			}
		}
	})

	// One job a key/value head of a sequence, the longest first.
	b.jobs = slices.DeleteFunc(b.jobs, func(j attnJob) bool { return j.lo > 0 })
	slices.SortStableFunc(b.jobs, func(x, y attnJob) int { return cmp.Compare(y.length, x.length) })
	if len(b.jobs) > 0 {
		step, ld := gradTiles*mr, b.up(b.jobs[0].length)+skew
		b.room(step*ld, step*ld, step*width, step*width)
	}
	left := 0
	for _, j := range b.jobs {
		left += j.length * j.length
	}
	workers, shared := b.pool.workers, 0
	for ; shared < len(b.jobs) && workers > 1; shared++ {
		j := b.jobs[shared]
		work, even := j.length*j.length*workers, (len(b.jobs)-shared)%workers == 0
		if left >= 3*work || even && 21*left >= 20*work || j.length < 2*nr {
			break // left to one worker, it is done when the others are
		}
		left -= j.length * j.length
		b.blocks(j, &b.workers[0].buf, func(j gradBlock) {
			b.attn.block = j
			b.run(b.gradParts(j), func(b *Backend, w *worker, t int) {
				j := b.attn.block
				nr, panels, parts := b.k.nr, b.up(j.hi)/b.k.nr, b.gradParts(j)
				b.byKeys(w, j, panels*t/parts*nr, panels*(t+1)/parts*nr)
			})
			b.run((j.hi-j.lo+mr-1)/mr, func(b *Backend, w *worker, t int) { b.byQueries(w, b.attn.block, t) })
		})
	}
	at.own = b.jobs[shared:]
	b.run(len(at.own), func(b *Backend, w *worker, t int) {
		b.blocks(b.attn.own[t], &w.buf, func(j gradBlock) {
			b.byKeys(w, j, 0, b.up(j.hi))
			for t := range (j.hi - j.lo + b.k.mr - 1) / b.k.mr {
				b.byQueries(w, j, t)
			}
		})
	})
}

// gradParts is how many tasks share a block's keys.
func (b *Backend) gradParts(j gradBlock) int { return min(b.up(j.hi)/b.k.nr, 2*b.pool.workers) }

// byKeys takes the block j through the keys k0 to k1-1, all that lie in whole
// panels: scores s, their gradients ds, and what these add to dv and dk.
func (b *Backend) byKeys(wk *worker, j gradBlock, k0, k1 int) {
	a, s, ds, nr, mr := &b.attn, j.s, j.ds, b.k.nr, b.k.mr
	H, K, E, scale := a.H, a.K, a.E, float32(a.Scale)
	M, ld := j.hi-j.lo, b.up(j.hi)+skew
	tiles := (M + mr - 1) / mr
	for t := range tiles {
		lo, hi := M*t/tiles, M*(t+1)/tiles
		n := min(k1, b.up(j.lo+hi)) - k0
		if n <= 0 {
			continue
		}
		at := (j.first+j.lo+lo)*H*E + j.head*E
		p := product{m: hi - lo, n: n, k: E, a: a.q[at:], rs: H * E, cs: 1, c: s[lo*ld+k0:], ldc: ld}
		p.columns(b.k, a.keys[j.at+k0*E:]).all(b.k, wk)
		p = product{m: hi - lo, n: n, k: E, a: a.do[at:], rs: H * E, cs: 1, c: ds[lo*ld+k0:], ldc: ld}
		p.columns(b.k, a.values[j.at+k0*E:]).all(b.k, wk)
		for i := lo; i < hi; i++ {
			own, n := j.lo+i+1, (j.first+j.lo+i)*H+j.head
			if end := min(own, k1); end > k0 {
				b.k.softGrad(s[i*ld+k0:i*ld+end], ds[i*ld+k0:i*ld+end], scale, a.lse[n], a.delta[n])
			}
			// Zeros as far as a tile that has the query's own key may reach.
			if z0, z1 := max(own, k0), min(own+mr, k1); z1 > z0 {
				clear(s[i*ld+z0 : i*ld+z1])
				clear(ds[i*ld+z0 : i*ld+z1])
			}
		}
	}
	kv := j.first*K*E + j.head/(H/K)*E
	for j0 := k0; j0 < min(k1, j.hi); j0 += mr {
		m, x := min(mr, k1-j0, j.hi-j0), max(0, j0-j.lo) // queries before x do not see these keys
		p := product{m: m, n: E, k: M - x, a: s[x*ld+j0:], rs: 1, cs: ld, c: a.dv[kv+j0*K*E:], ldc: K * E, acc: true}
		p.panels(b.k, j.doP[x*nr:], M).all(b.k, wk)
		p = product{m: m, n: E, k: M - x, a: ds[x*ld+j0:], rs: 1, cs: ld, c: a.dk[kv+j0*K*E:], ldc: K * E, acc: true}
		p.panels(b.k, j.qP[x*nr:], M).all(b.k, wk)
	}
}

// byQueries makes dq of the t-th of the block's tiles.
func (b *Backend) byQueries(wk *worker, j gradBlock, t int) {
	a, M, ld, mr := &b.attn, j.hi-j.lo, b.up(j.hi)+skew, b.k.mr
	H, E, tiles := a.H, a.E, (M+mr-1)/mr
	lo, hi := M*t/tiles, M*(t+1)/tiles
	at := (j.first+j.lo+lo)*H*E + j.head*E
	p := product{m: hi - lo, n: E, k: j.lo + hi, a: j.ds[lo*ld:], rs: ld, cs: 1, c: a.dq[at:], ldc: H * E}
	p.panels(b.k, a.rows[j.at:], j.length).all(b.k, wk)
}

// blocks calls fn on the blocks of a head, in order, with the memory for one.
func (b *Backend) blocks(g attnJob, buf *[4][]float32, fn func(j gradBlock)) {
	a := &b.attn
	H, E, G := a.H, a.E, a.H/a.K
	step, width := gradTiles*b.k.mr, b.up(E)
	ld := b.up(g.length) + skew
	s, ds, doP, qP := buf[0][:step*ld], buf[1][:step*ld], buf[2][:step*width], buf[3][:step*width]
	for h := g.head * G; h < (g.head+1)*G; h++ {
		for lo := 0; lo < g.length; lo += step {
			j := attnJob{g.first, g.length, h, lo, min(g.length, lo+step), g.at}
			at := (j.first+lo)*H*E + h*E
			b.packRows(doP, a.do[at:], H*E, 0, j.hi-lo, j.hi-lo, E)
			b.packRows(qP, a.q[at:], H*E, 0, j.hi-lo, j.hi-lo, E)
			fn(gradBlock{j, s, ds, doP, qP})
		}
	}
}

// decodeRows is the rows r0 to r1-1 of AttentionDecode, whose first shared
// positions lie in the same pages; the longest sees so many.
type decodeRows struct{ r0, r1, shared, longest int }

// alike groups neighbouring rows that share pages: samples of one prompt. A group
// is cut where workers would go idle.
func (b *Backend) alike(pages compute.Pages, K int) {
	P, R := pages.PageTokens, len(pages.Len)
	most := max(1, R*K/(2*b.pool.workers))
	b.rows = b.rows[:0]
	for r := 0; r < R; {
		g := decodeRows{r, r + 1, int(pages.Len[r]), int(pages.Len[r])}
		for ; g.r1 < R && g.r1-r < most; g.r1++ {
			x, y, n := pages.Table[r], pages.Table[g.r1], 0
			for n < min(g.shared, int(pages.Len[g.r1]))/P && x[n] == y[n] {
				n++
			}
			if n == 0 {
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

// AttentionDecode is Attention for one query a row over paged keys and values. A
// task has the query heads of one key/value head of rows that share pages: what
// these rows share is packed and multiplied with once for all of them. Keys are
// packed into a panel that stays in the first-level cache; values are read where
// they lie, pages that follow one another as one.
func (b *Backend) AttentionDecode(oRHE, qRHE, kCache, vCache compute.Tensor, a compute.AttnShape, pages compute.Pages) {
	H, K, E, P := a.H, a.K, a.E, pages.PageTokens
	R, at := len(pages.Len), &b.attn
	at.AttnShape, at.pages = a, pages
	at.o, at.q = f32("AttentionDecode", "o", oRHE, R*H*E), f32("AttentionDecode", "q", qRHE, R*H*E)
	slots := rowsOf("AttentionDecode", "kCache", kCache, K*E)
	at.k, at.v = f32("AttentionDecode", "kCache", kCache, slots*K*E), f32("AttentionDecode", "vCache", vCache, slots*K*E)
	for r, n := range pages.Len {
		if n < 1 || int(n) > len(pages.Table[r])*P {
			panic(fmt.Sprintf("cpu: AttentionDecode: row %d sees %d positions of %d pages", r, n, len(pages.Table[r])))
		}
		within("AttentionDecode", "Table", pages.Table[r][:(int(n)+P-1)/P], slots/P)
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

// decodeSize is how many queries a task of AttentionDecode has, the distance of their
// rows of scores, and the width of its panel of keys with the lanes that transposed may
// fill beyond it.
func (b *Backend) decodeSize(rows decodeRows) (M, ld, wide int) {
	nr := b.k.nr
	return (rows.r1 - rows.r0) * (b.attn.H / b.attn.K), b.up(rows.longest) + nr + skew, nr + nr/2
}

// attendDecode is a task of AttentionDecode.
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
	// scores are those of m queries from i on with the keys lo to hi-1.
	scores := func(i, m int, table []int32, lo, hi int) {
		for j := lo; j < hi; j += nr {
			for x, end := j, min(hi, j+nr); x < end; {
				off, n := run(table, x, end)
				b.transposed(panel[x-j:], wide, k[off:], K*E, n, E)
				x += n
			}
			p := product{m: m, n: nr, k: E, a: qM[i*E:], rs: E, cs: 1, c: s[i*ld+j:], ldc: ld, b: panel, ldb: wide}
			p.all(b.k, wk)
		}
	}
	// sums go on with the m outputs of row r from the values lo to hi-1.
	sums := func(i, m int, table []int32, lo, hi int, o []float32) {
		for j := lo; j < hi; {
			off, n := run(table, j, hi)
			p := product{m: m, n: E, k: n, a: s[i*ld+j:], rs: ld, cs: 1, c: o, ldc: E, acc: j > 0}
			p.rowMajor(b.k, v[off:], K*E)
			p.near(b.k, wk)
			j += n
		}
	}
	scores(0, M, pages.Table[rows.r0], 0, rows.shared)
	for r := rows.r0; r < rows.r1; r++ {
		i, length := (r-rows.r0)*G, int(pages.Len[r])
		scores(i, G, pages.Table[r], rows.shared, length)
		for h := i; h < i+G; h++ {
			_, sum := b.softmax(s[h*ld:h*ld+length], scale)
			norm[h] = 1 / sum
		}
	}
	// The queries are done with: their place takes the outputs.
	sums(0, M, pages.Table[rows.r0], 0, rows.shared, qM)
	for r := rows.r0; r < rows.r1; r++ {
		i, at := (r-rows.r0)*G, (r*H+g*G)*E
		sums(i, G, pages.Table[r], rows.shared, int(pages.Len[r]), qM[i*E:])
		copy(o[at:at+G*E], qM[i*E:])
		for h := range G {
			b.k.scale(o[at+h*E:at+h*E+E], norm[i+h])
		}
	}
}

// CacheWrite scatters rows into a cache.
func (b *Backend) CacheWrite(cache, xNW compute.Tensor, width int, slots []int32) {
	n := rowsOf("CacheWrite", "cache", cache, width)
	c, x := f32("CacheWrite", "cache", cache, n*width), f32("CacheWrite", "x", xNW, len(slots)*width)
	within("CacheWrite", "slots", slots, n)
	for i, slot := range slots {
		copy(c[int(slot)*width:(int(slot)+1)*width], x[i*width:])
	}
}
