package trainer

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"gad/internal/hostile"
	"gad/trainer/config"
)

// heap is a console that measures the heap when it is told of the steps from and to.
type heap struct {
	from, to, step int
	bytes          []uint64
	goroutines     []int
}

func (h *heap) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("  step ")) {
		if h.step++; h.step == h.from || h.step == h.to {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC() // what the first left in pools
			runtime.ReadMemStats(&m)
			h.bytes, h.goroutines =
				append(h.bytes, m.HeapAlloc), append(h.goroutines, runtime.NumGoroutine())
		}
	}
	return len(line), nil
}

// A run holds as much after many steps as after a few (doc/reliability.md, row 19): bytes that a
// collection leaves, at the same place of a step. GAD_STEPS is how many steps are taken.
func TestSteadyHeap(t *testing.T) {
	if !hostile.Long() {
		t.Skip("takes hundreds of steps: in a long run")
	}
	steps, err := strconv.Atoi(os.Getenv("GAD_STEPS"))
	if err != nil {
		steps = 500
	}
	be := ready(t)
	// After the first steps: by then the objectives of all shapes that come up are compiled.
	h := &heap{from: max(300, steps/10), to: steps}
	c := settings(config.Train, filepath.Join(t.TempDir(), "run"), "trainer.save_freq=0",
		"trainer.save_samples=0", "critic.replay.size=16", "trainer.total_steps="+strconv.Itoa(steps))
	if err := playOn(be, c, config.Train, h); err != nil {
		t.Fatal(err)
	}
	if len(h.bytes) != 2 {
		t.Fatalf("%d measurements of %d steps", len(h.bytes), h.step)
	}
	change := 100 * (float64(h.bytes[1])/float64(h.bytes[0]) - 1)
	t.Logf("row 19: steady heap: steps %d to %d: %d to %d bytes after a collection: %+.3f %%, %+.1f bytes a step; goroutines %d to %d",
		h.from, h.to, h.bytes[0], h.bytes[1], change,
		(float64(h.bytes[1])-float64(h.bytes[0]))/float64(h.to-h.from), h.goroutines[0],
		h.goroutines[1])
	if math.Abs(change) > 1 || h.goroutines[0] != h.goroutines[1] {
		t.Error("the run holds more and more, or less")
	}
}
