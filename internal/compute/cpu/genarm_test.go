package cpu

import (
	"bytes"
	"fmt"
	"go/format"
	"strings"
	"testing"

	"gad/internal/compute"
)

// The assembly of the NEON variant is written by this program, one function a
// kernel, as gen_test.go writes that of amd64. To change a kernel: change it
// here, run
//
//	go test ./internal/compute/cpu -run TestAssemblyArm -update
//
// and read the difference of kernels_arm64.s before committing it.
//
// Go's assembler knows few vector instructions on floats, so that those are
// written as words, each with its name in the manufacturer's syntax beside it.

func TestAssemblyArm(t *testing.T) {
	asm, stubs := assembleArm()
	compareGenerated(t, "genarm_test.go",
		map[string][]byte{"kernels_arm64.s": asm, "stubs_arm64.go": stubs})
}

// words are the instructions on vectors that Go's assembler lacks, with zeros
// for their registers, and the arrangements of their operands.
var words = map[string]struct {
	word     uint32
	operands string
}{
	"fadd":        {0x4e20d400, "4s 4s 4s"},
	"fsub":        {0x4ea0d400, "4s 4s 4s"},
	"fmul":        {0x6e20dc00, "4s 4s 4s"},
	"fdiv":        {0x6e20fc00, "4s 4s 4s"},
	"fmin":        {0x4ea0f400, "4s 4s 4s"}, // a NaN stays
	"fmaxnm":      {0x4e20c400, "4s 4s 4s"}, // the number, where the other is a NaN
	"fmla":        {0x4e20cc00, "4s 4s 4s"},
	"fmls":        {0x4ea0cc00, "4s 4s 4s"},
	"fmla lane":   {0x4f801000, "4s 4s s[0]"},
	"fmla twice":  {0x4e60cc00, "2d 2d 2d"},
	"fadd twice":  {0x4e60d400, "2d 2d 2d"},
	"faddp":       {0x6e20d400, "4s 4s 4s"},
	"fcmgt":       {0x6ea0e400, "4s 4s 4s"},
	"add":         {0x4ea08400, "4s 4s 4s"},
	"sub":         {0x6ea08400, "4s 4s 4s"},
	"bic":         {0x4e601c00, "16b 16b 16b"},
	"fneg":        {0x6ea0f800, "4s 4s"},
	"fsqrt":       {0x6ea1f800, "4s 4s"},
	"frintn":      {0x4e218800, "4s 4s"},
	"fcvtzs":      {0x4ea1b800, "4s 4s"},
	"fcvtl":       {0x0e617800, "2d 2s"}, // the lower half as doubles
	"fcvtl2":      {0x4e617800, "2d 4s"}, // the upper half
	"sshr #1":     {0x4f3f0400, "4s 4s"},
	"shl #23":     {0x4f375400, "4s 4s"},
	"ushr #4":     {0x6f0c0400, "16b 16b"},
	"and":         {0x4e201c00, "16b 16b 16b"},
	"sub bytes":   {0x6e208400, "16b 16b 16b"},
	"sxtl":        {0x0f08a400, "8h 8b"},
	"sxtl2":       {0x4f08a400, "8h 16b"},
	"sxtl half":   {0x0f10a400, "4s 4h"},
	"sxtl2 half":  {0x4f10a400, "4s 8h"},
	"scvtf":       {0x4e21d800, "4s 4s"},
	"fcvtl half":  {0x0e217800, "4s 4h"},
	"fcvtl2 half": {0x4e217800, "4s 8h"},
}

// armConsts is the general register of the table of constants.
const armConsts = 7

// Vector registers that hold constants where a kernel uses exp; see the function exp.
const (
	armBias = 26 + iota
	armLn2Low
	armLn2High
	armLog2e
	armLow
	armHigh
)

// armWriter collects the assembly and the Go declarations.
type armWriter struct {
	asm, stubs bytes.Buffer
	labels     int
	bases      map[string]int // slice argument -> general register of its next element
}

func (g *armWriter) in(format string,
	args ...any) {
	fmt.Fprintf(&g.asm, "\t"+format+"\n", args...)
}

func (g *armWriter) label(name string) { fmt.Fprintf(&g.asm, "%s:\n", name) }

