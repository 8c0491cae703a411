package model

import "slices"

// prefixes is a tree of cached pages by the tokens that lead to them: a node is a page, and
// its keys and values are those of its tokens behind the tokens of the nodes above it. They
// are compared token by token, so a page is found by exactly what it holds.
//
// A page that a sequence reads is held by it, with all nodes above. The others are idle: the
// engine may take them for something else, those first that were not used for longest.
type prefixes struct {
	root  node
	idle  node // a ring: idle.after was not used for longest. A node comes before the one above it
	count int  // of idle nodes
}

// node is a page of a sequence's beginning. One with fewer tokens than a page has nothing
// below it and is never held: what it has is copied.
type node struct {
	up   *node
	next []*node
	ids  []int32
	page int32

	refs          int   // sequences that hold it
	before, after *node // in the ring, while it is idle
	step          int   // of the engine, which computes its keys and values

	// Of prompts that were echoed: the first of the tokens, or all, as they were ranked, with
	// top choices. About the first token of a sequence there is nothing to say. pendingTop are the
	// choices with which step pendingStep ranks all; -1 is none.
	ranks                   []Token
	top                     int
	pendingTop, pendingStep int
}

// maxCachedTop is up to how many choices of a ranked token are kept.
const maxCachedTop = 20

func (t *prefixes) clear() {
	*t = prefixes{}
	t.idle.before, t.idle.after = &t.idle, &t.idle
}

// hold keeps a node from being taken.
func (t *prefixes) retain(n *node) {
	if n.refs++; n.refs == 1 && n.after != nil {
		t.unlink(n)
	}
}

// drop ends hold for a path, root first.
func (t *prefixes) release(path []*node) {
	for _, n := range slices.Backward(path) { // so that a node is idle before the one above
		if n.refs--; n.refs == 0 {
			last := t.idle.before
			n.before, n.after = last, &t.idle
			last.after, t.idle.before = n, n
			t.count++
		}
	}
}

func (t *prefixes) unlink(n *node) {
	n.before.after, n.after.before = n.after, n.before
	n.before, n.after = nil, nil
	t.count--
}

// remove takes an idle node without nodes below it out of the tree.
func (t *prefixes) remove(n *node) (page int32) {
	t.unlink(n)
	at := slices.Index(n.up.next, n)
	n.up.next = slices.Delete(n.up.next, at, at+1)
	return n.page
}

// add makes a node of a page that step computes, below up. It is held once, as is the node
// that has the tokens already, if there is one; then the page is not taken. freed are pages
// that the new one makes superfluous.
func (t *prefixes) add(up *node, ids []int32, page int32, step int) (n *node, taken bool, freed []int32) {
	for i := 0; i < len(up.next); {
		c := up.next[i]
		switch common(c.ids, ids) {
		case len(ids):
			t.retain(c)
			return c, false, freed
		case len(c.ids):
			freed = append(freed, t.remove(c))
		default:
			i++
		}
	}
	n = &node{up: up, ids: slices.Clone(ids), page: page, refs: 1, step: step, pendingTop: -1}
	up.next = append(up.next, n)
	return n, true, freed
}

// common is how many tokens two sequences have in common at their beginnings.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// find is the longest beginning of a prompt whose keys and values are there when step
// computes: n tokens, in the pages of path, which it holds, and at the beginning of part's
// page. If the prompt is echoed, with top choices, its tokens are ranked as well; else top
// is -1.
func (t *prefixes) find(prompt []int32, pageTokens, top, step int) (path []*node, part *node, n int) {
	for at := &t.root; ; at = part {
		var best *node
		most := 0
		for _, c := range at.next {
			k := common(c.ids, prompt[n:])
			if top >= 0 && !(k == pageTokens && c.pendingStep == step && c.pendingTop >= top) {
				if k = min(k, len(c.ranks)); c.top < top {
					k = 0
				}
			}
			// Copying comes before computing, so what is copied has been there before.
			if k > most && (k == pageTokens || c.step < step) {
				best, most = c, k
			}
		}
		n += most
		if part = best; most < pageTokens {
			return path, part, n
		}
		t.retain(part)
		path = append(path, part)
	}
}

