package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// An interpreter of PTX: of the instructions that the kernels with tensor cores are
// made of, each written from its section of the PTX ISA. It runs the text that the
// program carries, which nothing else here does: the emulated device runs the kernels'
// sources, and knows the inline instructions only by the names of their wrappers.
//
// Threads of a block run one after the other, each up to an instruction at which the
// warp or the block meets. What the ISA leaves open is taken at its worst: shared
// memory begins as NaN, and a cp.async arrives when a wait_group demands it and not
// earlier.

// ptxKernel is a kernel's instructions.
type ptxKernel struct {
	name   string
	params []int // bytes of each
	code   []ptxInstr
	slots  int // of registers
}

type ptxInstr struct {
	text  string
	pred  int // register of the guard, or -1
	not   bool
	to    int                  // of a branch
	run   func(*ptxThread)     // of one thread
	meet  func(w []*ptxThread) // of a warp, once all lanes are there
	block bool                 // bar.sync
	ends  bool
}

type ptxThread struct {
	m    *ptxMachine
	regs []uint64
	tid  uint64
	pc   int
	done bool
	wait int // 0, or what it waits in: 1 a warp's instruction, 2 bar.sync
	open []ptxCopy
	sent [][]ptxCopy // committed groups, the oldest first
}

type ptxCopy struct {
	to    uint64
	bytes []byte
}

// ptxMachine is memory and the running block.
type ptxMachine struct {
	global [][]byte // the i-th begins at (i+1)<<32
	shared []byte   // begins at sharedBase
	args   [][]byte
	ctaid  [3]uint64
	grid   [3]uint64
	ntid   uint64
}

const sharedBase = 0x1000

// memory is n bytes of space at an address; outside of it the interpreter panics.
func (m *ptxMachine) memory(space string, at uint64, n int) []byte {
	mem, base := m.shared, uint64(sharedBase)
	if space == "global" {
		i := at >> 32
		if i < 1 || i > uint64(len(m.global)) {
			panic(fmt.Sprintf("address %#x is in no memory", at))
		}
		mem, base = m.global[i-1], i<<32
	}
	if at < base || at+uint64(n) > base+uint64(len(mem)) || at%uint64(n) != 0 {
		panic(fmt.Sprintf("%d bytes at %#x of %s memory: outside, or not aligned", n, at, space))
	}
	return mem[at-base : at-base+uint64(n)]
}

// put adds global memory and returns its address.
func (m *ptxMachine) put(b []byte) uint64 {
	m.global = append(m.global, b)
	return uint64(len(m.global)) << 32
}

var (
	ptxParam  = regexp.MustCompile(`^\.param \.[a-z](\d+) \w+_param_(\d+),?$`)
	ptxGuard  = regexp.MustCompile(`^@(!?)(%p\d+)\s+`)
	ptxFormat = regexp.MustCompile(`^(\S+)(?:\s+(.*))?;$`)
)

