package model

import "encoding/json"

// AllLogProbs is LogProbs over any number of sequences, maxTokens tokens at a
// time. How they are packed does not change a bit of the result.
func (m *Model) AllLogProbs(seqs []Seq, temperature float64, maxTokens int) (logpST, entST [][]float32, err error) {
	logpST, entST = make([][]float32, len(seqs)), make([][]float32, len(seqs))
	for _, pack := range Packs(seqs, maxTokens) {
		logp, ent, err := m.LogProbs(Pick(seqs, pack), temperature)
		if err != nil {
			return nil, nil, err
		}
		for i, s := range pack {
			logpST[s], entST[s] = logp[i], ent[i]
		}
	}
	return logpST, entST, nil
}

// AllScores is Scores over any number of sequences, maxTokens tokens at a time.
func (m *Model) AllScores(seqs []Seq, maxTokens int) (scoreS []float32, err error) {
	scoreS = make([]float32, len(seqs))
	for _, pack := range Packs(seqs, maxTokens) {
		score, err := m.Scores(Pick(seqs, pack))
		if err != nil {
			return nil, err
		}
		for i, s := range pack {
			scoreS[s] = score[i]
		}
	}
	return scoreS, nil
}

// Pick is the xs that the indices name, in their order.
func Pick[T any](xs []T, indices []int) []T {
	out := make([]T, len(indices))
	for i, j := range indices {
		out[i] = xs[j]
	}
	return out
}

// Kind is what the folder that c was read from holds; LM for a new model.
func (c Config) Kind() Kind {
	var classes []string
	if json.Unmarshal(c.raw["architectures"], &classes) == nil && len(classes) == 1 && classes[0] == c.Architecture+classSuffix[Scorer] {
		return Scorer
	}
	return LM
}
