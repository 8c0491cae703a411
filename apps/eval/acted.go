package eval

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"gad/apps/play"
	"gad/apps/session"
	"gad/internal/report"
	"gad/internal/textmetrics"
	"gad/trainer/quality"
)

// playFigures is the figures of a player's episodes.
type playFigures struct {
	rows     int // number of rows with an episode that is not broken
	episodes int
	faults   int // broken episodes, which the figures leave out
	values   map[string]interval
	labels   map[string]int // episodes by the environment's label
}

// interval is a figure with its 95 % confidence interval; ci is nil where there is none.
type interval struct {
	value float64
	ci    *[2]float64
}

// playFigureTable lists the figures of episodes. A figure is the mean over rows of a row's mean of
// value; with over, the ratio of the sums of both.
var playFigureTable = []struct {
	key, name string
	better    int // as in quality.Figure
	of        func(a *acting, p play.Played) float64
	over      func(p play.Played) float64 // nil is a mean
}{
	{"success", "success", 1, func(a *acting, p play.Played) float64 { return share(a.success(p)) },
		nil},
	{"reward", "reward", 1, func(_ *acting, p play.Played) float64 { return p.Reward }, nil},
	{"turns", "turns", 0, func(_ *acting, p play.Played) float64 { return float64(p.Wrote) }, nil},
	{"tokens", "tokens", 0, func(_ *acting, p play.Played) float64 { return float64(p.Tokens) },
		nil},
	{"invalid_frac", "invalid turns", -1,
		func(_ *acting, p play.Played) float64 { return float64(p.Invalid) },
		func(p play.Played) float64 { return float64(p.Wrote) }},
	{"cut_frac", "cut episodes", -1,
		func(_ *acting, p play.Played) float64 { return share(p.Cut) }, nil},
}

