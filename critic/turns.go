package critic

import "slices"

// With level episode a sequence has one score D, at its last token. With level turn it has one at
// the end of each of its K turns, D_1 to D_K, all from one forward pass; D_K is the episode's. The
// loss of a pair of a student's and a teacher's sequence, of K_s and K_t turns, is the mean over m
// terms
//
//	1/m ( Σ_{k=1..K} loss(D_k(s), D_k(t))  +  [K_s ≠ K_t] loss(D_{K_s}(s), D_{K_t}(t)) )
//	K = min(K_s, K_t),  m = K + [K_s ≠ K_t]
//
// with loss(s, t) = softplus(s - t) for bt, or the other loss that critic.loss names. The loss of a
// mini-batch is the mean over its pairs, whatever their numbers of turns. Where these differ, the
// last turns are compared once more: turn K of the longer episode does not say how it ends. With
// one turn each, the loss equals that of level episode.

// terms holds the terms of a mini-batch's loss, pair by pair.
type terms struct {
	student, teacher []int     // [n] score at[student[i]] against at[teacher[i]]
	share            []float64 // [n] weight in the pair's mean
	last             []int     // [pairs] the term that compares the last turns
}

// compare returns the terms of the loss of the pairs of sequences student[i] and teacher[i].
func (s *scores) compare(student, teacher []int) (t terms) {
	for i := range student {
		fromS, toS := s.span(student[i])
		fromP, toP := s.span(teacher[i])
		k, m := min(toS-fromS, toP-fromP), 0
		add := func(student, teacher int) {
			t.student, t.teacher = append(t.student, student), append(t.teacher, teacher)
			m++
		}
		for j := range k {
			add(fromS+j, fromP+j)
		}
		if toS-fromS != toP-fromP {
			add(toS-1, toP-1)
		}
		t.share = append(t.share, slices.Repeat([]float64{1 / float64(m)}, m)...)
		t.last = append(t.last, len(t.student)-1)
	}
	return t
}

// TurnRewards returns the rewards of an episode's turns, given its scores D_1 to D_K:
//
//	d_k = D_k - D_(k-1),  D_0 = 0
//
// They add up to D_K, the episode's score: the potential-based form (Ng, Harada and Russell, ICML
// 1999), in which a turn's reward is its increase of the score.
func TurnRewards(scoreK []float32) []float64 {
	d := make([]float64, len(scoreK))
	before := 0.0
	for k, x := range scoreK {
		d[k], before = float64(x)-before, float64(x)
	}
	return d
}
