package conf

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Setting describes one leaf of a configuration struct.
type Setting struct {
	Key string // dotted path, "actor.optim.lr"
	// "text", "true or false", "integer", "number", "list of texts", "list of numbers"
	Type    string
	Default string   // the value found in the struct, written as YAML
	Doc     string   // the doc tag
	Min     string   // the min tag, inclusive; "" = unbounded
	Max     string   // the max tag, inclusive; "" = unbounded
	Choices []string // the choices tag; nil = any value
	// Unproven are the values that no study shows to be better, "all" for any value but the
	// default; nil where a study does, or where the setting promises nothing of the kind.
	Unproven []string
}

// everyValue is the unproven tag of a setting of which no value but the default is proven.
const everyValue = "all"

// leaf is a setting with its place in the struct.
type leaf struct {
	Setting
	index []int // for reflect.Value.FieldByIndex
	typ   reflect.Type
}

// schema is the structure of a configuration: its leaves in declaration order, and its groups.
type schema struct {
	leaves []*leaf
	byKey  map[string]*leaf
	// dotted group ("" = the root) -> names of its members in declaration order
	groups map[string][]string
	about  map[string]string // dotted group -> its doc tag, where it has one
}

var keyName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// structOf returns the struct behind v (a struct or a pointer to one).
func structOf(v any) reflect.Value {
	rv := reflect.ValueOf(v)
	if rv.Kind() == reflect.Pointer && !rv.IsNil() {
		rv = rv.Elem()
	}
	if rv.Kind() != reflect.Struct {
		panic(fmt.Sprintf("conf: %T: expected a struct or a pointer to one", v))
	}
	return rv
}

// schemas are the schemas of the types that were asked for: a command line describes the settings
// of every stage before it runs one. They are only read.
var schemas sync.Map // reflect.Type to *schema

// schemaOf returns the schema in the tags of t. A struct that cannot be a configuration (an
// unsupported type, a missing or repeated yaml name, a min that is no number) is a programmer's
// error and panics.
func schemaOf(t reflect.Type) *schema {
	if s, ok := schemas.Load(t); ok {
		return s.(*schema)
	}
	s := &schema{byKey: map[string]*leaf{}, groups: map[string][]string{},
		about: map[string]string{}}
	s.walk(t, "", nil)
	schemas.Store(t, s)
	return s
}

// walk adds the fields of t, at index in the whole struct, to a group.
func (s *schema) walk(t reflect.Type, group string, index []int) {
	if t.NumField() == 0 {
		panic(fmt.Sprintf("conf: group %q: %s has no fields", group, t))
	}
	for i := range t.NumField() {
		f := t.Field(i)
		at := append(slices.Clone(index), i)
		name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" {
			continue
		}
		bad := func(rule string) { panic(fmt.Sprintf("conf: %s.%s: %s", t, f.Name, rule)) }
		if !f.IsExported() {
			bad(`unexported field: tag it yaml:"-"`)
		}
		if opts == "inline" && f.Type.Kind() == reflect.Struct {
			s.walk(f.Type, group, at)
			continue
		}
		if !keyName.MatchString(name) || opts != "" {
			bad(`expected a yaml tag of lower-case letters, digits and _, or ",inline" on a struct`)
		}
		if slices.Contains(s.groups[group], name) {
			bad(fmt.Sprintf("yaml name %q appears twice", name))
		}
		s.groups[group] = append(s.groups[group], name)
		key := join(group, name)
		if f.Type.Kind() == reflect.Struct {
			if doc := f.Tag.Get("doc"); doc != "" {
				s.about[key] = doc
			}
			s.walk(f.Type, key, at)
			continue
		}
		l := &leaf{index: at, typ: f.Type}
		l.Key, l.Type, l.Doc = key, typeName(f.Type), f.Tag.Get("doc")
		l.Min, l.Max = f.Tag.Get("min"), f.Tag.Get("max")
		if c, ok := f.Tag.Lookup("choices"); ok {
			l.Choices = strings.Split(c, ",")
		}
		if u, ok := f.Tag.Lookup("unproven"); ok {
			l.Unproven = strings.Split(u, ",")
		}
		if i := slices.IndexFunc(l.Unproven, func(u string) bool {
			return u != everyValue && !slices.Contains(l.Choices, u) &&
				!(f.Type.Kind() == reflect.Bool && (u == "true" || u == "false"))
		}); i >= 0 {
			bad(fmt.Sprintf("unproven %q: expected one of its choices, or %s", l.Unproven[i], everyValue))
		}
		if l.Type == "" {
			bad(fmt.Sprintf("type %s is not supported", f.Type))
		}
		for _, b := range []string{l.Min, l.Max} {
			if _, err := strconv.ParseFloat(b, 64); b != "" &&
				(err != nil || !isNumber(elem(f.Type))) {
				bad(fmt.Sprintf("bound %q: expected a number on a numeric setting", b))
			}
		}
		s.leaves = append(s.leaves, l)
		s.byKey[key] = l
	}
}

func join(group, name string) string {
	if group == "" {
		return name
	}
	return group + "." + name
}

// elem returns the type of a list's elements, or t itself.
func elem(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Slice {
		return t.Elem()
	}
	return t
}

func isInt(t reflect.Type) bool  { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64 }
func isUint(t reflect.Type) bool { return t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64 }
func isNumber(t reflect.Type) bool {
	return isInt(t) || isUint(t) || t.Kind() == reflect.Float64
}

