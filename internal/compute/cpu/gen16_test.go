package cpu

import (
	"bytes"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The assembly of bfloat16 products is written here, with the writer of
// gen_test.go; -update rewrites it with the rest.

func TestAssembly16(t *testing.T) {
	asm, stubs := assemble16()
	for name, want := range map[string][]byte{"kernels16_amd64.s": asm, "stubs16_amd64.go": stubs} {
		if *update {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n")), want) {
			t.Errorf("%s is not what gen16_test.go writes: run this test with -update", name)
		}
	}
}

// TestEncodings16: the bytes of each instruction that Go's assembler does not know are
// those that GNU's writes for it.
func TestEncodings16(t *testing.T) {
	for _, tool := range []string{"as", "objcopy"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("NOT TESTED: %v", err)
		}
	}
	asm, err := os.ReadFile("kernels16_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	// An instruction's comment is in Go's syntax, with sources first as GNU's has them.
	toGNU := []struct{ from, to string }{
		{`\bTMM(\d)`, `%tmm$1`}, {`\bZ(\d+)`, `%zmm$1`},
		{`\((\w+)\)\((\w+)\*1\)`, `(%r$1,%r$2,1)`}, {`\((\w+)\)`, `(%r$1)`}, {`%rR`, `%r`},
	}
	var source strings.Builder
	var want []byte
	seen := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^\tBYTE (.*) // (.*)$`).FindAllStringSubmatch(string(asm), -1) {
		if seen[line[2]] {
			continue
		}
		seen[line[2]] = true
		text := line[2]
		for _, c := range toGNU {
			text = regexp.MustCompile(c.from).ReplaceAllString(text, c.to)
		}
		fmt.Fprintln(&source, strings.ToLower(text))
		for _, b := range strings.Split(line[1], "; ") {
			var x byte
			if _, err := fmt.Sscanf(b, "BYTE $%v", &x); err != nil {
				if _, err := fmt.Sscanf(b, "$%v", &x); err != nil {
					t.Fatalf("%q: %v", line[0], err)
				}
			}
			want = append(want, x)
		}
	}
	dir := t.TempDir()
	in, object, out :=
		filepath.Join(dir, "in.s"), filepath.Join(dir, "out.o"), filepath.Join(dir, "out.bin")
	if err := os.WriteFile(in, []byte(source.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"as", "--64", "-o", object, in},
		{"objcopy", "-O", "binary", "-j", ".text", object, out}} {
		if text, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED: %s does not know these instructions: %v\n%s", args[0], err, text)
		}
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) < 50 || !bytes.Equal(got, want) {
		t.Errorf("%d instructions:\n%s as says\n% x, the file has\n% x", len(seen), source.String(),
			got, want)
	}
}

// evex writes an instruction of map 0F38, W0, on 512-bit registers, byte by byte:
// Go's assembler does not know the AVX512-BF16 extension (Intel's Architecture
// Instruction Set Extensions, 319433, chapter 5). prefix is 2 for F3 and 3 for F2.
func (g *writer) evex(mnemonic string, prefix, opcode byte, dst, src1, src2 int) {
	inverted := func(r, bit int, mask byte) byte {
		if r>>bit&1 == 0 {
			return mask
		}
		return 0
	}
	p0 := 2 | inverted(dst, 3, 0x80) | inverted(src2, 4, 0x40) | inverted(src2, 3,
		0x20) | inverted(dst, 4, 0x10)
	p1 := byte(^src1&15)<<3 | 4 | prefix
	p2 := 0x40 | inverted(src1, 4, 8)
	var s []string
	for _, b := range []byte{0x62, p0, p1, p2, opcode, 0xc0 | byte(dst&7)<<3 | byte(src2&7)} {
		s = append(s, fmt.Sprintf("BYTE $%#02x", b))
	}
	g.in("%s // %s Z%d, Z%d, Z%d", strings.Join(s, "; "), mnemonic, src2, src1, dst)
}

// dot16 adds to the lanes of acc the products of pairs of a and b.
func (g *writer) dot16(acc, a, b int) { g.evex("VDPBF16PS", 2, 0x52, acc, a, b) }

// narrow rounds lo to the lower 16 words of dst and hi to the upper.
func (g *writer) narrow(dst, hi, lo int) { g.evex("VCVTNE2PS2BF16", 3, 0x72, dst, hi, lo) }

