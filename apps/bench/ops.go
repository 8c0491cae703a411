package bench

import (
	"fmt"
	"math"
	"time"

	"gad/internal/compute"
	"gad/model"
)

// Op is one operation at a size that the shape has.
type Op struct {
	Name string `json:"op"`
	Size string `json:"size"`
	Stat
	Use
}

// rotated is the bytes of all sets of an operation's operands. Calls take the sets in turn, so
// that operands come from memory and not from a cache, as in a step, where each layer has its
// own.
const rotated = 128 << 20

// copies is the number of sets of operands, of so many bytes each.
func copies(bytes float64) int { return 1 + int(rotated/max(bytes, rotated/64)) }

// bed allocates an operation's operands. err is the first failure.
type bed struct {
	be  compute.Backend
	mem []compute.Tensor
	err error
}

// t is n random elements.
func (b *bed) t(c compute.Class, n int) (t compute.Tensor) {
	if b.err == nil {
		if t, b.err = compute.Random(b.be, c, n); b.err == nil {
			b.mem = append(b.mem, t)
		}
	}
	return t
}

// param is a weight matrix [rows, cols], with a gradient if it is trained.
func (b *bed) param(rows, cols int, trained bool) *compute.Param {
	p := &compute.Param{Name: "bench", Shape: []int{rows, cols}, Rows: rows, Cols: cols,
		Decay: rows > 1, W: b.t(compute.Wide, rows*cols)}
	if rows == 1 {
		p.Shape = []int{cols}
	}
	if trained {
		p.G = b.t(compute.Wide, rows*cols)
	}
	if b.err == nil {
		b.be.Refresh(p)
	}
	return p
}

func (b *bed) free() {
	for _, t := range b.mem {
		b.be.Free(t)
	}
}

// trial is an operation to be measured. set makes operands and returns the call on them.
type trial struct {
	name, size string
	set        func(b *bed) func()
}

// trialsOf are the trials of a shape, on be. After a call last has its cost.
func trialsOf(be compute.Backend, c model.Config, load Load) (ts []trial, last *lastCost) {
	last = &lastCost{}
	be = compute.Observe(be, elementsOf(be), last)
	return append(products(be, c, load), others(be, c, load)...), last
}

// lastCost is the compute.Observer that keeps the cost of the last operation.
type lastCost struct{ compute.Cost }

func (l *lastCost) Before(_ string, c compute.Cost) { l.Cost = c }
func (l *lastCost) After()                          {}

// measureOps times every trial, an equal part of the budget each.
func measureOps(be compute.Backend, l Limits, c model.Config, load Load,
	budget time.Duration) ([]Op, error) {
	trials, last := trialsOf(be, c, load)
	var ops []Op
	for _, t := range trials {
		b := &bed{be: be}
		calls := []func(){t.set(b)}
		if b.err == nil {
			calls[0]()
			for range copies(last.Bytes) - 1 {
				calls = append(calls, t.set(b))
			}
		}
		op := Op{Name: t.name, Size: t.size}
		err := b.err
		if err == nil {
			op.Stat, err = measure(be, calls, budget/time.Duration(len(trials)))
		}
		b.free()
		if err != nil {
			return nil, fmt.Errorf("bench: %s %s: %w", t.name, t.size, err)
		}
		op.Use = l.use(last.Cost, op.Seconds)
		ops = append(ops, op)
	}
	return ops, nil
}

// measure times the calls, one after the other and again from the first, for about as long as
// budget. Times are of batches of a millisecond or more, divided by their calls, since a device
// may continue after a call has returned.
func measure(be compute.Backend, calls []func(), budget time.Duration) (Stat, error) {
	began := time.Now()
	for _, call := range calls { // the first write to a page allocates it
		call()
	}
	if err := be.Sync(); err != nil {
		return Stat{}, err
	}
	each := time.Since(began) / time.Duration(len(calls))
	batch := max(1, int(time.Millisecond/max(each, 1)))
	var times []float64
	for next := 0; len(times) < 3 || time.Since(began) < budget; {
		at := time.Now()
		for range batch {
			calls[next%len(calls)]()
			next++
		}
		if err := be.Sync(); err != nil {
			return Stat{}, err
		}
		times = append(times, time.Since(at).Seconds()/float64(batch))
	}
	return summary(times), nil
}

