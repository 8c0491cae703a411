package config

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"gad/internal/conf"
)

// Fixed is a setting that cannot change within a run.
type Fixed struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Fixed returns the settings, or groups, that cannot change within a run. Settings that name
// folders are left out.
func (c *Config) Fixed() (list []Fixed) {
	for f := range c.facts() {
		if f.ownTag("fixed") != "" {
			list = append(list, Fixed{f.key, fmt.Sprint(f.value.Interface())})
		}
	}
	return list
}

// CheckChange refuses to resume a run under settings that would make it another run.
func CheckChange(before, after *Config) error {
	was, now := before.Absolute(), after.Absolute()
	paths := func(c Config) []Fixed {
		return []Fixed{{"trainer.resume_from", c.Trainer.Resume}, {"model.path", c.Model.Path},
			{"model.adapter_path", c.Model.Adapter}, {"model.reward_path", c.Model.RewardPath},
			{"teacher.path", c.Teacher.Path}, {"teacher.models", c.Teacher.Models}}
	}
	return CheckFixed(slices.Concat(paths(was), was.Fixed()), slices.Concat(paths(now), now.Fixed()),
		after.Trainer.Output)
}

// CheckFixed refuses settings whose value now differs from their value when the run began. A
// setting that an earlier gad did not record is not compared.
func CheckFixed(was, now []Fixed, run string) error {
	for _, w := range was {
		for _, n := range now {
			if w.Key == n.Key && w.Value != n.Value {
				return fmt.Errorf("%w: %s was %s when the run in %s began, now it is %s: it cannot change within a run: give another --output", ErrConfig, w.Key, cmp.Or(w.Value, "not set"), run, cmp.Or(n.Value, "not set"))
			}
		}
	}
	return nil
}

// Absolute returns c with absolute paths. A run stores its settings so, since it may be resumed
// from another folder.
func (c Config) Absolute() Config {
	c.Data.TrainFiles, c.Data.ValFiles =
		slices.Clone(c.Data.TrainFiles), slices.Clone(c.Data.ValFiles)
	paths := []*string{&c.Model.Path, &c.Model.Adapter, &c.Model.RewardPath, &c.Teacher.Path,
		&c.Trainer.Output, &c.Trainer.Resume, &c.Trainer.HeldOutCritic, &c.Data.Ratings}
	if dir := c.Data.CacheDir; dir != "auto" && dir != "none" {
		paths = append(paths, &c.Data.CacheDir)
	}
	if models, err := c.Teacher.MapFolders(filepath.Abs); err == nil {
		c.Teacher.Models = models
	}
	for _, files := range [][]string{c.Data.TrainFiles, c.Data.ValFiles} {
		for i := range files {
			paths = append(paths, &files[i])
		}
	}
	for _, path := range paths {
		list := filepath.SplitList(*path)
		for i, p := range list {
			if abs, err := filepath.Abs(p); err == nil {
				list[i] = abs
			}
		}
		*path = strings.Join(list, string(filepath.ListSeparator))
	}
	return c
}

// MapFolders returns teacher.models with each folder replaced by f's result.
func (c TeacherConfig) MapFolders(f func(dir string) (string, error)) (models string, err error) {
	pairs := strings.Split(c.Models, ",")
	for i, pair := range pairs {
		value, at, ok := strings.Cut(pair, "=")
		if at = strings.TrimSpace(at); !ok || at == "" || strings.Contains(at, "://") {
			continue
		}
		if at, err = f(at); err != nil {
			return "", err
		}
		pairs[i] = strings.TrimSpace(value) + "=" + at
	}
	return strings.Join(pairs, ","), nil
}

// Changes lists the settings in which now differs from before, as "key was x, now y".
func Changes(before, now Config) (list []string) {
	before, now = before.Absolute(), now.Absolute()
	was := conf.Describe(&before)
	for i, s := range conf.Describe(&now) {
		// a run may be moved
		if s.Default != was[i].Default && s.Key != "trainer.default_local_dir" {
			list = append(list, fmt.Sprintf("%s was %s, now %s", s.Key, was[i].Default, s.Default))
		}
	}
	return list
}
