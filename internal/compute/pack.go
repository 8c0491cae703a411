package compute

import "fmt"

// Pack lays N tokens end to end, without padding, in S segments: segment s holds the tokens
// Start[s] to Start[s+1]-1. A segment is a sequence, or a branch: a continuation of segment
// Parent[s] in one of several sequences that share it, such as the responses to a
// prompt. A branch may have branches, to any depth; its parent, the parent's parent and so on
// are its ancestors. A token sees its segment up to itself, and before that all tokens of all
// ancestors, the outermost first; its position is counted through them.
//
// The order is depth first: all descendants of a segment come directly behind it, so that the
// tokens which see it are rows without a gap. A segment of no tokens is allowed anywhere.
type Pack struct {
	Start  []int32 // [S+1]
	Parent []int32 // [S] the segment that s follows, -1 for none; nil is none for all
}

// Segment is a segment of a pack.
type Segment struct {
	First, Len int // its own tokens
	Before     int // the tokens of all its ancestors, which its tokens see before their own
	Branches   int // the tokens of all its descendants, from First+Len on
}

// Segments returns S.
func (p Pack) Segments() int { return max(0, len(p.Start)-1) }

// Branched reports whether segment s is a branch.
func (p Pack) Branched(s int) bool { return p.Parent != nil && p.Parent[s] >= 0 }

// Tokens returns the number of segment s's own tokens.
func (p Pack) Tokens(s int) int { return int(p.Start[s+1] - p.Start[s]) }

// Segment returns segment number s.
func (p Pack) Segment(s int) Segment {
	g := Segment{First: int(p.Start[s]), Len: p.Tokens(s)}
	for up := s; p.Branched(up); {
		up = int(p.Parent[up])
		g.Before += p.Tokens(up)
	}
	for c := s + 1; c < p.Segments() && p.Branched(c) && int(p.Parent[c]) >= s; c++ {
		g.Branches += p.Tokens(c)
	}
	return g
}

// Ancestors appends the ancestors of segment s to list, the outermost first.
func (p Pack) Ancestors(list []int32, s int) []int32 {
	from := len(list)
	for up := s; p.Branched(up); {
		up = int(p.Parent[up])
		list = append(list, int32(up))
	}
	for i, j := from, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
	return list
}

// Before appends to list, for each token, the row of the token before it in its sequence, or -1 for
// a sequence's first.
func (p Pack) Before(list []int32) []int32 {
	for s := range p.Segments() {
		if p.Tokens(s) == 0 {
			continue
		}
		row, up := int32(-1), s
		for row < 0 && p.Branched(up) {
			if up = int(p.Parent[up]); p.Tokens(up) > 0 {
				row = p.Start[up+1] - 1
			}
		}
		list = append(list, row)
		for n := p.Start[s] + 1; n < p.Start[s+1]; n++ {
			list = append(list, n-1)
		}
	}
	return list
}

// Back returns the rows of the J tokens that each token sees last, its own the last [N,J]; -1 for
// those before its sequence's first token. before is what Before appends.
func Back(list, before []int32, J int) []int32 {
	for n := range before {
		at := len(list)
		list = append(list, make([]int32, J)...)
		m := int32(n)
		for j := J - 1; j >= 0; j-- {
			if list[at+j] = m; m >= 0 {
				m = before[m]
			}
		}
	}
	return list
}

// Successors returns, for each token m, the tokens n that have it among their J last, n ascending:
// entries start[m] to start[m+1]-1 of list, each n*J + i, where m is i tokens before n.
func Successors(before []int32, J int) (start, list []int32) {
	N := len(before)
	start = make([]int32, N+1)
	each := func(f func(m, entry int32)) {
		for n := range before {
			m := int32(n)
			for i := 0; i < J && m >= 0; i++ {
				f(m, int32(n*J+i))
				m = before[m]
			}
		}
	}
	each(func(m, _ int32) { start[m+1]++ })
	for m := range N {
		start[m+1] += start[m]
	}
	list = make([]int32, start[N])
	next := append([]int32(nil), start...)
	each(func(m, entry int32) {
		list[next[m]] = entry
		next[m]++
	})
	return start, list
}

// Back returns the slots of the last J positions of each row, as the function Back does.
func (p Pages) Back(list []int32, J int) []int32 {
	for r, n := range p.Len {
		for j := range J {
			at, slot := int(n)-J+j, int32(-1)
			if at >= 0 {
				slot = p.Table[r][at/p.PageTokens]*int32(p.PageTokens) + int32(at%p.PageTokens)
			}
			list = append(list, slot)
		}
	}
	return list
}

// Pairs returns the number of pairs of a query and a key that it sees, for one head, with a window
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
	for s, up := range p.Parent {
		last := int32(s) - 1 // then its ancestors
		for last >= 0 && last != up && up >= 0 {
			last = p.Parent[last]
		}
		if up >= 0 && last != up {
			panic(fmt.Sprintf("compute: %s: segment %d follows segment %d: want segment %d or an ancestor of it: branches come directly behind their parent, each with its own behind it", op, s, up, s-1))
		}
	}
}
