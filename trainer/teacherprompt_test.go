package trainer

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute/cost"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// hinted returns a copy of the training data with the column hint: what of gives for a row and its
// content; nil: no such key.
func hinted(t testing.TB, of func(i int, content string) any) string {
	t.Helper()
	raw, err := os.ReadFile(fixed.data)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for i, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		row := map[string]any{}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		if x := of(i, row["content"].(string)); x != nil {
			row["hint"] = x
		}
		text, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(text, '\n'))
	}
	path := filepath.Join(t.TempDir(), "hinted.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// someHints are hints of all kinds: messages, a text, blank, null, none.
func someHints(i int, content string) any {
	switch i % 5 {
	case 0:
		return []map[string]string{{"role": "system", "content": "be brief"},
			{"role": "user", "content": content + " It is o."}}
	case 1:
		return " "
	case 2:
		return nil
	case 3:
		return json.RawMessage("null")
	}
	return content + " It is 9."
}

// The teacher alone reads the column of teacher.prompt_key, in the place of the row's prompt; the
// student's prompts, and its answers of the first step, are those of a run without the setting.
func TestTeacherPromptIsTheTeachersAlone(t *testing.T) {
	be := ready(t)
	data := "data.train_files=" + hinted(t, someHints)
	sampled := func(more ...string) (*Trainer, *round, []model.Seq) {
		tr := opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"),
			append(more, data, "data.train_batch_size=20")...), config.OPD)
		o := tr.stage.(*opd)
		r := sampledRound(t, tr, &o.onPolicy, 20)
		read, err := o.teachers.readings(r)
		if err != nil {
			t.Fatal(err)
		}
		return tr, r, readSeqs(read)
	}
	_, plain, _ := sampled()
	tr, r, seqs := sampled("teacher.prompt_key=hint", "teacher.system=you know more")
	if a, b := listsOf(plain), listsOf(r); !slices.EqualFunc(a.seqs, b.seqs,
		func(x, y model.Seq) bool { return slices.Equal(x.IDs, y.IDs) }) {
		t.Error("the student reads or writes something else")
	}
	v, with := listsOf(r), 0
	for s, seq := range seqs {
		row, err := tr.train.set.Row(v.batch[v.group[s]].Index)
		if err != nil {
			t.Fatal(err)
		}
		text := tr.tok.Decode(seq.IDs[:seq.Prompt()], false)
		want, other := row.Messages[len(row.Messages)-1].Content, " It is "
		if k := row.Index % 5; k == 0 || k == 4 {
			with++
			want, other = want+" It is ", "be brief" // teacher.system is in its place
		}
		if !strings.Contains(text, want) || !strings.Contains(text, "you know more") ||
			strings.Contains(text, other) {
			t.Errorf("row %d: the teacher reads %q", row.Index, text)
		}
		if !slices.Equal(seq.Response(), v.seqs[s].Response()) {
			t.Errorf("answer %d: the teacher reads other tokens", s)
		}
	}
	if with < 10 {
		t.Errorf("%d answers of rows with a hint", with)
	}
}

// A column that repeats the row's prompt gives the bits of a run without the setting, and another
// does not, whichever the loss, beside the discriminator and behind a server. A server gives the
// bits of a teacher that is loaded.
func TestTeacherPromptIsLearned(t *testing.T) {
	t.Parallel()
	be := ready(t)
	m, err := model.Load(be, fixed.student, model.Options{Kind: model.LM})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	same := hinted(t, func(_ int, content string) any { return content })
	hints := hinted(t, someHints)
	// of one row its own prompt, of the others none: blank, null, no such key
	empty := hinted(t, func(i int, content string) any {
		return []any{nil, " ", json.RawMessage("null"), []string{}, content}[i%4+i/39]
	})
	after := func(stage config.Stage, server bool, more ...string) string {
		o := Options{FS: vfs.OS, Backend: be}
		more = append([]string{"teacher.path=" + fixed.student}, more...)
		if server {
			o.Teachers = served(&lent{m: m})
			more = append(more, "teacher.path=", "teacher.url=http://localhost/v1")
		}
		return studentAfterTwo(t, stage, o, more...)
	}
	for _, c := range []struct {
		stage  config.Stage
		more   string
		server bool
	}{{config.OPD, "teacher.loss=policy", true}, {config.OPD, "teacher.loss=exact", false},
		{config.OPD, "teacher.loss=topk teacher.top_k=6", true},
		{config.Train, "algorithm.teacher_weight=0.5", true}} {
		if testing.Short() && c.more != "teacher.loss=exact" {
			continue
		}
		with := func(data, key string, server bool) string {
			return after(c.stage, server, append(strings.Fields(c.more), "data.train_files="+data,
				"teacher.prompt_key="+key)...)
		}
		want, other := with(same, "", false), with(hints, "hint", false)
		if with(same, "hint", false) != want || with(empty, "hint", false) != want {
			t.Errorf("%s: the row's own prompt in the column, or none: other weights", c.more)
		}
		if other == want || with(hints, "", false) != want {
			t.Errorf("%s: the column is not read, or is without the setting", c.more)
		}
		if c.server && with(hints, "hint", true) != other {
			t.Errorf("%s: behind a server: other weights", c.more)
		}
	}
}

