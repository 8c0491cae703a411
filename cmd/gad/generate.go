package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"gad/checkpoint"
	"gad/data"
	"gad/internal/compute"
	"gad/internal/report"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer"
)

// generateCommand is gad generate.
func (p *program) generateCommand() *cli.Command {
	return &cli.Command{
		Name:  "generate",
		Usage: "answer a prompt, or every prompt of a data file",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: modelUsage},
			adapterFlag("model"),
			weightsFlag(),
			&cli.StringFlag{Name: "prompt", Usage: "user message, put into the chat template; - reads it from standard input"},
			&cli.StringFlag{Name: "system", Usage: "system message before --prompt"},
			&cli.BoolFlag{Name: "raw", Usage: "use --prompt as it is, without a chat template"},
			&cli.StringFlag{Name: "output", Usage: "output file for --data: one JSON line per answer. After an interruption the same command resumes"},
			&cli.IntFlag{Name: "limit", Usage: "rows of --data to answer; 0 is all"},
			&cli.IntFlag{Name: "n", Value: 1, Usage: "answers per prompt"},
			&cli.IntFlag{Name: "max-new-tokens", Value: 1536, DefaultText: "1536, or what the model's context leaves after the prompt; with --data at most half of the context", Usage: "longest answer, tokens"},
			&cli.Float64Flag{Name: "temperature", Value: 0.8, Usage: "sampling temperature; 0 is greedy"},
			&cli.Float64Flag{Name: "top-p", Value: 1, Usage: "keep the smallest set of tokens with this probability"},
			&cli.Float64Flag{Name: "min-p", Usage: "drop tokens less probable than this share of the best"},
			&cli.IntFlag{Name: "top-k", Usage: "keep the k most probable tokens; 0 is all"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of sampling; equal seeds give equal answers"},
			&cli.BoolFlag{Name: "stream", DefaultText: "on a terminal", Usage: "print the answer as it is decoded"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object for each answer to --prompt, with token ids and log-probabilities"},
		}, append(setFlags("conversations to answer, instead of --prompt"), deviceFlags()...)...),
		Action: func(c *cli.Context) error {
			if err := checkGenerateFlags(c); err != nil {
				return err
			}
			if c.IsSet("data") {
				return p.answerData(c)
			}
			return p.answerPrompt(c)
		},
	}
}

// checkGenerateFlags refuses what gad generate cannot mean.
func checkGenerateFlags(c *cli.Context) error {
	if err := errors.Join(noArguments(c), need(c, "model")); err != nil {
		return err
	}
	var other []string
	if c.IsSet("data") {
		if err := need(c, "data"); err != nil {
			return err
		}
		if c.String("output") == "" {
			return usage("generate: --data needs --output FILE, where the answers go")
		}
		other = []string{"prompt", "system", "raw", "stream", "json"}
	} else {
		if err := need(c, "prompt"); err != nil {
			return err
		}
		other = []string{"output", "limit", "split", "format", "content-key", "teacher-key"}
	}
	for _, name := range other {
		switch {
		case !c.IsSet(name):
		case name == "prompt":
			return usage("generate: --prompt and --data: give one of them")
		case c.IsSet("data"):
			return usage("generate: --%s is for --prompt, not for --data: leave it out", name)
		default:
			return usage("generate: --%s is for --data, not for --prompt: leave it out", name)
		}
	}
	if n := c.Int("n"); n < 1 || n > 1<<16-1 {
		return usage("generate: -n %d: must be 1 to 65535", n)
	}
	if c.Int("max-new-tokens") < 1 {
		return usage("generate: --max-new-tokens %d: must be at least 1", c.Int("max-new-tokens"))
	}
	if err := errors.Join(inRange(c, "temperature", 1e6), aboveZero(c, "top-p"), inRange(c, "top-p", 1), inRange(c, "min-p", 1)); err != nil {
		return err
	}
	for _, name := range []string{"top-k", "limit"} {
		if c.Int(name) < 0 {
			return usage("generate: --%s %d: must be at least 0", name, c.Int(name))
		}
	}
	if c.Bool("raw") && c.IsSet("system") {
		return usage("generate: --system is part of the chat template, which --raw leaves out: write it into --prompt")
	}
	if c.Bool("stream") && (c.Int("n") > 1 || c.Bool("json")) {
		return usage("generate: --stream prints one answer as text: leave out -n and --json")
	}
	return nil
}

