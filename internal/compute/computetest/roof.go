package computetest

import (
	"testing"

	"gad/internal/compute"
)

// ReportRoof reports the speed of an operation as metrics of a benchmark: TFLOP/s, GB/s and
// the share of the machine's limits r. The operation has so many floating-point operations
// and bytes and took so many seconds; the share is the least time for either by r, divided
// by the time taken.
func ReportRoof(b *testing.B, r compute.Roof, flops, bytes, seconds float64) {
	b.ReportMetric(flops/seconds/1e12, "TFLOP/s")
	b.ReportMetric(bytes/seconds/1e9, "GB/s")
	b.ReportMetric(100*max(flops/r.FLOPS, bytes/r.Bytes)/seconds, "%roof")
}

// Limits reports r itself as a benchmark, for comparison with the others.
func Limits(b *testing.B, r compute.Roof) {
	for b.Loop() { // r is measured already
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(r.FLOPS/1e12, "TFLOP/s")
	b.ReportMetric(r.Bytes/1e9, "GB/s")
	b.ReportMetric(100, "%roof")
}
