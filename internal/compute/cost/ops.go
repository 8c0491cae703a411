package cost

import (
	"maps"
	"slices"

	"gad/internal/compute"
	"gad/internal/compute/cuda"
)

// This file is the table of operations: the commands that the engine queues for each (ops.go,
// products.go, head.go, attention.go and memory.go of package cuda), and what each command
// reads and writes. TestCUDAModelOfCost of package model compares them with the engine's.

const narrow, wide = 2.0, 4.0 // bytes of an element

// elements give the minimum of an operation. What the engine's commands take in addition, such as
// norms' statistics, parts of sums and logits, is counted here.
var elements = compute.Elements{Narrow: narrow, Wide: wide, Weight: narrow}

// Zero: one command for each plane.
func (b *Backend) Zero(t compute.Tensor) {
	b.begin("Zero")
	if class(t)&compute.Host != 0 {
		b.wait()
		return
	}
	for range planes(t) {
		b.copies(b.bytes(t) / float64(planes(t)))
	}
}

// Copy: one command for each plane, or a kernel that rounds.
func (b *Backend) Copy(dst, src compute.Tensor) {
	b.begin("Copy")
	if b.size(dst) != b.size(src) {
		b.moves(b.bytes(src) + b.bytes(dst))
		return
	}
	for range planes(src) {
		b.copies(2 * b.bytes(src) / float64(planes(src)))
	}
}

// Add reads both and writes one.
func (b *Backend) Add(y, x compute.Tensor) {
	b.begin("Add")
	b.moves(3 * b.bytes(x))
}

// Scale reads and writes.
func (b *Backend) Scale(t compute.Tensor, _ float64) {
	b.begin("Scale")
	b.moves(2 * b.bytes(t))
}

// copied marks a parameter with a bfloat16 copy of its Wide weights.
type copied struct{}

// weights makes p's bfloat16 copy at the first use.
func (b *Backend) weights(p *compute.Param) {
	if p == nil || class(p.W) != compute.Wide || p.Derived != nil {
		return
	}
	p.Derived = copied{}
	b.count(b.Block(int64(narrow) * int64(p.Len())))
	b.moves((wide + narrow) * float64(p.Len()))
}

// Refresh brings a copy up to date.
func (b *Backend) Refresh(p *compute.Param) {
	b.begin("Refresh")
	switch {
	case p.Derived != nil:
		b.moves((wide + narrow) * float64(p.Len()))
	case p.Rows > 1:
		b.weights(p)
	}
}

// Embed gathers.
func (b *Backend) Embed(yND compute.Tensor, table *compute.Param, ids []int32) {
	b.begin("Embed")
	b.weights(table)
	b.index("ids", ids)
	b.moves((min(narrow, b.size(table.W)) + wide) * float64(yND.Len()))
}

// EmbedGrad reads a row's gradient and reads and writes the table's.
func (b *Backend) EmbedGrad(table *compute.Param, dyND compute.Tensor, ids []int32) {
	b.begin("EmbedGrad")
	if table.G.Absent() {
		return
	}
	for range 3 { // ids, groups, members
		b.queue(command{kind: onBus, bytes: 4 * float64(len(ids))})
	}
	b.moves(elements.EmbedGrad(dyND.Len()).Bytes)
}

// RMSNorm reads x and writes y.
func (b *Backend) RMSNorm(yND, rstdN, xND compute.Tensor, _ *compute.Param, _ float64) {
	b.begin("RMSNorm")
	b.moves(b.bytes(xND) + b.bytes(yND) + b.bytes(rstdN))
}

