package model

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
	"gad/internal/philox"
)

// EngineOptions configure NewEngine.
type EngineOptions struct {
	Slots      int // sequences that are sampled at the same time; 0 is 64
	PageTokens int // positions in a page of the cache; 0 is 16
	Pages      int // of the cache
	Longest    int // tokens of a prompt and its response together at most
	// Admit is how many tokens of prompts run through the model at most between two tokens
	// of the sequences under way, which wait for them; 0 is any number.
	Admit int
	// Keep keeps the keys and values of prompts and responses in pages that nobody needs, for
	// requests that begin alike. It changes no bit, so it is only done where Backend.Alone holds.
	Keep bool
}

// Request is a prompt and what is asked about it. Its fields do not change once it is
// submitted. The token at index t of response s is drawn with the uniform number
// philox.Float64(Seed, Rollout, Step, Row<<16|s, t), as in Generate.
type Request struct {
	Prompt          []int32
	N               int // responses
	MaxNew          int // tokens of a response at most; 0 for a request that only asks about its prompt
	Sampling        Sampling
	EOS             []int32 // tokens that end a response
	Seed, Step, Row uint64

	// Ranked asks for tokens as the model's own distribution has them, at temperature 1 and
	// before filters: their log-probabilities, and the Top most probable in their places.
	Ranked bool
	Top    int

	// Told of what is there, by Step; nil is nobody. They may not call the engine.
	Found func(tokens int)                      // how many of the prompt's did not have to be computed, once, first
	Echo  func(tokens []Token)                  // the prompt's, ranked, once, not to be changed; there is nothing to say about the first
	Token func(sample int, t Token) (more bool) // each token as it is drawn; false ends the response
	Done  func(sample int, c Completion)        // each response as it ends
	Gone  func() bool                           // asked in each step: true drops the request, and tells nobody
	// Failed is told of the end of a request for whose prompt there is not enough memory
	// (ErrMemory), and nothing else then. If it is nil, the error is Step's, at once; else the
	// request waits where there may be enough when others have ended.
	Failed func(err error)

	index int  // among Generate's prompts
	gone  bool // Gone has said so
}

// Token is a token of a sequence.
type Token struct {
	ID   int32
	Logp float32 // as in Completion; of a Request that is Ranked, of the model's own distribution
	Top  []Choice
}

// Choice is a token that could have been.
type Choice struct {
	ID   int32
	Logp float32
}

// Memory that reserve takes, and a later call of the step finds.
const (
	logitsRV = "logits [R,V]"
	drawnRD  = "outputs of one sampling [R,D]"
)

const (
	defaultSlots = 64
	defaultPage  = 16
	maxTop       = 1 << 10
)

// prefillTokens bounds a pack of prompts, and with it the memory for activations.
const prefillTokens = 2048

// resident is a request whose prompt's keys and values are cached, or being computed.
type resident struct {
	r       *Request
	pages   []int32 // of the prompt; the last one may be partly filled
	held    []*node // of the first of pages, which other sequences may have too
	cached  int     // tokens whose keys and values were there
	from    int     // the first token that had to be computed
	at      int     // and the next; those before are computed, or are in the running step
	echo    []Token // ranked: what Echo is told of
	row     int     // of its last token's output in Engine.promptH; -1 once nothing starts from it any more
	started int     // samples begun
	left    int     // samples not yet ended
}

// stretch is the tokens of a prompt, from lo to hi-1, that a step computes.
type stretch struct {
	of     *resident
	lo, hi int
	slots  []int32 // where their keys and values go
}

// sample is a response being drawn.
type sample struct {
	of    *resident
	s     int
	own   []int32 // pages after the shared ones
	table []int32 // shared and own
	ids   []int32 // drawn so far
	logp  []float32
}

// Engine samples responses to requests that come while others are under way. A prompt runs
// through the model once, a long one in several steps; its samples share the pages of its
// keys and values, and later requests that begin alike share them too (EngineOptions.Keep).
// The pages of a sample are taken when it starts, so that one that has begun can end. Requests
// start in the order in which they were submitted. What a response is does not depend on what
// else is under way, nor on what was before, where Backend.Alone holds.
//
// Its methods, and those of its model, are called from one goroutine. The weights may be
// written while nothing is under way: what was kept is forgotten then.
type Engine struct {
	m        *Model
	o        EngineOptions
	progress func(tokens int) // told of tokens drawn; nil is nobody

	grads   *lender          // memory for the caches
	starved bool             // it has ended for lack of memory
	k, v    []compute.Tensor // [layers] caches [pages*PageTokens, K*E]
	promptH compute.Tensor   // [rows, D] outputs at prompts' last tokens
	firstH  compute.Tensor   // [slots, D] of samples that start
	free    []int32          // pages
	spare   []int32          // the page of rows whose keys and values nobody needs; others follow it
	freeRow []int            // rows of promptH

	keep            bool     // as the option says, where it changes no bit
	known           prefixes // the pages that later requests may share
	late            []int32  // pages that are free after the running step
	weights         uint64   // Model.written when they were computed
	have            scratch  // memory that is there, so that no step lacks it
	steps           int
	found, computed int // tokens of prompts

	queue []*Request
	head  *resident // of queue[0], once it has begun to be computed
	live  []*sample
	idle  []*sample // ended ones, whose memory the next use

	// Of the running step, kept from step to step.
	acts            *acts
	ids, pos, slots []int32
	pages           compute.Pages
	logp            []float32
	u               []float64
	stretches       []stretch
	asked           []*resident // that only ask about their prompts
	started, drawn  []*sample
	order           []int
	groups          []Sampling
	ranked          []Token
	logits          []float32
	pass            func()         // what decode repeats
	keys            map[int]string // the keys to that, by the number of rows
}

