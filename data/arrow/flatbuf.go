package arrow

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
)

// The metadata of Arrow's messages are flatbuffers. The Arrow library reads them without checks,
// and allocates by the counts in them. This file reads just enough of them, with every access
// checked, to make them safe for the library.
//
// A flatbuffer table starts at a position; the int32 there points back to its vtable, which gives
// for each field the field's distance from the table, or 0 where the field is absent. Source: the
// FlatBuffers internals document, and Arrow's format/{Schema,Message,File}.fbs for the field
// numbers.

var errFlatbuffer = errors.New("metadata points outside itself")

type fbTable struct {
	b      []byte
	pos    int // of the table
	vt     int // of its vtable
	vtLen  int // bytes of the vtable
	length int // bytes of the table
}

// fbRoot returns the root table of b.
func fbRoot(b []byte) (fbTable, error) {
	if len(b) < 8 {
		return fbTable{}, errFlatbuffer
	}
	return fbAt(b, int64(binary.LittleEndian.Uint32(b)))
}

// fbAt returns the table at pos, after checking it and its vtable.
func fbAt(b []byte, pos int64) (fbTable, error) {
	if pos < 4 || pos > int64(len(b))-4 {
		return fbTable{}, errFlatbuffer
	}
	vt := pos - int64(int32(binary.LittleEndian.Uint32(b[pos:])))
	if vt < 0 || vt > int64(len(b))-4 {
		return fbTable{}, errFlatbuffer
	}
	vtLen := int64(binary.LittleEndian.Uint16(b[vt:]))
	length := int64(binary.LittleEndian.Uint16(b[vt+2:]))
	if vtLen < 4 || vtLen%2 != 0 || vt+vtLen > int64(len(b)) || length < 4 ||
		pos+length > int64(len(b)) {
		return fbTable{}, errFlatbuffer
	}
	return fbTable{b, int(pos), int(vt), int(vtLen), int(length)}, nil
}

// field returns the position of a field of size bytes, 0 if it is absent.
func (t fbTable) field(i, size int) (int, error) {
	slot := 4 + 2*i
	if slot >= t.vtLen {
		return 0, nil
	}
	off := int(binary.LittleEndian.Uint16(t.b[t.vt+slot:]))
	if off == 0 {
		return 0, nil
	}
	if off < 4 || off+size > t.length {
		return 0, errFlatbuffer
	}
	return t.pos + off, nil
}

// integer returns a scalar field of 1, 2, 4 or 8 bytes, 0 if it is absent.
func (t fbTable) integer(i, size int) (int64, error) {
	pos, err := t.field(i, size)
	if err != nil || pos == 0 {
		return 0, err
	}
	switch b := t.b[pos:]; size {
	case 1:
		return int64(int8(b[0])), nil
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(b))), nil
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b))), nil
	default:
		return int64(binary.LittleEndian.Uint64(b)), nil
	}
}

// target returns the position to which an offset field points, -1 if it is absent.
func (t fbTable) target(i int) (int64, error) {
	pos, err := t.field(i, 4)
	if err != nil || pos == 0 {
		return -1, err
	}
	return int64(pos) + int64(binary.LittleEndian.Uint32(t.b[pos:])), nil
}

// table returns the table to which a field points; ok is false if it is absent.
func (t fbTable) table(i int) (sub fbTable, ok bool, err error) {
	pos, err := t.target(i)
	if err != nil || pos < 0 {
		return fbTable{}, false, err
	}
	sub, err = fbAt(t.b, pos)
	return sub, err == nil, err
}

// vector returns the position of the first element, of size bytes, of a vector field, and their
// number.
func (t fbTable) vector(i, size int) (first, n int, err error) {
	pos, err := t.target(i)
	if err != nil || pos < 0 {
		return 0, 0, err
	}
	if pos > int64(len(t.b))-4 {
		return 0, 0, errFlatbuffer
	}
	count := int64(binary.LittleEndian.Uint32(t.b[pos:]))
	if count > (int64(len(t.b))-pos-4)/int64(size) {
		return 0, 0, fmt.Errorf("a list of %d in %d bytes: %w", count, len(t.b), errFlatbuffer)
	}
	return int(pos) + 4, int(count), nil
}

// tables returns the elements of a vector of tables.
func (t fbTable) tables(i int) ([]fbTable, error) {
	first, n, err := t.vector(i, 4)
	if err != nil {
		return nil, err
	}
	out := make([]fbTable, n)
	for k := range out {
		pos := first + 4*k
		if out[k], err = fbAt(t.b,
			int64(pos)+int64(binary.LittleEndian.Uint32(t.b[pos:]))); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkString checks a string field.
func (t fbTable) checkString(i int) error {
	_, _, err := t.vector(i, 1)
	return err
}

const (
	maxSchemaFields = 4096 // fields of a schema, nested ones included
	maxSchemaDepth  = 32
)

// checkSchema checks a Schema table. Tables may be shared between fields, so that the visited
// fields are counted: a small file could otherwise unfold into an exponential schema.
func checkSchema(schema fbTable) error {
	budget := maxSchemaFields
	fields, err := schema.tables(1)
	if err != nil {
		return err
	}
	if err := checkKeyValues(schema, 2); err != nil {
		return err
	}
	for _, f := range fields {
		if err := checkField(f, maxSchemaDepth, &budget); err != nil {
			return err
		}
	}
	return nil
}

// checkField checks a Field table and its children, which budget counts.
func checkField(f fbTable, depth int, budget *int) error {
	if *budget--; *budget < 0 || depth == 0 {
		return fmt.Errorf("schema of more than %d fields or %d levels", maxSchemaFields,
			maxSchemaDepth)
	}
	if err := f.checkString(0); err != nil {
		return err
	}
	kind, err := f.integer(2, 1)
	if err != nil {
		return err
	}
	typ, ok, err := f.table(3)
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("a field without a type")
	}
	const union = 14
	if kind == union {
		if _, _, err := typ.vector(1, 4); err != nil { // typeIds
			return err
		}
	}
	if dict, ok, err := f.table(4); err != nil {
		return err
	} else if ok {
		if _, err := dict.integer(0, 8); err != nil {
			return err
		}
		if _, _, err := dict.table(1); err != nil {
			return err
		}
	}
	if err := checkKeyValues(f, 6); err != nil {
		return err
	}
	children, err := f.tables(5)
	if err != nil {
		return err
	}
	for _, c := range children {
		if err := checkField(c, depth-1, budget); err != nil {
			return err
		}
	}
	return nil
}

// checkKeyValues checks a field of metadata pairs.
func checkKeyValues(t fbTable, i int) error {
	pairs, err := t.tables(i)
	if err != nil {
		return err
	}
	if len(pairs) > maxSchemaFields {
		return fmt.Errorf("%d metadata pairs", len(pairs))
	}
	for _, p := range pairs {
		if err := cmp.Or(p.checkString(0), p.checkString(1)); err != nil {
			return err
		}
	}
	return nil
}
