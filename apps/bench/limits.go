package bench

import (
	"strings"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
)

// Limits are the machine's, for the device that was opened, measured in this run.
// Operations are a second's, two for each multiply-add; bytes a second's.
type Limits struct {
	F32 float64 `json:"f32_flops,omitempty"` // float32 on registers; CPU
	// bfloat16 dot products on registers; CPU, where it has them
	BF16 float64 `json:"bf16_flops,omitempty"`
	// what the device's matrix products can reach: one of the two, or on a GPU a large product
	Products float64 `json:"product_flops"`
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

// least is the time that the machine needs for c, in seconds, and the limit that
// makes it so long.
func (l Limits) least(c compute.Cost) (seconds float64, bound string) {
	rate, bound := l.Products, boundProducts
	if c.F32 && l.F32 > 0 {
		rate, bound = l.F32, boundF32
	}
	seconds = c.FLOPs / rate
	if t := c.Bytes / max(l.Read, l.Copy); t > seconds {
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
func (l Limits) use(c compute.Cost, seconds float64) Use {
	least, bound := l.least(c)
	u := Use{FLOPs: c.FLOPs, Bytes: c.Bytes, cost: c, seconds: seconds}
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

// elementsOf is what be's elements take. Weights take two bytes where products read bfloat16.
func elementsOf(be compute.Backend) compute.Elements {
	e := compute.Elements{Narrow: float64(be.Element(compute.Narrow)), Wide: float64(be.Element(compute.Wide))}
	if e.Weight = e.Wide; narrowProducts(be) || strings.HasSuffix(be.Name(), "-rounded") {
		e.Weight = 2
	}
	return e
}
