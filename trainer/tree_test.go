package trainer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/actor"
	"gad/algos"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/internal/hostile"
	"gad/internal/philox"
	"gad/internal/report"
	"gad/internal/textmetrics"
	"gad/internal/vfs"
	"gad/model"
	"gad/trainer/checker"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/episode"
)

// branching are a small run's settings with so many trees that branch in so many rounds.
func branching(trees, rounds int, more ...string) []string {
	return append([]string{"rollout.n=1", fmt.Sprint("rollout.tree.trees=", trees),
		fmt.Sprint("rollout.tree.rounds=", rounds), "rollout.tree.segment=2",
		"critic.truncated=include"}, more...)
}

// wholeOf is a run's answer behind its prompt, as one sequence.
func wholeOf(r *round, a int) model.Seq {
	v := listsOf(r)
	return model.Answer(v.seqs[a].IDs, len(v.batch[v.group[a]].Prompt))
}

// A round of trees: an answer begins with what it branched off, its own tokens are in spans that
// cover every token of the trees once, cut where others branch off; their log-probabilities are
// those of a pass over the answer, to the bit; the discriminator, the checker and the teacher's
// text are set beside the whole answer; a node has one advantage.
func TestStepInTrees(t *testing.T) {
	be := ready(t)
	for _, how := range []string{"random", "uct"} {
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			branching(2, 2, "trainer.total_steps=2", "rollout.tree.select="+how,
				"algorithm.adv_estimator=tree_grpo", "trainer.checker="+byLength,
				"algorithm.truncated_reward=score",
				"algorithm.terms=d + check + 3*rouge_l - 0.1*length")...), config.Train)
		m := Metrics{}
		r := scored(t, tr, m)
		v := listsOf(r)
		if n := len(v.group); n < 30 || n > 40 || len(v.seqs) != n {
			t.Fatalf("%s: %d answers in %d sequences to 4 prompts, at most 10 to each", how, n,
				len(v.seqs))
		}
		passes := make([]model.Seq, len(v.group))
		for a := range passes {
			passes[a] = wholeOf(r, a)
		}
		logp, _, err := tr.actor.Model().AllLogProbs(passes, 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		if err := gameOf(tr).oldLogProbs(m, r, true); err != nil || m["rollout/logp_diff_max"] != 0 {
			t.Errorf("%s: sampler and trainer differ by %g, %v", how, m["rollout/logp_diff_max"],
				err)
		}
		branches, written := v.branches, v.written
		cuts := make([]int, len(v.group))
		deep := 0
		var texts []string
		for a, b := range branches {
			q, seq := v.batch[v.group[a]].Prompt, v.seqs[a]
			if b.Parent >= 0 {
				if v.group[b.Parent] != v.group[a] || branches[b.Parent].Tree != b.Tree ||
					!slices.Equal(written[a][:b.At], written[b.Parent][:b.At]) || b.At%2 > 0 {
					t.Errorf("%s: answer %d branches off %d at %d: %v, %v", how, a, b.Parent, b.At,
						written[a], written[b.Parent])
				}
				if b.At > 0 {
					cuts[b.Parent]++
				}
				if branches[b.Parent].Parent >= 0 {
					deep++
				}
			}
			if seq.Prompt() != len(q)+b.At || !slices.Equal(seq.IDs[:len(q)], q) ||
				seq.Shared != len(q) || seq.Trained() != len(seq.IDs)-len(q)-b.At ||
				len(written[a]) != len(seq.IDs)-len(q) || v.whole[a] != len(written[a]) {
				t.Errorf("%s: answer %d, %+v, is %+v behind %v", how, a, b, seq, q)
			}
			if !slices.Equal(v.sampled[a], logp[a][b.At:]) {
				t.Errorf("%s: answer %d: %v, in one pass %v", how, a, v.sampled[a],
					logp[a][b.At:])
			}
			if want := tr.enc.Ending().Seq(q, written[a], v.cut[a]); !slices.Equal(
				v.judged[a].IDs, want.IDs) {
				t.Errorf("%s: the discriminator reads %v of answer %d, want %v", how,
					v.judged[a].IDs, a, want.IDs)
			}
			number := a - slices.Index(v.group, v.group[a])
			alone, err := tr.actor.Model().Generate([][]int32{seq.IDs[:len(q)+b.At]},
				[]uint64{uint64(v.batch[v.group[a]].Index)}, model.SampleOptions{N: 1, MaxNew: 14,
					EOS: tr.tok.EOS(), Seed: tr.seed(), Begun: []model.Begun{{Sample: number,
						Drawn: b.At}}, Sampling: model.Sampling{Temperature: 1, TopP: 1}}, nil)
			if err != nil || !slices.Equal(alone[0][0].IDs, written[a][b.At:]) {
				t.Errorf("%s: answer %d goes on with %v, with the draws of sample %d %v, %v", how,
					a, written[a][b.At:], number, alone, err)
			}
			if n := len(written[a]); v.cut[a] != (n == 14 &&
				!slices.Contains(tr.tok.EOS(), written[a][n-1])) || n > 14 {
				t.Errorf("%s: answer %d: %d tokens, cut %t", how, a, n, v.cut[a])
			}
			texts = append(texts, tr.tok.Decode(written[a], true))
		}
		rows, err := checker.Rows(tr.train.set, model.Pick(v.batch.Indices(), v.group), texts,
			v.cut)
		if err != nil {
			t.Fatal(err)
		}
		verdicts, err := tr.judges.verdicts(context.Background(), tr.judges.checker, rows)
		if err != nil {
			t.Fatal(err)
		}
		for a, x := range verdicts {
			if v.checkA[a] != x.Score {
				t.Errorf("%s: the checker gives answer %d %g, and its text %g", how, a,
					v.checkA[a], x.Score)
			}
		}
		for a, seq := range v.seqs {
			if n := len(seq.Spans) - 1; n > cuts[a] || n == 0 != (cuts[a] == 0) {
				t.Errorf("%s: answer %d has %d cuts by %d branches: %v", how, a, n, cuts[a],
					seq.Spans)
			}
		}
		if deep == 0 {
			t.Errorf("%s: no branch of a branch: %v", how, branches)
		}
		adv := advantagesOf(t, tr, m, r)
		rewardA := each(r, rewardOf)
		for a, text := range texts {
			want := float64(v.scoreA[a]) + v.checkA[a] +
				3*textmetrics.RougeL(text, v.batch[v.group[a]].TeacherText) -
				0.1*math.Log1p(float64(len(written[a])))
			if !near(rewardA[a], want, 1e-5) {
				t.Errorf("%s: answer %d has a reward of %g, want %g", how, a, rewardA[a], want)
			}
		}
		for a, seq := range v.seqs {
			at := 0
			for _, span := range seq.Spans {
				n := span.To - span.From
				if slices.Max(adv[a][at:at+n]) != slices.Min(adv[a][at:at+n]) {
					t.Errorf("%s: answer %d: advantages %v in spans %v", how, a, adv[a], seq.Spans)
				}
				at += n
			}
			// the last tokens are this answer's alone: its z in its tree, and in its prompt's group
			want := 0.0
			for _, same := range []func(b int) bool{
				func(b int) bool { return branches[b].Tree == branches[a].Tree },
				func(b int) bool { return v.group[b] == v.group[a] }} {
				var x []float64
				for b := range branches {
					if same(b) {
						x = append(x, rewardA[b])
					}
				}
				mean, std := report.Moments(x)
				want += (rewardA[a] - mean) / (std + 1e-6)
			}
			if !near(adv[a][seq.Trained()-1], want, 1e-9) {
				t.Errorf("%s: answer %d: advantage %g at its end, want %g", how, a,
					adv[a][seq.Trained()-1], want)
			}
		}
		if err := tr.form.(*tree).places(r, 1); err != nil {
			t.Fatal(err)
		}
		for a, one := range r.answers() {
			x := one.place
			text := []rune(tr.tok.Decode(written[a], true))
			if v.group[a] > 0 {
				continue
			}
			if x.Leaf != a || x.Parent != one.branch.Parent ||
				len(x.Nodes) != len(v.seqs[a].Spans) ||
				x.Nodes[len(x.Nodes)-1].To != len(text) ||
				*x.Nodes[len(x.Nodes)-1].Value != rewardA[a] {
				t.Errorf("%s: place of answer %d: %+v", how, a, x)
			}
		}
		if err := tr.form.describe(m, r); err != nil {
			t.Fatal(err)
		}
		if x := m["tree/branches"]; !near(x, float64(len(v.group)-8)/8, 1e-9) {
			t.Errorf("%s: %g branches a tree of %d answers", how, x, len(v.group))
		}
	}
}

