package trainer

import (
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gad/internal/conf"
	"gad/internal/report"
	"gad/trainer/config"
)

// placed are the settings that say where a run is and how long, which a combination leaves alone,
// and programs, which it does not start.
var placed = []string{"model.path", "model.adapter_path", "model.reward_path", "teacher.path",
	"teacher.url", "data.train_files", "data.val_files", "data.split", "data.val_split",
	"data.content_key", "data.teacher_key", "data.cache_dir", "data.ratings", "data.where",
	"trainer.default_local_dir", "trainer.resume_from", "trainer.held_out_critic",
	"trainer.device", "trainer.threads", "trainer.total_steps", "trainer.total_epochs",
	"trainer.checker", "env.command", "data.format", "algorithm.terms"}

// drawn gives a setting a random value of its kind; small ones, because a run is to be small.
func drawn(r *rand.Rand, s conf.Setting) string {
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	if len(s.Choices) > 0 {
		return pick(s.Choices...)
	}
	switch s.Type {
	case "true or false":
		return pick("true", "false")
	case "integer":
		return pick("0", "1", "2", "3", "4", "7", "14", "16", "40")
	case "number":
		return pick("0", "1e-3", "0.2", "0.5", "1", "1.5", "3")
	}
	return pick("", "all-linear", "q_proj")
}

// A combination of settings runs, or is refused in words as the user's mistake: none ends in a
// panic. GAD_COMBINATIONS is how many are tried.
func TestCombinationsOfSettings(t *testing.T) {
	t.Parallel()
	be := ready(t)
	most, err := strconv.Atoi(os.Getenv("GAD_COMBINATIONS"))
	if err != nil {
		most = 24
		if testing.Short() {
			most = 6
		}
	}
	r := rand.New(rand.NewPCG(41, 10))
	all := slices.DeleteFunc(conf.Describe(new(config.Config)),
		func(s conf.Setting) bool { return slices.Contains(placed, s.Key) })
	ran, refused := 0, 0
	for i := range most {
		stage := config.Stages[i%len(config.Stages)]
		set := []string{"trainer.total_steps=1"}
		if r.IntN(3) == 0 {
			set = append(set, "data.val_files="+fixed.val)
		}
		if stage.HasCritic() && r.IntN(3) == 0 { // trees and chunks exclude each other's settings
			set = append(set, "rollout.n=1", "rollout.tree.trees=2")
		} else if r.IntN(3) == 0 {
			set = append(set, "rollout.chunk=8", "rollout.chunks=2")
		}
		for range 1 + r.IntN(4) {
			s := all[r.IntN(len(all))]
			set = append(set, s.Key+"="+drawn(r, s))
		}
		err := func() (err error) {
			defer func() {
				if x := recover(); x != nil {
					t.Errorf("gad %s %s: panic: %v\n%s", stage, strings.Join(set, " "), x,
						debug.Stack())
				}
			}()
			c := settings(stage, filepath.Join(t.TempDir(), "run"))
			if err := conf.Load(&c, "", set, nil); err != nil {
				return err
			}
			return playOn(be, c, stage, io.Discard)
		}()
		if err == nil {
			ran++
		} else {
			refused++
			t.Logf("gad %s %s: %v", stage, strings.Join(set, " "), err)
		}
		if err != nil && !strings.Contains(err.Error(), ": ") {
			t.Errorf("gad %s %s: refused without a way out: %v", stage, strings.Join(set, " "), err)
		}
	}
	t.Logf("%d combinations: %d run, %d refused", most, ran, refused)
	if ran == 0 || most >= 24 && refused == 0 {
		t.Errorf("%d run, %d refused: the combinations try nothing", ran, refused)
	}
}

