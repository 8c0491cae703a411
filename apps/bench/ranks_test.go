package bench

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"gad/internal/comm"
	"gad/internal/comm/commtest"
	"gad/internal/compute"
	"gad/internal/compute/cpu"
)

// The ranks' report has every size with the bytes that the links have seen, in sums exactly
// the least possible, and a link that alters a message is found.
func TestRanks(t *testing.T) {
	defer func(sizes []int64) { rankSizes = sizes }(rankSizes)
	rankSizes = []int64{4 << 10, 64 << 10}
	const ranks, elements = 4, 3000
	links := commtest.Links(ranks)
	reports := make([]*RanksReport, ranks)
	traffic := make([]comm.Traffic, ranks)
	var wg sync.WaitGroup
	for r, l := range links {
		wg.Go(func() {
			g, err := comm.New(l, 20*time.Second)
			if err == nil {
				reports[r], err = Ranks(g, nil, elements, 50*time.Millisecond)
			}
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			traffic[r] = g.Traffic()
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	want := []struct {
		name        string
		bytes, sent int64
	}{{"barrier", 0, 8 * 3}, {"gather", 4 << 10, 3*(4<<10) + 8*3},
		{"gather", 64 << 10, 3*(64<<10) + 8*3},
		{"sum", 4 << 10, 6 << 10}, {"sum", 4 * elements, 6 * elements}, {"sum", 64 << 10, 96 << 10}}
	var counted int64 // at least: each row is called once before it is timed
	for i, row := range reports[0].Rows {
		if i >= len(want) || row.Name != want[i].name || row.Bytes != want[i].bytes ||
			row.Sent != want[i].sent {
			t.Errorf("row %d is %+v", i, row)
		}
		if row.Calls < 1 || row.Calls > mostRankCalls || row.Seconds <= 0 || row.Name == "sum" &&
			row.Sent != row.Least || row.Name == "gather" && row.Sent != row.Least+24 {
			t.Errorf("row %d is %+v", i, row)
		}
		counted += row.Sent * int64(row.Calls+1)
	}
	if len(reports[0].Rows) != len(want) {
		t.Errorf("%d rows, expected %d", len(reports[0].Rows), len(want))
	}
	if sent := traffic[0].SumBytes + traffic[0].GatherBytes; sent < counted ||
		sent > links[0].Sent {
		t.Errorf("the rows make %d bytes, the group has counted %d, the link %d", counted, sent,
			links[0].Sent)
	}
	for r, report := range reports[1:] {
		for i, row := range report.Rows {
			if row != reports[0].Rows[i] {
				t.Errorf("row %d of rank %d is %+v, of rank 0 %+v", i, r+1, row, reports[0].Rows[i])
			}
		}
	}
	var out strings.Builder
	if err := reports[0].Print(&out); err != nil ||
		!strings.Contains(out.String(), "sum                65.5 kB") ||
		strings.Count(out.String(), " 1.0000 times\n") != 3 {
		t.Errorf("%v:\n%s", err, out.String())
	}

	var wrong []error
	for r, l := range commtest.Links(2) {
		wg.Go(func() {
			g, err := comm.New(&altered{l, r}, 20*time.Second)
			if err == nil {
				_, err = Ranks(g, nil, elements, time.Millisecond)
			}
			g.Abort(errors.New("done"))
			if r == 0 {
				wrong = append(wrong, err)
			}
		})
	}
	wg.Wait()
	if wrong[0] == nil || !strings.Contains(wrong[0].Error(),
		"bench: element 0 of a sum is 4 on rank 0, not 3: the link between the ranks is broken") {
		t.Errorf("a broken link: %v", wrong[0])
	}
	if _, err := Ranks(nil, nil, elements, time.Millisecond); err == nil {
		t.Error("one rank alone has been measured")
	}
}

// connected is a device whose sums and gathers go over the host; wrong is which of them errs.
type connected struct {
	compute.Backend
	g     *comm.Group
	wrong string
	calls map[string]int
}

func (c *connected) Connect(compute.Ranks) (string, error) { return "over the host", nil }
func (c *connected) Connected() bool                       { return true }

func (c *connected) host(t compute.Tensor) []float32 {
	return c.Backend.(interface {
		Host(compute.Tensor) []float32
	}).Host(t)
}

func (c *connected) AllReduce(t compute.Tensor, keepOn func() error) error {
	c.calls["sum"]++
	x := c.host(t)
	err := c.g.Sum("sum of a test", x)
	if c.wrong == "sum" && err == nil {
		x[len(x)-1]++
	}
	return err
}

func (c *connected) GatherWeights(byRank [][]compute.Tensor, rest bool, keepOn func() error) error {
	c.calls["gather"]++
	for rank, list := range byRank {
		for _, t := range list {
			x := c.host(t)
			var mine []byte
			for _, v := range x {
				mine = binary.LittleEndian.AppendUint32(mine, math.Float32bits(v))
			}
			all, err := c.g.Gather("gather of a test", mine)
			if err != nil {
				return err
			}
			if c.wrong == "gather" && rank == 1 && c.g.Rank() != 1 {
				continue
			}
			for i := range x {
				x[i] = math.Float32frombits(binary.LittleEndian.Uint32(all[rank][4*i:]))
			}
		}
	}
	return nil
}

// Devices that are connected are measured beside the host, and what they sum and gather is
// checked.
func TestRanksOfDevices(t *testing.T) {
	defer func(sizes []int64) { rankSizes = sizes }(rankSizes)
	rankSizes = []int64{4 << 10}
	const ranks, elements = 4, 3001
	for wrong, want := range map[string]string{
		"":       "",
		"sum":    "bench: element 1023 of a sum by the devices is 11 on rank 0, not 10: a device or the link between them is broken",
		"gather": "bench: element 256 of a gather by the devices is -1 on rank 0, not 256: a device or the link between them is broken",
	} {
		reports := make([]*RanksReport, ranks)
		errs := commtest.Run(ranks, time.Minute, func(g *comm.Group) error {
			be, err := cpu.New(cpu.Options{Workers: 1})
			if err != nil {
				return err
			}
			defer be.Close()
			d := &connected{Backend: be, g: g, calls: map[string]int{}}
			if g.Rank() == 0 {
				d.wrong = wrong
			}
			r, err := Ranks(g, d, elements, 50*time.Millisecond)
			if err != nil {
				return err
			}
			for _, row := range r.Rows {
				if name, ok := strings.CutPrefix(row.Name, onDevice); ok {
					d.calls[name] -= row.Calls + 2
				}
			}
			if d.calls["sum"] != 0 || d.calls["gather"] != 0 {
				t.Errorf("rank %d: calls beside those of the report: %v", g.Rank(), d.calls)
			}
			reports[g.Rank()] = r
			return nil
		})
		if want != "" {
			if errs[0] == nil || errs[0].Error() != want {
				t.Errorf("a wrong %s: %v\nwant %s", wrong, errs[0], want)
			}
			continue
		}
		for r, err := range errs {
			if err != nil {
				t.Fatalf("rank %d: %v", r, err)
			}
		}
		rows := reports[0].Rows[4:]
		for i, w := range []RanksRow{{Name: "device sum", Bytes: 4096, Least: 6144},
			{Name: "device gather", Bytes: 4096, Least: 3072},
			{Name: "device sum", Bytes: 12004, Least: 18006},
			{Name: "device gather", Bytes: 12004, Least: 9003}} {
			row := rows[i]
			w.Calls, w.Seconds, w.BusBandwidth =
				row.Calls, row.Seconds, float64(w.Least)/row.Seconds
			if row != w || row.Calls < 1 || row.Seconds <= 0 {
				t.Errorf("row %d is %+v, want %+v", i, row, w)
			}
		}
		var out strings.Builder
		if err := reports[0].Print(&out); err != nil || len(rows) != 4 ||
			!strings.Contains(out.String(), "\n  over the host\n") ||
			strings.Count(out.String(), "\ndevice sum ") != 2 {
			t.Errorf("%v:\n%s", err, out.String())
		}
	}
}

// altered is a link that adds 1 to the first number of what rank 0 receives.
type altered struct {
	comm.Link
	rank int
}

func (l *altered) ExchangeFloats(peer int, out, in []float32, keepOn func() error) error {
	err := l.Link.ExchangeFloats(peer, out, in, keepOn)
	if l.rank == 0 && len(in) > 0 {
		in[0]++
	}
	return err
}