// sampling are the flags of it.
func sampling(c *cli.Context) compute.Sampling {
	return compute.Sampling{Temperature: c.Float64("temperature"), TopK: c.Int("top-k"), TopP: c.Float64("top-p"), MinP: c.Float64("min-p")}
}

// maxPromptBytes bounds a prompt from standard input.
const maxPromptBytes = 16 << 20

// promptOf is the prompt that the flags name.
func promptOf(c *cli.Context) (string, error) {
	if c.String("prompt") != "-" {
		return c.String("prompt"), nil
	}
	raw, err := io.ReadAll(io.LimitReader(os.Stdin, maxPromptBytes+1))
	if err != nil {
		return "", fmt.Errorf("generate: --prompt -: standard input: %w", err)
	}
	text := strings.TrimRight(string(raw), "\r\n")
	switch {
	case text == "":
		return "", usage("generate: --prompt -: standard input is empty")
	case len(raw) > maxPromptBytes:
		return "", usage("generate: --prompt -: standard input has more than %d MB", maxPromptBytes>>20)
	case !utf8.ValidString(text):
		return "", usage("generate: --prompt -: standard input is not UTF-8 text")
	}
	return text, nil
}

// answerPrompt answers --prompt.
func (p *program) answerPrompt(c *cli.Context) error {
	text, err := promptOf(c)
	if err != nil {
		return err
	}
	l, err := p.load(c, c.String("model"), model.LM)
	if err != nil {
		return err
	}
	defer l.close()
	var prompt []int32
	if c.Bool("raw") {
		prompt = l.tok.EncodeSpecial(text)
	} else {
		msgs := []tokenizer.Message{{Role: "user", Content: text}}
		if s := c.String("system"); s != "" {
			msgs = append([]tokenizer.Message{{Role: "system", Content: s}}, msgs...)
		}
		if prompt, err = l.tok.ChatPrompt(msgs); err != nil {
			return err
		}
	}
	limit := c.Int("max-new-tokens")
	if room := l.m.Config().MaxPosition - len(prompt); l.m.Config().MaxPosition > 0 {
		if room < 1 {
			return usage("generate: the prompt has %d tokens, the model takes %d: shorten it", len(prompt), l.m.Config().MaxPosition)
		}
		limit = min(limit, room)
	}
	o := model.SampleOptions{N: c.Int("n"), MaxNew: limit, EOS: l.tok.EOS(), Seed: c.Uint64("seed"), Slots: evalSlots, Sampling: sampling(c)}
	if streams(c, p.out) {
		var failed error
		text := l.tok.Stream(true)
		say := func(part string) {
			if part != "" && failed == nil {
				_, failed = io.WriteString(p.out, shown(p.out, part))
			}
		}
		o.Token = func(_, _ int, id int32) { say(text.Next(id)) }
		out, err := l.m.Generate([][]int32{prompt}, []uint64{0}, o, nil)
		say(text.End() + "\n")
		if err = errors.Join(err, failed); err == nil {
			p.sayCut(out[0], limit)
		}
		return err
	}
	con := p.console()
	defer con.Close()
	advance, done := con.Stage("tokens", 0)
	out, err := l.m.Generate([][]int32{prompt}, []uint64{0}, o, advance)
	done()
	if err != nil {
		return err
	}
	for i, a := range out[0] {
		text := l.tok.Decode(a.IDs, true)
		if !c.Bool("json") {
			fmt.Fprintln(p.out, shown(p.out, text))
			continue
		}
		if err := printJSON(p.out, map[string]any{"sample": i, "text": text, "prompt_ids": prompt, "response_ids": a.IDs,
			"logprobs": floats(a.Logp), "truncated": a.Truncated}); err != nil {
			return err
		}
	}
	p.sayCut(out[0], limit)
	return nil
}

