package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/algos"
	"gad/internal/env"
	"gad/internal/fault"
	"gad/internal/hostile"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/episode"
)

// talkAs is the tests' environment, which is this test program again: two or three turns, by the
// row's column env, and replies that depend on all turns. TALK says how it is broken.
func talkAs(how string) string { return "TALK='" + how + `' "$GAD"` }

func serveTalk() {
	how, forks := strings.CutPrefix(os.Getenv("TALK"), "forks ")
	places := 8
	if forks {
		places = 64 // for the episodes of a step's trees
	}
	err := env.Serve(os.Stdin, os.Stdout, "talk", places, func() env.Episode {
		if forks {
			return &forking{talking{how: how}}
		}
		return &talking{how: how}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type talking struct {
	how   string
	turns int
	said  string
	n     int
}

func (t *talking) Reset(_ context.Context, _ uint64, row env.Row) (env.Reply, error) {
	if err := json.Unmarshal(row.Env, &t.turns); err != nil {
		return env.Reply{}, err
	}
	r := env.Reply{Append: []env.Message{}, Valid: true, Anchor: "start"}
	if t.how == "start" {
		r.Append = []env.Message{{Role: "user", Content: "Add"}}
	}
	return r, nil
}

func (t *talking) Step(_ context.Context, turn env.Turn) (env.Reply, error) {
	if t.how == "breaks" && t.n == 0 && t.turns == 3 {
		return env.Reply{}, errors.New("no such level")
	}
	if once := os.Getenv("ONCE"); once != "" && t.n == 1 && t.turns == 3 {
		if f, err := os.OpenFile(once, os.O_CREATE|os.O_EXCL, 0o644); err == nil {
			f.Close()
			os.Exit(3)
		}
	}
	t.said += turn.Text + " "
	t.n++
	next := []env.Message{{Role: "user", Content: fmt.Sprint(len(t.said) % 10)}}
	switch t.how {
	case "pid":
		next[0].Content = fmt.Sprint(os.Getpid())
	case "clock":
		next[0].Content = fmt.Sprint(time.Now().UnixNano() % 1e6)
	}
	r := env.Reply{Append: next, Reward: float64(len(turn.Text) % 3),
		Valid: len(turn.Text)%4 > 0, Done: t.n == t.turns,
		Anchor: fmt.Sprint(t.n, len(t.said)%2)}
	if t.how == "prompt" {
		r.Append, r.Prompt = nil, next
	}
	return r, nil
}

func (t *talking) Close() {}

// forking is the environment with episodes that can be forked: TALK begins with forks.
type forking struct{ talking }

func (f *forking) Fork() env.Forker {
	copied := *f
	return &copied
}

// episodesOf writes the teacher's episodes: of two turns in even rows, and of three in odd ones.
func episodesOf(t *testing.T, rows int) string {
	t.Helper()
	var b strings.Builder
	for i := range rows {
		fmt.Fprintf(&b, `{"content":"%d","env":%d,"teacher_response":[{"role":"assistant","content":"%d."},{"role":"user","content":"%d"},`+
			`{"role":"assistant","content":"7."}`, i%6, 2+i%2, i%4, i%9)
		if i%2 == 1 {
			b.WriteString(`,{"role":"user","content":"8"},{"role":"assistant","content":"8."}`)
		}
		b.WriteString("]}\n")
	}
	path := filepath.Join(t.TempDir(), "episodes.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// acting are a small run's settings in the tests' environment.
func acting(data, how string, more ...string) []string {
	return append([]string{"data.train_files=" + data, "data.turns=all",
		"env.command=" + talkAs(how), "env.max_turns=4", "env.max_tokens=80",
		"data.max_prompt_length=40", "data.max_response_length=8"}, more...)
}

// A step on episodes: rewards are of the right one, its tokens are learned and the environment's
// are not, and every statistic is of episodes.
func TestStepOnEpisodes(t *testing.T) {
	be := ready(t)
	data := episodesOf(t, 12)
	tr := opened(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
		acting(data, "well", "trainer.total_steps=2", "trainer.warmup_objective=policy",
			"algorithm.env_weight=1", "env.invalid_penalty=0.5")...), config.Warmup)
	m := Metrics{}
	r := scored(t, tr, m)
	v := listsOf(r)
	if len(v.group) != 16 || len(v.episodes) != 16 || len(v.judged) != 16 ||
		len(v.scoreA) != 16 || m["env/fault_frac"] != 0 {
		t.Fatalf("%d episodes, %d groups, %v", len(v.episodes), len(v.group), m)
	}
	logp, _, err := tr.actor.Model().AllLogProbs(v.seqs, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	rewarded := gameOf(tr).termSums(m, r)
	steps := turnsOf(tr, r)
	lenA, maskAT := r.mask()
	for a, e := range v.episodes {
		turns := 2 + v.batch[v.group[a]].Index%2
		if len(e.Turns) != turns || len(e.Seqs[0].Spans) != turns {
			t.Errorf("episode %d has %d turns, want %d", a, len(e.Turns), turns)
		}
		if !slices.Equal(logp[a], v.sampled[a]) {
			t.Errorf("episode %d was not sampled with the context that is learned", a)
		}
		sum, want := 0.0, 0.0
		for k, span := range e.Seqs[0].Spans {
			text := tr.tok.Decode(e.Seqs[0].IDs[span.From:span.To], true)
			reward := float64(len(text) % 3)
			if len(text)%4 == 0 {
				reward -= 0.5
			}
			want += reward
			if got := steps[a][k]; got.End-got.Start != span.To-span.From {
				t.Errorf("episode %d, turn %d: %+v for %v", a, k, got, span)
			}
			anchor := "start"
			if k > 0 {
				anchor = fmt.Sprint(k, " ")
			}
			if !strings.HasPrefix(steps[a][k].Anchor, anchor) {
				t.Errorf("episode %d, turn %d: anchor %q, want %q", a, k, steps[a][k].Anchor,
					anchor)
			}
			sum += steps[a][k].Reward
		}
		if got := e.Reward(0.5); math.Abs(got-want) > 1e-12 {
			t.Errorf("episode %d: reward %g, want %g", a, got, want)
		}
		if n := e.Trained(); lenA[a] != n || steps[a][turns-1].End != n || maskAT[a][n-1] != 1 {
			t.Errorf("episode %d: %d tokens, mask %v, steps %v", a, n, maskAT[a], steps[a])
		}
		_, sigma := report.Moments(of(r, tr.form.(*episodes).envRewards(r), a))
		if math.Abs(sum-want/(sigma+1e-6)) > 1e-9 {
			t.Errorf("episode %d: turns' rewards add up to %g, want %g", a, sum, want/(sigma+1e-6))
		}
		critic := v.judged[a]
		if len(critic.Spans) != turns || critic.Prompt() != e.Seqs[0].Prompt() {
			t.Errorf("episode %d before the discriminator: %v", a, critic.Spans)
		}
		if text, want := tr.tok.Decode(critic.IDs, true), tr.tok.Decode(e.Seqs[0].IDs,
			true); text != want {
			t.Errorf("episode %d: the discriminator reads %q, was %q", a, text, want)
		}
		if end := critic.IDs[len(critic.IDs)-1]; (end == tr.tok.EndOfTurn()) == e.Open {
			t.Errorf("episode %d: open %v, ends with %d", a, e.Open, end)
		}
	}
	z := zWithin(tr.form.(*episodes).envRewards(r), v.group)
	for a := range z {
		if rewarded[a] != float32(z[a]) {
			t.Errorf("episode %d: reward %g, want z %g", a, rewarded[a], z[a])
		}
	}
	adv := advantagesOf(t, tr, m, r)
	shaped := shape(tr.cfg.Algorithm, rewarded, nil, lenA, v.cut, v.group, 80)
	for s, seq := range v.seqs {
		mean, sigma := report.Moments(of(r, shaped, s))
		want := (shaped[s] - mean) / (sigma + 1e-6)
		if len(adv[s]) != seq.Trained() {
			t.Errorf("sequence %d: %d advantages for %d tokens", s, len(adv[s]), seq.Trained())
		}
		for _, x := range adv[s] {
			if math.Abs(x-want) > 1e-5 {
				t.Errorf("sequence %d: advantages %v, want %g of its own reward in its group", s,
					adv[s], want)
				break
			}
		}
	}
	// A token of the environment that is another one changes the log-probabilities behind it only,
	// and is in no loss.
	seq := v.seqs[0]
	changed := model.Seq{IDs: slices.Clone(seq.IDs), Spans: seq.Spans}
	changed.IDs[seq.Spans[1].From-1]++
	after, _, err := tr.actor.Model().AllLogProbs([]model.Seq{changed}, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	first := seq.Spans[0].To - seq.Spans[0].From
	if !slices.Equal(after[0][:first], logp[0][:first]) ||
		slices.Equal(after[0][first:], logp[0][first:]) {
		t.Errorf("another word of the environment: %v, was %v", after[0], logp[0])
	}
}

// With critic.level=turn the rewards of an episode's turns add up to its own, whatever share the
// environment has, and gigpo gives turns of an episode advantages of their own.
func TestStepByTurns(t *testing.T) {
	be := ready(t)
	data := episodesOf(t, 12)
	tr := opened(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
		acting(data, "well", "trainer.total_steps=2", "trainer.warmup_objective=policy",
			"algorithm.env_weight=0.25", "critic.level=turn", "algorithm.adv_estimator=gigpo",
			"algorithm.gamma=0.95")...), config.Warmup)
	m := Metrics{}
	r := scored(t, tr, m)
	v := listsOf(r)
	acted := tr.form.(*episodes).envRewards(r)
	steps := turnsOf(tr, r)
	scores := float64s(v.scoreA)
	for a := range v.episodes {
		if n := len(v.episodes[a].Turns); len(v.turnA[a]) != n || len(steps[a]) != n ||
			v.turnA[a][n-1] != v.scoreA[a] {
			t.Fatalf("episode %d: scores %v of %d turns, last %g", a, v.turnA[a], n, v.scoreA[a])
		}
		_, sigmaD := report.Moments(of(r, scores, a))
		_, sigmaE := report.Moments(of(r, acted, a))
		sum := 0.0
		for _, s := range steps[a] {
			sum += s.Reward
		}
		want := 0.75*scores[a]/(sigmaD+1e-6) + 0.25*acted[a]/(sigmaE+1e-6)
		if math.Abs(sum-want) > 1e-9 {
			t.Errorf("episode %d: turns' rewards add up to %g, want %g", a, sum, want)
		}
	}
	adv := advantagesOf(t, tr, m, r)
	several := 0
	for s, seq := range v.seqs {
		at := 0
		for _, span := range seq.Spans {
			for i := range span.To - span.From {
				if adv[s][at+i] != adv[s][at] {
					t.Errorf("sequence %d: a turn's advantages %v", s, adv[s])
				}
			}
			at += span.To - span.From
		}
		if adv[s][0] != adv[s][at-1] {
			several++
		}
	}
	if several < 8 {
		t.Errorf("%d of 16 episodes have turns of different advantages", several)
	}
}

// turnsOf returns the turns of a round's episodes, as an estimator reads them.
func turnsOf(tr *Trainer, r *round) [][]algos.TurnStep {
	in := algos.AdvantageInput{Group: r.group()}
	tr.form.credit(r, gameOf(tr).terms, &in)
	return in.Steps
}

// of are the values of an episode's group.
func of(r *round, x []float64, a int) (out []float64) {
	v := listsOf(r)
	for i, g := range v.group {
		if g == v.group[a] {
			out = append(out, x[i])
		}
	}
	return out
}

// A run on episodes that was stopped, or killed, and gone on with has the bits of one that was not;
// so has one on several ranks, and one with other workers and slots.
func TestEpisodesKeepTheirBits(t *testing.T) {
	t.Parallel()
	slow(t)
	t.Run("grpo", func(t *testing.T) { episodesKeepTheirBits(t, 0) })
	t.Run("prompt", func(t *testing.T) {
		episodesKeepTheirBits(t, 1, "env.command="+talkAs("prompt"), "critic.level=turn")
	})
	t.Run("gigpo", func(t *testing.T) {
		episodesKeepTheirBits(t, 2, "critic.level=turn", "algorithm.adv_estimator=gigpo",
			"algorithm.gamma=0.9", "algorithm.group_stats=turns", "actor.lora.rank=4",
			"critic.lora.rank=4")
	})
}

func episodesKeepTheirBits(t *testing.T, arm int, settled ...string) {
	be := ready(t)
	data := episodesOf(t, 12)
	run := func(name string, more ...string) config.Config {
		return settings(config.Warmup, filepath.Join(t.TempDir(), name), append(acting(data, "well",
			half("trainer.total_steps=4", "trainer.critic_warmup=1", "trainer.save_freq=2",
				"trainer.warmup_objective=policy", "algorithm.env_weight=0.5", "trainer.shards=2",
				"algorithm.filter_groups.enable=true", "critic.replay.size=24",
				"critic.replay.share=0.5", "critic.group_ot=0.01", "critic.truncated=include",
				"algorithm.use_kl_in_reward=true", "actor.ppo_epochs=2", "data.val_files="+data,
				"trainer.test_freq=2", "trainer.keep_best=val/env_reward")...),
			slices.Concat(settled, more)...)...)
	}
	c := run("whole")
	rows := finished(t, be, c, config.Warmup)
	want := record(t, c.Trainer.Output, 4)
	for name, step := range map[string]int{"start/env_reward": 0, "start/teacher_nll": 0,
		"val/env_reward": 1, "val/teacher_nll": 3} {
		if x, ok := rows[step].Values[name]; !ok || name != "val/env_reward" && !(x > 0) {
			t.Errorf("%s in step %d: %g, %v", name, step+1, x, ok)
		}
	}
	if samples, _, err := report.ReadSamples(vfs.OS, c.Trainer.Output, report.InValidation,
		4); err != nil || len(samples) != 2 || len(samples[0].Turns) < 3 {
		t.Errorf("samples of a validation: %v, %v", samples, err)
	}

	c = run("pieces")
	inPieces(t, c, config.Warmup, 2, 2, "env.workers=3", "rollout.max_num_seqs=3")
	same(t, record(t, c.Trainer.Output, 4), want)
	if !hostile.Long() {
		return
	}
	for n := 1; n <= 3; n++ {
		for _, kill := range []bool{false, true} {
			c := run(fmt.Sprint("part", n, kill))
			if err := part(t, c, config.Warmup, n, kill); !kill && !errors.Is(err, ErrInterrupted) {
				t.Fatal(err)
			}
			finished(t, be, c, config.Warmup)
			same(t, record(t, c.Trainer.Output, 4), want)
		}
	}
	c = run("ranks")
	onRanks(t, 2, c, config.Warmup)
	same(t, record(t, c.Trainer.Output, 4), want)
	c = run("slots", "env.workers=3", "rollout.max_num_seqs=3")
	finished(t, be, c, config.Warmup)
	same(t, record(t, c.Trainer.Output, 4), want)
}

// What breaks an environment is said, and nothing that is broken is learned.
func TestBrokenEnvironments(t *testing.T) {
	be := ready(t)
	data := episodesOf(t, 12)
	for _, c := range []struct {
		how  string
		more []string
		want string
		kind error
	}{
		{"prompt", nil, "", nil},
		{"start", nil, "another beginning than the teacher's", episode.ErrStart},
		{"start", []string{"env.other_start=true"}, "", nil},
		{"breaks", nil, "episodes are broken, more than env.max_faults 0.2", fault.ErrRunning},
		{"breaks", []string{"env.max_faults=0.9"}, "", nil},
	} {
		t.Run(c.how+strings.Join(c.more, " "), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "run")
			err := play(be, settings(config.Warmup, out, append(acting(data, c.how,
				"trainer.total_steps=1"), c.more...)...), config.Warmup)
			if c.want == "" && err != nil || c.want != "" &&
				(err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.kind)) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			if c.how != "breaks" || c.want != "" {
				return
			}
			rows, err := report.ReadMetrics(vfs.OS, out)
			if err != nil {
				t.Fatal(err)
			}
			share := rows[0].Values["env/fault_frac"]
			if pairs := rows[0].Values["critic/pairs"]; !(share > 0) ||
				rows[0].Values["episode/turns_mean"] != 2 || pairs > 16*(1-share) {
				t.Errorf("%g of the episodes broken, %g turns, %g pairs", share,
					rows[0].Values["episode/turns_mean"], pairs)
			}
		})
	}
	for command, want := range map[string]string{"exit 3": "the program ended",
		`echo '{"name":"x","version":2,"episodes":1}'; sleep 9`: "version"} {
		out := filepath.Join(t.TempDir(), "run")
		_, err := Open(settings(config.Warmup, out,
			acting(data, "well", "env.command="+command)...),
			config.Warmup, Options{FS: vfs.OS, Backend: be})
		if !errors.Is(err, config.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", command, err, want)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: the run's folder was made", command)
		}
	}
}

// A step whose last prompt has no sound episode has mini-batches of fewer prompts, also for old
// log-probabilities that are computed again: they are the sampler's, to the bit.
func TestLastPromptBreaks(t *testing.T) {
	be := ready(t)
	data := episodesOf(t, 12)
	for _, level := range []string{"episode", "turn"} {
		var runs [2][]report.Row
		for i, from := range []string{"rollout", "recompute"} {
			out := filepath.Join(t.TempDir(), "run")
			err := play(be, settings(config.Warmup, out, acting(data, "breaks",
				"trainer.total_steps=6", "trainer.critic_warmup=0",
				"trainer.warmup_objective=policy", "env.max_faults=0.9",
				"data.train_batch_size=5", "actor.ratio_level="+level,
				"actor.old_log_prob="+from)...), config.Warmup)
			if err != nil {
				t.Fatalf("%s, %s: %v", level, from, err)
			}
			if runs[i], err = report.ReadMetrics(vfs.OS, out); err != nil {
				t.Fatal(err)
			}
		}
		for i, row := range runs[0] {
			for _, name := range []string{"actor/ratio_min", "actor/ppo_kl", "actor/pg_loss"} {
				if got := runs[1][i].Values[name]; got != row.Values[name] {
					t.Errorf("%s: step %d: %s %g computed again, %g of the sampler", level, i+1,
						name, got, row.Values[name])
				}
			}
		}
	}
}

// Broken episodes are counted over all draws of a step: a few prompts that replace others may all
// break, and the next step begins anew.
func TestFaultsOfAStep(t *testing.T) {
	be := ready(t)
	data := episodesOf(t, 12)
	for _, trees := range [][]string{{"rollout.n=2"}, branching(2, 0)} {
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			append(acting(data, "breaks", "env.max_faults=0.25"), trees...)...), config.Train)
		for _, draw := range []struct {
			step  int
			rows  []int // odd ones break
			share float64
		}{{0, []int{0, 2, 4}, 0}, {0, []int{1}, 0.25}, {0, []int{6}, 0.2}, {0, []int{3}, 1. / 3},
			{1, []int{8}, 0}, {1, []int{5}, 0.5}} {
			b, err := tr.enc.Batch(tr.train.set, draw.rows)
			if err != nil {
				t.Fatal(err)
			}
			tr.step = draw.step
			m := Metrics{}
			err = tr.form.sample(m, newRound(b, draw.rows))
			if draw.share > 0.25 {
				if err == nil || !errors.Is(err, fault.ErrRunning) {
					t.Errorf("%v, %+v: %v", trees, draw, err)
				}
			} else if err != nil || m["env/fault_frac"] != draw.share {
				t.Errorf("%v, %+v: a share of %g, %v", trees, draw, m["env/fault_frac"], err)
			}
		}
	}
}

