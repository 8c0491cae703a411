package session

import (
	"fmt"

	"gad/critic"
	"gad/internal/compute"
	"gad/model"
	"gad/trainer/saved"
)

// Critic is a discriminator on a device, with its tokenizer. It scores, but does not learn.
type Critic struct {
	*Model
	*critic.Scorer
	student *Model // loaded for head likelihood; nil without
}

// Close frees the discriminator and the student loaded with it. The device stays open.
func (c *Critic) Close() {
	if c.student != nil {
		c.student.Model.Close()
	}
	c.Model.Model.Close()
}

// LoadCritic loads the discriminator in from.Path onto a device. One with head likelihood scores
// against a student: the given model; if nil, the model in dir; if dir is "", the student next to
// it in its checkpoint. maxTokens bounds the tokens of a pack.
func (s *Session) LoadCritic(be compute.Backend, from Source, student *model.Model, dir string,
	maxTokens int) (*Critic, error) {
	head, err := s.CheckCritic(from)
	if err != nil {
		return nil, err
	}
	cfg := critic.DefaultConfig()
	cfg.Head, cfg.MaxTokenLen = head.Head, maxTokens
	if cfg.Head == critic.Likelihood && student == nil && dir == "" {
		if dir = head.Student; !isModel(dir) {
			return nil, fmt.Errorf("critic: %s: scores against the student that it learned beside (critic.head=likelihood), and there is none in %q: name its folder with --student", from.Path, dir)
		}
	}
	_, done := s.Console.Busy("loading "+from.Path, 0)
	defer done()
	c := &Critic{}
	if c.Model, err = Load(be, from, cfg.Kind()); err != nil {
		return nil, err
	}
	if cfg.Head == critic.Likelihood && student == nil {
		if c.student, err = Load(be, Source{Path: dir}, model.LM); err != nil {
			c.Close()
			return nil, err
		}
		student = c.student.Model
		student.Share(c.Model.Model)
	}
	if c.Scorer, err = critic.NewScorer(c.Model.Model, cfg); err != nil {
		c.Close()
		return nil, err
	}
	c.SetStudent(student, head.Temperature)
	return c, nil
}

// CheckCritic returns how the discriminator in from.Path scores. It refuses other models.
func (s *Session) CheckCritic(from Source) (head saved.Head, err error) {
	if err := saved.CheckPart(s.FS, from.Path, "critic"); err != nil {
		return head, err
	}
	shape, err := model.ReadConfig(from.Path)
	if err != nil {
		return head, err
	}
	if head, err = saved.ReadHead(s.FS, from.Path); err != nil {
		return head, err
	}
	if head.Head == critic.Value && shape.Kind() != model.Scorer && from.Adapter == "" {
		return head, fmt.Errorf("model: %s: is a language model, not a discriminator: give the critic folder of a checkpoint", from.Path)
	}
	return head, nil
}

// isModel reports whether a folder is a model.
func isModel(dir string) bool {
	_, err := model.ReadConfig(dir)
	return err == nil
}
