// Package report writes the records of a run and shows them: the declaration of every metric, the
// files of a run folder that people and other programs read, and the console.
//
//	record.go   a run's record, written step by step: start here
//	metrics.go  the table of metrics
//	rows.go     metrics.jsonl, a line a step
//	events.go   the metrics as TensorBoard events
//	console.go  lines and progress bars for people
//	text.go     figures as text
//	follow.go   a run's files, followed as they grow
//	last.go     how a run's last session ended
//	signs.go    signs of a sick run in its metrics
//	figures.go  the figures of an evaluation
//
// The files of a run folder:
//
//	metrics.jsonl         one object a step: {"step":N, metrics by name, timings by name, time}
//	log.jsonl             the console's lines and more, one JSON object an entry (zap); a step's
//	                      entry has all its metrics as fields
//	tb/                   the metrics as TensorBoard events
//	samples/step_N.jsonl  prompts, answers and scores of a step
//
// metrics.jsonl and the samples are records: after a resume they have each step exactly once.
// log.jsonl and tb/ are histories: entries from before an interruption stay (TensorBoard reads
// which steps start anew).
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"gad/internal/vfs"
)

const (
	metricsName = "metrics.jsonl"
	logName     = "log.jsonl"
	eventsDir   = "tb"
	samplesDir  = "samples"
)

// Options are the settings of a Recorder.
type Options struct {
	ResumeStep int              // the last step to keep; 0 = the run begins
	TotalSteps int              // for "step 3/200" and the time left; 0 = unknown
	Command    string           // the command line, written to the log
	Console    *Console         // for people; nil = none
	Now        func() time.Time // nil = time.Now
}

// Recorder records one run. All methods may be called from several goroutines.
//
// The first error of a write to a file is final: Step, Samples, Sync, Err and Close return it from
// then on, and nothing more is recorded. A console that fails is different (a terminal may close
// and the run should go on): the error is logged once to log.jsonl and the console is silent
// afterwards.
type Recorder struct {
	fs   vfs.FS
	dir  string
	opt  Options
	con  *Console
	json zapcore.Core // log.jsonl
	log  *zap.Logger  // console and log.jsonl

	mu      sync.Mutex // guards what follows
	metrics vfs.File
	events  *events
	last    int   // last recorded step
	rows    []Row // all recorded steps; none with dir ""
	eta     eta
	// explained are the labels of the console's lines that were explained.
	explained map[string]bool
	closed    bool

	logFile *logFile
	failure failure
}

// failure is the first write error of a Recorder. It has a lock of its own because loggers write at
// any time.
type failure struct {
	mu  sync.Mutex
	err error
}

// note stores err unless there is an earlier error, and returns the first.
func (f *failure) note(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	return f.err
}

// Open creates, or continues, the record of a run in the folder dir. Steps after opt.ResumeStep are
// removed from metrics.jsonl, atomically, and their samples are removed. With dir "" only the
// console is written.
func Open(fsys vfs.FS, dir string, opt Options) (*Recorder, error) {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	r := &Recorder{fs: fsys, dir: dir, opt: opt, last: opt.ResumeStep, explained: map[string]bool{},
		logFile: &logFile{}}
	r.logFile.fail = func(err error) {
		r.failure.note(
			fmt.Errorf("report: %s: %w", filepath.Join(dir, logName), err))
	}
	if dir != "" {
		if err := r.openFiles(); err != nil {
			r.closeFiles()
			return nil, fmt.Errorf("report: %s: %w", dir, err)
		}
	}
	r.json = zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{
		TimeKey: "time", LevelKey: "level", NameKey: "logger", MessageKey: "msg",
		EncodeLevel: zapcore.LowercaseLevelEncoder, EncodeTime: zapcore.RFC3339NanoTimeEncoder,
		EncodeDuration: zapcore.StringDurationEncoder, EncodeName: zapcore.FullNameEncoder,
	}), r.logFile, zap.DebugLevel)
	if r.con = opt.Console; r.con == nil {
		r.con = NewConsole(nil, false)
	}
	r.con.mu.Lock()
	r.con.onFail = func(err error) {
		r.note(zap.WarnLevel, "console failed, silent from here on", zap.Error(err))
	}
	r.con.mu.Unlock()
	r.log = zap.New(zapcore.NewTee(r.json, &consoleCore{LevelEnabler: zap.InfoLevel, con: r.con}),
		zap.WithClock(clock{opt.Now}), zap.ErrorOutput(zapcore.AddSync(io.Discard))) // both cores keep their own errors
	if opt.ResumeStep > 0 {
		r.note(zap.InfoLevel, "resume", zap.Int("step", opt.ResumeStep),
			zap.String("command", opt.Command))
	} else {
		r.note(zap.InfoLevel, "start", zap.String("command", opt.Command))
	}
	if err := r.Err(); err != nil {
		r.closeFiles() // the error above is the one to report
		return nil, err
	}
	return r, nil
}

