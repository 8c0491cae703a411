package data

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// One rule says what the value of a column means, whatever format a file has: the value is written
// as JSON and read here. JSON lines are read so always; of Arrow, Parquet and CSV those columns are
// that no faster reader knows, as a list of JSON texts, a number as an answer, or a path.

// column reads one column's value, which is not null, into a row.
func (l layout) column(raw *rawRow, key string, value json.RawMessage) (err error) {
	switch key {
	case "":
	case l.Content:
		var c conversation
		c, err = l.jsonTurns(key, value)
		raw.take(c, err == nil)
	case l.Teacher:
		if turnsIn(value) {
			if areBlocks(value, l.role) { // the answer's content alone
				value = objectOf([]callKey{{l.role, quotedText("assistant")}, {l.text, value}})
			}
			if value[0] == '{' { // the answer's turn alone
				value = slices.Concat([]byte("["), value, []byte("]"))
			}
			var c conversation
			c, err = l.jsonTurns(key, value)
			raw.takeAnswer(c, err == nil)
			break
		}
		raw.teacher, err = jsonAnswer(key, value)
	case l.input:
		raw.input, err = jsonText(key, value)
	case l.system:
		raw.system, err = jsonParts(key, value)
	case l.thought:
		raw.thought, err = jsonText(key, value)
	case l.tools:
		raw.tools, _, err = readList(key, value)
	case l.env:
		raw.env, err = readEnv(key, value)
	case l.logprobs:
		raw.logprobs, err = readLogprobsOf(key, value)
	case l.Response:
		raw.response, err = jsonAnswer(key, value)
	case l.ID:
		raw.id, err = jsonText(key, value)
		if value[0] != '"' {
			raw.id, err = text{string(value), true}, nil
		}
	case l.Finish:
		if value[0] == '"' { // of another type it means something else
			raw.finish, err = jsonText(key, value)
		}
	case l.PromptIDs:
		raw.promptIDs, err = jsonIDs(key, value)
	case l.ResponseIDs:
		raw.responseIDs, err = jsonIDs(key, value)
	case "content", "messages", "conversations", "conversation", "prompt", "instruction",
		"question":
		raw.elsewhere = key
	default:
		switch {
		case l.system == "" && slices.Contains(l.lateSystem, key):
			raw.system, err = jsonParts(key, value)
		case slices.Contains(l.watched, key) && !jsonBlank(value):
			raw.unread = append(raw.unread, key)
		}
	}
	return err
}

// jsonAnswer is jsonText of an answer, which may be a number as well: it is learned as written.
func jsonAnswer(key string, value json.RawMessage) (text, error) {
	if c := value[0]; (c == '-' || c >= '0' && c <= '9') && json.Valid(value) {
		return text{string(value), true}, nil
	}
	return jsonText(key, value)
}

// nestedPath is a value inside of a column, as a setting names it: COLUMN.KEY.INDEX.
type nestedPath struct {
	name, root string
	keys       []string
}

// pathTo is the nested path that name means among the columns of a file; ok is false where it is a
// column itself, or none.
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

// in returns the value at the path in its column's; nil where there is none. A text on the way that
// is JSON counts as its value, as exports of tables and traces have it.
func (p nestedPath) in(value json.RawMessage) (json.RawMessage, error) {
	for _, key := range p.keys {
		value = bytes.TrimSpace(value)
		if len(value) > 0 && value[0] == '"' {
			t, err := jsonText(p.root, value)
			if err != nil {
				return nil, err
			}
			if value = bytes.TrimSpace([]byte(t.s)); !json.Valid(value) {
				return nil, nil
			}
		}
		if len(value) == 0 {
			return nil, nil
		}
		var next json.RawMessage
		switch value[0] {
		case '{':
			if err := eachKey(value, func(k string, v json.RawMessage) error {
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
				return nil, &rowFault{p.root, "", err.Error(), ""}
			}
			at, err := strconv.Atoi(key)
			if err != nil {
				return nil, &rowFault{p.name, key, fmt.Sprintf("%d elements stand there", len(list)),
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

// nestedIn reads the paths that lead into a column of a row.
func (l layout) nestedIn(raw *rawRow, column string, value json.RawMessage) error {
	for _, p := range l.paths {
		if p.root != column {
			continue
		}
		v, err := p.in(value)
		if err == nil && v != nil {
			err = l.column(raw, p.name, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leads reports whether a path leads into a column.
func (l layout) leads(column string) bool {
	return slices.ContainsFunc(l.paths, func(p nestedPath) bool { return p.root == column })
}

// quotedText is a text as JSON.
func quotedText(s string) json.RawMessage {
	var b strings.Builder
	writeString(&b, s)
	return json.RawMessage(b.String())
}
