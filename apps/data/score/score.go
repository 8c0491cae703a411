// Package score is gad data score: the log-probabilities that a teacher, loaded or behind a server,
// gives the tokens of the answers of a data set, as a column of the rows that gad sft learns soft
// labels from.
package score

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"gad/apps/session"
	"gad/data"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/encode"
	"gad/trainer/saved"
	"gad/trainer/scoring"
)

// Options say which teacher scores, and how much of it is kept.
type Options struct {
	session.Source
	Top       int    // tokens that are kept at each place, beside the answer's own
	System    string // system message that the teacher alone reads; "": the row's
	MaxTokens int    // of one forward pass
	// Server scores in the place of the model of Source, of which tokenizer and chat template alone
	// are read; nil: none
	Server *scoring.Server
}

// settings are the first record of an unfinished output: what its records depend on.
type settings struct {
	Rows    int    `json:"rows" flag:"--limit"`
	Top     int    `json:"top_logprobs" flag:"--top-logprobs"`
	System  string `json:"system" flag:"--system"`
	Weights string `json:"weights" flag:"--weights"`
	session.Computed
	Server  place  `json:"server,omitempty" flag:"the teacher"`  // see record.Model
	Teacher string `json:"teacher_sha256" same:"the teacher is"` // with a server the tokenizer's
	Data    string `json:"data_digest" same:"the data are"`
}

// place says where the teacher is.
type place bool

func (behind place) String() string {
	if behind {
		return "behind a server"
	}
	return "loaded"
}

// record is a row of the journal.
type record struct {
	Logprobs data.Logprobs `json:"logprobs"`
	NLL      float64       `json:"nll"` // of the answer's tokens that were scored, nats
	Scored   int           `json:"scored"`
	Mass     float64       `json:"mass"` // Σ probability of the tokens that are kept
	Cut      bool          `json:"cut,omitempty"`
	Model    string        `json:"model,omitempty"` // of the server that has scored the row
	Hard     string        `json:"hard,omitempty"`  // why the row has no log-probabilities
}

// chunk is how many rows are scored at a time; tests take fewer.
var chunk = 64

const rowKey = "r/%d"

// noText says why an answer has no labels.
const noText = "the answer is more than a text, which a template writes"

// scored is one gad data score.
//
// What is computed goes into a journal, OUTPUT.partial, row by row. So a killed command computes no
// row twice but the chunk that it was at, or asks a server again for the rows whose answers it had
// not got. When all rows are there the output is written.
type scored struct {
	s        *session.Session
	o        Options
	out      session.Output
	set      *data.Set
	rows     []int
	settings settings
	enc      encode.Encoder
	most     int // positions that the teacher has; 0 is no bound
	journal  *session.Partial
}

// Score writes the rows that from names, with the teacher's log-probabilities, into the file
// output.
func Score(s *session.Session, o Options, from session.Rows, output string) (err error) {
	c := &scored{s: s, o: o, out: session.Output{Command: "data score", Path: output}}
	defer s.Console.Close()
	lock, err := c.out.Claim(s.FS)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, lock.Unlock()) }()
	if c.set, c.rows, err = from.List(s); err != nil {
		return err
	}
	defer c.set.Close()
	if err := c.set.NeedTeacher(); err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		return err
	}
	c.journal, err = session.Resume(s, c.out, "row", c.settings)
	if err != nil {
		return err
	}
	if err := c.journal.Work("scored", c.score); err != nil {
		return err
	}
	return c.finish()
}

// prepare finds out what the scores depend on, and refuses rows that the teacher cannot read.
func (c *scored) prepare() (err error) {
	if c.o.Server == nil {
		if err := saved.CheckPart(c.s.FS, c.o.Path, "actor"); err != nil {
			return err
		}
		shape, err := model.ReadConfig(c.o.Path)
		if err != nil {
			return err
		}
		if shape.Kind() != model.LM && c.o.Adapter == "" {
			return fmt.Errorf("model: %s: is a discriminator, not a language model: give the actor folder of a checkpoint", c.o.Path)
		}
		c.most = shape.MaxPosition
	}
	if c.enc.Tok, err = saved.ChatTokenizer(c.o.Path, c.o.Chat); err != nil {
		return err
	}
	if err := c.set.Verify(); err != nil {
		return err
	}
	for _, row := range c.rows {
		if _, err := c.read(row); err != nil {
			return err
		}
	}
	c.settings = settings{Computed: c.o.Source.Computed(), Data: c.set.Digest(),
		Rows: len(c.rows), Top: c.o.Top, System: c.o.System, Weights: c.o.Quant}
	if c.o.Server != nil {
		c.settings.Server, c.settings.Teacher = true, c.enc.Tok.Digest()
		return nil
	}
	c.settings.Teacher, err = c.s.Digest(c.o.Source)
	return err
}

