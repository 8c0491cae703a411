package compute

import "fmt"

// Counts are counters of calls.
type Counts struct {
	// matrix products with the alignment of rows that the vendor's library needs
	Products int
	// of these, products for which the library has no algorithm: the backend's own kernel, many
	// times slower, computed them
	Declined int
	First    string // the first product declined, or ""
	Repeats  int    // calls of Repeat
	Replayed int    // of these, calls that ran as the graph of an earlier call
}

// CountsOf returns the counters of be; counted is false if be is not Counted.
func CountsOf(be Backend) (c Counts, counted bool) {
	if b, ok := be.(Counted); ok {
		return b.Counts(), true
	}
	return c, false
}

// Since returns the difference from earlier counters of the same backend.
func (c Counts) Since(earlier Counts) Counts {
	return Counts{c.Products - earlier.Products, c.Declined - earlier.Declined, c.First,
		c.Repeats - earlier.Repeats, c.Replayed - earlier.Replayed}
}

// Plus returns the sum of the counters of two backends.
func (c Counts) Plus(d Counts) Counts {
	if c.First == "" {
		c.First = d.First
	}
	return Counts{c.Products + d.Products, c.Declined + d.Declined, c.First, c.Repeats + d.Repeats,
		c.Replayed + d.Replayed}
}

// Warning returns a message for the user about slow products, or "". scripts/gpu/log.sh searches
// for its first two words.
func (c Counts) Warning() string {
	if c.Declined == 0 {
		return ""
	}
	return fmt.Sprintf("cuBLASLt declined %d of %d matrix products, the first %s: gad's own kernel computed them, many times slower: another version of cuBLAS may take them; please report it", c.Declined, c.Products, c.First)
}
