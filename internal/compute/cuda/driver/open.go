//go:build nvidia

package driver

// // cu asks for -lcuda. lib holds an empty libcuda.a, so that it is found on every machine; and where
// // a real libcuda.so comes first, --as-needed leaves it out, because shim.c has all of its symbols.
// #cgo LDFLAGS: -Wl,--as-needed -L${SRCDIR}/lib -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"gorgonia.org/cu"
)

// Errors that Open returns, each wrapped with what was found and where it was looked for.
var (
	ErrNoDriver = errors.New("no CUDA driver")
	ErrNoDevice = errors.New("no CUDA device")
	ErrTooOld   = errors.New("no kernels for this device")
	ErrNoCuBLAS = errors.New("no cuBLASLt")
)

// Device is one GPU.
type Device struct {
	ordinal int
	cu      cu.Device
	ctx     cu.CUContext
	module  cu.Module
	stream  cu.Stream
	info    Info
	kernels map[string]*Kernel
	lt      *cublasLt
	fault   error // of a call that has no way to return it; Sync does
	stuck   error // why work may never end: nothing waits for it any more

	capturing bool // inside Capture
}

// Info describes a Device.
type Info struct {
	Name           string
	Major, Minor   int    // compute capability
	SMs            int    // streaming multiprocessors
	Memory         int64  // bytes on the device
	Driver         int    // the CUDA version that the driver speaks: 12040 is 12.4
	SharedPerBlock int    // most bytes of shared memory that a block can ask for
	CuBLAS         string // cuBLASLt's version and file
}

// Info describes d.
func (d *Device) Info() Info { return d.info }

// Device attributes by number: cu's list ends with CUDA 10's.
const (
	attrSharedOptin cu.DeviceAttribute = 97 // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
	leastCC                            = 80 // Ampere: bfloat16 tensor cores, asynchronous copies
)

// Open makes the device of this ordinal ready: its primary context, a compute stream, the kernels
// of ptx(cc), where cc is the compute capability times ten, and cuBLASLt. ptx returns nil when it
// has nothing that runs on such a device. The error names the missing part and the places searched,
// and wraps ErrNoDriver, ErrNoDevice, ErrTooOld or ErrNoCuBLAS.
func Open(ordinal int, ptx func(cc int) []byte) (d *Device, err error) {
	if err := loadDriver(); err != nil {
		return nil, err
	}
	n, err := cu.NumDevices()
	if err != nil {
		return nil, fmt.Errorf("driver: counting devices: %w", fail(err))
	}
	visible := ""
	if v, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok {
		visible = fmt.Sprintf("; CUDA_VISIBLE_DEVICES is %q", v)
	}
	if ordinal < 0 || ordinal >= n {
		return nil,
			fmt.Errorf(
				"driver: device %d: %w: the driver (CUDA %s) shows %d devices%s: see nvidia-smi",
				ordinal, ErrNoDevice, version(cu.Version()), n, visible)
	}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d = &Device{ordinal: ordinal, kernels: map[string]*Kernel{}}
	defer func() {
		if err != nil {
			d.Close()
			d = nil
		}
	}()
	if d.cu, err = cu.GetDevice(ordinal); err != nil {
		return d, d.failf(err, "opening")
	}
	if err = d.describe(); err != nil {
		return d, err
	}
	cc := 10*d.info.Major + d.info.Minor
	if cc < leastCC {
		return d,
			fmt.Errorf(
				"driver: device %d (%s): %w: compute capability %d.%d: the kernels need %d.%d or later",
				ordinal, d.info.Name, ErrTooOld, d.info.Major, d.info.Minor, leastCC/10, leastCC%10)
	}
	image := ptx(cc)
	if image == nil {
		return d, fmt.Errorf("driver: device %d (%s): %w: no PTX runs on compute capability %d.%d",
			ordinal, d.info.Name, ErrTooOld, d.info.Major, d.info.Minor)
	}
	if d.ctx, err = primary(ordinal, d.cu); err != nil {
		return d, d.failf(err, "making its context")
	}
	if err = cu.SetCurrentContext(d.ctx); err != nil {
		return d, d.failf(err, "entering its context")
	}
	if err = d.load(image); err != nil {
		return d, err
	}
	if d.stream, err = cu.MakeStream(cu.NonBlocking); err != nil {
		return d, d.failf(err, "making a stream")
	}
	if d.lt, err = openLt(d); err != nil {
		return d, err
	}
	d.info.CuBLAS = d.lt.name
	return d, nil
}

