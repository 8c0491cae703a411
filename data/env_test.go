package data

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"gad/data/layout"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"
)

// envsOf are the Env of a set's rows.
func envsOf(t *testing.T, s *Set) (envs []JSON) {
	t.Helper()
	for _, r := range readAll(t, s) {
		envs = append(envs, r.Env)
	}
	return envs
}

// The column env of each type that pyarrow writes is the same text in JSON lines, Arrow, Parquet
// and CSV, and in what is converted to each of these.
func TestEnv(t *testing.T) {
	for kind, want := range map[string][]JSON{
		"struct": {`{"start":1,"lock":"é <east>","turns":["left","right"],"at":{"x":-1.5,"rooms":[{"n":3},{}]},"open":true}`,
			`{"turns":[]}`, "", `{"start":-9007199254740993,"at":{"rooms":[null]}}`},
		"list":    {"[[1,2],[]]", "[]", "", "[null,[3]]"},
		"map":     {`{"b":2,"a":1}`, "{}", ""},
		"integer": {"12", "0", ""}, "unsigned": {"[18446744073709551615,4294967295]", ""},
		"double": {"0.5", "", "-2.25"},
		"bool":   {"true", "false", ""},
	} {
		dir := t.TempDir()
		var b bytes.Buffer
		w := csv.NewWriter(&b)
		rows := [][]string{{"content", "teacher_response", "env"}}
		for i, env := range want {
			rows = append(rows, []string{fmt.Sprintf("q%d", i), "a", string(env)})
		}
		if err := w.WriteAll(rows); err != nil {
			t.Fatal(err)
		}
		paths := []string{filepath.Join(dir, "rows.csv")}
		writeTest(t, paths[0], b.String())
		for _, ext := range []string{"jsonl", "arrow", "parquet"} {
			paths = append(paths, "../testdata/turns/env_"+kind+"."+ext)
		}
		digest := openTest(t, paths[0]).Digest()
		for _, from := range paths {
			s := openTest(t, from)
			if got := envsOf(t, s); !slices.Equal(got, want) || s.Digest() != digest {
				t.Errorf("%s: %q, want %q; digest %s, want %s", from, got, want, s.Digest(), digest)
			}
			for _, ext := range []string{"jsonl", "arrow", "arrows", "parquet"} {
				out := filepath.Join(dir, filepath.Base(from)+"."+ext)
				if err := Convert(s, out); err != nil {
					t.Fatal(err)
				}
				copied := openTest(t, out)
				if got := envsOf(t, copied); !slices.Equal(got, want) || copied.Digest() != digest {
					t.Errorf("%s to %s: %q, want %q", from, ext, got, want)
				}
			}
		}
	}
}

