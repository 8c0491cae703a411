package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"gad/actor"
	"gad/internal/hostile"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
)

// thinking are a small run's settings with thoughts in chunks, most of them several.
func thinking(more ...string) []string {
	return append([]string{"rollout.chunk=6", "rollout.carry=3", "rollout.carry_head=1",
		"rollout.chunks=4", "critic.truncated=include"}, more...)
}

var inChunks = model.Chunks{Size: 6, Carry: 3, Head: 1, Most: 4}

// The overlong penalty begins at the limit of the whole answer: of a thought that of all its
// chunks, of an episode env.max_tokens.
func TestOverlongPenaltyOfTheWholeAnswer(t *testing.T) {
	ready(t)
	overlong := []string{"algorithm.overlong_buffer.len=4",
		"algorithm.overlong_buffer.penalty_factor=1", "data.max_response_length=8"}
	for _, c := range []struct {
		name  string
		more  []string
		limit int
	}{
		{"answer", nil, 8},
		{"chunks", thinking(), 15},
		{"episode", []string{"env.command=true", "env.max_tokens=20"}, 20},
	} {
		tr := &Trainer{Stage: config.Train, cfg: settings(config.Train, t.TempDir(),
			append(overlong, c.more...)...)}
		tr.enc.MaxResponse = newForm(tr).longest()
		g := &group{}
		var want []float64
		for n := 1; n <= c.limit; n++ {
			one := newAnswer(false, &actor.Sequence{Seq: model.Answer(make([]int32, 2+n), 2)})
			one.score, g.answers = 2, append(g.answers, one)
			want = append(want, 2-max(0, float64(n-(c.limit-4))/4))
		}
		stage := newGame(basic{tr, config.Train}, &start{}).(*game)
		if got := stage.rewards(Metrics{}, &round{groups: []*group{g}}); !slices.Equal(got, want) {
			t.Errorf("%s: rewards of 1 to %d tokens %v, want %v", c.name, c.limit, got, want)
		}
	}
}

// A step on thoughts: a chunk is a sequence, whose sampled log-probabilities are those of a pass
// over its own context, to the bit; a thought has one advantage, on the tokens of all its chunks;
// the discriminator reads the whole thought, or of both sides the last chunk.
func TestStepInChunks(t *testing.T) {
	be := ready(t)
	for _, reads := range []string{"answer", "last"} {
		tr := opened(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
			thinking("trainer.total_steps=2", "trainer.warmup_objective=policy",
				"critic.reads="+reads, "algorithm.use_kl_in_reward=true", "actor.use_kl_loss=false",
				"actor.ppo_mini_batch_size=4", "actor.loss_agg_mode=seq-mean-token-mean",
				map[string]string{"answer": "actor.policy_loss.loss_mode=vanilla",
					"last": "actor.policy_loss.loss_mode=gspo"}[reads])...), config.Warmup)
		m := Metrics{}
		r := scored(t, tr, m)
		v := listsOf(r)
		if len(v.group) != 16 || len(v.cut) != 16 || len(v.judged) != 16 ||
			len(v.scoreA) != 16 || len(v.seqs) < 20 {
			t.Fatalf("%d answers in %d sequences", len(v.group), len(v.seqs))
		}
		logp, _, err := tr.actor.Model().AllLogProbs(v.seqs, 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		var seqs []model.Seq
		written := v.written
		for a, s := range v.firsts {
			p := v.group[a]
			if p != a/4 {
				t.Fatalf("answer %d is of prompt %d", a, p)
			}
			q := v.batch[p].Prompt
			if !slices.Equal(v.seqs[s].IDs[:v.seqs[s].Prompt()], q) {
				t.Errorf("answer %d begins behind %v, want %v", a, v.seqs[s].IDs, q)
			}
			seqs = append(seqs, inChunks.Seqs(q, written[a])...)
			if n := len(written[a]); v.cut[a] != (n == 15 &&
				!slices.Contains(tr.tok.EOS(), written[a][n-1])) || n > 15 {
				t.Errorf("answer %d: %d tokens, cut %t", a, n, v.cut[a])
			}
			whole := tr.enc.Ending().Seq(q, written[a], v.cut[a])
			if reads == "last" {
				whole = inChunks.Last([]model.Seq{whole})[0]
			}
			if !slices.Equal(v.judged[a].IDs, whole.IDs) {
				t.Errorf("the discriminator reads %v, want %v", v.judged[a].IDs, whole.IDs)
			}
		}
		for s, seq := range seqs {
			if !slices.Equal(seq.IDs, v.seqs[s].IDs) ||
				!slices.Equal(logp[s], v.sampled[s]) {
				t.Errorf("sequence %d: %v with %v, in one pass %v", s, v.seqs[s],
					v.sampled[s], logp[s])
			}
		}
		for p, seq := range tr.form.criticSeqs(v.batch.Teachers()) {
			want := v.batch[p].Teacher
			if reads == "last" {
				all := inChunks.Seqs(want.IDs[:want.Prompt()], want.Response())
				want = all[len(all)-1]
			}
			if !slices.Equal(seq.IDs, want.IDs) {
				t.Errorf("of the teacher it reads %v, want %v", seq.IDs, want.IDs)
			}
		}
		if err := gameOf(tr).refLogProbs(m, r); err != nil {
			t.Fatal(err)
		}
		adv := advantagesOf(t, tr, m, r)
		for s, row := range adv {
			first := adv[v.firsts[v.answerS[s]]][0]
			if len(row) != v.seqs[s].Trained() ||
				slices.ContainsFunc(row, func(x float64) bool { return x != first }) {
				t.Errorf("sequence %d of answer %d has advantages %v, want %g", s,
					v.answerS[s], row, first)
			}
		}
		scoreP, err := gameOf(tr).critic.Score(tr.form.criticSeqs(v.batch.Teachers()))
		if err != nil {
			t.Fatal(err)
		}
		r.scored = false // as a step has it, which learns from the same sequences
		err = gameOf(tr).updateCritic(m, r)
		if got := listsOf(r).scoreP; err != nil || !slices.Equal(got, scoreP) {
			t.Errorf("the teacher's scores are %v, want %v (%v)", got, scoreP, err)
		}
		// Where all ratios are 1 the loss is the mean of -A over thoughts, however many chunks and
		// tokens each has.
		want := 0.0
		for s, a := range v.answerS {
			for t := range adv[s] {
				adv[s][t] = float64(len(v.seqs)*a%7) + 0.5
			}
		}
		for _, s := range v.firsts {
			want -= adv[s][0] / float64(len(v.group))
		}
		st, err := tr.actor.Update(r.rollout())
		if err != nil || !near(st.PGLoss, want, 1e-5) || st.Updates != 1 {
			t.Errorf("%s: loss %g, want %g (%v)", reads, st.PGLoss, want, err)
		}
	}
}

