// Package arrow reads Arrow IPC files and streams as rows of data, one record batch at a time:
// arrow.go has messages and columns, flatbuf.go the checks of metadata, nested.go values as JSON.
package arrow

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"gad/data/input"
	"gad/data/layout"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"
)

// arrowSource reads Arrow IPC files and streams. Opening reads the messages' metadata; the bodies
// are read, decompressed and given to the Arrow library when one of their rows is needed.
type arrowSource struct {
	input.Sized
	isFile  bool
	lay     layout.Layout
	schemaM arrowMessage
	batches []arrowMessage
	dicts   []arrowMessage // in file order
	before  []int          // number of dictionaries that precede each batch

	reader    *ipc.Reader
	feed      *messageFeed
	alloc     budget
	dictBytes int64 // of the dictionaries that the reader holds
	fed       int   // dictionaries given to the reader
	sch       *arrow.Schema
	asJSON    map[string]bool // columns that are read as JSON: see Layout.Column
}

// arrowMessage is a message's place in the file.
type arrowMessage struct {
	meta, metaLen int64  // of the flatbuffer
	own           []byte // the flatbuffer itself, if the file has it in its footer alone
	body, bodyLen int64
	kind          int64
	rows          int64
}

// Values of MessageHeader in Arrow's Message.fbs.
const (
	arrowSchemaKind     = 1
	arrowDictionaryKind = 2
	arrowBatchKind      = 3
)

var errNoEnd = fmt.Errorf(
	"no end mark after the last message: %w: write the file again and close the writer",
	input.ErrTruncated)

// Open reads the messages' metadata of an IPC file or, if isFile is false, a stream.
func Open(file input.Input, size int64, isFile bool) (layout.Source, error) {
	s := &arrowSource{Sized: input.Sized{File: file, Size: size}, isFile: isFile}
	scan := s.scanStream
	if isFile {
		scan = s.scanFile
	}
	if err := scan(); err != nil {
		return nil, err
	}
	if err := s.restart(); err != nil {
		return nil, err
	}
	if s.sch = s.reader.Schema(); s.sch == nil {
		return nil, fmt.Errorf("schema: %w", input.Corrupt(fmt.Errorf("not read (%w)", s.reader.Err())))
	}
	return s, nil
}

// message reads the metadata of the message at offset at. end reports the end-of-stream mark
// instead.
func (s *arrowSource) message(at int64) (m arrowMessage, end bool, err error) {
	head, err := s.ReadAt(at, 8)
	if err != nil {
		return m, false, err
	}
	if string(head[:4]) != "\xff\xff\xff\xff" {
		return m, false, fmt.Errorf("byte %d: no message begins here: %w", at, input.ErrCorrupt)
	}
	m.meta, m.metaLen = at+8, int64(int32(binary.LittleEndian.Uint32(head[4:])))
	if m.metaLen == 0 {
		return m, true, nil
	}
	meta, err := s.ReadAt(m.meta, m.metaLen)
	if err != nil {
		return m, false, fmt.Errorf("message at byte %d: metadata: %w", at, err)
	}
	c, err := checkMessage(meta)
	if err != nil {
		return m, false, fmt.Errorf("message at byte %d: %w: %w", at, err, input.ErrCorrupt)
	}
	m.body, m.bodyLen, m.kind, m.rows = m.meta+m.metaLen, c.bodyLen, c.kind, c.rows
	if m.bodyLen > s.Size-m.body {
		return m, false, fmt.Errorf("message at byte %d: body of %d bytes, %d are left: %w", at,
			m.bodyLen, s.Size-m.body, input.ErrTruncated)
	}
	return m, false, nil
}

// add appends a message to the batches or dictionaries.
func (s *arrowSource) add(m arrowMessage) error {
	switch m.kind {
	case arrowDictionaryKind:
		s.dicts = append(s.dicts, m)
	case arrowBatchKind:
		s.batches = append(s.batches, m)
		s.before = append(s.before, len(s.dicts))
	default:
		return fmt.Errorf("message of kind %d among the rows: %w", m.kind, input.ErrCorrupt)
	}
	return nil
}

// scanStream reads the metadata of a stream's messages.
func (s *arrowSource) scanStream() error {
	m, end, err := s.message(0)
	if err != nil {
		return err
	}
	if end || m.kind != arrowSchemaKind {
		return fmt.Errorf("stream begins with a message of kind %d, not with a schema: %w", m.kind,
			input.ErrCorrupt)
	}
	s.schemaM = m
	for at := m.body + m.bodyLen; ; at = m.body + m.bodyLen {
		if at == s.Size {
			return errNoEnd
		}
		if m, end, err = s.message(at); err != nil {
			return err
		}
		if end {
			if at+8 != s.Size {
				return fmt.Errorf("%d bytes after the end mark: %w: expected one stream per file",
					s.Size-at-8, input.ErrCorrupt)
			}
			return nil
		}
		if err := s.add(m); err != nil {
			return err
		}
	}
}

