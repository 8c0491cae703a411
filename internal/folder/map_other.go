//go:build !unix

package folder

import (
	"io"
	"os"
)

// Map reads the first size bytes of f into memory: on these systems files are not mapped.
func Map(f *os.File, size int) (data []byte, unmap func() error, err error) {
	data = make([]byte, size) // bounded by the file's own size
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, int64(size)), data); err != nil {
		return nil, nil, err
	}
	return data, func() error { return nil }, nil
}
