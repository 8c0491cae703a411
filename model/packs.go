package model

import (
	"encoding/binary"
	"slices"
)

// Packs groups sequences into micro-batches of at most maxTokens tokens; a longer sequence is a
// pack of its own. Entries are indices into seqs. Sequences with the same prompt are adjacent, at
// the place of the first of them, and are in one pack unless they alone exceed maxTokens: a pack
// computes their prompt once, and its tokens count once.
func Packs(seqs []Seq, maxTokens int) [][]int {
	var packs [][]int
	room := 0
	begin := func() { packs, room = append(packs, nil), maxTokens }
	for _, group := range byPrompt(seqs) {
		for rest := group; len(rest) > 0; {
			// The largest n that fits in a pack of its own.
			n := len(rest)
			for n > 1 && rowsOf(seqs, rest[:n]) > maxTokens {
				n--
			}
			if need := rowsOf(seqs, rest[:n]); len(packs) == 0 || need > room || n < len(rest) &&
				len(packs[len(packs)-1]) > 0 {
				begin()
			}
			packs[len(packs)-1] = append(packs[len(packs)-1], rest[:n]...)
			room -= rowsOf(seqs, rest[:n])
			rest = rest[n:]
		}
	}
	return packs
}

// PacksByShard is Packs for each shard of a mini-batch: shards and packs hold indices into seqs.
func PacksByShard(seqs []Seq, shards [][]int, maxTokens int) (packsK [][][]int) {
	packsK = make([][][]int, len(shards))
	for k, shard := range shards {
		for _, pack := range Packs(Pick(seqs, shard), maxTokens) {
			packsK[k] = append(packsK[k], Pick(shard, pack))
		}
	}
	return packsK
}

// byPrompt is the indices of seqs, grouped by prompt, each group at the place of its first
// sequence. A sequence without a prompt is a group of its own.
func byPrompt(seqs []Seq) (groups [][]int) {
	at := make(map[string]int, len(seqs))
	var key []byte
	for i, s := range seqs {
		if i > 0 && len(groups) > 0 && sharePrompt(seqs[groups[len(groups)-1][0]], s) {
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

// sharePrompt reports whether two sequences have the same prompt, or the part of it that is shared.
func sharePrompt(a, b Seq) bool {
	n := a.shares()
	return n > 0 && n == b.shares() && len(a.IDs) >= n && len(b.IDs) >= n &&
		slices.Equal(a.IDs[:n], b.IDs[:n])
}

// sharedTokens is the number of tokens that a pack computes once for sequences of one prompt: the
// prompt's, but at least one token of each sequence is its own.
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

// rowsOf is the number of tokens that a pack computes for the given sequences of one prompt.
func rowsOf(seqs []Seq, group []int) (n int) {
	shared := sharedTokens(Pick(seqs, group))
	for _, i := range group {
		n += len(seqs[i].IDs) - shared
	}
	return n + shared
}

// Segment is consecutive tokens that a pass computes.
type Segment struct {
	Tokens int
	Before int // tokens of the sequence before the first of them
}

// Segments are the tokens that one pass over seqs computes. A prompt that several sequences share
// is computed once, provided that they fit in one pack.
func Segments(seqs []Seq) (out []Segment) {
	for _, group := range byPrompt(seqs) {
		shared := sharedTokens(Pick(seqs, group))
		if shared > 0 {
			out = append(out, Segment{Tokens: shared})
		}
		for _, i := range group {
			out = append(out, Segment{Tokens: len(seqs[i].IDs) - shared, Before: shared})
		}
	}
	return out
}
