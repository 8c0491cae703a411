package bench

import (
	"cmp"
	"slices"
	"time"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
)

// Used is what one operation took of a stage.
type Used struct {
	Name     string  `json:"op"`
	Calls    int     `json:"calls"`
	Launches int     `json:"launches,omitempty"` // kernels and products; of a prediction
	Seconds  float64 `json:"seconds"`
	Part     float64 `json:"part"` // of the stage's time
	Use
}

// profile is a backend that, while it is on, counts what each operation takes. It
// is of use where an operation is done when it returns: on the CPU.
type profile struct {
	compute.Backend
	s  sizes
	on bool
	by map[string]*tally
}

type tally struct {
	cost
	calls int
	spent time.Duration
}

// profiled is be with a profile around it, or be itself where that would not measure.
func profiled(be compute.Backend) (compute.Backend, *profile) {
	if _, ok := be.(*cpu.Backend); !ok {
		return be, nil
	}
	p := &profile{Backend: be, s: sizesOf(be)}
	return p, p
}

// during is what operations took while f ran, the longest first, with the time
// between them as the last.
func (p *profile) during(l Limits, f func() error) ([]Used, error) {
	p.on, p.by = true, map[string]*tally{}
	began := time.Now()
	err := f()
	whole := time.Since(began).Seconds()
	p.on = false
	var all []Used
	rest := whole
	for name, t := range p.by {
		seconds := t.spent.Seconds()
		rest -= seconds
		all = append(all, Used{Name: name, Calls: t.calls, Seconds: seconds, Part: seconds / whole, Use: l.use(t.cost, seconds)})
	}
	slices.SortFunc(all, func(a, b Used) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Name, b.Name))
	})
	return append(all, Used{Name: "between operations", Seconds: rest, Part: rest / whole}), err
}

// op runs f and counts it.
func (p *profile) op(name string, c cost, f func()) {
	if !p.on {
		f()
		return
	}
	began := time.Now()
	f()
	t := p.by[name]
	if t == nil {
		t = &tally{}
		p.by[name] = t
	}
	t.spent += time.Since(began)
	t.calls++
	t.cost = t.cost.plus(c)
}

func (p *profile) Zero(t compute.Tensor) {
	p.op("Zero", cost{bytes: p.s.wide * float64(t.Len())}, func() { p.Backend.Zero(t) })
}

func (p *profile) Copy(dst, src compute.Tensor) {
	p.op("Copy", cost{bytes: 2 * p.s.wide * float64(src.Len())}, func() { p.Backend.Copy(dst, src) })
}

func (p *profile) Embed(y compute.Tensor, table *compute.Param, ids []int32) {
	p.op("Embed", cost{bytes: 2 * p.s.wide * float64(y.Len())}, func() { p.Backend.Embed(y, table, ids) })
}

func (p *profile) EmbedGrad(table *compute.Param, dy compute.Tensor, ids []int32) {
	p.op("EmbedGrad", cost{bytes: 3 * p.s.wide * float64(dy.Len())}, func() { p.Backend.EmbedGrad(table, dy, ids) })
}

func (p *profile) RMSNorm(y, rstd, x compute.Tensor, w *compute.Param, eps float64) {
	p.op("RMSNorm", p.s.norm(float64(x.Len())), func() { p.Backend.RMSNorm(y, rstd, x, w, eps) })
}

func (p *profile) RMSNormGrad(dx compute.Tensor, w *compute.Param, dy, x, rstd compute.Tensor, acc bool) {
	p.op("RMSNormGrad", p.s.normGrad(float64(x.Len())), func() { p.Backend.RMSNormGrad(dx, w, dy, x, rstd, acc) })
}

func (p *profile) Linear(y, x compute.Tensor, w, b *compute.Param, acc bool) {
	c := p.s.linear(float64(x.Len()/w.Cols), float64(w.Cols), float64(w.Rows))
	p.op("Linear", c, func() { p.Backend.Linear(y, x, w, b, acc) })
}

func (p *profile) LinearAdd(y, r, x compute.Tensor, w *compute.Param) {
	c := p.s.linear(float64(x.Len()/w.Cols), float64(w.Cols), float64(w.Rows))
	p.op("LinearAdd", c, func() { p.Backend.LinearAdd(y, r, x, w) })
}

func (p *profile) Linears(ps []compute.Projection, x compute.Tensor) {
	var c cost
	for _, q := range ps {
		c = c.plus(p.s.linear(float64(x.Len()/q.W.Cols), float64(q.W.Cols), float64(q.W.Rows)))
	}
	p.op("Linear", c, func() { p.Backend.Linears(ps, x) })
}

func (p *profile) LinearsGrad(dx compute.Tensor, ps []compute.Projection, x compute.Tensor) {
	var c cost
	for _, q := range ps {
		c = c.plus(p.linearGrad(dx, q.W, q.Y, x))
	}
	p.op("LinearGrad", c, func() { p.Backend.LinearsGrad(dx, ps, x) })
}

func (p *profile) LinearGrad(dx compute.Tensor, w, b *compute.Param, dy, x compute.Tensor, acc bool) {
	p.op("LinearGrad", p.linearGrad(dx, w, dy, x), func() { p.Backend.LinearGrad(dx, w, b, dy, x, acc) })
}

