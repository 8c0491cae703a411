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

// newSFT returns the stage, or the one that learns the order of scored answers in its place.
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

func (s *sft) passed() []model.Seq { return s.t.form.learned(s.rows.Teachers()) }

func (s *sft) passedBy(config.Pass) []model.Seq { return s.passed() }
