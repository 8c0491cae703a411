//go:build unix

package checker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rows are answers of the lengths 0 to n-1, of the data rows 10 and on.
func rows(n int) (out []Row) {
	for i := range n {
		out = append(out, Row{Row: 10 + i, Prompt: "p", Response: strings.Repeat("x", i),
			Teacher: "t", Truncated: i == 1,
			Content: []Message{{Role: "system", Content: "<s>"}, {Role: "user", Content: "p"}}})
	}
	return out
}

// What a program is told, to the byte.
func TestRowsAsTheProgramSeesThem(t *testing.T) {
	got := filepath.Join(t.TempDir(), "in")
	c := New(fmt.Sprintf(`cat > %s; echo "$GAD" >> %s; echo 1; echo 2`, got, got), 10*time.Second)
	in := rows(2)
	in[1].Content = nil
	if _, err := c.Check(context.Background(), in); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(got)
	if err != nil {
		t.Fatal(err)
	}
	self, _ := os.Executable()
	want := `{"row":10,"prompt":"p","content":[{"role":"system","content":"<s>"},{"role":"user","content":"p"}],"response":"","teacher_response":"t","truncated":false}
{"row":11,"prompt":"p","content":[],"response":"x","teacher_response":"t","truncated":true}
` + self + "\n"
	if string(raw) != want {
		t.Errorf("the program read\n%swant\n%s", raw, want)
	}
}

// Programs that keep to the protocol, some of them oddly.
func TestPrograms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command string
		want    []Verdict
	}{
		"numbers": {"echo 1; echo -0.5; echo 2e3",
			[]Verdict{{1, "", ""}, {-0.5, "", ""}, {2000, "", ""}}},
		"objects and labels": {`echo '{"score":1,"label":"walk first","why":"."}'; echo '{"label":"","score":0}'; echo 0`, []Verdict{{1, "walk first", ""}, {}, {}}},
		"no newline at the end": {"echo 1; echo 2; printf 3",
			[]Verdict{{1, "", ""}, {2, "", ""}, {3, "", ""}}},
		"carriage returns": {`printf '1\r\n2\r\n 3 \r\n'`,
			[]Verdict{{1, "", ""}, {2, "", ""}, {3, "", ""}}},
		"reads": {`n=0; while read -r line; do echo $n; n=$((n+1)); done`,
			[]Verdict{{0, "", ""}, {1, "", ""}, {2, "", ""}}},
		"closes its input early": {"exec 0<&-; echo 1; echo 2; sleep 0.1; echo 3",
			[]Verdict{{1, "", ""}, {2, "", ""}, {3, "", ""}}},
		"speaks to people": {"echo hello >&2; echo 1; echo 2; echo 3",
			[]Verdict{{1, "", ""}, {2, "", ""}, {3, "", ""}}},
		"leaves something behind it": {"sleep 5 & echo 1; echo 2; echo 3",
			[]Verdict{{1, "", ""}, {2, "", ""}, {3, "", ""}}},
	} {
		got, err := New(c.command, 20*time.Second).Check(context.Background(), rows(3))
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
	}
	// More than a pipe holds, to a program that never reads.
	many := rows(3)
	many[0].Response = strings.Repeat("long ", 100_000)
	if _, err := New("echo 1; echo 2; echo 3", 20*time.Second).Check(context.Background(),
		many); err != nil {
		t.Errorf("a program that does not read: %v", err)
	}
	if got, err := New("exit 1", time.Second).Check(context.Background(), nil); got != nil ||
		err != nil {
		t.Errorf("no rows: %v, %v: want no program to run", got, err)
	}
}

// A program may have no score for an answer, which goes between ranks as any other verdict does.
func TestNoScore(t *testing.T) {
	t.Parallel()
	got, err := New(`echo null; echo '{"score":null,"label":"unread"}'; echo 0.1`,
		20*time.Second).Check(context.Background(), rows(3))
	if err != nil || len(got) != 3 || !got[0].None() || !got[1].None() ||
		got[1].Label != "unread" || got[2] != (Verdict{0.1, "", ""}) {
		t.Fatalf("%v, %v", got, err)
	}
	raw, err := json.Marshal(got)
	if want := `[{"score":null},{"score":null,"label":"unread"},{"score":0.1}]`; err != nil ||
		string(raw) != want {
		t.Errorf("%s, %v, want %s", raw, err, want)
	}
	var back []Verdict
	if err := json.Unmarshal(raw, &back); err != nil || fmt.Sprint(back) != fmt.Sprint(got) {
		t.Errorf("%v, %v, want %v", back, err, got)
	}
}

