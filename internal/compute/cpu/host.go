package cpu

import "gad/internal/compute"

var (
	_ compute.HostMemory = (*Backend)(nil)
	_ compute.BlockSums  = (*Backend)(nil)
)

// Host returns the elements of t, so that several goroutines can fill its parts without
// a copy in between; nil where Upload does more than to copy them.
func (b *Backend) Host(t compute.Tensor) []float32 {
	if t.Absent() || t.Mem().(*memory).narrow || inCodes(t) {
		return nil
	}
	if f := frozenIn(t); f != nil {
		if f.half || f.quant != nil {
			return nil
		}
		b.rowMajor(f, false)
		return floats(f.words[t.Off() : t.Off()+t.Len()])
	}
	return f32("Host", "t", t, t.Len())
}
