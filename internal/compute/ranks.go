package compute

// Ranks are what a backend needs of the processes that compute together (package comm).
// All ranks make the same calls in the same order.
type Ranks interface {
	Rank() int
	Size() int
	// Gather gives every rank what each has, by rank.
	Gather(what string, mine []byte) ([][]byte, error)
	// Device has all ranks call f, which moves elements between their devices, once all
	// have come with the same number of elements. sent is how many bytes that makes each
	// rank send. While f waits it asks keepOn, often, and gives up with its error.
	Device(what string, elements int, sent int64, f func(keepOn func() error) error) error
}

// Connectable is a Backend whose memory can be summed and gathered over ranks without passing
// the host's.
type Connectable interface {
	// Connect connects the devices of the ranks. how says how they are connected, or why they
	// are not: then sums go over the host.
	Connect(r Ranks) (how string, err error)
	// Connected reports whether they are.
	Connected() bool
	// AllReduce leaves in t, which is Wide, the sum of all ranks' t. It belongs inside of
	// Ranks.Device.
	AllReduce(t Tensor, keepOn func() error) error
	// GatherWeights fills the tensors of each rank, which all ranks have alike, with what
	// that rank has in them: of Master ones what products read, or, if rest, only what that
	// lacks to all of their bits. It belongs inside of Ranks.Device.
	GatherWeights(byRank [][]Tensor, rest bool, keepOn func() error) error
}
