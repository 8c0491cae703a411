package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// parser makes a tree from tokens.
type parser struct {
	source string
	tokens []token
	pos    int
	depth  int             // of the present expression and statement
	reads  map[string]bool // names looked up in the variables of a render
	// loops that break and continue may end, within this function of jinja2's compiler
	loops int
}

// treeDepth bounds the nesting of statements and brackets in a template.
const treeDepth = 500

// failAt throws an *Error at an offset of the source.
func (p *parser) failAt(at int, message string) {
	before := p.source[:min(at, len(p.source))]
	line := strings.Count(before, "\n") + 1
	column := runes(before[strings.LastIndexByte(before, '\n')+1:]) + 1
	panic(&Error{Line: line, Column: column, Message: message})
}

// fail throws an *Error at a token.
func (p *parser) fail(t token, format string, args ...any) {
	p.failAt(t.at, fmt.Sprintf(format, args...))
}

func (p *parser) deeper(t token) {
	if p.depth++; p.depth > treeDepth {
		p.fail(t, "nests more than %d deep", treeDepth)
	}
}

func (p *parser) current() token { return p.tokens[p.pos] }

func (p *parser) look() token { return p.tokens[min(p.pos+1, len(p.tokens)-1)] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != eof {
		p.pos++
	}
	return t
}

// is reports whether the current token is this operator.
func (p *parser) is(op string) bool {
	t := p.current()
	return t.kind == operator && t.word == op
}

// isName reports whether the current token is one of these words.
func (p *parser) isName(words ...string) bool {
	t := p.current()
	return t.kind == name && slices.Contains(words, t.word)
}

// skip passes this operator, and reports whether it was there.
func (p *parser) skip(op string) bool {
	if p.is(op) {
		p.pos++
		return true
	}
	return false
}

