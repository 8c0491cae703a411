package jinja

// stmt is a statement, or the text between two.
type stmt interface {
	exec(s *state) signal
	find(sc *scope)        // records the names of the enclosing scope
	bind(sc *scope)        // sets the variables of its names
	walk(visit func(expr)) // visits its expressions, also inside nested statements
}

// signal is the way in which a statement ended.
type signal uint8

const (
	goesOn signal = iota
	breaks
	continues
)

type (
	dataStmt   struct{ text string }
	outputStmt struct {
		line int
		of   []expr
	}
	jumpStmt struct{ signal signal }
	ifStmt   struct {
		line      int
		tests     []expr
		bodies    [][]stmt
		otherwise []stmt
	}
	forStmt struct {
		line            int
		at              token
		target, iter    expr
		test            expr
		recursive       bool
		body, otherwise []stmt

		loop                       *variable
		frame, testFrame, elsFrame *frame
		testTarget                 expr // the target in the test's scope
	}
	setStmt struct {
		line          int
		target, value expr
		namespaces    []*nsRef
	}
	setBlockStmt struct {
		line   int
		target expr
		filter *filterExpr
		body   []stmt
		frame  *frame
	}
	withStmt struct {
		line            int
		targets, values []expr
		body            []stmt
		frame           *frame
	}
	filterStmt struct {
		line   int
		filter *filterExpr
		body   []stmt
		frame  *frame
	}
	macroStmt struct {
		line   int
		name   string
		target *variable
		function
	}
	callStmt struct {
		line int
		call *callExpr
		function
	}
	// generationStmt marks an assistant's part for those who make masks, and writes its body.
	generationStmt struct {
		line int
		function
	}
)

// run executes statements, up to a break or continue.
func (s *state) run(body []stmt) signal {
	s.deeper()
	for _, n := range body {
		s.step()
		if sig := n.exec(s); sig != goesOn {
			s.shallower()
			return sig
		}
	}
	s.shallower()
	return goesOn
}

// runIn runs f in the scope e.
func (s *state) runIn(e *env, f func()) {
	outer := s.env
	s.env = e
	f()
	s.env = outer
}

func findAll(sc *scope, body []stmt) {
	for _, n := range body {
		n.find(sc)
	}
}

func bindAll(sc *scope, body []stmt) {
	for _, n := range body {
		n.bind(sc)
	}
}

func walkAll(visit func(expr), body []stmt) {
	for _, n := range body {
		n.walk(visit)
	}
}

func walkExprs(visit func(expr), list ...expr) {
	for _, e := range list {
		if e != nil {
			visit(e)
		}
	}
}

// Text and output.

func (n *dataStmt) find(*scope)     {}
func (n *dataStmt) bind(*scope)     {}
func (n *dataStmt) walk(func(expr)) {}
func (n *dataStmt) exec(s *state) signal {
	s.write(n.text)
	return goesOn
}

func (n *outputStmt) find(sc *scope) {
	for _, e := range n.of {
		sc.expr(e)
	}
}
func (n *outputStmt) bind(sc *scope) {
	for _, e := range n.of {
		sc.bind(e)
	}
}
func (n *outputStmt) walk(visit func(expr)) { walkExprs(visit, n.of...) }
func (n *outputStmt) exec(s *state) signal {
	s.line = n.line
	for _, e := range n.of {
		s.write(s.str(e.eval(s)))
	}
	return goesOn
}

func (n *jumpStmt) find(*scope)        {}
func (n *jumpStmt) bind(*scope)        {}
func (n *jumpStmt) walk(func(expr))    {}
func (n *jumpStmt) exec(*state) signal { return n.signal }

// if

func (n *ifStmt) find(sc *scope) { n.findFrom(sc, 0) }

// findFrom records the names from the i-th test on: jinja2 handles later tests in a branch.
func (n *ifStmt) findFrom(sc *scope, i int) {
	sc.expr(n.tests[0])
	branch := func(f func(b *scope)) *scope {
		b := sc.copy()
		f(b)
		return b
	}
	branches := []*scope{branch(func(b *scope) { findAll(b, n.bodies[0]) })}
	branches = append(branches, branch(func(b *scope) {
		for k := 1; k < len(n.tests); k++ {
			elif := &ifStmt{tests: n.tests[k : k+1], bodies: n.bodies[k : k+1]}
			elif.find(b)
		}
	}), branch(func(b *scope) { findAll(b, n.otherwise) }))
	sc.merge(branches)
}

