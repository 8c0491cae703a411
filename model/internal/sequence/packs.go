package sequence

import (
	"encoding/binary"
	"slices"
	"sort"
)

// Packs groups sequences into micro-batches of at most maxTokens tokens; a longer sequence is a
// pack of its own. Entries are indices into seqs. Sequences with the same prompt are adjacent, at
// the place of the first of them, and in one pack unless they alone exceed maxTokens: a pack
// computes their prompt once, and its tokens count once. Branching sequences are in the order of
// ByPrompt, so that a border between packs separates as few common tokens as possible.
func Packs(seqs []Seq, maxTokens int) [][]int {
	var packs [][]int
	room := 0
	begin := func() { packs, room = append(packs, nil), maxTokens }
	for _, group := range ByPrompt(seqs) {
		for rest := group; len(rest) > 0; {
			// The largest n that fits in a pack of its own: each sequence adds a token or more.
			n := max(1, sort.Search(len(rest), func(n int) bool {
				return Rows(seqs, rest[:n+1]) > maxTokens
			}))
			if need := Rows(seqs, rest[:n]); len(packs) == 0 || need > room || n < len(rest) &&
				len(packs[len(packs)-1]) > 0 {
				begin()
			}
			packs[len(packs)-1] = append(packs[len(packs)-1], rest[:n]...)
			room -= Rows(seqs, rest[:n])
			rest = rest[n:]
		}
	}
	return packs
}

// PacksByShard returns the packs of each shard of a mini-batch. Entries of shards and of packs are
// indices into seqs.
func PacksByShard(seqs []Seq, shards [][]int, maxTokens int) (packsK [][][]int) {
	packsK = make([][][]int, len(shards))
	for k, shard := range shards {
		for _, pack := range Packs(Pick(seqs, shard), maxTokens) {
			packsK[k] = append(packsK[k], Pick(shard, pack))
		}
	}
	return packsK
}

// ByPrompt returns the indices of seqs, grouped by prompt, each group at the place of its first
// sequence. A sequence without a prompt is a group of its own. Within a group the Branching
// sequences come last, sorted by their tokens, so that neighbours have the longest common prefixes.
func ByPrompt(seqs []Seq) (groups [][]int) {
	defer func() {
		for _, g := range groups {
			slices.SortStableFunc(g, func(i, j int) int { return compareSeqs(seqs[i], seqs[j]) })
		}
	}()
	at := make(map[string]int, len(seqs))
	var key []byte
	for i, s := range seqs {
		if i > 0 && len(groups) > 0 && SharePrompt(seqs[groups[len(groups)-1][0]], s) {
			groups[len(groups)-1] = append(groups[len(groups)-1], i)
			continue
		}
		if s.shares() > 0 {
			key = key[:0]
			for _, id := range s.IDs[:min(s.shares(), len(s.IDs))] {
				key = binary.NativeEndian.AppendUint32(key, uint32(id))
			}
			if g, ok := at[string(key)]; ok {
				groups[g] = append(groups[g], i)
				continue
			}
			at[string(key)] = len(groups)
		}
		groups = append(groups, []int{i})
	}
	return groups
}

// SharePrompt reports whether two sequences have the same shared prefix (Seq.Shared), of at least
// one token.
func SharePrompt(a, b Seq) bool {
	n := a.shares()
	return n > 0 && n == b.shares() && len(a.IDs) >= n && len(b.IDs) >= n &&
		slices.Equal(a.IDs[:n], b.IDs[:n])
}

// sharedTokens returns the number of tokens that a pack computes once for group, sequences of one
// prompt: the shared prefix, but at least one token of each sequence is its own.
func sharedTokens(group []Seq) int {
	if len(group) < 2 {
		return 0
	}
	n := group[0].shares()
	for _, s := range group {
		n = min(n, len(s.IDs)-1)
	}
	return n
}

// compareSeqs orders the sequences of a prompt: first all that are not Branching, as equals, then
// the Branching ones by their tokens.
func compareSeqs(a, b Seq) int {
	switch {
	case a.Branching && b.Branching:
		return slices.Compare(a.IDs, b.IDs)
	case a.Branching:
		return 1
	case b.Branching:
		return -1
	}
	return 0
}

// Tree is a trie of the sequences of one prompt, as a pack lays them out: each shared run of tokens
// stands once. Sequences that are not Branching share the prompt alone.
type Tree struct {
	seqs   []Seq
	Order  []int    // indices of seqs, sorted as in ByPrompt
	common []int    // in that order: tokens shared with the sequence before
	Runs   []branch // depth first
}

// branch is a run of shared tokens: tokens From to To-1 of the sequences Order[Lo:Hi]. Parent is
// the index of the run before it, -1 at the root.
type branch struct{ From, To, Lo, Hi, Parent int }

// Grow builds the tree of seqs and reuses its memory. At least one token of each sequence is its
// own, so that the last tokens of all have separate rows.
func (t *Tree) Grow(seqs []Seq) {
	t.seqs, t.Order, t.common, t.Runs = seqs, t.Order[:0], t.common[:0], t.Runs[:0]
	for i := range seqs {
		t.Order = append(t.Order, i)
	}
	slices.SortStableFunc(t.Order, func(i, j int) int { return compareSeqs(seqs[i], seqs[j]) })
	shared := sharedTokens(seqs)
	for k, i := range t.Order {
		n := shared
		if k > 0 && seqs[i].Branching && seqs[t.Order[k-1]].Branching {
			a, b := seqs[t.Order[k-1]].IDs, seqs[i].IDs
			for most := min(len(a), len(b)) - 1; n < most && a[n] == b[n]; n++ {
			}
		}
		t.common = append(t.common, n)
	}
	if len(seqs) > 0 {
		t.branch(0, len(seqs), 0, -1)
	}
}

// branch appends the runs of the sequences Order[lo:hi], whose first from tokens are in the run
// parent and its ancestors.
func (t *Tree) branch(lo, hi, from, parent int) {
	to := len(t.seqs[t.Order[lo]].IDs)
	for k := lo + 1; k < hi; k++ {
		to = min(to, t.common[k])
	}
	if to > from {
		t.Runs = append(t.Runs, branch{from, to, lo, hi, parent})
		parent = len(t.Runs) - 1
	}
	for k := lo; k < hi && hi-lo > 1; {
		next := k + 1
		for next < hi && t.common[next] > to {
			next++
		}
		t.branch(k, next, to, parent)
		k = next
	}
}

// Rows returns the number of tokens that a pack computes for the sequences group, indices into
// seqs, which have one prompt.
func Rows(seqs []Seq, group []int) (n int) {
	of := Pick(seqs, group)
	if !slices.ContainsFunc(of, func(s Seq) bool { return s.Branching }) {
		shared := sharedTokens(of)
		for _, s := range of {
			n += len(s.IDs) - shared
		}
		return n + shared
	}
	var t Tree
	t.Grow(of)
	for _, r := range t.Runs {
		n += r.To - r.From
	}
	return n
}

// Segment is a run of consecutive tokens that a pass computes.
type Segment struct {
	Tokens int
	Before int // position of the first of them in its sequence
}

// Segments returns the runs of tokens that one pass over seqs computes. Tokens that several
// sequences share are computed once, provided that these fit in one pack.
func Segments(seqs []Seq) (out []Segment) {
	var t Tree
	for _, group := range ByPrompt(seqs) {
		t.Grow(Pick(seqs, group))
		for _, r := range t.Runs {
			out = append(out, Segment{Tokens: r.To - r.From, Before: r.From})
		}
	}
	return out
}