// op writes a vector instruction on numbered registers, destination first.
func (g *armWriter) op(name string, regs ...int) {
	w := words[name]
	shapes := strings.Fields(w.operands)
	if len(regs) != len(shapes) {
		panic("genarm: " + name + ": wrong number of registers")
	}
	word := w.word
	var text []string
	for i, r := range regs {
		word |= uint32(r) << [3]int{0, 5, 16}[i]
		text = append(text, fmt.Sprintf("v%d.%s", r, shapes[i]))
	}
	mnemonic, suffix, _ := strings.Cut(name, " ")
	if strings.HasPrefix(suffix, "#") {
		text = append(text, suffix)
	}
	g.in("WORD $%#08x // %s %s", word, mnemonic, strings.Join(text, ", "))
}

// load and store move lanes elements of a slice, those of the u-th vector from
// where its register points. Lanes that are not there are loaded as zeros.
func (g *armWriter) load(r int, slice string, lanes, u int) {
	g.in("%s %d(R%d), F%d", move(lanes), 16*u, g.bases[slice], r)
}

func (g *armWriter) store(r int, slice string, lanes, u int) {
	g.in("%s F%d, %d(R%d)", move(lanes), r, 16*u, g.bases[slice])
}

func move(lanes int) string { return map[int]string{4: "FMOVQ", 2: "FMOVD", 1: "FMOVS"}[lanes] }

// drop zeroes the lanes that are not there.
func (g *armWriter) drop(r, lanes int) {
	if lanes < 4 {
		g.in("%[1]s F%[2]d, F%[2]d", move(lanes), r)
	}
}

func (g *armWriter) zero(r int) { g.in("VEOR V%[1]d.B16, V%[1]d.B16, V%[1]d.B16", r) }

func (g *armWriter) copy(from, to int) { g.in("VMOV V%d.B16, V%d.B16", from, to) }

func (g *armWriter) spread(r int) { g.in("VDUP V%[1]d.S[0], V%[1]d.S4", r) }

func (g *armWriter) constant(name string, r int) {
	g.in("FMOVQ %d(R%d), F%d", 16*constIndex(name), armConsts, r)
}

// exp writes p = exp(x): x is lost, n, keep and t are scratch. See the function exp.
func (g *armWriter) exp(x, p, n, keep, t int) {
	g.op("fcmgt", keep, armLow, x)
	g.op("fmin", x, x, armHigh)
	g.op("fmul", n, x, armLog2e)
	g.op("frintn", n, n)
	g.op("fmls", x, n, armLn2High)
	g.op("fmls", x, n, armLn2Low)
	from, to := t, p // an odd number of steps ends in p
	g.constant("1/5040", from)
	for _, c := range []string{"1/720", "1/120", "1/24", "1/6", "1/2", "1", "1"} {
		g.constant(c, to)
		g.op("fmla", to, from, x)
		from, to = to, from
	}
	g.op("fcvtzs", n, n)
	g.op("sshr #1", t, n)
	g.op("sub", n, n, t)
	for _, k := range []int{t, n} { // two factors, because n may be 128
		g.op("add", k, k, armBias)
		g.op("shl #23", k, k)
		g.op("fmul", p, p, k)
	}
	g.op("bic", p, p, keep)
}

// sum leaves the sum of a register's lanes, (0+1)+(2+3), in its lane 0.
func (g *armWriter) sum(r int) {
	g.op("faddp", r, r, r)
	g.op("faddp", r, r, r)
}

// armVector is one kernel over slices of equal length, as vector is; body is
// written for a whole vector, and for two and for one element that are left, so
// that nothing beyond a slice is touched. With unroll a loop of so many vectors
// comes first: the u-th body of it uses its own registers.
type armVector struct {
	name    string
	slices  []string
	scalars []scalar
	more    string // a further argument, in R6
	result  string
	unroll  int
	exps    bool
	begin   func()
	body    func(lanes, u int)
	end     func(ret func(i int) string)
}

