package generate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gad/apps/session"
	"gad/checkpoint"
	"gad/data"
	"gad/internal/fault"
	"gad/internal/journal"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// answer is one line of gad generate --output. Its names are those of a data set, so
// that gad score and gad eval read the file as one.
type answer struct {
	Row       int            `json:"row"` // in the data
	Sample    int            `json:"sample"`
	Content   []data.Message `json:"content,omitempty"`
	Tools     data.JSON      `json:"tools,omitempty"`
	Env       data.JSON      `json:"env,omitempty"`
	PromptIDs []int32        `json:"prompt_ids,omitempty"` // where the row has no conversation
	Teacher   string         `json:"teacher_response,omitempty"`
	Response  string         `json:"response"`
	Tokens    int            `json:"tokens"` // the end included
	Truncated bool           `json:"truncated"`
	Finish    string         `json:"finish_reason"` // stop, or length
}

// settings are the first record of an unfinished output: what every answer depends on. A command
// that says otherwise is refused. --limit is not among it: it changes how many rows are answered,
// not how.
type settings struct {
	Model       string  `json:"model_sha256"`
	Data        string  `json:"data_digest"`
	ContentKey  string  `json:"content_key"`
	TeacherKey  string  `json:"teacher_key"`
	N           int     `json:"n"`
	MaxNew      int     `json:"max_new_tokens"`
	Temperature float64 `json:"temperature"`
	TopP        float64 `json:"top_p"`
	MinP        float64 `json:"min_p"`
	TopK        int     `json:"top_k"`
	Seed        uint64  `json:"seed"`
	Chunks      string  `json:"chunks,omitempty"`
	Device      string  `json:"device"`
	Precision   string  `json:"precision"`
	// what is said about the chat template
	Template     string `json:"template,omitempty"`
	ChatTemplate string `json:"chat_template,omitempty"`
}

// differs names the first setting in which two outputs differ.
func (s settings) differs(was settings) string {
	for _, x := range []struct {
		name     string
		was, now any
	}{
		{"--n", was.N, s.N}, {"--max-new-tokens", was.MaxNew, s.MaxNew},
		{"--temperature", was.Temperature, s.Temperature},
		{"--top-p", was.TopP, s.TopP}, {"--min-p", was.MinP, s.MinP}, {"--top-k", was.TopK, s.TopK},
		{"--seed", was.Seed, s.Seed}, {"--chunk", was.Chunks, s.Chunks},
		{"--content-key", was.ContentKey, s.ContentKey},
		{"--teacher-key", was.TeacherKey, s.TeacherKey},
		{"--device", was.Device, s.Device}, {"--precision", was.Precision, s.Precision},
		{"--template", was.Template, s.Template}, {"--chat-template", was.ChatTemplate, s.ChatTemplate},
	} {
		if x.was != x.now {
			return fmt.Sprintf("%s was %v, now it is %v", x.name, x.was, x.now)
		}
	}
	switch {
	case was.Model != s.Model:
		return "the model is not the same"
	case was.Data != s.Data:
		return "the data are not the same"
	}
	return ""
}

// batch is one gad generate --data.
//
// Each answer goes into a journal as it ends, OUTPUT.partial, whose first record are the settings
// that the answers depend on. When all are there they are written into the output by row and
// sample, so that it has the same bytes whether the command was interrupted or not. A journal
// that an older version has begun, in a form of its own, is resumed too: see keyOfBefore.
type batch struct {
	s        *session.Session
	o        Options
	out      session.Output
	settings settings
	rows     int
	limit    int          // tokens of an answer
	chunks   model.Chunks // in which answers are written
	kept     atomic.Int64 // answers in the journal, for signals
	journal  *journal.Journal
	failed   error // of the journal, or of a row
}

// settingsKey is the key of the settings in the journal.
const settingsKey = "settings"

// answerKey is the key of an answer in the journal.
func answerKey(row, sample int) string { return fmt.Sprintf("%d/%d", row, sample) }

