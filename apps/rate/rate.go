// Package rate implements gad data rate: it samples a student's answers to each row of a data set
// and lets a discriminator and a checker score them. The figures become columns that data.where
// reads, the answers an input of gad sft --objective ranking.
package rate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"time"

	"gad/apps/session"
	"gad/data"
	"gad/internal/compute"
	"gad/internal/report"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/checker"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// Options says which student answers, and who scores.
type Options struct {
	session.Source
	compute.Sampling
	Critic         string // folder of a discriminator; "": none
	Checker        string // command; "": none
	CheckerTimeout time.Duration
	RightAt        float64 // least score of the checker for a right answer
	N              int     // answers to a row
	// tokens of an answer; 0 is DefaultMaxNew, or half of the model's context
	MaxNew      int
	MaxTokens   int // tokens of one forward pass
	Seed        uint64
	KeepAnswers bool // write the answers with their scores
}

// DefaultMaxNew is the default of the longest answer, in tokens.
const DefaultMaxNew = 1536

// The columns of ratings.
const (
	right     = "right"       // share of answers with a checker's score of at least RightAt
	checkMean = "check"       // mean score of the checker
	dMean     = "d_mean"      // mean score of the discriminator
	dSpread   = "d_spread"    // standard deviation of the discriminator's scores
	dGap      = "d_gap"       // the teacher's score minus d_mean
	nll       = "teacher_nll" // of the teacher's answer under the student, nats per token
	length    = "length"      // of the teacher's answer, tokens with its end
)

// settings is the first record of an unfinished output: everything that its records depend on.
type settings struct {
	session.Sampled
	session.ComputeSettings
	Checker string `json:"checker" flag:"--checker"`
	Model   string `json:"model_sha256" same:"the model is"`
	Critic  string `json:"critic_sha256" same:"the discriminator is"`
	Data    string `json:"data_digest" same:"the data are"`
}

// answer is a record of the journal: one sampled answer.
type answer struct {
	IDs []int32 `json:"ids"`
	Cut bool    `json:"cut,omitempty"`
}

// teacher is a record of the journal: length and likelihood of the teacher's answer.
type teacher struct {
	NLL    *float64 `json:"nll"` // nil: not finite
	Length int      `json:"length"`
}

// verdicts is a record of the journal: the scores of a row's answers, then of the teacher's; nil:
// not finite.
type verdicts []*float64

// rating is a run of gad data rate.
//
// Results go into a journal, OUTPUT.partial, at once: each answer, and by row the teacher's
// likelihood, the discriminator's scores and the checker's. So after a kill only the unfinished
// answers and the current chunk of rows are computed again. One model is loaded at a time. The
// complete journal is written into the output by row.
type rating struct {
	s        *session.Session
	o        Options
	out      session.Output
	set      *data.Set
	rows     []int
	settings settings
	tok      *tokenizer.Tokenizer
	enc      encode.Encoder
	journal  *session.Partial
}

const (
	sampledAnswer = "a/%d/%d" // row, sample
	teacherKey    = "t/%d"
	criticKey     = "d/%d"
	checkerKey    = "c/%d"
)

// chunk is the number of rows scored at a time; tests lower it.
var chunk = 64

// Rate rates the rows of a data set and writes the ratings to output.
func Rate(s *session.Session, o Options, from session.Rows, output string) (err error) {
	r := &rating{s: s, o: o, out: session.Output{Command: "data rate", Path: output}}
	defer s.Console.Close()
	lock, err := r.out.Claim(s.FS)
	if err != nil {
		head := r.readHead()
		if head.Made == nil {
			return err
		}
		if failed := r.open(from); failed != nil {
			return failed
		}
		return r.finishKilled(head, err)
	}
	defer func() { err = cmp.Or(err, lock.Unlock()) }()
	if err := r.open(from); err != nil {
		return err
	}
	defer r.set.Close()
	r.journal, err = session.Resume(s, r.out, "record", r.settings)
	if err != nil {
		return err
	}
	if err := r.journal.Work("rated", func(ctx context.Context) error {
		return cmp.Or(r.student(ctx), r.critic(ctx), r.check(ctx))
	}); err != nil {
		return err
	}
	return r.finish()
}

