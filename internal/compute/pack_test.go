package compute

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Segments of random packs of any depth, against sets of tokens by their definition.
func TestSegmentsOfPacks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	depth := 0
	for range 300 {
		p := Pack{Start: []int32{0}}
		for s := range 1 + rng.IntN(12) {
			up := int32(s) - 1 // s-1 or an ancestor of it, or none
			for k := rng.IntN(4) - 1; k > 0 && up >= 0; k-- {
				up = p.Parent[up]
			}
			p.Parent = append(p.Parent, up)
			p.Start = append(p.Start, p.Start[s]+int32(rng.IntN(5)))
		}
		N := int(p.Start[p.Segments()])
		p.Check("test", N)
		for s := range p.Segments() {
			var above []int32
			for up := p.Parent[s]; up >= 0; up = p.Parent[up] {
				above = append([]int32{up}, above...)
			}
			depth = max(depth, len(above))
			want := Segment{First: int(p.Start[s]), Len: int(p.Start[s+1] - p.Start[s])}
			for _, up := range above {
				want.Before += int(p.Start[up+1] - p.Start[up])
			}
			for c := range p.Segments() {
				for up := p.Parent[c]; up >= 0; up = p.Parent[up] {
					if int(up) == s {
						want.Branches += int(p.Start[c+1] - p.Start[c])
					}
				}
			}
			if got := p.Segment(s); got != want {
				t.Fatalf("%v: segment %d is %+v, want %+v", p, s, got, want)
			}
			if got := p.Ancestors(nil, s); !slices.Equal(got, above) {
				t.Fatalf("%v: segment %d has ancestors %v, want %v", p, s, got, above)
			}
		}
	}
	if depth < 5 {
		t.Errorf("no pack deeper than %d", depth)
	}
}

// A pack whose branches do not lie depth first is refused by name: the tokens that see a segment
// would be no rows without a gap.
func TestCheckOfPacks(t *testing.T) {
	four := []int32{0, 1, 2, 3, 4}
	for _, of := range []struct {
		parent []int32
		want   string
	}{
		{[]int32{-1, 0, 1, 2}, ""}, {[]int32{-1, 0, 1, 0}, ""}, {[]int32{-1, -1, 1, 1}, ""},
		{[]int32{-1, 0, 0, 1}, "segment 3 follows segment 1: want segment 2 or an ancestor"},
		{[]int32{-1, -1, 0, -1}, "segment 2 follows segment 0: want segment 1 or an ancestor"},
		{[]int32{-1, 2, 0, -1}, "segment 1 follows segment 2: want segment 0 or an ancestor"},
		{[]int32{0, 0, 0, 0}, "segment 0 follows segment 0: want segment -1 or an ancestor"},
		{[]int32{-1, 0, 0}, "3 parents of 4 segments"},
	} {
		got := func() (text string) {
			defer func() {
				if x := recover(); x != nil {
					text = fmt.Sprint(x)
				}
			}()
			Pack{Start: four, Parent: of.parent}.Check("Attention", 4)
			return ""
		}()
		n := min(len(got), len("compute: Attention: ")+len(of.want))
		if (got == "") != (of.want == "") || of.want != "" && got[:n] != "compute: Attention: "+of.want {
			t.Errorf("%v: %q, want %q", of.parent, got, of.want)
		}
	}
}
