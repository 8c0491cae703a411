package cpu

import (
	"math"

	"gad/internal/compute"
)

// A step of AdamW with moments in 8 bits decodes a block of them into a worker's scratch,
// steps it with the kernel of float32 moments, and encodes it again.

// codes is a map of compute.Moments, to be looked up. Floats are compared as whole numbers
// in the same order (ordered), and cells of 2^16 of these begin at the same code: there is
// at most one of Mid in a cell.
type codes struct {
	value [256]float32
	mid   [256]uint32    // ordered; nothing is above the last
	first [1 << 16]uint8 // by cell: the code of its lowest number
	_     [4]uint8       // assembly reads first four at a time
}

var (
	signedCodes  = newCodes(&compute.Signed.Value, &compute.Signed.Mid)
	squaresCodes = newCodes(&compute.Squares.Value, &compute.Squares.Mid)
)

// ordered returns x's bits so that whole numbers compare as the floats do.
func ordered(x float32) uint32 {
	bits := math.Float32bits(x)
	return bits ^ (uint32(int32(bits)>>31) | 1<<31)
}

// cell returns where an ordered number is looked up.
func cell(o uint32) uint32 { return (o - 1<<15) >> 16 }

func newCodes(value *[256]float32, mid *[255]float32) *codes {
	m := &codes{value: *value}
	for c, x := range mid {
		m.mid[c] = ordered(x)
	}
	if value[0] == 0 { // nothing above zero has its code
		m.mid[0] = ordered(math.SmallestNonzeroFloat32)
	}
	m.mid[255] = math.MaxUint32
	c := 0
	for i := range m.first {
		for lowest := uint32(i)<<16 + 1<<15; m.mid[c] <= lowest; {
			c++
		}
		m.first[i] = uint8(c)
	}
	return m
}

// decode makes x the numbers that codes stand for.
func (m *codes) decode(k *kernels, x []float32, codes []uint8, scale float32) {
	if blocks := len(codes) / 16; k.decode8 != nil && blocks > 0 {
		k.decode8(x, codes, blocks, &m.value, scale)
		x, codes = x[16*blocks:], codes[16*blocks:]
	}
	x = x[:len(codes)]
	for i, c := range codes {
		x[i] = m.value[c] * scale
	}
}

// encode does the inverse, to the nearest code: see compute.Moments.
func (m *codes) encode(k *kernels, codes []uint8, x []float32, most float32) {
	if most == 0 {
		most = 1
	}
	if blocks := len(codes) / 16; k.encode8 != nil && blocks > 0 {
		k.encode8(codes, x, blocks, m, most)
		x, codes = x[16*blocks:], codes[16*blocks:]
	}
	x = x[:len(codes)]
	for i, v := range x {
		o := ordered(v / most)
		c := m.first[cell(o)]
		codes[i] = c + uint8((int64(o)-int64(m.mid[c]))>>63+1) // one more if mid is at most o
	}
}

// codedArgs is what the tasks of adamW8 read.
type codedArgs struct {
	m, v   []uint8
	ms, vs []float32
}

// adamW8 takes AdamW's step for moments in 8 bits.
func (b *Backend) adamW8(p *compute.Param) {
	n := p.Len()
	a := &b.coded
	a.m, a.v = u8("AdamW", "M", p.M, n), u8("AdamW", "V", p.V, n)
	blocks := compute.Blocks(n)
	a.ms, a.vs = f32("AdamW", "MScale", p.MScale, blocks), f32("AdamW", "VScale", p.VScale, blocks)
	b.n = n
	b.room(compute.MomentBlock, compute.MomentBlock)
	b.run((n+block-1)/block, func(b *Backend, w *worker, t int) {
		a, m, v := &b.coded, w.buf[0][:compute.MomentBlock], w.buf[1][:compute.MomentBlock]
		for lo := t * block; lo < min(b.n, (t+1)*block); lo += compute.MomentBlock {
			hi, s := min(b.n, lo+compute.MomentBlock), lo/compute.MomentBlock
			m, v := m[:hi-lo], v[:hi-lo]
			signedCodes.decode(b.k, m, a.m[lo:hi], a.ms[s])
			squaresCodes.decode(b.k, v, a.v[lo:hi], a.vs[s])
			b.k.adamW(b.w[lo:hi], b.g[lo:hi], m, v, &b.adam)
			// Twice turned round is as it was.
			a.ms[s] = max(b.k.scaleMax(m, -1), b.k.scaleMax(m, -1))
			a.vs[s] = b.k.scaleMax(v, 1)
			signedCodes.encode(b.k, a.m[lo:hi], m, a.ms[s])
			squaresCodes.encode(b.k, a.v[lo:hi], v, a.vs[s])
		}
	})
}