// open opens the rows and determines the settings. The caller closes the set.
func (r *rating) open(from session.Rows) (err error) {
	if r.set, r.rows, err = from.List(r.s); err != nil {
		return err
	}
	if err = r.set.NeedTeacher(); err == nil {
		err = r.prepare()
	}
	if err != nil {
		r.set.Close()
	}
	return err
}

// outputSettings returns the settings that an output depends on: those of its records, and RightAt.
func (r *rating) outputSettings() (json.RawMessage, error) {
	return json.Marshal(struct {
		settings
		RightAt float64 `json:"right_at"`
	}{r.settings, r.o.RightAt})
}

// readHead returns the head of an existing output; the zero head if the file has no ratings.
func (r *rating) readHead() (head data.RatingsHead) {
	f, err := r.s.FS.Open(r.out.Path)
	if err != nil {
		return head
	}
	defer f.Close()
	if json.NewDecoder(io.LimitReader(f, 1<<20)).Decode(&head) != nil ||
		head.Format != data.RatingsFormat {
		return data.RatingsHead{}
	}
	return head
}

// finishKilled handles an output that exists. If this command wrote it and was killed before it
// removed its journal, finishKilled removes the journal and prints so; for another output it
// returns exists.
func (r *rating) finishKilled(head data.RatingsHead, exists error) error {
	defer r.set.Close()
	made, err := r.outputSettings()
	if err != nil {
		return err
	}
	if !bytes.Equal(head.Made, made) || head.Rows != len(r.rows) ||
		head.Answers != r.o.KeepAnswers {
		return exists
	}
	if err := r.s.FS.Remove(r.out.Path + ".partial"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data rate: %w", err)
	}
	fmt.Fprintf(r.s.Out, "%s: %s rated before, by the same command\n", r.out.Path,
		report.Count(len(r.rows), "row"))
	return nil
}

// prepare determines the settings that the ratings depend on, and checks the prompts' lengths.
func (r *rating) prepare() (err error) {
	o := &r.o
	if err := saved.CheckPart(r.s.FS, o.Path, "actor"); err != nil {
		return err
	}
	cfg, err := model.ReadConfig(o.Path)
	if err != nil {
		return err
	}
	if o.MaxNew == 0 {
		o.MaxNew = DefaultMaxNew
		if cfg.MaxPosition > 1 {
			o.MaxNew = min(o.MaxNew, cfg.MaxPosition/2)
		}
	}
	if r.tok, err = saved.ChatTokenizer(o.Path, o.Chat); err != nil {
		return err
	}
	r.enc = encode.Encoder{Tok: r.tok, MaxResponse: o.MaxNew}
	r.settings = settings{Sampled: session.SampledBy(o.Sampling, o.N, o.MaxNew, o.Seed),
		ComputeSettings: o.Source.ComputeSettings(), Checker: o.Checker}
	if r.settings.Model, err = r.s.Digest(o.Source); err != nil {
		return err
	}
	if o.Critic != "" {
		if err := saved.CheckPart(r.s.FS, o.Critic, "critic"); err != nil {
			return err
		}
		if err := saved.CheckTokenIDs(r.tok, o.Critic, "--critic"); err != nil {
			return err
		}
		shape, err := model.ReadConfig(o.Critic)
		if err != nil {
			return err
		}
		if shape.Kind() != model.Scorer {
			return fmt.Errorf("model: %s: is a language model, not a discriminator with a value head: give the critic folder of a checkpoint (with critic.head=likelihood a score needs the student too, and is not read here)", o.Critic)
		}
		if r.settings.Critic, err = r.s.Digest(session.Source{Path: o.Critic}); err != nil {
			return err
		}
	}
	if err := r.set.Verify(); err != nil {
		return err
	}
	r.settings.Data = r.set.Digest()
	prompts := make([][]int32, len(r.rows))
	for i, row := range r.rows {
		if prompts[i], err = encode.Prompt(r.tok, r.set, row); err != nil {
			return err
		}
	}
	return session.CheckLengths("data rate", "max-new-tokens", prompts, r.rows, o.MaxNew,
		cfg.MaxPosition)
}

