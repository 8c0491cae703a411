package jinja

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A value is one of these:
//
//	nil                None
//	bool, float64      bool, float
//	int64, *big.Int    int; a *big.Int is one that no int64 holds
//	string, markup     str, Markup
//	*List, *Tuple, *Dict, *Range, *view
//	*undefined, *namespace, *iterator, *loop, *macro, *builtin, *cycler, *joiner

// markup is a str that is marked as safe.
type markup string

// List is Python's list. A template cannot change one.
type List struct{ Items []any }

// Tuple is Python's tuple.
type Tuple struct {
	Items   []any
	grouped bool // of the filter groupby: it has the attributes grouper and list
}

// Range is Python's range.
type Range struct{ start, stop, step int64 }

// NewList returns a list of items.
func NewList(items ...any) *List { return &List{items} }

// Dict is Python's dict: it keeps the order of insertion.
type Dict struct {
	keys, values []any
	index        map[any]int // by hash key; nil in a small dict
}

// NewDict returns a dict of keys and values in turn.
func NewDict(keysAndValues ...any) *Dict {
	d := &Dict{}
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Set(keysAndValues[i], keysAndValues[i+1])
	}
	return d
}

// smallDict is the number of keys up to which a dict is searched linearly.
const smallDict = 8

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// At returns the i-th key and its value.
func (d *Dict) At(i int) (key, value any) { return d.keys[i], d.values[i] }

// Get returns the value of a key.
func (d *Dict) Get(key any) (any, bool) {
	if i := d.find(key); i >= 0 {
		return d.values[i], true
	}
	return nil, false
}

// Set sets the value of a key; a new key comes last. An int becomes an int64. It fails for a key
// without a hash.
func (d *Dict) Set(key, value any) {
	if n, ok := key.(int); ok {
		key = int64(n)
	}
	if n, ok := value.(int); ok {
		value = int64(n)
	}
	if i := d.find(key); i >= 0 {
		d.values[i] = value
		return
	}
	d.keys, d.values = append(d.keys, key), append(d.values, value)
	if d.index != nil {
		d.index[hashKey(key)] = len(d.keys) - 1
	} else if len(d.keys) > smallDict {
		d.index = make(map[any]int, 2*len(d.keys))
		for i, k := range d.keys {
			d.index[hashKey(k)] = i
		}
	}
}

// find returns the index of a key, or -1.
func (d *Dict) find(key any) int {
	if d.index != nil {
		if i, ok := d.index[hashKey(key)]; ok {
			return i
		}
		return -1
	}
	if text, ok := key.(string); ok { // nearly always
		for i, k := range d.keys {
			if k, ok := k.(string); ok && k == text {
				return i
			}
		}
		key = markup(text)
	}
	h := hashKey(key)
	for i, k := range d.keys {
		if hashKey(k) == h {
			return i
		}
	}
	return -1
}

// hashedTuple is the hash key of a tuple, a large int or a range.
type hashedTuple string

// hashKey returns a key's value in an index: equal for keys that are equal in Python.
func hashKey(key any) any {
	switch k := key.(type) {
	case nil, string, int64, *undefined, *namespace, *macro, *iterator, *loop, *builtin, *cycler,
		*joiner:
		if _, ok := k.(*undefined); ok {
			return (*undefined)(nil)
		}
		return k
	case bool:
		return truthInt(k)
	case markup:
		return string(k)
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<62 {
			return int64(k)
		}
		return k
	case *big.Int:
		return hashedTuple("int " + k.String())
	case *Tuple:
		var b strings.Builder
		for _, e := range k.Items {
			h := hashKey(e)
			text := fmt.Sprintf("%T %v", h, h)
			fmt.Fprintf(&b, "%d:%s,", len(text), text)
		}
		return hashedTuple(b.String())
	case *Range:
		return hashedTuple(fmt.Sprint("range ", k.length(), k.start, k.step))
	}
	fail("unhashable type: '%s'", typeName(key))
	return nil
}

// hashable reports whether a value can be a key.
func hashable(v any) bool {
	switch v := v.(type) {
	case *List, *Dict, *view:
		return false
	case *Tuple:
		return !slices.ContainsFunc(v.Items, func(e any) bool { return !hashable(e) })
	}
	return true
}

