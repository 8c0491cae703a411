// Package config holds the settings of a run, their defaults and their rules, and derives from them
// what a stage computes. It needs no model, no data and no device.
//
//	config.go    the sections of the YAML file, one struct each
//	stage.go     the stages, and a stage's sizes and options by its settings
//	passes.go    what a step computes: the list of its passes
//	defaults.go  the paper's values, and presets
//	validate.go  combinations of settings that are refused
//	terms.go     the reward as a sum of terms
//	sizes.go     sizes that are refused
//	warnings.go  settings that are allowed and rarely right
//	fixed.go     settings that cannot change within a run
//	facts.go     the tags of a setting: the stages that read it, fixed, inherited, aliases
//	verl.go      other trainers' names of settings
package config

import (
	"errors"

	"gad/actor"
	"gad/algos"
	"gad/critic"
	"gad/data"
	"gad/internal/conf"
)

// ErrConfig reports settings that cannot be run.
var ErrConfig = errors.New("configuration")

// Config holds all settings of a run, in the sections of the YAML file. Names that verl also has
// mean the same here.
type Config struct {
	Model     ModelConfig         `yaml:"model"`
	Data      DataConfig          `yaml:"data"`
	Rollout   actor.RolloutConfig `yaml:"rollout" doc:"how answers are sampled from the student"`
	Algorithm AlgorithmConfig     `yaml:"algorithm" stages:"warmup train"`
	Actor     actor.Config        `yaml:"actor" doc:"the student"`
	Critic    critic.Config       `yaml:"critic" doc:"the discriminator" stages:"warmup train"`
	DPO       DPOConfig           `yaml:"dpo" stages:"dpo"`
	Teacher   TeacherConfig       `yaml:"teacher"`
	Coach     CoachConfig         `yaml:"coach" stages:"opd"`
	Env       EnvConfig           `yaml:"env" stages:"warmup train"`
	Trainer   RunConfig           `yaml:"trainer"`
}

// ModelConfig is the `model` section.
type ModelConfig struct {
	Path       string `yaml:"path" doc:"student: a Hugging Face model folder, a GGUF file, or a folder of LoRA adapters that names its base (flag --model)" inherit:"no"`
	Adapter    string `yaml:"adapter_path" doc:"LoRA adapters to go on with, on the weights of path: a folder as peft writes it (flag --adapter)" inherit:"no"`
	RewardPath string `yaml:"reward_path" doc:"model folder or GGUF file that the discriminator starts from; empty: the student's, or with --resume the run's discriminator (flag --reward-model)" stages:"warmup train" inherit:"no"`
}

