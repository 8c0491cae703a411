// Package sequence groups sequences of tokens into passes of a model.
//
//	seq.go     a sequence and its trained spans
//	chunks.go  a long answer in contexts of bounded length
//	packs.go   packs of sequences; common prefixes are computed once
//	pick.go    elements by index
package sequence

import "fmt"

// Seq is a sequence of tokens. The tokens in its spans are trained: they have log-probabilities and
// enter the loss. All others are context: the prompt before the first span, and an environment's
// replies between two spans.
type Seq struct {
	IDs   []int32
	Spans []Span // ascending, without overlap

	// Shared is the length of the prefix that sequences of one prompt share, if it is shorter than
	// the prompt: a pack computes it once. 0 means the whole prompt.
	Shared int

	// Branching marks a sequence of a tree: two such sequences may have more tokens in common
	// behind the shared prefix, and a pack computes each common prefix once.
	Branching bool
}

// Span is the tokens IDs[From:To] of a sequence. It is not empty, except in an answer of no tokens.
type Span struct{ From, To int }

// Answer returns a sequence whose first prompt tokens are context and whose other tokens are one
// span.
func Answer(ids []int32, prompt int) Seq {
	return Seq{IDs: ids, Spans: []Span{{prompt, len(ids)}}}
}

// Prompt returns the number of tokens before the first trained one; 0 if no token is trained.
func (s Seq) Prompt() int {
	if len(s.Spans) == 0 {
		return 0
	}
	return s.Spans[0].From
}

// shares returns the length of the prefix that sequences of one prompt may share.
func (s Seq) shares() int {
	if s.Shared > 0 {
		return min(s.Shared, s.Prompt())
	}
	return s.Prompt()
}

// Response returns all tokens behind the prompt. Between several spans it has context tokens too.
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

// TurnEnd returns the position of the last token of turn k. An answer of no tokens ends at its
// prompt's last token.
func (s Seq) TurnEnd(k int) int {
	if len(s.Spans) == 0 {
		return len(s.IDs) - 1
	}
	return s.Spans[k].To - 1
}

// TrainedIDs returns the ids of the trained tokens, span after span. With one span the slice shares
// the memory of IDs.
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

// Upto returns the sequence's first n tokens, or s itself if it has no more. The memory of IDs is
// shared.
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

// Check refuses spans whose log-probabilities are not defined: a prompt of no tokens, or spans that
// are empty, overlap, do not ascend or pass the end.
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

// CheckIDs refuses ids outside a vocabulary.
func CheckIDs(ids []int32, vocab int) error {
	for t, id := range ids {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf(
				"token %d: id %d: outside the vocabulary of %d: use the model's own tokenizer", t,
				id, vocab)
		}
	}
	return nil
}
