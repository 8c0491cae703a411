// Package sampling draws responses from a language model, many at a time. It knows the model as a
// Network: passes of tokens over a cache of keys and values.
//
//	network.go   the model that it samples from, and a pass
//	engine.go    options, requests, the queue, Step
//	admit.go     prompts: chunks, prefill, samples that start
//	decode.go    samples: decode, draw, end
//	cache.go     pages and workspace
//	prefix.go    the tree of cached pages
//	constrain.go draws among allowed tokens
//	rank.go      log-probabilities and top tokens under the model's own distribution
//	chunks.go    responses in contexts of bounded length
//	generate.go  Generate: all responses of a batch of prompts
package sampling

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"gad/internal/compute"
	"gad/model/internal/pages"
	"gad/model/internal/sequence"
)

// The engine decodes with continuous batching over a paged key/value cache. What it must hold:
//
//   - Where Backend.Alone holds, a response depends on weights, prompt, Sampling and the request's
//     random keys alone, not on other requests or on the cache's content. So prompts that are
//     cached, copied or computed in chunks have the bits of one pass over the whole prompt.
//   - A prompt passes through the model once, however many samples it has: they share its full
//     pages, and each copies the last, partly filled page before it writes there (share).
//     Each takes a copy of the prompt's states, and the last one these themselves.
//   - A sample that has started can end: its pages are all taken when it starts (ownPages), and
//     its workspace is reserved before anything is computed (reserve). So a decode step never
//     runs out of pages or memory, and no sample is ever preempted and computed again.
//   - Requests start in the order of Submit. A long prompt at the head of the queue is computed
//     over several steps (EngineOptions.Admit), between which others are decoded.
//
// A step is admit (schedule chunks of prompts and samples, prefill them, draw first tokens),
// then decode (one token for every sample). Later requests share cached prompts and responses by
// the prefix tree (prefix.go), which owns full pages of tokens.

// EngineOptions are the settings of NewEngine.
type EngineOptions struct {
	Slots      int // samples decoded at the same time; 0 is 64
	PageTokens int // positions in a page of the key/value cache; 0 is 16
	Pages      int // pages of the cache
	Longest    int // most tokens of a prompt and its response together
	// Admit is the largest number of prompt tokens that pass through the model in one step, while
	// the samples being decoded wait (chunked prefill); 0 is any number.
	Admit int
	// Keep leaves keys and values of prompts and responses in unused pages, for later requests
	// with the same prefix. It must change no bit, so it has no effect unless Backend.Alone, nor
	// with layers that keep a state of each sequence.
	Keep bool
}

// Request asks for responses to a prompt, or for the ranks of its tokens. Its fields must not
// change after Submit. The token at index t of response s is drawn with the uniform number
// philox.Float64(Seed, Rollout, Step, Row<<16|(Sample+s), Drawn+t), as in Generate.
type Request struct {
	Prompt []int32
	N      int // responses
	Sample int // number of the first response among the row's
	Drawn  int // tokens of the conversation drawn earlier: a later turn has draws of its own
	// most tokens of a response; 0 for a request that only asks about its prompt
	MaxNew          int
	Chunks          sequence.Chunks // on: a response is a thought in chunks, of MaxNew tokens in all
	Sampling        compute.Sampling
	EOS             []int32 // tokens that end a response
	Seed, Step, Row uint64

	// Ranked asks for log-probabilities under the model's own distribution, at temperature 1
	// and before filters, and for the Top most probable tokens at each position.
	Ranked bool
	Top    int

	// Allowed returns, by id, which tokens may follow the drawn tokens of a sample; nil allows all.
	// The draw is then repeated in float64: see constrain.
	Allowed func(sample int, drawn []int32) []bool

	// Callbacks, called by Step; each may be nil. They must not call the engine.
	//
	// Found is the first callback: the number of prompt tokens whose keys and values were cached.
	Found func(tokens int)
	// Echo gets, once, the prompt's tokens from the second on, ranked; they are read only.
	Echo func(tokens []Token)
	// Token gets each token as it is drawn; false ends the response.
	Token func(sample int, t Token) (more bool)
	Done  func(sample int, c Completion) // gets each response as it ends
	// Gone is called in each step; true drops the request, without any further callback.
	Gone func() bool
	// Failed is called, as the last callback, if there is not enough memory for the prompt
	// (compute.ErrMemory). Before that, the request waits as long as memory may become free when
	// others end. If Failed is nil, Step returns the error at once.
	Failed func(err error)

	index   int     // of the prompt in Generate
	gone    bool    // Gone has returned true
	earlier thought // the chunks before this request's
}

