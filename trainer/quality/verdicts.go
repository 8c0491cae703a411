package quality

import (
	"math"

	"gad/internal/philox"
	"gad/internal/textmetrics"
)

// verdicts holds, by seed and row, 1 where the discriminator of that seed ranks the row's pair
// rightly, 0 where not, one half where the scores are equal; NaN where the row was not tested.
type verdicts [][]float64

// mean returns the accuracy, mean over the seeds with any tested row.
func (v verdicts) mean() float64 {
	weight := make([]float64, v.rows())
	for p := range weight {
		weight[p] = 1
	}
	return v.weightedMean(weight, indices(len(v)))
}

// rows returns the number of rows.
func (v verdicts) rows() int {
	if len(v) == 0 {
		return 0
	}
	return len(v[0])
}

// weightedMean returns the accuracy with rows weighted, mean over the given seeds.
func (v verdicts) weightedMean(weight []float64, seeds []int) float64 {
	var sum, n float64
	for _, k := range seeds {
		var right, of float64
		for p, x := range v[k] {
			if !math.IsNaN(x) {
				right += weight[p] * x
				of += weight[p]
			}
		}
		if of > 0 {
			sum += right / of
			n++
		}
	}
	return sum / n
}

// interval returns the 95 % bootstrap interval of the mean. Seeds and prompts are drawn
// independently, since every seed is tested on the same prompts (Owen 2007, "The pigeonhole
// bootstrap"). If all verdicts are right, or all wrong, it is Wilson's interval over the pairs.
func (v verdicts) interval(seed uint64) [2]float64 {
	if k, n := v.unanimous(); n > 0 {
		return textmetrics.Wilson(k, n)
	}
	return textmetrics.Interval(v.rows(), seed, func(replicate int, weight []float64) float64 {
		drawn := make([]int, len(v))
		for i := range drawn {
			drawn[i] = philox.IntN(len(v), seed, philox.Bootstrap, uint64(replicate), uint64(i), 1)
		}
		return v.weightedMean(weight, drawn)
	})
}

// unanimous returns the number n of pairs that were tested, by one seed or several, and how many of
// them are right, if all verdicts are right or all are wrong; otherwise n is 0.
func (v verdicts) unanimous() (right, n int) {
	all := math.NaN()
	for p := range v.rows() {
		asked := false
		for _, verdictP := range v {
			switch x := verdictP[p]; {
			case math.IsNaN(x):
				continue
			case x != 0 && x != 1, !math.IsNaN(all) && x != all:
				return 0, 0
			default:
				all, asked = x, true
			}
		}
		if asked {
			n++
		}
	}
	if all == 1 {
		right = n
	}
	return right, n
}

// difference returns the 95 % interval of the difference of two means, from the same draws of
// prompts for both. The seeds are paired too: seed k begins alike in both.
func (v verdicts) difference(other verdicts, seed uint64) [2]float64 {
	if len(v) == 0 || len(v) != len(other) || v.rows() != other.rows() {
		return [2]float64{math.NaN(), math.NaN()}
	}
	return textmetrics.Interval(v.rows(), seed, func(replicate int, weight []float64) float64 {
		drawn := make([]int, len(v))
		for i := range drawn {
			drawn[i] = philox.IntN(len(v), seed, philox.Bootstrap, uint64(replicate), uint64(i), 1)
		}
		return v.weightedMean(weight, drawn) - other.weightedMean(weight, drawn)
	})
}