// scanFile reads the metadata of an IPC file's messages by its footer: blocks of (offset int64,
// metadata length int32, body length int64), 24 bytes each.
func (s *arrowSource) scanFile() error {
	const magic = "ARROW1"
	if s.Size < 8+4+int64(len(magic)) {
		return fmt.Errorf("file of %d bytes: %w", s.Size, input.ErrTruncated)
	}
	tail, err := s.ReadAt(s.Size-10, 10)
	if err != nil {
		return err
	}
	if string(tail[4:]) != magic {
		return fmt.Errorf("does not end with %s: %w: write the file again and close the writer",
			magic, input.ErrTruncated)
	}
	n := int64(int32(binary.LittleEndian.Uint32(tail)))
	end := s.Size - 10 - n
	if n <= 0 || end < 8 {
		return fmt.Errorf("footer of %d bytes in a file of %d: %w", n, s.Size, input.ErrCorrupt)
	}
	footer, err := s.ReadAt(end, n)
	if err != nil {
		return err
	}
	root, err := fbRoot(footer)
	if err != nil {
		return fmt.Errorf("footer: %w: %w", err, input.ErrCorrupt)
	}
	if s.schemaM, err = footerSchema(footer, root); err != nil {
		return fmt.Errorf("footer: %w: %w", err, input.ErrCorrupt)
	}
	for i, kind := range []int64{arrowDictionaryKind, arrowBatchKind} {
		slot := 2 + i
		first, count, err := root.vector(slot, 24)
		if err != nil {
			return fmt.Errorf("footer: %w: %w", err, input.ErrCorrupt)
		}
		for i := range count {
			block := footer[first+24*i:]
			at := int64(binary.LittleEndian.Uint64(block))
			metaLen := int64(int32(binary.LittleEndian.Uint32(block[8:])))
			bodyLen := int64(binary.LittleEndian.Uint64(block[16:]))
			if at < 8 || at > end {
				return fmt.Errorf("footer: block %d: starts at byte %d: %w", i, at, input.ErrCorrupt)
			}
			m, eos, err := s.message(at)
			if err != nil {
				return fmt.Errorf("block %d: %w", i, err)
			}
			if eos || m.kind != kind || m.bodyLen != bodyLen || m.metaLen+8 > metaLen ||
				m.body+bodyLen > end {
				return fmt.Errorf("block %d: footer and message disagree: %w", i, input.ErrCorrupt)
			}
			if err := s.add(m); err != nil {
				return err
			}
		}
	}
	for i := range s.before { // in a file all dictionaries hold for all batches
		s.before[i] = len(s.dicts)
	}
	return nil
}

// footerSchema returns a schema message made from the schema in a file's footer, root. The message
// at the file's beginning has the same schema, but not every writer puts one there (polars does
// not).
func footerSchema(footer []byte, root fbTable) (m arrowMessage, err error) {
	at, err := root.target(1)
	if err != nil || at < 0 {
		return m, cmp.Or(err, errors.New("no schema"))
	}
	// a root offset, a vtable of 12 bytes, a table of 12; the footer keeps its alignment
	const before = 32
	own := make([]byte, before, before+len(footer))
	le := binary.LittleEndian
	le.PutUint32(own, 16)
	for i, v := range []uint16{12, 12, 8, 10, 4, 0} { // version, kind, header, no body
		le.PutUint16(own[4+2*i:], v)
	}
	le.PutUint32(own[16:], 12)
	le.PutUint32(own[20:], uint32(at)+before-20)
	le.PutUint16(own[24:], 4) // MetadataVersion V5
	own[26] = arrowSchemaKind
	own = append(own, footer...)
	if _, err := checkMessage(own); err != nil {
		return m, err
	}
	return arrowMessage{own: own, kind: arrowSchemaKind}, nil
}

// checkedMessage is the result of checkMessage.
type checkedMessage struct {
	kind, bodyLen, rows int64
	batch               fbTable // of batches and dictionaries
	buffers, nBuffers   int     // offset and number of the buffers' (offset, length) pairs
	codec               int64   // -1: not compressed
	compressionSlot     int     // offset of the compression field in the vtable
}

// checkMessage checks every part of a message's metadata that the Arrow library reads, so that no
// count in it can make the library allocate or read beyond the body.
func checkMessage(meta []byte) (c checkedMessage, err error) {
	c.codec = -1
	root, err := fbRoot(meta)
	if err != nil {
		return c, err
	}
	if c.kind, err = root.integer(1, 1); err != nil {
		return c, err
	}
	if c.bodyLen, err = root.integer(3, 8); err != nil {
		return c, err
	}
	header, ok, err := root.table(2)
	if err != nil {
		return c, err
	}
	if !ok || c.bodyLen < 0 {
		return c, fmt.Errorf("no header, or a body of %d bytes", c.bodyLen)
	}
	if err := checkKeyValues(root, 4); err != nil {
		return c, err
	}
	switch c.kind {
	case arrowSchemaKind:
		return c, checkSchema(header)
	case arrowDictionaryKind:
		if _, err := header.integer(0, 8); err != nil {
			return c, err
		}
		if header, ok, err = header.table(1); err != nil {
			return c, err
		} else if !ok {
			return c, errors.New("dictionary without data")
		}
	case arrowBatchKind:
	default:
		return c, fmt.Errorf("message of unknown kind %d", c.kind)
	}
	c.batch = header
	return c, c.checkBatch()
}

