package algos

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// episodeCase is one case of testdata/golden/episodes.json: a policy loss over episodes of several
// turns, by scripts/fixtures_episodes.py. Values are by episode, turn and token.
type episodeCase struct {
	Name, Agg                 string
	LossMode                  string  `json:"loss_mode"`
	Level                     string  `json:"ratio_level"`
	ClipLow                   float64 `json:"clip_low"`
	ClipHigh                  float64 `json:"clip_high"`
	Beta, Loss, PG, KL        float64
	Logp, Old, Ref, Adv, Grad [][][]float64
}

// rowsAt lays values out as rows: the turns, or each episode's turns one after another.
func rowsAt(level string, x [][][]float64) (rows [][]float64, turnsB []float64) {
	for _, turns := range x {
		if level == "episode" {
			rows, turnsB = append(rows, slices.Concat(turns...)), append(turnsB, 1)
			continue
		}
		for _, tokens := range turns {
			rows, turnsB = append(rows, tokens), append(turnsB, float64(len(turns)))
		}
	}
	return rows, turnsB
}

func (c episodeCase) batch() (b PolicyBatch[float64], n Norm, gradBT []float64) {
	rows, turnsB := rowsAt(c.Level, c.Logp)
	b.B, b.Turns = len(rows), turnsB
	for _, row := range rows {
		b.T = max(b.T, len(row))
	}
	matrix := func(x [][][]float64) []float64 {
		rows, _ := rowsAt(c.Level, x)
		out := make([]float64, b.B*b.T)
		for i, row := range rows {
			copy(out[i*b.T:], row)
		}
		return out
	}
	b.Logp, b.Old, b.Ref, b.Adv = matrix(c.Logp), matrix(c.Old), matrix(c.Ref), matrix(c.Adv)
	b.Mask = make([]float64, b.B*b.T)
	for i, row := range rows {
		for t := range row {
			b.Mask[i*b.T+t] = 1
		}
	}
	n = NormOf(b.B, b.T, b.Mask)
	n.Episodes = float64(len(c.Logp))
	return b, n, matrix(c.Grad)
}

