package data

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"
	"github.com/parquet-go/parquet-go"

	"gad/data/input"
	"gad/data/layout"
	"gad/internal/vfs"
)

// Convert writes the rows of s to outPath, in the format of its suffix: .arrow (IPC file), .arrows
// or .stream (IPC stream), .parquet or .jsonl. Columns get their default names; columns that a Row
// does not carry are left out. A last assistant turn that is the teacher's answer becomes
// teacher_response.
//
// The file is written atomically. An error wraps ErrExists if outPath exists.
func Convert(s *Set, outPath string) error {
	return writeRows(vfs.OS, s, nil, outPath)
}

// Split writes part of the rows, the fraction nearest to fraction, to outA and the others to outB,
// both in their old order, and returns the numbers of rows. A row's side is a function of seed and
// the prompts: rows with the same prompt stay together, so that no prompt of one side occurs in the
// other.
func Split(s *Set, fraction float64, seed uint64, outA, outB string) (nA, nB int, err error) {
	return split(vfs.OS, s, fraction, seed, outA, outB)
}

func split(fsys vfs.FS, s *Set, fraction float64, seed uint64, outA,
	outB string) (nA, nB int, err error) {
	if !(fraction > 0 && fraction < 1) {
		return 0, 0, fmt.Errorf("data: split: fraction %v: must be between 0 and 1", fraction)
	}
	for _, out := range []string{outA, outB} {
		if err := checkFree(fsys, out); err != nil {
			return 0, 0, err
		}
	}
	type group struct {
		key  [sha256.Size]byte
		rows []int
	}
	groups := map[[sha256.Size]byte]*group{}
	advance, done := s.Stage("looking for equal prompts", s.Len())
	for i := range s.Len() {
		row, err := s.Row(i)
		if err != nil {
			done()
			return 0, 0, err
		}
		advance(1)
		h := sha256.New()
		h.Write(binary.LittleEndian.AppendUint64([]byte("gad data split 1"), seed))
		hashPrompt(h, row)
		key := [sha256.Size]byte(h.Sum(nil))
		if groups[key] == nil {
			groups[key] = &group{key: key}
		}
		groups[key].rows = append(groups[key].rows, i)
	}
	done()
	var order []*group
	for _, g := range groups {
		order = append(order, g)
	}
	slices.SortFunc(order, func(a, b *group) int { return bytes.Compare(a.key[:], b.key[:]) })
	target := fraction * float64(s.Len())
	var a, b []int
	for i, g := range order {
		before, after :=
			math.Abs(float64(len(a))-target), math.Abs(float64(len(a)+len(g.rows))-target)
		if i == 0 || after <= before && i < len(order)-1 {
			a = append(a, g.rows...)
		} else {
			b = append(b, g.rows...)
		}
	}
	if len(b) == 0 {
		return 0, 0, fmt.Errorf("data: split: %d rows of %d prompts: one side would be empty: two prompts or more are needed", s.Len(), len(order))
	}
	slices.Sort(a)
	slices.Sort(b)
	if err := writeRows(fsys, s, a, outA); err != nil {
		return 0, 0, err
	}
	if err := writeRows(fsys, s, b, outB); err != nil {
		return 0, 0, errors.Join(err, fsys.Remove(outA))
	}
	return len(a), len(b), nil
}

// outColumns are the columns to write.
type outColumns struct {
	content, teacher, response, promptIDs, responseIDs, id, finish bool
	told                                                           bool
	// turns with more than a role and a text; tools; environments' data; soft labels
	acts, tools, env, logprobs bool
	episodes                   bool
}

// rowWriter writes rows in one format; finish completes the file.
type rowWriter interface {
	write(Row) error
	finish() error
}

// writeRows writes the rows with the given indices, nil for all.
func writeRows(fsys vfs.FS, s *Set, indices []int, path string) error {
	return writeRowsWith(fsys, s, indices, path, nil)
}

