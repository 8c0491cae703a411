package journal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
)

// Difference returns, in words, the first field in which the settings was, of an interrupted
// command, differ from now, of the command that would resume it; "" if none does. Both are structs
// of one type. A field with the tag `flag:"--n"` is reported with its values, "--n was 1, now it is
// 2"; one with the tag `same:"the model is"` holds a digest, "the model is not the same". The
// fields of an embedded, exported struct count as the settings' own.
func Difference(was, now any) string {
	before, after := reflect.ValueOf(was), reflect.ValueOf(now)
	for i := range before.NumField() {
		x, y := before.Field(i).Interface(), after.Field(i).Interface()
		field := before.Type().Field(i)
		if field.Anonymous {
			if what := Difference(x, y); what != "" {
				return what
			}
			continue
		}
		if reflect.DeepEqual(x, y) || emptyMap(before.Field(i)) && emptyMap(after.Field(i)) {
			continue
		}
		if what := field.Tag.Get("same"); what != "" {
			return what + " not the same"
		}
		name := cmp.Or(field.Tag.Get("flag"), field.Name)
		return fmt.Sprintf("%s was %s, now it is %s", name, show(x), show(y))
	}
	return ""
}

// emptyMap reports whether v is a map without entries, nil or not.
func emptyMap(v reflect.Value) bool { return v.Kind() == reflect.Map && v.Len() == 0 }

// show returns a setting's value as text for a message.
func show(v any) string {
	x := reflect.ValueOf(v)
	if x.Kind() == reflect.Pointer && !x.IsNil() {
		return show(x.Elem().Interface())
	}
	if s, ok := v.(fmt.Stringer); ok {
		return s.String()
	}
	switch x.Kind() {
	case reflect.Pointer:
		return "not given"
	case reflect.Int:
		if x.IsZero() {
			return "not given"
		}
	case reflect.Map:
		if x.Len() == 0 {
			return "not given"
		}
		text, _ := json.Marshal(v) // it came from JSON
		return show(string(text))
	case reflect.String:
		if v == "" {
			return "not given"
		}
		r := []rune(x.String())
		if len(r) > 40 {
			return fmt.Sprintf("%q", string(r[:40])+"...")
		}
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprint(v)
}
