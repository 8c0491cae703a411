package data

import (
	"cmp"
	"encoding/json"
	"slices"
)

// A content may be a list of blocks, as Anthropic's messages have it. Texts are joined; thinking is
// what the turn thought, tool_use a call, and tool_result a turn of the tool before what the user
// says beside it. A block of another type is refused: nothing is left out in silence.

// block is one part of a content.
type block struct {
	kind, text, thinking text
	id, name, of         text // of a call; of: the call that a result is of
	input, content       json.RawMessage
}

// readBlock reads one part.
func readBlock(p json.RawMessage) (b block, err error) {
	err = eachKey(p, func(key string, value json.RawMessage) (err error) {
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

// blocks reads a content in parts into the turn.
func (t *rawTurn) blocks(key string, value json.RawMessage) error {
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
			t.content = text{t.content.s + s.s, true}
			continue
		}
		b, err := readBlock(p)
		if err != nil {
			return err
		}
		switch {
		case textPart(b.kind, b.text):
			t.content = text{t.content.s + b.text.s, true}
		case b.kind.s == "thinking" && b.thinking.ok:
			t.thought = text{t.thought.s + b.thinking.s, true}
		case b.kind.s == "tool_use" && b.name.ok:
			call := []callKey{{"id", quotedText(b.id.s)}, {"type", quotedText("function")},
				{"function", objectOf([]callKey{{"name", quotedText(b.name.s)},
					{"arguments", slices.Concat(b.input)}})}}
			if b.input == nil {
				call[2].value = objectOf([]callKey{{"name", quotedText(b.name.s)}})
			}
			if !b.id.ok {
				call = call[1:]
			}
			calls = append(calls, objectOf(call))
		case b.kind.s == "tool_result":
			result := rawTurn{role: text{"tool", true}, id: b.of, content: text{"", true}}
			switch {
			case b.content == nil:
			case b.content[0] == '[':
				err = result.blocks(key, b.content)
			default:
				result.content, err = jsonText("content", b.content)
			}
			if err != nil {
				return err
			}
			if result.part == "" && (result.calls != "" || len(result.before) > 0) {
				result.part = b.kind.s
			}
			if t.part = cmp.Or(t.part, result.part); t.part != "" {
				return nil
			}
			t.before = append(t.before, result)
		default:
			t.part = cmp.Or(b.kind.s, "unknown")
			return nil
		}
	}
	if calls == nil {
		return nil
	}
	whole, err := json.Marshal(calls)
	if err == nil {
		t.calls, err = readCalls(whole)
	}
	return err
}

// areBlocks reports whether a value is a list of blocks, and no list of turns: its first has a type
// and no role.
func areBlocks(value json.RawMessage, role string) bool {
	keys := turnKeysOf(string(value))
	return slices.Contains(keys, "type") && !slices.Contains(keys, role)
}

// jsonParts is jsonText of a text that may be in blocks of text.
func jsonParts(key string, value json.RawMessage) (text, error) {
	if value[0] != '[' {
		return jsonText(key, value)
	}
	var t rawTurn
	if err := t.blocks(key, value); err != nil {
		return text{}, &rowFault{key, "", err.Error(), ""}
	}
	if t.part != "" || t.thought.ok || t.calls != "" || t.before != nil {
		return text{}, &rowFault{key, preview(string(value), 40), "not text alone",
			"write it as text"}
	}
	return t.content, nil
}

// plainPart reports whether a part of a content has no keys but those of text.
func plainPart(keys []string) bool {
	return !slices.ContainsFunc(keys, func(k string) bool { return k != "text" && k != "type" })
}
