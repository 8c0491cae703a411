package model

import (
	"fmt"
	"math"
	"slices"

	"gad/model/internal/logits"
	"gad/model/internal/sequence"
)

// SoftLabel is a teacher's distribution at one token: its most probable tokens, and one bucket for
// all others, the tail. The zero SoftLabel means no label: its loss is 0.
type SoftLabel struct {
	IDs  []int32   // [K] ascending
	Logp []float64 // [K] natural logarithms of their probabilities
	Rest float64   // probability of the tail
}

// overOne bounds by how much the sum of probabilities that a teacher has rounded may exceed 1.
const overOne = 1e-2

// NewSoftLabel returns the label of K tokens, in any order, with their log-probabilities; the
// remainder to 1 is the tail's probability. It refuses values that are no distribution.
func NewSoftLabel(ids []int32, logp []float64) (l SoftLabel, err error) {
	if len(ids) != len(logp) {
		return l, fmt.Errorf("model: soft label: %d tokens, and %d log-probabilities", len(ids),
			len(logp))
	}
	order := make([]int, len(ids))
	for k := range order {
		order[k] = k
	}
	slices.SortFunc(order, func(a, b int) int { return int(ids[a]) - int(ids[b]) })
	l.IDs, l.Logp = sequence.Pick(ids, order), sequence.Pick(logp, order)
	for k, x := range l.Logp {
		if !(x <= overOne && x >= -math.MaxFloat64) {
			return SoftLabel{}, fmt.Errorf("model: soft label: token %d has the log-probability %g: must be finite and at most 0", l.IDs[k], x)
		}
		if l.IDs[k] < 0 || k > 0 && l.IDs[k] == l.IDs[k-1] {
			return SoftLabel{}, fmt.Errorf(
				"model: soft label: token %d: must be an id, and given once", l.IDs[k])
		}
	}
	mass := l.Mass()
	if mass > 1+overOne {
		return SoftLabel{}, fmt.Errorf("model: soft label: the probabilities of %d tokens add up to %g: must be at most 1", len(ids), mass)
	}
	if len(ids) > 0 {
		l.Rest = max(0, 1-mass)
	}
	return l, nil
}

// Mass returns the total probability of the label's tokens, without the tail.
func (l SoftLabel) Mass() (sum float64) {
	for _, x := range l.Logp {
		sum += math.Exp(x)
	}
	return sum
}

// With returns l with token id, whose log-probability is logp, added unless l has it.
func (l SoftLabel) With(id int32, logp float64) (SoftLabel, error) {
	if slices.Contains(l.IDs, id) {
		return l, nil
	}
	return NewSoftLabel(append(slices.Clone(l.IDs), id), append(slices.Clone(l.Logp), logp))
}

// SoftMemory returns the bytes on the host of the labels of so many tokens, each of k ids, and of
// their measured values.
func SoftMemory(tokens, k int) int64 { return int64(tokens) * int64(56+24+12*k) }

// check refuses a label that NewSoftLabel does not make, and ids outside a vocabulary of vocab.
func (l SoftLabel) check(vocab int) error {
	if len(l.Logp) != len(l.IDs) {
		return fmt.Errorf("%d ids, and %d log-probabilities", len(l.IDs), len(l.Logp))
	}
	before := int32(-1)
	for _, id := range l.IDs {
		if id <= before {
			return fmt.Errorf("id %d after %d: must ascend", id, before)
		}
		before = id
	}
	if int(before) >= vocab {
		return fmt.Errorf("id %d: outside the vocabulary of %d: use labels of the model's own tokenizer", before, vocab)
	}
	return nil
}

// SoftFigures are sums, over the tokens that have soft labels, of the agreement of a model with its
// teacher.
type SoftFigures struct {
	Tokens      float64
	Overlap     float64 // share of the label's K tokens that are among the model's K most probable
	TeacherMass float64 // the teacher's probability of the label's tokens
	StudentMass float64 // the model's probability of the label's tokens
}

