package algos

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
)

// GroupSpread is the group term of GRGC's discriminator loss (arXiv 2609.39757): it pulls the
// sorted scores of one prompt's N responses towards the quantiles of a standard normal distribution
// around their mean,
//
//	L = mean over groups of 1/N sum_j (r_(j) - mean - q_j)^2,   q_j = Phi^-1((j-0.5)/N)
//
// with r_(j) the j-th smallest score. The gradient is taken at the present order, and also through
// the mean. At a given mean score, Bradley-Terry alone is smallest without any spread in a group
// (softplus is convex); with the term it is not.
//
// It is not safe for concurrent use.
type GroupSpread[F Float] struct {
	cached cache[[2]int, F]
}

// Close releases the compiled programs.
func (g *GroupSpread[F]) Close() error { return g.cached.close() }

// Step computes the term's value, before its weight in the loss, and weight times its gradient with
// respect to each score [S]. groupS names each score's group; a negative group leaves the score
// out, and then even a NaN does not matter. Ties are ordered as given. Errors wrap ErrShape or
// ErrNotFinite.
func (g *GroupSpread[F]) Step(scoreS []F, groupS []int,
	weight float64) (term float64, dScoreS []F, err error) {
	if len(groupS) != len(scoreS) {
		return 0, nil, fmt.Errorf("algos: group term: %d scores, %d group indices: %w", len(scoreS),
			len(groupS), ErrShape)
	}
	dScoreS = make([]F, len(scoreS))
	var rows []int
	for s, group := range groupS {
		if group < 0 {
			continue
		}
		if i := notFinite(scoreS[s : s+1]); i >= 0 {
			return 0, nil, fmt.Errorf(
				"algos: group term: score of response %d is %g: skip this step: %w", s, scoreS[s],
				ErrNotFinite)
		}
		rows = append(rows, s)
	}
	groups := groupRows(pick(groupS, rows))
	longest := 0
	for i, group := range groups {
		groups[i] = pick(rows, group)
		longest = max(longest, len(group))
	}
	if len(groups) == 0 {
		return 0, dScoreS, nil
	}
	// Padded entries weigh 0, so few shapes serve every batch.
	B, N := powerOfTwo(len(groups)), powerOfTwo(longest)
	prog, err := g.cached.get([2]int{B, N},
		func() (*program[F], error) { return compileGroupSpread[F](B, N) })
	if err != nil {
		return 0, nil, err
	}
	r, average, target, share :=
		prog.in["score"], prog.in["average"], prog.in["target"], prog.in["share"]
	for _, x := range [][]F{r, average, target, share} {
		clear(x)
	}
	at := make([][]int, len(groups)) // at[b][j] is the response at [b,j]
	for b, group := range groups {
		order := slices.Clone(group)
		slices.SortStableFunc(order,
			func(i, j int) int { return cmp.Compare(scoreS[i], scoreS[j]) })
		at[b] = order
		n := float64(len(order))
		for j, s := range order {
			r[b*N+j], average[b*N+j] = scoreS[s], F(1/n)
			target[b*N+j] = F(NormalQuantile((float64(j) + .5) / n))
			share[b*N+j] = F(1 / n / float64(len(groups)))
		}
	}
	if err := prog.run(); err != nil {
		return 0, nil, err
	}
	d := prog.get("dscore")
	for b, order := range at {
		for j, s := range order {
			dScoreS[s] = F(weight) * d[b*N+j]
		}
	}
	term = prog.scalar("term")
	if i := notFinite(dScoreS); i >= 0 || math.IsNaN(term) || math.IsInf(term, 0) {
		return 0, nil, fmt.Errorf("algos: group term: %g: skip this step: %w", term, ErrNotFinite)
	}
	return term, dScoreS, nil
}

// compileGroupSpread builds the term over B sorted groups of at most N scores. average is 1/n on a
// group's own entries, share the weight of each entry in the sum.
func compileGroupSpread[F Float](B, N int) (*program[F], error) {
	e := newExpr[F]()
	score := e.input("score", B, N)
	mean := e.rows(e.mul(score, e.input("average", B, N)))
	off := e.sub(e.addRow(score, e.neg(mean)), e.input("target", B, N))
	term := e.sum(e.mul(e.square(off), e.input("share", B, N)))
	return compile[F](e, term, []string{"score"}, map[string]*G.Node{"term": term})
}

// NormalQuantile returns Phi^-1(p), the value below which a standard normal variable falls with
// probability p, in (0, 1).
func NormalQuantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }

// powerOfTwo returns n rounded up to a power of two.
func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}
