package data

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// Cursor is the whole state of an Order, small enough for a checkpoint: the order of an epoch is
// computed from Seed and Epoch.
type Cursor struct {
	Seed   uint64 `json:"seed"`
	Epoch  int    `json:"epoch"`  // epochs completed, from 0
	Offset int    `json:"offset"` // position, in the epoch's permutation, of the next row
	Rank   int    `json:"rank"`
	World  int    `json:"world"`
}

// Order is a sequence of row indices in which each row comes exactly once per epoch.
//
// The epochs' permutations are laid end to end into one endless sequence and rank r of w takes the
// positions r, r+w, r+2w, ... So no row is dropped or repeated at an epoch's end, whatever the
// batch size, and all ranks together see each row once per epoch. The next row is a function of the
// Cursor and of the number of rows only.
type Order struct {
	n    int
	cur  Cursor
	perm []int32 // permutation of epoch at
	at   int     // the epoch perm belongs to, -1 for none
}

// NewOrder returns the order of n rows for one of world ranks, at its start. It panics if rank is
// not in [0, world), a programmer's error. With n <= 0 Next returns nil.
func NewOrder(n int, seed uint64, rank, world int) *Order {
	if world < 1 || rank < 0 || rank >= world {
		panic(fmt.Sprintf("data: NewOrder: rank %d is not in [0, %d)", rank, world))
	}
	o := &Order{n: max(n, 0), at: -1, cur: Cursor{Seed: seed, Rank: rank, World: world}}
	o.advance(rank)
	return o
}

// advance moves the cursor by k positions of the endless sequence.
func (o *Order) advance(k int) {
	if o.n == 0 {
		return
	}
	o.cur.Epoch += k / o.n
	o.cur.Offset += k % o.n
	if o.cur.Offset >= o.n {
		o.cur.Offset -= o.n
		o.cur.Epoch++
	}
}

// Next returns the next k row indices of this rank, going on into the next epoch at the end of one.
func (o *Order) Next(k int) []int {
	if k <= 0 || o.n == 0 {
		return nil
	}
	out := make([]int, k)
	for i := range out {
		if o.at != o.cur.Epoch {
			o.perm, o.at = permutation(o.perm, o.n, o.cur.Seed, uint64(o.cur.Epoch)), o.cur.Epoch
		}
		out[i] = int(o.perm[o.cur.Offset])
		o.advance(o.cur.World)
	}
	return out
}

// State returns the cursor at the present position, for Restore.
func (o *Order) State() Cursor { return o.cur }

// Restore moves the order to the position of c. The seed must be this order's. The number of ranks
// may differ, provided that all ranks had returned equally many rows: every rank of the new world
// then goes on behind the last row of the old one, so that the epoch stays exact.
func (o *Order) Restore(c Cursor) error {
	fail := func(value any, rule string) error {
		return fmt.Errorf(
			"data: cursor: %v: %s: resume with the seed and the data set that the run began with",
			value, rule)
	}
	switch {
	case c.Seed != o.cur.Seed:
		return fail(c.Seed, fmt.Sprintf("seed differs from this order's %d", o.cur.Seed))
	case c.World < 1 || c.Rank < 0 || c.Rank >= c.World:
		return fail(fmt.Sprintf("rank %d of %d", c.Rank, c.World), "rank must be in [0, world)")
	case c.Epoch < 0 || o.n > 0 && c.Epoch > (1<<62)/o.n:
		return fail(c.Epoch, "no such epoch")
	case c.Offset < 0 || o.n > 0 && c.Offset >= o.n || o.n == 0 && c.Offset > 0:
		return fail(c.Offset, fmt.Sprintf("offset must be in [0, %d), the number of rows", o.n))
	}
	base := c.Epoch*o.n + c.Offset - c.Rank // rows handed out by all ranks together
	if base < 0 || base%c.World != 0 {
		return fail(fmt.Sprintf("epoch %d offset %d", c.Epoch, c.Offset),
			fmt.Sprintf("not a position of rank %d of %d over %d rows", c.Rank, c.World, o.n))
	}
	o.cur.Epoch, o.cur.Offset = 0, 0
	o.advance(base + o.cur.Rank)
	return nil
}

// Epoch returns the number of epochs that all ranks together have passed, with the fraction of the
// present one.
func (o *Order) Epoch() float64 {
	if o.n == 0 {
		return 0
	}
	return float64(o.cur.Epoch) + float64(o.cur.Offset-o.cur.Rank)/float64(o.n)
}

// permutation fills perm with the permutation of 0..n-1 of (seed, epoch): Fisher and Yates' shuffle
// with ChaCha8 keyed by the two. The shuffle is written out here because math/rand/v2 promises the
// stream of ChaCha8 across Go versions, but not the way in which Shuffle uses it.
func permutation(perm []int32, n int, seed, epoch uint64) []int32 {
	if cap(perm) < n {
		perm = make([]int32, n)
	}
	perm = perm[:n]
	for i := range perm {
		perm[i] = int32(i)
	}
	src := keyedSource("gad data order", seed, epoch)
	for i := n - 1; i > 0; i-- {
		j := int(uniform(src, uint64(i+1)))
		perm[i], perm[j] = perm[j], perm[i]
	}
	return perm
}

// keyedSource returns ChaCha8 under the key (purpose, a, b). A purpose has at most 16 bytes;
// different purposes have different streams.
func keyedSource(purpose string, a, b uint64) *rand.ChaCha8 {
	var key [32]byte
	copy(key[:16], purpose)
	binary.LittleEndian.PutUint64(key[16:], a)
	binary.LittleEndian.PutUint64(key[24:], b)
	return rand.NewChaCha8(key)
}

// uniform returns a number in [0, n) without bias: it draws again while the
// number falls into the incomplete last copy of [0, n) in the 64-bit range.
func uniform(src *rand.ChaCha8, n uint64) uint64 {
	limit := -n % n // 2^64 mod n
	for {
		if v := src.Uint64(); v >= limit {
			return v % n
		}
	}
}
