package compute

// Footprint is the sizes of a backend's memory, for a plan. It needs no device.
type Footprint interface {
	// Element is the number of bytes of an element of class c in the backend's memory; of a
	// quantised class, of a block of c.Unit() elements (Bytes). It is 0 for the host's memory,
	// if the backend's is another, and for Q8 and Q4 on a backend without these classes.
	Element(c Class) int64
	// Block is the number of bytes that an allocation of so many bytes takes.
	Block(bytes int64) int64
	// Beside is the number of bytes of Param.Derived of a weight matrix of class c; lookup:
	// only Embed reads the matrix. For a trained matrix c is Wide or Master.
	Beside(c Class, lookup bool, rows, cols int) int64
	// Scratch is the most memory, in bytes of blocks, that one of the operations of w uses
	// besides its tensors. The next operation uses it again.
	Scratch(w Work) int64
	// DecodeMultiple is the number of which the rows of a decode step should be a multiple, so
	// that Repeat replays the step more often; 1: any number.
	DecodeMultiple() int
	// Joined reports whether projections of one input are computed as one product, whose
	// outputs are columns of one matrix (Linears). Operations take columns only then.
	Joined() bool
	// Overhead is the number of bytes taken before anything is allocated.
	Overhead() int64
}

// Work is the sizes of the largest calls of a model's operations.
type Work struct {
	Tokens    int // of a pack
	Rows      int // of the head in one call
	Slots     int // rows that are sampled and decoded in one call
	Positions int // of the longest sequence that is decoded
	Hidden    int
	Widest    int // inputs or outputs of the largest matrix product but the head's
	Vocab     int // 1 for a scorer
	Heads     int // query heads
	KVHeads   int
	HeadDim   int
	Trainable bool
}
