package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// builder makes the nodes of JSON and of one schema.
type builder struct {
	// nodes so far, the last node's id
	made int

	space, str, integer, number, value *node
	object                             *node // any object

	defs map[string]json.RawMessage // definitions of the schema, by reference
	// nodes of the references resolved so far
	refs map[string]*node
	left int // nodes that the schema may still need
}

// node returns a copy of n with an id of its own.
func (b *builder) node(n node) *node {
	b.made++
	n.id = b.made
	return &n
}

// set returns a byte of some ranges, given as pairs (from, to).
func (b *builder) set(ranges ...byte) *node { // pairs: from, to
	var in [256]bool
	for i := 0; i < len(ranges); i += 2 {
		for c := int(ranges[i]); c <= int(ranges[i+1]); c++ {
			in[c] = true
		}
	}
	return b.node(node{bytes: &in})
}

func (b *builder) seq(n ...*node) *node { return b.node(node{seq: append([]*node{}, n...)}) }
func (b *builder) alt(n ...*node) *node { return b.node(node{alt: n}) }
func (b *builder) maybe(n *node) *node  { return b.alt(n, b.seq()) }

func (b *builder) text(s string) *node {
	var list []*node
	for _, c := range []byte(s) {
		list = append(list, b.set(c, c))
	}
	return b.seq(list...)
}

// star returns n repeated any number of times.
func (b *builder) star(n *node) *node {
	s := b.node(node{})
	s.alt = []*node{b.seq(n, s), b.seq()}
	return s
}

// maxIndent bounds the indentation between the parts of a value, in blanks. Whitespace is one
// blank, or a line break and an indentation: a model that may repeat blanks without end does so.
const maxIndent = 16

// newBuilder returns a builder with the nodes of JSON (RFC 8259) in UTF-8 (RFC 3629).
func newBuilder() *builder {
	b := &builder{left: 4096}
	indent := b.seq()
	for range maxIndent {
		indent = b.maybe(b.seq(b.set(' ', ' '), indent))
	}
	b.space = b.alt(b.seq(), b.set(' ', ' '), b.seq(b.set('\n', '\n'), indent))
	tail := b.set(0x80, 0xbf)
	hex := b.set('0', '9', 'a', 'f', 'A', 'F')
	char := b.alt(b.set(' ', '!', '#', '[', ']', 0x7f),
		b.seq(b.set('\\', '\\'), b.alt(b.set('"', '"', '\\', '\\', '/', '/', 'b', 'b', 'f', 'f',
			'n', 'n', 'r', 'r', 't', 't'), b.seq(b.set('u', 'u'), hex, hex, hex, hex))),
		b.seq(b.set(0xc2, 0xdf), tail),
		b.seq(b.set(0xe0, 0xe0), b.set(0xa0, 0xbf), tail),
		b.seq(b.set(0xe1, 0xec, 0xee, 0xef), tail, tail),
		b.seq(b.set(0xed, 0xed), b.set(0x80, 0x9f), tail),
		b.seq(b.set(0xf0, 0xf0), b.set(0x90, 0xbf), tail, tail),
		b.seq(b.set(0xf1, 0xf3), tail, tail, tail),
		b.seq(b.set(0xf4, 0xf4), b.set(0x80, 0x8f), tail, tail))
	quote := b.set('"', '"')
	b.str = b.seq(quote, b.star(char), quote)
	digits := b.star(b.set('0', '9'))
	b.integer = b.seq(b.maybe(b.set('-', '-')),
		b.alt(b.set('0', '0'), b.seq(b.set('1', '9'), digits)))
	more := b.seq(b.set('0', '9'), digits)
	b.number = b.seq(b.integer, b.maybe(b.seq(b.set('.', '.'), more)),
		b.maybe(b.seq(b.set('e', 'e', 'E', 'E'), b.maybe(b.set('+', '+', '-', '-')), more)))
	b.value = b.node(node{})
	b.object = b.list('{', '}', b.seq(b.str, b.space, b.set(':', ':'), b.space, b.value))
	b.value.alt = []*node{b.str, b.number, b.object, b.list('[', ']', b.value), b.text("true"),
		b.text("false"), b.text("null")}
	return b
}

// list returns any number of elements with commas between them, within open and end.
func (b *builder) list(open, end byte, element *node) *node {
	rest := b.star(b.seq(b.space, b.set(',', ','), b.space, element))
	return b.seq(b.set(open, open), b.space, b.maybe(b.seq(element, rest, b.space)),
		b.set(end, end))
}

// JSON returns the grammar of a JSON object.
func JSON() (*Grammar, error) {
	b := newBuilder()
	return newGrammar(b.object)
}

