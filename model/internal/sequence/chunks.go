package sequence

import (
	"fmt"
	"slices"
)

// Chunks has the sizes by which a long answer (a thought) is written in contexts of bounded length
// (Delethink, the Markovian thinker, arXiv 2510.06557). The first answer to a question q has up to
// Size tokens. If it has not ended, the next context is
//
//	q + thought[:Head] + thought[n-(Carry-Head):n]
//
// with n the tokens of the thought so far, and is answered with up to Size-Carry more, and so on,
// Most chunks in all. So a context with its answer has at most len(q)+Size tokens, and a thought at
// most Size + (Most-1)(Size-Carry). The zero value is off: an answer is one sequence.
//
// Contexts are made of the tokens that were sampled: nothing is decoded and encoded again.
type Chunks struct {
	Size  int // C, tokens of the first chunk
	Carry int // m, tokens of the thought in the next context
	Head  int // h, tokens of the carry that come from the thought's beginning
	Most  int // I, chunks of a thought at most
}

// mostDrawn is the largest position of a draw (Request.Drawn).
const mostDrawn = 1<<27 - 1

// On reports whether answers are written in chunks.
func (c Chunks) On() bool { return c.Size > 0 }

// Longest returns the length in tokens of the longest thought.
func (c Chunks) Longest() int { return c.Size + (c.Most-1)*(c.Size-c.Carry) }

// Check refuses sizes that make no thought, or one longer than mostDrawn. The zero value passes.
func (c Chunks) Check() error {
	switch {
	case c == Chunks{}:
	case c.Head < 0 || c.Head >= c.Carry || c.Carry >= c.Size:
		return fmt.Errorf("head %d, carry %d, chunk %d: expected 0 <= head < carry < chunk", c.Head,
			c.Carry, c.Size)
	case c.Most < 2:
		return fmt.Errorf("%d chunks: expected at least 2", c.Most)
	case c.Most > mostDrawn || c.Longest() > mostDrawn:
		return fmt.Errorf(
			"%d chunks of %d tokens with a carry of %d: a thought of more than %d tokens",
			c.Most, c.Size, c.Carry, mostDrawn)
	}
	return nil
}

// Count returns the number of chunks of a thought of n tokens.
func (c Chunks) Count(n int) int {
	if !c.On() || n <= c.Size {
		return 1
	}
	step := c.Size - c.Carry
	return 1 + (n-c.Size+step-1)/step
}

// Next returns the number of tokens that a thought of n tokens may grow before a new context
// begins.
func (c Chunks) Next(n int) int {
	if n < c.Size {
		return c.Size - n
	}
	step := c.Size - c.Carry
	return step - (n-c.Size)%step
}

// Seams returns the positions in a thought of n tokens at which its second and later chunks begin.
func (c Chunks) Seams(n int) (list []int) {
	for k := 1; k < c.Count(n); k++ {
		list = append(list, c.Size+(k-1)*(c.Size-c.Carry))
	}
	return list
}

// Context returns the context of the next chunk, in a new slice: q, then the head and the last
// tokens of the thought so far.
func (c Chunks) Context(q, thought []int32) []int32 {
	if len(thought) == 0 {
		return slices.Clone(q)
	}
	return slices.Concat(q, thought[:c.Head], thought[len(thought)-(c.Carry-c.Head):])
}

// Seqs returns the chunks of the answer to q, each a sequence of its context and its tokens. If
// chunks are off, it returns the one sequence of q and answer.
func (c Chunks) Seqs(q, answer []int32) (list []Seq) {
	if !c.On() {
		return []Seq{Answer(slices.Concat(q, answer), len(q))}
	}
	for at := 0; at == 0 || at < len(answer); {
		context := c.Context(q, answer[:at])
		to := min(len(answer), at+c.Next(at))
		chunk := Answer(slices.Concat(context, answer[at:to]), len(context))
		chunk.Shared = len(q)
		list = append(list, chunk)
		at = max(to, 1)
	}
	return list
}

// SplitAll returns the chunks of every sequence of seqs, which has one span, and for each chunk the
// index in seqs of its sequence.
func (c Chunks) SplitAll(seqs []Seq) (list []Seq, from []int) {
	for i, s := range seqs {
		parts := []Seq{s}
		if c.On() {
			parts = c.Seqs(s.IDs[:s.Prompt()], s.Response())
		}
		for _, part := range parts {
			list, from = append(list, part), append(from, i)
		}
	}
	return list, from
}

// Last returns the last chunk of each sequence of seqs.
func (c Chunks) Last(seqs []Seq) []Seq {
	if !c.On() {
		return seqs
	}
	out := make([]Seq, len(seqs))
	for i, s := range seqs {
		parts := c.Seqs(s.IDs[:s.Prompt()], s.Response())
		out[i] = parts[len(parts)-1]
	}
	return out
}
