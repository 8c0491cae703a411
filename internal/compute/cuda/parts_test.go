package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"gad/internal/compute"
)

// causal is the segments of count sequences of length tokens.
func causal(count, length int) (list []compute.Segment) {
	for i := range count {
		list = append(list, compute.Segment{First: i * length, Len: length})
	}
	return list
}

// shared is the segments of count prompts of so many tokens with n answers each.
func shared(count, prompt, n, answer int) (list []compute.Segment) {
	at := 0
	for range count {
		list = append(list, compute.Segment{First: at, Len: prompt, Branches: n * answer})
		at += prompt
		for range n {
			list = append(list, compute.Segment{First: at, Len: answer, Before: prompt})
			at += answer
		}
	}
	return list
}

// makespan is how long blocks of K heads take that start in the order of the grid, each as soon
// as one of so many before it has ended,
// as a multiple of an even division.
func makespan(list []keyBlock, K int) float64 {
	var ends [dkvBlocks]int
	total := 0
	for _, b := range list {
		n := b.work()
		for range K {
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
	return float64(slices.Max(ends[:])) / (float64(total) / dkvBlocks)
}

// Into how many blocks the gradients of keys and values are divided, and how long these take with
// a block for each tile and with so many: of sequences by themselves, and of a GAD step's own
// packs, prompts of 256 tokens with eight answers of 1,536 each.
func TestKeyBlocks(t *testing.T) {
	const h128, h64 = 64, 128 // rows of a tile of keys, by the width of a head
	for _, c := range []struct {
		name              string
		rows, K, group, E int
		segments          []compute.Segment
		how               string
		before, after     float64
	}{
		{"0.5B, 8 x 2048", h64, 2, 7, 64, causal(8, 2048), "3 parts of heads", 1.94, 1.02},
		{"0.5B, 4 x 2048", h64, 2, 7, 64, causal(4, 2048), "7 parts of heads", 3.88, 1.04},
		{"1.5B, 8 x 2048", h128, 2, 6, 128, causal(8, 2048), "whole", 1.00, 1.00},
		{"1.5B, 4 x 2048", h128, 2, 6, 128, causal(4, 2048), "2 parts of heads", 2.00, 1.00},
		{"0.5B, 1 x 2048", h64, 2, 7, 64, causal(1, 2048), "7 parts of heads", 15.53, 2.22},
		{"1.5B, 2 x 2048", h128, 2, 6, 128, causal(2, 2048), "6 parts of heads", 4.00, 1.10},
		{"1.5B, 1 x 2048", h128, 2, 6, 128, causal(1, 2048), "6 parts of heads", 8.00, 1.33},
		{"1.5B, 16 x 640", h128, 2, 6, 128, causal(16, 640), "2 parts of heads", 1.50, 1.05},
		{"1.5B, 102 x 160", h128, 2, 6, 128, causal(102, 160), "whole", 1.08, 1.08},
		{"7B, 8 x 2048", h128, 4, 7, 128, causal(8, 2048), "whole", 1.02, 1.02},
		{"7B, 2 x 2048", h128, 4, 7, 128, causal(2, 2048), "3 parts of heads", 2.00, 1.04},
		{"7B, 1 x 8192", h128, 4, 7, 128, causal(1, 8192), "whole", 1.02, 1.02},
		{"parts that cost more", h128, 2, 6, 128, causal(85, 64), "whole", 1.55, 1.55},
		{"no group", h128, 8, 1, 128, causal(1, 2048), "8 more blocks of queries", 2.00, 1.50},
		{"135M, a GAD step", h64, 3, 3, 64, shared(1, 256, 8, 1536),
			"114 more blocks of queries", 10.53, 1.24},
		{"0.5B, a GAD step", h64, 2, 7, 64, shared(1, 256, 8, 1536),
			"128 more blocks of queries", 15.79, 1.21},
		{"1.5B, a GAD step", h128, 2, 6, 128, shared(1, 256, 8, 1536),
			"112 more blocks of queries", 8.14, 1.16},
		{"3B, a GAD step", h128, 2, 8, 128, shared(1, 256, 8, 1536),
			"112 more blocks of queries", 8.14, 1.16},
		{"7B, a GAD step", h128, 4, 7, 128, shared(1, 256, 8, 1536),
			"32 more blocks of queries", 4.07, 1.04},
		{"8B, a GAD step", h128, 8, 4, 128, shared(1, 256, 8, 1536),
			"16 more blocks of queries", 2.04, 1.01},
		{"1.5B, ten prompts of 512", h128, 2, 6, 128, shared(10, 512, 8, 128),
			"160 more blocks of queries", 1.69, 1.05},
	} {
		N := 0
		for _, g := range c.segments {
			N += g.Len
		}
		a := compute.AttnShape{H: c.K * c.group, K: c.K, E: c.E}
		tiles := keyTiles(c.segments, c.rows)
		list := keyBlocks(tiles, c.K, c.group, mostPartRows(dkvPartBytes, N, a),
			leastQueries)
		whole := keyBlocks(tiles, c.K, c.group, 0, leastQueries)
		before, after := makespan(whole, c.K), makespan(list, c.K)
		how, cut := "whole", len(list)-len(tiles)
		bytes := 8 * partRows(list) * c.K * c.E
		switch {
		case cut > 0 && list[0].heads < c.group:
			how = fmt.Sprintf("%d parts of heads", len(list)/len(tiles))
		case cut > 0:
			how = fmt.Sprintf("%d more blocks of queries", cut)
		}
		t.Logf("%s: %s, %.2f times an even division, %.2f before; parts take %.0f MB", c.name, how,
			after, before, float64(bytes)/1e6)
		if how != c.how || bytes > dkvPartBytes {
			t.Errorf("%s: %s of %d bytes in all, want %s", c.name, how, bytes, c.how)
		}
		if math.Abs(before-c.before) > 0.005 || math.Abs(after-c.after) > 0.005 {
			t.Errorf("%s: blocks take %.2f times an even division, %.2f before, want %.2f and %.2f",
				c.name, after, before, c.after, c.before)
		}
		covered(t, c.name, tiles, list, c.group)
		if len(whole) != len(tiles) {
			t.Errorf("%s: %d blocks of %d tiles where there is no memory for parts", c.name,
				len(whole), len(tiles))
		}
	}
	if list := keyBlocks(nil, 2, 6, 100, leastQueries); len(list) != 0 {
		t.Errorf("%d blocks of nothing", len(list))
	}
}

// covered wants every query head of every tile of queries that sees a tile of keys in exactly one
// block, the parts of a tile side by side, and those with most work first.
func covered(t *testing.T, name string, tiles []keyTile, list []keyBlock, group int) {
	t.Helper()
	seen, rows := map[[4]int]int{}, map[int]bool{}
	for i, b := range list {
		if i > 0 && b.work() > list[i-1].work() {
			t.Errorf("%s: block %d has more work than the one before it", name, i)
		}
		for q := b.from; q < b.to; q++ {
			for h := b.head; h < b.head+b.heads; h++ {
				seen[[4]int{b.segment, b.tile, q, h}]++
			}
		}
		if b.at < 0 {
			continue
		}
		for r := range b.rows {
			if rows[b.at+r] {
				t.Fatalf("%s: row %d of the parts is written twice", name, b.at+r)
			}
			rows[b.at+r] = true
		}
	}
	want := 0
	for _, x := range tiles {
		for q := x.from; q < x.to; q++ {
			for h := range group {
				if want++; seen[[4]int{x.segment, x.tile, q, h}] != 1 {
					t.Fatalf("%s: tile %d of segment %d, queries %d, head %d: in %d blocks", name,
						x.tile, x.segment, q, h, seen[[4]int{x.segment, x.tile, q, h}])
				}
			}
		}
	}
	if len(seen) != want || len(rows) != partRows(list) {
		t.Errorf("%s: %d of %d places, %d of %d rows", name, len(seen), want, len(rows),
			partRows(list))
	}
}