// What stands in the column, opaque: blanks alone are removed. In JSON lines a string is a string;
// in a column of text it is the JSON. What tools refuse is refused here too.
func TestEnvOfRows(t *testing.T) {
	deep := strings.Repeat("[", 34) + strings.Repeat("]", 34)
	deeper := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	const wayOut = ": write a JSON value, or rename the column if it is for no environment"
	for _, c := range []struct{ value, want, fault string }{
		{value: `{"b": 1.50, "a" : [1e3, -0, null, 12345678901234567890], "n": null}`,
			want: `{"b":1.50,"a":[1e3,-0,null,12345678901234567890],"n":null}`},
		{value: `"\u00e9\ud800 <\/>&\u2028"`, want: `"\u00e9\ud800 <\/>&\u2028"`},
		{value: "\"\u2028 \u0085 é\"", want: "\"\u2028 \u0085 é\""},
		{value: `"{\"a\": 1}"`, want: `"{\"a\": 1}"`},
		{value: `""`, want: `""`}, {value: "0", want: "0"}, {value: "false", want: "false"},
		{value: "[ ]", want: "[]"}, {value: " null ", want: ""},
		{value: deep[1:67], want: deep[1:67]},
		{value: deep, fault: `"` + deep[:40] + `"...: nested more than 32 deep` + wayOut},
		{value: `{"a":{"x":1,"x":2}}`, fault: `"{\"a\":{\"x\":1,\"x\":2}}": key "x" appears twice` + wayOut},
		{value: "1e999", fault: `"1e999": number 1e999: out of range` + wayOut},
	} {
		dir := t.TempDir()
		lines, text := filepath.Join(dir, "x.jsonl"), filepath.Join(dir, "x.csv")
		writeTest(t, lines, `{"content":"q","teacher_response":"a","env":`+c.value+"}\n")
		writeTest(t, text,
			"content,teacher_response,env\nq,a,\""+strings.ReplaceAll(c.value, `"`, `""`)+"\"\n")
		for _, path := range []string{lines, text} {
			row, err := openTest(t, path).Row(0)
			fault := ""
			if err != nil {
				fault = strings.TrimPrefix(err.Error(), "data: "+path+`: row 0: column "env": `)
			}
			if string(row.Env) != c.want || fault != c.fault {
				t.Errorf("%s: %.60s: %q, %s\nwant %q, %s", filepath.Base(path), c.value, row.Env,
					fault, c.want, c.fault)
			}
			if err != nil {
				continue
			}
			for _, ext := range []string{"jsonl", "arrow", "parquet"} { // not a byte is lost
				out := filepath.Join(dir, filepath.Base(path)+"."+ext)
				if err := Convert(openTest(t, path), out); err != nil {
					t.Fatal(err)
				}
				if got, err := openTest(t, out).Row(0); err != nil || got.Env != row.Env {
					t.Errorf("%s: %q, %v, want %q", ext, got.Env, err, row.Env)
				}
			}
		}
	}
	for value, fault := range map[string]string{
		"production": `"production": not JSON`, "{'a': 1}": `"{'a': 1}": not JSON`,
		"1 2": `"1 2": not JSON`, "NaN": `"NaN": not JSON`, `{"a":1`: `"{\"a\":1": not JSON`,
		deeper: `"` + deeper[:40] + `"...: not JSON`, "  ": "", "": "", "null": "",
		"\"\xff\"": "not valid UTF-8",
	} {
		path := filepath.Join(t.TempDir(), "x.csv")
		writeTest(t, path,
			"content,teacher_response,env\nq,a,\""+strings.ReplaceAll(value, `"`, `""`)+"\"\n")
		if fault == "not valid UTF-8" {
			fault += ": re-encode the text"
		} else if fault != "" {
			fault += wayOut
		}
		row, err := openTest(t, path).Row(0)
		if err != nil {
			err = errors.New(strings.TrimPrefix(err.Error(),
				"data: "+path+`: row 0: column "env": `))
		}
		if row.Env != "" || (err == nil) != (fault == "") || err != nil && err.Error() != fault {
			t.Errorf("%.60q: %q, %v, want %s", value, row.Env, err, fault)
		}
	}
	// a column that comes after the rows that tell which columns there are
	path := filepath.Join(t.TempDir(), "late.jsonl")
	writeTest(t, path, strings.Repeat(`{"content":"q","teacher_response":"a"}`+"\n", jsonSample)+
		`{"content":"q","teacher_response":"a","env":7}`+"\n")
	if row, err := openTest(t, path).Row(jsonSample); err != nil || row.Env != "7" {
		t.Errorf("%q, %v", row.Env, err)
	}
}

