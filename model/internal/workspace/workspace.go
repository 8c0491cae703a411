// Package workspace lends device memory by purpose, and takes the largest size of each.
package workspace

import (
	"fmt"

	"gad/internal/compute"
)

// Workspace is device memory by purpose, reused between calls: a block is allocated once for a
// purpose, and again only when more elements are needed. Its contents are valid until the next
// call of any model that shares the workspace.
type Workspace struct {
	Bufs map[Purpose]compute.Tensor // blocks that it holds

	be  compute.Backend
	err error // first failure since Take

	trying bool      // inside of Try
	taken  []Purpose // blocks that Try has taken
}

// New returns an empty workspace on be.
func New(be compute.Backend) *Workspace { return &Workspace{be: be} }

// Purpose names a block of the workspace: what it holds, for one layer or for all.
type Purpose struct {
	Layer int // or All
	What  string
}

// All is the layer of what all layers share.
const All = -1

// String names the purpose in errors.
func (p Purpose) String() string {
	if p.Layer == All {
		return p.What
	}
	return fmt.Sprintf("layer %d: %s", p.Layer, p.What)
}

// Get returns n elements for a purpose of all layers.
func (w *Workspace) Get(what string, c compute.Class, n int) compute.Tensor {
	return w.In(Purpose{All, what}, c, n)
}

// In returns n elements for a purpose. After a failure it returns absent tensors, and Take returns
// the error.
func (w *Workspace) In(what Purpose, c compute.Class, n int) compute.Tensor {
	if w.err != nil || n == 0 {
		return compute.Tensor{}
	}
	t, ok := w.Bufs[what]
	if !ok || t.Len() < n {
		if ok {
			w.be.Free(t)
			delete(w.Bufs, what)
		}
		if t, w.err = w.be.Alloc(what.String(), c, n); w.err != nil {
			return compute.Tensor{}
		}
		if w.Bufs == nil {
			w.Bufs = map[Purpose]compute.Tensor{}
		}
		w.Bufs[what] = t
		if w.trying {
			w.taken = append(w.taken, what)
		}
	}
	return t.Slice(0, n)
}

// Take returns the first error of the calls of Get and In since the last Take.
func (w *Workspace) Take() error {
	err := w.err
	w.err = nil
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}

// Try returns Take for the calls of Get and In that f makes. If one fails, the blocks of the others
// are freed.
func (w *Workspace) Try(f func()) error {
	w.trying, w.taken = true, w.taken[:0]
	f()
	w.trying = false
	err := w.Take()
	for _, what := range w.taken {
		if err != nil {
			w.be.Free(w.Bufs[what])
			delete(w.Bufs, what)
		}
	}
	return err
}

// Free frees all blocks; later calls of Get and In allocate new ones.
func (w *Workspace) Free() {
	for what, t := range w.Bufs {
		w.be.Free(t)
		delete(w.Bufs, what)
	}
}
