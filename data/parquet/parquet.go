// Package parquet reads Parquet files as rows of data, one row group at a time: parquet.go has the
// columns, nested.go their values as JSON, pagecheck.go and thrift.go the checks before the library
// decodes.
package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"gad/data/input"
	"gad/data/layout"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// parquetSource reads Parquet files, one row group at a time.
//
// The Parquet library allocates the sizes that page headers and compressed pages declare, and one
// of its decompressors retries for ever on damaged input. So it never sees the file itself. The
// pages of a column are cut out and decompressed here, within bounds; the library decodes a small
// file in memory of one column, uncompressed, with headers made here.
type parquetSource struct {
	input.Sized
	end    int64 // offset of the footer
	lay    layout.Layout
	meta   format.FileMetaData
	root   *parquet.Column
	leaves int
	fields map[string]parquetField // by column name
	chosen []chosenColumn
	whole  []string       // columns that are read as JSON: see Layout.Column
	paths  []parquetField // columns into which paths lead
}

// parquetField maps the leaves of a column to its values.
//
// A row of a list has elements; in a list of maps an element has entries, otherwise it is one.
// Definition levels at or above defList, defElem and defEntry mean that the list, an element, an
// entry of it exists.
type parquetField struct {
	kind fieldKind
	// text: value; turns: role and content, or key and value; ids: element
	leaves                     [2]*parquet.Column
	defList, defElem, defEntry int
	repElem                    int // repetition level at which a new element begins

	extras    []parquetExtra  // of turns
	nested    *parquet.Column // a column that is read as JSON: see nested.go
	parts     *parquet.Column // text of the parts of a turn's content, where it is in parts
	partTypes *parquet.Column // their types; nil is all text
	defPart   int             // definition level from which on a part exists
}

// parquetExtra is a key of turns, or a column, of which only presence (non-null, non-empty) is
// read: WeightKey, OldCallKey, MaybeTurn and Layout.Watched.
type parquetExtra struct {
	name string
	leaf *parquet.Column // its first leaf
	def  int             // definition level from which on it is present
}

// extraOf returns a column's extra: the definition level at which a list has an element, or a
// struct or value exists.
func extraOf(c *parquet.Column) parquetExtra {
	e := parquetExtra{name: c.Name(), def: c.MaxDefinitionLevel()}
	list := false
	for e.leaf = c; !e.leaf.Leaf(); e.leaf = e.leaf.Columns()[0] {
		if e.leaf.Repeated() && !list {
			list, e.def = true, e.leaf.MaxDefinitionLevel()
		}
	}
	if e.leaf.Repeated() && !list {
		e.def = e.leaf.MaxDefinitionLevel()
	}
	return e
}

// present reports whether v, a value of the extra's leaf, is non-null and not a blank text.
func (e parquetExtra) present(v leafValue) bool {
	if e.leaf.Type().Kind() == parquet.ByteArray && v.text.OK {
		return strings.TrimSpace(v.text.S) != ""
	}
	return v.def >= e.def && v.def > 0
}

type fieldKind int

const (
	textField fieldKind = iota + 1
	turnsField
	mapsField
	idsField
	numberField
	watchedField
	nestedField
)

const (
	maxParquetColumns = 4096
	maxParquetDepth   = 16
)

// Open reads the footer of a Parquet file.
func Open(file input.Input, size int64) (layout.Source, error) {
	s := &parquetSource{Sized: input.Sized{File: file, Size: size}, fields: map[string]parquetField{}}
	if size < 12 {
		return nil, fmt.Errorf("file of %d bytes: %w", size, input.ErrTruncated)
	}
	tail, err := s.ReadAt(size-8, 8)
	if err != nil {
		return nil, err
	}
	if string(tail[4:]) != "PAR1" {
		return nil, fmt.Errorf("does not end with PAR1: %w: write it again", input.ErrTruncated)
	}
	n := int64(binary.LittleEndian.Uint32(tail))
	if s.end = size - 8 - n; s.end < 4 {
		return nil, fmt.Errorf("footer of %d bytes in a file of %d: %w", n, size, input.ErrCorrupt)
	}
	footer, err := s.ReadAt(s.end, n)
	if err != nil {
		return nil, err
	}
	if k, err := thriftStruct(footer, 0); err != nil || k != len(footer) {
		return nil, fmt.Errorf("footer: %d of %d bytes are metadata: %w", k, len(footer),
			input.ErrCorrupt)
	}
	if err := thrift.Unmarshal(new(thrift.CompactProtocol), footer, &s.meta); err != nil {
		return nil, fmt.Errorf("footer: %w", input.Corrupt(err))
	}
	if err := s.checkMeta(); err != nil {
		return nil, err
	}
	f, err := s.library(nil, nil)
	if err != nil {
		return nil, err
	}
	s.root = f.Root()
	return s, nil
}

