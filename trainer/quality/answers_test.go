package quality

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"gad/data"
	"gad/internal/fault"
	"gad/internal/textmetrics"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/modeltest"
	"gad/trainer/plan"
)

// heldOut is a student and rows that it has not learned from.
type heldOut struct {
	m       *model.Model
	tok     *tokenizer.Tokenizer
	val     *data.Set
	valRows []int
}

func openHeldOut(t *testing.T, be model.Backend) heldOut {
	t.Helper()
	m, err := model.Load(be, modeltest.Student(t), model.Options{Trainable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return heldOut{m, modeltest.Tokenizer(t), modeltest.Rows(t, "test.jsonl"), indices(20)}
}

// An evaluation in parts is the whole; its figures are means of its rows; a student is
// no better than itself; and it stops where it is told to.
func TestEvaluateInParts(t *testing.T) {
	be := modeltest.Backend(t)
	tr := openHeldOut(t, be)
	m, tok := tr.m, tr.tok
	o := Options{MaxPrompt: 64, MaxResponse: 14, Temperature: 1, Seed: 1, Slots: 8, MaxTokens: 512}
	whole, err := Evaluate(m, tok, tr.val, tr.valRows, o)
	if err != nil {
		t.Fatal(err)
	}
	type bar struct{ total, told, done int }
	bars := map[string]*bar{}
	o.Stages = func(name string, total int) (func(int), func()) {
		b := &bar{total: total}
		bars[name] = b
		return func(n int) { b.told += n }, func() { b.done++ }
	}
	o.MaxTokens = 100
	b, err := EncodeRows(tok, tr.val, tr.valRows, o)
	if err != nil {
		t.Fatal(err)
	}
	j, err := Answer(m, tok, b, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.TeacherNLL(m, o); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(j.Eval, whole.Eval) {
		t.Errorf("in parts %+v, whole %+v", j.Eval, whole.Eval)
	}
	for _, name := range []string{"encoding", "answers, tokens", "teacher NLL, tokens"} {
		if b := bars[name]; b == nil || b.total != b.told || b.done != 1 || b.total == 0 {
			t.Errorf("bar %q: %+v", name, b)
		}
	}
	j.Intervals(1)
	for _, f := range j.Eval.Figures() {
		if f.CI95 == nil || !(f.CI95[0] <= f.Value && f.Value <= f.CI95[1]) {
			t.Errorf("%s: %g, interval %v", f.Key, f.Value, f.CI95)
		}
	}
	if got, want := *j.Eval.RougeLCI95, textmetrics.RatioInterval(j.RougeL, nil, 1); got != want {
		t.Errorf("interval of ROUGE-L %v, want %v", got, want)
	}
	for key, d := range j.Minus(whole, true, 1) {
		// Rows that do not differ say nothing of others, but for shares.
		if share := key == "truncated_frac" || key == "repeat_frac" &&
			d.CI95 != nil; d.Value != 0 || share != (d.CI95 != nil) || share &&
			!(d.CI95[0] < 0 && d.CI95[1] > 0) {
			t.Errorf("%s: the same student differs from itself by %+v", key, d)
		}
	}
	if d := j.Minus(whole, false, 1); len(d) != 5 {
		t.Errorf("with other tokens: %v: want no teacher NLL and no length", d)
	}

	// Stopped in the middle, the answers that were complete are there, and are the same.
	calls := 0
	o.Stop = func() bool { calls++; return calls > 14 }
	part, err := Answer(m, tok, b, o)
	if !errors.Is(err, fault.ErrInterrupted) {
		t.Fatalf("stopped: %v", err)
	}
	rows, err := part.Rows("x", tr.val)
	if err != nil || len(rows) < 3 || len(rows) >= 20 {
		t.Fatalf("%d rows of a stopped evaluation, %v", len(rows), err)
	}
	for _, r := range rows {
		if at := r.Row; r.Response != j.Answers[at] || r.RougeL != j.RougeL[at] ||
			r.TeacherNLL != nil {
			t.Errorf("row %d: %+v, whole %q", at, r, j.Answers[at])
		}
	}
	o.Stop = func() bool { return true }
	if _, err := EncodeRows(tok, tr.val, tr.valRows, o); !errors.Is(err, fault.ErrInterrupted) {
		t.Errorf("encoding: %v", err)
	}
	if err := j.TeacherNLL(m, o); !errors.Is(err, fault.ErrInterrupted) {
		t.Errorf("teacher NLL: %v", err)
	}
	if _, err := TrainFresh(be, DiscOptions{From: modeltest.Student(t), Steps: 5, Stop: o.Stop},
		j); !errors.Is(err, fault.ErrInterrupted) {
		t.Errorf("fresh discriminator: %v", err)
	}
}

// A paired difference is far narrower than the figures are, where rows differ more than
// the students.
func TestPairedDifference(t *testing.T) {
	judged := func(shift float64) *Results {
		j := planted(200, []int32{5, 6, 6, 8})
		for p := range j.Seqs {
			j.RougeL = append(j.RougeL, float64(p%10)/10+shift*(0.9+0.2*float64(p/10%2)))
			j.Repeat, j.NLL, j.Tokens, j.Truncated =
				append(j.Repeat, 0), append(j.NLL, 1), append(j.Tokens, 5),
				append(j.Truncated, false)
			j.Answers = append(j.Answers, "a b")
			j.Eval.RougeL += j.RougeL[p] / 200
		}
		return j
	}
	a, b := judged(0), judged(0.02)
	d := b.Minus(a, true, 1)["rouge_l"]
	if math.Abs(d.Value-0.02) > 1e-9 || d.CI95 == nil ||
		!(d.CI95[0] > 0.019 && d.CI95[0] < 0.02 && d.CI95[1] > 0.02 && d.CI95[1] < 0.021) {
		t.Errorf("difference %+v, want 0.02 and little more or less", d)
	}
	if d := judged(0).Minus(a, true, 1)["rouge_l"]; d.Value != 0 || d.CI95 != nil {
		t.Errorf("difference of equal rows %+v, want no interval", d)
	}
	a.Intervals(1)
	if ci := a.Eval.RougeLCI95; ci[1]-ci[0] < 0.05 {
		t.Errorf("interval %v of the figure itself", ci)
	}
}

// The estimate counts what will be done: it grows with rows and limit, expects the
// teacher's lengths only of a student that ends answers, and says what nobody can tell.
func TestPlanEval(t *testing.T) {
	be := modeltest.Backend(t)
	tr := openHeldOut(t, be)
	m := tr.m
	o := Options{MaxPrompt: 64, MaxResponse: 60, Seed: 1, Slots: 8, MaxTokens: 512}
	b, err := EncodeRows(tr.tok, tr.val, tr.valRows, o)
	if err != nil {
		t.Fatal(err)
	}
	pace, err := MeasurePace(be, m, tr.tok, b, o.Slots, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Signs only: which is larger, and by how much, is a matter of what else the machine does.
	if !(pace.Forward > 0 && pace.Train > 0 && pace.Update > 0 && pace.Decode+pace.Slot > 0 &&
		pace.Ends >= 0 && pace.Ends <= 1) || pace.Device != be.Name() {
		t.Errorf("%+v", pace)
	}
	// A signal ends it wherever it is.
	whole := 0
	_, err = MeasurePace(be, m, tr.tok, b, o.Slots, true, func() bool { whole++; return false })
	if err != nil || whole < 10 {
		t.Fatalf("asked %d times, %v", whole, err)
	}
	for at := 1; at <= whole; at += max(1, whole/7) {
		asked := 0
		if _, err := MeasurePace(be, m, tr.tok, b, o.Slots, true,
			func() bool { asked++; return asked >= at }); !errors.Is(err, fault.ErrInterrupted) ||
			asked > at {
			t.Errorf("stopped when asked for the time %d of %d: %v after %d", at, whole, err, asked)
		}
	}
	disc := DiscOptions{Shape: m.Config(), Steps: 100, Batch: 4, Seeds: 3}
	estimate := func(ends float64, rows int, o Options, free int64) Plan {
		p := Pace{Forward: 1e-10, Train: 4e-10, Update: 1e-9, Decode: 1e-3, Slot: 1e-4, Ends: ends}
		return PlanOf(be, free, m.Config(), b[:rows], p, o, disc,
			DiscBudget{Seconds: 600, Fixed: true})
	}
	ended, endless := estimate(0.9, 20, o, 0), estimate(0.01, 20, o, 0)
	if !(ended.AnswerMean < 20 && endless.AnswerMean == 60 &&
		ended.Parts[0].Seconds < endless.Parts[0].Seconds && ended.Most > ended.Total() &&
		endless.Most == 0) {
		t.Errorf("a student that ends %+v\none that does not %+v", ended, endless)
	}
	if less := estimate(0.9, 10, o, 0); less.Parts[0].Seconds >= ended.Parts[0].Seconds ||
		less.Parts[1].Seconds >= ended.Parts[1].Seconds {
		t.Errorf("10 rows take %+v, 20 rows %+v", less.Parts, ended.Parts)
	}
	if p := estimate(0.9, 1, o, 0); p.DiscWhy == "" || len(p.Parts) != 2 {
		t.Errorf("one row: %+v", p)
	}
	if p := estimate(0.9, 20, o, 1000); p.DiscWhy == "" || !errors.Is(p.Check(), plan.ErrTooLarge) {
		t.Errorf("in a kilobyte: %q, %v", p.DiscWhy, p.Check())
	}
	if got, want := len(ended.Parts), 3; got != want || ended.Disc.Steps != 100 ||
		ended.Disc.Seeds != 3 {
		t.Errorf("%+v", ended)
	}
	// What the second part took corrects the pace, by a factor of 4 at most.
	if fast := ended.Calibrate(1e6); fast.Train != 4*ended.Train ||
		fast.Forward != 4*ended.Forward {
		t.Errorf("calibrated %+v, was %+v", fast.Pace, ended.Pace)
	}
	if same := ended.Calibrate(0.5); same.Pace != ended.Pace {
		t.Errorf("half a second changes the pace: %+v, was %+v", same.Pace, ended.Pace)
	}
	// By hand: one step for all answers takes Decode, and each token Slot and its cache.
	c := model.Config{Layers: 1, Hidden: 4, Heads: 1, KVHeads: 1, HeadDim: 4, FFN: 4, Vocab: 10}
	seconds := Pace{Decode: 2, Slot: 0.5}.answers(c, model.Chunks{}, []int{0, 0}, []int{10, 4}, 2)
	if least := 10*2 + 14*0.5; seconds < least || seconds > 3*least {
		t.Errorf("two answers of 10 and 4 tokens take %g s, want a little more than %g", seconds,
			least)
	}
}
