package trainer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gad/algos"
	"gad/checkpoint"
	"gad/critic"
	"gad/internal/safetensors"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/saved"
)

// open opens the discriminator and, with algorithm.teacher_weight, the teacher.
func (g *game) open(s *start) (err error) {
	carried := s.dir != "" && s.state.Stage.HasCritic() &&
		(s.inPlace || g.t.cfg.Model.RewardPath == "")
	if err := g.openDiscriminator(s, carried); err != nil {
		return err
	}
	if err := g.resumeDiscriminator(s, carried); err != nil {
		return err
	}
	if g.t.cfg.Algorithm.TeacherWeight > 0 {
		g.teachers, err = openTeachers(g.basic, s, false)
	}
	return err
}

// networks returns the teacher, if it has weights, and the discriminator.
func (g *game) networks() []network {
	return append(g.onPolicy.networks(), network{of: config.Discriminator, name: "critic",
		model: g.critic.Model(), optim: g.critic.Optimizer(), states: saved.CriticOptimizer})
}

// warning returns a warning if the discriminator has not learned in the warm-up.
func (g *game) warning(s *start) string {
	switch warm := g.kind == config.Warmup; {
	case s == nil && warm:
		return g.disc.NotLearned(g.t.cfg.Trainer.Output)
	case s != nil && !warm && !s.inPlace && g.t.cfg.Model.RewardPath == "":
		return s.state.Disc.NotLearned(s.dir)
	}
	return ""
}

// save writes the head's settings and the pool of negatives, and sets the KL coefficient and the
// discriminator's progress in s.
func (g *game) save(d *checkpoint.Dir, s *saved.State) error {
	s.KLCoef, s.Disc = g.kl.Coef, g.disc
	if g.t.cfg.Critic.Head == critic.Likelihood {
		raw, err := saved.Head{Head: critic.Likelihood,
			Temperature: g.t.cfg.Rollout.Temperature, Student: "../actor"}.Bytes()
		if err != nil {
			return err
		}
		if err := d.WriteFile("critic/"+saved.HeadName, raw); err != nil {
			return err
		}
	}
	if g.critic.Replay == nil {
		return nil
	}
	return writeTo(d, saved.ReplayName,
		func(w io.Writer) error { return writeReplay(w, g.critic.Replay) })
}

// bytes returns the size of the pool of negatives in a checkpoint.
func (g *game) bytes() (n int64) {
	if g.critic.Replay == nil {
		return 0
	}
	for _, p := range g.critic.Replay.Pairs {
		n += 4 * int64(len(p.Student.IDs)+len(p.Teacher.IDs)+4)
	}
	return n
}

func (g *game) close() (err error) {
	if g.critic != nil {
		err = g.critic.Close()
	}
	return errors.Join(err, g.teachers.Close())
}

