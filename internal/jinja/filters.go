package jinja

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// filter is a filter's function: v is the value before the bar.
type filter func(s *state, v any, c *call) any

// filters are the filters by name. They are set in init, because some look up others here.
var filters map[string]filter

// unmadeFilters are jinja2's other filters.
var unmadeFilters = map[string]bool{"pprint": true, "random": true, "striptags": true,
	"urlize": true, "wordwrap": true, "xmlattr": true}

// softText returns str(v), marked as safe if v is.
func (s *state) softText(v any) any {
	if _, ok := asText(v); ok {
		return v
	}
	return s.str(v)
}

// textFilter returns a filter that calls a method of str.
func textFilter(name, method string, params ...string) filter {
	return func(s *state, v any, c *call) any {
		given := newCall()
		for _, a := range bind(name, c, params...) {
			if a != absent {
				given.pos = append(given.pos, a)
			}
		}
		return stringMethods[method](s, s.softText(v), given)
	}
}

// attributePath returns the steps of an attribute's path, such as a.b.0.
func attributePath(v any) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case string, markup:
		text, _ := asText(v)
		var out []any
		for _, p := range strings.Split(text, ".") {
			if p != "" && !strings.ContainsFunc(p, func(r rune) bool { return !isDigit(r) }) {
				n, err := strconv.ParseInt(p, 10, 64)
				if err != nil {
					fail("the attribute %s is no number", quote(p))
				}
				out = append(out, n)
			} else {
				out = append(out, p)
			}
		}
		return out
	}
	return []any{v}
}

// follow returns the attribute at a path. Undefined steps become otherwise, unless that is nil.
func (s *state) follow(v any, path []any, otherwise any) any {
	for _, p := range path {
		v = s.getItem(v, p)
		if _, ok := v.(*undefined); ok && otherwise != nil {
			v = otherwise
		}
	}
	return v
}

// ignoreCase returns v, in lower case if it is a text.
func (s *state) ignoreCase(v any) any {
	if text, ok := asText(v); ok {
		s.size(len(text))
		return sameKind(v, lower(text))
	}
	return v
}

// keyFunc returns a function from an item to its attribute, in lower case unless caseSensitive.
func (s *state) keyFunc(attr any, caseSensitive bool, otherwise any) func(v any) any {
	path := attributePath(attr)
	return func(v any) any {
		v = s.follow(v, path, otherwise)
		if !caseSensitive {
			v = s.ignoreCase(v)
		}
		return v
	}
}

// sortItems returns sorted(items, key=key, reverse=reverse).
func (s *state) sortItems(items []any, key func(v any) any, reverse bool) []any {
	type pair struct{ key, value any }
	pairs := make([]pair, len(items))
	for i, v := range items {
		pairs[i] = pair{key(v), v}
	}
	s.charge(len(items) * itemSize)
	// Python's sort of the other way round keeps the order of equals
	slices.SortStableFunc(pairs, func(a, b pair) int {
		s.charge(itemSize)
		if reverse {
			a, b = b, a
		}
		switch {
		case s.less(a.key, b.key):
			return -1
		case s.less(b.key, a.key):
			return 1
		}
		return 0
	})
	out := make([]any, len(items))
	for i, p := range pairs {
		out[i] = p.value
	}
	return out
}

// flag returns the truth of an argument, false if it was not given.
func flag(v any) bool { return v != absent && truth(v) }

// orNone returns v, None if it was not given.
func orNone(v any) any { return or(v, nil, func(v any) any { return v }) }

// generator returns a value that stands for a generator of jinja2's filters.
func generator(next func() (any, bool)) any { return &iterator{"generator", next} }

// lazyGenerator returns a generator that starts its work at the first item.
func lazyGenerator(begin func() func() (any, bool)) any {
	var next func() (any, bool)
	return generator(func() (any, bool) {
		if next == nil {
			next = begin()
		}
		return next()
	})
}

