package generate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"gad/apps/session"
	"gad/data"
	"gad/internal/fault"
	"gad/internal/report"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// answer is one line of gad generate --output. Its keys are those of a data set, so that gad score
// and gad eval can read the file as one.
type answer struct {
	Row       int            `json:"row"` // index in the data
	Sample    int            `json:"sample"`
	Content   []data.Message `json:"content,omitempty"`
	Tools     data.JSON      `json:"tools,omitempty"`
	Env       data.JSON      `json:"env,omitempty"`
	PromptIDs []int32        `json:"prompt_ids,omitempty"` // of a row without a conversation
	Teacher   string         `json:"teacher_response,omitempty"`
	Response  string         `json:"response"`
	Tokens    int            `json:"tokens"` // including the end
	Truncated bool           `json:"truncated"`
	Finish    string         `json:"finish_reason"` // stop, or length
}

// settings is the first record of an unfinished output: everything that its answers depend on. A
// command with other settings is refused. --limit is not part of it: it changes the number of rows
// and no answer.
type settings struct {
	session.Sampled
	session.ComputeSettings
	Chunks     string `json:"chunks,omitempty" flag:"--chunk"`
	ContentKey string `json:"content_key" flag:"--content-key"`
	TeacherKey string `json:"teacher_key" flag:"--teacher-key"`
	Model      string `json:"model_sha256" same:"the model is"`
	Data       string `json:"data_digest" same:"the data are"`
}

// batch is a run of gad generate --data.
//
// Each answer goes into a journal at its end, OUTPUT.partial, whose first record is the settings.
// The complete journal is written into the output by row and sample, so that the output has the
// same bytes whether the command was interrupted or not.
type batch struct {
	s        *session.Session
	o        Options
	out      session.Output
	settings settings
	rows     int
	limit    int          // tokens of an answer
	chunks   model.Chunks // chunks of an answer
	journal  *session.Partial
	failed   error // error of the journal or of a row
}

// answerKey returns the key of an answer in the journal.
func answerKey(row, sample int) string { return fmt.Sprintf("%d/%d", row, sample) }

// chunkRows is the number of rows sampled in one call.
const chunkRows = 1024

// AnswerData answers the rows of a data set and writes the answers to output.
func AnswerData(s *session.Session, o Options, from session.Rows, output string) (err error) {
	b := &batch{s: s, o: o, out: session.Output{Command: "generate", Path: output}}
	defer s.Console.Close()
	lock, err := b.out.Claim(s.FS)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, lock.Unlock()) }()
	set, rows, err := from.List(s)
	if err != nil {
		return err
	}
	defer set.Close()
	b.rows = len(rows)
	if err := saved.CheckModel(s.FS, o.Path); err != nil {
		return err
	}
	cfg, err := model.ReadConfig(o.Path)
	if err != nil {
		return err
	}
	if b.chunks, err = s.AnswerChunks("generate", o.Path, o.Chunks); err != nil {
		return err
	}
	if b.limit = o.longest(b.chunks); o.MaxNew == 0 && !b.chunks.On() && cfg.MaxPosition > 1 {
		b.limit = min(b.limit, cfg.MaxPosition/2)
	}
	if b.settings, err = b.describe(from, set); err != nil {
		return err
	}
	if err := b.resume(); err != nil {
		return err
	}
	tok, err := saved.ChatTokenizer(o.Path, o.Chat)
	if err != nil {
		return err
	}
	prompts, todo, err := b.encode(tok, set, rows, cfg.MaxPosition)
	if err != nil {
		return err
	}
	m, err := s.Load(o.Source, model.LM)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := session.CheckChunks("generate", m, b.chunks); err != nil {
		return err
	}
	b.journal.Size = b.rows * b.settings.N
	if err := b.journal.Work("answered", func(ctx context.Context) error {
		return cmp.Or(b.generate(ctx, m, set, prompts, todo), b.failed)
	}); err != nil {
		return err
	}
	return b.finish()
}

// describe returns everything that the answers depend on.
func (b *batch) describe(from session.Rows, set *data.Set) (s settings, err error) {
	o := b.o
	s = settings{Sampled: session.SampledBy(o.Sampling, o.N, b.limit, o.Seed),
		ComputeSettings: o.Source.ComputeSettings(), ContentKey: from.Content, TeacherKey: from.Answer}
	if b.chunks.On() {
		s.Chunks = fmt.Sprint(b.chunks)
	}
	if s.Model, err = b.s.Digest(o.Source); err != nil {
		return s, err
	}
	if err := set.Verify(); err != nil { // shows its own progress
		return s, err
	}
	s.Data = set.Digest()
	return s, nil
}

