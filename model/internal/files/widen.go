package files

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Widen converts tensors to float32 in pieces of at most Chunk elements, on all cores, and calls f
// with each piece, from several goroutines. where returns the memory for the n elements of tensor i
// from lo on, or nil to have the piece in a buffer that the next piece overwrites; placed says
// which of the two holds part. A value that is not finite is an error. Of several errors Widen
// returns the first in the order of the tensors.
func Widen(list []*OnDisk, where func(i, lo, n int) []float32,
	f func(i, lo int, part []float32, placed bool) error) error {
	type piece struct{ i, lo, n int }
	var pieces []piece
	longest := 0
	for i, t := range list {
		n := t.Len()
		for lo := 0; lo < n; lo += Chunk {
			pieces = append(pieces, piece{i, lo, min(Chunk, n-lo)})
		}
		longest = max(longest, min(Chunk, n))
	}
	one := func(p piece, buf []float32) error {
		t := list[p.i]
		part, placed := where(p.i, p.lo, p.n), true
		if part == nil {
			part, placed = buf[:p.n], false
		}
		if err := t.Read(part, p.lo); err != nil {
			return err
		}
		for k, x := range part {
			if x-x != 0 {
				return fmt.Errorf("tensor %q: element %d: %g: not finite: get the file again from its source, or use an earlier checkpoint", t.Name, p.lo+k, x)
			}
		}
		return f(p.i, p.lo, part, placed)
	}
	var (
		wg     sync.WaitGroup
		next   atomic.Int64
		failed atomic.Bool
		errs   = make([]error, len(pieces))
	)
	for range min(runtime.GOMAXPROCS(0), len(pieces)) {
		wg.Go(func() {
			buf := make([]float32, longest)
			// Pieces start in order, and a started piece is finished: no piece before the first
			// error is skipped.
			for k := int(next.Add(1)) - 1; k < len(pieces) &&
				!failed.Load(); k = int(next.Add(1)) - 1 {
				if errs[k] = one(pieces[k], buf); errs[k] != nil {
					failed.Store(true)
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Chunk is the number of elements that pass through host memory at a time.
const Chunk = 1 << 18
