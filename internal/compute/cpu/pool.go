package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// pool runs tasks on a fixed number of goroutines, the caller's among them.
//
// Which worker runs which task is left to chance, so a task must own what it
// writes and no sum may be split over tasks: then the result has the same bits
// for any number of workers.
type pool struct {
	workers int
	job     atomic.Pointer[job]
	parked  []atomic.Bool
	wake    []chan struct{}
	done    sync.WaitGroup
}

// job is one call of run.
type job struct {
	fn       func(worker, task int)
	tasks    int64
	next     atomic.Int64 // task to hand out
	finished atomic.Int64
	failure  atomic.Pointer[any] // first panic of a task, thrown again by run
	quit     bool
}

// spins is how often an idle worker looks for a job before it sleeps: some 20
// microseconds, longer than the gap between two operations of a step.
const spins = 200

func newPool(workers int) *pool {
	p := &pool{workers: workers, parked: make([]atomic.Bool, workers), wake: make([]chan struct{}, workers)}
	for w := 1; w < workers; w++ {
		p.wake[w] = make(chan struct{}, 1)
		p.done.Add(1)
		go p.worker(w)
	}
	return p
}

// run calls fn once for every task below tasks and returns when all are done.
func (p *pool) run(tasks int, fn func(worker, task int)) {
	if p.workers == 1 || tasks <= 1 {
		for t := range tasks {
			fn(0, t)
		}
		return
	}
	j := &job{fn: fn, tasks: int64(tasks)}
	p.job.Store(j)
	p.rouse(min(p.workers, tasks))
	j.work(0)
	for j.finished.Load() < j.tasks {
		runtime.Gosched()
	}
	if f := j.failure.Load(); f != nil {
		panic(*f)
	}
}

// rouse wakes the sleepers among the first n workers.
func (p *pool) rouse(n int) {
	for w := 1; w < n; w++ {
		if p.parked[w].CompareAndSwap(true, false) {
			p.wake[w] <- struct{}{}
		}
	}
}

// close ends the workers and waits for them.
func (p *pool) close() {
	p.job.Store(&job{quit: true})
	p.rouse(p.workers)
	p.done.Wait()
}

func (p *pool) worker(w int) {
	defer p.done.Done()
	var last *job
	for idle := 0; ; idle++ {
		if j := p.job.Load(); j != last {
			if j.quit {
				return
			}
			j.work(w)
			last, idle = j, 0
			continue
		}
		if idle < spins {
			runtime.Gosched()
			continue
		}
		// Announce the sleep, then look once more: a job stored before the
		// announcement would otherwise be slept through.
		p.parked[w].Store(true)
		if p.job.Load() != last && p.parked[w].CompareAndSwap(true, false) {
			continue
		}
		<-p.wake[w]
		idle = 0
	}
}

// work runs tasks until none is left.
func (j *job) work(w int) {
	for {
		t := j.next.Add(1) - 1
		if t >= j.tasks {
			return
		}
		j.do(w, int(t))
	}
}

func (j *job) do(w, t int) {
	defer func() {
		if v := recover(); v != nil {
			j.failure.CompareAndSwap(nil, &v)
		}
		j.finished.Add(1)
	}()
	j.fn(w, t)
}
