package serve

import (
	"net/http"
	"runtime"
	"strings"
	"testing"
)

// A body is held to a number of texts, lists and objects before it is decoded, which takes many
// times its bytes: those that took 280 to 350 MB for 4 MB are refused without memory of their own.
func TestElements(t *testing.T) {
	for body, want := range map[string]int{"": 0, `{}`: 1, `{"a":[1,2,{"b":"c"}]}`: 6,
		`"a\"[{b"`: 1, `["\\","x"]`: 3, `"open`: 1, `"\`: 1, `[[[`: 3} {
		if got := elements([]byte(body)); got != want {
			t.Errorf("%s: %d, want %d", body, got, want)
		}
	}
	most := int64(1 << 20)
	for name, body := range map[string]string{
		"objects": `{"messages":[` + strings.Repeat(`{"":0},`, 600_000) + `{}]}`,
		"keys":    `{` + strings.Repeat(`"key":0,`, 380_000) + `"prompt":"x"}`,
		"lists":   `{"prompt":[` + strings.Repeat(`[1],`, 1_000_000) + `[1]]}`,
		"texts":   `{"prompt":[` + strings.Repeat(`"",`, 1_000_000) + `""]}`,
	} {
		raw := []byte(body)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f, err := parse(raw)
		runtime.ReadMemStats(&after)
		if f != nil || err == nil || err.status != http.StatusBadRequest ||
			!strings.HasSuffix(err.Message, "texts, lists and objects: more than 50000") {
			t.Errorf("%s: %v", name, err)
		}
		if used := int64(after.TotalAlloc - before.TotalAlloc); used > most {
			t.Errorf("%s: %d bytes to refuse %d", name, used, len(raw))
		}
	}
	// A long conversation, and a prompt of many ids, are no such bodies.
	turn := `{"role":"user","content":"a"},`
	for name, body := range map[string]string{
		"turns": `{"messages":[` + strings.Repeat(turn, 5_000) + turn[:len(turn)-1] + `]}`,
		"ids":   `{"prompt":[` + strings.Repeat("151643,", 500_000) + `1]}`,
	} {
		if _, err := parse([]byte(body)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
