package data

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"gad/data/input"
	"gad/data/layout"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// csvSource reads CSV, or TSV: a header with the columns' names, then rows of text. It keeps the
// offset of each batch of rows; rows are parsed on demand.
type csvSource struct {
	file   input.Input
	comma  rune
	names  []string
	at     []int64 // offset of each batch, and the end of the last
	counts []int
	lay    layout.Layout
}

// isCSV reports whether a file's name has a suffix of CSV, which has no first bytes to tell it by.
func isCSV(name string) bool {
	return slices.Contains([]string{".csv", ".tsv"}, strings.ToLower(filepath.Ext(name)))
}

// lineFeed counts the bytes that are read between rows, to bound one row.
type lineFeed struct {
	r     io.Reader
	since int64 // bytes since the last row ended
}

// Read fails once a row has more than maxJSONRow bytes.
func (l *lineFeed) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.since += int64(n); l.since > maxJSONRow+int64(len(p)) {
		return 0, fmt.Errorf("row longer than %d MiB: is a quote missing?", maxJSONRow>>20)
	}
	return n, err
}

// openCSV indexes a CSV file.
func openCSV(file input.Input, size int64, advance func(bytes int)) (layout.Source, error) {
	s := &csvSource{file: file, comma: ','}
	head := make([]byte, min(size, 1<<16))
	if _, err := file.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	skip := int64(0)
	if bytes.HasPrefix(head, []byte("\ufeff")) {
		skip = 3
	}
	line, _, _ := bytes.Cut(head, []byte("\n"))
	for _, c := range "\t;" { // the commonest in the header, else a comma
		if bytes.Count(line, []byte(string(c))) > bytes.Count(line, []byte(string(s.comma))) {
			s.comma = c
		}
	}
	feed := &lineFeed{r: scan(file, skip, size, advance)}
	r := s.reader(feed)
	names, err := r.Read()
	if err != nil {
		return nil, csvFault(err)
	}
	s.names = slices.Clone(names)
	s.at = []int64{skip + r.InputOffset()}
	for {
		feed.since = 0
		_, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, csvFault(err)
		}
		last := len(s.at) - 1
		if len(s.counts) == last {
			s.counts = append(s.counts, 0)
		}
		if s.counts[last]++; s.counts[last] >= jsonBatchRows ||
			skip+r.InputOffset()-s.at[last] >= jsonBatchSize {
			s.at = append(s.at, skip+r.InputOffset())
		}
	}
	if len(s.at) == len(s.counts) {
		s.at = append(s.at, size)
	}
	return s, nil
}

// reader returns a CSV reader that keeps carriage returns inside quotes.
func (s *csvSource) reader(r io.Reader) *csv.Reader {
	c := csv.NewReader(&returns{r: r})
	c.Comma, c.ReuseRecord, c.FieldsPerRecord = s.comma, true, len(s.names)
	return c
}

// returns hides carriage returns inside quotes from encoding/csv, which drops those before a line
// feed. It replaces them by keptReturn, a byte of no UTF-8 text; restoreReturns puts them back.
type returns struct {
	r      io.Reader
	quoted bool
}

const (
	keptReturn = '\xff'
	otherByte  = '\xfe' // not UTF-8 either, for a keptReturn of the file
)

// Read replaces carriage returns inside quotes by keptReturn.
func (c *returns) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	for i, b := range p[:n] {
		switch {
		case b == '"':
			c.quoted = !c.quoted
		case b == '\r' && c.quoted:
			p[i] = keptReturn
		case b == keptReturn:
			p[i] = otherByte
		}
	}
	return n, err
}

// restoreReturns returns a field as the file has it.
func restoreReturns(field string) string {
	if strings.IndexByte(field, keptReturn) < 0 {
		return strings.Clone(field)
	}
	b := []byte(field)
	for i := range b {
		if b[i] == keptReturn {
			b[i] = '\r'
		}
	}
	return string(b)
}

