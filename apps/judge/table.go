package judge

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// cells is a row of the table: a student, or a difference.
type cells []string

// Print writes the table for people: a row for each student, and one for each difference to the
// first. names are the students' names in the table.
func (r *Report) Print(w io.Writer, names []string) {
	about := []string{fmt.Sprintf("judge %s: %s", r.Model, count(r.Questions, "prompt"))}
	if r.Mode.pairs() {
		about = append(about, "pairs against "+r.opponentName(names))
	}
	fmt.Fprintf(w, "%s; 95 %% intervals in brackets\n", strings.Join(about, ", "))
	head := cells{""}
	if r.Mode.scores() {
		head = append(head, "score", "win %", "ties %")
	}
	if r.Mode.pairs() {
		head = append(head, "pair win %", "LC win %", "swap %")
	}
	rows := []cells{append(head, "length")}
	for s, f := range r.Students {
		row := cells{names[s]}
		if r.Mode.scores() {
			row = append(row, cell(f.Score, f.ScoreCI95, 1), cell(f.Win, f.WinCI95, 100),
				cellWithoutInterval(f.Ties, 100))
		}
		if r.Mode.pairs() {
			row = append(row, cell(f.PairWin, f.PairWinCI95, 100), cell(f.LCWin, f.LCWinCI95, 100),
				cell(f.Swap, f.SwapCI95, 100))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.0f", f.Length)))
	}
	for s, f := range r.Students[1:] {
		row := cells{fmt.Sprintf("%s - %s", names[s+1], names[0])}
		if r.Mode.scores() {
			row = append(row, f.difference("score", 1), f.difference("win", 100), "")
		}
		if r.Mode.pairs() {
			row = append(row, f.difference("pair_win", 100), f.difference("lc_win", 100), "")
		}
		if strings.Join(row[1:], "") != "" {
			rows = append(rows, row)
		}
	}
	printColumns(w, rows)
	r.legend(w, names)
}

// opponentName returns the opponent in pairs as the table names it.
func (r *Report) opponentName(names []string) string {
	if r.Against != Teacher {
		return names[0]
	}
	return Teacher
}

// legend writes the meaning of the columns, and the numbers of missing verdicts.
func (r *Report) legend(w io.Writer, names []string) {
	if r.Mode.scores() {
		fmt.Fprintf(w, "score: 100 s/(s+r) of the judge's grades s of the student and r of its own reference answer; win: s > r; ties: s = r\n")
	}
	if r.Mode.pairs() {
		fmt.Fprintf(w, "pair win: games won against %s, in both orders, a tie is half a win; LC: at equal lengths; swap: the order changed the verdict\n", r.opponentName(names))
	}
	fmt.Fprintf(w, "length: characters")
	for s, f := range r.Students {
		if f.AgainstLength != nil && (s == 0 || r.Students[s-1].AgainstLength == nil) {
			fmt.Fprintf(w, "; of %s: %.0f", r.opponentName(names), *f.AgainstLength)
		}
	}
	fmt.Fprintln(w)
	var scores, pairs int
	for _, f := range r.Students {
		scores += f.NullScores
		pairs += f.NullPairs
	}
	if scores+pairs > 0 {
		fmt.Fprintf(w, "no verdict: %s and %s, left out above; the first: %.200q\n",
			count(scores, "score"), count(pairs, "pair"), r.FirstNull)
	}
	if r.Cut > 0 {
		fmt.Fprintf(w, "reference answers cut by the limit of tokens: %d of %d\n", r.Cut,
			r.Questions)
	}
}

// cell returns a figure with its interval, times scale.
func cell(x *float64, ci *[2]float64, scale float64) string {
	switch {
	case x == nil:
		return "-"
	case ci == nil:
		return fmt.Sprintf("%.1f [-]", scale**x)
	}
	return fmt.Sprintf("%.1f [%.1f, %.1f]", scale**x, scale*ci[0], scale*ci[1])
}

// cellWithoutInterval returns a figure, times scale.
func cellWithoutInterval(x *float64, scale float64) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", scale**x)
}

// difference returns a difference to the first student with its interval and a sign of the verdict.
func (f Figures) difference(name string, scale float64) string {
	d, ok := f.Minus[name]
	if !ok {
		return ""
	}
	if d.CI95 == nil {
		return fmt.Sprintf("%+.1f [-]", scale*d.Value)
	}
	says := "≈"
	switch {
	case d.CI95[0] > 0:
		says = "▲"
	case d.CI95[1] < 0:
		says = "▼"
	}
	return fmt.Sprintf("%+.1f [%+.1f, %+.1f] %s", scale*d.Value, scale*d.CI95[0], scale*d.CI95[1],
		says)
}

// printColumns writes rows with aligned columns.
func printColumns(w io.Writer, rows []cells) {
	var width []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, c := range row {
			b.WriteString(c + strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+2))
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// count returns a number and its noun.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
