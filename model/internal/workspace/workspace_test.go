package workspace

import (
	"errors"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
)

// small is a backend of so many elements.
type small struct {
	compute.Backend
	used, most int
}

func (s *small) Alloc(what string, c compute.Class, n int) (compute.Tensor, error) {
	if s.used+n > s.most {
		return compute.Tensor{}, compute.ErrMemory
	}
	s.used += n
	return s.Backend.Alloc(what, c, n)
}

func (s *small) Free(t compute.Tensor) { s.used -= t.Len(); s.Backend.Free(t) }

// A purpose has one block of the largest size that was asked for, and what fails leaves what was.
func TestWorkspace(t *testing.T) {
	be := &small{Backend: ref.New(), most: 100}
	w := New(be)
	for _, c := range []struct{ n, used int }{{10, 10}, {4, 10}, {30, 30}, {0, 30}} {
		if x := w.Get("a", compute.Wide, c.n); x.Len() != c.n || be.used != c.used {
			t.Errorf("%d elements of %d: %d in use, want %d", x.Len(), c.n, be.used, c.used)
		}
	}
	w.In(Purpose{Layer: 3, What: "a"}, compute.Wide, 20)
	if err := w.Take(); err != nil || be.used != 50 {
		t.Errorf("a layer's own block: %d in use, %v", be.used, err)
	}
	err := w.Try(func() {
		w.Get("b", compute.Wide, 40)
		w.Get("a", compute.Wide, 5)
		if x := w.Get("c", compute.Wide, 11); !x.Absent() {
			t.Error("more than there is was given")
		}
		w.Get("d", compute.Wide, 1)
	})
	if !errors.Is(err, compute.ErrMemory) || be.used != 50 || len(w.Bufs) != 2 {
		t.Errorf("after a failed try: %d in use, %d blocks, %v", be.used, len(w.Bufs), err)
	}
	if err := w.Try(func() { w.Get("b", compute.Wide, 40) }); err != nil || be.used != 90 {
		t.Errorf("after a try that fits: %d in use, %v", be.used, err)
	}
	if w.Free(); be.used != 0 {
		t.Errorf("%d in use after Free", be.used)
	}
	if s := (Purpose{Layer: 3, What: "keys"}).String(); s != "layer 3: keys" {
		t.Errorf("a layer's purpose is called %q", s)
	}
}