// checkMeta checks the schema's shape and the offsets and counts of the row groups.
func (s *parquetSource) checkMeta() error {
	schema := s.meta.Schema
	if len(schema) == 0 || len(schema) > maxParquetColumns {
		return fmt.Errorf("schema of %d columns, expected 1 to %d: %w", len(schema),
			maxParquetColumns, input.ErrCorrupt)
	}
	next := 0
	var walk func(depth int) error
	walk = func(depth int) error {
		if next >= len(schema) || depth > maxParquetDepth {
			return fmt.Errorf("schema does not match its counts: %w", input.ErrCorrupt)
		}
		e := schema[next]
		next++
		if !e.NumChildren.Valid || e.NumChildren.V == 0 {
			s.leaves++
		}
		for range max(e.NumChildren.V, 0) {
			if err := walk(depth + 1); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(0); err != nil {
		return err
	}
	if next != len(schema) {
		return fmt.Errorf("schema does not match its counts: %w", input.ErrCorrupt)
	}
	rows := int64(0)
	for i, g := range s.meta.RowGroups {
		if g.NumRows < 0 || g.NumRows > layout.MaxRows || len(g.Columns) != s.leaves {
			return fmt.Errorf("row group %d: %d rows, %d columns of %d: %w", i, g.NumRows,
				len(g.Columns), s.leaves, input.ErrCorrupt)
		}
		if rows += g.NumRows; rows > layout.MaxRows {
			return fmt.Errorf("more than %d rows: too many for one set: split it", layout.MaxRows)
		}
	}
	if rows != s.meta.NumRows {
		return fmt.Errorf("row groups of %d rows, %d in all: %w", rows, s.meta.NumRows,
			input.ErrTruncated)
	}
	return nil
}

// library opens a file in memory with this file's schema and, if g is not nil, one row group with
// the given pages for each of its columns.
func (s *parquetSource) library(g *format.RowGroup, pages []byte) (*parquet.File, error) {
	meta := format.FileMetaData{Version: 1, Schema: s.meta.Schema}
	if g != nil {
		meta.RowGroups = []format.RowGroup{*g}
		meta.NumRows = g.NumRows
	}
	footer, err := thrift.Marshal(new(thrift.CompactProtocol), &meta)
	if err != nil {
		return nil, err
	}
	file := make([]byte, 0, len(pages)+len(footer)+12)
	file = append(append(append(file, "PAR1"...), pages...), footer...)
	file = append(binary.LittleEndian.AppendUint32(file, uint32(len(footer))), "PAR1"...)
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)), parquet.SkipPageIndex(true),
		parquet.SkipBloomFilters(true), parquet.FileReadMode(parquet.ReadModeSync))
	if err != nil {
		return nil, input.Corrupt(err)
	}
	return f, nil
}

// TurnKeys returns the names of a turn's parts, if the column is a list of structs.
func (s *parquetSource) TurnKeys(column string) (keys []string) {
	c := s.root.Column(column)
	if c == nil || c.Leaf() {
		return nil
	}
	f, last := descend(c, func(c *parquet.Column) bool { return len(c.Columns()) > 1 })
	if last == nil || f.repElem != 1 {
		return nil
	}
	for _, part := range last.Columns() {
		keys = append(keys, part.Name())
	}
	if slices.Equal(keys, []string{"key", "value"}) {
		return nil // a map
	}
	return keys
}

// Bind finds the leaves of the wanted columns. A column that cannot be read is an error; an id is
// left out then.
func (s *parquetSource) Bind(l layout.Layout) (note string, err error) {
	s.lay = l
	for _, c := range s.root.Columns() {
		var f parquetField
		want, optional := "", false
		if at := slices.Index(l.Chosen, c.Name()); at >= 0 {
			field := parquetField{kind: nestedField, nested: c}
			if slices.ContainsFunc(leavesOf(c), notJSON) || s.readable(field) != nil {
				return "", input.NewError(fmt.Sprintf("column %q: type %s: a choice of rows reads numbers and texts: convert the column", c.Name(), typeName(c)), layout.ErrChoice)
			}
			s.chosen = append(s.chosen, chosenColumn{at, field})
		}
		whole := parquetField{kind: nestedField, nested: c}
		if l.Leads(c.Name()) {
			if slices.ContainsFunc(leavesOf(c), notJSON) {
				return "", fmt.Errorf("column %q: type %s: a path leads into it, and not all of it is text or number: convert the column", c.Name(), typeName(c))
			}
			if err := s.readable(whole); err != nil {
				return "", err
			}
			s.paths = append(s.paths, whole)
		}
		number := isLeaf(c, parquet.Int32, parquet.Int64, parquet.Float, parquet.Double) &&
			!notJSON(c) && (c.Name() == l.Teacher || c.Name() == l.Response)
		teacher := c.Name() == l.TeacherPrompt && !leafNull(c)
		if teacher && slices.ContainsFunc(leavesOf(c), notJSON) {
			return "", fmt.Errorf("column %q: type %s: a teacher's prompt is text: convert the column", c.Name(), typeName(c))
		}
		if c.Name() != "" && l.Reads(c.Name()) &&
			(number || teacher || slices.ContainsFunc(leavesOf(c), leafJSON) &&
				!slices.ContainsFunc(leavesOf(c), notJSON)) {
			if err := s.readable(whole); err != nil {
				return "", err
			}
			s.fields[c.Name()], s.whole = whole, append(s.whole, c.Name())
			continue
		}
		if leafNull(c) {
			continue // no row has a value
		}
		switch c.Name() {
		case "":
			continue
		case l.Content:
			f, want =
				turnsOf(l, c), fmt.Sprintf("a list of struct{%s, %s} or a string", l.Role, l.Text)
		case l.Teacher:
			if f, want = textOf(c), "a string"; f.kind == 0 {
				f = turnsOf(l, c)
			}
		case l.Tools:
			if f, want = textOf(c), "a list of structs, or its JSON as a string"; f.kind == 0 &&
				!c.Leaf() {
				f = parquetField{kind: nestedField, nested: c}
			}
		case l.Env:
			if f, want =
				textOf(c), "a struct, list, number or bool, or JSON as a string"; f.kind == 0 &&
				!slices.ContainsFunc(leavesOf(c), notJSON) {
				f = parquetField{kind: nestedField, nested: c}
			}
		case l.Logprobs:
			if f, want = textOf(c), "a list of structs, or its JSON as a string"; f.kind == 0 &&
				!c.Leaf() && !slices.ContainsFunc(leavesOf(c), notJSON) {
				f = parquetField{kind: nestedField, nested: c}
			}
		case l.Response, l.Input, l.System, l.Thought:
			f, want = textOf(c), "a string"
		case l.ID:
			if f = textOf(c); f.kind == 0 && isLeaf(c, parquet.Int32, parquet.Int64) {
				f = parquetField{kind: numberField, leaves: [2]*parquet.Column{c}}
			}
			want, optional = "a string or an integer", true
		case l.Finish:
			f, want, optional = textOf(c), "a string", true
		case l.PromptIDs, l.ResponseIDs:
			f, want = idsOf(c), "a list of integers"
		default:
			if slices.Contains(l.Watched, c.Name()) {
				f = parquetField{kind: watchedField, extras: []parquetExtra{extraOf(c)}}
				if s.readable(f) == nil {
					s.fields[c.Name()] = f
				}
			}
			continue
		}
		if f.kind == 0 {
			err = fmt.Errorf("column %q: type %s: expected %s: convert the column", c.Name(),
				typeName(c), want)
		} else {
			err = s.readable(f)
		}
		if err != nil && optional {
			note, err = fmt.Sprintf("%v: left out", err), nil
			if c.Name() == l.ID {
				s.lay.ID = ""
			} else {
				s.lay.Finish = ""
			}
			continue
		}
		if err != nil {
			return "", err
		}
		s.fields[c.Name()] = f
	}
	return note, nil
}

