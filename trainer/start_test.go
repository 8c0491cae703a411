package trainer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/apps/doctor"
	"gad/data"
	"gad/internal/compute"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// started are the start/ metrics of a run's first step, by the names of val/ metrics.
func started(r report.Row) map[string]float64 {
	m := map[string]float64{}
	for name, x := range r.Values {
		if at, ok := strings.CutPrefix(name, "start/"); ok {
			m["val/"+at] = x
		}
	}
	return m
}

// Figures that another run has measured are taken where every setting that they depend on is the
// same, and whatever the others are.
func TestValidationIsOfItsSettings(t *testing.T) {
	ready(t)
	rows := func(path string) *data.Set {
		set, err := data.Open(path, data.DefaultColumns())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { set.Close() })
		return set
	}
	val, other := rows(fixed.val), rows(fixed.data)
	for _, c := range []struct {
		kind            string
		stage           config.Stage
		base            []string
		matter, equally []string
	}{
		{"answers", config.SFT, nil,
			[]string{"data.max_prompt_length=63", "data.max_response_length=13",
				"trainer.checker=true", "trainer.held_out_critic=x", "trainer.device=cuda",
				"trainer.precision=bf16", "rollout.chunk=6", "trainer.val_rows=3",
				"data.val_files=" + fixed.data, "data.chat_template=chatml"},
			[]string{"actor.optim.lr=1e-5", "rollout.n=2", "rollout.temperature=0.5",
				"data.train_batch_size=2", "trainer.total_steps=9", "trainer.seed=7",
				"actor.max_token_len=400", "rollout.max_num_seqs=3"}},
		{"thoughts", config.Warmup, thinking(),
			[]string{"rollout.chunk=7", "rollout.carry=2", "rollout.carry_head=0",
				"rollout.chunks=5", "critic.reads=last"}, []string{"rollout.n=2"}},
		{"episodes", config.Warmup, []string{"env.command=true"},
			[]string{"env.command=false", "env.other_start=true", "env.max_turns=3",
				"env.max_tokens=79", "env.invalid_penalty=0.5", "trainer.seed=7"},
			[]string{"env.workers=1", "env.timeout=9", "env.max_faults=0.9", "rollout.n=2"}},
	} {
		digest := func(more ...string) string {
			cfg := settings(c.stage, t.TempDir(), slices.Concat(c.base, more)...)
			tok, err := fixed.tok.With(tokenizer.ChatOptions{Template: cfg.Data.ChatTemplate})
			if err != nil {
				t.Fatal(err)
			}
			tr := &Trainer{Stage: c.stage, cfg: cfg, tok: tok,
				val: valData{val, []int{0, 1, 2, 3}}}
			tr.form = newForm(tr)
			if cfg.Trainer.ValRows == 3 {
				tr.val.rows = tr.val.rows[:3]
			}
			if len(cfg.Data.ValFiles) > 0 {
				tr.val.set = other
			}
			return tr.validationDigest()
		}
		seen := map[string]string{digest(): "none changed"}
		for _, s := range c.matter {
			d := digest(s)
			if seen[d] != "" {
				t.Errorf("%s: %s: figures measured with %s are taken", c.kind, s, seen[d])
			}
			seen[d] = s
		}
		for _, s := range c.equally {
			if seen[digest(s)] != "none changed" {
				t.Errorf("%s: %s: the figures are measured anew", c.kind, s)
			}
		}
	}
}

