//go:build nvidia

package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
	"gad/internal/compute/ref"
)

// attended is what the attention operations of one backend make of a pack.
type attended struct{ o, lse, dq, dk, dv []float32 }

// attend runs Attention and AttentionGrad, and frees what they took.
func attend(t testing.TB, b compute.Backend, a compute.AttnShape, p compute.Pack, q, k, v,
	do []float32) attended {
	t.Helper()
	var all []compute.Tensor
	put := func(c compute.Class, host []float32) compute.Tensor {
		x, err := b.Alloc("test", c, len(host))
		if err != nil {
			t.Fatal(err)
		}
		b.Upload(x, host)
		all = append(all, x)
		return x
	}
	empty := func(c compute.Class, n int) compute.Tensor { // nothing of what is there may be left
		return put(c, slices.Repeat([]float32{float32(math.NaN())}, n))
	}
	n := compute.Narrow
	qt, kt, vt, dot := put(n, q), put(n, k), put(n, v), put(n, do)
	o, lse := empty(n, len(q)), empty(compute.Wide, len(q)/a.E)
	dq, dk, dv := empty(n, len(q)), empty(n, len(k)), empty(n, len(k))
	b.Attention(o, lse, qt, kt, vt, a, p)
	b.AttentionGrad(dq, dk, dv, dot, o, lse, qt, kt, vt, a, p)
	down := func(x compute.Tensor) []float32 {
		host := make([]float32, x.Len())
		b.Download(host, x)
		return host
	}
	out := attended{down(o), down(lse), down(dq), down(dk), down(dv)}
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		b.Free(x)
	}
	return out
}

// family is a prompt's length and those of its answers.
type family struct {
	prompt  int
	answers []int
}

// sharing lays families out twice: each prompt once, and each sequence by itself, whose
// tokens are rows of the first.
func sharing(families []family) (shared, apart compute.Pack, rows []int) {
	shared, apart = compute.Pack{Start: []int32{0}}, compute.Pack{Start: []int32{0}}
	at := 0
	add := func(n int, parent int32) {
		at += n
		shared.Start, shared.Parent = append(shared.Start, int32(at)), append(shared.Parent, parent)
	}
	for _, f := range families {
		first, parent := at, int32(shared.Segments())
		add(f.prompt, -1)
		for _, n := range f.answers {
			for i := range f.prompt {
				rows = append(rows, first+i)
			}
			for i := range n {
				rows = append(rows, at+i)
			}
			add(n, parent)
			apart.Start = append(apart.Start, int32(len(rows)))
		}
	}
	return shared, apart, rows
}

// pick is rows of x, of so many elements each.
func pick(x []float32, rows []int, width int) (out []float32) {
	for _, r := range rows {
		out = append(out, x[r*width:(r+1)*width]...)
	}
	return out
}

// Prompts that several answers share, shorter and longer than tiles, on the fast
// kernels: the values of the reference; and each answer's o, lse and dq have the bits
// that they have where it has its prompt to itself.
func TestSharedPrompts(t *testing.T) {
	answers := []int{129, 1, 300, 64}
	few := []int{129, 1, 64}
	families := []family{{63, few}, {64, few}, {65, answers}, {128, few}, {200, few},
		{7, []int{0, 300, 0}}, {0, []int{5, 70}}}
	for _, a := range []compute.AttnShape{{H: 2, K: 1, E: 64}, {H: 3, K: 1, E: 128},
		{H: 4, K: 2, E: 64}} {
		if a.K > 1 {
			families = families[2:3]
		}
		t.Run(fmt.Sprintf("H=%d,K=%d,E=%d", a.H, a.K, a.E), func(t *testing.T) {
			a.Scale = 1 / math.Sqrt(float64(a.E))
			s := set(t, start(t, Options{}))
			shared, apart, rows := sharing(families)
			N := int(shared.Start[shared.Segments()])
			q, k, v, do :=
				s.normal(N*a.H*a.E), s.normal(N*a.K*a.E), s.normal(N*a.K*a.E), s.normal(N*a.H*a.E)
			for _, x := range [][]float32{q, k, v, do} {
				copy(x, s.down(s.put(compute.Narrow, x))) // rounded
			}
			wq, wk := a.H*a.E, a.K*a.E
			got := attend(t, s.b, a, shared, q, k, v, do)
			want := attend(t, ref.New(), a, shared, q, k, v, do)
			for _, c := range []struct {
				name      string
				width     int
				got, want []float32
			}{{"o", wq, got.o, want.o}, {"lse", a.H, got.lse, want.lse},
				{"dq", wq, got.dq, want.dq}, {"dk", wk, got.dk, want.dk},
				{"dv", wk, got.dv, want.dv}} {
				// Each segment's error as a share of its values: a query that is missing in dv
				// shows.
				worst := 0.0
				for n := range shared.Segments() {
					lo, hi := int(shared.Start[n])*c.width, int(shared.Start[n+1])*c.width
					var off, all float64
					for i := lo; i < hi; i++ {
						off, all =
							off+math.Pow(float64(c.got[i]-c.want[i]), 2),
							all+math.Pow(float64(c.want[i]), 2)
					}
					share := math.Sqrt(off / max(all, 1e-300))
					if worst = max(worst, share); !(share <= 0.008) {
						t.Errorf("%s of segment %d, %+v: off by %.2g of its values", c.name, n,
							shared.Segment(n), share)
					}
				}
				t.Logf("%s: off by %.2g at the most", c.name, worst)
			}
			alone := attend(t, s.b, a, apart, pick(q, rows, wq), pick(k, rows, wk),
				pick(v, rows, wk), pick(do, rows, wq))
			s.same("o with the prompt shared and apart", pick(got.o, rows, wq), alone.o)
			s.same("lse with the prompt shared and apart", pick(got.lse, rows, a.H), alone.lse)
			s.same("dq with the prompt shared and apart", pick(got.dq, rows, wq), alone.dq)
		})
	}
}