// readable returns an error for a column whose compression or encoding, by the footer, is not
// supported.
func (s *parquetSource) readable(f parquetField) error {
	leaves := append(f.leaves[:], f.parts, f.partTypes)
	if f.nested != nil {
		leaves = append(leaves, leavesOf(f.nested)...)
	}
	for _, e := range f.extras {
		leaves = append(leaves, e.leaf)
	}
	for _, leaf := range leaves {
		if leaf == nil {
			continue
		}
		for i := range s.meta.RowGroups {
			m := &s.meta.RowGroups[i].Columns[leaf.Index()].MetaData
			name := strings.Join(leaf.Path(), ".")
			if _, ok := pageCodecs[m.Codec]; !ok {
				return fmt.Errorf("column %q: compressed with %s, which is not read: write it with zstd, snappy, gzip, brotli or lz4_raw", name, m.Codec)
			}
			for _, e := range m.Encoding {
				// those two are of levels
				if e != format.RLE && e != format.BitPacked && !slices.Contains(pageEncodings, e) {
					return fmt.Errorf("column %q: encoded as %s, which is not read: write it with plain, dictionary or delta encoding", name, e)
				}
			}
		}
	}
	return nil
}

func isLeaf(c *parquet.Column, kinds ...parquet.Kind) bool {
	return c.Leaf() && c.MaxRepetitionLevel() == 0 && slices.Contains(kinds, c.Type().Kind())
}

// textOf returns the field of a column of text, of kind 0 for another column.
func textOf(c *parquet.Column) parquetField {
	if !isLeaf(c, parquet.ByteArray) {
		return parquetField{}
	}
	return parquetField{kind: textField, leaves: [2]*parquet.Column{c}}
}

// descend follows groups with one child down to the first column for which stop returns true, and
// records the first repeated column that it passes.
func descend(c *parquet.Column,
	stop func(*parquet.Column) bool) (f parquetField, last *parquet.Column) {
	f.defList = c.MaxDefinitionLevel()
	if c.Repeated() {
		f.defList--
	}
	for {
		if c.Repeated() && f.repElem == 0 {
			f.repElem, f.defElem = c.MaxRepetitionLevel(), c.MaxDefinitionLevel()
		}
		if stop(c) {
			return f, c
		}
		if len(c.Columns()) != 1 {
			return f, nil
		}
		c = c.Columns()[0]
	}
}

// turnsOf returns the field of a list of turns, of kind 0 for another column.
func turnsOf(l layout.Layout, c *parquet.Column) parquetField {
	if f := textOf(c); f.kind != 0 {
		return f
	}
	isString := func(c *parquet.Column) bool {
		return c != nil && c.Leaf() &&
			c.Type().Kind() == parquet.ByteArray
	}
	partsOf := func(c *parquet.Column) (f parquetField, part *parquet.Column) {
		if c == nil || c.Leaf() {
			return f, nil
		}
		f, part = descend(c, func(c *parquet.Column) bool { return isString(c.Column("text")) })
		if f.repElem != 2 {
			return f, nil
		}
		return f, part
	}
	for _, names := range [][2]string{{l.Role, l.Text}, {"key", "value"}} {
		f, last := descend(c, func(c *parquet.Column) bool {
			_, part := partsOf(c.Column(names[1]))
			return isString(c.Column(names[0])) &&
				(isString(c.Column(names[1])) || part != nil && names[0] == l.Role)
		})
		if last == nil || f.repElem != 1 {
			continue
		}
		f.leaves = [2]*parquet.Column{last.Column(names[0]), last.Column(names[1])}
		f.defEntry = last.MaxDefinitionLevel()
		depth := f.leaves[0].MaxRepetitionLevel()
		if in, part := partsOf(f.leaves[1]); part != nil && names[0] == l.Role && depth == 1 {
			f.leaves[1], f.parts, f.defPart = nil, part.Column("text"), in.defElem
			if kind := part.Column("type"); isString(kind) && kind.MaxRepetitionLevel() == 2 {
				f.partTypes = kind
			}
		}
		switch {
		case f.parts == nil && f.leaves[1].MaxRepetitionLevel() != depth:
		case names[0] == l.Role && depth == 1:
			var keys []string
			for _, key := range last.Columns() {
				keys = append(keys, key.Name())
			}
			var parts []string
			if _, part := partsOf(last.Column(names[1])); part != nil {
				for _, key := range part.Columns() {
					parts = append(parts, key.Name())
				}
			}
			if layout.ActsAs(keys) || !layout.PlainPart(parts) {
				return parquetField{kind: nestedField, nested: c}
			}
			f.kind = turnsField
			for _, key := range last.Columns() {
				if name := key.Name(); name == layout.WeightKey || name == layout.OldCallKey ||
					slices.Contains(layout.MaybeTurn, name) {
					f.extras = append(f.extras, extraOf(key))
				}
			}
			return f
		case names[0] == "key" && depth == 2:
			f.kind = mapsField
			return f
		}
	}
	return parquetField{}
}

