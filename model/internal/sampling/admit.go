package sampling

import (
	"slices"

	"gad/internal/compute"
	"gad/model/internal/pages"
	"gad/model/internal/sequence"
)

// cachedPrompt is a request whose prompt is in the cache, or is being computed.
type cachedPrompt struct {
	r      *Request
	pages  []int32 // pages of the prompt; the last one may be partly filled
	shared []*node // nodes of the prefix tree that own the first of pages
	cached int     // tokens whose keys and values were in the cache
	from   int     // position of the first token to compute
	// position of the next token to compute; earlier ones are computed, or in the running step
	at   int
	echo []Token // for Request.Echo
	// row of the last token's output in Engine.promptH, and of the prompt's states; -1 once all
	// samples have started
	row     int
	taken   bool // the row is the last sample's
	started int  // samples started
	left    int  // samples not yet ended
}

// promptChunk is the tokens lo to hi-1 of a prompt, which one step computes.
type promptChunk struct {
	prompt *cachedPrompt
	lo, hi int
	slots  []int32 // slots of the cache for their keys and values; -1 if cached already
}

// first reports whether the chunk is its prompt's first, of which nothing was cached.
func (s promptChunk) first() bool { return s.prompt.cached == 0 && s.lo == 0 }

// admit computes prompts, starts samples and draws their first tokens.
func (e *Engine) admit() error {
	if err := e.schedule(); err != nil {
		return err
	}
	if len(e.chunks)+len(e.started) == 0 {
		return nil
	}
	if err := e.prefill(e.chunks); err != nil {
		return err
	}
	d := e.m.Head.Cols
	for i, sm := range e.started {
		e.m.Backend.Copy(e.firstH.Slice(i*d, (i+1)*d),
			e.promptH.Slice(sm.prompt.row*d, (sm.prompt.row+1)*d))
		e.share(sm)
	}
	for _, sm := range e.started {
		if sm.prompt.started == sm.prompt.r.N {
			e.endStarts(sm.prompt)
		}
	}
	for _, h := range e.promptOnly {
		e.endStarts(h)
		h.left = 0
		e.release(h)
		for s := range h.r.N {
			if h.r.Done != nil {
				h.r.Done(s, Completion{Truncated: true})
			}
		}
	}
	if len(e.started) == 0 {
		return nil
	}
	return e.draw(e.started, e.firstH.Slice(0, len(e.started)*d))
}

// schedule chooses the chunks of prompts that the step computes and the samples that it starts, in
// the order of the queue, until slots, pages, memory or EngineOptions.Admit run out. It reserves
// the workspace for all of them.
func (e *Engine) schedule() error {
	chunks, promptOnly, started := e.chunks[:0], e.promptOnly[:0], e.started[:0]
	tokens, pack := 0, 0 // tokens scheduled, and those in the last pack
	for len(e.queue) > 0 && len(e.live)+len(started)+len(promptOnly) < e.o.Slots {
		r := e.queue[0]
		own := pages.Own(len(r.Prompt), r.limit(), e.o.PageTokens)
		if e.head == nil && !e.startPrompt(r, own) {
			break
		}
		h := e.head
		rest := len(r.Prompt) - h.at
		if most := e.o.Admit; most > 0 && rest > 0 {
			if rest = min(rest, most); tokens > 0 && tokens+rest > most {
				break
			}
		}
		room, err := e.reserveFor(h, pack, rest, len(e.live)+len(started))
		if err != nil {
			return err
		}
		if room == roomLater {
			break
		}
		if room == roomNever {
			continue
		}
		if rest > 0 {
			if tokens += rest; pack+rest > pages.Prefill {
				pack = 0
			}
			pack += rest
			chunks = append(chunks, e.takeChunk(h, rest))
			if h.at < len(r.Prompt) {
				break
			}
		}
		if own > e.freePages() {
			break
		}
		if r.MaxNew == 0 {
			h.started = r.N
			promptOnly = append(promptOnly, h)
		} else {
			started = append(started, e.newSample(h, own))
			h.started++
		}
		if h.started == r.N {
			e.popQueue()
		}
	}
	e.chunks, e.promptOnly, e.started = chunks, promptOnly, started
	return nil
}

