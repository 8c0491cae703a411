package cpu

import (
	"path/filepath"
	"strconv"
	"strings"

	"gad/internal/compute"
)

// Footprint is the backend's memory for plans (compute.Footprint), in a precision
// of Options.
type Footprint struct {
	Precision string

	k   *kernels   // a backend's own; without them this machine's fastest
	k16 *kernels16 // bfloat16 products; nil for float32
}

// Element returns 4, float32, except for Code, whose elements are bytes, in bfloat16 for Frozen,
// and for quantised classes, whose blocks are codes and a binary16.
func (f Footprint) Element(c compute.Class) int64 {
	switch {
	case c&^compute.Host == compute.Code:
		return 1
	case c.Quantised(): // of a block, its scale with it
		return int64(c.CodeBytes()) + 2
	case c == compute.Frozen && f.Precision == BF16:
		return 2
	}
	return 4
}

// Block returns bytes: allocations are not rounded up.
func (Footprint) Block(bytes int64) int64 { return bytes }

// DerivedBytes returns the bytes of a matrix's packed transpose, which products read. In bfloat16 a
// trained matrix has a second copy, for the gradients of the product's input. Panels are whole, so
// that a narrow matrix, such as an adapter's, takes more than its elements. A frozen one is packed
// in its own place.
func (f Footprint) DerivedBytes(c compute.Class, lookup bool, rows, cols int) int64 {
	if lookup || c == compute.Frozen || c.Quantised() {
		return 0
	}
	k, k16 := f.kernels()
	switch {
	case k16 == nil:
		return 4 * int64(k.panels(rows, cols))
	case c == compute.Narrow:
		return 4 * int64(k16.sizeB(rows, cols))
	}
	return 4 * int64(k16.sizeB(rows, cols)+k16.sizeB(cols, rows))
}

// kernels returns the backend's kernels, or the kernels that a backend of this machine would have.
func (f Footprint) kernels() (*kernels, *kernels16) {
	if f.k != nil {
		return f.k, f.k16
	}
	k, k16, err := pick("", f.Precision)
	if err != nil { // $GAD_CPU, which Open refuses
		all := available()
		k = all[len(all)-1]
	}
	return k, k16
}

// Scratch returns the bytes of the head's gathered rows and their gradients; in bfloat16 also of at
// most three packed operands; with gradients also of some logits, of packed parts of a matrix or
// of activations, and of the states that a gated delta rule keeps. The workers' own buffers and the
// states of shared prompts are small and left out.
func (f Footprint) Scratch(w compute.Work) int64 {
	bytes := 4 * 2 * int64(w.Rows) * int64(w.Hidden)
	if !w.Trainable { // LinearAdd in place
		bytes += 4 * int64(w.Tokens) * int64(w.Hidden)
	}
	if w.Trainable {
		size, limit, chunk := int64(4), unpackLimit, int64(min(w.Vocab, vocabChunk))
		if f.Precision == BF16 {
			size, limit = 2, unpackLimit16
		}
		more := 4 * int64(min(w.Rows, headRows)) * chunk
		more += max(min(int64(limit), size*int64(w.Hidden)*int64(w.Widest)),
			size*int64(w.Hidden)*chunk,
			min(packLimit, size*int64(w.Tokens)*int64(w.Widest)))
		bytes += more + more/4 // as grow does
	}
	if s := w.Delta; w.Trainable && s.H > 0 {
		k, _ := f.kernels()
		wide := int64((s.F + k.nr - 1) / k.nr * k.nr)
		kept := 4 * int64(s.H) * wide * int64(w.Tokens+w.Tokens/deltaChunk*s.E)
		bytes += kept + kept/4
	}
	if _, k16 := f.kernels(); k16 != nil {
		one := 4 * max(k16.sizeA(w.Tokens, w.Widest), k16.sizeA(w.Widest, w.Tokens))
		bytes += 3 * min(packLimit, int64(one))
	}
	return bytes
}

// Overhead returns 0.
func (Footprint) Overhead() int64 { return 0 }

// DecodeMultiple returns 1: Repeat runs a step as it comes.
func (Footprint) DecodeMultiple() int { return 1 }

// Joined returns false: a product's launch costs nothing here, and rows without gaps are read
// fastest.
func (Footprint) Joined() bool { return false }

// MemoryAvailable returns the bytes that the system says a new program can have; 0 if it does not
// say.
func MemoryAvailable() int64 { return memoryAvailable("/") }

func memoryAvailable(root string) (n int64) {
	for _, line := range lines(filepath.Join(root, "proc/meminfo")) {
		if kb, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ = strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kb), " kB"), 10, 64)
			n <<= 10
		}
	}
	if left, ok := cgroupAvailable(root); ok && (n == 0 || left < n) {
		n = max(1, left) // 0 says that nothing is known
	}
	return n
}
