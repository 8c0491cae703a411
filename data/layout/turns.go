package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"gad/internal/chat"
)

// Types that rows share with chat APIs, environments and chat templates.
type (
	// Message is one turn of a conversation.
	Message = chat.Message
	// JSON is a JSON text in one form.
	JSON = chat.JSON
)

// JSONLimit bounds the nesting of a value.
const JSONLimit = chat.JSONLimit

// turnKeys are the keys of a turn that a Message carries beside role and text.
var TurnKeys = []string{"tool_calls", "tool_call_id", "name", "reasoning_content", "train"}

// otherThoughts are other keys for reasoning_content, which counts before them: of turns, and of
// columns with texts.
var OtherThoughts = []string{"thinking", "reasoning"}

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
	j, err := chat.ReadJSON(value)
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
	_, err := chat.ReadJSON(value)
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
	return chat.ReadJSON(whole)
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
		chat.WriteString(&b, k.key)
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
