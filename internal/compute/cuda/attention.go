//go:build nvidia

package cuda

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
)

// tileRows are the rows of a tile of the fast attention kernels; the gradient of
// keys and values takes smaller ones for the widest heads.
const (
	tileRows     = 128
	tileRowsdKV  = 64
	attnThreads  = 128
	genericHeads = attnThreads / 32 // (token, head) pairs of a block of the generic kernels
)

// layout is a pack as the kernels read it. The last pack's is remembered, because each
// layer asks for it.
type layout struct {
	start, parent []int32 // of the pack
	segments      []compute.Segment
	table         []int32 // the same, five numbers to a segment; then the paths to segments
	above         []int32 // of prefix
	queries       []int32 // pairs (segment, tile), those with most work first; nil: not made yet
	keys          keyList
}

// keyList is the blocks of the gradient of keys and values, and what they were made for.
type keyList struct {
	of       struct{ rows, K, group, most, least int } // rows of a tile; 0 is not made yet
	blocks   []int32                                   // struct KeyBlock of attention.cu
	sums     []int32                                   // of the tiles that are cut, struct KeySum
	partRows int
}

func (b *Backend) layout(p compute.Pack) *layout {
	l := &b.pack
	if slices.Equal(l.start, p.Start) && slices.Equal(l.parent, p.Parent) {
		return l
	}
	l.start, l.parent = append(l.start[:0], p.Start...), append(l.parent[:0], p.Parent...)
	l.segments, l.table = l.segments[:0], l.table[:0]
	l.queries, l.keys.of.rows = nil, 0
	for s := range p.Segments() {
		g := p.Segment(s)
		l.segments = append(l.segments, g)
		l.table = append(l.table, int32(g.First), int32(g.Len), 0, int32(g.Before),
			int32(g.Branches))
	}
	for s, g := range l.segments {
		l.table[5*s+2] = l.prefix(p, s, g)
	}
	return l
}

// prefix is how the kernels find the rows of the ancestors of segment s (struct Segment in
// attention.cu): the first, where they are rows without a gap. Elsewhere it appends a path to the
// table, pairs (end, jump) for the positions up to end-1, and is minus the index of its beginning.
func (l *layout) prefix(p compute.Pack, s int, g compute.Segment) int32 {
	begin, col, own := len(l.table), int32(0), int32(g.First-g.Before)
	l.above = p.Ancestors(l.above[:0], s)
	for _, up := range l.above {
		n, jump := int32(p.Tokens(int(up))), p.Start[up]-col-own
		if n == 0 {
			continue
		}
		if last := len(l.table) - 2; last >= begin && l.table[last+1] == jump {
			l.table[last] += n
		} else {
			l.table = append(l.table, col+n, jump)
		}
		col += n
	}
	switch {
	case col == 0:
		return 0
	case len(l.table) == begin+2:
		first := l.table[begin+1] + own
		l.table = l.table[:begin]
		return first
	}
	return -int32(begin)
}

// queryTiles returns the tiles of queries: a tile's work grows with the keys before it.
func (l *layout) queryTiles() []int32 {
	if l.queries != nil {
		return l.queries
	}
	most := 0
	for _, g := range l.segments {
		most = max(most, g.Before/tileRows+blocks(g.Len, tileRows))
	}
	l.queries = []int32{}
	for work := most - 1; work >= 0; work-- {
		for s, g := range l.segments {
			if t := work - g.Before/tileRows; t >= 0 && t < blocks(g.Len, tileRows) {
				l.queries = append(l.queries, int32(s), int32(t))
			}
		}
	}
	return l.queries
}

// keyBlocks returns the blocks of the gradient of keys and values in tiles of rows rows. Their
// parts have at most most rows in all, and each block at least least tiles of queries.
func (l *layout) keyBlocks(rows, K, group, most, least int) *keyList {
	k := &l.keys
	if k.of.rows == rows && k.of.K == K && k.of.group == group && k.of.most == most &&
		k.of.least == least {
		return k
	}
	*k = keyList{of: struct{ rows, K, group, most, least int }{rows, K, group, most, least}}
	sums := map[[2]int]int{} // of a tile, in k.sums
	var parts []keyBlock
	for _, b := range keyBlocks(keyTiles(l.segments, rows), K, group, most, least) {
		k.blocks = append(k.blocks, int32(b.segment), int32(b.tile), int32(b.from), int32(b.to),
			int32(b.head), int32(b.heads), int32(b.at), 0)
		if b.at >= 0 {
			parts, k.partRows = append(parts, b), k.partRows+b.rows
		}
	}
	slices.SortFunc(parts, func(a, b keyBlock) int { return cmp.Compare(a.at, b.at) })
	for _, b := range parts {
		tile := [2]int{b.segment, b.tile}
		i, known := sums[tile]
		if !known {
			i = len(k.sums)
			sums[tile] = i
			k.sums = append(k.sums, int32(l.segments[b.segment].First+b.tile*rows), int32(b.rows),
				int32(b.at), 0)
		}
		k.sums[i+3]++
	}
	return k
}

