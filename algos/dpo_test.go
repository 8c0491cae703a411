package algos

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func newDPO[F Float](t testing.TB, c DPOConfig) *DPO[F] {
	t.Helper()
	d, err := NewDPO[F](c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// dpoCase is one entry of testdata/golden/dpo.json: what TRL's DPOTrainer gave.
type dpoCase struct {
	Name           string
	LossType       string  `json:"loss_type"`
	Beta           float64 `json:"beta"`
	LabelSmoothing float64 `json:"label_smoothing"`
	Tau            float64
	Chosen         []float64
	Rejected       []float64
	RefChosen      []float64 `json:"ref_chosen"`
	RefRejected    []float64 `json:"ref_rejected"`
	LenChosen      []int     `json:"len_chosen"`
	LenRejected    []int     `json:"len_rejected"`
	Loss           float64
	GradChosen     []float64 `json:"grad_chosen"`
	GradRejected   []float64 `json:"grad_rejected"`
	RewardsC       float64   `json:"rewards_chosen"`
	RewardsR       float64   `json:"rewards_rejected"`
	Accuracy       float64
	Margin         float64
}

func (c dpoCase) config() DPOConfig {
	return DPOConfig{Loss: c.LossType, Beta: c.Beta, LabelSmoothing: c.LabelSmoothing, Tau: c.Tau}
}

func (c dpoCase) batch() DPOBatch[float64] {
	return DPOBatch[float64]{c.Chosen, c.Rejected, c.RefChosen, c.RefRejected, c.LenChosen,
		c.LenRejected}
}

func goldenDPO(t testing.TB) []dpoCase {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "golden", "dpo.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Library, Version string
		Cases            []dpoCase
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if file.Library != "trl" || len(file.Cases) != 105 {
		t.Fatalf("%d cases of %q, the file had 105 of trl", len(file.Cases), file.Library)
	}
	return file.Cases
}

// Every loss, its gradients and the rewards' figures are TRL's.
func TestDPOAgainstTRL(t *testing.T) {
	count := map[string]int{}
	for i, c := range goldenDPO(t) {
		d, err := NewDPO[float64](c.config())
		if err != nil {
			t.Fatal(err)
		}
		r, err := d.Step(c.batch())
		d.Close()
		err = errors.Join(err,
			golden64.differ("loss", []float64{r.Loss}, []float64{c.Loss}),
			golden64.differ("d chosen", r.DChosen, c.GradChosen),
			golden64.differ("d rejected", r.DRejected, c.GradRejected),
			golden64.differ("rewards and margin",
				[]float64{r.ChosenReward, r.RejectedReward, r.Margin},
				[]float64{c.RewardsC, c.RewardsR, c.Margin}),
			tolerance{1e-6, 0}.differ("accuracy", []float64{r.Acc}, []float64{c.Accuracy})) // float32 there
		if err != nil {
			t.Errorf("case %d: %s, %s: %v", i, c.LossType, c.Name, err)
			continue
		}
		count[c.LossType]++
	}
	for _, name := range DPOLossNames() {
		t.Logf("%-14s %d cases matched", name, count[name])
		if count[name] < 6 {
			t.Errorf("%s: only %d cases", name, count[name])
		}
	}
}

// Every loss against central differences of its own value, in each log-probability, and
// cDPO, which TRL no longer has, against its formula too.
func TestDPOAgainstDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const n = 5
	draw := func() []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = -20 + 4*r.NormFloat64()
		}
		return x
	}
	b := DPOBatch[float64]{draw(), draw(), draw(), draw(), []int{3, 9, 1, 4, 12},
		[]int{5, 2, 8, 1, 30}}
	for _, c := range append(func() (all []DPOConfig) {
		for _, name := range DPOLossNames() {
			all = append(all, DPOConfig{Loss: name, Beta: .3, Tau: .5})
		}
		return all
	}(), DPOConfig{Beta: .3, LabelSmoothing: .2}, DPOConfig{Loss: "robust", LabelSmoothing: .2}) {
		d := newDPO[float64](t, c)
		whole, err := d.Step(b)
		if err != nil {
			t.Fatal(err)
		}
		if c.Loss == "" {
			var want float64
			for i := range n {
				z := c.Beta * ((b.Chosen[i] - b.RefChosen[i]) - (b.Rejected[i] - b.RefRejected[i]))
				want += (.8*math.Log1p(math.Exp(-z)) + .2*math.Log1p(math.Exp(z))) / n
			}
			near(t, "cDPO", golden64, []float64{whole.Loss}, []float64{want})
		}
		loss := func() float64 {
			got, err := d.Step(b)
			if err != nil {
				t.Fatal(err)
			}
			return got.Loss
		}
		for _, side := range []struct{ x, grad []float64 }{{b.Chosen, whole.DChosen},
			{b.Rejected, whole.DRejected}} {
			for i, x := range side.x {
				const h = 1e-5
				side.x[i] = x + h
				up := loss()
				side.x[i] = x - h
				want := (up - loss()) / (2 * h)
				side.x[i] = x
				if math.Abs(side.grad[i]-want) > 1e-9*(1+math.Abs(whole.Loss)) {
					t.Errorf("%+v: log-probability %d: gradient %g, differences %g", c, i,
						side.grad[i], want)
				}
			}
		}
	}
}

