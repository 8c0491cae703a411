package study

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The tables of a study survive the way into data and back, and so do those of doc.
func TestTablesAsData(t *testing.T) {
	r := try(t)
	text := r.must(t).Markdown()
	data := MarkdownToTSV(text)
	if strings.Contains(data, "\n| ") || strings.Count(data, "\t") < 20 {
		t.Fatalf("tables are left in the data:\n%s", data)
	}
	if back, err := TSVToMarkdown("study.tsv", data); err != nil || back != text {
		t.Errorf("%v: came back as\n%s\nwant\n%s", err, back, text)
	}
	written, err := r.fs.ReadFile(filepath.Join(r.plan.Dir, DataName))
	if err != nil || string(written) != data {
		t.Errorf("%s: %v:\n%s", DataName, err, written)
	}
	if back, err := TSVToMarkdown("x", "a b\tc\n1\ta|b\n"); err != nil ||
		back != "| a b | c |\n|---|---:|\n| 1 | a\\|b |\n" {
		t.Errorf("a bar in a cell: %v: %q", err, back)
	}
	_, err = TSVToMarkdown("x.tsv", "a\tb\n1\t2\t3\n")
	if err == nil || !strings.Contains(err.Error(), "x.tsv: line 2 has 3 cells") {
		t.Errorf("a row with a cell more: %v", err)
	}
	var saved []string
	for _, pattern := range []string{"study/*.tsv", "gpu/*.tsv", "*.tsv"} {
		names, err := filepath.Glob("../../doc/" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		saved = append(saved, names...)
	}
	if len(saved) < 20 {
		t.Fatalf("%d tables in doc, want 20 or more", len(saved))
	}
	for _, name := range saved {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := TSVToMarkdown(name, string(data)); err != nil {
			t.Error(err)
		} else if MarkdownToTSV(text) != string(data) {
			t.Errorf("%s: is not what gad study writes", name)
		}
	}
}
