package saved

import (
	"gad/checkpoint"
	"gad/internal/report"
	"gad/internal/vfs"
)

// Cost is the compute and time of a run so far.
type Cost struct {
	Steps   int
	FLOP    float64 // of its steps, by the model's shape; without evaluations
	Seconds float64 // of its steps, without validations
}

// CostOf sums the metrics of a run. The operations of a step are perf/tflops times timing_s/step.
func CostOf(fsys checkpoint.FS, run string) (c Cost, err error) {
	fsys = vfs.OrDisk(fsys)
	rows, err := report.ReadMetrics(fsys, run)
	if err != nil {
		return c, err
	}
	for _, r := range rows {
		seconds := r.Values["timing_s/step"]
		c.Steps++
		c.FLOP += r.Values["perf/tflops"] * 1e12 * seconds
		c.Seconds += seconds - r.Values["timing_s/val"]
	}
	return c, nil
}
