package sampling

import (
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
	"gad/internal/philox"
	"gad/model/internal/logits"
)

// constrain draws again, into e.ids and e.logp, the tokens of samples whose request restricts them
// (Request.Allowed), from the logits of the rows of h. It draws in float64 with the same uniform
// number, and the filters of Sampling apply to the allowed tokens.
func (e *Engine) constrain(samples []*sample, hRD compute.Tensor) error {
	m, d, v := &e.m, e.m.Head.Cols, e.m.Head.Rows
	for i, sm := range samples {
		r := sm.prompt.r
		if r.Allowed == nil {
			continue
		}
		allowed := r.Allowed(r.number(sm.s), sm.ids)
		if allowed == nil {
			continue
		}
		zRV := m.Workspace.Get(logits.RV, compute.Wide, v)
		if err := m.Workspace.Take(); err != nil {
			return err
		}
		logits.Head(m.Backend, m.Head, zRV, hRD.Slice(i*d, (i+1)*d))
		e.logits = slices.Grow(e.logits[:0], v)[:v]
		m.Backend.Download(e.logits, zRV)
		if err := e.sync(); err != nil {
			return err
		}
		logits.Cap(e.logits, m.Head)
		u := philox.Float64(r.Seed, philox.Rollout, r.Step, r.Row<<16|uint64(r.Sample+sm.s),
			uint64(r.Drawn+len(sm.ids)))
		id, logp, ok := logits.Pick(e.logits, allowed, r.Sampling, u)
		if !ok {
			return fmt.Errorf("model: generate: prompt %d: sample %d: token %d: none is allowed",
				r.index, sm.s, len(sm.ids))
		}
		e.ids[i], e.logp[i] = id, logp
	}
	return nil
}

// redraw draws again, into e.ids and e.logp, tokens that fell on ids without a token: among the ids
// with one, with another uniform number. The log-probability is the whole distribution's, with the
// bits of the training passes.
func (e *Engine) redraw(samples []*sample, hRD compute.Tensor) error {
	m, d, v := &e.m, e.m.Head.Cols, e.m.Head.Rows
	if m.Tokens == nil {
		return nil
	}
	for i, sm := range samples {
		if m.Tokens[e.ids[i]] || math.IsNaN(float64(e.logp[i])) {
			continue
		}
		zRV := m.Workspace.Get(logits.RV, compute.Wide, v)
		out := compute.HeadOut{
			LogpR: m.Workspace.Get("log-probability of a token drawn again", compute.Wide, 1),
			EntR:  m.Workspace.Get("its entropy", compute.Wide, 1),
			LseR:  m.Workspace.Get("its logit sum", compute.Wide, 1),
		}
		if err := m.Workspace.Take(); err != nil {
			return err
		}
		row := hRD.Slice(i*d, (i+1)*d)
		logits.Head(m.Backend, m.Head, zRV, row)
		e.logits = slices.Grow(e.logits[:0], v)[:v]
		m.Backend.Download(e.logits, zRV)
		if err := e.sync(); err != nil {
			return err
		}
		logits.Cap(e.logits, m.Head)
		r := sm.prompt.r
		u := philox.Float64(r.Seed, philox.Redraw, r.Step, r.Row<<16|uint64(r.Sample+sm.s),
			uint64(r.Drawn+len(sm.ids)))
		id, _, ok := logits.Pick(e.logits, m.Tokens, r.Sampling, u)
		if !ok {
			continue // not finite, which draw reports
		}
		inv := 1.0
		if t := r.Sampling.Temperature; t > 0 {
			inv = 1 / t
		}
		m.Backend.LogProb(out, row, m.Head, []int32{0}, []int32{id}, inv)
		m.Backend.Download(e.logp[i:i+1], out.LogpR)
		if err := e.sync(); err != nil {
			return err
		}
		e.ids[i] = id
	}
	return nil
}
