package sampling

import (
	"errors"

	"gad/internal/compute"
	"gad/model/internal/logits"
	"gad/model/internal/pages"
)

// allocate takes the engine's memory except activations: the caches, and the outputs at prompts'
// ends.
func (e *Engine) allocate() error {
	m := &e.m
	e.promptH = m.Workspace.Get("outputs at prompts' ends [P,D]", compute.Narrow,
		pages.States(e.o.Slots)*m.Head.Cols)
	e.firstH = m.Workspace.Get("outputs before first tokens [R,D]", compute.Narrow,
		e.o.Slots*m.Head.Cols)
	for i := range e.o.Pages { // takePages takes from the end, so a sample's pages are adjacent
		e.free = append(e.free, int32(i))
	}
	for i := pages.States(e.o.Slots) - 1; i >= 0; i-- {
		e.freeRow.give(i)
	}
	return m.Workspace.Take()
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
	if to != from {
		e.m.Copy(int(to)*e.o.PageTokens, int(from)*e.o.PageTokens, n)
	}
}

// share sets a sample's page table: the prompt's full pages, then its own, of which the first
// begins with a copy of the prompt's partly filled page. Its states are the prompt's.
func (e *Engine) share(sm *sample) {
	if sm.row != sm.prompt.row {
		e.m.Fork(sm.row, sm.prompt.row)
	}
	n, pt := len(sm.prompt.r.Prompt), e.o.PageTokens
	full := n / pt
	sm.table = append(append(sm.table, sm.prompt.pages[:full]...), sm.own...)
	part := n % pt
	if part == 0 || len(sm.own) == 0 {
		return
	}
	e.copyPage(sm.own[0], sm.prompt.pages[full], part)
}

// rows are free rows of promptH, which are also those of the states of sequences.
type rows []int

// take takes a row. There is one: a prompt and each sample have one, but the last sample has the
// prompt's.
func (r *rows) take() (row int) {
	last := len(*r) - 1
	row, *r = (*r)[last], (*r)[:last]
	return row
}

// give gives a row back.
func (r *rows) give(row int) { *r = append(*r, row) }

// endStarts frees the resources that a prompt needs only until all its samples have started: its
// partly filled last page, and its row unless a sample has taken it.
func (e *Engine) endStarts(r *cachedPrompt) {
	if r.row < 0 {
		return
	}
	if !r.taken {
		e.freeRow.give(r.row)
	}
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

// drawnRD names a buffer that reserve allocates, like logits.RV, for a later call in the step.
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
		s.rows = max(s.rows, pages.DecodeRows(e.m.Backend.DecodeMultiple(), n))
		if r.Ranked {
			s.ranked = max(s.ranked, n)
		}
	}
	s.ranked = min(s.ranked, logits.Rows(e.m.Head.Rows))
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
	} else if !errors.Is(short, compute.ErrMemory) {
		return nil, short
	}
	if short != nil {
		err = e.take(e.reserved) // as it was
	}
	return short, err
}

// take allocates all of s, or nothing.
func (e *Engine) take(s scratch) error {
	return e.m.Workspace.Try(func() {
		e.m.Reserve(s.rows)
		e.m.Workspace.Get(logits.RV, compute.Wide, s.ranked*e.m.Head.Rows)
		e.m.Workspace.Get(drawnRD, compute.Narrow, s.drawn*e.m.Head.Cols)
	})
}
