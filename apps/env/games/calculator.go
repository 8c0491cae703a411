package games

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"gad/internal/env"
)

// Sums of a few numbers, with a tool that adds two. A small student cannot add, but it can copy the
// last result and the next number into the next call.
const (
	fewestNumbers, mostNumbers = 2, 4 // in rows that gad makes
	maxNumbersAccepted         = 7    // in other rows: as many as the turns allow
	largestNumber              = 99
	largestArgument            = 1_000_000
)

var calculatorGame = Game{
	Name:     "calculator",
	About:    "sums that need a tool, called as <tool_call>{json}</tool_call>",
	Rows:     map[string]int{"train": 5000, "test": 1000, "tune": 500},
	MaxTurns: 8,
	Rules: `A turn is one call of the tool add, <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call> with white space
as you like between its parts, or "The sum is N.", which ends the episode. The tool's result comes as a message of the role
tool. Any other turn is invalid and changes nothing. Reward 1 for the right sum, else 0. The teacher adds from left to right.
Labels: right, wrong, and lost after 8 turns.`,
	empty: func() world { return &sum{} },
	draw: func(draw func(n int) int) world {
		s := &sum{}
		for range fewestNumbers + draw(mostNumbers-fewestNumbers+1) {
			s.Numbers = append(s.Numbers, 1+draw(largestNumber))
		}
		return s
	},
}

// sum is a world of the game calculator.
type sum struct {
	Numbers []int `json:"numbers"`

	last string // the last message: the tool's result, or the reply to an invalid turn
}

func (s *sum) check() error {
	if n := len(s.Numbers); n < fewestNumbers || n > maxNumbersAccepted {
		return fmt.Errorf("%d numbers: must be %d to %d", n, fewestNumbers, maxNumbersAccepted)
	}
	for _, n := range s.Numbers {
		if n < 1 || n > largestNumber {
			return fmt.Errorf("number %d: must be 1 to %d", n, largestNumber)
		}
	}
	return nil
}

func (s *sum) question() string {
	var texts []string
	for _, n := range s.Numbers {
		texts = append(texts, strconv.Itoa(n))
	}
	return "What is " + strings.Join(texts, " + ") + "?"
}

func (s *sum) content() []env.Message {
	return []env.Message{
		{Role: "system", Content: "Add with the tool: " + call(1, 2) +
			" gives 3. Then answer: The sum is 3."},
		{Role: "user", Content: s.question()},
	}
}

// call returns a call as the teacher writes it.
func call(a, b int) string {
	return fmt.Sprintf(
		"<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": %d, \"b\": %d}}\n</tool_call>", a,
		b)
}

func (s *sum) anchor() string {
	if s.last == "" {
		return s.question()
	}
	return s.last
}

var (
	toolCall = regexp.MustCompile(`^\s*<tool_call>\s*(\{(?s:.*)\})\s*</tool_call>\s*$`)
	theSum   = regexp.MustCompile(`^The sum is (-?[0-9]{1,9})\.$`)
)

func (s *sum) copy() world {
	copied := *s // the copies share the numbers, which do not change
	return &copied
}

func (s *sum) step(turn string) env.Reply {
	if m := theSum.FindStringSubmatch(turn); m != nil {
		total := 0
		for _, n := range s.Numbers {
			total += n
		}
		if m[1] == strconv.Itoa(total) {
			return env.Reply{Done: true, Valid: true, Reward: 1, Label: "right"}
		}
		return env.Reply{Done: true, Valid: true, Label: "wrong"}
	}
	if m := toolCall.FindStringSubmatch(turn); m != nil {
		if a, b, ok := arguments(m[1]); ok {
			s.last = strconv.Itoa(a + b)
			return env.Reply{Valid: true,
				Append: []env.Message{{Role: "tool", Name: "add", Content: s.last}}}
		}
	}
	s.last = "Write one call of add, or: The sum is N."
	return env.Reply{Append: []env.Message{{Role: "user", Content: s.last}}}
}

// arguments reads the object of a call; false if it is not a valid one.
func arguments(text string) (a, b int, ok bool) {
	var c struct {
		Name      string `json:"name"`
		Arguments struct {
			A *int `json:"a"`
			B *int `json:"b"`
		} `json:"arguments"`
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil || d.More() || c.Name != "add" || c.Arguments.A == nil ||
		c.Arguments.B == nil {
		return 0, 0, false
	}
	a, b = *c.Arguments.A, *c.Arguments.B
	return a, b, max(a, -a, b, -b) <= largestArgument
}

func (s *sum) teacher(func(n int) int) (turns []string) {
	total := s.Numbers[0]
	for _, n := range s.Numbers[1:] {
		turns = append(turns, call(total, n))
		total += n
	}
	return append(turns, fmt.Sprintf("The sum is %d.", total))
}