// grownUp is a warm-up run in the tests' environment, from which the game goes on.
func grownUp(t *testing.T, be compute.Backend, data, how string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "warmup")
	finished(t, be, settings(config.Warmup, dir, acting(data, how, "trainer.total_steps=2")...),
		config.Warmup)
	return "trainer.resume_from=" + dir
}

// Episodes branch before turns, and thoughts at seams: what an answer takes over it does not learn,
// neither is any token left out; its sequences were sampled with the contexts that are learned; the
// discriminator, rewards and lengths are of the whole.
func TestStepInTreesOfTurnsAndChunks(t *testing.T) {
	t.Parallel()
	be := ready(t)
	data := episodesOf(t, 12)
	for how, set := range map[string][]string{
		"well": acting(data, "well", grownUp(t, be, data, "well"), "algorithm.env_weight=1",
			"critic.level=turn"),
		"prompt": acting(data, "prompt", grownUp(t, be, data, "prompt"),
			"algorithm.env_weight=1"),
		"chunks": thinking("critic.reads=last", "critic.truncated=exclude"),
	} {
		if testing.Short() && how == "well" {
			continue
		}
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			branching(2, 2, slices.Concat(set, []string{"trainer.total_steps=2",
				"rollout.tree.select=uct", "algorithm.adv_estimator=tree_node"})...)...),
			config.Train)
		m := Metrics{}
		r := scored(t, tr, m)
		v := listsOf(r)
		lenA, _ := r.mask()
		branches, written := v.branches, v.written
		inner, sequences := 0, v.sequences
		logp, _, err := tr.actor.Model().AllLogProbs(v.seqs, 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		for s := range logp {
			if !slices.Equal(logp[s], v.sampled[s]) {
				t.Errorf("%s: sequence %d was not sampled with the context that is learned", how, s)
			}
			if a := v.answerS[s]; v.whole[s] != len(written[a]) {
				t.Errorf("%s: sequence %d of an answer of %d tokens, not %d", how, s,
					v.whole[s], len(written[a]))
			}
		}
		for a, b := range branches {
			var own []int32
			for _, seq := range sequences[a] {
				own = append(own, seq.TrainedIDs()...)
			}
			if !slices.Equal(own, written[a][b.At:]) || lenA[a] != len(own) {
				t.Errorf("%s: answer %d, %+v, of %v learns %v", how, a, b, written[a], own)
			}
			if b.At > 0 {
				inner++
				if !slices.Equal(written[a][:b.At], written[b.Parent][:b.At]) {
					t.Errorf("%s: answer %d does not begin as answer %d", how, a, b.Parent)
				}
			}
			if how == "chunks" {
				if b.At > 0 && !slices.Contains(inChunks.Seams(len(written[a])), b.At) {
					t.Errorf("a thought branches at %d", b.At)
				}
				q := v.batch[v.group[a]].Prompt
				all := inChunks.Seqs(q, written[a])
				for i, seq := range sequences[a] {
					if want := all[len(all)-len(sequences[a])+i]; !slices.Equal(seq.IDs, want.IDs) {
						t.Errorf("chunk %v, want %v", seq, want)
					}
				}
				continue
			}
			e := v.episodes[a]
			sum := 0.0
			for k, span := range e.Script.Spans {
				text := tr.tok.Decode(e.Script.IDs[span.From:span.To], true)
				sum += float64(len(text) % 3)
				if e.Turns[k].Reward != float64(len(text)%3) {
					t.Errorf("%s: answer %d turn %d: reward %g for %q", how, a, k,
						e.Turns[k].Reward, text)
				}
			}
			if len(e.Turns) != 2+v.batch[v.group[a]].Index%2 || e.Reward(0) != sum ||
				len(v.judged[a].Spans) != len(e.Turns) {
				t.Errorf("%s: answer %d: %d turns, %d before the discriminator", how, a,
					len(e.Turns), len(v.judged[a].Spans))
			}
		}
		if inner < 4 {
			t.Errorf("%s: %d branches within answers: %v", how, inner, branches)
		}
		adv := advantagesOf(t, tr, m, r)
		for s, row := range adv {
			if len(row) < v.seqs[s].Trained() {
				t.Errorf("%s: sequence %d has advantages %v", how, s, row)
			}
		}
		if err := tr.form.(*tree).places(r, 4); err != nil {
			t.Fatal(err)
		}
		for a, one := range r.answers() {
			x := one.place
			last := x.Nodes[len(x.Nodes)-1]
			s := len(sequences[a]) - 1 + v.firsts[a]
			if *last.Advantage != adv[s][v.seqs[s].Trained()-1] ||
				how != "chunks" && last.To != len(v.episodes[a].Turns) {
				t.Errorf("%s: answer %d: %+v", how, a, x)
			}
		}
		if _, err := nextOf(tr); err != nil {
			t.Errorf("%s: %v", how, err)
		}
	}
	tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
		branching(2, 2, acting(data, "clock", grownUp(t, be, data, "well"),
			"trainer.total_steps=2", "env.max_faults=0.1")...)...), config.Train)
	if _, err := nextOf(tr); err == nil || !strings.Contains(err.Error(),
		"replies to turns 1 to 1 are not what they were") {
		t.Errorf("in a world that replies by the clock: %v", err)
	}
	// a program that says it can fork, and gets requests for forks behind turns that there are not
	tr = opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
		branching(2, 2, acting(data, "well", grownUp(t, be, data, "well"),
			`env.command=sed -u 's/"turns":[0-9]*/"turns":99/' | `+talkAs("forks well"),
			"trainer.total_steps=2", "env.max_faults=0.1")...)...), config.Train)
	if _, err := nextOf(tr); !errors.Is(err, fault.ErrRunning) ||
		!strings.Contains(err.Error(), "promised and not kept: the environment says") {
		t.Errorf("in a world that cannot fork as it says: %v", err)
	}
}

