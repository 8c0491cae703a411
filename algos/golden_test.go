package algos

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// goldenCase is one entry of testdata/golden: what verl's own functions gave
// under PyTorch autograd in float64 (see the README there).
type goldenCase struct {
	Kind, Name, Agg string

	// advantage
	Rewards      []float64
	Index        []int
	Advantages   [][]float64
	TokenRewards [][]float64 `json:"token_rewards"`

	// policy_loss, kl
	ClipLow  float64 `json:"clip_low"`
	ClipHigh float64 `json:"clip_high"`
	ClipC    float64 `json:"clip_c"`
	TauPos   float64 `json:"tau_pos"`
	TauNeg   float64 `json:"tau_neg"`
	Old      [][]float64
	Logp     [][]float64
	Ref      [][]float64
	Adv      [][]float64
	Mask     [][]float64
	Value    [][]float64
	Loss     *float64
	Grad     [][]float64
	Metrics  map[string]float64

	// discriminator
	Teacher, Student []float64
	Acc              *float64
	GradTeacher      []float64 `json:"grad_teacher"`
	GradStudent      []float64 `json:"grad_student"`

	// adaptive_kl
	Init, Target, Horizon float64
	NSteps                int `json:"n_steps"`
	Sequence              [][]float64
}

// tolerance: |got-want| <= max(rel*|want|, abs).
type tolerance struct{ rel, abs float64 }

var (
	golden64 = tolerance{1e-9, 1e-12}
	// golden32 is what the float32 path promises: rounding the log-probabilities
	// (of size 10) to float32 moves a ratio by 1e-6 of itself.
	golden32 = tolerance{2e-5, 2e-6}
)

func (tol tolerance) ok(got, want float64) bool {
	return math.Abs(got-want) <= max(tol.rel*math.Abs(want), tol.abs) // false for NaN
}

// differ reports the first place where two arrays differ, or a length that does.
func (tol tolerance) differ(what string, got, want []float64) error {
	if len(got) != len(want) || len(want) == 0 {
		return fmt.Errorf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range want {
		if !tol.ok(got[i], want[i]) {
			return fmt.Errorf("%s[%d] = %.17g, want %.17g (off by %.3g)", what, i, got[i], want[i],
				got[i]-want[i])
		}
	}
	return nil
}

func flat(x [][]float64) (y []float64) {
	for _, row := range x {
		y = append(y, row...)
	}
	return y
}

func as[F Float](x []float64) []F {
	y := make([]F, len(x))
	for i, v := range x {
		y[i] = F(v)
	}
	return y
}

func wide[F Float](x []F) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// goldenFiles are the public file and, where GAD_GOLDEN names a folder, every
// .json file in it.
func goldenFiles(t *testing.T) []string {
	files := []string{filepath.Join("..", "testdata", "golden", "verl_public.json")}
	if dir := os.Getenv("GAD_GOLDEN"); dir != "" {
		more, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if err != nil || len(more) == 0 {
			t.Fatalf("GAD_GOLDEN=%q: no .json files (%v)", dir, err)
		}
		files = append(files, more...)
	}
	return files
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for i, file := range goldenFiles(t) {
		own := i == 0
		t.Run(filepath.Base(file), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var cases []goldenCase
			if err := json.Unmarshal(raw, &cases); err != nil {
				t.Fatal(err)
			}
			if len(cases) == 0 {
				t.Fatal("no cases")
			}
			count := map[string]int{}
			for i, c := range cases {
				check, known := goldenKinds[c.Kind]
				if !known {
					t.Errorf("case %d: unknown kind %q: known are %v", i, c.Kind,
						names(goldenKinds))
					continue
				}
				if err := check(c); err != nil {
					t.Errorf("case %d: %s %s %s: %v", i, c.Kind, c.Name, c.Agg, err)
					continue
				}
				count[c.Kind]++
				if check32 := goldenKinds32[c.Kind]; own && check32 != nil {
					if err := check32(c); err != nil {
						t.Errorf("case %d: %s %s %s in float32: %v", i, c.Kind, c.Name, c.Agg, err)
						continue
					}
					count[c.Kind+" (float32)"]++
				}
			}
			if own && len(cases) != 294 {
				t.Errorf("%d cases, the file had 294", len(cases))
			}
			for _, kind := range names(count) {
				t.Logf("%-24s %d cases matched", kind, count[kind])
			}
		})
	}
}

var goldenKinds = map[string]func(goldenCase) error{
	"advantage":     goldenAdvantage,
	"policy_loss":   func(c goldenCase) error { return goldenPolicy[float64](c, golden64) },
	"kl":            func(c goldenCase) error { return goldenKL[float64](c, golden64) },
	"discriminator": func(c goldenCase) error { return goldenDiscriminator[float64](c, golden64) },
	"adaptive_kl":   goldenAdaptiveKL,
}

// goldenKinds32 is the float32 path. It runs on the project's own file, whose
// ratios keep away from the clip bounds by more than a float32 can blur.
var goldenKinds32 = map[string]func(goldenCase) error{
	"policy_loss":   func(c goldenCase) error { return goldenPolicy[float32](c, golden32) },
	"kl":            func(c goldenCase) error { return goldenKL[float32](c, golden32) },
	"discriminator": func(c goldenCase) error { return goldenDiscriminator[float32](c, golden32) },
}

