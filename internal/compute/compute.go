// Package compute declares the operations that the transformer is written over.
//
//	compute.go    Backend: operations, with their loops; optional interfaces: start here
//	footprint.go  the figures of a backend that a plan of memory needs
//	pack.go       sequences laid end to end, which may share prompts
//	states.go     what a recurrent operation keeps of a sequence, by slot
//	moments.go    AdamW's moments in 8 bits
//	quant.go      weights in 8 and 4 bits
//	gated.go      the activations of gated linear units
//	cap.go        soft caps of scores and logits
//	check.go      checks of arguments, for all backends
//	cost.go       the FLOPs and bytes of each operation
//	observe.go    a Backend around another, for profiles and counts
//	counts.go     counters of a backend
//	roof.go       the limits of a machine, measured
//
// ref is the specification as plain loops, cpu and cuda are fast, cost predicts a GPU's times, and
// computetest compares them.
//
// A Backend owns memory and implements the operations; the model above it is written once. Three
// things are part of each operation's contract: its loop (given in the comment), its shapes (in the
// names) and the order of its reductions. The order never depends on the number of workers. On the
// CPU it does not depend on the other rows of a call either, so that a row's result has the same
// bits alone and in any batch; where a vendor's matrix products choose their order by the call's
// shape, it is a function of that shape.
//
// Legend: N tokens of a pack, S segments of it, R selected rows, D hidden width, I and O a matrix
// product's inputs and outputs, H query heads, K key/value heads (H is a multiple of K), E width of
// one head, F feed-forward width, V vocabulary.
//
// A pack is sequences laid end to end without padding; sequences with the same prefix may share its
// tokens (Pack). Index slices (ids, rows, Pack.Start, ...) are host memory. Operations may be
// asynchronous: results are complete after Download or Sync, which also return a failure on the
// device. Wrong shapes are a programmer's error and panic.
package compute

import (
	"errors"
	"fmt"
)

// ErrMemory is wrapped by the error of an allocation that exceeds the device's memory, or the
// limit set for it.
var ErrMemory = errors.New("out of memory")

// Class is the precision of a block's elements. An operation's comment names the class of
// each tensor that is not Wide; where it names two, a call may use either.
type Class uint8

const (
	// Wide is float32 in every backend: weights that are trained, gradients of
	// parameters, moments, the residual stream and its gradient, and everything
	// that has one element a row.
	Wide Class = iota
	// Narrow is the type of matrix products' operands: float32 or bfloat16. On a CPU memory is
	// float32 in both cases; for bfloat16, operands and uploads are rounded. It is for
	// activations and their gradients, caches, and frozen matrices that are written again.
	Narrow
	// Master is for the weights of a matrix that is trained: all bits of a float32. A backend
	// whose products read bfloat16 may store them as two planes: what products read, and the
	// remaining bits.
	Master
	// Frozen is for the weights of a matrix that is not trained, with the values of Narrow.
	// After Refresh a backend may store them only in the layout that its products read. They
	// are for Upload, Download, Refresh, lookups and products, and the source of Copy.
	Frozen
	// Code is for whole numbers from 0 to 255, AdamW's moments in 8 bits. Upload and Download
	// convert them from and to float32 numbers of the same value.
	Code
	// Q8 and Q4 are Frozen memory with the values of ggml's types Q8_0 and Q4_0: blocks of
	// QuantBlock elements of a row, with a scale each (Class.Encode), 8.5 and 4.5 bits an
	// element. Upload quantises, whole blocks at a time; whatever reads the weights reads the
	// values of the codes, and results have the bits of a Frozen matrix with these values; but a
	// backend may add products of few rows in another order.
	// Only a backend whose Footprint.Element of the class is not 0 has it.
	Q8
	Q4

	// Host, added to Wide or Code, is memory of the host that a device reaches over the
	// bus: for AdamW's moments, Zero, Upload and Download.
	Host Class = 1 << 7
)

func (c Class) String() string {
	s := [...]string{"wide", "narrow", "master", "frozen", "code", "q8_0", "q4_0"}[c&^Host]
	if c&Host != 0 {
		s += " on the host"
	}
	return s
}

