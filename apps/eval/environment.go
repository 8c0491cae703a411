package eval

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"gad/apps/play"
	"gad/apps/session"
	"gad/data"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/episode"
	"gad/trainer/saved"
)

// Acting is the flags of gad eval --env, in which students play episodes in an environment.
type Acting struct {
	play.Options
	Greedy  bool    // play greedily too, in addition to Options.Temperature
	N       int     // episodes of a row at a temperature above 0
	Success float64 // least reward of a success
}

// acting is a run of gad eval --env.
type acting struct {
	s       *session.Session
	o       Options
	env     *play.Environment
	limits  episode.Limits
	rows    []data.Row
	tasks   []episode.Task // one for each row
	players []*player
	other   int // rows whose recorded episode does not fit the environment
	saved   atomic.Int64
}

// player is a model at a temperature, or the recorded teacher, with the episodes played.
type player struct {
	name        string
	temperature float64
	teacher     bool
	played      []play.Played
	figures     playFigures
}

// playRow is a line of --output: an episode.
type playRow struct {
	Model       string   `json:"model"`
	Temperature *float64 `json:"temperature,omitempty"` // nil for the teacher
	play.Played
	Success bool `json:"success"`
}

// act runs gad eval --env.
func act(s *session.Session, o Options) (err error) {
	a := &acting{s: s, o: o}
	defer s.Console.Close()
	if o.Output != "" {
		lock, lockErr := a.outputFile().Claim(s.FS)
		if lockErr != nil {
			return lockErr
		}
		defer func() { err = cmp.Or(err, lock.Unlock()) }()
	}
	be, err := a.open()
	if err != nil {
		return err
	}
	defer be.Close()
	if a.env, err = play.Open(s, o.Acting.Options); err != nil {
		return err
	}
	defer a.env.Close()
	ctx, stop := s.Stoppable(func() string {
		if o.Output != "" {
			return "stopping; complete episodes are written to " + o.Output +
				"; a second Ctrl-C stops at once, without that"
		}
		return "stopping; a second Ctrl-C stops at once"
	}, a.savedState)
	defer stop()
	for _, dir := range o.Models {
		if err := a.model(ctx, be, dir); err != nil {
			return a.stopError(ctx, err)
		}
	}
	if err := a.teacher(ctx); err != nil {
		return a.stopError(ctx, err)
	}
	return a.print()
}

// outputFile returns the file of --output.
func (a *acting) outputFile() session.Output {
	return session.Output{Command: "eval", Path: a.o.Output}
}

// savedState returns, for messages, what --output holds if the process ends now.
func (a *acting) savedState() string {
	if n := a.saved.Load(); n > 0 {
		return fmt.Sprintf("%s has %d episodes, as they were before", a.o.Output, n)
	}
	return "nothing is written"
}

// open checks and reads all inputs before a program is started, and opens the device.
func (a *acting) open() (compute.Backend, error) {
	most := 0
	for _, dir := range a.o.Models {
		if err := saved.CheckModel(a.s.FS, dir); err != nil {
			return nil, err
		}
		shape, err := model.ReadConfig(dir)
		if err != nil {
			return nil, err
		}
		if n := shape.MaxPosition; most == 0 || n < most {
			most = n
		}
	}
	var err error
	if a.limits, err = a.o.Acting.Limits("eval", most); err != nil {
		return nil, err
	}
	set, at, err := a.o.Rows.List(a.s)
	if err != nil {
		return nil, err
	}
	defer set.Close()
	for _, i := range at {
		row, err := set.Row(i)
		if err != nil {
			return nil, err
		}
		task, err := episode.TaskOf(row, a.o.Seed, 0, uint64(row.Index))
		if err != nil {
			return nil, err
		}
		a.rows, a.tasks = append(a.rows, row), append(a.tasks, task)
	}
	return session.OpenDevice(a.o.Device)
}