// Add returns the sum of f and g.
func (f SoftFigures) Add(g SoftFigures) SoftFigures {
	return SoftFigures{f.Tokens + g.Tokens, f.Overlap + g.Overlap, f.TeacherMass + g.TeacherMass,
		f.StudentMass + g.StudentMass}
}

// LogProbTailGrad is LogProbGrad whose seed also gets tailST, the loss of the labels at each
// trained token, and returns the whole loss's gradient with respect to it, dtailST; it may be nil.
// With the teacher's p and the model's q, K the label's tokens, and the tails p_r = 1 - Σ_K p_v
// and q_r = 1 - Σ_K q_v, the loss is KL(p||q) over the K tokens and the tail as one more event,
//
//	L = Σ_K p_v log(p_v/q_v) + p_r log(p_r/q_r)
//	dL/dz_v = (q_v - p_v) / temperature               for v in K
//	dL/dz_v = q_v (1 - p_r/q_r) / temperature         elsewhere
//
// The gradient is that of cross entropy with the teacher if its tail is divided among the tokens in
// the model's proportions. labelsST has a label for each trained token; a zero label has loss and
// gradient 0. Only the logits of a chunk of rows are in memory at a time.
func (m *Model) LogProbTailGrad(seqs []Seq, labelsST [][]SoftLabel, temperature float64,
	seed func(logpST, entST, tailST [][]float32) (dlogpST, dentST, dtailST [][]float32,
		err error)) (SoftFigures, error) {
	x, err := newLabelPass(m, seqs, labelsST, temperature)
	if err != nil {
		return SoftFigures{}, err
	}
	return m.tailGrad(seqs, x, temperature, seed)
}

// LogProbTopKGrad is LogProbTailGrad with the labels of a teacher q on the same backend: its k most
// probable tokens with their exact probabilities at the same temperature. q passes over reads,
// sequences with the same trained tokens as seqs; entries of its vocabulary that m lacks do not
// count.
func (m *Model) LogProbTopKGrad(seqs []Seq, q *Model, reads []Seq, k int, temperature float64,
	seed func(logpST, entST, tailST [][]float32) (dlogpST, dentST, dtailST [][]float32,
		err error)) (SoftFigures, error) {
	if k < 1 {
		return SoftFigures{}, fmt.Errorf("model: soft labels: %d tokens: must be 1 or more", k)
	}
	x, err := newPairedKLPass(m, q, seqs, reads, 1, temperature)
	if err != nil {
		return SoftFigures{}, err
	}
	x.soft = &softPass{top: k}
	return m.tailGrad(seqs, x, temperature, seed)
}

// tailGrad runs the passes of LogProbTailGrad with the labels of x.soft.
func (m *Model) tailGrad(seqs []Seq, x *klPass, temperature float64,
	seed func(logpST, entST, tailST [][]float32) (dlogpST, dentST, dtailST [][]float32,
		err error)) (SoftFigures, error) {
	if err := m.require(LM, true); err != nil {
		return SoftFigures{}, err
	}
	err := m.logProbGrad(seqs, temperature, x,
		func(logpST, entST [][]float32) (dlogpST, dentST [][]float32, err error) {
			dlogpST, dentST, x.dklST, err = seed(logpST, entST, x.klST)
			return dlogpST, dentST, err
		})
	if err != nil {
		return SoftFigures{}, err
	}
	return x.soft.figures(), nil
}

// AllSoftLabels returns m's labels as a teacher, [S][T], for each trained token of seqs: its k most
// probable tokens. The distribution is confined to the first vocab ids. Packs have maxTokens
// tokens; all are computed on this rank.
func (m *Model) AllSoftLabels(seqs []Seq, k, vocab int, temperature float64,
	maxTokens int) (labelsST [][]SoftLabel, err error) {
	return m.allSoftLabels(seqs, k, vocab, false, temperature, maxTokens)
}

// AllScored returns AllSoftLabels with the sequence's own token added to each label that lacks it.
func (m *Model) AllScored(seqs []Seq, k, vocab int, temperature float64,
	maxTokens int) (labelsST [][]SoftLabel, err error) {
	return m.allSoftLabels(seqs, k, vocab, true, temperature, maxTokens)
}

