package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Failed is an item of Each that has none of what it was asked for.
type Failed struct {
	Index, Tries int
	Err          error
}

// Failures are the items that failed, by index. The others are done.
type Failures []Failed

func (f Failures) Error() string {
	if len(f) == 1 {
		return fmt.Sprintf("%v (after %d tries)", f[0].Err, f[0].Tries)
	}
	return fmt.Sprintf("%d failed; the first: %v (after %d tries)", len(f), f[0].Err, f[0].Tries)
}

// Progress is an error of an item of Each that has got answers since it was asked: its tries begin
// anew.
type Progress struct{ Err error }

func (p Progress) Error() string { return p.Err.Error() }
func (p Progress) Unwrap() error { return p.Err }

// refusedInARow is how many requests an endpoint may refuse, with none answered, before
// Each takes the settings to be wrong and not the requests.
const refusedInARow = 20

// unreached is Options.Patience while the endpoint has never answered.
const unreached = 20 * time.Second

// maxUnread is how often an answer is asked for that cannot be read: it is paid for each
// time, and most likely the next one is alike.
const maxUnread = 3

func isUnread(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.unread
}

// nobody reports whether err says that there is no connection, to an endpoint that has
// never answered.
func (c *Client) nobody(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.nobody && !c.gate.proven.Load()
}

// Proven says that requests like those to come have been answered before: then Each asks
// for all, however many are refused.
func (c *Client) Proven() { c.gate.proven.Store(true) }

// Earlier says what such answers have measured: bytes of prompts and their tokens, answers
// and their tokens. The first estimates are by them.
func (c *Client) Earlier(promptBytes, promptTokens, answers, answerTokens int) {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	c.gate.promptBytes += float64(promptBytes)
	c.gate.promptTokens += float64(promptTokens)
	c.gate.choices += float64(answers)
	c.gate.answerTokens += float64(answerTokens)
}

// Each calls ask for 0 to n-1, as many at a time as the endpoint may be asked, in that
// order. An item whose error is Transient is asked again after all others, up to the
// limit of tries, so that no item holds up the rest; ask should not do again what it
// has done (see Journal), and says with Progress that it has done a part. Each stops at the first
// error that is Fatal, at an error that is not of this package, when the endpoint has not answered
// for a long time, and when the context ends; then it waits for the answers to requests that were
// sent, which are paid for. Otherwise it returns nil, or Failures.
func (c *Client) Each(ctx context.Context, n int,
	ask func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx = Draining(ctx)
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
				if stop := e.done(i, ask(ctx, i)); stop != nil {
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

// drain is the key of contexts whose end does not stop a request that was sent.
type drain struct{}

// Draining is ctx, but for its end: a call that was sent is waited for, and no other is made.
func Draining(ctx context.Context) context.Context {
	return context.WithValue(ctx, drain{}, true)
}

type each struct {
	c *Client
	n int

	mu     sync.Mutex
	fresh  int     // the first that has not been asked
	again  []again // in the order in which they failed
	asked  int     // in work
	tries  []int
	failed map[int]error
	moved  chan struct{} // closed and replaced when again or asked changes
}

type again struct {
	i  int
	at time.Time
}

// next is the item to ask, false when there is none and none will come.
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

// done notes how an item went; its error ends Each.
func (e *each) done(i int, err error) (stop error) {
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
		silent, tries := e.c.gate.silent()
		patience, pause := e.c.o.Patience, backoff(e.tries[i]-1)
		nobody := e.c.nobody(err)
		if !e.c.gate.proven.Load() && !Throttled(err) {
			patience = e.c.gate.unreached // a wrong URL, most likely
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
		e.again = append(e.again, again{i, time.Now().Add(pause)})
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
