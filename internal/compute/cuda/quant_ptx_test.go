package cuda

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cuda/kernels"
)

// quantNames maps quantised classes to their names in kernels.
var quantNames = map[compute.Class]string{compute.Q8: "q8", compute.Q4: "q4"}

// encodedBlocks returns what compute.Class.Encode makes of x, as a tensor's planes.
func encodedBlocks(c compute.Class, x []float32) (codes, scales []byte) {
	codes = make([]byte, len(x)/compute.QuantBlock*c.CodeBytes())
	for b := range len(x) / compute.QuantBlock {
		scales = binary.LittleEndian.AppendUint16(scales,
			c.Encode(codes[b*c.CodeBytes():], x[b*compute.QuantBlock:]))
	}
	return codes, scales
}

// decodedBlocks returns the values of blocks.
func decodedBlocks(c compute.Class, x []float32) []float32 {
	codes, scales := encodedBlocks(c, x)
	y := make([]float32, len(x))
	for b := range len(x) / compute.QuantBlock {
		c.Decode(y[b*compute.QuantBlock:], codes[b*c.CodeBytes():],
			binary.LittleEndian.Uint16(scales[2*b:]))
	}
	return y
}

// oddBlocks returns blocks whose encoding meets every case: usual numbers, halves between codes,
// zeros, and scales that are subnormal or zero as a binary16.
func oddBlocks(rng *rand.Rand, blocks int) []float32 {
	x := make([]float32, blocks*compute.QuantBlock)
	for i := range x {
		b := i / compute.QuantBlock
		size := float32(math.Exp2(float64(b%5) - 2))
		switch b % 9 {
		case 3: // multiples of half a code, the largest at a border of the range
			x[i] = float32(rng.IntN(509)-254) / 2 * size
			if i%compute.QuantBlock == 7 {
				x[i] = 127 * size
			}
		case 4:
			x[i] = float32(rng.IntN(33)-16) / 2 * size
			if i%compute.QuantBlock == 20 {
				x[i] = -8 * size
			}
		case 5:
			x[i] = 0
		case 6:
			x[i] = 1e-5 * float32(rng.NormFloat64())
		case 7:
			x[i] = 1e-42 * float32(rng.NormFloat64())
		default:
			x[i] = size * float32(rng.NormFloat64())
		}
	}
	return x
}

// bytesOfFloats is x as memory holds it.
func bytesOfFloats(x []float32) (b []byte) {
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// The text of the kernels of quantised weights: encoding and decoding to the bit, and the product
// of few rows, of whole numbers, whose sums are exact in any order.
func TestQuantPTX(t *testing.T) {
	for _, cc := range []int{80, 90} {
		parse := func(name string) *ptxKernel {
			t.Helper()
			k, err := parsePTX(string(kernels.PTX(cc)), name)
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		for class, name := range quantNames {
			rng := rand.New(rand.NewPCG(8, 9))
			x := oddBlocks(rng, 40)
			codes, scales := encodedBlocks(class, x)

			m := &ptxMachine{}
			toCodes, toScales := make([]byte, len(codes)), make([]byte, len(scales))
			if err := m.launch(parse("quantise_"+name), [3]int{1, 1, 1}, 32, 0, m.put(toCodes),
				m.put(toScales), m.put(bytesOfFloats(x)), 40); err != nil {
				t.Fatal(err)
			}
			if string(toCodes) != string(codes) || string(toScales) != string(scales) {
				t.Errorf("compute_%d: quantise_%s differs from Class.Encode", cc, name)
			}

			want := bytesOfFloats(decodedBlocks(class, x)[5 : len(x)-3])
			m = &ptxMachine{}
			y := make([]byte, len(want))
			if err := m.launch(parse("dequant_"+name+"_f32"), [3]int{1, 1, 1}, 32, 0, m.put(y),
				m.put(codes), m.put(scales), 5, uint64(len(want)/4)); err != nil {
				t.Fatal(err)
			}
			if string(y) != string(want) {
				t.Errorf("compute_%d: dequant_%s differs from Class.Decode", cc, name)
			}
			fewPTX(t, cc, parse("few_"+name+"_f32"), class, rng)
		}
	}
}

// fewPTX runs a product of 11 rows with 37 features, of a matrix that begins in its memory's third
// block.
func fewPTX(t *testing.T, cc int, k *ptxKernel, class compute.Class, rng *rand.Rand) {
	const M, N, K, first, ldc, parts = 11, 37, 96, 64, 40, 4
	w, x := wholeBlocks(rng, class, first+N*K), make([]float32, M*K)
	var narrow []byte
	for i := range x {
		x[i] = float32(rng.IntN(17) - 8)
		narrow = binary.LittleEndian.AppendUint16(narrow, uint16(bf16Bits(x[i])))
	}
	bias, add := make([]float32, N), make([]float32, M*ldc)
	for i := range bias {
		bias[i] = float32(rng.IntN(100))
	}
	for i := range add {
		add[i] = float32(rng.IntN(100))
	}
	codes, scales := encodedBlocks(class, w)
	m, y := &ptxMachine{}, bytesOfFloats(make([]float32, M*ldc))
	if err := m.launch(k, [3]int{2, 1, 1}, 32*fewWarps, 4*fewWarps*fewStride*16, m.put(y), ldc,
		m.put(narrow), m.put(codes), m.put(scales), first, m.put(bytesOfFloats(add)),
		m.put(bytesOfFloats(bias)), M, N, K, parts, fromF(0.5)); err != nil {
		t.Fatal(err)
	}
	for i := range M {
		for j := range N {
			sum := float32(0)
			for k := range K {
				sum += x[i*K+k] * w[first+j*K+k]
			}
			want := 0.5*sum + add[i*ldc+j] + bias[j]
			if got := asF(little(y[4*(i*ldc+j):][:4])); got != want {
				t.Errorf("compute_%d: %s: [%d,%d] is %v, want %v", cc, k.name, i, j, got, want)
				return
			}
		}
	}
	for i := range M {
		for j := N; j < ldc; j++ {
			if little(y[4*(i*ldc+j):][:4]) != 0 {
				t.Errorf("compute_%d: %s: wrote beyond row %d", cc, k.name, i)
			}
		}
	}
}

// wholeBlocks returns whole numbers that a class holds exactly, times a power of two that differs
// from block to block: each block has the number that its scale is made of.
func wholeBlocks(rng *rand.Rand, c compute.Class, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.IntN(16)-8) * float32(int(1)<<(i/compute.QuantBlock%3))
	}
	largest := float32(-8)
	if c == compute.Q8 {
		largest = -127
	}
	for b := range n / compute.QuantBlock {
		x[b*compute.QuantBlock+b%compute.QuantBlock] = largest * float32(int(1)<<(b%3))
	}
	return x
}
