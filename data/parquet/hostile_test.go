package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go/format"

	"gad/data/input"
	"gad/internal/hostile"
)

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
	before := hostile.TotalAlloc()
	_, err = plainDelta(header(200000), nil, page(200000), input.MaxDecoded(1<<20))
	if !errors.Is(err, input.ErrCorrupt) || !strings.Contains(err.Error(), "expand to") {
		t.Errorf("20 GB of values: %v", err)
	}
	if used := hostile.TotalAlloc() - before; used > 32<<20 {
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
		err := input.Guard(func() error { _, err := plainDelta(header(3), nil, bad, 1<<20); return err })
		if !errors.Is(err, input.ErrCorrupt) || strings.Contains(err.Error(), "runtime error") {
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