func (g *armWriter) vector(v armVector) {
	name := v.name + "Neon"
	g.bases = map[string]int{}
	off := 0
	var head bytes.Buffer
	args := strings.Join(v.slices, ", ") + " []float32"
	for i, s := range v.slices {
		g.bases[s] = i
		fmt.Fprintf(&head, "\tMOVD %s_base+%d(FP), R%d\n", s, off, i)
		if i == 0 {
			fmt.Fprintf(&head, "\tMOVD %s_len+%d(FP), R5\n", s, off+8)
		}
		off += 24
	}
	for i, s := range v.scalars {
		fmt.Fprintf(&head, "\tFMOVS %s+%d(FP), F%d\n\tVDUP V%d.S[0], V%d.S4\n", s.name, off, s.reg,
			s.reg, s.reg)
		off += 4
		if args += ", " + s.name; i == len(v.scalars)-1 {
			args += " float32"
		}
	}
	if v.more != "" {
		off = (off + 7) &^ 7
		fmt.Fprintf(&head, "\tMOVD %s+%d(FP), R6\n", strings.Fields(v.more)[0], off)
		off += 8
		args += ", " + v.more
	}
	if v.result != "" {
		off = (off + 7) &^ 7
	}
	first := off
	switch {
	case strings.Contains(v.result, "float64"), strings.Contains(v.result, ","):
		off += 8
	case v.result != "":
		off += 4
	}
	fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc %s(%s) %s\n", name, args, v.result)
	fmt.Fprintf(&g.asm, "\n// func %s(%s) %s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", name, args, v.result,
		name, off)
	g.asm.Write(head.Bytes())
	g.in("MOVD $consts<>(SB), R%d", armConsts)
	if v.exps {
		for _, c := range []scalar{{"bias", armBias}, {"ln2Low", armLn2Low},
			{"ln2High", armLn2High}, {"log2e", armLog2e}, {"low", armLow}, {"high", armHigh}} {
			g.constant(c.name, c.reg)
		}
	}
	if v.begin != nil {
		v.begin()
	}
	advance := func(bytes int) {
		for i := range v.slices {
			g.in("ADD $%d, R%d", bytes, i)
		}
	}
	loop := func(name, done string, vectors int) {
		g.in("SUBS $%d, R5", 4*vectors)
		g.in("BLT %s", done)
		g.in("PCALIGN $16")
		g.label(name)
		for u := range vectors {
			v.body(4, u)
		}
		advance(16 * vectors)
		g.in("SUBS $%d, R5", 4*vectors)
		g.in("BGE %s", name)
		g.label(done)
	}
	if v.unroll > 1 {
		loop("loops", "fewer", v.unroll)
		g.in("ADD $%d, R5", 4*v.unroll)
	}
	loop("loop", "rest", 1)
	// R5 is 4 less than what is left: its last two bits are the same.
	g.in("TBZ $1, R5, one")
	v.body(2, 0)
	advance(8)
	g.label("one")
	g.in("TBZ $0, R5, done")
	v.body(1, 0)
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
	g.in("RET")
}