// NewEngine makes an engine of a language model. It has its caches in the model's memory:
// until Close no other engine or Generate of the model, or of one that shares its memory,
// may run, and no gradient.
func (m *Model) NewEngine(o EngineOptions) (*Engine, error) {
	if err := m.need(LM, false); err != nil {
		return nil, err
	}
	if o.Slots == 0 {
		o.Slots = defaultSlots
	}
	if o.PageTokens == 0 {
		o.PageTokens = defaultPage
	}
	if o.Slots < 1 || o.Slots > 1<<16 || o.PageTokens < 1 || o.PageTokens > 1<<12 || o.Admit < 0 {
		return nil, fmt.Errorf("model: engine: %+v: expected slots from 1 to 65536, pages of 1 to 4096 tokens and no negative number", o)
	}
	if o.Longest < 1 || o.Longest > m.cfg.MaxPosition {
		return nil, fmt.Errorf("model: engine: sequences of %d tokens: expected 1 to max_position_embeddings %d", o.Longest, m.cfg.MaxPosition)
	}
	// A prompt's last page is copied for its samples.
	if least := pagesFor(o.Longest, o.PageTokens) + 1; o.Pages < least {
		return nil, fmt.Errorf("model: engine: %d pages: a sequence of %d tokens takes %d", o.Pages, o.Longest, least)
	}
	e, err := m.engine(o)
	if err != nil {
		return nil, err
	}
	// Its requests may differ in how they are sampled, those of Generate do not.
	if short, err := e.reserve(scratch{drawn: o.Slots}); short != nil || err != nil {
		e.starved = true
		e.Close()
		return nil, cmp.Or(err, short)
	}
	return e, nil
}

// engine is NewEngine with options that have been checked.
func (m *Model) engine(o EngineOptions) (*Engine, error) {
	if err := m.angles(o.Longest); err != nil {
		return nil, err
	}
	e := &Engine{m: m, o: o, grads: m.lend(), keep: o.Keep && m.be.Alone(), weights: m.written()}
	e.known.clear()
	if err := e.allocate(); err != nil {
		e.starved = errors.Is(err, ErrMemory)
		e.Close()
		return nil, err
	}
	return e, nil
}

// Close ends the engine. Requests that are under way are told nothing. The memory stays the
// model's, for the next engine, unless this one had too little: a smaller one may have enough.
func (e *Engine) Close() {
	e.grads.back()
	if e.starved {
		e.m.ws.free()
		e.m.freeAngles()
	}
}

// Submit puts a request behind those that wait.
func (e *Engine) Submit(r *Request) error {
	if r.N < 1 || r.N > 1<<16 || r.MaxNew < 0 || r.Top < 0 || r.Top > maxTop {
		return fmt.Errorf("model: request: n %d, max new %d, top %d: expected n from 1 to 65536, top from 0 to %d and no negative number", r.N, r.MaxNew, r.Top, maxTop)
	}
	if err := errors.Join(checkFilters(r.Sampling), e.m.checkIDs(r.EOS)); err != nil {
		return fmt.Errorf("model: request: %w", err)
	}
	if err := e.m.checkPrompt(r.Prompt, r.MaxNew, e.o.Longest, r.Row); err != nil {
		return fmt.Errorf("model: request: %w", err)
	}
	e.queue = append(e.queue, r)
	return nil
}

// Idle reports whether nothing waits and nothing is under way.
func (e *Engine) Idle() bool { return len(e.queue) == 0 && len(e.live) == 0 }

// Load is how many requests wait for their first or another sample to start, how many
// samples are under way, and how many pages of the cache are taken. Those that are only kept
// for later requests are not.
func (e *Engine) Load() (waiting, running, pages int) {
	return len(e.queue), len(e.live), e.o.Pages - e.room()
}

var errChanged = errors.New("model: engine: the weights have changed while a request is under way: wait until the engine is idle")