func (n *ifStmt) bind(sc *scope) {
	for i, t := range n.tests {
		sc.bind(t)
		bindAll(sc, n.bodies[i])
	}
	bindAll(sc, n.otherwise)
}

func (n *ifStmt) walk(visit func(expr)) {
	for i, t := range n.tests {
		visit(t)
		walkAll(visit, n.bodies[i])
	}
	walkAll(visit, n.otherwise)
}

func (n *ifStmt) exec(s *state) signal {
	s.line = n.line
	for i, t := range n.tests {
		if truth(t.eval(s)) {
			return s.run(n.bodies[i])
		}
	}
	return s.run(n.otherwise)
}

// for

func (n *forStmt) find(sc *scope) { sc.expr(n.iter) }

func (n *forStmt) bind(sc *scope) {
	sc.bind(n.iter)
	n.walk(func(e expr) { refuseLoopTarget(sc.p, e) })
	n.loop = &variable{name: "loop"}
	in, f := sc.body(n.body, func(in *scope) {
		in.param("loop")
		in.params(n.target)
	})
	n.frame = f
	if n.test != nil {
		t := sc.inner()
		n.testTarget = cloneTarget(n.target)
		t.params(n.testTarget)
		t.expr(n.test)
		n.testFrame = t.finish()
		t.bind(n.testTarget)
		t.bind(n.test)
	}
	in.bind(n.target)
	in.bind(n.loop)
	_, n.elsFrame = sc.body(n.otherwise, nil)
}

// refuseLoopTarget fails for an assignment to loop inside a loop, as jinja2 does.
func refuseLoopTarget(p *parser, e expr) {
	if v, ok := e.(*variable); ok {
		if v.store && v.name == "loop" {
			p.failAt(v.at, "cannot assign to 'loop' in a loop")
		}
		return
	}
	e.each(func(e expr) { refuseLoopTarget(p, e) })
}

// cloneTarget returns a target with variables of its own.
func cloneTarget(e expr) expr {
	switch e := e.(type) {
	case *variable:
		c := *e
		return &c
	case *tupleExpr:
		c := &tupleExpr{}
		for _, item := range e.items {
			c.items = append(c.items, cloneTarget(item))
		}
		return c
	}
	return e
}

func (n *forStmt) walk(visit func(expr)) {
	walkExprs(visit, n.target, n.iter, n.test)
	walkAll(visit, n.body)
	walkAll(visit, n.otherwise)
}

func (n *forStmt) exec(s *state) signal {
	s.line = n.line
	over := n.iter.eval(s)
	if n.recursive {
		s.write(s.capture(func() { n.iterate(s, over, 0) }))
		return goesOn
	}
	return n.iterate(s, over, 0)
}

// iterate runs the loop over a value; depth counts its recursive calls. It returns the signal of
// the else branch, if that ran.
func (n *forStmt) iterate(s *state, over any, depth int) (end signal) {
	outer := s.env
	if n.test != nil {
		over = n.filterItems(s, over, outer)
	}
	l := &loop{s: s, over: over, index0: -1, length: -1, depth0: depth}
	l.next = s.iterate(over)
	if n.recursive {
		l.recurse = func(over any) string {
			inner := s.env
			s.env = outer
			text := s.capture(func() { n.iterate(s, over, l.depth0+1) })
			s.env = inner
			return text
		}
	}
	e := &env{vars: make([]any, len(n.frame.loads)), parent: outer}
	s.env = e
	none := true
loop:
	for {
		v, ok := l.step()
		if !ok {
			break
		}
		none = false
		n.frame.reset(s, e)
		n.loop.assign(s, l)
		s.assign(n.target, v)
		s.step()
		switch s.run(n.body) {
		case breaks:
			break loop
		}
	}
	n.frame.leave(e)
	s.env = outer
	if none && n.otherwise != nil {
		s.env = n.elsFrame.enter(s, outer)
		end = s.run(n.otherwise)
		s.env = outer
	}
	return end
}

// filterItems returns the items of a value for which the loop's own if holds.
func (n *forStmt) filterItems(s *state, over any, outer *env) any {
	next := s.iterate(over)
	e := n.testFrame.enter(s, outer)
	return &iterator{"generator", func() (any, bool) {
		for {
			v, ok := next()
			if !ok {
				return nil, false
			}
			s.step()
			holds := false
			s.runIn(e, func() {
				s.assign(n.testTarget, v)
				holds = truth(n.test.eval(s))
			})
			if holds {
				return v, true
			}
		}
	}}
}