func (g *armWriter) vectors() {
	g.vector(armVector{name: "add", slices: []string{"y", "x"}, body: func(n, u int) {
		g.load(0, "y", n, u)
		g.load(1, "x", n, u)
		g.op("fadd", 0, 0, 1)
		g.store(0, "y", n, u)
	}})
	g.vector(armVector{name: "scale", slices: []string{"y"}, scalars: []scalar{{"s", 2}},
		body: func(n, u int) {
			g.load(0, "y", n, u)
			g.op("fmul", 0, 0, 2)
			g.store(0, "y", n, u)
		}})
	g.vector(armVector{name: "axpy", slices: []string{"y", "x"}, scalars: []scalar{{"s", 2}},
		body: func(n, u int) {
			g.load(0, "y", n, u)
			g.load(1, "x", n, u)
			g.op("fmla", 0, 1, 2)
			g.store(0, "y", n, u)
		}})
	// Sums that would wait for each other have four registers, 0 to 3.
	clear := func() {
		for i := range 4 {
			g.zero(i)
		}
	}
	join := func(add string) {
		g.op(add, 0, 0, 1)
		g.op(add, 2, 2, 3)
		g.op(add, 0, 0, 2)
	}
	result := func(ret func(int) string) {
		join("fadd")
		g.sum(0)
		g.in("FMOVS F0, %s", ret(0))
	}
	g.vector(armVector{name: "dot", slices: []string{"x", "y"}, result: "float32", unroll: 4,
		begin: clear, end: result, body: func(n, u int) {
			g.load(4+u, "x", n, u)
			g.load(8+u, "y", n, u)
			g.op("fmla", u, 4+u, 8+u)
		}})
	g.vector(armVector{name: "dot3", slices: []string{"a", "b", "c"}, result: "float32", unroll: 4,
		begin: clear, end: result, body: func(n, u int) {
			g.load(4+u, "a", n, u)
			g.load(8+u, "b", n, u)
			g.load(12+u, "c", n, u)
			g.op("fmul", 4+u, 4+u, 8+u)
			g.op("fmla", u, 4+u, 12+u)
		}})
	g.vector(armVector{name: "sumSquares", slices: []string{"x"}, result: "float64", unroll: 2,
		begin: clear,
		body: func(n, u int) {
			g.load(4+u, "x", n, u)
			g.op("fcvtl", 8+u, 4+u)
			g.op("fcvtl2", 12+u, 4+u)
			g.op("fmla twice", 2*u, 8+u, 8+u)
			g.op("fmla twice", 2*u+1, 12+u, 12+u)
		},
		end: func(ret func(int) string) {
			join("fadd twice")
			g.in("VMOV V0.D[1], V1.D[0]")
			g.in("FADDD F1, F0")
			g.in("FMOVD F0, %s", ret(0))
		}})
	g.vector(armVector{name: "mulScale", slices: []string{"y", "x", "w"},
		scalars: []scalar{{"s", 2}}, body: func(n, u int) {
			g.load(0, "x", n, u)
			g.load(1, "w", n, u)
			g.op("fmul", 0, 0, 2)
			g.op("fmul", 0, 0, 1)
			g.store(0, "y", n, u)
		}})
	g.vector(armVector{name: "normGrad", slices: []string{"dx", "dy", "w", "x"},
		scalars: []scalar{{"r", 4}, {"c", 5}}, more: "acc int", body: func(n, u int) {
			g.load(0, "dy", n, u)
			g.load(1, "w", n, u)
			g.load(2, "x", n, u)
			g.op("fmul", 0, 0, 1)
			g.op("fmls", 0, 2, 5)
			g.op("fmul", 0, 0, 4)
			g.labels++
			g.in("CBZ R6, set%d", g.labels)
			g.load(1, "dx", n, u)
			g.op("fadd", 0, 0, 1)
			g.label(fmt.Sprintf("set%d", g.labels))
			g.store(0, "dx", n, u)
		}})
	g.vector(armVector{name: "mulAcc", slices: []string{"g", "a", "b"}, scalars: []scalar{{"s", 3}},
		body: func(n, u int) {
			g.load(0, "g", n, u)
			g.load(1, "a", n, u)
			g.load(2, "b", n, u)
			g.op("fmul", 1, 1, 2)
			g.op("fmla", 0, 1, 3)
			g.store(0, "g", n, u)
		}})
	g.vector(armVector{name: "rotate", slices: []string{"u", "v", "c", "s"},
		scalars: []scalar{{"sign", 6}}, body: func(n, u int) {
			g.load(0, "u", n, u)
			g.load(1, "v", n, u)
			g.load(2, "c", n, u)
			g.load(3, "s", n, u)
			g.op("fmul", 3, 3, 6)
			g.op("fmul", 4, 0, 2)
			g.op("fmls", 4, 1, 3)
			g.op("fmul", 5, 1, 2)
			g.op("fmla", 5, 0, 3)
			g.store(4, "u", n, u)
			g.store(5, "v", n, u)
		}})
	g.vector(armVector{name: "scaleMax", slices: []string{"x"}, scalars: []scalar{{"s", 16}},
		result: "float32", unroll: 4,
		begin: func() {
			for i := range 4 {
				g.constant("-Inf", i)
			}
			g.constant("-Inf", 17)
		},
		body: func(n, u int) {
			g.load(4+u, "x", n, u)
			g.op("fmul", 4+u, 4+u, 16)
			g.store(4+u, "x", n, u)
			switch n {
			case 4:
				g.op("fmaxnm", u, u, 4+u)
				return
			case 2:
				g.in("VMOV V%d.D[0], V17.D[0]", 4+u)
			case 1:
				g.in("VMOV V%d.S[0], V17.S[0]", 4+u)
			}
			g.op("fmaxnm", u, u, 17)
		},
		end: func(ret func(int) string) {
			join("fmaxnm")
			for _, lanes := range []string{"D", "S"} {
				g.in("VMOV V0.%[1]s[1], V1.%[1]s[0]", lanes)
				g.op("fmaxnm", 0, 0, 1)
			}
			g.in("FMOVS F0, %s", ret(0))
		}})
	one := func(ret func(int) string) {
		g.sum(0)
		g.in("FMOVS F0, %s", ret(0))
	}
	g.vector(armVector{name: "expSum", slices: []string{"x"}, scalars: []scalar{{"m", 2}},
		result: "float32", exps: true, begin: func() { g.zero(0) }, end: one,
		body: func(n, u int) {
			g.load(1, "x", n, u)
			g.op("fsub", 1, 1, 2)
			g.exp(1, 3, 4, 5, 6)
			g.store(3, "x", n, u)
			g.drop(3, n)
			g.op("fadd", 0, 0, 3)
		}})
	g.vector(armVector{name: "expStats", slices: []string{"x"}, scalars: []scalar{{"m", 2}},
		result: "(sum, mean float32)", exps: true,
		begin: func() { g.zero(0); g.zero(16) },
		body: func(n, u int) {
			g.load(1, "x", n, u)
			g.op("fsub", 1, 1, 2)
			g.copy(1, 7)
			g.exp(1, 3, 4, 5, 6)
			g.drop(3, n)
			g.op("fadd", 0, 0, 3)
			g.op("fmla", 16, 3, 7)
		},
		end: func(ret func(int) string) {
			one(ret)
			g.sum(16)
			g.in("FMOVS F16, %s", ret(1))
		}})
	g.vector(armVector{name: "headGrad", slices: []string{"z"},
		scalars: []scalar{{"lse", 2}, {"alpha", 16}, {"beta", 17}}, exps: true,
		body: func(n, u int) {
			g.load(1, "z", n, u)
			g.op("fsub", 1, 1, 2)
			g.copy(16, 18)
			g.op("fmla", 18, 1, 17)
			g.exp(1, 3, 4, 5, 6)
			g.op("fmul", 3, 3, 18)
			g.store(3, "z", n, u)
		}})
	g.vector(armVector{name: "softGrad", slices: []string{"s", "dp"},
		scalars: []scalar{{"scale", 2}, {"lse", 16}, {"delta", 17}}, exps: true,
		body: func(n, u int) {
			g.load(1, "s", n, u)
			g.op("fmul", 1, 1, 2)
			g.op("fsub", 1, 1, 16)
			g.exp(1, 3, 4, 5, 6)
			g.store(3, "s", n, u)
			g.load(0, "dp", n, u)
			g.op("fsub", 0, 0, 17)
			g.op("fmul", 0, 0, 3)
			g.op("fmul", 0, 0, 2)
			g.store(0, "dp", n, u)
		}})
	// sigmoid: register 3 = 1 + exp(-gate), gate in 0; register 16 holds 1.
	sigmoid := func(n, u int) {
		g.load(0, "gate", n, u)
		g.op("fneg", 1, 0)
		g.exp(1, 3, 4, 5, 6)
		g.op("fadd", 3, 3, 16)
	}
	unit := func() { g.constant("1", 16) }
	g.vector(armVector{name: "swiglu", slices: []string{"y", "gate", "up"}, exps: true, begin: unit,
		body: func(n, u int) {
			sigmoid(n, u)
			g.op("fdiv", 0, 0, 3)
			g.load(1, "up", n, u)
			g.op("fmul", 0, 0, 1)
			g.store(0, "y", n, u)
		}})
	g.vector(armVector{name: "swigluGrad", slices: []string{"y", "dgate", "dup", "gate", "up"},
		exps: true, begin: unit, body: func(n, u int) {
			sigmoid(n, u)
			g.op("fdiv", 1, 0, 3)
			g.load(5, "up", n, u)
			g.op("fmul", 1, 1, 5)
			g.store(1, "y", n, u)
			g.op("fdiv", 3, 16, 3) // σ
			g.op("fsub", 4, 16, 3)
			g.copy(16, 2)
			g.op("fmla", 2, 0, 4) // 1 + gate*(1-σ)
			g.op("fmul", 4, 2, 3)
			g.op("fmul", 0, 0, 3) // gate*σ
			g.load(1, "dgate", n, u)
			g.op("fmul", 0, 0, 1)
			g.op("fmul", 5, 5, 1)
			g.op("fmul", 5, 5, 4)
			g.store(5, "dgate", n, u)
			g.store(0, "dup", n, u)
		}})
	g.vector(armVector{name: "adamW", slices: []string{"w", "grad", "m", "v"},
		more: "c *adamConsts",
		begin: func() {
			for i := range 9 { // the fields of adamConsts in registers 16 to 24
				g.in("FMOVS %d(R6), F%d", 4*i, 16+i)
				g.spread(16 + i)
			}
		},
		body: func(n, u int) {
			const gradScale, beta1, rest1, beta2, rest2, step, inv2, eps, decay = 16, 17, 18, 19, 20, 21, 22, 23, 24
			g.load(0, "grad", n, u)
			g.op("fmul", 0, 0, gradScale)
			g.load(1, "m", n, u)
			g.op("fmul", 1, 1, beta1)
			g.op("fmla", 1, 0, rest1)
			g.store(1, "m", n, u)
			g.load(2, "v", n, u)
			g.op("fmul", 2, 2, beta2)
			g.op("fmul", 3, 0, rest2)
			g.op("fmla", 2, 3, 0)
			g.store(2, "v", n, u)
			g.op("fmul", 2, 2, inv2)
			g.op("fsqrt", 2, 2)
			g.op("fadd", 2, 2, eps)
			g.op("fmul", 1, 1, step)
			g.op("fdiv", 1, 1, 2)
			g.load(4, "w", n, u)
			g.op("fmla", 1, 4, decay)
			g.op("fsub", 4, 4, 1)
			g.store(4, "w", n, u)
		}})
}

