package tokenizer

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Variables of a template are read as JSON or as NAME=VALUE, kept with the tokenizer's files, given
// by a chat before those of the tokenizer, and refused where no template reads them.
func TestVariables(t *testing.T) {
	const source = `{% if enable_thinking is defined and not enable_thinking %}off{% else %}on{% endif %}` +
		` {{ effort | default('none') }} {{ list | default([]) | length }}` +
		`{% for m in messages %}{{ m.content }}{% endfor %}`
	tok, err := withTemplate(t, source)
	if err != nil {
		t.Fatal(err)
	}
	render := func(tok *Tokenizer, variables string) string {
		t.Helper()
		text, err := tok.Render(Chat{Messages: []Message{{Role: "user", Content: "!"}},
			Variables: variables}, true)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for given, want := range map[string]string{
		"":                                       "on none 0!",
		"enable_thinking=false":                  "off none 0!",
		"enable_thinking=False":                  "off none 0!",
		`enable_thinking="false"`:                "on none 0!",
		"enable_thinking=false, effort=low":      "off low 0!",
		`effort="a,b",list=[1, "x,y", {"a":2}]`:  "on a,b 3!",
		`{"enable_thinking": false, "list": []}`: "off none 0!",
	} {
		if got := render(tok, given); got != want {
			t.Errorf("%s: of the chat: %q, want %q", given, got, want)
		}
		other, err := tok.With(ChatOptions{Variables: given})
		if err != nil {
			t.Errorf("%s: %v", given, err)
			continue
		}
		if got := render(other, ""); got != want {
			t.Errorf("%s: of the tokenizer: %q, want %q", given, got, want)
		}
		again, err := parse(other.Files()) // as a checkpoint keeps them
		if err != nil {
			t.Errorf("%s: kept: %v", given, err)
		} else if got := render(again, ""); got != want {
			t.Errorf("%s: kept: %q, want %q", given, got, want)
		}
		if (given == "") != (other.Digest() == tok.Digest()) {
			t.Errorf("%s: the digest does not say that prompts differ", given)
		}
	}
	low, err := tok.With(ChatOptions{Variables: "effort=low"})
	if err != nil {
		t.Fatal(err)
	}
	both, err := low.With(ChatOptions{Variables: "enable_thinking=false"})
	if err != nil {
		t.Fatal(err)
	}
	if got := render(both, "effort=high"); got != "off high 0!" {
		t.Errorf("over one another: %q", got)
	}
	if got := both.Variables(); got != `{"effort": "low", "enable_thinking": false}` {
		t.Errorf("kept as %s", got)
	}
	for given, want := range map[string]string{
		"enable_thinkng=false": `does not read "enable_thinkng", but effort, enable_thinking, list`,
		"messages=1":           "given by the chat",
		"x":                    "give NAME=VALUE",
		"=1":                   "give NAME=VALUE",
		`{"effort": `:          "JSON object",
		"effort=1,effort=2":    "stands twice",
	} {
		if _, err := tok.With(ChatOptions{Variables: given}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", given, err, want)
		}
	}
	_, err = tok.Render(Chat{Variables: "nosuch=1"}, true)
	if !errors.Is(err, ErrVariable) {
		t.Errorf("a variable that is not read: %v", err)
	}
}

// A variable's text is plain, as a message's: no control token comes of it.
func TestVariablesAreText(t *testing.T) {
	tok, err := withTemplate(t, `{{ who }}{% for m in messages %}{{ m.content }}<end>{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}
	count := func(variables string) (n int) {
		ids, err := tok.Prompt(Chat{Messages: []Message{{Role: "user", Content: "u"}},
			Variables: variables})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if tok.Special(id) {
				n++
			}
		}
		return n
	}
	if plain, hostile := count("who=x"), count(`who="<end>"`); plain != 1 || hostile != 1 {
		t.Errorf("%d control tokens, with one in the variable %d, want 1 and 1", plain, hostile)
	}
}

// A folder with a template for tools uses it for chats with tools, and for no other; another
// template takes the place of the folder's by its file or its name.
func TestNamedTemplates(t *testing.T) {
	list := []map[string]string{
		{"name": "default", "template": "plain:{% for m in messages %}{{ m.content }}{% endfor %}"},
		{"name": "tool_use", "template": "tools{{ (tools or []) | length }}:{% for m in messages %}{{ m.content }}{% endfor %}"}}
	named := filesOf(t, minimal())
	config, err := json.Marshal(map[string]any{"eos_token": "<end>", "chat_template": list})
	if err != nil {
		t.Fatal(err)
	}
	named[fileConfig] = config
	apart := filesOf(t, minimal())
	apart[fileTemplate], apart[fileToolUse] =
		[]byte(list[0]["template"]), []byte(list[1]["template"])
	for name, files := range map[string]map[string][]byte{"named": named, "apart": apart} {
		tok, err := parse(files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		render := func(tok *Tokenizer, tools string) string {
			text, err := tok.Render(Chat{Messages: []Message{{Role: "user", Content: "u"}},
				Tools: tools}, true)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return text
		}
		const tools = `[{"name": "f"}]`
		if got := render(tok, "") + " " + render(tok, tools); got != "plain:u tools1:u" {
			t.Errorf("%s: %q", name, got)
		}
		if err := tok.Shows(Chat{Messages: []Message{{Role: "user", Content: "u"}},
			Tools: tools}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		path := filepath.Join(t.TempDir(), "t.jinja")
		if err := os.WriteFile(path, []byte("file:{{ messages[0].content }}"), 0o600); err != nil {
			t.Fatal(err)
		}
		for template, want := range map[string]string{"tool_use": "tools0:u", path: "file:u",
			"chatml": "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"} {
			other, err := tok.With(ChatOptions{Template: template})
			if err != nil {
				t.Errorf("%s: %s: %v", name, template, err)
			} else if got := render(other, ""); got != want {
				t.Errorf("%s: %s: %q, want %q", name, template, got, want)
			}
		}
		if _, err := tok.With(ChatOptions{Template: "nosuch"}); err == nil ||
			!strings.Contains(err.Error(), "default, tool_use, chatml") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A folder whose only template is the one for tools takes chats with tools; of others it says what
// it has, and the name of that template, given as the template, takes them too.
func TestToolTemplateAlone(t *testing.T) {
	files := filesOf(t, minimal())
	set := func(names ...string) {
		var list []map[string]string
		for _, name := range names {
			list = append(list, map[string]string{"name": name, "template": name +
				"{{ (tools or []) | length }}:{% for m in messages %}{{ m.content }}{% endfor %}"})
		}
		config, err := json.Marshal(map[string]any{"eos_token": "<end>", "chat_template": list})
		if err != nil {
			t.Fatal(err)
		}
		files[fileConfig] = config
	}
	set("tool_use", "rag")
	tok, err := parse(files)
	if err != nil {
		t.Fatal(err)
	}
	ask := []Message{{Role: "user", Content: "u"}}
	tools := Chat{Messages: ask, Tools: `[{"name": "f"}]`}
	ids, err := tok.Prompt(tools)
	if want := tok.Encode("tool_use1:u"); err != nil || !slices.Equal(ids, want) {
		t.Errorf("with tools: %v, %v, want %v", ids, err, want)
	}
	_, err = tok.ChatPrompt(ask)
	if !errors.Is(err, ErrNoChatTemplate) || !strings.Contains(err.Error(), "--chat-template tool_use") {
		t.Errorf("without tools: %v", err)
	}
	given, err := tok.With(ChatOptions{Template: "tool_use"})
	if err != nil {
		t.Fatal(err)
	}
	ids, err = given.ChatPrompt(ask)
	if want := tok.Encode("tool_use0:u"); err != nil || !slices.Equal(ids, want) {
		t.Errorf("given by its name: %v, %v, want %v", ids, err, want)
	}
	set("rag", "other")
	if _, err := parse(files); err == nil || !strings.Contains(err.Error(), "(other, rag)") {
		t.Errorf("neither of the two names: %v", err)
	}
}
