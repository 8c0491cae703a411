package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// generous are limits that a sound template does not meet.
var generous = Limits{Steps: 2_000_000, Depth: 100, Text: 4 << 20, Work: 512 << 20}

// recorded is what jinja2, as transformers sets it up, makes of templates: a file of
// scripts/fixtures_templates.py.
type recorded struct {
	Versions map[string]string
	Vars     []json.RawMessage
	Cases    []struct {
		Name, Template, Text, Stage, Error string
		Vars                               int
	}
}

func readRecorded(t *testing.T, path string) (r recorded, vars []Vars) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Vars {
		d, err := FromJSON(string(v))
		if err != nil {
			t.Fatal(err)
		}
		m := Vars{}
		for i := range d.(*Dict).Len() {
			k, e := d.(*Dict).At(i)
			m[k.(string)] = e
		}
		vars = append(vars, m)
	}
	return r, vars
}

// Every template of testdata/templates is jinja2's text, or is refused: where jinja2 refuses it, or
// at load. GAD_TEMPLATES names more files, the released templates and the random ones, apart by
// commas.
func TestAgainstJinja2(t *testing.T) {
	files := []string{filepath.Join("..", "..", "testdata", "templates", "expressions.json")}
	if more := os.Getenv("GAD_TEMPLATES"); more != "" {
		files = append(files, strings.Split(more, ",")...)
	}
	for _, path := range files {
		r, vars := readRecorded(t, path)
		var equal, atLoad, both, late, more, different int
		reasons := map[string]int{}
		templates := map[string]*Template{}
		broken := map[string]error{}
		for _, c := range r.Cases {
			name := c.Name + ": " + shortened(c.Template)
			tpl, err := templates[c.Template], broken[c.Template]
			if tpl == nil && err == nil {
				tpl, err = Parse(c.Template)
				templates[c.Template], broken[c.Template] = tpl, err
			}
			refusedAtLoad := err != nil
			text := ""
			if err == nil {
				l := generous
				l.Now = func() time.Time { return time.Date(2026, 11, 27, 9, 5, 3, 0, time.UTC) }
				text, err = tpl.Render(vars[c.Vars], l)
			}
			var e *Error
			if err != nil && (!errors.As(err, &e) || refusedAtLoad && (e.Line == 0 ||
				e.Column == 0) || strings.Contains(e.Message, "evaluator failed")) {
				t.Errorf("%s: error %v: want one with a place", name, err)
			}
			switch {
			case c.Stage != "" && err != nil:
				both++
			case c.Stage != "":
				more++
				t.Errorf("%s: %s, jinja2 refuses it: %s", name, quote(text), c.Error)
			case refusedAtLoad:
				atLoad++
				reasons[err.Error()]++
			case err != nil:
				late++
				t.Errorf("%s: %v, jinja2 writes %s", name, err, quote(c.Text))
			case text != c.Text:
				different++
				t.Errorf("%s: %s, jinja2 writes %s", name, where(text, c.Text), quote(c.Text))
			default:
				equal++
			}
		}
		t.Logf("%s, %v: %d templates, %d cases: %d equal, %d refused by both, %d refused at load, "+
			"%d refused in rendering alone, %d rendered where jinja2 refuses, %d different",
			filepath.Base(path), r.Versions, len(templates)+0, len(r.Cases), equal, both, atLoad,
			late, more, different)
		for why, n := range reasons {
			t.Logf("  %d at load: %s", n, why)
		}
		if equal == 0 {
			t.Error("nothing was compared")
		}
	}
}

func shortened(text string) string {
	if len(text) > 300 {
		return text[:300] + "..."
	}
	return text
}

// where shows a text from a little before it differs from another.
func where(text, other string) string {
	i := 0
	for i < min(len(text), len(other)) && text[i] == other[i] {
		i++
	}
	from := max(0, i-40)
	return "at " + quote(text[from:min(len(text), i+60)])
}
