package cpu

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"math"
	"os"
	"strings"
	"testing"
)

// The assembly of the AVX2 and AVX-512 variants is written by this program, one
// function a kernel, from one description for both widths. To change a
// kernel: change it here, run
//
//	go test ./internal/compute/cpu -run TestAssembly -update
//
// and read the difference of kernels_amd64.s before committing it.

var update = flag.Bool("update", false, "rewrite the generated assembly")

func TestAssembly(t *testing.T) {
	asm, stubs := assemble()
	compareGenerated(t, "gen_test.go",
		map[string][]byte{"kernels_amd64.s": asm, "stubs_amd64.go": stubs})
}

// compareGenerated compares files with what generator writes, and rewrites them
// first if -update is set.
func compareGenerated(t *testing.T, generator string, files map[string][]byte) {
	for name, want := range files {
		if *update {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		// A checkout may have written line ends as the system likes them.
		if !bytes.Equal(bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n")), want) {
			t.Errorf("%s is not what %s writes: run this test with -update", name, generator)
		}
	}
}

// isa is an instruction set: its vectors have w lanes in registers called reg,
// and matrix products use tiles of mr rows and two vectors.
type isa struct {
	name, reg string
	w, mr     int
	// Registers that functions may not use freely: the tail's mask (AVX2 only),
	// and the upper clamp of exp.
	mask, high int
}

var isas = []isa{
	{name: "avx2", reg: "Y", w: 8, mr: 6, mask: 15, high: 14},
	{name: "avx512", reg: "Z", w: 16, mr: 14, mask: -1, high: 31},
}

// writer collects the assembly and the Go declarations.
type writer struct {
	isa
	asm, stubs bytes.Buffer
	labels     int
	frame      int               // bytes of the next function's own on the stack
	bases      map[string]string // slice argument -> register of its first element
}

// in writes one instruction; %-verbs of args that are register numbers are
// written by r.
func (g *writer) in(format string, args ...any) {
	fmt.Fprintf(&g.asm, "\t"+format+"\n", args...)
}

func (g *writer) r(i int) string { return fmt.Sprintf("%s%d", g.reg, i) }

// op writes a vector instruction on numbered registers, sources first.
func (g *writer) op(name string, regs ...int) {
	var s []string
	for _, r := range regs {
		s = append(s, g.r(r))
	}
	g.in("%s %s", name, strings.Join(s, ", "))
}

// opc is op with a constant as the first source.
func (g *writer) opc(name, constant string, regs ...int) {
	s := []string{"consts<>+" + fmt.Sprint(64*constIndex(constant)) + "(SB)"}
	for _, r := range regs {
		s = append(s, g.r(r))
	}
	g.in("%s %s", name, strings.Join(s, ", "))
}

func (g *writer) zero(i int) {
	if g.reg == "Z" {
		g.in("VPXORD %[1]s, %[1]s, %[1]s", g.r(i))
	} else {
		g.in("VXORPS %[1]s, %[1]s, %[1]s", g.r(i))
	}
}

func (g *writer) comment(format string, args ...any) {
	fmt.Fprintf(&g.asm, "\t// "+format+"\n", args...)
}

func (g *writer) label(name string) { fmt.Fprintf(&g.asm, "%s:\n", name) }

func (g *writer) unique(name string) string {
	g.labels++
	return fmt.Sprintf("%s%d", name, g.labels)
}

// load and store move a vector of the slice's elements; in the tail only the
// lanes that are there. Lanes that are not are loaded as zeros.
func (g *writer) load(r int, slice string, tail bool) {
	mem := fmt.Sprintf("(%s)(AX*1)", g.bases[slice])
	switch {
	case !tail:
		g.in("VMOVUPS %s, %s", mem, g.r(r))
	case g.reg == "Z":
		g.in("VMOVUPS.Z %s, K1, %s", mem, g.r(r))
	default:
		g.in("VMASKMOVPS %s, %s, %s", mem, g.r(g.mask), g.r(r))
	}
}

func (g *writer) store(r int, slice string, tail bool) {
	mem := fmt.Sprintf("(%s)(AX*1)", g.bases[slice])
	switch {
	case !tail:
		g.in("VMOVUPS %s, %s", g.r(r), mem)
	case g.reg == "Z":
		g.in("VMOVUPS %s, K1, %s", g.r(r), mem)
	default:
		g.in("VMASKMOVPS %s, %s, %s", g.r(r), g.r(g.mask), mem)
	}
}

// drop zeroes the lanes that are not there.
func (g *writer) drop(r int, tail bool) {
	switch {
	case !tail:
	case g.reg == "Z":
		g.in("VMOVAPS.Z %[1]s, K1, %[1]s", g.r(r))
	default:
		g.op("VANDPS", g.mask, r, r)
	}
}

// constant is a number in 64 bytes of equal lanes.
type constant struct {
	name string
	bits uint32
}

// constants that kernels use.
var constants = append([]constant{
	{"low", math.Float32bits(expLow)},
	{"high", math.Float32bits(expHigh)},
	{"log2e", math.Float32bits(log2e)},
	{"ln2High", math.Float32bits(ln2High)},
	{"ln2Low", math.Float32bits(ln2Low)},
	{"1/5040", math.Float32bits(1.0 / 5040)},
	{"1/720", math.Float32bits(1.0 / 720)},
	{"1/120", math.Float32bits(1.0 / 120)},
	{"1/24", math.Float32bits(1.0 / 24)},
	{"1/6", math.Float32bits(1.0 / 6)},
	{"1/2", math.Float32bits(1.0 / 2)},
	{"1", math.Float32bits(1)},
	{"-Inf", math.Float32bits(float32(math.Inf(-1)))},
	{"bias", 127}, // of a float32's exponent
}, quantConstants...)

func constIndex(name string) int {
	for i, c := range constants {
		if c.name == name {
			return i
		}
	}
	panic("no constant " + name)
}

// exp writes p = exp(x): x is lost, n and keep are scratch. See the function exp.
func (g *writer) exp(x, p, n, keep int) {
	if g.reg == "Z" {
		g.in("VCMPPS $5, consts<>+%d(SB), %s, K2", 64*constIndex("low"), g.r(x))
	} else {
		g.in("VCMPPS $5, consts<>+%d(SB), %s, %s", 64*constIndex("low"), g.r(x), g.r(keep))
	}
	g.op("VMINPS", x, g.high, x) // NaN stays: the minimum's second source wins
	g.opc("VMULPS", "log2e", x, n)
	if g.reg == "Z" {
		g.in("VRNDSCALEPS $8, %[1]s, %[1]s", g.r(n))
	} else {
		g.in("VROUNDPS $8, %[1]s, %[1]s", g.r(n))
	}
	g.opc("VFNMADD231PS", "ln2High", n, x)
	g.opc("VFNMADD231PS", "ln2Low", n, x)
	g.opc("VMOVUPS", "1/5040", p)
	for _, c := range []string{"1/720", "1/120", "1/24", "1/6", "1/2", "1", "1"} {
		g.opc("VFMADD213PS", c, x, p)
	}
	if g.reg == "Z" {
		g.op("VSCALEFPS", n, p, p)
		g.in("VMOVAPS.Z %[1]s, K2, %[1]s", g.r(p))
		return
	}
	g.op("VCVTPS2DQ", n, n)
	g.in("VPSRAD $1, %s, %s", g.r(n), g.r(x))
	g.op("VPSUBD", x, n, n)
	for _, k := range []int{x, n} { // two factors, because n may be 128
		g.opc("VPADDD", "bias", k, k)
		g.in("VPSLLD $23, %[1]s, %[1]s", g.r(k))
		g.op("VMULPS", k, p, p)
	}
	g.op("VANDPS", keep, p, p)
}

// sum leaves the sum of a register's lanes, by halves, in its lane 0.
func (g *writer) sum(r, t int, double bool) { g.reduce(r, t, "VADD", double) }

func (g *writer) reduce(r, t int, op string, double bool) {
	suffix, halves := "PS", "VEXTRACTF128"
	if double {
		suffix = "PD"
	}
	op += suffix
	if g.reg == "Z" {
		g.in("VEXTRACTF64X4 $1, Z%d, Y%d", r, t)
		g.in("%s Y%d, Y%d, Y%d", op, t, r, r)
	}
	g.in("%s $1, Y%d, X%d", halves, r, t)
	g.in("%s X%d, X%d, X%d", op, t, r, r)
	g.in("VPERMILPS $0x4E, X%d, X%d", r, t)
	g.in("%s X%d, X%d, X%d", op, t, r, r)
	if !double {
		g.in("VPERMILPS $0xB1, X%d, X%d", r, t)
		g.in("%s X%d, X%d, X%d", op, t, r, r)
	}
}

// vector writes one kernel over slices of equal length: what begins before the
// loop, body for a whole vector and for the tail, and end after it. Scalars are
// float32 arguments with the registers that they are copied to all lanes of.
type vector struct {
	name    string
	slices  []string
	scalars []scalar
	more    string // a further argument, in BX: "acc int" or "c *adamConsts"
	result  string // Go's result list; the slots of results are ret+0, ret+4 ...
	width   int    // lanes of the loop, when not the isa's
	exps    bool   // body uses exp
	begin   func()
	body    func(tail bool)
	end     func(ret func(i int) string)
}

type scalar struct {
	name string
	reg  int
}

var slots = []string{"SI", "DI", "DX", "R8", "R9"}

func (g *writer) vector(v vector) {
	name := v.name + strings.ToUpper(g.name[:1]) + g.name[1:]
	g.bases = map[string]string{}
	W := g.w
	if v.width > 0 {
		W = v.width
	}
	off := 0
	var body bytes.Buffer
	args := strings.Join(v.slices, ", ") + " []float32"
	for i, s := range v.slices {
		g.bases[s] = slots[i]
		fmt.Fprintf(&body, "\tMOVQ %s_base+%d(FP), %s\n", s, off, slots[i])
		if i == 0 {
			fmt.Fprintf(&body, "\tMOVQ %s_len+%d(FP), CX\n", s, off+8)
		}
		off += 24
	}
	for i, s := range v.scalars {
		fmt.Fprintf(&body, "\tVBROADCASTSS %s+%d(FP), %s\n", s.name, off, g.r(s.reg))
		off += 4
		if args += ", " + s.name; i == len(v.scalars)-1 {
			args += " float32"
		}
	}
	if v.more != "" {
		off = (off + 7) &^ 7
		fmt.Fprintf(&body, "\tMOVQ %s+%d(FP), BX\n", strings.Fields(v.more)[0], off)
		off += 8
		args += ", " + v.more
	}
	if v.result != "" {
		off = (off + 7) &^ 7
	}
	first := off
	switch {
	case strings.Contains(v.result, "float64"):
		off += 8
	case strings.Contains(v.result, ","):
		off += 8
	case v.result != "":
		off += 4
	}
	fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc %s(%s) %s\n", name, args, v.result)
	fmt.Fprintf(&g.asm, "\n// func %s(%s) %s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", name, args, v.result,
		name, off)
	g.asm.Write(body.Bytes())
	if v.exps {
		g.in("VMOVUPS consts<>+%d(SB), %s", 64*constIndex("high"), g.r(g.high))
	}
	if v.begin != nil {
		v.begin()
	}
	g.in("XORQ AX, AX")
	g.in("SUBQ $%d, CX", W)
	g.in("JLT rest")
	g.in("PCALIGN $32")
	g.label("loop")
	v.body(false)
	g.in("ADDQ $%d, AX", 4*W)
	g.in("SUBQ $%d, CX", W)
	g.in("JGE loop")
	g.label("rest")
	g.in("ADDQ $%d, CX", W)
	g.in("JZ done")
	if g.reg == "Z" {
		g.comment("K1: the lanes that are left.")
		g.in("MOVQ $1, R10")
		g.in("SHLQ CX, R10")
		g.in("DECQ R10")
		g.in("KMOVW R10, K1")
	} else {
		g.comment("%s: ones in the lanes that are left.", g.r(g.mask))
		g.in("LEAQ masks<>+32(SB), R10")
		g.in("SHLQ $2, CX")
		g.in("SUBQ CX, R10")
		g.in("VMOVUPS (R10), %s", g.r(g.mask))
	}
	v.body(true)
	g.label("done")
	if v.end != nil {
		names := strings.Split(strings.Trim(v.result, "()"), ",")
		v.end(func(i int) string {
			name := "ret"
			if f := strings.Fields(names[i]); strings.HasPrefix(v.result, "(") {
				name = f[0]
			}
			return fmt.Sprintf("%s+%d(FP)", name, first+4*i)
		})
	}
	g.in("VZEROUPPER")
	g.in("RET")
}

func (g *writer) vectors() {
	g.vector(vector{name: "add", slices: []string{"y", "x"}, body: func(tail bool) {
		g.load(0, "y", tail)
		g.load(1, "x", tail)
		g.op("VADDPS", 1, 0, 0)
		g.store(0, "y", tail)
	}})
	g.vector(vector{name: "scale", slices: []string{"y"}, scalars: []scalar{{"s", 2}},
		body: func(tail bool) {
			g.load(0, "y", tail)
			g.op("VMULPS", 2, 0, 0)
			g.store(0, "y", tail)
		}})
	g.vector(vector{name: "axpy", slices: []string{"y", "x"}, scalars: []scalar{{"s", 2}},
		body: func(tail bool) {
			g.load(0, "y", tail)
			g.load(1, "x", tail)
			g.op("VFMADD231PS", 2, 1, 0)
			g.store(0, "y", tail)
		}})
	result := func(ret func(int) string) {
		g.sum(0, 1, false)
		g.in("VMOVSS X0, %s", ret(0))
	}
	g.vector(vector{name: "dot", slices: []string{"x", "y"}, result: "float32",
		begin: func() { g.zero(0) }, end: result, body: func(tail bool) {
			g.load(1, "x", tail)
			g.load(2, "y", tail)
			g.op("VFMADD231PS", 2, 1, 0)
		}})
	g.vector(vector{name: "dot3", slices: []string{"a", "b", "c"}, result: "float32",
		begin: func() { g.zero(0) }, end: result, body: func(tail bool) {
			g.load(1, "a", tail)
			g.load(2, "b", tail)
			g.load(3, "c", tail)
			g.op("VMULPS", 2, 1, 1)
			g.op("VFMADD231PS", 3, 1, 0)
		}})
	g.vector(vector{name: "sumSquares", slices: []string{"x"}, result: "float64", width: g.w / 2,
		begin: func() { g.zero(0) },
		body: func(tail bool) {
			half := map[string]string{"Z": "Y", "Y": "X"}[g.reg]
			switch {
			case !tail:
				g.in("VMOVUPS (SI)(AX*1), %s1", half)
			case g.reg == "Z":
				g.in("VMOVUPS.Z (SI)(AX*1), K1, %s1", half)
			default:
				g.in("VMASKMOVPS (SI)(AX*1), %s%d, %s1", half, g.mask, half)
			}
			g.in("VCVTPS2PD %s1, %s", half, g.r(1))
			g.op("VFMADD231PD", 1, 1, 0)
		},
		end: func(ret func(int) string) {
			g.sum(0, 1, true)
			g.in("VMOVSD X0, %s", ret(0))
		}})
	g.vector(vector{name: "mulScale", slices: []string{"y", "x", "w"}, scalars: []scalar{{"s", 2}},
		body: func(tail bool) {
			g.load(0, "x", tail)
			g.load(1, "w", tail)
			g.op("VMULPS", 2, 0, 0)
			g.op("VMULPS", 1, 0, 0)
			g.store(0, "y", tail)
		}})
	g.vector(vector{name: "normGrad", slices: []string{"dx", "dy", "w", "x"},
		scalars: []scalar{{"r", 4}, {"c", 5}}, more: "acc int", body: func(tail bool) {
			g.load(0, "dy", tail)
			g.load(1, "w", tail)
			g.load(2, "x", tail)
			g.op("VMULPS", 1, 0, 0)
			g.op("VFNMADD231PS", 5, 2, 0)
			g.op("VMULPS", 4, 0, 0)
			skip := g.unique("set")
			g.in("TESTQ BX, BX")
			g.in("JZ %s", skip)
			g.load(1, "dx", tail)
			g.op("VADDPS", 1, 0, 0)
			g.label(skip)
			g.store(0, "dx", tail)
		}})
	g.vector(vector{name: "mulAcc", slices: []string{"g", "a", "b"}, scalars: []scalar{{"s", 3}},
		body: func(tail bool) {
			g.load(0, "g", tail)
			g.load(1, "a", tail)
			g.load(2, "b", tail)
			g.op("VMULPS", 2, 1, 1)
			g.op("VFMADD231PS", 3, 1, 0)
			g.store(0, "g", tail)
		}})
	g.vector(vector{name: "rotate", slices: []string{"u", "v", "c", "s"},
		scalars: []scalar{{"sign", 6}}, body: func(tail bool) {
			g.load(0, "u", tail)
			g.load(1, "v", tail)
			g.load(2, "c", tail)
			g.load(3, "s", tail)
			g.op("VMULPS", 6, 3, 3)
			g.op("VMULPS", 2, 0, 4)
			g.op("VFNMADD231PS", 3, 1, 4)
			g.op("VMULPS", 2, 1, 5)
			g.op("VFMADD231PS", 3, 0, 5)
			g.store(4, "u", tail)
			g.store(5, "v", tail)
		}})
	g.vector(vector{name: "scaleMax", slices: []string{"x"}, scalars: []scalar{{"s", 2}},
		result: "float32",
		begin: func() {
			g.in("VMOVUPS consts<>+%d(SB), %s", 64*constIndex("-Inf"), g.r(0))
			g.in("VMOVAPS %s, %s", g.r(0), g.r(3))
		},
		body: func(tail bool) {
			g.load(1, "x", tail)
			g.op("VMULPS", 2, 1, 1)
			g.store(1, "x", tail)
			switch {
			case !tail:
				g.op("VMAXPS", 0, 1, 0)
			case g.reg == "Z":
				g.in("VMAXPS Z0, Z1, K1, Z0")
			default:
				g.op("VBLENDVPS", g.mask, 1, 3, 1)
				g.op("VMAXPS", 0, 1, 0)
			}
		},
		end: func(ret func(int) string) {
			g.reduce(0, 1, "VMAX", false)
			g.in("VMOVSS X0, %s", ret(0))
		}})
	g.vector(vector{name: "expSum", slices: []string{"x"}, scalars: []scalar{{"m", 2}},
		result: "float32", exps: true, begin: func() { g.zero(0) }, end: result,
		body: func(tail bool) {
			g.load(1, "x", tail)
			g.op("VSUBPS", 2, 1, 1)
			g.exp(1, 3, 4, 5)
			g.store(3, "x", tail)
			g.drop(3, tail)
			g.op("VADDPS", 3, 0, 0)
		}})
	g.vector(vector{name: "expStats", slices: []string{"x"}, scalars: []scalar{{"m", 2}},
		result: "(sum, mean float32)", exps: true,
		begin: func() { g.zero(0); g.zero(6) },
		body: func(tail bool) {
			g.load(1, "x", tail)
			g.op("VSUBPS", 2, 1, 1)
			g.op("VMOVAPS", 1, 7)
			g.exp(1, 3, 4, 5)
			g.drop(3, tail)
			g.op("VADDPS", 3, 0, 0)
			g.op("VFMADD231PS", 7, 3, 6)
		},
		end: func(ret func(int) string) {
			g.sum(0, 1, false)
			g.in("VMOVSS X0, %s", ret(0))
			g.sum(6, 1, false)
			g.in("VMOVSS X6, %s", ret(1))
		}})
	g.vector(vector{name: "headGrad", slices: []string{"z"},
		scalars: []scalar{{"lse", 2}, {"alpha", 6}, {"beta", 7}}, exps: true,
		body: func(tail bool) {
			g.load(1, "z", tail)
			g.op("VSUBPS", 2, 1, 1)
			g.op("VMOVAPS", 6, 8)
			g.op("VFMADD231PS", 7, 1, 8)
			g.exp(1, 3, 4, 5)
			g.op("VMULPS", 8, 3, 3)
			g.store(3, "z", tail)
		}})
	g.vector(vector{name: "softGrad", slices: []string{"s", "dp"},
		scalars: []scalar{{"scale", 2}, {"lse", 6}, {"delta", 7}}, exps: true,
		body: func(tail bool) {
			g.load(1, "s", tail)
			g.op("VMULPS", 2, 1, 1)
			g.op("VSUBPS", 6, 1, 1)
			g.exp(1, 3, 4, 5)
			g.store(3, "s", tail)
			g.load(0, "dp", tail)
			g.op("VSUBPS", 7, 0, 0)
			g.op("VMULPS", 3, 0, 0)
			g.op("VMULPS", 2, 0, 0)
			g.store(0, "dp", tail)
		}})
	// sigmoid: register 3 = 1 + exp(-gate), gate in 0; registers 1, 4 and 5 are lost.
	sigmoid := func(tail bool) {
		g.load(0, "gate", tail)
		g.zero(1)
		g.op("VSUBPS", 0, 1, 1)
		g.exp(1, 3, 4, 5)
		g.opc("VADDPS", "1", 3, 3)
	}
	g.vector(vector{name: "swiglu", slices: []string{"y", "gate", "up"}, exps: true,
		body: func(tail bool) {
			sigmoid(tail)
			g.op("VDIVPS", 3, 0, 0)
			g.load(1, "up", tail)
			g.op("VMULPS", 1, 0, 0)
			g.store(0, "y", tail)
		}})
	g.vector(vector{name: "swigluGrad", slices: []string{"y", "dgate", "dup", "gate", "up"},
		exps: true, body: func(tail bool) {
			sigmoid(tail)
			g.op("VDIVPS", 3, 0, 1)
			g.load(5, "up", tail)
			g.op("VMULPS", 5, 1, 1)
			g.store(1, "y", tail)
			g.opc("VMOVUPS", "1", 6)
			g.op("VDIVPS", 3, 6, 3) // σ
			g.op("VSUBPS", 3, 6, 4)
			g.op("VFMADD213PS", 6, 0, 4) // 1 + gate*(1-σ)
			g.op("VMULPS", 3, 4, 4)
			g.op("VMULPS", 3, 0, 0) // gate*σ
			g.load(1, "dgate", tail)
			g.op("VMULPS", 1, 0, 0)
			g.op("VMULPS", 1, 5, 5)
			g.op("VMULPS", 4, 5, 5)
			g.store(5, "dgate", tail)
			g.store(0, "dup", tail)
		}})
	g.vector(vector{name: "adamW", slices: []string{"w", "grad", "m", "v"}, more: "c *adamConsts",
		begin: func() {
			for i := range 9 { // the fields of adamConsts in registers 5 to 13
				g.in("VBROADCASTSS %d(BX), %s", 4*i, g.r(5+i))
			}
		},
		body: func(tail bool) {
			const gradScale, beta1, rest1, beta2, rest2, step, inv2, eps, decay = 5, 6, 7, 8, 9, 10, 11, 12, 13
			g.load(0, "grad", tail)
			g.op("VMULPS", gradScale, 0, 0)
			g.load(1, "m", tail)
			g.op("VMULPS", beta1, 1, 1)
			g.op("VFMADD231PS", rest1, 0, 1)
			g.store(1, "m", tail)
			g.load(2, "v", tail)
			g.op("VMULPS", beta2, 2, 2)
			g.op("VMULPS", rest2, 0, 3)
			g.op("VFMADD231PS", 3, 0, 2)
			g.store(2, "v", tail)
			g.op("VMULPS", inv2, 2, 2)
			g.op("VSQRTPS", 2, 2)
			g.op("VADDPS", eps, 2, 2)
			g.op("VMULPS", step, 1, 1)
			g.op("VDIVPS", 2, 1, 1)
			g.load(4, "w", tail)
			g.op("VFMADD231PS", decay, 4, 1)
			g.op("VSUBPS", 1, 4, 4)
			g.store(4, "w", tail)
		}})
}

// rowsAhead is how many panels further on rows fetches.
const rowsAhead = 2

// rowBases are the registers from which A's rows are addressed: 0 to 4 from SI, 5 to 9
// from R13, 10 to 13 from BX.
var rowBases = []string{"SI", "R13", "BX"}

// rowAddresses sets rowBases for m rows from SI on that are R8 bytes apart, and R12; it
// returns the address of row i.
func (g *writer) rowAddresses(m int) func(i int) string {
	g.in("LEAQ (R8)(R8*2), R12")
	if m > 5 {
		g.in("LEAQ (SI)(R8*4), R13")
		g.in("ADDQ R8, R13")
	}
	if m > 10 {
		g.in("LEAQ (R13)(R8*4), BX")
		g.in("ADDQ R8, BX")
	}
	return func(i int) string {
		base := "(" + rowBases[i/5] + ")"
		switch i % 5 {
		case 0:
			return base
		case 3:
			return base + "(R12*1)"
		}
		return base + fmt.Sprintf("(R8*%d)", i%5)
	}
}

// gemm writes the tile of m rows and two vectors of columns; with ahead, the one
// that fetches as it goes.
func (g *writer) gemm(m int, ahead bool) {
	kind, args, size :=
		"gemm", "a []float32, rs, cs int, b []float32, ldb int, c []float32, ldc, k, acc int", 120
	if ahead {
		kind, args, size = "stream", args+", next, step int", 136
	}
	name := fmt.Sprintf("%s%d%s%s", kind, m, strings.ToUpper(g.name[:1]), g.name[1:])
	fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc %s(%s)\n", name, args)
	fmt.Fprintf(&g.asm, "\n// func %s(%s)\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", name, args, name, size)
	b0, b1, cast := 12, 13, 14
	if g.reg == "Z" {
		b0, b1, cast = 28, 29, 30
	}
	for _, s := range []string{"a_base+0(FP), SI", "rs+24(FP), R8", "cs+32(FP), R9",
		"b_base+40(FP), DI", "ldb+64(FP), R10",
		"c_base+72(FP), DX", "ldc+96(FP), R11", "k+104(FP), CX", "acc+112(FP), AX"} {
		g.in("MOVQ %s", s)
	}
	for _, r := range []string{"R8", "R9", "R10", "R11"} {
		g.in("SHLQ $2, %s", r)
	}
	bases, address := rowBases[:(m+4)/5], g.rowAddresses(m)
	g.comment("The chains start from c, or from zero.")
	g.in("TESTQ AX, AX")
	g.in("JZ clear")
	g.in("MOVQ DX, AX")
	whole := m == g.mr && (!ahead || g.reg == "Z")
	for i := range m {
		g.in("VMOVUPS (AX), %s", g.r(2*i))
		g.in("VMOVUPS %d(AX), %s", 4*g.w, g.r(2*i+1))
		if i < m-1 || whole {
			g.in("ADDQ R11, AX")
		}
	}
	g.in("JMP start")
	g.label("clear")
	for i := range 2 * m {
		g.zero(i)
	}
	if whole {
		g.in("MOVQ DX, AX")
	}
	g.label("start")
	g.in("TESTQ CX, CX")
	g.in("JZ store")
	if whole {
		g.comment("What is stored at the end is fetched, or what the tile below starts from.")
		for i := range m {
			g.in("PREFETCHT0 (AX)")
			if g.reg == "Z" {
				g.in("PREFETCHT0 64(AX)")
			}
			if i < m-1 {
				g.in("ADDQ R11, AX")
			}
		}
	}
	if ahead {
		g.comment("What is fetched begins at b[next] and moves by step elements a turn.")
		g.in("MOVQ next+120(FP), AX")
		g.in("LEAQ (DI)(AX*4), AX")
		g.in("MOVQ step+128(FP), R15")
		g.in("SHLQ $2, R15")
	}
	g.in("PCALIGN $64")
	g.label("loop")
	if ahead {
		for line := range g.w / 8 {
			g.in("PREFETCHT0 %d(AX)", 64*line)
		}
		g.in("ADDQ R15, AX")
	}
	g.in("VMOVUPS (DI), %s", g.r(b0))
	g.in("VMOVUPS %d(DI), %s", 4*g.w, g.r(b1))
	g.in("ADDQ R10, DI")
	for i := range m {
		br := cast + i%2
		g.in("VBROADCASTSS %s, %s", address(i), g.r(br))
		g.op("VFMADD231PS", b0, br, 2*i)
		g.op("VFMADD231PS", b1, br, 2*i+1)
	}
	for _, b := range bases {
		g.in("ADDQ R9, %s", b)
	}
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.label("store")
	for i := range m {
		g.in("VMOVUPS %s, (DX)", g.r(2*i))
		g.in("VMOVUPS %s, %d(DX)", g.r(2*i+1), 4*g.w)
		if i < m-1 {
			g.in("ADDQ R11, DX")
		}
	}
	g.in("VZEROUPPER")
	g.in("RET")
}

// transpose writes the transpose of blocks of w rows and w columns: blocks
// blocks side by side in src become blocks one below the other in dst.
func (g *writer) transpose() {
	name := "transpose" + strings.ToUpper(g.name[:1]) + g.name[1:]
	const args = "dst []float32, ldd int, src []float32, lds, blocks int"
	fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc %s(%s)\n", name, args)
	fmt.Fprintf(&g.asm, "\n// func %s(%s)\nTEXT ·%s(SB), NOSPLIT, $0-72\n", name, args, name)
	for _, s := range []string{"dst_base+0(FP), DI", "ldd+24(FP), R9", "src_base+32(FP), SI",
		"lds+56(FP), R8", "blocks+64(FP), CX"} {
		g.in("MOVQ %s", s)
	}
	g.in("SHLQ $2, R8")
	g.in("SHLQ $2, R9")
	g.comment("The rows that come next are fetched: they may be pages apart, which the processor does not foresee.")
	g.in("MOVQ R8, R11")
	g.in("SHLQ $%d, R11", map[int]int{8: 3, 16: 4}[g.w])
	g.label("loop")
	g.in("MOVQ SI, R10")
	for i := range g.w {
		g.in("VMOVUPS (R10), %s", g.r(i))
		g.in("PREFETCHT0 (R10)(R11*1)")
		g.in("ADDQ R8, R10")
	}
	out := g.turn()
	for i := range g.w {
		g.in("VMOVUPS %s, (DI)", g.r(out+i))
		g.in("ADDQ R9, DI")
	}
	g.in("ADDQ $%d, SI", 4*g.w)
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.in("VZEROUPPER")
	g.in("RET")
}

// rows writes the kernel that copies rows of two vectors, ld apart, one behind another. The next
// ones along each row are fetched: they are the next panel's.
func (g *writer) rows() {
	name := "rows" + strings.ToUpper(g.name[:1]) + g.name[1:]
	const args = "dst, src []float32, ld, n int"
	fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc %s(%s)\n", name, args)
	fmt.Fprintf(&g.asm, "\n// func %s(%s)\nTEXT ·%s(SB), NOSPLIT, $0-64\n", name, args, name)
	for _, s := range []string{"dst_base+0(FP), DI", "src_base+24(FP), SI", "ld+48(FP), R8",
		"n+56(FP), CX"} {
		g.in("MOVQ %s", s)
	}
	g.in("SHLQ $2, R8")
	g.label("loop")
	g.in("VMOVUPS (SI), %s", g.r(0))
	g.in("VMOVUPS %d(SI), %s", 4*g.w, g.r(1))
	for line := range g.w / 8 {
		g.in("PREFETCHT0 %d(SI)", 8*g.w*rowsAhead+64*line)
	}
	g.in("VMOVUPS %s, (DI)", g.r(0))
	g.in("VMOVUPS %s, %d(DI)", g.r(1), 4*g.w)
	g.in("ADDQ R8, SI")
	g.in("ADDQ $%d, DI", 8*g.w)
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.in("VZEROUPPER")
	g.in("RET")
}

// turn transposes the w registers from 0 on; the columns are in the w registers
// from the one that it returns.
func (g *writer) turn() int {
	// Rows in z, scratch in t. After the two unpackings, z[4q+j] holds, in its
	// 128-bit part p, column 4p+j of the rows 4q to 4q+3.
	z, t := 0, g.w
	for i := 0; i < g.w/2; i++ {
		g.op("VUNPCKLPS", z+2*i+1, z+2*i, t+2*i)
		g.op("VUNPCKHPS", z+2*i+1, z+2*i, t+2*i+1)
	}
	for i := 0; i < g.w/4; i++ {
		g.op("VUNPCKLPD", t+4*i+2, t+4*i, z+4*i)
		g.op("VUNPCKHPD", t+4*i+2, t+4*i, z+4*i+1)
		g.op("VUNPCKLPD", t+4*i+3, t+4*i+1, z+4*i+2)
		g.op("VUNPCKHPD", t+4*i+3, t+4*i+1, z+4*i+3)
	}
	shuffle := func(imm, y, x, d int) {
		name := "VSHUFF32X4"
		if g.reg == "Y" {
			name = "VPERM2F128"
		}
		g.in("%s $%#x, %s, %s, %s", name, imm, g.r(y), g.r(x), g.r(d))
	}
	out := t
	for j := range 4 {
		if g.reg == "Y" {
			shuffle(0x20, z+4+j, z+j, t+j)
			shuffle(0x31, z+4+j, z+j, t+4+j)
			continue
		}
		shuffle(0x88, z+4+j, z+j, t+j)
		shuffle(0xdd, z+4+j, z+j, t+4+j)
		shuffle(0x88, z+12+j, z+8+j, t+8+j)
		shuffle(0xdd, z+12+j, z+8+j, t+12+j)
	}
	if g.reg == "Z" {
		for j := range 4 {
			shuffle(0x88, t+8+j, t+j, z+j)
			shuffle(0xdd, t+8+j, t+j, z+8+j)
			shuffle(0x88, t+12+j, t+4+j, z+4+j)
			shuffle(0xdd, t+12+j, t+4+j, z+12+j)
		}
		out = z
	}
	return out
}

// peak writes a loop of nothing but multiply-adds, n times as many as a tile has
// chains: what benchmarks compare matrix products with.
func (g *writer) peak() {
	name := "peak" + strings.ToUpper(g.name[:1]) + g.name[1:]
	fmt.Fprintf(&g.stubs, "\nfunc %s(n int)\n", name)
	fmt.Fprintf(&g.asm, "\n// func %s(n int)\nTEXT ·%s(SB), NOSPLIT, $0-8\n\tMOVQ n+0(FP), CX\n",
		name, name)
	for i := range 2*g.mr + 1 {
		g.zero(i)
	}
	g.label("loop")
	for i := range 2 * g.mr {
		g.op("VFMADD231PS", 2*g.mr, 2*g.mr, i)
	}
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.in("VZEROUPPER")
	g.in("RET")
}

// codes writes the kernels that decode and encode moments in 8 bits, sixteen at a time.
func (g *writer) codes() {
	begin := func(name, args string, bytes int, moves ...string) {
		fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc %s(%s)\n", name, args)
		fmt.Fprintf(&g.asm, "\n// func %s(%s)\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", name, args, name,
			bytes)
		for _, s := range moves {
			g.in("MOVQ %s", s)
		}
		g.in("VBROADCASTSS scale+%d(FP), Z31", bytes-4)
	}
	gather := func(op, table string, index, scale, dst int) {
		g.in("KXNORW K1, K1, K1")
		g.zero(dst)
		g.in("%s (%s)(Z%d*%d), K1, Z%d", op, table, index, scale, dst)
	}
	end := func() {
		g.in("DECQ CX")
		g.in("JNZ loop")
		g.in("VZEROUPPER")
		g.in("RET")
	}

	begin("decode8Avx512",
		"x []float32, codes []uint8, blocks int, value *[256]float32, scale float32", 68,
		"x_base+0(FP), DI", "codes_base+24(FP), SI", "blocks+48(FP), CX", "value+56(FP), R8")
	g.label("loop")
	g.in("VPMOVZXBD (SI), Z0")
	gather("VGATHERDPS", "R8", 0, 4, 1)
	g.in("VMULPS Z31, Z1, Z1")
	g.in("VMOVUPS Z1, (DI)")
	g.in("ADDQ $16, SI")
	g.in("ADDQ $64, DI")
	end()

	begin("encode8Avx512", "codes []uint8, x []float32, blocks int, m *codes, scale float32", 68,
		"codes_base+0(FP), DI", "x_base+24(FP), SI", "blocks+48(FP), CX", "m+56(FP), R8")
	for _, c := range [][2]uint32{{30, 1 << 31}, {29, 1 << 15}, {28, 0xff}, {27, 1}} {
		g.in("MOVL $%#x, AX", c[1])
		g.in("VPBROADCASTD AX, Z%d", c[0])
	}
	g.in("LEAQ codes_mid(R8), R9")
	g.in("LEAQ codes_first(R8), R10")
	g.label("loop")
	g.comment("Z0: the quotients, as numbers in their order; Z2: their cells.")
	g.in("VMOVUPS (SI), Z0")
	g.in("VDIVPS Z31, Z0, Z0")
	g.in("VPSRAD $31, Z0, Z1")
	g.in("VPORD Z30, Z1, Z1")
	g.in("VPXORD Z1, Z0, Z0")
	g.in("VPSUBD Z29, Z0, Z2")
	g.in("VPSRLD $16, Z2, Z2")
	gather("VPGATHERDD", "R10", 2, 1, 3)
	g.in("VPANDD Z28, Z3, Z3")
	gather("VPGATHERDD", "R9", 3, 4, 4)
	g.in("VPCMPUD $5, Z4, Z0, K2")
	g.in("VPADDD Z27, Z3, K2, Z3")
	g.in("VPMOVDB Z3, (DI)")
	g.in("ADDQ $64, SI")
	g.in("ADDQ $16, DI")
	end()
}

// vectorKernels are the fields of kernels that are kernels over slices.
var vectorKernels = []string{"add", "scale", "axpy", "dot", "sumSquares", "mulScale", "dot3",
	"normGrad", "mulAcc", "rotate",
	"scaleMax", "expSum", "expStats", "headGrad", "softGrad", "swiglu", "swigluGrad", "adamW"}

// assemble is the assembly file and the file of its declarations.
func assemble() (asm, stubs []byte) {
	g := &writer{}
	g.asm.WriteString("// Code generated by gen_test.go. DO NOT EDIT.\n\n#include \"go_asm.h\"\n#include \"textflag.h\"\n\n")
	for i, c := range constants {
		for lane := range 16 {
			fmt.Fprintf(&g.asm, "DATA consts<>+%d(SB)/4, $%#x\n", 64*i+4*lane, c.bits)
		}
	}
	fmt.Fprintf(&g.asm, "GLOBL consts<>(SB), RODATA|NOPTR, $%d\n\n", 64*len(constants))
	for i := range 16 {
		fmt.Fprintf(&g.asm, "DATA masks<>+%d(SB)/4, $%#x\n", 4*i, [2]uint32{0xffffffff, 0}[i/8])
	}
	fmt.Fprintf(&g.asm, "GLOBL masks<>(SB), RODATA|NOPTR, $64\n")
	g.quantTable()
	g.stubs.WriteString("// Code generated by gen_test.go. DO NOT EDIT.\n\npackage cpu\n")
	for _, set := range isas {
		g.isa = set
		g.vectors()
		g.transpose()
		g.rows()
		if g.reg == "Z" {
			g.codes()
		}
		g.dequant(false)
		g.dequant(true)
		g.peak()
		title := strings.ToUpper(g.name[:1]) + g.name[1:]
		var names, streams []string
		for m := 1; m <= g.mr; m++ {
			g.gemm(m, false)
			g.gemm(m, true)
			names = append(names, fmt.Sprintf("gemm%d%s", m, title))
			streams = append(streams, fmt.Sprintf("stream%d%s", m, title))
		}
		fmt.Fprintf(&g.stubs, "\nvar %s = &kernels{\nname: %q, mr: %d, nr: %d,\ngemm: []gemmFunc{%s},\nstream: []streamFunc{%s},\n", g.name, g.name, g.mr, 2*g.w, strings.Join(names, ", "), strings.Join(streams, ", "))
		fmt.Fprintf(&g.stubs, "transpose: blocked(%d, transpose%s), rows: rows%[2]s,\n", g.w, title)
		for _, f := range vectorKernels {
			fmt.Fprintf(&g.stubs, "%s: %s%s,\n", f, f, title)
		}
		fmt.Fprintf(&g.stubs, "dequant8: dequant8%s, dequant4: dequant4%[1]s,\n", title)
		if g.reg == "Z" {
			g.stubs.WriteString("decode8: decode8Avx512, encode8: encode8Avx512, ahead: true,\n")
		}
		g.stubs.WriteString("}\n")
	}
	stubs, err := format.Source(g.stubs.Bytes())
	if err != nil {
		panic(err)
	}
	return g.asm.Bytes(), stubs
}