// model lets one model play, at each temperature.
func (a *acting) model(ctx context.Context, be compute.Backend, dir string) error {
	_, done := a.s.Console.Busy("loading "+dir, 0)
	m, err := session.Load(be,
		session.Source{Path: dir, Adapter: a.o.Adapter, Quant: a.o.Quant, Chat: a.o.Chat}, model.LM)
	done()
	if err != nil {
		return err
	}
	defer m.Model.Close()
	temperatures := []float64{a.o.Temperature}
	if a.o.Acting.Greedy && a.o.Temperature > 0 {
		temperatures = []float64{0, a.o.Temperature}
	}
	for _, t := range temperatures {
		c := &player{name: dir, temperature: t}
		a.players = append(a.players, c)
		var tasks []episode.Task
		for _, task := range a.tasks {
			n := a.o.Acting.N
			if t == 0 {
				n = 1 // greedy episodes are all equal
			}
			for k := range n {
				task.Sample = k
				tasks = append(tasks, task)
			}
		}
		advance, done := a.s.Console.Busy("playing, tokens", 0)
		p := play.Player{Model: m, Env: a.env, Limits: a.limits, Seed: a.o.Seed,
			Sampling: model.Sampling{Temperature: t, TopP: 1}, Progress: advance}
		episodes, err := p.Play(ctx, tasks)
		done()
		broken, why := 0, ""
		for i := range episodes {
			told := play.Describe(tasks[i], &episodes[i])
			if c.played = append(c.played, told); told.Fault != "" {
				why = cmp.Or(why, told.Fault)
				broken++
			}
		}
		if err := errors.Join(err, a.save()); err != nil {
			return err
		}
		if most := config.Default().Env.MaxFaults; float64(broken) > most*float64(len(tasks)) {
			return fault.As(fault.ErrRunning, fmt.Errorf("eval: %s: %d of %d episodes are broken, more than the %g that may be; the first: %s: mend the environment (gad env check)", dir, broken, len(tasks), most, why))
		}
		a.measure(c)
	}
	return nil
}

// teacher replays the recorded episodes of the rows that have one.
func (a *acting) teacher(ctx context.Context) error {
	tok, err := saved.ChatTokenizer(a.o.Models[0], a.o.Chat)
	if err != nil {
		return err
	}
	c := &player{name: "teacher", teacher: true}
	_, done := a.s.Console.Busy("playing the teacher's episodes", 0)
	c.played, a.other, err = play.ReplayTeachers(ctx, tok, a.env.Pool, a.rows, a.tasks)
	done()
	if err != nil || len(c.played) == 0 {
		return err
	}
	a.players = append(a.players, c)
	a.measure(c)
	return a.save()
}

// save writes all episodes so far to --output.
func (a *acting) save() error {
	if a.o.Output == "" {
		return nil
	}
	if a.saved.Load() == 0 { // it was absent at the start
		if err := a.outputFile().CheckAbsent(a.s.FS); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	n := int64(0)
	for _, c := range a.players {
		for _, p := range c.played {
			row := playRow{Model: c.name, Played: p, Success: a.success(p)}
			if !c.teacher {
				row.Temperature = &c.temperature
			}
			if err := session.PrintJSON(&b, row); err != nil {
				return err
			}
			n++
		}
	}
	if n == 0 {
		return nil
	}
	if err := a.outputFile().Write(a.s.FS, b.Bytes(), "eval: "+a.savedState()); err != nil {
		return err
	}
	a.saved.Store(n)
	return nil
}

// success reports whether an episode succeeded.
func (a *acting) success(
	p play.Played) bool {
	return p.Fault == "" && p.Reward >= a.o.Acting.Success
}

// stopError returns the error of an interrupted evaluation, with what --output holds; other errors
// unchanged.
func (a *acting) stopError(ctx context.Context, err error) error {
	if ctx.Err() == nil || !errors.Is(err, model.ErrStopped) && !errors.Is(err, ctx.Err()) {
		return err
	}
	a.s.Console.Close()
	switch n := a.saved.Load(); {
	case a.o.Output == "":
		err = errors.New("eval: stopped: nothing is kept without --output FILE")
	case n == 0:
		err = errors.New(
			"eval: stopped before the first episodes were complete: nothing is written")
	default:
		err = fmt.Errorf("eval: stopped: %s are in %s", report.Count(int(n), "episode"), a.o.Output)
	}
	return fault.As(fault.ErrStopped, err)
}
