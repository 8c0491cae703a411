package layout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"unicode/utf8"
)

// What scanObject accepts, encoding/json accepts, with the same keys and values in the
// same order; and a string has the same text. scanned says whether it was accepted.
func scanAgrees(t *testing.T, text []byte) (scanned bool) {
	t.Helper()
	fields, ok := scanObject(nil, text)
	if !ok {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
		t.Fatalf("%q: scanned, and encoding/json says %v, %v", text, tok, err)
	}
	for _, f := range fields {
		key, err := d.Token()
		if err != nil || key != f.key {
			t.Fatalf("%q: key %q, and encoding/json says %v, %v", text, f.key, key, err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil || !bytes.Equal(value, f.value) {
			t.Fatalf("%q: value %q, and encoding/json says %q, %v", text, f.value, value, err)
		}
		var s string
		if f.value[0] == '"' && utf8.Valid(f.value) {
			if err := json.Unmarshal(f.value, &s); err != nil || s != unquote(f.value) {
				t.Fatalf("%q: text %q, and encoding/json says %q, %v", f.value, unquote(f.value), s,
					err)
			}
		}
		if f.value[0] == '[' {
			var want []json.RawMessage
			list, ok := ScanList(nil, f.value)
			if err := json.Unmarshal(f.value, &want); err != nil || !ok ||
				fmt.Sprintf("%s", list) != fmt.Sprintf("%s", want) {
				t.Fatalf("%q: list %s, %v, and encoding/json says %s, %v", f.value, list, ok, want,
					err)
			}
		}
	}
	if !json.Valid(text) {
		t.Fatalf("%q: scanned, and encoding/json refuses it", text)
	}
	return true
}

var scanSeeds = []string{
	`{}`, ` { } `, `{"a":1}`, "{\"a\" :\t\"b\\n\\u00e9\\ud83d\\ude00\\ud800x\\/\" , \"c\":[1,-2.5e+3,true,false,null,{\"d\":[]},\"\"]}\n",
	`{"a":"\ud83d"}`, `{"a":"\ud83d\n"}`, `{"a":"\ud83d\ud83d\ude00"}`, `{"a":"\udc00\ud800"}`, `{"a":0,"b":-0,"c":0.5,"d":1e5,"e":10}`, `{"a":"é日😀"}`, `{"a":[[],[[1]], {}]}`,
}

var scanRefused = []string{
	``, `[`, `{`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1 "b":2}`, `{a:1}`, `{"a":01}`, `{"a":1.}`, `{"a":.5}`, `{"a":1e}`, `{"a":-}`, `{"a":tru}`, `{"a":"\x"}`, `{"a":"\u12g4"}`,
	"{\"a\":\"\n\"}", `{"a":"b}`, `{"a":1}x`, `{"a":1}{}`, `{"a":1,"a":2}`, `{"\u0061":1}`, `{"é":1}`, `{"a":[1,]}`, `{"a":[1}`, `{"a":{"b":1]}`, `{"a":{1:2}}`, `{"a":+1}`, `[1]`, `"a"`, `{"a":"\`, `{"a":"\u12`,
}

func TestScan(t *testing.T) {
	for _, text := range scanSeeds {
		if !scanAgrees(t, []byte(text)) {
			t.Errorf("%q: left to encoding/json", text)
		}
	}
	for _, text := range scanRefused {
		if scanAgrees(t, []byte(text)) {
			t.Errorf("%q: scanned", text)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, text := range append(scanSeeds, scanRefused...) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { scanAgrees(t, text) })
}
