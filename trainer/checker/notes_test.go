package checker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// A coach's notes are read whatever else a line has; a line of another form has none, and only what
// would give one answer's notes to another ends the call.
func TestCoach(t *testing.T) {
	lines := []string{`{"notes":"Count anew."}`,
		`{"score":0.5,"label":"x","notes":"Walk first.\nThen turn."}`,
		`null`, `1`, ``, `no json`, `{"notes":null}`, `{"notes":7}`, `{"notes":["a"]}`, `["notes"]`,
		`{"notes":"a"} {"notes":"b"}`, `{"score":"high","notes":"kept"}`}
	want := map[int]string{0: "Count anew.", 1: "Walk first.\nThen turn.", 11: "kept"}
	var in []Row
	for i := range lines {
		in = append(in, Row{Row: i, Prompt: "p"})
	}
	print := "cat <<'EOT'\n" + strings.Join(lines, "\n") + "\nEOT"
	got, err := NewCoach(print, 20*time.Second).Check(context.Background(), in)
	if err != nil || len(got) != len(lines) {
		t.Fatal(got, err)
	}
	for i, v := range got {
		if v.Notes != want[i] || !v.None() {
			t.Errorf("%s: %+v, want notes %q", lines[i], v, want[i])
		}
		raw, err := v.MarshalJSON()
		var back Verdict
		if err != nil || back.UnmarshalJSON(raw) != nil || back.Notes != v.Notes {
			t.Errorf("%s is written as %s", lines[i], raw)
		}
	}
	plain, err := New(`echo '{"score":1,"label":"x","notes":"n"}'`,
		20*time.Second).Check(context.Background(), in[:1])
	if err != nil || plain[0] != (Verdict{1, "x", "n"}) {
		t.Errorf("a checker with notes: %+v, %v", plain, err)
	}
	for command, want := range map[string]string{
		"echo '{}'":                  "row 1 has no score: printed 1 of 12",
		print + "\necho '{}'":        "printed more than the 12 lines for 12 rows",
		print + "\nexit 3":           "ended with exit status 3",
		"head -c 70000 /dev/zero":    "a line of more than 65536 bytes",
		"sleep 30 >/dev/null 2>&1 &": "printed 0 of 12",
	} {
		_, err := NewCoach(command, 20*time.Second).Check(context.Background(), in)
		if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", command, err, want)
		}
	}
	_, err = NewCoach("sleep 30", 100*time.Millisecond).Check(context.Background(), in)
	if err == nil || !strings.Contains(err.Error(), "raise the time limit (coach.timeout)") {
		t.Error(err)
	}
}

// What a teacher may not read as notes is refused, and the rest is cleaned.
func TestCleanNotes(t *testing.T) {
	const prompt = "Say which of the nine old towns on the river has a bridge of stone."
	const answer = "The town of Aue has a bridge of stone, and it was built long ago by monks."
	for notes, want := range map[string]string{
		" Name the town.\r\n\x1b[2J\x00Be brief. ": "Name the town.\n[2JBe brief.",
		"town\xff": "town\uFFFD",
		"which of the nine old towns on the river has a bridge of stone: name it": "which of the nine old towns on the river has a bridge of stone: name it",
		"It was built long ago by others.":                                        "It was built long ago by others.",
	} {
		if got, err := CleanNotes(notes, answer, prompt); err != nil || got != want {
			t.Errorf("%q: %q, %v", notes, got, err)
		}
	}
	for notes, why := range map[string]string{
		"":                          "without text",
		" \n\x00\t":                 "without text",
		answer:                      "the answer's own text",
		"built  LONG ago by monks.": "the answer's own text",
		"It says: and it was built long ago by monks. Is it true?": "eight words of the answer",
		strings.Repeat("x", MaxNotes+1):                            "more than 16384 bytes",
	} {
		if got, err := CleanNotes(notes, answer, prompt); err == nil || got != "" ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("%.60q: %q, %v, want %s", notes, got, err, why)
		}
	}
	if _, err := CleanNotes("a\tb", "a\t\x01b\x02", ""); err == nil {
		t.Error("an answer with control characters is repeated")
	}
	if got, err := CleanNotes("The result is 42, not 41.", "41", prompt); err != nil || got == "" {
		t.Errorf("notes that name a short answer: %v", err)
	}
}