// A register tile has 6 rows and 16 columns, four vectors: 24 chains, so that
// four units of a latency of four are busy.
const armRows, armVectors = 6, 4

// gemm writes the tile of m rows. A's elements are loaded one by one, whatever
// their strides, and multiplied from lane 0 of their register: on many
// processors a load that copies to all lanes costs a vector operation more.
func (g *armWriter) gemm(m int) {
	name := fmt.Sprintf("gemm%dNeon", m)
	const args = "a []float32, rs, cs int, b []float32, ldb int, c []float32, ldc, k, acc int"
	fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc %s(%s)\n", name, args)
	fmt.Fprintf(&g.asm, "\n// func %s(%s)\nTEXT ·%s(SB), NOSPLIT, $0-120\n", name, args, name)
	for _, s := range []string{"a_base+0(FP), R0", "rs+24(FP), R1", "cs+32(FP), R2",
		"b_base+40(FP), R3", "ldb+64(FP), R4",
		"c_base+72(FP), R5", "ldc+96(FP), R6", "k+104(FP), R7", "acc+112(FP), R8"} {
		g.in("MOVD %s", s)
	}
	for _, r := range []int{1, 2, 4, 6} {
		g.in("LSL $2, R%[1]d, R%[1]d", r)
	}
	offset := []int{-1, 1, 9, 10, 11, 12} // registers of the rows' distances from row 0
	for i := 2; i < m; i++ {
		g.in("ADD R1, R%d, R%d", offset[i-1], offset[i])
	}
	const b, a = 24, 28 // first registers of B's vectors and A's elements, four each
	element := func(i int) {
		if i == 0 {
			g.in("FMOVS (R0), F%d", a)
		} else if i < m {
			g.in("FMOVS (R0)(R%d), F%d", offset[i], a+i%4)
		}
	}
	rows := func(format string, base int) {
		for i := range m {
			for j := 0; j < armVectors; j += 2 {
				r := armVectors*i + j
				g.in(format, r, r+1, 16*j, base)
			}
			if i < m-1 {
				g.in("ADD R6, R%d", base)
			}
		}
	}
	g.in("// The chains start from c, or from zero.")
	g.in("CBZ R8, clear")
	g.in("MOVD R5, R8")
	rows("FLDPQ %[3]d(R%[4]d), (F%[1]d, F%[2]d)", 8)
	g.in("B start")
	g.label("clear")
	for i := range armVectors * m {
		g.zero(i)
	}
	g.label("start")
	g.in("CBZ R7, store")
	g.in("PCALIGN $32")
	g.label("loop")
	for j := 0; j < armVectors; j += 2 {
		g.in("FLDPQ %d(R3), (F%d, F%d)", 16*j, b+j, b+j+1)
	}
	for i := range 4 {
		element(i)
	}
	g.in("ADD R4, R3")
	for i := range m {
		for j := range armVectors {
			g.op("fmla lane", armVectors*i+j, b+j, a+i%4)
		}
		element(i + 4)
	}
	g.in("ADD R2, R0")
	g.in("SUBS $1, R7")
	g.in("BNE loop")
	g.label("store")
	rows("FSTPQ (F%[1]d, F%[2]d), %[3]d(R%[4]d)", 5)
	g.in("RET")
}

