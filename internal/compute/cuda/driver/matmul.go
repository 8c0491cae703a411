//go:build nvidia

package driver

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// DType is the type of a matrix's elements.
type DType int

// The values are cudaDataType's.
const (
	F32  DType = 0  // CUDA_R_32F
	BF16 DType = 14 // CUDA_R_16BF
)

// Mat is a row-major matrix on the device: element [r,c] is the (r*Ld+c)th from P.
type Mat struct {
	P              Ptr
	Type           DType
	Rows, Cols, Ld int64 // Ld is at least Cols
	From           Ptr   // of a result: what beta multiplies, if that is not the result itself
}

// addend returns the address of the matrix that beta multiplies.
func (m Mat) addend() Ptr {
	if m.From != 0 {
		return m.From
	}
	return m.P
}

// cublasLt is an open cuBLASLt: its calls, a handle on the device, a workspace, and the plans made
// so far.
type cublasLt struct {
	ltCalls
	name      string
	handle    uintptr
	pref      uintptr
	workspace Ptr
	space     int64
	scalars   [2]float32 // alpha and beta of the call that runs
	plans     map[shape]*plan
	refused   map[shape]bool // for which there is no plan
	tuned     map[class]config
}

// ltCalls are addresses in cuBLASLt's library.
type ltCalls struct {
	create, destroy, version         uintptr
	descCreate, descSet, descDestroy uintptr
	layoutCreate, layoutDestroy      uintptr
	prefCreate, prefSet, prefDestroy uintptr
	heuristic, matmul, algoGet       uintptr
}

// Values of cublasLt.h and cublas_api.h, the same in CUDA 11, 12 and 13.
const (
	compute32F = 68 // CUBLAS_COMPUTE_32F: float32 products and sums, never TF32

	descTransA   = 3 // int32
	descTransB   = 4 // int32
	descEpilogue = 7 // uint32
	descBias     = 8 // pointer

	epilogueBias = 4

	prefWorkspace  = 1 // uint64
	prefReductions = 3 // uint32
	prefAlignA     = 5 // uint32; B, C, D follow

	// CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: a sum that is split over blocks is put together from
	// float32 parts in the workspace, in order. Left out are INPLACE, whose order is that of the
	// blocks' arrival, and OUTPUT_TYPE, whose parts may be bfloat16.
	reductionComputeType = 2
)

// heuristicResult is cublasLtMatmulHeuristicResult_t.
type heuristicResult struct {
	algo      [8]uint64
	workspace uint64
	state     int32
	waves     float32
	_         [4]int32
}

// status is a cublasStatus_t.
type status int

func (s status) Error() string {
	name := map[status]string{
		1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
		11: "MAPPING_ERROR",
		13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR",
	}[s]
	if name == "" {
		name = "status"
	}
	return fmt.Sprintf("CUBLAS_STATUS_%s (%d)", name, int(s))
}

// notSupported is what cuBLASLt says of a product that it has no algorithm for.
const notSupported status = 15

// ErrNoPlan is wrapped by Matmul's error where cuBLASLt has no algorithm for a product. Nothing is
// queued then.
var ErrNoPlan = errors.New("cuBLASLt has no algorithm for this product")

// ErrCapturing is wrapped by Matmul's error where cuBLASLt would have to be asked for an algorithm
// while work is being captured: from CUDA 13.3 on it answers with an error then. Outside the
// capture the product is possible.
var ErrCapturing = errors.New("cuBLASLt is not asked for an algorithm while a graph is captured")

// ltError returns the error of a call's status, nil for success.
func ltError(r, _, _ uintptr) error {
	if s := status(int32(r)); s != 0 {
		return s
	}
	return nil
}

