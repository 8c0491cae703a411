package compute

import "fmt"

// Checks of an operation's arguments, the same on every backend. A wrong argument is a
// programmer's error: each check panics with the operation op and the argument's name.

// CheckLen panics unless t has n elements.
func CheckLen(op, name string, t Tensor, n int) {
	if t.Len() != n {
		panic(fmt.Sprintf("compute: %s: %s has %d elements, want %d", op, name, t.Len(), n))
	}
}

// CheckContiguous panics unless t is n contiguous elements.
func CheckContiguous(op, name string, t Tensor, n int) {
	if cols, row := t.Rows(); cols > 0 {
		panic(fmt.Sprintf("compute: %s: %s is columns, rows of %d elements that begin %d apart: want contiguous elements", op, name, cols, row))
	}
	CheckLen(op, name, t, n)
}

// CheckBlocks panics unless t, of a quantised class, is whole blocks.
func CheckBlocks(op, name string, t Tensor) {
	if t.Off()%QuantBlock != 0 || t.Len()%QuantBlock != 0 {
		panic(fmt.Sprintf("compute: %s: %s is %d elements from %d on: want whole blocks of %d", op,
			name, t.Len(), t.Off(), QuantBlock))
	}
}

// RowsOf returns the number of rows of width elements in t. It panics unless t is whole rows.
func RowsOf(op, name string, t Tensor, width int) int {
	if width <= 0 || t.Len()%width != 0 {
		panic(fmt.Sprintf("compute: %s: %s has %d elements, not rows of %d", op, name, t.Len(),
			width))
	}
	return t.Len() / width
}

// CheckIndices panics unless every index is at least 0 and below n. Assembly and kernels do
// not check.
func CheckIndices(op, name string, index []int32, n int) {
	for i, v := range index {
		if v < 0 || int(v) >= n {
			panic(fmt.Sprintf("compute: %s: %s[%d] is %d, of %d", op, name, i, v, n))
		}
	}
}

// CheckHead checks the arguments of LogProb and LogProbGrad, and returns N, the rows of h.
func CheckHead(op string, hND Tensor, w *Param, rows, targets []int32) (N int) {
	N = RowsOf(op, "h", hND, w.Cols)
	if len(targets) != len(rows) {
		panic(fmt.Sprintf("compute: %s: %d targets for %d rows", op, len(targets), len(rows)))
	}
	CheckIndices(op, "rows", rows, N)
	CheckIndices(op, "targets", targets, w.Vocab())
	return N
}

// CheckSample panics unless Sample has a log-probability and, if it draws, a uniform number
// for each id.
func CheckSample(ids []int32, logp []float32, s Sampling, u []float64) {
	if R := len(ids); len(logp) != R || s.Temperature > 0 && len(u) != R {
		panic(fmt.Sprintf("compute: Sample: %d ids, %d logp, %d u", R, len(logp), len(u)))
	}
}

// CheckGatedConv checks the arguments of a gated convolution of N rows, and returns D and J.
func CheckGatedConv(op string, N int, gN3D Tensor, w *Param) (D, J int) {
	if N == 0 {
		CheckLen(op, "g", gN3D, 0)
		return 0, 0
	}
	D = RowsOf(op, "g", gN3D, 3*N) // elements of a row of b, by the length of g
	if D == 0 || w.Len()%D != 0 {
		panic(fmt.Sprintf("compute: %s: w has %d elements, not rows of D = %d", op, w.Len(), D))
	}
	return D, w.Len() / D
}

// CheckSiLUConv checks the arguments of a convolution, and returns N, D and J; zeros for no tokens.
func CheckSiLUConv(op string, xND Tensor, w *Param, p Pack, st States) (N, D, J int) {
	if S := p.Segments(); S > 0 {
		N = int(p.Start[S])
	}
	p.Check(op, N)
	if N == 0 {
		CheckLen(op, "x", xND, 0)
		return 0, 0, 0
	}
	D = RowsOf(op, "x", xND, N) // elements of a row, by the length of x
	if D == 0 || w.Len() == 0 || w.Len()%D != 0 {
		panic(fmt.Sprintf("compute: %s: w has %d elements, not rows of D = %d", op, w.Len(), D))
	}
	J = w.Len() / D
	if J > 1 {
		st.Check(op, p, (J-1)*D)
	}
	return N, D, J
}

// CheckGatedDelta checks the arguments of a gated delta rule, and returns N. state is the elements
// of a slot.
func CheckGatedDelta(op string, xNC, aNH, bNH Tensor, A, dt *Param, s DeltaShape, p Pack,
	st States, state int) (N int) {
	if s.K <= 0 || s.H <= 0 || s.E <= 0 || s.F <= 0 || s.H%s.K != 0 {
		panic(fmt.Sprintf("compute: %s: %d value heads of %d, %d key heads of %d: want a multiple",
			op, s.H, s.F, s.K, s.E))
	}
	N = RowsOf(op, "x", xNC, s.Width())
	CheckLen(op, "a", aNH, N*s.H)
	CheckLen(op, "b", bNH, N*s.H)
	CheckLen(op, "A", A.W, s.H)
	CheckLen(op, "dt", dt.W, s.H)
	p.Check(op, N)
	st.Check(op, p, state)
	return N
}
