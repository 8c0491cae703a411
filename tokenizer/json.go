package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// object splits a JSON object into its values. Unlike encoding/json it distinguishes keys by case
// and refuses a repeated key. The values lie in data.
func object(data []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	var whole json.RawMessage
	if err := d.Decode(&whole); err != nil {
		return nil, fmt.Errorf("not JSON: %w: the file is damaged, fetch it again", err)
	}
	if len(bytes.TrimLeft(data[d.InputOffset():], jsonBlanks)) > 0 {
		return nil, fmt.Errorf("text after the JSON object: remove it")
	}
	return valid(data).object()
}

// valid is a value of JSON that has been checked. A vocabulary has some 100,000 entries, each of
// which a json.Decoder would take a microsecond for.
type valid []byte

// jsonBlanks are the characters that may stand between the tokens of JSON.
const jsonBlanks = " \t\r\n"

// object splits an object into its values, and refuses a repeated key.
func (v valid) object() (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	err := v.pairs(func(key string, value valid) error {
		if _, twice := out[key]; twice {
			return fmt.Errorf("key %q: appears twice: keep one of them", key)
		}
		out[key] = json.RawMessage(value)
		return nil
	})
	return out, err
}

// pairs calls f for each key of an object and its value.
func (v valid) pairs(f func(key string, value valid) error) error {
	v = bytes.TrimLeft(v, jsonBlanks)
	if v[0] != '{' {
		return fmt.Errorf("not a JSON object: the file must contain { ... }")
	}
	for v = v.after(); v[0] != '}'; v = v.after() {
		if v[0] == ',' {
			v = v.after()
		}
		key := v[:v.end()]
		v = bytes.TrimLeft(v[len(key):], jsonBlanks)[1:] // the colon
		v = bytes.TrimLeft(v, jsonBlanks)
		n := v.end()
		text, err := key.text()
		if err == nil {
			err = f(text, v[:n:n])
		}
		if err != nil {
			return err
		}
		v = v[n-1:]
	}
	return nil
}

// items calls f for each item of a list. It reports false for another value.
func (v valid) items(f func(i int, item valid) error) (list bool, err error) {
	v = bytes.TrimLeft(v, jsonBlanks)
	if v[0] != '[' {
		return false, nil
	}
	i := 0
	for v = v.after(); v[0] != ']'; v = v.after() {
		if v[0] == ',' {
			v = v.after()
		}
		n := v.end()
		if err := f(i, v[:n:n]); err != nil {
			return true, err
		}
		i++
		v = v[n-1:]
	}
	return true, nil
}

// after returns what follows the first byte and jsonBlanks.
func (v valid) after() valid { return bytes.TrimLeft(v[1:], jsonBlanks) }

// end returns the length of the value at the beginning of v.
func (v valid) end() int {
	depth := 0
	for i := 0; i < len(v); i++ {
		switch v[i] {
		case '"':
			for i++; v[i] != '"'; i++ {
				if v[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // behind a number or a word
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
	return len(v)
}

// text returns a string's text.
func (v valid) text() (s string, err error) {
	if v[0] == '"' && !bytes.ContainsRune(v, '\\') && utf8.Valid(v) {
		return string(v[1 : len(v)-1]), nil
	}
	err = json.Unmarshal(v, &s)
	return s, err
}
