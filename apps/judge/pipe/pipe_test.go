package pipe

import (
	"testing"
	"time"
)

// What is left of the time is for what comes behind the last answer.
func TestUntil(t *testing.T) {
	now := time.Unix(1000, 0)
	for text, want := range map[string]time.Time{"": {}, "soon": {}, "1060": time.Unix(1057, 0),
		"1010": time.Unix(1009, 0), "1600": time.Unix(1570, 0)} {
		if got := answerDeadline(text, now); !got.Equal(want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