// loop is the variable loop.
type loop struct {
	s       *state
	over    any
	next    func() (any, bool)
	index0  int
	length  int // -1 is unknown so far
	depth0  int
	recurse func(over any) string

	after, current, before, last any
	peeked, ended, asked         bool
}

// step moves to the next item and returns it.
func (l *loop) step() (any, bool) {
	v, ok := l.peek()
	if !ok {
		return nil, false
	}
	l.peeked, l.after = false, nil
	l.index0++
	l.before, l.current = l.current, v
	return v, true
}

// peek returns the next item without moving.
func (l *loop) peek() (any, bool) {
	if !l.peeked && !l.ended {
		v, ok := l.next()
		if !ok {
			l.ended = true
		} else {
			l.after, l.peeked = v, true
		}
	}
	return l.after, l.peeked
}

// count returns the number of items. It reads all of them if the value has no length.
func (l *loop) count() int {
	if l.length >= 0 {
		return l.length
	}
	if n, ok := count(l.over); ok {
		l.length = n
		return n
	}
	var rest []any
	for {
		v, ok := l.next()
		if !ok {
			break
		}
		rest = append(rest, v)
		l.s.charge(itemSize)
	}
	l.length = len(rest) + l.index0 + 1
	if l.peeked {
		l.length++
	}
	l.next = l.s.iterate(&List{rest})
	return l.length
}

// assign sets a target to a value.
func (s *state) assign(target, value any) {
	switch t := target.(type) {
	case *variable:
		t.assign(s, value)
	case *nsRef:
		n := t.of.eval(s).(*namespace) // checked by setStmt
		if t.attr[0] == '_' {
			fail("chat templates cannot store attributes that begin with an underscore on a "+
				"namespace, but got %s", quote(t.attr))
		}
		n.attrs.Set(t.attr, value)
	case *tupleExpr:
		items := make([]any, 0, len(t.items))
		next := s.iterate(value)
		for v, ok := next(); ok; v, ok = next() {
			if items = append(items, v); len(items) > len(t.items) {
				fail("too many values to unpack (expected %d)", len(t.items))
			}
		}
		if len(items) < len(t.items) {
			fail("not enough values to unpack (expected %d, got %d)", len(t.items), len(items))
		}
		for i, v := range items {
			s.assign(t.items[i], v)
		}
	}
}

// set

// namespacesOf returns the attributes of namespaces in a target.
func namespacesOf(target expr) (refs []*nsRef) {
	switch t := target.(type) {
	case *nsRef:
		return []*nsRef{t}
	case *tupleExpr:
		for _, e := range t.items {
			refs = append(refs, namespacesOf(e)...)
		}
	}
	return refs
}

// checkNamespaces fails for an attribute of a value that is not a namespace.
func checkNamespaces(s *state, refs []*nsRef) {
	for _, r := range refs {
		if _, ok := r.of.eval(s).(*namespace); !ok {
			fail("cannot assign attribute on non-namespace object")
		}
	}
}

func (n *setStmt) find(sc *scope) {
	sc.expr(n.value)
	sc.expr(n.target)
	n.namespaces = namespacesOf(n.target)
}
func (n *setStmt) bind(sc *scope) {
	sc.bind(n.value)
	sc.bind(n.target)
}
func (n *setStmt) walk(visit func(expr)) { walkExprs(visit, n.value, n.target) }
func (n *setStmt) exec(s *state) signal {
	s.line = n.line
	checkNamespaces(s, n.namespaces)
	s.assign(n.target, n.value.eval(s))
	return goesOn
}

func (n *setBlockStmt) find(sc *scope) { sc.expr(n.target) }
func (n *setBlockStmt) bind(sc *scope) {
	sc.bind(n.target)
	var in *scope
	in, n.frame = sc.body(n.body, func(in *scope) {
		if n.filter != nil {
			in.expr(n.filter)
		}
	})
	if n.filter != nil {
		in.bind(n.filter)
	}
}
func (n *setBlockStmt) walk(visit func(expr)) {
	visit(n.target)
	if n.filter != nil {
		visit(n.filter)
	}
	walkAll(visit, n.body)
}
func (n *setBlockStmt) exec(s *state) signal {
	outer := s.env
	e := n.frame.enter(s, outer)
	s.env = e
	var sig signal
	text := s.capture(func() { sig = s.run(n.body) })
	if sig == goesOn {
		var v any = text
		if n.filter != nil {
			v = n.filter.applyToText(s, text)
		}
		s.env = outer
		checkNamespaces(s, namespacesOf(n.target))
		s.assign(n.target, v)
	}
	n.frame.leave(e)
	s.env = outer
	return sig
}