// openFiles cuts the files back to ResumeStep and opens them for appending.
func (r *Recorder) openFiles() (err error) {
	if err := vfs.MakeDirs(r.fs, r.dir); err != nil {
		return err
	}
	metrics, log := filepath.Join(r.dir, metricsName), filepath.Join(r.dir, logName)
	if r.rows, err = cutMetrics(r.fs, metrics, r.opt.ResumeStep); err != nil {
		return fmt.Errorf("%s: %w", metricsName, err)
	}
	if err := cutTorn(r.fs, log); err != nil {
		return fmt.Errorf("%s: %w", logName, err)
	}
	if err := r.cutSamples(); err != nil {
		return fmt.Errorf("%s: %w", samplesDir, err)
	}
	if r.events, err = openEvents(r.fs, filepath.Join(r.dir, eventsDir), r.opt.ResumeStep+1,
		r.opt.Now); err != nil {
		return fmt.Errorf("%s: %w", eventsDir, err)
	}
	if r.metrics, err = r.fs.OpenAppend(metrics); err != nil {
		return err
	}
	if r.logFile.f, err = r.fs.OpenAppend(log); err != nil {
		return err
	}
	return r.fs.SyncDir(r.dir)
}

// note writes an entry to log.jsonl alone.
func (r *Recorder) note(level zapcore.Level, msg string, fields ...zap.Field) {
	// logFile stores the error
	_ = r.json.Write(zapcore.Entry{Level: level, Time: r.opt.Now(), Message: msg}, fields)
}

// Progress shows a part of a step on the console: see Console.Progress.
func (r *Recorder) Progress(name string, total int) (advance func(n int), done func()) {
	return r.con.Progress(name, total)
}

// Log returns the run's logger, which writes to the console for people and to log.jsonl as JSON.
func (r *Recorder) Log() *zap.Logger { return r.log }

// End is the way in which a run ended: the field "end" of the last entry of log.jsonl. A log
// without one was cut off: kill -9, a loss of power, or the system's memory killer.
type End string

// The ends of a run.
const (
	Finished    End = "finished"
	Interrupted End = "interrupted" // by a signal; saved
	Aborted     End = "aborted"     // by a second signal; not saved
	DiskFull    End = "disk full"
	Numerical   End = "numbers broke down"
	OutOfMemory End = "out of memory"
	Failed      End = "failed" // anything else
)

// End writes the last entry of the run. A good end goes to the console too; an error goes to
// log.jsonl alone, since the program prints it when it exits.
func (r *Recorder) End(how End, text string) {
	level := zap.InfoLevel
	if how != Finished && how != Interrupted {
		level = zap.ErrorLevel
	} else {
		r.con.print(level, r.opt.Now(), text)
	}
	r.note(level, text, zap.String("end", string(how)))
}

// SetTotal changes the number of steps of the whole run.
func (r *Recorder) SetTotal(steps int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opt.TotalSteps = steps
}

// Err returns the first error of a write to a file, nil if there was none.
func (r *Recorder) Err() error { return r.failure.note(nil) }

