package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"gad/internal/chat"
	"gad/internal/jinja"
)

// Message is one turn of a chat. Its texts are plain: nothing in them becomes a control token.
type Message = chat.Message

// JSON is a JSON text: the tool_calls of a turn, as chat APIs have them.
type JSON = chat.JSON

// plain reports whether a template reads nothing of the turn but its role and content.
func plain(m Message) bool {
	return m.Thinking == "" && m.Heard() == Message{Role: m.Role, Content: m.Content}
}

// Chat is a conversation's turns, and the tools that the assistant may call: a JSON list of
// descriptions, "" for none. Variables set the chat template's: see ChatOptions.
type Chat struct {
	Messages  []Message
	Tools     string
	Variables string
}

// turn is a Message in the form that a template takes.
type turn struct {
	role, content      string
	noContent          bool // content is none: for templates that take a turn of calls only so
	thinking, id, name string
	calls              any // a list; nil is none
}

// dict returns the turn for a template: fields that it lacks are undefined. As in transformers a
// thought has two names.
func (t turn) dict() *jinja.Dict {
	d := jinja.NewDict()
	if t.thinking != "" {
		d.Set("thinking", t.thinking)
	}
	d.Set("role", t.role)
	if t.noContent {
		d.Set("content", nil)
	} else {
		d.Set("content", validUTF8(t.content))
	}
	for _, p := range [][2]string{{"reasoning_content", t.thinking}, {"tool_call_id", t.id},
		{"name", t.name}} {
		if p[1] != "" {
			d.Set(p[0], p[1])
		}
	}
	if t.calls != nil {
		d.Set("tool_calls", t.calls)
	}
	return d
}

// mapStrings replaces the turn's texts, but not its role, by f of them.
func (t *turn) mapStrings(f func(string) string) {
	for _, s := range []*string{&t.content, &t.thinking, &t.id, &t.name} {
		*s = f(*s)
	}
	t.calls = mapStrings(t.calls, f)
}

// mapStrings returns v, a value of jinja.FromJSON, with f applied to each text and key.
func mapStrings(v any, f func(string) string) any {
	switch v := v.(type) {
	case string:
		return f(v)
	case *jinja.List:
		out := make([]any, len(v.Items))
		for i, e := range v.Items {
			out[i] = mapStrings(e, f)
		}
		return jinja.NewList(out...)
	case *jinja.Dict:
		out := jinja.NewDict()
		for i := range v.Len() {
			key, e := v.At(i)
			out.Set(f(key.(string)), mapStrings(e, f))
		}
		return out
	}
	return v
}

// eachString calls f with each text and key of v.
func eachString(v any, f func(string)) {
	mapStrings(v, func(s string) string {
		f(s)
		return s
	})
}

// callForm is the form of a turn's calls that a template takes.
type callForm struct {
	text, object bool // arguments as a JSON text, as an object
	noContent    bool // calls are written only where content is none
}

// formOf renders probes to find the form of calls that the template takes. Arguments as an object
// come out as JSON, or key by key; a template that joins texts fails on them, or prints Python's
// dict. Arguments as a text come out unchanged, or in quotes if a template makes JSON of them.
func (c *chatTemplate) formOf() (f callForm) {
	const key, args = "gadprobe", `{"gadprobe": 7}`
	try := func(arguments any, noContent bool) string {
		function := jinja.NewDict("name", "gadtool", "arguments", arguments)
		calls := jinja.NewList(jinja.NewDict("id", "call12345", "type", "function", "function",
			function))
		turns := []turn{{role: "user", content: "u"},
			{role: "assistant", noContent: noContent, calls: calls},
			{role: "tool", content: "t", id: "call12345", name: "gadtool"}}
		// some refuse a tool's turn, some a chat that ends with a call
		for n := len(turns); n > 1; n-- {
			if s, err := c.render(turns[:n], inputs{}, n == len(turns)); err == nil {
				return s
			}
		}
		return ""
	}
	object, _ := jinja.FromJSON(args)
	for _, f.noContent = range []bool{false, true} {
		o, t := try(object, f.noContent), try(args, f.noContent)
		f.object = strings.Contains(o, key) && !strings.Contains(o, "'"+key+"'")
		f.text = strings.Contains(t, args)
		if f.object || f.text {
			return f
		}
	}
	return callForm{text: true, object: true}
}