// parsePTX is one kernel of a PTX text.
func parsePTX(text, name string) (k *ptxKernel, err error) {
	defer func() {
		if what := recover(); what != nil {
			err = fmt.Errorf("ptx: kernel %s: %v", name, what)
		}
	}()
	at := strings.Index(text, "\n.visible .entry "+name+"(")
	if at < 0 {
		return nil, fmt.Errorf("ptx: no kernel %s", name)
	}
	k = &ptxKernel{name: name}
	slot, labels := map[string]int{}, map[string]int{}
	register := func(name string) int {
		if !strings.HasPrefix(name, "%") {
			panic("not a register: " + name)
		}
		if _, ok := slot[name]; !ok {
			slot[name] = len(slot)
		}
		return slot[name]
	}
	branches := map[int]string{}
	for line := range strings.Lines(text[at+1:]) {
		line = strings.TrimSpace(line)
		if line == "}" {
			break
		}
		if p := ptxParam.FindStringSubmatch(line); p != nil {
			bits, _ := strconv.Atoi(p[1])
			k.params = append(k.params, bits/8)
		}
		if line == "" || line == "{" || line == ")" || strings.HasPrefix(line, ".") ||
			strings.HasPrefix(line, "//") {
			continue
		}
		if label, ok := strings.CutSuffix(line, ":"); ok {
			labels[label] = len(k.code)
			continue
		}
		in := ptxInstr{text: line, pred: -1}
		if g := ptxGuard.FindStringSubmatch(line); g != nil {
			in.not, in.pred = g[1] == "!", register(g[2])
			line = line[len(g[0]):]
		}
		f := ptxFormat.FindStringSubmatch(line)
		if f == nil {
			panic("not an instruction: " + line)
		}
		op, args := f[1], ptxOperands(f[2])
		switch op {
		case "bra", "bra.uni":
			branches[len(k.code)] = args[0]
		default:
			ptxCompile(&in, op, args, register)
		}
		k.code = append(k.code, in)
	}
	for i, label := range branches {
		to, ok := labels[label]
		if !ok {
			panic("no label " + label)
		}
		k.code[i].to = to
	}
	k.slots = len(slot)
	return k, nil
}

// ptxOperands cuts operands at commas outside of braces.
func ptxOperands(s string) (args []string) {
	depth, from := 0, 0
	for i, c := range s + "," {
		switch {
		case c == '{':
			depth++
		case c == '}':
			depth--
		case c == ',' && depth == 0:
			if arg := strings.TrimSpace(s[from:i]); arg != "" {
				args = append(args, arg)
			}
			from = i + 1
		}
	}
	return args
}

// ptxValue reads an operand.
func ptxValue(arg string, register func(string) int) func(*ptxThread) uint64 {
	switch {
	case arg == "%tid.x":
		return func(t *ptxThread) uint64 { return t.tid }
	case arg == "%ntid.x":
		return func(t *ptxThread) uint64 { return t.m.ntid }
	case strings.HasPrefix(arg, "%ctaid."):
		axis := strings.IndexByte("xyz", arg[7])
		return func(t *ptxThread) uint64 { return t.m.ctaid[axis] }
	case strings.HasPrefix(arg, "%nctaid."):
		axis := strings.IndexByte("xyz", arg[8])
		return func(t *ptxThread) uint64 { return t.m.grid[axis] }
	case strings.HasPrefix(arg, "%"):
		r := register(arg)
		return func(t *ptxThread) uint64 { return t.regs[r] }
	case arg == "shared_bytes":
		return func(*ptxThread) uint64 { return sharedBase }
	}
	var v uint64
	var err error
	if hex, ok := strings.CutPrefix(arg, "0f"); ok {
		v, err = strconv.ParseUint(hex, 16, 32)
	} else {
		var n int64
		n, err = strconv.ParseInt(arg, 0, 64)
		v = uint64(n)
	}
	if err != nil {
		panic("operand " + arg)
	}
	return func(*ptxThread) uint64 { return v }
}

// ptxAddress reads [%r], [%r+4] or [name].
func ptxAddress(arg string, register func(string) int) func(*ptxThread) uint64 {
	inner := strings.TrimSuffix(strings.TrimPrefix(arg, "["), "]")
	base, offset, _ := strings.Cut(inner, "+")
	plus, _ := strconv.ParseInt(offset, 0, 64)
	v := ptxValue(base, register)
	return func(t *ptxThread) uint64 { return v(t) + uint64(plus) }
}

func ptxList(arg string, register func(string) int) (slots []int) {
	for _, name := range strings.Split(strings.Trim(arg, "{}"), ",") {
		slots = append(slots, register(strings.TrimSpace(name)))
	}
	return slots
}

func asF(v uint64) float32   { return math.Float32frombits(uint32(v)) }
func fromF(f float32) uint64 { return uint64(math.Float32bits(f)) }