// allSoftLabels returns AllSoftLabels, or if own AllScored.
func (m *Model) allSoftLabels(seqs []Seq, k, vocab int, own bool, temperature float64,
	maxTokens int) (labelsST [][]SoftLabel, err error) {
	inv, err := invTemp(temperature)
	if err != nil {
		return nil, err
	}
	if k < 1 || vocab < 1 {
		return nil, fmt.Errorf(
			"model: soft labels: %d tokens of a vocabulary of %d: must be 1 or more", k, vocab)
	}
	labelsST = make([][]SoftLabel, len(seqs))
	var z []float32
	for _, pack := range sequence.Packs(seqs, maxTokens) {
		if err := m.hidden(sequence.Pick(seqs, pack)); err != nil {
			return nil, err
		}
		rows, v, most := m.pk.rows, m.cfg.Vocab, min(m.Vocab(), vocab)
		labelR := make([]SoftLabel, len(rows))
		for lo, many := 0, logits.Rows(v); lo < len(rows); lo += many {
			hi := min(lo+many, len(rows))
			if z, err = m.logits(z, rows[lo:hi]); err != nil {
				return nil, err
			}
			logits.EachRow(lo, hi, func(r int) {
				ids := logits.Largest(z[(r-lo)*v:][:most], k)
				if target := m.pk.targets[r]; own && !slices.Contains(ids, target) {
					ids = append(ids, target)
				}
				labelR[r] = labelOf(z[(r-lo)*v:][:most], ids, inv)
			})
		}
		if r := slices.IndexFunc(labelR, SoftLabel.notFinite); r >= 0 {
			return nil, fmt.Errorf("model: soft labels: token %d: the weights or activations are %w: go back to an earlier checkpoint", m.pk.targets[r], ErrNotFinite)
		}
		place := m.pk.place
		for i, n := range m.pk.counts {
			labelsST[pack[i]] = make([]SoftLabel, n)
			for t, r := range place[:n] {
				labelsST[pack[i]][t] = labelR[r]
			}
			place = place[n:]
		}
	}
	return labelsST, nil
}

// notFinite reports whether a value of the label is NaN or infinite.
func (l SoftLabel) notFinite() bool {
	sum := l.Rest
	for _, x := range l.Logp {
		sum += x
	}
	return math.IsNaN(sum) || math.IsInf(sum, 0)
}

// softPass has the labels of a pack and the values measured at them.
type softPass struct {
	top    int         // the labels have klPass.q's top tokens; 0: the caller gave the labels
	labelR []SoftLabel // [R]
	restR  []float64   // [R] the model's probability of the tail
	massR  []float64   // [R] the model's probability of the label's tokens
	bothR  []float64   // [R] share of the label's tokens among the model's most probable
}

// newLabelPass returns a comparison of a pack of seqs with the given labels.
func newLabelPass(m *Model, seqs []Seq, labelsST [][]SoftLabel,
	temperature float64) (*klPass, error) {
	inv, err := invTemp(temperature)
	if err != nil {
		return nil, err
	}
	if err := checkLabels(seqs, labelsST, m.Vocab()); err != nil {
		return nil, err
	}
	return &klPass{inv: inv, v: m.Vocab(), soft: &softPass{}, labelsST: labelsST}, nil
}

// checkLabels refuses labels that do not match the trained tokens of seqs in number, or are
// invalid.
func checkLabels(seqs []Seq, labelsST [][]SoftLabel, vocab int) error {
	if len(labelsST) != len(seqs) {
		return fmt.Errorf("model: soft labels: %d sequences, labels of %d", len(seqs),
			len(labelsST))
	}
	for s, seq := range seqs {
		if len(labelsST[s]) != seq.Trained() {
			return fmt.Errorf(
				"model: soft labels: sequence %d has %d trained tokens, and %d labels", s,
				seq.Trained(), len(labelsST[s]))
		}
		for t, l := range labelsST[s] {
			if err := l.check(vocab); err != nil {
				return fmt.Errorf("model: soft labels: sequence %d, token %d: %w", s, t, err)
			}
		}
	}
	return nil
}