// Step starts what there is room for and draws one token, the first and the second of what
// has just started, for every sample under way. After an error the engine is of no use.
func (e *Engine) Step() error {
	err := e.step()
	e.starved = e.starved || errors.Is(err, ErrMemory)
	return err
}

func (e *Engine) step() error {
	e.steps++
	if err := e.forget(); err != nil {
		return err
	}
	e.drop()
	defer e.tidy()
	if err := e.admit(); err != nil {
		return err
	}
	if len(e.live) == 0 {
		return nil // what was admitted ended with its first token
	}
	return e.decode()
}

// tidy forgets what only the running step needs, so that no request is kept from being freed
// once it has ended.
func (e *Engine) tidy() {
	clear(e.stretches)
	clear(e.asked)
}

// next takes the first request off the queue.
func (e *Engine) next() {
	e.queue[0] = nil
	e.head, e.queue = nil, e.queue[1:]
}

func checkFilters(s Sampling) error {
	if !(s.Temperature >= 0 && s.Temperature <= math.MaxFloat32) || s.TopK < 0 || !(s.TopP >= 0 && s.TopP <= 1) || !(s.MinP >= 0 && s.MinP <= 1) {
		return fmt.Errorf("%+v: expected temperature and top-k of at least 0, top-p and min-p from 0 to 1", s)
	}
	return nil
}

// checkPrompt refuses a prompt that cannot be answered in longest tokens, its own included.
func (m *Model) checkPrompt(ids []int32, maxNew, longest int, row uint64) error {
	if len(ids) == 0 {
		return errors.New("empty: expected at least one token")
	}
	if len(ids) > longest || maxNew > longest-len(ids) {
		limit := "max_position_embeddings"
		if longest < m.cfg.MaxPosition {
			limit = "the longest sequence"
		}
		return fmt.Errorf("%d tokens and %d new ones: more than %s %d: lower either", len(ids), maxNew, limit, longest)
	}
	if row >= 1<<48 {
		return fmt.Errorf("row key %d: expected less than 2^48", row)
	}
	return m.checkIDs(ids)
}

// decodeRows is how many rows a step of generation has for n samples where they are to be a
// multiple of so many (Footprint.DecodeMultiple), and sparePages how many pages of size pt
// the rows that are more than the samples write to.
func decodeRows(multiple, n int) int { return (n + multiple - 1) / multiple * multiple }

func sparePages(multiple, pt int) int { return pagesFor(multiple-1, pt) }

// pagesFor is the number of pages of size pt that hold n positions.
func pagesFor(n, pt int) int { return (n + pt - 1) / pt }

// ownPages is what a sample needs beyond the shared full pages of a prompt of n
// tokens. The last new token's keys and values are never read, so never kept.
func ownPages(n, maxNew, pt int) int {
	if maxNew == 0 {
		return 0
	}
	return pagesFor(n%pt+maxNew-1, pt)
}

// poolPages sizes Generate's cache: every slot's own pages, and twice the prompts that
// full slots belong to. When unfinished samples of many prompts hold more,
// admission waits; one sample alone always fits.
func poolPages(slots, n, prompts, promptPages, own int) int {
	return slots*own + min(2*((slots+n-1)/n)+1, prompts)*promptPages
}

// allocate takes the memory that the engine needs besides activations.
func (e *Engine) allocate() error {
	m, c := e.m, &e.m.cfg
	spare := sparePages(m.be.DecodeMultiple(), e.o.PageTokens)
	if e.keep { // a row of each prompt that begins in a step may be computed for its output alone
		spare = max(spare, pagesFor(e.o.Slots+1, e.o.PageTokens))
	}
	if e.o.Pages+spare > math.MaxInt32/e.o.PageTokens {
		return fmt.Errorf("model: generate: cache of %d pages of %d tokens: too large: lower the slots", e.o.Pages, e.o.PageTokens)
	}
	e.spare = []int32{int32(e.o.Pages)}
	n := (e.o.Pages + spare) * e.o.PageTokens * c.KVHeads * c.HeadDim
	cache := func(layer int, what string) compute.Tensor {
		if t, ok := e.grads.get(compute.Narrow, n); ok {
			return t
		}
		return m.ws.in(purpose{layer, what}, compute.Narrow, n)
	}
	for i := range c.Layers {
		e.k = append(e.k, cache(i, "key cache [slots,K,E]"))
		e.v = append(e.v, cache(i, "value cache [slots,K,E]"))
	}
	e.pages.PageTokens, e.keys = e.o.PageTokens, map[int]string{}
	e.pass = func() { m.forward(e.acts, e.ids, e.pos, e.attend) }
	e.promptH = m.ws.get("outputs at prompts' ends [P,D]", compute.Narrow, (e.o.Slots+1)*c.Hidden)
	e.firstH = m.ws.get("outputs before first tokens [R,D]", compute.Narrow, e.o.Slots*c.Hidden)
	for i := range e.o.Pages { // page takes from the end, so that a sample's pages follow one another
		e.free = append(e.free, int32(i))
	}
	for i := e.o.Slots; i >= 0; i-- {
		e.freeRow = append(e.freeRow, i)
	}
	return m.ws.take()
}

