package parquet

import (
	"encoding/binary"
	"fmt"
	"gad/data/input"
	"math/bits"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// The Parquet library makes room for the run lengths that a page states. This
// file walks a page's runs without decoding them, so that they are known to
// add up to the page's number of values. Source: the Encodings document of the
// Parquet format.

// checkPage checks the levels and values of an uncompressed data page.
func checkPage(c *parquet.Column, h *format.PageHeader, plain []byte) error {
	var count int
	var encoding format.Encoding
	var levels [2][]byte // repetition, definition
	width := [2]int{bits.Len(uint(c.MaxRepetitionLevel())), bits.Len(uint(c.MaxDefinitionLevel()))}
	if h.Type == format.DataPageV2 {
		v := &h.DataPageHeaderV2.V
		count, encoding = int(v.NumValues), v.Encoding
		r, d := v.RepetitionLevelsByteLength, v.DefinitionLevelsByteLength
		levels[0], levels[1], plain = plain[:r], plain[r:r+d], plain[r+d:]
	} else {
		v := &h.DataPageHeader.V
		count, encoding = int(v.NumValues), v.Encoding
		for i, e := range []format.Encoding{v.RepetitionLevelEncoding, v.DefinitionLevelEncoding} {
			if width[i] == 0 {
				continue
			}
			if e != format.RLE {
				return fmt.Errorf("levels with encoding %s: not read", e)
			}
			if len(plain) < 4 || uint64(binary.LittleEndian.Uint32(plain)) > uint64(len(plain)-4) {
				return fmt.Errorf("levels of more bytes than the page has: %w", input.ErrCorrupt)
			}
			n := binary.LittleEndian.Uint32(plain)
			levels[i], plain = plain[4:4+n], plain[4+n:]
		}
	}
	for i, b := range levels {
		if width[i] == 0 {
			continue
		}
		if n, err := countRuns(b, width[i], count); err != nil {
			return fmt.Errorf("levels: %w: %w", err, input.ErrCorrupt)
		} else if n < count {
			return fmt.Errorf("levels for %d values of %d: %w", n, count, input.ErrCorrupt)
		}
	}
	var err error
	switch encoding {
	case format.PlainDictionary, format.RLEDictionary:
		if len(plain) > 0 {
			_, err = countRuns(plain[1:], int(plain[0]), count)
		}
	case format.DeltaLengthByteArray:
		err = checkDelta(plain, 32, count)
	case format.DeltaBinaryPacked:
		err = checkDelta(plain, 64, count)
	case format.DeltaByteArray: // what follows the first sequence, plainDelta checks
		err = checkDelta(plain, 32, count)
	}
	if err != nil {
		return fmt.Errorf("values: %w: %w", err, input.ErrCorrupt)
	}
	return nil
}

// padding bounds the values that a page's runs may hold beyond its count: writers fill the last run
// up (DuckDB to 256), and readers ignore the rest.
const padding = 4096

// countRuns returns the number of values in the runs of b, at most count and the padding of the
// last run. A run is a header and, if the header is even, one value that is repeated header/2
// times, and otherwise header/2 groups of 8 values of width bits each.
func countRuns(b []byte, width, count int) (int, error) {
	if width > 32 {
		return 0, fmt.Errorf("values of %d bits", width)
	}
	n := 0
	for len(b) > 0 {
		head, k := binary.Uvarint(b)
		if k <= 0 || head>>1 > uint64(count)+padding {
			return 0, fmt.Errorf("run of %d for %d values", head>>1, count)
		}
		b = b[k:]
		size := (width + 7) / 8
		length := int(head >> 1)
		if head&1 == 1 {
			size, length = length*width, length*8
		}
		if size > len(b) {
			return 0, fmt.Errorf("run of %d bytes, %d are left", size, len(b))
		}
		b = b[size:]
		if n += length; n > count+padding {
			return 0, fmt.Errorf("runs of %d for %d values", n, count)
		}
	}
	return n, nil
}

// checkDelta checks a DELTA_BINARY_PACKED sequence of at most count values whose differences take
// at most width bits.
func checkDelta(b []byte, width byte, count int) error {
	var head [3]uint64 // block size, miniblocks in a block, values
	for i := range head {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return errThrift
		}
		head[i], b = v, b[n:]
	}
	block, minis, total := head[0], head[1], head[2]
	if total > uint64(count) || block == 0 || block > 1<<16 || block%128 != 0 || minis == 0 ||
		minis > block/32 || block/minis%32 != 0 {
		return fmt.Errorf("%d differences in blocks of %d, %d parts, for %d values", total, block,
			minis, count)
	}
	_, n := binary.Uvarint(b) // first value
	if n <= 0 {
		return errThrift
	}
	b = b[n:]
	per := block / minis
	for left := int64(total) - 1; left > 0; {
		_, n := binary.Uvarint(b) // least difference
		if n <= 0 || uint64(len(b)-n) < minis {
			return errThrift
		}
		widths := b[n : n+int(minis)]
		b = b[n+int(minis):]
		for _, w := range widths {
			if left <= 0 {
				break
			}
			size := int(per) * int(w) / 8
			if w > width || size > len(b) {
				return fmt.Errorf("differences of %d bits, %d bytes are left", w, len(b))
			}
			b = b[size:]
			left -= int64(per)
		}
	}
	return nil
}

