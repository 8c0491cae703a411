package env

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"gad/internal/child"
)

// worker owns one child process and the episodes that are played in it: all of its fields and the
// state of its episodes belong to its goroutine, run. Its invariants:
//
// Every call of an episode is answered, whatever the child does. A child that crashes, closes its
// output or is silent beyond the time limit is killed and started again, and its open episodes are
// played again from their recorded requests, one at a time, so that another crash has one culprit.
// A request that was under way at one crash more than there are pauses makes a fault of its
// episode, and that many starts without a single reply make faults of all: no child is started
// without end.
//
// An episode that is held is not played again before a fork of it that was under way is asked for
// once more; its other branches play their first turns themselves, concurrently. A forked episode
// is played again from its own seed and turns.
//
// A request that has no reply in time for the second time, now alone, makes a fault of its episode.
// When three requests in a row had none, the child answers nobody: all episodes that wait are
// faults at once, and so they are at each later limit until a turn is answered. An environment that
// is silent thus costs three time limits, and not one for each episode.
//
// A wrong line is the fault of the episode whose id it has. Without an id, or with the id of no
// open episode, it is charged to the episode that has waited longest, since that reply is missing;
// if no episode waits, to the next call.
type worker struct {
	pool  *Pool
	calls chan call
	done  chan struct{} // closed at the end of run

	proc      *process // nil while there is no child
	hello     hello
	open      map[uint64]*episode // started, neither closed nor at fault
	ended     map[uint64]bool     // ids whose lines are ignored: at fault, or closed early
	barren    int                 // crashes since the last reply
	noise     int                 // wrong lines since the last reply
	stray     error               // a wrong line that no episode has been charged with
	lastCrash error               // the reason of the last crash
	// requests in a row without a reply in time, and no turn answered between
	mute int
}

// maxMute is the number of requests in a row without a reply in time from which on all waiting
// episodes are faults.
const maxMute = 3

// maxNoise is the number of wrong lines in a row after which the child is killed.
const maxNoise = 100

// call is a request of an episode; one without a line holds or closes the episode.
type call struct {
	e       *episode
	request request
	line    []byte      // the request
	from    *episode    // of a fork
	answer  chan answer // has room for one
	hold    bool
}

// ErrLate is wrapped by the fault of an episode whose child was killed because no reply came in
// time.
var ErrLate = errors.New("no reply")

// errGone is the answer to a fork of an episode that the child does not have any more.
var errGone = errors.New("env: the episode has gone")

type answer struct {
	reply Reply
	err   error
}

// state is the part of an episode that belongs to its worker.
type state struct {
	proc     *process   // the child that has got its reset
	script   []exchange // answered so far, copied for a fork; the first is the reset
	resting  bool       // held: it will not be stepped
	waiting  *call      // the call in work; nil is none
	deadline time.Time  // of waiting
	crashes  int        // crashes during the call in waiting
	fault    error
}

// exchange is a request and its reply.
type exchange struct {
	request
	reply Reply
}

// places returns the number of episodes that the child plays at once.
func (w *worker) places() int { return min(w.hello.Episodes, maxPlaces) }

// run answers the calls of episodes until the pool is closed or its context ends.
func (w *worker) run() {
	defer close(w.done)
	for {
		var lines chan []byte
		if w.proc != nil {
			lines = w.proc.lines
		}
		next, timeout := w.longest(), (<-chan time.Time)(nil)
		if next != nil {
			timeout = time.After(time.Until(next.deadline))
		}
		select {
		case c := <-w.calls:
			w.take(c)
		case text, ok := <-lines:
			if !ok {
				w.crash(w.proc.exitError(), nil)
			} else if w.readLine(text); w.noise > maxNoise {
				w.crash(fmt.Errorf("more than %d wrong lines in a row", maxNoise), nil)
			}
		case <-timeout:
			w.mute++
			w.crash(w.lateError(), next)
		case <-w.pool.ctx.Done():
		case <-w.pool.closing:
		}
		if err := w.pool.endCause(); err != nil {
			w.end()
			for _, e := range w.open {
				if e.waiting != nil {
					e.waiting.answer <- answer{err: err}
				}
			}
			return
		}
	}
}

