package trainer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/checkpoint"
	"gad/internal/comm"
	"gad/internal/comm/commtest"
	"gad/internal/compute"
	"gad/internal/hostile"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
	"gad/model"
	"gad/trainer/config"
)

// member is one rank of a run, as a test makes it: what is nil is as usual.
type member struct {
	edit    func(c *config.Config)
	backend func(be compute.Backend) compute.Backend
	fs      vfs.FS
	opened  func(t *Trainer)
	ctx     context.Context
}

// together plays a run on several ranks, each a goroutine with a backend of its own.
func together(ranks int, c config.Config, stage config.Stage) []error {
	return team(make([]member, ranks), c, stage, nil)
}

func team(members []member, c config.Config, stage config.Stage, console io.Writer) []error {
	return commtest.Run(len(members), time.Minute, func(g *comm.Group) error {
		m, c := members[g.Rank()], c
		be, err := newBackend(1)
		if err != nil {
			return err
		}
		defer be.Close()
		o := Options{FS: vfs.OS, Backend: be, Ranks: g, Console: console}
		if m.backend != nil {
			o.Backend = m.backend(be)
		}
		if m.fs != nil {
			o.FS = m.fs
		}
		if m.edit != nil {
			m.edit(&c)
		}
		if m.ctx == nil {
			m.ctx = context.Background()
		}
		t, err := Open(c, stage, o)
		if err != nil {
			return err
		}
		if m.opened != nil {
			m.opened(t)
		}
		err = t.Run(m.ctx)
		return errors.Join(err, t.Close(), g.Close())
	})
}

// sharded are settings under which every kind of work comes up on several ranks.
func sharded(more ...string) []string {
	return slices.Concat([]string{"trainer.total_steps=3", "trainer.shards=4", "rollout.n=2",
		"actor.max_token_len=128", "critic.max_token_len=128", "data.train_batch_size=6",
		"rollout.temperature=0.9", "trainer.val_rows=2",
		"data.val_files=" + fixed.val}, stateful, more)
}

// A run has the same bits on 1, 2 and 4 ranks: weights, optimizer states, samples, metrics
// without timings. A run of one size goes on with another.
func TestRanksChangeNoBit(t *testing.T) {
	t.Parallel()
	be := ready(t)
	for i, c := range []struct {
		stage config.Stage
		extra []string
	}{
		{config.SFT, []string{"trainer.keep_best=val/rouge_l"}},
		{config.Warmup, []string{"trainer.critic_warmup=1", "critic.ppo_mini_batch_size=3"}},
		{config.Train, nil},
		{config.Train, []string{"critic.group_ot=0", "actor.old_log_prob=recompute",
			"critic.truncated=include", "algorithm.filter_groups.enable=false",
			"trainer.held_out_critic=" + filepath.Join(fixed.warmup, "global_step_3", "critic")}},
		{config.Train, []string{"algorithm.checker_weight=0.5",
			"trainer.checker=" + checkerProgram}},
		{config.Train, []string{"algorithm.teacher_weight=0.5", "rollout.temperature=1",
			"teacher.path=" + fixed.blank}},
		{config.DPO, nil},
		{config.OPD, []string{"rollout.temperature=1"}},
		{config.OPD, []string{"rollout.temperature=1", "teacher.loss=topk"}},
		{config.OPD, byHint("rollout.temperature=1", "teacher.loss=exact", "data.train_files="+
			tagged(t, func(i int) any { return string("ab"[i%2]) }))},
		{config.OPD, coached("rollout.temperature=1", "teacher.loss=topk", "teacher.renew=2",
			"coach.plain=0.5")},
		{config.DPO, nil},
		{config.OPD, ownCoach("rollout.temperature=1", "teacher.loss=exact")},
	} {
		if i%2 == 1 && i > 2 && !hostile.Long() || testing.Short() && i%4 != 2 {
			continue
		}
		t.Run(fmt.Sprint(c.stage, " ", strings.Join(c.extra, " ")), func(t *testing.T) {
			overrides := sharded(c.extra...)
			whole := filepath.Join(t.TempDir(), "1")
			finished(t, be, settings(c.stage, whole, overrides...), c.stage)
			want := record(t, whole, 3)
			for way, ranks := range []int{2, 4} {
				if !hostile.InTurn(i, way, 2) {
					continue
				}
				run := filepath.Join(t.TempDir(), fmt.Sprint(ranks))
				onRanks(t, ranks, settings(c.stage, run, overrides...), c.stage)
				same(t, record(t, run, 3), want)
			}
			if !hostile.Long() {
				return
			}
			for _, sizes := range [][]int{{4, 1}, {1, 2}, {2, 4}} {
				run := filepath.Join(t.TempDir(), fmt.Sprint(sizes))
				for i, ranks := range sizes {
					members := make([]member, ranks)
					// stopped after the second step, and resumed by another number of ranks
					if i == 0 {
						for r := range members {
							members[r].ctx = &stopAfter{Context: context.Background(), n: 2}
						}
					}
					for r, err := range team(members, settings(c.stage, run, overrides...), c.stage,
						nil) {
						if i == 0 && !errors.Is(err, ErrInterrupted) || i > 0 && err != nil {
							t.Fatalf("%v ranks, rank %d: %v", sizes, r, err)
						}
					}
				}
				same(t, record(t, run, 3), want)
			}
		})
	}
}

