package critic

import "math"

// Signal is the statistics of a batch's scores before the discriminator has learned from it: how
// well it tells the two sides apart, and whether its scores rank the answers of one prompt, from
// which the student's advantages are computed. With level turn, scores are the last turns'.
type Signal struct {
	// mean [D(teacher) > D(student)] over all pairs; a tie counts as wrong
	Acc                      float64
	StudentMean, TeacherMean float64 // over all pairs

	Ties     float64 // share of the pairs whose sequences are equal
	Distinct int     // pairs that differ
	// Over the pairs that differ, 0 where there are none.
	DistinctAcc  float64
	DistinctLoss float64 // mean softplus(D(student) - D(teacher)); ln 2 is guessing

	// Of the groups of two answers or more, means over the groups that have the figure.
	GroupStd  float64 // standard deviation of the scores inside a group
	RelStd    float64 // GroupStd divided by the group's gap |D(teacher) - mean D(student)|
	Collapsed float64 // share of groups whose RelStd is below 0.15
	TopGap    float64 // lead of the best answer over the second, as a share of best - worst
}

// collapsed is the RelStd below which a group's scores hardly differ in comparison with their
// distance to the teacher's (GRGC, arXiv 2609.39757).
const collapsed = 0.15

// Signal computes the statistics of ScoreS and ScoreP, which must be set. Without pairs all are 0.
func (b *Batch) Signal() (g Signal) {
	n := 0.0
	for s, skip := range b.Skip {
		if skip {
			continue
		}
		n++
		d, t := float64(b.ScoreS[s]), float64(b.ScoreP[b.Group[s]])
		g.StudentMean += d
		g.TeacherMean += t
		if t > d {
			g.Acc++
		}
		if b.Tie(s) {
			g.Ties++
			continue
		}
		g.Distinct++
		if t > d {
			g.DistinctAcc++
		}
		g.DistinctLoss += max(d-t, 0) + math.Log1p(math.Exp(-math.Abs(d-t)))
	}
	for _, x := range []*float64{&g.Acc, &g.StudentMean, &g.TeacherMean, &g.Ties} {
		*x /= max(n, 1)
	}
	g.DistinctAcc /= max(float64(g.Distinct), 1)
	g.DistinctLoss /= max(float64(g.Distinct), 1)
	b.groups(&g)
	return g
}

// groups sets the statistics of the spread of scores inside groups.
func (b *Batch) groups(g *Signal) {
	byPrompt := make([][]float64, len(b.Teachers))
	for s, skip := range b.Skip {
		if !skip {
			byPrompt[b.Group[s]] = append(byPrompt[b.Group[s]], float64(b.ScoreS[s]))
		}
	}
	var groups, gaps, tops float64
	for p, scores := range byPrompt {
		if len(scores) < 2 {
			continue
		}
		var mean, variance float64
		best, second, worst := math.Inf(-1), math.Inf(-1), math.Inf(1)
		for _, x := range scores {
			mean += x / float64(len(scores))
			worst = min(worst, x)
			if x > best {
				best, second = x, best
			} else {
				second = max(second, x)
			}
		}
		for _, x := range scores {
			variance += (x - mean) * (x - mean) / float64(len(scores)-1)
		}
		groups++
		g.GroupStd += math.Sqrt(variance)
		if gap := math.Abs(float64(b.ScoreP[p]) - mean); gap > 0 {
			gaps++
			rel := math.Sqrt(variance) / gap
			g.RelStd += rel
			if rel < collapsed {
				g.Collapsed++
			}
		}
		if best > worst {
			tops++
			g.TopGap += (best - second) / (best - worst)
		}
	}
	g.GroupStd /= max(groups, 1)
	g.RelStd, g.Collapsed = g.RelStd/max(gaps, 1), g.Collapsed/max(gaps, 1)
	g.TopGap /= max(tops, 1)
}