// RMSNormGrad: both gradients in one pass, and the sum of the scale's parts; of long rows the
// scale's first.
func (b *Backend) RMSNormGrad(dxND compute.Tensor, w *compute.Param, dyND, xND,
	rstdN compute.Tensor, acc bool) {
	b.begin("RMSNormGrad")
	N, D := xND.Len()/w.Cols, w.Cols
	bytes := b.bytes(dyND) + b.bytes(xND) + b.bytes(rstdN) + b.bytes(dxND)
	if acc {
		bytes += b.bytes(dxND)
	}
	if parts := cuda.NormParts(N, D); parts > 0 && !w.G.Absent() {
		b.sums(bytes, parts, D)
		return
	}
	if !w.G.Absent() {
		b.sums(b.bytes(dyND)+b.bytes(xND), cuda.SumParts(N, D), D)
	}
	b.moves(bytes)
}

// sums queues a kernel that moves so many bytes and writes parts of D sums, and the sum of the
// parts.
func (b *Backend) sums(bytes float64, parts, D int) {
	written := wide * float64(parts) * float64(D)
	b.moves(bytes + written)
	b.moves(written + 2*wide*float64(D))
}

// Linear queues one product.
func (b *Backend) Linear(yNO, xNI compute.Tensor, w, bias *compute.Param, acc bool) {
	b.begin("Linear")
	b.linear(yNO, xNI, w, bias, acc)
}

func (b *Backend) linear(yNO, xNI compute.Tensor, w, bias *compute.Param, acc bool) {
	b.weights(w)
	if bias != nil && class(yNO) != compute.Wide {
		b.weights(bias)
	}
	b.forward(xNI.Len()/w.Cols, w.Rows, w.Cols, w, b.size(yNO), acc)
}

// LinearAdd queues one product, which adds to a tensor other than its result.
func (b *Backend) LinearAdd(yNO, _, xNI compute.Tensor, w *compute.Param) {
	b.begin("LinearAdd")
	b.linear(yNO, xNI, w, nil, true)
}

// joinedOutputs returns the number of outputs of all ps if the engine computes them as one product,
// else 0. Weights and gradients of a class lie in one block, so the outputs decide.
func joinedOutputs(ps []compute.Projection) (O int) {
	for i, p := range ps {
		if cols, _ := p.Y.Rows(); cols == 0 || i > 0 && !ps[i-1].W.W.EndsAt(p.W.W) {
			return 0
		}
		O += p.W.Rows
	}
	return O
}

// Linears queues one product for joined projections, else one each.
func (b *Backend) Linears(ps []compute.Projection, xNI compute.Tensor) {
	O := joinedOutputs(ps)
	if O == 0 {
		for _, p := range ps {
			b.Linear(p.Y, xNI, p.W, p.B, false)
		}
		return
	}
	b.begin("Linear")
	var bias float64 // elements whose copy is made
	for _, p := range ps {
		if p.B != nil && p.B.Derived == nil {
			p.B.Derived = copied{}
			bias += float64(p.B.Len())
		}
	}
	if bias > 0 {
		b.count(b.Block(int64(narrow * bias)))
		b.moves((wide + narrow) * bias)
	}
	I := ps[0].W.Cols
	b.forward(xNI.Len()/I, O, I, ps[0].W, narrow, false)
}

// LinearsGrad queues LinearGrad of one joined projection, or of each.
func (b *Backend) LinearsGrad(dxNI compute.Tensor, ps []compute.Projection, xNI compute.Tensor) {
	O := joinedOutputs(ps)
	if O == 0 {
		for i, p := range ps {
			b.LinearGrad(dxNI, p.W, p.B, p.Y, xNI, i > 0)
		}
		return
	}
	b.begin("LinearGrad")
	first := ps[0]
	I, N := first.W.Cols, first.Y.Len()/first.W.Rows
	if first.B != nil && !first.B.G.Absent() {
		b.sums(narrow*float64(N*O), cuda.SumParts(N, O), O)
	}
	if !dxNI.Absent() {
		b.unpack(O*I, first.W, manyRows)
		b.product(N, I, O, narrow, false)
	}
	if !first.W.G.Absent() && !xNI.Absent() {
		b.product(O, I, N, wide, true)
	}
}

