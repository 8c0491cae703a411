package trainer

import (
	"math"
	"slices"
	"time"

	"gad/internal/compute"
	"gad/model"
	"gad/trainer/encode"
)

// performance adds speed and memory. work is what the step computed.
func (t *Trainer) performance(m Metrics, w work, seconds float64) {
	m["timing_s/step"] = seconds
	if t.saveTime > 0 { // the checkpoint after the step before: a step's line is written before its checkpoint
		m["timing_s/save"], t.saveTime = t.saveTime, 0
	}
	m["perf/tokens_per_s"] = float64(w.tokens) / seconds
	m["perf/tflops"] = w.flops / seconds / 1e12
	if t.peak > 0 {
		m["perf/mfu"] = w.flops / seconds / t.peak
	}
	t.fastWays(m)
	_, peak := t.be.Memory()
	m["perf/mem_peak_bytes"] = float64(peak)
	if t.ranks.Size() > 1 {
		now := t.ranks.Traffic()
		m["timing_s/ranks"] = (now.Sum + now.Gather - t.traffic.Sum - t.traffic.Gather).Seconds()
		m["perf/sent_bytes"] = float64(now.SumBytes + now.GatherBytes - t.traffic.SumBytes - t.traffic.GatherBytes)
		t.traffic = now
	}
}

// fastWays adds how often the backend could compute in its fast ways, and warns once
// of products that it could not.
func (t *Trainer) fastWays(m Metrics) {
	all, counted := compute.CountsOf(t.be)
	if !counted {
		return
	}
	step := all.Since(t.counts)
	m["perf/declined_products"] = float64(step.Declined)
	if step.Repeats > 0 {
		m["perf/replayed_frac"] = float64(step.Replayed) / float64(step.Repeats)
	}
	if step.Declined > 0 && t.counts.Declined == 0 {
		t.log.Warn(all.Warning())
	}
	t.counts = all
}

// work counts a step's tokens and the floating-point operations that they need.
type work struct {
	tokens int
	flops  float64
}

// add counts passes over seqs, a prompt that several of them have once: 1 for a forward
// pass, LoRA.TrainPasses for forward and backward.
func (w *work) add(c model.Config, seqs []model.Seq, passes float64, head bool) {
	for _, s := range model.Segments(seqs) {
		n := float64(s.Tokens)
		w.flops += passes * n * c.FLOPsPerToken(float64(s.Before)+n/2, head)
	}
}

// teacherWork counts a step that learns from the teacher's answers alone.
func (t *Trainer) teacherWork(b *encode.Batch) (w work) {
	for _, s := range b.Teachers {
		w.tokens += len(s.IDs)
	}
	w.add(t.actor.Model().Config(), b.Teachers, t.cfg.Actor.LoRA.TrainPasses(), true)
	return w
}

// stepWork counts a step of the game.
func (t *Trainer) stepWork(r *round) (w work) {
	c, seqs, teachers := t.actor.Model().Config(), r.roll.Seqs, r.batch.Teachers
	both := slices.Concat(teachers, seqs)
	for _, s := range both {
		w.tokens += len(s.IDs)
	}
	forward := 1.0 // rollout
	if r.roll.EntST != nil {
		forward++ // old
	}
	if r.refST != nil {
		forward++
	}
	w.add(c, seqs, forward, true)
	w.add(c, both, t.cfg.Critic.LoRA.TrainPasses()*float64(t.cfg.Critic.PPOEpochs)+t.cfg.ScoredBefore(len(teachers)), false)
	switch {
	case t.criticAlone():
	case t.learnsTeacher():
		w.add(c, teachers, t.cfg.Actor.LoRA.TrainPasses(), true)
	default:
		w.add(c, seqs, t.cfg.Actor.LoRA.TrainPasses()*float64(t.cfg.Actor.PPOEpochs), true)
	}
	return w
}

// measurePeak is the speed of a large matrix product, in floating-point
// operations a second: what perf/mfu is a share of. On a GPU the product is made larger
// until it takes a millisecond: it is not busy with less. A processor is, and what it
// packs a product into is kept.
func measurePeak(be compute.Backend) (peak float64, err error) {
	for n := 768; n <= 8192; n *= 2 {
		best, err := timeProduct(be, n)
		if err != nil {
			return 0, err
		}
		peak = 2 * math.Pow(float64(n), 3) / best.Seconds()
		if best > time.Millisecond || be.Overhead() == 0 {
			break
		}
	}
	return peak, nil
}

// timeProduct is the shortest time of a product of two matrices [n, n].
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