// vex writes a tile instruction of map 0F38, W0, byte by byte: Go's assembler does
// not know AMX either. prefix is 1 for 66, 2 for F3 and 3 for F2; vvvv is the second
// source; rest is ModRM and what follows it. No register is above 7 but vvvv.
func (g *writer) vex(text string, prefix, opcode byte, vvvv int, index int, rest ...byte) {
	p0 := byte(0xa2)
	if index < 8 {
		p0 |= 0x40
	}
	var s []string
	for _, b := range append([]byte{0xc4, p0, byte(^vvvv&15)<<3 | prefix, opcode}, rest...) {
		s = append(s, fmt.Sprintf("BYTE $%#02x", b))
	}
	g.in("%s // %s", strings.Join(s, "; "), text)
}

// general are the general registers' numbers.
var general = map[string]int{"AX": 0, "CX": 1, "DX": 2, "BX": 3, "SI": 6, "DI": 7, "R8": 8, "R9": 9,
	"R11": 11}

// tileMemory writes a load or a store of a tile whose rows are stride bytes apart.
func (g *writer) tileMemory(mnemonic string, prefix byte, tile int, base, stride string, at int) {
	sib := byte(general[stride]&7)<<3 | byte(general[base])
	rest := []byte{0x44 | byte(tile)<<3, sib, byte(at)}
	switch {
	case at == 0:
		rest = []byte{0x04 | byte(tile)<<3, sib}
	case at > 127:
		rest = []byte{0x84 | byte(tile)<<3, sib, byte(at), byte(at >> 8), byte(at >> 16),
			byte(at >> 24)}
	}
	text := fmt.Sprintf("%s %d(%s)(%s*1), TMM%d", mnemonic, at, base, stride, tile)
	if prefix == 2 {
		text = fmt.Sprintf("%s TMM%d, %d(%s)(%s*1)", mnemonic, tile, at, base, stride)
	}
	g.vex(text, prefix, 0x4b, 0, general[stride], rest...)
}

func (g *writer) tileLoad(tile int, base, stride string, at int) {
	g.tileMemory("TILELOADD", 3, tile, base, stride, at)
}

func (g *writer) tileStore(tile int, base, stride string, at int) {
	g.tileMemory("TILESTORED", 2, tile, base, stride, at)
}

func (g *writer) tileZero(tile int) {
	g.vex(fmt.Sprintf("TILEZERO TMM%d", tile), 3, 0x49, 0, 0, 0xc0|byte(tile)<<3)
}

func (g *writer) tileConfig(base string) {
	g.vex("LDTILECFG ("+base+")", 0, 0x49, 0, 0, byte(general[base]))
}

func (g *writer) tileRelease() { g.vex("TILERELEASE", 0, 0x49, 0, 0, 0xc0) }

// tileDot adds to the tile c the product of a's rows of pairs and b's columns of pairs.
func (g *writer) tileDot(c, a, b int) {
	g.vex(fmt.Sprintf("TDPBF16PS TMM%d, TMM%d, TMM%d", b, a, c), 2, 0x5c, b, 0,
		0xc0|byte(c)<<3|byte(a))
}

// begin16 writes a function's head: arguments that are slices take three words.
func (g *writer) begin16(name, args string, moves ...string) {
	size := 0
	for _, a := range strings.Split(args, ", ") {
		size += 8
		if strings.Contains(a, "[]") || a == "a" || a == "dst" {
			size += 16
		}
	}
	fmt.Fprintf(&g.stubs, "\n//go:noescape\nfunc %s(%s)\n", name, args)
	fmt.Fprintf(&g.asm, "\n// func %s(%s)\nTEXT ·%s(SB), NOSPLIT, $%d-%d\n", name, args, name,
		g.frame, size)
	for _, s := range moves {
		g.in("MOVQ %s", s)
	}
}