// Where the environment breaks all episodes of the prompts that replace others, the step has these
// others.
func TestReplacementsThatBreak(t *testing.T) {
	be := ready(t)
	data := episodesOf(t, 2) // the second breaks
	v := finished(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
		acting(data, "breaks", "env.max_faults=0.5", "data.train_batch_size=1", "rollout.n=2",
			"trainer.total_steps=1", "algorithm.filter_groups.enable=true",
			"algorithm.filter_groups.min_spread=100",
			"algorithm.filter_groups.max_num_gen_batches=2", "critic.truncated=include")...),
		config.Train)[0].Values
	if v["env/fault_frac"] != 0.5 || v["episode/turns_mean"] != 2 || v["critic/pairs"] != 2 {
		t.Errorf("%g of the episodes broken, %g turns, %g pairs", v["env/fault_frac"],
			v["episode/turns_mean"], v["critic/pairs"])
	}
}

// A validation's figures are of the sound episodes alone: rows whose episodes break change nothing
// but their count.
func TestValidationWithBrokenEpisodes(t *testing.T) {
	be := ready(t)
	data := episodesOf(t, 8)
	raw, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	var sound []byte
	for i, line := range bytes.SplitAfter(raw, []byte("\n")) {
		if i%2 == 0 { // of two turns: those of three break
			sound = append(sound, line...)
		}
	}
	alone := filepath.Join(t.TempDir(), "sound.jsonl")
	if err := os.WriteFile(alone, sound, 0o644); err != nil {
		t.Fatal(err)
	}
	var rewards []float64
	for _, c := range []struct{ val, rows string }{{data, "8"}, {alone, "4"}} {
		tr := opened(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
			acting(data, "breaks", "trainer.total_steps=1", "env.max_faults=0.9",
				"env.invalid_penalty=0.25", "data.val_files="+c.val,
				"trainer.val_rows="+c.rows)...), config.Warmup)
		m := Metrics{}
		if err := tr.validate(m); err != nil {
			t.Fatal(err)
		}
		rewards = append(rewards, m["val/env_reward"])
	}
	if rewards[0] != rewards[1] || rewards[0] == 0 {
		t.Errorf("val/env_reward %g with four broken episodes beside four sound ones, %g of these alone: want equal ones, and not 0",
			rewards[0], rewards[1])
	}
}

