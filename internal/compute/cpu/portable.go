package cpu

import "math"

// The portable variant: plain Go, and the comments of kernels as code.
//
// Products are converted to float32 before they are added, because Go fuses
// a multiplication and an addition on some processors and not on others.

var portable = &kernels{
	name: "portable", mr: 2, nr: 4,
	gemm:      []gemmFunc{gemm1x4, gemm2x4},
	transpose: transposeGo, rows: rowsGo(4),
	add: addGo, scale: scaleGo, axpy: axpyGo, dot: dotGo, sumSquares: sumSquaresGo,
	mulScale: mulScaleGo, dot3: dot3Go, normGrad: normGradGo, mulAcc: mulAccGo, rotate: rotateGo,
	scaleMax: scaleMaxGo, expSum: expSumGo, expStats: expStatsGo, headGrad: headGradGo,
	softGrad: softGradGo,
	swiglu:   swigluGo, swigluGrad: swigluGradGo, adamW: adamWGo,
}

func gemm1x4(a []float32, rs, cs int, b []float32, ldb int, c []float32, ldc, k, acc int) {
	var c0, c1, c2, c3 float32
	if acc != 0 {
		c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
	}
	for x := range k {
		bb := b[x*ldb : x*ldb+4 : x*ldb+4]
		a0 := a[x*cs]
		c0 += float32(a0 * bb[0])
		c1 += float32(a0 * bb[1])
		c2 += float32(a0 * bb[2])
		c3 += float32(a0 * bb[3])
	}
	c[0], c[1], c[2], c[3] = c0, c1, c2, c3
}

func gemm2x4(a []float32, rs, cs int, b []float32, ldb int, c []float32, ldc, k, acc int) {
	var c0, c1, c2, c3, d0, d1, d2, d3 float32
	d := c[ldc:]
	if acc != 0 {
		c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
		d0, d1, d2, d3 = d[0], d[1], d[2], d[3]
	}
	for x := range k {
		bb := b[x*ldb : x*ldb+4 : x*ldb+4]
		a0, a1 := a[x*cs], a[x*cs+rs]
		c0 += float32(a0 * bb[0])
		c1 += float32(a0 * bb[1])
		c2 += float32(a0 * bb[2])
		c3 += float32(a0 * bb[3])
		d0 += float32(a1 * bb[0])
		d1 += float32(a1 * bb[1])
		d2 += float32(a1 * bb[2])
		d3 += float32(a1 * bb[3])
	}
	c[0], c[1], c[2], c[3] = c0, c1, c2, c3
	d[0], d[1], d[2], d[3] = d0, d1, d2, d3
}

func transposeGo(dst []float32, ldd int, src []float32, lds, rows, k int) {
	for r := range rows {
		for x, s := range src[r*lds : r*lds+k] {
			dst[x*ldd+r] = s
		}
	}
}

// rowsGo does kernels.rows for rows of nr elements.
func rowsGo(nr int) func(dst, src []float32, ld, n int) {
	return func(dst, src []float32, ld, n int) {
		for r := range n {
			copy(dst[r*nr:r*nr+nr], src[r*ld:])
		}
	}
}

// blocked makes a transpose kernel of a kernel for whole blocks of w rows and w columns; the rest
// goes element by element.
func blocked(w int, block func(dst []float32, ldd int, src []float32, lds,
	blocks int)) func([]float32, int, []float32, int, int, int) {
	return func(dst []float32, ldd int, src []float32, lds, rows, k int) {
		r, whole := 0, k/w*w
		for ; whole > 0 && r+w <= rows; r += w {
			block(dst[r:], ldd, src[r*lds:], lds, k/w)
			if whole < k {
				transposeGo(dst[whole*ldd+r:], ldd, src[r*lds+whole:], lds, w, k-whole)
			}
		}
		if r < rows {
			transposeGo(dst[r:], ldd, src[r*lds:], lds, rows-r, k)
		}
	}
}

func addGo(y, x []float32) {
	for i, v := range x {
		y[i] += v
	}
}

func scaleGo(y []float32, s float32) {
	for i := range y {
		y[i] *= s
	}
}

func axpyGo(y, x []float32, s float32) {
	for i, v := range x {
		y[i] += float32(s * v)
	}
}

