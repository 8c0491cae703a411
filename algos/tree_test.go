package algos

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// forest is answers of trees, with what each has sampled and its score.
type forest struct {
	branches []Branch
	own      []int
	scores   []float64
	group    []int // nil: one prompt
}

func (f forest) input() AdvantageInput {
	in := AdvantageInput{Scores: f.scores, Group: f.group, Branches: f.branches}
	if in.Group == nil {
		in.Group = make([]int, len(f.scores))
	}
	most := slices.Max(f.own)
	for _, n := range f.own {
		mask := make([]float64, most)
		for t := range n {
			mask[t] = 1
		}
		in.Mask = append(in.Mask, mask)
	}
	return in
}

// byNode are the advantages of the nodes, of which all tokens must have the same.
func (f forest) byNode(t *testing.T, c AdvantageConfig) []float64 {
	t.Helper()
	advST, err := Advantages(c, f.input())
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := Nodes(f.branches, f.own)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float64, len(nodes))
	for k, n := range nodes {
		at := f.branches[n.Answer].At
		run := advST[n.Answer][n.From-at : n.To-at]
		if out[k] = run[0]; slices.Max(run) != slices.Min(run) {
			t.Errorf("node %d of answer %d: advantages %v", k, n.Answer, run)
		}
	}
	for s, row := range advST {
		for i := f.own[s]; i < len(row); i++ {
			if row[i] != 0 {
				t.Errorf("answer %d: advantage %g behind its own tokens", s, row[i])
			}
		}
	}
	return out
}

