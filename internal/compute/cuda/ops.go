//go:build nvidia

package cuda

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
)

// gatedKernels are the kernels of a gated activation, by the type of its tensors.
type gatedKernels struct{ forward, grad [2]*driver.Kernel }

// kernelSet is the kernels, by the types of their tensors where they have several.
type kernelSet struct {
	cast, add, scale, embed, gather, scatterAdd, cacheWrite, rope,
	ropeCache [2]*driver.Kernel
	gated [3]gatedKernels // by compute.Activation
	gatedConvU, gatedConv, gatedConvGrad,
	gatedConvWGrad [2]*driver.Kernel
	delta deltaKernels
	// to Wide
	addNarrow   *driver.Kernel
	embedGrad   *driver.Kernel
	norm        normKernels
	colSum      [2]*driver.Kernel
	addPartials *driver.Kernel
	gemm        [2][2]*driver.Kernel // a and b, c
	headStats, headMasses, headFinish, headCap,
	sample, draw *driver.Kernel
	headGrad, score, scoreGrad,
	scoreWGrad [2]*driver.Kernel
	// head width 64, 128
	attnFwd, attnDelta, attnDKV, attnDQ,
	decode [2]*driver.Kernel
	attnFwdAny, attnDeltaAny, attnDKVAny, attnDQAny, decodeAny,
	decodeCombine [2]*driver.Kernel
	attnDKVSum                                       *driver.Kernel
	sumSquares                                       [2]*driver.Kernel
	sumPartials                                      *driver.Kernel
	castMaster, castOfMaster, addMaster, scaleMaster *driver.Kernel
	quant                                            quantKernels
	// moments float32 or coded; weights float32 or master
	adamW [2][2]*driver.Kernel
}

// normKernels is the kernels of norms, by their types: grads computes both of the others'
// gradients.
type normKernels struct {
	forward     [2][2]*driver.Kernel // x, y
	grad, grads [2][2]*driver.Kernel // dy, x and dx
	wGrad       [2][2]*driver.Kernel // dy, x
}

// quantKernels is the kernels of quantised weights, by their type; dequant and few also by the
// result's.
type quantKernels struct {
	dequant, few    [2][2]*driver.Kernel
	embed, quantise [2]*driver.Kernel
}