// writeRowsWith writes rows as writeRows does, with the log-probabilities of logprobs; nil keeps
// the rows' own.
func writeRowsWith(fsys vfs.FS, s *Set, indices []int, path string,
	logprobs func(i int) Logprobs) error {
	if err := checkFree(fsys, path); err != nil {
		return err
	}
	cols := outColumns{
		content: s.has.Content != "", teacher: s.has.Teacher != "", response: s.has.Response != "",
		promptIDs: s.has.PromptIDs != "", responseIDs: s.has.ResponseIDs != "", id: s.has.ID != "",
		finish: s.has.Finish != "", logprobs: logprobs != nil,
	}
	more := s.mayCarry()
	// answers may be in the conversations
	for i := 0; (more || !cols.teacher) && i < s.Len(); i++ {
		row, err := s.Row(i)
		if err != nil {
			return err
		}
		cols.teacher = cols.teacher || row.Teacher != ""
		cols.widen(row)
	}
	n := len(indices)
	if indices == nil {
		n = s.Len()
	}
	return writeFile(fsys, path, cols, s.opt.Stages, n, func(k int) (Row, error) {
		if indices != nil {
			k = indices[k]
		}
		row, err := s.Row(k)
		if logprobs != nil {
			row.Logprobs = logprobs(k)
		}
		return row, err
	})
}

// WriteAnswers writes n rows with the teacher's answers from an endpoint: their conversations, id
// if ids is set, teacher_response, finish_reason, and the fields of Told. Format and errors are as
// for Convert.
func WriteAnswers(fsys FS, path string, ids bool, stages Stages, n int,
	row func(i int) (Row, error)) error {
	if err := checkFree(fsys, path); err != nil {
		return err
	}
	cols := outColumns{content: true, teacher: true, id: ids, finish: true, told: true}
	for i := range n {
		r, err := row(i)
		if err != nil {
			return err
		}
		cols.widen(r)
	}
	return writeFile(fsys, path, cols, stages, n, row)
}

// WriteLogprobs writes the given rows of s as Convert does, with the log-probabilities that of
// returns for their answers; nil for none.
func WriteLogprobs(fsys FS, path string, s *Set, indices []int, of func(i int) Logprobs) error {
	return writeRowsWith(fsys, s, indices, path, of)
}

// widen adds the columns that a row needs.
func (c *outColumns) widen(r Row) {
	acts := func(m Message) bool { return acts(m) }
	c.acts = c.acts || len(r.Turns) > 0 || slices.ContainsFunc(r.Messages, acts)
	c.tools = c.tools || r.Tools != ""
	c.env = c.env || r.Env != ""
	c.logprobs = c.logprobs || r.Logprobs != nil
	c.episodes = c.episodes || r.Told.Played != nil
}

// mayCarry reports whether rows may have tools, data for an environment, or turns with more than a
// role and a text: columns that are written only if some row has them.
func (s *Set) mayCarry() bool {
	for k, f := range s.files {
		l := s.layouts[k]
		if s.opt.Turns == TurnsAll || layout.AnyKey(f) || l.Tools != "" || l.Env != "" ||
			l.Thought != "" || l.Logprobs != "" || l.Role == "from" ||
			layout.ActsAs(f.TurnKeys(l.Content)) ||
			layout.ActsAs(f.TurnKeys(l.Teacher)) {
			return true
		}
	}
	return false
}

// answer returns the row's answer as turns, nil without an answer.
func (r Row) answer() []Message {
	if r.Turns == nil && r.Teacher != "" {
		return []Message{{Role: "assistant", Content: r.Teacher}}
	}
	return r.Turns
}

// writers are the output formats of rows, by suffix.
var writers = map[string]func(io.Writer, outColumns) (rowWriter, error){
	".arrow": newArrowFileWriter, ".arrows": newArrowStreamWriter, ".stream": newArrowStreamWriter,
	".parquet": newParquetWriter, ".jsonl": newLineWriter,
}