// Memory is a block of elements that a backend allocated.
type Memory interface {
	// Len returns the number of elements.
	Len() int
}

// Tensor is a view of n elements of a backend's memory: contiguous elements, or columns of a
// matrix (Columns). The zero Tensor means "absent" where an operation allows that.
type Tensor struct {
	mem    Memory
	off, n int
	// of columns: a row's elements, and how far apart rows begin; 0 for contiguous elements
	cols, row int
}

// View returns the whole of mem as a Tensor; for backends.
func View(mem Memory) Tensor { return Tensor{mem: mem, n: mem.Len()} }

// Mem returns the block of memory that t lies in.
func (t Tensor) Mem() Memory { return t.mem }

// Off returns the index of t's first element in Mem.
func (t Tensor) Off() int { return t.off }

// Len returns the number of elements of t.
func (t Tensor) Len() int { return t.n }

// Absent reports whether t is the zero Tensor.
func (t Tensor) Absent() bool { return t.mem == nil }

// Slice returns the view of t's elements lo to hi-1; of columns lo and hi must be at whole rows.
func (t Tensor) Slice(lo, hi int) Tensor {
	if lo < 0 || hi < lo || hi > t.n {
		panic(fmt.Sprintf("compute: slice [%d:%d] of a tensor of %d elements", lo, hi, t.n))
	}
	if t.cols == 0 {
		return Tensor{mem: t.mem, off: t.off + lo, n: hi - lo}
	}
	if lo%t.cols != 0 || hi%t.cols != 0 {
		panic(fmt.Sprintf("compute: slice [%d:%d] of columns whose rows have %d elements", lo, hi,
			t.cols))
	}
	return Tensor{mem: t.mem, off: t.off + lo/t.cols*t.row, n: hi - lo, cols: t.cols, row: t.row}
}

// Columns returns the view of the columns lo to hi-1 of t, contiguous rows of width elements. Only
// operations whose comments say so take columns, and only on a backend that is Joined.
func (t Tensor) Columns(width, lo, hi int) Tensor {
	if t.cols > 0 || width <= 0 || t.n%width != 0 || lo < 0 || hi <= lo || hi > width {
		panic(fmt.Sprintf("compute: columns [%d:%d] of rows of %d in a tensor of %d elements", lo,
			hi, width, t.n))
	}
	if t.n == 0 {
		return t
	}
	return Tensor{mem: t.mem, off: t.off + lo, n: t.n / width * (hi - lo), cols: hi - lo,
		row: width}
}

// Rows returns the number of elements in a row of columns, and the distance between the starts of
// rows; 0 and 0 for contiguous elements.
func (t Tensor) Rows() (cols, row int) { return t.cols, t.row }

// ColumnsBefore reports whether t and u are columns of the same rows, and u's directly follow t's.
func (t Tensor) ColumnsBefore(u Tensor) bool {
	return t.cols > 0 && u.cols > 0 && t.mem == u.mem && t.row == u.row && t.off+t.cols == u.off &&
		t.n/t.cols == u.n/u.cols
}

// EndsAt reports whether t, contiguous elements, ends where u starts in the same block.
func (t Tensor) EndsAt(u Tensor) bool {
	return t.cols == 0 && u.cols == 0 && t.mem != nil && t.mem == u.mem && t.off+t.n == u.off
}

// Param is one parameter: a matrix [Rows, Cols], or a vector with Rows 1.
type Param struct {
	Name       string // Hugging Face tensor name
	Shape      []int  // shape in a file: [Rows, Cols], or [Cols] for a vector
	Rows, Cols int
	// weights: Wide; a trained matrix's may be Master, a frozen one's Narrow, Frozen, Q8 or Q4
	W      Tensor
	G      Tensor // gradient, accumulated until zeroed; absent when frozen
	M, V   Tensor // AdamW moments, Wide or Code; absent when frozen
	MScale Tensor // [Blocks(Len)] of M where that is Code; VScale of V. In the same memory as M
	VScale Tensor
	Decay  bool // weight decay applies: matrices, not norms and biases
	// Offset is added to the weights in RMSNorm: 1 for a norm whose file has the difference
	// from 1. W, its gradient and the optimizer's state do not include it.
	Offset float32

	// Live, of a head, is the number of rows that are tokens: the first ones; 0: all. The
	// head's operations read no other row.
	Live int
	// Cap, of a head, is the soft cap of its logits; 0: none.
	Cap float64

	// Derived is a backend's copy of W for products (packed or narrowed).
	// Backend.Refresh and Backend.AdamW update it.
	Derived any
}

