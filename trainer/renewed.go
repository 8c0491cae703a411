package trainer

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"gad/checkpoint"
	"gad/model"
	"gad/reference"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/saved"
)

// A teacher that follows the student (teacher.renew): at the beginning of every N-th step it becomes
// a frozen copy of the student. A checkpoint has the copy, unless the next step makes another one.

// due reports whether the teacher is renewed at the beginning of the step after so many.
func (c *teachers) due(steps int) bool {
	n := c.t.cfg.Teacher.Renew
	return n > 0 && steps > 0 && steps%n == 0
}

// renew makes the teacher a copy of the student, where the step asks for it.
func (c *teachers) renew() error {
	t := c.t
	if !c.due(t.step) {
		return nil
	}
	if err := t.wholeWeights(); err != nil {
		return err
	}
	dir := filepath.Join(t.cfg.Trainer.Output, saved.TeacherDir)
	if t.first() {
		if err := t.fs.RemoveAll(dir); err != nil { // what an earlier attempt left
			return fmt.Errorf("teacher.renew: %w", err)
		}
		if err := export.WriteFolder(t.fs, dir, t.actor.Model(), t.tok, "float32"); err != nil {
			return fmt.Errorf("teacher.renew: %w", err)
		}
	}
	if err := t.ranks.Barrier("the copy of the student"); err != nil {
		return err
	}
	if err := c.take(dir); err != nil {
		return err
	}
	if err := t.ranks.Barrier("the copy of the student, loaded"); err != nil {
		return err
	}
	if t.first() {
		if err := t.fs.RemoveAll(dir); err != nil {
			return fmt.Errorf("teacher.renew: %w", err)
		}
	}
	return nil
}

// resume loads the copy of the student that a resumed run had for its teacher.
func (c *teachers) resume(s *start) error {
	n := c.t.cfg.Teacher.Renew
	if !s.inPlace || n == 0 || c.t.step < n || c.due(c.t.step) {
		return nil
	}
	return c.take(filepath.Join(s.dir, saved.TeacherDir))
}

// take loads the copy of the student in folder dir as the teacher, in the place of an earlier one:
// of the teacher of the start too, unless plain rows are learned from it.
func (c *teachers) take(dir string) error {
	t := c.t
	tok, err := t.tok.With(tokenizer.ChatOptions{Variables: t.cfg.Teacher.Template})
	if err != nil {
		return fmt.Errorf("%w: teacher.template: %w", config.ErrConfig, err)
	}
	keep := 0
	if c.keepsFirst {
		keep = 1
	}
	for _, old := range c.list[keep:] {
		if err := old.Policy.Close(); err != nil {
			return fmt.Errorf("teacher.renew: %w", err)
		}
		old.Policy = nil
	}
	c.list = c.list[:keep]
	one := &teacher{t: t, system: t.cfg.Teacher.System}
	one.Key, one.Path = "teacher.renew", dir
	one.read(tok, false)
	return t.busy("loading the copy of the student", func() error {
		m, err := model.Load(t.be, dir,
			model.Options{Kind: model.LM, Base: t.actor.Model().Base()})
		if err != nil {
			return fmt.Errorf("teacher.renew: %w", err)
		}
		if err := m.SetTokens(t.tok.Tokens()); err != nil {
			return errors.Join(fmt.Errorf("teacher.renew: %w", err), m.Close())
		}
		one.Policy, one.maxPositions = reference.New(m, t.cfg.Actor.MaxTokenLen), m.Config().MaxPosition
		m.Share(t.actor.Model())
		c.copy, c.list = one, append(c.list, one)
		return nil
	})
}

// save writes the copy of the student into a checkpoint, unless the next step makes another.
func (c *teachers) save(d *checkpoint.Dir) error {
	t := c.t
	if c.copy == nil || c.due(t.step) {
		return nil
	}
	create := func(name string) (io.WriteCloser, error) {
		return d.Create(saved.TeacherDir + "/" + name)
	}
	if err := c.copy.Model().Save(create, "float32",
		int64(t.cfg.Trainer.MaxShardSizeMB)*1_000_000); err != nil {
		return fmt.Errorf("teacher.renew: %w", err)
	}
	for name, content := range t.tok.Files() {
		if err := d.WriteFile(saved.TeacherDir+"/"+name, content); err != nil {
			return err
		}
	}
	return nil
}

// bytes returns an upper bound of the copy's size in a checkpoint.
func (c *teachers) bytes() (n int64) {
	if c.t.cfg.Teacher.Renew == 0 {
		return 0
	}
	for _, p := range c.t.actor.Model().Params() {
		n += 4 * int64(p.Len())
	}
	for _, content := range c.t.tok.Files() {
		n += 2 * int64(len(content))
	}
	return n
}
