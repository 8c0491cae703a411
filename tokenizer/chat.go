package tokenizer

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// A chat template comes with a model, so it is data from a stranger. The
// engine that runs it has no limits of its own, so they are put in from
// outside:
//
//   - it sees the messages, the named tokens and the functions, filters, tests,
//     methods and statements listed in jinja.go, and nothing else: no include,
//     import or extends, no Go values with methods;
//   - after parsing, every statement is wrapped in a guard that counts steps and
//     depth and looks at the clock and at the length of the text so far, and
//     every operand of an operator and result of a call in a check of its size;
//   - parsing and rendering run in a goroutine of their own under a time limit,
//     and a panic in it becomes an error.
//
// What is left: inside one filter or method the clock is not looked at, so an
// expensive one over megabytes of text goes on to its end after the caller has
// had its error; and parsing, which has a bounded input, cannot be stopped.
const (
	templateLimit = 128 << 10 // bytes of a template
	tagLimit      = 2000      // words and signs in one tag
	depthLimit    = 100       // statements inside each other, macro calls included
	rangeLimit    = 100_000   // numbers of one range()
	factorLimit   = 4096      // bytes and times of 'text' * number
	textLimit     = 1 << 20   // bytes of one value and of the output, over four times the messages
	workLimit     = 128       // times as many bytes may go through operators, filters and calls
)

// Tests change these.
var (
	renderTime = 2 * time.Second // for parsing and for one render, which take a millisecond
	stepLimit  = 2_000_000       // statements executed in one render

	// processTime is the processor time that the program has had, negative where the
	// system does not say.
	processTime = usedTime
)

// chatTemplate is a compiled template, safe for concurrent use.
type chatTemplate struct {
	source string
	tpl    *exec.Template
	vars   map[string]any  // bos_token and its like
	form   func() callForm // how it wants calls: see formOf
}

// budget is what one render has used.
type budget struct {
	steps, depth int
	work         int // bytes that went through operators, filters and calls
	text         int // bytes allowed
	most         int // steps allowed
	clock        stopwatch
}

// stopwatch is the time limit of a parse or a render. The clock on the wall alone would
// refuse a sound template on a machine so busy that the program is not run for a while:
// the program must have computed for as long, too.
type stopwatch struct {
	begun time.Time
	limit time.Duration
	used  func() time.Duration // processTime
	spent time.Duration        // what that said at the beginning
}

func startWatch() stopwatch {
	return stopwatch{time.Now(), renderTime, processTime, processTime()}
}

// left is how much of the limit there is at least; it is over at 0.
func (s stopwatch) left() time.Duration {
	wall := s.limit - time.Since(s.begun)
	if wall > 0 || s.spent < 0 {
		return max(wall, 0)
	}
	return max(s.limit-(s.used()-s.spent), 0)
}

// refusal ends a render. It is thrown as a panic, which bounded turns into an
// error: the engine goes on for a while after an error, and evaluates the
// object of a method call twice, so that a chain of n calls takes 2^n steps.
type refusal struct{ error }

func refuseRender(format string, args ...any) { panic(refusal{fmt.Errorf(format, args...)}) }

// charge takes bytes of work and looks at the clock.
func (b *budget) charge(work int) {
	if b.work += work; b.work/workLimit > b.text {
		refuseRender("handles more than %d bytes in all", workLimit*b.text)
	}
	if b.clock.left() == 0 {
		refuseRender("took over %v", b.clock.limit)
	}
}

// budgetKey is no identifier, so no template can name it.
const budgetKey = " budget"

func budgetOf(e *exec.Environment) *budget {
	v, _ := e.Context.Get(budgetKey)
	b, _ := v.(*budget)
	return b
}

