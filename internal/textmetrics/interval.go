package textmetrics

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"gad/internal/philox"
)

// replicates is the number of draws of a bootstrap: each end of a 95 % interval then has 25 draws
// outside.
const replicates = 1000

// Interval returns the 95 % bootstrap interval of a statistic over n units, say prompts. In each
// replicate n units are drawn with replacement, and statistic returns its value from the number of
// times that each was drawn; the interval goes from the 2.5th to the 97.5th percentile of these
// values (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3). The draws
// are a function of seed. Replicates whose value is NaN are left out. Both ends are NaN if all
// values are, if n < 2, and if all replicates are equal: units that do not differ give no estimate
// of the variance. statistic must not keep weight, and is called from several goroutines.
func Interval(n int, seed uint64,
	statistic func(replicate int, weight []float64) float64) [2]float64 {
	nowhere := [2]float64{math.NaN(), math.NaN()}
	if n < 2 {
		return nowhere
	}
	var (
		all  [replicates]float64
		wg   sync.WaitGroup
		next atomic.Int64
	)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			weight := make([]float64, n)
			for r := int(next.Add(1)) - 1; r < replicates; r = int(next.Add(1)) - 1 {
				clear(weight)
				for i := range n {
					weight[philox.IntN(n, seed, philox.Bootstrap, uint64(r), uint64(i), 0)]++
				}
				all[r] = statistic(r, weight)
			}
		})
	}
	wg.Wait()
	got := slices.DeleteFunc(all[:], math.IsNaN)
	if len(got) == 0 {
		return nowhere
	}
	least, most := slices.Min(got), slices.Max(got)
	if most-least <= 1e-12*max(math.Abs(least), math.Abs(most)) { // rounding alone
		return nowhere
	}
	ends := Percentiles(got, 2.5, 97.5)
	return [2]float64{ends[0], ends[1]}
}

// RatioInterval returns the Interval of sum(xs)/sum(ys) over units; nil ys are ones. For a share, a
// mean of zeros and ones, it returns Wilson's interval.
func RatioInterval(xs, ys []float64, seed uint64) [2]float64 {
	if isShare(xs, ys) {
		k := 0
		for _, x := range xs {
			k += int(x)
		}
		return Wilson(k, len(xs))
	}
	return Interval(len(xs), seed,
		func(_ int, weight []float64) float64 { return weightedRatio(xs, ys, weight) })
}

// RatioDifference returns the Interval of sum(xs)/sum(ys) - sum(xs0)/sum(ys0), paired: each draw
// takes the same units of both. For two shares it returns Newcombe's interval.
func RatioDifference(xs, ys, xs0, ys0 []float64, seed uint64) [2]float64 {
	if isShare(xs, ys) && isShare(xs0, ys0) {
		return Newcombe(xs, xs0)
	}
	return Interval(len(xs), seed, func(_ int, weight []float64) float64 {
		return weightedRatio(xs, ys, weight) - weightedRatio(xs0, ys0, weight)
	})
}

// isShare reports whether sum(xs)/sum(ys) is a share of units: every x is 0 or 1, and ys is nil.
func isShare(xs, ys []float64) bool {
	return ys == nil && !slices.ContainsFunc(xs, func(x float64) bool { return x != 0 && x != 1 })
}

// weightedRatio returns sum(w*xs)/sum(w*ys); nil ys are ones.
func weightedRatio(xs, ys, weight []float64) float64 {
	var sum, of float64
	for i, w := range weight {
		sum += w * xs[i]
		if ys == nil {
			of += w
		} else {
			of += w * ys[i]
		}
	}
	return sum / of
}

// z975 is the 97.5th percentile of the normal distribution.
const z975 = 1.959963984540054

// Wilson returns the 95 % interval of a share of k in n (Wilson 1927), within 0 and 1. Unlike the
// bootstrap's it has a width where k is 0 or n. Both ends are NaN if n < 2: for one unit it would
// be 0.2 to 1, or 0 to 0.8.
func Wilson(k, n int) [2]float64 {
	if n < 2 {
		return [2]float64{math.NaN(), math.NaN()}
	}
	p, N := float64(k)/float64(n), float64(n)
	centre := (p + z975*z975/(2*N)) / (1 + z975*z975/N)
	half := z975 / (1 + z975*z975/N) * math.Sqrt(p*(1-p)/N+z975*z975/(4*N*N))
	return [2]float64{max(0, centre-half), min(1, centre+half)}
}

// Newcombe returns the 95 % interval of the share of ones in xs minus the share in ys, of the same
// units: Wilson's intervals of both, combined with the correlation of the units (Newcombe 1998,
// "Improved confidence intervals for the difference between binomial proportions based on paired
// data", method 10). Unlike the bootstrap's it has a width where all units differ alike. Both ends
// are NaN if there are fewer than two units.
func Newcombe(xs, ys []float64) [2]float64 {
	var both, onlyX, onlyY, neither float64
	for i, x := range xs {
		switch y := ys[i]; {
		case x == 1 && y == 1:
			both++
		case x == 1:
			onlyX++
		case y == 1:
			onlyY++
		default:
			neither++
		}
	}
	n := float64(len(xs))
	phi := 0.0
	if margins := (both + onlyX) * (onlyY + neither) * (both + onlyY) *
		(onlyX + neither); margins > 0 {
		cross := both*neither - onlyX*onlyY
		if cross > 0 {
			cross = max(cross-n/2, 0) // the correction for continuity of method 10
		}
		phi = cross / math.Sqrt(margins)
	}
	px, py := (both+onlyX)/n, (both+onlyY)/n
	wx, wy := Wilson(int(both+onlyX), len(xs)), Wilson(int(both+onlyY), len(xs))
	half := func(a, b float64) float64 { return math.Sqrt(max(0, a*a-2*phi*a*b+b*b)) }
	d := px - py
	return [2]float64{d - half(px-wx[0], wy[1]-py), d + half(wx[1]-px, py-wy[0])}
}

// Jackknife returns the 95 % interval of a statistic from whole, its value over all units, and
// without, its values with each unit left out: whole plus and minus 1.96 standard errors, with se^2
// = (n-1)/n sum (x_i - mean x)^2 (Efron and Tibshirani 1993, section 11.2). It serves where a
// bootstrap fails: a statistic that counts different items takes a unit drawn twice for a
// repetition. Both ends are NaN if there are fewer than two units, or if no unit makes a
// difference.
func Jackknife(whole float64, without []float64) [2]float64 {
	n := float64(len(without))
	if n < 2 {
		return [2]float64{math.NaN(), math.NaN()}
	}
	mean, sum := 0.0, 0.0
	for _, x := range without {
		mean += x / n
	}
	for _, x := range without {
		sum += (x - mean) * (x - mean)
	}
	half := z975 * math.Sqrt((n-1)/n*sum)
	if half <= 1e-12*math.Abs(whole) { // rounding alone
		return [2]float64{math.NaN(), math.NaN()}
	}
	return [2]float64{whole - half, whole + half}
}
