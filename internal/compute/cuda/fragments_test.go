package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"gad/internal/compute/cuda/kernels"
)

// What the wrappers of device.cuh promise, as tables; kernels/probe.cu runs each once.
// The tables are the PTX ISA's: "Matrix fragments for mma.m16n8k16 with floating point
// type" and "ldmatrix". Three things are compared with them: the PTX that the program
// carries (here, by the interpreter), the emulated device and a real one
// (TestFragments).

// place is an element of a matrix.
type place struct{ row, col int }

// fragA, fragB and fragC are the elements that a lane holds, in the order of its
// registers, lower halves first.
func fragA(lane int) (at [8]place) {
	group, in := lane>>2, lane%4
	for i := range at {
		row, col := group, in*2+i&1
		if !(i < 2 || 4 <= i && i < 6) {
			row += 8
		}
		if i >= 4 {
			col += 8
		}
		at[i] = place{row, col}
	}
	return at
}
func fragB(lane int) (at [4]place) {
	group, in := lane>>2, lane%4
	for i := range at {
		row := in*2 + i&1
		if i >= 2 {
			row += 8
		}
		at[i] = place{row, group}
	}
	return at
}
func fragC(lane int) (at [4]place) {
	group, in := lane>>2, lane%4
	for i := range at {
		row := group
		if i >= 2 {
			row += 8
		}
		at[i] = place{row, in*2 + i&1}
	}
	return at
}

// probeIn is the probe's input, and probeSize its output, in words.
type probeIn struct {
	numbers [32][2]float32
	a       [16][16]float32 // small whole numbers: exact in bfloat16, and so are the sums
	b       [16][8]float32
	c       [16][8]float32
	tile    [32][8]uint16 // of ldmatrix: four matrices of eight rows, in any order
	rows    [32]int       // the row whose address a lane gives
	chunks  [2][32][4]uint32
	valid   [2][32]bool
}

const (
	probeWords  = 864
	probeSize   = 864
	probeShared = 1536
)

// numbersToTry are the special cases of the conversions and approximations.
var numbersToTry = []float32{0, float32(math.Copysign(0, -1)), 1, -1, 2, 0.5, 3, -7.25, 1.00390625,
	1.01171875, -1.00390625, 1.0039063692,
	math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, 1e-39, -1e-39, 1.1754943508e-38,
	-1.1754943508e-38,
	float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), -125.5, -126, -126.5, -127,
	-150, 127.99, 128, 8.5070592e37, 1.7014118e38, 2e38, 3.1e38}

func newProbe(rng *rand.Rand) (p probeIn) {
	for i := range p.numbers {
		for j := range p.numbers[i] {
			p.numbers[i][j] = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(12)-6)))
			if rng.IntN(2) == 0 {
				p.numbers[i][j] = numbersToTry[rng.IntN(len(numbersToTry))]
			}
		}
	}
	whole := func() float32 { return float32(rng.IntN(17) - 8) }
	for r := range 16 {
		for c := range 16 {
			p.a[r][c] = whole()
		}
		for c := range 8 {
			p.b[r][c], p.c[r][c] = whole(), whole()
		}
	}
	for r := range p.tile {
		for c := range p.tile[r] {
			p.tile[r][c] = uint16(rng.Uint32())
		}
	}
	copy(p.rows[:], rng.Perm(32))
	for g := range p.chunks {
		for l := range p.chunks[g] {
			for i := range p.chunks[g][l] {
				p.chunks[g][l][i] = rng.Uint32()
			}
			p.valid[g][l] = rng.IntN(4) > 0
		}
	}
	return p
}