// newChatTemplate compiles a template.
func newChatTemplate(source string, vars map[string]any) (*chatTemplate, error) {
	if len(source) > templateLimit {
		return nil, fmt.Errorf("%d bytes: over the limit of %d: shorten it: %w", len(source),
			templateLimit, ErrTemplate)
	}
	c := &chatTemplate{source: source, vars: vars}
	c.form = sync.OnceValue(c.formOf)
	err := bounded(func() error {
		loader, err := loaders.NewShiftedLoader("chat_template", strings.NewReader(source),
			noLoader{})
		if err != nil {
			return err
		}
		cfg := config.New()
		cfg.TrimBlocks, cfg.LeftStripBlocks = true, true
		if err := checkTags(source, cfg); err != nil {
			return err
		}
		if c.tpl, err = exec.NewTemplate("chat_template", cfg, loader,
			newEnvironment()); err != nil {
			return err
		}
		instrument(reflect.ValueOf(c.tpl.Root()), map[uintptr]bool{})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: cannot be parsed: %s: correct it, or use a simpler template",
			ErrTemplate, shorten(err))
	}
	return c, nil
}

// checkTags bounds what stands in one tag. The parser and the evaluator recurse
// by the depth of an expression, and Go cannot recover from a stack overflow.
func checkTags(source string, cfg *config.Config) error {
	n := 0
	for s := tokens.LexAll(source, cfg); ; s.Next() {
		tok := s.Current()
		if tok == nil || tok.Type == tokens.EOF || tok.Type == tokens.Error {
			return nil // the parser reports errors better
		}
		if n++; tok.Type == tokens.BlockBegin || tok.Type == tokens.VariableBegin {
			n = 0
		}
		if n > tagLimit {
			return fmt.Errorf("the tag at line %d has more than %d words", tok.Line, tagLimit)
		}
	}
}

// render runs the template.
func (c *chatTemplate) render(turns []turn, tools any, addGenerationPrompt bool) (string, error) {
	b := &budget{text: textLimit, most: stepLimit, clock: startWatch()}
	list := make(list, len(turns))
	for i, t := range turns {
		list[i] = t.dict()
		eachString(t.calls, func(s string) { b.text += 4 * len(s) })
		b.text += 4 * (len(t.content) + len(t.thinking))
	}
	eachString(tools, func(s string) { b.text += 4 * len(s) })
	data := map[string]any{"messages": list, "add_generation_prompt": addGenerationPrompt,
		"tools": tools, "documents": nil, budgetKey: b}
	for k, v := range c.vars {
		data[k] = v
	}
	var out *strings.Builder
	err := bounded(func() error {
		w := &capped{limit: b.text}
		out = &w.Builder
		return c.tpl.Execute(w, exec.NewContext(data))
	})
	if err != nil {
		return "", fmt.Errorf("tokenizer: %w: %s: change the messages or the template", ErrTemplate,
			shorten(err))
	}
	return out.String(), nil
}

// bounded runs f under the time limit and turns a panic into an error. Where
// the limit is hit f is left behind, to end at its next check.
func bounded(f func() error) error {
	t := trial{f, make(chan error, 1)}
	select {
	case idle <- t:
	default:
		go try(t)
	}
	clock := startWatch()
	limit := time.NewTimer(clock.limit)
	defer limit.Stop()
	for {
		select {
		case err := <-t.done:
			return err
		case <-limit.C:
		}
		left := clock.left()
		if left == 0 {
			return fmt.Errorf("took over %v", clock.limit)
		}
		limit.Reset(max(left, time.Millisecond))
	}
}

// trial is a function that is run for bounded.
type trial struct {
	f    func() error
	done chan error
}

// idle hands trials to goroutines that wait for the next: a render nests deep, and a
// new goroutine would have to grow its stack each time, which takes longer than a
// short template.
var idle = make(chan trial)

// idleTime is how long such a goroutine waits.
const idleTime = time.Second

// try runs t, and what comes within idleTime after it.
func try(t trial) {
	wait := time.NewTimer(idleTime)
	defer wait.Stop()
	for {
		t.done <- caught(t.f)
		wait.Reset(idleTime)
		select {
		case t = <-idle:
		case <-wait.C:
			return
		}
	}
}

// caught is f's error, or that of its panic.
func caught(f func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case refusal:
			err = p.error
		default:
			err = fmt.Errorf("the template engine failed: %v", p)
		}
	}()
	return f()
}

// shorten keeps the end of an engine's message, which is the cause; the
// beginning holds the template.
func shorten(err error) string {
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > 240 {
		s = "..." + validUTF8(s[len(s)-240:])
	}
	return s
}

// noLoader refuses every other file.
type noLoader struct{}

var errLoader = errors.New("a chat template may not read other files")

