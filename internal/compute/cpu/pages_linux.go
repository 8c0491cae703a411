package cpu

import (
	"syscall"
	"unsafe"
)

// hugePage is the size of a large page on amd64, and on arm64 with pages of 4 KiB.
const hugePage = 2 << 20

// largePages asks Linux to map x in large pages. A register tile's rows lie pages apart, and
// in a virtual machine each page that the processor has forgotten costs two walks through tables.
// Linux may decline, which changes nothing but the speed.
func largePages[T float32 | uint32](x []T) {
	const size = 4
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(x)))
	lo := (hugePage - begin%hugePage) % hugePage / size
	if n := uintptr(len(x)); lo < n {
		if whole := (n - lo) * size / hugePage * hugePage; whole > 0 {
			_ = syscall.Madvise(unsafe.Slice((*byte)(unsafe.Pointer(&x[lo])), whole),
				syscall.MADV_HUGEPAGE)
		}
	}
}
