package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/internal/hostile"
)

// file joins a header, its length in front, and data bytes.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

// one is a header with one tensor described by these keys.
func one(keys string) string { return `{"a":{` + keys + `}}` }

// refused are files that must be refused, each with a message of its own.
var refused = []struct {
	name string
	data []byte
	want string // part of the message, unlike that of any other file
}{
	{"empty file", nil, "0 bytes: too short"},
	{"seven bytes", make([]byte, 7), "7 bytes: too short"},
	{"header of no bytes", file("", 0), "is empty"},
	{"length past the end", binary.LittleEndian.AppendUint64(nil, 17),
		"its length says 17 bytes, the file has 0"},
	{"length 2^63-1", binary.LittleEndian.AppendUint64(nil, math.MaxInt64),
		"length of 9223372036854775807 bytes, the limit is"},
	{"length 2^64-1", binary.LittleEndian.AppendUint64(nil, math.MaxUint64),
		"length of 18446744073709551615 bytes"},
	{"length 2^40", binary.LittleEndian.AppendUint64(nil, 1<<40), "length of 1099511627776 bytes"},
	{"not UTF-8", file("{\"\xff\":0}", 0), "not valid UTF-8"},
	{"an array", file(`[1]`, 0), `starts with "["`},
	{"space before the object", file(` {}`, 0), `starts with " "`},
	{"byte order mark", file("\ufeff{}", 0), "starts with \"\\ufeff\""},
	{"object cut short", file(`{"a":{"dtype":"U8"`, 0), `the text ends where '}' should be`},
	{"key without an end", file(`{"a`, 0), "string without an end"},
	{"tensor is a number", file(`{"a":1}`, 0), `"1" where '{' should be`},
	{"bytes after the object", file(`{}  {}`, 0), "2 bytes after its end"},
	{"line end after the object", file("{}\n", 0), "1 bytes after its end"},
	{"comma before the end", file(`{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},}`, 1), "a string should be here"},
	{"tensor twice", file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), `tensor "a": appears twice`},
	{"tensor twice, once escaped", file(`{"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0062":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0), `tensor "b": appears twice`},
	{"key twice", file(one(`"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]`), 1), `key "dtype" appears twice`},
	{"offsets twice", file(one(`"dtype":"U8","shape":[],"data_offsets":[0,1],"data_offsets":[0,1]`), 1), `key "data_offsets" appears twice`},
	{"key in another case", file(one(`"dtype":"U8","SHAPE":[],"data_offsets":[0,1]`), 1), `key "SHAPE" is not known`},
	{"key too many", file(one(`"dtype":"U8","shape":[],"data_offsets":[0,1],"x":0`), 1), `key "x" is not known`},
	{"no dtype", file(one(`"shape":[],"data_offsets":[0,1]`), 1), `key "dtype" is missing`},
	{"no shape", file(one(`"dtype":"U8","data_offsets":[0,1]`), 1), `key "shape" is missing`},
	{"no offsets", file(one(`"dtype":"U8","shape":[]`), 1), `key "data_offsets" is missing`},
	{"unknown dtype", file(one(`"dtype":"F128","shape":[],"data_offsets":[0,16]`), 16), `dtype "F128" is not known`},
	{"dtype in another case", file(one(`"dtype":"f32","shape":[],"data_offsets":[0,4]`), 4), `dtype "f32" is not known`},
	{"dtype a number", file(one(`"dtype":7,"shape":[],"data_offsets":[0,4]`), 4), "dtype: at byte 14: a string"},
	{"shape null", file(one(`"dtype":"U8","shape":null,"data_offsets":[0,1]`), 1), `"n" where '[' should be`},
	{"three offsets", file(one(`"dtype":"U8","shape":[1],"data_offsets":[0,1,2]`), 1), "more than two offsets"},
	{"one offset", file(one(`"dtype":"U8","shape":[1],"data_offsets":[0]`), 1), "1 offsets: expected two"},
	{"negative dimension", file(one(`"dtype":"U8","shape":[-1],"data_offsets":[0,1]`), 1), "shape: at byte 28: negative number -1"},
	{"negative offset", file(one(`"dtype":"U8","shape":[1],"data_offsets":[-2,-1]`), 1), "negative number -2"},
	{"dimension with a point", file(one(`"dtype":"U8","shape":[1.0],"data_offsets":[0,1]`), 1), "1.0 is not written as an integer"},
	{"dimension with an exponent", file(one(`"dtype":"U8","shape":[1e0],"data_offsets":[0,1]`), 1), "1e0 is not written as an integer"},
	{"dimension 01", file(one(`"dtype":"U8","shape":[01],"data_offsets":[0,1]`), 1), "01 has leading zeros"},
	{"dimension 2^63", file(one(`"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]`), 1), "9223372036854775808 is beyond 2^63-1"},
	{"dimension a string", file(one(`"dtype":"U8","shape":["1"],"data_offsets":[0,1]`), 1), "a number should be here"},
	{"dimensions that wrap to 0", file(one(`"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]`), 0), "shape [4294967296 4294967296] of U8: its bytes overflow"},
	{"dimensions that overflow beside a 0", file(one(`"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]`), 0), "shape [0 4294967296 4294967296] of U8: its bytes overflow"},
	{"bytes that overflow", file(one(`"dtype":"I64","shape":[2305843009213693952],"data_offsets":[0,0]`), 0), "of I64: its bytes overflow"},
	{"a million dimensions", file(one(`"dtype":"U8","shape":[1`+strings.Repeat(",1", 1_000_000-1)+`],"data_offsets":[0,1]`), 1), "more than 16 dimensions"},
	{"end before start", file(one(`"dtype":"U8","shape":[4],"data_offsets":[8,4]`), 8), "offsets [8 4]: end before start"},
	{"fewer bytes than the shape", file(one(`"dtype":"F32","shape":[2],"data_offsets":[0,4]`), 4), "F32 [2] needs 8 bytes, offsets [0 4] span 4"},
	{"truncated data", file(one(`"dtype":"U8","shape":[4],"data_offsets":[0,4]`), 3), "beyond the file's end, it has 3 bytes"},
	{"a hole", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}`, 5), "1 unused bytes before it"},
	{"a hole at the start", file(one(`"dtype":"U8","shape":[2],"data_offsets":[2,4]`), 4), "2 unused bytes before it"},
	{"an overlap", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "inside the previous tensor, which ends at 2"},
	{"one tensor over another", file(`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}`, 3), "inside the previous tensor, which ends at 3"},
	{"trailing bytes", file(one(`"dtype":"U8","shape":[2],"data_offsets":[0,2]`), 5), "3 bytes after the last tensor"},
	{"bytes and no tensor", file(`{}`, 4), "4 bytes after the last tensor"},
	{"metadata a number", file(`{"__metadata__":{"format":1}}`, 0), `value of "format": only strings`},
	{"metadata nested", file(`{"__metadata__":{"config":{}}}`, 0), `value of "config": only strings`},
	{"metadata a string", file(`{"__metadata__":"pt"}`, 0), `"\"" where '{' should be`},
	{"metadata key twice", file(`{"__metadata__":{"k":"1","k":"2"}}`, 0), `__metadata__: key "k" appears twice`},
	{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, 0), "__metadata__ appears twice"},
	{"half a surrogate pair", file(`{"\ud800":0}`, 0), "half of a surrogate pair"},
	{"unknown escape", file(`{"\x":0}`, 0), `unknown escape \x`},
	{"short escape", file(`{"\u12":0}`, 0), `broken \u escape`},
	{"control character in a name", file("{\"a\x01b\":0}", 0), "control character 0x01"},
}

func TestHostileFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	messages := map[string]string{}
	var most uint64
	for _, h := range refused {
		path := hostile.Put(t, dir, "f", h.data)
		var f *File
		var err error
		used := hostile.AllocBytes(func() { f, err = Open(path) })
		if err == nil {
			f.Close()
			t.Errorf("%s: accepted", h.name)
			continue
		}
		msg := err.Error()
		if !strings.Contains(msg, h.want) || !strings.HasPrefix(msg, "safetensors: "+path+": ") ||
			strings.Contains(msg, "\n") {
			t.Errorf("%s: message %q, want %q in it", h.name, msg, h.want)
		}
		if len(msg) > 500+len(path) {
			t.Errorf("%s: a message of %d bytes", h.name, len(msg))
		}
		if other, dup := messages[h.want]; dup {
			t.Errorf("%s: the message is that of %q", h.name, other)
		}
		messages[h.want] = h.name
		if len(h.data) <= 200 {
			most = max(most, used)
		}
	}
	if most >= 1<<20 {
		t.Errorf("refusing a file of 200 bytes allocated %d", most)
	}
	t.Logf("row 14: safetensors: %d hostile files refused, each with a message of its own, at most %d bytes allocated for one of 200 bytes or less", len(refused), most)
}

// The rules above must not refuse what is merely unusual.
func TestUnusualFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, header, tensor string }{
		{"no tensors", `{}`, ""},
		{"padding", `{}      `, ""},
		{"white space",
			"{ \"a\" :\n{\t\"dtype\":\"U8\" , \"shape\": [ 2 ],\r\"data_offsets\" : [ 0 , 2 ] } }",
			"a"},
		{"keys in another order", one(`"data_offsets":[0,2],"shape":[2,1],"dtype":"U8"`), "a"},
		{"escapes", `{"\u0061\ud83d\ude00\n\/":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, "a😀\n/"},
		{"empty name", `{"":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, ""},
		{"16 dimensions", one(`"dtype":"U8","shape":[2` + strings.Repeat(",1", 15) + `],"data_offsets":[0,2]`), "a"},
		{"unaligned floats", one(`"dtype":"F16","shape":[1],"data_offsets":[0,2]`) + " ", "a"},
	} {
		data := 0
		if strings.Contains(c.header, "dtype") {
			data = 2
		}
		f, err := Open(hostile.Put(t, dir, "f", file(c.header, data)))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if x, ok := f.Tensor(c.tensor); ok != (data == 2) || ok && len(x.Data) != 2 {
			t.Errorf("%s: tensor %q: %v", c.name, c.tensor, ok)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// sample is a small good file.
func sample(t testing.TB) []byte {
	var out bytes.Buffer
	err := Write(&out, []Source{
		floats("w", BF16, []int{2, 3}, make([]float32, 6)),
		floats("b", F32, []int{3}, make([]float32, 3)),
		raw("n", I64, nil, make([]byte, 8)),
	}, map[string]string{"format": "pt"})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// consistent checks what a caller relies on in any file that was accepted.
func consistent(h *header, dataLen int64) error {
	var sum int64
	for i := range h.tensors {
		t := &h.tensors[i]
		n, err := size(t.DType, t.Shape)
		if err != nil || t.end-t.begin != n || t.begin < 0 || t.end > dataLen {
			return fmt.Errorf("tensor %q: [%d %d] of %d for %d bytes: %v", t.Name, t.begin, t.end,
				dataLen, n, err)
		}
		if i > 0 && h.tensors[i-1].Name >= t.Name {
			return fmt.Errorf("names out of order: %q", t.Name)
		}
		sum += n
	}
	if sum != dataLen {
		return fmt.Errorf("the tensors hold %d bytes of %d", sum, dataLen)
	}
	return nil
}

// Row 12: every prefix of a file is refused; every bit flip and random change of
// its header is refused or read as a file that is sound.
func TestHostileFormats(t *testing.T) {
	good := sample(t)
	path := filepath.Join(t.TempDir(), "f")
	dtypes, err := os.ReadFile(filepath.Join(fixtures, "dtypes.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	hostile.Format{
		Name:   "safetensors",
		Small:  good,
		Flip:   [][2]int{{0, 8 + int(binary.LittleEndian.Uint64(good))}},
		Whole:  true,
		Seeds:  [][]byte{dtypes},
		Words:  []string{`{`, `}`, `[`, `]`, `"`, `,`, `:`, `\u0061`, `"dtype":"F32"`, `"shape":[2,3]`, `"data_offsets":[0,12]`, `"__metadata__":{}`, "null"},
		Prefix: "safetensors: ",
		Read: func(text []byte) error {
			if err := os.WriteFile(path, text, 0o666); err != nil {
				return err
			}
			f, err := Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := consistent(&f.header,
				int64(len(text))-8-int64(binary.LittleEndian.Uint64(text))); err != nil {
				t.Errorf("%q: %v", text, err)
			}
			for i := range f.tensors {
				x := &f.tensors[i]
				if int64(len(x.Data)) != x.end-x.begin {
					t.Errorf("%q: tensor %q: %d bytes", text, x.Name, len(x.Data))
				}
			}
			return nil
		},
	}.Try(t)

	files := map[string][]byte{
		"1.safetensors": file(one(`"dtype":"U8","shape":[],"data_offsets":[0,1]`), 1),
		"2.safetensors": file(`{"b":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, 1),
	}
	index := `{"metadata":{"total_size":2},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}`
	dir := folderWith(t, index, files)
	hostile.Format{
		Name:   "safetensors index",
		Small:  []byte(index),
		Whole:  true,
		Seeds:  [][]byte{[]byte(`{"metadata":{"x":[null,true,-1e4,{"y":"z"}]},"weight_map":{"a":"1.safetensors","\u0062":"2.safetensors"}}`)},
		Words:  []string{`{`, `}`, `[`, `]`, `"`, `,`, `:`, `\u0000`, `../`, `/dev/zero`, `"weight_map":{}`, "null", ".", `"a":"1.safetensors"`},
		Prefix: "safetensors: ",
		Read: func(text []byte) error {
			hostile.Put(t, dir, IndexName, text)
			f, err := OpenFolder(dir)
			if err != nil {
				return err
			}
			if got := fmt.Sprint(f.Names()); !slices.Contains([]string{"[a]", "[b]", "[a b]"},
				got) {
				t.Errorf("%q: tensors %s", text, got)
			}
			return f.Close()
		},
	}.Try(t)
}

// Lengths that lie cost nothing; a header full of the smallest tensors, or of
// the smallest strings, costs a small multiple of itself.
func TestMemoryIsBounded(t *testing.T) {
	var lies uint64
	dir := t.TempDir()
	for _, h := range []string{
		`{"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}}`,
		`{"a":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}}`,
		`{"a":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,9223372036854775807]}}`,
	} {
		path := hostile.Put(t, dir, "f", file(h, 0))
		lies = max(lies, hostile.AllocBytes(func() {
			if _, err := Open(path); err == nil {
				t.Errorf("%s: accepted", h)
			}
		}))
	}
	if lies >= 1<<20 {
		t.Errorf("a lying length allocated %d bytes", lies)
	}
	var names, pairs strings.Builder
	names.WriteString("{")
	for i := range 20_000 {
		if i > 0 {
			names.WriteString(",")
		}
		fmt.Fprintf(&names, `"%x":{"dtype":"U8","shape":[0,1,1,1,1,1,1,1],"data_offsets":[0,0]}`, i)
		fmt.Fprintf(&pairs, `,"%x":"f"`, i)
	}
	names.WriteString("}")
	factor := func(f func() error, n int) float64 {
		t.Helper()
		var err error
		used := hostile.AllocBytes(func() { err = f() })
		if err != nil {
			t.Fatal(err)
		}
		return float64(used) / float64(n)
	}
	ofNames := factor(func() error { _, err := parseHeader(names.String(), 0); return err },
		names.Len())
	index := []byte(`{"weight_map":{` + pairs.String()[1:] + `}}`)
	ofIndex := factor(func() error { _, err := parseIndex(index); return err }, len(index))
	meta := `{"__metadata__":{` + pairs.String()[1:] + `}}`
	ofMeta := factor(func() error { _, err := parseHeader(meta, 0); return err }, len(meta))
	if ofNames > 5 || ofIndex > 20 || ofMeta > 20 {
		t.Errorf("allocated %.1f, %.1f, %.1f times the text", ofNames, ofIndex, ofMeta)
	}
	t.Logf("row 13: safetensors: lying lengths allocate %d bytes; allocated in all, times the text: %.1f (names), %.1f (index), %.1f (metadata)", lies, ofNames, ofIndex, ofMeta)
}

// A header as large as the cap is refused or read in bounded time.
func TestLargestHeader(t *testing.T) {
	if testing.Short() {
		t.Skip("100 MB")
	}
	start := time.Now()
	text := "{" + strings.Repeat(" ", maxHeader-2) + "}"
	if _, err := parseHeader(text, 0); err != nil {
		t.Error(err)
	}
	text = `{"` + strings.Repeat("a", maxHeader-10) + `":`
	if _, err := parseHeader(text, 0); err == nil || len(err.Error()) > 500 {
		t.Errorf("a name of 100 MB: %v", err)
	}
	t.Logf("two headers of 100 MB: %v", time.Since(start))
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, binary.LittleEndian.AppendUint64(nil, maxHeader+1),
		0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, maxHeader+100); err != nil { // sparse
		t.Fatal(err)
	}
	var err error
	if used := hostile.AllocBytes(func() { _, err = Open(path) }); err == nil || used > 1<<20 ||
		!strings.Contains(err.Error(), "the limit is 100000000") {
		t.Errorf("a header over the cap: %v, %d bytes allocated", err, used)
	}
}

