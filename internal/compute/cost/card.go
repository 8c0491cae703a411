package cost

import "fmt"

// Card is a GPU that need not be there. Peaks are those of its maker's data sheet;
// everything below them is an assumption, until a log of a GPU says better.
type Card struct {
	Name   string  `json:"name"`
	Device string  `json:"device"`
	Memory int64   `json:"memory_bytes"`
	FLOPS  float64 `json:"peak_flops"` // bfloat16 products with float32 sums, without sparsity; two to a multiply-add
	Bytes  float64 `json:"peak_bytes"` // of device memory, a second
	Cache  float64 `json:"cache"`      // bytes of the second-level cache
	SMs    int     `json:"sms"`

	Products float64 `json:"products"`  // share of FLOPS that a large product reaches
	Forward  float64 `json:"attention"` // share of FLOPS that the attention kernels reach, forward and in the gradient,
	Backward float64 `json:"attention_grad"`
	Memories float64 `json:"memory"` // share of Bytes that a kernel reaches which only moves memory

	Gap     float64 `json:"gap_s"`            // seconds from the end of a kernel's work to the beginning of the next one's
	Launch  float64 `json:"launch_s"`         // of the host, to queue one command
	Compare float64 `json:"compare_s"`        // of the host, to compare one command with a graph's record
	Capture float64 `json:"capture_s"`        // of the host, to capture one command and make it a graph's node
	Graph   float64 `json:"graph_s"`          // of the host, to launch a graph
	Back    float64 `json:"readback_s"`       // from the end of the work to the host going on with what it read
	Bus     float64 `json:"bus_bytes"`        // a second, between host and device
	Source  string  `json:"source,omitempty"` // of the peaks
}

// The host's part is the same for all: it is the program's and the driver's.
func host(c Card) Card {
	c.Gap, c.Launch, c.Compare, c.Capture, c.Graph, c.Back = 2e-6, 5e-6, 0.25e-6, 10e-6, 10e-6, 20e-6
	return c
}

// Cards are those that can be named.
var Cards = []Card{
	host(Card{Name: "a100", Device: "A100 SXM 80 GB", Memory: 80e9, FLOPS: 312e12, Bytes: 2.039e12, Cache: 40e6, SMs: 108,
		Products: 0.80, Forward: 0.50, Backward: 0.38, Memories: 0.88, Bus: 25e9,
		Source: "NVIDIA A100 Tensor Core GPU data sheet: 312 TFLOPS of BF16, 2,039 GB/s; architecture paper: 108 SMs, 40 MB of L2"}),
	host(Card{Name: "h100", Device: "H100 SXM 80 GB", Memory: 80e9, FLOPS: 989.4e12, Bytes: 3.35e12, Cache: 50e6, SMs: 132,
		Products: 0.67, Forward: 0.30, Backward: 0.21, Memories: 0.90, Bus: 50e9,
		Source: "NVIDIA H100 Tensor Core GPU data sheet: 1,979 TFLOPS of BF16 with sparsity, half of it without, 3.35 TB/s; architecture paper: 132 SMs, 50 MB of L2"}),
	host(Card{Name: "h200", Device: "H200 SXM 141 GB", Memory: 141e9, FLOPS: 989.4e12, Bytes: 4.8e12, Cache: 50e6, SMs: 132,
		Products: 0.67, Forward: 0.30, Backward: 0.21, Memories: 0.90, Bus: 50e9,
		Source: "NVIDIA H200 Tensor Core GPU data sheet: 1,979 TFLOPS of BF16 with sparsity, half of it without, 141 GB, 4.8 TB/s; the rest as H100"}),
}

// Names are the cards' names.
func Names() (names []string) {
	for _, c := range Cards {
		names = append(names, c.Name)
	}
	return names
}

// Named is the card of that name, if there is one.
func Named(name string) (Card, bool) {
	for _, c := range Cards {
		if c.Name == name {
			return c, true
		}
	}
	return Card{}, false
}

// Assumptions are the figures of c that are no data sheet's, in a sentence.
func (c Card) Assumptions() string {
	us := func(s float64) string { return fmt.Sprintf("%.3g µs", 1e6*s) }
	return fmt.Sprintf("large products reach %.0f %% of the peak, attention %.0f %% and its gradient %.0f %%, kernels that move memory %.0f %% of the bandwidth; "+
		"%s between two kernels; the host takes %s to queue a command, %s to compare it with a graph's and %s to launch the graph, and %s to read back",
		100*c.Products, 100*c.Forward, 100*c.Backward, 100*c.Memories, us(c.Gap), us(c.Launch), us(c.Compare), us(c.Graph), us(c.Back))
}
