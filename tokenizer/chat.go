package tokenizer

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"gad/internal/jinja"
)

// Bounds of a render. A chat template comes with a model and is not trusted: internal/jinja gives
// it the variables of the chat and nothing else, within these bounds.
const (
	templateLimit = 128 << 10 // bytes of a template
	depthLimit    = 100       // nested statements, macro calls included, and nested values
	textLimit     = 1 << 20   // bytes of one value and of the output, plus four times the messages
	// bytes that may pass through operators, filters and calls, in units of the text limit
	workLimit = 128
)

// Tests change these.
var (
	renderTime = 2 * time.Second // for one render, which takes a millisecond
	stepLimit  = 2_000_000       // statements executed in one render

	// processTime returns the processor time that the program has used, negative if the system does
	// not provide it.
	processTime = usedTime

	// now is the clock of strftime_now.
	now = time.Now
)

// chatTemplate is a compiled template, safe for concurrent use.
type chatTemplate struct {
	source   string
	tpl      *jinja.Template
	vars     jinja.Vars      // bos_token and the like, and the user's variables
	set      jinja.Vars      // the user's variables
	form     func() callForm // the form of calls that it takes: see formOf
	forTools *chatTemplate   // the template for chats with tools; nil: this one
	// the folder has this template for chats with tools, and none for other chats
	toolsOnly bool
}

// inputs are a chat's values for a template, apart from its turns.
type inputs struct {
	tools any
	vars  jinja.Vars
}

// stopwatch is the time limit of a render. Wall-clock time alone would refuse a sound template on a
// machine so busy that the program does not run for a while: the program must also have computed
// that long.
type stopwatch struct {
	start      time.Time
	limit      time.Duration
	used       func() time.Duration // processTime
	usedBefore time.Duration        // the result of used at start
}

// startWatch returns a stopwatch that runs.
func startWatch() stopwatch {
	return stopwatch{time.Now(), renderTime, processTime, processTime()}
}

// over reports whether the limit has passed, in both clocks.
func (s stopwatch) over() bool {
	if time.Since(s.start) < s.limit {
		return false
	}
	return s.usedBefore < 0 || s.used()-s.usedBefore >= s.limit
}

// newChatTemplate compiles a template.
func newChatTemplate(source string, vars jinja.Vars) (*chatTemplate, error) {
	if len(source) > templateLimit {
		return nil, fmt.Errorf("%d bytes: over the limit of %d: shorten it: %w", len(source),
			templateLimit, ErrTemplate)
	}
	tpl, err := jinja.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("%w: cannot be parsed: %s: correct it, or use another template",
			ErrTemplate, shorten(err))
	}
	c := &chatTemplate{source: source, tpl: tpl, vars: vars}
	c.form = sync.OnceValue(c.formOf)
	return c, nil
}

// render returns the chat as the template writes it.
func (c *chatTemplate) render(turns []turn, g inputs, addGenerationPrompt bool) (string, error) {
	text := textLimit
	messages := make([]any, len(turns))
	for i, t := range turns {
		messages[i] = t.dict()
		eachString(t.calls, func(s string) { text += 4 * len(s) })
		text += 4 * (len(t.content) + len(t.thinking))
	}
	eachString(g.tools, func(s string) { text += 4 * len(s) })
	data := jinja.Vars{"messages": jinja.NewList(messages...), "tools": g.tools, "documents": nil,
		"add_generation_prompt": addGenerationPrompt}
	maps.Copy(data, c.vars)
	for k, v := range g.vars {
		eachString(v, func(s string) { text += 4 * len(s) })
		data[k] = v
	}
	out, err := c.tpl.Render(data, jinja.Limits{Steps: stepLimit, Depth: depthLimit, Text: text,
		Work: workLimit * text, Expired: startWatch().over, Now: now})
	if err != nil {
		return "", fmt.Errorf("tokenizer: %w: %s: change the messages or the template", ErrTemplate,
			shorten(err))
	}
	return out, nil
}

// shorten returns err's message on one line of at most 240 bytes.
func shorten(err error) string {
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > 240 {
		s = validUTF8(s[:240]) + "..."
	}
	return s
}

