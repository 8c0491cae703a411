//go:build nvidia

package cuda

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
	"gad/internal/compute/cuda/kernels"
)

// Backend is a compute.Backend on one GPU. Its methods may be called from any
// goroutine, one at a time.
type Backend struct {
	Options
	dev    *driver.Device
	comm   *driver.Communicator // with the GPUs of other ranks; nil is none
	k      *kernelSet
	name   string
	narrow dtype // of Narrow memory
	sms    int   // multiprocessors
	division

	inUse, peak int64
	blocks      map[driver.Ptr]int64 // all that is allocated, and its size
	onHost      int64                // bytes of Host memory
	pins        map[driver.Ptr][]byte

	err       error // first failure since the last Sync
	ring      staging
	zeros     block // source of zeros that are less than a word
	scratched struct {
		arena    block // of the operation that runs
		unpacked block // quantised weights of its product, in Narrow (quant.go)
	}
	arrived block // zeros between operations

	retired []block // staging that was too small, which the operation that runs may still read
	pack    layout
	graph   graphs
	tally   // of commands so far

	words [maxArgs]uint64         // arguments of the kernel that is launched
	args  [maxArgs]unsafe.Pointer // their addresses
}

// division is how work is divided. Tests and benchmarks divide it otherwise.
type division struct {
	head    bounds
	rows    int   // that one launch decodes
	parts   int64 // the most bytes that parts of dk and dv take
	least   int   // tiles of queries of such a part
	few     int   // the most rows of a product that quantised weights are not unpacked for
	onePass int   // the most columns of a norm whose gradients take one pass
	surveys bool  // Sample looks at all logits again, also without filters
}

var (
	_ compute.Backend     = (*Backend)(nil)
	_ compute.Counted     = (*Backend)(nil)
	_ compute.Connectable = (*Backend)(nil)
)

// maxArgs is more parameters than any kernel has.
const maxArgs = 32

// ringBytes is the size of the pinned memory through which indices and uploads
// pass; indices that do not fit make it grow.
const ringBytes = 8 << 20