// An environment whose replies depend on its process or on a clock is said in the step in which its
// program is started again, since what is played again then comes out otherwise. One that is never
// started again is not noticed by training: two such runs have other figures. gad env check, which
// plays twice, notices it.
func TestNotDeterministicIsSaid(t *testing.T) {
	t.Parallel()
	be := ready(t)
	data := episodesOf(t, 12)
	for _, how := range []string{"pid", "clock"} {
		if testing.Short() && how == "clock" {
			continue
		}
		run := func(command string, more ...string) (out string, err error) {
			out = filepath.Join(t.TempDir(), "run")
			return out, play(be, settings(config.Warmup, out, append(acting(data, how,
				"trainer.total_steps=2", "env.workers=1", "env.command="+command), more...)...),
				config.Warmup)
		}
		once := func() string {
			return "ONCE=" + filepath.Join(t.TempDir(), "once") + " " + talkAs(how)
		}
		const said = "not deterministic: played again from its seed and turns, reply 1 is another"
		out, err := run(once(), "env.max_faults=0")
		if !errors.Is(err, fault.ErrRunning) || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v", how, err)
		}
		if rows, _ := report.ReadMetrics(vfs.OS, out); len(rows) > 0 {
			t.Errorf("%s: %d steps before it was said", how, len(rows))
		}
		out, err = run(once(), "env.max_faults=0.9")
		if err != nil {
			t.Fatal(err)
		}
		rows, err := report.ReadMetrics(vfs.OS, out)
		if err != nil {
			t.Fatal(err)
		}
		if share := rows[0].Values["env/fault_frac"]; !(share > 0) ||
			rows[1].Values["env/fault_frac"] != 0 {
			t.Errorf("%s: %g of the first step's episodes are broken, %g of the second's", how,
				share,
				rows[1].Values["env/fault_frac"])
		}
		if log, err := os.ReadFile(filepath.Join(out, "log.jsonl")); err != nil ||
			!strings.Contains(string(log), said) {
			t.Errorf("%s: the log does not say it (%v)", how, err)
		}

		var figures [2]string
		for i := range figures {
			out, err := run(talkAs(how))
			if err != nil {
				t.Fatalf("%s, not started again: %v", how, err)
			}
			raw, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			lines, err := report.StripTimings(raw)
			if err != nil {
				t.Fatal(err)
			}
			figures[i] = string(lines)
		}
		if figures[0] == figures[1] {
			t.Errorf("%s: two runs in an environment that is not deterministic are equal", how)
		}
	}
}
