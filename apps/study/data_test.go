package study

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The tables of a study survive the way into data and back, and doc/study has such files only.
func TestTablesAsData(t *testing.T) {
	r := try(t)
	text := r.must(t).Markdown()
	data := Separated(text)
	if strings.Contains(data, "\n| ") || strings.Count(data, "\t") < 20 {
		t.Fatalf("tables are left in the data:\n%s", data)
	}
	if back, err := Tabled("study.tsv", data); err != nil || back != text {
		t.Errorf("%v: came back as\n%s\nwant\n%s", err, back, text)
	}
	written, err := r.fs.ReadFile(filepath.Join(r.plan.Dir, DataName))
	if err != nil || string(written) != data {
		t.Errorf("%s: %v:\n%s", DataName, err, written)
	}
	if back, err := Tabled("x", "a b\tc\n1\ta|b\n"); err != nil ||
		back != "| a b | c |\n|---|---:|\n| 1 | a\\|b |\n" {
		t.Errorf("a bar in a cell: %v: %q", err, back)
	}
	_, err = Tabled("x.tsv", "a\tb\n1\t2\t3\n")
	if err == nil || !strings.Contains(err.Error(), "x.tsv: line 2 has 3 cells") {
		t.Errorf("a row with a cell more: %v", err)
	}
	saved, err := filepath.Glob("../../doc/study/*.tsv")
	if err != nil || len(saved) < 14 {
		t.Fatalf("%d tables in doc/study (%v), want 14 or more", len(saved), err)
	}
	for _, name := range saved {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := Tabled(name, string(data)); err != nil {
			t.Error(err)
		} else if Separated(text) != string(data) {
			t.Errorf("%s: is not what gad study writes", name)
		}
	}
}
