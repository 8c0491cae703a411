package conf

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Marshal returns v (a struct or a pointer to one) as YAML: every setting, in declaration order,
// the same bytes for the same value. Load of the result gives the value back (an empty list as
// nil). A number that is not finite and a text that is not UTF-8 are errors.
func Marshal(v any) ([]byte, error) {
	return marshal(v, func(_, indent string) string { return indent })
}

// Template returns v as Marshal does, with a comment above each setting: its meaning and its
// allowed values. A setting equal to its value in defaults, a value of v's type, is itself
// commented out, #lr: 1e-06, since a file that has it would override an inherited value.
func Template(v, defaults any) ([]byte, error) {
	about, was := map[string]string{}, map[string]string{}
	for _, s := range Describe(defaults) {
		about[s.Key], was[s.Key] = s.Description(), s.Default
	}
	same := map[string]bool{}
	for _, s := range Describe(v) {
		same[s.Key] = s.Default == was[s.Key]
	}
	return marshal(v, func(key, indent string) string {
		text := "\n" + wrap(about[key], indent+"# ", 100) + indent
		if same[key] {
			text += "#"
		}
		return text
	})
}

// wrap returns text in lines of at most width bytes, each with the prefix and a newline.
func wrap(text, prefix string, width int) string {
	var b strings.Builder
	line := prefix
	for _, word := range strings.Fields(text) {
		if len(line) > len(prefix) && len(line)+len(word)+1 > width {
			b.WriteString(line + "\n")
			line = prefix
		}
		if len(line) > len(prefix) {
			line += " "
		}
		line += word
	}
	return b.String() + line + "\n"
}

// marshal returns v as YAML. comment returns the text that precedes a setting, its indentation
// included.
func marshal(v any, comment func(key, indent string) string) ([]byte, error) {
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
		indent := strings.Repeat("  ", len(groups))
		fmt.Fprintf(&b, "%s%s: %s\n", comment(l.Key, indent), path[len(groups)], format(fv))
	}
	return []byte(b.String()), nil
}

// bare matches the texts that stand in YAML without quotes, flow lists included: they begin with a
// letter or one of ./_ and hold no character with a meaning in YAML.
var bare = regexp.MustCompile(`^[A-Za-z./_][A-Za-z0-9./_-]*$`)

// format returns a value as YAML. Go's quoting of a valid UTF-8 text uses only escapes that YAML's
// double quotes have.
func format(v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		s := v.String()
		switch strings.ToLower(s) {
		case "null", "true", "false", "yes", "no", "on", "off", "y", "n", ".nan", ".inf", "nan",
			"inf":
			return strconv.Quote(s)
		}
		// ".5" is a number to YAML; "." alone and "./x" are texts.
		if !bare.MatchString(s) || number.MatchString(s) || strings.HasPrefix(s, "...") ||
			strings.HasPrefix(s, ".") && strings.ContainsAny(s[:min(2, len(s))], "0123456789") {
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

// Markdown returns tables of the settings of v (a struct or a pointer to one, holding the
// defaults): one for the settings outside any group, then one for each top-level group.
func Markdown(v any) string {
	var b strings.Builder
	about := schemaOf(structOf(v).Type()).about
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
				if about[group] != "" {
					fmt.Fprintf(&b, "%s: %s.\n\n", group, about[group])
				}
			}
			b.WriteString("| setting | type | default | meaning |\n|---|---|---|---|\n")
			section, first = group, false
		}
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s |\n", s.Key, s.Type, cell(s.Default),
			cell(s.Doc+s.limits()+s.unproven()))
	}
	return b.String()
}

// Description returns the setting's meaning and its allowed values, as plain text.
func (s Setting) Description() string {
	return strings.NewReplacer("`", "", unprovenMark, "Unproven").Replace(
		s.Doc + s.limits() + s.unproven())
}

// Help returns a description, for a terminal, of the settings of v whose keys begin with prefix:
// the group's own description, then for each setting a line with key and default, and its meaning
// indented below.
func Help(v any, prefix string) string {
	var b strings.Builder
	group := strings.TrimSuffix(prefix, ".")
	if about := schemaOf(structOf(v).Type()).about[group]; about != "" {
		fmt.Fprintf(&b, "%s: %s\n", group, about)
	}
	for _, s := range Describe(v) {
		if strings.HasPrefix(s.Key, prefix) {
			fmt.Fprintf(&b, "%s=%s\n%s", s.Key, s.Default, wrap(s.Description(), "    ", 100))
		}
	}
	return b.String()
}

// unprovenMark stands in the description of a setting whose study it lost, or that has none.
const unprovenMark = "*Unproven*"

// unproven returns the sentence about the values that no study shows to be better.
func (s Setting) unproven() string {
	switch {
	case s.Unproven == nil:
		return ""
	case slices.Contains(s.Unproven, everyValue):
		return ". " + unprovenMark
	}
	return ". " + unprovenMark + ": `" + strings.Join(s.Unproven, "`, `") + "`"
}

// unbounded is the value from which on a maximum is not shown: it only bounds computations.
const unbounded = 1e8

// limits returns the sentence about min, max and choices.
func (s Setting) limits() string {
	if most, err := strconv.ParseFloat(s.Max, 64); err == nil && most >= unbounded {
		s.Max = ""
	}
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

// cell returns s with the characters escaped that would end a cell of a Markdown table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(s)
}
