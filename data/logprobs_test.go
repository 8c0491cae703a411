package data

import (
	"errors"
	"fmt"
	"gad/data/layout"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// What an OpenAI-format server gives of an answer is the same in each format, and is kept by
// conversions. The files are pyarrow's.
func TestLogprobsOfFiles(t *testing.T) {
	want := []string{
		`[["caf",-0.125,"Caf",-2.5],[[195],-0.25,"e",-1.75],[[169],0],[".",-0.5,"!",-1.5]]`, "",
		`[["once",-9999,"now",-0.0625]]`, `[["one",-0.5]]`}
	of := func(path string) (digest string) {
		s := openTest(t, path)
		var got []string
		for _, row := range readAll(t, s) {
			got = append(got, row.Logprobs.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q\nwant %q", path, got, want)
		}
		return s.Digest()
	}
	const from = "../testdata/logprobs/served"
	digest := of(from + ".jsonl")
	for _, name := range []string{from + ".arrow", from + ".parquet", from + "_text.parquet"} {
		if got := of(name); got != digest {
			t.Errorf("%s: digest %s, want %s", name, got, digest)
		}
		for _, ext := range []string{"jsonl", "arrow", "arrows", "parquet"} {
			out := filepath.Join(t.TempDir(), "x."+ext)
			if err := Convert(openTest(t, name), out); err != nil {
				t.Fatal(err)
			}
			if got := of(out); got != digest {
				t.Errorf("%s to %s: digest %s, want %s", name, ext, got, digest)
			}
		}
	}
	lines, other := filepath.Join(t.TempDir(), "a.jsonl"), filepath.Join(t.TempDir(), "b.csv")
	writeTest(t, lines, `{"content":"q","teacher_response":"a","teacher_logprobs":[["a",-0.5]]}`)
	writeTest(t, other, "content,teacher_response,teacher_logprobs\nq,a,\"[[\"\"a\"\", -0.25]]\"\n")
	if a, b := openTest(t, lines), openTest(t, other); a.Digest() == b.Digest() {
		t.Error("rows with other log-probabilities have the same digest")
	} else if row, err := b.Row(0); err != nil || row.Logprobs.String() != `[["a",-0.25]]` {
		t.Errorf("CSV: %v, %v", row.Logprobs, err)
	}
	typed := filepath.Join(t.TempDir(), "x.jsonl")
	writeTest(t, typed, `{"content":"q","teacher_response":"a","teacher_logprobs":-0.5}`)
	fault := "data: " + typed + `: row 0: column "teacher_logprobs": not log-probabilities of tokens: "-0.5": not a list: remove the column, or the value of this row`
	if _, err := openTest(t, typed).Row(0); err == nil || err.Error() != fault {
		t.Errorf("%v\nwant %s", err, fault)
	}
}

func TestReadLogprobs(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	for _, c := range []struct{ value, want, fault string }{
		{value: "null"}, {value: " [ ] "}, {value: `{"content":null,"refusal":null}`},
		{value: `{"content":[]}`},
		{value: ` [["a" , -1.50, "b",-2e0 ]] `, want: `[["a",-1.5,"b",-2]]`},
		{value: `[["\u00e9\"\\",-1,[195],-2,[],-3]]`, want: `[["é\"\\",-1,[195],-2,"",-3]]`},
		// a surrogate without its other half is no text that a token writes
		{value: `[["\ud83d",-1]]`, want: "[[\"\uFFFD\",-1]]"},
		{value: `[["a",-1,"a",-1,"b",-2,[97],-3]]`, want: `[["a",-1,"b",-2]]`},
		{value: `[["a",null,"b",-9999,"c",-1e400,"d",null,"e",-0.25]]`, want: `[["a",-9999,"e",-0.25]]`},
		{value: `[["a",1e-4,"b",-80]]`, want: `[["a",0,"b",-80]]`},
		{value: `[["` + long + `",-1]]`, want: `[["` + long + `",-1]]`},
		{value: `{"content":[{"token":"x","logprob":-1,"bytes":[255,0],"top_logprobs":[{"token":"x","logprob":-1,"bytes":[255,0]},{"token":"y","logprob":-2,"bytes":null},{"token":"z","logprob":-3,"bytes":[122]},{"token":"v","logprob":-3}]}]}`,
			want: `[[[255,0],-1,"z",-3]]`},
		{value: `[{"token":"x","logprob":-1,"bytes":null},{"token":"y","logprob":-2,"top_logprobs":null}]`,
			want: `[["",-1],["",-2]]`},

		{value: "", fault: "not JSON"}, {value: "[[", fault: "not JSON"},
		{value: `[["a",NaN]]`, fault: "not JSON"}, {value: `[["a",-Infinity]]`, fault: "not JSON"},
		{value: "[[\"\xff\",-1]]", fault: "not valid UTF-8"},
		{value: `"a"`, fault: `"\"a\"": not a list`}, {value: "7", fault: `"7": not a list`},
		{value: `{"tokens":["a"]}`, fault: "an object without content"},
		{value: `[["a",-1],7]`, fault: `token 1: "7": neither a list nor an object with logprob and bytes`},
		{value: `[[]]`, fault: "token 0: 0 elements: tokens and numbers must take turns, from a token on"},
		{value: `[["a"]]`, fault: "token 0: 1 element: tokens and numbers must take turns, from a token on"},
		{value: `[[-1,"a"]]`, fault: `token 0: "-1": not a list`},
		{value: `[["a","-1"]]`, fault: `token 0: log-probability "\"-1\"": not a number`},
		{value: `[["a",true]]`, fault: `token 0: log-probability "true": not a number`},
		{value: `[["a",1e400]]`, fault: `token 0: log-probability "1e400": more than 0`},
		{value: `[["a",0.01]]`, fault: `token 0: log-probability "0.01": more than 0`},
		{value: `[["a",-0.1,"b",-0.2]]`, fault: "token 0: probabilities of 1.724 in all: must be at most 1"},
		{value: `[[[256],-1]]`, fault: `token 0: byte 0 is "256": write whole numbers from 0 to 255`},
		{value: `[[[1,-1],-1]]`, fault: `token 0: byte 1 is "-1": write whole numbers from 0 to 255`},
		{value: `[[["a"],-1]]`, fault: `token 0: byte 0 is "\"a\"": write whole numbers from 0 to 255`},
		{value: `[{"token":"a","bytes":[97]}]`, fault: "token 0: no logprob"},
		{value: `[{"logprob":-1,"bytes":"a"}]`, fault: `token 0: "\"a\"": not a list`},
		{value: `[{"logprob":-1,"top_logprobs":{}}]`, fault: `token 0: "{}": not a list`},
		{value: `[{"logprob":-1,"top_logprobs":[{"logprob":2}]}]`,
			fault: `token 0: top_logprobs: log-probability "2": more than 0`},
		{value: "[[" + strings.TrimSuffix(manyTokens(layout.MaxLogprobs+1), ",") + "]]",
			fault: "token 0: more than 1024 tokens at one place"},
	} {
		got, err := ReadLogprobs([]byte(c.value))
		fault := ""
		if err != nil {
			fault = strings.Replace(err.Error(), "not log-probabilities of tokens: ", "", 1)
			if !errors.Is(err, ErrLogprobs) {
				t.Errorf("%.60s: %v is not ErrLogprobs", c.value, err)
			}
		}
		if got.String() != c.want || fault != c.fault {
			t.Errorf("%.90s: %.90q, %q\nwant %.90q, %q", c.value, got.String(), fault, c.want, c.fault)
		}
		if err == nil {
			again, err := ReadLogprobs([]byte(got.String() + "null"[4*min(1, len(got)):]))
			if err != nil || !reflect.DeepEqual(again, got) {
				t.Errorf("%.60s: written and read again %v (%v), want %v", c.value, again, err, got)
			}
		}
	}
}

// manyTokens are n tokens that are unlike each other.
func manyTokens(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%d",-20,`, i)
	}
	return b.String()
}

// Tokens write an answer however they cut it, also within a character; nothing else does.
func TestSpell(t *testing.T) {
	of := func(tokens ...string) (l Logprobs) {
		for _, s := range tokens {
			l = append(l, []Logprob{{Bytes: s, LogProb: -1}})
		}
		return l
	}
	for _, c := range []struct {
		tokens []string
		text   string
		ends   []int
		ok     bool
	}{
		{[]string{"caf", "\xc3", "\xa9"}, "café", []int{3, 4, 5}, true},
		{[]string{"a", "", "b"}, "ab", []int{1, 1, 2}, true},
		{[]string{"a", "b"}, "ab \n", []int{1, 2}, true},
		{[]string{"a", "b", " ", "\n"}, "ab", []int{1, 2, 3, 4}, true},
		{[]string{"a", "b\n"}, "ab", []int{1, 3}, true},
		{[]string{"ab", ""}, "ab", []int{2, 2}, true},
		{[]string{"ab", "<end>"}, "ab", []int{2}, true},
		{[]string{"ab", "\n", "<end>"}, "ab\n", []int{2, 3}, true},
		{[]string{"ab", "c", "<end>"}, "ab", []int{2}, false},
		{[]string{"ab", "<end>", "\n"}, "ab", []int{2}, false},
		{[]string{"a"}, "ab", []int{1}, false},
		{[]string{"a", "c"}, "ab", []int{1}, false},
		{[]string{"a", "bc"}, "ab", []int{1}, false},
		{[]string{"ac", "b"}, "a b", []int{}, false},
		{[]string{" a"}, "a", nil, false},
		{[]string{"caf", "\uFFFD"}, "café", []int{3}, false},
		{[]string{"\uFFFD"}, "é", nil, false},
		{[]string{"<end>"}, "", nil, true},
	} {
		if ends, ok := of(c.tokens...).Spell(c.text); ok != c.ok ||
			ok && !slices.Equal(ends, c.ends) {
			t.Errorf("%q of %q: %v, %v, want %v, %v", c.tokens, c.text, ends, ok, c.ends, c.ok)
		}
	}
	// Any cut of any bytes, and one byte changed.
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		text := strings.Repeat("aé€😀\n ", 1+r.IntN(4)) + "."
		var tokens []string
		for rest := text; rest != ""; {
			n := r.IntN(min(len(rest), 7) + 1)
			tokens, rest = append(tokens, rest[:n]), rest[n:]
		}
		if _, ok := of(tokens...).Spell(text); !ok {
			t.Fatalf("%q do not write %q", tokens, text)
		}
		k := r.IntN(len(tokens))
		if n := len(tokens[k]); n > 0 && k < len(tokens)-1 {
			b := []byte(tokens[k])
			b[r.IntN(n)] ^= 1
			tokens[k] = string(b)
			if _, ok := of(tokens...).Spell(text); ok {
				t.Fatalf("%q write %q", tokens, text)
			}
		}
	}
}

