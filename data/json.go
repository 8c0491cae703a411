package data

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"gad/data/input"
	"gad/data/layout"
	"io"
	"slices"
	"unicode/utf8"
)

const (
	maxJSONRow    = 64 << 20 // bytes of one row
	jsonBatchRows = 256      // rows that are read at once
	jsonBatchSize = 4 << 20  // bytes after which a batch ends early
	jsonSample    = 64       // rows from which the columns are known
)

// jsonSource reads JSON lines and JSON arrays of objects. It keeps the offsets of each batch of
// rows; rows are parsed on demand.
type jsonSource struct {
	file    input.Input
	name    string // the format
	n       int    // rows
	batches []jsonBatch
	columns []Column
	turns   map[string][]string // keys of turns in the sample, by column
	objects map[string][]string // keys of objects in the sample, by column
	lay     layout.Layout
}

// jsonBatch is a range of rows that are read at once.
type jsonBatch struct {
	first, n int
	at, end  int64
}

// add indexes the next row, the bytes at to end-1.
func (s *jsonSource) add(at, end int64) {
	if b := len(s.batches) - 1; b < 0 || s.batches[b].n >= jsonBatchRows ||
		at-s.batches[b].at >= jsonBatchSize {
		s.batches = append(s.batches, jsonBatch{first: s.n, at: at})
	}
	b := &s.batches[len(s.batches)-1]
	b.end, b.n = end, b.n+1
	s.n++
}

// openLines indexes a file with one JSON object a line; empty lines do not count. advance gets the
// bytes read.
func openLines(file input.Input, size int64, advance func(bytes int)) (layout.Source, error) {
	s := &jsonSource{file: file, name: "jsonl"}
	r := bufio.NewReaderSize(scan(file, 0, size, advance), int(min(size, 1<<20)))
	var pos, start int64
	blank := true
	for pos < size {
		piece, err := r.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull && err != io.EOF {
			return nil, err
		}
		if len(piece) == 0 {
			return nil, fmt.Errorf("file shrank while it was read: %w", ErrTruncated)
		}
		if pos == 0 && bytes.HasPrefix(piece, []byte("\ufeff")) {
			start = 3
			blank = len(bytes.TrimSpace(piece[3:])) == 0
		} else {
			blank = blank && len(bytes.TrimSpace(piece)) == 0
		}
		pos += int64(len(piece))
		if err := s.checkRow(pos - start); err != nil {
			return nil, err
		}
		if piece[len(piece)-1] == '\n' || pos == size {
			if !blank {
				s.add(start, pos)
			}
			start, blank = pos, true
		}
	}
	return s, s.index()
}

// openArray indexes a file with one JSON array of objects. advance gets the bytes read. A malformed
// file is ErrCorrupt or ErrTruncated.
func openArray(file input.Input, size int64, advance func(bytes int)) (layout.Source, error) {
	s := &jsonSource{file: file, name: "json"}
	skip := int64(0)
	var bom [3]byte
	if n, _ := file.ReadAt(bom[:], 0); n == 3 && string(bom[:]) == "\ufeff" {
		skip = 3
	}
	d := json.NewDecoder(scan(file, skip, size, advance))
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("%v: %w", err, ErrCorrupt)
	}
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, fmt.Errorf("row %d: %v: %w: repair the file", s.n, err, layout.JSONFault(err))
		}
		if err := s.checkRow(int64(len(raw))); err != nil {
			return nil, err
		}
		end := skip + d.InputOffset()
		s.add(end-int64(len(raw)), end)
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("after row %d: %v: %w: repair the file", s.n, err, layout.JSONFault(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("after row %d: text after the array: %w: repair the file", s.n,
			ErrCorrupt)
	}
	return s, s.index()
}

// checkRow returns an error for a row of more than maxJSONRow bytes.
func (s *jsonSource) checkRow(n int64) error {
	if n > maxJSONRow {
		return fmt.Errorf("row %d: longer than %d MiB: write one JSON object per line", s.n,
			maxJSONRow>>20)
	}
	return nil
}

// index reads the sample and sets the columns.
func (s *jsonSource) index() error {
	var batch *jsonRows
	next := 0
	for i := range min(s.n, jsonSample) {
		if batch == nil || i == batch.first+len(batch.list) {
			loaded, err := s.Load(next)
			if err != nil {
				return err
			}
			batch, next = loaded.(*jsonRows), next+1
		}
		err := layout.EachKey(batch.list[i-batch.first], func(key string, value json.RawMessage) error {
			if !slices.ContainsFunc(s.columns, func(c Column) bool { return c.Name == key }) &&
				string(value) != "null" {
				s.columns = append(s.columns, Column{Name: key, Type: jsonType(value)})
			}
			switch value[0] {
			case '[':
				s.noteTurn(key, value)
			case '{':
				s.noteKeys(key, value)
			}
			return nil
		})
		switch {
		case err == nil || i > 0:
		case errors.Is(err, ErrTruncated) && s.n > 1:
			return input.NewTruncated("row 0: the object does not end on its line: write one object per line (jq -c . OLD > NEW)")
		default:
			return fmt.Errorf("row 0: %w: expected one JSON object per line", err)
		}
	}
	return nil
}

