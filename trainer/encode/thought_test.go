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
