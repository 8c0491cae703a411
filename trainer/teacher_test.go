package trainer

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
)

// A teacher without weight is not loaded, and one that is the student says nothing: both leave the
// bits of the game. Another one's advantages are added to those of the rewards, token by token.
func TestTeacherBesideTheGame(t *testing.T) {
	be := ready(t)
	start := filepath.Join(fixed.warmup, "global_step_3", "actor") // what the game begins with
	step := func(more ...string) map[string]string {
		run := filepath.Join(t.TempDir(), "run")
		finished(t, be, settings(config.Train, run, append(more, "trainer.total_steps=1")...),
			config.Train)
		kept := map[string]string{}
		for _, name := range []string{"actor/model.safetensors", "critic/model.safetensors"} {
			raw, err := os.ReadFile(filepath.Join(run, "global_step_1", name))
			if err != nil {
				t.Fatal(err)
			}
			kept[name] = string(raw)
		}
		return kept
	}
	want := step()
	for what, more := range map[string][]string{
		"no weight":          {"teacher.path=" + fixed.blank},
		"the student itself": {"teacher.path=" + start, "algorithm.teacher_weight=3"},
	} {
		if got := step(more...); !maps.Equal(got, want) {
			t.Errorf("%s: other weights", what)
		}
	}
	if maps.Equal(step("teacher.path="+fixed.blank, "algorithm.teacher_weight=3"), want) {
		t.Error("another teacher: the same weights")
	}
	for _, filter := range []string{"false", "true"} {
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			"teacher.path="+fixed.blank, "algorithm.teacher_weight=0.25", "trainer.total_steps=3",
			"algorithm.filter_groups.enable="+filter), config.Train)
		m := Metrics{}
		r, err := gameOf(tr).play(m)
		if err != nil {
			t.Fatal(err)
		}
		roll := r.rollout()
		game := make([][]float64, len(roll))
		for s, x := range roll {
			game[s] = make([]float64, x.Seq.Trained()+2)
			for i := range game[s] {
				game[s][i] = float64(s) - 5
			}
		}
		roll.SetAdv(game)
		r.hasAdvantages = true
		if err := gameOf(tr).addTeacher(m, r); err != nil || !r.hasAdvantages {
			t.Fatal(r.hasAdvantages, err)
		}
		logp, _, err := teacherOf(tr).Model().AllLogProbs(roll.Seqs(), 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		moved := 0.0
		for s, one := range roll {
			for i, x := range one.Adv {
				want := game[s][i]
				if i < len(logp[s]) {
					want += 0.25 * (float64(logp[s][i]) - float64(one.Old[i]))
				}
				if math.Abs(x-want) > 1e-9 {
					t.Fatalf("filter %s, answer %d, token %d: %g, want %g", filter, s, i, x, want)
				}
				moved += math.Abs(x - game[s][i])
			}
		}
		if !(moved > 1) || !(m["adv/teacher_share"] > 0 && m["adv/teacher_share"] < 1) ||
			!(m["opd/reverse_kl"] > 0) {
			t.Errorf("filter %s: the teacher moved %g, its share is %g, the reverse KL %g", filter,
				moved, m["adv/teacher_share"], m["opd/reverse_kl"])
		}
		if game[1][0] != -4 {
			t.Error("the game's own advantages were written to")
		}
	}
}

// In the game with a teacher the student comes nearer to it than without, and the samples have the
// game's advantages.
func TestTeacherIsLearnedFrom(t *testing.T) {
	t.Parallel()
	be := ready(t)
	slow(t)
	last := func(weight string) (kl float64) {
		rows := finished(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			"teacher.path="+fixed.blank, "algorithm.teacher_weight="+weight,
			"trainer.total_steps=24", "actor.policy_loss.loss_mode=vanilla",
			"actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.2", "actor.use_kl_loss=false"),
			config.Train)
		wantNames(t, rows[0], strings.Fields("opd/reverse_kl opd/teacher_nll opd/ends_compared adv/teacher_share critic/d_loss reward/mean timing_s/teacher_logp"))
		for _, r := range rows[len(rows)-5:] {
			kl += r.Values["opd/reverse_kl"] / 5
		}
		return kl
	}
	little, much := last("1e-6"), last("2")
	if !(much < 0.5*little) {
		t.Errorf("reverse KL %g with a weight of 2, %g with next to none", much, little)
	}
}