// Len returns the number of elements.
func (p *Param) Len() int { return p.Rows * p.Cols }

// Vocab returns V of the head's operations: Live, or all rows.
func (p *Param) Vocab() int {
	if p.Live > 0 {
		return p.Live
	}
	return p.Rows
}

// Projection is one of several matrix products with the same input. Y is y of Linear or dy of
// LinearGrad; the bias B may be nil.
type Projection struct {
	Y    Tensor
	W, B *Param
}

// HeadOut is the results of the language-model head for R rows.
type HeadOut struct {
	LogpR Tensor // log-probability of the target token (natural logarithm)
	EntR  Tensor // entropy of the distribution in nats
	LseR  Tensor // log of the sum of exponentials of the scaled logits
}

// AttnShape is the heads, scale and window of an attention call.
type AttnShape struct {
	H, K, E int     // query heads, key/value heads, head width
	Scale   float64 // usually 1/sqrt(E)
	// a query sees the last Window tokens of those before it, itself included; 0: all
	Window int
	Cap    float64 // soft cap of the scores; 0: none
}

// First returns the first of n positions that the query at the last of them sees.
func (a AttnShape) First(n int) int {
	if a.Window <= 0 {
		return 0
	}
	return max(0, n-a.Window)
}

// Pages maps the positions of cached keys and values to slots. A cache is [pages*PageTokens, K*E],
// and position p of row r is in slot Table[r][p/PageTokens]*PageTokens + p%PageTokens. Rows with
// the same prompt may share its pages.
type Pages struct {
	PageTokens int
	Table      [][]int32 // [R][pages of the row]
	Len        []int32   // [R] number of cached positions, the row's own token included
}

// Indices are the lists of a decoding pass.
type Indices struct {
	IDs, Pos, Slots []int32 // tokens, their positions, positions of the caches
	Pages           Pages
}

// Sampling configures Sample. Filters apply to softmax(logits/Temperature) in
// the order TopK, TopP, MinP; zero values switch them off.
type Sampling struct {
	Temperature float64 // 0 is greedy: the largest logit, the lowest id on a tie
	TopK        int     // keep the K most probable tokens
	TopP        float64 // keep the smallest set with at least this probability
	MinP        float64 // drop tokens less probable than MinP times the most probable
}

// AdamW is one optimizer step's constants (Loshchilov and Hutter, arXiv 1711.05101).
type AdamW struct {
	LR, Beta1, Beta2, Eps float64
	Decay                 float64 // decoupled weight decay; used where Param.Decay
	GradScale             float64 // factor on the gradient: the clip's
	Step                  int     // 1 at the first step, for bias correction
}

