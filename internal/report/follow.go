package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gad/internal/vfs"
)

// tail is a position in a file of lines that grows.
type tail struct {
	lines  int
	offset int64
	info   fs.FileInfo // of the file that offset is in
	before []byte      // the last bytes that were read
}

// tailBytes is the number of bytes before the position that are compared: a rewritten file may have
// the inode of the old one, and be longer.
const tailBytes = 256

// read calls f with every complete line that was added since the last call, and its number; line is
// "" for one longer than maxLine. A last line without a newline waits for it. If the file was
// replaced or cut, as a resume does, reset is called first and all lines follow. A missing file has
// no lines.
func (t *tail) read(fsys vfs.FS, path string, reset func(),
	f func(n int, line string)) (err error) {
	// a pipe would keep who opens it waiting
	if is, err := fsys.Stat(path); err == nil && !is.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	file, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		if t.info != nil {
			*t = tail{}
			reset()
		}
		return nil
	} else if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if t.info != nil && (info.Size() < t.offset || !os.SameFile(t.info, info)) {
		*t = tail{}
		reset()
	}
	if t.info != nil && info.Size() == t.offset && info.ModTime().Equal(t.info.ModTime()) {
		return nil
	}
	if s, ok := file.(io.Seeker); ok {
		_, err = s.Seek(t.offset-int64(len(t.before)), io.SeekStart)
	} else {
		_, err = io.CopyN(io.Discard, file, t.offset-int64(len(t.before)))
	}
	if err != nil {
		return err
	}
	now := make([]byte, len(t.before))
	if _, err := io.ReadFull(file, now); err != nil {
		return err
	}
	if !bytes.Equal(now, t.before) {
		*t = tail{}
		reset()
		return t.read(fsys, path, reset, f)
	}
	t.info = info
	return linesFrom(file, t.offset, func(line []byte, end int64) error {
		t.lines, t.offset = t.lines+1, end
		t.setBefore(line)
		f(t.lines, string(line)) // "" of nil
		return nil
	})
}

// setBefore stores the end of the last line read, its newline included.
func (t *tail) setBefore(line []byte) {
	line = line[max(0, len(line)-tailBytes+1):]
	t.before = append(append(t.before[:0], line...), '\n')
}

// Curve is a metric over the records that have it.
type Curve struct {
	Name string
	At   []int32 // of each value, its record: an index of Curves.Steps
	X    []float64

	lastLine int // the last line that had it
}

// Curves are the metrics of a run by name. Read follows metrics.jsonl as it grows, and is fast
// where ReadMetrics is strict: a line that is not a record is skipped and counted.
type Curves struct {
	Steps   []int
	Times   []time.Time // time of each record; zero = not recorded
	Names   []string    // in the order of Metrics, then undeclared ones
	Damaged []string    // the first lines that are not records, with the reason
	Bad     int         // the number of such lines
	Anew    int         // times that the file was cut by a resume, or replaced

	byName map[string]*Curve
	tail   tail
	line   []point // the line being read
}

// point is a value of the line being read.
type point struct {
	c *Curve
	x float64
}

// maxNames bounds the metrics of a file, of which gad declares under a hundred.
const maxNames = 1000

// Get returns the metric's curve, nil if no record has it.
func (c *Curves) Get(name string) *Curve { return c.byName[name] }

// Read reads the lines added to the run folder's metrics.jsonl. A missing file has no records.
func (c *Curves) Read(fsys vfs.FS, dir string) error {
	path := filepath.Join(dir, metricsName)
	err := c.tail.read(fsys, path, func() { *c = Curves{tail: c.tail, Anew: c.Anew + 1} }, c.add)
	if err != nil {
		return fmt.Errorf("report: %s: %w", path, err)
	}
	return nil
}

