package model

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"gad/internal/compute"
)

// The exact KL to another model needs no operation of its own. Products with the head give the
// logits of a chunk of rows, at most rankElements of each model; the host sums them in float64
// and writes the gradient in their place; products take it back to the states and the head.

// klPass is the comparison of a pack with q: KL(m||q) at each response row.
type klPass struct {
	q   *Model
	inv float64 // 1/temperature, of both
	// final hidden states of q at the rows, [R, D], kept while m passes
	statesRD compute.Tensor
	klR      []float64 // [R] nats
	lseR     []float64 // [R] log of the sum of exponentials of m's scaled logits
	lseQR    []float64 // [R] and of q's

	zp, zq []float32 // logits of a chunk of rows

	klST, dklST [][]float32 // of LogProbKLGrad's seed, by sequence
}

// KLMemory is the bytes that AllKL and LogProbKLGrad take for a pack of so many tokens beside
// the passes themselves, on device and host together: q's states, and of a chunk of rows the
// states and the logits.
func (c Config) KLMemory(f Footprint, tokens int) int64 {
	rows := min(tokens, rankRows(c.Vocab))
	narrow := func(rows int) int64 {
		return f.Block(f.Element(compute.Narrow) * int64(rows) * int64(c.Hidden))
	}
	logits := int64(rows) * int64(c.Vocab)
	return narrow(tokens) + 2*narrow(rows) + f.Block(f.Element(compute.Wide)*logits) + 2*4*logits
}

