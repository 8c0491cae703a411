package planner

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// tool is a tool: its description for the planner and its rule.
type tool struct {
	name, about string
	wants       string // form of its command
	// run returns the command in canonical form and its result; ok is false for an invalid command.
	run func(q *question, command string) (canonical, result string, ok bool)
}

// tools returns the tools for the question.
func (q *question) tools() []tool {
	if len(q.Facts) == 0 {
		return allTools[:2]
	}
	return allTools
}

// toolLines returns a line for each tool for the question.
func (q *question) toolLines() string {
	var b strings.Builder
	for _, t := range q.tools() {
		b.WriteString(t.name + ": " + t.about + "\n")
	}
	return b.String()
}

var allTools = []tool{
	{"add", "the sum of two integers, such as 12 + 30", "two integers such as 12 + 30",
		arithmetic("+", func(a, b int64) int64 { return a + b })},
	{"multiply", "the product of two integers, such as 12 * 3", "two integers such as 12 * 3",
		arithmetic("*", func(a, b int64) int64 { return a * b })},
	{"search", "the known fact that shares most words with a query", "a query with a word",
		find},
}

// toolNamed returns the tool of a name, which must exist.
func toolNamed(name string) tool {
	return allTools[slices.IndexFunc(allTools, func(t tool) bool { return t.name == name })]
}

// arithmetic returns the rule of a tool on two integers of at most nine digits.
func arithmetic(sign string,
	of func(a, b int64) int64) func(*question, string) (string, string, bool) {
	form := regexp.MustCompile(`^(-?[0-9]{1,9}) *` + regexp.QuoteMeta(sign) + ` *(-?[0-9]{1,9})$`)
	return func(_ *question, command string) (canonical, result string, ok bool) {
		m := form.FindStringSubmatch(command)
		if m == nil {
			return "", "", false
		}
		a, _ := strconv.ParseInt(m[1], 10, 64) // the pattern has checked it
		b, _ := strconv.ParseInt(m[2], 10, 64)
		number := func(n int64) string { return strconv.FormatInt(n, 10) }
		return number(a) + " " + sign + " " + number(b), number(of(a, b)), true
	}
}

// find returns the first of the facts that share most of the query's words.
func find(q *question, query string) (canonical, result string, ok bool) {
	asked := words(query)
	slices.Sort(asked)
	asked = slices.Compact(asked)
	most := 0
	result = "nothing found"
	for _, fact := range q.Facts {
		shared, has := 0, words(fact)
		for _, w := range asked {
			if slices.Contains(has, w) {
				shared++
			}
		}
		if shared > most {
			most, result = shared, fact
		}
	}
	return query, result, len(asked) > 0
}

// byRule plays executor, verifier and generator by rule.
type byRule struct{}

func (byRule) field() string { return "Command" }

func (byRule) places() int { return 1024 }

func (byRule) execute(_ context.Context, q *question, s step) (step, string, error) {
	t := toolNamed(s.Tool)
	command, result, ok := t.run(q, s.Command)
	if !ok {
		return s, t.name + " wants " + t.wants, nil
	}
	s.Command, s.Result = command, result
	return s, "", nil
}

// stop uses the known answer: memory is enough once its last result contains it.
func (r byRule) stop(ctx context.Context, q *question, memory []step) (bool, error) {
	return r.right(ctx, q, memory)
}

// right takes the last result, a number or a fact, as the answer.
func (byRule) right(_ context.Context, q *question, memory []step) (bool, error) {
	return containsWords(words(memory[len(memory)-1].Result), words(q.Answer)), nil
}
