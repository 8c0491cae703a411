package cpu

import (
	"math"
	"slices"

	"gad/internal/compute"
)

// The head's logits are never kept whole: LogProb and LogProbGrad take the
// vocabulary in chunks and the rows in blocks. A row's statistics are taken
// chunk by chunk, by the same kernels in Sample.
const (
	vocabChunk = 1024
	headRows   = 512     // rows that LogProbGrad takes at a time: 2 MiB of logits
	sampleSize = 1 << 22 // logits that Sample keeps at a time: 16 MiB
	statRows   = 1 << 12 // rows that LogProb takes at a time
)

// stat is what one chunk of one row's logits leaves: the largest, and with
// e_v = exp(z_v - most) the sums of e_v and of e_v*(z_v - most).
type stat struct{ most, sum, mean float32 }

// chunkStat caps and scales the logits of a chunk, in place, and takes their statistics.
func (b *Backend) chunkStat(zV []float32, invTemp float32) stat {
	if b.head.limit > 0 {
		compute.SoftCap(zV, 1, b.head.limit)
	}
	most := b.k.scaleMax(zV, invTemp)
	sum, mean := b.k.expStats(zV, most)
	return stat{most, sum, mean}
}

// fold joins the chunks of a row: the log of the sum of exponentials, and the entropy.
func fold(chunks []stat) (lse, ent float64) {
	most := math.Inf(-1)
	for _, c := range chunks {
		most = max(most, float64(c.most))
	}
	sum, mean := 0.0, 0.0
	for _, c := range chunks {
		d := float64(c.most) - most
		f := math.Exp(d)
		sum += float64(f * float64(c.sum))
		mean += float64(f * (float64(c.mean) + float64(d*float64(c.sum))))
	}
	return most + math.Log(sum), math.Log(sum) - mean/sum
}

// gather copies the rows of h that rows selects to dst.
func gather(dst, h []float32, rows []int32, D int) {
	for r, n := range rows {
		copy(dst[r*D:r*D+D], h[int(n)*D:])
	}
}

// again reports whether row i is the one before it once more.
func again(rows []int32, i int) bool { return i > 0 && rows[i] == rows[i-1] }

// headArgs is what the tasks of the head's operations read.
type headArgs struct {
	out            struct{ logp, ent, lse []float32 }
	dlogp, dent    []float32
	targets        []int32
	hRD, z         []float32 // some rows of h, and their logits
	columns        []float32 // W's, packed
	quant          *frozen   // or W, quantised
	outputs        int       // of W
	h16, w16       packing   // both, in bfloat16
	r0, n          int       // the first of them, and how many
	V, D, chunks   int       // of the vocabulary: tokens, elements of a row, chunks
	blocks, height int       // of rows: how many, of how many rows
	v0, cols       int       // a chunk
	ld             int       // elements between Sample's rows of logits
	inv            float32
	limit          float64 // soft cap of the logits; 0: none

	ids      []int32 // Sample's arguments
	logp     []float32
	u        []float64
	sampling compute.Sampling
}

// logits packs h's first n rows, where they are packed, for logitsOf.
func (b *Backend) logits(hRD []float32, n int, w *compute.Param) {
	a := &b.head
	a.hRD, a.D = hRD, w.Cols
	if b.k16 != nil {
		a.h16, a.w16 = b.operandA(&b.a16, hRD, a.D, n, a.D, false), b.weightRows(w)
		b.pack(a.h16)
		return
	}
	if a.quant = b.quantised(w); a.quant != nil {
		return
	}
	a.columns, a.outputs = b.columns(w), w.Rows
}

// logitsOf returns the product of h's rows lo to hi-1 with W's v0 to v1-1, as [hi-lo, v1-v0], in p
// or in p16.
func (b *Backend) logitsOf(p *product, p16 *product16, lo, hi, v0, v1 int,
	z []float32) multiplication {
	a, D := &b.head, b.head.D
	if b.k16 != nil {
		return p16.of(a.h16.lanes(b.k16, lo, hi), a.w16.lanes(b.k16, v0, v1), z, v1-v0, false)
	}
	*p = product{m: hi - lo, n: v1 - v0, k: D, a: a.hRD[lo*D:], rs: D, cs: 1, c: z, ldc: v1 - v0,
		quant: a.quant, first: v0 / b.k.nr}
	if a.quant != nil {
		return p
	}
	return p.weights(b.k, a.columns[v0*D:], a.outputs)
}

