package cost

import (
	"math"
	"strings"
	"testing"

	"gad/internal/compute"
)

// round is a card whose figures are easy to reckon with.
var round = Card{Name: "round", Device: "round", Memory: 1e9, FLOPS: 1e15, Bytes: 1e12, Cache: 1e6,
	SMs:      100,
	Products: 0.5, Forward: 0.25, Backward: 0.25, Memories: 0.5, Gap: 1e-6, Launch: 5e-6,
	Compare: 1e-7, Capture: 2e-5, Graph: 1e-5, Back: 1e-4, Bus: 1e10}

func tensor(t *testing.T, b *Backend, c compute.Class, n int) compute.Tensor {
	t.Helper()
	x, err := b.Alloc("x", c, n)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func param(t *testing.T, b *Backend, rows, cols int) *compute.Param {
	t.Helper()
	return &compute.Param{Rows: rows, Cols: cols, W: tensor(t, b, compute.Master, rows*cols),
		G: tensor(t, b, compute.Wide, rows*cols)}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*want {
		t.Errorf("%s: %.9g, want %.9g", what, got, want)
	}
}

// taken is what the one operation since the last Take took.
func taken(t *testing.T, b *Backend) Use {
	t.Helper()
	uses, _ := b.Take()
	if len(uses) != 1 {
		t.Fatalf("%d operations: %v", len(uses), uses)
	}
	return uses[0]
}

// Each kind of command by hand: bytes over bandwidth, tiles in rounds, the bus.
func TestCommands(t *testing.T) {
	b := New(round)
	x, y := tensor(t, b, compute.Wide, 1e6), tensor(t, b, compute.Wide, 1e6)
	b.Copy(y, x) // 4 MB read, 4 MB written, at half of 1 TB/s
	u := taken(t, b)
	near(t, "a copy", u.Seconds, 8e6/5e11+1e-6)
	if u.Calls != 1 || u.Launches != 0 || u.Copies != 1 || u.Bytes != 8e6 {
		t.Errorf("a copy: %+v", u)
	}
	b.Download(make([]float32, 1e6), x) // two parts: 4 MB over the bus
	u = taken(t, b)
	near(t, "a download", u.Seconds, 4e6/1e10+2e-6)
	if u.Copies != 2 || u.Bytes != 0 {
		t.Errorf("a download: %+v", u)
	}

	// 2560 x 5120 are 400 tiles of 128 x 256: four rounds of 100, with nothing left over.
	w := param(t, b, 5120, 4096)
	in, out := tensor(t, b, compute.Narrow, 2560*4096), tensor(t, b, compute.Narrow, 2560*5120)
	b.Linear(out, in, w, nil, false)
	u = taken(t, b)
	near(t, "a product", u.Seconds, 2*2560*5120*4096/5e14+1e-6)
	near(t, "its bytes", u.Bytes, 2*(2560*4096+5120*4096+2560*5120))
	// One row reads the weights: a whole column of tiles for it would take as long as 128 rows.
	one, o := tensor(t, b, compute.Narrow, 4096), tensor(t, b, compute.Narrow, 5120)
	b.Linear(o, one, w, nil, false)
	if u = taken(t, b); u.Seconds < u.Bytes/5e11+1e-6 || u.Seconds > 2*u.Bytes/5e11 {
		t.Errorf("a row: %g s, its bytes take %g", u.Seconds, u.Bytes/5e11)
	}
	// dx and G, but no bias; dy is rounded first.
	dy := tensor(t, b, compute.Wide, 2560*5120)
	b.LinearGrad(in, w, nil, dy, in, false)
	if u = taken(t, b); u.Launches != 3 {
		t.Errorf("a gradient: %d launches, want a rounding and two products", u.Launches)
	}
	near(t, "a gradient's products", u.FLOPs, 2*2*2560*5120*4096)
}

// The gradient of keys and values takes no less than its longest block. One key head and one
// query head of a short sequence have 4 blocks on a device of 200; those of a long one are divided
// by queries, or by query heads, and their parts are added.
func TestLongestBlock(t *testing.T) {
	const e = 64
	for _, h := range []float64{1, 8} {
		n := map[float64]int{1: 512, 8: 4096}[h]
		pairs := float64(n * (n + 1) / 2)
		b := New(round)
		a := compute.AttnShape{H: int(h), K: 1, E: e, Scale: 0.125}
		q, k, lse :=
			tensor(t, b, compute.Narrow, n*a.H*e), tensor(t, b, compute.Narrow, n*e),
			tensor(t, b, compute.Wide, n*a.H)
		b.AttentionGrad(q, k, k, q, q, lse, q, k, k, a, compute.Pack{Start: []int32{0, int32(n)}})
		u := taken(t, b)
		near(t, "operations", u.FLOPs, 14*pairs*h*e)
		lists := 3*1e-6 + (8+8+12)/1e10 // segments, tiles of queries, blocks of keys
		dq := max(6*pairs*h*e/2.5e14, float64(n)*(6*h*e+4*e+8*h)/5e11)
		rest := dq + float64(n)*(2*2*h*e+4*h)/5e11 + 3e-6 + lists
		longest := 8 * float64(n-64) * 128 * e / (2.5e14 / 200)
		if h == 1 {
			near(t, "one block a tile", u.Seconds, longest+rest)
			continue
		}
		even := 8 * pairs * h * e / 2.5e14
		if u.Launches != 4 || u.Seconds < even+rest || u.Seconds > 2*even+rest {
			t.Errorf("eight heads: %d launches, %g s beside %g: want 4, and twice an even division's %g s at the most", u.Launches, u.Seconds-rest, rest, even)
		}
	}
}

// The host is slower than the device with small commands, and waits for it where it reads
// back; what the device waited is counted.
func TestClock(t *testing.T) {
	b := New(round)
	x := tensor(t, b, compute.Wide, 500) // 2 kB read and written: 8 ns
	for range 10 {
		b.Scale(x, 2)
	}
	command := 4000/5e11 + 1e-6
	near(t, "ten commands", b.Elapsed(), 10*5e-6+command)
	uses, waited := b.Take()
	near(t, "the device", uses[0].Seconds, 10*command)
	near(t, "the device and its wait", uses[0].Seconds+waited, b.Elapsed())
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	near(t, "read back", b.Elapsed(), 10*5e-6+command+1e-4)

	// A large command hides the host's time for the next ones.
	large := tensor(t, b, compute.Wide, 1e8)
	b.Sync()
	before := b.Elapsed()
	b.Scale(large, 2)
	for range 10 {
		b.Scale(x, 2)
	}
	near(t, "behind a large one", b.Elapsed()-before, 5e-6+8e8/5e11+1e-6+10*command)
}

// Repeat queues, captures, and replays, until the commands are others.
func TestRepeat(t *testing.T) {
	b := New(round)
	x, y := tensor(t, b, compute.Wide, 500), tensor(t, b, compute.Wide, 1000)
	of := x
	op := func() {
		for range 100 {
			b.Scale(of, 2)
		}
	}
	took := func() float64 {
		b.Sync()
		before := b.Elapsed()
		b.Repeat("key", compute.Indices{}, op)
		return b.Elapsed() - before
	}
	command := 4000/5e11 + 1e-6
	near(t, "queued", took(), 100*5e-6+command)
	near(t, "captured", took(), 100*2e-5+1e-5+100*command)
	near(t, "replayed", took(), 100*1e-7+1e-5+100*command)
	of = y
	near(t, "other commands", took(), 100*1e-7+100*5e-6+8000/5e11+1e-6)
	if g := b.Graphs(); g != (Graphs{Eager: 2, Captured: 1, Replayed: 1}) {
		t.Errorf("%v", g)
	}
}

// Behind a call of Repeat with lists, Sample has the host compare the next call's commands while
// the device runs, unless an operation comes between.
func TestRepeatAhead(t *testing.T) {
	b := New(round)
	x, h := tensor(t, b, compute.Wide, 500), tensor(t, b, compute.Narrow, 8)
	w := &compute.Param{Rows: 16, Cols: 8, W: tensor(t, b, compute.Narrow, 16*8)}
	list := []int32{1}
	op := func() {
		for range 100 {
			b.Scale(x, 2)
		}
		b.index("ids", list)
	}
	host := func(in compute.Indices) float64 {
		before := b.host
		b.Repeat("key", in, op)
		return b.host - before
	}
	sample := func() {
		b.Sample(make([]int32, 1), make([]float32, 1), h, w, compute.Sampling{}, nil)
	}
	in := compute.Indices{IDs: list}
	for range 2 { // queued, captured
		host(in)
		sample()
	}
	const graph, all = 1e-5, 101 * 1e-7
	near(t, "compared ahead", host(in), graph+1e-7)
	sample()
	b.Scale(x, 2)
	near(t, "with an operation between", host(in), graph+all)
	b.Scale(x, 2)
	sample()
	near(t, "with an operation before Sample", host(in), graph+all)
	sample()
	near(t, "again", host(compute.Indices{}), graph+1e-7)
	sample()
	near(t, "behind a call without lists", host(in), graph+all)
}

// Memory is counted as the engine keeps it.
func TestMemory(t *testing.T) {
	b := New(round)
	x := tensor(t, b, compute.Master, 1000)
	tensor(t, b, compute.Narrow, 100)
	tensor(t, b, compute.Wide|compute.Host, 1e6)
	b.Free(x)
	if inUse, peak := b.Memory(); inUse != 512 || peak != 4096+512 || b.Available() != 1e9-512 {
		t.Errorf("%d bytes in use, %d at most, %d left", inUse, peak, b.Available())
	}
}

// Every card's shares are shares, and its names are found.
func TestCards(t *testing.T) {
	for _, c := range Cards {
		for what, share := range map[string]float64{"products": c.Products, "attention": c.Forward,
			"its gradient": c.Backward, "memory": c.Memories} {
			if !(share > 0.1 && share < 1) {
				t.Errorf("%s: %s: %g of the peak", c.Name, what, share)
			}
		}
		if found, ok := FindCard(c.Name); !ok || found != c || c.Source == "" || c.Gap <= 0 ||
			c.Launch <= c.Compare {
			t.Errorf("%s: %+v", c.Name, c)
		}
	}
	if _, ok := FindCard("b200"); ok || len(Names()) != len(Cards) {
		t.Error("a card without figures was found")
	}
	for name, want := range map[string]string{"RTX 4090": "4090",
		"NVIDIA GeForce RTX 3060 12GB": "3060-12gb", "rtx-a6000": "a6000",
		"4060 Ti 16GB": "4060ti-16gb", "H100": "h100"} {
		if c, ok := FindCard(name); !ok || c.Name != want {
			t.Errorf("%s is found as %q", name, c.Name)
		}
	}
	for name, want := range map[string]string{"Tesla T4": "has compute capability 7.5,",
		"gtx 1080 Ti": "has compute capability 6.1,", "RTX 6000": "has compute capability 7.5,",
		"b200": "gad has no figures"} {
		if _, ok := FindCard(name); ok || !strings.HasPrefix(NoCardReason(name), want) {
			t.Errorf("%s: %s", name, NoCardReason(name))
		}
	}
}
