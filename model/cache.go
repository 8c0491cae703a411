package model

import (
	"errors"
	"fmt"
	"math"

	"gad/internal/compute"
	"gad/model/internal/logits"
	"gad/model/internal/pages"
	"gad/model/internal/workspace"
)

// allocate takes the engine's memory except activations: the caches, and the outputs at prompts'
// ends.
func (e *Engine) allocate() error {
	m, c := e.m, &e.m.cfg
	spare := pages.Spare(m.be.DecodeMultiple(), e.o.PageTokens)
	// a step may compute one row of each starting prompt for its output alone
	if e.caching {
		spare = max(spare, pages.Count(e.o.Slots+1, e.o.PageTokens))
	}
	if e.o.Pages+spare > math.MaxInt32/e.o.PageTokens {
		return fmt.Errorf(
			"model: generate: cache of %d pages of %d tokens: too large: lower the slots",
			e.o.Pages, e.o.PageTokens)
	}
	e.spare = []int32{int32(e.o.Pages)}
	n := (e.o.Pages + spare) * e.o.PageTokens * c.KVHeads * c.HeadDim
	cache := func(layer int, what string) compute.Tensor {
		if t, ok := e.grads.get(compute.Narrow, n); ok {
			return t
		}
		return m.ws.In(workspace.Purpose{Layer: layer, What: what}, compute.Narrow, n)
	}
	for i := range c.Layers {
		e.k = append(e.k, cache(i, "key cache [slots,K,E]"))
		e.v = append(e.v, cache(i, "value cache [slots,K,E]"))
	}
	e.pages.PageTokens, e.keys = e.o.PageTokens, map[int]string{}
	e.pass = func() { m.forward(e.acts, e.ids, e.pos, e.attend) }
	e.promptH = m.ws.Get("outputs at prompts' ends [P,D]", compute.Narrow, (e.o.Slots+1)*c.Hidden)
	e.firstH = m.ws.Get("outputs before first tokens [R,D]", compute.Narrow, e.o.Slots*c.Hidden)
	for i := range e.o.Pages { // takePages takes from the end, so a sample's pages are adjacent
		e.free = append(e.free, int32(i))
	}
	for i := e.o.Slots; i >= 0; i-- {
		e.freeRow = append(e.freeRow, i)
	}
	return m.ws.Take()
}

// takePages appends n free pages to p. If there are too few, it evicts cached pages that no
// sequence uses, the least recently used first. The caller must have checked freePages.
func (e *Engine) takePages(p []int32, n int) []int32 {
	for len(e.free) < n {
		e.free = append(e.free, e.tree.remove(e.tree.idle.after))
	}
	at := len(e.free) - n
	p = append(p, e.free[at:]...)
	e.free = e.free[:at]
	return p
}

// slot returns the index in the cache of position pos of a sequence with the page table.
func (e *Engine) slot(table []int32, pos int) int32 {
	return table[pos/e.o.PageTokens]*int32(e.o.PageTokens) + int32(pos%e.o.PageTokens)
}

// copyPage copies the keys and values of the first n tokens of page from to page to.
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

// share sets a sample's page table: the prompt's full pages, then its own, of which the first
// begins with a copy of the prompt's partly filled page.
func (e *Engine) share(sm *sample) {
	n, pt := len(sm.prompt.r.Prompt), e.o.PageTokens
	full := n / pt
	sm.table = append(append(sm.table, sm.prompt.pages[:full]...), sm.own...)
	part := n % pt
	if part == 0 || len(sm.own) == 0 {
		return
	}
	e.copyPage(sm.own[0], sm.prompt.pages[full], part)
}

// cache writes the keys and values of b to the cache of a layer, row i to slots[i].
func (e *Engine) cache(layer int, b *block, slots []int32) {
	w := e.m.cfg.KVHeads * e.m.cfg.HeadDim
	e.m.be.CacheWrite(e.k[layer], b.kNKE, w, slots)
	e.m.be.CacheWrite(e.v[layer], b.vNKE, w, slots)
}

// attendCache writes the rows' keys and values to the cache of layer i; then each row attends to
// its positions in e.pages.
func (e *Engine) attendCache(i int, b *block, posN, slots []int32) {
	l := e.m.spec.Layers[i]
	be, shape := e.m.be, e.m.attnShape(l)
	if l.Rope < 0 {
		e.cache(i, b, slots)
	} else {
		be.RopeCache(b.qNHE, b.kNKE, b.vNKE, e.k[i], e.v[i], shape, posN, e.m.table(l), slots)
	}
	be.AttentionDecode(b.oNHE, b.qNHE, e.k[i], e.v[i], shape, e.pages)
}

// endStarts frees the resources that a prompt needs only until all its samples have started: its
// row of promptH, and its partly filled last page.
func (e *Engine) endStarts(r *cachedPrompt) {
	if r.row < 0 {
		return
	}
	e.freeRow = append(e.freeRow, r.row)
	r.row = -1
	if len(r.r.Prompt)%e.o.PageTokens != 0 {
		end := len(r.pages) - 1
		e.cacheEnd(r, r.pages[end])
		r.pages = r.pages[:end]
	}
}

// release frees a prompt's pages after its last sample has ended.
func (e *Engine) release(r *cachedPrompt) {
	if r.left == 0 {
		e.free = append(e.free, r.pages[len(r.shared):]...)
		e.tree.release(r.shared)
		r.pages, r.shared = nil, nil
	}
}

// drawnRD names a buffer that reserve allocates, like logitsRV, for a later call in the step.
const drawnRD = "outputs of one sampling [R,D]"

// scratch is the size of a step's workspace.
type scratch struct {
	rows   int // tokens of the largest pass
	ranked int // rows of logits
	drawn  int // rows of outputs that one call of sample gathers
}

// scratchFor returns the workspace of a step that computes the next rest tokens of h in one pack
// with before other tokens, and decodes others samples, and one of h's if these are the prompt's
// last tokens.
func (e *Engine) scratchFor(h *cachedPrompt, before, rest, others int) (s scratch) {
	r := h.r
	s.rows = rest
	if before+rest <= pages.Prefill {
		s.rows += before
	}
	if r.Echo != nil {
		s.ranked = rest
	}
	if r.MaxNew > 0 && h.at+rest == len(r.Prompt) {
		n := others + 1
		s.rows = max(s.rows, pages.DecodeRows(e.m.be.DecodeMultiple(), n))
		if r.Ranked {
			s.ranked = max(s.ranked, n)
		}
	}
	s.ranked = min(s.ranked, logits.Rows(e.m.cfg.Vocab))
	return s
}

// reserve allocates the workspace s of a step. If there is not enough memory, it returns the error
// as short and leaves the engine with the workspace that it had.
func (e *Engine) reserve(s scratch) (short, err error) {
	all := scratch{max(s.rows, e.reserved.rows), max(s.ranked, e.reserved.ranked),
		max(s.drawn, e.reserved.drawn)}
	if all == e.reserved {
		return nil, nil
	}
	if short = e.take(all); short == nil {
		e.reserved = all
	} else if !errors.Is(short, ErrMemory) {
		return nil, short
	}
	if short != nil {
		err = e.take(e.reserved) // as it was
	}
	return short, err
}

// take allocates all of s, or nothing.
func (e *Engine) take(s scratch) error {
	return e.m.ws.Try(func() {
		e.m.activations(s.rows, keepNothing)
		e.m.ws.Get(logitsRV, compute.Wide, s.ranked*e.m.cfg.Vocab)
		e.m.ws.Get(drawnRD, compute.Narrow, s.drawn*e.m.cfg.Hidden)
	})
}
