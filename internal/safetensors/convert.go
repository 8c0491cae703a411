package safetensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"gad/internal/folder"
)

// Float32 widens the tensor into dst, element by element in row-major order.
// U8, BF16, F16 and F32 are exact; F64 is rounded to the nearest float32 and may
// become infinite. len(dst) must be the number of elements. If the mapped file
// has been cut short under the reader, that is an error.
func (t *Tensor) Float32(dst []float32) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("safetensors: tensor %q: %w", t.Name, err)
		}
	}()
	width := t.DType.Size()
	switch t.DType {
	case F32, BF16, F16, F64, U8:
	default:
		return fmt.Errorf("%s cannot be widened to float32: U8, BF16, F16, F32 and F64 can",
			t.DType)
	}
	if len(t.Data) != width*len(dst) {
		return fmt.Errorf("%v has %d elements, the destination %d", t.Shape, len(t.Data)/width,
			len(dst))
	}
	return folder.Guard(func() error { t.widen(dst); return nil })
}

// widen is Float32 without the checks of type and size.
func (t *Tensor) widen(dst []float32) {
	d := t.Data
	switch t.DType {
	case F32: // two at a time, from slices cut to length: the compiler then omits bounds checks
		for len(dst) >= 4 && len(d) >= 16 {
			a, b := binary.LittleEndian.Uint64(d), binary.LittleEndian.Uint64(d[8:])
			dst[0], dst[1] = math.Float32frombits(uint32(a)), math.Float32frombits(uint32(a>>32))
			dst[2], dst[3] = math.Float32frombits(uint32(b)), math.Float32frombits(uint32(b>>32))
			dst, d = dst[4:], d[16:]
		}
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(d[4*i : 4*i+4]))
		}
	case BF16:
		for len(dst) >= 4 && len(d) >= 8 {
			a := binary.LittleEndian.Uint64(d)
			dst[0], dst[1] =
				math.Float32frombits(uint32(a)<<16), math.Float32frombits(uint32(a)&0xffff0000)
			dst[2], dst[3] =
				math.Float32frombits(uint32(a>>32)<<16),
				math.Float32frombits(uint32(a>>32)&0xffff0000)
			dst, d = dst[4:], d[8:]
		}
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(d[2*i:2*i+2])) << 16)
		}
	case F16:
		for i := range dst {
			dst[i] = FromHalf(binary.LittleEndian.Uint16(d[2*i : 2*i+2]))
		}
	case U8:
		for i := range dst {
			dst[i] = float32(d[i])
		}
	case F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(d[8*i : 8*i+8])))
		}
	}
}

// FromHalf widens an IEEE 754 binary16 to float32, which is exact.
func FromHalf(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0: // zero, or frac * 2^-24, which float32 holds as a normal number
		return math.Float32frombits(math.Float32bits(float32(frac)*0x1p-24) | sign)
	case 0x1f: // infinity, or NaN with its payload
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// toHalf rounds to the nearest binary16, ties to even. From 65520, half a unit above the largest
// binary16, it returns infinity. A NaN stays one, quiet.
func toHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13&0x1ff)
	case b >= 0x477ff000: // 65520, half way between the largest binary16, 65504, and 65536
		return sign | 0x7c00
	case b >= 0x38800000: // 2^-14: a normal number
		b -= (127 - 15) << 23
		return sign | uint16((b+0xfff+b>>13&1)>>13)
	}
	// Subnormal: a multiple of 2^-24. Adding 0.5, whose float32 neighbours are
	// 2^-24 apart, rounds to it in hardware.
	return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
}

// toBF16 rounds to the nearest bfloat16, ties to even. A NaN stays one, quiet.
func toBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// EncodeFloat32 writes src to w as elements of type dt: F32 as they are, BF16 and F16 rounded to
// the nearest, ties to even. For U8 src must hold whole numbers from 0 to 255. A [Source] of
// float32 calls it.
func EncodeFloat32(w io.Writer, dt DType, src []float32) error {
	width := dt.Size()
	switch dt {
	case F32, BF16, F16, U8:
	default:
		return fmt.Errorf("safetensors: float32 cannot be written as %q: F32, BF16, F16 and U8 can",
			string(dt))
	}
	const chunk = 1 << 14 // elements
	buf := make([]byte, 0, width*min(chunk, len(src)))
	for len(src) > 0 {
		part := src[:min(chunk, len(src))]
		src = src[len(part):]
		buf = buf[:width*len(part)]
		switch dt {
		case F32:
			for i, v := range part {
				binary.LittleEndian.PutUint32(buf[4*i:4*i+4], math.Float32bits(v))
			}
		case BF16:
			for i, v := range part {
				binary.LittleEndian.PutUint16(buf[2*i:2*i+2], toBF16(v))
			}
		case F16:
			for i, v := range part {
				binary.LittleEndian.PutUint16(buf[2*i:2*i+2], toHalf(v))
			}
		case U8:
			for i, v := range part {
				if buf[i] = uint8(max(0, min(v, 255))); float32(buf[i]) != v {
					return fmt.Errorf("safetensors: %g cannot be written as U8: expected a whole number from 0 to 255", v)
				}
			}
		}
		if n, err := w.Write(buf); err != nil {
			return err
		} else if n != len(buf) {
			return io.ErrShortWrite
		}
	}
	return nil
}
