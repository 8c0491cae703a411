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

// Partial is the unfinished output of a command: OUTPUT.partial, a journal of its results. The
// first record is the settings that the others depend on. After a kill the same command resumes
// from it; when it is complete the command writes the output and removes the journal.
type Partial struct {
	*journal.Journal
	s        *Session
	o        Output
	noun     string // name of a record, for messages
	settings any
	Size     int // number of records when complete; 0: unknown
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

// ComputeSettings is the part of a command's settings that a model's results depend on, besides its
// weights: device, precision, chat template.
type ComputeSettings struct {
	Device       string `json:"device" flag:"--device"`
	Precision    string `json:"precision" flag:"--precision"`
	Template     string `json:"template,omitempty" flag:"--template"`
	ChatTemplate string `json:"chat_template,omitempty" flag:"--chat-template"`
}

// ComputeSettings returns the settings that results of the model depend on, besides the weights.
func (s Source) ComputeSettings() ComputeSettings {
	return ComputeSettings{Device: s.Device.Name, Precision: s.Device.Precision,
		Template: s.Chat.Variables, ChatTemplate: s.Chat.Template}
}

// Resume reads the results that an interrupted command has left of output o. It refuses results of
// other settings, a struct that journal.Changed compares. noun names a record in messages.
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

// CountDone returns the number of records.
func (p *Partial) CountDone() int { return max(0, p.Len()-1) }

// missingBytes returns the number of bytes still to write, for the message about a full disk: the
// missing records, and all of them once more in the output. It is 0 if Size is unknown.
func (p *Partial) missingBytes() int64 {
	if p.Size == 0 {
		return 0
	}
	var have int64
	for _, record := range p.All() {
		have += int64(len(record))
	}
	n := p.CountDone()
	return have * int64(max(0, 2*p.Size-n)) / int64(max(1, n))
}

// Path returns the path of the journal.
func (p *Partial) Path() string { return p.o.Path + ".partial" }

// state returns the state of the journal as a message, for the end of the process.
func (p *Partial) state() string {
	return fmt.Sprintf("%s are in %s: run the same command to resume", p.count(), p.Path())
}

// count returns the number of records, and of all if known, as text.
func (p *Partial) count() string {
	if p.Size == 0 {
		return report.Count(p.CountDone(), p.noun)
	}
	return fmt.Sprintf("%d of %s", p.CountDone(), report.Count(p.Size, p.noun))
}

// diskError returns err with the number of records that are kept.
func (p *Partial) diskError(err error) error {
	return p.o.DiskError(p.s.FS, p.missingBytes(),
		fmt.Errorf("%s: %s are kept: %w", p.o.Command, p.count(), err))
}

// Add appends a record.
func (p *Partial) Add(key string, record any) error {
	if err := p.Put(key, record); err != nil {
		return p.diskError(err)
	}
	return nil
}

// Work calls work, which computes the missing records, with a context that signals end. done is the
// past participle of its verb, for messages. On an interruption it prints the state and returns
// fault.ErrInterrupted. It closes the journal.
func (p *Partial) Work(done string, work func(ctx context.Context) error) error {
	ctx, stop := p.s.Stoppable(func() string {
		return fmt.Sprintf("stopping; what is %s is kept, and the same command resumes; a second Ctrl-C stops at once", done)
	}, p.state)
	defer stop()
	if err := p.Begin(); err != nil {
		return checkpoint.ExplainFull(p.s.FS, p.o.Path, p.missingBytes(), vfs.Target(err))
	}
	if err := p.Append(settingsKey, p.settings); err != nil {
		return p.diskError(err)
	}
	if p.CountDone() > 0 {
		p.s.Console.Print(fmt.Sprintf("%s: resuming, %s done so far", p.Path(),
			report.Count(p.CountDone(), p.noun)))
	}
	err := work(ctx)
	if failed := cmp.Or(p.Sync(), p.Close()); failed != nil {
		return p.diskError(failed)
	}
	if errors.Is(err, model.ErrStopped) || ctx.Err() != nil {
		p.s.Console.Close()
		fmt.Fprintf(p.s.Err, "gad: %s: interrupted: %s\n", p.o.Command, p.state())
		return fault.ErrInterrupted
	}
	return err
}

// Remove removes the journal, after the output is written.
func (p *Partial) Remove() error {
	if err := p.s.FS.Remove(p.Path()); err != nil {
		return p.diskError(err)
	}
	return nil
}
