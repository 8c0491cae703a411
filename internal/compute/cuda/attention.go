//go:build nvidia

package cuda

import (
	"fmt"
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

// tileList is the tiles of a pack for the fast kernels: pairs (sequence, tile), in
// descending order of the tile, so that the longest begin first.
type tileList struct {
	start []int32
	rows  int
	pairs []int32
}

// tiles is the list for a pack; the last pack's lists are remembered, because each
// layer asks for them.
func (b *Backend) tiles(start []int32, rows int) []int32 {
	l := &b.lists[0]
	if rows != tileRows {
		l = &b.lists[1]
	}
	if l.rows == rows && slices.Equal(l.start, start) {
		return l.pairs
	}
	l.rows, l.start, l.pairs = rows, append(l.start[:0], start...), l.pairs[:0]
	most := 0
	for s := 1; s < len(start); s++ {
		most = max(most, blocks(int(start[s]-start[s-1]), rows))
	}
	for t := most - 1; t >= 0; t-- {
		for s := 1; s < len(start); s++ {
			if t < blocks(int(start[s]-start[s-1]), rows) {
				l.pairs = append(l.pairs, int32(s-1), int32(t))
			}
		}
	}
	return l.pairs
}

// fast is 0 or 1 for the head widths that have kernels of their own, and -1 where
// the generic ones are needed.
func (b *Backend) fast(a compute.AttnShape, ps ...driver.Ptr) int {
	if b.narrow != bf16 || !(a.Scale > 0) {
		return -1
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

// Attention is causal attention within each sequence.
func (b *Backend) Attention(oNHE, lseNH, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape, start []int32) {
	const op = "Attention"
	heads(op, a)
	N := rowsOf(op, "q", qNHE, a.H*a.E)
	o, q := b.narrowed(op, "o", oNHE, N*a.H*a.E), b.narrowed(op, "q", qNHE, N*a.H*a.E)
	k, v := b.narrowed(op, "k", kNKE, N*a.K*a.E), b.narrowed(op, "v", vNKE, N*a.K*a.E)
	lse := wide(op, "lse", lseNH, N*a.H)
	packOf(op, start, N)
	if N == 0 {
		return
	}
	defer b.enter()()
	first := index(b, "start", start)
	if w := b.fast(a, o.p, q.p, k.p, v.p); w >= 0 {
		pairs := b.tiles(start, tileRows)
		b.launch(b.k.attnFwd[w], grid{len(pairs) / 2, a.H, 1, attnThreads, [2]int{40960, 81920}[w]},
			at(o.p), at(lse.p), at(q.p), at(k.p), at(v.p), at(first), at(index(b, "tiles", pairs)), whole(a.H), whole(a.K), real(float32(a.Scale)))
		return
	}
	b.launch(b.k.attnFwdAny[b.narrow], grid{blocks(N*a.H, genericHeads), 1, 1, attnThreads, 0},
		at(o.p), at(lse.p), at(q.p), at(k.p), at(v.p), at(first), whole(len(start)-1), whole(N), whole(a.H), whole(a.K), whole(a.E), real(float32(a.Scale)))
}

// AttentionGrad is the gradient of Attention, in three launches: the row sums of
// do*o, then dk and dv over tiles of keys, and dq over tiles of queries.
func (b *Backend) AttentionGrad(dqNHE, dkNKE, dvNKE, doNHE, oNHE, lseNH, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape, start []int32) {
	const op = "AttentionGrad"
	heads(op, a)
	N := rowsOf(op, "q", qNHE, a.H*a.E)
	nq, nk := N*a.H*a.E, N*a.K*a.E
	dq, dk, dv := b.narrowed(op, "dq", dqNHE, nq), b.narrowed(op, "dk", dkNKE, nk), b.narrowed(op, "dv", dvNKE, nk)
	do, o, q := b.narrowed(op, "do", doNHE, nq), b.narrowed(op, "o", oNHE, nq), b.narrowed(op, "q", qNHE, nq)
	k, v, lse := b.narrowed(op, "k", kNKE, nk), b.narrowed(op, "v", vNKE, nk), wide(op, "lse", lseNH, N*a.H)
	packOf(op, start, N)
	if N == 0 {
		return
	}
	defer b.enter()()
	delta := b.scratch(4 * int64(N*a.H))[0]
	first, H, K, scale := index(b, "start", start), whole(a.H), whole(a.K), real(float32(a.Scale))
	if w := b.fast(a, dq.p, dk.p, dv.p, do.p, o.p, q.p, k.p, v.p); w >= 0 {
		pairs := b.tiles(start, tileRows)
		tiles := index(b, "tiles", pairs)
		b.launch(b.k.attnDelta[w], grid{blocks(N*a.H, [2]int{16, 8}[w]), 1, 1, attnThreads, 0}, at(delta), at(do.p), at(o.p), whole(N), H)
		b.launch(b.k.attnDQ[w], grid{len(pairs) / 2, a.H, 1, attnThreads, [2]int{65536, 98304}[w]},
			at(dq.p), at(do.p), at(q.p), at(k.p), at(v.p), at(lse.p), at(delta), at(first), at(tiles), H, K, scale)
		if w == 1 {
			pairs = b.tiles(start, tileRowsdKV)
			tiles = index(b, "small tiles", pairs)
		}
		b.launch(b.k.attnDKV[w], grid{len(pairs) / 2, a.K, 1, attnThreads, [2]int{66560, 99328}[w]},
			at(dk.p), at(dv.p), at(do.p), at(q.p), at(k.p), at(v.p), at(lse.p), at(delta), at(first), at(tiles), H, K, scale)
		return
	}
	S, n, E := whole(len(start)-1), whole(N), whole(a.E)
	perQuery, perKey := grid{blocks(N*a.H, genericHeads), 1, 1, attnThreads, 0}, grid{blocks(N*a.K, genericHeads), 1, 1, attnThreads, 0}
	b.launch(b.k.attnDeltaAny[b.narrow], perQuery, at(delta), at(do.p), at(o.p), n, H, E)
	b.launch(b.k.attnDQAny[b.narrow], perQuery,
		at(dq.p), at(do.p), at(q.p), at(k.p), at(v.p), at(lse.p), at(delta), at(first), S, n, H, K, E, scale)
	b.launch(b.k.attnDKVAny[b.narrow], perKey,
		at(dk.p), at(dv.p), at(do.p), at(q.p), at(k.p), at(v.p), at(lse.p), at(delta), at(first), S, n, H, K, E, scale)
}

// AttentionDecode is attention of one query a row over paged caches. The page
// tables are flattened to rows of a multiple of 64 pages, and the grid follows
// from that, so that a graph serves all lengths up to it.
func (b *Backend) AttentionDecode(oRHE, qRHE, kCache, vCache compute.Tensor, a compute.AttnShape, pages compute.Pages) {
	const op = "AttentionDecode"
	heads(op, a)
	R, P, W := len(pages.Len), pages.PageTokens, a.K*a.E
	o, q := b.narrowed(op, "o", oRHE, R*a.H*a.E), b.narrowed(op, "q", qRHE, R*a.H*a.E)
	k, v := b.narrowed(op, "k", kCache, kCache.Len()), b.narrowed(op, "v", vCache, kCache.Len())
	if P < 1 || len(pages.Table) != R || rowsOf(op, "k", kCache, W)%P != 0 {
		panic(fmt.Sprintf("cuda: AttentionDecode: %d rows, %d tables, a cache of %d elements and pages of %d tokens", R, len(pages.Table), kCache.Len(), P))
	}
	most := 0
	for r, table := range pages.Table {
		if n := int(pages.Len[r]); n < 0 || n > len(table)*P {
			panic(fmt.Sprintf("cuda: AttentionDecode: row %d has %d positions in %d pages of %d", r, n, len(table), P))
		}
		most = max(most, len(table))
	}
	if R == 0 {
		return
	}
	defer b.enter()()
	cols := decodeStride(most)
	table := b.table(pages.Table, cols, k.n/(W*P))
	splits := blocks(cols*P, decodeSplit)
	part := b.scratch(decodeBytes(min(R, b.rows), splits, a.H, a.E))[0]
	length, H, K, E, scale := index(b, "lengths", pages.Len), whole(a.H), whole(a.K), whole(a.E), real(float32(a.Scale))
	for r := 0; r < R; r += b.rows {
		rows := min(b.rows, R-r)
		from, n := r*a.H*a.E, whole(rows)
		tableAt, lengthAt := at(table+driver.Ptr(4*r*cols)), at(length+driver.Ptr(4*r))
		g := grid{splits, a.K, rows, attnThreads, 0}
		if w := b.fast(a, q.p, k.p, v.p); w >= 0 && a.H/a.K <= 16 {
			g.shared = 65536
			b.launch(b.k.decode[w], g, at(part), at(q.from(from)), at(k.p), at(v.p), tableAt, lengthAt, whole(cols), whole(P), n, H, K, scale)
		} else {
			b.launch(b.k.decodeAny[b.narrow], g, at(part), at(q.from(from)), at(k.p), at(v.p), tableAt, lengthAt, whole(cols), whole(P), n, H, K, E, scale)
		}
		b.launch(b.k.decodeCombine[b.narrow], grid{a.H, rows, 1, attnThreads, 0}, at(o.from(from)), at(part), lengthAt, n, whole(splits), H, E)
	}
}

// decodeStride is the length of a row of the page table: the longest row's, rounded
// up so that it changes seldom.
func decodeStride(pages int) int { return (pages + 63) &^ 63 }

// table brings page tables to the device as rows of cols pages, each one of so
// many; what lies behind a row's pages is not read.
func (b *Backend) table(rows [][]int32, cols, pages int) driver.Ptr {
	return b.stage(fmt.Sprint("pages of ", pages), unsafe.Pointer(unsafe.SliceData(rows)), 4*len(rows)*cols,
		func(old []byte) bool {
			for r, row := range rows {
				if !slices.Equal(ints(old[4*r*cols:], len(row)), row) {
					return false
				}
			}
			return true
		},
		func(to []byte) {
			for r, row := range rows {
				within("AttentionDecode", "pages", row, pages)
				line := ints(to[4*r*cols:], cols)
				clear(line[copy(line, row):])
			}
		})
}