// signed is the low bits of v as a signed number.
func signed(v uint64, bits int) int64 { return int64(v<<(64-bits)) >> (64 - bits) }

// cut keeps the low bits of v.
func cut(v uint64, bits int) uint64 { return v << (64 - bits) >> (64 - bits) }

// flush is .ftz: subnormals become zeros of their sign.
func flush(f float32) float32 {
	if b := math.Float32bits(f); b&0x7f800000 == 0 {
		return math.Float32frombits(b & 0x80000000)
	}
	return f
}

// fma32 is a*b+c with one rounding, to nearest or down.
func fma32(a, b, c float32, down bool) float32 {
	p, z := float64(a)*float64(b), float64(c) // the product is exact
	s := p + z
	if math.IsNaN(s) || math.IsInf(s, 0) || s == 0 {
		return float32(s)
	}
	exact := new(big.Float).SetPrec(400).Add(big.NewFloat(p), big.NewFloat(z))
	mode := big.ToNearestEven
	if down {
		mode = big.ToNegativeInf
	}
	r, _ := new(big.Float).SetPrec(24).SetMode(mode).Set(exact).Float32()
	if math.Abs(float64(r)) < 1.1754943508222875e-38 { // subnormal results have less than 24 bits
		r, _ = exact.Float32()
	}
	return r
}

// bf16Bits is cvt.rn.bf16.f32.
func bf16Bits(f float32) uint64 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return 0x7fff
	}
	return uint64((b + 0x7fff + b>>16&1) >> 16)
}

func bf16Value(h uint64) float32 { return math.Float32frombits(uint32(h&0xffff) << 16) }

// ptxBits is the size of a type such as s32.
func ptxBits(typ string) int {
	if typ == "pred" {
		return 1
	}
	n, err := strconv.Atoi(typ[1:])
	if err != nil {
		panic("type " + typ)
	}
	return n
}