// TeacherConfig is the `teacher` section: the model whose probabilities gad opd learns from, and
// the game with algorithm.teacher_weight. (Elsewhere only the teacher's answers are known.)
type TeacherConfig struct {
	Path         string  `yaml:"path" doc:"teacher: a Hugging Face model folder, LoRA adapters that name their base, or a GGUF file. teacher.loss=exact and topk need the student's tokenizer (flag --teacher)" inherit:"no" stages:"opd warmup train"`
	URL          string  `yaml:"url" doc:"server that scores the answers in the place of a teacher that is loaded: one that speaks as vLLM (prompt_logprobs), SGLang or gad serve does, such as http://127.0.0.1:8000/v1; path is then a folder with the teacher's tokenizer, or empty where it has the student's (flag --teacher-url)" inherit:"no" stages:"opd warmup train"`
	InsecureHTTP bool    `yaml:"insecure_http" doc:"url may be http:// on another machine: whoever is between can read the texts and the key" inherit:"no" stages:"opd warmup train" needs:".url!="`
	By           string  `yaml:"by" doc:"column whose value says which of several teachers scores a row's answers, one of teacher.models; a row with another value is refused. Empty: one teacher" fixed:"true" stages:"opd warmup train" unproven:"all"`
	Models       string  `yaml:"models" doc:"the teachers of teacher.by: VALUE=FOLDER or VALUE=URL with commas between several, such as math=teachers/math,code=http://127.0.0.1:8000/v1; a folder as path, held once however many values name it, a server as url, with the student's tokenizer (flag --teacher-models)" inherit:"no" stages:"opd warmup train" needs:".by!="`
	Template     string  `yaml:"template" doc:"variables of the teacher's own chat template, as data.template; empty: those that its folder keeps" fixed:"true" stages:"opd warmup train"`
	System       string  `yaml:"system" doc:"system message that the teacher alone reads, in the place of the row's; empty: the row's" fixed:"true" stages:"opd warmup train"`
	PromptKey    string  `yaml:"prompt_key" doc:"column with a prompt, a text or messages, that the teacher alone reads in the place of the row's: with a worked answer, hints, notes on an earlier answer; for rows without one it reads the row's. What the student reads does not change" fixed:"true" stages:"opd warmup train" unproven:"all"`
	MaxPrompt    int     `yaml:"max_prompt_length" min:"0" max:"1048576" doc:"longest prompt of prompt_key in tokens; 0: data.max_prompt_length, below which it cannot be" fixed:"true" stages:"opd warmup train" needs:".prompt_key!="`
	Loss         string  `yaml:"loss" choices:"policy,exact,topk" doc:"what the student learns by: policy: policy gradients whose advantage at a token is the teacher's log-probability of it minus the student's; exact: the divergence of the two distributions, over the whole vocabulary at every token of the answers; topk: KL(teacher||student) of the teacher's top_k most probable tokens and, as one more, of all others together" fixed:"true" stages:"opd"`
	TopK         int     `yaml:"top_k" min:"1" max:"1024" doc:"with loss=topk: how many of the teacher's most probable tokens count one by one" fixed:"true" stages:"opd" needs:".loss=topk"`
	Beta         float64 `yaml:"beta" min:"0" max:"1" doc:"with loss=exact: which divergence (GKD, arXiv 2306.13649): 1: KL(student||teacher), which prefers what the teacher does most; 0: KL(teacher||student), which covers all it does; between them beta*KL(teacher||M) + (1-beta)*KL(student||M) with the mixture M = beta*teacher + (1-beta)*student" stages:"opd" needs:".loss=exact"`
	Horizon      int     `yaml:"horizon" min:"0" max:"1048576" doc:"how many tokens of an answer, from its first on, are sampled and learned; validation has whole answers. 0: whole answers" fixed:"true" stages:"opd" unproven:"all"`
	HorizonPace  string  `yaml:"horizon_schedule" choices:"constant,linear" doc:"linear: the horizon grows from teacher.horizon in the first step to data.max_response_length in the last, by the steps of the run" fixed:"true" stages:"opd" needs:".horizon>0" unproven:"all"`
	Renew        int     `yaml:"renew" min:"0" max:"1000000000" doc:"every so many steps the teacher becomes a copy of the student: of a teacher that is to know no more than the student, and teaches by what it reads (teacher.prompt_key, coach.command); 0: it stays as it is" fixed:"true" stages:"opd" unproven:"all"`
	Weights      string  `yaml:"weights" choices:"native,q8_0,q4_0" doc:"how the teacher's weights are kept: native (as matrix products read them), or in ggml's q8_0 or q4_0" fixed:"true" stages:"opd warmup train"`
}

// CoachConfig is the `coach` section: notes on the student's answers, which the teacher of gad opd
// reads (LLM-as-a-Coach, arXiv 2607.18110).
type CoachConfig struct {
	Command   string  `yaml:"command" doc:"program that writes notes on each answer of the student, run by sh -c, such as gad coach, a language model, or gad task notes, a rule; its protocol is the checker's (doc/the-game.md) with {\"notes\": ...}; or @student: the student itself, with the weights of the step (coach.question). The teacher reads them with the prompt of that answer, and the student does not; empty: none (flag --coach)" unproven:"all"`
	Timeout   int     `yaml:"timeout" min:"1" max:"1000000" doc:"time limit for one call of the coach in seconds; after it the run stops with an error" needs:".command!= .command!=@student"`
	Template  string  `yaml:"template" doc:"what the teacher reads in the place of the prompt's last turn of the user: a text with {prompt}, that turn, and {notes}" fixed:"true" needs:".command!="`
	Question  string  `yaml:"question" doc:"what the student is asked for notes on its own answer, in the place of the prompt's last turn of the user: a text with {prompt}, that turn, and {answer}" fixed:"true" needs:".command=@student"`
	MaxTokens int     `yaml:"max_tokens" min:"1" max:"1048576" doc:"by how many tokens notes, with the template, may lengthen the teacher's prompt; longer ones cost their answer the notes. With coach.command=@student also the longest notes, and by how many tokens coach.question may lengthen prompt and answer" fixed:"true" needs:".command!="`
	Plain     float64 `yaml:"plain" min:"0" max:"1" doc:"share of a step's prompts, the last of them, whose answers have no notes, and which with teacher.renew are learned from the teacher as it was at the start. Below 1" fixed:"true" needs:".command!=" unproven:"all"`
}