// folderWith makes a folder with an index and these files.
func folderWith(t *testing.T, index string, files map[string][]byte) string {
	dir := t.TempDir()
	hostile.Put(t, dir, IndexName, []byte(index))
	for name, data := range files {
		hostile.Put(t, dir, name, data)
	}
	return dir
}

func TestHostileFoldersAreRefused(t *testing.T) {
	a := file(`{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, 1)
	b := file(`{"b":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, 1)
	ab := file(`{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[],"data_offsets":[1,2]}}`, 2)
	files := map[string][]byte{"1": a, "2": b, "12": ab}
	for _, c := range []struct{ name, index, want string }{
		{"not an object", `[]`, `"[" where '{' should be`},
		{"empty", ``, "the text ends where"},
		{"not UTF-8", "{\"\xff\":0}", "not valid UTF-8"},
		{"no weight_map", `{"metadata":{}}`, "weight_map is missing"},
		{"wrong case", `{"Weight_Map":{"a":"1"}}`, "weight_map is missing"},
		{"weight_map empty", `{"weight_map":{}}`, "weight_map is empty"},
		{"weight_map twice", `{"weight_map":{"a":"1"},"weight_map":{"b":"2"}}`, "weight_map appears twice"},
		{"weight_map an array", `{"weight_map":["a"]}`, `"[" where`},
		{"tensor twice", `{"weight_map":{"a":"1","a":"1"}}`, `tensor "a": appears twice`},
		{"file a number", `{"weight_map":{"a":1}}`, "a string should be here"},
		{"bytes after", `{"weight_map":{"a":"1"}}x`, "bytes after its end"},
		{"nested without end", `{"metadata":` + strings.Repeat("[", 100_000), "nested more than 64 deep"},
		{"broken metadata", `{"metadata":{"x":tru},"weight_map":{"a":"1"}}`, "a value should be here"},
		{"number like 1-2", `{"metadata":1-2,"weight_map":{"a":"1"}}`, "1-2 is not a number"},
		{"parent folder", `{"weight_map":{"a":"../1"}}`, "must be a plain file name"},
		{"absolute path", `{"weight_map":{"a":"/etc/passwd"}}`, "must be a plain file name"},
		{"folder below", `{"weight_map":{"a":"sub/1"}}`, "must be a plain file name"},
		{"Windows path", `{"weight_map":{"a":"..\\1"}}`, "must be a plain file name"},
		{"Windows drive", `{"weight_map":{"a":"C:1"}}`, "must be a plain file name"},
		{"NUL", `{"weight_map":{"a":"1\u0000"}}`, "must be a plain file name"},
		{"dots", `{"weight_map":{"a":".."}}`, "not the name of a file"},
		{"no name", `{"weight_map":{"a":""}}`, "not the name of a file"},
		{"shard missing", `{"weight_map":{"a":"3"}}`, "no such file"},
		{"shard a folder", `{"weight_map":{"a":"dir"}}`, "not a regular file"},
		{"shard a device", `{"weight_map":{"a":"zero"}}`, "zero"},
		{"link out of the folder", `{"weight_map":{"a":"out"}}`, "copy the folder with cp -rL"},
		{"shard a FIFO", `{"weight_map":{"a":"fifo"}}`, "not a regular file"},
		{"tensor missing in its shard", `{"weight_map":{"a":"1","c":"2"}}`, `tensor "c": the index says it is here, but the file does not have it`},
		{"tensor not in the index", `{"weight_map":{"a":"12"}}`, `tensor "b": the index does not list it`},
		{"tensor in two shards", `{"weight_map":{"a":"1","b":"12"}}`, `tensor "a": is also in 1`},
		{"shard broken", `{"weight_map":{"a":"1","b":"broken"}}`, "too short"},
	} {
		dir := folderWith(t, c.index, files)
		hostile.Put(t, dir, "broken", []byte("x"))
		if err := os.Mkdir(filepath.Join(dir, "dir"), 0o777); err != nil {
			t.Fatal(err)
		}
		outside := hostile.Put(t, t.TempDir(), "outside", a)
		for name, to := range map[string]string{"out": outside, "zero": "/dev/zero"} {
			if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
				t.Skip(err)
			}
		}
		if c.name == "shard a FIFO" && !mkfifo(t, filepath.Join(dir, "fifo")) {
			continue
		}
		folder, err := OpenFolder(dir)
		if err == nil {
			folder.Close()
			t.Errorf("%s: accepted", c.name)
		} else if !strings.Contains(err.Error(), c.want) ||
			!strings.HasPrefix(err.Error(), "safetensors: "+dir) {
			t.Errorf("%s: message %q, want %q in it", c.name, err, c.want)
		}
	}
	// The same shards with a right index are read, and so is a link that stays.
	dir := folderWith(t, `{"metadata":{"total_size":2.0,"x":[null,true,-1e400,{"y":"z"}]},"weight_map":{"b":"2","a":"link"}}`, files)
	if err := os.Symlink("1", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	folder, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(folder.Names()); got != "[a b]" {
		t.Errorf("names %s", got)
	}
	if err := folder.Close(); err != nil {
		t.Error(err)
	}
	if _, err := OpenFolder(t.TempDir()); err == nil || !strings.Contains(err.Error(), "neither") ||
		!errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder: %v", err)
	}
}

