package algos

import (
	"math"
	"math/rand/v2"
	"slices"
)

// oracleLoss states the whole objective a second time, as loops that share
// nothing with the graphs. x are the log-probabilities; frozen are those under a
// stop gradient, so that finite differences in x alone give the gradient that
// autograd takes.
func oracleLoss(c PolicyConfig, b PolicyBatch[float64], n Norm, x, frozen []float64) float64 {
	clip := func(v, lo, hi float64) float64 { return math.Min(math.Max(v, lo), hi) }
	var total float64
	for row := range b.B {
		var at []int
		for i := row * b.T; i < (row+1)*b.T; i++ {
			if b.Mask[i] != 0 {
				at = append(at, i)
			}
		}
		if len(at) == 0 {
			continue
		}
		length := float64(len(at))
		weight := func(i int) float64 {
			if b.RolloutWeight == nil {
				return 1
			}
			return b.RolloutWeight[i]
		}
		aggregate := func(agg string, f func(i int) float64) float64 {
			var sum float64
			for _, i := range at {
				sum += f(i)
			}
			switch agg {
			case "token-mean":
				return sum / n.Tokens
			case "seq-mean-token-sum":
				return sum / n.Seqs
			case "seq-mean-token-mean":
				return sum / (length + 1e-8) / n.Seqs
			case "episode-mean-turn-mean-token-mean":
				return sum / length / b.Turns[row] / n.Episodes
			}
			return sum / n.FixedLen
		}
		ratio := func(i int) float64 { return math.Exp(clip(x[i]-b.Old[i], -20, 20)) }
		worst := func(a, r float64) float64 {
			return math.Max(-a*r, -a*clip(r, 1-c.ClipLow, 1+c.ClipHigh))
		}
		agg, perToken := c.Agg, func(int) float64 { return 0 }
		switch c.Loss {
		case "vanilla", "dapo":
			perToken = func(i int) float64 {
				v := worst(b.Adv[i], ratio(i))
				if b.Adv[i] < 0 {
					v = math.Min(v, -b.Adv[i]*c.ClipC)
				}
				return v
			}
		case "gspo", "gspo_token":
			var l float64
			for _, i := range at {
				l += (frozen[i] - b.Old[i]) / length
			}
			agg = "seq-mean-token-mean"
			perToken = func(i int) float64 {
				return worst(b.Adv[i],
					math.Exp(math.Min(x[i]-frozen[i]+l, 10)))
			}
		case "cispo":
			perToken = func(i int) float64 {
				r := math.Exp(clip(frozen[i]-b.Old[i], -20, 20))
				return -clip(r, 1-c.ClipLow, 1+c.ClipHigh) * b.Adv[i] * x[i]
			}
		case "sapo":
			agg = "seq-mean-token-mean"
			perToken = func(i int) float64 {
				tau := c.TauNeg
				if b.Adv[i] > 0 {
					tau = c.TauPos
				}
				return -b.Adv[i] * 4 / tau / (1 + math.Exp(-tau*(ratio(i)-1)))
			}
		case "geo_mean":
			var l, a, w float64
			for _, i := range at {
				d := x[i] - b.Old[i]
				switch {
				case b.Adv[i] > 0:
					d = math.Min(d, clip(d, -c.ClipLow, c.ClipHigh))
				case b.Adv[i] < 0:
					d = math.Max(d, clip(d, -c.ClipLow, c.ClipHigh))
				default:
					d = 0
				}
				l += d / (length + 1e-8)
				a += b.Adv[i] / (length + 1e-8)
				w += math.Log(weight(i)+1e-10) / (length + 1e-8)
			}
			if b.RolloutWeight == nil {
				w = 0
			}
			total += -a * math.Exp(l) * math.Exp(w) / n.Seqs
		case "gpg":
			perToken = func(i int) float64 { return -b.Adv[i] * x[i] }
		case "sft":
			perToken = func(i int) float64 { return -x[i] }
		default:
			panic("no oracle for " + c.Loss)
		}
		total += aggregate(agg, func(i int) float64 { return weight(i) * perToken(i) })
		if c.KLCoef > 0 {
			value := func(name string, d float64) float64 {
				switch name {
				case "k1", "kl":
					return d
				case "abs":
					return math.Abs(d)
				case "k2", "mse":
					return d * d / 2
				}
				e := clip(-d, -20, 20)
				return math.Min(math.Exp(e)-e-1, 10)
			}
			total += c.KLCoef * aggregate(c.Agg, func(i int) float64 {
				d, f := x[i]-b.Ref[i], frozen[i]-b.Ref[i]
				name := c.KLType
				if name[len(name)-1] != '+' {
					return value(name, d)
				}
				return value("k2", d) - value("k2", f) + value(name[:len(name)-1], f)
			})
		}
		if c.EntropyCoef != 0 {
			total -= c.EntropyCoef * aggregate(c.Agg, func(i int) float64 { return b.Entropy[i] })
		}
	}
	return total
}