// nothing returns no item: it iterates over an empty sequence.
func nothing() (any, bool) { return nil, false }

// choose returns the filter select, reject, selectattr or rejectattr.
func choose(name string, attr, keep bool) filter {
	return func(s *state, v any, c *call) any {
		return lazyGenerator(func() func() (any, bool) {
			if !truth(v) {
				return nothing
			}
			args := c.pos
			var path []any
			if attr {
				if len(args) == 0 {
					fail("%s: Missing parameter for attribute name", name)
				}
				path = attributePath(args[0])
				args = args[1:]
			}
			holds := func(v any) bool { return truth(v) }
			if len(args) > 0 {
				f, ok := tests[tableKey(args[0])]
				if !ok {
					fail("No test named %s.", s.repr(args[0]))
				}
				given := &call{args[1:], c.kw}
				holds = func(v any) bool { return f(s, v, given) }
			}
			next := s.iterate(v)
			return func() (any, bool) {
				for {
					e, ok := next()
					if !ok {
						return nil, false
					}
					s.charge(1)
					if holds(s.follow(e, path, nil)) == keep {
						return e, true
					}
				}
			}
		})
	}
}

// mapFilter implements the filter map.
func mapFilter(s *state, v any, c *call) any {
	return lazyGenerator(func() func() (any, bool) {
		if !truth(v) {
			return nothing
		}
		var f func(v any) any
		if attr, ok := c.kw.Get("attribute"); ok && len(c.pos) == 0 {
			otherwise, _ := c.kw.Get("default")
			for _, k := range c.kw.keys {
				if k != "attribute" && k != "default" {
					fail("Unexpected keyword argument %s", s.repr(k))
				}
			}
			path := attributePath(attr)
			f = func(v any) any { return s.follow(v, path, otherwise) }
		} else {
			if len(c.pos) == 0 {
				fail("map requires a filter argument")
			}
			name := tableKey(c.pos[0])
			g, ok := filters[name]
			if !ok {
				if unmadeFilters[name] {
					fail("the filter '%s' is not supported in chat templates", name)
				}
				fail("No filter named %s.", s.repr(c.pos[0]))
			}
			given := &call{c.pos[1:], c.kw}
			f = func(v any) any { return g(s, v, given) }
		}
		next := s.iterate(v)
		return func() (any, bool) {
			e, ok := next()
			if !ok {
				return nil, false
			}
			s.charge(1)
			return f(e), true
		}
	})
}

// extreme returns the filter min or max.
func extreme(name string, better func(s *state, a, b any) bool) filter {
	return func(s *state, v any, c *call) any {
		a := bind(name, c, "case_sensitive?", "attribute?")
		key := s.keyFunc(orNone(a[1]), flag(a[0]), nil)
		next := s.iterate(v)
		best, ok := next()
		if !ok {
			return &undefined{message: "No aggregated item, sequence was empty."}
		}
		bestKey := key(best)
		for e, ok := next(); ok; e, ok = next() {
			if k := key(e); better(s, k, bestKey) {
				best, bestKey = e, k
			}
		}
		return best
	}
}

// length implements the filter length.
func length(s *state, v any, c *call) any {
	bind("length", c)
	if text, ok := asText(v); ok {
		s.charge(len(text))
	}
	n, ok := count(v)
	if !ok {
		fail("object of type '%s' has no len()", typeName(v))
	}
	return int64(n)
}

// defaultFilter implements the filter default.
func defaultFilter(_ *state, v any, c *call) any {
	a := bind("default", c, "default_value?", "boolean?")
	if _, ok := v.(*undefined); ok || flag(a[1]) && !truth(v) {
		return or(a[0], any(""), func(v any) any { return v })
	}
	return v
}

// escapeFilter implements the filter escape.
func escapeFilter(s *state, v any, c *call) any {
	bind("escape", c)
	return markup(s.html(v))
}

