package computetest

import (
	"fmt"
	"slices"

	"gad/internal/compute"
)

// quantClasses returns the quantised classes that the backend has.
func (s *suite) quantClasses() (all []compute.Class) {
	for _, class := range []compute.Class{compute.Q8, compute.Q4} {
		if s.dev.Element(class) > 0 {
			all = append(all, class)
		}
	}
	return all
}

// roundTrip returns x as memory of a quantised class stores it.
func roundTrip(class compute.Class, x []float32) []float32 {
	x = slices.Clone(x)
	codes := make([]byte, class.CodeBytes())
	for lo := 0; lo < len(x); lo += compute.QuantBlock {
		class.Decode(x[lo:], codes, class.Encode(codes, x[lo:]))
	}
	return x
}

// quant: weights in blocks give the bits that Frozen ones with their values give, however they
// came there and whatever they were used for before; see sameUses.
func (s *suite) quant() {
	for _, class := range s.quantClasses() {
		s.zeroBlocks(class)
		for _, shape := range s.shapes([2]int{2, 32}, [2]int{37, 64}, [2]int{33, 96},
			[2]int{64, 544}, [2]int{130, 1088}, [2]int{1060, 32}) {
			O, I := shape[0], shape[1]
			if O*I > 5000 && s.dev.Name() == "ref" {
				continue // the reference has no tiles
			}
			host := s.normal(O * I)
			for i := range host { // scales that differ from row to row and from block to block
				host[i] *= float32(1+i/I%5) * float32(1+i/compute.QuantBlock%7)
			}
			clear(host[:compute.QuantBlock])
			what := "first"
			quant, frozen :=
				s.newOfClass(class, host, O, I), s.newOfClass(compute.Frozen, roundTrip(class, host), O, I)
			read := func() {
				s.t.Helper()
				want := roundTrip(class, host)
				s.equal(fmt.Sprintf("%v %v %s: Download", class, shape, what),
					download(s.t, s.dev, quant.W), want)
				for _, part := range [][2]int{{0, 1}, {I / 2, I/2 + 1}, {1, O*I - 1}, {I, 2 * I},
					{O*I/3 + 1, O*I - I/2}} {
					lo, hi := part[0], part[1]
					s.equal(fmt.Sprintf("%v %v %s: Download of [%d:%d]", class, shape, what, lo,
						hi), download(s.t, s.dev, quant.W.Slice(lo, hi)), want[lo:hi])
					dst := s.empty(compute.Wide, hi-lo)
					s.dev.Copy(dst, quant.W.Slice(lo, hi))
					s.equal(fmt.Sprintf("%v %v %s: Copy of [%d:%d]", class, shape, what, lo, hi),
						download(s.t, s.dev, dst), want[lo:hi])
					s.dev.Free(dst)
				}
			}
			read()
			s.sameUses(what, quant, frozen, false)
			what = "after products"
			read()
			if O > 130 {
				continue
			}

			// Some blocks are written again, from values that are blocks already; then all.
			what = "after Upload of a part"
			lo := O * I / 3 / compute.QuantBlock * compute.QuantBlock
			hi := lo + compute.QuantBlock*(1+O*I/100/compute.QuantBlock)
			again := roundTrip(class, host[:hi-lo])
			copy(host[lo:hi], again)
			s.dev.Upload(quant.W.Slice(lo, hi), again)
			s.dev.Upload(frozen.W.Slice(lo, hi), again)
			s.dev.Refresh(quant)
			s.dev.Refresh(frozen)
			read()
			s.sameUses(what, quant, frozen, false)
			what = "after Copy"
			slices.Reverse(host)
			from := s.wide(host)
			s.dev.Copy(quant.W, from)
			s.dev.Refresh(quant)
			s.dev.Upload(frozen.W, roundTrip(class, host))
			s.dev.Refresh(frozen)
			s.sameUses(what, quant, frozen, false)
			read()
			for _, t := range []compute.Tensor{quant.W, frozen.W, from} {
				s.dev.Free(t)
			}
		}
		s.quantTokens(class)
	}
}

// zeroBlocks: fresh memory is zeros, and the reference rounds to the same values.
func (s *suite) zeroBlocks(class compute.Class) {
	const n = 3 * compute.QuantBlock
	t, err := s.dev.Alloc("test", class, n)
	if err != nil {
		s.t.Fatal(err)
	}
	s.equal(fmt.Sprintf("fresh %v memory", class), download(s.t, s.dev, t), make([]float32, n))
	s.dev.Free(t)
	if s.ref != nil {
		host := s.normal(n)
		t, err := s.ref.Alloc("test", class, n)
		if err != nil {
			s.t.Fatal(err)
		}
		s.ref.Upload(t, host)
		s.equal(fmt.Sprintf("the reference's %v", class), download(s.t, s.ref, t),
			roundTrip(class, host))
		s.ref.Free(t)
	}
}

// quantTokens tests a number of tokens at which tasks pack their own rows of bfloat16, with a bias,
// added to the result's old values, and several projections at once.
func (s *suite) quantTokens(class compute.Class) {
	// the reference has no tasks, and what is Narrow is packed where it is bfloat16
	if s.Slow || s.Few && s.NarrowTol == 0 || s.dev.Name() == "ref" {
		return
	}
	const N, O, I = 2400, 45, 1120
	host := s.normal(O * I)
	x := s.narrow(slices.Repeat(s.normal(97*I), N/97+1)[:N*I])
	start, bias := s.normal(N*O), s.weights(s.normal(O), 1, O)
	var results [2][][]float32
	for i, w := range []*compute.Param{s.newOfClass(class, host, O, I),
		s.newOfClass(compute.Frozen, roundTrip(class, host), O, I)} {
		for _, n := range []int{5, N} {
			y, y1, sum := s.wide(start[:n*O]), s.empty(compute.Narrow, n*O), s.wide(start[:n*O])
			s.dev.Linear(y, x.Slice(0, n*I), w, bias, true)
			s.dev.Linears([]compute.Projection{{Y: y1, W: w, B: bias}}, x.Slice(0, n*I))
			s.dev.LinearAdd(sum, sum, x.Slice(0, n*I), w)
			for _, t := range []compute.Tensor{y, y1, sum} {
				results[i] = append(results[i], download(s.t, s.dev, t))
				s.dev.Free(t)
			}
		}
		s.dev.Free(w.W)
	}
	for i, name := range []string{"Linear", "Linears", "LinearAdd"} {
		if five := fmt.Sprintf("%v, 5 tokens: %s", class, name); s.QuantFew >= 5 {
			s.checkNear(five, results[0][i], results[1][i], s.loose(), 1)
		} else {
			s.equal(five, results[0][i], results[1][i])
		}
		s.equal(fmt.Sprintf("%v, %d tokens: %s", class, N, name), results[0][3+i], results[1][3+i])
	}
}
