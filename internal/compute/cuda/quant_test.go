//go:build nvidia

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gad/internal/compute"
)

// pairOf returns a matrix of numbers that class holds exactly, in class and in Frozen.
func (s *setting) pairOf(class compute.Class, rows, cols int) (quant, frozen *compute.Param) {
	host := wholeBlocks(s.rng, class, rows*cols)
	of := func(c compute.Class) *compute.Param {
		return &compute.Param{Name: c.String(), Shape: []int{rows, cols}, Rows: rows, Cols: cols,
			W: s.put(c, host)}
	}
	return of(class), of(compute.Frozen)
}

// whole returns n small whole numbers: products of them are exact in any order.
func (s *setting) whole(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(s.rng.IntN(9) - 4)
	}
	return x
}

// Whole numbers, whose sums are exact in any order, give the same bits with quantised weights as
// with Frozen ones of their values: in registers and unpacked, over tiles with and without a rest.
// Nothing waits between products whose matrices grow, so that the memory in which they are unpacked
// is replaced while products that read it are queued.
func TestQuantProducts(t *testing.T) {
	for _, precision := range []string{BF16, F32} {
		b := start(t, Options{Precision: precision})
		s := set(t, b)
		for class := range quantNames {
			for _, few := range []int{0, 1000} {
				if few > 0 && precision == F32 {
					continue // there are none
				}
				b.few = few
				var got, want []compute.Tensor
				for _, shape := range []struct{ N, O, I int }{{1, 5, 32}, {3, 37, 96}, {8, 16, 64},
					{17, 130, 160}, {64, 64, 288}, {65, 33, 544}, {130, 300, 64}} {
					N, O, I := shape.N, shape.O, shape.I
					quant, frozen := s.pairOf(class, O, I)
					x, dy := s.put(compute.Narrow, s.whole(N*I)), s.put(compute.Narrow, s.whole(N*O))
					bias := &compute.Param{Name: "b", Rows: 1, Cols: O,
						W: s.put(compute.Wide, s.whole(O))}
					add := s.put(compute.Wide, s.whole(N*O))
					for i, w := range []*compute.Param{quant, frozen} {
						y, y1, sum, other, dx := s.put(compute.Wide, seq(N*O, 1)),
							s.empty(compute.Narrow, N*O), s.put(compute.Wide, seq(N*O, 1)),
							s.empty(compute.Wide, N*O), s.empty(compute.Narrow, N*I)
						b.Linear(y, x, w, bias, true)
						b.Linear(y1, x, w, nil, false)
						b.LinearAdd(sum, sum, x, w)
						b.LinearAdd(other, add, x, w)
						b.LinearGrad(dx, w, nil, dy, compute.Tensor{}, false)
						to := &got
						if i == 1 {
							to = &want
						}
						*to = append(*to, y, y1, sum, other, dx)
					}
				}
				for i := range got {
					s.same(fmt.Sprintf("%s, %v, %d rows are few: result %d", precision, class, few,
						i), s.down(got[i]), s.down(want[i]))
					b.Free(got[i])
					b.Free(want[i])
				}
			}
		}
	}
}

