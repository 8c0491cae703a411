package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/format"

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
		var bad *rowFault
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
	var frames []byte // zstd: a frame header that claims 2^40 bytes
	frames = append(frames, 0x28, 0xb5, 0x2f, 0xfd, 0xe0)
	frames = binary.LittleEndian.AppendUint64(frames, 1<<40)
	// the same of 2^30, with a small window
	large := binary.LittleEndian.AppendUint64([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xc0, 0x38}, 1<<30)
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
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	good := enc.EncodeAll([]byte("hello"), nil)
	for name, c := range map[string]struct {
		src      []byte
		n, codec int64
	}{
		"zstd header":      {frames, 5, codecZstd},
		"zstd empty block": {append(bytes.Clone(frames), 1, 0, 0), 5, codecZstd},
		"zstd one block": {append(bytes.Clone(frames), 0x29, 0, 0, 'h', 'e', 'l', 'l', 'o'), 5,
			codecZstd},
		"zstd second frame": {append(bytes.Clone(good), frames...), 5, codecZstd},
		"zstd too few":      {good, 6, codecZstd},
		// What follows the library itself would take.
		"zstd 1 GiB":               {append(bytes.Clone(large), 1, 0, 0), 5, codecZstd},
		"zstd 1 GiB, second frame": {slices.Concat(good, large, []byte{1, 0, 0}), 5, codecZstd},
		"zstd skippable frame": {[]byte{0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 0, 0}, 0,
			codecZstd},
		"zstd window of 32 MiB": {
			[]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0x78, 0x29, 0, 0, 'h', 'e', 'l', 'l', 'o'}, 5,
			codecZstd},
		"zstd 1000 long blocks": {
			slices.Concat([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0x38},
				bytes.Repeat([]byte{2, 0, 0x10, 'a'}, 1000), []byte{1, 0, 0}), 5, codecZstd},
		"snappy":          {binary.AppendUvarint(nil, 1<<32-1), 5, codecSnappy},
		"snappy too many": {snappy.Encode(nil, []byte("hello")), 4, codecSnappy},
		"lz4 raw":         {[]byte{0xff, 0xff, 0xff}, 5, codecLZ4Raw},
		"lz4":             {[]byte{4, 0x22, 0x4d, 0x18, 0x40, 0x40, 0xc0}, 5, codecLZ4},
		"gzip":            {[]byte{0x1f, 0x8b}, 5, codecGzip},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := guard(func() error { _, err := decode(nil, c.src, c.n, c.codec); return err })
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		// an lz4 reader takes 8 MiB
		if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
			t.Errorf("%s: allocated %d bytes", name, used)
		}
	}
	if out, err := decode([]byte("x"), good, 5, codecZstd); err != nil || string(out) != "xhello" {
		t.Errorf("good frame: %q, %v", out, err)
	}
}

