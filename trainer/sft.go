package trainer

import (
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/encode"
)

// sft is the SeqKD baseline: cross entropy on the teacher's answers alone.
type sft struct {
	basic
	rows encode.Batch // of the step
}

// newSFT returns the stage, or with trainer.objective=ranking the stage that learns the order of
// scored answers.
func newSFT(b basic, _ *start) stage {
	if b.t.cfg.Trainer.Objective == "ranking" {
		return &ranking{basic: b}
	}
	return &sft{basic: b}
}

func (s *sft) step(m Metrics) (err error) {
	t := s.t
	if s.rows, err = t.draw(t.cfg.Data.TrainBatchSize); err != nil {
		return err
	}
	if err := s.learnTeachers(m, s.rows); err != nil {
		return err
	}
	s.describeTeacher(m, s.rows)
	return nil
}

func (s *sft) stepSeqs() []model.Seq { return s.t.form.trainSeqs(s.rows.Teachers()) }

func (s *sft) passSeqs(config.Pass) []model.Seq { return s.stepSeqs() }
