package tokenizer

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// withTemplate is a minimal tokenizer with a chat template.
func withTemplate(t testing.TB, source string) (*Tokenizer, error) {
	t.Helper()
	files := filesOf(t, minimal())
	files[fileTemplate] = []byte(source)
	return parse(files)
}

// TestTemplateIsData holds templates that reach out or never end to an error
// within time and memory.
func TestTemplateIsData(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	defer func(d time.Duration) { renderTime = d }(renderTime)
	renderTime = 60 * time.Millisecond
	for name, source := range map[string]string{
		"include":            `{% include "/etc/hostname" %}`,
		"import":             `{% import "/etc/hostname" as x %}`,
		"from":               `{% from "/etc/hostname" import x %}`,
		"extends":            `{% extends "/etc/hostname" %}`,
		"nested loops":       `{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}`,
		"loops of text":      `{% for i in range(100000) %}{% for j in range(1000) %}xxxxxxxxxxxx{% endfor %}{% endfor %}`,
		"huge range":         `{% for i in range(1000000000000) %}{% endfor %}`,
		"macro calls itself": `{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}`,
		"macros in a circle": `{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ f(n) }}{% endmacro %}{{ f(0) }}`,
		"macro in an if":     `{% macro f(n) %}{% if f(n) %}{% endif %}{% endmacro %}{{ f(0) }}`,
		"macro as argument":  `{% macro f(n) %}{% set x = f(f(n)) %}{% endmacro %}{{ f(0) }}`,
		"recursive loop":     `{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}`,
		"multiplied text":    `{{ 'aaaaaaaaaa' * 100000000000 }}`,
		"multiplied twice":   `{{ 'a' * 4096 * 4096 * 4096 * 4096 }}`,
		"doubled text":       `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}`,
		"doubled by tilde":   `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}`,
		"doubled by writing": `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}`,
		"squared by replace": `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s | replace('a', ns.s) %}{% endfor %}`,
		"squared by method":  `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}`,
		"squared by join":    `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s | list | join(ns.s) %}{% endfor %}`,
		"joined by method":   `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s.join(ns.s | list) %}{% endfor %}`,
		"list of lists":      `{% set ns = namespace(s=['a']) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}`,
		"lists as json":      `{% set ns = namespace(s=['a']) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}`,
		"lists compared":     `{% set ns = namespace(s=['a'], t=['a']) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}`,
		"deep list":          `{% set ns = namespace(s=[]) %}{% for i in range(90000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}`,
		"lists added":        `{% set ns = namespace(s=['a']) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`,
		"many lists":         `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(15) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{% set x = [` + strings.Repeat("ns.s | list, ", 300) + `1] %}`,
		"grown by calls":     `{% set x = 'aaaaaaaaaaaaaaaa'` + strings.Repeat(".replace('a', 'aaaa')", 40) + ` %}`,
		"calls as arguments": `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(15) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{% set x = [` + strings.Repeat("ns.s.replace('a', 'bbbb'), ", 150) + `1] %}`,
		"wide centre":        `{{ 'a'.center(100000000000) }}`,
		"centre filter":      `{{ 'a' | center(100000000000) }}`,
		"format":             `{{ '%100000000000d' | format(1) }}`,
		"wide indent":        `{{ 'a\nb' | indent(100000000000) }}`,
		"lorem ipsum":        `{{ lipsum(n=100000000) }}`,
		"division by zero":   `{{ 1 % 0 }}`,
		"raised":             `{{ raise_exception('no') }}`,
		"raised, unprinted":  `{% set x = raise_exception('no') %}`,
		"bad date":           `{{ strftime_now('%Q') }}`,
	} {
		start := time.Now()
		tok, err := withTemplate(t, source)
		if err == nil {
			_, err = tok.ChatPrompt([]Message{{Role: "user", Content: "a question"}})
		}
		if !errors.Is(err, ErrTemplate) {
			t.Errorf("%s: error %v, want one of the sandbox", name, err)
		}
		if d := time.Since(start); d > time.Minute {
			t.Errorf("%s: took %v", name, d)
		}
	}
	// What was left behind must have ended.
	for range 3000 {
		if runtime.NumGoroutine() <= goroutines {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines are left behind", n-goroutines)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.Sys > 2<<30 {
		t.Errorf("the process holds %d MB", m.Sys>>20)
	}
}

// TestTemplateBudgets holds that the limits on depth and output end a render
// themselves: the clock would end it as well, but only where the stack and the
// memory last that long.
func TestTemplateBudgets(t *testing.T) {
	defer func(d time.Duration, n int) { renderTime, stepLimit = d, n }(renderTime, stepLimit)
	renderTime, stepLimit = time.Minute, 100_000
	for source, want := range map[string]string{
		`{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}`:                                                      "nests more than 100 deep",
		`{% set s = 'a' * 4096 %}{% for i in range(600) %}{{ s }}{% endfor %}`:                                        "writes more than",
		`{% set s = 'a' * 4096 %}{% for i in range(90000) %}{% set x = s + s %}{% endfor %}`:                          "handles more than",
		`{% set x %}{% for i in range(600) %}{{ 'a' * 4096 }}{% endfor %}{% endset %}`:                                "writes more than",
		`{% for i in range(400) %}{% for j in range(400) %}{% set x = j %}{% endfor %}{% endfor %}`:                   "takes more than 100000 steps",
		`{% set ns = namespace(l=[]) %}{% for i in range(102) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | join }}`: "a value nested more than 100 deep",
	} {
		tok, err := withTemplate(t, source)
		if err == nil {
			_, err = tok.ChatPrompt([]Message{{Role: "user", Content: "a question"}})
		}
		if !errors.Is(err, ErrTemplate) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
	}
}

// TestDeepTemplates: the parser is recursive and Go cannot recover from a
// stack overflow, so the size of a template must bound its depth.
func TestDeepTemplates(t *testing.T) {
	const tagLimit = 2000 // of internal/jinja: words of a tag
	n := templateLimit/2 - 100
	for name, source := range map[string]string{
		"parentheses at the limit": `{{ ` + strings.Repeat("(", tagLimit/2-10) + `1` + strings.Repeat(")", tagLimit/2-10) + ` }}`,
		"sums at the limit":        `{{ 1` + strings.Repeat("+1", tagLimit/2-10) + ` }}`,
		"nots at the limit":        `{{ ` + strings.Repeat("not ", tagLimit-10) + `x }}`,
		"parentheses":              `{{ ` + strings.Repeat("(", n) + `1` + strings.Repeat(")", n) + ` }}`,
		"open":                     `{{ ` + strings.Repeat("(", n),
		"lists":                    `{{ ` + strings.Repeat("[", n) + strings.Repeat("]", n) + ` }}`,
		"nots":                     `{{ ` + strings.Repeat("not ", n/2) + `x }}`,
		"minus":                    `{{ ` + strings.Repeat("-", n) + `1 }}`,
		"sums":                     `{{ 1` + strings.Repeat("+1", n-10) + ` }}`,
		"ifs": strings.Repeat("{% if 1 %}", n/12) +
			strings.Repeat("{% endif %}", n/12),
	} {
		start := time.Now()
		tok, err := withTemplate(t, source)
		if err == nil {
			_, err = tok.ChatPrompt([]Message{{Role: "user", Content: "x"}})
		}
		if d := time.Since(start); d > time.Minute {
			t.Errorf("%s: took %v (%v)", name, d, err)
		}
		t.Logf("%s: %v, %.100v", name, time.Since(start).Round(time.Millisecond), err)
	}
	if _, err := withTemplate(t, strings.Repeat(" ", templateLimit+1)); err == nil {
		t.Error("a template over the size limit was accepted")
	}
}

// TestTemplateLanguage holds what the project itself provides to templates to
// Python's behaviour.
func TestTemplateLanguage(t *testing.T) {
	old := now
	defer func() { now = old }()
	now = func() time.Time { return time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC) }
	for source, want := range map[string]string{
		`{{ messages[-1].content }}`:                                                              "hi",
		`{{ messages[-2] is defined }}`:                                                           "False",
		`{{ 'a b  c'.split() | join('|') }}`:                                                      "a|b|c",
		`{{ 'a,b,c'.split(',')[-1] }}{{ 'abc'.split(',')[-1] }}`:                                  "cabc",
		`{{ 'a,b,c'.split(',', 1) | join('|') }}`:                                                 "a|b,c",
		`{{ 'a,b,c'.rsplit(',', 1) | join('|') }}`:                                                "a,b|c",
		`[{{ ' \x1f\u00a0x\u3000 '.strip() }}]`:                                                   "[x]",
		`[{{ 'xxaxx'.strip('x') }}{{ 'xa'.lstrip('x') }}{{ 'ax'.rstrip('x') }}]`:                  "[aaa]",
		`{{ 'aaa'.replace('a', 'b') }}{{ 'aaa' | replace('a', 'b', 2) }}`:                         "bbbbba",
		`{{ ','.join(['a', 'b']) }}`:                                                              "a,b",
		`{{ {'b': 1, 'a': [true, none, 1.5, '<é"\u2028>']} | tojson }}`:                           "{\"b\": 1, \"a\": [true, null, 1.5, \"<é\\\"\u2028>\"]}",
		`{{ {'b': [1, {}]} | tojson(indent=2) }}`:                                                 "{\n  \"b\": [\n    1,\n    {}\n  ]\n}",
		`{{ strftime_now('%d %b %Y, %H:%M %A %B %y%%') }}`:                                        "03 Feb 2031, 04:05 Monday February 31%",
		`{% for i in range(2, 9, 3) %}{{ i }}{% endfor %}`:                                        "258",
		`{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}`:                                       "321",
		`{% set x %}a{{ 1 }}{% endset %}{{ x }}`:                                                  "a1",
		`{% set x = 'a' if messages else 'b' %}{{ x }}`:                                           "a",
		`{% generation %}g{% endgeneration %}`:                                                    "g",
		`{{ '-' * 3 }}{{ 2 * 3 }}`:                                                                "---6",
		`{{ 'a\nb\n\nc' | indent(2) }}`:                                                           "a\n  b\n\n  c",
		`{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}x{% endfor %}.`: ".",
		`{{ dict(a=1, b=2) | tojson }}`:                                                           `{"a": 1, "b": 2}`,
		`{{ undefined_name }}|{{ bos_token }}`:                                                    "|",
		"a\n{% if true %}\n  b\n  {%- endif %}\n":                                                 "a\n  b",
	} {
		tok, err := withTemplate(t, source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := tok.RenderChat([]Message{{Role: "user", Content: "hi"}}, true); err != nil ||
			got != want {
			t.Errorf("%s: %q, %v, want %q", source, got, err, want)
		}
	}
}

// TestNoControlTokenFromMessages writes control tokens into contents and roles
// in ways that could slip through; only the template's own may come out.
func TestNoControlTokenFromMessages(t *testing.T) {
	const source = `{% for m in messages %}{{ m.role }}{{ m.content | trim }}{% endfor %}<end>{{ messages[0].content }}<extra>`
	top := minimal()
	top["normalizer"] = map[string]any{"type": "NFC"}
	top["added_tokens"] = []any{
		map[string]any{"id": 257, "content": "<end>", "special": true, "normalized": false},
		map[string]any{"id": 258, "content": "<extra>", "special": false, "normalized": false},
		map[string]any{"id": 259, "content": "<free>", "special": false, "normalized": false},
		map[string]any{"id": 260, "content": "Kend", "special": true, "normalized": true},
		map[string]any{"id": 261, "content": "≃", "special": true, "normalized": false},
	}
	files := filesOf(t, top)
	files[fileTemplate] = []byte(source)
	tok, err := parse(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		msgs []Message
		want []int32 // ids from 257 on, in order
	}{
		{[]Message{{Role: "user", Content: "plain"}}, []int32{257, 258}},
		{[]Message{{Role: "user", Content: "<end>"}}, []int32{257, 258}},
		{[]Message{{Role: "user", Content: "<<end>end>"}}, []int32{257, 258}},
		{[]Message{{Role: "user", Content: "<en"}, {Role: "d>", Content: ""}}, []int32{257, 258}},
		{[]Message{{Role: "user", Content: "<en  "}, {Role: "d>", Content: ""}}, []int32{257, 258}},
		{[]Message{{Role: "<end>", Content: "x"}}, []int32{257, 258}},
		{[]Message{{Role: "<e", Content: "nd>"}}, []int32{257, 258}},
		{[]Message{{Role: "user", Content: "a<extra>b"}}, []int32{257, 258}},
		// an ordinary word of the vocabulary
		{[]Message{{Role: "user", Content: "a<free>b"}}, []int32{259, 257, 259, 258}},
		{[]Message{{Role: "assistant", Content: "a<extra>b<end>"}}, []int32{258, 257, 258, 258}},
		{[]Message{{Role: "user", Content: "\u212aend Kend"}}, []int32{257, 258}},
		{[]Message{{Role: "user", Content: "a≃b≃"}}, []int32{257, 258}},
		{[]Message{{Role: "user", Content: "\ufdd0<end>\ufdd1"}}, []int32{257, 258}},
	} {
		ids, err := tok.ChatPrompt(c.msgs)
		if err != nil {
			t.Errorf("%+v: %v", c.msgs, err)
			continue
		}
		got := slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return id < 257 })
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: control tokens %v, want %v", c.msgs, got, c.want)
		}
		// Nothing of the text is lost.
		text, err := tok.RenderChat(c.msgs, true)
		if want := tok.normalize(text); err != nil || tok.Decode(ids, false) != want {
			t.Errorf("%+v: decodes to %q, want %q, %v", c.msgs, tok.Decode(ids, false), want, err)
		}
	}
	var all strings.Builder
	for r := rune(0xFDD0); r <= 0xFDEF; r++ {
		all.WriteRune(r)
	}
	if _, err := tok.ChatPrompt(
		[]Message{{Role: "user", Content: all.String() + "<end>"}}); err == nil {
		t.Error("messages with every noncharacter and a control token were accepted")
	}
}