// Open itself refuses what is not a file before it opens it.
func TestOpenRefusesDevices(t *testing.T) {
	dir := t.TempDir()
	paths := []string{dir, "/dev/zero"}
	fifo := filepath.Join(dir, "fifo")
	if mkfifo(t, fifo) {
		paths = append(paths, fifo)
	}
	for _, path := range paths {
		done := make(chan error, 1)
		go func() { _, err := Open(path); done <- err }()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%s: accepted", path)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: Open waits", path)
		}
	}
}

func FuzzHeader(f *testing.F) {
	for _, h := range refused {
		if len(h.data) > 8 && len(h.data) < 1000 {
			f.Add(h.data)
		}
	}
	f.Add(sample(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 8 {
			return
		}
		n := binary.LittleEndian.Uint64(b)
		if n > uint64(len(b)-8) {
			n = uint64(len(b) - 8)
		}
		dataLen := int64(len(b)-8) - int64(n)
		h, err := parseHeader(string(b[8:8+n]), dataLen)
		if err != nil {
			return
		}
		if err := consistent(h, dataLen); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzIndex(f *testing.F) {
	for _, s := range []string{
		`{"metadata":{"total_size":2},"weight_map":{"b":"2","a":"1"}}`,
		`{"weight_map":{"a":"../1"}}`, `{"weight_map":{"a":"\u0000"}}`, `{"x":[[[]]],"weight_map":{}}`,
		`{"metadata":{"x":1e5,"y":[null,true,false,-0.5]},"weight_map":{"\ud83d\ude00":"m.safetensors"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		weights, err := parseIndex(b)
		if err != nil {
			return
		}
		for i, w := range weights {
			if filepath.Base(w.value) != w.value || w.value == ".." || w.value == "." ||
				strings.ContainsRune(w.value, 0) {
				t.Fatalf("tensor %q: file %q", w.key, w.value)
			}
			if i > 0 && weights[i-1].key >= w.key {
				t.Fatalf("out of order at %q", w.key)
			}
		}
	})
}
