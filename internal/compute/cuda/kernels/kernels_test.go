package kernels

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false,
	"compile the kernels: write ptx/*.ptx and doc/gpu/kernels.tsv")

const (
	// mainFile includes all the others.
	mainFile = "gad.cu"

	// newestISA is the newest version of PTX that drivers from 550 on (CUDA 12.4)
	// read. Newer compilers write newer PTX, whatever the architecture.
	newestISA = 8.4

	table = "../../../../doc/gpu/kernels.tsv"
)

var architectures = []int{80, 90}

// options are those of NVRTC, the architecture apart.
var options = []string{"--std=c++17", "--display-error-number"}

// local are the kernels that may keep values in local memory, which is to say
// spill registers or index an array of them, and why that is right there.
var local = map[string]string{}

func file(cc int) string { return fmt.Sprintf("ptx/compute_%d.ptx", cc) }

// readSources is every source by name, and the SHA-256 over the options and over
// each one's name, length and text, names ascending.
func readSources(t *testing.T) (sources map[string][]byte, digest string) {
	t.Helper()
	sources = map[string][]byte{}
	var names []string
	for _, pattern := range []string{"*.cu", "*.cuh"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	h := sha256.New()
	fmt.Fprintln(h, options)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources[name] = text
		fmt.Fprintln(h, name, len(text))
		h.Write(text)
	}
	if sources[mainFile] == nil {
		t.Fatalf("%s: missing: it includes all the others", mainFile)
	}
	return sources, fmt.Sprintf("%x", h.Sum(nil))
}

// banner is a PTX file's first line.
func banner(digest, compiler string) string {
	return fmt.Sprintf("// From the sources with SHA-256 %s by NVRTC %s; see ../kernels.go\n",
		digest, compiler)
}

var bannerForm = regexp.MustCompile(`^// From the sources with SHA-256 ([0-9a-f]{64}) by NVRTC (\d+\.\d+);`)

// build compiles the kernels for one architecture and looks at the result.
func build(compiler *nvrtc, sources map[string][]byte, cc int) ([]byte, error) {
	ptx, err := compiler.compile(mainFile, sources,
		append([]string{fmt.Sprintf("--gpu-architecture=compute_%d", cc)}, options...)...)
	if err != nil {
		return nil, err
	}
	m := regexp.MustCompile(`(?m)^\.version (\d+\.\d+)$`).FindSubmatch(ptx)
	if m == nil {
		return nil, fmt.Errorf("nvrtc %s: PTX without a version", compiler.version())
	}
	if isa, err := strconv.ParseFloat(string(m[1]), 64); err != nil || isa > newestISA {
		return ptx, fmt.Errorf("nvrtc %s: %s: %w %s, and drivers of CUDA 12.4 read %.1f at the newest: use NVRTC 12.4 (scripts/gpu/toolchain.sh --fetch)", compiler.version(), compiler.path, errTooNew, m[1], newestISA)
	}
	return ptx, nil
}

var errTooNew = errors.New("writes PTX")

