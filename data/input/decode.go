package input

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codecs. The first two have Arrow's numbers.
const (
	CodecLZ4 int64 = iota // frame format
	CodecZstd
	CodecSnappy
	CodecGzip
	CodecLZ4Raw // block format
	CodecBrotli
)

// MaxExpansion bounds the ratio of a declared count to the compressed size.
const MaxExpansion = 1024

// MaxDecoded returns the bound of the bytes that n compressed bytes may expand to, all buffers of
// one message or page together. Text compresses by 2 to 20; the constant leaves room for short runs
// of equal bytes.
func MaxDecoded(n int64) int64 { return 4<<20 + 64*n }

// Decode appends to dst the n bytes that src decompresses to, and fails if they are more or fewer.
// The caller bounds n by MaxDecoded; no more memory is used, whatever src declares.
func Decode(dst, src []byte, n, codec int64) ([]byte, error) {
	start := len(dst)
	want := start + int(n)
	var err error
	switch codec {
	case CodecLZ4:
		dst, err = readExactly(dst, lz4.NewReader(bytes.NewReader(src)), n)
	case CodecGzip:
		var r *gzip.Reader
		if r, err = gzip.NewReader(bytes.NewReader(src)); err == nil {
			dst, err = readExactly(dst, r, n)
		}
	case CodecBrotli:
		dst, err = readExactly(dst, brotli.NewReader(bytes.NewReader(src)), n)
	case CodecZstd:
		dst, err = decodeZstd(dst, src, n)
	case CodecSnappy:
		if length, k := binary.Uvarint(src); k <= 0 || length != uint64(n) {
			return nil, fmt.Errorf("snappy: says %d bytes, not %d: %w", length, n, ErrCorrupt)
		}
		var out []byte
		if out, err = snappy.Decode(nil, src); err == nil {
			dst = append(dst, out...)
		}
	case CodecLZ4Raw:
		dst = append(dst, make([]byte, n)...)
		var k int
		if k, err = lz4.UncompressBlock(src, dst[start:]); err == nil && k != int(n) {
			err = io.ErrUnexpectedEOF
		}
	default:
		return nil, fmt.Errorf("compression codec %d: not read", codec)
	}
	if err == nil && len(dst) != want {
		err = fmt.Errorf("%d bytes, not %d", len(dst)-start, n)
	}
	if err != nil {
		return nil, fmt.Errorf("decompressing: %w", Corrupt(err))
	}
	return dst, nil
}

// readExactly appends n bytes of r, and fails unless r ends there.
func readExactly(dst []byte, r io.Reader, n int64) ([]byte, error) {
	start := len(dst)
	dst = append(dst, make([]byte, n)...)
	if _, err := io.ReadFull(r, dst[start:]); err != nil {
		return nil, err
	}
	var more [1]byte
	k, err := r.Read(more[:])
	if k != 0 {
		return nil, errors.New("more bytes than declared")
	}
	if err != nil && err != io.EOF {
		return nil, err
	}
	return dst, nil
}

// zstdDecoder returns the shared decoder, which works on the calling goroutine only.
var zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(64<<20))
})

// decodeZstd decompresses src, one frame. The decoder allocates the size in a frame's header, so
// that size must equal n; a frame without one is bounded by its number of blocks, of at most 128
// KiB each.
func decodeZstd(dst, src []byte, n int64) ([]byte, error) {
	var h zstd.Header
	if err := h.Decode(src); err != nil {
		return nil, err
	}
	if h.Skippable || h.HasFCS && h.FrameContentSize != uint64(n) {
		return nil, fmt.Errorf("zstd frame of %d bytes, not %d", h.FrameContentSize, n)
	}
	if n > 0 && !h.SingleSegment && h.WindowSize > max(8<<20, uint64(n)) {
		return nil, fmt.Errorf("zstd window of %d bytes for %d", h.WindowSize, n)
	}
	blocks := int64(0)
	for at, last := h.HeaderSize, false; !last; blocks++ {
		if at+3 > len(src) {
			return nil, io.ErrUnexpectedEOF
		}
		head := int(src[at]) | int(src[at+1])<<8 | int(src[at+2])<<16
		last = head&1 != 0
		size := head >> 3
		if head>>1&3 == 1 { // one byte, repeated
			size = 1
		}
		if at += 3 + size; last {
			if h.HasCheckSum {
				at += 4
			}
			if at != len(src) {
				return nil, fmt.Errorf("%d bytes after the zstd frame", len(src)-at)
			}
		}
	}
	if !h.HasFCS && (blocks-1)<<17 > 64<<20+4*n {
		return nil, fmt.Errorf("zstd frame of %d blocks for %d bytes", blocks, n)
	}
	d, err := zstdDecoder()
	if err != nil {
		return nil, err
	}
	return d.DecodeAll(src, dst)
}
