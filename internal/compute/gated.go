package compute

// Activation is the function by which a gated linear unit gates. With s = 1/(1+exp(-x)):
type Activation int

const (
	// SiLU is x*s, with the derivative s*(1 + x*(1-s)): the unit SwiGLU (arXiv 2002.05202).
	SiLU Activation = iota
	// GELUTanh is the approximation of GELU by tanh (arXiv 1606.08415): the unit GeGLU.
	//   gelu(x) = x/2*(1 + tanh(c*(x + 0.044715*x³))) = x/(1 + exp(-2c*(x + 0.044715*x³)))
	//   c = sqrt(2/π)
	// With r = gelu(x)/x the derivative is r*(1 + x*(1-r)*2c*(1 + 3*0.044715*x²)).
	GELUTanh
	// Sigmoid is s, with the derivative s*(1-s): the unit GLU (arXiv 1612.08083).
	Sigmoid
)

// units has the names of the unit of each activation, and of its gradient.
var units = [...][2]string{SiLU: {"SwiGLU", "SwiGLUGrad"}, GELUTanh: {"GeGLU", "GeGLUGrad"},
	Sigmoid: {"GLU", "GLUGrad"}}

// Unit returns the name of the gated linear unit.
func (a Activation) Unit() string { return units[a][0] }

// Grad returns the name of the gradient of the unit.
func (a Activation) Grad() string { return units[a][1] }