// transpose writes the transpose of blocks of 4 rows and 4 columns: blocks
// blocks side by side in src become blocks one below the other in dst.
func (g *armWriter) transpose() {
	const args = "dst []float32, ldd int, src []float32, lds, blocks int"
	fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc transposeNeon(%s)\n", args)
	fmt.Fprintf(&g.asm, "\n// func transposeNeon(%s)\nTEXT ·transposeNeon(SB), NOSPLIT, $0-72\n",
		args)
	for _, s := range []string{"dst_base+0(FP), R0", "ldd+24(FP), R1", "src_base+32(FP), R2",
		"lds+56(FP), R3", "blocks+64(FP), R4"} {
		g.in("MOVD %s", s)
	}
	g.in("LSL $2, R1, R1")
	g.in("LSL $2, R3, R3")
	g.label("loop")
	g.in("MOVD R2, R5")
	for i := range 4 {
		g.in("FMOVQ (R5), F%d", i)
		g.in("ADD R3, R5")
	}
	// After the first step 4+2q+j holds columns j and j+2 of the rows 2q and 2q+1.
	for q := range 2 {
		for j := range 2 {
			g.in("VTRN%d V%d.S4, V%d.S4, V%d.S4", j+1, 2*q+1, 2*q, 4+2*q+j)
		}
	}
	for j := range 4 {
		g.in("VTRN%d V%d.D2, V%d.D2, V%d.D2", j/2+1, 6+j%2, 4+j%2, j)
	}
	for i := range 4 {
		g.in("FMOVQ F%d, (R0)", i)
		g.in("ADD R1, R0")
	}
	g.in("ADD $16, R2")
	g.in("SUBS $1, R4")
	g.in("BNE loop")
	g.in("RET")
}

