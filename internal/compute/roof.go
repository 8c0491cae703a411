package compute

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Roof holds a machine's measured limits per second: floating-point operations in matrix products,
// two for each multiply-add, and bytes of memory read and written.
type Roof struct{ FLOPS, Bytes float64 }

// MeasureRoof measures a backend: a square Narrow product of n rows and columns of random numbers,
// and a copy of 8*n*n floats. Each figure is the best of six runs.
func MeasureRoof(b Backend, n int) (Roof, error) {
	var r Roof
	x, err := Random(b, Narrow, n*n)
	y, err1 := b.Alloc("product", Narrow, n*n)
	w, err2 := Random(b, Narrow, n*n)
	from, err3 := b.Alloc("copied", Wide, 8*n*n)
	to, err4 := b.Alloc("copy", Wide, 8*n*n)
	if err := errors.Join(err, err1, err2, err3, err4); err != nil {
		return r, fmt.Errorf("compute: the machine's limits: %w", err)
	}
	p := &Param{Name: "product", Shape: []int{n, n}, Rows: n, Cols: n, W: w}
	b.Refresh(p)
	product := func() { b.Linear(y, x, p, nil, false) }
	copied := func() { b.Copy(to, from) }
	for _, m := range []struct {
		op   func()
		work float64
		into *float64
	}{{product, 2 * float64(n) * float64(n) * float64(n), &r.FLOPS},
		{copied, 2 * 4 * float64(from.Len()), &r.Bytes}} {
		for range 6 {
			began := time.Now()
			for range 10 {
				m.op()
			}
			if err := b.Sync(); err != nil {
				return r, fmt.Errorf("compute: the machine's limits: %w", err)
			}
			*m.into = max(*m.into, 10*m.work/time.Since(began).Seconds())
		}
	}
	for _, t := range []Tensor{x, y, w, from, to} {
		b.Free(t)
	}
	return r, nil
}

// Random allocates n normal numbers of standard deviation 0.1; after the first million they repeat.
// Random, since a GPU multiplies zeros faster.
func Random(b Backend, c Class, n int) (Tensor, error) {
	t, err := b.Alloc("random numbers", c, n)
	if err != nil {
		return t, err
	}
	part := normals()[:min(n, 1<<20)]
	b.Upload(t.Slice(0, len(part)), part)
	for have := len(part); have < n; have *= 2 {
		b.Copy(t.Slice(have, min(n, 2*have)), t.Slice(0, min(n-have, have)))
	}
	return t, nil
}

// normals returns the million numbers that Random repeats.
var normals = sync.OnceValue(func() []float32 {
	rng := rand.New(rand.NewPCG(1, 1))
	x := make([]float32, 1<<20)
	for i := range x {
		x[i] = float32(0.1 * rng.NormFloat64())
	}
	return x
})