// dotGo sums in four lanes, index modulo 4, then (0+1)+(2+3).
func dotGo(x, y []float32) float32 {
	var s [4]float32
	y = y[:len(x)]
	for i, v := range x {
		s[i&3] += float32(v * y[i])
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func sumSquaresGo(x []float32) float64 {
	var s [4]float64
	for i, v := range x {
		s[i&3] += float64(float64(v) * float64(v))
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func mulScaleGo(y, x, w []float32, s float32) {
	y, w = y[:len(x)], w[:len(x)]
	for i, v := range x {
		y[i] = v * s * w[i]
	}
}

func dot3Go(a, b, c []float32) float32 {
	var s [4]float32
	b, c = b[:len(a)], c[:len(a)]
	for i, v := range a {
		s[i&3] += float32(v * b[i] * c[i])
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func normGradGo(dx, dy, w, x []float32, r, c float32, acc int) {
	dy, w, x = dy[:len(dx)], w[:len(dx)], x[:len(dx)]
	for i := range dx {
		t := r * (float32(dy[i]*w[i]) - float32(x[i]*c))
		if acc != 0 {
			t = dx[i] + float32(t)
		}
		dx[i] = t
	}
}

func mulAccGo(g, a, b []float32, s float32) {
	for i := range g {
		g[i] += float32(a[i] * b[i] * s)
	}
}

func rotateGo(u, v, c, s []float32, sign float32) {
	v, c, s = v[:len(u)], c[:len(u)], s[:len(u)]
	for i := range u {
		p, q, sn := u[i], v[i], sign*s[i]
		u[i] = float32(p*c[i]) - float32(q*sn)
		v[i] = float32(q*c[i]) + float32(p*sn)
	}
}

func scaleMaxGo(x []float32, s float32) float32 {
	most := float32(math.Inf(-1))
	for i := range x {
		x[i] *= s
		if x[i] > most {
			most = x[i]
		}
	}
	return most
}

const (
	expLow   = -87.33654 // below, exp is 0: the result would not be a normal number
	expHigh  = 89        // above, exp is +Inf
	log2e    = 1.44269504088896340736
	ln2High  = 0.693359375 // ln 2 in two parts; the first has few bits, so that n*ln2High is exact
	ln2Low   = -2.12194440054690583e-4
	roundBig = 1.5 * (1 << 23) // adding and subtracting it rounds to an integer
)

// exp returns e to the power x: x = n*ln2 + r with |r| <= ln2/2, and the series of exp(r) up to
// r^7, whose remainder is below 6e-9.
func exp(x float32) float32 {
	switch {
	case x < expLow:
		return 0
	case x > expHigh:
		return float32(math.Inf(1))
	case x != x:
		return x
	}
	n := (float32(x*log2e) + roundBig) - roundBig
	r := x - float32(n*ln2High)
	r -= float32(n * ln2Low)
	p := float32(1.0 / 5040)
	p = float32(p*r) + 1.0/720
	p = float32(p*r) + 1.0/120
	p = float32(p*r) + 1.0/24
	p = float32(p*r) + 1.0/6
	p = float32(p*r) + 1.0/2
	p = float32(p*r) + 1
	p = float32(p*r) + 1
	// Two factors, because n may be 128.
	k := int32(n)
	lo := k >> 1
	return p * math.Float32frombits(uint32(lo+127)<<23) * math.Float32frombits(uint32(k-lo+127)<<23)
}

func expSumGo(x []float32, m float32) float32 {
	var s [4]float32
	for i, v := range x {
		e := exp(v - m)
		x[i] = e
		s[i&3] += e
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func expStatsGo(x []float32, m float32) (sum, mean float32) {
	var s, t [4]float32
	for i, v := range x {
		d := v - m
		e := exp(d)
		s[i&3] += e
		t[i&3] += float32(e * d)
	}
	return (s[0] + s[1]) + (s[2] + s[3]), (t[0] + t[1]) + (t[2] + t[3])
}

func headGradGo(z []float32, lse, alpha, beta float32) {
	for i, v := range z {
		d := v - lse
		z[i] = exp(d) * (alpha + float32(beta*d))
	}
}

func softGradGo(s, dp []float32, scale, lse, delta float32) {
	dp = dp[:len(s)]
	for i, v := range s {
		p := exp(float32(v*scale) - lse)
		s[i], dp[i] = p, p*(dp[i]-delta)*scale
	}
}

func swigluGo(y, gate, up []float32) {
	y, up = y[:len(gate)], up[:len(gate)]
	for i, g := range gate {
		y[i] = g / (1 + exp(-g)) * up[i]
	}
}

func swigluGradGo(y, dgate, dup, gate, up []float32) {
	swigluGo(y, gate, up)
	dgate, dup, up = dgate[:len(gate)], dup[:len(gate)], up[:len(gate)]
	for i, g := range gate {
		s, d := 1/(1+exp(-g)), dgate[i]
		dgate[i], dup[i] = d*up[i]*(s*(1+float32(g*(1-s)))), d*(g*s)
	}
}

func adamWGo(w, grad, m, v []float32, c *adamConsts) {
	grad, m, v = grad[:len(w)], m[:len(w)], v[:len(w)]
	for i := range w {
		g := grad[i] * c.gradScale
		mi := float32(c.beta1*m[i]) + float32(c.rest1*g)
		vi := float32(c.beta2*v[i]) + float32(float32(c.rest2*g)*g)
		m[i], v[i] = mi, vi
		w[i] -= c.step*mi/(float32(math.Sqrt(float64(float32(vi*c.inv2))))+c.eps) +
			float32(c.decay*w[i])
	}
}