// Token is a token of a sequence.
type Token struct {
	ID   int32
	Logp float32 // as in Completion; if Request.Ranked, under the model's own distribution
	// Rank is set if Request.Ranked or in Echo: the token's place among all by probability, 1 for
	// the most probable. Of equally probable tokens the lower id comes first.
	Rank int32
	Top  []Choice // set with Rank: the most probable tokens, most probable first
}

// Choice is one of the most probable tokens at a position.
type Choice struct {
	ID   int32
	Logp float32
}

// maxTop is the largest Request.Top.
const maxTop = 1 << 10

// Engine samples responses with continuous batching: requests may be submitted while others
// are decoded.
//
// One goroutine calls its methods and its model's. The weights may be written while the engine is
// idle: all cached pages are then invalid and become free.
type Engine struct {
	m        Model
	o        EngineOptions
	progress func(tokens int) // called with the number of tokens drawn; may be nil

	starved bool           // a step has failed for lack of memory
	promptH compute.Tensor // [rows, D] outputs at prompts' last tokens
	firstH  compute.Tensor // [slots, D] outputs from which samples draw their first tokens
	free    []int32        // free pages
	// [1] the first of the pages for keys and values that nothing reads, at the cache's end
	spare   []int32
	freeRow rows

	caching         bool     // EngineOptions.Keep, where the backend allows it
	tree            prefixes // cached pages that later requests may share
	freeLater       []int32  // pages to free after the running step, which writes to them
	weights         uint64   // Network.Writes when the cached pages were computed
	reserved        scratch  // workspace that reserve has taken
	steps           int      // number of the running step
	found, computed int      // prompt tokens found in the cache, and computed

	queue []*Request
	head  *cachedPrompt // of queue[0], once its first chunk is scheduled
	live  []*sample     // being decoded
	idle  []*sample     // ended, for reuse of their slices

	// Buffers of the running step, reused in the next.
	pass           Pass
	ids            []int32
	logp           []float32
	u              []float64
	chunks         []promptChunk
	promptOnly     []*cachedPrompt // requests without responses (MaxNew 0)
	started, drawn []*sample
	order          []int
	groups         []compute.Sampling
	ranked         []Token
	logits         []float32
}

// New returns an engine of a language model. Its caches are in the model's memory: until Close no
// other engine, no Generate and no gradient may run on the model, or on a model that shares its
// memory.
func New(m Model, o EngineOptions) (*Engine, error) {
	if o.Slots == 0 {
		o.Slots = pages.DefaultSlots
	}
	if o.PageTokens == 0 {
		o.PageTokens = pages.Default
	}
	if o.Slots < 1 || o.Slots > 1<<16 || o.PageTokens < 1 || o.PageTokens > 1<<12 || o.Admit < 0 {
		return nil, fmt.Errorf("model: engine: %+v: expected slots from 1 to 65536, pages of 1 to 4096 tokens and no negative number", o)
	}
	if o.Longest < 1 || o.Longest > m.MaxPosition {
		return nil,
			fmt.Errorf(
				"model: engine: sequences of %d tokens: expected 1 to max_position_embeddings %d",
				o.Longest, m.MaxPosition)
	}
	// A prompt's last page is copied for its samples.
	if least := pages.Count(o.Longest, o.PageTokens) + 1; o.Pages < least {
		return nil, fmt.Errorf("model: engine: %d pages: a sequence of %d tokens takes %d", o.Pages,
			o.Longest, least)
	}
	e, err := newEngine(m, o)
	if err != nil {
		return nil, err
	}
	// Requests may differ in Sampling, unlike Generate's.
	if short, err := e.reserve(scratch{drawn: o.Slots}); short != nil || err != nil {
		e.starved = true
		e.Close()
		return nil, cmp.Or(err, short)
	}
	return e, nil
}

// newEngine returns an engine with options that have been checked.
func newEngine(m Model, o EngineOptions) (*Engine, error) {
	e := &Engine{m: m, o: o, caching: o.Keep && m.Backend.Alone() && !m.Stateful, weights: m.Writes(),
		spare: []int32{int32(o.Pages)}}
	e.pass.Pages.PageTokens = o.PageTokens
	e.tree.clear()
	spare := pages.Spare(m.Backend.DecodeMultiple(), o.PageTokens)
	// a step may compute one row of each starting prompt for its output alone
	if e.caching {
		spare = max(spare, pages.Count(o.Slots+1, o.PageTokens))
	}
	if o.Pages+spare > math.MaxInt32/o.PageTokens {
		return nil, fmt.Errorf(
			"model: generate: cache of %d pages of %d tokens: too large: lower the slots",
			o.Pages, o.PageTokens)
	}
	if err := m.Open((o.Pages+spare)*o.PageTokens, o.Longest, pages.States(o.Slots)); err != nil {
		return nil, err
	}
	if err := e.allocate(); err != nil {
		e.starved = errors.Is(err, compute.ErrMemory)
		e.Close()
		return nil, err
	}
	return e, nil
}