func goldenAdvantage(c goldenCase) error {
	adv, err := Advantages(AdvantageConfig{Name: c.Name}, AdvantageInput{
		Scores: c.Rewards, Group: c.Index, Mask: c.Mask, TokenRewards: c.TokenRewards,
	})
	if err != nil {
		return err
	}
	return golden64.differ("advantages", flat(adv), flat(c.Advantages))
}

// goldenBatch is the batch and its totals: the whole mini-batch at once.
func goldenBatch[F Float](c goldenCase) (PolicyBatch[F], Norm, error) {
	B := len(c.Mask)
	if B == 0 || c.Loss == nil {
		return PolicyBatch[F]{}, Norm{}, errors.New("no rows or no loss")
	}
	T := len(c.Mask[0])
	b := PolicyBatch[F]{B: B, T: T, Logp: as[F](flat(c.Logp)), Old: as[F](flat(c.Old)),
		Ref: as[F](flat(c.Ref)), Adv: as[F](flat(c.Adv)), Mask: as[F](flat(c.Mask))}
	n := NormOf(B, T, b.Mask)
	n.FixedLen = float64(T)
	return b, n, nil
}

func goldenPolicy[F Float](c goldenCase, tol tolerance) error {
	b, n, err := goldenBatch[F](c)
	if err != nil {
		return err
	}
	p, err := NewPolicy[F](PolicyConfig{Loss: c.Name, Agg: c.Agg, ClipLow: c.ClipLow,
		ClipHigh: c.ClipHigh, ClipC: c.ClipC, TauPos: c.TauPos, TauNeg: c.TauNeg})
	if err != nil {
		return err
	}
	defer p.Close()
	r, err := p.Step(b, n)
	if err != nil {
		return err
	}
	errs := []error{tol.differ("loss", []float64{r.Loss}, []float64{*c.Loss}),
		tol.differ("grad", wide(r.DLogp), flat(c.Grad))}
	for name, want := range c.Metrics {
		var got float64
		switch name {
		case "actor/pg_clipfrac":
			got = r.ClipFrac()
		case "actor/ppo_kl":
			got = r.PPOKL()
		case "actor/pg_clipfrac_lower":
			got = r.ClipLowerSum / (r.TokenSum + 1e-8)
		default:
			errs = append(errs, fmt.Errorf("unknown metric %q", name))
			continue
		}
		errs = append(errs, tol.differ(name, []float64{got}, []float64{want}))
	}
	return errors.Join(errs...)
}

// goldenKL runs the KL term alone: a policy loss of advantage 0 with beta 1.
func goldenKL[F Float](c goldenCase, tol tolerance) error {
	b, n, err := goldenBatch[F](c)
	if err != nil {
		return err
	}
	b.Adv = make([]F, len(b.Logp))
	p, err := NewPolicy[F](PolicyConfig{Loss: "gpg", Agg: c.Agg, KLCoef: 1, KLType: c.Name})
	if err != nil {
		return err
	}
	defer p.Close()
	r, err := p.Step(b, n)
	if err != nil {
		return err
	}
	value, err := KLPenalty(c.Name, flat(c.Logp), flat(c.Ref))
	return errors.Join(err,
		golden64.differ("value", value, flat(c.Value)),
		tol.differ("loss", []float64{r.Loss, r.KLLoss}, []float64{*c.Loss, *c.Loss}),
		tol.differ("grad", wide(r.DLogp), flat(c.Grad)))
}

func goldenDiscriminator[F Float](c goldenCase, tol tolerance) error {
	if c.Loss == nil || c.Acc == nil {
		return errors.New("no loss or no accuracy")
	}
	d, err := NewDiscriminator[F](DiscConfig{})
	if err != nil {
		return err
	}
	defer d.Close()
	r, err := d.Step(as[F](c.Student), as[F](c.Teacher), nil, nil)
	return errors.Join(err,
		tol.differ("loss and accuracy", []float64{r.Loss, r.Acc}, []float64{*c.Loss, *c.Acc}),
		tol.differ("grad_student", wide(r.DStudent), c.GradStudent),
		tol.differ("grad_teacher", wide(r.DTeacher), c.GradTeacher))
}

func goldenAdaptiveKL(c goldenCase) error {
	a := AdaptiveKL{Coef: c.Init, Target: c.Target, Horizon: c.Horizon}
	if len(c.Sequence) == 0 {
		return errors.New("empty sequence")
	}
	for i, s := range c.Sequence {
		// Saving and restoring between updates must not show.
		raw, err := json.Marshal(a)
		if err != nil {
			return err
		}
		a = AdaptiveKL{}
		if err := json.Unmarshal(raw, &a); err != nil {
			return err
		}
		if err := golden64.differ(fmt.Sprintf("coefficient %d", i),
			[]float64{a.Update(s[0], c.NSteps)}, s[1:]); err != nil {
			return err
		}
	}
	return nil
}