// Row 16: every control token of every fixture, written in every role, alone, in
// a sentence, at the end, in halves over two messages, and with its neighbours:
// the prompt holds the control tokens that it has without it, and no more.
func TestNoMessageBecomesAControlToken(t *testing.T) {
	cases := 0
	for _, shape := range []string{"gpt2", "qwen2", "llama3", "other"} {
		tok, _ := readExpected(t, shape)
		if tok.chat == nil {
			var err error // a template of our own where the folder has none
			if tok.chat, err = newChatTemplate(`{% for m in messages %}{{ m.role + ': ' + m.content | trim + '\n' }}{% endfor %}`, nil); err != nil {
				t.Fatal(err)
			}
		}
		controls := func(msgs []Message) (ids []int32) {
			t.Helper()
			all, err := tok.ChatPrompt(msgs)
			if err != nil {
				t.Fatalf("%s: %+v: %v", shape, msgs, err)
			}
			for _, id := range all {
				if tok.special[id] {
					ids = append(ids, id)
				}
			}
			return ids
		}
		specials := 0
		for _, a := range tok.added {
			if !a.Special {
				continue
			}
			specials++
			half := len(a.Content) / 2
			for !utf8.RuneStart(a.Content[half]) {
				half--
			}
			for _, role := range []string{"system", "user", "assistant"} {
				for _, content := range []string{a.Content, "x" + a.Content + "y",
					"say " + a.Content, a.Content + a.Content, "<" + a.Content, a.Content[:half],
					a.Content[:half] + a.Content, " " + a.Content + "\n", a.Content[half:]} {
					msgs := func(text string) []Message {
						list := []Message{{Role: "system", Content: "s"},
							{Role: "user", Content: "u"}, {Role: "assistant", Content: "a"},
							{Role: "user", Content: "v"}}
						for i := range list {
							if list[i].Role == role {
								list[i].Content = text
								break
							}
						}
						return list
					}
					cases++
					if got, want :=
						controls(msgs(content)),
						controls(msgs("harmless")); !slices.Equal(got, want) {
						t.Errorf("%s: %s says %q: control tokens %v, want %v", shape, role, content,
							got, want)
					}
				}
			}
		}
		if specials == 0 {
			t.Errorf("%s: no control token in the fixture", shape)
		}
	}
	t.Logf("row 16: %d messages with control tokens in them, none encoded as one", cases)
}

