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
	"gad/internal/compute"
)

// rankSizes lists the bytes of a rank's piece in a gather or a sum; a gradient comes in addition.
var rankSizes = []int64{4 << 10, 1 << 20, 64 << 20}

// mostRankCalls bounds the calls of one row.
const mostRankCalls = 1000

// RanksReport is the measurements of Ranks.
type RanksReport struct {
	Hosts []string `json:"hosts"` // by rank
	// connection of the ranks' devices, or why there is none
	Devices string     `json:"devices,omitempty"`
	Rows    []RanksRow `json:"rows"`
}

// RanksRow is one collective at one size.
type RanksRow struct {
	// barrier, gather or sum; device sum or device gather by NCCL, which counts no bytes
	Name    string  `json:"name"`
	Bytes   int64   `json:"bytes"`   // each rank's piece; of a device's gather, all pieces together
	Calls   int     `json:"calls"`   // number of timed calls, one after the other
	Seconds float64 `json:"seconds"` // time of a call on the slowest rank
	Sent    int64   `json:"sent"`    // bytes of a call by the rank that sends most
	// least bytes that a rank must send: (R-1)/R of all pieces, for a sum twice that of one piece
	Least int64 `json:"least"`
	// BusBandwidth is Least/Seconds, in bytes per second: nccl-tests' bus bandwidth of an
	// all-gather and an all-reduce.
	BusBandwidth float64 `json:"bus_bandwidth"`
}

// onDevice is the prefix of the names of rows that measure the devices.
const onDevice = "device "

