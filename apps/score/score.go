// Package score implements gad logprobs and gad score: log-probabilities and scores of given
// answers by a model, as lines of JSON.
package score

import (
	"bufio"
	"encoding/json"
	"io"

	"gad/apps/session"
	"gad/model"
	"gad/trainer/encode"
)

// Options says which model reads which answers.
type Options struct {
	session.Source
	Rows        session.Rows
	MaxResponse int // tokens; longer answers are cut
	MaxTokens   int // tokens of one forward pass
	// of gad score: folder of the student of a likelihood head; "": next to the discriminator
	Student string
}

// LogProbs prints the log-probability of each token of each answer, with logits divided by
// temperature.
func LogProbs(s *session.Session, o Options, temperature float64) error {
	load := func() (*session.Model, func(), error) {
		m, err := s.Load(o.Source, model.LM)
		if err != nil {
			return nil, nil, err
		}
		return m, m.Close, nil
	}
	return o.each(s, "log-probabilities, rows", load,
		func(m *session.Model, w io.Writer, given []encode.RowAnswer) error {
			seqs := make([]model.Seq, len(given))
			for i, g := range given {
				seqs[i] = g.Seq
			}
			logpST, _, err := m.AllLogProbs(seqs, temperature, o.MaxTokens)
			if err != nil {
				return err
			}
			for i, g := range given {
				if err := session.PrintJSON(w,
					logprobRow{g.Row, g.Seq.IDs[:g.Seq.Prompt()], g.Seq.Response(),
						session.Floats(logpST[i])}); err != nil {
					return err
				}
			}
			return nil
		})
}

// logprobRow is a line of gad logprobs.
type logprobRow struct {
	Row      int            `json:"row"`
	Prompt   []int32        `json:"prompt_ids"`
	Response []int32        `json:"response_ids"`
	LogProbs session.Floats `json:"logprobs"`
}

// Scores prints a discriminator's score of each answer.
func Scores(s *session.Session, o Options) error {
	var c *session.Critic
	if _, err := s.CheckCritic(o.Source); err != nil {
		return err
	}
	load := func() (*session.Model, func(), error) {
		be, err := session.OpenDevice(o.Device)
		if err != nil {
			return nil, nil, err
		}
		if c, err = s.LoadCritic(be, o.Source, nil, o.Student, o.MaxTokens); err != nil {
			be.Close()
			return nil, nil, err
		}
		return c.Model, func() { c.Close(); be.Close() }, nil
	}
	return o.each(s, "scores, rows", load,
		func(m *session.Model, w io.Writer, given []encode.RowAnswer) error {
			seqs := make([]model.Seq, len(given))
			for i, g := range given {
				seqs[i] = g.ForDiscriminator(m.Tokenizer)
			}
			scores, err := c.Score(seqs)
			if err != nil {
				return err
			}
			for i, g := range given {
				ids, n := seqs[i].IDs, seqs[i].Prompt()
				if err := session.PrintJSON(w,
					scoreRow{g.Row, session.Number(scores[i]), g.Truncated,
						m.Tokenizer.Decode(g.Seq.Response(), true), ids[:n], ids[n:]}); err != nil {
					return err
				}
			}
			return nil
		})
}

// scoreRow is a line of gad score.
type scoreRow struct {
	Row       int             `json:"row"`
	Score     json.RawMessage `json:"score"`
	Truncated bool            `json:"truncated,omitempty"`
	Text      string          `json:"text"`
	Prompt    []int32         `json:"prompt_ids"`
	Response  []int32         `json:"response_ids"`
}

// each loads the model and calls do with the rows, 64 at a time, so that output flows and memory
// stays bounded. name is the name of the progress bar.
func (o Options) each(s *session.Session, name string, load func() (*session.Model, func(), error),
	do func(*session.Model, io.Writer, []encode.RowAnswer) error) error {
	set, rows, err := o.Rows.List(s)
	if err != nil {
		return err
	}
	defer set.Close()
	m, closeModels, err := load()
	if err != nil {
		return err
	}
	defer closeModels()
	w := bufio.NewWriter(s.Out)
	advance, done := func(int) {}, func() {}
	// on a terminal the lines themselves show progress
	if !session.Terminal(s.Out) {
		advance, done = s.Console.Busy(name, len(rows))
	}
	defer done()
	const chunk = 64
	for lo := 0; lo < len(rows); lo += chunk {
		given, err := encode.RowAnswers(m.Tokenizer, set, rows[lo:min(lo+chunk, len(rows))],
			o.MaxResponse)
		if err != nil {
			return err
		}
		if err := do(m, w, given); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
		advance(len(given))
	}
	return nil
}