// The student is validated before the first step. A game that begins with what the warm-up
// has measured at its end takes its figures, and measures by itself where the validation is
// another one. That changes no bit of the run.
func TestValidationBeforeTheFirstStep(t *testing.T) {
	be := ready(t)
	dir := t.TempDir()
	warmup := filepath.Join(dir, "warmup")
	rows := finished(t, be, settings(config.Warmup, warmup, "trainer.total_steps=2",
		"trainer.critic_warmup=1", "data.val_files="+fixed.val), config.Warmup)
	if n := len(started(rows[0])); n != 3 || rows[0].Values["timing_s/val"] <= 0 ||
		len(started(rows[1])) > 0 {
		t.Errorf("warm-up: step 1 has %d start/ metrics, val %g s; step 2 has %d", n,
			rows[0].Values["timing_s/val"], len(started(rows[1])))
	}
	want := map[string]float64{}
	for name, x := range rows[1].Values {
		if strings.HasPrefix(name, "val/") {
			want[name] = x
		}
	}
	records := map[string]map[string]string{}
	for name, c := range map[string]struct {
		override string
		measured bool
		start    map[string]float64
	}{
		"the same validation": {"trainer.val_rows=4", false, want},
		"fewer rows":          {"trainer.val_rows=3", true, nil},
		"none":                {"trainer.val_before_train=false", false, map[string]float64{}},
	} {
		run := filepath.Join(dir, name)
		rows := finished(t, be, settings(config.Train, run, "trainer.total_steps=2",
			"trainer.resume_from="+warmup, "data.val_files="+fixed.val, c.override), config.Train)
		if _, measured := rows[0].Values["timing_s/val"]; measured != c.measured {
			t.Errorf("%s: measured %v, want %v", name, measured, c.measured)
		}
		if got := started(rows[0]); c.start != nil && !maps.Equal(got, c.start) {
			t.Errorf("%s: start/ is %v, the warm-up ended with %v", name, got, c.start)
		} else if c.start == nil && len(got) != 3 {
			t.Errorf("%s: start/ is %v", name, got)
		}
		if c.measured {
			continue
		}
		for name := range rows[0].Values {
			if strings.HasPrefix(name, "start/") {
				delete(rows[0].Values, name)
			}
		}
		raw, err := json.Marshal(rows[0].Values["actor/pg_loss"])
		if err != nil {
			t.Fatal(err)
		}
		records[name] = filesOf(t, filepath.Join(run, "global_step_2"))
		records[name]["pg_loss"] = string(raw)
	}
	same := records["the same validation"]
	if len(same) < 8 || !maps.Equal(same, records["none"]) {
		t.Errorf("the checkpoints of runs with and without a validation before the first step differ, or have only %d files", len(same))
	}
	// Stopped and resumed, it is measured once, in step 1.
	run := filepath.Join(dir, "stopped")
	cfg := settings(config.SFT, run, "trainer.total_steps=3", "data.val_files="+fixed.val)
	if err := part(t, cfg, config.SFT, 1, false); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	rows = finished(t, be, cfg, config.SFT)
	if len(rows) != 3 || len(started(rows[0])) != 3 || len(started(rows[1])) > 0 {
		t.Errorf("%d steps; start/ in step 1: %v, in step 2: %v", len(rows), started(rows[0]),
			started(rows[1]))
	}
	if raw, err := os.ReadFile(filepath.Join(run, "log.jsonl")); err != nil ||
		!strings.Contains(string(raw),
			fmt.Sprintf("before the first step: ROUGE-L %.3f, NLL of the teacher's answers %.3f\"",
				rows[0].Values["start/rouge_l"], rows[0].Values["start/teacher_nll"])) {
		t.Errorf("the log lacks the figures before the first step (%v):\n%s", err, raw)
	}
	// The same prompts were answered before the first step and after the last.
	var asked [2][]string
	for i, step := range []int{0, 3} {
		samples, _, err := report.ReadSamples(vfs.OS, run, report.InValidation, step)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range samples {
			if x.Student == "" || x.Teacher == "" {
				t.Errorf("step %d, row %d: student %q, teacher %q", step, x.Row, x.Student,
					x.Teacher)
			}
			asked[i] = append(asked[i], fmt.Sprint(x.Row, x.Prompt))
		}
	}
	if len(asked[0]) != 2 || !slices.Equal(asked[0], asked[1]) {
		t.Errorf("asked before %q\nafter %q", asked[0], asked[1])
	}
}

