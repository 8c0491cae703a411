// Package score implements gad data score: a teacher, loaded or behind a server, gives the
// log-probabilities of the answers' tokens in a data set. They become a column of the rows, from
// which gad sft learns soft labels.
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

// Options says which teacher scores, and how many log-probabilities are kept.
type Options struct {
	session.Source
	Top       int    // most probable tokens kept at each place, besides the answer's own
	System    string // system message for the teacher alone; "": the row's
	MaxTokens int    // tokens of one forward pass
	// Server scores instead of the model of Source, of which only tokenizer and chat template are
	// read; nil: none
	Server *scoring.Server
}

// settings is the first record of an unfinished output: everything that its records depend on.
type settings struct {
	Rows    int    `json:"rows" flag:"--limit"`
	Top     int    `json:"top_logprobs" flag:"--top-logprobs"`
	System  string `json:"system" flag:"--system"`
	Prompts string `json:"prompts,omitempty" flag:"--teacher-prompt-key"`
	Weights string `json:"weights" flag:"--weights"`
	session.ComputeSettings
	Server  behindServer `json:"server,omitempty" flag:"the teacher"`  // see record.Model
	Teacher string       `json:"teacher_sha256" same:"the teacher is"` // with a server: of the tokenizer
	Data    string       `json:"data_digest" same:"the data are"`
}

// behindServer reports whether the teacher is behind a server.
type behindServer bool

func (behind behindServer) String() string {
	if behind {
		return "behind a server"
	}
	return "loaded"
}

// record is a row of the journal.
type record struct {
	Logprobs data.Logprobs `json:"logprobs"`
	NLL      float64       `json:"nll"` // sum over the scored tokens of the answer, nats
	Scored   int           `json:"scored"`
	Mass     float64       `json:"mass"` // sum of the kept tokens' probabilities
	Cut      bool          `json:"cut,omitempty"`
	Model    string        `json:"model,omitempty"` // the server's model that scored the row
	Hard     string        `json:"hard,omitempty"`  // why the row has no log-probabilities
}

// chunk is the number of rows scored at a time; tests lower it.
var chunk = 64

const rowKey = "r/%d"

// noText is the reason of an answer without labels.
const noText = "the answer is more than a text, which a template writes"

// scoreJob is a run of gad data score.
//
// Results go into a journal, OUTPUT.partial, row by row. So after a kill only the current chunk of
// rows is computed again, or only the unanswered requests to a server are repeated. The complete
// journal is written into the output.
type scoreJob struct {
	s        *session.Session
	o        Options
	out      session.Output
	set      *data.Set
	rows     []int
	key      string // column with the prompts that the teacher reads; "": none
	settings settings
	enc      encode.Encoder
	most     int // the teacher's context, in tokens; 0: unlimited
	journal  *session.Partial
}

// Score writes the rows of a data set, with the teacher's log-probabilities, to output.
func Score(s *session.Session, o Options, from session.Rows, output string) (err error) {
	c := &scoreJob{s: s, o: o, key: from.TeacherPrompt,
		out: session.Output{Command: "data score", Path: output}}
	defer s.Console.Close()
	if t := from.Turns; c.key != "" && t != "" && t != data.TurnsLast {
		return fault.Usagef("data score: --turns %s: a row has one prompt for the teacher (--teacher-prompt-key %s), which is that of its last answer: use last", t, c.key)
	}
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

// prepare determines the settings that the scores depend on, and refuses rows that the teacher
// cannot read.
func (c *scoreJob) prepare() (err error) {
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
	own := 0
	for _, row := range c.rows {
		a, err := c.read(row)
		if err != nil {
			return err
		}
		if a.row.TeacherPrompt != nil {
			own++
		}
	}
	if c.key != "" && own == 0 {
		return fault.Usagef("data score: column %q (--teacher-prompt-key): none of %d rows has a value there: name the column with the teacher's prompts, or leave the flag out", c.key, len(c.rows))
	}
	c.settings = settings{ComputeSettings: c.o.Source.ComputeSettings(), Data: c.set.Digest(),
		Rows: len(c.rows), Top: c.o.Top, System: c.o.System, Prompts: c.key, Weights: c.o.Quant}
	if c.o.Server != nil {
		c.settings.Server, c.settings.Teacher = true, c.enc.Tok.Digest()
		return nil
	}
	c.settings.Teacher, err = c.s.Digest(c.o.Source)
	return err
}

// recordOf returns the record of a row; ok is false if there is none.
func (c *scoreJob) recordOf(row int) (r record, ok bool) {
	raw, ok := c.journal.Lookup(fmt.Sprintf(rowKey, row))
	return r, ok && json.Unmarshal(raw, &r) == nil
}

// score scores the rows without a record.
func (c *scoreJob) score(ctx context.Context) error {
	var missing []int
	for _, row := range c.rows {
		if _, ok := c.recordOf(row); !ok {
			missing = append(missing, row)
		}
	}
	switch {
	case len(missing) == 0:
		return nil
	case c.o.Server != nil:
		return c.askServer(ctx, missing)
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
		if err := c.scoreChunk(m, some); err != nil {
			return err
		}
		advance(len(some))
	}
	return nil
}

// teacherInput is an answer as the teacher reads it; answer is nil if it cannot have labels.
type teacherInput struct {
	row    data.Row
	answer []int32 // the whole answer; seq may be cut
	seq    model.Seq
}

// scoreChunk scores some rows with the loaded teacher.
func (c *scoreJob) scoreChunk(m *session.Model, rows []int) error {
	list := make([]teacherInput, len(rows))
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
		if err := c.journal.Add(fmt.Sprintf(rowKey, row), r); err != nil {
			return err
		}
	}
	return nil
}