// cachePages has the tree know the pages of a prompt that are full with what the running step
// computes. Where it knows another page with the same tokens, that one is used from now on,
// and the prompt's own is free after the step, which writes it.
func (e *Engine) cachePages(h *cachedPrompt) {
	pt, up := e.o.PageTokens, e.leaf(h)
	for i := len(h.shared); e.caching && (i+1)*pt <= h.at; i++ {
		n, taken, freed := e.tree.add(up, h.r.Prompt[i*pt:(i+1)*pt], h.pages[i], e.steps)
		e.free = append(e.free, freed...)
		if !taken {
			e.freeLater = append(e.freeLater, h.pages[i])
			h.pages[i] = n.page
		}
		if top := h.r.Top; h.r.Echo != nil && top <= maxCachedTop && (n.top < top || len(n.ranks) < pt) {
			n.pendingTop, n.pendingStep = max(top, n.pendingTop), e.steps
		}
		h.shared, up = append(h.shared, n), n
	}
}

// leaf is the last of the nodes that a prompt holds.
func (e *Engine) leaf(h *cachedPrompt) *node {
	if n := len(h.shared); n > 0 {
		return h.shared[n-1]
	}
	return &e.tree.root
}

// cacheEnd gives the page of a prompt's end to the tree, unless the prompt fills it.
func (e *Engine) cacheEnd(h *cachedPrompt, page int32) {
	n := len(h.r.Prompt)
	if !e.caching || h.at < n {
		e.free = append(e.free, page)
		return
	}
	from := len(h.shared) * e.o.PageTokens
	end, taken, freed := e.tree.add(e.leaf(h), h.r.Prompt[from:], page, e.steps)
	if e.free = append(e.free, freed...); !taken {
		e.free = append(e.free, page)
	}
	h.cacheRanks(end, from)
	e.tree.release([]*node{end})
}

// cacheAnswer gives the pages of a sample that ends to the tree.
func (e *Engine) cacheAnswer(sm *sample) {
	h, pt := sm.prompt, e.o.PageTokens
	n := len(h.r.Prompt)
	have, up := n+len(sm.ids)-1, e.leaf(h) // the last token was not passed through the model
	var path []*node
	var ids []int32
	for i, page := range sm.own {
		lo := (n/pt + i) * pt
		if !e.caching || lo >= have {
			e.free = append(e.free, page)
			continue
		}
		ids = ids[:0]
		for at := lo; at < min(lo+pt, have); at++ {
			if at < n {
				ids = append(ids, h.r.Prompt[at])
			} else {
				ids = append(ids, sm.ids[at-n])
			}
		}
		node, taken, freed := e.tree.add(up, ids, page, e.steps)
		if e.free = append(e.free, freed...); !taken {
			e.free = append(e.free, page)
		}
		path, up = append(path, node), node
	}
	e.tree.release(path)
}

// cacheRanks gives a node the ranks of its tokens, of which the first is the prompt's at from.
func (h *cachedPrompt) cacheRanks(n *node, from int) {
	tokens := min(len(n.ids), len(h.r.Prompt)-from)
	if h.r.Echo == nil || h.r.Top > maxCachedTop || tokens < len(n.ranks) || tokens == len(n.ranks) && h.r.Top <= n.top {
		return
	}
	n.top, n.ranks = h.r.Top, n.ranks[:0]
	for t := from; t < from+tokens; t++ {
		if t == 0 {
			n.ranks = append(n.ranks, Token{})
		} else {
			n.ranks = append(n.ranks, h.echo[t-1])
		}
	}
}

// reuseRanks is cacheRanks' inverse, for the node's first tokens.
func (h *cachedPrompt) reuseRanks(n *node, from, tokens int) {
	for i := range tokens {
		if t := from + i; t > 0 && t < len(h.r.Prompt) {
			token := n.ranks[i]
			top := min(len(token.Top), h.r.Top)
			token.Top = token.Top[:top:top]
			h.echo[t-1] = token
		}
	}
}

// room is how many pages can be had.
func (e *Engine) freePages() int { return len(e.free) + e.tree.count }

// forget empties the tree once the weights are others than those that computed it.
func (e *Engine) invalidate() error {
	now := e.m.written()
	if now == e.weights {
		return nil
	}
	if len(e.live) > 0 || e.head != nil {
		return errChanged
	}
	e.weights = now
	for e.tree.count > 0 {
		e.free = append(e.free, e.tree.remove(e.tree.idle.after))
	}
	return nil
}
