package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"gad/checkpoint"
	"gad/internal/fault"
	"gad/internal/journal"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
)

// Partial is what a command has computed of an output: OUTPUT.partial, a journal whose first record
// are the settings that the others depend on. After a kill the same command goes on from it; when
// all is there the command writes the output and removes it.
type Partial struct {
	*journal.Journal
	s        *Session
	o        Output
	noun     string // of a record
	settings any
}

const settingsKey = "settings"

// Partial reads what an interrupted command has left. noun names a record; differs says in what
// the settings of the interrupted command, as JSON, are not those of this one, and whether they
// are a command's at all.
func (o Output) Partial(s *Session, noun string, settings any,
	differs func(was []byte) (what string, ok bool)) (*Partial, error) {
	p := &Partial{s: s, o: o, noun: noun, settings: settings}
	foreign := fault.Usagef("%s: %s: is not an interrupted output of gad %[1]s: remove it or give another --output", o.Command, p.Path())
	var err error
	p.Journal, err = journal.Read(p.Path(),
		journal.Options{FS: s.FS, SyncEvery: 5 * time.Second})
	if errors.Is(err, journal.ErrForeign) {
		return nil, foreign
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Command, err)
	}
	if p.Len() == 0 {
		return p, nil
	}
	was, _ := p.Lookup(settingsKey)
	what, ok := differs(was)
	if !ok {
		return nil, foreign
	}
	if what != "" {
		return nil, fault.Usagef(
			"%s: %s: cannot be resumed: %s: give the same settings, or another --output", o.Command,
			p.Path(), what)
	}
	s.Console.Print(fmt.Sprintf("%s: resuming, %s done so far", p.Path(),
		report.Count(p.Len()-1, noun)))
	return p, nil
}

// Path is the journal's.
func (p *Partial) Path() string { return p.o.Path + ".partial" }

// state is how far the command is, for whoever ends it.
func (p *Partial) state() string {
	return fmt.Sprintf("%s are in %s: run the same command to resume",
		report.Count(max(0, p.Len()-1), p.noun), p.Path())
}

func (p *Partial) broken(err error) error {
	return p.o.Broken(p.s.FS, 0, fmt.Errorf("%s: %w", p.o.Command, err))
}

// Keep appends a record.
func (p *Partial) Keep(key string, record any) error {
	if err := p.Put(key, record); err != nil {
		return p.broken(err)
	}
	return nil
}

// Work calls work, which computes what is missing, under signals that end ctx. done is the past
// participle of what it does. An interruption is said, and is fault.ErrInterrupted. The journal is
// closed then.
func (p *Partial) Work(done string, work func(ctx context.Context) error) error {
	ctx, stop := p.s.Stoppable(func() string {
		return fmt.Sprintf("stopping; what is %s is kept, and the same command resumes; a second Ctrl-C stops at once", done)
	}, p.state)
	defer stop()
	if err := p.Begin(); err != nil {
		return checkpoint.ExplainFull(p.s.FS, p.o.Path, 0, vfs.Target(err))
	}
	if err := p.Append(settingsKey, p.settings); err != nil {
		return p.broken(err)
	}
	err := work(ctx)
	if failed := cmp.Or(p.Sync(), p.Close()); failed != nil {
		return p.broken(failed)
	}
	if errors.Is(err, model.ErrStopped) || ctx.Err() != nil {
		p.s.Console.Close()
		fmt.Fprintf(p.s.Err, "gad: %s: interrupted: %s\n", p.o.Command, p.state())
		return fault.ErrInterrupted
	}
	return err
}

// Remove removes the journal of an output that is written.
func (p *Partial) Remove() error {
	if err := p.s.FS.Remove(p.Path()); err != nil {
		return p.broken(err)
	}
	return nil
}
