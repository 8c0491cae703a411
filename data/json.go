package data

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	file    input
	name    string // the format's
	n       int    // rows
	batches []jsonBatch
	columns []Column
	turns   map[string][]string // keys of turns in the sample, by column
	objects map[string][]string // keys of objects in the sample, by column
	lay     layout
}

// jsonBatch is rows that are read in one piece.
type jsonBatch struct {
	first, n int
	at, end  int64
}

// add notes the next row, which stands from at to end.
func (s *jsonSource) add(at, end int64) {
	if b := len(s.batches) - 1; b < 0 || s.batches[b].n >= jsonBatchRows ||
		at-s.batches[b].at >= jsonBatchSize {
		s.batches = append(s.batches, jsonBatch{first: s.n, at: at})
	}
	b := &s.batches[len(s.batches)-1]
	b.end, b.n = end, b.n+1
	s.n++
}

// openLines indexes a file with one JSON object a line. Empty lines do not
// count.
func openLines(file input, size int64, advance func(bytes int)) (source, error) {
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
func openArray(file input, size int64, advance func(bytes int)) (source, error) {
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
		return nil, fmt.Errorf("after row %d: text after the array: %w: repair the file", s.n,
			ErrCorrupt)
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
		return fmt.Errorf("row %d: longer than %d MiB: write one JSON object per line", s.n,
			maxJSONRow>>20)
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
			return truncated("row 0: the object does not end on its line: write one object per line (jq -c . OLD > NEW)")
		default:
			return fmt.Errorf("row 0: %w: expected one JSON object per line", err)
		}
	}
	return nil
}

