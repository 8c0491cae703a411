package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"gad/data"
	"gad/tokenizer"
	"gad/trainer/encode"
)

// toolsMost is the largest number of tools in a request, as with OpenAI.
const toolsMost = 128

// tools reads the tools of a conversation, and whether the answer may call them (tool_choice).
func (s *Server) tools(f *fields) (tools data.JSON, calls bool) {
	raw := f.take("tools")
	choice := f.take("tool_choice")
	var mode string
	switch {
	case choice == nil || json.Unmarshal(choice, &mode) == nil &&
		(mode == "auto" || mode == "none"):
	case mode != "":
		f.fail("tool_choice", `"%s" is not supported: give "auto" or "none"`, short(mode))
	default:
		f.fail("tool_choice",
			`a function by its name is not supported: give "auto" or "none"`)
	}
	if raw == nil || f.err != nil {
		return "", false
	}
	if tools = readTools(f, raw); tools == "" || f.err != nil || mode == "none" {
		return tools, false
	}
	if s.format == nil && s.o.ToolParser == "" {
		f.fail("tool_choice", `the chat template of this model shows no form of calls that is known here: give "none", or start gad serve with --tool-parser`)
	}
	return tools, s.format != nil
}

// variables reads chat_template_kwargs: the JSON object of the chat template's variables, "" for
// none.
func variables(f *fields) string {
	raw := f.take("chat_template_kwargs")
	if raw == nil || string(bytes.TrimSpace(raw)) == "null" {
		return ""
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		f.fail("chat_template_kwargs", "must be an object")
		return ""
	}
	for _, name := range []string{"messages", "tools", "add_generation_prompt"} {
		if _, ok := m[name]; ok {
			f.fail("chat_template_kwargs", "%q is given by the request itself: leave it out", name)
		}
	}
	if len(m) == 0 {
		return ""
	}
	return string(raw)
}

// readTools returns the tools, after checking that each is a function with a name.
func readTools(f *fields, raw json.RawMessage) data.JSON {
	if raw == nil {
		return ""
	}
	if raw[0] != '[' {
		f.fail("tools", "must be a list of tools")
		return ""
	}
	var list []struct {
		Type     string
		Function *struct{ Name string }
	}
	err := json.Unmarshal(raw, &list)
	if len(list) > toolsMost {
		f.fail("tools", "%d tools: at most %d are taken", len(list), toolsMost)
		return ""
	}
	for i, t := range list {
		if err != nil || t.Type != "function" || t.Function == nil ||
			strings.TrimSpace(t.Function.Name) == "" {
			f.fail("tools", `tool %d: must be {"type": "function", "function": {"name": ..., "parameters": {...}}}`, i)
			return ""
		}
	}
	tools, err := data.ReadTools(raw)
	if err != nil {
		f.fail("tools", "%v", err)
	}
	return tools
}

// conversation returns the token ids of the prompt that messages, tools and the chat template's
// variables make.
func (s *Server) conversation(raw json.RawMessage, tools data.JSON, variables string,
	bounded tokenizer.Bounded) ([]int32, *apiError) {
	row := data.Row{Tools: tools}
	bad := func(format string, args ...any) *apiError {
		return refuse(http.StatusBadRequest, "messages: "+format, args...).withParam("messages")
	}
	var list []map[string]json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil, bad("must be a list of objects with role and content")
	}
	if len(list) == 0 {
		return nil, bad("is empty: give at least one message")
	}
	for i, m := range list {
		message, err := readMessage(m)
		if err != nil {
			return nil, bad("message %d: %v", i, err)
		}
		row.Messages = append(row.Messages, message)
	}
	chat := encode.Chat(row)
	chat.Variables = variables
	if err := s.tok.Shows(chat); errors.Is(err, tokenizer.ErrNotShown) {
		what, _, _ := strings.Cut(err.Error(), ":") // tools or tool_calls
		e := bad("%s: the chat template of this model does not write them: leave them out", what)
		if what == "tools" {
			e.Message = strings.TrimPrefix(e.Message, "messages: ")
			e.withParam("tools")
		}
		return nil, e
	}
	ids, err := bounded.Prompt(chat)
	if errors.Is(err, tokenizer.ErrVariable) {
		what := strings.TrimPrefix(err.Error(), "tokenizer: variables of the chat template: ")
		return nil, refuse(http.StatusBadRequest, "chat_template_kwargs: the chat template: %s",
			what).withParam("chat_template_kwargs")
	}
	if err != nil {
		return nil, s.encodeError("messages", err)
	}
	return ids, nil
}

// readMessage reads a message as data.Row has it, and refuses keys that rows do not have.
func readMessage(m map[string]json.RawMessage) (message data.Message, err error) {
	var role string
	json.Unmarshal(m["role"], &role)
	switch role = data.RoleOf(role); role {
	case "system", "user", "assistant", "tool":
	default:
		return message, errors.New("role: must be system, user, assistant or tool")
	}
	message.Role = role
	given := map[string]json.RawMessage{}
	for key, v := range m {
		if text := string(v); text != "null" && text != "[]" && text != "{}" {
			given[key] = v
		}
	}
	delete(given, "role")
	if calls := given["tool_calls"]; calls != nil && role == "assistant" {
		if message.ToolCalls, err = data.ReadCalls(calls); err != nil {
			return message, errors.New("tool_calls: " + err.Error())
		}
		delete(given, "tool_calls")
	}
	text, thought, ok := contentOf(m["content"])
	if string(m["content"]) == "null" && (role == "assistant" || role == "tool") {
		ok = true // as OpenAI's clients send back an answer without a text
	}
	if !ok && !(message.ToolCalls != "" && given["content"] == nil) {
		return message,
			errors.New("content: must be a string, or a list of parts of type text")
	}
	if thought != "" && role != "assistant" {
		return message, errors.New("content: a part of type thinking is an assistant's alone")
	}
	message.Content, message.Thinking = text, thought
	delete(given, "content")
	texts := map[string]*string{"name": &message.Name}
	switch role {
	case "tool":
		texts["tool_call_id"] = &message.ToolCallID
	case "assistant":
		for _, key := range []string{"thinking", "reasoning", "reasoning_content"} { // the last counts
			var s string
			if v := given[key]; v != nil && json.Unmarshal(v, &s) != nil {
				return message, errors.New(key + ": must be a string")
			}
			if s != "" {
				message.Thinking = s
			}
			delete(given, key)
		}
	}
	for key, into := range texts {
		if v := given[key]; v != nil && json.Unmarshal(v, into) != nil {
			return message, errors.New(key + ": must be a string")
		}
		delete(given, key)
	}
	for _, key := range sortedNames(given) {
		return message, errors.New(short(key) + ": is not known here: leave it out")
	}
	return message, nil
}

// contentOf returns the text of a message's content, a string or parts of type text, and the
// thought in its parts of type thinking.
func contentOf(raw json.RawMessage) (text, thought string, ok bool) {
	if raw == nil || string(raw) == "null" {
		return "", "", false
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, "", true
	}
	var parts []struct {
		Type     string  `json:"type"`
		Text     *string `json:"text"`
		Thinking *string `json:"thinking"`
	}
	if json.Unmarshal(raw, &parts) != nil || len(parts) == 0 {
		return "", "", false
	}
	var b strings.Builder
	for _, p := range parts {
		switch {
		case p.Type == "thinking" && p.Thinking != nil:
			thought += *p.Thinking
		case p.Type == "text" && p.Text != nil:
			b.WriteString(*p.Text)
		default:
			return "", "", false
		}
	}
	return b.String(), thought, true
}