// gemm16 writes the tile of m rows and 32 columns. A's panel has a line of 16
// pairs, B's two, for each step.
func (g *writer) gemm16(m int) {
	const b0, b1, cast = 28, 29, 30
	g.begin16(fmt.Sprintf("gemm16x%d", m), "a, b []uint32, c []float32, ldc, pairs, acc, ahead int",
		"a_base+0(FP), SI", "b_base+24(FP), DI", "c_base+48(FP), DX", "ldc+72(FP), R11",
		"pairs+80(FP), CX", "acc+88(FP), AX")
	g.in("SHLQ $2, R11")
	if m == g.mr {
		g.in("MOVQ ahead+96(FP), R12")
		g.in("SHLQ $2, R12")
	}
	g.comment("The chains start from c, or from zero.")
	g.in("MOVQ DX, R8")
	g.in("TESTQ AX, AX")
	g.in("JLE clear")
	for i := range m {
		g.in("VMOVUPS (R8), %s", g.r(2*i))
		g.in("VMOVUPS 64(R8), %s", g.r(2*i+1))
		if i < m-1 {
			g.in("ADDQ R11, R8")
		}
	}
	g.in("JMP start")
	g.label("clear")
	for i := range 2 * m {
		g.zero(i)
	}
	g.label("start")
	g.in("TESTQ CX, CX")
	g.in("JZ store")
	g.in("PCALIGN $64")
	g.label("loop")
	if m == g.mr {
		g.comment("The panel that is multiplied next: it is waited for now, while there is something to do.")
		g.in("PREFETCHT1 (DI)(R12*1)")
		g.in("PREFETCHT1 64(DI)(R12*1)")
	}
	g.in("VMOVUPS (DI), %s", g.r(b0))
	g.in("VMOVUPS 64(DI), %s", g.r(b1))
	for i := range m {
		br := cast + i%2
		g.in("VBROADCASTSS %d(SI), %s", 4*i, g.r(br))
		g.dot16(2*i, b0, br)
		g.dot16(2*i+1, b1, br)
	}
	g.in("ADDQ $128, DI")
	g.in("ADDQ $64, SI")
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.label("store")
	store := func(move string) {
		for i := range m {
			g.in("%s %s, (DX)", move, g.r(2*i))
			g.in("%s %s, 64(DX)", move, g.r(2*i+1))
			if i < m-1 {
				g.in("ADDQ R11, DX")
			}
		}
		g.in("VZEROUPPER")
		g.in("RET")
	}
	if m == g.mr {
		g.in("TESTQ AX, AX")
		g.in("JLT past")
	}
	store("VMOVUPS")
	if m == g.mr {
		g.label("past")
		store("VMOVNTPS")
	}
}

// stream16 writes the tile of m rows and 32 columns for few rows: A is rows of pairs,
// and the part of B that comes later is fetched while this one is multiplied.
func (g *writer) stream16(m int) {
	const b0, b1, cast = 28, 29, 30
	g.begin16(fmt.Sprintf("stream16x%d", m),
		"a []uint32, lda int, b []uint32, c []float32, ldc, pairs, acc, next, step int",
		"a_base+0(FP), SI", "lda+24(FP), R8", "b_base+32(FP), DI", "c_base+56(FP), DX",
		"ldc+80(FP), R11", "pairs+88(FP), CX", "acc+96(FP), AX")
	g.in("SHLQ $2, R8")
	g.in("SHLQ $2, R11")
	address := g.rowAddresses(m)
	g.comment("The chains start from c, or from zero.")
	g.in("TESTQ AX, AX")
	g.in("JZ clear")
	g.in("MOVQ DX, AX")
	for i := range m {
		g.in("VMOVUPS (AX), %s", g.r(2*i))
		g.in("VMOVUPS 64(AX), %s", g.r(2*i+1))
		if i < m-1 {
			g.in("ADDQ R11, AX")
		}
	}
	g.in("JMP start")
	g.label("clear")
	for i := range 2 * m {
		g.zero(i)
	}
	g.label("start")
	g.in("TESTQ CX, CX")
	g.in("JZ store")
	g.comment("What is fetched begins at b[next] and moves by step numbers a turn.")
	g.in("MOVQ next+104(FP), AX")
	g.in("LEAQ (DI)(AX*4), AX")
	g.in("MOVQ step+112(FP), R15")
	g.in("SHLQ $2, R15")
	g.in("PCALIGN $64")
	g.label("loop")
	g.in("PREFETCHT0 (AX)")
	g.in("PREFETCHT0 64(AX)")
	g.in("ADDQ R15, AX")
	g.in("VMOVUPS (DI), %s", g.r(b0))
	g.in("VMOVUPS 64(DI), %s", g.r(b1))
	g.in("ADDQ $128, DI")
	for i := range m {
		br := cast + i%2
		g.in("VBROADCASTSS %s, %s", address(i), g.r(br))
		g.dot16(2*i, b0, br)
		g.dot16(2*i+1, b1, br)
	}
	for i := 0; i < m; i += 5 {
		g.in("ADDQ $4, %s", rowBases[i/5])
	}
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.label("store")
	for i := range m {
		g.in("VMOVUPS %s, (DX)", g.r(2*i))
		g.in("VMOVUPS %s, 64(DX)", g.r(2*i+1))
		if i < m-1 {
			g.in("ADDQ R11, DX")
		}
	}
	g.in("VZEROUPPER")
	g.in("RET")
}