// annotations are the keys of a schema that do not restrict a value's form.
var annotations = []string{"title", "description", "default", "examples", "$schema", "$id",
	"$comment", "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "strict"}

// Schema returns the grammar of the values of a JSON schema: type, properties (in the schema's
// order; those not required may be left out; no others follow), required, items, minItems and
// maxItems, enum, const, anyOf, and $ref within the schema. Any other key that restricts a value is
// an error with its name: the grammar would not hold it.
func Schema(text []byte) (*Grammar, error) {
	b := newBuilder()
	b.refs, b.defs = map[string]*node{}, map[string]json.RawMessage{"#": text}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(text, &top); err != nil {
		return nil, errors.New("is no JSON object")
	}
	for _, key := range []string{"$defs", "definitions"} {
		var list map[string]json.RawMessage
		if raw := top[key]; raw != nil && json.Unmarshal(raw, &list) != nil {
			return nil, fmt.Errorf("%s: must be an object", key)
		}
		for name, def := range list {
			b.defs["#/"+key+"/"+name] = def
		}
	}
	n, err := b.ref("#")
	if err != nil {
		return nil, err
	}
	return newGrammar(n)
}

// ref returns the node of a reference, made once, so that a schema may refer to itself.
func (b *builder) ref(to string) (*node, error) {
	if n, ok := b.refs[to]; ok {
		return n, nil
	}
	def, ok := b.defs[to]
	if !ok {
		return nil, fmt.Errorf("$ref %q: only # and #/$defs/NAME are followed", to)
	}
	n := b.node(node{})
	b.refs[to] = n
	of, err := b.schema(def, 0)
	if err != nil {
		return nil, err
	}
	n.alt = []*node{of}
	return n, nil
}

// schema returns the node of a schema at a depth of nesting.
func (b *builder) schema(text json.RawMessage, depth int) (*node, error) {
	if b.left--; b.left < 0 || depth > 32 {
		return nil, errors.New("is too large, or nested too deep")
	}
	switch string(text) {
	case "true":
		return b.value, nil
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(text, &m) != nil || m == nil {
		return nil, errors.New("is no object")
	}
	take := func(key string) json.RawMessage {
		raw := m[key]
		delete(m, key)
		return raw
	}
	for _, key := range annotations {
		delete(m, key)
	}
	var of *node
	var err error
	switch {
	case m["$ref"] != nil:
		var to string
		if json.Unmarshal(take("$ref"), &to) != nil {
			return nil, errors.New("$ref: must be a string")
		}
		of, err = b.ref(to)
	case m["const"] != nil:
		of, err = b.values([]json.RawMessage{take("const")})
		delete(m, "type")
	case m["enum"] != nil:
		var list []json.RawMessage
		if json.Unmarshal(take("enum"), &list) != nil || len(list) == 0 || len(list) > 1000 {
			return nil, errors.New("enum: must be a list of 1 to 1000 values")
		}
		of, err = b.values(list)
		delete(m, "type")
	case m["anyOf"] != nil:
		var list []json.RawMessage
		if json.Unmarshal(take("anyOf"), &list) != nil || len(list) == 0 {
			return nil, errors.New("anyOf: must be a list of schemas")
		}
		of = b.node(node{})
		for i, s := range list {
			n, err := b.schema(s, depth+1)
			if err != nil {
				return nil, fmt.Errorf("anyOf %d: %w", i, err)
			}
			of.alt = append(of.alt, n)
		}
	default:
		of, err = b.typeNode(m, take, depth)
	}
	if err != nil {
		return nil, err
	}
	for key := range m {
		return nil, fmt.Errorf("%s: is not followed: leave it out", short(key))
	}
	return of, nil
}

// typeNode returns a value of the types that the schema m names, or any value if it names none.
// take removes a key from m and returns its value.
func (b *builder) typeNode(m map[string]json.RawMessage, take func(string) json.RawMessage,
	depth int) (*node, error) {
	var types []string
	raw := take("type")
	if raw == nil {
		switch {
		case m["properties"] != nil || m["additionalProperties"] != nil:
			types = []string{"object"}
		case m["items"] != nil:
			types = []string{"array"}
		default:
			return b.value, nil
		}
	} else if json.Unmarshal(raw, &types) != nil {
		types = make([]string, 1)
		if json.Unmarshal(raw, &types[0]) != nil {
			return nil, errors.New("type: must be a string or a list of strings")
		}
	}
	one := b.node(node{})
	for _, t := range types {
		var n *node
		var err error
		switch t {
		case "string":
			n = b.str
		case "integer":
			n = b.integer
		case "number":
			n = b.number
		case "boolean":
			n = b.alt(b.text("true"), b.text("false"))
		case "null":
			n = b.text("null")
		case "object":
			n, err = b.properties(take("properties"), take("required"),
				take("additionalProperties"), depth)
		case "array":
			n, err = b.items(take("items"), take("minItems"), take("maxItems"), depth)
		default:
			err = fmt.Errorf("type %q: is none of JSON's", short(t))
		}
		if err != nil {
			return nil, err
		}
		one.alt = append(one.alt, n)
	}
	if len(one.alt) == 0 {
		return nil, errors.New("type: is an empty list")
	}
	return one, nil
}

// values returns one of the listed values, written without blanks.
func (b *builder) values(list []json.RawMessage) (*node, error) {
	one := b.node(node{})
	for _, v := range list {
		var w bytes.Buffer
		if err := json.Compact(&w, v); err != nil {
			return nil, err
		}
		if b.left -= w.Len() / 16; b.left < 0 {
			return nil, errors.New("is too large")
		}
		one.alt = append(one.alt, b.text(w.String()))
	}
	return one, nil
}

// properties returns an object of the schema's properties in their order. Without properties it
// returns any object, or one whose values fit the schema others. Additional properties behind
// listed ones are never generated, which every such schema allows.
func (b *builder) properties(raw, need, others json.RawMessage, depth int) (*node, error) {
	if raw == nil && others != nil && string(others) != "true" &&
		(need == nil || string(need) == "[]") {
		if string(others) == "false" {
			return b.seq(b.set('{', '{'), b.space, b.set('}', '}')), nil
		}
		v, err := b.schema(others, depth+1)
		if err != nil {
			return nil, fmt.Errorf("additionalProperties: %w", err)
		}
		return b.list('{', '}', b.seq(b.str, b.space, b.set(':', ':'), b.space, v)), nil
	}
	if raw == nil {
		if need != nil && string(need) != "[]" {
			return nil, errors.New("required: names properties that the schema does not have")
		}
		return b.object, nil
	}
	var required []string
	if need != nil && json.Unmarshal(need, &required) != nil {
		return nil, errors.New("required: must be a list of strings")
	}
	names, of, err := keysAndValues(raw)
	if err != nil {
		return nil, fmt.Errorf("properties: %w", err)
	}
	for _, r := range required {
		if !slices.Contains(names, r) {
			return nil, fmt.Errorf("required: %q is no property", short(r))
		}
	}
	members := make([]*node, len(names))
	for i, name := range names {
		v, err := b.schema(of[i], depth+1)
		if err != nil {
			return nil, fmt.Errorf("property %q: %w", short(name), err)
		}
		key, _ := json.Marshal(name)
		members[i] = b.seq(b.text(string(key)), b.space, b.set(':', ':'), b.space, v)
	}
	// the rest behind property i-1, if some property precedes it and if none does
	comma := b.seq(b.space, b.set(',', ','), b.space)
	some, none := b.seq(), b.seq()
	for i := len(names) - 1; i >= 0; i-- {
		with, first := b.seq(comma, members[i], some), b.seq(members[i], some)
		if !slices.Contains(required, names[i]) {
			with, first = b.alt(with, some), b.alt(first, none)
		}
		some, none = with, first
	}
	return b.seq(b.set('{', '{'), b.space, none, b.space, b.set('}', '}')), nil
}

// keysAndValues returns the keys and values of a JSON object in their order.
func keysAndValues(raw json.RawMessage) (names []string, values []json.RawMessage, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, nil, errors.New("must be an object")
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, nil, err
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, nil, err
		}
		if slices.Contains(names, t.(string)) {
			return nil, nil, fmt.Errorf("%q stands twice", short(t.(string)))
		}
		names, values = append(names, t.(string)), append(values, v)
	}
	return names, values, nil
}