// reverse returns reversed(v); ok is false if Python cannot.
func (s *state) reverse(v any) (any, bool) {
	at := func(n int, item func(i int) any, kind string) (any, bool) {
		return &iterator{kind, func() (any, bool) {
			if s.charge(itemSize); n == 0 {
				return nil, false
			}
			n--
			return item(n), true
		}}, true
	}
	switch v := v.(type) {
	case *List:
		return at(len(v.Items), func(i int) any { return v.Items[i] }, "list_reverseiterator")
	case *Tuple:
		return at(len(v.Items), func(i int) any { return v.Items[i] }, "reversed")
	case *Dict:
		return at(v.Len(), func(i int) any { return v.keys[i] }, "dict_reversekeyiterator")
	case *view:
		return at(v.of.Len(), v.item, "dict_reverseitemiterator")
	case *Range:
		return at(v.length(), func(i int) any { return v.item(i) }, "range_iterator")
	case string, markup:
		items := s.items(v)
		return at(len(items), func(i int) any { return sameKind(v, items[i].(string)) }, "reversed")
	case *undefined:
		return at(0, nil, "reversed")
	}
	return nil, false
}

func init() {
	filters = map[string]filter{
		"abs": func(s *state, v any, c *call) any {
			bind("abs", c)
			switch n := v.(type) {
			case float64:
				return math.Abs(n)
			case bool, int64, *big.Int:
				return intValue(new(big.Int).Abs(asBig(n)))
			}
			checkDefined(v, nil)
			fail("bad operand type for abs(): '%s'", typeName(v))
			return nil
		},
		"attr": func(s *state, v any, c *call) any {
			name := needText(bind("attr", c, "name")[0])
			switch of := v.(type) {
			case *namespace:
				if a, ok := of.attrs.Get(name); ok {
					return a
				}
			default:
				if a, ok := s.attribute(v, name); ok {
					return a
				}
				if u, ok := v.(*undefined); ok {
					u.fail()
				}
			}
			return noAttribute(v, name)
		},
		"batch":      batch,
		"capitalize": textFilter("capitalize", "capitalize"),
		"center": func(s *state, v any, c *call) any {
			width := or(bind("center", c, "width?")[0], any(int64(80)),
				func(v any) any { return v })
			return stringMethods["center"](s, s.softText(v), newCall(width))
		},
		"count":   length,
		"length":  length,
		"d":       defaultFilter,
		"default": defaultFilter,
		"dictsort": func(s *state, v any, c *call) any {
			a := bind("dictsort", c, "case_sensitive?", "by?", "reverse?")
			pos := 0
			switch by := or(a[1], "key", func(v any) string { t, _ := asText(v); return t }); by {
			case "key":
			case "value":
				pos = 1
			default:
				fail(`You can only sort by either "key" or "value"`)
			}
			d, ok := v.(*Dict)
			if !ok {
				checkDefined(v, nil)
				fail("'%s' object has no attribute 'items'", typeName(v))
			}
			pairs := s.items(&view{"items", d})
			return &List{s.sortItems(pairs, func(v any) any {
				k := v.(*Tuple).Items[pos]
				if !flag(a[0]) {
					k = s.ignoreCase(k)
				}
				return k
			}, flag(a[2]))}
		},
		"e":      escapeFilter,
		"escape": escapeFilter,
		"filesizeformat": func(s *state, v any, c *call) any {
			return fileSize(s, v, flag(bind("filesizeformat", c, "binary?")[0]))
		},
		"first": func(s *state, v any, c *call) any {
			bind("first", c)
			if e, ok := s.iterate(v)(); ok {
				return e
			}
			return &undefined{message: "No first item, sequence was empty."}
		},
		"last": func(s *state, v any, c *call) any {
			bind("last", c)
			r, ok := s.reverse(v)
			if !ok {
				fail("'%s' object is not reversible", typeName(v))
			}
			if e, ok := r.(*iterator).next(); ok {
				return e
			}
			return &undefined{message: "No last item, sequence was empty."}
		},
		"float": func(s *state, v any, c *call) any {
			otherwise := or(bind("float", c, "default?")[0], any(0.0),
				func(v any) any { return v })
			if u, ok := v.(*undefined); ok {
				u.fail()
			}
			if f, ok := toFloat(v); ok {
				return f
			}
			return otherwise
		},
		"forceescape": func(s *state, v any, c *call) any {
			bind("forceescape", c)
			return s.escape(s.str(v))
		},
		"format": func(s *state, v any, c *call) any {
			var args any = &Tuple{Items: c.pos}
			if c.kw.Len() > 0 {
				if len(c.pos) > 0 {
					fail("can't handle positional and keyword arguments at the same time")
				}
				args = c.kw
			}
			return s.mod(s.softText(v), args)
		},
		"groupby": groupBy,
		"indent":  indent,
		"int":     toIntFilter,
		"items": func(s *state, v any, c *call) any {
			bind("items", c)
			return lazyGenerator(func() func() (any, bool) {
				switch d := v.(type) {
				case *undefined:
					return nothing
				case *Dict:
					return s.iterate(&view{"items", d})
				}
				fail("Can only get item pairs from a mapping.")
				return nil
			})
		},
		"join": func(s *state, v any, c *call) any {
			a := bind("join", c, "d?", "attribute?")
			sep := or(a[0], "", s.str)
			path := attributePath(orNone(a[1]))
			var parts []string
			for _, e := range s.items(v) {
				parts = append(parts, s.str(s.follow(e, path, nil)))
			}
			return s.join(parts, sep)
		},
		"list": func(s *state, v any, c *call) any {
			bind("list", c)
			return &List{s.items(v)}
		},
		"lower":  textFilter("lower", "lower"),
		"upper":  textFilter("upper", "upper"),
		"map":    mapFilter,
		"max":    extreme("max", func(s *state, a, b any) bool { return s.holds(">", a, b) }),
		"min":    extreme("min", func(s *state, a, b any) bool { return s.less(a, b) }),
		"reject": choose("reject", false, false),
		"select": choose("select", false, true),
		"replace": func(s *state, v any, c *call) any {
			a := bind("replace", c, "old", "new", "count?")
			n := -1
			if a[2] != absent && a[2] != nil {
				n = needInt(a[2])
			}
			return replace(s, s.str(v), s.str(a[0]), s.str(a[1]), n)
		},
		"rejectattr": choose("rejectattr", true, false),
		"selectattr": choose("selectattr", true, true),
		"reverse": func(s *state, v any, c *call) any {
			bind("reverse", c)
			if _, ok := asText(v); ok {
				return s.slice(v, nil, nil, int64(-1))
			}
			if r, ok := s.reverse(v); ok {
				return r
			}
			if !iterable(v) {
				fail("argument must be iterable")
			}
			items := slices.Clone(s.items(v))
			slices.Reverse(items)
			return &List{items}
		},
		"round": round,
		"safe": func(s *state, v any, c *call) any {
			bind("safe", c)
			return markup(s.str(v))
		},
		"slice": sliceFilter,
		"sort": func(s *state, v any, c *call) any {
			a := bind("sort", c, "reverse?", "case_sensitive?", "attribute?")
			var keys []func(v any) any
			attrs := []any{orNone(a[2])}
			if text, ok := asText(attrs[0]); ok {
				attrs = nil
				for _, p := range strings.Split(text, ",") {
					attrs = append(attrs, p)
				}
			}
			for _, attr := range attrs {
				keys = append(keys, s.keyFunc(attr, flag(a[1]), nil))
			}
			return &List{s.sortItems(s.items(v), func(v any) any {
				out := make([]any, len(keys))
				for i, key := range keys {
					out[i] = key(v)
				}
				return &List{out}
			}, flag(a[0]))}
		},
		"string": func(s *state, v any, c *call) any {
			bind("string", c)
			return s.softText(v)
		},
		"sum": func(s *state, v any, c *call) any {
			a := bind("sum", c, "attribute?", "start?")
			path := attributePath(orNone(a[0]))
			total := or(a[1], any(int64(0)), func(v any) any { return v })
			if _, ok := asText(total); ok {
				fail("sum() can't sum strings [use ''.join(seq) instead]")
			}
			next := s.iterate(v)
			for e, ok := next(); ok; e, ok = next() {
				total = s.add(total, s.follow(e, path, nil))
			}
			return total
		},
		"title": func(s *state, v any, c *call) any {
			bind("title", c)
			return titleWords(s.str(v))
		},
		"tojson":    tojson,
		"trim":      textFilter("trim", "strip", "chars?"),
		"truncate":  truncate,
		"unique":    unique,
		"urlencode": urlEncode,
		"wordcount": func(s *state, v any, c *call) any {
			bind("wordcount", c)
			n, in := int64(0), false
			for _, r := range s.str(v) {
				word := r == '_' || isAlnum(r)
				if word && !in {
					n++
				}
				in = word
			}
			return n
		},
	}
}

