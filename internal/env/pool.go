package env

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the program and its limits.
type Options struct {
	Command string        // for the shell, as the user typed it
	Workers int           // child processes, at least 1
	Timeout time.Duration // of one reply, and of a start; above 0
}

// maxPlaces bounds the episodes that one child plays at once, whatever its hello offers.
const maxPlaces = 4096

// Pool is a set of child processes that play episodes. It may be used by several goroutines.
//
// A child plays at once as many episodes as its hello offers: its places. A held episode, kept for
// branches, occupies a place only until another episode needs it: held episodes save time, and
// nothing waits for them. A branch of an episode that was dropped replays its first turns.
type Pool struct {
	opt     Options
	ctx     context.Context
	hello   time.Duration   // time limit of a start
	pauses  []time.Duration // before each restart of a child
	workers []*worker
	ids     atomic.Uint64
	steps   atomic.Int64 // see Steps
	closing chan struct{}
	once    sync.Once

	mu      sync.Mutex
	free    map[*worker]int
	held    []*episode     // the oldest first
	waiting []chan *worker // Resets without a place; each channel has room for one
}

// Open starts the children and asks each for its hello. An error tells why the program is not an
// environment; all children have then ended. When ctx ends, all children are killed, and every call
// of an episode returns the context's error.
func Open(ctx context.Context, opt Options) (*Pool, error) {
	const ms = time.Millisecond
	return open(ctx, opt, opt.Timeout,
		[]time.Duration{100 * ms, 400 * ms, 1600 * ms})
}

func open(ctx context.Context, opt Options, hello time.Duration,
	pauses []time.Duration) (*Pool, error) {
	p := &Pool{opt: opt, ctx: ctx, hello: hello, pauses: pauses, closing: make(chan struct{}),
		free: map[*worker]int{}}
	failed := make([]error, opt.Workers)
	var all sync.WaitGroup
	for i := range opt.Workers {
		w := &worker{pool: p, calls: make(chan call), done: make(chan struct{}),
			open: map[uint64]*episode{}}
		p.workers = append(p.workers, w)
		all.Go(func() { failed[i] = w.start() })
	}
	all.Wait()
	for _, err := range failed {
		if err != nil {
			for _, w := range p.workers {
				w.end()
			}
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, fmt.Errorf("env: %q: %w", opt.Command, err)
		}
	}
	for _, w := range p.workers {
		p.free[w] = w.places()
		go w.run()
	}
	return p, nil
}

// Name returns the environment's name for itself.
func (p *Pool) Name() string { return p.workers[0].hello.Name }

// Places returns the number of episodes that the pool plays at once; one more Reset waits for a
// Close.
func (p *Pool) Places() (n int) {
	for _, w := range p.workers {
		n += w.places()
	}
	return n
}

// Forks reports whether the children can fork episodes.
func (p *Pool) Forks() bool { return p.workers[0].hello.Fork }

// Steps returns the number of turns sent to children so far, replayed ones included.
func (p *Pool) Steps() int { return int(p.steps.Load()) }

// Episode returns a new episode. Reset assigns it to a child.
func (p *Pool) Episode() Episode { return &episode{pool: p} }

// Hold leaves e open for branches where its child can fork and e has no error; otherwise it closes
// e.
func (p *Pool) Hold(e Episode) {
	x := e.(*episode)
	if x.w == nil || !x.w.hello.Fork || x.over != nil && x.over != errBehind || len(x.known) > 0 {
		x.Close()
		return
	}
	x.over, x.wasHeld = errHeld, true
	select {
	case x.w.calls <- call{e: x, hold: true}:
	case <-x.w.done:
		return
	}
	p.mu.Lock()
	p.held = append(p.held, x)
	p.mu.Unlock()
	if p.resetWaits() {
		x.Close()
	}
}

// Branch returns an episode that starts with the first turns of e, which was held.
func (p *Pool) Branch(e Episode, turns int) Branch {
	return &episode{pool: p, parent: e.(*episode), shared: turns}
}