// A run whose branches are forks has the bits of one whose branches play their turns again, with
// both selections, on one rank and on two, and with fewer places than trees have episodes.
func TestForksAreAsReplays(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	data := episodesOf(t, 12)
	for _, how := range []string{"well", "prompt"} {
		warm := grownUp(t, be, data, how)
		run := func(search, command string) config.Config {
			return settings(config.Train, filepath.Join(t.TempDir(), "run"),
				branching(2, 2, acting(data, how, half(warm, "trainer.total_steps=2",
					"rollout.tree.select="+search, "algorithm.env_weight=0.5", "trainer.shards=2",
					"env.workers=1", "env.command="+command)...)...)...)
		}
		for _, search := range []string{"random", "uct"} {
			if hostile.Share(8) < 8 && (how == "prompt") != (search == "uct") {
				continue
			}
			c := run(search, talkAs(how))
			replayed := finished(t, be, c, config.Train)
			want := record(t, c.Trainer.Output, 2)
			for name, ranks := range map[string]int{"forks": 1, "forks, ranks": 2, "few": 1} {
				if !hostile.Long() && (how == "prompt") != (name == "few") {
					continue
				}
				command := talkAs("forks " + how)
				if name == "few" {
					command += ` | sed -u 's/"episodes":64/"episodes":3/'`
				}
				c := run(search, command)
				onRanks(t, ranks, c, config.Train)
				same(t, record(t, c.Trainer.Output, 2), want)
				for i, row := range metricsOf(t, c) {
					is, was := row.Values["perf/env_replay_frac"],
						replayed[i].Values["perf/env_replay_frac"]
					if !(was > 0) || name != "few" && is != 0 || is > was {
						t.Errorf("%s, %s, %s: step %d: %g of the turns are played again, %g without forks",
							how, search, name, i+1, is, was)
					}
				}
			}
		}
	}
}