// idsOf returns the field of a list of integers, of kind 0 for another column.
func idsOf(c *parquet.Column) parquetField {
	f, last := descend(c, func(c *parquet.Column) bool { return c.Leaf() })
	if last == nil || last.MaxRepetitionLevel() != 1 {
		return parquetField{}
	}
	if k := last.Type().Kind(); k != parquet.Int32 && k != parquet.Int64 {
		return parquetField{}
	}
	f.kind, f.leaves[0] = idsField, last
	return f
}

// typeName returns a column's type in a few words.
func typeName(c *parquet.Column) string {
	if c.Leaf() {
		return strings.ToLower(c.Type().String())
	}
	children := c.Columns()
	if len(children) == 1 && children[0].Repeated() {
		return "list<" + typeName(children[0]) + ">"
	}
	if len(children) == 1 && (c.Repeated() || c.Name() == "list") {
		return typeName(children[0])
	}
	var parts []string
	for _, child := range children {
		parts = append(parts, child.Name()+": "+typeName(child))
	}
	return "struct<" + strings.Join(parts, ", ") + ">"
}

// Keys returns the names of a struct's fields.
func (s *parquetSource) Keys(column string) (keys []string) {
	c := s.root.Column(column)
	if c == nil || c.Leaf() || len(c.Columns()) == 1 && c.Columns()[0].Repeated() {
		return nil
	}
	for _, part := range c.Columns() {
		keys = append(keys, part.Name())
	}
	return keys
}

func (s *parquetSource) Format() string { return "parquet" }
func (s *parquetSource) Close() error   { return s.File.Close() }

func (s *parquetSource) Schema() []layout.Column {
	var out []layout.Column
	for _, c := range s.root.Columns() {
		out = append(out, layout.Column{Name: c.Name(), Type: typeName(c)})
	}
	return out
}

func (s *parquetSource) BatchRows() []int {
	n := make([]int, len(s.meta.RowGroups))
	for i, g := range s.meta.RowGroups {
		n[i] = int(g.NumRows)
	}
	return n
}

// pageEncodings are the supported encodings.
var pageEncodings = []format.Encoding{format.Plain, format.PlainDictionary, format.RLEDictionary,
	format.DeltaLengthByteArray, format.DeltaBinaryPacked, format.DeltaByteArray}

// pageCodecs are the supported compressions; -1 is none.
var pageCodecs = map[format.CompressionCodec]int64{
	format.Uncompressed: -1, format.Snappy: input.CodecSnappy, format.Gzip: input.CodecGzip,
	format.Brotli: input.CodecBrotli, format.Zstd: input.CodecZstd, format.Lz4Raw: input.CodecLZ4Raw,
}