// skipName passes this word, and reports whether it was there.
func (p *parser) skipName(word string) bool {
	if p.isName(word) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expect(op string) token {
	if !p.is(op) {
		p.fail(p.current(), "expected '%s', got %v", op, p.current())
	}
	return p.next()
}

func (p *parser) expectName() token {
	if p.current().kind != name {
		p.fail(p.current(), "expected a name, got %v", p.current())
	}
	return p.next()
}

func (p *parser) expectWord(word string) {
	if !p.skipName(word) {
		p.fail(p.current(), "expected '%s', got %v", word, p.current())
	}
}

func (p *parser) expectKind(k kind) token {
	if p.current().kind != k {
		p.fail(p.current(), "expected %v, got %v", token{kind: k}, p.current())
	}
	return p.next()
}

// template parses the whole template.
func (p *parser) template() []stmt {
	body := p.statements(nil)
	return body
}

// statements parses up to a tag that begins with one of these words, then the current token;
// without words up to the end.
func (p *parser) statements(end []string) []stmt {
	var body []stmt
	for {
		switch t := p.current(); t.kind {
		case eof:
			if end != nil {
				p.fail(t, "unexpected end of the template, expected '%s'",
					strings.Join(end, "' or '"))
			}
			return body
		case data:
			p.pos++
			body = append(body, &dataStmt{text: t.word})
		case variableBegin:
			p.pos++
			e := p.tuple(tupleRules{condition: true})
			p.expectKind(variableEnd)
			if constant(e) {
				foldSlices(e)
			}
			body = append(body, &outputStmt{line: p.line(t), of: []expr{e}})
		case blockBegin:
			p.pos++
			if p.isName(end...) {
				return body
			}
			body = append(body, p.statement())
			p.expectKind(blockEnd)
		default:
			p.fail(t, "unexpected %v", t)
		}
	}
}

// body parses the statements of a block, behind the block's own tag.
func (p *parser) body(end ...string) []stmt {
	p.skip(":")
	t := p.expectKind(blockEnd)
	p.deeper(t)
	body := p.statements(end)
	p.depth--
	return body
}

// closedBody parses a body and the word of its closing tag.
func (p *parser) closedBody(end string) []stmt {
	body := p.body(end)
	p.pos++
	return body
}

// functionBody parses a body that jinja2 compiles to a function: break and continue cannot end a
// loop outside.
func (p *parser) functionBody(end string) []stmt {
	loops := p.loops
	p.loops = 0
	body := p.closedBody(end)
	p.loops = loops
	return body
}

// line returns the line of a token.
func (p *parser) line(t token) int { return strings.Count(p.source[:t.at], "\n") + 1 }

// refused are statements of jinja2 that a chat template may not have, with the reason.
var refused = map[string]string{
	"include":    "a chat template may not read other files",
	"import":     "a chat template may not read other files",
	"from":       "a chat template may not read other files",
	"extends":    "a chat template may not read other files",
	"block":      "blocks are not supported: use a macro",
	"autoescape": "autoescape is not supported",
}

// statement parses the content of a tag.
func (p *parser) statement() stmt {
	t := p.current()
	if t.kind != name {
		p.fail(t, "expected the name of a tag, got %v", t)
	}
	if why, ok := refused[t.word]; ok {
		p.fail(t, "tag '%s': %s", t.word, why)
	}
	line := p.line(t)
	p.pos++
	switch t.word {
	case "for":
		return p.forStatement(line)
	case "if":
		return p.ifStatement(line)
	case "set":
		return p.setStatement(line)
	case "with":
		return p.withStatement(line)
	case "macro":
		at := p.current()
		m := &macroStmt{line: line, target: p.nameTarget()}
		m.name = m.target.name
		p.signature(&m.function)
		m.body = p.functionBody("endmacro")
		p.checkCaller(at, &m.function)
		return m
	case "call":
		c := &callStmt{line: line}
		if p.is("(") {
			p.signature(&c.function)
		}
		at := p.current()
		call, ok := p.expression(true).(*callExpr)
		if !ok {
			p.fail(at, "call: expected a call")
		}
		c.call = call
		c.body = p.functionBody("endcall")
		p.checkCaller(at, &c.function)
		return c
	case "generation":
		g := &generationStmt{line: line}
		g.body = p.functionBody("endgeneration")
		return g
	case "filter":
		f := &filterStmt{line: line, filter: p.filters(nil, true)}
		f.body = p.closedBody("endfilter")
		return f
	case "print":
		o := &outputStmt{line: line}
		for p.current().kind != blockEnd {
			if o.of != nil {
				p.expect(",")
			}
			o.of = append(o.of, p.expression(true))
		}
		return o
	case "break", "continue":
		if p.loops == 0 {
			p.fail(t, "'%s' outside of a loop", t.word)
		}
		if t.word == "break" {
			return &jumpStmt{breaks}
		}
		return &jumpStmt{continues}
	}
	p.fail(t, "unknown tag '%s'", t.word)
	return nil
}

func (p *parser) forStatement(line int) stmt {
	n := &forStmt{line: line}
	at := p.current()
	n.target = p.target(tupleRules{simple: true, end: "in"})
	p.expectWord("in")
	n.iter = p.tuple(tupleRules{end: "recursive"})
	if p.skipName("if") {
		n.test = p.expression(true)
	}
	n.recursive = p.skipName("recursive")
	loops := p.loops
	if n.recursive {
		p.loops = 0
	}
	outside := p.loops
	p.loops++
	n.body = p.body("endfor", "else")
	p.loops = outside
	if p.next().word == "else" {
		n.otherwise = p.body("endfor")
		p.pos++
	}
	p.loops = loops
	n.at = at
	return n
}

func (p *parser) ifStatement(line int) stmt {
	n := &ifStmt{line: line}
	for {
		n.tests = append(n.tests, p.tuple(tupleRules{}))
		n.bodies = append(n.bodies, p.body("elif", "else", "endif"))
		switch p.next().word {
		case "elif":
			continue
		case "else":
			n.otherwise = p.body("endif")
			p.pos++
		}
		return n
	}
}

func (p *parser) setStatement(line int) stmt {
	target := p.target(tupleRules{simple: true, namespace: true})
	if p.skip("=") {
		return &setStmt{line: line, target: target, value: p.tuple(tupleRules{condition: true})}
	}
	n := &setBlockStmt{line: line, target: target}
	if p.is("|") {
		n.filter = p.filters(nil, false)
	}
	n.body = p.closedBody("endset")
	return n
}

func (p *parser) withStatement(line int) stmt {
	n := &withStmt{line: line}
	for p.current().kind != blockEnd {
		if n.targets != nil {
			p.expect(",")
		}
		n.targets = append(n.targets, p.target(tupleRules{simple: true}))
		p.expect("=")
		n.values = append(n.values, p.expression(true))
	}
	n.body = p.closedBody("endwith")
	return n
}

// signature parses the parameters of a macro or a call block.
func (p *parser) signature(f *function) {
	p.expect("(")
	for !p.is(")") {
		if f.params != nil {
			p.expect(",")
		}
		at := p.current()
		param := p.nameTarget()
		if slices.ContainsFunc(f.params,
			func(v *variable) bool { return v.name == param.name }) {
			p.fail(at, "parameter '%s' stands twice", param.name)
		}
		if p.skip("=") {
			f.defaults = append(f.defaults, p.expression(true))
		} else if f.defaults != nil {
			p.fail(at, "parameter '%s' without a default follows one with a default", param.name)
		}
		f.params = append(f.params, param)
	}
	p.expect(")")
}

// checkCaller fails for a parameter caller without a default in a macro that calls it.
func (p *parser) checkCaller(at token, f *function) {
	f.find()
	for i, param := range f.params {
		if param.name == "caller" && f.uses["caller"] && i < len(f.params)-len(f.defaults) {
			p.fail(at, "the parameter 'caller' must be left out, or have a default")
		}
	}
}

var constants = map[string]any{"true": true, "True": true, "false": false, "False": false,
	"none": nil, "None": nil}

// nameTarget parses a name to assign to.
func (p *parser) nameTarget() *variable {
	t := p.expectName()
	if _, ok := constants[t.word]; ok {
		p.fail(t, "cannot assign to '%s'", t.word)
	}
	return &variable{name: t.word, at: t.at, store: true}
}

// target parses the target of an assignment: names, tuples of them, attributes of namespaces.
func (p *parser) target(rules tupleRules) expr {
	t := p.current()
	e := p.tuple(rules)
	p.store(t, e)
	return e
}

// store marks the names of a target as assigned to.
func (p *parser) store(t token, e expr) {
	switch e := e.(type) {
	case *variable:
		e.store = true
	case *nsRef:
	case *tupleExpr:
		for _, item := range e.items {
			p.store(t, item)
		}
	default:
		p.fail(t, "cannot assign to this")
	}
}

// tupleRules are the elements that a tuple may have.
type tupleRules struct {
	condition bool   // inline ifs
	simple    bool   // names and literals only
	namespace bool   // attributes of namespaces
	brackets  bool   // it is in brackets, so that () is a tuple
	end       string // a word that ends it
}

// tuple parses expressions with commas between them, or a single one.
func (p *parser) tuple(rules tupleRules) expr {
	var items []expr
	commas := false
	for {
		if t := p.current(); t.kind == variableEnd || t.kind == blockEnd || p.is(")") ||
			rules.end != "" && p.isName(rules.end) {
			break
		}
		if rules.simple {
			items = append(items, p.primary(rules.namespace))
		} else {
			items = append(items, p.expression(rules.condition || rules.brackets))
		}
		if !p.skip(",") {
			break
		}
		commas = true
	}
	if !commas {
		if len(items) == 1 {
			return items[0]
		}
		if !rules.brackets {
			p.fail(p.current(), "expected an expression, got %v", p.current())
		}
	}
	return &tupleExpr{items}
}

// expression parses an expression, with or without inline ifs.
func (p *parser) expression(inlineIf bool) expr {
	t := p.current()
	p.deeper(t)
	defer func() { p.depth-- }()
	e := p.or()
	for inlineIf && p.isName("if") {
		at := p.next()
		n := &condition{test: p.or(), then: e, at: at.at}
		if p.skipName("else") {
			n.otherwise = p.expression(true)
		}
		e = n
	}
	return e
}

func (p *parser) or() expr {
	e := p.and()
	for p.skipName("or") {
		e = &binary{"or", e, p.and()}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for p.skipName("and") {
		e = &binary{"and", e, p.not()}
	}
	return e
}

func (p *parser) not() expr {
	if t := p.current(); p.skipName("not") {
		p.deeper(t)
		defer func() { p.depth-- }()
		return &unary{"not", p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	first := p.sum()
	n := &compare{first: first}
	for {
		op := ""
		t := p.current()
		switch {
		case t.kind == operator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="},
			t.word):
			op = t.word
		case p.isName("in"):
			op = "in"
		case p.isName("not") && p.look().kind == name && p.look().word == "in":
			p.pos++
			op = "not in"
		}
		if op == "" {
			if n.ops == nil {
				return first
			}
			return n
		}
		p.pos++
		n.ops, n.rest = append(n.ops, op), append(n.rest, p.sum())
	}
}

// chain parses operands with left-associative operators of one rank between them.
func (p *parser) chain(operand func() expr, ops ...string) expr {
	e := operand()
	for {
		t := p.current()
		if t.kind != operator || !slices.Contains(ops, t.word) {
			return e
		}
		p.pos++
		e = &binary{t.word, e, operand()}
	}
}

func (p *parser) sum() expr { return p.chain(p.concat, "+", "-") }

func (p *parser) concat() expr {
	e := p.product()
	if !p.is("~") {
		return e
	}
	n := &concat{parts: []expr{e}}
	for p.skip("~") {
		n.parts = append(n.parts, p.product())
	}
	return n
}

func (p *parser) product() expr { return p.chain(p.power, "*", "/", "//", "%") }

func (p *parser) power() expr {
	return p.chain(func() expr { return p.unary(true) }, "**")
}

func (p *parser) unary(filters bool) expr {
	var e expr
	if t := p.current(); p.is("-") || p.is("+") {
		p.pos++
		p.deeper(t)
		e = &unary{t.word, p.unary(false)}
		p.depth--
	} else {
		e = p.primary(false)
	}
	e = p.postfix(e)
	if filters {
		e = p.filterChain(e)
	}
	return e
}

func (p *parser) primary(namespaces bool) expr {
	t := p.next()
	switch {
	case t.kind == name:
		if v, ok := constants[t.word]; ok {
			return &literal{v}
		}
		n := &variable{name: t.word, at: t.at}
		if namespaces && p.skip(".") {
			return &nsRef{n, p.expectName().word}
		}
		return n
	case t.kind == text:
		word := t.word
		for p.current().kind == text {
			word += p.next().word
		}
		return &literal{word}
	case t.kind == number:
		return &literal{t.value}
	case t.kind != operator:
	case t.word == "(":
		p.deeper(t)
		e := p.tuple(tupleRules{brackets: true})
		p.depth--
		p.expect(")")
		return e
	case t.word == "[":
		return &listExpr{p.list("]", func() expr { return p.expression(true) })}
	case t.word == "{":
		d := &dictExpr{}
		p.list("}", func() expr {
			at := p.current()
			key := p.expression(true)
			switch key.(type) {
			case *listExpr, *dictExpr:
				p.fail(at, "a list or a dict cannot be a key")
			}
			d.keys = append(d.keys, key)
			p.expect(":")
			d.values = append(d.values, p.expression(true))
			return nil
		})
		return d
	}
	p.fail(t, "unexpected %v", t)
	return nil
}

// list parses items up to a closing bracket.
func (p *parser) list(end string, item func() expr) (items []expr) {
	first := true
	for !p.skip(end) {
		if !first {
			if p.expect(","); p.skip(end) {
				break
			}
		}
		items = append(items, item())
		first = false
	}
	return items
}

func (p *parser) postfix(e expr) expr {
	for {
		switch {
		case p.is(".") || p.is("["):
			e = p.subscript(e)
		case p.is("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) subscript(e expr) expr {
	if p.next().word == "." {
		t := p.next()
		switch t.kind {
		case name:
			return &attribute{e, t.word}
		case number:
			if _, float := t.value.(float64); !float {
				return &item{e, &literal{t.value}}
			}
		}
		p.fail(t, "expected a name or a number, got %v", t)
	}
	var keys []expr
	var slices []*slice
	open := p.current()
	for !p.is("]") {
		if keys != nil {
			p.expect(",")
		}
		key, s := p.subscriptKey(e)
		keys = append(keys, key)
		if s != nil {
			slices = append(slices, s)
		}
	}
	p.expect("]")
	switch {
	case len(keys) == 1 && slices != nil:
		return slices[0]
	case slices != nil:
		p.fail(open, "a slice beside other keys")
	case len(keys) == 1:
		return &item{e, keys[0]}
	}
	return &item{e, &tupleExpr{keys}}
}

// subscriptKey parses one key in the brackets behind e, or a slice.
func (p *parser) subscriptKey(e expr) (key expr, s *slice) {
	s = &slice{of: e}
	if !p.is(":") {
		if key = p.expression(true); !p.is(":") {
			return key, nil
		}
		s.start = key
	}
	p.expect(":")
	bound := func() expr {
		if p.is(":") || p.is("]") || p.is(",") {
			return nil
		}
		return p.expression(true)
	}
	s.stop = bound()
	if p.skip(":") {
		s.step = bound()
	}
	return nil, s
}

// unmade are methods of Python's types that this package does not implement.
var unmade = map[string]bool{"encode": true, "translate": true, "maketrans": true,
	"fromkeys": true, "to_bytes": true, "from_bytes": true, "as_integer_ratio": true,
	"conjugate": true, "hex": true, "fromhex": true, "isdisjoint": true, "mapping": true,
	"unescape": true, "striptags": true}

func (p *parser) call(e expr) expr {
	t := p.current()
	if a, ok := e.(*attribute); ok && unmade[a.name] {
		p.fail(t, "the method '%s' is not supported in chat templates", a.name)
	}
	return &callExpr{f: e, args: p.arguments()}
}

// arguments parses the arguments of a call.
func (p *parser) arguments() (a arguments) {
	open := p.expect("(")
	ensure := func(ok bool) {
		if !ok {
			p.fail(open, "arguments of a call in an impossible order")
		}
	}
	for first := true; !p.is(")"); first = false {
		if !first {
			if p.expect(","); p.is(")") {
				break
			}
		}
		t := p.current()
		switch {
		case p.skip("*"):
			ensure(a.varargs == nil && a.kwargs == nil)
			a.varargs = p.expression(true)
		case p.skip("**"):
			ensure(a.kwargs == nil)
			a.kwargs = p.expression(true)
		case t.kind == name && p.look().kind == operator && p.look().word == "=":
			ensure(a.kwargs == nil)
			p.pos += 2
			if slices.Contains(a.names, t.word) {
				p.fail(t, "the argument '%s' stands twice", t.word)
			}
			a.names, a.kw = append(a.names, t.word), append(a.kw, p.expression(true))
		default:
			ensure(a.varargs == nil && a.kwargs == nil && a.kw == nil)
			a.pos = append(a.pos, p.expression(true))
		}
	}
	p.expect(")")
	return a
}

// filterChain parses the filters, tests and calls behind e.
func (p *parser) filterChain(e expr) expr {
	for {
		switch {
		case p.is("|"):
			e = p.filters(e, false)
		case p.isName("is"):
			e = p.test(e)
		case p.is("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

// dottedName parses the name of a filter or a test.
func (p *parser) dottedName() (word string, t token) {
	t = p.expectName()
	word = t.word
	for p.skip(".") {
		word += "." + p.expectName().word
	}
	return word, t
}

// filters parses a chain of | name(...); inline starts without the bar.
func (p *parser) filters(e expr, inline bool) *filterExpr {
	var n *filterExpr
	for inline || p.skip("|") {
		inline = false
		word, t := p.dottedName()
		p.checkFilter(t, word)
		n = &filterExpr{of: e, name: word, f: filters[word]}
		if p.is("(") {
			n.args = p.arguments()
		}
		p.checkNamed(t, word, n.args)
		e = n
	}
	return n
}

// checkFilter fails for an unknown filter.
func (p *parser) checkFilter(t token, word string) {
	if _, ok := filters[word]; ok {
		return
	}
	if unmadeFilters[word] {
		p.fail(t, "the filter '%s' is not supported in chat templates", word)
	}
	p.fail(t, "no filter named '%s'", word)
}

// checkTest fails for an unknown test.
func (p *parser) checkTest(t token, word string) {
	if _, ok := tests[word]; !ok {
		p.fail(t, "no test named '%s'", word)
	}
}

// checkNamed checks the filter or test that an argument of map, select and the like names.
func (p *parser) checkNamed(t token, word string, a arguments) {
	at := 0
	if word == "selectattr" || word == "rejectattr" {
		at = 1
	}
	if at >= len(a.pos) {
		return
	}
	l, ok := a.pos[at].(*literal)
	if !ok {
		return
	}
	named, ok := l.value.(string)
	if !ok {
		return
	}
	switch word {
	case "map":
		p.checkFilter(t, named)
	case "select", "reject", "selectattr", "rejectattr":
		p.checkTest(t, named)
	}
}

// test parses a test behind is.
func (p *parser) test(e expr) expr {
	p.next()
	negated := p.skipName("not")
	word, t := p.dottedName()
	p.checkTest(t, word)
	n := &testExpr{of: e, name: word, f: tests[word]}
	c := p.current()
	switch {
	case p.is("("):
		n.args = p.arguments()
	case (c.kind == name || c.kind == text || c.kind == number || p.is("[") || p.is("{")) &&
		!p.isName("else", "or", "and"):
		if p.isName("is") {
			p.fail(c, "tests cannot follow one another with is")
		}
		n.args.pos = []expr{p.postfix(p.primary(false))}
	}
	if negated {
		return &unary{"not", n}
	}
	return n
}
