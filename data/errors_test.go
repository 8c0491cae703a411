package data

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each error names the file, the row or object, what is wrong, and a way out.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		writeTest(t, path, text)
		return path
	}
	fixture := func(name string) string { return filepath.Join(fixtures, name) }
	good := `{"content":"q","teacher_response":"a"}` + "\n"
	saved := func(name, state string) string {
		file(name+"/dataset_info.json", `{}`)
		return filepath.Dir(file(name+"/state.json", state))
	}
	if err := os.Symlink(fixture("stream_plain.arrow"),
		filepath.Join(filepath.Dir(file("link/x", "")), "data.arrow")); err != nil {
		t.Fatal(err)
	}
	cols := DefaultColumns()
	odd := cols
	odd.Content = "conversation"
	wrongList := cols
	wrongList.Content = "tags"
	for _, c := range []struct {
		name string
		path string
		cols Columns
		is   error
		want []string
	}{
		{"missing", filepath.Join(dir, "none"), cols, fs.ErrNotExist,
			[]string{"none", "give a data file"}},
		{"no name", "", cols, nil, []string{"no data set is named"}},
		{"empty file", file("empty.jsonl", ""), cols, ErrTruncated,
			[]string{"empty.jsonl", "file is empty"}},
		{"no rows", file("blank.jsonl", "\n \n{"), cols, ErrTruncated, []string{"blank.jsonl"}},
		{"not data", file("x.parquet", "hello world"), cols, ErrCorrupt, []string{"x.parquet", `"hello wo"`, "convert"}},
		{"gzip", file("x.jsonl", "\x1f\x8b\x08"), cols, nil, []string{"ends too early"}},
		{"no such column", file("c.jsonl", `{"text":"q"}`), cols, nil, []string{"c.jsonl", `"text"`, `"content"`, "data.content_key=text"}},
		{"column renamed", fixture("snappy.parquet"), odd, nil, []string{"snappy.parquet", `"conversation"`, `"teacher_response"`}},
		{"list type, parquet", fixture("snappy.parquet"), wrongList, nil, []string{`column "tags"`, "struct{role, content}"}},
		{"list type, arrow", fixture("file_plain.arrow"), wrongList, nil, []string{`column "tags"`, "struct{role, content}"}},
		{"several splits", fixture("saved_dict"), cols, nil, []string{"saved_dict", `"train"`, `"test"`, "--split train", "data.split"}},
		{"no data in folder", filepath.Dir(file("sub/deep/readme.md", "")) + "/..", cols, nil, []string{`"deep"`, "name the folder"}},
		{"a .json file in a folder",
			filepath.Dir(file("answers/roleplay.json", "["+strings.TrimSpace(good)+"]")), cols, nil,
			[]string{"answers", "if roleplay.json holds the rows, name the file"}},
		{"missing shard", filepath.Dir(file("shards/train-00001-of-00003.jsonl", good)), cols, ErrTruncated, []string{"1 of 3 shards", `"train"`, "fetch"}},
		{"two splits in a folder", filepath.Dir(file("two/test-00000-of-00001.jsonl", good) + file("two/train-00000-of-00001.jsonl", good)[:0]), cols, nil, []string{`"test", "train"`, "--split train"}},
		{"columns differ", file("a.jsonl", good) + string(os.PathListSeparator) + file("b.jsonl", `{"content":"q"}`), cols, nil, []string{"b.jsonl", "a.jsonl", "same columns"}},
		{"saved: leaves the folder", saved("out", `{"_data_files":[{"filename":"../a.jsonl"}]}`), cols, nil, []string{"state.json", `"../a.jsonl"`, "inside the folder"}},
		{"saved: absolute", saved("abs", `{"_data_files":[{"filename":"/etc/passwd"}]}`), cols, nil, []string{"inside the folder"}},
		{"saved: file is gone", saved("gone", `{"_data_files":[{"filename":"data.arrow"}]}`), cols, fs.ErrNotExist, []string{"data.arrow"}},
		{"saved: indices", saved("idx", `{"_data_files":[{"filename":"x"}],"_indices_data_files":[{}]}`), cols, nil, []string{"flatten_indices()"}},
		{"saved: link out", saved("link", `{"_data_files":[{"filename":"data.arrow"}]}`), cols, nil, []string{"data.arrow", "is a symbolic link out of the folder"}},
		{"folder: link out", filepath.Dir(linkOut(t, file("outside.jsonl", good))), cols, nil,
			[]string{"a.jsonl", "is a symbolic link out of the folder", "cp -rL"}},
		{"saved: bad state", saved("bad", `{`), cols, ErrCorrupt, []string{"state.json"}},
		{"json array cut", file("cut.json", `[{"content":"q"},{"content":`), cols, ErrTruncated, []string{"row 1"}},
		{"json array, more behind", file("more.json", `[{"content":"q"}] x`), cols, ErrCorrupt, []string{"after the array"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Open(c.path, c.cols)
			if err == nil {
				s.Close()
				t.Fatal("was opened")
			}
			checkError(t, err, c.is, c.want)
		})
	}

	for _, c := range []struct {
		name string
		line string
		is   error
		want []string
	}{
		{"key twice", `{"content":"q","content":"p"}`, ErrCorrupt, []string{`"content"`, "twice"}},
		{"other case", `{"Content":"q"}`, nil, []string{`"content"`, "no prompt", "remove the row"}},
		{"not json", `{"content":`, ErrTruncated, []string{`key "content"`, "cut short"}},
		{"two objects", `{"content":"q"}{}`, ErrCorrupt, []string{"after the object"}},
		{"array", `["q"]`, ErrCorrupt, []string{"not a JSON object"}},
		{"no role", `{"content":[{"content":"q"}]}`, nil, []string{`"content"`, "turn 0", "has no role"}},
		{"null content", `{"content":[{"role":"user","content":null}]}`, nil, []string{"turn 0", "has no content"}},
		{"number for text", `{"content":[{"role":"user","content":true}]}`, nil, []string{"turn 0", "not a string"}},
		{"answer is a list", `{"content":"q","teacher_response":["a"]}`, nil, []string{`"teacher_response"`, "not a string"}},
		{"not UTF-8", "{\"content\":\"q\xff\"}", nil, []string{"not valid UTF-8", "re-encode"}},
		{"answer twice", `{"content":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}],"teacher_response":"a"}`, nil, []string{`"a"`, `"b"`, "differs from the last assistant turn", "one place"}},
		{"negative token", `{"content":"q","response_ids":[1,-2]}`, nil, []string{`"response_ids"`, "element 1 is -2", "not a token id"}},
		{"large token", `{"content":"q","prompt_ids":[4294967296]}`, nil, []string{`"prompt_ids"`, "not a list of token ids"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := file("row.jsonl", good+c.line+"\n")
			s := openTest(t, path)
			if _, err := s.Row(0); err != nil {
				t.Fatalf("the good row: %v", err)
			}
			_, err := s.Row(1)
			if err == nil {
				t.Fatal("was read")
			}
			checkError(t, err, c.is, append(c.want, "row.jsonl: row 1: "))
		})
	}

	s := openTest(t, fixture("rows.jsonl"))
	for _, i := range []int{-1, 12} {
		_, err := s.Row(i)
		if err == nil {
			t.Fatalf("row %d was read", i)
		}
		checkError(t, err, nil, []string{"rows 0 to 11"})
	}
	s.Close()
	if _, err := s.Row(0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed set: %v", err)
	}
}