// fast returns 0 or 1 for the head widths that have kernels of their own, and -1 where the generic
// ones are needed: for soft caps, and for windows too, whether or not a sequence is longer, because
// a row's bits must not depend on the rest of the pack.
func (b *Backend) fast(a compute.AttnShape, N int, row []int, ps ...driver.Ptr) int {
	if b.narrow != bf16 || !(a.Scale > 0) || a.Window > 0 || a.Cap > 0 {
		return -1
	}
	for _, n := range row {
		if n%8 != 0 || N*n > math.MaxInt32 {
			return -1
		}
	}
	for _, p := range ps {
		if !aligned(p) {
			return -1
		}
	}
	switch a.E {
	case 64:
		return 0
	case 128:
		return 1
	}
	return -1
}

// heads checks a call's shape.
func heads(op string, a compute.AttnShape) {
	if a.K < 1 || a.H%a.K != 0 || a.E < 1 || a.E > 256 {
		panic(fmt.Sprintf("cuda: %s: %d heads over %d key/value heads of width %d: want a multiple, and a width up to 256", op, a.H, a.K, a.E))
	}
}

// spreads is queries, keys and values, or their gradients, each of which may be columns, and
// how far apart their rows begin.
func (b *Backend) spreads(op, prefix string, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape,
	N int) (q, k, v view, row [3]int) {
	q, row[0] = b.spread(op, prefix+"q", qNHE, N, a.H*a.E)
	k, row[1] = b.spread(op, prefix+"k", kNKE, N, a.K*a.E)
	v, row[2] = b.spread(op, prefix+"v", vNKE, N, a.K*a.E)
	return q, k, v, row
}

// Attention computes causal attention within each sequence.
func (b *Backend) Attention(oNHE, lseNH, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape,
	p compute.Pack) {
	const op = "Attention"
	heads(op, a)
	N := compute.RowsOf(op, "q", qNHE, a.H*a.E)
	o := b.narrowView(op, "o", oNHE, N*a.H*a.E)
	q, k, v, row := b.spreads(op, "", qNHE, kNKE, vNKE, a, N)
	lse := wide(op, "lse", lseNH, N*a.H)
	p.Check(op, N)
	if N == 0 {
		return
	}
	defer b.enter()()
	l := b.layout(p)
	segments := at(index(b, "segments", l.table))
	if w := b.fast(a, N, row[:], o.p, q.p, k.p, v.p); w >= 0 {
		pairs := l.queryTiles()
		b.launch(b.k.attnFwd[w], grid{len(pairs) / 2, a.H, 1, attnThreads, [2]int{40960, 81920}[w]},
			at(o.p), at(lse.p), at(q.p), at(k.p), at(v.p), segments, at(index(b, "tiles", pairs)),
			whole(a.H), whole(a.K), whole(row[0]), whole(row[1]), whole(row[2]),
			real(float32(a.Scale)))
		return
	}
	b.launch(b.k.attnFwdAny[b.narrow], grid{blocks(N*a.H, genericHeads), 1, 1, attnThreads, 0},
		at(o.p), at(lse.p), at(q.p), at(k.p), at(v.p), segments, whole(p.Segments()), whole(N),
		whole(a.H), whole(a.K), whole(a.E),
		whole(row[0]), whole(row[1]), whole(row[2]), real(float32(a.Scale)), real(float32(a.Cap)),
		whole(a.Window))
}

