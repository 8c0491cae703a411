package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/jinja"
)

// expectedTurns is testdata/turns/expected.json.
type expectedTurns struct {
	Transformers string
	BOS          string `json:"bos_token"`
	EOS          string `json:"eos_token"`
	Chats        []struct {
		Name     string
		Messages []json.RawMessage
		Tools    json.RawMessage
	}
	Shapes []struct {
		Name, Wants, Template string
		Texts                 []struct{ Whole, Prompt struct{ Text, Error string } }
	}
}

func readTurns(t *testing.T, dir string) (e expectedTurns) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// chat is a conversation of the file. asText writes the arguments of calls as JSON texts.
func (e expectedTurns) chat(t *testing.T, i int, asText bool) (c Chat) {
	t.Helper()
	for _, raw := range e.Chats[i].Messages {
		var m struct {
			Role, Content, Name string
			Thinking            string          `json:"reasoning_content"`
			ID                  string          `json:"tool_call_id"`
			Calls               json.RawMessage `json:"tool_calls"`
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		if asText && m.Calls != nil {
			var calls []struct {
				ID       string `json:"id"`
				Type     string `json:"type"`
				Function struct {
					Name      string `json:"name"`
					Arguments any    `json:"arguments"`
				} `json:"function"`
			}
			var whole []struct {
				Function struct{ Arguments json.RawMessage }
			}
			if json.Unmarshal(m.Calls, &calls) != nil || json.Unmarshal(m.Calls, &whole) != nil {
				t.Fatal("calls")
			}
			for k := range calls {
				v, err := jinja.FromJSON(string(whole[k].Function.Arguments))
				if err != nil {
					t.Fatal(err)
				}
				if calls[k].Function.Arguments, err = jinja.ToJSON(v); err != nil {
					t.Fatal(err)
				}
			}
			var b bytes.Buffer
			enc := json.NewEncoder(&b)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(calls); err != nil {
				t.Fatal(err)
			}
			m.Calls = b.Bytes()
		}
		c.Messages = append(c.Messages,
			Message{Role: m.Role, Content: m.Content, Thinking: m.Thinking,
				ToolCalls: JSON(m.Calls), ToolCallID: m.ID, Name: m.Name})
	}
	if tools := string(e.Chats[i].Tools); tools != "null" {
		c.Tools = tools
	}
	return c
}

// Chats with tools, calls and thoughts are written as transformers writes them, whether the row has
// a call's arguments as an object or as a text. GAD_TURNS names a folder with more templates: see
// testdata/turns/README.md.
func TestTurnsAgainstTransformers(t *testing.T) {
	folders := []string{"../testdata/turns"}
	if dir := os.Getenv("GAD_TURNS"); dir != "" {
		folders = append(folders, dir)
	} else {
		t.Log("templates of released models are not tested: set GAD_TURNS")
	}
	for _, dir := range folders {
		e := readTurns(t, dir)
		for _, shape := range e.Shapes {
			tpl, err := newChatTemplate(shape.Template,
				map[string]any{"bos_token": e.BOS, "eos_token": e.EOS})
			if err != nil {
				t.Errorf("%s: %v", shape.Name, err)
				continue
			}
			form := tpl.form()
			if want := map[string]callForm{"object": {object: true},
				"text": {text: true, noContent: true},
				"both": {text: true, object: true}}[shape.Wants]; shape.Wants != "none" &&
				form != want {
				t.Errorf("%s: wants %+v, not %+v", shape.Name, form, want)
			}
			tok := &Tokenizer{chat: tpl}
			compared := 0
			for i, texts := range shape.Texts {
				for _, asText := range []bool{false, true} {
					chat := e.chat(t, i, asText)
					for k, want := range []struct{ Text, Error string }{texts.Whole, texts.Prompt} {
						got, err := tok.Render(chat, k == 1)
						if want.Error != "" {
							if err == nil {
								t.Errorf("%s: %s: transformers refuses it: %s; written as %q",
									shape.Name, e.Chats[i].Name, want.Error, got)
							}
							continue
						}
						if err != nil || got != want.Text {
							at := 0
							for at < len(got) && at < len(want.Text) && got[at] == want.Text[at] {
								at++
							}
							t.Errorf("%s: %s: arguments as text %v: %v: from byte %d on\n got %.200q\nwant %.200q", shape.Name, e.Chats[i].Name, asText, err, at, got[at:], want.Text[at:])
							continue
						}
						compared++
					}
				}
			}
			t.Logf("%s: %d texts as transformers %s writes them", shape.Name, compared,
				e.Transformers)
		}
	}
}

// shaped is a tokenizer of the fixtures with another template.
func (e expectedTurns) shaped(t *testing.T, folder, shape string) *Tokenizer {
	t.Helper()
	tok, err := Load("../testdata/tokenizer/" + folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range e.Shapes {
		if s.Name == shape {
			if tok.chat, err = newChatTemplate(s.Template,
				map[string]any{"bos_token": "", "eos_token": ""}); err != nil {
				t.Fatal(err)
			}
			id, ok := tok.findEndOfTurn()
			if !ok {
				t.Fatalf("%s: no end of turn", shape)
			}
			tok.endOfTurn = id
			return tok
		}
	}
	t.Fatalf("no shape %q", shape)
	return nil
}

// replied is the ids of one turn.
func replied(tok *Tokenizer, c Chat, m Message) ([]int32, error) {
	ids, _, err := tok.Trajectory(c, []Message{m}, func(int) bool { return false })
	return ids, err
}

// Prompt and trajectory are the ids of the whole conversation as the template writes it, and spans
// are what assistants wrote in it, each with its end. A template that takes back what it has
// written, as those do that drop earlier thoughts, is refused.
func TestTrajectory(t *testing.T) {
	e := readTurns(t, "../testdata/turns")
	rewritten := map[string]bool{
		"thinking: thoughts": true, // those before the last question are dropped
		// the last has an empty thought, until another follows
		"thinking: two assistant turns": true,
	}
	// have no place for a thought
	for _, shape := range []string{"chatml", "hermes", "tags", "headers"} {
		rewritten[shape+": thoughts"], rewritten[shape+": thought and call"] = true, true
	}
	for shape, folder := range map[string]string{"chatml": "qwen2", "hermes": "qwen2",
		"thinking": "qwen2", "tags": "qwen2", "headers": "llama3"} {
		tok := e.shaped(t, folder, shape)
		for i, c := range e.Chats {
			chat := e.chat(t, i, false)
			first := 0
			for chat.Messages[first].Role != "assistant" {
				first++
			}
			name := shape + ": " + c.Name
			before, turns := Chat{Messages: chat.Messages[:first], Tools: chat.Tools}, chat.Messages[first:]
			prompt, err := tok.Prompt(before)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			ids, spans, err := tok.Trajectory(before, turns, func(int) bool { return false })
			if shape == "headers" && c.Name == "two calls, two results" {
				if err == nil || !strings.Contains(err.Error(), "one call at a time") {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			if got := errors.Is(err, ErrRewritten); got != rewritten[name] || err != nil && !got {
				t.Errorf("%s: %v, rewritten: want %v", name, err, rewritten[name])
				continue
			} else if got {
				continue
			}
			var replies []int // turns of the assistant
			for k, m := range turns {
				if m.Role == "assistant" {
					replies = append(replies, k)
				}
			}
			if len(spans) != len(replies) || spans[0].From != 0 ||
				spans[len(spans)-1].To != len(ids) {
				t.Errorf("%s: spans %v of %d tokens for %d turns", name, spans, len(ids),
					len(replies))
				continue
			}
			for k, at := range replies {
				span := ids[spans[k].From:spans[k].To]
				reply, err := replied(tok, Chat{Messages: chat.Messages[:first+at], Tools: chat.Tools}, turns[at])
				if err != nil || !slices.Equal(span, reply) ||
					reply[len(reply)-1] != tok.EndOfTurn() {
					t.Errorf("%s: turn %d: %v, %q, its span %q", name, at, err,
						tok.Decode(reply, false), tok.Decode(span, false))
				}
				// What stands before a turn is the prompt of the conversation so far.
				p, err := tok.Prompt(Chat{Messages: chat.Messages[:first+at], Tools: chat.Tools})
				if err != nil || !slices.Equal(p, slices.Concat(prompt, ids[:spans[k].From])) {
					t.Errorf("%s: turn %d: %v: its prompt is\n%q, not\n%q", name, at, err,
						tok.Decode(slices.Concat(prompt, ids[:spans[k].From]), false),
						tok.Decode(p, false))
				}
			}
			if skipped, rest, err := tok.Trajectory(before, turns,
				func(k int) bool { return k == 0 }); err != nil || !slices.Equal(skipped, ids) ||
				!slices.Equal(rest, spans[1:]) {
				t.Errorf("%s: without the first turn: %v, spans %v of %v", name, err, rest, spans)
			}
		}
	}
}

// A thought is written where the template has a place for it, and between tags elsewhere; a
// template that shows neither calls nor tools is refused.
func TestReply(t *testing.T) {
	e := readTurns(t, "../testdata/turns")
	ask := Chat{Messages: []Message{{Role: "user", Content: "x"}}}
	sum := JSON(`[{"id":"call12345","type":"function","function":{"name":"sum","arguments":{"numbers":[1,2]}}}]`)
	for _, c := range []struct {
		shape string
		turn  Message
		want  string
	}{
		{"chatml", Message{Role: "assistant", Content: "y \n"}, "y"},
		{"chatml", Message{Role: "assistant", Content: "y", Thinking: "so\n"},
			"<think>\nso\n</think>\n\ny"},
		{"thinking", Message{Role: "assistant", Content: "y", Thinking: "so"},
			"<think>\nso\n</think>\n\ny"},
		{"hermes", Message{Role: "assistant", ToolCalls: sum},
			"<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"numbers\": [1, 2]}}\n</tool_call>"},
		{"hermes", Message{Role: "assistant", Thinking: "so", ToolCalls: sum}, "<think>\nso\n</think>\n\n<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"numbers\": [1, 2]}}\n</tool_call>"},
		// without the empty thought
		{"thinking", Message{Role: "assistant", ToolCalls: sum},
			"<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"numbers\": [1, 2]}}\n</tool_call>"},
		{"thinking", Message{Role: "assistant", Content: "a <|im_end|> b", Thinking: "<|im_end|>",
			ToolCalls: JSON(strings.ReplaceAll(string(sum), "sum", "s<|im_end|>"))},
			"<think>\n<|im_end|>\n</think>\n\na <|im_end|> b\n<tool_call>\n{\"name\": \"s<|im_end|>\", \"arguments\": {\"numbers\": [1, 2]}}\n</tool_call>"},
	} {
		tok := e.shaped(t, "qwen2", c.shape)
		ids, err := replied(tok, ask, c.turn)
		if err != nil {
			t.Errorf("%s: %+v: %v", c.shape, c.turn, err)
			continue
		}
		n := len(ids) - 1
		if got := tok.Decode(ids[:n], false); ids[n] != tok.EndOfTurn() ||
			slices.Contains(ids[:n], tok.EndOfTurn()) || strings.TrimLeft(got, "\n") != c.want {
			t.Errorf("%s: %+v: %q, want %q", c.shape, c.turn, got, c.want)
		}
	}
	calls := Chat{Messages: []Message{{Role: "user", Content: "x"},
		{Role: "assistant", ToolCalls: sum}}}
	tools := Chat{Messages: ask.Messages, Tools: `[{"type":"function","function":{"name":"sum","description":"d","parameters":{"type":"object","properties":{}}}}]`}
	for _, c := range []struct {
		shape string
		chat  Chat
		what  string
	}{
		{"chatml", calls, "tool_calls"}, {"chatml", tools, "tools"}, {"chatml", ask, ""},
		{"joined", tools, "tools"}, {"joined", calls, ""},
		{"hermes", calls, ""}, {"hermes", tools, ""}, {"tags", calls, ""}, {"tags", tools, ""},
		{"thinking", calls, ""}, {"thinking", tools, ""},
	} {
		err := e.shaped(t, "qwen2", c.shape).Shows(c.chat)
		if errors.Is(err, ErrNotShown) != (c.what != "") || err != nil &&
			!strings.HasPrefix(err.Error(), c.what+": ") {
			t.Errorf("%s: %q: %v", c.shape, c.what, err)
		}
	}
}
