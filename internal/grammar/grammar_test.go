package grammar

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// walk writes a text of random bytes that the grammar allows, and prefers those that end it.
func walk(t *testing.T, g *Grammar, r *rand.Rand, most int) string {
	t.Helper()
	text, allowed := g.Begin(), make([]bool, 256)
	pieces := make([][]byte, 256)
	for i := range pieces {
		pieces[i] = []byte{byte(i)}
	}
	var out []byte
	for range most {
		if text.Ends() && r.IntN(2) == 0 {
			return string(out)
		}
		if err := text.Mask(pieces, allowed); err != nil {
			t.Fatal(err)
		}
		var list []byte
		for b, ok := range allowed {
			if ok {
				list = append(list, byte(b))
				if strings.IndexByte(`"}],:`, byte(b)) >= 0 { // or it would hardly ever end
					list = append(list, strings.Repeat(string(rune(b)), 60)...)
				}
			}
		}
		if len(list) == 0 {
			if !text.Ends() {
				t.Fatalf("%q: nothing may follow", out)
			}
			return string(out)
		}
		b := list[r.IntN(len(list))]
		if ok, err := text.Append([]byte{b}); !ok || err != nil {
			t.Fatalf("%q: %q was allowed: %v", out, b, err)
		}
		out = append(out, b)
	}
	return ""
}

// Whatever the grammar of JSON allows is a JSON object, and what it forbids at some byte is none.
func TestJSON(t *testing.T) {
	g, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	r, ended := rand.New(rand.NewPCG(1, 1)), 0
	for range 60 {
		text := walk(t, g, r, 400)
		if text == "" {
			continue
		}
		ended++
		if !json.Valid([]byte(text)) || text[0] != '{' {
			t.Fatalf("%q is no JSON object", text)
		}
	}
	if ended < 20 {
		t.Errorf("%d of 60 texts have ended", ended)
	}
	for text, want := range map[string]bool{`{}`: true, `{"a": [1, -2.5e+3, "é\u00e9\n", null]}`: true,
		"{\n  \"a\": {\n    \"b\": true\n  }\n}": true, `[1]`: false, `{"a":01}`: false, `{"a":1,}`: false,
		`{'a':1}`: false, "{\"a\":\"\xff\"}": false, "{\"a\":\"\n\"}": false, `{"a":1`: false,
		`{"a":NaN}`: false, "{\"a\":\"\xed\xa0\x80\"}": false} {
		at := g.Begin()
		ok, err := at.Append([]byte(text))
		if err != nil || (ok && at.Ends()) != want {
			t.Errorf("%q: %t, ends %t, %v", text, ok, at.Ends(), err)
		}
	}
}

// A schema's grammar has its values and no others.
func TestSchema(t *testing.T) {
	const schema = `{"type":"object","title":"T","properties":{
		"name":{"type":"string"},"age":{"type":["integer","null"]},
		"kind":{"enum":["a\"b",2,null]},"tags":{"type":"array","items":{"const":"x"},"minItems":1,"maxItems":2},
		"next":{"anyOf":[{"$ref":"#"},{"$ref":"#/$defs/end"}]},"any":{}},
		"required":["name","kind"],"additionalProperties":false,"$defs":{"end":{"type":"boolean"}}}`
	g, err := Schema([]byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		`{"name":"é","kind":2}`: true,
		`{"name": "x", "age": -3, "kind": "a\"b", "tags": ["x", "x"], "next": true}`: true,
		`{"name":"x","kind":null,"next":{"name":"y","kind":2,"next":false}}`:         true,
		`{"name":"x","kind":2,"any":[1,{"z":2}]}`:                                    true,
		`{"kind":2,"name":"x"}`:                      false,
		`{"name":"x"}`:                               false,
		`{"name":"x","kind":3}`:                      false,
		`{"name":"x","age":1.5,"kind":2}`:            false,
		`{"name":"x","kind":2,"tags":[]}`:            false,
		`{"name":"x","kind":2,"tags":["x","x","x"]}`: false,
		`{"name":"x","kind":2,"more":1}`:             false,
		`{"name":"x","kind":2,}`:                     false,
	} {
		at := g.Begin()
		ok, err := at.Append([]byte(text))
		if err != nil || (ok && at.Ends()) != want {
			t.Errorf("%s: %t, ends %t, %v", text, ok, at.Ends(), err)
		}
	}
	r := rand.New(rand.NewPCG(2, 2))
	for range 30 {
		if text := walk(t, g, r, 600); text != "" {
			var v struct {
				Name *string
				Kind any
			}
			if err := json.Unmarshal([]byte(text), &v); err != nil || v.Name == nil {
				t.Fatalf("%q: %v", text, err)
			}
		}
	}
	of, err := Schema([]byte(`{"type":"object","additionalProperties":{"enum":[1,true]}}`))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{`{}`: true, `{"a":1, "b":true}`: true,
		`{"a":2}`: false, `{"a":"1"}`: false} {
		at := of.Begin()
		ok, err := at.Append([]byte(text))
		if err != nil || (ok && at.Ends()) != want {
			t.Errorf("values of a schema: %s: %t, ends %t, %v", text, ok, at.Ends(), err)
		}
	}
	for bad, want := range map[string]string{
		`[]`:                                 "is no JSON object",
		`{"type":"string","pattern":"a"}`:    "pattern: is not followed",
		`{"type":"int"}`:                     `type "int"`,
		`{"$ref":"http://x"}`:                "only # and",
		`{"type":"object","required":["a"]}`: "required",
		`{"properties":{"a":{"minimum":1}}}`: `property "a": minimum: is not followed`,
		`{"type":"array","maxItems":100000}`: "must be from 0 to 256",
		`{"properties":{"a":{"enum":[]}}}`:   "enum",
		strings.Repeat(`{"items":`, 40) + "true" + strings.Repeat("}", 40): "too deep",
	} {
		if _, err := Schema([]byte(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %s", bad, err, want)
		}
	}
	if g, err := Schema([]byte(`{"$ref":"#"}`)); err == nil {
		if ok, err := g.Begin().Append([]byte("1")); ok {
			t.Errorf("a schema that is itself: %v", err)
		}
	}
}
