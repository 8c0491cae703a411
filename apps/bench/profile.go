package bench

import (
	"cmp"
	"slices"
	"time"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
)

// Used is the calls and the time of one operation in a stage.
type Used struct {
	Name     string  `json:"op"`
	Calls    int     `json:"calls"`
	Launches int     `json:"launches,omitempty"` // number of kernels and products; predictions only
	Seconds  float64 `json:"seconds"`
	Part     float64 `json:"part"` // share of the stage's time
	Use
}

// profile sums the calls, cost and time of each operation while it is on. It measures a backend
// whose operations are finished when they return: the CPU.
type profile struct {
	on bool
	by map[string]*tally

	op    string // the running operation
	cost  compute.Cost
	began time.Time
}

// tally is the sums of one operation.
type tally struct {
	compute.Cost
	calls int
	spent time.Duration
}

// withProfile returns be with a profile that observes it; on a backend that it could not measure,
// be itself and nil.
func withProfile(be compute.Backend) (compute.Backend, *profile) {
	if _, ok := be.(*cpu.Backend); !ok {
		return be, nil
	}
	p := &profile{}
	return compute.Observe(be, elementsOf(be), observer{p.begin, p.end}), p
}

// measure runs f and returns its operations, the longest first, and at the end the time between
// operations.
func (p *profile) measure(l Limits, f func() error) ([]Used, error) {
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

// begin starts the time of an operation.
func (p *profile) begin(op string, c compute.Cost) {
	if p.on {
		p.op, p.cost, p.began = op, c, time.Now()
	}
}

// end adds the operation to its tally.
func (p *profile) end() {
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