// loadKernels finds every kernel that the backend uses, so that a module without
// one of them is refused at the start.
func loadKernels(dev *driver.Device) (*kernelSet, error) {
	var first error
	find := func(name string) *driver.Kernel {
		k, err := dev.Kernel(name)
		if err != nil && first == nil {
			first = err
		}
		return k
	}
	pair := func(name string) [2]*driver.Kernel {
		return [2]*driver.Kernel{find(name + "_f32"), find(name + "_bf16")}
	}
	wideHeads := func(name string) [2]*driver.Kernel {
		return [2]*driver.Kernel{find(name + "_E64"), find(name + "_E128")}
	}
	k := &kernelSet{
		cast: [2]*driver.Kernel{find("cast_bf16_f32"), find("cast_f32_bf16")}, // by the result
		add:  pair("add"), scale: pair("scale"), embed: pair("embed"), gather: pair("gather"),
		scatterAdd: pair("scatter_add"), cacheWrite: pair("cache_write"),
		rope: pair("rope"), ropeCache: pair("rope_cache"),
		gated: [3]gatedKernels{compute.SiLU: {pair("swiglu"), pair("swiglu_grad")},
			compute.GELUTanh: {pair("geglu"), pair("geglu_grad")},
			compute.Sigmoid:  {pair("glu"), pair("glu_grad")}},
		gatedConvU: pair("gated_conv_u"), gatedConv: pair("gated_conv"),
		gatedConvGrad: pair("gated_conv_grad"), gatedConvWGrad: pair("gated_conv_wgrad"),
		delta: deltaKernels{conv: pair("silu_conv"), convStates: pair("silu_conv_states"),
			convGrad: pair("silu_conv_grad"), convWGrad: pair("silu_conv_wgrad"),
			forward: pair("delta_fwd"), backward: pair("delta_bwd"), gates: pair("delta_gates")},
		addNarrow: find("add_bf16_to_f32"), embedGrad: find("embed_grad"),
		norm: normKernels{
			forward: [2][2]*driver.Kernel{{find("rmsnorm_f32_f32"), find("rmsnorm_f32_bf16")},
				{nil, find("rmsnorm_bf16_bf16")}},
			grad: [2][2]*driver.Kernel{{find("rmsnorm_grad_f32_f32_f32"), nil},
				{find("rmsnorm_grad_f32_bf16_f32"), find("rmsnorm_grad_bf16_bf16_bf16")}},
			grads: [2][2]*driver.Kernel{{find("rmsnorm_grads_f32_f32_f32"), nil},
				{find("rmsnorm_grads_f32_bf16_f32"), find("rmsnorm_grads_bf16_bf16_bf16")}},
			wGrad: [2][2]*driver.Kernel{{find("rmsnorm_wgrad_f32_f32"), nil},
				{find("rmsnorm_wgrad_bf16_f32"), find("rmsnorm_wgrad_bf16_bf16")}},
		},
		colSum: pair("colsum"), addPartials: find("add_partials"),
		gemm: [2][2]*driver.Kernel{{find("gemm_f32_f32_f32"), nil},
			{find("gemm_bf16_bf16_f32"), find("gemm_bf16_bf16_bf16")}},
		headStats: find("head_stats"), headMasses: find("head_masses"),
		headFinish: find("head_finish"), headCap: find("head_cap"), sample: find("sample"),
		draw:     find("draw"),
		headGrad: pair("head_grad"), score: pair("score"), scoreGrad: pair("score_grad"),
		scoreWGrad: pair("score_wgrad"),
		attnFwd:    wideHeads("attn_fwd"), attnDelta: wideHeads("attn_bwd_delta"),
		attnDKV: wideHeads("attn_bwd_dkv"), attnDQ: wideHeads("attn_bwd_dq"),
		attnDKVSum: find("attn_bwd_dkv_sum"), decode: wideHeads("decode"),
		attnFwdAny: pair("attn_fwd_any"), attnDeltaAny: pair("attn_bwd_delta_any"),
		attnDKVAny: pair("attn_bwd_dkv_any"), attnDQAny: pair("attn_bwd_dq_any"),
		decodeAny: pair("decode_any"), decodeCombine: pair("decode_combine"),
		sumSquares: pair("sum_squares"), sumPartials: find("sum_partials"),
		castMaster: find("cast_f32_master"), castOfMaster: find("cast_master_f32"),
		addMaster: find("add_master"), scaleMaster: find("scale_master"),
		quant: quantKernels{
			dequant:  [2][2]*driver.Kernel{pair("dequant_q8"), pair("dequant_q4")},
			few:      [2][2]*driver.Kernel{pair("few_q8"), pair("few_q4")},
			embed:    [2]*driver.Kernel{find("embed_q8"), find("embed_q4")},
			quantise: [2]*driver.Kernel{find("quantise_q8"), find("quantise_q4")},
		},
		adamW: [2][2]*driver.Kernel{{find("adamw_f32"), find("adamw_master")},
			{find("adamw8_f32"), find("adamw8_master")}},
	}
	return k, first
}

// Zero sets t to zero.
func (b *Backend) Zero(t compute.Tensor) {
	v := reach("Zero", "t", t, t.Len())
	noBlocks("Zero", "t", v)
	if host := pinnedOf(t); host != nil {
		b.outside("Zero of the host's memory")
		defer b.enter()()
		b.wait()
		clear(host)
		return
	}
	defer b.enter()()
	b.zero(v.p, int64(v.n)*v.t.step())
	if v.t == master {
		b.zero(v.lo, int64(v.n)*v.t.step())
	}
}

// zero sets bytes at p. The driver sets words; a view may begin or end inside one.
func (b *Backend) zero(p driver.Ptr, bytes int64) {
	head := min(bytes, int64(-p&3))
	b.copyDev(p, b.zeros.p, head)
	p, bytes = p+driver.Ptr(head), bytes-head
	b.set(p, bytes/4)
	b.copyDev(p+driver.Ptr(bytes&^3), b.zeros.p, bytes&3)
}

