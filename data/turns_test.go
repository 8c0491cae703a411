package data

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/hostile"
)

// openTurns opens a file with the given turns.
func openTurns(t *testing.T, path, turns string) *Set {
	t.Helper()
	s, err := OpenFiles([]string{path}, Options{Turns: turns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// whole is a row on one line, with what its turns do.
func whole(r Row) string {
	var b strings.Builder
	turn := func(m Message) {
		fmt.Fprintf(&b, "%s: %s", m.Role, m.Content)
		for _, p := range [][2]string{{"thought", m.Thinking}, {"calls", string(m.ToolCalls)},
			{"id", m.ToolCallID}, {"name", m.Name}} {
			if p[1] != "" {
				fmt.Fprintf(&b, " %s=%s", p[0], p[1])
			}
		}
		if m.Context {
			b.WriteString(" context")
		}
		b.WriteString(" | ")
	}
	for _, m := range r.Messages {
		turn(m)
	}
	b.WriteString("=> ")
	for _, m := range r.Turns {
		turn(m)
	}
	if r.Tools != "" {
		fmt.Fprintf(&b, "[tools %d] ", strings.Count(string(r.Tools), `"name"`))
	}
	return b.String() + r.Teacher
}

const (
	weatherCall = `[{"id":"c1","type":"function","function":{"name":"weather","arguments":{"place":"Bern","days":2}}}]`
	sumCall     = `[{"id":"c2","type":"function","function":{"name":"sum","arguments":{"numbers":[1.0,2.5]}}}]`
)

// The rows of an agent are the same in JSON lines, Arrow and Parquet, in which pyarrow gives the
// arguments of all calls one struct: the nulls of the other call's arguments are left out.
func TestTurns(t *testing.T) {
	want := map[string][]string{
		TurnsLast: {
			"user: Weather in Bern? | assistant:  thought=I ask. calls=" + weatherCall +
				" | tool: grey id=c1 name=weather | => [tools 2] Grey.",
			"user: Sum? | assistant: I add. calls=" + sumCall + " | tool: 3.5 id=c2 name=sum | assistant: 3.5 | user: sure? | assistant: Yes. | user: really? | => [tools 2] Really.",
			"user: Hi | assistant: Hello. | user: Bye | => Bye.",
		},
		TurnsEach: {
			"user: Weather in Bern? | => assistant:  thought=I ask. calls=" + weatherCall +
				" | [tools 2] " + weatherCall,
			"user: Weather in Bern? | assistant:  thought=I ask. calls=" + weatherCall +
				" | tool: grey id=c1 name=weather | => [tools 2] Grey.",
			"user: Sum? | => assistant: I add. calls=" + sumCall + " | [tools 2] I add.\n" +
				sumCall,
			"user: Sum? | assistant: I add. calls=" + sumCall +
				" | tool: 3.5 id=c2 name=sum | => [tools 2] 3.5",
			"user: Sum? | assistant: I add. calls=" + sumCall + " | tool: 3.5 id=c2 name=sum | assistant: 3.5 | user: sure? | assistant: Yes. | user: really? | => [tools 2] Really.",
			"user: Hi | assistant: Hello. | user: Bye | => Bye.",
		},
		TurnsAll: {
			"user: Weather in Bern? | => assistant:  thought=I ask. calls=" + weatherCall +
				" | tool: grey id=c1 name=weather | assistant: Grey. | [tools 2] Grey.",
			"user: Sum? | => assistant: I add. calls=" + sumCall + " | tool: 3.5 id=c2 name=sum | assistant: 3.5 | user: sure? | assistant: Yes. context | user: really? | assistant: Really. | [tools 2] Really.",
			"user: Hi | assistant: Hello. | user: Bye | => Bye.",
		},
	}
	for turns, rows := range want {
		digest := ""
		for _, ext := range []string{"jsonl", "arrow", "parquet"} {
			s := openTurns(t, "../testdata/turns/agent."+ext, turns)
			var got []string
			for i := range s.Len() {
				r, err := s.Row(i)
				if err != nil {
					t.Fatalf("%s: %s: %v", turns, ext, err)
				}
				got = append(got, whole(r))
			}
			if !slices.Equal(got, rows) {
				t.Errorf("%s: %s:\n%s\nwant\n%s", turns, ext, strings.Join(got, "\n"),
					strings.Join(rows, "\n"))
			}
			if digest == "" {
				digest = s.Digest()
			} else if s.Digest() != digest {
				t.Errorf("%s: %s: another digest than the JSON lines", turns, ext)
			}
			// and what is written is read again
			for _, out := range []string{"jsonl", "arrow", "parquet"} {
				path := filepath.Join(t.TempDir(), "copy."+out)
				if err := Convert(s, path); err != nil {
					t.Fatal(err)
				}
				if turns == TurnsEach { // each row has its one turn
					if copied := openTurns(t, path, TurnsLast); copied.Digest() != digest {
						t.Errorf("%s: %s to %s: another digest", turns, ext, out)
					}
				}
				if copied := openTurns(t, path, turns); copied.Digest() != digest {
					t.Errorf("%s: %s to %s: another digest", turns, ext, out)
				}
			}
		}
	}
}

// What a conversation in one column, a weight, "train", a column of thoughts, and forms of calls
// and tools become.
func TestTurnsOfRows(t *testing.T) {
	const talk = `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"r"},{"role":"assistant","content":"b"}]}`
	for _, c := range []struct {
		turns, line string
		want        []string
	}{
		{TurnsEach, talk, []string{"user: q | => a", "user: q | assistant: a | user: r | => b"}},
		{TurnsAll, talk, []string{"user: q | => assistant: a | user: r | assistant: b | b"}},
		{TurnsAll, strings.Replace(talk, `"a"`, `"a","weight":0`, 1), []string{"user: q | assistant: a | user: r | => b"}},
		{TurnsEach, strings.Replace(talk, `"a"`, `"a","train":false`, 1), []string{"user: q | assistant: a | user: r | => b"}},
		{TurnsLast, strings.Replace(talk, `"a"`, `"a","train":false`, 1), []string{"user: q | assistant: a | user: r | => b"}},
		{TurnsEach, strings.Replace(talk, `"b"`, `"b","train":false`, 1), []string{"user: q | => a"}},
		{TurnsLast, strings.Replace(talk, `"b"`, `"b","train":false`, 1), []string{`column "messages": turn 3: the last answer has weight 0 or "train": false: it is not to be learned: remove the row, or the turns after the answer that is`}},
		{TurnsLast, strings.Replace(talk, `"b"`, `"b","train":"no"`, 1), []string{`column "messages": turn 3: column "train": "\"no\"": neither true nor false`}},
		{TurnsAll, `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","train":false}]}`, []string{`column "messages": 2 turns: no turn of the assistant is to be learned (weight 0 or "train": false): remove the row`}},
		// Turns of the prompt are prompt, where the answer stands in a column of its own.
		{TurnsEach, `{"content":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"r"}],"teacher_response":"b"}`, []string{"user: q | assistant: a | user: r | => b"}},
		{TurnsLast, `{"content":"q","teacher_response":"a","reasoning_content":"so"}`, []string{"user: q | => assistant: a thought=so | a"}},
		{TurnsLast, `{"content":"q","teacher_response":[{"role":"assistant","content":"a"},{"role":"user","content":"r"}]}`, []string{`column "teacher_response": 2 turns: the answer must end with a turn of the assistant: remove the turns behind it`}},
		{TurnsLast, `{"content":"q","teacher_response":{"role":"assistant","content":"a"}}`, []string{"user: q | => a"}},
		{TurnsLast, `{"content":"q","teacher_response":"a","tools":"[{\"name\": \"f\"}]"}`, []string{"user: q | => [tools 1] a"}},
		{TurnsLast, `{"content":"q","teacher_response":"a","tools":"f"}`, []string{`column "tools": "f": not JSON: write a list of objects`}},
		{TurnsLast, `{"content":"q","teacher_response":"a","tools":["f"]}`, []string{`column "tools": element 0 is "\"f\"": not an object: write a list of objects`}},
		{TurnsLast, `{"content":"q","teacher_response":"a","tools":[]}`, []string{"user: q | => a"}},
		{TurnsLast, `{"content":"q","teacher_response":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"x\": 1}"}}]}]}`,
			[]string{`user: q | => assistant:  calls=[{"function":{"name":"f","arguments":"{\"x\": 1}"}}] | [{"function":{"name":"f","arguments":"{\"x\": 1}"}}]`}},
		{TurnsLast, `{"content":"q","teacher_response":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"x":null,"y":[null,1.50,1e3,{"z":null}],"<":"é"}}}]}]}`,
			[]string{`user: q | => assistant:  calls=[{"function":{"name":"f","arguments":{"x":null,"y":[null,1.5,1000.0,{"z":null}],"<":"é"}}}] | [{"function":{"name":"f","arguments":{"x":null,"y":[null,1.5,1000.0,{"z":null}],"<":"é"}}}]`}},
		{TurnsLast, `{"content":"q","teacher_response":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[1]}}]}]}`,
			[]string{`column "teacher_response": turn 0: column "tool_calls": call 0: arguments are "[1]": neither an object nor its text: write {"name": ..., "arguments": {...}}`}},
		{TurnsLast, `{"prompt_ids":[5,6],"teacher_response":[{"role":"assistant","content":"a","reasoning_content":"so"}]}`, []string{`column "prompt_ids": 2 tokens: a prompt as tokens, and an answer that is more than a text: give the conversation instead`}},
	} {
		path := filepath.Join(t.TempDir(), "x.jsonl")
		writeTest(t, path, c.line+"\n")
		s := openTurns(t, path, c.turns)
		var got []string
		for i := range s.Len() {
			if r, err := s.Row(i); err != nil {
				got = append(got, strings.TrimPrefix(err.Error(), "data: "+path+": row 0: "))
			} else {
				got = append(got, whole(r))
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %s\n got %q\nwant %q", c.turns, c.line, got, c.want)
		}
	}
	if _, err := OpenFiles([]string{"../testdata/turns/agent.jsonl"}, Options{Turns: "some"}); err == nil || !strings.Contains(err.Error(), `turns "some": use last, all, each (setting data.turns)`) {
		t.Error(err)
	}
}

// Rows of turns are kept as they are encoded, with the spans that are learned.
func TestTurnsAreKept(t *testing.T) {
	for _, turns := range TurnsValues {
		path := "../testdata/turns/agent.jsonl"
		keep := Keep{Dir: t.TempDir(), Encoder: "e"}
		var want []Example
		for pass := range 2 {
			s := openTurns(t, path, turns)
			if err := s.Encode(&counted{}, EncodeOptions{Keep: keep},
				func(int, Measure) bool { return true }); err != nil {
				t.Fatal(err)
			}
			if _, _, made := s.Kept(); made != (pass == 0) {
				t.Fatalf("%s: pass %d: made %v", turns, pass, made)
			}
			plain := openTurns(t, path, turns)
			for i := range s.Len() {
				got, err := s.Example(i, &counted{}, Limits{})
				if err != nil {
					t.Fatal(err)
				}
				fresh, err := plain.Example(i, &counted{}, Limits{})
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, fresh) {
					t.Errorf("%s: row %d is kept as\n%+v, not\n%+v", turns, i, got, fresh)
				}
				want = append(want, fresh)
			}
			if s.Digest() != plain.Digest() {
				t.Errorf("%s: another digest", turns)
			}
		}
		if all := want[1]; turns == TurnsAll && (len(all.Spans) != 3 || all.Spans[0].From != 0) {
			t.Errorf("spans %v", all.Spans)
		}
	}
}

// Validate counts the turns and tokens that are learned, and the conversations that a student's
// template cannot write as one sequence; a row whose tools it does not show is an error.
func TestValidateTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	writeTest(t, path, `{"content":"q","teacher_response":[{"role":"assistant","content":"a b"},{"role":"user","content":"r"},{"role":"assistant","content":"c"}]}
{"content":"p","teacher_response":[{"role":"assistant","content":"a"},{"role":"user","content":"r","name":"rewritten"},{"role":"assistant","content":"c"}]}
{"content":"o","teacher_response":"d","tools":[{"name":"unseen"}]}
`)
	const unseen = `error: F: row 2: the student would not see what the row says: tools: the template does not write them: use a student whose template has them, or remove them from the row`
	for turns, want := range map[string]struct {
		turns, tokens, rewritten int
		lines                    []string
	}{
		TurnsLast: {3, 6, 1, []string{"note: 1 row of several turns cannot be one sequence (data.turns=all), since the chat template rewrites earlier turns when others follow", "learned  3 turns, 6 tokens", unseen}},
		TurnsEach: {5, 11, 1, []string{"learned  5 turns, 11 tokens", unseen}},
		TurnsAll: {5, 7, 1, []string{"learned  5 turns, 7 tokens", unseen,
			`error: F: row 1: turn: the chat template rewrites earlier turns when others follow: set data.turns=each`}},
	} {
		r, err := Validate(openTurns(t, path, turns), words{}, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Turns != want.turns || r.TrainedTokens != want.tokens ||
			r.Rewritten != want.rewritten {
			t.Errorf("%s: %d turns, %d tokens, %d rewritten; want %+v", turns, r.Turns,
				r.TrainedTokens, r.Rewritten, want)
		}
		lines := strings.Split(strings.ReplaceAll(r.String(), path, "F"), "\n")
		for _, line := range want.lines {
			if !slices.Contains(lines, line) {
				t.Errorf("%s: no line %q in\n%s", turns, line, strings.Join(lines, "\n"))
			}
		}
	}
}

// Files of nested turns that are damaged are refused or read otherwise; nothing else happens.
// Without GAD_LONG each place is damaged in one of three ways.
func TestDamagedTurns(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"agent.arrow", "agent.parquet", "agent.jsonl",
		"env_struct.arrow", "env_struct.parquet"} {
		ext := filepath.Ext(name)
		whole, err := os.ReadFile("../testdata/turns/" + name)
		if err != nil {
			t.Fatal(err)
		}
		step := len(whole) / hostile.Share(300)
		if testing.Short() {
			step = len(whole) / 40
		}
		opened, path := 0, filepath.Join(t.TempDir(), "x"+ext)
		for at := 0; at < len(whole); at += step {
			for way, damage := range []func([]byte) []byte{
				func(b []byte) []byte { b[at] ^= 0x41; return b },
				func(b []byte) []byte { b[at] = 0xff; return b },
				func(b []byte) []byte { return b[:at] },
			} {
				if !hostile.InTurn(at/step, way, 3) {
					continue
				}
				if err := os.WriteFile(path, damage(slices.Clone(whole)), 0o644); err != nil {
					t.Fatal(err)
				}
				s, err := OpenFiles([]string{path}, Options{Turns: TurnsEach})
				if err != nil {
					continue
				}
				opened++
				for i := range s.Len() {
					_, _ = s.Example(i, words{}, Limits{})
				}
				s.Close()
			}
		}
		t.Logf("%s: %d damaged files were opened", name, opened)
	}
}