// dequant writes the kernel dequant8 or, with four, dequant4: for each block 16 scales, which
// stay in registers 16 to 19, and then its rows of 16 codes, each a vector of bytes.
func (g *armWriter) dequant(four bool) {
	name, rows, unroll := "dequant8Neon", compute.QuantBlock, 4
	if four {
		name, rows = "dequant4Neon", compute.QuantBlock/2
	}
	const args = "dst []float32, codes []uint8, scales []uint16, blocks int"
	fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc %s(%s)\n", name, args)
	fmt.Fprintf(&g.asm, "\n// func %s(%s)\nTEXT ·%s(SB), NOSPLIT, $0-80\n", name, args, name)
	for _, s := range []string{"dst_base+0(FP), R0", "codes_base+24(FP), R1",
		"scales_base+48(FP), R2", "blocks+72(FP), R3"} {
		g.in("MOVD %s", s)
	}
	const scale, nibbles, eights = 16, 30, 31
	if four {
		g.in("VMOVI $15, V%d.B16", nibbles)
		g.in("VMOVI $8, V%d.B16", eights)
	}
	// put makes 16 codes, signed bytes of register r, a row at so many bytes from a register.
	put := func(r, at, base int) {
		g.op("sxtl2", r+2, r)
		g.op("sxtl", r, r)
		for _, half := range []int{r, r + 2} {
			g.op("sxtl2 half", half+1, half)
			g.op("sxtl half", half, half)
		}
		for j := range 4 {
			g.op("scvtf", r+j, r+j)
			g.op("fmul", r+j, r+j, scale+j)
		}
		for j := 0; j < 4; j += 2 {
			g.in("FSTPQ (F%d, F%d), %d(R%d)", r+j, r+j+1, at+16*j, base)
		}
	}
	g.label("block")
	g.in("FLDPQ (R2), (F%d, F%d)", scale, scale+2)
	for _, half := range []int{scale, scale + 2} {
		g.op("fcvtl2 half", half+1, half)
		g.op("fcvtl half", half, half)
	}
	const row = 64 // bytes of dst
	if four {
		g.in("ADD $%d, R0, R5", rows*row)
	}
	g.in("MOVD $%d, R4", rows/unroll)
	g.in("PCALIGN $16")
	g.label("rows")
	for j := range unroll {
		r := 4 * (j % 2)
		g.in("FMOVQ %d(R1), F%d", 16*j, r)
		if four {
			g.op("ushr #4", r+8, r)
			g.op("and", r, r, nibbles)
			g.op("sub bytes", r, r, eights)
			g.op("sub bytes", r+8, r+8, eights)
			put(r+8, row*j, 5)
		}
		put(r, row*j, 0)
	}
	g.in("ADD $%d, R1", 16*unroll)
	g.in("ADD $%d, R0", row*unroll)
	if four {
		g.in("ADD $%d, R5", row*unroll)
	}
	g.in("SUBS $1, R4")
	g.in("BNE rows")
	if four {
		g.in("MOVD R5, R0")
	}
	g.in("ADD $32, R2")
	g.in("SUBS $1, R3")
	g.in("BNE block")
	g.in("RET")
}

