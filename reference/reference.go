// Package reference is the frozen policy to which the KL keeps the student close: the student as it
// was when training began.
package reference

import (
	"fmt"

	"gad/model"
)

// Policy is a frozen policy that gives log-probabilities.
type Policy struct {
	m         *model.Model
	maxTokens int
}

// Open loads the model folder dir without gradients or optimizer state;
// maxTokens bounds the tokens of one forward pass.
func Open(be model.Backend, dir string, maxTokens int) (*Policy, error) {
	m, err := model.Load(be, dir, model.Options{Kind: model.LM})
	if err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	return New(m, maxTokens), nil
}

// New wraps a policy that is already loaded.
func New(m *model.Model, maxTokens int) *Policy { return &Policy{m: m, maxTokens: maxTokens} }

// Model returns the frozen network.
func (p *Policy) Model() *model.Model { return p.m }

// LogProbs returns the natural log-probability of each response token [S][T], of logits divided by
// temperature.
func (p *Policy) LogProbs(seqs []model.Seq,
	temperature float64) (refLogpST [][]float32, err error) {
	refLogpST, _, err = p.m.AllLogProbs(seqs, temperature, p.maxTokens)
	return refLogpST, err
}

// KL returns KL(policy || reference) at each response token, exact over the vocabulary, in nats
// (model.Model.AllKL).
func (p *Policy) KL(policy *model.Model, seqs []model.Seq,
	temperature float64) (klST [][]float32, err error) {
	return policy.AllKL(p.m, seqs, temperature, p.maxTokens)
}

// Close frees the weights.
func (p *Policy) Close() error { return p.m.Close() }