// Open starts a backend on a GPU. It fails when there is no driver, no such
// device or no cuBLASLt, and says where it looked.
func Open(o Options) (compute.Backend, error) {
	// A nil *Backend must not become a Backend that is not nil.
	b, err := open(o)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// open does the work of Open, for tests that look inside.
func open(o Options) (*Backend, error) {
	narrow, err := o.precision()
	if err != nil {
		return nil, err
	}
	dev, err := driver.Open(o.Device, kernels.PTX)
	if err != nil {
		for _, missing := range []error{driver.ErrNoDriver, driver.ErrNoDevice, driver.ErrTooOld,
			driver.ErrNoCuBLAS} {
			if errors.Is(err, missing) {
				return nil, fmt.Errorf("cuda: %w: %w", ErrUnavailable, err)
			}
		}
		return nil, fmt.Errorf("cuda: %w", err)
	}
	b := &Backend{Options: o, dev: dev, narrow: narrow, sms: dev.Info().SMs,
		division: division{head: headLimits, rows: decodeRows, parts: dkvPartBytes,
			least: leastQueries, few: fewRows, onePass: onePassNorm},
		blocks: map[driver.Ptr]int64{}, pins: map[driver.Ptr][]byte{}}
	b.name = fmt.Sprintf("cuda/%s %s", map[dtype]string{f32: F32, bf16: BF16}[narrow],
		dev.Info().Name)
	for i := range b.args {
		b.args[i] = unsafe.Pointer(&b.words[i])
	}
	defer b.dev.Enter()()
	if b.k, err = loadKernels(dev); err == nil {
		err = b.ring.grow(b, ringBytes)
	}
	if err == nil {
		if b.zeros, err = b.allocate("zeros", 16); err == nil {
			b.set(b.zeros.p, 4)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cuda: device %d: %w", o.Device, err), b.Close())
	}
	return b, nil
}

// Name returns "cuda/", the precision and the device's name.
func (b *Backend) Name() string { return b.name }

// Counts returns how often the fast ways were taken.
func (b *Backend) Counts() compute.Counts {
	c := b.counts
	c.Replayed = b.graph.stats.Replayed
	return c
}

// Close waits for what runs and gives everything back. The backend cannot
// compute any more.
func (b *Backend) Close() error {
	b.outside("Close")
	if b.dev == nil {
		return nil
	}
	leave := b.dev.Enter()
	err := errors.Join(b.Sync(), b.comm.Close())
	b.graph.drop(b, 0)
	b.release(&b.scratched.arena)
	b.release(&b.scratched.unpacked)
	b.release(&b.arrived)
	b.ring.release(b)
	for p, bytes := range b.blocks { // that the caller has not freed
		b.release(&block{p, bytes})
	}
	for _, host := range b.pins {
		b.dev.Unpin(host)
	}
	leave()
	err = errors.Join(err, b.dev.Close())
	b.dev = nil
	return err
}

// Sync waits for all operations and returns the first failure since the last one.
func (b *Backend) Sync() error {
	b.outside("Sync")
	defer b.dev.Enter()()
	b.wait()
	err := b.err
	b.err = nil
	return err
}

// wait waits as Sync does, but leaves the failure to Sync.
func (b *Backend) wait() {
	if err := b.dev.Sync(); err != nil {
		b.fail("wait for the device", err)
	}
	b.graph.epoch++
}

// fail keeps the first failure. A failure while a graph is being captured is the
// capture's: the operation is run again without it.
func (b *Backend) fail(what string, err error) {
	if b.graph.mode == capturing {
		b.graph.failed(what, err)
		return
	}
	if b.err == nil {
		b.err = fmt.Errorf("cuda: %s: %w", what, err)
	}
}

// enter begins an operation: it makes the device current for the calling goroutine
// until leave.
func (b *Backend) enter() (leave func()) {
	if b.graph.mode != plain {
		return func() {} // Repeat has
	}
	b.graph.operations++
	leave = b.dev.Enter()
	b.ring.begin()
	if len(b.retired) > 0 {
		b.wait()
		for i := range b.retired {
			b.release(&b.retired[i])
		}
		b.retired = b.retired[:0]
	}
	return leave
}

// The commands: all work that an operation queues passes one of these five.

// grid is a kernel's launch: blocks, threads of a block and dynamic shared memory
// in bytes.
type grid struct{ x, y, z, threads, shared int }

// launch queues a kernel. Each argument is a word, of which the kernel reads as
// many bytes as its parameter has: see at, whole, real and double.
func (b *Backend) launch(k *driver.Kernel, g grid, args ...uint64) {
	if g.x == 0 || g.y == 0 || g.z == 0 {
		return
	}
	b.launched++
	queue := b.follow(tagLaunch, uint64(uintptr(unsafe.Pointer(k))), uint64(g.x), uint64(g.y),
		uint64(g.z), uint64(g.threads), uint64(g.shared))
	if !b.follow(args...) || !queue {
		return
	}
	copy(b.words[:], args)
	if err := b.dev.Launch(k, g.x, g.y, g.z, g.threads, g.shared,
		b.args[:len(args)]...); err != nil {
		b.fail("launch", err)
	}
}

// Commands returns how many kernels and products operations have asked for, queued or compared with
// a graph's, and how many copies and zeroings.
func (b *Backend) Commands() (launches, copies int) {
	return b.launched + b.counts.Products - b.counts.Declined, b.copied
}

// copyIn queues a copy of n bytes from pinned memory.
func (b *Backend) copyIn(dst driver.Ptr, src unsafe.Pointer, n int64) {
	if n > 0 {
		b.copied++
	}
	if n > 0 && b.follow(tagCopyIn, uint64(dst), uint64(uintptr(src)), uint64(n)) {
		if err := b.dev.CopyIn(dst, src, n); err != nil {
			b.fail("copy to the device", err)
		}
	}
}

// copyDev queues a copy of n bytes on the device.
func (b *Backend) copyDev(dst, src driver.Ptr, n int64) {
	if n > 0 {
		b.copied++
	}
	if n > 0 && b.follow(tagCopyDev, uint64(dst), uint64(src), uint64(n)) {
		if err := b.dev.CopyDev(dst, src, n); err != nil {
			b.fail("copy on the device", err)
		}
	}
}

// set queues zeros for n words.
func (b *Backend) set(p driver.Ptr, n int64) {
	if n > 0 {
		b.copied++
	}
	if n > 0 && b.follow(tagSet, uint64(p), uint64(n)) {
		if err := b.dev.Set32(p, 0, n); err != nil {
			b.fail("zero memory", err)
		}
	}
}

// matmul queues a product by cuBLASLt, c (=, or += if acc) alpha*op(a)*op(b) + bias,
// and reports whether cuBLASLt has an algorithm for it; if not, nothing is queued.
func (b *Backend) matmul(c, a, w driver.Mat, transA, transB bool, alpha float32, acc bool,
	bias driver.Ptr) bool {
	if b.dev.NoPlan(c, a, w, transA, transB, bias) {
		return false
	}
	beta := float32(0)
	if acc {
		beta = 1
	}
	words := [...]uint64{tagMatmul, word(c), uint64(c.P), uint64(c.Rows), uint64(c.Cols),
		uint64(c.Ld), uint64(c.From),
		word(a), uint64(a.P), uint64(a.Rows), uint64(a.Cols), uint64(a.Ld),
		word(w), uint64(w.P), uint64(w.Rows), uint64(w.Cols), uint64(w.Ld),
		flag(transA), flag(transB), real(alpha), real(beta), at(bias)}
	if !b.follow(words[:]...) {
		return true
	}
	err := b.dev.Matmul(c, a, w, transA, transB, alpha, beta, bias)
	if errors.Is(err, driver.ErrNoPlan) && b.graph.mode != capturing {
		if b.graph.mode == recording { // it is not a command after all
			r := b.graph.now
			r.trace = r.trace[:len(r.trace)-len(words)]
		}
		return false
	}
	if err != nil {
		b.fail("matrix product", err)
	}
	return true
}

func word(m driver.Mat) uint64 { return uint64(m.Type) }

// at, whole, real, double and flag are kernel arguments: a pointer, an int or
// i64, a float, a double, a bool as int.
func at(p driver.Ptr) uint64  { return uint64(p) }
func whole(n int) uint64      { return uint64(n) } // little-endian: an int reads the lower half
func real(x float32) uint64   { return uint64(math.Float32bits(x)) }
func double(x float64) uint64 { return math.Float64bits(x) }
func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
