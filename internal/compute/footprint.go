package compute

// Footprint is what a plan of memory must know of a backend. It can be had
// without the device.
type Footprint interface {
	// Element is the number of bytes of an element of class c in the backend's memory: none
	// of one in the host's memory, if that is another.
	Element(c Class) int64
	// Block is what a block of so many bytes takes of the memory.
	Block(bytes int64) int64
	// Beside is the number of bytes kept beside each element of a weight matrix of
	// class c, to compute with; lookup says that only Embed reads it. Of a trained matrix
	// c is Wide or Master.
	Beside(c Class, lookup bool) int64
	// Scratch is the most memory, in bytes, that the operations of w use besides
	// their tensors, as blocks. It is used again by whatever comes next.
	Scratch(w Work) int64
	// DecodeMultiple is what the number of rows of a step of generation is best a multiple
	// of, because Repeat then replays the step more often: 1 where that is of no use.
	DecodeMultiple() int
	// Joined reports whether projections of one input are best computed side by side, as
	// columns of one matrix (Linears). Operations take columns only then.
	Joined() bool
	// Overhead is the number of bytes taken before anything is allocated.
	Overhead() int64
}

// Work is how large the largest calls of a model's operations are.
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
