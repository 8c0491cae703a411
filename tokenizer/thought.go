package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gad/internal/jinja"
)

// A model that thinks writes <think>, the thought, </think> and the answer, or has other tags in
// their place; gpt-oss has channels, which begin every answer with a header. Some chat templates
// write the beginning of it into the prompt: <think>, so that the answer begins inside the thought,
// or an empty thought, so that there is none; some do either by a variable. What is learned behind
// a prompt is what the model would have written there.

// thought is what the prompt of a chat has of the thought before the answer.
type thought uint8

const (
	thoughtFree   thought = iota // nothing: the model opens one or not
	thoughtOpen                  // it is opened
	thoughtClosed                // it is closed, and empty
)

// tags begin and end a thought.
type tags struct{ open, end string }

// thoughtTags are the tags of released chat templates, the usual ones first. What is learned of a
// template with other tags than those is what it writes itself.
var thoughtTags = []tags{
	{"<think>", "</think>"},
	{"[THINK]", "[/THINK]"},                                    // Magistral, Ministral
	{"<seed:think>", "</seed:think>"},                          // Seed-OSS
	{"<|channel>", "<channel|>"},                               // Gemma 4
	{"<|channel|>analysis<|message|>", "<|end|>"},              // gpt-oss
	{"<|START_THINKING|>", "<|END_THINKING|>"},                 // Command
	{"<|inner_prefix|>", "<|inner_suffix|>"},                   // Apertus
	{"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"}, // Apriel
	{"<mm:think>", "</mm:think>"},                              // MiniMax
	{"<|think|>", "<|end|>"},                                   // Solar
	{"<think:opensource>", "</think:opensource>"},              // Hunyuan
	{"<thinking>", "</thinking>"},
}

// usual are the tags of texts, and of templates that know no thoughts.
var usual = thoughtTags[0]

// tags returns the tags by which the chat templates know thoughts.
func (t *Tokenizer) tags() tags {
	source := t.sources()
	if t.chat != nil { // some put the tags together
		prompt, _ := t.RenderChat([]Message{{Role: "user", Content: "u"}}, true)
		source += prompt
	}
	for _, x := range thoughtTags {
		if strings.Contains(source, x.end) && strings.Contains(source, x.open) {
			return x
		}
	}
	return usual
}

// in looks at the end of a prompt.
func (x tags) in(prompt string) thought {
	switch prompt = strings.TrimRight(prompt, blanks); {
	case strings.HasSuffix(prompt, x.open), strings.HasSuffix(prompt, x.open+"thought"): // Gemma's
		return thoughtOpen
	case strings.HasSuffix(prompt, x.end):
		return thoughtClosed
	}
	return thoughtFree
}

// empty reports whether a text begins with a thought of blanks alone.
func (x tags) empty(text string) bool {
	before, _, found := strings.Cut(text, x.end)
	before = strings.TrimPrefix(strings.TrimSpace(before), x.open)
	return found && strings.TrimSpace(before) == ""
}

// think reports whether an assistant's turn has a thought.
func (x tags) think(m Message) bool {
	return strings.TrimSpace(m.Thinking) != "" ||
		(strings.Contains(m.Content, x.open) || strings.Contains(m.Content, x.end)) &&
			!x.empty(m.Content)
}

// probeThought looks at the prompt of a plain question.
func (t *Tokenizer) probeThought() thought {
	if t.chat == nil {
		return thoughtFree
	}
	prompt, err := t.Render(Chat{Messages: []Message{{Role: "user", Content: "u"}}}, true)
	if err != nil {
		return thoughtFree
	}
	return t.marks().in(prompt)
}

// prompts is probeThought, asked once.
func (t *Tokenizer) prompts() thought {
	if t.thought == nil {
		return t.probeThought()
	}
	return t.thought()
}

// Written is a text, which may have a thought in it, as the model writes it behind the prompt:
// without the tag that the prompt has, and with the one that the text lacks.
func (t *Tokenizer) Written(text string) string {
	x := t.marks()
	if !strings.Contains(text, x.end) {
		return text
	}
	rest, opened := strings.CutPrefix(strings.TrimLeft(text, blanks), x.open)
	switch before, after, _ := strings.Cut(text, x.end); {
	case t.prompts() == thoughtOpen && opened:
		return strings.TrimLeft(rest, "\r\n")
	case t.prompts() == thoughtClosed && x.empty(text):
		return strings.TrimLeft(after, blanks)
	case t.prompts() == thoughtFree && !strings.Contains(before, x.open) &&
		strings.Contains(t.sources(), x.end):
		return x.open + "\n" + strings.TrimLeft(text, "\r\n")
	}
	return text
}

