package model

import (
	"fmt"
	"math"
	"slices"
	"time"

	"gad/internal/compute"
	"gad/model/internal/logits"
	"gad/model/internal/sequence"
)

// The exact KL to another model needs no backend operation of its own. Products with the head
// compute the logits of a chunk of rows, at most logits.Elements of each model; the host sums them
// in float64 and overwrites them with the gradient; products take it back to the states and the
// head.

// klPass compares a pack of m with q at each response row: KL(m||q), or D_beta.
type klPass struct {
	q    *Model
	beta float64
	v    int     // entries of the vocabulary that both models have
	inv  float64 // 1/temperature, of both
	// final hidden states of q at the rows, [R, D], kept during m's passes
	statesRD compute.Tensor
	klR      []float64 // [R] divergence in nats
	meanR    []float64 // [R] with 0 < beta < 1: the mean of log p - log mixture under p
	lseR     []float64 // [R] log of the sum of exponentials of m's scaled logits
	lseQR    []float64 // [R] log of the sum of exponentials of q's scaled logits

	zp, zq []float32 // logits of a chunk of rows, of m and of q

	klST, dklST [][]float32 // argument and result of LogProbDivergenceGrad's seed, by sequence

	soft     *softPass     // labels instead of q's whole distribution; nil: none
	labelsST [][]SoftLabel // labels by sequence, if q is nil
}

// KLMemory returns the bytes that AllKL and LogProbDivergenceGrad need for a pack of so many
// tokens, on device and host together, in addition to the passes: the states of the other model,
// whose shape is q, and the states and logits of a chunk of rows.
func (c Config) KLMemory(f Footprint, q Config, tokens int) int64 {
	rows := min(tokens, logits.Rows(c.Vocab))
	narrow := func(rows, hidden int) int64 {
		return f.Block(f.Element(compute.Narrow) * int64(rows) * int64(hidden))
	}
	own, other := int64(rows)*int64(c.Vocab), int64(rows)*int64(q.Vocab)
	return narrow(tokens, q.Hidden) + 2*narrow(rows, c.Hidden) +
		f.Block(f.Element(compute.Wide)*max(own, other)) + 4*(own+other)
}

// AllKL returns KL(m||q) at each trained token of seqs, the exact sum over the vocabulary in nats:
//
//	KL_t = Σ_v p_v (log p_v - log q_v),  p = softmax(z_m/temperature), q = softmax(z_q/temperature)
//
// in packs of maxTokens tokens, divided among the ranks. Both models must be on one backend; they
// may share memory for activations. If one vocabulary is longer, since released models pad them to
// different lengths, the sums go over the entries that both have. No value is below 0. Only the
// logits of a chunk of rows are in memory at a time. If m is Alone, no bit of the result depends on
// the packs.
func (m *Model) AllKL(q *Model, seqs []Seq, temperature float64,
	maxTokens int) (klST [][]float32, err error) {
	own := func(mine []Seq) ([][]float32, error) {
		klST := make([][]float32, len(mine))
		for _, pack := range sequence.Packs(mine, maxTokens) {
			rows, err := m.kl(q, sequence.Pick(mine, pack), temperature)
			if err != nil {
				return nil, err
			}
			for i, s := range pack {
				klST[s] = rows[i]
			}
		}
		return klST, nil
	}
	if m.ranks.Size() == 1 || len(seqs) == 0 {
		return own(seqs)
	}
	return everyRank(m.ranks, "exact KL", seqs, own)
}

// kl returns KL(m||q) at each trained token of one pack, by AllKL's formula, on this rank alone.
func (m *Model) kl(q *Model, seqs []Seq, temperature float64) ([][]float32, error) {
	x, err := newKLPass(m, q, seqs, 1, temperature)
	if err != nil {
		return nil, err
	}
	if err := m.hidden(seqs); err != nil {
		return nil, err
	}
	if err := x.measure(m); err != nil {
		return nil, err
	}
	return x.klST, nil
}

