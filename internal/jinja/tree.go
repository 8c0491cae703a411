package jinja

import "strings"

// expr is a node of an expression.
type expr interface {
	eval(s *state) any
	each(f func(expr)) // calls f with its parts, in order
}

type (
	// literal is a value written in the template.
	literal struct{ value any }

	// variable is a name. The scope that resolves it fills in the rest.
	variable struct {
		name  string
		at    int
		slot  int // in the scope up levels above
		up    int
		store bool // it is assigned to
	}

	// nsRef is a target: an attribute of a namespace.
	nsRef struct {
		of   *variable
		attr string
	}

	tupleExpr struct{ items []expr }
	listExpr  struct{ items []expr }
	dictExpr  struct{ keys, values []expr }

	unary struct {
		op string
		x  expr
	}
	binary struct {
		op   string
		a, b expr
	}
	concat  struct{ parts []expr }
	compare struct {
		first expr
		ops   []string
		rest  []expr
	}
	condition struct {
		test, then, otherwise expr
		at                    int
	}
	attribute struct {
		of   expr
		name string
	}
	item  struct{ of, key expr }
	slice struct {
		of, start, stop, step expr
		folded                bool // jinja2 evaluates it at load, and a failure then is undefined
	}

	// arguments are the arguments of a call, a filter or a test.
	arguments struct {
		pos     []expr
		names   []string
		kw      []expr
		varargs expr
		kwargs  expr
	}
	callExpr struct {
		f    expr
		args arguments
	}
	filterExpr struct {
		of   expr // nil in a filter block, which gives the text
		name string
		f    filter
		args arguments
	}
	testExpr struct {
		of   expr
		name string
		f    test
		args arguments
	}
)

// eachPart calls f with each expression that is not nil.
func eachPart(f func(expr), list ...expr) {
	for _, e := range list {
		if e != nil {
			f(e)
		}
	}
}

func (n *literal) each(func(expr))      {}
func (n *variable) each(func(expr))     {}
func (n *nsRef) each(f func(expr))      { f(n.of) }
func (n *tupleExpr) each(f func(expr))  { eachPart(f, n.items...) }
func (n *listExpr) each(f func(expr))   { eachPart(f, n.items...) }
func (n *unary) each(f func(expr))      { f(n.x) }
func (n *binary) each(f func(expr))     { eachPart(f, n.a, n.b) }
func (n *concat) each(f func(expr))     { eachPart(f, n.parts...) }
func (n *condition) each(f func(expr))  { eachPart(f, n.test, n.then, n.otherwise) }
func (n *attribute) each(f func(expr))  { f(n.of) }
func (n *item) each(f func(expr))       { eachPart(f, n.of, n.key) }
func (n *slice) each(f func(expr))      { eachPart(f, n.of, n.start, n.stop, n.step) }
func (n *callExpr) each(f func(expr))   { f(n.f); n.args.each(f) }
func (n *filterExpr) each(f func(expr)) { eachPart(f, n.of); n.args.each(f) }
func (n *testExpr) each(f func(expr))   { f(n.of); n.args.each(f) }
func (a *arguments) each(f func(expr)) {
	eachPart(f, a.pos...)
	eachPart(f, a.kw...)
	eachPart(f, a.varargs, a.kwargs)
}
func (n *compare) each(f func(expr)) { f(n.first); eachPart(f, n.rest...) }
func (n *dictExpr) each(f func(expr)) {
	for i := range n.keys {
		eachPart(f, n.keys[i], n.values[i])
	}
}

func (n *literal) eval(*state) any { return n.value }

func (n *variable) eval(s *state) any {
	e := s.env
	for range n.up {
		e = e.parent
	}
	switch v := e.vars[n.slot]; v {
	case missing:
	case left:
		fail("the variable %s belongs to a block that has ended", quote(n.name))
	default:
		return v
	}
	return &undefined{message: quote(n.name) + " is undefined"}
}

// assign sets the variable.
func (n *variable) assign(s *state, v any) {
	e := s.env
	for range n.up {
		e = e.parent
	}
	e.vars[n.slot] = v
}

func (n *nsRef) eval(*state) any { return nil } // it is never read

// evalAll returns the values of expressions.
func (s *state) evalAll(list []expr) []any {
	s.charge(len(list) * itemSize)
	out := make([]any, len(list))
	for i, e := range list {
		out[i] = e.eval(s)
	}
	return out
}

func (n *tupleExpr) eval(s *state) any { return &Tuple{Items: s.evalAll(n.items)} }
func (n *listExpr) eval(s *state) any  { return &List{s.evalAll(n.items)} }

