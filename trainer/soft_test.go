package trainer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/data"
	"gad/internal/compute"
	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/export"
	"gad/trainer/modeltest"
	"gad/trainer/plan"
	"gad/trainer/saved"
)

// softRows writes the fixture's rows with the log-probabilities that the fixture's student, as a
// teacher, gives their answers. Of ten rows one has none, one has those of another text, and one
// those of a teacher whose tokens are longer.
func softRows(t testing.TB, be compute.Backend, teacher string) string {
	t.Helper()
	tok, err := saved.Tokenizer(teacher)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(be, teacher, model.Options{Kind: model.LM})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	set, err := data.Open(fixed.data, data.DefaultColumns())
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	path := filepath.Join(t.TempDir(), "soft.jsonl")
	enc := encode.Encoder{Tok: tok, MaxResponse: 64}
	all := make([]int, set.Len())
	logprobs := make([]data.Logprobs, set.Len())
	for i := range all {
		all[i] = i
		if i%10 == 4 {
			continue
		}
		logprobs[i] = scoredBy(t, m, enc, set, i)
		switch l := logprobs[i]; i % 10 {
		case 2:
			l[0][0].Bytes += "?"
		case 6:
			l[1][0].Bytes = l[0][0].Bytes + l[1][0].Bytes
			logprobs[i] = l[1:]
		}
	}
	if err := data.WriteLogprobs(vfs.OS, path, set, all,
		func(i int) data.Logprobs { return logprobs[i] }); err != nil {
		t.Fatal(err)
	}
	return path
}

// scoredBy are the log-probabilities of the answer of row i.
func scoredBy(t testing.TB, m *model.Model, enc encode.Encoder, set *data.Set, i int) data.Logprobs {
	t.Helper()
	b, err := enc.Batch(set, []int{i})
	if err != nil {
		t.Fatal(err)
	}
	labels, err := m.AllScored(b.Teachers(), 5, enc.Tok.Size(), 1, 512)
	if err != nil {
		t.Fatal(err)
	}
	row, err := set.Row(i)
	if err != nil {
		t.Fatal(err)
	}
	return enc.Logprobs(row, b[0].Teacher.Response(), labels[0])
}

// softRun are the settings of a run on soft rows.
func softRun(path string, more ...string) []string {
	return append([]string{"data.train_files=" + path, "data.val_files=" + fixed.val,
		"trainer.total_steps=4", "data.train_batch_size=10", "data.max_response_length=32",
		"actor.max_token_len=128"}, more...)
}

// What a run says of soft labels: how many rows have them, and what its metrics are.
func TestSoftLabels(t *testing.T) {
	be := ready(t)
	path := softRows(t, be, fixed.student)
	dir := t.TempDir()
	var said bytes.Buffer
	cfg := settings(config.SFT, filepath.Join(dir, "own"), softRun(path, "actor.optim.lr=0")...)
	if err := playOn(be, cfg, config.SFT, &said); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"soft labels: 32 of 40 rows have log-probabilities of the teacher, which are learned with a weight of 1 (data.soft_labels)",
		"log-probabilities of 4 of 40 rows are not read: their bytes do not write the answer, or the student's tokens do not: these rows have hard labels: gad data validate --model says why"} {
		if !strings.Contains(said.String(), line) {
			t.Errorf("%s\nwants %s", said.String(), line)
		}
	}
	// The teacher is the student: nothing is to be learned at soft labels.
	rows, tokens, unread := metricsOf(t, cfg), 0.0, 0.0
	for _, row := range rows {
		if kl := row.Values["soft/kl"]; !(kl >= 0 && kl < 1e-5) {
			t.Errorf("soft/kl %g of the student itself", kl)
		}
		if mass := row.Values["soft/teacher_mass"]; !near(mass, row.Values["soft/student_mass"],
			1e-5) || !(mass > .3 && mass < 1) {
			t.Errorf("teacher's mass %g, student's %g", mass, row.Values["soft/student_mass"])
		}
		tokens += row.Values["soft/token_frac"] / 4
		unread += row.Values["soft/unread_frac"] / 4
	}
	if len(rows) != 4 || !near(unread, .1, 1e-9) || tokens < .7 || tokens > .8 {
		t.Errorf("%d steps; soft/unread_frac %g, soft/token_frac %g", len(rows), unread, tokens)
	}
	// The loss is what the model says of the rows' labels, row by row.
	tr := opened(t, be, settings(config.SFT, filepath.Join(dir, "blank"), softRun(path,
		"model.path="+fixed.blank, "data.soft_labels=0.25")...), config.SFT)
	b, err := tr.draw(10)
	if err != nil {
		t.Fatal(err)
	}
	want, n, soft := 0.0, 0.0, 0.0
	for p, seq := range b.Teachers() {
		logpST, _, err := tr.actor.Model().AllLogProbs([]model.Seq{seq}, 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range logpST[0] {
			hard := -float64(x)
			loss := hard
			if b[p].Soft != nil && b[p].Soft[i].IDs != nil {
				l := b[p].Soft[i]
				loss = .75*hard + .25*crossEntropy(t, tr, seq, i, l)
				soft++
			}
			want, n = want+loss, n+1
		}
	}
	m := Metrics{}
	if err := tr.stage.(*sft).learnTeachers(m, b); err != nil ||
		!near(m["actor/sft_loss"], want/n, 1e-5) || !near(m["soft/token_frac"], soft/n, 1e-9) ||
		soft == 0 || soft == n {
		t.Errorf("loss %g, want %g; %g soft tokens of %g, metric %g (%v)", m["actor/sft_loss"],
			want/n, soft, n, m["soft/token_frac"], err)
	}
}

