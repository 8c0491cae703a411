package model

import (
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
	"gad/model/internal/architecture"
	"gad/model/internal/sequence"
)

// pack is sequences laid end to end. Adjacent sequences with the same prompt share its tokens:
// their responses are branches of it (compute.Pack). Branching sequences are branches of their
// longest common prefixes.
type pack struct {
	compute.Pack
	ids, pos      []int32
	rows, targets []int32  // [R] by trained token: the row that predicts it, and its id
	place         []int32  // [R] index in rows of each trained token, sequence by sequence
	counts        []int    // [S] trained tokens
	scored        []int32  // rows that are scored, each once
	scores        []int32  // [N] index in scored of each score, sequence by sequence
	laid          struct { // buffers of lay: the group of sequences being laid out
		sequence.Tree
		from  []int    // start of each sequence in rows
		rows  []int32  // row of each token, sequence by sequence
		at    []uint64 // trained tokens: row in the upper half, number in the lower
		token []int32  // ids of the trained tokens, by number
	}
}

// reads selects the rows of a pack that its head reads.
type reads int

const (
	trainedRows reads = iota // rows that predict trained tokens: each sequence needs a prompt
	lastRows                 // rows of the sequences' last tokens
	turnRows                 // rows of the tokens that end turns (Seq.TurnEnd)
)

// pack checks the sequences and lays them out, over the previous pack.
func (m *Model) pack(seqs []Seq, which reads) (*pack, error) {
	p := &m.pk
	*p = pack{Pack: compute.Pack{Start: append(p.Start[:0], 0), Parent: p.Parent[:0]},
		ids: p.ids[:0], pos: p.pos[:0],
		rows: p.rows[:0], targets: p.targets[:0], place: p.place[:0], counts: p.counts[:0],
		scored: p.scored[:0], scores: p.scores[:0], laid: p.laid}
	longest := 0
	for i, s := range seqs {
		n := len(s.IDs)
		if n == 0 {
			return nil, fmt.Errorf("model: sequence %d: empty: expected at least one token", i)
		}
		if n > m.cfg.MaxPosition {
			key := "max_position_embeddings"
			if s := m.cfg.RopeScaling; s != nil && s.Type == "longrope" {
				key = "longrope's original_max_position_embeddings"
			}
			return nil, fmt.Errorf("model: sequence %d: %d tokens: more than %s %d: cut it or drop it",
				i, n, key, m.cfg.MaxPosition)
		}
		if which == trainedRows || which == turnRows && len(s.Spans) > 0 {
			if err := s.Check(); err != nil {
				return nil, fmt.Errorf("model: sequence %d: %w", i, err)
			}
		}
		if err := sequence.CheckIDs(s.IDs, m.Vocab()); err != nil {
			return nil, fmt.Errorf("model: sequence %d: %w", i, err)
		}
		longest = max(longest, n)
	}
	for lo := 0; lo < len(seqs); {
		hi := lo + 1
		for hi < len(seqs) && !m.unshared && sequence.SharePrompt(seqs[lo], seqs[hi]) {
			hi++
		}
		p.lay(seqs[lo:hi], which)
		if len(p.ids) > math.MaxInt32 {
			return nil,
				fmt.Errorf("model: sequence %d: pack of more than %d tokens: make packs smaller",
					lo, math.MaxInt32)
		}
		lo = hi
	}
	m.progress.begin(len(p.ids), len(m.blocks))
	return p, m.angles(longest)
}