// ptxCompile gives an instruction its function.
func ptxCompile(in *ptxInstr, op string, args []string, register func(string) int) {
	parts := strings.Split(op, ".")
	typ := parts[len(parts)-1]
	val := func(i int) func(*ptxThread) uint64 { return ptxValue(args[i], register) }
	// binary sets an operation of two operands, ternary of three.
	set := func(f func(t *ptxThread) uint64) {
		d := register(args[0])
		in.run = func(t *ptxThread) { t.regs[d] = f(t) }
	}
	binary := func(f func(a, b uint64) uint64) {
		a, b := val(1), val(2)
		set(func(t *ptxThread) uint64 { return f(a(t), b(t)) })
	}
	floats := func(f func(a, b float32) float32) {
		binary(func(a, b uint64) uint64 { return fromF(f(asF(a), asF(b))) })
	}
	number := func(f func(a, b int64) int64) {
		bits := ptxBits(typ)
		binary(func(a, b uint64) uint64 {
			if typ[0] == 'u' || typ[0] == 'b' {
				return cut(uint64(f(int64(cut(a, bits)), int64(cut(b, bits)))), bits)
			}
			return cut(uint64(f(signed(a, bits), signed(b, bits))), bits)
		})
	}
	switch op {
	case "ret":
		in.ends = true
	case "bar.sync":
		in.block = true
	case "bar.warp.sync":
		in.meet = func([]*ptxThread) {}
	case "mov.b32", "mov.f32", "mov.u32", "mov.u64", "mov.b64":
		a := val(1)
		set(a)
	case "cvta.to.global.u64": // global addresses are generic ones
		a := val(1)
		set(a)
	case "add.s32", "add.s64":
		number(func(a, b int64) int64 { return a + b })
	case "sub.s32", "sub.s64":
		number(func(a, b int64) int64 { return a - b })
	case "mul.lo.s32", "mul.lo.s64":
		number(func(a, b int64) int64 { return a * b })
	case "rem.s32", "rem.u32":
		number(func(a, b int64) int64 { return a % b })
	case "membar.gl": // threads run one after the other, and blocks too
		in.run = func(*ptxThread) {}
	case "atom.global.add.u32": // d = [a], then [a] += b
		d, at, b := register(args[0]), ptxAddress(args[1], register), val(2)
		in.run = func(t *ptxThread) {
			mem := t.m.memory("global", at(t), 4)
			old := little(mem)
			copy(mem, littleEndian([]uint32{uint32(old + b(t))}))
			t.regs[d] = old
		}
	case "div.s32", "div.s64", "div.u32":
		number(func(a, b int64) int64 { return a / b })
	case "min.s32", "min.s64":
		number(func(a, b int64) int64 { return min(a, b) })
	case "max.s32":
		number(func(a, b int64) int64 { return max(a, b) })
	case "mul.wide.s32", "mul.wide.u32":
		binary(func(a, b uint64) uint64 {
			if typ == "u32" {
				return cut(a, 32) * cut(b, 32)
			}
			return uint64(signed(a, 32) * signed(b, 32))
		})
	case "mad.lo.s32":
		a, b, c := val(1), val(2), val(3)
		set(func(t *ptxThread) uint64 { return cut(a(t)*b(t)+c(t), 32) })
	case "and.b32", "and.b64", "and.pred":
		binary(func(a, b uint64) uint64 { return cut(a&b, ptxBits(typ)) })
	case "or.b32", "or.b64", "or.pred":
		binary(func(a, b uint64) uint64 { return cut(a|b, ptxBits(typ)) })
	case "xor.b32", "xor.b64":
		binary(func(a, b uint64) uint64 { return cut(a^b, ptxBits(typ)) })
	case "not.b32", "not.pred":
		a := val(1)
		set(func(t *ptxThread) uint64 { return cut(^a(t), ptxBits(typ)) })
	case "shl.b32", "shl.b64":
		binary(func(a, b uint64) uint64 { return cut(a<<cut(b, 32), ptxBits(typ)) })
	case "shr.u32", "shr.u64":
		binary(func(a, b uint64) uint64 { return cut(a, ptxBits(typ)) >> cut(b, 32) })
	case "shr.s32", "shr.s64":
		bits := ptxBits(typ)
		binary(func(a, b uint64) uint64 {
			return cut(uint64(signed(a, bits)>>min(cut(b, 32), uint64(bits-1))), bits)
		})
	case "prmt.b32": // byte i of d is byte c[4i:4i+3] of b:a, or its sign
		a, b, c := val(1), val(2), val(3)
		set(func(t *ptxThread) (d uint64) {
			both := cut(b(t), 32)<<32 | cut(a(t), 32)
			for i := range 4 {
				select4 := c(t) >> (4 * i) & 15
				one := both >> (8 * (select4 & 7)) & 255
				if select4 > 7 {
					one = cut(uint64(signed(one, 8)>>7), 8)
				}
				d |= one << (8 * i)
			}
			return d
		})
	case "add.f32":
		floats(func(a, b float32) float32 { return a + b })
	case "sub.f32":
		floats(func(a, b float32) float32 { return a - b })
	case "mul.f32", "mul.rn.f32": // with the rounding it is not contracted
		floats(func(a, b float32) float32 { return a * b })
	case "div.rn.f32":
		floats(func(a, b float32) float32 { return a / b })
	case "max.f32": // a NaN counts as absent
		floats(func(a, b float32) float32 {
			if a != a || b > a {
				return b
			}
			return a
		})
	case "rcp.rn.f32":
		a := val(1)
		set(func(t *ptxThread) uint64 { return fromF(1 / asF(a(t))) })
	case "cvt.rn.f32.s32", "cvt.rn.f32.s16":
		a, bits := val(1), ptxBits(typ)
		set(func(t *ptxThread) uint64 { return fromF(float32(signed(a(t), bits))) })
	case "cvt.s32.s8":
		a := val(1)
		set(func(t *ptxThread) uint64 { return cut(uint64(signed(a(t), 8)), 32) })
	case "abs.f32":
		a := val(1)
		set(func(t *ptxThread) uint64 { return cut(a(t)&0x7fffffff, 32) })
	case "cvt.rzi.s32.f32": // towards zero
		a := val(1)
		set(func(t *ptxThread) uint64 { return cut(uint64(int32(asF(a(t)))), 32) })
	case "neg.f32":
		a := val(1)
		set(func(t *ptxThread) uint64 { return cut(a(t)^0x80000000, 32) })
	case "fma.rn.f32", "fma.rm.f32":
		a, b, c := val(1), val(2), val(3)
		down := parts[1] == "rm"
		set(
			func(t *ptxThread) uint64 {
				return fromF(fma32(asF(a(t)), asF(b(t)), asF(c(t)), down))
			})
	case "cvt.sat.f32.f32": // to [0,1], NaN to 0
		a := val(1)
		set(func(t *ptxThread) uint64 {
			f := asF(a(t))
			if !(f > 0) {
				f = 0
			}
			return fromF(min(f, 1))
		})
	case "ex2.approx.ftz.f32":
		a := val(1)
		set(
			func(t *ptxThread) uint64 {
				return fromF(
					flush(float32(math.Exp2(float64(flush(asF(a(t))))))))
			})
	case "rcp.approx.ftz.f32":
		a := val(1)
		set(func(t *ptxThread) uint64 { return fromF(flush(1 / flush(asF(a(t))))) })
	case "cvt.s64.s32":
		a := val(1)
		set(func(t *ptxThread) uint64 { return uint64(signed(a(t), 32)) })
	case "cvt.u64.u32", "cvt.u32.u64", "cvt.u32.u16", "cvt.u16.u32":
		a := val(1)
		bits := min(ptxBits(parts[1]), ptxBits(parts[2]))
		set(func(t *ptxThread) uint64 { return cut(a(t), bits) })
	case "cvt.f32.f16":
		a := val(1)
		set(func(t *ptxThread) uint64 { return fromF(float32(halfValue(uint16(a(t))))) })
	case "cvt.rn.f16.f32":
		a := val(1)
		set(func(t *ptxThread) uint64 { return uint64(halfBits(asF(a(t)))) })
	case "cvt.rn.bf16.f32":
		a := val(1)
		set(func(t *ptxThread) uint64 { return bf16Bits(asF(a(t))) })
	case "cvt.rn.bf16x2.f32": // "the upper half of d is of a, the lower of b"
		binary(func(a, b uint64) uint64 { return bf16Bits(asF(a))<<16 | bf16Bits(asF(b)) })
	case "bfi.b32": // the low c bits of a into b, from bit d on
		a, b, from, n := val(1), val(2), val(3), val(4)
		set(func(t *ptxThread) uint64 {
			mask := cut((uint64(1)<<min(n(t)&255, 32)-1)<<(from(t)&255), 32)
			return cut(b(t)&^mask|a(t)<<(from(t)&255)&mask, 32)
		})
	case "selp.b32", "selp.b64", "selp.f32", "selp.u32":
		a, b, p := val(1), val(2), val(3)
		set(func(t *ptxThread) uint64 {
			if p(t) != 0 {
				return a(t)
			}
			return b(t)
		})
	case "shfl.sync.idx.b32", "shfl.sync.bfly.b32":
		ptxShuffle(in, parts[2], args, register)
	case "vote.sync.ballot.b32":
		d, p := register(args[0]), val(1)
		in.meet = func(w []*ptxThread) {
			all := uint64(0)
			for i, t := range w {
				all |= (p(t) & 1) << i
			}
			for _, t := range w {
				t.regs[d] = all
			}
		}
	default:
		switch {
		case parts[0] == "setp":
			ptxCompare(in, parts[1], typ, args, register)
		case parts[0] == "ld" && parts[1] == "param":
			name := strings.Trim(args[1], "[]")
			n, err := strconv.Atoi(name[strings.LastIndexByte(name, '_')+1:])
			if err != nil {
				panic("parameter " + name)
			}
			d, bytes := register(args[0]), ptxBits(typ)/8
			in.run = func(t *ptxThread) { t.regs[d] = little(t.m.args[n][:bytes]) }
		case parts[0] == "ld" || parts[0] == "st":
			ptxAccess(in, parts, args, register)
		case parts[0] == "cp" || parts[0] == "ldmatrix" || parts[0] == "mma":
			ptxTensor(in, op, args, register)
		default:
			panic("unknown instruction " + op)
		}
	}
}

