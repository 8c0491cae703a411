package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"gad/internal/comm"
)

// rankSizes are the bytes that each rank has to gather or to sum, beside a gradient.
var rankSizes = []int64{4 << 10, 1 << 20, 64 << 20}

// mostRankCalls bounds how often one row is measured.
const mostRankCalls = 1000

// RanksReport is what Ranks has measured.
type RanksReport struct {
	Hosts []string   `json:"hosts"` // by rank
	Rows  []RanksRow `json:"rows"`
}

// RanksRow is one collective at one size.
type RanksRow struct {
	Name    string  `json:"name"`    // barrier, gather or sum
	Bytes   int64   `json:"bytes"`   // that each rank has
	Calls   int     `json:"calls"`   // that were timed, one after the other
	Seconds float64 `json:"seconds"` // of one, on the slowest rank
	Sent    int64   `json:"sent"`    // bytes by the rank that sends most, in one
	Least   int64   `json:"least"`   // bytes that each must send at least: (R-1)/R of all pieces, for a sum twice that of one
}

// Ranks measures how fast the ranks of g talk: a barrier, gathers, and sums over the host's
// memory up to that of a gradient of so many elements. Every rank calls it, all get the
// report. What is computed is checked too.
func Ranks(g *comm.Group, elements int64, budget time.Duration) (*RanksReport, error) {
	if g.Size() < 2 {
		return nil, errors.New("bench: one rank has nobody to talk to")
	}
	g.Enter("bench")
	r := &RanksReport{Hosts: g.Hosts()}
	sums := slices.Concat(rankSizes, []int64{4 * elements})
	slices.Sort(sums)
	each := budget / time.Duration(1+len(rankSizes)+len(sums))
	row := func(name string, bytes, least int64, call func() error) error {
		done, err := timed(g, each, call)
		done.Name, done.Bytes, done.Least = name, bytes, least
		r.Rows = append(r.Rows, done)
		return err
	}
	if err := row("barrier", 0, 0, func() error { return g.Barrier("barrier") }); err != nil {
		return nil, err
	}
	n := int64(g.Size())
	for _, bytes := range rankSizes {
		mine := make([]byte, bytes)
		mine[bytes-1] = byte(g.Rank())
		if err := row("gather", bytes, (n-1)*bytes, func() error {
			all, err := g.Gather("gather", mine)
			for rank, piece := range all {
				if int64(len(piece)) != bytes || piece[bytes-1] != byte(rank) {
					return fmt.Errorf("bench: what rank %d has is not what rank %d has gathered: the link between them is broken", rank, g.Rank())
				}
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	x := make([]float32, sums[len(sums)-1]/4)
	for _, bytes := range slices.Compact(sums) {
		part := x[:bytes/4]
		for i := range part {
			part[i] = float32(g.Rank() + 1)
		}
		if err := g.Sum("sum", part); err != nil {
			return nil, err
		}
		for i, v := range part {
			if want := float32(n * (n + 1) / 2); v != want {
				return nil, fmt.Errorf("bench: element %d of a sum is %g on rank %d, not %g: the link between the ranks is broken", i, v, g.Rank(), want)
			}
		}
		clear(part) // so that sums of sums stay finite
		if err := row("sum", bytes, 2*(n-1)*bytes/n, func() error { return g.Sum("sum", part) }); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// timed makes a call as often as fits into budget by rank 0's clock.
func timed(g *comm.Group, budget time.Duration, call func() error) (r RanksRow, err error) {
	begun := time.Now()
	if err := call(); err != nil { // pages and buffers are touched
		return r, err
	}
	calls := min(max(float64(budget)/float64(time.Since(begun)+1), 1), mostRankCalls)
	told, err := g.From("number of calls", 0, binary.LittleEndian.AppendUint32(nil, uint32(calls)))
	if err != nil {
		return r, err
	}
	r.Calls = int(binary.LittleEndian.Uint32(told))
	if err := g.Barrier("beginning"); err != nil {
		return r, err
	}
	before := g.Traffic()
	begun = time.Now()
	for range r.Calls {
		if err := call(); err != nil {
			return r, err
		}
	}
	seconds := time.Since(begun).Seconds() / float64(r.Calls)
	after := g.Traffic()
	sent := (after.SumBytes + after.GatherBytes - before.SumBytes - before.GatherBytes) / int64(r.Calls)
	all, err := g.Gather("times", binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, math.Float64bits(seconds)), uint64(sent)))
	for _, b := range all {
		r.Seconds = max(r.Seconds, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		r.Sent = max(r.Sent, int64(binary.LittleEndian.Uint64(b[8:])))
	}
	return r, err
}

// Print writes the report as a table.
func (r *RanksReport) Print(w io.Writer) error {
	t := &table{}
	t.line("%d ranks:", len(r.Hosts))
	for i, host := range r.Hosts {
		t.line("  rank %d on %s", i, host)
	}
	t.line("\n%-8s %12s %6s %10s %12s %12s  %s", "call", "each has", "calls", "time", "sent by each", "rate", "of the least possible")
	for _, row := range r.Rows {
		if row.Least == 0 {
			t.line("%-8s %12s %6d %10s", row.Name, "", row.Calls, duration(row.Seconds))
			continue
		}
		t.line("%-8s %12s %6d %10s %12s %12s  %.4f times", row.Name, amount(float64(row.Bytes))+"B", row.Calls, duration(row.Seconds),
			amount(float64(row.Sent))+"B", amount(float64(row.Sent)/row.Seconds)+"B/s", float64(row.Sent)/float64(row.Least))
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}