// linkOut is a file of a folder that is a link to another file.
func linkOut(t *testing.T, to string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.jsonl")
	if err := os.Symlink(to, path); err != nil {
		t.Skip(err)
	}
	return path
}

// The cache of Hugging Face lays a data set out as links; it is read as it lies.
func TestHuggingFaceCache(t *testing.T) {
	top := filepath.Join(t.TempDir(), "datasets--a--b")
	dir := filepath.Join(top, "snapshots", "0123", "data")
	for _, d := range []string{dir, filepath.Join(top, "blobs")} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	writeTest(t, filepath.Join(top, "blobs", "aa"), `{"content":"q","teacher_response":"a"}`+"\n")
	if err := os.Symlink("../../../blobs/aa", filepath.Join(dir, "train.jsonl")); err != nil {
		t.Skip(err)
	}
	if rows := readAll(t, openTest(t, dir)); len(rows) != 1 || rows[0].Teacher != "a" {
		t.Errorf("%+v", rows)
	}
}

func checkError(t *testing.T, err, is error, want []string) {
	t.Helper()
	text := err.Error()
	if !strings.HasPrefix(text, "data: ") || strings.Contains(text, "\n") {
		t.Errorf("not one line of this package: %q", text)
	}
	if is != nil && !errors.Is(err, is) {
		t.Errorf("%q is no %q", text, is)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
}

// A file that changes under an open set is noticed where it can be, and never
// fatal.
func TestFileCutWhileOpen(t *testing.T) {
	for _, name := range []string{"stream_plain.arrow", "file_zstd.arrow", "snappy.parquet",
		"rows.jsonl"} {
		text, err := os.ReadFile(filepath.Join(fixtures, name))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), name)
		writeTest(t, path, string(text))
		s := openTest(t, path)
		if err := os.Truncate(path, 100); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Row(11); !errors.Is(err, ErrTruncated) {
			t.Errorf("%s: %v: want ErrTruncated", name, err)
		}
		if d := s.Digest(); !strings.HasPrefix(d, "unreadable: ") {
			t.Errorf("%s: digest %q of a file that is gone", name, d)
		}
	}
}