const checkerProgram = `while read -r line; do n=$((${#line} % 7)); test $n = 3 && n=null; echo "{\"score\": $n}"; done`

// What makes the ranks differ is found before anything is written, and said on each.
func TestRanksThatDiffer(t *testing.T) {
	ready(t)
	for name, c := range map[string]struct {
		other member
		set   []string
		want  string
	}{
		"settings": {other: member{edit: func(c *config.Config) { c.Critic.Optim.LR = 0.5 }}, want: "ranks: settings: rank 0 on %s has \"lr: 0.002\", rank 1 on %[1]s has \"lr: 0.5\": must be the same"},
		"device":   {other: member{backend: func(be compute.Backend) compute.Backend { return renamed{be} }}, want: "ranks: device: rank 0 on %s has \"NAME\", rank 1 on %[1]s has \"cpu/other\": must be the same"},
		"shards":   {set: []string{"trainer.shards=1"}, want: "trainer.shards is 1, but there are 2 ranks: each needs as many shards as any other: set trainer.shards=2 or a multiple"},
	} {
		t.Run(name, func(t *testing.T) {
			run := filepath.Join(t.TempDir(), "run")
			cfg := settings(config.Train, run, sharded(c.set...)...)
			be := ready(t)
			want := "configuration: " +
				strings.ReplaceAll(strings.ReplaceAll(c.want, "%[1]s", hostname(t)), "%s",
					hostname(t))
			want = strings.ReplaceAll(want, "NAME", be.Name())
			for r, err := range team([]member{{}, c.other}, cfg, config.Train, nil) {
				if !errors.Is(err, config.ErrConfig) || err.Error() != want {
					t.Errorf("rank %d: %v\nwant %s", r, err, want)
				}
			}
			absent(t, run)
		})
	}
}

type renamed struct{ compute.Backend }

func (renamed) Name() string { return "cpu/other" }

