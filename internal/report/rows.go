package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"sort"
	"strconv"
	"time"

	"gad/internal/vfs"
)

// maxLine bounds a line of metrics.jsonl; one with every declared metric is some 3 kB.
const maxLine = 1 << 20

// lineBuffer is the size of the buffer through which a file of lines is read.
const lineBuffer = 32 << 10

// Row is one line of metrics.jsonl.
type Row struct {
	Step   int
	Values map[string]float64
	Time   time.Time // time of the record, to the millisecond, UTC; zero = not recorded
}

// appendRow appends a row as one JSON object and a newline: the step, the names in alphabetical
// order, the timings in alphabetical order, the time.
func appendRow(b []byte, r Row) []byte {
	names := make([]string, 0, len(r.Values))
	for n := range r.Values {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool {
		if ti, tj := Timing(names[i]), Timing(names[j]); ti != tj {
			return tj
		}
		return names[i] < names[j]
	})
	b = strconv.AppendInt(append(b, `{"step":`...), int64(r.Step), 10)
	for _, n := range names {
		b = strconv.AppendQuote(append(b, ','), n) // declared names are plain ASCII
		b = appendFloat(append(b, ':'), r.Values[n])
	}
	if !r.Time.IsZero() {
		b = r.Time.AppendFormat(append(b, `,"time":"`...), rowTime)
		b = append(b, '"')
	}
	return append(b, "}\n"...)
}

// rowTime is the layout of a record's time: RFC 3339 in UTC.
const rowTime = "2006-01-02T15:04:05.000Z"

// appendFloat appends the shortest decimal that parses back as x, laid out as encoding/json does.
// Values that JSON has no number for become strings: "NaN", "+Inf", "-Inf".
func appendFloat(b []byte, x float64) []byte {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return strconv.AppendQuote(b, strconv.FormatFloat(x, 'g', -1, 64))
	}
	if a := math.Abs(x); a != 0 && (a < 1e-6 || a >= 1e21) {
		return strconv.AppendFloat(b, x, 'e', -1, 64)
	}
	return strconv.AppendFloat(b, x, 'f', -1, 64)
}

// parseRow parses one line strictly: one object, a positive step, numbers or the three strings of
// appendFloat, no key twice. Names are not checked, so that files of other versions can be read.
func parseRow(line []byte) (Row, error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return Row{}, errors.New("not a JSON object")
	}
	r := Row{Values: map[string]float64{}}
	for dec.More() {
		k, err := dec.Token()
		if err != nil {
			return Row{}, err
		}
		key := k.(string) // the decoder admits no other key
		v, err := dec.Token()
		if err != nil {
			return Row{}, err
		}
		if key == "step" {
			n, ok := v.(json.Number)
			step, err := strconv.Atoi(string(n))
			if !ok || err != nil || step < 1 || r.Step != 0 {
				return Row{}, errors.New(`"step": expected one positive integer`)
			}
			r.Step = step
			continue
		}
		if key == "time" {
			text, _ := v.(string)
			at, err := time.Parse(rowTime, text)
			if err != nil || !r.Time.IsZero() {
				return Row{}, errors.New(`"time": expected one time, such as "` + rowTime + `"`)
			}
			r.Time = at
			continue
		}
		if _, twice := r.Values[key]; twice {
			return Row{}, fmt.Errorf("%q: appears twice", key)
		}
		switch v := v.(type) {
		case json.Number:
			if r.Values[key], err = strconv.ParseFloat(string(v), 64); err != nil {
				return Row{}, fmt.Errorf("%q: %s: not a float64", key, v)
			}
		case string:
			if v != "NaN" && v != "+Inf" && v != "-Inf" {
				return Row{}, fmt.Errorf("%q: expected a number", key)
			}
			r.Values[key], _ = strconv.ParseFloat(v, 64)
		default:
			return Row{}, fmt.Errorf("%q: expected a number", key)
		}
	}
	if _, err := dec.Token(); err != nil {
		return Row{}, errors.New("not a whole JSON object")
	}
	if _, err := dec.Token(); err != io.EOF {
		return Row{}, errors.New("more than one JSON object")
	}
	if r.Step == 0 {
		return Row{}, errors.New(`no "step"`)
	}
	return r, nil
}