// Twelve trees worked by hand: their nodes, and both advantages.
func TestTreesByHand(t *testing.T) {
	start := Branch{Parent: -1}
	h := .5 / (math.Sqrt(.5) + 1e-6) // z of 1 beside 0
	g := 1 / (math.Sqrt(3) + 1e-6)   // z of 3, 0 and 0 is 2g, -g and -g
	q := 1 / (.5 + 1e-6)             // 1, 0, 0 and 0 less their mean, times q, is z
	r2 := math.Sqrt2
	for name, c := range map[string]struct {
		forest
		nodes      []Node
		grpo, node []float64
		meanOnly   bool
	}{
		"one answer": {forest: forest{branches: []Branch{start}, own: []int{3}, scores: []float64{2}},
			nodes: []Node{{0, 0, 3, -1, []int{0}}}, grpo: []float64{2 / loneSigma}, node: []float64{0}},
		"answers that do not branch": {
			forest: forest{branches: []Branch{start, {Tree: 1, Parent: -1}}, own: []int{3, 2},
				scores: []float64{0, 1}},
			nodes: []Node{{0, 0, 3, -1, []int{0}}, {1, 0, 2, -1, []int{1}}},
			grpo:  []float64{-h, h}, node: []float64{-1, 1}},
		"one branch": {
			forest: forest{branches: []Branch{start, {At: 2}}, own: []int{4, 3},
				scores: []float64{1, 0}},
			nodes: []Node{{0, 0, 2, -1, []int{0, 1}}, {0, 2, 4, 0, []int{0}},
				{1, 2, 5, 0, []int{1}}},
			grpo: []float64{0, 2 * h, -2 * h}, node: []float64{0, 1, -1}},
		"a branch at the prompt": {
			forest: forest{branches: []Branch{start, {At: 0}}, own: []int{4, 3},
				scores: []float64{1, 0}},
			nodes: []Node{{0, 0, 4, -1, []int{0}}, {1, 0, 3, -1, []int{1}}},
			grpo:  []float64{2 * h, -2 * h}, node: []float64{1, -1}},
		"two branches at one place": {
			forest: forest{branches: []Branch{start, {At: 2}, {At: 2}}, own: []int{4, 1, 1},
				scores: []float64{3, 0, 0}},
			nodes: []Node{{0, 0, 2, -1, []int{0, 1, 2}}, {0, 2, 4, 0, []int{0}},
				{1, 2, 3, 0, []int{1}}, {2, 2, 3, 0, []int{2}}},
			grpo: []float64{0, 4 * g, -2 * g, -2 * g}, node: []float64{0, 4, -2, -2}},
		"a branch off a branch": {
			forest: forest{branches: []Branch{start, {At: 2}, {Parent: 1, At: 4}},
				own: []int{4, 4, 2}, scores: []float64{0, 0, 3}},
			nodes: []Node{{0, 0, 2, -1, []int{0, 1, 2}}, {0, 2, 4, 0, []int{0}},
				{1, 2, 4, 0, []int{1, 2}}, {1, 4, 6, 2, []int{1}}, {2, 4, 6, 2, []int{2}}},
			grpo: []float64{0, -2 * g, 2 * g, -2 * g, 4 * g},
			node: []float64{0, -2, 1 / r2, -2.5, 3.5}},
		"two places of one answer": {
			forest: forest{branches: []Branch{start, {At: 2}, {At: 4}}, own: []int{6, 2, 2},
				scores: []float64{3, 0, 0}},
			nodes: []Node{{0, 0, 2, -1, []int{0, 1, 2}}, {0, 2, 4, 0, []int{0, 2}},
				{0, 4, 6, 1, []int{0}}, {1, 2, 4, 0, []int{1}}, {2, 4, 6, 1, []int{2}}},
			grpo: []float64{0, 2 * g, 4 * g, -2 * g, -2 * g},
			node: []float64{0, 1 / r2, 3.5, -2, -2.5}},
		"the earlier place later": {
			forest: forest{branches: []Branch{start, {At: 4}, {At: 2}}, own: []int{6, 2, 2},
				scores: []float64{3, 0, 0}},
			nodes: []Node{{0, 0, 2, -1, []int{0, 1, 2}}, {0, 2, 4, 0, []int{0, 1}},
				{0, 4, 6, 1, []int{0}}, {1, 4, 6, 1, []int{1}}, {2, 2, 4, 0, []int{2}}},
			grpo: []float64{0, 2 * g, 4 * g, -2 * g, -2 * g},
			node: []float64{0, 1 / r2, 3.5, -2.5, -2}},
		"two trees": {
			forest: forest{branches: []Branch{start, {At: 2}, {Tree: 1, Parent: -1},
				{Tree: 1, Parent: 2, At: 1}}, own: []int{4, 2, 2, 3},
				scores: []float64{1, 0, 0, 0}},
			nodes: []Node{{0, 0, 2, -1, []int{0, 1}}, {0, 2, 4, 0, []int{0}},
				{1, 2, 4, 0, []int{1}}, {2, 0, 1, -1, []int{2, 3}}, {2, 1, 2, 3, []int{2}},
				{3, 1, 4, 3, []int{3}}},
			grpo: []float64{.5 * q, .75*q + h, -.25*q - h, -.5 * q, -.25 * q, -.25 * q},
			node: []float64{.5 / r2, 1.25, -.75, -.5 / r2, -.25, -.25}},
		"equal scores": {
			forest: forest{branches: []Branch{start, {At: 2}}, own: []int{4, 3},
				scores: []float64{2, 2}},
			nodes: []Node{{0, 0, 2, -1, []int{0, 1}}, {0, 2, 4, 0, []int{0}},
				{1, 2, 5, 0, []int{1}}},
			grpo: []float64{0, 0, 0}, node: []float64{0, 0, 0}},
		"two prompts": {
			forest: forest{branches: []Branch{start, {Tree: 1, Parent: -1}, {At: 1},
				{Tree: 1, Parent: 1, At: 1}}, own: []int{2, 2, 1, 1}, group: []int{7, 3, 7, 3},
				scores: []float64{1, 100, 0, 101}},
			nodes: []Node{{0, 0, 1, -1, []int{0, 2}}, {0, 1, 2, 0, []int{0}},
				{1, 0, 1, -1, []int{1, 3}}, {1, 1, 2, 2, []int{1}}, {2, 1, 2, 0, []int{2}},
				{3, 1, 2, 2, []int{3}}},
			grpo: []float64{0, 2 * h, 0, -2 * h, -2 * h, 2 * h},
			node: []float64{0, 1, 0, -1, -1, 1}},
		"not divided by the spread": {meanOnly: true,
			forest: forest{branches: []Branch{start, {At: 2}, {At: 4}}, own: []int{6, 2, 2},
				scores: []float64{3, 0, 0}},
			nodes: []Node{{0, 0, 2, -1, []int{0, 1, 2}}, {0, 2, 4, 0, []int{0, 2}},
				{0, 4, 6, 1, []int{0}}, {1, 2, 4, 0, []int{1}}, {2, 4, 6, 1, []int{2}}},
			grpo: []float64{0, 2, 4, -2, -2}, node: []float64{0, 1 / r2, 3.5, -2, -2.5}},
	} {
		nodes, err := Nodes(c.branches, c.own)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !slices.EqualFunc(nodes, c.nodes, func(a, b Node) bool {
			return a.Answer == b.Answer && a.From == b.From && a.To == b.To &&
				a.Parent == b.Parent && slices.Equal(a.Leaves, b.Leaves)
		}) {
			t.Errorf("%s: nodes %v, by hand %v", name, nodes, c.nodes)
			continue
		}
		near(t, name+": tree_grpo", golden64,
			c.byNode(t, AdvantageConfig{Name: "tree_grpo", MeanOnly: c.meanOnly}), c.grpo)
		near(t, name+": tree_node", golden64,
			c.byNode(t, AdvantageConfig{Name: "tree_node", MeanOnly: c.meanOnly}), c.node)
	}
}

