package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gad/internal/jinja"
)

// A model that thinks writes <think>, the thought, </think> and the answer. Some chat templates
// write the beginning of it into the prompt: <think>, so that the answer begins inside the thought,
// or an empty thought, so that there is none; some do either by a variable. What is learned behind a
// prompt is what the model would have written there.

// thought is what the prompt of a chat has of the thought before the answer.
type thought uint8

const (
	thoughtFree   thought = iota // nothing: the model opens one or not
	thoughtOpen                  // it is opened
	thoughtClosed                // it is closed, and empty
)

// The tags of a thought.
const (
	thinkTag = "<think>"
	endThink = "</think>"
)

// thoughtIn looks at the end of a prompt.
func thoughtIn(prompt string) thought {
	switch prompt = strings.TrimRight(prompt, blanks); {
	case strings.HasSuffix(prompt, thinkTag):
		return thoughtOpen
	case strings.HasSuffix(prompt, endThink):
		return thoughtClosed
	}
	return thoughtFree
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
	return thoughtIn(prompt)
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
	if !strings.Contains(text, endThink) {
		return text
	}
	rest, opened := strings.CutPrefix(strings.TrimLeft(text, blanks), thinkTag)
	switch before, after, _ := strings.Cut(text, endThink); {
	case t.prompts() == thoughtOpen && opened:
		return strings.TrimLeft(rest, "\r\n")
	case t.prompts() == thoughtClosed && emptyThought(text):
		return strings.TrimLeft(after, blanks)
	case t.prompts() == thoughtFree && !strings.Contains(before, thinkTag) &&
		strings.Contains(t.sources(), endThink):
		return thinkTag + "\n" + strings.TrimLeft(text, "\r\n")
	}
	return text
}

// emptyThought reports whether a text begins with a thought of blanks alone.
func emptyThought(text string) bool {
	before, _, found := strings.Cut(text, endThink)
	before = strings.TrimPrefix(strings.TrimSpace(before), thinkTag)
	return found && strings.TrimSpace(before) == ""
}

// thinks reports whether an assistant's turn has a thought.
func (m Message) thinks() bool {
	return strings.TrimSpace(m.Thinking) != "" || strings.Contains(m.Content, thinkTag) &&
		!emptyThought(m.Content) || strings.Contains(m.Content, endThink) &&
		!emptyThought(m.Content)
}

// ErrThought is wrapped by errors of an answer with a thought, or without one, behind a prompt that
// has it otherwise.
var ErrThought = errors.New("the thought of the answer is not that of the prompt")

// Thinks refuses, with ErrThought, a chat whose learned answers have thoughts where the template's
// prompt says that there is none, or have none where the prompt opens one: the model would not have
// written them there. The error names the variable that would mend it. turns follow the chat's
// messages; skip says which of them are context.
func (t *Tokenizer) Thinks(c Chat, turns []Message, skip func(i int) bool) error {
	if t.chat == nil || t.prompts() == thoughtFree {
		return nil
	}
	all := c.Messages[:len(c.Messages):len(c.Messages)]
	for i, m := range turns {
		if m.Role == "assistant" && !skip(i) {
			before := Chat{Messages: all, Tools: c.Tools, Variables: c.Variables}
			if err := t.fits(before, m); err != nil {
				return err
			}
		}
		all = append(all, m)
	}
	return nil
}

// fits is Thinks of one answer.
func (t *Tokenizer) fits(c Chat, m Message) error {
	prompt, err := t.Render(c, true)
	if err != nil {
		return nil // said elsewhere
	}
	thinks := m.thinks()
	at := thoughtIn(prompt)
	if at == thoughtFree || thinks == (at == thoughtOpen) || at == thoughtOpen &&
		strings.Contains(m.Content, endThink) {
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
			if at := thoughtIn(prompt); at == thoughtFree || thinks == (at == thoughtOpen) {
				return fmt.Sprintf("%s=%t", name, value)
			}
		}
	}
	return ""
}