// DataConfig is the `data` section.
type DataConfig struct {
	TrainFiles     []string `yaml:"train_files" doc:"training data: files (Arrow IPC, Parquet, JSON lines, CSV), folders of them or patterns such as shards/*.arrow, read as one set in this order (flag --data)"`
	ValFiles       []string `yaml:"val_files" doc:"held-out data (rows that are not trained on) for the val/ metrics, as train_files; empty is none (flag --val-data)"`
	Split          string   `yaml:"split" doc:"which split of train_files, if a folder has several, such as train; empty is the only one (flag --split)"`
	ValSplit       string   `yaml:"val_split" doc:"which split of val_files (flag --val-split)" needs:".val_files!="`
	Format         string   `yaml:"format" choices:"auto,messages,sharegpt,alpaca,qa,prompt_completion,preference" doc:"what the rows look like: see doc/data.md; auto finds out by the columns and says so (flag --format)"`
	ContentKey     string   `yaml:"content_key" doc:"column with the conversation or the prompt; where it is missing, the format's own" alias:"data.prompt_key"`
	TeacherKey     string   `yaml:"teacher_key" doc:"column with the teacher's answer; where it is missing, the format's own"`
	Turns          string   `yaml:"turns" choices:"last,all,each" doc:"which of the teacher's turns are learned: last: the last of a row, and those before it are prompt; each: every turn of the assistant is a row of its own, with those before it as its prompt, for every stage; all: a row is one sequence in which every turn of the assistant is learned, for sft. Validation rows are read with each in the place of all (flag --turns)" fixed:"true"`
	Where          string   `yaml:"where" doc:"condition on the training rows: comparisons of a column with a number or a text, several joined by and, such as right > 0 and subset = math; columns are those of the files and of data.ratings. Empty: all rows" fixed:"true"`
	Ratings        string   `yaml:"ratings" doc:"file of gad data rate on these training rows, whose columns data.where may name (flag --ratings)"`
	Template       string   `yaml:"template" doc:"variables of the chat template, for rows, rollouts and validation, and kept with every model that the run saves: NAME=VALUE with commas between several, such as enable_thinking=false, each value JSON or else a text, or a JSON object; empty: those that the model's folder keeps (flag --template)" fixed:"true"`
	ChatTemplate   string   `yaml:"chat_template" doc:"chat template in the place of the student's: a file, the name of one that its folder has beside the default, or chatml; it is kept with every model that the run saves (flag --chat-template)" inherit:"no"`
	TrainBatchSize int      `yaml:"train_batch_size" min:"1" max:"1048576" doc:"prompts per step" fixed:"true" alias:"per_device_train_batch_size batch_size"`
	MaxPrompt      int      `yaml:"max_prompt_length" min:"1" max:"1048576" doc:"longest prompt in tokens" fixed:"true" alias:"actor_rollout_ref.rollout.prompt_length"`
	MaxResponse    int      `yaml:"max_response_length" min:"1" max:"1048576" doc:"longest answer in tokens, end token included; longer teacher answers are cut there" fixed:"true" alias:"max_completion_length max_length max_new_tokens actor_rollout_ref.rollout.response_length"`
	Overlong       string   `yaml:"overlong_prompts" choices:"error,filter" doc:"what happens to rows whose prompt is over the limit" fixed:"true" alias:"data.truncation"`
	TruncTeacher   string   `yaml:"truncated_teachers" choices:"keep,filter" doc:"what happens to rows whose teacher answer would be cut, or is unfinished by its finish_reason; kept ones are left out of the discriminator's pairs unless critic.truncated is include" fixed:"true"`
	SoftLabels     float64  `yaml:"soft_labels" min:"0" max:"1" doc:"where rows have log-probabilities of the teacher (column teacher_logprobs, of gad data collect --top-logprobs and gad data score): weight of the soft labels that they give, against the token itself, which has the rest; tokens without soft labels are learned as ever. 0: the column is not read" stages:"sft warmup" fixed:"true"`
	CacheDir       string   `yaml:"cache_dir" doc:"folder for encoded training rows, so that the next run on the same data and tokenizer need not encode them again (data of 4 MB and more); auto: gad in the user's cache folder, on Linux $XDG_CACHE_HOME or ~/.cache; none: rows are encoded in each run. Results do not depend on it"`
	CacheGB        int      `yaml:"cache_gb" min:"1" max:"1000000" doc:"largest size of that folder, GB; the oldest files are removed first" needs:".cache_dir!=none"`
}

