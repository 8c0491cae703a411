package trainer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// tagged returns a copy of the training data whose column hint is the teacher's name, as of gives
// it for a row.
func tagged(t testing.TB, of func(i int) any) string {
	t.Helper()
	return hinted(t, func(i int, _ string) any { return of(i) })
}

// byHint are the settings of two teachers by the column hint.
func byHint(more ...string) []string {
	return append(more, "teacher.path=", "teacher.by=hint",
		"teacher.models=a="+fixed.blank+",b="+fixed.student)
}

// studentAfterTwo returns the student's weights after two steps of a run.
func studentAfterTwo(t *testing.T, stage config.Stage, o Options, set ...string) string {
	t.Helper()
	run := filepath.Join(t.TempDir(), "run")
	tr, err := Open(settings(stage, run, append(half("trainer.total_steps=2"), set...)...), stage, o)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if err := tr.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(run, "global_step_2/actor/model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// Rows of one teacher give the bits of a run with that teacher alone on these rows, whichever the
// loss, beside the discriminator and behind a server.
func TestTeachersByRowAreSeparateRuns(t *testing.T) {
	t.Parallel()
	be := ready(t)
	data := tagged(t, func(i int) any { return string("ab"[i%2]) })
	server := map[string]Scores{}
	for _, dir := range []string{fixed.blank, fixed.student} {
		m, err := model.Load(be, dir, model.Options{Kind: model.LM})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		server["http://"+filepath.Base(dir)] = &lent{m: m}
	}
	after := func(stage config.Stage, set []string) string {
		return studentAfterTwo(t, stage, Options{FS: vfs.OS, Backend: be, Teachers: server},
			append(set, "data.train_files="+data)...)
	}
	for _, c := range []struct {
		stage  config.Stage
		more   string
		server bool
	}{{config.OPD, "teacher.loss=policy", true}, {config.OPD, "teacher.loss=exact", false},
		{config.OPD, "teacher.loss=topk teacher.top_k=6", true},
		{config.Train, "algorithm.teacher_weight=0.5", false}} {
		if testing.Short() && c.more != "teacher.loss=policy" {
			continue
		}
		var both []string
		for tag, dir := range map[string]string{"a": fixed.blank, "b": fixed.student} {
			set := append(strings.Fields(c.more), "data.where=hint = "+tag)
			alone := after(c.stage, append(slices.Clone(set), "teacher.path="+dir))
			if after(c.stage, byHint(set...)) != alone {
				t.Errorf("%s: rows of %s: other weights than with that teacher alone", c.more, tag)
			}
			if !c.server {
				continue
			}
			behind := append(slices.Clone(set), "teacher.path=", "teacher.by=hint",
				"teacher.models=a=http://blank,b=http://student")
			if after(c.stage, behind) != alone {
				t.Errorf("%s: rows of %s behind a server: other weights", c.more, tag)
			}
			both = append(both, alone)
		}
		if c.server && both[0] == both[1] {
			t.Errorf("%s: both teachers give the same weights", c.more)
		}
		if c.server && after(c.stage, byHint(strings.Fields(c.more)...)) ==
			after(c.stage, append(strings.Fields(c.more), "teacher.path="+fixed.blank)) {
			t.Errorf("%s: with the rows of both one teacher scores all", c.more)
		}
	}
}

// In a step with rows of several teachers each answer has the log-probabilities of its row's,
// loaded or behind a server, and the step's operations are those of both.
func TestTeachersOfAStep(t *testing.T) {
	be := ready(t)
	m, err := model.Load(be, fixed.student, model.Options{Kind: model.LM})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	data := tagged(t, func(i int) any { return []any{1, "b", "c"}[i%3] })
	open := func(set ...string) (*Trainer, *opd, *round) {
		tr, err := Open(settings(config.OPD, filepath.Join(t.TempDir(), "run"), append(set,
			"data.train_files="+data, "data.train_batch_size=12")...), config.OPD,
			Options{FS: vfs.OS, Backend: be, Teachers: served(&lent{m: m})})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tr.Close() })
		o := tr.stage.(*opd)
		return tr, o, sampledRound(t, tr, &o.onPolicy, 12)
	}
	scored := func(o *opd, r *round) [][]float32 {
		read, err := o.teachers.readings(r)
		if err != nil {
			t.Fatal(err)
		}
		logpST, err := o.teachers.logProbs(Metrics{}, r, read)
		if err != nil {
			t.Fatal(err)
		}
		return logpST
	}
	tr, o, r := open("teacher.path=", "teacher.by=hint", fmt.Sprintf(
		"teacher.models=1=%s, b=%s, c=http://localhost/v1", fixed.blank, fixed.blank))
	if n := len(tr.stage.networks()); n != 1 || len(o.teachers.list) != 2 {
		t.Errorf("%d networks of %d teachers: a folder is held once", n, len(o.teachers.list))
	}
	got := scored(o, r)
	of := map[string][][]float32{}
	for name, dir := range map[string]string{"blank": fixed.blank, "student": fixed.student} {
		_, one, same := open("teacher.path=" + dir)
		of[name] = scored(one, same)
	}
	answers := r.group()
	for i, p := range answers {
		want := of["blank"][i]
		if r.groups[p].Index%3 == 2 {
			want = of["student"][i]
		}
		if !slices.Equal(got[i], want) {
			t.Errorf("answer %d, of row %d: another teacher's values", i, r.groups[p].Index)
		}
	}
}