// keyOfBefore is the key of a line of a journal as gad wrote it until November 2026: the
// settings, and then the answers, as they are in the output.
func keyOfBefore(line []byte) string {
	strict := func(v any) bool {
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		return dec.Decode(v) == nil
	}
	var s settings
	if strict(&s) && s.Model != "" {
		return settingsKey
	}
	var a answer
	if strict(&a) && a.Finish != "" {
		return answerKey(a.Row, a.Sample)
	}
	return ""
}

// syncEvery bounds what a loss of power costs: the answers of this time.
const syncEvery = 5 * time.Second

// partial is where answers go until all are there.
func (b *batch) partial() string { return b.out.Path + ".partial" }

// want is how many answers there will be.
func (b *batch) want() int { return b.rows * b.settings.N }

// state is how far the command is, for whoever ends it.
func (b *batch) state() string {
	return fmt.Sprintf("%d of %d answers are in %s: run the same command to resume", b.kept.Load(),
		b.want(), b.partial())
}

// missing is how many bytes are still to be written, by the answers so far: the others,
// and all of them once more in order.
func (b *batch) missing() int64 {
	var have int64
	for _, record := range b.journal.All() {
		have += int64(len(record))
	}
	n := int(b.kept.Load())
	return have * int64(2*b.want()-n) / int64(max(1, n))
}

// broken is an error of the disk, which needs so many bytes.
func (b *batch) broken(needed int64, err error) error {
	return b.out.Broken(b.s.FS, needed, fmt.Errorf("generate: %w", err))
}

// chunkRows is how many rows are sampled in one call.
const chunkRows = 1024

// AnswerData answers the rows of a data set.
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
	if b.chunks, err = s.Thinking("generate", o.Path, o.Chunks); err != nil {
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
	if err := session.Continues("generate", m, b.chunks); err != nil {
		return err
	}
	ctx, stop := s.Stoppable(func() string {
		return "stopping; complete answers are kept, and the same command resumes; a second Ctrl-C stops at once"
	}, b.state)
	defer stop()
	if err := b.begin(); err != nil {
		return err
	}
	err = b.generate(ctx, m, set, prompts, todo)
	if err := cmp.Or(b.failed, b.journal.Sync(), b.journal.Close()); err != nil {
		return b.broken(b.missing(),
			fmt.Errorf("%d of %d answers are kept: %w", b.kept.Load(), b.want(), err))
	}
	if errors.Is(err, model.ErrStopped) {
		s.Console.Close()
		fmt.Fprintf(s.Err, "gad: generate: interrupted: %s\n", b.state())
		return fault.ErrInterrupted
	}
	if err != nil {
		return err
	}
	return b.finish()
}

// describe is what the answers depend on.
func (b *batch) describe(from session.Rows, set *data.Set) (s settings, err error) {
	o := b.o
	s = settings{Template: o.Chat.Variables, ChatTemplate: o.Chat.Template,
		ContentKey: from.Content, TeacherKey: from.Answer, N: o.N, MaxNew: b.limit,
		Temperature: o.Temperature, TopP: o.TopP, MinP: o.MinP, TopK: o.TopK, Seed: o.Seed,
		Device: o.Device.Name, Precision: o.Device.Precision}
	if b.chunks.On() {
		s.Chunks = fmt.Sprint(b.chunks)
	}
	if s.Model, err = b.s.Digest(o.Source); err != nil {
		return s, err
	}
	if err := set.Verify(); err != nil { // shows itself
		return s, err
	}
	s.Data = set.Digest()
	return s, nil
}