// While the policy is the reference DPO's loss is ln 2 and each pair is pushed apart by
// beta/2n; the accuracy is strict, so it is 0.
func TestDPOAtTheReference(t *testing.T) {
	d := newDPO[float64](t, DPOConfig{})
	x, y := []float64{-700.25, -3, -41.5}, []float64{-12, -800.75, -40}
	r, err := d.Step(DPOBatch[float64]{Chosen: x, Rejected: y, RefChosen: x, RefRejected: y})
	if err != nil {
		t.Fatal(err)
	}
	if want := (DPOStats{Loss: math.Ln2, Pairs: 3}); math.Abs(r.Loss-math.Ln2) > 1e-15 ||
		r.Acc != 0 || r.Margin != 0 || r.Pairs != 3 {
		t.Errorf("%+v, want %+v", r.DPOStats, want)
	}
	const push = .1 / 2 / 3
	near(t, "gradient", golden64, append(slices.Clone(r.DChosen), r.DRejected...),
		[]float64{-push, -push, -push, push, push, push})
}

// Far from the reference nothing overflows, on either side.
func TestDPOFarFromTheReference(t *testing.T) {
	zero := []float64{0, 0}
	for _, name := range DPOLossNames() {
		d := newDPO[float64](t, DPOConfig{Loss: name, Beta: 1})
		r, err := d.Step(DPOBatch[float64]{[]float64{-2000, -1}, []float64{-1, -2000}, zero, zero,
			[]int{1, 1}, []int{1, 1}})
		if err != nil || r.Loss == 0 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// Pairs may come in any order, the figures of two mini-batches add up, and float32 is
// the same objective.
func TestDPOPairsAndSums(t *testing.T) {
	for _, c := range goldenDPO(t) {
		if c.Name != "far from the reference" {
			continue
		}
		d := newDPO[float64](t, c.config())
		want, err := d.Step(c.batch())
		if err != nil {
			t.Fatal(err)
		}
		turn := func(x []float64) []float64 { return append(slices.Clone(x[3:]), x[:3]...) }
		turnInt := func(x []int) []int { return append(slices.Clone(x[3:]), x[:3]...) }
		b := DPOBatch[float64]{turn(c.Chosen), turn(c.Rejected), turn(c.RefChosen),
			turn(c.RefRejected), turnInt(c.LenChosen), turnInt(c.LenRejected)}
		got, err := d.Step(b)
		if err != nil {
			t.Fatal(err)
		}
		near(t, c.LossType+" turned", golden64,
			append(append([]float64{got.Loss}, got.DChosen...), got.DRejected...),
			append(append([]float64{want.Loss}, turn(want.DChosen)...), turn(want.DRejected)...))

		single := newDPO[float32](t, c.config())
		narrow, err := single.Step(
			DPOBatch[float32]{as[float32](c.Chosen), as[float32](c.Rejected),
				as[float32](c.RefChosen), as[float32](c.RefRejected), c.LenChosen, c.LenRejected})
		if err != nil {
			t.Fatal(err)
		}
		near(t, c.LossType+" in float32", tolerance{1e-3, 1e-4}, wide(narrow.DChosen), want.DChosen)
	}
	a := DPOStats{Loss: 1, Acc: .5, Margin: 2, ChosenReward: 3, RejectedReward: 1, Pairs: 2}
	b := DPOStats{Loss: 4, Acc: 1, Margin: 5, ChosenReward: 9, RejectedReward: 4, Pairs: 1}
	if got := a.Add(b); got != (DPOStats{2, 2. / 3, 3, 5, 2, 3}) {
		t.Errorf("sum %+v", got)
	}
	if got := a.Add(DPOStats{}); got != a {
		t.Errorf("sum with nothing %+v", got)
	}
}

// What cannot be computed is refused in one line.
func TestDPORefusals(t *testing.T) {
	one, nan := []float64{-1}, []float64{math.NaN()}
	d := newDPO[float64](t, DPOConfig{})
	ipo := newDPO[float64](t, DPOConfig{Loss: "ipo"})
	for name, c := range map[string]struct {
		d    *DPO[float64]
		b    DPOBatch[float64]
		want error
	}{
		"nothing":      {d, DPOBatch[float64]{}, ErrShape},
		"no reference": {d, DPOBatch[float64]{Chosen: one, Rejected: one}, ErrShape},
		"NaN": {d, DPOBatch[float64]{Chosen: one, Rejected: nan, RefChosen: one,
			RefRejected: one}, ErrNotFinite},
		"no lengths": {ipo, DPOBatch[float64]{Chosen: one, Rejected: one, RefChosen: one,
			RefRejected: one}, ErrShape},
		"an empty answer": {ipo, DPOBatch[float64]{one, one, one, one, []int{1}, []int{0}},
			ErrShape},
	} {
		if _, err := c.d.Step(c.b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for _, c := range []struct {
		c    DPOConfig
		want error
		text string
	}{
		{DPOConfig{Loss: "simpo"}, ErrUnknownName, "sppo_hard"},
		{DPOConfig{Beta: -1}, ErrConfig, "beta = -1"},
		{DPOConfig{Tau: math.Inf(1)}, ErrConfig, "tau"},
		{DPOConfig{LabelSmoothing: .5}, ErrConfig, "below 0.5"},
		{DPOConfig{Loss: "hinge", LabelSmoothing: .1}, ErrConfig, "this loss has none"},
	} {
		if _, err := NewDPO[float64](c.c); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, want %v with %q", c.c, err, c.want, c.text)
		}
	}
	if e := newDPO[float64](t, DPOConfig{Loss: "exo_pair"}).Config().LabelSmoothing; e != 1e-3 {
		t.Errorf("exo_pair's default smoothing is %g, want 0.001", e)
	}
}