// longest returns the episode that has waited longest, nil if none waits.
func (w *worker) longest() (first *episode) {
	for _, e := range w.open {
		if e.waiting != nil && (first == nil || e.deadline.Before(first.deadline) ||
			e.deadline.Equal(first.deadline) && e.id < first.id) {
			first = e
		}
	}
	return first
}

// lateError returns the error for a reply that did not come in time.
func (w *worker) lateError() error {
	return fmt.Errorf("%w within %v, so it was killed: make it faster, or raise the time limit (--timeout)",
		ErrLate, w.pool.opt.Timeout)
}

// take carries out a call of an episode.
func (w *worker) take(c call) {
	e := c.e
	switch {
	case c.line == nil:
		if w.open[e.id] == nil {
			return
		}
		if e.resting = c.hold; c.hold {
			return
		}
		w.leave(e)
		if e.waiting != nil { // its caller has gone
			w.ended[e.id] = true
		}
		return
	case e.fault != nil:
		c.answer <- answer{err: e.fault}
		return
	case c.from != nil && (w.proc == nil || !w.has(c.from)):
		c.answer <- answer{err: errGone}
		return
	}
	w.open[e.id], e.waiting = e, &c
	if w.stray != nil {
		err := w.stray
		w.stray = nil
		w.blame(e, err)
		return
	}
	if w.proc == nil {
		w.revive()
		return
	}
	e.proc, e.deadline = w.proc, time.Now().Add(w.pool.opt.Timeout)
	w.send(&c)
}

// send writes a request to the child and counts its turn.
func (w *worker) send(c *call) {
	if c.request.Op == "step" {
		w.pool.steps.Add(1)
	}
	w.proc.write(c.line)
}

// has reports whether the present child has the episode.
func (w *worker) has(e *episode) bool { return w.open[e.id] == e && e.proc == w.proc }

// leave removes an episode, and tells a child that has it.
func (w *worker) leave(e *episode) {
	delete(w.open, e.id)
	if w.proc != nil && w.proc == e.proc {
		text, _ := line(request{Op: "close", ID: &e.id}) // a number is always written
		w.proc.write(text)
	}
}

// blame ends an episode with a fault, the error why.
func (w *worker) blame(e *episode, why error) {
	at := "reset"
	if n := len(e.script); n > 0 {
		at = fmt.Sprintf("turn %d", n)
	}
	if c := e.waiting; c != nil && c.from != nil {
		at = fmt.Sprintf("fork of episode %d behind turn %d", c.from.id, *c.request.Turns)
		why = fmt.Errorf("promised and not kept: %w", why)
	}
	w.leave(e)
	w.ended[e.id] = true
	e.fault = fmt.Errorf("%w: %q: episode %d, %s: %w", ErrFault, w.pool.opt.Command, e.id, at, why)
	if c := e.waiting; c != nil {
		e.waiting = nil
		c.answer <- answer{err: e.fault}
	}
}

// readLine handles a line from the child: a reply, or a wrong line that is charged to an episode.
func (w *worker) readLine(text []byte) {
	id, ok := idOf(text)
	if ok && w.ended[id] {
		return
	}
	e := w.open[id]
	_, broken := object(text)
	switch {
	case ok && e != nil && e.waiting != nil:
		reply, err := readReply(text, len(e.script) == 0)
		if err != nil {
			w.blame(e, w.withStderr(err))
		} else {
			w.answer(e, reply)
		}
		return
	case ok && e != nil:
		w.blame(e, fmt.Errorf("%s is a reply to nothing: print one line for each reset and step",
			child.Quote(string(text))))
	default:
		err := cmp.Or(broken, fmt.Errorf("%s has the id of no open episode: a reply has the id of its request, and close gets none", child.Quote(string(text))))
		if e = w.longest(); e != nil {
			w.blame(e, w.withStderr(err))
		} else {
			w.stray = w.withStderr(err)
		}
	}
	w.noise++
}

