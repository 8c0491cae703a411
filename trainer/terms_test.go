package trainer

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/report"
	"gad/internal/textmetrics"
	"gad/model"
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
	v := listsOf(r)
	lenA, _ := r.mask()
	got := gameOf(tr).rewards(m, r)
	z := zWithin(v.checkA, v.group)
	var wrong, rouge, d, length float64
	for a, seq := range v.seqs {
		d, length = d+float64(v.scoreA[a])/16, length+math.Log(1+float64(lenA[a]))/16
		want := 2*float64(v.scoreA[a]) - 0.5*z[a]
		if v.checkA[a] < 3 {
			x := textmetrics.RougeL(tr.tok.Decode(seq.Response(), true),
				v.batch[v.group[a]].TeacherText)
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
	check, _ := report.Moments(v.checkA)
	for name, want := range map[string]float64{"term_d": d, "term_check": check,
		"term_rouge_l": rouge / wrong, "term_length": length, "wrong_frac": wrong / 16,
		"check_mean": check} {
		if x, ok := m["reward/"+name]; !ok || math.Abs(x-want) > 1e-6 {
			t.Errorf("reward/%s is %g (%v), want %g", name, x, ok, want)
		}
	}
}

// The teacher's answer behind each student's own thought, against one pass over each sequence that
// is put together by hand: thoughts that end, that do not, that are too long, and a teacher
// without.
func TestTeacherBehindThoughts(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.Train, filepath.Join(t.TempDir(), "run"),
		"trainer.total_steps=1", "data.max_response_length=40",
		"algorithm.terms=0*d + teacher_logp"), config.Train)
	m := Metrics{}
	r, err := gameOf(tr).play(m)
	if err != nil {
		t.Fatal(err)
	}
	v := listsOf(r)
	if !slices.Equal(v.thoughtA, make([]float64, 16)) {
		t.Errorf("without thoughts: %v", v.thoughtA)
	}
	if _, passed := m["timing_s/thought_logp"]; passed {
		t.Error("a pass without a thought")
	}

	encode, end := tr.tok.Encode, tr.tok.EOS()[0]
	long := strings.Repeat("xyz ", 10)
	thoughts := [][2]string{ // an answer, and what of it is its thought
		{"ab</think>ba", "ab</think>"}, {"b</think>a</think>b", "b</think>"}, {"no end", "no end"},
		{long + "</think>", long + "</think>"}}
	const teacherSays = "it is c"
	want, seqs := make([]float64, 16), make([]model.Seq, 16)
	for p := range 4 {
		group := r.groups[p]
		prompt, say := group.Prompt, "a a</think>"+teacherSays
		if p == 3 {
			say = teacherSays
		}
		group.Teacher = model.Answer(slices.Concat(prompt, encode(say), []int32{end}),
			len(prompt))
		if p == 0 && tr.thoughtLen(encode(say)) != len(encode("a a</think>")) {
			t.Fatal("the marker is not a token's end: choose other texts")
		}
		for i, text := range thoughts {
			a := 4*p + i
			group.answers[i].ids = append(encode(text[0]), end)
			if p == 3 {
				continue
			}
			answer, thought := append(encode(teacherSays), end), encode(text[1])
			if over := len(thought) + len(answer) - 40; over > 0 {
				thought = thought[over:]
			} else if i == 3 {
				t.Fatal("no thought is too long")
			}
			seqs[a] = model.Answer(slices.Concat(prompt, thought, answer), len(prompt)+len(thought))
			logp, _, err := tr.actor.Model().LogProbs(seqs[a:a+1], 1)
			if err != nil {
				t.Fatal(err)
			}
			want[a], _ = report.Moments(float64s(logp[0]))
		}
	}
	if err := gameOf(tr).thoughtTerm(m, r); err != nil {
		t.Fatal(err)
	}
	v = listsOf(r)
	for a := range want {
		if !slices.Equal(v.behindA[a].IDs, seqs[a].IDs) || math.Abs(v.thoughtA[a]-want[a]) > 1e-6 {
			t.Errorf("answer %d: %d tokens, %g; want %d, %g", a, len(v.behindA[a].IDs),
				v.thoughtA[a], len(seqs[a].IDs), want[a])
		}
	}
	if want[0] == want[1] || want[0] == want[2] || want[0] == 0 {
		t.Fatalf("%v: nothing is tested", want)
	}
	if err := gameOf(tr).scoreRound(m, r); err != nil {
		t.Fatal(err)
	}
	for a, x := range gameOf(tr).rewards(m, r) {
		if math.Abs(x-want[a]) > 1e-6 {
			t.Errorf("answer %d: reward %g, want %g", a, x, want[a])
		}
	}
}

// A run by a short form and one by the terms that it stands for have the same bits, and stopped
// runs go on with them.
func TestShortFormsAreTerms(t *testing.T) {
	t.Parallel()
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