// The student's own weights may be its teacher, which stay as they were at the start: it teaches by
// what it reads alone.
func TestTeacherIsTheStudentAtTheStart(t *testing.T) {
	be := ready(t)
	before, err := os.ReadFile(filepath.Join(fixed.student, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, loss := range []string{"policy", "exact"} {
		tr := opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"),
			"model.path="+fixed.student, "teacher.path="+fixed.student, "teacher.loss="+loss,
			"teacher.prompt_key=hint", "trainer.total_steps=3", "actor.optim.lr=1e-2",
			"data.train_files="+hinted(t, someHints)), config.OPD)
		probe := []model.Seq{model.Answer([]int32{5, 6, 7, 8, 9, 10}, 2)}
		was, _, err := teacherOf(tr).Model().AllLogProbs(probe, 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		for step := range 3 {
			m, err := nextOf(tr)
			if err != nil {
				t.Fatal(err)
			}
			if m["opd/reverse_kl"] == 0 && m["opd/divergence"] == 0 || m["actor/grad_norm"] == 0 {
				t.Errorf("%s: step %d: the hints teach nothing", loss, step)
			}
		}
		is, _, err := teacherOf(tr).Model().AllLogProbs(probe, 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		own, _, err := tr.actor.Model().AllLogProbs(probe, 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(was[0], is[0]) || slices.Equal(own[0], is[0]) {
			t.Errorf("%s: the teacher has moved with the student, or the student has not", loss)
		}
	}
	if now, err := os.ReadFile(filepath.Join(fixed.student, "model.safetensors")); err != nil ||
		string(now) != string(before) {
		t.Error("the teacher's folder has changed")
	}
}

// A run whose teacher's prompts changed is not resumed; one that is killed ends with the same bits.
func TestTeacherPromptResumes(t *testing.T) {
	be := ready(t)
	path := hinted(t, someHints)
	c := settings(config.OPD, filepath.Join(t.TempDir(), "run"), "data.train_files="+path,
		"teacher.prompt_key=hint", "trainer.total_steps=2", "trainer.save_freq=1")
	finished(t, be, c, config.OPD)
	whole := record(t, c.Trainer.Output, 2)
	again := c
	again.Trainer.Output = filepath.Join(t.TempDir(), "again")
	tr := opened(t, be, again, config.OPD)
	if _, err := nextOf(tr); err != nil {
		t.Fatal(err)
	}
	if err := tr.Close(); err != nil { // nothing of the step is kept
		t.Fatal(err)
	}
	finished(t, be, again, config.OPD)
	same(t, record(t, again.Trainer.Output, 2), whole)
	raw, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(raw), "be brief", "be long", 1)),
			0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Trainer.TotalSteps = 3
	wantError(t, openError(t, c, config.OPD), nil, "has changed since the run began")
	c.Teacher.PromptKey = ""
	wantError(t, openError(t, c, config.OPD), nil, "teacher.prompt_key was hint when the run")
}

// What cannot be meant is refused with the row, before anything is written.
func TestTeacherPromptSettings(t *testing.T) {
	ready(t)
	at := func(row int, value any) string {
		return hinted(t, func(i int, content string) any {
			if i == row {
				return value
			}
			return content
		})
	}
	turn := func(role string) any {
		return []map[string]string{{"role": "user", "content": "Add 4."},
			{"role": role, "content": "It is o."}}
	}
	long := strings.Repeat("Add 4+7+3. ", 60)
	none := hinted(t, func(int, string) any { return nil })
	for _, c := range []struct{ data, more, want string }{
		{at(17, turn("assistant")), "", `row 17: column "hint": turn 1: a teacher's prompt ends with a turn of the assistant`},
		{at(11, 7), "", `row 11: column "hint": "7": neither a list of turns nor a string`},
		{at(29, long), "", `row 29: column "hint" (teacher.prompt_key): `},
		{at(29, long), "", " tokens in the teacher's chat template, and teacher.max_prompt_length is 64: raise it"},
		{at(29, long), "teacher.max_prompt_length=900",
			"row 29: the teacher would read 691 tokens, and "},
		{none, "", `column "hint" (teacher.prompt_key): none of 40 rows has a value there`},
		{none, "teacher.prompt_key=content",
			`column "content": teacher.prompt_key (--teacher-prompt-key) names it, and it is read for something else`},
		{none, "data.turns=each", "data.turns is each, and teacher.prompt_key hint has one prompt of a row"},
		{none, "teacher.max_prompt_length=20", "teacher.max_prompt_length 20 is below data.max_prompt_length 64"},
	} {
		run := filepath.Join(t.TempDir(), "run")
		err := openError(t, settings(config.OPD, run, append([]string{"data.train_files=" + c.data,
			"teacher.prompt_key=hint"}, strings.Fields(c.more)...)...), config.OPD)
		wantError(t, err, nil, c.want)
		if _, err := os.Stat(run); err == nil {
			t.Errorf("%s: the run's folder was made", c.want)
		}
	}
	tr := opened(t, ready(t), settings(config.OPD, filepath.Join(t.TempDir(), "run"),
		"data.train_files="+at(29, long[:80]), "teacher.prompt_key=hint",
		"teacher.max_prompt_length=110"), config.OPD)
	if n := tr.cfg.Teacher.LongestPrompt(tr.cfg.Data); n != 110 {
		t.Errorf("the longest prompt of the teacher has %d tokens", n)
	}
}

// A plan counts the teacher's longer prompts in memory and in the teacher's part of the time.
func TestTeacherPromptPlan(t *testing.T) {
	ready(t)
	card, _ := cost.FindCard("h200")
	long := hinted(t, func(_ int, content string) any { return strings.Repeat(content+" ", 5) })
	for _, loss := range []string{"policy", "exact"} {
		of := func(key string) (*plan.Plan, map[string]float64) {
			c := settings(config.OPD, filepath.Join(t.TempDir(), "run"), "trainer.total_steps=1",
				"teacher.max_prompt_length=600", "teacher.prompt_key="+key, "teacher.loss="+loss,
				"data.train_files="+long, "actor.max_token_len=128",
				"trainer.device=cuda")
			p, err := plan.New(cost.New(card), nil, 0, vfs.OS, c, config.OPD)
			if err != nil {
				t.Fatal(err)
			}
			times := map[string]float64{}
			for _, x := range p.StepTime {
				times[x.Name] = x.Seconds
			}
			return p, times
		}
		plain, before := of("")
		p, after := of("hint")
		if plain.TeacherPromptMean != 0 || !(p.TeacherPromptMean > 2*p.PromptMean) ||
			p.PromptMean != plain.PromptMean {
			t.Errorf("mean prompts %g and %g, without the column %g and %g", p.PromptMean,
				p.TeacherPromptMean, plain.PromptMean, plain.TeacherPromptMean)
		}
		if want := fmt.Sprintf("mean prompt that the teacher reads %.0f",
			p.TeacherPromptMean); !strings.Contains(p.String(), want) {
			t.Errorf("no %q in\n%s", want, p)
		}
		if a, b := plan.Total(plain.Memory), plan.Total(p.Memory); b <= a {
			t.Errorf("%s: %d bytes, without the column %d", loss, b, a)
		}
		if loss == "policy" && !(after["teacher_logp"] > before["teacher_logp"]) {
			t.Errorf("times %v, without the column %v", slices.Sorted(maps.Values(after)),
				slices.Sorted(maps.Values(before)))
		}
	}
}
