package cuda

import "gad/internal/compute"

// This file is what a model of cost (package cost) must know of how the engine divides its
// work. It is here, in either build, so that it changes with the engine.

// FewRows is the most rows of a product that reads quantised weights as they are. Other products
// read them as they are unpacked, in an operation of its own.
const FewRows = fewRows

// HeadChunk returns how many rows, and how many columns of their logits, LogProb takes at a time,
// or LogProbGrad if grad, with weights of a class.
func HeadChunk(R, V int, grad bool, c compute.Class) (rows, cols int) {
	l := headLimits.stats
	if grad {
		l = headLimits.grad
	}
	k := l.chunks(R, V).limitColumns(storage(c, bf16))
	return k.rows, k.cols
}

// UnpackedVocab is how many columns of a quantised head Sample unpacks at a time.
const UnpackedVocab = unpackedVocab

// SampleRows returns how many of R rows Sample takes at a time, with all their logits.
func SampleRows(R, V int) int { return headLimits.sample.whole(R, V).rows }

// DrawnLogits returns how many logits of a row of V Sample reads again once it has their
// statistics: one tile, or with filters at least all of them twice.
func DrawnLogits(s compute.Sampling, V int) int {
	if filters(s, V) {
		return 2 * V
	}
	return min(V, headTile)
}

// filters reports whether s leaves out tokens of a vocabulary of V.
func filters(s compute.Sampling, V int) bool {
	return s.Temperature > 0 && (s.TopK > 0 && s.TopK < V || s.TopP > 0 && s.TopP < 1 || s.MinP > 0)
}

// SumParts returns the number of parts in which the sums down the columns of N rows are taken.
func SumParts(N, D int) int { return blocks(N, sumRows(N, D)) }

// NormParts returns the number of parts in which one pass of RMSNormGrad over N rows sums the
// scale's gradient, or 0 where rows are too long for one pass.
func NormParts(N, D int) int {
	if D > onePassNorm {
		return 0
	}
	return blocks(N, normRows(N, D))
}

// DecodeSplits returns how many blocks decode a row for each of its key/value heads.
func DecodeSplits(mostPages, pageTokens int) int {
	return blocks((mostPages+63)&^63*pageTokens, decodeSplit)
}

// QueryTile is how many queries a block of the fast attention kernels takes.
const QueryTile = 128

// DKVTile returns how many keys a block of the gradient of keys and values takes, for heads of
// width E.
func DKVTile(E int) int { return map[bool]int{true: 64, false: QueryTile}[E == 128] }

// DKVBlocks returns how AttentionGrad divides the gradient of a pack's keys and values: the
// queries, counted for each head, that the longest block goes through, and the rows written in
// parts.
func DKVBlocks(p compute.Pack, a compute.AttnShape) (longest float64, partRows int) {
	var segments []compute.Segment
	N := 0
	for s := range p.Segments() {
		segments = append(segments, p.Segment(s))
		N += segments[s].Len
	}
	rows := DKVTile(a.E)
	for _, b := range keyBlocks(keyTiles(segments, rows), a.K, a.H/a.K,
		mostPartRows(dkvPartBytes, N, a), leastQueries) {
		g := segments[b.segment]
		n := min(b.to*dkvQueries, g.Len+g.Branches) - b.from*dkvQueries
		if b.from == b.tile*rows/dkvQueries {
			n = max(n-rows/2, n/2) // the diagonal
		}
		longest = max(longest, float64(n*b.heads))
		if b.at >= 0 {
			partRows += b.rows
		}
	}
	return longest, partRows
}

// mostPartRows bounds the rows of parts of dk and dv: by so many bytes, and by the scratch memory
// that is planned (Options.Scratch).
func mostPartRows(bytes int64, N int, a compute.AttnShape) int {
	return int(min(bytes/int64(8*a.K*a.E), int64(N*a.H/a.K)))
}

// keyTiles is the tiles of keys of segments, of so many rows.
func keyTiles(segments []compute.Segment, rows int) (list []keyTile) {
	for s, g := range segments {
		for j := range blocks(g.Len, rows) {
			list = append(list, keyTile{s, j, min(rows, g.Len-j*rows), j * rows / dkvQueries,
				blocks(g.Len+g.Branches, dkvQueries)})
		}
	}
	return list
}

// DecodesInOne reports whether one kernel decodes, and none joins what its blocks found.
func DecodesInOne(a compute.AttnShape) bool {
	return a.Window == 0 && (a.E == 64 || a.E == 128) && a.H/a.K <= 16
}

// StagedPart is how many elements pass to or from the device in one copy.
const StagedPart = 8 << 20 / 16
