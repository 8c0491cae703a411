package compute

import "fmt"

// Pack lays N tokens end to end, without padding, in S segments: segment s holds the
// tokens Start[s] to Start[s+1]-1. A segment is a sequence, or a branch: the continuation of
// segment Parent[s] in one of several sequences with that prefix, such as the responses to a
// prompt. The branches of a segment come directly after it, and have none themselves.
type Pack struct {
	Start  []int32 // [S+1]
	Parent []int32 // [S] the segment that s follows, -1 for none; nil is none for all
}

// Segment is a segment of a pack, and the tokens before its own that its tokens see: Before of
// them, from Prefix on.
type Segment struct {
	First, Len     int // its own tokens
	Prefix, Before int // the tokens of the segment that it follows; 0 of them if there is none
	Branches       int // the tokens of all its branches, from First+Len on
}

// Segments is S.
func (p Pack) Segments() int { return max(0, len(p.Start)-1) }

// Branched reports whether segment s is a branch.
func (p Pack) Branched(s int) bool { return p.Parent != nil && p.Parent[s] >= 0 }

// Segment is the s-th.
func (p Pack) Segment(s int) Segment {
	g := Segment{First: int(p.Start[s]), Len: int(p.Start[s+1] - p.Start[s])}
	if p.Branched(s) {
		up := p.Parent[s]
		g.Prefix, g.Before = int(p.Start[up]), int(p.Start[up+1]-p.Start[up])
		return g
	}
	for c := s + 1; c < p.Segments() && p.Branched(c); c++ {
		g.Branches += int(p.Start[c+1] - p.Start[c])
	}
	return g
}

// Pairs is the number of pairs of a query and a key that it sees, for one head, with a window
// as in AttnShape.
func (p Pack) Pairs(window int) (n float64) {
	triangle := func(l float64) float64 { return l * (l + 1) / 2 }
	for s := range p.Segments() {
		g := p.Segment(s)
		before, l := float64(g.Before), float64(g.Len)
		n += triangle(l) + l*before
		if w := float64(window); w > 0 { // less what lies before the windows
			n -= triangle(max(0, before+l-w)) - triangle(max(0, before-w))
		}
	}
	return n
}

// Check panics, in the name of the operation op, unless p lays out N tokens.
func (p Pack) Check(op string, N int) {
	if len(p.Start) == 0 && N == 0 {
		return
	}
	if len(p.Start) == 0 || p.Start[0] != 0 || int(p.Start[len(p.Start)-1]) != N {
		panic(fmt.Sprintf("compute: %s: start %v does not cut %d tokens", op, p.Start, N))
	}
	for s := 1; s < len(p.Start); s++ {
		if p.Start[s] < p.Start[s-1] {
			panic(fmt.Sprintf("compute: %s: start %v falls", op, p.Start))
		}
	}
	if p.Parent == nil {
		return
	}
	if len(p.Parent) != p.Segments() {
		panic(fmt.Sprintf("compute: %s: %d parents of %d segments", op, len(p.Parent),
			p.Segments()))
	}
	root := int32(-1) // the last segment that is no branch
	for s, up := range p.Parent {
		switch {
		case up < 0:
			root = int32(s)
		case up != root:
			panic(fmt.Sprintf("compute: %s: segment %d follows segment %d: branches come directly behind theirs, segment %d", op, s, up, root))
		}
	}
}
