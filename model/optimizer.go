package model

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gad/internal/compute"
	"gad/internal/safetensors"
	"gad/model/internal/files"
)

// AdamWConfig has the settings of NewOptimizer.
type AdamWConfig struct {
	LR           Schedule // learning rate of each optimizer step
	Beta1, Beta2 float64  // decay of the moments; 0.9 and 0.999 are usual
	Eps          float64  // added to the root of the second moment; 1e-8 is usual
	WeightDecay  float64  // decoupled; on matrices, not on norms and biases
	ClipNorm     float64  // largest norm of all gradients together; 0 is no clip
	Moments8     bool     // keep the moments of large matrices in 8 bits (compute.Moments)
	Offload      bool     // keep the moments in the host's memory
}

// coded reports whether p's moments are in 8 bits if AdamWConfig.Moments8 is set. Moments of
// embeddings and the head, whose rows are updated at very different rates, and of small tensors
// stay float32 (Dettmers et al., arXiv 2110.02861, section 2.3).
func coded(p *compute.Param) bool {
	return len(p.Shape) == 2 && p.Len() >= 4096 && p.Name != files.EmbedName &&
		p.Name != files.HeadName && p.Name != files.ScoreName
}

// Optimizer is AdamW (arXiv 1711.05101) over a model's parameters.
type Optimizer struct {
	m       *Model
	c       AdamWConfig
	steps   int              // updates made
	first   int              // steps before the first of c.LR
	skipped int              // updates skipped
	gs      []compute.Tensor // buffer of join: the gradients

	// If the state is divided among ranks (Options.StatesOver):
	ranks *Ranks
	cuts  []int            // boundaries of the ranks' parts in the flat order of the gradients
	parts []part           // [parameters] this rank's parts; whole parameters if not divided
	own   []*compute.Param // buffer of ownParams

	blocks compute.BlockSums // sums the squares of the parts; nil: each rank sums all of them
}

// NewOptimizer returns an optimizer of m with zeroed moments, whose memory belongs to m.
func NewOptimizer(m *Model, c AdamWConfig) (*Optimizer, error) {
	if m == nil {
		return nil, errors.New("model: optimizer: the model is nil: load one with Trainable")
	}
	if !m.opt.Trainable {
		return nil,
			errors.New("model: optimizer: a frozen model has no gradients: load it with Trainable")
	}
	if !(c.Beta1 >= 0 && c.Beta1 < 1) || !(c.Beta2 >= 0 && c.Beta2 < 1) ||
		!(c.Eps > 0 && c.Eps < 1) ||
		!(c.WeightDecay >= 0 && c.WeightDecay < 1e3) ||
		!(c.ClipNorm >= 0 && !math.IsInf(c.ClipNorm, 0)) {
		return nil, fmt.Errorf("model: optimizer: %+v: expected betas in [0,1), eps in (0,1), weight decay and clip norm of at least 0", c)
	}
	host := compute.Class(0)
	if c.Offload {
		host = compute.Host
	}
	o := &Optimizer{m: m, c: c, parts: partsOf(m.params, 0, extent(m.params))}
	if r := m.opt.StatesOver; r.Size() > 1 {
		o.ranks, o.cuts = r, cut(m.params, r.Size(), c.Moments8)
		mine := r.Part(r.Rank())
		o.parts = partsOf(m.params, o.cuts[mine], o.cuts[mine+1])
		// tested here, once: the test may allocate
		if by, ok := m.be.(compute.BlockSums); ok && partUnit%by.SumBlock() == 0 {
			o.blocks = by
		}
	}
	if err := m.take(partNeeds(m.params, o.parts, c.Moments8, host)); err != nil {
		return nil, err
	}
	return o, nil
}

// StepStats are the figures of one call of Optimizer.Step.
type StepStats struct {
	GradNorm float64 // global norm of the gradients before clipping
	LR       float64 // learning rate of the step
	Skipped  bool    // the norm was not finite: weights and moments are unchanged
}

// Step updates the weights from the sum of all ranks' gradients, at the learning rate that the
// schedule gives the step, and zeroes the gradients. Gradients whose norm is above ClipNorm are
// multiplied by ClipNorm/(norm+1e-6).
func (o *Optimizer) Step() (st StepStats, err error) {
	st.LR = o.c.LR.At(o.steps - o.first + 1)
	st.GradNorm, st.Skipped, err = o.step(st.LR)
	return st, err
}