// namespace is the value of namespace(), the only one that a template can change.
type namespace struct{ attrs *Dict }

// undefined is a value that does not exist.
type undefined struct {
	message string
	unsafe  bool
}

// fail ends the render with the name that is undefined.
func (u *undefined) fail() { fail("%s", u.message) }

// iterator is a value that can be iterated once: a generator, or an iterator of Python.
type iterator struct {
	kind string
	next func() (any, bool)
}

// view is dict.keys(), dict.values() or dict.items().
type view struct {
	kind string // keys, values, items
	of   *Dict
}

// item returns the i-th item.
func (v *view) item(i int) any {
	switch v.kind {
	case "keys":
		return v.of.keys[i]
	case "values":
		return v.of.values[i]
	}
	return &Tuple{Items: []any{v.of.keys[i], v.of.values[i]}}
}

// builtin is a function or a method of Python.
type builtin struct {
	name string
	call func(s *state, c *call) any
}

// length returns the number of numbers in r.
func (r *Range) length() int {
	switch {
	case r.step > 0 && r.start < r.stop:
		return int((uint64(r.stop)-uint64(r.start)-1)/uint64(r.step)) + 1
	case r.step < 0 && r.start > r.stop:
		return int((uint64(r.start)-uint64(r.stop)-1)/(-uint64(r.step))) + 1
	}
	return 0
}

// item returns the i-th number.
func (r *Range) item(i int) int64 { return r.start + int64(i)*r.step }

// fromGo returns a caller's int as int64, and any other value unchanged.
func fromGo(v any) any {
	if n, ok := v.(int); ok {
		return int64(n)
	}
	return v
}

// typeName returns the name of a value's type in Python's messages.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case markup:
		return "Markup"
	case *List:
		return "list"
	case *Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case *Range:
		return "range"
	case *view:
		return "dict_" + v.kind
	case *undefined:
		return "Undefined"
	case *namespace:
		return "TemplateNamespace"
	case *iterator:
		return v.kind
	case *loop:
		return "LoopContext"
	case *macro:
		return "Macro"
	case *cycler:
		return "Cycler"
	case *joiner:
		return "Joiner"
	}
	return "function"
}

func truthInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// truth returns bool(v).
func truth(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Tuple:
		return len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	case *Range:
		return v.length() > 0
	case *view:
		return v.of.Len() > 0
	case *loop:
		return v.count() > 0
	case *undefined:
		return false
	}
	return true
}

// asText returns a str's text.
func asText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case markup:
		return string(v), true
	}
	return "", false
}

// asIndex returns a value that Python takes for an index: an int or a bool. An int beyond int64
// becomes the nearest int64.
func asIndex(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		return truthInt(v), true
	case *big.Int:
		if v.Sign() < 0 {
			return math.MinInt64, true
		}
		return math.MaxInt64, true
	}
	return 0, false
}

// equal returns a == b.
func (s *state) equal(a, b any) bool {
	s.charge(1)
	switch x := a.(type) {
	case nil:
		return b == nil
	case string, markup:
		x1, _ := asText(x)
		y, ok := asText(b)
		s.charge(min(len(x1), len(y)))
		return ok && x1 == y
	case bool, int64, *big.Int, float64:
		if !isNumber(b) {
			return false
		}
		c, ok := compareNumbers(a, b)
		return ok && c == 0
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case *List:
		y, ok := b.(*List)
		return ok && s.equalItems(x.Items, y.Items)
	case *Tuple:
		y, ok := b.(*Tuple)
		return ok && s.equalItems(x.Items, y.Items)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x.Len() != y.Len() {
			return false
		}
		s.inner()
		defer s.outer()
		for i, k := range x.keys {
			v, ok := y.Get(k)
			if !ok || !s.same(x.values[i], v) {
				return false
			}
		}
		return true
	case *Range:
		y, ok := b.(*Range)
		return ok && x.length() == y.length() && (x.length() == 0 || x.start == y.start &&
			(x.length() == 1 || x.step == y.step))
	case *view:
		y, ok := b.(*view)
		if !ok || x.kind == "values" || y.kind == "values" {
			return a == b
		}
		if x.of.Len() != y.of.Len() {
			return false
		}
		for i := range x.of.keys {
			if !s.contains(x.item(i), y) {
				return false
			}
		}
		return true
	}
	return a == b
}

