package comm_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gad/internal/comm"
	"gad/internal/comm/commtest"
	"gad/internal/hostile"
)

// The tests mostly wait: more of them at once than there are processors.
func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

// value is what rank r has at i: numbers whose sum depends on its order.
func value(r, i int) float32 {
	return float32(math.Sin(float64(1+7*r+13*i))) * float32(math.Pow(10, float64((r*5+i)%9-4)))
}

// treeSum is ((0+1)+(2+3))+...
func treeSum(x []float32) float32 {
	if len(x) == 1 {
		return x[0]
	}
	return treeSum(x[:len(x)/2]) + treeSum(x[len(x)/2:])
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// patiently runs a case whose limits are short, since it waits for them, and repeats it with longer
// ones where it finds something wrong: a busy machine keeps a rank from answering for a second.
func patiently(t *testing.T, limit time.Duration, run func(limit time.Duration) (wrong []string)) {
	t.Helper()
	for ; ; limit *= 5 {
		wrong := run(limit)
		if len(wrong) == 0 {
			return
		}
		if limit > 5*time.Second {
			t.Errorf("within %v: %s", limit, strings.Join(wrong, "\n"))
			return
		}
	}
}

// A sum has the tree's bits on every rank, whatever its length, and no rank sends more
// than 2(R-1)/R of it.
func TestSumIsATree(t *testing.T) {
	for _, ranks := range []int{1, 2, 4, 8} {
		for _, n := range []int{0, 1, 2, 3, 7, 64, 1001, 2<<20 + 5} {
			if n > 2000 && (ranks > 4 || ranks < 4 && !hostile.Long() || testing.Short()) {
				continue
			}
			want := make([]float32, n)
			left := 0 // elements whose sum from left to right is another one
			for i := range want {
				var x []float32
				flat := float32(0)
				for r := range ranks {
					x = append(x, value(r, i))
					flat += value(r, i)
				}
				if want[i] = treeSum(x); want[i] != flat {
					left++
				}
			}
			if ranks > 2 && n > 100 && left == 0 {
				t.Fatal("no element's sum depends on the order: the test shows nothing")
			}
			noErrors(t, commtest.Run(ranks, time.Minute, func(g *comm.Group) error {
				x := make([]float32, n)
				for i := range x {
					x[i] = value(g.Rank(), i)
				}
				for round := range 2 { // the second on sums, which are the same everywhere
					before := g.Traffic().SumBytes
					if err := g.Sum("test", x); err != nil {
						return err
					}
					for i := range x {
						if w := want[i] * float32(max(1, round*ranks)); math.Float32bits(
							x[i]) != math.Float32bits(w) {
							return fmt.Errorf(
								"%d ranks, %d numbers, round %d: element %d is %g, want %g", ranks,
								n, round, i, x[i], w)
						}
					}
					least := 8 * float64(n) * float64(ranks-1) / float64(ranks)
					if sent := float64(g.Traffic().SumBytes - before); sent > least+8*float64(
						ranks) {
						return fmt.Errorf("%d ranks, %d numbers: %g bytes sent, the least are %g",
							ranks, n, sent, least)
					}
				}
				return nil
			}))
		}
	}
}

func TestGather(t *testing.T) {
	for _, ranks := range []int{1, 2, 4, 16} {
		noErrors(t, commtest.Run(ranks, time.Minute, func(g *comm.Group) error {
			for size := range 3 {
				all, err := g.Gather("test",
					[]byte(strings.Repeat(fmt.Sprint(g.Rank(), ";"), size*g.Rank())))
				if err != nil {
					return err
				}
				for r, got := range all {
					if want := strings.Repeat(fmt.Sprint(r, ";"), size*r); string(got) != want {
						return fmt.Errorf("rank %d gets %q of rank %d, want %q", g.Rank(), got, r,
							want)
					}
				}
			}
			last := g.Size() - 1
			from, err := g.Broadcast("test", last, []byte(fmt.Sprint("said by ", g.Rank())))
			if err == nil && string(from) != fmt.Sprint("said by ", last) {
				err = fmt.Errorf("from rank %d: %q", last, from)
			}
			none, err1 := g.Any("test", false)
			one, err2 := g.Any("test", g.Rank() == last)
			if none || !one {
				err = fmt.Errorf("any of none %v, any of one %v", none, one)
			}
			return errors.Join(err, err1, err2, g.Barrier("test"), g.Close())
		}))
	}
}

// One process alone is a nil group.
func TestAlone(t *testing.T) {
	var g *comm.Group
	x := []float32{1, 2}
	all, err := g.Gather("test", []byte("a"))
	any1, err1 := g.Any("test", true)
	any0, err0 := g.Any("test", false)
	if err := errors.Join(err, err1, err0, g.Sum("test", x), g.Barrier("test"),
		g.Close()); err != nil {
		t.Fatal(err)
	}
	g.RequestStop()
	g.Abort(errors.New("nobody hears it"))
	if g.Rank() != 0 || g.Size() != 1 || len(all) != 1 || string(all[0]) != "a" || !any1 || any0 ||
		x[0] != 1 || x[1] != 2 || g.StopRequested() {
		t.Errorf("rank %d of %d, gathered %q, any %v and %v, sum %v, wished %v", g.Rank(), g.Size(),
			all, any1, any0, x, g.StopRequested())
	}
}

// A rank that does not come is named by all others, with its host and the phase, within
// the limit: also by those whose partner is there and waits itself.
func TestLostRank(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		for lost := range ranks {
			t.Run(fmt.Sprint(lost, " of ", ranks), func(t *testing.T) {
				t.Parallel() // it mostly waits
				patiently(t, 200*time.Millisecond, func(limit time.Duration) (wrong []string) {
					begun := time.Now()
					errs := commtest.Run(ranks, limit, func(g *comm.Group) error {
						if err := g.Barrier("before"); err != nil {
							return err
						}
						if g.Rank() == lost {
							time.Sleep(3 * limit)
							return nil
						}
						// The partners of the lost one come later than the others.
						time.Sleep(time.Duration(g.Rank()^lost^1) * limit / 16)
						g.Enter("update_actor")
						return g.Sum("gradients", make([]float32, 10))
					})
					if took := time.Since(begun); took > time.Minute {
						t.Errorf("%v until the ranks have ended", took)
					}
					for r, err := range errs {
						want := fmt.Sprintf("phase update_actor, gradients: rank %d on ", lost)
						if r != lost && (err == nil || !errors.Is(err, comm.ErrRanks) ||
							!strings.Contains(err.Error(), want) ||
							!strings.Contains(err.Error(),
								fmt.Sprintf("did not answer within %v (trainer.rank_timeout)", limit))) {
							wrong = append(wrong, fmt.Sprintf("%d ranks, rank %d lost: rank %d says %v",
								ranks, lost, r, err))
						}
					}
					return wrong
				})
			})
		}
	}
}

