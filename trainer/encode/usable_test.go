package encode

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/data"
	"gad/trainer/config"
	"gad/trainer/modeltest"
)

// Rows are encoded side by side, and chosen as if they came one after the other: in
// their order, as many as are wanted, and of several faults the first row's is told.
func TestUsable(t *testing.T) {
	const window = 1024 // as data.Encode works
	const n = 3*window + 17
	long := strings.Repeat("Add 1+1+1 ", 40)
	set := func(unanswered ...int) *data.Set {
		var b strings.Builder
		for i := range n {
			content, teacher := fmt.Sprintf("Add %d+1+1", i), "It is 3."
			if i%7 == 3 {
				content = long
			}
			if slices.Contains(unanswered, i) {
				content, teacher = "Add 1+1+1", ""
			}
			fmt.Fprintf(&b, "{\"content\":%q,\"teacher_response\":%q}\n", content, teacher)
		}
		path := filepath.Join(t.TempDir(), "rows.jsonl")
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := data.Open(path, data.DefaultColumns())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	e := Encoder{Tok: modeltest.Tokenizer(t), MaxPrompt: 64, MaxResponse: 32}
	filter := config.DataConfig{Overlong: "filter", TruncTeacher: "keep"}

	whole := set()
	for _, most := range []int{1, window - 1, window, window + 1, 2*window + 5, n} {
		var want []int32
		dropped := 0
		for i := 0; i < n && len(want) < most; i++ {
			if i%7 == 3 {
				dropped++
			} else {
				want = append(want, int32(i))
			}
		}
		began := time.Now()
		u, err := e.Usable(whole, filter, most, nil, data.Keep{})
		if err != nil || u.Dropped != dropped || !slices.Equal(u.Rows, want) || u.Cut != 0 {
			t.Errorf("%d wanted: %d rows, %d dropped, %d cut (%v); want %d, %d and 0", most,
				len(u.Rows), u.Dropped, u.Cut, err, len(want), dropped)
		}
		if most == n {
			t.Logf("%d rows in %v", n, time.Since(began))
		}
	}

	faulty := set(window+40, window+50, 2*window+1)
	if _, err := e.Usable(faulty, filter, n, nil, data.Keep{}); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("row %d:", window+40)) {
		t.Errorf("three rows without an answer: %v: want row %d named", err, window+40)
	}
	if u, err := e.Usable(faulty, filter, window/2, nil, data.Keep{}); err != nil ||
		len(u.Rows) != window/2 {
		t.Errorf("enough rows before the faulty ones: %d rows, %v", len(u.Rows), err)
	}
}