// What cannot be combined with a teacher beside the discriminator is refused by name.
func TestTeacherWeightSettings(t *testing.T) {
	ready(t)
	run := filepath.Join(t.TempDir(), "run")
	for override, want := range map[string]string{
		"teacher.path=":                                    "settings: algorithm.teacher_weight is 1, and there is no teacher: give --teacher DIR",
		"rollout.temperature=0.8":                          "settings: rollout.temperature is 0.8: algorithm.teacher_weight compares",
		"actor.policy_loss.loss_mode=geo_mean":             "settings: actor.policy_loss.loss_mode geo_mean takes one advantage",
		"rollout.chunk=8 rollout.carry=4 rollout.chunks=2": "settings: algorithm.teacher_weight is 1: a teacher scores whole answers, and rollout.chunk",
		"env.command=true data.turns=all":                  "settings: algorithm.teacher_weight is 1: a teacher scores single answers, and env.command",
	} {
		c := settings(config.Train, run, append([]string{"algorithm.teacher_weight=1",
			"teacher.path=" + fixed.blank}, strings.Fields(override)...)...)
		wantError(t, openError(t, c, config.Train), nil, want)
	}
	c := settings(config.Warmup, run, "algorithm.teacher_weight=1", "teacher.path="+fixed.blank)
	wantError(t, openError(t, c, config.Warmup), nil, "learns the teacher's answers and has no advantages")
	c = settings(config.SFT, run, "algorithm.teacher_weight=1", "rollout.temperature=0.8")
	if err := c.Validate(config.SFT); err != nil {
		t.Errorf("sft reads no weight of a teacher: %v", err)
	}
	if slices.Contains([]bool{c.ReadsTeacher(config.SFT), c.ReadsTeacher(config.DPO)}, true) ||
		!c.ReadsTeacher(config.OPD) {
		t.Error("which stages have a teacher")
	}
}

// lent is a server that scores with a model of this process.
type lent struct {
	m       *model.Model
	fail    int // requests until it fails; 0: never
	checked []model.Seq
	k       int
	wire    bool // labels are what a server writes: float32, and no tail
	lie     func(logp float32) float32
}

// served returns a server at the address of the tests.
func served(s Scores) map[string]Scores { return map[string]Scores{"http://localhost/v1": s} }

func (l *lent) Check(_ context.Context, seqs []model.Seq, k int, _ func(int32) []byte) error {
	l.checked, l.k = seqs, k
	return nil
}

func (l *lent) Score(_ context.Context, seqs []model.Seq, k int) ([][]float32, [][]model.SoftLabel,
	error) {
	if l.fail--; l.fail == 0 {
		return nil, nil, errors.New("teacher's server: gone")
	}
	logpST, _, err := l.m.AllLogProbs(seqs, 1, 512)
	if l.lie != nil {
		for _, row := range logpST {
			for t, x := range row {
				row[t] = l.lie(x)
			}
		}
	}
	if err != nil || k == 0 {
		return logpST, nil, err
	}
	labelsST, err := l.m.AllSoftLabels(seqs, k, l.m.Config().Vocab, 1, 512)
	if err != nil || !l.wire {
		return logpST, labelsST, err
	}
	for _, labels := range labelsST {
		for t, label := range labels {
			for k, x := range label.Logp {
				label.Logp[k] = float64(float32(x))
			}
			if labels[t], err = model.NewSoftLabel(label.IDs, label.Logp); err != nil {
				return nil, nil, err
			}
		}
	}
	return logpST, labelsST, nil
}

// A server that is the student gives no gradient at all where its values are exact, and as good as
// none in the precision and with the tail of the wire.
func TestTheStudentItselfBehindAServer(t *testing.T) {
	be := ready(t)
	m, err := model.Load(be, fixed.student, model.Options{Kind: model.LM})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, c := range []struct {
		more string
		wire bool
		most float64 // of the norm of the gradient
	}{{"", false, 0}, {"", true, 0}, {"teacher.loss=topk teacher.top_k=6", false, 0},
		{"teacher.loss=topk teacher.top_k=6", true, 1e-6},
		{"teacher.loss=topk teacher.top_k=1 rollout.n=2", true, 1e-6}} {
		cfg := settings(config.OPD, filepath.Join(t.TempDir(), "run"), append(strings.Fields(c.more),
			"model.path="+fixed.student, "teacher.path=", "teacher.url=http://localhost/v1",
			"trainer.total_steps=1", "actor.optim.lr=0")...) // AdamW makes a step of any noise
		tr, err := Open(cfg, config.OPD, Options{FS: vfs.OS, Backend: be,
			Teachers: served(&lent{m: m, wire: c.wire})})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		got, err := nextOf(tr)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, wire %v: gradient %.3g", c.more, c.wire, got["actor/grad_norm"])
		if norm := got["actor/grad_norm"]; !(norm >= 0 && norm <= c.most) ||
			!(got["timing_s/teacher_logp"] > 0) {
			t.Errorf("%s, wire %v: a gradient of %g, %g s of the teacher's", c.more, c.wire, norm,
				got["timing_s/teacher_logp"])
		}
	}
}