// LogProbDivergenceGrad is LogProbGrad whose seed also gets klST, a divergence at each trained
// token, and returns the loss's gradient with respect to it, dklST; it may be nil. The divergence
// is between m, whose distribution at a token is p, and a teacher q (Agarwal et al., arXiv
// 2306.13649, eq. 1 for 0 < beta < 1):
//
//	D_beta = beta KL(q||M) + (1-beta) KL(p||M),  M = (1-beta) p + beta q,  0 < beta < 1
//	D_0 = KL(q||p);  D_1 = KL(p||q)
//
// with the gradients
//
//	dD_beta/dz_v = (1-beta) p_v (log(p_v/M_v) - Σ_u p_u log(p_u/M_u)) / temperature
//	dD_0/dz_v = (p_v - q_v) / temperature
//
// No gradient reaches q, which passes forward once, over reads: sequences with the same trained
// tokens as seqs, possibly behind other prompts.
func (m *Model) LogProbDivergenceGrad(seqs []Seq, q *Model, reads []Seq, beta, temperature float64,
	seed func(logpST, entST, klST [][]float32) (dlogpST, dentST, dklST [][]float32,
		err error)) error {
	if err := m.require(LM, true); err != nil {
		return err
	}
	if !(beta >= 0 && beta <= 1) {
		return fmt.Errorf("model: divergence: beta is %g: must be 0 to 1", beta)
	}
	x, err := newPairedKLPass(m, q, seqs, reads, beta, temperature)
	if err != nil {
		return err
	}
	return m.logProbGrad(seqs, temperature, x,
		func(logpST, entST [][]float32) (dlogpST, dentST [][]float32, err error) {
			dlogpST, dentST, x.dklST, err = seed(logpST, entST, x.klST)
			return dlogpST, dentST, err
		})
}

// newPairedKLPass returns newKLPass over reads, whose trained tokens must equal those of seqs.
func newPairedKLPass(m, q *Model, seqs, reads []Seq,
	beta, temperature float64) (*klPass, error) {
	if len(reads) != len(seqs) {
		return nil, fmt.Errorf("model: divergence: %d sequences, and %d for the other model",
			len(seqs), len(reads))
	}
	for s := range seqs {
		if !slices.Equal(seqs[s].TrainedIDs(), reads[s].TrainedIDs()) {
			return nil, fmt.Errorf(
				"model: divergence: sequence %d has other trained tokens for the other model", s)
		}
		if seqs[s].Branching != reads[s].Branching { // tokens would lie in another order
			return nil, fmt.Errorf(
				"model: divergence: sequence %d branches for one of the models only", s)
		}
	}
	return newKLPass(m, q, reads, beta, temperature)
}

// newKLPass runs q forward over a pack of seqs and returns a comparison that keeps its states.
func newKLPass(m, q *Model, seqs []Seq, beta, temperature float64) (*klPass, error) {
	if q.be != m.be {
		return nil, fmt.Errorf("model: KL: the other model is on another backend")
	}
	inv, err := invTemp(temperature)
	if err != nil {
		return nil, err
	}
	x := &klPass{q: q, beta: beta, inv: inv, v: min(m.Vocab(), q.Vocab())}
	return x, q.aside(func() error {
		if err := q.hidden(seqs); err != nil {
			return err
		}
		n := len(q.pk.rows)
		if n == 0 {
			return nil
		}
		// a purpose of its own: passes of m overwrite activations that both share
		x.statesRD = m.ws.Get("states of the other model [R,D]", compute.Narrow, n*q.cfg.Hidden)
		if err := m.ws.Take(); err != nil {
			return err
		}
		q.gather(x.statesRD, q.pk.rows)
		return nil
	})
}

// aside calls f, a part of q's work as the other model of a divergence, and adds its time to
// AsideTime.
func (q *Model) aside(f func() error) error {
	if err := q.be.Sync(); err != nil { // earlier work is not f's
		return err
	}
	begun := time.Now()
	err := f()
	if err == nil {
		err = q.be.Sync()
	}
	q.asideTime += time.Since(begun)
	return err
}

// AsideTime returns the time that the model has computed so far as the other model of KL and
// divergences: its passes, and its logits by the chunk.
func (q *Model) AsideTime() time.Duration { return q.asideTime }

// gather copies rows of m.acts.hND to dst.
func (m *network) gather(dst compute.Tensor, rows []int32) {
	eachRun(rows, func(at, n int) {
		d, first := m.cfg.Hidden, int(rows[at])
		m.be.Copy(dst.Slice(at*d, (at+n)*d), m.acts.hND.Slice(first*d, (first+n)*d))
	})
}

