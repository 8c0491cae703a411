// Package grammar says which bytes may follow a text that must become JSON, any value or one of a
// schema, so that a sampler can leave out all other tokens.
//
//	grammar.go  the automaton: nodes, stacks of what must still come, states made when first met
//	json.go     the nodes of JSON and of a JSON schema
//
// A grammar is a graph of nodes over bytes. A stack says what must still come, its top first; a
// state is a set of stacks, because a text may be begun in several ways. Stacks are made once each
// (hash-consed), so that a state is known by its stacks' numbers, and its transitions are kept: a
// token costs a table look-up a byte once its states have been met. States are bounded: see most.
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

// stack is what must still come: a node, and what comes behind it. The nil stack is the end.
type stack struct {
	top  *node
	next *stack
	id   int
}

// state is the set of stacks after some bytes.
type state struct {
	tops []*stack // whose top is a set of bytes, by id
	ends bool     // the text may end here
	next [256]*state
	made [256]bool
}

// most bounds the states and the stacks of one grammar: a schema that needs more is refused while
// it is used.
const most = 1 << 16

// ErrLarge is a grammar with more states than are kept.
var ErrLarge = errors.New("grammar: too many states: use a simpler schema")

// Grammar is a language of texts. Its methods may be called from several goroutines.
type Grammar struct {
	mu     sync.Mutex
	stacks map[[2]int]*stack
	states map[string]*state
	start  *state
}

// newGrammar makes the grammar of root.
func newGrammar(root *node) (*Grammar, error) {
	g := &Grammar{stacks: map[[2]int]*stack{}, states: map[string]*state{}}
	var err error
	g.start, err = g.stateOf([]*stack{g.push(root, nil)})
	return g, err
}

// push is the stack with n before next.
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

// stateOf is the state of the given stacks: each is opened until its top is a set of bytes.
func (g *Grammar) stateOf(list []*stack) (*state, error) {
	s := &state{}
	seen := map[*stack]bool{}
	for len(list) > 0 {
		at := list[len(list)-1]
		list = list[:len(list)-1]
		if seen[at] {
			continue
		}
		if seen[at] = true; len(seen) > most || len(g.stacks) > 8*most {
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
	if len(g.states) >= most {
		return nil, ErrLarge
	}
	g.states[key.String()] = s
	return s, nil
}

// step is the state behind byte b; nil where it cannot follow.
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

// Text is how far a text has come in a grammar.
type Text struct {
	g  *Grammar
	at *state // nil behind bytes that the grammar does not have
}

// Begin is the empty text.
func (g *Grammar) Begin() *Text { return &Text{g, g.start} }

// Append goes on with piece. It returns false, and the text is lost, if that cannot follow.
func (t *Text) Append(piece []byte) (bool, error) {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	var err error
	t.at, err = t.g.walk(t.at, piece)
	return t.at != nil, err
}

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

// Ends reports whether the text may end here.
func (t *Text) Ends() bool { return t.at != nil && t.at.ends }

// Mask sets allowed[i] for each piece that may follow. An empty piece may not.
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