// Copy copies src to dst.
func (b *Backend) Copy(dst, src compute.Tensor) {
	s, d := local("Copy", "src", src, src.Len()), local("Copy", "dst", dst, src.Len())
	if d.t.quantised() {
		compute.CheckBlocks("Copy", "dst", dst)
		if s.t == d.t {
			compute.CheckBlocks("Copy", "src", src)
		}
	}
	if d.t != s.t && (s.t != f32 || d.t != bf16 && !d.t.quantised()) &&
		(!s.t.quantised() || d.t > bf16) {
		panic(fmt.Sprintf("cuda: Copy: dst is %v, want %v: allocate it in the other class", d.t,
			s.t))
	}
	defer b.enter()()
	b.cast(d, s)
}

// Add adds x to y.
func (b *Backend) Add(y, x compute.Tensor) {
	xv := local("Add", "x", x, x.Len())
	noBlocks("Add", "x", xv)
	if yv := local("Add", "y", y, xv.n); xv.t == bf16 && yv.t == f32 {
		defer b.enter()()
		b.launch(b.k.addNarrow, b.flat(yv.n), at(yv.p), at(xv.p), whole(yv.n))
		return
	}
	yv := viewOfType("Add", "y", y, xv.n, xv.t)
	defer b.enter()()
	switch xv.t {
	case master:
		b.launch(b.k.addMaster, b.flat(yv.n), at(yv.p), at(yv.lo), at(xv.p), at(xv.lo), whole(yv.n))
	case code:
		panic("cuda: Add: codes stand for numbers that they do not add to")
	default:
		b.launch(b.k.add[yv.t], b.flat(yv.n), at(yv.p), at(xv.p), whole(yv.n))
	}
}

// Scale multiplies t by s.
func (b *Backend) Scale(t compute.Tensor, s float64) {
	v := local("Scale", "t", t, t.Len())
	noBlocks("Scale", "t", v)
	defer b.enter()()
	switch v.t {
	case master:
		b.launch(b.k.scaleMaster, b.flat(v.n), at(v.p), at(v.lo), real(float32(s)), whole(v.n))
	case code:
		panic("cuda: Scale: codes have a scale beside them")
	default:
		b.launch(b.k.scale[v.t], b.flat(v.n), at(v.p), real(float32(s)), whole(v.n))
	}
}

// Embed gathers rows of the table.
func (b *Backend) Embed(yND compute.Tensor, table *compute.Param, ids []int32) {
	const op = "Embed"
	D, N := table.Cols, len(ids)
	y := wide(op, "y", yND, N*D)
	compute.CheckIndices(op, "ids", ids, table.Rows)
	if N == 0 {
		return
	}
	defer b.enter()()
	w := b.weights(op, table, b.narrow)
	if w.t.quantised() {
		b.launch(b.k.quant.embed[w.t-q8], b.eachRow(N, D), at(y.p), at(w.p), at(w.lo),
			whole(w.first), at(indexBelow(b, "ids", ids, table.Rows)), whole(N), whole(D),
			flag(b.narrow == bf16))
		return
	}
	b.launch(b.k.embed[w.t], b.eachRow(N, D), at(y.p), at(w.p),
		at(indexBelow(b, "ids", ids, table.Rows)), whole(N),
		whole(D))
}

// EmbedGrad adds to rows of the table's gradient: the host groups equal ids, each
// of which one block then adds in ascending order.
func (b *Backend) EmbedGrad(table *compute.Param, dyND compute.Tensor, ids []int32) {
	const op = "EmbedGrad"
	D, N := table.Cols, len(ids)
	dy := wide(op, "dy", dyND, N*D)
	if table.G.Absent() {
		return
	}
	g := wide(op, "G", table.G, table.Len())
	compute.CheckIndices(op, "ids", ids, table.Rows)
	if N == 0 {
		return
	}
	defer b.enter()()
	order := make([]uint64, N)
	for n, id := range ids {
		order[n] = uint64(id)<<32 | uint64(n)
	}
	slices.Sort(order)
	var id, begin []int32
	member := make([]int32, N)
	for i, v := range order {
		member[i] = int32(uint32(v))
		if i == 0 || order[i-1]>>32 != v>>32 {
			id, begin = append(id, int32(v>>32)), append(begin, int32(i))
		}
	}
	begin = append(begin, int32(N))
	b.launch(b.k.embedGrad, b.eachRow(len(id), D), at(g.p), at(dy.p), at(index(b, "embedded", id)),
		at(index(b, "groups", begin)), at(index(b, "members", member)), whole(len(id)), whole(D))
}

