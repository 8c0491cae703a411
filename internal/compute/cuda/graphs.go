//go:build nvidia

package cuda

import (
	"fmt"
	"slices"
	"unsafe"

	"gad/internal/compute"
	"gad/internal/compute/cuda/driver"
)

// A step of generation is some hundred small kernels, and launching them one by
// one takes longer than running them. Repeat therefore turns the commands of an
// operation into a CUDA graph: the first call under a key runs as always and
// writes down every command (the trace); the second is captured into a graph,
// provided that its commands are the same; each later one only compares its
// commands with the trace and then launches the graph. All addresses and numbers
// that a command has are in the trace, so that a graph runs only where it does
// exactly what the operation would; where they differ, the operation is run
// again, as if for the first time.
//
// Indices change from call to call without a trace: each graph reads them from
// pinned memory of its own, which the comparing call fills anew.
//
// To compare takes the host longer than to launch, and meanwhile the device has
// nothing to do. So Sample, before it waits for the tokens, compares the commands of
// the Repeat that it follows once more, for the next call (compareAhead). If that is
// for the same key, operation and lists as long, and no operation came between the
// two, its lists are filled in and the graph is launched.

// mode is what becomes of commands.
type mode uint8

const (
	plain      mode = iota // queued
	recording              // queued and written to the trace
	capturing              // compared with the trace and captured
	comparing              // compared with the trace
	foreseeing             // compared, while the device reads the lists: they are left as they are
)

// maxGraphs is how many keys are kept; the one that was not used for longest goes.
const maxGraphs = 64

// maxMisses is how often in a row a key's commands may differ before it is no
// longer tried.
const maxMisses = 8

// graphs is the state of Repeat.
type graphs struct {
	mode     mode
	now      *repeated // that runs, unless plain
	cursor   int       // in its trace
	diverged bool
	epoch    int // counts waits for the device
	calls    int
	known    map[string]*repeated
	stats    GraphStats

	operations int      // begun outside Repeat, and calls of it
	last       launched // the last call that launched a graph
	ahead      launched // what was compared for the next call; r is nil if nothing was
}

// launched is a call of Repeat.
type launched struct {
	r          *repeated
	op         func()
	in         compute.Indices
	operations int          // when it was made, or compared
	commands   tally        // compared
	lists      []listOfPass // of ahead, of r's area
}

// tally counts commands.
type tally struct {
	launched, copied int
	counts           compute.Counts
}

// listOfPass is which of compute.Indices a staged list is.
type listOfPass struct {
	staged
	of func(in *compute.Indices) []int32 // nil: the page table
}

// GraphStats counts what Repeat has done.
type GraphStats struct {
	Recorded int // calls that ran command by command and wrote them down
	Captured int // graphs that were made, and launched
	Replayed int // calls that launched a graph of an earlier call
	Ahead    int // of these, calls whose commands had been compared while the device ran
	// calls whose commands were others than those written down, or could not be captured; each is
	// recorded again
	Diverged int
	GivenUp  int   // keys that have diverged too often in a row and are no longer tried
	Failed   int   // captures and launches that the driver refused
	Err      error // the last of these, or nil
}

// Graphs is what Repeat has done since Open: a program that runs slower than it
// should finds here whether graphs ran, and why they did not.
func (b *Backend) Graphs() GraphStats { return b.graph.stats }

// failed counts what the driver refused; the operation then runs without a graph.
func (g *graphs) failed(what string, err error) {
	g.diverged = true
	g.stats.Failed++
	g.stats.Err = fmt.Errorf("cuda: %s: %w", what, err)
}

// largest returns the size of the largest area that a key has.
func (g *graphs) largest() int {
	most := 0
	for _, r := range g.known {
		most = max(most, len(r.area.host))
	}
	return most
}

// repeated is what is known of a key.
type repeated struct {
	trace  []uint64
	graph  *driver.Graph // nil until captured
	area   staging
	busy   int // epoch in which the device was given the area to read
	used   int // call
	misses int
}

