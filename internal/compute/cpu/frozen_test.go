package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gad/internal/compute"
)

func equalBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: [%d] of %d is %v, want %v", what, i, len(want), got[i], want[i])
		}
	}
}

// TestFrozenParts: gradients through a frozen matrix that is unpacked in several parts have
// the bits of one that is kept whole, for few tokens, several chunks of them, and so many
// that tasks pack their own.
func TestFrozenParts(t *testing.T) {
	defer func(limit, limit16 int) { unpackLimit, unpackLimit16 = limit, limit16 }(unpackLimit,
		unpackLimit16)
	unpackLimit, unpackLimit16 = 16<<10, 16<<10
	for _, o := range []Options{{Precision: F32}, {Precision: BF16}} {
		for _, variant := range append(Variants16(), "") {
			if o.Variant = variant; o.Precision == F32 && !slices.Contains(Variants(), variant) {
				continue
			}
			o.Workers = 2
			b, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			sizes := [][3]int{{5, 130, 200}, {700, 96, 130}, {70, 128, 257}}
			if variant == "" {
				sizes = append(sizes, [3]int{2500, 64, 192})
			}
			for _, s := range sizes {
				N, O, I := s[0], s[1], s[2]
				if b.unpackColumns(O, I, b.k16 != nil) >= I {
					t.Fatalf("[%d,%d] is one part", O, I)
				}
				rng := rand.New(rand.NewPCG(1, 2))
				put := func(c compute.Class, n int) compute.Tensor {
					x, _ := b.Alloc("test", c, n)
					host := make([]float32, n)
					for i := range host {
						host[i] = float32(rng.NormFloat64())
					}
					b.Upload(x, host)
					return x
				}
				dy := put(compute.Narrow, N*O)
				var got [2][]float32
				for i, class := range []compute.Class{compute.Narrow, compute.Frozen} {
					rng = rand.New(rand.NewPCG(3, 4))
					w := &compute.Param{Rows: O, Cols: I, W: put(class, O*I)}
					dx := put(compute.Narrow, N*I)
					for _, acc := range []bool{false, true} {
						b.LinearGrad(dx, w, nil, dy, compute.Tensor{}, acc)
					}
					got[i] = make([]float32, N*I)
					b.Download(got[i], dx)
				}
				equalBits(t, fmt.Sprintf("%s: N=%d O=%d I=%d", b.Name(), N, O, I), got[1], got[0])
			}
			b.Close()
		}
	}
}

// TestFrozenInPlace: packing a frozen matrix takes no memory, and writing it again neither,
// if it is whole panels.
func TestFrozenInPlace(t *testing.T) {
	for _, precision := range []string{F32, BF16} {
		b, err := New(Options{Workers: 2, Precision: precision})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		const O, I = 512, 384
		bytes := b.Element(compute.Frozen) * O * I
		x, y := random(b, I), random(b, O)
		host := make([]float32, O*I)
		b.Linear(y, x, &compute.Param{Rows: O, Cols: I, W: random(b, O*I)}, nil, false) // scratch
		before, peak := b.Memory()
		w := &compute.Param{Rows: O, Cols: I}
		w.W, _ = b.Alloc("test", compute.Frozen, O*I)
		b.Upload(w.W, host)
		b.Linear(y, x, w, nil, false)
		b.Upload(w.W.Slice(5, O*I), host[5:])
		b.Linear(y, x, w, nil, false)
		in, most := b.Memory()
		if in != before+bytes || most > max(peak, in) {
			t.Errorf("%s: %d bytes more in use, peak %d more, want %d", b.Name(), in-before,
				most-before, bytes)
		}
		b.Free(w.W)
		if in, _ := b.Memory(); in != before {
			t.Errorf("%s: %d bytes in use after Free, want %d", b.Name(), in, before)
		}
	}
}

// TestFrozenUpload: rounding in blocks of words, at any offset and length, is the rounding
// of Narrow memory; several goroutines write a float32 matrix at once.
func TestFrozenUpload(t *testing.T) {
	b, err := New(Options{Workers: 2, Precision: BF16})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const n = 333
	host := make([]float32, n)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range host {
		host[i] = math.Float32frombits(rng.Uint32())
		if host[i] != host[i] {
			host[i] = 1e-40
		}
	}
	frozen, _ := b.Alloc("frozen", compute.Frozen, n)
	narrow, _ := b.Alloc("narrow", compute.Narrow, n)
	got, want := make([]float32, n), make([]float32, n)
	for range 300 {
		lo := rng.IntN(n)
		hi := lo + rng.IntN(n-lo+1)
		for _, x := range []compute.Tensor{frozen, narrow} {
			b.Upload(x.Slice(lo, hi), host[:hi-lo])
		}
		b.Download(got, frozen)
		b.Download(want, narrow)
		equalBits(t, fmt.Sprintf("[%d:%d]", lo, hi), got, want)
		b.Download(got[:hi-lo], frozen.Slice(lo, hi))
		equalBits(t, fmt.Sprintf("Download of [%d:%d]", lo, hi), got[:hi-lo], want[lo:hi])
	}

	b32, err := New(Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer b32.Close()
	const O, I = 64, 40
	w := &compute.Param{Rows: O, Cols: I}
	w.W, _ = b32.Alloc("frozen", compute.Frozen, O*I)
	b32.Linear(random(b32, O), random(b32, I), w, nil, false) // packs it
	done := make(chan struct{})
	for part := range 4 {
		go func() {
			to := b32.Host(w.W)[part*O*I/4 : (part+1)*O*I/4]
			for i := range to {
				to[i] = float32(part*O*I/4 + i)
			}
			done <- struct{}{}
		}()
	}
	for range 4 {
		<-done
	}
	b32.Linear(random(b32, O), random(b32, I), w, nil, false)
	all := make([]float32, O*I)
	b32.Download(all, w.W)
	for i, x := range all {
		if x != float32(i) {
			t.Fatalf("[%d] is %v", i, x)
		}
	}
}
