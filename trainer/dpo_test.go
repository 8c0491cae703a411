package trainer

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gad/algos"
	"gad/apps/doctor"
	"gad/internal/compute/cpu"
	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/export"
)

// sampled are the starting student's answers in a run's samples, by row; want one row's
// answer never to change.
func sampled(t *testing.T, run string, steps int) (byRow map[int]string, again int) {
	t.Helper()
	byRow = map[int]string{}
	for step := 1; step <= steps; step++ {
		raw, err := os.ReadFile(filepath.Join(run, "samples", fmt.Sprintf("step_%d.jsonl", step)))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			var s struct {
				Row     int
				Student string
			}
			if err := json.Unmarshal([]byte(line), &s); err != nil {
				t.Fatal(err)
			}
			if was, ok := byRow[s.Row]; ok {
				if again++; was != s.Student {
					t.Errorf("row %d: sample %q in step %d, was %q", s.Row, s.Student, step, was)
				}
			}
			byRow[s.Row] = s.Student
		}
	}
	return byRow, again
}

// The first step's loss is ln 2 exactly, with no pair on either side; then the margin
// grows, the teacher's answers gain on the samples. The samples are drawn once: the same
// in every pass over the data, though the student has moved.
func TestDPOLearns(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "dpo")
	const steps = 30 // three passes over 40 rows
	rows := finished(t, be, settings(config.DPO, run, fmt.Sprintf("trainer.total_steps=%d", steps),
		"trainer.save_samples=4", "dpo.truncated=include", "dpo.beta=0.5"), config.DPO)
	first := rows[0].Values
	if math.Abs(first["dpo/loss"]-math.Ln2) > 1e-15 || first["dpo/acc"] != 0 ||
		first["dpo/margin"] != 0 {
		t.Errorf("first step: loss %.17g, accuracy %g, margin %g: want ln 2, 0 and 0: the student is the reference", first["dpo/loss"], first["dpo/acc"], first["dpo/margin"])
	}
	var acc, margin float64
	for _, r := range rows[steps-5:] {
		acc, margin = acc+r.Values["dpo/acc"]/5, margin+r.Values["dpo/margin"]/5
	}
	if acc < .9 || margin < 1 {
		t.Errorf("last five steps: accuracy %g, margin %g: want above 0.9 and 1", acc, margin)
	}
	for _, r := range rows {
		wantNames(t, r, strings.Fields("dpo/loss dpo/acc dpo/margin dpo/chosen_reward dpo/rejected_reward dpo/pairs dpo/tie_frac actor/entropy actor/lr actor/grad_norm rollout/len_mean rollout/truncated_frac teacher/len_mean timing_s/update_actor train/epoch train/prompts perf/tflops"))
		wantNone(t, r, "critic/", "adv/", "reward/", "actor/pg_loss", "actor/sft_loss")
		if once := strings.Fields(
			"timing_s/rollout timing_s/ref_logp rollout/tokens_per_s"); r.Step <= 10 {
			wantNames(t, r, once)
		} else { // the reference has answered each row
			wantNone(t, r, once...)
		}
		if got := r.Values["dpo/chosen_reward"] -
			r.Values["dpo/rejected_reward"]; math.Abs(got-r.Values["dpo/margin"]) > 1e-9 {
			t.Errorf("step %d: margin %g, rewards differ by %g", r.Step, r.Values["dpo/margin"],
				got)
		}
	}
	if byRow, again := sampled(t, run, steps); len(byRow) != 40 || again != 80 {
		t.Errorf("%d rows, seen again %d times: want 40 and 80", len(byRow), again)
	}
	// The answers are the starting student's own: another seed gives others.
	other := filepath.Join(t.TempDir(), "other")
	finished(t, be, settings(config.DPO, other, "trainer.total_steps=10", "trainer.save_samples=4",
		"trainer.seed=2"), config.DPO)
	a, _ := sampled(t, run, steps)
	b, _ := sampled(t, other, 10)
	differ := 0
	for row := range a {
		if a[row] != b[row] {
			differ++
		}
	}
	if differ < 10 {
		t.Errorf("%d of 40 samples differ under another seed", differ)
	}
}

