package model

import (
	"fmt"

	"gad/internal/compute"
)

// need is a request for n elements of a class for a parameter; to is set to the memory.
type need struct {
	what  string
	p     *compute.Param
	class compute.Class
	n     int
	to    *compute.Tensor
}

// together reports whether all parameters' memory of a class is one block. Where the backend
// rounds each block up, several hundred blocks would waste up to a page each. The host's memory
// is not rounded.
func together(f Footprint, c compute.Class) bool { return c&compute.Host == 0 && f.Block(1) > 1 }

// spread calls block for each block of memory that needs make, with its class, its number of
// elements and its needs. Each need begins at a multiple of gradAlign elements.
func spread(f Footprint, needs []need, block func(c compute.Class, n int, of []need)) {
	var classes []compute.Class
	shared := map[compute.Class][]need{}
	for i, x := range needs {
		if !together(f, x.class) {
			block(x.class, x.n, needs[i:i+1])
			continue
		}
		if shared[x.class] == nil {
			classes = append(classes, x.class)
		}
		shared[x.class] = append(shared[x.class], x)
	}
	for _, c := range classes {
		n := 0
		for _, x := range shared[c] {
			n += aligned(x.n)
		}
		block(c, n, shared[c])
	}
}

// aligned is n up to the next multiple of gradAlign.
func aligned(n int) int { return (n + gradAlign - 1) / gradAlign * gradAlign }

// needed is the bytes of the backend's memory that needs take.
func needed(f Footprint, needs []need) (sum int64) {
	spread(f, needs,
		func(c compute.Class, n int, _ []need) { sum += f.Block(compute.Bytes(f, c, n)) })
	return sum
}

// take allocates the memory for needs. On an error the model is closed.
func (m *Model) take(needs []need) (err error) {
	spread(m.be, needs, func(c compute.Class, n int, of []need) {
		if err != nil {
			return
		}
		what := fmt.Sprintf("%s of %s %v", of[0].what, of[0].p.Name, of[0].p.Shape)
		if len(of) > 1 {
			what = fmt.Sprintf("%s and %d more, %v", what, len(of)-1, c)
		}
		var t compute.Tensor
		if t, err = m.be.Alloc(what, c, n); err != nil {
			m.Close()
			err = fmt.Errorf("model: %w", err)
			return
		}
		m.mem = append(m.mem, t)
		at := 0
		for _, x := range of {
			*x.to = t.Slice(at, at+x.n)
			at += aligned(x.n)
		}
	})
	return err
}

// weightNeeds are the needs of the weights of params, each of a class.
func weightNeeds(params []*compute.Param, class func(*compute.Param) compute.Class) (needs []need) {
	for _, p := range params {
		needs = append(needs, need{"weight", p, class(p), p.Len(), &p.W})
	}
	return needs
}

// momentsOf are the needs of AdamW's moments of p, in 8 bits or float32. host is compute.Host for
// moments in the host's memory, or 0.
func momentsOf(p *compute.Param, eight bool, host compute.Class) []need {
	if !eight {
		return []need{
			{"first moment", p, compute.Wide | host, p.Len(), &p.M},
			{"second moment", p, compute.Wide | host, p.Len(), &p.V}}
	}
	blocks := compute.Blocks(p.Len())
	return []need{
		{"first moment", p, compute.Code | host, p.Len(), &p.M},
		{"scales of the first moment", p, compute.Wide | host, blocks, &p.MScale},
		{"second moment", p, compute.Code | host, p.Len(), &p.V},
		{"scales of the second moment", p, compute.Wide | host, blocks, &p.VScale}}
}
