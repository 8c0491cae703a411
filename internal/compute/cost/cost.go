// Package cost predicts the time of the CUDA engine on a GPU that this machine lacks.
//
// Its Backend computes nothing: memory is a length, and each operation adds the commands that
// package cuda queues for it, with their bytes and multiply-adds, to a simulated clock. So the
// program itself is timed, operation by operation, at its full size. ops.go is the table of
// commands by operation; a change of the engine changes it too. The minimum of an operation comes
// from compute.Elements, the table that apps/bench uses as well. card.go has the GPUs.
//
// The clock has two hands, because the host queues work ahead of the device: a command begins when
// the host has queued it and the device is done with the command before, and reading back waits for
// both. A command takes
//
//	Gap + the longer of multiply-adds over their rate and bytes over theirs
//
// on the device. The host's time for it depends on how it is queued (Card).
//
// Not in the model: the host's own work between the operations, first calls (allocation, the
// driver's compiler), lower clocks of a hot card, and hits in the cache from earlier kernels.
package cost

import (
	"cmp"
	"fmt"
	"slices"

	"gad/internal/compute"
	"gad/internal/compute/cuda"
)

// Backend is the model of a card. Sizes of memory are those of the CUDA engine in bfloat16.
type Backend struct {
	cuda.Options
	card Card

	inUse, peak int64
	// times in seconds at which the host has queued, and the device has done, all commands
	host, dev float64
	now       string // name of the current operation
	uses      map[string]*Use
	waited    float64 // seconds in which the device was idle
	staged    []staged
	drawn     int // calls of Sample
	repeats
}

var (
	_ compute.Backend = (*Backend)(nil)
	_ compute.Hollow  = (*Backend)(nil)
)

// New returns a backend that models c.
func New(c Card) *Backend {
	return &Backend{card: c, uses: map[string]*Use{}, repeats: repeats{graphs: map[string]*graph{}}}
}

// Hollow implements compute.Hollow.
func (b *Backend) Hollow() {}

// Name returns the name of the modelled card, with the engine's variant.
func (b *Backend) Name() string { return "model of cost: " + b.card.Device + ", cuda/bf16" }

// Card returns the modelled card.
func (b *Backend) Card() Card { return b.card }

// Use holds the calls of an operation, and their time and commands.
type Use struct {
	Op       string  `json:"op"`
	Calls    int     `json:"calls"`
	Launches int     `json:"launches"` // kernels and products
	Copies   int     `json:"copies"`   // to the device, on it and back, and zeroing
	FLOPs    float64 `json:"flops"`
	Bytes    float64 `json:"bytes"`   // of device memory that it reads and writes
	Seconds  float64 `json:"seconds"` // of the device
	Gaps     float64 `json:"gaps"`    // of them between commands
}

// Graphs counts calls of Repeat by the way in which their commands were queued.
type Graphs struct{ Eager, Captured, Replayed int }

// Elapsed returns the simulated time in seconds, by the later hand.
func (b *Backend) Elapsed() float64 { return max(b.host, b.dev) }

// Counts implements compute.Counted: it has the calls of Repeat.
func (b *Backend) Counts() compute.Counts {
	g := b.stats
	return compute.Counts{Repeats: g.Eager + g.Captured + g.Replayed, Replayed: g.Replayed}
}

// Graphs returns the calls of Repeat.
func (b *Backend) Graphs() Graphs { return b.stats }

// Take returns the uses of operations since the last Take, the longest first, and the seconds in
// which the device waited for the host.
func (b *Backend) Take() (uses []Use, waited float64) {
	for _, u := range b.uses {
		uses = append(uses, *u)
	}
	slices.SortFunc(uses,
		func(a,
			b Use) int {
			return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Op, b.Op))
		})
	waited = b.waited
	b.uses, b.waited = map[string]*Use{}, 0
	return uses, waited
}

// kind of command.
type kind uint8

const (
	kernel  kind = iota // bound by memory, or by flops at the command's rate
	copying             // by the copy engine, or zeroing
	onBus               // bytes go over the bus
)

// command is a kernel or a copy that the host queues.
type command struct {
	op    string
	kind  kind
	flops float64
	rate  float64 // of flops; 0 is none
	bytes float64
	grid  int // launch grid, which a graph fixes although bytes may change; 0: bytes are fixed too
}