// room tells when the workspace for the first request of the queue is available.
type room int

const (
	roomNow   room = iota
	roomLater      // the request waits until others have ended
	roomNever      // the request has failed, and is off the queue
)

// reserveFor reserves the workspace of a step that computes the next rest tokens of h (see
// scratchFor). If memory is short and the request alone would not fit either, the request fails.
func (e *Engine) reserveFor(h *cachedPrompt, before, rest, others int) (room, error) {
	short, err := e.reserve(e.scratchFor(h, before, rest, others))
	if err != nil || short == nil {
		return roomNow, err
	}
	if h.r.Failed != nil { // it may fit alone
		if short, err = e.reserve(e.scratchFor(h, 0, rest, 0)); err != nil || short == nil {
			return roomLater, err
		}
	}
	return roomNever, e.fail(short)
}

// newSample returns the next sample of a prompt, with own free pages, whose number the caller has
// checked.
func (e *Engine) newSample(h *cachedPrompt, own int) *sample {
	sm := &sample{}
	if n := len(e.idle); n > 0 {
		sm, e.idle = e.idle[n-1], e.idle[:n-1]
	}
	row := h.row // the last sample takes the prompt's
	if h.taken = h.started+1 == h.r.N; !h.taken {
		row = e.freeRow.take()
	}
	*sm = sample{
		prompt: h, s: h.started, row: row, own: e.takePages(sm.own[:0], own), table: sm.table[:0],
		ids: slices.Grow(sm.ids[:0], h.r.limit()), logp: slices.Grow(sm.logp[:0], h.r.limit()),
	}
	return sm
}

// startPrompt makes r the head of the queue and takes the pages of its prompt, with all that the
// cache has of it. It returns false if there are not enough pages for the prompt and for own pages
// of its first sample.
func (e *Engine) startPrompt(r *Request, own int) bool {
	h, n, pt := &cachedPrompt{r: r, left: r.N}, len(r.Prompt), e.o.PageTokens
	var part *node
	if e.caching {
		top := -1
		if r.Echo != nil {
			top = r.Top
		}
		h.shared, part, h.cached = e.tree.find(r.Prompt, pt, top, e.steps)
	}
	need := pages.Count(n, pt) - len(h.shared)
	if need+own > e.freePages() {
		e.tree.release(h.shared)
		return false
	}
	for _, node := range h.shared {
		h.pages = append(h.pages, node.page)
	}
	h.pages = e.takePages(h.pages, need)
	full := len(h.shared)
	if part != nil {
		// part.page may be among the pages taken: they are not written before this copy.
		e.copyPage(h.pages[full], part.page, h.cached-full*pt)
	}
	// The prompt's last token is computed for its output. For Echo the last cached token is
	// computed too: its output predicts the next.
	h.from = min(h.cached, n-1)
	if r.Echo != nil {
		h.from = max(0, min(h.cached, n)-1)
		h.echo = make([]Token, n-1)
		if part != nil {
			h.reuseRanks(part, full*pt, h.cached-full*pt)
		}
	}
	h.at = h.from
	h.row = e.freeRow.take()
	e.found += h.from
	if r.Found != nil {
		r.Found(h.from)
	}
	e.head = h
	return true
}

// takeChunk returns the next n tokens of a prompt as a chunk of the running step, and caches the
// pages that it fills.
func (e *Engine) takeChunk(h *cachedPrompt, n int) promptChunk {
	s := promptChunk{prompt: h, lo: h.at, hi: h.at + n}
	for pos := s.lo; pos < s.hi; pos++ {
		slot := int32(-1) // cached already
		if pos >= h.cached {
			slot = e.slot(h.pages, pos)
		}
		s.slots = append(s.slots, slot)
	}
	h.at = s.hi
	e.computed += n
	e.cachePages(h)
	return s
}