// peak writes a loop of nothing but multiply-adds, n times as many as a tile has
// chains.
func (g *armWriter) peak() {
	fmt.Fprintf(&g.stubs, "\nfunc peakNeon(n int)\n")
	fmt.Fprintf(&g.asm,
		"\n// func peakNeon(n int)\nTEXT ·peakNeon(SB), NOSPLIT, $0-8\n\tMOVD n+0(FP), R0\n")
	const chains = armRows * armVectors
	for i := range chains + 1 {
		g.zero(i)
	}
	g.label("loop")
	for i := range chains {
		g.op("fmla lane", i, chains, chains)
	}
	g.in("SUBS $1, R0")
	g.in("BNE loop")
	g.in("RET")
}

// assembleArm is the assembly file and the file of its declarations.
func assembleArm() (asm, stubs []byte) {
	g := &armWriter{}
	g.asm.WriteString(
		"// Code generated by genarm_test.go. DO NOT EDIT.\n\n#include \"textflag.h\"\n\n")
	for i, c := range constants[:len(constants)-len(quantConstants)] {
		for lane := range 4 {
			fmt.Fprintf(&g.asm, "DATA consts<>+%d(SB)/4, $%#x\n", 16*i+4*lane, c.bits)
		}
	}
	fmt.Fprintf(&g.asm, "GLOBL consts<>(SB), RODATA|NOPTR, $%d\n",
		16*(len(constants)-len(quantConstants)))
	g.stubs.WriteString("// Code generated by genarm_test.go. DO NOT EDIT.\n\npackage cpu\n")
	g.vectors()
	g.transpose()
	g.dequant(false)
	g.dequant(true)
	g.peak()
	var names []string
	for m := 1; m <= armRows; m++ {
		g.gemm(m)
		names = append(names, fmt.Sprintf("gemm%dNeon", m))
	}
	fmt.Fprintf(&g.stubs,
		"\nvar neon = &kernels{\nname: \"neon\", mr: %d, nr: %d,\ngemm: []gemmFunc{%s},\n", armRows,
		4*armVectors, strings.Join(names, ", "))
	fmt.Fprintf(&g.stubs, "transpose: blocked(4, transposeNeon), rows: rowsGo(%d),\n", 4*armVectors)
	for _, f := range vectorKernels {
		fmt.Fprintf(&g.stubs, "%s: %sNeon,\n", f, f)
	}
	g.stubs.WriteString("dequant8: dequant8Neon, dequant4: dequant4Neon,\n")
	g.stubs.WriteString("}\n")
	stubs, err := format.Source(g.stubs.Bytes())
	if err != nil {
		panic(err)
	}
	return g.asm.Bytes(), stubs
}
