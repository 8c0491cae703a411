package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// namedTokens are the keys under which a folder declares its control tokens; chat templates have
// them as variables.
var namedTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
	"cls_token", "mask_token"}

// parseConfigs reads all files but tokenizer.json: the named tokens, the end tokens and the chat
// template.
func (t *Tokenizer) parseConfigs(files map[string][]byte) error {
	names := map[string]string{}
	// The later file wins, as in the reference.
	for _, file := range []string{fileSpecial, fileConfig} {
		if files[file] == nil {
			continue
		}
		fields, err := object(files[file])
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, key := range namedTokens {
			name, err := tokenName(fields[key])
			if err != nil {
				return fmt.Errorf("%s: %q: %w", file, key, err)
			}
			if name != "" {
				names[key] = name
			}
		}
		if file == fileConfig {
			if t.templates, err = parseTemplates(fields["chat_template"]); err != nil {
				return fmt.Errorf("%s: %q: %w", file, "chat_template", err)
			}
		}
	}
	if raw := files[fileToolUse]; raw != nil {
		t.templates = map[string]string{"default": t.templates["default"], "tool_use": string(raw)}
	}
	template := t.templates["default"]
	if raw := files[fileTemplate]; raw != nil {
		template = string(raw)
		if files[fileToolUse] == nil {
			t.templates = map[string]string{"default": template}
		}
	}

	t.named = names
	if err := t.setEOS(files, names["eos_token"]); err != nil {
		return err
	}
	toolsOnly := template == "" && t.templates["tool_use"] != ""
	if toolsOnly {
		template = t.templates["tool_use"]
	}
	if template != "" {
		vars := map[string]any{}
		for key, name := range names {
			vars[key] = name
		}
		chat, err := newChatTemplate(template, vars)
		if err != nil {
			return err
		}
		chat.toolsOnly = toolsOnly
		if source := t.templates["tool_use"]; source != "" && !toolsOnly {
			if chat.forTools, err = newChatTemplate(source, maps.Clone(vars)); err != nil {
				return fmt.Errorf("the template tool_use: %w", err)
			}
		}
		t.chat = chat
		if raw := files[fileVariables]; raw != nil {
			set, err := chat.variables(string(raw))
			if err != nil {
				return err
			}
			for c := chat; c != nil; c = c.forTools {
				maps.Copy(c.vars, set)
				c.set = set
			}
		}
		if id, ok := t.findEndOfTurn(); ok {
			t.eos = slices.DeleteFunc(t.eos, func(e int32) bool { return e == id })
			t.eos = slices.Insert(t.eos, 0, id)
		}
	}
	if len(t.eos) == 0 {
		return fmt.Errorf(
			"%s: %q: no end token here, in %s or in %s: answers could never end: add eos_token",
			fileConfig, "eos_token", fileGeneration, fileModel)
	}
	t.endOfTurn = t.eos[0]
	t.pad = t.endOfTurn
	if name := names["pad_token"]; name != "" {
		id, ok := t.ids[name]
		if !ok {
			return fmt.Errorf(
				"%s: %q: %q is not in the vocabulary: add it to added_tokens of %s or remove it",
				fileConfig, "pad_token", name, fileTokenizer)
		}
		t.pad = id
	}
	return nil
}

// tokenName parses a token that is declared as "text", {"content": "text"} or null.
func tokenName(raw json.RawMessage) (string, error) {
	if raw == nil || string(raw) == "null" {
		return "", nil
	}
	if raw[0] == '{' {
		var o struct {
			Content string `json:"content"`
		}
		err := json.Unmarshal(raw, &o)
		return o.Content, err
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

// parseTemplates parses chat_template: a text, which is the template "default", or a list of named
// texts, in which "tool_use" is for chats with tools.
func parseTemplates(raw json.RawMessage) (map[string]string, error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] != '[' {
		var text string
		err := json.Unmarshal(raw, &text)
		return map[string]string{"default": text}, err
	}
	var list []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range list {
		out[e.Name] = e.Template
	}
	if out["default"] == "" && out["tool_use"] == "" {
		return nil, fmt.Errorf("none of the templates (%s) is named \"default\": name one of them \"default\"",
			strings.Join(slices.Sorted(maps.Keys(out)), ", "))
	}
	return out, nil
}

// setEOS collects the declared end tokens: eos_token_id of
// generation_config.json, eos_token, and eos_token_id of config.json where the
// other two give none.
func (t *Tokenizer) setEOS(files map[string][]byte, name string) error {
	add := func(file string) error {
		if files[file] == nil {
			return nil
		}
		fields, err := object(files[file])
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		raw := fields["eos_token_id"]
		if raw == nil || string(raw) == "null" {
			return nil
		}
		var ids []int64
		if raw[0] == '[' {
			err = json.Unmarshal(raw, &ids)
		} else {
			ids = []int64{0}
			err = json.Unmarshal(raw, &ids[0])
		}
		if err != nil {
			return fmt.Errorf("%s: %q: %w", file, "eos_token_id", err)
		}
		for _, id := range ids {
			if id < 0 || id >= int64(len(t.pieces)) || t.pieces[id] == nil {
				return fmt.Errorf("%s: %q: %d: no such token in %s: correct it", file,
					"eos_token_id", id, fileTokenizer)
			}
			t.addEOS(int32(id))
		}
		return nil
	}
	if err := add(fileGeneration); err != nil {
		return err
	}
	if name != "" {
		id, ok := t.ids[name]
		if !ok {
			return fmt.Errorf(
				"%s: %q: %q is not in the vocabulary: add it to added_tokens of %s or correct it",
				fileConfig, "eos_token", name, fileTokenizer)
		}
		t.addEOS(id)
	}
	if len(t.eos) > 0 {
		return nil
	}
	return add(fileModel)
}

// addEOS adds an end token unless it is known.
func (t *Tokenizer) addEOS(id int32) {
	if !slices.Contains(t.eos, id) {
		t.eos = append(t.eos, id)
	}
}

// findEndOfTurn renders a chat with one answer and returns the special token that directly follows
// the answer. ok is false if the template refuses such a chat or writes no special token there.
func (t *Tokenizer) findEndOfTurn() (id int32, ok bool) {
	const answer = "qzanswerzq"
	text, err := t.Render(Chat{
		Messages: []Message{{Role: "user", Content: "question"},
			{Role: "assistant", Content: answer}}}, false)
	if err != nil {
		return 0, false
	}
	at := strings.LastIndex(text, answer)
	if at < 0 {
		return 0, false
	}
	done := false
	onText := func(s string) { done = done || strings.TrimSpace(s) != "" }
	onToken := func(a *addedToken) {
		if !done {
			id, ok, done = a.ID, a.Special, true
		}
	}
	t.raw.split(text[at+len(answer):], false, func(s string) {
		t.normalized.split(t.normalize(s), false, onText, onToken)
	}, onToken)
	return id, ok
}
