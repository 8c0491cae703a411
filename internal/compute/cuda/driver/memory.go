//go:build nvidia

package driver

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/ebitengine/purego"
	"gorgonia.org/cu"
)

// ErrMemory is wrapped by Alloc's and Pinned's errors when there is not as much memory.
var ErrMemory = errors.New("out of memory")

// Ptr is an address on the device; 0 is none.
type Ptr uintptr

// fail makes an error of cu's, which says a word and hides the number, a Result.
func fail(err error) error {
	if v := reflect.ValueOf(err); v.IsValid() && v.Kind() == reflect.Int {
		return Result(v.Int())
	}
	return err
}

// failf says what d was doing when err came.
func (d *Device) failf(err error, format string, args ...any) error {
	doing := fmt.Errorf(format, args...)
	return fmt.Errorf("driver: device %d: %w: %w", d.ordinal, doing, fail(err))
}

// Free returns the number of free bytes on the device and of all bytes; zeros when the driver does
// not say.
func (d *Device) Free() (free, total int64) {
	free, total, err := cu.MemInfo()
	if err != nil {
		return 0, 0
	}
	return free, total
}

// Alloc gives bytes of device memory, at least 256-byte aligned, with whatever was there. No bytes
// are at 0.
func (d *Device) Alloc(bytes int64) (Ptr, error) {
	if bytes == 0 {
		return 0, nil
	}
	p, err := cu.MemAlloc(bytes)
	if err == nil {
		return Ptr(p), nil
	}
	if fail(err) == Result(cu.OutOfMemory) {
		free, total := d.Free()
		return 0, d.failf(err, "%w: asked for %d bytes, %d of %d are free", ErrMemory, bytes, free,
			total)
	}
	return 0, d.failf(err, "allocating %d bytes", bytes)
}

// Release gives p back, which Alloc returned, after the work that is queued.
func (d *Device) Release(p Ptr) {
	if p == 0 || d.stuck != nil { // freeing waits
		return
	}
	d.note(cu.MemFree(cu.DevicePtr(p)), "releasing memory at %#x", uintptr(p))
}

// note keeps the first error of a call that returns none, for Sync.
func (d *Device) note(err error, format string, args ...any) {
	if err != nil && d.fault == nil {
		d.fault = d.failf(err, format, args...)
	}
}

// AllocPinned gives host memory that the device reads and writes directly, kernels by the same
// address (unified addressing). It is not Go's: Unpin frees it.
func (d *Device) AllocPinned(bytes int) ([]byte, error) {
	if bytes == 0 {
		return nil, nil
	}
	var p unsafe.Pointer
	r, _, _ := purego.SyscallN(lib.memHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes), 0)
	switch err := Result(int32(r)); {
	case err == Result(cu.OutOfMemory):
		return nil, d.failf(err, "%w: asked for %d bytes of pinned host memory", ErrMemory, bytes)
	case err != 0:
		return nil, d.failf(err, "allocating %d bytes of pinned host memory", bytes)
	}
	return unsafe.Slice((*byte)(p), bytes), nil
}

// Unpin frees what Pinned gave. The device must have done with it.
func (d *Device) Unpin(b []byte) {
	if len(b) > 0 && d.stuck == nil {
		d.note(cu.MemFreeHost(unsafe.Pointer(&b[0])), "freeing pinned host memory")
	}
}

// CopyIn queues a copy of n bytes to the device. src is in pinned memory and keeps its content
// until the copy is done.
func (d *Device) CopyIn(dst Ptr, src unsafe.Pointer, n int64) error {
	if err := cu.MemcpyHtoDAsync(cu.DevicePtr(dst), src, n, d.stream); err != nil {
		return d.failf(err, "copying %d bytes in", n)
	}
	return nil
}

// CopyOut queues a copy of n bytes to the host. dst is in pinned memory; it is filled after Sync.
func (d *Device) CopyOut(dst unsafe.Pointer, src Ptr, n int64) error {
	if err := cu.MemcpyDtoHAsync(dst, cu.DevicePtr(src), n, d.stream); err != nil {
		return d.failf(err, "copying %d bytes out", n)
	}
	return nil
}

// CopyDev queues a copy of n bytes on the device; the ranges do not overlap.
func (d *Device) CopyDev(dst, src Ptr, n int64) error {
	if err := cu.MemcpyDtoDAsync(cu.DevicePtr(dst), cu.DevicePtr(src), n, d.stream); err != nil {
		return d.failf(err, "copying %d bytes", n)
	}
	return nil
}

// Set32 queues dst[i] = value for n words of 32 bits; dst is 4-byte aligned.
func (d *Device) Set32(dst Ptr, value uint32, n int64) error {
	if err := cu.MemsetD32Async(cu.DevicePtr(dst), uint(value), n, d.stream); err != nil {
		return d.failf(err, "setting %d words", n)
	}
	return nil
}

// Sync waits until all queued work is done and returns what went wrong in it. After an error of a
// kernel's (an address out of bounds, say) the context is lost: every later call fails alike, and
// only a new process can go on.
func (d *Device) Sync() error {
	if d.stuck != nil {
		return d.stuck
	}
	err := d.stream.Synchronize()
	if fault := d.fault; fault != nil {
		d.fault = nil
		return fault
	}
	if err != nil {
		return d.failf(err, "waiting for queued work")
	}
	return nil
}
