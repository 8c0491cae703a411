package report

import (
	"math"
	"slices"
)

// Moments returns the mean and the standard deviation (n - 1) of xs; 0 for too few values.
//
// Metrics have these bits. Those of a loss are algos' own, whose order of sums is a contract.
func Moments(xs []float64) (mean, sd float64) {
	for _, x := range xs {
		mean += x / float64(len(xs))
	}
	for _, x := range xs {
		sd += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(sd / max(float64(len(xs)-1), 1))
}

// Varies reports whether xs has two different values. The standard deviation of equal ones can be a
// rounding error instead of 0.
func Varies(xs []float64) bool {
	return slices.ContainsFunc(xs, func(x float64) bool { return x != xs[0] })
}
