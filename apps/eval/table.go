package eval

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"gad/internal/report"
	"gad/trainer/quality"
)

// comparedJSON is the JSON of several models.
type comparedJSON struct {
	Models      []quality.Evaluation `json:"models"`
	Differences []modelDifferences   `json:"differences"`
	Judge       *judgedJSON          `json:"judge,omitempty"`
}

// evaluatedJSON is the JSON of one model.
type evaluatedJSON struct {
	quality.Evaluation
	Judge *judgedJSON `json:"judge,omitempty"`
}

// modelDifferences is the figures of a model minus those of the first.
type modelDifferences struct {
	model, minus string
	values       map[string]quality.Difference
	equal        *float64 // share of rows with equal answers; nil unless greedy
}

// MarshalJSON returns the names and the figures as one object.
func (d modelDifferences) MarshalJSON() ([]byte, error) {
	all := map[string]any{"model": d.model, "minus": d.minus}
	if d.equal != nil {
		all["equal_answers"] = *d.equal
	}
	for key, x := range d.values {
		all[key] = x
	}
	return json.Marshal(all)
}

// printEvaluations writes the table for people: a line for each figure, a column for each model,
// and one for each difference to the first.
func printEvaluations(w io.Writer, all comparedJSON) {
	first := all.Models[0]
	how := "greedy"
	if first.Temperature > 0 {
		how = fmt.Sprintf("temperature %g", first.Temperature)
	}
	fmt.Fprintf(w, "%s, %s; 95 %% intervals in brackets\n", report.Count(first.Rows, "row"), how)
	const name, column = 30, 26
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
	if len(all.Models) > 1 {
		head := []string{""}
		for i, m := range all.Models {
			fmt.Fprintf(w, "%s  %s\n", letter(i), m.Model)
			head = append(head, letter(i))
		}
		for i := range all.Differences {
			head = append(head, letter(i+1)+" - A, paired")
		}
		line(head...)
	}
	cell := func(x float64, ci *[2]float64) string {
		if ci == nil {
			return fmt.Sprintf("%.3f %s", x, noInterval)
		}
		return fmt.Sprintf("%.3f [%.3f, %.3f]", x, ci[0], ci[1])
	}
	var keys []quality.Figure // figures of any model, with labels that only one model has
	byModel := make([]map[string]quality.Figure, len(all.Models))
	for i := range all.Models {
		byModel[i] = map[string]quality.Figure{}
		for _, f := range all.Models[i].Figures() {
			byModel[i][f.Key] = f
			if !slices.ContainsFunc(keys, func(k quality.Figure) bool { return k.Key == f.Key }) {
				keys = append(keys, f)
			}
		}
	}
	slices.SortStableFunc(keys,
		func(a, b quality.Figure) int { return figureRank(a.Key) - figureRank(b.Key) })
	for _, k := range keys {
		cells := []string{k.Name}
		for i := range all.Models {
			if f, ok := byModel[i][k.Key]; ok {
				cells = append(cells, cell(f.Value, f.CI95))
			} else {
				cells = append(cells, "")
			}
		}
		for _, d := range all.Differences {
			cells = append(cells, difference(d.values, k.Key, k.Better))
		}
		line(cells...)
	}
	printFresh(all, line, cell)
	printCut(w, all.Models)
	printAgainst(w, all.Models)
	for i, d := range all.Differences {
		if d.equal != nil {
			fmt.Fprintf(w, "%s and A answer %.3f of the rows by the same text\n", letter(i+1),
				*d.equal)
		}
	}
	if lacks {
		fmt.Fprintf(w, "%s: no interval, because there is one row, or all rows are equal and the figure is no share of rows\n", noInterval)
	}
}

// mostCut is the share of truncated answers above which the table warns that its figures are of the
// answers' beginnings.
const mostCut = 0.5

// printCut writes which models' answers are mostly truncated: ROUGE-L, length and repetition are
// then figures of the answers' beginnings.
func printCut(w io.Writer, models []quality.Evaluation) {
	for i, m := range models {
		if m.TruncatedFrac <= mostCut {
			continue
		}
		who := ""
		if len(models) > 1 {
			who = letter(i) + ": "
		}
		fmt.Fprintf(w, "%s%.0f %% of the answers are cut at the limit, so all figures of them but the teacher NLL are of beginnings: give a larger --max-response-length, or train the student to end its answers (gad sft)\n", who, 100*m.TruncatedFrac)
	}
}

// printAgainst writes a legend of the figures about --against.
func printAgainst(w io.Writer, models []quality.Evaluation) {
	if models[0].Against == "" {
		return
	}
	fmt.Fprintf(w,
		"KL and fluency: against %s, both distributions at temperature 1, means over tokens",
		models[0].Against)
	if t := models[0].Temperature; t != 1 {
		fmt.Fprintf(w, "; the student's answers are drawn at temperature %g, so that reverse KL, sampled, is no estimate of its own KL", t)
	}
	fmt.Fprintln(w)
	for i, m := range models {
		if ci := m.ForwardKLSampledCI95; ci != nil && ci[1] < 0 {
			fmt.Fprintf(w, "%s: forward KL, sampled, is below 0: it is no estimate of a KL, because %s has not written the answers of these rows\n", letter(i), m.Against)
		}
		if m.AgainstCut > 0 {
			fmt.Fprintf(w, "%s: %s hold a token that only one of the two models has, and are read up to there\n", letter(i), report.Count(m.AgainstCut, "answer"))
		}
	}
}

