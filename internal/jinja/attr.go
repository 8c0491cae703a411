package jinja

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// noAttribute returns the undefined value of an attribute that v does not have.
func noAttribute(v any, name string) any {
	return &undefined{message: "'" + description(v) + "' has no attribute " + quote(name)}
}

// description returns v's type as Python's messages write it.
func description(v any) string {
	switch v.(type) {
	case nil:
		return "None"
	}
	return typeName(v) + " object"
}

// unsafeAttribute returns the undefined value of an attribute that the sandbox denies.
func unsafeAttribute(v any, name string) any {
	return &undefined{message: "access to attribute " + quote(name) + " of " +
		quote(typeName(v)) + " object is unsafe.", unsafe: true}
}

// dunders are the attributes of every Python object.
var dunders = map[string]bool{}

func init() {
	for _, name := range strings.Fields("class delattr dir doc eq format ge getattribute " +
		"getstate gt hash init init_subclass le lt module ne new reduce reduce_ex repr setattr " +
		"sizeof slots str subclasshook") {
		dunders["__"+name+"__"] = true
	}
}

// getAttr returns v.name: an attribute or a method, else an item.
func (s *state) getAttr(v any, name string) any {
	s.charge(1)
	if u, ok := v.(*undefined); ok {
		if dunders[name] {
			return unsafeAttribute(v, name)
		}
		u.fail()
	}
	if n, ok := v.(*namespace); ok {
		if a, ok := n.attrs.Get(name); ok {
			return a
		}
		return noAttribute(v, name)
	}
	if a, ok := s.attribute(v, name); ok {
		return a
	}
	if d, ok := v.(*Dict); ok {
		if e, ok := d.Get(name); ok {
			return e
		}
	}
	return noAttribute(v, name)
}

// attribute returns the attribute of that name of the Python object that v stands for.
func (s *state) attribute(v any, name string) (any, bool) {
	if dunders[name] {
		return unsafeAttribute(v, name), true
	}
	switch v := v.(type) {
	case *Dict:
		if f, ok := dictMethods[name]; ok {
			return method(name, v, f), true
		}
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update":
			return unsafeAttribute(v, name), true
		case "fromkeys":
			return unmadeAttribute(v, name), true
		}
	case string, markup:
		if f, ok := stringMethods[name]; ok {
			return method(name, v, f), true
		}
		switch name {
		case "encode", "translate", "maketrans":
			return unmadeAttribute(v, name), true
		case "unescape", "striptags":
			if _, ok := v.(markup); ok {
				return unmadeAttribute(v, name), true
			}
		}
	case *List:
		if f, ok := sequenceMethods[name]; ok {
			return method(name, v, f), true
		}
		switch name {
		case "copy":
			return method(name, v, func(s *state, of any, c *call) any {
				bind(name, c)
				return &List{of.(*List).Items}
			}), true
		case "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove":
			return unsafeAttribute(v, name), true
		}
	case *Tuple:
		if f, ok := sequenceMethods[name]; ok {
			return method(name, v, f), true
		}
		if v.grouped {
			switch name {
			case "grouper":
				return v.Items[0], true
			case "list":
				return v.Items[1], true
			}
		}
	case *Range:
		switch name {
		case "start":
			return v.start, true
		case "stop":
			return v.stop, true
		case "step":
			return v.step, true
		}
		if f, ok := sequenceMethods[name]; ok {
			return method(name, v, f), true
		}
	case bool, int64, *big.Int:
		switch name {
		case "real", "numerator":
			return intValue(asBig(v)), true
		case "imag":
			return int64(0), true
		case "denominator":
			return int64(1), true
		case "bit_length":
			return method(name, v, func(_ *state, of any, c *call) any {
				bind(name, c)
				return int64(asBig(of).BitLen())
			}), true
		case "bit_count", "conjugate", "to_bytes", "from_bytes", "as_integer_ratio":
			return unmadeAttribute(v, name), true
		}
	case float64:
		switch name {
		case "real":
			return v, true
		case "imag":
			return 0.0, true
		case "is_integer":
			return method(name, v, func(_ *state, of any, c *call) any {
				bind(name, c)
				return v == math.Trunc(v) && !math.IsInf(v, 0)
			}), true
		case "conjugate", "as_integer_ratio", "hex", "fromhex":
			return unmadeAttribute(v, name), true
		}
	case *view:
		switch name {
		case "isdisjoint", "mapping":
			return unmadeAttribute(v, name), true
		}
	case *iterator:
		switch name {
		case "send", "throw", "close":
			return unmadeAttribute(v, name), true
		}
	case *macro:
		switch name {
		case "name":
			if v.name == "" {
				return nil, true
			}
			return v.name, true
		case "arguments":
			t := &Tuple{}
			for _, p := range v.f.params {
				t.Items = append(t.Items, p.name)
			}
			return t, true
		case "catch_kwargs":
			return v.f.uses["kwargs"], true
		case "catch_varargs":
			return v.f.uses["varargs"], true
		case "caller":
			return v.f.uses["caller"], true
		case "explicit_caller":
			return v.f.param("caller") >= 0, true
		}
	case *loop:
		return v.attribute(name)
	case *cycler:
		switch name {
		case "current":
			return v.items[v.pos], true
		case "pos":
			return int64(v.pos), true
		case "items":
			return &Tuple{Items: v.items}, true
		case "next":
			return &builtin{name, func(_ *state, c *call) any {
				bind(name, c)
				e := v.items[v.pos]
				v.pos = (v.pos + 1) % len(v.items)
				return e
			}}, true
		case "reset":
			return &builtin{name, func(_ *state, c *call) any {
				bind(name, c)
				v.pos = 0
				return nil
			}}, true
		}
	case *joiner:
		switch name {
		case "sep":
			return v.sep, true
		case "used":
			return v.used, true
		}
	}
	return nil, false
}

