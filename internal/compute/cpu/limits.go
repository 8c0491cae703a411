package cpu

import (
	"runtime"
	"sync"
	"time"
)

// Limits are what the machine can do at the most, measured by loops that do
// nothing else, on as many goroutines as the backend has workers. A shared
// machine's change from minute to minute: measure them beside what is compared
// with them.
type Limits struct {
	// float32 multiply-adds on registers in the backend's variant, operations a second, two each
	F32 float64
	// the same of bfloat16 dot products: the variant's, or the processor's fastest; 0 where it has
	// none
	BF16 float64
	Read float64 // bytes a second that come from memory
	Copy float64 // bytes a second, read and written, of a copy in memory
}

// Limits measures them, in about a quarter of a second, on two blocks of 128 MiB.
func (b *Backend) Limits() Limits {
	l := Limits{F32: b.fma()}
	if loop, flops := dots(b.Name()); loop != nil {
		l.BF16 = b.rate(loop, float64(flops))
	}
	l.Read, l.Copy = b.bandwidth(1 << 25)
	return l
}

// fma measures the rate of multiply-adds without any memory, operations a second.
func (b *Backend) fma() float64 {
	if loop := peaks[b.k.name]; loop != nil {
		return b.rate(loop, float64(2*b.k.mr*b.k.nr))
	}
	return b.rate(peakGo, 2*goChains)
}

// rate runs loop(n) on each worker, and is the best of some runs of so many
// operations a turn.
func (b *Backend) rate(loop func(n int), flops float64) float64 {
	const n = 200000
	best := 0.0
	for range 10 {
		var wg sync.WaitGroup
		began := time.Now()
		for range b.pool.workers {
			wg.Go(func() { loop(n) })
		}
		wg.Wait()
		best = max(best, float64(b.pool.workers)*n*flops/time.Since(began).Seconds())
	}
	return best
}

// goChains is how many sums peakGo keeps.
const goChains = 8

// peakGo runs n turns of a multiply-add to each of goChains sums: the best of compiled Go, for a
// variant without a loop of its own.
//
//go:noinline
func peakGo(n int) {
	var a, b, c, d, e, f, g, h float32
	const x, y = 0.999, 0.5
	for range n {
		a, b, c, d = a*x+y, b*x+y, c*x+y, d*x+y
		e, f, g, h = e*x+y, f*x+y, g*x+y, h*x+y
	}
	runtime.KeepAlive(a + b + c + d + e + f + g + h)
}

// bandwidth measures the rate of reading two blocks of n elements, and of copying one to the other:
// each the best of some runs.
func (b *Backend) bandwidth(n int) (read, copied float64) {
	x, y := aligned(n), aligned(n)
	b.each(n, func(_ *Backend, lo, hi int) { // pages that were never written are not memory yet
		for i := lo; i < hi; i++ {
			x[i], y[i] = 1, 1
		}
	})
	best := func(pass rangeFunc) float64 {
		rate := 0.0
		for range 5 {
			began := time.Now()
			b.each(n, pass)
			rate = max(rate, 8*float64(n)/time.Since(began).Seconds())
		}
		return rate
	}
	read = best(func(b *Backend, lo, hi int) {
		if b.k.dot(x[lo:hi], y[lo:hi]) < 0 {
			panic("cpu: ones have a negative product")
		}
	})
	return read, best(func(_ *Backend, lo, hi int) { copy(x[lo:hi], y[lo:hi]) })
}
