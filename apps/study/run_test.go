package study

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

// count is how many of the lines hold the text.
func count(lines []string, text string) (n int) {
	for _, l := range lines {
		if strings.Contains(l, text) {
			n++
		}
	}
	return n
}

// The stages are the command lines that a person would type, arms share what is the
// same, and a finished study runs nothing.
func TestRun(t *testing.T) {
	r := try(t)
	report := r.must(t)
	// 2 seeds: sft, filled sft, warmup, train, and 3 arms x 2 temperatures; one rehearsal.
	if got, want := len(r.ran), 2*(4+6)+1; got != want {
		t.Errorf("%d commands, want %d:\n%s", got, want, strings.Join(r.ran, "\n"))
	}
	g, err := build(r.fs, r.plan)
	if err != nil {
		t.Fatal(err)
	}
	gad := g.cells[2].last
	sft, warm := gad.parent.parent, gad.parent
	for _, want := range []string{
		"sft --model /w/student --data /w/train.arrow --output " + sft.run() +
			" --seed 1 --steps 4 --threads 4 data.max_response_length=40 actor.optim.lr=3e-3",
		"warmup --model " + sft.run() + "/global_step_4/actor --data /w/train.arrow --output " +
			warm.run() +
			" --seed 1 --critic-warmup 2 --steps 3 --threads 4 data.max_response_length=40",
		"train --resume " + warm.run() + " --data /w/train.arrow --output " + gad.run() +
			" --seed 1 --preset gad --threads 4 data.max_response_length=40",
		"eval --model " + gad.run() + "/global_step_5/actor --data /w/test.arrow --temperature 1 --seed 1 --limit 10 --max-response-length 40 --threads 4 --disc-steps 0 --json",
	} {
		if count(r.ran, want) != 1 {
			t.Errorf("not run once: %s\n%s", want, strings.Join(r.ran, "\n"))
		}
		if !strings.HasPrefix(want, "eval") &&
			!strings.Contains(report.Markdown(), "gad "+want+"\n") {
			t.Errorf("study.md lacks %s", want)
		}
	}
	// Seed by seed, arm by arm: a study that is stopped early has whole pairs.
	first := slices.IndexFunc(r.ran, func(l string) bool { return strings.Contains(l, "--seed 2") })
	if n := count(r.ran[first:], "--seed 1"); n != 0 {
		t.Errorf("%d commands of seed 1 after the first of seed 2", n)
	}
	if last := r.log.String(); !strings.Contains(last,
		"SeqKD, seed 1: sft: 4 steps, 0.04 TFLOP, took") || !strings.Contains(last, "eta ") ||
		!strings.Contains(last, "20 of 20, ") {
		t.Errorf("says\n%s", last)
	}
	before, was := len(r.ran), r.tables(t)
	r.must(t)
	if len(r.ran) != before || r.tables(t) != was {
		t.Errorf("a finished study runs %q", r.ran[before:])
	}
	if _, err := Tables(r.plan, r.options(), true); err != nil || r.tables(t) != was {
		t.Errorf("--table: %v", err)
	}
	if err := r.fs.Remove(filepath.Join(r.plan.Dir, TablesName)); err != nil {
		t.Fatal(err)
	}
	again, err := Tables(r.plan, r.options(), false)
	if _, missing := r.fs.Stat(filepath.Join(r.plan.Dir, TablesName)); err != nil ||
		!errors.Is(missing, fs.ErrNotExist) || again.Markdown() != report.Markdown() {
		t.Errorf("--table while the study runs: %v, %v", err, missing)
	}
}