// begin names the operation that the next commands belong to.
func (b *Backend) begin(op string) {
	b.now = op
	b.use(op).Calls++
	if b.pending == nil {
		b.operations++
	}
}

// use returns the record of an operation.
func (b *Backend) use(op string) *Use {
	u := b.uses[op]
	if u == nil {
		u = &Use{Op: op}
		b.uses[op] = u
	}
	return u
}

// queue adds a command to the host's time and runs it, or adds it to the current Repeat.
func (b *Backend) queue(c command) {
	c.op = b.now
	if b.pending != nil {
		*b.pending = append(*b.pending, c)
		return
	}
	b.host += b.card.Launch
	b.run(c)
}

// run advances the device's hand by c, which the host has queued.
func (b *Backend) run(c command) {
	if b.host > b.dev {
		b.waited += b.host - b.dev
		b.dev = b.host
	}
	seconds := c.bytes / (b.card.Bytes * b.card.Memories)
	if c.kind == onBus {
		seconds = c.bytes / b.card.Bus
	}
	if c.rate > 0 {
		seconds = max(seconds, c.flops/c.rate)
	}
	seconds += b.card.Gap
	b.dev += seconds
	u := b.use(c.op)
	u.Seconds += seconds
	u.Gaps += b.card.Gap
	u.FLOPs += c.flops
	if c.kind != onBus {
		u.Bytes += c.bytes
	}
	if c.kind == kernel {
		u.Launches++
	} else {
		u.Copies++
	}
}

// wait makes the host wait for the device.
func (b *Backend) wait() {
	if b.dev > b.host {
		b.host = b.dev
	}
	// The device is idle until the host has noticed the end.
	b.host += b.card.Back
	b.staged = b.staged[:0]
}

// moves queues a kernel that reads and writes bytes bytes.
func (b *Backend) moves(bytes float64) { b.queue(command{bytes: bytes}) }

// copies queues a command of the copy engine.
func (b *Backend) copies(bytes float64) {
	if bytes > 0 {
		b.queue(command{kind: copying, bytes: bytes})
	}
}

// tiles are the block sizes among which a product library is assumed to choose, and the share of a
// large product's rate that a multiprocessor reaches with each.
var tiles = []struct{ rows, cols, share float64 }{{128, 256, 1}, {256, 128, 1}, {128, 128, 0.9},
	{64, 128, 0.75}, {128, 64, 0.75}, {64, 64, 0.6}}

// product queues [M,N] (=, or += if acc) [M,K] [K,N], with size bytes a result element. Tile and
// number of parts of the sums, at most eight, are the fastest; a multiprocessor that has no tile
// in the last round is idle.
func (b *Backend) product(M, N, K int, size float64, acc bool) {
	b.productOf(M, N, K, narrow, size, acc)
}

// forward queues the product of N rows with the transpose of w, [O,I] of p's weights: quantised
// ones as they are, or unpacked before it.
func (b *Backend) forward(N, O, I int, p *compute.Param, size float64, acc bool) {
	if each := b.unpack(O*I, p, N); each > 0 {
		b.productOf(N, O, I, each, size, acc)
		return
	}
	b.product(N, O, I, size, acc)
}

// unpack queues the making of n elements of p's quantised weights bfloat16, unless a product of few
// rows reads them, whose bytes an element it returns.
func (b *Backend) unpack(n int, p *compute.Param, rows int) (each float64) {
	if !class(p.W).Quantised() {
		return 0
	}
	each = b.size(p.W)
	if rows <= cuda.FewRows {
		return each
	}
	b.moves((each + narrow) * float64(n))
	return 0
}

// manyRows is the number of rows that unpack takes for an operation that has no way for few.
const manyRows = cuda.FewRows + 1

