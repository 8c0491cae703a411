package encode

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/data"
	"gad/tokenizer"
)

// thoughtCells is the table of doc/data.md: what becomes of a row with its thought in its key, in
// the text, of none, over turns, and with the closing tag alone, under each kind of template.
//
//	=     what is learned is what the template itself goes on with behind the prompt
//	text  what is learned is the answer as the row has it
//	-     the row is refused
//	x=y   the row is refused, and the message names this variable
//
// The kinds, and what the template writes, are transformers': scripts/fixtures_templates.py.
var thoughtCells = map[string][5]string{
	"opens":                             {"=", "=", "-", "=", "="},
	"closes":                            {"-", "-", "=", "-", "-"},
	"closes by a variable":              {"=", "=", "text", "=", "="},
	"closes by a variable false":        {on, on, "=", on, on},
	"closes by a variable true":         {"=", "=", "text", "=", "="},
	"opens, closes by a variable":       {"=", "=", off, "=", "="},
	"opens, closes by a variable false": {on, on, "=", on, on},
	"opens, closes by a variable true":  {"=", "=", off, "=", "="},
	"closes, opens by a variable":       {on, on, "=", on, on},
	"closes, opens by a variable false": {on, on, "=", on, on},
	"closes, opens by a variable true":  {"=", "=", off, "=", "="},
	"opens, forgets":                    {"two and two\n</think>\n\n4", "two and two\n</think>\n\n4", "-", "two and two\n</think>\n\n4", "two and two\n</think>\n\n4"},
	"none":                              {"<think>\ntwo and two\n</think>\n\n4", "text", "=", "<think>\ntwo and two\n</think>\n\n4", "text"},
}

const (
	on  = "enable_thinking=true"
	off = "enable_thinking=false"
)

var thoughtRows = []string{"key", "text", "none", "over turns", "closing tag alone"}