func little(b []byte) uint64 {
	var whole [8]byte
	copy(whole[:], b)
	return binary.LittleEndian.Uint64(whole[:])
}

func ptxCompare(in *ptxInstr, how, typ string, args []string, register func(string) int) {
	d, a, b := register(args[0]), ptxValue(args[1], register), ptxValue(args[2], register)
	less := func(t *ptxThread) (less, equal, unordered bool) {
		x, y := a(t), b(t)
		switch typ[0] {
		case 'f':
			f, g := asF(x), asF(y)
			return f < g, f == g, f != f || g != g
		case 'u':
			f, g := cut(x, ptxBits(typ)), cut(y, ptxBits(typ))
			return f < g, f == g, false
		}
		f, g := signed(x, ptxBits(typ)), signed(y, ptxBits(typ))
		return f < g, f == g, false
	}
	var holds func(l, e, u bool) bool
	switch how {
	case "eq":
		holds = func(_, e, _ bool) bool { return e }
	case "ne":
		holds = func(_, e, u bool) bool { return !e && !u }
	case "neu":
		holds = func(_, e, _ bool) bool { return !e }
	case "lt":
		holds = func(l, _, _ bool) bool { return l }
	case "le":
		holds = func(l, e, _ bool) bool { return l || e }
	case "gt":
		holds = func(l, e, u bool) bool { return !l && !e && !u }
	case "ge":
		holds = func(l, _, u bool) bool { return !l && !u }
	default:
		panic("comparison " + how)
	}
	in.run = func(t *ptxThread) {
		t.regs[d] = 0
		if holds(less(t)) {
			t.regs[d] = 1
		}
	}
}

