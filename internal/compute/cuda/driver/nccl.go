//go:build nvidia

package driver

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"gorgonia.org/cu"
)

// NCCL is an opened libnccl. No call of it is left to wait by itself: communicators are made
// non-blocking, and polled until the caller has had enough.
type NCCL struct {
	name    string
	version int // 23007 is 2.30.7

	getUniqueID, init, asyncError     uintptr
	allReduce, broadcast              uintptr
	groupStart, groupEnd              uintptr
	finalize, destroy, abort          uintptr
	errorText, lastError, versionCall uintptr
}

// ErrNoNCCL is wrapped by OpenNCCL's error where there is no library that can be used.
var ErrNoNCCL = errors.New("no NCCL")

// Constants of nccl.h, the same since version 2.14.
const (
	ncclIDBytes = 128
	ncclUint8   = 1
	ncclFloat32 = 7
	ncclSum     = 0

	ncclInProgress ncclResult = 7

	// The oldest version with communicators that do not block. Its configuration is a prefix of
	// every later one, and later libraries go by the size and the version that it begins with.
	ncclLeast      = 21400
	ncclMagic      = 0xcafebeef
	ncclConfigSize = 24
)

// ncclConfig is ncclConfig_t of version 2.14.
type ncclConfig struct {
	size           uint64
	magic, version uint32
	blocking, _    int32
}

// ncclResult is a ncclResult_t.
type ncclResult int32

func (r ncclResult) Error() string {
	name := map[ncclResult]string{
		1: "ncclUnhandledCudaError", 2: "ncclSystemError", 3: "ncclInternalError",
		4: "ncclInvalidArgument",
		5: "ncclInvalidUsage", 6: "ncclRemoteError", 7: "ncclInProgress", 8: "ncclTimeout",
	}[r]
	if name == "" {
		name = "ncclResult"
	}
	return fmt.Sprintf("%s (%d)", name, int(r))
}

// ncclNames returns the files to open libnccl by: the loader's own search, a toolkit's folders, and
// the folder of Python's wheel.
func ncclNames() []string {
	if name := os.Getenv("GAD_NCCL"); name != "" {
		return []string{name}
	}
	names := []string{"libnccl.so.2"}
	for _, pattern := range []string{"/usr/local/cuda*/lib64/libnccl.so.2",
		"/usr/local/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2",
		"/usr/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2"} {
		found, _ := filepath.Glob(pattern)
		names = append(names, found...)
	}
	return names
}

