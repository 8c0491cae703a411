package compute

import "math"

// QuantBlock is the number of elements of a row that share a scale in the classes Q8 and Q4. It is
// ggml's block of the types Q8_0 and Q4_0.
const QuantBlock = 32

// Quantised reports whether memory of class c is stored in blocks of QuantBlock elements: Q8 and
// Q4.
func (c Class) Quantised() bool { return c == Q8 || c == Q4 }

// Unit returns the number of elements whose bytes Footprint.Element gives: QuantBlock of a
// quantised class, otherwise 1.
func (c Class) Unit() int {
	if c.Quantised() {
		return QuantBlock
	}
	return 1
}

// Bytes returns the memory of n elements of class c by f's sizes, before Footprint.Block.
func Bytes(f Footprint, c Class, n int) int64 {
	return f.Element(c) * int64(n) / int64(c.Unit())
}

// CodeBytes returns the number of bytes of a block's codes, without its scale: 32 or 16.
func (c Class) CodeBytes() int {
	if c == Q4 {
		return QuantBlock / 2
	}
	return QuantBlock
}

// Encode quantises a block: x has QuantBlock elements, codes CodeBytes bytes. It returns the scale,
// an IEEE 754 binary16. Bytes and rule are the same as in ggml's reference quantiser
// (quantize_row_q8_0_ref and quantize_row_q4_0_ref in ggml-quants.c):
//
//	Q8: d = max|x|/127;  codes[i] = x[i]/d to the nearest whole number, halves away from zero
//	Q4: d = m/-8 of the first m with the largest magnitude;  q[i] = min(15, trunc(x[i]/d + 8.5))
//	    codes[i] = q[i] | q[i+16]<<4
//
// The quotients use the float32 inverse of d before d is rounded to binary16. Decoding a block and
// encoding it again gives the same block if a code of Q8 is 127 or -127, or a code of Q4 is 0 (the
// value -8*d). A block from this quantiser always has such a code, unless d is zero.
func (c Class) Encode(codes []byte, x []float32) (scale uint16) {
	x, codes = x[:QuantBlock], codes[:c.CodeBytes()]
	var most float32 // with its sign
	for _, v := range x {
		if max(v, -v) > max(most, -most) {
			most = v
		}
	}
	d := most / -8
	if c == Q8 {
		d = max(most, -most) / 127
	}
	inverse := 1 / d
	if inverse-inverse != 0 { // no inverse in float32: as binary16 d is zero
		inverse = 0
	}
	if c == Q8 {
		for i, v := range x {
			q := float32(v * inverse)
			whole := float32(int32(q))
			switch rest := q - whole; {
			case rest >= 0.5:
				whole++
			case rest <= -0.5:
				whole--
			}
			codes[i] = byte(int8(whole))
		}
		return toHalf(d)
	}
	q := func(v float32) byte { return byte(min(15, int32(float32(v*inverse)+8.5))) }
	for i := range codes {
		codes[i] = q(x[i]) | q(x[i+QuantBlock/2])<<4
	}
	return toHalf(d)
}

// Decode sets x to the values of a block: code times scale, for Q4 code-8 times scale. The products
// are exact.
func (c Class) Decode(x []float32, codes []byte, scale uint16) {
	x, codes = x[:QuantBlock], codes[:c.CodeBytes()]
	d := FromHalf(scale)
	if c == Q8 {
		for i, q := range codes {
			x[i] = float32(int8(q)) * d
		}
		return
	}
	for i, q := range codes {
		x[i] = float32(int(q&15)-8) * d
		x[i+QuantBlock/2] = float32(int(q>>4)-8) * d
	}
}

// FromHalf widens an IEEE 754 binary16 to float32, which is exact.
func FromHalf(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	if h&0x7c00 == 0x7c00 {
		return math.Float32frombits(sign | 0x7f800000 | uint32(h&0x3ff)<<13)
	}
	// The other exponent's bias: exact, also of subnormal numbers.
	return math.Float32frombits(
		math.Float32bits(math.Float32frombits(uint32(h&0x7fff)<<13)*0x1p112) | sign)
}

// toHalf rounds to the nearest binary16, ties to even. From 65520, half a unit above the largest
// binary16, it returns infinity.
func toHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	switch b &= 0x7fffffff; {
	case b >= 0x477ff000:
		return sign | 0x7c00
	case b >= 0x38800000: // 2^-14: a normal number
		b -= (127 - 15) << 23
		return sign | uint16((b+0xfff+b>>13&1)>>13)
	}
	// A subnormal number is a multiple of 2^-24, as far apart as float32's neighbours of 0.5.
	return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
}