// plainDelta decodes the values of a DELTA_BYTE_ARRAY page, each of which shares a prefix with the
// previous one, and returns the page in plain encoding, with its header in h. The decoded size is
// known from the lengths before anything is copied, and must be within limit.
func plainDelta(h *format.PageHeader, c *parquet.Column, page []byte, limit int64) ([]byte, error) {
	var levels int
	if h.Type == format.DataPageV2 {
		v := &h.DataPageHeaderV2.V
		levels = int(v.RepetitionLevelsByteLength + v.DefinitionLevelsByteLength)
		v.Encoding = format.Plain
	} else {
		for _, max := range []int{c.MaxRepetitionLevel(), c.MaxDefinitionLevel()} {
			if max > 0 {
				levels += 4 + int(binary.LittleEndian.Uint32(page[levels:]))
			}
		}
		h.DataPageHeader.V.Encoding = format.Plain
	}
	// one of the two is 0
	count := int(h.DataPageHeader.V.NumValues + h.DataPageHeaderV2.V.NumValues)
	b := page[levels:]
	shared, b, err := deltaLengths(b, count)
	if err != nil {
		return nil, fmt.Errorf("shared prefixes: %w: %w", err, input.ErrCorrupt)
	}
	own, b, err := deltaLengths(b, count)
	if err != nil {
		return nil, fmt.Errorf("suffixes: %w: %w", err, input.ErrCorrupt)
	}
	if len(shared) != len(own) {
		return nil, fmt.Errorf("%d prefixes, %d suffixes: %w", len(shared), len(own), input.ErrCorrupt)
	}
	size, text, last := int64(levels), int64(0), int64(0)
	for i := range own {
		if shared[i] > last {
			return nil, fmt.Errorf("value %d: shares %d bytes of %d: %w", i, shared[i], last,
				input.ErrCorrupt)
		}
		last = shared[i] + own[i]
		text += own[i]
		if size += 4 + last; size > limit {
			return nil,
				fmt.Errorf("%d bytes expand to %d and more: %w: write it with plain encoding",
					len(page), size, input.ErrCorrupt)
		}
	}
	if text != int64(len(b)) {
		return nil, fmt.Errorf("suffixes of %d bytes, %d are there: %w", text, len(b), input.ErrCorrupt)
	}
	out := append(make([]byte, 0, size), page[:levels]...)
	before := 0 // where the value before begins in out
	for i := range own {
		out = binary.LittleEndian.AppendUint32(out, uint32(shared[i]+own[i]))
		at := len(out)
		out = append(out, out[before:before+int(shared[i])]...)
		out = append(out, b[:own[i]]...)
		before, b = at, b[own[i]:]
	}
	return out, nil
}

// deltaLengths decodes a DELTA_BINARY_PACKED sequence of lengths, at most count, and returns the
// bytes behind it.
func deltaLengths(b []byte, count int) (lengths []int64, rest []byte, err error) {
	if err := checkDelta(b, 32, count); err != nil {
		return nil, nil, err
	}
	next := func() uint64 { // checkDelta has seen that it is there
		v, n := binary.Uvarint(b)
		b = b[n:]
		return v
	}
	zigzag := func(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }
	block, minis, total := next(), next(), int(next())
	value := int32(zigzag(next())) // sums wrap around at 32 bits, as the format has it
	per := int(block / minis)
	add := func() error {
		if value < 0 {
			return fmt.Errorf("length %d", value)
		}
		lengths = append(lengths, int64(value))
		return nil
	}
	if total == 0 {
		return nil, b, nil
	}
	if err := add(); err != nil {
		return nil, nil, err
	}
	for len(lengths) < total {
		least := int32(zigzag(next()))
		widths := b[:minis]
		b = b[minis:]
		for _, w := range widths {
			if len(lengths) == total {
				break
			}
			packed := b[:per*int(w)/8]
			b = b[len(packed):]
			for k := 0; k < per && len(lengths) < total; k++ {
				var v uint64
				for bit := range int(w) {
					at := k*int(w) + bit
					v |= uint64(packed[at/8]>>(at%8)&1) << bit
				}
				value += least + int32(uint32(v))
				if err := add(); err != nil {
					return nil, nil, err
				}
			}
		}
	}
	return lengths, b, nil
}