// sayCut says that answers have no end.
func (p *program) sayCut(answers []model.Completion, limit int) {
	cut := 0
	for _, a := range answers {
		if a.Truncated {
			cut++
		}
	}
	if cut > 0 {
		fmt.Fprintf(p.err, "gad: note: %d of %s cut at %s\n", cut, report.Count(len(answers), "answer"), report.Count(limit, "token"))
	}
}

// streams reports whether an answer is printed as it is decoded.
func streams(c *cli.Context, out io.Writer) bool {
	if c.IsSet("stream") {
		return c.Bool("stream")
	}
	return c.Int("n") == 1 && !c.Bool("json") && terminal(out)
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// shown is text as it may reach w: no control character of a model is a terminal's.
func shown(w io.Writer, text string) string {
	if !terminal(w) {
		return text
	}
	return harmless(text)
}

// harmless is text without control characters, but for tabs and ends of lines.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return utf8.RuneError
		}
		return r
	}, text)
}

// answerRow is one line of gad generate --output. Its names are those of a data set, so
// that gad score and gad eval read the file as one.
type answerRow struct {
	Row       int            `json:"row"` // in the data
	Sample    int            `json:"sample"`
	Content   []data.Message `json:"content,omitempty"`
	PromptIDs []int32        `json:"prompt_ids,omitempty"` // where the row has no conversation
	Teacher   string         `json:"teacher_response,omitempty"`
	Response  string         `json:"response"`
	Tokens    int            `json:"tokens"` // the end included
	Truncated bool           `json:"truncated"`
	Finish    string         `json:"finish_reason"` // stop, or length
}

// batchSettings is the first line of an unfinished output: what every answer depends
// on. A command that says otherwise is refused. --limit is not among it: it changes how
// many rows are answered, not how.
type batchSettings struct {
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
	Device      string  `json:"device"`
	Precision   string  `json:"precision"`
}