func hostname(t *testing.T) string {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// A rank that fails in the middle of a step ends all of them, each with the reason; the
// last checkpoint is good, and the same command ends with the bits of an undisturbed run.
// Only rank 0 writes and speaks.
func TestRankThatFails(t *testing.T) {
	t.Parallel()
	be := ready(t)
	overrides := sharded("trainer.save_freq=1", "trainer.max_ckpt_to_keep=2")
	whole := filepath.Join(t.TempDir(), "whole")
	finished(t, be, settings(config.Train, whole, overrides...), config.Train)
	want := record(t, whole, 3)
	for failing := range 2 {
		if testing.Short() && failing == 0 {
			continue
		}
		run := filepath.Join(t.TempDir(), fmt.Sprint(failing))
		cfg := settings(config.Train, run, overrides...)
		broken := &breaking{at: 250}
		members := make([]member, 2)
		members[failing].backend = func(be compute.Backend) compute.Backend { broken.Backend = be; return broken }
		members[failing].opened = func(*Trainer) { broken.on = true }
		other := vfstest.NewError(vfs.OS, -1, false)
		members[1].fs = other
		var console bytes.Buffer
		for r, err := range team(members, cfg, config.Train, &console) {
			if err == nil || !strings.Contains(err.Error(), "trainer: step ") ||
				!strings.Contains(err.Error(), "the device has failed") {
				t.Errorf("rank %d failed, rank %d says %v", failing, r, err)
			}
			if told := fmt.Sprintf("ranks: rank %d on %s: ", failing, hostname(t)); err != nil &&
				strings.Contains(err.Error(), told) != (r != failing) {
				t.Errorf("rank %d failed, rank %d says %v", failing, r, err)
			}
		}
		if n := strings.Count(console.String(), "step 1/3"); n != 1 {
			t.Errorf("the first step is told %d times:\n%s", n, console.String())
		}
		for i := range other.Ops() {
			if op, _, _ := strings.Cut(other.Op(i),
				" "); !slices.Contains(
				[]string{"open", "read", "readfile", "readdir", "stat", "close", "free"}, op) {
				t.Errorf("rank 1 writes: %s", other.Op(i))
			}
		}
		if other.Ops() == 0 {
			t.Error("rank 1 has read nothing: the test shows nothing")
		}
		for r, err := range together(4, cfg, config.Train) {
			if err != nil {
				t.Fatalf("the same command, rank %d: %v", r, err)
			}
		}
		same(t, record(t, run, 3), want)
	}
}

// breaking is a device that fails when it has been waited for so many times since it is on.
type breaking struct {
	compute.Backend
	on    bool
	at, n int
}

func (b *breaking) Sync() error {
	if b.on {
		if b.n++; b.n == b.at {
			return errors.New("the device has failed")
		}
	}
	return b.Backend.Sync()
}

// A full disk on rank 0 ends all ranks.
func TestRanksOnAFullDisk(t *testing.T) {
	ready(t)
	run := filepath.Join(t.TempDir(), "run")
	members := []member{{fs: vfstest.NewBudget(vfs.OS, 400<<10)}, {}}
	errs := team(members, settings(config.Train, run, sharded("trainer.save_freq=1")...),
		config.Train, nil)
	if !errors.Is(errs[0], checkpoint.ErrSpace) {
		t.Errorf("rank 0 says %v", errs[0])
	}
	if told := (*comm.Aborted)(nil); !errors.As(errs[1], &told) || told.Rank != 0 {
		t.Errorf("rank 1 says %v", errs[1])
	}
}

// A rank whose weights are no longer those of the others is found before they are saved.
func TestRankWithOtherWeights(t *testing.T) {
	ready(t)
	run := filepath.Join(t.TempDir(), "run")
	flip := member{opened: func(tr *Trainer) {
		p := tr.actor.Model().Params()[3]
		x := make([]float32, 1)
		tr.be.Download(x, p.W.Slice(0, 1))
		tr.be.Upload(p.W.Slice(0, 1), []float32{math.Nextafter32(x[0], 1)})
		tr.be.Refresh(p)
	}}
	for r, err := range team([]member{{}, flip},
		settings(config.SFT, run, "trainer.total_steps=2", "trainer.shards=2"), config.SFT, nil) {
		if err == nil || !strings.Contains(err.Error(), "ranks: the weights of rank 1 on ") ||
			!strings.Contains(err.Error(), "nothing was saved") {
			t.Errorf("rank %d says %v", r, err)
		}
	}
	if got := steps(t, run); len(got) != 0 {
		t.Errorf("checkpoints %v", got)
	}
}

// Weights that are not trained are compared as a run opens: the reference's, and those that
// adapters stand on.
func TestRankWithOtherFrozenWeights(t *testing.T) {
	ready(t)
	for name, c := range map[string]struct {
		set  []string
		pick func(tr *Trainer) *model.Model
	}{
		"reference": {nil, func(tr *Trainer) *model.Model { return tr.reference.Model() }},
		"base": {[]string{"actor.lora.rank=2"},
			func(tr *Trainer) *model.Model { return tr.actor.Model().Base() }},
	} {
		compared := func(flip bool) member {
			return member{opened: func(tr *Trainer) {
				if flip {
					p, x := c.pick(tr).Params()[1], make([]float32, 1)
					tr.be.Download(x, p.W.Slice(0, 1))
					tr.be.Upload(p.W.Slice(0, 1), []float32{math.Nextafter32(x[0], 1)})
				}
				if err := tr.requireSameWeights(true); err == nil ||
					!strings.Contains(err.Error(), "ranks: the weights of rank 1 on ") {
					t.Errorf("%s: %v", name, err)
				}
			}}
		}
		overrides := append(c.set, "trainer.shards=2", "trainer.total_steps=1")
		team([]member{compared(false), compared(true)},
			settings(config.DPO, filepath.Join(t.TempDir(), "run"), overrides...), config.DPO, nil)
	}
}

// Whichever rank is asked to stop, all stop together, the run is saved, and goes on with
// the bits of one that was not stopped.
func TestRanksStopTogether(t *testing.T) {
	t.Parallel()
	be := ready(t)
	for _, stage := range []config.Stage{config.SFT, config.Train} {
		whole := filepath.Join(t.TempDir(), "whole")
		finished(t, be, settings(stage, whole, sharded()...), stage)
		for stopping := range 2 {
			if testing.Short() && (stage == config.SFT) != (stopping == 0) {
				continue
			}
			run := filepath.Join(t.TempDir(), fmt.Sprint(stopping))
			cfg := settings(stage, run, sharded()...)
			members := make([]member, 2)
			members[stopping].ctx = &stopAfter{Context: context.Background(), n: 2}
			for r, err := range team(members, cfg, stage, nil) {
				if !errors.Is(err, ErrInterrupted) {
					t.Errorf("%s: rank %d stops, rank %d says %v", stage, stopping, r, err)
				}
			}
			if got := steps(t, run); !slices.Equal(got, []int{2}) {
				t.Errorf("%s: checkpoints %v, want the step after which it was stopped", stage, got)
			}
			// In the middle of sampling, too: the step is given up on all.
			ctx, cancel := context.WithCancel(context.Background())
			members[stopping].ctx = ctx
			members[stopping].backend = func(be compute.Backend) compute.Backend {
				return &saboteur{Backend: be, onSample: func(n int) {
					if n == 5 {
						cancel()
					}
				}}
			}
			for r, err := range team(members, cfg, stage, nil) {
				if stage == config.Train && !errors.Is(err, ErrInterrupted) {
					t.Errorf("rank %d is stopped as it samples, rank %d says %v", stopping, r, err)
				}
			}
			cancel()
			for _, err := range together(4, cfg, stage) {
				if err != nil {
					t.Fatal(err)
				}
			}
			same(t, record(t, run, 3), record(t, whole, 3))
		}
	}
}

// Two runs at once in one folder: the second is refused on all its ranks.
func TestRanksInAFolderInUse(t *testing.T) {
	be := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	cfg := settings(config.SFT, run, "trainer.total_steps=2", "trainer.shards=2")
	opened(t, be, cfg, config.SFT)
	for r, err := range together(2, cfg, config.SFT) {
		if err == nil || !strings.Contains(err.Error(), "run folder in use") {
			t.Errorf("rank %d says %v", r, err)
		}
	}
}

// swapping is the disk on which do happens before a path is looked at for the first time:
// by then rank 0 has read what the ranks read in turn.
type swapping struct {
	vfs.FS
	path string
	do   func()
}

func (s *swapping) Stat(path string) (fs.FileInfo, error) {
	if path == s.path && s.do != nil {
		s.do()
		s.do = nil
	}
	return s.FS.Stat(path)
}

// A rank that reads other files under the same names is found before anything is written:
// otherwise it would compute something else than the others, and nobody would notice.
func TestRanksWithOtherFiles(t *testing.T) {
	ready(t)
	for _, c := range []struct {
		name, file string // in the folder of the test
		from, to   string // of its text
		want       string
	}{
		{"validation data", "val.jsonl", `"content":"`, `"content":"Well, `, "ranks: validation data: rank 0 on "},
		{"tokenizer", filepath.Join("student", "tokenizer_config.json"), "assistant", "helper",
			"ranks: tokenizer: rank 0 on "},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			student := filepath.Join(dir, "student")
			if err := os.CopyFS(student, os.DirFS(fixed.student)); err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(fixed.val)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "val.jsonl"), raw, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			run := filepath.Join(dir, "run")
			swap := &swapping{FS: vfs.OS, path: student, do: func() {
				path := filepath.Join(dir, c.file)
				raw, err := os.ReadFile(path)
				if err != nil || !bytes.Contains(raw, []byte(c.from)) {
					t.Errorf("%s: no %q to replace in %.300s: %v", path, c.from, raw, err)
				}
				if err := os.WriteFile(path, bytes.ReplaceAll(raw, []byte(c.from), []byte(c.to)),
					0o644); err != nil {
					t.Error(err)
				}
			}}
			cfg := settings(config.SFT, run, "model.path="+student,
				"data.val_files="+filepath.Join(dir, "val.jsonl"), "trainer.shards=2",
				"trainer.total_steps=2")
			for r, err := range team([]member{{}, {fs: swap}}, cfg, config.SFT, nil) {
				if !errors.Is(err, config.ErrConfig) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("rank %d says %v", r, err)
				}
			}
			absent(t, run)
		})
	}
}