// The first word of each command in a trace.
const (
	tagLaunch uint64 = iota + 1
	tagCopyIn
	tagCopyDev
	tagSet
	tagMatmul
)

// fixed reports whether commands must equal the trace's, so that nothing may be allocated.
func (g *graphs) fixed() bool { return g.mode >= capturing }

// follow writes words of a command to the trace, or compares them with it, and
// reports whether the command is to be queued. It is not after a failure.
func (b *Backend) follow(words ...uint64) bool {
	if b.err != nil {
		return false
	}
	g := &b.graph
	switch g.mode {
	case plain:
		return true
	case recording:
		g.now.trace = append(g.now.trace, words...)
		return true
	}
	if g.diverged {
		return false
	}
	end := g.cursor + len(words)
	if end > len(g.now.trace) || !slices.Equal(g.now.trace[g.cursor:end], words) {
		g.diverged = true
		return false
	}
	g.cursor = end
	return g.mode == capturing
}

// outside panics inside Repeat, where op may not be called.
func (b *Backend) outside(op string) {
	if b.graph.mode != plain {
		panic("cuda: " + op + " inside Repeat: it allocates, frees, reads back or waits")
	}
}

// Repeat runs op, from its third call under a key on as one CUDA graph.
func (b *Backend) Repeat(key string, in compute.Indices, op func()) {
	b.outside("Repeat")
	ahead := b.graph.ahead
	if ahead.operations != b.graph.operations {
		ahead.r = nil
	}
	b.graph.last, b.graph.ahead = launched{}, launched{}
	defer b.enter()()
	b.counts.Repeats++
	g := &b.graph
	if b.err != nil {
		op()
		return
	}
	r := g.known[key]
	if r == nil {
		g.drop(b, maxGraphs-1)
		r = &repeated{busy: -1}
		if g.known == nil {
			g.known = map[string]*repeated{}
		}
		g.known[key] = r
	}
	g.calls++
	r.used = g.calls
	if r.misses >= maxMisses {
		op()
		return
	}
	if r.busy == g.epoch { // the device may not have read the last call's indices
		b.wait()
	}
	g.now, g.diverged = r, false
	defer func() { g.mode, g.now = plain, nil }()

	known, replayed := r.trace != nil, r.graph != nil
	switch {
	case r == ahead.r && sameFunc(op, ahead.op) && r.fill(ahead, &in):
		b.tally = b.tally.plus(ahead.commands)
		g.stats.Ahead++
	case r.graph != nil:
		b.runInMode(comparing, op)
	case known:
		graph, err := b.dev.Capture(func() error {
			b.runInMode(capturing, op)
			return nil
		})
		if err != nil {
			g.failed("capture of a graph", err)
		}
		if r.graph = graph; !g.diverged {
			g.stats.Captured++
		}
	}
	if known && !g.diverged {
		if replayed {
			g.stats.Replayed++
		}
		if err := r.graph.Launch(); err != nil {
			g.failed("launch of a graph", err)
			b.fail("launch of a graph", err)
		}
		r.busy, r.misses = g.epoch, 0
		g.last = launched{r: r, op: op, in: in, operations: g.operations}
		return
	}

	if known {
		r.misses++
		g.stats.Diverged++
		if r.misses == maxMisses {
			g.stats.GivenUp++
		}
	}
	r.close(b)
	g.stats.Recorded++
	r.trace = r.trace[:0]
	b.runInMode(recording, op)
	r.busy = g.epoch
	if b.err != nil || r.misses == maxMisses {
		r.trace = nil
	}
}

// runInMode runs op in a mode; g.diverged says afterwards whether its commands differed from the
// trace's.
func (b *Backend) runInMode(m mode, op func()) {
	g := &b.graph
	g.mode, g.cursor, g.diverged = m, 0, false
	g.now.area.rewind()
	defer func() { g.mode = plain }()
	op()
	if g.fixed() && g.cursor != len(g.now.trace) {
		g.diverged = true
	}
}

