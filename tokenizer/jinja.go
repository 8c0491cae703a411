package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	controlStructures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// What a chat template may use. Everything here either gives back no more than
// it was given or checks its sizes first.

// Filters that no template can name, for they are no identifiers.
const (
	filterOperand = " operand"
	filterFactor  = " factor"
)

var (
	allowedStatements = []string{"for", "if", "macro", "raw", "break", "continue", "call", "do"}
	allowedFilters    = []string{"abs", "attr", "capitalize", "count", "d", "default", "dictsort",
		"e", "escape", "first",
		"float", "int", "join", "last", "length", "list", "lower", "map", "max", "min", "reject",
		"rejectattr", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum",
		"title",
		"unique", "upper"}
	allowedMethods = []string{"capitalize", "casefold", "endswith", "find", "isalnum", "isalpha",
		"isascii", "isdigit",
		"islower", "isnumeric", "isspace", "isupper", "lower", "partition", "removeprefix",
		"removesuffix",
		"rfind", "rpartition", "splitlines", "startswith", "swapcase", "title", "upper"}
)

// list is a list whose last element is [-1] even where it is the only one,
// which the engine's own lists get wrong.
type list []any

// GetItem implements the engine's index operator.
func (l list) GetItem(key any) (*exec.Value, bool) {
	i, ok := key.(int)
	if !ok {
		return exec.AsValue(nil), false
	}
	if i < 0 {
		i += len(l)
	}
	if i < 0 || i >= len(l) {
		return exec.AsValue(nil), false
	}
	return exec.AsValue(l[i]), true
}

// newEnvironment makes the world that a template sees.
func newEnvironment() *exec.Environment {
	statements := map[string]parser.ControlStructureParser{"generation": parseGeneration,
		"set": parseSet}
	for _, name := range allowedStatements {
		statements[name], _ = builtins.ControlStructures.Get(name)
	}
	// A loop that calls itself would pass by the guards.
	parseFor := statements["for"]
	statements["for"] = func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		cs, err := parseFor(p, args)
		if loop, ok := cs.(*controlStructures.ForControlStructure); ok && loop.Recursive {
			return nil, errors.New("recursive loops are not supported: use a macro")
		}
		return cs, err
	}
	filters := map[string]exec.FilterFunction{
		filterOperand: func(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
			return in
		},
		filterFactor: factor,
		"items":      items,
		"tojson":     toJSON,
		"indent":     indent,
		"replace": func(_ *exec.Evaluator, in *exec.Value, p *exec.VarArgs) *exec.Value {
			return value(replace(in.String(), p))
		},
		"trim": func(_ *exec.Evaluator, in *exec.Value, p *exec.VarArgs) *exec.Value {
			return value(strip(in.String(), p, true, true))
		},
	}
	for _, name := range allowedFilters {
		filters[name], _ = builtins.Filters.Get(name)
	}
	for name, f := range filters {
		filters[name] = sized(name, f)
	}
	return &exec.Environment{
		Filters:           exec.NewFilterSet(filters),
		ControlStructures: exec.NewControlStructureSet(statements),
		Tests:             builtins.Tests,
		Context: exec.NewContext(map[string]any{
			"range": rangeList,
			"namespace": func(_ *exec.Evaluator, p *exec.VarArgs) *exec.Value {
				return exec.AsValue(keywordMap(p))
			},
			"dict": func(_ *exec.Evaluator, p *exec.VarArgs) *exec.Value {
				return exec.AsValue(keywordDict(p))
			},
			"raise_exception": raise,
			"strftime_now":    strftimeNow,
		}),
		Methods: newMethods(),
	}
}

