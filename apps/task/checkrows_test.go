package task

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gad/data"
)

// The checker's protocol: a line for a line, in order.
func TestTaskCheck(t *testing.T) {
	two := slices.IndexFunc(Kinds(), func(k Kind) bool { return k.Name == "two-forms" })
	rows, err := Kinds()[two].Make(1, Test, 40)
	if err != nil {
		t.Fatal(err)
	}
	var in strings.Builder
	var want []string
	line := func(prompt, response string, truncated bool, score int, label string) {
		raw, _ := json.Marshal(map[string]any{"row": len(want), "prompt": prompt,
			"content":  []data.Message{{Role: "user", Content: prompt}},
			"response": response, "teacher_response": "", "truncated": truncated})
		fmt.Fprintf(&in, "%s\n", raw)
		want = append(want, fmt.Sprintf(`{"label":%q,"score":%d}`, label, score))
	}
	for _, r := range rows {
		line(r.Prompt, r.Answer, false, 1, r.Form)
		line(r.Prompt, r.Answer, true, 0, r.Form)
		line(r.Prompt, strings.Replace(r.Answer, "way of", "way of "+r.Result, 1), false, 0, r.Form)
		line(r.Prompt, "", false, 0, Other)
	}
	var out strings.Builder
	if err := CheckRows(strings.NewReader(in.String()), &out); err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n"); strings.Join(got,
		"\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", out.String(), strings.Join(want, "\n"))
	}
	for _, c := range []struct{ in, want string }{
		{in.String() + "no json\n",
			"task check: row 161 of standard input: invalid character 'o' in literal null (expecting 'u'): give one JSON object per line"},
		{`{"prompt":"Facing north, go left"}`,
			"task check: row 1 of standard input: prompt or response is missing: each row needs both"},
		{`{"prompt":"What is 1+1?","response":"2"}`,
			`task check: row 1 of standard input: task: question "What is 1+1?": not a question of this task`},
	} {
		if err := CheckRows(strings.NewReader(c.in), &out); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
