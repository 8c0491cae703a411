package bench

import (
	"fmt"
	"math"
	"time"

	"gad/internal/compute"
	"gad/model"
)

// Op is the measurement of one operation at a size of the shape.
type Op struct {
	Name string `json:"op"`
	Size string `json:"size"`
	Stat
	Use
}

// operandBytes is the size of all sets of an operation's operands. Calls use the sets in turn, so
// that operands come from memory and not from a cache: as in a step, where each layer has its own.
const operandBytes = 128 << 20

// copies returns the number of sets of operands of so many bytes.
func copies(bytes float64) int { return 1 + int(operandBytes/max(bytes, operandBytes/64)) }

// operands allocates the operands of an operation. err is the first error; after it the methods
// return empty tensors.
type operands struct {
	be  compute.Backend
	mem []compute.Tensor
	err error
}

// t returns a tensor of n random elements.
func (b *operands) t(c compute.Class, n int) (t compute.Tensor) {
	if b.err == nil {
		if t, b.err = compute.Random(b.be, c, n); b.err == nil {
			b.mem = append(b.mem, t)
		}
	}
	return t
}

// param returns a weight matrix [rows, cols], with a gradient if it is trained.
func (b *operands) param(rows, cols int, trained bool) *compute.Param {
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

// free frees all operands.
func (b *operands) free() {
	for _, t := range b.mem {
		b.be.Free(t)
	}
}

// trial is an operation to measure. set allocates operands and returns the call on them.
type trial struct {
	name, size string
	set        func(b *operands) func()
}

// trialsOf returns the trials of a shape on be. After a call, last is its cost.
func trialsOf(be compute.Backend, c model.Config, load Load) (ts []trial, last *compute.Cost) {
	last = &compute.Cost{}
	be = compute.Observe(be, elementsOf(be),
		observer{func(_ string, c compute.Cost) { *last = c }, func() {}})
	return append(productTrials(be, c, load), otherTrials(be, c, load)...), last
}

// observer is a compute.Observer of two functions.
type observer struct {
	begin func(op string, c compute.Cost)
	end   func()
}

// Before calls begin at the start of an operation.
func (o observer) Before(op string, c compute.Cost) { o.begin(op, c) }

// After calls end at the end of an operation.
func (o observer) After() { o.end() }

// measureOps times every trial, each for an equal part of the budget.
func measureOps(be compute.Backend, l Limits, c model.Config, load Load,
	budget time.Duration) ([]Op, error) {
	trials, last := trialsOf(be, c, load)
	var ops []Op
	for _, t := range trials {
		b := &operands{be: be}
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
		op.Use = l.use(*last, op.Seconds)
		ops = append(ops, op)
	}
	return ops, nil
}

// measure times the calls, one after the other and again from the first, for about the budget. A
// time is that of a batch of a millisecond or more, divided by its calls, since a device may
// continue after a call has returned.
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

// productTrials returns the trials of Linear and its gradients: of each matrix of a block with the
// rows of a step, and of the largest with a few rows, as in decoding.
func productTrials(be compute.Backend, c model.Config, load Load) []trial {
	n, q, kv := load.Seqs*load.Length, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	shapes := [][2]int{{c.Hidden, q}, {c.Hidden, kv}, {c.Hidden, c.FFN}, {c.FFN, c.Hidden}}
	if q != c.Hidden {
		shapes = append(shapes, [2]int{q, c.Hidden})
	}
	var ts []trial
	forward := func(rows, i, o int) trial {
		return trial{"Linear", fmt.Sprintf("%d x %d -> %d", rows, i, o), func(b *operands) func() {
			x, y, w :=
				b.t(compute.Narrow, rows*i), b.t(compute.Narrow, rows*o), b.param(o, i, false)
			return func() { be.Linear(y, x, w, nil, false) }
		}}
	}
	for _, d := range shapes {
		i, o := d[0], d[1]
		size := fmt.Sprintf("%d x %d -> %d", n, i, o)
		ts = append(ts, forward(n, i, o),
			trial{"LinearGrad, input", size, func(b *operands) func() {
				dx, dy, w :=
					b.t(compute.Narrow, n*i), b.t(compute.Narrow, n*o), b.param(o, i, false)
				return func() { be.LinearGrad(dx, w, nil, dy, compute.Tensor{}, false) }
			}},
			trial{"LinearGrad, weight", size, func(b *operands) func() {
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

// otherTrials returns the trials of the operations other than products of a block.
func otherTrials(be compute.Backend, c model.Config, load Load) []trial {
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
		{"Attention", tokens, func(b *operands) func() {
			o, lse, qq, k, v :=
				b.t(N, n*q), b.t(W, n*c.Heads), b.t(N, n*q), b.t(N, n*kv), b.t(N, n*kv)
			return func() { be.Attention(o, lse, qq, k, v, a, pack) }
		}},
		{"AttentionGrad", tokens, func(b *operands) func() {
			o, lse, qq, k, v :=
				b.t(N, n*q), b.t(W, n*c.Heads), b.t(N, n*q), b.t(N, n*kv), b.t(N, n*kv)
			dq, dk, dv, do := b.t(N, n*q), b.t(N, n*kv), b.t(N, n*kv), b.t(N, n*q)
			if b.err == nil {
				be.Attention(o, lse, qq, k, v, a, pack)
			}
			return func() { be.AttentionGrad(dq, dk, dv, do, o, lse, qq, k, v, a, pack) }
		}},
		{"AttentionDecode", fmt.Sprintf("%d x %d", rows, load.Prompt+load.New),
			func(b *operands) func() {
				o, qq, k, v :=
					b.t(N, rows*q), b.t(N, rows*q), b.t(N, rows*each*page*kv),
					b.t(N, rows*each*page*kv)
				return func() { be.AttentionDecode(o, qq, k, v, a, pages) }
			}},
		{"RMSNorm", wide, func(b *operands) func() {
			y, r, x, w :=
				b.t(N, n*c.Hidden), b.t(W, n), b.t(W, n*c.Hidden), b.param(1, c.Hidden, false)
			return func() { be.RMSNorm(y, r, x, w, c.RMSEps) }
		}},
		{"RMSNormGrad", wide, func(b *operands) func() {
			dx, dy, x, r, w :=
				b.t(W, n*c.Hidden), b.t(N, n*c.Hidden), b.t(W, n*c.Hidden), b.t(W, n),
				b.param(1, c.Hidden, true)
			return func() { be.RMSNormGrad(dx, w, dy, x, r, false) }
		}},
		{"SwiGLU", fmt.Sprintf("%d x %d", n, c.FFN), func(b *operands) func() {
			y, gate, up := b.t(N, n*c.FFN), b.t(N, n*c.FFN), b.t(N, n*c.FFN)
			return func() { be.Gated(compute.SiLU, y, gate, up) }
		}},
		{"SwiGLUGrad", fmt.Sprintf("%d x %d", n, c.FFN), func(b *operands) func() {
			y, dg, du, dy, gate, up :=
				b.t(N, n*c.FFN), b.t(N, n*c.FFN), b.t(N, n*c.FFN), b.t(N, n*c.FFN), b.t(N, n*c.FFN),
				b.t(N, n*c.FFN)
			return func() { be.GatedGrad(compute.SiLU, y, dg, du, dy, gate, up) }
		}},
		{"Rope", fmt.Sprintf("%d x %d x %d", n, c.Heads, c.HeadDim), func(b *operands) func() {
			x, table := b.t(N, n*q), b.t(W, load.Length*c.HeadDim)
			return func() { be.Rope(x, c.Heads, c.HeadDim, pos, table, false) }
		}},
		{"LogProb", head(n), func(b *operands) func() {
			h, w, out :=
				b.t(N, n*c.Hidden), b.param(c.Vocab, c.Hidden, false),
				compute.HeadOut{LogpR: b.t(W, n), EntR: b.t(W, n), LseR: b.t(W, n)}
			return func() { be.LogProb(out, h, w, all, targets, 1) }
		}},
		{"LogProbGrad", head(n), func(b *operands) func() {
			h, w, out :=
				b.t(N, n*c.Hidden), b.param(c.Vocab, c.Hidden, true),
				compute.HeadOut{LogpR: b.t(W, n), EntR: b.t(W, n), LseR: b.t(W, n)}
			dh, dl := b.t(N, n*c.Hidden), b.t(W, n)
			if b.err == nil {
				be.LogProb(out, h, w, all, targets, 1)
			}
			return func() { be.LogProbGrad(dh, w, out, dl, compute.Tensor{}, h, all, targets, 1) }
		}},
		{"Sample", head(rows), func(b *operands) func() {
			h, w := b.t(N, rows*c.Hidden), b.param(c.Vocab, c.Hidden, false)
			return func() { be.Sample(ids, logp, h, w, compute.Sampling{Temperature: 1}, u) }
		}},
		{"AdamW", fmt.Sprintf("%d x %d", c.FFN, c.Hidden), func(b *operands) func() {
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
