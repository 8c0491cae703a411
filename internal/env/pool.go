package env

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Options say which program is the environment.
type Options struct {
	Command string        // for the shell: only what the user typed
	Workers int           // child processes, at least 1
	Timeout time.Duration // of one reply, above 0
}

// maxPlaces bounds the episodes that one child plays at once, whatever it says.
const maxPlaces = 4096

// Pool is child processes that play episodes. It may be used by several goroutines.
type Pool struct {
	opt     Options
	ctx     context.Context
	hello   time.Duration   // time limit of a start
	pauses  []time.Duration // before a child is started again
	workers []*worker
	places  chan *worker // a worker for each episode that it can play at once and does not
	ids     atomic.Uint64
	closing chan struct{}
	once    sync.Once
}

// Open starts the children and asks each for its hello. An error says why the program is no
// environment; nothing is left running then. When ctx ends, all children are killed, and every call
// of an episode ends with the context's error.
func Open(ctx context.Context, opt Options) (*Pool, error) {
	const ms = time.Millisecond
	return open(ctx, opt, max(opt.Timeout, helloTimeout),
		[]time.Duration{100 * ms, 400 * ms, 1600 * ms})
}

// helloTimeout is the least time that a program gets to start.
const helloTimeout = time.Minute

func open(ctx context.Context, opt Options, hello time.Duration,
	pauses []time.Duration) (*Pool, error) {
	p := &Pool{opt: opt, ctx: ctx, hello: hello, pauses: pauses, closing: make(chan struct{})}
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
	total := 0
	for _, w := range p.workers {
		total += min(w.hello.Episodes, maxPlaces)
	}
	p.places = make(chan *worker, total)
	for i := range maxPlaces { // in turn, so that the first episodes are spread
		for _, w := range p.workers {
			if i < w.hello.Episodes {
				p.places <- w
			}
		}
	}
	for _, w := range p.workers {
		go w.run()
	}
	return p, nil
}

// Name is what the environment calls itself.
func (p *Pool) Name() string { return p.workers[0].hello.Name }

// Places is how many episodes the pool plays at once; Reset of one more waits for a Close.
func (p *Pool) Places() int { return cap(p.places) }

// Episode is a new episode, which a child gets with Reset.
func (p *Pool) Episode() Episode { return &episode{pool: p} }

// Close ends the children and all that they have started: they are told by the end of their input,
// and killed after a second.
func (p *Pool) Close() {
	p.once.Do(func() { close(p.closing) })
	for _, w := range p.workers {
		<-w.done
	}
}

var errClosed = errors.New("env: the pool is closed")

// stopped is why the pool's children are ended, nil while they are not.
func (p *Pool) stopped() error {
	select {
	case <-p.closing:
		return errClosed
	default:
		return p.ctx.Err()
	}
}

// episode is an Episode of a Pool.
type episode struct {
	pool *Pool
	w    *worker // nil before Reset
	id   uint64
	over error // why no call is possible any more

	state // of the worker's goroutine
}

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
	select {
	case e.w = <-e.pool.places:
	case <-ctx.Done():
		return Reply{}, ctx.Err()
	case <-e.pool.ctx.Done():
		return Reply{}, e.pool.ctx.Err()
	case <-e.pool.closing:
		return Reply{}, errClosed
	}
	e.id = e.pool.ids.Add(1)
	return e.ask(ctx, request{Op: "reset", ID: &e.id, Seed: &seed, Row: &row})
}

func (e *episode) Step(ctx context.Context, turn Turn) (Reply, error) {
	if e.w == nil && e.over == nil {
		return Reply{}, errors.New("env: Step before Reset")
	}
	return e.ask(ctx, request{Op: "step", ID: &e.id, Turn: &turn.Text, Cut: &turn.Cut})
}

func (e *episode) ask(ctx context.Context, q request) (Reply, error) {
	if e.over != nil {
		return Reply{}, e.over
	}
	text, err := line(q)
	if err != nil {
		return Reply{}, fmt.Errorf("env: %w", err)
	}
	c := call{e: e, line: text, answer: make(chan answer, 1)}
	select {
	case e.w.calls <- c:
	case <-ctx.Done():
		e.over = ctx.Err()
		return Reply{}, e.over
	case <-e.w.done:
		e.over = e.pool.stopped()
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
		e.over = errors.New("env: Step behind the end of an episode")
	}
	return a.reply, a.err
}

// Close may wait for a child that is being started again.
func (e *episode) Close() {
	if e.over = errors.New("env: the episode is closed"); e.w == nil {
		return
	}
	select {
	case e.w.calls <- call{e: e}:
	case <-e.w.done:
	}
	e.pool.places <- e.w
	e.w = nil
}