// unmadeAttribute fails for an attribute that this package does not implement.
func unmadeAttribute(v any, name string) any {
	fail("the attribute '%s' of %s is not supported in chat templates", name, typeName(v))
	return nil
}

// method returns f as a function bound to the value of.
func method(name string, of any, f func(s *state, of any, c *call) any) *builtin {
	return &builtin{name, func(s *state, c *call) any { return f(s, of, c) }}
}

// attribute returns loop.name.
func (l *loop) attribute(name string) (any, bool) {
	switch name {
	case "index":
		return int64(l.index0 + 1), true
	case "index0":
		return int64(l.index0), true
	case "length":
		return int64(l.count()), true
	case "revindex":
		return int64(l.count() - l.index0), true
	case "revindex0":
		return int64(l.count() - l.index0 - 1), true
	case "first":
		return l.index0 == 0, true
	case "last":
		_, more := l.peek()
		return !more, true
	case "depth":
		return int64(l.depth0 + 1), true
	case "depth0":
		return int64(l.depth0), true
	case "previtem":
		if l.index0 == 0 {
			return &undefined{message: "there is no previous item"}, true
		}
		return l.before, true
	case "nextitem":
		if v, ok := l.peek(); ok {
			return v, true
		}
		return &undefined{message: "there is no next item"}, true
	case "cycle":
		return &builtin{name, func(_ *state, c *call) any {
			c.noKeywords(name)
			if len(c.pos) == 0 {
				fail("no items for cycling given")
			}
			return c.pos[l.index0%len(c.pos)]
		}}, true
	case "changed":
		return &builtin{name, func(s *state, c *call) any {
			c.noKeywords(name)
			now := &Tuple{Items: c.pos}
			if l.asked && s.equal(l.last, now) {
				return false
			}
			l.last, l.asked = now, true
			return true
		}}, true
	}
	return nil, false
}

