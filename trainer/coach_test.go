package trainer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/compute/cost"
	"gad/internal/compute/cpu"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/checker"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// says is a coach that prints line for each answer, as printf does.
func says(line string) string {
	return `coach.command=while IFS= read -r x; do printf '` + line + `\n'; done`
}

// always are notes on any answer, and what the teacher reads with them.
const always = "It is o."

func withAlways(content string) string { return content + " Hint: " + always }

// coached are the settings of a coach whose notes stand behind the prompt.
func coached(more ...string) []string {
	return append([]string{"coach.template={prompt} Hint: {notes}",
		says(`{"notes":"` + always + `"}`)}, more...)
}

// weightsAfter returns the student's weights after so many steps of a run.
func weightsAfter(t *testing.T, run string, steps int) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(run, fmt.Sprintf("global_step_%d", steps),
		"actor/model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// Notes give the bits of a run whose rows have the prompt with these notes for the teacher,
// whichever the loss and the number of answers; without notes, for whatever reason, they are those
// of a run without a coach.
func TestCoachIsAPromptByAnswer(t *testing.T) {
	t.Parallel()
	be := ready(t)
	data := hinted(t, func(_ int, content string) any { return withAlways(content) })
	after := func(more ...string) string {
		run := filepath.Join(t.TempDir(), "run")
		finished(t, be, settings(config.OPD, run, append(half("trainer.total_steps=2",
			"data.train_files="+data), more...)...), config.OPD)
		return weightsAfter(t, run, 2)
	}
	for _, more := range []string{"teacher.loss=policy rollout.n=3", "teacher.loss=exact",
		"teacher.loss=topk teacher.top_k=6"} {
		set := strings.Fields(more)
		want, plain := after(append(set, "teacher.prompt_key=hint",
			"teacher.max_prompt_length=100")...), after(set...)
		if after(append(set, coached()...)...) != want {
			t.Errorf("%s: the coach's notes are not the prompt by row", more)
		}
		if want == plain {
			t.Errorf("%s: notes teach nothing", more)
		}
		for why, line := range map[string]string{"null": "null", "no line of the form": "I am sorry",
			"a list": `{"notes":["a"]}`, "blank": `{"notes":" \\t"}`,
			"longer than coach.max_tokens": `{"notes":"` + strings.Repeat("It is o. ", 30) + `"}`} {
			if more != "teacher.loss=exact" && why != "null" {
				continue
			}
			if after(append(set, "coach.max_tokens=60", says(line))...) != plain {
				t.Errorf("%s: %s: other weights than without a coach", more, why)
			}
		}
		if after(append(set, coached("coach.max_tokens=60")...)...) != want {
			t.Errorf("%s: notes within coach.max_tokens are not read", more)
		}
	}
}

// Each answer has its own notes, and one that has none, or such as the teacher may not read, reads
// the prompt without; the samples show them, and the figures count them. What the student reads
// does not change.
func TestCoachOfARound(t *testing.T) {
	be := ready(t)
	// of the rows in turn: notes by number, none, the answer itself, those that are not to be read
	script := `coach.command=n=0; while IFS= read -r x; do n=$((n+1)); a=${x#*\"response\":\"}; a=${a%%\",\"teacher_response\"*}
case $((n % 3)) in 0) echo null;; 1) printf '{"notes":"hint %d"}\n' $n;; 2) printf '{"notes":"%s"}\n' "$a";; esac; done`
	run := filepath.Join(t.TempDir(), "run")
	c := settings(config.OPD, run, "trainer.total_steps=1", "data.train_batch_size=6",
		"rollout.n=2", "trainer.save_samples=6", "coach.plain=0.5", script,
		"coach.template={notes}. {prompt}")
	tr := opened(t, be, c, config.OPD)
	plain := opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "plain"),
		"data.train_batch_size=6", "rollout.n=2"), config.OPD)
	other := sampledRound(t, plain, &plain.stage.(*opd).onPolicy, 6)
	m, err := nextOf(tr)
	if err != nil {
		t.Fatal(err)
	}
	o := tr.stage.(*opd)
	k, with := 0, 0
	for p, g := range o.round.groups {
		row, err := tr.train.set.Row(g.Index)
		if err != nil {
			t.Fatal(err)
		}
		content := row.Messages[len(row.Messages)-1].Content
		for i, a := range g.answers {
			same := other.groups[p].answers[i]
			if fmt.Sprint(a.ids) != fmt.Sprint(same.ids) || g.Index != other.groups[p].Index ||
				fmt.Sprint(g.Prompt) != fmt.Sprint(other.groups[p].Prompt) {
				t.Errorf("answer %d: the student reads or writes something else", k)
			}
			want := ""
			if p < 3 && k%3 == 0 {
				want = fmt.Sprintf("hint %d", k+1)
				with++
			}
			text := tr.tok.Decode(o.read[k].seq.IDs[:o.read[k].seq.Prompt()], false)
			if a.taught.notes != want || !strings.Contains(text, content) ||
				strings.Contains(text, "hint") != (want != "") ||
				want != "" && !strings.Contains(text, want+". "+content) {
				t.Errorf("answer %d: notes %q, want %q, and the teacher reads %q", k, a.taught.notes, want,
					text)
			}
			if got := o.read[k].seq.Response(); fmt.Sprint(got) != fmt.Sprint(a.ids) {
				t.Errorf("answer %d: the teacher reads other tokens", k)
			}
			k++
		}
	}
	if want := float64(with) / 6; m["opd/notes_frac"] != want || with != 2 ||
		!(m["opd/notes_tokens"] > 3 && m["opd/notes_tokens"] < 12) || m["timing_s/coach"] == 0 {
		t.Errorf("%d of 6 answers have notes, %v", with, m)
	}
	samples, _, err := report.ReadSamples(vfs.OS, run, report.InTraining, 1)
	if err != nil || len(samples) != 12 {
		t.Fatal(len(samples), err)
	}
	for i, s := range samples {
		if want := map[int]string{0: "hint 1", 3: "hint 4"}[i]; s.Notes != want {
			t.Errorf("sample %d has notes %q, want %q", i, s.Notes, want)
		}
	}
}