// crossEntropy is that of a label with the student's distribution at trained token i of seq.
func crossEntropy(t *testing.T, tr *Trainer, seq model.Seq, i int, l data.SoftLabel) (loss float64) {
	t.Helper()
	rest, restQ := 1.0, 1.0
	for k, id := range l.IDs {
		other := model.Answer(slices.Clone(seq.IDs[:seq.Prompt()+i+1]), seq.Prompt()+i)
		other.IDs[seq.Prompt()+i] = id
		logp, _, err := tr.actor.Model().AllLogProbs([]model.Seq{other}, 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		p, q := math.Exp(float64(l.LogProbs[k])), float64(logp[0][0])
		loss, rest, restQ = loss-p*q, rest-p, restQ-math.Exp(q)
	}
	return loss - max(rest, 0)*math.Log(restQ)
}

// data.soft_labels=0 and rows without the column are the same run, and other stages do not read it.
func TestSoftLabelsAreOff(t *testing.T) {
	t.Parallel()
	be := ready(t)
	path, dir := softRows(t, be, fixed.student), t.TempDir()
	for _, c := range []struct {
		stage config.Stage
		more  []string
		read  bool
	}{
		{config.SFT, []string{"data.soft_labels=0"}, false},
		{config.SFT, []string{"data.soft_labels=1"}, true},
		{config.Warmup, []string{"data.soft_labels=1", "trainer.critic_warmup=1"}, true},
		{config.Warmup, []string{"data.soft_labels=1", "trainer.critic_warmup=1", "trainer.warmup_objective=policy"}, false},
		{config.DPO, nil, false},
	} {
		if testing.Short() && c.stage != config.SFT {
			continue
		}
		var metrics []string
		for _, from := range []string{path, fixed.data} {
			run := filepath.Join(dir, fmt.Sprint(len(metrics), c.stage, len(c.more), c.read))
			cfg := settings(c.stage, run, softRun(from, append(c.more, "trainer.total_steps=3",
				"data.train_batch_size=6", "actor.max_token_len=512")...)...)
			finished(t, be, cfg, c.stage)
			files := record(t, run, 3)
			metrics = append(metrics, files["metrics.jsonl"])
			log := filesOf(t, run)["log.jsonl"]
			if said := strings.Contains(log, "soft labels: "); said != (c.read && from == path) {
				t.Errorf("%s %v: the run says that it learns soft labels: %v", c.stage, c.more, said)
			}
		}
		if same := metrics[0] == metrics[1]; same == c.read ||
			strings.Contains(metrics[0], "soft/kl") != c.read || strings.Contains(metrics[1], "soft/") {
			t.Errorf("%s %v: the metrics of rows without the column: %v\n%s", c.stage, c.more, same,
				metrics[0])
		}
	}
}

// A run with soft labels keeps its bits: stopped and killed, on several ranks, from kept rows, with
// adapters, and on chunks of answers.
func TestSoftLabelsKeepTheirBits(t *testing.T) {
	slow(t)
	be := ready(t)
	defer func(n int64) { cacheMin = n }(cacheMin)
	path := softRows(t, be, fixed.student)
	cache := "data.cache_dir=" + filepath.Join(t.TempDir(), "rows")
	for arm, c := range []struct {
		stage config.Stage
		more  []string
	}{
		{config.SFT, []string{"trainer.save_freq=1", "model.path=" + fixed.blank}},
		{config.SFT, append([]string{"trainer.save_freq=1"}, lora...)},
		{config.SFT, []string{"trainer.save_freq=1", "rollout.chunk=8", "rollout.chunks=4"}},
		{config.Warmup, []string{"trainer.save_freq=1", "trainer.critic_warmup=1"}},
	} {
		t.Run(fmt.Sprint(c.stage, " ", strings.Join(c.more[1:], " ")), func(t *testing.T) {
			dir := t.TempDir()
			over := softRun(path, append([]string{"trainer.shards=4", "data.train_batch_size=6",
				"trainer.val_rows=2"}, c.more...)...)
			run := func(name string, more ...string) config.Config {
				return settings(c.stage, filepath.Join(dir, name), append(slices.Clone(over), more...)...)
			}
			cacheMin = 1 << 20
			rows := finished(t, be, run("whole"), c.stage)
			want := record(t, filepath.Join(dir, "whole"), 4)
			if last := rows[len(rows)-1].Values; !(last["soft/token_frac"] > .5) ||
				!(last["soft/kl"] > 0) {
				t.Fatalf("%v", last)
			}
			for way, kill := range []bool{false, true} {
				if !hostile.InTurn(arm, way, 2) {
					continue
				}
				cfg := run(fmt.Sprint("part", kill))
				if err := part(t, cfg, c.stage, 2, kill); err != nil &&
					!errors.Is(err, ErrInterrupted) {
					t.Fatal(err)
				}
				finished(t, be, cfg, c.stage)
				same(t, record(t, cfg.Trainer.Output, 4), want)
			}
			cacheMin = 0
			for _, name := range []string{"cold", "warm"} {
				if !hostile.InTurn(arm, 0, 4) {
					continue
				}
				cfg := run(name, cache)
				finished(t, be, cfg, c.stage)
				same(t, record(t, cfg.Trainer.Output, 4), want)
			}
			for way, ranks := range []int{2, 4} {
				if !hostile.InTurn(arm, way, 4) {
					continue
				}
				cfg := run(fmt.Sprint(ranks), cache)
				for r, err := range together(ranks, cfg, c.stage) {
					if err != nil {
						t.Fatalf("%d ranks, rank %d: %v", ranks, r, err)
					}
				}
				same(t, record(t, cfg.Trainer.Output, 4), want)
			}
		})
	}
}

// What a run with soft labels takes at its peak is what its plan says.
func TestSoftPeakIsThePlan(t *testing.T) {
	t.Parallel()
	slow(t)
	be := ready(t)
	path := softRows(t, be, fixed.student)
	shape := modeltest.Shape // as in peaks
	shape.Vocab, shape.Hidden, shape.FFN, shape.Heads, shape.KVHeads, shape.HeadDim, shape.Layers =
		fixed.tok.Size(), 192, 768, 4, 2, 48, 2
	student := filepath.Join(t.TempDir(), "student")
	m, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(export.WriteFolder(vfs.OS, student, m, fixed.tok, "float32"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
	for _, more := range [][]string{nil, {"data.soft_labels=0"}, {"actor.lora.rank=16"}} {
		be, err := newBackend(2)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { be.Close() })
		_, before := be.Memory()
		cfg := settings(config.SFT, filepath.Join(t.TempDir(), "run"), append(slices.Clone(more),
			"data.train_files="+path, "model.path="+student, "trainer.total_steps=1",
			"actor.max_token_len=90", "critic.max_token_len=90", "data.max_prompt_length=40",
			"data.overlong_prompts=filter")...)
		if _, err := nextOf(opened(t, be, cfg, config.SFT)); err != nil {
			t.Fatal(err)
		}
		_, peak := be.Memory()
		labels := plan.LabelMemory(be, shape, cfg, config.SFT)
		planned := plan.Need(be, shape, cfg, config.SFT, 1) + labels - be.Overhead()
		took := peak - before
		t.Logf("%q: planned %.2f MB, %.2f MB of it for labels, took %.2f MB: %+.1f %%", more,
			float64(planned)/1e6, float64(labels)/1e6, float64(took)/1e6,
			100*(float64(planned)/float64(took)-1))
		if planned < took-took/20 || planned > took+took/20 || (labels > 0) != (len(more) == 0 ||
			more[0] != "data.soft_labels=0") {
			t.Errorf("%q: planned %d bytes, took %d", more, planned, took)
		}
	}
	cfg := settings(config.SFT, filepath.Join(t.TempDir(), "run"), softRun(path)...)
	for from, want := range map[string]bool{path: true, fixed.data: false} {
		cfg.Data.TrainFiles = []string{from}
		p, err := plan.New(nil, be, 0, vfs.OS, cfg, config.SFT)
		if err != nil {
			t.Fatal(err)
		}
		if has := slices.ContainsFunc(p.Memory, func(i plan.Item) bool {
			return i.Name == "soft labels: logits by the chunk" && i.Bytes > 0
		}); has != want {
			t.Errorf("%s: the plan has soft labels: %v", from, has)
		}
	}
}

// perf/tflops has the products with the head that soft labels take: four a trained token, three
// where the head does not learn; and none where there are no labels.
func TestOperationsOfSoftLabels(t *testing.T) {
	slow(t)
	be := ready(t)
	path := softRows(t, be, fixed.student)
	for more, heads := range map[string]float64{"": 4, "actor.lora.rank=4": 3} {
		flops := map[string]float64{}
		var tokens, head float64
		for _, weight := range []string{"0", "1"} {
			tr := opened(t, be, settings(config.SFT, filepath.Join(t.TempDir(), "run"), softRun(path,
				append(strings.Fields(more), "data.soft_labels="+weight)...)...), config.SFT)
			m, err := nextOf(tr)
			if err != nil {
				t.Fatal(err)
			}
			flops[weight] = tr.count(m).flops
			b, err := tr.enc.Batch(tr.train.set, tr.train.step)
			if err != nil {
				t.Fatal(err)
			}
			tokens = 0
			for _, seq := range b.Teachers() {
				tokens += float64(seq.Trained())
			}
			c := tr.actor.Model().Config()
			head = 2 * float64(c.Vocab) * float64(c.Hidden)
		}
		if got, want := flops["1"]-flops["0"], heads*tokens*head; !near(got/want, 1, 1e-9) {
			t.Errorf("%q: %g operations more with labels, want %g", more, got, want)
		}
	}
}

// A teacher with another tokenizer labels what both cut alike.
func TestSoftLabelsOfAnotherTokenizer(t *testing.T) {
	be := ready(t)
	path := softRows(t, be, fixed.student)
	other, err := tokenizer.Load("../testdata/tokenizer/qwen2")
	if err != nil {
		t.Fatal(err)
	}
	set, err := data.Open(path, data.DefaultColumns())
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	labelled, tokens := 0, 0
	for i := range set.Len() {
		ex, err := set.Example(i, encode.NewEncoder(other), data.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		for k, l := range ex.Soft {
			tokens++
			if l.IDs == nil {
				continue
			}
			labelled++
			if l.IDs[0] != ex.Answer[k] && l.LogProbs[0] > data.NoLogProb {
				t.Fatalf("row %d: token %d is %d, its label begins with %d", i, k, ex.Answer[k], l.IDs[0])
			}
			for _, id := range l.IDs {
				if int(id) >= other.Size() || other.Special(id) && id != other.EndOfTurn() {
					t.Fatalf("row %d: token %d: label %v", i, k, l.IDs)
				}
			}
		}
	}
	if labelled == 0 || labelled == tokens {
		t.Errorf("%d of %d tokens have labels", labelled, tokens)
	}
}

// The labels of an answer in chunks are those of the chunks' own tokens.
func TestSoftLabelsInChunks(t *testing.T) {
	be := ready(t)
	path := softRows(t, be, fixed.student)
	tr := opened(t, be, settings(config.SFT, filepath.Join(t.TempDir(), "run"),
		softRun(path, "rollout.chunk=6", "rollout.chunks=6")...), config.SFT)
	b, err := tr.draw(10)
	if err != nil {
		t.Fatal(err)
	}
	learned := tr.form.trainSeqs(b.Teachers())
	soft := tr.stage.(*sft).softLabels(b, learned)
	labels := 0
	for s, seq := range learned {
		ids := seq.TrainedIDs()
		if len(soft.Labels[s]) != len(ids) {
			t.Fatalf("sequence %d has %d tokens, %d labels", s, len(ids), len(soft.Labels[s]))
		}
		for i, l := range soft.Labels[s] {
			if len(l.IDs) == 0 {
				continue
			}
			if labels++; !slices.Contains(l.IDs, ids[i]) {
				t.Errorf("sequence %d: token %d is %d, its label has %v", s, i, ids[i], l.IDs)
			}
		}
	}
	if len(learned) <= len(b) || labels < 40 || soft.Weight != 1 {
		t.Errorf("%d sequences of %d answers, %d labels, weight %g", len(learned), len(b),
			labels, soft.Weight)
	}
}

// A rank whose file has other log-probabilities is found out, though its answers are the same.
func TestRanksWithOtherLabels(t *testing.T) {
	be := ready(t)
	path, other := softRows(t, be, fixed.student), softRows(t, be, fixed.blank)
	run := filepath.Join(t.TempDir(), "run")
	changed := member{opened: func(tr *Trainer) {
		set, err := data.Open(other, data.DefaultColumns())
		if err != nil {
			t.Error(err)
			return
		}
		tr.train.set.Close()
		tr.train.set = set
	}}
	for r, err := range team([]member{{}, changed}, settings(config.SFT, run,
		softRun(path, "trainer.shards=2", "trainer.total_steps=2")...), config.SFT, nil) {
		if !errors.Is(err, config.ErrConfig) || !strings.Contains(err.Error(),
			"trainer: step 1: configuration: ranks: rows of a step: rank 0 on ") {
			t.Errorf("rank %d says %v", r, err)
		}
	}
}
