package cpu

import (
	"fmt"
	"math"
	"strings"
)

// quantConstants stand behind constants, for dequant: masks of half-precision numbers and of
// nibbles, each in equal lanes.
var quantConstants = []constant{
	{"half", 0x8fffe000},     // sign, exponent and fraction of a binary16 shifted by 13
	{"halfMost", 0x0f800000}, // its exponent's largest
	{"2^112", math.Float32bits(0x1p112)},
	{"Inf", 0x7f800000},
	{"nibbles", 0x0f0f0f0f},
	{"eights", 0x08080808},
}

// quantTable writes the values of nibbles.
func (g *writer) quantTable() {
	for i := range 16 {
		fmt.Fprintf(&g.asm, "DATA nibbles<>+%d(SB)/4, $%#x\n", 4*i, math.Float32bits(float32(i-8)))
	}
	fmt.Fprintf(&g.asm, "GLOBL nibbles<>(SB), RODATA|NOPTR, $64\n")
}

// quantAheadBytes is how far ahead dequant asks memory for codes.
const quantAheadBytes = 1536

// dequant writes the kernel dequant8 or, with four, dequant4.
func (g *writer) dequant(four bool) {
	name := "dequant8"
	if four {
		name = "dequant4"
	}
	name += strings.ToUpper(g.name[:1]) + g.name[1:]
	const args = "dst []float32, codes []uint8, scales []uint16, blocks int"
	fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc %s(%s)\n", name, args)
	fmt.Fprintf(&g.asm, "\n// func %s(%s)\nTEXT ·%s(SB), NOSPLIT, $0-80\n", name, args, name)
	for _, s := range []string{"dst_base+0(FP), DI", "codes_base+24(FP), SI",
		"scales_base+48(FP), DX", "blocks+72(FP), CX"} {
		g.in("MOVQ %s", s)
	}
	row, vector := 8*g.w, 4*g.w // bytes of dst
	if four && g.reg == "Z" {
		g.in("VMOVUPS nibbles<>(SB), Z30")
	}
	g.label("block")
	for i := range 2 {
		if g.reg == "Z" {
			g.in("VCVTPH2PS %d(DX), Z%d", 32*i, i)
			continue
		}
		g.in("VPMOVSXWD %d(DX), Y%d", 16*i, i)
		g.in("VPSLLD $13, Y%[1]d, Y%[1]d", i)
		g.opc("VPAND", "half", i, i)
		g.opc("VPAND", "halfMost", i, 2)
		g.opc("VPCMPEQD", "halfMost", 2, 2)
		g.opc("VPAND", "Inf", 2, 2)
		g.opc("VMULPS", "2^112", i, i)
		g.op("VPOR", 2, i, i)
	}
	const unroll = 4
	rows := 32
	if four {
		rows = 16
	}
	g.in("MOVQ $%d, AX", rows/unroll)
	g.in("PCALIGN $32")
	g.label("rows")
	put := func(r, half, at int) { // code r of lanes' half to dst
		g.op("VMULPS", half, r, r)
		g.in("VMOVUPS %s, %d(DI)", g.r(r), at+half*vector)
	}
	for j := range unroll {
		at := j * row
		if 2*g.w*j%64 == 0 {
			g.in("PREFETCHT0 %d(SI)", quantAheadBytes+2*g.w*j)
		}
		switch {
		case !four:
			for half := range 2 {
				r := 2 + half
				g.in("VPMOVSXBD %d(SI), %s", 2*g.w*j+g.w*half, g.r(r))
				g.op("VCVTDQ2PS", r, r)
				put(r, half, at)
			}
		case g.reg == "Z":
			for half := range 2 {
				r := 2 + half
				g.in("VPMOVZXBD %d(SI), %s", 2*g.w*j+g.w*half, g.r(r))
				g.op("VPERMPS", 30, r, r+2) // by the lower four bits
				put(r+2, half, at)
				g.in("VPSRLD $4, %[1]s, %[1]s", g.r(r))
				g.op("VPERMPS", 30, r, r)
				put(r, half, at+16*row)
			}
		default:
			g.in("VMOVDQU %d(SI), X2", 2*g.w*j)
			g.in("VPSRLW $4, X2, X3")
			for upper, x := range []int{2, 3} {
				g.in("VPAND consts<>+%d(SB), X%d, X%[2]d", 64*constIndex("nibbles"), x)
				g.in("VPSUBB consts<>+%d(SB), X%d, X%[2]d", 64*constIndex("eights"), x)
				g.in("VPMOVSXBD X%d, Y4", x)
				g.in("VPSRLDQ $8, X%[1]d, X%[1]d", x)
				g.in("VPMOVSXBD X%d, Y5", x)
				for half := range 2 {
					g.op("VCVTDQ2PS", 4+half, 4+half)
					put(4+half, half, at+16*row*upper)
				}
			}
		}
	}
	g.in("ADDQ $%d, SI", unroll*2*g.w)
	g.in("ADDQ $%d, DI", unroll*row)
	g.in("DECQ AX")
	g.in("JNZ rows")
	if four {
		g.in("ADDQ $%d, DI", 16*row)
	}
	g.in("ADDQ $%d, DX", 4*g.w)
	g.in("DECQ CX")
	g.in("JNZ block")
	g.in("VZEROUPPER")
	g.in("RET")
}

