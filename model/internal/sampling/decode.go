package sampling

import (
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
	"gad/internal/philox"
	"gad/model/internal/logits"
	"gad/model/internal/pages"
)

// sample is a response that is being decoded.
type sample struct {
	prompt *cachedPrompt
	s      int       // number among the request's samples
	row    int       // of its states
	own    []int32   // pages after the prompt's full ones
	table  []int32   // page table: the prompt's full pages, then own
	ids    []int32   // tokens drawn so far
	logp   []float32 // their log-probabilities
}

// decode runs the newest token of every live sample through the model and draws the next.
func (e *Engine) decode() error {
	n, p := len(e.live), &e.pass
	p.clear()
	for _, sm := range e.live {
		at := len(sm.prompt.r.Prompt) + len(sm.ids) - 1
		p.add(sm.ids[len(sm.ids)-1], at, e.slot(sm.table, at))
		p.read(sm.table, at+1)
		p.end(sm.row, sm.row)
	}
	// The outputs of padding rows are not used. Each attends to the first padding row alone, so
	// that all numbers are finite.
	for i := range pages.DecodeRows(e.m.Backend.DecodeMultiple(), n) - n {
		p.add(0, 0, e.spare[0]*int32(e.o.PageTokens)+int32(i))
		p.read(e.spare, 1)
		p.end(-1, -1)
	}
	hND, err := e.m.Decode(p)
	if err != nil {
		return err
	}
	e.live, e.drawn = e.drawn[:0], e.live
	return e.draw(e.drawn, hND.Slice(0, n*e.m.Head.Cols))
}

// draw samples the next token of each of samples from the rows of h, calls the callbacks, and ends
// finished samples. The others are appended to e.live.
func (e *Engine) draw(samples []*sample, hRD compute.Tensor) error {
	n := len(samples)
	if err := e.sample(samples, hRD); err != nil {
		return err
	}
	if err := e.redraw(samples, hRD); err != nil {
		return err
	}
	if err := e.constrain(samples, hRD); err != nil {
		return err
	}
	if err := e.rankDrawn(samples, hRD); err != nil {
		return err
	}
	ids, logp, ranked := e.ids, e.logp, e.ranked
	for i, sm := range samples {
		r := sm.prompt.r
		if math.IsNaN(float64(logp[i])) || ids[i] < 0 || int(ids[i]) >= e.m.Head.Vocab() {
			return fmt.Errorf("model: generate: prompt %d: sample %d: token %d: log-probability %g: the weights or activations are %w: go back to an earlier checkpoint", r.index, sm.s, len(sm.ids), logp[i], logits.ErrNotFinite)
		}
		sm.ids, sm.logp = append(sm.ids, ids[i]), append(sm.logp, logp[i])
		more := true
		if r.Token != nil {
			token := Token{ID: ids[i], Logp: logp[i]}
			if r.Ranked {
				token, ranked = ranked[0], ranked[1:]
			}
			more = r.Token(r.number(sm.s), token)
		}
		ended := slices.Contains(r.EOS, ids[i])
		if more && !ended && len(sm.ids) < r.limit() {
			e.live = append(e.live, sm)
			continue
		}
		c := Completion{IDs: slices.Clone(sm.ids), Logp: slices.Clone(sm.logp),
			Truncated: more && !ended}
		if !(c.Truncated && e.proceed(r, sm.s, c)) && r.Done != nil {
			r.Done(r.number(sm.s), r.whole(c))
		}
		e.end(sm)
	}
	if e.progress != nil {
		e.progress(n)
	}
	return nil
}

