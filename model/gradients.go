package model

import (
	"fmt"

	"gad/internal/compute"
)

// gradMemory is the block of memory for gradients. Models that learn in turn (Options.Turns) share
// one block, which holds the gradient of one model at a time. Between steps it is zero, or lent to
// the key/value cache (lender).
type gradMemory struct {
	be    compute.Backend
	block compute.Tensor
	users []*Model
	owner *Model // the model whose gradient it holds; nil: all elements are zero

	waiting [][]float32 // buffers of joinShard, by level: the sum of 2^level shards
	copied  []float32   // buffer of onHost
}

// gradAlign is the multiple of elements at which each parameter's gradient begins.
const gradAlign = 64

// extent returns the number of elements that the gradients of params occupy in a block, aligned.
func extent(params []*compute.Param) (n int) {
	for _, p := range params {
		n += alignUp(p.Len())
	}
	return n
}

// gradElements returns the number of elements of a block for the gradients of params, rounded up to
// the backend's unit of allocation.
func gradElements(f Footprint, params []*compute.Param) int {
	one := f.Element(compute.Wide)
	return int(f.Block(one*int64(extent(params))) / one)
}

// takeGradients allocates the gradients of m's parameters, in a block of its own or in the block of
// Options.Turns, which it enlarges if necessary. On an error nothing has changed for other models.
func (m *Model) takeGradients() error {
	g := &gradMemory{be: m.be}
	if t := m.opt.Turns; t != nil {
		if t.grads == nil || t.be != m.be {
			return fmt.Errorf("model: a model can only learn in turn with one that is trained, on the same backend")
		}
		if g = t.grads; g.owner != nil {
			return fmt.Errorf("model: a model cannot begin to share gradients that hold something: step the optimizer first, or zero them")
		}
	}
	if n := gradElements(m.be, m.params); n > g.block.Len() {
		old := g.block.Len()
		resize := func(n int) (err error) {
			g.be.Free(g.block)
			g.block, err = g.be.Alloc(fmt.Sprintf("gradients of %d parameters", n), compute.Wide, n)
			return err
		}
		if err := resize(n); err != nil {
			if old > 0 && resize(old) == nil { // as it was
				g.place()
			}
			return fmt.Errorf("model: %w", err)
		}
	}
	m.grads, g.users = g, append(g.users, m)
	g.place()
	return nil
}

// place sets the gradients of all users' parameters to their places in the block, each model's from
// its start.
func (g *gradMemory) place() {
	for _, m := range g.users {
		at := 0
		for _, p := range m.params {
			p.G = g.block.Slice(at, at+p.Len())
			at += extent([]*compute.Param{p})
		}
	}
}

// leave removes m from the block's users, and frees the block after the last.
func (g *gradMemory) leave(m *Model) {
	if g == nil {
		return
	}
	for i, u := range g.users {
		if u == m {
			g.users = append(g.users[:i], g.users[i+1:]...)
			break
		}
	}
	if g.owner == m {
		g.owner = nil
	}
	if m.grads = nil; len(g.users) == 0 {
		g.be.Free(g.block)
	}
}

// begin claims the block for m's gradient; it must be called before m adds to its gradients. It
// fails if the block holds another model's.
func (g *gradMemory) begin(m *Model) error {
	if g.owner != nil && g.owner != m {
		return fmt.Errorf("model: the gradients that this model shares with another hold the other's: step its optimizer first, or zero them")
	}
	g.owner = m
	return nil
}

// zero clears m's gradients, unless the block holds another model's.
func (g *gradMemory) zero(m *Model) {
	if g.owner == m || g.owner == nil {
		g.be.Zero(g.block.Slice(0, extent(m.params)))
		g.owner = nil
	}
}

// lender lends the memory of a gradient that is zero to other uses, until back.
type lender struct {
	g    *gradMemory
	used int // elements of the block
}

// lend returns a lender of the block. It has no memory if there is no block or it is not zero.
func (g *gradMemory) lend() *lender {
	if g == nil || g.owner != nil {
		return &lender{}
	}
	return &lender{g: g}
}

// get returns n elements of class c; ok is false if not enough memory is left.
func (l *lender) get(c compute.Class, n int) (t compute.Tensor, ok bool) {
	if l.g == nil {
		return t, false
	}
	used := lentElements(l.g.be, c, n)
	if used > l.g.block.Len()-l.used {
		return t, false
	}
	t = l.g.be.As(l.g.block.Slice(l.used, l.used+used), c, n)
	l.used += used
	return t, true
}

// lentElements returns the number of a gradient block's elements that n elements of class c occupy.
func lentElements(f Footprint, c compute.Class, n int) int {
	const align = gradAlign
	bytes, one := f.Element(c)*int64(n), f.Element(compute.Wide)
	return int((bytes+align*one-1)/(align*one)) * align
}

// back takes back all memory that get has returned, and zeroes it.
func (l *lender) back() {
	if l.used > 0 {
		l.g.be.Zero(l.g.block.Slice(0, l.used))
	}
	l.g, l.used = nil, 0
}

// onHost returns the first n elements of the block in the host's memory; put writes them back. On a
// backend whose memory is the host's, x is the block itself and put does nothing.
func (g *gradMemory) onHost(n int) (x []float32, put func()) {
	block := g.block.Slice(0, n)
	if x := compute.HostView(g.be, block); x != nil {
		return x, func() {}
	}
	if len(g.copied) < n {
		g.copied = make([]float32, n)
	}
	x = g.copied[:n]
	g.be.Download(x, block)
	return x, func() { g.be.Upload(block, x) }
}