// round16 writes the kernel that makes pairs of one row's elements.
func (g *writer) round16() {
	g.begin16("roundRow16", "dst []uint32, src []float32, blocks int", "dst_base+0(FP), DI",
		"src_base+24(FP), SI", "blocks+48(FP), CX")
	g.label("loop")
	g.in("VMOVUPS (SI), Z0")
	g.in("VMOVUPS 64(SI), Z1")
	g.narrow(0, 1, 0)
	g.in("VMOVUPS Z0, (DI)")
	g.in("ADDQ $128, SI")
	g.in("ADDQ $64, DI")
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.in("VZEROUPPER")
	g.in("RET")
}

// streamAMX writes stream16 for tiles: at most 32 rows by panels of 32 columns that
// follow one another. The tiles are gemmAMX's, with as many rows as there are. They are
// configured once for all panels: that waits until everything before it is done.
func (g *writer) streamAMX() {
	g.frame = 64
	g.begin16("streamAMX", "a []uint32, lda int, b []uint32, panels int, c []float32, ldc, steps, rows, acc, next, step int",
		"a_base+0(FP), SI", "lda+24(FP), R8", "b_base+32(FP), DI", "c_base+64(FP), DX",
		"ldc+88(FP), R11", "rows+104(FP), R13")
	g.frame = 0
	g.in("SHLQ $2, R8")
	g.in("SHLQ $2, R11")
	g.comment("R10 and R12: the rows of the upper tiles and of the lower ones, which have 16 if they are not used.")
	g.in("MOVQ $16, R10")
	g.in("MOVQ $16, R12")
	g.in("CMPQ R13, R10")
	g.in("CMOVQLT R13, R10")
	g.in("LEAQ -16(R13), AX")
	g.in("CMPQ AX, $0")
	g.in("CMOVQGT AX, R12")
	g.in("MOVQ $0x0000000100000101, AX")
	g.in("IMULQ AX, R10")
	g.in("MOVQ $0x0000010001010000, AX")
	g.in("IMULQ AX, R12")
	g.in("MOVQ $0x1010000000000000, AX")
	g.in("ORQ AX, R10")
	g.in("ORQ R12, R10")
	g.in("VMOVUPS tiles<>(SB), Z0")
	g.in("VMOVUPS Z0, config-64(SP)")
	g.in("MOVQ R10, config-16(SP)")
	g.in("LEAQ config-64(SP), AX")
	g.tileConfig("AX")
	g.in("MOVQ $128, R9")
	g.comment("What is fetched begins at b[next] and moves by step numbers a pair.")
	g.in("MOVQ next+120(FP), R12")
	g.in("LEAQ (DI)(R12*4), R12")
	g.in("MOVQ step+128(FP), R15")
	g.in("SHLQ $6, R15")
	g.in("MOVQ panels+56(FP), R10")
	g.label("panel")
	g.comment("A's rows from AX on, and C's from BX on, are those of the lower tiles.")
	g.in("MOVQ a_base+0(FP), SI")
	g.in("MOVQ R8, AX")
	g.in("SHLQ $4, AX")
	g.in("ADDQ SI, AX")
	g.in("MOVQ R11, BX")
	g.in("SHLQ $4, BX")
	g.in("ADDQ DX, BX")
	g.in("CMPQ acc+112(FP), $0")
	g.in("JZ clear")
	g.comment("The chains start from c, or from zero.")
	g.tileLoad(0, "DX", "R11", 0)
	g.tileLoad(1, "DX", "R11", 64)
	g.in("CMPQ R13, $16")
	g.in("JLE start")
	g.tileLoad(2, "BX", "R11", 0)
	g.tileLoad(3, "BX", "R11", 64)
	g.in("JMP start")
	g.label("clear")
	for t := range 4 {
		g.tileZero(t)
	}
	g.label("start")
	g.in("MOVQ steps+96(FP), CX")
	g.in("TESTQ CX, CX")
	g.in("JZ store")
	g.in("CMPQ R13, $16")
	g.in("JLE low")
	for _, high := range []bool{true, false} {
		name := "low"
		if high {
			name = "high"
		}
		fetch := func(first int) {
			for line := range tilePairs {
				g.in("PREFETCHT0 %d(R12)", 64*(first+line))
			}
		}
		g.label(name)
		g.tileLoad(4, "SI", "R8", 0)
		g.tileLoad(6, "DI", "R9", 0)
		fetch(0)
		g.tileDot(0, 4, 6)
		g.tileLoad(7, "DI", "R9", 64)
		fetch(tilePairs)
		if high {
			g.tileLoad(5, "AX", "R8", 0)
		}
		g.tileDot(1, 4, 7)
		if high {
			g.tileDot(2, 5, 6)
			g.tileDot(3, 5, 7)
			g.in("ADDQ $64, AX")
		}
		g.in("ADDQ $64, SI")
		g.in("ADDQ $2048, DI")
		g.in("ADDQ R15, R12")
		g.in("DECQ CX")
		g.in("JNZ %s", name)
		if high {
			g.in("JMP store")
		}
	}
	g.label("store")
	for t := range 4 {
		if t == 2 {
			g.in("CMPQ R13, $16")
			g.in("JLE done")
		}
		g.tileStore(t, []string{"DX", "BX"}[t/2], "R11", t%2*64)
	}
	g.label("done")
	g.in("ADDQ $128, DX")
	g.in("DECQ R10")
	g.in("JNZ panel")
	g.tileRelease()
	g.in("VZEROUPPER")
	g.in("RET")
}

