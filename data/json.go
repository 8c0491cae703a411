package data

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxJSONRow    = 64 << 20 // bytes of one row
	jsonBatchRows = 256      // rows that are read in one piece
	jsonBatchSize = 4 << 20  // bytes after which a piece ends early
	jsonSample    = 64       // rows that tell which columns there are
)

// jsonSource reads JSON lines and JSON arrays of objects. It keeps where each
// batch of rows stands; rows are parsed when asked for.
type jsonSource struct {
	file    *os.File
	name    string // the format's
	n       int    // rows
	batches []jsonBatch
	columns []Column
	turns   map[string][]string // keys of turns in the sample, by column
	lay     layout
}

// jsonBatch is rows that are read in one piece.
type jsonBatch struct {
	first, n int
	at, end  int64
}

// add notes the next row, which stands from at to end.
func (s *jsonSource) add(at, end int64) {
	if b := len(s.batches) - 1; b < 0 || s.batches[b].n >= jsonBatchRows || at-s.batches[b].at >= jsonBatchSize {
		s.batches = append(s.batches, jsonBatch{first: s.n, at: at})
	}
	b := &s.batches[len(s.batches)-1]
	b.end, b.n = end, b.n+1
	s.n++
}

// openLines indexes a file with one JSON object a line. Empty lines do not
// count.
func openLines(file *os.File, size int64, advance func(bytes int)) (source, error) {
	s := &jsonSource{file: file, name: "jsonl"}
	r := bufio.NewReaderSize(scan(file, 0, size, advance), 1<<20)
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

// openArray indexes a file with one JSON array of objects.
func openArray(file *os.File, size int64, advance func(bytes int)) (source, error) {
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
			return nil, fmt.Errorf("row %d: %v: %w: repair the file", s.n, err, jsonFault(err))
		}
		if err := s.checkRow(int64(len(raw))); err != nil {
			return nil, err
		}
		end := skip + d.InputOffset()
		s.add(end-int64(len(raw)), end)
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("after row %d: %v: %w: repair the file", s.n, err, jsonFault(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("after row %d: text after the array: %w: repair the file", s.n, ErrCorrupt)
	}
	return s, s.index()
}

// jsonFault tells a text that ends too early from one that is wrong.
func jsonFault(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return ErrTruncated
	}
	return ErrCorrupt
}

func (s *jsonSource) checkRow(n int64) error {
	if n > maxJSONRow {
		return fmt.Errorf("row %d: longer than %d MiB: write one JSON object per line", s.n, maxJSONRow>>20)
	}
	return nil
}

// index finds the columns.
func (s *jsonSource) index() error {
	var batch *jsonRows
	next := 0
	for i := range min(s.n, jsonSample) {
		if batch == nil || i == batch.first+len(batch.list) {
			loaded, err := s.load(next)
			if err != nil {
				return err
			}
			batch, next = loaded.(*jsonRows), next+1
		}
		err := eachKey(batch.list[i-batch.first], func(key string, value json.RawMessage) error {
			if !slices.ContainsFunc(s.columns, func(c Column) bool { return c.Name == key }) && string(value) != "null" {
				s.columns = append(s.columns, Column{Name: key, Type: jsonType(value)})
			}
			if value[0] == '[' {
				s.noteTurn(key, value)
			}
			return nil
		})
		switch {
		case err == nil || i > 0:
		case errors.Is(err, ErrTruncated) && s.n > 1:
			return truncated("row 0: the object does not end on its line: write one object per line (jq -c . OLD > NEW)")
		default:
			return fmt.Errorf("row 0: %w: expected one JSON object per line", err)
		}
	}
	return nil
}

// noteTurn adds the keys of a list's first element, if that is an object, to
// those of the column's turns.
func (s *jsonSource) noteTurn(column string, value json.RawMessage) {
	var list []json.RawMessage
	if json.Unmarshal(value, &list) != nil || len(list) == 0 || list[0][0] != '{' {
		return
	}
	if s.turns == nil {
		s.turns = map[string][]string{}
	}
	_ = eachKey(list[0], func(key string, _ json.RawMessage) error { // a fault is told with its row
		if !slices.Contains(s.turns[column], key) {
			s.turns[column] = append(s.turns[column], key)
		}
		return nil
	})
}

