package trainer

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/checkpoint"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/modeltest"
	"gad/trainer/saved"
)

// openError is the error of Open, which must be one line and leave no trace.
func openError(t *testing.T, c config.Config, stage config.Stage) error {
	t.Helper()
	be, err := newBackend(1)
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	tr, err := Open(c, stage, Options{FS: vfs.OS, Backend: be})
	if err == nil {
		tr.Close()
		t.Fatal("Open succeeds")
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %v", err)
	}
	return err
}

func wantError(t *testing.T, err error, is error, parts ...string) {
	t.Helper()
	if is != nil && !errors.Is(err, is) {
		t.Errorf("%v: want %v", err, is)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%v: does not say %q", err, p)
		}
	}
}

func absent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s was written", path)
	}
}

func steps(t *testing.T, run string) []int {
	t.Helper()
	s, err := checkpoint.Steps(vfs.OS, run)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The newest checkpoints are kept, and the best one beside them.
func TestWhichCheckpointsAreKept(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "last")
	finished(t, be, settings(config.SFT, run, "trainer.total_steps=5", "trainer.save_freq=1",
		"trainer.max_ckpt_to_keep=2"), config.SFT)
	if got := steps(t, run); !slices.Equal(got, []int{4, 5}) {
		t.Errorf("checkpoints %v, want the newest two of 5", got)
	}
	// Killed between the last save and its prune: the same command prunes, though it has finished.
	copyTree(t, filepath.Join(run, "global_step_4"), filepath.Join(run, "global_step_3"))
	state := filepath.Join(run, "global_step_3", saved.StateName)
	finished(t, be, settings(config.SFT, run, "trainer.total_steps=5", "trainer.save_freq=1",
		"trainer.max_ckpt_to_keep=2"), config.SFT)
	if got := steps(t, run); !slices.Equal(got, []int{4, 5}) {
		t.Errorf("checkpoints %v after a run that had finished, want the newest two of 5", got)
	}
	if _, err := os.Stat(state); err == nil {
		t.Errorf("%s is still there", state)
	}
	// Renamed checkpoints are named, and not gone on from.
	if err := errors.Join(os.Rename(filepath.Join(run, "global_step_5"), filepath.Join(run, "x")),
		os.Rename(filepath.Join(run, "global_step_4"), filepath.Join(run, "global_step_5")),
		os.Rename(filepath.Join(run, "x"), filepath.Join(run, "global_step_4"))); err != nil {
		t.Fatal(err)
	}
	err := play(be, settings(config.SFT, run, "trainer.total_steps=6", "trainer.save_freq=1"),
		config.SFT)
	wantError(t, err, nil, "global_step_5: is the checkpoint of step 4: its folder was renamed")
	run = filepath.Join(t.TempDir(), "best")
	rows := finished(t, be, settings(config.SFT, run, "trainer.total_steps=6",
		"trainer.save_freq=1", "trainer.test_freq=1", "trainer.max_ckpt_to_keep=1",
		"trainer.keep_best=val/teacher_nll", "data.val_files="+fixed.val, "actor.optim.lr=0.03"),
		config.SFT)
	best := rows[0]
	for _, r := range rows {
		if r.Values["val/teacher_nll"] < best.Values["val/teacher_nll"] {
			best = r
		}
	}
	if best.Step == 6 {
		t.Fatalf("the last step is the best: the test shows nothing: %v", rows)
	}
	if got := steps(t, run); !slices.Equal(got, []int{best.Step, 6}) {
		t.Errorf("checkpoints %v, want the best, %d, and the last", got, best.Step)
	}
}

