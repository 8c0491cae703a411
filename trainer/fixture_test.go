package trainer

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"gad/actor"
	"gad/algos"
	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/conf"
	"gad/internal/hostile"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/episode"
	"gad/trainer/export"
	"gad/trainer/modeltest"
	"gad/trainer/saved"
)

// The fixture: a student of 32 dimensions with a tokenizer of some 300 tokens
// that has learned a little of short answers, so that some of its own end and
// some are cut, and what it was before (blank), whose teacher it is in OPD; 40 rows; a warm-up run
// of three steps.
type fixture struct {
	root, blank, student, data, val, warmup string
	tok                                     *tokenizer.Tokenizer
}

var fixed *fixture

func TestMain(m *testing.M) {
	if os.Getenv("TALK") != "" {
		serveTalk()
		return
	}
	flag.Parse()
	peakSize, peakMost = 64, 64
	vfs.OS = vfstest.NoSync(vfs.OS)
	hostile.Quick()
	root, err := os.MkdirTemp("", "gad-trainer-")
	if err != nil {
		panic(err)
	}
	fixed = &fixture{root: root}
	code := m.Run()
	os.RemoveAll(root)
	os.Exit(code)
}

var build = sync.OnceValue(func() error {
	f := fixed
	f.student, f.data, f.val =
		filepath.Join(f.root, "student"), filepath.Join(f.root, "train.jsonl"),
		filepath.Join(f.root, "val.jsonl")
	for path, name := range map[string]string{f.data: "train.jsonl", f.val: "test.jsonl"} {
		rows, err := os.ReadFile(modeltest.Letters(name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, bytes.Join(bytes.SplitAfter(rows, []byte("\n"))[:40], nil),
			0o644); err != nil {
			return err
		}
	}
	be, err := newBackend(1)
	if err != nil {
		return err
	}
	defer be.Close()
	shape := modeltest.Shape
	shape.Vocab = f.tok.Size()
	m, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		return err
	}
	f.blank = filepath.Join(f.root, "blank")
	if err := errors.Join(export.WriteFolder(vfs.OS, f.blank, m, f.tok, "float32"),
		m.Close()); err != nil {
		return err
	}
	sft := filepath.Join(f.root, "sft")
	err = play(be, settings(config.SFT, sft, "model.path="+f.blank, "trainer.total_steps=60",
		"data.train_batch_size=8",
		"actor.optim.lr=5e-3", "trainer.save_freq=0"), config.SFT)
	if err != nil {
		return err
	}
	dir, _, err := saved.Find(vfs.OS, sft)
	if err != nil {
		return err
	}
	if _, err = export.Part(vfs.OS, dir, "actor", f.student, "base"); err != nil {
		return err
	}
	f.warmup = filepath.Join(f.root, "warmup")
	return play(be, settings(config.Warmup, f.warmup, "trainer.total_steps=3",
		"trainer.critic_warmup=2"), config.Warmup)
})

// slow leaves a test out of the quick cycle, go test -short.
func slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
}

func newBackend(workers int) (compute.Backend, error) {
	return cpu.New(cpu.Options{Workers: workers})
}

// settings are a small run's, with overrides as on the command line.
func settings(stage config.Stage, output string, overrides ...string) config.Config {
	c := config.StageDefaults(stage)
	base := []string{"data.train_files=" + fixed.data, "trainer.default_local_dir=" + output,
		"data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=14",
		"rollout.n=4", "rollout.temperature=1",
		"actor.optim.lr=1e-3", "critic.optim.lr=2e-3", "trainer.save_samples=2",
		"actor.max_token_len=512", "critic.max_token_len=512",
		"trainer.val_rows=4"}
	switch stage {
	case config.Train:
		base = append(base, "trainer.resume_from="+fixed.warmup)
	case config.OPD:
		base = append(base, "model.path="+fixed.blank, "teacher.path="+fixed.student)
	default:
		base = append(base, "model.path="+fixed.student)
	}
	if err := conf.Load(&c, "", append(base, overrides...), nil); err != nil {
		panic(err)
	}
	return c
}