// AlgorithmConfig is the `algorithm` section: from scores to advantages.
type AlgorithmConfig struct {
	AdvEstimator  string         `yaml:"adv_estimator" choices:"grpo,dr_grpo,rloo,opo,reinforce_plus_plus,reinforce_plus_plus_baseline,grpo_passk,global,rank,zscore,gigpo,tree_grpo,tree_node" doc:"advantage estimator; doc/algorithms.md has the formulas. All but gigpo take an episode of several turns by its whole reward. tree_grpo and tree_node give every node of a tree its own (rollout.tree, doc/trees.md)" unproven:"dr_grpo,rloo,opo,reinforce_plus_plus,reinforce_plus_plus_baseline,grpo_passk,global,rank,zscore,gigpo,tree_grpo,tree_node"`
	NormByStd     bool           `yaml:"norm_adv_by_std_in_grpo" doc:"divide by the standard deviation of the group; false makes grpo the same as dr_grpo" needs:".adv_estimator=grpo|grpo_passk|gigpo|tree_grpo" unproven:"false"`
	Gamma         float64        `yaml:"gamma" min:"0" max:"1" doc:"discount of reinforce_plus_plus, by token, and of gigpo, by turn (its paper has 0.95)" needs:".adv_estimator=reinforce_plus_plus|gigpo" unproven:"all"`
	GroupStats    string         `yaml:"group_stats" choices:"episodes,turns" doc:"over what the mean and the standard deviation of a group go: its episodes, as in the papers, or its turns, each with its episode's reward, so that longer episodes weigh more (verl-agent's compute_mean_std_cross_steps, AgentFlow). Single answers are one turn" needs:"env.command!=" unproven:"turns"`
	GiGPO         GiGPO          `yaml:"gigpo"`
	ZScoreFloor   float64        `yaml:"zscore_floor" min:"0" doc:"zscore divides by at least this standard deviation" needs:".adv_estimator=zscore" unproven:"all"`
	AdvPower      float64        `yaml:"adv_power" min:"0" doc:"power of GRGC (arXiv 2609.39757, which uses 1.5): rewards are standardised within their group and raised to this power before the estimator, so that the best and the worst answers count more; 1: unchanged" fixed:"true" unproven:"all"`
	AdvClip       float64        `yaml:"adv_clip" min:"0" doc:"clip advantages to plus or minus this; 0: no clip" unproven:"all"`
	UseKLInReward bool           `yaml:"use_kl_in_reward" doc:"subtract the KL to the reference from the reward (no gradient)" unproven:"true"`
	KLPenalty     string         `yaml:"kl_penalty" choices:"k1,kl,abs,k2,mse,k3,low_var_kl,full" doc:"KL estimator in the reward; full: no estimate but the sum over the vocabulary at every token of the answers, from a forward pass of the student and one of the reference" needs:".use_kl_in_reward=true" unproven:"all"`
	KLCtrl        KLCtrl         `yaml:"kl_ctrl"`
	FilterGroups  FilterGroups   `yaml:"filter_groups"`
	ScoreClip     float64        `yaml:"score_clip" min:"0" doc:"clip scores to plus or minus this in the reward; 0: no clip" unproven:"all"`
	Terms         string         `yaml:"terms" doc:"the reward as a weighted sum of terms, such as d + 0.5*check + 0.3*rouge_l@wrong - 0.1*length: d, the discriminator's score; check, the checker's (trainer.checker); env, the sum of the environment's rewards (env.command); rouge_l, of the answer and the teacher's; teacher_logp, the mean log-probability of the teacher's answer behind the student's own thought; length, log(1+tokens). z(NAME) standardises a term within the prompt's answers; NAME@wrong counts it for wrong answers only (right_at). Terms are not scaled to each other. empty: d, and what checker_weight, env_weight and length_coef add"`
	RightAt       float64        `yaml:"right_at" min:"0" doc:"with a term@wrong: the least score of the checker that a right answer has; 0: not set" unproven:"all"`
	LengthCoef    float64        `yaml:"length_coef" doc:"short for the term -B*length: log(1+length) times this is subtracted from the reward; above 0 favours short answers" unproven:"all"`
	Overlong      OverlongBuffer `yaml:"overlong_buffer"`
	CheckerWeight float64        `yaml:"checker_weight" min:"0" max:"1" doc:"share w of the checker (trainer.checker) in the reward, short for the terms (1-w)*z(d) + w*z(check), where z standardises within a prompt's answers; 0: the discriminator's score alone"`
	EnvWeight     float64        `yaml:"env_weight" min:"0" max:"1" doc:"share w of the environment (env.command) in the reward, short for the terms (1-w)*z(d) + w*z(env), where z standardises within a prompt's episodes; with one reward a turn (1-w)*d/(sigma_d+1e-6) + w*e/(sigma_e+1e-6), sigma those of the sums of the prompt's episodes; 0: the discriminator's score alone" fixed:"true"`
	TeacherWeight float64        `yaml:"teacher_weight" min:"0" doc:"weight w of the teacher's probabilities (teacher.path, flag --teacher) in the advantages: to that of a token is added w * (the teacher's log-probability of it minus the student's), which is not normalised; 0: no teacher is loaded"`
	TruncReward   string         `yaml:"truncated_reward" choices:"group_min,score" doc:"reward of an answer cut at the length limit: the smallest of its group, or its own score"`
}

