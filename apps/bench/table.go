package bench

import (
	"fmt"
	"io"
	"strings"

	estimate "gad/internal/compute/cost"
)

// Print writes the report as tables.
func (r *Report) Print(w io.Writer) error {
	t := &table{}
	lora := ""
	if r.Rank > 0 {
		lora = fmt.Sprintf(", frozen, LoRA of rank %d", r.Rank)
		if r.Weights != "" {
			lora = fmt.Sprintf(", frozen in %s, LoRA of rank %d", r.Weights, r.Rank)
		}
	}
	if r.Card != nil {
		t.line("PREDICTED, nothing was measured: %s; shape %s, %s parameters%s", r.Device, r.Shape,
			amount(float64(r.Parameters)), lora)
		t.line("assumed: %s", r.Card.Assumptions())
	} else {
		t.line("%s, %d threads, %s; shape %s, %s parameters%s", r.Device, r.Threads, r.Go, r.Shape,
			amount(float64(r.Parameters)), lora)
	}
	t.limits(r.Limits, r.Card)
	t.ops(r.Ops)
	t.stages(r.Stages)
	if r.Repeats > 0 {
		t.line("\n%.0f %% of %d decode steps were replayed as a CUDA graph; the others launched each kernel by itself", 100*r.Replayed, r.Repeats)
	}
	if r.Declined != "" {
		t.line("\n%s", r.Declined)
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

// table is a report's text.
type table struct{ b strings.Builder }

// line appends a line.
func (t *table) line(format string, args ...any) {
	t.b.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

// limits appends the machine's limits, or a card's.
func (t *table) limits(l Limits, card *estimate.Card) {
	if card != nil {
		t.line("\nlimits, by the data sheet")
		t.line("  %-40s %10s", "bfloat16 products", amount(l.Products)+"FLOP/s")
		t.line("  %-40s %10s", "memory", amount(l.Copy)+"B/s")
		return
	}
	t.line("\nlimits of this machine, measured now")
	row := func(what string, rate float64, unit string) {
		if rate > 0 {
			t.line("  %-40s %10s", what, amount(rate)+unit)
		}
	}
	row("float32 multiply-adds on registers", l.F32, "FLOP/s")
	row("bfloat16 dot products on registers", l.BF16, "FLOP/s")
	if l.Products != l.F32 && l.Products != l.BF16 {
		row("a large matrix product", l.Products, "FLOP/s")
	}
	row("memory, read", l.Read, "B/s")
	row("memory, copy (read and written)", l.Copy, "B/s")
}

// ops appends the table of operations.
func (t *table) ops(ops []Op) {
	if len(ops) == 0 {
		return
	}
	t.line("\n%-19s %-19s %10s %10s %14s  %s", "operation", "size", "median", "best", "rate",
		"share of the limit that binds")
	for _, o := range ops {
		t.line("%-19s %-19s %10s %10s %14s  %s", o.Name, o.Size, duration(o.Seconds),
			duration(o.Best), o.rate(o.Seconds), o.share())
	}
}

// stages appends the stages.
func (t *table) stages(stages []Stage) {
	for _, s := range stages {
		t.line("\n%s: %s", s.Name, s.Size)
		if s.Note != "" {
			t.line("  %s", s.Note)
			continue
		}
		if s.Steps != nil {
			t.line("  %s (predicted), %s tokens/s, %s", duration(s.Seconds), amount(s.PerSecond),
				s.rate(s.Seconds))
			t.line("  %s", s.share())
			if s.Steps.Replayed > 0 {
				t.line("  decode: %v", s.Steps)
			}
			t.line("  device memory: %sB planned%s", amount(float64(s.Planned)), s.unfit())
			t.parts(s)
			continue
		}
		runs := fmt.Sprintf("median of %d", s.Runs)
		if s.Cold {
			runs = "first run, nothing warm"
		}
		t.line("  %s (%s, best %s), %s tokens/s, %s", duration(s.Seconds), runs, duration(s.Best),
			amount(s.PerSecond), s.rate(s.Seconds))
		t.line("  %s", s.share())
		t.line("  %d heap objects, %sB per run; device memory %sB at most, %sB planned", s.Allocs,
			amount(float64(s.AllocB)), amount(float64(s.Peak)), amount(float64(s.Planned)))
		t.parts(s)
	}
}

// parts appends the parts and the operations of a stage.
func (t *table) parts(s Stage) {
	for _, p := range s.Parts {
		t.line("    %-29s %10s %5.1f %% %14s  %s", p.Name, duration(p.Seconds),
			100*p.Seconds/s.Seconds, p.rate(p.Seconds), p.share())
	}
	for _, u := range s.Ops {
		if u.Launches > 0 {
			t.line("    %-20s %6d calls %7d launches %10s %5.1f %% %14s  %s", u.Name, u.Calls,
				u.Launches, duration(u.Seconds), 100*u.Part, u.rate(u.Seconds), u.share())
			continue
		}
		t.line("    %-18s %6d x %10s %5.1f %% %14s  %s", u.Name, max(u.Calls, 1),
			duration(u.Seconds/float64(max(u.Calls, 1))), 100*u.Part, u.rate(u.Seconds), u.share())
	}
}

// unfit returns, for a line, why a predicted stage does not fit in memory; "" if it fits.
func (s Stage) unfit() string {
	if s.Unfit == "" {
		return ""
	}
	return "; " + s.Unfit
}

// rate returns operations a second as text, or bytes a second if memory is the binding limit.
func (u Use) rate(seconds float64) string {
	switch {
	case u.Bound == "":
		return ""
	case u.Bound == boundMemory:
		return amount(u.Bytes/seconds) + "B/s"
	}
	return amount(u.FLOPs/seconds) + "FLOP/s"
}

// share returns the share as a bar of ten, a percentage and the name of the limit.
func (u Use) share() string {
	if u.Bound == "" {
		return ""
	}
	full := min(10, int(10*u.Share+0.5))
	why := ""
	if u.Share > 1.005 {
		why = " (operands came from a cache)"
		if u.Bound != boundMemory {
			why = " (the limit was measured while the machine was busier)"
		}
	}
	return fmt.Sprintf("%s%s %3.0f %% of %s%s", strings.Repeat("█", full),
		strings.Repeat("·", 10-full), 100*u.Share, u.Bound, why)
}

// amount returns x to three digits with a decimal prefix; a unit may follow.
func amount(x float64) string {
	units := []string{"", "k", "M", "G", "T", "P"}
	i := 0
	for ; x >= 999.5 && i < len(units)-1; i++ {
		x /= 1000
	}
	digits := 0
	switch {
	case x < 9.995 && i > 0:
		digits = 2
	case x < 99.95 && (i > 0 || x < 9.995):
		digits = 1
	}
	return fmt.Sprintf("%.*f %s", digits, x, units[i])
}

// duration returns seconds as text in the unit that gives one to three digits before the point.
func duration(s float64) string {
	switch {
	case s < 999.5e-6:
		return fmt.Sprintf("%.1f µs", s*1e6)
	case s < 0.9995:
		return fmt.Sprintf("%.2f ms", s*1e3)
	}
	return fmt.Sprintf("%.2f s", s)
}