// letter returns a model's name in the table.
func letter(i int) string { return string(rune('A' + i%26)) }

// noInterval stands in the table where a figure has no interval.
const noInterval = "[-]"

// figureRank returns a sort key that puts the shares of labels after the checker's score.
func figureRank(key string) int {
	switch {
	case key == "check":
		return 0
	case strings.HasPrefix(key, "label: "):
		return 1
	}
	return 2
}

// difference returns one cell: the difference, its interval, and a verdict.
func difference(of map[string]quality.Difference, key string, better int) string {
	d, ok := of[key]
	if !ok {
		return ""
	}
	if d.CI95 == nil {
		return fmt.Sprintf("%+.3f %s", d.Value, noInterval)
	}
	says := "within noise"
	switch up := d.CI95[0] > 0; {
	case d.CI95[0] <= 0 && d.CI95[1] >= 0:
	case better == 0 && up:
		says = "more"
	case better == 0:
		says = "less"
	case up == (better > 0):
		says = "better"
	default:
		says = "worse"
	}
	return fmt.Sprintf("%+.3f [%+.3f, %+.3f] %s", d.Value, d.CI95[0], d.CI95[1], says)
}

// printFresh writes the part of the table about fresh discriminators.
func printFresh(all comparedJSON, line func(...string), cell func(float64, *[2]float64) string) {
	row := func(name, note string, of func(e quality.Evaluation) string) {
		cells, any := []string{name}, false
		for _, e := range all.Models {
			cells = append(cells, of(e))
			any = any || cells[len(cells)-1] != ""
		}
		if any {
			line(append(cells, note)...)
		}
	}
	interval := func(x *float64, ci *[2]float64) string {
		if x == nil {
			return ""
		}
		return cell(*x, ci)
	}
	number := func(x *float64) string {
		if x == nil {
			return ""
		}
		return fmt.Sprintf("%.3f", *x)
	}
	cells, any := []string{"fresh discriminator"}, false
	for _, e := range all.Models {
		says := ""
		switch {
		case e.FreshDAcc != nil:
			says = cell(*e.FreshDAcc, e.FreshDCI95)
		case e.FreshDTies != nil && *e.FreshDTies == 1:
			says = "all answers equal"
		case e.FreshDLearned != nil && *e.FreshDLearned:
			says = "too few pairs to judge"
		case e.FreshDLearned != nil:
			says = "not learned: no finding"
		case e.FreshDNote != "":
			says = "none"
		}
		any = any || says != ""
		cells = append(cells, says)
	}
	if !any {
		return
	}
	for _, d := range all.Differences {
		cells = append(cells, difference(d.values, "fresh_d_acc", -1))
	}
	if len(all.Models) == 1 && all.Models[0].FreshDAcc != nil {
		cells = append(cells, "held-out accuracy; 0.5: cannot tell student from teacher")
	}
	line(cells...)
	row("  on pairs it learned from", "",
		func(e quality.Evaluation) string { return number(e.FreshDTrained) })
	row("  control",
		"the same training on the teacher's answers and copies of them with one token replaced",
		func(e quality.Evaluation) string { return interval(e.FreshDControl, e.FreshDControlCI95) })
	row("  same text as the teacher's", "answers that are left out of it",
		func(e quality.Evaluation) string { return interval(e.FreshDTies, e.FreshDTiesCI95) })
	row("  trained", "", func(e quality.Evaluation) string {
		if e.FreshDSteps == 0 {
			return ""
		}
		text := fmt.Sprintf("%d x %d steps", e.FreshDSeeds, e.FreshDSteps)
		if e.FreshDRead > 0 {
			text += fmt.Sprintf(", %d tokens", e.FreshDRead)
		}
		return text
	})
	notes := map[string][]string{} // models by note
	for i, e := range all.Models {
		if e.FreshDLearned != nil && !*e.FreshDLearned &&
			(e.FreshDTies == nil || *e.FreshDTies < 1) && e.FreshDSteps > 0 {
			notes[whyNotLearned(e)] = append(notes[whyNotLearned(e)], letter(i))
		}
		if e.FreshDNote != "" {
			text := "fresh discriminators were shortened: " + e.FreshDNote
			if e.FreshDSteps == 0 {
				text = "no fresh discriminator: " + e.FreshDNote
			}
			notes[text] = append(notes[text], letter(i))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(notes)) {
		if about := notes[n]; len(about) < len(all.Models) {
			n += " (" + strings.Join(about, ", ") + ")"
		}
		line(n)
	}
}

// whyNotLearned returns why no accuracy is reported, and what to do.
func whyNotLearned(e quality.Evaluation) string {
	why := "neither its accuracy nor the control is clearly above chance"
	if e.FreshDTrained != nil && *e.FreshDTrained < 0.6 {
		why = "it does not even rank the pairs that it learned from"
	}
	return "the fresh discriminator has not learned: " + why +
		": give more rows, more --disc-minutes or another --disc-lr"
}
