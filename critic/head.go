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
// likelihood is a language model q beside the student p that sampled:
//
//	D(x, y) = Σ_t log q(y_t | x, y_<t) - log p(y_t | x, y_<t)
//
// in nats, over the answer's tokens. The Bradley-Terry loss is least where D is the log-ratio of
// the teacher to the student, log p_T(y|x) - log p(y|x) + const(x); here that is q = p_T, whatever
// the student has become meanwhile: q does not have to unlearn what was true of an earlier student.
// q begins as the student, so that D is 0 everywhere at first. The form is that of AIRL's
// discriminator (Fu, Luo and Levine, arXiv 1710.11248, f - log π) with a normalised f.
type head interface {
	// scores returns what the network alone gives to each sequence's scores [S][scores], by forward
	// passes in packs of maxTokens tokens.
	scores(seqs []model.Seq, maxTokens int) ([][]float64, error)
	// learn passes one pack forward and backward. seed gets the same numbers sequence by sequence,
	// and returns the loss's gradient with respect to them; nil is no backward pass.
	learn(pack []model.Seq, seed func(scoreN []float64) ([]float32, error)) error
}

// valueHead is a Scorer's linear head.
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

// likelihoodHead is the language model q. With level turn, the score of a turn is the sum over the
// tokens up to its end.
type likelihoodHead struct {
	m           *model.Model
	temperature float64 // of the rollouts: of q as of p
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
		out = append(out, upTo(logpT, seqs[s], byTurn))
	}
	return out, err
}

// upTo returns the sums of a sequence's log-probabilities up to the end of each turn, or of all.
func upTo(logpT []float32, s model.Seq, byTurn bool) []float64 {
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
				scoreN = append(scoreN, upTo(logpT, pack[s], h.byTurn)...)
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
				dlogpST = append(dlogpST, byToken(d[:n], pack[s], len(logpT), h.byTurn))
				d = d[n:]
			}
			return dlogpST, nil, nil
		})
	if errors.Is(err, errNoGradient) {
		return nil
	}
	return err
}

// errNoGradient ends a pass whose scores have no gradient, before its backward part.
var errNoGradient = errors.New("critic: no gradient")

// byToken spreads the gradient of a sequence's scores over its tokens: a token is in the scores of
// its own turn and of all later ones.
func byToken(dK []float32, s model.Seq, tokens int, byTurn bool) []float32 {
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

// float64s returns xs in float64.
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

// Scorer is a discriminator that scores. It does not learn.
type Scorer struct {
	cfg  Config
	m    *model.Model
	head head

	student     *model.Model // of head likelihood: see Against
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

// Against names the student whose sequences a discriminator with head likelihood scores, and the
// temperature at which it samples them. Its weights may change between calls of Update and Score.
func (c *Scorer) Against(student *model.Model, temperature float64) {
	c.student, c.temperature = student, temperature
	if h, ok := c.head.(likelihoodHead); ok {
		h.temperature = temperature
		c.head = h
	}
}

// behind returns what is subtracted from the network's part of each score [S][scores]: with head
// likelihood the student's log-probabilities, else nothing (nil).
func (c *Scorer) behind(seqs []model.Seq) ([][]float64, error) {
	if c.cfg.Head != Likelihood || len(seqs) == 0 {
		return nil, nil
	}
	if c.student == nil {
		return nil, errors.New("critic: critic.head=likelihood compares with the student, and none is named: call Against first")
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

// scoreTurns returns the scores of Score and, with level turn, those at the end of each turn
// [S][turns]. A sequence passes forward once.
func (c *Scorer) scoreTurns(seqs []model.Seq) (scoreS []float32, turnS [][]float32, err error) {
	base, err := c.behind(seqs)
	if err != nil {
		return nil, nil, err
	}
	all := &scores{}
	for i, s := range seqs {
		all.add(c.unknown(s, base, i))
	}
	if err := c.scoreUnknown(seqs, all, nil); err != nil {
		return nil, nil, err
	}
	scoreS, turnS = all.bySequence(c.cfg.byTurn())
	return scoreS, turnS, nil
}

// Terms returns the terms of which the score of head likelihood is the sum, log q - log p for each
// trained token of each sequence, in nats [S][T].
func (c *Scorer) Terms(seqs []model.Seq) ([][]float32, error) {
	h, ok := c.head.(likelihoodHead)
	if !ok || c.student == nil {
		return nil, errors.New("critic: only a discriminator with critic.head=likelihood and a student (Against) has terms by token")
	}
	termST, _, err := h.m.AllLogProbs(seqs, h.temperature, c.cfg.MaxTokenLen)
	if err != nil {
		return nil, fmt.Errorf("critic: %w", err)
	}
	termST = cloned(termST)
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

// cloned copies rows that the next pass may overwrite.
func cloned(rows [][]float32) [][]float32 {
	out := make([][]float32, len(rows))
	for i, row := range rows {
		out[i] = slices.Clone(row)
	}
	return out
}