// noteTurn adds the keys of a list's objects to the column's keys of turns.
func (s *jsonSource) noteTurn(column string, value json.RawMessage) {
	var list []json.RawMessage
	if json.Unmarshal(value, &list) != nil || len(list) == 0 || list[0][0] != '{' {
		return
	}
	if s.turns == nil {
		s.turns = map[string][]string{}
	}
	for _, turn := range list {
		if turn[0] != '{' {
			return
		}
		// a fault is told with its row
		_ = layout.EachKey(turn, func(key string, value json.RawMessage) error {
			if !slices.Contains(s.turns[column], key) && string(value) != "null" {
				s.turns[column] = append(s.turns[column], key)
			}
			return nil
		})
	}
}

// noteKeys adds the keys of an object to the column's.
func (s *jsonSource) noteKeys(column string, value json.RawMessage) {
	if s.objects == nil {
		s.objects = map[string][]string{}
	}
	// a fault is told with its row
	_ = layout.EachKey(value, func(key string, value json.RawMessage) error {
		if !slices.Contains(s.objects[column], key) && string(value) != "null" &&
			len(s.objects[column]) < maxKeys {
			s.objects[column] = append(s.objects[column], key)
		}
		return nil
	})
}

// maxKeys bounds the keys of a column's objects.
const maxKeys = 100

func (s *jsonSource) Keys(column string) []string { return s.objects[column] }

func (s *jsonSource) TurnKeys(column string) []string { return s.turns[column] }

func (s *jsonSource) Bind(l layout.Layout) (string, error) {
	s.lay = l
	return "", nil
}

// jsonType returns the name of a JSON value's type.
func jsonType(value json.RawMessage) string {
	switch value[0] {
	case '{':
		return "object"
	case '[':
		return "list"
	case '"':
		return "string"
	case 't', 'f':
		return "bool"
	}
	return "number"
}

func (s *jsonSource) Format() string   { return s.name }
func (s *jsonSource) Schema() []Column { return s.columns }
func (s *jsonSource) Close() error     { return s.file.Close() }

func (s *jsonSource) BatchRows() []int {
	n := make([]int, len(s.batches))
	for b := range n {
		n[b] = s.batches[b].n
	}
	return n
}

// read returns n bytes of the file.
func (s *jsonSource) read(at, n int64) ([]byte, error) {
	buf := make([]byte, n)
	if _, err := s.file.ReadAt(buf, at); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("file shrank since it was opened: %w", ErrTruncated)
		}
		return nil, err
	}
	return buf, nil
}

func (s *jsonSource) Load(b int) (layout.Rows, error) {
	at := s.batches[b]
	buf, err := s.read(at.at, at.end-at.at)
	if err != nil {
		return nil, err
	}
	r := &jsonRows{src: s, first: at.first, bytes: int64(len(buf)),
		list: make([]json.RawMessage, 0, at.n)}
	if s.name == "json" {
		array, ok := slices.Concat([]byte("["), buf, []byte("]")), false
		if r.list, ok = layout.ScanList(r.list, array); !ok {
			err = json.Unmarshal(array, &r.list)
		}
	} else {
		for line := range bytes.Lines(buf) {
			if len(bytes.TrimSpace(line)) > 0 {
				r.list = append(r.list, line)
			}
		}
	}
	if err != nil || len(r.list) != at.n {
		return nil, input.NewCorrupt("%d rows, not %d, from row %d on: file changed since it was opened",
			len(r.list), at.n, at.first)
	}
	return r, nil
}

// jsonRows is the text of some rows.
type jsonRows struct {
	src   *jsonSource
	first int
	list  []json.RawMessage
	bytes int64
}

func (r *jsonRows) Size() int64 { return r.bytes }

func (r *jsonRows) At(i int) (layout.Raw, error) {
	line := r.list[i]
	var raw layout.Raw
	cols := r.src.lay
	if !utf8.Valid(line) {
		return raw, layout.NewFault(cols.Content, "", "not valid UTF-8", "re-encode the text")
	}
	if cols.Chosen != nil {
		raw.Chosen = make([]layout.Cell, len(cols.Chosen))
	}
	err := layout.EachKey(line, func(key string, value json.RawMessage) error {
		if string(value) == "null" {
			return nil
		}
		if at := slices.Index(cols.Chosen, key); at >= 0 {
			raw.Chosen[at] = layout.JSONCell(value)
		}
		if err := cols.NestedIn(&raw, key, value); err != nil {
			return err
		}
		return cols.Column(&raw, key, value)
	})
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTruncated) {
		err = fmt.Errorf("%w: correct or remove the row", err)
	}
	return raw, err
}