// ScheduleFrom starts the learning rate's schedule behind so many optimizer steps, which earlier
// stages took and whose state was loaded.
func (o *Optimizer) ScheduleFrom(steps int) { o.first = steps }

// step updates the weights at the learning rate lr; see Step.
func (o *Optimizer) step(lr float64) (gradNorm float64, skipped bool, err error) {
	if !(lr >= 0 && !math.IsInf(lr, 0)) {
		return 0, false, fmt.Errorf(
			"model: optimizer: learning rate %g: expected a finite number of at least 0", lr)
	}
	squares, err := o.join()
	if err != nil {
		return 0, false, err
	}
	gradNorm = math.Sqrt(squares)
	if math.IsNaN(gradNorm) || math.IsInf(gradNorm, 0) {
		o.skipped++
		return gradNorm, true, o.ZeroGrad()
	}
	scale := 1.0
	if o.c.ClipNorm > 0 {
		scale = min(1, o.c.ClipNorm/(gradNorm+1e-6))
	}
	o.steps++
	o.m.writes++
	o.m.be.AdamW(o.ownParams(),
		compute.AdamW{LR: lr, Beta1: o.c.Beta1, Beta2: o.c.Beta2, Eps: o.c.Eps,
			Decay: o.c.WeightDecay, GradScale: scale, Step: o.steps})
	if o.Sharded() {
		if err := o.gatherWeights(); err != nil {
			return 0, false, err
		}
	}
	return gradNorm, false, o.ZeroGrad()
}

// ZeroGrad zeroes the gradients, for use after an error in a backward pass.
func (o *Optimizer) ZeroGrad() error {
	o.m.grads.zero(o.m)
	if err := o.m.be.Sync(); err != nil {
		return fmt.Errorf("model: optimizer: %w", err)
	}
	return nil
}

// Steps returns the number of updates made.
func (o *Optimizer) Steps() int { return o.steps }

// Skipped returns the number of updates left out because of a non-finite gradient.
func (o *Optimizer) Skipped() int { return o.skipped }

// optimizerFormat is the value of the metadata key "format" of a saved state.
const optimizerFormat = "gad-optimizer-1"

// stateTensor is a tensor of a saved state.
type stateTensor struct {
	name  string
	shape []int
	t     compute.Tensor // this rank's elements, from lo on; if Sharded a part, or none
	lo    int
	dtype safetensors.DType
}

// len returns the number of elements on all ranks together.
func (s stateTensor) len() int {
	n := 1
	for _, d := range s.shape {
		n *= d
	}
	return n
}

// stateTensors returns the tensors of the state of parameter i: the moments "m.<parameter>" and
// "v.<parameter>", in 8 bits as codes, each followed by its scales, "m.scale.<parameter>" and
// "v.scale.<parameter>".
func (o *Optimizer) stateTensors(i int) (list []stateTensor) {
	p, x := o.m.params[i], o.parts[i]
	for _, s := range []struct {
		name     string
		t, scale compute.Tensor
	}{{"m.", x.step.M, x.step.MScale}, {"v.", x.step.V, x.step.VScale}} {
		if !o.c.Moments8 || !coded(p) {
			list = append(list, stateTensor{s.name + p.Name, p.Shape, s.t, x.lo, safetensors.F32})
			continue
		}
		list = append(list, stateTensor{s.name + p.Name, p.Shape, s.t, x.lo, safetensors.U8},
			stateTensor{s.name + "scale." + p.Name, []int{compute.Blocks(p.Len())}, s.scale,
				x.lo / compute.MomentBlock, safetensors.F32})
	}
	return list
}

// Bytes returns the size of the file that Save writes without master weights, headers not counted.
func (o *Optimizer) Bytes() (n int64) {
	for i := range o.m.params {
		for _, s := range o.stateTensors(i) {
			n += int64(s.dtype.Size()) * int64(s.len())
		}
	}
	return n
}

