package generate

import (
	"errors"
	"fmt"
	"strings"

	"gad/apps/play"
	"gad/apps/session"
	"gad/data"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/episode"
	"gad/trainer/saved"
)

// Acting is the flags about an environment, and the row with which its episodes begin.
type Acting struct {
	play.Options
	Rows session.Rows // no Paths: the environment draws the task
	Row  int          // index in Rows
	JSON bool
}

// Act lets the model play Options.N episodes of one task, and prints them.
func Act(s *session.Session, o Options, a Acting) error {
	defer s.Console.Close()
	if err := saved.CheckModel(s.FS, o.Path); err != nil {
		return err
	}
	shape, err := model.ReadConfig(o.Path)
	if err != nil {
		return err
	}
	limits, err := a.Limits("generate", shape.MaxPosition)
	if err != nil {
		return err
	}
	var row data.Row
	if len(a.Rows.Paths) > 0 {
		if row, err = a.read(s); err != nil {
			return err
		}
	}
	task, err := episode.TaskOf(row, o.Seed, 0, uint64(row.Index))
	if err != nil {
		return err
	}
	tasks := make([]episode.Task, o.N)
	for k := range tasks {
		tasks[k], tasks[k].Sample = task, k
	}
	e, err := play.Open(s, a.Options)
	if err != nil {
		return err
	}
	defer e.Close()
	m, err := s.Load(o.Source, model.LM)
	if err != nil {
		return err
	}
	defer m.Close()
	nothing := func() string { return "nothing is printed of episodes under way" }
	ctx, stop := s.Stoppable(func() string { return "stopping" }, nothing)
	defer stop()
	advance, done := s.Console.Progress("tokens", 0)
	p := play.Player{Model: m, Env: e, Limits: limits, Sampling: o.Sampling, Seed: o.Seed,
		Progress: advance}
	episodes, err := p.Play(ctx, tasks)
	done()
	s.Console.Close()
	broken, why := 0, ""
	for k := range episodes {
		told := play.Describe(tasks[k], &episodes[k])
		if told.Fault != "" {
			broken, why = broken+1, told.Fault
		}
		if a.JSON {
			if err := session.PrintJSON(s.Out, told); err != nil {
				return err
			}
			continue
		}
		if o.N > 1 {
			fmt.Fprintf(s.Out, "episode %d of %d\n", k+1, o.N)
		}
		printEpisode(s, told)
	}
	if errors.Is(err, model.ErrStopped) && ctx.Err() != nil {
		return fault.As(fault.ErrStopped, fmt.Errorf("generate: stopped: %s of %d are printed",
			report.Count(len(episodes), "episode"), o.N))
	}
	if err != nil {
		return err
	}
	if broken > 0 {
		return fault.As(fault.ErrRunning, fmt.Errorf("generate: %d of %s broken: %s", broken,
			report.Count(o.N, "episode"), why))
	}
	return nil
}

// read returns the row of --row.
func (a Acting) read(s *session.Session) (row data.Row, err error) {
	set, rows, err := a.Rows.List(s)
	if err != nil {
		return row, err
	}
	defer set.Close()
	if a.Row >= len(rows) {
		return row, fault.Usagef("generate: --row %d: the data have %s, from 0", a.Row,
			report.Count(len(rows), "row"))
	}
	return set.Row(a.Row)
}

// printEpisode prints an episode for people: a column of roles, texts, and after a turn its reward.
func printEpisode(s *session.Session, p play.Played) {
	say := func(role, text, note string) {
		text = strings.ReplaceAll(session.Printable(s.Out, text), "\n", "\n"+strings.Repeat(" ", 11))
		fmt.Fprintf(s.Out, "%-9s  %s%s\n", session.Printable(s.Out, role), text, note)
	}
	for _, m := range p.Prompt {
		say(m.Role, m.Text(), "")
	}
	for _, turn := range p.Turns {
		note := ""
		if turn.Reward != nil && *turn.Reward != 0 {
			note += fmt.Sprintf("  [reward %g]", *turn.Reward)
		}
		if turn.Valid != nil && !*turn.Valid {
			note += "  [invalid]"
		}
		say(turn.Role, turn.Text, note)
	}
	end := fmt.Sprintf("reward %g, %s, %s", p.Reward, report.Count(p.Wrote, "turn"),
		report.Count(p.Tokens, "token"))
	if p.Invalid > 0 {
		end += fmt.Sprintf(", %d invalid", p.Invalid)
	}
	if p.Label != "" {
		end += ", label " + session.Printable(s.Out, p.Label)
	}
	if p.Cut {
		end += ", cut at a limit"
	}
	if p.Fault != "" {
		end += ", broken"
	}
	fmt.Fprintln(s.Out, end)
}
