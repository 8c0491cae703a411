package data

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// Values with a form of their own, as the arguments of calls have it, are read from Arrow and
// Parquet as the JSON that they would be in a file of JSON lines: one place knows what a turn is.

// listOf is readList of a text.
func listOf(key string, t text) (JSON, error) {
	if !t.ok || strings.TrimSpace(t.s) == "" {
		return "", nil
	}
	var b strings.Builder
	writeString(&b, t.s)
	j, _, err := readList(key, []byte(b.String()))
	return j, err
}

// envOf is readEnv of a text. A blank one is none.
func envOf(key string, t text) (JSON, error) {
	if !t.ok || strings.TrimSpace(t.s) == "" {
		return "", nil
	}
	return readEnv(key, []byte(t.s))
}

// arrowEnv is readEnv of value i of a column, which is the JSON itself where it is text.
func arrowEnv(column string, a arrow.Array, i int) (JSON, error) {
	if a == nil || isText(a.DataType()) {
		return envOf(column, arrowText(a, i))
	}
	value, err := jsonOf(column, a, i)
	if err != nil || value == nil {
		return "", err
	}
	return readEnv(column, value)
}

// arrowLogprobs is readLogprobsOf of value i of a column, which is the JSON itself where it is
// text.
func arrowLogprobs(column string, a arrow.Array, i int) (Logprobs, error) {
	if a == nil || isText(a.DataType()) {
		return logprobsOf(column, arrowText(a, i))
	}
	value, err := jsonOf(column, a, i)
	if err != nil || value == nil {
		return nil, err
	}
	return readLogprobsOf(column, value)
}

// arrowJSONType is the name of the extension type whose texts are JSON.
const arrowJSONType = "arrow.json"

// isJSON reports whether a field's texts are JSON, by its extension type, which the library does
// not know.
func isJSON(f arrow.Field) bool {
	at := f.Metadata.FindKey(ipc.ExtensionTypeKeyName)
	return at >= 0 && f.Metadata.Values()[at] == arrowJSONType
}

// hasJSON reports whether a field, or one within it, is JSON.
func hasJSON(f arrow.Field) bool {
	if isJSON(f) {
		return true
	}
	nested, ok := f.Type.(arrow.NestedType)
	return ok && slices.ContainsFunc(nested.Fields(), hasJSON)
}

// nullAt reports whether value i of a column is null; all of a column of the null type are.
func nullAt(a arrow.Array, i int) bool { return a.DataType().ID() == arrow.NULL || a.IsNull(i) }

// fieldJSON is value i of a column as JSON, with the values of JSON in it as they are; nil is none.
func fieldJSON(f arrow.Field, a arrow.Array, i int) (json.RawMessage, error) {
	if a == nil || nullAt(a, i) {
		return nil, nil
	}
	var b strings.Builder
	if err := arrowJSON(&b, f, a, i, 0); err != nil {
		return nil, &rowFault{f.Name, "", err.Error(), "re-encode the column"}
	}
	return json.RawMessage(b.String()), nil
}

// writeRaw writes a text that is JSON as its value.
func writeRaw(b *strings.Builder, s string) error {
	if !utf8.ValidString(s) || !json.Valid([]byte(s)) {
		return fmt.Errorf("%s: not JSON, as the column's type says", preview(s, 40))
	}
	if b.Len()+len(s) > maxRowBytes {
		return fmt.Errorf("more than %d MiB in one row", maxRowBytes>>20)
	}
	b.WriteString(strings.TrimSpace(s))
	return nil
}

