package data

import (
	"container/heap"
	"encoding/base64"
	"fmt"
)

// maxPaced bounds the rows of a Paced: its cursor has a bit for each.
const maxPaced = 1 << 22

// Paced is an Order of rows that enter little by little: 0 to k-1 have entered after Enter(k). An
// epoch hands out each row that has entered exactly once, those that enter while it runs too, and
// ends when none is left. What comes next is the first row in the epoch's permutation, which is
// Order's, that has entered and was not handed out: once all rows have entered, epochs are Order's.
type Paced struct {
	n       int
	cur     Cursor
	perm    []int32 // of the epoch: the row at each place
	place   []int32 // of the epoch: where each row stands
	handed  []bool  // [n] in this epoch
	waiting places  // of rows that have entered and were not handed out
}

// NewPaced returns the order of n rows, of which none has entered. It panics where n is not in
// [1, 2^22]: Set.Paced sets are.
func NewPaced(n int, seed uint64) *Paced {
	if n < 1 || n > maxPaced {
		panic(fmt.Sprintf("data: NewPaced: %d rows are not in [1, %d]", n, maxPaced))
	}
	p := &Paced{n: n, cur: Cursor{Seed: seed, World: 1}, place: make([]int32, n),
		handed: make([]bool, n)}
	p.begin(0)
	return p
}

// begin begins an epoch.
func (p *Paced) begin(epoch int) {
	p.cur.Epoch, p.cur.Offset = epoch, 0
	p.perm = permutation(p.perm, p.n, p.cur.Seed, uint64(epoch))
	for at, row := range p.perm {
		p.place[row] = int32(at)
	}
	clear(p.handed)
	p.wait()
}

// wait fills waiting.
func (p *Paced) wait() {
	p.waiting = p.waiting[:0]
	for row := range p.cur.Entered {
		if !p.handed[row] {
			p.waiting = append(p.waiting, p.place[row])
		}
	}
	heap.Init(&p.waiting)
}

// Enter has the first k rows enter. A row that has entered stays.
func (p *Paced) Enter(k int) {
	for k = min(k, p.n); p.cur.Entered < k; p.cur.Entered++ {
		heap.Push(&p.waiting, p.place[p.cur.Entered])
	}
}

// Entered is how many rows have entered.
func (p *Paced) Entered() int { return p.cur.Entered }

// Next returns the next k rows, going on into the next epoch when this one ends; none where no row
// has entered.
func (p *Paced) Next(k int) (rows []int) {
	for len(rows) < k && p.cur.Entered > 0 {
		if len(p.waiting) == 0 {
			p.begin(p.cur.Epoch + 1)
		}
		row := p.perm[heap.Pop(&p.waiting).(int32)]
		p.handed[row] = true
		p.cur.Offset++
		p.cur.Handed++
		rows = append(rows, int(row))
	}
	return rows
}

// State returns the cursor from which Restore goes on.
func (p *Paced) State() Cursor {
	bits := make([]byte, (p.n+7)/8)
	for row, handed := range p.handed {
		if handed {
			bits[row/8] |= 1 << (row % 8)
		}
	}
	c := p.cur
	c.Drawn = base64.StdEncoding.EncodeToString(bits)
	return c
}

// Restore moves the order to where c was taken.
func (p *Paced) Restore(c Cursor) error {
	fail := func(what string) error {
		return fmt.Errorf("data: cursor: %s: resume with the seed, the data and the curriculum that the run began with", what)
	}
	bits, err := base64.StdEncoding.DecodeString(c.Drawn)
	switch {
	case c.Seed != p.cur.Seed:
		return fail(fmt.Sprintf("seed %d differs from this order's %d", c.Seed, p.cur.Seed))
	case err != nil || len(bits) != (p.n+7)/8:
		return fail(fmt.Sprintf("its drawn rows are not those of %d", p.n))
	case c.Epoch < 0 || c.Handed < 0 || c.Entered < 0 || c.Entered > p.n:
		return fail(fmt.Sprintf("epoch %d, %d drawn, %d of %d rows entered", c.Epoch, c.Handed,
			c.Entered, p.n))
	}
	drawn := 0
	for row := range 8 * len(bits) {
		if bits[row/8]>>(row%8)&1 == 1 {
			if row >= c.Entered {
				return fail(fmt.Sprintf("row %d was drawn, and %d have entered", row, c.Entered))
			}
			drawn++
		}
	}
	if drawn != c.Offset {
		return fail(fmt.Sprintf("offset %d, and %d rows were drawn", c.Offset, drawn))
	}
	p.cur.Entered, p.cur.Handed = 0, c.Handed
	p.begin(c.Epoch)
	for row := range p.n {
		p.handed[row] = bits[row/8]>>(row%8)&1 == 1
	}
	p.cur.Offset, p.cur.Entered = c.Offset, c.Entered
	p.wait()
	return nil
}

// Epoch returns how many rows were handed out, in epochs of all rows.
func (p *Paced) Epoch() float64 { return float64(p.cur.Handed) / float64(p.n) }

// places is a heap with the first place on top.
type places []int32

func (h places) Len() int           { return len(h) }
func (h places) Less(i, j int) bool { return h[i] < h[j] }
func (h places) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *places) Push(x any)        { *h = append(*h, x.(int32)) }
func (h *places) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