// Close ends the engine, without any callback of unfinished requests. The memory stays the model's,
// for the next engine, unless this one failed for lack of memory: a smaller engine may then have
// enough.
func (e *Engine) Close() { e.m.Close(e.starved) }

// Submit checks a request and appends it to the queue.
func (e *Engine) Submit(r *Request) error {
	if r.N < 1 || r.N > 1<<16 || r.MaxNew < 0 || r.Top < 0 || r.Top > maxTop {
		return fmt.Errorf("model: request: n %d, max new %d, top %d: expected n from 1 to 65536, top from 0 to %d and no negative number", r.N, r.MaxNew, r.Top, maxTop)
	}
	if r.Sample < 0 || r.Sample+r.N > 1<<16 || r.Drawn < 0 || r.Drawn > 1<<27-1-r.MaxNew {
		return fmt.Errorf("model: request: sample %d, %d tokens drawn before: expected samples from 0 to 65535, and fewer than 2^27 tokens", r.Sample, r.Drawn)
	}
	if err := errors.Join(checkFilters(r.Sampling),
		sequence.CheckIDs(r.EOS, e.m.Head.Vocab())); err != nil {
		return fmt.Errorf("model: request: %w", err)
	}
	if err := e.checkChunks(r); err != nil {
		return fmt.Errorf("model: request: %w", err)
	}
	e.queue = append(e.queue, r)
	return nil
}

// checkPrompt refuses a prompt that is empty, has ids outside the vocabulary, or exceeds longest
// tokens together with maxNew new ones.
func (m *Model) checkPrompt(ids []int32, maxNew, longest int, row uint64) error {
	if len(ids) == 0 {
		return errors.New("empty: expected at least one token")
	}
	if len(ids) > longest || maxNew > longest-len(ids) {
		limit := "max_position_embeddings"
		if longest < m.MaxPosition {
			limit = "the longest sequence"
		}
		return fmt.Errorf("%d tokens and %d new ones: more than %s %d: lower either", len(ids),
			maxNew, limit, longest)
	}
	if row >= 1<<48 {
		return fmt.Errorf("row key %d: expected less than 2^48", row)
	}
	return sequence.CheckIDs(ids, m.Head.Vocab())
}

// checkFilters refuses sampling settings out of bounds.
func checkFilters(s compute.Sampling) error {
	if !(s.Temperature >= 0 && s.Temperature <= math.MaxFloat32) || s.TopK < 0 ||
		!(s.TopP >= 0 && s.TopP <= 1) || !(s.MinP >= 0 && s.MinP <= 1) {
		return fmt.Errorf(
			"%+v: expected temperature and top-k of at least 0, top-p and min-p from 0 to 1", s)
	}
	return nil
}

// Idle reports whether no request is queued and no sample is being decoded.
func (e *Engine) Idle() bool { return len(e.queue) == 0 && len(e.live) == 0 }

// Load returns the numbers of requests with samples still to start, of samples being decoded, and
// of pages in use, without pages that are only cached for later requests.
func (e *Engine) Load() (waiting, running, pages int) {
	return len(e.queue), len(e.live), e.o.Pages - e.freePages()
}

var errChanged = errors.New("model: engine: the weights have changed while a request is under way: wait until the engine is idle")

// Step starts samples as far as slots, pages and memory allow, and draws one token for every
// sample; a sample that starts draws its first two. After an error the engine cannot be used again.
func (e *Engine) Step() error {
	err := e.step()
	e.starved = e.starved || errors.Is(err, compute.ErrMemory)
	return err
}

// step does the work of Step, which notes a lack of memory.
func (e *Engine) step() error {
	e.steps++
	if err := e.invalidate(); err != nil {
		return err
	}
	e.dropGone()
	defer e.clearStep()
	if err := e.admit(); err != nil {
		return err
	}
	if len(e.live) == 0 {
		return nil // all admitted samples ended with their first token
	}
	return e.decode()
}

// clearStep drops the running step's references, so that finished requests can be collected.
func (e *Engine) clearStep() {
	clear(e.chunks)
	clear(e.promptOnly)
}

// popQueue removes the first request of the queue.
func (e *Engine) popQueue() {
	e.queue[0] = nil
	e.head, e.queue = nil, e.queue[1:]
}

// sync waits for the backend and returns its error.
func (e *Engine) sync() error {
	if err := e.m.Backend.Sync(); err != nil {
		return fmt.Errorf("model: generate: %w", err)
	}
	return nil
}
