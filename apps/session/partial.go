package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gad/checkpoint"
	"gad/internal/compute"
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
	Size     int // records that there will be; 0: not known
}

const settingsKey = "settings"

// Sampled is the part of a command's settings that sampled answers depend on.
type Sampled struct {
	N           int     `json:"n" flag:"--n"`
	MaxNew      int     `json:"max_new_tokens" flag:"--max-new-tokens"`
	Temperature float64 `json:"temperature" flag:"--temperature"`
	TopP        float64 `json:"top_p" flag:"--top-p"`
	MinP        float64 `json:"min_p" flag:"--min-p"`
	TopK        int     `json:"top_k" flag:"--top-k"`
	Seed        uint64  `json:"seed" flag:"--seed"`
}

// SampledBy returns the settings of n answers of at most maxNew tokens.
func SampledBy(s compute.Sampling, n, maxNew int, seed uint64) Sampled {
	return Sampled{N: n, MaxNew: maxNew, Temperature: s.Temperature, TopP: s.TopP, MinP: s.MinP,
		TopK: s.TopK, Seed: seed}
}

// Computed is the part of a command's settings that say where a model computes, and what its chat
// template is.
type Computed struct {
	Device       string `json:"device" flag:"--device"`
	Precision    string `json:"precision" flag:"--precision"`
	Template     string `json:"template,omitempty" flag:"--template"`
	ChatTemplate string `json:"chat_template,omitempty" flag:"--chat-template"`
}

// Computed returns the settings that results of the model depend on, the weights aside.
func (s Source) Computed() Computed {
	return Computed{Device: s.Device.Name, Precision: s.Device.Precision,
		Template: s.Chat.Variables, ChatTemplate: s.Chat.Template}
}

// Resume reads what an interrupted command has left of the output o, and refuses it where its
// settings, a struct that journal.Changed compares, are not those of this command. noun names a
// record.
func Resume[S comparable](s *Session, o Output, noun string, settings S) (*Partial, error) {
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
	raw, _ := p.Lookup(settingsKey)
	var was, none S
	if json.Unmarshal(raw, &was) != nil || was == none {
		return nil, foreign
	}
	if what := journal.Difference(was, settings); what != "" {
		return nil, fault.Usagef(
			"%s: %s: cannot be resumed: %s: give the same settings, or another --output", o.Command,
			p.Path(), what)
	}
	return p, nil
}

// Done returns how many records there are.
func (p *Partial) Done() int { return max(0, p.Len()-1) }

// missing returns how many bytes are still to be written, for the message about a full disk, if Size
// says how many records there will be: the missing ones, and all of them once more in the output.
func (p *Partial) missing() int64 {
	if p.Size == 0 {
		return 0
	}
	var have int64
	for _, record := range p.All() {
		have += int64(len(record))
	}
	n := p.Done()
	return have * int64(max(0, 2*p.Size-n)) / int64(max(1, n))
}

// Path is the journal's.
func (p *Partial) Path() string { return p.o.Path + ".partial" }

// state is how far the command is, for whoever ends it.
func (p *Partial) state() string {
	return fmt.Sprintf("%s are in %s: run the same command to resume", p.count(), p.Path())
}

// count returns how many records there are, and of how many, in words.
func (p *Partial) count() string {
	if p.Size == 0 {
		return report.Count(p.Done(), p.noun)
	}
	return fmt.Sprintf("%d of %s", p.Done(), report.Count(p.Size, p.noun))
}

func (p *Partial) broken(err error) error {
	return p.o.Broken(p.s.FS, p.missing(),
		fmt.Errorf("%s: %s are kept: %w", p.o.Command, p.count(), err))
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
		return checkpoint.ExplainFull(p.s.FS, p.o.Path, p.missing(), vfs.Target(err))
	}
	if err := p.Append(settingsKey, p.settings); err != nil {
		return p.broken(err)
	}
	if p.Done() > 0 {
		p.s.Console.Print(fmt.Sprintf("%s: resuming, %s done so far", p.Path(),
			report.Count(p.Done(), p.noun)))
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
