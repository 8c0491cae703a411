package jinja

import (
	"fmt"
	"strings"
	"time"
)

// Limits bound a render. All but Expired and Now must be positive.
type Limits struct {
	Steps   int              // statements executed
	Depth   int              // statements and values inside each other, calls of macros included
	Text    int              // bytes of one value, and of the output
	Work    int              // bytes that go through operators, filters and calls, in all
	Expired func() bool      // reports that the time is over; nil is never
	Now     func() time.Time // the clock of strftime_now; nil is time.Now
}

// rangeLimit is how many numbers a range may have, jinja2's sandbox's own limit.
const rangeLimit = 100_000

// failure ends a render. It is thrown as a panic, and Render turns it into an error.
type failure struct{ message string }

// fail ends the render.
func fail(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

// state is a render.
type state struct {
	vars   Vars
	limits Limits
	now    func() time.Time
	env    *env
	out    *strings.Builder
	line   int // of the statement that is executed

	steps, depth, work int
	nested             int // values inside each other
	ticks              int // since Expired was asked
}

// tick looks at the clock now and then.
func (s *state) tick() {
	if s.ticks++; s.ticks >= 256 {
		s.ticks = 0
		if s.limits.Expired != nil && s.limits.Expired() {
			fail("takes too long")
		}
	}
}

// step counts a statement.
func (s *state) step() {
	if s.steps++; s.steps > s.limits.Steps {
		fail("takes more than %d steps", s.limits.Steps)
	}
	s.tick()
}

// charge takes bytes of work.
func (s *state) charge(n int) {
	if s.work += n; s.work > s.limits.Work {
		fail("handles more than %d bytes in all", s.limits.Work)
	}
	if s.ticks += n >> 10; s.ticks >= 255 {
		s.ticks = 255
	}
	s.tick()
}

// size charges for a value of n bytes, and refuses one that is too large.
func (s *state) size(n int) {
	if n > s.limits.Text || n < 0 {
		fail("makes a value of more than %d bytes", s.limits.Text)
	}
	s.charge(n)
}

// sizeOf is size of n items of each bytes.
func (s *state) sizeOf(n, each int) {
	if n > 0 && each > s.limits.Text/n {
		fail("makes a value of more than %d bytes", s.limits.Text)
	}
	s.size(n * each)
}

// itemSize is what an item of a list counts.
const itemSize = 16

// deeper counts a body of statements inside another; shallower gives it back.
func (s *state) deeper() {
	if s.depth++; s.depth > s.limits.Depth {
		fail("nests more than %d deep", s.limits.Depth)
	}
}

func (s *state) shallower() { s.depth-- }

// inner counts a value inside another; outer gives it back.
func (s *state) inner() {
	if s.nested++; s.nested > s.limits.Depth {
		fail("a value nested more than %d deep", s.limits.Depth)
	}
}

func (s *state) outer() { s.nested-- }

// write puts text out.
func (s *state) write(text string) {
	if s.out.Len()+len(text) > s.limits.Text {
		fail("writes more than %d bytes", s.limits.Text)
	}
	s.charge(len(text))
	s.out.WriteString(text)
}

// capture returns what f writes.
func (s *state) capture(f func()) string {
	out := s.out
	s.out = &strings.Builder{}
	f()
	text := s.out.String()
	s.out = out
	return text
}
