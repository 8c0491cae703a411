package computetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"gad/internal/compute"
)

// Roof is what a machine can do at the most, as measured: multiply-adds in matrix
// products, counted as two operations, and bytes of memory read and written, both
// a second.
type Roof struct{ FLOPS, Bytes float64 }

// MeasureRoof measures a backend: a square Narrow product of n rows and columns
// of random numbers, and a copy of 8*n*n floats; each the best of some runs.
func MeasureRoof(b compute.Backend, n int) (Roof, error) {
	var r Roof
	x, err := Random(b, compute.Narrow, n*n)
	y, err1 := b.Alloc("product", compute.Narrow, n*n)
	w, err2 := Random(b, compute.Narrow, n*n)
	from, err3 := b.Alloc("copied", compute.Wide, 8*n*n)
	to, err4 := b.Alloc("copy", compute.Wide, 8*n*n)
	if err := errors.Join(err, err1, err2, err3, err4); err != nil {
		return r, fmt.Errorf("computetest: the machine's limits: %w", err)
	}
	p := &compute.Param{Name: "product", Shape: []int{n, n}, Rows: n, Cols: n, W: w}
	b.Refresh(p)
	product := func() { b.Linear(y, x, p, nil, false) }
	copied := func() { b.Copy(to, from) }
	for _, m := range []struct {
		op   func()
		work float64
		into *float64
	}{{product, 2 * float64(n) * float64(n) * float64(n), &r.FLOPS}, {copied, 2 * 4 * float64(from.Len()), &r.Bytes}} {
		for range 6 {
			began := time.Now()
			for range 10 {
				m.op()
			}
			if err := b.Sync(); err != nil {
				return r, fmt.Errorf("computetest: the machine's limits: %w", err)
			}
			*m.into = max(*m.into, 10*m.work/time.Since(began).Seconds())
		}
	}
	for _, t := range []compute.Tensor{x, y, w, from, to} {
		b.Free(t)
	}
	return r, nil
}

// Report says, as metrics of a benchmark, how fast an operation of so many
// multiply-adds (times two) and bytes ran in so many seconds: TFLOP/s, GB/s, and
// the share of the roof, which is the time that the machine needs at the least
// for the larger of both over that taken.
func (r Roof) Report(b *testing.B, flops, bytes, seconds float64) {
	b.ReportMetric(flops/seconds/1e12, "TFLOP/s")
	b.ReportMetric(bytes/seconds/1e9, "GB/s")
	b.ReportMetric(100*max(flops/r.FLOPS, bytes/r.Bytes)/seconds, "%roof")
}

// Limits reports r itself, as a benchmark among those that are held against it.
func (r Roof) Limits(b *testing.B) {
	for b.Loop() { // measured already
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(r.FLOPS/1e12, "TFLOP/s")
	b.ReportMetric(r.Bytes/1e9, "GB/s")
	b.ReportMetric(100, "%roof")
}

// Random is n normal elements of standard deviation 0.1; after the first million
// they repeat. A GPU multiplies zeros faster.
func Random(b compute.Backend, c compute.Class, n int) (compute.Tensor, error) {
	t, err := b.Alloc("random numbers", c, n)
	if err != nil {
		return t, err
	}
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	part := make([]float32, min(n, 1<<20))
	for i := range part {
		part[i] = float32(0.1 * rng.NormFloat64())
	}
	b.Upload(t.Slice(0, len(part)), part)
	for have := len(part); have < n; have *= 2 {
		b.Copy(t.Slice(have, min(n, 2*have)), t.Slice(0, min(n-have, have)))
	}
	return t, nil
}