// headOf checks the arguments of the head's operations.
func headOf(op string, w *compute.Param, hND compute.Tensor, rows, targets []int32) (h []float32) {
	N := compute.CheckHead(op, hND, w, rows, targets)
	return f32(op, "h", hND, N*w.Cols)
}

// LogProb computes the language-model head's log-probabilities and entropies.
func (b *Backend) LogProb(out compute.HeadOut, hND compute.Tensor, w *compute.Param, rows,
	targets []int32, invTemp float64) {
	D, V, R := w.Cols, w.Vocab(), len(rows)
	h := headOf("LogProb", w, hND, rows, targets)
	a := &b.head
	a.out.logp, a.out.ent, a.out.lse =
		f32("LogProb", "logp", out.LogpR, R), f32("LogProb", "ent", out.EntR, R),
		f32("LogProb", "lse", out.LseR, R)
	a.targets, a.inv, a.V, a.limit = targets, float32(invTemp), V, w.Cap
	a.chunks, a.height = (V+vocabChunk-1)/vocabChunk, 4*b.k.mr
	if b.k16 != nil {
		a.height = 4 * b.k16.mr
	}
	for r0 := 0; r0 < R; r0 += statRows {
		n := min(statRows, R-r0)
		hRD := b.grow(&b.hRD, n*D)
		gather(hRD, h, rows[r0:r0+n], D)
		b.logits(hRD, n, w)
		b.stats = slices.Grow(b.stats[:0], n*a.chunks)[:n*a.chunks]
		a.r0, a.n, a.blocks = r0, n, (n+a.height-1)/a.height
		b.room(min(a.height, n) * min(vocabChunk, V))
		b.run(a.blocks*a.chunks, func(b *Backend, wk *worker, t int) {
			a := &b.head
			lo, c := t%a.blocks*a.height, t/a.blocks
			M, v0 := min(a.height, a.n-lo), c*vocabChunk
			cols := min(vocabChunk, a.V-v0)
			z := wk.buf[0][:M*cols]
			b.logitsOf(&wk.p, &wk.p16, lo, lo+M, v0, v0+cols, z).whole(b, wk)
			for i := range M {
				row := z[i*cols : (i+1)*cols]
				b.stats[(lo+i)*a.chunks+c] = b.chunkStat(row, a.inv)
				if target := int(a.targets[a.r0+lo+i]) - v0; target >= 0 && target < cols {
					a.out.logp[a.r0+lo+i] = row[target] // the logit, until all chunks are known
				}
			}
		})
		for i := range n {
			l, e := fold(b.stats[i*a.chunks : (i+1)*a.chunks])
			o, r := &a.out, r0+i
			o.logp[r], o.ent[r], o.lse[r] = float32(float64(o.logp[r])-l), float32(e), float32(l)
		}
	}
}

