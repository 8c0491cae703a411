package model

import (
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
)

// rankElements is the most logits that rank has in memory at a time, unless one row is more, and
// rankRows that number in rows.
const rankElements = 1 << 22

func rankRows(vocab int) int { return max(1, rankElements/vocab) }

// rank sets the log-probability of each of tokens, which the rows of h predict, and the top(i)
// most probable tokens at the position of token i. One goroutine reduces a row, in a fixed order:
// the result depends on the row alone.
func (e *Engine) rank(tokens []Token, top func(i int) int, hRD compute.Tensor) error {
	m, d, v := e.m, e.m.cfg.Hidden, e.m.cfg.Vocab
	for lo, most := 0, rankRows(v); lo < len(tokens); lo += most {
		part := tokens[lo:min(lo+most, len(tokens))]
		logits := m.ws.get(logitsRV, compute.Wide, len(part)*v)
		if err := m.ws.take(); err != nil {
			return err
		}
		m.headLogits(logits, hRD.Slice(lo*d, (lo+len(part))*d))
		e.logits = slices.Grow(e.logits[:0], len(part)*v)[:len(part)*v]
		m.be.Download(e.logits, logits)
		if err := e.sync(); err != nil {
			return err
		}
		eachRow(0, len(part),
			func(i int) { part[i].rank(e.logits[i*v:][:m.Vocab()], top(lo+i)) })
		for _, t := range part {
			if x := float64(t.Logp); math.IsNaN(x) || math.IsInf(x, 0) {
				return fmt.Errorf("model: generate: log-probability %g of token %d: the weights or activations are %w: go back to an earlier checkpoint", x, t.ID, ErrNotFinite)
			}
		}
	}
	return nil
}

// headLogits is z[r,v] = Σ_d h[r,d]*head[v,d], in float32 on every backend.
func (m *Model) headLogits(zRV, hRD compute.Tensor) {
	// Linear writes float32 only if acc.
	m.be.Zero(zRV)
	m.be.Linear(zRV, hRD, m.head, nil, true)
}

// rank sets Logp, Rank and Top of t from the logits of its position. The values are those of
// AllScored, in float32. Of equal logits the lower id comes first, as in greedy sampling.
func (t *Token) rank(logits []float32, top int) {
	lse, _ := sumApart(logits, nil, 1)
	logp := func(id int32) float32 { return float32(float64(logits[id]) - lse) }
	t.Logp, t.Rank = logp(t.ID), 1
	for id, z := range logits {
		if own := logits[t.ID]; z > own || z == own && int32(id) < t.ID {
			t.Rank++
		}
	}
	for _, id := range largest(logits, top) {
		t.Top = append(t.Top, Choice{id, logp(id)})
	}
}
