//go:build unix

package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/checkpoint"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/plan"
	"gad/trainer/quality"
)

// nth is a checker that gives every row one score a run: score[i] in its i-th run. The
// first is the one in which it is tried.
func nth(t *testing.T, score ...int) string {
	t.Helper()
	count := filepath.Join(t.TempDir(), "count")
	list := strings.Trim(fmt.Sprint(score), "[]")
	return fmt.Sprintf(`n=$(($(cat %s 2>/dev/null || echo 0)+1)); echo $n > %s; set -- %s; shift $((n-1)); while read -r line; do echo '{"score":'$1'}'; done`, count, count, list)
}

// The checkpoint that the checker likes best is kept, where the other metrics would
// keep another.
func TestKeepBestByChecker(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	rows := finished(t, be, settings(config.SFT, run, "trainer.total_steps=5",
		"trainer.save_freq=1", "trainer.max_ckpt_to_keep=1", "trainer.keep_best=val/check",
		"data.val_files="+fixed.val, "trainer.val_before_train=false",
		"trainer.checker="+nth(t, 0, 1, 3, 9, 2, 4)), config.SFT)
	for i, want := range []float64{1, 3, 9, 2, 4} {
		if got := rows[i].Values["val/check"]; got != want {
			t.Errorf("step %d: val/check %g, want %g", i+1, got, want)
		}
	}
	if got := steps(t, run); !slices.Equal(got, []int{3, 5}) {
		t.Errorf("checkpoints %v, want the one that was checked best, 3, and the last", got)
	}
}

// By hand: groups of two, three and one answer; the second is flat.
func TestCheckersShare(t *testing.T) {
	group := []int{0, 1, 0, 1, 1, 2}
	z := zWithin([]float64{1, 0.1, 3, 0.1, 0.1, 7}, group)
	r2 := math.Sqrt(0.5) // (1-2)/sqrt(2)
	want := []float64{-r2, 0, r2, 0, 0, 0}
	for s := range want {
		if math.Abs(z[s]-want[s]) > 1e-6 {
			t.Errorf("z %v, want %v", z, want)
		}
	}
	// what turns' rewards are divided by: never by a rounding error
	by := spreadWithin([]float64{1, 0.1, 3, 0.1, 0.1, 7}, group)
	want = []float64{2 * r2, 1, 2 * r2, 1, 1, 1}
	for s := range want {
		if math.Abs(by[s]-want[s]) > 1e-12 {
			t.Errorf("spread %v, want %v", by, want)
		}
	}
}

// With a checker_weight of 1 the reward is the check's z, and the advantages do not
// depend on the discriminator; with less they do; with 0 nothing is asked.
func TestCheckerWeight(t *testing.T) {
	be := ready(t)
	for _, w := range []float64{0, 0.5, 1} {
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			"trainer.total_steps=1", fmt.Sprint("algorithm.checker_weight=", w),
			"trainer.checker="+byLength, "data.val_files="+fixed.val), config.Train)
		m := Metrics{}
		r := scored(t, tr, m)
		v := listsOf(r)
		reward := gameOf(tr).termSums(m, r)
		if w == 0 {
			if _, ok := m["reward/check_mean"]; ok || !math.IsNaN(v.checkA[0]) ||
				!slices.Equal(reward, v.scoreA) {
				t.Errorf("weight 0: reward %v of scores %v, metrics %v", reward, v.scoreA, m)
			}
			continue
		}
		sum := 0.0
		for s, seq := range v.seqs {
			p := v.groupS[s]
			answer := strings.ReplaceAll(tr.tok.Decode(seq.Response(), true), `"`, `\"`)
			if strings.ContainsFunc(answer,
				func(c rune) bool { return c < ' ' || c > '~' || c == '\\' }) {
				continue // escaped in ways that this test does not repeat
			}
			line := fmt.Sprintf(`{"row":%d,"prompt":%q,"content":[{"role":"user","content":%q}],"response":"%s","teacher_response":%q,"truncated":%v}`,
				v.batch[p].Index, v.batch[p].PromptText, v.batch[p].PromptText, answer,
				v.batch[p].TeacherText, v.cutS[s])
			if want := float64(len(line) % 7); v.checkA[s] != want {
				t.Errorf("answer %d: checked %g, want %g for %s", s, v.checkA[s], want, line)
			}
		}
		for _, x := range v.checkA {
			sum += x
		}
		if got, want :=
			m["reward/check_mean"], sum/float64(len(v.checkA)); math.Abs(got-want) > 1e-12 ||
			len(v.checkA) != 16 {
			t.Errorf("reward/check_mean %g, want %g", got, want)
		}
		if w == 1 {
			for s, z := range zWithin(v.checkA, v.groupS) {
				if reward[s] != float32(z) {
					t.Errorf("answer %d: reward %g, want the check's z %g", s, reward[s], z)
				}
			}
		}
		before := slices.Clone(reward)
		for s, a := range r.answers() {
			a.score = float32(s * s % 11)
		}
		if after := gameOf(tr).termSums(m, r); slices.Equal(after, before) != (w == 1) {
			t.Errorf("weight %g: rewards %v, with other scores %v", w, before, after)
		}
	}
}

