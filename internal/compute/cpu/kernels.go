package cpu

import (
	"fmt"
	"os"
	"strings"
)

// kernels is one instruction-set variant: the inner loops that everything in
// this package is built of. The comment of each is the loop it computes.
//
// Two rules keep a row's bits apart from its neighbours'. An elementwise kernel
// computes an element the same way at every index. A reducing kernel's order
// depends on the slice's length alone.
type kernels struct {
	name string
	// mr and nr are the rows and columns of a register tile.
	mr, nr int
	// gemm[m-1], for i < m and j < nr, one chain over ascending k:
	//   c[i*ldc+j] (=, or += if acc is not 0: the chain starts from c) Σ_{x<k} a[i*rs+x*cs]*b[x*ldb+j]
	// k may be 0.
	gemm []gemmFunc
	// stream[m-1] is gemm[m-1] that also asks memory for what lies from b[next] on,
	// nr elements at x*step for each x. nil where a variant has no such kernels.
	stream []streamFunc
	// ahead says that products of many rows use stream too, to fetch B's next panel. It is worth it
	// on a Xeon with AVX-512, where a panel's bytes are needed in half the time of AVX2, which
	// loses 4 %.
	ahead bool
	// transpose, for r < rows and x < k: dst[x*ldd+r] = src[r*lds+x].
	transpose func(dst []float32, ldd int, src []float32, lds, rows, k int)
	// rows, for r < n and j < nr: dst[r*nr+j] = src[r*ld+j]. n is at least 1.
	rows func(dst, src []float32, ld, n int)

	add   func(y, x []float32)            // y[i] += x[i]
	scale func(y []float32, s float32)    // y[i] *= s
	axpy  func(y, x []float32, s float32) // y[i] += s*x[i]
	dot   func(x, y []float32) float32    // Σ x[i]*y[i]
	// sumSquares is Σ x[i]² in float64.
	sumSquares func(x []float32) float64
	// mulScale: y[i] = x[i]*s*w[i].
	mulScale func(y, x, w []float32, s float32)
	// dot3 is Σ a[i]*b[i]*c[i].
	dot3 func(a, b, c []float32) float32
	// normGrad: t = r*(dy[i]*w[i] - x[i]*c); dx[i] = t, or += t if acc is not 0.
	normGrad func(dx, dy, w, x []float32, r, c float32, acc int)
	// mulAcc: g[i] += a[i]*b[i]*s.
	mulAcc func(g, a, b []float32, s float32)
	// rotate: u[i], v[i] = u[i]*c[i] - v[i]*sign*s[i], v[i]*c[i] + u[i]*sign*s[i].
	rotate func(u, v, c, s []float32, sign float32)
	// scaleMax: x[i] *= s; it returns the largest, or -Inf of none.
	scaleMax func(x []float32, s float32) float32
	// expSum: x[i] = exp(x[i]-m); it returns their sum.
	expSum func(x []float32, m float32) float32
	// expStats is Σ exp(x[i]-m) and Σ exp(x[i]-m)*(x[i]-m).
	expStats func(x []float32, m float32) (sum, mean float32)
	// headGrad: z[i] = exp(z[i]-lse)*(alpha + beta*(z[i]-lse)).
	headGrad func(z []float32, lse, alpha, beta float32)
	// softGrad: s[i] = exp(s[i]*scale-lse); dp[i] = s[i]*(dp[i]-delta)*scale.
	softGrad func(s, dp []float32, scale, lse, delta float32)
	// swiglu: y[i] = gate[i]/(1+exp(-gate[i]))*up[i].
	swiglu func(y, gate, up []float32)
	// swigluGrad: swiglu and, with σ = 1/(1+exp(-gate[i])) and dy[i], which dgate[i] is before,
	//   dgate[i] = dy[i]*up[i]*σ*(1+gate[i]*(1-σ)); dup[i] = dy[i]*gate[i]*σ
	swigluGrad func(y, dgate, dup, gate, up []float32)
	// adamW: g = grad[i]*c.gradScale; m[i] = c.beta1*m[i]+c.rest1*g; v[i] =
	// c.beta2*v[i]+c.rest2*g*g;
	//   w[i] -= c.step*m[i]/(sqrt(v[i]*c.inv2)+c.eps) + c.decay*w[i]
	adamW func(w, grad, m, v []float32, c *adamConsts)
	// decode8 and encode8 are codes.decode and codes.encode of 16 codes for each of blocks. nil
	// where a variant has no such kernels.
	decode8 func(x []float32, codes []uint8, blocks int, value *[256]float32, scale float32)
	encode8 func(codes []uint8, x []float32, blocks int, m *codes, scale float32)
	// dequant8 and dequant4 make float32 of panels of nr lanes, quantised in blocks of 32 (see
	// quant): dst[(32*x+j)*nr+i] is code j of block x and lane i times scales[x*nr+i], a
	// binary16; dequant8's codes are signed bytes at (32*x+j)*nr+i, dequant4's are nibbles less
	// 8, the lower ones of the bytes at (16*x+j)*nr+i, j < 16, and then the upper ones. nil
	// in the portable variant: dequantGo.
	dequant8, dequant4 func(dst []float32, codes []uint8, scales []uint16, blocks int)
}

type gemmFunc func(a []float32, rs, cs int, b []float32, ldb int, c []float32, ldc, k, acc int)

type streamFunc func(a []float32, rs, cs int, b []float32, ldb int, c []float32, ldc, k, acc, next,
	step int)

// adamConsts are a step's constants; the assembly reads them by offset.
type adamConsts struct {
	gradScale, beta1, rest1, beta2, rest2, step, inv2, eps, decay float32
}

// variantEnv names the environment variable that forces a variant.
const variantEnv = "GAD_CPU"

// Variants returns the names of the variants that this machine can run, slowest first.
func Variants() []string {
	var names []string
	for _, k := range available() {
		names = append(names, k.name)
	}
	return names
}

// Variants16 returns the names that Options.Variant can have with BF16: Variants, whose float32
// kernels then multiply rounded numbers, and the native bfloat16 products.
func Variants16() []string {
	names := Variants()
	for _, n := range natives() {
		names = append(names, n.name)
	}
	return names
}

// pick returns the variant called name, and with BF16 its way of multiplying; the environment
// decides when name is empty, and the machine's fastest is taken when that is empty too.
func pick(name, precision string) (*kernels, *kernels16, error) {
	if precision != "" && precision != F32 && precision != BF16 {
		return nil, nil, fmt.Errorf("cpu: precision %q: want %s or %s", precision, F32, BF16)
	}
	if name == "" {
		name = os.Getenv(variantEnv)
	}
	all := available()
	k := all[len(all)-1]
	if name != "" {
		k = nil
	}
	for _, v := range all {
		if v.name == name {
			k = v
		}
	}
	for _, n := range natives() {
		if n.name == name {
			k = n.of
		}
	}
	switch {
	case k == nil:
		why := ""
		if name == "amx" {
			why = ": " + amxRefused().Error()
		}
		return nil, nil, fmt.Errorf("cpu: variant %q: not one that this machine can run%s: use one of %s (option Variant or environment variable %s)",
			name, why, strings.Join(Variants16(), ", "), variantEnv)
	case precision == BF16:
		return k, pick16(k, name), nil
	}
	return k, nil, nil
}
