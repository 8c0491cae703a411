package model

import (
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
	"gad/model/internal/logits"
)

// Divergence compares the distributions over the next token of two models p and q, at each response
// token of one sequence. All values are in nats, at temperature 1, summed over the vocabulary in
// float64.
type Divergence struct {
	LogP, LogQ []float64 // [T] log-probability of the sequence's token
	PQ, QP     []float64 // [T] KL(p||q) = Σ_v p_v (log p_v - log q_v), and KL(q||p)
}

// LogitsBytes bounds the bytes that Divergences needs for the logits of both models, on device and
// host together; one row may exceed it.
const LogitsBytes = 2 * 2 * 4 * logits.Elements

// Divergences returns the comparison of m, which is p, with q for each sequence of seqs, token by
// token of its responses. Both models read the same ids. The sequences are one pack; no gradient is
// kept. If one model has more rows of vocabulary, such as padding, both distributions are
// conditioned on the tokens that both models have. An id that one of them lacks is an error.
//
// Only a chunk of rows of logits is in memory at a time (logits.Rows).
func (m *Model) Divergences(q *Model, seqs []Seq) ([]Divergence, error) {
	if m != q && m.ws == q.ws {
		return nil, fmt.Errorf("model: divergence: the two models share memory for activations: load one of them without that")
	}
	if err := m.hidden(seqs); err != nil {
		return nil, err
	}
	if err := q.hidden(seqs); err != nil {
		return nil, err
	}
	rows, vocab := m.pk.rows, min(m.Vocab(), q.Vocab())
	var flat Divergence // [R]
	for _, x := range []*[]float64{&flat.LogP, &flat.LogQ, &flat.PQ, &flat.QP} {
		*x = make([]float64, len(rows))
	}
	var zp, zq []float32
	bad := make([]bool, len(rows))
	for lo, most :=
		0, min(logits.Rows(m.cfg.Vocab), logits.Rows(q.cfg.Vocab)); lo < len(rows); lo += most {
		hi := min(lo+most, len(rows))
		var err error
		if zp, err = m.logits(zp, rows[lo:hi]); err != nil {
			return nil, err
		}
		if zq, err = q.logits(zq, q.pk.rows[lo:hi]); err != nil {
			return nil, err
		}
		logits.EachRow(lo, hi, func(r int) {
			p := zp[(r-lo)*m.cfg.Vocab:][:vocab]
			q := zq[(r-lo)*q.cfg.Vocab:][:vocab]
			flat.LogP[r], flat.LogQ[r], flat.PQ[r], flat.QP[r] = diverge(p, q, m.pk.targets[r])
			sum := flat.LogP[r] + flat.LogQ[r] + flat.PQ[r] + flat.QP[r]
			bad[r] = math.IsNaN(sum) || math.IsInf(sum, 0)
		})
	}
	if r := slices.Index(bad, true); r >= 0 {
		return nil, fmt.Errorf("model: divergence: %g and %g at token %d: the weights or activations are %w: go back to an earlier checkpoint", flat.PQ[r], flat.QP[r], m.pk.targets[r], ErrNotFinite)
	}
	out := make([]Divergence, len(seqs))
	place := m.pk.place
	for s, n := range m.pk.counts {
		for _, r := range place[:n] {
			out[s].LogP, out[s].LogQ =
				append(out[s].LogP, flat.LogP[r]), append(out[s].LogQ, flat.LogQ[r])
			out[s].PQ, out[s].QP = append(out[s].PQ, flat.PQ[r]), append(out[s].QP, flat.QP[r])
		}
		place = place[n:]
	}
	return out, nil
}

// hidden runs the backbone over a pack of seqs, and leaves the pack in m.pk and its outputs in
// m.acts.hND.
func (m *Model) hidden(seqs []Seq) error {
	if err := m.require(LM, false); err != nil {
		return err
	}
	p, err := m.pack(seqs, trainedRows)
	if err != nil {
		return err
	}
	a := m.activations(len(p.ids), keepNothing)
	if err := m.ws.Take(); err != nil {
		return err
	}
	if len(p.rows) > 0 {
		m.forward(a, p.ids, p.pos, m.attendPack)
	}
	return nil
}

// logits returns the logits [len(rows), V] of the given rows of m.acts.hND, in the memory of into,
// which it grows. Consecutive rows are one product.
func (m *network) logits(into []float32, rows []int32) ([]float32, error) {
	d, v := m.cfg.Hidden, m.cfg.Vocab
	zRV := m.ws.Get(logits.RV, compute.Wide, len(rows)*v)
	if err := m.ws.Take(); err != nil {
		return into, err
	}
	eachRun(rows, func(at, n int) {
		first := int(rows[at])
		logits.Head(m.be, m.head, zRV.Slice(at*v, (at+n)*v), m.acts.hND.Slice(first*d, (first+n)*d))
	})
	into = slices.Grow(into[:0], len(rows)*v)[:len(rows)*v]
	m.be.Download(into, zRV)
	if err := m.be.Sync(); err != nil {
		return into, fmt.Errorf("model: divergence: %w", err)
	}
	logits.Cap(into, m.head)
	return into, nil
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

// diverge returns a row of Divergences: the log-probabilities of token target by the logits zp and
// zq, KL(p||q) and KL(q||p). With e_v = exp(z_v - max z) and s = Σ e_v,
//
//	KL(p||q) = Σ_v e_v(p) (zp_v - zq_v)/s(p) - lse(p) + lse(q)
func diverge(zp, zq []float32, target int32) (logp, logq, pq, qp float64) {
	maxP, maxQ := slices.Max(zp), slices.Max(zq)
	var sp, sq, dp, dq float64
	for v, a := range zp {
		b := zq[v]
		apart := float64(a) - float64(b)
		ep, eq := math.Exp(float64(a)-float64(maxP)), math.Exp(float64(b)-float64(maxQ))
		sp, sq = sp+ep, sq+eq
		dp, dq = dp+ep*apart, dq-eq*apart
	}
	lseP, lseQ := float64(maxP)+math.Log(sp), float64(maxQ)+math.Log(sq)
	return float64(zp[target]) - lseP, float64(zq[target]) - lseQ, dp/sp - lseP + lseQ,
		dq/sq - lseQ + lseP
}
