package eval

import (
	"strings"
	"testing"

	"gad/trainer/quality"
)

// What a fresh discriminator says is printed where its control says that it can tell,
// and "not learned" where not.
func TestPrintEvaluation(t *testing.T) {
	acc, ci, control, trained, poor, ties, check :=
		0.75, [2]float64{0.7, 0.8}, 0.9, 0.98, 0.52, 0.25, 0.5
	yes, no, one := true, false, 1.0
	for want, e := range map[string]quality.Evaluation{
		"fresh discriminator           0.750 [0.700, 0.800]        held-out accuracy; 0.5: cannot tell student from teacher\n  on pairs it learned from    0.980\n  control                     0.900": {
			FreshDAcc: &acc, FreshDCI95: &ci, FreshDControl: &control, FreshDTrained: &trained,
			FreshDTies: &ties, FreshDLearned: &yes, FreshDSteps: 100, FreshDSeeds: 2,
			FreshDRead: 256},
		"  trained                     2 x 100 steps, 256 tokens\nfresh discriminators were shortened: it was long\n": {
			FreshDAcc: &acc, FreshDCI95: &ci, FreshDControl: &control, FreshDTies: &ties,
			FreshDLearned: &yes, FreshDSteps: 100, FreshDSeeds: 2, FreshDRead: 256,
			FreshDNote: "it was long"},
		"the fresh discriminator has not learned: neither its accuracy nor the control is clearly above chance: give more rows": {
			FreshDControl: &acc, FreshDTrained: &trained, FreshDTies: &ties, FreshDLearned: &no,
			FreshDSteps: 5},
		"the fresh discriminator has not learned: it does not even rank the pairs that it learned from": {
			FreshDControl: &acc, FreshDTrained: &poor, FreshDTies: &ties, FreshDLearned: &no,
			FreshDSteps: 5},
		"fresh discriminator           all answers equal\n": {FreshDTies: &one, FreshDLearned: &no},
		"checker's score               0.500 [0.700, 0.800]\n  a                           0.200 [": {
			Rows: 10, Check: &check, CheckCI95: &ci,
			Labels: map[string]float64{"b": 0.2, "a": 0.2, "walk": 0.6}},
		"no fresh discriminator: for a reason\n": {FreshDNote: "for a reason"},
	} {
		var b strings.Builder
		if printEvaluations(&b, comparedJSON{Models: []quality.Evaluation{e}}); !strings.Contains(
			b.String(), want) {
			t.Errorf("prints\n%swant %q", b.String(), want)
		}
	}
	// Of several models a note names those that it is about.
	var b strings.Builder
	printEvaluations(&b, comparedJSON{
		Models: []quality.Evaluation{{Model: "a", FreshDNote: "for a reason"},
			{Model: "b", FreshDAcc: &acc, FreshDSteps: 9, FreshDSeeds: 1}}})
	if want := "no fresh discriminator: for a reason (A)\n"; !strings.Contains(b.String(), want) {
		t.Errorf("prints\n%swant %q", b.String(), want)
	}
	// A difference is named by its interval, and by whether more is better.
	for want, c := range map[string]struct {
		ci     *[2]float64
		better int
	}{
		"+0.100 [-0.100, +0.300] within noise": {&[2]float64{-0.1, 0.3}, 1},
		"+0.100 [+0.050, +0.300] better":       {&[2]float64{0.05, 0.3}, 1},
		"+0.100 [+0.050, +0.300] worse":        {&[2]float64{0.05, 0.3}, -1},
		"+0.100 [+0.050, +0.300] more":         {&[2]float64{0.05, 0.3}, 0}, "+0.100 [-]": {nil, 1},
	} {
		if got := difference(map[string]quality.Difference{"x": {Value: 0.1, CI95: c.ci}}, "x",
			c.better); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