// Rounds that are put together of parts, as dynamic sampling does, keep each thought whole.
func TestTakeKeepsThoughts(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
		thinking("trainer.total_steps=2")...), config.Warmup)
	r, other := scored(t, tr, Metrics{}), scored(t, tr, Metrics{})
	whole := &round{}
	whole.take(other, []int{0, 1, 2, 3})
	a, b := listsOf(other), listsOf(r)
	want := slices.Concat(a.written, b.written[4:8], b.written[12:])
	whole.take(r, []int{1, 3})
	v := listsOf(whole)
	for a, ids := range v.written {
		if !slices.Equal(ids, want[a]) {
			t.Errorf("answer %d has %v, want %v", a, ids, want[a])
		}
	}
	n := len(a.group)
	if len(v.group) != n+8 || v.group[n] != 4 || v.group[n+4] != 5 ||
		v.groupS[len(v.groupS)-1] != 5 {
		t.Errorf("groups %v", v.group)
	}
}

// SFT learns each chunk of the teacher's answer behind its own context, every token once.
func TestSFTInChunks(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.SFT, filepath.Join(t.TempDir(), "run"),
		thinking("trainer.total_steps=1", "data.val_files="+fixed.val)...), config.SFT)
	b, err := tr.draw(8)
	if err != nil {
		t.Fatal(err)
	}
	var ids, want []int32
	list := tr.form.trainSeqs(b.Teachers())
	for _, seq := range list {
		ids = append(ids, seq.TrainedIDs()...)
		if n := len(seq.IDs); n > 64+6 {
			t.Errorf("a sequence of %d tokens", n)
		}
	}
	for _, seq := range b.Teachers() {
		want = append(want, seq.TrainedIDs()...)
	}
	if !slices.Equal(ids, want) || len(list) <= len(b) {
		t.Errorf("%d sequences of %d answers have %v, want %v", len(list), len(b), ids,
			want)
	}
	logp, _, err := tr.actor.Model().AllLogProbs(list, 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	loss, n := 0.0, 0.0
	for _, row := range logp {
		for _, x := range row {
			loss, n = loss-float64(x), n+1
		}
	}
	m := Metrics{}
	if err := tr.stage.(*sft).learnTeachers(m, b); err != nil ||
		!near(m["actor/sft_loss"], loss/n, 1e-5) {
		t.Errorf("loss %g, want %g (%v)", m["actor/sft_loss"], loss/n, err)
	}
}

func near(a, b, tolerance float64) bool { return a-b < tolerance && b-a < tolerance }