func (noLoader) Read(string) (io.Reader, error)         { return nil, errLoader }
func (noLoader) Resolve(string) (string, error)         { return "", errLoader }
func (noLoader) Inherit(string) (loaders.Loader, error) { return noLoader{}, nil }

// capped is an output that refuses to grow beyond limit.
type capped struct {
	strings.Builder
	limit int
}

func (c *capped) Write(p []byte) (int, error) { return c.WriteString(string(p)) }

func (c *capped) WriteString(s string) (int, error) {
	if c.Len()+len(s) > c.limit {
		return 0, fmt.Errorf("writes more than %d bytes", c.limit)
	}
	return c.Builder.WriteString(s)
}

// guard is a statement that charges for the one inside it.
type guard struct{ node nodes.Node }

func (g *guard) Position() *tokens.Token { return g.node.Position() }
func (g *guard) String() string          { return g.node.String() }

// Execute runs the statement if there is budget for it.
func (g *guard) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	b := budgetOf(r.Environment)
	b.depth++
	defer func() { b.depth-- }()
	if b.steps++; b.steps > b.most {
		refuseRender("takes more than %d steps", b.most)
	}
	if b.depth > depthLimit {
		refuseRender("nests more than %d deep", depthLimit)
	}
	b.charge(0)
	// Macros and set blocks write to buffers of their own.
	if w, ok := r.Output.(interface{ Len() int }); ok && w.Len() > b.text {
		refuseRender("writes more than %d bytes", b.text)
	}
	return nodes.Walk(r, g.node)
}

var (
	typeNodes  = reflect.TypeFor[[]nodes.Node]()
	typeToken  = reflect.TypeFor[*tokens.Token]()
	typeBinary = reflect.TypeFor[*nodes.BinaryExpression]()
	typeOutput = reflect.TypeFor[*nodes.Output]()
	typeBody   = reflect.TypeFor[*nodes.Wrapper]()
	typeCall   = reflect.TypeFor[*nodes.Call]()
)

