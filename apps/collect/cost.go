package collect

import (
	"fmt"
	"strings"
)

// Estimate is the expected tokens and cost of the missing answers.
type Estimate struct {
	Requests                   int // least number
	PromptTokens, AnswerTokens float64
	How                        string // basis of the estimate
	Cost                       float64
	Priced                     bool
}

// Assumptions while the journal has too few answers to measure.
const (
	bytesPerToken = 4
	answerTokens  = 500
	enough        = 20 // answers in the journal to estimate by
)

// Estimate returns the expected tokens and cost of the missing answers; batch: at the batch API's
// price.
func (c *Collection) Estimate(batch bool) (e Estimate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.o.Env != nil {
		return c.estimateEpisodes()
	}
	perToken, answer := float64(bytesPerToken), float64(answerTokens)
	t := c.total
	var how []string
	if t.requests >= enough && t.promptTokens > 0 {
		perToken = float64(t.promptBytes) / float64(t.promptTokens)
		answer = float64(t.answerTokens) / float64(t.counted)
		how = append(how, fmt.Sprintf(
			"by the %d answers so far: %.1f bytes per token of a prompt, %.0f tokens per answer",
			t.answers, perToken, answer))
	} else if limit, flag := c.o.limit(); limit > 0 {
		answer = limit
		how = append(how, fmt.Sprintf("at %d bytes per token of a prompt, and the most that %s allows, %.0f tokens per answer", bytesPerToken, flag, limit))
	} else {
		how = append(how, fmt.Sprintf(
			"at %d bytes per token of a prompt, and a guess of %d tokens per answer", bytesPerToken,
			answerTokens))
	}
	for _, it := range c.items {
		if need := c.o.N - it.have; need > 0 && !it.blank {
			e.Requests++
			e.PromptTokens += float64(it.bytes) / perToken
			e.AnswerTokens += answer * float64(need)
		}
	}
	e.How = strings.Join(how, "; ")
	if c.o.Price != nil {
		e.Priced, e.Cost = true, c.o.Price.Cost(e.PromptTokens, e.AnswerTokens)
		if batch {
			e.Cost *= BatchPrice
		}
	}
	return e
}

// String returns the estimate as a line for people.
func (e Estimate) String() string {
	s := fmt.Sprintf("estimate: %s tokens of prompts, %s of answers", tokens(e.PromptTokens),
		tokens(e.AnswerTokens))
	if e.Priced {
		s += fmt.Sprintf(", $%.2f", e.Cost)
	}
	return s + " (" + e.How + ")"
}

// tokens returns a number of tokens as text.
func tokens(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.2fM", x/1e6)
	case x >= 1e4:
		return fmt.Sprintf("%.0fk", x/1e3)
	}
	return fmt.Sprintf("%.0f", x)
}

// CheckCost refuses an estimate that, together with the cost so far, exceeds the limit.
func (c *Collection) CheckCost(e Estimate) error {
	if !e.Priced || c.o.MaxCost <= 0 {
		return nil
	}
	if all := e.Cost + c.total.cost; all > c.o.MaxCost {
		lower := "--max-tokens"
		if c.o.Env != nil {
			lower += " or --max-turns"
		}
		return markedError{fmt.Sprintf("collect: %v: with what was spent that is $%.2f, more than --max-cost %g: give a higher one, fewer prompts (--limit) or a lower %s", e, all, c.o.MaxCost, lower), ErrMaxCost}
	}
	return nil
}

// CostSummary returns a line on the tokens and the cost of the answers.
func (c *Collection) CostSummary() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	line := func(t tally) string {
		cached := ""
		if t.cachedTokens > 0 {
			cached = fmt.Sprintf(" (%s from a cache)", tokens(float64(t.cachedTokens)))
		}
		s := fmt.Sprintf("%s tokens of prompts%s, %s of answers",
			tokens(float64(t.promptTokens)+t.guessedPrompt), cached,
			tokens(float64(t.answerTokens)+t.guessedAnswer))
		if c.o.Price != nil {
			s += fmt.Sprintf(", $%.2f", t.cost)
		}
		return s
	}
	s := "counted by the endpoint: " + line(c.total)
	if n := c.total.guessed; n > 0 {
		s = fmt.Sprintf("counted by the endpoint, and at %d bytes per token where it counts nothing (%d of %d requests): %s", bytesPerToken, n, c.total.requests, line(c.total))
	}
	if c.spent.requests < c.total.requests {
		s += " (by this command: " + line(c.spent) + ")"
	}
	return s
}

// MarkedAnswers returns a message with the number of answers that are cut, filtered or empty; ""
// for none.
func (c *Collection) MarkedAnswers() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	if c.o.Env != nil {
		return "" // EpisodeSummary has it
	}
	for _, x := range []struct {
		n    int
		text string
	}{
		{c.total.length,
			"cut short (finish_reason length or the like: marked, they make no pair in training)"},
		{c.total.filtered, "cut by a filter (finish_reason content_filter: marked, likewise)"},
		{c.total.none, "empty (left out)"},
	} {
		if x.n > 0 {
			list = append(list, fmt.Sprintf("%d %s", x.n, x.text))
		}
	}
	said := strings.Join(list, ", ")
	if limit, flag := c.o.limit(); limit > 0 && c.total.length*10 >= max(c.total.answers, 1) {
		said += fmt.Sprintf(": a higher %s than %.0f, and another --output, asks for whole answers",
			flag, limit)
	}
	return said
}