// TestPTX compares the PTX with the sources: by the hash in its first line; and,
// where the compiler is installed, by compiling them, without a warning.
func TestPTX(t *testing.T) {
	sources, digest := readSources(t)
	compiler, err := openNVRTC()
	if *update {
		if err != nil {
			t.Fatal(err)
		}
		measure := needPTXAS(t)
		for _, cc := range architectures {
			ptx, err := build(compiler, sources, cc)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file(cc),
				append([]byte(banner(digest, compiler.version())), ptx...), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		writeTable(t, measure, digest, compiler.version())
		return
	}

	said := ""
	for _, cc := range architectures {
		text, err := os.ReadFile(file(cc))
		if err != nil {
			t.Fatal(err)
		}
		m := bannerForm.FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s: its first line names no hash: run scripts/gpu/toolchain.sh, then this test with -update", file(cc))
		}
		if string(m[1]) != digest {
			t.Errorf("%s: made of other sources than these: run scripts/gpu/toolchain.sh, then this test with -update", file(cc))
		}
		said = string(m[2])
	}
	if text, err := os.ReadFile(table); err != nil || !bytes.Contains(text, []byte(digest)) {
		t.Errorf("%s: made of other sources than these (%v): run this test with -update", table,
			err)
	}
	switch {
	case err != nil && os.Getenv("GAD_NVRTC") != "":
		t.Fatal(err)
	case err != nil:
		t.Skipf("hashes compared, nothing compiled: %v", err)
	case testing.Short():
		t.Skip("hashes compared, nothing compiled: -short")
	}
	for _, cc := range architectures {
		ptx, err := build(compiler, sources, cc)
		if err != nil && !(errors.Is(err, errTooNew) && ptx != nil) {
			t.Error(err)
			continue
		}
		if compiler.version() != said {
			t.Logf(
				"%s: NVRTC %s compiles the kernels; their text is NVRTC %s's and was not compared",
				file(cc), compiler.version(), said)
			continue
		}
		have, err := os.ReadFile(file(cc))
		if err != nil {
			t.Fatal(err)
		}
		if want := append([]byte(banner(digest, compiler.version())), ptx...); !bytes.Equal(have,
			want) {
			t.Errorf("%s: NVRTC %s makes something else of the sources: run this test with -update",
				file(cc), compiler.version())
		}
	}
}

// TestSources checks that no family was forgotten in the main file and that no
// source leans on a header of the toolkit's.
func TestSources(t *testing.T) {
	sources, _ := readSources(t)
	include := regexp.MustCompile(`(?m)^\s*#\s*include\s+(\S+)`)
	included := map[string]bool{}
	for name, text := range sources {
		for _, m := range include.FindAllSubmatch(text, -1) {
			what := strings.Trim(string(m[1]), `"`)
			if name == mainFile {
				included[what] = true
			}
			if _, ok := sources[what]; !ok && what != "emu.h" {
				t.Errorf("%s: includes %s: kernels include only each other", name, m[1])
			}
		}
	}
	for name := range sources {
		if strings.HasSuffix(name, ".cu") && name != mainFile && !included[name] {
			t.Errorf("%s: %s does not include it: its kernels are in no PTX", name, mainFile)
		}
	}
}

// TestWarningsAreErrors checks that a source with a warning is refused, and one
// with an error, and that includes come from memory.
func TestWarningsAreErrors(t *testing.T) {
	compiler, err := openNVRTC()
	if err != nil {
		t.Skip(err)
	}
	for _, c := range []struct{ source, want string }{
		{"#include \"a.cuh\"\nextern \"C\" __global__ void k(int *p) { *p = A; }", ""},
		{"extern \"C\" __global__ void k(int *p) { int never; *p = 1; }", "never referenced"},
		{"extern \"C\" __global__ void k(int *p) { *p = q; }", "undefined"},
		{"#include <math.h>\n", "math.h"},
	} {
		_, err := compiler.compile("m.cu",
			map[string][]byte{"m.cu": []byte(c.source), "a.cuh": []byte("#define A 1\n")},
			"--gpu-architecture=compute_80")
		if c.want == "" && err != nil || c.want != "" &&
			(err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: want %q, got %v", c.source, c.want, err)
		}
	}
}

