package serve

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"strings"

	"gad/tokenizer"
)

// Values of Options.ToolParser. "" chooses by the chat template.
const (
	ParserHermes = "hermes"
	ParserLlama  = "llama"
	ParserNone   = "none"
)

// ToolParsers are the values of Options.ToolParser.
var ToolParsers = []string{ParserHermes, ParserLlama, ParserNone}

// Marks of the formats.
const (
	hermesOpen, hermesClose = "<tool_call>", "</tool_call>"
	llamaTag                = "<|python_tag|>"
)

// format is a form in which models write calls of tools.
//
// hermes (Qwen2.5, Qwen3, Hermes): <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any
// number of times, with text before, between and behind. A call at the very end may lack its
// closing tag.
//
// llama (Llama 3.1 and later): {"name": ..., "parameters": {...}}, several with ; between them, at
// the beginning of the answer or behind <|python_tag|>.
type format struct {
	// name of the key with the arguments; a second one that is read too
	arguments, also string
	opens, closes   string // marks of a call; closes "" is none
	bare            bool   // a call may begin the answer without a mark
	// special tokens that are marks: they belong to the text that is parsed
	tags map[int32]string
}

// formatOf is the format of Options.ToolParser; nil is none.
func formatOf(parser string, tok *tokenizer.Tokenizer) *format {
	if parser == "" {
		parser = parserOf(tok)
	}
	f := &format{tags: map[int32]string{}}
	switch parser {
	case ParserHermes:
		f.arguments, f.also, f.opens, f.closes = "arguments", "parameters", hermesOpen, hermesClose
	case ParserLlama:
		f.arguments, f.also, f.opens, f.bare = "parameters", "arguments", llamaTag, true
	default:
		return nil
	}
	for _, mark := range []string{f.opens, f.closes} {
		if ids := tok.Encode(mark); len(ids) == 1 && tok.Special(ids[0]) {
			f.tags[ids[0]] = mark
		}
	}
	return f
}

// parserOf is the parser of the form that a chat template shows. One that writes a call as XML
// inside of <tool_call> (<function=NAME>) is none that is known here.
func parserOf(tok *tokenizer.Tokenizer) string {
	template := tok.ChatTemplate()
	has := func(s string) bool { return strings.Contains(template, s) }
	switch {
	case has(hermesOpen) && !has("<function=") && !has("<arg_key>"):
		return ParserHermes
	case has(hermesOpen):
		return ParserNone
	case has(llamaTag), has("<|start_header_id|>") && has(`"parameters": `):
		return ParserLlama
	}
	return ParserNone
}

// toolCall is a call of a tool as an answer has it. arguments are a JSON object, as the model
// wrote it.
type toolCall struct{ id, name, arguments string }

// body is the call in an answer.
func (c toolCall) body() map[string]any {
	return map[string]any{"id": c.id, "type": "function",
		"function": map[string]any{"name": c.name, "arguments": c.arguments}}
}

// callID is a new id of a call.
func callID() string {
	var b [12]byte
	rand.Read(b[:])
	return "call_" + hex.EncodeToString(b[:])
}

// piece is what a parser makes of an answer: text, or a call.
type piece struct {
	text string
	call *toolCall
}

// state is where a parser is in an answer.
type state int

const (
	inText   state = iota // looks for the mark of a call
	atBegin               // of the answer: a bare call is possible
	inCall                // behind a mark: the call's object must follow
	atClose               // behind an object: the closing mark must follow
	nextCall              // behind a call that has no closing mark: another may follow
)

// parser takes the text of an answer as it comes and returns text and calls as soon as they are
// complete. What is no call is text, exactly as it was written; blanks beside a call belong to
// neither. Calls and text do not depend on how the answer is cut.
type parser struct {
	f     *format
	state state
	held  string // text that may be a mark or a call
	blank string // blanks at the end of the text, which are none of it if a call follows
	// of held, in inCall and atClose: the end of the mark, and the end of what was read
	mark, at int
	scan     scan
	call     *toolCall // in atClose
	calls    int       // found
	called   bool      // the last piece is a call
}

func newParser(f *format) *parser {
	p := &parser{f: f}
	if f.bare {
		p.state = atBegin
	}
	return p
}

const callBlanks = " \t\r\n"

// next takes text.
func (p *parser) next(text string) (out []piece) {
	p.held += text
	for more := true; more; {
		switch p.state {
		case inText:
			more = p.text(&out)
		case inCall:
			more = p.object(&out)
		case atClose:
			more = p.close(&out)
		default:
			more = p.begin()
		}
	}
	return out
}

// end takes the end of the answer. A call whose object is whole needs no closing mark here.
func (p *parser) end() (out []piece) {
	switch {
	case p.state == atClose:
		p.found(&out, len(p.held))
	case p.state == nextCall && strings.Trim(p.held, callBlanks+";") == "":
	default:
		p.say(&out, p.held)
	}
	if p.held = ""; p.blank != "" && !p.called {
		out = append(out, piece{text: p.blank})
	}
	p.blank = ""
	return out
}