// pages returns the pages of a leaf's chunk uncompressed, with fresh headers, and the size of the
// dictionary page if there is one.
func (s *parquetSource) pages(leaf *parquet.Column,
	c *format.ColumnChunk) (out []byte, dict int, err error) {
	m := &c.MetaData
	codec, ok := pageCodecs[m.Codec]
	if !ok {
		return nil, 0, fmt.Errorf("compressed with %s: not read", m.Codec)
	}
	if c.FilePath != "" || len(c.EncryptedColumnMetadata) > 0 {
		return nil, 0, errors.New(
			"stored in another file or encrypted: not read: write the set into one plain file")
	}
	at := m.DataPageOffset
	if d := m.DictionaryPageOffset; d > 0 && d < at {
		at = d
	}
	if at < 4 || m.TotalCompressedSize < 0 || m.TotalCompressedSize > s.end-at {
		return nil, 0, fmt.Errorf("bytes %d+%d of the %d before the footer: %w", at,
			m.TotalCompressedSize, s.end, input.ErrTruncated)
	}
	chunk, err := s.ReadAt(at, m.TotalCompressedSize)
	if err != nil {
		return nil, 0, err
	}
	limit := input.MaxDecoded(int64(len(chunk)))
	total, values := int64(0), int64(0)
	for len(chunk) > 0 && values < m.NumValues {
		n, err := thriftStruct(chunk, 0)
		if err != nil {
			return nil, 0, fmt.Errorf("page header: %w: %w", err, input.ErrCorrupt)
		}
		var h format.PageHeader
		if err := thrift.Unmarshal(new(thrift.CompactProtocol), chunk[:n], &h); err != nil {
			return nil, 0, fmt.Errorf("page header: %w", input.Corrupt(err))
		}
		chunk = chunk[n:]
		if h.CompressedPageSize < 0 || int64(h.CompressedPageSize) > int64(len(chunk)) ||
			h.UncompressedPageSize < 0 {
			return nil, 0, fmt.Errorf("page of %d bytes, %d uncompressed, %d are left: %w",
				h.CompressedPageSize, h.UncompressedPageSize, len(chunk), input.ErrCorrupt)
		}
		page := chunk[:h.CompressedPageSize]
		chunk = chunk[h.CompressedPageSize:]
		if h.CRC != 0 && crc32.ChecksumIEEE(page) != uint32(h.CRC) {
			return nil, 0, fmt.Errorf("page does not match its checksum: %w: copy the file again",
				input.ErrCorrupt)
		}
		if total += int64(h.UncompressedPageSize); total > limit {
			return nil, 0, fmt.Errorf(
				"%d bytes expand to %d and more: %w: write it with less compression",
				m.TotalCompressedSize, total, input.ErrCorrupt)
		}

		levels, packed := 0, codec >= 0
		var count int32
		var encoding format.Encoding
		switch h.Type {
		case format.DictionaryPage:
			if dict != 0 || values > 0 {
				return nil, 0, fmt.Errorf("dictionary page in the middle of the column: %w",
					input.ErrCorrupt)
			}
			count, encoding = h.DictionaryPageHeader.V.NumValues, h.DictionaryPageHeader.V.Encoding
			if encoding != format.Plain && encoding != format.PlainDictionary {
				return nil, 0, fmt.Errorf("dictionary with encoding %s: %w", encoding, input.ErrCorrupt)
			}
		case format.DataPage:
			count, encoding = h.DataPageHeader.V.NumValues, h.DataPageHeader.V.Encoding
		case format.DataPageV2:
			v := &h.DataPageHeaderV2.V
			count, encoding = v.NumValues, v.Encoding
			if v.RepetitionLevelsByteLength < 0 || v.DefinitionLevelsByteLength < 0 ||
				v.NumNulls < 0 || v.NumNulls > v.NumValues ||
				int64(v.RepetitionLevelsByteLength)+int64(v.DefinitionLevelsByteLength) > min(
					int64(len(page)), int64(h.UncompressedPageSize)) {
				return nil, 0, fmt.Errorf("levels of %d+%d bytes in a page of %d: %w",
					v.RepetitionLevelsByteLength, v.DefinitionLevelsByteLength, len(page),
					input.ErrCorrupt)
			}
			levels = int(v.RepetitionLevelsByteLength + v.DefinitionLevelsByteLength)
			packed = packed && (!v.IsCompressed.Valid || v.IsCompressed.V)
			v.IsCompressed.V, v.IsCompressed.Valid = false, true
		default:
			continue
		}
		if !slices.Contains(pageEncodings, encoding) {
			return nil, 0, fmt.Errorf("page with encoding %s: not read: write the column with plain or dictionary encoding", encoding)
		}
		// A run of equal values takes next to nothing, so the bound is loose.
		if count < 0 || int64(count) > 1<<20+8*int64(h.UncompressedPageSize) {
			return nil, 0, fmt.Errorf("page of %d values in %d bytes: %w", count,
				h.UncompressedPageSize, input.ErrCorrupt)
		}
		if h.Type != format.DictionaryPage {
			if values += int64(count); values > 1<<21+8*total {
				return nil, 0, fmt.Errorf("%d values in %d bytes: %w: write smaller row groups",
					values, total, input.ErrCorrupt)
			}
		}

		plain := page
		if packed {
			plain = slices.Clone(page[:levels])
			if rest := int64(h.UncompressedPageSize) - int64(levels); rest > 0 ||
				len(page) > levels {
				if plain, err = input.Decode(plain, page[levels:], rest, codec); err != nil {
					return nil, 0, err
				}
			}
		}
		if len(plain) != int(h.UncompressedPageSize) {
			return nil, 0, fmt.Errorf("page of %d bytes, not %d: %w", len(plain),
				h.UncompressedPageSize, input.ErrCorrupt)
		}
		if h.Type != format.DictionaryPage {
			if err := checkPage(leaf, &h, plain); err != nil {
				return nil, 0, fmt.Errorf("page: %w", err)
			}
		}
		if int64(len(out))+int64(len(plain)) > math.MaxInt32 {
			return nil, 0, errors.New("more than 2 GiB in one row group: write smaller row groups")
		}
		if encoding == format.DeltaByteArray && h.Type != format.DictionaryPage {
			if plain, err = plainDelta(&h, leaf, plain, limit-total); err != nil {
				return nil, 0, fmt.Errorf("page: %w", err)
			}
			total += int64(len(plain))
		}
		// Statistics are of no use here and could hold anything.
		h.DataPageHeader.V.Statistics, h.DataPageHeaderV2.V.Statistics =
			format.Statistics{}, format.Statistics{}
		h.UncompressedPageSize, h.CompressedPageSize, h.CRC =
			int32(len(plain)), int32(len(plain)), 0
		head, err := thrift.Marshal(new(thrift.CompactProtocol), &h)
		if err != nil {
			return nil, 0, err
		}
		out = append(append(out, head...), plain...)
		if h.Type == format.DictionaryPage {
			dict = len(out)
		}
	}
	if values != m.NumValues {
		return nil, 0, fmt.Errorf("pages of %d values, the footer says %d: %w", values, m.NumValues,
			input.ErrTruncated)
	}
	return out, dict, nil
}

// leafValue is one value of a leaf with its levels.
type leafValue struct {
	text     layout.Text
	number   int64
	float    uint64 // its bits
	rep, def int
}