// pack16 writes the two kernels that make panels of pairs out of float32.
func (g *writer) pack16() {
	g.begin16("packRows16", "dst []uint32, ldd int, src []float32, lds, rows, blocks int",
		"dst_base+0(FP), DI", "ldd+24(FP), R9", "src_base+32(FP), SI", "lds+56(FP), R8",
		"rows+64(FP), R11", "blocks+72(FP), CX")
	g.in("SHLQ $2, R8")
	g.in("SHLQ $2, R9")
	g.in("XORQ BX, BX")
	g.label("loop")
	g.in("MOVQ SI, R10")
	for i := range 16 {
		g.in("VMOVUPS (R10), %s", g.r(i))
		g.in("VMOVUPS 64(R10), Z16")
		g.narrow(i, 16, i)
		if i < 15 {
			g.comment("Beyond the last row, the last row again.")
			g.in("MOVQ R8, R12")
			g.in("CMPQ R11, $%d", i+1)
			g.in("CMOVQLE BX, R12")
			g.in("ADDQ R12, R10")
		}
	}
	out := g.turn()
	for i := range 16 {
		g.in("VMOVUPS %s, (DI)", g.r(out+i))
		g.in("ADDQ R9, DI")
	}
	g.in("ADDQ $128, SI")
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.in("VZEROUPPER")
	g.in("RET")

	g.begin16("packColumns16", "dst []uint32, ldd int, src []float32, lds, columns, pairs int",
		"dst_base+0(FP), DI", "ldd+24(FP), R9", "src_base+32(FP), SI", "lds+56(FP), R8",
		"columns+64(FP), CX")
	g.in("SHLQ $2, R8")
	g.in("SHLQ $2, R9")
	g.comment("K1: the columns that are there.")
	g.in("MOVQ $1, R10")
	g.in("SHLQ CX, R10")
	g.in("DECQ R10")
	g.in("KMOVW R10, K1")
	g.in("VMOVUPS interleave<>(SB), Z3")
	g.in("MOVQ pairs+72(FP), CX")
	g.comment("As many rows further on lies what is packed after these columns: it is fetched.")
	g.in("MOVQ CX, R11")
	g.in("IMULQ R8, R11")
	g.in("ADDQ R11, R11")
	g.in("LEAQ (R11)(R8*1), R12")
	g.label("loop")
	g.in("PREFETCHT1 (SI)(R11*1)")
	g.in("PREFETCHT1 (SI)(R12*1)")
	g.in("VMOVUPS.Z (SI), K1, Z0")
	g.in("VMOVUPS.Z (SI)(R8*1), K1, Z1")
	g.narrow(0, 1, 0)
	g.in("VPERMW Z0, Z3, Z0")
	g.in("VMOVUPS Z0, (DI)")
	g.in("LEAQ (SI)(R8*2), SI")
	g.in("ADDQ R9, DI")
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.in("VZEROUPPER")
	g.in("RET")
}