func (p *profile) linearGrad(dx compute.Tensor, w *compute.Param, dy, x compute.Tensor) (c cost) {
	n, i, o := float64(dy.Len()/w.Rows), float64(w.Cols), float64(w.Rows)
	if !dx.Absent() {
		c = c.plus(p.s.linear(n, i, o))
	}
	if !w.G.Absent() && !x.Absent() {
		c = c.plus(p.s.weightGrad(n, i, o))
	}
	return c
}

func (p *profile) Rope(x compute.Tensor, heads, headDim int, pos []int32, table compute.Tensor, inverse bool) {
	p.op("Rope", p.s.rope(float64(x.Len())), func() { p.Backend.Rope(x, heads, headDim, pos, table, inverse) })
}

func (p *profile) Attention(o, lse, q, k, v compute.Tensor, a compute.AttnShape, pack compute.Pack) {
	p.op("Attention", p.s.attention(a, pack), func() { p.Backend.Attention(o, lse, q, k, v, a, pack) })
}

func (p *profile) AttentionGrad(dq, dk, dv, do, o, lse, q, k, v compute.Tensor, a compute.AttnShape, pack compute.Pack) {
	p.op("AttentionGrad", p.s.attentionGrad(a, pack), func() { p.Backend.AttentionGrad(dq, dk, dv, do, o, lse, q, k, v, a, pack) })
}

func (p *profile) CacheWrite(cache, x compute.Tensor, width int, slots []int32) {
	p.op("CacheWrite", cost{bytes: 2 * p.s.narrow * float64(x.Len())}, func() { p.Backend.CacheWrite(cache, x, width, slots) })
}

func (p *profile) RopeCache(q, k, v, kCache, vCache compute.Tensor, a compute.AttnShape, pos []int32, table compute.Tensor, slots []int32) {
	c := p.s.rope(float64(q.Len() + k.Len())).plus(cost{bytes: 2 * p.s.narrow * float64(v.Len())})
	p.op("RopeCache", c, func() { p.Backend.RopeCache(q, k, v, kCache, vCache, a, pos, table, slots) })
}

func (p *profile) AttentionDecode(o, q, k, v compute.Tensor, a compute.AttnShape, pages compute.Pages) {
	p.op("AttentionDecode", p.s.decode(a, pages.Len), func() { p.Backend.AttentionDecode(o, q, k, v, a, pages) })
}

func (p *profile) SwiGLU(y, gate, up compute.Tensor) {
	p.op("SwiGLU", p.s.swiglu(float64(y.Len())), func() { p.Backend.SwiGLU(y, gate, up) })
}

func (p *profile) SwiGLUGrad(y, dgate, dup, dy, gate, up compute.Tensor) {
	p.op("SwiGLUGrad", p.s.swigluGrad(float64(dy.Len())), func() { p.Backend.SwiGLUGrad(y, dgate, dup, dy, gate, up) })
}

func (p *profile) GeGLU(y, gate, up compute.Tensor) {
	p.op("GeGLU", p.s.swiglu(float64(y.Len())), func() { p.Backend.GeGLU(y, gate, up) })
}

func (p *profile) GeGLUGrad(y, dgate, dup, dy, gate, up compute.Tensor) {
	p.op("GeGLUGrad", p.s.swigluGrad(float64(dy.Len())), func() { p.Backend.GeGLUGrad(y, dgate, dup, dy, gate, up) })
}

func (p *profile) LogProb(out compute.HeadOut, h compute.Tensor, w *compute.Param, rows, targets []int32, invTemp float64) {
	c := p.s.head(float64(len(rows)), float64(w.Cols), float64(w.Rows))
	p.op("LogProb", c, func() { p.Backend.LogProb(out, h, w, rows, targets, invTemp) })
}

func (p *profile) LogProbGrad(dh compute.Tensor, w *compute.Param, out compute.HeadOut, dlogp, dent, h compute.Tensor, rows, targets []int32, invTemp float64) {
	c := p.s.headGrad(float64(len(rows)), float64(w.Cols), float64(w.Rows))
	p.op("LogProbGrad", c, func() { p.Backend.LogProbGrad(dh, w, out, dlogp, dent, h, rows, targets, invTemp) })
}

func (p *profile) Sample(ids []int32, logp []float32, h compute.Tensor, w *compute.Param, s compute.Sampling, u []float64) {
	c := p.s.head(float64(len(ids)), float64(w.Cols), float64(w.Rows))
	p.op("Sample", c, func() { p.Backend.Sample(ids, logp, h, w, s, u) })
}

func (p *profile) SumSquares(ts []compute.Tensor) (sum float64) {
	n := 0
	for _, t := range ts {
		n += t.Len()
	}
	p.op("SumSquares", cost{bytes: p.s.wide * float64(n)}, func() { sum = p.Backend.SumSquares(ts) })
	return sum
}

func (p *profile) AdamW(ws []*compute.Param, a compute.AdamW) {
	var sum cost
	for _, w := range ws {
		sum = sum.plus(p.s.adamW(float64(w.Len()), w.Rows > 1))
	}
	p.op("AdamW", sum, func() { p.Backend.AdamW(ws, a) })
}