// AttentionGrad is the gradient of Attention, in three launches: the row sums of
// do*o, then dk and dv over tiles of keys, and dq over tiles of queries; and a fourth
// where tiles of keys are cut.
func (b *Backend) AttentionGrad(dqNHE, dkNKE, dvNKE, doNHE, oNHE, lseNH, qNHE, kNKE,
	vNKE compute.Tensor, a compute.AttnShape, p compute.Pack) {
	const op = "AttentionGrad"
	heads(op, a)
	N := compute.RowsOf(op, "q", qNHE, a.H*a.E)
	nq := N * a.H * a.E
	do, o, lse :=
		b.narrowView(op, "do", doNHE, nq), b.narrowView(op, "o", oNHE, nq),
		wide(op, "lse", lseNH, N*a.H)
	q, k, v, row := b.spreads(op, "", qNHE, kNKE, vNKE, a, N)
	dq, dk, dv, gradRow := b.spreads(op, "d", dqNHE, dkNKE, dvNKE, a, N)
	if gradRow != row {
		panic(fmt.Sprintf("cuda: %s: rows of q, k and v begin %v elements apart, those of dq, dk and dv %v: want the same", op, row, gradRow))
	}
	p.Check(op, N)
	if N == 0 {
		return
	}
	defer b.enter()()
	l := b.layout(p)
	w := b.fast(a, N, row[:], dq.p, dk.p, dv.p, do.p, o.p, q.p, k.p, v.p)
	keys := &keyList{}
	if w >= 0 {
		keys = l.keyBlocks([...]int{tileRows, tileRowsdKV}[w], a.K, a.H/a.K,
			mostPartRows(b.parts, N, a), b.least)
	}
	place := b.scratch(4*int64(N*a.H), 8*int64(keys.partRows*a.K*a.E))
	delta, part := place[0], place[1]
	segments, H, K, scale :=
		at(index(b, "segments", l.table)), whole(a.H), whole(a.K), real(float32(a.Scale))
	qr, kr, vr := whole(row[0]), whole(row[1]), whole(row[2])
	if w >= 0 {
		pairs := l.queryTiles()
		tiles := index(b, "tiles", pairs)
		b.launch(b.k.attnDelta[w], grid{blocks(N*a.H, [2]int{16, 8}[w]), 1, 1, attnThreads, 0},
			at(delta), at(do.p), at(o.p), whole(N), H)
		b.launch(b.k.attnDQ[w], grid{len(pairs) / 2, a.H, 1, attnThreads, [2]int{65536, 98304}[w]},
			at(dq.p), at(do.p), at(q.p), at(k.p), at(v.p), at(lse.p), at(delta), segments,
			at(tiles), H, K, qr, kr, vr, scale)
		b.launch(b.k.attnDKV[w], grid{len(keys.blocks) / 8 * a.K, 1, 1, attnThreads,
			[2]int{66560, 99328}[w]},
			at(dk.p), at(dv.p), at(part), at(do.p), at(q.p), at(k.p), at(v.p), at(lse.p), at(delta),
			segments, at(index(b, "key blocks", keys.blocks)), H, K, qr, kr, vr, scale)
		if n := len(keys.sums) / 4; n > 0 {
			b.launch(b.k.attnDKVSum, grid{n, blocks(tileRows*a.K*a.E/8, 256), 1, 256, 0}, at(dk.p),
				at(dv.p), at(part), at(index(b, "key sums", keys.sums)), whole(a.K*a.E), kr, vr,
				scale)
		}
		return
	}
	S, n, E, limit := whole(p.Segments()), whole(N), whole(a.E), real(float32(a.Cap))
	perQuery, perKey :=
		grid{blocks(N*a.H, genericHeads), 1, 1, attnThreads, 0},
		grid{blocks(N*a.K, genericHeads), 1, 1, attnThreads, 0}
	b.launch(b.k.attnDeltaAny[b.narrow], perQuery, at(delta), at(do.p), at(o.p), n, H, E)
	b.launch(b.k.attnDQAny[b.narrow], perQuery,
		at(dq.p), at(do.p), at(q.p), at(k.p), at(v.p), at(lse.p), at(delta), segments, S, n, H, K,
		E, qr, kr, vr, scale, limit, whole(a.Window))
	b.launch(b.k.attnDKVAny[b.narrow], perKey,
		at(dk.p), at(dv.p), at(do.p), at(q.p), at(k.p), at(v.p), at(lse.p), at(delta), segments, S,
		n, H, K, E, qr, kr, vr, scale, limit, whole(a.Window))
}