// marks is tags, looked for once.
func (t *Tokenizer) marks() tags {
	if t.tagged == nil {
		return t.tags()
	}
	return t.tagged()
}

// begins is header, looked for once.
func (t *Tokenizer) begins() string {
	if t.headed == nil {
		return t.probeHeader()
	}
	return t.headed()
}

// probeHeader returns what the template writes between its prompt and an answer, but blanks and a
// thought that is empty: the name of a channel, for one.
func (t *Tokenizer) probeHeader() string {
	header, _ := t.header()
	header = strings.TrimSpace(header)
	x := t.marks()
	rest, opened := strings.CutPrefix(header, x.open)
	if opened || t.prompts() == thoughtOpen {
		rest = strings.TrimPrefix(strings.TrimSpace(rest), x.end)
	}
	return strings.TrimSpace(rest)
}

// ErrThought is wrapped by errors of an answer with a thought, or without one, behind a prompt that
// has it otherwise.
var ErrThought = errors.New("the thought of the answer is not that of the prompt")

// Thinks refuses, with ErrThought, a chat whose learned answers have thoughts where the template's
// prompt says that there is none, or have none where the prompt opens one: the model would not have
// written them there. The error names the variable that would mend it. Refused are also thoughts
// in a text by other tags than the template's, and a text alone where the template begins every
// answer with a header. turns follow the chat's messages; skip says which of them are context.
func (t *Tokenizer) Thinks(c Chat, turns []Message, skip func(i int) bool) error {
	if t.chat == nil {
		return nil
	}
	x, header := t.marks(), t.begins()
	if x == usual && header == "" && t.prompts() == thoughtFree {
		return nil
	}
	all := c.Messages[:len(c.Messages):len(c.Messages)]
	for i, m := range turns {
		if m.Role == "assistant" && !skip(i) {
			before := Chat{Messages: all, Tools: c.Tools, Variables: c.Variables}
			if err := t.fits(before, m); err != nil {
				return err
			}
			if plain(m) && header != "" {
				return fmt.Errorf("the chat template begins an answer with %q, which a text alone does not have: use another template (--chat-template): %w", header, ErrThought)
			}
			if err := x.kept(m); err != nil {
				return err
			}
		}
		all = append(all, m)
	}
	return nil
}

// kept refuses a thought in an answer's text by other tags than the template's.
func (x tags) kept(m Message) error {
	if x == usual {
		return nil
	}
	if usual.think(Message{Content: m.Content}) {
		return fmt.Errorf("the answer has a thought between %s and %s, and the chat template writes thoughts between %s and %s: move it to reasoning_content: %w", usual.open, usual.end, x.open, x.end, ErrThought)
	}
	return nil
}

// fits is Thinks of one answer.
func (t *Tokenizer) fits(c Chat, m Message) error {
	prompt, err := t.Render(c, true)
	if err != nil {
		return nil // said elsewhere
	}
	thinks := t.marks().think(m)
	at := t.marks().in(prompt)
	if at == thoughtFree || thinks == (at == thoughtOpen) || at == thoughtOpen &&
		strings.Contains(m.Content, t.marks().end) {
		return nil
	}
	what, otherwise := "closes an empty thought in the prompt, and the answer has one",
		"remove the thoughts from the rows"
	if at == thoughtOpen {
		what, otherwise = "opens a thought in the prompt, and the answer has none",
			"write the teacher's thoughts into reasoning_content"
	}
	if name := t.mends(c, thinks); name != "" {
		return fmt.Errorf("the chat template %s: set %s (--template, data.template), or %s: %w", what,
			name, otherwise, ErrThought)
	}
	return fmt.Errorf("the chat template %s: %s, or use another template (--chat-template): %w",
		what, otherwise, ErrThought)
}

// mends names a variable, with its value, under which the prompt fits an answer with a thought, or
// without one.
func (t *Tokenizer) mends(c Chat, thinks bool) string {
	chat := t.chat.pick(c.Tools)
	names := chat.settable()
	slices.SortStableFunc(names, func(a, b string) int { // what speaks of thoughts first
		return strings.Count(b, "think") - strings.Count(a, "think")
	})
	for _, name := range names {
		for _, value := range []bool{false, true} {
			turns, g, err := t.chat.turnsOf(c)
			if err != nil {
				return ""
			}
			vars := jinja.Vars{name: value}
			for k, v := range g.vars {
				if k != name {
					vars[k] = v
				}
			}
			g.vars = vars
			prompt, err := chat.render(turns, g, true)
			if err != nil {
				continue
			}
			if at := t.marks().in(prompt); at == thoughtFree || thinks == (at == thoughtOpen) {
				return fmt.Sprintf("%s=%t", name, value)
			}
		}
	}
	return ""
}
