package config

import (
	"cmp"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Facts about a setting are tags of its field, or of the field of a group, for all settings of the
// group:
//
//	stages:"warmup train"  the stages that read it; without the tag all do
//	fixed:"true"           it cannot change within a run
//	inherit:"no"           a run that starts from another one's checkpoint does not take it over:
//	                       it belongs to one run, not to what the run learns, or it is part of a
//	                       learning rate's schedule, and a rate that has risen or fallen in one
//	                       stage does not do so again in the next unless that is asked for
//	needs:".size>0"        without this it has no effect: another setting, a sibling where it begins
//	                       with a dot, is above 0, is one of some values (=a|b), or is not one
//	                       (!=a, where nothing means empty); several conditions with spaces
//	unproven:"rank,zscore" the values whose study they lost, or that have none, all for any but the
//	                       default: see CONTRIBUTING. It is about what is to make a better student,
//	                       not about where, how fast and within which limits a run works
//	alias:"max_steps"      other trainers' names for it; of a field that several settings share,
//	                       such as lr, the first setting's

// fact is a setting, or a group of settings, with the tags of the groups around it and of its own
// field, which is the last.
type fact struct {
	key   string
	group bool
	tags  []reflect.StructTag
	value reflect.Value
}

// ownTag returns a tag of the field itself.
func (f fact) ownTag(name string) string { return f.tags[len(f.tags)-1].Get(name) }

// tag returns a tag of the field or, without one, of the innermost group that has it.
func (f fact) tag(name string) string {
	for _, tag := range slices.Backward(f.tags) {
		if text, ok := tag.Lookup(name); ok {
			return text
		}
	}
	return ""
}

// readBy reports whether a stage reads the setting, by its tags.
func (f fact) readBy(stage Stage) bool {
	return f.tag("stages") == "" ||
		slices.Contains(strings.Fields(f.tag("stages")), string(stage))
}

// declared are the facts that hold for every Config, without values; index is a field's place.
type declared struct {
	fact
	index []int
}

// declarations are the settings and groups of Config in order, and the places there of the settings
// by their keys. A run's settings are asked for one by one, some hundred times.
var declarations = sync.OnceValues(func() (all []declared, at map[string]int) {
	at = map[string]int{}
	var walk func(t reflect.Type, group declared)
	walk = func(t reflect.Type, group declared) {
		for i := range t.NumField() {
			field := t.Field(i)
			d := declared{fact{key: field.Tag.Get("yaml"), group: field.Type.Kind() == reflect.Struct,
				tags: append(slices.Clone(group.tags), field.Tag)},
				append(slices.Clone(group.index), i)}
			if group.key != "" {
				d.key = group.key + "." + d.key
			}
			if all = append(all, d); d.group {
				walk(field.Type, d)
			} else if _, ok := at[d.key]; !ok {
				at[d.key] = len(all) - 1
			}
		}
	}
	walk(reflect.TypeFor[Config](), declared{})
	return all, at
})

// of returns the fact with its value in a configuration.
func (d declared) of(c *Config) fact {
	f := d.fact
	f.value = reflect.ValueOf(c).Elem().FieldByIndex(d.index)
	return f
}

// facts lists all settings and groups, a group before its settings.
func (c *Config) facts() iter.Seq[fact] {
	return func(yield func(fact) bool) {
		all, _ := declarations()
		for _, d := range all {
			if !yield(d.of(c)) {
				return
			}
		}
	}
}

// find returns the setting key; ok is false if it does not exist.
func (c *Config) find(key string) (f fact, ok bool) {
	all, at := declarations()
	i, ok := at[key]
	if !ok {
		return f, false
	}
	return all[i].of(c), true
}

// Ignores returns why a run of the stage does not read the setting key; "" if it does.
func (c *Config) Ignores(stage Stage, key string) string {
	if key == "rollout.n" && c.LearnsRanking(stage) {
		return ""
	}
	if f, ok := c.find(key); ok && !f.readBy(stage) {
		return fmt.Sprintf("gad %s does not read it", stage)
	}
	if (key == "trainer.test_freq" || key == "trainer.val_rows" ||
		key == "trainer.val_before_train") && len(c.Data.ValFiles) == 0 {
		return "there are no validation data: give --val-data FILE"
	}
	if strings.HasPrefix(key, "env.") && key != "env.command" && c.Env.Command == "" {
		return "there is no environment: give --env CMD"
	}
	if strings.HasPrefix(key, "rollout.tree.") && key != "rollout.tree.trees" &&
		c.Rollout.Tree.Trees == 0 {
		return "rollout.tree.trees is 0: answers do not branch"
	}
	if key == "rollout.tree.segment" && (c.Acts(stage) || c.Chunks(stage).On()) {
		return "episodes branch at turns, and thoughts at chunks"
	}
	if on := c.Chunks(stage).On(); on && key == "data.max_response_length" {
		return "the longest answer is a thought of rollout.chunks chunks (rollout.chunk)"
	} else if !on && (key == "rollout.carry" || key == "rollout.carry_head" ||
		key == "rollout.chunks") {
		return "rollout.chunk is 0: an answer is one sequence"
	}
	return c.idle(stage, key)
}

// idle returns why a setting that the stage reads has no effect given the others: by its needs tag,
// or because no teacher is used; "" if it has an effect.
func (c *Config) idle(stage Stage, key string) string {
	f, ok := c.find(key)
	if !ok || !f.readBy(stage) {
		return ""
	}
	if strings.HasPrefix(key, "teacher.") && stage != OPD && !c.ReadsTeacher(stage) {
		return "algorithm.teacher_weight is 0: no teacher is asked"
	}
	if key == "critic.level" && c.Critic.ByToken() {
		return "" // for single answers
	}
	if key == "data.ratings" && c.Data.Where == "" && !c.LearnsRanking(stage) {
		return "data.where is empty: no row is chosen by the ratings"
	}
	for _, need := range strings.Fields(f.ownTag("needs")) {
		if why := c.unmet(stage, key, need); why != "" {
			return why
		}
	}
	return ""
}

// unmet returns why the condition need of the setting key does not hold, "" if it does, or if the
// stage does not read the setting that it names.
func (c *Config) unmet(stage Stage, key, need string) string {
	at := strings.IndexAny(need, "=!>")
	other, rule := need[:at], need[at:]
	if strings.HasPrefix(other, ".") {
		other = key[:strings.LastIndex(key, ".")] + other
	}
	f, _ := c.find(other)
	if !f.readBy(stage) {
		return ""
	}
	now := fmt.Sprint(f.value)
	if f.value.Kind() == reflect.Slice && f.value.Len() == 0 {
		now = ""
	}
	if not, ok := strings.CutPrefix(rule, "!="); ok {
		if now != not {
			return ""
		}
		return fmt.Sprintf("%s is %s", other, cmp.Or(now, "empty"))
	}
	if rule == ">0" {
		if now != "0" {
			return ""
		}
		return other + " is 0"
	}
	values := strings.Split(rule[1:], "|")
	if slices.Contains(values, now) {
		return ""
	}
	return fmt.Sprintf("%s is %s: set it to %s", other, now, strings.Join(values, " or "))
}

// Inherited reports whether a run that starts from another run's checkpoint takes over that run's
// value of the setting key.
func Inherited(key string) bool {
	f, ok := new(Config).find(key)
	return ok && f.tag("inherit") != "no"
}

// Alias returns the setting for which other trainers have the name.
func Alias(name string) (key string, ok bool) {
	for f := range new(Config).facts() {
		if slices.Contains(strings.Fields(f.ownTag("alias")), name) {
			return f.key, true
		}
	}
	return "", false
}
