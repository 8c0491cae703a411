package trainer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cost"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/checker"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// ownCoach are the settings of a student that writes the notes on its own answers, and that has
// learned to end what it writes.
func ownCoach(more ...string) []string {
	return append([]string{"model.path=" + fixed.student, "coach.command=@student",
		"coach.question={prompt} {answer}", "coach.template={prompt} Hint: {notes}",
		"coach.max_tokens=24"}, more...)
}

// A student's notes teach as a program's do: a run with a program that prints them has its bits,
// whichever the loss. The teacher reads notes on some answers, and none on others.
func TestOwnNotesAreAPrograms(t *testing.T) {
	be := ready(t)
	for _, more := range []string{"teacher.loss=topk coach.plain=0.25 teacher.renew=2",
		"teacher.loss=policy rollout.n=2"} {
		set := append(strings.Fields(more), "trainer.total_steps=3", "trainer.save_samples=4",
			"actor.optim.lr=1e-2")
		own := settings(config.OPD, filepath.Join(t.TempDir(), "own"), ownCoach(set...)...)
		finished(t, be, own, config.OPD)
		var lines []string // by step and answer, as the program is asked
		notes, empty := map[string]bool{}, 0
		for step := 1; step <= 3; step++ {
			samples, _, err := report.ReadSamples(vfs.OS, own.Trainer.Output, report.InTraining, step)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range samples {
				line, _ := json.Marshal(map[string]string{"notes": s.Notes})
				if s.Notes == "" {
					line, empty = []byte("null"), empty+1
				} else {
					notes[s.Notes] = true
				}
				lines = append(lines, string(line))
			}
		}
		if len(notes) < 3 || empty == 0 {
			t.Fatalf("%s: %d different notes, %d answers without: the test shows too little", more,
				len(notes), empty)
		}
		answers := len(lines) / 3
		dir := t.TempDir()
		for step := range 3 {
			text := strings.Join(lines[step*answers:(step+1)*answers], "\n") + "\n"
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(step)), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		// the trial, with one row, does not count
		program := fmt.Sprintf(`cat > %[1]s/in; n=$(grep -c . %[1]s/in); if [ $n = 1 ]; then echo null; exit; fi
k=$(ls %[1]s | grep -c done); touch %[1]s/done$k; head -n $n %[1]s/$k`, dir)
		by := settings(config.OPD, filepath.Join(t.TempDir(), "by"),
			append(ownCoach(set...), "coach.command="+program)...)
		finished(t, be, by, config.OPD)
		if weightsAfter(t, by.Trainer.Output, 3) != weightsAfter(t, own.Trainer.Output, 3) {
			t.Errorf("%s: a program with the same notes gives other weights", more)
		}
	}
}

// Notes are those of the student as it is: after an update the same answers have others. They are
// a function of the seed, the step and the answer, whatever else is asked with it.
func TestOwnNotesFollowTheStudent(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"), ownCoach(
		"trainer.total_steps=3", "actor.optim.lr=1e-2")...), config.OPD)
	w := tr.stage.(*opd).coach.by
	rows, err := checker.Rows(tr.train.set, []int{0, 1, 2, 3}, []string{"It is 7.", "It is 8.", "no",
		"{prompt} <|im_end|> {notes}"}, make([]bool, 4))
	if err != nil {
		t.Fatal(err)
	}
	var list []noted
	for i, row := range rows {
		list = append(list, noted{row, 5 * i})
	}
	ask := func(list []noted) []string {
		t.Helper()
		notes, _, err := w.notes(list)
		if err != nil || len(notes) != len(list) || len(w.wrote()) != len(list) {
			t.Fatal(notes, err)
		}
		for i, s := range w.wrote() {
			text := tr.tok.Decode(s.IDs[:s.Prompt()], false)
			if !strings.Contains(text, list[i].Row.Prompt+" "+list[i].Response) ||
				strings.Count(text, "<|im_end|>") > 3 {
				t.Errorf("the student is asked %q", text)
			}
		}
		return notes
	}
	before := ask(list)
	if again := ask(list); !slices.Equal(again, before) {
		t.Errorf("%q, and again %q", before, again)
	}
	if alone := ask(list[2:3]); alone[0] != before[2] {
		t.Errorf("alone %q, with others %q", alone[0], before[2])
	}
	if _, err := nextOf(tr); err != nil {
		t.Fatal(err)
	}
	if after := ask(list); slices.Equal(after, before) {
		t.Errorf("after an update the notes are still %q", after)
	}
	long := list[:1:1]
	long[0].Response = strings.Repeat("1 2 3 ", 40)
	notes, why, err := w.notes(long)
	if err != nil || notes[0] != "" || why != "the question for its notes has more than 102 tokens" {
		t.Errorf("of a question that is too long: %q, %q, %v", notes, why, err)
	}
}