// Ratios and aggregations over turns and over episodes, loss and gradient to 1e-9, in one
// micro-batch and in two.
func TestGoldenEpisodes(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "golden", "episodes.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []episodeCase }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) != 45 {
		t.Fatalf("%d cases, the file had 45", len(file.Cases))
	}
	for _, c := range file.Cases {
		name := c.Name + "/" + c.LossMode + "/" + c.Level + "/" + c.Agg
		b, n, grad := c.batch()
		p, err := NewPolicy[float64](PolicyConfig{Loss: c.LossMode, Agg: c.Agg, ClipLow: c.ClipLow,
			ClipHigh: c.ClipHigh, KLCoef: c.Beta})
		if err != nil {
			t.Fatal(err)
		}
		packs := make([][]int, 2)
		for row := range b.B {
			packs[row%2] = append(packs[row%2], row)
		}
		var sum PolicyStats
		got := make([]float64, len(b.Logp))
		for _, rows := range packs {
			if len(rows) == 0 {
				continue
			}
			r, err := p.Step(rowsOf(b, rows), n)
			if err != nil {
				t.Fatal(name, err)
			}
			sum = sum.Add(r.PolicyStats)
			for i, row := range rows {
				copy(got[row*b.T:(row+1)*b.T], r.DLogp[i*b.T:])
			}
		}
		whole, err := p.Step(b, n)
		if err != nil {
			t.Fatal(name, err)
		}
		near(t, name+" loss", golden64, []float64{whole.Loss, whole.PGLoss, sum.Loss, sum.PGLoss},
			[]float64{c.Loss, c.PG, c.Loss, c.PG})
		if c.Beta > 0 {
			near(t, name+" KL", golden64, []float64{whole.KLLoss, sum.KLLoss},
				[]float64{c.KL, c.KL})
		}
		near(t, name+" gradient", golden64, whole.DLogp, grad)
		if !slices.Equal(got, whole.DLogp) {
			t.Errorf("%s: gradient bits depend on the packing", name)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// With ByEpisode the rows of an episode are one sequence for seq-mean: the golden losses of whole
// episodes come of their turns as rows, loss and gradient to 1e-9, in one micro-batch and in two.
func TestGoldenByEpisode(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "golden", "episodes.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []episodeCase }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, c := range file.Cases {
		if c.Level != "episode" || c.LossMode == "gspo" ||
			byEpisode[c.Agg].by == nil {
			continue
		}
		compared++
		c.Level = "turn"
		b, n, grad := c.batch()
		for _, turns := range c.Logp {
			tokens := 0
			for _, turn := range turns {
				tokens += len(turn)
			}
			for range turns {
				b.Tokens = append(b.Tokens, float64(tokens))
			}
		}
		p, err := NewPolicy[float64](PolicyConfig{Loss: c.LossMode, Agg: c.Agg, ClipLow: c.ClipLow,
			ClipHigh: c.ClipHigh, KLCoef: c.Beta, ByEpisode: true})
		if err != nil {
			t.Fatal(err)
		}
		var sum PolicyStats
		for _, rows := range [][]int{{0}, allRows(b.B)[1:]} {
			r, err := p.Step(rowsOf(b, rows), n)
			if err != nil {
				t.Fatal(c.Name, err)
			}
			sum = sum.Add(r.PolicyStats)
		}
		whole, err := p.Step(b, n)
		if err != nil {
			t.Fatal(c.Name, err)
		}
		near(t, c.Name+" loss", golden64, []float64{whole.Loss, whole.PGLoss, sum.Loss, sum.PGLoss},
			[]float64{c.Loss, c.PG, c.Loss, c.PG})
		near(t, c.Name+" gradient", golden64, whole.DLogp, grad)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if compared < 3 {
		t.Errorf("%d cases compared", compared)
	}
}

func allRows(n int) (rows []int) {
	for i := range n {
		rows = append(rows, i)
	}
	return rows
}

// gigpoCase is one case of testdata/golden/gigpo.json, written by verl-agent's own functions in
// float64. Values are by episode and turn.
type gigpoCase struct {
	Name       string
	GroupStats string  `json:"group_stats"`
	MeanOnly   bool    `json:"mean_only"`
	StepWeight float64 `json:"step_weight"`
	Gamma      float64
	Group      []int
	Scores     []float64
	Lens       [][]int
	Rewards    [][]float64
	Anchors    [][]string
	Advantages [][]float64
}

// input lays the turns of each episode one after another.
func (c gigpoCase) input() AdvantageInput {
	in := AdvantageInput{Scores: c.Scores, Group: c.Group}
	for e, lens := range c.Lens {
		var steps []TurnStep
		at := 0
		for k, n := range lens {
			steps = append(steps, TurnStep{at, at + n, c.Rewards[e][k], c.Anchors[e][k]})
			at += n
		}
		in.Steps = append(in.Steps, steps)
		in.Mask = append(in.Mask, slices.Repeat([]float64{1}, at))
	}
	return in
}

// byTurn wants one advantage for all tokens of a turn, and gives it.
func byTurn(t *testing.T, name string, advST [][]float64, steps [][]TurnStep) (advs []float64) {
	t.Helper()
	for s, own := range steps {
		for k, step := range own {
			for _, a := range advST[s][step.Start:step.End] {
				if a != advST[s][step.Start] {
					t.Errorf("%s: episode %d turn %d: advantages %v", name, s, k,
						advST[s][step.Start:step.End])
				}
			}
			advs = append(advs, advST[s][step.Start])
		}
	}
	return advs
}

func TestGoldenGiGPO(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "golden", "gigpo.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []gigpoCase }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) != 84 {
		t.Fatalf("%d cases, the file had 84", len(file.Cases))
	}
	for _, c := range file.Cases {
		in := c.input()
		adv, err := Advantages(AdvantageConfig{Name: "gigpo", Gamma: c.Gamma,
			StepWeight: c.StepWeight, MeanOnly: c.MeanOnly, GroupStats: c.GroupStats}, in)
		if err != nil {
			t.Fatal(c.Name, err)
		}
		name := c.Name + " " + c.GroupStats
		near(t, name, golden64, byTurn(t, name, adv, in.Steps), flat(c.Advantages))
	}
}

// someEpisodes are responses whose tokens are one to three turns.
func someEpisodes(seed uint64) AdvantageInput {
	in := someResponses(seed)
	for s, steps := range in.Steps {
		n, score := steps[0].End, in.Scores[s]
		in.Steps[s] = nil
		for at, k := 0, 1; at < n; k++ {
			step := TurnStep{at, min(at+1+(s+k)%3, n), score / float64(k),
				[]string{"a", "b", ""}[(s+k)%3]}
			in.Steps[s] = append(in.Steps[s], step)
			at = step.End
		}
	}
	return in
}

// Over turns a group's statistics are those of as many responses as there are turns, each with its
// episode's score (verl-agent, compute_mean_std_cross_steps=True), for every estimator; gigpo's
// step part is the same.
func TestGroupStatsOfTurns(t *testing.T) {
	for _, name := range AdvantageNames() {
		if strings.HasPrefix(name, "tree_") { // of single answers
			continue
		}
		in := someEpisodes(5)
		if name != "gigpo" { // which has one reward a response
			in.TokenRewards = nil
			for s, mask := range in.Mask {
				in.TokenRewards = append(in.TokenRewards, make([]float64, len(mask)))
				in.TokenRewards[s][len(mask)/2] = float64(s)
			}
		}
		for _, power := range []float64{1, 1.5} {
			c := AdvantageConfig{Name: name, Power: power}
			if power != 1 && in.TokenRewards != nil {
				if _, err := Advantages(c, in); name == "reinforce_plus_plus" && err == nil {
					t.Error("a power of token rewards is accepted")
				}
				in.TokenRewards = nil
			}
			var rows AdvantageInput
			for s, steps := range in.Steps {
				for _, step := range steps {
					rows.Scores = append(rows.Scores, in.Scores[s])
					rows.Group = append(rows.Group, in.Group[s])
					rows.Mask = append(rows.Mask, in.Mask[s][step.Start:step.End])
					if in.TokenRewards != nil {
						rows.TokenRewards = append(rows.TokenRewards,
							in.TokenRewards[s][step.Start:step.End])
					}
				}
			}
			asRows := c
			if name == "gigpo" {
				asRows.Name = "grpo"
			}
			want, err := Advantages(asRows, rows)
			if err != nil {
				t.Fatal(name, err)
			}
			c.GroupStats = "turns"
			got, err := Advantages(c, in)
			if err != nil {
				t.Fatal(name, err)
			}
			c.GroupStats = "episodes"
			episodes, err := Advantages(c, in)
			if err != nil {
				t.Fatal(name, err)
			}
			c.Name = "grpo"
			plain, err := Advantages(c, in)
			if err != nil {
				t.Fatal(name, err)
			}
			row := 0
			for s, steps := range in.Steps {
				for _, step := range steps {
					for tok := step.Start; tok < step.End; tok++ {
						own := 0. // gigpo's step part
						if name == "gigpo" {
							own = episodes[s][tok] - plain[s][tok]
						}
						if g, w := got[s][tok], want[row][tok-step.Start]+own; !golden64.ok(g, w) {
							t.Errorf("%s: response %d token %d: %g, as a row of its own %g", name,
								s,
								tok, g, w)
						}
					}
					row++
				}
			}
			if slices.Equal(flat(got), flat(episodes)) {
				t.Errorf("%s: the statistics of turns are those of episodes", name)
			}
		}
	}
}

// Scores 1 and 0 on episodes of three turns and one: mean 3/4 and sigma 1/2 over turns, 1/2 and
// sqrt(1/2) over episodes. Without steps a response is one turn.
func TestPaperGroupStats(t *testing.T) {
	in := AdvantageInput{Scores: []float64{1, 0}, Group: []int{0, 0},
		Mask:  [][]float64{{1, 1, 1}, {1, 0, 0}},
		Steps: [][]TurnStep{{{0, 1, 0, ""}, {1, 2, 0, ""}, {2, 3, 1, ""}}, {{0, 1, 0, ""}}}}
	h := math.Sqrt2 / 2
	for stats, want := range map[string][]float64{"": {h, h, h, -h, 0, 0},
		"episodes": {h, h, h, -h, 0, 0}, "turns": {.5, .5, .5, -1.5, 0, 0}} {
		adv, err := Advantages(AdvantageConfig{GroupStats: stats}, in)
		if err != nil {
			t.Fatal(err)
		}
		near(t, stats, tolerance{3e-6, 0}, flat(adv), want)
	}
	in.Steps = nil
	adv, err := Advantages(AdvantageConfig{GroupStats: "turns"}, in)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "without steps", tolerance{3e-6, 0}, flat(adv), []float64{h, h, h, -h, 0, 0})
}