// of is the record of a row; ok is false where there is none.
func (c *scored) of(row int) (r record, ok bool) {
	raw, ok := c.journal.Lookup(fmt.Sprintf(rowKey, row))
	return r, ok && json.Unmarshal(raw, &r) == nil
}

// score scores the rows that have no record.
func (c *scored) score(ctx context.Context) error {
	var missing []int
	for _, row := range c.rows {
		if _, ok := c.of(row); !ok {
			missing = append(missing, row)
		}
	}
	switch {
	case len(missing) == 0:
		return nil
	case c.o.Server != nil:
		return c.ask(ctx, missing)
	}
	m, err := c.s.Load(c.o.Source, model.LM)
	if err != nil {
		return err
	}
	defer m.Close()
	advance, done := c.s.Console.Busy("teacher's log-probabilities", len(missing))
	defer done()
	for some := range slices.Chunk(missing, chunk) {
		if ctx.Err() != nil {
			return model.ErrStopped
		}
		if err := c.some(m, some); err != nil {
			return err
		}
		advance(len(some))
	}
	return nil
}

// asked is an answer as the teacher reads it.
type asked struct {
	row    data.Row
	answer []int32 // whole
	seq    model.Seq
}

// some scores rows in one pass.
func (c *scored) some(m *session.Model, rows []int) error {
	list := make([]asked, len(rows))
	var seqs []model.Seq
	for i, row := range rows {
		var err error
		if list[i], err = c.read(row); err != nil {
			return err
		}
		if list[i].answer != nil {
			seqs = append(seqs, list[i].seq)
		}
	}
	labelsST, err := m.AllScored(seqs, c.o.Top, c.enc.Tok.Size(), 1, c.o.MaxTokens)
	if err != nil {
		return err
	}
	for i, row := range rows {
		a, r := list[i], record{}
		if r.Hard = noText; a.answer != nil {
			r = c.record(a, labelsST[0])
			labelsST = labelsST[1:]
		}
		if err := c.journal.Keep(fmt.Sprintf(rowKey, row), r); err != nil {
			return err
		}
	}
	return nil
}

// read is a row behind the teacher's chat template. Of an answer with calls or thoughts, which
// have no labels, it is none.
func (c *scored) read(i int) (a asked, err error) {
	if a.row, err = c.set.Row(i); err != nil || a.row.Turns != nil || a.row.Teacher == "" {
		return a, err
	}
	r := a.row
	if len(r.PromptIDs) > 0 {
		return a, fmt.Errorf("data: row %d: has prompt_ids, which are the tokens of one model, and the teacher may have others: give the conversation instead", i)
	}
	if c.o.System != "" {
		if len(r.Messages) > 0 && r.Messages[0].Role == "system" {
			r.Messages = r.Messages[1:]
		}
		r.Messages = append([]data.Message{{Role: "system", Content: c.o.System}}, r.Messages...)
	}
	prompt, err := c.enc.Prompt(r)
	if err != nil {
		return a, fmt.Errorf("data: row %d: the teacher's chat template: %w", i, err)
	}
	if a.answer = c.enc.Answer(r.Teacher); r.Unfinished() {
		a.answer = a.answer[:len(a.answer)-1]
	}
	if c.most > 0 && len(prompt) >= c.most {
		return a, fmt.Errorf("data: row %d: prompt has %d tokens, the teacher takes %d: drop the row",
			i, len(prompt), c.most)
	}
	a.seq = model.Answer(slices.Concat(prompt, a.answer), len(prompt))
	if c.most > 0 {
		a.seq = a.seq.Upto(c.most)
	}
	return a, nil
}