// csvFault returns err as an ErrCorrupt with its line and the way out, if it is an error of the
// format.
func csvFault(err error) error {
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		return input.NewCorrupt("line %d: %v: quote texts as RFC 4180 says, or write JSON lines",
			parse.StartLine, parse.Err)
	}
	return err
}

func (s *csvSource) Format() string           { return "csv" }
func (s *csvSource) Close() error             { return s.file.Close() }
func (s *csvSource) BatchRows() []int         { return s.counts }
func (s *csvSource) TurnKeys(string) []string { return nil }
func (s *csvSource) Keys(string) []string     { return nil }

func (s *csvSource) Schema() []Column {
	out := make([]Column, len(s.names))
	for i, name := range s.names {
		out[i] = Column{Name: name, Type: "string"}
	}
	return out
}

func (s *csvSource) Bind(l layout.Layout) (string, error) {
	if l.Content == "" {
		return "", fmt.Errorf("column %q: token ids are not read from CSV: write JSON lines",
			l.PromptIDs)
	}
	l.PromptIDs, l.ResponseIDs = "", ""
	s.lay = l
	return "", nil
}

func (s *csvSource) Load(b int) (layout.Rows, error) {
	buf := make([]byte, s.at[b+1]-s.at[b])
	if _, err := s.file.ReadAt(buf, s.at[b]); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("file shrank since it was opened: %w", ErrTruncated)
		}
		return nil, err
	}
	r := s.reader(bytes.NewReader(buf))
	r.ReuseRecord = false
	records, err := r.ReadAll()
	if err != nil {
		return nil, csvFault(err)
	}
	if len(records) != s.counts[b] {
		return nil, fmt.Errorf("%d rows, not %d: file changed since it was opened: %w",
			len(records), s.counts[b], ErrCorrupt)
	}
	return &csvRows{s, records, int64(len(buf)) + 16*int64(len(records)*len(s.names))}, nil
}

type csvRows struct {
	src     *csvSource
	records [][]string
	bytes   int64
}

func (r *csvRows) Size() int64 { return r.bytes }

func (r *csvRows) At(i int) (raw layout.Raw, err error) {
	l := r.src.lay
	if l.Chosen != nil {
		raw.Chosen = make([]layout.Cell, len(l.Chosen))
	}
	for k, name := range r.src.names {
		s := restoreReturns(r.records[i][k])
		if at := slices.Index(l.Chosen, name); at >= 0 {
			raw.Chosen[at] = layout.CSVCell(s)
		}
		if l.Leads(name) && strings.TrimSpace(s) != "" {
			if err := l.NestedIn(&raw, name, layout.QuotedText(s)); err != nil {
				return raw, err
			}
		}
		switch name {
		case "":
		case l.Content:
			c, err := l.StringTurns(name, s)
			if err != nil {
				return raw, err
			}
			raw.Take(c, true)
		case l.Teacher:
			raw.Teacher = layout.TextOf(s)
		case l.Response:
			raw.Response = layout.TextOf(s)
		case l.ID:
			raw.ID = layout.TextOf(s)
		case l.Finish:
			raw.Finish = layout.TextOf(s)
		case l.Input:
			raw.Input = layout.TextOf(s)
		case l.System:
			raw.System = layout.TextOf(s)
		case l.Thought:
			raw.Thought = layout.TextOf(s)
		case l.Tools:
			if raw.Tools, err = layout.ListOf(name, layout.TextOf(s)); err != nil {
				return raw, err
			}
		case l.Env:
			if raw.Env, err = layout.EnvOf(name, layout.TextOf(s)); err != nil {
				return raw, err
			}
		case l.TeacherPrompt:
			if strings.TrimSpace(s) == "" {
				break
			}
			if err := l.Column(&raw, name, layout.QuotedText(s)); err != nil {
				return raw, err
			}
		case l.Logprobs:
			if raw.Logprobs, err = layout.LogprobsOf(name, layout.TextOf(s)); err != nil {
				return raw, err
			}
		default:
			if slices.Contains(l.Watched, name) && strings.TrimSpace(s) != "" {
				raw.Unread = append(raw.Unread, name)
			}
		}
	}
	return raw, nil
}
