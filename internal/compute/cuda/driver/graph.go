//go:build nvidia

package driver

import (
	"errors"
	"unsafe"

	"github.com/ebitengine/purego"
	"gorgonia.org/cu"
)

// Graph is captured work that is launched as a whole.
type Graph struct {
	d    *Device
	exec cu.ExecGraph
}

// captureRelaxed is CU_STREAM_CAPTURE_MODE_RELAXED: calls that are not queued, such as cuBLASLt's
// loading of a kernel at its first use, are allowed meanwhile.
const captureRelaxed = 2

// stream's handle as purego takes it.
func (d *Device) streamHandle() uintptr { return uintptr(unsafe.Pointer(d.stream.C())) }

// Capture calls f, which queues work on d and does not wait for it, and keeps that work instead of
// doing it: the same addresses, arguments and shapes at each Launch. When f fails, so does Capture,
// with its error.
func (d *Device) Capture(f func() error) (*Graph, error) {
	if r, _, _ := purego.SyscallN(lib.beginCapture, d.streamHandle(), captureRelaxed); r != 0 {
		return nil, d.failf(Result(int32(r)), "beginning a capture")
	}
	d.capturing = true
	var graph uintptr
	end := func() error {
		d.capturing = false
		r, _, _ := purego.SyscallN(lib.endCapture, d.streamHandle(),
			uintptr(unsafe.Pointer(&graph)))
		if r != 0 {
			return d.failf(Result(int32(r)), "ending a capture")
		}
		return nil
	}
	returned := false
	defer func() {
		if !returned { // f panics: leave the stream usable
			end()
			destroyGraph(graph)
		}
	}()
	err := f()
	returned = true
	ended := end()
	defer func() { destroyGraph(graph) }()
	if err = errors.Join(err, ended); err != nil {
		return nil, err
	}
	var exec uintptr
	if r, _, _ := purego.SyscallN(lib.graphInstantiate, uintptr(unsafe.Pointer(&exec)), graph,
		0); r != 0 {
		return nil, d.failf(Result(int32(r)), "making a graph")
	}
	return &Graph{d, *(*cu.ExecGraph)(unsafe.Pointer(&exec))}, nil
}

// destroyGraph gives a CUgraph back. A cu.Graph is a struct of that one pointer.
func destroyGraph(graph uintptr) {
	if graph != 0 {
		(*cu.Graph)(unsafe.Pointer(&graph)).Destroy()
	}
}

// Launch queues the graph's work.
func (g *Graph) Launch() error {
	r, _, _ := purego.SyscallN(lib.launchG, *(*uintptr)(unsafe.Pointer(&g.exec)),
		g.d.streamHandle())
	if r != 0 {
		return g.d.failf(Result(int32(r)), "launching a graph")
	}
	return nil
}

// Close gives the graph back. The device finishes launches that are queued.
func (g *Graph) Close() error {
	if g.exec == (cu.ExecGraph{}) {
		return nil
	}
	err := g.exec.Destroy()
	g.exec = cu.ExecGraph{}
	if err != nil {
		return g.d.failf(err, "closing a graph")
	}
	return nil
}

// Event is a mark in the queue, with the time at which the device passed it.
type Event struct {
	d  *Device
	ev cu.Event
}

// Event makes an event.
func (d *Device) Event() (*Event, error) {
	ev, err := cu.MakeEvent(cu.DefaultEvent)
	if err != nil {
		return nil, d.failf(err, "making an event")
	}
	return &Event{d, ev}, nil
}

// Record queues the mark after the work queued so far.
func (e *Event) Record() error {
	if err := e.ev.Record(e.d.stream); err != nil {
		return e.d.failf(err, "recording an event")
	}
	return nil
}

// Since waits until the device has passed e and returns the milliseconds since it passed earlier.
func (e *Event) Since(earlier *Event) (ms float32, err error) {
	if err := e.ev.Synchronize(); err != nil {
		return 0, e.d.failf(err, "waiting for an event")
	}
	t, err := earlier.ev.Elapsed(e.ev)
	if err != nil {
		return 0, e.d.failf(err, "reading the time between two events")
	}
	return float32(t), nil
}

// Close gives the event back.
func (e *Event) Close() error {
	if e.ev == (cu.Event{}) {
		return nil
	}
	if err := cu.DestroyEvent(&e.ev); err != nil {
		return e.d.failf(err, "closing an event")
	}
	return nil
}
