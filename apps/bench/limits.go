package bench

import (
	"strings"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
)

// Limits holds the limits of the machine and the opened device, measured in this run:
// floating-point operations a second, two for each multiply-add, and bytes a second.
type Limits struct {
	F32 float64 `json:"f32_flops,omitempty"` // float32 on registers; CPU
	// bfloat16 dot products on registers; of a CPU that has them
	BF16 float64 `json:"bf16_flops,omitempty"`
	// limit of the device's matrix products: F32 or BF16, or on a GPU the rate of a large product
	Products float64 `json:"product_flops"`
	Read     float64 `json:"read_bytes,omitempty"` // memory, read; CPU
	Copy     float64 `json:"copy_bytes"`           // memory to memory; counts bytes read and bytes written
}

// measureLimits measures the limits: of the CPU by its own loops, of another device by a large
// product and a large copy.
func measureLimits(be compute.Backend) (Limits, error) {
	c, ok := be.(*cpu.Backend)
	if !ok {
		side := 8192
		if strings.Contains(be.Name(), "emulated") { // an emulated device's limits mean nothing
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

// narrowProducts reports, by be's name, whether it multiplies bfloat16. A CPU that only rounds to
// bfloat16 (-rounded) multiplies float32.
func narrowProducts(be compute.Backend) bool {
	return strings.Contains(be.Name(), "bf16") || be.Name() == "cpu/amx"
}

// Names of limits in Use.Bound.
const (
	boundProducts = "products"
	boundF32      = "float32"
	boundMemory   = "memory"
)

// least returns the least time for c in seconds, and the limit that decides it.
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

// best returns the higher of two measurements of each limit: a shared machine changes from minute
// to minute.
func (l Limits) best(m Limits) Limits {
	return Limits{F32: max(l.F32, m.F32), BF16: max(l.BF16, m.BF16),
		Products: max(l.Products, m.Products), Read: max(l.Read, m.Read), Copy: max(l.Copy, m.Copy)}
}

// use returns the Use of cost c done in so many seconds.
func (l Limits) use(c compute.Cost, seconds float64) Use {
	least, bound := l.least(c)
	u := Use{FLOPs: c.FLOPs, Bytes: c.Bytes, cost: c, seconds: seconds}
	if least > 0 && seconds > 0 {
		u.Bound, u.Share = bound, least/seconds
	}
	return u
}

// relate recomputes every share by the report's limits.
func (r *Report) relate() {
	for i := range r.Ops {
		r.Limits.relate(&r.Ops[i].Use)
	}
	for i := range r.Stages {
		r.Stages[i].relate(r.Limits)
	}
}

// relate recomputes the shares of a stage, its operations and its parts by l.
func (s *Stage) relate(l Limits) {
	l.relate(&s.Use)
	for i := range s.Ops {
		l.relate(&s.Ops[i].Use)
	}
	for i := range s.Parts {
		s.Parts[i].relate(l)
	}
}

// relate recomputes the share of u by l.
func (l Limits) relate(u *Use) { *u = l.use(u.cost, u.seconds) }

// elementsOf returns the bytes of be's elements by class. Weights take two bytes if products read
// bfloat16.
func elementsOf(be compute.Backend) compute.Elements {
	e := compute.Elements{Narrow: float64(be.Element(compute.Narrow)),
		Wide: float64(be.Element(compute.Wide))}
	if e.Weight = e.Wide; narrowProducts(be) || strings.HasSuffix(be.Name(), "-rounded") {
		e.Weight = 2
	}
	return e
}
