package jinja

import (
	"strconv"
	"strings"
)

// call is the evaluated arguments of a call.
type call struct {
	pos []any
	kw  *Dict
}

func newCall(pos ...any) *call { return &call{pos, &Dict{}} }

// eval returns the arguments' values.
func (a *arguments) eval(s *state) *call {
	c := newCall()
	if len(a.pos) > 0 {
		c.pos = s.evalAll(a.pos)
	}
	if a.varargs != nil {
		c.pos = append(c.pos[:len(c.pos):len(c.pos)], s.items(a.varargs.eval(s))...)
	}
	for i, e := range a.kw {
		c.kw.Set(a.names[i], e.eval(s))
	}
	if a.kwargs != nil {
		d, ok := a.kwargs.eval(s).(*Dict)
		if !ok {
			fail("argument after ** must be a mapping")
		}
		for i, k := range d.keys {
			name, ok := asText(k)
			if !ok {
				fail("keywords must be strings")
			}
			if _, twice := c.kw.Get(name); twice {
				fail("got multiple values for keyword argument %s", quote(name))
			}
			c.kw.Set(name, d.values[i])
		}
	}
	return c
}

// noKeywords fails if a call has keyword arguments.
func (c *call) noKeywords(name string) {
	if c.kw.Len() > 0 {
		fail("%s() takes no keyword arguments", name)
	}
}

// absent stands for an argument that was not given.
var absent any = &builtin{name: "absent"}

// bind returns the argument of each parameter. A name that ends in ? is optional; one that begins
// with / is positional only.
func bind(name string, c *call, params ...string) []any {
	if len(c.pos) > len(params) {
		fail("%s() takes at most %d arguments (%d given)", name, len(params), len(c.pos))
	}
	out := make([]any, len(params))
	used := 0
	for i, p := range params {
		p, optional := strings.CutSuffix(p, "?")
		p, positional := strings.CutPrefix(p, "/")
		v, named := any(nil), false
		if !positional && c.kw.Len() > 0 {
			v, named = c.kw.Get(p)
		}
		switch {
		case i < len(c.pos) && named:
			fail("%s() got multiple values for argument %s", name, quote(p))
		case i < len(c.pos):
			out[i] = c.pos[i]
		case named:
			out[i] = v
			used++
		case optional:
			out[i] = absent
		default:
			fail("%s() missing the required argument %s", name, quote(p))
		}
	}
	if used < c.kw.Len() {
		for _, k := range c.kw.keys {
			known := false
			for _, p := range params {
				known = known || strings.TrimSuffix(p, "?") == k
			}
			if !known {
				fail("%s() got an unexpected keyword argument %s", name, quote(k.(string)))
			}
		}
	}
	return out
}

// or returns read(v), or otherwise if the argument was not given.
func or[T any](v any, otherwise T, read func(v any) T) T {
	if v == absent {
		return otherwise
	}
	return read(v)
}

// needText returns the text of an argument that must be a str.
func needText(v any) string {
	text, ok := asText(v)
	if !ok {
		checkDefined(v, nil)
		fail("expected a str, got '%s'", typeName(v))
	}
	return text
}

// needInt returns an argument that must be an int.
func needInt(v any) int {
	n, ok := asIndex(v)
	if !ok {
		checkDefined(v, nil)
		fail("'%s' object cannot be interpreted as an integer", typeName(v))
	}
	return int(n)
}

// call calls a value.
func (s *state) call(f any, c *call) any {
	s.charge(1)
	switch f := f.(type) {
	case *builtin:
		return f.call(s, c)
	case *macro:
		return f.call(s, c)
	case *undefined:
		f.fail()
	case *loop:
		if f.recurse == nil {
			fail("The loop must have the 'recursive' marker to be called recursively.")
		}
		return f.recurse(bind("loop", c, "iterable")[0])
	case *joiner:
		bind("joiner", c)
		if !f.used {
			f.used = true
			return ""
		}
		return f.sep
	}
	fail("'%s' object is not callable", typeName(f))
	return nil
}

// macro is a macro with its defining scope, or the body of a call block.
type macro struct {
	name string // "" of a call block
	f    *function
	env  *env
}

