package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const rowFixtures = "../testdata/rows"

func openFiles(t testing.TB, o Options, paths ...string) *Set {
	t.Helper()
	s, err := OpenFiles(paths, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// Formats of rows and encodings that pyarrow wrote hold the rows of rows.jsonl,
// found out or asked for.
func TestFormatsOfRows(t *testing.T) {
	want := openTest(t, filepath.Join(fixtures, "rows.jsonl"))
	rows := readAll(t, want)
	for _, c := range []struct{ name, format, note string }{
		{"sharegpt.jsonl", FormatShareGPT, `read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)`},
		{"sharegpt.arrow", FormatShareGPT, "read as sharegpt"},
		{"sharegpt.parquet", FormatShareGPT, "read as sharegpt"},
		{"messages.jsonl", FormatMessages, `read as messages: prompt from column "messages", teacher's answer is its last assistant turn (data.format=messages)`},
		{"messages.arrow", FormatMessages, "read as messages"},
		{"messages.parquet", FormatMessages, "read as messages"},
		{"prompt_completion.jsonl", FormatPromptCompletion, `prompt from column "prompt", teacher's answer from column "completion"`},
		{"prompt_completion.arrow", FormatPromptCompletion, "read as prompt_completion"},
		{"prompt_completion.parquet", FormatPromptCompletion, "read as prompt_completion"},
		{"rows.csv", FormatMessages, ""},
		{"rows.tsv", FormatMessages, ""},
		{"semicolon.csv", FormatMessages, ""},
		{"brotli.parquet", FormatMessages, ""},
		{"delta_byte_array.parquet", FormatMessages, ""},
		{"delta_byte_array_v2.parquet", FormatMessages, ""},
	} {
		for _, format := range []string{"", FormatAuto, c.format} {
			t.Run(c.name+" "+format, func(t *testing.T) {
				s := openFiles(t, Options{Format: format}, filepath.Join(rowFixtures, c.name))
				if got := readAll(t, s); !reflect.DeepEqual(got, rows) {
					for i := range got {
						if !reflect.DeepEqual(got[i], rows[i]) {
							t.Fatalf("row %d\n got %+v\nwant %+v", i, got[i], rows[i])
						}
					}
				}
				if s.Digest() != want.Digest() {
					t.Error("another digest than rows.jsonl")
				}
				if err := s.NeedTeacher(); err != nil {
					t.Error(err)
				}
				note := strings.Join(s.Notes(), "\n")
				if asked := format == c.format; asked && note != "" || !asked &&
					(note == "") != (c.note == "") || !asked && !strings.Contains(note, c.note) {
					t.Errorf("note %q, want %q", note, c.note)
				}
			})
		}
	}
	for _, suffix := range []string{".jsonl", ".arrow", ".parquet"} {
		got := readAll(t, openTest(t, filepath.Join(rowFixtures, "alpaca"+suffix)))
		want := []Row{
			{Index: 0, Messages: []Message{{Role: "user", Content: "Add the numbers.\n4 7 3"}},
				Teacher: "14"},
			{Index: 1, Messages: []Message{{Role: "user", Content: "Name a colour."}},
				Teacher: "red"},
			{Index: 2, Messages: []Message{{Role: "system", Content: "Answer in one word."},
				{Role: "user", Content: "Translate to French.\ncat"}}, Teacher: "chat"},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("alpaca%s\n got %+v\nwant %+v", suffix, got, want)
		}
	}
}

// DELTA_BYTE_ARRAY over many blocks, with nulls, beside the same rows in plain encoding.
func TestDeltaEncodings(t *testing.T) {
	plain, delta :=
		openTest(t, filepath.Join(rowFixtures, "many_plain.parquet")),
		openTest(t, filepath.Join(rowFixtures, "many_delta.parquet"))
	if got, want := readAll(t, delta), readAll(t, plain); !reflect.DeepEqual(got, want) ||
		len(got) != 1000 {
		t.Fatal("rows differ")
	}
	if r, err := delta.Row(7); err != nil || r.ID != "-493" ||
		r.Messages[0].Content != "https://example.org/a/long/common/prefix/00007" ||
		r.Teacher != "the same beginning xxxxxxx" {
		t.Errorf("row 7: %+v, %v", r, err)
	}
}

// An id that is not read is left out, with a word; a column that is needed is refused.
func TestUnreadableColumns(t *testing.T) {
	want := readAll(t, openTest(t, filepath.Join(fixtures, "rows.jsonl")))
	for name, warning := range map[string]string{
		"id_stream_split.parquet": `column "id": encoded as BYTE_STREAM_SPLIT, which is not read: write it with plain, dictionary or delta encoding: left out`,
		"id_struct.parquet":       `column "id": type struct<a: int64>: expected a string or an integer: convert the column: left out`,
		"id_struct.arrow":         `column "id": type struct<a: int64> is not read as the rows' name: left out`,
	} {
		path := filepath.Join(rowFixtures, name)
		s := openTest(t, path)
		for i, row := range readAll(t, s) {
			if row.ID = want[i].ID; !reflect.DeepEqual(row, want[i]) {
				t.Fatalf("%s: row %d: %+v", name, i, row)
			}
		}
		if w := s.Warnings(); !slices.Equal(w, []string{path + ": " + warning}) {
			t.Errorf("%s: warnings %q", name, w)
		}
	}
	cols := DefaultColumns()
	cols.Teacher = "id"
	if _, err := Open(filepath.Join(rowFixtures, "id_struct.parquet"), cols); err == nil || !strings.Contains(err.Error(), `column "id": type struct<a: int64>: expected a string`) {
		t.Errorf("an answer that is a struct: %v", err)
	}
}

// Rows of ShareGPT and their like that need a rule of their own.
func TestFormatRules(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		format, line string
		want         Row    // else
		err          string // part of the error
	}{
		{FormatShareGPT, `{"system":"s","conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}`, Row{Messages: []Message{{Role: "system", Content: "s"}, {Role: "user", Content: "q"}}, Teacher: "a"}, ""},
		{FormatShareGPT, `{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"},{"from":"human","value":"more"}]}`, Row{Messages: []Message{{Role: "user", Content: "q"}, {Role: "assistant", Content: "a"}, {Role: "user", Content: "more"}}}, ""},
		{FormatShareGPT, `{"conversations":[{"from":"human"}]}`, Row{}, `column "conversations": turn 0: has no value: each turn needs from and value`},
		{FormatAlpaca, `{"question":"q","input":null,"answer":"a"}`, Row{Messages: []Message{{Role: "user", Content: "q"}}, Teacher: "a"}, ""},
		{FormatPromptCompletion, `{"prompt":"q","completion":"a"}`, Row{Messages: []Message{{Role: "user", Content: "q"}}, Teacher: "a"}, ""},
		{FormatPromptCompletion, `{"prompt":"q","completion":[{"role":"user","content":"a"}]}`, Row{}, "the answer must end with a turn of the assistant"},
		{FormatMessages, `{"question":"q","response":"a"}`, Row{Messages: []Message{{Role: "user", Content: "q"}}, Teacher: "a"}, ""}, // by --teacher-key response
		{FormatMessages, `{"content":"[1, 2]","teacher_response":"a"}`, Row{Messages: []Message{{Role: "user", Content: "[1, 2]"}}, Teacher: "a"}, ""},
	} {
		path := filepath.Join(dir, "x.jsonl")
		writeTest(t, path, c.line)
		o := Options{Format: c.format, Columns: DefaultColumns()}
		if strings.Contains(c.line, `"question":"q","response"`) {
			o.Columns.Content, o.Columns.Teacher = "question", "response"
		}
		if c.format == FormatAlpaca {
			o.Columns.Content, o.Columns.Teacher = "question", "answer"
		}
		row, err := openFiles(t, o, path).Row(0)
		if c.err == "" && (err != nil || !reflect.DeepEqual(row, c.want)) || c.err != "" &&
			(err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s\n got %+v, %v\nwant %+v, %s", c.line, row, err, c.want, c.err)
		}
	}
}

// Lines of any length are rows, and a byte order mark is no part of one; lines of blanks are none.
func TestLongLines(t *testing.T) {
	line := func(q string) string {
		return fmt.Sprintf(`{"content":%q,"teacher_response":"a"}`, q)
	}
	long, blanks := strings.Repeat("q", 3<<20), strings.Repeat(" ", 3<<20)
	want := []string{long, "short", "padded", "last"}
	path := filepath.Join(t.TempDir(), "x.jsonl")
	for _, text := range []string{
		"\ufeff" + line(long) + "\r\n" + blanks + "\n" + line("short") + "\n" + line("padded") +
			blanks + "\n" + line("last"),
		"\ufeff[" + line(long) + "," + blanks + line("short") + "," + line("padded") + ",\n" +
			line("last") + blanks + "]",
	} {
		writeTest(t, path, text)
		var got []string
		for _, r := range readAll(t, openTest(t, path)) {
			got = append(got, r.Messages[0].Content)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%.9q: %d rows, want %d, or other texts", text, len(got), len(want))
		}
	}
}

// What each file is that is no data: the whole error behind its name.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	utf16 := func(s string) string {
		var b strings.Builder
		for _, c := range s {
			b.WriteByte(byte(c))
			b.WriteByte(0)
		}
		return b.String()
	}
	for _, c := range []struct{ name, text, want string }{
		{"a.jsonl", "\xff\xfe" + utf16(`{"content":"q"}`), "is UTF-16 text: convert it, iconv -f UTF-16 -t UTF-8 OLD > NEW"},
		{"b.jsonl", utf16(`{"content":"q"}`), "is UTF-16 text: convert it, iconv -f UTF-16LE -t UTF-8 OLD > NEW"},
		{"c.jsonl", " \n\n\t", "file is blank: write it again"},
		{"d.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
			"is a Git LFS pointer, not the data: fetch it with git lfs pull"},
		{"e.json", `"text"`, "is JSON, but has no rows: write one object per line, or an array of objects"},
		{"f.safetensors", "\x08\x00\x00\x00\x00\x00\x00\x00{\"a\":{}} and the weights", "is a safetensors model file, not data: give rows with --data, the model's folder with --model"},
		{"g.gguf", "GGUF\x03\x00\x00\x00", "is a GGUF model, not data: give rows with --data"},
		{"h.zip", "PK\x03\x04\x14",
			"is a zip archive (or .xlsx, .pt, .npz): unpack it, or export the table as CSV"},
		{"i.html", "\n<!DOCTYPE html><html>",
			"is a web page, not the data: the download went wrong, so fetch the file itself"},
		{"j.jsonl.zst", "\x28\xb5\x2f\xfd\x04", "the compressed file ends too early: copy it again"},
		{"k.tar", strings.Repeat("a", 257) + "ustar",
			"is a tar archive: unpack it first (tar -xf)"},
		{"l.jsonl", "{\n \"content\": \"q\"\n}\n", "row 0: the object does not end on its line: write one object per line (jq -c . OLD > NEW)"},
		{"m.csv", "content,teacher_response\n\"q,a\n", "line 2: extraneous or missing \" in quoted-field: quote texts as RFC 4180 says, or write JSON lines"},
		{"n.csv", "content,teacher_response\nq,a,b\n",
			"line 2: wrong number of fields: quote texts as RFC 4180 says, or write JSON lines"},
		{"o.txt", "content,teacher_response\nq,a\n", `is neither Arrow IPC, Parquet, JSON nor a .csv or .tsv file (first bytes "content,"): convert it to one of these`},
		{"p.jsonl", `{"conversations":[{"from":"human","value":"q"}],"messages":[{"role":"user","content":"q"}]}`, `columns "messages", "conversations": each may be the conversation: choose with --content-key messages (data.content_key)`},
		{"q.jsonl", `{"user":"q","assistant":"a"}`, `columns "user", "assistant": no "content" among them, and they are no known format of rows: did you mean --content-key user --teacher-key assistant (data.content_key=user data.teacher_key=assistant)?`},
		{"t.jsonl", `{"system_prompt":"s","input":"q","Target":"a"}`, `columns "system_prompt", "input", "Target": no "content" among them, and they are no known format of rows: did you mean --content-key input --teacher-key Target (data.content_key=input data.teacher_key=Target)? The student would not see "system_prompt"`},
		{"r.jsonl", `{"a":"q","b":"a"}`, `columns "a", "b": no "content" among them, and they are no known format of rows: name the column of the conversations with --content-key NAME (data.content_key)`},
	} {
		path := filepath.Join(dir, c.name)
		writeTest(t, path, c.text)
		s, err := Open(path, DefaultColumns())
		if err == nil {
			s.Close()
			t.Errorf("%s was opened", c.name)
		} else if got := strings.TrimPrefix(err.Error(), "data: "+path+": "); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}
	// a column of turns that another format would read
	path := filepath.Join(dir, "s.jsonl")
	writeTest(t, path, `{"content":[{"from":"human","value":"q"}]}`)
	if _, err := OpenFiles([]string{path}, Options{Format: FormatMessages}); err == nil || !strings.HasSuffix(err.Error(), `column "content": its turns have the keys "from", "value", not "role" and "content": give --format sharegpt (data.format=sharegpt)`) {
		t.Error(err)
	}
	if _, err := OpenFiles([]string{path}, Options{Format: FormatAlpaca}); err == nil || !strings.HasSuffix(err.Error(), `columns "content": no "instruction" among them, which data.format=alpaca reads: leave out --format, or name the column with --content-key NAME (data.content_key)`) {
		t.Error(err)
	}
}