func newMethods() exec.Methods {
	methods := map[string]exec.Method[string]{
		"strip": func(s string, _ *exec.Value, p *exec.VarArgs) (any,
			error) {
			return strip(s, p, true, true)
		},
		"lstrip": func(s string, _ *exec.Value, p *exec.VarArgs) (any,
			error) {
			return strip(s, p, true, false)
		},
		"rstrip": func(s string, _ *exec.Value, p *exec.VarArgs) (any,
			error) {
			return strip(s, p, false, true)
		},
		"replace": func(s string, _ *exec.Value, p *exec.VarArgs) (any,
			error) {
			return replace(s, p)
		},
		"split": func(s string, _ *exec.Value, p *exec.VarArgs) (any,
			error) {
			return split(s, p, strings.SplitN)
		},
		"rsplit": func(s string, _ *exec.Value, p *exec.VarArgs) (any,
			error) {
			return split(s, p, splitLast)
		},
		"join": joinMethod,
	}
	for _, name := range allowedMethods {
		methods[name], _ = builtins.Methods.Str.Get(name)
	}
	for name, m := range methods {
		methods[name] = func(s string, v *exec.Value, p *exec.VarArgs) (any, error) {
			for _, a := range p.Args {
				if _, err := measure(a, 16*textLimit); err != nil {
					return nil, err
				}
			}
			return m(s, v, p)
		}
	}
	// The engine's own give a dict's keys in the order of the alphabet.
	part := func(of func(key, value any) any) exec.Method[map[string]any] {
		return func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
			pairs := items(nil, self, nil)
			if pairs.IsError() {
				return nil, pairs
			}
			out := list{}
			for _, p := range pairs.Interface().(list) {
				out = append(out, of(p.(list)[0], p.(list)[1]))
			}
			return out, nil
		}
	}
	dict := map[string]exec.Method[map[string]any]{
		"items":  part(func(key, value any) any { return list{key, value} }),
		"keys":   part(func(key, _ any) any { return key }),
		"values": part(func(_, value any) any { return value }),
	}
	for _, name := range []string{"get", "copy", "pop", "setdefault", "update", "clear",
		"popitem"} {
		if m, ok := builtins.Methods.Dict.Get(name); ok {
			dict[name] = m
		}
	}
	all := builtins.Methods
	all.Str, all.Dict = exec.NewMethodSet(methods), exec.NewMethodSet(dict)
	return all
}

// value makes an engine's value of a result or its error.
func value(v any, err error) *exec.Value {
	if err != nil {
		return exec.AsValue(err)
	}
	return exec.AsValue(v)
}

// sized lets a filter run only on values of bounded size, and charges for them.
func sized(name string, f exec.FilterFunction) exec.FilterFunction {
	switch name {
	case "first", "last", "length", "count", "default", "d":
		return f // look at no text
	}
	return func(e *exec.Evaluator, in *exec.Value, p *exec.VarArgs) *exec.Value {
		if in.IsError() {
			return in
		}
		b := budgetOf(e.Environment)
		for _, v := range append([]*exec.Value{in}, p.Args...) {
			n, err := measure(v, b.text)
			if err != nil {
				refuseRender("%s: %w", strings.TrimSpace(name), err)
			}
			if name == "list" || name == "reverse" || name == "sort" || name == "unique" {
				n *= 32 // a character becomes a value
			}
			b.charge(n)
		}
		if name == "join" {
			n := in.Len() * len(p.First().String())
			for _, d := range p.KwArgs {
				n += in.Len() * len(d.String())
			}
			if n > b.text {
				refuseRender("join: would make more than %d bytes", b.text)
			}
		}
		return f(e, in, p)
	}
}

