package sequence

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func TestUpto(t *testing.T) {
	s := Seq{IDs: []int32{1, 2, 3, 4, 5, 6, 7, 8}, Spans: []Span{{2, 4}, {6, 8}}}
	for n, want := range map[int][]Span{9: {{2, 4}, {6, 8}}, 8: {{2, 4}, {6, 8}},
		7: {{2, 4}, {6, 7}}, 6: {{2, 4}}, 3: {{2, 3}}, 2: {{2, 2}}} {
		got := s.Upto(n)
		if len(got.IDs) != min(n, 8) || !slices.Equal(got.Spans, want) {
			t.Errorf("up to %d: %v, want %v", n, got, want)
		}
		if err := got.Check(); err != nil {
			t.Errorf("up to %d: %v", n, err)
		}
	}
	if s.Prompt() != 2 || s.Trained() != 4 || len(s.Response()) != 6 ||
		(Seq{IDs: s.IDs}).Prompt() != 0 {
		t.Errorf("%d, %d, %v", s.Prompt(), s.Trained(), s.Response())
	}
}

// A chunk's context is what the definition says of the carry and of what was just written, for
// every length of a thought; chunks together are the answer, each token once.
func TestChunks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		c := Chunks{Size: 2 + r.IntN(20), Most: 2 + r.IntN(6)}
		c.Carry = 1 + r.IntN(c.Size-1)
		c.Head = r.IntN(c.Carry)
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		q, answer := make([]int32, 1+r.IntN(4)), make([]int32, r.IntN(c.Longest()+1))
		for i := range answer {
			answer[i] = int32(100 + i)
		}
		seqs := c.Seqs(q, answer)
		// By the definition, with no arithmetic of positions.
		var head, carried, said []int32
		for k, s := range seqs {
			written := s.TrainedIDs()
			if k == 0 {
				head = written[:min(c.Head, len(written))]
				if !slices.Equal(s.IDs[:s.Prompt()], q) || len(written) > c.Size {
					t.Fatalf("%+v: first chunk %v", c, s)
				}
				carried = nil
			} else if want := slices.Concat(q, head, carried); !slices.Equal(s.IDs[:s.Prompt()],
				want) || len(written) > c.Size-c.Carry {
				t.Fatalf("%+v: chunk %d of %d tokens: %v, want context %v", c, k, len(answer), s,
					want)
			}
			said = append(said, written...)
			both := slices.Concat(carried, written)
			carried = both[max(0, len(both)-(c.Carry-c.Head)):]
			if len(s.IDs) > len(q)+c.Size {
				t.Fatalf("%+v: a context of %d tokens", c, len(s.IDs))
			}
		}
		if !slices.Equal(said, answer) || len(seqs) > c.Most || len(seqs) != c.Count(len(answer)) {
			t.Fatalf("%+v: %d chunks of %d tokens have %v", c, len(seqs), len(answer), said)
		}
		whole := Answer(slices.Concat(q, answer), len(q))
		list, from := c.SplitAll([]Seq{whole, whole})
		if !reflect.DeepEqual(list[:len(seqs)], seqs) || from[len(seqs)-1] != 0 ||
			from[len(seqs)] != 1 || !reflect.DeepEqual(c.Last([]Seq{whole})[0], seqs[len(seqs)-1]) {
			t.Fatalf("%+v: split %v", c, list)
		}
	}
	for _, c := range []Chunks{{Size: 8, Carry: 8, Most: 2}, {Size: 8, Carry: 4, Head: 4, Most: 2},
		{Size: 8, Carry: 4, Head: -1, Most: 2}, {Size: 8, Carry: 4, Most: 1}, {Size: 8, Most: 2},
		{Size: 1 << 20, Carry: 1, Most: 1 << 20}} {
		if c.Check() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}