// Without rounds everything has the bits of rollout.n=M: answers, figures and weights, with grpo
// and, trees of one answer, with tree_grpo.
func TestTreesWithoutRounds(t *testing.T) {
	be := ready(t)
	var want map[string]string
	for _, more := range [][]string{nil, branching(4, 0),
		branching(4, 0, "algorithm.adv_estimator=tree_grpo")} {
		c := settings(config.Train, filepath.Join(t.TempDir(), "run"),
			append(more, "trainer.total_steps=3", "trainer.save_samples=0",
				"critic.truncated=include")...)
		finished(t, be, c, config.Train)
		files := record(t, c.Trainer.Output, 3)
		for name, text := range files {
			switch {
			case strings.HasSuffix(name, "metrics.jsonl"):
				var rows []string
				for _, row := range metricsOf(t, c) {
					for _, key := range []string{"adv/mean", "actor/pg_loss", "critic/d_loss",
						"actor/grad_norm", "rollout/len_mean", "rollout/unique_frac"} {
						rows = append(rows, fmt.Sprint(row.Values[key]))
					}
				}
				files[name] = strings.Join(rows, " ")
			case !strings.HasSuffix(name, ".safetensors") && !strings.HasSuffix(name, ".bin"):
				_ = text
				delete(files, name) // settings
			}
		}
		if want == nil {
			want = files
		}
		if len(files) < 4 {
			t.Fatalf("only %d files are compared", len(files))
		}
		for name := range want {
			if files[name] != want[name] {
				t.Errorf("%v: %s differs", more, name)
			}
		}
	}
}

