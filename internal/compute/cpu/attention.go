package cpu

import (
	"fmt"
	"math"
	"sort"

	"gad/internal/compute"
)

// attnJob is a task of Attention: the queries lo to hi-1, counted within their
// sequence, of one head. keys is where the head's packed keys begin.
type attnJob struct {
	first, length int // the sequence's tokens
	head          int
	lo, hi        int
	keys          int
}

// queryTiles is how many register tiles of queries a task of attention has.
const queryTiles = 4

// up rounds n up to whole column panels.
func (b *Backend) up(n int) int { return (n + b.k.nr - 1) / b.k.nr * b.k.nr }

// packKeys packs the transpose of length rows of E elements, ld apart, into
// column panels: [length/nr][E][nr]. What fills up the last panel is arbitrary.
func (b *Backend) packKeys(dst, src []float32, ld, length, E int) {
	nr := b.k.nr
	for j := 0; j < length; j += nr {
		b.k.transpose(dst[j*E:], nr, src[j*ld:], ld, min(nr, length-j), E)
	}
}

// softmax makes scores s of one query into exp(scale*s - most), in place, most
// being the largest scaled score; it returns that and the exponentials' sum.
func (b *Backend) softmax(s []float32, scale float32) (most, sum float32) {
	most = b.k.scaleMax(s, scale)
	return most, b.k.expSum(s, most)
}

// Attention is causal attention within each sequence. Keys are packed once; a
// task then takes some queries of one head through scores, softmax and the sum
// of values. Scores beyond a query's own position become zeros at the chain's
// end and change nothing.
func (b *Backend) Attention(oNHE, lseNH, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape, start []int32) {
	H, K, E := a.H, a.K, a.E
	N := rowsOf("Attention", "q", qNHE, H*E)
	o, lse, q := f32("Attention", "o", oNHE, N*H*E), f32("Attention", "lse", lseNH, N*H), f32("Attention", "q", qNHE, N*H*E)
	k, v := f32("Attention", "k", kNKE, N*K*E), f32("Attention", "v", vNKE, N*K*E)
	packOf("Attention", start, N)

	rows := queryTiles * b.k.mr
	b.jobs = b.jobs[:0]
	size := 0
	for s := 0; s+1 < len(start); s++ {
		first, length := int(start[s]), int(start[s+1]-start[s])
		for h := range H {
			for lo := 0; lo < length; lo += rows {
				b.jobs = append(b.jobs, attnJob{first, length, h, lo, min(length, lo+rows), size + h/(H/K)*b.up(length)*E})
			}
		}
		size += K * b.up(length) * E
	}
	keys := b.grow(&b.packed, size)
	// One job of each key/value head packs its keys.
	b.pool.run(len(b.jobs), func(_, t int) {
		if j := b.jobs[t]; j.lo == 0 && j.head%(H/K) == 0 {
			b.packKeys(keys[j.keys:], k[j.first*K*E+j.head/(H/K)*E:], K*E, j.length, E)
		}
	})
	// Long ones first: the workers finish together.
	sort.SliceStable(b.jobs, func(x, y int) bool { return b.jobs[x].hi > b.jobs[y].hi })
	b.pool.run(len(b.jobs), func(w, t int) {
		j := b.jobs[t]
		wk := &b.workers[w]
		M, seen := j.hi-j.lo, j.hi
		ld := b.up(seen)
		s := local(&wk.buf[0], M*ld)
		at := (j.first+j.lo)*H*E + j.head*E
		p := product{m: M, n: ld, k: E, a: q[at:], rs: H * E, cs: 1, c: s, ldc: ld}
		p.columns(b.k, keys[j.keys:]).all(b.k, wk)
		norm := local(&wk.buf[1], M)
		for i := range M {
			row := s[i*ld : i*ld+seen]
			own := j.lo + i + 1
			most, sum := b.softmax(row[:own], float32(a.Scale))
			lse[(j.first+j.lo+i)*H+j.head], norm[i] = float32(float64(most)+math.Log(float64(sum))), 1/sum
			clear(row[own:])
		}
		p = product{m: M, n: E, k: seen, a: s, rs: ld, cs: 1, c: o[at:], ldc: H * E}
		p.rowMajor(b.k, v[j.first*K*E+j.head/(H/K)*E:], K*E).all(b.k, wk)
		for i := range M {
			b.k.scale(o[at+i*H*E:at+i*H*E+E], norm[i])
		}
	})
}

