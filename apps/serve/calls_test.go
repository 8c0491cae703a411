package serve

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/hostile"
	"gad/tokenizer"
)

var (
	hermes = &format{arguments: "arguments", also: "parameters", opens: hermesOpen,
		closes: hermesClose}
	llama = &format{arguments: "parameters", also: "arguments", opens: llamaTag, bare: true}
)

// parsed is an answer in one line: texts in quotes, calls as name(arguments).
func parsed(f *format, parts ...string) string {
	p := newParser(f)
	var list []piece
	for _, part := range parts {
		list = append(list, p.next(part)...)
	}
	list = append(list, p.end()...)
	var b strings.Builder
	text, calls := "", 0
	say := func() {
		if text != "" {
			fmt.Fprintf(&b, "%q ", text)
		}
		text = ""
	}
	for _, x := range list {
		if x.call == nil {
			text += x.text
			continue
		}
		say()
		calls++
		fmt.Fprintf(&b, "%s(%s) ", x.call.name, x.call.arguments)
	}
	if say(); calls != p.calls {
		return fmt.Sprintf("%d calls, counted as %d", calls, p.calls)
	}
	return strings.TrimSuffix(b.String(), " ")
}

// callCases are answers, and what they are.
var callCases = []struct {
	f          *format
	what, text string
	want       string
}{
	{hermes, "no call", "Hello {\"name\": 1} < b\n", `"Hello {\"name\": 1} < b\n"`},
	{hermes, "nothing", "", ""},
	{hermes, "blanks alone", " \n", `" \n"`},
	{hermes, "a call", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>", `f({"x": 1})`},
	{hermes, "text and a call", "Let me see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n", `"Let me see." f({})`},
	{hermes, "two calls, text between and behind", " a \n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> b <tool_call>{\"name\":\"g\",\"arguments\":{\"a\":[1,{\"b\":\"}\"}]}}</tool_call> c\n", `" a" f({}) "b" g({"a":[1,{"b":"}"}]}) "c\n"`},
	{hermes, "two calls", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>", `f({}) g({})`},
	{hermes, "marks in a text of the arguments", "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"</tool_call><tool_call>\\\"\\\\\"}}</tool_call>", `f({"x":"</tool_call><tool_call>\"\\"})`},
	{hermes, "arguments as a text", "<tool_call>{\"name\":\"f\",\"arguments\":\" {\\\"x\\\": 1}\"}</tool_call>", `f({"x": 1})`},
	{hermes, "the other key", "<tool_call>{\"name\":\"f\",\"parameters\":{\"x\":1}}</tool_call>", `f({"x":1})`},
	{hermes, "no closing mark", "<tool_call>{\"name\":\"f\",\"arguments\":{}} \n", `f({})`},
	{hermes, "half a closing mark", "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n</tool_c", `f({})`},
	{hermes, "no object", "<tool_call>f(1)</tool_call> x", `"<tool_call>f(1)</tool_call> x"`},
	{hermes, "no JSON", "<tool_call>{\"name\": f}</tool_call>", `"<tool_call>{\"name\": f}</tool_call>"`},
	{hermes, "no name", "<tool_call>{\"arguments\":{}}</tool_call>", `"<tool_call>{\"arguments\":{}}</tool_call>"`},
	{hermes, "a blank name", "<tool_call>{\"name\":\" \",\"arguments\":{}}</tool_call>", `"<tool_call>{\"name\":\" \",\"arguments\":{}}</tool_call>"`},
	{hermes, "arguments that are a list", "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>", `"<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>"`},
	{hermes, "no arguments", "<tool_call>{\"name\":\"f\"}</tool_call>", `"<tool_call>{\"name\":\"f\"}</tool_call>"`},
	{hermes, "cut", "a <tool_call>{\"name\":\"f\",\"argu", `"a <tool_call>{\"name\":\"f\",\"argu"`},
	{hermes, "text behind the object", "<tool_call>{\"name\":\"f\",\"arguments\":{}} so</tool_call>", `"<tool_call>{\"name\":\"f\",\"arguments\":{}} so</tool_call>"`},
	{hermes, "a call behind a malformed one", "<tool_call>{\"name\" <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", `"<tool_call>{\"name\"" f({})`},
	{hermes, "a mark that never ends", "x <tool_cal", `"x <tool_cal"`},
	{hermes, "a mark twice", "<tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", `"<tool_call>" f({})`},
	{hermes, "brackets that do not match", "<tool_call>{\"name\":\"f\",\"arguments\":{]}}</tool_call>", `"<tool_call>{\"name\":\"f\",\"arguments\":{]}}</tool_call>"`},
	{hermes, "XML", "<tool_call>\n<function=f>\n</function>\n</tool_call>", `"<tool_call>\n<function=f>\n</function>\n</tool_call>"`},

	{llama, "no call", "Hello {\"name\":\"f\",\"parameters\":{}}", `"Hello {\"name\":\"f\",\"parameters\":{}}"`},
	{llama, "nothing", "", ""},
	{llama, "a call", "{\"name\": \"f\", \"parameters\": {\"x\": \"1\"}}", `f({"x": "1"})`},
	{llama, "a call with a type", "\n\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}\n", `f({})`},
	{llama, "behind the tag", "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", `f({})`},
	{llama, "text and the tag", "I call: <|python_tag|>{\"name\": \"f\", \"arguments\": {}}", `"I call:" f({})`},
	{llama, "three calls", "{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"parameters\":{}}\n<|python_tag|>{\"name\":\"h\",\"parameters\":{}};", `f({}) g({}) h({})`},
	{llama, "text behind", "{\"name\":\"f\",\"parameters\":{}} Done.", `f({}) "Done."`},
	{llama, "another object", "{\"answer\": 42}", `"{\"answer\": 42}"`},
	{llama, "an object behind a call", "{\"name\":\"f\",\"parameters\":{}}; {\"x\": 1}", `f({}) "; {\"x\": 1}"`},
	{llama, "code", "<|python_tag|>print(1)", `"<|python_tag|>print(1)"`},
	{llama, "cut", "{\"name\":\"f\",\"parameters\":{", `"{\"name\":\"f\",\"parameters\":{"`},
	{llama, "blanks and a cut tag", "\n<|pyth", `"\n<|pyth"`},
}

// Calls are found, what is none stays text, and how an answer is cut into parts is of no
// importance: whole, byte by byte, and at random places.
func TestParser(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range callCases {
		if got := parsed(c.f, c.text); got != c.want {
			t.Errorf("%s: %q:\n got %s\nwant %s", c.what, c.text, got, c.want)
		}
		if got := parsed(c.f, strings.Split(c.text, "")...); got != c.want {
			t.Errorf("%s: letter by letter: got %s, want %s", c.what, got, c.want)
		}
		for range 50 {
			if got := parsed(c.f, cut(rng, c.text)...); got != c.want {
				t.Errorf("%s: cut: got %s, want %s", c.what, got, c.want)
			}
		}
	}
}

func cut(rng *rand.Rand, text string) (parts []string) {
	for text != "" {
		n := 1 + rng.IntN(min(len(text), 1+rng.IntN(12)))
		parts, text = append(parts, text[:n]), text[n:]
	}
	return parts
}

// Answers of marks, objects and letters in any order: however one is cut, the same text and the
// same calls come of it, and no letter beside the blanks and the calls is lost.
func TestParserOnAnyAnswer(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	bits := []string{hermesOpen, hermesClose, llamaTag, `{"name":"f","arguments":{"x":1}}`,
		`{"name":"g","parameters":{}}`,
		hermesOpen + `{"name":"k","arguments":{}}`, hermesOpen + `{"name":"l","arguments":{}}` + hermesClose, `{"name":"h","arguments":"{}"}`, "{", "}", `"`, `\`, "[", "]",
		" ", "\n", ";", "a", "<", "</tool", "tool_call>", "<|python", "ü", ":", `"name"`, "1"}
	calls := 0
	cases := hostile.Share(20000)
	for range cases {
		var b strings.Builder
		for range 1 + rng.IntN(14) {
			b.WriteString(bits[rng.IntN(len(bits))])
		}
		text := b.String()
		for _, f := range []*format{hermes, llama} {
			want := parsed(f, text)
			if got := parsed(f, cut(rng, text)...); got != want {
				t.Fatalf("%q: cut: %s, whole: %s", text, got, want)
			}
			if p := newParser(f); f == hermes {
				list := append(p.next(text), p.end()...)
				rest := text
				for _, x := range list {
					if x.call != nil {
						calls++
						continue
					}
					i := strings.Index(rest, x.text)
					if i < 0 {
						t.Fatalf("%q: %q is not in it behind what came before", text, x.text)
					}
					rest = rest[i+len(x.text):]
				}
				if p.calls == 0 {
					whole := ""
					for _, x := range list {
						whole += x.text
					}
					if whole != text {
						t.Fatalf("%q without a call became %q", text, whole)
					}
				}
			}
		}
	}
	if calls < cases/20 {
		t.Errorf("%d calls: the test shows little", calls)
	}
}

// templated is a tokenizer of the fixtures with another chat template.
func templated(t *testing.T, folder, template string) *tokenizer.Tokenizer {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../testdata/tokenizer/"+folder)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template),
		0o644); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// The form of calls is that of the chat template; one that is not known here is none.
func TestParserOfTemplate(t *testing.T) {
	const turns = `{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}`
	for _, c := range []struct{ more, want string }{
		{"", ParserNone},
		{`{{ '<tool_call>{"name": ' }}`, ParserHermes},
		{`{{ '<tool_call><function=' }}`, ParserNone},
		{`{{ '<tool_call>f<arg_key>' }}`, ParserNone},
		{`{{ '<|python_tag|>' }}`, ParserLlama},
		{`{{ '<|start_header_id|>{"name": f, "parameters": x}' }}`, ParserLlama},
		{`{{ '"parameters": ' }}`, ParserNone},
	} {
		if got := parserOf(templated(t, "qwen2", turns+c.more)); got != c.want {
			t.Errorf("%s: %s, want %s", c.more, got, c.want)
		}
	}
}