// resetWaits reports whether a Reset waits for a place.
func (p *Pool) resetWaits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) > 0
}

// place takes a place and returns its worker: the worker with the most free places, or one whose
// held episode is the oldest and is dropped for it. Otherwise it waits.
func (p *Pool) place(ctx context.Context) (*worker, error) {
	p.mu.Lock()
	var w *worker
	for _, x := range p.workers {
		if p.free[x] > 0 && (w == nil || p.free[x] > p.free[w]) {
			w = x
		}
	}
	if w != nil {
		p.free[w]--
		p.mu.Unlock()
		return w, nil
	}
	if len(p.held) > 0 {
		e := p.held[0]
		p.held = p.held[1:]
		p.mu.Unlock()
		e.forget()
		return e.w, nil
	}
	wait := make(chan *worker, 1)
	p.waiting = append(p.waiting, wait)
	p.mu.Unlock()
	var err error
	select {
	case w := <-wait:
		return w, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-p.ctx.Done():
		err = p.ctx.Err()
	case <-p.closing:
		err = errClosed
	}
	p.mu.Lock()
	at := slices.Index(p.waiting, wait)
	if at >= 0 {
		p.waiting = slices.Delete(p.waiting, at, at+1)
	}
	p.mu.Unlock()
	if at < 0 { // the place came at the same moment
		p.freePlace(<-wait)
	}
	return nil, err
}

// freePlace gives the place of an ended episode to the first Reset that waits, or marks it free.
func (p *Pool) freePlace(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 {
		p.waiting[0] <- w
		p.waiting = p.waiting[1:]
		return
	}
	p.free[w]++
}

// placeWith takes a place in the child that holds e. If none is free, another held episode of the
// child is dropped for it. It returns false if e is not held any more, or no place can be had.
func (p *Pool) placeWith(e *episode) bool {
	p.mu.Lock()
	if !slices.Contains(p.held, e) {
		p.mu.Unlock()
		return false
	}
	if p.free[e.w] > 0 {
		p.free[e.w]--
		p.mu.Unlock()
		return true
	}
	at := slices.IndexFunc(p.held, func(x *episode) bool { return x != e && x.w == e.w })
	if at < 0 {
		p.mu.Unlock()
		return false
	}
	other := p.held[at]
	p.held = slices.Delete(p.held, at, at+1)
	p.mu.Unlock()
	other.forget()
	return true
}

// release ends the holding of e. It returns false if e was dropped before.
func (p *Pool) release(e *episode) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.held, e)
	if at >= 0 {
		p.held = slices.Delete(p.held, at, at+1)
	}
	return at >= 0
}

// Close ends the children and all processes that they have started: it closes their input, and
// kills them after a second.
func (p *Pool) Close() {
	p.once.Do(func() { close(p.closing) })
	for _, w := range p.workers {
		<-w.done
	}
}

var (
	errClosed = errors.New("env: the pool is closed")
	errBehind = errors.New("env: Step behind the end of an episode")
	errHeld   = errors.New("env: Step of an episode that is held")
)

// endCause returns why the pool's children are being ended, nil if they are not.
func (p *Pool) endCause() error {
	select {
	case <-p.closing:
		return errClosed
	default:
		return p.ctx.Err()
	}
}

// episode is an Episode of a Pool.
type episode struct {
	pool    *Pool
	w       *worker // nil before Reset
	id      uint64
	over    error // the error of every further call
	wasHeld bool  // Hold has been called
	closed  bool  // Close has been called

	parent *episode // the episode that it branches off; nil is none
	forked bool
	shared int        // turns of parent that it repeats
	known  []exchange // of a fork: the shared turns not yet given

	state // of the worker's goroutine
}

