package compute

// Observer is called around each operation of an observed Backend.
type Observer interface {
	// Before is called before an operation, with its name and cost. Linears counts as
	// Linear, and LinearsGrad as LinearGrad.
	Before(op string, c Cost)
	// After is called when the operation has returned.
	After()
}

// Observe returns be with calls of o around its operations. e gives the costs that o receives.
func Observe(be Backend, e Elements, o Observer) Backend { return &observed{be, e, o} }

// observed is the Backend that Observe returns.
type observed struct {
	Backend
	e Elements
	o Observer
}

func (b *observed) Upload(dst Tensor, src []float32) {
	b.o.Before("Upload", b.e.Copy(len(src)))
	b.Backend.Upload(dst, src)
	b.o.After()
}

func (b *observed) Download(dst []float32, src Tensor) {
	b.o.Before("Download", b.e.Copy(len(dst)))
	b.Backend.Download(dst, src)
	b.o.After()
}

func (b *observed) Zero(t Tensor) {
	b.o.Before("Zero", b.e.Zero(t.Len()))
	b.Backend.Zero(t)
	b.o.After()
}

func (b *observed) Copy(dst, src Tensor) {
	b.o.Before("Copy", b.e.Copy(src.Len()))
	b.Backend.Copy(dst, src)
	b.o.After()
}

func (b *observed) Add(y, x Tensor) {
	b.o.Before("Add", b.e.Add(x.Len()))
	b.Backend.Add(y, x)
	b.o.After()
}

func (b *observed) Scale(t Tensor, s float64) {
	b.o.Before("Scale", b.e.Copy(t.Len()))
	b.Backend.Scale(t, s)
	b.o.After()
}

func (b *observed) Refresh(p *Param) {
	b.o.Before("Refresh", b.e.Copy(p.Len()))
	b.Backend.Refresh(p)
	b.o.After()
}

// Repeat runs op now: none of its operations are to be observed inside Sample.
func (b *observed) Repeat(key string, _ Indices, op func()) {
	b.Backend.Repeat(key, Indices{}, op)
}

func (b *observed) Embed(y Tensor, table *Param, ids []int32) {
	b.o.Before("Embed", b.e.Embed(y.Len()))
	b.Backend.Embed(y, table, ids)
	b.o.After()
}

func (b *observed) EmbedGrad(table *Param, dy Tensor, ids []int32) {
	b.o.Before("EmbedGrad", b.e.EmbedGrad(dy.Len()))
	b.Backend.EmbedGrad(table, dy, ids)
	b.o.After()
}

func (b *observed) RMSNorm(y, rstd, x Tensor, w *Param, eps float64) {
	b.o.Before("RMSNorm", b.e.RMSNorm(x.Len()))
	b.Backend.RMSNorm(y, rstd, x, w, eps)
	b.o.After()
}

func (b *observed) RMSNormGrad(dx Tensor, w *Param, dy, x, rstd Tensor, acc bool) {
	b.o.Before("RMSNormGrad", b.e.RMSNormGrad(x.Len()))
	b.Backend.RMSNormGrad(dx, w, dy, x, rstd, acc)
	b.o.After()
}

// linear returns the cost of x times w.
func (b *observed) linear(x Tensor, w *Param) Cost {
	return b.e.Linear(float64(x.Len()/w.Cols), float64(w.Cols), float64(w.Rows))
}

func (b *observed) Linear(y, x Tensor, w, bias *Param, acc bool) {
	b.o.Before("Linear", b.linear(x, w))
	b.Backend.Linear(y, x, w, bias, acc)
	b.o.After()
}

func (b *observed) LinearAdd(y, r, x Tensor, w *Param) {
	b.o.Before("LinearAdd", b.linear(x, w))
	b.Backend.LinearAdd(y, r, x, w)
	b.o.After()
}

