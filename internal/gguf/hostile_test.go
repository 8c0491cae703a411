package gguf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/hostile"
)

func TestHostileFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	var most uint64
	for _, h := range refused {
		path := hostile.Put(t, dir, "f", h.data)
		var r *Reader
		var err error
		used := hostile.AllocBytes(func() { r, err = Open(path) })
		if err == nil {
			r.Close()
			t.Errorf("%s: accepted", h.name)
			continue
		}
		if msg := err.Error(); !strings.HasPrefix(msg, "gguf: "+path+": "+h.want) ||
			strings.Contains(msg, "\n") || len(msg) > 500+len(path) {
			t.Errorf("%s: message %q, want %q", h.name, msg, h.want)
		}
		if len(h.data) <= 200 {
			most = max(most, used)
		}
	}
	if most >= 1<<18 {
		t.Errorf("refusing a file of 200 bytes allocated %d", most)
	}
	t.Logf("row 14: gguf: %d hostile files refused, each with offset and field, at most %d bytes allocated for one of 200 bytes or less", len(refused), most)
}

// sample is a small good file with values and tensors of several types.
func sample(t testing.TB) []byte {
	b := head(3, 4).text("general.alignment").u32(4, 8).text("s").u32(9,
		8).u64(2).text("x").text("yz").text("i").u32(9, 5).u64(2).u32(1, 2).text("f").u32(6,
		0x3f800000)
	b.text("a").u32(2).u64(4, 2).u32(0).u64(0)
	b.text("b").u32(1).u64(32).u32(3).u64(32)
	b.text("c").u32(1).u64(32).u32(8).u64(56)
	b.Write(make([]byte, -b.Len()&7+56+34))
	return b.Bytes()
}

// readAll opens a file and reads all of it, as far as a caller does.
func readAll(path string) error {
	r, err := Open(path)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, key := range r.Keys() {
		for _, read := range []func() (bool, error){
			func() (bool, error) { _, has, err := r.Int(key); return has, err },
			func() (bool, error) { _, has, err := r.Ints(key); return has, err },
			func() (bool, error) { _, has, err := r.Float(key); return has, err },
			func() (bool, error) { _, has, err := r.Floats(key); return has, err },
			func() (bool, error) { _, has, err := r.Bool(key); return has, err },
			func() (bool, error) { _, has, err := r.Text(key); return has, err },
			func() (bool, error) { _, has, err := r.Texts(key); return has, err },
		} {
			if _, err := read(); err != nil && !strings.Contains(err.Error(), "a value of type") {
				return err
			}
		}
	}
	for _, name := range r.Names() {
		x, _ := r.Tensor(name)
		n := 1
		for _, d := range x.Shape {
			n *= d
		}
		if n != x.Len() || n < 1 {
			panic("a tensor whose shape is not its length")
		}
		if err := x.Float32(make([]float32, n), 0); err != nil {
			return err
		}
	}
	return nil
}

// Row 12: every prefix of a file is refused; every bit flip and random change is refused
// or read as a file that is sound.
func TestHostileFormats(t *testing.T) {
	types, err := os.ReadFile(filepath.Join(fixtures, "types.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "f")
	good := sample(t)
	hostile.Format{
		Name:  "gguf",
		Small: good,
		Flip:  [][2]int{{0, len(good) - 56 - 34}},
		Whole: true,
		Seeds: [][]byte{types},
		Words: []string{"GGUF", "general.alignment", "\x00\x00\x00\x00\x00\x00\x00\x00",
			"\xff\xff\xff\xff\xff\xff\xff\xff", "\x01\x00\x00\x00\x00\x00\x00\x00",
			"\x09\x00\x00\x00\x09\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x80"},
		Prefix: "gguf: ",
		Read: func(text []byte) error {
			if err := os.WriteFile(path, text, 0o666); err != nil {
				return err
			}
			return readAll(path)
		},
	}.Try(t)
}

// A header full of the smallest keys, strings or tensors costs a small multiple of itself.
func TestMemoryIsBounded(t *testing.T) {
	dir := t.TempDir()
	const n = 20_000
	pairs, tensors := head(0, n), head(n, 0)
	for i := range n {
		name := string([]byte{byte('a' + i%26), byte('a' + i/26%26), byte('a' + i/26/26%26),
			byte('a' + i/26/26/26)})
		pairs.text(name).u32(0).WriteByte(1)
		tensors.text(name).u32(1).u64(1).u32(0).u64(32 * uint64(i))
	}
	tensors.Write(make([]byte, -tensors.Len()&31+32*n))
	texts := key("a").u32(9, 8).u64(n)
	texts.Write(make([]byte, 8*n))
	factor := func(b *raw) float64 {
		path := hostile.Put(t, dir, "f", b.Bytes())
		var err error
		used := hostile.AllocBytes(func() {
			var r *Reader
			if r, err = Open(path); err == nil {
				_, _, err = r.Texts("a")
				r.Close()
			}
		})
		if err != nil && !strings.Contains(err.Error(), "a value of type") {
			t.Fatal(err)
		}
		return float64(used) / float64(b.Len())
	}
	ofPairs, ofTensors, ofTexts := factor(pairs), factor(tensors), factor(texts)
	if ofPairs > 20 || ofTensors > 20 || ofTexts > 5 {
		t.Errorf("allocated %.1f, %.1f, %.1f times the file", ofPairs, ofTensors, ofTexts)
	}
	t.Logf("row 13: gguf: allocated in all, times the file: %.1f (keys), %.1f (tensors), %.1f (strings)", ofPairs, ofTensors, ofTexts)
}

func FuzzGGUF(f *testing.F) {
	for _, h := range refused {
		if len(h.data) < 1000 {
			f.Add(h.data)
		}
	}
	f.Add(sample(f))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		err := readAll(hostile.Put(t, dir, "f", b))
		if err != nil && (!strings.HasPrefix(err.Error(), "gguf: ") ||
			strings.Contains(err.Error(), "\n")) {
			t.Fatal(err)
		}
	})
}