// A server that begins to lie behind the start is named by the signs of the run's second step, and
// an honest one is not.
func TestTeacherThatLies(t *testing.T) {
	be := ready(t)
	m, err := model.Load(be, fixed.student, model.Options{Kind: model.LM})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	const sign = "impossible scores from the teacher"
	for name, lie := range map[string]func(float32) float32{"honest": nil,
		"certain": func(float32) float32 { return 0 },
		"halved":  func(x float32) float32 { return x / 2 }} {
		c := settings(config.OPD, filepath.Join(t.TempDir(), name), "trainer.total_steps=2",
			"data.train_batch_size=8", "teacher.path=", "teacher.url=http://localhost/v1")
		var console lines
		tr, err := Open(c, config.OPD, Options{FS: vfs.OS, Backend: be, Console: &console,
			Teachers: served(&lent{m: m, lie: lie})})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(tr.Run(t.Context()), tr.Close()); err != nil {
			t.Fatal(err)
		}
		found, _ := report.Diagnose(metricsOf(t, c))
		named := slices.ContainsFunc(found, func(f report.Finding) bool { return f.Name == sign })
		if named != (lie != nil) || console.have(sign) != named {
			t.Errorf("%s: named %v, %v, on the console:\n%s", name, named, found, console.String())
		}
	}
}

// A server with the teacher's exact values gives the bits of the teacher that is loaded, whichever
// the loss and the tokenizer, and beside the discriminator; a run whose server ends goes on from
// its checkpoint with the same bits.
func TestTeacherBehindAServer(t *testing.T) {
	t.Parallel()
	be := ready(t)
	load := func(dir string) *lent {
		m, err := model.Load(be, dir, model.Options{Kind: model.LM})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return &lent{m: m}
	}
	play := func(stage config.Stage, c config.Config, server Scores) error {
		tr, err := Open(c, stage, Options{FS: vfs.OS, Backend: be, Teachers: served(server)})
		if err != nil {
			return err
		}
		defer tr.Close()
		return tr.Run(t.Context())
	}
	weights := func(run string) string {
		raw, err := os.ReadFile(filepath.Join(run, "global_step_3/actor/model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	other := foreign(t)
	for _, c := range []struct {
		stage           config.Stage
		teacher, tokens string
		more            string
		k               int
	}{
		{config.OPD, fixed.student, "", "", 0},
		{config.OPD, fixed.student, "", "teacher.loss=topk teacher.top_k=6", 6},
		{config.OPD, other, other, "", 0},
		{config.Train, fixed.blank, "", "algorithm.teacher_weight=0.5", 0},
	} {
		run := filepath.Join(t.TempDir(), "loaded")
		common := append(half(strings.Fields(c.more)...), "trainer.total_steps=3",
			"trainer.save_freq=1")
		finished(t, be, settings(c.stage, run, append(common, "teacher.path="+c.teacher)...),
			c.stage)
		want := weights(run)
		server := load(c.teacher)
		run = filepath.Join(t.TempDir(), "asked")
		asked := settings(c.stage, run, append(common, "teacher.path="+c.tokens,
			"teacher.url=http://localhost/v1")...)
		server.fail = 3 // in the third step
		wantError(t, play(c.stage, asked, server), nil, "teacher's server: gone")
		if err := play(c.stage, asked, server); err != nil {
			t.Fatal(err)
		}
		if weights(run) != want {
			t.Errorf("%s %s: other weights than with the teacher loaded", c.stage, c.more)
		}
		if len(server.checked) != 4 || server.k != c.k {
			t.Errorf("%s: tried on %d sequences with %d alternatives", c.more, len(server.checked),
				server.k)
		}
		for _, seq := range server.checked {
			if seq.Trained() < 2 || seq.Prompt() < 4 {
				t.Errorf("tried on %+v", seq)
			}
		}
	}
	run := filepath.Join(t.TempDir(), "no")
	for want, more := range map[string][]string{
		"settings: teacher.loss is exact, which needs whole distributions": {"teacher.loss=exact"},
		"is not the student's tokenizer":                                   {"teacher.loss=topk", "teacher.path=" + other},
		"teacher.url: http://localhost/v1: no connection was given":        nil,
	} {
		c := settings(config.OPD, run, append([]string{"teacher.path=",
			"teacher.url=http://localhost/v1"}, more...)...)
		var server Scores
		if more != nil {
			server = load(fixed.student)
		}
		wantError(t, play(config.OPD, c, server), nil, want)
		if _, err := os.Stat(filepath.Join(run, "metrics.jsonl")); err == nil {
			t.Errorf("%s: the run has begun", want)
		}
	}
}