// titleWords returns a text as jinja2's filter title does: a word starts behind a blank, a hyphen
// or a bracket.
func titleWords(text string) string {
	var b strings.Builder
	begins := true
	word := func(w string) {
		if w != "" {
			n := len(string([]rune(w)[:1]))
			b.WriteString(upper(w[:n]) + lower(w[n:]))
		}
	}
	from := 0
	for i, r := range text {
		between := isSpace(r) || strings.ContainsRune("-({[<", r)
		if between != begins && i > from || i == 0 {
			if !between {
				b.WriteString(text[from:i])
			} else {
				word(text[from:i])
			}
			from = i
		}
		begins = between
	}
	if begins {
		b.WriteString(text[from:])
	} else {
		word(text[from:])
	}
	return b.String()
}

// batch implements the filter batch: items in lists of n.
func batch(s *state, v any, c *call) any {
	a := bind("batch", c, "linecount", "fill_with?")
	fill := orNone(a[1])
	return lazyGenerator(func() func() (any, bool) {
		next := s.iterate(v)
		var held []any
		ended := false
		return func() (any, bool) {
			if ended {
				return nil, false
			}
			for {
				e, ok := next()
				if !ok {
					break
				}
				full := s.equal(int64(len(held)), a[0])
				s.charge(itemSize)
				if full {
					out := held
					held = []any{e}
					return &List{out}, true
				}
				held = append(held, e)
			}
			ended = true
			if len(held) == 0 {
				return nil, false
			}
			if fill != nil && s.holds("<", int64(len(held)), a[0]) {
				n := needInt(a[0]) - len(held)
				s.sizeOf(n, itemSize)
				for range n {
					held = append(held, fill)
				}
			}
			return &List{held}, true
		}
	})
}

