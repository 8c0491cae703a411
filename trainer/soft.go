package trainer

import (
	"fmt"

	"gad/actor"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/encode"
)

// noteSoft decides whether the run learns soft labels, and adds the lines about them to s.
func (t *Trainer) noteSoft(s *start, u encode.Usable) {
	c := t.cfg
	if !t.stage.soft() {
		return
	}
	if u.Soft+u.Hard == 0 {
		if w := c.Data.SoftLabels; w != config.Default().Data.SoftLabels {
			s.notes = append(s.notes, fmt.Sprintf("data.soft_labels %g has no effect: no row has log-probabilities of the teacher (column teacher_logprobs): add them with gad data score", w))
		}
		return
	}
	t.train.soft = u.Soft > 0
	if t.train.soft {
		s.infos = append(s.infos, fmt.Sprintf("soft labels: %d of %d rows have log-probabilities of the teacher, which are learned with a weight of %g (data.soft_labels)", u.Soft, len(u.Rows), c.Data.SoftLabels))
	}
	if u.Hard > 0 {
		s.notes = append(s.notes, fmt.Sprintf("log-probabilities of %d of %d rows are not read: their bytes do not write the answer, or the student's tokens do not: these rows have hard labels: gad data validate --model says why", u.Hard, len(u.Rows)))
	}
}

// softLabels returns the soft labels of the teacher's answers of a batch; nil if the run learns
// none. learned holds these answers, or their chunks, in the order of b; the labels are divided
// among them.
func (s basic) softLabels(b encode.Batch, learned []model.Seq) *actor.Soft {
	t := s.t
	if !t.train.soft {
		return nil
	}
	var all []model.SoftLabel // of all trained tokens
	for _, row := range b {
		labels := make([]model.SoftLabel, row.Teacher.Trained())
		for i, l := range row.Soft {
			logp := make([]float64, len(l.LogProbs))
			for k, x := range l.LogProbs {
				logp[k] = float64(x)
			}
			// the row's reader has refused labels that are no distribution
			labels[i], _ = model.NewSoftLabel(l.IDs, logp)
		}
		all = append(all, labels...)
	}
	soft := &actor.Soft{Weight: t.cfg.Data.SoftLabels}
	for _, seq := range learned {
		n := seq.Trained()
		soft.Labels = append(soft.Labels, all[:n:n])
		all = all[n:]
	}
	return soft
}

// describeSoft adds the metrics of soft labels to m.
func (s basic) describeSoft(m Metrics, b encode.Batch, st actor.Stats) {
	if !s.t.train.soft {
		return
	}
	hard := 0.0
	for _, row := range b {
		if row.Hard {
			hard++
		}
	}
	m["soft/unread_frac"] = hard / float64(len(b))
	m["soft/token_frac"] = st.Soft.Tokens / max(st.TokenSum, 1)
	if n := st.Soft.Tokens; n > 0 {
		m["soft/kl"] = st.SoftKL / n
		m["soft/teacher_mass"], m["soft/student_mass"] =
			st.Soft.TeacherMass/n, st.Soft.StudentMass/n
	}
}