// AllKL is KL(m||q) at each trained token of seqs, the exact sum over the vocabulary in nats:
//
//	KL_t = Σ_v p_v (log p_v - log q_v),  p = softmax(z_m/temperature), q = softmax(z_q/temperature)
//
// in packs of maxTokens tokens, divided among the ranks. Both models have one vocabulary and one
// backend, and may share memory for activations. It is never below 0. The logits of a chunk of
// rows are in memory at a time. No bit of the result depends on the packs where m is Alone.
func (m *Model) AllKL(q *Model, seqs []Seq, temperature float64,
	maxTokens int) (klST [][]float32, err error) {
	own := func(mine []Seq) ([][]float32, error) {
		klST := make([][]float32, len(mine))
		for _, pack := range Packs(mine, maxTokens) {
			rows, err := m.kl(q, Pick(mine, pack), temperature)
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
	return m.everyRank("exact KL", seqs, own)
}

// kl is AllKL of one pack, on this rank alone.
func (m *Model) kl(q *Model, seqs []Seq, temperature float64) ([][]float32, error) {
	x, err := m.against(q, seqs, temperature)
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

// LogProbKLGrad is LogProbGrad whose seed also gets klST, AllKL of m and q, and returns the loss's
// gradient with respect to it, dklST; it may be nil. With KL_t the divergence at a row,
//
//	dz_v = dkl_t p_v (log p_v - log q_v - KL_t) / temperature
//	dh += Σ_v dz_v W[v];  W.G[v] += Σ_t dz_v h_t
//
// No gradient reaches q. Each call passes q forward over seqs once.
func (m *Model) LogProbKLGrad(seqs []Seq, q *Model, temperature float64,
	seed func(logpST, entST, klST [][]float32) (dlogpST, dentST, dklST [][]float32,
		err error)) error {
	if err := m.need(LM, true); err != nil {
		return err
	}
	x, err := m.against(q, seqs, temperature)
	if err != nil {
		return err
	}
	return m.logProbGrad(seqs, temperature, x,
		func(logpST, entST [][]float32) (dlogpST, dentST [][]float32, err error) {
			dlogpST, dentST, x.dklST, err = seed(logpST, entST, x.klST)
			return dlogpST, dentST, err
		})
}

// against passes q forward over a pack of seqs, and keeps its states.
func (m *Model) against(q *Model, seqs []Seq, temperature float64) (*klPass, error) {
	if q.be != m.be || q.cfg.Vocab != m.cfg.Vocab {
		return nil, fmt.Errorf("model: KL: the other model has a vocabulary of %d and this one %d, or is on another backend: both must be the same", q.cfg.Vocab, m.cfg.Vocab)
	}
	inv, err := invTemp(temperature)
	if err != nil {
		return nil, err
	}
	if err := q.hidden(seqs); err != nil {
		return nil, err
	}
	x := &klPass{q: q, inv: inv}
	if n := len(q.pk.rows); n > 0 {
		// a purpose of its own: passes of m overwrite what both share
		x.statesRD = m.ws.get("states of the other model [R,D]", compute.Narrow, n*q.cfg.Hidden)
		if err := m.ws.take(); err != nil {
			return nil, err
		}
		q.gather(x.statesRD, q.pk.rows)
	}
	return x, nil
}

// gather copies rows of m.acts.hND to dst.
func (m *Model) gather(dst compute.Tensor, rows []int32) {
	eachRun(rows, func(at, n int) {
		d, first := m.cfg.Hidden, int(rows[at])
		m.be.Copy(dst.Slice(at*d, (at+n)*d), m.acts.hND.Slice(first*d, (first+n)*d))
	})
}

// eachRun calls f for each run of consecutive rows: rows[at], rows[at]+1, ..., n of them.
func eachRun(rows []int32, f func(at, n int)) {
	for lo := 0; lo < len(rows); {
		hi := lo + 1
		for hi < len(rows) && rows[hi] == rows[hi-1]+1 {
			hi++
		}
		f(lo, hi-lo)
		lo = hi
	}
}

// chunks calls f for some rows of m's pack at a time, with their states in hRD, memory for their
// logits in zRV, and the logits of both models in x.zp and x.zq.
func (x *klPass) chunks(m *Model, f func(lo, hi int, hRD, zRV compute.Tensor) error) error {
	rows, d, v := m.pk.rows, m.cfg.Hidden, m.cfg.Vocab
	for lo, most := 0, rankRows(v); lo < len(rows); lo += most {
		hi := min(lo+most, len(rows))
		n := hi - lo
		hRD := m.ws.get("states of a chunk [R,D]", compute.Narrow, n*d)
		zRV := m.ws.get(logitsRV, compute.Wide, n*v)
		if err := m.ws.take(); err != nil {
			return err
		}
		x.zp, x.zq = slices.Grow(x.zp[:0], n*v)[:n*v], slices.Grow(x.zq[:0], n*v)[:n*v]
		m.gather(hRD, rows[lo:hi])
		m.headLogits(zRV, hRD)
		m.be.Download(x.zp, zRV)
		x.q.headLogits(zRV, x.statesRD.Slice(lo*d, hi*d))
		m.be.Download(x.zq, zRV)
		if err := m.be.Sync(); err != nil {
			return fmt.Errorf("model: KL: %w", err)
		}
		if err := f(lo, hi, hRD, zRV); err != nil {
			return err
		}
	}
	return nil
}

// eachRow calls f for the rows of a chunk, divided among goroutines. A row's results depend on
// the row alone.
func eachRow(lo, hi int, f func(r int)) {
	var wg sync.WaitGroup
	share := (hi - lo + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0)
	for at := lo; at < hi; at += share {
		wg.Go(func() {
			for r := at; r < min(at+share, hi); r++ {
				f(r)
			}
		})
	}
	wg.Wait()
}

// measure takes the divergences of m's pack, whose forward pass is done.
func (x *klPass) measure(m *Model) error {
	n, v := len(m.pk.rows), m.cfg.Vocab
	x.klR, x.lseR, x.lseQR = make([]float64, n), make([]float64, n), make([]float64, n)
	err := x.chunks(m, func(lo, hi int, _, _ compute.Tensor) error {
		eachRow(lo, hi, func(r int) {
			at := (r - lo) * v
			x.klR[r], x.lseR[r], x.lseQR[r] = exactKL(x.zp[at:at+v], x.zq[at:at+v], x.inv)
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
	return nil
}

// exactKL is KL(p||q) of the distributions of the logits zp and zq times inv, and the logs of
// their sums of exponentials. With e_v = exp(inv zp_v - most) and s = Σ e_v,
//
//	KL(p||q) = Σ_v e_v inv (zp_v - zq_v)/s - lse_p + lse_q
//
// A sum that rounding has put below 0 is 0.
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

// learn adds the gradient of the divergences, weighted by x.dklST, to a.dhND and the head's.
func (x *klPass) learn(m *Model, a *acts) error {
	if x.dklST == nil {
		return nil
	}
	dklR, err := m.pk.join(nil, "gradient of KL", x.dklST)
	if err != nil {
		return err
	}
	d, v := m.cfg.Hidden, m.cfg.Vocab
	return x.chunks(m, func(lo, hi int, hRD, zRV compute.Tensor) error {
		eachRow(lo, hi, func(r int) {
			at := (r - lo) * v
			zp, zq, weight := x.zp[at:at+v], x.zq[at:at+v], float64(dklR[r])*x.inv
			for v, z := range zp {
				logp := float64(x.inv*float64(z)) - x.lseR[r]
				apart := logp - (float64(x.inv*float64(zq[v])) - x.lseQR[r])
				zp[v] = float32(weight * math.Exp(logp) * (apart - x.klR[r]))
			}
		})
		m.be.Upload(zRV, x.zp)
		dhRD := m.ws.get("gradient of states of a chunk [R,D]", compute.Narrow, hRD.Len())
		if err := m.ws.take(); err != nil {
			return err
		}
		m.be.LinearGrad(dhRD, m.head, nil, zRV, hRD, false)
		rows := m.pk.rows[lo:hi]
		eachRun(rows, func(at, n int) { // a row may come again, in a run of its own
			first := int(rows[at])
			m.be.Add(a.dhND.Slice(first*d, (first+n)*d), dhRD.Slice(at*d, (at+n)*d))
		})
		return nil
	})
}
