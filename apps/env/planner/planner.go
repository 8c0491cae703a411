// Package planner implements gad env planner: an environment with the four roles of AgentFlow
// (arXiv 2510.05592). The student is the planner, one step a turn; the other roles are rules, or a
// model behind an endpoint.
//
//	planner.go   the episodes: a turn as a step, the planner's view, STOP or CONTINUE, the reward;
//	             start here
//	question.go  the question of an episode: the column env, or drawn by the seed
//	rules.go     executor, verifier and generator by rule, and the tools
//	helper.go    the three roles by an endpoint, with a journal of its answers
package planner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"gad/internal/env"
)

// maxTurns is the limit of turns, including invalid ones: the last turn ends the episode with the
// memory so far.
const maxTurns = 8

// maxField bounds each line of a step, in bytes: all later views contain it.
const maxField = 200

// roles is the three roles other than the planner.
type roles interface {
	field() string // name of a step's third line, which the executor gets
	// execute runs the executor: it returns the step with command and result, or, for a plan that
	// it cannot take, the reason for the planner.
	execute(ctx context.Context, q *question, s step) (done step, why string, err error)
	// stop runs the verifier: it reports whether memory, at least one step, is enough.
	stop(ctx context.Context, q *question, memory []step) (bool, error)
	// right runs the generator: it reports whether the final answer from memory is right.
	right(ctx context.Context, q *question, memory []step) (bool, error)
	places() int // number of simultaneous episodes
}

// step is an entry of the memory.
type step struct {
	Tool    string `json:"tool_name"`
	SubGoal string `json:"sub_goal"`
	Command string `json:"command"` // in a plan: the line for the executor
	Result  string `json:"result"`
}

// Serve plays the environment on in and out, in the protocol of environments. A nil helper leaves
// the other roles to rules.
func Serve(in io.Reader, out io.Writer, helper *Helper) error {
	var others roles = byRule{}
	if helper != nil {
		others = helper
	}
	return env.Serve(in, out, "planner", others.places(), func() env.Episode {
		return &episode{others: others}
	})
}

// episode is an env.Episode of one question.
type episode struct {
	others roles
	q      *question // nil before Reset, and after Close
	memory []step
	turns  int
	done   bool
}

// Reset begins an episode with the question of row.Env, or with one drawn by the seed. It replaces
// the row's content by the planner's view.
func (e *episode) Reset(_ context.Context, seed uint64, row env.Row) (r env.Reply, err error) {
	switch {
	case row.Env != nil:
		if e.q, err = readQuestion(row.Env); err != nil {
			return r, fmt.Errorf("env planner: column env: %w", err)
		}
	case len(row.Content) > 0:
		return r, errors.New(`env planner: a row with content and without column env: its answer is not known: give {"question":...,"answer":...} or {"numbers":[...]}`)
	default:
		e.q = drawQuestion(seed)
	}
	return e.view("", true), nil
}

func (e *episode) Step(ctx context.Context, turn env.Turn) (r env.Reply, err error) {
	if e.q == nil || e.done {
		return r, errors.New("env planner: a turn behind the end")
	}
	e.turns++
	plan, why := e.read(turn)
	if why == "" {
		plan, why, err = e.others.execute(ctx, e.q, plan)
	}
	if err == nil && why == "" {
		e.memory = append(e.memory, plan)
	}
	stop := e.turns == maxTurns
	if err == nil && !stop && why == "" {
		stop, err = e.others.stop(ctx, e.q, e.memory)
	}
	if err != nil {
		return r, fmt.Errorf("env planner: turn %d: %w", e.turns, err)
	}
	if !stop {
		return e.view(why, why == ""), nil
	}
	e.done = true
	r = env.Reply{Done: true, Valid: why == "", Label: "lost"}
	if len(e.memory) == 0 {
		return r, nil
	}
	right, err := e.others.right(ctx, e.q, e.memory)
	if err != nil {
		return env.Reply{}, fmt.Errorf("env planner: turn %d: %w", e.turns, err)
	}
	if r.Label = "wrong"; right {
		r.Label, r.Reward = "right", 1
	}
	return r, nil
}

func (e *episode) Close() { e.q, e.memory = nil, nil }

// Fork returns a copy of the episode. The copies share the question, which does not change.
func (e *episode) Fork() env.Forker {
	copied := *e
	copied.memory = slices.Clone(e.memory)
	return &copied
}

// planPattern matches the three lines of a step at the end of a turn.
var planPattern = regexp.MustCompile(`(?s)^(?:.*\n)?Sub-Goal:([^\n]*)\nTool:([^\n]*)\n(Command|Context):([^\n]*)\s*$`)

// read returns the plan of a turn, or why it has none.
func (e *episode) read(turn env.Turn) (plan step, why string) {
	m := planPattern.FindStringSubmatch(turn.Text)
	if m == nil || turn.Cut || m[3] != e.others.field() {
		return plan, "it does not end with the three lines"
	}
	plan = step{Tool: strings.TrimSpace(m[2]), SubGoal: strings.TrimSpace(m[1]),
		Command: strings.TrimSpace(m[4])}
	for _, text := range []string{plan.SubGoal, plan.Command} {
		unprintable := strings.ContainsFunc(text,
			func(r rune) bool { return !unicode.IsPrint(r) })
		if text == "" || len(text) > maxField || unprintable {
			return plan, fmt.Sprintf("each line needs 1 to %d bytes that can be printed", maxField)
		}
	}
	known := func(t tool) bool { return t.name == plan.Tool }
	if !slices.ContainsFunc(e.q.tools(), known) {
		return plan, "it names none of the tools"
	}
	return plan, ""
}

// view returns the planner's next context, rebuilt from question and memory. why is the mistake of
// an invalid turn.
func (e *episode) view(why string, valid bool) env.Reply {
	var b strings.Builder
	field := e.others.field()
	b.WriteString("Plan the next step towards the answer. A step uses one tool:\n")
	b.WriteString(e.q.toolLines())
	b.WriteString("End with three lines:\nSub-Goal: what the step is for\nTool: its name\n")
	b.WriteString(field + ": " + fieldAbout[field])
	var u strings.Builder
	fmt.Fprintf(&u, "Question: %s\n%s", e.q.Question, memoryText(e.memory))
	if why != "" {
		u.WriteString("\nYour last answer was no step: " + why + ".")
	}
	return env.Reply{Prompt: []env.Message{{Role: "system", Content: b.String()},
		{Role: "user", Content: u.String()}}, Valid: valid, Anchor: digest(e.memory)}
}

// fieldAbout describes the third line of a step to the planner.
var fieldAbout = map[string]string{
	"Command": "what the tool gets",
	"Context": "all that the tool needs to know",
}

// memoryText returns the memory as all roles read it: a line a step.
func memoryText(memory []step) string {
	if len(memory) == 0 {
		return "Memory: empty"
	}
	var b strings.Builder
	b.WriteString("Memory:")
	for i, s := range memory {
		fmt.Fprintf(&b, "\n%d. %s | %s(%s) = %s", i+1, s.SubGoal, s.Tool, s.Command, s.Result)
	}
	return b.String()
}

// digest returns the anchor of a memory: the tools run, with their commands and results. It omits
// the sub-goals, whose wording changes no result, and the number of turns.
func digest(memory []step) string {
	h := sha256.New()
	for _, s := range memory {
		// Texts always marshal.
		raw, _ := json.Marshal([3]string{s.Tool, s.Command, s.Result})
		h.Write(raw)
	}
	return fmt.Sprintf("memory %d %s", len(memory), hex.EncodeToString(h.Sum(nil)[:8]))
}
