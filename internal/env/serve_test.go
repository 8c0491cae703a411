package env

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
)

// wordy is an episode whose first reply takes long to write and whose turns do not.
type wordy struct{}

func (wordy) Reset(context.Context, uint64, Row) (Reply, error) {
	return Reply{Anchor: strings.Repeat("x", 1<<18)}, nil
}

func (wordy) Step(context.Context, Turn) (Reply, error) { return Reply{Done: true}, nil }
func (wordy) Close()                                    {}
func (wordy) Fork() Forker                              { return wordy{} }

// A branch that is asked for its turn at once replies to the fork before it replies to the turn.
func TestServeForksInOrder(t *testing.T) {
	t.Parallel()
	const branches = 64 // they are played beside each other: one alone may be in order by chance
	var in strings.Builder
	in.WriteString(`{"op":"hello","version":1}` + "\n")
	in.WriteString(`{"op":"reset","id":0,"seed":3,"row":{"content":[]}}` + "\n")
	for id := 1; id <= branches; id++ {
		fmt.Fprintf(&in, `{"op":"fork","id":%d,"from":0,"turns":0}`+"\n", id)
		fmt.Fprintf(&in, `{"op":"step","id":%d,"turn":"go","cut":false}`+"\n", id)
	}
	var out bytes.Buffer
	err := Serve(strings.NewReader(in.String()), &out, "wordy", branches+1,
		func() Episode { return wordy{} })
	if err != nil {
		t.Fatal(err)
	}
	for id := 1; id <= branches; id++ {
		var over []bool // by reply
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, fmt.Sprintf(`"id":%d`, id)+"}") ||
				strings.Contains(line, fmt.Sprintf(`"id":%d,`, id)) {
				over = append(over, strings.Contains(line, `"done":true`))
			}
		}
		if len(over) != 2 || over[0] || !over[1] {
			t.Errorf("branch %d: its replies are over: %v, want [false true]", id, over)
		}
	}
}
