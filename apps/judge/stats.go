package judge

import "math"

// ridge is the penalty on the slope of the length, ridge/2 times its square beside the
// sum of the log-losses of all prompts: the default of scikit-learn (C = 1). It keeps
// the slope finite where the longer answer always wins.
const ridge = 1

// lengthTerms are how much longer each answer is than what it is compared with, in
// units of the standard deviation over prompts, and squeezed into -1 to 1: the length
// term of AlpacaEval 2 (Dubois et al. 2024, arXiv 2404.04475, section 3). Equal
// lengths give 0.
func lengthTerms(length, against []float64) []float64 {
	n := len(length)
	z := make([]float64, n)
	mean := 0.0
	for i := range z {
		z[i] = length[i] - against[i]
		mean += z[i] / float64(n)
	}
	sum := 0.0
	for _, d := range z {
		sum += (d - mean) * (d - mean)
	}
	sd := math.Sqrt(sum / float64(n-1))
	for i := range z {
		switch {
		case z[i] == 0, n < 2, sd == 0: // lengths that all differ alike say nothing about other differences
			z[i] = 0
		default:
			z[i] = math.Tanh(z[i] / sd)
		}
	}
	return z
}

// lengthControlled is the share of wins that answers of equal length would have:
//
//	P(win) = 1 / (1 + exp(-(a + b z)))
//
// is fitted to the preferences y, from 0 (lost) to 1 (won), with weights w, and the
// length term z is then set to 0: the rate is 1 / (1 + exp(-a)). b is the slope of the
// length. The fit is by Newton's steps (iteratively reweighted least squares) on the
// log-loss plus penalty/2 b^2. Without weight it is NaN.
func lengthControlled(y, z, w []float64, penalty float64) (rate, b float64) {
	var won, all float64
	for i := range y {
		won += w[i] * y[i]
		all += w[i]
	}
	switch {
	case all == 0:
		return math.NaN(), math.NaN()
	case won == 0:
		return 0, 0
	case won >= all*(1-1e-15):
		return 1, 0
	}
	at := fit{a: math.Log(won / (all - won))}.look(y, z, w, penalty)
	for range 100 {
		det := at.haa*at.hbb - at.hab*at.hab
		var da, db float64
		if det > 1e-12*at.haa*at.hbb {
			da, db = (at.hbb*at.ga-at.hab*at.gb)/det, (at.haa*at.gb-at.hab*at.ga)/det
		} else { // no length differs, and no penalty: only a can be known
			da = at.ga / at.haa
		}
		if math.Abs(da)+math.Abs(db) < 1e-10 {
			break
		}
		step := 1.0
		next := fit{a: at.a - da, b: at.b - db}.look(y, z, w, penalty)
		for next.loss > at.loss+1e-12*math.Abs(at.loss) && step > 1e-6 { // more than rounding
			step /= 2
			next = fit{a: at.a - step*da, b: at.b - step*db}.look(y, z, w, penalty)
		}
		at = next
	}
	return 1 / (1 + math.Exp(-at.a)), at.b
}

// fit is a point of the fit, with the loss there, its gradient and its second derivatives.
type fit struct {
	a, b, loss, ga, gb, haa, hab, hbb float64
}

// look fills in what f has at a and b.
func (f fit) look(y, z, w []float64, penalty float64) fit {
	f.loss, f.gb, f.hbb = penalty/2*f.b*f.b, penalty*f.b, penalty
	for i, weight := range w {
		if weight == 0 {
			continue
		}
		eta := f.a + f.b*z[i]
		e := math.Exp(-math.Abs(eta))
		p := 1 / (1 + e)
		if eta < 0 {
			p = e / (1 + e)
		}
		// -y log p - (1-y) log(1-p) = log(1+exp(eta)) - y eta
		f.loss += weight * (max(eta, 0) + math.Log1p(e) - y[i]*eta)
		r, v := weight*(p-y[i]), weight*p*(1-p)
		f.ga += r
		f.gb += r * z[i]
		f.haa += v
		f.hab += v * z[i]
		f.hbb += v * z[i] * z[i]
	}
	return f
}