// productOf queues product with each bytes an element of [K,N].
func (b *Backend) productOf(M, N, K int, each, size float64, acc bool) {
	m, n, k := float64(M), float64(N), float64(K)
	writes := size * m * n
	if acc {
		writes *= 2
	}
	c := command{flops: 2 * m * n * k, bytes: 2*k*m + each*k*n + writes}
	one := b.card.FLOPS * b.card.Products / float64(b.card.SMs) // of a multiprocessor
	memory := b.card.Bytes * b.card.Memories
	least := 0.0
	for _, t := range tiles {
		for parts := 1.0; parts <= 8; parts *= 2 {
			if parts > 1 && k/parts < 256 {
				break
			}
			rounds := ceil(ceil(m/t.rows)*ceil(n/t.cols)*parts/float64(b.card.SMs)) * (k / parts) *
				2 * t.rows * t.cols / (one * t.share)
			sums := 0.0
			if parts > 1 { // written and read, by a second kernel
				sums = 8*parts*m*n/memory + b.card.Gap
			}
			if seconds := max(rounds, c.bytes/memory) + sums; least == 0 || seconds < least {
				least = seconds
			}
		}
	}
	c.rate = c.flops / max(least, b.card.Product)
	b.queue(c)
}

func ceil(x float64) float64 {
	if whole := float64(int64(x)); whole < x {
		return whole + 1
	}
	return x
}

// staged is a list of indices that the host has uploaded.
type staged struct {
	what string
	list []int32
}

// index queues the upload of a list, unless the device has it already, by the engine's rules of
// staging.
func (b *Backend) index(what string, list []int32) {
	if len(list) == 0 {
		return
	}
	for _, s := range b.staged {
		if s.what == what && (b.pending != nil || slices.Equal(s.list, list)) {
			return
		}
	}
	if len(b.staged) == 16 {
		b.staged = b.staged[1:]
	}
	if b.pending != nil {
		list = nil
	}
	b.staged = append(b.staged, staged{what, slices.Clone(list)})
	b.queue(command{kind: onBus, bytes: 4 * float64(max(len(list), 1))})
}

// repeats is the state of Repeat.
type repeats struct {
	graphs  map[string]*graph
	pending *[]command // commands of the current call; nil outside
	stats   Graphs

	operations  int // begun outside Repeat, and calls of it
	last, ahead launched
}

// launched is a call of Repeat that launched a graph: its key, its number of commands, and when it
// was made or compared for the next call. Where it has no lists, commands are 0.
type launched struct {
	key        string
	commands   float64
	operations int
}

// compareAhead returns how many commands the host compares for the next call of Repeat.
func (r *repeats) compareAhead() float64 {
	r.ahead = launched{}
	if r.last.operations == r.operations-1 {
		r.ahead = r.last
		r.ahead.operations = r.operations
	}
	return r.ahead.commands
}

// graph is the state of a key of Repeat.
type graph struct {
	commands []command
	made     bool
}

// Repeat runs op as the engine does: the first call queues and records its commands, the second
// captures a graph, later ones compare and replay it, as long as the commands are the same. What
// was compared ahead of the call needs its lists alone.
func (b *Backend) Repeat(key string, in compute.Indices, op func()) {
	ahead := b.ahead.key == key && b.ahead.commands > 0 && b.ahead.operations == b.operations
	b.operations++
	b.last = launched{}
	var commands []command
	kept := b.staged
	b.pending, b.staged = &commands, nil
	op()
	b.pending, b.staged = nil, kept
	g := b.graphs[key]
	if g == nil {
		g = &graph{}
		b.graphs[key] = g
	}
	n := float64(len(commands))
	switch same := alike(g.commands, commands); {
	case !same:
		b.stats.Eager++
		if g.commands != nil {
			b.host += n * b.card.Compare
		}
		g.commands, g.made = commands, false
		for _, c := range commands {
			b.host += b.card.Launch
			b.run(c)
		}
		return
	case !g.made:
		b.stats.Captured++
		g.made = true
		b.host += n * b.card.Capture
	default:
		b.stats.Replayed++
		if ahead {
			n = lists(commands)
		}
		b.host += n * b.card.Compare
	}
	b.last = launched{key: key, operations: b.operations}
	if in.IDs != nil {
		b.last.commands = float64(len(commands))
	}
	b.host += b.card.Graph
	for _, c := range commands {
		b.run(c)
	}
}

// lists counts the lists that commands bring to the device.
func lists(commands []command) (n float64) {
	for _, c := range commands {
		if c.kind == onBus {
			n++
		}
	}
	return n
}