// GiGPO is the `algorithm.gigpo` section (arXiv 2505.10978).
type GiGPO struct {
	StepAdvantageW float64 `yaml:"step_advantage_w" min:"0" doc:"weight of gigpo's step advantage beside that of the episode. Above 0" needs:"algorithm.adv_estimator=gigpo" unproven:"all"`
}

// KLCtrl is the `algorithm.kl_ctrl` section.
type KLCtrl struct {
	Type     string  `yaml:"type" choices:"fixed,adaptive" doc:"fixed: kl_coef does not change; adaptive: it follows target_kl" needs:"algorithm.use_kl_in_reward=true" unproven:"adaptive"`
	KLCoef   float64 `yaml:"kl_coef" min:"0" doc:"KL coefficient in the reward; the initial one if adaptive" needs:"algorithm.use_kl_in_reward=true"`
	TargetKL float64 `yaml:"target_kl" min:"0" doc:"target of the adaptive coefficient, nats per token" needs:".type=adaptive algorithm.use_kl_in_reward=true" unproven:"all"`
	Horizon  float64 `yaml:"horizon" min:"1" doc:"number of answers over which it adapts; larger is slower" needs:".type=adaptive algorithm.use_kl_in_reward=true" unproven:"all"`
}

// FilterGroups is the `algorithm.filter_groups` section: dynamic sampling (arXiv 2503.14476).
type FilterGroups struct {
	Enable        bool    `yaml:"enable" doc:"drop prompts whose answers all have the same reward and sample other prompts instead (DAPO's dynamic sampling)" unproven:"true"`
	MinSpread     float64 `yaml:"min_spread" min:"0" doc:"with enable: a prompt is also dropped if the largest and the smallest reward of its answers differ by no more than this. 0 drops equal rewards only, which a checker gives and a discriminator's scores hardly ever are" unproven:"all"`
	MaxGenBatches int     `yaml:"max_num_gen_batches" min:"1" max:"1000000" doc:"rollout batches per step; after the last one the step uses what it has" needs:".enable=true" unproven:"all"`
}