// ptxShuffle: c is, in bits 8 to 12, the mask of the lanes' segments, below it the
// last lane of a segment. Only shuffles over whole warps occur.
func ptxShuffle(in *ptxInstr, how string, args []string, register func(string) int) {
	to, _, _ := strings.Cut(args[0], "|")
	d, a, b, c, mask :=
		register(to), ptxValue(args[1], register), ptxValue(args[2], register),
		ptxValue(args[3], register), ptxValue(args[4], register)
	in.meet = func(w []*ptxThread) {
		results := make([]uint64, len(w))
		for i, t := range w {
			if cut(c(t), 32) != 31 || cut(mask(t), 32) != 0xffffffff {
				panic("a shuffle within a part of the warp")
			}
			from := b(t) & 31
			if how == "bfly" {
				from ^= uint64(i)
			}
			results[i] = cut(a(w[from]), 32)
		}
		for i, t := range w {
			t.regs[d] = results[i]
		}
	}
}

func ptxAccess(in *ptxInstr, parts, args []string, register func(string) int) {
	typ, space := parts[len(parts)-1], parts[1]
	if space == "volatile" {
		space = parts[2]
	}
	bytes, at, list := ptxBits(typ)/8, 1, 0
	if parts[0] == "st" {
		at, list = 0, 1
	}
	address := ptxAddress(args[at], register)
	if parts[0] == "st" {
		var values []func(*ptxThread) uint64
		for _, arg := range strings.Split(strings.Trim(args[list], "{}"), ",") {
			values = append(values, ptxValue(strings.TrimSpace(arg), register))
		}
		in.run = func(t *ptxThread) {
			mem := t.m.memory(space, address(t), bytes*len(values))
			for i, v := range values {
				var word [8]byte
				binary.LittleEndian.PutUint64(word[:], v(t))
				copy(mem[i*bytes:(i+1)*bytes], word[:])
			}
		}
		return
	}
	slots := ptxList(args[list], register)
	in.run = func(t *ptxThread) {
		mem := t.m.memory(space, address(t), bytes*len(slots))
		for i, d := range slots {
			t.regs[d] = little(mem[i*bytes : (i+1)*bytes])
			if typ == "s8" || typ == "s16" { // into a wider register, with the sign
				t.regs[d] = uint64(signed(t.regs[d], 8*bytes))
			}
		}
	}
}

