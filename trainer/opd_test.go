package trainer

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/actor"
	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/modeltest"
	"gad/trainer/plan"
)

// A teacher that is the student says nothing new: each advantage is exactly 0, and no weight moves.
func TestOPDOfTheStudentItself(t *testing.T) {
	be := ready(t)
	for _, more := range []string{"", "actor.lora.rank=4", "rollout.n=3 data.train_batch_size=2",
		"teacher.loss=exact", "teacher.loss=exact teacher.beta=0",
		"teacher.loss=exact teacher.beta=0.3 actor.lora.rank=4", "teacher.loss=topk",
		"teacher.loss=topk teacher.top_k=1 actor.lora.rank=4 rollout.n=2"} {
		run := filepath.Join(t.TempDir(), "run")
		rows := finished(t, be, settings(config.OPD, run, append(strings.Fields(more),
			"model.path="+fixed.student, "trainer.total_steps=2",
			"actor.optim.weight_decay=0")...), config.OPD)
		for _, r := range rows {
			if r.Values["opd/reverse_kl"] != 0 || r.Values["opd/divergence"] != 0 ||
				r.Values["actor/grad_norm"] != 0 ||
				r.Values["actor/pg_loss"] != 0 {
				t.Errorf("%s: step %d: divergence %g, gradient %g, loss %g: want 0", more, r.Step,
					r.Values["opd/reverse_kl"], r.Values["actor/grad_norm"],
					r.Values["actor/pg_loss"])
			}
			if x, ok := r.Values["opd/topk_overlap"]; ok && x != 1 ||
				r.Values["opd/teacher_mass"] != r.Values["opd/student_mass"] {
				t.Errorf("%s: step %d: overlap %g, masses %g and %g", more, r.Step, x,
					r.Values["opd/teacher_mass"], r.Values["opd/student_mass"])
			}
		}
		if more == "" {
			moved, err := os.ReadFile(filepath.Join(run, "global_step_2/actor/model.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			was, err := os.ReadFile(filepath.Join(fixed.student, "model.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			if string(moved) != string(was) {
				t.Error("the weights have moved")
			}
		}
	}
}

// A student that has begun to learn comes closer to its teacher, and the figures say so.
func TestOPDLearns(t *testing.T) {
	t.Parallel()
	be := ready(t)
	sft := filepath.Join(t.TempDir(), "sft")
	finished(t, be, settings(config.SFT, sft, "model.path="+fixed.blank, "trainer.total_steps=20",
		"data.train_batch_size=8", "actor.optim.lr=5e-3"), config.SFT)
	const steps = 40
	run := filepath.Join(t.TempDir(), "run")
	common := []string{"trainer.total_steps=40",
		"model.path=" + filepath.Join(sft, "global_step_20/actor"), "data.train_batch_size=8",
		"actor.optim.lr=2e-3", "data.val_files=" + fixed.val, "trainer.test_freq=15"}
	rows := finished(t, be, settings(config.OPD, run, common...), config.OPD)
	mean := func(name string, from int) (sum float64) {
		for _, r := range rows[from : from+5] {
			sum += r.Values[name] / 5
		}
		return sum
	}
	for i, loss := range []string{"exact teacher.beta=0", "exact teacher.beta=0.5",
		"exact teacher.beta=1", "topk teacher.top_k=8"} {
		if !hostile.Long() && i < 3 || testing.Short() {
			continue
		}
		all := finished(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "exact"),
			append(common, strings.Fields("teacher.loss="+loss)...)...), config.OPD)
		first, last := all[0].Values, all[steps-1].Values
		wantNames(t, all[0], strings.Fields("opd/divergence actor/entropy actor/grad_norm"))
		wantNone(t, all[0], "opd/reverse_kl", "opd/teacher_nll", "actor/kl_")
		if part, whole := first["timing_s/teacher_logp"], first["timing_s/update_actor"]; !(part > 0 &&
			part < whole) {
			t.Errorf("%s: %g s of the teacher's in an update of %g s", loss, part, whole)
		}
		if a, b := first["opd/divergence"], last["opd/divergence"]; !(b < 0.2*a) {
			t.Errorf("%s: a divergence of %g in the first step, %g in the last", loss, a, b)
		}
		if !strings.HasPrefix(loss, "topk") {
			wantNone(t, all[0], "opd/topk_overlap", "opd/teacher_mass", "opd/student_mass")
			continue
		}
		if a, b := first["opd/topk_overlap"], last["opd/topk_overlap"]; !(a < 0.7 && b > a+0.1) ||
			!(last["opd/teacher_mass"] > 0.7 && last["opd/student_mass"] > 0.7) {
			t.Errorf("%s: overlap %g in the first step, %g in the last, masses %g and %g", loss, a,
				b, last["opd/teacher_mass"], last["opd/student_mass"])
		}
	}
	for name, share := range map[string]float64{"opd/reverse_kl": 0.2, "opd/teacher_nll": 0.6} {
		if first, last := mean(name, 0), mean(name, steps-5); !(last < share*first) {
			t.Errorf("%s: %g in the first five steps, %g in the last: want less than %g of it",
				name, first, last, share)
		}
	}
	for _, r := range rows {
		wantNames(t, r, strings.Fields("opd/reverse_kl opd/teacher_nll opd/ends_compared actor/pg_loss actor/entropy actor/lr actor/grad_norm rollout/len_mean rollout/truncated_frac timing_s/rollout timing_s/teacher_logp timing_s/update_actor train/epoch train/prompts perf/tflops"))
		wantNone(t, r, "critic/", "adv/", "reward/", "dpo/", "actor/sft_loss", "actor/kl_loss")
	}
	wantNames(t, rows[steps-1], []string{"val/teacher_nll"})
	var s struct {
		StudentScore float64 `json:"student_score"`
		TeacherScore any     `json:"teacher_score"`
		Advantage    float64
	}
	raw, err := os.ReadFile(filepath.Join(run, "samples/step_1.jsonl"))
	if err == nil {
		err = json.Unmarshal(raw[:strings.IndexByte(string(raw), '\n')], &s)
	}
	if err != nil || !(s.StudentScore < 0) || s.Advantage == 0 {
		t.Errorf("a sample: %+v, %v", s, err)
	}
}