// A study measures the discriminators of its games, and no others, against the model of
// eval.against.
func TestFidelityOfAStudy(t *testing.T) {
	r := try(t)
	vfs.MakeDirs(r.fs, "/w/teacher")
	vfs.WriteFile(r.fs, "/w/teacher/quality", []byte("1"))
	r.plan.Eval.Against, r.plan.Eval.Fidelity = "/w/teacher", 4
	r.must(t)
	games := 0
	for _, line := range r.ran {
		if strings.HasPrefix(line, "fidelity ") {
			games++
			if !strings.Contains(line, " --teacher /w/teacher ") ||
				!strings.Contains(line, " --n 4 ") || !strings.Contains(line, "global_step_") {
				t.Errorf("%s", line)
			}
		}
	}
	if evals := count(r.ran, " --against /w/teacher"); games == 0 || games >= evals {
		t.Errorf("%d measurements of discriminators for %d evaluations", games, evals)
	}
	got := r.tables(t)
	for _, want := range []string{" fidelity | fidelity_pairs | fidelity_fluency |",
		"\n- `fidelity`: rank correlation, within a prompt,"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	r.ran = nil
	r.plan.Eval.Fidelity = 8
	r.must(t)
	if again := count(r.ran, "fidelity "); again != games {
		t.Errorf("with other answers %d are measured, want %d", again, games)
	}
}

// Evaluations read the columns that training reads: a study whose teacher's answers have another
// column was measured on the usual one, if the file had it too.
func TestEvaluationsReadTheColumnsOfTraining(t *testing.T) {
	r := try(t)
	vfs.MakeDirs(r.fs, "/w/teacher")
	vfs.WriteFile(r.fs, "/w/teacher/quality", []byte("1"))
	r.plan.Eval.Against, r.plan.Eval.Fidelity = "/w/teacher", 4
	r.plan.Common = append(r.plan.Common, "data.content_key=question", "data.teacher_key=reply",
		"data.format=qa", "data.template=enable_thinking=false")
	r.must(t)
	for _, command := range []string{"eval ", "fidelity "} {
		for _, line := range r.ran {
			want := " --content-key question --teacher-key reply --format qa "
			if command == "eval " {
				want += "--template enable_thinking=false "
			}
			if strings.HasPrefix(line, command) && !strings.Contains(line, want) {
				t.Errorf("%s\nlacks %s", line, want)
			}
		}
		if count(r.ran, command) == 0 {
			t.Errorf("no %sis run", command)
		}
	}
}

// A study measures its students against another model, and with fresh discriminators, but
// for the rehearsal, and says which figure is what.
func TestAgainst(t *testing.T) {
	r := try(t)
	vfs.MakeDirs(r.fs, "/w/teacher")
	vfs.WriteFile(r.fs, "/w/teacher/quality", []byte("1"))
	r.plan.Eval.Against, r.plan.Eval.DiscSteps, r.plan.Eval.DiscSeeds = "/w/teacher", 100, 2
	r.must(t)
	for want, n := range map[string]int{
		" --limit 10 --max-response-length 40 --against /w/teacher --disc-seeds 2 --threads 4 --disc-steps 100 --json": 12,
		" --limit 2 --max-response-length 8 --against /w/teacher --threads 4 --disc-steps 0 --json":                    1,
	} {
		if got := count(r.ran, want); got != n {
			t.Errorf("%d of %d commands have %s:\n%s", got, n, want, strings.Join(r.ran, "\n"))
		}
	}
	got := r.tables(t)
	for _, want := range []string{
		"| arm | check | label: good | rouge_l | teacher_nll | reverse_kl | forward_kl | fluency | len_ratio | fresh_d_acc |\n",
		"\n- `reverse_kl`: KL(student || model of `--against`): at each token of the student's answers",
		"\n- `fresh_d_acc`: held-out accuracy of new discriminators; 0.5: they cannot tell student from teacher; see the fresh discriminator\n",
		`"reverse_kl_sampled": {`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	// Less of a distance is better: GAD's students are, with both seeds.
	if row := got[strings.Index(got, "| GAD - SeqKD | "):]; strings.Count(
		row[:strings.IndexByte(row, '\n')], ", 2/2") != 6 {
		t.Errorf("GAD is better in six figures: %s", row[:strings.IndexByte(row, '\n')])
	}
	for name, c := range map[string]struct {
		change func()
		want   int
	}{
		"another teacher": {func() { vfs.WriteFile(r.fs, "/w/teacher/quality", []byte("2")) },
			12 + 1},
		"other steps": {func() { r.plan.Eval.DiscSteps = 50 }, 12 + 1},
		"nothing":     {func() {}, 0},
	} {
		r.ran = nil
		c.change()
		r.must(t)
		if len(r.ran) != c.want {
			t.Errorf("%s: %d commands, want %d:\n%s", name, len(r.ran), c.want,
				strings.Join(r.ran, "\n"))
		}
	}
	r.plan.Eval.Against = "/w/nowhere"
	if _, err := r.run(); err == nil || err.Error() != "study: eval: against: /w/nowhere: no such file or folder: paths are relative to the study's file: cannot be read" {
		t.Errorf("no teacher: %v", err)
	}
}

// The ids of a study that has no environment are those that finished studies have.
func TestIDs(t *testing.T) {
	r := try(t)
	s, err := open(r.plan, r.options())
	if err != nil {
		t.Fatal(err)
	}
	last := s.cells[2].last
	e := s.evaluations(last)[0]
	if err := s.identify(e); err != nil {
		t.Fatal(err)
	}
	if last.id != "s1-train-ce9343cfcb" || e.id != "s1-test-t1-b599e88559" {
		t.Errorf("%s and %s are other ids than those of before", last.id, e.id)
	}
}

// A stage reads its teacher from the folder of its seed, whose bytes are in its id.
func TestTeacher(t *testing.T) {
	r := try(t)
	sft := r.plan.Arms[0].Stages[0]
	r.plan.Arms = append(r.plan.Arms, Arm{"OPD", []*Stage{sft, {Run: "opd", Steps: 3,
		Teacher: "/w/big-{seed}", CriticWarmup: -1}}})
	teacher := func(seed, weights string) {
		t.Helper()
		dir := "/w/big-" + seed
		if err := errors.Join(vfs.MakeDirs(r.fs, dir), vfs.WriteFile(r.fs,
			dir+"/model.safetensors", []byte(weights))); err != nil {
			t.Fatal(err)
		}
	}
	teacher("1", "one")
	teacher("2", "two")
	id := func() string {
		t.Helper()
		var b strings.Builder
		if err := DryRun(r.plan, r.options(), &b); err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(
			`gad opd --model /w/out/stages/s2-sft-\w+/run/global_step_4/actor .* ` +
				`--teacher /w/big-2 .*/(s2-opd-\w+)/`).FindStringSubmatch(b.String())
		if found == nil {
			t.Fatalf("no opd:\n%s", &b)
		}
		return found[1]
	}
	before := id()
	teacher("2", "three")
	if after := id(); after == before {
		t.Errorf("with another teacher the id is still %s", after)
	}
}

// With {student} the teacher is the student that the stage starts from, whose id is in the stage's.
func TestOwnStudent(t *testing.T) {
	r := try(t)
	sft := r.plan.Arms[0].Stages[0]
	opd := func(teacher string) *Stage {
		return &Stage{Run: "opd", Steps: 3, Teacher: teacher, CriticWarmup: -1}
	}
	vfs.MakeDirs(r.fs, "/w/other")
	vfs.WriteFile(r.fs, "/w/other/model.safetensors", []byte("other"))
	r.plan.Arms = append(r.plan.Arms, Arm{"itself", []*Stage{sft, opd(ownStudent)}},
		Arm{"other", []*Stage{sft, opd("/w/other")}}, Arm{"at once", []*Stage{opd(ownStudent)}})
	var b strings.Builder
	if err := DryRun(r.plan, r.options(), &b); err != nil {
		t.Fatal(err)
	}
	own := regexp.MustCompile(
		`gad opd --model (/w/\S+) .*--teacher (/w/\S+) .*/(s2-opd-\w+)/`).
		FindAllStringSubmatch(b.String(), -1)
	if len(own) != 3 {
		t.Fatalf("%d of 3 stages:\n%s", len(own), &b)
	}
	ids := map[string]bool{}
	for i, m := range own {
		ids[m[3]] = true
		if same := m[1] == m[2]; same != (i != 1) {
			t.Errorf("%s has the teacher %s", m[1], m[2])
		}
	}
	if len(ids) != 3 || !strings.Contains(own[0][2], "/s2-sft-") {
		t.Errorf("%v: %s", ids, own[0][2])
	}
}

// In a study with an environment the game is played in it, but for stages that are off it, and
// students are evaluated by their episodes.
func TestEnvironment(t *testing.T) {
	r := try(t)
	sft := r.plan.Arms[0].Stages[0]
	r.plan.Env = "doors"
	r.plan.Common = append(r.plan.Common, "env.max_tokens=512", "env.max_turns=12")
	off := func(run string) *Stage {
		return &Stage{Run: run, Steps: 2, CriticWarmup: -1, NoEnv: true}
	}
	in := func(run string) *Stage { return &Stage{Run: run, Steps: 2, CriticWarmup: -1} }
	r.plan.Arms = []Arm{{"SeqKD", []*Stage{sft}},
		{"GAD", []*Stage{sft, in("warmup"), in("train")}},
		{"off", []*Stage{sft, off("warmup"), off("train")}},
		{"left", []*Stage{sft, in("warmup"), off("train")}}}
	r.plan.Seeds, r.plan.Budget = []uint64{1}, Budget{}
	report := r.must(t)
	of := func(arm int) (warm, train *node) {
		g, err := build(r.fs, r.plan)
		if err != nil {
			t.Fatal(err)
		}
		return g.cells[arm].last.parent, g.cells[arm].last
	}
	warm, train := of(1)
	warmOff, trainOff := of(2)
	_, left := of(3)
	const settings = " --steps 2 --threads 4 data.max_response_length=40 env.max_tokens=512 env.max_turns=12"
	model := warm.parent.run() + "/global_step_4/actor"
	for _, want := range []string{
		"warmup --model " + model + " --data /w/train.arrow --output " + warm.run() +
			" --seed 1 --env doors" + settings,
		"train --resume " + warm.run() + " --data /w/train.arrow --output " + train.run() +
			" --seed 1 --env doors" + settings,
		"warmup --model " + model + " --data /w/train.arrow --output " + warmOff.run() +
			" --seed 1 --turns each" + settings,
		"train --resume " + warmOff.run() + " --data /w/train.arrow --output " + trainOff.run() +
			" --seed 1 --turns each" + settings,
		"train --resume " + warm.run() + " --data /w/train.arrow --output " + left.run() +
			" --seed 1 --env  --turns each" + settings, // an empty command
		"eval --model " + train.run() + "/global_step_2/actor --data /w/test.arrow --temperature 0 --seed 1 --limit 10 --max-response-length 40 --env doors --max-tokens 512 --max-turns 12 --threads 4 --json",
	} {
		if !slices.Contains(r.ran, want) {
			t.Errorf("not run: %s\n%s", want, strings.Join(r.ran, "\n"))
		}
	}
	got := r.tables(t)
	for _, want := range []string{
		"| arm | success | label: key | label: lost | reward | turns | tokens | invalid_frac | cut_frac | faults |\n",
		"\n- `invalid_frac`: share of turns that the environment called invalid\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	// 6 of 9 episodes that are not broken; GAD succeeds more often
	cell := report.Tables[0].Rows[0].Cells["label: key"]
	if cell == nil || cell.Mean != 6.0/9 {
		t.Errorf("the share of a label is %+v", cell)
	}
	d := report.Tables[0].Differences[0]
	if w := d.Cells["success"].Wins; d.Arm != "GAD" || w == nil || *w != 1 {
		t.Errorf("success of %s: %+v", d.Arm, d.Cells["success"])
	}
	// the environment is in the ids of the game and of the evaluations, not in those of SFT
	for _, c := range []struct {
		env  string
		want int
	}{{"doors", 0}, {"rooms", 3 + 4*2 + 1}} {
		r.ran, r.plan.Env = nil, c.env
		r.must(t)
		if len(r.ran) != c.want {
			t.Errorf("%s: %d commands, want %d:\n%s", c.env, len(r.ran), c.want,
				strings.Join(r.ran, "\n"))
		}
	}
}

// A changed file runs what it changes, and nothing else.
func TestReuse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*trial)
		want   int // commands that are run again, the rehearsal among them
	}{
		"nothing": {func(r *trial) {}, 0},
		"a name": {
			func(r *trial) {
				r.plan.Name, r.plan.Arms[2].Name, r.plan.Budget.Like = "x", "game",
					"game"
			}, 0},
		"metrics": {func(r *trial) { r.plan.Metrics = []string{"reward/mean"} }, 0},
		"one more temperature": {
			func(r *trial) { r.plan.Eval.Temperatures = []float64{1, 0, 0.5} }, 2*3 + 1},
		"a checker":     {func(r *trial) { r.plan.Eval.Checker = "check" }, 2*6 + 1},
		"one more seed": {func(r *trial) { r.plan.Seeds = []uint64{1, 2, 3} }, 10 + 1},
		// and what is filled like it
		"the game's settings": {
			func(r *trial) { r.plan.Arms[2].Stages[2].Set = []string{"actor.optim.lr=1"} },
			2*(1+2+1+2) + 1},
		"the shared settings": {func(r *trial) { r.plan.Common = []string{"rollout.n=2"} },
			2*10 + 1},
		"the student": {
			func(r *trial) { vfs.WriteFile(r.fs, "/w/student/quality", []byte("0.2")) }, 2*10 + 1},
		"a student moved": {
			func(r *trial) { r.fs.Rename("/w/student", "/w/b"); r.plan.Model = "/w/b" }, 0},
		"training data": {
			func(r *trial) { vfs.WriteFile(r.fs, "/w/train.arrow", []byte("more")) }, 2*10 + 1},
		"held-out data": {
			func(r *trial) { vfs.WriteFile(r.fs, "/w/test.arrow", []byte("more")) }, 2*6 + 1},
		"a fixed budget":        {func(r *trial) { r.plan.Budget = Budget{TFLOP: 1} }, 2*(1+2) + 1},
		"steps of a shared one": {func(r *trial) { r.plan.Arms[0].Stages[0].Steps = 5 }, 2*10 + 1},
	} {
		r := try(t)
		r.must(t)
		r.ran = nil
		c.change(r)
		r.must(t)
		if len(r.ran) != c.want {
			t.Errorf("%s: %d commands, want %d:\n%s", name, len(r.ran), c.want,
				strings.Join(r.ran, "\n"))
		}
	}
}