// lay appends the sequences of one prompt. rows of trained tokens ascend within the group, so that
// tokens predicted from one row, the last row of a run with branches, are adjacent.
func (p *pack) lay(group []Seq, which reads) {
	g := &p.laid
	g.Grow(group)
	all := 0
	g.from = g.from[:0]
	for _, s := range group {
		g.from = append(g.from, all)
		all += len(s.IDs)
	}
	g.rows = slices.Grow(g.rows[:0], all)[:all]
	first := int32(len(p.Parent))
	for _, r := range g.Runs {
		at, parent := len(p.ids), int32(-1)
		if r.Parent >= 0 {
			parent = first + int32(r.Parent)
		}
		p.segment(group[g.Order[r.Lo]].IDs[r.From:r.To], r.From, parent)
		for _, s := range g.Order[r.Lo:r.Hi] {
			for t := r.From; t < r.To; t++ {
				g.rows[g.from[s]+t] = int32(at + t - r.From)
			}
		}
	}
	if which == trainedRows {
		p.train(group)
		return
	}
	var known map[int32]int32 // scored rows that several Branching sequences may share
	for i, s := range group {
		rows := g.rows[g.from[i]:][:len(s.IDs)]
		p.counts = append(p.counts, s.Trained())
		if which == lastRows {
			p.score(rows[len(rows)-1])
			continue
		}
		for k := range s.Turns() {
			row := rows[s.TurnEnd(k)]
			n, ok := known[row]
			if ok {
				p.scores = append(p.scores, n)
				continue
			}
			if s.Branching {
				if known == nil {
					known = map[int32]int32{}
				}
				known[row] = int32(len(p.scored))
			}
			p.score(row)
		}
	}
}

// score appends a score, and its row to scored.
func (p *pack) score(row int32) {
	p.scores, p.scored = append(p.scores, int32(len(p.scored))), append(p.scored, row)
}

// train appends the trained tokens of group, which lay is laying out.
func (p *pack) train(group []Seq) {
	g := &p.laid
	g.at, g.token = g.at[:0], g.token[:0]
	for i, s := range group {
		p.counts = append(p.counts, s.Trained())
		for _, span := range s.Spans {
			for t := span.From; t < span.To; t++ {
				g.at = append(g.at, uint64(g.rows[g.from[i]+t-1])<<32|uint64(len(g.token)))
				g.token = append(g.token, s.IDs[t])
			}
		}
	}
	slices.Sort(g.at)
	first := len(p.place)
	p.place = slices.Grow(p.place, len(g.at))[:first+len(g.at)]
	for _, x := range g.at {
		k := int(uint32(x))
		p.place[first+k] = int32(len(p.rows))
		p.rows, p.targets = append(p.rows, int32(x>>32)), append(p.targets, g.token[k])
	}
}

// segment appends a run of tokens behind segment parent, -1 for none; pos is the first token's
// position.
func (p *pack) segment(ids []int32, pos int, parent int32) {
	for t := range ids {
		p.pos = append(p.pos, int32(pos+t))
	}
	p.ids = append(p.ids, ids...)
	p.Start, p.Parent = append(p.Start, int32(len(p.ids))), append(p.Parent, parent)
}

// split returns x, a value for each of the pack's rows, as rows by sequence in out, whose memory is
// flat. It is join's inverse.
func (p *pack) split(out [][]float32, flat, x []float32) [][]float32 {
	out = slices.Grow(out[:0], len(p.counts))
	for k, r := range p.place {
		flat[k] = x[r]
	}
	for _, n := range p.counts {
		out, flat = append(out, flat[:n:n]), flat[n:]
	}
	return out
}

// join writes x, rows by sequence, to out in the order of the pack's rows; what names the values in
// errors. It is split's inverse.
func (p *pack) join(out []float32, what string, x [][]float32) ([]float32, error) {
	if len(x) != len(p.counts) {
		return nil, fmt.Errorf("model: %s of %d sequences: the pack has %d", what, len(x),
			len(p.counts))
	}
	out = slices.Grow(out[:0], len(p.rows))[:len(p.rows)]
	place := p.place
	for i, r := range x {
		if len(r) != p.counts[i] {
			return nil,
				fmt.Errorf("model: %s of sequence %d: %d values: its response has %d tokens", what,
					i, len(r), p.counts[i])
		}
		for t, v := range r {
			out[place[t]] = v
		}
		place = place[len(r):]
	}
	return out, nil
}

