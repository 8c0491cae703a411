// Package logits sums, orders and draws from rows of logits in the host's memory.
//
//	logits.go  sums and the largest of a row; rows at a time
//	pick.go    a token among those that are allowed
package logits

import (
	"math"
	"runtime"
	"slices"
	"sync"
)

// EachRow calls f for the rows of a chunk, divided among goroutines. A row's results depend on
// the row alone.
func EachRow(lo, hi int, f func(r int)) {
	var wg sync.WaitGroup
	share := (hi - lo + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0)
	for at := lo; at < hi; at += share {
		wg.Go(func() {
			for r := at; r < min(at+share, hi); r++ {
				f(r)
			}
		})
	}
	wg.Wait()
}

// Elements is the largest number of logits of a model that are in memory at a time, unless one row
// is more.
const Elements = 1 << 22

// Rows returns how many rows of logits are in memory at a time.
func Rows(vocab int) int { return max(1, Elements/vocab) }

// SumApart returns the log of the sum of exponentials of the logits z times inv, and the
// probability of all but ids, which ascend. The tail is summed by itself: the difference from 1
// would lose what a sure model leaves to it.
func SumApart(z []float32, ids []int32, inv float64) (lse, rest float64) {
	most := inv * float64(slices.Max(z))
	var sum, tail float64
	k := 0
	for v, x := range z {
		e := math.Exp(float64(inv*float64(x)) - most)
		sum += e
		if k < len(ids) && int(ids[k]) == v {
			k++
			continue
		}
		tail += e
	}
	return most + math.Log(sum), tail / sum
}

// Largest returns the ids of the n largest logits, the largest first; of equal ones the lower id
// comes first.
func Largest(z []float32, n int) []int32 {
	if n = min(n, len(z)); n <= 0 {
		return nil
	}
	best := make([]int32, 0, n+1)
	for id, x := range z {
		if len(best) == n && x <= z[best[n-1]] {
			continue
		}
		at := len(best)
		for at > 0 && x > z[best[at-1]] {
			at--
		}
		best = slices.Insert(best, at, int32(id))
		best = best[:min(len(best), n)]
	}
	return best
}