// TestSelection checks which PTX a device gets, and that both hold the same kernels.
func TestSelection(t *testing.T) {
	for _, c := range []struct {
		cc   int
		want []byte
	}{{75, nil}, {79, nil}, {80, compute80}, {86, compute80}, {89, compute80}, {90, compute90},
		{120, compute90}} {
		if !bytes.Equal(PTX(c.cc), c.want) {
			t.Errorf("compute capability %d: the wrong PTX", c.cc)
		}
	}
	for _, cc := range architectures {
		if target := fmt.Sprintf("\n.target sm_%d\n", cc); !bytes.Contains(PTX(cc),
			[]byte(target)) {
			t.Errorf("%s: no line %q", file(cc), strings.TrimSpace(target))
		}
	}
	names := Names()
	if len(names) == 0 {
		t.Error("no kernels")
	}
	for _, name := range names {
		if !bytes.Contains(compute90, []byte(".visible .entry "+name+"(")) {
			t.Errorf("%s: not in %s", name, file(90))
		}
	}
	if n := len(entry.FindAll(compute90, -1)); n != len(names) {
		t.Errorf("%d kernels in one and %d in the other", len(names), n)
	}
}

// cost is what a kernel takes of a multiprocessor, as ptxas says it.
type cost struct {
	registers, stack, spilt, shared int // a thread's registers and bytes; a block's bytes
}