// Save writes the state as one safetensors file: the moments, in float32 or as 8-bit codes with
// their scales, the counts in the metadata and, if master, the weights "w.<parameter>" in float32.
// A model folder of a narrower dtype lacks bits of them: with master weights a resumed run has the
// same bits.
//
// If the state is Sharded, all ranks call Save together, and each writes the whole state; ranks
// without a file pass io.Discard.
func (o *Optimizer) Save(w io.Writer, master bool) error {
	var ts []safetensors.Source
	for i, p := range o.m.params {
		for _, s := range o.stateTensors(i) {
			if o.Sharded() {
				ts = append(ts, o.gatherSource(s))
			} else {
				ts = append(ts, stream(o.m.weight(s.name, s.shape, s.t, s.dtype)))
			}
		}
		if master {
			ts = append(ts, stream(o.m.weight("w."+p.Name, p.Shape, p.W, safetensors.F32)))
		}
	}
	meta := map[string]string{"format": optimizerFormat, "steps": strconv.Itoa(o.steps),
		"skipped": strconv.Itoa(o.skipped)}
	if err := safetensors.Write(w, ts, meta); err != nil {
		return fmt.Errorf("model: optimizer: save: %w", err)
	}
	return nil
}

// Load reads a file that Save wrote for a model of the same parameters, with its master weights if
// it has them. It checks all names, shapes and values before anything changes.
func (o *Optimizer) Load(path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return fmt.Errorf("model: optimizer: %w", err)
	}
	defer f.Close()
	if err := o.load(f); err != nil {
		return fmt.Errorf("model: optimizer: %s: %w", path, err)
	}
	return nil
}

// load reads the state from an open file.
func (o *Optimizer) load(f *safetensors.File) error {
	meta := f.Metadata()
	if meta["format"] != optimizerFormat {
		return fmt.Errorf(
			"format %q: expected %s: not an optimizer state, or written by a later version",
			meta["format"], optimizerFormat)
	}
	steps, err1 := strconv.ParseUint(meta["steps"], 10, 40)
	skipped, err2 := strconv.ParseUint(meta["skipped"], 10, 40)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("counts: %w", err)
	}
	var all []*files.OnDisk
	var places []transfer // this rank's parts
	var want []stateTensor
	ps := o.m.params
	for i := range ps {
		want = append(want, o.stateTensors(i)...)
	}
	own := len(want)
	for _, p := range ps {
		want = append(want, stateTensor{"w." + p.Name, p.Shape, p.W, 0, safetensors.F32})
	}
	_, master := f.Tensor(want[own].name)
	if !master {
		want = want[:own]
	}
	for _, s := range want {
		t, ok := f.Tensor(s.name)
		if ok && t.DType != s.dtype && slices.Equal(t.Shape, s.shape) {
			moments := map[safetensors.DType]string{safetensors.F32: "float32",
				safetensors.U8: "8bit"}
			return fmt.Errorf("tensor %q: %s, want %s: its moments are not kept as here: set optim.moments to %s, as when it was written", s.name, t.DType, s.dtype, moments[t.DType])
		}
		if !ok || t.DType != s.dtype || !slices.Equal(t.Shape, s.shape) {
			return fmt.Errorf("tensor %q: missing, or not %s %v: the state of another model",
				s.name, s.dtype, s.shape)
		}
		all = append(all, files.Plain(t))
		if n, width := s.t.Len(), s.dtype.Size(); n > 0 {
			mine := &safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: []int{n},
				Data: t.Data[s.lo*width : (s.lo+n)*width]}
			places = append(places, transfer{from: files.Plain(mine), to: s.t,
				code: s.dtype == safetensors.U8})
		}
	}
	if n := len(f.Names()); n != len(want) {
		return fmt.Errorf(
			"%d tensors, of which %d belong to this model: the state of another model", n,
			len(want))
	}
	if err := checkState(all); err != nil {
		return err
	}
	if err := upload(o.m.be, places); err != nil {
		return err
	}
	if master {
		for _, p := range ps {
			o.m.refresh(p)
		}
		o.m.narrowed = false
	}
	if err := o.m.be.Sync(); err != nil {
		return err
	}
	o.steps, o.skipped = int(steps), int(skipped)
	return nil
}

// checkState refuses values that are not finite, and negative second moments and scales.
func checkState(list []*files.OnDisk) error {
	nowhere := func(_, _, _ int) []float32 { return nil }
	return files.Widen(list, nowhere, func(i, lo int, part []float32, _ bool) error {
		if !strings.HasPrefix(list[i].Name, "v.") && !strings.HasPrefix(list[i].Name, "m.scale.") {
			return nil
		}
		for k, x := range part {
			if x < 0 {
				return fmt.Errorf("tensor %q: element %d: %g: a second moment or a scale cannot be negative: use an earlier checkpoint", list[i].Name, lo+k, x)
			}
		}
		return nil
	})
}