// Several files are one set, in the order in which they are given, patterns sorted.
func TestSeveralFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, q := range map[string]string{"b.jsonl": "1", "a.jsonl": "2", "c.jsonl": "3"} {
		writeTest(t, at(name), `{"content":"`+q+`","teacher_response":"x","id":"`+name+`"}`+"\n")
	}
	writeTest(t, at("d.csv"), "content,teacher_response\n4,x\n")
	writeTest(t, at("e.jsonl"), `{"conversations":[{"from":"human","value":"5"},{"from":"gpt","value":"x"}]}`)
	prompts := func(s *Set) (all string) {
		for _, r := range readAll(t, s) {
			all += r.Messages[0].Content
		}
		return all
	}
	for _, c := range []struct {
		want  string
		paths []string
	}{
		{"12", []string{at("b.jsonl"), at("a.jsonl")}},
		{"213", []string{at("[abc].jsonl")}},
		{"3214", []string{at("c.jsonl"), at("[ab].*"), at("d.csv")}},
		{"51", []string{at("e.jsonl"), at("b.jsonl")}},
		{"15", []string{at("b.jsonl") + string(os.PathListSeparator) + at("e.jsonl")}},
	} {
		s := openFiles(t, Options{}, c.paths...)
		if got := prompts(s); got != c.want {
			t.Errorf("%q: %s, want %s", c.paths, got, c.want)
		}
		if r, err := Validate(s, words{}, Limits{}); err != nil || r.Errors > 0 {
			t.Errorf("%q: %v\n%s", c.paths, err, r)
		}
	}
	if s := openFiles(t, Options{}, at("e.jsonl"), at("b.jsonl")); s.Format() != "jsonl" ||
		!slices.Equal(s.Unread(), []string(nil)) {
		t.Errorf("format %s, unread %q", s.Format(), s.Unread())
	}
	for _, c := range []struct {
		want  string
		is    error
		paths []string
	}{
		{at("a.jsonl") + ": given twice: its rows would count twice: give it once", nil,
			[]string{at("a.jsonl"), at("*.jsonl")}},
		{at("*.arrow") + ": the pattern matches no file: check it, and quote it so that the shell does not expand it", fs.ErrNotExist, []string{at("*.arrow")}},
		{"for several files give --data once for each", fs.ErrNotExist,
			[]string{at("a.jsonl") + "," + at("b.jsonl")}},
		{"gad pull --dataset org/some-set fetches it from a hub", fs.ErrNotExist,
			[]string{"org/some-set"}},
	} {
		if _, err := OpenFiles(c.paths, Options{}); err == nil ||
			!strings.HasSuffix(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%q: %v\nwant %s", c.paths, err, c.want)
		}
	}
}

