package trainer

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"gad/actor"
	"gad/algos"
	"gad/internal/report"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/encode"
)

// single is the plain form: an answer is one text, in one sequence.
type single struct{ t *Trainer }

func (single) checkTokenizer(*tokenizer.Tokenizer) error { return nil }
func (single) open() error                               { return nil }
func (single) close()                                    {}
func (single) kill()                                     {}

func (f single) longest() int { return f.t.cfg.Data.MaxResponse }

func (f single) sample(_ Metrics, r *round) error {
	t := f.t
	key := actor.Key{Seed: t.seed(), Step: t.step}
	for _, g := range r.groups {
		key.Rows = append(key.Rows, g.key)
	}
	advance, done := t.rec.Progress("rollout",
		len(r.groups)*t.cfg.Rollout.N*t.actor.MaxNew())
	defer done()
	roll, err := t.actor.Rollout(t.context(), r.batch().Prompts(), t.tok.EOS(), key, advance)
	if err != nil {
		return err
	}
	for len(roll) > 0 {
		n := slices.IndexFunc(roll,
			func(s *actor.Sequence) bool { return s.Answer != roll[0].Answer })
		if n < 0 {
			n = len(roll)
		}
		g := r.groups[roll[0].Group]
		g.answers = append(g.answers, newAnswer(roll[0].Cut, roll[:n]...))
		roll = roll[n:]
	}
	return nil
}

func (f single) whole(g *group, a *answer) model.Seq {
	return f.t.enc.Seq(g.Prompt, encode.Response{IDs: a.ids, Finished: !a.cut})
}

func (single) criticSeqs(whole []model.Seq) []model.Seq { return whole }

func (single) markBranching(judged []model.Seq) []model.Seq { return judged }

func (single) trainSeqs(whole []model.Seq) []model.Seq { return whole }

func (single) credit(*round, []config.Term, *algos.AdvantageInput) {}

func (single) describe(Metrics, *round) error { return nil }

func (f single) fillSample(s *report.Sample, a *answer) error {
	s.Student = f.t.tok.Decode(a.ids, true)
	return nil
}

func (single) words() string { return "" }

func (f single) validate(m Metrics) error { return f.t.evaluate(m, model.Chunks{}) }

func (single) validationText(m Metrics) string {
	return fmt.Sprintf("ROUGE-L %.3f, NLL of the teacher's answers %.3f", m["val/rouge_l"],
		m["val/teacher_nll"])
}

func (single) validationInputs() (acts bool, of []any) { return false, nil }

// Below: the methods of branchable, for trees.

func (f single) branchPoints(at, end int, _ *answer) (list []int) {
	segment := f.t.cfg.Rollout.Tree.Segment
	for at = (at/segment + 1) * segment; at < end; at += segment {
		list = append(list, at)
	}
	return list
}

func (f single) grower(g *grove) grower { return &texts{g} }

func (single) ownSeqs(g *group, x *leaf, nodes []model.Span) (list actor.Rollout) {
	prompt := len(g.Prompt)
	seq := model.Seq{IDs: slices.Concat(g.Prompt, x.ids), Shared: prompt}
	for _, n := range nodes {
		seq.Spans = append(seq.Spans, model.Span{From: prompt + n.From, To: prompt + n.To})
	}
	return actor.Rollout{{Seq: seq, Sampled: x.logp}}
}

func (f single) mark(a *answer, tokens int) int {
	return utf8.RuneCountInString(f.t.tok.Decode(a.ids[:tokens], true))
}
