//go:build unix

package folder

import (
	"os"
	"syscall"
)

// Map maps the first size bytes of f for reading. f may be closed. Reads of the memory
// belong in [Guard].
func Map(f *os.File, size int) (data []byte, unmap func() error, err error) {
	data, err = syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return data, func() error { return os.NewSyscallError("munmap", syscall.Munmap(data)) }, nil
}
