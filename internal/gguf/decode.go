package gguf

import (
	"encoding/binary"

	"gad/internal/safetensors"
)

// The functions below decode one block of each quantised type, as ggml-quants.c of the ggml
// repository defines it (dequantize_row_*). Names: d and m are scale and minimum in
// binary16, q the small integers, e an element's index in the block. The order of the
// operations is gguf-py's (gguf/quants.py), and the float32 results equal gguf-py's in every
// bit; float32(x*y) keeps the compiler from fusing a product with the following sum.

// blocks returns a decoder of whole blocks, of elems elements in size bytes each, that calls one
// for each block.
func blocks(elems, size int, one func(dst []float32, b []byte)) func([]float32, []byte) {
	return func(dst []float32, at []byte) {
		for len(dst) > 0 {
			one(dst[:elems:elems], at[:size:size])
			dst, at = dst[elems:], at[size:]
		}
	}
}

// half returns the binary16 at the start of b.
func half(b []byte) float32 { return safetensors.FromHalf(binary.LittleEndian.Uint16(b)) }

// q4_0 decodes d, 32 q of 4 bits (the first 16 in the low halves of the bytes): x = d (q - 8).
func q4_0(dst []float32, b []byte) {
	d, qs := half(b), b[2:18]
	for i, v := range qs {
		dst[i] = d * float32(int(v&15)-8)
		dst[16+i] = d * float32(int(v>>4)-8)
	}
}

// q4_1 decodes d, m, 32 q of 4 bits: x = d q + m.
func q4_1(dst []float32, b []byte) {
	d, m, qs := half(b), half(b[2:]), b[4:20]
	for i, v := range qs {
		dst[i] = float32(d*float32(v&15)) + m
		dst[16+i] = float32(d*float32(v>>4)) + m
	}
}

// q5_0 decodes d, the fifth bits of 32 q, their low 4 bits: x = d (q - 16).
func q5_0(dst []float32, b []byte) {
	d, high, qs := half(b), binary.LittleEndian.Uint32(b[2:]), b[6:22]
	for i, v := range qs {
		dst[i] = d * float32(int(v&15|byte(high>>i&1)<<4)-16)
		dst[16+i] = d * float32(int(v>>4|byte(high>>(16+i)&1)<<4)-16)
	}
}

// q5_1 decodes d, m, the fifth bits, the low 4 bits: x = d q + m.
func q5_1(dst []float32, b []byte) {
	d, m, high, qs := half(b), half(b[2:]), binary.LittleEndian.Uint32(b[4:]), b[8:24]
	for i, v := range qs {
		dst[i] = float32(d*float32(v&15|byte(high>>i&1)<<4)) + m
		dst[16+i] = float32(d*float32(v>>4|byte(high>>(16+i)&1)<<4)) + m
	}
}

// q8_0 decodes d, 32 q of 8 bits, signed: x = d q.
func q8_0(dst []float32, b []byte) {
	d, qs := half(b), b[2:34]
	for i, v := range qs {
		dst[i] = float32(int8(v)) * d
	}
}

// q2K decodes 16 bytes of scale s (low 4 bits) and minimum n (high 4 bits) of 16 elements each, 256
// q of 2 bits, d, m: x = d s q - m n. The q of half h, quarter k of 32 elements are bits 2k and
// 2k+1 of the 32 bytes from 32h on; so are the low bits of q3_K.
func q2K(dst []float32, b []byte) {
	scales, qs, d, m := b[:16], b[16:80], half(b[80:]), half(b[82:])
	for e := range dst {
		s := scales[e/16]
		q := qs[e/128*32+e%32] >> (e % 128 / 32 * 2) & 3
		dst[e] = float32(float32(d*float32(s&15))*float32(q)) - float32(m*float32(s>>4))
	}
}

