package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"
)

// This file is what a flag may be, declared beside the flag as the limits of a setting are in
// its tag: a range of values, and what a flag needs or does not go with.

// limit is a range of values, and the rule that the error of any other one gives.
type limit struct {
	holds func(x float64) bool
	rule  string
}

func atLeast(low int) limit {
	return limit{func(x float64) bool { return x >= float64(low) },
		fmt.Sprintf("must be at least %d", low)}
}

// positive are numbers above 0, at most high.
func positive(high float64) limit {
	return limit{func(x float64) bool { return x > 0 && x <= high }, "must be above 0"}
}

// below are numbers above 0 and below high, with the whole rule.
func below(high float64, rule string) limit {
	return limit{func(x float64) bool { return x > 0 && x < high }, rule}
}

// powerOfTwo are the numbers of ranks that divide a run's shards.
var powerOfTwo = limit{func(x float64) bool { n := int(x); return n >= 1 && n&(n-1) == 0 },
	"must be 1, 2, 4 or another power of two"}

// share are the numbers between 0 and 1.
var share = limit{func(x float64) bool { return x > 0 && x < 1 }, "must be above 0 and below 1"}

// nonzero refuses the one value 0.
func nonzero(rule string) limit { return limit{func(x float64) bool { return x != 0 }, rule} }

// oneTo is 1 to high, with the unit that the rule says.
func oneTo(high int, unit string) limit {
	return limit{func(x float64) bool { return x >= 1 && x <= float64(high) },
		fmt.Sprintf("must be 1 to %d%s", high, unit)}
}

// from is low to high of a flag whose value is a number such as 0.5.
func from(low, high float64) limit {
	return limit{func(x float64) bool { return x >= low && x <= high },
		fmt.Sprintf("must be from %g to %g", low, high)}
}

// count is low to high of a flag whose value is a whole number.
func count(low, high int) limit {
	return limit{func(x float64) bool { return x >= float64(low) && x <= float64(high) },
		fmt.Sprintf("must be from %d to %d", low, high)}
}

// within gives a flag its limits. Every value that is given is checked before the command runs;
// a default is none of the user's mistakes.
func within(f cli.Flag, limits ...limit) cli.Flag {
	check := func(c *cli.Context, x float64, shown string) error {
		for _, l := range limits {
			if !l.holds(x) {
				return usage("%s: %s %s: %s", typed(c), dashed(f.Names()[0]), shown, l.rule)
			}
		}
		return nil
	}
	switch f := f.(type) {
	case *cli.IntFlag:
		f.Action = func(c *cli.Context, n int) error { return check(c, float64(n), fmt.Sprint(n)) }
	case *cli.Uint64Flag:
		f.Action = func(c *cli.Context,
			n uint64) error {
			return check(c, float64(n), fmt.Sprint(n))
		}
	case *cli.Float64Flag:
		f.Action = func(c *cli.Context,
			x float64) error {
			return check(c, x, fmt.Sprintf("%g", x))
		}
	case *cli.DurationFlag:
		f.Action = func(c *cli.Context,
			d time.Duration) error {
			return check(c, d.Seconds(), d.String())
		}
	default:
		panic(fmt.Sprintf("%s: a %T has no limits", f.Names()[0], f)) // a programmer's mistake
	}
	return f
}

// oneOf gives a flag the texts that it may be; says is the rule of the error.
func oneOf(f *cli.StringFlag, texts []string, says string) cli.Flag {
	f.Action = func(c *cli.Context, text string) error {
		if !slices.Contains(texts, text) {
			return usage("%s: --%s %q: must be %s", typed(c), f.Name, text, says)
		}
		return nil
	}
	return f
}

// dashed is a flag as the user types it.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// rule refuses flags that are given where another one is given too, or is not.
type rule struct {
	flags []string
	given bool // other is given
	other string
	says  string // the error behind the name of the flag
}

// rules are those of a command, in the order in which they are checked.
type rules []rule

func (all rules) check(c *cli.Context) error {
	for _, r := range all {
		if given(c, r.other) != r.given {
			continue
		}
		for _, name := range r.flags {
			if c.IsSet(name) {
				return usage("%s: %s%s", typed(c), dashed(name), r.says)
			}
		}
	}
	return nil
}

// given reports whether a flag says something: neither nothing nor that it is off.
func given(c *cli.Context, name string) bool {
	text := c.String(name)
	return c.IsSet(name) && text != "" && text != "false"
}
