package data

import (
	"bytes"
	"errors"
	"fmt"
	"gad/data/input"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// packedSuffixes are the suffixes of compressed files, behind the suffix of their contents.
var packedSuffixes = []string{".gz", ".zst", ".zstd"}

// unpackedName returns a file's name without the suffix of a compression.
func unpackedName(name string) string {
	if ext := filepath.Ext(name); slices.Contains(packedSuffixes, strings.ToLower(ext)) {
		return strings.TrimSuffix(name, ext)
	}
	return name
}

// suffixOf returns the suffix of a file's contents, in lower case: ".jsonl" for a.jsonl.gz.
func suffixOf(name string) string { return strings.ToLower(filepath.Ext(unpackedName(name))) }

// maxUnpacked bounds the unpacked size of a compressed file, which is held in memory.
const maxUnpacked = 1 << 30

// codecOf returns the compression of a whole file by its first bytes.
func codecOf(head []byte) (codec int64, ok bool) {
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		return input.CodecGzip, true
	case bytes.HasPrefix(head, []byte("\x28\xb5\x2f\xfd")):
		return input.CodecZstd, true
	}
	return 0, false
}

// unpacked is the contents of a compressed file.
type unpacked struct {
	*bytes.Reader
	name string // of the file, without the suffix of its compression
	file *os.File
}

func (u *unpacked) Name() string { return u.name }
func (u *unpacked) Close() error { return u.file.Close() }

// Stat describes the compressed file.
func (u *unpacked) Stat() (fs.FileInfo, error) { return u.file.Stat() }

// unpack reads a compressed file of size bytes into memory, within the bounds of compressed
// columns.
func unpack(file *os.File, name string, size, codec int64) (*unpacked, error) {
	limit, way := min(input.MaxDecoded(size), maxUnpacked), "gunzip"
	var r io.Reader
	packed := io.NewSectionReader(file, 0, size)
	if codec == input.CodecZstd {
		way = "unzstd"
		z, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxMemory(128<<20))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		r = z
	} else {
		z, err := gzip.NewReader(packed)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, input.NewTruncated("the compressed file ends too early: copy it again")
		} else if err != nil {
			return nil, input.Corrupt(err)
		}
		r = z
	}
	var b bytes.Buffer
	_, err := io.Copy(&b, io.LimitReader(r, limit+1))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, input.NewTruncated("the compressed file ends too early: copy it again")
	case err != nil:
		return nil, fmt.Errorf("decompressing: %w", input.Corrupt(err))
	case int64(b.Len()) > limit:
		return nil, fmt.Errorf("is compressed, and unpacks to more than %d MiB, which gad would hold in memory: decompress it first (%s)", limit>>20, way)
	}
	return &unpacked{bytes.NewReader(b.Bytes()), unpackedName(name), file}, nil
}