// copied is a copy of a model folder in which texts of a file are others: pairs of old and new.
func copied(t *testing.T, dir, file string, pairs ...string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	copyTree(t, dir, to)
	path := filepath.Join(to, file)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(string(raw), pairs[i]) {
			t.Fatalf("%s has no %q", path, pairs[i])
		}
	}
	raw = []byte(strings.NewReplacer(pairs...).Replace(string(raw)))
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return to
}

// The teacher reads the student's own tokens behind its own prompt: its chat template's, with its
// system message; where both are the student's, the very sequences of the student.
func TestOPDTeacherReads(t *testing.T) {
	be := ready(t)
	reads := func(more ...string) (tr *Trainer, r *round, seqs []model.Seq) {
		tr = opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"), more...),
			config.OPD)
		o := tr.stage.(*opd)
		r = sampledRound(t, tr, &o.onPolicy, 4)
		read, err := o.teachers.readings(r)
		if err != nil || read[0].spelling != nil {
			t.Fatal(read, err)
		}
		return tr, r, readSeqs(read)
	}
	_, r, seqs := reads()
	v := listsOf(r)
	for s, seq := range seqs {
		if &seq.IDs[0] != &v.seqs[s].IDs[0] {
			t.Errorf("answer %d: the same prompt, another sequence", s)
		}
	}
	other := copied(t, fixed.student, "tokenizer_config.json", "assistant", "helper")
	for _, more := range [][]string{{"teacher.system=be brief"}, {"teacher.path=" + other}} {
		tr, r, seqs := reads(more...)
		v := listsOf(r)
		for s, seq := range seqs {
			row, err := tr.train.set.Row(v.batch[v.group[s]].Index)
			if err != nil {
				t.Fatal(err)
			}
			text := tr.tok.Decode(seq.IDs[:seq.Prompt()], false)
			if want := "be brief"; strings.HasPrefix(more[0], "teacher.system") &&
				!strings.Contains(text, want) {
				t.Errorf("%v: the teacher reads %q", more, text)
			}
			if !strings.Contains(text, row.Messages[len(row.Messages)-1].Content) {
				t.Errorf("%v: the teacher reads %q, which lacks the row's prompt", more, text)
			}
			if !slices.Equal(seq.Response(), v.seqs[s].Response()) {
				t.Errorf("%v: answer %d: the teacher reads other tokens", more, s)
			}
			if slices.Equal(seq.IDs, v.seqs[s].IDs) {
				t.Errorf("%v: answer %d: the teacher reads the student's prompt", more, s)
			}
		}
	}
}

