package study

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"

	"gad/internal/report"
)

// Interval is a mean over seeds and its 95 % interval by Student's t:
//
//	mean -/+ t(0.975, n-1) * s / sqrt(n),  s^2 = sum (x - mean)^2 / (n - 1)
//
// One seed has no interval. The interval covers the choice of seeds with the same data and recipe;
// with few seeds it assumes that the values are about normal.
type Interval struct {
	Seeds  int      `json:"seeds"`
	Mean   float64  `json:"mean"`
	Low    *float64 `json:"low,omitempty"`
	High   *float64 `json:"high,omitempty"`
	Values []Value  `json:"values"`
}

// Value is a measure of one seed.
type Value struct {
	Seed  uint64  `json:"seed"`
	Value float64 `json:"value"`
}

// confidence is the share of intervals that hold the true mean.
const confidence = 0.95

// interval returns the mean over seeds with its interval, nil for no values.
func interval(values []Value) *Interval {
	if len(values) == 0 {
		return nil
	}
	x := make([]float64, len(values))
	for i, v := range values {
		x[i] = v.Value
	}
	mean, sd := report.Moments(x)
	iv := &Interval{Seeds: len(x), Mean: mean, Values: values}
	if n := float64(len(x)); n > 1 {
		half := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(1-(1-confidence)/2) * sd /
			math.Sqrt(n)
		low, high := mean-half, mean+half
		iv.Low, iv.High = &low, &high
	}
	return iv
}

// Paired is the difference of two arms, paired by seed (paired t): arms of one seed share the
// student and the order of the data.
type Paired struct {
	Interval
	Wins *int `json:"wins,omitempty"` // seeds in which the first arm is better; nil for a measure without a better direction
}

// pairedDifference returns a - b over the seeds that both have, nil if they have none in common.
// better is 1 where more is better, -1 where less is, 0 where neither.
func pairedDifference(a, b *Interval, better int) *Paired {
	if a == nil || b == nil {
		return nil
	}
	var diff []Value
	wins := 0
	for _, x := range a.Values {
		for _, y := range b.Values {
			if x.Seed == y.Seed {
				d := x.Value - y.Value
				diff = append(diff, Value{x.Seed, d})
				if d*float64(better) > 0 {
					wins++
				}
			}
		}
	}
	iv := interval(diff)
	if iv == nil {
		return nil
	}
	p := &Paired{Interval: *iv}
	if better != 0 {
		p.Wins = &wins
	}
	return p
}
