package main

import (
	"strings"
	"testing"
)

// gad's own help is shown however it is asked for.
func TestHelpOfGad(t *testing.T) {
	first, _ := must(t, "--help")
	for _, want := range []string{"gad - ", "\n   sft ", "\n   doctor ", "--version"} {
		if !strings.Contains(first, want) {
			t.Errorf("gad --help lacks %q:\n%s", want, first)
		}
	}
	for _, args := range [][]string{{"-h"}, {"help"}} {
		if out, _ := must(t, args...); out != first {
			t.Errorf("gad %s differs from gad --help:\n%s", args[0], out)
		}
	}
}