// LinearGrad: the bias's sums, dy rounded if it is Wide, and a product each for the input
// and, unless x is absent, the weight.
func (b *Backend) LinearGrad(dxNI compute.Tensor, w, bias *compute.Param, dyNO, xNI compute.Tensor,
	acc bool) {
	b.begin("LinearGrad")
	I, O := w.Cols, w.Rows
	N := dyNO.Len() / O
	learns := !w.G.Absent() && !xNI.Absent()
	if bias != nil && !bias.G.Absent() {
		b.sums(b.bytes(dyNO), cuda.SumParts(N, O), O)
	}
	if class(dyNO) == compute.Wide && (learns || !dxNI.Absent()) {
		b.moves((wide + narrow) * float64(dyNO.Len()))
	}
	if !dxNI.Absent() {
		b.weights(w)
		b.unpack(O*I, w, manyRows)
		b.product(N, I, O, narrow, acc)
	}
	if learns {
		b.product(O, I, N, wide, true)
	}
}

// Rope reads and writes x.
func (b *Backend) Rope(xNHE compute.Tensor, _, _ int, pos []int32, _ compute.Tensor, _ bool) {
	b.begin("Rope")
	b.index("pos", pos)
	b.moves(elements.Rope(xNHE.Len()).Bytes)
}

// layout uploads the pack and its tiles of queries.
func (b *Backend) layout(p compute.Pack) {
	b.index("segments", p.Start)
	b.index("tiles", p.Start)
}

// Attention queues one kernel: two products for each pair.
func (b *Backend) Attention(oNHE, lseNH, qNHE, kNKE, vNKE compute.Tensor, a compute.AttnShape,
	p compute.Pack) {
	b.begin("Attention")
	b.layout(p)
	b.queue(command{flops: elements.Attention(a, p).FLOPs, rate: b.card.FLOPS * b.card.Forward,
		bytes: b.bytes(oNHE) + b.bytes(lseNH) + b.bytes(qNHE) + b.bytes(kNKE) + b.bytes(vNKE)})
}

// AttentionGrad queues three kernels: row sums, dq (three products a pair), and dk and dv (four);
// and a fourth that adds the parts of dk and dv, where tiles of keys are cut. The kernel of dk and
// dv takes at least its longest block on half a multiprocessor.
func (b *Backend) AttentionGrad(dqNHE, dkNKE, dvNKE, doNHE, oNHE, lseNH, qNHE, kNKE,
	vNKE compute.Tensor, a compute.AttnShape, p compute.Pack) {
	b.begin("AttentionGrad")
	tile := cuda.DKVTile(a.E)
	longest, partRows := cuda.DKVBlocks(p, a)
	b.layout(p)
	b.index("key blocks", append(slices.Clone(p.Start), int32(tile)))
	delta := b.bytes(lseNH)
	b.moves(b.bytes(doNHE) + b.bytes(oNHE) + delta)
	inputs := b.bytes(doNHE) + b.bytes(qNHE) + b.bytes(kNKE) + b.bytes(vNKE) + 2*delta
	n, he, rate := p.Pairs(a.Window), float64(a.H*a.E), b.card.FLOPS*b.card.Backward
	b.queue(command{flops: 6 * n * he, rate: rate, bytes: inputs + b.bytes(dqNHE)})
	block := 8 * longest * float64(tile*a.E)
	whole, gradients := 8*n*he, b.bytes(dkNKE)+b.bytes(dvNKE)
	partial := 2 * wide * float64(partRows*a.K*a.E)
	b.queue(command{flops: whole, rate: whole / max(whole/rate, block/(rate/float64(2*b.card.SMs))),
		bytes: inputs + gradients + partial})
	if partRows > 0 {
		b.index("key sums", append(slices.Clone(p.Start), int32(tile)))
		b.moves(gradients + partial)
	}
}

