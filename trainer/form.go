package trainer

import (
	"gad/algos"
	"gad/internal/report"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
)

// form is what an answer of the student is, and in which sequences it is learned. A new one is a
// type that embeds single and has the methods in which it differs, and a row of forms. What a step
// does with answers after they are sampled reads the records of round.go alone.
type form interface {
	// suits refuses a tokenizer with which answers cannot have the form.
	suits(tok *tokenizer.Tokenizer) error
	// open starts what answers are sampled with, before anything is written; kill ends it at once,
	// from another goroutine.
	open() error
	close()
	kill()

	// longest returns the most tokens of an answer.
	longest() int
	// sample gives the groups of a round their answers.
	sample(m Metrics, r *round) error
	// whole returns an answer behind its prompt, ended as the teacher's answers are.
	whole(g *group, a *answer) model.Seq
	// judged returns what the discriminator reads of whole answers.
	judged(whole []model.Seq) []model.Seq
	// marked marks the student's of these where they share more than their prompts.
	marked(judged []model.Seq) []model.Seq
	// learned returns whole answers of the teacher as sequences of the student.
	learned(whole []model.Seq) []model.Seq
	// credit adds what an estimator of advantages reads beside scores and tokens. terms are the
	// reward's.
	credit(r *round, terms []config.Term, in *algos.AdvantageInput)

	// describe adds the metrics of a round that only the form has.
	describe(m Metrics, r *round) error
	// tell writes an answer into a sample, for readers.
	tell(s *report.Sample, a *answer) error
	// words says what answers are, behind their number.
	words() string
	// validate measures the student on held-out rows, and measured says what came out; world is
	// what the figures depend on beside the settings that all forms read.
	validate(m Metrics) error
	measured(m Metrics) string
	world() (acts bool, of []any)
}

// forms are the forms of answers that do not branch, the first that a run's settings ask for.
var forms = []struct {
	asked func(c *config.Config, stage config.Stage) bool
	make  func(single) branchable
}{
	{(*config.Config).Acts, func(s single) branchable { return &episodes{single: s} }},
	{func(c *config.Config, stage config.Stage) bool { return c.Chunks(stage).On() }, newChunked},
	{func(*config.Config, config.Stage) bool { return true },
		func(s single) branchable { return s }},
}

// newForm returns the form of the run's answers.
func newForm(t *Trainer) form {
	var f branchable
	kind := t.Stage
	for _, x := range forms {
		if x.asked(&t.cfg, kind) {
			f = x.make(single{t})
			break
		}
	}
	if c := t.cfg.Tree(kind); c.Trees > 0 {
		return &tree{branchable: f, t: t, c: c}
	}
	return f
}