// RMSNorm normalises rows by their root mean square.
func (b *Backend) RMSNorm(yND, rstdN, xND compute.Tensor, w *compute.Param, eps float64) {
	const op = "RMSNorm"
	D := w.Cols
	N := compute.RowsOf(op, "x", xND, D)
	x, heads, row := b.heads(op, "x", xND, N, D)
	y, rstd := take(op, "y", yND, N*D), wide(op, "rstd", rstdN, N)
	if N == 0 {
		return
	}
	k := b.k.norm.forward[x.t][y.t]
	if k == nil {
		panic("cuda: RMSNorm: x is Narrow and y Wide")
	}
	defer b.enter()()
	W := b.weights(op, w, f32)
	b.launch(k, normGrid(N, D), at(y.p), at(rstd.p), at(x.p), at(W.p), whole(N), whole(D),
		whole(heads), whole(row), real(float32(eps)), real(w.Offset))
}

// heads returns t, of either class, as N rows of D elements; of columns heads rows of D make a row,
// and rows begin row elements apart.
func (b *Backend) heads(op, name string, t compute.Tensor, N, D int) (v view, heads, row int) {
	cols, _ := t.Rows()
	if cols == 0 {
		return take(op, name, t, N*D), 1, D
	}
	if cols%D != 0 {
		panic(fmt.Sprintf("cuda: %s: %s is columns, rows of %d elements: want a multiple of %d", op,
			name, cols, D))
	}
	v, row = b.spread(op, name, t, N*D/cols, cols)
	return v, cols / D, row
}

// RMSNormGrad computes the gradient of RMSNorm.
func (b *Backend) RMSNormGrad(dxND compute.Tensor, w *compute.Param, dyND, xND,
	rstdN compute.Tensor, acc bool) {
	const op = "RMSNormGrad"
	D := w.Cols
	N := compute.RowsOf(op, "x", xND, D)
	x, heads, row := b.heads(op, "x", xND, N, D)
	dy, rstd := take(op, "dy", dyND, N*D), wide(op, "rstd", rstdN, N)
	dx, _, dxRow := b.heads(op, "dx", dxND, N, D)
	if dx.t != x.t || dxRow != row {
		panic(
			fmt.Sprintf(
				"cuda: %s: dx is %v with rows %d apart, x %v with rows %d apart: want the same", op,
				dx.t, dxRow, x.t, row))
	}
	k := b.k.norm.grad[dy.t][x.t]
	var g view
	if !w.G.Absent() {
		g = wide(op, "G", w.G, D)
	}
	if N == 0 {
		return
	}
	if k == nil {
		panic("cuda: RMSNormGrad: x is Narrow and dy Wide")
	}
	defer b.enter()()
	W := b.weights(op, w, f32)
	if g.n > 0 && D <= b.onePass {
		rows, part := normRows(N, D), b.scratch(normPartBytes(N, D))[0]
		size := normGrid(N, D)
		if size.x = blocks(N, rows); D <= 256 {
			size.shared = 8192
		}
		b.launch(b.k.norm.grads[dy.t][x.t], size, at(dx.p), at(part), at(dy.p), at(x.p),
			at(rstd.p), at(W.p), whole(N), whole(D), whole(heads), whole(row), flag(acc),
			real(w.Offset), whole(rows))
		b.addPartials(g, part, size.x, D)
		return
	}
	if g.n > 0 {
		rows := sumRows(N, D)
		parts, part := blocks(N, rows), b.scratch(partialBytes(N, D))[0]
		b.launch(b.k.norm.wGrad[dy.t][x.t], grid{blocks(D, 2048), parts, 1, 256, 8192}, at(part),
			at(dy.p), at(x.p), at(rstd.p), whole(N), whole(D), whole(heads), whole(row),
			whole(rows))
		b.addPartials(g, part, parts, D)
	}
	b.launch(k, normGrid(N, D), at(dx.p), at(dy.p), at(x.p), at(rstd.p), at(W.p), whole(N),
		whole(D), whole(heads), whole(row), flag(acc), real(w.Offset))
}

// columnSums adds the column sums of dy to g; part is scratch for them.
func (b *Backend) columnSums(g view, dy matrix, part driver.Ptr) {
	N, O := dy.rows, dy.cols
	rows := sumRows(N, O)
	parts := blocks(N, rows)
	b.launch(b.k.colSum[dy.t], grid{blocks(O, 2048), parts, 1, 256, 8192}, at(part), at(dy.p),
		whole(N), whole(O), whole(dy.ld), whole(rows))
	b.addPartials(g, part, parts, O)
}

