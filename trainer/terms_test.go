package trainer

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"gad/internal/textmetrics"
	"gad/trainer/config"
)

// Terms by hand from the scores, the checker's and the texts of a round that was played: each with
// its weight, z and share of answers, its metric, and the length outside of the clip.
func TestTerms(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
		"trainer.total_steps=1", "algorithm.score_clip=3", "algorithm.right_at=3",
		"algorithm.terms=2*d - 0.5*z(check) + 0.3*rouge_l@wrong - 0.25*length",
		"trainer.checker="+byLength, "algorithm.truncated_reward=score"), config.Train)
	m := Metrics{}
	r := scored(t, tr, m)
	lenA, _ := r.mask()
	got := tr.rewards(m, r)
	z := zWithin(r.checkA, r.group)
	var wrong, rouge, d, length float64
	for a, seq := range r.roll.Seqs {
		d, length = d+float64(r.scoreA[a])/16, length+math.Log(1+float64(lenA[a]))/16
		want := 2*float64(r.scoreA[a]) - 0.5*z[a]
		if r.checkA[a] < 3 {
			x := textmetrics.RougeL(tr.tok.Decode(seq.Response(), true),
				r.batch.TeacherText[r.group[a]])
			want += 0.3 * x
			wrong, rouge = wrong+1, rouge+x
		}
		want = min(max(want, -3), 3) - 0.25*math.Log(1+float64(lenA[a]))
		if math.Abs(got[a]-want) > 1e-6 {
			t.Errorf("answer %d: reward %g, want %g", a, got[a], want)
		}
	}
	if wrong == 0 || wrong == 16 || rouge == 0 {
		t.Fatalf("%g of 16 answers are wrong, with ROUGE-L %g in all: nothing is tested", wrong,
			rouge)
	}
	check, _, _ := moments(r.checkA)
	for name, want := range map[string]float64{"term_d": d, "term_check": check,
		"term_rouge_l": rouge / wrong, "term_length": length, "wrong_frac": wrong / 16,
		"check_mean": check} {
		if x, ok := m["reward/"+name]; !ok || math.Abs(x-want) > 1e-6 {
			t.Errorf("reward/%s is %g (%v), want %g", name, x, ok, want)
		}
	}
}

// A run by a short form and one by the terms that it stands for have the same bits, and stopped
// runs go on with them.
func TestShortFormsAreTerms(t *testing.T) {
	slow(t)
	be := ready(t)
	run := func(more ...string) map[string]string {
		dir := filepath.Join(t.TempDir(), "run")
		cfg := settings(config.Train, dir, append(more, "trainer.total_steps=3",
			"trainer.save_freq=1")...)
		for range 2 {
			if err := part(t, cfg, config.Train, 1, false); !errors.Is(err, ErrInterrupted) {
				t.Fatal(err)
			}
		}
		finished(t, be, cfg, config.Train)
		files := record(t, dir, 3)
		for name := range files {
			if name != "metrics.jsonl" && filepath.Base(name) != "model.safetensors" {
				delete(files, name) // the state names the settings
			}
		}
		delete(files, "metrics.jsonl") // has the terms
		return files
	}
	checker := "trainer.checker=" + byLength
	for short, terms := range map[string]string{
		"algorithm.checker_weight=0.25 algorithm.length_coef=0.1": "0.75*z(d)+0.25*z(check)-0.1*length",
		"algorithm.checker_weight=0 algorithm.length_coef=-0.1":   "d+0.1*length",
	} {
		with, of := []string{}, []string{"algorithm.terms=" + terms}
		var weight, length float64
		if _, err := fmt.Sscanf(short, "algorithm.checker_weight=%g algorithm.length_coef=%g",
			&weight, &length); err != nil {
			t.Fatal(err)
		}
		with = append(with, fmt.Sprint("algorithm.checker_weight=", weight),
			fmt.Sprint("algorithm.length_coef=", length))
		if weight > 0 {
			with, of = append(with, checker), append(of, checker)
		}
		a, b := run(with...), run(of...)
		if len(a) == 0 {
			t.Fatal("no weights are compared")
		}
		for name := range a {
			if a[name] != b[name] {
				t.Errorf("%s and %s: %s differs", short, terms, name)
			}
		}
	}
	if slices.Equal([]string{run()["global_step_3/actor/model.safetensors"]},
		[]string{run("algorithm.terms=d+length")["global_step_3/actor/model.safetensors"]}) {
		t.Error("a term of the length changes nothing")
	}
}

// Below trainer.skip_update_below the student takes no step and nothing asks for its reference,
// while the discriminator learns; the share is counted by hand.
func TestSkipUpdateBelow(t *testing.T) {
	be := ready(t)
	for _, least := range []float64{0, 1e-9, 1} {
		tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
			"trainer.total_steps=9", "actor.optim.lr=1e-3",
			fmt.Sprint("trainer.skip_update_below=", least)), config.Train)
		steps, judged := tr.actor.Optimizer().Steps(), tr.critic.Optimizer().Steps()
		var m Metrics
		for { // until an answer is cut, so that the share is below 1
			var err error
			if m, err = tr.next(); err != nil {
				t.Fatal(err)
			}
			if m["rollout/truncated_frac"] > 0 || least == 0 {
				break
			}
			if tr.step++; tr.step == 8 {
				t.Fatal("no answer was ever cut")
			}
			steps, judged = tr.actor.Optimizer().Steps(), tr.critic.Optimizer().Steps()
		}
		good, counted := m["rollout/well_formed_frac"]
		left, says := m["actor/malformed_steps"]
		if counted != (least > 0) || says != counted || left != indicator(least == 1) {
			t.Errorf("threshold %g: metrics %g (%v), %g (%v)", least, good, counted, left, says)
		}
		if counted && (good > 1-m["rollout/truncated_frac"]+1e-12 || !(good >= 0)) {
			t.Errorf("threshold %g: %g are well-formed and %g cut", least, good,
				m["rollout/truncated_frac"])
		}
		_, asked := m["timing_s/ref_logp"]
		if moved := tr.actor.Optimizer().Steps() > steps; moved != (least < 1) || asked != moved {
			t.Errorf("threshold %g: the student learned: %v, the reference was asked: %v", least,
				moved, asked)
		}
		if tr.critic.Optimizer().Steps() == judged {
			t.Errorf("threshold %g: the discriminator did not learn", least)
		}
	}
}
