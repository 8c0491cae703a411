//go:build nvidia

package driver

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
	"gorgonia.org/cu"
)

// Kernel is one function of the device's module.
type Kernel struct {
	Name    string
	fn      cu.Function
	params  int // number of parameters, -1 where the driver cannot say
	threads int // most threads of a block
	shared  int // most bytes of dynamic shared memory that a launch may ask for now
}

const (
	sharedDefault = 48 << 10 // what every kernel may ask for without being told so

	funcMaxDynamicShared = 8 // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
)

// Kernel finds a kernel by name. The same name gives the same Kernel.
func (d *Device) Kernel(name string) (*Kernel, error) {
	if k := d.kernels[name]; k != nil {
		return k, nil
	}
	fn, err := d.module.Function(name)
	if err != nil {
		return nil, d.failf(err, "kernel %q: not in the module for compute capability %d.%d", name,
			d.info.Major, d.info.Minor)
	}
	k := &Kernel{Name: name, fn: fn, params: -1, shared: sharedDefault}
	// Asking also loads the kernel, which the driver otherwise puts off until its first launch,
	// where it may wait for the device or find itself inside a capture.
	if k.threads, err = fn.Attribute(cu.FnMaxThreadsPerBlock); err != nil {
		return nil, d.failf(err, "kernel %q: asking its threads", name)
	}
	if lib.funcGetParamInfo != 0 {
		for k.params = 0; k.params < 64; k.params++ {
			var offset, size uint64
			if r, _, _ := purego.SyscallN(lib.funcGetParamInfo, k.handle(), uintptr(k.params),
				uintptr(unsafe.Pointer(&offset)), uintptr(unsafe.Pointer(&size))); r != 0 {
				break
			}
		}
	}
	d.kernels[name] = k
	return k, nil
}

// handle returns the CUfunction, the one field of a cu.Function.
func (k *Kernel) handle() uintptr { return *(*uintptr)(unsafe.Pointer(&k.fn)) }

// Threads returns the largest number of threads that a block of k may have on this device.
func (k *Kernel) Threads() int { return k.threads }

// Launch queues k over gx*gy*gz blocks of threads threads, each block with sharedBytes of dynamic
// shared memory. Each argument points to a word of 8 bytes, of which k reads as many as its
// parameter has; the words are read before Launch returns. Launch allocates nothing in Go.
func (d *Device) Launch(k *Kernel, gx, gy, gz, threads, sharedBytes int,
	args ...unsafe.Pointer) error {
	if k.params >= 0 && len(args) != k.params {
		return fmt.Errorf("driver: kernel %q: %d arguments: it has %d parameters", k.Name,
			len(args), k.params)
	}
	if sharedBytes > k.shared {
		if sharedBytes > d.info.SharedPerBlock {
			return fmt.Errorf(
				"driver: kernel %q: %d bytes of shared memory a block: the device has %d", k.Name,
				sharedBytes, d.info.SharedPerBlock)
		}
		r, _, _ := purego.SyscallN(lib.funcSetAttribute, k.handle(), funcMaxDynamicShared,
			uintptr(sharedBytes))
		if r != 0 {
			return d.failf(Result(int32(r)), "kernel %q: asking for %d bytes of shared memory",
				k.Name, sharedBytes)
		}
		k.shared = sharedBytes
	}
	if err := k.fn.Launch(gx, gy, gz, threads, 1, 1, sharedBytes, d.stream, args); err != nil {
		return d.failf(err,
			"kernel %q: launching %dx%dx%d blocks of %d threads with %d bytes of shared memory",
			k.Name, gx, gy, gz, threads, sharedBytes)
	}
	return nil
}
