package data

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"gad/data/layout"
	"gad/internal/hostile"
)

// tryFile writes text to path, opens it as a set and reads all of it. It must
// not panic; what it returns is an error or nil.
func tryFile(t testing.TB, path string, text []byte) error {
	t.Helper()
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, DefaultColumns())
	if err != nil {
		return err
	}
	defer s.Close()
	for i := range min(s.Len(), 1000) { // a lying count may be large
		var bad *layout.Fault
		// a good file may have bad rows
		if _, err := s.Row(i); err != nil && !errors.As(err, &bad) {
			return err
		}
	}
	return nil
}

// hostileSeeds are the single-file fixtures.
func hostileSeeds(t testing.TB) map[string][]byte {
	seeds := map[string][]byte{}
	for _, dir := range []string{fixtures, rowFixtures, layoutFixtures} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if dir == layoutFixtures &&
				!slices.Contains(
					[]string{"openai_tools.parquet", "openai_tools.arrow", "openai_parts.parquet",
						"openai_parts.arrow", "sharegpt_weight.parquet"}, e.Name()) {
				continue // the others have nothing that those folders lack
			}
			if !e.IsDir() && e.Name() != "VERSIONS" && !isCSV(e.Name()) {
				text, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err != nil {
					t.Fatal(err)
				}
				seeds[e.Name()] = text
			}
		}
	}
	return seeds
}

