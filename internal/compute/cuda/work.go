package cuda

import "gad/internal/compute"

// This file is what a model of cost (package cost) must know of how the engine divides its
// work. It is here, in either build, so that it changes with the engine.

// HeadChunk returns how many rows, and how many columns of their logits, LogProb takes at a time,
// or LogProbGrad if grad.
func HeadChunk(R, V int, grad bool) (rows, cols int) {
	l := headLimits.stats
	if grad {
		l = headLimits.grad
	}
	c := l.chunks(R, V)
	return c.rows, c.cols
}

// SampleRows returns how many of R rows Sample takes at a time, with all their logits.
func SampleRows(R, V int) int { return headLimits.sample.whole(R, V).rows }

// SumParts returns the number of parts in which the sums down the columns of N rows are taken.
func SumParts(N, D int) int { return blocks(N, sumRows(N, D)) }

// DecodeSplits returns how many blocks decode a row for each of its key/value heads.
func DecodeSplits(mostPages, pageTokens int) int {
	return blocks((mostPages+63)&^63*pageTokens, decodeSplit)
}

// QueryTile is how many queries a block of the fast attention kernels takes.
const QueryTile = 128

// DKVTile returns how many keys a block of the gradient of keys and values takes, for heads of
// width E.
func DKVTile(E int) int { return map[bool]int{true: 64, false: QueryTile}[E == 128] }

// DKVParts returns the number of blocks in which the gradient of a tile of keys and its values is
// computed, each over as many of the group's query heads: as AttentionGrad divides N tokens.
func DKVParts(p compute.Pack, a compute.AttnShape) int {
	var segments []compute.Segment
	N := 0
	for s := range p.Segments() {
		segments = append(segments, p.Segment(s))
		N += segments[s].Len
	}
	if N == 0 {
		return 1
	}
	return dkvParts(dkvWork(segments, DKVTile(a.E)), a.K, a.H/a.K, dkvPartBytes/(8*N*a.K*a.E))
}

// dkvWork returns how many tiles of queries see each tile of keys, of rows keys.
func dkvWork(segments []compute.Segment, rows int) (work []int) {
	for _, g := range segments {
		for j := range blocks(g.Len, rows) {
			work = append(work, blocks(g.Len+g.Branches, dkvQueries)-j*rows/dkvQueries)
		}
	}
	return work
}

// DecodesInOne reports whether one kernel decodes, and none joins what its blocks found.
func DecodesInOne(a compute.AttnShape) bool {
	return a.Window == 0 && (a.E == 64 || a.E == 128) && a.H/a.K <= 16
}

// StagedPart is how many elements pass to or from the device in one copy.
const StagedPart = 8 << 20 / 16