// sliceFilter implements the filter slice: items in n lists.
func sliceFilter(s *state, v any, c *call) any {
	a := bind("slice", c, "slices", "fill_with?")
	fill := orNone(a[1])
	return lazyGenerator(func() func() (any, bool) {
		items := s.items(v)
		per, extra := s.divMod("//", int64(len(items)), a[0])
		n := needInt(a[0])
		each, more := needInt(per), needInt(extra)
		offset, k := 0, 0
		return func() (any, bool) {
			if k >= n {
				return nil, false
			}
			start := offset + k*each
			if k < more {
				offset++
			}
			end := offset + (k+1)*each
			s.charge((end - start + 1) * itemSize)
			out := slices.Clone(items[start:end])
			if fill != nil && k >= more {
				out = append(out, fill)
			}
			k++
			return &List{out}, true
		}
	})
}

// groupBy implements the filter groupby.
func groupBy(s *state, v any, c *call) any {
	a := bind("groupby", c, "attribute", "default?", "case_sensitive?")
	otherwise := orNone(a[1])
	key := s.keyFunc(a[0], flag(a[2]), otherwise)
	real := s.keyFunc(a[0], true, otherwise)
	out := &List{}
	var last any
	for _, e := range s.sortItems(s.items(v), key, false) {
		k := key(e)
		if n := len(out.Items); n > 0 && s.same(last, k) {
			l := out.Items[n-1].(*Tuple).Items[1].(*List)
			l.Items = append(l.Items, e)
			continue
		}
		last = k
		out.Items = append(out.Items, &Tuple{Items: []any{real(e), &List{[]any{e}}},
			grouped: true})
	}
	return out
}