// turnsOf returns a chat's turns and other inputs in the form that the template takes.
func (c *chatTemplate) turnsOf(chat Chat) (turns []turn, g inputs, err error) {
	if g.vars, err = c.variables(chat.Variables); err != nil {
		return nil, inputs{}, fmt.Errorf("tokenizer: %w", err)
	}
	c = c.pick(chat.Tools)
	for i, m := range chat.Messages {
		t := turn{role: m.Role, content: m.Content, thinking: m.Thinking, id: m.ToolCallID,
			name: m.Name}
		if m.ToolCalls != "" {
			if t.calls, err = c.callsOf(string(m.ToolCalls)); err != nil {
				return nil, inputs{}, fmt.Errorf("tokenizer: chat: turn %d: tool_calls: %w", i, err)
			}
			t.noContent = m.Content == "" && c.form().noContent
		}
		turns = append(turns, t)
	}
	if chat.Tools != "" {
		if g.tools, err = jinja.FromJSON(chat.Tools); err != nil {
			return nil, inputs{}, fmt.Errorf("tokenizer: chat: tools: %w", err)
		}
	}
	return turns, g, nil
}

// callsOf parses tool_calls and returns them with arguments in the form that the template takes.
func (c *chatTemplate) callsOf(text string) (any, error) {
	v, err := jinja.FromJSON(text)
	if err != nil {
		return nil, err
	}
	calls, ok := v.(*jinja.List)
	if !ok {
		return nil, errors.New("not a list")
	}
	for i, call := range calls.Items {
		function, ok := call.(*jinja.Dict)
		if !ok {
			return nil, fmt.Errorf("call %d is no object", i)
		}
		if f, has := function.Get("function"); has {
			if function, ok = f.(*jinja.Dict); !ok {
				return nil, fmt.Errorf("call %d: its function is no object", i)
			}
		}
		arguments, _ := function.Get("arguments")
		switch v := arguments.(type) {
		case string:
			if c.form().text {
				break
			}
			object, err := jinja.FromJSON(v)
			if _, ok := object.(*jinja.Dict); err != nil || !ok {
				return nil, fmt.Errorf("call %d: the template wants arguments as an object, and their text is none: %s", i, shortQuote(v))
			}
			function.Set("arguments", object)
		case *jinja.Dict:
			if c.form().object {
				break
			}
			text, err := jinja.ToJSON(v)
			if err != nil {
				return nil, err
			}
			function.Set("arguments", text)
		}
	}
	return calls, nil
}

// shortQuote returns s in quotes, cut after 40 bytes.
func shortQuote(s string) string {
	if len(s) > 40 {
		s = validUTF8(s[:40]) + "..."
	}
	return strconv.Quote(s)
}

// RenderChat returns the chat as the template writes it; with addGenerationPrompt it ends where the
// assistant's answer begins. Control tokens written in a message stay in the text, so that it must
// not be encoded with Encode unless the messages are trusted: use ChatPrompt.
func (t *Tokenizer) RenderChat(msgs []Message, addGenerationPrompt bool) (string, error) {
	return t.Render(Chat{Messages: msgs}, addGenerationPrompt)
}

// Render returns a chat with tools as RenderChat does.
func (t *Tokenizer) Render(c Chat, addGenerationPrompt bool) (string, error) {
	if t.chat == nil {
		return "", fmt.Errorf("tokenizer: chat: %w: add chat_template.jinja or a chat_template in tokenizer_config.json, use a model that has one, or give one (--chat-template FILE, or chatml)", ErrNoChatTemplate)
	}
	turns, g, err := t.chat.turnsOf(c)
	if err != nil {
		return "", err
	}
	return t.chat.pick(c.Tools).render(turns, g, addGenerationPrompt)
}

// ChatPrompt returns the ids of the chat up to the beginning of the assistant's answer. For
// messages without control tokens they equal the reference's
// apply_chat_template(add_generation_prompt=True). Control tokens written in a message are encoded
// as plain text: in an assistant's message the special ones, in any other also tokens in the
// template's source.
func (t *Tokenizer) ChatPrompt(msgs []Message) ([]int32, error) {
	return t.Prompt(Chat{Messages: msgs})
}

