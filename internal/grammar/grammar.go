// Package grammar computes which bytes may follow a text that must become JSON, any value or one
// that fits a schema, so that a sampler can mask all other tokens.
//
//	grammar.go  the automaton: nodes, stacks, states built when first reached. Start here
//	json.go     the nodes of JSON and of a JSON schema
//
// A grammar is a graph of nodes over bytes. A stack lists the nodes that must still be matched, its
// top first; a state is a set of stacks, because a text may be parsed in several ways. Stacks are
// hash-consed, so that a state is identified by its stacks' numbers, and its transitions are
// cached: a token costs a table look-up a byte once its states are known. States are bounded: see
// maxStates.
package grammar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// node is a part of a grammar: a set of bytes, a sequence, or a choice.
type node struct {
	bytes *[256]bool // a byte of this set; nil for the others
	seq   []*node    // all of them, in order; nil for a choice
	alt   []*node    // one of them
	id    int
}

// stack lists the nodes that must still be matched: top, then those of next. The nil stack is the
// end.
type stack struct {
	top  *node
	next *stack
	id   int
}

// state is the set of stacks after some bytes, with its cached transitions.
type state struct {
	tops []*stack // stacks whose top is a set of bytes, by id
	ends bool     // the text may end here
	next [256]*state
	made [256]bool
}

// maxStates bounds the states of one grammar, and times eight its stacks. A schema that needs more
// is refused when a text reaches them.
const maxStates = 1 << 16

// ErrLarge is returned where a grammar needs more than maxStates states.
var ErrLarge = errors.New("grammar: too many states: use a simpler schema")

// Grammar is a language of texts. Its methods may be called from several goroutines.
type Grammar struct {
	mu     sync.Mutex
	stacks map[[2]int]*stack
	states map[string]*state
	start  *state
}

// newGrammar returns the grammar whose texts match root.
func newGrammar(root *node) (*Grammar, error) {
	g := &Grammar{stacks: map[[2]int]*stack{}, states: map[string]*state{}}
	var err error
	g.start, err = g.stateOf([]*stack{g.push(root, nil)})
	return g, err
}

// push returns the stack of n above next, the same pointer for the same two.
func (g *Grammar) push(n *node, next *stack) *stack {
	key := [2]int{n.id, 0}
	if next != nil {
		key[1] = next.id
	}
	s, ok := g.stacks[key]
	if !ok {
		s = &stack{n, next, len(g.stacks) + 1}
		g.stacks[key] = s
	}
	return s
}

// stateOf returns the state of the given stacks: each is expanded until its top is a set of bytes.
func (g *Grammar) stateOf(list []*stack) (*state, error) {
	s := &state{}
	seen := map[*stack]bool{}
	for len(list) > 0 {
		at := list[len(list)-1]
		list = list[:len(list)-1]
		if seen[at] {
			continue
		}
		if seen[at] = true; len(seen) > maxStates || len(g.stacks) > 8*maxStates {
			return nil, ErrLarge
		}
		switch {
		case at == nil:
			s.ends = true
		case at.top.bytes != nil:
			s.tops = append(s.tops, at)
		case at.top.alt != nil:
			for _, n := range at.top.alt {
				list = append(list, g.push(n, at.next))
			}
		default:
			rest := at.next
			for _, n := range slices.Backward(at.top.seq) {
				rest = g.push(n, rest)
			}
			list = append(list, rest)
		}
	}
	slices.SortFunc(s.tops, func(a, b *stack) int { return a.id - b.id })
	var key strings.Builder
	fmt.Fprint(&key, s.ends)
	for _, t := range s.tops {
		fmt.Fprint(&key, " ", t.id)
	}
	if known, ok := g.states[key.String()]; ok {
		return known, nil
	}
	if len(g.states) >= maxStates {
		return nil, ErrLarge
	}
	g.states[key.String()] = s
	return s, nil
}

// step returns the state behind byte b; nil if b cannot follow.
func (g *Grammar) step(s *state, b byte) (*state, error) {
	if s.made[b] {
		return s.next[b], nil
	}
	var list []*stack
	for _, t := range s.tops {
		if t.top.bytes[b] {
			list = append(list, t.next)
		}
	}
	if list != nil {
		next, err := g.stateOf(list)
		if err != nil {
			return nil, err
		}
		s.next[b] = next
	}
	s.made[b] = true
	return s.next[b], nil
}

// Text is a prefix of a text of a grammar.
type Text struct {
	g  *Grammar
	at *state // nil if the bytes so far do not fit the grammar
}

// Begin returns the empty text.
func (g *Grammar) Begin() *Text { return &Text{g, g.start} }

// Append extends the text by piece. It returns false if piece cannot follow; the text then fits
// nothing any more.
func (t *Text) Append(piece []byte) (bool, error) {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	var err error
	t.at, err = t.g.walk(t.at, piece)
	return t.at != nil, err
}

// walk returns the state behind piece, from s; nil if piece cannot follow.
func (g *Grammar) walk(s *state, piece []byte) (_ *state, err error) {
	for _, b := range piece {
		if s == nil {
			return nil, nil
		}
		if s, err = g.step(s, b); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Ends reports whether the text is complete and may end here.
func (t *Text) Ends() bool { return t.at != nil && t.at.ends }

// Mask sets allowed[i] to whether pieces[i] may follow the text. An empty piece may not.
func (t *Text) Mask(pieces [][]byte, allowed []bool) error {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	for i, piece := range pieces {
		s, err := t.g.walk(t.at, piece)
		if err != nil {
			return err
		}
		allowed[i] = s != nil && len(piece) > 0
	}
	return nil
}
