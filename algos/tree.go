package algos

import (
	"fmt"
	"math"
	"slices"
)

// Branch says where an answer of a tree begins. A tree's first answer begins at the prompt, every
// other behind the first At tokens of answer Parent, which it shares. Its own tokens are those
// behind At, the ones that were sampled for it.
type Branch struct {
	Tree   int // number of the tree; trees of one prompt have different ones
	Parent int // the answer that sampled token At-1, or with At 0 the tree's first; -1: a first one
	At     int
}

// Node is a run of tokens between two branch points of a tree.
type Node struct {
	Answer   int // that sampled it
	From, To int // its tokens, as positions in the answer
	Parent   int // the node before it, as an index; -1: the prompt
	// Leaves are the answers that the node is part of, ascending: Answer, and all that branched off
	// behind it.
	Leaves []int
}

// checkBranches refuses answers that make no trees: an answer comes behind the one that it
// continues, which has sampled the tokens before the branch point and more. lens [S] are the
// answers' own tokens.
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
// lens [S] are the answers' own tokens. Errors wrap ErrShape.
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

// meanOf is the mean of x at the given places.
func meanOf(x []float64, at []int) float64 { return laneSum(pick(x, at)) / float64(len(at)) }

// NodeValues are the mean scores [N] of the answers under each node.
func NodeValues(nodes []Node, scores []float64) []float64 {
	out := make([]float64, len(nodes))
	for k, n := range nodes {
		out[k] = meanOf(scores, n.Leaves)
	}
	return out
}

// lens are the answers' own tokens.
func (in AdvantageInput) lens() []int {
	lens := make([]int, len(in.Mask))
	for s, mask := range in.Mask {
		for _, m := range mask {
			lens[s] += int(m)
		}
	}
	return lens
}

// byNode gives every token of a node the value that f has for the node.
func byNode(c AdvantageConfig, in AdvantageInput,
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

// treeGRPO is Tree-GRPO's advantage (arXiv 2509.21240), of each token once: an answer has the sum
// of its z within its tree and its z among all answers to the prompt, and a node the sum over the
// answers that it is part of. The source trains every answer's whole path, which has the same
// gradient at ratio 1. An answer alone in its tree has no z there: 0, where the source has its
// score.
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
	return byNode(c, in, func(nodes []Node) []float64 {
		out := make([]float64, len(nodes))
		for k, n := range nodes {
			out[k] = laneSum(pick(advS, n.Leaves))
		}
		return out
	})
}

// trees are the answers of each tree.
func (in AdvantageInput) trees() [][]int {
	of := make([]int, len(in.Branches))
	for s, b := range in.Branches {
		of[s] = b.Tree
	}
	return groupRows(of)
}

// treeNode is TreeRL's advantage (arXiv 2506.11902): how much better the answers of a
// node are than all to the prompt, and than those of the node before it,
//
//	((V(n) - V(root)) + (V(n) - V(parent))) / sqrt(leaves of n)
//
// with V the mean score of the leaves, the answers of a node. The trees of a prompt have one root,
// the prompt.
func treeNode(c AdvantageConfig, in AdvantageInput, groups [][]int) ([][]float64, error) {
	root := make([]float64, len(in.Scores)) // V of each answer's prompt
	for _, group := range groups {
		v := meanOf(in.Scores, group)
		for _, s := range group {
			root[s] = v
		}
	}
	return byNode(c, in, func(nodes []Node) []float64 {
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

// Place is where a tree may branch: behind the first At tokens of answer Answer, as Branch has it.
// The places of a tree are the prompt first, {0, 0}, then those within each answer's own tokens, in
// the order of answers and tokens.
type Place struct{ Answer, At int }

// ChooseRandom draws n different places, or all if there are fewer: each order of them is equally
// probable (Tree-GRPO draws nodes uniformly, and the same one twice too). draw(k, n) is the k-th
// draw, uniform in [0, n).
func ChooseRandom(places []Place, n int, draw func(k, n int) int) []Place {
	places = slices.Clone(places)
	n = min(n, len(places))
	for k := range n {
		i := k + draw(k, len(places)-k)
		places[k], places[i] = places[i], places[k]
	}
	return places[:n]
}

// What ChooseUCT searches with: uctWidth is how many continuations a place has at most, uctC the
// weight of what was seldom visited.
const (
	uctWidth = 2
	uctC     = 0.5
)

// ChooseUCT chooses n different places by upper confidence bounds, or fewer where no more may
// branch. Each search begins at the prompt and goes on to the continuation with the largest
//
//	V/2 + 0.5 sqrt(ln(leaves before + 1) / (leaves + 1e-8))
//
// until a place has fewer than two continuations, those of places already chosen included. The
// leaves of a continuation are the answers that it is part of, and V in [-1, 1] is the mean of
// their scores, which are scaled to the tree's smallest and largest; it is 0 where all are equal or
// one is not finite. Of equal ones the first is taken, and none is that leads to no place (after
// TreeRL's search, arXiv 2506.11902, which draws among nodes and discounts).
func ChooseUCT(tree []Branch, places []Place, scores []float64, n int) (chosen []Place) {
	x := searched{tree: tree, stops: make([][]int, len(tree)), behind: map[Place][]int{},
		scores: withinUnit(scores)}
	for _, p := range places[1:] {
		x.stops[p.Answer] = append(x.stops[p.Answer], p.At)
	}
	for s, b := range tree {
		if b.Parent >= 0 {
			at := Place{b.Parent, b.At}
			x.behind[at] = append(x.behind[at], s)
		}
	}
	root := x.fork(Place{}, x.continued(0, 0))
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

// withinUnit maps scores to [-1, 1]; to 0 where all are equal or one is not finite.
func withinUnit(scores []float64) []float64 {
	lo, hi := slices.Min(scores), slices.Max(scores) // NaN if one is
	return mapped(scores, func(v float64) float64 {
		if !(hi > lo) || math.IsInf(hi-lo, 0) {
			return 0
		}
		return 2*(v-lo)/(hi-lo) - 1
	})
}

// searched is a tree that ChooseUCT searches.
type searched struct {
	tree   []Branch
	stops  [][]int         // [answers] its places
	behind map[Place][]int // answers that branch off there
	scores []float64       // scaled
}

// continuation is the tokens between a place and the next, or an answer's end, and all behind them.
type continuation struct {
	place  Place           // where it ends
	next   []*continuation // from there; none at an answer's end
	leaves float64
	sum    float64 // of the leaves' scaled scores
	chosen int     // how often the place has been chosen
}

// continued is answer s from its place number i on, or with 0 from its branch point.
func (x *searched) continued(s, i int) *continuation {
	if i == len(x.stops[s]) {
		return &continuation{leaves: 1, sum: x.scores[s]}
	}
	return x.fork(Place{s, x.stops[s][i]}, x.continued(s, i+1))
}

// fork is what ends at a place, where the answer that was first there goes on as own.
func (x *searched) fork(p Place, own *continuation) *continuation {
	c := &continuation{place: p, next: []*continuation{own}}
	for _, s := range x.behind[p] {
		c.next = append(c.next, x.continued(s, 0))
	}
	for _, k := range c.next {
		c.leaves, c.sum = c.leaves+k.leaves, c.sum+k.sum
	}
	return c
}

// open reports whether a place at the end of c or behind it may branch.
func (c *continuation) open() bool {
	return len(c.next) > 0 && (len(c.next)+c.chosen < uctWidth ||
		slices.ContainsFunc(c.next, (*continuation).open))
}

// best is the first continuation of c with the largest bound among those that are open.
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