// Row 12: damaged files are refused or read, never fatal, slow or costly.
func TestHostileFormats(t *testing.T) {
	path := filepath.Join(t.TempDir(), "damaged")
	seeds := map[string][][]byte{}
	for _, text := range hostileSeeds(t) {
		seeds[formatOf(text)] = append(seeds[formatOf(text)], bytes.TrimSpace(text))
	}
	ids := openTest(t, filepath.Join(fixtures, "ids.jsonl"))
	json := []string{`{`, `}`, `[`, `]`, `"`, `,`, `:`, "null", `\u0000`, `\ud800`, "\n", `"content":[]`, `"content":"x"`, `"role":"user"`, `"prompt_ids":[1]`, "\xff", "1e9"}
	for _, f := range []hostile.Format{
		{Name: "arrow file", Whole: true},
		{Name: "arrow stream", Whole: true},
		{Name: "parquet", Whole: true},
		{Name: "jsonl", Words: json},
		{Name: "json", Whole: true, Words: json, Small: []byte(`[{"content":[{"role":"user","content":"Hi é"}],"teacher_response":"Ho","id":"a"},{"content":"x"}]`)},
	} {
		t.Run(f.Name, func(t *testing.T) {
			if suffix, ok := map[string]string{"arrow file": "arrow", "arrow stream": "arrows",
				"parquet": "parquet", "jsonl": "jsonl"}[f.Name]; ok {
				small := filepath.Join(t.TempDir(), "ids."+suffix)
				if err := Convert(ids, small); err != nil {
					t.Fatal(err)
				}
				text, err := os.ReadFile(small)
				if err != nil {
					t.Fatal(err)
				}
				f.Small = text
			}
			f.Seeds, f.Prefix = seeds[f.Name], "data: "
			f.Read = func(text []byte) error { return tryFile(t, path, text) }
			f.Try(t)
		})
	}
	t.Run("csv", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(rowFixtures, "rows.csv"))
		if err != nil {
			t.Fatal(err)
		}
		path := path + ".csv"
		hostile.Format{
			Name: "csv", Small: []byte("content,teacher_response\nq,\"a, \"\"b\"\"\""),
			Seeds: [][]byte{text},
			Words: []string{`"`, `""`, ",", "\n", "\r\n", "\x00", "\xff", ";", "\t"}, Prefix: "data: ",
			Read: func(text []byte) error { return tryFile(t, path, text) },
		}.Try(t)
	})
	// The files that describe a folder.
	saved := filepath.Join(t.TempDir(), "saved")
	if err := os.CopyFS(saved, os.DirFS(filepath.Join(fixtures, "saved"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"state.json", "dataset_info.json"} {
		text, err := os.ReadFile(filepath.Join(saved, name))
		if err != nil {
			t.Fatal(err)
		}
		hostile.Format{
			Name: name, Small: bytes.TrimSpace(text), Whole: true, Words: append(json, `"filename":"../x"`, "/dev/zero"), Prefix: "data: ",
			Read: func(text []byte) error {
				if err := os.WriteFile(filepath.Join(saved, name), text, 0o644); err != nil {
					t.Fatal(err)
				}
				s, err := Open(saved, DefaultColumns())
				if err == nil {
					err = s.Close()
				}
				return err
			},
		}.Try(t)
		if err := os.WriteFile(filepath.Join(saved, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// formatOf is the format that a file's first bytes stand for.
func formatOf(text []byte) string {
	switch {
	case bytes.HasPrefix(text, []byte("ARROW1")):
		return "arrow file"
	case bytes.HasPrefix(text, []byte("PAR1")):
		return "parquet"
	case bytes.HasPrefix(text, []byte("[")):
		return "json"
	case bytes.HasPrefix(text, []byte("{")):
		return "jsonl"
	}
	return "arrow stream"
}

// Where the format marks its end, no file that is cut short may pass for a
// shorter one.
func TestEveryPrefixIsRefused(t *testing.T) {
	step := 17
	if testing.Short() {
		step = 61
	}
	path := filepath.Join(t.TempDir(), "cut")
	for _, name := range []string{"stream_plain.arrow", "stream_zstd.arrow", "file_lz4.arrow",
		"dictionary.arrow", "snappy.parquet", "rows.json"} {
		text, err := os.ReadFile(filepath.Join(fixtures, name))
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; n < len(text); n += step {
			if err := tryFile(t, path, text[:n]); err == nil {
				t.Fatalf("%s: the first %d of %d bytes were read as a whole file", name, n,
					len(text))
			} else if name == "stream_plain.arrow" && n > 64 && !errors.Is(err, ErrTruncated) {
				t.Errorf("%s: %d bytes: %v: want ErrTruncated", name, n, err)
			}
		}
	}
	// exactly at a message boundary, where the Arrow library sees a clean end
	text, err := os.ReadFile(filepath.Join(fixtures, "stream_plain.arrow"))
	if err != nil {
		t.Fatal(err)
	}
	if err := tryFile(t, path, text[:len(text)-8]); !errors.Is(err, ErrTruncated) {
		t.Errorf("stream without its end mark: %v", err)
	}
	lines, err := os.ReadFile(filepath.Join(fixtures, "rows.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if err := tryFile(t, path, lines[:len(lines)-10]); !errors.Is(err, ErrTruncated) {
		t.Errorf("last line cut: %v", err)
	}
}

// doc/reliability.md, row 13: counts that lie cost nothing.
func TestLyingLengths(t *testing.T) {
	path := filepath.Join(t.TempDir(), "liar")
	cases := map[string][]byte{
		"arrow stream, metadata 2^31-1": []byte("\xff\xff\xff\xff\xff\xff\xff\x7f"),
		"arrow stream, metadata -1":     []byte("\xff\xff\xff\xff\xff\xff\xff\xff"),
		"arrow file, footer 2^31-1": []byte(
			"ARROW1\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00\xff\xff\xff\x7fARROW1"),
		"parquet, footer 2^32-1": []byte("PAR1\xff\xff\xff\xffPAR1"),
		"parquet, list of 2^31-1": []byte(
			"PAR1\x15\x02\x29\xfc\xff\xff\xff\xff\x07\x0a\x00\x00\x00PAR1"),
	}
	var most uint64
	for name, text := range cases {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := tryFile(t, path, text)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: was read", name)
		}
		used := after.TotalAlloc - before.TotalAlloc
		if most = max(most, used); used > 1<<20 {
			t.Errorf("%s: allocated %d bytes", name, used)
		}
	}
	t.Logf("row 13: data: %d files of at most 64 bytes with lengths that lie: at most %d bytes allocated", len(cases), most)
}

// Run with -fuzzminimizetime 1x: coverage differs from run to run, by caches and
// map order, and the fuzzer would spend its time on minimising.
func fuzzFormat(f *testing.F, names ...string) {
	for _, text := range hostileSeeds(f) {
		if slices.Contains(names, formatOf(text)) {
			f.Add(text)
		}
	}
	fuzzFile(f, "fuzz")
}

func fuzzFile(f *testing.F, name string) {
	path := filepath.Join(f.TempDir(), name)
	f.Fuzz(func(t *testing.T, text []byte) {
		before := hostile.TotalAlloc()
		err := tryFile(t, path, text)
		if err != nil && (!strings.HasPrefix(err.Error(), "data: ") ||
			strings.Contains(err.Error(), "\n")) {
			t.Error(err)
		}
		if used := hostile.TotalAlloc() - before; used > 64<<20+2*uint64(len(text)) {
			t.Errorf("allocated %d bytes for a file of %d", used, len(text))
		}
	})
}

func FuzzArrow(f *testing.F)   { fuzzFormat(f, "arrow file", "arrow stream") }
func FuzzParquet(f *testing.F) { fuzzFormat(f, "parquet") }
func FuzzJSON(f *testing.F)    { fuzzFormat(f, "jsonl", "json") }

func FuzzCSV(f *testing.F) {
	f.Add([]byte("content,teacher_response\nq,\"a, \"\"b\"\"\"\n"))
	f.Add([]byte("content;id\r\n\"two\r\nlines\";1\r\n"))
	fuzzFile(f, "fuzz.csv")
}