// say adds text.
func (p *parser) say(out *[]piece, text string) {
	if text = p.blank + text; p.called {
		text = strings.TrimLeft(text, callBlanks)
	}
	sure := strings.TrimRight(text, callBlanks)
	if p.blank = text[len(sure):]; sure != "" {
		*out, p.called = append(*out, piece{text: sure}), false
	}
}

// found adds the call, which ends at held[end].
func (p *parser) found(out *[]piece, end int) {
	*out = append(*out, piece{call: p.call})
	p.calls++
	p.called, p.blank, p.held = true, "", p.held[end:]
}

// text looks for a mark. What may be the beginning of one is held.
func (p *parser) text(out *[]piece) (more bool) {
	if i := strings.Index(p.held, p.f.opens); i >= 0 {
		p.say(out, p.held[:i])
		p.held = p.held[i:]
		p.expect(len(p.f.opens))
		return true
	}
	keep := min(len(p.f.opens)-1, len(p.held))
	for !strings.HasSuffix(p.held, p.f.opens[:keep]) {
		keep--
	}
	sure := len(p.held) - keep
	p.say(out, p.held[:sure])
	p.held = p.held[sure:]
	return false
}

// expect begins a call, whose object follows held[:mark].
func (p *parser) expect(mark int) {
	p.mark, p.at, p.scan, p.state = mark, mark, scan{}, inCall
}

// refuse makes text of a mark that no call follows.
func (p *parser) refuse(out *[]piece) (more bool) {
	p.say(out, p.held[:p.mark])
	p.held, p.state = p.held[p.mark:], inText
	return true
}

// begin looks for a call without a mark, or for the next behind a call without a closing one.
func (p *parser) begin() (more bool) {
	between := callBlanks
	if p.state == nextCall {
		between += ";"
	}
	rest := strings.TrimLeft(p.held, between)
	switch at := len(p.held) - len(rest); {
	case strings.HasPrefix(rest, "{"):
		p.expect(at)
	case strings.HasPrefix(rest, p.f.opens):
		p.expect(at + len(p.f.opens))
	case strings.HasPrefix(p.f.opens, rest): // also if there is none
		return false
	default:
		p.state = inText
	}
	return true
}

// object reads the object of a call.
func (p *parser) object(out *[]piece) (more bool) {
	n, verdict := p.scan.read(p.held[p.at:])
	p.at += n
	switch verdict {
	case incomplete:
		return false
	case malformed:
		return p.refuse(out)
	}
	if p.call = p.f.call(p.held[p.mark:p.at]); p.call == nil {
		return p.refuse(out)
	}
	if p.state = atClose; p.f.closes == "" {
		p.found(out, p.at)
		p.state = nextCall
	}
	return true
}

// close reads the closing mark.
func (p *parser) close(out *[]piece) (more bool) {
	rest := strings.TrimLeft(p.held[p.at:], callBlanks)
	switch {
	case strings.HasPrefix(rest, p.f.closes):
		p.found(out, len(p.held)-len(rest)+len(p.f.closes))
		p.state = inText
		return true
	case strings.HasPrefix(p.f.closes, rest):
		return false
	}
	return p.refuse(out)
}

// call is the call of an object; nil if it is none: it needs a name, and arguments that are an
// object, or a text that is one.
func (f *format) call(object string) *toolCall {
	var m map[string]json.RawMessage
	var name string
	if json.Unmarshal([]byte(object), &m) != nil || json.Unmarshal(m["name"], &name) != nil ||
		strings.TrimSpace(name) == "" {
		return nil
	}
	arguments, ok := m[f.arguments]
	if !ok {
		arguments = m[f.also]
	}
	var text string
	if json.Unmarshal(arguments, &text) == nil && json.Valid([]byte(text)) {
		arguments = json.RawMessage(strings.Trim(text, callBlanks))
	}
	if len(arguments) == 0 || arguments[0] != '{' {
		return nil
	}
	return &toolCall{callID(), name, string(arguments)}
}

// verdict is what a scan says of an object.
type verdict int

const (
	incomplete verdict = iota
	malformed
	complete
)

// scan finds the end of a JSON object, or that there is none, as early as a character outside of
// its texts says so. It checks no more: see format.call.
type scan struct {
	depth         int
	text, escaped bool // inside of a text, behind its backslash
}

// read takes the next part of the object and says how much of it belongs to it.
func (s *scan) read(part string) (n int, v verdict) {
	for i := range len(part) {
		c := part[i]
		switch {
		case s.escaped:
			s.escaped = false
		case s.text:
			s.escaped, s.text = c == '\\', c != '"'
		case strings.IndexByte(callBlanks, c) >= 0:
		case s.depth == 0 && c != '{':
			return i, malformed
		case c == '"':
			s.text = true
		case c == '{' || c == '[':
			s.depth++
		case c == '}' || c == ']':
			if s.depth--; s.depth == 0 {
				return i + 1, complete
			}
		case strings.IndexByte(",:+-.0123456789truefalsnE", c) < 0:
			return i, malformed
		}
	}
	return len(part), incomplete
}
