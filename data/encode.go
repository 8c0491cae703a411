package data

import (
	"errors"
	"gad/data/layout"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// window is the number of rows that are worked on in parallel, and bounds the rows encoded beyond
// the last one that is wanted; a variable for tests.
var window = 1024

// Measure is the part of a row that a run must know before it starts.
type Measure struct {
	// tokens; Answer's are all, with the end
	Prompt, Answer int
	Unfinished     bool // the answer has no end: see Row.Unfinished
	Lost           bool // a text has characters without a token
	Marked         bool // a text spells out a control token
	Soft, Hard     bool // the row has soft labels; it has log-probabilities that give none

	// Beginnings of the row's Keys: equal for two rows with the same prompt, and with the same
	// prompt and answers. 0 unless EncodeOptions.Keys is set.
	PromptKey, RowKey uint64
}

// EncodeOptions are the settings of Encode.
type EncodeOptions struct {
	Limits Limits // as for Example
	Keys   bool   // compute the keys of Measure
	Most   int    // rows that the caller will take, for the bar; 0 is all
	Keep   Keep   // where encoded rows are stored; zero stores none
}

// Encode calls take with the measures of each row in order, until take returns false. All cores
// encode; the error is the first row's that Example refuses, as if rows were encoded one after the
// other.
//
// With o.Keep, a pass over all rows stores them in a file, and a later pass, of this process or
// another, reads the file instead of encoding. Row and Example then read it too: all calls must
// have the same encoder. The results equal those without it, byte by byte.
func (s *Set) Encode(enc Encoder, o EncodeOptions, take func(i int, m Measure) bool) (err error) {
	build := s.useRowFile(o.Keep)
	if k := s.rowFile.Load(); k != nil {
		return s.encodeFromFile(k, enc, o, take)
	}
	if build != nil {
		defer build.drop()
	}
	s.sequential(true)
	defer s.sequential(false)
	most := o.Most
	if most == 0 {
		most = s.n
	}
	type encoded struct {
		m      Measure
		row    Row
		record []byte
		err    error
	}
	// more if rows are left out
	advance, done := s.Stage("encoding", min(s.n, max(most, window)))
	defer done()
	all := true
	inOrder(s.n, func(i int) (e encoded) {
		ex, err := s.Example(i, enc, o.Limits)
		if err != nil {
			return encoded{err: err}
		}
		if o.Keys || build != nil {
			e.m = ex.Row.Measure()
		}
		e.m.Prompt, e.m.Answer, e.m.Unfinished = len(ex.Prompt), len(ex.Answer), ex.Unfinished()
		e.m.Lost, _ = ex.Row.Lost(enc)
		e.m.Marked = ex.Row.Mark() != ""
		e.m.Soft, e.m.Hard = ex.Soft != nil, ex.Hard != ""
		if build != nil {
			e.row, e.record = ex.Row, appendRecord(nil, ex)
		}
		return e
	}, func(i int, e encoded) bool {
		if i%window == 0 {
			advance(min(window, s.n-i))
		}
		if e.err != nil {
			err, all = e.err, false
			return false
		}
		if build != nil {
			build.add(e.m, e.row, e.record)
		}
		all = take(i, e.m) || i == s.n-1
		return all
	})
	if err == nil && all && build != nil {
		s.attach(build.finish())
	}
	return err
}

// encodeFromFile does the work of Encode with the rows of a row file. A row that is refused for its
// length is encoded again, for the error.
func (s *Set) encodeFromFile(k *rowFile, enc Encoder, o EncodeOptions,
	take func(i int, m Measure) bool) error {
	for b := range k.blocks {
		entries, err := k.entries(b)
		if err != nil {
			s.distrust(k, err)
			return s.Encode(enc, EncodeOptions{Limits: o.Limits, Keys: o.Keys, Most: o.Most},
				func(i int, m Measure) bool {
					return i < b*window || take(i, m) // earlier rows were taken already
				})
		}
		for r, e := range entries {
			i := b*window + r
			if max := o.Limits.MaxPrompt; max > 0 && e.Prompt > max {
				if _, err := s.Example(i, enc, o.Limits); err != nil {
					return err
				}
			}
			if !take(i, e.Measure) {
				return nil
			}
		}
	}
	return nil
}

// Lost reports whether a text of the row has characters without a token, and the first of them.
func (r Row) Lost(enc Encoder) (lost bool, first string) {
	for s := range r.texts {
		if n, first := enc.Lost(s); n > 0 {
			return true, first
		}
	}
	return false, ""
}

// Mark returns the first control token that a text of the row spells out, or "".
func (r Row) Mark() string {
	for s := range r.texts {
		if mark := controlMark(s); mark != "" {
			return mark
		}
	}
	return ""
}

// texts yields the texts that the student reads: of the prompt's turns, unless the prompt is given
// in tokens, and of the teacher's answer.
func (r Row) texts(yield func(string) bool) {
	turns := r.Turns
	if len(r.PromptIDs) == 0 {
		turns = slices.Concat(r.Messages, turns)
	}
	for _, m := range turns {
		for _, s := range []string{m.Content, m.Thinking, string(m.ToolCalls)} {
			if !yield(s) {
				return
			}
		}
	}
	yield(r.Teacher)
}

// Examples returns rows as Example does, encoded on all cores; the error is the first refused
// row's.
func (s *Set) Examples(rows []int, enc Encoder, lim Limits) (list []Example, err error) {
	type one struct {
		Example
		err error
	}
	inOrder(len(rows), func(i int) (o one) {
		o.Example, o.err = s.Example(rows[i], enc, lim)
		return o
	}, func(_ int, o one) bool {
		list, err = append(list, o.Example), o.err
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// inOrder calls do for 0 to n-1 on all cores, a window at a time, and take with the results in
// order, until take returns false.
func inOrder[T any](n int, do func(i int) T, take func(i int, v T) bool) {
	got := make([]T, min(n, window))
	for first := 0; first < n; first += window {
		k := min(window, n-first)
		var (
			wg   sync.WaitGroup
			next atomic.Int64
		)
		for range runtime.GOMAXPROCS(0) {
			wg.Go(func() {
				for i := int(next.Add(1)) - 1; i < k; i = int(next.Add(1)) - 1 {
					got[i] = do(first + i)
				}
			})
		}
		wg.Wait()
		for i := range k {
			if !take(first+i, got[i]) {
				return
			}
		}
	}
}

// digested is a row's part of the digest of a set.
type digested struct {
	row   Row
	fault string
	err   error
}

// toDigest reads row i for the digest.
func (s *Set) toDigest(i int) (d digested) {
	raw, err := s.raw(i)
	var bad *layout.Fault
	if err != nil && !errors.As(err, &bad) {
		return digested{err: err}
	}
	if bad == nil {
		d.row, bad = s.assemble(i, raw)
	}
	if bad != nil {
		d.fault, d.row.Messages = "fault: "+bad.Error(), raw.Turns
	}
	return d
}