// The gradients of keys and values, in each number of parts that a group of query heads
// can be divided into: the values of the reference, and what is not divided keeps its bits.
func TestKeyParts(t *testing.T) {
	for _, a := range []compute.AttnShape{{H: 14, K: 2, E: 64}, {H: 3, K: 1, E: 128},
		{H: 5, K: 1, E: 128}} {
		t.Run(fmt.Sprintf("H=%d,K=%d,E=%d", a.H, a.K, a.E), func(t *testing.T) {
			a.Scale = 1.5 / math.Sqrt(float64(a.E))
			b := start(t, Options{})
			s := set(t, b)
			p := compute.Pack{Start: []int32{0, 5, 140, 190, 193}, Parent: []int32{-1, -1, 1, 1}}
			N := int(p.Start[p.Segments()])
			q, k, v, do :=
				s.normal(N*a.H*a.E), s.normal(N*a.K*a.E), s.normal(N*a.K*a.E), s.normal(N*a.H*a.E)
			for _, x := range [][]float32{q, k, v, do} {
				copy(x, s.down(s.put(compute.Narrow, x))) // rounded
			}
			want := attend(t, ref.New(), a, p, q, k, v, do)
			var whole attended
			seen, group := map[int]bool{}, a.H/a.K
			for most := range group + 1 { // none at all is as one
				b.parts = 8 * int64(most) * int64(N*a.K*a.E)
				got := attend(t, b, a, p, q, k, v, do)
				tiles := keyTiles(b.pack.segments, [...]int{tileRows, tileRowsdKV}[a.E/128])
				parts := len(b.pack.keys.blocks) / 8 / len(tiles)
				seen[parts] = true
				if parts > max(1, most) || blocks(group, parts) != blocks(group, max(1, most)) {
					t.Errorf("%d query heads in at most %d parts: %d", group, most, parts)
				}
				if most == 0 {
					whole = got
				}
				s.same(fmt.Sprintf("o of %d parts", parts), got.o, whole.o)
				s.same(fmt.Sprintf("dq of %d parts", parts), got.dq, whole.dq)
				if parts == 1 {
					s.same("dk of one part", got.dk, whole.dk)
					s.same("dv of one part", got.dv, whole.dv)
				}
				nearKeys(t, fmt.Sprintf("%d parts", parts), a, p, got, want)
			}
			if !seen[1] || !seen[group] {
				t.Errorf("parts tried: %v, want 1 and %d among them", seen, group)
			}
		})
	}
}

// nearKeys wants dk and dv of each segment and key/value head within 0.8 % of their size.
func nearKeys(t *testing.T, how string, a compute.AttnShape, p compute.Pack, got, want attended) {
	t.Helper()
	for name, pair := range map[string][2][]float32{"dk": {got.dk, want.dk},
		"dv": {got.dv, want.dv}} {
		for seg := range p.Segments() {
			for kv := range a.K {
				var off, all float64
				for n := int(p.Start[seg]); n < int(p.Start[seg+1]); n++ {
					for i := (n*a.K + kv) * a.E; i < (n*a.K+kv+1)*a.E; i++ {
						off, all = off+math.Pow(float64(pair[0][i]-pair[1][i]), 2),
							all+math.Pow(float64(pair[1][i]), 2)
					}
				}
				if share := math.Sqrt(off / max(all, 1e-300)); !(share <= 0.008) {
					t.Errorf("%s: %s of segment %d and key/value head %d: off by %.2g of its values",
						how, name, seg, kv, share)
				}
			}
		}
	}
}

