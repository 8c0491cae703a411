package comm

import (
	"fmt"
	"math/bits"
	"time"
)

// Part returns the number of the part that a rank holds after SumParts: the rank with its bits
// reversed. It is its own inverse: Part(i) is also the rank that holds part i.
func (g *Group) Part(rank int) int {
	levels := bits.Len(uint(g.Size())) - 1
	return int(bits.Reverse64(uint64(rank)) >> (64 - levels))
}

// SumParts does the reduce-scatter of Sum: x is cut into the parts x[cuts[i]:cuts[i+1]], and rank r
// ends with the sum of part Part(r), with the bits of Sum; the rest of its x is undefined. cuts has
// Size+1 positions, covers x, and is the same on all ranks.
func (g *Group) SumParts(what string, x []float32, cuts []int) error {
	return g.parts("sum of parts", what, x, cuts, g.halve)
}

// GatherParts does the all-gather of Sum: it fills x with the part of every rank.
func (g *Group) GatherParts(what string, x []float32, cuts []int) error {
	return g.parts("gather of parts", what, x, cuts, g.double)
}

// parts checks cuts, starts a collective and calls move.
func (g *Group) parts(kind, what string, x []float32, cuts []int,
	move func(x []float32, cuts []int) error) error {
	n := g.Size()
	if len(cuts) != n+1 || cuts[0] != 0 || cuts[n] != len(x) {
		panic(fmt.Sprintf("comm: %s: cuts %v of %d elements on %d ranks", kind, cuts, len(x), n))
	}
	if n == 1 {
		return nil
	}
	begun := time.Now()
	defer func() { g.traffic.Sum += time.Since(begun) }()
	if err := g.begin(kind, what); err != nil {
		return err
	}
	return move(x, cuts)
}

// halve does recursive halving: it swaps halves of the parts still held with ranks at distance 1,
// 2, 4, ... and adds, until one part is left.
func (g *Group) halve(x []float32, cuts []int) error {
	rank, lo, hi := g.Rank(), 0, g.Size()
	for d := 1; d < g.Size(); d *= 2 {
		mid := (lo + hi) / 2
		keep, give := x[cuts[lo]:cuts[mid]], x[cuts[mid]:cuts[hi]]
		if rank&d != 0 {
			keep, give = give, keep
			lo = mid
		} else {
			hi = mid
		}
		if err := g.sameLength(rank^d, len(x)); err != nil {
			return err
		}
		if err := g.swapAdd(rank^d, give, keep); err != nil {
			return err
		}
	}
	return nil
}

// double does recursive doubling, the way back: it swaps all parts held, twice as many each time.
func (g *Group) double(x []float32, cuts []int) error {
	rank := g.Rank()
	lo, n := g.Part(rank), 1
	for d := g.Size() / 2; d > 0; d /= 2 {
		other := lo ^ n
		if err := g.swapParts(rank^d, x[cuts[lo]:cuts[lo+n]],
			x[cuts[other]:cuts[other+n]]); err != nil {
			return err
		}
		lo, n = min(lo, other), 2*n
	}
	return nil
}
