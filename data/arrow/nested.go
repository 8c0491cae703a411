package arrow

import (
	"encoding/json"
	"fmt"
	"gad/data/layout"
	"gad/internal/chat"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"
)

// Values of any structure, such as the arguments of calls, are converted to the JSON that a file of
// JSON lines would have: only package layout interprets turns.

// arrowEnv returns value i of a column for an environment; text in the column is the JSON itself.
func arrowEnv(column string, a arrow.Array, i int) (layout.JSON, error) {
	if a == nil || isText(a.DataType()) {
		return layout.EnvOf(column, arrowText(a, i))
	}
	value, err := jsonOf(column, a, i)
	if err != nil || value == nil {
		return "", err
	}
	return layout.ReadEnv(column, value)
}

// arrowLogprobs returns the log-probabilities in value i of a column; text in the column is the
// JSON itself.
func arrowLogprobs(column string, a arrow.Array, i int) (layout.Logprobs, error) {
	if a == nil || isText(a.DataType()) {
		return layout.LogprobsOf(column, arrowText(a, i))
	}
	value, err := jsonOf(column, a, i)
	if err != nil || value == nil {
		return nil, err
	}
	return layout.ReadLogprobsOf(column, value)
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

// nullAt reports whether value i of a column is null; a column of the null type has only nulls.
func nullAt(a arrow.Array, i int) bool { return a.DataType().ID() == arrow.NULL || a.IsNull(i) }

// fieldJSON returns value i of a column as JSON, with JSON in it unquoted; nil for null.
func fieldJSON(f arrow.Field, a arrow.Array, i int) (json.RawMessage, error) {
	if a == nil || nullAt(a, i) {
		return nil, nil
	}
	var b strings.Builder
	if err := arrowJSON(&b, f, a, i, 0); err != nil {
		return nil, layout.NewFault(f.Name, "", err.Error(), "re-encode the column")
	}
	return json.RawMessage(b.String()), nil
}

// arrowJSON writes value i of a column, whose field is f. Nulls of a struct are left out.
func arrowJSON(b *strings.Builder, f arrow.Field, a arrow.Array, i, depth int) error {
	if depth > layout.JSONLimit {
		return fmt.Errorf("nested more than %d deep", layout.JSONLimit)
	}
	if nullAt(a, i) {
		b.WriteString("null")
		return nil
	}
	if t := arrowText(a, i); t.OK && isJSON(f) {
		return layout.WriteRaw(b, t.S)
	} else if t.OK {
		return layout.WriteText(b, t.S)
	}
	switch a := a.(type) {
	case *array.Boolean:
		b.WriteString(strconv.FormatBool(a.Value(i)))
	case *array.Float16:
		chat.WriteFloat(b, float64(a.Value(i).Float32()))
	case *array.Float32:
		chat.WriteFloat(b, float64(a.Value(i)))
	case *array.Float64:
		chat.WriteFloat(b, a.Value(i))
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
			if err := layout.WriteText(b, arrowText(a.Keys(), k).S); err != nil {
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
			if err := layout.WriteText(b, f.Name); err != nil {
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
	if b.Len() > layout.MaxRowBytes {
		return fmt.Errorf("more than %d MiB in one row", layout.MaxRowBytes>>20)
	}
	return nil
}

// arrowCell returns value i of a column that a choice of rows reads.
func arrowCell(a arrow.Array, i int) layout.Cell {
	value, err := jsonOf("", a, i)
	if err != nil {
		return layout.Cell{Kind: layout.OtherCell, Text: "of type " + a.DataType().String()}
	}
	return layout.JSONCell(value)
}

// jsonOf returns value i of an Arrow column without the JSON extension type; nil for null.
func jsonOf(column string, a arrow.Array, i int) (json.RawMessage, error) {
	return fieldJSON(arrow.Field{Name: column}, a, i)
}