// addPartials adds parts rows of D sums to g, in a fixed order.
func (b *Backend) addPartials(g view, part driver.Ptr, parts, D int) {
	b.launch(b.k.addPartials, grid{blocks(D, 32), 1, 1, 512, 2048}, at(g.p), at(part), whole(parts),
		whole(D))
}

// Rope rotates pairs of a head by their position's angles.
func (b *Backend) Rope(xNHE compute.Tensor, heads, headDim int, pos []int32, table compute.Tensor,
	inverse bool) {
	const op = "Rope"
	N, H, E := len(pos), heads, headDim
	x, row := b.spread(op, "x", xNHE, N, H*E)
	P := compute.RowsOf(op, "table", table, E)
	tab := wide(op, "table", table, P*E)
	compute.CheckIndices(op, "pos", pos, P)
	if N == 0 {
		return
	}
	sign := float32(1)
	if inverse {
		sign = -1
	}
	defer b.enter()()
	b.launch(b.k.rope[x.t], b.eachRow(N, H*E/2), at(x.p), at(indexBelow(b, "pos", pos, P)), at(tab.p),
		whole(N), whole(H), whole(E), whole(row), real(sign))
}

// CacheWrite copies rows to slots of a cache.
func (b *Backend) CacheWrite(cache, xNW compute.Tensor, width int, slots []int32) {
	const op = "CacheWrite"
	N := len(slots)
	c := b.narrowView(op, "cache", cache, cache.Len())
	x, row := b.spread(op, "x", xNW, N, width)
	compute.CheckIndices(op, "slots", slots, compute.RowsOf(op, "cache", cache, width))
	if N == 0 {
		return
	}
	defer b.enter()()
	b.launch(b.k.cacheWrite[c.t], b.eachRow(N, width), at(c.p), at(x.p),
		at(indexBelow(b, "slots", slots, compute.RowsOf(op, "cache", cache, width))), whole(N),
		whole(width), whole(row))
}

// RopeCache rotates q and k, writes k and v to slots of the caches, in one launch.
func (b *Backend) RopeCache(qNHE, kNKE, vNKE, kCache, vCache compute.Tensor, a compute.AttnShape,
	pos []int32, table compute.Tensor, slots []int32) {
	const op = "RopeCache"
	heads(op, a)
	N, W, E := len(pos), a.K*a.E, a.E
	q, qRow := b.spread(op, "q", qNHE, N, a.H*E)
	k, kRow := b.spread(op, "k", kNKE, N, W)
	v, vRow := b.spread(op, "v", vNKE, N, W)
	kc, vc :=
		b.narrowView(op, "kCache", kCache, kCache.Len()),
		b.narrowView(op, "vCache", vCache, kCache.Len())
	P := compute.RowsOf(op, "table", table, E)
	tab := wide(op, "table", table, P*E)
	if len(slots) != N || E%2 != 0 {
		panic(fmt.Sprintf("cuda: %s: %d slots for %d positions, heads of width %d: want as many, and an even width", op, len(slots), N, E))
	}
	compute.CheckIndices(op, "pos", pos, P)
	compute.CheckIndices(op, "slots", slots, compute.RowsOf(op, "kCache", kCache, W))
	if N == 0 {
		return
	}
	defer b.enter()()
	b.launch(b.k.ropeCache[q.t], b.eachRow(N*(a.H+2*a.K), E/2), at(q.p), at(k.p), at(v.p), at(kc.p),
		at(vc.p),
		at(indexBelow(b, "pos", pos, P)), at(indexBelow(b, "slots", slots,
			compute.RowsOf(op, "kCache", kCache, W))), at(tab.p), whole(N), whole(a.H),
		whole(a.K), whole(E),
		whole(qRow), whole(kRow), whole(vRow))
}