// From rewards to gradients: each token of an episode is learned with that episode's advantage
// over its group, -A_i/(G T_i |a_t|) under gpg, whatever stands beside it in the batch. Advantages
// of another episode, none for want of a baseline, and the product of the mean log-probability and
// the mean reward (which is 0 here for every token) all differ.
func TestEpisodesLearnTheirOwnAdvantage(t *testing.T) {
	in := AdvantageInput{Scores: []float64{1, 0, 5, 4, 3}, Group: []int{0, 0, 1, 1, 1},
		Mask: [][]float64{{1, 1, 1}, {1, 1, 0}, {1, 0, 0}, {1, 1, 1}, {1, 1, 1}},
		Steps: [][]TurnStep{{{0, 1, 0, ""}, {1, 3, 1, ""}}, {{0, 2, 0, ""}}, {{0, 1, 5, ""}},
			{{0, 1, 0, ""}, {1, 2, 0, ""}, {2, 3, 4, ""}}, {{0, 3, 3, ""}}}}
	want := []float64{.5, -.5, 1, 0, -1}
	adv, err := Advantages(AdvantageConfig{MeanOnly: true}, in)
	if err != nil {
		t.Fatal(err)
	}
	const T = 3
	b := PolicyBatch[float64]{T: T}
	var grad []float64
	for e, steps := range in.Steps {
		for _, step := range steps {
			row := make([]float64, 4*T)
			logp, mask, a, g := row[:T], row[T:2*T], row[2*T:3*T], row[3*T:]
			for k := range step.End - step.Start {
				logp[k], mask[k], a[k] = -float64(e+k+1), 1, adv[e][step.Start+k]
				g[k] = -want[e] / 5 / float64(len(steps)) / float64(step.End-step.Start)
			}
			b.Logp, b.Mask = append(b.Logp, logp...), append(b.Mask, mask...)
			b.Adv, grad = append(b.Adv, a...), append(grad, g...)
			b.Turns = append(b.Turns, float64(len(steps)))
			b.B++
		}
	}
	r := step(t, PolicyConfig{Loss: "gpg", Agg: EpisodeMean}, b, normOf(b))
	near(t, "gradient", golden64, r.DLogp, grad)
}

