package actor

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"gad/algos"
	"gad/internal/compute/cpu"
	"gad/internal/safetensors"
	"gad/model"
)

// The gradient of on-policy distillation is PyTorch's, tensor by tensor, whichever the loss, where
// the teacher reads a prompt of its own for some rows and the student's for others
// (scripts/fixtures_prompts.py).
func TestPromptsOfTheTeachersOwn(t *testing.T) {
	const golden = "../testdata/golden/prompts"
	raw, err := os.ReadFile(golden + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Student, Teacher string
		Top              int
		Rows             []struct {
			Prompt        []int32
			TeacherPrompt []int32 `json:"teacher_prompt"`
			Answer        []int32
		}
		Losses map[string]float64
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(golden + ".safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	be, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	spy := &spy{Backend: be, grads: map[string][]float32{}}
	load := func(name string, trained bool) *model.Model {
		m, err := model.Load(spy, filepath.Join("../testdata/model", name),
			model.Options{Kind: model.LM, Trainable: trained})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	teacher := load(want.Teacher, false)
	defer teacher.Close()
	for _, c := range []struct {
		loss   string
		target Target
		tokens int // of a pack
	}{{"policy", Target{}, 512}, {"exact", Target{Beta: 1}, 512}, {"exact", Target{Beta: 1}, 16},
		{"topk", Target{Top: want.Top}, 512}} {
		cfg, roll := DefaultConfig(), DefaultRollout()
		cfg.UseKLLoss, cfg.GradClip, cfg.PPOMiniBatch, roll.Temperature = false, 0, 3, 1
		cfg.PolicyLoss.LossMode, cfg.LossAggMode, cfg.MaxTokenLen = "vanilla", "token-mean", c.tokens
		if c.loss != "policy" {
			cfg.UseKLLoss, cfg.KLLossCoef, cfg.KLLossType = true, 1, algos.KLFull
		}
		student := load(want.Student, true)
		a, err := New(student, cfg, roll, 1, 8)
		if err != nil {
			t.Fatal(err)
		}
		c.target.Policy = teacher
		a.SetTarget(c.target)
		var r Rollout
		var reads []model.Seq
		for i, row := range want.Rows {
			seq := func(prompt []int32) model.Seq {
				return model.Answer(append(append([]int32{}, prompt...), row.Answer...), len(prompt))
			}
			s := &Sequence{Seq: seq(row.Prompt), Group: i / 2, Answer: i,
				Adv: make([]float64, len(row.Answer))}
			if row.TeacherPrompt != nil {
				s.Read = seq(row.TeacherPrompt)
				reads = append(reads, s.Read)
			} else {
				reads = append(reads, s.Seq)
			}
			r = append(r, s)
		}
		if err := a.RecomputeOld(r); err != nil {
			t.Fatal(err)
		}
		if c.loss == "policy" {
			teacherST, _, err := teacher.AllLogProbs(reads, 1, 512)
			if err != nil {
				t.Fatal(err)
			}
			var ownST [][]float32
			for _, s := range r {
				ownST = append(ownST, s.Old)
			}
			advST, _, err := algos.DistillAdvantages(teacherST, ownST)
			if err != nil {
				t.Fatal(err)
			}
			r.SetAdv(advST)
		}
		st, err := a.Update(r)
		if err != nil || st.Updates != 1 {
			t.Fatal(st.Updates, err)
		}
		if got := st.KLLoss; c.loss != "policy" && math.Abs(got-want.Losses[c.loss]) > 1e-5 {
			t.Errorf("%s: loss %g, PyTorch has %g", c.loss, got, want.Losses[c.loss])
		}
		for name, got := range spy.grads {
			x, ok := f.Tensor(c.loss + "/" + name)
			if !ok {
				t.Fatalf("%s: no gradient of %s", c.loss, name)
			}
			is := make([]float32, len(got))
			if err := x.Float32(is); err != nil {
				t.Fatal(err)
			}
			var diff, norm float64
			for i, g := range got {
				d := float64(g) - float64(is[i])
				diff, norm = diff+d*d, norm+float64(is[i])*float64(is[i])
			}
			if rel := math.Sqrt(diff) / (math.Sqrt(norm) + 1e-3); !(rel < 1e-4) || norm == 0 {
				t.Errorf("%s: gradient of %s: off by %.3g of its norm %.3g", c.loss, name, rel,
					math.Sqrt(norm))
			}
		}
		if len(spy.grads) != len(student.Params()) {
			t.Errorf("%d gradients", len(spy.grads))
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}