// read returns a row under the teacher's chat template. An answer with calls or thoughts cannot
// have labels: its answer is nil.
func (c *scoreJob) read(i int) (a teacherInput, err error) {
	if a.row, err = c.set.Row(i); err != nil || a.row.Turns != nil || a.row.Teacher == "" {
		return a, err
	}
	r := a.row
	if len(r.PromptIDs) > 0 && r.TeacherPrompt == nil {
		return a, fmt.Errorf("data: row %d: has prompt_ids, which are the tokens of one model, and the teacher may have others: give the conversation instead", i)
	}
	if r, err = encode.ForTeacher(r, c.o.System); err != nil {
		return a, err
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

// askServer lets the server score rows.
func (c *scoreJob) askServer(ctx context.Context, rows []int) error {
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
		if r, ok := c.recordOf(row); ok && r.Hard == "" && r.Model != name {
			return fault.Usagef("data score: %s: cannot be resumed: rows were scored by model %q of the server, which now has %q: ask the same model, or give another --output", c.journal.Path(), r.Model, name)
		}
	}
	if c.most = most; most > 0 { // a prompt that is too long fails before any request
		for _, row := range rows {
			if _, err := c.read(row); err != nil {
				return err
			}
		}
	}
	advance, done := c.s.Console.Busy("teacher's log-probabilities", len(rows))
	defer done()
	under := map[int]teacherInput{}
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
		return c.journal.Add(fmt.Sprintf(rowKey, row), r)
	})
	if err != nil {
		return fault.As(fault.ErrRunning, err)
	}
	return nil
}

// record returns the journal's record of an answer with its labels.
func (c *scoreJob) record(a teacherInput, labels []model.SoftLabel) (r record) {
	ids := a.seq.Response()
	for i, l := range labels {
		r.Mass += l.Mass()
		if k := slices.Index(l.IDs, ids[i]); k >= 0 {
			r.NLL -= l.Logp[k]
		}
	}
	r.Scored, r.Cut = len(labels), len(ids) < len(a.answer)
	for range len(a.answer) - len(ids) { // empty labels after the cut
		labels = append(labels, model.SoftLabel{})
	}
	a.row.Logprobs = c.enc.Logprobs(a.row, a.answer, labels)
	if r.Hard = a.row.LogprobsFault(); r.Hard == "" {
		r.Logprobs = a.row.Logprobs
	}
	return r
}

// finish writes the output from the journal.
func (c *scoreJob) finish() error {
	var nll, mass float64
	tokens, labelled, cut, hard, first := 0, 0, 0, 0, ""
	for _, row := range c.rows {
		r, ok := c.recordOf(row)
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
		r, _ := c.recordOf(row)
		return r.Logprobs
	})
	if err != nil {
		return c.out.DiskError(c.s.FS, 0, err)
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