// alike reports whether the graph of command list a can replay b. The bytes that decoding reads
// depend on indices, which may differ; its grid must be the same.
func alike(a, b []command) bool {
	return len(a) > 0 && slices.EqualFunc(a, b, func(x, y command) bool {
		return x.op == y.op && x.kind == y.kind && x.grid == y.grid && (x.grid > 0 || x == y)
	})
}

// memory is a block's class and length; it has no elements.
type memory struct {
	n     int
	class compute.Class
}

func (m *memory) Len() int { return m.n }

// size returns the bytes of an element of t.
func (b *Backend) size(t compute.Tensor) float64 {
	if t.Absent() {
		return 0
	}
	class := t.Mem().(*memory).class &^ compute.Host
	return float64(b.Element(class)) / float64(class.Unit())
}

// bytes returns the bytes of t.
func (b *Backend) bytes(t compute.Tensor) float64 { return b.size(t) * float64(t.Len()) }

func class(t compute.Tensor) compute.Class { return t.Mem().(*memory).class }

// planes returns the number of arrays that t consists of: two for a Master tensor.
func planes(t compute.Tensor) int {
	if !t.Absent() && class(t) == compute.Master {
		return 2
	}
	return 1
}

// Alloc counts n elements. They take no time: a run allocates before its first step.
func (b *Backend) Alloc(_ string, c compute.Class, n int) (compute.Tensor, error) {
	b.count(b.Block(compute.Bytes(b, c, n)))
	return compute.View(&memory{n, c}), nil
}

func (b *Backend) count(bytes int64) {
	b.inUse += bytes
	b.peak = max(b.peak, b.inUse)
}

// Free subtracts t.
func (b *Backend) Free(t compute.Tensor) {
	if !t.Absent() {
		b.count(-b.Block(compute.Bytes(b, class(t), t.Len())))
	}
}

// As returns n elements of class c; it takes no memory.
func (b *Backend) As(_ compute.Tensor, c compute.Class, n int) compute.Tensor {
	return compute.View(&memory{n, c})
}

// Memory returns the bytes allocated now and at most, without scratch.
func (b *Backend) Memory() (inUse, peak int64) { return b.inUse, b.peak }

// Available returns the card's memory that is left, at least 1. Alloc does not fail beyond it,
// because shapes that do not fit are predicted too.
func (b *Backend) Available() int64 { return max(1, b.card.Memory-b.inUse) }

// Alone returns false, as the CUDA engine does.
func (b *Backend) Alone() bool { return false }

// Sync makes the host wait for the device.
func (b *Backend) Sync() error {
	b.wait()
	return nil
}

// Close does nothing.
func (b *Backend) Close() error { return nil }

// Upload copies src in parts, each rounded by a kernel if dst is not float32.
func (b *Backend) Upload(dst compute.Tensor, src []float32) {
	b.begin("Upload")
	if class(dst)&compute.Host != 0 {
		b.wait()
		return
	}
	for lo := 0; lo < len(src); lo += cuda.StagedPart {
		n := float64(min(cuda.StagedPart, len(src)-lo))
		c := class(dst)
		if c == compute.Code {
			b.queue(command{kind: onBus, bytes: n})
			continue
		}
		b.queue(command{kind: onBus, bytes: 4 * n})
		if c != compute.Wide {
			b.moves((4 + b.size(dst)) * n)
		}
	}
}

// Download makes the host wait for the device, and sets dst to zeros.
func (b *Backend) Download(dst []float32, src compute.Tensor) {
	b.begin("Download")
	clear(dst)
	if class(src)&compute.Host != 0 {
		b.wait()
		return
	}
	for lo := 0; lo < len(dst); lo += cuda.StagedPart {
		n := float64(min(cuda.StagedPart, len(dst)-lo))
		if c := class(src); c != compute.Wide && c != compute.Code {
			b.moves((4 + b.size(src)) * n)
		}
		b.queue(command{kind: onBus, bytes: 4 * n})
		b.wait()
	}
}

// String returns the counts as text.
func (g Graphs) String() string {
	return fmt.Sprintf("%d steps queued one by one, %d captured, %d replayed", g.Eager, g.Captured,
		g.Replayed)
}