// A program that is tried is told what the run will ask, and what it says is known; at any time it
// is told when it will be killed.
func TestTry(t *testing.T) {
	t.Parallel()
	c := New(`echo "$GAD_TRIAL" >&2; echo "$((GAD_DEADLINE - $(date +%s)))" >&2; printf 'a\033[2Jb\n\n' >&2; echo 1`,
		time.Hour)
	got, err := c.Try(context.Background(), rows(1), Trial{Steps: 9, Prompts: 8, Answers: 4,
		Rows: 100, PromptBytes: 12.5, TeacherBytes: 30})
	said := c.Said()
	if err != nil || !slices.Equal(got, []Verdict{{1, "", ""}}) || len(said) != 3 ||
		said[0] != `{"steps":9,"prompts":8,"answers":4,"validation_rows":100,"prompt_bytes":12.5,"teacher_bytes":30}` || said[2] != "a[2Jb" {
		t.Fatalf("%v, %q, %v", got, said, err)
	}
	if left, err := strconv.Atoi(said[1]); err != nil || left < 3000 || left > 3600 {
		t.Errorf("%q seconds are left of an hour", said[1])
	}
	if _, err := New(`test -z "$GAD_TRIAL" && test -n "$GAD_DEADLINE" && echo 1`,
		time.Minute).Check(context.Background(), rows(1)); err != nil {
		t.Errorf("a program that is not tried: %v", err)
	}
}

// Programs that break the protocol: the error is one line and names the program, the
// row, the rule and the way out.
func TestMisbehavingPrograms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ command, want string }{
		"sleeps past the deadline": {"echo 1; sleep 60",
			`row 11 has no score: printed 1 of 3: not finished after 500ms, so it was stopped: make it faster, or raise the time limit (trainer.checker_timeout, --checker-timeout)`},
		"will not be ended": {"trap '' TERM INT HUP PIPE; echo hm >&2; while :; do sleep 1; done",
			`row 10 has no score: printed 0 of 3: not finished after 500ms, so it was stopped: make it faster, or raise the time limit (trainer.checker_timeout, --checker-timeout); it said "hm"`},
		"crashes": {"echo 1; echo Traceback >&2; echo 'KeyError: 7' >&2; kill -SEGV $$",
			`row 11 has no score: printed 1 of 3: ended with signal: segmentation fault: must end with exit status 0; it said "Traceback | KeyError: 7"`},
		"fails after good output": {"echo 1; echo 2; echo 3; exit 3",
			`printed all of 3 scores: ended with exit status 3: must end with exit status 0`},
		"is not there": {"./no-such-program-here 2>/dev/null",
			`row 10 has no score: printed 0 of 3: ended with exit status 127: must end with exit status 0`},
		"NaN":             {"echo 1; echo NaN; echo 1", `row 11 (line 2): score "NaN" is not finite: print a finite number, or {"score":0.5,"label":"a word"}`},
		"infinite":        {"echo -inf", `row 10 (line 1): score "-inf" is not finite: print a finite number, or {"score":0.5,"label":"a word"}`},
		"too large":       {"echo 1e999", `row 10 (line 1): score "1e999" is not finite: print a finite number, or {"score":0.5,"label":"a word"}`},
		"text":            {"echo Loading model...; echo 1", `row 10 (line 1): "Loading model..." is not a score: print a finite number, or {"score":0.5,"label":"a word"}`},
		"long text":       {"echo 1; echo 2; head -c 100 /dev/zero | tr '\\0' a", `row 12 (line 3): "` + strings.Repeat("a", 60) + `..." is not a score: print a finite number, or {"score":0.5,"label":"a word"}`},
		"bytes":           {`printf '\377\n'`, `row 10 (line 1): "\xff" is not a score: print a finite number, or {"score":0.5,"label":"a word"}`},
		"an empty line":   {"echo 1; echo; echo 1; echo 1", `row 11 (line 2): "" is not a score: print a finite number, or {"score":0.5,"label":"a word"}`},
		"no score":        {`echo '{"label":"x"}'`, `row 10 (line 1): "{\"label\":\"x\"}" is not a score: print a finite number, or {"score":0.5,"label":"a word"}`},
		"NaN in JSON":     {`echo '{"score":NaN}'`, `row 10 (line 1): "{\"score\":NaN}" is not a score: print a finite number, or {"score":0.5,"label":"a word"}`},
		"half an object":  {`printf '{"score":1'; exit 0`, `row 10 (line 1): "{\"score\":1" is not a score: print a finite number, or {"score":0.5,"label":"a word"}`},
		"a label to scan": {`printf '{"score":1,"label":"\\u001b[2J"}\n'`, `row 10 (line 1): label "\x1b[2J": must be printable and at most 100 characters: a label names a kind of answer`},
		"too few":         {"echo 1; echo 2", `row 12 has no score: printed 2 of 3: print one line per row, in order`},
		"nothing":         {"true", `row 10 has no score: printed 0 of 3: print one line per row, in order`},
		"too many": {"echo 1; echo 2; echo 3; echo 4",
			`printed more than the 3 lines for 3 rows: print exactly one line per row; messages for people go to standard error`},
		"without end":  {"yes 1", `printed more than the 3 lines for 3 rows: print exactly one line per row; messages for people go to standard error`},
		"a huge line":  {"echo 1; cat /dev/zero", `row 11 (line 2): a line of more than 65536 bytes: print a number or a small object`},
		"a huge error": {"yes problem | head -c 1000000 >&2; exit 1", `row 10 has no score: printed 0 of 3: ended with exit status 1: must end with exit status 0; it said "problem | problem | problem"`},
	} {
		t.Run(name, func(t *testing.T) {
			limit, begun := 20*time.Second, time.Now()
			if strings.Contains(c.want, "500ms") {
				limit = 500 * time.Millisecond
			}
			got, err := New(c.command, limit).Check(context.Background(), rows(3))
			if want := fmt.Sprintf("checker: %q: %s", c.command, c.want); got != nil ||
				err == nil || err.Error() != want || !errors.Is(err, ErrFailed) {
				t.Errorf("%v, %v\nwant %s", got, err, want)
			}
			if d := time.Since(begun); d > time.Minute {
				t.Errorf("took %v", d)
			}
		})
	}
}

