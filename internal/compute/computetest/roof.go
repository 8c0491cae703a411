package computetest

import (
	"testing"

	"gad/internal/compute"
)

// Roof is compute.Roof, for benchmarks.
type Roof compute.Roof

// MeasureRoof is compute.MeasureRoof.
func MeasureRoof(b compute.Backend, n int) (Roof, error) {
	r, err := compute.MeasureRoof(b, n)
	return Roof(r), err
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