// openDiscriminator opens the checkpoint's discriminator if carried, else the scorer of
// model.reward_path, else the student's weights with a new head.
func (g *game) openDiscriminator(s *start, carried bool) error {
	t := g.t
	c, scorer := t.cfg, s.student
	switch {
	case carried:
		scorer = filepath.Join(s.dir, "critic")
	case c.Model.RewardPath != "":
		scorer = c.Model.RewardPath // with --resume, it replaces the checkpoint's
	}
	if !carried && c.Model.RewardPath != "" {
		if err := saved.CheckTokenIDs(t.tok, scorer, "model.reward_path"); err != nil {
			return err
		}
	}
	// whenever its time alone ends: a schedule is fixed beforehand
	steps := t.past.planned + max(0, g.maxAlone()-c.Trainer.CriticWarmup)
	updates := steps * c.OptimizerSteps(g.kind, config.Discriminator)
	if err := t.checkSchedule(s, "critic.optim", &t.cfg.Critic.Optim, updates); err != nil {
		return err
	}
	c = t.cfg
	err := t.busy("loading the discriminator", func() (err error) {
		// With adapters on both it stands on the student's base.
		m, err := model.Load(t.be, scorer,
			model.Options{Kind: c.Critic.Kind(), Trainable: true, Recompute: c.Critic.Recompute,
				LoRA: c.Critic.LoRA, Base: t.actor.Model().Base(), Turns: t.actor.Model(),
				Seed: t.seed(), ScoreInit: c.Critic.HeadStd(t.actor.Model().Config().Hidden),
				StatesOver: t.statesOver()})
		if err != nil {
			return fmt.Errorf("critic: %w", err)
		}
		if err := m.SetTokens(t.tok.Tokens()); err != nil {
			return errors.Join(fmt.Errorf("critic: %w", err), m.Close())
		}
		if g.critic, err = critic.New(m, c.Critic, updates, t.seed()); err != nil {
			return errors.Join(err, m.Close())
		}
		return nil
	})
	if err != nil {
		return err
	}
	g.critic.Model().Share(t.actor.Model()) // they take turns
	g.critic.SetStudent(t.actor.Model(), c.Rollout.Temperature)
	g.kl = algos.AdaptiveKL{Coef: c.Algorithm.KLCtrl.KLCoef, Target: c.Algorithm.KLCtrl.TargetKL,
		Horizon: c.Algorithm.KLCtrl.Horizon}
	return c.CheckScored(g.kind, scorer, g.critic.Model().Config().MaxPosition)
}

// resumeDiscriminator restores the discriminator's optimizer and its replay pool if carried, and
// sets its schedule.
func (g *game) resumeDiscriminator(s *start, carried bool) error {
	t, c := g.t, g.t.cfg
	if carried {
		if s.inPlace || c.Trainer.ResumeOptim != "none" {
			if err := g.critic.Optimizer().Load(
				filepath.Join(s.dir, saved.CriticOptimizer)); err != nil {
				return err
			}
		}
		if g.critic.Replay != nil {
			if err := readReplay(s.dir, g.critic.Replay); err != nil {
				return err
			}
		}
	}
	if !c.Critic.Replay.Live && (g.critic.Replay == nil || len(g.critic.Replay.Pairs) == 0) {
		return fmt.Errorf("%w: critic.replay.live=false needs the pool of an earlier stage, which has none: keep one in the warm-up (critic.replay.size=4096) and here", config.ErrConfig)
	}
	if s.inPlace {
		g.kl.Coef = s.state.KLCoef
	} else {
		t.past.before.Critic = g.critic.Optimizer().Steps()
	}
	g.critic.Optimizer().ScheduleFrom(t.past.before.Critic)
	return nil
}

// writeReplay writes the pool of negatives as safetensors: ids and lens (critic.Buffer.Flat).
func writeReplay(w io.Writer, r *critic.Buffer) error {
	ids, lens := r.Flat()
	return safetensors.Write(w, []safetensors.Source{int32s("ids", ids), int32s("lens", lens)}, nil)
}

// int32s returns x as a tensor to write.
func int32s(name string, x []int32) safetensors.Source {
	return safetensors.Source{Name: name, DType: safetensors.I32, Shape: []int{len(x)},
		Write: func(w io.Writer) error {
			b := make([]byte, 0, 4*len(x))
			for _, v := range x {
				b = append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
			}
			_, err := w.Write(b)
			return err
		}}
}

// readReplay restores the buffer, which stays empty if the checkpoint has none.
func readReplay(dir string, r *critic.Buffer) error {
	path := filepath.Join(dir, saved.ReplayName)
	f, err := safetensors.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	read := func(name string) ([]int32, error) {
		x, ok := f.Tensor(name)
		if !ok || x.DType != safetensors.I32 {
			return nil,
				fmt.Errorf(
					"trainer: %s: tensor %q of type I32 is missing: the checkpoint is damaged",
					path,
					name)
		}
		out := make([]int32, len(x.Data)/4)
		for i := range out {
			b := x.Data[4*i:]
			out[i] = int32(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
		}
		return out, nil
	}
	ids, err := read("ids")
	if err != nil {
		return err
	}
	lens, err := read("lens")
	if err != nil {
		return err
	}
	return r.SetFlat(ids, lens)
}