// contexts are the primary contexts that the process has, by ordinal. One is kept to the end of the
// process: to make it takes as long as all else that Open does, and programs open devices more than
// once.
var contexts struct {
	sync.Mutex
	of map[int]cu.CUContext
}

// primary returns a device's primary context.
func primary(ordinal int, device cu.Device) (cu.CUContext, error) {
	contexts.Lock()
	defer contexts.Unlock()
	if ctx, ok := contexts.of[ordinal]; ok {
		return ctx, nil
	}
	ctx, err := device.RetainPrimaryCtx()
	if err != nil {
		return ctx, err
	}
	if contexts.of == nil {
		contexts.of = map[int]cu.CUContext{}
	}
	contexts.of[ordinal] = ctx
	return ctx, nil
}

// describe fills d.info.
func (d *Device) describe() (err error) {
	i := &d.info
	if i.Name, err = d.cu.Name(); err != nil {
		return d.failf(err, "asking its name")
	}
	i.Name = strings.TrimRight(i.Name, "\x00")
	if i.Memory, err = d.cu.TotalMem(); err != nil {
		return d.failf(err, "asking its memory")
	}
	for _, a := range []struct {
		to   *int
		attr cu.DeviceAttribute
	}{
		{&i.Major, cu.ComputeCapabilityMajor},
		{&i.Minor, cu.ComputeCapabilityMinor},
		{&i.SMs, cu.MultiprocessorCount},
		{&i.SharedPerBlock, attrSharedOptin},
	} {
		if *a.to, err = d.cu.Attribute(a.attr); err != nil {
			return d.failf(err, "asking attribute %d", a.attr)
		}
	}
	i.Driver = cu.Version()
	return nil
}

// load compiles the kernels' PTX for the device. The driver keeps the result on disk, so that only
// the first start with a new build or driver takes long.
func (d *Device) load(image []byte) error {
	log := &cu.JITErrorLogBuffer{Buffer: make([]byte, 16<<10)}
	var err error
	d.module, err = cu.LoadDataEx(string(image), log)
	runtime.KeepAlive(log)
	if err == nil {
		return nil
	}
	text, _, _ := strings.Cut(string(log.Buffer), "\x00")
	text = strings.Join(strings.Fields(text), " ")
	if text == "" {
		text = "it left no log"
	}
	return d.failf(err,
		"compiling the kernels with the driver (CUDA %s): %s: a newer driver may know this PTX",
		version(d.info.Driver), text)
}

// Close waits for queued work and gives back what d holds, all but the context, which the process
// keeps. Memory that was not released is the process's until its end.
func (d *Device) Close() error {
	if d.ctx == (cu.CUContext{}) {
		return nil
	}
	if d.stuck != nil { // the end of the process gives everything back
		return nil
	}
	defer d.Enter()()
	err := d.fault
	keep := func(e error) {
		if err == nil && e != nil {
			err = d.failf(e, "closing")
		}
	}
	if d.stream != (cu.Stream{}) {
		keep(d.stream.Synchronize())
	}
	if d.lt != nil {
		d.lt.close(d)
		d.lt = nil
	}
	if d.stream != (cu.Stream{}) {
		keep(d.stream.Destroy())
	}
	if d.module != (cu.Module{}) {
		keep(d.module.Unload())
		d.module = cu.Module{}
	}
	d.ctx = cu.CUContext{}
	return err
}

// Enter locks the goroutine to its thread and makes the device's context current there, until
// leave is called. Calls nest.
func (d *Device) Enter() (leave func()) {
	runtime.LockOSThread()
	if err := cu.SetCurrentContext(d.ctx); err != nil && d.fault == nil {
		d.fault = d.failf(err, "entering its context")
	}
	return runtime.UnlockOSThread
}

