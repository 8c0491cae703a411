package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
)

// odd are numbers whose rounding or arithmetic is a case of its own.
var odd = []float32{
	// ties, and above one
	0, float32(math.Copysign(0, -1)), 1, 1 + 1.0/256, 1 + 3.0/256, -1 - 1.0/256,
	1 + 1.0/256 + 1.0/65536,
	// denormal, smallest normal, denormal
	math.Float32frombits(0x7fffff), -math.Float32frombits(0x7fffff), math.Float32frombits(0x800000),
	1e-38,
	math.MaxFloat32, -math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1)),
	float32(math.NaN()), math.Float32frombits(0x7f800001),
}

func TestRound16(t *testing.T) {
	want := []uint32{0, 0x8000, 0x3f80, 0x3f80, 0x3f82, 0xbf80, 0x3f81, 0, 0x8000, 0x80, 0, 0x7f80,
		0xff80, 0x7f80, 0xff80, 0x7fc0, 0x7fc0}
	for i, x := range odd {
		if got := round16(x); got != want[i] {
			t.Errorf("%x: rounded to %x, want %x", math.Float32bits(x), got, want[i])
		}
	}
}

// sets are all ways of multiplying that this machine has.
func sets() (all []*kernels16) {
	for _, k := range available() {
		all = append(all, rounding(k))
	}
	for _, n := range natives() {
		all = append(all, n.kernels16)
	}
	return all
}

// lane is the pairs of a panel's lane i.
func (k *kernels16) lane(panel []uint32, b bool, i, pairs int) []uint32 {
	row := make([]uint32, pairs)
	for p := range row {
		switch {
		case b:
			row[p] = panel[p*k.lanesB+i]
		case k.lines:
			row[p] = panel[(p/tilePairs*k.lanesA+i)*tilePairs+p%tilePairs]
		default:
			row[p] = panel[p*k.lanesA+i]
		}
	}
	return row
}

// TestPack16: panels of each way of multiplying hold what packGo says, whatever
// the number of lanes and elements; nothing outside is written, or read into them.
func TestPack16(t *testing.T) {
	for _, k := range sets() {
		testPack16(t, k)
	}
}

func testPack16(t *testing.T, k *kernels16) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, b := range []bool{false, true} {
		width, lanes, pack := k.mr, k.lanesA, k.packA
		if b {
			width, lanes, pack = k.nr, k.lanesB, k.packB
		}
		for _, down := range []bool{false, true} {
			for _, n := range []int{1, 2, width/2 + 1, width - 1, width} {
				for _, depth := range []int{0, 1, 2, 31, 32, 33, 64, 97} {
					if n < 1 {
						continue
					}
					rows, cols := n, depth
					if down {
						rows, cols = depth, n
					}
					ld := cols + 3
					_, src := guarded(max(1, rows)*ld, rng.IntN(16))
					for i := range rows {
						for j := range cols {
							src[i*ld+j] = float32(rng.NormFloat64())
							if rng.IntN(8) == 0 {
								src[i*ld+j] = odd[rng.IntN(len(odd))]
							}
						}
					}
					pairs := k.pairs(depth)
					const guard = 0xdeadbeef
					all := slices.Repeat([]uint32{guard}, pairs*lanes+32)
					want := make([]uint32, pairs*lanes)
					pack(all, src, ld, n, depth, down)
					packGo(want, lanes, src, ld, 0, n, 0, depth, down)
					for i := range n {
						for p, pair := range k.lane(all, b, i, pairs) {
							if pair != want[p*lanes+i] {
								t.Fatalf("%s: B %v, %d lanes of %d, down %v: pair %d of lane %d is %x, want %x", k.name, b, n, depth, down, p, i, pair, want[p*lanes+i])
							}
						}
					}
					for _, x := range all[pairs*lanes:] {
						if x != guard {
							t.Fatalf("%s: B %v, %d lanes of %d, down %v: wrote outside", k.name, b,
								n, depth, down)
						}
					}
				}
			}
		}
	}
}

// TestRoundRow: rows of pairs are what packGo makes of one lane, with zeros behind them.
func TestRoundRow(t *testing.T) {
	for _, k := range sets() {
		if k.round == nil {
			continue
		}
		for _, n := range []int{0, 1, 2, 31, 32, 33, 64, 97, 128} {
			_, src := guarded(n, n%16)
			for i := range src {
				src[i] = float32(rand.NormFloat64())
				if i%5 == 0 {
					src[i] = odd[rand.IntN(len(odd))]
				}
			}
			const guard = 0xdeadbeef
			pairs := k.pairs(n)
			got, want := slices.Repeat([]uint32{guard}, pairs+16), make([]uint32, pairs)
			roundRow(got[:pairs], src, k.round)
			packGo(want, 1, src, n, 0, 1, 0, n, false)
			for i, x := range got {
				if i < pairs && x != want[i] {
					t.Fatalf("%s: %d elements: pair %d is %x, want %x", k.name, n, i, x, want[i])
				}
				if i >= pairs && x != guard {
					t.Fatalf("%s: %d elements: wrote outside", k.name, n)
				}
			}
		}
	}
}