// unique implements the filter unique.
func unique(s *state, v any, c *call) any {
	a := bind("unique", c, "case_sensitive?", "attribute?")
	key := s.keyFunc(orNone(a[1]), flag(a[0]), nil)
	return lazyGenerator(func() func() (any, bool) {
		next := s.iterate(v)
		seen := &Dict{}
		return func() (any, bool) {
			for {
				e, ok := next()
				if !ok {
					return nil, false
				}
				s.charge(itemSize)
				k := key(e)
				if _, ok := seen.Get(k); !ok {
					seen.Set(k, nil)
					return e, true
				}
			}
		}
	})
}

// indent implements the filter indent.
func indent(s *state, v any, c *call) any {
	a := bind("indent", c, "width?", "first?", "blank?")
	pad := "    "
	if a[0] != absent {
		text, ok := asText(a[0])
		if !ok {
			n := max(needInt(a[0]), 0)
			s.size(n)
			text = strings.Repeat(" ", n)
		}
		pad = text
	}
	text, ok := asText(v)
	if !ok {
		checkDefined(v, nil)
		fail("indent: needs a str, not %s", typeName(v))
	}
	if _, safe := v.(markup); safe {
		if _, isText := a[0].(string); isText {
			pad = a[0].(string)
		}
	}
	all := lines(text+"\n", false)
	s.sizeOf(len(all), len(pad))
	s.size(len(text) + len(all)*(len(pad)+1))
	var b strings.Builder
	for i, line := range all {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == 0 && flag(a[1]) || i > 0 && (line != "" || flag(a[2])) {
			b.WriteString(pad)
		}
		b.WriteString(line)
	}
	return sameKind(v, b.String())
}

// truncate implements the filter truncate.
func truncate(s *state, v any, c *call) any {
	a := bind("truncate", c, "length?", "killwords?", "end?", "leeway?")
	n := or(a[0], 255, needInt)
	end := or(a[2], "...", needText)
	leeway := 5
	if a[3] != absent && a[3] != nil {
		leeway = needInt(a[3])
	}
	if n < runes(end) || leeway < 0 {
		fail("truncate: expected a length of at least %d and a leeway of at least 0", runes(end))
	}
	if k := length(s, v, newCall()).(int64); k <= int64(n+leeway) {
		return v
	}
	text, ok := asText(v)
	if !ok {
		checkDefined(v, nil)
		fail("truncate: needs a str, not %s", typeName(v))
	}
	cut := text[:offset(text, n-runes(end))]
	if !flag(a[1]) {
		if i := strings.LastIndex(cut, " "); i >= 0 {
			cut = cut[:i]
		}
	}
	return s.add(sameKind(v, cut), or(a[2], any("..."), func(v any) any { return v }))
}

// fileSize implements the filter filesizeformat.
func fileSize(s *state, v any, binary bool) any {
	n, ok := toFloat(v)
	if !ok {
		checkDefined(v, nil)
		fail("could not convert to float: %s", s.repr(v))
	}
	base, units := 1000.0, []string{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"}
	if binary {
		base, units = 1024, []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}
	}
	switch {
	case n == 1:
		return "1 Byte"
	case n < base:
		return strconv.FormatFloat(math.Trunc(n), 'f', 0, 64) + " Bytes"
	}
	unit := base
	for i, name := range units {
		unit *= base
		if n < unit || i == len(units)-1 {
			return strconv.FormatFloat(base*n/unit, 'f', 1, 64) + " " + name
		}
	}
	return nil
}