// version writes CUDA's number for a version, 12040, as 12.4.
func version(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// The driver's library, opened once for the process, and the calls that cu lacks.
var lib struct {
	sync.Mutex
	handle uintptr
	name   string

	memHostAlloc, funcSetAttribute, funcGetParamInfo    uintptr
	beginCapture, endCapture, graphInstantiate, launchG uintptr
	errorName, errorString, streamQuery                 uintptr
}

// driverNames are the names that the driver's library is opened by: the loader's own search, then
// where containers, WSL and NixOS put it.
var driverNames = []string{
	"libcuda.so.1",
	"/usr/local/nvidia/lib64/libcuda.so.1",
	"/usr/lib/wsl/lib/libcuda.so.1",
	"/run/opengl-driver/lib/libcuda.so.1",
}

// loadDriver opens the driver and points cu's symbols at it.
func loadDriver() error {
	lib.Lock()
	defer lib.Unlock()
	if lib.handle != 0 {
		return nil
	}
	why := (*C.char)(C.malloc(512))
	defer C.free(unsafe.Pointer(why))
	var tried []string
	for _, name := range driverNames {
		if strings.HasPrefix(name, "/") {
			if _, err := os.Stat(name); err != nil {
				continue
			}
		}
		cname := C.CString(name)
		var handle unsafe.Pointer
		code := C.gad_cuda_load(cname, &handle, why, 512)
		C.free(unsafe.Pointer(cname))
		if code == 0 {
			lib.handle, lib.name = uintptr(handle), name
			return bindDriver()
		}
		if code == 100 { // CUDA_ERROR_NO_DEVICE
			return fmt.Errorf("driver: %w: %s: %s: see nvidia-smi, and CUDA_VISIBLE_DEVICES",
				ErrNoDevice, name, C.GoString(why))
		}
		if code > 0 {
			return fmt.Errorf("driver: %w: %s is there, but %s: see nvidia-smi; the kernel's module and the library must be of one version", ErrNoDriver, name, C.GoString(why))
		}
		tried = append(tried, C.GoString(why))
	}
	return fmt.Errorf("driver: %w: %s (looked for %s; LD_LIBRARY_PATH is %q): install NVIDIA's driver, or give the container the GPU",
		ErrNoDriver, strings.Join(tried, "; "), strings.Join(driverNames, ", "),
		os.Getenv("LD_LIBRARY_PATH"))
}

// bindDriver finds the calls that cu lacks.
func bindDriver() error {
	for _, s := range []struct {
		to   *uintptr
		name string
		need bool
	}{
		{&lib.memHostAlloc, "cuMemHostAlloc", true},
		{&lib.funcSetAttribute, "cuFuncSetAttribute", true},
		{&lib.funcGetParamInfo, "cuFuncGetParamInfo", false}, // CUDA 12.4
		{&lib.beginCapture, "cuStreamBeginCapture_v2", true},
		{&lib.endCapture, "cuStreamEndCapture", true},
		{&lib.graphInstantiate, "cuGraphInstantiateWithFlags", true}, // CUDA 11.4
		{&lib.launchG, "cuGraphLaunch", true},
		{&lib.streamQuery, "cuStreamQuery", true},
		{&lib.errorName, "cuGetErrorName", true},
		{&lib.errorString, "cuGetErrorString", true},
	} {
		p, err := purego.Dlsym(lib.handle, s.name)
		if err != nil && s.need {
			name := lib.name
			lib.handle = 0
			return fmt.Errorf(
				"driver: %w: %s has no %s: the driver is older than CUDA 11.4: install a newer one",
				ErrNoDriver, name, s.name)
		}
		*s.to = p
	}
	return nil
}

// Result is a CUresult: what a call of the driver's returns.
type Result int

// Error gives the driver's own name and words.
func (r Result) Error() string {
	if lib.errorName == 0 {
		return fmt.Sprintf("CUresult %d", int(r))
	}
	text := func(f uintptr) string {
		var s *C.char
		purego.SyscallN(f, uintptr(r), uintptr(unsafe.Pointer(&s)))
		if s == nil {
			return "unknown"
		}
		return C.GoString(s)
	}
	return fmt.Sprintf("%s (%d): %s", text(lib.errorName), int(r), text(lib.errorString))
}