func TestExpand16(t *testing.T) {
	for _, k := range sets() {
		if k.expand == nil {
			continue
		}
		for _, pairs := range []int{1, 7} {
			n := pairs * k.lanesB
			src := make([]uint32, n)
			for i := range src {
				src[i] = rand.Uint32()
			}
			got, want := make([]float32, 2*n+32), make([]float32, 2*n+32)
			k.expand(got, src, k.lanesB, pairs)
			expandGo(want, src, k.lanesB, pairs)
			for i := range got {
				if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
					t.Fatalf("%s: %d pairs: [%d] is %v, want %v", k.name, pairs, i, got[i], want[i])
				}
			}
		}
	}
}

// TestDotPair: what a pair's arithmetic is, and a tile's, by hand.
func TestDotPair(t *testing.T) {
	pair := func(lo, hi float32) uint32 { return round16(hi)<<16 | round16(lo) }
	tiny := math.Float32frombits(0x800000) // the smallest normal number
	for _, c := range []struct {
		c, lo, hi, lo2, hi2, want float32
	}{
		{1, 2, 3, 5, 7, 32},
		{0, 1, 1, 1, -1, 0},
		{1 << 24, 1, 1, 1, 1, 1 << 24},                       // each is rounded away, one by one
		{1 << 24, 1, 2, 1, 1, 1<<24 + 4},                     // the upper product first
		{1, 1 + 1.0/128, 0, 1 + 1.0/128, 0, 2 + 257.0/16384}, // a product is not rounded
		{0, tiny, 0, 0.5, 0, 0},                              // a denormal product
		{tiny, tiny, 0, -0.5, 0, 0},                          // a denormal sum
		{tiny / 2, 0, 0, 0, 0, 0},                            // a denormal chain
	} {
		if got := dotPair(c.c, pair(c.lo, c.hi), pair(c.lo2, c.hi2)); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
	// dotTile: the lower halves and the upper halves are added up apart, then together.
	for _, c := range []struct {
		c                float32
		lo, hi, lo2, hi2 []float32
		want             float32
	}{
		{1, []float32{2, 1}, []float32{3, 4}, []float32{5, 1}, []float32{7, 1}, 37},
		// the 1 is rounded away among the lower
		{1, []float32{1 << 24, 1, -1 << 24}, []float32{3, 1, 1}, []float32{1, 1, 1},
			[]float32{1, 1, 1}, 6},
		// c comes last
		{1 << 24, []float32{1, 1}, []float32{0, 0}, []float32{1, 1}, []float32{1, 1}, 1<<24 + 2},
		// the two sums are one first
		{1 << 24, []float32{1, 0}, []float32{1, 0}, []float32{1, 1}, []float32{1, 1}, 1<<24 + 2},
		// a denormal sum
		{0, []float32{tiny, -tiny}, []float32{0, 0}, []float32{1.5, 1}, []float32{1, 1}, 0},
		// a denormal c
		{tiny / 2, []float32{1, 0}, []float32{0, 0}, []float32{tiny, 0}, []float32{1, 1}, tiny},
	} {
		var a, b []uint32
		for p := range c.lo {
			a, b = append(a, pair(c.lo[p], c.hi[p])), append(b, pair(c.lo2[p], c.hi2[p]))
		}
		if got := dotTile(c.c, a, b); got != c.want {
			t.Errorf("dotTile: %+v: got %v", c, got)
		}
	}
}

// chains are the native products' elements: c and the products of a's and b's pairs.
var chains = map[string]func(c float32, a, b []uint32) float32{
	"avx512bf16": func(c float32, a, b []uint32) float32 {
		for p := range a {
			c = dotPair(c, a[p], b[p])
		}
		return c
	},
	"amx": func(c float32, a, b []uint32) float32 {
		for p := 0; p < len(a); p += tilePairs {
			c = dotTile(c, a[p:p+tilePairs], b[p:p+tilePairs])
		}
		return c
	},
}

// TestChain16: each element of a native product is one chain of dotPair over
// ascending pairs, or of dotTile over ascending tiles, from zero or from c, to the
// bit, in panels and streamed; nothing outside is written.
func TestChain16(t *testing.T) {
	for name := range chains {
		t.Run(name, func(t *testing.T) {
			for _, n := range natives() {
				if n.name == name {
					testChain16(t, n.kernels16)
					return
				}
			}
			t.Skipf("NOT TESTED: this machine cannot multiply by %s", name)
		})
	}
}

func testChain16(t *testing.T, native *kernels16) {
	rng := rand.New(rand.NewPCG(11, 12))
	many := odd[:11]
	number := func() float32 { // some far apart, so that each rounding shows
		x := float32(rng.NormFloat64())
		switch rng.IntN(12) {
		case 0:
			x *= 1 << 20
		case 1:
			x *= 1e-38
		case 2:
			x = many[rng.IntN(len(many))]
		}
		return x
	}
	w := &worker{tile: aligned(native.mr * native.nr)}
	for m := 1; m <= 2*native.mr+1; m++ {
		if native.mr > 16 && m%8 > 1 {
			continue
		}
		for _, n := range []int{1, 31, 32, 33, 70} {
			for _, depth := range []int{0, 1, 2, 37, 2*pairBlock + 6} {
				for _, acc := range []bool{false, true} {
					if m%5 > 0 && depth > 37 {
						continue
					}
					pairs := native.pairs(depth)
					many = odd[:11]
					if depth == 2 { // infinities and what is no number, but not where all would be
						many = odd
					}
					a, b := make([]float32, m*depth), make([]float32, n*depth)
					for _, x := range [][]float32{a, b} {
						for i := range x {
							x[i] = number()
						}
					}
					pa := packing{dst: make([]uint32, native.sizeA(m, depth)),
						stride: native.pairs(depth) * native.lanesA, src: a, ld: depth, n: m,
						k: depth}
					pb := packing{dst: make([]uint32, native.sizeB(n, depth)),
						stride: native.pairs(depth) * native.lanesB, src: b, ld: depth, n: n,
						k: depth, b: true}
					for _, p := range []packing{pa, pb} {
						for i := range p.tasks(native) {
							p.task(native, i)
						}
					}
					ldc := n + 5
					all, c := guarded(m*ldc, rng.IntN(16))
					for i := range m {
						for j := range n {
							c[i*ldc+j] = number()
						}
					}
					before := slices.Clone(c)
					var lanesA, lanesB [][]uint32
					for i := range m {
						lanesA = append(lanesA, native.lane(pa.dst[i/native.mr*pa.stride:], false,
							i%native.mr, pairs))
					}
					for j := range n {
						lanesB = append(lanesB, native.lane(pb.dst[j/native.nr*pb.stride:], true,
							j%native.nr, pairs))
					}
					check := func(how string) {
						t.Helper()
						for i := range m {
							for j := range ldc {
								if j >= n {
									if x := c[i*ldc+j]; x == x {
										t.Fatalf("%s: %d x %d: wrote beyond the last column", how,
											m, n)
									}
									continue
								}
								want := float32(0)
								if acc {
									want = before[i*ldc+j]
								}
								want = chains[native.name](want, lanesA[i], lanesB[j])
								if got := c[i*ldc+j]; math.Float32bits(got) != math.Float32bits(
									want) && (got == got || want == want) {
									t.Fatalf(
										"%s: %d x %d, depth %d, acc %v: c[%d,%d] is %v, want %v",
										how, m, n, depth, acc, i, j, c[i*ldc+j], want)
								}
							}
						}
						for _, x := range slices.Concat(all[:len(all)-len(c)-20],
							all[len(all)-20:]) {
							if x == x {
								t.Fatalf("%s: %d x %d: wrote outside", how, m, n)
							}
						}
					}
					p := new(product16).of(pa, pb, c, ldc, acc)
					native.tiles(p, w, 0, (m+native.mr-1)/native.mr, 0, (n+native.nr-1)/native.nr)
					check("in panels")
					copy(c, before)
					p.a, p.strideA = make([]uint32, m*pairs), pairs
					for i := range m {
						roundRow(p.a[i*pairs:(i+1)*pairs], a[i*depth:(i+1)*depth], native.round)
					}
					p.stream(&Backend{Footprint: Footprint{k16: native}}, w, 0, (n+native.nr-1)/native.nr)
					check("streamed")
				}
			}
		}
	}
}

// Where the gradient of a weight is cut between calls, at whole units of pairs of
// tokens, changes no bit; nor does how the backend cuts a call itself.
func TestWeightGradientGoesOn(t *testing.T) {
	for _, variant := range Variants16() {
		b, err := New(Options{Workers: 2, Variant: variant, Precision: BF16})
		if err != nil {
			t.Fatal(err)
		}
		const N, I, O = 151, 40, 50
		x, dy, whole := random(b, N*I), random(b, N*O), randomParam(b, O, I)
		parts := *whole
		parts.Derived, parts.G = nil, fill(b, O*I, 0)
		b.Copy(parts.G, whole.G)
		b.LinearGrad(fill(b, N*I, 0), whole, nil, dy, x, false)
		cut := 64 + 2*b.k16.unit
		for _, p := range [][2]int{{0, 64}, {64, cut}, {cut, N}} {
			lo, hi := p[0], p[1]
			b.LinearGrad(fill(b, (hi-lo)*I, 0), &parts, nil, dy.Slice(lo*O, hi*O),
				x.Slice(lo*I, hi*I), false)
		}
		got, want := f32("test", "G", parts.G, O*I), f32("test", "G", whole.G, O*I)
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Errorf("%s: [%d] is %v in parts, %v in one call", variant, i, got[i], want[i])
				break
			}
		}
		b.Close()
	}
}