// words is p as the kernel reads it.
func (p *probeIn) words() []uint32 {
	w := make([]uint32, probeWords)
	pair := func(lo, hi float32) uint32 { return uint32(bf16Bits(lo) | bf16Bits(hi)<<16) }
	for l := range 32 {
		for i, x := range p.numbers[l] {
			w[2*l+i] = math.Float32bits(x)
		}
		a, b, c := fragA(l), fragB(l), fragC(l)
		for i := range 4 {
			w[64+4*l+i] = pair(p.a[a[2*i].row][a[2*i].col], p.a[a[2*i+1].row][a[2*i+1].col])
			w[256+4*l+i] = math.Float32bits(p.c[c[i].row][c[i].col])
			w[384+4*l+i] = uint32(p.tile[l][2*i]) | uint32(p.tile[l][2*i+1])<<16
			w[544+4*l+i], w[672+4*l+i] = p.chunks[0][l][i], p.chunks[1][l][i]
		}
		for i := range 2 {
			w[192+2*l+i] = pair(p.b[b[2*i].row][b[2*i].col], p.b[b[2*i+1].row][b[2*i+1].col])
			w[800+32*i+l] = 0
			if p.valid[i][l] {
				w[800+32*i+l] = 1
			}
		}
		w[512+l] = uint32(p.rows[l])
	}
	return w
}

// check compares what the kernel wrote with the tables, and describes the first
// difference of each kind.
func (p *probeIn) check(out []uint32) (wrong []string) {
	said := map[string]bool{}
	say := func(what string, lane, i int, got, want any) {
		if !said[what] {
			said[what] = true
			wrong = append(wrong, fmt.Sprintf("%s: lane %d, register %d: %v, want %v", what, lane,
				i, got, want))
		}
	}
	words := func(what string, lane, i int, got, want uint32) {
		if got != want {
			say(what, lane, i, fmt.Sprintf("%#08x", got), fmt.Sprintf("%#08x", want))
		}
	}
	for l := range 32 {
		x, y := p.numbers[l][0], p.numbers[l][1]
		words("pack2", l, 0, out[l], roundedBits(x)|roundedBits(y)<<16)
		words("from_float", l, 0, out[32+l], roundedBits(x))
		if got := math.Float32frombits(out[64+l]); !near(got, tidy(math.Exp2(tidy(float64(x)))),
			2) {
			say(fmt.Sprint("fast_exp2 of ", x), l, 0, got, tidy(math.Exp2(tidy(float64(x)))))
		}
		if got := math.Float32frombits(out[96+l]); !near(got, tidy(1/tidy(float64(x))), 1) {
			say(fmt.Sprint("fast_rcp of ", x), l, 0, got, tidy(1/tidy(float64(x))))
		}
		half := uint16(math.Float32bits(x) >> 16)
		if got := float64(math.Float32frombits(out[768+l])); !alike(got, halfValue(half)) {
			say(fmt.Sprintf("from_half of %#04x", half), l, 0, got, halfValue(half))
		}
		words(fmt.Sprint("to_half of ", y), l, 0, out[800+l], uint32(halfBits(y)))
		if got, want := math.Float32frombits(out[832+l]), float32(x*y)+x; !alike(float64(got),
			float64(want)) {
			say(fmt.Sprintf("product of %v and %v", x, y), l, 0, got, want)
		}
		for i, at := range fragC(l) {
			sum := p.c[at.row][at.col]
			for k := range 16 {
				sum += p.a[at.row][k] * p.b[k][at.col]
			}
			words(fmt.Sprintf("mma, as floats %v", math.Float32frombits(out[128+4*l+i])), l, i,
				out[128+4*l+i], math.Float32bits(sum))
		}
		// Lanes 8m to 8m+7 give the rows of matrix m. A lane gets, of each matrix, two neighbours
		// of row lane/4, or of column lane/4 where it is transposed.
		for m := range 4 {
			row := func(r int) *[8]uint16 { return &p.tile[p.rows[8*m+r]] }
			g, c := l/4, 2*(l%4)
			words("ldmatrix4", l, m, out[256+4*l+m], uint32(row(g)[c])|uint32(row(g)[c+1])<<16)
			words("ldmatrix4t", l, m, out[384+4*l+m], uint32(row(c)[g])|uint32(row(c + 1)[g])<<16)
		}
		for g := range p.chunks {
			for i, want := range p.chunks[g][l] {
				if !p.valid[g][l] {
					want = 0
				}
				words(fmt.Sprintf("copy_async of group %d", g), l, i, out[512+128*g+4*l+i], want)
			}
		}
	}
	return wrong
}