// gemmAMX writes the kernel of panels of 32 rows by one of 32 columns. The tiles 0
// to 3 are C's, two side by side; 4 and 5 A's, 6 and 7 B's. A panel of at most 16
// rows leaves 2, 3 and 5 out.
func (g *writer) gemmAMX() {
	g.begin16("gemmAMX", "a, b []uint32, c []float32, scratch []float32, ldc, steps, strideA, rows, cols, acc, past, ahead int",
		"a_base+0(FP), SI", "c_base+48(FP), DX", "scratch_base+72(FP), BX", "ldc+96(FP), R11",
		"rows+120(FP), R13")
	g.in("SHLQ $2, R11")
	g.comment("K1 and K2: the columns that are there.")
	g.in("MOVQ cols+128(FP), CX")
	g.in("MOVQ $1, R10")
	g.in("SHLQ CX, R10")
	g.in("DECQ R10")
	g.in("KMOVW R10, K1")
	g.in("SHRQ $16, R10")
	g.in("KMOVW R10, K2")
	g.in("LEAQ tiles<>(SB), AX")
	g.tileConfig("AX")
	g.in("MOVQ $64, R8")
	g.in("MOVQ $128, R9")
	g.comment("R15: how far apart they are; 0 if nothing is fetched.")
	g.in("XORQ R15, R15")
	g.in("CMPQ past+144(FP), $0")
	g.in("CMOVQEQ R11, R15")
	g.comment("R14: B's next panel, of which each step fetches four lines.")
	g.in("MOVQ b_base+24(FP), R14")
	g.in("MOVQ ahead+152(FP), AX")
	g.in("LEAQ (R14)(AX*4), R14")
	// copyRows writes a loop over the panel's rows, of C at R10 and of the scratch at AX.
	copyRows := func(name string, row ...string) {
		g.in("MOVQ DX, R10")
		g.in("MOVQ BX, AX")
		g.in("MOVQ $32, CX")
		g.in("CMPQ R13, CX")
		g.in("CMOVQLT R13, CX")
		g.label(name)
		for _, s := range row {
			g.in("%s", s)
		}
		g.in("ADDQ R11, R10")
		g.in("ADDQ $128, AX")
		g.in("DECQ CX")
		g.in("JNZ %s", name)
	}
	g.label("panel")
	g.in("MOVQ acc+136(FP), AX")
	g.in("TESTQ AX, AX")
	g.in("JZ clear")
	g.comment("The chains start from c, or from zero.")
	copyRows("fetch", "VMOVUPS.Z (R10), K1, Z0", "VMOVUPS.Z 64(R10), K2, Z1", "VMOVUPS Z0, (AX)",
		"VMOVUPS Z1, 64(AX)")
	for t := range 4 {
		g.tileLoad(t, "BX", "R9", t/2*16*128+t%2*64)
	}
	g.in("JMP start")
	g.label("clear")
	for t := range 4 {
		g.tileZero(t)
	}
	g.label("start")
	g.comment("R10: the rows of C that are fetched while tiles are multiplied, the next panel's, up to R12.")
	g.in("MOVQ R11, R10")
	g.in("SHLQ $5, R10")
	g.in("LEAQ (DX)(R10*2), R12")
	g.in("ADDQ DX, R10")
	g.in("TESTQ R15, R15")
	g.in("CMOVQEQ BX, R10")
	g.in("CMOVQEQ BX, R12")
	g.in("MOVQ SI, AX")
	g.in("MOVQ b_base+24(FP), DI")
	g.in("MOVQ steps+104(FP), CX")
	g.in("TESTQ CX, CX")
	g.in("JZ store")
	g.in("CMPQ R13, $16")
	g.in("JLE low")
	for _, high := range []bool{true, false} {
		name := "low"
		if high {
			name = "high"
		}
		g.label(name)
		fetch := func() {
			g.in("BYTE $0x41; BYTE $0x0f; BYTE $0x0d; BYTE $0x0a // PREFETCHW (R10)")
			g.in("BYTE $0x41; BYTE $0x0f; BYTE $0x0d; BYTE $0x4a; BYTE $0x40 // PREFETCHW 64(R10)")
			g.in("ADDQ R15, R10")
		}
		g.in("CMPQ R10, R12")
		g.in("CMOVQHI R12, R10")
		g.tileLoad(4, "AX", "R8", 0)
		g.tileLoad(6, "DI", "R9", 0)
		fetch()
		g.tileDot(0, 4, 6)
		g.tileLoad(7, "DI", "R9", 64)
		fetch()
		g.tileDot(1, 4, 7)
		for line := range 4 {
			g.in("PREFETCHT1 %d(R14)", 64*line)
		}
		g.in("ADDQ $256, R14")
		if high {
			g.tileLoad(5, "AX", "R8", 1024)
			g.tileDot(2, 5, 6)
			fetch()
			g.tileDot(3, 5, 7)
		}
		g.in("ADDQ $2048, AX")
		g.in("ADDQ $2048, DI")
		g.in("DECQ CX")
		g.in("JNZ %s", name)
		if high {
			g.in("JMP store")
		}
	}
	g.label("store")
	for t := range 4 {
		g.tileStore(t, "BX", "R9", t/2*16*128+t%2*64)
	}
	g.in("TESTQ R15, R15")
	g.in("JNZ cached")
	copyRows("pass", "VMOVUPS (AX), Z0", "VMOVUPS 64(AX), Z1", "VMOVNTPS Z0, (R10)",
		"VMOVNTPS Z1, 64(R10)")
	g.in("JMP next")
	g.label("cached")
	copyRows("put", "VMOVUPS (AX), Z0", "VMOVUPS 64(AX), Z1", "VMOVUPS Z0, K1, (R10)",
		"VMOVUPS Z1, K2, 64(R10)")
	g.label("next")
	g.in("MOVQ R10, DX")
	g.in("MOVQ strideA+112(FP), AX")
	g.in("LEAQ (SI)(AX*4), SI")
	g.in("SUBQ $32, R13")
	g.in("JGT panel")
	g.tileRelease()
	g.in("VZEROUPPER")
	g.in("RET")
}