// So is one that comes and hangs in the middle of a call.
func TestHungRank(t *testing.T) {
	const limit, ranks = 50 * time.Millisecond, 4 // of the bubble's own time: no rank is ever late
	for hung := range ranks {
		for after := range 4 { // exchanges of the sum: lengths, halves, quarters, halves
			synctest.Test(t, func(t *testing.T) {
				var wg, others sync.WaitGroup
				others.Add(ranks - 1)
				errs := make([]error, ranks)
				for r, l := range commtest.Links(ranks) {
					wg.Go(func() {
						if r != hung {
							defer others.Done()
						}
						g, err := comm.New(l, limit)
						if err != nil {
							errs[r] = err
							return
						}
						n := 0
						l.Break = func(int) error {
							if n++; r == hung && n == 2*after+1 {
								others.Wait() // until they have given it up
							}
							return nil
						}
						g.Enter("update_actor")
						errs[r] = g.Sum("gradients", make([]float32, 8))
					})
				}
				wg.Wait()
				named := 0
				for r, err := range errs {
					if r != hung && err != nil {
						named++
						if !strings.Contains(err.Error(),
							fmt.Sprintf("phase update_actor, gradients: rank %d on ", hung)) {
							t.Errorf("rank %d hung after %d exchanges: rank %d says %v", hung,
								2*after, r, err)
						}
					}
				}
				if named == 0 {
					t.Errorf("rank %d hung after %d exchanges, and nobody says so", hung, 2*after)
				}
			})
		}
	}
}