// What is learned behind a prompt is what the model would have written there, token by token, or the
// row is refused with the variable that would mend it.
func TestThoughts(t *testing.T) {
	raw, err := os.ReadFile("../../testdata/templates/thoughts.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Kinds map[string]string
		Cases []struct {
			Kind, Variables, Row, Prompt, Whole string
			Messages                            json.RawMessage
		}
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	base, err := tokenizer.Load("../../testdata/tokenizer/qwen2")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	seen := map[string]bool{}
	for _, c := range f.Cases {
		kind := c.Kind
		if _, value, ok := strings.Cut(strings.Trim(c.Variables, "{}"), ": "); ok {
			kind += " " + value
		}
		cells, ok := thoughtCells[kind]
		if !ok {
			t.Errorf("%s: not in the table", kind)
			continue
		}
		want := cells[slices.Index(thoughtRows, c.Row)]
		name := kind + ", " + c.Row
		seen[name] = true
		template, file := filepath.Join(dir, "t.jinja"), filepath.Join(dir, "row.jsonl")
		var row bytes.Buffer
		if err := json.Compact(&row, c.Messages); err != nil {
			t.Fatal(err)
		}
		if os.WriteFile(template, []byte(f.Kinds[c.Kind]), 0o600) != nil ||
			os.WriteFile(file, []byte(`{"messages": `+row.String()+"}\n"), 0o600) != nil {
			t.Fatal("cannot write")
		}
		tok, err := base.With(tokenizer.ChatOptions{Template: template, Variables: c.Variables})
		if err != nil {
			t.Fatal(err)
		}
		set, err := data.OpenFiles([]string{file}, data.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := set.Row(0)
		if err != nil {
			t.Fatal(err)
		}
		set.Close()
		enc := Encoder{Tok: tok, MaxPrompt: 1000, MaxResponse: 1000}
		prompt, err := enc.Prompt(r)
		if err != nil || !slices.Equal(prompt, tok.Encode(c.Prompt)) {
			t.Errorf("%s: prompt %q, %v, transformers writes %q", name, tok.Decode(prompt, false),
				err, c.Prompt)
		}
		err = enc.Shows(r)
		if want == "-" || want == on || want == off {
			if !errors.Is(err, data.ErrThought) || want != "-" &&
				!strings.Contains(err.Error(), "set "+want+" ") ||
				want == "-" && strings.Contains(err.Error(), "set ") {
				t.Errorf("%s: %v, want a refusal with %s", name, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: refused: %v", name, err)
			continue
		}
		end := tok.Decode([]int32{tok.EndOfTurn()}, false)
		switch want {
		case "=":
			rest, ok := strings.CutPrefix(c.Whole, c.Prompt)
			if !ok {
				t.Errorf("%s: the template itself does not go on behind its prompt", name)
				continue
			}
			want = strings.TrimSuffix(strings.TrimRight(rest, "\n"), end)
		case "text":
			want = r.Teacher
		}
		learned := enc.Answer(r.Teacher)
		if r.Turns != nil {
			if learned, _, err = enc.Reply(r); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
		}
		if !slices.Equal(learned, tok.Encode(want+end)) {
			t.Errorf("%s: learns %q, want %q", name, tok.Decode(learned, false), want+end)
		}
	}
	if want := len(thoughtCells) * len(thoughtRows); len(seen) != want {
		t.Errorf("%d cells tried, the table has %d", len(seen), want)
	}
}

// Templates with other tags than <think>, and with channels: what is learned is what the template
// writes, or the row is refused with the way out.
func TestOtherTags(t *testing.T) {
	const (
		begin = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
		end   = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
		// tags and channels as Seed-OSS, Gemma 4, Ministral and gpt-oss have them
		seed     = begin + "{% if m.reasoning_content %}<seed:think>{{ m.reasoning_content }}</seed:think>{% endif %}{{ m.content }}" + end + "{% endif %}"
		opens    = begin + "{% if m.reasoning_content %}<seed:think>{{ m.reasoning_content }}</seed:think>{% endif %}{{ m.content }}" + end + "<seed:think>{% endif %}"
		forgets  = begin + "{% if m.role == 'system' %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}{{ m.content }}" + end + "{% endif %}"
		closes   = begin + "{% if m.reasoning_content %}<|channel>thought\n{{ m.reasoning_content }}<channel|>{% endif %}{{ m.content }}" + end + "<|channel>thought\n<channel|>{% endif %}"
		channels = begin + "{% if m.role == 'assistant' %}{% if m.reasoning_content %}<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>{% endif %}<|channel|>final<|message|>{% endif %}{{ m.content }}" + end + "{% endif %}"
		key      = `, "reasoning_content": "two"`
		move     = "move it to reasoning_content"
		out      = "leaves that of this answer out: remove the thoughts"
		header   = `begins an answer with "<|channel|>final<|message|>"`
		thought  = "opens a thought in the prompt, and the answer has none: write the teacher's thoughts"
	)
	base, err := tokenizer.Load("../../testdata/tokenizer/qwen2")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, c := range []struct{ name, template, content, more, want, refused string }{
		{"seed key", seed, "4", key, "<seed:think>two</seed:think>4", ""},
		{"seed none", seed, "4", "", "4", ""},
		{"seed own text", seed, "<seed:think>two</seed:think>4", "", "<seed:think>two</seed:think>4", ""},
		{"seed closing alone", seed, "two</seed:think>4", "", "<seed:think>\ntwo</seed:think>4", ""},
		{"seed usual text", seed, "<think>two</think>4", "", "", move},
		{"opens key", opens, "4", key, "two</seed:think>4", ""},
		{"opens none", opens, "4", "", "", thought},
		{"opens own text", opens, "<seed:think>two</seed:think>4", "", "two</seed:think>4", ""},
		{"forgets key", forgets, "4", key, "", out},
		{"forgets none", forgets, "4", "", "4", ""},
		{"forgets usual text", forgets, "<think>two</think>4", "", "", move},
		{"closes none", closes, "4", "", "4", ""},
		{"closes key", closes, "4", key, "", "closes an empty thought in the prompt"},
		{"channels key", channels, "4", key, "<|channel|>analysis<|message|>two<|end|><|channel|>final<|message|>4", ""},
		{"channels none", channels, "4", "", "", header},
	} {
		template, file := filepath.Join(dir, "t.jinja"), filepath.Join(dir, "row.jsonl")
		row := `{"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "` +
			c.content + `"` + c.more + "}]}\n"
		if err := errors.Join(os.WriteFile(template, []byte(c.template), 0o600),
			os.WriteFile(file, []byte(row), 0o600)); err != nil {
			t.Fatal(err)
		}
		tok, err := base.With(tokenizer.ChatOptions{Template: template})
		if err != nil {
			t.Fatal(err)
		}
		set, err := data.OpenFiles([]string{file}, data.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := set.Row(0)
		set.Close()
		if err != nil {
			t.Fatal(err)
		}
		enc := Encoder{Tok: tok, MaxPrompt: 1000, MaxResponse: 1000}
		err = enc.Shows(r)
		learned := enc.Answer(r.Teacher)
		if err == nil && r.Turns != nil {
			learned, _, err = enc.Reply(r)
		}
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v, want %s", c.name, err, c.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := tok.Decode(learned, false); got != c.want+"<|im_end|>" {
			t.Errorf("%s: learns %q, want %q", c.name, got, c.want)
		}
	}
}
