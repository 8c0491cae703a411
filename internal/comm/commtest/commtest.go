// Package commtest connects ranks that are goroutines of one process, for tests, and
// lets them fail.
package commtest

import (
	"errors"
	"sync"
	"time"

	"gad/internal/comm"
)

// Links returns n connected links, by rank.
func Links(n int) []*Link {
	net := &network{n: n, boxes: make([]box, n*n), gone: make([]bool, n)}
	links := make([]*Link, n)
	for r := range links {
		links[r] = &Link{net: net, rank: r, reported: make([]bool, n)}
	}
	return links
}

// network is the state that the links share.
type network struct {
	n     int
	mu    sync.Mutex
	boxes []box // [from*n+to]
	gone  []bool
}

// box holds the messages of one rank to another that were not received yet.
type box struct {
	bytes  [][]byte
	floats [][]float32
	notes  [][]byte
}

// Link is one rank's end. With zero fields it has no faults.
type Link struct {
	net      *network
	rank     int
	reported []bool // [n] Note has reported that the rank is gone

	// Break, if not nil, is called before each exchange, which fails with its error.
	Break func(peer int) error
	// Late, if not nil, reports whether the notes of a rank are held back for now.
	Late func(peer int) bool
	// Sent counts the bytes that were exchanged.
	Sent int64
}

// Rank returns the rank's number.
func (l *Link) Rank() int { return l.rank }

// Size returns the number of ranks.
func (l *Link) Size() int { return l.net.n }

// outbox returns the messages to peer, inbox those from it.
func (l *Link) outbox(peer int) *box { return &l.net.boxes[l.rank*l.net.n+peer] }
func (l *Link) inbox(peer int) *box  { return &l.net.boxes[peer*l.net.n+l.rank] }

// errLength is the error of two sides that expect different lengths.
var errLength = errors.New("commtest: the sides of an exchange expect different lengths")

// trade sends out to peer and waits for as many elements as in has. box selects the box's list of
// this type.
func trade[T byte | float32](l *Link, peer int, out, in []T, box func(*box) *[][]T,
	keepOn func() error) error {
	if l.Break != nil {
		if err := l.Break(peer); err != nil {
			return err
		}
	}
	if len(out) > 0 {
		l.net.mu.Lock()
		b := box(l.outbox(peer))
		*b = append(*b, append([]T(nil), out...))
		l.net.mu.Unlock()
	}
	for len(in) > 0 {
		l.net.mu.Lock()
		b := box(l.inbox(peer))
		if len(*b) > 0 {
			got := (*b)[0]
			*b = (*b)[1:]
			l.net.mu.Unlock()
			if len(got) != len(in) {
				return errLength
			}
			copy(in, got)
			return nil
		}
		l.net.mu.Unlock()
		if err := keepOn(); err != nil {
			return err
		}
		time.Sleep(20 * time.Microsecond)
	}
	return nil
}

// Exchange sends out to peer and fills in with the bytes from peer.
func (l *Link) Exchange(peer int, out, in []byte, keepOn func() error) error {
	l.Sent += int64(len(out))
	return trade(l, peer, out, in, func(b *box) *[][]byte { return &b.bytes }, keepOn)
}

// ExchangeFloats sends out to peer and fills in with the numbers from peer.
func (l *Link) ExchangeFloats(peer int, out, in []float32, keepOn func() error) error {
	l.Sent += 4 * int64(len(out))
	return trade(l, peer, out, in, func(b *box) *[][]float32 { return &b.floats }, keepOn)
}

// Post puts a note into peer's box.
func (l *Link) Post(peer int, note []byte) error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	b := l.outbox(peer)
	b.notes = append(b.notes, append([]byte(nil), note...))
	return nil
}

var errClosed = errors.New("commtest: it has closed the connection")

// Note returns the next note. After all notes it reports, once each, the ranks that are gone.
func (l *Link) Note() (from int, note []byte, err error) {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	for peer := range l.net.n {
		if b := l.inbox(peer); len(b.notes) > 0 && (l.Late == nil || !l.Late(peer)) {
			note, b.notes = b.notes[0], b.notes[1:]
			return peer, note, nil
		}
	}
	for peer, gone := range l.net.gone {
		if gone && !l.reported[peer] && (l.Late == nil || !l.Late(peer)) {
			l.reported[peer] = true
			return peer, nil, errClosed
		}
	}
	return 0, nil, nil
}

// Close marks this rank as gone, unless orderly.
func (l *Link) Close(orderly bool) error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	l.net.gone[l.rank] = !orderly
	return nil
}

// Run calls f once for each of n ranks, each in its own goroutine with its group, and returns their
// errors by rank. A rank that fails calls Abort.
func Run(n int, limit time.Duration, f func(g *comm.Group) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r, l := range Links(n) {
		wg.Go(func() {
			g, err := comm.New(l, limit)
			if err == nil {
				err = f(g)
			}
			if err != nil {
				g.Abort(err)
			}
			errs[r] = err
		})
	}
	wg.Wait()
	return errs
}
