package textmetrics

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"gad/internal/philox"
)

// replicates are the draws of a bootstrap: the ends of a 95 % interval then rest on 25 draws each
// side.
const replicates = 1000

// Interval is the 95 % bootstrap interval of a statistic over n units, say prompts: in each
// replicate n units are drawn with replacement, statistic is told how often each was drawn, and the
// interval goes from the 2.5th to the 97.5th percentile of what it answers (Efron and Tibshirani
// 1993, "An Introduction to the Bootstrap", section 13.3). The draws are a function of seed.
// Replicates for which the statistic is NaN are left out. Both ends are NaN when all are, when n <
// 2, and when all replicates are equal: units that do not differ say nothing about others.
// statistic must not keep weight, and is called from several goroutines.
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

// RatioInterval is the Interval of sum(xs)/sum(ys), unit by unit; nil ys are ones. For a share,
// which is a mean of zeros and ones, it is Wilson's.
func RatioInterval(xs, ys []float64, seed uint64) [2]float64 {
	if isShare(xs, ys) {
		k := 0
		for _, x := range xs {
			k += int(x)
		}
		return Wilson(k, len(xs))
	}
	return Interval(len(xs), seed,
		func(_ int, weight []float64) float64 { return weighted(xs, ys, weight) })
}

// RatioDifference is the Interval of sum(xs)/sum(ys) - sum(xs0)/sum(ys0) of the same units: each
// draw takes the same units of both. For two shares it is Newcombe's.
func RatioDifference(xs, ys, xs0, ys0 []float64, seed uint64) [2]float64 {
	if isShare(xs, ys) && isShare(xs0, ys0) {
		return Newcombe(xs, xs0)
	}
	return Interval(len(xs), seed, func(_ int, weight []float64) float64 {
		return weighted(xs, ys, weight) - weighted(xs0, ys0, weight)
	})
}

// isShare reports whether sum(xs)/sum(ys) is a share of units.
func isShare(xs, ys []float64) bool {
	return ys == nil && !slices.ContainsFunc(xs, func(x float64) bool { return x != 0 && x != 1 })
}

// weighted is sum(w*xs)/sum(w*ys); nil ys are ones.
func weighted(xs, ys, weight []float64) float64 {
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

// Wilson is the 95 % interval of a share of k in n (Wilson 1927): unlike the bootstrap's it says
// something where k is 0 or n. It lies within 0 and 1. Both ends are NaN when n < 2: of one unit it
// would be 0.2 to 1, or 0 to 0.8.
func Wilson(k, n int) [2]float64 {
	if n < 2 {
		return [2]float64{math.NaN(), math.NaN()}
	}
	p, N := float64(k)/float64(n), float64(n)
	centre := (p + z975*z975/(2*N)) / (1 + z975*z975/N)
	half := z975 / (1 + z975*z975/N) * math.Sqrt(p*(1-p)/N+z975*z975/(4*N*N))
	return [2]float64{max(0, centre-half), min(1, centre+half)}
}

// Newcombe is the 95 % interval of the share of ones in xs minus that in ys, of the same units:
// Wilson's intervals of both, combined with the correlation of the units (Newcombe 1998, "Improved
// confidence intervals for the difference between binomial proportions based on paired data",
// method 10). Unlike the bootstrap's it says something where all units differ alike. Both ends are
// NaN when there are fewer than two units.
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

// Jackknife is the 95 % interval of a statistic from its value over all units and its values with
// each unit left out: the value plus and minus 1.96 standard errors, with se^2 = (n-1)/n sum (x_i -
// mean x)^2 (Efron and Tibshirani 1993, section 11.2). It is for what a bootstrap cannot do: a
// statistic that counts different things sees a unit that is drawn twice as a repetition. Both ends
// are NaN when there are fewer than two units, or when no unit makes a difference.
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
