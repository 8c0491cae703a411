package study

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gad/internal/conf"
	"gad/internal/hostile"
)

const example = `name: two forms
output: runs/two-forms
data: task/train.arrow
model: task/{seed}/student
seeds: [1, 2]
common: [data.max_prompt_length=48, data.max_response_length=40]
eval: {data: task/test.arrow, checker: '"$GAD" task check two-forms', temperatures: [1, 0], rows: 600, also: {shifted: /data/shifted.arrow}, against: 'm/{seed}', disc_steps: 200, disc_seeds: 1}
budget: {like: GAD}
stages:
  sft: {run: sft, steps: 400, set: [actor.optim.lr=3e-3]}
arms:
  SeqKD: [sft]
  SeqKD, equal compute: [{run: sft, steps: fill, set: [actor.optim.lr=3e-3]}]
  GAD: [sft, {run: warmup, critic_warmup: 0, preset: gad}, {run: train, steps: 80}]
compare: [SeqKD, GAD]
`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "two.yaml")
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	path := write(t, example)
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string {
		return filepath.Join(filepath.Dir(path),
			filepath.FromSlash(name))
	}
	sft := &Stage{Name: "sft", Run: "sft", Steps: 400, Set: []string{"actor.optim.lr=3e-3"},
		CriticWarmup: -1}
	want := &Plan{File: path, Name: "two forms", Dir: at("runs/two-forms"),
		Data: at("task/train.arrow"), Model: at("task/{seed}/student"),
		Seeds: []uint64{1, 2}, Common: []string{"data.max_prompt_length=48",
			"data.max_response_length=40"},
		Eval: Eval{Sets: []Set{{"test", at("task/test.arrow")}, {"shifted", "/data/shifted.arrow"}}, Checker: `"$GAD" task check two-forms`,
			Temperatures: []float64{1, 0}, Rows: 600, Against: at("m/{seed}"), DiscSteps: 200,
			DiscSeeds: 1},
		Budget: Budget{Like: "GAD"}, Metrics: DefaultMetrics, Compare: []string{"SeqKD", "GAD"},
		Arms: []Arm{{"SeqKD", []*Stage{sft}},
			{"SeqKD, equal compute", []*Stage{
				{Run: "sft", Fill: true, Set: sft.Set, CriticWarmup: -1}}},
			{"GAD", []*Stage{sft, {Run: "warmup", Preset: "gad"},
				{Run: "train", Steps: 80, CriticWarmup: -1}}}}}
	if !reflect.DeepEqual(got, want) {
		a, _ := json.MarshalIndent(got, "", " ")
		b, _ := json.MarshalIndent(want, "", " ")
		t.Errorf("got %s\nwant %s", a, b)
	}
	if got.Arms[0].Stages[0] != got.Arms[2].Stages[0] {
		t.Error("a named stage is not shared")
	}
}

// Lists of settings stand in others by their names; a misspelt one is refused.
func TestNamedSettings(t *testing.T) {
	text := "data: a\nmodel: b\nseeds: [7]\neval: {data: c}\nsettings: {rate: [actor.optim.lr=1e-3], learn: [rate, actor.grad_clip=1]}\ncommon: [rate]\narms: {one: [{run: sft, set: [learn, rollout.n=4]}]}\n"
	p, err := Read(write(t, text))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"actor.optim.lr=1e-3", "actor.grad_clip=1", "rollout.n=4"}
	if got := p.Arms[0].Stages[0].Set; !reflect.DeepEqual(got, want) ||
		!reflect.DeepEqual(p.Common, want[:1]) {
		t.Errorf("%q and %q, want %q", got, p.Common, want)
	}
	if _, err := Read(write(t, strings.Replace(text, "set: [learn", "set: [laern", 1))); err == nil || !strings.Contains(err.Error(), `did you mean "learn"?`) {
		t.Errorf("a misspelt list: %v", err)
	}
}

// Each path of a list is relative to the study's file, and {student} is no path.
func TestListsOfPaths(t *testing.T) {
	path := write(t,
		"data: a\nmodel: b\nseeds: [7]\neval: {data: c}\narms: {one: [{run: opd, data: 'x:/y:../z', teacher: '{student}'}]}\n")
	p, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, s := filepath.Dir(path), p.Arms[0].Stages[0]
	if want := filepath.Join(dir, "x") + ":/y:" + filepath.Join(dir, "../z"); s.Data != want ||
		s.Teacher != ownStudent {
		t.Errorf("data %s, want %s; teacher %s", s.Data, want, s.Teacher)
	}
}