// add adds a line to the curves.
func (c *Curves) add(n int, line string) {
	step, at, ok := c.parseFast(n, line)
	if !ok {
		r, err := parseRow([]byte(line))
		if err != nil {
			c.addDamaged(n, err.Error())
			return
		}
		step, at = r.Step, r.Time
		if len(r.Values) > maxNames {
			c.addDamaged(n, fmt.Sprintf("more than %d metrics", maxNames))
			return
		}
		c.line = c.line[:0]
		for name, x := range r.Values {
			if curve := c.curve(name); curve != nil {
				c.line = append(c.line, point{curve, x})
			}
		}
	}
	if len(c.Steps) > 0 && step <= c.Steps[len(c.Steps)-1] {
		c.addDamaged(n, fmt.Sprintf("step %d after step %d", step, c.Steps[len(c.Steps)-1]))
		return
	}
	for _, v := range c.line {
		v.c.At = append(v.c.At, int32(len(c.Steps)))
		v.c.X = append(v.c.X, v.x)
	}
	c.Steps = append(c.Steps, step)
	c.Times = append(c.Times, at)
}

// addDamaged counts a line that is not a record, and keeps the reasons of the first five.
func (c *Curves) addDamaged(n int, why string) {
	if c.Bad++; len(c.Damaged) < 5 {
		c.Damaged = append(c.Damaged, fmt.Sprintf("%s: line %d: %s", metricsName, n, why))
	}
}

// curve returns the metric's curve, a new one if needed; nil beyond maxNames metrics.
func (c *Curves) curve(name string) *Curve {
	x := c.byName[name]
	if x == nil && len(c.Names) < maxNames {
		x = &Curve{Name: strings.Clone(name)}
		if c.byName == nil {
			c.byName = map[string]*Curve{}
		}
		c.byName[x.Name] = x
		at, _ := slices.BinarySearchFunc(c.Names, x.Name, compareNames)
		c.Names = slices.Insert(c.Names, at, x.Name)
	}
	return x
}

// place is a declared metric's index in the table.
var place = func() map[string]int {
	m := map[string]int{}
	for i, x := range table {
		m[x.Name] = i
	}
	return m
}()

// compareNames compares metrics by their place in the table; undeclared ones come after, by name.
func compareNames(a, b string) int {
	i, iOK := place[a]
	j, jOK := place[b]
	switch {
	case iOK && jOK:
		return i - j
	case iOK:
		return -1
	case jOK:
		return 1
	}
	return strings.Compare(a, b)
}

// parseFast parses a line, as appendRow writes it, into c.line. ok is false for any other line,
// whether parseRow accepts it or not, and for a metric that no earlier line had. A run of 100,000
// steps has 150 MB of these lines; the tokens of encoding/json would take six times as long.
func (c *Curves) parseFast(n int, line string) (step int, at time.Time, ok bool) {
	c.line = c.line[:0]
	rest, is := strings.CutPrefix(line, `{"step":`)
	i := strings.IndexAny(rest, ",}")
	if !is || i < 1 || i > 18 || rest[0] < '1' || rest[0] > '9' {
		return 0, at, false
	}
	step, err := strconv.Atoi(rest[:i])
	if err != nil {
		return 0, at, false
	}
	for rest = rest[i:]; rest[0] == ','; {
		var name string
		if name, rest, is = plainString(rest[1:]); !is || len(rest) < 2 || rest[0] != ':' {
			return 0, at, false
		}
		rest = rest[1:]
		if name == "step" || name == "time" && !at.IsZero() {
			return 0, at, false
		}
		x := math.NaN()
		if rest[0] == '"' {
			var text string
			if text, rest, is = plainString(rest); !is {
				return 0, at, false
			}
			switch {
			case name == "time":
				at, err = time.Parse(rowTime, text)
			case text == "NaN" || text == "+Inf" || text == "-Inf":
				x, err = strconv.ParseFloat(text, 64)
			default:
				return 0, at, false
			}
		} else if size := number(rest); size > 0 && name != "time" {
			x, err = strconv.ParseFloat(rest[:size], 64)
			rest = rest[size:]
		} else {
			return 0, at, false
		}
		if err != nil || len(rest) == 0 {
			return 0, at, false
		}
		if name == "time" {
			continue
		}
		curve := c.byName[name]
		if curve == nil || curve.lastLine == n { // new, or twice in this line
			return 0, at, false
		}
		curve.lastLine = n
		c.line = append(c.line, point{curve, x})
	}
	return step, at, rest == "}"
}