// CheckSuffix returns an error for an output path whose suffix is no known format.
func CheckSuffix(path string) error {
	if ext := filepath.Ext(path); writers[strings.ToLower(ext)] == nil {
		return fmt.Errorf("data: %s: suffix %q: names no format: use .arrow, .arrows, .stream, .parquet or .jsonl", path, ext)
	}
	return nil
}

// writeFile writes n rows to path, atomically.
func writeFile(fsys vfs.FS, path string, cols outColumns, stages Stages, n int,
	row func(k int) (Row, error)) error {
	if err := CheckSuffix(path); err != nil {
		return err
	}
	return commitFile(fsys, path, func(w io.Writer) error {
		out, err := writers[strings.ToLower(filepath.Ext(path))](w, cols)
		if err != nil {
			return err
		}
		advance, done := stages.Begin("writing "+path, n)
		defer done()
		for k := range n {
			row, err := row(k)
			if err != nil {
				return err
			}
			if err := out.write(row); err != nil {
				return err
			}
			advance(1)
		}
		return out.finish()
	})
}

// checkFree returns an error if path exists.
func checkFree(fsys vfs.FS, path string) error {
	if _, err := fsys.Stat(path); err == nil {
		return fmt.Errorf("data: %s: %w: nothing is overwritten: remove it or name another file",
			path, ErrExists)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data: %w", vfs.Target(err))
	}
	return nil
}

// commitFile writes a file that appears at path whole or not at all, even if the power fails: a
// temporary file in the same folder, synced, renamed, and the folder synced.
func commitFile(fsys vfs.FS, path string, write func(io.Writer) error) error {
	tmp := vfs.TempName(path)
	err := writeSynced(fsys, tmp, write)
	if err == nil {
		err = checkFree(fsys, path)
	}
	if err == nil {
		err = fsys.Rename(tmp, path)
	}
	if err != nil {
		_ = fsys.Remove(tmp) // best effort: the error at hand is the one to report
	} else {
		err = fsys.SyncDir(filepath.Dir(path))
	}
	if err != nil && !strings.HasPrefix(err.Error(), "data: ") {
		err = fmt.Errorf("data: %s: %w", path, err)
	}
	return err
}