// page appends n free pages to p; there is room for them.
func (e *Engine) page(p []int32, n int) []int32 {
	for len(e.free) < n {
		e.free = append(e.free, e.known.remove(e.known.idle.after))
	}
	at := len(e.free) - n
	p = append(p, e.free[at:]...)
	e.free = e.free[:at]
	return p
}

// slot is where a position lies in the cache.
func (e *Engine) slot(table []int32, pos int) int32 {
	return table[pos/e.o.PageTokens]*int32(e.o.PageTokens) + int32(pos%e.o.PageTokens)
}

// drop forgets requests that are gone.
func (e *Engine) drop() {
	found := false
	ask := func(r *Request) bool {
		r.gone = r.gone || r.Gone != nil && r.Gone()
		found = found || r.gone
		return r.gone
	}
	for i, sm := range e.live {
		if i == 0 || e.live[i-1].of != sm.of {
			ask(sm.of.r)
		}
	}
	first := 0
	if h := e.head; h != nil {
		if first = 1; ask(h.r) {
			h.left -= h.r.N - h.started
			e.begun(h)
			e.release(h)
			e.next()
			first = 0
		}
	}
	e.queue = e.queue[:first+len(slices.DeleteFunc(e.queue[first:], ask))]
	if !found {
		return
	}
	e.live = slices.DeleteFunc(e.live, func(sm *sample) bool {
		gone := sm.of.r.gone
		if gone {
			e.end(sm)
		}
		return gone
	})
}

// begun is told that no sample will start from a prompt any more.
func (e *Engine) begun(r *resident) {
	if r.row < 0 {
		return
	}
	e.freeRow = append(e.freeRow, r.row)
	r.row = -1
	if len(r.r.Prompt)%e.o.PageTokens != 0 {
		end := len(r.pages) - 1
		e.keepEnd(r, r.pages[end])
		r.pages = r.pages[:end]
	}
}

// end frees what a sample has.
func (e *Engine) end(sm *sample) {
	e.keepAnswer(sm)
	sm.of.left--
	e.release(sm.of)
	sm.of = nil
	e.idle = append(e.idle, sm)
}

// release frees a prompt's pages with its last sample.
func (e *Engine) release(r *resident) {
	if r.left == 0 {
		e.free = append(e.free, r.pages[len(r.held):]...)
		e.known.drop(r.held)
		r.pages, r.held = nil, nil
	}
}

// scratch is memory that a step computes in.
type scratch struct {
	rows   int // tokens that pass through the model together
	ranked int // rows of logits
	drawn  int // outputs of one sampling
}

// reserve makes sure that there is memory for a step. If there is not, the engine has what it
// had, and can go on without what asks for it: short says why.
func (e *Engine) reserve(s scratch) (short, err error) {
	all := scratch{max(s.rows, e.have.rows), max(s.ranked, e.have.ranked), max(s.drawn, e.have.drawn)}
	if all == e.have {
		return nil, nil
	}
	if short = e.take(all); short == nil {
		e.have = all
	} else if !errors.Is(short, ErrMemory) {
		return nil, short
	}
	if short != nil {
		err = e.take(e.have) // what was freed to make room for more
	}
	return short, err
}

// take takes all of s, or nothing.
func (e *Engine) take(s scratch) error {
	return e.m.ws.try(func() {
		e.m.activations(s.rows, keepNothing)
		e.m.ws.get(logitsRV, compute.Wide, s.ranked*e.m.cfg.Vocab)
		e.m.ws.get(drawnRD, compute.Narrow, s.drawn*e.m.cfg.Hidden)
	})
}

// scratch is what a step needs for the next rest tokens of a prompt, with before in one pass
// before them, and for the tokens that others samples and, where these are the prompt's last,
// one of its own draw.
func (e *Engine) scratch(h *resident, before, rest, others int) (s scratch) {
	r := h.r
	s.rows = rest
	if before+rest <= prefillTokens {
		s.rows += before
	}
	if r.Echo != nil {
		s.ranked = rest
	}
	if r.MaxNew > 0 && h.at+rest == len(r.Prompt) {
		n := others + 1
		s.rows = max(s.rows, decodeRows(e.m.be.DecodeMultiple(), n))
		if r.Ranked {
			s.ranked = max(s.ranked, n)
		}
	}
	s.ranked = min(s.ranked, rankRows(e.m.cfg.Vocab))
	return s
}

// fail ends the head for lack of memory. None of its samples is under way: each needs less
// than the first.
func (e *Engine) fail(short error) error {
	h := e.head
	h.left -= h.r.N - h.started
	if h.r.Failed == nil {
		return short
	}
	e.begun(h)
	e.release(h)
	e.next()
	h.r.Failed(short)
	return nil
}

