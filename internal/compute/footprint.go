package compute

// Footprint gives the sizes of a backend's memory, for a plan. It needs no device.
type Footprint interface {
	// Element returns the number of bytes of an element of class c in the backend's memory; of a
	// quantised class, of a block of c.Unit() elements (Bytes). It is 0 for the host's memory,
	// if the backend's is another.
	Element(c Class) int64
	// Block returns the number of bytes that an allocation of bytes takes, rounded up.
	Block(bytes int64) int64
	// DerivedBytes returns the size of Param.Derived of a weight matrix of class c; lookup:
	// only Embed reads the matrix. For a trained matrix c is Wide or Master.
	DerivedBytes(c Class, lookup bool, rows, cols int) int64
	// Scratch returns the largest temporary memory of an operation of w, in bytes of blocks.
	// The next operation uses it again.
	Scratch(w Work) int64
	// DecodeMultiple returns a number; decode steps whose rows are a multiple of it are
	// replayed by Repeat more often; 1: any number of rows.
	DecodeMultiple() int
	// Joined reports whether projections of one input are computed as one product, whose
	// outputs are columns of one matrix (Linears). Operations take columns only then.
	Joined() bool
	// DeltaState returns the number of elements, Wide, that GatedDelta keeps of a sequence; 0 says
	// that the backend has no gated delta rule of this shape.
	DeltaState(s DeltaShape) int
	// Overhead returns the number of bytes taken before anything is allocated.
	Overhead() int64
}

// Work is the sizes of the largest calls of a model's operations.
type Work struct {
	Tokens    int // of a pack
	Rows      int // of the head in one call
	Slots     int // rows that are sampled and decoded in one call
	Positions int // of the longest sequence that is decoded
	Hidden    int
	Taps      int // weights of a gated convolution; 0: none
	Widest    int // inputs or outputs of the largest matrix product but the head's
	Vocab     int // 1 for a scorer
	Heads     int // query heads
	KVHeads   int
	HeadDim   int
	Delta     DeltaShape // of a gated delta rule; zero: none
	Trainable bool
	// elements of the largest matrix of quantised weights that a product reads, but the head; 0:
	// none are
	Quantised int
}