func TestVariants16(t *testing.T) {
	for _, c := range []struct{ env, precision, name string }{
		{"portable", BF16, "cpu/portable-rounded"}, {"portable", "", "cpu/portable"},
		{"portable", F32, "cpu/portable"},
	} {
		t.Setenv(variantEnv, c.env)
		b, err := New(Options{Workers: 1, Precision: c.precision})
		if err != nil {
			t.Fatal(err)
		}
		if b.Name() != c.name {
			t.Errorf("%+v: got %s", c, b.Name())
		}
		b.Close()
	}
	t.Setenv(variantEnv, "")
	if _, err := New(Options{Precision: "f16"}); err == nil || !strings.Contains(err.Error(), `"f16"`) {
		t.Errorf("precision f16: error %v", err)
	}
	for _, n := range natives() {
		for name, want := range map[string]string{n.name: "cpu/" + n.name,
			n.of.name: "cpu/" + n.of.name + "-rounded"} {
			b, err := New(Options{Workers: 1, Precision: BF16, Variant: name})
			if err != nil {
				t.Fatal(err)
			}
			if b.Name() != want {
				t.Errorf("variant %s: got %s, want %s", name, b.Name(), want)
			}
			b.Close()
		}
		b, err := New(Options{Workers: 1, Variant: n.name})
		if err != nil {
			t.Fatal(err)
		}
		if b.Name() != "cpu/"+n.of.name {
			t.Errorf("variant %s in float32: got %s", n.name, b.Name())
		}
		b.Close()
	}
	if all := natives(); len(all) > 0 {
		b, err := New(Options{Workers: 1, Precision: BF16})
		if err != nil {
			t.Fatal(err)
		}
		if want := "cpu/" + all[len(all)-1].name; b.Name() != want {
			t.Errorf("got %s, want %s", b.Name(), want)
		}
		b.Close()
	}
}

