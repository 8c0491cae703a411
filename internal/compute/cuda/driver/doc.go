// Package driver is one CUDA device: its context, compute stream, memory, kernels, graphs and
// matrix products, over the CUDA driver and cuBLASLt.
//
//	open.go      the device, found and opened: start here
//	memory.go    device memory, pinned memory, copies
//	launch.go    kernels
//	matmul.go    matrix products by cuBLASLt; tune.go: the fastest of its algorithms
//	graph.go     capture and replay of graphs
//	nccl.go      sums over ranks
//	emulated.go  controls of the emulated device, for tests
//
// It exists in builds with the tag nvidia only. It is the one package that imports
// gorgonia.org/cu, which carries discovery, memory, copies, streams, events, modules and launches;
// the rest (pinned memory, shared memory beyond 48 KiB, capture and replay of
// graphs, cuBLASLt) is called by name through purego, on cu's stream and pointers. Neither library
// is linked: both are opened by Open, so that a program built with the tag starts on any machine
// and Open says what the machine lacks.
//
// Everything of a Device except Open is called from one goroutine that has called Enter. Work is
// queued on the compute stream and done in its order; an error of the work itself shows at a later
// call, at the latest at Sync.
package driver
