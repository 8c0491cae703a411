// Package workspace lends device memory by purpose: one block each, of the largest size asked for.
package workspace

import (
	"fmt"

	"gad/internal/compute"
)

// Workspace is device memory by purpose, reused between calls: a block is allocated at the first
// use of a purpose, and again only when a call asks for more elements. Its contents are valid until
// the next call of any model that shares the workspace.
type Workspace struct {
	Bufs map[Purpose]compute.Tensor // the allocated blocks

	be  compute.Backend
	err error // first failure since the last Take

	trying bool      // a call of Try is under way
	taken  []Purpose // blocks that were allocated during Try
}

// New returns an empty workspace on be.
func New(be compute.Backend) *Workspace { return &Workspace{be: be} }

// Purpose names a block of the workspace by its content, for one layer or for all.
type Purpose struct {
	Layer int // or All
	What  string
}

// All is the Layer of a block that all layers share.
const All = -1

// String returns the purpose's name for errors.
func (p Purpose) String() string {
	if p.Layer == All {
		return p.What
	}
	return fmt.Sprintf("layer %d: %s", p.Layer, p.What)
}

// Get returns n elements of class c for a purpose that all layers share.
func (w *Workspace) Get(what string, c compute.Class, n int) compute.Tensor {
	return w.In(Purpose{All, what}, c, n)
}

// In returns n elements of class c for a purpose. Their contents are undefined. After a failure it
// returns absent tensors until Take has returned the error.
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

// Take returns the first error of the calls of Get and In since the last Take, and clears it.
func (w *Workspace) Take() error {
	err := w.err
	w.err = nil
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}

// Try calls f and returns the first error of the calls of Get and In in it. After an error it frees
// the blocks that these calls allocated.
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