// matching returns tensors of n elements each, without gaps or columns with rows as far apart: N
// rows of F elements, row apart.
func (b *Backend) matching(op string, n int, names string,
	ts ...compute.Tensor) (vs []view, N, F, row int) {
	cols, row := ts[0].Rows()
	for i, t := range ts {
		name := strings.Fields(names)[i]
		if c, r := t.Rows(); c != cols || r != row {
			panic(fmt.Sprintf("cuda: %s: %s has rows of %d elements, %d apart, and another tensor %d, %d apart: want the same", op, name, c, r, cols, row))
		}
		if cols == 0 {
			vs = append(vs, b.narrowView(op, name, t, n))
			continue
		}
		v, _ := b.spread(op, name, t, n/cols, cols)
		vs = append(vs, v)
	}
	if cols > 0 {
		return vs, n / cols, cols, row
	}
	N, F = oneRow(n)
	return vs, N, F, F
}

// oneRow returns n elements without gaps as rows, of which a kernel counts the elements in 32 bits.
func oneRow(n int) (N, F int) {
	for F = n; F > 1<<30 && F%2 == 0; F /= 2 {
	}
	return n / max(1, F), F
}

// Gated gates up by act(gate).
func (b *Backend) Gated(act compute.Activation, yNF, gateNF, upNF compute.Tensor) {
	op, n := act.Unit(), gateNF.Len()
	y := b.narrowView(op, "y", yNF, n)
	in, N, F, row := b.matching(op, n, "gate up", gateNF, upNF)
	defer b.enter()()
	b.launch(b.k.gated[act].forward[y.t], b.eachRow(N, F), at(y.p), at(in[0].p), at(in[1].p), whole(N),
		whole(F),
		whole(row))
}

// GatedGrad computes the gradient of Gated, and its output again.
func (b *Backend) GatedGrad(act compute.Activation, yNF, dgateNF, dupNF, dyNF, gateNF,
	upNF compute.Tensor) {
	op, n := act.Grad(), gateNF.Len()
	all, N, F, row := b.matching(op, n, "gate up dgate dup", gateNF, upNF, dgateNF, dupNF)
	gate, up, dgate, dup := all[0], all[1], all[2], all[3]
	if cols, _ := dyNF.Rows(); cols > 0 && row == F {
		panic(fmt.Sprintf("cuda: %s: dy is columns, and gate is not: want both or only gate", op))
	}
	dy, dyRow := b.spread(op, "dy", dyNF, N, F)
	var y view
	if !yNF.Absent() {
		y = b.narrowView(op, "y", yNF, n)
	}
	defer b.enter()()
	b.launch(b.k.gated[act].grad[dy.t], b.eachRow(N, F), at(y.p), at(dgate.p), at(dup.p), at(dy.p),
		at(gate.p),
		at(up.p), whole(N), whole(F), whole(row), whole(dyRow))
}

// segments is a table of the tensors that one launch of the optimizer's kernels takes
// (kernels/optim.cu): words of each, and the blocks of all.
type segments struct {
	table         []uint64
	count, blocks int
}

// add appends a tensor of n elements, which is not empty: words before and behind its
// length and the number of the blocks before it.
func (s *segments) add(n int, before []uint64, behind ...uint64) {
	s.table = append(append(append(s.table, before...), whole(n), whole(s.blocks)), behind...)
	s.count++
	s.blocks += blocks(n, optimBlock)
}

// SumSquares returns the sum of the squares of all elements, in float64: each block by itself, then
// the blocks in the order of ts.
func (b *Backend) SumSquares(ts []compute.Tensor) float64 {
	const op = "SumSquares"
	b.outside(op)
	parts := 0
	var of [2]segments // by the type of elements
	for _, t := range ts {
		v := take(op, "t", t, t.Len())
		if v.n == 0 {
			continue
		}
		of[v.t].add(v.n, []uint64{at(v.p)}, whole(parts))
		parts += blocks(v.n, optimBlock)
	}
	if parts == 0 {
		return 0
	}
	defer b.enter()()
	place := b.scratch(8*int64(parts), 8)
	for t, s := range of {
		if s.count > 0 {
			b.launch(b.k.sumSquares[t], grid{s.blocks, 1, 1, 256, 2048}, at(place[0]),
				at(index(b, "summed", s.table)), whole(s.count))
		}
	}
	b.launch(b.k.sumPartials, grid{1, 1, 1, 1024, 8192}, at(place[1]), at(place[0]), whole(parts))
	var sum [1]float64
	b.readBack(bytesOf(sum[:]), place[1], nil)
	return sum[0]
}