// What a search reads are rewards of whole answers under the present weights, of their own tree:
// after a step of both networks the answers are the present student's, and the scores the present
// discriminator's.
func TestSearchReadsThePresentWeights(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
		branching(2, 2, "trainer.total_steps=3", "rollout.tree.select=uct",
			"algorithm.truncated_reward=score", "actor.optim.lr=1e-2",
			"critic.optim.lr=1e-2")...), config.Train)
	for step := range 2 {
		b, err := tr.enc.Batch(tr.train.set, []int{3, 5})
		if err != nil {
			t.Fatal(err)
		}
		g := tr.form.(*tree).plant(newRound(b, b.Indices()))
		if err := g.sample([]offshoot{{0, algos.Branch{Parent: -1}},
			{0, algos.Branch{Tree: 1, Parent: -1}}, {1, algos.Branch{Parent: -1}},
			{1, algos.Branch{Tree: 1, Parent: -1}}}); err != nil {
			t.Fatal(err)
		}
		out, err := tr.actor.Model().Generate(b.Prompts(), []uint64{3, 5}, model.SampleOptions{N: 2,
			MaxNew: 14, EOS: tr.tok.EOS(), Seed: tr.seed(), Step: uint64(tr.step),
			Sampling: model.Sampling{Temperature: 1, TopP: 1}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var whole []model.Seq
		for k := range 2 {
			rewards, err := g.rewards(Metrics{})
			if err != nil {
				t.Fatal(err)
			}
			whole = whole[:0]
			var got []float64
			for p, leaves := range g.leavesP {
				for s, x := range leaves {
					if s < 2 && !slices.Equal(x.ids, out[p][s].IDs) {
						t.Errorf("step %d: answer %v, the present student's is %v", step, x.ids,
							out[p][s].IDs)
					}
					whole = append(whole, tr.enc.Ending().Seq(b[p].Prompt, x.ids, x.cut))
					got = append(got, rewards[p][s])
				}
			}
			want, err := gameOf(tr).critic.Score(whole)
			if err != nil {
				t.Fatal(err)
			}
			for a := range want {
				if got[a] != float64(want[a]) {
					t.Errorf("step %d round %d: reward %g, the present discriminator's is %g",
						step, k, got[a], want[a])
				}
			}
			chosen := g.choose(k, rewards)
			for _, x := range chosen {
				if g.leavesP[x.prompt][x.Parent].branch.Tree != x.Tree {
					t.Errorf("a branch of tree %d off an answer of tree %d", x.Tree,
						g.leavesP[x.prompt][x.Parent].branch.Tree)
				}
			}
			// another tree's values change nothing
			first := func(list []offshoot) []offshoot {
				return slices.DeleteFunc(slices.Clone(list),
					func(x offshoot) bool { return x.Tree == 1 })
			}
			others := map[string]bool{}
			for i := range 20 {
				for p, leaves := range g.leavesP {
					for s, x := range leaves {
						if x.branch.Tree == 1 {
							rewards[p][s] = 100 * math.Sin(float64(s*s+7*i))
						}
					}
				}
				again := g.choose(k, rewards)
				if others[fmt.Sprint(again)] = true; !slices.Equal(first(again), first(chosen)) {
					t.Errorf("with other values of tree 1 tree 0 branches at %v, not %v",
						first(again), first(chosen))
				}
			}
			if k > 0 && len(others) < 2 {
				t.Errorf("no values of tree 1 change where it branches: %v", others)
			}
			if err := g.sample(chosen); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := nextOf(tr); err != nil {
			t.Fatal(err)
		}
		tr.step++
	}
}

// Places are drawn by seed, step, row, tree, round and draw: another round, or another tree, has
// draws of its own.
func TestPlacesAreDrawn(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
		branching(3, 2, "trainer.total_steps=3", "rollout.tree.expand=3")...), config.Train)
	g := tr.form.(*tree).plant(newRound(make(encode.Batch, 2), []int{9, 3}))
	for p := range g.leavesP {
		for tree := range 3 {
			g.leavesP[p] = append(g.leavesP[p], &leaf{own: 41,
				answer: &answer{branch: algos.Branch{Tree: tree, Parent: -1}}})
		}
	}
	seen := map[string]bool{}
	for step := range 2 {
		tr.step = step
		for round := range 2 {
			got := g.choose(round, nil)
			for p, of := range g.r.groups {
				for tree := range 3 {
					var places []algos.Place
					for at := 0; at < 41; at += 2 {
						places = append(places, algos.Place{At: at})
					}
					var want []offshoot
					for i := range 3 {
						at := i + philox.IntN(len(places)-i, tr.seed(), philox.Branches,
							uint64(step), uint64(of.key)<<16|uint64(tree), uint64(3*round+i))
						places[i], places[at] = places[at], places[i]
						want = append(want, offshoot{p, algos.Branch{Tree: tree, Parent: tree,
							At: places[i].At}})
					}
					if x := got[9*p+3*tree:][:3]; !slices.Equal(x, want) {
						t.Errorf("step %d round %d row %d tree %d: %v, want %v", step, round, of.key,
							tree, x, want)
					}
					seen[fmt.Sprint(places[:3])] = true
				}
			}
		}
	}
	if len(seen) != 24 {
		t.Errorf("%d of 24 draws differ", len(seen))
	}
}

