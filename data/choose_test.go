package data

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"
	"github.com/parquet-go/parquet-go"
)

// choiceFiles are six rows in each format: level 0 to 5, of which row 3 has none; subset math in
// the even rows; hard from row 4 on.
func choiceFiles(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	var lines, csv strings.Builder
	csv.WriteString("content,teacher_response,level,subset,hard\n")
	schema := arrow.NewSchema([]arrow.Field{{Name: "content", Type: arrow.BinaryTypes.String},
		{Name: "teacher_response", Type: arrow.BinaryTypes.String},
		{Name: "level", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "subset", Type: arrow.BinaryTypes.String},
		{Name: "hard", Type: arrow.FixedWidthTypes.Boolean}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	type row struct {
		Content string   `parquet:"content"`
		Teacher string   `parquet:"teacher_response"`
		Level   *float64 `parquet:"level,optional"`
		Subset  string   `parquet:"subset"`
		Hard    bool     `parquet:"hard"`
	}
	var rows []row
	for i := range 6 {
		q, subset, level := fmt.Sprintf("question %d", i), []string{"math", "law"}[i%2], float64(i)
		r := row{q, "yes", &level, subset, i >= 4}
		text := fmt.Sprint(i)
		if i == 3 {
			r.Level, text = nil, ""
		}
		rows = append(rows, r)
		if text == "" {
			fmt.Fprintf(&lines, `{"content":%q,"teacher_response":"yes","level":null,"subset":%q,"hard":%t}`+"\n", q, subset, r.Hard)
			b.Field(2).(*array.Float32Builder).AppendNull()
		} else {
			fmt.Fprintf(&lines, `{"content":%q,"teacher_response":"yes","level":%s,"subset":%q,"hard":%t}`+"\n", q, text, subset, r.Hard)
			b.Field(2).(*array.Float32Builder).Append(float32(i))
		}
		fmt.Fprintf(&csv, "%s,yes,%s,%s,%d\n", q, text, subset, map[bool]int{true: 1}[r.Hard])
		b.Field(0).(*array.StringBuilder).Append(q)
		b.Field(1).(*array.StringBuilder).Append("yes")
		b.Field(3).(*array.StringBuilder).Append(subset)
		b.Field(4).(*array.BooleanBuilder).Append(r.Hard)
	}
	files := map[string]string{}
	for _, name := range []string{"rows.jsonl", "rows.csv", "rows.arrow", "rows.parquet"} {
		files[name] = filepath.Join(dir, name)
	}
	writeArrow(t, files["rows.arrow"], b)
	for name, text := range map[string]string{"rows.jsonl": lines.String(),
		"rows.csv": csv.String()} {
		if err := os.WriteFile(files[name], []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := parquet.WriteFile(files["rows.parquet"], rows); err != nil {
		t.Fatal(err)
	}
	return files
}

// asked are the numbers of the questions of a set, in its order.
func asked(t *testing.T, s *Set) (list []int) {
	t.Helper()
	for i := range s.Len() {
		row, err := s.Row(i)
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if _, err := fmt.Sscanf(row.PromptText(), "question %d", &n); err != nil ||
			s.Before(i) != n {
			t.Fatalf("row %d: %q, before the choice %d", i, row.PromptText(), s.Before(i))
		}
		list = append(list, n)
	}
	return list
}

// A condition takes the same rows out of every format.
func TestWhere(t *testing.T) {
	for name, path := range choiceFiles(t) {
		for where, want := range map[string][]int{
			"level > 1":                        {2, 4, 5},
			"level >= 1 and level<=4":          {1, 2, 4},
			"level != 2":                       {0, 1, 4, 5}, // a row without a level meets nothing
			"subset = math":                    {0, 2, 4},
			`subset != 'math' and level == 5`:  {5},
			`"subset" = "law" and level < 1e3`: {1, 5},
			"hard = 1":                         {4, 5},
			"":                                 {0, 1, 2, 3, 4, 5},
		} {
			s := openFiles(t, Options{Choice: Choice{Where: where}}, path)
			if got := asked(t, s); !slices.Equal(got, want) {
				t.Errorf("%s: %s: rows %v, want %v", name, where, got, want)
			}
			if said := s.Chosen(); where != "" &&
				said != fmt.Sprintf("where %s: %d of 6 rows", where, len(want)) {
				t.Errorf("%s: %s: %q", name, where, said)
			}
		}
	}
}

// A condition that cannot be meant has an answer of one line.
func TestWhereIsRefused(t *testing.T) {
	files := choiceFiles(t)
	open := func(c Choice) error {
		s, err := OpenFiles([]string{files["rows.jsonl"]}, Options{Choice: c})
		if err == nil {
			s.Close()
		}
		return err
	}
	for _, c := range []struct {
		Choice
		want string
	}{
		{Choice{Where: "level"}, `data: where "level": "level" is no comparison: write COLUMN OP VALUE`},
		{Choice{Where: "level > 1 or level < 0"}, `"or level < 0": comparisons are joined by and, and nothing else`},
		{Choice{Where: "level > 1 and"}, `comparisons are joined by and, and nothing else`},
		{Choice{Where: "subset > law"}, `data: where "subset > law": > compares numbers, and "law" is a text: use = or !=`},
		{Choice{Where: "subset = 3"}, `where "subset = 3": row 0: column "subset" is a text ("math"), compared with a number: use subset = 'TEXT'`},
		{Choice{Where: "level = 'x'"}, `where "level = 'x'": row 0: column "level" is a number (0), compared with the text "x": use a number`},
		{Choice{Where: "size > 1"}, `no column "size": the data have "content", "teacher_response", "level", "subset", "hard"; gad data rate makes ratings, which data.ratings names`},
		{Choice{Ratings: files["rows.csv"]}, `does not begin as ratings do: make them with gad data rate`},
	} {
		err := open(c.Choice)
		if !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v\nwant %s", c.Choice, err, c.want)
		}
	}
	err := open(Choice{Where: "level > 9"})
	if err == nil || errors.Is(err, ErrChoice) ||
		!strings.HasSuffix(err.Error(), `where "level > 9": none of 6 rows: loosen it`) {
		t.Errorf("no row left: %v", err)
	}
}

// With each turn as a row, a condition on a column of the file takes all turns of a row, and the
// digest is that of the rows that are left.
func TestWhereOfTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "turns.jsonl")
	turns := `[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]`
	text := fmt.Sprintf("{\"messages\":%s,\"level\":1}\n{\"messages\":%s,\"level\":2}\n", turns,
		strings.ReplaceAll(turns, "a", "x"))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	text, _, _ = strings.Cut(text, "\n")
	one := filepath.Join(t.TempDir(), "one.jsonl")
	if err := os.WriteFile(one, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := openFiles(t, Options{Turns: TurnsEach, Choice: Choice{Where: "level = 1"}}, path)
	want := openFiles(t, Options{Turns: TurnsEach}, one)
	if s.Len() != 2 || s.Digest() != want.Digest() {
		t.Errorf("%d rows, digest %s, want %s", s.Len(), s.Digest(), want.Digest())
	}
}

// ratingsOf writes ratings of a set by its rows' numbers.
func ratingsOf(t *testing.T, digest string, right ...float64) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `{"gad_ratings":1,"rows":%d,"data_sha256":%q,"tokenizer_sha256":"tok","columns":["right"],"n":4}`+"\n", len(right), digest)
	for i, x := range right {
		if math.IsNaN(x) {
			fmt.Fprintf(&b, `{"row":%d,"right":null}`+"\n", i)
		} else {
			fmt.Fprintf(&b, `{"row":%d,"right":%g}`+"\n", i, x)
		}
	}
	path := filepath.Join(t.TempDir(), "ratings.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Ratings are columns like any other, of these rows and no others.
func TestRatings(t *testing.T) {
	files := choiceFiles(t)
	digest := openFiles(t, Options{}, files["rows.csv"]).Digest()
	path := ratingsOf(t, digest, 0, .5, 1, math.NaN(), .25, .75)
	for _, file := range files { // the rows are the same, so the ratings hold for every format
		s := openFiles(t, Options{Choice: Choice{Where: "right > 0 and level > 0", Ratings: path}},
			file)
		if got := asked(t, s); !slices.Equal(got, []int{1, 2, 4, 5}) {
			t.Errorf("%s: rows %v", file, got)
		}
		if err := s.ForTokenizer("tok"); err != nil {
			t.Error(err)
		}
		if err := s.ForTokenizer("other"); !errors.Is(err, ErrChoice) {
			t.Errorf("another tokenizer: %v", err)
		}
	}
	for what, path := range map[string]string{
		"they have 2 rows, the data 6": ratingsOf(t, digest, 1, 1),
		"digest 0123, the data's is":   ratingsOf(t, "0123", 0, 1, 1, 1, 1, 1),
	} {
		_, err := OpenFiles([]string{files["rows.csv"]}, Options{Choice: Choice{Ratings: path}})
		if !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v: want %s", err, what)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for k := range len(raw) - 1 { // cut anywhere
		short := filepath.Join(t.TempDir(), "short")
		if err := os.WriteFile(short, raw[:k], 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadRatings(short); !errors.Is(err, ErrChoice) {
			t.Fatalf("cut at %d of %d: %v", k, len(raw), err)
		}
	}
}
