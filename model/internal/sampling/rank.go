package sampling

import (
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
	"gad/model/internal/logits"
)

// rank sets the log-probability and rank of each of tokens, which the rows of h predict, and the
// top(i) most probable tokens at the position of token i. One goroutine reduces a row, in a fixed
// order: the result depends on the row alone.
func (e *Engine) rank(tokens []Token, top func(i int) int, hRD compute.Tensor) error {
	m, d, v := &e.m, e.m.Head.Cols, e.m.Head.Rows
	for lo, most := 0, logits.Rows(v); lo < len(tokens); lo += most {
		part := tokens[lo:min(lo+most, len(tokens))]
		z := m.Workspace.Get(logits.RV, compute.Wide, len(part)*v)
		if err := m.Workspace.Take(); err != nil {
			return err
		}
		logits.Head(m.Backend, m.Head, z, hRD.Slice(lo*d, (lo+len(part))*d))
		e.logits = slices.Grow(e.logits[:0], len(part)*v)[:len(part)*v]
		m.Backend.Download(e.logits, z)
		if err := e.sync(); err != nil {
			return err
		}
		logits.Cap(e.logits, m.Head)
		logits.EachRow(0, len(part),
			func(i int) { part[i].rank(e.logits[i*v:][:m.Head.Vocab()], top(lo+i)) })
		for _, t := range part {
			if x := float64(t.Logp); math.IsNaN(x) || math.IsInf(x, 0) {
				return fmt.Errorf("model: generate: log-probability %g of token %d: the weights or activations are %w: go back to an earlier checkpoint", x, t.ID, logits.ErrNotFinite)
			}
		}
	}
	return nil
}

// rank sets Logp, Rank and Top of t from the logits zV of its position. The values are AllScored's,
// in float32. Of equal logits the lower id ranks first, as in greedy sampling.
func (t *Token) rank(zV []float32, top int) {
	lse, _ := logits.SumApart(zV, nil, 1)
	logp := func(id int32) float32 { return float32(float64(zV[id]) - lse) }
	t.Logp, t.Rank = logp(t.ID), 1
	for id, z := range zV {
		if own := zV[t.ID]; z > own || z == own && int32(id) < t.ID {
			t.Rank++
		}
	}
	for _, id := range logits.Largest(zV, top) {
		t.Top = append(t.Top, Choice{id, logp(id)})
	}
}
