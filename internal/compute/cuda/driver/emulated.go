//go:build nvidia

package driver

import (
	"unsafe"

	"github.com/ebitengine/purego"
)

// Emulation controls the emulated device, for tests of what happens when the
// device has no more memory, or cuBLASLt no algorithm.
type Emulation struct{ failAlloc, allocs, pinned, launches uintptr }

// Emulated is the emulated device's controls, or nil when the driver is a real
// one or has not been opened.
func Emulated() *Emulation {
	lib.Lock()
	defer lib.Unlock()
	if lib.handle == 0 {
		return nil
	}
	var e Emulation
	for _, s := range []struct {
		to   *uintptr
		name string
	}{{&e.failAlloc, "gadEmuFailAlloc"}, {&e.allocs, "gadEmuAllocs"}, {&e.pinned, "gadEmuPinned"}, {&e.launches, "gadEmuLaunches"}} {
		p, err := purego.Dlsym(lib.handle, s.name)
		if err != nil {
			return nil
		}
		*s.to = p
	}
	return &e
}

// FailAlloc lets the n-th allocation from now on, counted from 0, of device or
// pinned memory fail; -1 lets none.
func (e *Emulation) FailAlloc(n int) { purego.SyscallN(e.failAlloc, uintptr(n)) }

// NoPlans lets d's cuBLASLt know no algorithm for any product from now on.
func (e *Emulation) NoPlans(d *Device) {
	d.lt.forget()
	d.lt.heuristic = purego.NewCallback(func(_, _, _, _, _, _, _, _, _, count uintptr) uintptr {
		*(*int32)(*(*unsafe.Pointer)(unsafe.Pointer(&count))) = 0
		return 0
	})
}

// Allocs is the number of blocks of device memory that are held.
func (e *Emulation) Allocs() int {
	n, _, _ := purego.SyscallN(e.allocs)
	return int(n)
}

// Pinned is the number of blocks of pinned host memory that are held.
func (e *Emulation) Pinned() int {
	n, _, _ := purego.SyscallN(e.pinned)
	return int(n)
}

// Launches is the number of kernels that have run.
func (e *Emulation) Launches() int {
	n, _, _ := purego.SyscallN(e.launches)
	return int(n)
}