// A study that is interrupted after any number of steps and run again ends with the
// tables of one that was not.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	whole := try(t)
	whole.must(t)
	want := whole.tables(t)
	stride := 5
	if testing.Short() {
		stride = 15
	}
	for at := 1; at <= whole.steps; at += stride {
		for way, jobs := range []int{1, 3} {
			if !hostile.InTurn(at/stride, way, 2) {
				continue
			}
			r := try(t)
			r.stopAt, r.jobs = at, jobs
			report, err := r.run()
			if !errors.Is(err, ErrInterrupted) {
				t.Fatalf("stopped at step %d of %d, %d jobs: %v", at, whole.steps, jobs, err)
			}
			if report.Missing == 0 ||
				!strings.Contains(r.tables(t), "not done yet: run the study's command again") {
				t.Errorf("stopped at step %d: nothing is missing", at)
			}
			r.jobs = 1
			r.must(t)
			if got := r.tables(t); jobs == 1 && got != want {
				t.Fatalf("stopped at step %d of %d: the tables differ:\n%s\nwant\n%s", at,
					whole.steps, got, want)
			} else if jobs > 1 && withoutThreads(got) != withoutThreads(want) {
				t.Fatalf("stopped at step %d of %d with %d jobs: the tables differ:\n%s\nwant\n%s",
					at, whole.steps, jobs, got, want)
			}
			if r.steps != whole.steps {
				t.Errorf("stopped at step %d: %d steps in all, want %d: something was run twice",
					at, r.steps, whole.steps)
			}
		}
	}
}