// Prompt returns the ids of a chat with tools as ChatPrompt does.
func (t *Tokenizer) Prompt(c Chat) ([]int32, error) {
	p, err := t.prepare(c)
	if err != nil {
		return nil, err
	}
	text, err := p.render(len(c.Messages), true)
	if err != nil {
		return nil, err
	}
	return p.encode(text), nil
}

// prepared is a chat whose texts are guarded: see guard.
type prepared struct {
	t       *Tokenizer
	chat    *chatTemplate // the template for this chat
	turns   []turn
	inputs  inputs
	restore *strings.Replacer
}

// prepare guards the texts of a chat.
func (t *Tokenizer) prepare(c Chat) (*prepared, error) {
	if t.chat == nil {
		_, err := t.Render(c, true)
		return nil, err
	}
	if t.chat.toolsOnly && c.Tools == "" {
		return nil, fmt.Errorf("tokenizer: chat: %w for chats without tools: its only one is \"tool_use\": name one \"default\" in tokenizer_config.json, or give one (--chat-template tool_use, or a file)", ErrNoChatTemplate)
	}
	p := &prepared{t: t, chat: t.chat.pick(c.Tools)}
	var err error
	p.turns, p.inputs, p.restore, err = t.guard(c)
	return p, err
}

// render returns the first n turns as the template writes them.
func (p *prepared) render(n int, addGenerationPrompt bool) (string, error) {
	return p.chat.render(p.turns[:n], p.inputs, addGenerationPrompt)
}

// encode returns the ids of a rendered text with the guarded characters restored.
func (p *prepared) encode(text string) []int32 {
	return p.t.encode(text, false, p.restore, make([]int32, 0, len(text)/3+8))
}

// end returns the text of the end of a turn.
func (t *Tokenizer) end() string { return string(t.pieces[t.endOfTurn]) }

// ErrNotShown is wrapped by errors for a chat of which the template leaves a part out.
var ErrNotShown = errors.New("the chat template writes the same text without them")

// Shows returns an error for a chat whose tool_calls or tools do not change the template's text:
// the student would not see them. The last turns may be an answer's.
func (t *Tokenizer) Shows(c Chat) error {
	calls := false
	without := Chat{Messages: make([]Message, len(c.Messages)), Tools: c.Tools,
		Variables: c.Variables}
	for i, m := range c.Messages {
		calls = calls || m.ToolCalls != ""
		m.ToolCalls = ""
		without.Messages[i] = m
	}
	if !calls && c.Tools == "" {
		return nil
	}
	whole, err := t.Render(c, false)
	if err != nil {
		return err
	}
	// A template may refuse a conversation that lacks something: then it reads it.
	if calls {
		if text, err := t.Render(without, false); err == nil && text == whole {
			return fmt.Errorf("tool_calls: %w", ErrNotShown)
		}
	}
	if c.Tools != "" {
		if text, err := t.Render(Chat{Messages: c.Messages, Variables: c.Variables},
			false); err == nil && text == whole {
			return fmt.Errorf("tools: %w", ErrNotShown)
		}
	}
	return nil
}

// blanks are removed from the end of an answer: chat templates add them, and models rarely do.
const blanks = " \t\r\n"

