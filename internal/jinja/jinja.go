// Package jinja renders chat templates: the language of jinja2 3.1, with the settings, filters and
// functions that transformers adds, and Python's values. A template comes with a model and is not
// trusted: it sees the given variables and nothing else, it cannot change them, and Limits bound a
// render.
//
// Parse refuses, with line and column, any feature that this package does not implement; it is
// never rendered differently. The map:
//
//	jinja.go    Template, Parse, Render: start here
//	lexer.go    a template's text to tokens: tags, blanks at their borders, literals
//	parser.go   tokens to a tree: the grammar, precedence, refused features
//	tree.go     the nodes of expressions and their evaluation
//	stmt.go     the nodes of statements and their execution
//	scope.go    the variable that a name means: scopes as jinja2's compiler makes them
//	value.go    values: truth, equality, order, hashing, iteration, str() and repr()
//	arith.go    operators
//	attr.go     attributes, items, slices
//	calls.go    arguments, macros, global functions
//	strings.go  methods of str, and of list, dict and the others
//	format.go   '%' and str.format
//	filters.go  filters; tests.go: tests
//	json.go     tojson, and values from JSON texts
//	budget.go   the limits of a render, and its use of them
package jinja

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Template is a parsed template, safe for concurrent use.
type Template struct {
	body  []stmt
	frame *frame
	reads map[string]bool
}

// Vars are the variables of a render: values from FromJSON, or bool, int, int64, float64, string,
// nil, *List, *Tuple and *Dict.
type Vars map[string]any

// Error is a mistake in a template, or a failure of a render.
type Error struct {
	Line, Column int // from 1; 0 if unknown
	Message      string
}

func (e *Error) Error() string {
	switch {
	case e.Line == 0:
		return e.Message
	case e.Column == 0:
		return fmt.Sprintf("line %d: %s", e.Line, e.Message)
	}
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Message)
}

// Parse parses a template. Its error is an *Error with line and column.
func Parse(source string) (t *Template, err error) {
	p := &parser{reads: map[string]bool{}}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *Error:
			t, err = nil, r
		default:
			panic(r)
		}
	}()
	p.lex(source)
	t = &Template{}
	t.body = p.template()
	t.frame = resolveTemplate(p, t.body)
	t.reads = p.reads
	return t, nil
}

// Reads returns the names that the template looks up in the variables of a render, sorted.
func (t *Template) Reads() []string { return slices.Sorted(maps.Keys(t.reads)) }

// Render returns the template's text for these variables. A failure, also over the limits, is an
// *Error.
func (t *Template) Render(vars Vars, limits Limits) (text string, err error) {
	s := &state{vars: vars, limits: limits, now: limits.Now}
	if s.now == nil {
		s.now = time.Now
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			e := &Error{Line: s.line, Message: r.message}
			text, err = "", e
		default:
			text = ""
			err = &Error{Line: s.line, Message: fmt.Sprintf("the evaluator failed: %v", r)}
		}
	}()
	s.out = &strings.Builder{}
	s.env = t.frame.enter(s, nil)
	s.run(t.body)
	return s.out.String(), nil
}
