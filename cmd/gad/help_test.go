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

// gad sft --help SETTING shows what sft begins with, not another stage.
func TestHelpOfASettingInItsStage(t *testing.T) {
	for line, want := range map[string]string{
		"sft --help actor.optim.lr":            "actor.optim.lr=5e-06\n",
		"train --help actor.optim.lr":          "actor.optim.lr=1e-06\n",
		"help settings actor.optim.lr":         "actor.optim.lr=1e-06\n",
		"help --stage sft settings actor.grad": "actor.grad_clip=1\n",
		"train --help trainer.total_epochs":    "trainer.total_epochs=2\n",
	} {
		if out, _ := must(t, strings.Fields(line)...); !strings.HasPrefix(out, want) {
			t.Errorf("%s: prints %.60s, want %s", line, out, want)
		}
	}
}