// The keys of a prompt with many answers are seen by many more queries than others: their tiles
// are cut by queries, and parts added in order. Only dk and dv of what is cut get other bits, and
// the same ones again.
func TestKeysCutByQueries(t *testing.T) {
	for _, c := range []struct {
		a       compute.AttnShape
		answers int
	}{{compute.AttnShape{H: 1, K: 1, E: 128}, 130}, {compute.AttnShape{H: 4, K: 2, E: 64}, 145}} {
		a := c.a
		t.Run(fmt.Sprintf("H=%d,K=%d,E=%d", a.H, a.K, a.E), func(t *testing.T) {
			a.Scale = 1.5 / math.Sqrt(float64(a.E))
			b := start(t, Options{})
			s := set(t, b)
			const prompt = 150
			p := compute.Pack{Start: []int32{0, prompt}, Parent: []int32{-1}}
			for i := range 8 {
				p.Start = append(p.Start, p.Start[i+1]+int32(c.answers+i))
				p.Parent = append(p.Parent, 0)
			}
			N := int(p.Start[p.Segments()])
			q, k, v, do :=
				s.normal(N*a.H*a.E), s.normal(N*a.K*a.E), s.normal(N*a.K*a.E), s.normal(N*a.H*a.E)
			for _, x := range [][]float32{q, k, v, do} {
				copy(x, s.down(s.put(compute.Narrow, x))) // rounded
			}
			want := attend(t, ref.New(), a, p, q, k, v, do)
			all := b.parts
			b.parts = 0
			whole := attend(t, b, a, p, q, k, v, do)
			if len(b.pack.keys.sums) > 0 {
				t.Error("tiles are cut where there is no memory for it")
			}
			b.parts = all
			got := attend(t, b, a, p, q, k, v, do)
			rows := [...]int{tileRows, tileRowsdKV}[a.E/128]
			if n := len(b.pack.keys.sums) / 4; n != blocks(prompt, rows) ||
				b.pack.keys.sums[3] < 2 {
				t.Errorf("%d tiles are cut, the first to %d parts: want the prompt's %d", n,
					b.pack.keys.sums[3], blocks(prompt, rows))
			}
			own := prompt * a.K * a.E
			s.same("o", got.o, whole.o)
			s.same("dq", got.dq, whole.dq)
			s.same("dk of the answers", got.dk[own:], whole.dk[own:])
			s.same("dv of the answers", got.dv[own:], whole.dv[own:])
			if slices.Equal(got.dk[:own], whole.dk[:own]) {
				t.Error("parts change no bit of dk: nothing was cut")
			}
			nearKeys(t, "whole", a, p, whole, want)
			nearKeys(t, "cut", a, p, got, want)
			again := attend(t, b, a, p, q, k, v, do)
			s.same("dk again", again.dk, got.dk)
			s.same("dv again", again.dv, got.dv)
		})
	}
}