// require refuses a model of another kind, or a frozen one if train.
func (m *Model) require(k Kind, train bool) error {
	if m.opt.Kind != k {
		return fmt.Errorf("model: a %s model where a %s model is needed", m.opt.Kind, k)
	}
	if train && !m.opt.Trainable {
		return fmt.Errorf("model: a frozen model has no gradients: load it with Trainable")
	}
	return nil
}

// invTemp returns 1/temperature.
func invTemp(temperature float64) (float64, error) {
	if !(temperature > 0 && temperature <= math.MaxFloat32) {
		return 0, fmt.Errorf("model: temperature %g: expected a positive number (1 for the model's own distribution)", temperature)
	}
	return 1 / temperature, nil
}

// attendPack computes the attention of layer i over the sequences of the pack.
func (m *network) attendPack(i int, b *block, posN []int32) {
	l := m.spec.Layers[i]
	switch l.Mixer {
	case architecture.ShortConv:
		m.be.GatedConv(b.convND, b.uND, b.gateN3D, m.blocks[i].conv, m.pk.Pack)
		return
	case architecture.DeltaRule:
		m.recur(i, b, m.pk.Pack, compute.States{}, compute.States{})
		return
	}
	m.rotate(l, b.qNHE, b.kNKE, b.qkNHE, posN, false)
	m.be.Attention(b.oNHE, b.lseNH, b.qNHE, b.kNKE, b.vNKE, m.attnShape(l), m.pk.Pack)
}

// recur computes the convolution and the gated delta rule of layer i over a pack, from the states
// of both and to them.
func (m *network) recur(i int, b *block, pack compute.Pack, conv, rule compute.States) {
	p, d := &m.blocks[i], b.delta
	m.be.SiLUConv(d.cNW, d.xNW, p.conv, pack, conv)
	m.be.GatedDelta(d.oNV, d.cNW, d.aNH, d.bNH, p.logA, p.dt, m.cfg.Mixer.shape(), pack, rule)
}

// headMemory returns the outputs of the language model's head for the pack's rows.
func (m *network) headMemory(p *pack) compute.HeadOut {
	r := len(p.rows)
	return compute.HeadOut{
		LogpR: m.ws.Get("log-probabilities [R]", compute.Wide, r),
		EntR:  m.ws.Get("entropies [R]", compute.Wide, r),
		LseR:  m.ws.Get("logit sums [R]", compute.Wide, r),
	}
}

// keeps returns the activations that a training pass keeps.
func (o Options) keeps() keep {
	if o.Recompute {
		return keepInputs
	}
	return keepBlocks
}

// LogProbs returns, for each sequence's trained tokens, span after span, the natural logarithm of
// their probability at the given temperature, and the entropy, in nats, of the distribution that
// they were drawn from. The sequences are one pack; no gradient is kept. A sequence's values have
// the same bits whatever else is in the pack, and whether or not its prompt is shared.
func (m *Model) LogProbs(seqs []Seq, temperature float64) (logpST, entST [][]float32, err error) {
	if err := m.require(LM, false); err != nil {
		return nil, nil, err
	}
	inv, err := invTemp(temperature)
	if err != nil {
		return nil, nil, err
	}
	p, err := m.pack(seqs, trainedRows)
	if err != nil {
		return nil, nil, err
	}
	if len(p.rows) == 0 {
		return p.split(nil, nil, nil), p.split(nil, nil, nil), nil
	}
	a := m.activations(len(p.ids), keepNothing)
	out := m.headMemory(p)
	if err := m.ws.Take(); err != nil {
		return nil, nil, err
	}
	m.forward(a, p.ids, p.pos, m.attendPack)
	r := len(p.rows)
	logp, ent := make([]float32, r), make([]float32, r)
	if err := m.logProbs(logp, ent, out, inv); err != nil {
		return nil, nil, err
	}
	return p.split(nil, make([]float32, r), logp), p.split(nil, make([]float32, r), ent), nil
}

