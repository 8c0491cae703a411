package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Failed is an item of Each without an answer.
type Failed struct {
	Index, Tries int
	Err          error
}

// Failures are the items that failed, by index. All others succeeded.
type Failures []Failed

// Error returns the number of failures and the first one's error.
func (f Failures) Error() string {
	if len(f) == 1 {
		return fmt.Sprintf("%v (after %d tries)", f[0].Err, f[0].Tries)
	}
	return fmt.Sprintf("%d failed; the first: %v (after %d tries)", len(f), f[0].Err, f[0].Tries)
}

// Progress wraps the error of an item of Each that has got some answers since its last try: its
// tries are counted from zero again.
type Progress struct{ Err error }

func (p Progress) Error() string { return p.Err.Error() }
func (p Progress) Unwrap() error { return p.Err }

// refusedInARow is the number of refusals, with no answer so far, from which Each takes the
// settings to be wrong rather than the requests.
const refusedInARow = 20

// connectPatience replaces Options.Patience while the endpoint has never answered.
const connectPatience = 20 * time.Second

// maxUnread bounds the tries for an answer that cannot be parsed: each is paid for, and the next
// one is most likely alike.
const maxUnread = 3

// isUnread reports whether err is for an answer that came and cannot be parsed.
func isUnread(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.unread
}

// unreachable reports whether err is a failed connection to an endpoint that has never answered.
func (c *Client) unreachable(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.nobody && !c.gate.proven.Load()
}

// SetProven records that earlier requests like these were answered: Each then asks for all items,
// however many are refused.
func (c *Client) SetProven() { c.gate.proven.Store(true) }

// Calibrate adds figures of earlier answers to the pace's estimates: bytes of prompts and their
// tokens, answers and their tokens.
func (c *Client) Calibrate(promptBytes, promptTokens, answers, answerTokens int) {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	c.gate.promptBytes += float64(promptBytes)
	c.gate.promptTokens += float64(promptTokens)
	c.gate.choices += float64(answers)
	c.gate.answerTokens += float64(answerTokens)
}

// Each calls ask for 0 to n-1 in that order, as many at a time as the endpoint's pace allows. An
// item whose error is Transient is retried after all others, up to the limit of tries, so that no
// item holds up the rest; ask should skip its finished work (see Journal), and reports with
// Progress that it has finished a part. Each stops at the first error that is Fatal, at an error of
// another package, when the endpoint has not answered for a long time, and when the context ends;
// it then waits for the answers to requests in flight, which are paid for. Otherwise it returns
// nil, or Failures.
func (c *Client) Each(ctx context.Context, n int,
	ask func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx = WithDrain(ctx)
	e := &each{c: c, n: n, tries: make([]int, n), failed: make(map[int]error),
		moved: make(chan struct{})}
	var wg sync.WaitGroup
	for range min(n, c.o.Concurrency) {
		wg.Go(func() {
			for {
				i, ok := e.next(ctx)
				if !ok {
					return
				}
				if stop := e.finish(i, ask(ctx, i)); stop != nil {
					cancel(stop)
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var failures Failures
	for i := range n {
		if err, ok := e.failed[i]; ok {
			failures = append(failures, Failed{i, e.tries[i], err})
		}
	}
	if failures != nil {
		return failures
	}
	return nil
}

// drain is the key of contexts whose end does not cancel a request in flight.
type drain struct{}

// WithDrain returns a context for Try and Call whose end forbids new requests but lets requests in
// flight finish.
func WithDrain(ctx context.Context) context.Context {
	return context.WithValue(ctx, drain{}, true)
}

// each is the queue of one call of Each.
type each struct {
	c *Client
	n int

	mu     sync.Mutex
	fresh  int         // the first item that was never asked
	again  []retryItem // in the order in which they failed
	asked  int         // items in work
	tries  []int
	failed map[int]error
	moved  chan struct{} // closed and replaced when again or asked changes
}

// retryItem is an item to try again, not before at.
type retryItem struct {
	i  int
	at time.Time
}

// next returns the next item to ask, after waiting for its time; false once no item is left.
func (e *each) next(ctx context.Context) (int, bool) {
	for {
		if ctx.Err() != nil {
			return 0, false
		}
		e.mu.Lock()
		wait := time.Hour
		switch {
		case e.fresh < e.n:
			i := e.fresh
			e.fresh++
			e.asked++
			e.mu.Unlock()
			return i, true
		case len(e.again) > 0:
			first := 0
			for k := range e.again {
				if e.again[k].at.Before(e.again[first].at) {
					first = k
				}
			}
			if wait = time.Until(e.again[first].at); wait <= 0 {
				i := e.again[first].i
				e.again = append(e.again[:first], e.again[first+1:]...)
				e.asked++
				e.mu.Unlock()
				return i, true
			}
		case e.asked == 0:
			e.mu.Unlock()
			return 0, false
		}
		moved := e.moved
		e.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-moved:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// finish records the result of an item. It returns the error that ends Each, nil to go on.
func (e *each) finish(i int, err error) (stop error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() {
		close(e.moved)
		e.moved = make(chan struct{})
	}()
	e.asked--
	if errors.As(err, new(Progress)) {
		e.tries[i] = 0
	}
	e.tries[i]++
	switch {
	case err == nil:
	case Transient(err):
		silent, tries := e.c.gate.outage()
		patience, pause := e.c.o.Patience, backoff(e.tries[i]-1)
		nobody := e.c.unreachable(err)
		if !e.c.gate.proven.Load() && !Throttled(err) {
			patience = e.c.gate.connectPatience // a wrong URL, most likely
		}
		if silent >= patience && (tries > e.c.o.Retries || nobody) {
			return fmt.Errorf(
				"%w: no answer for %v: check the base URL, or run the same command later", err,
				silent.Round(time.Second))
		}
		if e.tries[i] > e.c.o.Retries || e.tries[i] >= maxUnread && isUnread(err) {
			e.failed[i] = err
			return nil
		}
		if nobody {
			pause = min(pause, patience-silent) // then is the last try
		}
		e.again = append(e.again, retryItem{i, time.Now().Add(pause)})
	case Fatal(err) || !Refused(err):
		return err
	default:
		e.failed[i] = err
		if len(e.failed) >= refusedInARow && !e.c.gate.proven.Load() {
			return fmt.Errorf("%w: every request so far was refused", err)
		}
	}
	return nil
}
