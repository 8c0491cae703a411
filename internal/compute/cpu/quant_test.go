package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gad/internal/compute"
)

// TestDequant: the kernels give the bits of dequantGo for all codes and all scales, infinite
// ones too, and write nothing else.
func TestDequant(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, k := range available() {
		for four, kernel := range map[bool]func([]float32, []uint8, []uint16, int){
			false: k.dequant8, true: k.dequant4} {
			if kernel == nil {
				if k != portable {
					t.Errorf("%s has no kernel, four bits %v", k.name, four)
				}
				continue
			}
			const blocks = 3
			codes, scales := make([]uint8, blocks*32*k.nr), make([]uint16, blocks*k.nr)
			want := make([]float32, 32*blocks*k.nr)
			scale := uint16(0)
			for range 1 << 16 / len(scales) {
				for i := range codes {
					codes[i] = uint8(rng.Uint32())
				}
				for i := range scales {
					if scale++; scale&0x7c00 == 0x7c00 {
						scale &^= 0x3ff // no NaN
					}
					scales[i] = scale
					if scale&0x7fff == 0x7c00 {
						scale |= 0x3ff
					}
				}
				all, got := guarded(len(want), 16)
				kernel(got, codes, scales, blocks)
				dequantGo(want, codes, scales, blocks, k.nr, four)
				for i := range want {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) &&
						(got[i] == got[i] || want[i] == want[i]) {
						t.Fatalf("%s, four bits %v: [%d] is %v, want %v", k.name, four, i, got[i],
							want[i])
					}
				}
				for i, x := range all {
					if x == x && (i < 16 || i >= 16+len(want)) {
						t.Fatalf("%s, four bits %v: wrote [%d]", k.name, four, i-16)
					}
				}
			}
		}
	}
}

// TestDequantPairs: the kernels give the pairs that packing the values gives.
func TestDequantPairs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range natives() {
		for four, kernel := range map[bool]func([]uint32, []uint8, []uint16, int){false: n.dequant8,
			true: n.dequant4} {
			if kernel == nil {
				t.Fatalf("%s has no kernel, four bits %v", n.name, four)
			}
			const blocks, lanes = 2, 32
			codes, scales := make([]uint8, blocks*32*lanes), make([]uint16, blocks*lanes)
			values := make([]float32, 32*blocks*lanes)
			want, got := newAligned[uint32](16*blocks*lanes), newAligned[uint32](16*blocks*lanes+8)
			for first := uint16(0); first < 0x7c00; first += uint16(len(scales)) {
				for i := range codes {
					codes[i] = uint8(rng.Uint32())
				}
				for i := range scales {
					scales[i] = min(first+uint16(i), 0x7bff) | uint16(rng.Uint32())&0x8000
				}
				for i := range got {
					got[i] = 0x12345678
				}
				kernel(got, codes, scales, blocks)
				dequantGo(values, codes, scales, blocks, lanes, four)
				n.packB(want, values, lanes, lanes, 32*blocks, true)
				for i, x := range got {
					switch {
					case i >= len(want) && x != 0x12345678:
						t.Fatalf("%s, four bits %v: wrote [%d] of %d", n.name, four, i, len(want))
					case i < len(want) && x != want[i]:
						t.Fatalf("%s, four bits %v: pair %d is %#x, want %#x", n.name, four, i, x,
							want[i])
					}
				}
			}
		}
	}
}

// TestQuantParts: gradients through a quantised matrix that is unpacked in several parts have
// the bits of a Frozen one with its values.
func TestQuantParts(t *testing.T) {
	defer func(limit, limit16 int) { unpackLimit, unpackLimit16 = limit, limit16 }(unpackLimit,
		unpackLimit16)
	unpackLimit, unpackLimit16 = 16<<10, 16<<10
	for _, o := range []Options{{Precision: F32}, {Precision: BF16}} {
		for _, o.Variant = range Variants16() {
			if o.Precision == F32 && !slices.Contains(Variants(), o.Variant) {
				continue
			}
			o.Workers = 2
			b, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range [][3]int{{5, 130, 224}, {70, 96, 1120}} {
				N, O, I := s[0], s[1], s[2]
				rng := rand.New(rand.NewPCG(1, 2))
				host := make([]float32, O*I)
				for i := range host {
					host[i] = float32(rng.NormFloat64())
				}
				dy := random(b, N*O)
				for _, class := range []compute.Class{compute.Q8, compute.Q4} {
					var got [2][]float32
					for i, c := range []compute.Class{class, compute.Frozen} {
						w := &compute.Param{Rows: O, Cols: I}
						w.W, _ = b.Alloc("test", c, O*I)
						b.Upload(w.W, host)
						if i == 0 {
							b.Download(host, w.W) // what both have
						}
						dx, _ := b.Alloc("test", compute.Narrow, N*I)
						for _, acc := range []bool{false, true} {
							b.LinearGrad(dx, w, nil, dy, compute.Tensor{}, acc)
						}
						got[i] = make([]float32, N*I)
						b.Download(got[i], dx)
					}
					equalBits(t, fmt.Sprintf("%s: %v N=%d O=%d I=%d", b.Name(), class, N, O, I),
						got[0], got[1])
				}
			}
			b.Close()
		}
	}
}

// TestQuantMemory: a quantised matrix takes the bytes of its blocks, before and after products,
// if it is whole panels.
func TestQuantMemory(t *testing.T) {
	for _, precision := range []string{F32, BF16} {
		b, err := New(Options{Workers: 2, Precision: precision})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		const O, I = 512, 384
		x, y := random(b, I), random(b, O)
		b.Linear(y, x, &compute.Param{Rows: O, Cols: I, W: random(b, O*I)}, nil, false) // scratch
		for class, bytes := range map[compute.Class]int64{compute.Q8: O * I / 32 * 34,
			compute.Q4: O * I / 32 * 18} {
			before, _ := b.Memory()
			w := &compute.Param{Rows: O, Cols: I}
			w.W, _ = b.Alloc("test", class, O*I)
			for range 2 {
				b.Upload(w.W, make([]float32, O*I))
				b.Linear(y, x, w, nil, false)
				if in, _ := b.Memory(); in != before+bytes ||
					bytes != compute.Bytes(b, class, O*I) {
					t.Errorf("%s: %v: %d bytes more in use, planned %d, want %d", b.Name(), class,
						in-before, compute.Bytes(b, class, O*I), bytes)
				}
			}
			b.Free(w.W)
			if in, _ := b.Memory(); in != before {
				t.Errorf("%s: %v: %d bytes in use after Free, want %d", b.Name(), class, in, before)
			}
		}
	}
}
