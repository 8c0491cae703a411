package chat

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// JSON is a JSON text in one form: without blanks, and with the keys in their order. The nulls that
// Arrow and Parquet put where another row has a key are left out by their readers; one that is
// written stays. "" is none.
type JSON string

// MarshalJSON writes the text as it is.
func (j JSON) MarshalJSON() ([]byte, error) { return []byte(cmp.Or(j, "null")), nil }

// UnmarshalJSON reads any value; null is none.
func (j *JSON) UnmarshalJSON(text []byte) (err error) {
	if string(text) == "null" {
		*j = ""
		return nil
	}
	*j, err = ReadJSON(text)
	return err
}

// JSONLimit bounds the nesting of a value.
const JSONLimit = 32

// ReadJSON brings a value to the form of JSON.
func ReadJSON(text []byte) (JSON, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var b strings.Builder
	if err := copyJSON(&b, d, 0); err != nil {
		return "", err
	}
	if _, err := d.Token(); err != io.EOF {
		return "", errors.New("text after the value")
	}
	return JSON(b.String()), nil
}

func copyJSON(b *strings.Builder, d *json.Decoder, depth int) error {
	if depth > JSONLimit {
		return fmt.Errorf("nested more than %d deep", JSONLimit)
	}
	tok, err := d.Token()
	if err != nil {
		return err
	}
	switch tok := tok.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(tok))
	case json.Number:
		return writeNumber(b, tok.String())
	case string:
		WriteString(b, tok)
	case json.Delim:
		if tok == '[' {
			b.WriteByte('[')
			for i := 0; d.More(); i++ {
				if i > 0 {
					b.WriteByte(',')
				}
				if err := copyJSON(b, d, depth+1); err != nil {
					return err
				}
			}
			b.WriteByte(']')
			_, err = d.Token()
			return err
		}
		b.WriteByte('{')
		seen := map[string]bool{}
		first := true
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return err
			}
			if seen[key.(string)] {
				return fmt.Errorf("key %q appears twice", key)
			}
			seen[key.(string)] = true
			var value strings.Builder
			if err := copyJSON(&value, d, depth+1); err != nil {
				return err
			}
			if !first {
				b.WriteByte(',')
			}
			first = false
			WriteString(b, key.(string))
			b.WriteByte(':')
			b.WriteString(value.String())
		}
		b.WriteByte('}')
		_, err = d.Token()
		return err
	}
	return nil
}

// WriteString writes a text as JSON, with <, > and & as they stand.
func WriteString(b *strings.Builder, s string) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string can always be written
	b.Write(bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
}

// writeNumber writes a whole number as it is, and another in one form: 1.50 and 1.5 are the same.
func writeNumber(b *strings.Builder, s string) error {
	if strings.Trim(s, "-0123456789") == "" {
		b.WriteString(s)
		return nil
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return fmt.Errorf("number %s: out of range", s)
	}
	WriteFloat(b, x)
	return nil
}

// WriteFloat writes a number that is no whole one by its type, so that it is read as such again.
func WriteFloat(b *strings.Builder, x float64) {
	s := strconv.FormatFloat(x, 'g', -1, 64)
	if b.WriteString(s); !strings.ContainsAny(s, ".e") && !math.IsInf(x, 0) && !math.IsNaN(x) {
		b.WriteString(".0")
	}
}
