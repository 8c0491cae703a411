package serve

import (
	"encoding/json"
	"slices"
	"strings"

	"gad/internal/grammar"
)

// responseFormat reads response_format and returns the grammar of the answer, nil for any text. An
// answer in JSON is sampled from the tokens that the grammar allows (internal/grammar).
func (s *Server) responseFormat(f *fields, calls bool) *grammar.Grammar {
	raw := f.take("response_format")
	if raw == nil {
		return nil
	}
	var format struct {
		Type   string `json:"type"`
		Schema *struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	if json.Unmarshal(raw, &format) != nil {
		f.fail("response_format", "must be an object with a type")
		return nil
	}
	var g *grammar.Grammar
	var err error
	switch {
	case format.Type == "text":
		return nil
	case format.Type == "json_object":
		g, err = grammar.JSON()
	case format.Type == "json_schema" && (format.Schema == nil || format.Schema.Schema == nil):
		f.fail("response_format", "json_schema: must be an object with a schema")
		return nil
	case format.Type == "json_schema":
		g, err = grammar.Schema(format.Schema.Schema)
	default:
		f.fail("response_format", "type: must be text, json_object or json_schema")
		return nil
	}
	switch {
	case err != nil:
		f.fail("response_format", "json_schema: %v", err)
	case calls:
		f.fail("response_format",
			`an answer that has to be JSON calls no tool: leave out tools, or give tool_choice "none"`)
	case s.o.Chunks.On():
		f.fail("response_format", "is not supported where answers are written in chunks")
	}
	return g
}

// constraint restricts the next token of an answer to the tokens that a grammar allows.
type constraint struct {
	text    *grammar.Text
	seen    int // number of the answer's tokens in text
	pieces  [][]byte
	ends    []int32
	allowed []bool
}

// newConstraint returns the constraint of an answer that must match g.
func (s *Server) newConstraint(g *grammar.Grammar, eos []int32) *constraint {
	return &constraint{text: g.Begin(), pieces: s.pieces(), ends: eos,
		allowed: make([]bool, s.m.Config().Vocab)}
}

// next marks the tokens that may follow drawn. EOS is allowed where the text may end; it is the
// only token where nothing else may follow, or the grammar has become too large.
func (c *constraint) next(drawn []int32) []bool {
	for _, id := range drawn[c.seen:] {
		if ok, err := c.text.Append(c.pieces[id]); !ok || err != nil {
			break
		}
	}
	c.seen = len(drawn)
	err := c.text.Mask(c.pieces, c.allowed)
	some := false
	for _, ok := range c.allowed {
		some = some || ok
	}
	if err != nil {
		clear(c.allowed)
		some = false
	}
	for _, id := range c.ends {
		c.allowed[id] = c.text.Ends() || !some
	}
	return c.allowed
}

// pieces returns the bytes of each token that is text; nil for special tokens, and for rows of the
// embedding without a token.
func (s *Server) pieces() [][]byte {
	s.once.Do(func() {
		s.bytes = make([][]byte, s.m.Config().Vocab)
		for id := range min(len(s.bytes), s.tok.Size()) {
			if !s.tok.Special(int32(id)) {
				s.bytes[id] = s.tok.Piece(int32(id))
			}
		}
	})
	return s.bytes
}

// effort drops reasoning_effort where it has no meaning: the model's chat template has no thoughts.
func (s *Server) effort(f *fields) {
	template := s.tok.ChatTemplate()
	if strings.Contains(template, "reasoning_effort") || strings.Contains(template, "think") {
		return // refused by rest
	}
	var effort string
	if json.Unmarshal(f.m["reasoning_effort"], &effort) == nil && slices.Contains(
		[]string{"minimal", "low", "medium", "high", "xhigh"}, effort) {
		delete(f.m, "reasoning_effort")
	}
}
