package compute

import "fmt"

// Counts are calls.
type Counts struct {
	// matrix products that the vendor's library should compute: all their rows begin where it wants
	// them
	Products int
	// of these, products that it has no algorithm for: the backend's own kernel, many times slower,
	// took them
	Declined int
	First    string // the first that was declined, or ""
	Repeats  int    // calls of Repeat
	Replayed int    // of these, calls that ran as the graph of an earlier call
}

// CountsOf is what be has done, or zero where it does not count.
func CountsOf(be Backend) (c Counts, counted bool) {
	if b, ok := be.(Counted); ok {
		return b.Counts(), true
	}
	return c, false
}

// Since is what was done after an earlier moment.
func (c Counts) Since(earlier Counts) Counts {
	return Counts{c.Products - earlier.Products, c.Declined - earlier.Declined, c.First, c.Repeats - earlier.Repeats, c.Replayed - earlier.Replayed}
}

// Plus is what two backends have done together.
func (c Counts) Plus(d Counts) Counts {
	if c.First == "" {
		c.First = d.First
	}
	return Counts{c.Products + d.Products, c.Declined + d.Declined, c.First, c.Repeats + d.Repeats, c.Replayed + d.Replayed}
}

// Warning is what the user is to be told, or "". scripts/gpu/log.sh looks for its
// first two words.
func (c Counts) Warning() string {
	if c.Declined == 0 {
		return ""
	}
	return fmt.Sprintf("cuBLASLt declined %d of %d matrix products, the first %s: gad's own kernel computed them, many times slower: another version of cuBLAS may take them; please report it", c.Declined, c.Products, c.First)
}
