//go:build nvidia

package cuda

import "gad/internal/compute"

// Weights in blocks of 8 and 4 bits (kernels/quant.cu). A product of few rows makes them bfloat16
// in registers. For other products, and for the gradient of a product's input, the matrix is made
// Narrow in memory that all such products share: the device runs them in order, so each has read
// the weights before the next one's are written. Both ways multiply the values of the codes,
// rounded to Narrow; they add them in another order.

// expand returns the quantised weights w as Narrow ones, until the next call.
func (b *Backend) expand(w view) view {
	d := view{p: b.room(&b.scratched.unpacked, "unpacked weights", int64(w.n)*b.narrow.size()),
		t: b.narrow, n: w.n}
	b.cast(d, w)
	return d
}

// multiplyFew queues multiply with quantised weights if rows are so few that they are not unpacked;
// it reports whether it did.
func (b *Backend) multiplyFew(op string, c, a, w matrix, alpha float32, acc bool,
	bias []*compute.Param) bool {
	M, K := a.shape()
	_, N := w.shape()
	if b.narrow != bf16 || M > b.few || a.turned || !w.turned || a.ld != K || !aligned(a.p) {
		return false
	}
	add := c.from
	if acc && add == 0 {
		add = c.p
	}
	parts := fewParts(N)
	b.launch(b.k.quant.few[w.t-q8][c.t],
		grid{blocks(N, fewFeatures*fewWarps/parts), blocks(M, fewRows), 1, 32 * fewWarps,
			4 * fewWarps * fewStride * 8 * blocks(min(M, fewRows), 8)},
		at(c.p), whole(c.ld), at(a.p), at(w.p), at(w.lo), whole(w.first), at(add),
		at(b.biases(op, bias, f32).p), whole(M), whole(N), whole(K), whole(parts), real(alpha))
	return true
}

// noBlocks panics if t's elements have a scale beside them, which op does not know.
func noBlocks(op, name string, v view) {
	if v.t.quantised() {
		panic("cuda: " + op + ": " + name + " is in " + v.t.String() +
			", whose blocks only Upload and Copy write")
	}
}

// fewParts returns how many warps share a sum of such a product: as few as give blocks for two on
// each multiprocessor (dkvBlocks). It depends on the number of features alone.
func fewParts(features int) int {
	parts := 1
	for parts < fewWarps && blocks(features, fewFeatures*fewWarps/parts) < dkvBlocks {
		parts *= 2
	}
	return parts
}