// writeArrow writes what a builder has as an IPC stream.
func writeArrow(t *testing.T, path string, b *array.RecordBuilder) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := ipc.NewWriter(f, ipc.WithSchema(b.Schema()))
	if err := w.Write(b.NewRecord()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// A Parquet column of a type that is no JSON is refused, however deep the type stands.
func TestEnvOfParquet(t *testing.T) {
	path := "../testdata/turns/env_date.parquet"
	want := "data: " + filepath.Clean(path) + `: column "env": type struct<day: date>: expected a struct, list, number or bool, or JSON as a string: convert the column`
	if _, err := Open(path, DefaultColumns()); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// Arrow columns of other types, and of values that are no JSON.
func TestEnvOfArrow(t *testing.T) {
	const wayOut = ": write a JSON value, or rename the column if it is for no environment"
	nest := func(depth int) arrow.DataType {
		typ := arrow.DataType(arrow.PrimitiveTypes.Int64)
		for range depth {
			typ = arrow.ListOf(typ)
		}
		return typ
	}
	for _, c := range []struct {
		name       string
		typ        arrow.DataType
		json, want string // what the builder gets, and the row's Env or the error
	}{
		{"text", arrow.BinaryTypes.String, `"{\"a\" : [1.50, null]}"`, `{"a":[1.50,null]}`},
		{"large text", arrow.BinaryTypes.LargeString, `"\"x\""`, `"x"`},
		{"words", arrow.BinaryTypes.String, `"production"`,
			`row 0: column "env": "production": not JSON` + wayOut},
		{"dictionary", &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8,
			ValueType: arrow.BinaryTypes.String}, `"[1]"`, "[1]"},
		{"bytes", arrow.BinaryTypes.Binary, `"Iv8i"`,
			`row 0: column "env": not valid UTF-8: re-encode the text`},
		{"null", arrow.Null, "null", ""},
		{"float", arrow.PrimitiveTypes.Float32, "0.25", "0.25"},
		{"unsigned", arrow.PrimitiveTypes.Uint64, `"18446744073709551615"`, "18446744073709551615"},
		{"date", arrow.FixedWidthTypes.Date32, `"2026-01-01"`,
			`column "env": type date32: expected a struct, list, number or bool, or JSON as a string: convert the column`},
		{"dates", arrow.ListOf(arrow.FixedWidthTypes.Date32), `["2026-01-01"]`,
			`row 0: column "env": a value of type date32: re-encode the column`},
		{"deep", nest(24), strings.Repeat("[", 24) + "1" + strings.Repeat("]", 24),
			strings.Repeat("[", 24) + "1" + strings.Repeat("]", 24)},
		{"deeper", nest(33), strings.Repeat("[", 33) + "1" + strings.Repeat("]", 33),
			"message at byte 0: schema of more than 4096 fields or 32 levels: file is corrupt"},
		{"twice", arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64),
			`[{"key":"a","value":1},{"key":"a","value":2}]`,
			`row 0: column "env": "{\"a\":1,\"a\":2}": key "a" appears twice` + wayOut},
	} {
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
			{Name: "content", Type: arrow.BinaryTypes.String},
			{Name: "teacher_response", Type: arrow.BinaryTypes.String},
			{Name: "env", Type: c.typ, Nullable: true}}, nil))
		if err := b.UnmarshalJSON([]byte(`{"content":"q","teacher_response":"a","env":` + c.json +
			"}")); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "x.arrow")
		writeArrow(t, path, b)
		got := ""
		s, err := Open(path, DefaultColumns())
		if err == nil {
			defer s.Close()
			var row Row
			row, err = s.Row(0)
			got = string(row.Env)
		}
		if err != nil {
			got = strings.TrimPrefix(err.Error(), "data: "+path+": ")
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// A small file that names one text many times cannot ask for more than a row may have.
func TestHugeEnv(t *testing.T) {
	typ := arrow.ListOf(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8,
		ValueType: arrow.BinaryTypes.String})
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "content", Type: arrow.BinaryTypes.String}, {Name: "env", Type: typ}}, nil))
	b.Field(0).(*array.StringBuilder).Append("q")
	list := b.Field(1).(*array.ListBuilder)
	list.Append(true)
	for range layout.MaxRowBytes>>20 + 1 {
		texts := list.ValueBuilder().(*array.BinaryDictionaryBuilder)
		if err := texts.AppendString(strings.Repeat("x", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "x.arrow")
	writeArrow(t, path, b)
	_, err := openTest(t, path).Row(0)
	if info, _ := os.Stat(path); err == nil || info.Size() > 2<<20 || err.Error() != "data: "+path+
		`: row 0: column "env": more than 64 MiB in one row: re-encode the column` {
		t.Errorf("%v; file of %d bytes", err, info.Size())
	}
}

// A set without env has the digest that it had; equal words in another environment are another
// prompt, which split may put on the other side.
func TestEnvCounts(t *testing.T) {
	open := func(more ...string) *Set {
		path := filepath.Join(t.TempDir(), "x.jsonl")
		text := ""
		for _, m := range more {
			text += `{"content":"a","teacher_response":"one"` + m + "}\n"
		}
		writeTest(t, path, text)
		return openTest(t, path)
	}
	digests := map[string]bool{}
	for _, m := range []string{"", `,"env":null`} {
		digests[open(m).Digest()] = true
	}
	const was = "f93a771ae4c20a5c4a49c6c7263ee2fe35ded1d110f5e0b51ab1c9296313f079"
	if !digests[was] || len(digests) != 1 {
		t.Errorf("digests without env: %v", digests)
	}
	prompts, rows, measures := map[Key]bool{}, map[Key]bool{}, map[Measure]bool{}
	for _, m := range []string{"", `,"env":1`, `,"env":"1"`, `,"env":[1]`, `,"tools":[{"a":1}]`,
		`,"env":[{"a":1}]`} {
		s := open(m)
		digests[s.Digest()] = true
		row, err := s.Row(0)
		if err != nil {
			t.Fatal(err)
		}
		prompt, whole := row.Keys()
		prompts[prompt], rows[whole], measures[row.Measure()] = true, true, true
	}
	if len(digests) != 6 || len(prompts) != 6 || len(rows) != 6 || len(measures) != 6 {
		t.Errorf("%d digests, %d prompts, %d rows and %d measures of 6", len(digests), len(prompts),
			len(rows), len(measures))
	}

	s := open(`,"env":1`, `,"env":1`, `,"env":2`, "")
	dir := t.TempDir()
	first, second := filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "b.jsonl")
	if n, m, err := Split(s, 0.5, 1, first, second); err != nil || n != 2 || m != 2 {
		t.Fatal(n, m, err)
	}
	sides := [][]JSON{envsOf(t, openTest(t, first)), envsOf(t, openTest(t, second))}
	if slices.Contains(sides[0], "1") == slices.Contains(sides[1], "1") ||
		len(slices.Compact(slices.Sorted(slices.Values(slices.Concat(sides...))))) != 3 {
		t.Errorf("sides %q", sides)
	}

	r, err := Validate(s, words{}, Limits{})
	if err != nil || r.Envs != 3 || r.Counts[KindDuplicate] != 1 ||
		!strings.Contains(r.String(), "\nenv      3 rows\n") {
		t.Errorf("%v\n%s", err, r)
	}
	if r, err = Validate(open(""), words{}, Limits{}); err != nil || r.Envs != 0 ||
		strings.Contains(r.String(), "env") {
		t.Errorf("%v\n%s", err, r)
	}
	info := Inspect(open(`,"env":{"start": 1,"long":"`+strings.Repeat("x", 200)+`"}`), 0)
	if got := info.String(); !slices.Equal(info.More, []string{"env"}) ||
		!strings.Contains(got, "env                  object  <- what an environment gets\n") ||
		!strings.Contains(got, `  env        "{\"start\":1,\"long\":\"`+strings.Repeat("x", 81)+"\"...\n") {
		t.Errorf("inspect:\n%s", got)
	}
}

