package data

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"
	"github.com/parquet-go/parquet-go"

	"gad/internal/vfs"
)

// teacherFiles are three rows in every format, with columns hint, which is text, and turns, a list
// of structs where the format has them. The second row has neither.
func teacherFiles(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	type turn struct {
		Role    string `parquet:"role"`
		Content string `parquet:"content"`
	}
	type row struct {
		Content string  `parquet:"content"`
		Teacher string  `parquet:"teacher_response"`
		Hint    *string `parquet:"hint,optional"`
		Turns   []turn  `parquet:"turns,list,optional"`
	}
	text := arrow.BinaryTypes.String
	schema := arrow.NewSchema([]arrow.Field{{Name: "content", Type: text},
		{Name: "teacher_response", Type: text}, {Name: "hint", Type: text, Nullable: true},
		{Name: "turns", Nullable: true, Type: arrow.ListOf(arrow.StructOf(
			arrow.Field{Name: "role", Type: text}, arrow.Field{Name: "content", Type: text}))}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	var lines, csv strings.Builder
	csv.WriteString("content,teacher_response,hint,turns\n")
	var rows []row
	for i := range 3 {
		q, hint := fmt.Sprintf("question %d", i), fmt.Sprintf("hint %d", i)
		b.Field(0).(*array.StringBuilder).Append(q)
		b.Field(1).(*array.StringBuilder).Append("yes")
		if i == 1 {
			fmt.Fprintf(&lines, `{"content":%q,"teacher_response":"yes","hint":null}`+"\n", q)
			fmt.Fprintf(&csv, "%s,yes,,\n", q)
			rows = append(rows, row{Content: q, Teacher: "yes"})
			for k := 2; k < 4; k++ {
				b.Field(k).AppendNull()
			}
			continue
		}
		turns := fmt.Sprintf(`[{"role":"system","content":"s%d"},{"role":"user","content":"u%d"}]`, i, i)
		fmt.Fprintf(&lines,
			`{"content":%q,"teacher_response":"yes","hint":%q,"turns":%s,"more":{"hint":%q}}`+"\n",
			q, hint, turns, hint)
		fmt.Fprintf(&csv, "%s,yes,%s,\"%s\"\n", q, hint, strings.ReplaceAll(turns, `"`, `""`))
		rows = append(rows, row{q, "yes", &hint, []turn{{"system", fmt.Sprint("s", i)},
			{"user", fmt.Sprint("u", i)}}})
		b.Field(2).(*array.StringBuilder).Append(hint)
		list := b.Field(3).(*array.ListBuilder)
		list.Append(true)
		inside := list.ValueBuilder().(*array.StructBuilder)
		for _, m := range rows[i].Turns {
			inside.Append(true)
			inside.FieldBuilder(0).(*array.StringBuilder).Append(m.Role)
			inside.FieldBuilder(1).(*array.StringBuilder).Append(m.Content)
		}
	}
	files := map[string]string{}
	for _, name := range []string{"rows.jsonl", "rows.csv", "rows.arrow", "rows.parquet"} {
		files[name] = filepath.Join(dir, name)
	}
	writeArrow(t, files["rows.arrow"], b)
	writeTest(t, files["rows.jsonl"], lines.String())
	writeTest(t, files["rows.csv"], csv.String())
	if err := parquet.WriteFile(files["rows.parquet"], rows); err != nil {
		t.Fatal(err)
	}
	return files
}

// A teacher's prompt is a text or messages in every format, read from the file and from kept rows;
// the row's own prompt stays, and the digest covers both.
func TestTeacherColumns(t *testing.T) {
	var digest string
	for name, path := range teacherFiles(t) {
		for _, key := range []string{"hint", "turns", "more.hint"} {
			if strings.Contains(key, ".") && name != "rows.jsonl" {
				continue
			}
			cols := DefaultColumns()
			plain := openFiles(t, Options{Columns: cols}, path).Digest()
			cols.TeacherPrompt, cols.TeacherBy = key, "hint"
			if key == "turns" {
				cols.TeacherBy = ""
			}
			s := openFiles(t, Options{Columns: cols}, path)
			if key == "turns" {
				if digest == "" {
					digest = s.Digest()
				}
				if s.Digest() != digest || digest == plain {
					t.Errorf("%s: digest %.12s, of the first format %.12s, without the columns %.12s",
						name, s.Digest(), digest, plain)
				}
			}
			enc := &counted{}
			for _, way := range []string{"the file", "kept rows"} {
				if way == "kept rows" {
					keep := Keep{FS: vfs.OS, Dir: t.TempDir(), Encoder: "e"}
					if err := s.Encode(enc, EncodeOptions{Keep: keep},
						func(int, Measure) bool { return true }); err != nil {
						t.Fatal(err)
					}
					if _, _, made := s.Kept(); !made {
						t.Fatal("no rows are kept")
					}
				}
				for i := range 3 {
					row, err := s.Row(i)
					if err != nil {
						t.Fatal(err)
					}
					want := []Message{{Role: "user", Content: fmt.Sprint("hint ", i)}}
					if key == "turns" {
						want = []Message{{Role: "system", Content: fmt.Sprint("s", i)},
							{Role: "user", Content: fmt.Sprint("u", i)}}
					}
					by := fmt.Sprint("hint ", i)
					if i == 1 {
						want = nil
					}
					if i == 1 || key == "turns" {
						by = ""
					}
					if row.TeacherBy != by {
						t.Errorf("%s, %s: row %d: taught by %q, want %q", name, way, i,
							row.TeacherBy, by)
					}
					if !slices.Equal(row.TeacherPrompt, want) ||
						row.PromptText() != fmt.Sprint("question ", i) {
						t.Errorf("%s, %s, %s: row %d: %v, its prompt %q", name, key, way, i,
							row.TeacherPrompt, row.PromptText())
					}
				}
			}
		}
	}
}

// A column that is missing, is read for something else, or has another value is refused by name.
func TestTeacherColumnFaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	writeTest(t, path, `{"content":"q","teacher_response":"a","hint":"h","tags":["b"]}`+"\n")
	csv := filepath.Join(t.TempDir(), "rows.csv")
	writeTest(t, csv, "content,teacher_response,hint\nq,a,h\n")
	for _, c := range []struct{ path, prompt, by, want string }{
		{csv, "", "tag",
			`columns "content", "teacher_response", "hint": no "tag" among them, which teacher.by names`},
		{path, "", "tags", `row 0: column "tags": a list: teacher.by needs a text or a number there`},
		{csv, "hints", "",
			`columns "content", "teacher_response", "hint": no "hints" among them, which teacher.prompt_key (--teacher-prompt-key) names`},
		{path, "teacher_response", "",
			`column "teacher_response": teacher.prompt_key (--teacher-prompt-key) names it, and it is read for something else`},
		{path, "tags", "", `row 0: column "tags": turn 0: "\"b\"" is no object with role and content`},
	} {
		cols := DefaultColumns()
		cols.TeacherPrompt, cols.TeacherBy = c.prompt, c.by
		s, err := OpenFiles([]string{c.path}, Options{Columns: cols})
		if err == nil {
			_, err = s.Row(0)
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v\nwant %s", c.prompt, err, c.want)
		}
	}
}
