package compute

import "math"

// SoftCap computes z[i] = limit*tanh(scale*z[i]/limit), in place: the soft cap of scores and
// logits.
func SoftCap(z []float32, scale, limit float64) {
	for i, x := range z {
		z[i] = float32(limit * math.Tanh(scale*float64(x)/limit))
	}
}

// SoftCapGrad multiplies dz, the gradient by a capped value, by the derivative of the soft cap:
// dz[i] *= 1 - (z[i]/limit)², z the capped values.
func SoftCapGrad(dz, z []float32, limit float64) {
	for i, x := range z {
		t := float64(x) / limit
		dz[i] = float32(float64(dz[i]) * (1 - t*t))
	}
}