// same returns a is b or a == b, the comparison of Python's containers.
func (s *state) same(a, b any) bool {
	if x, ok := a.(float64); ok && math.IsNaN(x) {
		y, ok := b.(float64)
		return ok && math.IsNaN(y)
	}
	return s.equal(a, b)
}

// equalItems reports whether two lists have the same items.
func (s *state) equalItems(x, y []any) bool {
	if len(x) != len(y) {
		return false
	}
	s.inner()
	defer s.outer()
	for i := range x {
		if !s.same(x[i], y[i]) {
			return false
		}
	}
	return true
}

// compare orders a and b for an operator of Python, and fails for values without an order. ok is
// false for NaN.
func (s *state) compare(a, b any, op string) (c int, ok bool) {
	s.charge(1)
	if u, ok := a.(*undefined); ok {
		u.fail()
	}
	if u, ok := b.(*undefined); ok {
		u.fail()
	}
	if isNumber(a) && isNumber(b) {
		return compareNumbers(a, b)
	}
	if x, ok := asText(a); ok {
		if y, ok := asText(b); ok {
			s.charge(min(len(x), len(y)))
			return strings.Compare(x, y), true
		}
	}
	switch x := a.(type) {
	case *List:
		if y, ok := b.(*List); ok {
			return s.compareItems(x.Items, y.Items, op)
		}
	case *Tuple:
		if y, ok := b.(*Tuple); ok {
			return s.compareItems(x.Items, y.Items, op)
		}
	case *view:
		if _, ok := b.(*view); ok {
			fail("'%s' of two views of dicts is not supported in chat templates", op)
		}
	}
	fail("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	return 0, false
}

// compareItems orders two lists by their first different items.
func (s *state) compareItems(x, y []any, op string) (int, bool) {
	s.inner()
	defer s.outer()
	for i := range min(len(x), len(y)) {
		if !s.same(x[i], y[i]) {
			return s.compare(x[i], y[i], op)
		}
	}
	return len(x) - len(y), true
}

// less returns a < b.
func (s *state) less(a, b any) bool {
	c, ok := s.compare(a, b, "<")
	return ok && c < 0
}

func isNumber(v any) bool {
	switch v.(type) {
	case bool, int64, *big.Int, float64:
		return true
	}
	return false
}

// compareNumbers orders two numbers exactly, without rounding; ok is false for NaN.
func compareNumbers(a, b any) (c int, ok bool) {
	if x, ok := asSmall(a); ok {
		if y, ok := asSmall(b); ok {
			return order(x < y, x > y), true
		}
	}
	x, xf := a.(float64)
	y, yf := b.(float64)
	switch {
	case xf && yf:
		return order(x < y, x > y), !math.IsNaN(x) && !math.IsNaN(y)
	case xf:
		c, ok := compareFloat(x, asBig(b))
		return c, ok
	case yf:
		c, ok := compareFloat(y, asBig(a))
		return -c, ok
	}
	return asBig(a).Cmp(asBig(b)), true
}

// order returns -1, 1 or 0.
func order(less, more bool) int {
	switch {
	case less:
		return -1
	case more:
		return 1
	}
	return 0
}

// compareFloat orders a float and an int exactly; ok is false for NaN.
func compareFloat(x float64, n *big.Int) (int, bool) {
	switch {
	case math.IsNaN(x):
		return 0, false
	case math.IsInf(x, 0):
		return order(x < 0, x > 0), true
	}
	return new(big.Rat).SetFloat64(x).Cmp(new(big.Rat).SetInt(n)), true
}

// contains returns a in b.
func (s *state) contains(a, b any) bool {
	switch c := b.(type) {
	case string, markup:
		text, _ := asText(c)
		part, ok := asText(a)
		if !ok {
			fail("'in <string>' requires string as left operand, not %s", typeName(a))
		}
		s.charge(len(text))
		return strings.Contains(text, part)
	case *Dict:
		_, ok := c.Get(a)
		s.charge(1)
		return ok
	case *Range:
		n, ok := asSmall(a)
		if f, isFloat := a.(float64); isFloat && f == math.Trunc(f) && math.Abs(f) < 1<<62 {
			n, ok = int64(f), true
		}
		if !ok || c.length() == 0 {
			return false
		}
		last := c.item(c.length() - 1)
		return n >= min(c.start, last) && n <= max(c.start, last) && (n-c.start)%c.step == 0
	case *view:
		switch c.kind {
		case "keys":
			return s.contains(a, c.of)
		case "items":
			pair, ok := a.(*Tuple)
			if !ok || len(pair.Items) != 2 {
				return false
			}
			v, ok := c.of.Get(pair.Items[0])
			return ok && s.same(v, pair.Items[1])
		}
	case *namespace, nil, bool, int64, float64, *big.Int, *macro, *builtin, *cycler, *joiner:
		fail("argument of type '%s' is not iterable", typeName(b))
	}
	next := s.iterate(b)
	for v, ok := next(); ok; v, ok = next() {
		if s.same(v, a) {
			return true
		}
	}
	return false
}

// iterable reports whether iter(v) works.
func iterable(v any) bool {
	switch v.(type) {
	case string, markup, *List, *Tuple, *Dict, *Range, *view, *undefined, *iterator, *loop:
		return true
	}
	return false
}

// iterate returns a function that returns the items of v one by one.
func (s *state) iterate(v any) func() (any, bool) {
	i := 0
	list := func(items []any) func() (any, bool) {
		return func() (any, bool) {
			if s.charge(itemSize); i >= len(items) {
				return nil, false
			}
			i++
			return items[i-1], true
		}
	}
	switch v := v.(type) {
	case *List:
		return list(v.Items)
	case *Tuple:
		return list(v.Items)
	case *Dict:
		return list(v.keys)
	case string:
		return s.characters(v)
	case markup: // whose characters are plain
		return s.characters(string(v))
	case *Range:
		n := v.length()
		return func() (any, bool) {
			if s.charge(itemSize); i >= n {
				return nil, false
			}
			i++
			return v.item(i - 1), true
		}
	case *view:
		return func() (any, bool) {
			if s.charge(itemSize); i >= v.of.Len() {
				return nil, false
			}
			i++
			return v.item(i - 1), true
		}
	case *iterator:
		return v.next
	case *loop:
		return func() (any, bool) {
			item, ok := v.step()
			if !ok {
				return nil, false
			}
			return &Tuple{Items: []any{item, v}}, true
		}
	case *undefined:
		return func() (any, bool) { return nil, false }
	}
	fail("'%s' object is not iterable", typeName(v))
	return nil
}

// characters returns a function that returns the characters of a text one by one.
func (s *state) characters(text string) func() (any, bool) {
	i := 0
	return func() (any, bool) {
		if s.charge(itemSize); i >= len(text) {
			return nil, false
		}
		_, n := utf8.DecodeRuneInString(text[i:])
		i += n
		return text[i-n : i], true
	}
}

// wrap returns a text, marked as safe or not.
func wrap(text string, safe bool) any {
	if safe {
		return markup(text)
	}
	return text
}

// items returns list(v).
func (s *state) items(v any) []any {
	switch v := v.(type) {
	case *List:
		s.sizeOf(len(v.Items), itemSize)
		return v.Items
	case *Tuple:
		s.sizeOf(len(v.Items), itemSize)
		return v.Items
	case *Dict:
		s.sizeOf(len(v.keys), itemSize)
		return v.keys
	case string, markup:
		text, _ := asText(v)
		s.sizeOf(len(text), itemSize)
	}
	var out []any
	next := s.iterate(v)
	for e, ok := next(); ok; e, ok = next() {
		if out = append(out, e); len(out)*itemSize > s.limits.Text {
			s.size(len(out) * itemSize)
		}
	}
	s.charge(len(out) * itemSize)
	return out
}

// count returns len(v); ok is false if Python has none.
func count(v any) (n int, ok bool) {
	switch v := v.(type) {
	case string:
		return runes(v), true
	case markup:
		return runes(string(v)), true
	case *List:
		return len(v.Items), true
	case *Tuple:
		return len(v.Items), true
	case *Dict:
		return v.Len(), true
	case *Range:
		return v.length(), true
	case *view:
		return v.of.Len(), true
	case *loop:
		return v.count(), true
	case *undefined:
		return 0, true
	}
	return 0, false
}

// runes returns the number of code points of a text.
func runes(text string) int { return utf8.RuneCountInString(text) }

// ascii reports whether a text has only ASCII characters.
func ascii(text string) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// str returns str(v).
func (s *state) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case markup:
		return string(v)
	case *undefined:
		return ""
	case int64:
		return strconv.FormatInt(v, 10)
	}
	return s.repr(v)
}

