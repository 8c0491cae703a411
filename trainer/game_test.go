package trainer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/algos"
	"gad/internal/compute"
	"gad/internal/hostile"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// spy counts the tokens that pass the backbone and the sequences that are scored.
type spy struct {
	compute.Backend
	scored int
	plant  float32 // planted into a gradient before the optimizer looks at it
}

func (s *spy) Score(sR, hND compute.Tensor, w *compute.Param, rows []int32) {
	s.scored += len(rows)
	s.Backend.Score(sR, hND, w, rows)
}

func (s *spy) SumSquares(ts []compute.Tensor) float64 {
	if s.plant != 0 {
		s.Upload(ts[1].Slice(0, 1), []float32{s.plant})
	}
	return s.Backend.SumSquares(ts)
}

// One step scores each answer once and each teacher once, and the forward pass of the
// discriminator's update does it: d_acc_fresh and the samples' scores are those of the
// old weights (doc/algorithms.md, "The game").
func TestStepScoresBeforeItsUpdate(t *testing.T) {
	be := &spy{Backend: ready(t)}
	run := filepath.Join(t.TempDir(), "run")
	tr := opened(t, be, settings(config.Warmup, run, "trainer.total_steps=4",
		"trainer.critic_warmup=9", "trainer.save_samples=4", "critic.optim.lr=2e-2",
		"critic.max_token_len=4096"), config.Warmup)
	for step := range 2 {
		be.scored = 0
		m, err := nextOf(tr)
		if err != nil {
			t.Fatal(err)
		}
		tr.step++
		cut := m["rollout/truncated_frac"] * 16
		if be.scored != 20 || m["critic/pairs"] != 16-cut {
			t.Errorf("step %d: %d sequences scored for 16 answers, 4 teachers and %g pairs (%g answers cut)", step, be.scored, m["critic/pairs"], cut)
		}
	}
	// The same step under weights that were never updated gives the first step's scores again.
	again := opened(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "again"),
		"trainer.total_steps=4", "trainer.critic_warmup=9"), config.Warmup)
	m := Metrics{}
	played := scored(t, again, m)
	v := listsOf(played)
	scoreS, scoreP := v.scoreA, v.scoreP
	raw, err := os.ReadFile(filepath.Join(run, "samples", "step_1.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	written := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(written) != len(scoreS) {
		t.Fatalf("%d samples of %d answers", len(written), len(scoreS))
	}
	for s, line := range written {
		for key, want := range map[string]float32{"student_score": scoreS[s],
			"teacher_score": scoreP[v.groupS[s]]} {
			text, _ := report.Sample{StudentScore: float64(want)}.MarshalJSON()
			number, _, _ := strings.Cut(strings.SplitAfter(string(text), `"student_score":`)[1], ",")
			if !strings.Contains(line, fmt.Sprintf("%q:%s,", key, number)) {
				t.Errorf(
					"answer %d: the sample %s does not have %s %s of the weights before the update",
					s, line, key, number)
			}
		}
	}
	if slices.Equal(scoresOf(t, tr, v.seqs), scoresOf(t, again, v.seqs)) {
		t.Error("the discriminator has learned nothing: the test shows nothing")
	}
}

func scoresOf(t *testing.T, tr *Trainer, seqs []model.Seq) []float32 {
	t.Helper()
	scores, err := gameOf(tr).critic.Score(seqs)
	if err != nil {
		t.Fatal(err)
	}
	return scores
}