// Rows of none, one and several splits, in groups of query heads, against the plain kernels
// in float32: each row's values within its own size, the same bits again, alone and in
// several launches, and the counters of blocks as they were.
func TestDecodeSplits(t *testing.T) {
	fast, plain := set(t, start(t, Options{})), set(t, start(t, Options{Precision: F32}))
	for _, a := range []compute.AttnShape{{H: 4, K: 2, E: 64}, {H: 3, K: 1, E: 128},
		{H: 16, K: 1, E: 64}} {
		a.Scale = 1 / math.Sqrt(float64(a.E))
		const P = 16
		lengths := []int32{0, 1, 511, 512, 513, 0, 1024, 1025, 1600}
		pages := 1 + blocks(int(slices.Max(lengths)), P)
		all := fast.perm(pages)
		paged := compute.Pages{PageTokens: P}
		for _, n := range lengths {
			paged.Table, paged.Len =
				append(paged.Table, all[:blocks(int(n), P)]), append(paged.Len, n)
		}
		R := len(lengths)
		q, cache := fast.normal(R*a.H*a.E), fast.normal(2*pages*P*a.K*a.E)
		for _, x := range [][]float32{q, cache} {
			copy(x, fast.down(fast.put(compute.Narrow, x))) // rounded
		}
		decode := func(s *setting, rows, lo, hi int) []float32 {
			defer func(all int) { s.b.rows = all }(s.b.rows)
			s.b.rows = rows
			W, half := a.H*a.E, len(cache)/2
			kv, o :=
				s.put(compute.Narrow, cache),
				s.put(compute.Narrow, slices.Repeat([]float32{float32(math.NaN())}, (hi-lo)*W))
			s.b.AttentionDecode(o, s.put(compute.Narrow, q[lo*W:hi*W]), kv.Slice(0, half),
				kv.Slice(half, 2*half), a,
				compute.Pages{PageTokens: P, Table: paged.Table[lo:hi], Len: paged.Len[lo:hi]})
			return s.down(o)
		}
		got, want := decode(fast, decodeRows, 0, R), decode(plain, decodeRows, 0, R)
		for r := range R {
			for h := range a.H {
				var off, size float64
				for i := (r*a.H + h) * a.E; i < (r*a.H+h+1)*a.E; i++ {
					off, size =
						off+math.Pow(float64(got[i]-want[i]), 2), size+math.Pow(float64(want[i]), 2)
				}
				if share := math.Sqrt(off / max(size, 1e-300)); !(share <= 0.01) {
					t.Errorf(
						"width %d: head %d of the row of %d positions: off by %.2g of its values",
						a.E, h, lengths[r], share)
				}
			}
		}
		what := fmt.Sprintf("width %d: ", a.E)
		fast.same(what+"again", decode(fast, decodeRows, 0, R), got)
		fast.same(what+"in launches of four rows", decode(fast, 4, 0, R), got)
		fast.same(what+"a row by itself", decode(fast, decodeRows, R-2, R-1),
			got[(R-2)*a.H*a.E:(R-1)*a.H*a.E])
		counts := make([]int32, R*a.K)
		leave := fast.b.dev.Enter()
		if !fast.b.readBack(bytesOf(counts), fast.b.arrived.p, nil) || slices.Max(counts) != 0 {
			t.Errorf("width %d: counters %v, want zeros", a.E, counts)
		}
		leave()
	}
}

// rowsBefore is the rows of the ancestors of segment s as the kernels find them (attn_away).
func (l *layout) rowsBefore(s int) (rows []int32) {
	g := l.table[5*s : 5*s+5]
	for j := range g[3] {
		if g[2] >= 0 {
			rows = append(rows, g[2]+j)
			continue
		}
		path := l.table[-g[2]:]
		for j >= path[0] {
			path = path[2:]
		}
		rows = append(rows, g[0]-g[3]+j+path[1])
	}
	return rows
}

// The tiles of a pack's lists are all of its tiles, each once, those with most work
// first; a pack that only differs in who follows whom is another pack; and the rows of ancestors
// are those of a walk to the root, by a path only where they are not one run.
func TestLayout(t *testing.T) {
	start := []int32{0, 130, 130, 500, 501, 757, 1000, 1129}
	var b Backend
	for _, parent := range [][]int32{nil, {-1, 0, 0, -1, -1, 4, 4}, {-1, -1, -1, -1, -1, -1, -1},
		{-1, 0, -1, -1, -1, 4, 4}, {-1, 0, 1, 2, 3, 4, 5}, {-1, 0, 0, 2, 2, 0, 5}, nil} {
		p := compute.Pack{Start: start, Parent: parent}
		l := b.layout(p)
		for s := range p.Segments() {
			g := p.Segment(s)
			if got, want := l.table[5*s:5*s+5], []int32{int32(g.First), int32(g.Len),
				int32(g.Before), int32(g.Branches)}; !slices.Equal(got[:2], want[:2]) ||
				!slices.Equal(got[3:], want[2:]) {
				t.Errorf("parents %v: segment %d is %v, want %v", parent, s, got, want)
			}
			var rows []int32
			for up := s; p.Branched(up); {
				up = int(parent[up])
				var own []int32
				for i := start[up]; i < start[up+1]; i++ {
					own = append(own, i)
				}
				rows = append(own, rows...)
			}
			n := len(rows)
			one := n == 0 || int(rows[n-1]-rows[0]) == n-1
			if got := l.rowsBefore(s); !slices.Equal(got, rows) || one != (l.table[5*s+2] >= 0) {
				t.Errorf("parents %v: before segment %d (%v) are rows %v, want %v", parent, s,
					l.table[5*s:5*s+5], got, rows)
			}
		}
		check := func(what string, pairs []int32, rows int,
			work func(g compute.Segment, tile int) int) {
			t.Helper()
			seen, last := map[[2]int32]bool{}, math.MaxInt
			for i := 0; i < len(pairs); i += 2 {
				g, tile := p.Segment(int(pairs[i])), int(pairs[i+1])
				n := work(g, tile)
				if tile < 0 || tile >= blocks(g.Len, rows) || seen[[2]int32(pairs[i:i+2])] {
					t.Errorf("parents %v: %s of %d: tile %d of segment %+v is not one of its tiles, or stands twice", parent, what, rows, tile, g)
				}
				if n/rows > last {
					t.Errorf("parents %v: %s of %d: tile %d of segment %+v has more work than the one before", parent, what, rows, tile, g)
				}
				seen[[2]int32(pairs[i:i+2])], last = true, n/rows
			}
			all := 0
			for s := range p.Segments() {
				all += blocks(p.Segment(s).Len, rows)
			}
			if len(seen) != all {
				t.Errorf("parents %v: %s of %d: %d tiles, want %d", parent, what, rows, len(seen),
					all)
			}
		}
		check("queries", l.queryTiles(), tileRows,
			func(g compute.Segment,
				tile int) int {
				return g.Before/tileRows*tileRows + tile*tileRows
			})
		for _, rows := range []int{tileRows, tileRowsdKV, tileRows} {
			var pairs []int32
			for list := l.keyBlocks(rows, 1, 1, 0, 8).blocks; len(list) > 0; list = list[8:] {
				pairs = append(pairs, list[:2]...)
			}
			check("keys", pairs, rows, func(g compute.Segment, tile int) int {
				return (blocks(g.Len+g.Branches, dkvQueries) - tile*rows/dkvQueries) * rows
			})
		}
	}
}