// A teacher that is renewed is the student at the beginning of that step: with a renewal in each
// step and nothing else to read its gradient is exactly 0, and plain prompts keep the teacher of
// the start.
func TestTeacherIsRenewed(t *testing.T) {
	be := ready(t)
	for _, loss := range []string{"policy", "exact"} {
		tr := opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"),
			"trainer.total_steps=4", "teacher.renew=2", "actor.ppo_mini_batch_size=4",
			"teacher.loss="+loss), config.OPD)
		for step := range 4 {
			tr.step = step
			m, err := nextOf(tr)
			if err != nil {
				t.Fatal(err)
			}
			if zero := m["actor/grad_norm"] == 0; zero != (step == 2) {
				t.Errorf("%s: step %d: a gradient of %g", loss, step, m["actor/grad_norm"])
			}
		}
		if n := len(tr.stage.networks()); n != 1 {
			t.Errorf("%d teachers are held", n)
		}
	}
	tr := opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"), coached(
		"trainer.total_steps=3", "teacher.renew=2", "coach.plain=0.25")...), config.OPD)
	o := tr.stage.(*opd)
	first := o.teachers.list[0]
	for step := range 3 {
		tr.step = step
		if _, err := nextOf(tr); err != nil {
			t.Fatal(err)
		}
	}
	for i, x := range o.read {
		plain := i >= len(o.read)-len(o.read)/4
		if (x.by == first) != plain || !plain && x.by != o.teachers.copy {
			t.Errorf("answer %d is scored by the wrong teacher", i)
		}
	}
	if first.Policy == nil || len(o.teachers.list) != 2 {
		t.Error("the teacher of the start is gone")
	}
}