// The teacher's answers and the student's end alike on the discriminator's
// path; what was cut ends without, is left out of the pairs and gets its group's
// smallest reward.
func TestTruncatedAnswers(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
		"data.max_response_length=7", "data.train_batch_size=8", "trainer.total_steps=1"),
		config.Warmup)
	m := Metrics{}
	played := scored(t, tr, m)
	v := listsOf(played)
	b := v.batch
	turn := fixed.tok.EndOfTurn()
	cut := 0
	for s, seq := range v.judged {
		if ends := seq.IDs[len(seq.IDs)-1] == turn; ends == v.cutS[s] {
			t.Errorf("answer %d: cut %v, ends with the end of turn %v", s, v.cutS[s], ends)
		}
		if v.cutS[s] {
			cut++
		}
	}
	teachersCut := 0
	for p, seq := range b.Teachers() {
		if ends := seq.IDs[len(seq.IDs)-1] == turn; ends == b[p].TeacherCut {
			t.Errorf("teacher %d: cut %v, ends with the end of turn %v", p, b[p].TeacherCut, ends)
		}
		if b[p].TeacherCut {
			teachersCut++
		}
	}
	if cut == 0 || cut == len(v.seqs) || teachersCut == 0 || teachersCut == len(b) {
		t.Fatalf("%d of %d answers and %d of %d teachers are cut: the test shows nothing", cut,
			len(v.seqs), teachersCut, len(b))
	}
	if err := gameOf(tr).updateCritic(m, played); err != nil {
		t.Fatal(err)
	}
	pairs := 0
	for s, p := range v.groupS {
		if !v.cutS[s] && !b[p].TeacherCut {
			pairs++
		}
	}
	if m["critic/pairs"] != float64(pairs) {
		t.Errorf("%g pairs, want %d", m["critic/pairs"], pairs)
	}
	if err := gameOf(tr).describe(m, played, gameScores); err != nil {
		t.Fatal(err)
	}
	if got, want := m["rollout/truncated_frac"], float64(cut)/float64(len(v.seqs)); got != want {
		t.Errorf("rollout/truncated_frac %g, want %g", got, want)
	}
	if got, want := m["teacher/truncated_frac"], float64(teachersCut)/8; got != want {
		t.Errorf("teacher/truncated_frac %g, want %g", got, want)
	}

	score := []float32{3, 1, 2, 5, 9, 7}
	group, truncated := []int{0, 0, 0, 1, 1, 1}, []bool{true, false, false, false, true, false}
	lens := []int{4, 4, 4, 4, 4, 4}
	for setting, want := range map[string][]float64{"group_min": {1, 1, 2, 5, 5, 7},
		"score": {3, 1, 2, 5, 9, 7}} {
		got := shape(config.AlgorithmConfig{TruncReward: setting}, score, nil, lens, truncated,
			group, 8)
		if !slices.Equal(got, want) {
			t.Errorf("truncated_reward %s: %v, want %v", setting, got, want)
		}
	}
	// Clip to 2, a length term outside of it, overlong penalty of at most 1 over the last 4 of 8.
	got := shape(config.AlgorithmConfig{ScoreClip: 2,
		Overlong: config.OverlongBuffer{Len: 4, Factor: 1}, TruncReward: "score"}, score,
		[]float64{0, 0, 0, 0.25, 0, -1}, []int{4, 6, 8, 1, 1, 1}, truncated, group, 8)
	if want := []float64{2, 0.5, 1, 2.25, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("shaped: %v, want %v", got, want)
	}
}

// Two answers to one prompt with different scores are learned in opposite
// directions: the better one becomes more probable, the worse one less.
func TestBetterAnswersBecomeMoreProbable(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
		"data.train_batch_size=1", "rollout.n=2", "actor.use_kl_loss=false",
		"trainer.total_steps=9", "actor.optim.lr=1e-4"), config.Train)
	m := Metrics{}
	played := scored(t, tr, m)
	for range 8 { // a prompt whose two answers differ and have both ended
		if two := played.answers(); !slices.Equal(two[0].ids, two[1].ids) {
			break
		}
		tr.step++
		played = scored(t, tr, m)
	}
	for i, a := range played.answers() {
		a.cut, a.score = false, []float32{0.25, -1.5}[i]
	}
	adv, r := advantagesOf(t, tr, m, played), played.rollout()
	if !(adv[0][0] > 0.7 && adv[1][0] < -0.7) {
		t.Fatalf("advantages %v, %v: want opposite signs", adv[0], adv[1])
	}
	sum := func() (s [2]float64) {
		rows, _, err := tr.actor.Model().AllLogProbs(r.Seqs(), 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		for k := range s {
			for _, x := range rows[k] {
				s[k] += float64(x)
			}
		}
		return s
	}
	before := sum()
	if _, err := tr.actor.Update(r); err != nil {
		t.Fatal(err)
	}
	after := sum()
	if (after[0]-after[1])-(before[0]-before[1]) <= 0 {
		t.Errorf(
			"log-probabilities from %v to %v: the better answer has not gained on the worse one",
			before, after)
	}
}

