// Package play lets a model act in an environment without training it, for gad eval --env and gad
// generate --env.
//
//	play.go     an environment, limits of its episodes, episodes of a model: start here
//	teacher.go  recorded episodes of a teacher, replayed
package play

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"gad/apps/session"
	"gad/data"
	"gad/internal/env"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/episode"
)

// Options is the flags about an environment.
type Options struct {
	Command string // for the shell; "": none
	Workers int
	Timeout time.Duration // for one reply
	Turns   int           // most turns of an episode
	Tokens  int           // most tokens of an episode after its first context; 0: see Limits
	Turn    int           // most tokens of a turn; 0: see Limits
	Prompt  int           // most tokens of the first context; 0: see Limits
}

// Limits returns the limits of episodes of a model whose context has most tokens. Options that are
// 0 get the defaults of training, or less if the model has less room.
func (o Options) Limits(command string, most int) (episode.Limits, error) {
	c := config.Default()
	l := episode.Limits{Turns: o.Turns, Tokens: o.Tokens, Turn: o.Turn, Prompt: o.Prompt}
	if l.Tokens == 0 {
		l.Tokens = min(c.Env.MaxTokens, most/2)
	}
	if l.Prompt == 0 {
		l.Prompt = min(c.Data.MaxPrompt, most-l.Tokens)
	}
	if l.Turn == 0 {
		l.Turn = c.Data.MaxResponse
	}
	l.Turn = min(l.Turn, l.Tokens)
	switch {
	case l.Tokens >= most:
		return l, fault.Usagef("%s: --max-tokens %d leaves no room for a first context in the %d of the model: lower it", command, l.Tokens, most)
	case l.Prompt+l.Tokens > most:
		return l, fault.Usagef("%s: --max-prompt-length %d and --max-tokens %d together are more than the %d of the model: lower them", command, l.Prompt, l.Tokens, most)
	}
	return l, nil
}

// Environment is the running programs of an environment's command.
type Environment struct {
	*env.Pool
	kill context.CancelFunc
}

// Open starts the environment's programs. A command that is not an environment is a usage error.
func Open(s *session.Session, o Options) (*Environment, error) {
	_, done := s.Console.Busy("starting the environment", 0)
	defer done()
	ctx, kill := context.WithCancel(context.Background())
	pool, err := env.Open(ctx, env.Options{Command: o.Command, Workers: o.Workers,
		Timeout: o.Timeout})
	if err != nil {
		kill()
		return nil, fault.As(fault.ErrUsage, err)
	}
	return &Environment{pool, kill}, nil
}

// Close ends the programs.
func (e *Environment) Close() {
	e.Pool.Close()
	e.kill()
}

// Player lets a model play in an environment.
type Player struct {
	Model    *session.Model
	Env      env.Environment
	Limits   episode.Limits
	Sampling model.Sampling
	Seed     uint64
	Progress func(tokens int)
}

// episodesPerEngine is the number of episodes played together before they are returned.
const episodesPerEngine = 4 * session.Slots

// Play plays the tasks and returns their episodes in order. When ctx ends it returns
// model.ErrStopped with the episodes of the first tasks.
func (p Player) Play(ctx context.Context, tasks []episode.Task) (all []episode.Episode, err error) {
	e, err := p.Model.NewEngine(p.Limits.Engine(session.Slots, len(tasks)))
	if err != nil {
		return nil, err
	}
	defer e.Close()
	player := &episode.Player{Tok: p.Model.Tokenizer, Env: p.Env, Limits: p.Limits,
		Sampling: p.Sampling, Seed: p.Seed, Progress: p.Progress}
	for some := range slices.Chunk(tasks, episodesPerEngine) {
		played, err := player.Play(ctx, e, some)
		if errors.Is(err, episode.ErrContext) {
			// the limit of training has another name here
			err = errors.New(strings.Replace(err.Error(), "data.max_prompt_length",
				"--max-prompt-length", 1))
		}
		if err != nil {
			return all, err
		}
		all = append(all, played...)
	}
	return all, nil
}

// Played is an episode in the JSON of commands.
type Played struct {
	Row    int           `json:"row"`
	Sample int           `json:"sample"`
	Prompt []env.Message `json:"content"`       // the first context
	Env    data.JSON     `json:"env,omitempty"` // column of the row
	Turns  []report.Turn `json:"turns"`         // turns of the model and messages of the environment
	Reward float64       `json:"reward"`
	Wrote  int           `json:"turns_written"`
	// invalid turns, by the environment
	Invalid int    `json:"invalid"`
	Tokens  int    `json:"tokens"` // tokens that the model wrote
	Label   string `json:"label,omitempty"`
	Cut     bool   `json:"cut"`             // ended by a limit, or in a turn that was cut
	Fault   string `json:"fault,omitempty"` // error of the environment; the other figures mean nothing then
}

// Describe returns a task's episode as commands print it.
func Describe(task episode.Task, e *episode.Episode) Played {
	p := Played{Row: int(task.Key), Sample: task.Sample, Prompt: e.Prompt,
		Env: data.JSON(task.Row.Env), Reward: e.Reward(0), Wrote: len(e.Turns),
		Tokens: e.Trained(), Label: e.Label, Cut: e.Cut || e.Open, Fault: e.Fault,
		Turns: []report.Turn{}}
	for _, m := range e.Spoken {
		p.Turns = append(p.Turns, report.Turn{Role: m.Role, Text: m.Content})
	}
	for k, turn := range e.Turns {
		m, span := &p.Turns[turn.At], e.Script.Spans[k]
		m.IDs = e.Script.IDs[span.From:span.To]
		if e.Fault != "" && k == len(e.Turns)-1 { // the last turn has no reply
			continue
		}
		if m.Reward, m.Valid = &turn.Reward, &turn.Valid; !turn.Valid {
			p.Invalid++
		}
	}
	return p
}
