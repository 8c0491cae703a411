package model

import (
	"fmt"

	"gad/internal/compute"
)

// need is memory of a parameter: n elements of a class, which to will name.
type need struct {
	what  string
	p     *compute.Param
	class compute.Class
	n     int
	to    *compute.Tensor
}

// together reports whether memory of a class is taken as one block for all parameters:
// where the backend rounds each block up, several hundred of them would take up to a page
// each that nobody uses. Memory of the host has no such pages.
func together(f Footprint, c compute.Class) bool { return c&compute.Host == 0 && f.Block(1) > 1 }

// spread calls f for each block that needs take: of one class, so many elements, and whose
// they are. Each begins at a multiple of gradAlign elements.
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

// needed is what needs take of the backend's memory.
func needed(f Footprint, needs []need) (sum int64) {
	spread(f, needs, func(c compute.Class, n int, _ []need) { sum += f.Block(f.Element(c) * int64(n)) })
	return sum
}

// take allocates what needs say; if there is no memory, the model is closed.
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

// weightNeeds is what the weights of params need, each of a class.
func weightNeeds(params []*compute.Param, class func(*compute.Param) compute.Class) (needs []need) {
	for _, p := range params {
		needs = append(needs, need{"weight", p, class(p), p.Len(), &p.W})
	}
	return needs
}

// momentsOf is what AdamW's moments of p need, in 8 bits or not; host is Host or nothing.
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