// Tasks pack their own rows, for one worker of these; for 32 they do not, and the bits
// are the same. So they are where k, columns and tokens are cut.
func TestPackedByTasks(t *testing.T) {
	t.Parallel()
	variants := Variants16()
	for i, variant := range variants {
		_, k16, err := pick(variant, BF16)
		if err != nil {
			t.Fatal(err)
		}
		many := 4 * taskTiles * k16.mr
		shapes := [][3]int{{many + 5, 4*taskPairs + 37, 70}}
		if i == len(variants)-1 && !testing.Short() {
			shapes = append(shapes, [3]int{tokenBlock + 3, packLimit/2/tokenBlock + 40, many + 3})
		}
		for _, s := range shapes {
			N, I, O := s[0], s[1], s[2]
			var want [][]float32
			for _, workers := range []int{32, 1} {
				b, err := New(Options{Workers: workers, Variant: variant, Precision: BF16})
				if err != nil {
					t.Fatal(err)
				}
				if b.tasksPack(N) != (workers == 1) {
					t.Fatalf("%s: %d workers: tasks pack %d rows: %v", variant, workers, N,
						workers != 1)
				}
				rng := rand.New(rand.NewPCG(13, 14))
				some := func(n int) compute.Tensor {
					x := fill(b, n, 0)
					for i, data := 0, f32("test", "x", x, n); i < n; i++ {
						data[i] = rng.Float32() - 0.5
					}
					return x
				}
				x, dy, y, dx := some(N*I), some(N*O), some(N*O), some(N*I)
				w := &compute.Param{Rows: O, Cols: I, W: some(O * I), G: some(O * I)}
				bias := &compute.Param{Rows: 1, Cols: O, W: some(O)}
				b.Linear(y, x, w, bias, false)
				b.LinearGrad(dx, w, nil, dy, x, true)
				got := [][]float32{f32("test", "y", y, N*O), f32("test", "dx", dx, N*I),
					f32("test", "G", w.G, O*I)}
				b.Close()
				if want == nil {
					want = got
					continue
				}
				for i, name := range []string{"y", "dx", "G"} {
					for j := range got[i] {
						if math.Float32bits(got[i][j]) != math.Float32bits(want[i][j]) {
							t.Fatalf("%s: %v: %s[%d] is %v packed by tasks, %v before", variant, s,
								name, j, got[i][j], want[i][j])
						}
					}
				}
			}
		}
	}
}