// reply returns the text of turn n behind the generation prompt, without the end of turn.
func (p *prepared) reply(n int) (string, error) {
	m := p.turns[n]
	if m.calls == nil && m.thinking == "" {
		return p.t.Written(strings.TrimRight(m.content, blanks)), nil
	}
	before, err := p.render(n, true)
	if err != nil {
		return "", err
	}
	whole, err := p.render(n+1, false)
	if err != nil {
		return "", err
	}
	x, thinks := p.t.knownTags(), false // the template writes the thought
	if m.thinking != "" {
		other := p.turns[n]
		other.thinking = ""
		text, err := p.chat.render(append(p.turns[:n:n], other), p.inputs, false)
		if err != nil {
			return "", err
		}
		thinks = text != whole && strings.HasPrefix(whole, before)
	}
	written := m.content
	if m.calls != nil || thinks {
		rest, ok := strings.CutPrefix(whole, before)
		if !ok {
			return "", fmt.Errorf("tokenizer: %w: does not begin an assistant's turn with calls or thoughts as its generation prompt does: use a template that does", ErrTemplate)
		}
		end := strings.LastIndex(rest, p.t.end())
		if end < 0 {
			return "", fmt.Errorf("tokenizer: %w: writes no %q behind an assistant's turn with calls or thoughts: use a template that does", ErrTemplate, p.t.end())
		}
		written = rest[:end]
	}
	// some write an empty thought into the last turn, and none into earlier ones
	if m.thinking == "" {
		if after, ok := strings.CutPrefix(written, x.open); ok {
			if after, ok = strings.CutPrefix(strings.TrimLeft(after, blanks), x.end); ok {
				written = strings.TrimLeft(after, blanks)
			}
		}
	} else if !thinks {
		if x != usualTags {
			return "", fmt.Errorf("the chat template has thoughts between %s and %s, and leaves that of this answer out: remove the thoughts from the rows, or use another template (--chat-template): %w", x.open, x.end, ErrThought)
		}
		open := x.open + "\n"
		if x.stateOf(before) == thoughtOpen {
			open = "" // the generation prompt has it
		}
		written = open + strings.Trim(m.thinking, blanks) + "\n" + x.end + "\n\n" +
			strings.TrimLeft(written, blanks)
	}
	if m.calls == nil && !thinks {
		written = strings.TrimRight(written, blanks)
	}
	return written, nil
}

// ErrRewritten is wrapped by errors for a chat template that writes a turn differently once others
// follow it, so that a conversation does not grow at its end alone.
var ErrRewritten = errors.New("the chat template rewrites earlier turns when others follow")

// Span is a range of tokens, From to To-1.
type Span struct{ From, To int }

// Trajectory returns the ids of turns behind Prompt(c), and the spans that assistants wrote, each
// with its end of turn. A text is encoded unchanged, without blanks at its end; calls are written
// as the template writes them; a thought as the template does, or between <think> and </think> if
// it writes none. The template's text stands between two such turns. Turns begin and end with an
// assistant's; skip returns true for context. A template that does not keep its earlier text is
// refused with ErrRewritten.
func (t *Tokenizer) Trajectory(c Chat, turns []Message,
	skip func(i int) bool) (ids []int32, spans []Span, err error) {
	first := len(c.Messages)
	all := Chat{append(c.Messages[:first:first], turns...), c.Tools, c.Variables}
	for i := range turns {
		if m := &all.Messages[first+i]; m.Role == "assistant" {
			m.Content = strings.TrimRight(m.Content, blanks)
		}
	}
	p, err := t.prepare(all)
	if err != nil {
		return nil, nil, err
	}
	written := "" // the text of the template and the turns so far
	for n := first; n < len(all.Messages); n++ {
		if all.Messages[n].Role != "assistant" {
			continue
		}
		before, err := p.render(n, true)
		if err != nil {
			return nil, nil, err
		}
		if n > first {
			rest, ok := strings.CutPrefix(before, written)
			if !ok {
				return nil, nil, fmt.Errorf("tokenizer: turn %d: %w", n, ErrRewritten)
			}
			ids = append(ids, p.encode(t.end() + rest)[1:]...)
		}
		reply, err := p.reply(n)
		if err != nil {
			return nil, nil, err
		}
		from := len(ids)
		if plain(all.Messages[n]) {
			ids = append(
				append(ids, t.EncodeText(t.Written(
					strings.TrimRight(all.Messages[n].Content, blanks)))...),
				t.endOfTurn)
		} else {
			ids = append(ids, p.encode(reply+t.end())...)
		}
		if !skip(n - first) {
			spans = append(spans, Span{from, len(ids)})
		}
		written = before + reply + t.end()
	}
	return ids, spans, nil
}

