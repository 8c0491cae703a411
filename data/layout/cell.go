package layout

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// ErrChoice marks an invalid Choice: its text, its columns, or its ratings.
var ErrChoice = errors.New("choice of rows")

// cellKind is the kind of a cell's value.
type cellKind byte

const (
	NoCell     cellKind = iota // null, blank, or no such column
	NumberCell                 // also true and false: 1 and 0
	TextCell
	EitherCell // of CSV, which has no types: a text that parses as a number
	OtherCell  // a list, an object, a date: a choice cannot compare it
)

// Cell is one value of a column that a choice reads.
type Cell struct {
	Kind   cellKind
	Number float64
	Text   string // of OtherCell the name of its type
}

// String returns the value as a text; "" of NoCell, and the name of the type of OtherCell.
func (c Cell) String() string {
	if c.Kind == NumberCell {
		return strconv.FormatFloat(c.Number, 'g', -1, 64)
	}
	return c.Text
}

// BoolCell returns the cell of a bool.
func BoolCell(b bool) Cell {
	if b {
		return Cell{Kind: NumberCell, Number: 1}
	}
	return Cell{Kind: NumberCell}
}

// JSONCell returns the cell of a JSON value.
func JSONCell(value []byte) Cell {
	switch text := strings.TrimSpace(string(value)); {
	case text == "", text == "null":
		return Cell{}
	case text == "true", text == "false":
		return BoolCell(text == "true")
	case text[0] == '"':
		return Cell{Kind: TextCell, Text: unquote([]byte(text))}
	case text[0] == '[':
		return Cell{Kind: OtherCell, Text: "a list"}
	case text[0] == '{':
		return Cell{Kind: OtherCell, Text: "an object"}
	default:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) {
			return Cell{}
		}
		return Cell{Kind: NumberCell, Number: n}
	}
}

// CSVCell returns the cell of a value in a file without types.
func CSVCell(s string) Cell {
	s = strings.TrimSpace(s)
	if s == "" {
		return Cell{}
	}
	if n, err := strconv.ParseFloat(s, 64); err == nil && !math.IsNaN(n) {
		return Cell{Kind: EitherCell, Number: n, Text: s}
	}
	return Cell{Kind: TextCell, Text: s}
}