// LogProbGrad computes the gradient of LogProb.
func (b *Backend) LogProbGrad(dhND compute.Tensor, w *compute.Param, out compute.HeadOut, dlogpR,
	dentR, hND compute.Tensor, rows, targets []int32, invTemp float64) {
	const op = "LogProbGrad"
	D, V, R := w.Cols, w.Vocab(), len(rows)
	h := headOf(op, w, hND, rows, targets)
	dh, g := opt(op, "dh", dhND, len(h)), opt(op, "G", w.G, w.Len())
	a := &b.head
	a.out.ent, a.out.lse = f32(op, "ent", out.EntR, R), f32(op, "lse", out.LseR, R)
	a.dlogp, a.dent = f32(op, "dlogp", dlogpR, R), opt(op, "dent", dentR, R)
	a.targets, a.inv, a.limit = targets, float32(invTemp), w.Cap
	for r0 := 0; r0 < R; r0 += headRows {
		n := min(headRows, R-r0)
		hRD, dhRD, z :=
			b.grow(&b.hRD, n*D), b.grow(&b.dhRD, n*D), b.grow(&b.zRV, n*min(V, vocabChunk))
		gather(hRD, h, rows[r0:r0+n], D)
		if dh != nil {
			// of equal rows the first goes on from dh, and the others are added to it
			for i := range n {
				if row := dhRD[i*D : (i+1)*D]; again(rows, r0+i) {
					clear(row)
				} else {
					copy(row, dh[int(rows[r0+i])*D:])
				}
			}
		}
		a.r0, a.z = r0, z
		b.logits(hRD, n, w)
		var hDown packing
		var hPanels []float32
		switch {
		case g == nil:
		case b.k16 != nil:
			hDown = b.operandB(&b.b16, hRD, D, D, n, true)
			b.pack(hDown)
		default:
			hPanels = b.packedPart(&b.packed, hRD, D, n, D)
		}
		for v0 := 0; v0 < V; v0 += vocabChunk {
			cols := min(vocabChunk, V-v0)
			a.v0, a.cols = v0, cols
			b.multiply(b.logitsOf(&b.products[0], &b.products16[0], 0, n, v0, v0+cols, z))
			b.eachRow(n, cols, func(b *Backend, lo, hi int) {
				a := &b.head
				var capped []float32
				for i := lo; i < hi; i++ {
					row, r := a.z[i*a.cols:(i+1)*a.cols], a.r0+i
					if a.limit > 0 {
						compute.SoftCap(row, 1, a.limit)
						capped = append(capped[:0], row...)
					}
					b.k.scale(row, a.inv)
					alpha, beta := -a.dlogp[r], float32(0)
					if a.dent != nil {
						alpha, beta = alpha-float32(a.dent[r]*a.out.ent[r]), -a.dent[r]
					}
					b.k.headGrad(row, a.out.lse[r], a.inv*alpha, a.inv*beta)
					if target := int(a.targets[r]) - a.v0; target >= 0 && target < a.cols {
						row[target] += float32(a.inv * a.dlogp[r])
					}
					if a.limit > 0 {
						compute.SoftCapGrad(row, capped, a.limit)
					}
				}
			})
			ps := make([]multiplication, 0, 2)
			if b.k16 != nil {
				ps = b.headGrad16(ps, z, dhRD, g, n, cols, v0, w, hDown, dh != nil)
			} else {
				if dh != nil {
					p := &b.products[0]
					*p = product{m: n, n: D, k: cols, a: z, rs: cols, cs: 1, c: dhRD, ldc: D,
						acc: true}
					ps = append(ps, p.panels(b.k,
						b.weightPart(frozenOf(op, w), w, v0, v0+cols, 0, D), cols))
				}
				if g != nil {
					p := &b.products[1]
					*p = product{m: cols, n: D, k: n, a: z, rs: 1, cs: cols, c: g[v0*D:], ldc: D,
						acc: true}
					ps = append(ps, p.panels(b.k, hPanels, n))
				}
			}
			b.multiply(ps...)
		}
		if dh != nil {
			for i := range n {
				r := int(rows[r0+i])
				if row := dhRD[i*D : (i+1)*D]; again(rows, r0+i) {
					b.k.add(dh[r*D:(r+1)*D], row)
				} else {
					copy(dh[r*D:(r+1)*D], row)
				}
			}
		}
	}
}