func (b *observed) Linears(ps []Projection, x Tensor) {
	var c Cost
	for _, p := range ps {
		c = c.Plus(b.linear(x, p.W))
	}
	b.o.Before("Linear", c)
	b.Backend.Linears(ps, x)
	b.o.After()
}

func (b *observed) LinearsGrad(dx Tensor, ps []Projection, x Tensor) {
	var c Cost
	for _, p := range ps {
		c = c.Plus(b.e.LinearGrad(dx, p.W, p.Y, x))
	}
	b.o.Before("LinearGrad", c)
	b.Backend.LinearsGrad(dx, ps, x)
	b.o.After()
}

func (b *observed) LinearGrad(dx Tensor, w, bias *Param, dy, x Tensor, acc bool) {
	b.o.Before("LinearGrad", b.e.LinearGrad(dx, w, dy, x))
	b.Backend.LinearGrad(dx, w, bias, dy, x, acc)
	b.o.After()
}

func (b *observed) Rope(x Tensor, heads, headDim int, pos []int32, table Tensor, inverse bool) {
	b.o.Before("Rope", b.e.Rope(x.Len()))
	b.Backend.Rope(x, heads, headDim, pos, table, inverse)
	b.o.After()
}

func (b *observed) Attention(o, lse, q, k, v Tensor, a AttnShape, p Pack) {
	b.o.Before("Attention", b.e.Attention(a, p))
	b.Backend.Attention(o, lse, q, k, v, a, p)
	b.o.After()
}

func (b *observed) AttentionGrad(dq, dk, dv, do, o, lse, q, k, v Tensor, a AttnShape, p Pack) {
	b.o.Before("AttentionGrad", b.e.AttentionGrad(a, p))
	b.Backend.AttentionGrad(dq, dk, dv, do, o, lse, q, k, v, a, p)
	b.o.After()
}

func (b *observed) CacheWrite(cache, x Tensor, width int, slots []int32) {
	b.o.Before("CacheWrite", b.e.Rope(x.Len()))
	b.Backend.CacheWrite(cache, x, width, slots)
	b.o.After()
}

func (b *observed) RopeCache(q, k, v, kCache, vCache Tensor, a AttnShape, pos []int32, table Tensor,
	slots []int32) {
	b.o.Before("RopeCache", b.e.Rope(q.Len()+k.Len()+v.Len()))
	b.Backend.RopeCache(q, k, v, kCache, vCache, a, pos, table, slots)
	b.o.After()
}

func (b *observed) AttentionDecode(o, q, k, v Tensor, a AttnShape, pages Pages) {
	b.o.Before("AttentionDecode", b.e.AttentionDecode(a, pages))
	b.Backend.AttentionDecode(o, q, k, v, a, pages)
	b.o.After()
}

func (b *observed) GatedConv(y, u, g Tensor, w *Param, p Pack) {
	b.o.Before("GatedConv", b.e.GatedConv(y.Len()))
	b.Backend.GatedConv(y, u, g, w, p)
	b.o.After()
}

func (b *observed) GatedConvGrad(dg, u Tensor, w *Param, dy, g Tensor, p Pack) {
	b.o.Before("GatedConvGrad", b.e.GatedConvGrad(dy.Len()))
	b.Backend.GatedConvGrad(dg, u, w, dy, g, p)
	b.o.After()
}

func (b *observed) GatedConvDecode(y, g, cache Tensor, w *Param, slots []int32, pages Pages) {
	J := 0
	if n := y.Len(); n > 0 {
		J = w.Len() / (n / len(slots))
	}
	b.o.Before("GatedConvDecode", b.e.GatedConvDecode(y.Len(), J))
	b.Backend.GatedConvDecode(y, g, cache, w, slots, pages)
	b.o.After()
}

func (b *observed) SiLUConv(y, x Tensor, w *Param, p Pack, st States) {
	b.o.Before("SiLUConv", b.e.SiLUConv(x.Len()))
	b.Backend.SiLUConv(y, x, w, p, st)
	b.o.After()
}

