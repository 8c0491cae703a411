package bench

import (
	"strings"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
)

// Limits are the machine's, for the device that was opened, measured in this run.
// Operations are a second's, two for each multiply-add; bytes a second's.
type Limits struct {
	F32      float64 `json:"f32_flops,omitempty"`  // float32 on registers; CPU
	BF16     float64 `json:"bf16_flops,omitempty"` // bfloat16 dot products on registers; CPU, where it has them
	Products float64 `json:"product_flops"`        // what the device's matrix products can reach: one of the two, or on a GPU a large product
	Read     float64 `json:"read_bytes,omitempty"` // from memory; CPU
	Copy     float64 `json:"copy_bytes"`           // memory to memory, read and written
}

// measureLimits takes the CPU's limits from its own loops, another device's from a
// large product and a large copy.
func measureLimits(be compute.Backend) (Limits, error) {
	c, ok := be.(*cpu.Backend)
	if !ok {
		side := 8192
		if strings.Contains(be.Name(), "emulated") { // a device whose limits say nothing
			side = 64
		}
		r, err := compute.MeasureRoof(be, side)
		return Limits{Products: r.FLOPS, Copy: r.Bytes}, err
	}
	m := c.Limits()
	l := Limits{F32: m.F32, BF16: m.BF16, Products: m.F32, Read: m.Read, Copy: m.Copy}
	if narrowProducts(be) && m.BF16 > 0 {
		l.Products = m.BF16
	}
	return l, nil
}

// narrowProducts reports whether be multiplies bfloat16: its name says so. A CPU
// that only rounds to it is called -rounded, and multiplies float32.
func narrowProducts(be compute.Backend) bool {
	return strings.Contains(be.Name(), "bf16") || be.Name() == "cpu/amx"
}

// The limits by name, as Use.Bound has them.
const (
	boundProducts = "products"
	boundF32      = "float32"
	boundMemory   = "memory"
)

// cost is what an operation takes at the least.
type cost struct {
	flops, bytes float64
	wide         bool // multiply-adds in float32 whatever products take
}

func (c cost) plus(d cost) cost { return cost{c.flops + d.flops, c.bytes + d.bytes, c.wide || d.wide} }

// least is the time that the machine needs for c, in seconds, and the limit that
// makes it so long.
func (l Limits) least(c cost) (seconds float64, bound string) {
	rate, bound := l.Products, boundProducts
	if c.wide && l.F32 > 0 {
		rate, bound = l.F32, boundF32
	}
	seconds = c.flops / rate
	if t := c.bytes / max(l.Read, l.Copy); t > seconds {
		return t, boundMemory
	}
	return seconds, bound
}

// best is the better of two measurements, limit by limit: a shared machine's change
// from minute to minute, and what it could do once is the limit.
func (l Limits) best(m Limits) Limits {
	return Limits{F32: max(l.F32, m.F32), BF16: max(l.BF16, m.BF16), Products: max(l.Products, m.Products), Read: max(l.Read, m.Read), Copy: max(l.Copy, m.Copy)}
}

// use is c done in so many seconds.
func (l Limits) use(c cost, seconds float64) Use {
	least, bound := l.least(c)
	u := Use{FLOPs: c.flops, Bytes: c.bytes, cost: c, seconds: seconds}
	if least > 0 && seconds > 0 {
		u.Bound, u.Share = bound, least/seconds
	}
	return u
}

// judge relates everything that was measured to the report's limits.
func (r *Report) judge() {
	for i := range r.Ops {
		r.Limits.judge(&r.Ops[i].Use)
	}
	for i := range r.Stages {
		r.Stages[i].judge(r.Limits)
	}
}

func (s *Stage) judge(l Limits) {
	l.judge(&s.Use)
	for i := range s.Ops {
		l.judge(&s.Ops[i].Use)
	}
	for i := range s.Parts {
		s.Parts[i].judge(l)
	}
}

func (l Limits) judge(u *Use) { *u = l.use(u.cost, u.seconds) }

// sizes are bytes an element, by which costs are counted.
type sizes struct{ narrow, wide, weight float64 }

func sizesOf(be compute.Backend) sizes {
	s := sizes{narrow: float64(be.Element(compute.Narrow)), wide: float64(be.Element(compute.Wide))}
	if s.weight = s.wide; narrowProducts(be) || strings.HasSuffix(be.Name(), "-rounded") {
		s.weight = 2
	}
	return s
}

// Products of n rows, i inputs and o outputs: forward and input gradient read the
// weight once, the weight gradient reads and writes the sum.
func (s sizes) linear(n, i, o float64) cost {
	return cost{flops: 2 * n * i * o, bytes: s.narrow*n*(i+o) + s.weight*i*o}
}

func (s sizes) weightGrad(n, i, o float64) cost {
	return cost{flops: 2 * n * i * o, bytes: s.narrow*n*(i+o) + 2*s.wide*i*o}
}

// attention over a pack: two products for each pair of a query and a key that it sees.
func (s sizes) attention(a compute.AttnShape, pack compute.Pack) cost {
	n := float64(pack.Start[len(pack.Start)-1])
	return cost{flops: 4 * pack.Pairs(a.Window) * float64(a.H*a.E), bytes: s.narrow * 2 * n * float64((a.H+a.K)*a.E), wide: true}
}

// attentionGrad is five products, and twice the tensors.
func (s sizes) attentionGrad(a compute.AttnShape, pack compute.Pack) cost {
	c := s.attention(a, pack)
	return cost{flops: 2.5 * c.flops, bytes: 2 * c.bytes, wide: true}
}

// decode is one query a row over cached positions, read once for each row.
func (s sizes) decode(a compute.AttnShape, lens []int32) cost {
	var n float64
	for _, l := range lens {
		n += float64(int(l) - a.First(int(l)))
	}
	return cost{flops: 4 * n * float64(a.H*a.E), bytes: s.narrow * 2 * n * float64(a.K*a.E), wide: true}
}

// The head over r rows: one product forward, three for the gradient.
func (s sizes) head(r, d, v float64) cost {
	return cost{flops: 2 * r * d * v, bytes: s.narrow*r*d + s.weight*v*d}
}

func (s sizes) headGrad(r, d, v float64) cost {
	return cost{flops: 6 * r * d * v, bytes: s.narrow*2*r*d + s.weight*v*d + 2*s.wide*v*d}
}

// Elementwise operations: bytes alone.
func (s sizes) norm(n float64) cost       { return cost{bytes: (s.wide + s.narrow) * n} }
func (s sizes) normGrad(n float64) cost   { return cost{bytes: (2*s.wide + s.narrow) * n} }
func (s sizes) swiglu(n float64) cost     { return cost{bytes: 3 * s.narrow * n} }
func (s sizes) swigluGrad(n float64) cost { return cost{bytes: 6 * s.narrow * n} } // with its output again
func (s sizes) rope(n float64) cost       { return cost{bytes: 2 * s.narrow * n} }

// adamW reads weight, gradient and moments, writes all but the gradient, and the
// copy of a matrix that products take.
func (s sizes) adamW(n float64, matrix bool) cost {
	c := cost{bytes: 7 * s.wide * n}
	if matrix {
		c.bytes += s.weight * n
	}
	return c
}
