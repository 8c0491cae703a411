package quality

import (
	"math"
	"slices"
	"testing"

	"gad/internal/report"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/trainer/encode"
	"gad/trainer/modeltest"
)

// planted are n rows whose teacher always says 5 6 7 8 and whose student says wrong
// in its place, or the same in every fifth row.
func planted(n int, wrong []int32) *Results {
	j := &Results{}
	end := int32(2)
	for p := range n {
		prompt := []int32{10 + int32(p%7), 20 + int32(p%3)}
		seq := func(answer ...int32) model.Seq {
			return model.Answer(append(append(append([]int32{}, prompt...), answer...), end),
				len(prompt))
		}
		j.Batch = append(j.Batch, encode.Row{Teacher: seq(5, 6, 7, 8)})
		j.Truncated = append(j.Truncated, false)
		answer := wrong
		if p%5 == 0 {
			answer = []int32{5, 6, 7, 8}
		}
		j.Seqs = append(j.Seqs, seq(answer...))
	}
	return j
}

// A fresh discriminator learns a difference that was planted, and its control says
// that it can; equal answers are counted apart. Where the training is too short, or
// the control has nothing to show, nothing is reported.
func TestFreshDiscriminatorLearnsWhatIsPlanted(t *testing.T) {
	t.Parallel()
	be := modeltest.Backend(t)
	j := planted(100, []int32{5, 6, 6, 8})
	o := DiscOptions{From: modeltest.Student(t), Steps: 150, LR: 2e-3, Seed: 3, Seeds: 2}
	f, err := TrainFresh(be, o, j)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Learned || f.Acc < 0.9 || f.Control < 0.8 || f.Pairs != 80 || f.Ties != 0.2 ||
		f.Seeds != 2 || !(f.CI95[0] <= f.Acc && f.Acc <= f.CI95[1]) {
		t.Errorf("planted: %+v", f)
	}
	if !testing.Short() {
		if again, err := TrainFresh(be, o, j); err != nil || again != f {
			t.Errorf("the same again: %+v, %v, was %+v", again, err, f)
		}
	}
	var e Evaluation
	if e.SetFresh(f); e.FreshDAcc == nil || *e.FreshDAcc != f.Acc || *e.FreshDTies != 0.2 ||
		!*e.FreshDLearned {
		t.Errorf("evaluation %+v", e)
	}

	short := o
	short.Steps = 1
	f, err = TrainFresh(be, short, alike(100))
	if err != nil || f.Learned {
		t.Errorf("one step: %+v, %v: want not learned", f, err)
	}
	e = Evaluation{}
	if e.SetFresh(f); e.FreshDAcc != nil || e.FreshDCI95 != nil || e.FreshDControl == nil ||
		*e.FreshDLearned {
		t.Errorf("one step: evaluation %+v: reports what was not learned", e)
	}

	// Nothing differs: no training, no figure.
	same := planted(10, []int32{5, 6, 7, 8})
	f, err = TrainFresh(be, short, same)
	if err != nil || f.Learned || !math.IsNaN(f.Acc) || f.Ties != 1 || f.Pairs != 0 {
		t.Errorf("nothing differs: %+v, %v", f, err)
	}
	// No token could replace another: no control.
	mute := planted(10, []int32{9, 9, 9, 9})
	for p := range mute.Batch {
		ids := mute.Batch[p].Teacher.IDs
		for i := 2; i < 6; i++ {
			ids[i] = 4
		}
	}
	f, err = TrainFresh(be, short, mute) // but held-out pairs are told apart: none is needed
	if err != nil || !f.Learned || f.Acc != 1 || !math.IsNaN(f.Control) {
		t.Errorf("no control: %+v, %v", f, err)
	}
	for _, bad := range []DiscOptions{{From: modeltest.Student(t)},
		{From: modeltest.Student(t), Steps: 1, Batch: -1},
		{From: modeltest.Student(t), Steps: 1, Seeds: -1}} {
		if _, err := TrainFresh(be, bad, j); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// A pair is left out if the limit cut the teacher's answer alone, and compared if it cut both:
// then the missing end tells nothing.
func TestFreshLeavesUnlikePairsOut(t *testing.T) {
	j := planted(8, []int32{5, 5, 5, 5})
	j.Batch[1].TeacherCut, j.Batch[2].TeacherCut = true, true
	j.Truncated = []bool{false, false, true, true, false, false, false, false}
	want := []bool{true, true, false, false, false, true, false, false} // rows 0 and 5 are equal
	if got := j.pairs().skip; !slices.Equal(got, want) {
		t.Errorf("left out: %v, want %v", got, want)
	}
	if pairs, share, _ := j.ties(); pairs != 5 || share != 2./7 {
		t.Errorf("%d pairs, ties %g, want 5 and 2/7", pairs, share)
	}
	if got := j.controlPairs(1).skip; !slices.Equal(got,
		[]bool{false, true, false, false, false, false, false, false}) {
		t.Errorf("control leaves out %v", got)
	}
	if got := j.truncate(2).pairs().skip; got[1] != true || got[2] {
		t.Errorf("answers read in part: %v left out", got)
	}
}

// The control damages one token of each answer, never its end nor its prompt.
func TestControlDamagesOneToken(t *testing.T) {
	j := planted(50, []int32{5, 5, 5, 5})
	j.Batch[3].TeacherCut = true
	s := j.controlPairs(1)
	where := map[int]int{}
	for p := range s.worse {
		a, b := s.worse[p], s.better[p]
		differ := 0
		for i := range b.IDs {
			if a.IDs[i] != b.IDs[i] {
				differ++
				where[i]++
				if i < b.Prompt() || i == len(b.IDs)-1 {
					t.Errorf("row %d: place %d of prompt or end is damaged", p, i)
				}
			}
		}
		if want := map[bool]int{true: 0, false: 1}[p == 3]; differ != want ||
			s.skip[p] != (p == 3) {
			t.Errorf("row %d: %d places differ, left out %v", p, differ, s.skip[p])
		}
	}
	if len(where) != 4 {
		t.Errorf("places damaged: %v, want all four", where)
	}
}

// The interval covers what seeds and prompts do to the mean, and needs both.
func TestFreshInterval(t *testing.T) {
	nan := math.NaN()
	v := verdicts{{1, 1, 0, nan}, {0, nan, 0, 1}}
	if got, want := v.mean(), (2./3+1./3)/2; math.Abs(got-want) > 1e-12 {
		t.Errorf("mean %g, want %g", got, want)
	}
	ci := v.interval(1)
	if !(ci[0] < 0.2 && ci[1] > 0.8) {
		t.Errorf("interval %v of a handful of verdicts: too narrow", ci)
	}
	// Where all is right, or all wrong, the bootstrap says nothing: Wilson's over the pairs.
	for x, want := range map[float64][2]float64{1: textmetrics.Wilson(3, 3),
		0: textmetrics.Wilson(0, 3)} {
		if ci := (verdicts{{x, x, x}, {x, x, nan}, {nan, nan, nan}}).interval(1); ci != want {
			t.Errorf("interval %v where all is %g, want %v", ci, x, want)
		}
	}
	for _, none := range []verdicts{{{0.5, 0.5}}, {{nan, nan}}, {}} {
		if ci := none.interval(1); !math.IsNaN(ci[0]) {
			t.Errorf("%v: interval %v", none, ci)
		}
	}
}

// The token that the control puts in fits where there is one that does.
func TestControlFits(t *testing.T) {
	j := planted(60, []int32{5, 5, 5, 5})
	for p := range j.Batch {
		if p%2 == 1 {
			j.Batch[p].Teacher.IDs[3] = 9 // 5 9 7 8
		}
	}
	s := j.controlPairs(2)
	swapped := 0
	for p := range s.worse {
		if got, was := s.worse[p].IDs[3], s.better[p].IDs[3]; got != was {
			swapped++
			if got != 6+9-was {
				t.Errorf("row %d: %d stands where %d was, want %d: it stands between the same two",
					p, got, was, 6+9-was)
			}
		}
	}
	if swapped < 5 {
		t.Errorf("%d rows damaged in that place: the test shows nothing", swapped)
	}
}

// Fit lowers what costs least to lower first, and says it; without a time nothing but
// the passes counts.
func TestFreshFit(t *testing.T) {
	cost := func(once, step float64) func(int) DiscCost {
		return func(read int) DiscCost { // a training that reads n tokens of 1024 costs their share
			if read == 0 {
				read = 1024
			}
			return DiscCost{once, step * float64(read) / 1024}
		}
	}
	o := DiscOptions{Steps: 800, Batch: 4, Seeds: 3}
	for _, c := range []struct {
		name               string
		pairs              int
		step, seconds      float64
		fixed              bool
		steps, seeds, read int
		told, why          string
	}{
		{"enough of both", 460, 0.01, 600, false, 800, 3, 0, "", ""},
		{"any time", 460, 1000, 0, false, 800, 3, 0, "", ""},
		{"few pairs", 40, 0.01, 600, false, 200, 3, 0,
			"200 of 800 steps, which are 40 passes over 20 pairs", ""},
		{"very few pairs", 8, 0.01, 600, false, 50, 3, 0,
			"50 of 800 steps, which are 50 passes over 4 pairs", ""},
		{"few pairs, steps as told", 40, 0.01, 600, true, 800, 3, 0, "", ""},
		{"fewer steps", 460, 0.5, 600, false, 200, 3, 0,
			"200 of 800 steps, to stay within 10 minutes (--disc-minutes)", ""},
		{"fewer steps and seeds", 460, 1.2, 600, false, 100, 2, 0,
			"100 of 800 steps, 2 of 3 seeds, to stay within 10 minutes (--disc-minutes)", ""},
		{"shorter answers", 460, 6, 600, false, 100, 1, 512, "100 of 800 steps, 1 of 3 seeds, the first 512 tokens of each answer, to stay within 10 minutes (--disc-minutes)", ""},
		{"the least", 40, 95, 600, false, 50, 1, 64, "200 of 800 steps, which are 40 passes over 20 pairs; then 50 of 200 steps, 1 of 3 seeds, the first 64 tokens of each answer, to stay within 10 minutes (--disc-minutes)", ""},
		{"too slow", 460, 320, 600, false, 800, 3, 0, "", "it needs at least 50 steps, which take longer than 10 minutes here: give --disc-minutes 34, or use a GPU"},
		{"one pair", 1, 0.01, 600, false, 800, 3, 0, "", "1 pairs that differ: a discriminator learns from half of them and is tested on the others"},
	} {
		got, told, why := o.Fit(c.pairs, cost(0, c.step), c.seconds, c.fixed)
		if told != c.told || why != c.why || why == "" &&
			(got.Steps != c.steps || got.Seeds != c.seeds || got.Read != c.read) {
			t.Errorf("%s: %d steps, %d seeds, %d tokens, %q, %q", c.name, got.Steps, got.Seeds,
				got.Read, told, why)
		}
		if why == "" && c.seconds > 0 &&
			cost(0, c.step)(got.Read).total(got.Steps, got.Seeds) > c.seconds {
			t.Errorf("%s: takes longer than it may", c.name)
		}
	}
}

// A discriminator that reads the first tokens sees what differs there, and nothing of
// what differs later: those pairs are ties.
func TestFreshReadsTheFirstTokens(t *testing.T) {
	t.Parallel()
	be := modeltest.Backend(t)
	o := DiscOptions{From: modeltest.Student(t), Steps: 150, LR: 2e-3, Seed: 3, Seeds: 2, Read: 3}
	f, err := TrainFresh(be, o, planted(100, []int32{5, 9, 7, 8}))
	if err != nil || !f.Learned || f.Acc < 0.9 || f.Trained < 0.9 || f.Pairs != 80 {
		t.Errorf("a difference at the second token: %+v, %v", f, err)
	}
	j := planted(100, []int32{5, 6, 7, 9})
	f, err = TrainFresh(be, o, j)
	if err != nil || f.Ties != 1 || f.Pairs != 0 || !math.IsNaN(f.Acc) {
		t.Errorf("a difference at the fourth: %+v, %v", f, err)
	}
	if n := len(j.Seqs[1].IDs); n != 7 {
		t.Errorf("the answers themselves are cut: %d tokens", n)
	}
}

// alike are n rows whose student and teacher differ in a token, at random.
func alike(n int) *Results {
	j := planted(n, []int32{5, 6, 7, 8})
	for p := range j.Seqs {
		a, b := int32(20+p%3), int32(20+(p+1)%3)
		if p%2 == 0 {
			a, b = b, a
		}
		j.Seqs[p].IDs[3], j.Batch[p].Teacher.IDs[3] = a, b
	}
	return j
}

// A discriminator that does not rank the pairs it learned from has not learned, whatever
// its control says.
func TestFreshMustKnowItsOwnPairs(t *testing.T) {
	t.Parallel()
	be := modeltest.Backend(t)
	// Nothing to learn but by heart, for which there are too few steps.
	f, err := TrainFresh(be, DiscOptions{From: modeltest.Student(t), Steps: 100, LR: 2e-4, Seed: 3,
		Seeds: 2}, alike(200))
	if err != nil {
		t.Fatal(err)
	}
	if f.Learned || f.Trained >= learnedTrained || f.Trained < 0.3 {
		t.Errorf("%+v: want not learned, and its own pairs not ranked", f)
	}
	nan := math.NaN()
	for _, c := range []struct {
		asked, control, trained float64
		want                    bool
	}{{0.4, 0.61, 0.9, true}, {0.4, 0.59, 0.9, false}, {0.9, 0.3, 0.9, true},
		{0.9, 0.9, 0.55, false}, {0.4, nan, 0.9, false}, {nan, 0.9, nan, true},
		{0.9, nan, 0.9, true}} {
		if got := learned([2]float64{c.asked, 1}, [2]float64{c.control, 1},
			c.trained); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// The fresh discriminators of several students are trained alike, by the one that can
// afford least; a student without any does not count.
func TestAlikeDiscriminators(t *testing.T) {
	plans := []Plan{
		{Disc: DiscOptions{Steps: 150, Seeds: 3}, DiscNote: "150 of 200 steps"},
		{Disc: DiscOptions{Steps: 300, Seeds: 1, Read: 512}},
		{Disc: DiscOptions{Steps: 50, Seeds: 1, Read: 64}, DiscWhy: "there is no time"},
		{Disc: DiscOptions{Steps: 150, Seeds: 1, Read: 512}},
	}
	EqualizeDiscriminators(plans)
	for _, i := range []int{0, 1, 3} {
		if d := plans[i].Disc; d.Steps != 150 || d.Seeds != 1 || d.Read != 512 {
			t.Errorf("student %d: %+v", i, d)
		}
	}
	for i, want := range []string{
		"150 of 200 steps; then 1 of 3 seeds, the first 512 tokens of each answer, to train those of all models alike",
		"150 of 300 steps, to train those of all models alike", "", "",
	} {
		if plans[i].DiscNote != want {
			t.Errorf("student %d: %q, want %q", i, plans[i].DiscNote, want)
		}
	}
	if d := plans[2].Disc; d.Steps != 50 || d.Read != 64 {
		t.Errorf("without any: %+v", d)
	}
}

// Accuracies of trainings that are not alike are not compared; equal ones have no
// interval without width.
func TestFreshDifference(t *testing.T) {
	of := func(told verdicts, steps, seeds, read int) *Results {
		acc := told.mean()
		j := &Results{Batch: encode.Batch{}, freshVerdicts: told}
		j.Eval = Evaluation{FreshDAcc: &acc, FreshDSteps: steps, FreshDSeeds: seeds,
			FreshDRead: read}
		return j
	}
	a := of(verdicts{{1, 1, 0, 1}, {1, 0, 0, 1}}, 100, 2, 0)
	d, ok := of(verdicts{{1, 1, 1, 1}, {1, 0, 1, 1}}, 100, 2, 0).Minus(a, true, 1)["fresh_d_acc"]
	if !ok || d.Value != 0.25 || d.CI95 == nil ||
		!(d.CI95[0] >= 0 && d.CI95[0] < d.Value && d.CI95[1] > d.Value) {
		t.Errorf("alike: %+v", d)
	}
	if d := a.Minus(a, true, 1)["fresh_d_acc"]; d.Value != 0 || d.CI95 != nil {
		t.Errorf("the same verdicts: %+v", d)
	}
	for name, b := range map[string]*Results{
		"steps": of(verdicts{{1, 1, 1, 1}, {1, 0, 1, 1}}, 150, 2, 0),
		"seeds": of(verdicts{{1, 1, 1, 1}}, 100, 1, 0),
		"read":  of(verdicts{{1, 1, 1, 1}, {1, 0, 1, 1}}, 100, 2, 512),
	} {
		if d, ok := b.Minus(a, true, 1)["fresh_d_acc"]; ok {
			t.Errorf("other %s: difference %+v", name, d)
		}
	}
}

// Each figure of an evaluation is described in internal/report, from which doc/evaluation.md is
// made.
func TestMeasuresAreDescribed(t *testing.T) {
	for _, m := range measures {
		if _, i := report.FigureOf(m.key); i < 0 {
			t.Errorf("%s is described nowhere", m.key)
		}
	}
}
