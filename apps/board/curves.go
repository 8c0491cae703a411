package board

import (
	"math"
	"strconv"
)

// Range is a range of steps, both ends included. 0 stands for the first step of all runs, or the
// last.
type Range struct{ From, To int }

// Curves is all metrics of all runs over a range of steps, downsampled.
type Curves struct {
	From   int                `json:"from"`
	To     int                `json:"to"`
	Points int                `json:"points"` // most points of a curve; 0: every step
	Width  int                `json:"width"`  // steps of a bucket
	Runs   []map[string]Curve `json:"runs"`   // by run, by metric
	Axes   []Axis             `json:"axes"`   // by run
}

// Curve is a metric of a run. A point stands for a bucket of Width steps. All curves have the same
// buckets, so that runs can be compared.
type Curve struct {
	Step []int     `json:"step"` // the bucket's last step with a value
	Mean []float64 `json:"mean"` // mean of the finite values
	Min  []float64 `json:"min,omitempty"`
	Max  []float64 `json:"max,omitempty"` // absent where each point is one step
	N    []int     `json:"n,omitempty"`   // number of finite values

	NotFinite []int `json:"not_finite,omitempty"` // the first steps at which the value was NaN or infinite
}

// mostNotFinite bounds the length of Curve.NotFinite.
const mostNotFinite = 100

// series returns all metrics over a range, downsampled to at most points each.
func (b *Board) series(in Range, points int) Curves {
	out := Curves{From: in.From, To: in.To, Points: points, Width: 1, Runs: []map[string]Curve{},
		Axes: b.axes(points)}
	first, last := math.MaxInt, 0
	for _, r := range b.runs {
		if n := len(r.curves.Steps); n > 0 {
			first, last = min(first, r.curves.Steps[0]), max(last, r.curves.Steps[n-1])
		}
	}
	if last == 0 {
		first = 0
	}
	if out.From <= 0 {
		out.From = first
	}
	if out.To <= 0 {
		out.To = last
	}
	if steps := out.To - out.From + 1; points > 0 && steps > points {
		out.Width = (steps + points - 1) / points
	}
	for _, r := range b.runs {
		curves := make(map[string]Curve, len(r.curves.Names))
		for _, name := range r.curves.Names {
			if c := r.curves.Get(name); len(c.X) > 0 {
				curves[name] = thin(r.curves.Steps, c.At, c.X, out)
			}
		}
		out.Runs = append(out.Runs, curves)
	}
	return out
}

// thin returns one curve. The values x at the steps at of a bucket become mean, minimum and
// maximum.
func thin(steps []int, at []int32, x []float64, in Curves) Curve {
	c := Curve{Step: []int{}, Mean: []float64{}}
	bucket, n := -1, 0
	sum, least, most := 0.0, 0.0, 0.0
	step := 0
	flush := func() {
		if n == 0 {
			return
		}
		c.Step = append(c.Step, step)
		if in.Width == 1 {
			mean := sum
			if in.Points > 0 {
				mean = short(mean)
			}
			c.Mean = append(c.Mean, mean)
			return
		}
		mean := sum / float64(n)
		if math.IsInf(mean, 0) { // the sum has overflowed
			mean = least/2 + most/2
		}
		c.Mean = append(c.Mean, short(mean))
		c.Min, c.Max, c.N = append(c.Min, short(least)), append(c.Max, short(most)), append(c.N, n)
	}
	for i, a := range at {
		s := steps[a]
		if s < in.From {
			continue
		}
		if s > in.To {
			break
		}
		if math.IsNaN(x[i]) || math.IsInf(x[i], 0) {
			if len(c.NotFinite) < mostNotFinite {
				c.NotFinite = append(c.NotFinite, s)
			}
			continue
		}
		if k := (s - in.From) / in.Width; k != bucket {
			flush()
			bucket, n, sum, least, most = k, 0, 0, x[i], x[i]
		}
		step, n, sum, least, most = s, n+1, sum+x[i], min(least, x[i]), max(most, x[i])
	}
	flush()
	return c
}

// short returns x with 7 significant digits: more than a chart shows, in half the bytes.
func short(x float64) float64 {
	if x == 0 || x == math.Trunc(x) && math.Abs(x) < 1e7 {
		return x
	}
	var b [32]byte
	y, err := strconv.ParseFloat(string(strconv.AppendFloat(b[:0], x, 'g', 7, 64)), 64)
	if err != nil { // the rounded value overflows
		return x
	}
	return y
}
