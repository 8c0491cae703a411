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
				// patch takes more context on one side for the beginning or the end of the file
				if first, last := context(lines); first != last {
					t.Errorf("%s: hunk %d has %d lines of context before and %d behind: want as many",
						base, i+1, first, last)
				}
				if strings.Count(source, before) != 1 {
					t.Errorf("%s: hunk %d is in %s %d times, want once: write it anew", base, i+1,
						file, strings.Count(source, before))
				}
			}
		}
	}
}

// context returns how many lines of a hunk stand before its first change and behind its last one.
func context(hunk string) (first, last int) {
	lines := strings.Split(strings.TrimRight(hunk, "\n"), "\n")
	same := func(line string) bool { return line == "" || line[0] == ' ' }
	for first < len(lines) && same(lines[first]) {
		first++
	}
	for last < len(lines) && same(lines[len(lines)-1-last]) {
		last++
	}
	return first, last
}
