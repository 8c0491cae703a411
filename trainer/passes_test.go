package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/algos"
	"gad/internal/compute"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/encode"
)

// forwarded is one forward pass of a network.
type forwarded struct {
	table  *compute.Param // names the network
	state  int            // optimizer steps that it had taken
	ids    []int32
	pos    []int32 // of each token in its sequence
	learns bool    // a backward pass followed
}

// passSpy records every forward pass, by what is looked up in the embedding table.
type passSpy struct {
	compute.Backend
	passes []*forwarded
	steps  map[*compute.Param]int

	neighbours bool    // says that a row's bits depend on its neighbours, as a GPU's
	skew       float32 // added to the sampler's log-probabilities
}

func (s *passSpy) Alone() bool { return !s.neighbours }

func (s *passSpy) Embed(y compute.Tensor, table *compute.Param, ids []int32) {
	s.passes = append(s.passes,
		&forwarded{table: table, state: s.steps[table], ids: slices.Clone(ids)})
	s.Backend.Embed(y, table, ids)
}

func (s *passSpy) Rope(x compute.Tensor, heads, headDim int, pos []int32, table compute.Tensor,
	inverse bool) {
	if p := s.passes[len(s.passes)-1]; p.pos == nil {
		p.pos = slices.Clone(pos)
	}
	s.Backend.Rope(x, heads, headDim, pos, table, inverse)
}

func (s *passSpy) RopeCache(q, k, v, kCache, vCache compute.Tensor, a compute.AttnShape,
	pos []int32, table compute.Tensor, slots []int32) {
	if p := s.passes[len(s.passes)-1]; p.pos == nil {
		p.pos = slices.Clone(pos)
	}
	s.Backend.RopeCache(q, k, v, kCache, vCache, a, pos, table, slots)
}

func (s *passSpy) EmbedGrad(table *compute.Param, dy compute.Tensor, ids []int32) {
	p := s.passes[len(s.passes)-1]
	if p.table != table || !slices.Equal(p.ids, ids) || p.learns {
		panic("a backward pass without its own forward pass")
	}
	p.learns = true
	s.Backend.EmbedGrad(table, dy, ids)
}

func (s *passSpy) AdamW(ps []*compute.Param, a compute.AdamW) {
	for _, p := range ps {
		s.steps[p]++
	}
	s.Backend.AdamW(ps, a)
}

func (s *passSpy) Sample(ids []int32, logp []float32, h compute.Tensor, w *compute.Param,
	o compute.Sampling, u []float64) {
	s.Backend.Sample(ids, logp, h, w, o, u)
	for i := range logp {
		logp[i] += s.skew
	}
}

// tokens are those of one network's passes under one state of its weights.
type tokens struct{ prompt, answer int }

func (t tokens) plus(o tokens, times int) tokens {
	return tokens{t.prompt + times*o.prompt, t.answer + times*o.answer}
}

// taken sorts what was recorded in a step: by network, optimizer steps that it had taken
// in it, and whether a gradient was wanted.
func (s *passSpy) taken(t *testing.T, tr *Trainer, b encode.Batch) map[string]tokens {
	t.Helper()
	networks := map[string]*model.Model{"actor": tr.actor.Model()}
	if g, ok := tr.stage.(*game); ok {
		networks["critic"] = g.critic.Model()
	}
	if tr.reference != nil {
		networks["reference"] = tr.reference.Model()
	}
	if c := teacherOf(tr); c != nil && c.Policy != nil {
		networks["teacher"] = c.Model()
	}
	out := map[string]tokens{}
	for _, p := range s.passes {
		name := ""
		for n, m := range networks {
			if slices.Contains(m.Params(), p.table) {
				name = n
			}
		}
		if name == "" {
			t.Fatal("a pass of a network that the run does not have")
		}
		key := fmt.Sprintf("%s %d", name, p.state)
		if p.learns {
			key += " gradient"
		}
		x := out[key]
		if p.pos[0] > 0 { // one token of each of several answers
			x.answer += len(p.ids)
			out[key] = x
			continue
		}
		for lo := 0; lo < len(p.ids); {
			hi := lo + 1
			for hi < len(p.ids) && p.pos[hi] > 0 {
				hi++
			}
			ids := p.ids[lo:hi]
			k := slices.IndexFunc(b.Prompts(), func(prompt []int32) bool {
				return len(ids) >= len(prompt) && slices.Equal(ids[:len(prompt)], prompt)
			})
			if k < 0 {
				t.Fatalf("%s: a sequence that begins with no prompt of the step: %v", key, ids)
			}
			n := len(b[k].Prompt)
			x.prompt += n
			x.answer += len(ids) - n
			lo = hi
		}
		out[key] = x
	}
	return out
}