func (n *dictExpr) eval(s *state) any {
	s.charge(2 * len(n.keys) * itemSize)
	d := &Dict{}
	for i := range n.keys {
		k := n.keys[i].eval(s)
		d.Set(k, n.values[i].eval(s))
	}
	return d
}

func (n *unary) eval(s *state) any {
	x := n.x.eval(s)
	switch n.op {
	case "not":
		return !truth(x)
	case "-":
		return s.neg(x)
	}
	return s.pos(x)
}

func (n *binary) eval(s *state) any {
	a := n.a.eval(s)
	switch n.op {
	case "and":
		if !truth(a) {
			return a
		}
		return n.b.eval(s)
	case "or":
		if truth(a) {
			return a
		}
		return n.b.eval(s)
	}
	b := n.b.eval(s)
	switch n.op {
	case "+":
		return s.add(a, b)
	case "-":
		return s.sub(a, b)
	case "*":
		return s.mul(a, b)
	case "/":
		return s.div(a, b)
	case "//":
		return s.floorDiv(a, b)
	case "%":
		return s.mod(a, b)
	}
	return s.pow(a, b)
}

func (n *concat) eval(s *state) any {
	var b strings.Builder
	for _, p := range n.parts {
		text := s.str(p.eval(s))
		if b.Len()+len(text) > s.limits.Text {
			s.size(b.Len() + len(text))
		}
		b.WriteString(text)
	}
	s.size(b.Len())
	return b.String()
}

func (n *compare) eval(s *state) any {
	a := n.first.eval(s)
	for i, op := range n.ops {
		b := n.rest[i].eval(s)
		if !s.holds(op, a, b) {
			return false
		}
		a = b
	}
	return true
}

// holds returns the result of a comparison.
func (s *state) holds(op string, a, b any) bool {
	switch op {
	case "==":
		return s.equal(a, b)
	case "!=":
		return !s.equal(a, b)
	case "in":
		return s.contains(a, b)
	case "not in":
		return !s.contains(a, b)
	}
	c, ok := s.compare(a, b, op)
	switch op {
	case "<":
		return ok && c < 0
	case "<=":
		return ok && c <= 0
	case ">":
		return ok && c > 0
	}
	return ok && c >= 0
}

func (n *condition) eval(s *state) any {
	if truth(n.test.eval(s)) {
		return n.then.eval(s)
	}
	if n.otherwise == nil {
		return &undefined{message: "the inline if-expression evaluated to false and no else " +
			"section was defined."}
	}
	return n.otherwise.eval(s)
}

func (n *attribute) eval(s *state) any { return s.getAttr(n.of.eval(s), n.name) }

func (n *item) eval(s *state) any {
	of := n.of.eval(s)
	return s.getItem(of, n.key.eval(s))
}

func (n *slice) eval(s *state) any {
	of := n.of.eval(s)
	bound := func(e expr) any {
		if e == nil {
			return nil
		}
		return e.eval(s)
	}
	start, stop := bound(n.start), bound(n.stop)
	if n.folded && !sliceable(of) {
		return &undefined{message: description(of) + " has no element slice"}
	}
	return s.slice(of, start, stop, bound(n.step))
}

// constant reports whether an expression has neither a variable nor a call.
func constant(e expr) bool {
	switch e := e.(type) {
	case *variable, *callExpr, *nsRef:
		return false
	case *filterExpr:
		switch e.name {
		case "map", "select", "reject", "selectattr", "rejectattr":
			return false
		}
	}
	all := true
	e.each(func(part expr) { all = all && constant(part) })
	return all
}

// foldSlices marks the slices of a constant expression in an output tag.
func foldSlices(e expr) {
	if s, ok := e.(*slice); ok {
		s.folded = true
	}
	e.each(foldSlices)
}

// sliceable reports whether a value can be sliced.
func sliceable(v any) bool {
	switch v.(type) {
	case string, markup, *List, *Tuple, *Range, *undefined:
		return true
	}
	return false
}

func (n *callExpr) eval(s *state) any {
	f := n.f.eval(s)
	return s.call(f, n.args.eval(s))
}

func (n *filterExpr) eval(s *state) any {
	of := n.of.eval(s)
	return n.apply(s, of)
}

// apply returns the filtered value.
func (n *filterExpr) apply(s *state, of any) any {
	s.charge(1)
	return n.f(s, of, n.args.eval(s))
}

func (n *testExpr) eval(s *state) any {
	of := n.of.eval(s)
	s.charge(1)
	return n.f(s, of, n.args.eval(s))
}
