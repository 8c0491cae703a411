package data

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// street writes rows into a file of their own and reads them.
func street(t *testing.T, name, rows string, o Options) *Set {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(rows), 0o644); err != nil {
		t.Fatal(err)
	}
	return openFiles(t, o, path)
}

// The files that other programs write are read as the JSON lines of the same rows: ten forms from
// each of five writers (scripts/fixtures_street.py), eleven from parquet-mr.
func TestStreetFiles(t *testing.T) {
	want := map[string][]Row{}
	for _, kind := range []string{"chat", "qa"} {
		want[kind] = readAll(t, openFiles(t, Options{}, filepath.Join("testdata", "street",
			kind+".jsonl")))
	}
	files, err := filepath.Glob(filepath.Join("testdata", "street", "*-*"))
	java, err1 := filepath.Glob(filepath.Join("testdata", "parquetmr", "*.parquet"))
	if err != nil || err1 != nil || len(files) < 30 || len(java) < 20 {
		t.Fatalf("%d and %d files, %v, %v", len(files), len(java), err, err1)
	}
	for _, file := range append(files, java...) {
		kind := "chat"
		if strings.Contains(file, "-qa") {
			kind = "qa"
		}
		if got := readAll(t, openFiles(t, Options{}, file)); !reflect.DeepEqual(got, want[kind]) {
			t.Errorf("%s:\n got %+v\nwant %+v", file, got, want[kind])
		}
	}
}

// What rows of the street have that others have not: columns that begin late, answers that are
// numbers, roles in other cases, calls without arguments, nulls that are meant, NaN elsewhere.
func TestStreetRows(t *testing.T) {
	one := func(line string, o Options) string {
		s := street(t, "rows.jsonl", line+"\n", o)
		row, err := s.Row(s.Len() - 1)
		if err != nil {
			return err.Error()
		}
		var b strings.Builder
		for _, m := range append(row.Messages, row.Turns...) {
			fmt.Fprintf(&b, "%s: %s%s | ", m.Role, m.Text(), m.Thinking)
		}
		return b.String() + "=> " + row.Teacher + string(row.Tools)
	}
	for k := range 65 {
		late := strings.Repeat(`{"prompt":"q","response":"a"}`+"\n", k) +
			`{"prompt":"q","response":"a","system_prompt":"s"}`
		if got := one(late, Options{}); got != "system: s | user: q | => a" {
			t.Errorf("system message after %d rows: %s", k, got)
		}
	}
	call := func(arguments string) string {
		return `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f"` + arguments + `}}]}]}`
	}
	for _, a := range []string{``, `,"arguments":null`, `,"arguments":""`, `,"arguments":" null "`,
		`,"arguments":{}`} {
		if got := one(call(a), Options{}); !strings.HasSuffix(got,
			`=> [{"function":{"name":"f","arguments":{}}}]`) {
			t.Errorf("arguments %q: %s", a, got)
		}
	}
	path := func(content, teacher string) Options {
		c := DefaultColumns()
		c.Content, c.Teacher = content, teacher
		return Options{Columns: c}
	}
	for _, x := range []struct {
		line, want string
		o          Options
	}{
		{`{"question":"2+2","answer":4}`, "user: 2+2 | => 4", Options{}},
		{`{"question":"2+2","answer":-1.50e3}`, "user: 2+2 | => -1.50e3", Options{}},
		{`{"question":"q","answer":true}`, "not a string", Options{}},
		{`{"question":"q","answer":"a","score":NaN,"x":[1,-Infinity,{"y":"NaN \" NaN"}]}`,
			"user: q | => a", Options{}},
		{`{"question":"q","answer":NaN}`, "not JSON", Options{}},
		{`{"messages":[{"role":"Developer","content":"s"},{"role":"USER","content":"q"},{"role":"Assistant","content":5}]}`,
			"system: s | user: q | => 5", Options{}},
		{`{"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"id":"1","name":"f","arguments":{"x":null}}]}],"tools":[{"name":"f","parameters":{"default":null}}]}`,
			`[{"id":"1","function":{"name":"f","arguments":{"x":null}}}][{"name":"f","parameters":{"default":null}}]`,
			Options{}},
		{`{"inputs":{"question":"q"},"outputs":{"answer":["b","a"]}}`, "user: q | => a",
			path("inputs.question", "outputs.answer.-1")},
		{`{"in":"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}","out":{"choices":[{"message":{"role":"assistant","content":"a"}}]}}`,
			"user: q | => a", path("in.messages", "out.choices.0.message")},
		{`{"input":"[{\"role\":\"user\",\"content\":\"q\"}]","output":"{\"role\":\"assistant\",\"content\":\"a\",\"refusal\":null}"}`,
			"user: q | => a", path("input", "output")},
		{`{"input":"q","output":"{\"role\":\"assistant\",\"content\":\"a\",\"score\":1}"}`,
			`=> {"role":"assistant","content":"a","score":1}`, path("input", "output")},
		{`{"input":"q","output":"{\"role\":\"user\",\"content\":\"a\"}"}`,
			`=> {"role":"user","content":"a"}`, path("input", "output")},
		{`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"refusal":"no"}]}`,
			"has a refusal and no content", Options{}},
		{`{"a.b":{"c":"q"},"teacher_response":"a"}`, "user: q | => a", path("a.b.c",
			"teacher_response")},
		{`{"a":["q"],"teacher_response":"a"}`, "name one by its number",
			path("a.first", "teacher_response")},
		{`{"a":{"c":"q"},"teacher_response":"a"}`, "has no prompt", path("a.b", "teacher_response")},
	} {
		if got := one(x.line, x.o); !strings.HasSuffix(got, x.want) &&
			!strings.Contains(got, x.want) {
			t.Errorf("%s\n got %s\nwant %s", x.line, got, x.want)
		}
	}
}