// What validate and inspect say of rows with log-probabilities.
func TestLogprobsAreSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	writeTest(t, path, `{"content":"p","teacher_response":"one two"}
{"content":"q","teacher_response":"one two","teacher_logprobs":[["one two",-1]]}
{"content":"r","teacher_response":"one two","teacher_logprobs":[["one",-1],[" too",-1],["!",-1]]}
{"content":"s","teacher_response":"one two","teacher_logprobs":[{"token":"one two","logprob":-1}]}
{"content":"t","teacher_response":[{"role":"assistant","content":"one two","reasoning_content":"hm"}],"teacher_logprobs":[["one two",-1]]}
{"content":"u","teacher_response":"one two","teacher_logprobs":[["one",-1],[" too",-1],["!",-1]]}
`)
	s := openTest(t, path)
	const warn = `log-probabilities in column "teacher_logprobs" are not read, and the row has hard labels: `
	for _, enc := range []Encoder{nil, words{}} {
		r, err := Validate(s, enc, Limits{MaxResponse: 2})
		if err != nil {
			t.Fatal(err)
		}
		text := r.String()
		// words label the first token of a row; of 6 rows 2 tokens are within the limit
		want := []string{"soft     5 rows with log-probabilities of the teacher: 1 of 12 tokens (8.3 %) have soft labels; 4 rows not read\n",
			path + ": rows 2 and 5: " + warn + "the bytes of the tokens do not write the answer\n",
			path + ": row 3: " + warn + "the tokens have no bytes\n",
			path + ": row 4: " + warn + "the answer is more than a text, which a template writes\n"}
		if enc == nil {
			want[0] = "soft     5 rows with log-probabilities of the teacher; 4 rows not read\n"
		}
		for _, line := range want {
			if !strings.Contains(text, line) {
				t.Errorf("%s\nwants %s", text, line)
			}
		}
	}
	for i, want := range []string{"  reasoning", "  logprobs   of 1 token\n",
		"  logprobs   of 3 tokens, which are not read: the bytes of the tokens do not write the answer\n"} {
		text := Inspect(s, i).String()
		if has := strings.Contains(text, want); has != (i > 0) ||
			!strings.Contains(text, "  teacher_logprobs     list  <- soft labels\n") {
			t.Errorf("row %d: %s\nwants %s", i, text, want)
		}
	}
}

// Of a conversation the log-probabilities are those of the last answer.
func TestLogprobsOfTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	writeTest(t, path, `{"messages":[{"role":"user","content":"p"},{"role":"assistant","content":"one"},{"role":"user","content":"q"},{"role":"assistant","content":"two"}],"teacher_logprobs":[["two",-1]]}`)
	s := openFiles(t, Options{Turns: TurnsEach}, path)
	rows := readAll(t, s)
	if len(rows) != 2 || rows[0].Logprobs != nil || rows[1].Logprobs.String() != `[["two",-1]]` {
		t.Errorf("%+v", rows)
	}
	if whole := readAll(t, openFiles(t, Options{Turns: TurnsAll}, path))[0]; whole.LogprobsFault() == "" {
		t.Errorf("several turns are one sequence, and have labels: %+v", whole)
	}
}
