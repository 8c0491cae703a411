package model

import (
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
	// Admit is about how many tokens of prompts run through the model between two tokens
	// of the sequences under way, which wait for them; 0 is any number.
	Admit int
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
	Echo  func(tokens []Token)                  // the prompt's, ranked, once; there is nothing to say about the first
	Token func(sample int, t Token) (more bool) // each token as it is drawn; false ends the response
	Done  func(sample int, c Completion)        // each response as it ends
	Gone  func() bool                           // asked in each step: true drops the request, and tells nobody

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

const (
	defaultSlots = 64
	defaultPage  = 16
	maxTop       = 1 << 10
)

// prefillTokens bounds a pack of prompts, and with it the memory for activations.
const prefillTokens = 2048

// resident is a request whose prompt's keys and values are cached.
type resident struct {
	r       *Request
	pages   []int32 // of the prompt; the last one may be partly filled
	row     int     // of its last token's output in Engine.promptH; -1 once nothing starts from it any more
	started int     // samples begun
	left    int     // samples not yet ended
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
// through the model once; its samples share the pages of its keys and values. The pages of a
// sample are taken when it starts, so that one that has begun can end. Requests start in the
// order in which they were submitted. What a response is does not depend on what else is
// under way, where Backend.Alone holds.
//
// Its methods, and those of its model, are called from one goroutine.
type Engine struct {
	m        *Model
	o        EngineOptions
	progress func(tokens int) // told of tokens drawn; nil is nobody

	grads   *lender          // memory for the caches
	k, v    []compute.Tensor // [layers] caches [pages*PageTokens, K*E]
	promptH compute.Tensor   // [rows, D] outputs at prompts' last tokens
	firstH  compute.Tensor   // [slots, D] of samples that start
	free    []int32          // pages
	spare   []int32          // the page of rows that fill a step up to the backend's multiple, and of no sample; others follow it
	freeRow []int            // rows of promptH

	queue []*Request
	head  *resident // of queue[0], once one of its samples has started
	live  []*sample
	idle  []*sample // ended ones, whose memory the next use

	// Of the running step, kept from step to step.
	acts            *acts
	ids, pos, slots []int32
	pages           compute.Pages
	logp            []float32
	u               []float64
	fresh           []*resident
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
// may run.
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
	return m.engine(o)
}

// engine is NewEngine with options that have been checked.
func (m *Model) engine(o EngineOptions) (*Engine, error) {
	if err := m.angles(o.Longest); err != nil {
		return nil, err
	}
	e := &Engine{m: m, o: o, grads: m.lend()}
	if err := e.allocate(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Close ends the engine. Requests that are under way are told nothing.
func (e *Engine) Close() { e.grads.back() }

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
// samples are under way, and how many pages of the cache are taken.
func (e *Engine) Load() (waiting, running, pages int) {
	return len(e.queue), len(e.live), e.o.Pages - len(e.free)
}

// Step starts what there is room for and draws one token, the first and the second of what
// has just started, for every sample under way. After an error the engine is of no use.
func (e *Engine) Step() error {
	e.drop()
	if err := e.admit(); err != nil {
		return err
	}
	if len(e.live) == 0 {
		return nil // what was admitted ended with its first token
	}
	return e.decode()
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

// page appends n free pages to p.
func (e *Engine) page(p []int32, n int) []int32 {
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
			e.head, e.queue, first = nil, e.queue[1:], 0
		}
	}
	e.queue = e.queue[:first+len(slices.DeleteFunc(e.queue[first:], ask))]
	if !found {
		return
	}
	e.live = slices.DeleteFunc(e.live, func(sm *sample) bool {
		if sm.of.r.gone {
			e.end(sm)
		}
		return sm.of.r.gone
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
		e.free = append(e.free, r.pages[end])
		r.pages = r.pages[:end]
	}
}

// end frees what a sample has.
func (e *Engine) end(sm *sample) {
	e.free = append(e.free, sm.own...)
	sm.of.left--
	e.release(sm.of)
	e.idle = append(e.idle, sm)
}

// release frees a prompt's pages with its last sample.
func (e *Engine) release(r *resident) {
	if r.left == 0 {
		e.free = append(e.free, r.pages...)
		r.pages = nil
	}
}

// admit starts samples while slots and pages last, and draws their first tokens.
func (e *Engine) admit() error {
	fresh, started, tokens, bare := e.fresh[:0], e.started[:0], 0, 0
	for len(e.queue) > 0 && len(e.live)+len(started)+bare < e.o.Slots {
		r := e.queue[0]
		own := ownPages(len(r.Prompt), r.MaxNew, e.o.PageTokens)
		if e.head == nil {
			need := pagesFor(len(r.Prompt), e.o.PageTokens)
			if need+own > len(e.free) || e.o.Admit > 0 && tokens > 0 && tokens+len(r.Prompt) > e.o.Admit {
				break
			}
			tokens += len(r.Prompt)
			row := e.freeRow[len(e.freeRow)-1]
			e.freeRow = e.freeRow[:len(e.freeRow)-1]
			e.head = &resident{r: r, pages: e.page(nil, need), row: row, left: r.N}
			fresh = append(fresh, e.head)
		} else if own > len(e.free) {
			break
		}
		if r.MaxNew == 0 {
			e.head.started = r.N
			bare++
		} else {
			sm := &sample{}
			if n := len(e.idle); n > 0 {
				sm, e.idle = e.idle[n-1], e.idle[:n-1]
			}
			*sm = sample{
				of: e.head, s: e.head.started, own: e.page(sm.own[:0], own), table: sm.table[:0],
				ids: slices.Grow(sm.ids[:0], r.MaxNew), logp: slices.Grow(sm.logp[:0], r.MaxNew),
			}
			started = append(started, sm)
			e.head.started++
		}
		if e.head.started == r.N {
			e.head, e.queue = nil, e.queue[1:]
		}
	}
	e.fresh, e.started = fresh, started
	if len(fresh)+len(started) == 0 {
		return nil
	}
	if err := e.prefill(fresh); err != nil {
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
	for _, r := range fresh {
		if r.r.MaxNew > 0 {
			continue
		}
		e.begun(r)
		r.left = 0
		e.release(r)
		for s := range r.r.N {
			if r.r.Done != nil {
				r.r.Done(s, Completion{Truncated: true})
			}
		}
	}
	if len(started) == 0 {
		return nil
	}
	return e.draw(started, e.firstH.Slice(0, len(started)*d))
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
	w := e.m.cfg.KVHeads * e.m.cfg.HeadDim
	src, dst := int(sm.of.pages[full])*pt*w, int(sm.own[0])*pt*w
	for i := range e.k {
		for _, cache := range []compute.Tensor{e.k[i], e.v[i]} {
			e.m.be.Copy(cache.Slice(dst, dst+part*w), cache.Slice(src, src+part*w))
		}
	}
}

// prefill runs prompts through the model, in packs, and keeps keys, values and
// the outputs at their last tokens.
func (e *Engine) prefill(fresh []*resident) error {
	m, d := e.m, e.m.cfg.Hidden
	seqs := make([]Seq, len(fresh))
	for i, r := range fresh {
		seqs[i].IDs = r.r.Prompt
	}
	for _, members := range Packs(seqs, prefillTokens) {
		var part []Seq
		var slots []int32
		for _, i := range members {
			part = append(part, seqs[i])
			for pos := range seqs[i].IDs {
				slots = append(slots, e.slot(fresh[i].pages, pos))
			}
		}
		p, err := m.pack(part, false)
		if err != nil {
			return err
		}
		a := m.activations(len(p.ids), keepNothing)
		if err := m.ws.take(); err != nil {
			return err
		}
		m.forward(a, p.ids, p.pos, func(i int, b *block, posN []int32) {
			m.packed(i, b, posN)
			e.cache(i, b, slots)
		})
		for j, i := range members {
			at, row := int(p.last[j]), fresh[i].row
			m.be.Copy(e.promptH.Slice(row*d, (row+1)*d), a.hND.Slice(at*d, (at+1)*d))
		}
		for j, i := range members {
			r := fresh[i].r
			if r.Echo == nil {
				continue
			}
			n := len(r.Prompt)
			tokens := make([]Token, n-1)
			for t := range tokens {
				tokens[t].ID = r.Prompt[t+1]
			}
			first := int(p.last[j]) - (n - 1)
			if err := e.rank(tokens, r.Top, a.hND.Slice(first*d, (first+n-1)*d)); err != nil {
				return err
			}
			r.Echo(tokens)
		}
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
func (e *Engine) attend(i int, b *block, posN []int32) {
	be, shape := e.m.be, e.m.attnShape()
	be.RopeCache(b.qNHE, b.kNKE, b.vNKE, e.k[i], e.v[i], shape, posN, e.m.rope, e.slots)
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
	rows := m.ws.get("outputs of one sampling [R,D]", compute.Narrow, n*d)
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
	top := 0
	for i, sm := range samples {
		if r := sm.of.r; r.Ranked && r.Token != nil {
			e.order, e.ranked, top = append(e.order, i), append(e.ranked, Token{ID: e.ids[i]}), max(top, r.Top)
		}
	}
	if len(e.ranked) == 0 {
		return nil
	}
	if len(e.ranked) < len(samples) {
		d := e.m.cfg.Hidden
		rows := e.m.ws.get("outputs of one sampling [R,D]", compute.Narrow, len(e.ranked)*d)
		if err := e.m.ws.take(); err != nil {
			return err
		}
		for at, i := range e.order {
			e.m.be.Copy(rows.Slice(at*d, (at+1)*d), hRD.Slice(i*d, (i+1)*d))
		}
		hRD = rows
	}
	if err := e.rank(e.ranked, top, hRD); err != nil {
		return err
	}
	for at, i := range e.order {
		t := &e.ranked[at]
		t.Top = t.Top[:min(len(t.Top), samples[i].of.r.Top)]
	}
	return nil
}

func (e *Engine) sync() error {
	if err := e.m.be.Sync(); err != nil {
		return fmt.Errorf("model: generate: %w", err)
	}
	return nil
}
