//go:build nvidia

package driver

import (
	"bytes"
	"math"
	"math/bits"
	"unsafe"

	"github.com/ebitengine/purego"
)

// offered is how many algorithms the heuristics are asked for.
const offered = 8

// leastTuned is the least multiply-adds of a product whose algorithms are timed: 256 rows of a
// 1.5B model's smallest matrix have more.
var leastTuned int64 = 1 << 28

// gain is how much faster than the heuristics' first choice another must be: times vary by less.
const gain = 1.03

// config is what tells one algorithm from another: cublasLtMatmulAlgoConfigAttributes_t from ID on,
// in order. The zero value is no algorithm's.
type config [9]uint32

// Where config has what decides about the order of a sum, and its first attribute of 16 bits.
const configID, configSplitK, configReduction, configInner = 0, 2, 3, 7

// sameOrder reports whether both algorithms are of one kind and divide no sum, or divide it alike.
func (c config) sameOrder(o config) bool {
	return c[configID] == o[configID] && c[configSplitK] == o[configSplitK] &&
		c[configReduction] == o[configReduction]
}

// class is shapes that have one algorithm: sizes are cut to a quarter of an octave, so that packs
// which are nearly full are tuned once.
type class struct {
	m, n, k              int64
	transA, transB, bias bool
	in, out              DType
}

func classOf(s shape) class {
	cut := func(x int64) int64 {
		shift := max(0, bits.Len64(uint64(x))-3)
		return x >> shift << shift
	}
	return class{cut(s.m), cut(s.n), cut(s.k), s.transA, s.transB, s.bias, s.in, s.out}
}

// choose returns the algorithm for a shape among the heuristics' offers, best first. Large products
// take the fastest of its class that gives the bits of the first, measured once: the heuristics'
// first is up to a fifth slower (doc/gpu). Results do not depend on the measurement.
func (d *Device) choose(s shape, p *plan, c, a, b Mat, found []heuristicResult) [8]uint64 {
	lt, first := d.lt, found[0].algo
	if len(found) < 2 || s.m*s.n*s.k < leastTuned {
		return first
	}
	k, is := classOf(s), lt.configOf(&first)
	best, known := lt.tuned[k]
	if !known {
		best = lt.tune(d, s, p, c, a, b, found)
		lt.tuned[k] = best
	}
	if !best.sameOrder(is) {
		return first
	}
	for i := range found {
		if lt.configOf(&found[i].algo) == best {
			return found[i].algo
		}
	}
	return first
}

// configOf returns an algorithm's config; the zero value if it cannot be read.
func (lt *cublasLt) configOf(algo *[8]uint64) (c config) {
	for attribute := range c {
		var written uint64
		bytes := uintptr(4)
		if attribute >= configInner {
			bytes = 2
		}
		r, _, _ := purego.SyscallN(lt.algoGet, uintptr(unsafe.Pointer(algo)), uintptr(attribute),
			uintptr(unsafe.Pointer(&c[attribute])), bytes, uintptr(unsafe.Pointer(&written)))
		if r != 0 && attribute <= configReduction { // older versions have fewer
			return config{}
		}
	}
	return c
}

// tune times the offered algorithms on the operands, with a result in memory of its own, and
// returns the fastest. It returns the zero value, no algorithm, where one of the first's kind gives
// other bits, or there is no memory for a result.
func (lt *cublasLt) tune(d *Device, s shape, p *plan, c, a, b Mat, found []heuristicResult) config {
	size := map[DType]int64{F32: 4, BF16: 2}[s.out]
	length := size * ((s.m-1)*s.ldc + s.n)
	result, err := d.Alloc((length + 3) / 4 * 4)
	if err != nil {
		return config{}
	}
	defer d.Release(result)
	// Pieces of the result, the first and the last among them, are compared. In bfloat16 one
	// element in some thousands shows another order of its sum.
	const pieces = 32
	piece := min(length/size, 1<<13) * size
	host, err := d.AllocPinned(int(2 * pieces * piece))
	if err != nil {
		return config{}
	}
	defer d.Unpin(host)
	want, got := host[:pieces*piece], host[pieces*piece:]
	start, err := d.Event()
	if err != nil {
		return config{}
	}
	defer start.Close()
	end, err := d.Event()
	if err != nil {
		return config{}
	}
	defer end.Close()

	scalars := [2]float32{1, 0}
	if s.out == F32 { // to a residual stream or a gradient, as a rule
		scalars[1] = 1
	}
	run := func(algo *[8]uint64) error {
		return ltError(purego.SyscallN(lt.matmul, lt.handle, p.op,
			uintptr(unsafe.Pointer(&scalars[0])), uintptr(b.P), p.a, uintptr(a.P), p.b,
			uintptr(unsafe.Pointer(&scalars[1])), uintptr(result), p.c, uintptr(result), p.c,
			uintptr(unsafe.Pointer(algo)), uintptr(lt.workspace), uintptr(lt.space),
			d.streamHandle()))
	}
	pull := func(to []byte) error {
		for i := range int64(pieces) {
			at := (length - piece) / size * i / (pieces - 1) * size
			if err := d.CopyOut(unsafe.Pointer(&to[i*piece]), result+Ptr(at), piece); err != nil {
				return err
			}
		}
		return d.Sync()
	}
	times := make([]float64, len(found))
	first := lt.configOf(&found[0].algo)
	rounds := 4
	for i := range found {
		times[i] = math.Inf(1)
		algo := &found[i].algo
		if found[i].state != 0 || !lt.configOf(algo).sameOrder(first) {
			continue
		}
		if d.Set32(result, 0, (length+3)/4) != nil {
			return config{}
		}
		if run(algo) != nil { // not for these operands
			if i == 0 {
				return config{}
			}
			continue
		}
		into := got
		if i == 0 {
			into = want
		}
		if pull(into) != nil || i > 0 && !bytes.Equal(got, want) {
			return config{}
		}
		for range 3 {
			if start.Record() != nil {
				return config{}
			}
			for range rounds {
				if run(algo) != nil {
					return config{}
				}
			}
			if end.Record() != nil {
				return config{}
			}
			ms, err := end.Since(start)
			if err != nil {
				return config{}
			}
			times[i] = min(times[i], float64(ms)/float64(rounds))
			if i == 0 { // so that a turn takes half a millisecond
				rounds = int(max(2, min(50, 0.5/max(times[0], 1e-3))))
			}
		}
	}
	best := 0
	for i, t := range times {
		if t < times[best] {
			best = i
		}
	}
	if times[best]*gain > times[0] {
		return first
	}
	return lt.configOf(&found[best].algo)
}
