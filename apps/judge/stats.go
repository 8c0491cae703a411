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
	loss := func(a, b float64) float64 {
		sum := penalty / 2 * b * b
		for i := range y {
			if w[i] > 0 {
				eta := a + b*z[i]
				// -y log p - (1-y) log(1-p) = log(1+exp(eta)) - y eta
				sum += w[i] * (max(eta, 0) + math.Log1p(math.Exp(-math.Abs(eta))) - y[i]*eta)
			}
		}
		return sum
	}
	a := math.Log(won / (all - won))
	at := loss(a, b)
	for range 100 {
		ga, gb := 0.0, penalty*b
		haa, hab, hbb := 0.0, 0.0, penalty
		for i := range y {
			if w[i] == 0 {
				continue
			}
			p := 1 / (1 + math.Exp(-(a + b*z[i])))
			r, v := w[i]*(p-y[i]), w[i]*p*(1-p)
			ga += r
			gb += r * z[i]
			haa += v
			hab += v * z[i]
			hbb += v * z[i] * z[i]
		}
		det := haa*hbb - hab*hab
		var da, db float64
		if det > 1e-12*haa*hbb {
			da, db = (hbb*ga-hab*gb)/det, (haa*gb-hab*ga)/det
		} else { // no length differs, and no penalty: only a can be known
			da = ga / haa
		}
		step, next := 1.0, 0.0
		for ; step > 1e-10; step /= 2 {
			if next = loss(a-step*da, b-step*db); next <= at {
				break
			}
		}
		a, b, at = a-step*da, b-step*db, next
		if math.Abs(da)+math.Abs(db) < 1e-11 {
			break
		}
	}
	return 1 / (1 + math.Exp(-a)), b
}
