//go:build nvidia

package cuda

import "gad/internal/compute"

// SiLUConv panics: see DeltaState.
func (b *Backend) SiLUConv(_, _ compute.Tensor, _ *compute.Param, _ compute.Pack,
	_ compute.States) {
	panic(noDelta)
}

// SiLUConvGrad panics: see DeltaState.
func (b *Backend) SiLUConvGrad(_ compute.Tensor, _ *compute.Param, _, _ compute.Tensor,
	_ compute.Pack) {
	panic(noDelta)
}

// GatedDelta panics: see DeltaState.
func (b *Backend) GatedDelta(_, _, _, _ compute.Tensor, _, _ *compute.Param, _ compute.DeltaShape,
	_ compute.Pack, _ compute.States) {
	panic(noDelta)
}

// GatedDeltaGrad panics: see DeltaState.
func (b *Backend) GatedDeltaGrad(_, _, _, _, _, _, _, _ compute.Tensor, _, _ *compute.Param,
	_ compute.DeltaShape, _ compute.Pack) {
	panic(noDelta)
}

// noDelta is a programmer's error: a model asks DeltaState before it is opened.
const noDelta = "cuda: no kernels of the gated delta rule: compute on the CPU"
