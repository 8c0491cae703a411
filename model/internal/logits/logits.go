// Package logits computes rows of logits, and sums, orders and draws from them in the host's
// memory.
//
//	logits.go  rows of logits, sums and the largest of a row; rows at a time
//	pick.go    a draw among allowed tokens
package logits

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"

	"gad/internal/compute"
)

// ErrNotFinite is wrapped by the error of a model with a NaN or an infinity.
var ErrNotFinite = errors.New("not finite")

// RV names the workspace for the logits of Head.
const RV = "logits [R,V]"

// Head computes z[r,v] = Σ_d h[r,d]*head[v,d], in float32 on every backend. Cap follows on the
// host.
func Head(be compute.Backend, head *compute.Param, zRV, hRD compute.Tensor) {
	// Linear writes float32 only if acc.
	be.Zero(zRV)
	be.Linear(zRV, hRD, head, nil, true)
}

// Cap caps rows of Head's results as the head says. Their width is the head's number of rows.
func Cap(z []float32, head *compute.Param) {
	if head.Cap > 0 {
		EachRow(0, len(z)/head.Rows,
			func(r int) { compute.SoftCap(z[r*head.Rows:(r+1)*head.Rows], 1, head.Cap) })
	}
}

// EachRow calls f(r) for the rows r from lo to hi-1, divided among goroutines, and waits for them.
// f must compute a row's results from that row alone.
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

// Elements bounds the number of a model's logits that are in memory at a time; one row may exceed
// it.
const Elements = 1 << 22

// Chunk is Elements; tests, whose vocabularies are small, set less.
var Chunk = Elements

// Rows returns the number of rows of logits that are in memory at a time, at least 1.
func Rows(vocab int) int { return max(1, Chunk/vocab) }

// SumApart returns the log of the sum of exponentials of inv*z, and the probability of all tokens
// but ids, which must ascend. It sums that tail by itself: 1 minus the probability of ids would
// cancel to 0 where a confident model leaves it little.
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

// Largest returns the ids of the n largest logits, in descending order of logit; of equal logits
// the lower id comes first.
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