// Backend is a device. Its methods are called from one goroutine.
type Backend interface {
	Footprint
	// Name returns the backend and its variant, such as "cpu/avx512".
	Name() string
	// Alloc returns n zeroed elements; what names them in the error when memory runs out.
	Alloc(what string, c Class, n int) (Tensor, error)
	// Free gives t's whole block back; t must be as Alloc returned it.
	Free(t Tensor)
	// As reinterprets the start of t's memory as n elements of class c, Wide or Narrow. The
	// contents are undefined; writing the result destroys t. The result is not freed. As
	// panics if t is too small.
	As(t Tensor, c Class, n int) Tensor
	// Memory returns the number of bytes allocated now, and its maximum so far.
	Memory() (inUse, peak int64)
	// Available returns the number of bytes that Alloc can still hand out; 0 is unknown.
	Available() int64
	// Alone reports whether the bits of a row's results do not depend on the other rows of the
	// call, and AttentionDecode has the bits of Attention. Then log-probabilities of the
	// sampler, or of another pack, need not be computed again.
	Alone() bool
	// Upload and Download copy src to dst, which have equal lengths. Upload to Narrow memory
	// rounds to nearest, ties to even.
	Upload(dst Tensor, src []float32)
	Download(dst []float32, src Tensor)
	// Sync waits for all operations and returns the first failure since the last Sync.
	Sync() error
	// Close frees everything.
	Close() error

	// Repeat runs op. A backend may record op's commands and replay them when Repeat is called
	// again with the same key, tensors and number of indices; the values of indices may differ.
	// op must not allocate or read back, and must not read what it overwrites: it may run
	// twice. in are the lists of indices that op reads, where a backend may run op ahead of the
	// next call, inside the Sample behind this one, to compare its commands: op must then queue
	// the commands that it would queue in the next call, but for what the lists hold, unless an
	// operation runs between the two. Without lists op runs in Repeat alone.
	Repeat(key string, in Indices, op func())

	// Zero: t[i] = 0. Copy: dst[i] = src[i]. Add: y[i] += x[i]. Scale: t[i] *= s, s as a
	// float32. All of any one class; Copy also takes Wide to Narrow, and rounds
	// where Narrow memory is narrower; Add also takes Narrow to Wide.
	Zero(t Tensor)
	Copy(dst, src Tensor)
	Add(y, x Tensor)
	Scale(t Tensor, s float64)

	// Refresh brings p.Derived up to date after p.W was written.
	Refresh(p *Param)

	// Embed: y[n,d] = table.W[ids[n],d], as matrix products see it.
	Embed(yND Tensor, table *Param, ids []int32)
	// EmbedGrad: table.G[ids[n],d] += dy[n,d], n ascending.
	EmbedGrad(table *Param, dyND Tensor, ids []int32)

	// RMSNorm, over rows of w.Cols elements (arXiv 1910.07467):
	//   rstd[n] = 1/sqrt(Σ_d x[n,d]²/D + eps);  y[n,d] = x[n,d]*rstd[n]*(w.Offset + w.W[d])
	// x is Wide or Narrow, y Narrow; y may be x, of either class. x may be columns, whose rows
	// have a multiple of D elements.
	RMSNorm(yND, rstdN, xND Tensor, w *Param, eps float64)
	// RMSNormGrad: with g = dy*(w.Offset + w.W),
	//   dx[n,d] (=, or += if acc) rstd[n]*(g[n,d] - x[n,d]*rstd[n]²*Σ_j g[n,j]*x[n,j]/D)
	//   w.G[d] += Σ_n dy[n,d]*x[n,d]*rstd[n], n ascending (in fixed blocks); skipped if w.G is absent.
	// dx may be dy when acc is false. dy is Narrow; dx and x are both Wide or both Narrow, and
	// both contiguous or both columns, with rows as far apart.
	RMSNormGrad(dxND Tensor, w *Param, dyND, xND, rstdN Tensor, acc bool)

	// Linear: y[n,o] (=, or += if acc) Σ_i x[n,i]*w.W[o,i] + b.W[o]; b may be nil.
	// Each sum is one chain over i ascending, in pairs where a CPU multiplies
	// bfloat16; the bias is added last.
	// x is Narrow; y is Narrow, and may be columns, or Wide with acc: the residual stream.
	Linear(yNO, xNI Tensor, w, b *Param, acc bool)
	// LinearAdd: y[n,o] = r[n,o] + Σ_i x[n,i]*w.W[o,i], where the sum is Linear's without acc. A
	// chain that starts at r would round all terms to r's magnitude, and the residual stream of
	// released models reaches 1e4. y and r are Wide; y may be r.
	LinearAdd(yNO, rNO, xNI Tensor, w *Param)
	// Linears: Linear of the same x for each of ps, without acc. No y may overlap another.
	// On a backend that is Joined one product computes them all, if the ys are adjacent columns
	// (Tensor.ColumnsBefore) and the weights, and biases if any, are adjacent in a block
	// (Tensor.EndsAt), all in the order of ps.
	Linears(ps []Projection, xNI Tensor)
	// LinearsGrad: LinearGrad of the same x for each of ps, whose Y is dy. dx, unless absent,
	// is the sum over ps. If one product computes Linears and the gradients are adjacent too,
	// one product computes dx, and one the weights' gradients.
	LinearsGrad(dxNI Tensor, ps []Projection, xNI Tensor)
	// LinearGrad: dx[n,i] (=, or += if acc) Σ_o dy[n,o]*w.W[o,i], unless dx is absent;
	//   w.G[o,i] += Σ_n dy[n,o]*x[n,i];  b.G[o] += Σ_n dy[n,o]; each unless G or x is absent or b nil.
	// dx and x are Narrow, dy Narrow or Wide; dx and dy may be columns. If x is absent, w.G does
	// not change. Where a CPU multiplies bfloat16, w.G's sums go over pairs of the call's
	// tokens: an odd number of them ends with half a pair.
	LinearGrad(dxNI Tensor, w, b *Param, dyNO, xNI Tensor, acc bool)

	// Rope rotates, in place, each head's pair (e, e+E/2) by the angle of its position:
	//   (a, b) -> (a*cos - b*sin, b*cos + a*sin), cos and sin from the rows pos[n] of
	//   table [P, E]: E/2 cosines, then E/2 sines. inverse turns back: the gradient.
	// x is Narrow, and may be columns.
	Rope(xNHE Tensor, heads, headDim int, pos []int32, table Tensor, inverse bool)

	// Attention, causal within each sequence; head h reads key/value head h/(H/K):
	//   s_j = Scale*Σ_e q[i,h,e]*k[j,·,e], with a Cap Cap*tanh(s_j/Cap) of it,
	//   for the j that i sees: j <= i of i's segment,
	//   and before them all tokens of its ancestors (Pack), the outermost first; with a Window W
	//   the last W of these, which are j > i-W where both are counted from the sequence's beginning
	//   o[i,h,e] = Σ_j exp(s_j - lse[i,h])*v[j,·,e];  lse[i,h] = log Σ_j exp(s_j)
	// lse is [N,H]; all else is Narrow. q, k and v may be columns. The bits of a row do not
	// depend on whether its sequence shares a prefix, or into how many segments that is cut.
	Attention(oNHE, lseNH, qNHE, kNKE, vNKE Tensor, a AttnShape, p Pack)
	// AttentionGrad overwrites dq, dk and dv:
	//   p_ij = exp(s_ij - lse_i);  dv_j = Σ p_ij*do_i;  dp_ij = do_i·v_j
	//   ds_ij = p_ij*(dp_ij - do_i·o_i), with a Cap times 1 - (s_ij/Cap)²;  dq_i = Scale*Σ_j ds_ij*k_j;  dk_j = Scale*Σ_i ds_ij*q_i
	// with dk and dv summed over the query heads that share a key/value head, and over the
	// queries i that see j, ascending: those of its segment, then those of its descendants.
	// All but lse is Narrow. q, k and v may be columns; the rows of dq, dk and dv are as far
	// apart as theirs.
	AttentionGrad(dqNHE, dkNKE, dvNKE, doNHE, oNHE, lseNH, qNHE, kNKE, vNKE Tensor, a AttnShape,
		p Pack)
	// CacheWrite: cache[slots[n], ·] = x[n, ·], rows of width elements, all Narrow.
	// x may be columns.
	CacheWrite(cache, xNW Tensor, width int, slots []int32)
	// RopeCache is Rope of q and k and CacheWrite of k and v, for decoding. k does not change;
	// slots are distinct:
	//   q[n,·] = rotated(q[n,·], pos[n])
	//   kCache[slots[n],·] = rotated(k[n,·], pos[n]);  vCache[slots[n],·] = v[n,·]
	// All but table is Narrow; q, k and v may be columns. It has the bits of Rope and CacheWrite.
	RopeCache(qNHE, kNKE, vNKE, kCache, vCache Tensor, a AttnShape, pos []int32, table Tensor,
		slots []int32)
	// AttentionDecode is Attention for one query a row over cached keys and values: row r sees its
	// first pages.Len[r] positions, with a Window the last of them. All Narrow; q may be columns.
	// On the CPU it has the bits of Attention.
	AttentionDecode(oRHE, qRHE, kCache, vCache Tensor, a AttnShape, pages Pages)

	// GatedConv is a short convolution by channel between two gates (LFM2, arXiv 2511.23404), causal
	// within each sequence. A row of g is b, c and x, D elements each; w is [D,J]:
	//   u[n,d] = b[n,d]*x[n,d];  v[n,d] = Σ_j w.W[d,j]*u[back(n,J-1-j),d], j ascending
	//   y[n,d] = c[n,d]*v[n,d]
	// back(n,i) is the i-th token before n in n's sequence (Pack.Before); terms before the
	// sequence's first token are left out. All but w is Narrow; u is rounded before v reads it.
	GatedConv(yND, uND, gN3D Tensor, w *Param, p Pack)
	// GatedConvGrad overwrites dg, rows of db, dc and dx, and u, which it computes again:
	//   dc = dy*v;  dv = dy*c;  du[m,d] = Σ w.W[d,J-1-i]*dv[n,d] over the n and i with back(n,i) = m,
	//   n ascending;  db = du*x;  dx = du*b
	//   w.G[d,j] += Σ_n dv[n,d]*u[back(n,J-1-j),d], n ascending (in fixed blocks); skipped if w.G is
	//   absent.
	// No two tensors overlap.
	GatedConvGrad(dgN3D, uND Tensor, w *Param, dyND, gN3D Tensor, p Pack)
	// GatedConvDecode is GatedConv for one token a row, with a cache [slots, D] of u: it writes row
	// r's u to slots[r], which are distinct, then reads those of the last J of the row's first
	// pages.Len[r] positions, the token's own the last. It has the bits of GatedConv.
	GatedConvDecode(yRD, gR3D, cache Tensor, w *Param, slots []int32, pages Pages)

	// SiLUConv is a convolution by channel with silu behind it, causal within each sequence; w is
	// [D,J]:
	//   v[n,d] = Σ_j w.W[d,j]*x[back(n,J-1-j),d], j ascending;  y[n,d] = silu(v[n,d])
	// back(n,i) is the i-th token before n in n's sequence; terms before the sequence's first token
	// are left out. The state behind a token is the last J-1 rows of x of its sequence, the oldest
	// first, with zeros before the first [J-1,D]. x and y are Narrow, and do not overlap. The bits of
	// a row do not depend on whether its sequence shares a prefix, or is cut by states.
	SiLUConv(yND, xND Tensor, w *Param, p Pack, st States)
	// SiLUConvGrad overwrites dx:
	//   dv = dy*silu'(v);  dx[m,d] = Σ w.W[d,J-1-i]*dv[n,d] over the n and i with back(n,i) = m,
	//   n ascending
	//   w.G[d,j] += Σ_n dv[n,d]*x[back(n,J-1-j),d], n ascending (in fixed blocks); skipped if w.G is
	//   absent.
	// All but w is Narrow; dx overlaps neither dy nor x.
	SiLUConvGrad(dxND Tensor, w *Param, dyND, xND Tensor, p Pack)

	// GatedDelta is the gated delta rule (arXiv 2412.06464), by value head h with key head h/(H/K).
	// A row of x is the q and k of K heads, E elements each, and the v of H heads, F elements each
	// (C elements in all, DeltaShape.Width); S is a state [E,F], 0 before a sequence's first token:
	//   q̂ = q/sqrt(Σq² + eps)/sqrt(E);  k̂ = k/sqrt(Σk² + eps);  eps = DeltaEps
	//   g = -exp(A.W[h])*softplus(a[n,h] + dt.W[h]);  β = 1/(1+exp(-b[n,h]))
	//   S = exp(g)*S;  d = β*(v - k̂ᵀS);  S = S + k̂⊗d;  o[n,h,·] = q̂ᵀS
	// All but A and dt, which have H weights, and states is Narrow. A slot of states has
	// Footprint.DeltaState elements, which only the backend's own calls understand; zeros are the
	// state of no tokens. A backend that is Alone gives a row the same bits whether or not its
	// sequence shares a prefix, and in however many calls it is computed: by the token, too.
	GatedDelta(oNHF, xNC, aNH, bNH Tensor, A, dt *Param, s DeltaShape, p Pack, st States)
	// GatedDeltaGrad overwrites dx, da and db, and adds to A.G and dt.G unless they are absent. With
	// dS the gradient by the state behind a token, which is the sum of what those that follow it
	// leave, those of its own segment first, then by segments, the last first:
	//   dS += q̂⊗do;  dq̂ = S do;  dd = dSᵀk̂;  dβ = dd·(v - k̂ᵀS');  dv = β*dd
	//   dk̂ = dS d - S'(β*dd);  dg = Σ S'∘(dS - k̂⊗(β*dd)), S' = exp(g)*S before;
	//   then dS = exp(g)*(dS - k̂⊗(β*dd)) for the token before
	// and the derivatives of q̂, k̂, g and β by what they are made of; dq̂ and dk̂ are summed over
	// the value heads that share them, and A.G and dt.G over tokens, in a fixed order. o is
	// GatedDelta's.
	// No two tensors overlap.
	GatedDeltaGrad(dxNC, daNH, dbNH, doNHF, oNHF, xNC, aNH, bNH Tensor, A, dt *Param, s DeltaShape,
		p Pack)

	// Gated is a gated linear unit: y = act(gate)*up (arXiv 2002.05202). All Narrow. gate and up may
	// be columns, with rows as far apart.
	Gated(act Activation, yNF, gateNF, upNF Tensor)
	// GatedGrad: dgate = dy*up*act'(gate), dup = dy*act(gate), and unless y is absent
	// y = act(gate)*up again, with the bits of Gated; dgate may be dy. All Narrow. dy may be columns,
	// and so may gate, up, dgate and dup together, with rows as far apart.
	GatedGrad(act Activation, yNF, dgateNF, dupNF, dyNF, gateNF, upNF Tensor)

	// LogProb, for the rows of h that rows selects, in chunks of the vocabulary so
	// that no [R,V] matrix is kept, here and below with V = w.Vocab():
	//   x_v = Σ_d h[rows[r],d]*w.W[v,d], with a w.Cap Cap*tanh(x_v/Cap) of it
	//   z_v = invTemp*x_v;  lse = log Σ_v exp(z_v)
	//   logp = z_target - lse;  ent = lse - Σ_v exp(z_v-lse)*z_v
	// h is Narrow, here and below.
	LogProb(out HeadOut, hND Tensor, w *Param, rows, targets []int32, invTemp float64)
	// LogProbGrad, from LogProb's out; dent may be absent:
	//   p_v = exp(z_v - lse);  dz_v = dlogp*(1[v=target] - p_v) - dent*p_v*(z_v - lse + ent)
	//   with a w.Cap dz_v is then multiplied by 1 - (x_v/Cap)²
	//   dh[rows[r],d] += invTemp*Σ_v dz_v*w.W[v,d];  w.G[v,d] += invTemp*Σ_r dz_v*h[rows[r],d]
	// dh, Narrow, is absent or accumulated into. Equal rows, which predict several tokens, are
	// adjacent, and are added to dh one by one.
	LogProbGrad(dhND Tensor, w *Param, out HeadOut, dlogpR, dentR, hND Tensor, rows,
		targets []int32, invTemp float64)
	// Sample draws one token for each of R rows of h. ids[r] is the first token, in the
	// order of ids, at which the cumulative probability of the kept tokens exceeds
	// u[r] (uniform in [0,1)) times their total. logp[r] is the token's log-probability
	// under the temperature before any filter (temperature 1 when greedy), with the
	// bits of LogProb for the same logits.
	Sample(ids []int32, logp []float32, hRD Tensor, w *Param, s Sampling, u []float64)

	// Score is the value head, in float32 whatever the backbone:
	//   s[r] = Σ_d h[rows[r],d]*w.W[0,d]
	Score(sR, hND Tensor, w *Param, rows []int32)
	// ScoreGrad: dh[rows[r],d] += ds[r]*w.W[0,d];  w.G[0,d] += Σ_r ds[r]*h[rows[r],d]. rows are
	// distinct; h and dh are Narrow.
	ScoreGrad(dhND Tensor, w *Param, dsR, hND Tensor, rows []int32)

	// SumSquares is Σ t[i]² over all elements of all ts in float64, in the order of ts,
	// each in fixed blocks.
	SumSquares(ts []Tensor) float64
	// AdamW steps each p of ps, which are distinct, and refreshes p.Derived:
	//   g = G*GradScale;  M = β1*M + (1-β1)*g;  V = β2*V + (1-β2)*g²
	//   W = W*(1 - LR*Decay if p.Decay) - LR/(1-β1^Step) * M/(sqrt(V/(1-β2^Step)) + Eps)
	// G does not change. M and V of class Code are decoded, updated and encoded again as in
	// Moments; W is updated by the values before they are encoded.
	AdamW(ps []*Param, a AdamW)
}

