package parquet

import (
	"fmt"
	"gad/data/input"
	"gad/data/layout"
	"gad/internal/chat"
	"math"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// Values of any structure, such as the arguments of calls, are converted to the JSON that a file of
// JSON lines would have: only package layout interprets turns.

// leavesOf returns the columns with values below c.
func leavesOf(c *parquet.Column) (leaves []*parquet.Column) {
	if c.Leaf() {
		return []*parquet.Column{c}
	}
	for _, child := range c.Columns() {
		leaves = append(leaves, leavesOf(child)...)
	}
	return leaves
}

// notJSON reports whether a leaf's stored values cannot stand for themselves in JSON: a date is a
// number of days.
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

// unsigned reports whether a type is an unsigned integer.
func unsigned(t *format.LogicalType) bool {
	number, ok := t.Value.(*format.IntType)
	return ok && !number.IsSigned
}

// loadNested reads a column of row group b as the JSON of each row.
func (s *parquetSource) loadNested(b, n int, c *parquet.Column) ([]layout.Text, error) {
	var of [][][]leafValue // [leaves][rows]
	for _, leaf := range leavesOf(c) {
		var values []leafValue
		var first []int
		if err := s.leaf(b, leaf, func(v leafValue) error {
			if v.rep == 0 {
				first = append(first, len(values))
			}
			if len(first) == 0 {
				return fmt.Errorf("begins within a row: %w", input.ErrCorrupt)
			}
			values = append(values, v)
			return nil
		}); err != nil {
			return nil, err
		}
		if len(first) != n {
			return nil, fmt.Errorf("%d values in %d rows: %w", len(first), n, input.ErrCorrupt)
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
	out := make([]layout.Text, n)
	for i := range out {
		row := make([][]leafValue, len(of))
		for k := range row {
			row[k] = of[k][i]
		}
		var w strings.Builder
		null, err := writeNested(&w, c, row, 0)
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", i, err)
		}
		if !null {
			out[i] = layout.TextOf(w.String())
		}
	}
	return out, nil
}

// writeNested writes the value of column c of a part of a row as JSON; row has its values by leaf.
// null reports an absent value. Parquet stores the beginnings of a value's lists (repetition) and
// the length of its path that exists (definition).
func writeNested(b *strings.Builder, c *parquet.Column, row [][]leafValue,
	depth int) (null bool, err error) {
	if depth > layout.JSONLimit {
		return false, fmt.Errorf("nested more than %d deep", layout.JSONLimit)
	}
	for _, values := range row {
		if len(values) == 0 {
			return false, fmt.Errorf("its parts differ: %w", input.ErrCorrupt)
		}
	}
	if c.Repeated() { // the elements themselves, of a list without a name of its own
		return false, writeElements(b, c, row, depth,
			func(elem [][]leafValue) (bool, error) { return writeElement(b, c, elem, depth+1) })
	}
	if c.Optional() && row[0][0].def < c.MaxDefinitionLevel() {
		b.WriteString("null")
		return true, nil
	}
	return writeElement(b, c, row, depth)
}

// writeElements writes a list: an element begins with a value that repeats at the list's level.
func writeElements(b *strings.Builder, c *parquet.Column, row [][]leafValue, depth int,
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
				return fmt.Errorf("its parts differ: %w", input.ErrCorrupt)
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
	if b.Len() > layout.MaxRowBytes {
		return fmt.Errorf("more than %d MiB in one row", layout.MaxRowBytes>>20)
	}
	return nil
}

// writeElement writes a value that is present.
func writeElement(b *strings.Builder, c *parquet.Column, row [][]leafValue,
	depth int) (null bool, err error) {
	if c.Leaf() {
		v := row[0][0]
		switch {
		case leafJSON(c) && v.text.OK:
			return v.text.S == "null", layout.WriteRaw(b, v.text.S)
		case c.Type().Kind() == parquet.ByteArray && v.text.OK:
			return false, layout.WriteText(b, v.text.S)
		case !v.text.OK:
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
			chat.WriteFloat(b, math.Float64frombits(v.float))
		default:
			return false, fmt.Errorf("a value of type %s", typeName(c))
		}
		return false, nil
	}
	children := c.Columns()
	if len(children) == 1 && children[0].Repeated() && !c.Repeated() {
		return false, writeList(b, children[0], row, depth)
	}
	b.WriteByte('{')
	n, at := 0, 0
	for _, child := range children {
		k := len(leavesOf(child))
		var value strings.Builder
		null, err := writeNested(&value, child, row[at:at+k], depth+1)
		if at += k; err != nil {
			return false, err
		}
		if null {
			continue
		}
		if n++; n > 1 {
			b.WriteByte(',')
		}
		if err := layout.WriteText(b, child.Name()); err != nil {
			return false, err
		}
		b.WriteByte(':')
		b.WriteString(value.String())
	}
	b.WriteByte('}')
	return false, nil
}

// writeList writes a list or a map: a group with one repeated child.
func writeList(b *strings.Builder, c *parquet.Column, row [][]leafValue, depth int) error {
	parts := c.Columns()
	if len(parts) == 2 && parts[0].Name() == "key" && parts[1].Name() == "value" &&
		parts[0].Leaf() {
		var entries strings.Builder
		if err := writeElements(&entries, c, row, depth, func(elem [][]leafValue) (bool, error) {
			if err := layout.WriteText(&entries, elem[0][0].text.S); err != nil {
				return false, err
			}
			entries.WriteByte(':')
			return writeNested(&entries, parts[1], elem[1:], depth+1)
		}); err != nil {
			return err
		}
		s := entries.String()
		b.WriteString("{" + s[1:len(s)-1] + "}")
		return nil
	}
	return writeElements(b, c, row, depth, func(elem [][]leafValue) (bool, error) {
		if len(parts) == 1 && c.Name() != "array" && !strings.HasSuffix(c.Name(), "_tuple") {
			return writeNested(b, parts[0], elem, depth+1)
		}
		return writeElement(b, c, elem, depth+1)
	})
}
