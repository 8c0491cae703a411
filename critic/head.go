package critic

import (
	"errors"
	"fmt"
	"slices"

	"gad/model"
)

// A head turns the network's output into scores.
//
// value is a linear head hidden -> 1, read at a sequence's last token (GAD, arXiv 2511.10643) or,
// with level turn, at the end of each turn.
//
// likelihood is a language model q, compared with the student p that sampled:
//
//	D(x, y) = Σ_t log q(y_t | x, y_<t) - log p(y_t | x, y_<t)
//
// in nats, over the answer's tokens. The Bradley-Terry loss is least where D is the log-ratio of
// the teacher to the student, log p_T(y|x) - log p(y|x) + const(x); here that means q = p_T,
// however the student has changed meanwhile: q need not unlearn facts about an earlier student. q
// begins as the student, so that D is 0 everywhere at first. The form is that of AIRL's
// discriminator (Fu, Luo and Levine, arXiv 1710.11248, f - log π) with a normalised f.
type head interface {
	// scores returns the network's part of each sequence's scores [S][scores], before the baseline
	// is subtracted, by forward passes in packs of maxTokens tokens.
	scores(seqs []model.Seq, maxTokens int) ([][]float64, error)
	// learn passes one pack forward and backward. It calls seed with the network's part of the
	// pack's scores, sequence after sequence; seed returns the loss's gradient with respect to
	// them, or nil to skip the backward pass.
	learn(pack []model.Seq, seed func(scoreN []float64) ([]float32, error)) error
}

// valueHead is a linear head: one score per sequence or, byTurn, one per turn.
type valueHead struct {
	m      *model.Model
	byTurn bool
}

func (h valueHead) scores(seqs []model.Seq, maxTokens int) (out [][]float64, err error) {
	var scoreSK [][]float32
	if h.byTurn {
		scoreSK, err = h.m.AllTurnScores(seqs, maxTokens)
	} else {
		var scoreS []float32
		scoreS, err = h.m.AllScores(seqs, maxTokens)
		for i := range scoreS {
			scoreSK = append(scoreSK, scoreS[i:i+1])
		}
	}
	for _, row := range scoreSK {
		out = append(out, float64s(row))
	}
	return out, err
}

func (h valueHead) learn(pack []model.Seq, seed func([]float64) ([]float32, error)) error {
	pass := h.m.ScoreGrad
	if h.byTurn {
		pass = h.m.TurnScoreGrad
	}
	return pass(pack, func(scoreN []float32) ([]float32, error) { return seed(float64s(scoreN)) })
}

// likelihoodHead is the language model q. With level turn, the score of a turn is the sum over all
// tokens up to its end.
type likelihoodHead struct {
	m           *model.Model
	temperature float64 // of the rollouts, for both q and p
	byTurn      bool
}

func (h likelihoodHead) scores(seqs []model.Seq, maxTokens int) ([][]float64, error) {
	return sums(h.m, seqs, h.temperature, maxTokens, h.byTurn)
}

// sums returns the log-probabilities that m gives to the trained tokens of each sequence, summed up
// to the end of each turn or, unless byTurn, over all of them [S][scores].
func sums(m *model.Model, seqs []model.Seq, temperature float64, maxTokens int,
	byTurn bool) (out [][]float64, err error) {
	logpST, _, err := m.AllLogProbs(seqs, temperature, maxTokens)
	for s, logpT := range logpST {
		out = append(out, prefixSums(logpT, seqs[s], byTurn))
	}
	return out, err
}

// prefixSums returns the sums of a sequence's log-probabilities up to the end of each turn or,
// unless byTurn, the one sum over all of them.
func prefixSums(logpT []float32, s model.Seq, byTurn bool) []float64 {
	if !byTurn {
		sum := 0.0
		for _, x := range logpT {
			sum += float64(x)
		}
		return []float64{sum}
	}
	out, at, sum := make([]float64, s.Turns()), 0, 0.0
	for k, p := range s.Spans {
		for range p.To - p.From {
			sum += float64(logpT[at])
			at++
		}
		out[k] = sum
	}
	return out
}

func (h likelihoodHead) learn(pack []model.Seq, seed func([]float64) ([]float32, error)) error {
	err := h.m.LogProbGrad(pack, h.temperature,
		func(logpST, _ [][]float32) (dlogpST, _ [][]float32, err error) {
			var scoreN []float64
			for s, logpT := range logpST {
				scoreN = append(scoreN, prefixSums(logpT, pack[s], h.byTurn)...)
			}
			d, err := seed(scoreN)
			if err == nil && d == nil {
				err = errNoGradient
			}
			if err != nil {
				return nil, nil, err
			}
			for s, logpT := range logpST {
				n := 1
				if h.byTurn {
					n = pack[s].Turns()
				}
				dlogpST = append(dlogpST, spreadGradient(d[:n], pack[s], len(logpT), h.byTurn))
				d = d[n:]
			}
			return dlogpST, nil, nil
		})
	if errors.Is(err, errNoGradient) {
		return nil
	}
	return err
}

// errNoGradient ends a pass before its backward part, if its scores have no gradient.
var errNoGradient = errors.New("critic: no gradient")