// roundedBits is the nearest bfloat16, ties to even, by search among its neighbours;
// a NaN is 0x7fff.
func roundedBits(x float32) uint32 {
	if x != x {
		return 0x7fff
	}
	low := math.Float32bits(x) >> 16 // towards zero
	if math.IsInf(float64(x), 0) {
		return low
	}
	value := func(h uint32) float64 {
		if h&0x7fff == 0x7f80 {
			return math.Copysign(math.Exp2(128), float64(x)) // where the next number would be
		}
		return float64(math.Float32frombits(h << 16))
	}
	down, up := math.Abs(float64(x)-value(low)), math.Abs(float64(x)-value(low+1))
	if up < down || up == down && low&1 == 1 {
		return low + 1
	}
	return low
}

// halfValue is a binary16's value, by its definition.
func halfValue(h uint16) float64 {
	m, e, sign := float64(h&0x3ff), int(h>>10&31), 1-2*float64(h>>15)
	switch {
	case e == 31 && m > 0:
		return math.NaN()
	case e == 31:
		return math.Inf(int(sign))
	case e == 0:
		return sign * math.Ldexp(m, -24)
	}
	return sign * math.Ldexp(1024+m, e-25)
}

// halfBits is the nearest binary16, ties to even, by search; a NaN is 0x7fff.
func halfBits(x float32) uint16 {
	if x != x {
		return 0x7fff
	}
	most := math.Abs(float64(x))
	above := sort.Search(0x7c00, func(h int) bool { return halfValue(uint16(h)) >= most })
	h := uint16(above)
	if above > 0 {
		upper := halfValue(h)
		if h == 0x7c00 {
			upper = 65536 // where the next number would be
		}
		down, up := most-halfValue(h-1), upper-most
		if down < up || down == up && (h-1)&1 == 0 {
			h--
		}
	}
	return h | uint16(math.Float32bits(x)>>16&0x8000)
}

// alike reports whether numbers have the same bits, or are both no numbers.
func alike(x, y float64) bool {
	return math.Float64bits(x) == math.Float64bits(y) || x != x && y != y
}

// tidy is x without subnormals, which both approximations count as zeros.
func tidy(x float64) float64 {
	if math.Abs(x) < math.Exp2(-126) {
		return math.Copysign(0, x)
	}
	return x
}

