package model

import "fmt"

// AllTails returns the loss of LogProbTailGrad at each trained token of seqs, in packs of maxTokens
// tokens, without gradients and on this rank alone.
func (m *Model) AllTails(seqs []Seq, labelsST [][]SoftLabel, temperature float64,
	maxTokens int) (tailST [][]float32, f SoftFigures, err error) {
	if err := checkLabels(seqs, labelsST, m.Vocab()); err != nil {
		return nil, f, err
	}
	tailST = make([][]float32, len(seqs))
	for _, pack := range Packs(seqs, maxTokens) {
		own := Pick(seqs, pack)
		x, err := newLabelPass(m, own, Pick(labelsST, pack), temperature)
		if err != nil {
			return nil, f, err
		}
		if err := m.hidden(own); err != nil {
			return nil, f, err
		}
		if err := x.measure(m); err != nil {
			return nil, f, err
		}
		for i, s := range pack {
			tailST[s] = x.klST[i]
		}
		f = f.Add(x.soft.figures())
	}
	return tailST, f, nil
}

// LogProbKLGrad is LogProbDivergenceGrad of KL(m||q), both reading the same sequences.
func (m *Model) LogProbKLGrad(seqs []Seq, q *Model, temperature float64,
	seed func(logpST, entST, klST [][]float32) (dlogpST, dentST, dklST [][]float32,
		err error)) error {
	return m.LogProbDivergenceGrad(seqs, q, seqs, 1, temperature, seed)
}

// CopyWeights copies the weights of src, which has the same parameters; it may
// live on another backend.
func (m *Model) CopyWeights(src *Model) error {
	if len(m.params) != len(src.params) {
		return fmt.Errorf("model: copy weights: %d parameters from a model of %d: expected the same architecture and kind", len(m.params), len(src.params))
	}
	for i, p := range m.params {
		if q := src.params[i]; p.Name != q.Name || p.Rows != q.Rows || p.Cols != q.Cols {
			return fmt.Errorf(
				"model: copy weights: %s %v from %s %v: expected the same architecture and kind",
				p.Name, p.Shape, q.Name, q.Shape)
		}
	}
	for i, p := range m.params {
		q := src.params[i]
		if m.be == src.be {
			m.be.Copy(p.W, q.W)
			m.refresh(p)
			continue
		}
		buf := make([]float32, p.Len())
		src.be.Download(buf, q.W)
		m.be.Upload(p.W, buf)
		m.refresh(p)
	}
	if err := src.be.Sync(); err != nil {
		return fmt.Errorf("model: copy weights: %w", err)
	}
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: copy weights: %w", err)
	}
	return nil
}