// Answers to several prompts are numbered through, trees too, also where dynamic sampling has put
// rounds together.
func TestBranchesOfARound(t *testing.T) {
	first, second := algos.Branch{Parent: -1}, algos.Branch{Tree: 1, Parent: -1}
	part := func(prompts int, of []int, branches ...algos.Branch) *round {
		r := newRound(make(encode.Batch, prompts), make([]int, prompts))
		for i, p := range of {
			a := newAnswer(false, &actor.Sequence{Seq: model.Answer([]int32{1, int32(i)}, 1),
				Whole: 10 + i})
			a.branch = branches[i]
			r.groups[p].answers = append(r.groups[p].answers, a)
		}
		return r
	}
	r := part(2, []int{0, 0, 0, 1, 1, 1}, first, second, algos.Branch{Tree: 0, At: 4},
		first, second, algos.Branch{Tree: 1, Parent: 1, At: 2})
	whole := part(1, []int{0, 0}, first, second)
	whole.take(r, []int{1})
	want := []algos.Branch{first, second, {Tree: 2, Parent: -1}, {Tree: 3, Parent: -1},
		{Tree: 3, Parent: 3, At: 2}}
	if v := listsOf(whole); !slices.Equal(v.branches, want) || v.written[4][0] != 5 ||
		!slices.Equal(v.whole, []int{10, 11, 13, 14, 15}) {
		t.Errorf("branches %v, want %v; lengths %v", v.branches, want, v.whole)
	}
	if got := r.branches(); got[5] != (algos.Branch{Tree: 3, Parent: 4, At: 2}) ||
		got[2] != (algos.Branch{At: 4}) {
		t.Errorf("branches %v", got)
	}
}