func (b *observed) SiLUConvGrad(dx Tensor, w *Param, dy, x Tensor, p Pack) {
	b.o.Before("SiLUConvGrad", b.e.SiLUConvGrad(x.Len()))
	b.Backend.SiLUConvGrad(dx, w, dy, x, p)
	b.o.After()
}

func (b *observed) GatedDelta(o, x, a, beta Tensor, A, dt *Param, s DeltaShape, p Pack,
	st States) {
	b.o.Before("GatedDelta", b.e.GatedDelta(x.Len()/s.Width(), s, st))
	b.Backend.GatedDelta(o, x, a, beta, A, dt, s, p, st)
	b.o.After()
}

func (b *observed) GatedDeltaGrad(dx, da, dbeta, do, o, x, a, beta Tensor, A, dt *Param,
	s DeltaShape, p Pack) {
	b.o.Before("GatedDeltaGrad", b.e.GatedDeltaGrad(x.Len()/s.Width(), s))
	b.Backend.GatedDeltaGrad(dx, da, dbeta, do, o, x, a, beta, A, dt, s, p)
	b.o.After()
}

func (b *observed) Gated(act Activation, y, gate, up Tensor) {
	b.o.Before(act.Unit(), b.e.Gated(y.Len()))
	b.Backend.Gated(act, y, gate, up)
	b.o.After()
}

func (b *observed) GatedGrad(act Activation, y, dgate, dup, dy, gate, up Tensor) {
	b.o.Before(act.Grad(), b.e.GatedGrad(dy.Len()))
	b.Backend.GatedGrad(act, y, dgate, dup, dy, gate, up)
	b.o.After()
}

func (b *observed) LogProb(out HeadOut, h Tensor, w *Param, rows, targets []int32,
	invTemp float64) {
	b.o.Before("LogProb", b.e.Head(float64(len(rows)), float64(w.Cols), float64(w.Vocab())))
	b.Backend.LogProb(out, h, w, rows, targets, invTemp)
	b.o.After()
}

func (b *observed) LogProbGrad(dh Tensor, w *Param, out HeadOut, dlogp, dent, h Tensor, rows,
	targets []int32, invTemp float64) {
	b.o.Before("LogProbGrad", b.e.HeadGrad(float64(len(rows)), float64(w.Cols), float64(w.Vocab())))
	b.Backend.LogProbGrad(dh, w, out, dlogp, dent, h, rows, targets, invTemp)
	b.o.After()
}

func (b *observed) Sample(ids []int32, logp []float32, h Tensor, w *Param, s Sampling,
	u []float64) {
	b.o.Before("Sample", b.e.Head(float64(len(ids)), float64(w.Cols), float64(w.Vocab())))
	b.Backend.Sample(ids, logp, h, w, s, u)
	b.o.After()
}

func (b *observed) Score(s, h Tensor, w *Param, rows []int32) {
	b.o.Before("Score", b.e.Score(len(rows), w.Cols))
	b.Backend.Score(s, h, w, rows)
	b.o.After()
}

func (b *observed) ScoreGrad(dh Tensor, w *Param, ds, h Tensor, rows []int32) {
	b.o.Before("ScoreGrad", b.e.ScoreGrad(len(rows), w.Cols))
	b.Backend.ScoreGrad(dh, w, ds, h, rows)
	b.o.After()
}

func (b *observed) SumSquares(ts []Tensor) float64 {
	n := 0
	for _, t := range ts {
		n += t.Len()
	}
	b.o.Before("SumSquares", b.e.SumSquares(n))
	sum := b.Backend.SumSquares(ts)
	b.o.After()
	return sum
}

func (b *observed) AdamW(ps []*Param, a AdamW) {
	var c Cost
	for _, p := range ps {
		c = c.Plus(b.e.AdamW(p))
	}
	b.o.Before("AdamW", c)
	b.Backend.AdamW(ps, a)
	b.o.After()
}