// CacheWrite reads and writes rows.
func (b *Backend) CacheWrite(_, xNW compute.Tensor, _ int, slots []int32) {
	b.begin("CacheWrite")
	b.index("slots", slots)
	b.moves(elements.Rope(xNW.Len()).Bytes)
}

// RopeCache reads and writes q, and reads k and v and writes their slots.
func (b *Backend) RopeCache(qNHE, kNKE, vNKE, _, _ compute.Tensor, _ compute.AttnShape, pos []int32,
	_ compute.Tensor, slots []int32) {
	b.begin("RopeCache")
	b.index("pos", pos)
	b.index("slots", slots)
	b.moves(elements.Rope(qNHE.Len() + kNKE.Len() + vNKE.Len()).Bytes)
}

// AttentionDecode reads each row's keys and values, and joins the parts of each row.
func (b *Backend) AttentionDecode(oRHE, qRHE, _, _ compute.Tensor, a compute.AttnShape,
	pages compute.Pages) {
	b.begin("AttentionDecode")
	most, parts := 0, 0.0
	for r, n := range pages.Len {
		most = max(most, len(pages.Table[r]))
		parts += ceil(float64(n) / 512)
	}
	b.index("pages", pages.Len)
	b.index("lengths", pages.Len)
	partial := wide * parts * float64(a.H*(a.E+2))
	grid := cuda.DecodeSplits(most, pages.PageTokens)
	c := command{bytes: elements.AttentionDecode(a, pages).Bytes + b.bytes(qRHE) + partial,
		grid: grid}
	join := command{bytes: partial + b.bytes(oRHE), grid: grid}
	if cuda.DecodesInOne(a) {
		c.bytes += join.bytes
		b.queue(c)
		return
	}
	b.queue(c)
	b.queue(join)
}

// GatedConv queues u and the convolution, which reads a row of u once, since neighbours find it in
// the cache.
func (b *Backend) GatedConv(yND, uND, gN3D compute.Tensor, w *compute.Param, p compute.Pack) {
	b.begin("GatedConv")
	before := p.Before(nil)
	_, J := compute.CheckGatedConv("GatedConv", len(before), gN3D, w)
	b.index("back", compute.Back(nil, before, J))
	b.moves(b.bytes(gN3D)*2/3 + b.bytes(uND))
	b.moves(b.bytes(gN3D)/3 + b.bytes(uND) + b.bytes(yND))
}

// GatedConvGrad queues u, the gradient of g, and the sums of the weights' gradient.
func (b *Backend) GatedConvGrad(dgN3D, uND compute.Tensor, w *compute.Param, dyND,
	gN3D compute.Tensor, p compute.Pack) {
	b.begin("GatedConvGrad")
	before := p.Before(nil)
	_, J := compute.CheckGatedConv("GatedConvGrad", len(before), gN3D, w)
	start, row := compute.Successors(before, J)
	b.index("back", compute.Back(nil, before, J))
	b.moves(b.bytes(gN3D)*2/3 + b.bytes(uND))
	if !w.G.Absent() {
		b.sums(b.bytes(gN3D)/3+b.bytes(uND)+b.bytes(dyND), len(before), w.Len())
	}
	b.index("first successors", start)
	b.index("successors", row)
	b.moves(b.bytes(gN3D) + b.bytes(uND) + b.bytes(dyND) + b.bytes(dgN3D))
}

// GatedConvDecode queues two kernels: u, which goes to the cache, and the convolution.
func (b *Backend) GatedConvDecode(yRD, gR3D, _ compute.Tensor, w *compute.Param, slots []int32,
	pages compute.Pages) {
	b.begin("GatedConvDecode")
	_, J := compute.CheckGatedConv("GatedConvDecode", len(slots), gR3D, w)
	b.index("slots", slots)
	b.index("back", pages.Back(nil, J))
	u := b.bytes(yRD)
	b.moves(3 * u)
	b.moves(float64(2+J) * u)
}