// checkBatch checks a batch's counts, nodes and buffers against the body's length.
func (c *checkedMessage) checkBatch() (err error) {
	if c.rows, err = c.batch.integer(0, 8); err != nil {
		return err
	}
	nodes, n, err := c.batch.vector(1, 16)
	if err != nil {
		return err
	}
	for i := range n {
		length := int64(binary.LittleEndian.Uint64(c.batch.b[nodes+16*i:]))
		nulls := int64(binary.LittleEndian.Uint64(c.batch.b[nodes+16*i+8:]))
		if length < 0 || length > math.MaxInt32*8 || nulls < 0 || nulls > length {
			return fmt.Errorf("column node %d: %d values, %d null", i, length, nulls)
		}
	}
	if c.buffers, c.nBuffers, err = c.batch.vector(2, 16); err != nil {
		return err
	}
	for i := range c.nBuffers {
		at, length := c.buffer(i)
		if at < 0 || length < 0 || length > c.bodyLen || at > c.bodyLen-length {
			return fmt.Errorf("buffer %d: bytes %d+%d of a body of %d", i, at, length, c.bodyLen)
		}
	}
	compression, ok, err := c.batch.table(3)
	if err != nil {
		return err
	}
	ratio := int64(1)
	if ok {
		method, err := compression.integer(1, 1)
		if err != nil {
			return err
		}
		if c.codec, err = compression.integer(0, 1); err != nil {
			return err
		}
		if method != 0 || c.codec != input.CodecLZ4 && c.codec != input.CodecZstd {
			return fmt.Errorf("compression method %d codec %d: not read", method, c.codec)
		}
		c.compressionSlot = 4 + 2*3
		ratio = input.MaxExpansion
	}
	// A row takes at least one byte of some buffer.
	if c.rows < 0 || c.rows > c.bodyLen*ratio {
		return fmt.Errorf("%d rows in a body of %d bytes", c.rows, c.bodyLen)
	}
	variadic, n, err := c.batch.vector(4, 8)
	if err != nil {
		return err
	}
	for i := range n {
		if k := int64(binary.LittleEndian.Uint64(c.batch.b[variadic+8*i:])); k < 0 ||
			k > int64(c.nBuffers) {
			return fmt.Errorf("view column with %d buffers of %d", k, c.nBuffers)
		}
	}
	return nil
}

// buffer returns the offset and length of buffer i in the body.
func (c *checkedMessage) buffer(i int) (at, length int64) {
	pos := c.buffers + 16*i
	return int64(binary.LittleEndian.Uint64(c.batch.b[pos:])),
		int64(binary.LittleEndian.Uint64(c.batch.b[pos+8:]))
}

// read reads a whole message and decompresses its body, so that the Arrow library gets plain bodies
// only: its decompressors allocate the sizes that the file declares.
func (s *arrowSource) read(m arrowMessage) (*ipc.Message, error) {
	meta, err := m.own, error(nil)
	if meta == nil {
		meta, err = s.ReadAt(m.meta, m.metaLen)
	}
	if err != nil {
		return nil, err
	}
	body, err := s.ReadAt(m.body, m.bodyLen)
	if err != nil {
		return nil, err
	}
	c, err := checkMessage(meta)
	if err != nil || c.bodyLen != m.bodyLen {
		return nil, fmt.Errorf("file changed since it was opened: %w", input.ErrCorrupt)
	}
	if c.kind == arrowBatchKind {
		if err := c.checkColumns(s.sch); err != nil {
			return nil, fmt.Errorf("%w: %w", err, input.ErrCorrupt)
		}
	}
	if c.codec >= 0 {
		if meta, body, err = c.decompress(meta, body); err != nil {
			return nil, err
		}
	}
	if c.kind == arrowDictionaryKind {
		s.dictBytes += int64(len(body))
	}
	s.alloc.left += 4*int64(len(body)) + 256*int64(c.nBuffers) + 1<<16
	return ipc.NewMessage(memory.NewBufferBytes(meta), memory.NewBufferBytes(body)), nil
}

// decompress returns the message without compression: the buffers' offsets in the metadata are
// overwritten, and the batch gets a vtable of its own (vtables may be shared between tables)
// without the compression field. A compressed buffer is an int64 length and then the compressed
// bytes; length -1 marks bytes that are not compressed after all.
func (c *checkedMessage) decompress(meta, body []byte) (meta2, body2 []byte, err error) {
	total := int64(0)
	limit := input.MaxDecoded(int64(len(body)))
	plain := make([]byte, 0, min(4*len(body), 64<<20))
	for i := range c.nBuffers {
		at, length := c.buffer(i)
		start := len(plain)
		if length > 0 {
			if length < 8 {
				return nil, nil, fmt.Errorf("buffer %d: compressed into %d bytes: %w", i, length,
					input.ErrCorrupt)
			}
			n, src := int64(binary.LittleEndian.Uint64(body[at:])), body[at+8:at+length]
			if n == -1 {
				plain = append(plain, src...)
			} else {
				if total += n; n < 0 || total > limit {
					return nil, nil, fmt.Errorf(
						"buffer %d: %d bytes expand to %d: %w: write it with less compression", i,
						length, n, input.ErrCorrupt)
				}
				if plain, err = input.Decode(plain, src, n, c.codec); err != nil {
					return nil, nil, fmt.Errorf("buffer %d: %w", i, err)
				}
			}
		}
		pos := c.buffers + 16*i
		binary.LittleEndian.PutUint64(meta[pos:], uint64(start))
		binary.LittleEndian.PutUint64(meta[pos+8:], uint64(len(plain)-start))
		for len(plain)%8 != 0 {
			plain = append(plain, 0)
		}
	}
	vt := len(meta)
	meta = append(meta, meta[c.batch.vt:c.batch.vt+c.batch.vtLen]...)
	binary.LittleEndian.PutUint16(meta[vt+c.compressionSlot:], 0)
	binary.LittleEndian.PutUint32(meta[c.batch.pos:], uint32(int32(c.batch.pos-vt)))
	return meta, plain, nil
}