// instrument puts guards around the statements and checks around the operands
// of a parsed template. It walks exported fields: a test holds every admitted
// statement to having no others that matter.
func instrument(v reflect.Value, seen map[uintptr]bool) {
	switch v.Kind() {
	case reflect.Interface:
		if v.IsNil() {
			return
		}
		instrument(v.Elem(), seen)
		if v.Elem().Type() == typeCall && v.CanSet() {
			v.Set(checkedCall(v))
		}
	case reflect.Pointer:
		if v.IsNil() || v.Type() == typeToken || seen[v.Pointer()] {
			return
		}
		seen[v.Pointer()] = true
		if v.Type() == typeBody { // a loop over nothing must be charged for too
			if w := v.Interface().(*nodes.Wrapper); len(w.Nodes) == 0 {
				w.Nodes = []nodes.Node{&nodes.Comment{Start: w.Location, End: w.Location}}
			}
		}
		instrument(v.Elem(), seen)
		switch v.Type() {
		case typeBinary:
			n := v.Interface().(*nodes.BinaryExpression)
			check := filterOperand
			switch n.Operator.Token.Type {
			case tokens.And, tokens.Or:
				return // give back an operand as it is
			case tokens.Multiply:
				check = filterFactor
			}
			n.Left, n.Right =
				checked(n.Left, check, n.Operator.Token), checked(n.Right, check, n.Operator.Token)
		case typeOutput:
			n := v.Interface().(*nodes.Output)
			n.Expression = checked(n.Expression, filterOperand, n.Start)
			if n.Alternative != nil {
				n.Alternative = checked(n.Alternative, filterOperand, n.Start)
			}
		}
	case reflect.Struct:
		for i := 0; i < v.NumField(); i++ {
			if v.Type().Field(i).IsExported() {
				instrument(v.Field(i), seen)
			}
		}
	case reflect.Slice:
		for i := 0; i < v.Len(); i++ {
			instrument(v.Index(i), seen)
		}
		if v.Type() == typeNodes {
			for i := 0; i < v.Len(); i++ {
				n := v.Index(i).Interface().(nodes.Node)
				block := &nodes.ControlStructureBlock{Location: n.Position(), Name: "guard",
					ControlStructure: &guard{n}}
				v.Index(i).Set(reflect.ValueOf(block))
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			instrument(it.Value(), seen)
			if e := it.Value(); e.Kind() == reflect.Interface && e.Elem().Type() == typeCall {
				v.SetMapIndex(it.Key(), checkedCall(e))
			}
		}
	}
}

// checkedCall is checked for a call that is held in an interface.
func checkedCall(v reflect.Value) reflect.Value {
	call := v.Interface().(*nodes.Call)
	return reflect.ValueOf(checked(call, filterOperand, call.Location))
}

// checked pipes an expression through a filter.
func checked(e nodes.Expression, filter string, at *tokens.Token) nodes.Expression {
	return &nodes.FilteredExpression{Expression: e,
		Filters: []*nodes.FilterCall{{Token: at, Name: filter}}}
}

// guard returns the turns and the tools with the first character of every control token
// in them replaced by a stand-in, and what puts the characters back. Stand-ins
// are noncharacters of Unicode that occur in no message. The template sees a
// text of the same length with the same blanks, so it trims and tests it as it
// would have; the encoder cuts out the template's own control tokens, and only
// then the characters return. A message that ends in the beginning of a control
// token is guarded too, lest what follows completes it.
func (t *Tokenizer) guard(c Chat) (turns []turn, tools any, restore *strings.Replacer, err error) {
	if turns, tools, err = t.chat.turnsOf(c); err != nil {
		return nil, nil, nil, err
	}
	var always, named []string // control tokens in an assistant's message; in all others
	normalizes := false
	for _, a := range t.added {
		if a.Special {
			always = append(always, a.Content)
		}
		if a.Special || strings.Contains(t.chat.source, a.Content) {
			named = append(named, a.Content)
			normalizes = normalizes || a.Normalized
		}
	}
	var all strings.Builder
	clean := func(s string) string {
		if s = validUTF8(s); normalizes { // a control token must not come to be in the normalizer
			s = t.normalize(s)
		}
		all.WriteString(s)
		return s
	}
	for i := range turns {
		role := validUTF8(turns[i].role)
		turns[i].mapStrings(clean)
		turns[i].role = role
		all.WriteString(role)
	}
	tools = mapStrings(tools, clean)
	text := all.String()
	standIns := map[rune]rune{}
	var oldnew []string
	next := rune(0xFDD0)
	var full error
	standIn := func(r rune) rune {
		if s, ok := standIns[r]; ok {
			return s
		}
		for strings.ContainsRune(text, next) || strings.ContainsRune(t.chat.source, next) {
			next++
		}
		if next > 0xFDEF {
			full = fmt.Errorf("tokenizer: chat: the messages contain all noncharacters U+FDD0 to U+FDEF, so control tokens in them cannot be marked: remove these characters")
			return r
		}
		standIns[r] = next
		oldnew = append(oldnew, string(next), string(r))
		next++
		return standIns[r]
	}
	in := func(controls []string) func(string) string {
		return func(s string) string { return standInFor(s, controls, standIn) }
	}
	for i := range turns {
		controls := named
		if turns[i].role == "assistant" {
			controls = always
		}
		role := in(named)(turns[i].role)
		turns[i].mapStrings(in(controls))
		turns[i].role = role
	}
	tools = mapStrings(tools, in(named))
	if full != nil || len(oldnew) == 0 {
		return turns, tools, nil, full
	}
	return turns, tools, strings.NewReplacer(oldnew...), nil
}

// standInFor replaces the first character of each control token in s, and of
// each beginning of one at its end.
func standInFor(s string, controls []string, standIn func(rune) rune) string {
	at := map[int]bool{}
	for _, c := range controls {
		for i := 0; ; {
			k := strings.Index(s[i:], c)
			if k < 0 {
				break
			}
			at[i+k] = true
			_, n := utf8.DecodeRuneInString(c)
			i += k + n
		}
		// Templates trim, so the end counts with and without its blanks.
		for _, end := range []string{s, strings.TrimRightFunc(s, unicode.IsSpace)} {
			for k := min(len(c)-1, len(end)); k > 0; k-- {
				if utf8.RuneStart(c[k]) && strings.HasSuffix(end, c[:k]) {
					at[len(end)-k] = true
				}
			}
		}
	}
	if len(at) == 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if at[i] {
			r = standIn(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}
