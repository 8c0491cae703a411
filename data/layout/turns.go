package layout

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// JSON is a JSON text in one form: without blanks, and with the keys in their order. The nulls that
// Arrow and Parquet put where another row has a key are left out by their readers; one that is
// written stays. "" is none. Row.Env
// alone keeps more of what is written: see readEnv.
type JSON string

// MarshalJSON writes the text as it is.
func (j JSON) MarshalJSON() ([]byte, error) { return []byte(cmp.Or(j, "null")), nil }

// UnmarshalJSON reads any value.
func (j *JSON) UnmarshalJSON(text []byte) (err error) {
	*j, err = readJSON(text)
	return err
}

// Message is one turn of a conversation.
type Message struct {
	Role       string `json:"role"`
	Content    string `json:"content"`
	Thinking   string `json:"reasoning_content,omitempty"` // what an assistant thought before it
	ToolCalls  JSON   `json:"tool_calls,omitempty"`        // a list, as OpenAI and Hugging Face have it; arguments are an object, or its text
	ToolCallID string `json:"tool_call_id,omitempty"`      // which call a turn of a tool answers
	Name       string `json:"name,omitempty"`
	Context    bool   `json:"-"` // nobody learns it, although an assistant wrote it: "train": false
}

// MarshalJSON writes a turn as rows have it.
func (m Message) MarshalJSON() ([]byte, error) {
	type plain Message
	line := struct {
		plain
		Train *bool `json:"train,omitempty"`
	}{plain: plain(m)}
	if m.Context {
		line.Train = new(bool)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(line)
	return b.Bytes(), err
}

// Text is the turn for people, and for what compares answers as texts: its content, and its calls
// behind that.
func (m Message) Text() string {
	if m.ToolCalls == "" {
		return m.Content
	}
	return strings.TrimPrefix(m.Content+"\n"+string(m.ToolCalls), "\n")
}

// turnKeys are the keys of a turn that a Message carries beside role and text.
var TurnKeys = []string{"tool_calls", "tool_call_id", "name", "reasoning_content", "train"}

// otherThoughts are other keys for reasoning_content, which counts before them: of turns, and of
// columns with texts.
var OtherThoughts = []string{"thinking", "reasoning"}

// jsonLimit bounds the nesting of a value.
const JSONLimit = 32

// readJSON brings a value to the form of JSON.
func readJSON(text []byte) (JSON, error) {
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
		writeString(b, tok)
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
			writeString(b, key.(string))
			b.WriteByte(':')
			b.WriteString(value.String())
		}
		b.WriteByte('}')
		_, err = d.Token()
		return err
	}
	return nil
}