// TestRestoredTextIsNormalized: a mark behind a control token of one character
// joins with it once it is text again.
func TestRestoredTextIsNormalized(t *testing.T) {
	top := minimal()
	top["normalizer"] = map[string]any{"type": "NFC"}
	top["added_tokens"] = []any{map[string]any{"id": 257, "content": "<end>", "special": true},
		map[string]any{"id": 258, "content": "≃", "special": true}}
	files := filesOf(t, top)
	files[fileTemplate] = []byte(`{{ messages[0].content }}`)
	tok, err := parse(files)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.ChatPrompt([]Message{{Role: "user", Content: "x≃\u0338"}})
	if got := tok.Decode(ids, false); err != nil || got != "x\u2244" {
		t.Errorf("decodes to %+q, %v, want x and U+2244", got, err)
	}
}

// TestLongChats: the sandbox's limits grow with the messages.
func TestLongChats(t *testing.T) {
	for _, shape := range []string{"qwen2", "llama3", "gpt2"} {
		tok, _ := readExpected(t, shape)
		var turns []Message
		for range 500 {
			turns = append(turns, Message{Role: "user", Content: strings.Repeat("question ", 30)},
				Message{Role: "assistant", Content: strings.Repeat("answer ", 30)})
		}
		turns = append(turns, Message{Role: "user", Content: "last"})
		for name, msgs := range map[string][]Message{"many turns": turns,
			"one long message": {{Role: "user", Content: strings.Repeat("word ", 400_000)}}} {
			text, err := tok.RenderChat(msgs, true)
			if err != nil || !strings.Contains(text, strings.TrimSpace(msgs[0].Content)) {
				t.Errorf("%s: %s: %v", shape, name, err)
			}
		}
	}
}

// A program that the system does not run for a while, on a machine that is too busy, does
// not refuse a sound template; one that computes for that long is refused.
func TestTemplateOnABusyMachine(t *testing.T) {
	defer func(d time.Duration, f func() time.Duration) { renderTime, processTime = d, f }(
		renderTime, processTime)
	renderTime = time.Millisecond
	tpl, err := newChatTemplate("{% for i in range(50000) %}{{ i }} {% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	processTime = func() time.Duration { return 0 } // it has not been run
	begun := time.Now()
	if _, err := tpl.render(nil, inputs{}, false); err != nil {
		t.Errorf("not run: %v", err)
	}
	if d := time.Since(begun); d < 2*renderTime {
		t.Fatalf("rendered in %v: too fast to show anything", d)
	}
	for _, f := range []func() time.Duration{usedTime, func() time.Duration { return -1 }} {
		processTime = f
		if _, err := tpl.render(nil, inputs{}, false); err == nil {
			t.Error("a render over its limit is not refused")
		}
	}
}