// has reports whether the journal has a record of a key, and decodes it into into unless that is
// nil.
func (r *rating) has(into any, format string, args ...any) bool {
	raw, ok := r.journal.Lookup(fmt.Sprintf(format, args...))
	return ok && (into == nil || json.Unmarshal(raw, into) == nil)
}

// hasJudge reports whether a discriminator or a checker scores the answers.
func (r *rating) hasJudge() bool { return r.o.Critic != "" || r.o.Checker != "" }

// rowsWithout returns the rows that lack a record of a key.
func (r *rating) rowsWithout(key string) (rows []int) {
	for _, row := range r.rows {
		if !r.has(nil, key, row) {
			rows = append(rows, row)
		}
	}
	return rows
}

// student samples the missing answers, if there is a judge, and computes the missing likelihoods of
// the teacher's.
func (r *rating) student(ctx context.Context) error {
	var unanswered []int
	if r.hasJudge() {
		for _, row := range r.rows {
			if slices.ContainsFunc(sampleNumbers(r.o.N),
				func(k int) bool { return !r.has(nil, sampledAnswer, row, k) }) {
				unanswered = append(unanswered, row)
			}
		}
	}
	unread := r.rowsWithout(teacherKey)
	if len(unanswered)+len(unread) == 0 {
		return nil
	}
	m, err := r.s.Load(r.o.Source, model.LM)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := r.read(ctx, m, unread); err != nil {
		return err
	}
	return r.sample(ctx, m, unanswered)
}

// sampleNumbers returns 0 to n-1.
func sampleNumbers(n int) []int {
	k := make([]int, n)
	for i := range k {
		k[i] = i
	}
	return k
}

// inChunks calls do with the rows, a chunk at a time.
func (r *rating) inChunks(ctx context.Context, name string, rows []int,
	do func(rows []int, b encode.Batch) error) error {
	advance, done := r.s.Console.Busy(name, len(rows))
	defer done()
	for lo := 0; lo < len(rows); lo += chunk {
		if ctx.Err() != nil {
			return model.ErrStopped
		}
		some := rows[lo:min(lo+chunk, len(rows))]
		b, err := r.enc.Batch(r.set, some)
		if err != nil {
			return err
		}
		if err := do(some, b); err != nil {
			return err
		}
		advance(len(some))
	}
	return nil
}

// read records length and likelihood of the teacher's answers.
func (r *rating) read(ctx context.Context, m *session.Model, rows []int) error {
	return r.inChunks(ctx, "teacher's answers", rows, func(rows []int, b encode.Batch) error {
		logpST, _, err := m.AllLogProbs(b.Teachers(), 1, r.o.MaxTokens)
		if err != nil {
			return err
		}
		for i, row := range rows {
			ex, err := r.set.Row(row)
			if err != nil {
				return err
			}
			whole := r.enc.Answer(ex.Teacher)
			if ex.Turns != nil {
				if whole, _, err = r.enc.Reply(ex); err != nil {
					return err
				}
			}
			sum := 0.0
			for _, x := range logpST[i] {
				sum -= float64(x)
			}
			if err := r.put(teacher{finite(sum / float64(len(logpST[i]))), len(whole)}, teacherKey,
				row); err != nil {
				return err
			}
		}
		return nil
	})
}