// mostItems bounds minItems and maxItems.
const mostItems = 256

// items returns an array of least to top elements of the schema raw; nil stands for any number, or
// any value.
func (b *builder) items(raw, least, top json.RawMessage, depth int) (*node, error) {
	element := b.value
	if raw != nil {
		var err error
		if element, err = b.schema(raw, depth+1); err != nil {
			return nil, fmt.Errorf("items: %w", err)
		}
	}
	if least == nil && top == nil {
		return b.list('[', ']', element), nil
	}
	low, high := 0, mostItems
	for _, x := range []struct {
		raw  json.RawMessage
		into *int
	}{{least, &low}, {top, &high}} {
		if x.raw != nil && (json.Unmarshal(x.raw, x.into) != nil || *x.into < 0 ||
			*x.into > mostItems) {
			return nil, fmt.Errorf("minItems and maxItems: must be from 0 to %d", mostItems)
		}
	}
	if low > high {
		return nil, errors.New("minItems: is above maxItems")
	}
	comma := b.seq(b.space, b.set(',', ','), b.space)
	rest := b.seq()
	for i := high; i > 0; i-- {
		rest = b.seq(element, rest)
		if i > 1 {
			rest = b.seq(comma, rest)
		}
		if i > low {
			rest = b.maybe(rest)
		}
	}
	return b.seq(b.set('[', '['), b.space, rest, b.space, b.set(']', ']')), nil
}

// short returns s cut after 40 bytes, for an error.
func short(s string) string {
	if len(s) > 40 {
		s = strings.ToValidUTF8(s[:40], "") + "..."
	}
	return s
}