// A head of more tokens than are unpacked at a time, and projections that lie side by side.
func TestQuantHead(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds on the emulated device")
	}
	b := start(t, Options{})
	s := set(t, b)
	const R, V, D = fewRows + 3, unpackedVocab + 40, 32
	quant, frozen := s.pairOf(compute.Q8, V, D)
	h := s.put(compute.Narrow, s.whole(R*D))
	rows, targets, u := seqOf(R), s.draws(R, V), make([]float64, R)
	for i := range u {
		u[i] = s.rng.Float64()
	}
	var results [2][][]float32
	for i, w := range []*compute.Param{quant, frozen} {
		out := compute.HeadOut{LogpR: s.empty(compute.Wide, R), EntR: s.empty(compute.Wide, R),
			LseR: s.empty(compute.Wide, R)}
		b.LogProb(out, h, w, rows, targets, 1.0/64)
		ids, logp := make([]int32, R), make([]float32, R)
		b.Sample(ids, logp, h, w, compute.Sampling{Temperature: 64}, u)
		for _, id := range ids {
			logp = append(logp, float32(id))
		}
		results[i] = [][]float32{s.down(out.LogpR), s.down(out.EntR), s.down(out.LseR), logp}
	}
	for i := range results[0] {
		s.same(fmt.Sprintf("result %d", i), results[0][i], results[1][i])
	}

	// q, k and v in one block of memory: one product.
	const N, O, I, K = 5, 48, 64, 3
	block := s.put(compute.Q4, wholeBlocks(s.rng, compute.Q4, K*O*I))
	out := s.empty(compute.Narrow, N*K*O)
	x := s.put(compute.Narrow, s.whole(N*I))
	var ps []compute.Projection
	var apart []compute.Tensor
	for i := range K {
		w := &compute.Param{Name: "w", Rows: O, Cols: I, W: block.Slice(i*O*I, (i+1)*O*I)}
		ps = append(ps, compute.Projection{Y: out.Columns(K*O, i*O, (i+1)*O), W: w})
		apart = append(apart, s.empty(compute.Narrow, N*O))
		b.Linear(apart[i], x, w, nil, false)
	}
	before := b.launched
	b.Linears(ps, x)
	if n := b.launched - before; n != 1 {
		t.Errorf("three projections side by side are %d launches, want one", n)
	}
	all := s.down(out)
	for i := range K {
		one := s.down(apart[i])
		for n := range N {
			s.same(fmt.Sprintf("projection %d, row %d", i, n),
				all[n*K*O+i*O:][:O], one[n*O:][:O])
		}
	}
}

// Upload encodes on the device, to the bits of Class.Encode, also what meets its special cases; a
// row's product of few rows has the same bits in any batch.
func TestQuantBits(t *testing.T) {
	b := start(t, Options{})
	s := set(t, b)
	for class := range quantNames {
		x := oddBlocks(rand.New(rand.NewPCG(10, 11)), 500)
		w := s.put(class, x)
		s.same(fmt.Sprintf("%v", class), s.down(w), decodedBlocks(class, x))
		other := s.put(class, s.normal(len(x)))
		b.Copy(other.Slice(64, 640), w.Slice(32, 608))
		s.same(fmt.Sprintf("Copy of %v", class), s.down(other.Slice(64, 640)),
			decodedBlocks(class, x)[32:608])
		panics(t, "blocks", func() { b.Zero(w) })
		panics(t, "blocks", func() { b.Scale(w, 2) })
		panics(t, "whole blocks", func() { b.Upload(w.Slice(1, 33), x[:32]) })

		const N, O, I = 11, 70, 192
		p := &compute.Param{Name: "w", Rows: O, Cols: I, W: s.put(class, s.normal(O*I))}
		rows, all, one := s.put(compute.Narrow, s.normal(N*I)), s.empty(compute.Wide, N*O),
			s.empty(compute.Wide, O)
		b.Linear(all, rows, p, nil, false)
		b.Linear(one, rows.Slice(7*I, 8*I), p, nil, false)
		s.same(fmt.Sprintf("%v: a row alone", class), s.down(one), s.down(all)[7*O:8*O])
		values, xs, ys := s.down(p.W), s.down(rows), s.down(one)
		for o := range O {
			sum, size := 0.0, 0.0
			for i := range I {
				v := float64(bf16Value(bf16Bits(values[o*I+i]))) * float64(xs[7*I+i])
				sum, size = sum+v, size+math.Abs(v)
			}
			if math.Abs(sum-float64(ys[o])) > 1e-6*size {
				t.Errorf("%v: feature %d is %v, want %v", class, o, ys[o], sum)
				break
			}
		}
	}
}
