package cpu

import (
	"flag"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gad/internal/hostile"
)

var poolRuns = flag.Int("poolruns", 40000, "runs of TestPoolEnds for each number of threads")

// A job that comes in the very moment at which a worker goes to sleep, some
// nanoseconds earlier or later, wakes it, and nothing is left over.
func TestPoolSleep(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))))
	rounds := *poolRuns / 8
	if !hostile.Long() {
		rounds /= 8
	}
	p := newPool(1, 0)
	p.parked, p.wake = make([]atomic.Bool, 2), []chan struct{}{nil, make(chan struct{}, 1)}
	var begun, over atomic.Int64
	go func() {
		var last uint64
		for r := range int64(rounds) {
			for n := 1; begun.Load() <= r; n++ {
				if n%5000 == 0 { // before that it would cost the overlap
					runtime.Gosched()
				}
			}
			p.sleep(1, last)
			last = p.round.Load()
			over.Store(r + 1)
		}
	}()
	late := 0 // rounds in which the worker was asleep first
	for r := range int64(rounds) {
		at := time.Now()
		begun.Store(r + 1)
		for k := r * 7919 % 256; k > 0; k-- { // up to 100 ns
		}
		if p.parked[1].Load() {
			late++
		}
		p.round.Add(1)
		p.rouse(2)
		for n := 1; over.Load() <= r; n++ {
			if n%5000 != 0 {
				continue
			}
			if runtime.Gosched(); time.Since(at) > time.Minute {
				t.Fatalf("round %d of %d: asleep although there is a job; announced %v", r, rounds,
					p.parked[1].Load())
			}
		}
		if p.parked[1].Load() || len(p.wake[1]) != 0 {
			t.Fatalf("round %d: awake, announced %v, %d tokens", r, p.parked[1].Load(),
				len(p.wake[1]))
		}
	}
	t.Logf("%d rounds, the sleep came first in %d", rounds, late)
}

// A pool's run and close return, and each task is run once, at any number of threads.
// Half of the pools go to sleep at once. A wake-up that is lost shows in close: run does
// itself what no worker takes.
func TestPoolEnds(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, threads := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(threads), func(t *testing.T) {
			runtime.GOMAXPROCS(threads)
			u := &usage{runs: *poolRuns, workers: max(threads, 2)}
			if testing.Short() {
				u.runs /= 10
			} else {
				u.runs = hostile.Share(u.runs)
			}
			done := make(chan error, 1)
			go func() { done <- u.make() }()
			for last := int64(-1); ; {
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
					t.Logf("%d runs of %d pools; a worker was asleep before %d of them", u.runs,
						u.pools, u.asleep)
					if u.asleep < u.runs/20 || u.asleep > u.runs/20*19 {
						t.Error("the test shows too little")
					}
					return
				case <-time.After(time.Minute):
				}
				if at := u.at.Load(); at != last {
					last = at
					continue
				}
				var where strings.Builder
				pprof.Lookup("goroutine").WriteTo(&where, 2)
				t.Fatalf("run %d, or the close after it, has not ended after a minute\n%s", u.at.Load(),
					&where)
			}
		})
	}
}

// usage is what TestPoolEnds does to pools.
type usage struct {
	runs, workers int
	pools, asleep int
	at            atomic.Int64
}

// make makes runs of 2 to 17 tasks that do next to nothing, four of each pool. Before
// each, and before the close, it lets up to a microsecond pass.
func (u *usage) make() error {
	var ran [17]atomic.Int32
	var p *pool
	for i := range u.runs {
		u.at.Store(int64(i))
		if i%4 == 0 {
			p = newPool(u.workers, i/4%2*idleSpins)
			u.pools++
		}
		u.pause(i)
		for w := 1; w < p.workers; w++ {
			if p.parked[w].Load() {
				u.asleep++
				break
			}
		}
		tasks := 2 + i%16
		p.run(tasks, func(_, task int) {
			if (i+task)%61 == 0 {
				runtime.Gosched() // this task ends late
			}
			ran[task].Add(1)
		})
		for task := range ran {
			want := int32(0)
			if task < tasks {
				want = 1
			}
			if n := ran[task].Swap(0); n != want {
				return fmt.Errorf("run %d of %d tasks: task %d was run %d times", i, tasks, task, n)
			}
		}
		if i%4 == 3 {
			u.pause(i)
			p.close()
		}
	}
	return nil
}

func (u *usage) pause(i int) {
	if i%3 == 0 {
		runtime.Gosched() // on one thread the workers get to run
	}
	for begun := time.Now(); time.Since(begun) < time.Duration(i*7919%1000); {
	}
}
