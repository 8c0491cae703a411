package conf

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Marshal writes v (a struct or a pointer to one) as YAML: every setting, in declaration order, the same bytes for the
// same value. Load of what it wrote gives the value back (an empty list as nil). A number that is not finite and a text
// that is not UTF-8 are errors.
func Marshal(v any) ([]byte, error) {
	rv := structOf(v)
	var b strings.Builder
	var open []string // the groups whose headers are written
	for _, l := range schemaOf(rv.Type()).leaves {
		fv := rv.FieldByIndex(l.index)
		if rule := unwritable(fv); rule != "" {
			return nil, fmt.Errorf("conf: %s: setting %q: %s", rv.Type(), l.Key, rule)
		}
		path := strings.Split(l.Key, ".")
		groups := path[:len(path)-1]
		same := 0
		for same < min(len(open), len(groups)) && open[same] == groups[same] {
			same++
		}
		for i, g := range groups[same:] {
			fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", same+i), g)
		}
		open = groups
		fmt.Fprintf(&b, "%s%s: %s\n", strings.Repeat("  ", len(groups)), path[len(groups)], format(fv))
	}
	return []byte(b.String()), nil
}

// bare matches the texts that stand in YAML without quotes, flow lists included: they begin with a letter or one of
// ./~ and hold nothing that YAML gives a meaning to.
var bare = regexp.MustCompile(`^[A-Za-z./_][A-Za-z0-9./_-]*$`)

// format writes a value as YAML. Go's quoting of a valid UTF-8 text uses only escapes that YAML's double quotes have.
func format(v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		s := v.String()
		switch strings.ToLower(s) {
		case "null", "true", "false", "yes", "no", "on", "off", "y", "n", ".nan", ".inf", "nan", "inf":
			return strconv.Quote(s)
		}
		// ".5" is a number to YAML; "." alone and "./x" are texts.
		if !bare.MatchString(s) || number.MatchString(s) || strings.HasPrefix(s, "...") || strings.HasPrefix(s, ".") && strings.ContainsAny(s[:min(2, len(s))], "0123456789") {
			return strconv.Quote(s)
		}
		return s
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = format(v.Index(i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return fmt.Sprint(v.Interface())
}

// Markdown describes the settings of v (a struct or a pointer to one, holding the defaults): one table for the settings
// outside any group, then one for each top-level group.
func Markdown(v any) string {
	var b strings.Builder
	section, first := "", true
	for _, s := range Describe(v) {
		group := ""
		if i := strings.IndexByte(s.Key, '.'); i >= 0 {
			group = s.Key[:i]
		}
		if first || group != section {
			if !first {
				b.WriteString("\n")
			}
			if group != "" {
				fmt.Fprintf(&b, "## %s\n\n", group)
			}
			b.WriteString("| setting | type | default | meaning |\n|---|---|---|---|\n")
			section, first = group, false
		}
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s |\n", s.Key, s.Type, cell(s.Default), cell(s.Doc+s.limits()))
	}
	return b.String()
}

// limits is the sentence about min, max and choices.
func (s Setting) limits() string {
	switch {
	case s.Choices != nil:
		quoted := make([]string, len(s.Choices))
		for i, c := range s.Choices {
			quoted[i] = "`" + c + "`"
			if c == "" {
				quoted[i] = `""`
			}
		}
		return ". One of " + strings.Join(quoted, ", ")
	case s.Min != "" && s.Max != "":
		return fmt.Sprintf(". From %s to %s", s.Min, s.Max)
	case s.Min != "":
		return ". At least " + s.Min
	case s.Max != "":
		return ". At most " + s.Max
	}
	return ""
}

// cell escapes what would end a cell of a Markdown table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(s)
}