// arrowJSON writes value i of a column, whose field is f. Nulls of a struct are left out.
func arrowJSON(b *strings.Builder, f arrow.Field, a arrow.Array, i, depth int) error {
	if depth > jsonLimit {
		return fmt.Errorf("nested more than %d deep", jsonLimit)
	}
	if nullAt(a, i) {
		b.WriteString("null")
		return nil
	}
	if t := arrowText(a, i); t.ok && isJSON(f) {
		return writeRaw(b, t.s)
	} else if t.ok {
		return writeText(b, t.s)
	}
	switch a := a.(type) {
	case *array.Boolean:
		b.WriteString(strconv.FormatBool(a.Value(i)))
	case *array.Float16:
		writeFloat(b, float64(a.Value(i).Float32()))
	case *array.Float32:
		writeFloat(b, float64(a.Value(i)))
	case *array.Float64:
		writeFloat(b, a.Value(i))
	case *array.Map:
		start, end := listRange(a, i)
		b.WriteByte('{')
		for n, k := 0, start; k < end; k++ {
			if a.Items().IsNull(k) {
				continue
			}
			if n++; n > 1 {
				b.WriteByte(',')
			}
			if err := writeText(b, arrowText(a.Keys(), k).s); err != nil {
				return err
			}
			b.WriteByte(':')
			if err := arrowJSON(b, a.DataType().(*arrow.MapType).ItemField(), a.Items(), k,
				depth+1); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	case array.ListLike:
		start, end := listRange(a, i)
		b.WriteByte('[')
		for k := start; k < end; k++ {
			if k > start {
				b.WriteByte(',')
			}
			if err := arrowJSON(b, a.DataType().(arrow.ListLikeType).ElemField(), a.ListValues(),
				k, depth+1); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case *array.Struct:
		b.WriteByte('{')
		n := 0
		for k, f := range a.DataType().(*arrow.StructType).Fields() {
			if nullAt(a.Field(k), i) {
				continue
			}
			if n++; n > 1 {
				b.WriteByte(',')
			}
			if err := writeText(b, f.Name); err != nil {
				return err
			}
			b.WriteByte(':')
			if err := arrowJSON(b, f, a.Field(k), i, depth+1); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	default:
		if arrow.IsInteger(a.DataType().ID()) {
			b.WriteString(a.ValueStr(i))
			return nil
		}
		return fmt.Errorf("a value of type %s", a.DataType())
	}
	if b.Len() > maxRowBytes {
		return fmt.Errorf("more than %d MiB in one row", maxRowBytes>>20)
	}
	return nil
}

func writeText(b *strings.Builder, s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("not valid UTF-8")
	}
	if b.Len()+len(s) > maxRowBytes {
		return fmt.Errorf("more than %d MiB in one row", maxRowBytes>>20)
	}
	writeString(b, s)
	return nil
}

// arrowCell is value i of a column that a choice of rows reads.
func arrowCell(a arrow.Array, i int) cell {
	value, err := jsonOf("", a, i)
	if err != nil {
		return cell{kind: otherCell, text: "of type " + a.DataType().String()}
	}
	return jsonCell(value)
}

// actsAs reports whether turns have keys that only the JSON reader knows.
func actsAs(keys []string) bool {
	return slices.ContainsFunc(keys, func(k string) bool {
		return slices.Contains(turnKeys, k) || slices.Contains(otherThoughts, k)
	})
}

// leavesOf are the columns with values below c.
func leavesOf(c *parquet.Column) (leaves []*parquet.Column) {
	if c.Leaf() {
		return []*parquet.Column{c}
	}
	for _, child := range c.Columns() {
		leaves = append(leaves, leavesOf(child)...)
	}
	return leaves
}

// notJSON reports whether a leaf's values are no JSON as they are stored: a date is a number of
// days.
func notJSON(c *parquet.Column) bool {
	if t := c.Type().LogicalType(); t != nil {
		switch t.Value.(type) {
		case *format.DateType, *format.TimeType, *format.TimestampType, *format.DecimalType:
			return true
		}
	}
	switch c.Type().Kind() {
	case parquet.Boolean, parquet.Int32, parquet.Int64, parquet.Float, parquet.Double,
		parquet.ByteArray:
		return false
	}
	return true
}

// leafJSON reports whether a leaf's texts are JSON, by its logical type.
func leafJSON(c *parquet.Column) bool {
	if !c.Leaf() || c.Type().Kind() != parquet.ByteArray || c.Type().LogicalType() == nil {
		return false
	}
	_, ok := c.Type().LogicalType().Value.(*format.JsonType)
	return ok
}

// leafNull reports whether a leaf is null in every row, by its logical type.
func leafNull(c *parquet.Column) bool {
	if !c.Leaf() || c.Type().LogicalType() == nil {
		return false
	}
	_, ok := c.Type().LogicalType().Value.(*format.NullType)
	return ok
}

func unsigned(t *format.LogicalType) bool {
	number, ok := t.Value.(*format.IntType)
	return ok && !number.IsSigned
}

// loadNested reads a column of row group b as the JSON of each row.
func (s *parquetSource) loadNested(b, n int, c *parquet.Column) ([]text, error) {
	var of [][][]leafValue // [leaves][rows]
	for _, leaf := range leavesOf(c) {
		var values []leafValue
		var first []int
		if err := s.leaf(b, leaf, func(v leafValue) error {
			if v.rep == 0 {
				first = append(first, len(values))
			}
			if len(first) == 0 {
				return fmt.Errorf("begins within a row: %w", ErrCorrupt)
			}
			values = append(values, v)
			return nil
		}); err != nil {
			return nil, err
		}
		if len(first) != n {
			return nil, fmt.Errorf("%d values in %d rows: %w", len(first), n, ErrCorrupt)
		}
		rows := make([][]leafValue, n)
		for i := range rows {
			end := len(values)
			if i+1 < n {
				end = first[i+1]
			}
			rows[i] = values[first[i]:end]
		}
		of = append(of, rows)
	}
	out := make([]text, n)
	for i := range out {
		row := make([][]leafValue, len(of))
		for k := range row {
			row[k] = of[k][i]
		}
		var w strings.Builder
		null, err := nested(&w, c, row, 0)
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", i, err)
		}
		if !null {
			out[i] = text{w.String(), true}
		}
	}
	return out, nil
}

// nested writes column c of the part of a row whose values are in row, by leaf; null says that it
// is none. Parquet stores where a value's lists begin (repetition) and how much of its path is
// there (definition).
func nested(b *strings.Builder, c *parquet.Column, row [][]leafValue,
	depth int) (null bool, err error) {
	if depth > jsonLimit {
		return false, fmt.Errorf("nested more than %d deep", jsonLimit)
	}
	for _, values := range row {
		if len(values) == 0 {
			return false, fmt.Errorf("its parts differ: %w", ErrCorrupt)
		}
	}
	if c.Repeated() { // the elements themselves, of a list without a name of its own
		return false, elements(b, c, row, depth,
			func(elem [][]leafValue) (bool, error) { return element(b, c, elem, depth+1) })
	}
	if c.Optional() && row[0][0].def < c.MaxDefinitionLevel() {
		b.WriteString("null")
		return true, nil
	}
	return element(b, c, row, depth)
}

// elements writes a list: an element begins with a value that repeats at the list's level.
func elements(b *strings.Builder, c *parquet.Column, row [][]leafValue, depth int,
	one func([][]leafValue) (bool, error)) error {
	b.WriteByte('[')
	at := make([]int, len(row))
	for n := 0; at[0] < len(row[0]) && row[0][0].def >= c.MaxDefinitionLevel(); n++ {
		elem := make([][]leafValue, len(row))
		for k, values := range row {
			end := at[k] + 1
			for end < len(values) && values[end].rep > c.MaxRepetitionLevel() {
				end++
			}
			if at[k] >= len(values) {
				return fmt.Errorf("its parts differ: %w", ErrCorrupt)
			}
			elem[k], at[k] = values[at[k]:end], end
		}
		if n > 0 {
			b.WriteByte(',')
		}
		if _, err := one(elem); err != nil {
			return err
		}
	}
	b.WriteByte(']')
	if b.Len() > maxRowBytes {
		return fmt.Errorf("more than %d MiB in one row", maxRowBytes>>20)
	}
	return nil
}

// element writes a value that is there.
func element(b *strings.Builder, c *parquet.Column, row [][]leafValue,
	depth int) (null bool, err error) {
	if c.Leaf() {
		v := row[0][0]
		switch {
		case leafJSON(c) && v.text.ok:
			return v.text.s == "null", writeRaw(b, v.text.s)
		case c.Type().Kind() == parquet.ByteArray && v.text.ok:
			return false, writeText(b, v.text.s)
		case !v.text.ok:
			b.WriteString("null")
			return true, nil
		}
		switch c.Type().Kind() {
		case parquet.Int32, parquet.Int64:
			switch t := c.Type().LogicalType(); {
			case t == nil || !unsigned(t):
				b.WriteString(strconv.FormatInt(v.number, 10))
			case c.Type().Kind() == parquet.Int32:
				b.WriteString(strconv.FormatUint(uint64(uint32(v.number)), 10))
			default:
				b.WriteString(strconv.FormatUint(uint64(v.number), 10))
			}
		case parquet.Boolean:
			b.WriteString(strconv.FormatBool(v.number != 0))
		case parquet.Float, parquet.Double:
			writeFloat(b, math.Float64frombits(v.float))
		default:
			return false, fmt.Errorf("a value of type %s", typeName(c))
		}
		return false, nil
	}
	children := c.Columns()
	if len(children) == 1 && children[0].Repeated() && !c.Repeated() {
		return false, listed(b, children[0], row, depth)
	}
	b.WriteByte('{')
	n, at := 0, 0
	for _, child := range children {
		k := len(leavesOf(child))
		var value strings.Builder
		null, err := nested(&value, child, row[at:at+k], depth+1)
		if at += k; err != nil {
			return false, err
		}
		if null {
			continue
		}
		if n++; n > 1 {
			b.WriteByte(',')
		}
		if err := writeText(b, child.Name()); err != nil {
			return false, err
		}
		b.WriteByte(':')
		b.WriteString(value.String())
	}
	b.WriteByte('}')
	return false, nil
}

// listed writes a list or a map: a group with one repeated child.
func listed(b *strings.Builder, c *parquet.Column, row [][]leafValue, depth int) error {
	parts := c.Columns()
	if len(parts) == 2 && parts[0].Name() == "key" && parts[1].Name() == "value" &&
		parts[0].Leaf() {
		var entries strings.Builder
		if err := elements(&entries, c, row, depth, func(elem [][]leafValue) (bool, error) {
			if err := writeText(&entries, elem[0][0].text.s); err != nil {
				return false, err
			}
			entries.WriteByte(':')
			return nested(&entries, parts[1], elem[1:], depth+1)
		}); err != nil {
			return err
		}
		s := entries.String()
		b.WriteString("{" + s[1:len(s)-1] + "}")
		return nil
	}
	return elements(b, c, row, depth, func(elem [][]leafValue) (bool, error) {
		if len(parts) == 1 && c.Name() != "array" && !strings.HasSuffix(c.Name(), "_tuple") {
			return nested(b, parts[0], elem, depth+1)
		}
		return element(b, c, elem, depth+1)
	})
}

// jsonOf is value i of an Arrow column without JSON in it; nil is none.
func jsonOf(column string, a arrow.Array, i int) (json.RawMessage, error) {
	return fieldJSON(arrow.Field{Name: column}, a, i)
}