// near is equality to within some units in the last place; and of specials. Beside the
// smallest normal number 0 is as good: nothing says on which side of it a device rounds.
func near(got float32, want float64, ulp float64) bool {
	switch {
	case math.IsNaN(want):
		return got != got
	case want == 0 || math.Abs(want) >= math.Exp2(128):
		return float64(got) == float64(float32(want)) &&
			math.Signbit(float64(got)) == math.Signbit(want)
	}
	_, exp := math.Frexp(want)
	return math.Abs(float64(got)-want) <= ulp*math.Exp2(float64(exp-24))+math.Exp2(-126)*b2f(
		math.Abs(want) < math.Exp2(-125))
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// The wrappers' inline PTX, as compiled for both architectures.
func TestProbePTX(t *testing.T) {
	for _, cc := range []int{80, 90} {
		k, err := parsePTX(string(kernels.PTX(cc)), "probe")
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for range 20 {
			p := newProbe(rng)
			m := &ptxMachine{}
			in, out := littleEndian(p.words()), make([]byte, 4*probeSize)
			to := m.put(out)
			if err := m.launch(k, [3]int{1, 1, 1}, 32, probeShared, to, m.put(in)); err != nil {
				t.Fatal(err)
			}
			if wrong := p.check(wordsOf(out)); len(wrong) > 0 {
				t.Fatalf("compute_%d:\n%s", cc, strings.Join(wrong, "\n"))
			}
		}
	}
}

func littleEndian(w []uint32) (b []byte) {
	for _, x := range w {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

func wordsOf(b []byte) []uint32 {
	w := make([]uint32, len(b)/4)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return w
}

// theCompilers are inline instructions of CUDA's own functions: a shuffle of 64 bits.
var theCompilers = []string{"mov.b64 {%,%}, %;", "mov.b64 %, {%,%};"}

// Each inline instruction of every kernel is one that the probe has: a wrapper that is
// added without a probe is found here.
func TestInlinePTX(t *testing.T) {
	block := regexp.MustCompile(`(?s)// begin inline asm\n(.*?)// end inline asm`)
	operand := regexp.MustCompile(`%\w+`)
	forms := func(text string) (list []string) {
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			form := operand.ReplaceAllString(strings.TrimSpace(m[1]), "%")
			if strings.HasPrefix(form, "cp.async.wait_group ") {
				form = "cp.async.wait_group"
			}
			list = append(list, form)
		}
		return list
	}
	for _, cc := range []int{80, 90} {
		text := string(kernels.PTX(cc))
		at := strings.Index(text, "\n.visible .entry probe(")
		if at < 0 {
			t.Fatal("no kernel probe")
		}
		probe := text[at:]
		probe = probe[:strings.Index(probe, "\n}\n")]
		known := slices.Sorted(slices.Values(forms(probe)))
		known = slices.Compact(known)
		if len(known) != 13 {
			t.Errorf(
				"compute_%d: the probe has %d inline instructions, want the 13 of device.cuh:\n%s",
				cc, len(known), strings.Join(known, "\n"))
		}
		for _, form := range forms(text) {
			if !slices.Contains(known, form) && !slices.Contains(theCompilers, form) {
				t.Errorf("compute_%d: %q: no instruction of the probe's: add its wrapper to kernels/probe.cu", cc, form)
			}
		}
	}
}

// A whole kernel of the text: decoding over one split, and over several that the last
// block merges, against float64.
func TestDecodePTX(t *testing.T) {
	for _, c := range []struct{ E, len, shared int }{{64, 77, 65536}, {128, 50, 65536},
		{64, 513, 65536}, {128, 1030, 65536}} {
		k, err := parsePTX(string(kernels.PTX(90)), fmt.Sprintf("decode_E%d", c.E))
		if err != nil {
			t.Fatal(err)
		}
		const H, K, page = 3, 1, 16
		rng := rand.New(rand.NewPCG(3, 4))
		m := &ptxMachine{}
		values := func(n int) (x []float64, at uint64) {
			var b []byte
			for range n {
				h := bf16Bits(float32(rng.NormFloat64()))
				x, b =
					append(x, float64(bf16Value(h))), binary.LittleEndian.AppendUint16(b, uint16(h))
			}
			return x, m.put(b)
		}
		pages := blocks(c.len, page)
		q, qAt := values(H * c.E)
		keys, keysAt := values(pages * page * c.E)
		vals, valsAt := values(pages * page * c.E)
		order := rng.Perm(pages)
		var table []uint32
		for _, n := range order {
			table = append(table, uint32(n))
		}
		splits := blocks(c.len, decodeSplit)
		part, done, out :=
			make([]byte, 4*splits*H*(c.E+2)), make([]byte, 4*K), make([]byte, 2*H*c.E)
		scale := float32(1 / math.Sqrt(float64(c.E)))
		err = m.launch(k, [3]int{splits, 1, 1}, 128, c.shared, m.put(out), m.put(part), m.put(done),
			qAt, keysAt, valsAt, m.put(littleEndian(table)),
			m.put(littleEndian([]uint32{uint32(c.len)})),
			uint64(pages), page, 1, H, K, uint64(H*c.E), fromF(scale))
		if err != nil {
			t.Fatal(err)
		}
		if n := wordsOf(done)[0]; n != 0 {
			t.Errorf("width %d, %d positions: the counter is left at %d", c.E, c.len, n)
		}
		for h := range H {
			var total float64
			o := make([]float64, c.E)
			for p := range c.len {
				row := (order[p/page]*page + p%page) * c.E
				s := 0.0
				for e := range c.E {
					s += q[h*c.E+e] * keys[row+e]
				}
				w := math.Exp(s * float64(scale))
				total += w
				for e := range c.E {
					o[e] += w * vals[row+e]
				}
			}
			size := 0.0
			for e := range o {
				o[e] /= total
				size += o[e] * o[e] / float64(c.E)
			}
			for e := range o {
				i := 2 * (h*c.E + e)
				if g := float64(bf16Value(little(out[i : i+2]))); !(math.Abs(g-o[e]) <= 0.01*math.Sqrt(size)) {
					t.Errorf("width %d, %d positions, head %d: o[%d] is %v, want %v", c.E, c.len, h,
						e, g, o[e])
					break
				}
			}
		}
	}
}

// What one block of decode leaves for another is ordered as the memory model wants it, which
// neither the emulated device nor the interpreter can show: all threads' writes, each one's
// fence, a barrier, the count; then a barrier, a fence, and reads that no cache answers.
func TestDecodeOrder(t *testing.T) {
	step := regexp.MustCompile(`st\.global\.f32|membar\.gl;|bar\.sync|atom\.global\.add|ld\.volatile\.global|st\.global\.u16|ret;`)
	for _, cc := range []int{80, 90} {
		for _, name := range []string{"decode_E64", "decode_E128"} {
			text := string(kernels.PTX(cc))
			at := strings.Index(text, "\n.visible .entry "+name+"(")
			text = text[at:]
			text = text[:strings.Index(text, "\n}\n")]
			count := strings.Index(text, "atom.global.add")
			if count < 0 {
				t.Fatalf("%s for compute_%d counts no blocks", name, cc)
			}
			before, after :=
				step.FindAllString(text[:count], -1), step.FindAllString(text[count:], -1)
			if n := len(before); n < 3 || before[n-1] != "bar.sync" ||
				before[n-2] != "membar.gl;" || !slices.Contains(before[:n-2], "st.global.f32") {
				t.Errorf(
					"%s for compute_%d: before the count: %v, want writes, a fence and a barrier",
					name, cc, before)
			}
			if slices.Contains(after, "st.global.f32") {
				t.Errorf("%s for compute_%d: parts are written behind the count", name, cc)
			}
			fence, read :=
				slices.Index(after, "membar.gl;"), slices.Index(after, "ld.volatile.global")
			if after[1] != "bar.sync" || fence < 0 || read < fence {
				t.Errorf("%s for compute_%d: behind the count: %v, want a barrier, a fence and volatile reads", name, cc, after)
			}
		}
	}
}

// The attention kernels of the text, forward and backward, over one sequence of more
// than a tile, against float64. q, k and v are columns of one matrix, and so are their
// gradients.
func TestAttentionPTX(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	for _, c := range []struct{ E, dkvRows, fwd, dkv, dq int }{{64, 128, 40960, 66560, 65536},
		{128, 64, 81920, 99328, 98304}} {
		const H, K, N = 2, 1, 133
		text := string(kernels.PTX(80))
		kernel := func(name string) *ptxKernel {
			k, err := parsePTX(text, fmt.Sprintf("%s_E%d", name, c.E))
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		rng := rand.New(rand.NewPCG(7, 8))
		m := &ptxMachine{}
		normal := func(n int) (x []float64, at uint64) {
			var b []byte
			for range n {
				h := bf16Bits(float32(rng.NormFloat64()))
				x, b =
					append(x, float64(bf16Value(h))), binary.LittleEndian.AppendUint16(b, uint16(h))
			}
			return x, m.put(b)
		}
		empty := func(n int) (b []byte, at uint64) {
			b = make([]byte, n)
			return b, m.put(b)
		}
		// Columns that lie side by side: where they begin in a row, and the row's length.
		width := []int{H * c.E, K * c.E, K * c.E}
		begin, W := []int{0, H * c.E, (H + K) * c.E}, (H+2*K)*c.E
		qkv, qkvAt := empty(2 * N * W)
		var in [3][]float64
		for i, n := range width {
			for j := range N * n {
				h := bf16Bits(float32(rng.NormFloat64()))
				in[i] = append(in[i], float64(bf16Value(h)))
				binary.LittleEndian.PutUint16(qkv[2*(j/n*W+begin[i]+j%n):], uint16(h))
			}
		}
		q, k, v := in[0], in[1], in[2]
		column := func(at uint64, i int) uint64 { return at + uint64(2*begin[i]) }
		qAt, kAt, vAt := column(qkvAt, 0), column(qkvAt, 1), column(qkvAt, 2)
		do, doAt := normal(N * H * c.E)
		o, oAt := empty(2 * N * H * c.E)
		lse, lseAt := empty(4 * N * H)
		dqkv, dqkvAt := empty(2 * N * W)
		dqAt, dkAt, dvAt := column(dqkvAt, 0), column(dqkvAt, 1), column(dqkvAt, 2)
		gradient := func(i int) (b []byte) {
			for n := range N {
				b = append(b, dqkv[2*(n*W+begin[i]):][:2*width[i]]...)
			}
			return b
		}
		segments := m.put(littleEndian([]uint32{0, N, 0, 0, 0}))
		tiles := func(rows int) (n int, at uint64) {
			var list []uint32
			for i := range blocks(N, rows) {
				list = append(list, 0, uint32(i))
			}
			return blocks(N, rows), m.put(littleEndian(list))
		}
		queries, queryTiles := tiles(128)
		// blocksOf is the tiles of keys, each in parts by query heads or by tiles of queries.
		var sums []uint32
		blocksOf := func(heads, cuts int) (n int, at uint64) {
			var list []uint32
			rows := uint32(0)
			sums = nil
			for i := range blocks(N, c.dkvRows) {
				own := uint32(min(c.dkvRows, N-i*c.dkvRows))
				from, to, parts := i*c.dkvRows/64, blocks(N, 64), 0
				first := rows
				for h := 0; h < H; h += heads {
					for at, step := from, blocks(to-from, cuts); at < to; at += step {
						list = append(list, 0, uint32(i), uint32(at), uint32(min(at+step, to)),
							uint32(h), uint32(heads), rows, 0)
						rows, parts = rows+own, parts+1
					}
				}
				if heads == H && cuts == 1 {
					list[len(list)-2] = math.MaxUint32 // -1: it is whole
				}
				sums = append(sums, uint32(i*c.dkvRows), own, first, uint32(parts))
			}
			return len(list) / 8, m.put(littleEndian(list))
		}
		s32 := float32(1 / math.Sqrt(float64(c.E)))
		scale := float64(s32)

		// The reference, and what backward reads of it.
		want := map[string][]float64{"o": make([]float64, N*H*c.E), "dq": make([]float64, N*H*c.E),
			"dk": make([]float64, N*c.E), "dv": make([]float64, N*c.E)}
		dot := func(x, y []float64) (sum float64) {
			for i := range x {
				sum += x[i] * y[i]
			}
			return sum
		}
		row := func(x []float64, i int) []float64 { return x[i*c.E : (i+1)*c.E] }
		add := func(to, x []float64, by float64) {
			for i := range to {
				to[i] += x[i] * by
			}
		}
		var lses []float64
		var deltas []uint32
		for i := range N {
			for h := range H {
				n := i*H + h
				total := 0.0
				for j := range i + 1 {
					total += math.Exp(scale * dot(row(q, n), row(k, j)))
				}
				for j := range i + 1 {
					add(row(want["o"], n), row(v, j),
						math.Exp(scale*dot(row(q, n), row(k, j)))/total)
				}
				delta := dot(row(do, n), row(want["o"], n))
				lses, deltas =
					append(lses, math.Log(total)), append(deltas, math.Float32bits(float32(delta)))
				for j := range i + 1 {
					p := math.Exp(scale*dot(row(q, n), row(k, j))) / total
					ds := p * (dot(row(do, n), row(v, j)) - delta)
					add(row(want["dq"], n), row(k, j), scale*ds)
					add(row(want["dk"], j), row(q, n), scale*ds)
					add(row(want["dv"], j), row(do, n), p)
				}
			}
		}
		deltaAt := m.put(littleEndian(deltas))
		if err := m.launch(kernel("attn_fwd"), [3]int{queries, H, 1}, 128, c.fwd, oAt, lseAt, qAt,
			kAt, vAt, segments, queryTiles, H, K, uint64(W), uint64(W), uint64(W),
			fromF(s32)); err != nil {
			t.Fatal(err)
		}
		for n, x := range wordsOf(lse) {
			if got := float64(math.Float32frombits(x)); !(math.Abs(got-lses[n]) < 1e-4) {
				t.Fatalf("width %d: lse[%d] is %v, want %v", c.E, n, got, lses[n])
			}
		}
		if err := m.launch(kernel("attn_bwd_dq"), [3]int{queries, H, 1}, 128, c.dq, dqAt, doAt, qAt,
			kAt, vAt, lseAt, deltaAt, segments, queryTiles, H, K, uint64(W), uint64(W), uint64(W),
			fromF(s32)); err != nil {
			t.Fatal(err)
		}
		// dk and dv whole, in a part for each query head, and for each tile of queries. The parts
		// are added here, and by the kernel.
		part, partAt := empty(4 * 2 * 3 * H * N * K * c.E)
		keys := func(heads, cuts int) {
			n, list := blocksOf(heads, cuts)
			if err := m.launch(kernel("attn_bwd_dkv"), [3]int{n * K, 1, 1}, 128, c.dkv, dkAt, dvAt,
				partAt, doAt, qAt, kAt, vAt, lseAt, deltaAt, segments, list, H, K, uint64(W),
				uint64(W), uint64(W), fromF(s32)); err != nil {
				t.Fatal(err)
			}
		}
		keys(H, 1)
		ones := map[string][]byte{"dk": gradient(1), "dv": gradient(2)}
		added := func(which int, by float64) (b []byte) {
			words := wordsOf(part)
			for n := 0; n < len(sums); n += 4 {
				for r := range sums[n+1] {
					for e := range uint32(K * c.E) {
						sum := 0.0
						for p := range sums[n+3] {
							row := 2*(sums[n+2]+p*sums[n+1]+r) + uint32(which)
							sum += float64(math.Float32frombits(words[row*uint32(K*c.E)+e]))
						}
						b = binary.LittleEndian.AppendUint16(b, uint16(bf16Bits(float32(sum*by))))
					}
				}
			}
			return b
		}
		sum, err := parsePTX(text, "attn_bwd_dkv_sum")
		if err != nil {
			t.Fatal(err)
		}
		for name, by := range map[string][2]int{"heads": {1, 1}, "queries": {H, 3}} {
			keys(by[0], by[1])
			if sums[3] < 2 {
				t.Fatalf("%d parts of %s", sums[3], name)
			}
			ones["dk by "+name], ones["dv by "+name] = added(0, scale), added(1, 1)
			if err := m.launch(sum, [3]int{len(sums) / 4, 2, 1}, 256, 0, dkAt, dvAt, partAt,
				m.put(littleEndian(sums)), uint64(K*c.E), uint64(W), uint64(W),
				fromF(s32)); err != nil {
				t.Fatal(err)
			}
			for i, which := range []string{"dk", "dv"} {
				ones[which+" of "+name+", summed"] = gradient(i + 1)
			}
		}
		for name := range ones {
			want[name] = want[name[:2]]
		}
		ones["o"], ones["dq"] = o, gradient(0)
		for name, b := range ones {
			var size, off, worst float64
			for i, x := range want[name] {
				d := math.Abs(float64(bf16Value(little(b[2*i:2*i+2]))) - x)
				size, off, worst = size+x*x, off+d*d, max(worst, d)
			}
			size, off, worst =
				math.Sqrt(size), math.Sqrt(off), worst*math.Sqrt(float64(len(want[name])))
			t.Logf("width %d: %s: off by %.2g of its size, at worst by %.2g", c.E, name, off/size,
				worst/size)
			if !(off <= 0.008*size) || !(worst <= 0.1*size) {
				t.Errorf("width %d: %s is off by %.2g of its size, one element by %.2g", c.E, name,
					off/size, worst/size)
			}
		}
	}
}
