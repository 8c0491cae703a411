package bench

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"gad/internal/comm"
	"gad/internal/comm/commtest"
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
				reports[r], err = Ranks(g, elements, 50*time.Millisecond)
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
	}{{"barrier", 0, 8 * 3}, {"gather", 4 << 10, 3*(4<<10) + 8*3}, {"gather", 64 << 10, 3*(64<<10) + 8*3},
		{"sum", 4 << 10, 6 << 10}, {"sum", 4 * elements, 6 * elements}, {"sum", 64 << 10, 96 << 10}}
	var counted int64 // at least: each row is called once before it is timed
	for i, row := range reports[0].Rows {
		if i >= len(want) || row.Name != want[i].name || row.Bytes != want[i].bytes || row.Sent != want[i].sent {
			t.Errorf("row %d is %+v", i, row)
		}
		if row.Calls < 1 || row.Calls > mostRankCalls || row.Seconds <= 0 || row.Name == "sum" && row.Sent != row.Least || row.Name == "gather" && row.Sent != row.Least+24 {
			t.Errorf("row %d is %+v", i, row)
		}
		counted += row.Sent * int64(row.Calls+1)
	}
	if len(reports[0].Rows) != len(want) {
		t.Errorf("%d rows, expected %d", len(reports[0].Rows), len(want))
	}
	if sent := traffic[0].SumBytes + traffic[0].GatherBytes; sent < counted || sent > links[0].Sent {
		t.Errorf("the rows make %d bytes, the group has counted %d, the link %d", counted, sent, links[0].Sent)
	}
	for r, report := range reports[1:] {
		for i, row := range report.Rows {
			if row != reports[0].Rows[i] {
				t.Errorf("row %d of rank %d is %+v, of rank 0 %+v", i, r+1, row, reports[0].Rows[i])
			}
		}
	}
	var out strings.Builder
	if err := reports[0].Print(&out); err != nil || !strings.Contains(out.String(), "sum           65.5 kB") || strings.Count(out.String(), " 1.0000 times\n") != 3 {
		t.Errorf("%v:\n%s", err, out.String())
	}

	var wrong []error
	for r, l := range commtest.Links(2) {
		wg.Go(func() {
			g, err := comm.New(&altered{l, r}, 20*time.Second)
			if err == nil {
				_, err = Ranks(g, elements, time.Millisecond)
			}
			g.Abort(errors.New("done"))
			if r == 0 {
				wrong = append(wrong, err)
			}
		})
	}
	wg.Wait()
	if wrong[0] == nil || !strings.Contains(wrong[0].Error(), "bench: element 0 of a sum is 4 on rank 0, not 3: the link between the ranks is broken") {
		t.Errorf("a broken link: %v", wrong[0])
	}
	if _, err := Ranks(nil, elements, time.Millisecond); err == nil {
		t.Error("one rank alone has been measured")
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