// A run in trees that was stopped, or killed, within a search too, and gone on with has the bits of
// one that was not; so has one on several ranks, and one with other slots.
func TestTreesKeepTheirBits(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	data := episodesOf(t, 12)
	for arm, c := range []struct {
		how  string
		more []string
	}{
		{"random", []string{"algorithm.adv_estimator=tree_grpo", "critic.group_ot=0.01"}},
		{"uct", []string{"algorithm.adv_estimator=tree_node",
			"algorithm.filter_groups.enable=true", "actor.policy_loss.loss_mode=vanilla",
			"algorithm.terms=d + 0.1*check", "trainer.checker=" + byLength}},
		{"uct, turns", acting(data, "well", grownUp(t, be, data, "well"), "data.val_files="+data,
			"algorithm.env_weight=0.5")},
		{"random, chunks", thinking("critic.reads=last")},
	} {
		how, more := c.how, c.more
		search, _, _ := strings.Cut(how, ", ")
		run := func(name string, other ...string) config.Config {
			return settings(config.Train, filepath.Join(t.TempDir(), name),
				branching(2, 2, slices.Concat(half("trainer.total_steps=4"), []string{
					"trainer.save_freq=2", "trainer.shards=4", "critic.replay.size=24",
					"critic.replay.share=0.5", "actor.ppo_epochs=2", "rollout.tree.select=" + search,
					"data.val_files=" + fixed.val, "trainer.test_freq=2"}, more, other)...)...)
		}
		c := run("whole")
		rows := finished(t, be, c, config.Train)
		want := record(t, c.Trainer.Output, 4)
		for name, step := range map[string]int{"tree/branches": 0, "tree/depth": 2,
			"tree/shared_frac": 3} {
			if x, ok := rows[step].Values[name]; !ok || !(x > 0) {
				t.Errorf("%s: %s in step %d: %g, %v", how, name, step+1, x, ok)
			}
		}
		if x := rows[2].Values["rollout/logp_diff_max"]; x != 0 {
			t.Errorf("%s: sampler and trainer differ by %g", how, x)
		}
		samples, _, err := report.ReadSamples(vfs.OS, c.Trainer.Output, report.InTraining, 4)
		if err != nil || len(samples) < 12 {
			t.Errorf("%s: samples: %v, %v", how, samples, err)
		}
		for _, s := range samples {
			if s.Tree == nil || len(s.Tree.Nodes) == 0 || s.Tree.Nodes[0].Advantage == nil {
				t.Errorf("%s: a sample without its place in a tree: %+v", how, s)
			}
		}
		c = run("pieces")
		// in first answers, in both rounds of branches, and in an episode
		inPieces(t, c, config.Train, []int{9, 30, 4, 20}[arm], 2+arm%2*2, "rollout.max_num_seqs=3")
		same(t, record(t, c.Trainer.Output, 4), want)
		if !hostile.Long() {
			continue
		}
		for n := 1; n <= 3; n++ {
			for _, kill := range []bool{false, true} {
				c := run(fmt.Sprint("part", n, kill))
				if err := part(t, c, config.Train, n, kill); !kill &&
					!errors.Is(err, ErrInterrupted) {
					t.Fatal(err)
				}
				finished(t, be, c, config.Train)
				same(t, record(t, c.Trainer.Output, 4), want)
			}
		}
		for _, n := range []int{9, 15, 20} { // in first answers, and in both rounds of branches
			c := run(fmt.Sprint("killed", n))
			inTokens(t, c, config.Train, n)
			finished(t, be, c, config.Train)
			same(t, record(t, c.Trainer.Output, 4), want)
		}
		for _, n := range []int{2, 4} {
			c := run(fmt.Sprint("ranks", n))
			onRanks(t, n, c, config.Train)
			same(t, record(t, c.Trainer.Output, 4), want)
		}
		c = run("slots", "rollout.max_num_seqs=3")
		finished(t, be, c, config.Train)
		same(t, record(t, c.Trainer.Output, 4), want)
	}
}

// A teacher reads a branch behind its beginning, whatever prompt and tokens it has: it gives the
// branch's tokens what it gives them in the whole answer.
func TestTeacherReadsBranchesWhole(t *testing.T) {
	be := ready(t)
	for what, more := range map[string][]string{
		"the row's prompt":  {"teacher.path=" + fixed.blank},
		"another prompt":    {"teacher.path=" + fixed.blank, "teacher.system=Answer in verse."},
		"another tokenizer": {"teacher.path=" + foreign(t)},
	} {
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			branching(2, 2, append(more, "algorithm.teacher_weight=1")...)...), config.Train)
		logProbs := func(r *round) [][]float32 {
			c := gameOf(tr).teachers
			read, err := c.readings(r)
			if err != nil {
				t.Fatal(err)
			}
			logpST, err := c.logProbs(Metrics{}, r, read)
			if err != nil {
				t.Fatal(err)
			}
			return logpST
		}
		r, err := gameOf(tr).play(Metrics{})
		if err != nil {
			t.Fatal(err)
		}
		single, branches := &round{}, 0
		for _, g := range r.groups {
			of := &group{Row: g.Row}
			for _, a := range g.answers {
				old := append(make([]float32, a.branch.At), a.seqs[0].Old...)
				of.answers = append(of.answers, newAnswer(a.cut, &actor.Sequence{Old: old,
					Seq: model.Answer(slices.Concat(g.Prompt, a.ids), len(g.Prompt))}))
			}
			single.groups = append(single.groups, of)
		}
		got, want := logProbs(r), logProbs(single)
		for i, a := range r.answers() {
			if a.branch.At > 0 {
				branches++
			}
			if !slices.Equal(got[i], want[i][a.branch.At:]) {
				t.Errorf("%s: answer %d, a branch at %d: %v, want %v", what, i, a.branch.At, got[i],
					want[i][a.branch.At:])
			}
		}
		if branches < 10 {
			t.Errorf("%s: %d branches", what, branches)
		}
	}
}