// A run with notes and a teacher that follows the student, which is stopped at any step, ends with
// the bits of one that is not: with adapters, in both precisions, and where nothing of the step is
// kept. Its folder is as any other's.
func TestCoachResumes(t *testing.T) {
	t.Parallel()
	ready(t)
	for _, c := range [][]string{{cpu.F32}, {cpu.BF16, "teacher.loss=exact", "coach.plain=0.5"},
		{cpu.F32, "actor.lora.rank=4", "coach.plain=0.5"},
		append([]string{cpu.F32, "actor.lora.rank=4", "rollout.merged=true"}, ownCoach()...)} {
		if testing.Short() && len(c) > 1 {
			continue
		}
		be, err := cpu.New(cpu.Options{Workers: 1, Precision: c[0]})
		if err != nil {
			t.Fatal(err)
		}
		ready(t)
		with := func(run string) config.Config {
			return settings(config.OPD, run, append(coached(half("trainer.total_steps=5",
				"trainer.save_freq=1", "teacher.renew=2", "trainer.precision="+c[0],
				"trainer.max_ckpt_to_keep=9")...), c[1:]...)...)
		}
		whole := with(filepath.Join(t.TempDir(), "whole"))
		finished(t, be, whole, config.OPD)
		parts := with(filepath.Join(t.TempDir(), "parts"))
		for range 5 {
			tr := opened(t, be, parts, config.OPD)
			if err := tr.Run(&stopAfter{Context: t.Context(), n: 1}); err != nil &&
				!strings.Contains(err.Error(), "interrupted") {
				t.Fatal(err)
			}
			tr.Close()
			again := opened(t, be, parts, config.OPD)
			if done, total := again.Steps(); done < total {
				if _, err := nextOf(again); err != nil { // of this step nothing is kept
					t.Fatal(err)
				}
			}
			again.Close()
		}
		same(t, record(t, parts.Trainer.Output, 5), record(t, whole.Trainer.Output, 5))
		for step, want := range map[int]bool{1: false, 2: false, 3: true, 4: false, 5: true} {
			_, err := os.Stat(filepath.Join(whole.Trainer.Output,
				fmt.Sprintf("global_step_%d/teacher", step)))
			if (err == nil) != want {
				t.Errorf("%v: step %d: the copy is kept: %v", c, step, err == nil)
			}
		}
		if _, err := os.Stat(filepath.Join(parts.Trainer.Output, "teacher")); err == nil {
			t.Errorf("%v: a copy is left in the run's folder", c)
		}
		if err := be.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A coach that fails is named: before anything is written, where it is tried, and later with the
// row and the way out, after which the same command goes on.
func TestCoachThatFails(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	err := openError(t, settings(config.OPD, run, "coach.command=echo no >&2; exit 3"), config.OPD)
	wantError(t, err, config.ErrConfig,
		"coach.command: tried on the teacher's answer to row 0: checker: ")
	if _, err := os.Stat(run); err == nil {
		t.Error("the run's folder was made")
	}
	flag := filepath.Join(t.TempDir(), "ill")
	c := settings(config.OPD, run, coached("trainer.total_steps=2")...)
	c.Coach.Command = "if [ -e " + flag + " ]; then echo '{}'; exit; fi; " + c.Coach.Command
	tr := opened(t, be, c, config.OPD)
	if err := os.WriteFile(flag, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = nextOf(tr)
	wantError(t, err, checker.ErrFailed, "coach.command: checker: ")
	wantError(t, err, nil, "has no score: printed 1 of 16: print one line per row")
	tr.Close()
	if err := os.Remove(flag); err != nil {
		t.Fatal(err)
	}
	finished(t, be, c, config.OPD)
	whole := settings(config.OPD, filepath.Join(t.TempDir(), "whole"),
		coached("trainer.total_steps=2")...)
	finished(t, be, whole, config.OPD)
	if weightsAfter(t, run, 2) != weightsAfter(t, whole.Trainer.Output, 2) {
		t.Error("the run that went on has other weights")
	}
}

// What cannot be meant is refused, with the way out, and what has no effect is said.
func TestCoachSettings(t *testing.T) {
	ready(t)
	for more, want := range map[string]string{
		"coach.template={notes}":                      "coach.template must have {prompt} once: give a text such as ",
		"coach.template={prompt}{prompt}{notes}":      "coach.template must have {prompt} once",
		"coach.plain=1":                               "coach.plain is 1: no answer would have notes",
		"coach.plain=0.1":                             "coach.plain 0.1 of data.train_batch_size 4 is no prompt: raise one of them",
		"coach.plain=0.9":                             "coach.plain 0.9 of data.train_batch_size 4 is all prompts: lower it",
		"data.turns=each":                             "coach.command writes notes on one answer of a row: use data.turns=last",
		"teacher.renew=3 teacher.weights=q8_0":        "teacher.renew is 3, and teacher.weights is q8_0: a copy of the student has its weights: use native",
		"teacher.renew=3 teacher.path= teacher.url=u": "teacher.renew is 3, and a server keeps its weights: load the teacher",
		"teacher.renew=3 teacher.by=hint teacher.path= teacher.models=a=b": "teacher.renew is 3, and with teacher.by there are several teachers",
	} {
		err := openError(t, settings(config.OPD, filepath.Join(t.TempDir(), "run"),
			coached(strings.Fields(more)...)...), config.OPD)
		wantError(t, err, nil, want)
	}
	c := settings(config.OPD, "run", "coach.plain=0.5")
	if why := c.Ignores(config.OPD, "coach.plain"); why != "coach.command is empty" {
		t.Errorf("coach.plain without a coach is idle because %q", why)
	}
	if why := c.Ignores(config.Train, "coach.command"); why != "gad train does not read it" {
		t.Errorf("a coach in the game is idle because %q", why)
	}
	ids := hinted(t, func(int, string) any { return nil })
	raw, err := os.ReadFile(ids)
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for line := range strings.Lines(string(raw)) {
		row := map[string]any{}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		delete(row, "content")
		row["prompt_ids"] = []int{5, 6, 7}
		text, _ := json.Marshal(row)
		lines.Write(append(text, '\n'))
	}
	if err := os.WriteFile(ids, []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	wantError(t, openError(t, settings(config.OPD, filepath.Join(t.TempDir(), "run"),
		coached("data.train_files="+ids)...), config.OPD), config.ErrConfig,
		"coach.command: data: row 0: has prompt_ids, into which no notes can be put")
}

// A plan counts the prompts with notes, one for each answer, and the copy beside a teacher that is
// kept.
func TestCoachPlan(t *testing.T) {
	be := ready(t)
	card, _ := cost.FindCard("h200")
	of := func(more ...string) (*plan.Plan, float64) {
		c := settings(config.OPD, filepath.Join(t.TempDir(), "run"), append([]string{
			"trainer.total_steps=1", "rollout.n=4", "actor.max_token_len=128",
			"trainer.device=cuda"}, more...)...)
		p, err := plan.New(cost.New(card), nil, 0, vfs.OS, c, config.OPD)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range p.StepTime {
			if x.Name == "teacher_logp" {
				return p, x.Seconds
			}
		}
		t.Fatal("no time of the teacher")
		return p, 0
	}
	_, before := of()
	noted, after := of(coached("coach.max_tokens=40")...)
	const wide = "actor.max_token_len=2048"
	plain, _ := of(wide)
	if noted, _ := of(coached("coach.max_tokens=40", wide)...); plan.Total(noted.Memory) <=
		plan.Total(plain.Memory) {
		t.Errorf("%d bytes, with notes %d", plan.Total(plain.Memory), plan.Total(noted.Memory))
	}
	if !(after > before) || noted.TeacherPromptMean < plain.PromptMean+40 {
		t.Errorf("%g s of the teacher, with notes %g; prompts %g", before, after,
			noted.TeacherPromptMean)
	}
	shape, err := model.ReadConfig(fixed.blank)
	if err != nil {
		t.Fatal(err)
	}
	need := func(more ...string) int64 {
		return plan.Need(be, shape, settings(config.OPD, "run", coached(more...)...), config.OPD, 1)
	}
	weights := int64(4 * shape.ParamCount(model.LM))
	if once, follows := need(), need("teacher.renew=2"); once != follows {
		t.Errorf("%d bytes, with a teacher that is replaced %d", once, follows)
	}
	if more := need("teacher.renew=2", "coach.plain=0.5") - need(); more < weights ||
		more > weights+weights/4 {
		t.Errorf("a teacher that is kept takes %d bytes more, its weights %d", more, weights)
	}
}
