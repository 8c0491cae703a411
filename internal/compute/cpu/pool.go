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
	spins   int           // how often an idle worker looks for a job before it sleeps
	round   atomic.Uint64 // counts the calls of run: a worker looks here for work
	job     job
	quit    atomic.Bool
	parked  []atomic.Bool
	wake    []chan struct{}
	done    sync.WaitGroup
}

// job is the call of run that is under way. There is one, used again and again, so
// that a call allocates nothing: whoever has taken a task keeps run from returning,
// and a worker that comes late finds no task left, or one of the next call.
type job struct {
	fn         func(worker, task int) // these two are read by those who have taken a task
	tasks      int64
	left       atomic.Int64        // tasks not yet handed out; 0 or less is none
	unfinished atomic.Int64        // tasks not yet done
	failure    atomic.Pointer[any] // first panic of a task, thrown again by run
}

// idleSpins are some 20 microseconds, longer than the gap between two operations of
// a step.
const idleSpins = 200

func newPool(workers, spins int) *pool {
	p := &pool{workers: workers, spins: spins, parked: make([]atomic.Bool, workers),
		wake: make([]chan struct{}, workers)}
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
	j := &p.job
	j.fn, j.tasks = fn, int64(tasks)
	j.unfinished.Store(j.tasks)
	j.left.Store(j.tasks)
	p.round.Add(1)
	p.rouse(min(p.workers, tasks))
	j.work(0)
	for j.unfinished.Load() > 0 {
		runtime.Gosched()
	}
	if f := j.failure.Swap(nil); f != nil {
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
	p.quit.Store(true)
	p.round.Add(1)
	p.rouse(p.workers)
	p.done.Wait()
}

func (p *pool) worker(w int) {
	defer p.done.Done()
	last := uint64(0)
	for idle := 0; ; idle++ {
		if r := p.round.Load(); r != last {
			if p.quit.Load() {
				return
			}
			p.job.work(w)
			last, idle = r, 0
			continue
		}
		if idle < p.spins {
			runtime.Gosched()
			continue
		}
		p.sleep(w, last)
		idle = 0
	}
}

// sleep returns once there may be another round than last.
//
// No wake-up is lost: a worker announces its sleep and then looks for a job, rouse
// comes after the count of a round and then looks for announcements, and atomics have one
// order, so one of the two sees the other. Whoever takes the announcement back
// decides: the worker goes on, or rouse sends one token and the worker takes it. So a
// worker that is awake has no token waiting and no announcement standing, and rouse
// never blocks. The announcement is a Swap because an emulated arm64 lets a load pass
// a store before it, which that processor's own store-release does not: seen, once in
// some thousand sleeps.
func (p *pool) sleep(w int, last uint64) {
	p.parked[w].Swap(true)
	if p.round.Load() != last && p.parked[w].CompareAndSwap(true, false) {
		return
	}
	<-p.wake[w]
}

// work runs tasks until none is left.
func (j *job) work(w int) {
	for {
		left := j.left.Add(-1)
		if left < 0 {
			return
		}
		j.do(w, int(j.tasks-1-left))
	}
}

func (j *job) do(w, t int) {
	defer func() {
		if v := recover(); v != nil {
			first := v // v itself would be allocated for every task
			j.failure.CompareAndSwap(nil, &first)
		}
		j.unfinished.Add(-1)
	}()
	j.fn(w, t)
}