// Sample draws one token a row. TopP is a share of the probability left by TopK; of equally
// probable tokens the lower id counts as the more probable.
func (b *Backend) Sample(ids []int32, logp []float32, hRD compute.Tensor, w *compute.Param,
	s compute.Sampling, u []float64) {
	D, V, R := w.Cols, w.Vocab(), len(ids)
	h := f32("Sample", "h", hRD, R*D)
	compute.CheckSample(ids, logp, s, u)
	invTemp := 1.0
	if s.Temperature > 0 {
		invTemp = 1 / s.Temperature
	}
	ld := w.Rows
	group := max(1, sampleSize/ld)
	if s.Temperature > 0 {
		b.room(drawRows * V)
		for w := range b.workers {
			b.workers[w].marks = slices.Grow(b.workers[w].marks[:0], (V+markEvery-1)/markEvery+1)
		}
	}
	if s.TopK > 0 || s.TopP > 0 || s.MinP > 0 {
		for w := range b.workers {
			b.workers[w].kept, b.workers[w].heap =
				slices.Grow(b.workers[w].kept, V), slices.Grow(b.workers[w].heap, V)
		}
	}
	for r0 := 0; r0 < R; r0 += group {
		n := min(group, R-r0)
		z := b.grow(&b.zRV, n*ld)
		b.forward(h[r0*D:(r0+n)*D], n, D, b.linear(0, z, h[r0*D:(r0+n)*D], n, w, nil, false))
		a := &b.head
		a.ids, a.logp, a.u, a.sampling, a.inv = ids, logp, u, s, float32(invTemp)
		a.limit = w.Cap
		a.r0, a.z, a.V, a.ld, a.chunks = r0, z, V, ld, (V+vocabChunk-1)/vocabChunk
		b.stats = slices.Grow(b.stats[:0], n*a.chunks)[:n*a.chunks]
		a.n, a.height = n, min(drawRows, max(1, n/(2*b.pool.workers)))
		b.run((n+a.height-1)/a.height, (*Backend).sampleTask)
	}
}

// sampleTask draws the tokens of some rows.
func (b *Backend) sampleTask(wk *worker, t int) {
	a := &b.head
	V, lo, hi := a.V, t*a.height, min(a.n, (t+1)*a.height)
	ids, prob := a.ids[a.r0+lo:a.r0+hi], wk.buf[0]
	var lse [drawRows]float64
	for i := range ids {
		row := a.z[(lo+i)*a.ld:][:V]
		chunks := b.stats[(lo+i)*a.chunks : (lo+i+1)*a.chunks]
		for c := range chunks {
			chunks[c] = b.chunkStat(row[c*vocabChunk:min(V, (c+1)*vocabChunk)], a.inv)
		}
		lse[i], _ = fold(chunks)
		if a.sampling.Temperature == 0 {
			ids[i] = largest(row)
			continue
		}
		copy(prob[i*V:(i+1)*V], row)
		b.k.expSum(prob[i*V:(i+1)*V], float32(lse[i]))
	}
	switch s, u := a.sampling, a.u; {
	case s.Temperature == 0:
	case s.TopK > 0 || s.TopP > 0 || s.MinP > 0:
		for i := range ids {
			ids[i] = wk.draw(prob[i*V:(i+1)*V], s, u[a.r0+lo+i])
		}
	default:
		wk.pick(ids, prob, V, u[a.r0+lo:a.r0+hi])
	}
	for i, id := range ids {
		a.logp[a.r0+lo+i] = float32(float64(a.z[(lo+i)*a.ld+int(id)]) - lse[i])
	}
}

const (
	// drawRows is how many rows a task of Sample has at most: an addition waits for the
	// one before it, and four rows' additions do not wait for one another.
	drawRows = 4
	// markEvery is after how many tokens pick keeps the sums so far.
	markEvery = 256
)

// pick makes ids[i] the first token at which the cumulative probability of row i, of V
// tokens, exceeds u[i] times the row's total. Sums are taken over ascending tokens.
func (w *worker) pick(ids []int32, prob []float32, V int, u []float64) {
	var p [drawRows][]float32
	for i := range p {
		row := min(i, len(ids)-1)
		p[i] = prob[row*V : (row+1)*V]
	}
	var s0, s1, s2, s3 float64
	w.marks = w.marks[:0]
	for v := 0; v < V; v += markEvery {
		w.marks = append(w.marks, [drawRows]float64{s0, s1, s2, s3})
		end := min(V, v+markEvery)
		p1, p2, p3 := p[1][v:end], p[2][v:end], p[3][v:end]
		for j, x := range p[0][v:end] {
			s0 += float64(x)
			s1 += float64(p1[j])
			s2 += float64(p2[j])
			s3 += float64(p3[j])
		}
	}
	w.marks = append(w.marks, [drawRows]float64{s0, s1, s2, s3})
	for i := range ids {
		last := len(w.marks) - 1
		need, at := u[i]*w.marks[last][i], 0
		for at < last && !(w.marks[at+1][i] > need) {
			at++
		}
		ids[i] = int32(V - 1)
		if at == last {
			continue
		}
		sum := w.marks[at][i]
		for v := at * markEvery; v < V; v++ {
			if sum += float64(p[i][v]); sum > need {
				ids[i] = int32(v)
				break
			}
		}
	}
}

