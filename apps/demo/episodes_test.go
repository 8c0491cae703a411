package demo

import (
	"fmt"
	"strings"
	"testing"
)

// playedLines are the lines of gad eval --env --output of a teacher and of models at both
// temperatures, in which of n episodes as many succeed as right says.
func playedLines(n int, right map[string]int) string {
	var b strings.Builder
	b.WriteString(`{"model":"teacher","success":true,"turns_written":5}` + "\n")
	for model, k := range right {
		for _, temperature := range []int{0, 1} {
			for i := range n {
				label := "jammed"
				if i < k {
					label = "key"
				}
				fmt.Fprintf(&b, `{"model":%q,"temperature":%d,"row":%d,"success":%v,"label":%q,"turns_written":4,"invalid":1}`+"\n", model, temperature, i, i < k, label)
			}
		}
	}
	return b.String()
}

// The table of episodes says who left the house, how, and who did so more often.
func TestPlayed(t *testing.T) {
	arms := []*arm{{name: "SFT", Folder: "a"}, {name: "more", Folder: "b"},
		{name: "GAD", Folder: "c"}}
	text := playedLines(100, map[string]int{"a": 30, "b": 31, "c": 60})
	rows, err := readEpisodes([]byte(text), arms)
	if err != nil {
		t.Fatal(err)
	}
	if r := rows[2]; r.Success != 0.6 || r.Greedy != 0.6 || r.Turns != 4 || r.Invalid != 0.25 ||
		r.Labels["key"] != 60 || r.Labels["jammed"] != 40 {
		t.Errorf("GAD is %+v", r)
	}
	table := episodeTable(rows, 100)
	for _, want := range []string{"100 unseen houses",
		"\nmore                  31.0 % (22.8-40.6) ≈ ",
		"\nGAD                   60.0 % (50.2-69.1) ▲ ", "  25 %     0    60      40     0"} {
		if !strings.Contains(table, want) {
			t.Errorf("lacks %q:\n%s", want, table)
		}
	}
	d := &run{}
	for _, c := range []struct {
		equal, gad *episodeRow
		want       string
	}{{rows[1], rows[2], "more often than with as much SFT.\n"},
		{rows[2], rows[1], "less often than as much SFT does.\n"},
		{rows[0], rows[1], "no more often than as much SFT does. A likely reason: to tell a wrong dial from a right one, the discriminator, as small as the student, would have to work the lock out.\n"}} {
		if got := d.whyEpisodes(c.equal, c.gad); !strings.HasSuffix(got, c.want) {
			t.Errorf("%q does not end with %q", got, c.want)
		}
	}
	for name, wrong := range map[string]string{
		"a broken episode":      strings.Replace(text, `"invalid":1`, `"fault":"it ended"`, 1),
		"is none of the demo's": strings.ReplaceAll(text, `"model":"a"`, `"model":"z"`),
		"episodes":              playedLines(100, map[string]int{"a": 30, "b": 31}),
		"invalid character":     "no JSON\n",
	} {
		if _, err := readEpisodes([]byte(wrong), arms); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
