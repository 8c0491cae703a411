package serve

import (
	"slices"
	"strings"
	"time"

	"gad/model"
	"gad/tokenizer"
)

// choice is one answer of a call. Its text is made by the engine's goroutine, so that where
// an answer ends does not depend on who reads it when.
type choice struct {
	of    *call
	eos   []int32
	stops []string
	text  *tokenizer.Stream
	held  string // may be the beginning of a stop
	kept  []model.Token
	keep  bool             // tokens are kept, for their log-probabilities or ids
	tags  map[int32]string // special tokens that are text here: marks of calls
	begun bool             // has its first token
	ended bool             // at a stop

	// For the reader, under of.mu.
	parts  []part
	tokens int    // drawn
	finish string // "" while it is under way
}

// part is what has been added to an answer.
type part struct {
	text   string
	tokens []model.Token
	echo   bool // the tokens are the prompt's, without its first
}

// token takes the next token; false is the end of the answer.
func (c *choice) token(t model.Token) (more bool) {
	if c.keep {
		c.kept = append(c.kept, t)
	}
	text := ""
	if tag, ok := c.tags[t.ID]; ok {
		text = c.text.End() + tag
	} else if !slices.Contains(c.eos, t.ID) {
		text = c.text.Next(t.ID)
	}
	out, stop := c.take(text)
	c.ended = stop
	c.of.mu.Lock()
	c.tokens++
	if !c.begun {
		c.begun = true
		if c.of.first == 0 {
			c.of.first = time.Since(c.of.begun)
		}
	}
	c.of.mu.Unlock()
	if out != "" {
		c.hand(out)
	}
	return !stop
}

// take adds text and returns what of it is sure to come before a stop, and whether one has
// come. The first is the one that is complete first, however the text is cut into pieces.
func (c *choice) take(text string) (out string, stop bool) {
	c.held += text
	at, end := -1, 0
	for _, s := range c.stops {
		if i := strings.Index(c.held, s); i >= 0 &&
			(at < 0 || i+len(s) < end || i+len(s) == end && i < at) {
			at, end = i, i+len(s)
		}
	}
	if at >= 0 {
		out, c.held = c.held[:at], ""
		return out, true
	}
	keep := 0
	for _, s := range c.stops {
		for n := min(len(s)-1, len(c.held)); n > keep; n-- {
			if strings.HasSuffix(c.held, s[:n]) {
				keep = n
			}
		}
	}
	cut := len(c.held) - keep
	out, c.held = c.held[:cut], c.held[cut:]
	return out, false
}

// hand gives text, and the tokens since the last time, to the reader.
func (c *choice) hand(text string) {
	c.of.mu.Lock()
	c.parts = append(c.parts, part{text: text, tokens: c.kept})
	c.of.mu.Unlock()
	c.kept = nil
	if c.of.streams {
		c.of.tell()
	}
}

// done is told of the end.
func (c *choice) done(a model.Completion) {
	rest := ""
	if !c.ended {
		rest, c.ended = c.take(c.text.End())
		if !c.ended {
			rest += c.held
		}
	}
	if rest != "" || len(c.kept) > 0 {
		c.hand(rest)
	}
	finish := "stop"
	if a.Truncated && !c.ended {
		finish = "length"
	}
	c.of.mu.Lock()
	c.finish = finish
	c.of.mu.Unlock()
	c.of.tell()
}

// news is what a reader has not seen of a choice.
type news struct {
	index  int
	parts  []part
	finish string
	tokens int
}

// read waits for something new of the choices that are not in ended; it returns the call's
// error when there is nothing left.
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