func TestPathListAndDigest(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "b.jsonl")
	writeTest(t, a, `{"content":"1","teacher_response":"x"}`)
	writeTest(t, b, `{"content":"2","teacher_response":"y"}`+"\n"+`{"content":"3","teacher_response":"z"}`)
	sep := string(os.PathListSeparator)
	ab, ba := openTest(t, a+sep+b), openTest(t, b+sep+a)
	if ab.Len() != 3 || len(ab.Files()) != 2 {
		t.Fatalf("%d rows in %q", ab.Len(), ab.Files())
	}
	if r, err := ab.Row(1); err != nil || r.Teacher != "y" || r.Index != 1 {
		t.Errorf("row 1 is %+v, %v", r, err)
	}
	if file, at := ab.locate(2); file != b || at != 1 {
		t.Errorf("row 2 is row %d of %s", at, file)
	}
	if ab.Digest() == ba.Digest() {
		t.Error("the order of the rows does not count in the digest")
	}
	// one letter counts
	c := filepath.Join(dir, "c.jsonl")
	writeTest(t, c, `{"content":"1","teacher_response":"X"}`)
	if openTest(t, c).Digest() == openTest(t, a).Digest() {
		t.Error("a changed letter does not change the digest")
	}
}

func TestSavedFolderRowCount(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(fixtures, "stream_plain.arrow"))
	if err != nil {
		t.Fatal(err)
	}
	writeTest(t, filepath.Join(dir, "data.arrow"), string(text))
	writeTest(t, filepath.Join(dir, "state.json"), `{"_data_files":[{"filename":"data.arrow"}],"_split":"train"}`)
	for rows, warn := range map[string]bool{"12": false, "13": true} {
		writeTest(t, filepath.Join(dir, "dataset_info.json"), `{"splits":{"train":{"num_examples":`+rows+`}}}`)
		w := openTest(t, dir).Warnings()
		if warn != (len(w) == 1 && strings.Contains(w[0], "13 rows, the files contain 12")) {
			t.Errorf("%s rows declared: warnings %q", rows, w)
		}
	}
}

func TestLastTurnIsTheTeachers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	writeTest(t, path, strings.Join([]string{
		`{"content":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`,
		`{"content":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"teacher_response":"a"}`,
		`{"content":[{"role":"user","content":"q"}],"teacher_response":"a"}`,
		`{"content":[{"role":"user","content":"q"}],"teacher_response":null}`,
	}, "\n"))
	for i, row := range readAll(t, openTest(t, path)) {
		want := "a"
		if i == 3 {
			want = ""
		}
		if len(row.Messages) != 1 || row.Messages[0] != (Message{Role: "user", Content: "q"}) ||
			row.Teacher != want {
			t.Errorf("row %d: %+v", i, row)
		}
	}
}