// The settings that need another one change nothing without it, nor do those that a stage is said
// not to read: a game, OPD, DPO and SFT with all of them changed at once have the metrics of the
// same run without.
func TestIdleSettingsAreIdle(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	for _, under := range []struct {
		stage config.Stage
		set   []string
	}{
		{config.Train, nil}, {config.OPD, nil},
		{config.Train, []string{"actor.policy_loss.loss_mode=gpg", "algorithm.adv_estimator=rloo"}},
		{config.OPD, []string{"teacher.loss=exact", "actor.use_kl_loss=false"}},
		{config.DPO, []string{"dpo.loss_type=sft"}}, {config.SFT, nil},
	} {
		stage := under.stage
		var idle []string
		read := " is "
		if stage == config.SFT {
			read = "gad sft does not read it"
		}
		defaults := settings(stage, "x", under.set...)
		for _, s := range conf.Describe(&defaults) {
			values := map[string]string{"true or false": "true", "integer": "3", "number": "1.5"}
			value := values[s.Type]
			switch s.Default {
			case "true":
				value = "false"
			case "1":
				value = "2"
			}
			if s.Max == "1" {
				value = "0.5"
			}
			for _, other := range s.Choices {
				if other != s.Default && other != "token" { // critic.level=token is of single answers
					value = other
				}
			}
			switch s.Key {
			case "dpo.label_smoothing":
				value = "0.25"
			case "actor.rollout_is": // no weights of importance go with some other
				value = ""
			}
			if why := defaults.Ignores(stage, s.Key); value != "" && s.Key != "critic.replay.live" &&
				strings.Contains(why, read) && !strings.HasPrefix(s.Key, "env.") &&
				!slices.Contains(placed, s.Key) && fits(stage, s.Key+"="+value) {
				idle = append(idle, s.Key+"="+value)
			}
		}
		t.Logf("gad %s: %d settings that change nothing", stage, len(idle))
		if len(idle) < 10 && stage != config.DPO || len(idle) == 0 {
			t.Fatalf("%s: %q: are the needs read?", stage, idle)
		}
		var runs [2][]report.Row
		for i, set := range [][]string{nil, idle} {
			c := settings(stage, filepath.Join(t.TempDir(), "run"),
				slices.Concat(under.set, set, []string{"trainer.total_steps=1"})...)
			runs[i] = finished(t, be, c, stage)
		}
		differ(t, string(stage)+" with "+strings.Join(idle, " "), runs[0], runs[1])
	}
}

// fits reports whether a stage accepts a setting without any other: a rule may be of settings that
// it does not read.
func fits(stage config.Stage, set string) bool {
	c := settings(stage, "x", set)
	return stage != config.SFT || c.Validate(stage) == nil
}

// gad opd reads whole answers, whatever rollout.chunk says: it once took the chunks of a thought
// for answers and ended in a panic.
func TestOPDReadsWholeAnswers(t *testing.T) {
	be := ready(t)
	var runs [2][]report.Row
	for i, set := range [][]string{nil, {"rollout.chunk=8", "rollout.chunks=2"}} {
		c := settings(config.OPD, filepath.Join(t.TempDir(), "run"),
			append(set, "trainer.total_steps=1")...)
		runs[i] = finished(t, be, c, config.OPD)
	}
	differ(t, "gad opd with rollout.chunk", runs[0], runs[1])
}

// A preset's own warm-up fits itself to a short run, and says so; one that somebody asked for is
// refused by its name and with what fits.
func TestShortRunShortensAPresetsWarmup(t *testing.T) {
	be := ready(t)
	set := []string{"trainer.total_steps=2", "actor.optim.lr_scheduler=linear",
		"actor.optim.lr_warmup_steps=4"}
	c := settings(config.SFT, filepath.Join(t.TempDir(), "run"), set...)
	_, err := Open(c, config.SFT, Options{Backend: be})
	if err == nil || !strings.Contains(err.Error(), "a run of 2 steps has a warm-up of 4") ||
		!strings.HasSuffix(err.Error(), "here at most actor.optim.lr_warmup_steps=1") {
		t.Errorf("a warm-up that somebody asked for: %v", err)
	}
	var said strings.Builder
	tr, err := Open(c, config.SFT, Options{Backend: be, Console: &said,
		Preset: []string{"actor.optim.lr_warmup_steps"}})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if got := tr.cfg.Actor.Optim.WarmupSteps; got != 1 || !strings.Contains(said.String(),
		"actor.optim.lr_warmup_steps is 1 of the 2 optimizer steps of this run") {
		t.Errorf("warm-up of %d, says\n%s", got, said.String())
	}
}

// differ reports metrics but times in which two runs differ.
func differ(t *testing.T, what string, a, b []report.Row) {
	t.Helper()
	if len(a) != len(b) || len(a) == 0 {
		t.Fatalf("%s: %d and %d steps", what, len(a), len(b))
	}
	for i := range a {
		for name, x := range a[i].Values {
			if strings.HasPrefix(name, "timing_s/") || strings.HasPrefix(name, "perf/") ||
				strings.HasSuffix(name, "tokens_per_s") {
				continue
			}
			if y, ok := b[i].Values[name]; !ok || x != y && x == x {
				t.Errorf("%s: step %d: %s is %v and %v", what, a[i].Step, name, x, y)
			}
		}
	}
}