// checkColumns returns an error unless the message has as many nodes and buffers as the schema's
// columns need: the Arrow library reads beyond the end of a list that is too short.
func (c *checkedMessage) checkColumns(schema *arrow.Schema) error {
	nodes, buffers, views := 0, 0, 0
	for _, f := range schema.Fields() {
		countParts(f.Type, &nodes, &buffers, &views)
	}
	_, n, err := c.batch.vector(1, 16)
	if err != nil {
		return err
	}
	variadic, k, err := c.batch.vector(4, 8)
	if err != nil {
		return err
	}
	for i := range k {
		buffers += int(binary.LittleEndian.Uint64(c.batch.b[variadic+8*i:]))
	}
	if n != nodes || c.nBuffers != buffers || k != views {
		return fmt.Errorf("%d column nodes, %d buffers, %d view columns; the schema has %d, %d, %d",
			n, c.nBuffers, k, nodes, buffers, views)
	}
	return nil
}

// countParts adds the nodes, buffers and view columns of one type, by Arrow's columnar format. It
// counts only the parts that a message stores, so that dictionaries count as their indices.
func countParts(t arrow.DataType, nodes, buffers, views *int) {
	*nodes++
	switch t := t.(type) {
	case *arrow.NullType, *arrow.RunEndEncodedType:
	case *arrow.StructType, *arrow.FixedSizeListType:
		*buffers++
	case *arrow.StringType, *arrow.LargeStringType, *arrow.BinaryType, *arrow.LargeBinaryType,
		*arrow.ListViewType, *arrow.LargeListViewType:
		*buffers += 3
	case arrow.BinaryViewDataType:
		*buffers += 2
		*views++
	case arrow.ExtensionType:
		*nodes--
		countParts(t.StorageType(), nodes, buffers, views)
		return
	case *arrow.SparseUnionType:
		*buffers++
	default: // validity and values or offsets; a dense union has types and offsets
		*buffers += 2
	}
	if nested, ok := t.(arrow.NestedType); ok {
		for _, f := range nested.Fields() {
			countParts(f.Type, nodes, buffers, views)
		}
	}
}

// budget is the Arrow library's allocator. It panics beyond the size of the messages that were
// read: a second line of defence behind the checks above, since a size that is too large ends the
// process.
type budget struct {
	memory.GoAllocator
	left int64
}

func (b *budget) Allocate(n int) []byte {
	b.take(int64(n))
	return b.GoAllocator.Allocate(n)
}

func (b *budget) Reallocate(n int, old []byte) []byte {
	b.take(int64(n))
	return b.GoAllocator.Reallocate(n, old)
}

// take subtracts n bytes from the budget.
func (b *budget) take(n int64) {
	if n < 0 || n > b.left {
		panic(fmt.Sprintf("message asks for %d bytes of memory, more than it holds", n))
	}
	b.left -= n
}

// messageFeed gives selected messages to an ipc.Reader.
type messageFeed struct {
	src   *arrowSource
	queue []arrowMessage
}

func (f *messageFeed) Retain()  {}
func (f *messageFeed) Release() {}

func (f *messageFeed) Message() (*ipc.Message, error) {
	if len(f.queue) == 0 {
		return nil, io.EOF
	}
	m := f.queue[0]
	f.queue = f.queue[1:]
	return f.src.read(m)
}

// restart makes a new reader, which has read only the schema.
func (s *arrowSource) restart() (err error) {
	s.feed = &messageFeed{src: s, queue: []arrowMessage{s.schemaM}}
	s.fed, s.dictBytes = 0, 0
	if s.reader, err = ipc.NewReaderFromMessageReader(s.feed,
		ipc.WithAllocator(&s.alloc)); err != nil {
		s.reader = nil
		return input.Corrupt(err)
	}
	return nil
}