// findPTXAS is $GAD_PTXAS, or else ptxas on the path or in $CUDA_HOME.
func findPTXAS() (string, error) {
	at := []string{"ptxas", filepath.Join(os.Getenv("CUDA_HOME"), "bin", "ptxas"),
		"/usr/local/cuda/bin/ptxas"}
	if named := os.Getenv("GAD_PTXAS"); named != "" {
		at = []string{named}
	}
	for _, name := range at {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("ptxas: not found as %s: run scripts/gpu/toolchain.sh --fetch, or name the program in GAD_PTXAS", strings.Join(at, ", "))
}

// needPTXAS is a function that assembles a PTX file and says what each kernel costs.
func needPTXAS(t *testing.T) func(cc int) map[string]cost {
	t.Helper()
	ptxas, err := findPTXAS()
	switch {
	case err != nil && (*update || os.Getenv("GAD_PTXAS") != ""):
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
	return func(cc int) map[string]cost {
		out, err := exec.Command(ptxas, "-v", "--warning-as-error",
			fmt.Sprintf("--gpu-name=sm_%d", cc), file(cc), "--output-file",
			filepath.Join(t.TempDir(), "cubin")).CombinedOutput()
		if err != nil {
			t.Fatalf("ptxas: %s: %v\n%s", file(cc), err, out)
		}
		costs, err := readCosts(string(out))
		if err != nil {
			t.Fatalf("ptxas: %s: %v\n%s", file(cc), err, out)
		}
		return costs
	}
}

var (
	ofKernel = regexp.MustCompile(`Compiling entry function '(\w+)'`)
	ofMemory = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	ofUse    = regexp.MustCompile(`Used (\d+) registers`)
	ofShared = regexp.MustCompile(`(\d+) bytes smem`)
)

// readCosts reads the messages of ptxas -v.
func readCosts(said string) (map[string]cost, error) {
	costs := map[string]cost{}
	name := ""
	number := func(s string) int { n, _ := strconv.Atoi(s); return n } // digits, by the expressions
	for line := range strings.Lines(said) {
		if m := ofKernel.FindStringSubmatch(line); m != nil {
			name, costs[m[1]] = m[1], cost{}
		}
		c, ok := costs[name]
		if !ok {
			continue
		}
		if m := ofMemory.FindStringSubmatch(line); m != nil {
			c.stack, c.spilt = number(m[1]), number(m[2])+number(m[3])
		}
		if m := ofUse.FindStringSubmatch(line); m != nil {
			c.registers = number(m[1])
		}
		if m := ofShared.FindStringSubmatch(line); m != nil {
			c.shared = number(m[1])
		}
		costs[name] = c
	}
	for name, c := range costs {
		if c.registers == 0 {
			return nil, fmt.Errorf("ptxas says nothing of the registers of %s", name)
		}
	}
	return costs, nil
}

func TestReadCosts(t *testing.T) {
	costs, err := readCosts(`ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_80'
ptxas info    : Function properties for a
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, 1024 bytes smem, 380 bytes cmem[0]
ptxas info    : Compiling entry function 'b' for 'sm_80'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, 360 bytes cmem[0]
`)
	if err != nil || len(costs) != 2 || costs["a"] != (cost{40, 16, 12, 1024}) ||
		costs["b"] != (cost{registers: 10}) {
		t.Errorf("got %+v, %v", costs, err)
	}
	if _, err := readCosts("Compiling entry function 'a' for 'sm_80'\n"); err == nil {
		t.Error("a kernel without registers was accepted")
	}
}

// TestRegisters assembles the PTX where ptxas is installed: no kernel may spill
// registers or keep a stack, but those that local gives a reason for.
func TestRegisters(t *testing.T) {
	if testing.Short() {
		t.Skip("-short")
	}
	measure := needPTXAS(t)
	for _, cc := range architectures {
		costs := measure(cc)
		for _, name := range Names() {
			c, ok := costs[name]
			_, may := local[name]
			if !ok {
				t.Errorf("sm_%d: ptxas says nothing of %s", cc, name)
			} else if !may && (c.spilt > 0 || c.stack > 0) {
				t.Errorf("sm_%d: %s: %d registers, %d bytes spilt, %d bytes of stack: local memory is slow: take fewer registers, index arrays by constants, or give the reason in local", cc, name, c.registers, c.spilt, c.stack)
			}
		}
	}
	for name := range local {
		if !slices.Contains(Names(), name) {
			t.Errorf("%s: has leave to use local memory, and there is no such kernel: remove it from local", name)
		}
	}
}

var bound = regexp.MustCompile(`(?s)\.visible \.entry (\w+)\([^{]*?\.maxntid (\d+)`)

// warps is how many of a multiprocessor's 64 warps the registers leave room for:
// 65,536 of them, handed to warps in units of 256, to whole blocks.
func warps(registers, threads int) int {
	each := (registers*32 + 255) / 256 * 256
	block := (threads + 31) / 32
	return min(65536/each, 64) / block * block
}

// writeTable writes what each kernel costs.
func writeTable(t *testing.T, measure func(cc int) map[string]cost, digest, compiler string) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "# What the kernels cost\n\nWritten by `go test ./internal/compute/cuda/kernels -run TestPTX -update`; do not edit.\nSources: SHA-256 %s; NVRTC %s", digest, compiler)
	measured := map[int]map[string]cost{}
	threads := map[string]int{}
	for _, cc := range architectures {
		text, err := os.ReadFile(file(cc)) // not PTX: that was compiled in before
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range bound.FindAllStringSubmatch(string(text), -1) {
			threads[m[1]], _ = strconv.Atoi(m[2])
		}
		measured[cc] = measure(cc)
		fmt.Fprintf(&b, "; %s: %d bytes, %d kernels", file(cc), len(text), len(measured[cc]))
	}
	b.WriteString(".\n\nRegisters are a thread's. Local is bytes a thread keeps in local memory, spilt registers (counting stores and\nloads) and stack: 0 wherever no reason is given in the test. Shared is a block's static shared memory; what is\nasked for at launch comes on top. Warps is how many the registers leave room for on a multiprocessor, of 64.\n\n")
	b.WriteString("kernel\tthreads")
	for _, cc := range architectures {
		fmt.Fprintf(&b, "\tsm_%d registers\tspilt\tstack\tshared\twarps", cc)
	}
	b.WriteString("\n")
	var names []string
	for name := range measured[architectures[0]] {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if threads[name] == 0 {
			t.Fatalf("%s: no launch bound: define it with KERNEL", name)
		}
		fmt.Fprintf(&b, "%s\t%d", name, threads[name])
		for _, cc := range architectures {
			c := measured[cc][name]
			fmt.Fprintf(&b, "\t%d\t%d\t%d\t%d\t%d", c.registers, c.spilt, c.stack, c.shared,
				warps(c.registers, threads[name]))
		}
		b.WriteString("\n")
	}
	if err := os.MkdirAll(filepath.Dir(table), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(table, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