// withoutThreads leaves out how many threads a command had, which decides nothing.
func withoutThreads(s string) string {
	for n := range 9 {
		s = strings.ReplaceAll(s, fmt.Sprintf(" --threads %d", n), "")
	}
	return s
}

// Power lost, or kill -9, after any operation on the disk: the same command goes on,
// and the tables are those of a study that was left alone.
func TestCrash(t *testing.T) {
	t.Parallel()
	plan := func() *Plan {
		p := twoArms()
		p.Seeds = []uint64{1}
		p.Eval.Temperatures = []float64{1}
		return p
	}
	whole := try(t)
	whole.plan = plan()
	counting := vfstest.NewError(whole.fs, math.MaxInt, true)
	whole.fs = counting
	whole.must(t)
	ops := counting.Ops()
	want := whole.tables(t)
	if ops < 200 {
		t.Fatalf("only %d operations", ops)
	}
	stride := 1
	if testing.Short() {
		stride = 13
	} else if !hostile.Long() {
		stride = 7
	}
	for at := 0; at < ops; at += stride {
		disk := world(t)
		r := &trial{fake: &fake{fs: vfstest.NewError(disk, at, true)}, plan: plan(), jobs: 1}
		if _, err := r.run(); err == nil {
			t.Fatalf("operation %d of %d failed, and the study did not", at, ops)
		}
		r.fs = disk.CrashClone(50, uint64(at))
		if _, err := r.run(); err != nil {
			t.Fatalf("after operation %d of %d: %v\n%s", at, ops, err, &r.log)
		}
		if got := r.tables(t); got != want {
			t.Fatalf("after operation %d of %d: the tables differ:\n%s\nwant\n%s", at, ops, got,
				want)
		}
	}
	t.Logf("%d operations", ops)
}

