package algos

import (
	"fmt"
	"math"
	"slices"
)

// Branch is the place where an answer of a tree begins. A tree's first answer begins at the prompt;
// any other answer begins with the first At tokens of answer Parent, which it shares. Its own
// tokens are the tokens after At, which were sampled for it.
type Branch struct {
	Tree   int // number of the tree; trees of one prompt have different ones
	Parent int // answer that sampled token At-1; with At 0 the tree's first; -1: none
	At     int
}

// Node is a run of tokens between two branch points of a tree.
type Node struct {
	Answer   int // the answer that sampled it
	From, To int // its tokens, as positions in the answer
	Parent   int // the node before it, as an index; -1: the prompt
	// Leaves holds the answers that the node is part of, ascending: Answer, and all answers that
	// branched off after it.
	Leaves []int
}

// checkBranches refuses answers that are not trees: an answer must come after the answer that it
// continues, which must have sampled the token before the branch point and at least one more. lens
// [S] holds the answers' own tokens.
func checkBranches(branches []Branch, lens []int) error {
	first := map[int]int{} // of each tree
	for s, b := range branches {
		root, seen := first[b.Tree]
		switch {
		case b.Parent < 0:
			if seen || b.At != 0 {
				return fmt.Errorf("answer %d at %d of tree %d: only its first answer has no parent, and it begins at 0: %w", s, b.At, b.Tree, ErrShape)
			}
			first[b.Tree] = s
			continue
		case b.Parent >= s || branches[b.Parent].Tree != b.Tree:
			return fmt.Errorf(
				"answer %d branches off answer %d: must be an earlier one of the same tree: %w", s,
				b.Parent, ErrShape)
		case b.At == 0 && b.Parent == root:
			continue
		}
		from := branches[b.Parent].At
		if b.At <= from || b.At >= from+lens[b.Parent] {
			return fmt.Errorf("answer %d branches off answer %d at %d: must be within its own tokens [%d,%d), behind the first: %w", s, b.Parent, b.At, from, from+lens[b.Parent], ErrShape)
		}
	}
	return nil
}

// Nodes cuts the answers of trees into nodes, answer by answer, each in the order of its tokens.
// lens [S] holds the numbers of the answers' own tokens. Errors wrap ErrShape.
func Nodes(branches []Branch, lens []int) ([]Node, error) {
	if len(lens) != len(branches) {
		return nil, fmt.Errorf("algos: trees: %d branches, %d lengths: %w", len(branches),
			len(lens), ErrShape)
	}
	if err := checkBranches(branches, lens); err != nil {
		return nil, fmt.Errorf("algos: trees: %w", err)
	}
	cuts := make([][]int, len(branches))
	for s, b := range branches {
		if cuts[s] = append(cuts[s], b.At); b.Parent >= 0 && b.At > 0 {
			cuts[b.Parent] = append(cuts[b.Parent], b.At)
		}
	}
	var nodes []Node
	first := make([]int, len(branches)+1) // first[s] is the first node of answer s
	ending := func(s, at int) int {       // the node of s that ends at at
		for k := first[s]; k < first[s+1]; k++ {
			if nodes[k].To == at {
				return k
			}
		}
		return -1
	}
	for s, b := range branches {
		first[s] = len(nodes)
		slices.Sort(cuts[s])
		cut := slices.Compact(cuts[s])
		before := -1
		if b.Parent >= 0 && b.At > 0 {
			before = ending(b.Parent, b.At)
		}
		for i, from := range cut {
			to := b.At + lens[s]
			if i+1 < len(cut) {
				to = cut[i+1]
			}
			nodes = append(nodes, Node{Answer: s, From: from, To: to, Parent: before})
			before = len(nodes) - 1
		}
		first[s+1] = len(nodes)
		for k := before; k >= 0; k = nodes[k].Parent {
			nodes[k].Leaves = append(nodes[k].Leaves, s)
		}
	}
	return nodes, nil
}

// meanOf returns the mean of x at the given places.
func meanOf(x []float64, at []int) float64 { return laneSum(pick(x, at)) / float64(len(at)) }

// NodeValues returns the mean score of the answers under each node [N].
func NodeValues(nodes []Node, scores []float64) []float64 {
	out := make([]float64, len(nodes))
	for k, n := range nodes {
		out[k] = meanOf(scores, n.Leaves)
	}
	return out
}