// share returns 1 for true, 0 for false.
func share(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// byRow returns the unbroken episodes by row; rows without one are missing.
func (c *player) byRow() map[int][]play.Played {
	rows := map[int][]play.Played{}
	for _, p := range c.played {
		if p.Fault == "" {
			rows[p.Row] = append(rows[p.Row], p)
		}
	}
	return rows
}

// sums returns the k-th figure's numerators and denominators of the rows at, each a mean over the
// row's episodes; nil denominators stand for ones.
func (a *acting) sums(k int, rows map[int][]play.Played, at []int) (xs, ys []float64) {
	f := playFigureTable[k]
	for _, row := range at {
		var x, y float64
		for _, p := range rows[row] {
			if x += f.of(a, p); f.over != nil {
				y += f.over(p)
			}
		}
		n := float64(len(rows[row]))
		if xs = append(xs, x/n); f.over != nil {
			ys = append(ys, y/n)
		}
	}
	return xs, ys
}

// ratio returns sum(xs)/sum(ys), or the mean of xs where ys is nil.
func ratio(xs, ys []float64) float64 {
	sum, of := 0.0, float64(len(xs))
	for _, x := range xs {
		sum += x
	}
	if ys != nil {
		of = 0
		for _, y := range ys {
			of += y
		}
	}
	if of == 0 {
		return 0
	}
	return sum / of
}

// finite returns an interval, nil if a bound is NaN.
func finite(ci [2]float64) *[2]float64 {
	if math.IsNaN(ci[0]) || math.IsNaN(ci[1]) {
		return nil
	}
	return &ci
}

// measure computes a player's figures.
func (a *acting) measure(c *player) {
	rows := c.byRow()
	at := slices.Sorted(maps.Keys(rows))
	c.figures = playFigures{rows: len(rows), episodes: len(c.played), values: map[string]interval{},
		labels: map[string]int{}}
	for _, p := range c.played {
		switch {
		case p.Fault != "":
			c.figures.faults++
		case p.Label != "":
			c.figures.labels[p.Label]++
		}
	}
	if len(at) == 0 {
		return
	}
	for k, f := range playFigureTable {
		xs, ys := a.sums(k, rows, at)
		c.figures.values[f.key] = interval{ratio(xs, ys),
			finite(textmetrics.RatioInterval(xs, ys, a.o.Seed))}
	}
}

// differences returns c's figures minus first's, paired by the rows that both have.
func (a *acting) differences(c, first *player) map[string]quality.Difference {
	of, from := c.byRow(), first.byRow()
	var at []int
	for _, row := range slices.Sorted(maps.Keys(of)) {
		if from[row] != nil {
			at = append(at, row)
		}
	}
	out := map[string]quality.Difference{}
	if len(at) == 0 {
		return out
	}
	for k, f := range playFigureTable {
		xs, ys := a.sums(k, of, at)
		xs0, ys0 := a.sums(k, from, at)
		out[f.key] = quality.Difference{Value: ratio(xs, ys) - ratio(xs0, ys0),
			CI95: finite(textmetrics.RatioDifference(xs, ys, xs0, ys0, a.o.Seed))}
	}
	return out
}

// MarshalJSON returns the player's name and figures as one object, under the keys of gad eval.
func (c *player) MarshalJSON() ([]byte, error) {
	f := c.figures
	all := map[string]any{"model": c.name, "rows": f.rows, "episodes": f.episodes,
		"faults": f.faults, "labels": f.labels}
	if !c.teacher {
		all["temperature"] = c.temperature
	}
	for key, x := range f.values {
		if all[key] = x.value; x.ci != nil {
			all[key+"_ci95"] = x.ci
		}
	}
	return json.Marshal(all)
}

// comparison is a player's figures minus those of the first model at the same temperature.
type comparison struct {
	a, b        int // indices in acting.players: a minus b
	differences map[string]quality.Difference
}

// comparisons returns a comparison for every model but the first.
func (a *acting) comparisons() (list []comparison) {
	for i, c := range a.players {
		for j, first := range a.players[:i] {
			if !c.teacher && first.temperature == c.temperature {
				list = append(list, comparison{i, j, a.differences(c, first)})
				break
			}
		}
	}
	return list
}

// print writes the summary.
func (a *acting) print() error {
	a.s.Console.Close()
	list := a.comparisons()
	if a.o.JSON {
		var all struct {
			Models      []*player        `json:"models"`
			Teacher     *player          `json:"teacher,omitempty"`
			Other       int              `json:"teacher_other"` // rows of another world
			Success     float64          `json:"success_from"`
			Differences []map[string]any `json:"differences,omitempty"`
		}
		all.Success, all.Other = a.o.Acting.Success, a.other
		for _, c := range a.players {
			if c.teacher {
				all.Teacher = c
			} else {
				all.Models = append(all.Models, c)
			}
		}
		for _, d := range list {
			x := map[string]any{"model": a.players[d.a].name, "minus": a.players[d.b].name,
				"temperature": a.players[d.a].temperature}
			for key, y := range d.differences {
				x[key] = y
			}
			all.Differences = append(all.Differences, x)
		}
		return session.PrintJSON(a.s.Out, all)
	}
	a.table(a.s.Out, list)
	return nil
}

// table writes the summary for people: a line for each figure, a column for each player and for
// each comparison.
func (a *acting) table(w io.Writer, list []comparison) {
	fmt.Fprintf(w, "%s in %s; success is a reward of %g or more; 95 %% intervals in brackets\n",
		report.Count(len(a.rows), "row"), session.Harmless(a.env.Name()), a.o.Acting.Success)
	head := []string{""}
	for i, c := range a.players {
		name := "teacher"
		if !c.teacher {
			name = letter(i)
			how := "greedy"
			if c.temperature > 0 {
				how = fmt.Sprintf("temperature %g", c.temperature)
			}
			if n := a.o.Acting.N; n > 1 && c.temperature > 0 {
				how += fmt.Sprintf(", %d episodes a row", n)
			}
			fmt.Fprintf(w, "%s  %s, %s\n", name, session.Harmless(c.name), how)
		}
		head = append(head, name)
	}
	for _, d := range list {
		head = append(head, letter(d.a)+" - "+letter(d.b)+", paired")
	}
	const name, column = 22, 26
	lacks := false // some figure has no interval
	line := func(cells ...string) {
		lacks = lacks || slices.ContainsFunc(cells,
			func(c string) bool { return strings.HasSuffix(c, noInterval) })
		var b strings.Builder
		fmt.Fprintf(&b, "%-*s", name, cells[0])
		for _, c := range cells[1:] {
			fmt.Fprintf(&b, "%-*s  ", column, c)
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	line(head...)
	for _, f := range playFigureTable {
		cells := []string{f.name}
		for _, c := range a.players {
			switch x, ok := c.figures.values[f.key]; {
			case !ok:
				cells = append(cells, "")
			case x.ci == nil:
				cells = append(cells, fmt.Sprintf("%.3f %s", x.value, noInterval))
			default:
				cells = append(cells, fmt.Sprintf("%.3f [%.3f, %.3f]", x.value, x.ci[0], x.ci[1]))
			}
		}
		for _, d := range list {
			cells = append(cells, difference(d.differences, f.key, f.better))
		}
		line(cells...)
	}
	labels := map[string]bool{}
	for _, c := range a.players {
		for label := range c.figures.labels {
			labels[label] = true
		}
	}
	counts := func(name string, of func(f playFigures) int) {
		cells := []string{name}
		for _, c := range a.players {
			cells = append(cells, fmt.Sprint(of(c.figures)))
		}
		line(cells...)
	}
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		counts("  "+session.Harmless(label), func(f playFigures) int { return f.labels[label] })
	}
	counts("episodes", func(f playFigures) int { return f.episodes })
	if slices.ContainsFunc(a.players, func(c *player) bool { return c.figures.faults > 0 }) {
		counts("broken episodes", func(f playFigures) int { return f.faults })
		fmt.Fprintln(w, "broken episodes count nothing; gad env check says what breaks")
	}
	if a.other > 0 {
		fmt.Fprintf(w, "%s: the environment answers the teacher's turns otherwise than recorded, and the teacher's figures leave them out: its world is not the row's (column env), or it has changed\n", report.Count(a.other, "row"))
	}
	if lacks {
		fmt.Fprintf(w, "%s: no interval, because there is one row, or all rows are equal and the figure is no share of rows\n", noInterval)
	}
	if out := a.o.Output; out != "" {
		fmt.Fprintf(w, "%s: %s\n", out, report.Count(int(a.saved.Load()), "episode"))
	}
}