// ask has the server score rows.
func (c *scored) ask(ctx context.Context, rows []int) error {
	var trial []model.Seq
	for _, row := range rows {
		a, err := c.read(row)
		if err != nil {
			return err
		}
		if a.answer != nil && len(trial) < 4 {
			trial = append(trial, a.seq)
		}
	}
	if len(trial) > 0 {
		_, done := c.s.Console.Busy("trying the teacher's server", 0)
		err := c.o.Server.Check(ctx, trial, c.o.Top, c.enc.Tok.Piece)
		if done(); err != nil {
			return err
		}
	}
	name, most := c.o.Server.Model()
	for _, row := range c.rows {
		if r, ok := c.of(row); ok && r.Hard == "" && r.Model != name {
			return fault.Usagef("data score: %s: cannot be resumed: rows were scored by model %q of the server, which now has %q: ask the same model, or give another --output", c.journal.Path(), r.Model, name)
		}
	}
	if c.most = most; most > 0 { // a prompt that is too long is refused before anything is asked
		for _, row := range rows {
			if _, err := c.read(row); err != nil {
				return err
			}
		}
	}
	advance, done := c.s.Console.Busy("teacher's log-probabilities", len(rows))
	defer done()
	under := map[int]asked{}
	err := c.o.Server.Each(ctx, rows, c.o.Top, func(row int) (model.Seq, error) {
		a, err := c.read(row)
		under[row] = a
		return a.seq, err
	}, func(row int, labels []model.SoftLabel) error {
		a, r := under[row], record{Hard: noText}
		if delete(under, row); a.answer != nil {
			r = c.record(a, labels)
			r.Model = name
		}
		advance(1)
		return c.journal.Keep(fmt.Sprintf(rowKey, row), r)
	})
	if err != nil {
		return fault.As(fault.ErrRunning, err)
	}
	return nil
}

// record is what the journal keeps of an answer.
func (c *scored) record(a asked, labels []model.SoftLabel) (r record) {
	ids := a.seq.Response()
	for i, l := range labels {
		r.Mass += l.Mass()
		if k := slices.Index(l.IDs, ids[i]); k >= 0 {
			r.NLL -= l.Logp[k]
		}
	}
	r.Scored, r.Cut = len(labels), len(ids) < len(a.answer)
	for range len(a.answer) - len(ids) { // labels that say nothing
		labels = append(labels, model.SoftLabel{})
	}
	a.row.Logprobs = c.enc.Logprobs(a.row, a.answer, labels)
	if r.Hard = a.row.LogprobsFault(); r.Hard == "" {
		r.Logprobs = a.row.Logprobs
	}
	return r
}

// finish makes the output out of the journal.
func (c *scored) finish() error {
	var nll, mass float64
	tokens, labelled, cut, hard, first := 0, 0, 0, 0, ""
	for _, row := range c.rows {
		r, ok := c.of(row)
		if !ok {
			return fmt.Errorf("data score: %s: row %d has no record: remove the file", c.journal.Path(), row)
		}
		if r.Hard != "" {
			if hard++; hard == 1 {
				first = fmt.Sprintf("row %d: %s", row, r.Hard)
			}
			continue
		}
		labelled++
		nll, mass, tokens = nll+r.NLL, mass+r.Mass, tokens+r.Scored
		if r.Cut {
			cut++
		}
	}
	err := data.WriteLogprobs(c.s.FS, c.out.Path, c.set, c.rows, func(row int) data.Logprobs {
		r, _ := c.of(row)
		return r.Logprobs
	})
	if err != nil {
		return c.out.Broken(c.s.FS, 0, err)
	}
	if err := c.journal.Remove(); err != nil {
		return err
	}
	n := float64(max(tokens, 1))
	fmt.Fprintf(c.s.Out, "%s: %s of %d with log-probabilities, %s; the teacher's mean NLL is %.3f, and its probability of the tokens that are kept %.3f\n",
		c.out.Path, report.Count(labelled, "row"), len(c.rows), report.Count(tokens, "token"), nll/n, mass/n)
	if cut > 0 {
		fmt.Fprintf(c.s.Out, "longer than the teacher's context, and scored as far as that goes: %s\n",
			report.Count(cut, "row"))
	}
	if hard > 0 {
		fmt.Fprintf(c.s.Out, "without log-probabilities: %s (the first: %s)\n",
			report.Count(hard, "row"), first)
	}
	return nil
}