// lens returns the answers' numbers of own tokens [S].
func (in AdvantageInput) lens() []int {
	lens := make([]int, len(in.Mask))
	for s, mask := range in.Mask {
		for _, m := range mask {
			lens[s] += int(m)
		}
	}
	return lens
}

// nodeAdvantages sets the advantage of every token to its node's value, computed by f.
func nodeAdvantages(c AdvantageConfig, in AdvantageInput,
	f func(nodes []Node) []float64) ([][]float64, error) {
	if in.Branches == nil {
		return nil, fmt.Errorf("algos: advantage estimator %q: needs the branches of trees: use grpo for answers that do not branch: %w", c.Name, ErrShape)
	}
	nodes, err := Nodes(in.Branches, in.lens())
	if err != nil {
		return nil, err
	}
	advST := make([][]float64, len(in.Mask))
	for s, mask := range in.Mask {
		advST[s] = make([]float64, len(mask))
	}
	for k, adv := range f(nodes) {
		n := nodes[k]
		at := in.Branches[n.Answer].At
		for t := n.From - at; t < n.To-at; t++ {
			advST[n.Answer][t] = adv
		}
	}
	return advST, nil
}

// treeGRPO computes Tree-GRPO's advantage (arXiv 2509.21240), with each token counted once: an
// answer has the sum of its z within its tree and its z among all answers to the prompt, and a node
// the sum over the answers that it is part of. The source trains every answer's whole path, which
// has the same gradient at ratio 1. An answer alone in its tree has z = 0 there, where the source
// has its score.
func treeGRPO(c AdvantageConfig, in AdvantageInput, groups [][]int) ([][]float64, error) {
	advS, err := grpo(c, in, groups)
	if err != nil {
		return nil, err
	}
	trees := in.trees()
	zS, err := grpo(c, in, trees)
	if err != nil {
		return nil, err
	}
	for _, tree := range trees {
		for _, s := range tree {
			if len(tree) > 1 {
				advS[s] += zS[s]
			}
		}
	}
	return nodeAdvantages(c, in, func(nodes []Node) []float64 {
		out := make([]float64, len(nodes))
		for k, n := range nodes {
			out[k] = laneSum(pick(advS, n.Leaves))
		}
		return out
	})
}

// trees returns the answers of each tree.
func (in AdvantageInput) trees() [][]int {
	of := make([]int, len(in.Branches))
	for s, b := range in.Branches {
		of[s] = b.Tree
	}
	return groupRows(of)
}

// treeNode computes TreeRL's advantage (arXiv 2506.11902): how much better the answers of a node
// are than all answers to the prompt, and than the answers of the node before it,
//
//	((V(n) - V(root)) + (V(n) - V(parent))) / sqrt(leaves of n)
//
// with V the mean score of the leaves of a node. The trees of a prompt have one root, the prompt.
func treeNode(c AdvantageConfig, in AdvantageInput, groups [][]int) ([][]float64, error) {
	root := make([]float64, len(in.Scores)) // V of each answer's prompt
	for _, group := range groups {
		v := meanOf(in.Scores, group)
		for _, s := range group {
			root[s] = v
		}
	}
	return nodeAdvantages(c, in, func(nodes []Node) []float64 {
		V, out := NodeValues(nodes, in.Scores), make([]float64, len(nodes))
		for k, n := range nodes {
			before := root[n.Answer]
			if n.Parent >= 0 {
				before = V[n.Parent]
			}
			out[k] = (V[k] - root[n.Answer] + (V[k] - before)) / math.Sqrt(float64(len(n.Leaves)))
		}
		return out
	})
}

// Place is a point where a tree may branch: after the first At tokens of answer Answer, as in
// Branch. The places of a tree are listed with the prompt, {0, 0}, first, then the places within
// each answer's own tokens, in the order of answers and tokens.
type Place struct{ Answer, At int }

// ChooseRandom draws n different places, or all if there are fewer: each order of them is equally
// probable (Tree-GRPO draws nodes uniformly, with repetition). draw(k, n) is the k-th random
// number, uniform in [0, n).
func ChooseRandom(places []Place, n int, draw func(k, n int) int) []Place {
	places = slices.Clone(places)
	n = min(n, len(places))
	for k := range n {
		i := k + draw(k, len(places)-k)
		places[k], places[i] = places[i], places[k]
	}
	return places[:n]
}

