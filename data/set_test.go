package data

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

const fixtures = "../testdata/data"

// sameRows are the fixtures that hold the twelve rows of
// scripts/fixtures_data.py, each in its own format.
func sameRows(t testing.TB) []string {
	entries, err := os.ReadDir(fixtures)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		switch name := e.Name(); {
		case name == "VERSIONS", name == "saved_dict", strings.HasPrefix(name, "ids."):
		default:
			names = append(names, filepath.Join(fixtures, name))
		}
	}
	if len(names) < 25 {
		t.Fatalf("%d fixtures of one content, want 25 or more", len(names))
	}
	return names
}

func openTest(t testing.TB, path string) *Set {
	t.Helper()
	s, err := Open(path, DefaultColumns())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func readAll(t testing.TB, s *Set) []Row {
	t.Helper()
	rows := make([]Row, s.Len())
	for i := range rows {
		row, err := s.Row(i)
		if err != nil {
			t.Fatal(err)
		}
		if row.Index != i {
			t.Fatalf("row %d has Index %d", i, row.Index)
		}
		rows[i] = row
	}
	return rows
}

// wantRows reads rows.jsonl with encoding/json alone.
func wantRows(t testing.TB) []Row {
	text, err := os.ReadFile(filepath.Join(fixtures, "rows.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []Row
	for line := range strings.Lines(string(text)) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		var r struct {
			Content []Message `json:"content"`
			Teacher string    `json:"teacher_response"`
			ID      string    `json:"id"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, Row{Index: len(rows), Messages: r.Content, Teacher: r.Teacher,
			ID: r.ID})
	}
	return rows
}

func TestEveryFormatGivesTheSameRows(t *testing.T) {
	want := wantRows(t)
	if len(want) != 12 || want[2].Teacher != "안녕하세요!" || len(want[2].Messages) != 3 {
		t.Fatalf("rows.jsonl is not what the script writes: %d rows", len(want))
	}
	digests := map[string]bool{}
	for _, path := range sameRows(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			s := openTest(t, path)
			if got := readAll(t, s); !reflect.DeepEqual(got, want) {
				for i := range min(len(got), len(want)) {
					if !reflect.DeepEqual(got[i], want[i]) {
						t.Fatalf("row %d:\n got %#v\nwant %#v", i, got[i], want[i])
					}
				}
				t.Fatalf("%d rows, want %d", len(got), len(want))
			}
			if !s.HasTeacher() {
				t.Error("HasTeacher is false")
			}
			digests[s.Digest()] = true
			if w := s.Warnings(); len(w) > 0 {
				t.Errorf("warnings %q", w)
			}
		})
	}
	if len(digests) != 1 {
		t.Errorf("%d digests for one content", len(digests))
	}
}

// Rows must not depend on which were read before: batches are cached,
// and dictionaries may be replaced within a stream.
func TestRowsInAnyOrder(t *testing.T) {
	want := wantRows(t)
	for _, path := range sameRows(t) {
		s := openTest(t, path)
		for _, i := range slices.Concat(NewOrder(12, 3, 0, 1).Next(36)) {
			for b := range s.cache { // make every read load its batch
				delete(s.cache, b)
			}
			row, err := s.Row(i)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(row, want[i]) {
				t.Fatalf("%s: row %d: got %#v", path, i, row)
			}
		}
	}
}

func TestRowsFromManyGoroutines(t *testing.T) {
	want := wantRows(t)
	for _, name := range []string{"dictionary_replaced.arrow", "zstd.parquet", "rows.jsonl"} {
		s := openTest(t, filepath.Join(fixtures, name))
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for _, i := range NewOrder(12, uint64(g), 0, 1).Next(60) {
					if row, err := s.Row(i); err != nil || !reflect.DeepEqual(row, want[i]) {
						t.Errorf("%s: row %d: %v, %+v", name, i, err, row)
						return
					}
				}
				s.Digest()
			})
		}
		wg.Wait()
	}
}

// The cache drops the batches used longest ago, and what it says it holds is
// what it holds.
func TestCacheIsBounded(t *testing.T) {
	s := openTest(t, filepath.Join(fixtures, "file_plain.arrow")) // batches of 5, 5 and 2 rows
	for _, i := range []int{0, 5, 0, 10} {
		if _, err := s.Row(i); err != nil {
			t.Fatal(err)
		}
	}
	sum := int64(0)
	for _, c := range s.cache {
		sum += c.rows.Size()
	}
	if len(s.cache) != 3 || sum != s.held {
		t.Fatalf("%d batches of %d bytes, %d counted", len(s.cache), sum, s.held)
	}
	s.held += cacheBytes - 1 // nearly full: each load must drop one
	delete(s.cache, 2)
	if _, err := s.Row(11); err != nil {
		t.Fatal(err)
	}
	if s.cache[1] != nil || s.cache[2] == nil {
		t.Errorf("batch 1, used longest ago, should have gone first: %v", s.cache)
	}
}