// Step records the metrics of one step: a line of metrics.jsonl, a TensorBoard record, a line on
// the console. Steps count from 1 and must increase. A metric that is not declared is
// ErrUndeclared, and then nothing is written.
func (r *Recorder) Step(step int, values map[string]float64) error {
	for name := range values {
		if _, ok := byName[name]; !ok {
			return fmt.Errorf("report: metric %q: %w", name, ErrUndeclared)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.Err(); err != nil {
		return err
	}
	switch {
	case r.closed:
		return errors.New("report: step after Close")
	case step < 1:
		return fmt.Errorf("report: step %d: steps count from 1", step)
	case step <= r.last:
		return fmt.Errorf("report: step %d after step %d: each step is recorded once", step, r.last)
	}
	now := r.opt.Now()
	if r.metrics != nil {
		row := Row{step, maps.Clone(values), now.UTC().Truncate(time.Millisecond)}
		if _, err := r.metrics.Write(appendRow(nil, row)); err != nil {
			return r.failure.note(fmt.Errorf("report: %s: step %d: %w",
				filepath.Join(r.dir, metricsName), step, err))
		}
		if err := r.events.scalars(step, values); err != nil {
			return r.failure.note(fmt.Errorf("report: %s: step %d: %w",
				filepath.Join(r.dir, eventsDir), step, err))
		}
		r.rows = append(r.rows, row)
	}
	r.last = step
	r.eta.add(step, now)
	left := r.eta.remaining(r.opt.TotalSteps)
	r.con.print(zap.InfoLevel, now, stepLine(step, r.opt.TotalSteps, values, left, r.con.paint))
	if text := legendLine(values, r.explained); text != "" {
		r.con.print(zap.InfoLevel, now, r.con.paint(dim, text))
	}
	r.note(zap.InfoLevel, stepLine(step, r.opt.TotalSteps, values, left, plain),
		fields(step, values)...)
	return r.Err()
}

// Rows returns the metrics of all steps of the run, those before a resume among them. The caller
// does not change them.
func (r *Recorder) Rows() []Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rows
}

// fields returns a step's number and metrics as fields of a log entry, under the metrics' names.
func fields(step int, values map[string]float64) []zap.Field {
	list := []zap.Field{zap.Int("step", step)}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		list = append(list, zap.Float64(name, values[name]))
	}
	return list
}

// Sample is one line of a samples file.
type Sample struct {
	Row          int // index of the data row
	Prompt       string
	Student      string // of an episode, the conversation as text
	Teacher      string
	StudentScore float64
	TeacherScore float64
	Advantage    float64
	Turns        []Turn     // of an episode
	Seams        []int      // of an answer in chunks: characters of Student before each later chunk
	Tree         *TreePlace // of an answer that branches, or may
	Notes        string     // a coach's on the answer; "": none
}

// TreePlace is an answer's position in the trees of its prompt.
type TreePlace struct {
	Tree   int        `json:"tree"`   // number of the tree among the prompt's
	Leaf   int        `json:"leaf"`   // number of the answer among the prompt's
	Parent int        `json:"parent"` // the answer that it branched off, -1: none
	Nodes  []TreeNode `json:"nodes"`  // its own tokens, cut where others branch off
}

// TreeNode is a run of an answer's own tokens between two branch points.
type TreeNode struct {
	From   int `json:"from"`   // characters of Student before it
	To     int `json:"to"`     // and up to its end
	Leaves int `json:"leaves"` // answers that it is part of
	// mean reward of these, and the tokens' advantage; nil: not finite
	Value     *float64 `json:"value,omitempty"`
	Advantage *float64 `json:"advantage,omitempty"`
}

// Turn is one message of an episode: the student's, or the environment's.
type Turn struct {
	Role   string   `json:"role"`
	Text   string   `json:"text"`
	IDs    []int32  `json:"ids,omitempty"` // as the student sampled them
	Reward *float64 `json:"reward,omitempty"`
	Score  *float64 `json:"score,omitempty"` // the discriminator's behind the turn
	Valid  *bool    `json:"valid,omitempty"`
}