// half returns settings with half the prompts a step and half the tokens a pack, for runs that are
// compared with each other.
func half(more ...string) []string {
	return append([]string{"data.train_batch_size=2", "trainer.val_rows=2",
		"actor.max_token_len=256", "critic.max_token_len=256"}, more...)
}

// play runs a configuration to its end.
func play(be compute.Backend, c config.Config, stage config.Stage) error {
	return playOn(be, c, stage, nil)
}

// playOn is play with a console.
func playOn(be compute.Backend, c config.Config, stage config.Stage, console io.Writer) error {
	t, err := Open(c, stage, Options{FS: vfs.OS, Backend: be, Console: console})
	if err != nil {
		return err
	}
	return errors.Join(t.Run(context.Background()), t.Close())
}

// ready builds the fixture and gives the test a backend of one worker.
func ready(t testing.TB) compute.Backend {
	t.Helper()
	if fixed.tok == nil {
		fixed.tok = modeltest.Tokenizer(t)
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
	be, err := newBackend(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { be.Close() })
	return be
}

// opened is a trainer about to take its first step.
func opened(t testing.TB, be compute.Backend, c config.Config, stage config.Stage) *Trainer {
	t.Helper()
	tr, err := Open(c, stage, Options{FS: vfs.OS, Backend: be})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// scored plays a round and takes its scores, which a step takes as it learns from them.
func scored(t testing.TB, tr *Trainer, m Metrics) *round {
	t.Helper()
	r, err := gameOf(tr).play(m)
	if err == nil && !r.scored {
		err = gameOf(tr).scoreRound(m, r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// finished plays a run and returns its metrics.
func finished(t testing.TB, be compute.Backend, c config.Config, stage config.Stage) []report.Row {
	t.Helper()
	if err := play(be, c, stage); err != nil {
		t.Fatal(err)
	}
	return metricsOf(t, c)
}

// metricsOf are the metrics of a run.
func metricsOf(t testing.TB, c config.Config) []report.Row {
	t.Helper()
	rows, err := report.ReadMetrics(vfs.OS, c.Trainer.Output)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// gameOf returns the stage of a run of the game, or of its warm-up.
func gameOf(tr *Trainer) *game { return tr.stage.(*game) }

// lists are the records of a round side by side, for assertions over all of them.
type lists struct {
	batch encode.Batch
	roll  actor.Rollout

	seqs    []model.Seq // [S], as the following three
	sampled [][]float32
	groupS  []int
	answerS []int
	cutS    []bool
	whole   []int

	group     []int // [A], as the following ones but scoreP
	firsts    []int // the answers' first sequences
	cut       []bool
	written   [][]int32
	judged    []model.Seq
	scoreA    []float32
	turnA     [][]float32
	checkA    []float64
	thoughtA  []float64
	behindA   []model.Seq
	episodes  []*episode.Episode
	branches  []algos.Branch
	scoreP    []float32
	sequences [][]model.Seq
}

func listsOf(r *round) (v lists) {
	v.batch, v.roll, v.group, v.judged, v.branches = r.batch(), r.rollout(), r.group(), r.criticSeqs(),
		r.branches()
	v.seqs, v.groupS = v.roll.Seqs(), v.roll.Groups()
	for _, s := range v.roll {
		v.sampled, v.answerS = append(v.sampled, s.Sampled), append(v.answerS, s.Answer)
		v.cutS, v.whole = append(v.cutS, s.Cut), append(v.whole, s.Whole)
	}
	for _, g := range r.groups {
		v.scoreP = append(v.scoreP, g.score)
	}
	first := 0
	for _, a := range r.answers() {
		v.firsts, v.cut = append(v.firsts, first), append(v.cut, a.cut)
		first += len(a.seqs)
		v.written, v.scoreA = append(v.written, a.ids), append(v.scoreA, a.score)
		v.turnA, v.checkA = append(v.turnA, a.turns), append(v.checkA, a.check)
		v.thoughtA, v.behindA = append(v.thoughtA, a.thoughtLogp), append(v.behindA, a.thoughtSeq)
		v.episodes = append(v.episodes, a.episode)
		v.sequences = append(v.sequences, a.seqs.Seqs())
	}
	return v
}

// advantagesOf returns the advantages of a round's sequences [S][T].
func advantagesOf(t *testing.T, tr *Trainer, m Metrics, r *round) (advST [][]float64) {
	t.Helper()
	if err := gameOf(tr).advantages(m, r); err != nil {
		t.Fatal(err)
	}
	for _, s := range r.rollout() {
		advST = append(advST, s.Adv)
	}
	return advST
}

// sampledRound returns a round of answers to the next n prompts, of a stage that learns from its
// own.
func sampledRound(t *testing.T, tr *Trainer, o *onPolicy, n int) *round {
	t.Helper()
	r, err := o.next(n, map[int]int{})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.sample(Metrics{}, r, true); err != nil {
		t.Fatal(err)
	}
	return r
}

// klOf returns the coefficient of the KL in the reward; the zero one of a stage without rewards.
func klOf(tr *Trainer) (kl algos.AdaptiveKL) {
	if g, ok := tr.stage.(*game); ok {
		kl = g.kl
	}
	return kl
}

// teacherOf returns the teacher whose probabilities a run reads; nil without one.
func teacherOf(tr *Trainer) *teacher {
	switch s := tr.stage.(type) {
	case *game:
		return firstOf(s.teachers)
	case *opd:
		return firstOf(s.teachers)
	}
	return nil
}

// firstOf returns the first of some teachers; nil without any.
func firstOf(c *teachers) *teacher {
	if c == nil {
		return nil
	}
	return c.list[0]
}

// nextOf takes the next step, and returns its figures.
func nextOf(tr *Trainer) (Metrics, error) {
	m := Metrics{}
	return m, tr.next(m)
}

// filesOf is every file below dir by its name.
func filesOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// record is what two runs that compute the same have in common: the metrics
// without timings, the samples, the checkpoint of the last step.
func record(t testing.TB, run string, last int) map[string]string {
	t.Helper()
	files := map[string]string{}
	for name, content := range filesOf(t, run) {
		if strings.HasPrefix(name, "samples"+string(filepath.Separator)) ||
			strings.HasPrefix(name, fmt.Sprintf("global_step_%d%c", last, filepath.Separator)) {
			files[name] = content
		}
	}
	raw, err := os.ReadFile(filepath.Join(run, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := report.StripTimings(raw)
	if err != nil {
		t.Fatal(err)
	}
	files["metrics.jsonl"] = string(metrics)
	return files
}

// same wants equal files.
func same(t testing.TB, got, want map[string]string) {
	t.Helper()
	names := map[string]bool{}
	for name := range got {
		names[name] = true
	}
	for name := range want {
		names[name] = true
	}
	var differ []string
	for name := range names {
		if got[name] != want[name] {
			differ = append(differ, fmt.Sprintf("%s (%d and %d bytes)", name, len(got[name]),
				len(want[name])))
		}
	}
	if len(differ) > 0 {
		slices.Sort(differ)
		t.Errorf("differ: %s", strings.Join(differ, ", "))
		if a, b := got["metrics.jsonl"], want["metrics.jsonl"]; a != b {
			t.Errorf("metrics:\n%s\nwant\n%s", a, b)
		}
	}
	if len(want) < 8 || want["metrics.jsonl"] == "" {
		t.Errorf("only %d files were compared", len(want))
	}
}

// copyTree copies a folder.
func copyTree(t testing.TB, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// lines is a console.
type lines struct{ bytes.Buffer }

func (l *lines) have(text string) bool { return strings.Contains(l.String(), text) }

// byLength is a checker in the shell: a row's score is the length of its JSON line,
// modulo 7.
const byLength = `while IFS= read -r line; do echo $((${#line} % 7)); done`
