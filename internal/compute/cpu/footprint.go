package cpu

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"gad/internal/compute"
)

// Footprint is the backend's memory for plans (compute.Footprint).
type Footprint struct{}

// Element is 4: float32 in either class.
func (Footprint) Element(compute.Class) int64 { return 4 }

// Beside is 4 for the packed transpose of a matrix that products are taken with.
func (Footprint) Beside(_ compute.Class, lookup bool) int64 {
	if lookup {
		return 0
	}
	return 4
}

// Scratch is the head's rows, gathered, and their gradients; what workers keep
// is small.
func (Footprint) Scratch(w compute.Work) int64 {
	return 4 * 2 * int64(w.Rows) * int64(w.Hidden)
}

// Overhead is 0.
func (Footprint) Overhead() int64 { return 0 }

// MemoryAvailable is what the system says a new program can have, in bytes; 0
// where it does not say.
func MemoryAvailable() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if kb, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kb), " kB"), 10, 64)
			return n << 10
		}
	}
	return 0
}