// largest returns the index of the largest element, the first of equal ones.
func largest(x []float32) int32 {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}

// draw returns the token that u picks from probabilities after the filters of s.
func (w *worker) draw(prob []float32, s compute.Sampling, u float64) int32 {
	V := len(prob)
	kept := w.kept[:0] // none stands for all
	topK, topP := s.TopK > 0 && s.TopK < V, s.TopP > 0 && s.TopP < 1
	if topK || topP {
		order := newRanking(prob, w.heap[:V])
		if topK {
			for range s.TopK {
				kept = append(kept, order.next())
			}
		}
		if topP {
			need := s.TopP * total(prob, kept)
			sum, n := 0.0, 0
			for ; sum < need && n < V; n++ {
				if !topK {
					kept = append(kept, order.next())
				} else if n == len(kept) {
					break
				}
				sum += float64(prob[kept[n]])
			}
			kept = kept[:n]
		}
	}
	if s.MinP > 0 {
		if len(kept) == 0 {
			least := s.MinP * float64(prob[largest(prob)])
			for v, p := range prob {
				if float64(p) >= least {
					kept = append(kept, int32(v))
				}
			}
		} else {
			least := s.MinP * float64(prob[kept[0]])
			kept = slices.DeleteFunc(kept, func(v int32) bool { return float64(prob[v]) < least })
		}
	}
	slices.Sort(kept)
	need, sum, last := u*total(prob, kept), 0.0, int32(V-1)
	if len(kept) == 0 {
		for v, p := range prob {
			if sum += float64(p); sum > need {
				return int32(v)
			}
		}
		return last
	}
	for _, last = range kept {
		if sum += float64(prob[last]); sum > need {
			break
		}
	}
	return last
}

// total returns the sum of the probabilities of the tokens in kept, or of all tokens if kept is
// empty.
func total(prob []float32, kept []int32) (sum float64) {
	if len(kept) == 0 {
		for _, p := range prob {
			sum += float64(p)
		}
	}
	for _, v := range kept {
		sum += float64(prob[v])
	}
	return sum
}

// ranking hands out tokens from the most probable down, the lower id first
// among equals: a heap, because few are asked for.
type ranking struct {
	prob []float32
	heap []int32
}

func newRanking(prob []float32, heap []int32) ranking {
	r := ranking{prob, heap}
	for v := range r.heap {
		r.heap[v] = int32(v)
	}
	for i := len(r.heap)/2 - 1; i >= 0; i-- {
		r.sink(i)
	}
	return r
}

func (r *ranking) before(x, y int32) bool {
	if r.prob[x] != r.prob[y] {
		return r.prob[x] > r.prob[y]
	}
	return x < y
}

func (r *ranking) sink(i int) {
	for {
		c := 2*i + 1
		if c >= len(r.heap) {
			return
		}
		if c+1 < len(r.heap) && r.before(r.heap[c+1], r.heap[c]) {
			c++
		}
		if !r.before(r.heap[c], r.heap[i]) {
			return
		}
		r.heap[i], r.heap[c] = r.heap[c], r.heap[i]
		i = c
	}
}

func (r *ranking) next() int32 {
	v, last := r.heap[0], len(r.heap)-1
	r.heap[0] = r.heap[last]
	r.heap = r.heap[:last]
	r.sink(0)
	return v
}
