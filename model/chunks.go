package model

import (
	"fmt"
	"slices"
)

// Chunks are how a long answer is written in contexts of bounded length (Delethink, the Markovian
// thinker, arXiv 2510.06557). The first answer to a question q has up to Size tokens. If it has not
// ended, the next context is
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
	Carry int // m, tokens of the thought that the next context has
	Head  int // h, of these, the ones of the thought's beginning
	Most  int // I, chunks of a thought
}

// mostDrawn bounds the position of a draw (Request.Drawn).
const mostDrawn = 1<<27 - 1

// On reports whether answers are written in chunks.
func (c Chunks) On() bool { return c.Size > 0 }

// Longest is the most tokens of a thought.
func (c Chunks) Longest() int { return c.Size + (c.Most-1)*(c.Size-c.Carry) }

// Check refuses sizes of which no thought can be made.
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

// Count is how many chunks a thought of n tokens has.
func (c Chunks) Count(n int) int {
	if !c.On() || n <= c.Size {
		return 1
	}
	step := c.Size - c.Carry
	return 1 + (n-c.Size+step-1)/step
}

// next is how many tokens may follow n of a thought without a new context.
func (c Chunks) next(n int) int {
	if n < c.Size {
		return c.Size - n
	}
	step := c.Size - c.Carry
	return step - (n-c.Size)%step
}

// Seams are the lengths of a thought of n tokens at which its later chunks begin.
func (c Chunks) Seams(n int) (list []int) {
	for k := 1; k < c.Count(n); k++ {
		list = append(list, c.Size+(k-1)*(c.Size-c.Carry))
	}
	return list
}

// Context is what the chunk behind the tokens of thought is written behind: a new slice.
func (c Chunks) Context(q, thought []int32) []int32 {
	if len(thought) == 0 {
		return slices.Clone(q)
	}
	return slices.Concat(q, thought[:c.Head], thought[len(thought)-(c.Carry-c.Head):])
}

// Seqs are the chunks of the answer to q, each a sequence of its context and its tokens; off, the
// one sequence of both.
func (c Chunks) Seqs(q, answer []int32) (list []Seq) {
	if !c.On() {
		return []Seq{Answer(slices.Concat(q, answer), len(q))}
	}
	for at := 0; at == 0 || at < len(answer); {
		context := c.Context(q, answer[:at])
		to := min(len(answer), at+c.next(at))
		chunk := Answer(slices.Concat(context, answer[at:to]), len(context))
		chunk.Shared = len(q)
		list = append(list, chunk)
		at = max(to, 1)
	}
	return list
}

// SplitAll is Seqs of every sequence, each of one span, and the sequence that each comes from.
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

// Last is the last of Seqs of each sequence.
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

// thought is what a request in chunks has written in its earlier ones.
type thought struct {
	question []int32
	ids      []int32
	logp     []float32
	sample   int // number of the response among the first request's
}

// limit is how many tokens the request's present chunk may have, of a response of one chunk all.
func (r *Request) limit() int {
	if !r.Chunks.On() {
		return r.MaxNew
	}
	return min(r.MaxNew, r.Chunks.next(len(r.said.ids)))
}

// number is the response's number that callbacks have for sample s.
func (r *Request) number(s int) int { return r.said.sample + s }

// whole is the response of which c is the last chunk.
func (r *Request) whole(c Completion) Completion {
	if len(r.said.ids) > 0 {
		c.IDs, c.Logp = slices.Concat(r.said.ids, c.IDs), slices.Concat(r.said.logp, c.Logp)
	}
	return c
}

// proceed queues the next chunk of sample s, if the thought may have one: c is its present one, and
// not ended. It comes before requests of which nothing has started, so that a thought that has
// begun ends before others begin.
func (e *Engine) proceed(r *Request, s int, c Completion) bool {
	if !r.Chunks.On() || len(c.IDs) >= r.MaxNew {
		return false
	}
	whole := r.whole(c)
	next := *r
	next.said = thought{question: r.said.question, ids: whole.IDs, logp: whole.Logp,
		sample: r.number(s)}
	if next.said.question == nil {
		next.said.question = r.Prompt
	}
	next.Prompt = r.Chunks.Context(next.said.question, whole.IDs)
	next.N, next.Sample, next.Drawn = 1, r.Sample+s, r.Drawn+len(c.IDs)
	next.MaxNew = r.MaxNew - len(c.IDs)
	next.Echo, next.Found = nil, nil
	at := 0
	if e.head != nil {
		at = 1
	}
	e.queue = slices.Insert(e.queue, at, &next)
	return true
}

// checkChunks refuses a request whose chunks, or whose only one, do not fit the engine.
func (e *Engine) checkChunks(r *Request) error {
	if err := r.Chunks.Check(); err != nil {
		return err
	}
	if r.Chunks.On() && r.MaxNew > r.Chunks.Longest() {
		return fmt.Errorf("%d new tokens: a thought has at most %d", r.MaxNew, r.Chunks.Longest())
	}
	return e.m.checkPrompt(r.Prompt, r.limit(), e.o.Longest, r.Row)
}