// A run whose folder is renamed or removed while it works ends with the reason, makes no other
// folder of the name, and goes on once the folder is back.
func TestRunFolderIsMoved(t *testing.T) {
	be := ready(t)
	dir := t.TempDir()
	run, away := filepath.Join(dir, "run"), filepath.Join(dir, "away")
	c := settings(config.SFT, run, "trainer.total_steps=4", "trainer.save_freq=1")
	tr := opened(t, be, c, config.SFT)
	if err := tr.Run(&stopAfter{Context: context.Background(), n: 1}); !errors.Is(err,
		ErrInterrupted) {
		t.Fatal(err)
	}
	if err := os.Rename(run, away); err != nil {
		t.Fatal(err)
	}
	if err := tr.Run(context.Background()); !errors.Is(err, checkpoint.ErrMoved) {
		t.Errorf("%v", err)
	}
	tr.Close()
	if left := steps(t, run); len(left) > 0 {
		t.Errorf("checkpoints %v in another folder of the name", left)
	}
	os.RemoveAll(run)
	if err := os.Rename(away, run); err != nil {
		t.Fatal(err)
	}
	finished(t, be, c, config.SFT)
	if got := steps(t, run); !slices.Contains(got, 4) {
		t.Errorf("checkpoints %v", got)
	}
}

// Going on, a damaged newest checkpoint is not used: an older one is, and the
// run says so; the result is the same.
func TestDamagedCheckpoint(t *testing.T) {
	be := ready(t)
	overrides := []string{"trainer.total_steps=5", "trainer.save_freq=2", "trainer.critic_warmup=1"}
	whole := filepath.Join(t.TempDir(), "whole")
	finished(t, be, settings(config.Warmup, whole, overrides...), config.Warmup)

	run := filepath.Join(t.TempDir(), "run")
	cfg := settings(config.Warmup, run, overrides...)
	if err := part(t, cfg, config.Warmup, 4, false); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	path := filepath.Join(run, "global_step_4", "critic", "model.safetensors")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	var console lines
	tr, err := Open(cfg, config.Warmup, Options{FS: vfs.OS, Backend: be, Console: &console})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tr.Run(context.Background()), tr.Close()); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"global_step_4", "older checkpoint",
		"resuming after step 2 of 5"} {
		if !console.have(text) {
			t.Errorf("the console does not say %q:\n%s", text, console.String())
		}
	}
	same(t, record(t, run, 5), record(t, whole, 5))

	// Nothing verifies: nothing is begun anew over it.
	for _, n := range steps(t, run) {
		os.Remove(filepath.Join(run, "global_step_"+string(rune('0'+n)), "trainer.json"))
	}
	before := filesOf(t, run)
	wantError(t, openError(t, cfg, config.Warmup), checkpoint.ErrCorrupt, run)
	delete(before, ".lock.holder")
	after := filesOf(t, run)
	delete(after, ".lock.holder")
	same(t, after, before)
}