// measure refuses a value of more than limit bytes and elements, or nested
// deeper than depthLimit: written out, a list of lists of the same list can
// have more characters than memory. It returns about how many it has.
func measure(v *exec.Value, limit int) (size int, err error) {
	left := limit
	var walk func(x any, depth int) error
	walk = func(x any, depth int) error {
		left -= 2
		if left < 0 {
			return fmt.Errorf("a value of more than %d bytes", limit)
		}
		if depth > depthLimit {
			return fmt.Errorf("a value nested more than %d deep", depthLimit)
		}
		switch x := x.(type) {
		case string:
			left -= len(x)
			if left < 0 {
				return fmt.Errorf("a value of more than %d bytes", limit)
			}
		case *exec.Value:
			if x == nil || x.IsNil() {
				return nil
			}
			return walk(x.Interface(), depth)
		case *exec.Dict:
			for _, p := range x.Pairs {
				if err := walk(p, depth+1); err != nil {
					return err
				}
			}
		case *exec.Pair:
			if err := walk(x.Key, depth+1); err != nil {
				return err
			}
			return walk(x.Value, depth+1)
		case list:
			return walkAll(x, depth, walk)
		case []any:
			return walkAll(x, depth, walk)
		case exec.ValuesList:
			return walkAll(x, depth, walk)
		case []string:
			return walkAll(x, depth, walk)
		case map[string]any:
			for k, e := range x {
				left -= len(k)
				if err := walk(e, depth+1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err = walk(v, 0)
	return limit - left, err
}

func walkAll[T any](l []T, depth int, walk func(any, int) error) error {
	for _, e := range l {
		if err := walk(e, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// factor checks an operand of *.
func factor(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if in.IsString() && len(in.String()) > factorLimit || in.IsInteger() &&
		(in.Integer() > factorLimit || in.Integer() < -factorLimit) {
		return exec.AsValue(fmt.Errorf("operand of * over %d", factorLimit))
	}
	return in
}

// pythonSpace is what Python's str.strip takes away.
const pythonSpace = "\t\n\v\f\r\x1c\x1d\x1e\x1f \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"

func strip(s string, p *exec.VarArgs, left, right bool) (any, error) {
	chars := pythonSpace
	if a := p.First(); len(p.Args) > 0 && !a.IsNil() {
		chars = a.String()
	}
	if left {
		s = strings.TrimLeft(s, chars)
	}
	if right {
		s = strings.TrimRight(s, chars)
	}
	return s, nil
}

// argument returns the i-th argument, by position or by name.
func argument(p *exec.VarArgs, i int, name string) *exec.Value {
	if i < len(p.Args) {
		return p.Args[i]
	}
	if v, ok := p.KwArgs[name]; ok {
		return v
	}
	return exec.AsValue(nil)
}

func replace(s string, p *exec.VarArgs) (any, error) {
	from, to, count := argument(p, 0, "old"), argument(p, 1, "new"), argument(p, 2, "count")
	if !from.IsString() || !to.IsString() {
		return nil, fmt.Errorf("replace: needs two strings")
	}
	n := -1
	if count.IsInteger() {
		n = count.Integer()
	}
	times := strings.Count(s, from.String())
	if size := len(s) + times*(len(to.String())-len(from.String())); size > 4*len(s)+textLimit {
		return nil, fmt.Errorf("replace: would make %d bytes of %d", size, len(s))
	}
	return strings.Replace(s, from.String(), to.String(), n), nil
}

func split(s string, p *exec.VarArgs, cut func(s, sep string, n int) []string) (any, error) {
	sep, most := argument(p, 0, "sep"), argument(p, 1, "maxsplit")
	n := -1
	if most.IsInteger() && most.Integer() >= 0 {
		n = most.Integer() + 1
	}
	var parts []string
	switch {
	case sep.IsNil() && n < 0:
		parts = strings.FieldsFunc(s,
			func(r rune) bool { return strings.ContainsRune(pythonSpace, r) })
	case !sep.IsString() || sep.String() == "":
		return nil, fmt.Errorf("split: needs a separator")
	default:
		parts = cut(s, sep.String(), n)
	}
	out := make(list, len(parts))
	for i, e := range parts {
		out[i] = e
	}
	return out, nil
}

// splitLast is strings.SplitN from the end.
func splitLast(s, sep string, n int) []string {
	var parts []string
	for n < 0 || len(parts)+1 < n {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(sep):])
		s = s[:i]
	}
	parts = append(parts, s)
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return parts
}

func joinMethod(sep string, _ *exec.Value, p *exec.VarArgs) (any, error) {
	var parts []string
	size := 0
	p.First().Iterate(func(_, _ int, v, _ *exec.Value) bool {
		parts = append(parts, v.String())
		size += len(sep) + len(v.String())
		return size <= 16*textLimit
	}, func() {})
	if size > 16*textLimit {
		return nil, fmt.Errorf("join: would make more than %d bytes", 16*textLimit)
	}
	return strings.Join(parts, sep), nil
}

// indent puts blanks before every line but the first.
func indent(_ *exec.Evaluator, in *exec.Value, p *exec.VarArgs) *exec.Value {
	pad := "    "
	switch width := argument(p, 0, "width"); {
	case width.IsString():
		pad = width.String()
	case width.IsInteger() && width.Integer() >= 0 && width.Integer() <= 256:
		pad = strings.Repeat(" ", width.Integer())
	case !width.IsNil():
		return exec.AsValue(fmt.Errorf("indent: width %s: needs a string or 0..256", width))
	}
	first, blank := argument(p, 1, "first").IsTrue(), argument(p, 2, "blank").IsTrue()
	lines := strings.Split(in.String(), "\n")
	if len(lines)*len(pad) > 4*len(in.String())+textLimit {
		return exec.AsValue(fmt.Errorf("indent: would add %d bytes to %d", len(lines)*len(pad),
			len(in.String())))
	}
	for i, l := range lines {
		if i == 0 && first || i > 0 && (l != "" || blank) {
			lines[i] = pad + l
		}
	}
	return exec.AsValue(strings.Join(lines, "\n"))
}

func rangeList(_ *exec.Evaluator, p *exec.VarArgs) *exec.Value {
	bounds := [3]int{0, 0, 1}
	for i, a := range p.Args {
		if i > 2 || !a.IsInteger() {
			return exec.AsValue(fmt.Errorf("range: needs one to three integers"))
		}
		bounds[i] = a.Integer()
	}
	if len(p.Args) == 1 {
		bounds[0], bounds[1] = 0, bounds[0]
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if len(p.Args) == 0 || step == 0 {
		return exec.AsValue(fmt.Errorf("range: needs one to three integers, the step not 0"))
	}
	out := list{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(out) >= rangeLimit {
			return exec.AsValue(fmt.Errorf("range: more than %d numbers", rangeLimit))
		}
		out = append(out, i)
	}
	return exec.AsValue(out)
}

func keywordMap(p *exec.VarArgs) map[string]any {
	m := map[string]any{}
	for k, v := range p.KwArgs {
		m[k] = v.Interface()
	}
	return m
}

func keywordDict(p *exec.VarArgs) *exec.Dict { return sortedDict(keywordMap(p)) }

func sortedDict(m map[string]any) *exec.Dict {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	d := exec.NewDict()
	for _, k := range keys {
		d.Pairs = append(d.Pairs, &exec.Pair{Key: exec.AsValue(k), Value: exec.AsValue(m[k])})
	}
	return d
}

// raise is the template's way to refuse a chat.
func raise(_ *exec.Evaluator, p *exec.VarArgs) *exec.Value {
	refuseRender("the template says: %s", p.First().String())
	return nil
}

// now is the clock of strftime_now; tests set it.
var now = time.Now

// strftimeNow is today's date in the given format. A prompt that holds it
// changes with the day.
func strftimeNow(_ *exec.Evaluator, p *exec.VarArgs) *exec.Value {
	goLayout := map[byte]string{'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02",
		'H': "15", 'I': "03",
		'j': "002", 'm': "01", 'M': "04", 'p': "PM", 'S': "05", 'y': "06", 'Y': "2006"}
	format, t := p.First().String(), now()
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			out.WriteByte(format[i])
			continue
		}
		i++
		if layout, ok := goLayout[format[i]]; ok {
			out.WriteString(t.Format(layout))
		} else if format[i] == '%' {
			out.WriteByte('%')
		} else {
			return exec.AsValue(fmt.Errorf("strftime_now: %%%c is not supported", format[i]))
		}
	}
	return exec.AsValue(out.String())
}

// items are the pairs of a dict in its order, of which the engine's own filter leaves out those of
// dicts that have one.
func items(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	out := list{}
	switch d := in.Interface().(type) {
	case nil:
	case *exec.Dict:
		for _, p := range d.Pairs {
			out = append(out, list{p.Key.Interface(), p.Value.Interface()})
		}
	case map[string]any:
		return items(nil, exec.AsValue(sortedDict(d)), nil)
	default:
		return exec.AsValue(errors.New("items: needs a mapping"))
	}
	return exec.AsValue(out)
}

// toJSON writes a value as Python's json.dumps(ensure_ascii=False) does, which
// is what templates are written for: ", " and ": ", keys in order, no HTML escapes.
func toJSON(_ *exec.Evaluator, in *exec.Value, p *exec.VarArgs) *exec.Value {
	pad := ""
	if v := argument(p, 0, "indent"); v.IsInteger() && v.Integer() > 0 && v.Integer() <= 16 {
		pad = strings.Repeat(" ", v.Integer())
	}
	var b strings.Builder
	if err := writeJSON(&b, in.Interface(), pad, "\n"); err != nil {
		return exec.AsValue(err)
	}
	return exec.AsSafeValue(b.String())
}

// writeJSON writes v; line is the line break and indentation of its level.
func writeJSON(b *strings.Builder, v any, pad, line string) error {
	sequence := func(open, end byte, n int, item func(i int) error) error {
		b.WriteByte(open)
		for i := 0; i < n; i++ {
			switch {
			case pad != "" && i > 0:
				b.WriteString("," + line + pad)
			case pad != "":
				b.WriteString(line + pad)
			case i > 0:
				b.WriteString(", ")
			}
			if err := item(i); err != nil {
				return err
			}
		}
		if pad != "" && n > 0 {
			b.WriteString(line)
		}
		b.WriteByte(end)
		return nil
	}
	switch x := v.(type) {
	case nil:
		b.WriteString("null")
	case *exec.Value:
		return writeJSON(b, x.Interface(), pad, line)
	case string:
		var buf bytes.Buffer
		e := json.NewEncoder(&buf)
		e.SetEscapeHTML(false)
		if err := e.Encode(x); err != nil {
			return err
		}
		s := strings.TrimSuffix(buf.String(), "\n")
		b.WriteString(strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029").Replace(s))
	case bool:
		b.WriteString(strconv.FormatBool(x))
	case int:
		b.WriteString(strconv.Itoa(x))
	case bigNumber:
		b.WriteString(string(x))
	case float64:
		b.WriteString(pythonFloat(x))
	case *exec.Dict:
		return sequence('{', '}', len(x.Pairs), func(i int) error {
			if err := writeJSON(b, x.Pairs[i].Key.String(), "", ""); err != nil {
				return err
			}
			b.WriteString(": ")
			return writeJSON(b, x.Pairs[i].Value, pad, line+pad)
		})
	case map[string]any:
		return writeJSON(b, sortedDict(x), pad, line)
	case exec.ValuesList:
		return sequence('[', ']', len(x),
			func(i int) error { return writeJSON(b, x[i], pad, line+pad) })
	case list:
		return sequence('[', ']', len(x),
			func(i int) error { return writeJSON(b, x[i], pad, line+pad) })
	case []any:
		return sequence('[', ']', len(x),
			func(i int) error { return writeJSON(b, x[i], pad, line+pad) })
	case []string:
		return sequence('[', ']', len(x),
			func(i int) error { return writeJSON(b, x[i], pad, line+pad) })
	default:
		return fmt.Errorf("tojson: a value of type %T", v)
	}
	return nil
}

// pythonFloat is x as Python's repr writes it: with an exponent below 1e-4 and from 1e16 on.
func pythonFloat(x float64) string {
	format := byte('f')
	if a := math.Abs(x); a != 0 && (a < 1e-4 || a >= 1e16) {
		format = 'e'
	}
	s := strconv.FormatFloat(x, format, -1, 64)
	if !strings.ContainsAny(s, ".eIN") {
		s += ".0"
	}
	return s
}

// generation is {% generation %}: it marks the assistant's part for tools that
// make loss masks and writes its body.
type generation struct{ Body *nodes.Wrapper }

func (g *generation) Position() *tokens.Token { return g.Body.Position() }
func (g *generation) String() string          { return "generation" }

// Execute writes the body.
func (g *generation) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	return r.ExecuteWrapper(g.Body)
}

func parseGeneration(p, _ *parser.Parser) (nodes.ControlStructure, error) {
	body, _, err := p.WrapUntil("endgeneration")
	return &generation{body}, err
}

// set is {% set target = value %} and {% set target %}...{% endset %}. The
// engine's own hides its expressions from instrument.
type set struct {
	At                            *tokens.Token
	Target                        nodes.Expression
	Value, Condition, Alternative nodes.Expression
	Body                          *nodes.Wrapper
}

func (s *set) Position() *tokens.Token { return s.At }
func (s *set) String() string          { return "set" }

// Execute assigns.
func (s *set) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	var v *exec.Value
	switch {
	case s.Body != nil:
		var out strings.Builder
		sub := r.Inherit()
		sub.Output = &out
		if err := sub.ExecuteWrapper(s.Body); err != nil {
			return err
		}
		v = exec.AsSafeValue(out.String())
	case s.Condition != nil:
		c := r.Eval(s.Condition)
		if c.IsError() {
			return c
		}
		if c.IsTrue() {
			v = r.Eval(s.Value)
		} else {
			v = r.Eval(s.Alternative)
		}
	default:
		v = r.Eval(s.Value)
	}
	if v.IsError() {
		return v
	}
	switch target := s.Target.(type) {
	case *nodes.Name:
		r.Environment.Context.Set(target.Name.Val, v.Interface())
		return nil
	case *nodes.GetAttribute:
		object := r.Eval(target.Node)
		if object.IsError() {
			return object
		}
		return object.Set(exec.AsValue(target.Attribute), v.Interface())
	}
	return fmt.Errorf("set: cannot assign to %s", s.Target)
}

func parseSet(p, args *parser.Parser) (nodes.ControlStructure, error) {
	s := &set{At: p.Current()}
	target, err := args.ParseVariableOrLiteral()
	if err != nil {
		return nil, err
	}
	switch target.(type) {
	case *nodes.Name, *nodes.GetAttribute:
		s.Target = target
	default:
		return nil, fmt.Errorf("set: cannot assign to %s", target)
	}
	if args.Match(tokens.Assign) == nil {
		if !args.End() {
			return nil, args.Error("set: expected = or the end of the tag", args.Current())
		}
		body, rest, err := p.WrapUntil("endset")
		if err != nil {
			return nil, err
		}
		if !rest.End() {
			return nil, rest.Error("endset takes no arguments", nil)
		}
		s.Body = body
		return s, nil
	}
	if s.Value, err = args.ParseExpression(); err != nil {
		return nil, err
	}
	if s.Condition, s.Alternative, err = args.ParseCondition(); err != nil {
		return nil, err
	}
	if s.Condition != nil && s.Alternative == nil {
		return nil, args.Error("set: if without else", args.Current())
	}
	if !args.End() {
		return nil, args.Error("set: text after the value", args.Current())
	}
	return s, nil
}