func (s *jsonSource) turnKeys(column string) []string { return s.turns[column] }

func (s *jsonSource) bind(l layout) (string, error) {
	s.lay = l
	return "", nil
}

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

func (s *jsonSource) format() string   { return s.name }
func (s *jsonSource) schema() []Column { return s.columns }
func (s *jsonSource) close() error     { return s.file.Close() }

func (s *jsonSource) batchRows() []int {
	n := make([]int, len(s.batches))
	for b := range n {
		n[b] = s.batches[b].n
	}
	return n
}

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

func (s *jsonSource) load(b int) (rows, error) {
	at := s.batches[b]
	buf, err := s.read(at.at, at.end-at.at)
	if err != nil {
		return nil, err
	}
	r := &jsonRows{src: s, first: at.first, bytes: int64(len(buf)), list: make([]json.RawMessage, 0, at.n)}
	if s.name == "json" {
		array, ok := slices.Concat([]byte("["), buf, []byte("]")), false
		if r.list, ok = scanList(r.list, array); !ok {
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
		return nil, damaged("%d rows, not %d, from row %d on: file changed since it was opened", len(r.list), at.n, at.first)
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

func (r *jsonRows) size() int64 { return r.bytes }

func (r *jsonRows) at(i int) (rawRow, error) {
	line := r.list[i]
	var raw rawRow
	cols := r.src.lay
	if !utf8.Valid(line) {
		return raw, &rowFault{cols.Content, "", "not valid UTF-8", "re-encode the text"}
	}
	err := eachKey(line, func(key string, value json.RawMessage) (err error) {
		if string(value) == "null" {
			return nil
		}
		switch key {
		case "":
		case cols.Content:
			raw.turns, err = cols.jsonTurns(key, value)
			raw.turnsOK = err == nil
		case cols.Teacher:
			if cols.format == FormatPromptCompletion && value[0] == '[' {
				raw.answer, err = cols.jsonTurns(key, value)
				raw.answerOK = err == nil
				break
			}
			raw.teacher, err = jsonText(key, value)
		case cols.input:
			raw.input, err = jsonText(key, value)
		case cols.system:
			raw.system, err = jsonText(key, value)
		case cols.Response:
			raw.response, err = jsonText(key, value)
		case cols.ID:
			raw.id, err = jsonText(key, value)
			if value[0] != '"' {
				raw.id, err = text{string(value), true}, nil
			}
		case cols.Finish:
			if value[0] == '"' { // of another type it means something else
				raw.finish, err = jsonText(key, value)
			}
		case cols.PromptIDs:
			raw.promptIDs, err = jsonIDs(key, value)
		case cols.ResponseIDs:
			raw.responseIDs, err = jsonIDs(key, value)
		}
		return err
	})
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTruncated) {
		err = fmt.Errorf("%w: correct or remove the row", err)
	}
	return raw, err
}

// eachKey calls f for every key of a JSON object, with the key exactly as it
// is written (encoding/json would match other cases of a struct's field too),
// and refuses keys that stand twice.
func eachKey(object []byte, f func(key string, value json.RawMessage) error) error {
	var room [16]jsonField
	if fields, ok := scanObject(room[:0], object); ok {
		for _, field := range fields {
			if err := f(field.key, field.value); err != nil {
				return err
			}
		}
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil {
		return fmt.Errorf("%v: %w", err, jsonFault(err))
	} else if t != json.Delim('{') {
		return fmt.Errorf("%s: not a JSON object: %w", preview(string(bytes.TrimSpace(object)), 20), ErrCorrupt)
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return fmt.Errorf("%v: %w", err, jsonFault(err))
		}
		key, ok := t.(string)
		if !ok {
			return fmt.Errorf("key %v: not a string: %w", t, ErrCorrupt)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("key %q: %v: %w", key, err, jsonFault(err))
		}
		if seen[key] {
			return fmt.Errorf("key %q: appears twice: %w", key, ErrCorrupt)
		}
		seen[key] = true
		if err := f(key, value); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("%v: %w", err, jsonFault(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("text after the object: %w", ErrCorrupt)
	}
	return nil
}

func jsonText(column string, value json.RawMessage) (text, error) {
	var s string
	if value[0] != '"' {
		return text{}, &rowFault{column, preview(string(value), 20), "not a string", "write it as text"}
	}
	if utf8.Valid(value) && skipString(value, 0) == len(value) {
		return text{unquote(value), true}, nil
	}
	if err := json.Unmarshal(value, &s); err != nil {
		return text{}, &rowFault{column, "", err.Error(), ""}
	}
	return text{s, true}, nil
}

// jsonTurns reads a conversation: a list of objects with role and content, or
// one string.
func (l layout) jsonTurns(column string, value json.RawMessage) ([]Message, error) {
	if value[0] == '"' {
		s, err := jsonText(column, value)
		return l.stringTurns(s.s), err
	}
	var list []json.RawMessage
	if value[0] != '[' {
		return nil, &rowFault{column, preview(string(value), 20), "neither a list of turns nor a string", fmt.Sprintf(`write [{"%s": ..., "%s": ...}]`, l.role, l.text)}
	}
	var room [8]json.RawMessage
	if scanned, ok := scanList(room[:0], value); ok {
		list = scanned
	} else if err := json.Unmarshal(value, &list); err != nil {
		return nil, &rowFault{column, "", err.Error(), ""}
	}
	turns := make([]Message, len(list))
	for i, turn := range list {
		var role, content text
		err := eachKey(turn, func(key string, value json.RawMessage) (err error) {
			switch {
			case string(value) == "null":
			case key == l.role:
				role, err = jsonText(key, value)
			case key == l.text:
				content, err = jsonText(key, value)
			}
			return err
		})
		if err != nil {
			return nil, &rowFault{column, "turn " + strconv.Itoa(i), err.Error(), ""}
		}
		if turns[i], err = l.makeTurn(column, i, role, content); err != nil {
			return nil, err
		}
	}
	return turns, nil
}

// makeTurn builds turn i and refuses one without role or content.
func (l layout) makeTurn(column string, i int, role, content text) (Message, error) {
	switch {
	case !role.ok:
		return Message{}, &rowFault{column, "turn " + strconv.Itoa(i), "has no " + l.role, "each turn needs " + l.role + " and " + l.text}
	case !content.ok:
		return Message{}, &rowFault{column, "turn " + strconv.Itoa(i), "has no " + l.text, "each turn needs " + l.role + " and " + l.text}
	}
	return Message{Role: role.s, Content: content.s}, nil
}

// stringTurns makes turns of a conversation that is stored as one string: a
// JSON list of turns, if it is one, and otherwise what the user said.
func (l layout) stringTurns(s string) []Message {
	if t := strings.TrimSpace(s); strings.HasPrefix(t, "[") && json.Valid([]byte(t)) {
		if turns, err := l.jsonTurns("", json.RawMessage(t)); err == nil && len(turns) > 0 {
			return turns
		}
	}
	return []Message{{Role: "user", Content: s}}
}

func jsonIDs(column string, value json.RawMessage) ([]int32, error) {
	ids := []int32{}
	if err := json.Unmarshal(value, &ids); err != nil {
		return nil, &rowFault{column, preview(string(value), 20), "not a list of token ids", "write integers from 0 to 2^31-1"}
	}
	return ids, checkIDs(column, ids)
}

// checkIDs refuses what cannot be a token.
func checkIDs(column string, ids []int32) error {
	for i, id := range ids {
		if id < 0 {
			return &rowFault{column, fmt.Sprintf("element %d is %d", i, id), "not a token id", "write integers from 0 to 2^31-1"}
		}
	}
	return nil
}
