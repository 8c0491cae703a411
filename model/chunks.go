package model

import (
	"fmt"
	"slices"
)

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
	return min(r.MaxNew, r.Chunks.Next(len(r.said.ids)))
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