// ptxTensor has the instructions of device.cuh's wrappers that work on memory or on
// a whole warp, each from its section of the ISA.
func ptxTensor(in *ptxInstr, op string, args []string, register func(string) int) {
	val := func(i int) func(*ptxThread) uint64 { return ptxValue(args[i], register) }
	switch op {
	case "cp.async.cg.shared.global": // [dst], [src], cp-size, src-size: the rest is zeros
		dst, src := ptxAddress(args[0], register), ptxAddress(args[1], register)
		size, some := val(2), val(3)
		in.run = func(t *ptxThread) {
			n := int(size(t))
			if n != 16 {
				panic("cp.async.cg of other than 16 bytes")
			}
			to := t.m.memory("shared", dst(t), n)
			fresh := make([]byte, n)
			if s := int(some(t)); s > 0 {
				copy(fresh[:s], t.m.memory("global", src(t), n))
			}
			for i := range to {
				to[i] = 0xff
			}
			t.open = append(t.open, ptxCopy{dst(t), fresh})
		}
	case "cp.async.commit_group":
		in.run = func(t *ptxThread) { t.sent, t.open = append(t.sent, t.open), nil }
	case "cp.async.wait_group": // until at most n of the newest groups are under way
		n := val(0)
		in.run = func(t *ptxThread) {
			for len(t.sent) > int(n(t)) {
				for _, c := range t.sent[0] {
					copy(t.m.memory("shared", c.to, len(c.bytes)), c.bytes)
				}
				t.sent = t.sent[1:]
			}
		}
	case "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
		"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16":
		// Threads 0-7 have the addresses of the first matrix's rows, 8-15 of the second's, and so
		// on. Each thread receives a fragment of a row; with .trans the matrix is transposed first.
		trans := strings.Contains(op, ".trans")
		to, address := ptxList(args[0], register), ptxAddress(args[1], register)
		in.meet = func(w []*ptxThread) {
			var matrix [4][8][8]uint64
			for i, t := range w {
				row := t.m.memory("shared", address(t), 16)
				for c := range 8 {
					r, col := i%8, c
					if trans {
						r, col = col, r
					}
					matrix[i/8][r][col] = little(row[2*c : 2*c+2])
				}
			}
			for m := range matrix {
				for r := range 8 {
					// of row r, thread 4r+c/2 has element c, the lower half first
					for c := range 8 {
						d := &w[4*r+c/2].regs[to[m]]
						if c%2 == 0 {
							*d = matrix[m][r][c]
						} else {
							*d |= matrix[m][r][c] << 16
						}
					}
				}
			}
		}
	case "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32":
		// Element (r,k) of A is in thread 4*(r%8)+(k%8)/2, register r/8+2*(k/8), half k%2; (k,n) of
		// B in thread 4*n+(k%8)/2, register k/8, half k%2; (r,n) of C and D in thread 4*(r%8)+n/2,
		// register 2*(r/8)+n%2.
		d, a, b, c :=
			ptxList(args[0], register), ptxList(args[1], register), ptxList(args[2], register),
			ptxList(args[3], register)
		in.meet = func(w []*ptxThread) {
			var sums [16][8]float32
			half := func(word uint64, i int) float32 { return bf16Value(word >> (16 * (i % 2))) }
			for r := range 16 {
				for n := range 8 {
					sum := asF(w[4*(r%8)+n/2].regs[c[2*(r/8)+n%2]])
					for k := range 16 {
						sum += half(w[4*(r%8)+k%8/2].regs[a[r/8+2*(k/8)]], k) *
							half(w[4*n+k%8/2].regs[b[k/8]], k)
					}
					sums[r][n] = sum
				}
			}
			for r := range 16 {
				for n := range 8 {
					w[4*(r%8)+n/2].regs[d[2*(r/8)+n%2]] = fromF(sums[r][n])
				}
			}
		}
	default:
		panic("unknown instruction " + op)
	}
}