// OverlongBuffer is the `algorithm.overlong_buffer` section (arXiv 2503.14476, equation 13).
type OverlongBuffer struct {
	Len    int     `yaml:"len" min:"0" max:"100000000" doc:"the penalty grows over this many tokens before the length limit; 0: no penalty" unproven:"all"`
	Factor float64 `yaml:"penalty_factor" min:"0" doc:"penalty at the limit" needs:".len>0" unproven:"all"`
}

// EnvConfig is the `env` section: the environment that the student acts in.
type EnvConfig struct {
	Command        string  `yaml:"command" doc:"program that is the environment, run by sh -c; the protocol is in doc/environments.md. The student then plays rollout.n episodes of several turns for each row, beside the teacher's in teacher_response (data.turns=all); empty: one answer for each (flag --env)" inherit:"no"`
	Workers        int     `yaml:"workers" min:"1" max:"4096" doc:"how many of them run, in each of which many episodes are played; results do not depend on it"`
	MaxTurns       int     `yaml:"max_turns" min:"1" max:"1000000" doc:"turns of an episode; it is then cut, as an answer is at the length limit" fixed:"true"`
	MaxTokens      int     `yaml:"max_tokens" min:"1" max:"1048576" doc:"tokens of an episode behind its first context, the environment's included; it is then cut, and so is the teacher's. A turn has up to data.max_response_length" fixed:"true"`
	Timeout        int     `yaml:"timeout" min:"1" max:"1000000" doc:"time limit of one reply, and of the start, in seconds; after it the program is started again and its episodes are replayed"`
	InvalidPenalty float64 `yaml:"invalid_penalty" min:"0" doc:"is subtracted from the reward of a turn that the environment calls invalid" fixed:"true" unproven:"all"`
	MaxFaults      float64 `yaml:"max_faults" min:"0" max:"0.9" doc:"largest share of a step's episodes that the environment may break; above it the run stops. A broken episode is learned by nobody"`
	OtherStart     bool    `yaml:"other_start" doc:"episodes may begin otherwise than the row's teacher began; the discriminator may then learn to tell beginnings apart"`
}

// DPOConfig is the `dpo` section: the preference objective of gad dpo.
type DPOConfig struct {
	LossType       string  `yaml:"loss_type" choices:"sigmoid,hinge,ipo,exo_pair,nca_pair,robust,bco_pair,sppo_hard,aot,aot_unpaired,apo_zero,apo_down,discopop,sigmoid_norm,sft" doc:"preference loss, under TRL's names" unproven:"all"`
	Beta           float64 `yaml:"beta" doc:"DPO's beta: a smaller value lets the student move further from the reference. Above 0" needs:".loss_type!=sft" unproven:"all"`
	LabelSmoothing float64 `yaml:"label_smoothing" min:"0" max:"0.499" doc:"assumed share of wrongly ordered pairs, for sigmoid, robust, exo_pair, aot and aot_unpaired; for exo_pair 0 means 1e-3, as in its paper" unproven:"all"`
	Tau            float64 `yaml:"discopop_tau" doc:"temperature of discopop. Above 0" needs:".loss_type=discopop" unproven:"all"`
	Truncated      string  `yaml:"truncated" choices:"exclude,include" doc:"whether answers cut at the length limit take part in pairs"`
}