// steps: fill comes within 3 % of the budget, be it operations, another arm's, or
// seconds; where steps cost unequally the probe takes more of them.
func TestFill(t *testing.T) {
	for name, c := range map[string]struct {
		budget Budget
		noise  float64
		steps  string
	}{
		"like":    {Budget{Like: "GAD"}, 0, "54"}, // 4*.01 + 3*.05 + 5*.07 = .54
		"tflop":   {Budget{TFLOP: 2}, 0, "200"},
		"seconds": {Budget{Seconds: 300}, 0, "150"},
		"noisy":   {Budget{TFLOP: 20}, 0.05, ""},
	} {
		r := try(t)
		r.plan.Budget, r.noise = c.budget, c.noise
		report := r.must(t)
		cost := report.Costs[1]
		if c.steps != "" && cost.Steps != c.steps || cost.MinShare < 0.97 || cost.MaxShare > 1.03 {
			t.Errorf("%s: %s steps, share %g to %g", name, cost.Steps, cost.MinShare, cost.MaxShare)
		}
		if probes := 2; c.noise == 0 && r.probed != probes || c.noise > 0 && r.probed != 2*probes {
			t.Errorf("%s: %d probes", name, r.probed)
		}
		if list, err := r.fs.ReadDir("/w/out/stages"); err != nil || len(list) != 8 {
			t.Errorf("%s: %d stages: %v", name, len(list), err)
		} else {
			for _, e := range list {
				if _, err := r.fs.Stat("/w/out/stages/" + e.Name() + "/" + probeName); err == nil {
					t.Errorf("%s: the probe of %s is left", name, e.Name())
				}
			}
		}
	}
	// A budget that the stages before it have used up is an error that would come again.
	r := try(t)
	r.plan.Budget = Budget{TFLOP: 0.02}
	r.plan.Arms[1].Stages = append(r.plan.Arms[0].Stages, r.plan.Arms[1].Stages...)
	report := r.must(t)
	if why := report.Runs[1].Why; report.Runs[1].State != "failed" ||
		!strings.Contains(why, "earlier stages used 0.04 of the budget of 0.02") {
		t.Errorf("%s: %s", report.Runs[1].State, why)
	}
}

