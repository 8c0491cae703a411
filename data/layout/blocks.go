package layout

import (
	"cmp"
	"encoding/json"
	"slices"
)

// A content may be a list of blocks, as Anthropic's messages have it. Texts are joined; thinking is
// the turn's thought, tool_use a call, and tool_result a turn of the tool that precedes the user's
// own text. A block of another type is refused: nothing is left out silently.

// block is one part of a content.
type block struct {
	kind, text, thinking Text
	id, name, of         Text // of a call; of: the call that a result is of
	input, content       json.RawMessage
}

// readBlock parses one part.
func readBlock(p json.RawMessage) (b block, err error) {
	err = EachKey(p, func(key string, value json.RawMessage) (err error) {
		switch {
		case string(value) == "null":
		case key == "text":
			b.text, err = jsonText(key, value)
		case key == "type":
			b.kind, err = jsonText(key, value)
		case key == "thinking":
			b.thinking, err = jsonText(key, value)
		case key == "id":
			b.id, err = jsonText(key, value)
		case key == "name":
			b.name, err = jsonText(key, value)
		case key == "tool_use_id":
			b.of, err = jsonText(key, value)
		case key == "input":
			b.input = value
		case key == "content":
			b.content = value
		}
		return err
	})
	return b, err
}

// blocks parses a content in parts into the turn.
func (t *Turn) blocks(key string, value json.RawMessage) error {
	var list []json.RawMessage
	if err := json.Unmarshal(value, &list); err != nil {
		return err
	}
	var calls []json.RawMessage
	for _, p := range list {
		if p[0] == '"' {
			s, err := jsonText(key, p)
			if err != nil {
				return err
			}
			t.Content = Text{t.Content.S + s.S, true}
			continue
		}
		b, err := readBlock(p)
		if err != nil {
			return err
		}
		switch {
		case TextPart(b.kind, b.text):
			t.Content = Text{t.Content.S + b.text.S, true}
		case b.kind.S == "thinking" && b.thinking.OK:
			t.Thought = Text{t.Thought.S + b.thinking.S, true}
		case b.kind.S == "tool_use" && b.name.OK:
			call := []callKey{{"id", QuotedText(b.id.S)}, {"type", QuotedText("function")},
				{"function", objectOf([]callKey{{"name", QuotedText(b.name.S)},
					{"arguments", slices.Concat(b.input)}})}}
			if b.input == nil {
				call[2].value = objectOf([]callKey{{"name", QuotedText(b.name.S)}})
			}
			if !b.id.OK {
				call = call[1:]
			}
			calls = append(calls, objectOf(call))
		case b.kind.S == "tool_result":
			result := Turn{Role: Text{"tool", true}, ID: b.of, Content: Text{"", true}}
			switch {
			case b.content == nil:
			case b.content[0] == '[':
				err = result.blocks(key, b.content)
			default:
				result.Content, err = jsonText("content", b.content)
			}
			if err != nil {
				return err
			}
			if result.Part == "" && (result.Calls != "" || len(result.before) > 0) {
				result.Part = b.kind.S
			}
			if t.Part = cmp.Or(t.Part, result.Part); t.Part != "" {
				return nil
			}
			t.before = append(t.before, result)
		default:
			t.Part = cmp.Or(b.kind.S, "unknown")
			return nil
		}
	}
	if calls == nil {
		return nil
	}
	whole, err := json.Marshal(calls)
	if err == nil {
		t.Calls, err = readCalls(whole)
	}
	return err
}

// areBlocks reports whether a value is a list of blocks, not of turns: its first element has a type
// and no role.
func areBlocks(value json.RawMessage, role string) bool {
	keys := turnKeysOf(string(value))
	return slices.Contains(keys, "type") && !slices.Contains(keys, role)
}

// jsonParts parses a text that may be in blocks of text.
func jsonParts(key string, value json.RawMessage) (Text, error) {
	if value[0] != '[' {
		return jsonText(key, value)
	}
	var t Turn
	if err := t.blocks(key, value); err != nil {
		return Text{}, &Fault{key, "", err.Error(), ""}
	}
	if t.Part != "" || t.Thought.OK || t.Calls != "" || t.before != nil {
		return Text{}, &Fault{key, Preview(string(value), 40), "not text alone",
			"write it as text"}
	}
	return t.Content, nil
}

// PlainPart reports whether a part of a content has the keys of text only.
func PlainPart(keys []string) bool {
	return !slices.ContainsFunc(keys, func(k string) bool { return k != "text" && k != "type" })
}