// hardBatch is a batch with log-ratios on both sides of every clip and beyond
// every clamp, advantages of both signs and 0, ragged rows, a hole in a mask, an empty row.
// Adv is constant along a row, as every outcome estimator makes it, unless vary. Rows are turns of
// episodes, which do not stand side by side.
func hardBatch(seed uint64, B, T int, vary bool) PolicyBatch[float64] {
	r := rand.New(rand.NewPCG(seed, 7))
	mat := func() []float64 { return make([]float64, B*T) }
	b := PolicyBatch[float64]{B: B, T: T, Logp: mat(), Old: mat(), Ref: mat(), Mask: mat(),
		Adv: mat(), Entropy: mat(), RolloutWeight: mat()}
	shift := []float64{.05, -.07, .6, .6, -.6, -.6, 12, 12, -12, 25, -25, 0}
	for row := range B {
		adv := (.5 + r.Float64()) * float64(1-2*(row%2))
		if row%7 == 5 {
			adv = 0
		}
		length := 1 + r.IntN(T)
		if row%6 == 4 {
			length = 0
		}
		for t := range T {
			i := row*T + t
			b.Old[i] = -r.ExpFloat64()
			b.Logp[i] = b.Old[i] + shift[(row+int(seed))%len(shift)]*(1+.3*r.NormFloat64())
			b.Ref[i] = b.Logp[i] + r.NormFloat64()
			if r.IntN(9) == 0 {
				b.Ref[i] = b.Logp[i] + 30*float64(1-2*r.IntN(2))
			}
			b.Adv[i] = adv
			if vary {
				b.Adv[i] += r.NormFloat64()
			}
			b.Entropy[i] = r.ExpFloat64()
			b.RolloutWeight[i] = .2 + r.Float64()
			if t < length && (t != 2 || row%3 != 0) {
				b.Mask[i] = 1
			}
		}
	}
	b.Turns = make([]float64, B)
	episode := func(row int) int { return row * row % 5 } // 0, 1 and 4
	for row := range B {
		for other := range B {
			b.Turns[row] += indicator(episode(other) == episode(row) &&
				slices.Contains(b.Mask[other*T:(other+1)*T], 1))
		}
	}
	return b
}

// normOf is the mini-batch's totals for a batch that stands alone; of episodes that it does not
// hold whole, the share.
func normOf[F Float](b PolicyBatch[F]) Norm {
	n := NormOf(b.B, b.T, b.Mask)
	if b.Turns != nil {
		n.Episodes = 0
		for row, turns := range b.Turns {
			if slices.Contains(b.Mask[row*b.T:(row+1)*b.T], 1) {
				n.Episodes += 1 / float64(turns)
			}
		}
	}
	n.FixedLen = 32
	return n
}

// rowsOf is the micro-batch of some rows.
func rowsOf[F Float](b PolicyBatch[F], rows []int) PolicyBatch[F] {
	cut := func(x []F) (y []F) {
		if x == nil {
			return nil
		}
		for _, r := range rows {
			y = append(y, x[r*b.T:(r+1)*b.T]...)
		}
		return y
	}
	var tokens []F
	if b.Tokens != nil {
		tokens = pick(b.Tokens, rows)
	}
	return PolicyBatch[F]{len(rows), b.T, cut(b.Logp), cut(b.Old), cut(b.Ref), cut(b.KL),
		cut(b.Mask), cut(b.Adv), cut(b.Entropy), cut(b.RolloutWeight), pick(b.Turns, rows), tokens}
}