// An arm that fails does not stop the others; the means say how many seeds they have.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		command string // that fails with seed 2
		err     error
		final   bool
		// commands when the study is run again, all being well: rehearsal, stages, evaluations
		again int
	}{
		"numerical": {"train ", fmt.Errorf("the numbers broke down: %w", ErrFinal), true, 1},
		// the game, and what is filled like it
		"disk":       {"train ", errors.New("disk full"), false, 1 + 1 + 2 + 1 + 2},
		"evaluation": {"eval ", errors.New("the checker failed"), false, 1 + 6},
	} {
		r := try(t)
		r.fail = func(line string) error {
			if strings.HasPrefix(line, c.command) && strings.Contains(line, "--seed 2") {
				return c.err
			}
			return nil
		}
		report, err := r.run()
		if c.final != (err == nil) || report == nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !c.final && !strings.Contains(err.Error(), "run the same command to try them again") {
			t.Errorf("%s: %v", name, err)
		}
		failed := 0
		for _, run := range report.Runs {
			if run.State == "failed" {
				failed++
				if run.Seed != 2 || run.Why == "" {
					t.Errorf("%s: failed: %+v", name, run)
				}
			}
		}
		md := report.Markdown()
		if failed == 0 || !strings.Contains(md, "## Failed") || !strings.Contains(md, "(1)") {
			t.Errorf("%s: %d failed:\n%s", name, failed, md)
		}
		r.fail, r.ran = nil, nil
		report, err = r.run()
		if err != nil || len(r.ran) != c.again {
			t.Errorf("%s: again: %v: %d commands, want %d:\n%s", name, err, len(r.ran), c.again,
				strings.Join(r.ran, "\n"))
		}
		if got := strings.Contains(report.Markdown(), "## Failed"); got != c.final {
			t.Errorf("%s: again: failed: %v", name, got)
		}
	}
}