// Within a prompt's states gigpo's step advantages have mean 0: a step is compared with steps
// taken from the same state, not with nothing.
func TestGiGPOStepsSumToZero(t *testing.T) {
	in := someEpisodes(9)
	with, err := Advantages(AdvantageConfig{Name: "gigpo", Gamma: .95}, in)
	if err != nil {
		t.Fatal(err)
	}
	without, err := Advantages(AdvantageConfig{}, in)
	if err != nil {
		t.Fatal(err)
	}
	type state struct {
		group  int
		anchor string
	}
	sums, counts := map[state]float64{}, map[state]int{}
	for s, steps := range in.Steps {
		for _, step := range steps {
			at, own := state{in.Group[s], step.Anchor}, with[s][step.Start]-without[s][step.Start]
			if step.Anchor == "" && own != 0 {
				t.Errorf("a step without an anchor has advantage %g", own)
			}
			sums[at] += own
			counts[at]++
		}
	}
	shared := 0
	for at, sum := range sums {
		if math.Abs(sum) > 1e-9 {
			t.Errorf("%v: step advantages sum to %g", at, sum)
		}
		if at.anchor != "" && counts[at] > 1 {
			shared++
		}
	}
	if shared < 3 {
		t.Errorf("%d states are shared", shared)
	}
}