// resume reads the answers of an interrupted command. It refuses answers to rows beyond --limit,
// since it throws none away.
func (b *batch) resume() (err error) {
	if b.journal, err = session.Resume(b.s, b.out, "answer", b.settings); err != nil {
		return err
	}
	last := -1
	for key := range b.journal.All() {
		var row, sample int
		if n, _ := fmt.Sscanf(key, "%d/%d", &row, &sample); n == 2 {
			last = max(last, row)
		}
	}
	if last >= b.rows {
		return fault.Usagef("generate: %s: has answers up to row %d: --limit %d would drop them: give --limit %d or more, or another --output", b.journal.Path(), last, b.rows, last+1)
	}
	return nil
}

// encode returns the prompts and indices of the rows that lack answers; most is the model's
// context.
func (b *batch) encode(tok *tokenizer.Tokenizer, set *data.Set, rows []int,
	most int) (prompts [][]int32, todo []int, err error) {
	advance, done := b.s.Console.Busy("encoding", len(rows))
	defer done()
	for i, row := range rows {
		if i%64 == 63 {
			advance(64)
		}
		if b.complete(row) {
			continue
		}
		ids, err := encode.Prompt(tok, set, row)
		if err != nil {
			return nil, nil, err
		}
		prompts, todo = append(prompts, ids), append(todo, row)
	}
	return prompts, todo, session.CheckLengths("generate", "max-new-tokens", prompts, todo, b.limit,
		most)
}

// complete reports whether the journal has all answers to a row.
func (b *batch) complete(row int) bool {
	for sample := range b.settings.N {
		if _, ok := b.journal.Lookup(answerKey(row, sample)); !ok {
			return false
		}
	}
	return true
}

// generate samples the missing answers.
func (b *batch) generate(ctx context.Context, m *session.Model, set *data.Set, prompts [][]int32,
	todo []int) error {
	n, slots := b.settings.N, m.Together(prompts, b.settings.N, b.limit, b.chunks)
	advance, done := b.s.Console.Busy("answers, tokens at most", len(todo)*n*b.limit)
	defer done()
	for lo := 0; lo < len(todo); lo += chunkRows {
		hi := min(lo+chunkRows, len(todo))
		rows := todo[lo:hi]
		keys := make([]uint64, len(rows))
		for i, r := range rows {
			keys[i] = uint64(r)
		}
		_, err := m.Generate(prompts[lo:hi], keys,
			model.SampleOptions{N: n, MaxNew: b.limit, Chunks: b.chunks, EOS: m.Tokenizer.EOS(),
				Seed: b.settings.Seed, Slots: slots, Sampling: b.o.Sampling,
				Stop: func() bool { return b.failed != nil || ctx.Err() != nil },
				Done: func(p, s int, a model.Completion) {
					if b.failed == nil {
						b.failed = b.record(m.Tokenizer, set, rows[p], s, a)
					}
					advance(b.limit - len(a.IDs))
				}}, advance)
		if err != nil {
			return err
		}
	}
	return nil
}

// record adds an answer to the journal, unless it is there.
func (b *batch) record(tok *tokenizer.Tokenizer, set *data.Set, row, sample int,
	c model.Completion) error {
	key := answerKey(row, sample)
	if _, ok := b.journal.Lookup(key); ok {
		return nil
	}
	r, err := set.Row(row)
	if err != nil {
		return err
	}
	a := answer{Row: row, Sample: sample, Content: r.Messages, Tools: r.Tools, Env: r.Env,
		PromptIDs: r.PromptIDs, Teacher: r.Teacher, Response: tok.Decode(c.IDs, true),
		Tokens: len(c.IDs), Truncated: c.Truncated, Finish: "stop"}
	if c.Truncated {
		a.Finish = "length"
	}
	return b.journal.Add(key, a)
}

// finish writes the output from the journal.
func (b *batch) finish() error {
	if err := b.out.CheckAbsent(b.s.FS); err != nil { // it was absent at the start
		return err
	}
	var all bytes.Buffer
	n, tokens, cut := 0, 0, 0
	for row := range b.rows {
		for sample := range b.settings.N {
			record, _ := b.journal.Lookup(answerKey(row, sample))
			var a answer
			if err := json.Unmarshal(record, &a); err != nil {
				return fmt.Errorf("generate: %s: answer %d to row %d: %w", b.journal.Path(), sample, row,
					err)
			}
			all.Write(record)
			all.WriteByte('\n')
			n++
			tokens += a.Tokens
			if a.Truncated {
				cut++
			}
		}
	}
	if err := b.out.Write(b.s.FS, all.Bytes(), "generate"); err != nil {
		return err
	}
	if err := b.journal.Remove(); err != nil {
		return err
	}
	fmt.Fprintf(b.s.Out, "%s: %s to %s, %.0f tokens on average, %d cut at %d tokens\n", b.out.Path,
		report.Count(n, "answer"), report.Count(b.rows, "row"), float64(tokens)/float64(max(n, 1)),
		cut, b.settings.MaxNew)
	return nil
}