// What the fast kernels are not made for goes to the generic ones: other widths and scales,
// memory that is not aligned, and packs in which 32 bits do not reach from one row to another.
func TestFast(t *testing.T) {
	a := compute.AttnShape{H: 14, K: 2, E: 64, Scale: 0.125}
	b := Backend{narrow: bf16}
	for _, c := range []struct {
		what string
		a    compute.AttnShape
		N    int
		row  []int
		p    driver.Ptr
		want int
	}{
		{"width 64", a, 16384, []int{1152, 1152, 1152}, 256, 0},
		{"width 128", compute.AttnShape{H: 2, K: 1, E: 128, Scale: 1}, 16384, []int{512}, 256, 1},
		{"width 32", compute.AttnShape{H: 2, K: 1, E: 32, Scale: 1}, 16384, []int{512}, 256, -1},
		{"scale 0", compute.AttnShape{H: 2, K: 1, E: 64}, 16384, []int{512}, 256, -1},
		{"a row", a, 16384, []int{1152, 1153}, 256, -1},
		{"an address", a, 16384, []int{1152}, 264, -1},
		{"the longest pack", a, 1 << 20, []int{2040}, 256, 0},
		{"a longer one", a, 1 << 20, []int{2040, 2048}, 256, -1},
	} {
		if got := b.fast(c.a, c.N, c.row, c.p); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}

// Rows of a gradient that go to the same row of dh are added in their order, in
// float32, and what is Narrow is rounded once; over more rows than a block has.
func TestEqualRows(t *testing.T) {
	for _, precision := range []string{F32, BF16} {
		for _, D := range []int{8, 20, 264} {
			b := start(t, Options{Precision: precision})
			defer b.dev.Enter()()
			s := set(t, b)
			const N = 50
			var rows []int32
			for _, r := range s.rng.Perm(N) {
				for range []int{1, 1, 1, 2, 3, 8, 40}[s.rng.IntN(7)] {
					rows = append(rows, int32(r))
				}
			}
			x := s.normal(len(rows) * D)
			for i := range x { // so that the order shows
				x[i] *= float32(math.Exp2(float64(s.rng.IntN(24))))
			}
			dh, xt := s.put(compute.Narrow, s.normal(N*D)), s.put(compute.Wide, x)
			want := s.down(dh)
			for i, r := range rows {
				for d := range D {
					want[int(r)*D+d] += x[i*D+d]
				}
			}
			if precision == BF16 {
				want = s.down(s.put(compute.Narrow, want))
			}
			to, from := b.narrowView("test", "dh", dh, N*D), wide("test", "x", xt, len(x))
			b.launch(b.k.scatterAdd[to.t], b.eachRow(len(rows), D), at(to.p), at(from.p),
				at(index(b, "rows", rows)), whole(len(rows)), whole(D))
			s.same(fmt.Sprintf("%s: %d rows of %d added to %d", precision, len(rows), D, N),
				s.down(dh), want)
		}
	}
}