// chunks calls f for rows lo to hi-1 of m's pack, a chunk at a time, with their states in hRD,
// memory for their logits in zRV, and the logits of m in x.zp and of q, if there is one, in x.zq.
func (x *klPass) chunks(m *Model, f func(lo, hi int, hRD, zRV compute.Tensor) error) error {
	rows, d, v, vQ := m.pk.rows, m.cfg.Hidden, m.cfg.Vocab, 0
	if x.q != nil {
		vQ = x.q.cfg.Vocab
	}
	for lo, most := 0, logits.Rows(v); lo < len(rows); lo += most {
		hi := min(lo+most, len(rows))
		n := hi - lo
		hRD := m.ws.Get("states of a chunk [R,D]", compute.Narrow, n*d)
		zRV := m.ws.Get(logits.RV, compute.Wide, n*max(v, vQ))
		if err := m.ws.Take(); err != nil {
			return err
		}
		x.zp, x.zq = slices.Grow(x.zp[:0], n*v)[:n*v], slices.Grow(x.zq[:0], n*vQ)[:n*vQ]
		m.gather(hRD, rows[lo:hi])
		logits.Head(m.be, m.head, zRV.Slice(0, n*v), hRD)
		m.be.Download(x.zp, zRV.Slice(0, n*v))
		if x.q != nil {
			err := x.q.aside(func() error {
				dQ := x.q.cfg.Hidden
				logits.Head(x.q.be, x.q.head, zRV.Slice(0, n*vQ), x.statesRD.Slice(lo*dQ, hi*dQ))
				m.be.Download(x.zq, zRV.Slice(0, n*vQ))
				return nil
			})
			if err != nil {
				return fmt.Errorf("model: KL: %w", err)
			}
		}
		if err := m.be.Sync(); err != nil {
			return fmt.Errorf("model: KL: %w", err)
		}
		logits.Cap(x.zp, m.head)
		if x.q != nil {
			logits.Cap(x.zq, x.q.head)
		}
		if err := f(lo, hi, hRD, zRV.Slice(0, n*v)); err != nil {
			return err
		}
	}
	return nil
}

// alloc allocates the values of n rows.
func (x *klPass) alloc(n int) {
	x.klR, x.lseR, x.lseQR = make([]float64, n), make([]float64, n), make([]float64, n)
	x.meanR = make([]float64, n)
}

// measureRow sets the divergence at row r, whose logits are zp and zq.
func (x *klPass) measureRow(zp, zq []float32, r int) {
	if x.soft != nil {
		x.klR[r], x.lseR[r] = x.soft.measureRow(zp, zq[:min(x.v, len(zq))], x.inv, r)
		return
	}
	x.klR[r], x.lseR[r], x.lseQR[r] = exactKL(zp[:x.v], zq[:x.v], x.inv)
	if x.beta < 1 {
		x.klR[r], x.meanR[r] = x.divergence(zp, zq, x.lseR[r], x.lseQR[r])
	}
}

// measure sets the divergences of m's pack, after its forward pass.
func (x *klPass) measure(m *Model) error {
	n := len(m.pk.rows)
	x.alloc(n)
	if x.soft != nil {
		x.soft.alloc(&m.pk, x.labelsST)
	}
	err := x.chunks(m, func(lo, hi int, _, _ compute.Tensor) error {
		logits.EachRow(lo, hi, func(r int) {
			zp, zq := x.logits(m, r-lo)
			x.measureRow(zp, zq, r)
		})
		return nil
	})
	if err != nil {
		return err
	}
	flat := make([]float32, n)
	for r, kl := range x.klR {
		if math.IsNaN(kl) || math.IsInf(kl, 0) {
			return fmt.Errorf("model: KL: %g at token %d: the weights or activations are %w: go back to an earlier checkpoint", kl, m.pk.targets[r], ErrNotFinite)
		}
		flat[r] = float32(kl)
	}
	x.klST = m.pk.split(nil, make([]float32, n), flat)
	if x.soft != nil {
		x.q = nil // its labels are in x.soft
	}
	return nil
}

// logits returns the logits of both models at a row of the chunk, without rows behind the last
// token; zq is nil without q.
func (x *klPass) logits(m *Model, row int) (zp, zq []float32) {
	if zp = x.zp[row*m.cfg.Vocab:][:m.Vocab()]; x.q != nil {
		zq = x.zq[row*x.q.cfg.Vocab:][:x.q.Vocab()]
	}
	return zp, zq
}

// divergence returns D_beta, beta below 1, and the mean of log p - log M under p.
func (x *klPass) divergence(zp, zq []float32, lseP, lseQ float64) (d, mean float64) {
	var ofQ float64 // KL(q||M) = Σ q (log q - log M)
	for v, z := range zp[:x.v] {
		logp, logq := float64(x.inv*float64(z))-lseP, float64(x.inv*float64(zq[v]))-lseQ
		apart := x.fromMixture(logp, logq)
		mean += float64(math.Exp(logp) * apart)
		ofQ += float64(math.Exp(logq) * (min(logq-logp, farApart) + apart))
	}
	if d = ofQ; x.beta > 0 {
		d = float64(x.beta*ofQ) + float64((1-x.beta)*mean)
	}
	return max(d, 0), mean
}

