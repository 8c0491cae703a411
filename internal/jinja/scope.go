package jinja

import "slices"

// jinja2 compiles a template to Python, with a local variable for each name of each scope: the
// template, the body of a loop, a macro, a with, a block that is captured. A scope that assigns to
// a name has its own variable, which starts as a copy of the outer one; a scope that only reads a
// name reads the outer variable's present value; a name that no scope assigns to is looked up in
// the variables of the render. Macros keep their defining scope. This file resolves each name at
// load by the same rules.

// missing is the value of a variable without one.
var missing any = &builtin{name: "missing"}

// left is the value of a loop's variable after the loop. jinja2 writes garbage for it; reading it
// fails here.
var left any = &builtin{name: "left"}

// env is the variables of a scope during a render.
type env struct {
	vars   []any
	parent *env
}

// frame is a scope of a template.
type frame struct {
	slots map[string]int
	names []string
	loads []load // by slot
}

type loadKind uint8

const (
	loadNothing loadKind = iota // starts without a value
	loadParam                   // likewise: it gets a value before it is read
	loadResolve                 // from the variables of the render
	loadAlias                   // from the variable of an outer scope
)

// load is the initial value of a variable.
type load struct {
	kind     loadKind
	up, slot int // of loadAlias
}

// slot returns the index of a name's variable, a new one if needed.
func (f *frame) slot(name string) int {
	if i, ok := f.slots[name]; ok {
		return i
	}
	i := len(f.names)
	f.slots[name] = i
	f.names = append(f.names, name)
	f.loads = append(f.loads, load{})
	return i
}

// enter returns the scope's variables with their initial values.
func (f *frame) enter(s *state, parent *env) *env {
	e := &env{vars: make([]any, len(f.loads)), parent: parent}
	f.reset(s, e)
	return e
}

// reset sets the variables to their initial values.
func (f *frame) reset(s *state, e *env) {
	for i, l := range f.loads {
		switch l.kind {
		case loadNothing, loadParam:
			e.vars[i] = missing
		case loadResolve:
			e.vars[i] = s.resolve(f.names[i])
		case loadAlias:
			outer := e
			for range l.up {
				outer = outer.parent
			}
			e.vars[i] = outer.vars[l.slot]
		}
	}
}

// leave removes the values: a macro made in a loop finds nothing after it.
func (f *frame) leave(e *env) {
	for i, l := range f.loads {
		if e.vars[i] = missing; l.kind == loadParam {
			e.vars[i] = left
		}
	}
}

// resolve looks a name up in the variables of the render and in the globals.
func (s *state) resolve(name string) any {
	if v, ok := s.vars[name]; ok {
		return fromGo(v)
	}
	if v, ok := globals[name]; ok {
		return v
	}
	return missing
}

// scope is a frame while its names are resolved.
type scope struct {
	p      *parser
	frame  *frame
	parent *scope
	refs   map[string]bool // names that this scope has a variable for
	stores map[string]bool // names that it assigns to
	loads  map[string]load
}

// inner returns a scope inside sc.
func (sc *scope) inner() *scope {
	return &scope{p: sc.p, parent: sc, frame: &frame{slots: map[string]int{}},
		refs: map[string]bool{}, stores: map[string]bool{}, loads: map[string]load{}}
}