// An end that the teacher does not write has the mean advantage of the other tokens: without one it
// would be preferred. It is in no figure.
func TestOPDEndings(t *testing.T) {
	be := ready(t)
	own := finished(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "own"),
		"model.path="+fixed.student, "teacher.path="+fixed.blank, "trainer.total_steps=1",
		"data.train_batch_size=16"), config.OPD)[0].Values
	if own["opd/ends_compared"] != 1 || own["rollout/truncated_frac"] == 1 {
		t.Errorf("%g of the ends are compared, %g of the answers have none",
			own["opd/ends_compared"], own["rollout/truncated_frac"])
	}
	tr := opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"),
		"model.path="+fixed.student), config.OPD)
	end := tr.tok.EndOfTurn()
	g := &group{}
	for i, answer := range [][]int32{{5, 6, end}, {5, 6, 7}, {5, 6, 7, 8}} {
		seq := model.Answer(append([]int32{1, 2}, answer...), 2)
		g.answers = append(g.answers, newAnswer(i == 1, &actor.Sequence{Seq: seq,
			Old: make([]float32, len(answer))}))
	}
	r := &round{groups: []*group{g}}
	var read []reading
	for _, seq := range r.rollout().Seqs() {
		read = append(read, reading{by: teacherOf(tr), seq: seq})
	}
	m := Metrics{}
	adv, err := tr.stage.(*opd).teachers.advantages(m, r, read)
	if err != nil {
		t.Fatal(err)
	}
	logp, err := teacherOf(tr).LogProbs(readSeqs(read), 1)
	if err != nil {
		t.Fatal(err)
	}
	mean := 0.0
	for s, row := range logp {
		for i, x := range row {
			if s != 2 || i != 3 {
				mean += float64(x) / 9
			}
		}
	}
	logp[2][3] = float32(mean)
	for s, row := range logp {
		for i, x := range row {
			if !near(adv[s][i], float64(x), 1e-6) {
				t.Errorf("answer %d, token %d: advantage %g, want %g", s, i, adv[s][i], x)
			}
		}
	}
	for name, want := range map[string]float64{"opd/ends_compared": 0.5, "opd/reverse_kl": -mean,
		"opd/teacher_nll": -mean} {
		if !near(m[name], want, 1e-6) {
			t.Errorf("%s %g, want %g", name, m[name], want)
		}
	}
	if got, want := g.answers[2].taught.logp, float64(logp[2][0]+logp[2][1]+logp[2][2])/3; !near(got,
		want, 1e-6) {
		t.Errorf("the teacher's mean of an answer is %g, want %g", got, want)
	}
}