// fail ends the head of the queue for lack of memory, by its callback Failed; without one it
// returns short. No sample of it is being decoded: each needs less memory than the first.
func (e *Engine) fail(short error) error {
	h := e.head
	h.left -= h.r.N - h.started
	if h.r.Failed == nil {
		return short
	}
	e.endStarts(h)
	e.release(h)
	e.popQueue()
	h.r.Failed(short)
	return nil
}

// prefill runs chunks of prompts through the model, in packs: it writes keys and values to the
// cache, and the outputs of prompts' last tokens to promptH. The tokens before a chunk must be in
// the cache, or in an earlier chunk.
func (e *Engine) prefill(chunks []promptChunk) error {
	for len(chunks) > 0 {
		n, rows := 1, len(chunks[0].slots)
		for ; n < len(chunks) && rows+len(chunks[n].slots) <= pages.Prefill; n++ {
			rows += len(chunks[n].slots)
		}
		if err := e.prefillPack(chunks[:n]); err != nil {
			return err
		}
		chunks = chunks[n:]
	}
	e.free, e.freeLater = append(e.free, e.freeLater...), e.freeLater[:0]
	return nil
}

// prefillPack runs one forward pass over chunks. Chunks at the start of prompts come first, and
// attend to themselves; each row of the others attends to the cache, as in decode.
func (e *Engine) prefillPack(chunks []promptChunk) error {
	d, p, spare := e.m.Head.Cols, &e.pass, e.spare[0]*int32(e.o.PageTokens)
	p.clear()
	var whole []sequence.Seq
	ends := make([]int, len(chunks)) // the row after a chunk's last
	for i, s := range chunks {
		if !s.first() {
			continue
		}
		ids := s.prompt.r.Prompt[:s.hi]
		whole = append(whole, sequence.Seq{IDs: ids})
		for x, slot := range s.slots {
			p.add(ids[x], x, slot)
		}
		p.end(-1, s.prompt.row)
		ends[i] = len(p.IDs)
	}
	for i, s := range chunks {
		if s.first() {
			continue
		}
		for at, slot := range s.slots {
			if slot < 0 {
				slot = spare
				spare++
			}
			x := s.lo + at
			p.add(s.prompt.r.Prompt[x], x, slot)
			p.read(s.prompt.pages, x+1)
		}
		p.end(s.prompt.row, s.prompt.row)
		ends[i] = len(p.IDs)
	}
	hND, err := e.m.Prefill(whole, p)
	if err != nil {
		return err
	}
	for i, s := range chunks {
		at, h := ends[i]-len(s.slots), s.prompt
		if s.hi == len(h.r.Prompt) {
			e.m.Backend.Copy(e.promptH.Slice(h.row*d, (h.row+1)*d),
				hND.Slice((ends[i]-1)*d, ends[i]*d))
		}
		if h.r.Echo != nil {
			if err := e.echo(s, hND.Slice(at*d, ends[i]*d)); err != nil {
				return err
			}
		}
	}
	return nil
}

// echo ranks the prompt's tokens behind each token of chunk s, from the chunk's outputs hND, and
// calls Request.Echo after the prompt's last chunk.
func (e *Engine) echo(s promptChunk, hND compute.Tensor) error {
	h, r, pt, d := s.prompt, s.prompt.r, e.o.PageTokens, e.m.Head.Cols
	if s.lo == h.from {
		for i := 0; (i+1)*pt <= h.cached; i++ {
			h.reuseRanks(h.shared[i], i*pt, pt)
		}
	}
	tokens := h.echo[s.lo:min(s.hi, len(h.echo))]
	for i := range tokens {
		tokens[i] = Token{ID: r.Prompt[s.lo+1+i]}
	}
	if err := e.rank(tokens, func(int) int { return r.Top },
		hND.Slice(0, len(tokens)*d)); err != nil {
		return err
	}
	for i, n := range h.shared {
		if (i+1)*pt > s.lo && (i+1)*pt <= s.hi {
			h.cacheRanks(n, i*pt)
		}
	}
	if s.hi == len(r.Prompt) {
		r.Echo(h.echo)
	}
	return nil
}