// leaf reads leaf c of row group g and calls f for each value in turn.
func (s *parquetSource) leaf(g int, c *parquet.Column, f func(leafValue) error) error {
	group := &s.meta.RowGroups[g]
	chunk := group.Columns[c.Index()]
	pages, dict, err := s.pages(c, &chunk)
	if err != nil {
		return err
	}
	if len(pages) == 0 {
		return nil
	}
	small := format.RowGroup{NumRows: group.NumRows,
		Columns: make([]format.ColumnChunk, len(group.Columns))}
	for i := range small.Columns {
		m := &small.Columns[i].MetaData
		m.Type, m.Codec = group.Columns[i].MetaData.Type, format.Uncompressed
		m.DataPageOffset = 4
	}
	m := &small.Columns[c.Index()].MetaData
	m.NumValues = chunk.MetaData.NumValues
	m.TotalCompressedSize, m.TotalUncompressedSize = int64(len(pages)), int64(len(pages))
	m.DataPageOffset = int64(4 + dict)
	if dict > 0 {
		m.DictionaryPageOffset = 4
	}
	file, err := s.library(&small, pages)
	if err != nil {
		return err
	}
	reader := file.RowGroups()[0].ColumnChunks()[c.Index()].Pages()
	defer reader.Close()
	known := map[*byte]string{} // a dictionary's strings are copied once
	buf := make([]parquet.Value, 256)
	left := chunk.MetaData.NumValues
	for left > 0 {
		page, err := reader.ReadPage()
		if err != nil {
			return input.Corrupt(err)
		}
		shared := page.Dictionary() != nil
		values := page.Values()
		for {
			n, err := values.ReadValues(buf)
			if left -= int64(n); left < 0 {
				return fmt.Errorf("more values than the footer says: %w", input.ErrCorrupt)
			}
			for _, v := range buf[:n] {
				out := leafValue{rep: v.RepetitionLevel(), def: v.DefinitionLevel()}
				switch v.Kind() {
				case parquet.ByteArray:
					b := v.ByteArray()
					out.text.OK = true
					if shared && len(b) > 0 {
						t, ok := known[&b[0]]
						if !ok || len(t) != len(b) {
							t = string(b)
							known[&b[0]] = t
						}
						out.text.S = t
					} else {
						out.text.S = string(b)
					}
				case parquet.Int32:
					out.text.OK, out.number = true, int64(v.Int32())
				case parquet.Int64:
					out.text.OK, out.number = true, v.Int64()
				case parquet.Boolean:
					out.text.OK = true
					if v.Boolean() {
						out.number = 1
					}
				case parquet.Float, parquet.Double: // of a weight is only asked whether it is 0
					x := v.Double()
					if v.Kind() == parquet.Float {
						x = float64(v.Float())
					}
					if out.text.OK, out.float = true, math.Float64bits(x); x != 0 {
						out.number = 1
					}
				}
				if err := f(out); err != nil {
					return err
				}
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return input.Corrupt(err)
			}
			if n == 0 {
				return fmt.Errorf("page gives no values: %w", input.ErrCorrupt)
			}
		}
		parquet.Release(page)
	}
	return nil
}

// parquetRows are the columns of a row group. The slices of a list column hold the elements of all
// rows; row i has the elements first[i] to first[i+1]-1.
type parquetRows struct {
	lay     layout.Layout
	text    map[string][]layout.Text
	lists   map[string]*parquetList
	nested  map[string]bool // columns whose text is the JSON of their values
	watched []watchedRows
	chosen  [][]layout.Cell // [columns][rows]
	whole   []string        // columns of nested that Layout.Column reads
	paths   []pathRows
	bytes   int64
}

// pathRows is a column, as JSON, into which paths lead.
type pathRows struct {
	column string
	value  []layout.Text
}

// chosenColumn is the at-th column that a choice of rows reads.
type chosenColumn struct {
	at int
	parquetField
}

// watchedRows marks the rows with a value in a watched column.
type watchedRows struct {
	column  string
	present []bool
}

type parquetList struct {
	first   []int32
	null    []bool // rows without a list
	role    []layout.Text
	content []layout.Text
	more    []layout.Turn // values of the extras, by element; nil without extras
	ids     []int64
}

func (s *parquetSource) Load(b int) (layout.Rows, error) {
	n := int(s.meta.RowGroups[b].NumRows)
	r := &parquetRows{lay: s.lay, whole: s.whole, text: map[string][]layout.Text{},
		lists:  map[string]*parquetList{},
		nested: map[string]bool{}}
	for _, c := range s.chosen {
		values, err := s.loadNested(b, n, c.nested)
		if err != nil {
			return nil, fmt.Errorf("row group %d: column %q: %w", b, s.lay.Chosen[c.at], err)
		}
		if r.chosen == nil {
			r.chosen = make([][]layout.Cell, len(s.lay.Chosen))
		}
		for _, v := range values {
			r.chosen[c.at] = append(r.chosen[c.at], layout.JSONCell([]byte(v.S)))
		}
		r.bytes += 48 * int64(n)
	}
	for _, f := range s.paths {
		values, err := s.loadNested(b, n, f.nested)
		if err != nil {
			return nil, fmt.Errorf("row group %d: column %q: %w", b, f.nested.Name(), err)
		}
		for _, t := range values {
			r.bytes += int64(len(t.S)) + 24
		}
		r.paths = append(r.paths, pathRows{f.nested.Name(), values})
	}
	for name, f := range s.fields {
		var err error
		switch f.kind {
		case textField, numberField:
			r.text[name], err = s.loadText(b, n, f)
		case turnsField, idsField:
			r.lists[name], err = s.loadList(b, n, f)
		case mapsField:
			r.lists[name], err = s.loadMaps(b, n, f)
		case nestedField:
			r.nested[name] = true
			r.text[name], err = s.loadNested(b, n, f.nested)
			for _, t := range r.text[name] {
				r.bytes += int64(len(t.S)) + 24
			}
		case watchedField:
			w := watchedRows{name, make([]bool, 0, n)}
			err = s.leaf(b, f.extras[0].leaf, func(v leafValue) error {
				if v.rep == 0 {
					w.present = append(w.present, false)
				}
				if len(w.present) > 0 && f.extras[0].present(v) {
					w.present[len(w.present)-1] = true
				}
				return nil
			})
			if err == nil && len(w.present) != n {
				err = fmt.Errorf("%d values in %d rows: %w", len(w.present), n, input.ErrCorrupt)
			}
			r.watched = append(r.watched, w)
		}
		if err != nil {
			return nil, fmt.Errorf("row group %d: column %q: %w", b, name, err)
		}
		for _, leaf := range f.leaves {
			if leaf != nil {
				r.bytes += max(
					s.meta.RowGroups[b].Columns[leaf.Index()].MetaData.TotalUncompressedSize, 0) +
					24*int64(n)
			}
		}
	}
	return r, nil
}

