package actor

import (
	"math"
	"slices"
	"testing"

	"gad/model"
)

// The sequences of a step may have several teachers, networks and labels: the gradient is that of
// each teacher's sequences alone, weighted by their tokens, in whichever order they stand.
func TestSeveralTeachers(t *testing.T) {
	for name, target := range map[string]Target{"exact": {Beta: 0.5}, "topk": {Top: 3}} {
		grads := func(pick func(answer int) bool) (g map[string][]float32, tokens float64) {
			a, spy := student(t, func(c *Config) {
				c.UseKLLoss, c.KLLossCoef, c.KLLossType, c.LossAggMode, c.PPOMiniBatch =
					true, 1, "full", "token-mean", 0
				c.PolicyLoss.LossMode, c.MaxTokenLen = "vanilla", 40
			})
			var teachers []*model.Model
			for seed := range uint64(2) {
				m, err := model.New(spy, tiny, model.Options{Kind: model.LM, Seed: 10 + seed})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { m.Close() })
				teachers = append(teachers, m)
			}
			a.SetTarget(target)
			var r Rollout
			for i, s := range rolled(t, a) {
				s.Adv = make([]float64, s.Seq.Trained())
				switch k := i % 3; {
				case k < 2 || target.Top == 0:
					s.Teacher = teachers[k%2]
				default: // of a server
					for range s.Seq.Trained() {
						label, err := model.NewSoftLabel([]int32{3, 9}, []float64{-0.5, -1.5})
						if err != nil {
							t.Fatal(err)
						}
						s.Labels = append(s.Labels, label)
					}
				}
				if pick(i) {
					r = append(r, s)
					tokens += float64(s.Seq.Trained())
				}
			}
			for i, s := range r {
				s.Group, s.Answer = 0, i // one update
			}
			if st, err := a.Update(r); err != nil || st.Updates != 1 {
				t.Fatal(st.Updates, err)
			}
			return spy.grads, tokens
		}
		all, n := grads(func(int) bool { return true })
		sum := map[string][]float64{}
		for k := range 3 {
			part, tokens := grads(func(i int) bool { return i%3 == k })
			for name, g := range part {
				if sum[name] == nil {
					sum[name] = make([]float64, len(g))
				}
				for i, x := range g {
					sum[name][i] += float64(x) * tokens / n
				}
			}
		}
		for p, g := range all {
			var diff, norm float64
			for i, x := range g {
				d := float64(x) - sum[p][i]
				diff, norm = diff+d*d, norm+sum[p][i]*sum[p][i]
			}
			if !(diff <= 1e-10*norm) || norm == 0 {
				t.Errorf("%s: gradient of %s: off by %.3g of its norm %.3g", name, p,
					math.Sqrt(diff), math.Sqrt(norm))
			}
		}
	}
}

// A pack has the sequences of one teacher, and one teacher's packs are those of no choice.
func TestPacksOfTeachers(t *testing.T) {
	a, b := new(model.Model), new(model.Model)
	var r Rollout
	for i, teacher := range []*model.Model{a, b, a, nil, a, b} {
		r = append(r, &Sequence{Seq: model.Answer(make([]int32, 4), 2), Answer: i, Teacher: teacher})
	}
	var got [][]int
	for _, pack := range r.packs(9) {
		var at []int
		for _, s := range pack {
			if s.Teacher != pack[0].Teacher {
				t.Errorf("a pack of two teachers")
			}
			at = append(at, s.Answer)
		}
		got = append(got, at)
	}
	want := [][]int{{0, 2, 4}, {1, 5}, {3}} // equal prompts pass as one
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("packs %v, want %v", got, want)
	}
}