// treeCase is a case of testdata/golden/trees.json, by scripts/fixtures_trees.py.
type treeCase struct {
	Tree, Parent, At, Own []int
	Score, Within, Every  []float64
	Paths                 [][]struct {
		Answer, Tokens, Leaves int
		State, Difference      float64
	}
}

func goldenTrees(t *testing.T) []treeCase {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "golden", "trees.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []treeCase }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) != 50 {
		t.Fatalf("%d cases, the file had 50", len(file.Cases))
	}
	return file.Cases
}

func (c treeCase) forest() forest {
	f := forest{own: c.Own, scores: c.Score}
	for s := range c.Own {
		f.branches = append(f.branches, Branch{Tree: c.Tree[s], Parent: c.Parent[s], At: c.At[s]})
	}
	return f
}

// What Tree-GRPO's and TreeRL's own functions give, to 1e-9: of a node the sum of the advantages
// of all answers whose paths it is on, and the differences of its value.
func TestGoldenTrees(t *testing.T) {
	for i, c := range goldenTrees(t) {
		f := c.forest()
		nodes, err := Nodes(f.branches, f.own)
		if err != nil {
			t.Fatal(err)
		}
		type run struct{ answer, from int }
		number := map[run]int{}
		for k, n := range nodes {
			number[run{n.Answer, n.From}] = k
		}
		sums, values := make([]float64, len(nodes)), make([]float64, len(nodes))
		seen := make([]int, len(nodes))
		n := float64(len(c.Own))
		for s, path := range c.Paths {
			at := 0
			for _, step := range path {
				k, ok := number[run{step.Answer, at}]
				if !ok || nodes[k].To != at+step.Tokens || len(nodes[k].Leaves) != step.Leaves {
					t.Fatalf("case %d: answer %d has %+v at %d, and the nodes are %+v", i, s, step,
						at, nodes)
				}
				sums[k] += c.Within[s] + c.Every[s]
				values[k] = (step.State + step.Difference) * (n - 1) / n /
					math.Sqrt(float64(step.Leaves))
				seen[k]++
				at += step.Tokens
			}
		}
		for k, n := range nodes {
			if seen[k] != len(n.Leaves) {
				t.Errorf("case %d: node %d is on %d paths, and has leaves %v", i, k, seen[k],
					n.Leaves)
			}
		}
		near(t, "tree_grpo", golden64, f.byNode(t, AdvantageConfig{Name: "tree_grpo"}), sums)
		near(t, "tree_node", golden64, f.byNode(t, AdvantageConfig{Name: "tree_node"}), values)
	}
}