// writeSynced creates a file and returns once its content is on the disk.
func writeSynced(fsys vfs.FS, path string, write func(io.Writer) error) error {
	f, err := fsys.Create(path)
	if err != nil {
		return vfs.Target(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err = input.Guard(func() error { return write(w) }); err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Rows, or bytes of text, after which a batch or row group ends.
const (
	outBatchRows  = 1000
	outBatchBytes = 64 << 20
)

// textBytes returns the size of the row's texts and tokens, in bytes.
func (r Row) textBytes() int {
	n := len(r.Teacher) + len(r.Response) + 4*len(r.PromptIDs) + 4*len(r.ResponseIDs)
	for _, m := range slices.Concat(r.Messages, r.Turns) {
		n += turnSize(m)
	}
	return n + len(r.Tools) + len(r.Env) + logprobsSize(r.Logprobs)
}

// arrowWriter writes Arrow IPC.
type arrowWriter struct {
	out interface {
		Write(arrow.Record) error
		Close() error
	}
	b       *array.RecordBuilder
	fields  []func(array.Builder, Row)
	n, size int
}

func newArrowFileWriter(w io.Writer, cols outColumns) (rowWriter, error) {
	a := newArrowWriter(cols)
	out, err := ipc.NewFileWriter(&countingSeeker{w: w}, ipc.WithSchema(a.b.Schema()))
	a.out = out
	return a, err
}

func newArrowStreamWriter(w io.Writer, cols outColumns) (rowWriter, error) {
	a := newArrowWriter(cols)
	a.out = ipc.NewWriter(w, ipc.WithSchema(a.b.Schema()))
	return a, nil
}

// countingSeeker gives the IPC file writer the only kind of seek that it uses: asking for its
// position.
type countingSeeker struct {
	w   io.Writer
	pos int64
}

func (c *countingSeeker) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.pos += int64(n)
	return n, err
}

// Seek returns the position; it supports no other seek.
func (c *countingSeeker) Seek(offset int64, whence int) (int64, error) {
	if offset != 0 || whence != io.SeekCurrent {
		return 0, errors.ErrUnsupported
	}
	return c.pos, nil
}

func newArrowWriter(cols outColumns) *arrowWriter {
	a := &arrowWriter{}
	var fields []arrow.Field
	add := func(on bool, name string, typ arrow.DataType, put func(array.Builder, Row)) {
		if on {
			fields = append(fields, arrow.Field{Name: name, Type: typ, Nullable: true})
			a.fields = append(a.fields, put)
		}
	}
	str := func(value func(Row) string) func(array.Builder, Row) {
		return func(b array.Builder, r Row) { b.(*array.StringBuilder).Append(value(r)) }
	}
	ids := func(value func(Row) []int32) func(array.Builder, Row) {
		return func(b array.Builder, r Row) {
			list := b.(*array.ListBuilder)
			v := value(r)
			if list.Append(v != nil); v != nil {
				list.ValueBuilder().(*array.Int32Builder).AppendValues(v, nil)
			}
		}
	}
	text := arrow.BinaryTypes.String
	parts := []arrow.Field{{Name: "role", Type: text, Nullable: true},
		{Name: "content", Type: text, Nullable: true}}
	if cols.acts {
		for _, key := range actKeys {
			parts = append(parts, arrow.Field{Name: key, Type: text, Nullable: true})
		}
		parts = append(parts, arrow.Field{Name: layout.TrainKey, Type: arrow.FixedWidthTypes.Boolean,
			Nullable: true})
	}
	names := DefaultColumns()
	put := func(value func(Row) []Message) func(array.Builder, Row) {
		return func(b array.Builder, r Row) {
			list := b.(*array.ListBuilder)
			list.Append(value(r) != nil)
			turns := list.ValueBuilder().(*array.StructBuilder)
			for _, m := range value(r) {
				turns.Append(true)
				turns.FieldBuilder(0).(*array.StringBuilder).Append(m.Role)
				turns.FieldBuilder(1).(*array.StringBuilder).Append(m.Content)
				if !cols.acts {
					continue
				}
				for i, s := range actTexts(m) {
					if b := turns.FieldBuilder(2 + i).(*array.StringBuilder); s != "" {
						b.Append(s)
					} else {
						b.AppendNull()
					}
				}
				if b := turns.FieldBuilder(2 + len(actKeys)).(*array.BooleanBuilder); m.Context {
					b.Append(false)
				} else {
					b.AppendNull()
				}
			}
		}
	}
	add(cols.content, names.Content, arrow.ListOf(arrow.StructOf(parts...)),
		put(func(r Row) []Message { return r.Messages }))
	if cols.acts {
		add(cols.teacher, names.Teacher, arrow.ListOf(arrow.StructOf(parts...)), put(Row.answer))
	} else {
		add(cols.teacher, names.Teacher, text, str(func(r Row) string { return r.Teacher }))
	}
	add(cols.tools, "tools", text, str(func(r Row) string { return string(r.Tools) }))
	add(cols.env, "env", text, str(func(r Row) string { return string(r.Env) }))
	add(cols.logprobs, layout.LogprobsColumn, text,
		str(func(r Row) string { return r.Logprobs.String() }))
	add(cols.response, names.Response, text, str(func(r Row) string { return r.Response }))
	add(cols.promptIDs, names.PromptIDs, arrow.ListOf(arrow.PrimitiveTypes.Int32),
		ids(func(r Row) []int32 { return r.PromptIDs }))
	add(cols.responseIDs, names.ResponseIDs, arrow.ListOf(arrow.PrimitiveTypes.Int32),
		ids(func(r Row) []int32 { return r.ResponseIDs }))
	add(cols.id, names.ID, text, str(func(r Row) string { return r.ID }))
	add(cols.finish, names.Finish, text, str(func(r Row) string { return r.Finish }))
	add(cols.told, "model", text, str(func(r Row) string { return r.Told.Model }))
	number := func(value func(Row) int) func(array.Builder, Row) {
		return func(b array.Builder, r Row) { b.(*array.Int64Builder).Append(int64(value(r))) }
	}
	add(cols.told, "prompt_tokens", arrow.PrimitiveTypes.Int64,
		number(func(r Row) int { return r.Told.PromptTokens }))
	add(cols.told, "completion_tokens", arrow.PrimitiveTypes.Int64,
		number(func(r Row) int { return r.Told.AnswerTokens }))
	add(cols.episodes, "reward", arrow.PrimitiveTypes.Float64, func(b array.Builder, r Row) {
		b.(*array.Float64Builder).Append(r.Told.episode().Reward)
	})
	add(cols.episodes, "label", text, str(func(r Row) string { return r.Told.episode().Label }))
	a.b = array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	return a
}

func (a *arrowWriter) write(r Row) error {
	for i, put := range a.fields {
		put(a.b.Field(i), r)
	}
	a.n++
	if a.size += r.textBytes(); a.n < outBatchRows && a.size < outBatchBytes {
		return nil
	}
	return a.flush()
}

func (a *arrowWriter) flush() error {
	rec := a.b.NewRecord()
	defer rec.Release()
	a.n, a.size = 0, 0
	return a.out.Write(rec)
}

func (a *arrowWriter) finish() error {
	if a.n > 0 {
		if err := a.flush(); err != nil {
			return err
		}
	}
	return a.out.Close()
}

// parquetWriter writes Parquet, compressed with zstd.
type parquetWriter struct {
	out     *parquet.Writer
	fields  []parquetOut
	n, size int
}

// parquetOut appends the values of one leaf to a row.
type parquetOut struct {
	leaf int
	put  func(values parquet.Row, leaf int, r Row) parquet.Row
}

func newParquetWriter(w io.Writer, cols outColumns) (rowWriter, error) {
	p := &parquetWriter{}
	group := parquet.Group{}
	names := DefaultColumns()
	type leaf struct {
		path []string
		put  func(values parquet.Row, leaf int, r Row) parquet.Row
	}
	var leaves []leaf
	str := func(on bool, name string, value func(Row) string) {
		if !on {
			return
		}
		group[name] = parquet.String()
		leaves = append(leaves, leaf{[]string{name},
			func(values parquet.Row, leaf int, r Row) parquet.Row {
				return append(values, parquet.ByteArrayValue([]byte(value(r))).Level(0, 0, leaf))
			}})
	}
	// A list is optional and its elements are required: definition level 0 is
	// no list, 1 an empty one, 2 an element.
	list := func(on bool, name string, element parquet.Node, sub []string, has func(Row) bool,
		n func(Row) int, value func(r Row, sub, i int) parquet.Value) {
		if !on {
			return
		}
		group[name] = parquet.Optional(parquet.List(element))
		for k := range sub {
			path := []string{name, "list", "element"}
			if sub[k] != "" {
				path = append(path, sub[k])
			}
			leaves = append(leaves, leaf{path,
				func(values parquet.Row, leaf int, r Row) parquet.Row {
					if !has(r) {
						return append(values, parquet.NullValue().Level(0, 0, leaf))
					}
					if n(r) == 0 {
						return append(values, parquet.NullValue().Level(0, 1, leaf))
					}
					for i := range n(r) {
						values = append(values, value(r, k, i).Level(min(i, 1), 2, leaf))
					}
					return values
				}})
		}
	}
	ids := func(on bool, name string, value func(Row) []int32) {
		list(on, name, parquet.Leaf(parquet.Int32Type), []string{""},
			func(r Row) bool { return value(r) != nil }, func(r Row) int { return len(value(r)) },
			func(r Row, _, i int) parquet.Value { return parquet.Int32Value(value(r)[i]) })
	}
	// A turn has all parts; a blank one stands for none.
	element, parts :=
		parquet.Group{"role": parquet.String(), "content": parquet.String()},
		[]string{"role", "content"}
	if cols.acts {
		for _, key := range actKeys {
			element[key] = parquet.String()
			parts = append(parts, key)
		}
		element[layout.TrainKey] = parquet.Leaf(parquet.BooleanType)
		parts = append(parts, layout.TrainKey)
	}
	turns := func(on bool, name string, value func(Row) []Message) {
		list(on, name, element, parts, func(r Row) bool { return value(r) != nil },
			func(r Row) int { return len(value(r)) },
			func(r Row, sub, i int) parquet.Value {
				m := value(r)[i]
				switch {
				case sub == 0:
					return parquet.ByteArrayValue([]byte(m.Role))
				case sub == 1:
					return parquet.ByteArrayValue([]byte(m.Content))
				case sub == 2+len(actKeys):
					return parquet.BooleanValue(!m.Context)
				}
				return parquet.ByteArrayValue([]byte(actTexts(m)[sub-2]))
			})
	}
	turns(cols.content, names.Content, func(r Row) []Message { return r.Messages })
	if cols.acts {
		turns(cols.teacher, names.Teacher, Row.answer)
	} else {
		str(cols.teacher, names.Teacher, func(r Row) string { return r.Teacher })
	}
	str(cols.tools, "tools", func(r Row) string { return string(r.Tools) })
	str(cols.env, "env", func(r Row) string { return string(r.Env) })
	str(cols.logprobs, layout.LogprobsColumn, func(r Row) string { return r.Logprobs.String() })
	str(cols.episodes, "label", func(r Row) string { return r.Told.episode().Label })
	str(cols.response, names.Response, func(r Row) string { return r.Response })
	ids(cols.promptIDs, names.PromptIDs, func(r Row) []int32 { return r.PromptIDs })
	ids(cols.responseIDs, names.ResponseIDs, func(r Row) []int32 { return r.ResponseIDs })
	str(cols.id, names.ID, func(r Row) string { return r.ID })
	str(cols.finish, names.Finish, func(r Row) string { return r.Finish })
	str(cols.told, "model", func(r Row) string { return r.Told.Model })
	number := func(name string, value func(Row) int) {
		if cols.told {
			group[name] = parquet.Leaf(parquet.Int64Type)
			leaves = append(leaves, leaf{[]string{name},
				func(values parquet.Row, leaf int, r Row) parquet.Row {
					return append(values, parquet.Int64Value(int64(value(r))).Level(0, 0, leaf))
				}})
		}
	}
	number("prompt_tokens", func(r Row) int { return r.Told.PromptTokens })
	number("completion_tokens", func(r Row) int { return r.Told.AnswerTokens })

	if cols.episodes {
		group["reward"] = parquet.Leaf(parquet.DoubleType)
		leaves = append(leaves, leaf{[]string{"reward"},
			func(values parquet.Row, leaf int, r Row) parquet.Row {
				reward := parquet.DoubleValue(r.Told.episode().Reward)
				return append(values, reward.Level(0, 0, leaf))
			}})
	}
	schema := parquet.NewSchema("rows", group)
	for _, l := range leaves {
		col, ok := schema.Lookup(l.path...)
		if !ok {
			return nil, fmt.Errorf("no column %q in the schema", l.path)
		}
		p.fields = append(p.fields, parquetOut{col.ColumnIndex, l.put})
	}
	slices.SortFunc(p.fields, func(a, b parquetOut) int { return a.leaf - b.leaf })
	p.out = parquet.NewWriter(w, schema, parquet.Compression(&parquet.Zstd),
		parquet.CreatedBy("gad", "1", ""))
	return p, nil
}

func (p *parquetWriter) write(r Row) error {
	var values parquet.Row
	for _, f := range p.fields {
		values = f.put(values, f.leaf, r)
	}
	if _, err := p.out.WriteRows([]parquet.Row{values}); err != nil {
		return err
	}
	p.n++
	if p.size += r.textBytes(); p.n < outBatchRows && p.size < outBatchBytes {
		return nil
	}
	p.n, p.size = 0, 0
	return p.out.Flush()
}

func (p *parquetWriter) finish() error { return p.out.Close() }

// lineWriter writes JSON lines.
type lineWriter struct {
	enc  *json.Encoder
	cols outColumns
}

func newLineWriter(w io.Writer, cols outColumns) (rowWriter, error) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return &lineWriter{enc, cols}, nil
}

func (l *lineWriter) write(r Row) error {
	var line struct {
		ID          *string    `json:"id,omitempty"`
		Content     *[]Message `json:"content,omitempty"`
		Tools       JSON       `json:"tools,omitempty"`
		Teacher     any        `json:"teacher_response,omitempty"`
		Env         JSON       `json:"env,omitempty"`
		Response    *string    `json:"response,omitempty"`
		PromptIDs   *[]int32   `json:"prompt_ids,omitempty"`
		ResponseIDs *[]int32   `json:"response_ids,omitempty"`
		Finish      *string    `json:"finish_reason,omitempty"`
		Model       *string    `json:"model,omitempty"`
		Prompt      *int       `json:"prompt_tokens,omitempty"`
		Completion  *int       `json:"completion_tokens,omitempty"`
		Reward      *float64   `json:"reward,omitempty"`
		Label       *string    `json:"label,omitempty"`
		Logprobs    Logprobs   `json:"teacher_logprobs,omitempty"`
	}
	line.Logprobs = r.Logprobs
	if l.cols.id {
		line.ID = &r.ID
	}
	if l.cols.content && r.Messages != nil {
		line.Content = &r.Messages
	}
	if line.Tools, line.Env = r.Tools, r.Env; l.cols.teacher && r.Turns != nil {
		line.Teacher = r.Turns
	} else if l.cols.teacher {
		line.Teacher = &r.Teacher
	}
	if l.cols.response {
		line.Response = &r.Response
	}
	if l.cols.promptIDs && r.PromptIDs != nil {
		line.PromptIDs = &r.PromptIDs
	}
	if l.cols.responseIDs && r.ResponseIDs != nil {
		line.ResponseIDs = &r.ResponseIDs
	}
	if l.cols.finish {
		line.Finish = &r.Finish
	}
	if l.cols.told {
		line.Model, line.Prompt, line.Completion =
			&r.Told.Model, &r.Told.PromptTokens, &r.Told.AnswerTokens
	}
	if played := r.Told.Played; played != nil {
		line.Reward, line.Label = &played.Reward, &played.Label
	}
	return l.enc.Encode(line)
}

func (l *lineWriter) finish() error { return nil }

// logprobsSize returns the number of bytes of the tokens and their log-probabilities.
func logprobsSize(l Logprobs) (n int) {
	for _, at := range l {
		for _, t := range at {
			n += len(t.Bytes) + 8
		}
	}
	return n
}

// turnSize returns the number of bytes of the turn's texts.
func turnSize(m Message) int {
	return len(m.Role) + len(m.Content) + len(m.Thinking) + len(m.ToolCalls) + len(m.ToolCallID) +
		len(m.Name)
}

// actKeys are the keys of a turn's further texts, in the order of actTexts.
var actKeys = []string{"reasoning_content", "tool_calls", "tool_call_id", "name"}

// actTexts returns the values of a turn's keys actKeys, "" for absent ones.
func actTexts(m Message) [4]string {
	return [4]string{m.Thinking, string(m.ToolCalls), m.ToolCallID, m.Name}
}