// Load gives the reader the dictionaries that precede the batch, and the batch. Dictionaries may be
// replaced within a stream, so that going back beyond a dictionary already given needs a restart.
func (s *arrowSource) Load(b int) (layout.Rows, error) {
	if s.reader == nil || s.fed > s.before[b] {
		if err := s.restart(); err != nil {
			return nil, err
		}
	}
	s.alloc.left = 4 * s.dictBytes // dictionaries may be merged again; read adds the rest
	s.feed.queue = append(append([]arrowMessage{}, s.dicts[s.fed:s.before[b]]...), s.batches[b])
	s.fed = s.before[b]
	rec, err := s.reader.Read()
	if err == nil && (rec == nil || len(s.feed.queue) > 0) {
		err = errors.New("no batch where one should be")
	}
	if err != nil {
		s.reader = nil
		return nil, fmt.Errorf("batch %d: %w", b, input.Corrupt(err))
	}
	rec.Retain()
	if rec.NumRows() != s.batches[b].rows {
		return nil, fmt.Errorf("batch %d: %d rows, not %d: %w", b, rec.NumRows(), s.batches[b].rows,
			input.ErrCorrupt)
	}
	r := &arrowRows{lay: s.lay, bytes: s.batches[b].bodyLen,
		chosen: make([]arrow.Array, len(s.lay.Chosen))}
	for i, f := range s.sch.Fields() {
		col := rec.Column(i)
		if at := slices.Index(s.lay.Chosen, f.Name); at >= 0 {
			r.chosen[at] = col
		}
		if s.lay.Leads(f.Name) {
			r.whole = append(r.whole, wholeColumn{f, col, true})
		}
		if s.asJSON[f.Name] {
			r.whole = append(r.whole, wholeColumn{f, col, false})
			makeDictionaries(col)
			continue
		}
		switch f.Name {
		case "":
		case s.lay.Content:
			r.content = col
		case s.lay.Teacher:
			r.teacher = col
		case s.lay.Response:
			r.response = col
		case s.lay.ID:
			r.id = col
		case s.lay.Finish:
			r.finish = col
		case s.lay.PromptIDs:
			r.promptIDs = col
		case s.lay.ResponseIDs:
			r.responseIDs = col
		case s.lay.Input:
			r.input = col
		case s.lay.System:
			r.system = col
		case s.lay.Tools:
			r.tools = col
		case s.lay.Env:
			r.env = col
		case s.lay.Logprobs:
			r.logprobs = col
		case s.lay.Thought:
			r.thought = col
		default:
			if slices.Contains(s.lay.Watched, f.Name) {
				r.watched = append(r.watched, watchedColumn{f.Name, col})
			}
		}
		makeDictionaries(col)
	}
	return r, nil
}

func (s *arrowSource) Format() string {
	if s.isFile {
		return "arrow file"
	}
	return "arrow stream"
}

func (s *arrowSource) Schema() []layout.Column {
	fields := s.sch.Fields()
	out := make([]layout.Column, len(fields))
	for i, f := range fields {
		out[i] = layout.Column{Name: f.Name, Type: strings.ReplaceAll(f.Type.String(), "utf8", "string")}
	}
	return out
}

func (s *arrowSource) BatchRows() []int {
	n := make([]int, len(s.batches))
	for i, m := range s.batches {
		n[i] = int(m.rows)
	}
	return n
}

// Keys returns the names of a struct's fields.
func (s *arrowSource) Keys(column string) (keys []string) {
	for _, f := range s.sch.Fields() {
		if of, ok := f.Type.(*arrow.StructType); ok && f.Name == column {
			for _, part := range of.Fields() {
				keys = append(keys, part.Name)
			}
		}
	}
	return keys
}

func (s *arrowSource) Close() error { return s.File.Close() }

// TurnKeys returns the names of a turn's parts, if the column is a list of structs.
func (s *arrowSource) TurnKeys(column string) (keys []string) {
	for _, f := range s.sch.Fields() {
		if list, ok := f.Type.(arrow.ListLikeType); ok && f.Name == column &&
			f.Type.ID() != arrow.MAP {
			if e, ok := list.Elem().(*arrow.StructType); ok {
				for _, part := range e.Fields() {
					keys = append(keys, part.Name)
				}
			}
		}
	}
	return keys
}