// copyMap returns a copy of m.
func copyMap[V any](m map[string]V) map[string]V {
	out := make(map[string]V, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

// copy returns the scope for a branch of an if.
func (sc *scope) copy() *scope {
	c := *sc
	c.refs, c.stores, c.loads = copyMap(sc.refs), copyMap(sc.stores), copyMap(sc.loads)
	return &c
}

// find returns the variable of a name: the levels up and the slot there.
func (sc *scope) find(name string) (up, slot int, ok bool) {
	for c := sc; c != nil; c = c.parent {
		if c.refs[name] {
			return up, c.frame.slot(name), true
		}
		up++
	}
	return 0, 0, false
}

// define adds a variable for a name.
func (sc *scope) define(name string, l load) {
	sc.refs[name] = true
	sc.loads[name] = l
	sc.frame.slot(name)
}

// alias returns the initial value of a variable that an outer scope has too.
func (sc *scope) alias(name string) (l load, ok bool) {
	if sc.parent == nil {
		return load{}, false
	}
	up, slot, ok := sc.parent.find(name)
	if !ok {
		return load{}, false
	}
	return load{loadAlias, up + 1, slot}, true
}

// store records an assignment to a name.
func (sc *scope) store(name string) {
	sc.stores[name] = true
	if sc.refs[name] {
		return
	}
	l, _ := sc.alias(name)
	sc.define(name, l)
}

// param adds a variable that gets its value at entry.
func (sc *scope) param(name string) {
	sc.stores[name] = true
	sc.define(name, load{kind: loadParam})
}

// load records that a variable is read.
func (sc *scope) load(v *variable) {
	if v.name == "self" || v.name == "super" || v.name == "lipsum" {
		if _, _, ok := sc.find(v.name); !ok {
			sc.p.failAt(v.at, "'"+v.name+"' is not supported in chat templates")
		}
	}
	if _, _, ok := sc.find(v.name); !ok {
		sc.define(v.name, load{kind: loadResolve})
		if _, function := globals[v.name]; !function {
			sc.p.reads[v.name] = true
		}
	}
}

// merge adds the names of the branches of an if.
func (sc *scope) merge(branches []*scope) {
	stored := map[string]bool{}
	for _, b := range branches {
		for name := range b.stores {
			if !sc.stores[name] {
				stored[name] = true
			}
		}
	}
	for _, b := range branches {
		for name := range b.refs {
			sc.refs[name] = true
		}
		for name, l := range b.loads {
			sc.loads[name] = l
		}
		for name := range b.stores {
			sc.stores[name] = true
		}
	}
	for name := range stored {
		l, ok := sc.alias(name)
		if !ok {
			l = load{kind: loadResolve}
		}
		sc.loads[name] = l
	}
}

// finish returns the frame with the initial values of its variables.
func (sc *scope) finish() *frame {
	for name, l := range sc.loads {
		sc.frame.loads[sc.frame.slot(name)] = l
	}
	return sc.frame
}

// expr records the names of an expression.
func (sc *scope) expr(e expr) {
	switch e := e.(type) {
	case nil:
	case *variable:
		if e.store {
			sc.store(e.name)
		} else {
			sc.load(e)
		}
	default:
		e.each(sc.expr)
	}
}

// params records the names of a target that a loop or a with sets.
func (sc *scope) params(e expr) {
	if v, ok := e.(*variable); ok {
		sc.param(v.name)
		return
	}
	e.each(sc.params)
}

// bind sets the variable of each name in an expression.
func (sc *scope) bind(e expr) {
	if e == nil {
		return
	}
	if v, ok := e.(*variable); ok {
		up, slot, ok := sc.find(v.name)
		if !ok {
			sc.p.failAt(v.at, "the name '"+v.name+"' cannot be used here")
		}
		v.up, v.slot = up, slot
		return
	}
	e.each(sc.bind)
}

// body returns a scope of statements, prepared by declare, and its frame.
func (sc *scope) body(body []stmt, declare func(in *scope)) (*scope, *frame) {
	in := sc.inner()
	if declare != nil {
		declare(in)
	}
	for _, n := range body {
		n.find(in)
	}
	f := in.finish()
	for _, n := range body {
		n.bind(in)
	}
	return in, f
}

// resolveTemplate resolves the names of a template and returns its frame.
func resolveTemplate(p *parser, body []stmt) *frame {
	root := (&scope{p: p}).inner()
	root.parent = nil
	for _, n := range body {
		n.find(root)
	}
	f := root.finish()
	for _, n := range body {
		n.bind(root)
	}
	return f
}

// function is the common part of a macro and a call block.
type function struct {
	params   []*variable
	defaults []expr
	body     []stmt
	frame    *frame
	uses     map[string]bool // of caller, kwargs and varargs, the names that the body reads
}

// special are the implicit parameters of a macro, present if its body reads them.
var special = []string{"caller", "kwargs", "varargs"}

// find sets uses: the special names that the body reads before it assigns to them.
func (f *function) find() {
	f.uses = map[string]bool{}
	names := map[string]bool{"caller": true, "kwargs": true, "varargs": true}
	var visit func(e expr)
	visit = func(e expr) {
		v, ok := e.(*variable)
		switch {
		case !ok:
			e.each(visit)
		case v.store:
			delete(names, v.name)
		case names[v.name]:
			f.uses[v.name] = true
		}
	}
	for _, n := range f.body {
		n.walk(visit)
	}
}

// resolve makes the scope of the function.
func (f *function) resolve(sc *scope) {
	f.find()
	in, fr := sc.body(f.body, func(in *scope) {
		for _, v := range f.params {
			in.param(v.name)
		}
		for _, name := range special {
			if f.uses[name] && !slices.ContainsFunc(f.params,
				func(v *variable) bool { return v.name == name }) {
				in.param(name)
			} else if f.uses[name] && name != "caller" {
				delete(f.uses, name) // an ordinary parameter
			}
		}
		for _, e := range f.defaults {
			in.expr(e)
		}
	})
	f.frame = fr
	for _, v := range f.params {
		in.bind(v)
	}
	for _, e := range f.defaults {
		in.bind(e)
	}
}
