package collect

import (
	"encoding/json"
	"fmt"
	"strings"

	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/report"
)

// shorten brings the log-probabilities of an answer to the form of rows, a fifth of what servers
// send. Of those that cannot be read the reason is kept, which no more can be read.
func (c *Collection) shorten(a *answer) {
	for i := range a.Choices {
		ch := &a.Choices[i]
		if ch.Logprobs == nil {
			continue
		}
		if c.o.TopLogprobs == 0 { // nobody asked for them
			ch.Logprobs = nil
			continue
		}
		l, err := data.ReadLogprobs(ch.Logprobs)
		var short any = l
		switch {
		case err != nil:
			short = err.Error()
		case l == nil:
			ch.Logprobs = nil
			continue
		}
		ch.Logprobs, _ = json.Marshal(short) // texts and finite numbers
	}
}

// softTally counts the answers of the output by what their log-probabilities are good for.
type softTally struct {
	k int // tokens that were asked for; 0 is none

	answers, soft, none, fewer int
	bad                        int
	first                      string // why, of the first of bad
}

// add counts an answer to item i, as row has it.
func (t *softTally) add(i int, row data.Row, ch endpoint.Choice) {
	fault := row.LogprobsFault()
	var text string
	if json.Unmarshal(ch.Logprobs, &text) == nil && text != "" {
		fault = text
	}
	switch t.answers++; {
	case fault != "":
		if t.bad++; t.bad == 1 {
			t.first = fmt.Sprintf("row %d: %s", i, fault)
		}
	case row.Logprobs == nil:
		t.none++
	default:
		t.soft++
		most := 0
		for _, at := range row.Logprobs {
			most = max(most, len(at))
		}
		if most < t.k {
			t.fewer++
		}
	}
}

// Soft says which answers of the last Write have log-probabilities; "" where none were asked for.
func (c *Collection) Soft() string {
	t := c.soft
	if t.k == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "log-probabilities: %s of %d", report.Count(t.soft, "answer"), t.answers)
	if t.fewer > 0 {
		fmt.Fprintf(&b, "; fewer than %d tokens at each place: %d", t.k, t.fewer)
	}
	if t.none > 0 {
		fmt.Fprintf(&b, "; the endpoint has sent none: %d", t.none)
	}
	if t.bad > 0 {
		fmt.Fprintf(&b, "; left out: %d (the first: %s)", t.bad, t.first)
	}
	return b.String()
}