// An interruption ends the program at once, with what it has started, and is told
// from a failure.
func TestInterruption(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(c *Checker, cancel func()){
		"context": func(_ *Checker, cancel func()) { cancel() },
		"kill":    func(c *Checker, _ func()) { c.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alive := filepath.Join(t.TempDir(), "alive")
			c := New(fmt.Sprintf("(sleep 2; echo yes > %s) & echo 1 > %s.begun; wait", alive,
				alive),
				time.Minute)
			ctx, cancel := context.WithCancel(context.Background())
			go func() {
				for range 6000 {
					if _, err := os.Stat(alive + ".begun"); err == nil {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				end(c, cancel)
			}()
			begun := time.Now()
			_, err := c.Check(ctx, rows(1))
			if interrupted := errors.Is(err, context.Canceled); err == nil ||
				interrupted != (name == "context") || interrupted == errors.Is(err, ErrFailed) {
				t.Errorf("%s: %v", name, err)
			}
			if time.Since(begun) > 1500*time.Millisecond {
				t.Logf("%s: ended only after %v: whether its children were is not seen", name,
					time.Since(begun))
			} else if time.Sleep(2500 * time.Millisecond); true {
				if _, err := os.Stat(alive); err == nil {
					t.Errorf("%s: what the program had started lived on", name)
				}
			}
			cancel()
			if _, err := c.Check(ctx, rows(1)); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: after the end of the context: %v", name, err)
			}
		})
	}
}

func TestMeanAndShares(t *testing.T) {
	vs := []Verdict{{1, "a", ""}, {0, "b", ""}, {1, "a", ""}, {0, "", ""}}
	m, none := Mean(vs)
	if s := Shares(vs); m != 0.5 || none != 0 || len(s) != 2 || s["a"] != 0.5 || s["b"] != 0.25 {
		t.Errorf("mean %g, shares %v", m, s)
	}
	if m, none := Mean([]Verdict{{1, "", ""}, {math.NaN(), "a", ""}, {0.5, "", ""}}); m != 0.75 ||
		none != 1 {
		t.Errorf("mean %g, %d without a score", m, none)
	}
	if m, none := Mean([]Verdict{{math.NaN(), "", ""}}); !math.IsNaN(m) || none != 1 {
		t.Errorf("mean %g of no score, %d without", m, none)
	}
	if Shares(vs[3:]) != nil {
		t.Error("shares of no label")
	}
}
