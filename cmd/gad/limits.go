package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"
)

// The limits of flags, declared with the flag, as the limits of a setting are in its tag: a range
// of values, and the flags that a flag needs or excludes.

// limit is a range of values, and the rule in the error for any other value.
type limit struct {
	holds func(x float64) bool
	rule  string
}

// atLeast returns the limit of numbers of at least low.
func atLeast(low int) limit {
	return limit{func(x float64) bool { return x >= float64(low) },
		fmt.Sprintf("must be at least %d", low)}
}

// positive returns the limit of numbers above 0, at most high.
func positive(high float64) limit {
	return limit{func(x float64) bool { return x > 0 && x <= high }, "must be above 0"}
}

// positiveBelow returns the limit of numbers above 0 and below high; rule is the text of its error.
func positiveBelow(high float64, rule string) limit {
	return limit{func(x float64) bool { return x > 0 && x < high }, rule}
}

// powerOfTwo is the limit of numbers of ranks, which must divide a run's shards.
var powerOfTwo = limit{func(x float64) bool { n := int(x); return n >= 1 && n&(n-1) == 0 },
	"must be 1, 2, 4 or another power of two"}

// share is the limit of numbers between 0 and 1, both excluded.
var share = limit{func(x float64) bool { return x > 0 && x < 1 }, "must be above 0 and below 1"}

// nonzero returns the limit that refuses only 0.
func nonzero(rule string) limit { return limit{func(x float64) bool { return x != 0 }, rule} }

// oneTo returns the limit of 1 to high; unit follows high in the rule.
func oneTo(high int, unit string) limit {
	return limit{func(x float64) bool { return x >= 1 && x <= float64(high) },
		fmt.Sprintf("must be 1 to %d%s", high, unit)}
}

// floatRange returns the limit of low to high for a flag whose value is a number such as 0.5.
func floatRange(low, high float64) limit {
	return limit{func(x float64) bool { return x >= low && x <= high },
		fmt.Sprintf("must be from %g to %g", low, high)}
}

// intRange returns the limit of low to high for a flag whose value is a whole number.
func intRange(low, high int) limit {
	return limit{func(x float64) bool { return x >= float64(low) && x <= float64(high) },
		fmt.Sprintf("must be from %d to %d", low, high)}
}

// withLimits adds limits to a flag. Every value that is given is checked before the command runs; a
// default is not, since the user cannot correct it.
func withLimits(f cli.Flag, limits ...limit) cli.Flag {
	check := func(c *cli.Context, x float64, shown string) error {
		for _, l := range limits {
			if !l.holds(x) {
				return usage("%s: %s %s: %s", commandName(c), dashedName(f.Names()[0]), shown, l.rule)
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

// oneOf limits a flag to the given texts; rule is the text of the error.
func oneOf(f *cli.StringFlag, texts []string, rule string) cli.Flag {
	f.Action = func(c *cli.Context, text string) error {
		if !slices.Contains(texts, text) {
			return usage("%s: --%s %q: must be %s", commandName(c), f.Name, text, rule)
		}
		return nil
	}
	return f
}

// dashedName returns a flag as the user types it.
func dashedName(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// rule refuses flags that are given together with another flag, or without it.
type rule struct {
	flags   []string
	given   bool // other is given
	other   string
	message string // the error, after the name of the flag
}

// rules holds the rules of a command, in the order in which they are checked.
type rules []rule

// check returns the error of the first rule that the command line breaks.
func (all rules) check(c *cli.Context) error {
	for _, r := range all {
		if given(c, r.other) != r.given {
			continue
		}
		for _, name := range r.flags {
			if c.IsSet(name) {
				return usage("%s: %s%s", commandName(c), dashedName(name), r.message)
			}
		}
	}
	return nil
}

// given reports whether a flag is given with a value that is neither empty nor false.
func given(c *cli.Context, name string) bool {
	text := c.String(name)
	return c.IsSet(name) && text != "" && text != "false"
}