// packAMX writes the two kernels that make A's panels for gemmAMX: a line of 64
// bytes is 16 pairs of a lane, and a block has 32 lanes.
func (g *writer) packAMX() {
	g.begin16("packRowsAMX", "dst []uint32, src []float32, lds, rows, blocks int",
		"dst_base+0(FP), DI", "src_base+24(FP), SI", "lds+48(FP), R8", "blocks+64(FP), CX")
	g.in("SHLQ $2, R8")
	g.comment("The next panel's rows are fetched.")
	g.in("MOVQ R8, R12")
	g.in("SHLQ $5, R12")
	g.label("loop")
	g.in("MOVQ SI, R10")
	g.in("MOVQ DI, R9")
	g.in("MOVQ rows+56(FP), R11")
	g.label("row")
	g.in("PREFETCHT1 (R10)(R12*1)")
	g.in("PREFETCHT1 64(R10)(R12*1)")
	g.in("VMOVUPS (R10), Z0")
	g.in("VMOVUPS 64(R10), Z1")
	g.narrow(0, 1, 0)
	g.in("VMOVUPS Z0, (R9)")
	g.in("ADDQ R8, R10")
	g.in("ADDQ $64, R9")
	g.in("DECQ R11")
	g.in("JNZ row")
	g.in("ADDQ $128, SI")
	g.in("ADDQ $2048, DI")
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.in("VZEROUPPER")
	g.in("RET")

	g.begin16("packColumnsAMX", "dst []uint32, src []float32, lds, columns int",
		"dst_base+0(FP), DI", "src_base+24(FP), SI", "lds+48(FP), R8", "columns+56(FP), CX")
	g.in("SHLQ $2, R8")
	g.comment("K1: the columns that are there.")
	g.in("MOVQ $1, R10")
	g.in("SHLQ CX, R10")
	g.in("DECQ R10")
	g.in("KMOVW R10, K1")
	g.in("VMOVUPS interleave<>(SB), Z18")
	g.comment("32 rows further on lies what is packed after these columns: it is fetched.")
	g.in("MOVQ R8, R11")
	g.in("SHLQ $5, R11")
	g.in("LEAQ (R11)(R8*1), R12")
	for i := range 16 {
		g.in("PREFETCHT1 (SI)(R11*1)")
		g.in("PREFETCHT1 (SI)(R12*1)")
		g.in("VMOVUPS.Z (SI), K1, Z16")
		g.in("VMOVUPS.Z (SI)(R8*1), K1, Z17")
		g.narrow(i, 17, 16)
		g.in("VPERMW %[1]s, Z18, %[1]s", g.r(i))
		if i < 15 {
			g.in("LEAQ (SI)(R8*2), SI")
		}
	}
	out := g.turn()
	for i := range 16 {
		g.in("VMOVUPS %s, %d(DI)", g.r(out+i), 64*i)
	}
	g.in("VZEROUPPER")
	g.in("RET")
}

// peakAMX writes a loop of nothing but tiles' products, as many as gemmAMX has
// chains; and xcr0, the lower half of that register.
func (g *writer) peakAMX() {
	fmt.Fprintf(&g.stubs, "\nfunc peakAMX(n int)\n")
	fmt.Fprintf(&g.asm,
		"\n// func peakAMX(n int)\nTEXT ·peakAMX(SB), NOSPLIT, $0-8\n\tMOVQ n+0(FP), CX\n")
	g.in("LEAQ tiles<>(SB), AX")
	g.tileConfig("AX")
	for t := range 8 {
		g.tileZero(t)
	}
	g.label("loop")
	for t := range 4 {
		g.tileDot(t, 4+t/2, 6+t%2)
	}
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.tileRelease()
	g.in("RET")

	fmt.Fprintf(&g.stubs, "\nfunc xcr0() uint32\n")
	fmt.Fprintf(&g.asm, "\n// func xcr0() uint32\nTEXT ·xcr0(SB), NOSPLIT, $0-4\n")
	g.in("XORL CX, CX")
	g.in("XGETBV")
	g.in("MOVL AX, ret+0(FP)")
	g.in("RET")
}