// products are Linear and its gradients at each matrix of a block, and at a few
// rows, as in decoding, at the largest.
func products(be compute.Backend, c model.Config, load Load) []trial {
	n, q, kv := load.Seqs*load.Length, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	shapes := [][2]int{{c.Hidden, q}, {c.Hidden, kv}, {c.Hidden, c.FFN}, {c.FFN, c.Hidden}}
	if q != c.Hidden {
		shapes = append(shapes, [2]int{q, c.Hidden})
	}
	var ts []trial
	forward := func(rows, i, o int) trial {
		return trial{"Linear", fmt.Sprintf("%d x %d -> %d", rows, i, o), func(b *bed) func() {
			x, y, w :=
				b.t(compute.Narrow, rows*i), b.t(compute.Narrow, rows*o), b.param(o, i, false)
			return func() { be.Linear(y, x, w, nil, false) }
		}}
	}
	for _, d := range shapes {
		i, o := d[0], d[1]
		size := fmt.Sprintf("%d x %d -> %d", n, i, o)
		ts = append(ts, forward(n, i, o),
			trial{"LinearGrad, input", size, func(b *bed) func() {
				dx, dy, w :=
					b.t(compute.Narrow, n*i), b.t(compute.Narrow, n*o), b.param(o, i, false)
				return func() { be.LinearGrad(dx, w, nil, dy, compute.Tensor{}, false) }
			}},
			trial{"LinearGrad, weight", size, func(b *bed) func() {
				x, dy, w := b.t(compute.Narrow, n*i), b.t(compute.Narrow, n*o), b.param(o, i, true)
				return func() { be.LinearGrad(compute.Tensor{}, w, nil, dy, x, false) }
			}})
	}
	for _, rows := range []int{load.Samples, 1} {
		ts = append(ts, forward(rows, c.Hidden, q), forward(rows, c.Hidden, c.FFN),
			forward(rows, c.FFN, c.Hidden))
	}
	return ts
}