// typeName returns the word for t in messages and documents, "" for an unsupported type.
func typeName(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case isInt(t), isUint(t):
		return "integer"
	case t.Kind() == reflect.Float64:
		return "number"
	case t == reflect.TypeFor[[]string]():
		return "list of texts"
	case t == reflect.TypeFor[[]float64]():
		return "list of numbers"
	}
	return ""
}

// Describe lists the settings of v (a struct or a pointer to one, holding the defaults) in
// declaration order.
func Describe(v any) []Setting {
	rv := structOf(v)
	var out []Setting
	for _, l := range schemaOf(rv.Type()).leaves {
		st := l.Setting
		st.Default = format(rv.FieldByIndex(l.index))
		st.Choices, st.Unproven = slices.Clone(l.Choices), slices.Clone(l.Unproven)
		out = append(out, st)
	}
	return out
}

// Copy sets the named settings of dst, a pointer to a struct, to their values in src, of the same
// type. Settings that were loaded once go over as they are: text written as YAML and read as an
// override would keep its quotes.
func Copy(dst, src any, keys []string) {
	to, from := structOf(dst), structOf(src)
	for _, l := range schemaOf(to.Type()).leaves {
		if slices.Contains(keys, l.Key) {
			to.FieldByIndex(l.index).Set(from.FieldByIndex(l.index))
		}
	}
}

// Check returns mistakes in the declaration of v, for a test of the package that owns it: a setting
// without a doc tag, or a default that Load would refuse.
func Check(v any) error {
	rv := structOf(v)
	var ps Problems
	for _, l := range schemaOf(rv.Type()).leaves {
		where := rv.Type().String()
		if l.Doc == "" {
			ps = append(ps, Problem{where, fmt.Sprintf("setting %q: no doc tag", l.Key)})
		}
		for it, rule := range l.violations(rv.FieldByIndex(l.index)) {
			ps = append(ps, Problem{where,
				fmt.Sprintf("setting %q: default %s: %s", l.Key, format(it), rule)})
		}
	}
	if len(ps) > 0 {
		return ps
	}
	return nil
}

// Validate returns the values in v that Load would refuse. A program that fills the struct itself
// has not gone through Load.
func Validate(v any) error {
	rv := structOf(v)
	var ps Problems
	for _, l := range schemaOf(rv.Type()).leaves {
		for it, rule := range l.violations(rv.FieldByIndex(l.index)) {
			ps = append(ps, Problem{l.Key, fmt.Sprintf("%s: %s", format(it), rule)})
		}
	}
	if len(ps) > 0 {
		return ps
	}
	return nil
}

// violations yields the values of a field, one for each element of a list, that break a rule, with
// the rule.
func (l *leaf) violations(field reflect.Value) iter.Seq2[reflect.Value, string] {
	return func(yield func(reflect.Value, string) bool) {
		items := []reflect.Value{field}
		if field.Kind() == reflect.Slice {
			items = items[:0]
			for i := range field.Len() {
				items = append(items, field.Index(i))
			}
		}
		for _, it := range items {
			if rule := cmp.Or(l.rule(it), unwritable(it)); rule != "" && !yield(it, rule) {
				return
			}
		}
	}
}

// atZero returns what 0 means, by the doc tag, if 0 is the minimum: other programs say it by -1.
func (l *leaf) atZero() string {
	_, means, ok := strings.Cut(l.Doc, "; 0: ")
	if !ok || l.Min != "0" {
		return ""
	}
	for _, end := range []string{";", ". ", " ("} {
		means, _, _ = strings.Cut(means, end)
	}
	return " (0: " + means + ")"
}

// rule returns which of min, max and choices the value v (one element, for a list) breaks; "" for
// none.
func (l *leaf) rule(v reflect.Value) string {
	if isNumber(v.Type()) {
		// Bounds are compared as float64: beyond 2^53 an integer may differ from its bound by a
		// rounding.
		var x float64
		switch {
		case isInt(v.Type()):
			x = float64(v.Int())
		case isUint(v.Type()):
			x = float64(v.Uint())
		default:
			x = v.Float()
		}
		if lo, err := strconv.ParseFloat(l.Min, 64); err == nil && x < lo {
			return "below the minimum " + l.Min + l.atZero()
		}
		if hi, err := strconv.ParseFloat(l.Max, 64); err == nil && x > hi {
			return "above the maximum " + l.Max
		}
	}
	if l.Choices != nil {
		text := format(v)
		if v.Kind() == reflect.String {
			text = v.String()
		}
		if !slices.Contains(l.Choices, text) {
			near := nearest(text, l.Choices)
			if text == "gpu" && slices.Contains(l.Choices, "cuda") {
				near = "cuda"
			}
			if near != "" {
				return fmt.Sprintf("did you mean %q? (one of: %s)", near,
					strings.Join(l.Choices, ", "))
			}
			choices := slices.Clone(l.Choices)
			if i := slices.Index(choices, ""); i >= 0 {
				choices = append(slices.Delete(choices, i, i+1), "or nothing")
			}
			return "expected one of: " + strings.Join(choices, ", ")
		}
	}
	return ""
}

// unwritable returns why a value could not be written as YAML and read back, or "".
func unwritable(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Float64:
		if math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) {
			return "expected a finite number"
		}
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return "not valid UTF-8"
		}
	case reflect.Slice:
		for i := range v.Len() {
			if rule := unwritable(v.Index(i)); rule != "" {
				return rule
			}
		}
	}
	return ""
}
