package judge

import (
	"math"
	"unicode/utf8"

	"gad/internal/textmetrics"
)

// Report is a judge's verdicts on students, and the figures from them.
type Report struct {
	Model      string      `json:"judge_model"`
	Mode       Mode        `json:"mode"`
	Against    string      `json:"against,omitempty"` // opponent in pairs: Teacher, or the first student's name
	Questions  int         `json:"questions"`
	References int         `json:"references,omitempty"`     // reference answers of the judge
	Cut        int         `json:"references_cut,omitempty"` // of them, ended by the limit of tokens
	Tally      Tally       `json:"tally"`
	Students   []Figures   `json:"students"`
	Verdicts   [][]Verdict `json:"-"`                    // by student and question
	FirstNull  string      `json:"first_null,omitempty"` // reason of the first missing verdict
}

// Teacher is Report.Against where pairs are against the teacher's answers.
const Teacher = "the teacher"

// Figures is the figures of one student. Shares are from 0 to 1. A figure without a verdict is
// absent. So is the interval of a figure that other prompts could not change: one prompt, or a mean
// of equal values that is no share of prompts.
type Figures struct {
	Name string `json:"name"`

	// Mode score: s is the grade of the student's answer, r the reference answer's.
	Scored     int         `json:"scored,omitempty"` // prompts with a verdict
	NullScores int         `json:"null_scores,omitempty"`
	Score      *float64    `json:"score,omitempty"` // 100 s / (s + r), mean
	ScoreCI95  *[2]float64 `json:"score_ci95,omitempty"`
	Win        *float64    `json:"win,omitempty"` // s > r
	WinCI95    *[2]float64 `json:"win_ci95,omitempty"`
	Ties       *float64    `json:"ties,omitempty"` // s = r
	Grade      *float64    `json:"grade,omitempty"`
	Reference  *float64    `json:"reference_grade,omitempty"`

	// Mode pair.
	Paired      int         `json:"paired,omitempty"` // prompts with a verdict in both orders
	NullPairs   int         `json:"null_pairs,omitempty"`
	Equal       int         `json:"equal,omitempty"`    // of Paired: equal answers, a tie
	PairWin     *float64    `json:"pair_win,omitempty"` // mean over games: a win is 1, a tie 1/2
	PairWinCI95 *[2]float64 `json:"pair_win_ci95,omitempty"`
	WonBoth     *float64    `json:"won_both,omitempty"`
	LostBoth    *float64    `json:"lost_both,omitempty"`
	LCWin       *float64    `json:"lc_win,omitempty"` // PairWin at equal lengths
	LCWinCI95   *[2]float64 `json:"lc_win_ci95,omitempty"`
	LCSlope     *float64    `json:"lc_slope,omitempty"` // of the length term; above 0: longer answers win more
	Swap        *float64    `json:"swap,omitempty"`     // of different answers: the order changed the verdict
	SwapCI95    *[2]float64 `json:"swap_ci95,omitempty"`
	FirstWins   *float64    `json:"first_wins,omitempty"` // of the games with a winner: the answer shown first won

	Length        float64  `json:"length"` // characters, mean
	AgainstLength *float64 `json:"against_length,omitempty"`

	// Differences from the first student by JSON name, over the prompts where both have a
	// verdict.
	Minus map[string]Difference `json:"-"`

	column column
}

// Difference is a figure of one student minus the first one's.
type Difference struct {
	Value float64
	CI95  *[2]float64
}

// column is a student's verdicts as numbers, by question; NaN for a missing one.
type column struct {
	score, win, ties, grade, reference []float64
	pref, lengths                      []float64 // share of the two games won; the length term
	swap                               []float64
}

// report returns the report over all verdicts, by student and question.
func (j *Judge) report(questions []Question, students []Student, verdicts [][]Verdict) *Report {
	r := &Report{Model: j.o.Model, Mode: j.o.Mode, Questions: len(questions), Tally: j.Tally(),
		Verdicts: verdicts}
	if j.o.Mode.pairs() {
		r.Against = Teacher
		if j.o.AgainstFirst {
			r.Against = students[0].Name
		}
	}
	for _, ref := range j.references {
		if ref.null == "" {
			r.References++
		}
		if ref.cut {
			r.Cut++
		}
	}
	for s, student := range students {
		var length, other []float64
		for q := range questions {
			length = append(length, float64(utf8.RuneCountInString(student.Answers[q])))
			if text, ok := j.opponent(questions, students, s, q); ok {
				other = append(other, float64(utf8.RuneCountInString(text)))
			}
		}
		f := Figures{Name: student.Name, Length: *mean(length), AgainstLength: mean(other)}
		f.count(verdicts[s], j.o.Mode, length, other, j.o.Seed)
		if s > 0 {
			f.Minus = f.column.minus(r.Students[0].column, j.o.Seed)
		}
		r.Students = append(r.Students, f)
		for _, v := range verdicts[s] {
			for _, why := range []string{v.NullScore, v.NullPair} {
				if r.FirstNull == "" {
					r.FirstNull = why
				}
			}
		}
	}
	return r
}