// listed is what config.Passes says of a step that took the metrics m, in which every learning
// pass takes one optimizer step: sorted as taken.
func listed(tr *Trainer, m Metrics, sampled, prompts, students, teachers tokens) map[string]tokens {
	out := map[string]tokens{}
	for _, x := range tr.cfg.Passes(tr.Stage, len(tr.train.step), tr.be.Alone()) {
		_, ran := m["timing_s/"+x.Part]
		if !ran || x.When == config.SeveralPacks && tr.cfg.Actor.MaxTokenLen > 1000 ||
			x.When == config.Checks && !tr.checksOld() {
			continue
		}
		one := prompts.plus(students, min(x.Students, 1)).plus(teachers, x.Teachers)
		if x.Kind == config.Sample {
			one = sampled
		}
		for state := range int(x.Times) {
			if x.Network == config.Reference { // takes no steps
				state = 0
			}
			key := fmt.Sprintf("%s %d",
				[...]string{config.Student: "actor", config.Discriminator: "critic",
					config.Reference: "reference", config.Teacher: "teacher"}[x.Network], state)
			if x.Kind == config.Learn {
				key += " gradient"
			}
			out[key] = out[key].plus(one, 1)
		}
	}
	return out
}

// How often each prompt token and each answer token passes through each network, for each
// state of its weights: a pass that is added to a step fails here, and so does one that
// config.Passes lacks.
func TestPassesOfAStep(t *testing.T) {
	t.Parallel()
	slow(t)
	// How often: the answers as they are sampled, all that the student answered, all that
	// the teacher did.
	type often struct{ sampled, students, teachers int }
	sampled := often{sampled: 1}
	const (
		unchecked = 4  // the number of a step that compares no log-probabilities
		checked   = 50 // of one that does
	)
	discriminator := often{students: 1, teachers: 1} // scores and gradient together
	game := func(more map[string]often) map[string]often {
		all := map[string]often{"actor 0": sampled, "critic 0 gradient": discriminator}
		maps.Copy(all, more)
		return all
	}
	policy := map[string]often{"actor 0 gradient": {students: 1}}
	withReference := map[string]often{"actor 0 gradient": {students: 1},
		"reference 0": {students: 1}}
	again := often{sampled: 1, students: 1}
	noKL := "actor.use_kl_loss=false"
	for _, c := range []struct {
		name     string
		stage    config.Stage
		settings string
		step     int
		gpu      bool
		want     map[string]often
	}{
		{"sft", config.SFT, "", unchecked, false,
			map[string]often{"actor 0 gradient": {teachers: 1}}},

		{"sft, ranking", config.SFT, "trainer.objective=ranking data.ratings=RANKED", unchecked,
			false, map[string]often{"actor 0 gradient": {students: 1, teachers: 1}}},
		{"sft, ranking, several packs: the sums come first", config.SFT,
			"trainer.objective=ranking data.ratings=RANKED actor.max_token_len=128", unchecked,
			false,
			map[string]often{"actor 0": {students: 1, teachers: 1},
				"actor 0 gradient": {students: 1, teachers: 1}}},

		{"warmup", config.Warmup, "", unchecked, false,
			game(map[string]often{"actor 0 gradient": {teachers: 1}})},
		{"warmup, on a GPU too", config.Warmup, "", unchecked, true,
			game(map[string]often{"actor 0 gradient": {teachers: 1}})},
		{"warmup, recompute is for what is read", config.Warmup, "actor.old_log_prob=recompute",
			unchecked, false, game(map[string]often{"actor 0 gradient": {teachers: 1}})},
		{"warmup, checked", config.Warmup, "", checked, false,
			game(map[string]often{"actor 0": again, "actor 0 gradient": {teachers: 1}})},
		{"warmup, the discriminator alone", config.Warmup, "trainer.critic_warmup=90", unchecked,
			false, game(nil)},
		{"warmup, policy", config.Warmup, "trainer.warmup_objective=policy", unchecked, false,
			game(withReference)},
		{"warmup, policy, the discriminator alone", config.Warmup,
			"trainer.warmup_objective=policy trainer.critic_warmup=90", unchecked, false,
			game(nil)},

		{"train, KL in the loss", config.Train, "", unchecked, false, game(withReference)},
		{"train, KL in the loss, checked", config.Train, "", checked, false,
			game(
				map[string]often{"actor 0": again, "actor 0 gradient": {students: 1},
					"reference 0": {students: 1}})},
		{"train, KL in the loss, the discriminator alone", config.Train, "trainer.critic_warmup=90",
			unchecked, false, game(nil)},
		{"train, no KL", config.Train, noKL, unchecked, false, game(policy)},
		{"train, a KL of no weight", config.Train, "actor.kl_loss_coef=0", unchecked, false,
			game(policy)},
		{"train, KL in the reward", config.Train, "algorithm.use_kl_in_reward=true " + noKL,
			unchecked, false, game(withReference)},
		{"train, KL in both", config.Train, "algorithm.use_kl_in_reward=true", unchecked, false,
			game(withReference)},
		{"train, the exact KL in the loss", config.Train, "actor.kl_loss_type=full", unchecked,
			false, game(withReference)},
		{"train, the exact KL in the loss, two epochs", config.Train,
			"actor.kl_loss_type=full actor.ppo_epochs=2", unchecked, false,
			game(map[string]often{"actor 0 gradient": {students: 1},
				"actor 1 gradient": {students: 1}, "reference 0": {students: 2}})},
		{"train, the exact KL in the reward", config.Train,
			"algorithm.use_kl_in_reward=true algorithm.kl_penalty=full " + noKL, unchecked, false,
			game(map[string]often{"actor 0": again, "actor 0 gradient": {students: 1},
				"reference 0": {students: 1}})},
		{"train, KL in the reward, the discriminator alone", config.Train,
			"algorithm.use_kl_in_reward=true trainer.critic_warmup=90", unchecked, false,
			game(map[string]often{"reference 0": {students: 1}})},
		{"train, on a GPU: one update's own pass gives the old log-probabilities", config.Train,
			noKL, unchecked, true, game(policy)},
		{"train, on a GPU, checked", config.Train, noKL, checked, true,
			game(map[string]often{"actor 0": again, "actor 0 gradient": {students: 1}})},
		{"train, on a GPU, two epochs", config.Train, "actor.ppo_epochs=2 " + noKL, unchecked, true,
			game(map[string]often{"actor 0": again, "actor 0 gradient": {students: 1},
				"actor 1 gradient": {students: 1}})},
		{"train, on a GPU, KL in the reward", config.Train,
			"algorithm.use_kl_in_reward=true " + noKL, unchecked, true,
			game(map[string]often{"actor 0": again, "actor 0 gradient": {students: 1},
				"reference 0": {students: 1}})},
		{"train, on a GPU, dynamic sampling", config.Train,
			"algorithm.filter_groups.enable=true " + noKL, unchecked, true,
			game(map[string]often{"actor 0": again, "actor 0 gradient": {students: 1},
				"critic 0": discriminator})},
		{"opd, on a GPU", config.OPD, "", unchecked, true,
			map[string]often{"actor 0": again, "teacher 0": {students: 1},
				"actor 0 gradient": {students: 1}}},
		{"opd, exact, on a GPU", config.OPD, "teacher.loss=exact", unchecked, true,
			map[string]often{"actor 0": sampled, "teacher 0": {students: 1},
				"actor 0 gradient": {students: 1}}},
		{"train, a teacher, on a GPU", config.Train,
			"algorithm.teacher_weight=0.5 teacher.path=TEACHER " + noKL, unchecked, true,
			game(map[string]often{"actor 0": again, "actor 0 gradient": {students: 1},
				"teacher 0": {students: 1}})},
		{"train, recompute", config.Train, "actor.old_log_prob=recompute " + noKL, unchecked, false,
			game(policy)},
		{"train, rollout on a GPU", config.Train, "actor.old_log_prob=rollout " + noKL, unchecked,
			true, game(policy)},
		{"train, two epochs", config.Train, "actor.ppo_epochs=2 critic.ppo_epochs=2 " + noKL,
			unchecked, false,
			game(map[string]often{"actor 0 gradient": {students: 1},
				"actor 1 gradient": {students: 1}, "critic 1 gradient": discriminator})},
		{"train, dynamic sampling scores first", config.Train,
			"algorithm.filter_groups.enable=true " + noKL, unchecked, false,
			game(map[string]often{"actor 0 gradient": {students: 1}, "critic 0": discriminator})},

		{"warmup, a likelihood", config.Warmup, "critic.head=likelihood", unchecked, false,
			game(map[string]often{"actor 0": {sampled: 1, students: 1, teachers: 1},
				"actor 0 gradient": {teachers: 1}})},
		{"warmup, policy, a likelihood by token", config.Warmup, byToken + noKL, unchecked, false,
			game(map[string]often{"actor 0": {sampled: 1, students: 2, teachers: 1},
				"critic 0": {students: 1}, "actor 0 gradient": {students: 1}})},

		{"train, a teacher beside the discriminator", config.Train,
			"algorithm.teacher_weight=0.5 teacher.path=TEACHER " + noKL, unchecked, false,
			game(map[string]often{"actor 0 gradient": {students: 1}, "teacher 0": {students: 1}})},
		{"train, a teacher beside the discriminator alone", config.Train,
			"algorithm.teacher_weight=0.5 teacher.path=TEACHER trainer.critic_warmup=90", unchecked,
			false, game(nil)},
		{"train, a teacher of no weight", config.Train, "teacher.path=TEACHER " + noKL, unchecked,
			false, game(policy)},

		{"opd", config.OPD, "", unchecked, false,
			map[string]often{"actor 0": sampled, "teacher 0": {students: 1},
				"actor 0 gradient": {students: 1}}},
		{"opd, checked", config.OPD, "", checked, false,
			map[string]often{"actor 0": again, "teacher 0": {students: 1},
				"actor 0 gradient": {students: 1}}},
		{"opd, exact", config.OPD, "teacher.loss=exact", unchecked, false,
			map[string]often{"actor 0": sampled, "teacher 0": {students: 1},
				"actor 0 gradient": {students: 1}}},
		{"opd, topk", config.OPD, "teacher.loss=topk", unchecked, false,
			map[string]often{"actor 0": sampled, "teacher 0": {students: 1},
				"actor 0 gradient": {students: 1}}},
		{"opd, KL to the reference", config.OPD, "actor.use_kl_loss=true", unchecked, false,
			map[string]often{"actor 0": sampled, "teacher 0": {students: 1},
				"reference 0": {students: 1}, "actor 0 gradient": {students: 1}}},

		{"dpo", config.DPO, "", unchecked, false,
			map[string]often{"reference 0": {1, 1, 1},
				"actor 0 gradient": {students: 1, teachers: 1}}},
		{"dpo, several packs: the sums come first", config.DPO, "actor.max_token_len=64", unchecked,
			false,
			map[string]often{"reference 0": {1, 1, 1}, "actor 0": {students: 1, teachers: 1},
				"actor 0 gradient": {students: 1, teachers: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			be := &passSpy{Backend: ready(t), steps: map[*compute.Param]int{}, neighbours: c.gpu}
			more := strings.Fields("trainer.total_steps=60 actor.ppo_mini_batch_size=4 critic.truncated=include dpo.truncated=include critic.loss=bce critic.max_token_len=4096 actor.max_token_len=4096 " +
				strings.NewReplacer("RANKED", ranked(t, nil), "TEACHER", fixed.blank).Replace(
					c.settings))
			var tr *Trainer
			var m Metrics
			// without a tie, which gives no pair
			for seed := 1; seed == 1 || c.stage == config.DPO && m["dpo/pairs"] < 4; seed++ {
				tr = opened(t, be, settings(c.stage, filepath.Join(t.TempDir(), "run"),
					append(more, fmt.Sprintf("trainer.seed=%d", seed))...), c.stage)
				be.passes = nil
				clear(be.steps)
				tr.step = c.step - 1
				var err error
				if m, err = nextOf(tr); err != nil {
					t.Fatal(err)
				}
			}
			b, err := tr.enc.Batch(tr.train.set, tr.train.step)
			if err != nil {
				t.Fatal(err)
			}
			answers := 1 // to a prompt
			if c.stage.HasPolicy() || tr.cfg.LearnsRanking(c.stage) {
				answers = tr.cfg.Rollout.N
			}
			var prompts, taught int
			for i, seq := range b.Teachers() {
				prompts += len(b[i].Prompt)
				taught += seq.Trained()
			}
			said := int(m["rollout/len_mean"]*float64(answers*len(b)) + 0.5)
			unit := map[string]tokens{ // of one pass
				// a prompt once; the last token of an answer is not read
				"sampled":  {prompts, said - answers*len(b)},
				"students": {0, said},
				"teachers": {0, taught},
				"prompts":  {prompts, 0}, // with the answers of both sides, once
			}
			if prompts == 0 || taught == 0 || c.stage != config.SFT && said == 0 {
				t.Fatal("nothing is counted")
			}
			want := map[string]tokens{}
			for key, n := range c.want {
				want[key] = tokens{}.plus(unit["sampled"], n.sampled).plus(unit["students"],
					n.students).plus(unit["teachers"], n.teachers).plus(unit["prompts"],
					max(n.students, n.teachers))
			}
			if got := be.taken(t, tr, b); !maps.Equal(got, want) {
				t.Errorf("passes\n%v\nwant\n%v\nunits %v", got, want, unit)
			}
			if got := listed(tr, m, unit["sampled"], tokens{prompts, 0}, tokens{0, said},
				tokens{0, taught}); !maps.Equal(got, want) {
				t.Errorf("config.Passes has\n%v\nand the step\n%v", got, want)
			}
		})
	}
}

// byToken are the settings of rewards by token.
const byToken = "critic.head=likelihood critic.level=token trainer.warmup_objective=policy " +
	"algorithm.adv_estimator=reinforce_plus_plus algorithm.truncated_reward=score "

// With critic.level=token the advantages are those of the discriminator's terms, token by token,
// from before it learned.
func TestRewardsByToken(t *testing.T) {
	tr := opened(t, ready(t), settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
		append(strings.Fields(byToken), "trainer.total_steps=4", "model.reward_path="+fixed.blank,
			"algorithm.gamma=0.5", "critic.truncated=include")...), config.Warmup)
	m := Metrics{}
	r, err := gameOf(tr).play(m)
	if err != nil {
		t.Fatal(err)
	}
	want, err := gameOf(tr).critic.Terms(r.criticSeqs())
	if err != nil {
		t.Fatal(err)
	}
	if err := gameOf(tr).updateCritic(m, r); err != nil {
		t.Fatal(err)
	}
	advST := advantagesOf(t, tr, m, r)
	_, mask := r.mask()
	byHand, err := algos.Advantages(
		algos.AdvantageConfig{Name: "reinforce_plus_plus", Gamma: 0.5},
		algos.AdvantageInput{Scores: make([]float64, len(want)), Group: r.group(), Mask: mask,
			TokenRewards: pad(want, mask)})
	if err != nil {
		t.Fatal(err)
	}
	differ := 0
	for s, row := range byHand {
		for i, x := range row {
			if i < len(advST[s]) && math.Abs(x-advST[s][i]) > 1e-9 {
				t.Fatalf("answer %d, token %d: advantage %g, want %g", s, i, advST[s][i], x)
			}
			if i > 0 && mask[s][i] == 1 && x != row[0] {
				differ++
			}
		}
	}
	if differ == 0 {
		t.Error("all tokens of an answer have one advantage")
	}
	most := 0.0
	for _, row := range advST {
		most = max(most, slices.Max(row), -slices.Min(row))
	}
	if m["adv/max"] != most {
		t.Errorf("adv/max %g, want %g, of all tokens", m["adv/max"], most)
	}
	for want, wrong := range map[string]string{
		"use reinforce_plus_plus": "algorithm.adv_estimator=grpo", "use critic.head=likelihood": "critic.head=value",
		"use score": "algorithm.truncated_reward=group_min", "use 1": "algorithm.adv_power=1.5", "leave it out": "algorithm.use_kl_in_reward=true"} {
		c := settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
			append(strings.Fields(byToken), wrong)...)
		if err := c.Validate(config.Warmup); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// Whether old log-probabilities come from the sampler or from a pass of their own changes
// no bit of the run, at a temperature and with filters too: the sampler's are those of the
// whole distribution, as the trainer's.
func TestOldLogProbsChangeNoBit(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	for _, how := range []string{"rollout.temperature=0.7",
		"rollout.temperature=1.3 rollout.top_k=20 rollout.top_p=0.9 rollout.min_p=0.01",
		"algorithm.use_kl_in_reward=true algorithm.filter_groups.enable=true"} {
		var want map[string]string
		for _, mode := range []string{"recompute", "auto", "rollout"} {
			run := filepath.Join(t.TempDir(), "run")
			rows := finished(t, be, settings(config.Train, run,
				append(half("trainer.total_steps=4", "actor.old_log_prob="+mode),
					strings.Fields(how)...)...), config.Train)
			for _, r := range rows {
				if d, ok := r.Values["rollout/logp_diff_max"]; d != 0 ||
					ok != (mode == "recompute" || r.Step <= config.CheckFirst) {
					t.Errorf("%s, %s: step %d: difference %g, measured %v", how, mode, r.Step, d,
						ok)
				}
			}
			got := record(t, run, 4)
			got["metrics.jsonl"] = strings.ReplaceAll(got["metrics.jsonl"], `"rollout/logp_diff_max":0,`, "")
			if want == nil {
				want = got
			}
			same(t, got, want)
		}
	}
}

// A sampler that should have the trainer's bits and is found not to have them is no longer
// believed: the run says so, takes the trainer's pass from then on, and, resumed, goes on
// like that, with the bits of a run that was not interrupted.
func TestOldLogProbsFallBack(t *testing.T) {
	be := &passSpy{Backend: ready(t), steps: map[*compute.Param]int{}}
	var said lines
	tr, err := Open(settings(config.Train, filepath.Join(t.TempDir(), "run"),
		"trainer.total_steps=60"), config.Train, Options{FS: vfs.OS, Backend: be, Console: &said})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	for _, c := range []struct {
		step     int
		skew     float32
		measured bool
		differs  bool
	}{{3, 0, true, false}, {4, 0.25, false, false}, {50, 0.25, true, true}, {51, 0.25, true, true},
		{52, 0, true, true}} {
		tr.step, be.skew = c.step-1, c.skew
		m, err := nextOf(tr)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := m["rollout/logp_diff_max"]; ok != c.measured || tr.past.oldDiffers != c.differs {
			t.Errorf("step %d: measured %v, fell back %v, want %v and %v", c.step, ok,
				tr.past.oldDiffers, c.measured, c.differs)
		}
		if ratio := m["actor/first_ratio_max"]; c.measured && ratio != 1 {
			t.Errorf("step %d: the first ratio is %g: it is not taken to the trainer's own", c.step,
				ratio)
		}
	}
	if want := "a forward pass of the trainer gives the old log-probabilities"; strings.Count(
		said.String(), want) != 1 || !said.have("rollout/logp_diff_max is 0.25") {
		t.Errorf("the console does not say once %q:\n%s", want, said.String())
	}

	cfg := func(name string) config.Config {
		return settings(config.Train, filepath.Join(fixed.root, "fall-back-"+name),
			"trainer.total_steps=6", "trainer.save_freq=2")
	}
	be.skew = 0.25
	rows := finished(t, be, cfg("whole"), config.Train)
	for _, r := range rows {
		if r.Values["rollout/logp_diff_max"] < 0.2 {
			t.Errorf("step %d: difference %g, want some 0.25 in every step", r.Step,
				r.Values["rollout/logp_diff_max"])
		}
	}
	stopped := opened(t, be, cfg("parts"), config.Train)
	if err := errors.Join(stopped.Run(&stopAfter{Context: context.Background(), n: 4})); !errors.Is(
		err, ErrInterrupted) {
		t.Fatal(err)
	}
	stopped.Close()
	finished(t, be, cfg("parts"), config.Train)
	same(t, record(t, cfg("parts").Trainer.Output, 6), record(t, cfg("whole").Trainer.Output, 6))
}

// In later epochs DPO reads what the reference has already said of a row: no pass, and no
// bit of the run changes, whether all is kept, a part, or nothing, and where a run is
// stopped in between.
func TestDPOKeepsWhatIsFrozen(t *testing.T) {
	t.Parallel()
	slow(t)
	be := &passSpy{Backend: ready(t), steps: map[*compute.Param]int{}}
	cfg := func(t *testing.T) config.Config { // three epochs of ten steps
		return settings(config.DPO, filepath.Join(t.TempDir(), "run"), "trainer.total_steps=30",
			"trainer.save_freq=7", "dpo.truncated=include")
	}
	read := func(tr *Trainer) (n int) { // tokens under the reference
		for _, p := range be.passes {
			if slices.Contains(tr.reference.Model().Params(), p.table) {
				n += len(p.ids)
			}
		}
		return n
	}
	play := func(t *testing.T, edit func(*Trainer)) (map[string]string, int) {
		c := cfg(t)
		tr := opened(t, be, c, config.DPO)
		edit(tr)
		be.passes = nil
		if err := tr.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		return record(t, c.Trainer.Output, 30), read(tr)
	}
	want, whole := play(t, func(tr *Trainer) { tr.stage.(*dpo).frozen = nil })
	kept, once := play(t, func(*Trainer) {})
	same(t, kept, want)
	if 3*once != whole || once == 0 {
		t.Errorf("%d tokens passed through the reference, without the store %d: want a third", once,
			whole)
	}
	part, some := play(t, func(tr *Trainer) { tr.stage.(*dpo).frozen.room = 2000 })
	same(t, part, want)
	if some <= once || some >= whole {
		t.Errorf("%d tokens passed through the reference with a store that is full, %d and %d with and without one: want between", some, once, whole)
	}
	c := cfg(t)
	stopped := opened(t, be, c, config.DPO)
	if err := stopped.Run(&stopAfter{Context: context.Background(), n: 14}); !errors.Is(err,
		ErrInterrupted) {
		t.Fatal(err)
	}
	stopped.Close()
	rows := finished(t, be, c, config.DPO)
	same(t, record(t, c.Trainer.Output, 30), want)
	sampledIn := func(r report.Row) bool { _, ok := r.Values["timing_s/rollout"]; return ok }
	if sampledIn(rows[13]) || !sampledIn(rows[14]) {
		t.Error("the rows are sampled again before the stop, or not after it")
	}
	be.neighbours = true
	if tr := opened(t, be, cfg(t), config.DPO); tr.stage.(*dpo).frozen != nil {
		t.Error("what depends on its neighbours is kept: a resumed run would have other bits")
	}
	be.neighbours = false
	if tr := opened(t, be, settings(config.DPO, filepath.Join(t.TempDir(), "short"),
		"trainer.total_steps=10"), config.DPO); tr.stage.(*dpo).frozen != nil {
		t.Error("one epoch keeps what never comes again")
	}
}

// Settings of old log-probabilities that cannot be meant are refused in one line.
func TestOldLogProbSettings(t *testing.T) {
	ready(t)
	for override, text := range map[string]string{
		"actor.old_log_prob=rollout actor.rollout_is=token":               "settings: actor.rollout_is is token with actor.old_log_prob=rollout: every weight would be 1: set actor.rollout_is to none",
		"actor.old_log_prob=recompute actor.rollout_is=token rollout.n=4": "",
	} {
		c := settings(config.Train, filepath.Join(t.TempDir(), "run"), strings.Fields(override)...)
		err := c.Validate(config.Train)
		if text == "" && err != nil || text != "" && (err == nil || err.Error() != text) {
			t.Errorf("%s: %v, want %q", override, err, text)
		}
	}
}
