package input

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// doc/reliability.md, row 13: compressed bytes that lie of their length cost nothing.
func TestLyingBlocks(t *testing.T) {
	var frames []byte // zstd: a frame header that claims 2^40 bytes
	frames = append(frames, 0x28, 0xb5, 0x2f, 0xfd, 0xe0)
	frames = binary.LittleEndian.AppendUint64(frames, 1<<40)
	// the same of 2^30, with a small window
	large := binary.LittleEndian.AppendUint64([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xc0, 0x38}, 1<<30)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	good := enc.EncodeAll([]byte("hello"), nil)
	for name, c := range map[string]struct {
		src      []byte
		n, codec int64
	}{
		"zstd header":      {frames, 5, CodecZstd},
		"zstd empty block": {append(bytes.Clone(frames), 1, 0, 0), 5, CodecZstd},
		"zstd one block": {append(bytes.Clone(frames), 0x29, 0, 0, 'h', 'e', 'l', 'l', 'o'), 5,
			CodecZstd},
		"zstd second frame": {append(bytes.Clone(good), frames...), 5, CodecZstd},
		"zstd too few":      {good, 6, CodecZstd},
		// What follows the library itself would take.
		"zstd 1 GiB":               {append(bytes.Clone(large), 1, 0, 0), 5, CodecZstd},
		"zstd 1 GiB, second frame": {slices.Concat(good, large, []byte{1, 0, 0}), 5, CodecZstd},
		"zstd skippable frame": {[]byte{0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 0, 0}, 0,
			CodecZstd},
		"zstd window of 32 MiB": {
			[]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0x78, 0x29, 0, 0, 'h', 'e', 'l', 'l', 'o'}, 5,
			CodecZstd},
		"zstd 1000 long blocks": {
			slices.Concat([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0x38},
				bytes.Repeat([]byte{2, 0, 0x10, 'a'}, 1000), []byte{1, 0, 0}), 5, CodecZstd},
		"snappy":          {binary.AppendUvarint(nil, 1<<32-1), 5, CodecSnappy},
		"snappy too many": {snappy.Encode(nil, []byte("hello")), 4, CodecSnappy},
		"lz4 raw":         {[]byte{0xff, 0xff, 0xff}, 5, CodecLZ4Raw},
		"lz4":             {[]byte{4, 0x22, 0x4d, 0x18, 0x40, 0x40, 0xc0}, 5, CodecLZ4},
		"gzip":            {[]byte{0x1f, 0x8b}, 5, CodecGzip},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := Guard(func() error { _, err := Decode(nil, c.src, c.n, c.codec); return err })
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		// an lz4 reader takes 8 MiB
		if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
			t.Errorf("%s: allocated %d bytes", name, used)
		}
	}
	if out, err := Decode([]byte("x"), good, 5, CodecZstd); err != nil || string(out) != "xhello" {
		t.Errorf("good frame: %q, %v", out, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x05\x10hello"), int64(5), CodecSnappy)
	f.Add([]byte("\x8f\x02\x80hello\x03"), int64(5), CodecBrotli)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 4, 0, 41, 0, 0, 'h', 'e', 'l', 'l', 'o'}, int64(5),
		CodecZstd)
	f.Fuzz(func(t *testing.T, src []byte, n, codec int64) {
		if n < 0 || n > MaxDecoded(int64(len(src))) || codec < 0 || codec > CodecBrotli {
			return
		}
		_ = Guard(func() error {
			out, err := Decode(nil, src, n, codec)
			if err == nil && int64(len(out)) != n {
				t.Error(fmt.Errorf("codec %d gave %d bytes, not %d", codec, len(out), n))
			}
			return err
		})
	})
}
