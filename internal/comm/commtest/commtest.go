// Package commtest connects ranks that are goroutines of one process, for tests, and
// lets them fail.
package commtest

import (
	"errors"
	"sync"
	"time"

	"gad/internal/comm"
)

// Links are n connected ends.
func Links(n int) []*Link {
	net := &network{n: n, boxes: make([]box, n*n), gone: make([]bool, n)}
	links := make([]*Link, n)
	for r := range links {
		links[r] = &Link{net: net, rank: r, told: make([]bool, n)}
	}
	return links
}

type network struct {
	n     int
	mu    sync.Mutex
	boxes []box // [from*n+to]
	gone  []bool
}

// box is what one rank has sent to another and that has not been taken.
type box struct {
	bytes  [][]byte
	floats [][]float32
	notes  [][]byte
}

// Link is one rank's end. The zero faults are none.
type Link struct {
	net  *network
	rank int
	told []bool // [n] that a rank is gone

	// Break, if not nil, is asked before each exchange: its error is the link's.
	Break func(peer int) error
	// Late, if not nil, is asked whether what a rank has posted has not come yet.
	Late func(peer int) bool
	// Sent counts the bytes that were exchanged.
	Sent int64
}

// Rank is the rank's number.
func (l *Link) Rank() int { return l.rank }

// Size is the number of ranks.
func (l *Link) Size() int { return l.net.n }

func (l *Link) to(peer int) *box   { return &l.net.boxes[l.rank*l.net.n+peer] }
func (l *Link) from(peer int) *box { return &l.net.boxes[peer*l.net.n+l.rank] }

// errLength is the error of two sides that expect different lengths.
var errLength = errors.New("commtest: the sides of an exchange expect different lengths")

func trade[T byte | float32](l *Link, peer int, out, in []T, box func(*box) *[][]T,
	keepOn func() error) error {
	if l.Break != nil {
		if err := l.Break(peer); err != nil {
			return err
		}
	}
	if len(out) > 0 {
		l.net.mu.Lock()
		b := box(l.to(peer))
		*b = append(*b, append([]T(nil), out...))
		l.net.mu.Unlock()
	}
	for len(in) > 0 {
		l.net.mu.Lock()
		b := box(l.from(peer))
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

// Exchange sends out to peer and fills in.
func (l *Link) Exchange(peer int, out, in []byte, keepOn func() error) error {
	l.Sent += int64(len(out))
	return trade(l, peer, out, in, func(b *box) *[][]byte { return &b.bytes }, keepOn)
}

// ExchangeFloats sends out to peer and fills in.
func (l *Link) ExchangeFloats(peer int, out, in []float32, keepOn func() error) error {
	l.Sent += 4 * int64(len(out))
	return trade(l, peer, out, in, func(b *box) *[][]float32 { return &b.floats }, keepOn)
}

// Post leaves a note for peer.
func (l *Link) Post(peer int, note []byte) error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	b := l.to(peer)
	b.notes = append(b.notes, append([]byte(nil), note...))
	return nil
}

var errClosed = errors.New("commtest: it has closed the connection")

// Note takes the next note. After all that have come, it says which ranks are gone.
func (l *Link) Note() (from int, note []byte, err error) {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	for peer := range l.net.n {
		if b := l.from(peer); len(b.notes) > 0 && (l.Late == nil || !l.Late(peer)) {
			note, b.notes = b.notes[0], b.notes[1:]
			return peer, note, nil
		}
	}
	for peer, gone := range l.net.gone {
		if gone && !l.told[peer] && (l.Late == nil || !l.Late(peer)) {
			l.told[peer] = true
			return peer, nil, errClosed
		}
	}
	return 0, nil, nil
}

// Close tells the others that this rank is gone, unless all end together.
func (l *Link) Close(orderly bool) error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	l.net.gone[l.rank] = !orderly
	return nil
}

// Run calls f once for each of n ranks, each in a goroutine of its own with its group,
// and returns their errors. A rank that has failed tells the others.
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
