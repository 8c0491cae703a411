// Package judgetest runs a judge by rule, for tests of its callers.
package judgetest

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gad/apps/judge"
	"gad/internal/endpoint/endpointtest"
)

// Material returns the parts of a judge's question by title; nil for a prompt that the judge
// answers itself.
func Material(c endpointtest.Call) map[string]string {
	if len(c.Messages) < 2 {
		return nil
	}
	text := c.Messages[1].Content
	first := regexp.MustCompile(`^<<([0-9a-f]{16}) `).FindStringSubmatch(text)
	if first == nil {
		return nil
	}
	m := map[string]string{}
	at := regexp.MustCompile(`(?m)^<<`+first[1]+` (.*)>>\n`).FindAllStringSubmatchIndex(text, -1)
	for i := range at[:len(at)-1] {
		m[text[at[i][2]:at[i][3]]] = strings.TrimSuffix(text[at[i][1]:at[i+1][0]], "\n")
	}
	return m
}

// Server starts a judge by rule: reference answers a prompt, grade returns an answer's grade, and
// better the better of two answers ("A", "B" or "tie").
func Server(t testing.TB, reference func(prompt string) string,
	grade func(prompt, answer string) int,
	better func(prompt, a, b string) string) *endpointtest.Server {
	t.Helper()
	s, err := endpointtest.Start(
		&endpointtest.Server{Answer: func(c endpointtest.Call, _ int) (string, string) {
			m := Material(c)
			prompt := m["conversation, user"]
			if m == nil {
				return reference(c.Prompt), "stop"
			}
			if answer, ok := m["answer of the student"]; ok {
				return fmt.Sprintf("So be it.\n{\"reference\": %d, \"answer\": %d}",
					grade(prompt, m["reference answer"]), grade(prompt, answer)), "stop"
			}
			return `{"better": "` + better(prompt, m["answer A"], m["answer B"]) + `"}`, "stop"
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Slow starts a judge by rule that takes its time.
func Slow(t testing.TB, pause time.Duration) *endpointtest.Server {
	t.Helper()
	s := Server(t, func(prompt string) string { return "reference to " + prompt },
		func(_, answer string) int { return 1 + len(answer)%10 },
		func(_, a, b string) string { return "AB"[len(a)%2:][:1] })
	s.Misbehave = endpointtest.Slowly(pause)
	return s
}

// Rubric returns the replies of a judge whose rubrics have one criterion, which holds says of an
// answer.
func Rubric(criterion string, holds func(answer string) bool) func(endpointtest.Call) string {
	return func(c endpointtest.Call) string {
		m := Material(c)
		if m["criteria"] == "" {
			return fmt.Sprintf(`{"criteria": [{"criterion": %q, "weight": 2.5}]}`, criterion)
		}
		numbered := regexp.MustCompile(`^answer ([0-9]+) of the student(, cut at .*)?$`)
		answers := map[string]string{} // by number
		for title, text := range m {
			if found := numbered.FindStringSubmatch(title); found != nil {
				answers[found[1]] = text
			}
		}
		grades := make([]string, len(answers))
		for i := range grades {
			grades[i] = fmt.Sprintf("[%t]", holds(answers[strconv.Itoa(i+1)]))
		}
		return `{"grades": [` + strings.Join(grades, ", ") + `]}`
	}
}

// Output is the judge's part of the JSON of gad eval --judge --json.
type Output struct {
	Judge struct {
		judge.Report
		Cost        float64                      `json:"cost_usd"`
		Differences []map[string]json.RawMessage `json:"differences"`
	} `json:"judge"`
}

// ReadOutput parses the JSON of gad eval --judge --json.
func ReadOutput(t testing.TB, printed string) (out Output) {
	t.Helper()
	if err := json.Unmarshal([]byte(printed), &out); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	return out
}

// Value returns a figure, NaN where it is missing.
func Value(x *float64) float64 {
	if x == nil {
		return math.NaN()
	}
	return *x
}
