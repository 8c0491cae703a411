package sampling

import (
	"fmt"
	"slices"
)

// thought is the earlier chunks of a response.
type thought struct {
	question []int32
	ids      []int32
	logp     []float32
	sample   int // number of the response among the first request's
}

// limit returns the largest number of tokens of the request's current chunk; of a response without
// chunks MaxNew.
func (r *Request) limit() int {
	if !r.Chunks.On() {
		return r.MaxNew
	}
	return min(r.MaxNew, r.Chunks.Next(len(r.earlier.ids)))
}

// number returns the number of sample s for callbacks: of the response, not of its chunk.
func (r *Request) number(s int) int { return r.earlier.sample + s }

// whole returns the response whose last chunk is c.
func (r *Request) whole(c Completion) Completion {
	if len(r.earlier.ids) > 0 {
		c.IDs, c.Logp = slices.Concat(r.earlier.ids, c.IDs), slices.Concat(r.earlier.logp, c.Logp)
	}
	return c
}

// proceed queues the next chunk of sample s behind c, which was cut at its limit, and reports
// whether it did: false if chunks are off or the thought has reached its limit. The chunk precedes
// all requests that have not started, so that started thoughts end before others start.
func (e *Engine) proceed(r *Request, s int, c Completion) bool {
	if !r.Chunks.On() || len(c.IDs) >= r.MaxNew {
		return false
	}
	whole := r.whole(c)
	next := *r
	next.earlier = thought{question: r.earlier.question, ids: whole.IDs, logp: whole.Logp,
		sample: r.number(s)}
	if next.earlier.question == nil {
		next.earlier.question = r.Prompt
	}
	next.Prompt = r.Chunks.Context(next.earlier.question, whole.IDs)
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

// checkChunks refuses a request whose first chunk, or whole response without chunks, does not fit
// the engine.
func (e *Engine) checkChunks(r *Request) error {
	if err := r.Chunks.Check(); err != nil {
		return err
	}
	if r.Chunks.On() && r.MaxNew > r.Chunks.Longest() {
		return fmt.Errorf("%d new tokens: a thought has at most %d", r.MaxNew, r.Chunks.Longest())
	}
	return e.m.checkPrompt(r.Prompt, r.limit(), e.o.Longest, r.Row)
}