// The loss that learns each token once has the gradient, at ratio 1, of the one that learns every
// answer's whole path, to 1e-6: by token of the tree, whichever loss.
func TestTreeGradient(t *testing.T) {
	for _, loss := range []string{"vanilla", "gspo_token", "gpg", "cispo"} {
		for i, c := range goldenTrees(t)[:12] {
			f := c.forest()
			in := f.input()
			adv, err := Advantages(AdvantageConfig{Name: "tree_grpo"}, in)
			if err != nil {
				t.Fatal(err)
			}
			type token struct{ answer, at int }
			once, paths := map[token]float64{}, map[token]float64{}
			var own, whole [][]token
			var ownAdv, wholeAdv [][]float64
			for s, b := range f.branches {
				var path []token
				for at := b.At; at < b.At+c.Own[s]; at++ {
					path = append(path, token{s, at})
				}
				own, ownAdv = append(own, path), append(ownAdv, adv[s][:c.Own[s]])
				for p, lo := b.Parent, b.At; p >= 0 && lo > 0; p = f.branches[p].Parent {
					var before []token
					for at := f.branches[p].At; at < lo; at++ {
						before = append(before, token{p, at})
					}
					path, lo = slices.Concat(before, path), f.branches[p].At
				}
				whole = append(whole, path)
				row := make([]float64, len(path))
				for t := range row {
					row[t] = c.Within[s] + c.Every[s]
				}
				wholeAdv = append(wholeAdv, row)
			}
			// gspo_token's aggregation divides by an answer's tokens: here one number for all
			policy, err := NewPolicy[float64](PolicyConfig{Loss: loss, Agg: "seq-mean-token-sum",
				ByEpisode: true, ClipC: math.Inf(1)})
			if err != nil {
				t.Fatal(err)
			}
			gradient := func(tokens [][]token, adv [][]float64, into map[token]float64) {
				t.Helper()
				b := PolicyBatch[float64]{B: len(tokens)}
				for _, row := range tokens {
					b.T = max(b.T, len(row))
				}
				n := b.B * b.T
				b.Logp, b.Mask, b.Adv = make([]float64, n), make([]float64, n), make([]float64, n)
				b.Tokens = make([]float64, b.B)
				for s, row := range tokens {
					b.Tokens[s] = 10
					for t, at := range row {
						b.Logp[s*b.T+t] = -float64(1+at.at+at.answer) / 7
						b.Mask[s*b.T+t], b.Adv[s*b.T+t] = 1, adv[s][t]
					}
				}
				b.Old = b.Logp
				res, err := policy.Step(b, NormOf(b.B, b.T, b.Mask))
				if err != nil {
					t.Fatal(err)
				}
				for s, row := range tokens {
					for t, at := range row {
						into[at] += res.DLogp[s*b.T+t]
					}
				}
			}
			gradient(own, ownAdv, once)
			gradient(whole, wholeAdv, paths)
			if len(once) != len(paths) {
				t.Fatalf("case %d: %d tokens learned once, %d on paths", i, len(once), len(paths))
			}
			for at, want := range paths {
				if d := math.Abs(once[at] - want); d > 1e-6 {
					t.Errorf("case %d: %s: token %v: %g, on all paths %g", i, loss, at, once[at],
						want)
				}
			}
			if err := policy.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Without branches tree_grpo is grpo, to the bit.
func TestTreesWithoutBranches(t *testing.T) {
	f := forest{own: []int{3, 1, 2, 4}, scores: []float64{.3, -1.7, 2.2, .3}}
	for s := range f.own {
		f.branches = append(f.branches, Branch{Tree: s, Parent: -1})
	}
	want, err := Advantages(AdvantageConfig{}, f.input())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Advantages(AdvantageConfig{Name: "tree_grpo"}, f.input())
	if err != nil {
		t.Fatal(err)
	}
	for s := range want {
		if !slices.Equal(got[s], want[s]) {
			t.Errorf("answer %d: %v, grpo %v", s, got[s], want[s])
		}
	}
}

func TestBranchesRefused(t *testing.T) {
	start := Branch{Parent: -1}
	for name, f := range map[string]forest{
		"none":                   {own: []int{2}, scores: []float64{1}},
		"of another number":      {branches: []Branch{start, start}, own: []int{2}, scores: []float64{1}},
		"a first answer later":   {branches: []Branch{{Parent: -1, At: 1}}, own: []int{2}, scores: []float64{1}},
		"two first answers":      {branches: []Branch{start, start}, own: []int{2, 2}, scores: []float64{1, 2}},
		"off a later answer":     {branches: []Branch{start, {Parent: 1, At: 1}}, own: []int{2, 2}, scores: []float64{1, 2}},
		"off another tree":       {branches: []Branch{start, {Tree: 1, At: 1}}, own: []int{2, 2}, scores: []float64{1, 2}},
		"behind the end":         {branches: []Branch{start, {At: 2}}, own: []int{2, 2}, scores: []float64{1, 2}},
		"within what is shared":  {branches: []Branch{start, {At: 2}, {Parent: 1, At: 2}}, own: []int{4, 2, 2}, scores: []float64{1, 2, 3}},
		"at a branch's own root": {branches: []Branch{start, {At: 2}, {Parent: 1, At: 0}}, own: []int{4, 2, 2}, scores: []float64{1, 2, 3}},
	} {
		for _, estimator := range []string{"tree_grpo", "tree_node"} {
			_, err := Advantages(AdvantageConfig{Name: estimator}, f.input())
			if !errors.Is(err, ErrShape) {
				t.Errorf("%s: %s: %v, expected ErrShape", name, estimator, err)
			}
		}
	}
}

// every are the prompt and every n-th place of each answer's own tokens.
func every(n int, tree []Branch, own []int) []Place {
	list := []Place{{}}
	for s, b := range tree {
		for at := b.At + 1; at < b.At+own[s]; at++ {
			if at%n == 0 {
				list = append(list, Place{s, at})
			}
		}
	}
	return list
}

// Every order of n places is equally probable, a place is drawn once, and there are no more than
// there are places.
func TestChooseRandom(t *testing.T) {
	places := []Place{{}, {0, 2}, {0, 4}}
	seen := map[[2]Place]int{}
	for a := range 3 {
		for b := range 2 {
			got := ChooseRandom(places, 2, func(k, n int) int {
				if n != 3-k {
					t.Errorf("draw %d among %d places", k, n)
				}
				return []int{a, b}[k]
			})
			if seen[[2]Place(got)]++; got[0] == got[1] {
				t.Errorf("%v is drawn twice", got[0])
			}
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d orders of two of three places, expected 6: %v", len(seen), seen)
	}
	all := ChooseRandom(places, 9, func(k, n int) int { return 0 })
	if !slices.Equal(all, places) || places[1] != (Place{0, 2}) {
		t.Errorf("%v of %v", all, places)
	}
}

// Searches worked by hand. Bounds are V/2 + 0.5 sqrt(ln(leaves before + 1)/leaves).
func TestChooseUCT(t *testing.T) {
	start := Branch{Parent: -1}
	one := []Branch{start}
	three := []Branch{start, {At: 0}, {At: 3}}
	for name, c := range map[string]struct {
		tree   []Branch
		own    []int
		scores []float64
		n      int
		want   []Place
	}{
		// one continuation everywhere: the first place that may branch, then the next
		"one answer": {one, []int{10}, []float64{1}, 2, []Place{{}, {0, 3}}},
		// four places, then no more
		"all places": {one, []int{10}, []float64{1}, 9, []Place{{}, {0, 3}, {0, 6}, {0, 9}}},
		// at the prompt 1/2 + 0.416 for answers 0 and 2 against -1/2 + 0.589 for answer 1; behind
		// three tokens both are alike, and the first is taken until it leads nowhere
		"the better side": {three, []int{10, 10, 7}, []float64{1, 0, 1}, 3,
			[]Place{{0, 6}, {0, 9}, {2, 6}}},
		// all scores equal: 0.416 against 0.589 for the side that was visited once
		"the side visited less": {three, []int{10, 10, 7}, []float64{5, 5, 5}, 1,
			[]Place{{1, 3}}},
		// the mean of 1 and -1 is 0, and so is the other side's: 0.416 against 0.589
		"the mean, not the best": {three, []int{10, 10, 7}, []float64{9, 4.5, 0}, 1,
			[]Place{{1, 3}}},
		// -1/2 + 0.416 against 1/2 + 0.589, though the tree's mean is below 0
		"a mean is not multiplied": {three, []int{10, 10, 7}, []float64{0, 9, 0}, 1,
			[]Place{{1, 3}}},
		// answer 1 has no place: its side leads nowhere, however good it is
		"a side without places": {three, []int{10, 2, 7}, []float64{0, 1, 0}, 1,
			[]Place{{0, 6}}},
		"not finite": {three, []int{10, 10, 7}, []float64{math.NaN(), 1, 0}, 1,
			[]Place{{1, 3}}},
	} {
		places := every(3, c.tree, c.own)
		if got := ChooseUCT(c.tree, places, c.scores, c.n); !slices.Equal(got, c.want) {
			t.Errorf("%s: chose %v, by hand %v", name, got, c.want)
		}
	}
}