// Optional interfaces of a Backend or a Footprint. Callers use a type assertion, and have a
// fallback where it fails.

// Counted is a Backend that counts how often it fell back from a fast path to a slow one.
// Results are right either way: only the counts show the difference.
type Counted interface {
	// Counts returns the backend's counters since it was opened.
	Counts() Counts
}

// Hollow is a Backend without memory behind its tensors: it counts what operations would
// cost. Values that only fill its memory need not be computed.
type Hollow interface{ Hollow() }

// HostMemory is a Backend whose tensors, or some of them, lie in the host's memory.
type HostMemory interface {
	// Host returns the elements of t, which the caller may read and write from several
	// goroutines; nil where t's memory is not float32 in t's order.
	Host(t Tensor) []float32
}

// HostView returns t's elements in the host's memory, or nil if be has none (HostMemory).
func HostView(be Backend, t Tensor) []float32 {
	if b, ok := be.(HostMemory); ok {
		return b.Host(t)
	}
	return nil
}

// BlockSums is a Backend whose SumSquares adds up sums of fixed blocks, one after the other.
// So several ranks that each have a part of a tensor, cut at a multiple of SumBlock, compute
// the sum with the bits of a single process.
type BlockSums interface {
	// SumBlock returns the number of elements of a block.
	SumBlock() int
	// SquaresOfBlocks returns the sum of squares of each block of t. The next call overwrites
	// the slice.
	SquaresOfBlocks(t Tensor) []float64
}