func writeString(b *strings.Builder, s string) {
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

// ReadList parses a list of objects, or a text that contains one: column types for any JSON are
// rare, so that many sets have it as a text.
func ReadList(key string, value []byte) (JSON, []json.RawMessage, error) {
	if value[0] == '"' {
		t, err := jsonText(key, value)
		if err != nil {
			return "", nil, err
		}
		if value = bytes.TrimSpace([]byte(t.S)); len(value) == 0 {
			return "", nil, nil
		}
	}
	j, err := readJSON(value)
	if err != nil {
		return "", nil, &Fault{key, Preview(string(value), 40), "not JSON",
			"write a list of objects"}
	}
	var list []json.RawMessage
	if json.Unmarshal([]byte(j), &list) != nil {
		return "", nil, &Fault{key, Preview(string(value), 40), "not a list",
			"write a list of objects"}
	}
	for i, e := range list {
		if e[0] != '{' {
			return "", nil, &Fault{key,
				fmt.Sprintf("element %d is %s", i, Preview(string(e), 40)), "not an object",
				"write a list of objects"}
		}
	}
	if len(list) == 0 {
		j = ""
	}
	return j, list, nil
}

// ReadEnv parses a row's data for an environment: any value; null is "". The value is opaque, so
// that only blanks are removed, while numbers, escapes and nulls inside stay as written. A value
// that readJSON refuses is refused.
func ReadEnv(key string, value []byte) (JSON, error) {
	if !utf8.Valid(value) {
		return "", &Fault{key, "", "not valid UTF-8", "re-encode the text"}
	}
	_, err := readJSON(value)
	var b bytes.Buffer
	switch {
	case err == nil:
		err = json.Compact(&b, value)
	case !json.Valid(value):
		err = errors.New("not JSON")
	}
	if err != nil {
		return "", &Fault{key, Preview(string(value), 40), err.Error(),
			"write a JSON value, or rename the column if it is for no environment"}
	}
	if b.String() == "null" {
		return "", nil
	}
	return JSON(b.String()), nil
}

// ReadTools parses the tools of a conversation: a list of objects, or a text that contains one. No
// tools are "".
func ReadTools(value []byte) (JSON, error) {
	tools, _, err := ReadList("tools", value)
	return tools, withoutColumn(err)
}

// ReadCalls parses the tool_calls of a turn: a list of calls, each of which names a function; its
// arguments are an object, or its text. No calls are "".
func ReadCalls(value []byte) (JSON, error) {
	calls, err := readCalls(value)
	return calls, withoutColumn(err)
}

// withoutColumn returns a Fault as an error without the column's name.
func withoutColumn(err error) error {
	if fault, ok := err.(*Fault); ok {
		return errors.New(fault.reason())
	}
	return err
}

// readCalls parses the tool_calls of a turn.
func readCalls(value []byte) (JSON, error) {
	j, list, err := ReadList("tool_calls", value)
	if err != nil {
		return "", err
	}
	for i, e := range list {
		if list[i], err = oneCall(i, e); err != nil {
			return "", err
		}
	}
	if len(list) == 0 {
		return j, nil
	}
	whole, err := json.Marshal(list)
	if err != nil {
		return "", err
	}
	return readJSON(whole)
}

// oneCall returns call i in the form that templates read: {"function": {"name", "arguments"}}. A
// bare {"name", "arguments"} is wrapped, and absent arguments (no key, null, an empty text or the
// text null) are {}.
func oneCall(i int, e json.RawMessage) (json.RawMessage, error) {
	bad := func(what, why, way string) error {
		return &Fault{"tool_calls", fmt.Sprintf("call %d%s", i, what), why, way}
	}
	var around []callKey // keys of the call itself
	of := e
	if err := EachKey(e, func(key string, value json.RawMessage) error {
		if key == "function" && string(value) != "null" {
			of = value
		}
		around = append(around, callKey{key, value})
		return nil
	}); err != nil {
		return nil, bad("", err.Error(), "")
	}
	if of[0] != '{' {
		return nil, bad(": function is "+Preview(string(of), 40), "not an object",
			`write {"name": ..., "arguments": {...}}`)
	}
	wrapped := string(of) != string(e)
	var inner []callKey
	name, arguments := Text{}, false
	if err := EachKey(of, func(key string, value json.RawMessage) (err error) {
		switch key {
		case "name":
			if name, err = jsonText("name", value); err != nil {
				name, err = Text{}, nil
			}
		case "arguments":
			arguments = true
			t, _ := jsonText(key, value)
			if s := strings.TrimSpace(t.S); string(value) == "null" || t.OK &&
				(s == "" || s == "null") {
				value = json.RawMessage("{}")
			}
			if value[0] != '{' && value[0] != '"' {
				return bad(": arguments are "+Preview(string(value), 40),
					"neither an object nor its text", `write {"name": ..., "arguments": {...}}`)
			}
		}
		if wrapped || key == "name" || key == "arguments" {
			inner = append(inner, callKey{key, value})
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if strings.TrimSpace(name.S) == "" {
		return nil, bad("", "names no function",
			`write {"function": {"name": ..., "arguments": {...}}}`)
	}
	if !arguments {
		inner = append(inner, callKey{"arguments", json.RawMessage("{}")})
	}
	function := objectOf(inner)
	if !wrapped {
		around = slices.DeleteFunc(around, func(k callKey) bool {
			return k.key == "name" || k.key == "arguments" || k.key == "function"
		})
		around = append(around, callKey{"function", function})
	}
	for k := range around {
		if around[k].key == "function" {
			around[k].value = function
		}
	}
	return objectOf(around), nil
}

// callKey is a key of a call with its value.
type callKey struct {
	key   string
	value json.RawMessage
}

// objectOf returns an object with the keys in their order.
func objectOf(keys []callKey) json.RawMessage {
	var b strings.Builder
	b.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		writeString(&b, k.key)
		b.WriteByte(':')
		b.Write(k.value)
	}
	b.WriteByte('}')
	return json.RawMessage(b.String())
}

// CalledIn returns a turn of function_call, as ShareGPT writes it: its text is the call.
func CalledIn(column string, i int, m Message) (Message, *Fault) {
	value := []byte(strings.TrimSpace(m.Content))
	if len(value) > 0 && value[0] == '{' {
		value = slices.Concat([]byte("["), value, []byte("]"))
	}
	calls, err := JSON(""), error(&Fault{column, Preview(m.Content, 40), "no call", ""})
	if len(value) > 0 && value[0] == '[' {
		calls, err = readCalls(value)
	}
	if err != nil || calls == "" {
		return m, &Fault{column, fmt.Sprintf("turn %d: function_call is %s", i, Preview(m.Content, 40)), "not a call", `write {"name": ..., "arguments": {...}}`}
	}
	return Message{Role: "assistant", ToolCalls: calls, Context: m.Context}, nil
}