// Bind sets the columns to read. A column whose type cannot be read is an error; an id is left out
// then.
func (s *arrowSource) Bind(l layout.Layout) (note string, err error) {
	s.lay = l
	s.asJSON = map[string]bool{}
	for _, f := range s.sch.Fields() {
		ok, want := true, ""
		number := arrow.IsInteger(f.Type.ID()) || arrow.IsFloating(f.Type.ID())
		if f.Name != "" && l.Reads(f.Name) && (hasJSON(f) ||
			number && (f.Name == l.Teacher || f.Name == l.Response) ||
			f.Name == l.TeacherPrompt) {
			s.asJSON[f.Name] = true
			continue
		}
		switch f.Name {
		case "":
		case l.Content:
			ok, want = isText(f.Type) ||
				isTurns(l, f.Type),
				fmt.Sprintf("a list of struct{%s, %s} or a string", l.Role, l.Text)
		case l.Teacher:
			ok, want = isText(f.Type) || isTurns(l, f.Type), "a string"
		case l.Tools:
			_, list := f.Type.(arrow.ListLikeType)
			ok, want = isText(f.Type) || list, "a list of structs, or its JSON as a string"
		case l.Env:
			_, nested := f.Type.(arrow.NestedType)
			id := f.Type.ID()
			ok = isText(f.Type) || nested || id == arrow.BOOL || arrow.IsInteger(id) ||
				arrow.IsFloating(id)
			want = "a struct, list, number or bool, or JSON as a string"
		case l.Logprobs:
			_, nested := f.Type.(arrow.NestedType)
			ok, want = isText(f.Type) || nested, "a list of structs, or its JSON as a string"
		case l.Response, l.Input, l.System, l.Thought:
			ok, want = isText(f.Type), "a string"
		case l.ID:
			if !isText(f.Type) && !arrow.IsInteger(f.Type.ID()) {
				note = fmt.Sprintf("column %q: type %s is not read as the rows' name: left out",
					f.Name, f.Type)
				s.lay.ID = ""
			}
		case l.Finish:
			if !isText(f.Type) {
				note = fmt.Sprintf("column %q: type %s is not read: left out", f.Name, f.Type)
				s.lay.Finish = ""
			}
		case l.PromptIDs, l.ResponseIDs:
			list, isList := f.Type.(arrow.ListLikeType)
			ok, want = f.Type.ID() == arrow.NULL || isList &&
				arrow.IsInteger(list.Elem().ID()), "a list of integers"
		}
		if !ok {
			return "", fmt.Errorf("column %q: type %s: expected %s: convert the column", f.Name,
				f.Type, want)
		}
	}
	return note, nil
}

// isText reports whether values of a type can be read as text.
func isText(t arrow.DataType) bool {
	switch t := t.(type) {
	case *arrow.StringType, *arrow.LargeStringType, *arrow.StringViewType,
		*arrow.BinaryType, *arrow.LargeBinaryType, *arrow.BinaryViewType, *arrow.NullType:
		return true
	case *arrow.DictionaryType:
		_, nested := t.ValueType.(*arrow.DictionaryType)
		return !nested && isText(t.ValueType)
	}
	return false
}

// isTurns reports whether a type is a list of turns.
func isTurns(l layout.Layout, t arrow.DataType) bool {
	list, ok := t.(arrow.ListLikeType)
	if !ok || t.ID() == arrow.MAP {
		return false
	}
	switch e := list.Elem().(type) {
	case *arrow.StructType:
		role, ok1 := e.FieldByName(l.Role)
		content, ok2 := e.FieldByName(l.Text)
		return ok1 && ok2 && isText(role.Type) && (isText(content.Type) || isParts(content.Type))
	case *arrow.MapType:
		return isText(e.KeyType()) && isText(e.ItemType())
	}
	return false
}

// isParts reports whether a column is a content in parts: a list of structs with text.
func isParts(t arrow.DataType) bool {
	list, ok := t.(arrow.ListLikeType)
	if !ok || t.ID() == arrow.MAP {
		return false
	}
	e, ok := list.Elem().(*arrow.StructType)
	if !ok {
		return false
	}
	part, ok := e.FieldByName("text")
	return ok && isText(part.Type)
}

// watchedColumn is a column of which only presence (non-null, non-empty) is read.
type watchedColumn struct {
	name string
	col  arrow.Array
}

// arrowRows is a record batch.
type arrowRows struct {
	lay     layout.Layout
	bytes   int64
	watched []watchedColumn
	chosen  []arrow.Array // of Layout.Chosen
	whole   []wholeColumn // read as JSON

	content, teacher, response, id, finish, promptIDs, responseIDs, input, system, tools, env,
	thought, logprobs arrow.Array
}

// wholeColumn is a column that is read as JSON: itself, or paths that lead into it.
type wholeColumn struct {
	field arrow.Field
	col   arrow.Array
	paths bool
}

func (r *arrowRows) Size() int64 { return r.bytes }

func (r *arrowRows) At(i int) (raw layout.Raw, err error) {
	c, ok, err := arrowTurns(r.lay, r.lay.Content, r.content, i)
	if err != nil {
		return raw, err
	}
	raw.Take(c, ok)
	for _, col := range r.chosen {
		raw.Chosen = append(raw.Chosen, arrowCell(col, i))
	}
	for _, w := range r.watched {
		if present(w.col, i) {
			raw.Unread = append(raw.Unread, w.name)
		}
	}
	if _, turns := r.teacher.(array.ListLike); turns {
		if c, ok, err = arrowTurns(r.lay, r.lay.Teacher, r.teacher, i); err != nil {
			return raw, err
		}
		raw.TakeAnswer(c, ok)
	} else {
		raw.Teacher = arrowText(r.teacher, i)
	}
	raw.Input, raw.System, raw.Thought =
		arrowText(r.input, i), arrowText(r.system, i), arrowText(r.thought, i)
	if _, list := r.tools.(array.ListLike); list {
		value, err := jsonOf(r.lay.Tools, r.tools, i)
		if err == nil && value != nil {
			raw.Tools, _, err = layout.ReadList(r.lay.Tools, value)
		}
		if err != nil {
			return raw, err
		}
	} else if raw.Tools, err = layout.ListOf(r.lay.Tools, arrowText(r.tools, i)); err != nil {
		return raw, err
	}
	if raw.Env, err = arrowEnv(r.lay.Env, r.env, i); err != nil {
		return raw, err
	}
	if raw.Logprobs, err = arrowLogprobs(r.lay.Logprobs, r.logprobs, i); err != nil {
		return raw, err
	}
	raw.Response, raw.Finish = arrowText(r.response, i), arrowText(r.finish, i)
	if r.id != nil && arrow.IsInteger(r.id.DataType().ID()) {
		if !r.id.IsNull(i) {
			raw.ID = layout.TextOf(r.id.ValueStr(i))
		}
	} else {
		raw.ID = arrowText(r.id, i)
	}
	if raw.PromptIDs, err = arrowIDs(r.lay.PromptIDs, r.promptIDs, i); err != nil {
		return raw, err
	}
	if raw.ResponseIDs, err = arrowIDs(r.lay.ResponseIDs, r.responseIDs, i); err != nil {
		return raw, err
	}
	for _, w := range r.whole {
		value, err := fieldJSON(w.field, w.col, i)
		switch {
		case err != nil:
		case value == nil || string(value) == "null":
		case w.paths:
			err = r.lay.NestedIn(&raw, w.field.Name, value)
		default:
			err = r.lay.Column(&raw, w.field.Name, value)
		}
		if err != nil {
			return raw, err
		}
	}
	return raw, nil
}