// plainString parses a JSON string of printable ASCII without escapes at the start of s. It returns
// the text and the rest of s.
func plainString(s string) (text, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	for i := 1; i < len(s); i++ {
		switch ch := s[i]; {
		case ch == '"':
			return s[1:i], s[i+1:], true
		case ch == '\\' || ch < ' ' || ch > '~':
			return "", "", false
		}
	}
	return "", "", false
}

// number returns the length of the JSON number at the start of s, or 0.
func number(s string) int {
	i := 0
	digits := func() bool {
		from := i
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(s) && s[i] == '-' {
		i++
	}
	zero := i < len(s) && s[i] == '0'
	from := i
	if !digits() || zero && i > from+1 {
		return 0
	}
	if i < len(s) && s[i] == '.' {
		if i++; !digits() {
			return 0
		}
	}
	if i < len(s) && (s[i] == 'e' || s[i] == 'E') {
		if i++; i < len(s) && (s[i] == '+' || s[i] == '-') {
			i++
		}
		if !digits() {
			return 0
		}
	}
	return i
}

// Rows returns the records in the form that Diagnose takes.
func (c *Curves) Rows() []Row {
	rows := make([]Row, len(c.Steps))
	for i, step := range c.Steps {
		rows[i] = Row{Step: step, Values: make(map[string]float64, len(c.Names)), Time: c.Times[i]}
	}
	for _, name := range c.Names {
		curve := c.byName[name]
		for i, at := range curve.At {
			rows[at].Values[name] = curve.X[i]
		}
	}
	return rows
}

// Session is one start of a run.
type Session struct {
	At      time.Time `json:"at"`
	Step    int       `json:"after_step"` // 0 = the run began
	Command string    `json:"command"`
}

// Log is the content of log.jsonl. Read follows the file as it grows.
type Log struct {
	Sessions []Session
	Total    int       // steps of the whole run, from the last step's line; 0 = unknown
	Warnings []Warning // of all sessions
	// step of the other run's checkpoint that the run started from; 0 = unknown
	From int

	step int // of the last entry of a step
	word LastWord
	tail tail
}

// Read reads the entries added to the run folder's log.jsonl. A missing file has no entries.
func (l *Log) Read(fsys vfs.FS, dir string) error {
	path := filepath.Join(dir, logName)
	err := l.tail.read(fsys, path, func() { *l = Log{tail: l.tail} },
		func(_ int, line string) { l.add(line) })
	if err != nil {
		return fmt.Errorf("report: %s: %w", path, err)
	}
	return nil
}

// Word returns how the last session ended.
func (l *Log) Word() LastWord { return l.word }

// Warning is a warning in the log.
type Warning struct {
	Step int    `json:"step"` // the last step before it; 0 = before the first
	Text string `json:"text"`
}

// fromOf matches the entry that names the checkpoint a run starts from.
var fromOf = regexp.MustCompile(`: [a-z]+ from .*global_step_([0-9]{1,12})(?:, | )`)

// maxWarnings bounds the warnings that are kept of a log.
const maxWarnings = 1000

var stepOf = regexp.MustCompile(`^step ([0-9]{1,12})/([0-9]{1,12})(?: |$)`)

// add adds one entry; a line that is not an entry is skipped.
func (l *Log) add(line string) {
	var e entry
	if json.Unmarshal([]byte(line), &e) != nil {
		return
	}
	l.word.add(e)
	if e.begins() {
		l.Sessions, l.step = append(l.Sessions, Session{e.Time, e.Step, e.Command}), e.Step
	} else if m := stepOf.FindStringSubmatch(e.Msg); m != nil {
		l.step, _ = strconv.Atoi(m[1])
		l.Total, _ = strconv.Atoi(m[2])
	} else if m := fromOf.FindStringSubmatch(e.Msg); m != nil && len(l.Sessions) == 1 &&
		l.step == 0 {
		l.From, _ = strconv.Atoi(m[1])
	} else if e.Level == "warn" && len(l.Warnings) < maxWarnings {
		l.Warnings = append(l.Warnings, Warning{l.step, e.Msg})
	}
}

// maxSamples bounds a samples file, in bytes: some thousand answers of a few thousand tokens.
const maxSamples = 64 << 20

// ReadSamples reads the samples of a kind and step in the run folder dir. Lines that are not
// samples are skipped and counted. A missing file is fs.ErrNotExist.
func ReadSamples(fsys vfs.FS, dir string, kind SampleKind,
	step int) (samples []Sample, damaged int, err error) {
	path := filepath.Join(dir, samplesDir, kind.file(step))
	info, err := fsys.Stat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		err = errors.New("not a regular file")
	case err == nil && info.Size() > maxSamples:
		err = fmt.Errorf("larger than %d MiB: choose a smaller trainer.save_samples",
			maxSamples>>20)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("report: %s: %w", path, err)
	}
	err = eachLine(fsys, path, func(line []byte, _ int64) error {
		var s Sample
		if json.Unmarshal(line, &s) != nil {
			damaged++
			return nil
		}
		samples = append(samples, s)
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("report: %s: %w", path, err)
	}
	return samples, damaged, nil
}

// SampleSteps returns, in order, the steps with samples of a kind in the run folder dir.
func SampleSteps(fsys vfs.FS, dir string, kind SampleKind) (steps []int, err error) {
	list, err := fsys.ReadDir(filepath.Join(dir, samplesDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	for _, e := range list {
		if m := sampleName.FindStringSubmatch(e.Name()); m != nil {
			if step, err := strconv.Atoi(m[2]); err == nil && e.Name() == kind.file(step) {
				steps = append(steps, step)
			}
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// UnmarshalJSON parses the output of MarshalJSON.
func (s *Sample) UnmarshalJSON(b []byte) error {
	var raw struct {
		Row          *int        `json:"row"`
		Prompt       *string     `json:"prompt"`
		Student      *string     `json:"student"`
		Teacher      *string     `json:"teacher"`
		StudentScore looseNumber `json:"student_score"`
		TeacherScore looseNumber `json:"teacher_score"`
		Advantage    looseNumber `json:"advantage"`
		Turns        []Turn      `json:"turns"`
		Seams        []int       `json:"seams"`
		Notes        string      `json:"notes"`
		Tree         *TreePlace  `json:"tree"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	if raw.Row == nil || raw.Prompt == nil || raw.Student == nil || raw.Teacher == nil {
		return errors.New("report: not a sample")
	}
	*s = Sample{*raw.Row, *raw.Prompt, *raw.Student, *raw.Teacher, float64(raw.StudentScore),
		float64(raw.TeacherScore), float64(raw.Advantage), raw.Turns, raw.Seams, raw.Tree, raw.Notes}
	return nil
}

// looseNumber is a number, or one of the texts of appendFloat.
type looseNumber float64

func (n *looseNumber) UnmarshalJSON(b []byte) error {
	text := string(b)
	switch text {
	case `"NaN"`, `"+Inf"`, `"-Inf"`:
		text = text[1 : len(text)-1]
	default:
		if number(text) != len(text) {
			return fmt.Errorf("report: %s: expected a number", text)
		}
	}
	x, err := strconv.ParseFloat(text, 64)
	*n = looseNumber(x)
	return err
}
