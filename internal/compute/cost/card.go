package cost

import (
	"fmt"
	"slices"
	"strings"
)

// Card is a GPU that this machine may lack. Peaks are those of its maker's data sheet; the fields
// below them are an H200's as measured (doc/gpu), and assumptions for the others.
type Card struct {
	Name   string `json:"name"`
	Device string `json:"device"`
	Memory int64  `json:"memory_bytes"`
	// bfloat16 products with float32 sums, without sparsity; two to a multiply-add
	FLOPS float64 `json:"peak_flops"`
	Bytes float64 `json:"peak_bytes"` // of device memory, a second
	Cache float64 `json:"cache"`      // bytes of the second-level cache
	SMs   int     `json:"sms"`

	Products float64 `json:"products"` // share of FLOPS that a large product reaches
	// share of FLOPS that the attention kernels reach, forward and in the gradient,
	Forward  float64 `json:"attention"`
	Backward float64 `json:"attention_grad"`
	Memories float64 `json:"memory"` // share of Bytes that a kernel reaches which only moves memory

	Product float64 `json:"product_s"` // the least seconds of a product
	// seconds from the end of a kernel's work to the beginning of the next one's
	Gap    float64 `json:"gap_s"`
	Launch float64 `json:"launch_s"` // of the host, to queue one command
	// of the host, to compare one command with a graph's record
	Compare float64 `json:"compare_s"`
	// of the host, to capture one command and make it a graph's node
	Capture float64 `json:"capture_s"`
	Graph   float64 `json:"graph_s"` // of the host, to launch a graph
	// from the end of the work to the host going on with what it read
	Back   float64 `json:"readback_s"`
	Bus    float64 `json:"bus_bytes"`        // a second, between host and device
	Source string  `json:"source,omitempty"` // of the peaks
}

// host returns c with the times of host and driver, which are assumed the same for all cards.
func host(c Card) Card {
	c.Gap, c.Launch, c.Compare, c.Capture, c.Graph, c.Back =
		2e-6, 5e-6, 0.25e-6, 10e-6, 10e-6, 20e-6
	c.Product = 6e-6
	return c
}

// hopper returns c with the shares of the peaks that an H200 reached.
func hopper(c Card) Card {
	c.Products, c.Forward, c.Backward, c.Memories, c.SMs = 0.71, 0.32, 0.32, 0.81, 132
	return host(c)
}

// ampere returns c with the shares of the peaks that are assumed of an A100, for cards with the
// same instructions for products (Ada and consumers' Blackwell too).
func ampere(c Card) Card {
	c.Products, c.Forward, c.Backward, c.Memories = 0.80, 0.50, 0.38, 0.88
	return host(c)
}

// Cards are the known cards, data centres' first. A GeForce multiplies bfloat16 with float32 sums
// at half the rate with which it multiplies float16 with float16 sums. Its maker advertises the
// latter with sparsity: a quarter of that figure counts here.
var Cards = []Card{
	host(Card{Name: "a100", Device: "A100 SXM 80 GB", Memory: 80e9, FLOPS: 312e12, Bytes: 2.039e12,
		Cache: 40e6, SMs: 108,
		Products: 0.80, Forward: 0.50, Backward: 0.38, Memories: 0.88, Bus: 25e9,
		Source: "NVIDIA A100 Tensor Core GPU data sheet: 312 TFLOPS of BF16, 2,039 GB/s; architecture paper: 108 SMs, 40 MB of L2"}),
	hopper(Card{Name: "h100", Device: "H100 SXM 80 GB", Memory: 80e9, FLOPS: 989.4e12, Bytes: 3.35e12,
		Cache: 50e6, Bus: 50e9,
		Source: "NVIDIA H100 Tensor Core GPU data sheet: 1,979 TFLOPS of BF16 with sparsity, half of it without, 3.35 TB/s; architecture paper: 132 SMs, 50 MB of L2"}),
	hopper(Card{Name: "h200", Device: "H200 SXM 141 GB", Memory: 141e9, FLOPS: 989.4e12,
		Bytes: 4.8e12, Cache: 50e6, Bus: 50e9,
		Source: "NVIDIA H200 Tensor Core GPU data sheet: 1,979 TFLOPS of BF16 with sparsity, half of it without, 141 GB, 4.8 TB/s; the rest as H100"}),
	ampere(Card{Name: "a6000", Device: "RTX A6000 48 GB", Memory: 48e9, FLOPS: 154.8e12,
		Bytes: 768e9, Cache: 6e6, SMs: 84, Bus: 25e9,
		Source: "NVIDIA RTX A6000 data sheet: 309.7 TFLOPS of BF16 with sparsity, half of it without, 768 GB/s; GA102 architecture paper: 84 SMs, 6 MB of L2"}),
	ampere(Card{Name: "l4", Device: "L4 24 GB", Memory: 24e9, FLOPS: 121e12, Bytes: 300e9,
		Cache: 48e6, SMs: 58, Bus: 25e9,
		Source: "NVIDIA L4 data sheet: 242 TFLOPS of BF16 with sparsity, half of it without, 24 GB, 300 GB/s; 7,424 cores, 128 to an SM, 48 MB of L2"}),
	ampere(Card{Name: "5090", Device: "GeForce RTX 5090 32 GB", Memory: 32e9, FLOPS: 209.5e12,
		Bytes: 1.792e12, Cache: 96e6, SMs: 170, Bus: 50e9,
		Source: "NVIDIA RTX Blackwell architecture paper: 209.5 TFLOPS of BF16 with FP32 sums, 1,792 GB/s, 170 SMs, 96 MB of L2"}),
	ampere(Card{Name: "4090", Device: "GeForce RTX 4090 24 GB", Memory: 24e9, FLOPS: 165.2e12,
		Bytes: 1.008e12, Cache: 72e6, SMs: 128, Bus: 25e9,
		Source: "NVIDIA Ada architecture paper: 165.2 TFLOPS of BF16 with FP32 sums, 1,008 GB/s, 128 SMs, 72 MB of L2"}),
	ampere(Card{Name: "3090", Device: "GeForce RTX 3090 24 GB", Memory: 24e9, FLOPS: 71e12,
		Bytes: 936e9, Cache: 6e6, SMs: 82, Bus: 25e9,
		Source: "NVIDIA GA102 architecture paper: 71 TFLOPS of BF16 with FP32 sums, 936 GB/s, 82 SMs, 6 MB of L2"}),
	ampere(Card{Name: "4060ti-16gb", Device: "GeForce RTX 4060 Ti 16 GB", Memory: 16e9,
		FLOPS: 44.1e12, Bytes: 288e9, Cache: 32e6, SMs: 34, Bus: 12e9,
		Source: "NVIDIA's page of the card: 4,352 cores, 128 to an SM, boost 2.535 GHz, 288 GB/s, 8 lanes; 34 SMs x 4 tensor cores x 64 multiply-adds of BF16 with FP32 sums; 32 MB of L2"}),
	ampere(Card{Name: "3060-12gb", Device: "GeForce RTX 3060 12 GB", Memory: 12e9, FLOPS: 25.5e12,
		Bytes: 360e9, Cache: 3e6, SMs: 28, Bus: 25e9,
		Source: "NVIDIA's page of the card: 3,584 cores, 128 to an SM, boost 1.777 GHz, 360 GB/s; 28 SMs x 4 tensor cores x 64 multiply-adds of BF16 with FP32 sums; 3 MB of L2"}),
}