// A rank that hangs in the middle of a call keeps some of the others in it, while the rest
// come to the next one: these do not name one that waits as they do.
func TestHungRankOfAnEarlierCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hung, ranks = 2, 4
		links := commtest.Links(ranks)
		groups, errs := make([]*comm.Group, ranks), make([]error, ranks)
		var wg sync.WaitGroup
		for r, l := range links {
			limit := 50 * time.Millisecond // of the bubble's own time
			if r == 0 {                    // which waits for the hung one, and would name it first
				limit *= 2
			}
			wg.Go(func() { groups[r], errs[r] = comm.New(l, limit) })
		}
		wg.Wait()
		noErrors(t, errs)
		ended := make(chan struct{})
		var told sync.WaitGroup
		for r, g := range groups {
			if r == hung {
				n := 0
				links[r].Break = func(int) error {
					if n++; n == 3 { // rank 3 has what it needs of it, rank 0 has not
						<-ended
					}
					return nil
				}
				wg.Go(func() { g.Barrier("first") })
				continue
			}
			told.Add(1)
			wg.Go(func() {
				defer told.Done()
				if errs[r] = g.Barrier("first"); errs[r] == nil {
					errs[r] = g.Barrier("second")
				}
			})
		}
		told.Wait()
		close(ended)
		wg.Wait()
		for r, err := range errs {
			if r != hung &&
				(err == nil || !strings.Contains(err.Error(), "phase second: rank 2 on ")) {
				t.Errorf("rank %d says %v", r, err)
			}
		}
	})
}

// A rank that fails says why; the others end at once, in whatever call they are or come
// to, and long before the limit.
func TestAbort(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		for failing := range ranks {
			begun := time.Now()
			errs := commtest.Run(ranks, time.Minute, func(g *comm.Group) error {
				if g.Rank() == failing {
					return errors.New("model: out of memory")
				}
				if g.Rank() == failing^1 { // busy, and asked whether it should go on
					for !g.StopRequested() {
						time.Sleep(time.Millisecond)
					}
				}
				return g.Barrier("rollout")
			})
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("%v until the ranks have ended", took)
			}
			for r, err := range errs {
				if told := (*comm.Aborted)(nil); r != failing &&
					(!errors.As(err, &told) || told.Rank != failing ||
						!strings.HasSuffix(err.Error(), ": model: out of memory")) {
					t.Errorf("rank %d failed, rank %d says %v", failing, r, err)
				}
			}
		}
	}
}

// A rank that has heard why the run ends is gone before the failing rank's own note comes:
// the one that is left says why, and not that the first one is lost.
func TestAbortByAnother(t *testing.T) {
	const failing, told, last = 1, 0, 3
	links := commtest.Links(4)
	groups, errs := make([]*comm.Group, 4), make([]error, 4)
	var wg sync.WaitGroup
	for r, l := range links {
		wg.Go(func() { groups[r], errs[r] = comm.New(l, 10*time.Second) })
	}
	wg.Wait()
	noErrors(t, errs)
	links[last].Late = func(peer int) bool { return peer == failing }
	groups[failing].Exits(func(error) int { return 41 })
	groups[failing].Abort(errors.New("model: out of memory"))
	for _, r := range []int{told, last} {
		err := groups[r].Barrier("rollout")
		groups[r].Close()
		if e := (*comm.Aborted)(nil); !errors.As(err, &e) || e.Rank != failing || e.Status != 41 ||
			!strings.HasSuffix(err.Error(), ": model: out of memory") {
			t.Errorf("rank %d says %v", r, err)
		}
	}
}

func TestWish(t *testing.T) {
	noErrors(t, commtest.Run(4, time.Minute, func(g *comm.Group) error {
		if g.StopRequested() && g.Rank() == 2 {
			return errors.New("wished before anybody did")
		}
		if err := g.Barrier("before"); err != nil {
			return err
		}
		if g.Rank() == 2 {
			g.RequestStop()
		}
		for begun := time.Now(); !g.StopRequested(); time.Sleep(time.Millisecond) {
			if time.Since(begun) > time.Minute {
				return errors.New("does not hear of the wish")
			}
		}
		return g.Barrier("after")
	}))
}

