package study

import (
	"math"
	"strings"
	"testing"
)

func values(x ...float64) (list []Value) {
	for i, v := range x {
		list = append(list, Value{uint64(i + 1), v})
	}
	return list
}

// By hand: 1, 2, 3, 4, 5 have mean 3 and s^2 = 2.5; t(0.975, 4) = 2.776445 (tables), so
// the half width is 2.776445*sqrt(2.5/5) = 1.963243.
func TestInterval(t *testing.T) {
	for _, c := range []struct {
		x              []float64
		mean, low, top float64
	}{
		{[]float64{1, 2, 3, 4, 5}, 3, 3 - 1.963243, 3 + 1.963243},
		// s = 0.1*sqrt 2, t(1)
		{[]float64{0.5, 0.7}, 0.6, 0.6 - 12.706205*0.1, 0.6 + 12.706205*0.1},
		// s^2 = 13, t(2)
		{[]float64{2, 4, 9}, 5, 5 - 4.302653*math.Sqrt(13./3), 5 + 4.302653*math.Sqrt(13./3)},
		{[]float64{0.98, 0.98, 0.98}, 0.98, 0.98, 0.98},
	} {
		iv := interval(values(c.x...))
		if math.Abs(iv.Mean-c.mean) > 1e-12 || math.Abs(*iv.Low-c.low) > 1e-5 ||
			math.Abs(*iv.High-c.top) > 1e-5 || iv.Seeds != len(c.x) {
			t.Errorf("%v: %g [%g, %g] of %d, want %g [%g, %g]", c.x, iv.Mean, *iv.Low, *iv.High,
				iv.Seeds, c.mean, c.low, c.top)
		}
	}
	if iv := interval(values(0.4)); iv.Low != nil || iv.High != nil || iv.Mean != 0.4 {
		t.Errorf("one seed: %+v", iv)
	}
	if interval(nil) != nil {
		t.Error("no seed has an interval")
	}
}

// Differences are taken seed by seed: where all seeds gain the same the interval is a
// point, however much the seeds differ. By hand: 3, 1, 2 have mean 2, s = 1,
// t(0.975, 2) = 4.302653, half width 4.302653/sqrt 3 = 2.484138.
func TestPaired(t *testing.T) {
	a, b := interval(values(11, 52, 93)), interval(values(8, 51, 91))
	p := pairedDifference(a, b, 1)
	if math.Abs(p.Mean-2) > 1e-12 || math.Abs(*p.Low-(2-2.484138)) > 1e-5 ||
		math.Abs(*p.High-(2+2.484138)) > 1e-5 || *p.Wins != 3 {
		t.Errorf("%+v", p)
	}
	if p := pairedDifference(a, b, -1); *p.Wins != 0 {
		t.Errorf("less is better: %d wins", *p.Wins)
	}
	if p := pairedDifference(a, b, 0); p.Wins != nil {
		t.Error("wins of what has no better")
	}
	if p := pairedDifference(interval(values(0.5, 0.7)), interval(values(0.5, 0.5)), 1); *p.Wins != 1 {
		t.Errorf("a tie is counted: %d wins", *p.Wins)
	}
	// Only seeds that both have.
	some := interval([]Value{{3, 90}, {9, 1}})
	if p := pairedDifference(some, b, 1); p.Seeds != 1 || p.Mean != -1 || p.Low != nil {
		t.Errorf("%+v", p)
	}
	if pairedDifference(interval([]Value{{9, 1}}), b, 1) != nil || pairedDifference(nil, b, 1) != nil {
		t.Error("no seed in common")
	}
}