// admit computes prompts and starts samples while slots and pages last, and draws the first
// tokens.
func (e *Engine) admit() error {
	stretches, asked, started, tokens, pass := e.stretches[:0], e.asked[:0], e.started[:0], 0, 0
	for len(e.queue) > 0 && len(e.live)+len(started)+len(asked) < e.o.Slots {
		r := e.queue[0]
		own := ownPages(len(r.Prompt), r.MaxNew, e.o.PageTokens)
		if e.head == nil && !e.begin(r, own) {
			break
		}
		h := e.head
		rest := len(r.Prompt) - h.at
		if most := e.o.Admit; most > 0 && rest > 0 {
			if rest = min(rest, most); tokens > 0 && tokens+rest > most {
				break
			}
		}
		// Before anything of the step is done: nobody relies on what cannot be computed.
		short, err := e.reserve(e.scratch(h, pass, rest, len(e.live)+len(started)))
		if err == nil && short != nil && r.Failed != nil {
			// Alone it may have enough, once the others have ended.
			if short, err = e.reserve(e.scratch(h, 0, rest, 0)); err == nil && short == nil {
				break
			}
		}
		if err == nil && short != nil {
			if err = e.fail(short); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		if rest > 0 {
			if tokens += rest; pass+rest > prefillTokens {
				pass = 0
			}
			pass += rest
			stretches = append(stretches, e.stretch(h, rest))
			if h.at < len(r.Prompt) {
				break
			}
		}
		if own > e.room() {
			break
		}
		if r.MaxNew == 0 {
			h.started = r.N
			asked = append(asked, h)
		} else {
			sm := &sample{}
			if n := len(e.idle); n > 0 {
				sm, e.idle = e.idle[n-1], e.idle[:n-1]
			}
			*sm = sample{
				of: h, s: h.started, own: e.page(sm.own[:0], own), table: sm.table[:0],
				ids: slices.Grow(sm.ids[:0], r.MaxNew), logp: slices.Grow(sm.logp[:0], r.MaxNew),
			}
			started = append(started, sm)
			h.started++
		}
		if h.started == r.N {
			e.next()
		}
	}
	e.stretches, e.asked, e.started = stretches, asked, started
	if len(stretches)+len(started) == 0 {
		return nil
	}
	if err := e.prefill(stretches); err != nil {
		return err
	}
	d := e.m.cfg.Hidden
	for i, sm := range started {
		e.m.be.Copy(e.firstH.Slice(i*d, (i+1)*d), e.promptH.Slice(sm.of.row*d, (sm.of.row+1)*d))
		e.share(sm)
	}
	for _, sm := range started {
		if sm.of.started == sm.of.r.N {
			e.begun(sm.of)
		}
	}
	for _, h := range asked {
		e.begun(h)
		h.left = 0
		e.release(h)
		for s := range h.r.N {
			if h.r.Done != nil {
				h.r.Done(s, Completion{Truncated: true})
			}
		}
	}
	if len(started) == 0 {
		return nil
	}
	return e.draw(started, e.firstH.Slice(0, len(started)*d))
}

// begin makes a request the head, with the pages of its prompt, if there is room for them and
// for its first sample's own pages.
func (e *Engine) begin(r *Request, own int) bool {
	h, n, pt := &resident{r: r, left: r.N}, len(r.Prompt), e.o.PageTokens
	var part *node
	if e.keep {
		top := -1
		if r.Echo != nil {
			top = r.Top
		}
		h.held, part, h.cached = e.known.find(r.Prompt, pt, top, e.steps)
	}
	need := pagesFor(n, pt) - len(h.held)
	if need+own > e.room() {
		e.known.drop(h.held)
		return false
	}
	for _, node := range h.held {
		h.pages = append(h.pages, node.page)
	}
	h.pages = e.page(h.pages, need)
	full := len(h.held)
	if part != nil {
		// It may have been among the pages taken: nobody has written to them yet.
		e.copyPage(h.pages[full], part.page, h.cached-full*pt)
	}
	// The prompt's last token is computed for its output, and if it is echoed so is the last
	// one that is cached, which predicts the next.
	h.from = min(h.cached, n-1)
	if r.Echo != nil {
		h.from = max(0, min(h.cached, n)-1)
		h.echo = make([]Token, n-1)
		if part != nil {
			h.takeRanks(part, full*pt, h.cached-full*pt)
		}
	}
	h.at = h.from
	h.row = e.freeRow[len(e.freeRow)-1]
	e.freeRow = e.freeRow[:len(e.freeRow)-1]
	e.found += h.from
	if r.Found != nil {
		r.Found(h.from)
	}
	e.head = h
	return true
}

// stretch has the running step compute the next n tokens of a prompt.
func (e *Engine) stretch(h *resident, n int) stretch {
	s := stretch{of: h, lo: h.at, hi: h.at + n}
	for pos := s.lo; pos < s.hi; pos++ {
		slot := int32(-1) // it has keys and values already
		if pos >= h.cached {
			slot = e.slot(h.pages, pos)
		}
		s.slots = append(s.slots, slot)
	}
	h.at = s.hi
	e.computed += n
	e.keepPages(h)
	return s
}

// share gives a sample its page table: the prompt's full pages and its own, the
// first of which begins as a copy of the prompt's partial page.
func (e *Engine) share(sm *sample) {
	n, pt := len(sm.of.r.Prompt), e.o.PageTokens
	full := n / pt
	sm.table = append(append(sm.table, sm.of.pages[:full]...), sm.own...)
	part := n % pt
	if part == 0 || len(sm.own) == 0 {
		return
	}
	e.copyPage(sm.own[0], sm.of.pages[full], part)
}

// copyPage copies the keys and values of a page's first n tokens.
func (e *Engine) copyPage(to, from int32, n int) {
	w := e.m.cfg.KVHeads * e.m.cfg.HeadDim
	src, dst := int(from)*e.o.PageTokens*w, int(to)*e.o.PageTokens*w
	if src == dst {
		return
	}
	for i := range e.k {
		for _, cache := range []compute.Tensor{e.k[i], e.v[i]} {
			e.m.be.Copy(cache.Slice(dst, dst+n*w), cache.Slice(src, src+n*w))
		}
	}
}

// prefill runs stretches of prompts through the model, in packs, and keeps keys, values and
// the outputs at prompts' last tokens. What a stretch follows is in the cache, or comes before
// it in stretches.
func (e *Engine) prefill(stretches []stretch) error {
	for len(stretches) > 0 {
		n, rows := 1, len(stretches[0].slots)
		for ; n < len(stretches) && rows+len(stretches[n].slots) <= prefillTokens; n++ {
			rows += len(stretches[n].slots)
		}
		if err := e.prefillPack(stretches[:n]); err != nil {
			return err
		}
		stretches = stretches[n:]
	}
	e.free, e.late = append(e.free, e.late...), e.late[:0]
	return nil
}

// prefillPack is a pass over stretches. Those at the beginnings of prompts come first, and
// attend to themselves; each row of the others attends to the cache, as when decoding.
func (e *Engine) prefillPack(stretches []stretch) error {
	m, d := e.m, e.m.cfg.Hidden
	var whole []Seq
	for _, s := range stretches {
		if s.of.cached == 0 && s.lo == 0 {
			whole = append(whole, Seq{IDs: s.of.r.Prompt[:s.hi]})
		}
	}
	p, err := m.pack(whole, false)
	if err != nil {
		return err
	}
	packed := len(p.ids)
	ids, pos := append(e.ids[:0], p.ids...), append(e.pos[:0], p.pos...)
	slots, spare := e.slots[:0], e.spare[0]*int32(e.o.PageTokens)
	e.pages.Table, e.pages.Len = e.pages.Table[:0], e.pages.Len[:0]
	ends := make([]int, len(stretches)) // the row behind a stretch's last
	for i, s := range stretches {
		if s.of.cached == 0 && s.lo == 0 {
			slots = append(slots, s.slots...)
			ends[i] = len(slots)
		}
	}
	for i, s := range stretches {
		if s.of.cached == 0 && s.lo == 0 {
			continue
		}
		for at, slot := range s.slots {
			if slot < 0 {
				slot = spare
				spare++
			}
			x := s.lo + at
			ids, pos, slots = append(ids, s.of.r.Prompt[x]), append(pos, int32(x)), append(slots, slot)
			e.pages.Table, e.pages.Len = append(e.pages.Table, s.of.pages[:pagesFor(x+1, e.o.PageTokens)]), append(e.pages.Len, int32(x+1))
		}
		ends[i] = len(slots)
	}
	e.ids, e.pos, e.slots = ids, pos, slots
	a := m.activations(len(ids), keepNothing)
	if err := m.ws.take(); err != nil {
		return err
	}
	m.forward(a, ids, pos, func(i int, b *block, posN []int32) {
		n := len(ids)
		if packed > 0 {
			first := m.rows(b, n, 0, packed)
			m.packed(i, &first, posN[:packed])
			e.cache(i, &first, slots[:packed])
		}
		if packed < n {
			rest := m.rows(b, n, packed, n)
			e.attendCache(i, &rest, posN[packed:], slots[packed:])
		}
	})
	for i, s := range stretches {
		at, h := ends[i]-len(s.slots), s.of
		if s.hi == len(h.r.Prompt) {
			m.be.Copy(e.promptH.Slice(h.row*d, (h.row+1)*d), a.hND.Slice((ends[i]-1)*d, ends[i]*d))
		}
		if h.r.Echo != nil {
			if err := e.echo(s, a.hND.Slice(at*d, ends[i]*d)); err != nil {
				return err
			}
		}
	}
	return nil
}

// rows is the queries, keys, values and what attention puts out, of rows lo to hi-1 of n.
func (m *Model) rows(b *block, n, lo, hi int) block {
	part := func(t compute.Tensor) compute.Tensor {
		if t.Absent() {
			return t
		}
		w := t.Len() / n
		return t.Slice(lo*w, hi*w)
	}
	return block{qNHE: part(b.qNHE), kNKE: part(b.kNKE), qkNHE: part(b.qkNHE), vNKE: part(b.vNKE), oNHE: part(b.oNHE), lseNH: part(b.lseNH)}
}

// echo ranks the tokens that follow a stretch's, from their outputs, and tells of a prompt's
// when it ends.
func (e *Engine) echo(s stretch, hND compute.Tensor) error {
	h, r, pt, d := s.of, s.of.r, e.o.PageTokens, e.m.cfg.Hidden
	if s.lo == h.from {
		for i := 0; (i+1)*pt <= h.cached; i++ {
			h.takeRanks(h.held[i], i*pt, pt)
		}
	}
	tokens := h.echo[s.lo:min(s.hi, len(h.echo))]
	for i := range tokens {
		tokens[i] = Token{ID: r.Prompt[s.lo+1+i]}
	}
	if err := e.rank(tokens, func(int) int { return r.Top }, hND.Slice(0, len(tokens)*d)); err != nil {
		return err
	}
	for i, n := range h.held {
		if (i+1)*pt > s.lo && (i+1)*pt <= s.hi {
			h.keepRanks(n, i*pt)
		}
	}
	if s.hi == len(r.Prompt) {
		r.Echo(h.echo)
	}
	return nil
}

// cache keeps a layer's keys and values.
func (e *Engine) cache(layer int, b *block, slots []int32) {
	w := e.m.cfg.KVHeads * e.m.cfg.HeadDim
	e.m.be.CacheWrite(e.k[layer], b.kNKE, w, slots)
	e.m.be.CacheWrite(e.v[layer], b.vNKE, w, slots)
}

// attend is the attention of decode.
func (e *Engine) attend(i int, b *block, posN []int32) { e.attendCache(i, b, posN, e.slots) }

// attendCache keeps the rows' keys and values, and has each attend to what e.pages says.
func (e *Engine) attendCache(i int, b *block, posN, slots []int32) {
	l := e.m.spec.layers[i]
	be, shape := e.m.be, e.m.attnShape(l)
	if l.rope < 0 {
		e.cache(i, b, slots)
	} else {
		be.RopeCache(b.qNHE, b.kNKE, b.vNKE, e.k[i], e.v[i], shape, posN, e.m.table(l), slots)
	}
	be.AttentionDecode(b.oNHE, b.qNHE, e.k[i], e.v[i], shape, e.pages)
}

// decode runs the live samples' newest tokens through the model and draws the next.
func (e *Engine) decode() error {
	m, n := e.m, len(e.live)
	e.ids, e.pos, e.slots = e.ids[:0], e.pos[:0], e.slots[:0]
	e.pages.Table, e.pages.Len = e.pages.Table[:0], e.pages.Len[:0]
	for _, sm := range e.live {
		at := len(sm.of.r.Prompt) + len(sm.ids) - 1
		e.ids, e.pos, e.slots = append(e.ids, sm.ids[len(sm.ids)-1]), append(e.pos, int32(at)), append(e.slots, e.slot(sm.table, at))
		e.pages.Table, e.pages.Len = append(e.pages.Table, sm.table[:pagesFor(at+1, e.o.PageTokens)]), append(e.pages.Len, int32(at+1))
	}
	// What the other rows compute is of no use. Each attends to the first of them alone, so
	// that all their numbers are finite.
	rows := decodeRows(m.be.DecodeMultiple(), n)
	for i := range rows - n {
		e.ids, e.pos, e.slots = append(e.ids, 0), append(e.pos, 0), append(e.slots, e.spare[0]*int32(e.o.PageTokens)+int32(i))
		e.pages.Table, e.pages.Len = append(e.pages.Table, e.spare), append(e.pages.Len, 1)
	}
	e.acts = m.activations(rows, keepNothing)
	if err := m.ws.take(); err != nil {
		return err
	}
	if e.keys[rows] == "" {
		e.keys[rows] = fmt.Sprintf("%p: decode %d", m, rows)
	}
	m.be.Repeat(e.keys[rows], e.pass)
	e.live, e.drawn = e.drawn[:0], e.live
	return e.draw(e.drawn, e.acts.hND.Slice(0, n*m.cfg.Hidden))
}

// draw samples the next token of each of samples from the rows of h, and keeps
// those that go on among the live.
func (e *Engine) draw(samples []*sample, hRD compute.Tensor) error {
	n := len(samples)
	if err := e.sample(samples, hRD); err != nil {
		return err
	}
	if err := e.rankDrawn(samples, hRD); err != nil {
		return err
	}
	ids, logp, ranked := e.ids, e.logp, e.ranked
	for i, sm := range samples {
		r := sm.of.r
		if math.IsNaN(float64(logp[i])) || ids[i] < 0 || int(ids[i]) >= e.m.cfg.Vocab {
			return fmt.Errorf("model: generate: prompt %d: sample %d: token %d: log-probability %g: the weights or activations are %w: go back to an earlier checkpoint", r.index, sm.s, len(sm.ids), logp[i], ErrNotFinite)
		}
		sm.ids, sm.logp = append(sm.ids, ids[i]), append(sm.logp, logp[i])
		more := true
		if r.Token != nil {
			token := Token{ID: ids[i], Logp: logp[i]}
			if r.Ranked {
				token, ranked = ranked[0], ranked[1:]
			}
			more = r.Token(sm.s, token)
		}
		ended := slices.Contains(r.EOS, ids[i])
		if more && !ended && len(sm.ids) < r.MaxNew {
			e.live = append(e.live, sm)
			continue
		}
		if r.Done != nil {
			r.Done(sm.s, Completion{IDs: slices.Clone(sm.ids), Logp: slices.Clone(sm.logp), Truncated: more && !ended})
		}
		e.end(sm)
	}
	if e.progress != nil {
		e.progress(n)
	}
	return nil
}

// sample draws a token for each of samples from the rows of h, into e.ids and e.logp. The
// rows of one kind of sampling are drawn in one call.
func (e *Engine) sample(samples []*sample, hRD compute.Tensor) error {
	n, m := len(samples), e.m
	e.groups, e.order = e.groups[:0], e.order[:0]
	for _, sm := range samples {
		if s := sm.of.r.Sampling; len(e.groups) == 0 || s != e.groups[len(e.groups)-1] && !slices.Contains(e.groups, s) {
			e.groups = append(e.groups, s)
		}
	}
	e.ids, e.logp, e.u = slices.Grow(e.ids[:0], n)[:n], slices.Grow(e.logp[:0], n)[:n], e.u[:0]
	uniform := func(sm *sample) {
		r := sm.of.r
		e.u = append(e.u, philox.Float64(r.Seed, philox.Rollout, r.Step, r.Row<<16|uint64(sm.s), uint64(len(sm.ids))))
	}
	if len(e.groups) == 1 {
		for _, sm := range samples {
			uniform(sm)
		}
		m.be.Sample(e.ids, e.logp, hRD, m.head, e.groups[0], e.u)
		return e.sync()
	}
	d := m.cfg.Hidden
	rows := m.ws.get(drawnRD, compute.Narrow, n*d)
	if err := m.ws.take(); err != nil {
		return err
	}
	for _, s := range e.groups {
		lo := len(e.order)
		for i, sm := range samples {
			if sm.of.r.Sampling == s {
				at := len(e.order)
				m.be.Copy(rows.Slice(at*d, (at+1)*d), hRD.Slice(i*d, (i+1)*d))
				uniform(sm)
				e.order = append(e.order, i)
			}
		}
		hi := len(e.order)
		m.be.Sample(e.ids[lo:hi], e.logp[lo:hi], rows.Slice(lo*d, hi*d), m.head, s, e.u[lo:hi])
	}
	if err := e.sync(); err != nil {
		return err
	}
	ids, logp := slices.Clone(e.ids), slices.Clone(e.logp)
	for at, i := range e.order {
		e.ids[i], e.logp[i] = ids[at], logp[at]
	}
	return nil
}

// rankDrawn fills e.ranked with the drawn tokens of those of samples that are to be ranked.
func (e *Engine) rankDrawn(samples []*sample, hRD compute.Tensor) error {
	e.ranked, e.order = e.ranked[:0], e.order[:0]
	for i, sm := range samples {
		if r := sm.of.r; r.Ranked && r.Token != nil {
			e.order, e.ranked = append(e.order, i), append(e.ranked, Token{ID: e.ids[i]})
		}
	}
	if len(e.ranked) == 0 {
		return nil
	}
	if len(e.ranked) < len(samples) {
		d := e.m.cfg.Hidden
		rows := e.m.ws.get(drawnRD, compute.Narrow, len(e.ranked)*d)
		if err := e.m.ws.take(); err != nil {
			return err
		}
		for at, i := range e.order {
			e.m.be.Copy(rows.Slice(at*d, (at+1)*d), hRD.Slice(i*d, (i+1)*d))
		}
		hRD = rows
	}
	return e.rank(e.ranked, func(at int) int { return samples[e.order[at]].of.r.Top }, hRD)
}

func (e *Engine) sync() error {
	if err := e.m.be.Sync(); err != nil {
		return fmt.Errorf("model: generate: %w", err)
	}
	return nil
}
