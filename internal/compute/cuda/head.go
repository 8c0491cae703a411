//go:build nvidia

package cuda

import (
	"fmt"

	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
)

// The head's logits are never kept whole: LogProb and LogProbGrad take some rows
// and a chunk of the vocabulary at a time, within the backend's limits. A row's
// statistics are taken over tiles of the vocabulary that do not depend on the
// chunks, by the same kernels in Sample.

// headWork is the scratch of one call: normed rows, logits, statistics, and in
// the gradient the logits' and the rows' gradients.
type headWork struct {
	chunks
	h, z, part, dz, dh driver.Ptr
	tiles              int
	cap                float32 // soft cap of the logits; 0: none
}

func (b *Backend) headWork(c chunks, D, V int, grad bool) headWork {
	place := b.scratch(c.bytes(D, V, b.narrow.size(), grad)...)
	w := headWork{chunks: c, h: place[0], z: place[1], part: place[2], dz: place[3], dh: place[4],
		tiles: blocks(V, headTile)}
	if b.narrow == f32 {
		w.dz = w.z // in place
	}
	return w
}

// logits queues z = invTemp*h·W, under the head's soft cap if it has one, for n rows and the
// columns lo to hi-1.
func (b *Backend) logits(op string, k headWork, h driver.Ptr, W view, n, D, lo, hi int,
	invTemp float32) {
	if W.t.quantised() && n > b.few && hi-lo > unpackedVocab { // not all are unpacked at once
		for ; lo < hi; lo += unpackedVocab {
			b.logits(op, k, h, W, n, D, lo, min(hi, lo+unpackedVocab), invTemp)
			k.z += 4 * unpackedVocab
		}
		return
	}
	cols := hi - lo
	z := matrix{view{p: k.z, t: f32, n: n * k.ld}, n, cols, k.ld, false, 0}
	part := dense(W.slice(lo*D, cols*D), cols, D)
	alpha := invTemp
	if k.cap > 0 {
		alpha = 1
	}
	b.multiply(op, z, dense(view{p: h, t: b.narrow, n: n * D}, n, D), part.transpose(), alpha,
		false, nil)
	if k.cap > 0 {
		b.launch(b.k.headCap, grid{n, blocks(cols, 4096), 1, 256, 0}, at(k.z), whole(cols),
			whole(k.ld), real(invTemp), real(k.cap))
	}
}

// stats queues the statistics of the n rows' logits of the columns lo to hi-1, by one of two
// kernels.
func (b *Backend) stats(kernel *driver.Kernel, k headWork, logp, target driver.Ptr, n, lo, hi int) {
	b.launch(kernel, grid{n, blocks(hi-lo, headTile), 1, 128, 128},
		at(k.part), at(logp), at(k.z), at(target), whole(hi-lo), whole(k.ld), whole(lo),
		whole(k.tiles))
}

// finish queues the join of n rows' statistics.
func (b *Backend) finish(k headWork, logp, ent, lse driver.Ptr, n int) {
	b.launch(b.k.headFinish, grid{blocks(n, 8), 1, 1, 256, 0}, at(logp), at(ent), at(lse),
		at(k.part), whole(k.tiles), whole(n))
}

// gather queues the copy of the rows that rows, on the device, selects.
func (b *Backend) gather(dst driver.Ptr, src view, rows driver.Ptr, R, D int) {
	b.launch(b.k.gather[src.t], b.eachRow(R, D), at(dst), at(src.p), at(rows), whole(R), whole(D))
}

// headRows checks the arguments of the head's operations.
func (b *Backend) headRows(op string, w *compute.Param, hND compute.Tensor, rows,
	targets []int32) (h view) {
	N := compute.CheckHead(op, hND, w, rows, targets)
	return b.narrowView(op, "h", hND, N*w.Cols)
}