// getItem returns v[key]: an item, else an attribute.
func (s *state) getItem(v, key any) any {
	s.charge(1)
	switch of := v.(type) {
	case *undefined:
		of.fail()
	case *Dict:
		if hashable(key) {
			if e, ok := of.Get(key); ok {
				return e
			}
		}
	case *List:
		if e, ok := itemAt(of.Items, key); ok {
			return e
		}
	case *Tuple:
		if e, ok := itemAt(of.Items, key); ok {
			return e
		}
	case *Range:
		if i, ok := asIndex(key); ok {
			if i, ok := normalIndex(i, of.length()); ok {
				return of.item(i)
			}
		}
	case string, markup:
		if i, ok := asIndex(key); ok {
			text, _ := asText(of)
			_, safe := of.(markup)
			s.charge(len(text))
			if i, ok := normalIndex(i, runes(text)); ok {
				from := offset(text, i)
				_, n := utf8.DecodeRuneInString(text[from:])
				return wrap(text[from:from+n], safe)
			}
		}
	}
	if name, ok := asText(key); ok {
		if n, ok := v.(*namespace); ok {
			if a, ok := n.attrs.Get(name); ok {
				return a
			}
		} else if a, ok := s.attribute(v, name); ok {
			return a
		}
		return noAttribute(v, name)
	}
	return &undefined{message: description(v) + " has no element " + s.repr(key)}
}

// normalIndex returns index i of n items counted from 0; ok is false outside.
func normalIndex(i int64, n int) (int, bool) {
	if i < 0 {
		i += int64(n)
	}
	return int(i), i >= 0 && i < int64(n)
}

// itemAt returns items[key]; ok is false if key is not an index of them.
func itemAt(items []any, key any) (any, bool) {
	i, ok := asIndex(key)
	if !ok {
		return nil, false
	}
	k, ok := normalIndex(i, len(items))
	if !ok {
		return nil, false
	}
	return items[k], true
}

// offset returns the byte at which the i-th code point of a text starts.
func offset(text string, i int) int {
	if ascii(text) {
		return min(i, len(text))
	}
	for at := range text {
		if i == 0 {
			return at
		}
		i--
	}
	return len(text)
}

// span returns the bounds of a slice of n items by Python's rules.
func span(start, stop, step any, n int) (from, to, by int) {
	bound := func(v any, otherwise int64) int64 {
		if v == nil {
			return otherwise
		}
		i, ok := asIndex(v)
		if !ok {
			fail("slice indices must be integers or None or have an __index__ method")
		}
		return i
	}
	by64 := bound(step, 1)
	if by64 == 0 {
		fail("slice step cannot be zero")
	}
	clamp := func(i int64, low, high int64) int64 {
		if i < 0 {
			i += int64(n)
		}
		return max(low, min(i, high))
	}
	size := int64(n)
	if by64 > 0 {
		from = int(clamp(bound(start, 0), 0, size))
		to = int(clamp(bound(stop, size), 0, size))
	} else {
		from, to = n-1, -1
		if start != nil {
			from = int(clamp(bound(start, 0), -1, size-1))
		}
		if stop != nil {
			to = int(clamp(bound(stop, 0), -1, size-1))
		}
	}
	return from, to, int(max(min(by64, size+1), -size-1))
}

// slice returns v[start:stop:step].
func (s *state) slice(v, start, stop, step any) any {
	switch of := v.(type) {
	case *undefined:
		of.fail()
	case *List:
		return &List{s.cut(of.Items, start, stop, step)}
	case *Tuple:
		return &Tuple{Items: s.cut(of.Items, start, stop, step)}
	case *Range:
		from, to, by := span(start, stop, step, of.length())
		return &Range{of.item(from), of.item(to), of.step * int64(by)}
	case string, markup:
		text, _ := asText(of)
		_, safe := of.(markup)
		s.size(len(text))
		from, to, by := span(start, stop, step, runes(text))
		if by == 1 {
			if from >= to {
				return wrap("", safe)
			}
			begin := offset(text, from)
			return wrap(text[begin:begin+offset(text[begin:], to-from)], safe)
		}
		all := []rune(text)
		var b strings.Builder
		for i := from; by > 0 && i < to || by < 0 && i > to; i += by {
			b.WriteRune(all[i])
		}
		return wrap(b.String(), safe)
	}
	fail("'%s' object cannot be sliced", typeName(v))
	return nil
}

// cut returns items[start:stop:step].
func (s *state) cut(items []any, start, stop, step any) []any {
	from, to, by := span(start, stop, step, len(items))
	if by == 1 {
		s.charge(1)
		return items[from:max(from, to):max(from, to)]
	}
	s.charge(len(items) * itemSize)
	out := []any{}
	for i := from; by > 0 && i < to || by < 0 && i > to; i += by {
		out = append(out, items[i])
	}
	return out
}