// param returns the index of a parameter, or -1.
func (f *function) param(name string) int {
	for i, p := range f.params {
		if p.name == name {
			return i
		}
	}
	return -1
}

// call runs the macro and returns its text.
func (m *macro) call(s *state, c *call) any {
	f := m.f
	e := f.frame.enter(s, m.env)
	kw := &Dict{}
	for i, k := range c.kw.keys {
		kw.Set(k, c.kw.values[i])
	}
	take := func(name string) (any, bool) {
		v, ok := kw.Get(name)
		if ok {
			kw = kw.dropKey(name)
		}
		return v, ok
	}
	foundCaller := len(c.pos) >= len(f.params) && f.param("caller") >= 0
	for i, p := range f.params {
		if i < len(c.pos) {
			e.vars[p.slot] = c.pos[i]
			continue
		}
		foundCaller = foundCaller || p.name == "caller"
		if v, ok := take(p.name); ok {
			e.vars[p.slot] = v
		} else {
			e.vars[p.slot] = missing
		}
	}
	put := func(name string, v any) { e.vars[f.frame.slots[name]] = v }
	if f.uses["caller"] && !foundCaller {
		v, ok := take("caller")
		if !ok || v == nil {
			v = &undefined{message: "No caller defined"}
		}
		put("caller", v)
	}
	if f.uses["kwargs"] {
		put("kwargs", kw)
	} else if kw.Len() > 0 {
		fail("macro %s takes no keyword argument %s", quote(m.name), s.repr(kw.keys[0]))
	}
	if f.uses["varargs"] {
		put("varargs", &Tuple{Items: c.pos[min(len(f.params), len(c.pos)):]})
	} else if len(c.pos) > len(f.params) {
		fail("macro %s takes not more than %d argument(s)", quote(m.name), len(f.params))
	}
	outer := s.env
	s.env = e
	s.deeper()
	text := s.capture(func() {
		for i, p := range f.params {
			if e.vars[p.slot] != missing {
				continue
			}
			if d := i - len(f.params) + len(f.defaults); d >= 0 {
				e.vars[p.slot] = f.defaults[d].eval(s)
			} else {
				e.vars[p.slot] = &undefined{message: "parameter " + quote(p.name) +
					" was not provided"}
			}
		}
		s.run(f.body)
	})
	s.shallower()
	s.env = outer
	return text
}

// dropKey returns a copy of d without a key.
func (d *Dict) dropKey(key any) *Dict {
	out := &Dict{}
	for i, k := range d.keys {
		if hashKey(k) != hashKey(key) {
			out.Set(k, d.values[i])
		}
	}
	return out
}

// cycler is the value of jinja2's cycler(), joiner that of joiner().
type cycler struct {
	items []any
	pos   int
}

type joiner struct {
	sep  any
	used bool
}

// globals are the functions of every template.
var globals map[string]any

func init() {
	globals = map[string]any{}
	for name, f := range map[string]func(s *state, c *call) any{
		"range": func(_ *state, c *call) any { return makeRange(c) },
		"dict":  func(s *state, c *call) any { return makeDict(s, c) },
		"namespace": func(s *state, c *call) any {
			d := makeDict(s, c)
			for _, k := range d.keys {
				if name, ok := asText(k); ok && strings.HasPrefix(name, "_") {
					fail("chat templates cannot store attributes that begin with an underscore "+
						"on a namespace, but got %s", quote(name))
				}
			}
			return &namespace{d}
		},
		"cycler": func(_ *state, c *call) any {
			c.noKeywords("cycler")
			if len(c.pos) == 0 {
				fail("at least one item has to be provided")
			}
			return &cycler{items: c.pos}
		},
		"joiner": func(_ *state, c *call) any {
			a := bind("joiner", c, "sep?")
			return &joiner{sep: or(a[0], any(", "), func(v any) any { return v })}
		},
		"raise_exception": func(s *state, c *call) any {
			fail("the template says: %s", s.str(bind("raise_exception", c, "message")[0]))
			return nil
		},
		"strftime_now": func(s *state, c *call) any {
			return strftime(s, needText(bind("strftime_now", c, "format")[0]))
		},
	} {
		globals[name] = &builtin{name, f}
	}
}

