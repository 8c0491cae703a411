package trainer

import (
	"gad/algos"
	"gad/internal/report"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
)

// form is the form of the student's answers, and of the sequences in which they are learned. To add
// one: a type that embeds single and overrides the methods in which it differs, and an entry of
// forms. chunks.go is a short example; tree.go declares branchable, which single implements too.
// After sampling, a step reads only the records of round.go.
type form interface {
	// checkTokenizer refuses a tokenizer with which answers cannot have the form.
	checkTokenizer(tok *tokenizer.Tokenizer) error
	// open starts the programs that sampling needs, before anything is written. kill ends them at
	// once, from another goroutine.
	open() error
	close()
	kill()

	// longest returns the largest number of tokens of an answer.
	longest() int
	// sample samples the answers of a round's groups.
	sample(m Metrics, r *round) error
	// whole returns an answer after its prompt, with the same end as the teacher's answers.
	whole(g *group, a *answer) model.Seq
	// criticSeqs returns whole answers as the discriminator reads them.
	criticSeqs(whole []model.Seq) []model.Seq
	// markBranching marks the student's sequences that share more than their prompts.
	markBranching(judged []model.Seq) []model.Seq
	// trainSeqs returns whole answers of the teacher as the sequences that the student learns.
	trainSeqs(whole []model.Seq) []model.Seq
	// credit adds the form's inputs of the advantage estimator to in: turns or branches. terms are
	// the reward's terms.
	credit(r *round, terms []config.Term, in *algos.AdvantageInput)

	// describe adds the form's own metrics of a round to m.
	describe(m Metrics, r *round) error
	// fillSample writes an answer into a sample, for readers.
	fillSample(s *report.Sample, a *answer) error
	// words returns the form in words, to follow "8 answers"; "": plain answers.
	words() string
	// validate measures the student on held-out rows. validationText returns its figures in words.
	// validationInputs returns the settings and data that the figures depend on, in addition to the
	// settings that all forms read; acts reports that an environment is played.
	validate(m Metrics) error
	validationText(m Metrics) string
	validationInputs() (acts bool, of []any)
}

// forms lists the forms of answers that do not branch. A run has the first that its settings ask
// for.
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