// ltNames returns the names to open cuBLASLt by, newest first, none newer than the driver: first
// through the loader's own search, then in the toolkit's usual folders.
func ltNames(driver int) []string {
	if name := os.Getenv("GAD_CUBLASLT"); name != "" {
		return []string{name}
	}
	var sonames, names []string
	for _, major := range []int{13, 12, 11} {
		if major <= driver/1000 {
			sonames = append(sonames, fmt.Sprintf("libcublasLt.so.%d", major))
		}
	}
	names = append(names, sonames...)
	var folders []string
	for _, env := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if root := os.Getenv(env); root != "" {
			folders = append(folders, filepath.Join(root, "lib64"), filepath.Join(root, "lib"))
		}
	}
	found, _ := filepath.Glob("/usr/local/cuda*/lib64")
	folders = append(append(folders, found...), "/opt/cuda/lib64")
	for _, soname := range sonames {
		for _, folder := range folders {
			name := filepath.Join(folder, soname)
			if _, err := os.Stat(name); err == nil {
				names = append(names, name)
			}
		}
	}
	return names
}

// openLt opens the first cuBLASLt that works on d, whose context is current.
func openLt(d *Device) (*cublasLt, error) {
	names := ltNames(d.info.Driver)
	var tried []string
	for _, name := range names {
		lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err != nil {
			tried = append(tried, err.Error())
			continue
		}
		lt := &cublasLt{plans: map[shape]*plan{}, refused: map[shape]bool{},
			tuned: map[class]config{}}
		if err := lt.bind(lib); err != nil {
			tried = append(tried, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		if err := ltError(purego.SyscallN(lt.create,
			uintptr(unsafe.Pointer(&lt.handle)))); err != nil {
			tried = append(tried, fmt.Sprintf("%s: cublasLtCreate: %v", name, err))
			continue
		}
		v, _, _ := purego.SyscallN(lt.version)
		lt.name = fmt.Sprintf("cuBLASLt %d.%d.%d (%s)", v/10000, v/100%100, v%100, name)
		return lt, lt.prepare(d)
	}
	return nil, fmt.Errorf("driver: device %d: %w: %s (LD_LIBRARY_PATH is %q; also looked in the lib64 of CUDA_HOME, CUDA_PATH and /usr/local/cuda*): install cuBLAS of the driver's CUDA %s or earlier, or name the file in GAD_CUBLASLT",
		d.ordinal, ErrNoCuBLAS, strings.Join(tried, "; "), os.Getenv("LD_LIBRARY_PATH"),
		version(d.info.Driver))
}

// bind finds the calls in the library.
func (c *ltCalls) bind(lib uintptr) error {
	for _, s := range []struct {
		to   *uintptr
		name string
	}{
		{&c.create, "cublasLtCreate"},
		{&c.destroy, "cublasLtDestroy"},
		{&c.version, "cublasLtGetVersion"},
		{&c.descCreate, "cublasLtMatmulDescCreate"},
		{&c.descSet, "cublasLtMatmulDescSetAttribute"},
		{&c.descDestroy, "cublasLtMatmulDescDestroy"},
		{&c.layoutCreate, "cublasLtMatrixLayoutCreate"},
		{&c.layoutDestroy, "cublasLtMatrixLayoutDestroy"},
		{&c.prefCreate, "cublasLtMatmulPreferenceCreate"},
		{&c.prefSet, "cublasLtMatmulPreferenceSetAttribute"},
		{&c.prefDestroy, "cublasLtMatmulPreferenceDestroy"},
		{&c.heuristic, "cublasLtMatmulAlgoGetHeuristic"},
		{&c.matmul, "cublasLtMatmul"},
		{&c.algoGet, "cublasLtMatmulAlgoConfigGetAttribute"},
	} {
		p, err := purego.Dlsym(lib, s.name)
		if err != nil {
			return err
		}
		*s.to = p
	}
	return nil
}

// prepare allocates the workspace, 32 MiB, or 64 MiB from Hopper on, as NVIDIA advises, and says so
// to the heuristics.
func (lt *cublasLt) prepare(d *Device) (err error) {
	lt.space = 32 << 20
	if d.info.Major >= 9 {
		lt.space = 64 << 20
	}
	if lt.workspace, err = d.Alloc(lt.space); err != nil {
		lt.close(d)
		return fmt.Errorf("driver: cuBLASLt's workspace: %w", err)
	}
	if err := lt.newPreference(); err != nil {
		lt.close(d)
		return fmt.Errorf("driver: %s: preferences: %w", lt.name, err)
	}
	return nil
}

// newPreference makes lt.pref.
func (lt *cublasLt) newPreference() error {
	if err := ltError(purego.SyscallN(lt.prefCreate,
		uintptr(unsafe.Pointer(&lt.pref)))); err != nil {
		return err
	}
	space, reductions := uint64(lt.space), uint32(reductionComputeType)
	return errors.Join(
		ltError(purego.SyscallN(lt.prefSet, lt.pref, prefWorkspace, uintptr(unsafe.Pointer(&space)),
			8)),
		ltError(purego.SyscallN(lt.prefSet, lt.pref, prefReductions,
			uintptr(unsafe.Pointer(&reductions)), 4)))
}

func (lt *cublasLt) close(d *Device) {
	lt.forget()
	if lt.pref != 0 {
		purego.SyscallN(lt.prefDestroy, lt.pref)
	}
	d.note(ltError(purego.SyscallN(lt.destroy, lt.handle)), "closing cuBLASLt")
	d.Release(lt.workspace)
}

// shape is what a plan is made for.
type shape struct {
	m, n, k, lda, ldb, ldc int64 // of the row-major product
	transA, transB, bias   bool
	in, out                DType
	alignA, alignB, alignC uint16 // bytes, powers of two up to 16
	alignBias              uint16
}

// plan is how cuBLASLt computes a shape: its descriptors, and the algorithm that choose takes of
// those that its heuristics offer.
type plan struct {
	op, a, b, c uintptr
	bias        Ptr // that op names now
	algo        [8]uint64
}

// maxPlans bounds the plans that are kept. Descriptors are small; a run whose packs have ever new
// lengths starts over now and then.
const maxPlans = 4096

// alignment returns the largest power of two, up to 16, that divides p.
func alignment(p Ptr) uint16 { return 1 << bits.TrailingZeros64(uint64(p)|16) }

// shapeOf returns the key of the plan for a product: its shapes, types and alignments.
func shapeOf(c, a, b Mat, transA, transB bool, bias Ptr) shape {
	s := shape{m: c.Rows, n: c.Cols, k: a.Cols, lda: a.Ld, ldb: b.Ld, ldc: c.Ld, transA: transA,
		transB: transB, bias: bias != 0,
		in: a.Type, out: c.Type, alignA: alignment(a.P), alignB: alignment(b.P),
		alignC: min(alignment(c.P), alignment(c.addend()))}
	if transA {
		s.k = a.Rows
	}
	if s.bias {
		s.alignBias = alignment(bias)
	}
	return s
}

// NoPlan reports whether Matmul has returned ErrNoPlan for such a product, and will again.
func (d *Device) NoPlan(c, a, b Mat, transA, transB bool, bias Ptr) bool {
	return len(d.lt.refused) > 0 && d.lt.refused[shapeOf(c, a, b, transA, transB, bias)]
}

// Matmul queues c = alpha*op(a)*op(b) + beta*c + bias, where op transposes as transA and transB
// say, c is [M,N], op(a) [M,K], op(b) [K,N], and bias, if not 0, has N elements of c's type that
// are added to each row. a and b are of one type; c is of the same type, or float32. Products and
// sums are float32. With beta 0, c is only written; with c.From, the matrix that beta multiplies
// lies there, in rows of the same length, and the product is not written over it. The same shapes
// and alignments give the same algorithm, and with it the same order of each sum. Without an
// algorithm the error wraps ErrNoPlan.
func (d *Device) Matmul(c, a, b Mat, transA, transB bool, alpha, beta float32, bias Ptr) error {
	m, k := a.Rows, a.Cols
	if transA {
		m, k = k, m
	}
	kb, n := b.Rows, b.Cols
	if transB {
		kb, n = n, kb
	}
	if c.Rows != m || c.Cols != n || kb != k || a.Ld < a.Cols || b.Ld < b.Cols || c.Ld < c.Cols ||
		a.Type != b.Type || c.Type != a.Type && c.Type != F32 {
		return fmt.Errorf("driver: product [%d,%d]%s = [%d,%d]%s%s x [%d,%d]%s%s with rows %d, %d, %d apart: shapes or types do not fit",
			c.Rows, c.Cols, c.Type, a.Rows, a.Cols, a.Type, mark(transA), b.Rows, b.Cols, b.Type,
			mark(transB), c.Ld, a.Ld, b.Ld)
	}
	if m == 0 || n == 0 {
		return nil
	}
	lt := d.lt
	s := shapeOf(c, a, b, transA, transB, bias)
	if lt.refused[s] {
		return fmt.Errorf("driver: product [%d,%d] over %d: %w", m, n, k, ErrNoPlan)
	}
	p := lt.plans[s]
	if p == nil {
		if d.capturing {
			return fmt.Errorf("driver: product [%d,%d] over %d: %w", m, n, k, ErrCapturing)
		}
		var err error
		if p, err = d.plan(s, a, b, c, bias); err != nil {
			if errors.Is(err, ErrNoPlan) {
				lt.refuse(s)
			}
			return fmt.Errorf("driver: %s: product [%d,%d]%s = %s%s x %s, inner %d, rows %d, %d, %d apart, aligned to %d, %d, %d bytes: %w",
				lt.name, m, n, c.Type, a.Type, mark(transA), mark(transB), k, c.Ld, a.Ld, b.Ld,
				s.alignC, s.alignA, s.alignB, err)
		}
		if len(lt.plans) >= maxPlans {
			lt.forget()
		}
		lt.plans[s] = p
	}
	if p.bias != bias {
		if err := lt.setBias(p, bias); err != nil {
			return fmt.Errorf("driver: %s: bias: %w", lt.name, err)
		}
	}
	lt.scalars = [2]float32{alpha, beta}
	// Column-major, C' = B'A': see describe.
	err := ltError(purego.SyscallN(lt.matmul, lt.handle, p.op,
		uintptr(unsafe.Pointer(&lt.scalars[0])), uintptr(b.P), p.a, uintptr(a.P), p.b,
		uintptr(unsafe.Pointer(&lt.scalars[1])), uintptr(c.addend()), p.c, uintptr(c.P), p.c,
		uintptr(unsafe.Pointer(&p.algo)), uintptr(lt.workspace), uintptr(lt.space),
		d.streamHandle()))
	if errors.Is(err, notSupported) {
		lt.refuse(s)
		return d.failf(err, "product [%d,%d] over %d: %w", m, n, k, ErrNoPlan)
	}
	if err != nil {
		return d.failf(err, "product [%d,%d] over %d", m, n, k)
	}
	return nil
}

// refuse remembers that there is no plan for s.
func (lt *cublasLt) refuse(s shape) {
	if len(lt.refused) >= maxPlans {
		clear(lt.refused)
	}
	lt.refused[s] = true
}

// plan describes a shape and asks for an algorithm.
func (d *Device) plan(s shape, a, b, c Mat, bias Ptr) (*plan, error) {
	lt := d.lt
	p, err := lt.describe(s, a, b, c, bias)
	if err != nil {
		return nil, err
	}
	var found [offered]heuristicResult
	var count int32
	err = ltError(purego.SyscallN(lt.heuristic, lt.handle, p.op, p.a, p.b, p.c, p.c, lt.pref,
		offered, uintptr(unsafe.Pointer(&found[0])), uintptr(unsafe.Pointer(&count))))
	if err == nil && (count == 0 || found[0].state != 0) {
		err = notSupported
	}
	if errors.Is(err, notSupported) {
		err = fmt.Errorf("%w: the heuristics: %w", ErrNoPlan, err)
	}
	if err != nil {
		lt.drop(p)
		return nil, err
	}
	p.algo = d.choose(s, p, c, a, b, found[:count])
	return p, nil
}

// describe makes the descriptors of a shape, and tells lt.pref its alignments.
//
// cuBLASLt thinks in columns. The memory of a row-major X[R,C] with rows ld apart is that of a
// column-major X'[C,R], X transposed, with columns ld apart. C = op(A)op(B) is C' = op(B)'op(A)':
// so b's memory comes first, a's second; op(B)' [N,K] is b's memory [Cols,Rows] as it is when b is
// not transposed, transposed when it is; a alike. A bias over C's columns is one over the rows of
// C', which is what the epilogue adds.
func (lt *cublasLt) describe(s shape, a, b, c Mat, bias Ptr) (p *plan, err error) {
	p = &plan{}
	defer func() {
		if err != nil {
			lt.drop(p)
			p = nil
		}
	}()
	if err = ltError(purego.SyscallN(lt.descCreate, uintptr(unsafe.Pointer(&p.op)), compute32F,
		uintptr(F32))); err != nil {
		return p, err
	}
	for _, t := range []struct {
		attr uintptr
		on   bool
	}{{descTransA, s.transB}, {descTransB, s.transA}} {
		if t.on {
			op := int32(1) // CUBLAS_OP_T
			if err = ltError(purego.SyscallN(lt.descSet, p.op, t.attr, uintptr(unsafe.Pointer(&op)),
				4)); err != nil {
				return p, err
			}
		}
	}
	if s.bias {
		epilogue := uint32(epilogueBias)
		if err = ltError(purego.SyscallN(lt.descSet, p.op, descEpilogue,
			uintptr(unsafe.Pointer(&epilogue)), 4)); err != nil {
			return p, err
		}
		if err = lt.setBias(p, bias); err != nil {
			return p, err
		}
	}
	for _, l := range []struct {
		to *uintptr
		m  Mat
	}{{&p.a, b}, {&p.b, a}, {&p.c, c}} {
		if err = ltError(purego.SyscallN(lt.layoutCreate, uintptr(unsafe.Pointer(l.to)),
			uintptr(l.m.Type), uintptr(l.m.Cols), uintptr(l.m.Rows), uintptr(l.m.Ld))); err != nil {
			return p, err
		}
	}
	for i, bytes := range []uint16{s.alignB, s.alignA, s.alignC, s.alignC} {
		v := uint32(bytes)
		if err = ltError(purego.SyscallN(lt.prefSet, lt.pref, uintptr(prefAlignA+i),
			uintptr(unsafe.Pointer(&v)), 4)); err != nil {
			return p, err
		}
	}
	return p, nil
}

// setBias names the bias vector in p's descriptor.
func (lt *cublasLt) setBias(p *plan, bias Ptr) error {
	if err := ltError(purego.SyscallN(lt.descSet, p.op, descBias, uintptr(unsafe.Pointer(&bias)),
		8)); err != nil {
		return err
	}
	p.bias = bias
	return nil
}

// forget drops all plans. Work that is queued or captured does not need them any more.
func (lt *cublasLt) forget() {
	for _, p := range lt.plans {
		lt.drop(p)
	}
	clear(lt.plans)
}

// drop gives a plan's descriptors back.
func (lt *cublasLt) drop(p *plan) {
	for _, layout := range []uintptr{p.a, p.b, p.c} {
		if layout != 0 {
			purego.SyscallN(lt.layoutDestroy, layout)
		}
	}
	if p.op != 0 {
		purego.SyscallN(lt.descDestroy, p.op)
	}
}

// String is the type's name.
func (t DType) String() string {
	switch t {
	case F32:
		return "f32"
	case BF16:
		return "bf16"
	}
	return fmt.Sprintf("type %d", int(t))
}

// mark returns the sign of a transposed matrix.
func mark(transposed bool) string {
	if transposed {
		return "'"
	}
	return ""
}