// Ranks that are not in the same place find out, and do not take one thing for another.
func TestMisplaced(t *testing.T) {
	for _, c := range []struct {
		name, want string
		f          func(g *comm.Group) error
	}{
		{"phase", "is in another one: the ranks do not run the same program and settings",
			func(g *comm.Group) error {
				return g.Barrier([]string{"rollout", "update"}[g.Rank()])
			}},
		{"call", "is in another one", func(g *comm.Group) error {
			if g.Rank() == 0 {
				g.Sum("step", nil)
			}
			_, err := g.Gather("step", []byte("figures"))
			return err
		}},
		{"length", "a sum of 8 numbers here has another length", func(g *comm.Group) error {
			return g.Sum("step", make([]float32, 8+g.Rank()))
		}},
	} {
		found := false
		for _, err := range commtest.Run(2, 2*time.Second, c.f) {
			if err == nil || !errors.Is(err, comm.ErrRanks) {
				t.Errorf("%s: %v, want an error of ranks", c.name, err)
			}
			found = found || strings.Contains(fmt.Sprint(err), c.want)
		}
		if !found {
			t.Errorf("%s: nobody says %q", c.name, c.want)
		}
	}
}

// A link that breaks names the rank at its other end.
func TestBrokenLink(t *testing.T) {
	links := commtest.Links(2)
	done := make(chan error, 2)
	for _, l := range links {
		go func() {
			g, err := comm.New(l, 5*time.Second)
			if err == nil && g.Rank() == 0 {
				l.Break = func(int) error { return errors.New("connection reset by peer") }
			}
			if err == nil {
				err = g.Sum("update_critic", make([]float32, 4))
			}
			done <- err
		}()
	}
	for range links {
		if err := <-done; err == nil ||
			!strings.Contains(err.Error(), "phase update_critic: rank 1 on ") ||
			!strings.Contains(err.Error(), "cannot be reached: connection reset by peer") {
			t.Errorf("%v: want the rank and the reason", err)
		}
	}
}

func TestRanksAreAPowerOfTwo(t *testing.T) {
	_, err := comm.New(commtest.Links(3)[0], time.Second)
	if err == nil ||
		err.Error() != "ranks: there are 3: expected a power of two, such as 2, 4 or 8" {
		t.Error(err)
	}
}

// The two halves of a sum over parts of any size: each rank's part has the bits of Sum, then
// all ranks have all parts.
func TestSumParts(t *testing.T) {
	for _, ranks := range []int{1, 2, 4, 8} {
		for _, n := range []int{0, 5, 1001, 1<<20 + 77} {
			if n > 2000 && (ranks != 4 && !hostile.Long() || testing.Short()) {
				continue
			}
			cuts := make([]int, ranks+1) // none, or more and more
			for i := range cuts {
				cuts[i] = n * i * (i / 2) / (ranks * max(1, ranks/2))
			}
			cuts[ranks] = n
			noErrors(t, commtest.Run(ranks, time.Minute, func(g *comm.Group) error {
				want, x := make([]float32, n), make([]float32, n)
				for i := range x {
					x[i] = value(g.Rank(), i)
				}
				copy(want, x)
				if err := g.Sum("test", want); err != nil {
					return err
				}
				differ := func(lo, hi int) error {
					for i := lo; i < hi; i++ {
						if math.Float32bits(x[i]) != math.Float32bits(want[i]) {
							return fmt.Errorf("%d ranks, cuts %v: element %d is %g, want %g", ranks,
								cuts, i, x[i], want[i])
						}
					}
					return nil
				}
				if err := g.SumParts("test", x, cuts); err != nil {
					return err
				}
				mine := g.Part(g.Rank())
				if g.Part(mine) != g.Rank() {
					return fmt.Errorf("rank %d has part %d, which is rank %d's", g.Rank(), mine,
						g.Part(mine))
				}
				if err := differ(cuts[mine], cuts[mine+1]); err != nil {
					return err
				}
				for i := range x { // what the others have left is of no use
					if i < cuts[mine] || i >= cuts[mine+1] {
						x[i] = float32(math.NaN())
					}
				}
				if err := g.GatherParts("test", x, cuts); err != nil {
					return err
				}
				return differ(0, n)
			}))
		}
	}
}