// q3K decodes 32 bytes whose bit k is the third bit of elements 32k..32k+31, 256 q of 2 low bits,
// 16 scales s of 6 bits, d: x = d (s - 32) (q - 4), where q includes its third bit.
func q3K(dst []float32, b []byte) {
	high, qs, scales, d := b[:32], b[32:96], b[96:108], half(b[108:])
	for e := range dst {
		g := e / 16
		s := int(scales[g%8]>>(g/8*4)&15 | scales[8+g%4]>>(g/4*2)&3<<4)
		q := int(qs[e/128*32+e%32] >> (e % 128 / 32 * 2) & 3)
		if high[e%32]>>(e/32)&1 == 0 {
			q -= 4
		}
		dst[e] = float32(d*float32(s-32)) * float32(q)
	}
}

// scaleMin returns scale and minimum of group g of 32 elements in q4_K and q5_K: 8 of each, of 6
// bits, in 12 bytes.
func scaleMin(b []byte, g int) (s, m float32) {
	if g < 4 {
		return float32(b[g] & 63), float32(b[4+g] & 63)
	}
	return float32(b[4+g]&15 | b[g-4]>>2&0x30), float32(b[4+g]>>4 | b[g]>>2&0x30)
}

// q4K decodes d, m, 12 bytes of scales s and minimums n, 256 q of 4 bits: x = d s q - m n. Groups
// 2c and 2c+1 are the low and high halves of the 32 bytes from 32c on.
func q4K(dst []float32, b []byte) {
	d, m, scales, qs := half(b), half(b[2:]), b[4:16], b[16:144]
	for g := range 8 {
		s, n := scaleMin(scales, g)
		ds, mn := d*s, m*n
		for i := range 32 {
			q := qs[g/2*32+i] >> (g % 2 * 4) & 15
			dst[32*g+i] = float32(ds*float32(q)) - mn
		}
	}
}

// q5K decodes as q4K does, with 32 bytes before q whose bit g is the fifth bit of group g.
func q5K(dst []float32, b []byte) {
	d, m, scales, high, qs := half(b), half(b[2:]), b[4:16], b[16:48], b[48:176]
	for g := range 8 {
		s, n := scaleMin(scales, g)
		ds, mn := d*s, m*n
		for i := range 32 {
			q := qs[g/2*32+i]>>(g%2*4)&15 | high[i]>>g&1<<4
			dst[32*g+i] = float32(ds*float32(q)) - mn
		}
	}
}

// q6K decodes 256 q of 4 low bits and of 2 high bits, 16 signed scales s of 8 bits, d: x = d s (q -
// 32).
func q6K(dst []float32, b []byte) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], half(b[208:])
	for e := range dst {
		h, in := e/128, e%128
		q := low[h*64+in%64]>>(in/64*4)&15 | high[h*32+in%32]>>(in/32*2)&3<<4
		dst[e] = float32(d*float32(int8(scales[e/16]))) * float32(int(q)-32)
	}
}

// iq4Values maps the 4 bits of iq4_nl and iq4_xs to numbers (kvalues_iq4nl).
var iq4Values = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89,
	113}

// iq4NL decodes d, 32 indices q of 4 bits: x = d iq4Values[q].
func iq4NL(dst []float32, b []byte) {
	d, qs := half(b), b[2:18]
	for i, v := range qs {
		dst[i] = d * iq4Values[v&15]
		dst[16+i] = d * iq4Values[v>>4]
	}
}

// iq4XS decodes d, 8 scales s of 6 bits (the 2 high bits in 2 bytes, the low 4 in 4), 256 indices q
// of 4 bits: x = d (s - 32) iq4Values[q].
func iq4XS(dst []float32, b []byte) {
	d, high, low, qs := half(b), binary.LittleEndian.Uint16(b[2:]), b[4:8], b[8:136]
	for g := range 8 {
		s := int(low[g/2]>>(g%2*4)&15) | int(high>>(2*g)&3)<<4
		ds := d * float32(s-32)
		for i, v := range qs[16*g:][:16] {
			dst[32*g+i] = ds * iq4Values[v&15]
			dst[32*g+16+i] = ds * iq4Values[v>>4]
		}
	}
}
