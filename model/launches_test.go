//go:build nvidia

package model

import (
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cuda"
	"gad/internal/compute/cuda/driver"
)

// What a GPU runs in a pass of training, a step of the optimizer and a step of generation,
// of a model of four layers: kernels, products by cuBLASLt, copies and fills. The numbers
// are those of doc/gpu/README.md, "Launches". One that falls is to be written down here and
// there; one that rises needs a reason.
func TestCUDALaunches(t *testing.T) {
	be := gpu(t, cuda.BF16)
	device := driver.Emulated()
	if device == nil {
		t.Skip("NOT TESTED: needs the emulated device, which counts")
	}
	c := tensorCore("Qwen2", 64)
	c.Layers = 4
	m := narrowed(t, be, c, Options{Trainable: true})
	defer m.Close()
	opt, err := NewOptimizer(m, adamw())
	must(t, err)
	seqs := seqsOf(c.Vocab, 40, 24)
	work := func(op func()) driver.Work {
		must(t, be.Sync())
		before := device.Work()
		op()
		must(t, be.Sync())
		return device.Work().Since(before)
	}
	pass := func() {
		must(t, m.LogProbGrad(seqs, 1,
			func(l, _ [][]float32) (_, _ [][]float32, err error) { return l, nil, nil }))
	}
	pass() // allocates
	generate := func(tokens int) func() {
		return func() {
			_, err := m.Generate([][]int32{{1, 2, 3}}, []uint64{0},
				SampleOptions{N: 8, MaxNew: tokens, Sampling: compute.Sampling{Temperature: 1}},
				nil)
			must(t, err)
		}
	}
	got := map[string]driver.Work{
		"training pass":  work(pass),
		"optimizer step": work(func() { _, _, err := opt.step(1e-3); must(t, err) }),
	}
	generate(12)()
	got["generated token"] = work(generate(12)).Since(work(generate(11)))
	for name, want := range map[string]driver.Work{
		"training pass": {Kernels: 95, Products: 52, Copies: 14, Fills: 1, Copied: 2320,
			Filled: 16384},
		"optimizer step":  {Kernels: 4, Copies: 4, Fills: 1, Copied: 5608, Filled: 2929152},
		"generated token": {Kernels: 25, Products: 17, Copies: 7, Copied: 4480},
	} {
		if got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, got[name], want)
		}
	}
}