// LogProb computes the language-model head's log-probabilities and entropies.
func (b *Backend) LogProb(out compute.HeadOut, hND compute.Tensor, w *compute.Param, rows,
	targets []int32, invTemp float64) {
	const op = "LogProb"
	D, V, R := w.Cols, w.Vocab(), len(rows)
	h := b.headRows(op, w, hND, rows, targets)
	logp, ent, lse :=
		wide(op, "logp", out.LogpR, R), wide(op, "ent", out.EntR, R), wide(op, "lse", out.LseR, R)
	if R == 0 {
		return
	}
	defer b.enter()()
	W := b.weights(op, w, b.narrow)
	k := b.headWork(b.head.stats.chunks(R, V).limitColumns(W.t), D, V, false)
	k.cap = float32(w.Cap)
	row, target := index(b, "rows", rows), index(b, "targets", targets)
	for r := 0; r < R; r += k.rows {
		n, skip := min(k.rows, R-r), driver.Ptr(4*r)
		b.gather(k.h, h, row+skip, n, D)
		for lo := 0; lo < V; lo += k.cols {
			hi := min(V, lo+k.cols)
			b.logits(op, k, k.h, W, n, D, lo, hi, float32(invTemp))
			b.stats(b.k.headStats, k, logp.from(r), target+skip, n, lo, hi)
		}
		b.finish(k, logp.from(r), ent.from(r), lse.from(r), n)
	}
}

// LogProbGrad computes the gradient of LogProb.
func (b *Backend) LogProbGrad(dhND compute.Tensor, w *compute.Param, out compute.HeadOut, dlogpR,
	dentR, hND compute.Tensor, rows, targets []int32, invTemp float64) {
	const op = "LogProbGrad"
	D, V, R := w.Cols, w.Vocab(), len(rows)
	h := b.headRows(op, w, hND, rows, targets)
	ent, lse, dlogp :=
		wide(op, "ent", out.EntR, R), wide(op, "lse", out.LseR, R), wide(op, "dlogp", dlogpR, R)
	var dent, dh, g view
	if !dentR.Absent() {
		dent = wide(op, "dent", dentR, R)
	}
	if !dhND.Absent() {
		dh = b.narrowView(op, "dh", dhND, h.n)
	}
	if !w.G.Absent() {
		g = wide(op, "G", w.G, w.Len())
	}
	if R == 0 || dh.n+g.n == 0 {
		return
	}
	defer b.enter()()
	W, inv := b.weights(op, w, b.narrow), float32(invTemp)
	k := b.headWork(b.head.grad.chunks(R, V).limitColumns(W.t), D, V, true)
	k.cap = float32(w.Cap)
	row, target := index(b, "rows", rows), index(b, "targets", targets)
	for r := 0; r < R; r += k.rows {
		n, skip := min(k.rows, R-r), driver.Ptr(4*r)
		b.gather(k.h, h, row+skip, n, D)
		hRD, dhRD :=
			dense(view{p: k.h, t: b.narrow, n: n * D}, n, D),
			dense(view{p: k.dh, t: f32, n: n * D}, n, D)
		for lo := 0; lo < V; lo += k.cols {
			hi := min(V, lo+k.cols)
			cols := hi - lo
			b.logits(op, k, k.h, W, n, D, lo, hi, inv)
			var dentAt driver.Ptr
			if dent.n > 0 {
				dentAt = dent.from(r)
			}
			b.launch(b.k.headGrad[b.narrow], grid{n, blocks(cols, 4096), 1, 256, 0}, at(k.dz),
				at(k.z), at(lse.from(r)), at(ent.from(r)),
				at(dlogp.from(r)), at(dentAt), at(target+skip), whole(cols), whole(k.ld),
				whole(k.ld), whole(lo), real(k.cap*inv))
			dz := matrix{view{p: k.dz, t: b.narrow, n: n * k.ld}, n, cols, k.ld, false, 0}
			if dh.n > 0 {
				b.multiply(op, dhRD, dz, dense(W.slice(lo*D, cols*D), cols, D), inv, lo > 0, nil)
			}
			if g.n > 0 {
				b.multiply(op, dense(g.slice(lo*D, cols*D), cols, D), dz.transpose(), hRD, inv,
					true, nil)
			}
		}
		if dh.n > 0 {
			b.launch(b.k.scatterAdd[dh.t], b.eachRow(n, D), at(dh.p), at(k.dh), at(row+skip),
				whole(n), whole(D))
		}
	}
}

// maxSampled is the size of vocabulary from which on a row's probabilities, as
// multiples of 2^-44, might overflow when they are added (kernels/sample.cu).
const maxSampled = 1 << 20