// Splits of a folder as the Hugging Face hub lays it out, of a dict that datasets
// saved, and of plain files.
func TestSplits(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"hub/README.md", "hub/data/train-00000-of-00002.jsonl",
		"hub/data/train-00001-of-00002.jsonl", "hub/data/test-00000-of-00001.jsonl",
		"plain/train.jsonl", "plain/validation.jsonl", "one/rows.jsonl",
		"half/train-00000-of-00002.jsonl"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		writeTest(t, path, `{"content":"q","teacher_response":"a"}`+"\n")
	}
	for _, name := range []string{"tables/a.csv", "tables/notes.md", "both/a.csv", "both/a.jsonl"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		text := "content,teacher_response\nq,a\np,b\n"
		if strings.HasSuffix(name, "l") {
			text = `{"content":"q","teacher_response":"a"}`
		}
		writeTest(t, path, text)
	}
	dict := filepath.Join(fixtures, "saved_dict")
	for _, c := range []struct {
		path, split string
		rows        int
		err         string
	}{
		{filepath.Join(dir, "hub"), "train", 2, ""},
		{filepath.Join(dir, "hub", "data"), "train", 2, ""},
		{filepath.Join(dir, "hub", "data"), "test", 1, ""},
		{filepath.Join(dir, "hub", "data"), "", 0, `contains the splits "test", "train": give one, such as --split train (data.split; data.val_split for validation)`},
		{filepath.Join(dir, "hub", "data"), "dev", 0, `contains no split "dev": it has "test", "train": give one of them with --split (data.split; data.val_split for validation)`},
		{filepath.Join(dir, "plain"), "train", 1, ""},
		{filepath.Join(dir, "plain"), "", 0, `contains the splits "train", "validation": give one, such as --split train (data.split; data.val_split for validation)`},
		{filepath.Join(dir, "one"), "", 1, ""},
		{filepath.Join(dir, "tables"), "", 2, ""},
		{filepath.Join(dir, "both"), "", 1, ""},
		{filepath.Join(dir, "one"), "train", 0, `contains no split "train": its files name none: leave out --split (data.split, data.val_split)`},
		{filepath.Join(dir, "one", "rows.jsonl"), "train", 0, `is one file and has no split "train": leave out --split (data.split, data.val_split)`},
		{filepath.Join(dir, "half"), "train", 0, `only 1 of 2 shards of "train" are there: fetch the missing files`},
		{dict, "train", 8, ""},
		{dict, "test", 4, ""},
		{dict, "", 0, `contains the splits "train", "test": give one, such as --split train (data.split; data.val_split for validation)`},
		{filepath.Join(dict, "train"), "train", 8, ""},
		{filepath.Join(dict, "train"), "test", 0, `contains no split "test": it has "train": give one of them with --split (data.split; data.val_split for validation)`},
	} {
		s, err := OpenFiles([]string{c.path}, Options{Split: c.split})
		switch {
		case err != nil && (c.err == "" || !strings.HasSuffix(err.Error(), ": "+c.err)):
			t.Errorf("%s %q: %v\nwant %s", c.path, c.split, err, c.err)
		case err == nil && (c.err != "" || s.Len() != c.rows):
			t.Errorf("%s %q: %d rows, want %d", c.path, c.split, s.Len(), c.rows)
		}
		if err == nil {
			s.Close()
		}
	}
}

