package philox

import (
	"math"
	"testing"
)

// Known-answer vectors of the paper's reference distribution (philox4x32, 10 rounds).
func TestKnownAnswers(t *testing.T) {
	const f = 0xffffffff
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{f, f, f, f}, [2]uint32{f, f},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
			[2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := Block(c.key, c.ctr); got != c.want {
			t.Errorf("Block(%x, %x) = %x, want %x", c.key, c.ctr, got, c.want)
		}
	}
}

func TestMoments(t *testing.T) {
	const n = 200_000
	var u, u2, g, g2 float64
	for i := range uint64(n) {
		x := Float64(7, Rollout, 3, i, 1)
		if x < 0 || x >= 1 {
			t.Fatalf("Float64 = %g", x)
		}
		y := Norm(7, Init, 3, i, 1)
		u, u2, g, g2 = u+x, u2+x*x, g+y, g2+y*y
	}
	// Four standard errors of each estimate.
	for _, c := range []struct {
		name           string
		got, want, tol float64
	}{
		{"uniform mean", u / n, 0.5, 4 * math.Sqrt(1.0/12/n)},
		{"uniform second moment", u2 / n, 1.0 / 3, 4 * math.Sqrt(4.0/45/n)},
		{"normal mean", g / n, 0, 4 / math.Sqrt(n)},
		{"normal variance", g2 / n, 1, 4 * math.Sqrt(2.0/n)},
	} {
		if math.Abs(c.got-c.want) > c.tol {
			t.Errorf("%s = %g, want %g +- %g", c.name, c.got, c.want, c.tol)
		}
	}
}

func TestStreamsDiffer(t *testing.T) {
	seen := map[uint64]bool{}
	for _, s := range []Stream{Rollout, Init, Shuffle, Replay, Data} {
		for a := range uint64(3) {
			for c := range uint64(3) {
				x := Uint64(1, s, a, 5, c)
				if seen[x] {
					t.Fatalf("stream %d draw (%d, 5, %d) repeats another", s, a, c)
				}
				seen[x] = true
			}
		}
	}
}