// Gated reads two and writes one.
func (b *Backend) Gated(act compute.Activation, yNF, _, _ compute.Tensor) {
	b.begin(act.Unit())
	b.moves(elements.Gated(yNF.Len()).Bytes)
}

// GatedGrad reads three and writes two, or three with y.
func (b *Backend) GatedGrad(act compute.Activation, yNF, _, _, dyNF, _, _ compute.Tensor) {
	b.begin(act.Grad())
	b.moves(5*b.bytes(dyNF) + b.bytes(yNF))
}

// logits queues the product of a chunk's logits. It returns the bytes that a kernel reads to read
// them: none if they fit the cache.
func (b *Backend) logits(n, cols, D int, w *compute.Param) (read float64) {
	b.forward(n, cols, D, w, wide, false)
	bytes := wide * float64(n) * float64(cols)
	if w.Cap > 0 { // a pass over them
		b.moves(2 * bytes)
	}
	if bytes > 0.8*b.card.Cache {
		return bytes
	}
	return 0
}

// LogProb: for some rows their gathering, for each chunk of the vocabulary a product and
// its statistics, and their join.
func (b *Backend) LogProb(_ compute.HeadOut, hND compute.Tensor, w *compute.Param, rows,
	targets []int32, _ float64) {
	b.begin("LogProb")
	D, V, R := w.Cols, w.Vocab(), len(rows)
	if R == 0 {
		return
	}
	b.weights(w)
	b.index("rows", rows)
	b.index("targets", targets)
	most, width := cuda.HeadChunk(R, V, false, class(w.W))
	for r := 0; r < R; r += most {
		n := min(most, R-r)
		b.moves(2 * narrow * float64(n*D))
		for lo := 0; lo < V; lo += width {
			b.moves(b.logits(n, min(width, V-lo), D, w))
		}
		b.moves(16 * float64(n*V/4096))
	}
}

// LogProbGrad: for some rows their gathering, for each chunk the logits, their gradient,
// and two products with it; then the rows' gradients to their places.
func (b *Backend) LogProbGrad(dhND compute.Tensor, w *compute.Param, _ compute.HeadOut, _, _,
	hND compute.Tensor, rows, targets []int32, _ float64) {
	b.begin("LogProbGrad")
	D, V, R := w.Cols, w.Vocab(), len(rows)
	if R == 0 || dhND.Absent() && w.G.Absent() {
		return
	}
	b.weights(w)
	b.index("rows", rows)
	b.index("targets", targets)
	most, width := cuda.HeadChunk(R, V, true, class(w.W))
	for r := 0; r < R; r += most {
		n := min(most, R-r)
		b.moves(2 * narrow * float64(n*D))
		for lo := 0; lo < V; lo += width {
			cols := min(width, V-lo)
			b.moves(b.logits(n, cols, D, w) + narrow*float64(n*cols))
			if !dhND.Absent() {
				b.unpack(cols*D, w, manyRows)
				b.product(n, D, cols, wide, lo > 0)
			}
			if !w.G.Absent() {
				b.product(cols, D, n, wide, true)
			}
		}
		if !dhND.Absent() {
			b.moves((wide + 2*narrow) * float64(n*D))
		}
	}
}

// Sample: for some rows all logits, their statistics, the draw, which reads some again, and the
// join. The ids are no end of a sequence, and not all the same.
func (b *Backend) Sample(ids []int32, logp []float32, hRD compute.Tensor, w *compute.Param,
	s compute.Sampling, _ []float64) {
	b.begin("Sample")
	D, V, R := w.Cols, w.Vocab(), len(ids)
	if R == 0 {
		return
	}
	if s.Temperature > 0 {
		b.queue(command{kind: onBus, bytes: 8 * float64(R)})
	}
	b.weights(w)
	most := cuda.SampleRows(R, V)
	for r := 0; r < R; r += most {
		n := min(most, R-r)
		width := V
		if class(w.W).Quantised() && n > cuda.FewRows {
			width = cuda.UnpackedVocab
		}
		read := 0.0
		for lo := 0; lo < V; lo += width {
			read += b.logits(n, min(width, V-lo), D, w)
		}
		b.moves(read)
		b.moves(read * float64(cuda.DrawnLogits(s, V)) / float64(V))
		b.moves(16 * float64(n*V/4096))
	}
	b.queue(command{kind: onBus, bytes: 8 * float64(R)})
	b.host += b.compareAhead() * b.card.Compare
	b.wait()
	b.drawn++
	clear(logp)
	for r := range ids {
		ids[r] = int32((31*r + 7*b.drawn + 3) % V)
	}
}