// makeDictionaries makes the library build the dictionaries in a column now. It builds each at
// first use, and rows are read by several goroutines.
func makeDictionaries(a arrow.Array) {
	if a == nil || a.Len() == 0 {
		return
	}
	switch a := a.(type) {
	case *array.Dictionary:
		makeDictionaries(a.Dictionary())
	case array.ListLike: // a map too
		makeDictionaries(a.ListValues())
	case *array.Struct:
		for i := range a.NumField() {
			makeDictionaries(a.Field(i))
		}
	}
}

// arrowText returns a copy of string i of a column; a nil column has none. An index out of range
// panics, as everywhere below: Guard makes it an error.
func arrowText(a arrow.Array, i int) layout.Text {
	if a == nil || a.IsNull(i) {
		return layout.Text{}
	}
	var s string
	switch a := a.(type) {
	case *array.String:
		s = a.Value(i)
	case *array.LargeString:
		s = a.Value(i)
	case *array.StringView:
		s = a.Value(i)
	case *array.Binary:
		s = string(a.Value(i))
	case *array.LargeBinary:
		s = string(a.Value(i))
	case *array.BinaryView:
		s = string(a.Value(i))
	case *array.Dictionary:
		k := a.GetValueIndex(i)
		if k < 0 || k >= a.Dictionary().Len() {
			panic(fmt.Sprintf("dictionary index %d of %d", k, a.Dictionary().Len()))
		}
		return arrowText(a.Dictionary(), k)
	default:
		return layout.Text{}
	}
	if len(s) > layout.MaxRowBytes {
		panic("text of " + strconv.Itoa(len(s)) + " bytes")
	}
	return layout.TextOf(strings.Clone(s))
}

// arrowTurns returns the conversation at index i of a column.
func arrowTurns(l layout.Layout, column string, a arrow.Array,
	i int) (c layout.Conversation, ok bool, err error) {
	if a == nil || a.IsNull(i) {
		return c, false, nil
	}
	list, ok := a.(array.ListLike)
	if !ok {
		s := arrowText(a, i)
		if !s.OK {
			return c, false, nil
		}
		c, err = l.StringTurns(column, s.S)
		return c, err == nil, err
	}
	if actsIn(l, list, i) {
		value, err := jsonOf(column, a, i)
		if err == nil {
			c, err = l.JSONTurns(column, value)
		}
		return c, err == nil, err
	}
	start, end := listRange(list, i)
	c.Turns = make([]layout.Message, 0, end-start)
	total := 0
	for j := start; j < end; j++ {
		var t layout.Turn
		switch elems := list.ListValues().(type) {
		case *array.Struct:
			if !elems.IsNull(j) {
				t = arrowTurn(l, elems, j)
			}
		case *array.Map:
			first, last := listRange(elems, j)
			for k := first; k < last; k++ {
				switch key := arrowText(elems.Keys(), k).S; {
				case key == l.Role:
					t.Role = arrowText(elems.Items(), k)
				case key == l.Text:
					t.Content = arrowText(elems.Items(), k)
				case key == layout.OldCallKey && present(elems.Items(), k):
					t.Refused = key
				case slices.Contains(layout.MaybeTurn, key) && present(elems.Items(), k):
					t.Unread = append(t.Unread, key)
				}
			}
		}
		if err := c.Add(l, column, t); err != nil {
			return c, false, err
		}
		m := c.Turns[len(c.Turns)-1]
		if total += len(m.Role) + len(m.Content); total > layout.MaxRowBytes {
			return c, false, fmt.Errorf("column %q: more than %d MiB of text in one row: %w",
				column, layout.MaxRowBytes>>20, input.ErrCorrupt)
		}
	}
	return c, true, nil
}