// differs names the first setting in which two outputs differ.
func (s batchSettings) differs(was batchSettings) string {
	for _, x := range []struct {
		name     string
		was, now any
	}{
		{"--n", was.N, s.N}, {"--max-new-tokens", was.MaxNew, s.MaxNew}, {"--temperature", was.Temperature, s.Temperature},
		{"--top-p", was.TopP, s.TopP}, {"--min-p", was.MinP, s.MinP}, {"--top-k", was.TopK, s.TopK}, {"--seed", was.Seed, s.Seed},
		{"--content-key", was.ContentKey, s.ContentKey}, {"--teacher-key", was.TeacherKey, s.TeacherKey},
		{"--device", was.Device, s.Device}, {"--precision", was.Precision, s.Precision},
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

// batchRun is one gad generate --data.
type batchRun struct {
	c        *cli.Context
	con      *report.Console
	path     string // of the output
	settings batchSettings
	lines    map[[2]int][]byte // by row and sample
	want     int               // answers
	kept     atomic.Int64      // answers in the journal, for signals
	journal  vfs.File
	synced   time.Time
	failed   error // of the journal
}

// state is how far the command is, for whoever ends it.
func (b *batchRun) state() string {
	return fmt.Sprintf("%d of %d answers are in %s: run the same command to resume", b.kept.Load(), b.want, b.partial())
}

// missing is how many bytes are still to be written, by the answers so far: the others,
// and all of them once more in order.
func (b *batchRun) missing() int64 {
	var have int64
	for _, line := range b.lines {
		have += int64(len(line))
	}
	return have * int64(2*b.want-len(b.lines)) / int64(max(1, len(b.lines)))
}

// broken is an error of the disk, which needs so many bytes.
func (b *batchRun) broken(needed int64, err error) error {
	return marked{errRunning, checkpoint.ExplainFull(files(), b.path, needed, fmt.Errorf("generate: %w", err))}
}

// partial is where answers go until all are there.
func (b *batchRun) partial() string { return b.path + ".partial" }

// chunkRows is how many rows are sampled in one call.
const chunkRows = 1024

// answerData answers the rows of --data. Each answer is appended to a journal as it
// ends; when all are there they are sorted into the output, which therefore has the
// same bytes whether the command was interrupted or not.
func (p *program) answerData(c *cli.Context) (err error) {
	b := &batchRun{c: c, con: p.console(), path: c.String("output"), lines: map[[2]int][]byte{}}
	defer b.con.Close()
	lock, err := claimOutput("generate", b.path)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, lock.Unlock()) }()
	set, rows, err := p.openRows(c)
	if err != nil {
		return err
	}
	defer set.Close()
	dir := c.String("model")
	if err := trainer.CheckModelFolder(files(), dir); err != nil {
		return err
	}
	cfg, err := model.ReadConfig(dir)
	if err != nil {
		return err
	}
	limit := c.Int("max-new-tokens")
	if cfg.MaxPosition > 1 && !c.IsSet("max-new-tokens") {
		limit = min(limit, cfg.MaxPosition/2)
	}
	if b.settings, err = b.describe(dir, set, limit); err != nil {
		return err
	}
	b.want = len(rows) * b.settings.N
	if err := b.resume(len(rows)); err != nil {
		return err
	}
	tok, err := trainer.LoadTokenizer(dir)
	if err != nil {
		return err
	}
	prompts, todo, err := b.encode(tok, set, rows, limit, cfg.MaxPosition)
	if err != nil {
		return err
	}
	l, err := p.load(c, dir, model.LM)
	if err != nil {
		return err
	}
	defer l.close()
	if err := b.begin(); err != nil {
		return err
	}
	ctx, stop := p.stoppable(b.con, "stopping; complete answers are kept, and the same command resumes; a second Ctrl-C stops at once", b.state)
	defer stop()
	err = b.generate(ctx, l, set, prompts, todo, limit)
	if err := cmp.Or(b.failed, b.journal.Sync(), b.journal.Close()); err != nil {
		return b.broken(b.missing(), fmt.Errorf("%d of %d answers are kept: %w", len(b.lines), b.want, err))
	}
	if errors.Is(err, model.ErrStopped) {
		b.con.Close()
		fmt.Fprintf(p.err, "gad: generate: interrupted: %s\n", b.state())
		return trainer.ErrInterrupted
	}
	if err != nil {
		return err
	}
	return b.finish(p.out, len(rows))
}

// describe is what the answers depend on.
func (b *batchRun) describe(dir string, set *data.Set, limit int) (s batchSettings, err error) {
	c := b.c
	s = batchSettings{ContentKey: c.String("content-key"), TeacherKey: c.String("teacher-key"), N: c.Int("n"), MaxNew: limit,
		Temperature: c.Float64("temperature"), TopP: c.Float64("top-p"), MinP: c.Float64("min-p"), TopK: c.Int("top-k"), Seed: c.Uint64("seed"),
		Device: c.String("device"), Precision: c.String("precision")}
	_, done := b.con.Busy("reading "+dir, 0)
	s.Model, err = modelDigest(dir)
	base, err1 := model.BaseDir(dir)
	if other := cmp.Or(c.String("adapter"), base); other != dir && errors.Join(err, err1) == nil { // adapters, and what they stand on
		var and string
		and, err = modelDigest(other)
		s.Model += "+" + and
	}
	done()
	if err := errors.Join(err, err1); err != nil {
		return s, err
	}
	if err := set.Verify(); err != nil { // shows itself
		return s, err
	}
	s.Data = set.Digest()
	return s, nil
}