// launch runs a kernel.
func (m *ptxMachine) launch(k *ptxKernel, grid [3]int, threads, shared int,
	args ...uint64) (err error) {
	if len(args) != len(k.params) {
		return fmt.Errorf("ptx: kernel %s: %d arguments for %d parameters", k.name, len(args),
			len(k.params))
	}
	m.args = nil
	for _, a := range args {
		m.args = append(m.args, binary.LittleEndian.AppendUint64(nil, a))
	}
	m.grid, m.ntid = [3]uint64{uint64(grid[0]), uint64(grid[1]), uint64(grid[2])}, uint64(threads)
	for z := range grid[2] {
		for y := range grid[1] {
			for x := range grid[0] {
				m.ctaid = [3]uint64{uint64(x), uint64(y), uint64(z)}
				m.shared = make([]byte, shared)
				for i := range m.shared {
					m.shared[i] = 0xff
				}
				if err := m.block(k, threads); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// block runs the threads of a block to their ends.
func (m *ptxMachine) block(k *ptxKernel, threads int) (err error) {
	var now *ptxThread
	defer func() {
		if what := recover(); what != nil {
			where := ""
			if now != nil && now.pc < len(k.code) {
				where = fmt.Sprintf(": thread %d at %q", now.tid, k.code[now.pc].text)
			}
			err = fmt.Errorf("ptx: kernel %s%s: %v", k.name, where, what)
		}
	}()
	all := make([]*ptxThread, threads)
	for i := range all {
		all[i] = &ptxThread{m: m, regs: make([]uint64, k.slots), tid: uint64(i)}
	}
	for {
		ended := 0
		for w := 0; w < threads; w += 32 {
			warp := all[w:min(w+32, threads)]
			for {
				for _, now = range warp {
					now.advance(k)
				}
				// A warp's instruction is done once all lanes are at it.
				for _, t := range warp {
					if t.wait == 1 && (warp[0].wait != 1 || t.pc != warp[0].pc) {
						now = t
						panic("the warp's lanes are not together")
					}
				}
				if warp[0].wait != 1 {
					break
				}
				if len(warp) != 32 {
					panic("an incomplete warp")
				}
				now = warp[0]
				k.code[warp[0].pc].meet(warp)
				for _, t := range warp {
					t.wait = 0
					t.pc++
				}
			}
		}
		for _, t := range all {
			if t.done {
				ended++
			}
		}
		if ended == threads {
			return nil
		}
		for _, t := range all { // all others wait in bar.sync
			if !t.done {
				t.wait = 0
				t.pc++
			}
		}
	}
}

// advance runs a thread up to its end or the next instruction at which others meet.
func (t *ptxThread) advance(k *ptxKernel) {
	for !t.done && t.wait == 0 {
		in := &k.code[t.pc]
		if in.pred >= 0 && (t.regs[in.pred] != 0) == in.not {
			t.pc++
			continue
		}
		switch {
		case in.ends:
			t.done = true
		case in.block:
			t.wait = 2
		case in.meet != nil:
			t.wait = 1
		case in.run != nil:
			in.run(t)
			t.pc++
		default:
			t.pc = in.to
		}
	}
}