// count sets the figures from a student's verdicts. length and other are the lengths of the
// student's answers and of the opponent's; other is nil without pairs.
func (f *Figures) count(verdicts []Verdict, mode Mode, length, other []float64, seed uint64) {
	c := &f.column
	none := math.NaN()
	var wonBoth, lostBoth []float64
	var decided, byFirst float64
	for _, v := range verdicts {
		if v.Grade != nil {
			s, r := *v.Grade, *v.Reference
			c.add(100*s/(s+r), unit(s > r), unit(s == r), s, r)
		} else {
			c.add(none, none, none, none, none)
		}
		p, swap := v.preference(), none
		if !math.IsNaN(p) {
			wonBoth, lostBoth = append(wonBoth, unit(p == 1)), append(lostBoth, unit(p == 0))
			if v.Equal {
				f.Equal++
			} else {
				swap = unit(v.First != v.Second)
				decided += unit(v.First != tied) + unit(v.Second != tied)
				byFirst += unit(v.First == won) + unit(v.Second == lost)
			}
		}
		c.pref, c.swap = append(c.pref, p), append(c.swap, swap)
	}
	if mode.scores() {
		f.Scored = len(present(c.score))
		f.NullScores = len(verdicts) - f.Scored
		f.Score, f.ScoreCI95 = figure(c.score, seed)
		f.Win, f.WinCI95 = figure(c.win, seed)
		f.Ties, f.Grade, f.Reference =
			mean(present(c.ties)), mean(present(c.grade)), mean(present(c.reference))
	}
	if other == nil {
		return
	}
	c.lengths = spread(lengthTerms(present(length, c.pref), present(other, c.pref)), c.pref)
	f.Paired = len(present(c.pref))
	f.NullPairs = len(verdicts) - f.Paired
	f.PairWin, f.PairWinCI95 = figure(c.pref, seed)
	f.WonBoth, f.LostBoth = mean(wonBoth), mean(lostBoth)
	f.Swap, f.SwapCI95 = figure(c.swap, seed)
	if decided > 0 {
		f.FirstWins = new(float64)
		*f.FirstWins = byFirst / decided
	}
	if f.Paired > 0 {
		y, z := present(c.pref), present(c.lengths)
		rate, slope := lengthControlled(y, z, ones(len(y)), ridge)
		f.LCWin, f.LCSlope = &rate, &slope
		f.LCWinCI95 = finite(textmetrics.Interval(len(y), seed, func(_ int, w []float64) float64 {
			rate, _ := lengthControlled(y, z, w, ridge)
			return rate
		}))
		if rate == 0 || rate == 1 { // no fit: the rate is PairWin
			f.LCWinCI95 = f.PairWinCI95
		}
	}
}

// add appends the numbers of one question in mode score.
func (c *column) add(score, win, ties, grade, reference float64) {
	c.score, c.win, c.ties = append(c.score, score), append(c.win, win), append(c.ties, ties)
	c.grade, c.reference = append(c.grade, grade), append(c.reference, reference)
}

// minus returns c's figures minus first's. Intervals are paired: each bootstrap draw takes the same
// prompts of both.
func (c column) minus(first column, seed uint64) map[string]Difference {
	out := map[string]Difference{}
	for name, x := range map[string][2][]float64{"score": {c.score, first.score},
		"win": {c.win, first.win}, "pair_win": {c.pref, first.pref}} {
		a, b := present(x[0], x[1]), present(x[1], x[0])
		if len(a) > 0 {
			out[name] = Difference{*mean(a) - *mean(b),
				finite(textmetrics.RatioDifference(a, nil, b, nil, seed))}
		}
	}
	if c.lengths == nil || first.lengths == nil {
		return out
	}
	y, y0 := present(c.pref, first.pref), present(first.pref, c.pref)
	z, z0 := present(c.lengths, first.lengths), present(first.lengths, c.lengths)
	if len(y) == 0 {
		return out
	}
	difference := func(_ int, w []float64) float64 {
		rate, _ := lengthControlled(y, z, w, ridge)
		rate0, _ := lengthControlled(y0, z0, w, ridge)
		return rate - rate0
	}
	out["lc_win"] = Difference{difference(0, ones(len(y))),
		finite(textmetrics.Interval(len(y), seed, difference))}
	return out
}

// preference returns the share of the two games that the student won, a tie being half a win; NaN
// without a verdict in both.
func (v Verdict) preference() float64 {
	points := map[string]float64{won: 1, tied: 0.5, lost: 0}
	a, okA := points[v.First]
	b, okB := points[v.Second]
	if !okA || !okB {
		return math.NaN()
	}
	return (a + b) / 2
}

// figure returns the mean of the numbers in xs, with its interval.
func figure(xs []float64, seed uint64) (*float64, *[2]float64) {
	xs = present(xs)
	if len(xs) == 0 {
		return nil, nil
	}
	return mean(xs), finite(textmetrics.RatioInterval(xs, nil, seed))
}

// present returns the xs that are numbers (not NaN) where all others are numbers too.
func present(xs []float64, others ...[]float64) (out []float64) {
	for i, x := range xs {
		ok := !math.IsNaN(x)
		for _, o := range others {
			ok = ok && !math.IsNaN(o[i])
		}
		if ok {
			out = append(out, x)
		}
	}
	return out
}

// spread returns xs at the places where like has numbers, NaN at the others.
func spread(xs, like []float64) (out []float64) {
	for _, x := range like {
		if !math.IsNaN(x) {
			x, xs = xs[0], xs[1:]
		}
		out = append(out, x)
	}
	return out
}

// unit returns 1 for true, 0 for false.
func unit(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// mean returns the mean, nil for no values.
func mean(xs []float64) *float64 {
	if len(xs) == 0 {
		return nil
	}
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	sum /= float64(len(xs))
	return &sum
}

// ones returns n ones.
func ones(n int) []float64 {
	w := make([]float64, n)
	for i := range w {
		w[i] = 1
	}
	return w
}

// finite returns an interval, nil if a bound is NaN.
func finite(ends [2]float64) *[2]float64 {
	if math.IsNaN(ends[0]) || math.IsNaN(ends[1]) {
		return nil
	}
	return &ends
}