// modelDigest is the SHA-256 of the files that make a model's answers.
func modelDigest(dir string) (string, error) {
	var names []string
	info, err := files().Stat(dir)
	if err == nil && !info.IsDir() { // a GGUF file
		names, dir = []string{filepath.Base(dir)}, filepath.Dir(dir)
	} else {
		entries, err := files().ReadDir(dir)
		if err != nil {
			return "", fmt.Errorf("model: %w", err)
		}
		for _, e := range entries {
			if !e.IsDir() && slices.Contains([]string{".json", ".safetensors", ".jinja", ".txt", ".model"}, filepath.Ext(e.Name())) {
				names = append(names, e.Name())
			}
		}
	}
	sum := sha256.New()
	for _, name := range names {
		f, err := files().Open(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("model: %w", err)
		}
		info, err := f.Stat()
		if err == nil {
			fmt.Fprintf(sum, "%s %d\n", name, info.Size())
			_, err = io.Copy(sum, f)
		}
		f.Close()
		if err != nil {
			return "", fmt.Errorf("model: %s: %w", filepath.Join(dir, name), err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// resume reads what an interrupted command has left. It may have been asked for fewer
// rows, not for more: answers are not thrown away.
func (b *batchRun) resume(rows int) error {
	raw, err := files().ReadFile(b.partial())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	head, rest, _ := bytes.Cut(raw, []byte("\n"))
	var was batchSettings
	dec := json.NewDecoder(bytes.NewReader(head))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&was); err != nil {
		return usage("generate: %s: is not an interrupted output of gad generate: remove it or give another --output", b.partial())
	}
	if what := b.settings.differs(was); what != "" {
		return usage("generate: %s: cannot be resumed: %s: give the same settings, or another --output", b.partial(), what)
	}
	last := -1
	for line := range bytes.Lines(rest) {
		var r answerRow
		if !bytes.HasSuffix(line, []byte("\n")) || json.Unmarshal(line, &r) != nil {
			break // a kill cut it short: its answer is sampled again
		}
		b.lines[[2]int{r.Row, r.Sample}] = bytes.Clone(line)
		last = max(last, r.Row)
	}
	if last >= rows {
		return usage("generate: %s: has answers up to row %d: --limit %d would drop them: give --limit %d or more, or another --output", b.partial(), last, rows, last+1)
	}
	b.kept.Store(int64(len(b.lines)))
	return nil
}

// encode are the prompts of the rows that have answers to come.
func (b *batchRun) encode(tok *tokenizer.Tokenizer, set *data.Set, rows []int, limit, most int) (prompts [][]int32, todo []int, err error) {
	advance, done := b.con.Busy("encoding", len(rows))
	defer done()
	for i, row := range rows {
		if i%64 == 63 {
			advance(64)
		}
		if b.complete(row) {
			continue
		}
		ids, err := trainer.EncodePrompt(tok, set, row)
		if err != nil {
			return nil, nil, err
		}
		prompts, todo = append(prompts, ids), append(todo, row)
	}
	return prompts, todo, fitting("generate", "max-new-tokens", prompts, todo, limit, most)
}

// fitting refuses prompts that leave no room for an answer of so many tokens in what
// the model takes, 0 for any.
func fitting(command, flag string, prompts [][]int32, rows []int, limit, most int) error {
	longest := 0
	for i, ids := range prompts {
		if len(ids) > len(prompts[longest]) {
			longest = i
		}
	}
	if len(prompts) == 0 || most == 0 || len(prompts[longest])+limit <= most {
		return nil
	}
	n := len(prompts[longest])
	if n >= most {
		return fmt.Errorf("data: row %d: prompt has %d tokens, the model takes %d: drop the row", rows[longest], n, most)
	}
	return usage("%s: row %d: prompt has %d tokens: with an answer of %d that is more than the %d of the model: give --%s %d", command, rows[longest], n, limit, most, flag, most-n)
}

func (b *batchRun) complete(row int) bool {
	for s := range b.settings.N {
		if b.lines[[2]int{row, s}] == nil {
			return false
		}
	}
	return true
}

// begin opens the journal: afresh, or with what is kept of it.
func (b *batchRun) begin() error {
	var kept bytes.Buffer
	if err := printJSON(&kept, b.settings); err != nil {
		return err
	}
	b.write(&kept)
	if err := vfs.WriteFile(files(), b.partial(), kept.Bytes()); err != nil {
		return checkpoint.ExplainFull(files(), b.path, int64(kept.Len()), vfs.Target(err))
	}
	b.synced = time.Now()
	if n := len(b.lines); n > 0 {
		b.con.Print(fmt.Sprintf("%s: resuming, answers done so far: %d", b.partial(), n))
	}
	var err error
	if b.journal, err = files().OpenAppend(b.partial()); err != nil {
		return vfs.Target(err)
	}
	return nil
}

// write is all answers in order.
func (b *batchRun) write(w *bytes.Buffer) {
	keys := make([][2]int, 0, len(b.lines))
	for k := range b.lines {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y [2]int) int { return cmp.Or(x[0]-y[0], x[1]-y[1]) })
	for _, k := range keys {
		w.Write(b.lines[k])
	}
}

// generate samples what is missing.
func (b *batchRun) generate(ctx context.Context, l *loaded, set *data.Set, prompts [][]int32, todo []int, limit int) error {
	n := b.settings.N
	advance, done := b.con.Busy("answers, tokens at most", len(todo)*n*limit)
	defer done()
	for lo := 0; lo < len(todo); lo += chunkRows {
		hi := min(lo+chunkRows, len(todo))
		rows := todo[lo:hi]
		keys := make([]uint64, len(rows))
		for i, r := range rows {
			keys[i] = uint64(r)
		}
		_, err := l.m.Generate(prompts[lo:hi], keys, model.SampleOptions{N: n, MaxNew: limit, EOS: l.tok.EOS(), Seed: b.settings.Seed, Slots: evalSlots, Sampling: sampling(b.c),
			Stop: func() bool { return b.failed != nil || ctx.Err() != nil },
			Done: func(p, s int, a model.Completion) {
				b.keep(l.tok, set, rows[p], s, a)
				advance(limit - len(a.IDs))
			}}, advance)
		if err != nil {
			return err
		}
	}
	return nil
}

// keep appends an answer to the journal.
func (b *batchRun) keep(tok *tokenizer.Tokenizer, set *data.Set, row, sample int, a model.Completion) {
	key := [2]int{row, sample}
	if b.failed != nil || b.lines[key] != nil {
		return
	}
	r, err := set.Row(row)
	if err != nil {
		b.failed = err
		return
	}
	out := answerRow{Row: row, Sample: sample, Content: r.Messages, PromptIDs: r.PromptIDs, Teacher: r.Teacher, Response: tok.Decode(a.IDs, true),
		Tokens: len(a.IDs), Truncated: a.Truncated, Finish: "stop"}
	if a.Truncated {
		out.Finish = "length"
	}
	var line bytes.Buffer
	if b.failed = printJSON(&line, out); b.failed == nil {
		b.failed = b.append(key, line.Bytes())
	}
}

// append writes a line to the journal.
func (b *batchRun) append(key [2]int, line []byte) error {
	if _, err := b.journal.Write(line); err != nil {
		return err
	}
	b.lines[key] = line
	b.kept.Add(1)
	if time.Since(b.synced) < syncEvery {
		return nil
	}
	b.synced = time.Now()
	return b.journal.Sync()
}

// syncEvery bounds what a loss of power costs: the answers of this time.
const syncEvery = 5 * time.Second

// finish makes the output out of the journal.
func (b *batchRun) finish(w io.Writer, rows int) error {
	if err := absent("generate", b.path); err != nil { // it was not there at the start
		return err
	}
	var all bytes.Buffer
	b.write(&all)
	if err := vfs.WriteFile(files(), b.path, all.Bytes()); err != nil {
		return b.broken(int64(all.Len()), err)
	}
	if err := files().Remove(b.partial()); err != nil {
		return b.broken(0, err)
	}
	tokens, cut := 0, 0
	for _, line := range b.lines {
		var r answerRow
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		tokens += r.Tokens
		if r.Truncated {
			cut++
		}
	}
	n := len(b.lines)
	fmt.Fprintf(w, "%s: %s to %s, %.0f tokens on average, %d cut at %d tokens\n", b.path, report.Count(n, "answer"), report.Count(rows, "row"), float64(tokens)/float64(max(n, 1)), cut, b.settings.MaxNew)
	return nil
}
