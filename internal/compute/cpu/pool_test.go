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
)

var poolRuns = flag.Int("poolruns", 40000, "runs of TestPoolEnds for each number of threads")

// A pool's run and close return, and each task is run once, however they fall on the
// moment at which a worker goes to sleep. Half of the pools go to sleep at once. A
// wake-up that is lost shows in close: run does itself what no worker takes.
func TestPoolEnds(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, threads := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(threads), func(t *testing.T) {
			runtime.GOMAXPROCS(threads)
			u := &usage{runs: *poolRuns, workers: max(threads, 2)}
			if testing.Short() {
				u.runs /= 10
			}
			done := make(chan error, 1)
			go func() { done <- u.make() }()
			for last := int64(-1); ; {
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
					t.Logf("%d runs of %d pools; a worker was asleep before %d of them", u.runs, u.pools, u.asleep)
					if u.asleep < u.runs/20 || u.asleep > u.runs/20*19 {
						t.Error("the test shows too little")
					}
					return
				case <-time.After(20 * time.Second):
				}
				if at := u.at.Load(); at != last {
					last = at
					continue
				}
				var where strings.Builder
				pprof.Lookup("goroutine").WriteTo(&where, 2)
				t.Fatalf("run %d, or the close after it, has not ended after 20 s\n%s", u.at.Load(), &where)
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