// By hand: an answer without a score takes the mean of its prompt's others, a prompt without any
// the mean of all.
func TestImputeScores(t *testing.T) {
	none := math.NaN()
	group := []int{0, 0, 0, 1, 1, 2, 2}
	for _, c := range []struct{ scores, want []float64 }{
		{[]float64{1, 2, 3, 4, 5, 6, 7}, []float64{1, 2, 3, 4, 5, 6, 7}},
		{[]float64{1, none, 4, none, none, 0, 1}, []float64{1, 2.5, 4, 1.5, 1.5, 0, 1}},
		{[]float64{none, none, none, none, none, none, none}, make([]float64, 7)},
	} {
		if got := imputeScores(c.scores, group); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.scores, got, c.want)
		}
	}
}

// A checker that has no score for every third line, and for none of a prompt's: the run goes on,
// says how many they are, and they move no advantage.
func TestUncheckedAnswers(t *testing.T) {
	be := ready(t)
	third := `while IFS= read -r line; do n=$((n+1)); if test $n -gt 4 -a $((n%3)) != 0; then echo $((${#line} % 7)); else echo null; fi; done`
	tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
		"trainer.total_steps=1", "trainer.checker="+third, "data.val_files="+fixed.val,
		"algorithm.terms=check + 0.5*rouge_l@wrong", "algorithm.right_at=9"), config.Train)
	m := Metrics{}
	r := scored(t, tr, m)
	v := listsOf(r)
	var none []int
	sum := 0.0
	for a, x := range v.checkA {
		if math.IsNaN(x) {
			none = append(none, a)
		} else {
			sum += x
		}
	}
	if want := []int{0, 1, 2, 3, 5, 8, 11, 14}; !slices.Equal(none, want) {
		t.Fatalf("answers %v have no score, want %v", none, want)
	}
	sumA := gameOf(tr).termSums(m, r)
	if got, want := m["reward/unchecked_frac"], 0.5; got != want {
		t.Errorf("reward/unchecked_frac %g, want %g", got, want)
	}
	if got, want := m["reward/check_mean"], sum/8; math.Abs(got-want) > 1e-12 {
		t.Errorf("reward/check_mean %g, want %g", got, want)
	}
	for a := range 4 { // the prompt without a score
		if math.Abs(float64(sumA[a])-sum/8) > 1e-6 {
			t.Errorf("answer %d: %g, want the mean %g", a, sumA[a], sum/8)
		}
	}
	if m["reward/wrong_frac"] != 0.5 { // whoever has no score is not wrong
		t.Errorf("reward/wrong_frac %g of answers, of which half have a score below right_at",
			m["reward/wrong_frac"])
	}
	// A validation has four rows: they are those that third has no score for.
	for command, want := range map[string]struct{ reward, val float64 }{byLength: {0, 0},
		third: {0.5, 1}, "echo why >&2; sed 's/.*/null/'": {1, 1}} {
		run := filepath.Join(t.TempDir(), "run")
		rows := finished(t, be, settings(config.Train, run,
			"trainer.total_steps=2", "trainer.test_freq=1", "algorithm.checker_weight=0.5",
			"data.val_files="+fixed.val, "trainer.checker="+command), config.Train)
		for i, row := range rows {
			v := row.Values
			_, checked := v["reward/check_mean"]
			_, validated := v["val/check"]
			if len(rows) != 2 || v["reward/unchecked_frac"] != want.reward ||
				v["val/unchecked_frac"] != want.val || checked == (want.reward == 1) ||
				validated == (want.val == 1) {
				t.Errorf("%s: step %d: %v", command, i+1, v)
			}
		}
		log, err := os.ReadFile(filepath.Join(run, "log.jsonl"))
		if said := strings.Count(string(log), "checker: 8 of 16 answers have no score"); err != nil ||
			(said == 2) != (want.reward == 0.5) ||
			strings.Contains(string(log), "checker: 16 of 16 answers have no score; it said: why") !=
				(want.reward == 1) {
			t.Errorf("%s: %v, the log has\n%s", command, err, log)
		}
	}
}