// Sample draws one token a row, from whole rows of logits.
func (b *Backend) Sample(ids []int32, logp []float32, hRD compute.Tensor, w *compute.Param,
	s compute.Sampling, u []float64) {
	const op = "Sample"
	b.outside(op)
	D, V, R := w.Cols, w.Vocab(), len(ids)
	h := b.narrowView(op, "h", hRD, R*D)
	compute.CheckSample(ids, logp, s, u)
	if V >= maxSampled {
		panic(
			fmt.Sprintf(
				"cuda: Sample: a vocabulary of %d tokens: the kernel's sums hold less than %d", V,
				maxSampled))
	}
	if R == 0 {
		return
	}
	defer b.enter()()
	invTemp, greedy := 1.0, s.Temperature == 0
	var draws driver.Ptr
	if !greedy {
		invTemp, draws = 1/s.Temperature, index(b, "u", u)
	}
	W := b.weights(op, w, b.narrow)
	c := b.head.sample.whole(R, V)
	place := b.scratch(append(c.bytes(0, V, b.narrow.size(), false), int64(8*R))...)
	k := headWork{chunks: c, z: place[1], part: place[2], tiles: blocks(V, headTile),
		cap: float32(w.Cap)}
	id, lp := place[5], place[5]+driver.Ptr(4*R)
	for r := 0; r < R; r += k.rows {
		n := min(k.rows, R-r)
		b.logits(op, k, h.from(r*D), W, n, D, 0, V, float32(invTemp))
		skip := driver.Ptr(4 * r)
		kernel, size := b.k.draw, grid{n, 1, 1, 128, 256}
		args := []uint64{at(id + skip), at(lp + skip), at(k.z), at(k.part), at(draws + 2*skip),
			whole(V), whole(k.ld), whole(k.tiles), flag(greedy)}
		if b.surveys || filters(s, V) {
			b.stats(b.k.headStats, k, 0, 0, n, 0, V)
			kernel, size = b.k.sample, grid{n, 1, 1, 1024, 24848}
			args = append(args, whole(s.TopK), double(s.TopP), double(s.MinP))
		} else {
			b.stats(b.k.headMasses, k, 0, 0, n, 0, V)
		}
		b.launch(kernel, size, args...)
		b.finish(k, lp+skip, 0, 0, n)
	}
	both := make([]int32, 2*R)
	if b.readBack(bytesOf(both), id, func() { b.graph.compareAhead(b) }) {
		copy(ids, both)
		copy(bytesOf(logp), bytesOf(both[R:]))
	}
}

// Score computes the value head's scores.
func (b *Backend) Score(sR, hND compute.Tensor, w *compute.Param, rows []int32) {
	const op = "Score"
	D, R := w.Cols, len(rows)
	N := compute.RowsOf(op, "h", hND, D)
	s, h := wide(op, "s", sR, R), b.narrowView(op, "h", hND, N*D)
	compute.CheckIndices(op, "rows", rows, N)
	if R == 0 {
		return
	}
	defer b.enter()()
	W := b.weights(op, w, f32)
	b.launch(b.k.score[h.t], grid{blocks(R, 8), 1, 1, 256, 0}, at(s.p), at(h.p), at(W.p),
		at(index(b, "rows", rows)), whole(R), whole(D))
}

// ScoreGrad computes the gradient of Score.
func (b *Backend) ScoreGrad(dhND compute.Tensor, w *compute.Param, dsR, hND compute.Tensor,
	rows []int32) {
	const op = "ScoreGrad"
	D, R := w.Cols, len(rows)
	N := compute.RowsOf(op, "h", hND, D)
	ds, h := wide(op, "ds", dsR, R), b.narrowView(op, "h", hND, N*D)
	compute.CheckIndices(op, "rows", rows, N)
	if R == 0 {
		return
	}
	defer b.enter()()
	row := index(b, "rows", rows)
	if !dhND.Absent() {
		dh, W := b.narrowView(op, "dh", dhND, N*D), b.weights(op, w, f32)
		b.launch(b.k.scoreGrad[dh.t], grid{R, 1, 1, 256, 0}, at(dh.p), at(ds.p), at(W.p), at(row),
			whole(D))
	}
	if !w.G.Absent() {
		g, each := wide(op, "G", w.G, D), sumRows(R, D)
		parts := blocks(R, each)
		part := b.scratch(partialBytes(R, D))[0]
		b.launch(b.k.scoreWGrad[h.t], grid{blocks(D, 256), parts, 1, 256, 0},
			at(part), at(ds.p), at(h.p), at(row), whole(R), whole(D), whole(each))
		b.addPartials(g, part, parts, D)
	}
}