// The constants of ChooseUCT: uctWidth is the largest number of continuations of a place, uctC the
// weight of exploration.
const (
	uctWidth = 2
	uctC     = 0.5
)

// ChooseUCT chooses n different places by upper confidence bounds, or fewer if no more can branch.
// Each search begins at the prompt and moves on to the continuation with the largest
//
//	V/2 + 0.5 sqrt(ln(leaves before + 1) / (leaves + 1e-8))
//
// until a place has fewer than two continuations, including branches already chosen there. The
// leaves of a continuation are the answers that it is part of, and V in [-1, 1] is the mean of
// their scores, which are scaled to the tree's smallest and largest; it is 0 if all are equal or
// one is not finite. The first of equal continuations is taken; continuations without an open place
// are not entered (after TreeRL's search, arXiv 2506.11902, which draws among nodes and discounts).
func ChooseUCT(tree []Branch, places []Place, scores []float64, n int) (chosen []Place) {
	x := uctSearch{tree: tree, stops: make([][]int, len(tree)), branches: map[Place][]int{},
		scores: scaleToUnit(scores)}
	for _, p := range places[1:] {
		x.stops[p.Answer] = append(x.stops[p.Answer], p.At)
	}
	for s, b := range tree {
		if b.Parent >= 0 {
			at := Place{b.Parent, b.At}
			x.branches[at] = append(x.branches[at], s)
		}
	}
	root := x.fork(Place{}, x.newContinuation(0, 0))
	for len(chosen) < n && root.open() {
		at := root
		for len(at.next)+at.chosen >= uctWidth {
			at = at.best()
		}
		at.chosen++
		chosen = append(chosen, at.place)
	}
	return chosen
}

// scaleToUnit maps scores to [-1, 1]; all to 0 if they are equal or one is not finite.
func scaleToUnit(scores []float64) []float64 {
	lo, hi := slices.Min(scores), slices.Max(scores) // NaN if one is
	return mapValues(scores, func(v float64) float64 {
		if !(hi > lo) || math.IsInf(hi-lo, 0) {
			return 0
		}
		return 2*(v-lo)/(hi-lo) - 1
	})
}

// uctSearch is a tree that ChooseUCT searches.
type uctSearch struct {
	tree     []Branch
	stops    [][]int         // [answers] places of each, in tokens
	branches map[Place][]int // answers that branch off there
	scores   []float64       // scaled
}

// continuation is the tokens between a place and the next place, or an answer's end, with
// everything after them.
type continuation struct {
	place  Place           // where it ends
	next   []*continuation // continuations from there; none at an answer's end
	leaves float64
	sum    float64 // of the leaves' scaled scores
	chosen int     // how often the place has been chosen
}

// newContinuation returns answer s from its place number i-1 on; with i 0, from its branch point.
func (x *uctSearch) newContinuation(s, i int) *continuation {
	if i == len(x.stops[s]) {
		return &continuation{leaves: 1, sum: x.scores[s]}
	}
	return x.fork(Place{s, x.stops[s][i]}, x.newContinuation(s, i+1))
}

// fork returns the continuation that ends at a place, after which the answer itself continues as
// own.
func (x *uctSearch) fork(p Place, own *continuation) *continuation {
	c := &continuation{place: p, next: []*continuation{own}}
	for _, s := range x.branches[p] {
		c.next = append(c.next, x.newContinuation(s, 0))
	}
	for _, k := range c.next {
		c.leaves, c.sum = c.leaves+k.leaves, c.sum+k.sum
	}
	return c
}

// open reports whether a place at the end of c or after it may branch.
func (c *continuation) open() bool {
	return len(c.next) > 0 && (len(c.next)+c.chosen < uctWidth ||
		slices.ContainsFunc(c.next, (*continuation).open))
}

// best returns the first open continuation of c with the largest bound.
func (c *continuation) best() (best *continuation) {
	most := math.Inf(-1)
	for _, k := range c.next {
		bound := k.sum/k.leaves/2 + uctC*math.Sqrt(math.Log(c.leaves+1)/(k.leaves+1e-8))
		if k.open() && bound > most {
			best, most = k, bound
		}
	}
	return best
}