// RunConfig is the `trainer` section.
type RunConfig struct {
	Output            string  `yaml:"default_local_dir" doc:"run folder (flag --output)" inherit:"no" alias:"output_dir"`
	Resume            string  `yaml:"resume_from" doc:"run or checkpoint folder to start from or to resume (flag --resume)" inherit:"no"`
	ResumeOptim       string  `yaml:"resume_optimizer" choices:"none,critic,both" doc:"which optimizer states the game takes from the warm-up checkpoint" needs:".resume_from!="`
	CriticWarmup      int     `yaml:"critic_warmup" min:"0" max:"1000000000" doc:"number of steps at the start in which only the discriminator learns (flag --critic-warmup)" stages:"warmup train" inherit:"no"`
	CriticWarmupUntil float64 `yaml:"critic_warmup_until" min:"0" doc:"the discriminator learns alone until its smoothed loss is below this (critic/d_loss_distinct, where guessing gives 0.693); trainer.critic_warmup is then the least number of such steps, and the run becomes longer by the additional ones; 0: exactly trainer.critic_warmup steps" stages:"warmup train" fixed:"true" inherit:"no"`
	CriticWarmupMax   int     `yaml:"critic_warmup_max" min:"1" max:"1000000000" doc:"largest number of such steps with trainer.critic_warmup_until" stages:"warmup train" inherit:"no" needs:".critic_warmup_until>0"`
	WarmupActor       string  `yaml:"warmup_objective" choices:"sft,policy" doc:"the student's objective in the warm-up: sft (cross entropy on the teacher's answers) or policy" stages:"warmup" unproven:"policy"`
	Objective         string  `yaml:"objective" choices:"cross_entropy,ranking" doc:"what gad sft learns: cross_entropy: the teacher's answers; ranking: the order of scored answers, rollout.n sampled ones and the teacher's of each row, kept by gad data rate --keep-answers (data.ratings). Its loss is the cross entropy of softmax(sequence log-probability) against softmax(score/tau) over a row's answers, tau falling from 1 to 0.1 over the run (flag --objective)" stages:"sft" fixed:"true" inherit:"no" unproven:"ranking"`
	TotalEpochs       int     `yaml:"total_epochs" min:"1" max:"1000000" doc:"passes over the data, if total_steps is 0" inherit:"no" alias:"num_train_epochs epochs" needs:".total_steps=0"`
	TotalSteps        int     `yaml:"total_steps" min:"0" max:"1000000000" doc:"number of steps; 0: as many as total_epochs takes" inherit:"no" alias:"max_steps trainer.total_training_steps"`
	SaveFreq          int     `yaml:"save_freq" min:"0" max:"1000000000" doc:"steps between checkpoints; 0: only at the end" alias:"save_steps"`
	TestFreq          int     `yaml:"test_freq" min:"0" max:"1000000000" doc:"steps between evaluations on data.val_files; 0: only at the end" alias:"eval_steps"`
	ValBeforeTrain    bool    `yaml:"val_before_train" doc:"evaluate on data.val_files before the first step too (start/ metrics): gad doctor then sees a student that gets worse. What the run that this one starts from has measured at its end is not measured again"`
	ValRows           int     `yaml:"val_rows" min:"1" max:"1000000000" doc:"number of rows of data.val_files that an evaluation uses"`
	MaxToKeep         int     `yaml:"max_ckpt_to_keep" min:"1" max:"1000000" doc:"number of newest checkpoints to keep" alias:"save_total_limit trainer.max_actor_ckpt_to_keep"`
	KeepBest          string  `yaml:"keep_best" choices:",val/rouge_l,val/teacher_nll,val/check,val/held_out_d,val/env_reward" doc:"also keep the checkpoint that is best by this metric: the smallest val/teacher_nll, the largest of the others; empty: none"`
	Checker           string  `yaml:"checker" doc:"program that scores the student's answers, run by sh -c; the protocol is in doc/the-game.md; gives val/check; empty: none (flag --checker)"`
	CheckerTimeout    int     `yaml:"checker_timeout" min:"1" max:"1000000" doc:"time limit for one call of the checker in seconds; after it the run stops with an error" needs:".checker!="`
	HeldOutCritic     string  `yaml:"held_out_critic" doc:"folder of a discriminator that takes no part in training, for example the critic of a warm-up on other rows or with another seed; gives val/held_out_d; empty: none"`
	SaveSamples       int     `yaml:"save_samples" min:"0" max:"1000000000" doc:"number of prompts per step whose samples are written to samples/step_N.jsonl, and of validation prompts to samples/val_N.jsonl"`
	MaxSkips          int     `yaml:"max_skips" min:"1" max:"1000000000" doc:"the run stops after this many optimizer steps in a row with a gradient that is not finite"`
	Seed              uint64  `yaml:"seed" doc:"seed of data order, sampling and new weights" fixed:"true"`
	Device            string  `yaml:"device" choices:"cpu,cuda" doc:"where to compute (flag --device)"`
	Precision         string  `yaml:"precision" choices:"auto,bf16,f32" doc:"precision of matrix products, on cuda also of activations: bfloat16 with float32 sums, or float32; auto: bf16 on cuda, f32 on cpu. Trained weights and optimizer states are always float32"`
	Threads           int     `yaml:"threads" min:"0" max:"4096" doc:"number of CPU threads; 0: one per core. Results do not depend on it"`
	Shards            int     `yaml:"shards" min:"1" max:"4096" doc:"number of parts into which the gradient of an optimizer step is divided, by prompt: each is summed alone, and they are joined by a binary tree, so that a run has the same bits for 1, 2, 4, ... ranks. A power of two, and a multiple of the number of ranks (doc/ranks.md)"`
	ShardOptimizer    bool    `yaml:"shard_optimizer" doc:"with several ranks: each keeps AdamW's states of its part of the parameters alone, and steps that part (ZeRO stage 1): less memory for each rank, the same bits; on CPUs as much to send, on GPUs 1.25 times as much in bf16 and 1.5 times in f32 (doc/ranks.md)"`
	RankTimeout       int     `yaml:"rank_timeout" min:"1" max:"1000000" doc:"with several ranks: the longest time in seconds that one waits for the others in one phase of a step; then the run ends and names the missing one. It must be longer than the longest rollout of one rank"`
	MaxShardSizeMB    int     `yaml:"max_shard_size_mb" min:"1" max:"1000000000" doc:"largest size of one safetensors file in a checkpoint, MB"`
}