// Every estimator with every policy loss takes a step, with the KL in reward and
// loss, and the figures of the step are finite.
func TestEveryObjectiveTakesAStep(t *testing.T) {
	be := ready(t)
	estimators, losses := algos.AdvantageNames(), algos.PolicyLossNames()
	if len(estimators) < 11 || len(losses) < 9 {
		t.Fatalf("estimators %v, losses %v", estimators, losses)
	}
	// its steps are turns: a response here is one
	estimators = slices.DeleteFunc(estimators, func(s string) bool { return s == "gigpo" })
	losses = slices.DeleteFunc(losses, func(s string) bool { return s == "sft" })
	for i, estimator := range estimators {
		for j, loss := range losses {
			if !hostile.Long() && i%len(losses) != j {
				continue
			}
			more := []string{"algorithm.use_kl_in_reward=true"}
			if strings.HasPrefix(estimator, "tree_") {
				more = branching(2, 1)
			}
			t.Run(estimator+" "+loss, func(t *testing.T) {
				tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
					append(more, "trainer.total_steps=1", "data.train_batch_size=2",
						"algorithm.adv_estimator="+estimator,
						"actor.policy_loss.loss_mode="+loss, "actor.entropy_coeff=0.001")...),
					config.Train)
				m, err := nextOf(tr)
				if err != nil {
					t.Fatal(err)
				}
				for name, x := range m {
					if x-x != 0 {
						t.Errorf("%s is %g", name, x)
					}
				}
				if m["actor/grad_norm"] == 0 || tr.actor.Optimizer().Steps() == 0 {
					t.Error("nothing was learned")
				}
			})
		}
	}
}

// The KL in the reward: off, on, adaptive.
func TestKLInReward(t *testing.T) {
	be := ready(t)
	step := func(overrides ...string) (Metrics, *Trainer) {
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			append(overrides, "trainer.total_steps=3", "actor.use_kl_loss=false")...), config.Train)
		var m Metrics
		for range 2 { // in the first step the student is its reference
			var err error
			if m, err = nextOf(tr); err != nil {
				t.Fatal(err)
			}
			tr.step++
		}
		return m, tr
	}
	m, tr := step()
	if _, ok := m["reward/kl_mean"]; ok || tr.reference != nil {
		t.Error("without a KL term there is a reference")
	}
	m, _ = step("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.5")
	if !(m["reward/kl_mean"] > 0) || m["reward/kl_coef"] != 0.5 {
		t.Errorf("KL %g, coefficient %g, want above 0 and 0.5", m["reward/kl_mean"],
			m["reward/kl_coef"])
	}
	_, tr = step("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive",
		"algorithm.kl_ctrl.horizon=100", "algorithm.kl_ctrl.target_kl=10")
	if c := gameOf(tr).kl.Coef; math.Abs(c-1e-3*math.Pow(1-0.2*16/100, 2)) > 1e-12 {
		t.Errorf("after two steps far below the target the coefficient is %g", c)
	}
}