// peak16 writes a loop of nothing but pairs' products, as many as a tile has chains.
func (g *writer) peak16() {
	fmt.Fprintf(&g.stubs, "\nfunc peak16(n int)\n")
	fmt.Fprintf(&g.asm,
		"\n// func peak16(n int)\nTEXT ·peak16(SB), NOSPLIT, $0-8\n\tMOVQ n+0(FP), CX\n")
	for i := range 29 {
		g.zero(i)
	}
	g.label("loop")
	for i := range 28 {
		g.dot16(i, 28, 28)
	}
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.in("VZEROUPPER")
	g.in("RET")
}

// expand16 writes the kernel that makes float32 of a panel's pairs.
func (g *writer) expand16() {
	name := "expand16" + strings.ToUpper(g.name[:1]) + g.name[1:]
	g.begin16(name, "dst []float32, src []uint32, lanes, pairs int",
		"dst_base+0(FP), DI", "src_base+24(FP), SI", "lanes+48(FP), R8", "pairs+56(FP), CX")
	g.comment("A step's lanes are one vector or several.")
	g.in("SHLQ $2, R8")
	if g.reg == "Z" {
		g.in("VPTERNLOGD $0xff, Z2, Z2, Z2")
	} else {
		g.in("VPCMPEQD Y2, Y2, Y2")
	}
	g.in("VPSLLD $16, %s, %s", g.r(2), g.r(2))
	g.label("loop")
	g.in("XORQ AX, AX")
	g.label("lanes")
	g.in("VMOVUPS (SI)(AX*1), %s", g.r(0))
	g.in("VPSLLD $16, %s, %s", g.r(0), g.r(1))
	if g.reg == "Z" {
		g.op("VPANDD", 2, 0, 0)
	} else {
		g.op("VPAND", 2, 0, 0)
	}
	g.in("VMOVUPS %s, (DI)(AX*1)", g.r(1))
	g.in("LEAQ (DI)(R8*1), R9")
	g.in("VMOVUPS %s, (R9)(AX*1)", g.r(0))
	g.in("ADDQ $%d, AX", 4*g.w)
	g.in("CMPQ AX, R8")
	g.in("JLT lanes")
	g.in("ADDQ R8, SI")
	g.in("LEAQ (DI)(R8*2), DI")
	g.in("DECQ CX")
	g.in("JNZ loop")
	g.in("VZEROUPPER")
	g.in("RET")
}

// assemble16 is the assembly file and the file of its declarations.
func assemble16() (asm, stubs []byte) {
	g := &writer{}
	g.asm.WriteString(
		"// Code generated by gen16_test.go. DO NOT EDIT.\n\n#include \"textflag.h\"\n\n")
	for i := range 16 { // the words i and 16+i side by side
		fmt.Fprintf(&g.asm, "DATA interleave<>+%d(SB)/4, $%#x\n", 4*i, (16+i)<<16|i)
	}
	g.asm.WriteString("GLOBL interleave<>(SB), RODATA|NOPTR, $64\n\n")
	g.quantTable()
	// What LDTILECFG reads: palette 1; from byte 16 the bytes of a row, from 48 the rows, of eight
	// tiles.
	for i, word := range []uint64{0: 1, 2: 0x0040004000400040, 3: 0x0040004000400040,
		6: 0x1010101010101010, 7: 0} {
		fmt.Fprintf(&g.asm, "DATA tiles<>+%d(SB)/8, $%#x\n", 8*i, word)
	}
	g.asm.WriteString("GLOBL tiles<>(SB), RODATA|NOPTR, $64\n")
	g.stubs.WriteString("// Code generated by gen16_test.go. DO NOT EDIT.\n\npackage cpu\n")
	for _, set := range isas {
		g.isa = set
		g.expand16()
	}
	var names []string
	for m := 1; m <= g.mr; m++ {
		g.gemm16(m)
		names = append(names, fmt.Sprintf("gemm16x%d", m))
	}
	var streams []string
	for m := 1; m <= g.mr; m++ {
		g.stream16(m)
		streams = append(streams, fmt.Sprintf("stream16x%d", m))
	}
	g.round16()
	g.dequant16(false)
	g.dequant16(true)
	g.pack16()
	g.peak16()
	g.gemmAMX()
	g.streamAMX()
	g.packAMX()
	g.peakAMX()
	fmt.Fprintf(&g.stubs, "\nvar gemms16 = []gemm16Func{%s}\n", strings.Join(names, ", "))
	fmt.Fprintf(&g.stubs, "\nvar streams16 = []stream16Func{%s}\n", strings.Join(streams, ", "))
	stubs, err := format.Source(g.stubs.Bytes())
	if err != nil {
		panic(err)
	}
	return g.asm.Bytes(), stubs
}