// Every row that a conversation makes has the env of its row, and rows that are kept have it too.
func TestEnvIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	const row = `{"content":"q%d","teacher_response":[{"role":"assistant","content":"a"},{"role":"user","content":"r"},{"role":"assistant","content":"b"}]%s}` + "\n"
	envs := []JSON{`{"start":1.50,"gone":null}`, "", `"s"`}
	writeTest(t, path, fmt.Sprintf(row, 0, `,"env":{"start": 1.50, "gone": null}`)+
		fmt.Sprintf(row, 1, "")+fmt.Sprintf(row, 2, `,"env":"s"`))
	for _, turns := range TurnsValues {
		var want []JSON
		for _, env := range envs {
			if want = append(want, env); turns == TurnsEach {
				want = append(want, env)
			}
		}
		plain := openTurns(t, path, turns)
		all := make([]int, plain.Len())
		for i := range all {
			all[i] = i
		}
		fresh, err := plain.Examples(all, &counted{}, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		keep := Keep{Dir: t.TempDir(), Encoder: "e"}
		for pass := range 2 {
			s := openTurns(t, path, turns)
			if err := s.Encode(&counted{}, EncodeOptions{Keep: keep},
				func(int, Measure) bool { return true }); err != nil {
				t.Fatal(err)
			}
			if _, _, made := s.Kept(); made != (pass == 0) {
				t.Fatalf("%s: pass %d: made %v", turns, pass, made)
			}
			if got := envsOf(t, s); !slices.Equal(got, want) {
				t.Errorf("%s: pass %d: %q, want %q", turns, pass, got, want)
			}
			got, err := s.Examples(all, &counted{}, Limits{})
			if err != nil || !reflect.DeepEqual(got, fresh) || s.Digest() != plain.Digest() {
				t.Errorf("%s: pass %d: %v\n%+v, want\n%+v", turns, pass, err, got, fresh)
			}
		}
		if got := envsOf(t, plain); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", turns, got, want)
		}
	}
}
