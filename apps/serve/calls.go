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

// ToolParsers lists the values of Options.ToolParser.
var ToolParsers = []string{ParserHermes, ParserLlama, ParserNone}

// Marks of the formats.
const (
	hermesOpen, hermesClose = "<tool_call>", "</tool_call>"
	llamaTag                = "<|python_tag|>"
)

// format is a syntax in which models write tool calls.
//
// hermes (Qwen2.5, Qwen3, Hermes): <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any
// number of times, with text before, between and after them. A call at the very end may lack its
// closing tag.
//
// llama (Llama 3.1 and later): {"name": ..., "parameters": {...}}, several with ; between them, at
// the beginning of the answer or after <|python_tag|>.
type format struct {
	// key of the arguments, and another key that is read too
	arguments, also string
	opens, closes   string // marks around a call; closes "": no closing mark
	bare            bool   // a call may begin the answer without a mark
	// special tokens that are marks: they belong to the text that is parsed
	tags map[int32]string
}

// formatOf returns the format of a value of Options.ToolParser; nil for none.
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

// parserOf returns the tool parser for the syntax that a chat template shows, ParserNone for
// others: calls as XML inside of <tool_call> (<function=NAME>) are not known here.
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

// toolCall is a tool call of an answer. arguments is a JSON object, as the model wrote it.
type toolCall struct{ id, name, arguments string }

// body returns the call as JSON of an answer.
func (c toolCall) body() map[string]any {
	return map[string]any{"id": c.id, "type": "function",
		"function": map[string]any{"name": c.name, "arguments": c.arguments}}
}

// callID returns a new random id of a tool call.
func callID() string {
	var b [12]byte
	rand.Read(b[:])
	return "call_" + hex.EncodeToString(b[:])
}

// piece is a parser's output: text, or a tool call.
type piece struct {
	text string
	call *toolCall
}

// parserState is the position of a parser in an answer's syntax.
type parserState int

const (
	inText   parserState = iota // looks for the mark of a call
	atBegin                     // at the beginning of the answer: a bare call is possible
	inCall                      // after a mark: the call's object must follow
	atClose                     // after an object: the closing mark must follow
	nextCall                    // after a call without a closing mark: another may follow
)

// parser splits the text of an answer, as it comes, into text and tool calls, and returns each as
// soon as it is complete. Everything that is not a call is text, unchanged; blanks around a call
// are dropped. The result does not depend on how the answer is cut into pieces.
type parser struct {
	f       *format
	state   parserState
	pending string // text that may be a mark or a call
	blank   string // blanks at the end of the text, dropped if a call follows
	// offsets in pending, in states inCall and atClose: the end of the mark, and the end of the
	// part of the object that was read
	mark, at  int
	scan      scan
	call      *toolCall // in atClose
	calls     int       // number of calls so far
	afterCall bool      // the last piece is a call
}

// newParser returns a parser at the beginning of an answer.
func newParser(f *format) *parser {
	p := &parser{f: f}
	if f.bare {
		p.state = atBegin
	}
	return p
}

const callBlanks = " \t\r\n"

// next takes more text and returns the text and calls that are complete.
func (p *parser) next(text string) (out []piece) {
	p.pending += text
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

// end takes the end of the answer and returns the rest. A call whose object is complete needs no
// closing mark here.
func (p *parser) end() (out []piece) {
	switch {
	case p.state == atClose:
		p.addCall(&out, len(p.pending))
	case p.state == nextCall && strings.Trim(p.pending, callBlanks+";") == "":
	default:
		p.addText(&out, p.pending)
	}
	if p.pending = ""; p.blank != "" && !p.afterCall {
		out = append(out, piece{text: p.blank})
	}
	p.blank = ""
	return out
}

// addText appends text to out and holds back blanks at its end.
func (p *parser) addText(out *[]piece, text string) {
	if text = p.blank + text; p.afterCall {
		text = strings.TrimLeft(text, callBlanks)
	}
	sure := strings.TrimRight(text, callBlanks)
	if p.blank = text[len(sure):]; sure != "" {
		*out, p.afterCall = append(*out, piece{text: sure}), false
	}
}

// addCall appends the call that ends at pending[end] to out.
func (p *parser) addCall(out *[]piece, end int) {
	*out = append(*out, piece{call: p.call})
	p.calls++
	p.afterCall, p.blank, p.pending = true, "", p.pending[end:]
}

// text looks for a mark. It keeps the end of the text that may be the beginning of one.
func (p *parser) text(out *[]piece) (more bool) {
	if i := strings.Index(p.pending, p.f.opens); i >= 0 {
		p.addText(out, p.pending[:i])
		p.pending = p.pending[i:]
		p.expect(len(p.f.opens))
		return true
	}
	keep := min(len(p.f.opens)-1, len(p.pending))
	for !strings.HasSuffix(p.pending, p.f.opens[:keep]) {
		keep--
	}
	sure := len(p.pending) - keep
	p.addText(out, p.pending[:sure])
	p.pending = p.pending[sure:]
	return false
}

// expect begins a call, whose object follows pending[:mark].
func (p *parser) expect(mark int) {
	p.mark, p.at, p.scan, p.state = mark, mark, scan{}, inCall
}

// refuse turns a mark without a call after it into text.
func (p *parser) refuse(out *[]piece) (more bool) {
	p.addText(out, p.pending[:p.mark])
	p.pending, p.state = p.pending[p.mark:], inText
	return true
}

// begin looks for a call without a mark, or for the next call after one without a closing mark.
func (p *parser) begin() (more bool) {
	between := callBlanks
	if p.state == nextCall {
		between += ";"
	}
	rest := strings.TrimLeft(p.pending, between)
	switch at := len(p.pending) - len(rest); {
	case strings.HasPrefix(rest, "{"):
		p.expect(at)
	case strings.HasPrefix(rest, p.f.opens):
		p.expect(at + len(p.f.opens))
	case strings.HasPrefix(p.f.opens, rest): // also if rest is empty
		return false
	default:
		p.state = inText
	}
	return true
}

// object reads the object of a call.
func (p *parser) object(out *[]piece) (more bool) {
	n, verdict := p.scan.read(p.pending[p.at:])
	p.at += n
	switch verdict {
	case incomplete:
		return false
	case malformed:
		return p.refuse(out)
	}
	if p.call = p.f.call(p.pending[p.mark:p.at]); p.call == nil {
		return p.refuse(out)
	}
	if p.state = atClose; p.f.closes == "" {
		p.addCall(out, p.at)
		p.state = nextCall
	}
	return true
}

// close reads the closing mark.
func (p *parser) close(out *[]piece) (more bool) {
	rest := strings.TrimLeft(p.pending[p.at:], callBlanks)
	switch {
	case strings.HasPrefix(rest, p.f.closes):
		p.addCall(out, len(p.pending)-len(rest)+len(p.f.closes))
		p.state = inText
		return true
	case strings.HasPrefix(p.f.closes, rest):
		return false
	}
	return p.refuse(out)
}

// call returns the call that an object describes; nil if it describes none: it needs a name, and
// arguments that are an object or a text with an object.
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

// verdict is a scan's result for a JSON object.
type verdict int

const (
	incomplete verdict = iota
	malformed
	complete
)

// scan finds the end of a JSON object in text that comes in parts, and gives up at the first
// character that JSON does not allow outside of strings. It checks no more: see format.call.
type scan struct {
	depth         int
	text, escaped bool // inside of a string, after its backslash
}

// read takes the next part of the object and returns how many bytes of part belong to it.
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
