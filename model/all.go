package model

import (
	"encoding/json"
	"slices"
)

// AllLogProbs is LogProbs over any number of sequences, in packs of maxTokens tokens, divided
// among the ranks. No bit of the result depends on the packs.
func (m *Model) AllLogProbs(seqs []Seq, temperature float64,
	maxTokens int) (logpST, entST [][]float32, err error) {
	if m.ranks.Size() == 1 || len(seqs) == 0 {
		return m.ownLogProbs(seqs, temperature, maxTokens)
	}
	both, err := m.everyRank("log-probabilities", seqs, func(mine []Seq) ([][]float32, error) {
		logpST, entST, err := m.ownLogProbs(mine, temperature, maxTokens)
		for s := range logpST {
			logpST[s] = slices.Concat(logpST[s], entST[s])
		}
		return logpST, err
	})
	if err != nil {
		return nil, nil, err
	}
	for _, row := range both {
		n := len(row) / 2
		logpST, entST = append(logpST, row[:n:n]), append(entST, row[n:])
	}
	return logpST, entST, nil
}

// ownLogProbs is AllLogProbs on this rank alone.
func (m *Model) ownLogProbs(seqs []Seq, temperature float64,
	maxTokens int) (logpST, entST [][]float32, err error) {
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

// AllScores is Scores over any number of sequences, in packs of maxTokens tokens, divided
// among the ranks.
func (m *Model) AllScores(seqs []Seq, maxTokens int) (scoreS []float32, err error) {
	if m.ranks.Size() == 1 || len(seqs) == 0 {
		return m.ownScores(seqs, maxTokens)
	}
	rows, err := m.everyRank("scores", seqs, func(mine []Seq) (rows [][]float32, err error) {
		scoreS, err := m.ownScores(mine, maxTokens)
		for s := range scoreS {
			rows = append(rows, scoreS[s:s+1])
		}
		return rows, err
	})
	if err != nil {
		return nil, err
	}
	return slices.Concat(rows...), nil
}

// ownScores is AllScores on this rank alone.
func (m *Model) ownScores(seqs []Seq, maxTokens int) (scoreS []float32, err error) {
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

// Pick is the elements of xs at the given indices, in the order of the indices.
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
	if json.Unmarshal(c.raw["architectures"], &classes) == nil && len(classes) == 1 &&
		classes[0] == c.class(Scorer) {
		return Scorer
	}
	return LM
}