// What does not go with trees is refused before anything is written.
func TestTreesAreRefused(t *testing.T) {
	be := ready(t)
	for set, want := range map[string]string{
		"rollout.n=4":                            "set rollout.n=1",
		"rollout.tree.rounds=4096":               "have 16386 answers, more than 4096",
		"algorithm.group_stats=turns":            "counts the turns of whole episodes",
		"algorithm.use_kl_in_reward=true":        "put the KL into the loss",
		"rollout.tree.trees=0 adv=tree_grpo n=4": "rollout.tree.trees is 0: set it, or use grpo",
		"rollout.tree.select=best":               "rollout.tree.select",
		"rollout.tree.segment=0":                 "rollout.tree.segment",
	} {
		out := filepath.Join(t.TempDir(), "run")
		set = strings.NewReplacer("adv=", "algorithm.adv_estimator=", " n=", " rollout.n=").
			Replace(set)
		c := settings(config.Train, out, branching(2, 1)...)
		err := c.Load("", strings.Fields(set)...)
		if err == nil {
			err = play(be, c, config.Train)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: the run's folder was made", set)
		}
	}
	err := play(be, settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
		"algorithm.adv_estimator=tree_node"), config.Warmup)
	if err == nil || !strings.Contains(err.Error(), "it is for gad train: use grpo") {
		t.Errorf("in a warm-up: %v", err)
	}
}

func TestTurnsIn(t *testing.T) {
	e := &episode.Episode{Script: model.Seq{Spans: []model.Span{{From: 2, To: 3}, {From: 5, To: 8},
		{From: 9, To: 10}}}}
	for tokens, want := range map[int]int{0: 0, 1: 1, 4: 2, 5: 3} {
		if got := turnCount(e, tokens); got != want {
			t.Errorf("%d tokens are %d turns, not %d", tokens, got, want)
		}
	}
}

// answerTokens is how many tokens behind the prompts a pass over seqs computes in packs of limit
// tokens, and how many it would if answers shared their prompts alone.
func answerTokens(seqs []model.Seq, prompt func(s int) int, limit int) (now, before int) {
	for _, branching := range []bool{true, false} {
		seqs, n := slices.Clone(seqs), 0
		for i := range seqs {
			seqs[i].Branching = seqs[i].Branching && branching
		}
		for _, pack := range model.Packs(seqs, limit) {
			for _, s := range model.Segments(model.Pick(seqs, pack)) {
				n += s.Tokens
			}
			prompts := map[string]int{}
			for _, s := range pack {
				prompts[fmt.Sprint(seqs[s].IDs[:prompt(s)])] = prompt(s)
			}
			for _, length := range prompts {
				n -= length
			}
		}
		if branching {
			now = n
		} else {
			before = n
		}
	}
	return now, before
}

// In both forms of the study a pass over the trees' answers computes no token behind a prompt
// twice: where prompts are shared alone, as many times more as tree/shared_frac says. The
// discriminator's pass neither, but for what its endings replace; and where a pack is too small for
// a prompt's trees, it is what parts of them share that is computed once more.
func TestTokensOfTreesAreComputedOnce(t *testing.T) {
	be := ready(t)
	for how, set := range map[string][]string{
		"random": branching(4, 1, "rollout.tree.expand=2"),
		"uct":    branching(3, 2, "rollout.tree.expand=1", "rollout.tree.select=uct"),
	} {
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"), set...),
			config.Train)
		m := Metrics{}
		r := scored(t, tr, m)
		v := listsOf(r)
		if err := tr.form.describe(m, r); err != nil {
			t.Fatal(err)
		}
		prompt := func(s int) int { return len(v.batch[v.group[s]].Prompt) }
		own, _ := r.mask()
		distinct := 0
		for _, n := range own {
			distinct += n
		}
		now, before := answerTokens(v.seqs, prompt, 1<<20)
		want := float64(distinct) / (1 - m["tree/shared_frac"])
		if now > distinct || !near(float64(before), want, 1e-6) ||
			before < distinct+4 {
			t.Errorf("%s: %d tokens are computed of %d different ones; with prompts alone %d, want %g",
				how, now, distinct, before, want)
		}
		small, _ := answerTokens(v.seqs, prompt, 128)
		critic, criticBefore := answerTokens(v.judged, prompt, 1<<20)
		if small < now || small > before || critic >= criticBefore {
			t.Errorf("%s: in packs of 128 tokens %d, at best %d, at worst %d; the discriminator %d, with prompts alone %d", how, small, now, before, critic, criticBefore)
		}
		t.Logf("%s: %.3f answer tokens computed for each different one, %.3f with prompts alone, %.3f in packs of 128; the discriminator %.3f of %.3f",
			how, float64(now)/float64(distinct), float64(before)/float64(distinct),
			float64(small)/float64(distinct), float64(critic)/float64(distinct),
			float64(criticBefore)/float64(distinct))
	}
}