// resume reads what an interrupted command has left. It may have been asked for fewer
// rows, not for more: answers are not thrown away.
func (b *batch) resume() (err error) {
	foreign := fault.Usagef("generate: %s: is not an interrupted output of gad generate: remove it or give another --output", b.partial())
	b.journal, err = journal.Read(b.partial(),
		journal.Options{FS: b.s.FS, Before: keyOfBefore, SyncEvery: syncEvery})
	if errors.Is(err, journal.ErrForeign) {
		return foreign
	}
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	if b.journal.Len() == 0 {
		return nil
	}
	raw, _ := b.journal.Lookup(settingsKey)
	var was settings
	if json.Unmarshal(raw, &was) != nil {
		return foreign
	}
	if what := b.settings.differs(was); what != "" {
		return fault.Usagef(
			"generate: %s: cannot be resumed: %s: give the same settings, or another --output",
			b.partial(), what)
	}
	last := -1
	for key := range b.journal.All() {
		var row, sample int
		if n, _ := fmt.Sscanf(key, "%d/%d", &row, &sample); n == 2 {
			last = max(last, row)
			b.kept.Add(1)
		}
	}
	if last >= b.rows {
		return fault.Usagef("generate: %s: has answers up to row %d: --limit %d would drop them: give --limit %d or more, or another --output", b.partial(), last, b.rows, last+1)
	}
	return nil
}

// encode are the prompts of the rows that have answers to come; the model takes most tokens.
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
	return prompts, todo, session.Fitting("generate", "max-new-tokens", prompts, todo, b.limit,
		most)
}

func (b *batch) complete(row int) bool {
	for sample := range b.settings.N {
		if _, ok := b.journal.Lookup(answerKey(row, sample)); !ok {
			return false
		}
	}
	return true
}

// begin opens the journal, and writes the settings into a new one.
func (b *batch) begin() error {
	err := b.journal.Begin()
	if err == nil {
		err = b.journal.Append(settingsKey, b.settings)
	}
	if err != nil {
		return checkpoint.ExplainFull(b.s.FS, b.out.Path, b.missing(), vfs.Target(err))
	}
	if n := b.kept.Load(); n > 0 {
		b.s.Console.Print(fmt.Sprintf("%s: resuming, answers done so far: %d", b.partial(), n))
	}
	return nil
}

// generate samples what is missing.
func (b *batch) generate(ctx context.Context, m *session.Model, set *data.Set, prompts [][]int32,
	todo []int) error {
	n := b.settings.N
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
				Seed: b.settings.Seed, Slots: session.Slots, Sampling: b.o.Sampling,
				Stop: func() bool { return b.failed != nil || ctx.Err() != nil },
				Done: func(p, s int, a model.Completion) {
					if b.failed == nil {
						b.failed = b.keep(m.Tokenizer, set, rows[p], s, a)
					}
					advance(b.limit - len(a.IDs))
				}}, advance)
		if err != nil {
			return err
		}
	}
	return nil
}

// keep puts an answer into the journal, unless it has that answer already.
func (b *batch) keep(tok *tokenizer.Tokenizer, set *data.Set, row, sample int,
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
	if err := b.journal.Put(key, a); err != nil {
		return err
	}
	b.kept.Add(1)
	return nil
}

// finish makes the output out of the journal.
func (b *batch) finish() error {
	if err := b.out.Absent(b.s.FS); err != nil { // it was not there at the start
		return err
	}
	var all bytes.Buffer
	n, tokens, cut := 0, 0, 0
	for row := range b.rows {
		for sample := range b.settings.N {
			record, _ := b.journal.Lookup(answerKey(row, sample))
			var a answer
			if err := json.Unmarshal(record, &a); err != nil {
				return fmt.Errorf("generate: %s: answer %d to row %d: %w", b.partial(), sample, row,
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
	if err := b.s.FS.Remove(b.partial()); err != nil {
		return b.broken(0, err)
	}
	fmt.Fprintf(b.s.Out, "%s: %s to %s, %.0f tokens on average, %d cut at %d tokens\n", b.out.Path,
		report.Count(n, "answer"), report.Count(b.rows, "row"), float64(tokens)/float64(max(n, 1)),
		cut, b.settings.MaxNew)
	return nil
}