// AttentionDecode computes attention of one query a row over paged caches.
func (b *Backend) AttentionDecode(oRHE, qRHE, kCache, vCache compute.Tensor, a compute.AttnShape,
	pages compute.Pages) {
	const op = "AttentionDecode"
	heads(op, a)
	R, P, W := len(pages.Len), pages.PageTokens, a.K*a.E
	o := b.narrowView(op, "o", oRHE, R*a.H*a.E)
	q, row := b.spread(op, "q", qRHE, R, a.H*a.E)
	k, v := b.narrowView(op, "k", kCache, kCache.Len()), b.narrowView(op, "v", vCache, kCache.Len())
	if P < 1 || len(pages.Table) != R || compute.RowsOf(op, "k", kCache, W)%P != 0 {
		panic(fmt.Sprintf("cuda: AttentionDecode: %d rows, %d tables, a cache of %d elements and pages of %d tokens", R, len(pages.Table), kCache.Len(), P))
	}
	cols := longestRow(pages.Table, P, pages.Len)
	if R == 0 {
		return
	}
	defer b.enter()()
	table := b.table(pages.Table, cols, k.n/(W*P))
	splits := blocks(cols*P, decodeSplit)
	part := b.scratch(decodeBytes(min(R, b.rows), splits, a.H, a.E))[0]
	fast := -1
	var done driver.Ptr
	if a.H/a.K <= 16 {
		if fast = b.fast(a, 1, []int{row}, q.p, k.p, v.p); fast >= 0 {
			done = b.counters(min(R, b.rows) * a.K)
		}
	}
	length, H, K, E, scale :=
		index(b, "lengths", pages.Len), whole(a.H), whole(a.K), whole(a.E), real(float32(a.Scale))
	for r := 0; r < R; r += b.rows {
		rows := min(b.rows, R-r)
		from, query, n := r*a.H*a.E, at(q.from(r*row)), whole(rows)
		tableAt, lengthAt := at(table+driver.Ptr(4*r*cols)), at(length+driver.Ptr(4*r))
		g := grid{splits, a.K, rows, attnThreads, 0}
		if fast >= 0 {
			g.shared = 65536
			b.launch(b.k.decode[fast], g, at(o.from(from)), at(part), at(done), query, at(k.p),
				at(v.p), tableAt, lengthAt, whole(cols), whole(P), n, H, K, whole(row), scale)
			continue
		}
		b.launch(b.k.decodeAny[b.narrow], g, at(part), query, at(k.p), at(v.p), tableAt, lengthAt,
			whole(cols), whole(P), n, H, K, E, whole(row), scale, real(float32(a.Cap)),
			whole(a.Window))
		b.launch(b.k.decodeCombine[b.narrow], grid{a.H, rows, 1, attnThreads, 0}, at(o.from(from)),
			at(part), lengthAt, n, whole(splits), H, E, whole(a.Window))
	}
}

// counters returns n zeros for kernels that count their blocks and leave zeros.
func (b *Backend) counters(n int) driver.Ptr {
	bytes := counterBytes(n)
	if bytes <= b.arrived.bytes || b.err != nil {
		return b.arrived.p
	}
	if b.graph.fixed() {
		b.graph.diverged = true // they cannot move under a graph
		return 0
	}
	b.wait()
	b.release(&b.arrived)
	var err error
	if b.arrived, err = b.allocate("counters", bytes); err == nil {
		err = b.dev.Set32(b.arrived.p, 0, bytes/4) // no command: it is not repeated
	}
	if err != nil && b.err == nil {
		b.err = err
	}
	return b.arrived.p
}

// decodeStride returns the length of a row of the page table: the longest row's, rounded up so that
// it changes seldom.
func decodeStride(pages int) int { return (pages + 63) &^ 63 }

// longestRow returns the length of a row of the page table, once each row's positions are found to
// be in its pages of P tokens.
func longestRow(rows [][]int32, P int, positions []int32) int {
	most := 0
	for r, pages := range rows {
		if n := int(positions[r]); n < 0 || n > len(pages)*P {
			panic(fmt.Sprintf("cuda: AttentionDecode: row %d has %d positions in %d pages of %d", r,
				n, len(pages), P))
		}
		most = max(most, len(pages))
	}
	return decodeStride(most)
}

// fillTable writes page tables as rows of cols pages, each one of so many.
func fillTable(to []byte, rows [][]int32, cols, pages int) {
	for r, row := range rows {
		compute.CheckIndices("AttentionDecode", "pages", row, pages)
		line := ints(to[4*r*cols:], cols)
		clear(line[copy(line, row):])
	}
}

// table brings page tables to the device as rows of cols pages, each one of so
// many; what lies behind a row's pages is not read.
func (b *Backend) table(rows [][]int32, cols, pages int) driver.Ptr {
	return b.stage(fmt.Sprint("pages of ", pages), unsafe.Pointer(unsafe.SliceData(rows)),
		4*len(rows)*cols, pages,
		func(old []byte) bool {
			for r, row := range rows {
				if !slices.Equal(ints(old[4*r*cols:], len(row)), row) {
					return false
				}
			}
			return true
		},
		func(to []byte) { fillTable(to, rows, cols, pages) })
}
