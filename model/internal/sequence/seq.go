// Package sequence groups sequences of tokens into passes of a model.
//
//	seq.go     a sequence and its trained spans
//	chunks.go  a long answer in contexts of bounded length
//	packs.go   packs of sequences; what several begin with is computed once
//	pick.go    elements by index
package sequence

import "fmt"

// Seq is a sequence of tokens. Those in its spans are trained: they have log-probabilities, and
// what is learned is learned at them. All others are context: the prompt before the first span, and
// what an environment wrote between two.
type Seq struct {
	IDs   []int32
	Spans []Span // ascending; none overlaps another

	// Shared is how many tokens other sequences begin with too, where it is less than the prompt: a
	// pack computes them once. 0 is the prompt.
	Shared int

	// Branching says that the sequence is one of several that may part anywhere behind what is
	// Shared, as the answers of a tree do: what two of them begin with a pack computes once.
	Branching bool
}

// Span is the tokens IDs[From:To] of a sequence. It is not empty, except in an answer of no tokens.
type Span struct{ From, To int }

// Answer returns a sequence with one span: a prompt of so many tokens, and all behind it.
func Answer(ids []int32, prompt int) Seq {
	return Seq{IDs: ids, Spans: []Span{{prompt, len(ids)}}}
}

// Prompt returns the number of tokens before the first trained one; 0 where none is trained.
func (s Seq) Prompt() int {
	if len(s.Spans) == 0 {
		return 0
	}
	return s.Spans[0].From
}

// shares returns the number of tokens at the beginning that sequences of one pack may share.
func (s Seq) shares() int {
	if s.Shared > 0 {
		return min(s.Shared, s.Prompt())
	}
	return s.Prompt()
}

// Response returns all behind the prompt. Of a sequence with several spans that is not only what is
// trained.
func (s Seq) Response() []int32 { return s.IDs[s.Prompt():] }

// Trained returns the number of trained tokens.
func (s Seq) Trained() (n int) {
	for _, p := range s.Spans {
		n += p.To - p.From
	}
	return n
}

// Turns returns the number of turns that a Scorer scores (Model.AllTurnScores): a turn is a span
// and ends at its last token. A sequence without spans is one turn.
func (s Seq) Turns() int { return max(1, len(s.Spans)) }

// TurnEnd returns the last token of turn k. An answer of no tokens ends at its prompt's last token.
func (s Seq) TurnEnd(k int) int {
	if len(s.Spans) == 0 {
		return len(s.IDs) - 1
	}
	return s.Spans[k].To - 1
}

// TrainedIDs returns the trained tokens, span after span.
func (s Seq) TrainedIDs() []int32 {
	if len(s.Spans) == 1 {
		return s.IDs[s.Spans[0].From:s.Spans[0].To]
	}
	var ids []int32
	for _, p := range s.Spans {
		ids = append(ids, s.IDs[p.From:p.To]...)
	}
	return ids
}

// Upto returns the sequence's first n tokens, or all if there are fewer.
func (s Seq) Upto(n int) Seq {
	if n >= len(s.IDs) {
		return s
	}
	out := Seq{IDs: s.IDs[:n:n]}
	for i, p := range s.Spans {
		if p.From < n || i == 0 {
			out.Spans = append(out.Spans, Span{min(p.From, n), min(p.To, n)})
		}
	}
	return out
}

// Check refuses spans of which log-probabilities cannot be given.
func (s Seq) Check() error {
	n := len(s.IDs)
	if p := s.Prompt(); p < 1 || p > n {
		return fmt.Errorf("prompt of %d of %d tokens: expected at least one, since the first response token is predicted from it", p, n)
	}
	if len(s.Spans) == 1 && s.Spans[0] == (Span{n, n}) {
		return nil // an answer of no tokens
	}
	end := 0
	for i, p := range s.Spans {
		if p.From < end || p.To <= p.From || p.To > n {
			return fmt.Errorf("span %d is tokens %d to %d of %d: expected spans that ascend, overlap nowhere and are not empty", i, p.From, p.To, n)
		}
		end = p.To
	}
	return nil
}