// withStderr returns err with the last lines of the child's standard error.
func (w *worker) withStderr(err error) error { return fmt.Errorf("%w%s", err, w.proc.StderrNote()) }

// answer gives the reply to the caller that waits. The reply to a fork must equal the recorded one.
func (w *worker) answer(e *episode, reply Reply) {
	w.barren, w.noise, e.crashes = 0, 0, 0
	if len(e.script) > 0 {
		w.mute = 0
	}
	if e.waiting.from == nil {
		e.script = append(e.script, exchange{e.waiting.request, reply})
	} else if was := e.script[len(e.script)-1].reply; !reflect.DeepEqual(reply, was) {
		w.blame(e, fmt.Errorf("the reply is not that to turn %d: %s", len(e.script)-1,
			difference(was, reply)))
		return
	}
	e.waiting.answer <- answer{reply: reply}
	e.waiting = nil
}

// crash ends the child for a reason. The crash counts for the waiting episode culprit, or for all
// that wait if it is nil. If any wait, the child is restarted now, else at the next call.
func (w *worker) crash(why error, culprit *episode) {
	waiting := false
	for _, e := range w.open {
		if e.waiting != nil {
			waiting = true
			if culprit == nil || culprit == e {
				e.crashes++
			}
		}
	}
	w.bury(why)
	if waiting {
		w.revive()
	}
}

// bury ends the child and records the reason with its standard error, which is then complete.
func (w *worker) bury(why error) {
	proc := w.proc
	w.end() // standard error is complete after it
	w.lastCrash = fmt.Errorf("%w%s", why, proc.StderrNote())
	w.barren++
}

// end ends the child, if there is one.
func (w *worker) end() {
	if w.proc != nil {
		w.proc.stop(w.pool.endCause() == errClosed)
		w.proc = nil
	}
}

// start starts a child and reads its hello.
func (w *worker) start() error {
	proc, err := startProcess(w.pool)
	if err != nil {
		return fmt.Errorf("cannot be started: %w", err)
	}
	w.proc, w.ended, w.noise, w.stray = proc, map[uint64]bool{}, 0, nil
	text, err := line(request{Op: "hello", Version: Version})
	if err != nil {
		return err
	}
	proc.write(text)
	timeout := time.NewTimer(w.pool.hello)
	defer timeout.Stop()
	var h hello
	select {
	case text, ok := <-proc.lines:
		if !ok {
			err = fmt.Errorf("%w before its hello", proc.exitError())
		} else {
			h, err = readHello(text)
		}
	case <-timeout.C:
		err = fmt.Errorf("no hello within %v", w.pool.hello)
	case <-w.pool.ctx.Done():
		err = w.pool.ctx.Err()
	case <-w.pool.closing:
		err = errClosed
	}
	if err == nil && w.hello != (hello{}) && h != w.hello {
		err = fmt.Errorf("another hello than before, name %s", child.Quote(h.Name))
	}
	if err != nil {
		w.end()
		return fmt.Errorf("%w%s", err, proc.StderrNote())
	}
	if w.hello == (hello{}) { // others read it
		w.hello = h
	}
	return nil
}

// revive restarts the child and replays the open episodes. It returns once all are where they were,
// no episode is left, or the pool ends.
func (w *worker) revive() {
	for len(w.open) > 0 && w.pool.endCause() == nil {
		if w.mute >= maxMute {
			for _, e := range slices.Collect(maps.Values(w.open)) {
				if e.waiting != nil {
					w.blame(e, fmt.Errorf("the program has answered none of the last %d requests: %w",
						w.mute, w.lastCrash))
				}
			}
			w.mute = maxMute - 1
			if len(w.open) == 0 { // requests to come are given to it side by side
				if err := w.start(); err != nil {
					w.lastCrash = err
				}
				return
			}
		}
		tries := w.barren
		for _, e := range w.open {
			tries = max(tries, e.crashes)
		}
		if w.barren > len(w.pool.pauses) {
			for _, e := range slices.Collect(maps.Values(w.open)) {
				w.blame(e, fmt.Errorf("the program was started again %d times without a reply: %w",
					len(w.pool.pauses), w.lastCrash))
			}
			w.barren = 0
			return
		}
		if tries > 0 {
			select {
			case <-time.After(w.pool.pauses[min(tries, len(w.pool.pauses))-1]):
			case <-w.pool.ctx.Done():
				return
			case <-w.pool.closing:
				return
			}
		}
		if err := w.start(); err != nil {
			w.lastCrash = err
			w.barren++
			continue
		}
		if w.replay() {
			return
		}
	}
}