// tooOld maps GPUs before compute capability 8.0, which have no bfloat16, to their capability.
var tooOld = map[string]string{"t4": "7.5", "2080ti": "7.5", "2080": "7.5", "2070": "7.5",
	"2060": "7.5", "1660ti": "7.5", "rtx6000": "7.5", "rtx8000": "7.5",
	"v100": "7.0", "titanv": "7.0", "p100": "6.0", "p40": "6.1", "p4": "6.1", "1080ti": "6.1",
	"1080": "6.1", "1070": "6.1", "1060": "6.1", "k80": "3.7"}

// Names returns the cards' names.
func Names() (names []string) {
	for _, c := range Cards {
		names = append(names, c.Name)
	}
	return names
}

// FindCard returns the card of that name, and whether there is one.
func FindCard(name string) (Card, bool) {
	at := slices.IndexFunc(Cards, func(c Card) bool { return normalName(c.Name) == normalName(name) })
	if at < 0 {
		return Card{}, false
	}
	return Cards[at], true
}

// NoCardReason returns the error text for a name that is no card's, with the names of cards.
func NoCardReason(name string) string {
	if capability, ok := tooOld[normalName(name)]; ok {
		return fmt.Sprintf(
			"has compute capability %s, and gad needs 8.0 or later (doc/cuda.md): use %s",
			capability, strings.Join(Names(), ", "))
	}
	return fmt.Sprintf("gad has no figures of this GPU: use %s", strings.Join(Names(), ", "))
}

// normalName strips makers, spaces and dashes, which users may write: RTX 4090, rtx-3060 12GB.
func normalName(name string) string {
	name = strings.NewReplacer("nvidia", "", "geforce", "", "tesla", "", " ", "", "-", "", "_",
		"").Replace(strings.ToLower(name))
	if short := strings.TrimPrefix(name, "rtx"); short != "6000" && short != "8000" { // Quadros
		name = short
	}
	return strings.TrimPrefix(name, "gtx")
}

// Assumptions returns a sentence with the figures of c that are not from a data sheet.
func (c Card) Assumptions() string {
	us := func(s float64) string { return fmt.Sprintf("%.3g µs", 1e6*s) }
	return fmt.Sprintf("large products reach %.0f %% of the peak, attention %.0f %% and its gradient %.0f %%, kernels that move memory %.0f %% of the bandwidth; "+
		"a product takes %s at the least; %s between two kernels; the host takes %s to queue a command, %s to compare it with a graph's and %s to launch the graph, and %s to read back",
		100*c.Products, 100*c.Forward, 100*c.Backward, 100*c.Memories, us(c.Product), us(c.Gap),
		us(c.Launch), us(c.Compare), us(c.Graph), us(c.Back))
}
