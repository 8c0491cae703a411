package sampling

import (
	"slices"
	"testing"
)

// What the tests see of an engine, and do to it: they run on real models, and so stand in package
// sampling_test.

// MaxCachedTop is the largest number of alternatives that are cached.
const MaxCachedTop = maxCachedTop

// Counts returns how many tokens of prompts were found and computed, and how many pages are idle.
func Counts(e *Engine) (found, computed, idle int) { return e.found, e.computed, e.tree.count }

// TakeAgain takes the workspace that the engine has reserved.
func TakeAgain(e *Engine) error { return e.take(e.reserved) }

// Free frees the memory of a closed engine.
func Free(e *Engine) { e.m.Close(true) }

// Drained fails unless everything that requests had is free again.
func Drained(t *testing.T, e *Engine) {
	t.Helper()
	waiting, running, pages := e.Load()
	if waiting != 0 || running != 0 || pages != 0 || !e.Idle() {
		t.Errorf("at the end %d wait, %d run, %d pages are taken, %d rows are free", waiting,
			running, pages, len(e.freeRow))
	}
	if len(e.freeRow) != e.o.Slots+1 {
		t.Errorf("at the end %d of %d rows are free", len(e.freeRow), e.o.Slots+1)
	}
}

// Audit fails unless each page and each row of states has one owner and the tree is in order.
func Audit(t *testing.T, e *Engine) {
	t.Helper()
	rows := slices.Clone(e.freeRow)
	for _, sm := range e.live {
		rows = append(rows, sm.row)
	}
	if e.head != nil {
		rows = append(rows, e.head.row)
	}
	slices.Sort(rows)
	for i, row := range rows {
		if i != row || len(rows) != e.o.Slots+1 {
			t.Fatalf("of %d rows of states these are free or somebody's: %v", e.o.Slots+1, rows)
		}
	}
	owner := make([]string, e.o.Pages)
	own := func(what string, pages ...int32) {
		for _, p := range pages {
			if owner[p] != "" {
				t.Fatalf("page %d is %s and %s", p, owner[p], what)
			}
			owner[p] = what
		}
	}
	own("free", e.free...)
	idle, order := 0, map[*node]int{}
	for n := e.tree.idle.after; n != &e.tree.idle; n = n.after {
		idle++
		order[n] = idle
	}
	if idle != e.tree.count {
		t.Fatalf("%d idle nodes, counted %d", idle, e.tree.count)
	}
	users := map[*node]int{}
	residents := map[*cachedPrompt]bool{}
	if e.head != nil {
		residents[e.head] = true
	}
	for _, sm := range e.live {
		residents[sm.prompt] = true
		own("a sample's", sm.own...)
	}
	for h := range residents {
		own("a prompt's", h.pages[len(h.shared):]...)
		for i, n := range h.shared {
			if users[n]++; h.pages[i] != n.page {
				t.Fatalf("page %d of a prompt is %d, its node has %d", i, h.pages[i], n.page)
			}
			if !slices.Equal(n.ids, h.r.Prompt[i*e.o.PageTokens:(i+1)*e.o.PageTokens]) {
				t.Fatalf("page %d of prompt %v has a node with %v", i, h.r.Prompt, n.ids)
			}
		}
	}
	var visit func(n *node)
	visit = func(n *node) {
		for i, c := range n.next {
			own("kept", c.page)
			if c.up != n || len(c.ids) == 0 || len(c.ids) > e.o.PageTokens ||
				len(c.ids) < e.o.PageTokens && len(c.next) > 0 {
				t.Fatalf("a node of %v with %d below it", c.ids, len(c.next))
			}
			if c.refs != users[c] || (c.refs == 0) != (order[c] > 0) {
				t.Fatalf("a node of %v has %d users, %d are known; place %d among the idle", c.ids,
					c.refs, users[c], order[c])
			}
			if n != &e.tree.root && order[n] > 0 && (order[c] == 0 || order[c] > order[n]) {
				t.Fatalf("a node of %v is used after the one above it", c.ids)
			}
			if len(c.ranks) > len(c.ids) {
				t.Fatalf("%d ranks of %v", len(c.ranks), c.ids)
			}
			for _, d := range n.next[:i] {
				if k := common(c.ids, d.ids); k == len(c.ids) || k == len(d.ids) {
					t.Fatalf("nodes of %v and %v stand beside each other", c.ids, d.ids)
				}
			}
			visit(c)
		}
	}
	visit(&e.tree.root)
	if i := slices.Index(owner, ""); i >= 0 {
		t.Fatalf("page %d is nobody's", i)
	}
	if len(e.freeLater) > 0 {
		t.Fatalf("pages %v are still to be freed", e.freeLater)
	}
}

// Spoils are ways to mistake a cached page for another.
var Spoils = map[string]func(e *Engine){
	"two pages exchanged": func(e *Engine) {
		if a, b := e.tree.idle.after, e.tree.idle.before; e.tree.count > 1 {
			a.page, b.page = b.page, a.page
		}
	},
	"behind other tokens": func(e *Engine) {
		for a := e.tree.idle.after; a != &e.tree.idle; a = a.after {
			if root := &e.tree.root; a.up != root {
				a.up.next = slices.DeleteFunc(a.up.next, func(n *node) bool { return n == a })
				a.up, root.next = root, append(root.next, a)
				return
			}
		}
	},
	"another's ranks": func(e *Engine) {
		for a := e.tree.idle.after; a != &e.tree.idle; a = a.after {
			if len(a.ranks) > 1 && a.ranks[1].Logp < 0 {
				a.ranks[1].Logp += 0.001
			}
		}
	},
}