// repr returns repr(v).
func (s *state) repr(v any) string {
	w := &writer{s: s}
	w.repr(v)
	return w.String()
}

// writer builds a text of bounded size.
type writer struct {
	s *state
	strings.Builder
}

// put appends text, and fails beyond the limit.
func (w *writer) put(text string) {
	if w.Len()+len(text) > w.s.limits.Text {
		w.s.size(w.Len() + len(text))
	}
	w.s.charge(1 + len(text))
	w.WriteString(text)
}

// sequence writes n items with commas between them, within open and end.
func (w *writer) sequence(open, end string, n int, item func(i int)) {
	w.s.inner()
	w.put(open)
	for i := range n {
		if i > 0 {
			w.put(", ")
		}
		item(i)
	}
	w.put(end)
	w.s.outer()
}

// repr writes repr(v).
func (w *writer) repr(v any) {
	switch v := v.(type) {
	case nil:
		w.put("None")
	case bool:
		if v {
			w.put("True")
		} else {
			w.put("False")
		}
	case int64:
		w.put(strconv.FormatInt(v, 10))
	case *big.Int:
		w.put(v.String())
	case float64:
		w.put(floatRepr(v))
	case string:
		w.put(quote(v))
	case markup:
		w.put("Markup(" + quote(string(v)) + ")")
	case *List:
		w.sequence("[", "]", len(v.Items), func(i int) { w.repr(v.Items[i]) })
	case *Tuple:
		end := ")"
		if len(v.Items) == 1 {
			end = ",)"
		}
		w.sequence("(", end, len(v.Items), func(i int) { w.repr(v.Items[i]) })
	case *Dict:
		w.dict(v)
	case *namespace:
		w.put("<Namespace ")
		w.dict(v.attrs)
		w.put(">")
	case *view:
		w.sequence("dict_"+v.kind+"([", "])", v.of.Len(), func(i int) { w.repr(v.item(i)) })
	case *Range:
		if v.step == 1 {
			w.put(fmt.Sprintf("range(%d, %d)", v.start, v.stop))
		} else {
			w.put(fmt.Sprintf("range(%d, %d, %d)", v.start, v.stop, v.step))
		}
	case *undefined:
		w.put("Undefined")
	case *macro:
		if v.name == "" {
			w.put("<Macro anonymous>")
		} else {
			w.put("<Macro " + quote(v.name) + ">")
		}
	case *loop:
		w.put(fmt.Sprintf("<LoopContext %d/%d>", v.index0+1, v.count()))
	case *iterator:
		fail("writes a %s as a text, which is its address in memory: use | list", v.kind)
	default:
		fail("writes a %s as a text, which is its address in memory", typeName(v))
	}
}