// AdamW takes one optimizer step of ps, which also writes the copies that products read.
func (b *Backend) AdamW(ps []*compute.Param, a compute.AdamW) {
	var of [2][2]segments // by the kernel, as b.k.adamW
	for _, p := range ps {
		if p.Len() > 0 {
			b.stepped(&of, p)
		}
	}
	defer b.enter()()
	step, root :=
		a.LR/(1-math.Pow(a.Beta1, float64(a.Step))), 1/(1-math.Pow(a.Beta2, float64(a.Step)))
	rates := [...]uint64{real(float32(a.GradScale)), real(float32(a.Beta1)),
		real(float32(1 - a.Beta1)), real(float32(a.Beta2)), real(float32(1 - a.Beta2)),
		real(float32(step)), real(float32(root)), real(float32(a.Eps)),
		real(float32(a.LR * a.Decay))}
	for coded := range of {
		for inMaster, s := range of[coded] {
			if s.count == 0 {
				continue
			}
			where := grid{s.blocks, 1, 1, 256, 0}
			args := []uint64{at(index(b, "stepped", s.table)), whole(s.count)}
			if coded == 1 {
				where.shared = 4 * len(moments)
				args = append(args, at(index(b, "moments", moments)))
			}
			b.launch(b.k.adamW[coded][inMaster], where, append(args, rates[:]...)...)
		}
	}
}

// stepped adds p to the segments of the kernel that steps it.
func (b *Backend) stepped(of *[2][2]segments, p *compute.Param) {
	const op = "AdamW"
	n := p.Len()
	w, g := local(op, "W", p.W, n), wide(op, "G", p.G, n)
	m, v := reach(op, "M", p.M, n), reach(op, "V", p.V, n)
	if m.t != v.t || m.t != f32 && m.t != code {
		panic(fmt.Sprintf("cuda: AdamW: M is %v and V %v, want Wide or Code for both", m.t, v.t))
	}
	// The weights' second array: the copy of Wide ones, which may be missing, or a plane.
	beside, coded, inMaster := w.lo, 0, 1
	switch w.t {
	case f32:
		inMaster = 0
		if d, _ := p.Derived.(*derived); d != nil {
			beside = d.p
		}
	case master:
	default:
		panic(fmt.Sprintf("cuda: AdamW: W is %v, want Wide or Master", w.t))
	}
	var mScale, vScale view
	if m.t == code {
		coded = 1
		mScale, vScale =
			reach(op, "MScale", p.MScale, compute.Blocks(n)),
			reach(op, "VScale", p.VScale, compute.Blocks(n))
		if mScale.t != f32 || vScale.t != f32 {
			panic(fmt.Sprintf("cuda: AdamW: MScale is %v and VScale %v, want Wide for both",
				mScale.t, vScale.t))
		}
	}
	of[coded][inMaster].add(n,
		[]uint64{at(w.p), at(beside), at(g.p), at(m.p), at(v.p), at(mScale.p), at(vScale.p)},
		flag(p.Decay))
}

// moments are the maps of 8-bit moments as adamw8 reads them (kernels/optim.cu).
var moments = slices.Concat(compute.Signed.Value[:], compute.Signed.Mid[:], []float32{0},
	compute.Squares.Value[:], compute.Squares.Mid[:], []float32{0})

// Grids of the kernels' families. A result never depends on the grid but where
// the kernel's comment says so, and there the grid is a function of the shapes.

// flat covers n elements, eight to a thread and turn (kernels/elementwise.cu).
func (b *Backend) flat(n int) grid {
	return grid{min(blocks(n, 2048), 16*b.sms), 1, 1, 256, 0}
}

// eachRow covers N rows of D elements.
func (b *Backend) eachRow(N, D int) grid { return b.flat(N * ((D + 7) &^ 7)) }

// normGrid returns the grid for rows that are reduced: short ones by a warp, long ones by a block
// (kernels/norm.cu).
func normGrid(N, D int) grid {
	if D <= 256 {
		return grid{blocks(N, 8), 1, 1, 256, 128}
	}
	return grid{N, 1, 1, min(512, 32*blocks(D, 8*32)), 128}
}

// optimBlock is how many elements of a tensor a block of the optimizer's kernels takes
// at a time (OPTIM_BLOCK in kernels/optim.cu).
const optimBlock = 32768