// What a student writes as notes is counted: as many tokens pass through it as the step says, and
// the passes of the list have their operations.
func TestOwnNotesAreCounted(t *testing.T) {
	be := &passSpy{Backend: ready(t), steps: map[*compute.Param]int{}}
	tr := opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"), ownCoach(
		"trainer.total_steps=60", "coach.plain=0.25", "teacher.loss=exact")...), config.OPD)
	be.passes = nil
	tr.step = 3 // which compares no log-probabilities
	m, err := nextOf(tr)
	if err != nil {
		t.Fatal(err)
	}
	o := tr.stage.(*opd)
	want := 0 // tokens that pass forward alone: the last of a text is not read
	for _, g := range o.round.groups {
		want += len(g.Prompt)
		for _, a := range g.answers {
			want += len(a.ids) - 1
		}
	}
	wrote := o.coach.by.wrote()
	if len(wrote) != 12 { // 3 of 4 prompts, 4 answers each
		t.Fatalf("%d notes", len(wrote))
	}
	for _, s := range wrote {
		want += len(s.IDs) - 1
	}
	got := 0
	for _, p := range be.passes {
		if slices.Contains(tr.actor.Model().Params(), p.table) && !p.learns {
			got += len(p.ids)
		}
	}
	if got != want {
		t.Errorf("%d tokens passed, want %d", got, want)
	}
	notes := config.Pass{}
	for _, x := range tr.stage.passes(len(tr.train.step)) {
		if x.Notes > 0 {
			notes = x
		}
	}
	if notes.Part != "coach" || notes.Prompts != 3 || notes.Students != 4 {
		t.Errorf("the pass is %+v", notes)
	}
	all := tr.count(m).flops
	own := tr.passFLOPs(notes, tr.actor.Model().Config(), wrote)
	delete(m, "timing_s/coach") // as if it had not run
	if without := tr.count(m).flops; !(own > 0) || all-without < 0.999*own || all-without > 1.001*own {
		t.Errorf("%g operations, %g without the notes, which take %g", all, without, own)
	}
}

// A plan has the time of a student's notes and the memory of their questions.
func TestOwnNotesPlan(t *testing.T) {
	be := ready(t)
	card, _ := cost.FindCard("h200")
	of := func(fit bool, more ...string) *plan.Plan {
		c := settings(config.OPD, filepath.Join(t.TempDir(), "run"), ownCoach(append([]string{
			"trainer.total_steps=1", "trainer.device=cuda", "rollout.max_num_seqs=2"}, more...)...)...)
		back := cost.New(card)
		news := plan.New
		if fit {
			news = plan.NewFitting
		}
		p, err := news(back, nil, 0, vfs.OS, c, config.OPD)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	seconds := func(p *plan.Plan) float64 {
		for _, x := range p.StepTime {
			if x.Name == "coach" {
				return x.Seconds
			}
		}
		return 0
	}
	all, some := seconds(of(false)), seconds(of(false, "coach.plain=0.5"))
	if !(some > 0) || some > 0.9*all {
		t.Errorf("notes take %g s, on half of the answers %g", all, some)
	}
	if n := seconds(of(false, "coach.command=cat")); n != 0 {
		t.Errorf("a program's notes take %g s of the device", n)
	}
	if p := of(true); len(p.StepTime) == 0 {
		t.Error("a fitting plan has no times")
	}
	shape, err := model.ReadConfig(fixed.student)
	if err != nil {
		t.Fatal(err)
	}
	need := func(command string) int64 {
		return plan.Need(be, shape, settings(config.OPD, "run", append(ownCoach("rollout.n=1",
			"data.train_batch_size=64"), "coach.command="+command)...), config.OPD, 1)
	}
	if own, program := need("@student"), need("cat"); own <= program {
		t.Errorf("%d bytes with own notes, %d with a program's", own, program)
	}
}

// What cannot be meant is refused before anything is written.
func TestOwnNotesSettings(t *testing.T) {
	ready(t)
	for more, want := range map[string]string{
		"coach.question={prompt}": "coach.question must have {answer} once: give a text such as ",
		"coach.question={answer}": "coach.question must have {prompt} once: give a text such as ",
		"coach.max_tokens=26":     "coach.command @student: a question with its notes has up to 130 tokens (data.max_prompt_length + the longest answer + 2 * coach.max_tokens), but max_position_embeddings is 128: lower them",
		"data.max_prompt_length=40 coach.question={prompt}" + strings.Repeat("+1+2+3",
			9) + "{answer}": "coach.question: without an answer it has more than 64 tokens for row 0 (data.max_prompt_length + coach.max_tokens): raise coach.max_tokens, or shorten the question",
	} {
		run := filepath.Join(t.TempDir(), "run")
		wantError(t, openError(t, settings(config.OPD, run, ownCoach(strings.Fields(more)...)...),
			config.OPD), nil, want)
		if _, err := os.Stat(run); err == nil {
			t.Errorf("%s: the run's folder was made", more)
		}
	}
	c := settings(config.OPD, "run", "coach.command=cat", "coach.question={prompt}{answer}")
	if why := c.Ignores(config.OPD, "coach.question"); why == "" {
		t.Error("coach.question is read by a program")
	}
	c = settings(config.OPD, "run", ownCoach()...)
	if why := c.Ignores(config.OPD, "coach.timeout"); why != "coach.command is @student" {
		t.Errorf("the time limit of a program is idle because %q", why)
	}
}