// dequant16 writes kernels16.dequant8 or, with four, dequant4: two rows of codes at a time,
// rounded and interleaved as pairs of 32 lanes.
func (g *writer) dequant16(four bool) {
	name := "dequant8Pairs"
	if four {
		name = "dequant4Pairs"
	}
	g.begin16(name, "dst []uint32, codes []uint8, scales []uint16, blocks int",
		"dst_base+0(FP), DI", "codes_base+24(FP), SI", "scales_base+48(FP), DX",
		"blocks+72(FP), CX")
	g.in("VMOVDQU32 interleave<>(SB), Z29")
	pairs := 16
	if four {
		pairs = 8
		g.in("VMOVUPS nibbles<>(SB), Z30")
	}
	put := func(half, even, odd, at int) { // two rows of half of the lanes
		g.op("VMULPS", half, even, even)
		g.op("VMULPS", half, odd, odd)
		g.narrow(even, odd, even)
		g.op("VPERMW", even, 29, even)
		g.in("VMOVUPS Z%d, %d(DI)", even, at+64*half)
	}
	g.label("block")
	g.in("VCVTPH2PS (DX), Z0")
	g.in("VCVTPH2PS 32(DX), Z1")
	g.in("MOVQ $%d, AX", pairs/2)
	g.in("PCALIGN $32")
	g.label("rows")
	for j := range 2 {
		g.in("PREFETCHT0 %d(SI)", quantAheadBytes+64*j)
		for half := range 2 {
			at := 64*j + 16*half
			if !four {
				for r, from := range []int{at, at + 32} {
					g.in("VPMOVSXBD %d(SI), Z%d", from, 2+r)
					g.op("VCVTDQ2PS", 2+r, 2+r)
				}
				put(half, 2, 3, 128*j)
				continue
			}
			for r, from := range []int{at, at + 32} {
				g.in("VPMOVZXBD %d(SI), Z%d", from, 2+r)
				g.op("VPERMPS", 30, 2+r, 4+r) // by the lower four bits
				g.in("VPSRLD $4, Z%[1]d, Z%[1]d", 2+r)
				g.op("VPERMPS", 30, 2+r, 2+r)
			}
			put(half, 4, 5, 128*j)
			put(half, 2, 3, 128*j+8*128)
		}
	}
	g.in("ADDQ $128, SI")
	g.in("ADDQ $256, DI")
	g.in("DECQ AX")
	g.in("JNZ rows")
	if four {
		g.in("ADDQ $1024, DI")
	}
	g.in("ADDQ $64, DX")
	g.in("DECQ CX")
	g.in("JNZ block")
	g.in("VZEROUPPER")
	g.in("RET")
}