// noteTurn adds the keys of a list's objects to those of the column's turns.
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
		_ = eachKey(turn, func(key string, value json.RawMessage) error {
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
	_ = eachKey(value, func(key string, value json.RawMessage) error {
		if !slices.Contains(s.objects[column], key) && string(value) != "null" &&
			len(s.objects[column]) < mostKeys {
			s.objects[column] = append(s.objects[column], key)
		}
		return nil
	})
}

// mostKeys bounds the keys that are kept of a column's objects.
const mostKeys = 100

func (s *jsonSource) keys(column string) []string { return s.objects[column] }

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
	r := &jsonRows{src: s, first: at.first, bytes: int64(len(buf)),
		list: make([]json.RawMessage, 0, at.n)}
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
		return nil, damaged("%d rows, not %d, from row %d on: file changed since it was opened",
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

func (r *jsonRows) size() int64 { return r.bytes }

func (r *jsonRows) at(i int) (rawRow, error) {
	line := r.list[i]
	var raw rawRow
	cols := r.src.lay
	if !utf8.Valid(line) {
		return raw, &rowFault{cols.Content, "", "not valid UTF-8", "re-encode the text"}
	}
	if cols.chosen != nil {
		raw.chosen = make([]cell, len(cols.chosen))
	}
	err := eachKey(line, func(key string, value json.RawMessage) error {
		if string(value) == "null" {
			return nil
		}
		if at := slices.Index(cols.chosen, key); at >= 0 {
			raw.chosen[at] = jsonCell(value)
		}
		if err := cols.nestedIn(&raw, key, value); err != nil {
			return err
		}
		return cols.column(&raw, key, value)
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
	readable := withoutNaN(object)
	d := json.NewDecoder(bytes.NewReader(readable))
	if t, err := d.Token(); err != nil {
		return fmt.Errorf("%v: %w", err, jsonFault(err))
	} else if t != json.Delim('{') {
		return fmt.Errorf("%s: not a JSON object: %w", preview(string(bytes.TrimSpace(object)), 20),
			ErrCorrupt)
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
		if end := int(d.InputOffset()); !bytes.Equal(readable, object) {
			value = object[end-len(value) : end] // as it is written: NaN is no value of a column
		}
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

// withoutNaN is text with 0 in the place of NaN, Infinity and -Infinity, which Python writes and
// JSON has not, and as long as before: what stands in a column that is not read does no harm.
func withoutNaN(object []byte) []byte {
	if !bytes.Contains(object, []byte("NaN")) && !bytes.Contains(object, []byte("Infinity")) {
		return object
	}
	out, quoted := bytes.Clone(object), false
	for i := 0; i < len(out); i++ {
		switch c := out[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case bytes.HasPrefix(out[i:], []byte("NaN")):
			copy(out[i:], "0.0")
		case bytes.HasPrefix(out[i:], []byte("Infinity")):
			copy(out[i:], "0.000000")
		}
	}
	return out
}

func jsonText(column string, value json.RawMessage) (text, error) {
	var s string
	if s := string(value); s == "NaN" || s == "Infinity" || s == "-Infinity" {
		return text{}, &rowFault{column, s, "not JSON", "write null"}
	}
	if value[0] != '"' {
		return text{}, &rowFault{column, preview(string(value), 20), "not a string",
			"write it as text"}
	}
	if utf8.Valid(value) && skipString(value, 0) == len(value) {
		return text{unquote(value), true}, nil
	}
	if err := json.Unmarshal(value, &s); err != nil {
		return text{}, &rowFault{column, "", err.Error(), ""}
	}
	return text{s, true}, nil
}

// jsonBlank reports whether a value says nothing: null, a blank text, an empty list or object.
func jsonBlank(value json.RawMessage) bool {
	switch value[0] {
	case 'n':
		return true
	case '[', '{':
		return len(bytes.TrimSpace(value[1:len(value)-1])) == 0
	case '"':
		t, err := jsonText("", value)
		return err == nil && strings.TrimSpace(t.s) == ""
	}
	return false
}

// turnsIn reports whether a value is turns: a list of objects, or one.
func turnsIn(value []byte) bool {
	if value[0] == '[' {
		value = bytes.TrimLeft(value[1:], " \t\r\n")
	}
	return value[0] == '{'
}

// jsonTurns reads a conversation: a list of objects with role and content, or
// one string.
func (l layout) jsonTurns(column string, value json.RawMessage) (c conversation, err error) {
	if value[0] == '"' {
		s, err := jsonText(column, value)
		if err != nil {
			return c, err
		}
		return l.stringTurns(column, s.s)
	}
	var list []json.RawMessage
	if value[0] != '[' {
		return c, &rowFault{column, preview(string(value), 20), "neither a list of turns nor a string", fmt.Sprintf(`write [{"%s": ..., "%s": ...}]`, l.role, l.text)}
	}
	var room [8]json.RawMessage
	if scanned, ok := scanList(room[:0], value); ok {
		list = scanned
	} else if err := json.Unmarshal(value, &list); err != nil {
		return c, &rowFault{column, "", err.Error(), ""}
	}
	c.turns = make([]Message, 0, len(list))
	for i, turn := range list {
		if turn[0] != '{' {
			return c, &rowFault{column, "turn " + strconv.Itoa(i),
				preview(string(turn), 30) + " is no object with " + l.role + " and " + l.text,
				"rewrite such turns: see doc/data.md"}
		}
		var t rawTurn
		err := eachKey(turn, func(key string, value json.RawMessage) (err error) {
			switch {
			case string(value) == "null":
			case key == l.role:
				t.role, err = jsonText(key, value)
			case key == l.text && value[0] == '[':
				err = t.blocks(key, value)
			case key == l.text:
				t.content, err = jsonAnswer(key, value)
			case key == weightKey:
				w, fault := strconv.ParseFloat(string(value), 64)
				t.context = t.context || fault == nil && w == 0
			case key == trainKey:
				if t.context = t.context || string(value) == "false"; value[0] != 't' &&
					value[0] != 'f' {
					err = &rowFault{key, preview(string(value), 20), "neither true nor false", ""}
				}
			case key == "tool_calls":
				t.calls, err = readCalls(value)
			case key == "tool_call_id":
				t.id, err = jsonText(key, value)
			case key == "name":
				t.name, err = jsonText(key, value)
			case key == "reasoning_content":
				t.thought, err = jsonText(key, value)
			case slices.Contains(otherThoughts, key) && value[0] == '"':
				if !t.thought.ok { // the first that is there, as in transformers
					t.thought, err = jsonText(key, value)
				}
			case key == oldCallKey && !jsonBlank(value):
				t.refused = key
			case slices.Contains(maybeTurn, key) && !jsonBlank(value):
				t.unread = append(t.unread, key)
			}
			return err
		})
		if err != nil {
			return c, &rowFault{column, "turn " + strconv.Itoa(i), err.Error(), ""}
		}
		if err := c.add(l, column, t); err != nil {
			return c, err
		}
	}
	return c, nil
}

// textPart reports whether a part of a content is text.
func textPart(kind, t text) bool {
	return t.ok && slices.Contains([]string{"text", "input_text", "output_text", ""}, kind.s)
}

// rawTurn is a turn as the file has it.
type rawTurn struct {
	role, content text
	part          string // type of a part of the content that is no text; "" is none
	calls         JSON
	id, name      text
	thought       text
	// key under which the turn calls tools in a form that is not read; "" is none
	refused string
	before  []rawTurn // turns that its content holds and that come before it: results of tools
	context bool      // weight 0, or "train": false
	unread  []string  // watched keys that say something
}

// conversation is turns with what a Message does not carry.
type conversation struct {
	turns  []Message
	unread []string // watched keys of some turn, as COLUMN[].KEY
}

// add appends a turn and refuses one that cannot be used.
func (c *conversation) add(l layout, column string, t rawTurn) error {
	for _, b := range t.before {
		if err := c.add(l, column, b); err != nil {
			return err
		}
	}
	if len(t.before) > 0 && !t.content.ok && t.calls == "" && t.part == "" {
		return nil // results alone
	}
	turn := "turn " + strconv.Itoa(len(c.turns))
	needs := fmt.Sprintf("each turn needs %s and %s", l.role, l.text)
	switch {
	case !t.role.ok:
		return &rowFault{column, turn, "has no " + l.role, needs}
	case t.refused != "":
		return &rowFault{column, turn, "has " + t.refused + ", which gad does not read",
			"write tool_calls, or remove the row"}
	case t.part != "":
		return &rowFault{column, turn,
			fmt.Sprintf("its %s has a part of type %q, and only text is read", l.text, t.part),
			"remove the row"}
	case !t.content.ok && t.calls == "":
		return &rowFault{column, turn, "has no " + l.text, needs}
	}
	c.turns = append(c.turns,
		Message{Role: RoleOf(t.role.s), Content: t.content.s, Thinking: t.thought.s, ToolCalls: t.calls,
			ToolCallID: t.id.s, Name: t.name.s, Context: t.context})
	for _, key := range t.unread {
		if name := column + "[]." + key; !slices.Contains(c.unread, name) {
			c.unread = append(c.unread, name)
		}
	}
	return nil
}

// RoleOf is a role as gad writes it: lower case for the known ones in another case, and system for
// OpenAI's developer, as in training so in serving. Others stay as they are.
func RoleOf(role string) string {
	switch lower := strings.ToLower(role); lower {
	case "developer":
		return "system"
	case "system", "user", "assistant", "tool":
		return lower
	}
	return role
}

// take makes a conversation the row's prompt.
func (r *rawRow) take(c conversation, ok bool) {
	r.turns, r.turnsOK, r.unread = c.turns, ok, append(r.unread, c.unread...)
}

// takeAnswer makes turns the row's answer.
func (r *rawRow) takeAnswer(c conversation, ok bool) {
	r.answer, r.answerOK, r.unread = c.turns, ok, append(r.unread, c.unread...)
}

// stringTurns makes turns of a conversation that is stored as one string: a
// JSON list of turns, if it is one, and otherwise what the user said.
func (l layout) stringTurns(column, s string) (conversation, error) {
	t := strings.TrimSpace(s)
	switch {
	case strings.HasPrefix(t, "[{'"): // what str() makes of a list of dicts
		return conversation{}, &rowFault{column, preview(t, 40),
			"a conversation as Python prints it, not text", "write it as JSON (json.dumps)"}
	case !strings.HasPrefix(t, "[") || !json.Valid([]byte(t)):
		return conversation{turns: []Message{{Role: "user", Content: s}}}, nil
	}
	keys := turnKeysOf(t)
	has := func(key string) bool { return slices.Contains(keys, key) }
	switch {
	case has(l.role) || has(l.text):
		return l.jsonTurns(column, json.RawMessage(t))
	case has("from") && has("value") || has("role") && has("content"):
		return conversation{}, &rowFault{column, preview(t, 40),
			"its turns have the keys " + quoted(keys), renamed(column, keys)}
	}
	return conversation{turns: []Message{{Role: "user", Content: s}}}, nil
}

// turnKeysOf are the keys of the first element of a JSON list, if it is an object.
func turnKeysOf(list string) (keys []string) {
	var elems []json.RawMessage
	if json.Unmarshal([]byte(list), &elems) != nil || len(elems) == 0 || elems[0][0] != '{' {
		return nil
	}
	_ = eachKey(elems[0], func(key string, _ json.RawMessage) error {
		keys = append(keys, key)
		return nil
	})
	return keys
}

func jsonIDs(column string, value json.RawMessage) ([]int32, error) {
	ids := []int32{}
	if err := json.Unmarshal(value, &ids); err != nil {
		return nil, &rowFault{column, preview(string(value), 20), "not a list of token ids",
			"write integers from 0 to 2^31-1"}
	}
	return ids, checkIDs(column, ids)
}

// checkIDs refuses what cannot be a token.
func checkIDs(column string, ids []int32) error {
	for i, id := range ids {
		if id < 0 {
			return &rowFault{column, fmt.Sprintf("element %d is %d", i, id), "not a token id",
				"write integers from 0 to 2^31-1"}
		}
	}
	return nil
}
