package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// namedTokens are the keys under which a folder declares its control tokens; chat templates have
// them as variables.
var namedTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
	"cls_token", "mask_token"}

// declared holds the tokens that the files beside tokenizer.json declare. transformers adds those
// that tokenizer.json lacks, so a chat template writes them as control tokens.
type declared struct {
	decoder map[int32]*addedToken // added_tokens_decoder, by id
	special []*addedToken         // the others, in the order in which new ones get their ids
	named   map[string]string     // texts by their names, such as bos_token
	written string                // the chat templates, which may write them
	tekken  bool                  // the first pattern of tokenizer.json is to be Tekken's
}

// parseDeclared reads the declarations of tokenizer_config.json and special_tokens_map.json. As in
// transformers the latter wins where the former has no added_tokens_decoder.
func parseDeclared(files map[string][]byte) (declared, error) {
	d := declared{named: map[string]string{}}
	sources := map[string]map[string]json.RawMessage{}
	for _, file := range []string{fileSpecial, fileConfig} {
		if files[file] == nil {
			continue
		}
		fields, err := object(files[file])
		if err != nil {
			return d, fmt.Errorf("%s: %w", file, err)
		}
		sources[file] = fields
	}
	order := []string{fileConfig, fileSpecial}
	if raw := sources[fileConfig]["added_tokens_decoder"]; raw != nil {
		if err := json.Unmarshal(raw, &d.decoder); err != nil {
			return d, fmt.Errorf("%s: %q: %w", fileConfig, "added_tokens_decoder", err)
		}
		slices.Reverse(order)
	}
	d.tekken = string(sources[fileConfig]["fix_mistral_regex"]) == "true" &&
		oldMistral(files[fileModel])
	d.written = string(files[fileTemplate]) + string(files[fileToolUse]) +
		string(sources[fileConfig]["chat_template"])
	var lists []*addedToken
	named := map[string]*addedToken{}
	names := slices.Clone(namedTokens)
	for _, file := range order {
		fields := sources[file]
		for _, key := range namedTokens {
			if err := d.read(key, fields[key], named); err != nil {
				return d, fmt.Errorf("%s: %q: %w", file, key, err)
			}
		}
		more := []string{"model_specific_special_tokens", "extra_special_tokens"}
		if fields["extra_special_tokens"] == nil {
			more[1] = "additional_special_tokens"
		}
		for _, key := range more {
			raw := fields[key]
			if raw == nil || string(raw) == "null" {
				continue
			}
			if raw[0] == '{' { // a model's own names
				err := pairs(raw, func(dec *json.Decoder, name string) error {
					var v json.RawMessage
					if err := dec.Decode(&v); err != nil {
						return err
					}
					if !slices.Contains(names, name) {
						names = append(names, name)
					}
					return d.read(name, v, named)
				})
				if err != nil {
					return d, fmt.Errorf("%s: %q: %w", file, key, err)
				}
				continue
			}
			var list []json.RawMessage
			if err := json.Unmarshal(raw, &list); err != nil {
				return d, fmt.Errorf("%s: %q: %w", file, key, err)
			}
			for i, v := range list {
				a, err := parseDeclaredToken(v)
				if err != nil {
					return d, fmt.Errorf("%s: %q: element %d: %w", file, key, i, err)
				}
				lists = append(lists, a)
			}
		}
	}
	for _, name := range names {
		if a := named[name]; a != nil {
			d.special = append(d.special, a)
		}
	}
	d.special = append(d.special, lists...)
	return d, nil
}

// read keeps a token under its name; one that is null or empty leaves what an earlier file says.
func (d *declared) read(name string, raw json.RawMessage, named map[string]*addedToken) error {
	a, err := parseDeclaredToken(raw)
	if err == nil && a.Content != "" {
		named[name], d.named[name] = a, a.Content
	}
	return err
}

