package planner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"gad/internal/philox"
)

// question is the column env of an episode: a question with its answer, or Numbers, as in the
// calculator's column.
type question struct {
	Question string   `json:"question"`
	Answer   string   `json:"answer"`
	Facts    []string `json:"facts"` // that the tool search finds; without facts there is no such tool
	Numbers  []int    `json:"numbers"`
}

// Limits of the column env.
const (
	mostNumbers   = maxTurns - 1
	largestNumber = 1_000_000
	mostFacts     = 1000
	longestText   = 10_000 // bytes of a question, an answer or a fact
)

// readQuestion reads the column env and refuses invalid values.
func readQuestion(raw json.RawMessage) (*question, error) {
	q := &question{}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(q); err != nil {
		return nil, err
	}
	if q.Numbers != nil {
		if q.Question != "" || q.Answer != "" {
			return nil, errors.New("numbers beside question or answer: give the one or the others")
		}
		if n := len(q.Numbers); n < 2 || n > mostNumbers {
			return nil, fmt.Errorf("%d numbers: must be 2 to %d", n, mostNumbers)
		}
		for _, n := range q.Numbers {
			if max(n, -n) > largestNumber || n < -largestNumber {
				return nil, fmt.Errorf("number %d: must be %d to %d", n, -largestNumber,
					largestNumber)
			}
		}
		q.sum()
	}
	if strings.TrimSpace(q.Question) == "" || len(words(q.Answer)) == 0 {
		return nil, errors.New(
			"question or answer is missing: give both as texts, or numbers in their place")
	}
	if len(q.Facts) > mostFacts {
		return nil, fmt.Errorf("%d facts: must be at most %d", len(q.Facts), mostFacts)
	}
	for i, text := range append([]string{q.Question, q.Answer}, q.Facts...) {
		if len(text) > longestText || len(words(text)) == 0 {
			return nil, fmt.Errorf(
				"text %d of question, answer and facts: must have a word, and at most %d bytes",
				i, longestText)
		}
	}
	return q, nil
}

// sum sets question and answer to the sum of the numbers.
func (q *question) sum() {
	total, texts := 0, make([]string, len(q.Numbers))
	for i, n := range q.Numbers {
		total += n
		texts[i] = strconv.Itoa(n)
	}
	q.Question, q.Answer = "What is "+strings.Join(texts, " + ")+"?", strconv.Itoa(total)
}

// drawQuestion draws a question: a sum, a product plus a number, or a fact to find and multiply.
func drawQuestion(seed uint64) *question {
	next := uint64(0)
	draw := func(n int) int {
		next++
		return philox.IntN(n, seed, philox.Data, 100, 0, next)
	}
	q := &question{}
	switch draw(3) {
	case 0:
		for range 3 + draw(3) {
			q.Numbers = append(q.Numbers, 1+draw(99))
		}
		q.sum()
	case 1:
		a, b, c := 2+draw(18), 2+draw(18), 1+draw(99)
		q.Question = fmt.Sprintf("What is %d * %d + %d?", a, b, c)
		q.Answer = strconv.Itoa(a*b + c)
	default:
		things := []string{"apples", "books", "candles", "nails"}
		wanted, n := draw(len(things)), 2+draw(18)
		for i, thing := range things {
			each := 3 + draw(48)
			q.Facts = append(q.Facts, fmt.Sprintf("One box of %s holds %d.", thing, each))
			if i == wanted {
				q.Answer = strconv.Itoa(n * each)
			}
		}
		q.Question = fmt.Sprintf("How many %s are in %d boxes?", things[wanted], n)
	}
	return q
}

// words returns a text's words and numbers in lower case, by which answers are compared.
func words(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsNumber(r) && r != '-'
	})
}

// containsWords reports whether whole contains part as consecutive words.
func containsWords(whole, part []string) bool {
	for i := 0; i+len(part) <= len(whole); i++ {
		if slices.Equal(whole[i:i+len(part)], part) {
			return true
		}
	}
	return false
}
