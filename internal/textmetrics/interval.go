package textmetrics

import (
	"math"

	"gad/internal/philox"
)

// replicates are the draws of a bootstrap: the ends of a 95 % interval then rest on 25 draws each side.
const replicates = 1000

// Interval is the 95 % bootstrap interval of a statistic over n units, say prompts: in each replicate n units are drawn
// with replacement, statistic is told how often each was drawn, and the interval goes from the 2.5th to the 97.5th
// percentile of what it answers (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3). The draws are
// a function of seed. Replicates for which the statistic is NaN are left out; both ends are NaN when all are, or n < 1.
// statistic must not keep weight.
func Interval(n int, seed uint64, statistic func(replicate int, weight []float64) float64) [2]float64 {
	nowhere := [2]float64{math.NaN(), math.NaN()}
	if n < 1 {
		return nowhere
	}
	var got []float64
	weight := make([]float64, n)
	for r := range replicates {
		clear(weight)
		for i := range n {
			weight[philox.IntN(n, seed, philox.Bootstrap, uint64(r), uint64(i), 0)]++
		}
		if x := statistic(r, weight); !math.IsNaN(x) {
			got = append(got, x)
		}
	}
	if len(got) == 0 {
		return nowhere
	}
	ends := Percentiles(got, 2.5, 97.5)
	return [2]float64{ends[0], ends[1]}
}

// MeanInterval is the Interval of the mean of xs.
func MeanInterval(xs []float64, seed uint64) [2]float64 {
	return RatioInterval(xs, nil, seed)
}

// RatioInterval is the Interval of sum(xs)/sum(ys), unit by unit; nil ys are ones.
func RatioInterval(xs, ys []float64, seed uint64) [2]float64 {
	return Interval(len(xs), seed, func(_ int, weight []float64) float64 {
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
	})
}

// z975 is the 97.5th percentile of the normal distribution.
const z975 = 1.959963984540054

// Wilson is the 95 % interval of a share of k in n (Wilson 1927): unlike the bootstrap's it says something where k is 0
// or n. It lies within 0 and 1; both ends are NaN when n < 1.
func Wilson(k, n int) [2]float64 {
	if n < 1 {
		return [2]float64{math.NaN(), math.NaN()}
	}
	p, N := float64(k)/float64(n), float64(n)
	centre := (p + z975*z975/(2*N)) / (1 + z975*z975/N)
	half := z975 / (1 + z975*z975/N) * math.Sqrt(p*(1-p)/N+z975*z975/(4*N*N))
	return [2]float64{max(0, centre-half), min(1, centre+half)}
}

// Jackknife is the 95 % interval of a statistic from its value over all units and its values with each unit left out:
// the value plus and minus 1.96 standard errors, with se^2 = (n-1)/n sum (x_i - mean x)^2 (Efron and Tibshirani 1993,
// section 11.2). It is for what a bootstrap cannot do: a statistic that counts different things sees a unit that is drawn
// twice as a repetition. Both ends are NaN when there are fewer than two units.
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
	return [2]float64{whole - half, whole + half}
}
