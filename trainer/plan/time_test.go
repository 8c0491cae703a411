package plan

import (
	"errors"
	"math"
	"strings"
	"testing"

	"gad/trainer/config"
)

// A loss over distributions takes products with the head beside those of its pass: four of a
// student's (three where the head does not learn), one more of a network whose whole distributions
// are read, none more of a teacher whose best tokens are.
func TestPlanOfLosses(t *testing.T) {
	times := tokenTimes{trained: 3, forward: 1, decoded: 2, head: 7}
	for _, c := range []struct {
		stage config.Stage
		set   string
		soft  bool
		want  float64 // seconds of update_actor; 4 prompts of 10 tokens, 5 of an answer
	}{
		{config.SFT, "", false, 4 * 15 * 3},
		{config.SFT, "", true, 4*15*3 + 4*5*4*7},
		{config.SFT, "data.soft_labels=0", true, 4 * 15 * 3},
		{config.SFT, "actor.lora.rank=4", true, 4*15*3 + 4*5*3*7},
		{config.Warmup, "", true, 4*15*3 + 4*5*4*7},
		{config.Warmup, "trainer.warmup_objective=policy", true, (40 + 4*2*5) * 3},
		{config.OPD, "teacher.path=x", false, 4 * 15 * 3},
		{config.OPD, "teacher.path=x teacher.loss=topk", false, 4*15*3 + 4*5*4*7 + 4*15*2},
		{config.OPD, "teacher.url=x teacher.loss=topk", false, 4*15*3 + 4*5*4*7},
		{config.OPD, "teacher.path=x teacher.loss=exact", false, 4*15*3 + 4*5*4*7 + (4*15+4*5*7)*2},
		{config.Train, "actor.kl_loss_type=full", false, 80*3 + 40*4*7 + 80 + 40*7},
	} {
		cfg := config.StageDefaults(c.stage)
		if err := cfg.Load("", strings.Fields("data.train_batch_size=4 rollout.n=2 data.max_response_length=20 "+c.set)...); err != nil {
			t.Fatal(err)
		}
		if c.stage == config.OPD {
			cfg.Rollout.N = 1
		}
		p := &Plan{Stage: c.stage, PromptMean: 10, AnswerMean: 5, soft: c.soft, teacher: theirs{cost: 2}}
		got := 0.0
		for _, part := range p.stepTime(cfg, true, times, 5) {
			if part.Name == "update_actor" {
				got += part.Seconds
			}
		}
		if got != c.want {
			t.Errorf("%s %s, soft %v: an update of %g s, want %g", c.stage, c.set, c.soft, got, c.want)
		}
	}
}

// The time of a run is that of its steps and of what it does beside them, each as often as
// training does it; twice, for answers of the teacher's length and for answers at the limit.
func TestPlanOfTime(t *testing.T) {
	times := tokenTimes{trained: 3, forward: 1, decoded: 2}
	for _, c := range []struct {
		stage          config.Stage
		set            string
		step, limit    float64 // seconds of a step
		besides, times map[string]float64
	}{
		// 4 prompts of 10 tokens, the teacher's answers have 5, at most 20.
		{config.SFT, "", 4 * 15 * 3, 0, map[string]float64{"validation": 6 * (10 + 5*2 + 15)},
			map[string]float64{"validation": 2}},
		{config.SFT, "trainer.val_before_train=false", 4 * 15 * 3, 0, nil,
			map[string]float64{"validation": 1}},
		// rollout, reference; 2 answers to each.
		{config.Train, "critic.max_token_len=100000", 40 + 40*2 + 80*1 + (80+20)*3 + 80*3,
			40 + 160*2 + 200*1 + (200+20)*3 + 200*3,
			map[string]float64{"old_logp": 80, "validation": 6 * (10 + 5*2 + 15)},
			map[string]float64{"old_logp": 3 + 2, "validation": 2}},
		{config.Train, "actor.old_log_prob=recompute trainer.test_freq=30",
			40 + 40*2 + 60 + 80*1 + (80+20)*3 + 80*3, 0,
			map[string]float64{"old_logp": 20, "validation": 6 * (10 + 5*2 + 15)},
			map[string]float64{"old_logp": 5, "validation": 5}},
		// What samples is a merged copy of the weights: old_logp is in every step but for a
		// quarter, as in training.
		{config.Train, "actor.lora.rank=4 critic.lora.rank=4 rollout.merged=true",
			40 + 40*2 + 60 + 80*1 + (80+20)*3 + 80*3, 0,
			map[string]float64{"old_logp": 20, "validation": 6 * (10 + 5*2 + 15)},
			map[string]float64{"old_logp": 5, "validation": 2}},
		{config.Warmup, "trainer.save_freq=0 trainer.test_freq=50", 40 + 40*2 + (80+20)*3 + 60*3, 0,
			map[string]float64{"old_logp": 80},
			map[string]float64{"old_logp": 5, "checkpoint": 1, "validation": 3}},
		{config.DPO, "", 4*(10+5*2) + 4*20 + 4*20*3, 0, nil, map[string]float64{"checkpoint": 2}},
	} {
		cfg := config.StageDefaults(c.stage)
		if err := cfg.Load("", strings.Fields("data.train_batch_size=4 rollout.n=2 data.max_response_length=20 "+c.set)...); err != nil {
			t.Fatal(err)
		}
		p := &Plan{Stage: c.stage, PromptMean: 10, AnswerMean: 5, Rows: 400, ValRows: 6, Steps: 100,
			checkpoint: 1e9, limit: 20}
		p.setTimes(cfg, true, times)
		p.addCheckpoints(cfg)
		if got := p.step(); got != c.step || c.limit > 0 && p.AtLimit != c.limit {
			t.Errorf("%s %s: a step of %g s, %g at the limit, want %g and %g: %v", c.stage, c.set,
				got, p.AtLimit, c.step, c.limit, p.StepTime)
		}
		again := &Plan{Stage: c.stage, PromptMean: 10, AnswerMean: 5, ValRows: 6, Steps: 100,
			validated: true}
		again.setTimes(cfg, true, times) // what the run before has measured is not measured again
		if n, first :=
			again.Repeated[len(again.Repeated)-1].Times,
			p.Repeated[len(p.Repeated)-2].Times; (n == first) == cfg.Trainer.ValBeforeTrain {
			t.Errorf("%s %s: %d validations where the first was made before, %d where not", c.stage,
				c.set, n, first)
		}
		all := 100 * c.step
		for _, o := range p.Repeated {
			name, _, _ := strings.Cut(strings.Fields(o.Name)[0], ",")
			if want, ok := c.besides[name]; ok && o.Seconds != want {
				t.Errorf("%s %s: %s: %g s, want %g", c.stage, c.set, o.Name, o.Seconds, want)
			}
			if want, ok := c.times[name]; ok && float64(o.Times) != want {
				t.Errorf("%s %s: %s: %d times, want %g", c.stage, c.set, o.Name, o.Times, want)
			}
			if o.AtLimit > 0 && o.AtLimit < o.Seconds {
				t.Errorf("%s: %g s at the limit, %g before", o.Name, o.AtLimit, o.Seconds)
			}
			all += o.Seconds * float64(o.Times)
		}
		if got := p.Seconds(false); math.Abs(got-all) > 1e-6*all {
			t.Errorf("%s %s: %g s in all, want %g", c.stage, c.set, got, all)
		}
		text := p.String() + p.runText()
		for _, want := range []string{"time of the run\n  100 steps ", "validation of 6 rows ",
			"checkpoint of 1 GB, at an assumed 500 MB a second ", "  in all  "} {
			if !strings.Contains(text, want) {
				t.Errorf("%s %s: does not say %q:\n%s", c.stage, c.set, want, text)
			}
		}
		if longer := strings.Contains(text,
			"in all, if the student's answers reach 20 tokens"); longer != (c.stage != config.SFT) {
			t.Errorf("%s: says how long it takes at the limit: %v\n%s", c.stage, longer, text)
		}
	}
}