// compareAhead compares the commands of the Repeat that the running operation follows, for the next
// call. It is called when all of the running operation is queued.
func (g *graphs) compareAhead(b *Backend) {
	last := g.last
	g.ahead = launched{}
	if last.r == nil || last.operations != g.operations-1 || last.in.IDs == nil || b.err != nil {
		return
	}
	before := b.tally
	g.now = last.r
	b.runInMode(foreseeing, last.op)
	g.now = nil
	last.commands, b.tally = b.tally.minus(before), before
	if lists, ok := listsOf(&last.in, last.r.area.recent); ok && !g.diverged && b.err == nil {
		last.operations, last.lists = g.operations, lists
		g.ahead = last
	}
	g.diverged = false
}

// listsOf returns which of in the staged lists are, and whether they are nothing else.
func listsOf(in *compute.Indices, all []staged) (lists []listOfPass, ok bool) {
	known := []func(in *compute.Indices) []int32{
		func(in *compute.Indices) []int32 { return in.IDs },
		func(in *compute.Indices) []int32 { return in.Pos },
		func(in *compute.Indices) []int32 { return in.Slots },
		func(in *compute.Indices) []int32 { return in.Pages.Len },
	}
	for _, e := range all {
		i := slices.IndexFunc(known, func(of func(in *compute.Indices) []int32) bool {
			list := of(in)
			return e.list == unsafe.Pointer(unsafe.SliceData(list)) && e.n == 4*len(list)
		})
		switch {
		case i >= 0:
			lists = append(lists, listOfPass{e, known[i]})
		case e.list == unsafe.Pointer(unsafe.SliceData(in.Pages.Table)):
			lists = append(lists, listOfPass{staged: e})
		default:
			return nil, false
		}
	}
	return lists, len(all) < recall // or else some may be forgotten
}

// fill writes the lists of in for the graph, and reports whether they are as long as those with
// which its commands were compared.
func (r *repeated) fill(ahead launched, in *compute.Indices) bool {
	old, R := &ahead.in.Pages, len(in.IDs)
	if in.Pages.PageTokens != old.PageTokens || len(in.Pages.Table) != len(old.Table) {
		return false
	}
	for _, l := range ahead.lists {
		if l.of != nil {
			if len(l.of(in)) != l.n/4 {
				return false
			}
		} else if longestRow(in.Pages.Table, in.Pages.PageTokens, in.Pages.Len) != l.n/4/R {
			return false
		}
	}
	for _, l := range ahead.lists {
		to := r.area.host[l.off : l.off+l.n]
		if l.of == nil {
			fillTable(to, in.Pages.Table, l.n/4/R, l.limit)
			continue
		}
		list := l.of(in)
		if l.limit > 0 {
			compute.CheckIndices("Repeat", l.what, list, l.limit)
		}
		copy(to, bytesOf(list))
	}
	return true
}

// sameFunc reports whether two functions are one closure.
func sameFunc(a, b func()) bool {
	return *(*unsafe.Pointer)(unsafe.Pointer(&a)) == *(*unsafe.Pointer)(unsafe.Pointer(&b))
}

func (t tally) plus(u tally) tally {
	t.launched, t.copied = t.launched+u.launched, t.copied+u.copied
	t.counts.Products += u.counts.Products
	t.counts.Declined += u.counts.Declined
	return t
}

func (t tally) minus(u tally) tally {
	t.launched, t.copied = t.launched-u.launched, t.copied-u.copied
	t.counts.Products -= u.counts.Products
	t.counts.Declined -= u.counts.Declined
	return t
}

// close gives the graph up, when it has run.
func (r *repeated) close(b *Backend) {
	if r.graph != nil {
		b.wait()
		r.graph.Close()
		r.graph = nil
	}
}

// drop forgets the keys that were not used for longest, until at most keep are left.
func (g *graphs) drop(b *Backend, keep int) {
	for len(g.known) > keep {
		oldest, key := (*repeated)(nil), ""
		for k, r := range g.known {
			if oldest == nil || r.used < oldest.used {
				oldest, key = r, k
			}
		}
		b.wait()
		oldest.close(b)
		oldest.area.release(b)
		delete(g.known, key)
	}
}