// Score reads the rows.
func (b *Backend) Score(_, _ compute.Tensor, w *compute.Param, rows []int32) {
	b.begin("Score")
	b.index("rows", rows)
	b.moves(elements.Score(len(rows), w.Cols).Bytes)
}

// ScoreGrad writes the rows' gradients, and sums the weight's.
func (b *Backend) ScoreGrad(dhND compute.Tensor, w *compute.Param, _, _ compute.Tensor,
	rows []int32) {
	b.begin("ScoreGrad")
	if len(rows) == 0 {
		return
	}
	b.index("rows", rows)
	moved := narrow * float64(len(rows)*w.Cols)
	if !dhND.Absent() {
		b.moves(2 * moved)
	}
	if !w.G.Absent() {
		b.sums(moved, cuda.SumParts(len(rows), w.Cols), w.Cols)
	}
}

// SumSquares queues a kernel for the tensors of each class, one for their sum, and a wait.
func (b *Backend) SumSquares(ts []compute.Tensor) float64 {
	b.begin("SumSquares")
	by := map[compute.Class]float64{}
	for _, t := range ts {
		by[class(t)] += b.bytes(t)
	}
	if len(ts) == 0 {
		return 0
	}
	for _, c := range slices.Sorted(maps.Keys(by)) {
		b.table(4, len(ts))
		b.moves(by[c])
	}
	b.moves(0)
	b.queue(command{kind: onBus, bytes: 8})
	b.wait()
	return 1
}

// table queues the upload of a table with a number of words for each tensor.
func (b *Backend) table(words, tensors int) {
	b.queue(command{kind: onBus, bytes: 8 * float64(words*tensors)})
}

// AdamW queues a kernel for each kind of weights and of moments. It reads weight, gradient and
// moments and writes all but the gradient, and the bfloat16 copy of Wide weights. Moments on the
// host go over the bus.
func (b *Backend) AdamW(ps []*compute.Param, _ compute.AdamW) {
	b.begin("AdamW")
	var device, bus, count [2][2]float64 // by moments in 8 bits, and by weights in two planes
	for _, p := range ps {
		coded, inMaster := 0, planes(p.W)-1
		if class(p.M)&^compute.Host == compute.Code {
			coded = 1
		}
		n := float64(p.Len())
		count[coded][inMaster]++
		device[coded][inMaster] += 3 * wide * n
		if p.Derived != nil {
			device[coded][inMaster] += narrow * n
		}
		moments := 2 * (b.bytes(p.M) + b.bytes(p.V) + b.bytes(p.MScale) + b.bytes(p.VScale))
		if class(p.M)&compute.Host != 0 {
			bus[coded][inMaster] += moments
		} else {
			device[coded][inMaster] += moments
		}
	}
	for coded := range count {
		for inMaster, n := range count[coded] {
			if n == 0 {
				continue
			}
			b.table(10, int(n))
			if coded == 1 {
				b.index("moments", []int32{0})
			}
			c := command{bytes: device[coded][inMaster]}
			if over := bus[coded][inMaster]; over > 0 { // both directions at once
				c.flops, c.rate = 1, b.card.Bus/(over/2)
			}
			b.queue(c)
		}
	}
}