// sample draws a token for each of samples from the rows of h, into e.ids and e.logp, with one call
// for all rows of the same Sampling.
func (e *Engine) sample(samples []*sample, hRD compute.Tensor) error {
	n, m := len(samples), &e.m
	e.groups, e.order = e.groups[:0], e.order[:0]
	for _, sm := range samples {
		if s := sm.prompt.r.Sampling; len(e.groups) == 0 || s != e.groups[len(e.groups)-1] &&
			!slices.Contains(e.groups, s) {
			e.groups = append(e.groups, s)
		}
	}
	e.ids, e.logp, e.u = slices.Grow(e.ids[:0], n)[:n], slices.Grow(e.logp[:0], n)[:n], e.u[:0]
	uniform := func(sm *sample) {
		r := sm.prompt.r
		e.u = append(e.u, philox.Float64(r.Seed, philox.Rollout, r.Step,
			r.Row<<16|uint64(r.Sample+sm.s), uint64(r.Drawn+len(sm.ids))))
	}
	if len(e.groups) == 1 {
		for _, sm := range samples {
			uniform(sm)
		}
		m.Backend.Sample(e.ids, e.logp, hRD, m.Head, e.groups[0], e.u)
		return e.sync()
	}
	d := m.Head.Cols
	rows := m.Workspace.Get(drawnRD, compute.Narrow, n*d)
	if err := m.Workspace.Take(); err != nil {
		return err
	}
	for _, s := range e.groups {
		lo := len(e.order)
		for i, sm := range samples {
			if sm.prompt.r.Sampling == s {
				at := len(e.order)
				m.Backend.Copy(rows.Slice(at*d, (at+1)*d), hRD.Slice(i*d, (i+1)*d))
				uniform(sm)
				e.order = append(e.order, i)
			}
		}
		hi := len(e.order)
		m.Backend.Sample(e.ids[lo:hi], e.logp[lo:hi], rows.Slice(lo*d, hi*d), m.Head, s, e.u[lo:hi])
	}
	if err := e.sync(); err != nil {
		return err
	}
	ids, logp := slices.Clone(e.ids), slices.Clone(e.logp)
	for at, i := range e.order {
		e.ids[i], e.logp[i] = ids[at], logp[at]
	}
	return nil
}

// rankDrawn sets e.ranked: the drawn tokens, ranked, of samples whose request is Ranked and has a
// Token callback.
func (e *Engine) rankDrawn(samples []*sample, hRD compute.Tensor) error {
	e.ranked, e.order = e.ranked[:0], e.order[:0]
	for i, sm := range samples {
		if r := sm.prompt.r; r.Ranked && r.Token != nil {
			e.order, e.ranked = append(e.order, i), append(e.ranked, Token{ID: e.ids[i]})
		}
	}
	if len(e.ranked) == 0 {
		return nil
	}
	if len(e.ranked) < len(samples) {
		d := e.m.Head.Cols
		rows := e.m.Workspace.Get(drawnRD, compute.Narrow, len(e.ranked)*d)
		if err := e.m.Workspace.Take(); err != nil {
			return err
		}
		for at, i := range e.order {
			e.m.Backend.Copy(rows.Slice(at*d, (at+1)*d), hRD.Slice(i*d, (i+1)*d))
		}
		hRD = rows
	}
	return e.rank(e.ranked, func(at int) int { return samples[e.order[at]].prompt.r.Top }, hRD)
}

// dropGone removes requests whose Gone returns true, with their samples.
func (e *Engine) dropGone() {
	found := false
	ask := func(r *Request) bool {
		r.gone = r.gone || r.Gone != nil && r.Gone()
		found = found || r.gone
		return r.gone
	}
	for i, sm := range e.live {
		if i == 0 || e.live[i-1].prompt != sm.prompt {
			ask(sm.prompt.r)
		}
	}
	first := 0
	if h := e.head; h != nil {
		if first = 1; ask(h.r) {
			h.left -= h.r.N - h.started
			e.endStarts(h)
			e.release(h)
			e.popQueue()
			first = 0
		}
	}
	e.queue = e.queue[:first+len(slices.DeleteFunc(e.queue[first:], ask))]
	if !found {
		return
	}
	e.live = slices.DeleteFunc(e.live, func(sm *sample) bool {
		gone := sm.prompt.r.gone
		if gone {
			e.end(sm)
		}
		return gone
	})
}

// end frees the pages of a sample, or caches them.
func (e *Engine) end(sm *sample) {
	e.cacheAnswer(sm)
	e.freeRow.give(sm.row)
	sm.prompt.left--
	e.release(sm.prompt)
	sm.prompt = nil
	e.idle = append(e.idle, sm)
}