// parseDeclaredToken parses a token that is declared as "text", {"content": "text"} or null.
func parseDeclaredToken(raw json.RawMessage) (*addedToken, error) {
	a := &addedToken{}
	switch {
	case raw == nil || string(raw) == "null":
		return a, nil
	case raw[0] == '{':
		if err := json.Unmarshal(raw, a); err != nil {
			return nil, err
		}
	default:
		if err := json.Unmarshal(raw, &a.Content); err != nil {
			return nil, err
		}
	}
	a.Special = true
	return a, nil
}

// oldMistral reports whether config.json is of a Mistral that transformers before version 5 wrote.
// The tokenizer.json beside it has a wrong pattern, which transformers replaces where
// fix_mistral_regex is true.
func oldMistral(config []byte) bool {
	var c struct {
		Type    *string `json:"model_type"`
		Version string  `json:"transformers_version"`
	}
	_ = json.Unmarshal(config, &c) // read as a model, it is checked
	major, _, _ := strings.Cut(c.Version, ".")
	n, err := strconv.Atoi(major)
	return config != nil && (err != nil || n < 5) && (c.Type == nil || slices.Contains([]string{
		"mistral", "mistral3", "voxtral", "ministral", "pixtral"}, *c.Type))
}

// missing returns the declared tokens that added lacks. One of the vocabulary keeps its id, a new
// one gets the id behind all others, as in transformers. New ones that no chat template writes are
// left out, since the model may have no row for them.
func (d declared) missing(ids map[string]int32, added []*addedToken) ([]*addedToken, error) {
	var out []*addedToken
	known := map[string]bool{}
	next := int32(len(ids))
	for _, a := range added {
		if a != nil {
			known[a.Content], next = true, max(next, a.ID+1)
		}
	}
	give := func(a *addedToken) (spelt bool) {
		known[a.Content] = true
		if a.ID, spelt = ids[a.Content]; !spelt {
			a.ID = next
			next++
		}
		return spelt
	}
	for _, id := range slices.Sorted(maps.Keys(d.decoder)) {
		a := d.decoder[id]
		if a == nil || a.Content == "" || known[a.Content] {
			continue
		}
		for _, s := range d.special {
			a.Special = a.Special || s.Content == a.Content
		}
		if give(a); a.ID != id {
			return nil, fmt.Errorf("%s: %q: token %q: id %d: transformers would give it %d: add it to added_tokens of %s with its id",
				fileConfig, "added_tokens_decoder", a.Content, id, a.ID, fileTokenizer)
		}
		out = append(out, a)
	}
	for _, a := range d.special {
		if a.Content == "" || known[a.Content] {
			continue
		}
		written := strings.Contains(d.written, a.Content)
		for name, text := range d.named {
			written = written || text == a.Content && strings.Contains(d.written, name)
		}
		// An end token or padding without an id is refused where it is looked up.
		must := a.Content == d.named["eos_token"] || a.Content == d.named["pad_token"]
		if give(a) || written && !must {
			out = append(out, a)
		}
	}
	return out, nil
}

// parseConfigs reads all files but tokenizer.json: the end tokens and the chat template.
func (t *Tokenizer) parseConfigs(files map[string][]byte) error {
	if files[fileConfig] != nil {
		fields, err := object(files[fileConfig])
		if err != nil {
			return fmt.Errorf("%s: %w", fileConfig, err)
		}
		if t.templates, err = parseTemplates(fields["chat_template"]); err != nil {
			return fmt.Errorf("%s: %q: %w", fileConfig, "chat_template", err)
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

	if err := t.setEOS(files, t.named["eos_token"]); err != nil {
		return err
	}
	toolsOnly := template == "" && t.templates["tool_use"] != ""
	if toolsOnly {
		template = t.templates["tool_use"]
	}
	if template != "" {
		vars := map[string]any{}
		for key, name := range t.named {
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
	if name := t.named["pad_token"]; name != "" {
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