// Ranks measures the collectives of the ranks of g: a barrier, gathers, and sums over the host's
// memory up to a gradient of so many elements; and sums and gathers of the same sizes from device
// to device, if be is Connected (compute.Connectable). Every rank calls it, and all get the
// report. It also checks the results of the collectives.
func Ranks(g *comm.Group, be compute.Backend, elements int64,
	budget time.Duration) (*RanksReport, error) {
	if g.Size() < 2 {
		return nil, errors.New("bench: one rank has nobody to talk to")
	}
	g.Enter("bench")
	r := &RanksReport{Hosts: g.Hosts()}
	sums := slices.Concat(rankSizes, []int64{4 * elements})
	slices.Sort(sums)
	rows := 1 + len(rankSizes) + len(sums)
	d, _ := be.(compute.Connectable)
	if d != nil {
		var err error
		if r.Devices, err = d.Connect(g); err != nil {
			return nil, err
		}
		if d.Connected() {
			rows += 2 * len(sums)
		}
	}
	each := budget / time.Duration(rows)
	row := func(name string, bytes, least int64, call func() error) error {
		done, err := timeCall(g, each, call)
		r.add(done, name, bytes, least)
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
		if err := row("sum", bytes, 2*(n-1)*bytes/n,
			func() error { return g.Sum("sum", part) }); err != nil {
			return nil, err
		}
	}
	if d == nil || !d.Connected() {
		return r, nil
	}
	t, err := be.Alloc("the ranks' sums", compute.Wide, len(x))
	if err != nil {
		return nil, err
	}
	defer be.Free(t)
	for _, bytes := range slices.Compact(sums) {
		if err := r.devices(g, be, d, t.Slice(0, int(bytes/4)), x[:bytes/4], each); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// add appends a row, with its name and the bytes of the call.
func (r *RanksReport) add(done RanksRow, name string, bytes, least int64) {
	done.Name, done.Bytes, done.Least = name, bytes, least
	if done.Seconds > 0 {
		done.BusBandwidth = float64(least) / done.Seconds
	}
	r.Rows = append(r.Rows, done)
}

// devices measures a sum of t by the ranks' devices, and a gather of as many bytes, of which each
// rank has an equal part. x is host memory of t's length.
func (r *RanksReport) devices(g *comm.Group, be compute.Backend, d compute.Connectable,
	t compute.Tensor, x []float32, budget time.Duration) error {
	n, bytes := g.Size(), 4*int64(t.Len())
	byRank := make([][]compute.Tensor, n)
	of := func(rank int) (lo, hi int) { return rank * len(x) / n, (rank + 1) * len(x) / n }
	for rank := range byRank {
		lo, hi := of(rank)
		byRank[rank] = []compute.Tensor{t.Slice(lo, hi)}
	}
	least := bytes * int64(n-1) / int64(n)
	for _, c := range []struct {
		name  string
		least int64
		fill  func(rank, i int) float32 // what a rank has before the call
		want  func(i int) float32       // and all have after it
		call  func(keepOn func() error) error
	}{
		{"sum", 2 * least, func(rank, _ int) float32 { return float32(rank + 1) },
			func(int) float32 { return float32(n * (n + 1) / 2) },
			func(keepOn func() error) error { return d.AllReduce(t, keepOn) }},
		{"gather", least, func(rank, i int) float32 {
			if lo, hi := of(rank); i < lo || i >= hi {
				return -1
			}
			return float32(i % 1021)
		}, func(i int) float32 { return float32(i % 1021) },
			func(keepOn func() error) error { return d.GatherWeights(byRank, false, keepOn) }},
	} {
		for i := range x {
			x[i] = c.fill(g.Rank(), i)
		}
		be.Upload(t, x)
		if err := be.Sync(); err != nil {
			return err
		}
		if err := g.Device(c.name, len(x), c.least, c.call); err != nil {
			return err
		}
		be.Download(x, t)
		if err := be.Sync(); err != nil {
			return err
		}
		for i, v := range x {
			if want := c.want(i); v != want {
				return fmt.Errorf("bench: element %d of a %s by the devices is %g on rank %d, not %g: a device or the link between them is broken", i, c.name, v, g.Rank(), want)
			}
		}
		be.Zero(t) // so that sums of sums stay finite
		done, err := timeDeviceCall(g, c.name, len(x), c.least, budget, c.call)
		if err != nil {
			return err
		}
		r.add(done, onDevice+c.name, bytes, c.least)
	}
	return nil
}

// timeDeviceCall times a call of the devices, as timeCall does. The ranks agree once for all calls,
// so the time is the devices' work and the wait for each call alone.
func timeDeviceCall(g *comm.Group, what string, elements int, least int64, budget time.Duration,
	call func(keepOn func() error) error) (row RanksRow, err error) {
	var took time.Duration
	times := func(n int) error {
		return g.Device(what, elements, least*int64(n), func(keepOn func() error) error {
			begun := time.Now()
			defer func() { took = time.Since(begun) }()
			for range n {
				if err := call(keepOn); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := times(1); err != nil {
		return row, err
	}
	if row.Calls, err = agreeCalls(g, min(budget, mostDeviceTime), took); err != nil {
		return row, err
	}
	if err := times(row.Calls); err != nil {
		return row, err
	}
	row.Seconds = took.Seconds() / float64(row.Calls)
	return row, row.slowest(g)
}

// mostDeviceTime bounds the calls of a row, which have one deadline together.
const mostDeviceTime = time.Minute

// agreeCalls returns the number of calls that fit into budget if one takes took, by rank 0's clock.
func agreeCalls(g *comm.Group, budget, took time.Duration) (int, error) {
	calls := min(max(float64(budget)/float64(took+1), 1), mostRankCalls)
	sent, err := g.Broadcast("number of calls", 0,
		binary.LittleEndian.AppendUint32(nil, uint32(calls)))
	if err != nil {
		return 0, err
	}
	return int(binary.LittleEndian.Uint32(sent)), nil
}

// slowest sets Seconds to the time of the slowest rank, and Sent to the bytes of the rank that
// sends most.
func (r *RanksRow) slowest(g *comm.Group) error {
	all, err := g.Gather("times",
		binary.LittleEndian.AppendUint64(
			binary.LittleEndian.AppendUint64(nil, math.Float64bits(r.Seconds)), uint64(r.Sent)))
	for _, b := range all {
		r.Seconds = max(r.Seconds, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		r.Sent = max(r.Sent, int64(binary.LittleEndian.Uint64(b[8:])))
	}
	return err
}

// timeCall calls as often as fits into budget by rank 0's clock, and returns the mean time and the
// bytes sent.
func timeCall(g *comm.Group, budget time.Duration, call func() error) (r RanksRow, err error) {
	begun := time.Now()
	if err := call(); err != nil { // a first call touches pages and buffers
		return r, err
	}
	if r.Calls, err = agreeCalls(g, budget, time.Since(begun)); err != nil {
		return r, err
	}
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
	r.Seconds = time.Since(begun).Seconds() / float64(r.Calls)
	after := g.Traffic()
	r.Sent = (after.SumBytes + after.GatherBytes - before.SumBytes - before.GatherBytes) /
		int64(r.Calls)
	return r, r.slowest(g)
}

// Print writes the report as a table.
func (r *RanksReport) Print(w io.Writer) error {
	t := &table{}
	t.line("%d ranks:", len(r.Hosts))
	for i, host := range r.Hosts {
		t.line("  rank %d on %s", i, host)
	}
	if r.Devices != "" {
		t.line("  %s", r.Devices)
	}
	t.line("\n%-13s %12s %6s %10s %13s %12s  %s", "call", "bytes", "calls", "time", "bus bandwidth",
		"sent by each", "of the least possible")
	for _, row := range r.Rows {
		if row.Least == 0 {
			t.line("%-13s %12s %6d %10s", row.Name, "", row.Calls, duration(row.Seconds))
			continue
		}
		line := fmt.Sprintf("%-13s %12s %6d %10s %13s", row.Name, amount(float64(row.Bytes))+"B",
			row.Calls, duration(row.Seconds), amount(row.BusBandwidth)+"B/s")
		if row.Sent > 0 { // counted
			line += fmt.Sprintf(" %12s  %.4f times", amount(float64(row.Sent))+"B",
				float64(row.Sent)/float64(row.Least))
		}
		t.line("%s", line)
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}
