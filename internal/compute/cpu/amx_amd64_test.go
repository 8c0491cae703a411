package cpu

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	xcpu "golang.org/x/sys/cpu"
)

// Products on more threads than there are processors, while the collector runs all
// the time and a profile's timer sends signals, have the bits of one that is left
// alone: tiles are saved with everything else.
func TestTilesInterrupted(t *testing.T) {
	if err := amxRefused(); err != nil {
		t.Skipf("NOT TESTED: %v", err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 3))
	const m, n, k = 96, 160, 1024
	a, b := make([]float32, m*k), make([]float32, n*k)
	for _, x := range [][]float32{a, b} {
		for i := range x {
			x[i] = float32(rand.NormFloat64())
		}
	}
	pa := packing{dst: make([]uint32, amx.sizeA(m, k)), stride: amx.pairs(k) * amx.lanesA, src: a,
		ld: k, n: m, k: k}
	pb := packing{dst: make([]uint32, amx.sizeB(n, k)), stride: amx.pairs(k) * amx.lanesB, src: b,
		ld: k, n: n, k: k, b: true}
	for _, p := range []packing{pa, pb} {
		for i := range p.tasks(amx) {
			p.task(amx, i)
		}
	}
	product := func() []float32 {
		c := make([]float32, m*n)
		amx.tiles(new(product16).of(pa, pb, c, n, false), &worker{tile: aligned(amx.mr * amx.nr)},
			0, m/amx.mr, 0, n/amx.nr)
		return c
	}
	want := product()
	if err := pprof.StartCPUProfile(io.Discard); err == nil { // a profile may be running already
		defer pprof.StopCPUProfile()
	}
	until := time.Now().Add(time.Second / 2)
	var group sync.WaitGroup
	var done [4]int
	for g := range done {
		group.Go(func() {
			for ; time.Now().Before(until); done[g]++ {
				if !slices.Equal(product(), want) {
					t.Errorf("product %d of goroutine %d is another", done[g], g)
					return
				}
			}
		})
	}
	group.Go(func() { // with zeros in its tiles
		for time.Now().Before(until) {
			peakAMX(20)
			time.Sleep(5 * time.Millisecond)
		}
	})
	group.Go(func() {
		for time.Now().Before(until) {
			runtime.GC()
		}
	})
	group.Wait()
	t.Log(done, "products")
}

// TestPackAMX is TestPack16 of AMX's panels, which AVX512-BF16 is enough for.
func TestPackAMX(t *testing.T) {
	if !hasAVX512() || !xcpu.X86.HasAVX512BF16 {
		t.Skip("NOT TESTED: this machine has no AVX512-BF16")
	}
	testPack16(t, amx)
}

// The name amx says what is missing where it cannot be used.
func TestRefusedAMX(t *testing.T) {
	why := amxRefused()
	_, err := New(Options{Workers: 1, Variant: "amx", Precision: BF16})
	switch {
	case why == nil && err != nil:
		t.Error(err)
	case why != nil && (err == nil || !strings.Contains(err.Error(), why.Error())):
		t.Errorf("error %v does not say %q", err, why)
	}
}

// TestPastCaches: a result that is stored past the caches has the same bits, and only one that
// is whole lines is.
func TestPastCaches(t *testing.T) {
	all := natives()
	if len(all) == 0 {
		t.Skip("NOT TESTED: the processor has no bfloat16 products")
	}
	for _, n := range all {
		t.Run(n.name, func(t *testing.T) { pastCaches(t, n.name) })
	}
}

func pastCaches(t *testing.T, variant string) {
	b, err := New(Options{Workers: 1, Variant: variant, Precision: BF16})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, s := range []struct{ m, n, k, ldc, skip int }{{70, 64, 100, 64, 0}, {33, 96, 40, 112, 0},
		{40, 64, 40, 64, 1}, {40, 64, 40, 72, 0}, {40, 70, 40, 80, 0}, {5, 32, 700, 32, 0},
		{40, 64, 1100, 64, 0}} {
		x, w :=
			f32("test", "x", random(b, s.m*s.k), s.m*s.k),
			f32("test", "w", random(b, s.n*s.k), s.n*s.k)
		var got [2][]float32
		for i, past := range []bool{false, true} {
			c := f32("test", "c", fill(b, s.m*s.ldc+s.skip, 7), s.m*s.ldc+s.skip)
			left, right :=
				b.operandA(&b.a16, x, s.k, s.m, s.k, false),
				b.operandB(&b.b16, w, s.k, s.n, s.k, false)
			b.pack(left, right)
			p := (&product16{}).of(left, right, c[s.skip:], s.ldc, false)
			p.past = past
			p.whole(b, &b.workers[0])
			got[i] = c
		}
		equalBits(t, fmt.Sprintf("%+v", s), got[1], got[0])
	}
}
