package cuda

import "gad/internal/compute"

// This file is how the gated delta rule is laid out for the device, in either build.

const (
	deltaChunk = 16  // tokens of a chunk
	deltaCols  = 32  // columns of a state that a block has at a time
	deltaWide  = 128 // most elements of a key: shared memory holds a chunk's
)

// DeltaState returns the elements of the states of all value heads; 0 for keys of more than 128
// elements.
func (Options) DeltaState(s compute.DeltaShape) int {
	if s.E > deltaWide {
		return 0
	}
	return s.H * s.E * s.F
}

// DeltaLayout is a pack as the kernels of the gated delta rule read it: eight numbers a segment
// (DeltaSegment in kernels/delta.cu), and of each family, a sequence or a beginning and what
// follows it, the first segment and the one behind the last. Ends is the number of states that
// branches begin at, and Chunks that of chunks, counted from each segment's beginning.
type DeltaLayout struct {
	Segments, Families []int32
	Ends, Chunks       int
}

// LayDelta returns the layout of a pack.
func LayDelta(p compute.Pack, st compute.States) (l DeltaLayout) {
	const words = 8
	S := p.Segments()
	l.Segments = make([]int32, 0, words*S)
	for n := range S {
		begin, before := int32(-1), int32(-1)
		switch from := st.Source(n); {
		case p.Branched(n):
			up := l.Segments[int(p.Parent[n])*words:]
			begin, before = up[2], up[6] // of no tokens: where it begins itself
			if up[1] > 0 {
				begin, before = up[4], up[5]+int32((up[1]+deltaChunk-1)/deltaChunk)-1
			}
		case from >= 0:
			begin = -2 - int32(from)
		}
		end := int32(-1)
		if n+1 < S && p.Branched(n+1) && int(p.Parent[n+1]) == n && p.Tokens(n) > 0 {
			end = int32(l.Ends)
			l.Ends++
		}
		l.Segments = append(l.Segments, p.Start[n], int32(p.Tokens(n)), begin,
			int32(st.Target(n)), end, int32(l.Chunks), before, 0)
		l.Chunks += (p.Tokens(n) + deltaChunk - 1) / deltaChunk
		if p.Branched(n) {
			l.Families[len(l.Families)-1] = int32(n) + 1
		} else {
			l.Families = append(l.Families, int32(n), int32(n)+1)
		}
	}
	return l
}

// Blocks returns how many blocks compute the rule, and its gradient, at once.
func (l DeltaLayout) Blocks(s compute.DeltaShape) (forward, backward int) {
	families := len(l.Families) / 2
	return families * s.H * ((s.F + deltaCols - 1) / deltaCols), families * s.K
}