// Reset starts the episode, as a fork of its parent where possible.
func (e *episode) Reset(ctx context.Context, seed uint64, row Row) (Reply, error) {
	switch {
	case e.w != nil || e.over != nil:
		return Reply{}, errors.New("env: Reset of an episode that has begun")
	case seed > MaxSeed:
		return Reply{}, fmt.Errorf("env: seed %d: must be at most %d", seed, uint64(MaxSeed))
	}
	if row.Content == nil {
		row.Content = []Message{}
	}
	if e.parent != nil && e.pool.placeWith(e.parent) {
		e.w, e.id = e.parent.w, e.pool.ids.Add(1)
		if r, err := e.fork(ctx, seed, row); err != errGone {
			return r, err
		}
		e.over = nil
	} else {
		var err error
		if e.w, err = e.pool.place(ctx); err != nil {
			return Reply{}, err
		}
		e.id = e.pool.ids.Add(1)
	}
	return e.ask(ctx, request{Op: "reset", ID: &e.id, Seed: &seed, Row: &row}, nil)
}

// fork starts the episode as a copy of its held parent. errGone: the child does not have that any
// more.
func (e *episode) fork(ctx context.Context, seed uint64, row Row) (Reply, error) {
	all := e.parent.script
	if e.shared < 1 || e.shared >= len(all) || all[e.shared].reply.Done {
		return Reply{}, fmt.Errorf("env: a branch behind turn %d of %d", e.shared, len(all)-1)
	}
	if first := all[0].request; *first.Seed != seed || !reflect.DeepEqual(*first.Row, row) {
		return Reply{}, errors.New("env: a branch with another seed or row")
	}
	for _, x := range all[:e.shared+1] {
		x.ID = &e.id
		e.script = append(e.script, x)
	}
	from, turns := e.parent.id, e.shared
	_, err := e.ask(ctx, request{Op: "fork", ID: &e.id, From: &from, Turns: &turns}, e.parent)
	if err == errGone {
		e.script = nil
	}
	if err != nil {
		return Reply{}, err
	}
	e.known, e.forked = all[1:turns+1], true
	return all[0].reply, nil
}

func (e *episode) Forked() bool { return e.forked }

// Step returns the recorded reply to a shared turn of a fork; other turns go to the child.
func (e *episode) Step(ctx context.Context, turn Turn) (Reply, error) {
	if e.w == nil && e.over == nil {
		return Reply{}, errors.New("env: Step before Reset")
	}
	if len(e.known) > 0 && e.over == nil {
		x := e.known[0]
		if *x.Turn != turn.Text || *x.Cut != turn.Cut {
			return Reply{}, errors.New("env: another turn than that of the episode that it branches off")
		}
		e.known = e.known[1:]
		return x.reply, nil
	}
	return e.ask(ctx, request{Op: "step", ID: &e.id, Turn: &turn.Text, Cut: &turn.Cut}, nil)
}

// ask sends a request to the worker and waits for the reply. from is the episode that a fork
// copies.
func (e *episode) ask(ctx context.Context, q request, from *episode) (Reply, error) {
	if e.over != nil {
		return Reply{}, e.over
	}
	text, err := line(q)
	if err != nil {
		return Reply{}, fmt.Errorf("env: %w", err)
	}
	c := call{e: e, request: q, line: text, from: from, answer: make(chan answer, 1)}
	select {
	case e.w.calls <- c:
	case <-ctx.Done():
		e.over = ctx.Err()
		return Reply{}, e.over
	case <-e.w.done:
		e.over = e.pool.endCause()
		return Reply{}, e.over
	}
	var a answer
	select {
	case a = <-c.answer:
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	switch {
	case a.err != nil:
		e.over = a.err
	case a.reply.Done:
		e.over = errBehind
	}
	return a.reply, a.err
}

// Close may wait for a child that is being restarted.
func (e *episode) Close() {
	if e.over = errors.New("env: the episode is closed"); e.w == nil || e.closed {
		return
	}
	e.closed = true
	if e.wasHeld && !e.pool.release(e) {
		return
	}
	e.forget()
	e.pool.freePlace(e.w)
}

// forget tells the worker to drop the episode.
func (e *episode) forget() {
	select {
	case e.w.calls <- call{e: e}:
	case <-e.w.done:
	}
}