// loadText reads a column of text, or of numbers as text.
func (s *parquetSource) loadText(b, n int, f parquetField) ([]layout.Text, error) {
	var out []layout.Text
	err := s.leaf(b, f.leaves[0], func(v leafValue) error {
		if f.kind == numberField && v.text.OK {
			v.text.S = strconv.FormatInt(v.number, 10)
		}
		out = append(out, v.text)
		return nil
	})
	if err == nil && len(out) != n {
		err = fmt.Errorf("%d values in %d rows: %w", len(out), n, input.ErrCorrupt)
	}
	return out, err
}

// loadList reads a list of turns or of integers. Each leaf has the same rows and elements; the
// second leaf is checked against the first.
func (s *parquetSource) loadList(b, n int, f parquetField) (*parquetList, error) {
	list := &parquetList{}
	for k, leaf := range f.leaves {
		if leaf == nil {
			continue
		}
		var first []int32
		var null []bool
		count := int32(0)
		err := s.leaf(b, leaf, func(v leafValue) error {
			if v.rep == 0 {
				first, null = append(first, count), append(null, v.def < f.defList)
			}
			if len(first) == 0 {
				return fmt.Errorf("begins within a row: %w", input.ErrCorrupt)
			}
			if v.def < f.defElem {
				return nil // no elements
			}
			count++
			switch {
			case f.kind == idsField && !v.text.OK:
				list.ids = append(list.ids, -1)
			case f.kind == idsField:
				list.ids = append(list.ids, v.number)
			case k == 0:
				list.role = append(list.role, v.text)
			default:
				list.content = append(list.content, v.text)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		first = append(first, count)
		if len(first) != n+1 || k == 1 && !slices.Equal(first, list.first) {
			return nil, fmt.Errorf("%d rows, not %d, or its parts differ: %w", len(first)-1, n,
				input.ErrCorrupt)
		}
		list.first, list.null = first, null
	}
	if f.kind == turnsField && (len(f.extras) > 0 || f.parts != nil) {
		list.more = make([]layout.Turn, len(list.role))
	}
	for _, e := range f.extras {
		err := s.eachTurn(b, f, e.leaf, list, func(t *layout.Turn, v leafValue) error {
			switch {
			case e.name == layout.WeightKey:
				t.Context = v.text.OK && v.number == 0 && e.leaf.Type().Kind() != parquet.ByteArray
			case !e.present(v):
			case e.name == layout.OldCallKey:
				t.Refused = e.name
			case !slices.Contains(t.Unread, e.name):
				t.Unread = append(t.Unread, e.name)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", e.name, err)
		}
	}
	return list, s.loadParts(b, f, list)
}

// loadParts joins the texts of contents in parts: see blocks.
func (s *parquetSource) loadParts(b int, f parquetField, list *parquetList) error {
	if f.parts == nil {
		return nil
	}
	copied := 0
	err := s.eachTurn(b, f, f.parts, list, func(t *layout.Turn, v leafValue) error {
		switch {
		case v.def < f.defPart:
		case !v.text.OK:
			t.Part = "unknown"
		case !t.Content.OK:
			t.Content = v.text
		default: // a dictionary can name a long text many times
			if copied += len(t.Content.S) + len(v.text.S); copied > 4*layout.MaxRowBytes {
				return fmt.Errorf("more than %d MiB of text in parts: %w: write smaller row groups",
					4*layout.MaxRowBytes>>20, input.ErrCorrupt)
			}
			t.Content.S += v.text.S
		}
		return nil
	})
	if err != nil || f.partTypes == nil {
		return err
	}
	return s.eachTurn(b, f, f.partTypes, list, func(t *layout.Turn, v leafValue) error {
		if v.def >= f.defPart && !layout.TextPart(v.text, layout.TextOf("")) {
			t.Part = v.text.S
		}
		return nil
	})
}

// eachTurn reads a leaf within turns and calls do for each value with its turn in list.more.
func (s *parquetSource) eachTurn(b int, f parquetField, leaf *parquet.Column, list *parquetList,
	do func(*layout.Turn, leafValue) error) error {
	elem := -1
	err := s.leaf(b, leaf, func(v leafValue) error {
		if v.def < f.defElem {
			return nil // no elements
		}
		if v.rep <= f.repElem {
			elem++
		}
		if elem < 0 || elem >= len(list.more) {
			return fmt.Errorf("element %d of %d: %w", elem, len(list.more), input.ErrCorrupt)
		}
		return do(&list.more[elem], v)
	})
	if err == nil && elem+1 != len(list.more) {
		err = fmt.Errorf("%d elements of %d: %w", elem+1, len(list.more), input.ErrCorrupt)
	}
	return err
}

// loadMaps reads a list of maps whose keys are role and content.
func (s *parquetSource) loadMaps(b, n int, f parquetField) (*parquetList, error) {
	list := &parquetList{}
	var keys []layout.Text
	err := s.leaf(b, f.leaves[0], func(v leafValue) error {
		keys = append(keys, v.text)
		return nil
	})
	if err != nil {
		return nil, err
	}
	at := 0
	err = s.leaf(b, f.leaves[1], func(v leafValue) error {
		if at >= len(keys) {
			return fmt.Errorf("more values than keys: %w", input.ErrCorrupt)
		}
		key := keys[at]
		at++
		if v.rep == 0 {
			list.first, list.null =
				append(list.first, int32(len(list.role))), append(list.null, v.def < f.defList)
		}
		if len(list.first) == 0 {
			return fmt.Errorf("begins within a row: %w", input.ErrCorrupt)
		}
		if v.def < f.defElem {
			return nil
		}
		if v.rep < 2 {
			list.role, list.content, list.more =
				append(list.role, layout.Text{}), append(list.content, layout.Text{}),
				append(list.more, layout.Turn{})
		}
		if last := len(list.role) - 1; v.def >= f.defEntry && last >= 0 {
			says := strings.TrimSpace(v.text.S) != ""
			switch {
			case key.S == s.lay.Role:
				list.role[last] = v.text
			case key.S == s.lay.Text:
				list.content[last] = v.text
			case key.S == "tool_calls" && says:
				calls, err := layout.ListOf(key.S, v.text)
				if list.more[last].Calls = calls; err != nil {
					list.more[last].Refused = key.S
				}
			case key.S == "tool_call_id":
				list.more[last].ID = v.text
			case key.S == "name":
				list.more[last].Name = v.text
			case key.S == "reasoning_content":
				list.more[last].Thought = v.text
			case slices.Contains(layout.OtherThoughts, key.S) && v.text.OK:
				if !list.more[last].Thought.OK { // the first that is present
					list.more[last].Thought = v.text
				}
			case key.S == layout.TrainKey:
				list.more[last].Context = v.text.S == "false"
			case says && key.S == layout.OldCallKey:
				list.more[last].Refused = key.S
			case says && slices.Contains(layout.MaybeTurn, key.S):
				list.more[last].Unread = append(list.more[last].Unread, key.S)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	list.first = append(list.first, int32(len(list.role)))
	if len(list.first) != n+1 || at != len(keys) {
		return nil, fmt.Errorf("%d rows, not %d: %w", len(list.first)-1, n, input.ErrCorrupt)
	}
	return list, nil
}

func (r *parquetRows) Size() int64 { return r.bytes }

func (r *parquetRows) At(i int) (raw layout.Raw, err error) {
	str := func(column string) layout.Text {
		if slices.Contains(r.whole, column) {
			return layout.Text{}
		}
		if col := r.text[column]; col != nil {
			return col[i]
		}
		return layout.Text{}
	}
	for _, column := range r.chosen {
		raw.Chosen = append(raw.Chosen, column[i])
	}
	if !r.nested[r.lay.Teacher] {
		raw.Teacher = str(r.lay.Teacher)
	}
	raw.Response, raw.ID = str(r.lay.Response), str(r.lay.ID)
	raw.Input, raw.System, raw.Finish, raw.Thought =
		str(r.lay.Input), str(r.lay.System), str(r.lay.Finish), str(r.lay.Thought)
	if t := str(r.lay.Tools); t.OK && r.nested[r.lay.Tools] {
		raw.Tools, _, err = layout.ReadList(r.lay.Tools, []byte(t.S))
	} else {
		raw.Tools, err = layout.ListOf(r.lay.Tools, t)
	}
	if err != nil {
		return raw, err
	}
	if t := str(r.lay.Env); t.OK && r.nested[r.lay.Env] {
		raw.Env, err = layout.ReadEnv(r.lay.Env, []byte(t.S))
	} else {
		raw.Env, err = layout.EnvOf(r.lay.Env, t)
	}
	if err != nil {
		return raw, err
	}
	if raw.Logprobs, err = layout.LogprobsOf(r.lay.Logprobs, str(r.lay.Logprobs)); err != nil {
		return raw, err
	}
	turns := func(column string) (c layout.Conversation, ok bool, err error) {
		if r.nested[column] {
			t := str(column)
			if t.OK {
				c, err = r.lay.JSONTurns(column, []byte(t.S))
			}
			return c, t.OK && err == nil, err
		}
		if s := str(column); s.OK && column == r.lay.Content {
			c, err = r.lay.StringTurns(column, s.S)
			return c, err == nil, err
		}
		list := r.lists[column]
		if list == nil || list.null[i] {
			return c, false, nil
		}
		first, last := list.first[i], list.first[i+1]
		c.Turns = make([]layout.Message, 0, last-first)
		for j := first; j < last; j++ {
			var t layout.Turn
			if list.more != nil {
				t = list.more[j]
			}
			if t.Role = list.role[j]; len(list.content) > 0 {
				t.Content = list.content[j]
			}
			if err := c.Add(r.lay, column, t); err != nil {
				return c, false, err
			}
		}
		return c, true, nil
	}
	c, ok, err := turns(r.lay.Content)
	if err != nil {
		return raw, err
	}
	raw.Take(c, ok)
	if c, ok, err = turns(r.lay.Teacher); err != nil {
		return raw, err
	}
	raw.TakeAnswer(c, ok)
	for _, w := range r.watched {
		if w.present[i] {
			raw.Unread = append(raw.Unread, w.column)
		}
	}
	ids := func(column string) (out []int32) {
		list := r.lists[column]
		if list == nil || err != nil || list.null[i] {
			return nil
		}
		out = []int32{}
		for k, v := range list.ids[list.first[i]:list.first[i+1]] {
			if v < 0 || v > math.MaxInt32 {
				err = layout.NewFault(column, fmt.Sprintf("element %d is %d", k, v), "not a token id",
					"write integers from 0 to 2^31-1")
				return nil
			}
			out = append(out, int32(v))
		}
		return out
	}
	raw.PromptIDs, raw.ResponseIDs = ids(r.lay.PromptIDs), ids(r.lay.ResponseIDs)
	if err != nil {
		return raw, err
	}
	for _, column := range r.whole {
		if t := r.text[column][i]; t.OK {
			if err := r.lay.Column(&raw, column, []byte(t.S)); err != nil {
				return raw, err
			}
		}
	}
	for _, p := range r.paths {
		if t := p.value[i]; t.OK {
			if err := r.lay.NestedIn(&raw, p.column, []byte(t.S)); err != nil {
				return raw, err
			}
		}
	}
	return raw, nil
}