// A run whose reward has a checker in it, stopped, killed, or broken off by the
// checker's failure, and gone on with, equals one that was not.
func TestResumeWithChecker(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	broken := filepath.Join(t.TempDir(), "broken")
	slow := filepath.Join(t.TempDir(), "slow")
	command := fmt.Sprintf(`if test -e %s; then echo 'no licence' >&2; exit 4; fi; if test -e %s; then echo 1 > %s.begun; sleep 60; fi; %s`, broken, slow, slow, byLength)
	overrides := []string{"trainer.total_steps=5", "trainer.save_freq=2", "trainer.test_freq=1",
		"trainer.keep_best=val/check", "trainer.max_ckpt_to_keep=2", "data.val_files=" + fixed.val,
		"algorithm.checker_weight=0.5", "algorithm.filter_groups.enable=true",
		"trainer.checker=" + command}
	whole := filepath.Join(t.TempDir(), "whole")
	finished(t, be, settings(config.Train, whole, overrides...), config.Train)
	want := record(t, whole, 5)

	run := filepath.Join(t.TempDir(), "run")
	cfg := settings(config.Train, run, overrides...)
	if err := part(t, cfg, config.Train, 1, false); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	if err := part(t, cfg, config.Train, 2, true); err != nil { // dies after the third step
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	err := play(be, cfg, config.Train)
	wantError(t, err, nil, "trainer: step ", fmt.Sprintf("checker: %q: row ", command),
		"has no score: printed 0 of ",
		"ended with exit status 4: must end with exit status 0; it said \"no licence\"")
	if strings.Contains(err.Error(), "\n") || errors.Is(err, ErrNumerical) ||
		errors.Is(err, ErrInterrupted) {
		t.Errorf("a failed checker: %v", err)
	}
	if err := errors.Join(os.Remove(broken), os.WriteFile(slow, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for range 12000 {
			if _, err := os.Stat(slow + ".begun"); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
	}()
	tr := opened(t, be, cfg, config.Train)
	begun := time.Now()
	if err := tr.Run(ctx); !errors.Is(err, ErrInterrupted) {
		t.Fatalf("interrupted while a checker runs: %v, want ErrInterrupted", err)
	}
	if d := time.Since(begun); d > time.Minute {
		t.Errorf("interrupted after %v", d)
	}
	if err := errors.Join(tr.Close(), os.Remove(slow)); err != nil {
		t.Fatal(err)
	}
	finished(t, be, cfg, config.Train)
	same(t, record(t, run, 5), want)
}

// A checker that fails in a validation, or answers garbage in a step, stops the run
// and leaves its last checkpoint good.
func TestCheckerFailureSavesNothing(t *testing.T) {
	be := ready(t)
	for name, c := range map[string]struct {
		overrides []string
		want      string
	}{
		"validation": {[]string{"trainer.checker=" + nth(t, 0, 1, 2) + "; test $n -lt 3 || exit 9"},
			"trainer: step 2: validation: checker: "},
		"step": {[]string{"algorithm.checker_weight=1", "trainer.test_freq=0",
			"trainer.checker=" + nth(t, 0, 1, 2) + "; test $n -lt 3 || echo NaN"},
			"trainer: step 2: checker: "},
	} {
		run := filepath.Join(t.TempDir(), "run")
		cfg := settings(config.Train, run,
			append(
				[]string{"trainer.total_steps=3", "trainer.save_freq=1", "trainer.test_freq=1",
					"trainer.val_before_train=false", "data.val_files=" + fixed.val},
				c.overrides...)...)
		if name == "step" {
			cfg.Data.ValFiles = nil
		}
		err := play(be, cfg, config.Train)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if _, dir, notes, err := checkpoint.Latest(vfs.OS, run); err != nil ||
			filepath.Base(dir) != "global_step_1" || len(notes) > 0 {
			t.Errorf("%s: latest checkpoint %s, %v, %v, want the one of step 1", name, dir, notes,
				err)
		}
	}
}

// val/held_out_d by hand from the answers and the scores; the figure can choose the
// checkpoint, and a plan counts the memory.
func TestHeldOutCritic(t *testing.T) {
	be := ready(t)
	held := filepath.Join(fixed.warmup, "global_step_3", "critic")
	cfg := settings(config.SFT, filepath.Join(t.TempDir(), "run"), "trainer.total_steps=1",
		"data.val_files="+fixed.val, "trainer.val_rows=20", "trainer.held_out_critic="+held)
	tr := opened(t, be, cfg, config.SFT)
	m := Metrics{}
	if err := tr.validate(m); err != nil {
		t.Fatal(err)
	}
	j, err := quality.Evaluate(tr.actor.Model(), tr.tok, tr.val.set, tr.val.rows,
		quality.Options{MaxPrompt: 64, MaxResponse: 14, Seed: 1, Slots: 8, MaxTokens: 512})
	if err != nil {
		t.Fatal(err)
	}
	judge := opened(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "w"),
		"trainer.total_steps=1", "model.reward_path="+held), config.Warmup)
	scoreS, scoreP := scoresOf(t, judge, j.Seqs), scoresOf(t, judge, j.Batch.Teachers())
	sum, n, better := 0.0, 0.0, 0
	for p := range scoreS {
		if j.Batch[p].TeacherCut {
			continue
		}
		n++
		if slices.Equal(j.Seqs[p].IDs, j.Batch[p].Teacher.IDs) {
			sum += 0.5
		} else if scoreS[p] >= scoreP[p] {
			sum++
			better++
		}
	}
	if got := m["val/held_out_d"]; got != sum/n || better == 0 || better == 20 {
		t.Errorf("val/held_out_d %g, want %g of %g rows (%d better)", got, sum/n, n, better)
	}

	// A row whose teacher is cut counts nothing; a cut answer of the student counts.
	j.Truncated = slices.Repeat([]bool{true}, len(j.Seqs))
	cut := slices.IndexFunc(j.Batch, func(r encode.Row) bool { return !r.TeacherCut })
	j.Batch[cut].TeacherCut = true
	if !slices.Equal(j.Seqs[cut].IDs, j.Batch[cut].Teacher.IDs) && scoreS[cut] >= scoreP[cut] {
		sum--
	} else if slices.Equal(j.Seqs[cut].IDs, j.Batch[cut].Teacher.IDs) {
		sum -= 0.5
	}
	err = tr.judges.heldOutShare(m, j)
	if got := m["val/held_out_d"]; err != nil || got != sum/(n-1) {
		t.Errorf("with one teacher cut: val/held_out_d %g, %v, want %g", got, err, sum/(n-1))
	}

	// The very same answers count one half each.
	j.Seqs = slices.Clone(j.Batch.Teachers())
	if err := tr.judges.heldOutShare(m, j); err != nil || m["val/held_out_d"] != 0.5 {
		t.Errorf("a student that says what the teacher says: %g, %v, want 0.5", m["val/held_out_d"],
			err)
	}

	run := filepath.Join(t.TempDir(), "best")
	rows := finished(t, be, settings(config.SFT, run, "trainer.total_steps=3",
		"trainer.save_freq=1", "trainer.max_ckpt_to_keep=1", "trainer.keep_best=val/held_out_d",
		"data.val_files="+fixed.val, "trainer.val_rows=40", "trainer.held_out_critic="+held,
		"actor.optim.lr=0.03"), config.SFT)
	best := slices.MaxFunc(rows, func(a, b report.Row) int { // the first of the largest
		return cmp.Compare(a.Values["val/held_out_d"], b.Values["val/held_out_d"])
	})
	kept := []int{best.Step, 3}
	if got := steps(t, run); !slices.Equal(got, slices.Compact(kept)) {
		t.Errorf("checkpoints %v, want the best by val/held_out_d, %d, and the last", got,
			best.Step)
	}

	planned, err := plan.New(nil, be, 1<<40, vfs.OS, cfg, config.SFT)
	if err != nil {
		t.Fatal(err)
	}
	without := cfg
	without.Trainer.HeldOutCritic = ""
	less, err := plan.New(nil, be, 1<<40, vfs.OS, without, config.SFT)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(planned.Memory,
		func(i plan.Item) bool {
			return i.Name == "held-out critic: weights" &&
				i.Bytes > 10_000
		}) || plan.Total(planned.Memory) <= plan.Total(less.Memory) {
		t.Errorf("the planned does not count the held-out discriminator:\n%s", planned)
	}
}

// Settings of the judges that cannot be meant, and one that is rarely right.
func TestJudgeSettings(t *testing.T) {
	ready(t)
	critic := filepath.Join(fixed.warmup, "global_step_3", "critic")
	for want, overrides := range map[string][]string{
		"algorithm.checker_weight 0.5 needs trainer.checker": {
			"algorithm.checker_weight=0.5"},
		"trainer.checker has nothing to check": {
			"trainer.checker=true"},
		"trainer.held_out_critic needs data.val_files": {
			"trainer.held_out_critic=" + critic},
		"trainer.keep_best val/check needs trainer.checker": {
			"trainer.keep_best=val/check", "data.val_files=" + fixed.val},
		"trainer.keep_best val/held_out_d needs trainer.held_out_critic": {
			"trainer.keep_best=val/held_out_d", "data.val_files=" + fixed.val},
		"is a language model, not a discriminator with a value head": {
			"trainer.held_out_critic=" + fixed.student, "data.val_files=" + fixed.val},
	} {
		run := filepath.Join(t.TempDir(), "run")
		err := openError(t, settings(config.Train, run,
			append(overrides, "trainer.total_steps=1")...), config.Train)
		wantError(t, err, nil, want)
		absent(t, run)
	}
	c := settings(config.Train, "run", "trainer.held_out_critic="+critic)
	own := func(w string) bool { return strings.Contains(w, "this run's own discriminator") }
	if w := c.Warnings(config.Train); !slices.ContainsFunc(w, own) {
		t.Errorf("a held-out discriminator of the run itself: warnings %q", w)
	}
	c.Trainer.Resume = filepath.Join(fixed.root, "elsewhere")
	if w := c.Warnings(config.Train); slices.ContainsFunc(w, own) {
		t.Errorf("a held-out discriminator of another run: warnings %q", w)
	}
}
