package jinja

import (
	"fmt"
	"strings"
	"time"
)

// Limits bound a render. All but Expired and Now must be positive.
type Limits struct {
	Steps   int              // statements executed
	Depth   int              // nested statements and nested values, calls of macros included
	Text    int              // bytes of one value, and of the output
	Work    int              // bytes that pass through operators, filters and calls, in all
	Expired func() bool      // reports whether the time is over; nil is never
	Now     func() time.Time // the clock of strftime_now; nil is time.Now
}

// rangeLimit bounds the numbers of a range, as jinja2's sandbox does.
const rangeLimit = 100_000

// failure ends a render. It is thrown as a panic, and Render returns it as an error.
type failure struct{ message string }

// fail ends the render with a message.
func fail(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

// state is the state of a render.
type state struct {
	vars   Vars
	limits Limits
	now    func() time.Time
	env    *env
	out    *strings.Builder
	line   int // of the statement that is executed

	steps, depth, work int
	nested             int // nesting of the present value
	ticks              int // since the last call of Expired
}

// tick calls Expired once in 256 calls.
func (s *state) tick() {
	if s.ticks++; s.ticks >= 256 {
		s.ticks = 0
		if s.limits.Expired != nil && s.limits.Expired() {
			fail("takes too long")
		}
	}
}

// step counts a statement, and fails beyond the limit.
func (s *state) step() {
	if s.steps++; s.steps > s.limits.Steps {
		fail("takes more than %d steps", s.limits.Steps)
	}
	s.tick()
}

// charge counts n bytes of work, and fails beyond the limit.
func (s *state) charge(n int) {
	if s.work += n; s.work > s.limits.Work {
		fail("handles more than %d bytes in all", s.limits.Work)
	}
	if s.ticks += n >> 10; s.ticks >= 255 {
		s.ticks = 255
	}
	s.tick()
}

// size charges for a value of n bytes, and fails if it is too large.
func (s *state) size(n int) {
	if n > s.limits.Text || n < 0 {
		fail("makes a value of more than %d bytes", s.limits.Text)
	}
	s.charge(n)
}

// sizeOf charges for n items of each bytes, and fails if they are too large.
func (s *state) sizeOf(n, each int) {
	if n > 0 && each > s.limits.Text/n {
		fail("makes a value of more than %d bytes", s.limits.Text)
	}
	s.size(n * each)
}

// itemSize is the size that an item of a list counts, in bytes.
const itemSize = 16

// deeper enters a nested body of statements; shallower leaves it.
func (s *state) deeper() {
	if s.depth++; s.depth > s.limits.Depth {
		fail("nests more than %d deep", s.limits.Depth)
	}
}

func (s *state) shallower() { s.depth-- }

// inner enters a nested value; outer leaves it.
func (s *state) inner() {
	if s.nested++; s.nested > s.limits.Depth {
		fail("a value nested more than %d deep", s.limits.Depth)
	}
}

func (s *state) outer() { s.nested-- }

// write adds text to the output.
func (s *state) write(text string) {
	if s.out.Len()+len(text) > s.limits.Text {
		fail("writes more than %d bytes", s.limits.Text)
	}
	s.charge(len(text))
	s.out.WriteString(text)
}

// capture returns the text that f writes.
func (s *state) capture(f func()) string {
	out := s.out
	s.out = &strings.Builder{}
	f()
	text := s.out.String()
	s.out = out
	return text
}
