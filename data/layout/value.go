package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"gad/data/input"
	"gad/internal/chat"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// JSONFault returns ErrTruncated for JSON that ends too early, else ErrCorrupt.
func JSONFault(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return input.ErrTruncated
	}
	return input.ErrCorrupt
}

// EachKey calls f for every key of a JSON object, with the key exactly as written (encoding/json
// would match other cases of a struct's field too), and refuses repeated keys.
func EachKey(object []byte, f func(key string, value json.RawMessage) error) error {
	var room [16]jsonField
	if fields, ok := scanObject(room[:0], object); ok {
		for _, field := range fields {
			if err := f(field.key, field.value); err != nil {
				return err
			}
		}
		return nil
	}
	readable := replaceNaN(object)
	d := json.NewDecoder(bytes.NewReader(readable))
	if t, err := d.Token(); err != nil {
		return fmt.Errorf("%v: %w", err, JSONFault(err))
	} else if t != json.Delim('{') {
		return fmt.Errorf("%s: not a JSON object: %w", Preview(string(bytes.TrimSpace(object)), 20),
			input.ErrCorrupt)
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return fmt.Errorf("%v: %w", err, JSONFault(err))
		}
		key, ok := t.(string)
		if !ok {
			return fmt.Errorf("key %v: not a string: %w", t, input.ErrCorrupt)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("key %q: %v: %w", key, err, JSONFault(err))
		}
		if seen[key] {
			return fmt.Errorf("key %q: appears twice: %w", key, input.ErrCorrupt)
		}
		seen[key] = true
		if end := int(d.InputOffset()); !bytes.Equal(readable, object) {
			value = object[end-len(value) : end] // as it is written: NaN is no value of a column
		}
		if err := f(key, value); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("%v: %w", err, JSONFault(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("text after the object: %w", input.ErrCorrupt)
	}
	return nil
}

// replaceNaN returns text of the same length with 0 in place of NaN, Infinity and -Infinity, which
// Python writes and JSON does not have. A NaN in a column that is not read then does no harm.
func replaceNaN(object []byte) []byte {
	if !bytes.Contains(object, []byte("NaN")) && !bytes.Contains(object, []byte("Infinity")) {
		return object
	}
	out, quoted := bytes.Clone(object), false
	for i := 0; i < len(out); i++ {
		switch c := out[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case bytes.HasPrefix(out[i:], []byte("NaN")):
			copy(out[i:], "0.0")
		case bytes.HasPrefix(out[i:], []byte("Infinity")):
			copy(out[i:], "0.000000")
		}
	}
	return out
}

// jsonText parses a JSON string.
func jsonText(column string, value json.RawMessage) (Text, error) {
	var s string
	if s := string(value); s == "NaN" || s == "Infinity" || s == "-Infinity" {
		return Text{}, &Fault{column, s, "not JSON", "write null"}
	}
	if value[0] != '"' {
		return Text{}, &Fault{column, Preview(string(value), 20), "not a string",
			"write it as text"}
	}
	if utf8.Valid(value) && skipString(value, 0) == len(value) {
		return Text{unquote(value), true}, nil
	}
	if err := json.Unmarshal(value, &s); err != nil {
		return Text{}, &Fault{column, "", err.Error(), ""}
	}
	return Text{s, true}, nil
}

// jsonBlank reports whether a value is null, a blank text, or an empty list or object.
func jsonBlank(value json.RawMessage) bool {
	switch value[0] {
	case 'n':
		return true
	case '[', '{':
		return len(bytes.TrimSpace(value[1:len(value)-1])) == 0
	case '"':
		t, err := jsonText("", value)
		return err == nil && strings.TrimSpace(t.S) == ""
	}
	return false
}

// turnsIn reports whether a value is turns: a list of objects, or one object.
func turnsIn(value []byte) bool {
	if value[0] == '[' {
		value = bytes.TrimLeft(value[1:], " \t\r\n")
	}
	return value[0] == '{'
}

// JSONTurns parses a conversation: a list of objects with role and content, or one string.
func (l Layout) JSONTurns(column string, value json.RawMessage) (c Conversation, err error) {
	if value[0] == '"' {
		s, err := jsonText(column, value)
		if err != nil {
			return c, err
		}
		return l.StringTurns(column, s.S)
	}
	var list []json.RawMessage
	if value[0] != '[' {
		return c, &Fault{column, Preview(string(value), 20), "neither a list of turns nor a string", fmt.Sprintf(`write [{"%s": ..., "%s": ...}]`, l.Role, l.Text)}
	}
	var room [8]json.RawMessage
	if scanned, ok := ScanList(room[:0], value); ok {
		list = scanned
	} else if err := json.Unmarshal(value, &list); err != nil {
		return c, &Fault{column, "", err.Error(), ""}
	}
	c.Turns = make([]Message, 0, len(list))
	for i, turn := range list {
		if turn[0] != '{' {
			if way := serialized(column, turnKeysOf(string(turn))); way != "" {
				return c, &Fault{column, "turn " + strconv.Itoa(i),
					"messages as LangChain writes them", way}
			}
			return c, &Fault{column, "turn " + strconv.Itoa(i),
				Preview(string(turn), 30) + " is no object with " + l.Role + " and " + l.Text,
				"rewrite such turns: see doc/data.md"}
		}
		var t Turn
		err := EachKey(turn, func(key string, value json.RawMessage) (err error) {
			switch {
			case string(value) == "null":
			case key == l.Role:
				t.Role, err = jsonText(key, value)
			case key == l.Text && value[0] == '[':
				err = t.blocks(key, value)
			case key == l.Text:
				t.Content, err = jsonAnswer(key, value)
			case key == WeightKey:
				w, fault := strconv.ParseFloat(string(value), 64)
				t.Context = t.Context || fault == nil && w == 0
			case key == TrainKey:
				if t.Context = t.Context || string(value) == "false"; value[0] != 't' &&
					value[0] != 'f' {
					err = &Fault{key, Preview(string(value), 20), "neither true nor false", ""}
				}
			case key == "tool_calls":
				t.Calls, err = readCalls(value)
			case key == "tool_call_id":
				t.ID, err = jsonText(key, value)
			case key == "name":
				t.Name, err = jsonText(key, value)
			case key == "reasoning_content":
				t.Thought, err = jsonText(key, value)
			case slices.Contains(OtherThoughts, key) && value[0] == '"':
				if !t.Thought.OK { // the first that is there, as in transformers
					t.Thought, err = jsonText(key, value)
				}
			case key == OldCallKey && !jsonBlank(value):
				t.Refused = key
			case key == "refusal" && !jsonBlank(value):
				t.declined = true
			case slices.Contains(MaybeTurn, key) && !jsonBlank(value):
				t.Unread = append(t.Unread, key)
			}
			return err
		})
		if err != nil {
			return c, &Fault{column, "turn " + strconv.Itoa(i), err.Error(), ""}
		}
		if err := c.Add(l, column, t); err != nil {
			if way := serialized(column, turnKeysOf(string(value))); !t.Role.OK && way != "" {
				err = &Fault{column, "turn " + strconv.Itoa(i), "a message as LangChain writes it",
					way}
			}
			return c, err
		}
	}
	return c, nil
}

// TextPart reports whether a part of a content is text.
func TextPart(kind, t Text) bool {
	return t.OK && slices.Contains([]string{"text", "input_text", "output_text", ""}, kind.S)
}

// Turn is a turn as the file has it.
type Turn struct {
	Role, Content Text
	Part          string // type of a part of the content that is not text; "" is none
	Calls         JSON
	ID, Name      Text
	Thought       Text
	// key under which the turn calls tools in a form that is not supported; "" is none
	Refused  string
	declined bool     // its text stands under "refusal", as OpenAI has it
	before   []Turn   // turns inside its content that precede it: results of tools
	Context  bool     // weight 0, or "train": false
	Unread   []string // watched keys with a value
}

// Conversation is turns, with the facts that a Message does not carry.
type Conversation struct {
	Turns  []Message
	unread []string // watched keys of some turn, as COLUMN[].KEY
}

// Add appends a turn, or returns a Fault for an unusable turn.
func (c *Conversation) Add(l Layout, column string, t Turn) error {
	for _, b := range t.before {
		if err := c.Add(l, column, b); err != nil {
			return err
		}
	}
	if len(t.before) > 0 && !t.Content.OK && t.Calls == "" && t.Part == "" {
		return nil // results alone
	}
	turn := "turn " + strconv.Itoa(len(c.Turns))
	needs := fmt.Sprintf("each turn needs %s and %s", l.Role, l.Text)
	switch {
	case !t.Role.OK:
		return &Fault{column, turn, "has no " + l.Role, needs}
	case t.Refused != "":
		return &Fault{column, turn, "has " + t.Refused + ", which gad does not read",
			"write tool_calls, or remove the row"}
	case t.Part != "":
		return &Fault{column, turn,
			fmt.Sprintf("its %s has a part of type %q, and only text is read", l.Text, t.Part),
			"remove the row"}
	case !t.Content.OK && t.Calls == "" && t.declined:
		return &Fault{column, turn, "has a refusal and no " + l.Text,
			"remove the row, or write the refusal as " + l.Text}
	case !t.Content.OK && t.Calls == "":
		return &Fault{column, turn, "has no " + l.Text, needs}
	}
	c.Turns = append(c.Turns,
		Message{Role: RoleOf(t.Role.S), Content: t.Content.S, Thinking: t.Thought.S, ToolCalls: t.Calls,
			ToolCallID: t.ID.S, Name: t.Name.S, Context: t.Context})
	for _, key := range t.Unread {
		if name := column + "[]." + key; !slices.Contains(c.unread, name) {
			c.unread = append(c.unread, name)
		}
	}
	return nil
}

// RoleOf returns a role in gad's spelling: lower case for known roles, and system for OpenAI's
// developer, in training as in serving. Others are returned unchanged.
func RoleOf(role string) string {
	switch lower := strings.ToLower(role); lower {
	case "developer":
		return "system"
	case "system", "user", "assistant", "tool":
		return lower
	}
	return role
}

// Take sets a conversation as the row's prompt.
func (r *Raw) Take(c Conversation, ok bool) {
	r.Turns, r.TurnsOK, r.Unread = c.Turns, ok, append(r.Unread, c.unread...)
}

// TakeAnswer sets turns as the row's answer.
func (r *Raw) TakeAnswer(c Conversation, ok bool) {
	r.Answer, r.AnswerOK, r.Unread = c.Turns, ok, append(r.Unread, c.unread...)
}

// StringTurns parses a conversation that is stored as one string: a JSON list of turns, or else the
// user's text.
func (l Layout) StringTurns(column, s string) (Conversation, error) {
	t := strings.TrimSpace(s)
	switch {
	case strings.HasPrefix(t, "[{'"): // what str() makes of a list of dicts
		return Conversation{}, &Fault{column, Preview(t, 40),
			"a conversation as Python prints it, not text", "write it as JSON (json.dumps)"}
	case !strings.HasPrefix(t, "[") || !json.Valid([]byte(t)):
		return Conversation{Turns: []Message{{Role: "user", Content: s}}}, nil
	}
	keys := turnKeysOf(t)
	has := func(key string) bool { return slices.Contains(keys, key) }
	switch {
	case has(l.Role) || has(l.Text):
		return l.JSONTurns(column, json.RawMessage(t))
	case has("from") && has("value") || has("role") && has("content"):
		return Conversation{}, &Fault{column, Preview(t, 40),
			"its turns have the keys " + QuoteNames(keys), renameHint(column, keys)}
	}
	return Conversation{Turns: []Message{{Role: "user", Content: s}}}, nil
}

// IsTurn reports whether an answer's text is one turn of the assistant written as JSON, as traces
// have it. An object with other keys than those of a turn is a text.
func (l Layout) IsTurn(s string) bool {
	t := strings.TrimSpace(s)
	if !strings.HasPrefix(t, "{") || !json.Valid([]byte(t)) {
		return false
	}
	role, text, other := "", false, false
	err := EachKey([]byte(t), func(key string, value json.RawMessage) error {
		switch {
		case key == l.Role:
			said, _ := jsonText(key, value)
			role = RoleOf(said.S)
		case key == l.Text || key == "tool_calls":
			text = true
		default:
			other = other || !slices.Contains(slices.Concat(TurnKeys, OtherThoughts, traced), key)
		}
		return nil
	})
	return err == nil && text && !other && (role == "assistant" || l.Role == "from" && role == "gpt")
}

// traced are keys without a meaning here that an API's answer has beside those of a turn.
var traced = []string{"refusal", "annotations", "audio", OldCallKey}

// turnKeysOf returns the keys of the first element of a JSON list, if it is an object.
func turnKeysOf(list string) (keys []string) {
	var elems []json.RawMessage
	if json.Unmarshal([]byte(list), &elems) != nil || len(elems) == 0 || elems[0][0] != '{' {
		return nil
	}
	_ = EachKey(elems[0], func(key string, _ json.RawMessage) error {
		keys = append(keys, key)
		return nil
	})
	return keys
}

// jsonIDs parses a list of token ids.
func jsonIDs(column string, value json.RawMessage) ([]int32, error) {
	ids := []int32{}
	if err := json.Unmarshal(value, &ids); err != nil {
		return nil, &Fault{column, Preview(string(value), 20), "not a list of token ids",
			"write integers from 0 to 2^31-1"}
	}
	return ids, checkIDs(column, ids)
}

// checkIDs returns a Fault for a negative id.
func checkIDs(column string, ids []int32) error {
	for i, id := range ids {
		if id < 0 {
			return &Fault{column, fmt.Sprintf("element %d is %d", i, id), "not a token id",
				"write integers from 0 to 2^31-1"}
		}
	}
	return nil
}

// ListOf parses a text as ReadList does; a blank text is "".
func ListOf(key string, t Text) (JSON, error) {
	if !t.OK || strings.TrimSpace(t.S) == "" {
		return "", nil
	}
	var b strings.Builder
	chat.WriteString(&b, t.S)
	j, _, err := ReadList(key, []byte(b.String()))
	return j, err
}

// EnvOf parses a text as ReadEnv does; a blank text is "".
func EnvOf(key string, t Text) (JSON, error) {
	if !t.OK || strings.TrimSpace(t.S) == "" {
		return "", nil
	}
	return ReadEnv(key, []byte(t.S))
}

// WriteRaw writes a text that is JSON as its value.
func WriteRaw(b *strings.Builder, s string) error {
	if !utf8.ValidString(s) || !json.Valid([]byte(s)) {
		return fmt.Errorf("%s: not JSON, as the column's type says", Preview(s, 40))
	}
	if b.Len()+len(s) > MaxRowBytes {
		return fmt.Errorf("more than %d MiB in one row", MaxRowBytes>>20)
	}
	b.WriteString(strings.TrimSpace(s))
	return nil
}

// WriteText writes a text as a JSON string.
func WriteText(b *strings.Builder, s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("not valid UTF-8")
	}
	if b.Len()+len(s) > MaxRowBytes {
		return fmt.Errorf("more than %d MiB in one row", MaxRowBytes>>20)
	}
	chat.WriteString(b, s)
	return nil
}

// ActsAs reports whether turns have keys that only the JSON reader supports.
func ActsAs(keys []string) bool {
	return slices.ContainsFunc(keys, func(k string) bool {
		return slices.Contains(TurnKeys, k) || slices.Contains(OtherThoughts, k)
	})
}
