package model

import (
	"fmt"

	"gad/internal/compute"
)

// need is a request for memory: n elements of a class for parameter p. to is set to the memory.
type need struct {
	what  string
	p     *compute.Param
	class compute.Class
	n     int
	to    *compute.Tensor
}

// oneBlock reports whether the memory of class c of all parameters is one block. If the backend
// rounds each block up, several hundred blocks would waste up to a page each. The host's memory is
// not rounded.
func oneBlock(f Footprint, c compute.Class) bool { return c&compute.Host == 0 && f.Block(1) > 1 }

// eachBlock calls block for each block of memory that needs require, with its class, its number of
// elements and its needs. Each need begins at a multiple of gradAlign elements.
func eachBlock(f Footprint, needs []need, block func(c compute.Class, n int, of []need)) {
	var classes []compute.Class
	shared := map[compute.Class][]need{}
	for i, x := range needs {
		if !oneBlock(f, x.class) {
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
			n += alignUp(x.n)
		}
		block(c, n, shared[c])
	}
}

// alignUp returns n rounded up to a multiple of gradAlign.
func alignUp(n int) int { return (n + gradAlign - 1) / gradAlign * gradAlign }

// needBytes returns the bytes of the backend's memory for needs.
func needBytes(f Footprint, needs []need) (sum int64) {
	eachBlock(f, needs,
		func(c compute.Class, n int, _ []need) { sum += f.Block(compute.Bytes(f, c, n)) })
	return sum
}

// take allocates the memory of needs. On an error it closes the model.
func (m *Model) take(needs []need) (err error) {
	eachBlock(m.be, needs, func(c compute.Class, n int, of []need) {
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
			at += alignUp(x.n)
		}
	})
	return err
}

// weightNeeds returns the needs of the weights of params; class returns the class of each.
func weightNeeds(params []*compute.Param, class func(*compute.Param) compute.Class) (needs []need) {
	for _, p := range params {
		needs = append(needs, need{"weight", p, class(p), p.Len(), &p.W})
	}
	return needs
}

// momentNeeds returns the needs of AdamW's moments of p, in 8 bits if eight, else float32. host is
// compute.Host for moments in the host's memory, else 0.
func momentNeeds(p *compute.Param, eight bool, host compute.Class) []need {
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