// A run in chunks that was stopped, or killed, and gone on with has the bits of one that was not;
// so has one on several ranks, and one with other slots.
func TestChunksKeepTheirBits(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	for arm, reads := range []string{"answer", "last"} {
		run := func(name string, more ...string) config.Config {
			return settings(config.Warmup, filepath.Join(t.TempDir(), name),
				thinking(append(half("trainer.total_steps=4", "trainer.critic_warmup=1",
					"trainer.save_freq=2", "trainer.warmup_objective=policy", "trainer.shards=4",
					"algorithm.filter_groups.enable=true", "critic.replay.size=24",
					"critic.replay.share=0.5", "critic.group_ot=0.01", "critic.reads="+reads,
					"algorithm.use_kl_in_reward=true", "actor.ppo_epochs=2",
					"actor.loss_agg_mode=seq-mean-token-mean",
					"actor.policy_loss.loss_mode=vanilla",
					"data.val_files="+fixed.val, "trainer.test_freq=2"), more...)...)...)
		}
		c := run("whole")
		rows := finished(t, be, c, config.Warmup)
		want := record(t, c.Trainer.Output, 4)
		for name, step := range map[string]int{"start/rouge_l": 0, "start/teacher_nll": 0,
			"val/teacher_nll": 3, "rollout/chunks_mean": 2} {
			if x, ok := rows[step].Values[name]; !ok || !(x > 0) {
				t.Errorf("%s in step %d: %g, %v", name, step+1, x, ok)
			}
		}
		if x := rows[2].Values["rollout/logp_diff_max"]; x != 0 {
			t.Errorf("sampler and trainer differ by %g", x)
		}
		samples, _, err := report.ReadSamples(vfs.OS, c.Trainer.Output, report.InTraining, 4)
		if err != nil || len(samples) != 8 || samples[0].Student == "" {
			t.Errorf("samples: %v, %v", samples, err)
		}
		if !slices.ContainsFunc(samples, func(s report.Sample) bool {
			return len(s.Seams) > 0 && s.Seams[0] > 0 && slices.IsSorted(s.Seams) &&
				s.Seams[len(s.Seams)-1] <= utf8.RuneCountInString(s.Student)
		}) {
			t.Errorf("no sample has the seams of its chunks: %v", samples)
		}
		c = run("pieces")
		inPieces(t, c, config.Warmup, []int{3, 7}[arm], 4-2*arm, "rollout.max_num_seqs=3")
		same(t, record(t, c.Trainer.Output, 4), want)
		if !hostile.Long() {
			continue
		}
		for n := 1; n <= 3; n++ {
			for _, kill := range []bool{false, true} {
				c := run(fmt.Sprint("part", n, kill))
				if err := part(t, c, config.Warmup, n, kill); !kill &&
					!errors.Is(err, ErrInterrupted) {
					t.Fatal(err)
				}
				finished(t, be, c, config.Warmup)
				same(t, record(t, c.Trainer.Output, 4), want)
			}
		}
		for _, n := range []int{9, 25} { // within a thought, whose first chunk has 6 tokens
			c := run(fmt.Sprint("killed", n))
			inTokens(t, c, config.Warmup, n)
			finished(t, be, c, config.Warmup)
			same(t, record(t, c.Trainer.Output, 4), want)
		}
		for _, n := range []int{2, 4} {
			c = run(fmt.Sprint("ranks", n))
			onRanks(t, n, c, config.Warmup)
			same(t, record(t, c.Trainer.Output, 4), want)
		}
		c = run("slots", "rollout.max_num_seqs=3")
		finished(t, be, c, config.Warmup)
		same(t, record(t, c.Trainer.Output, 4), want)
	}
}

// killAt kills the run before the n-th token that is sampled in a step.
type killAt struct {
	context.Context
	n int
}

func (k *killAt) Done() <-chan struct{} {
	if k.n--; k.n == 0 {
		panic(killed{})
	}
	return nil
}

// What does not go with chunks is refused before anything is written.
func TestChunksAreRefused(t *testing.T) {
	be := ready(t)
	for set, want := range map[string]string{
		"rollout.carry=6":      "rollout.carry 6 must be below rollout.chunk 6",
		"rollout.carry_head=3": "rollout.carry_head 3 must be below rollout.carry 3",
		"rollout.chunk=600":    "data.max_prompt_length + rollout.chunk = 664, but max_position_embeddings is",
		"rollout.chunks=400":   "critic.reads=answer reads a prompt and a whole thought",
		"env.command=cat":      "env.command makes episodes",
		"rollout.chunk=0":      "critic.reads last is the last chunk of a thought",
	} {
		out := filepath.Join(t.TempDir(), "run")
		extra := []string{set}
		if set == "rollout.chunk=0" {
			extra = append(extra, "critic.reads=last")
		}
		err := play(be, settings(config.Warmup, out, thinking(extra...)...), config.Warmup)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: the run's folder was made", set)
		}
	}
}
