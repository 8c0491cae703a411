package model

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"gad/internal/comm"
	"gad/internal/comm/commtest"
	"gad/internal/compute/cpu"
	"gad/model/internal/sequence"
)

// The ranks' shares have each sequence once, whole prompts, in order, and no rank has more
// than its part and the longest prompt with its answers.
func TestShareOfRanks(t *testing.T) {
	var seqs []Seq
	for p := range 13 {
		for range 1 + p%3 {
			seqs = append(seqs, Answer(make([]int32, 6+5*(p%4)), 4))
			for i := range seqs[len(seqs)-1].IDs {
				seqs[len(seqs)-1].IDs[i] = int32(p)
			}
		}
	}
	for _, ranks := range []int{2, 4, 8, 16} {
		for r, err := range commtest.Run(ranks, time.Minute, func(g *comm.Group) error {
			byRank := share(g.Size(), seqs)
			all, rows, longest := slices.Concat(byRank...), 0, 0
			if len(byRank) != ranks || !slices.Equal(all, allOf(len(seqs))) {
				t.Errorf("%d ranks: shares %v", ranks, byRank)
			}
			for _, group := range sequence.ByPrompt(seqs) {
				rows, longest = rows+sequence.Rows(seqs, group), max(longest, sequence.Rows(seqs, group))
			}
			for r, mine := range byRank {
				own := 0
				for _, group := range sequence.ByPrompt(Pick(seqs, mine)) {
					own += sequence.Rows(Pick(seqs, mine), group)
				}
				if own > rows/ranks+longest {
					t.Errorf("%d ranks: rank %d has %d of %d tokens", ranks, r, own, rows)
				}
				if r > 0 && len(mine) > 0 && mine[0] > 0 &&
					sequence.SharePrompt(seqs[mine[0]-1], seqs[mine[0]]) {
					t.Errorf("%d ranks: a prompt is torn before sequence %d", ranks, mine[0])
				}
			}
			return g.Barrier("end")
		}) {
			if err != nil {
				t.Errorf("%d ranks, rank %d: %v", ranks, r, err)
			}
		}
	}
}

func allOf(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// Answers come out as they went in; a message that is cut short anywhere is an error.
func TestCompletionsAsBytes(t *testing.T) {
	want := [][]Completion{
		{{IDs: []int32{5, 1}, Logp: []float32{-0.5, float32(-1e-30)}},
			{IDs: []int32{7}, Logp: []float32{0}, Truncated: true}},
		{{IDs: []int32{}, Logp: []float32{}},
			{IDs: []int32{1, 2, 3}, Logp: []float32{-1, -2, -3}, Truncated: true}},
	}
	raw := packCompletions(want, false)
	got := make([][]Completion, 2)
	if err := unpackCompletions(got, 2, raw); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for n := range raw {
		if err := unpackCompletions(make([][]Completion, 2), 2, raw[:n]); err == nil {
			t.Errorf("%d of %d bytes: no error", n, len(raw))
		}
	}
}

func TestSplitRefuses(t *testing.T) {
	be, err := cpu.New(cpu.Options{Workers: 1})
	must(t, err)
	defer be.Close()
	m, err := New(be, tiny("Qwen2"), Options{Seed: 1})
	must(t, err)
	defer m.Close()
	for _, shards := range []int{0, 3, 6, -2} {
		if err := m.Split(nil, shards); err == nil {
			t.Errorf("%d shards: no error", shards)
		}
	}
	if err := m.Split(nil, 4); err != nil || m.Shards() != 4 || m.Shard(4, 6) != 2 ||
		m.Shard(5, 6) != 3 {
		t.Errorf("%v, %d shards, items 4 and 5 of 6 in %d and %d", err, m.Shards(), m.Shard(4, 6),
			m.Shard(5, 6))
	}
}
