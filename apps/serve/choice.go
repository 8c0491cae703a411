package serve

import (
	"slices"
	"strings"
	"time"

	"gad/model"
	"gad/tokenizer"
)

// choice is one answer of a call. The engine's goroutine makes its text, so that the end of an
// answer does not depend on when a client reads it.
type choice struct {
	call       *call
	eos        []int32
	stops      []string
	text       *tokenizer.Stream
	pending    string // text that may be the beginning of a stop
	unsent     []model.Token
	keepTokens bool             // keep tokens for the reader, who needs log-probabilities or ids
	tags       map[int32]string // special tokens that count as text: marks of calls
	started    bool             // has its first token
	ended      bool             // at a stop

	// For the reader, under call.mu.
	parts  []part
	tokens int    // number sampled
	finish string // reason of the end, "" before it
}

// part is text added to an answer, with its tokens.
type part struct {
	text   string
	tokens []model.Token
	echo   bool // the tokens are the prompt's, without its first
}

// token takes the next token; false ends the answer.
func (c *choice) token(t model.Token) (more bool) {
	if c.keepTokens {
		c.unsent = append(c.unsent, t)
	}
	text := ""
	if tag, ok := c.tags[t.ID]; ok {
		text = c.text.End() + tag
	} else if !slices.Contains(c.eos, t.ID) {
		text = c.text.Next(t.ID)
	}
	out, stop := c.take(text)
	c.ended = stop
	c.call.mu.Lock()
	c.tokens++
	if !c.started {
		c.started = true
		if c.call.first == 0 {
			c.call.first = time.Since(c.call.started)
		}
	}
	c.call.mu.Unlock()
	if out != "" {
		c.emit(out)
	}
	return !stop
}

// take adds text. It returns the text that no stop can begin in any more, and whether a stop was
// found: the stop that is complete first, however the text is cut into pieces.
func (c *choice) take(text string) (out string, stop bool) {
	c.pending += text
	at, end := -1, 0
	for _, s := range c.stops {
		if i := strings.Index(c.pending, s); i >= 0 &&
			(at < 0 || i+len(s) < end || i+len(s) == end && i < at) {
			at, end = i, i+len(s)
		}
	}
	if at >= 0 {
		out, c.pending = c.pending[:at], ""
		return out, true
	}
	keep := 0
	for _, s := range c.stops {
		for n := min(len(s)-1, len(c.pending)); n > keep; n-- {
			if strings.HasSuffix(c.pending, s[:n]) {
				keep = n
			}
		}
	}
	cut := len(c.pending) - keep
	out, c.pending = c.pending[:cut], c.pending[cut:]
	return out, false
}

// emit passes text, and the tokens since the last part, to the reader.
func (c *choice) emit(text string) {
	c.call.mu.Lock()
	c.parts = append(c.parts, part{text: text, tokens: c.unsent})
	c.call.mu.Unlock()
	c.unsent = nil
	if c.call.streams {
		c.call.notifyReader()
	}
}

// complete takes the end of the answer.
func (c *choice) complete(a model.Completion) {
	rest := ""
	if !c.ended {
		rest, c.ended = c.take(c.text.End())
		if !c.ended {
			rest += c.pending
		}
	}
	if rest != "" || len(c.unsent) > 0 {
		c.emit(rest)
	}
	finish := "stop"
	if a.Truncated && !c.ended {
		finish = "length"
	}
	c.call.mu.Lock()
	c.finish = finish
	c.call.mu.Unlock()
	c.call.notifyReader()
}

// news is the parts of a choice that its reader has not seen.
type news struct {
	index  int
	parts  []part
	finish string
	tokens int
}

// read waits for news of the choices that are not in ended. It returns the call's error when no
// news is left, and errGone when done is closed.
func (c *call) read(ended []bool, done <-chan struct{}) (list []news, err error) {
	for {
		c.mu.Lock()
		for i, x := range c.choices {
			if !ended[i] && (len(x.parts) > 0 || x.finish != "") {
				list = append(list, news{i, x.parts, x.finish, x.tokens})
				x.parts = nil
			}
		}
		err = c.err
		c.mu.Unlock()
		if len(list) > 0 {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-c.notify:
		case <-done:
			return nil, errGone
		}
	}
}