// others are the operations that are not products of a block.
func others(be compute.Backend, c model.Config, load Load) []trial {
	n, q, kv, rows := load.Seqs*load.Length, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, load.Samples
	a := compute.AttnShape{H: c.Heads, K: c.KVHeads, E: c.HeadDim,
		Scale: 1 / math.Sqrt(float64(c.HeadDim))}
	pack := compute.Pack{Start: make([]int32, load.Seqs+1)}
	for i := range pack.Start {
		pack.Start[i] = int32(i * load.Length)
	}
	const page = 16
	each := (load.Prompt + load.New + page - 1) / page // pages of a row
	pages := compute.Pages{PageTokens: page}
	for r := range rows {
		table := make([]int32, each)
		for p := range table {
			table[p] = int32(r*each + p)
		}
		pages.Table, pages.Len =
			append(pages.Table, table), append(pages.Len, int32(load.Prompt+load.New))
	}
	pos, all, targets := make([]int32, n), make([]int32, n), make([]int32, n)
	for i := range pos {
		pos[i], all[i], targets[i] = int32(i%load.Length), int32(i), int32(i%c.Vocab)
	}
	u := make([]float64, rows)
	for i := range u {
		u[i] = (float64(i) + 0.5) / float64(rows)
	}
	ids, logp := make([]int32, rows), make([]float32, rows)
	tokens, wide :=
		fmt.Sprintf("%d x %d", load.Seqs, load.Length), fmt.Sprintf("%d x %d", n, c.Hidden)
	head := func(rows int) string { return fmt.Sprintf("%d x %d -> %d", rows, c.Hidden, c.Vocab) }
	N, W := compute.Narrow, compute.Wide
	return []trial{
		{"Attention", tokens, func(b *bed) func() {
			o, lse, qq, k, v :=
				b.t(N, n*q), b.t(W, n*c.Heads), b.t(N, n*q), b.t(N, n*kv), b.t(N, n*kv)
			return func() { be.Attention(o, lse, qq, k, v, a, pack) }
		}},
		{"AttentionGrad", tokens, func(b *bed) func() {
			o, lse, qq, k, v :=
				b.t(N, n*q), b.t(W, n*c.Heads), b.t(N, n*q), b.t(N, n*kv), b.t(N, n*kv)
			dq, dk, dv, do := b.t(N, n*q), b.t(N, n*kv), b.t(N, n*kv), b.t(N, n*q)
			if b.err == nil {
				be.Attention(o, lse, qq, k, v, a, pack)
			}
			return func() { be.AttentionGrad(dq, dk, dv, do, o, lse, qq, k, v, a, pack) }
		}},
		{"AttentionDecode", fmt.Sprintf("%d x %d", rows, load.Prompt+load.New),
			func(b *bed) func() {
				o, qq, k, v :=
					b.t(N, rows*q), b.t(N, rows*q), b.t(N, rows*each*page*kv),
					b.t(N, rows*each*page*kv)
				return func() { be.AttentionDecode(o, qq, k, v, a, pages) }
			}},
		{"RMSNorm", wide, func(b *bed) func() {
			y, r, x, w :=
				b.t(N, n*c.Hidden), b.t(W, n), b.t(W, n*c.Hidden), b.param(1, c.Hidden, false)
			return func() { be.RMSNorm(y, r, x, w, c.RMSEps) }
		}},
		{"RMSNormGrad", wide, func(b *bed) func() {
			dx, dy, x, r, w :=
				b.t(W, n*c.Hidden), b.t(N, n*c.Hidden), b.t(W, n*c.Hidden), b.t(W, n),
				b.param(1, c.Hidden, true)
			return func() { be.RMSNormGrad(dx, w, dy, x, r, false) }
		}},
		{"SwiGLU", fmt.Sprintf("%d x %d", n, c.FFN), func(b *bed) func() {
			y, gate, up := b.t(N, n*c.FFN), b.t(N, n*c.FFN), b.t(N, n*c.FFN)
			return func() { be.SwiGLU(y, gate, up) }
		}},
		{"SwiGLUGrad", fmt.Sprintf("%d x %d", n, c.FFN), func(b *bed) func() {
			y, dg, du, dy, gate, up :=
				b.t(N, n*c.FFN), b.t(N, n*c.FFN), b.t(N, n*c.FFN), b.t(N, n*c.FFN), b.t(N, n*c.FFN),
				b.t(N, n*c.FFN)
			return func() { be.SwiGLUGrad(y, dg, du, dy, gate, up) }
		}},
		{"Rope", fmt.Sprintf("%d x %d x %d", n, c.Heads, c.HeadDim), func(b *bed) func() {
			x, table := b.t(N, n*q), b.t(W, load.Length*c.HeadDim)
			return func() { be.Rope(x, c.Heads, c.HeadDim, pos, table, false) }
		}},
		{"LogProb", head(n), func(b *bed) func() {
			h, w, out :=
				b.t(N, n*c.Hidden), b.param(c.Vocab, c.Hidden, false),
				compute.HeadOut{LogpR: b.t(W, n), EntR: b.t(W, n), LseR: b.t(W, n)}
			return func() { be.LogProb(out, h, w, all, targets, 1) }
		}},
		{"LogProbGrad", head(n), func(b *bed) func() {
			h, w, out :=
				b.t(N, n*c.Hidden), b.param(c.Vocab, c.Hidden, true),
				compute.HeadOut{LogpR: b.t(W, n), EntR: b.t(W, n), LseR: b.t(W, n)}
			dh, dl := b.t(N, n*c.Hidden), b.t(W, n)
			if b.err == nil {
				be.LogProb(out, h, w, all, targets, 1)
			}
			return func() { be.LogProbGrad(dh, w, out, dl, compute.Tensor{}, h, all, targets, 1) }
		}},
		{"Sample", head(rows), func(b *bed) func() {
			h, w := b.t(N, rows*c.Hidden), b.param(c.Vocab, c.Hidden, false)
			return func() { be.Sample(ids, logp, h, w, compute.Sampling{Temperature: 1}, u) }
		}},
		{"AdamW", fmt.Sprintf("%d x %d", c.FFN, c.Hidden), func(b *bed) func() {
			p := b.param(c.FFN, c.Hidden, true)
			p.M, p.V = b.t(W, p.Len()), b.t(W, p.Len())
			x, y := b.t(N, c.Hidden), b.t(N, c.FFN)
			if b.err == nil {
				be.Zero(p.V) // a second moment is not negative
				be.Linear(y, x, p, nil, false)
			}
			step := 0
			return func() {
				step++
				be.AdamW([]*compute.Param{p},
					compute.AdamW{LR: 1e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, GradScale: 1,
						Step: step})
			}
		}},
	}
}
