package cpu

import (
	"math"

	"gad/internal/compute"
)

// A step of AdamW with moments in 8 bits decodes a block of them into a worker's scratch,
// steps it with the kernel of float32 moments, and encodes it again.

// codes is a map of compute.Moments, to be looked up. Floats are compared as whole numbers
// in the same order (ordered), and cells of 2^16 of these begin at the same code: there is
// at most one of Mid in a cell, and none at an end of it.
type codes struct {
	value [256]float32
	mid   [256]uint32    // ordered; nothing is above the last
	first [1 << 16]uint8 // by cell: the code of its lowest number
}

var (
	signedCodes  = newCodes(&compute.Signed.Value, &compute.Signed.Mid)
	squaresCodes = newCodes(&compute.Squares.Value, &compute.Squares.Mid)
)

// ordered is x's bits so that whole numbers compare as the floats do.
func ordered(x float32) uint32 {
	bits := math.Float32bits(x)
	return bits ^ (uint32(int32(bits)>>31) | 1<<31)
}

// cell is where an ordered number is looked up. Some of Mid have no lower half: a cell begins
// half-way between two such numbers.
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

// decode makes x the numbers that codes stand for, but for the scale.
func (m *codes) decode(x []float32, codes []uint8) {
	for len(codes) >= 4 && len(x) >= 4 {
		x[0], x[1], x[2], x[3] = m.value[codes[0]], m.value[codes[1]], m.value[codes[2]], m.value[codes[3]]
		x, codes = x[4:], codes[4:]
	}
	for i, c := range codes {
		x[i] = m.value[c]
	}
}

// encode makes codes of y, x as shares of the scale: see compute.Moments. y is x multiplied
// by the scale's inverse, which may differ from the quotient in the last places. Where
// that might matter, so close to one of mid, x is divided.
func (m *codes) encode(codes []uint8, y, x []float32, scale float32) {
	const close = 4
	y, x = y[:len(codes)], x[:len(codes)]
	for i, v := range y {
		o := ordered(v)
		c := m.first[cell(o)]
		d := int64(o) - int64(m.mid[c])
		if uint64(d+close) <= 2*close {
			o = ordered(x[i] / scale)
			c = m.first[cell(o)]
			d = int64(o) - int64(m.mid[c])
		}
		codes[i] = c + uint8(d>>63+1) // one more if mid is at most o
	}
}

// encode makes codes of x, whose largest absolute value is most; y is scratch.
func (b *Backend) encode(m *codes, codes []uint8, x, y []float32, most float32) {
	if !(most > 1e-30 && most < 1e30) { // its inverse is no normal number
		if most == 0 {
			most = 1
		}
		for i, v := range x {
			y[i] = v / most
		}
	} else {
		copy(y, x)
		b.k.scale(y, 1/most)
	}
	m.encode(codes, y, x, most)
}

// codedArgs is what the tasks of adamW8 read.
type codedArgs struct {
	m, v   []uint8
	ms, vs []float32
}

// adamW8 is AdamW's step for moments in 8 bits.
func (b *Backend) adamW8(p *compute.Param) {
	n := p.Len()
	a := &b.coded
	a.m, a.v = u8("AdamW", "M", p.M, n), u8("AdamW", "V", p.V, n)
	blocks := compute.Blocks(n)
	a.ms, a.vs = f32("AdamW", "MScale", p.MScale, blocks), f32("AdamW", "VScale", p.VScale, blocks)
	b.n = n
	b.room(compute.MomentBlock, compute.MomentBlock, compute.MomentBlock)
	b.run((n+block-1)/block, func(b *Backend, w *worker, t int) {
		a := &b.coded
		m, v, y := w.buf[0][:compute.MomentBlock], w.buf[1][:compute.MomentBlock], w.buf[2][:compute.MomentBlock]
		for lo := t * block; lo < min(b.n, (t+1)*block); lo += compute.MomentBlock {
			hi, s := min(b.n, lo+compute.MomentBlock), lo/compute.MomentBlock
			m, v, y := m[:hi-lo], v[:hi-lo], y[:hi-lo]
			signedCodes.decode(m, a.m[lo:hi])
			squaresCodes.decode(v, a.v[lo:hi])
			b.k.scale(m, a.ms[s])
			b.k.scale(v, a.vs[s])
			b.k.adamW(b.w[lo:hi], b.g[lo:hi], m, v, &b.adam)
			// Twice turned round is as it was.
			a.ms[s] = max(b.k.scaleMax(m, -1), b.k.scaleMax(m, -1))
			a.vs[s] = b.k.scaleMax(v, 1)
			b.encode(signedCodes, a.m[lo:hi], m, y, a.ms[s])
			b.encode(squaresCodes, a.v[lo:hi], v, y, a.vs[s])
		}
	})
}
