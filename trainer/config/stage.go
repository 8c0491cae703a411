package config

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gad/actor"
	"gad/algos"
	"gad/model"
)

// Stage is the kind of a run.
type Stage string

// The stages: SFT, Warmup and Train in the order in which they are run, and DPO and OPD, which
// replace the last two.
const (
	SFT    Stage = "sft"    // cross entropy on the teacher's answers alone (SeqKD)
	Warmup Stage = "warmup" // the discriminator first, then the student too
	Train  Stage = "train"  // the game

	// DPO learns from fixed pairs, without a discriminator (SODA, arXiv 2604.03873): for each
	// prompt the teacher's answer is preferred to one sample of the student at the start of the
	// stage.
	DPO Stage = "dpo"

	// OPD is on-policy distillation, without a discriminator: the student answers, and a teacher
	// that gives probabilities scores each of its tokens.
	OPD Stage = "opd"
)

// Stages lists all stages, in the order of gad's help.
var Stages = []Stage{SFT, DPO, OPD, Warmup, Train}

// StageNames returns the names of all stages for a sentence: "sft, dpo, opd, warmup or train".
func StageNames() string {
	var names []string
	for _, s := range Stages {
		names = append(names, string(s))
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// HasCritic reports whether the stage trains a discriminator.
func (s Stage) HasCritic() bool { return s == Warmup || s == Train }

// HasPolicy reports whether the student of a stage learns by its own answers.
func (s Stage) HasPolicy() bool { return s.HasCritic() || s == OPD }

// Acts reports whether the student of a stage plays episodes in an environment.
func (c *Config) Acts(stage Stage) bool { return stage.HasCritic() && c.Env.Command != "" }

// Chunks returns the chunks that a stage cuts answers into (rollout.chunk and its companions); the
// zero value: none.
func (c *Config) Chunks(stage Stage) model.Chunks {
	if stage == DPO || stage == OPD { // which read whole answers
		return model.Chunks{}
	}
	return c.Rollout.Thought()
}

// Tree returns the trees of a stage's answers (rollout.tree, in gad train only); the zero value:
// none.
func (c *Config) Tree(stage Stage) actor.Tree {
	if stage != Train {
		return actor.Tree{}
	}
	return c.Rollout.Tree
}

// Answers returns how many answers the student of a stage gives to a prompt; with trees, the
// largest number.
func (c *Config) Answers(stage Stage) int {
	if tree := c.Tree(stage); tree.Trees > 0 {
		return tree.Answers()
	}
	return c.Rollout.N
}

// MaxAnswer returns the longest answer of a stage in tokens: in an environment, all tokens after
// the first context; in chunks, the whole thought.
func (c *Config) MaxAnswer(stage Stage) int {
	n, _ := c.AnswerLimit(stage)
	return n
}

// AnswerLimit returns MaxAnswer, and the setting that limits it.
func (c *Config) AnswerLimit(stage Stage) (n int, key string) {
	if c.Acts(stage) {
		return c.Env.MaxTokens, "env.max_tokens"
	}
	if chunks := c.Chunks(stage); chunks.On() {
		return chunks.Longest(), "rollout.chunks"
	}
	return c.Data.MaxResponse, "data.max_response_length"
}

// contextLimit returns the largest number of tokens that the student has after a prompt in one
// sequence, and the setting that limits it.
func (c *Config) contextLimit(stage Stage) (n int, key string) {
	if chunks := c.Chunks(stage); chunks.On() {
		return chunks.Size, "rollout.chunk"
	}
	return c.AnswerLimit(stage)
}

// Longest returns the longest sequence, in tokens, that the student of a stage reads.
func (c *Config) Longest(stage Stage) int {
	n, _ := c.contextLimit(stage)
	return c.Data.MaxPrompt + n
}

// LongestScored returns the longest sequence, in tokens, that a discriminator reads.
func (c *Config) LongestScored(stage Stage) int {
	if c.Critic.Reads == "last" {
		return c.Longest(stage)
	}
	return c.Data.MaxPrompt + c.MaxAnswer(stage)
}

// HasHorizon reports whether a stage samples the first tokens of answers alone, in some steps.
func (c *Config) HasHorizon(stage Stage) bool { return stage == OPD && c.Teacher.Horizon > 0 }

// Horizon returns how many tokens of an answer a stage samples in a step, from 0, of so many.
func (c *Config) Horizon(stage Stage, step, steps int) int {
	most := c.MaxAnswer(stage)
	if !c.HasHorizon(stage) {
		return most
	}
	first := min(c.Teacher.Horizon, most)
	if c.Teacher.HorizonPace == "constant" || steps < 2 {
		return first
	}
	return first + (most-first)*min(step, steps-1)/(steps-1)
}

// LongestSampled returns the longest answer, in tokens, that a stage samples to learn from it.
func (c *Config) LongestSampled(stage Stage) int { return c.Horizon(stage, 1, 2) }

// MeanSampled returns the mean number of tokens, over the steps of a run, that a stage samples of
// an answer of n tokens.
func (c *Config) MeanSampled(stage Stage, n float64) float64 {
	if !c.HasHorizon(stage) {
		return n
	}
	const steps = 101 // evenly over the run
	sum := 0.0
	for step := range steps {
		sum += min(n, float64(c.Horizon(stage, step, steps)))
	}
	return sum / steps
}

// LongestPrompt returns the longest prompt that a teacher reads, in tokens, without notes.
func (c TeacherConfig) LongestPrompt(rows DataConfig) int {
	if c.PromptKey == "" {
		return rows.MaxPrompt
	}
	return max(rows.MaxPrompt, c.MaxPrompt)
}

// On reports whether notes are written on the answers of a stage.
func (c CoachConfig) On(stage Stage) bool { return stage == OPD && c.Command != "" }

// StudentCoach is the value of coach.command that has the student write the notes itself.
const StudentCoach = "@student"

// ByStudent reports whether the student of a stage writes the notes on its own answers.
func (c CoachConfig) ByStudent(stage Stage) bool {
	return c.On(stage) && c.Command == StudentCoach
}

// OwnNotes returns the longest notes, in tokens, that the student of a stage writes on an answer;
// 0: it writes none.
func (c CoachConfig) OwnNotes(stage Stage) int {
	if !c.ByStudent(stage) {
		return 0
	}
	return c.MaxTokens
}

// LongestQuestion returns the longest question, in tokens, that a student is asked for notes on an
// answer, if prompts and answers have at most so many: both, and as many more as notes may have.
func (c CoachConfig) LongestQuestion(prompt, answer int) int {
	return prompt + answer + c.MaxTokens
}

// Longer returns by how many tokens notes may lengthen the prompt that the teacher of a stage
// reads.
func (c CoachConfig) Longer(stage Stage) int {
	if !c.On(stage) {
		return 0
	}
	return c.MaxTokens
}

// PlainOf returns how many of the prompts of a step, the last ones, have answers without notes.
func (c CoachConfig) PlainOf(stage Stage, prompts int) int {
	if !c.On(stage) {
		return 0
	}
	return int(math.Round(c.Plain * float64(prompts)))
}

// CheckLongest refuses sequences of the student that are longer than most, the positions of the
// model in dir; most 0: no bound.
func (c *Config) CheckLongest(stage Stage, dir string, most int) error {
	_, key := c.contextLimit(stage)
	if n := c.Longest(stage); most > 0 && n > most {
		return fmt.Errorf("%w: model: %s: data.max_prompt_length + %s = %d, but max_position_embeddings is %d: lower them", ErrConfig, dir, key, n, most)
	}
	return nil
}

// CheckScored refuses sequences that are longer than most, the positions of the discriminator in
// dir; most 0: no bound.
func (c *Config) CheckScored(stage Stage, dir string, most int) error {
	n := c.LongestScored(stage)
	if most == 0 || n <= most {
		return nil
	}
	if c.Chunks(stage).On() && c.Critic.Reads == "answer" {
		return fmt.Errorf("%w: model: %s: critic.reads=answer reads a prompt and a whole thought, data.max_prompt_length + %d (rollout.chunks) = %d tokens, but max_position_embeddings is %d: set critic.reads=last, or lower rollout.chunks", ErrConfig, dir, c.MaxAnswer(stage), n, most)
	}
	return c.CheckLongest(stage, dir, most)
}

// ARun returns the name of a run of the stage with its article: "an sft run".
func (s Stage) ARun() string {
	if s == SFT {
		return "an sft run"
	}
	return fmt.Sprintf("a %s run", s)
}

// LearnsTeacher reports whether the student of a stage learns the teacher's answers.
func (c *Config) LearnsTeacher(stage Stage) bool {
	return stage == SFT || stage == Warmup && c.Trainer.WarmupActor == "sft"
}

// LearnsRanking reports whether a stage learns the order of scored answers.
func (c *Config) LearnsRanking(stage Stage) bool {
	return stage == SFT && c.Trainer.Objective == "ranking"
}

// SoftLabels reports whether a stage learns soft labels where rows have them.
func (c *Config) SoftLabels(stage Stage) bool {
	return c.LearnsTeacher(stage) && !c.LearnsRanking(stage) && c.Data.SoftLabels > 0
}

// NeedsReference reports whether a stage compares the student with its weights at the start.
func (c *Config) NeedsReference(stage Stage) bool {
	return stage == DPO || (c.hasKLInReward(stage) || c.Actor.HasKL()) && !c.LearnsTeacher(stage)
}

// EstimatesKL reports whether a stage reads the reference's log-probabilities of the student's
// answers.
func (c *Config) EstimatesKL(stage Stage) bool {
	inReward, inLoss := c.ExactKL(stage)
	return c.NeedsReference(stage) && (c.hasKLInReward(stage) && !inReward ||
		c.Actor.HasKL() && !inLoss)
}

// hasKLInReward reports whether a stage has rewards with the KL in them.
func (c *Config) hasKLInReward(stage Stage) bool {
	return stage.HasCritic() && c.Algorithm.UseKLInReward
}

// ExactKL reports whether a stage computes the exact KL to the reference, in the reward and in the
// loss.
func (c *Config) ExactKL(stage Stage) (reward, loss bool) {
	plays := stage.HasPolicy() && !c.LearnsTeacher(stage)
	return plays && c.hasKLInReward(stage) && c.Algorithm.KLPenalty == algos.KLFull,
		plays && c.Actor.ExactKL()
}

// RatioLevel resolves actor.ratio_level: "turn" or "episode"; auto takes the level of the reward.
func (c *Config) RatioLevel() string {
	switch {
	case c.Actor.RatioLevel != "auto":
		return c.Actor.RatioLevel
	case c.Actor.ByTurn(), c.Algorithm.AdvEstimator == "gigpo", c.Critic.Level == "turn",
		c.Rollout.Tree.Branches():
		return "turn"
	}
	return "episode"
}

// Mixes reports whether a stage adds a teacher's advantages to its own.
func (c *Config) Mixes(stage Stage) bool {
	return stage.HasCritic() && c.Algorithm.TeacherWeight > 0
}

// ReadsTeacher reports whether a stage reads the probabilities of a teacher: gad opd, or a game
// that mixes them in.
func (c *Config) ReadsTeacher(stage Stage) bool { return stage == OPD || c.Mixes(stage) }

// LoadsTeacher reports whether a stage loads a teacher, instead of asking servers alone.
func (c *Config) LoadsTeacher(stage Stage) bool {
	return c.ReadsTeacher(stage) && len(c.Teacher.Folders()) > 0
}

// TeacherModel is a model that gives probabilities: a folder, or a server with the folder of its
// tokenizer, where that is not the student's.
type TeacherModel struct {
	Key       string   // setting that names it
	Values    []string // of the column teacher.by whose rows it scores; nil: all rows
	Path, URL string
}

// CheckLongest refuses sequences of a stage that are longer than most, the teacher's positions;
// most 0: no bound.
func (m TeacherModel) CheckLongest(c *Config, stage Stage, most int) error {
	n, key := c.LongestSampled(stage), "data.max_response_length"
	if n < c.MaxAnswer(stage) {
		key = "teacher.horizon"
	}
	if n += c.Data.MaxPrompt; most == 0 || n <= most {
		return nil
	}
	return fmt.Errorf("%w: %s: %s: data.max_prompt_length + %s = %d, but max_position_embeddings is %d: lower them, or take a teacher that reads as much", ErrConfig, m.Key, m.Path, key, n, most)
}

// List returns the teachers: one, or those of teacher.models, each once. It skips what Validate
// refuses.
func (c TeacherConfig) List() (list []TeacherModel) {
	if c.By == "" {
		key := "teacher.path"
		if c.URL != "" {
			key = "teacher.url"
		}
		return []TeacherModel{{Key: key, Path: c.Path, URL: c.URL}}
	}
	for _, pair := range strings.Split(c.Models, ",") {
		value, at, _ := strings.Cut(pair, "=")
		value, at = strings.TrimSpace(value), strings.TrimSpace(at)
		m := TeacherModel{Key: "teacher.models: " + value, Values: []string{value}, Path: at}
		if strings.Contains(at, "://") {
			m.Path, m.URL = "", at
		}
		same := func(x TeacherModel) bool { return x.Path == m.Path && x.URL == m.URL }
		if k := slices.IndexFunc(list, same); k >= 0 {
			list[k].Values = append(list[k].Values, value)
		} else if value != "" && at != "" {
			list = append(list, m)
		}
	}
	return list
}

// Folders returns the folders of the teachers that are loaded.
func (c TeacherConfig) Folders() (dirs []string) {
	for _, m := range c.List() {
		if m.URL == "" && (m.Path != "" || c.By == "") {
			dirs = append(dirs, m.Path)
		}
	}
	return dirs
}

// Servers returns the addresses of the teachers behind servers.
func (c TeacherConfig) Servers() (urls []string) {
	for _, m := range c.List() {
		if m.URL != "" {
			urls = append(urls, m.URL)
		}
	}
	return urls
}

// Divergence reports whether a stage learns by a divergence from the teacher's distributions, over
// the whole vocabulary or over its most probable tokens.
func (c *Config) Divergence(stage Stage) bool { return stage == OPD && c.Teacher.Loss != "policy" }

// Merges reports whether sampling reads a merged copy of the weights: by default on a GPU, unless
// the base is quantised, whose memory a copy would take again and more.
func (c *Config) Merges(stage Stage) bool {
	return c.Actor.LoRA.On() && stage.HasPolicy() &&
		(c.Rollout.Merged == "true" || c.Rollout.Merged == "auto" && c.Trainer.Device == "cuda" &&
			!model.Quantised(c.LoRABase()))
}

// StudentPlan returns the options by which the memory of the student is planned, without passes.
func (c *Config) StudentPlan() model.PlanOptions {
	return model.PlanOptions{Kind: model.LM, Trainable: true, LoRA: c.Actor.LoRA,
		Quant: c.LoRABase(), Recompute: c.Actor.Recompute,
		Moments8: c.Actor.Optim.Moments == "8bit", Offload: c.Actor.Optim.Offload}
}

// DiscriminatorPlan returns the options by which the memory of the game's discriminator is planned,
// without passes.
func (c *Config) DiscriminatorPlan() model.PlanOptions {
	return model.PlanOptions{Kind: c.Critic.Kind(), Trainable: true, LoRA: c.Critic.LoRA,
		Quant: c.LoRABase(), Recompute: c.Critic.Recompute,
		Moments8: c.Critic.Optim.Moments == "8bit", Offload: c.Critic.Optim.Offload}
}

// The first CheckFirst steps of a run, and every CheckEvery-th, compare the sampler's
// log-probabilities with the trainer's. The number of the step decides, so that resumed and
// uninterrupted runs agree.
const (
	CheckFirst = 3
	CheckEvery = 50
)

// LoRABase returns the precision of LoRA's frozen base: the student's, which the discriminator's
// adapters share, or the discriminator's own.
func (c *Config) LoRABase() string {
	if c.Actor.LoRA.On() {
		return c.Actor.LoRA.Base
	}
	return c.Critic.LoRA.Base
}
