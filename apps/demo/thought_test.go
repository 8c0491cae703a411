package demo

import (
	"fmt"
	"strings"
	"testing"
)

// evaluated is gad eval --json of students, with these shares of right answers.
func evaluated(shares ...float64) []byte {
	var models []string
	for i, x := range shares {
		models = append(models, fmt.Sprintf(
			`{"model":"m%d","rows":100,"check":%g,"check_ci95":[%g,%g]}`, i, x, x-0.05, x+0.05))
	}
	return []byte(`{"models":[` + strings.Join(models, ",") + `]}`)
}

// What the table is read as depends on whose intervals lie apart.
func TestThought(t *testing.T) {
	for _, c := range []struct {
		test, longer []float64
		want, not    string
	}{
		{[]float64{0.9, 0.5, 0.5, 0.5}, []float64{0, 0.7, 0.7, 0.7}, "goes on to walks that are longer", "better.\n"},
		{[]float64{0.5, 0.5, 0.5, 0.5}, []float64{0.5, 0.1, 0.1, 0.1}, "which is not what chunks are for", "ahead"},
		{[]float64{0.5, 0.5, 0.8, 0.8}, []float64{0.1, 0.1, 0.1, 0.1}, "The game made it better", "one sequence is better"},
		{[]float64{0.9, 0.5, 0.2, 0.2}, []float64{0.1, 0.1, 0.1, 0.1}, "one sequence is better: all that it needs", "made it better"},
		{[]float64{0.5, 0.5, 0.2, 0.2}, []float64{0.1, 0.1, 0.1, 0.1}, "The game made it worse", "better"},
		{[]float64{0.5, 0.5, 0.5, 0.8}, []float64{0.1, 0.1, 0.1, 0.1}, "branch taught it more", "game made it"},
		{[]float64{0.5, 0.5, 0.5, 0.5}, []float64{0.5, 0.5, 0.5, 0.1}, "branch taught it less", "branch changes"},
		{[]float64{0.5, 0.5, 0.8, 0.8}, []float64{0.1, 0.1, 0.1, 0.1}, "Whether thoughts branch changes nothing", "taught it"},
	} {
		var rows []*thoughtRow
		for _, name := range []string{"one sequence", "chunks", "chunks, game", "trees"} {
			rows = append(rows, &thoughtRow{arm: &arm{name: name}, Right: map[string]float64{},
				RightCI: map[string][2]float64{}})
		}
		for set, shares := range map[string][]float64{"test": c.test, "longer": c.longer} {
			if err := readThought(rows, set, evaluated(shares...)); err != nil {
				t.Fatal(err)
			}
		}
		if got := (&run{}).whyThought(rows); !strings.Contains(got, c.want) ||
			strings.Contains(got, c.not) {
			t.Errorf("%v, longer %v: %s", c.test, c.longer, got)
		}
		want := fmt.Sprintf("\nchunks                 %5.1f %% (%.1f-%.1f)", 100*c.test[1],
			100*c.test[1]-5, 100*c.test[1]+5)
		if table := thoughtTable(rows, 100); !strings.Contains(table, want) {
			t.Errorf("lacks %q:\n%s", want, table)
		}
	}
	rows := []*thoughtRow{{arm: &arm{}}, {arm: &arm{}}, {arm: &arm{}}}
	for name, raw := range map[string]string{
		"2 models, 3 were named": string(evaluated(0.1, 0.2)),
		"has no check":           `{"models":[{"model":"a"},{"model":"b"},{"model":"c"}]}`,
		"invalid character":      "no JSON",
	} {
		if err := readThought(rows, "test", []byte(raw)); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