// urlEncode implements the filter urlencode.
func urlEncode(s *state, v any, c *call) any {
	bind("urlencode", c)
	one := func(v any, safe string) string {
		text := s.str(v)
		s.size(3 * len(text))
		var b strings.Builder
		for i := range len(text) {
			if ch := text[i]; ch < 0x80 && (unicode.IsLetter(rune(ch)) ||
				unicode.IsDigit(rune(ch)) || strings.IndexByte("_.-~"+safe, ch) >= 0) {
				b.WriteByte(ch)
			} else {
				b.WriteString("%" + strings.ToUpper(strconv.FormatInt(int64(ch)+256, 16)[1:]))
			}
		}
		return b.String()
	}
	if _, ok := asText(v); ok || !iterable(v) {
		return one(v, "/")
	}
	if d, ok := v.(*Dict); ok {
		v = &view{"items", d}
	}
	var parts []string
	for _, pair := range s.items(v) {
		kv := s.items(pair)
		if len(kv) != 2 {
			fail("urlencode: expected pairs")
		}
		query := func(v any) string { return strings.ReplaceAll(one(v, ""), "%20", "+") }
		parts = append(parts, query(kv[0])+"="+query(kv[1]))
	}
	return s.join(parts, "&")
}

// round implements the filter round: a half goes to the even neighbour, as in Python.
func round(s *state, v any, c *call) any {
	a := bind("round", c, "precision?", "method?")
	precision := any(int64(0))
	if a[0] != absent {
		precision = a[0]
	}
	method := or(a[1], "common", func(v any) string { t, _ := asText(v); return t })
	switch method {
	case "common":
		n := needInt(precision)
		switch x := v.(type) {
		case float64:
			return roundFloat(x, n)
		case bool, int64, *big.Int:
			return roundInt(s, asBig(x), n)
		}
		checkDefined(v, nil)
		fail("type %s doesn't define __round__ method", typeName(v))
	case "ceil", "floor":
		scale := s.pow(int64(10), precision)
		scaled := s.mul(v, scale)
		if f, ok := scaled.(float64); ok {
			if math.IsNaN(f) || math.IsInf(f, 0) {
				fail("cannot convert float infinity or NaN to integer")
			}
			if method == "ceil" {
				f = math.Ceil(f)
			} else {
				f = math.Floor(f)
			}
			n, _ := new(big.Float).SetFloat64(f).Int(nil)
			scaled = intValue(n)
		} else if asBig(scaled) == nil {
			fail("must be real number, not %s", typeName(scaled))
		}
		return s.div(scaled, scale)
	}
	fail("method must be common, ceil or floor")
	return nil
}

// roundFloat returns round(x, digits).
func roundFloat(x float64, digits int) any {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0) || digits > 323:
		return x
	case digits < -308:
		return math.Copysign(0, x)
	case digits >= 0:
		// the decimal digits of a float are rounded to even where they end in a half exactly
		f, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'f', digits, 64), 64)
		return f
	}
	scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)),
		nil))
	q := new(big.Rat).Quo(new(big.Rat).SetFloat64(x), scale)
	f, _ := new(big.Rat).Mul(new(big.Rat).SetInt(halfEven(q)), scale).Float64()
	if f == 0 {
		f = math.Copysign(0, x)
	}
	return f
}

// halfEven returns the integer next to q, of two the even one.
func halfEven(q *big.Rat) *big.Int {
	n, r := new(big.Int).DivMod(q.Num(), q.Denom(), new(big.Int))
	switch c := r.Lsh(r, 1).Cmp(q.Denom()); {
	case c > 0 || c == 0 && n.Bit(0) == 1:
		n.Add(n, big.NewInt(1))
	}
	return n
}

// roundInt returns round(n, digits).
func roundInt(s *state, n *big.Int, digits int) any {
	if digits >= 0 {
		return intValue(n)
	}
	if digits < -4300 {
		return int64(0)
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)), nil)
	q := new(big.Rat).SetFrac(n, scale)
	return intValue(new(big.Int).Mul(halfEven(q), scale))
}