// A few bytes of DELTA_BYTE_ARRAY can stand for as many values as they like, each
// a byte longer than the one before: the size is known before anything is copied.
func TestDeltaBomb(t *testing.T) {
	lengths := func(n int, first, step uint64) []byte {
		b := binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint(nil, 128), 4),
			uint64(n))
		b = binary.AppendUvarint(b, 2*first)
		for left := n - 1; left > 0; left -= 128 {
			b = append(binary.AppendUvarint(b, 2*step), 0, 0, 0, 0) // differences of no bits
		}
		return b
	}
	page := func(n int) []byte { // values of 1, 2, 3, ... letters
		return slices.Concat(lengths(n, 0, 1), lengths(n, 1, 0), bytes.Repeat([]byte("x"), n))
	}
	header := func(n int) *format.PageHeader {
		h := &format.PageHeader{Type: format.DataPageV2}
		h.DataPageHeaderV2.V.NumValues = int32(n)
		return h
	}
	out, err := plainDelta(header(3), nil, page(3), 1<<20)
	if want := "\x01\x00\x00\x00x\x02\x00\x00\x00xx\x03\x00\x00\x00xxx"; err != nil ||
		string(out) != want {
		t.Errorf("%q, %v: want %q", out, err, want)
	}
	before := hostile.Allocated()
	_, err = plainDelta(header(200000), nil, page(200000), maxDecoded(1<<20))
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "expand to") {
		t.Errorf("20 GB of values: %v", err)
	}
	if used := hostile.Allocated() - before; used > 32<<20 {
		t.Errorf("allocated %d bytes", used)
	}
	for name, bad := range map[string][]byte{
		"shares more than there is": slices.Concat(lengths(2, 3, 0), lengths(2, 1, 0),
			[]byte("xx")),
		"fewer suffixes": slices.Concat(lengths(3, 0, 1), lengths(2, 1, 0),
			[]byte("xx")),
		"letters are missing": slices.Concat(lengths(2, 0, 1), lengths(2, 1, 0), []byte("x")),
		"more letters": slices.Concat(lengths(2, 0, 1), lengths(2, 1, 0),
			[]byte("xxx")),
		"negative length": slices.Concat([]byte{128, 1, 4, 1, 1}, lengths(1, 1, 0),
			[]byte("x")),
		"empty": nil,
	} {
		err := guard(func() error { _, err := plainDelta(header(3), nil, bad, 1<<20); return err })
		if !errors.Is(err, ErrCorrupt) || strings.Contains(err.Error(), "runtime error") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Runs that state more values than the page has must not reach the library.
func TestCountRuns(t *testing.T) {
	for _, c := range []struct {
		b            []byte
		width, count int
		want         int
		ok           bool
	}{
		{[]byte{10, 1}, 1, 5, 5, true},        // 5 times the value 1
		{[]byte{3, 0xff}, 1, 5, 8, true},      // one group of 8, padded
		{[]byte{10, 1, 3, 7}, 1, 8, 13, true}, // both, within the padding
		{[]byte{3, 0xff}, 1, 0, 8, true},      // 8 values for none: padding
		{[]byte{0xd4, 0x01, 1}, 1, 80, 106, true},
		{[]byte{0xff, 0x09, 1}, 1, 5, 0, false}, // 5,112 values for 5
		{[]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 1}, 1, 5, 0, false},
		{[]byte{0x80}, 1, 5, 0, false},
		{[]byte{3}, 1, 8, 0, false},      // group without bytes
		{[]byte{10}, 9, 5, 0, false},     // value without bytes
		{[]byte{10, 1}, 33, 5, 0, false}, // too wide
		{nil, 0, 0, 0, true},
	} {
		got, err := countRuns(c.b, c.width, c.count)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("countRuns(%v, %d, %d) = %d, %v", c.b, c.width, c.count, got, err)
		}
	}
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
		before := hostile.Allocated()
		err := tryFile(t, path, text)
		if err != nil && (!strings.HasPrefix(err.Error(), "data: ") ||
			strings.Contains(err.Error(), "\n")) {
			t.Error(err)
		}
		if used := hostile.Allocated() - before; used > 64<<20+2*uint64(len(text)) {
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

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x05\x10hello"), int64(5), codecSnappy)
	f.Add([]byte("\x8f\x02\x80hello\x03"), int64(5), codecBrotli)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 4, 0, 41, 0, 0, 'h', 'e', 'l', 'l', 'o'}, int64(5),
		codecZstd)
	f.Fuzz(func(t *testing.T, src []byte, n, codec int64) {
		if n < 0 || n > maxDecoded(int64(len(src))) || codec < 0 || codec > codecBrotli {
			return
		}
		_ = guard(func() error {
			out, err := decode(nil, src, n, codec)
			if err == nil && int64(len(out)) != n {
				t.Error(fmt.Errorf("codec %d gave %d bytes, not %d", codec, len(out), n))
			}
			return err
		})
	})
}