// Dynamic sampling replaces prompts whose answers all score the same.
func TestFlatGroupsAreReplaced(t *testing.T) {
	be := ready(t)
	for _, enable := range []bool{false, true} {
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			fmt.Sprintf("algorithm.filter_groups.enable=%v", enable),
			"algorithm.filter_groups.max_num_gen_batches=200", "rollout.n=2",
			"rollout.temperature=0.02", "data.train_batch_size=8", "trainer.total_steps=2"),
			config.Train)
		played := scored(t, tr, Metrics{})
		v := listsOf(played)
		b, scoreS, scoreP := v.batch, v.scoreA, v.scoreP
		if len(b) != 8 || len(v.seqs) != 16 || len(scoreS) != 16 || len(scoreP) != 8 ||
			v.groupS[15] != 7 {
			t.Errorf("%d rows, %d sequences, %d and %d scores, last group %d", len(b),
				len(v.seqs), len(scoreS), len(scoreP), v.groupS[15])
		}
		if got := scoresOf(t, tr, v.judged); !slices.Equal(got, scoreS) {
			t.Errorf("scores %v are not those of the sequences, %v", scoreS, got)
		}
		if got := scoresOf(t, tr, b.Teachers()); !slices.Equal(got, scoreP) {
			t.Errorf("scores %v are not those of the teachers, %v", scoreP, got)
		}
		for s, p := range v.groupS {
			if !slices.Equal(v.seqs[s].IDs[:v.seqs[s].Prompt()], b[p].Prompt) {
				t.Errorf("sequence %d does not answer prompt %d", s, p)
			}
		}
		keep, err := spreadGroups(float64s(scoreS), v.groupS, 8, 0)
		if err != nil {
			t.Fatal(err)
		}
		drawn := tr.train.order.State().Epoch*40 + tr.train.order.State().Offset
		if flat := 8 - len(keep); !enable && (flat == 0 || drawn != 8) || enable &&
			(drawn <= 8 || flat > 0) {
			t.Errorf("filter %v: %d flat groups among 8, %d prompts drawn", enable, flat, drawn)
		}
	}
}

// A row that a step draws again has other answers: a data set of one row is replaced, too.
func TestRowDrawnAgain(t *testing.T) {
	be := ready(t)
	raw, err := os.ReadFile(fixed.data)
	if err != nil {
		t.Fatal(err)
	}
	one, _, _ := strings.Cut(string(raw), "\n")
	path := filepath.Join(t.TempDir(), "one.jsonl")
	if err := os.WriteFile(path, []byte(one+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	answers := func(replaced bool) (seqs []model.Seq, drawn int) {
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			"data.train_files="+path, fmt.Sprintf("algorithm.filter_groups.enable=%v", replaced),
			"algorithm.filter_groups.max_num_gen_batches=300", "rollout.n=2",
			"rollout.temperature=0.2", "data.train_batch_size=1", "trainer.total_steps=2"),
			config.Train)
		played := scored(t, tr, Metrics{})
		v := listsOf(played)
		if n := len(v.batch.Indices()); n != 1 {
			t.Fatalf("%d rows, want 1", n)
		}
		return v.seqs, tr.train.order.State().Epoch
	}
	if first, _ := answers(false); !slices.Equal(first[0].IDs, first[1].IDs) {
		t.Fatal("the first two answers differ already: take another temperature")
	}
	if last, drawn := answers(true); slices.Equal(last[0].IDs, last[1].IDs) || drawn < 2 {
		t.Errorf("drawn %d times, the row's two answers are still equal: %v", drawn, last[0].IDs)
	}
}