// A run that is to end within some hours gets as large a batch as leaves enough steps, and
// ends by then.
func TestPlanWithinHours(t *testing.T) {
	cfg := config.StageDefaults(config.Train)
	cfg.Data.TrainBatchSize, cfg.Rollout.N, cfg.Data.MaxResponse = 256, 8, 100
	plan := func(c config.Config) *Plan {
		p := &Plan{Stage: config.Train, PromptMean: 50, AnswerMean: 60, Rows: 2000, ValRows: 64,
			Steps: 16, checkpoint: 5e8, limit: 100}
		if c.Trainer.TotalSteps > 0 {
			p.Steps = c.Trainer.TotalSteps
		}
		p.setTimes(c, true, tokenTimes{1e-3, 3e-4, 2e-4, 0})
		p.addCheckpoints(c)
		return p
	}
	for hours, want := range map[float64]string{
		100: "ends within 100 h as it is: 16 steps, ",
		2:   "settings to add, to end within 2 h with answers of up to 100 tokens\n  ",
		0.5: "settings to add, to end within 0.5 h with answers of up to 100 tokens\n  ",
	} {
		text, err := plan(cfg).FitHours(cfg, hours)
		if err != nil || !strings.HasPrefix(text, want) {
			t.Errorf("%g h: %q, %v", hours, text, err)
		}
		if hours == 100 {
			continue
		}
		with, settings := cfg, strings.Fields(strings.Split(text, "\n")[1])
		if err := with.Load("", settings...); err != nil {
			t.Fatal(err)
		}
		p := plan(with)
		if s := p.Seconds(true); s > hours*3600 || s < 0.9*hours*3600 {
			t.Errorf("%g h: %v take %g h", hours, settings, s/3600)
		}
		if with.Trainer.TotalSteps < enoughSteps || with.Data.TrainBatchSize < 4 {
			t.Errorf("%g h: %v", hours, settings)
		}
		if twice := with; with.Data.TrainBatchSize < 256 {
			twice.Data.TrainBatchSize, twice.Trainer.TotalSteps =
				2*with.Data.TrainBatchSize, enoughSteps
			if s := plan(twice).Seconds(true); s <= hours*3600 {
				t.Errorf("%g h: %v, and twice the batch leaves %d steps as well, in %g h", hours,
					settings, enoughSteps, s/3600)
			}
		}
	}
	if text, err := plan(cfg).FitHours(cfg, 0.01); !errors.Is(err, config.ErrConfig) || text != "" ||
		!strings.Contains(err.Error(),
			"plan: --hours 0.01: even with data.train_batch_size=4 only ") {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := (&Plan{Stage: config.Train}).FitHours(cfg, 1); !errors.Is(err, config.ErrConfig) {
		t.Error(err)
	}
}
