//go:build nvidia

package driver

import (
	"unsafe"

	"github.com/ebitengine/purego"
)

// Emulation controls the emulated device, for tests of what happens when the
// device has no more memory, or cuBLASLt no algorithm.
type Emulation struct{ failAlloc, allocs, pinned, work uintptr }

// Emulated returns the controls of the emulated device, or nil when the driver is a real one or has
// not been opened.
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
	}{{&e.failAlloc, "gadEmuFailAlloc"}, {&e.allocs, "gadEmuAllocs"}, {&e.pinned, "gadEmuPinned"},
		{&e.work, "gadEmuWork"}} {
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

// Allocs returns the number of allocated blocks of device memory.
func (e *Emulation) Allocs() int {
	n, _, _ := purego.SyscallN(e.allocs)
	return int(n)
}

// PinnedBlocks returns the number of allocated blocks of pinned host memory.
func (e *Emulation) PinnedBlocks() int {
	n, _, _ := purego.SyscallN(e.pinned)
	return int(n)
}

// Work is what a device has run, also as a part of graphs.
type Work struct {
	Kernels, Products, Copies, Fills int
	Copied, Filled                   int // bytes
}

// Work returns the counts of all work done so far.
func (e *Emulation) Work() Work {
	of := func(what uintptr) int {
		n, _, _ := purego.SyscallN(e.work, what)
		return int(n)
	}
	return Work{Kernels: of(0), Products: of(1), Copies: of(2), Fills: of(3), Copied: of(4),
		Filled: of(5)}
}

// Since returns the work done after before was counted.
func (w Work) Since(before Work) Work {
	return Work{w.Kernels - before.Kernels, w.Products - before.Products, w.Copies - before.Copies,
		w.Fills - before.Fills, w.Copied - before.Copied, w.Filled - before.Filled}
}
