package compute

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"testing"
)

// TestEncodeAgainstGGUFPy: blocks are quantised to the bytes that gguf-py 0.19 writes
// (scripts/fixtures_quant.py), and what is decoded of each is encoded to the same bytes again.
func TestEncodeAgainstGGUFPy(t *testing.T) {
	data, err := os.ReadFile("../../testdata/quant/blocks.bin")
	if err != nil {
		t.Fatal(err)
	}
	const values, record = 4 * QuantBlock, 4*QuantBlock + 34 + 18
	if len(data) != 256*record {
		t.Fatalf("%d bytes, want 256 records of %d", len(data), record)
	}
	x, again := make([]float32, QuantBlock), make([]float32, QuantBlock)
	for n := 0; n < len(data); n += record {
		for i := range x {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[n+4*i:]))
		}
		want := data[n+values : n+record]
		for _, c := range []Class{Q8, Q4} {
			codes := make([]byte, c.CodeBytes())
			block := func(x []float32) []byte {
				d := c.Encode(codes, x)
				return append([]byte{byte(d), byte(d >> 8)}, codes...)
			}
			got := block(x)
			if want := want[:len(got)]; !bytes.Equal(got, want) {
				t.Errorf("%v, block %d: %x, want %x", c, n/record, got, want)
			}
			want = want[len(got):]
			if d := FromHalf(binary.LittleEndian.Uint16(got)); d-d == 0 {
				c.Decode(again, got[2:], binary.LittleEndian.Uint16(got))
				if back := block(again); d != 0 && !bytes.Equal(back, got) {
					t.Errorf("%v, block %d: %x, encoded again %x", c, n/record, got, back)
				}
			}
		}
	}
}

// TestEncodeDecoded: a block of any scale with a code of the largest magnitude is encoded
// again to itself.
func TestEncodeDecoded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, QuantBlock)
	for scale := range 0x7c00 {
		for _, c := range []Class{Q8, Q4} {
			d, codes, got := uint16(scale), make([]byte, c.CodeBytes()), make([]byte, c.CodeBytes())
			for i := range codes {
				codes[i] = byte(rng.Uint32())
				if c == Q8 && codes[i] == 0x80 {
					codes[i] = 0x81
				}
			}
			at := rng.IntN(len(codes))
			switch {
			case c == Q8:
				codes[at] = []byte{127, 0x81}[scale%2]
			case scale%2 == 0:
				codes[at] &= 0xf0
				d |= uint16(rng.Uint32()) & 0x8000 // only q4_0 has negative scales
			default:
				codes[at] &= 0x0f
			}
			c.Decode(x, codes, d)
			if back := c.Encode(got, x); d&0x7fff != 0 && (back != d || !bytes.Equal(got, codes)) {
				t.Fatalf("%v: scale %04x codes %x: again %04x %x", c, d, codes, back, got)
			}
		}
	}
}

// TestHalf: every finite binary16 is its own rounding, and halves between neighbours go to
// the even one.
func TestHalf(t *testing.T) {
	for h := range uint16(0x7c00) {
		x := FromHalf(h)
		if got := toHalf(x); got != h {
			t.Fatalf("%04x: %g, rounded %04x", h, x, got)
		}
		if got := toHalf(-x); got != h|0x8000 {
			t.Fatalf("%04x: %g, rounded %04x", h|0x8000, -x, got)
		}
		if want := float64(h&0x3ff|0x400) * math.Pow(2, float64(h>>10)-25); h >= 0x400 &&
			float64(x) != want {
			t.Fatalf("%04x: %g, want %g", h, x, want)
		}
		if h+1 < 0x7c00 {
			if got, want := toHalf((x+FromHalf(h+1))/2), h+h&1; got != want {
				t.Fatalf("half way behind %04x: %04x, want %04x", h, got, want)
			}
		}
	}
	if got := toHalf(65520); got != 0x7c00 {
		t.Errorf("65520: %04x", got)
	}
}
