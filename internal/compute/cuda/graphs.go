//go:build nvidia

package cuda

import (
	"fmt"
	"slices"

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

// mode is what becomes of commands.
type mode uint8

const (
	plain     mode = iota // queued
	recording             // queued and written to the trace
	capturing             // compared with the trace and captured
	comparing             // compared with the trace
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
}

// GraphStats counts what Repeat has done.
type GraphStats struct {
	Recorded int // calls that ran command by command and wrote them down
	Captured int // graphs that were made, and launched
	Replayed int // calls that launched a graph of an earlier call
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
func (g *graphs) fixed() bool { return g.mode == capturing || g.mode == comparing }

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
func (b *Backend) Repeat(key string, op func()) {
	b.outside("Repeat")
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