// farApart is a difference of log-probabilities beyond which the smaller probability is negligible.
const farApart = 700

// fromMixture returns log p - log M = -log(1 + beta (q/p - 1)): exactly 0 where p is q.
func (x *klPass) fromMixture(logp, logq float64) float64 {
	return -math.Log1p(float64(x.beta * math.Expm1(min(logq-logp, farApart))))
}

// exactKL returns KL(p||q) of the distributions of the logits zp and zq times inv, and the logs of
// their sums of exponentials. With e_v = exp(inv zp_v - most) and s = Σ e_v,
//
//	KL(p||q) = Σ_v e_v inv (zp_v - zq_v)/s - lse_p + lse_q
//
// A sum that rounding makes negative is 0.
func exactKL(zp, zq []float32, inv float64) (kl, lseP, lseQ float64) {
	mostP, mostQ := inv*float64(slices.Max(zp)), inv*float64(slices.Max(zq))
	var sumP, sumQ, apart float64
	for v, a := range zp {
		p, q := inv*float64(a), inv*float64(zq[v])
		e := math.Exp(p - mostP)
		sumP += e
		sumQ += math.Exp(q - mostQ)
		apart += float64(e * (p - q))
	}
	lseP, lseQ = mostP+math.Log(sumP), mostQ+math.Log(sumQ)
	if kl = apart/sumP - lseP + lseQ; kl < 0 {
		kl = 0
	}
	return kl, lseP, lseQ
}

// gradient overwrites zp, the logits at row r, with the gradient of the divergence, times weight.
func (x *klPass) gradient(zp, zq []float32, r int, weight float64) {
	if x.soft != nil {
		x.soft.gradient(zp, r, x.lseR[r], x.inv, weight)
		return
	}
	for v, z := range zp[:x.v] {
		logp := float64(x.inv*float64(z)) - x.lseR[r]
		logq := float64(x.inv*float64(zq[v])) - x.lseQR[r]
		p := math.Exp(logp)
		switch x.beta {
		case 1:
			apart := logp - logq
			zp[v] = float32(weight * p * (apart - x.klR[r]))
		case 0:
			zp[v] = float32(weight * (p - math.Exp(logq)))
		default:
			apart := x.fromMixture(logp, logq)
			zp[v] = float32(weight * (1 - x.beta) * p * (apart - x.meanR[r]))
		}
	}
	clear(zp[x.v:]) // entries that the other model lacks
}

// learn adds the gradient of the divergences, weighted by x.dklST, to a.dhND and to the head's
// gradient. Without dklST it adds nothing.
func (x *klPass) learn(m *Model, a *acts) error {
	if x.dklST == nil {
		return nil
	}
	dklR, err := m.pk.join(nil, "gradient of KL", x.dklST)
	if err != nil {
		return err
	}
	d := m.cfg.Hidden
	return x.chunks(m, func(lo, hi int, hRD, zRV compute.Tensor) error {
		logits.EachRow(lo, hi, func(r int) {
			zp, zq := x.logits(m, r-lo)
			if limit := m.head.Cap; limit > 0 {
				capped := slices.Clone(zp)
				x.gradient(zp, zq, r, float64(dklR[r])*x.inv)
				compute.SoftCapGrad(zp, capped, limit)
			} else {
				x.gradient(zp, zq, r, float64(dklR[r])*x.inv)
			}
			clear(x.zp[(r-lo)*m.cfg.Vocab+len(zp) : (r-lo+1)*m.cfg.Vocab]) // rows without a token
		})
		m.be.Upload(zRV, x.zp)
		dhRD := m.ws.Get("gradient of states of a chunk [R,D]", compute.Narrow, hRD.Len())
		if err := m.ws.Take(); err != nil {
			return err
		}
		m.be.LinearGrad(dhRD, m.head, nil, zRV, hRD, false)
		rows := m.pk.rows[lo:hi]
		eachRun(rows, func(at, n int) { // a row that occurs twice is in two runs
			first := int(rows[at])
			m.be.Add(a.dhND.Slice(first*d, (first+n)*d), dhRD.Slice(at*d, (at+n)*d))
		})
		return nil
	})
}