// spreadGradient spreads the gradient dK of a sequence's scores over its tokens. A token is in the
// scores of its own turn and of all later ones.
func spreadGradient(dK []float32, s model.Seq, tokens int, byTurn bool) []float32 {
	out := make([]float32, tokens)
	if !byTurn {
		for t := range out {
			out[t] = dK[0]
		}
		return out
	}
	at, later := tokens, float32(0)
	for k := len(s.Spans) - 1; k >= 0; k-- {
		later += dK[k]
		for range s.Spans[k].To - s.Spans[k].From {
			at--
			out[at] = later
		}
	}
	return out
}

// float64s converts xs to float64.
func float64s(xs []float32) []float64 {
	out := make([]float64, len(xs))
	for i, x := range xs {
		out[i] = float64(x)
	}
	return out
}

// The heads' names.
const (
	Value      = "value"
	Likelihood = "likelihood"
)

// Kind returns the kind of network that the head needs.
func (c Config) Kind() model.Kind {
	if c.Head == Likelihood {
		return model.LM
	}
	return model.Scorer
}

// Scorer is a discriminator that only scores: it has no optimizer.
type Scorer struct {
	cfg  Config
	m    *model.Model
	head head

	student     *model.Model // of head likelihood: see SetStudent
	temperature float64
}

// NewScorer wraps a network of kind cfg.Kind. Of cfg it reads Head, Level and MaxTokenLen.
func NewScorer(m *model.Model, cfg Config) (*Scorer, error) {
	if m == nil {
		return nil, errors.New("critic: no network: load one with model.Load, or use critic.Open")
	}
	if m.Kind() != cfg.Kind() {
		return nil, fmt.Errorf("critic: critic.head=%s: the network has another head", cfg.Head)
	}
	c := &Scorer{cfg: cfg, m: m, temperature: 1, head: valueHead{m, cfg.byTurn()}}
	if cfg.Head == Likelihood {
		c.head = likelihoodHead{m, 1, cfg.byTurn()}
	}
	return c, nil
}

// Model returns the network that scores.
func (c *Scorer) Model() *model.Model { return c.m }

// SetStudent sets the student whose sequences a discriminator with head likelihood scores, and the
// temperature at which it samples them. The student's weights may change between calls of Update
// and Score.
func (c *Scorer) SetStudent(student *model.Model, temperature float64) {
	c.student, c.temperature = student, temperature
	if h, ok := c.head.(likelihoodHead); ok {
		h.temperature = temperature
		c.head = h
	}
}

// baseline returns the number to subtract from the network's part of each score [S][scores]: with
// head likelihood the student's log-probabilities; otherwise nil, for 0.
func (c *Scorer) baseline(seqs []model.Seq) ([][]float64, error) {
	if c.cfg.Head != Likelihood || len(seqs) == 0 {
		return nil, nil
	}
	if c.student == nil {
		return nil, errors.New("critic: critic.head=likelihood compares with the student, and none is named: call SetStudent first")
	}
	base, err := sums(c.student, seqs, c.temperature, c.cfg.MaxTokenLen, c.cfg.byTurn())
	if err != nil {
		return nil, fmt.Errorf("critic: the student's log-probabilities: %w", err)
	}
	return base, nil
}

// Score returns the discriminator's score of each sequence: at its last token or, with level turn,
// at the end of its last turn.
func (c *Scorer) Score(seqs []model.Seq) (scoreS []float32, err error) {
	scoreS, _, err = c.scoreTurns(seqs)
	return scoreS, err
}

// scoreTurns returns the scores of Score and, with level turn, the scores at the ends of all turns
// [S][turns]. A sequence passes forward once.
func (c *Scorer) scoreTurns(seqs []model.Seq) (scoreS []float32, turnS [][]float32, err error) {
	base, err := c.baseline(seqs)
	if err != nil {
		return nil, nil, err
	}
	all := &scores{}
	for i, s := range seqs {
		all.add(c.unscored(s, base, i))
	}
	if err := c.scoreUnknown(seqs, all, nil); err != nil {
		return nil, nil, err
	}
	scoreS, turnS = all.bySequence(c.cfg.byTurn())
	return scoreS, turnS, nil
}

// Terms returns the terms whose sum is the score of head likelihood: log q - log p for each trained
// token of each sequence, in nats [S][T].
func (c *Scorer) Terms(seqs []model.Seq) ([][]float32, error) {
	h, ok := c.head.(likelihoodHead)
	if !ok || c.student == nil {
		return nil, errors.New("critic: only a discriminator with critic.head=likelihood and a student (SetStudent) has terms by token")
	}
	termST, _, err := h.m.AllLogProbs(seqs, h.temperature, c.cfg.MaxTokenLen)
	if err != nil {
		return nil, fmt.Errorf("critic: %w", err)
	}
	termST = cloneRows(termST)
	baseST, _, err := c.student.AllLogProbs(seqs, h.temperature, c.cfg.MaxTokenLen)
	if err != nil {
		return nil, fmt.Errorf("critic: the student's log-probabilities: %w", err)
	}
	for s, row := range termST {
		for t := range row {
			row[t] -= baseST[s][t]
		}
	}
	return termST, nil
}

// cloneRows copies rows whose memory the next pass may overwrite.
func cloneRows(rows [][]float32) [][]float32 {
	out := make([][]float32, len(rows))
	for i, row := range rows {
		out[i] = slices.Clone(row)
	}
	return out
}