// logProbs runs the head behind a finished forward pass: it writes the log-probabilities and
// entropies of the pack's rows to logp and ent, and leaves them in out.
func (m *network) logProbs(logp, ent []float32, out compute.HeadOut, inv float64) error {
	m.be.LogProb(out, m.acts.hND, m.head, m.pk.rows, m.pk.targets, inv)
	m.be.Download(logp, out.LogpR)
	m.be.Download(ent, out.EntR)
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: log-probabilities: %w", err)
	}
	return nil
}

// LogProbGrad runs a forward pass, seed and a backward pass. seed gets log-probabilities and
// entropies as LogProbs returns them, valid until the model's next call, and returns the loss's
// gradient with respect to both, in the same shapes; dent may be nil. Gradients are added to
// Param.G. After an error Param.G may hold a part of them: the caller must clear it.
func (m *Model) LogProbGrad(seqs []Seq, temperature float64,
	seed func(logpST, entST [][]float32) (dlogpST, dentST [][]float32, err error)) error {
	return m.logProbGrad(seqs, temperature, nil, seed)
}

// logProbGrad runs the passes of LogProbGrad and, unless x is nil, of LogProbDivergenceGrad or
// LogProbTailGrad.
func (m *Model) logProbGrad(seqs []Seq, temperature float64, x *klPass,
	seed func(logpST, entST [][]float32) (dlogpST, dentST [][]float32, err error)) error {
	if err := m.require(LM, true); err != nil {
		return err
	}
	inv, err := invTemp(temperature)
	if err != nil {
		return err
	}
	p, err := m.pack(seqs, trainedRows)
	if err != nil {
		return err
	}
	r := len(p.rows)
	if r == 0 {
		if x != nil {
			x.klST = p.split(nil, nil, nil)
		}
		_, _, err := seed(p.split(nil, nil, nil), p.split(nil, nil, nil))
		return err
	}
	m.progress.withGradient()
	a := m.activations(len(p.ids), m.opt.keeps())
	out := m.headMemory(p)
	dlogp, dent :=
		m.ws.Get("gradient of log-probabilities [R]", compute.Wide, r),
		m.ws.Get("gradient of entropies [R]", compute.Wide, r)
	if err := m.ws.Take(); err != nil {
		return err
	}
	m.forward(a, p.ids, p.pos, m.attendPack)
	h := &m.host
	h.logp, h.ent = slices.Grow(h.logp[:0], r)[:r], slices.Grow(h.ent[:0], r)[:r]
	if err := m.logProbs(h.logp, h.ent, out, inv); err != nil {
		return err
	}
	if x != nil {
		if err := x.measure(m); err != nil {
			return err
		}
	}
	h.logpFlat, h.entFlat = slices.Grow(h.logpFlat[:0], r)[:r], slices.Grow(h.entFlat[:0], r)[:r]
	h.logpST, h.entST = p.split(h.logpST, h.logpFlat, h.logp), p.split(h.entST, h.entFlat, h.ent)
	dlogpST, dentST, err := seed(h.logpST, h.entST)
	if err != nil {
		return err
	}
	if h.d, err = p.join(h.d, "gradient of log-probabilities", dlogpST); err != nil {
		return err
	}
	m.be.Upload(dlogp, h.d)
	if dentST == nil {
		dent = compute.Tensor{}
	} else {
		if h.d, err = p.join(h.d, "gradient of entropies", dentST); err != nil {
			return err
		}
		m.be.Upload(dent, h.d)
	}
	if err := m.grads.begin(m); err != nil {
		return err
	}
	m.be.Zero(a.dhND)
	m.be.LogProbGrad(a.dhND, m.head, out, dlogp, dent, a.hND, p.rows, p.targets, inv)
	if x != nil {
		if err := x.learn(m, a); err != nil {
			return err
		}
	}
	m.backward(a, p.ids, p.pos, p.Pack, m.attendPack)
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: gradient of log-probabilities: %w", err)
	}
	return nil
}

// Scores returns a Scorer's value at each sequence's last token. The sequences are one pack; their
// spans only tell which prompt sequences share.
func (m *Model) Scores(seqs []Seq) ([]float32, error) { return m.scores(seqs, lastRows) }