func (w *writer) dict(d *Dict) {
	w.sequence("{", "}", d.Len(), func(i int) {
		w.repr(d.keys[i])
		w.put(": ")
		w.repr(d.values[i])
	})
}

// floatRepr returns a float as Python writes it: with an exponent below 1e-4 and from 1e16 on.
func floatRepr(x float64) string {
	switch {
	case math.IsNaN(x):
		return "nan"
	case math.IsInf(x, 1):
		return "inf"
	case math.IsInf(x, -1):
		return "-inf"
	}
	format := byte('f')
	if a := math.Abs(x); a != 0 && (a < 1e-4 || a >= 1e16) {
		format = 'e'
	}
	text := strconv.FormatFloat(x, format, -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}

// quote returns the repr of a str.
func quote(text string) string {
	q := byte('\'')
	if strings.Contains(text, "'") && !strings.Contains(text, `"`) {
		q = '"'
	}
	var b strings.Builder
	b.WriteByte(q)
	for _, r := range text {
		switch {
		case r == rune(q) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte(q)
	return b.String()
}

// isSame returns a is b, for values where Python's answer does not depend on their creation.
func isSame(a, b any) bool {
	switch x := a.(type) {
	case string, markup, float64, int64:
		return a == b
	case *big.Int:
		y, ok := b.(*big.Int)
		return ok && x.Cmp(y) == 0
	}
	return a == b
}
