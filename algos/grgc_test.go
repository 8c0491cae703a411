package algos

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// grgcCase is one case of testdata/golden/grgc.json: GRGC's terms (arXiv 2609.39757)
// under PyTorch autograd in float64, by scripts/fixtures_grgc.py.
type grgcCase struct {
	Kind, Name string

	// discriminator: Bradley-Terry over all pairs and lam times the group term
	Lam              float64
	Student, Teacher []float64
	Group            []int
	Loss, BT         float64
	GroupTerm        float64   `json:"group_term"`
	GradStudent      []float64 `json:"grad_student"`
	GradTeacher      []float64 `json:"grad_teacher"`

	// power_advantage: scores raised within their group, then grpo
	Gamma      float64
	Scores     []float64
	Shaped     []float64
	Advantages []float64
}

// The two scalar changes of GRGC, loss, gradients and advantages, to 1e-9.
func TestGoldenGRGC(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "golden", "grgc.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []grgcCase }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	near := func(name string, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= max(golden64.rel*math.Abs(want), golden64.abs)) {
			t.Errorf("%s is %.15g, want %.15g", name, got, want)
		}
	}
	seen := map[string]int{}
	for _, c := range file.Cases {
		seen[c.Kind]++
		t.Run(c.Kind+" "+c.Name, func(t *testing.T) {
			if c.Kind == "discriminator" {
				d, err := NewDiscriminator[float64](DiscConfig{})
				if err != nil {
					t.Fatal(err)
				}
				g := &GroupSpread[float64]{}
				bt, err := d.Step(c.Student, c.Teacher, c.Group, nil)
				if err != nil {
					t.Fatal(err)
				}
				term, dStudent, err := g.Step(c.Student, c.Group, c.Lam)
				if err != nil {
					t.Fatal(err)
				}
				near("bt", bt.Loss, c.BT)
				near("group term", term, c.GroupTerm)
				near("loss", bt.Loss+c.Lam*term, c.Loss)
				for s, want := range c.GradStudent {
					near("d loss/d student", bt.DStudent[s]+dStudent[s], want)
				}
				for p, want := range c.GradTeacher {
					near("d loss/d teacher", bt.DTeacher[p], want)
				}
				return
			}
			in := AdvantageInput{Scores: c.Scores, Group: c.Group}
			for range c.Scores {
				in.Mask = append(in.Mask, []float64{1})
			}
			shaped, err := power(c.Gamma, in, groupRows(c.Group))
			if err != nil {
				t.Fatal(err)
			}
			for s, want := range c.Shaped {
				near("shaped score", shaped[s], want)
			}
			cfg := AdvantageConfig{Power: c.Gamma}
			if c.Gamma == 1 { // here it is grpo and nothing else; the file has its z-score twice
				in.Scores, cfg.Power = shaped, 0
			}
			advST, err := Advantages(cfg, in)
			if err != nil {
				t.Fatal(err)
			}
			for s, want := range c.Advantages {
				near("advantage", advST[s][0], want)
			}
		})
	}
	if seen["discriminator"] < 10 || len(seen) != 2 {
		t.Errorf("cases %v: want both kinds", seen)
	}
}