// Options returns how to read the training data.
func (c DataConfig) Options(stages data.Stages) data.Options {
	cols := data.DefaultColumns()
	cols.Content, cols.Teacher = c.ContentKey, c.TeacherKey
	return data.Options{Columns: cols, Format: c.Format, Split: c.Split, Turns: c.Turns,
		Choice: c.Choice(), Stages: stages}
}

// TrainOptions returns how a stage reads the training data, the columns of its teacher among them.
func (c *Config) TrainOptions(stage Stage, stages data.Stages) data.Options {
	o := c.Data.Options(stages)
	if c.ReadsTeacher(stage) {
		o.Columns.TeacherPrompt, o.Columns.TeacherBy = c.Teacher.PromptKey, c.Teacher.By
	}
	return o
}

// Choice returns which training rows are drawn.
func (c DataConfig) Choice() data.Choice {
	return data.Choice{Where: c.Where, Ratings: c.Ratings}
}

// ValOptions returns how to read the validation data. A validation compares one answer of the
// student with one of the teacher, so a row is never a whole conversation.
func (c DataConfig) ValOptions(stages data.Stages) data.Options {
	o := c.Options(stages)
	o.Choice = data.Choice{}
	if o.Split = c.ValSplit; o.Turns == data.TurnsAll {
		o.Turns = data.TurnsEach
	}
	return o
}

// Objective returns the preference objective of the settings.
func (c DPOConfig) Objective() algos.DPOConfig {
	return algos.DPOConfig{Loss: c.LossType, Beta: c.Beta, LabelSmoothing: c.LabelSmoothing,
		Tau: c.Tau}
}

// Load sets the values of the YAML file at path ("": no file) and then the overrides, such as
// "actor.optim.lr=1e-5". Every problem has a line in the error; with an error c is unchanged.
func (c *Config) Load(path string, overrides ...string) error {
	return conf.Load(c, path, overrides, nil)
}