// MarshalJSON writes numbers as metrics.jsonl does, NaN as "NaN", and text with <, > and & as they
// stand.
func (s Sample) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	text := func(key, v string) {
		fmt.Fprintf(&b, ",%q:", key)
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(v)       // a string always encodes
		b.Truncate(b.Len() - 1) // its newline
	}
	num := func(key string, v float64) { fmt.Fprintf(&b, ",%q:%s", key, appendFloat(nil, v)) }
	fmt.Fprintf(&b, `{"row":%d`, s.Row)
	text("prompt", s.Prompt)
	text("student", s.Student)
	text("teacher", s.Teacher)
	num("student_score", s.StudentScore)
	num("teacher_score", s.TeacherScore)
	num("advantage", s.Advantage)
	if s.Turns != nil {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		b.WriteString(`,"turns":`)
		if err := enc.Encode(s.Turns); err != nil {
			return nil, err
		}
		b.Truncate(b.Len() - 1)
	}
	if s.Seams != nil {
		list, err := json.Marshal(s.Seams)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, `,"seams":%s`, list)
	}
	if s.Tree != nil {
		place, err := json.Marshal(s.Tree)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, `,"tree":%s`, place)
	}
	if s.Notes != "" {
		text("notes", s.Notes)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// SampleKind is the source of the answers in a samples file; it begins the file's name.
type SampleKind string

const (
	InTraining SampleKind = "step" // samples/step_N.jsonl: answers that step N learned from
	// samples/val_N.jsonl: greedy answers of validation after step N
	InValidation SampleKind = "val"
)

var sampleName = regexp.MustCompile(`^\.?(step|val)_([0-9]{1,18})\.jsonl(\.tmp)?$`)

// file returns the name of a step's samples file.
func (k SampleKind) file(step int) string { return fmt.Sprintf("%s_%d.jsonl", k, step) }

// Samples writes samples/step_N.jsonl, or val_N, atomically, and over an earlier one of the same
// step.
func (r *Recorder) Samples(kind SampleKind, step int, samples []Sample) error {
	if err := r.Err(); err != nil || r.dir == "" {
		return err
	}
	dir := filepath.Join(r.dir, samplesDir)
	path := filepath.Join(dir, kind.file(step))
	var b bytes.Buffer
	for _, s := range samples {
		line, _ := s.MarshalJSON()
		b.Write(append(line, '\n'))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errors.New("report: samples after Close")
	}
	err := vfs.MakeDirs(r.fs, dir)
	if err == nil {
		err = vfs.WriteFile(r.fs, path, b.Bytes())
	}
	if err != nil {
		return r.failure.note(fmt.Errorf("report: samples of step %d: %w", step, err))
	}
	return nil
}

// cutSamples removes the samples of steps that will be run again, and files that a crash left half
// written.
func (r *Recorder) cutSamples() error {
	dir := filepath.Join(r.dir, samplesDir)
	list, err := r.fs.ReadDir(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	removed := false
	for _, e := range list {
		m := sampleName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if step, err := strconv.Atoi(m[2]); err != nil || step <= r.opt.ResumeStep && m[3] == "" {
			continue
		}
		if err := r.fs.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
		removed = true
	}
	if removed {
		return r.fs.SyncDir(dir)
	}
	return nil
}

// Sync makes everything recorded so far survive a loss of power. Call it before a checkpoint is
// committed: then the records of every step that a resume builds on are there.
func (r *Recorder) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.Err(); err != nil || r.metrics == nil {
		return err
	}
	for _, f := range []struct {
		name string
		sync func() error
	}{{metricsName, r.metrics.Sync}, {logName, r.logFile.Sync}, {eventsDir, r.events.f.Sync}} {
		if err := f.sync(); err != nil {
			return r.failure.note(fmt.Errorf("report: %s: sync: %w", filepath.Join(r.dir, f.name),
				err))
		}
	}
	return r.Err()
}

// Close ends open stages and closes the files, without a sync. It returns the first error of a
// write. The logger may still be used: it then writes to the console alone.
func (r *Recorder) Close() error {
	r.con.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if err := r.closeFiles(); err != nil {
		r.failure.note(fmt.Errorf("report: %s: close: %w", r.dir, err))
	}
	return r.Err()
}

func (r *Recorder) closeFiles() error {
	var errs []error
	if r.metrics != nil {
		errs = append(errs, r.metrics.Close())
		r.metrics = nil
	}
	if r.events != nil {
		errs = append(errs, r.events.f.Close())
		r.events = nil
	}
	return errors.Join(append(errs, r.logFile.Close())...)
}

// logFile is log.jsonl under the logger. Zap has no caller to return an error to, so Write passes
// it to fail.
type logFile struct {
	mu   sync.Mutex
	f    vfs.File // nil = no file: entries are dropped
	fail func(error)
}

// Write appends an entry. After the first error, which goes to fail, entries are dropped.
func (l *logFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		if _, err := l.f.Write(b); err != nil {
			l.fail(err)
			// the first error is the one to report; a line after a torn one would be unreadable
			l.f.Close()
			l.f = nil
		}
	}
	return len(b), nil
}

func (l *logFile) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	return l.f.Sync()
}

func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	return f.Close()
}

// clock gives zap the recorder's time.
type clock struct{ now func() time.Time }

func (c clock) Now() time.Time                         { return c.now() }
func (c clock) NewTicker(d time.Duration) *time.Ticker { return time.NewTicker(d) }