// OpenNCCL opens the library.
func OpenNCCL() (*NCCL, error) {
	names := ncclNames()
	var tried []string
	for _, name := range names {
		handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err != nil {
			tried = append(tried, err.Error())
			continue
		}
		n := &NCCL{name: name}
		if err := n.bind(handle); err != nil {
			tried = append(tried, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		return n, nil
	}
	return nil,
		fmt.Errorf("driver: %w: %s: install NCCL 2.14 or later, or name the file in GAD_NCCL",
			ErrNoNCCL, strings.Join(tried, "; "))
}

// bind finds the calls in the library, and asks its version.
func (n *NCCL) bind(handle uintptr) error {
	for _, s := range []struct {
		to   *uintptr
		name string
		need bool
	}{
		{&n.versionCall, "ncclGetVersion", true}, // first: the version explains what lacks
		{&n.getUniqueID, "ncclGetUniqueId", true},
		{&n.init, "ncclCommInitRankConfig", true},
		{&n.asyncError, "ncclCommGetAsyncError", true},
		{&n.allReduce, "ncclAllReduce", true},
		{&n.broadcast, "ncclBroadcast", true},
		{&n.groupStart, "ncclGroupStart", true},
		{&n.groupEnd, "ncclGroupEnd", true},
		{&n.finalize, "ncclCommFinalize", true},
		{&n.destroy, "ncclCommDestroy", true},
		{&n.abort, "ncclCommAbort", true},
		{&n.errorText, "ncclGetErrorString", true},
		{&n.lastError, "ncclGetLastError", false}, // 2.13
	} {
		p, err := purego.Dlsym(handle, s.name)
		switch {
		case err == nil:
		case !s.need:
			continue
		case n.version > 0:
			return fmt.Errorf("version %s has no %s: 2.14 or later is needed", n.Version(), s.name)
		default:
			return err
		}
		*s.to = p
		if s.to == &n.versionCall {
			var v int32
			if r, _, _ := purego.SyscallN(p, uintptr(unsafe.Pointer(&v))); int32(r) != 0 {
				return fmt.Errorf("ncclGetVersion: %w", ncclResult(int32(r)))
			}
			n.version = int(v)
		}
	}
	if n.version < ncclLeast || n.version >= 30000 {
		return fmt.Errorf("version %s: gad knows 2.14 to 2.99", n.Version())
	}
	return nil
}

// Version returns the library's version, as 2.30.7.
func (n *NCCL) Version() string {
	return fmt.Sprintf("%d.%d.%d", n.version/10000, n.version/100%100, n.version%100)
}

// Name returns the library's file.
func (n *NCCL) Name() string { return n.name }

// failed returns the error for the failed result r of a call, with the library's own text.
func (n *NCCL) failed(call string, r ncclResult) error {
	text := func(f uintptr, arg uintptr) string {
		if f == 0 {
			return ""
		}
		p, _, _ := purego.SyscallN(f, arg)
		if p == 0 {
			return ""
		}
		return strings.Join(strings.Fields(C.GoString(*(**C.char)(unsafe.Pointer(&p)))), " ")
	}
	words := text(n.errorText, uintptr(r))
	if last := text(n.lastError, 0); last != "" && last != words {
		words += ", " + last
	}
	return fmt.Errorf("%s: %w, %s (NCCL_DEBUG=WARN says more)", call, r, words)
}

// call calls f. A call of a communicator that does not block may answer that it is under way.
//
//go:uintptrescapes
func (n *NCCL) call(name string, f uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(f, args...)
	if r := ncclResult(int32(r)); r != 0 && r != ncclInProgress {
		return n.failed(name, r)
	}
	return nil
}

// ID is a new name for a communicator. Its ranks meet at an address of this process that it holds.
func (n *NCCL) ID() ([]byte, error) {
	id := make([]byte, ncclIDBytes)
	return id, n.call("ncclGetUniqueId", n.getUniqueID, uintptr(unsafe.Pointer(&id[0])))
}

// Communicator is a device among those of other ranks. Its calls are made by all ranks in the same
// order; each waits until its work is done, asks keepOn meanwhile, and gives up with its error.
// After an error the communicator has been aborted.
type Communicator struct {
	d      *Device
	n      *NCCL
	handle uintptr
	err    error // why it was aborted
}

// Connect makes the communicator that id names.
func (d *Device) Connect(n *NCCL, id []byte, rank, ranks int,
	keepOn func() error) (*Communicator, error) {
	if len(id) != ncclIDBytes || rank < 0 || rank >= ranks {
		return nil, fmt.Errorf("driver: NCCL: rank %d of %d with an id of %d bytes: expected %d",
			rank, ranks, len(id), ncclIDBytes)
	}
	c := &Communicator{d: d, n: n}
	config := &ncclConfig{size: ncclConfigSize, magic: ncclMagic, version: ncclLeast}
	var pins runtime.Pinner
	pins.Pin(&c.handle)
	pins.Pin(config)
	defer pins.Unpin()
	r := C.gad_nccl_init(*(*unsafe.Pointer)(unsafe.Pointer(&n.init)),
		(*unsafe.Pointer)(unsafe.Pointer(&c.handle)), C.int(ranks), unsafe.Pointer(&id[0]),
		C.int(rank), unsafe.Pointer(config))
	if r := ncclResult(r); r != 0 && r != ncclInProgress {
		return nil, c.give(n.failed("ncclCommInitRankConfig", r))
	}
	if err := c.settle("ncclCommInitRankConfig", keepOn); err != nil {
		return nil, err
	}
	return c, nil
}

// How often a communicator is asked whether it is done: a sum takes milliseconds, and who waits
// longer leaves the core to others.
const (
	ncclEager     = 2 * time.Millisecond
	ncclPause     = 50 * time.Microsecond
	ncclLongPause = time.Millisecond
)

// poll asks done until it says yes.
func poll(keepOn func() error, done func() (bool, error)) error {
	begun := time.Now()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := keepOn(); err != nil {
			return err
		}
		switch waited := time.Since(begun); {
		case waited < ncclEager:
			runtime.Gosched()
		case waited < 100*ncclEager:
			time.Sleep(ncclPause)
		default:
			time.Sleep(ncclLongPause)
		}
	}
}

// ready asks whether what the host does for a call is done, and whether a rank or the network
// failed.
func (c *Communicator) ready(call string) (bool, error) {
	var state int32
	if err := c.n.call("ncclCommGetAsyncError", c.n.asyncError, c.handle,
		uintptr(unsafe.Pointer(&state))); err != nil {
		return false, err
	}
	switch r := ncclResult(state); r {
	case 0:
		return true, nil
	case ncclInProgress:
		return false, nil
	default:
		return false, c.n.failed(call, r)
	}
}

// settle waits until the host's part of a call is done.
func (c *Communicator) settle(call string, keepOn func() error) error {
	return c.give(poll(keepOn, func() (bool, error) { return c.ready(call) }))
}

// AllReduce leaves in n float32 at p the sum of all ranks' p, after the work that is queued.
func (c *Communicator) AllReduce(p Ptr, n int64, keepOn func() error) error {
	if c.err != nil {
		return c.err
	}
	const call = "ncclAllReduce"
	if err := c.n.call(call, c.n.allReduce, uintptr(p), uintptr(p), uintptr(n), ncclFloat32,
		ncclSum, c.handle, c.d.streamHandle()); err != nil {
		return c.give(err)
	}
	return c.waitDone(call, keepOn)
}

// waitDone waits until the call is done, on the host and on the device.
func (c *Communicator) waitDone(call string, keepOn func() error) error {
	if err := c.settle(call, keepOn); err != nil {
		return err
	}
	return c.give(poll(keepOn, func() (bool, error) {
		if _, err := c.ready(call); err != nil {
			return false, err
		}
		switch r, _, _ := purego.SyscallN(lib.streamQuery, c.d.streamHandle()); Result(int32(r)) {
		case 0:
			return true, nil
		case Result(cu.NotReady):
			return false, nil
		default:
			return false, c.d.failf(Result(int32(r)), "waiting for %s", call)
		}
	}))
}

// Piece is memory that all ranks have alike, and whose content one of them has.
type Piece struct {
	P     Ptr
	Bytes int64
	Owner int // rank
}

// Broadcast fills each piece with what its owner has, after the work that is queued. Pieces do not
// overlap; they are one group of broadcasts, which the library runs at once. A rank sends and
// receives what an all-gather of equal parts would have it, and the parts need not be equal.
//
// A group belongs to a thread: the caller must have entered the device (Enter).
func (c *Communicator) Broadcast(pieces []Piece, keepOn func() error) error {
	if c.err != nil || len(pieces) == 0 {
		return c.err
	}
	const call = "ncclBroadcast"
	if err := c.n.call("ncclGroupStart", c.n.groupStart); err != nil {
		return c.give(err)
	}
	for _, p := range pieces {
		if err := c.n.call(call, c.n.broadcast, uintptr(p.P), uintptr(p.P), uintptr(p.Bytes),
			ncclUint8, uintptr(p.Owner), c.handle, c.d.streamHandle()); err != nil {
			_ = c.n.call("ncclGroupEnd", c.n.groupEnd) // which fails too
			return c.give(err)
		}
	}
	if err := c.n.call("ncclGroupEnd", c.n.groupEnd); err != nil {
		return c.give(err)
	}
	return c.waitDone(call, keepOn)
}

// abortLimit is how long an abort, or an orderly end, may take before the device is left as it is.
const abortLimit = 2 * time.Second

// give aborts c if err is not nil, and returns err: the work queued on c ends without being done.
// An abort that does not return leaves the device stuck; then only the process can end.
func (c *Communicator) give(err error) error {
	if err == nil || c.err != nil {
		return err
	}
	c.err = fmt.Errorf("driver: device %d: %w", c.d.ordinal, err)
	if c.handle == 0 {
		return c.err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer c.d.Enter()()
		purego.SyscallN(c.n.abort, c.handle)
	}()
	select {
	case <-done:
	case <-time.After(abortLimit):
		c.d.stuck = c.err
	}
	c.handle = 0
	return c.err
}

// Close ends c together with the other ranks, which must have done all that they have called. It
// waits only briefly for a missing rank.
func (c *Communicator) Close() error {
	if c == nil || c.handle == 0 {
		return nil
	}
	end := time.Now().Add(abortLimit)
	late := errors.New("the other ranks have not closed theirs")
	if err := c.n.call("ncclCommFinalize", c.n.finalize, c.handle); err != nil {
		return c.give(err)
	}
	err := c.settle("ncclCommFinalize", func() error {
		if time.Now().After(end) {
			return late
		}
		return nil
	})
	if errors.Is(err, late) { // aborted: nothing of this rank depended on them
		return nil
	}
	if err != nil {
		return err
	}
	handle := c.handle
	c.handle = 0
	if err := c.n.call("ncclCommDestroy", c.n.destroy, handle); err != nil {
		return fmt.Errorf("driver: device %d: %w", c.d.ordinal, err)
	}
	return nil
}