// So is one that comes to other rows in the middle of a run, as where a file is changed.
func TestRanksThatDrawOtherRows(t *testing.T) {
	ready(t)
	for _, stage := range []config.Stage{config.SFT, config.Train, config.DPO} {
		run := filepath.Join(t.TempDir(), "run")
		other := member{opened: func(tr *Trainer) { tr.train.order.Next(1) }}
		for r, err := range team([]member{{}, other},
			settings(stage, run, "trainer.shards=2", "trainer.total_steps=2"), stage, nil) {
			if !errors.Is(err, config.ErrConfig) ||
				!strings.Contains(err.Error(),
					"trainer: step 1: configuration: ranks: rows of a step: rank 0 on ") {
				t.Errorf("%s: rank %d says %v", stage, r, err)
			}
		}
	}
}

// A step's normalisers are those of the whole batch, however unequal the shards are: one has
// most of the tokens, and most have none. So the first step has the losses and gradients of
// one shard, up to rounding; and the bits do not depend on the ranks, of which some have
// nothing to do.
func TestUnequalShards(t *testing.T) {
	t.Parallel()
	be := ready(t)
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	var text strings.Builder
	for i := range 9 {
		answer := "b."
		if i%3 == 0 {
			answer = "It is q c y h g x o."
		}
		fmt.Fprintf(&text, "{\"content\":\"How does q c%s end?\",\"teacher_response\":%q}\n",
			strings.Repeat(" y h", i%2*5), answer)
	}
	if err := os.WriteFile(rows, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	for arm, c := range []struct {
		stage   config.Stage
		extra   []string
		metrics []string
	}{
		{config.SFT, nil, []string{"actor/sft_loss", "actor/grad_norm", "actor/entropy"}},
		{config.Warmup, []string{"trainer.critic_warmup=0", "critic.group_ot=0.3"},
			[]string{"critic/d_loss", "critic/grad_norm", "actor/sft_loss", "actor/grad_norm"}},
		{config.Train, []string{"actor.loss_agg_mode=token-mean"},
			[]string{"critic/d_loss", "critic/grad_norm", "actor/pg_loss", "actor/grad_norm",
				"actor/entropy"}},
		{config.Train, []string{"actor.loss_agg_mode=seq-mean-token-mean",
			"actor.kl_loss_coef=0.1"}, []string{"actor/pg_loss", "actor/grad_norm"}},
		{config.DPO, []string{"dpo.truncated=include"}, []string{"dpo/loss", "actor/grad_norm"}},
	} {
		if testing.Short() && arm%2 == 1 {
			continue
		}
		t.Run(fmt.Sprint(c.stage, " ", strings.Join(c.extra, " ")), func(t *testing.T) {
			set := func(shards, batch int) []string {
				return slices.Concat([]string{"data.train_files=" + rows, "trainer.total_steps=2",
					fmt.Sprint("trainer.shards=", shards),
					fmt.Sprint("data.train_batch_size=", batch),
					"actor.max_token_len=128", "critic.max_token_len=128",
					"critic.truncated=include"}, c.extra)
			}
			whole, sharded := filepath.Join(t.TempDir(), "1"), filepath.Join(t.TempDir(), "8")
			finished(t, be, settings(c.stage, whole, set(1, 3)...), c.stage)
			finished(t, be, settings(c.stage, sharded, set(8, 3)...), c.stage)
			one, eight := firstStep(t, whole), firstStep(t, sharded)
			for _, name := range c.metrics {
				a, okA := one[name]
				b, okB := eight[name]
				if !okA || !okB || math.Abs(a-b) > 1e-4*math.Abs(a) || a == 0 &&
					name != "actor/pg_loss" {
					t.Errorf("%s: %g in one shard (%v), %g in eight (%v)", name, a, okA, b, okB)
				}
			}
			want := record(t, sharded, 2)
			for i, ranks := range []int{2, 8} {
				if !hostile.InTurn(arm, i, 2) {
					continue
				}
				run := filepath.Join(t.TempDir(), fmt.Sprint(ranks))
				for r, err := range together(ranks, settings(c.stage, run, set(8, 3)...), c.stage) {
					if err != nil {
						t.Fatalf("%d ranks, rank %d: %v", ranks, r, err)
					}
				}
				same(t, record(t, run, 2), want)
			}
		})
	}
}

func firstStep(t *testing.T, run string) map[string]float64 {
	t.Helper()
	rows, err := report.ReadMetrics(vfs.OS, run)
	if err != nil || len(rows) == 0 {
		t.Fatal(err)
	}
	return rows[0].Values
}
