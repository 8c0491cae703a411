package tokenizer

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
)

// Objects and lists have the keys and values that encoding/json reads in them, as they are written,
// and text that encoding/json refuses is refused.
func TestJSONAsTheLibraryReadsIt(t *testing.T) {
	for _, text := range []string{
		`{}`, ` { } `, `{"a":1}`, "{\"a\" : 1 ,\r\n\t\"b\":-2.5e3}", `{"":"","\"":"\\"}`,
		`{"a,}]":"{[","\u00e9":"\ud83d\ude00","\\":"\\\""}`, "{\"\xff\":\"\xfe\"}",
		`{"a":[1,[2,"]"],{}],"b":{"c":{"d":"}"}},"e":null,"f":true }`, `{"a":[ ], "b":{ }}`,
		`{"á":"é","x":1e2,"y":[]}`, `{"a":[[[]],[{"b":[]}]]}`,
	} {
		var want map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		got, err := object([]byte(text))
		if err != nil || !maps.EqualFunc(got, want, func(a, b json.RawMessage) bool {
			return string(a) == string(b)
		}) {
			t.Errorf("%q: %q, want %q: %v", text, got, want, err)
		}
		for key, value := range want {
			var list []json.RawMessage
			is := json.Unmarshal(value, &list) == nil && string(value) != "null"
			n := 0
			found, err := valid(value).items(func(i int, item valid) error {
				if i != n || i >= len(list) || string(item) != string(list[i]) {
					t.Errorf("%q, %q: item %d is %q, want one of %q", text, key, i, item, list)
				}
				n++
				return nil
			})
			if found != is || n != len(list) || err != nil {
				t.Errorf("%q, %q: %d items, want %d: %v", text, key, n, len(list), err)
			}
		}
		for cut := range len(strings.TrimSpace(text)) {
			if got, err := object([]byte(text)[:cut]); err == nil {
				t.Errorf("%q is read as %q", text[:cut], got)
			}
		}
		for _, more := range []string{"x", "{}", ",", "\x00"} {
			if got, err := object([]byte(text + more)); err == nil {
				t.Errorf("%q is read as %q", text+more, got)
			}
		}
	}
	for _, text := range []string{`{"a" 1}`, `{"a":1 "b":2}`, `{"a":1,}`, `{a:1}`, `{"a":01}`,
		`{"a":[1 2]}`, "{\"a\":\"\n\"}", `{"a":nul}`, "\ufeff{}", `{"a":"\x"}`} {
		if got, err := object([]byte(text)); err == nil {
			t.Errorf("%q is read as %q", text, got)
		}
	}
}
