package data

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// onceEach fails unless rows, cut into epochs of n, holds each row exactly once
// per epoch.
func onceEach(t *testing.T, rows []int, n int) {
	t.Helper()
	for e := 0; len(rows) > 0; e++ {
		epoch := slices.Clone(rows[:min(n, len(rows))])
		rows = rows[len(epoch):]
		slices.Sort(epoch)
		if len(slices.Compact(epoch)) != min(n, len(epoch)) || epoch[0] < 0 ||
			epoch[len(epoch)-1] >= n {
			t.Fatalf("epoch %d: a row is missing or comes twice: %v", e, epoch)
		}
		if len(epoch) == n && (epoch[0] != 0 || epoch[n-1] != n-1) {
			t.Fatalf("epoch %d is no permutation: %v", e, epoch)
		}
	}
}

func TestOrderEachRowOncePerEpoch(t *testing.T) {
	for _, c := range []struct{ n, k int }{{10, 3}, {10, 10}, {7, 16}, {1, 5}, {1000, 64}, {2, 1}} {
		o := NewOrder(c.n, 42, 0, 1)
		var rows []int
		for len(rows) < 3*c.n {
			rows = append(rows, o.Next(c.k)...)
		}
		onceEach(t, rows, c.n)
		if got, want := o.Epoch(), float64(len(rows))/float64(c.n); got != want {
			t.Errorf("n %d: Epoch %v, want %v", c.n, got, want)
		}
	}
}

func TestOrderEpochsAndSeedsDiffer(t *testing.T) {
	o := NewOrder(50, 1, 0, 1)
	a, b, c := o.Next(50), o.Next(50), NewOrder(50, 2, 0, 1).Next(50)
	if slices.Equal(a, b) || slices.Equal(a, c) || slices.IsSorted(a) {
		t.Errorf("epochs or seeds share a permutation: %v %v %v", a, b, c)
	}
	fixed := 0
	for i := range a {
		if a[i] == i {
			fixed++
		}
	}
	if fixed > 8 { // one is expected; more than 8 of 50 has a chance of 1e-6
		t.Errorf("%d rows stay in place", fixed)
	}
}

// The order is part of what a checkpoint promises: it must not change with the
// Go version or with this package.
func TestOrderGolden(t *testing.T) {
	got := fmt.Sprint(NewOrder(10, 7, 0, 1).Next(20), NewOrder(5, 1<<63, 1, 2).Next(5))
	const want = "[7 0 5 9 4 8 1 6 3 2 9 4 7 8 5 6 1 0 3 2] [1 4 1 2 4]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestOrderRestore(t *testing.T) {
	const n, epochs = 37, 3
	whole := NewOrder(n, 9, 0, 1).Next(n * epochs)
	stops := []int{0, 1, n - 1, n, n + 1, 2*n - 1, 2 * n} // first and last row, epoch boundaries
	r := rand.New(rand.NewPCG(1, 2))
	for len(stops) < 27 {
		stops = append(stops, r.IntN(n*epochs))
	}
	slices.Sort(stops)
	// one run that is stopped again and again
	var rows []int
	o := NewOrder(n, 9, 0, 1)
	for _, stop := range append(stops, n*epochs) {
		rows = append(rows, o.Next(stop-len(rows))...)
		text, err := json.Marshal(o.State())
		if err != nil {
			t.Fatal(err)
		}
		var c Cursor
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		o = NewOrder(n, 9, 0, 1)
		if err := o.Restore(c); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(rows, whole) {
		t.Error("stopped run differs from the whole one")
	}
	onceEach(t, rows, n)
}

func TestOrderRanks(t *testing.T) {
	for _, c := range []struct{ n, world, k int }{{10, 3, 4}, {5, 8, 2}, {64, 4, 16}} {
		whole := NewOrder(c.n, 5, 0, 1).Next(c.world * c.k)
		got := make([]int, len(whole))
		for rank := range c.world {
			o := NewOrder(c.n, 5, rank, c.world)
			for i, row := range o.Next(c.k) {
				got[i*c.world+rank] = row
			}
			if e := o.Epoch(); e != float64(c.world*c.k)/float64(c.n) {
				t.Errorf("rank %d of %d: Epoch %v", rank, c.world, e)
			}
			// going on with another number of ranks: nothing lost, nothing twice
			single := NewOrder(c.n, 5, 0, 1)
			if err := single.Restore(o.State()); err != nil {
				t.Fatal(err)
			}
			if want := NewOrder(c.n, 5, 0,
				1).Next(c.world*c.k + 3)[c.world*c.k:]; !slices.Equal(single.Next(3), want) {
				t.Errorf("rank %d of %d: one rank does not go on behind the last row", rank,
					c.world)
			}
		}
		if !slices.Equal(got, whole) {
			t.Errorf("ranks together differ from one: %v, want %v", got, whole)
		}
	}
}

func TestOrderRefusesStrangeCursors(t *testing.T) {
	for _, c := range []Cursor{
		{Seed: 2, World: 1},
		{Seed: 1, World: 0},
		{Seed: 1, World: 2, Rank: 2},
		{Seed: 1, World: 1, Offset: 10},
		{Seed: 1, World: 1, Offset: -1},
		{Seed: 1, World: 1, Epoch: -1},
		{Seed: 1, World: 1, Epoch: 1 << 62},
		{Seed: 1, World: 2, Offset: 1}, // no position of rank 0
		{Seed: 1, World: 2, Rank: 1},   // before its first row
	} {
		o := NewOrder(10, 1, 0, 1)
		before := o.State()
		if err := o.Restore(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
		if o.State() != before {
			t.Errorf("%+v moved the order", c)
		}
	}
	if got := NewOrder(0, 1, 0, 1).Next(4); got != nil {
		t.Errorf("no rows gave %v", got)
	}
}