// Threads and sampling slots change no bit. How pairs are packed changes no sample and no
// figure of the first step, and the weights by rounding alone.
func TestDPOSameBits(t *testing.T) {
	ready(t)
	play := func(threads, slots, tokens int) (map[string]string, map[string]float64) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
		be, err := cpu.New(cpu.Options{Workers: threads})
		if err != nil {
			t.Fatal(err)
		}
		defer be.Close()
		run := filepath.Join(t.TempDir(), fmt.Sprintf("%d-%d-%d", threads, slots, tokens))
		rows := finished(t, be, settings(config.DPO, run, "trainer.total_steps=2",
			"dpo.truncated=include",
			fmt.Sprintf("rollout.max_num_seqs=%d", slots),
			fmt.Sprintf("actor.max_token_len=%d", tokens)), config.DPO)
		return record(t, run, 2), rows[0].Values
	}
	want, first := play(1, 64, 512)
	for _, c := range [][2]int{{3, 1}, {2, 4}, {8, 64}} {
		got, _ := play(c[0], c[1], 512)
		same(t, got, want)
	}
	packed, again := play(1, 64, 64)
	for _, name := range []string{"dpo/loss", "dpo/margin", "dpo/pairs", "dpo/tie_frac",
		"rollout/len_mean"} {
		if again[name] != first[name] {
			t.Errorf("in smaller packs %s is %.17g, was %.17g", name, again[name], first[name])
		}
	}
	if math.Abs(again["actor/grad_norm"]/first["actor/grad_norm"]-1) > 1e-4 {
		t.Errorf("in smaller packs the gradient's norm is %g, was %g", again["actor/grad_norm"],
			first["actor/grad_norm"])
	}
	if packed["samples/step_1.jsonl"] != want["samples/step_1.jsonl"] ||
		want["samples/step_1.jsonl"] == "" {
		t.Error("in smaller packs the samples are others")
	}
}