// scores returns a Scorer's values at the chosen rows of a pack, sequence by sequence.
func (m *Model) scores(seqs []Seq, which reads) ([]float32, error) {
	if err := m.require(Scorer, false); err != nil {
		return nil, err
	}
	p, err := m.pack(seqs, which)
	if err != nil || len(seqs) == 0 {
		return nil, err
	}
	a := m.activations(len(p.ids), keepNothing)
	n := len(p.scored)
	s := m.ws.Get("scores [N]", compute.Wide, n)
	if err := m.ws.Take(); err != nil {
		return nil, err
	}
	m.forward(a, p.ids, p.pos, m.attendPack)
	x := make([]float32, n)
	err = m.score(x, s)
	return p.expandScores(nil, x), err
}

// expandScores returns x, a value of each scored row, as a value of each score, in out.
func (p *pack) expandScores(out, x []float32) []float32 {
	out = out[:0]
	for _, n := range p.scores {
		out = append(out, x[n])
	}
	return out
}

// score runs the head behind a finished forward pass: it writes the values of the scored rows to
// scoreN, and leaves them in s.
func (m *network) score(scoreN []float32, s compute.Tensor) error {
	m.be.Score(s, m.acts.hND, m.head, m.pk.scored)
	m.be.Download(scoreN, s)
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: scores: %w", err)
	}
	return nil
}

// ScoreGrad is LogProbGrad for a Scorer: seed gets the scores, valid until the model's next call,
// and returns the loss's gradient with respect to them. seed may return nil for a gradient of zero:
// then there is no backward pass.
func (m *Model) ScoreGrad(seqs []Seq,
	seed func(scoreS []float32) (dscoreS []float32, err error)) error {
	return m.scoreGrad(seqs, lastRows, seed)
}

// TurnScoreGrad is ScoreGrad with the scores of all turns, as AllTurnScores returns them, sequence
// by sequence (Seq.Turns of each), from one forward pass; one backward pass takes their gradients.
func (m *Model) TurnScoreGrad(seqs []Seq,
	seed func(scoreN []float32) (dscoreN []float32, err error)) error {
	return m.scoreGrad(seqs, turnRows, seed)
}

// scoreGrad runs the passes of ScoreGrad and TurnScoreGrad.
func (m *Model) scoreGrad(seqs []Seq, which reads,
	seed func(scoreN []float32) (dscoreN []float32, err error)) error {
	if err := m.require(Scorer, true); err != nil {
		return err
	}
	p, err := m.pack(seqs, which)
	if err != nil || len(seqs) == 0 {
		return err
	}
	m.progress.withGradient()
	a := m.activations(len(p.ids), m.opt.keeps())
	n := len(p.scored)
	s, ds :=
		m.ws.Get("scores [N]", compute.Wide, n),
		m.ws.Get("gradient of scores [N]", compute.Wide, n)
	if err := m.ws.Take(); err != nil {
		return err
	}
	m.forward(a, p.ids, p.pos, m.attendPack)
	h := &m.host
	h.d = slices.Grow(h.d[:0], n)[:n]
	if err := m.score(h.d, s); err != nil {
		return err
	}
	h.scoreN = p.expandScores(h.scoreN, h.d)
	dscoreN, err := seed(h.scoreN)
	if err != nil || dscoreN == nil {
		return err
	}
	if len(dscoreN) != len(p.scores) {
		return fmt.Errorf(
			"model: gradient of scores: %d values: the pack's %d sequences have %d scores",
			len(dscoreN), len(seqs), len(p.scores))
	}
	clear(h.d)
	for k, row := range p.scores {
		h.d[row] += dscoreN[k]
	}
	m.be.Upload(ds, h.d)
	if err := m.grads.begin(m); err != nil {
		return err
	}
	m.be.Zero(a.dhND)
	m.be.ScoreGrad(a.dhND, m.head, ds, a.hND, p.scored)
	m.backward(a, p.ids, p.pos, p.Pack, m.attendPack)
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: gradient of scores: %w", err)
	}
	return nil
}
