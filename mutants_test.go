package gad_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A planted bug of scripts/mutants whose place in the code has changed is planted nowhere, and
// scripts/mutants.sh, which says so, takes too long for every change. So each hunk's lines must
// be in its file, and each bug in the table.
func TestMutantsApply(t *testing.T) {
	patches, err := filepath.Glob("scripts/mutants/*.patch")
	if err != nil || len(patches) < 76 {
		t.Fatalf("%d patches in scripts/mutants (%v), want 76 or more", len(patches), err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	table := read("doc/gpu/mutants.tsv")
	for _, name := range patches {
		base := filepath.Base(name)
		text := read(name)
		header, body, ok := strings.Cut(text, "\n--- a/")
		if !ok || !strings.HasPrefix(header, "Breaks: ") || !strings.Contains(header, "\nTest: ") {
			t.Errorf(
				"%s: want a line \"Breaks: \" first, then one or more \"Test: \", then a patch",
				base)
			continue
		}
		breaks, _, _ := strings.Cut(strings.TrimPrefix(header, "Breaks: "), "\n")
		if row := fmt.Sprintf("\n%s\t%s\t", base[:2], breaks); !strings.Contains(table, row) {
			t.Errorf("%s: doc/gpu/mutants.tsv has no row %q: run scripts/mutants.sh --write %s",
				base, row, base[:2])
		}
		for _, part := range strings.Split(body, "\n--- a/") {
			file, hunks, _ := strings.Cut(part, "\n")
			source := "\n" + read(file)
			for i, hunk := range strings.Split("\n"+hunks, "\n@@ ")[1:] {
				_, lines, _ := strings.Cut(hunk, "\n")
				before := "\n"
				for line := range strings.Lines(lines) {
					if line[0] == ' ' || line[0] == '-' {
						before += line[1:]
					} else if line == "\n" {
						break
					}
				}
				if strings.Count(source, before) != 1 {
					t.Errorf("%s: hunk %d is in %s %d times, want once: write it anew", base, i+1,
						file, strings.Count(source, before))
				}
			}
		}
	}
}