// eachLine calls f with every complete line of a file, without its newline, and the offset of the
// next one; line is nil for one longer than maxLine. A last line without a newline, cut by a crash,
// is left out.
func eachLine(fsys vfs.FS, path string, f func(line []byte, end int64) error) (err error) {
	file, err := vfs.OpenRegular(fsys, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return linesFrom(file, 0, f)
}

// linesFrom calls f as eachLine does for the rest of an open file, whose offset is end. It joins
// the pieces of a line that is longer than its buffer: most lines are short, and most files are
// read for a few of them.
func linesFrom(file io.Reader, end int64, f func(line []byte, end int64) error) error {
	r := bufio.NewReaderSize(file, lineBuffer)
	var joined []byte // pieces of the present line
	long := false
	for {
		line, err := r.ReadSlice('\n')
		end += int64(len(line))
		if long = long || len(joined)+len(line) > maxLine; long {
			joined = nil
		} else if err == bufio.ErrBufferFull || len(joined) > 0 {
			joined = append(joined, line...)
			line = joined
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		line = line[:len(line)-1]
		if long {
			line = nil
		}
		if err := f(line, end); err != nil {
			return err
		}
		joined, long = joined[:0], false
	}
}

// ReadMetrics reads metrics.jsonl of the run folder dir. A cut last line is left out; any other
// line that is not a record, and steps that do not increase, are errors. A missing file is
// fs.ErrNotExist.
func ReadMetrics(fsys vfs.FS, dir string) ([]Row, error) {
	path := filepath.Join(dir, metricsName)
	var rows []Row
	n, last := 0, 0
	err := eachLine(fsys, path, func(line []byte, _ int64) error {
		n++
		r, err := parseRow(line)
		if err == nil && r.Step <= last {
			err = fmt.Errorf("step %d after step %d", r.Step, last)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		last = r.Step
		rows = append(rows, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("report: %s: %w", path, err)
	}
	return rows, nil
}

// StripTimings returns the bytes of a metrics.jsonl without the metrics for which Timing is true
// and without the times of day. The results of two runs that compute the same are equal byte for
// byte.
func StripTimings(b []byte) ([]byte, error) {
	var out []byte
	for i, line := range bytes.SplitAfter(b, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		r, err := parseRow(line)
		if err != nil {
			return nil, fmt.Errorf("report: line %d: %w", i+1, err)
		}
		for n := range r.Values {
			if Timing(n) {
				delete(r.Values, n)
			}
		}
		r.Time = time.Time{}
		out = appendRow(out, r)
	}
	return out, nil
}

// cutMetrics removes the lines of steps after last from the end of a metrics file, and a cut or
// garbled end with them. It returns the rows that stay. Steps increase, so that the rest is a
// prefix. Damage before a line that must stay is an error: removing it would lose records.
func cutMetrics(fsys vfs.FS, path string, last int) (rows []Row, err error) {
	var keep int64
	n, step, over := 0, 0, ""
	err = eachLine(fsys, path, func(line []byte, end int64) error {
		n++
		r, err := parseRow(line)
		switch {
		case err != nil:
			if over == "" {
				over = fmt.Sprintf("line %d: %v", n, err)
			}
			return nil
		case r.Step > last:
			if over == "" {
				over = fmt.Sprintf("line %d: step %d", n, r.Step)
			}
			return nil
		case over != "":
			return fmt.Errorf(
				"%s: step %d follows: move the file away to continue without its records", over,
				r.Step)
		case r.Step <= step:
			return fmt.Errorf("line %d: step %d after step %d: move the file away to continue without its records", n, r.Step, step)
		}
		step, keep = r.Step, end
		rows = append(rows, r)
		return nil
	})
	if err == nil {
		err = cutTo(fsys, path, keep)
	}
	return rows, ignoreMissing(err)
}

// cutTorn removes a last line without a newline from a file of lines.
func cutTorn(fsys vfs.FS, path string) error {
	var keep int64
	err := eachLine(fsys, path, func(_ []byte, end int64) error { keep = end; return nil })
	if err == nil {
		err = cutTo(fsys, path, keep)
	}
	return ignoreMissing(err)
}

// ignoreMissing returns err, or nil if it is fs.ErrNotExist.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// cutTo replaces the file at path by its first keep bytes: after a crash it holds the old bytes or
// the new ones. It copies, because a truncated file whose length reached the disk without its bytes
// would be neither.
func cutTo(fsys vfs.FS, path string, keep int64) (err error) {
	if err := ignoreMissing(fsys.Remove(vfs.TempName(path))); err != nil { // left by a crash
		return err
	}
	src, err := vfs.OpenRegular(fsys, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	if st, err := src.Stat(); err != nil || st.Size() == keep {
		return err
	}
	tmp := vfs.TempName(path)
	dst, err := fsys.Create(tmp)
	if err != nil {
		return err
	}
	n, err := io.Copy(dst, io.LimitReader(src, keep))
	if err == nil && n != keep {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = dst.Sync()
	}
	if err = errors.Join(err, dst.Close()); err != nil {
		_ = fsys.Remove(tmp) // the error above is the one to report
		return err
	}
	if err := fsys.Rename(tmp, path); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(path))
}