// Exports of traces are answered by the paths that read them.
func TestPathsThatAreNamed(t *testing.T) {
	for _, x := range []struct{ line, content, teacher, want string }{
		{`{"inputs":{"question":"q"},"outputs":{"answer":"a"}}`, "inputs.question",
			"outputs.answer", "a"},
		{`{"inputs":{"messages":[{"role":"user","content":"q"}]},"outputs":{"messages":[{"role":"assistant","content":"a"}]}}`,
			"inputs.messages", "outputs.messages", "a"},
		{`{"inputs":{"messages":[{"role":"user","content":"q"}]},"outputs":{"generations":[[{"text":"a"}]]}}`,
			"inputs.messages", "outputs.generations.0.0.text", "a"},
		{`{"input":{"messages":[{"role":"user","content":"q"}]},"output":"a"}`, "input.messages",
			"output", "a"},
		{`{"request":{"messages":[{"role":"user","content":"q"}]},"response":{"choices":[{"message":{"role":"assistant","content":"a"}}]}}`,
			"request.messages", "response.choices.0.message", "a"},
		{`{"data":{"text":"q"},"annotations":[{"result":[{"value":{"text":["a"]}}]}]}`,
			"data.text", "annotations.0.result.0.value.text.0", "a"},
	} {
		file := filepath.Join(t.TempDir(), "rows.jsonl")
		if err := os.WriteFile(file, []byte(x.line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenFiles([]string{file}, Options{})
		if way := "--content-key " + x.content + " --teacher-key " + x.teacher + " "; err == nil ||
			!strings.Contains(err.Error(), way) {
			t.Errorf("%s: %v, want %s", x.line, err, way)
			continue
		}
		c := DefaultColumns()
		c.Content, c.Teacher = x.content, x.teacher
		set := openFiles(t, Options{Columns: c}, file)
		row, err := set.Row(0)
		if err != nil || row.Teacher != x.want || len(row.Messages) != 1 ||
			row.Messages[0].Content != "q" {
			t.Errorf("%s: %+v, %v", x.line, row, err)
		}
		if suspect, others := set.Overlooked(); suspect+others != "" {
			t.Errorf("%s: %s%s", x.line, suspect, others)
		}
	}
}

// Compressed files are read as what is in them; what unpacks to too much is refused.
func TestPackedFiles(t *testing.T) {
	rows := strings.Repeat(`{"question":"q é","answer":"a"}`+"\n", 70)
	table := "question,answer\nq é,\"a\r\nb\"\n"
	zip := func(text string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write([]byte(text))
		w.Close()
		return b.String()
	}
	zst := func(text string) string {
		w, _ := zstd.NewWriter(nil)
		return string(w.EncodeAll([]byte(text), nil))
	}
	for _, x := range []struct {
		name, bytes, teacher string
		rows                 int
	}{
		{"a.jsonl.gz", zip(rows), "a", 70}, {"a.jsonl.zst", zst(rows), "a", 70},
		{"a", zip(rows), "a", 70}, {"a.csv.gz", zip(table), "a\r\nb", 1},
		{"a.csv.zst", zst(table), "a\r\nb", 1},
	} {
		s := street(t, x.name, x.bytes, Options{})
		if row, err := s.Row(s.Len() - 1); err != nil || s.Len() != x.rows ||
			row.Teacher != x.teacher {
			t.Errorf("%s: %d rows, %q, %v", x.name, s.Len(), row.Teacher, err)
		}
	}
	shards := t.TempDir()
	for i := range 2 {
		name := filepath.Join(shards, fmt.Sprintf("train-%05d-of-00002.jsonl.gz", i))
		if err := os.WriteFile(name, []byte(zip(rows)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if s := openFiles(t, Options{}, shards); s.Len() != 140 {
		t.Errorf("a folder of compressed shards: %d rows", s.Len())
	}
	path := filepath.Join(t.TempDir(), "bomb.jsonl.gz")
	if err := os.WriteFile(path, []byte(zip(strings.Repeat(" ", 16<<20))), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFiles([]string{path}, Options{}); err == nil ||
		!strings.Contains(err.Error(), "unpacks to more than 5 MiB") {
		t.Errorf("a bomb: %v", err)
	}
}

// Blocks of Anthropic's messages are text, thoughts, calls and turns of tools, in JSON lines and in
// tables; a block that gad has no place for refuses the row.
func TestBlocks(t *testing.T) {
	line := `{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"x"},{"type":"tool_use","id":"c1","name":"f","input":{"a":null}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"21"}]},{"type":"text","text":"and?"}]},{"role":"assistant","content":[{"type":"text","text":"a"}]}]}`
	row, err := street(t, "rows.jsonl", line, Options{}).Row(0)
	if err != nil {
		t.Fatal(err)
	}
	want := []Message{{Role: "system", Content: "s"}, {Role: "user", Content: "q"},
		{Role: "assistant", Content: "x", Thinking: "hm", ToolCalls: `[{"id":"c1","type":"function","function":{"name":"f","arguments":{"a":null}}}]`},
		{Role: "tool", Content: "21", ToolCallID: "c1"}, {Role: "user", Content: "and?"}}
	if !reflect.DeepEqual(row.Messages, want) || row.Teacher != "a" {
		t.Errorf("%+v\n=> %s", row.Messages, row.Teacher)
	}
	c := DefaultColumns()
	c.Content, c.Teacher = "request.messages", "response.content"
	row, err = street(t, "log.jsonl", `{"request":{"messages":[{"role":"user","content":"q"}]},"response":{"content":[{"type":"thinking","thinking":"t"},{"type":"text","text":"a"}]}}`,
		Options{Columns: c}).Row(0)
	if err != nil || len(row.Turns) != 1 || row.Turns[0].Content != "a" ||
		row.Turns[0].Thinking != "t" {
		t.Errorf("a log: %+v, %v", row, err)
	}
	bad := strings.Replace(line, `"type":"tool_use"`, `"type":"server_tool_use"`, 1)
	if _, err := street(t, "rows.jsonl", bad, Options{}).Row(0); err == nil ||
		!strings.Contains(err.Error(), `a part of type "server_tool_use"`) {
		t.Errorf("an unknown block: %v", err)
	}
}

// What is nested deeper is answered by the path or the command that opens it.
func TestNestedWaysIn(t *testing.T) {
	for _, x := range []struct{ line, want string }{
		{`{"id":"1","inputs":{"question":"q"},"outputs":{"answer":"a"}}`,
			"--content-key inputs.question --teacher-key outputs.answer"},
		{`{"input":{"messages":[]},"output":{"role":"assistant","content":"a"}}`,
			"--content-key input.messages --teacher-key output.content"},
		{`{"request":{"messages":[]},"response":{"choices":[{"message":{}}]}}`,
			"--content-key request.messages --teacher-key response.choices.0.message"},
		{`{"title":"t","mapping":{"a":{}},"current_node":"a"}`, "as ChatGPT exports it"},
		{`{"custom_id":"1","response":{"status_code":200,"body":{}},"error":null}`,
			"join them: jq -cn --slurpfile"},
		{`{"message_id":"1","parent_id":null,"text":"t","role":"prompter"}`, "as OASST has it"},
	} {
		path := filepath.Join(t.TempDir(), "rows.jsonl")
		if err := os.WriteFile(path, []byte(x.line), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenFiles([]string{path}, Options{}); err == nil ||
			!strings.Contains(err.Error(), x.want) {
			t.Errorf("%s\n got %v\nwant %s", x.line, err, x.want)
		}
	}
}