func TestShared(t *testing.T) {
	dir := t.TempDir()
	train, val := filepath.Join(dir, "train.jsonl"), filepath.Join(dir, "val.jsonl")
	row := func(q, a string) string { return `{"content":"` + q + `","teacher_response":"` + a + `"}` + "\n" }
	writeTest(t, train, row("1", "a")+row("1", "a")+row("2", "b")+row("3", "c"))
	writeTest(t, val, row("1", "a")+row("2", "other")+row("4", "d"))
	prompts, rows, err := Shared(openTest(t, train), openTest(t, val))
	if prompts != 2 || rows != 1 || err != nil {
		t.Errorf("%d prompts and %d rows shared, %v: want 2 and 1", prompts, rows, err)
	}
}

// Long work is announced, and every part of it is.
func TestStages(t *testing.T) {
	said := map[string][2]int{}
	ended := 0
	stages := func(name string, total int) (func(int), func()) {
		said[name] = [2]int{0, total}
		return func(n int) { v := said[name]; v[0] += n; said[name] = v }, func() { ended++ }
	}
	path := filepath.Join(fixtures, "rows.jsonl")
	if _, err := Validate(openFiles(t, Options{Stages: stages}, path), words{},
		Limits{}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	size := int(info.Size())
	want := map[string][2]int{path + ": finding rows": {size, size},
		path + ": checking rows": {12, 12}, path + ": digest": {12, 12}}
	if !reflect.DeepEqual(said, want) || ended != 3 {
		t.Errorf("%v, %d ended; want %v", said, ended, want)
	}
}

// Equal mistakes are one line, whatever their number.
func TestEqualProblemsAreOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	writeTest(t, path, strings.Repeat(`{"content":[{"role":"human","content":"q"}],"teacher_response":" "}`+"\n", 3000))
	r, err := Validate(openTest(t, path), words{}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"error: " + path + `: rows 0, 1, 2, 3, 4 and 2995 more: turn 0 of column "content" has the unknown role "human": use system, developer, user, assistant, tool`,
		"error: " + path + `: rows 0, 1, 2, 3, 4 and 2995 more: the conversation in column "content" has no user turn: add one or remove the row`,
		"error: " + path + `: rows 0, 1, 2, 3, 4 and 2995 more: no teacher answer in column "teacher_response" (missing, empty or blank): write one or remove the row`,
		"warning: " + path + `: rows 1, 2, 3, 4, 5 and 2994 more: same prompt and answer as row 0 of ` + path,
		"9000 errors, 2999 warnings",
	}
	if lines := strings.Split(strings.TrimSpace(r.String()),
		"\n"); !slices.Equal(lines[len(lines)-5:], want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines[len(lines)-5:], "\n"),
			strings.Join(want, "\n"))
	}
}