// finite returns x, nil where JSON has no number for it.
func finite(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// put appends a record to the journal.
func (r *rating) put(record any, format string, args ...any) error {
	return r.journal.Add(fmt.Sprintf(format, args...), record)
}

// sample samples the missing answers. An answer is a function of the seed, its row and its number,
// so that a resumed command samples the same ones.
func (r *rating) sample(ctx context.Context, m *session.Model, rows []int) error {
	n, limit := r.o.N, r.o.MaxNew
	slots := 0
	advance, done := r.s.Console.Busy("answers, tokens at most", len(rows)*n*limit)
	defer done()
	for lo := 0; lo < len(rows); lo += chunk {
		some := rows[lo:min(lo+chunk, len(rows))]
		b, err := r.enc.Batch(r.set, some)
		if err != nil {
			return err
		}
		if slots == 0 {
			slots = m.Together(b.Prompts(), n, limit, model.Chunks{})
		}
		keys := make([]uint64, len(some))
		for i, row := range some {
			keys[i] = uint64(row)
		}
		var failed error
		_, err = m.Generate(b.Prompts(), keys, model.SampleOptions{N: n, MaxNew: limit,
			EOS: r.tok.EOS(), Seed: r.o.Seed, Slots: slots, Sampling: r.o.Sampling,
			Stop: func() bool { return failed != nil || ctx.Err() != nil },
			Done: func(p, k int, c model.Completion) {
				if failed == nil {
					failed = r.put(answer{c.IDs, c.Truncated}, sampledAnswer, some[p], k)
				}
				advance(limit - len(c.IDs))
			}}, advance)
		if err := cmp.Or(failed, err); err != nil {
			return err
		}
	}
	return nil
}

// answers returns a row's answers from the journal.
func (r *rating) answers(row int) ([]answer, error) {
	list := make([]answer, r.o.N)
	for k := range list {
		if !r.has(&list[k], sampledAnswer, row, k) {
			return nil,
				fmt.Errorf("data rate: %s: answer %d to row %d: is no answer: remove the file",
					r.journal.Path(), k, row)
		}
	}
	return list, nil
}

// critic lets the discriminator score the answers.
func (r *rating) critic(ctx context.Context) error {
	rows := r.rowsWithout(criticKey)
	if r.o.Critic == "" || len(rows) == 0 {
		return nil
	}
	m, err := r.s.Load(session.Source{Path: r.o.Critic, Device: r.o.Device}, model.Scorer)
	if err != nil {
		return err
	}
	defer m.Close()
	return r.inChunks(ctx, "scores", rows, func(rows []int, b encode.Batch) error {
		var seqs []model.Seq
		for i, row := range rows {
			answers, err := r.answers(row)
			if err != nil {
				return err
			}
			for _, a := range answers {
				seqs = append(seqs, r.enc.Ending().Seq(b[i].Prompt, a.IDs, a.Cut))
			}
			seqs = append(seqs, b[i].Teacher)
		}
		scoreS, err := m.AllScores(seqs, r.o.MaxTokens)
		if err != nil {
			return err
		}
		for _, row := range rows {
			var v verdicts
			for _, x := range scoreS[:r.o.N+1] {
				v = append(v, finite(float64(x)))
			}
			scoreS = scoreS[r.o.N+1:]
			if err := r.put(v, criticKey, row); err != nil {
				return err
			}
		}
		return nil
	})
}

// check lets the checker score the answers.
func (r *rating) check(ctx context.Context) error {
	rows := r.rowsWithout(checkerKey)
	if r.o.Checker == "" || len(rows) == 0 {
		return nil
	}
	c := checker.New(r.o.Checker, r.o.CheckerTimeout)
	return r.inChunks(ctx, "checks", rows, func(rows []int, b encode.Batch) error {
		var at []int
		var texts []string
		var cut []bool
		for i, row := range rows {
			answers, err := r.answers(row)
			if err != nil {
				return err
			}
			for _, a := range answers {
				at, cut = append(at, row), append(cut, a.Cut)
				texts = append(texts, r.tok.Decode(a.IDs, true))
			}
			at, cut = append(at, row), append(cut, b[i].TeacherCut)
			texts = append(texts, b[i].TeacherText)
		}
		asked, err := checker.Rows(r.set, at, texts, cut)
		if err != nil {
			return err
		}
		said, err := c.Check(ctx, asked)
		if err != nil {
			return err
		}
		for _, row := range rows {
			var v verdicts
			for _, x := range said[:r.o.N+1] {
				v = append(v, finite(x.Score))
			}
			said = said[r.o.N+1:]
			if err := r.put(v, checkerKey, row); err != nil {
				return err
			}
		}
		return nil
	})
}

// columns returns the names of the output's columns.
func (r *rating) columns() (names []string) {
	if r.o.Checker != "" {
		names = append(names, right, checkMean)
	}
	if r.o.Critic != "" {
		names = append(names, dMean, dSpread, dGap)
	}
	return append(names, nll, length)
}

// finish writes the output from the journal.
func (r *rating) finish() error {
	head := data.RatingsHead{Format: data.RatingsFormat, Rows: len(r.rows), Data: r.settings.Data,
		Tokenizer: r.tok.Digest(), Columns: r.columns(), N: r.o.N, Answers: r.o.KeepAnswers}
	var err error
	if head.Made, err = r.outputSettings(); err != nil {
		return err
	}
	switch {
	case r.o.Checker != "":
		head.ScoredBy = "checker"
	case r.o.Critic != "":
		head.ScoredBy = "critic"
	default:
		head.N = 0
	}
	var all bytes.Buffer
	if err := session.PrintJSON(&all, head); err != nil {
		return err
	}
	sums, counts := map[string]float64{}, map[string]int{}
	for _, row := range r.rows {
		line, err := r.line(row)
		if err != nil {
			return err
		}
		for name, v := range line {
			if x, ok := v.(*float64); ok && x != nil {
				sums[name] += *x
				counts[name]++
			}
		}
		if err := session.PrintJSON(&all, line); err != nil {
			return err
		}
	}
	if err := r.out.CheckAbsent(r.s.FS); err != nil { // it was absent at the start
		return err
	}
	if err := r.out.Write(r.s.FS, all.Bytes(), "data rate"); err != nil {
		return err
	}
	if err := r.journal.Remove(); err != nil {
		return err
	}
	fmt.Fprintf(r.s.Out, "%s: %s rated", r.out.Path, report.Count(len(r.rows), "row"))
	for i, name := range head.Columns {
		fmt.Fprintf(r.s.Out, "%s %s %.3g", map[bool]string{true: "; means:", false: ","}[i == 0],
			name, sums[name]/float64(max(1, counts[name])))
	}
	fmt.Fprintln(r.s.Out)
	return nil
}

// line returns a row of the output.
func (r *rating) line(row int) (map[string]any, error) {
	var t teacher
	if !r.has(&t, teacherKey, row) {
		return nil, fmt.Errorf("data rate: %s: row %d has no record: remove the file", r.journal.Path(),
			row)
	}
	n := float64(t.Length)
	line := map[string]any{"row": row, nll: t.NLL, length: &n}
	var by verdicts // the last judge's
	for _, judge := range []struct {
		on  bool
		key string
	}{{r.o.Critic != "", criticKey}, {r.o.Checker != "", checkerKey}} {
		if !judge.on {
			continue
		}
		by = nil
		if !r.has(&by, judge.key, row) || len(by) != r.o.N+1 {
			return nil, fmt.Errorf("data rate: %s: row %d has no scores: remove the file",
				r.journal.Path(), row)
		}
		mean, std, share := describe(by[:r.o.N], r.o.RightAt)
		if judge.key == checkerKey {
			line[right], line[checkMean] = finite(share), finite(mean)
			continue
		}
		line[dMean], line[dSpread], line[dGap] = finite(mean), finite(std), nil
		if of := by[r.o.N]; of != nil {
			line[dGap] = finite(*of - mean)
		}
	}
	if !r.o.KeepAnswers {
		return line, nil
	}
	answers, err := r.answers(row)
	if err != nil {
		return nil, err
	}
	kept := make([]data.RatedAnswer, len(answers))
	for k, a := range answers {
		kept[k] = data.RatedAnswer{IDs: a.IDs, Truncated: a.Cut, Score: by[k]}
	}
	line["answers"], line["teacher"] = kept, data.RatedAnswer{Score: by[r.o.N]}
	return line, nil
}

// describe returns the mean and the standard deviation of scores, and the share of at least
// rightAt; NaN if a score is not finite.
func describe(scores verdicts, rightAt float64) (mean, std, share float64) {
	n := float64(len(scores))
	for _, x := range scores {
		if x == nil {
			return math.NaN(), math.NaN(), math.NaN()
		}
		mean += *x / n
		if *x >= rightAt {
			share += 1 / n
		}
	}
	for _, x := range scores {
		std += (*x - mean) * (*x - mean) / n
	}
	return mean, math.Sqrt(std), share
}