// A run that is stopped while it validates before the first step ends there, with nothing saved,
// and validates when it starts again.
func TestStoppedBeforeTheFirstStep(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	cfg := settings(config.SFT, run, "trainer.total_steps=1", "data.val_files="+fixed.val)
	tr := opened(t, be, cfg, config.SFT)
	stopped, stop := context.WithCancel(context.Background())
	stop()
	if err := errors.Join(tr.Run(stopped), tr.Close()); !errors.Is(err, ErrInterrupted) {
		t.Errorf("the run ended with %v", err)
	}
	for _, name := range []string{"samples/val_0.jsonl", "global_step_1"} {
		if _, err := os.Stat(filepath.Join(run, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	if rows := finished(t, be, cfg, config.SFT); len(rows) != 1 || len(started(rows[0])) != 3 {
		t.Errorf("started again: %+v", rows)
	}
}

// A step's entry of log.jsonl has every metric as a field of its own, and the console's line
// as its message.
func TestStepsInTheLog(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	rows := finished(t, be, settings(config.Train, run, "trainer.total_steps=2",
		"actor.ppo_mini_batch_size=2"), config.Train)
	raw, err := os.ReadFile(filepath.Join(run, "log.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(raw)) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		msg, _ := entry["msg"].(string)
		if !strings.HasPrefix(msg, "step ") {
			continue
		}
		row := rows[seen]
		seen++
		if entry["step"] != float64(row.Step) || entry["level"] != "info" ||
			!strings.Contains(msg, "  d_acc 0.") && !strings.Contains(msg, "  d_acc 1.") {
			t.Errorf("entry of step %d: step %v, level %v, %q", row.Step, entry["step"],
				entry["level"], msg)
		}
		for name, want := range row.Values {
			if got, ok := entry[name].(float64); !ok || got != want {
				t.Errorf("step %d: field %s is %v, metrics.jsonl has %v", row.Step, name,
					entry[name], want)
			}
		}
		for _, name := range []string{"critic/d_acc", "critic/d_acc_fresh", "actor/pg_clipfrac",
			"actor/kl_loss", "rollout/unique_frac"} {
			if _, ok := entry[name]; !ok {
				t.Errorf("step %d: no field %s", row.Step, name)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d entries of steps, want 2", seen)
	}
}

// A sign that needs no history is warned of in the step in which it shows: here no answer of
// the student ends, and the third of many steps is soon enough.
func TestWarnedAtOnce(t *testing.T) {
	ready(t)
	run := filepath.Join(t.TempDir(), "run")
	cfg := settings(config.Warmup, run, "trainer.total_steps=50", "trainer.critic_warmup=50",
		"model.path="+filepath.Join(fixed.root, "blank"),
		"data.max_response_length=8", "data.train_batch_size=2", "rollout.n=2",
		"rollout.temperature=0.01")
	if err := part(t, cfg, config.Warmup, 3, false); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(run, "log.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for _, want := range []string{
		"no pairs: critic/pairs 0 in the last 2 steps: if the student's answers are cut",
		"answers end at the limit: rollout/truncated_frac 1 over the last 2 steps: gad sft first"} {
		at, third := strings.Index(text, want), strings.Index(text, `"step 3/50`)
		if at < 0 || third < 0 || at > third || strings.Count(text, want) != 1 {
			t.Errorf("%q: at byte %d, step 3 at %d, %d times:\n%s", want, at, third,
				strings.Count(text, want), text)
		}
	}
	x, err := doctor.Examine(vfs.OS, run)
	if err != nil || len(x.Findings) == 0 || x.Findings[0].Name != "no pairs" {
		t.Errorf("doctor: %v, %+v", err, x)
	}
}

// What gad doctor says of a run's start: settings that are rarely right, how far the weights
// have moved, and a reference that is gone, without which resume refuses.
func TestExamineStart(t *testing.T) {
	be := ready(t)
	dir := t.TempDir()
	examine := func(run string) *doctor.Examination {
		t.Helper()
		x, err := doctor.Examine(vfs.OS, run)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	moved := map[string]float64{}
	for _, lr := range []string{"1e-3", "0"} {
		run := filepath.Join(dir, "lr"+lr)
		finished(t, be, settings(config.Train, run, "trainer.total_steps=2", "rollout.n=2",
			"actor.optim.lr="+lr), config.Train)
		x := examine(run)
		text := x.String()
		if len(x.Sick) > 0 || x.Moved == nil || x.MovedFrom != "reference" ||
			len(x.Settings) == 0 ||
			!strings.HasPrefix(x.Settings[len(x.Settings)-1], "rollout.n is 2: ") &&
				!strings.Contains(text, "rollout.n is 2: ") ||
			!strings.HasSuffix(text, "\nno problems found\n") {
			t.Fatalf("lr %s: %+v\n%s", lr, x, text)
		}
		moved[lr] = *x.Moved
	}
	if moved["0"] != 0 || moved["1e-3"] < 1e-4 || moved["1e-3"] > 0.1 {
		t.Errorf("the weights moved by %v", moved)
	}
	lora := []string{"trainer.total_steps=2", "actor.lora.rank=4", "critic.lora.rank=4",
		"actor.optim.lr=1e-3"}
	finished(t, be, settings(config.Warmup, filepath.Join(dir, "warm"),
		append(lora, "trainer.critic_warmup=1")...), config.Warmup)
	finished(t, be, settings(config.Train, filepath.Join(dir, "lora"),
		append(lora, "trainer.resume_from="+filepath.Join(dir, "warm"))...), config.Train)
	if x := examine(filepath.Join(dir, "lora")); x.Moved == nil || x.MovedFrom != "reference" ||
		*x.Moved <= 0 || *x.Moved > 1 || len(x.Sick) > 0 {
		t.Errorf("adapters: moved %v from %q, problems %q", x.Moved, x.MovedFrom, x.Sick)
	}
	run := filepath.Join(dir, "lr1e-3")
	weights := filepath.Join(run, "reference", "model.safetensors")
	if err := os.WriteFile(weights, []byte("gone"), 0o644); err != nil {
		t.Fatal(err)
	}
	if x := examine(run); len(x.Sick) != 1 ||
		!strings.Contains(x.Sick[0], "weights cannot be read: ") ||
		!strings.Contains(x.Sick[0], "model.safetensors") {
		t.Errorf("a damaged reference: %q", x.Sick)
	}
	if err := os.RemoveAll(filepath.Join(run, "reference")); err != nil {
		t.Fatal(err)
	}
	cfg := settings(config.Train, run, "trainer.total_steps=3", "rollout.n=2")
	refused := openError(t, cfg, config.Train)
	wantError(t, refused, nil, "the frozen reference is missing")
	if x := examine(run); len(x.Sick) != 1 ||
		!strings.Contains(x.Sick[0],
			"the frozen reference is missing: restore it, or start again with another --output") {
		t.Errorf("without its reference: %q", x.Sick)
	}

	// A warm-up whose discriminator has not learned is named, by the figures of its own warning.
	warmup := filepath.Join(dir, "deaf")
	finished(t, be, settings(config.Warmup, warmup, "trainer.total_steps=8",
		"trainer.critic_warmup=8", "critic.optim.lr=1e-12", "critic.score_init=1e-6"),
		config.Warmup)
	if x := examine(warmup); len(x.Sick) == 0 ||
		!strings.Contains(strings.Join(x.Sick, "\n"), "has not learned") {
		t.Errorf("a discriminator that cannot learn: %q", x.Sick)
	}
}

// What gad doctor says of a run whose files were harmed, one file at a time, and of one
// whose checkpoints are all gone: what is wrong, nothing else, and what would be resumed.
func TestExamineDamage(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	finished(t, be, settings(config.SFT, run, "trainer.total_steps=3", "trainer.save_freq=1"),
		config.SFT)
	examine := func() (x *doctor.Examination, text string) {
		t.Helper()
		x, err := doctor.Examine(vfs.OS, run)
		if err != nil {
			t.Fatal(err)
		}
		return x, x.String()
	}
	const edited = "its config.yaml has been edited: configuration: data.train_batch_size was 4 " +
		"when the run in "
	unread := "it cannot be resumed, since config.yaml cannot be read: settings: " +
		filepath.Join(run, "config.yaml")
	for _, c := range []struct {
		file, old, now string // without old: now is the file; without both there is none
		want           string // how the problems begin, each on a line
		resume         string
	}{
		{"global_step_3/trainer.json", "1", "2", "global_step_3 does not verify", "global_step_2"},
		{"metrics.jsonl", secondLine(t, run), "", "the metrics have a gap: step 2 is missing\n" +
			"the metrics end at step 2, the checkpoint is of step 3", ""},
		{"config.yaml", "train_batch_size: 4\n", "train_batch_size: 8\n", edited, ""},
		{"config.yaml", "", "\n", edited, ""},
		{"config.yaml", "", "", unread + ": no such file or directory", ""},
		{"config.yaml", "", ":::", unread + `:1:1: setting "::": unknown: known here: model, ` +
			`data, rollout, algorithm, actor, critic, dpo, teacher, coach, env, trainer`, ""},
		{"config.yaml", "", "a: [b", unread + ":1: not YAML: ", ""},
	} {
		path := filepath.Join(run, filepath.FromSlash(c.file))
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := c.now
		if c.old != "" {
			text = strings.Replace(string(whole), c.old, c.now, 1)
		}
		if err = os.WriteFile(path, []byte(text), 0o644); text == "" {
			err = os.Remove(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		x, said := examine()
		resume, problems := cmp.Or(c.resume, "global_step_3"), 1+strings.Count(c.want, "\n")
		if len(x.Sick) != problems ||
			!strings.HasPrefix(strings.Join(x.Sick, "\n"), c.want) || x.Resume != resume ||
			!strings.Contains(said, "\nproblems: "+x.Sick[0]) ||
			strings.Contains(said, "global_step_3     DAMAGED") != (c.resume != "") ||
			!strings.Contains(said, "step "+strings.TrimPrefix(resume, "global_step_")+" of 3\n") {
			t.Errorf("%s: problems %q, want %q\n%s", c.file, x.Sick, c.want, said)
		}
		if err := os.WriteFile(path, whole, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if x, said := examine(); len(x.Sick) > 0 || !strings.HasSuffix(said, "\nno problems found\n") {
		t.Errorf("whole again: %q", x.Sick)
	}
	for step := range 3 {
		if err := os.RemoveAll(filepath.Join(run, fmt.Sprint("global_step_", step+1))); err != nil {
			t.Fatal(err)
		}
	}
	if x, _ := examine(); !slices.Contains(x.Sick, "it has saved, and no checkpoint is left") {
		t.Errorf("without a checkpoint: %q", x.Sick)
	}
}

// secondLine returns the metrics of a run's second step.
func secondLine(t *testing.T, run string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(run, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.SplitAfter(string(raw), "\n")[1]
}

// roomy is a backend that samples as a GPU does, with so much memory.
type roomy struct {
	compute.Backend
	free int64
}

func (r roomy) DecodeMultiple() int { return 16 }
func (r roomy) Available() int64    { return r.free }

// How many answers are sampled at a time is chosen by the memory when a run begins. A run that goes
// on keeps its number, whatever the memory then is; the next stage chooses again, and a number that
// is set stays.
func TestSlotsOfARun(t *testing.T) {
	be := ready(t)
	const large, small = 1 << 40, 1 << 20
	for _, c := range []struct {
		name       string
		free, then int64
		set        string
		want       int
	}{
		{"large", large, small, "", 128},
		{"small", small, large, "", 64},
		{"set", large, small, "rollout.max_num_seqs=32", 32},
	} {
		run := filepath.Join(t.TempDir(), c.name)
		cfg := func(steps int) config.Config {
			return settings(config.Train, run, append(strings.Fields(c.set),
				"data.train_batch_size=8", "rollout.n=16", "actor.ppo_mini_batch_size=8",
				fmt.Sprintf("trainer.total_steps=%d", steps))...)
		}
		slots := func(free int64, steps int) int {
			tr := opened(t, roomy{be, free}, cfg(steps), config.Train)
			defer tr.Close()
			if err := tr.Run(context.Background()); err != nil {
				t.Fatal(err)
			}
			return tr.Config().Rollout.MaxNumSeqs
		}
		if got := slots(c.free, 1); got != c.want {
			t.Errorf("%s: a run begins with %d, want %d", c.name, got, c.want)
		}
		raw, err := os.ReadFile(filepath.Join(run, saved.ConfigName))
		stored := "max_num_seqs: 0\n"
		if c.set != "" {
			stored = "max_num_seqs: 32\n"
		}
		if err != nil || !strings.Contains(string(raw), stored) {
			t.Errorf("%s: %v: a later stage would not choose for itself:\n%s", c.name, err, raw)
		}
		if got := slots(c.then, 2); got != c.want {
			t.Errorf("%s: goes on with %d, want %d", c.name, got, c.want)
		}
	}
}