// A checker that gives every answer the same score compares nothing, and the warnings say so.
func TestSameCheck(t *testing.T) {
	row := func(values ...Value) Row {
		return Row{Arm: "a", Cells: map[string]*Interval{"check": interval(values)}}
	}
	for want, rows := range map[string][]Row{
		"| test, temperature 1: check is 0 for every answer of every arm, so it compares nothing: no student can do the task: train longer by SFT first, or take an easier task or a larger student | all |\n": {row(Value{1, 0}, Value{2, 0}), row(Value{1, 0})},
		"| test, temperature 1: check is 1 for every answer of every arm, so it compares nothing: every student can do the task: take a harder one | all |\n":                                                  {row(Value{1, 1}), row(Value{2, 1})},
		"": {row(Value{1, 0}, Value{2, 0.01}), row(Value{1, 0})},
	} {
		var b strings.Builder
		(&Report{Tables: []Table{{Set: "test", Temperature: 1, Rows: rows},
			{Set: "unchecked", Rows: []Row{{Arm: "a"}}}}}).writeWarnings(&b)
		if got := b.String(); want == "" && got != "" || !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A metric's falls and what it lost, by hand, are over all steps that have it.
func TestSummaries(t *testing.T) {
	var rows []row
	for i := range 40 { // rises to 0.9, at the end 0.4
		x := 0.1 * float64(min(i/2, 9))
		if i >= 35 {
			x = 0.4
		}
		rows = append(rows, row{"reward/check_mean": x, "critic/d_acc": 0.7})
	}
	delete(rows[20], "reward/check_mean")
	got := summaries(rows, []string{"reward/check_mean", "falls(reward/check_mean)",
		"lost(reward/check_mean)", "lost(critic/d_acc)", "falls(critic/score_gap)"})
	want := map[string]float64{
		"reward/check_mean":        (14*0.9 + 5*0.4) / 19, // the last 20 steps, one without it
		"falls(reward/check_mean)": 1. / 38,
		"lost(reward/check_mean)":  0.5,
		"lost(critic/d_acc)":       0,
	}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	for name, x := range want {
		if math.Abs(got[name]-x) > 1e-12 {
			t.Errorf("%s: %g, expected %g", name, got[name], x)
		}
	}
	if got := summaries(rows[:4], []string{"lost(critic/d_acc)"}); len(got) != 0 {
		t.Errorf("of four steps: %v", got)
	}
}

// The tables as people see them.
func TestMarkdown(t *testing.T) {
	r := try(t)
	r.must(t)
	got := r.tables(t)
	for _, want := range []string{
		"# two arms\n\n6 of 6 runs (3 arms x 2 seeds: 1 2). ",
		"\n## test, temperature 1\n\n| arm | check | label: good | rouge_l | teacher_nll | len_ratio |\n|---|---:|---:|---:|---:|---:|\n| SeqKD | ",
		"\n## test, greedy\n",
		"\n| difference | check | label: good | rouge_l | teacher_nll | len_ratio |\n",
		"\n| GAD - SeqKD | +0.", ", 2/2 | +0.", // wins of check and of rouge_l
		"| +0.000 [+0.000, +0.000] |", // the length ratio knows no better
		"\n## Figures\n\n- `check`: mean score of your `--checker` program, by its protocol, and the share of each label\n- `rouge_l`: ",
		"\n## Training, last 20 steps\n\n| arm | critic/d_acc |\n",
		"| GAD | 0.503 [0.503, 0.503] |\n", // .501 to .505
		"Budget: as many FLOPs as GAD.",
		"| arm | steps | TFLOP | seconds | share of the budget |\n|---|---:|---:|---:|---:|\n| SeqKD | 4 | 0.04 | 8 | 7.4 % |\n| SeqKD, filled | 54 | 0.54 | 108 | 100.0 % |\n| GAD | 4 + 3 + 5 | 0.54 | 24 | 100.0 % |\n",
		"\n## Warnings\n\n| warning | arm and seed |\n|---|---:|\n| the discriminator has not learned | GAD 2 |\n",
		"```sh\ngad study two.yaml\n```",
		"# SeqKD\ngad sft --model /w/student ",
		`"confidence": 0.95`, `"state": "done"`, `"wins": 2`, `"share_of_budget": 1`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	for _, unwanted := range []string{"distinct_1 |", "--seed 2\n", "(2)", "NaN |"} {
		if strings.Contains(got, unwanted) {
			t.Errorf("holds %q", unwanted)
		}
	}
	// A pipe in a name stays in its cell, a label that a seed lacks is 0 there.
	v := map[string][]Value{"check": values(1, 2), labelPrefix + "x": {{2, 0.5}}}
	fillLabels(v, []string{"check", labelPrefix + "x"})
	if iv := interval(v[labelPrefix+"x"]); iv.Mean != 0.25 || iv.Seeds != 2 {
		t.Errorf("%+v", iv)
	}
	var b strings.Builder
	writeRow(&b, "a|b", "c")
	if b.String() != "| a\\|b | c |\n" {
		t.Errorf("%q", &b)
	}
}