// RanksFootprint is a Footprint that takes more memory where several ranks compute together.
type RanksFootprint interface {
	// RanksOverhead returns the number of bytes taken in addition to Overhead.
	RanksOverhead() int64
}

// Ranks are what a Backend needs of the processes that compute together (package comm).
// All ranks make the same calls in the same order.
type Ranks interface {
	Rank() int
	Size() int
	// Gather gives every rank the bytes of each rank, by rank; what names them in errors.
	Gather(what string, mine []byte) ([][]byte, error)
	// Device calls f, which moves elements between the ranks' devices, once every rank has
	// called Device with the same number of elements. sent is the number of bytes that each
	// rank then sends, for the count of traffic. While f waits it calls keepOn often, and
	// gives up with keepOn's error.
	Device(what string, elements int, sent int64, f func(keepOn func() error) error) error
}

// Connectable is a Backend that sums and gathers device memory over ranks without a copy
// through the host's memory.
type Connectable interface {
	// Connect connects the devices of the ranks. how names the kind of connection, or the
	// reason why there is none: sums then go over the host.
	Connect(r Ranks) (how string, err error)
	// Connected reports whether Connect has connected the devices.
	Connected() bool
	// AllReduce replaces t, which is Wide, by the sum of all ranks' t. It is called inside
	// of Ranks.Device.
	AllReduce(t Tensor, keepOn func() error) error
	// GatherWeights copies byRank[r] of rank r to every other rank; byRank is the same on all
	// ranks. Of Master tensors it copies what products read or, if rest, only the bits of the
	// float32 that products do not read. It is called inside of Ranks.Device.
	GatherWeights(byRank [][]Tensor, rest bool, keepOn func() error) error
}
