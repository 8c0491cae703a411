package model

import (
	"fmt"
	"slices"
)

// A tokenizer may have fewer tokens than the model has rows. Released models pad their embeddings
// behind the last token; the head's operations leave the padding out, in sampling and in training
// alike (compute.Param.Live). Ids without a token below the last token are rare. Their rows stay in
// the distribution, but a draw that falls on one is repeated (sampling.Engine).

// SetTokens tells a language model, by id, which ids its tokenizer has tokens for
// (tokenizer.Tokens). Ids without one are never sampled. Rows behind the last token are left out of
// every distribution and of its gradient; no sequence may have such an id. Without this call every
// row counts. It must come before the model's first pass; on a Scorer it has no effect. Adapters,
// and models that share a base, must have the same number of rows: another number is an error.
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
