package sampling

import (
	"errors"
	"fmt"

	"gad/internal/compute"
	"gad/model/internal/pages"
	"gad/model/internal/sequence"
)

// SampleOptions are the settings of Generate.
type SampleOptions struct {
	N      int // responses to each prompt
	MaxNew int // most tokens of a response, the end-of-sequence token included
	// on: a response is a thought in chunks, of at most MaxNew tokens in all
	Chunks     sequence.Chunks
	Sampling   compute.Sampling // temperature and filters
	EOS        []int32          // tokens that end a response
	Seed, Step uint64           // keys of the draws
	Slots      int              // sequences sampled at the same time; 0 is 64
	PageTokens int              // positions in a page of the cache; 0 is 16
	// [P] with N 1: each prompt ends with the first tokens of its response, and only the rest is
	// sampled and returned; nil: none does. MaxNew counts these first tokens too. With Chunks they
	// must be whole chunks.
	Begun []Begun
	// Stop is called before each decode step: true ends the call with ErrStopped; it may be nil.
	Stop func() bool

	// Callbacks during the call; each may be nil. A call that is stopped returns no responses, but
	// has passed the finished ones to Done.
	Token func(prompt, sample int, id int32)     // each token as it is drawn
	Done  func(prompt, sample int, c Completion) // each response as it ends
}

// Begun is a response of which the first Drawn tokens stand at its prompt's end: sample Sample of
// the row. Its remaining tokens are drawn as without the interruption.
type Begun struct{ Sample, Drawn int }

// ErrStopped is the error of Generate after SampleOptions.Stop has returned true.
var ErrStopped = errors.New("model: generate: stopped")

// Completion is one sampled response.
type Completion struct {
	IDs []int32 // with the end-of-sequence token, if it was drawn
	// log-probability of each token at the temperature (1 when greedy), before filters; with the
	// bits of LogProbs where products do not depend on the number of rows, as on the CPU
	Logp      []float32
	Truncated bool // no end-of-sequence token within MaxNew
}

// Generate samples o.N responses for each prompt; the result is [P][N]. The
// token at index t of sample s of prompt p is drawn with the uniform number
// philox.Float64(o.Seed, Rollout, o.Step, rows[p]<<16|s, t). So a response is a
// function of the weights, the prompt and these keys, and does not depend on
// o.Slots, o.PageTokens and the other prompts. progress, if not nil, is called
// with the number of tokens sampled since its last call.
//
// A prompt runs through the model once; its samples share the pages of its keys
// and values, and a sample that ends makes room for the next.
func Generate(m Model, prompts [][]int32, rows []uint64, o SampleOptions,
	progress func(tokens int)) ([][]Completion, error) {
	if o.Slots == 0 {
		o.Slots = pages.DefaultSlots
	}
	if o.PageTokens == 0 {
		o.PageTokens = pages.Default
	}
	if err := m.checkSampling(prompts, rows, o); err != nil {
		return nil, err
	}
	out := make([][]Completion, len(prompts))
	for p := range out {
		out[p] = make([]Completion, o.N)
	}
	if len(prompts) == 0 {
		return out, nil
	}
	if o.Chunks.On() {
		o.MaxNew = min(o.MaxNew, o.Chunks.Longest())
	}
	first := (&Request{MaxNew: o.MaxNew, Chunks: o.Chunks}).limit()
	longest, prompt, own := 0, 0, 0
	for p, ids := range prompts {
		longest = max(longest, len(ids)-o.countDrawn(p))
		prompt, own =
			max(prompt, pages.Count(len(ids), o.PageTokens)),
			max(own, pages.Own(len(ids), max(first-o.countDrawn(p), 1), o.PageTokens))
	}
	slots := min(o.Slots, len(prompts)*o.N)
	size := pages.Pool(slots, o.N, len(prompts), prompt, own)
	if first < o.MaxNew { // a later chunk shares its context with no other
		size = max(size, pages.OfChunks(slots, longest+first, o.PageTokens))
	}
	// prompts of one row have a common prefix
	e, err := newEngine(m, EngineOptions{Slots: slots, PageTokens: o.PageTokens, Pages: size,
		Longest: longest + first, Keep: o.Begun != nil})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	e.progress = progress
	for p, ids := range prompts {
		r := &Request{Prompt: ids, N: o.N, MaxNew: o.MaxNew, Chunks: o.Chunks, EOS: o.EOS,
			Sampling: o.Sampling,
			Seed:     o.Seed, Step: o.Step, Row: rows[p], index: p}
		if o.Begun != nil {
			r.begin(o.Begun[p])
		}
		if o.Token != nil {
			r.Token = func(s int, t Token) bool {
				o.Token(p, s, t.ID)
				return true
			}
		}
		r.Done = func(s int, c Completion) {
			c.IDs = c.IDs[len(c.IDs)-len(c.Logp):] // without the tokens of Begun
			out[p][s] = c
			if o.Done != nil {
				o.Done(p, s, c)
			}
		}
		e.queue = append(e.queue, r)
	}
	for {
		if o.Stop != nil && o.Stop() {
			return nil, ErrStopped
		}
		if e.Idle() {
			return out, nil
		}
		if err := e.Step(); err != nil {
			return nil, err
		}
	}
}