// guard returns the turns and the other inputs of a chat with the first character of every control
// token in them replaced by a stand-in, and a replacer that restores the characters. Stand-ins are
// noncharacters of Unicode that occur in no message. The template gets a text of the same length
// with the same blanks, so that it trims and tests the text as usual; the encoder cuts out the
// template's own control tokens, and only then the characters are restored. A message that ends
// with the beginning of a control token is guarded too, lest the text behind it completes the
// token.
func (t *Tokenizer) guard(c Chat) (turns []turn, g inputs, restore *strings.Replacer, err error) {
	if turns, g, err = t.chat.turnsOf(c); err != nil {
		return nil, inputs{}, nil, err
	}
	source := t.sources()
	var always, named []string // control tokens in an assistant's message; in all others
	normalizes := false
	for _, a := range t.added {
		if a.Special {
			always = append(always, a.Content)
		}
		if a.Special || strings.Contains(source, a.Content) {
			named = append(named, a.Content)
			normalizes = normalizes || a.Normalized
		}
	}
	var all strings.Builder
	clean := func(s string) string {
		if s = validUTF8(s); normalizes { // a control token must not come to be in the normalizer
			s = t.normalize(s)
		}
		all.WriteString(s)
		return s
	}
	for i := range turns {
		role := validUTF8(turns[i].role)
		turns[i].mapStrings(clean)
		turns[i].role = role
		all.WriteString(role)
	}
	g.tools = mapStrings(g.tools, clean)
	mapVars(&g.vars, clean)
	text := all.String()
	standIns := map[rune]rune{}
	var oldnew []string
	next := rune(0xFDD0)
	var full error
	standIn := func(r rune) rune {
		if s, ok := standIns[r]; ok {
			return s
		}
		for strings.ContainsRune(text, next) || strings.ContainsRune(source, next) {
			next++
		}
		if next > 0xFDEF {
			full = fmt.Errorf("tokenizer: chat: the messages contain all noncharacters U+FDD0 to U+FDEF, so control tokens in them cannot be marked: remove these characters")
			return r
		}
		standIns[r] = next
		oldnew = append(oldnew, string(next), string(r))
		next++
		return standIns[r]
	}
	in := func(controls []string) func(string) string {
		return func(s string) string { return standInFor(s, controls, standIn) }
	}
	for i := range turns {
		controls := named
		if turns[i].role == "assistant" {
			controls = always
		}
		role := in(named)(turns[i].role)
		turns[i].mapStrings(in(controls))
		turns[i].role = role
	}
	g.tools = mapStrings(g.tools, in(named))
	mapVars(&g.vars, in(named))
	if full != nil || len(oldnew) == 0 {
		return turns, g, nil, full
	}
	return turns, g, strings.NewReplacer(oldnew...), nil
}

// mapVars replaces each text in vars by f of it. It makes a copy: the variables of other chats
// stay.
func mapVars(vars *jinja.Vars, f func(string) string) {
	if len(*vars) == 0 {
		return
	}
	out := jinja.Vars{}
	for k, v := range *vars {
		out[k] = mapStrings(v, f)
	}
	*vars = out
}

// standInFor replaces the first character of each control token in s, and of each beginning of one
// at its end.
func standInFor(s string, controls []string, standIn func(rune) rune) string {
	at := map[int]bool{}
	for _, c := range controls {
		for i := 0; ; {
			k := strings.Index(s[i:], c)
			if k < 0 {
				break
			}
			at[i+k] = true
			_, n := utf8.DecodeRuneInString(c)
			i += k + n
		}
		// Templates trim, so the end counts with and without its blanks.
		for _, end := range []string{s, strings.TrimRightFunc(s, unicode.IsSpace)} {
			for k := min(len(c)-1, len(end)); k > 0; k-- {
				if utf8.RuneStart(c[k]) && strings.HasSuffix(end, c[:k]) {
					at[len(end)-k] = true
				}
			}
		}
	}
	if len(at) == 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if at[i] {
			r = standIn(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}