// Changed data, frozen settings and stages are refused, and the run is left as it is.
func TestWhatARunIsNotGoneOnWith(t *testing.T) {
	ready(t)
	run := filepath.Join(t.TempDir(), "run")
	data := filepath.Join(t.TempDir(), "data.jsonl")
	raw, _ := os.ReadFile(fixed.data)
	if err := os.WriteFile(data, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	overrides := []string{"trainer.total_steps=4", "data.train_files=" + data,
		"trainer.save_freq=1"}
	if err := part(t, settings(config.Warmup, run, overrides...), config.Warmup, 2,
		false); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	before := filesOf(t, run)
	if err := os.WriteFile(data, raw[:len(raw)-len("x.\"}\n")], 0o644); err != nil {
		t.Fatal(err)
	}
	// the last row is cut short
	wantError(t, openError(t, settings(config.Warmup, run, overrides...), config.Warmup), nil, data)
	if err := os.WriteFile(data, append(raw, raw[:1+strings.IndexByte(string(raw), '\n')]...),
		0o644); err != nil {
		t.Fatal(err)
	}
	wantError(t, openError(t, settings(config.Warmup, run, overrides...), config.Warmup), nil, data,
		"has changed since the run began")
	if err := os.WriteFile(data, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	wantError(t, openError(t, settings(config.SFT, run, overrides...), config.SFT),
		config.ErrConfig, "stage warmup", "another --output")
	wantError(t, openError(t, settings(config.Train, run, overrides...), config.Train),
		config.ErrConfig, "stage warmup")
	wantError(t, openError(t, settings(config.Warmup, run, append(overrides, "trainer.seed=9")...),
		config.Warmup), nil, "seed")
	after := filesOf(t, run)
	same(t, after, before)

	was := settings(config.Warmup, run, overrides...)
	for key, override := range map[string]string{"trainer.seed": "trainer.seed=2",
		"data.train_batch_size":    "data.train_batch_size=2",
		"data.max_response_length": "data.max_response_length=9",
		"model.path":               "model.path=elsewhere"} {
		now := settings(config.Warmup, run, append(overrides, override)...)
		err := config.CheckChange(&was, &now)
		if err == nil {
			t.Errorf("%s may change", key)
			continue
		}
		wantError(t, err, config.ErrConfig, key, run, "another --output")
	}
	now := settings(config.Warmup, run,
		append(overrides, "trainer.total_steps=9", "actor.optim.lr=1", "trainer.save_freq=7")...)
	if err := config.CheckChange(&was, &now); err != nil {
		t.Errorf("length, learning rate and saving may change, but: %v", err)
	}
}

// A folder with other files is refused and untouched; a fresh one is not made
// when anything is wrong with the inputs.
func TestNothingIsWrittenOnBadInput(t *testing.T) {
	ready(t)
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.tex"), []byte("ten years of work"),
		0o644); err != nil {
		t.Fatal(err)
	}
	wantError(t, openError(t, settings(config.SFT, foreign), config.SFT), config.ErrConfig, foreign,
		"thesis.tex", "nothing is overwritten")
	if files := filesOf(t, foreign); len(files) != 1 || files["thesis.tex"] != "ten years of work" {
		t.Errorf("the folder now holds %d files", len(files))
	}
	file := filepath.Join(foreign, "thesis.tex")
	wantError(t, openError(t, settings(config.SFT, file), config.SFT), config.ErrConfig, file)

	write := func(name string, lines ...string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := `{"content":"Add 1+1+1","teacher_response":"It is 3."}`
	long := `{"content":"` + strings.Repeat("Add 1+1+1 ", 40) + `","teacher_response":"It is 3."}`
	noTokenizer := filepath.Join(t.TempDir(), "model")
	copyTree(t, fixed.student, noTokenizer)
	os.Remove(filepath.Join(noTokenizer, "tokenizer.json"))
	for name, c := range map[string]struct {
		stage     config.Stage
		overrides []string
		is        error
		says      []string
	}{
		"no data": {config.SFT, []string{"data.train_files=/nowhere/x.jsonl"}, nil,
			[]string{"/nowhere/x.jsonl"}},
		"no model": {config.SFT, []string{"model.path=/nowhere/m"}, nil,
			[]string{"/nowhere/m"}},
		"no tokenizer": {config.SFT, []string{"model.path=" + noTokenizer}, nil,
			[]string{noTokenizer, "tokenizer.json"}},
		"no teacher column": {config.SFT, []string{"data.teacher_key=answer"}, nil, []string{fixed.data, `"answer"`, "data.teacher_key"}},
		"empty answer": {config.SFT, []string{"data.train_files=" + write("empty.jsonl", good, `{"content":"Add 1+1+2","teacher_response":""}`)}, nil,
			[]string{"row 1", "no teacher answer in column \"teacher_response\"",
				"gad data validate"}},
		"long prompt": {config.SFT,
			[]string{"data.train_files=" + write("long.jsonl", good, good, long)}, nil,
			[]string{"row 2", "data.max_prompt_length is 64", "data.overlong_prompts=filter"}},
		"all rows too long": {config.SFT,
			[]string{"data.train_files=" + write("all.jsonl", long),
				"data.overlong_prompts=filter"}, nil, []string{"none of 1 rows"}},
		"too long together": {config.SFT, []string{"data.max_prompt_length=120"},
			config.ErrConfig, []string{"max_position_embeddings is 128"}},
		"no warm-up": {config.Train, []string{"trainer.resume_from="},
			config.ErrConfig, []string{"--resume RUN"}},
		"resume nothing": {config.Train,
			[]string{"trainer.resume_from=/nowhere/run"}, nil, []string{"/nowhere/run"}},
		"resume sft": {config.Train,
			[]string{"trainer.resume_from=" + filepath.Join(fixed.root, "sft")}, config.ErrConfig,
			[]string{"has no discriminator", "gad warmup --model"}},
		"no reward model": {config.Warmup,
			[]string{"model.reward_path=/nowhere/c"}, nil, []string{"/nowhere/c"}},
		"val without answers": {config.SFT, []string{"data.val_files=" + write("val.jsonl", good, `{"content":"Add 1+1+2"}`)}, nil, []string{"val.jsonl", "row 1", "no teacher answer in column \"teacher_response\""}},
		"reward model of another tokenizer": {config.Warmup,
			[]string{"model.reward_path=" + otherTokens(t)}, nil,
			[]string{"is not the student's tokenizer: token ",
				"model.reward_path with the same tokenizer"}},
		"reward model without a tokenizer": {config.Warmup,
			[]string{"model.reward_path=" + noTokens(t)}, nil,
			[]string{"model.reward_path: its tokenizer must be the student's", "tokenizer.json"}},
		"reward model of few tokens": {config.Warmup,
			[]string{"model.reward_path=" + smallVocabulary(t)}, nil,
			[]string{"vocabulary of 299", "300 tokens", "do not belong together"}},
		"held-out critic of other tokens": {config.Warmup,
			[]string{"trainer.held_out_critic=" + otherTokens(t),
				"data.val_files=" + write("held.jsonl", good)}, nil,
			[]string{"trainer.held_out_critic"}},
		"temperature 0": {config.Warmup, []string{"rollout.temperature=0"},
			config.ErrConfig, []string{"rollout.temperature"}},
	} {
		t.Run(name, func(t *testing.T) {
			run := filepath.Join(t.TempDir(), "deep", "run")
			wantError(t, openError(t, settings(c.stage, run, c.overrides...), c.stage), c.is,
				c.says...)
			absent(t, filepath.Dir(run))
		})
	}
}

// otherTokens is a model folder of the fixture's shape with a tokenizer of as many other
// tokens.
func otherTokens(t *testing.T) string {
	t.Helper()
	be := ready(t)
	tok, err := tokenizer.Train(
		strings.NewReader(strings.Repeat("quite another corpus with other words in it ", 50)),
		tokenizer.TrainOptions{VocabSize: fixed.tok.Size()})
	if err != nil {
		t.Fatal(err)
	}
	shape := modeltest.Shape
	shape.Vocab = fixed.tok.Size()
	m, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "other")
	if err := errors.Join(export.WriteFolder(vfs.OS, dir, m, tok, "float32"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// noTokens is a model folder without a tokenizer.
func noTokens(t *testing.T) string {
	t.Helper()
	dir := otherTokens(t)
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// smallVocabulary is a model folder with one token too few for the fixture's tokenizer.
func smallVocabulary(t *testing.T) string {
	t.Helper()
	be := ready(t)
	shape := modeltest.Shape
	shape.Vocab = fixed.tok.Size() - 1
	m, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "small")
	if err := errors.Join(export.WriteFolder(vfs.OS, dir, m, fixed.tok, "float32"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A model may have more rows in its vocabulary than its tokenizer has tokens, as
// Qwen's do: what has no text is sampled, scored, learned from and written as nothing.
func TestPaddedVocabulary(t *testing.T) {
	be := ready(t)
	shape := modeltest.Shape
	shape.Vocab = fixed.tok.Size() + 300
	m, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "padded")
	if err := errors.Join(export.WriteFolder(vfs.OS, dir, m, fixed.tok, "float32"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(t.TempDir(), "run")
	rows := finished(t, be, settings(config.Warmup, run, "model.path="+dir, "trainer.total_steps=2",
		"critic.truncated=include", "data.val_files="+fixed.val,
		"trainer.warmup_objective=policy", "actor.policy_loss.loss_mode=vanilla"), config.Warmup)
	wantNames(t, rows[1], append(gameNames, "actor/pg_loss", "val/rouge_l"))
}

// Rows over the limits are left out when that is asked for, and the run says how many.
func TestFilteredRowsAreTold(t *testing.T) {
	be := ready(t)
	var console lines
	cfg := settings(config.SFT, filepath.Join(t.TempDir(), "run"), "data.max_response_length=8",
		"data.truncated_teachers=filter", "trainer.total_steps=1")
	tr, err := Open(cfg, config.SFT, Options{FS: vfs.OS, Backend: be, Console: &console})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if !console.have("of 40 rows are over the length limits and left out") || len(tr.train.rows) == 40 ||
		len(tr.train.rows) == 0 {
		t.Errorf("%d rows stay; the console says:\n%s", len(tr.train.rows), console.String())
	}
}

// A second process is refused while the first one runs.
func TestSecondTrainerIsRefused(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	cfg := settings(config.SFT, run, "trainer.total_steps=2")
	opened(t, be, cfg, config.SFT)
	before := filesOf(t, run)
	wantError(t, openError(t, cfg, config.SFT), checkpoint.ErrLocked, run, "process")
	after := filesOf(t, run)
	for name := range after {
		if before[name] != after[name] {
			t.Errorf("%s was written", name)
		}
	}
}

// A run that was killed while it began, or refused for its inputs, can be begun again.
func TestBeginAgain(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	cfg := settings(config.Train, run, "trainer.total_steps=1")
	tr := opened(t, be, cfg, config.Train) // config.yaml, reference and no checkpoint
	tr.Close()
	finished(t, be, cfg, config.Train)

	lock := filepath.Join(t.TempDir(), "lock")
	l, err := checkpoint.LockRun(lock)
	if err != nil {
		t.Fatal(err)
	}
	l.Unlock()
	finished(t, be, settings(config.SFT, lock, "trainer.total_steps=1"), config.SFT)

	// Killed while it wrote who holds the lock, or config.yaml.
	for _, names := range [][]string{{".lock", "..lock.holder.tmp"},
		{".lock", ".lock.holder", ".config.yaml.tmp"}} {
		run := t.TempDir()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(run, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		finished(t, be, settings(config.SFT, run, "trainer.total_steps=1"), config.SFT)
		for _, name := range names[1:] {
			if _, err := os.Stat(filepath.Join(run, name)); err == nil {
				t.Errorf("%s is left over", name)
			}
		}
	}
}

// Train goes on from a copy of the reference: where it was resumed from may go away.
func TestResumedRunNeedsNoWarmup(t *testing.T) {
	be := ready(t)
	warmup := filepath.Join(t.TempDir(), "warmup")
	copyTree(t, fixed.warmup, warmup)
	run := filepath.Join(t.TempDir(), "run")
	cfg := settings(config.Train, run, "trainer.total_steps=3", "trainer.resume_from="+warmup)
	if err := part(t, cfg, config.Train, 2, false); !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
	os.RemoveAll(warmup)
	finished(t, be, cfg, config.Train)
	os.RemoveAll(filepath.Join(run, "reference"))
	cfg.Trainer.TotalSteps = 4
	wantError(t, openError(t, cfg, config.Train), nil, "reference", "is missing")
}
