package main

import (
	"slices"
	"testing"
)

// The commands with --ranks are those of rankCommands, and gad plan, which only counts them.
func TestWithRanks(t *testing.T) {
	var found []string
	for _, c := range (&program{}).app().Commands {
		for _, f := range c.Flags {
			if slices.Contains(f.Names(), "ranks") && c.Name != "plan" {
				found = append(found, c.Name)
			}
		}
	}
	slices.Sort(found)
	if want := slices.Sorted(slices.Values(rankCommands)); !slices.Equal(found, want) {
		t.Errorf("--ranks is a flag of %v, withRanks has %v", found, want)
	}
}
