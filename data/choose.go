package data

import (
	"cmp"
	"fmt"
	"gad/data/input"
	"gad/data/layout"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Choice selects the rows of the files that a set has. The zero value selects all.
type Choice struct {
	// Where is a condition, such as "right > 0 and subset = math": comparisons of a column with a
	// number or a text, joined by and. A row without the column's value does not meet it. "": all
	// rows.
	Where string
	// Ratings is a file of gad data rate, whose columns Where may name in addition to the files'
	// own. "": none.
	Ratings string
}

// Check returns an error, which wraps ErrChoice, for a choice that does not parse.
func (c Choice) Check() error {
	_, err := parseCondition(c.Where)
	return err
}

// comparison is COLUMN OP VALUE.
type comparison struct {
	column, op string
	value      layout.Cell // a number or a text
}

// condition is a list of comparisons that must all hold.
type condition []comparison

var (
	// a column, an operator, and a value: a number, a quoted text or a word
	compares = regexp.MustCompile(
		`^\s*(?:"([^"]+)"|([\pL_][\pL\pN_./-]*))\s*(<=|>=|!=|==|=|<|>)\s*(?:'([^']*)'|"([^"]*)"|([^\s'"<>=!|&,;]+))`)
	joined = regexp.MustCompile(`^\s+and\s`)
)

// choiceErr returns an error that wraps ErrChoice.
func choiceErr(format string, args ...any) error {
	return input.NewError(fmt.Sprintf("data: "+format, args...), ErrChoice)
}

// parseCondition parses comparisons; a blank text has none.
func parseCondition(text string) (list condition, err error) {
	for rest := text; strings.TrimSpace(rest) != ""; {
		m := compares.FindStringSubmatch(rest)
		if m == nil {
			return nil, choiceErr("where %q: %q is no comparison: write COLUMN OP VALUE, OP one of = != < <= > >=, VALUE a number or a text, several joined by and",
				text, strings.TrimSpace(rest))
		}
		x := comparison{column: m[1] + m[2], op: m[3]}
		if x.op == "==" {
			x.op = "="
		}
		quoted := strings.ContainsAny(m[0][len(m[0])-1:], `'"`)
		switch n, err := strconv.ParseFloat(m[6], 64); {
		case quoted:
			x.value = layout.Cell{Kind: layout.TextCell, Text: m[4] + m[5]}
		case err == nil && !math.IsNaN(n):
			x.value = layout.Cell{Kind: layout.NumberCell, Number: n}
		case m[6] == "true", m[6] == "false":
			x.value = layout.BoolCell(m[6] == "true")
		default:
			x.value = layout.Cell{Kind: layout.TextCell, Text: m[6]}
		}
		if x.value.Kind == layout.TextCell && x.op != "=" && x.op != "!=" {
			return nil, choiceErr("where %q: %s compares numbers, and %s is a text: use = or !=",
				text, x.op, layout.Preview(x.value.Text, 40))
		}
		list, rest = append(list, x), rest[len(m[0]):]
		if strings.TrimSpace(rest) == "" {
			break
		}
		and := joined.FindString(rest)
		if rest = strings.TrimPrefix(rest, and); and == "" || strings.TrimSpace(rest) == "" {
			return nil, choiceErr("where %q: %q: comparisons are joined by and, and nothing else",
				text, strings.TrimSpace(and+rest))
		}
	}
	return list, nil
}

// columns returns the columns that the condition reads.
func (list condition) columns() (names []string) {
	for _, x := range list {
		if !slices.Contains(names, x.column) {
			names = append(names, x.column)
		}
	}
	return names
}

// table has the values of a choice's columns: a cell by row of the set before the choice.
type table map[string]func(i int) layout.Cell

// holds reports whether row i meets the condition. The error names a comparison of different kinds.
func (list condition) holds(of table, i int) (bool, error) {
	for _, x := range list {
		v := of[x.column](i)
		if v.Kind == layout.NoCell {
			return false, nil
		}
		if v.Kind == layout.OtherCell {
			return false, fmt.Errorf("column %q is %s: compare a number or a text", x.column,
				v.Text)
		}
		if v.Kind != layout.EitherCell && v.Kind != x.value.Kind {
			if x.value.Kind == layout.NumberCell {
				return false, fmt.Errorf(
					"column %q is a text (%s), compared with a number: use %s = 'TEXT'", x.column,
					layout.Preview(v.Text, 40), x.column)
			}
			return false, fmt.Errorf(
				"column %q is a number (%g), compared with the text %s: use a number", x.column,
				v.Number, layout.Preview(x.value.Text, 40))
		}
		if !x.compare(v) {
			return false, nil
		}
	}
	return true, nil
}

// compare reports whether the comparison holds for v, which is of its value's kind.
func (x comparison) compare(v layout.Cell) bool {
	d := cmp.Compare(v.Number, x.value.Number)
	if x.value.Kind == layout.TextCell {
		d = strings.Compare(v.Text, x.value.Text)
	}
	switch x.op {
	case "=":
		return d == 0
	case "!=":
		return d != 0
	case "<":
		return d < 0
	case "<=":
		return d <= 0
	case ">":
		return d > 0
	}
	return d >= 0
}

// chosen is the result of a choice.
type chosen struct {
	from    int     // rows before it
	was     []int32 // [n] each row's number before the choice; nil is the same
	ratings *Ratings
}

// choose applies the set's choice. A row that cannot be read has no values.
func (s *Set) choose(where condition) (err error) {
	c := s.opt.Choice
	if s.chosen.from = s.n; c == (Choice{}) {
		return nil
	}
	if c.Ratings != "" {
		if s.chosen.ratings, err = ReadRatings(c.Ratings); err != nil {
			return err
		}
		if err := s.checkRatings(s.chosen.ratings); err != nil {
			return err
		}
	}
	if len(where) == 0 {
		return nil
	}
	of, err := s.table(where)
	if err != nil {
		return err
	}
	return s.filter(where, of)
}

// filter keeps the rows that meet a condition.
func (s *Set) filter(where condition, of table) error {
	var taken []turnAt
	var was []int32
	for i := range s.n {
		ok, err := where.holds(of, i)
		if err != nil {
			return choiceErr("%s: where %q: row %d: %v", s.path, s.opt.Where, i, err)
		}
		if ok {
			row, turn := s.inFile(i)
			taken, was = append(taken, turnAt{int32(row), int32(turn)}), append(was, int32(i))
		}
	}
	if len(taken) == 0 {
		return fmt.Errorf("data: %s: where %q: none of %d rows: loosen it", s.path, s.opt.Where,
			s.n)
	}
	s.rowAt, s.chosen.was, s.n = taken, was, len(taken)
	return nil
}

// Chosen returns a note with the number of rows that the condition keeps, "" without a condition.
func (s *Set) Chosen() string {
	if s.chosen.was == nil {
		return ""
	}
	return fmt.Sprintf("where %s: %d of %d rows", s.opt.Where, s.n, s.chosen.from)
}

// Before returns the number that row i had before the choice: of the files, or of their turns.
func (s *Set) Before(i int) int {
	if s.chosen.was == nil {
		return i
	}
	return int(s.chosen.was[i])
}

// table returns the columns of a condition, from the ratings and from the files.
func (s *Set) table(where condition) (table, error) {
	of, ratings := table{}, s.chosen.ratings
	var named []string // of the files
	for _, name := range where.columns() {
		inFiles := slices.ContainsFunc(s.layouts, func(l layout.Layout) bool {
			return slices.Contains(l.Chosen, name)
		})
		values, rated := ratings.column(name)
		switch {
		case inFiles && rated:
			return nil,
				choiceErr("%s: column %q is in the data and in the ratings: rename the data's",
					s.path, name)
		case rated:
			of[name] = func(i int) layout.Cell {
				if math.IsNaN(values[i]) {
					return layout.Cell{}
				}
				return layout.Cell{Kind: layout.NumberCell, Number: values[i]}
			}
		case inFiles:
			named = append(named, name)
		default:
			return nil, s.noColumn(name)
		}
	}
	if len(named) == 0 {
		return of, nil
	}
	cells := make([][]layout.Cell, s.inFiles) // by row of the files
	advance, done := s.Stage("choosing rows", s.inFiles)
	defer done()
	s.sequential(true)
	defer s.sequential(false)
	inOrder(s.inFiles, func(i int) []layout.Cell {
		raw, err := s.rawOf(i)
		if err != nil {
			return nil
		}
		l, row := s.layoutIn(i), make([]layout.Cell, len(named))
		for k, name := range named {
			if at := slices.Index(l.Chosen, name); at >= 0 {
				row[k] = raw.Chosen[at]
			}
		}
		return row
	}, func(i int, row []layout.Cell) bool {
		advance(1)
		if cells[i] = row; row == nil {
			cells[i] = make([]layout.Cell, len(named))
		}
		return true
	})
	turns := s.rowAt // before rows are chosen
	for k, name := range named {
		of[name] = func(i int) layout.Cell {
			if turns != nil {
				i = int(turns[i].row)
			}
			return cells[i][k]
		}
	}
	return of, nil
}

// noColumn returns the error for a column that neither the files nor the ratings have.
func (s *Set) noColumn(name string) error {
	var names []string
	for _, f := range s.files {
		for _, c := range f.Schema() {
			if !slices.Contains(names, c.Name) {
				names = append(names, c.Name)
			}
		}
	}
	has := "the data have " + layout.QuoteNames(names)
	if r := s.chosen.ratings; r != nil {
		has += ", the ratings " + layout.QuoteNames(r.Columns)
	} else {
		has += "; gad data rate makes ratings, which data.ratings names"
	}
	return choiceErr("%s: no column %q: %s", s.path, name, has)
}
