package logits

import (
	"math"
	"slices"

	"gad/internal/compute"
)

// Pick samples one of the allowed tokens by the uniform number u, as compute.Sample does among all:
// softmax(logits/T), top-k, top-p and min-p, then the first token in the order of ids whose
// cumulative probability exceeds u. logp is its log-probability in that distribution. Temperature 0
// takes the largest logit, of equal ones the lowest id. ok is false if no token is allowed.
func Pick(logits []float32, allowed []bool, s compute.Sampling, u float64) (id int32, logp float32,
	ok bool) {
	var ids []int32
	best := -1
	for i, z := range logits {
		if i >= len(allowed) || !allowed[i] || math.IsNaN(float64(z)) {
			continue
		}
		if ids = append(ids, int32(i)); best < 0 || z > logits[best] {
			best = i
		}
	}
	if best < 0 {
		return 0, 0, false
	}
	t := s.Temperature
	if t == 0 {
		return int32(best), 0, true
	}
	p := make([]float64, len(ids))
	weigh := func() {
		sum := 0.0
		for k, id := range ids {
			p[k] = math.Exp((float64(logits[id]) - float64(logits[best])) / t)
			sum += p[k]
		}
		for k := range p {
			p[k] /= sum
		}
	}
	weigh()
	order := make([]int, len(ids)) // most probable first
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case p[a] > p[b]:
			return -1
		case p[a] < p[b]:
			return 1
		}
		return 0
	})
	keep := len(order)
	if s.TopK > 0 {
		keep = min(keep, s.TopK)
	}
	if s.TopP > 0 && s.TopP < 1 {
		sum := 0.0
		for n, k := range order[:keep] {
			if sum += p[k]; sum >= s.TopP {
				keep = n + 1
				break
			}
		}
	}
	for keep > 1 && p[order[keep-1]] < s.MinP*p[order[0]] {
		keep--
	}
	kept := slices.Clone(order[:keep])
	slices.Sort(kept)
	few := make([]int32, keep)
	for n, k := range kept {
		few[n] = ids[k]
	}
	ids, p = few, p[:keep]
	weigh()
	sum := 0.0
	for k, id := range ids {
		if sum += p[k]; u < sum || k == len(ids)-1 {
			return id, float32(math.Log(p[k])), true
		}
	}
	return 0, 0, false
}