// Following returns the ids that the template puts behind an assistant's answer to c when messages
// follow: from the answer's end of turn, included, up to the beginning of the next answer. They do
// not depend on the answer, so that a probe stands in for it; Grows refuses a template for which
// they do. A conversation whose answers are kept as sampled grows by these ids. Messages may
// include assistants' turns that are context. Messages that the template writes differently once
// they are answered, or before which it moves text, are refused with ErrRewritten.
func (t *Tokenizer) Following(c Chat, messages []Message) ([]int32, error) {
	_, ids, err := t.followUp(c, "a", messages)
	return ids, err
}

// Grows returns an error that wraps ErrRewritten for a chat template under which a conversation
// does not grow at its end alone: it writes an answer, or a thought before it, differently once
// another turn follows.
func (t *Tokenizer) Grows() error {
	c := Chat{Messages: []Message{{Role: "user", Content: "u"}}}
	next := []Message{{Role: "user", Content: "v"}}
	plain, _, err := t.followUp(c, "a", next)
	if err != nil {
		return err
	}
	thought, _, err := t.followUp(c, "<think>\nb\n</think>\n\nc", next)
	if err == nil && plain != thought {
		err = fmt.Errorf("tokenizer: %w", ErrRewritten)
	}
	return err
}

// followUp returns the ids of Following behind an answer, and their text without the end of turn.
func (t *Tokenizer) followUp(c Chat, answer string,
	messages []Message) (text string, ids []int32, err error) {
	n := len(c.Messages)
	all := append(c.Messages[:n:n], Message{Role: "assistant", Content: answer})
	all = append(all, messages...)
	end := len(all)
	all = append(all, Message{Role: "assistant", Content: answer})
	p, err := t.prepare(Chat{append(all, messages...), c.Tools, c.Variables})
	if err != nil {
		return "", nil, err
	}
	before, err := p.render(n, true)
	if err != nil {
		return "", nil, err
	}
	whole, err := p.render(end, true)
	if err != nil {
		return "", nil, err
	}
	text, ok := strings.CutPrefix(whole, before+answer+t.end())
	// a conversation that ends here may be all that the template takes
	if later, err := p.render(len(p.turns), true); err == nil {
		ok = ok && strings.HasPrefix(later, whole+answer+t.end())
	}
	if !ok {
		return "", nil, fmt.Errorf("tokenizer: %w", ErrRewritten)
	}
	return text, p.encode(t.end() + text), nil
}

// header returns the text that the template writes between its prompt and an answer.
func (t *Tokenizer) header() (string, error) {
	const probe = "a1b2c3"
	asked := []Message{{Role: "user", Content: "u"}}
	before, err := t.RenderChat(asked, true)
	if err != nil {
		return "", err
	}
	whole, err := t.RenderChat(append(asked, Message{Role: "assistant", Content: probe}), false)
	if err != nil {
		return "", nil // it takes questions alone, and no answer has a header
	}
	rest, ok := strings.CutPrefix(whole, before)
	header, _, found := strings.Cut(rest, probe)
	if !ok || !found {
		return "", nil
	}
	return header, nil
}

// ErrHeader is wrapped by the error for a chat template that begins an answer with a header.
var ErrHeader = errors.New("the chat template begins an answer with a header")

// Continues returns an error that wraps ErrHeader for a chat template that writes control tokens
// between its generation prompt and an answer, such as a channel's name: the model writes them at
// the answer's beginning, and a context with only a later part of the answer lacks them. Text
// without control tokens there, such as <think> in most vocabularies, is part of the answer.
func (t *Tokenizer) Continues() error {
	header, err := t.header()
	if err != nil {
		if errors.Is(err, ErrNoChatTemplate) { // prompts are ids
			return nil
		}
		return err
	}
	for _, id := range t.Encode(header) {
		if !t.Special(id) {
			continue
		}
		wanted, _, _ := strings.Cut(strings.TrimSpace(header), "\n")
		if !strings.Contains(t.ChatTemplate(), wanted) { // the template joins it from parts
			wanted = string(t.Piece(id))
		}
		for i, line := range strings.Split(t.ChatTemplate(), "\n") {
			if strings.Contains(line, wanted) {
				return fmt.Errorf("tokenizer: %w, %q: line %d of it: %.80s", ErrHeader, header, i+1,
					strings.TrimSpace(line))
			}
		}
		return fmt.Errorf("tokenizer: %w, %q", ErrHeader, header)
	}
	return nil
}
