// Package rate is gad data rate: what a student and its judges make of each row of a data set, as
// columns that data.where reads, and as answers that gad sft --objective ranking learns from.
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
	"gad/internal/checker"
	"gad/internal/compute"
	"gad/internal/report"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// Options say which student answers, and who scores.
type Options struct {
	session.Source
	compute.Sampling
	Critic         string // folder of a discriminator; "" is none
	Checker        string // program; "" is none
	CheckerTimeout time.Duration
	RightAt        float64 // a checker's score from which on an answer is right
	N              int     // answers to a row
	// tokens of an answer; 0 is DefaultMaxNew, or half of the model's context
	MaxNew      int
	MaxTokens   int // of one forward pass
	Seed        uint64
	KeepAnswers bool // the output has them with their scores
}

// DefaultMaxNew is the longest answer where none is given, tokens.
const DefaultMaxNew = 1536

// The columns of ratings.
const (
	right     = "right"       // share of the answers that the checker scores RightAt or more
	checkMean = "check"       // mean score of the checker
	dMean     = "d_mean"      // mean score of the discriminator
	dSpread   = "d_spread"    // their standard deviation over the n answers
	dGap      = "d_gap"       // the teacher's score above their mean
	nll       = "teacher_nll" // of the teacher's answer under the student, nats per token
	length    = "length"      // of the teacher's answer, tokens with its end
)

// settings are the first record of an unfinished output: what its records depend on.
type settings struct {
	session.Sampled
	session.Computed
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

// teacher is a record of the journal: what the student makes of the teacher's answer.
type teacher struct {
	NLL    *float64 `json:"nll"` // nil is not finite
	Length int      `json:"length"`
}

// verdicts are a record of the journal: the scores of a row's answers, and then of the teacher's;
// nil is not finite.
type verdicts []*float64

// rating is one gad data rate.
//
// What is computed goes into a journal, OUTPUT.partial, as it is known: each answer, and by row the
// teacher's likelihood, the discriminator's scores and the checker's. So a killed command computes
// nothing twice but the answers and the chunk of rows that it was at. One model is loaded at a
// time. When all is there the output is written by row.
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

// chunk is how many rows are scored at a time; tests take fewer.
var chunk = 64

// Rate rates the rows that from names into the file output.
func Rate(s *session.Session, o Options, from session.Rows, output string) (err error) {
	r := &rating{s: s, o: o, out: session.Output{Command: "data rate", Path: output}}
	defer s.Console.Close()
	lock, err := r.out.Claim(s.FS)
	if err != nil {
		head := r.written()
		if head.Made == nil {
			return err
		}
		if failed := r.open(from); failed != nil {
			return failed
		}
		return r.finished(head, err)
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

// open opens the rows and finds out what their ratings depend on. The caller closes the set.
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

// made is what an output depends on: the settings of its records, and how they are summed up.
func (r *rating) made() (json.RawMessage, error) {
	return json.Marshal(struct {
		settings
		RightAt float64 `json:"right_at"`
	}{r.settings, r.o.RightAt})
}

// written returns the head of an output that is there; it is empty where that is none of ratings.
func (r *rating) written() (head data.RatingsHead) {
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

// finished says that an output that is there is the one of this command, which was killed behind
// its last rename, and removes what is left of its records. Of another output it returns exists.
func (r *rating) finished(head data.RatingsHead, exists error) error {
	defer r.set.Close()
	made, err := r.made()
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

// prepare finds out what the ratings depend on.
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
		Computed: o.Source.Computed(), Checker: o.Checker}
	if r.settings.Model, err = r.s.Digest(o.Source); err != nil {
		return err
	}
	if o.Critic != "" {
		if err := saved.CheckPart(r.s.FS, o.Critic, "critic"); err != nil {
			return err
		}
		if err := saved.SameTokens(r.tok, o.Critic, "--critic"); err != nil {
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
	return session.Fitting("data rate", "max-new-tokens", prompts, r.rows, o.MaxNew,
		cfg.MaxPosition)
}

// has reports whether the journal has a record; where it does, into gets it.
func (r *rating) has(into any, format string, args ...any) bool {
	raw, ok := r.journal.Lookup(fmt.Sprintf(format, args...))
	return ok && (into == nil || json.Unmarshal(raw, into) == nil)
}

// judged reports whether anybody scores answers.
func (r *rating) judged() bool { return r.o.Critic != "" || r.o.Checker != "" }

// without are the rows that have no record of a key.
func (r *rating) without(key string) (rows []int) {
	for _, row := range r.rows {
		if !r.has(nil, key, row) {
			rows = append(rows, row)
		}
	}
	return rows
}

// student has the student answer, where somebody scores the answers, and read the teacher's.
func (r *rating) student(ctx context.Context) error {
	var unanswered []int
	if r.judged() {
		for _, row := range r.rows {
			if slices.ContainsFunc(sampleNumbers(r.o.N),
				func(k int) bool { return !r.has(nil, sampledAnswer, row, k) }) {
				unanswered = append(unanswered, row)
			}
		}
	}
	unread := r.without(teacherKey)
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

func sampleNumbers(n int) []int {
	k := make([]int, n)
	for i := range k {
		k[i] = i
	}
	return k
}

// inChunks calls do with some rows at a time.
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

// read notes the likelihood of the teacher's answers.
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

// finite is x, nil where JSON has no number for it.
func finite(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

func (r *rating) put(record any, format string, args ...any) error {
	return r.journal.Keep(fmt.Sprintf(format, args...), record)
}

// sample samples what answers are missing. An answer is a function of the seed, its row and its
// number, so that those of an interrupted command are the same.
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

// answers are those of a row.
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

// critic has the discriminator score.
func (r *rating) critic(ctx context.Context) error {
	rows := r.without(criticKey)
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

// check has the checker score.
func (r *rating) check(ctx context.Context) error {
	rows := r.without(checkerKey)
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

// columns are those that the output has.
func (r *rating) columns() (names []string) {
	if r.o.Checker != "" {
		names = append(names, right, checkMean)
	}
	if r.o.Critic != "" {
		names = append(names, dMean, dSpread, dGap)
	}
	return append(names, nll, length)
}

// finish makes the output out of the journal.
func (r *rating) finish() error {
	head := data.RatingsHead{Format: data.RatingsFormat, Rows: len(r.rows), Data: r.settings.Data,
		Tokenizer: r.tok.Digest(), Columns: r.columns(), N: r.o.N, Answers: r.o.KeepAnswers}
	var err error
	if head.Made, err = r.made(); err != nil {
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
	if err := r.out.Absent(r.s.FS); err != nil { // it was not there at the start
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

// line is a row of the output.
func (r *rating) line(row int) (map[string]any, error) {
	var t teacher
	if !r.has(&t, teacherKey, row) {
		return nil, fmt.Errorf("data rate: %s: row %d has no record: remove the file", r.journal.Path(),
			row)
	}
	n := float64(t.Length)
	line := map[string]any{"row": row, nll: t.NLL, length: &n}
	var by verdicts // who scores the answers
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

// describe is the mean and the standard deviation of scores, NaN where one is not finite, and the
// share of at least rightAt.
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