// AttentionDecode is Attention for one query a row over paged keys and values;
// a task has the query heads of one key/value head of one row.
func (b *Backend) AttentionDecode(oRHE, qRHE, kCache, vCache compute.Tensor, a compute.AttnShape, pages compute.Pages) {
	H, K, E, P, nr := a.H, a.K, a.E, pages.PageTokens, b.k.nr
	R, G := len(pages.Len), H/K
	o, q := f32("AttentionDecode", "o", oRHE, R*H*E), f32("AttentionDecode", "q", qRHE, R*H*E)
	slots := rowsOf("AttentionDecode", "kCache", kCache, K*E)
	k, v := f32("AttentionDecode", "kCache", kCache, slots*K*E), f32("AttentionDecode", "vCache", vCache, slots*K*E)
	for r, n := range pages.Len {
		if n < 1 || int(n) > len(pages.Table[r])*P {
			panic(fmt.Sprintf("cpu: AttentionDecode: row %d sees %d positions of %d pages", r, n, len(pages.Table[r])))
		}
		within("AttentionDecode", "Table", pages.Table[r][:(int(n)+P-1)/P], slots/P)
	}
	b.pool.run(R*K, func(w, t int) {
		wk, r, g := &b.workers[w], t/K, t%K
		table, length := pages.Table[r], int(pages.Len[r])
		ld := b.up(length)
		s, panel := local(&wk.buf[0], G*ld), local(&wk.buf[1], E*nr)
		at := (r*H + g*G) * E
		// row is where position j's keys or values are, and how many more
		// positions up to end lie behind it in the same page.
		row := func(j, end int) (off, run int) {
			return (int(table[j/P])*P+j%P)*K*E + g*E, min(P-j%P, end-j)
		}
		for j := 0; j < length; j += nr {
			for i, end := j, min(length, j+nr); i < end; {
				off, run := row(i, end)
				b.k.transpose(panel[i-j:], nr, k[off:], K*E, run, E)
				i += run
			}
			p := product{m: G, n: nr, k: E, a: q[at:], rs: E, cs: 1, c: s[j:], ldc: ld}
			p.columns(b.k, panel).all(b.k, wk)
		}
		norm := local(&wk.buf[2], G)
		for h := range G {
			_, sum := b.softmax(s[h*ld:h*ld+length], float32(a.Scale))
			norm[h] = 1 / sum
		}
		for j := 0; j < length; {
			off, run := row(j, length)
			p := product{m: G, n: E, k: run, a: s[j:], rs: ld, cs: 1, c: o[at:], ldc: E, acc: j > 0}
			p.rowMajor(b.k, v[off:], K*E).all(b.k, wk)
			j += run
		}
		for h := range G {
			b.k.scale(o[at+h*E:at+h*E+E], norm[h])
		}
	})
}

// AttentionGrad is the gradient of Attention. A task has one key/value head of
// one sequence: it owns dk and dv there and dq of the query heads, and takes
// these heads, and blocks of their queries, in ascending order.
func (b *Backend) AttentionGrad(dqNHE, dkNKE, dvNKE, doNHE, oNHE, lseNH, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape, start []int32) {
	H, K, E := a.H, a.K, a.E
	G := H / K
	const op = "AttentionGrad"
	N := rowsOf(op, "q", qNHE, H*E)
	dq, dk, dv := f32(op, "dq", dqNHE, N*H*E), f32(op, "dk", dkNKE, N*K*E), f32(op, "dv", dvNKE, N*K*E)
	do, o, lse := f32(op, "do", doNHE, N*H*E), f32(op, "o", oNHE, N*H*E), f32(op, "lse", lseNH, N*H)
	q, k, v := f32(op, "q", qNHE, N*H*E), f32(op, "k", kNKE, N*K*E), f32(op, "v", vNKE, N*K*E)
	packOf(op, start, N)

	b.jobs = b.jobs[:0]
	for s := 0; s+1 < len(start); s++ {
		for g := range K {
			length := int(start[s+1] - start[s])
			b.jobs = append(b.jobs, attnJob{first: int(start[s]), length: length, head: g})
		}
	}
	sort.SliceStable(b.jobs, func(x, y int) bool { return b.jobs[x].length > b.jobs[y].length })
	rows, scale := queryTiles*b.k.mr, float32(a.Scale)
	b.pool.run(len(b.jobs), func(w, t int) {
		j := b.jobs[t]
		wk, most := &b.workers[w], b.up(j.length)
		kv := j.first*K*E + j.head*E
		for i := range j.length {
			clear(dk[kv+i*K*E : kv+i*K*E+E])
			clear(dv[kv+i*K*E : kv+i*K*E+E])
		}
		keys, values := local(&wk.buf[0], most*E), local(&wk.buf[1], most*E)
		b.packKeys(keys, k[kv:], K*E, j.length, E)
		b.packKeys(values, v[kv:], K*E, j.length, E)
		for h := j.head * G; h < (j.head+1)*G; h++ {
			for lo := 0; lo < j.length; lo += rows {
				seen := min(j.length, lo+rows)
				M, ld := seen-lo, b.up(seen)
				at := (j.first+lo)*H*E + h*E
				s, ds := local(&wk.buf[2], M*ld), local(&wk.buf[3], M*ld)

				p := product{m: M, n: ld, k: E, a: q[at:], rs: H * E, cs: 1, c: s, ldc: ld}
				p.columns(b.k, keys).all(b.k, wk)
				p = product{m: M, n: ld, k: E, a: do[at:], rs: H * E, cs: 1, c: ds, ldc: ld}
				p.columns(b.k, values).all(b.k, wk)
				for i := range M {
					at, own := at+i*H*E, i*ld+lo+i+1
					delta := b.k.dot(do[at:at+E], o[at:at+E])
					b.k.softGrad(s[i*ld:own], ds[i*ld:own], scale, lse[(j.first+lo+i)*H+h], delta)
					clear(s[own : i*ld+seen])
					clear(ds[own : i*ld+seen])
				}

				p = product{m: seen, n: E, k: M, a: s, rs: 1, cs: ld, c: dv[kv:], ldc: K * E, acc: true}
				p.rowMajor(b.k, do[at:], H*E).all(b.k, wk)
				p = product{m: seen, n: E, k: M, a: ds, rs: 1, cs: ld, c: dk[kv:], ldc: K * E, acc: true}
				p.rowMajor(b.k, q[at:], H*E).all(b.k, wk)
				p = product{m: M, n: E, k: seen, a: ds, rs: ld, cs: 1, c: dq[at:], ldc: H * E}
				p.rowMajor(b.k, k[kv:], K*E).all(b.k, wk)
			}
		}
	})
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
