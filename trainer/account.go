package trainer

import (
	"math"
	"slices"
	"time"

	"gad/internal/compute"
	"gad/model"
	"gad/trainer/config"
)

// performance adds the metrics of speed and memory to m. w is the step's work, seconds its
// duration.
func (t *Trainer) performance(m Metrics, w work, seconds float64) {
	m["timing_s/step"] = seconds
	// the checkpoint after the step before: a step's line is written before its checkpoint
	if t.meter.saveTime > 0 {
		m["timing_s/save"], t.meter.saveTime = t.meter.saveTime, 0
	}
	m["perf/tokens_per_s"] = float64(w.tokens) / seconds
	m["perf/tflops"] = w.flops / seconds / 1e12
	if t.meter.peak > 0 {
		m["perf/mfu"] = w.flops / seconds / t.meter.peak
	}
	t.countFastPaths(m)
	_, peak := t.be.Memory()
	m["perf/mem_peak_bytes"] = float64(peak)
	if t.ranks.Size() > 1 {
		was, now := t.meter.traffic, t.ranks.Traffic()
		m["timing_s/ranks"] = (now.Sum + now.Gather - was.Sum - was.Gather).Seconds()
		m["perf/sent_bytes"] =
			float64(now.SumBytes + now.GatherBytes - was.SumBytes - was.GatherBytes)
		t.meter.traffic = now
	}
}

// countFastPaths adds to m how often the backend took its fast paths, and warns once of products
// that it could not compute that way.
func (t *Trainer) countFastPaths(m Metrics) {
	all, counted := compute.CountsOf(t.be)
	if !counted {
		return
	}
	step := all.Since(t.meter.counts)
	m["perf/declined_products"] = float64(step.Declined)
	if step.Repeats > 0 {
		m["perf/replayed_frac"] = float64(step.Replayed) / float64(step.Repeats)
	}
	if step.Declined > 0 && t.meter.counts.Declined == 0 {
		t.log.Warn(all.Warning())
	}
	t.meter.counts = all
}

// work counts a step's tokens and the floating-point operations that they need.
type work struct {
	tokens int
	flops  float64
}

// meter holds the baselines from which a step's speed is computed.
type meter struct {
	peak     float64        // floating-point operations a second; the denominator of perf/mfu
	traffic  model.Traffic  // of ranks, at the end of the last step
	counts   compute.Counts // of the backend, at the end of the last step
	saveTime float64        // seconds of a save that no step has reported yet
}

// count returns the work of the step just taken, with the metrics m: the passes of the stage's list
// whose part has run.
func (t *Trainer) count(m Metrics) (w work) {
	for _, s := range t.stage.stepSeqs() {
		w.tokens += len(s.IDs)
	}
	for _, x := range t.stage.passes(len(t.train.step)) {
		if _, ran := m["timing_s/"+x.Part]; !ran || x.When == config.Checks && !t.checksOld() {
			continue
		}
		if x.Network != config.Teacher { // all but a teacher have the student's shape
			w.flops += t.passFLOPs(x, t.actor.Model().Config(), t.stage.passSeqs(x))
			continue
		}
		for _, n := range t.stage.networks() {
			if n.of == config.Teacher {
				w.flops += t.passFLOPs(x, n.model.Config(), n.reads)
			}
		}
	}
	return w
}

// passFLOPs returns the operations of a pass of seqs through a network of shape c.
func (t *Trainer) passFLOPs(x config.Pass, c model.Config, seqs []model.Seq) (flops float64) {
	times, head := t.cfg.Forwards(x), x.Network != config.Discriminator
	for _, s := range model.Segments(seqs) {
		n := float64(s.Tokens)
		flops += times * n * c.FLOPsPerToken(float64(s.Before)+n/2, head)
	}
	if heads := t.stage.heads(x); heads > 0 {
		for _, s := range seqs {
			flops += heads * float64(s.Trained()) * c.HeadFLOPs()
		}
	}
	return flops
}

// pickSides returns a pass's sequences: the students', the teachers' or both.
func pickSides(x config.Pass, students, teachers []model.Seq) []model.Seq {
	switch {
	case x.Students == 0:
		return teachers
	case x.Teachers == 0:
		return students
	}
	return slices.Concat(teachers, students)
}

// peakSize and peakMost bound n of the product [n, n] by [n, n] that measurePeak times. Tests,
// which open hundreds of runs of smaller models, set less.
var peakSize, peakMost = 768, 8192

// measurePeak returns the speed of a large matrix product in floating-point operations a second,
// the denominator of perf/mfu. A small product does not saturate the device, so n grows until the
// product takes a millisecond on a GPU, and 0.4 on a CPU: a longer one shares its cores with other
// programs and is slower for it (half as fast at a load of 8), and fills the packing buffers, which
// the CPU backend keeps. A backend that takes 10 ms for a small product is timed by that.
func measurePeak(be compute.Backend) (peak float64, err error) {
	least, long := peakSize, time.Millisecond
	if be.Overhead() == 0 {
		least, long = peakSize/2, 400*time.Microsecond
	}
	for n := peakSize / 4; n <= peakMost; n *= 2 {
		best, err := timeProduct(be, n)
		if err != nil {
			return 0, err
		}
		peak = 2 * math.Pow(float64(n), 3) / best.Seconds()
		if best > 10*time.Millisecond || n >= least && best > long {
			break
		}
	}
	return peak, nil
}

// timeProduct returns the shortest of four times of a product of two matrices [n, n].
func timeProduct(be compute.Backend, n int) (best time.Duration, err error) {
	var t [3]compute.Tensor
	for i := range t {
		if t[i], err = be.Alloc("peak measurement", compute.Narrow, n*n); err != nil {
			return 0, err
		}
		defer be.Free(t[i])
	}
	w := &compute.Param{Name: "peak measurement", Shape: []int{n, n}, Rows: n, Cols: n, W: t[0]}
	be.Refresh(w)
	best = math.MaxInt64
	for range 4 {
		start := time.Now()
		be.Linear(t[1], t[2], w, nil, false)
		if err := be.Sync(); err != nil {
			return 0, err
		}
		best = min(best, time.Since(start))
	}
	return best, nil
}