// The digest of a set stands in checkpoints: it must not change with the code.
func TestDigestStays(t *testing.T) {
	for path, want := range map[string]string{
		"rows.jsonl":     "e0f092bdca65028d97e5395cf055697f3e00fb56a8d23f3931d099bd8e8918cb",
		"snappy.parquet": "e0f092bdca65028d97e5395cf055697f3e00fb56a8d23f3931d099bd8e8918cb",
		"ids.jsonl":      "e53676129090f28102dcd853ac70c9125234b93d4f27f0c7defbace4c61ca901",
	} {
		if got := openTest(t, filepath.Join(fixtures, path)).Digest(); got != want {
			t.Errorf("%s: digest %s, want %s", path, got, want)
		}
	}
}

// A limit that cuts every answer is told of the set, not of its rows alone.
func TestEveryAnswerCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	writeTest(t, path, `{"content":"q","teacher_response":"1 2 3"}`+"\n"+`{"content":"p","teacher_response":"1 2 3 4"}`)
	r, err := Validate(openTest(t, path), words{}, Limits{MaxResponse: 2})
	if err != nil || !r.OK() || !slices.Equal(r.Notes, []string{"every answer is over the limit of 2 tokens and no row can make a pair: warmup, train and dpo refuse the set; 5 would keep all answers, 5 99 %"}) {
		t.Errorf("%v %q", err, r.Notes)
	}
}

// doc/data.md names every kind of problem.
func TestKindsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../doc/data.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{KindUnreadable, KindFault, KindNoTeacher, KindNoUser, KindRole,
		KindTemplate, KindTokens, KindLongPrompt, KindLongAnswer,
		KindUnfinished, KindLastTurn, KindBlank, KindControl, KindReplacement, KindLost,
		KindDuplicate, KindUnread, KindMarks, KindThinking} {
		if !strings.Contains(string(text), "| "+kind+" |") {
			t.Errorf("no row for %q", kind)
		}
	}
	for _, format := range RowFormats {
		if !strings.Contains(string(text), "`"+format+"`") {
			t.Errorf("no word on format %q", format)
		}
	}
}