// begin turns a request for a whole response into a request for the rest of b, whose first tokens
// stand at the prompt's end.
func (r *Request) begin(b Begun) {
	r.Sample, r.Drawn, r.MaxNew = b.Sample, b.Drawn, r.MaxNew-b.Drawn
	if r.Chunks.On() && b.Drawn > 0 {
		n := len(r.Prompt) - b.Drawn
		r.earlier = thought{question: r.Prompt[:n:n], ids: r.Prompt[n:]}
		r.Prompt = r.Chunks.Context(r.earlier.question, r.earlier.ids)
	}
}

// countDrawn returns the number of tokens of the response to prompt p that stand at its end.
func (o SampleOptions) countDrawn(p int) int {
	if o.Begun == nil {
		return 0
	}
	return o.Begun[p].Drawn
}

// checkSampling refuses options and prompts of Generate that are out of bounds.
func (m *Model) checkSampling(prompts [][]int32, rows []uint64, o SampleOptions) error {
	if o.N < 1 || o.N > 1<<16 || o.MaxNew < 1 || o.Slots < 1 || o.Slots > 1<<16 ||
		o.PageTokens < 1 || o.PageTokens > 1<<12 {
		return fmt.Errorf("model: generate: n %d, max new %d, slots %d, page of %d tokens: expected n and slots from 1 to 65536, at least one new token and pages of 1 to 4096", o.N, o.MaxNew, o.Slots, o.PageTokens)
	}
	if err := checkFilters(o.Sampling); err != nil {
		return fmt.Errorf("model: generate: %w", err)
	}
	if err := sequence.CheckIDs(o.EOS, m.Head.Vocab()); err != nil {
		return fmt.Errorf("model: generate: end-of-sequence tokens: %w", err)
	}
	if len(rows) != len(prompts) {
		return fmt.Errorf("model: generate: %d row keys for %d prompts", len(rows), len(prompts))
	}
	if err := o.Chunks.Check(); err != nil {
		return fmt.Errorf("model: generate: %w", err)
	}
	if o.Begun != nil && (len(o.Begun) != len(prompts) || o.N != 1) {
		return fmt.Errorf("model: generate: %d responses that have begun to %d prompts, n %d: expected one for each prompt, and n 1", len(o.Begun), len(prompts), o.N)
	}
	for p, ids := range prompts {
		most := o.MaxNew
		if o.Chunks.On() {
			most = min(most, o.Chunks.Size)
		}
		d := o.countDrawn(p)
		if d != 0 && (d < 0 || d >= min(o.MaxNew, len(ids)) || o.Begun[p].Sample < 0) {
			return fmt.Errorf("model: generate: prompt %d of %d tokens: sample %d, of which %d were drawn before: expected fewer than the prompt has, and than %d new ones", p, len(ids), o.Begun[p].Sample, d, o.MaxNew)
		}
		if o.Chunks.On() && d > 0 {
			if n := o.Chunks.Count(d + 1); n == 1 || d != o.Chunks.Seams(d + 1)[n-2] {
				return fmt.Errorf("model: generate: prompt %d: %d tokens drawn before: expected those of whole chunks", p, d)
			}
			ids = ids[:len(ids)-d]
		} else {
			most -= d
		}
		if err := m.checkPrompt(ids, most, m.MaxPosition, rows[p]); err != nil {
			return fmt.Errorf("model: generate: prompt %d: %w", p, err)
		}
	}
	return nil
}
