package layout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gad/internal/chat"
)

// One rule gives a column's value its meaning, whatever format a file has: the value is written as
// JSON and parsed here. JSON lines always are; of Arrow, Parquet and CSV the columns without a
// faster reader are, such as a list of JSON texts, a number as an answer, or a path.

// Column parses one column's value, which is not null, into a row.
func (l Layout) Column(raw *Raw, key string, value json.RawMessage) (err error) {
	switch key {
	case "":
	case l.Content:
		var c Conversation
		c, err = l.JSONTurns(key, value)
		raw.Take(c, err == nil)
	case l.Teacher:
		if turnsIn(value) {
			if areBlocks(value, l.Role) { // the answer's content alone
				value = objectOf([]callKey{{l.Role, QuotedText("assistant")}, {l.Text, value}})
			}
			if value[0] == '{' { // the answer's turn alone
				value = slices.Concat([]byte("["), value, []byte("]"))
			}
			var c Conversation
			c, err = l.JSONTurns(key, value)
			raw.TakeAnswer(c, err == nil)
			break
		}
		raw.Teacher, err = jsonAnswer(key, value)
	case l.Input:
		raw.Input, err = jsonText(key, value)
	case l.System:
		raw.System, err = jsonParts(key, value)
	case l.Thought:
		raw.Thought, err = jsonText(key, value)
	case l.Tools:
		raw.Tools, _, err = ReadList(key, value)
	case l.Env:
		raw.Env, err = ReadEnv(key, value)
	case l.Logprobs:
		raw.Logprobs, err = ReadLogprobsOf(key, value)
	case l.Response:
		raw.Response, err = jsonAnswer(key, value)
	case l.TeacherPrompt:
		var c Conversation
		c, err = l.JSONTurns(key, value)
		raw.TeacherPrompt = c.Turns
	case l.ID:
		raw.ID, err = jsonText(key, value)
		if value[0] != '"' {
			raw.ID, err = Text{string(value), true}, nil
		}
	case l.Finish:
		if value[0] == '"' { // of another type it means something else
			raw.Finish, err = jsonText(key, value)
		}
	case l.PromptIDs:
		raw.PromptIDs, err = jsonIDs(key, value)
	case l.ResponseIDs:
		raw.ResponseIDs, err = jsonIDs(key, value)
	case "content", "messages", "conversations", "conversation", "prompt", "instruction",
		"question":
		raw.Elsewhere = key
	default:
		switch {
		case l.System == "" && slices.Contains(l.lateSystem, key):
			raw.System, err = jsonParts(key, value)
		case slices.Contains(l.Watched, key) && !jsonBlank(value):
			raw.Unread = append(raw.Unread, key)
		}
	}
	return err
}

// jsonAnswer parses an answer, a text or a number: a number is learned as written.
func jsonAnswer(key string, value json.RawMessage) (Text, error) {
	if c := value[0]; (c == '-' || c >= '0' && c <= '9') && json.Valid(value) {
		return Text{string(value), true}, nil
	}
	return jsonText(key, value)
}

// nestedPath is a value inside a column, named in a setting as COLUMN.KEY.INDEX.
type nestedPath struct {
	name, root string
	keys       []string
}

// pathTo returns the nested path that name stands for among the columns of a file; ok is false if
// it is a column itself, or leads nowhere.
func pathTo(name string, columns []string) (p nestedPath, ok bool) {
	keys := strings.Split(name, ".")
	if len(keys) < 2 || slices.Contains(columns, name) || slices.Contains(keys, "") {
		return p, false
	}
	for n := len(keys) - 1; n > 0; n-- { // a column may have dots in its own name
		if root := strings.Join(keys[:n], "."); slices.Contains(columns, root) {
			return nestedPath{name, root, keys[n:]}, true
		}
	}
	return p, false
}

// lookup returns the value at the path in a column's value; nil if it is absent. A text on the way
// that is JSON is parsed, as exports of tables and traces need it.
func (p nestedPath) lookup(value json.RawMessage) (json.RawMessage, error) {
	for _, key := range p.keys {
		value = bytes.TrimSpace(value)
		if len(value) > 0 && value[0] == '"' {
			t, err := jsonText(p.root, value)
			if err != nil {
				return nil, err
			}
			if value = bytes.TrimSpace([]byte(t.S)); !json.Valid(value) {
				return nil, nil
			}
		}
		if len(value) == 0 {
			return nil, nil
		}
		var next json.RawMessage
		switch value[0] {
		case '{':
			if err := EachKey(value, func(k string, v json.RawMessage) error {
				if k == key {
					next = v
				}
				return nil
			}); err != nil {
				return nil, err
			}
		case '[':
			var list []json.RawMessage
			if err := json.Unmarshal(value, &list); err != nil {
				return nil, &Fault{p.root, "", err.Error(), ""}
			}
			at, err := strconv.Atoi(key)
			if err != nil {
				return nil, &Fault{p.name, key, fmt.Sprintf("%d elements stand there", len(list)),
					"name one by its number, from 0; negative numbers count from the end"}
			}
			if at < 0 {
				at += len(list)
			}
			if at >= 0 && at < len(list) {
				next = list[at]
			}
		}
		if value = next; value == nil || string(value) == "null" {
			return nil, nil
		}
	}
	return value, nil
}

// NestedIn parses the paths that lead into a column of a row.
func (l Layout) NestedIn(raw *Raw, column string, value json.RawMessage) error {
	for _, p := range l.paths {
		if p.root != column {
			continue
		}
		v, err := p.lookup(value)
		if err == nil && v != nil {
			err = l.Column(raw, p.name, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Leads reports whether a path leads into a column.
func (l Layout) Leads(column string) bool {
	return slices.ContainsFunc(l.paths, func(p nestedPath) bool { return p.root == column })
}

// QuotedText returns a text as JSON.
func QuotedText(s string) json.RawMessage {
	var b strings.Builder
	chat.WriteString(&b, s)
	return json.RawMessage(b.String())
}
