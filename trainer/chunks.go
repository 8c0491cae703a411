package trainer

import (
	"fmt"

	"gad/actor"
	"gad/internal/report"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
)

// chunked is the form of a thought in chunks (rollout.chunk, doc/thought.md), each of which is a
// sequence.
type chunked struct {
	single
	chunks model.Chunks
}

// newChunked returns the form with the chunks of the settings.
func newChunked(s single) branchable { return chunked{s, s.t.cfg.Rollout.Thought()} }

func (f chunked) checkTokenizer(tok *tokenizer.Tokenizer) error {
	if err := tok.Continues(); err != nil {
		return fmt.Errorf("%w: rollout.chunk %d: %w: a later chunk would not have it: leave rollout.chunk out, or use a student with another template", config.ErrConfig, f.chunks.Size, err)
	}
	return nil
}

func (f chunked) longest() int { return f.chunks.Longest() }

// criticSeqs returns whole thoughts or, with critic.reads=last, the last chunk of each.
func (f chunked) criticSeqs(whole []model.Seq) []model.Seq {
	if f.t.cfg.Critic.Reads != "last" {
		return whole
	}
	return f.chunks.Last(whole)
}

func (f chunked) trainSeqs(whole []model.Seq) []model.Seq {
	list, _ := f.chunks.SplitAll(whole)
	return list
}

func (f chunked) describe(m Metrics, r *round) error {
	m["rollout/chunks_mean"] = float64(len(r.rollout())) / float64(len(r.answers()))
	return nil
}

func (f chunked) fillSample(s *report.Sample, a *answer) error {
	for _, n := range f.chunks.Seams(len(a.ids)) {
		s.Seams = append(s.Seams, f.mark(a, n))
	}
	return f.single.fillSample(s, a)
}

func (f chunked) words() string {
	return fmt.Sprintf(" in up to %d chunks of %d tokens", f.chunks.Most, f.chunks.Size)
}

func (f chunked) validate(m Metrics) error { return f.t.evaluate(m, f.chunks) }

func (f chunked) validationInputs() (acts bool, of []any) {
	return false, []any{f.chunks, f.t.cfg.Critic.Reads}
}

// branchPoints returns the seams between the chunks of a thought.
func (f chunked) branchPoints(_, end int, _ *answer) []int { return f.chunks.Seams(end) }

func (f chunked) ownSeqs(g *group, x *leaf, _ []model.Span) (list actor.Rollout) {
	at, left := 0, x.logp
	for _, seq := range f.chunks.Seqs(g.Prompt, x.ids) {
		n := seq.Trained()
		if at >= x.branch.At {
			list = append(list, &actor.Sequence{Seq: seq, Sampled: left[:n:n]})
			left = left[n:]
		}
		at += n
	}
	return list
}
