package collect

import (
	"encoding/json"
	"fmt"
	"strings"

	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/report"
)

// shorten converts an answer's log-probabilities to the form of rows, a fifth of the bytes that
// servers send. Unreadable ones become the text of the reason.
func (c *Collection) shorten(a *answer) {
	for i := range a.Choices {
		ch := &a.Choices[i]
		if ch.Logprobs == nil {
			continue
		}
		if c.o.TopLogprobs == 0 { // not requested
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
		ch.Logprobs, _ = json.Marshal(short) // strings and finite numbers: no error
	}
}

// softTally counts the answers of the output by the use of their log-probabilities.
type softTally struct {
	k int // tokens requested at each place; 0: none

	answers, soft, none, fewer int
	bad                        int
	first                      string // reason of the first bad one
}

// add counts an answer to item i, which row has.
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

// SoftSummary returns a line on the log-probabilities of the last Write's answers; "" where none
// were requested.
func (c *Collection) SoftSummary() string {
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