// applyToText applies a chain of filters, of which the first has no operand, to a text.
func (n *filterExpr) applyToText(s *state, text string) any {
	if before, ok := n.of.(*filterExpr); ok {
		return n.apply(s, before.applyToText(s, text))
	}
	return n.apply(s, text)
}

// with

func (n *withStmt) find(sc *scope) {
	for _, e := range n.values {
		sc.expr(e)
	}
}
func (n *withStmt) bind(sc *scope) {
	for _, e := range n.values {
		sc.bind(e)
	}
	var in *scope
	in, n.frame = sc.body(n.body, func(in *scope) {
		for _, t := range n.targets {
			in.params(t)
		}
	})
	for _, t := range n.targets {
		in.bind(t)
	}
}
func (n *withStmt) walk(visit func(expr)) {
	walkExprs(visit, n.targets...)
	walkExprs(visit, n.values...)
	walkAll(visit, n.body)
}
func (n *withStmt) exec(s *state) signal {
	s.line = n.line
	outer := s.env
	e := n.frame.enter(s, outer)
	for i, t := range n.targets {
		v := n.values[i].eval(s)
		s.runIn(e, func() { s.assign(t, v) })
	}
	s.env = e
	sig := s.run(n.body)
	n.frame.leave(e)
	s.env = outer
	return sig
}

// filter

func (n *filterStmt) find(sc *scope) { sc.expr(n.filter) }
func (n *filterStmt) bind(sc *scope) {
	var in *scope
	in, n.frame = sc.body(n.body, func(in *scope) { in.expr(n.filter) })
	in.bind(n.filter)
}
func (n *filterStmt) walk(visit func(expr)) {
	walkAll(visit, n.body)
	visit(n.filter)
}
func (n *filterStmt) exec(s *state) signal {
	s.line = n.line
	outer := s.env
	e := n.frame.enter(s, outer)
	s.env = e
	var sig signal
	text := s.capture(func() { sig = s.run(n.body) })
	if sig == goesOn {
		s.write(s.str(n.filter.applyToText(s, text)))
	}
	n.frame.leave(e)
	s.env = outer
	return sig
}

// macro and call

func (n *macroStmt) find(sc *scope) { sc.store(n.name) }
func (n *macroStmt) bind(sc *scope) {
	sc.bind(n.target)
	n.resolve(sc)
}
func (n *macroStmt) walk(visit func(expr)) {
	visit(n.target)
	n.walkBody(visit)
}

// walkBody visits the expressions of parameters, defaults and body.
func (f *function) walkBody(visit func(expr)) {
	for _, v := range f.params {
		visit(v)
	}
	walkExprs(visit, f.defaults...)
	walkAll(visit, f.body)
}
func (n *macroStmt) exec(s *state) signal {
	n.target.assign(s, &macro{name: n.name, f: &n.function, env: s.env})
	return goesOn
}

func (n *callStmt) find(sc *scope) { sc.expr(n.call) }
func (n *callStmt) bind(sc *scope) {
	sc.bind(n.call)
	n.resolve(sc)
}
func (n *callStmt) walk(visit func(expr)) {
	visit(n.call)
	n.walkBody(visit)
}
func (n *callStmt) exec(s *state) signal {
	s.line = n.line
	f := n.call.f.eval(s)
	args := n.call.args.eval(s)
	args.kw.Set("caller", &macro{f: &n.function, env: s.env})
	s.write(s.str(s.call(f, args)))
	return goesOn
}

func (n *generationStmt) find(*scope)           {}
func (n *generationStmt) bind(sc *scope)        { n.resolve(sc) }
func (n *generationStmt) walk(visit func(expr)) { n.walkBody(visit) }
func (n *generationStmt) exec(s *state) signal {
	s.line = n.line
	m := &macro{f: &n.function, env: s.env}
	s.write(s.str(m.call(s, newCall())))
	return goesOn
}