// toFloat returns float(v); ok is false if that fails.
func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case bool, int64, *big.Int, float64:
		return asFloat(v), true
	case string, markup:
		text, _ := asText(v)
		text = plainNumber(text)
		switch strings.ToLower(strings.TrimLeft(text, "+-")) {
		case "inf", "infinity", "nan":
			if len(text)-len(strings.TrimLeft(text, "+-")) > 1 {
				return 0, false
			}
		default:
			if text == "" || strings.ContainsAny(text, "xXpPiInN") {
				return 0, false
			}
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil && !math.IsInf(f, 0) {
			return 0, false
		}
		return f, true
	}
	return 0, false
}

// plainNumber returns the text of a number without surrounding blanks and inner underscores, with
// digits of other scripts as ASCII; "" if an underscore is not between digits.
func plainNumber(text string) string {
	text = strings.TrimFunc(text, isSpace)
	text = strings.Map(func(r rune) rune {
		if r > 0x7f && unicode.IsDigit(r) { // the digits of other scripts stand in tens
			for zero := r; ; zero-- {
				if !unicode.IsDigit(zero-1) || r-zero == 9 {
					return '0' + (r-zero)%10
				}
			}
		}
		return r
	}, text)
	if strings.Contains(text, "_") {
		for i := range len(text) {
			if text[i] == '_' && (i == 0 || i+1 == len(text) || !decimal(text[i-1]) ||
				!decimal(text[i+1])) {
				return ""
			}
		}
		text = strings.ReplaceAll(text, "_", "")
	}
	return text
}

// toInt returns int(text, base); ok is false if that fails.
func toInt(text string, base int) (any, bool) {
	text = strings.TrimFunc(text, isSpace)
	sign := ""
	if strings.HasPrefix(text, "-") || strings.HasPrefix(text, "+") {
		sign, text = text[:1], text[1:]
	}
	prefix := strings.ToLower(text[:min(2, len(text))])
	for p, b := range map[string]int{"0x": 16, "0o": 8, "0b": 2} {
		if prefix == p && (base == b || base == 0) {
			text, base = strings.TrimPrefix(text[2:], "_"), b
		}
	}
	if base == 0 {
		if strings.Trim(text, "0_") != "" && strings.HasPrefix(text, "0") {
			return nil, false
		}
		base = 10
	}
	if base < 2 || base > 36 {
		return nil, false
	}
	if base == 10 {
		text = plainNumber(text)
	} else {
		if strings.HasPrefix(text, "_") || strings.HasSuffix(text, "_") ||
			strings.Contains(text, "__") {
			return nil, false
		}
		text = strings.ReplaceAll(text, "_", "")
	}
	if text == "" || strings.ContainsAny(text[:1], "+-") || len(text) > 4300 {
		return nil, false
	}
	n, ok := new(big.Int).SetString(sign+text, base)
	if !ok {
		return nil, false
	}
	return intValue(n), true
}

// toIntFilter implements the filter int.
func toIntFilter(s *state, v any, c *call) any {
	a := bind("int", c, "default?", "base?")
	otherwise := or(a[0], any(int64(0)), func(v any) any { return v })
	base := or(a[1], 10, needInt)
	switch x := v.(type) {
	case *undefined:
		x.fail()
	case bool, int64, *big.Int:
		return intValue(asBig(x))
	case string, markup:
		text, _ := asText(x)
		s.charge(len(text))
		if n, ok := toInt(text, base); ok {
			return n
		}
	case float64:
		if math.IsInf(x, 0) { // int() overflows, which is not caught
			fail("cannot convert float infinity to integer")
		}
	}
	f, ok := toFloat(v)
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		return otherwise
	}
	n, _ := new(big.Float).SetFloat64(f).Int(nil)
	return intValue(n)
}
