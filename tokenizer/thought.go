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
// or an empty thought, so that the answer has no thought; a variable may choose between the two.
// Behind a prompt the student learns the text that the model would have written there.

// thought is the state of an answer's thought at the end of a chat's prompt.
type thought uint8

const (
	thoughtFree   thought = iota // not started: the model starts one or not
	thoughtOpen                  // started by the prompt
	thoughtClosed                // ended by the prompt, and empty
)

// tags are the texts before and behind a thought.
type tags struct{ open, end string }

// thoughtTags are the tags of released chat templates, the usual ones first. With other tags a
// template's own rendering is learned.
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

// usualTags are the tags in texts, and of templates without thoughts.
var usualTags = thoughtTags[0]

// tags returns the tags by which the chat templates recognise thoughts.
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
	return usualTags
}

// stateOf returns the state of a thought at the end of a prompt.
func (x tags) stateOf(prompt string) thought {
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

// probeThought returns the state of a thought at the end of a plain question's prompt.
func (t *Tokenizer) probeThought() thought {
	if t.chat == nil {
		return thoughtFree
	}
	prompt, err := t.Render(Chat{Messages: []Message{{Role: "user", Content: "u"}}}, true)
	if err != nil {
		return thoughtFree
	}
	return t.knownTags().stateOf(prompt)
}

// promptThought returns the result of probeThought, computed once.
func (t *Tokenizer) promptThought() thought {
	if t.thought == nil {
		return t.probeThought()
	}
	return t.thought()
}

// Written returns a text, which may contain a thought, as the model writes it behind the prompt:
// without the tag that the prompt already has, and with a missing opening tag.
func (t *Tokenizer) Written(text string) string {
	x := t.knownTags()
	if !strings.Contains(text, x.end) {
		return text
	}
	rest, opened := strings.CutPrefix(strings.TrimLeft(text, blanks), x.open)
	switch before, after, _ := strings.Cut(text, x.end); {
	case t.promptThought() == thoughtOpen && opened:
		return strings.TrimLeft(rest, "\r\n")
	case t.promptThought() == thoughtClosed && x.empty(text):
		return strings.TrimLeft(after, blanks)
	case t.promptThought() == thoughtFree && !strings.Contains(before, x.open) &&
		strings.Contains(t.sources(), x.end):
		return x.open + "\n" + strings.TrimLeft(text, "\r\n")
	}
	return text
}

// knownTags returns the result of tags, computed once.
func (t *Tokenizer) knownTags() tags {
	if t.tagged == nil {
		return t.tags()
	}
	return t.tagged()
}

// answerHeader returns the result of probeHeader, computed once.
func (t *Tokenizer) answerHeader() string {
	if t.headed == nil {
		return t.probeHeader()
	}
	return t.headed()
}

// probeHeader returns the text that the template writes between its prompt and an answer, without
// blanks and an empty thought: the name of a channel, for one.
func (t *Tokenizer) probeHeader() string {
	header, _ := t.header()
	header = strings.TrimSpace(header)
	x := t.knownTags()
	rest, opened := strings.CutPrefix(header, x.open)
	if opened || t.promptThought() == thoughtOpen {
		rest = strings.TrimPrefix(strings.TrimSpace(rest), x.end)
	}
	return strings.TrimSpace(rest)
}

// ErrThought is wrapped by errors for an answer with a thought, or without one, that does not fit
// its prompt.
var ErrThought = errors.New("the thought of the answer is not that of the prompt")

// Thinks returns an error that wraps ErrThought for a chat with a learned answer that does not fit
// the template's prompt: it has a thought where the prompt has closed one, or has none where the
// prompt opens one. The model would not write such an answer. The error names the variable that
// would mend it. Thoughts inside a text by other tags than the template's are errors too, and so is
// a text alone where the template begins every answer with a header. turns follow the chat's
// messages; skip returns true for context.
func (t *Tokenizer) Thinks(c Chat, turns []Message, skip func(i int) bool) error {
	if t.chat == nil {
		return nil
	}
	x, header := t.knownTags(), t.answerHeader()
	if x == usualTags && header == "" && t.promptThought() == thoughtFree {
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
			if err := x.checkText(m); err != nil {
				return err
			}
		}
		all = append(all, m)
	}
	return nil
}

// checkText returns an error for a thought in an answer's text by other tags than the template's.
func (x tags) checkText(m Message) error {
	if x == usualTags {
		return nil
	}
	if usualTags.think(Message{Content: m.Content}) {
		return fmt.Errorf("the answer has a thought between %s and %s, and the chat template writes thoughts between %s and %s: move it to reasoning_content: %w", usualTags.open, usualTags.end, x.open, x.end, ErrThought)
	}
	return nil
}

// fits returns the error of Thinks for one answer m to c.
func (t *Tokenizer) fits(c Chat, m Message) error {
	prompt, err := t.Render(c, true)
	if err != nil {
		return nil // reported elsewhere
	}
	thinks := t.knownTags().think(m)
	at := t.knownTags().stateOf(prompt)
	if at == thoughtFree || thinks == (at == thoughtOpen) || at == thoughtOpen &&
		strings.Contains(m.Content, t.knownTags().end) {
		return nil
	}
	what, otherwise := "closes an empty thought in the prompt, and the answer has one",
		"remove the thoughts from the rows"
	if at == thoughtOpen {
		what, otherwise = "opens a thought in the prompt, and the answer has none",
			"write the teacher's thoughts into reasoning_content"
	}
	if name := t.findVariable(c, thinks); name != "" {
		return fmt.Errorf("the chat template %s: set %s (--template, data.template), or %s: %w", what,
			name, otherwise, ErrThought)
	}
	return fmt.Errorf("the chat template %s: %s, or use another template (--chat-template): %w",
		what, otherwise, ErrThought)
}

// findVariable returns a variable with the value under which the prompt fits an answer with a
// thought, or without one; "" if no variable does.
func (t *Tokenizer) findVariable(c Chat, thinks bool) string {
	chat := t.chat.pick(c.Tools)
	names := chat.settable()
	slices.SortStableFunc(names, func(a, b string) int { // names with "think" first
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
			at := t.knownTags().stateOf(prompt)
			if at == thoughtFree || thinks == (at == thoughtOpen) {
				return fmt.Sprintf("%s=%t", name, value)
			}
		}
	}
	return ""
}
