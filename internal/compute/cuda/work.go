package cuda

// This file is what a model of cost (package cost) must know of how the engine divides its
// work. It is here, in either build, so that it changes with the engine.

// HeadChunk is how many rows, and how many columns of their logits, LogProb takes at a
// time, or LogProbGrad if grad.
func HeadChunk(R, V int, grad bool) (rows, cols int) {
	c := headLimits.chunks(R, V)
	return c.rows, c.cols
}

// SampleRows is how many of R rows Sample takes at a time, with all their logits.
func SampleRows(R, V int) int { return headLimits.whole(R, V).rows }

// SumParts is in how many parts the sums down the columns of N rows are taken.
func SumParts(N, D int) int { return blocks(N, sumRows(N, D)) }

// DecodeSplits is how many blocks decode a row for each of its key/value heads.
func DecodeSplits(mostPages, pageTokens int) int {
	return blocks((mostPages+63)&^63*pageTokens, decodeSplit)
}

// QueryTile is how many queries a block of the fast attention kernels takes.
const QueryTile = 128

// DKVTile is how many keys a block of the gradient of keys and values takes, for heads of
// width E.
func DKVTile(E int) int { return map[bool]int{true: 64, false: QueryTile}[E == 128] }

// DKVHeads is for how many query heads of a group of so many a block takes a tile of keys.
func DKVHeads(group int) int { return group }

// StagedPart is how many elements pass to or from the device in one copy.
const StagedPart = 8 << 20 / 16