// What is not finite is skipped and counted; weights, moments and steps stay;
// after max_skips in a row the run stops with ErrNumerical, and the last
// checkpoint is good (doc/reliability.md, row 9).
func TestNumericalStop(t *testing.T) {
	be := &spy{Backend: ready(t)}
	run := filepath.Join(t.TempDir(), "run")
	tr := opened(t, be, settings(config.Train, run, "trainer.total_steps=9", "trainer.max_skips=3",
		"actor.ppo_mini_batch_size=4", "trainer.save_freq=1"), config.Train)
	if err := tr.Run(&stopAfter{Context: context.Background(), n: 1}); !errors.Is(err,
		ErrInterrupted) {
		t.Fatal(err)
	}
	before := [2]map[string]string{weights(t, tr, "actor"), weights(t, tr, "critic")}
	be.plant = float32(math.NaN())
	for step := 2; step <= 3; step++ {
		m, err := nextOf(tr)
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if m["actor/skipped_updates"] != 1 || m["critic/skipped_updates"] != 1 {
			t.Errorf("step %d: %g and %g updates skipped, want 1 each", step,
				m["actor/skipped_updates"], m["critic/skipped_updates"])
		}
		if err := tr.rec.Step(step, m); err != nil {
			t.Error(err)
		}
		tr.step++
	}
	err := tr.Run(context.Background())
	if !errors.Is(err, ErrNumerical) || strings.Contains(err.Error(), "\n") ||
		!strings.Contains(err.Error(), "trainer.max_skips") {
		t.Errorf("after 3 skips in a row: %v, want ErrNumerical on one line", err)
	}
	dump, err := os.ReadFile(filepath.Join(run, "numerical_stop.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"step 4\n", "3 optimizer steps in a row", "data rows [",
		"critic/skipped_updates 1", "critic/d_loss "} {
		if !strings.Contains(string(dump), text) {
			t.Errorf("the dump lacks %q:\n%s", text, dump)
		}
	}
	if tr.actor.Optimizer().Steps() != 1 ||
		gameOf(tr).critic.Optimizer().Steps() != 1+tr.past.before.Critic {
		t.Errorf("%d and %d steps, want 1 each in this stage", tr.actor.Optimizer().Steps(),
			gameOf(tr).critic.Optimizer().Steps()-tr.past.before.Critic)
	}
	same(t, weights(t, tr, "actor"), before[0])
	same(t, weights(t, tr, "critic"), before[1])
	if dir, notes, err := saved.Find(vfs.OS, run); err != nil ||
		filepath.Base(dir) != "global_step_1" || len(notes) > 0 {
		t.Errorf("latest checkpoint: %s, %v, %v", dir, notes, err)
	}
}

// weights are a side's weights and moments, as strings of their bits; enough
// names for same.
func weights(t *testing.T, tr *Trainer, side string) map[string]string {
	t.Helper()
	m := tr.actor.Model()
	if side == "critic" {
		m = gameOf(tr).critic.Model()
	}
	out := map[string]string{"metrics.jsonl": side}
	for _, p := range m.Params() {
		for part, x := range map[string]compute.Tensor{"W": p.W, "M": p.M, "V": p.V} {
			v := make([]float32, p.Len())
			tr.be.Download(v, x)
			var b []byte
			for _, f := range v {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
			}
			out[part+" "+p.Name] = string(b)
		}
	}
	return out
}

// A score that is not finite stops neither the run nor spoils the student.
func TestScoreNotFinite(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
		"trainer.total_steps=2"), config.Train)
	head := gameOf(tr).critic.Model().Params()
	last := head[len(head)-1]
	be.Upload(last.W.Slice(0, 1), []float32{float32(math.NaN())})
	be.Refresh(last)
	before := weights(t, tr, "actor")
	m, err := nextOf(tr)
	if err != nil {
		t.Fatal(err)
	}
	if m["actor/skipped_updates"] != 1 || m["critic/skipped_updates"] != 1 {
		t.Errorf("%g and %g updates skipped, want 1 each", m["actor/skipped_updates"],
			m["critic/skipped_updates"])
	}
	same(t, weights(t, tr, "actor"), before)
	if err := tr.rec.Step(1, m); err != nil {
		t.Error(err)
	}
}

// Warm-up by the teacher's answers has no use for a reference, whatever the KL settings say.
func TestWarmupBySFTWithKLInReward(t *testing.T) {
	be := ready(t)
	rows := finished(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
		"trainer.total_steps=2", "algorithm.use_kl_in_reward=true"), config.Warmup)
	wantNames(t, rows[1], []string{"actor/sft_loss"})
	wantNone(t, rows[1], "reward/kl", "timing_s/ref_logp")
}