// actsIn reports whether turns of list i have keys that only the JSON reader supports.
func actsIn(l layout.Layout, list array.ListLike, i int) bool {
	switch elems := list.ListValues().(type) {
	case *array.Struct:
		var keys []string
		for _, f := range elems.DataType().(*arrow.StructType).Fields() {
			if keys = append(keys, f.Name); f.Name == l.Text && isParts(f.Type) {
				var of []string
				part := f.Type.(arrow.ListLikeType).Elem().(*arrow.StructType)
				for _, k := range part.Fields() {
					of = append(of, k.Name)
				}
				if !layout.PlainPart(of) {
					return true
				}
			}
		}
		return layout.ActsAs(keys)
	case *array.Map:
		start, end := listRange(list, i)
		for j := start; j < end; j++ {
			first, last := listRange(elems, j)
			for k := first; k < last; k++ {
				if layout.ActsAs([]string{arrowText(elems.Keys(), k).S}) {
					return true
				}
			}
		}
	}
	return false
}

// arrowTurn returns turn j of a list of structs.
func arrowTurn(l layout.Layout, elems *array.Struct, j int) (t layout.Turn) {
	for k, f := range elems.DataType().(*arrow.StructType).Fields() {
		switch col := elems.Field(k); {
		case f.Name == l.Role:
			t.Role = arrowText(col, j)
		case f.Name == l.Text && isParts(f.Type):
			t.Content, t.Part = arrowParts(col.(array.ListLike), j)
		case f.Name == l.Text:
			t.Content = arrowText(col, j)
		case col.IsNull(j):
		case f.Name == layout.WeightKey &&
			(arrow.IsInteger(f.Type.ID()) || arrow.IsFloating(f.Type.ID())):
			w, err := strconv.ParseFloat(col.ValueStr(j), 64)
			t.Context = err == nil && w == 0
		case f.Name == layout.OldCallKey && present(col, j):
			t.Refused = f.Name
		case slices.Contains(layout.MaybeTurn, f.Name) && present(col, j):
			t.Unread = append(t.Unread, f.Name)
		}
	}
	return t
}

// arrowParts joins the texts of content i, which is in parts: see blocks. part is the type of a
// part that is not text.
func arrowParts(list array.ListLike, i int) (joined layout.Text, part string) {
	if list.IsNull(i) {
		return layout.Text{}, ""
	}
	start, end := listRange(list, i)
	elems := list.ListValues().(*array.Struct)
	typ := elems.DataType().(*arrow.StructType)
	at, _ := typ.FieldIdx("text")
	for j := start; j < end; j++ {
		t, kind := arrowText(elems.Field(at), j), layout.Text{}
		if k, ok := typ.FieldIdx("type"); ok {
			kind = arrowText(elems.Field(k), j)
		}
		if !layout.TextPart(kind, t) {
			return joined, cmp.Or(kind.S, "unknown")
		}
		if joined = (layout.TextOf(joined.S + t.S)); len(joined.S) > layout.MaxRowBytes {
			panic("text of " + strconv.Itoa(len(joined.S)) + " bytes")
		}
	}
	return joined, ""
}

// present reports whether value i of a column is more than null, a blank text or an empty list.
func present(a arrow.Array, i int) bool {
	if a.IsNull(i) {
		return false
	}
	switch a := a.(type) {
	case array.ListLike:
		start, end := listRange(a, i)
		return end > start
	case *array.Struct:
		for k := range a.NumField() {
			if present(a.Field(k), i) {
				return true
			}
		}
		return false
	}
	if t := arrowText(a, i); t.OK {
		return strings.TrimSpace(t.S) != ""
	}
	return !isText(a.DataType())
}

// listRange returns the range of elements of list i. It panics if the range is outside the values.
func listRange(list array.ListLike, i int) (start, end int) {
	a, b := list.ValueOffsets(i)
	if a < 0 || b < a || b > int64(list.ListValues().Len()) {
		panic(fmt.Sprintf("list of elements %d to %d of %d", a, b, list.ListValues().Len()))
	}
	return int(a), int(b)
}

// arrowIDs returns the token ids at index i of a column.
func arrowIDs(column string, a arrow.Array, i int) ([]int32, error) {
	if a == nil || a.IsNull(i) {
		return nil, nil
	}
	list, ok := a.(array.ListLike)
	if !ok {
		return nil, nil
	}
	start, end := listRange(list, i)
	ids := make([]int32, 0, end-start)
	for j := start; j < end; j++ {
		var v int64
		switch e := list.ListValues().(type) {
		case *array.Int8:
			v = int64(e.Value(j))
		case *array.Int16:
			v = int64(e.Value(j))
		case *array.Int32:
			v = int64(e.Value(j))
		case *array.Int64:
			v = e.Value(j)
		case *array.Uint8:
			v = int64(e.Value(j))
		case *array.Uint16:
			v = int64(e.Value(j))
		case *array.Uint32:
			v = int64(e.Value(j))
		case *array.Uint64:
			v = int64(min(e.Value(j), math.MaxInt64))
		}
		if list.ListValues().IsNull(j) || v < 0 || v > math.MaxInt32 {
			return nil, layout.NewFault(column, fmt.Sprintf("element %d is %d", j-start, v),
				"not a token id", "write integers from 0 to 2^31-1")
		}
		ids = append(ids, int32(v))
	}
	return ids, nil
}
