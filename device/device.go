// Package device opens what models compute on: the processor, or an NVIDIA GPU in a
// build with -tags nvidia.
package device

import (
	"fmt"

	"gad/internal/compute/cpu"
	"gad/internal/compute/cuda"
	"gad/model"
)

// The devices and the precisions of Options.
const (
	CPU  = "cpu"
	CUDA = "cuda"

	Auto = "auto" // BF16 on CUDA, F32 on CPU
	BF16 = "bf16" // bfloat16 matrix products with float32 sums; on CUDA bfloat16 activations too
	F32  = "f32"  // float32
)

// ErrUnavailable is wrapped by Open's error where there is no GPU, no driver, or a build
// without it.
var ErrUnavailable = cuda.ErrUnavailable

// Options say which device to open. The zero value is the processor, all its cores,
// float32. Weights and moments in training are float32 in every precision.
type Options struct {
	Name      string // CPU or CUDA; "" is CPU
	Precision string // Auto, BF16 or F32; "" is Auto
	Threads   int    // workers on the CPU; 0 is one per core. Results do not depend on it
	Index     int    // number of the GPU, among the visible ones
}

// Open starts the device; the caller closes it when its models are closed. On the CPU it hands out
// as much memory as the system had free when it was opened; beyond that a model's error names the
// allocation that failed.
func Open(o Options) (model.Backend, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Name == CUDA {
		return cuda.Open(o.cuda())
	}
	be, err := cpu.New(o.cpu())
	if err != nil { // GAD_CPU names what this processor does not have
		return nil, err
	}
	return be, nil
}

// Validate reports a device or a precision that does not exist. It does not look at the machine:
// only Open fails where the device is missing.
func (o Options) Validate() error {
	switch o.Precision {
	case "", Auto, BF16, F32:
	default:
		return fmt.Errorf("device: precision %q: use auto, bf16 or f32", o.Precision)
	}
	switch o.Name {
	case "", CPU, CUDA:
	default:
		return fmt.Errorf("device: %q: use cpu or cuda", o.Name)
	}
	if o.Index < 0 {
		return fmt.Errorf("device: GPU %d: GPUs are numbered from 0", o.Index)
	}
	if o.Threads < 0 {
		return fmt.Errorf("device: %d threads: use 0 for one per core, or more", o.Threads)
	}
	return nil
}

// Footprint returns the memory model of the device, for plans. The device need not exist on this
// machine. The options must be valid.
func (o Options) Footprint() model.Footprint {
	if o.Name == CUDA {
		return o.cuda()
	}
	return cpu.Footprint{Precision: o.cpu().Precision}
}

// FreeMemory returns the bytes of main memory that the system reports as available to a new
// program; 0 where it does not report any.
func FreeMemory() int64 { return cpu.MemoryAvailable() }

// cuda returns the options as internal/compute/cuda reads them.
func (o Options) cuda() cuda.Options {
	precision := cuda.BF16
	if o.Precision == F32 {
		precision = cuda.F32
	}
	return cuda.Options{Device: o.Index, Precision: precision}
}

// cpu returns the options as internal/compute/cpu reads them, with the free memory as limit.
func (o Options) cpu() cpu.Options {
	precision := cpu.F32
	if o.Precision == BF16 {
		precision = cpu.BF16
	}
	return cpu.Options{Workers: o.Threads, Precision: precision, Limit: FreeMemory()}
}