// A teacher whose positions end before the longest prompt and answer is refused before anything is
// written, as gad plan refuses it; where it reads prompts of its own, by the row that is too long.
func TestShortTeacher(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	short := func(positions string) string {
		return "teacher.path=" + copied(t, fixed.student, "config.json",
			`"max_position_embeddings": 128`, `"max_position_embeddings": `+positions)
	}
	limit := "data.max_prompt_length + data.max_response_length = 78, but max_position_embeddings is 77: lower them"
	for _, c := range []struct {
		stage     config.Stage
		positions string
		more      string
		want      string
	}{
		{config.OPD, "77", "", limit},
		{config.Train, "77", "algorithm.teacher_weight=1", limit},
		{config.OPD, "77", "teacher.horizon=14 teacher.horizon_schedule=linear", limit},
		{config.OPD, "69", "teacher.horizon=6 teacher.horizon_schedule=constant",
			"data.max_prompt_length + teacher.horizon = 70, but max_position_embeddings is 69"},
		{config.OPD, "62", "teacher.system=be data.max_prompt_length=39",
			"data: row 3: the teacher would read 63 tokens, and "},
	} {
		cfg := settings(c.stage, run, append(strings.Fields(c.more), short(c.positions))...)
		wantError(t, openError(t, cfg, c.stage), config.ErrConfig, c.want)
		if _, err := os.Stat(run); err == nil {
			t.Fatalf("%s: the run's folder was made", c.more)
		}
		if strings.HasPrefix(c.want, "data: ") {
			continue // only a run reads all rows
		}
		_, err := plan.New(be, nil, 0, vfs.OS, cfg, c.stage)
		wantError(t, err, config.ErrConfig, c.want)
	}
	for positions, more := range map[string]string{"78": "",
		"64": "teacher.system=be data.max_prompt_length=39"} {
		opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"),
			append(strings.Fields(more), short(positions))...), config.OPD)
	}
}

// A plan of OPD counts the teacher with its own shape, in memory and in time.
func TestOPDPlan(t *testing.T) {
	be := ready(t)
	cfg := settings(config.OPD, filepath.Join(t.TempDir(), "run"), "trainer.total_steps=1")
	of := func(teacher string) (text string, bytes int64, pass float64) {
		cfg.Teacher.Path = teacher
		p, err := plan.New(be, nil, 0, vfs.OS, cfg, config.OPD)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range p.StepTime {
			if part.Name == "teacher_logp" {
				pass = part.Seconds
			}
		}
		return p.String(), plan.Total(p.Memory), pass
	}
	text, bytes, pass := of(fixed.student)
	for _, want := range []string{"teacher: weights", "teacher_logp", "rollout", "update_actor",
		"actor: key/value cache"} {
		if !strings.Contains(text, want) {
			t.Errorf("the plan has no %q:\n%s", want, text)
		}
	}
	shape := modeltest.Shape
	shape.Vocab, shape.Layers = fixed.tok.Size(), 12
	m, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	larger := filepath.Join(t.TempDir(), "larger")
	if err := errors.Join(export.WriteFolder(vfs.OS, larger, m, fixed.tok, "float32"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
	_, more, longer := of(larger)
	// Other programs slow down either measurement: the shortest of several are compared.
	for try := 0; longer <= pass && try < 100; try++ {
		_, _, again := of(fixed.student)
		pass = min(pass, again)
	}
	if more <= bytes || longer <= pass {
		t.Errorf("a teacher of six times the layers: %d bytes and %g s, was %d and %g", more,
			longer, bytes, pass)
	}
}

// What cannot be meant is refused before anything is written.
func TestOPDSettings(t *testing.T) {
	ready(t)
	run := filepath.Join(t.TempDir(), "run")
	strange := copied(t, fixed.student, "tokenizer.json", `"Ġi": 256`, `"Ġi": 257`,
		`"Ġt": 257`, `"Ġt": 256`)
	for override, want := range map[string]string{
		"teacher.loss=exact actor.use_kl_loss=true": "settings: actor.use_kl_loss is true: with",
		"teacher.loss=topk actor.use_kl_loss=true":  "settings: actor.use_kl_loss is true: with teacher.loss=topk",
		"teacher.path=":                              "settings: teacher.path: no teacher: give --teacher DIR",
		"rollout.temperature=0.8":                    "settings: rollout.temperature is 0.8: gad opd compares",
		"teacher.path=" + fixed.root + "/none":       "teacher.path: ",
		"teacher.loss=exact teacher.path=" + strange: "the two models are compared token by token: give a teacher.path with the same tokenizer, or use teacher.loss=policy",
	} {
		wantError(t, openError(t, settings(config.OPD, run, strings.Fields(override)...),
			config.OPD), nil, want)
		if _, err := os.Stat(run); err == nil {
			t.Errorf("%s: the run's folder was made", override)
		}
	}
}