// makeRange returns range(...).
func makeRange(c *call) any {
	c.noKeywords("range")
	if len(c.pos) == 0 || len(c.pos) > 3 {
		fail("range expected 1 to 3 arguments, got %d", len(c.pos))
	}
	n := [3]int64{0, 0, 1}
	for i, a := range c.pos {
		k, ok := asIndex(a)
		if !ok {
			checkDefined(a, nil)
			fail("'%s' object cannot be interpreted as an integer", typeName(a))
		}
		n[i] = k
	}
	if len(c.pos) == 1 {
		n[0], n[1] = 0, n[0]
	}
	if n[2] == 0 {
		fail("range() arg 3 must not be zero")
	}
	r := &Range{n[0], n[1], n[2]}
	if k := r.length(); k > rangeLimit || k < 0 {
		fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", rangeLimit)
	}
	return r
}

// makeDict returns dict(...).
func makeDict(s *state, c *call) *Dict {
	d := &Dict{}
	if len(c.pos) > 1 {
		fail("dict expected at most 1 argument, got %d", len(c.pos))
	}
	if len(c.pos) == 1 {
		switch from := c.pos[0].(type) {
		case *Dict:
			s.sizeOf(from.Len(), 2*itemSize)
			for i, k := range from.keys {
				d.Set(k, from.values[i])
			}
		default:
			for i, pair := range s.items(from) {
				items := s.items(pair)
				if len(items) != 2 {
					fail("dictionary update sequence element #%d has length %d; 2 is required", i,
						len(items))
				}
				d.Set(items[0], items[1])
			}
		}
	}
	for i, k := range c.kw.keys {
		d.Set(k, c.kw.values[i])
	}
	return d
}

// strftime returns the time of the render in a format of Python's strftime.
func strftime(s *state, format string) any {
	layouts := map[byte]string{'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January",
		'd': "02", 'H': "15", 'I': "03", 'j': "002", 'm': "01", 'M': "04", 'p': "PM", 'S': "05",
		'y': "06", 'Y': "2006", 'D': "01/02/06", 'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04",
		'e': "_2", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05"}
	s.size(len(format))
	t := s.now()
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		plain := format[i] == '-' && i+1 < len(format) // without a zero in front
		if plain {
			i++
		}
		layout, ok := layouts[format[i]]
		text := ""
		switch c := format[i]; {
		case ok:
			text = t.Format(layout)
		case c == '%':
			text = "%"
		case c == 'n':
			text = "\n"
		case c == 't':
			text = "\t"
		case c == 'f' && !plain:
			text = pad(t.Nanosecond()/1000, 6)
		case c == 'w':
			text = strconv.Itoa(int(t.Weekday()))
		case c == 'u':
			text = strconv.Itoa((int(t.Weekday())+6)%7 + 1)
		case c == 'C':
			text = pad(t.Year()/100, 2)
		case c == 's':
			text = strconv.FormatInt(t.Unix(), 10)
		case c == 'U':
			text = pad((t.YearDay()+6-int(t.Weekday()))/7, 2)
		case c == 'W':
			text = pad((t.YearDay()+6-(int(t.Weekday())+6)%7)/7, 2)
		case c == 'V':
			_, week := t.ISOWeek()
			text = pad(week, 2)
		case c == 'G':
			year, _ := t.ISOWeek()
			text = pad(year, 4)
		case c == 'z' || c == 'Z': // datetime.now() has no zone
		default:
			fail("strftime_now: %%%c is not supported", c)
		}
		if plain {
			if ok && strings.ContainsAny(format[i:i+1], "dHIjmMSye") {
				if text = strings.TrimLeft(text, "0 "); text == "" {
					text = "0"
				}
			} else {
				fail("strftime_now: %%-%c is not supported", format[i])
			}
		}
		b.WriteString(text)
	}
	s.size(b.Len())
	return b.String()
}

// pad returns n with leading zeros to a width.
func pad(n, width int) string {
	text := strconv.Itoa(n)
	return strings.Repeat("0", max(width-len(text), 0)) + text
}
