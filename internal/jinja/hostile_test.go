package jinja

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"gad/internal/hostile"
)

// 200 templates that would take time, memory or depth without end are parsed and rendered
// within the limits of the tokenizer: steps, depth, bytes and work end each of them, and the clock
// is not asked. Without GAD_LONG it is a share of them.
func TestHostileTemplates(t *testing.T) {
	r, vars := readRecorded(t, filepath.Join("..", "..", "testdata", "templates", "hostile.json"))
	if len(r.Cases) != 200 {
		t.Fatalf("%d templates, want 200", len(r.Cases))
	}
	limits := Limits{Steps: 2_000_000, Depth: 100, Text: 1 << 20, Work: 128 << 20}
	var m runtime.MemStats
	reasons := map[string]int{}
	var longest time.Duration
	var most uint64
	refused := 0
	step := len(r.Cases) / hostile.Share(len(r.Cases))
	if testing.Short() {
		step *= 4
	}
	for i, c := range r.Cases {
		if i%step != 0 {
			continue
		}
		runtime.GC()
		runtime.ReadMemStats(&m)
		before := m.Sys
		begun := time.Now()
		tpl, err := Parse(c.Template)
		text := ""
		if err == nil {
			text, err = tpl.Render(vars[0], limits)
		}
		d := time.Since(begun)
		runtime.ReadMemStats(&m)
		most = max(most, m.Sys-min(before, m.Sys))
		if d > longest {
			longest = d
			t.Logf("%d: %v: %.160s: %v", i, d.Round(time.Millisecond), c.Template, err)
		}
		if len(text) > limits.Text {
			t.Errorf("%d: wrote %d bytes", i, len(text))
		}
		if err != nil {
			refused++
			var e *Error
			if !errors.As(err, &e) || strings.Contains(e.Message, "evaluator failed") {
				t.Errorf("%d: %v", i, err)
			}
			reasons[strings.TrimLeft(e.Message, "0123456789")]++
		}
	}
	t.Logf("%d refused of every %d. of %d; longest %v, memory grew by %d MB at most", refused, step, len(r.Cases),
		longest.Round(time.Millisecond), most>>20)
	for why, n := range reasons {
		t.Logf("  %d: %.100s", n, why)
	}
	if runtime.ReadMemStats(&m); m.Sys > 2<<30 {
		t.Errorf("the process holds %d MB", m.Sys>>20)
	}
}