// What cannot be meant is refused: with the row, before anything is written.
func TestTeachersByRowSettings(t *testing.T) {
	ready(t)
	known := tagged(t, func(i int) any { return string("ab"[i%2]) })
	for _, c := range []struct{ data, more, want string }{
		{tagged(t, func(i int) any { return string("aab"[i%2+i/39]) }), "",
			`configuration: data: row 39: column "hint" (teacher.by): "b" has no teacher among those of teacher.models (a, x): add it there, or leave such rows out (data.where)`},
		{tagged(t, func(i int) any {
			if i == 7 {
				return nil
			}
			return "a"
		}), "", `data: row 7: column "hint" (teacher.by): "" has no teacher`},
		{known, "teacher.models=", "teacher.by is hint, and teacher.models is empty: give VALUE=FOLDER"},
		{known, "teacher.models=a", `teacher.models: "a": write VALUE=FOLDER or VALUE=URL`},
		{known, "teacher.models=a=x,a=y", "teacher.models: a is given twice: a row has one teacher"},
		{known, "teacher.path=x",
			"teacher.path is x, and teacher.by hint names the teachers of teacher.models: leave one of them out"},
		{known, "teacher.models=a=" + fixed.blank + ",b=" + filepath.Join(fixed.root, "none"),
			"teacher.models: b: "},
		{known, "teacher.loss=exact teacher.models=a=" + fixed.blank + ",b=http://x",
			"teacher.loss is exact, which needs whole distributions"},
		{known, "teacher.by=tag", `teacher.by): "" has no teacher`},
	} {
		run := filepath.Join(t.TempDir(), "run")
		err := openError(t, settings(config.OPD, run, append([]string{"data.train_files=" + c.data,
			"teacher.path=", "teacher.by=hint", "teacher.models=a=" + fixed.blank + ",x=" + fixed.blank},
			strings.Fields(c.more)...)...), config.OPD)
		wantError(t, err, nil, c.want)
		if _, err := os.Stat(run); err == nil {
			t.Errorf("%s: the run's folder was made", c.want)
		}
	}
	c := settings(config.OPD, "run", "teacher.models=a=x")
	if why := c.Ignores(config.OPD, "teacher.models"); why != "teacher.by is empty" {
		t.Errorf("teacher.models without teacher.by is idle because %q", why)
	}
}

// A plan counts each teacher's weights once, however many values name it.
func TestTeachersByRowPlan(t *testing.T) {
	be := ready(t)
	shape, err := model.ReadConfig(fixed.blank)
	if err != nil {
		t.Fatal(err)
	}
	need := func(models string) int64 {
		return plan.Need(be, shape, settings(config.OPD, "run", "teacher.path=", "teacher.by=hint",
			"teacher.models="+models), config.OPD, 1)
	}
	one := need("a=" + fixed.blank)
	two := need("a=" + fixed.blank + ",b=" + fixed.student)
	weights := int64(4 * shape.ParamCount(model.LM))
	if same := need("a=" + fixed.blank + ",b=" + fixed.blank); same != one {
		t.Errorf("two values of one folder: %d bytes, with one value %d", same, one)
	}
	if more := two - one; more < weights || more > weights+weights/4 {
		t.Errorf("a second teacher takes %d bytes, its weights %d", more, weights)
	}
}
