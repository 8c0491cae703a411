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

// profile is the compute.Observer that, while it is on, counts what each operation takes. It
// measures a backend whose operations are done when they return: the CPU's.
type profile struct {
	on bool
	by map[string]*tally

	op    string // the operation that runs
	cost  compute.Cost
	began time.Time
}

type tally struct {
	compute.Cost
	calls int
	spent time.Duration
}

// profiled is be with a profile around it, or be itself where that would not measure.
func profiled(be compute.Backend) (compute.Backend, *profile) {
	if _, ok := be.(*cpu.Backend); !ok {
		return be, nil
	}
	p := &profile{}
	return compute.Observe(be, elementsOf(be), p), p
}

// during is the operations that ran during f, the longest first, and at the end the time
// between operations.
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
		all = append(all, Used{Name: name, Calls: t.calls, Seconds: seconds, Part: seconds / whole,
			Use: l.use(t.Cost, seconds)})
	}
	slices.SortFunc(all, func(a, b Used) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Name, b.Name))
	})
	return append(all, Used{Name: "between operations", Seconds: rest, Part: rest / whole}), err
}

// Before begins to time an operation.
func (p *profile) Before(op string, c compute.Cost) {
	if p.on {
		p.op, p.cost, p.began = op, c, time.Now()
	}
}

// After counts it.
func (p *profile) After() {
	if !p.on {
		return
	}
	spent := time.Since(p.began)
	t := p.by[p.op]
	if t == nil {
		t = &tally{}
		p.by[p.op] = t
	}
	t.spent += spent
	t.calls++
	t.Cost = t.Plus(p.cost)
}