// alloc allocates the values of the pack's rows, and sets their labels from labelsST, by
// sequence.
func (x *softPass) alloc(p *pack, labelsST [][]SoftLabel) {
	n := len(p.rows)
	x.labelR = make([]SoftLabel, n)
	x.restR, x.massR, x.bothR = make([]float64, n), make([]float64, n), make([]float64, n)
	place := p.place
	for _, labels := range labelsST {
		for t, l := range labels {
			x.labelR[place[t]] = l
		}
		place = place[len(labels):]
	}
}

// measureRow sets the values at row r, whose logits are zp, and returns the loss and the log of the
// sum of exponentials of inv*zp. zq are the teacher's logits if top is above 0.
func (x *softPass) measureRow(zp, zq []float32, inv float64, r int) (loss, lse float64) {
	if x.top > 0 {
		x.labelR[r] = softLabel(zq, x.top, inv)
	}
	l := x.labelR[r]
	if len(l.IDs) == 0 {
		return 0, 0
	}
	lse, rest := logits.SumApart(zp, l.IDs, inv)
	least := kthLargest(zp, len(l.IDs))
	mass, both := 0.0, 0
	for k, id := range l.IDs {
		logq := float64(inv*float64(zp[id])) - lse
		loss += float64(math.Exp(l.Logp[k]) * (l.Logp[k] - logq))
		mass += math.Exp(logq)
		if zp[id] >= least {
			both++
		}
	}
	if l.Rest > 0 {
		loss += float64(l.Rest * min(math.Log(l.Rest)-math.Log(rest), farApart))
	}
	x.restR[r], x.massR[r], x.bothR[r] = rest, mass, float64(both)/float64(len(l.IDs))
	return max(loss, 0), lse
}

// gradient overwrites zp, the logits at row r, with the gradient of the loss, times weight.
func (x *softPass) gradient(zp []float32, r int, lse, inv, weight float64) {
	l := x.labelR[r]
	if len(l.IDs) == 0 {
		clear(zp)
		return
	}
	tail := 0.0 // 1 - p_r/q_r; a tail without probability has no gradient
	if x.restR[r] > 0 {
		tail = 1 - l.Rest/x.restR[r]
	}
	k := 0
	for v, z := range zp {
		q := math.Exp(float64(inv*float64(z)) - lse)
		if k < len(l.IDs) && int(l.IDs[k]) == v {
			zp[v] = float32(weight * (q - math.Exp(l.Logp[k])))
			k++
			continue
		}
		zp[v] = float32(weight * (q * tail))
	}
}

// figures returns the sums over the pack's rows that have labels.
func (x *softPass) figures() (f SoftFigures) {
	for r, l := range x.labelR {
		if len(l.IDs) > 0 {
			f = f.Add(SoftFigures{1, x.bothR[r], l.Mass(), x.massR[r]})
		}
	}
	return f
}

// softLabel returns the label of the k most probable tokens by the logits inv*z; of equal logits
// the lower id comes first.
func softLabel(z []float32, k int, inv float64) SoftLabel {
	return labelOf(z, logits.Largest(z, k), inv)
}

// labelOf returns the label of the tokens ids by the logits inv*z. It sorts ids.
func labelOf(z []float32, ids []int32, inv float64) SoftLabel {
	l := SoftLabel{IDs: ids}
	slices.Sort(l.IDs)
	var lse float64
	lse, l.Rest = logits.SumApart(z, l.IDs, inv)
	for _, id := range l.IDs {
		l.Logp = append(l.Logp, float64(inv*float64(z[id]))-lse)
	}
	return l
}

// kthLargest returns the k-th largest logit.
func kthLargest(z []float32, k int) float32 {
	best := logits.Largest(z, k)
	return z[best[len(best)-1]]
}