// The least that a study needs, and what it takes for the rest.
func TestDefaults(t *testing.T) {
	p, err := Read(
		write(t, "data: a\nmodel: b\nseeds: [7]\neval: {data: c}\narms: {one: [{run: sft}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "two" || filepath.Base(p.Dir) != "two.study" ||
		!reflect.DeepEqual(p.Eval.Temperatures, []float64{1}) ||
		!reflect.DeepEqual(p.Compare, []string{"one"}) {
		t.Errorf("%+v", p)
	}
}

func TestProblems(t *testing.T) {
	swap := func(old, new string) string {
		if !strings.Contains(example, old) {
			t.Fatalf("the example has no %q", old)
		}
		return strings.Replace(example, old, new, 1)
	}
	for _, c := range []struct{ text, want string }{
		{swap("seeds:", "sedes:"), `settings: two.yaml:5:1: setting "sedes": unknown: did you mean "seeds"?` + "\n" + `settings: two.yaml:1:1: "seeds" is missing`},
		{swap("rows: 600", "row: 600"), `settings: two.yaml:7:93: setting "eval.row": unknown: did you mean "rows"?`},
		{swap("disc_steps: 200, ", ""), `settings: two.yaml:7:175: setting "eval.disc_seeds": there are no fresh discriminators without disc_steps`},
		{swap("disc_seeds: 1", "disc_seeds: -1"), `settings: two.yaml:7:192: setting "eval.disc_seeds": -1: below the minimum 0`},
		{swap("steps: 400", "stepz: 400"), `settings: two.yaml:10:19: setting "stages.sft.stepz": unknown: did you mean "steps"?`},
		{swap("steps: 80", "zzz: 80"), `settings: two.yaml:14:73: setting "arms.GAD[2].zzz": unknown: known here: run, steps, set, preset, critic_warmup, data, env, ratings, teacher`},
		{swap("run: train", "run: trian"), `settings: two.yaml:14:66: setting "arms.GAD[2].run": "trian": did you mean "train"?`},
		{swap("steps: 400", "steps: 0"), `settings: two.yaml:10:26: setting "stages.sft.steps": "0": expected a number of steps, or fill`},
		{swap("steps: 400", "steps: many"), `settings: two.yaml:10:26: setting "stages.sft.steps": "many": expected a number of steps, or fill`},
		{swap("[sft]", "[stf]"), `settings: two.yaml:12:11: setting "arms.SeqKD[0]": "stf": no such stage: did you mean "sft"?`},
		{swap("[sft]", "[]"), `settings: two.yaml:12:10: setting "arms.SeqKD": expected at least one stage`},
		{swap("{like: GAD}", "{like: GAAD}"), `settings: two.yaml:8:16: setting "budget.like": "GAAD": no such arm: did you mean "GAD"?`},
		{swap("{like: GAD}", "{like: 'SeqKD, equal compute'}"), `settings: two.yaml:8:16: setting "budget.like": "SeqKD, equal compute" itself has steps: fill`},
		{swap("{like: GAD}", "{tflop: 1, seconds: 2}"), `settings: two.yaml:8:9: setting "budget": expected one of tflop, seconds and like`},
		{swap("{like: GAD}", "{tflop: -1}"), `settings: two.yaml:8:17: setting "budget.tflop": must be above 0`},
		{swap("budget: {like: GAD}\n", ""), `settings: two.yaml:12:26: setting "arms.SeqKD, equal compute[0]": steps: fill needs a budget, such as budget: {tflop: 8} or {like: SeqKD}`},
		{swap("steps: fill, set: [actor.optim.lr=3e-3]}", "steps: fill}, sft"), `settings: two.yaml:13:26: setting "arms.SeqKD, equal compute[0]": steps: fill is for the last stage of an arm: what comes after it has no budget left`},
		{swap("run: warmup", "run: sft"), `settings: two.yaml:14:51: setting "arms.GAD[1].preset": is for warmup and train: it changes nothing in sft` + "\n" + `settings: two.yaml:14:40: setting "arms.GAD[1].critic_warmup": sft has no discriminator` + "\n" + `settings: two.yaml:14:57: setting "arms.GAD[2]": train needs a discriminator: put a warmup before it`},
		{swap("actor.optim.lr=3e-3", "actor.optim.lr"), `settings: two.yaml:10:37: setting "stages.sft.set[0]": "actor.optim.lr": expected SETTING=VALUE, such as actor.optim.lr=3e-3`},
		{swap("actor.optim.lr=3e-3", "trainer.checker=true"), `settings: two.yaml:10:36: setting "stages.sft.set": trainer.checker: give it in common: a stage takes no checker from the one before it`},
		{swap("steps: 80", "steps: fill, critic_warmup: 5"), `settings: two.yaml:14:80: setting "arms.GAD[2].steps": fill is for stages whose steps cost the same: leave out the steps that train the discriminator alone` + "\n"},
		{swap("actor.optim.lr=3e-3", "trainer.seed=3"), `settings: two.yaml:10:37: setting "stages.sft.set[0]": "trainer.seed": the study sets it: see seeds, output, model, data, device and precision, and the flag --jobs`},
		{swap("actor.optim.lr=3e-3", "trainer.total_steps=3"), `settings: two.yaml:10:37: setting "stages.sft.set[0]": "trainer.total_steps": write steps: N in the stage`},
		{swap("[1, 2]", "[1, 1]"), `settings: two.yaml:5:8: setting "seeds": seed 1 appears twice`},
		{swap("[1, 2]", "[1, 2]\nmetrics: [critic/d_acc, critic/nonsense]"), `settings: two.yaml:6:10: setting "metrics": "critic/nonsense": no such metric: doc/metrics.md lists all`},
		{swap("[1, 2]", "[1, 2]\nmetrics: [lost(critic/d_ac)]"), `settings: two.yaml:6:10: setting "metrics": "critic/d_ac": no such metric: did you mean "critic/d_acc"?`},
		{swap("[1, 2]", "[1, 2]\nmetrics: [gained(critic/d_acc)]"), `settings: two.yaml:6:10: setting "metrics": "gained(critic/d_acc)": no such metric: doc/metrics.md lists all`},
		{swap("[1, 2]", "[1, 2]\nmetrics: [critic/d_ac]"), `settings: two.yaml:6:10: setting "metrics": "critic/d_ac": no such metric: did you mean "critic/d_acc"?`},
		{swap("[1, 2]", "[]"), `settings: two.yaml:5:8: setting "seeds": expected at least one seed, such as [1, 2, 3]`},
		{swap("[1, 2]", "2"), `settings: two.yaml:5:8: setting "seeds": expected a list, such as [a, b]` + "\n" + `settings: two.yaml:5:8: setting "seeds": expected at least one seed, such as [1, 2, 3]`},
		{swap("shifted:", "test:"), `settings: two.yaml:7:117: setting "eval.also.test": is the name of eval.data: choose another`},
		{swap("[SeqKD, GAD]", "[SeqK]"), `settings: two.yaml:15:10: setting "compare": "SeqK": no such arm: did you mean "SeqKD"?`},
		{swap("rows: 600", "rows: '600'"), `settings: two.yaml:7:99: setting "eval.rows": "600": expected an integer: write it without quotes`},
		{swap("name: two forms", "name: &a two forms"), `settings: two.yaml:1:7: setting "name": anchors (&name) are refused: write the value out where it is needed`},
		{swap("  GAD:", "  SeqKD:"), `settings: two.yaml:14:3: setting "arms.SeqKD": given twice, first at 12:10: keep one` + "\n"},
		{swap("seeds:", "env: ''\nseeds:"), `settings: two.yaml:5:6: setting "env": empty: give a command, such as '"$GAD" env doors'`},
		{swap("steps: 80", "env: none"), `settings: two.yaml:14:78: setting "arms.GAD[2].env": the study has no env`},
		{swap("steps: 400", "env: none"), `settings: two.yaml:10:24: setting "stages.sft.env": is for warmup and train: sft acts in no environment`},
		{swap("run: sft, steps: 400", "run: opd"), `settings: two.yaml:10:8: setting "stages.sft": "teacher" is missing: the model that opd learns from`},
		{swap("steps: 400", "teacher: big"), `settings: two.yaml:10:28: setting "stages.sft.teacher": is for opd, warmup and train: sft learns from the rows alone`},
		{swap("steps: 80", "env: doors"), `settings: two.yaml:14:78: setting "arms.GAD[2].env": "doors": expected none: the environment is the study's env`},
		{swap("actor.optim.lr=3e-3", "env.command=doors"), `settings: two.yaml:10:37: setting "stages.sft.set[0]": "env.command": write env: COMMAND at the top of the study`},
		{swap("seeds:", "env: doors\nseeds:"), `settings: two.yaml:8:40: setting "eval.checker": is for single answers: with env the environment's reward is the figure: leave it out` + "\n"},
		{"", "settings: two.yaml: empty: expected groups and settings"},
		{"a: [", "settings: two.yaml:1: not YAML: did not find expected node content"},
	} {
		path := write(t, c.text)
		_, err := Read(path)
		var problems conf.Problems
		if !errors.As(err, &problems) {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		got := strings.ReplaceAll(err.Error(), path, "two.yaml")
		if more := strings.HasSuffix(c.want, "\n"); !more && got != c.want || more &&
			!strings.HasPrefix(got, c.want) {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// Damaged files are refused or read; none ends the program.
func TestHostileFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.yaml")
	hostile.Format{
		Name: "study",
		Small: []byte(
			"data: a\nmodel: b\nseeds: [7]\neval: {data: c}\narms: {one: [{run: sft}]}\n"),
		Seeds: [][]byte{[]byte(example)},
		Words: []string{"&a ", "*a", "<<: ", "!!int ", "- ", "? ", ": ", "{", "[", "~", "fill",
			"{}", "[]", "null", "\x00"},
		Prefix: "settings: ",
		Read: func(text []byte) error {
			if err := os.WriteFile(path, text, 0o666); err != nil {
				t.Fatal(err)
			}
			_, err := Read(path)
			return err
		},
	}.Try(t)
}