// What is told wrong is found before anything is trained.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*trial)
		want   string
	}{
		"setting": {func(r *trial) { r.plan.Arms[2].Stages[1].Set = []string{"wrong=1"} }, `study: arm "GAD", stage warmup: wrong is no setting`},
		"data":    {func(r *trial) { r.plan.Data = "/w/none" }, "study: data: /w/none: no such file or folder: paths are relative to the study's file: cannot be read"},
		"eval":    {func(r *trial) { r.plan.Eval.Sets[0].Path = "/w/none" }, "study: eval: test: /w/none: no such file or folder: paths are relative to the study's file: cannot be read"},
		"checker": {func(r *trial) {
			r.fail = func(l string) error {
				if strings.HasPrefix(l, "eval") {
					return errors.New("checker: exit status 1")
				}
				return nil
			}
		}, "study: eval: test: trial on two rows before any training: checker: exit status 1"},
		"jobs": {func(r *trial) { r.jobs, r.needs = 4, Needs{Bytes: 4e9, Free: 10e9} }, "study: --jobs 4: one command takes up to 4 GB, 10 GB are free: does not fit in memory: use --jobs 2"},
	} {
		r := try(t)
		c.change(r)
		if _, err := r.run(); err == nil || err.Error() != c.want {
			t.Errorf("%s: got  %v\nwant %s", name, err, c.want)
		}
		if r.steps > 0 {
			t.Errorf("%s: %d steps were taken", name, r.steps)
		}
	}
}

// As many commands run at a time as were asked for, or as cores, arms and memory
// allow, and they share the cores.
func TestJobs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		jobs    int
		needs   Needs
		device  string
		want    int
		threads string
	}{
		{1, Needs{}, "", 1, "4"}, {2, Needs{}, "", 2, "2"}, {3, Needs{}, "", 3, "1"},
		{0, Needs{}, "", 4, "1"},
		{0, Needs{Bytes: 4e9, Free: 10e9}, "", 2, "2"},
		{0, Needs{Bytes: 4e9, Free: 3e9}, "", 1, "4"}, {0, Needs{}, "cuda", 1, "4"},
	} {
		// On a busy machine commands that are begun together may miss each other: fewer than
		// wanted is tried again with longer ones, more is wrong at once.
		var r *trial
		for hold := 3 * time.Millisecond; hold < time.Second; hold *= 10 {
			r = try(t)
			r.jobs, r.needs, r.hold, r.plan.Device = c.jobs, c.needs, hold, c.device
			if r.must(t); r.max >= c.want {
				break
			}
		}
		if r.max != c.want || count(r.ran, " --threads "+c.threads+" ") != len(r.ran) {
			t.Errorf("%+v: %d at a time; %s", c, r.max, r.ran[len(r.ran)-1])
		}
	}
}

func TestDryRun(t *testing.T) {
	r := try(t)
	r.needs = Needs{Steps: 10, StepSeconds: 2}
	var b strings.Builder
	if err := DryRun(r.plan, r.options(), &b); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"gad sft --model /w/student ", " --steps FILL ",
		"/run/global_step_4/actor ", "gad train --resume /w/out/stages/s1-warmup-",
		"8 stages and 12 evaluations to do, 1 at a time with 4 threads each; about 2m0s and 2 stages that fill the budget of as many FLOPs as GAD, without evaluations\n"} {
		if !strings.Contains(b.String(), text) {
			t.Errorf("does not say %q:\n%s", text, &b)
		}
	}
	if _, err := r.fs.Stat(r.plan.Dir); len(r.ran) > 0 || err == nil {
		t.Error("something was run or written")
	}
}
