package jinja

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strings"
)

// jsonDepth bounds the nesting of a JSON text.
const jsonDepth = 100

// FromJSON parses a JSON text as Python does: an object keeps the order of its keys, and a number
// is an int if it is written as one.
func FromJSON(text string) (any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	v, err := jsonValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("text after the value")
	}
	return v, nil
}

// jsonValue parses one value.
func jsonValue(d *json.Decoder, depth int) (any, error) {
	if depth > jsonDepth {
		return nil, fmt.Errorf("nested more than %d deep", jsonDepth)
	}
	tok, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch tok := tok.(type) {
	case json.Number:
		if strings.Trim(tok.String(), "-0123456789") == "" {
			n, ok := new(big.Int).SetString(tok.String(), 10)
			if !ok || n.BitLen() > intLimit {
				return nil, errors.New("an int of more than 4300 digits")
			}
			return intValue(n), nil
		}
		return tok.Float64()
	case json.Delim:
		if tok == '[' {
			out := &List{Items: []any{}}
			for d.More() {
				v, err := jsonValue(d, depth+1)
				if err != nil {
					return nil, err
				}
				out.Items = append(out.Items, v)
			}
			_, err := d.Token()
			return out, err
		}
		out := &Dict{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := jsonValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			out.Set(key, v)
		}
		_, err := d.Token()
		return out, err
	}
	return tok, nil
}

// ToJSON returns json.dumps(value, ensure_ascii=False).
func ToJSON(v any) (text string, err error) {
	defer func() {
		if f, ok := recover().(failure); ok {
			err = errors.New(f.message)
		}
	}()
	s := &state{limits: Limits{Steps: math.MaxInt, Depth: jsonDepth, Text: math.MaxInt,
		Work: math.MaxInt}}
	return s.dumps(v, jsonStyle{item: ", ", key: ": "}), nil
}

// jsonStyle is the settings of json.dumps.
type jsonStyle struct {
	ascii, sorted, lines bool
	indent, item, key    string
}

// tojson implements the filter tojson, with transformers' arguments.
func tojson(s *state, v any, c *call) any {
	a := bind("tojson", c, "ensure_ascii?", "indent?", "separators?", "sort_keys?")
	set := func(v any) bool { return v != absent && v != nil }
	st := jsonStyle{item: ", ", key: ": ", ascii: a[0] != absent && truth(a[0]),
		sorted: a[3] != absent && truth(a[3])}
	if set(a[1]) {
		st.lines, st.item = true, ","
		if text, ok := asText(a[1]); ok {
			st.indent = text
		} else {
			n := max(needInt(a[1]), 0)
			s.size(n)
			st.indent = strings.Repeat(" ", n)
		}
	}
	if set(a[2]) {
		pair := s.items(a[2])
		if len(pair) != 2 {
			fail("tojson: separators: expected two texts")
		}
		st.item, st.key = needText(pair[0]), needText(pair[1])
	}
	return s.dumps(v, st)
}

// dumps returns a value as JSON.
func (s *state) dumps(v any, st jsonStyle) string {
	w := &writer{s: s}
	w.json(v, st, "\n")
	return w.String()
}

// json writes v; line is the line break and indentation of its level.
func (w *writer) json(v any, st jsonStyle, line string) {
	sequence := func(open, end string, n int, item func(i int)) {
		w.put(open)
		if n == 0 {
			w.put(end)
			return
		}
		w.s.inner()
		for i := range n {
			if i > 0 {
				w.put(st.item)
			}
			if st.lines {
				w.put(line + st.indent)
			}
			item(i)
		}
		w.s.outer()
		if st.lines {
			w.put(line)
		}
		w.put(end)
	}
	list := func(items []any) {
		sequence("[", "]", len(items), func(i int) { w.json(items[i], st, line+st.indent) })
	}
	switch v := v.(type) {
	case nil:
		w.put("null")
	case bool:
		w.put(jsonBool(v))
	case int64, *big.Int:
		w.repr(v)
	case float64:
		w.put(jsonFloat(v))
	case string:
		w.put(jsonText(v, st.ascii))
	case markup:
		w.put(jsonText(string(v), st.ascii))
	case *List:
		list(v.Items)
	case *Tuple:
		list(v.Items)
	case *Dict:
		order := make([]int, v.Len())
		for i := range order {
			order[i] = i
		}
		if st.sorted {
			slices.SortStableFunc(order, func(a, b int) int {
				c, _ := w.s.compare(v.keys[a], v.keys[b], "<")
				return c
			})
		}
		sequence("{", "}", v.Len(), func(i int) {
			i = order[i]
			key := ""
			switch k := v.keys[i].(type) {
			case string:
				key = k
			case markup:
				key = string(k)
			case nil:
				key = "null"
			case bool:
				key = jsonBool(k)
			case float64:
				key = jsonFloat(k)
			case int64, *big.Int:
				key = w.s.repr(k)
			default:
				fail("keys must be str, int, float, bool or None, not %s", typeName(k))
			}
			w.put(jsonText(key, st.ascii))
			w.put(st.key)
			w.json(v.values[i], st, line+st.indent)
		})
	default:
		fail("Object of type %s is not JSON serializable", typeName(v))
	}
}

func jsonBool(v bool) string {
	if v {
		return "true"
	}
	return "false"
}

func jsonFloat(v float64) string {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "Infinity"
	case math.IsInf(v, -1):
		return "-Infinity"
	}
	return floatRepr(v)
}

// jsonText returns a text as a JSON string.
func jsonText(text string, onlyASCII bool) string {
	var b strings.Builder
	b.Grow(len(text) + 2)
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < 0x20 || onlyASCII && r >= 0x7f && r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		case onlyASCII && r >= 0x10000:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
