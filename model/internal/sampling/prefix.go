package sampling

import "slices"

// prefixes is the prefix tree of cached pages. A node is a page of keys and values; these depend on
// the page's tokens and on all tokens before it, which the nodes on the path from the root hold.
// Lookup compares tokens, not hashes: a match is exact.
//
// A node that a sequence reads is referenced by it, and so are all nodes above. Nodes without
// references are idle: they can be evicted, the least recently used first and children before
// their parent.
//
// Three rules keep the order of a step safe. Copies of pages come before any computation of the
// step, so only pages that an earlier step computed are copied (node.step). If two prompts of one
// step compute the same page, the first one's is kept; the second's is freed after the step, which
// still writes it (Engine.freeLater). A partly filled page has no children and is never referenced
// but copied, because its owner or the other sequence would write behind the common tokens.
type prefixes struct {
	root node
	// ring of idle nodes: idle.after is the least recently used; children come before their parent
	idle  node
	count int // number of idle nodes
}

// node is a page of the tree.
type node struct {
	up   *node
	next []*node // children
	ids  []int32 // the page's tokens; a leaf that is only copied may have fewer than a page
	page int32

	refs          int   // sequences that read the page
	before, after *node // neighbours in the ring, while idle
	step          int   // Engine.steps when its keys and values are computed

	// ranks are the first tokens of ids, or all, ranked with top alternatives for Request.Echo; the
	// first token of a sequence has no log-probability. pendingTop is the number of alternatives
	// that step pendingStep will rank for all of ids; -1: none.
	ranks                   []Token
	top                     int
	pendingTop, pendingStep int
}

// maxCachedTop is the largest number of alternatives for which ranked tokens are cached.
const maxCachedTop = 64

// clear empties the tree, without freeing pages.
func (t *prefixes) clear() {
	*t = prefixes{}
	t.idle.before, t.idle.after = &t.idle, &t.idle
}

// retain adds a reference, which keeps the node from eviction.
func (t *prefixes) retain(n *node) {
	if n.refs++; n.refs == 1 && n.after != nil {
		t.unlink(n)
	}
}

// release removes a reference from each node of path, which begins at the root. Nodes without
// references become the most recently used idle nodes.
func (t *prefixes) release(path []*node) {
	for _, n := range slices.Backward(path) { // children become idle before their parent
		if n.refs--; n.refs == 0 {
			last := t.idle.before
			n.before, n.after = last, &t.idle
			last.after, t.idle.before = n, n
			t.count++
		}
	}
}

// unlink removes an idle node from the ring.
func (t *prefixes) unlink(n *node) {
	n.before.after, n.after.before = n.after, n.before
	n.before, n.after = nil, nil
	t.count--
}

// remove evicts an idle node without children, and returns its page.
func (t *prefixes) remove(n *node) (page int32) {
	t.unlink(n)
	at := slices.Index(n.up.next, n)
	n.up.next = slices.Delete(n.up.next, at, at+1)
	return n.page
}

// add inserts a page that step computes below up, and references its node n. If a node with the
// same tokens exists, add references that one and taken is false: the page stays the caller's.
// freed are the pages of children whose tokens are a prefix of ids: add evicts them.
func (t *prefixes) add(up *node, ids []int32, page int32,
	step int) (n *node, taken bool, freed []int32) {
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

// common returns the length of the longest common prefix of a and b.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// find returns the longest prefix of a prompt that is cached when step computes: n tokens, in the
// pages of path, which it references, and in the first tokens of part's page. top is the number of
// alternatives that Request.Echo needs of each cached token; -1: no Echo.
func (t *prefixes) find(prompt []int32, pageTokens, top,
	step int) (path []*node, part *node, n int) {
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
			// Copies come before the computations of a step.
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

// cachePages inserts into the tree the pages of a prompt that are full after the running step. If
// the tree has another page with the same tokens, the prompt reads that one from now on, and its
// own is freed after the step, which still writes it.
func (e *Engine) cachePages(h *cachedPrompt) {
	pt, up := e.o.PageTokens, e.leaf(h)
	for i := len(h.shared); e.caching && (i+1)*pt <= h.at; i++ {
		n, taken, freed := e.tree.add(up, h.r.Prompt[i*pt:(i+1)*pt], h.pages[i], e.steps)
		e.free = append(e.free, freed...)
		if !taken {
			e.freeLater = append(e.freeLater, h.pages[i])
			h.pages[i] = n.page
		}
		if top := h.r.Top; h.r.Echo != nil && top <= maxCachedTop &&
			(n.top < top || len(n.ranks) < pt) {
			n.pendingTop, n.pendingStep = max(top, n.pendingTop), e.steps
		}
		h.shared, up = append(h.shared, n), n
	}
}

// leaf returns the last node that a prompt references; the root if it references none.
func (e *Engine) leaf(h *cachedPrompt) *node {
	if n := len(h.shared); n > 0 {
		return h.shared[n-1]
	}
	return &e.tree.root
}

// cacheEnd inserts the partly filled last page of a prompt into the tree, or frees it.
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

// cacheAnswer inserts the own pages of a sample that ends into the tree, or frees them.
func (e *Engine) cacheAnswer(sm *sample) {
	h, pt := sm.prompt, e.o.PageTokens
	n := len(h.r.Prompt)
	have, up := n+len(sm.ids)-1, e.leaf(h) // the last token has no keys and values
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

// cacheRanks stores the ranked tokens of a node whose first token is at position from of the
// prompt.
func (h *cachedPrompt) cacheRanks(n *node, from int) {
	tokens := min(len(n.ids), len(h.r.Prompt)-from)
	if h.r.Echo == nil || h.r.Top > maxCachedTop || tokens < len(n.ranks) ||
		tokens == len(n.ranks) && h.r.Top <= n.top {
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

// reuseRanks copies the ranks of the node's first tokens to the prompt's at position from; the
// inverse of cacheRanks.
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

// freePages returns the number of pages that are free or can be evicted.
func (e *Engine) freePages() int { return len(e.free) + e.tree.count }

// invalidate empties the tree if the weights have changed since its pages were computed. It returns
// errChanged if a request is under way.
func (e *Engine) invalidate() error {
	now := e.m.Writes()
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