// replay replays the open episodes that are not held; episodes with a waiting call come last. It
// returns false if the child has crashed again.
func (w *worker) replay() bool {
	all := slices.SortedFunc(maps.Values(w.open), func(a, b *episode) int {
		if (a.waiting == nil) != (b.waiting == nil) {
			if a.waiting == nil {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.id, b.id)
	})
	for _, e := range all {
		if e.crashes > len(w.pool.pauses) {
			w.blame(e, fmt.Errorf("the program was started again %d times for it: %w",
				len(w.pool.pauses), w.lastCrash))
			continue
		}
		if e.resting {
			continue
		}
		whole := e
		if e.waiting != nil && e.waiting.from != nil {
			whole = e.waiting.from // the child must have it, to fork it
		}
		if !w.has(whole) && !w.replayScript(whole) {
			e.crashes++
			return false
		}
		if e.fault != nil {
			continue
		}
		if e.waiting == nil {
			e.crashes = 0
			continue
		}
		if e.waiting.from != nil && !w.has(whole) { // so the fork is not requested
			c := e.waiting
			e.waiting = nil
			delete(w.open, e.id)
			c.answer <- answer{err: errGone}
			continue
		}
		e.proc = w.proc
		reply, crashed, err := w.roundTrip(e, e.waiting, len(e.script) == 0)
		switch {
		case errors.Is(err, ErrLate): // alone
			w.mute++
			w.bury(err)
			w.blame(e, w.lastCrash)
			return false
		case crashed:
			e.crashes++
			w.bury(err)
			return false
		case err != nil:
			w.blame(e, w.withStderr(err))
		default:
			w.answer(e, reply)
		}
	}
	return true
}

// replayScript replays the recorded requests of an episode. A reply other than the recorded one is
// its fault. It returns false if the child has crashed.
func (w *worker) replayScript(e *episode) bool {
	if w.open[e.id] != e {
		return true // closed, or at fault
	}
	e.proc = w.proc
	for i, x := range e.script {
		text, err := line(x.request)
		if err != nil {
			w.blame(e, err)
			return true
		}
		reply, crashed, err := w.roundTrip(e, &call{request: x.request, line: text}, i == 0)
		switch {
		case crashed:
			w.bury(err)
			return false
		case err != nil:
			err = fmt.Errorf("played again from its seed and turns: %w", err)
		case !reflect.DeepEqual(reply, x.reply):
			err = fmt.Errorf("not deterministic: played again from its seed and turns, reply %d is another: %s", i, difference(x.reply, reply))
		}
		if err != nil {
			w.blame(e, err)
			return true
		}
	}
	return true
}

// roundTrip sends a request and waits for its reply, with no other request in work.
func (w *worker) roundTrip(e *episode, c *call, reset bool) (reply Reply, crashed bool, err error) {
	w.send(c)
	timeout := time.NewTimer(w.pool.opt.Timeout)
	defer timeout.Stop()
	for {
		select {
		case text, ok := <-w.proc.lines:
			if !ok {
				return reply, true, w.proc.exitError()
			}
			if id, ok := idOf(text); ok && id != e.id {
				if w.ended[id] {
					continue
				}
				return reply, false, fmt.Errorf("%s has another id than the request",
					child.Quote(string(text)))
			}
			if reply, err = readReply(text, reset); err == nil {
				w.barren, w.noise = 0, 0
			}
			return reply, false, err
		case <-timeout.C:
			return reply, true, w.lateError()
		case <-w.pool.ctx.Done():
			return reply, true, w.pool.ctx.Err()
		case <-w.pool.closing:
			return reply, true, errClosed
		}
	}
}

// difference returns a note of where two replies begin to differ.
func difference(was, is Reply) string {
	a, errA := line(was)
	b, errB := line(is)
	if errA != nil || errB != nil {
		return "unreadable"
	}
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	from := max(0, at-8)
	show := func(text []byte) string {
		return child.Quote(string(bytes.ToValidUTF8(text[from:min(len(text), from+30)], nil)))
	}
	return "was " + show(a) + ", is " + show(b)
}

// process is a running child.
type process struct {
	*child.Process
	lines chan []byte // lines of its standard output; closed at its end
	gone  chan struct{}
	err   error // of Wait, once gone

	mu sync.Mutex
	// lines to be written
	queue [][]byte
	more  chan struct{} // signals an entry in queue
}

// startProcess starts a child of the pool with its goroutines.
func startProcess(p *Pool) (*process, error) {
	proc := &process{lines: make(chan []byte), gone: make(chan struct{}),
		more: make(chan struct{}, 1)}
	var err error
	out := &output{lines: proc.lines}
	if proc.Process, err = child.Start(p.ctx, p.opt.Command, nil, out); err != nil {
		return nil, err
	}
	go func() {
		proc.err = proc.Wait()
		close(proc.gone)
	}()
	go proc.writeQueue()
	return proc, nil
}

// write queues a line for the child. It never waits: a child that does not read meets its time
// limit.
func (p *process) write(text []byte) {
	p.mu.Lock()
	p.queue = append(p.queue, text)
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// writeQueue writes queued lines until the child ends.
func (p *process) writeQueue() {
	for {
		select {
		case <-p.more:
		case <-p.gone:
			return
		}
		p.mu.Lock()
		texts := p.queue
		p.queue = nil
		p.mu.Unlock()
		for _, text := range texts {
			if _, err := p.In.Write(text); err != nil {
				return // it has ended, or will meet its time limit
			}
		}
	}
}

// grace is the time in which a child may end by itself.
const grace = time.Second

// exitError returns how a child has ended whose output has ended.
func (p *process) exitError() error {
	select {
	case <-p.gone:
		return fmt.Errorf("the program ended with %w", cmp.Or(p.err, errors.New("exit status 0")))
	case <-time.After(grace):
		return errors.New("closed its standard output")
	}
}

// stop ends the child, all processes that it has started, and the goroutines that serve it.
// politely closes its input first and gives it the time grace.
func (p *process) stop(politely bool) {
	if politely {
		_ = p.In.Close() // the child may have closed it
		p.drain(time.After(grace))
	}
	_ = p.Kill() // of a group that may be gone
	p.drain(nil)
	_ = p.Kill() // what the program started while it was ended
}

// drain reads output until the child has ended, or until sends.
func (p *process) drain(until <-chan time.Time) {
	lines := p.lines
	for {
		select {
		case _, ok := <-lines:
			if !ok {
				lines = nil
			}
		case <-p.gone:
			return
		case <-until:
			return
		}
	}
}

// output splits standard output into lines. The rest of an overlong line is dropped, so that it
// cannot fill the memory.
type output struct {
	lines chan []byte
	// the line so far
	partial []byte
}

// ReadFrom reads the pipe to its end. With Write alone the end would not be seen.
func (o *output) ReadFrom(r io.Reader) (n int64, err error) {
	defer close(o.lines)
	buf := make([]byte, 64<<10)
	for {
		k, err := r.Read(buf)
		n += int64(k)
		_, _ = o.Write(buf[:k]) // it cannot fail
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// Write sends the complete lines of a piece of output.
func (o *output) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		text, after, whole := bytes.Cut(rest, []byte("\n"))
		o.partial = append(o.partial, text[:min(len(text), maxLine+1-len(o.partial))]...)
		if rest = after; whole {
			o.lines <- bytes.TrimSuffix(o.partial, []byte("\r"))
			o.partial = nil
		}
	}
	return len(p), nil
}