// A sample that is the teacher's very text gives no pair and is counted, and so does, by
// default, an answer that was cut. Where no pair is left, nothing is learned.
func TestDPOLeavesOut(t *testing.T) {
	slow(t)
	be := ready(t)
	tr := opened(t, be, settings(config.DPO, filepath.Join(t.TempDir(), "a"),
		"data.train_batch_size=40", "trainer.total_steps=1", "trainer.seed=6"), config.DPO)
	rows := make([]int, len(tr.train.rows))
	for i, row := range tr.train.rows {
		rows[i] = int(row)
	}
	batch, err := tr.enc.Batch(tr.train.set, rows)
	if err != nil {
		t.Fatal(err)
	}
	p, err := tr.stage.(*dpo).pairUp(Metrics{}, batch)
	if err != nil {
		t.Fatal(err)
	}
	// Rows up to the first whose sample no teacher could say: an empty one.
	n, cut := 0, 0
	for n < 40 && strings.TrimSpace(p.list[n].text) != "" {
		if p.list[n].frozen.truncated {
			cut++
		}
		n++
	}
	if n < 8 || cut < 1 || p.ties > 0 {
		t.Fatalf("%d samples, %d of them cut, %d ties of 40: the fixture shows nothing", n, cut,
			p.ties)
	}
	for _, c := range []struct {
		copies    bool // the teacher says the sample too, where it can
		truncated string
		ties      int
		pairs     int
	}{
		{false, "exclude", 0, n - cut}, {false, "include", 0, n},
		{true, "exclude", n - cut, 0}, {true, "include", n - cut, cut},
	} {
		var rows []string
		for i := range n { // a sample goes by its row's place
			teacher := batch[i].TeacherText
			if c.copies && !p.list[i].frozen.truncated {
				teacher = p.list[i].text + " \n" // trailing blanks do not count
			}
			line, _ := json.Marshal(map[string]string{"content": batch[i].PromptText,
				"teacher_response": teacher})
			rows = append(rows, string(line))
		}
		data := filepath.Join(t.TempDir(), "rows.jsonl")
		if err := os.WriteFile(data, []byte(strings.Join(rows, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		run := filepath.Join(t.TempDir(), "run")
		m := finished(t, be, settings(config.DPO, run, "data.train_files="+data,
			fmt.Sprintf("data.train_batch_size=%d", n), "trainer.total_steps=1", "trainer.seed=6",
			"dpo.truncated="+c.truncated, fmt.Sprint("trainer.save_samples=", n)),
			config.DPO)[0].Values
		zeroRewards(t, filepath.Join(run, "samples", "step_1.jsonl"), c.pairs)
		if m["dpo/pairs"] != float64(c.pairs) ||
			math.Abs(m["dpo/tie_frac"]-float64(c.ties)/float64(n)) > 1e-12 {
			t.Errorf("%+v: %g pairs, %g ties of %d", c, m["dpo/pairs"],
				float64(n)*m["dpo/tie_frac"], n)
		}
		_, learned := m["actor/lr"]
		moved := filesOf(t, filepath.Join(run, "reference"))["model.safetensors"] != filesOf(t,
			filepath.Join(run, "global_step_1", "actor"))["model.safetensors"]
		if want := c.pairs > 0; learned != want || moved != want {
			t.Errorf("%+v: an update %v, other weights %v, want %v", c, learned, moved, want)
		}
	}
}

// zeroRewards wants rewards of 0 in the samples of a first step, where the student is still its
// reference, and as many samples with rewards as the step has pairs.
func zeroRewards(t *testing.T, name string, pairs int) {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	scored := 0
	for line := range strings.Lines(string(raw)) {
		var s struct {
			Student any `json:"student_score"` // a number, or the text NaN
			Teacher any `json:"teacher_score"`
		}
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		student, ok := s.Student.(float64)
		teacher, both := s.Teacher.(float64)
		if !ok || !both {
			continue
		}
		scored++
		if math.Abs(student) > 1e-6 || math.Abs(teacher) > 1e-6 {
			t.Errorf("%s: rewards %g and %g before the first update, want 0", name, student,
				teacher)
		}
	}
	if scored != pairs {
		t.Errorf("%s: %d samples with rewards, want those of %d pairs", name, scored, pairs)
	}
}

// What comes of a dpo run: no discriminator to train with, a student to warm up from, a
// folder that the doctor knows and export copies.
func TestAfterDPO(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "dpo")
	finished(t, be, settings(config.DPO, run, "trainer.total_steps=2"), config.DPO)
	student := filepath.Join(run, "global_step_2", "actor")
	game := settings(config.Train, filepath.Join(t.TempDir(), "train"), "trainer.resume_from="+run)
	wantError(t, openError(t, game, config.Train), config.ErrConfig, run,
		"is a dpo run and has no discriminator", "gad warmup --model "+student)
	finished(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "warmup"),
		"model.path="+student, "trainer.total_steps=1"), config.Warmup)
	x, err := doctor.Examine(vfs.OS, run)
	if err != nil || len(x.Sick) > 0 || !strings.Contains(x.String(), "dpo, step 2 of 2") {
		t.Errorf("doctor: %v\n%v", err, x)
	}
	copied := filepath.Join(t.TempDir(), "copied")
	if _, err := export.Part(vfs.OS, filepath.Dir(student), "actor", copied, "base"); err != nil {
		t.Error(err)
	}
	_, err = export.Part(vfs.OS, filepath.Dir(student), "critic", copied+"2", "base")
	wantError(t, err, config.ErrConfig, "a dpo run has no discriminator")
	// The reference is the student as it began, not as it is.
	began, now := filesOf(t, filepath.Join(run, "reference")), filesOf(t, student)
	if began["model.safetensors"] == now["model.safetensors"] ||
		began["tokenizer.json"] != now["tokenizer.json"] {
		t.Error("the reference is the trained student, or another model")
	}
	if err := os.RemoveAll(filepath.Join(run, "reference")); err != nil {
		t.Fatal(err)
	}
	wantError(t, openError(t, settings(config.DPO, run, "trainer.total_steps=3"), config.DPO), nil,
		"reference", "is missing", "another --output")
}

// Settings that make no objective are refused in one line, before anything is opened.
func TestDPOSettings(t *testing.T) {
	ready(t)
	for override, text := range map[string]string{
		"dpo.beta=0":            "dpo.beta is 0: must be above 0",
		"dpo.discopop_tau=0":    "dpo.discopop_tau is 0",
		"rollout.temperature=0": "rollout.temperature is 0",
		"dpo.loss_type=hinge dpo.label_smoothing=0.1": "label_smoothing = 0.1: this loss has none",
	} {
		c := settings(config.DPO, filepath.Join(t.TempDir(), "run"), strings.Fields(override)...)
		wantError(t, c.Validate(config.DPO), nil, text)
	}
	c := settings(config.DPO, filepath.Join(t.TempDir(), "run"))
	if err := c.Validate(config.DPO); err != nil || c.Warnings(config.DPO) != nil {
		t.Errorf("%v, warnings %q", err, c.Warnings(config.DPO))
	}
	for _, loss := range algos.DPOLossNames() { // each is a choice of the setting
		c := settings(config.DPO, filepath.Join(t.TempDir(), "run"), "dpo.loss_type="+loss)
		if err := c.Validate(config.DPO); err != nil {
			t.Errorf("%s: %v", loss, err)
		}
	}
}
