package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"gad/internal/jinja"
)

// ChatOptions are a user's settings of a model's chat template.
type ChatOptions struct {
	// Variables of the template, such as enable_thinking: a JSON object, or NAME=VALUE with commas
	// between several, each value JSON or else a text. They override the folder's own.
	Variables string
	// Template replaces the model's: a file, the name of another template in the folder, or chatml.
	Template string
}

// fileVariables stores ChatOptions.Variables in a model's folder. No other program reads it.
const fileVariables = "chat_template_variables.json"

// builtinTemplates are templates for models that come without one.
var builtinTemplates = map[string]string{"chatml": `{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
`}

// With returns the tokenizer with another chat template, or with other variables for it.
func (t *Tokenizer) With(o ChatOptions) (*Tokenizer, error) {
	if o == (ChatOptions{}) {
		return t, nil
	}
	files := maps.Clone(t.files)
	if o.Template != "" {
		source, err := t.findTemplate(o.Template)
		if err != nil {
			return nil, err
		}
		files[fileTemplate] = []byte(source)
		delete(files, fileToolUse)
	}
	if o.Variables != "" {
		given, err := readVariables(o.Variables)
		if err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
		kept := jinja.NewDict()
		if raw := files[fileVariables]; raw != nil {
			if kept, err = readVariables(string(raw)); err != nil {
				return nil, fmt.Errorf("tokenizer: %s: %w", fileVariables, err)
			}
		}
		for i := range given.Len() {
			kept.Set(given.At(i))
		}
		text, err := jinja.ToJSON(kept)
		if err != nil {
			return nil, fmt.Errorf("tokenizer: variables of the chat template: %w", err)
		}
		files[fileVariables] = []byte(text + "\n")
	}
	files[fileModel] = t.modelFile
	other, err := parse(files)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return other, nil
}

// findTemplate returns a template by its name or its file.
func (t *Tokenizer) findTemplate(name string) (string, error) {
	if source, ok := t.templates[name]; ok {
		return source, nil
	}
	raw, err := os.ReadFile(name)
	switch {
	case err == nil && len(raw) > templateLimit:
		return "", fmt.Errorf("tokenizer: %s: %d bytes: over the limit of %d", name, len(raw),
			templateLimit)
	case err == nil:
		return string(raw), nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("tokenizer: chat template: %w", err)
	}
	if source, ok := builtinTemplates[name]; ok {
		return source, nil
	}
	names := slices.Sorted(maps.Keys(t.templates))
	return "", fmt.Errorf("tokenizer: chat template %q: is no file, and no template of that name is known: give a file, or one of %s",
		name, strings.Join(append(names, slices.Sorted(maps.Keys(builtinTemplates))...), ", "))
}

// Variables returns the values of the chat template's variables as a JSON object; "" if none is
// set.
func (t *Tokenizer) Variables() string {
	return strings.TrimSpace(string(t.files[fileVariables]))
}

// reserved are names of variables that a chat itself sets.
var reserved = []string{"messages", "tools", "add_generation_prompt"}

// readVariables parses ChatOptions.Variables.
func readVariables(text string) (*jinja.Dict, error) {
	bad := func(format string, args ...any) (*jinja.Dict, error) {
		return nil, fmt.Errorf("variables of the chat template: "+format, args...)
	}
	d := jinja.NewDict()
	if text = strings.TrimSpace(text); strings.HasPrefix(text, "{") {
		v, err := jinja.FromJSON(text)
		if err != nil {
			return bad("%s: %w: give a JSON object, or NAME=VALUE", shortQuote(text), err)
		}
		d = v.(*jinja.Dict)
	} else {
		for _, part := range splitVariables(text) {
			name, value, ok := strings.Cut(part, "=")
			if name = strings.TrimSpace(name); !ok || name == "" {
				return bad("%s: give NAME=VALUE, such as enable_thinking=false, or a JSON object",
					shortQuote(part))
			}
			if _, twice := d.Get(name); twice {
				return bad("%q stands twice", name)
			}
			d.Set(name, readValue(strings.TrimSpace(value)))
		}
	}
	for i := range d.Len() {
		if name, _ := d.At(i); slices.Contains(reserved, name.(string)) {
			return bad("%q is given by the chat: leave it out", name)
		}
	}
	return d, nil
}

// readValue parses the value of a variable: JSON, Python's True, False and None, or a text.
func readValue(text string) any {
	if v, ok := map[string]any{"True": true, "False": false, "None": nil}[text]; ok {
		return v
	}
	if v, err := jinja.FromJSON(text); err == nil {
		return v
	}
	return text
}

// splitVariables cuts text at commas outside brackets and JSON strings.
func splitVariables(text string) (parts []string) {
	depth, from, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth == 0:
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	return append(parts, text[from:])
}

// variables parses the variables of a chat or of a folder. A name that no template reads is an
// error: a misspelt name would silently change nothing.
func (c *chatTemplate) variables(text string) (jinja.Vars, error) {
	if text == "" {
		return nil, nil
	}
	d, err := readVariables(text)
	if err != nil {
		return nil, err
	}
	vars := jinja.Vars{}
	for i := range d.Len() {
		k, v := d.At(i)
		name := k.(string)
		if !c.reads(name) {
			return nil, fmt.Errorf("variables of the chat template: it does not read %q, but %s: %w",
				name, cmp.Or(strings.Join(c.settable(), ", "), "none that can be set"),
				ErrVariable)
		}
		vars[name] = v
	}
	return vars, nil
}

// ErrVariable is wrapped by the error for a variable that no chat template of the model reads.
var ErrVariable = errors.New("leave it out, or correct the name")

// reads reports whether one of the templates reads a variable.
func (c *chatTemplate) reads(name string) bool {
	return slices.Contains(c.tpl.Reads(), name) || c.forTools != nil && c.forTools.reads(name)
}

// settable returns the names of the variables that a user can set.
func (c *chatTemplate) settable() (names []string) {
	for _, name := range c.tpl.Reads() {
		_, given := c.vars[name]
		_, set := c.set[name]
		if (!given || set) && !slices.Contains(reserved, name) {
			names = append(names, name)
		}
	}
	return names
}

// pick returns the template for a chat: chats with tools may have a separate one.
func (c *chatTemplate) pick(tools string) *chatTemplate {
	if c.forTools != nil && tools != "" {
		return c.forTools
	}
	return c
}
