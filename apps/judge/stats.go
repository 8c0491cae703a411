package judge

import "math"

// ridge is the penalty on the slope of the length: ridge/2 times its square is added to the sum of
// the log-losses of all prompts, as scikit-learn does by default (C = 1). It keeps the slope finite
// where the longer answer always wins.
const ridge = 1

// lengthTerms returns by how much each answer is longer than its opponent, in standard deviations
// over prompts, squeezed into -1 to 1: the length term of AlpacaEval 2 (Dubois et al. 2024, arXiv
// 2404.04475, section 3). Equal lengths give 0.
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
		case z[i] == 0, n < 2, sd == 0: // equal differences carry no information
			z[i] = 0
		default:
			z[i] = math.Tanh(z[i] / sd)
		}
	}
	return z
}

// lengthControlled returns the win rate that answers of equal length would have, and the slope b of
// the length. It fits
//
//	P(win) = 1 / (1 + exp(-(a + b z)))
//
// to the preferences y, from 0 (lost) to 1 (won), with weights w. The rate is P(win) at length term
// z = 0: 1 / (1 + exp(-a)). The fit is by Newton's steps (iteratively reweighted least squares) on
// the log-loss plus penalty/2 b^2. Without weight the results are NaN.
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
		} else { // all lengths equal, no penalty: only a is determined
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

// fit is a point (a, b) with the loss, its gradient and its second derivatives.
type fit struct {
	a, b, loss, ga, gb, haa, hab, hbb float64
}

// look returns f with the loss and its derivatives at a and b.
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
