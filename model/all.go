package model

import (
	"slices"

	"gad/model/internal/sequence"
)

// AllLogProbs returns LogProbs of any number of sequences, in packs of maxTokens tokens, divided
// among the ranks. No bit of the result depends on the packs.
func (m *Model) AllLogProbs(seqs []Seq, temperature float64,
	maxTokens int) (logpST, entST [][]float32, err error) {
	if m.ranks.Size() == 1 || len(seqs) == 0 {
		return m.ownLogProbs(seqs, temperature, maxTokens)
	}
	both, err := everyRank(m.ranks, "log-probabilities", seqs, func(mine []Seq) ([][]float32, error) {
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

// ownLogProbs computes AllLogProbs on this rank alone.
func (m *Model) ownLogProbs(seqs []Seq, temperature float64,
	maxTokens int) (logpST, entST [][]float32, err error) {
	logpST, entST = make([][]float32, len(seqs)), make([][]float32, len(seqs))
	for _, pack := range sequence.Packs(seqs, maxTokens) {
		logp, ent, err := m.LogProbs(sequence.Pick(seqs, pack), temperature)
		if err != nil {
			return nil, nil, err
		}
		for i, s := range pack {
			logpST[s], entST[s] = logp[i], ent[i]
		}
	}
	return logpST, entST, nil
}

// AllScores returns Scores of any number of sequences, in packs of maxTokens tokens, divided among
// the ranks.
func (m *Model) AllScores(seqs []Seq, maxTokens int) (scoreS []float32, err error) {
	rows, err := m.allScores(seqs, lastRows, maxTokens)
	return slices.Concat(rows...), err
}

// AllTurnScores returns a Scorer's values at the end of each turn, [S][Seq.Turns], in packs of
// maxTokens tokens, divided among the ranks. A sequence passes forward once for all its turns. A
// turn's score does not depend on the tokens behind it.
func (m *Model) AllTurnScores(seqs []Seq, maxTokens int) (scoreSK [][]float32, err error) {
	return m.allScores(seqs, turnRows, maxTokens)
}

// allScores returns a Scorer's values at the chosen rows, [S][scores of a sequence], divided among
// the ranks.
func (m *Model) allScores(seqs []Seq, which reads, maxTokens int) ([][]float32, error) {
	if m.ranks.Size() == 1 || len(seqs) == 0 {
		return m.ownScores(seqs, which, maxTokens)
	}
	return everyRank(m.ranks, "scores", seqs, func(mine []Seq) ([][]float32, error) {
		return m.ownScores(mine, which, maxTokens)
	})
}

// ownScores computes allScores on this rank alone.
func (m *Model) ownScores(seqs []Seq, which reads, maxTokens int) ([][]float32, error) {
	scores := make([][]float32, len(seqs))
	for _, pack := range sequence.Packs(seqs, maxTokens) {
		of, err := m.scores(sequence.Pick(seqs, pack), which)
		if err != nil {
			return nil, err
		}
		for _, s := range pack {
			n := 1
			if which == turnRows {
				n = seqs[s].Turns()
			}
			scores[s], of = of[:n:n], of[n:]
		}
	}
	return scores, nil
}
