package model

import (
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
	"gad/internal/philox"
)

// A tokenizer may have fewer tokens than the model has rows. Released models pad their embeddings
// behind the last token; the head's operations leave those rows out, in sampling and in training
// alike (compute.Param.Live). Ids between tokens that have none are rare. Their rows stay in the
// distribution, but what is drawn of them is drawn again.

// SetTokens tells a language model which ids its tokenizer has tokens for (tokenizer.Tokens). Ids
// without one are never sampled. Rows behind the last token are left out of every distribution
// and of its gradient; no sequence may have such an id. Without this call every row counts. It
// comes before the model's first pass; of a Scorer it has no effect. Adapters, and models that
// share a base, count the same rows: another number is refused.
func (m *Model) SetTokens(tokens []bool) error {
	if m.opt.Kind != LM {
		return nil
	}
	if len(tokens) > m.cfg.Vocab {
		return fmt.Errorf("model: vocabulary of %d, but the tokenizer has %d tokens: they do not belong together", m.cfg.Vocab, len(tokens))
	}
	n := len(tokens)
	for n > 0 && !tokens[n-1] {
		n--
	}
	if n == 0 {
		return fmt.Errorf("model: the tokenizer has no token: give the model's own tokenizer")
	}
	if m.head.Live > 0 && m.head.Live != n {
		return fmt.Errorf("model: the base is in memory with %d tokens, and the tokenizer has %d: load both with the same tokenizer", m.head.Live, n)
	}
	m.head.Live, m.tokens = n, nil
	if slices.Contains(tokens[:n], false) {
		m.tokens = slices.Clone(tokens[:n])
	}
	return nil
}

// Vocab returns the size of the vocabulary: the highest id of a token, plus 1.
func (m *Model) Vocab() int {
	if m.opt.Kind != LM {
		return m.cfg.Vocab
	}
	return m.head.Vocab()
}

// redraw draws the tokens of samples anew that fell on ids without a token, into e.ids and
// e.logp: among the tokens, by a uniform number of its own. The log-probability stays that of the
// whole distribution, with the bits of the trainer's.
func (e *Engine) redraw(samples []*sample, hRD compute.Tensor) error {
	m, d, v := e.m, e.m.cfg.Hidden, e.m.cfg.Vocab
	if m.tokens == nil {
		return nil
	}
	for i, sm := range samples {
		if m.tokens[e.ids[i]] || math.IsNaN(float64(e.logp[i])) {
			continue
		}
		zRV := m.ws.get(logitsRV, compute.Wide, v)
		out := compute.HeadOut{
			LogpR: m.ws.get("log-probability of a token drawn again", compute.Wide, 1),
			EntR:  m.ws.get("its entropy", compute.Wide, 1),
			LseR:  m.ws.get("its logit sum", compute.Wide, 1),
		}
		if err := m.ws.take(); err != nil {
			return err
		}
		row := hRD.Slice(i*d, (i+1)*d)
		m.headLogits(zRV, row)
		e.logits = slices.Grow(e.logits[:0], v)[:v]
		m.be.Download(e.logits, zRV)
		if err := e.sync(); err != nil {
			return err
		}
		r := sm.prompt.r
		u := philox.Float64(r.Seed, philox.Redraw, r.Step, r.Row<<16|uint64(r.Sample+sm.s),
			uint64(r.Drawn+len(sm.ids)))
		id, _, ok := pick(e.logits, m.tokens, r.Sampling, u)
		if !ok {
			continue // not finite, which draw reports
		}
		inv := 1.0
		if t := r.Sampling.Temperature; t > 0 {
			inv = 1 / t
		}
		m.be.LogProb(out, row, m.head, []int32{0}, []int32{id}, inv)
		m.be.Download(e.logp[i:i+1], out.LogpR)
		if err := e.sync(); err != nil {
			return err
		}
		e.ids[i] = id
	}
	return nil
}
