package cuda

import (
	"math"
	"slices"
	"testing"
)

// causal is the work of the tiles of keys of count sequences of length tokens.
func causal(count, length, rows int) (work []int) {
	for range count {
		for j := range blocks(length, rows) {
			work = append(work, blocks(length, dkvQueries)-j*rows/dkvQueries)
		}
	}
	return work
}

// makespan is how long blocks take that start in the order of the grid, each as soon
// as one of so many before it has ended, as a multiple of an even division.
func makespan(work []int, K, group, parts int) float64 {
	sorted, total := slices.Clone(work), 0
	slices.Sort(sorted)
	slices.Reverse(sorted)
	var ends [dkvBlocks]int
	share := blocks(group, parts)
	for _, w := range sorted {
		for range K {
			for part := range parts {
				n := w * (min(group, (part+1)*share) - part*share)
				first := 0
				for i, end := range ends {
					if end < ends[first] {
						first = i
					}
				}
				ends[first] += n
				total += n
			}
		}
	}
	return float64(slices.Max(ends[:])) / (float64(total) / dkvBlocks)
}

// In how many parts the gradients of keys and values are computed, and how long the
// blocks take with one part and with so many.
func TestDKVParts(t *testing.T) {
	const h128, h64 = 64, 128 // rows of a tile of keys, by the width of a head
	for _, c := range []struct {
		name              string
		rows, K, group, E int
		count, length     int
		parts             int
		before, after     float64
	}{
		{"0.5B", h64, 2, 7, 64, 8, 2048, 4, 1.94, 1.04},
		{"0.5B", h64, 2, 7, 64, 4, 2048, 7, 3.88, 1.04},
		{"0.5B", h64, 2, 7, 64, 1, 2048, 7, 15.53, 2.22},
		{"1.5B", h128, 2, 6, 128, 8, 2048, 1, 1.00, 1.00},
		{"1.5B", h128, 2, 6, 128, 4, 2048, 2, 2.00, 1.00},
		{"1.5B", h128, 2, 6, 128, 2, 2048, 6, 4.00, 1.10},
		{"1.5B", h128, 2, 6, 128, 1, 2048, 6, 8.00, 1.33},
		{"1.5B", h128, 2, 6, 128, 16, 640, 2, 1.50, 1.05},
		{"1.5B", h128, 2, 6, 128, 102, 160, 1, 1.08, 1.08},
		{"7B", h128, 4, 7, 128, 8, 2048, 1, 1.02, 1.02},
		{"7B", h128, 4, 7, 128, 4, 2048, 1, 1.00, 1.00},
		{"7B", h128, 4, 7, 128, 2, 2048, 4, 2.00, 1.03},
		{"7B", h128, 4, 7, 128, 1, 2048, 7, 4.00, 1.07},
		{"7B", h128, 4, 7, 128, 1, 8192, 1, 1.02, 1.02},
		{"parts that cost more", h128, 2, 6, 128, 85, 64, 1, 1.55, 1.55},
		{"no group", h128, 8, 1, 128, 1, 2048, 1, 2.00, 2.00},
	} {
		work, N := causal(c.count, c.length, c.rows), c.count*c.length
		one := 8 * int64(N*c.K*c.E) // bytes of a part
		parts := dkvParts(work, c.K, c.group, int(dkvPartBytes/one))
		before, after := makespan(work, c.K, c.group, 1), makespan(work, c.K, c.group, parts)
		bytes := 0.0
		if parts > 1 {
			bytes = float64(one*int64(parts)) / 1e6
		}
		t.Logf("%s, %d sequences of %d: %d parts, %.2f times an even division, %.2f before; parts take %.0f MB", c.name, c.count, c.length, parts, after, before, bytes)
		if parts != c.parts || bytes > float64(dkvPartBytes)/1e6 {
			t.Errorf("%s, %d sequences of %d: %d parts of %.0f MB in all, want %d", c.name, c.count,
				c.length, parts, bytes, c.parts)
		}
		if math.Abs(before-c.before) > 0.005 || math.Abs(after-c.after) > 0.005 {
			t.Errorf("%s, %d sequences of %d: blocks take %.2f times an even division, %.2f before, want %.2f and %.2f", c.name, c.count, c.length, after, before, c.after, c.before)
		}
		if limited := dkvParts(work, c.K, c.group, 0); limited != 1 {
			t.Errorf("%s: %d parts where there is no memory for any", c.name, limited)
		}
	}
	if parts := dkvParts(nil, 2, 6, 100); parts != 1 {
		t.Errorf("%d parts of nothing", parts)
	}
}
