package data

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"

	"gad/data/layout"
	"gad/internal/folder"
)

// RatingsFormat is the format of a file of ratings, in its first line.
const RatingsFormat = 1

// RatingsHead is the first line of a file of ratings: the data that were rated, and how.
type RatingsHead struct {
	Format    int      `json:"gad_ratings"`
	Rows      int      `json:"rows"`
	Data      string   `json:"data_sha256"` // Set.Digest of the rows
	Tokenizer string   `json:"tokenizer_sha256"`
	Columns   []string `json:"columns"`           // of every other line
	N         int      `json:"n"`                 // answers to each row
	Answers   bool     `json:"answers,omitempty"` // the lines have the answers
	ScoredBy  string   `json:"scored_by,omitempty"`
	// the command's settings, by which it recognises its output
	Made json.RawMessage `json:"made_with,omitempty"`
}

// RatedAnswer is an answer that was rated.
type RatedAnswer struct {
	IDs       []int32  `json:"ids,omitempty"` // none for the teacher's: the data have it
	Truncated bool     `json:"truncated,omitempty"`
	Score     *float64 `json:"score"` // nil is not finite
}

// Ratings are the results of gad data rate for each row of a set: a file of JSON lines, the first
// RatingsHead, each other {"row": 0, COLUMN: number or null, ...}, in the order of the rows.
type Ratings struct {
	RatingsHead
	Path   string
	values map[string][]float64 // [rows] by column, NaN is none
	lines  []int64              // offset of each row's line
}

// maxRating bounds a line.
const maxRating = 256 << 20

// ReadRatings reads the file. The error for another kind of file wraps ErrChoice.
func ReadRatings(path string) (*Ratings, error) {
	bad := func(format string, args ...any) error {
		return choiceErr("ratings %s: %s: make them with gad data rate", path,
			fmt.Sprintf(format, args...))
	}
	f, err := folder.File(path)
	if err != nil {
		return nil, notThere(path, err)
	}
	defer f.Close()
	r := &Ratings{Path: path, values: map[string][]float64{}}
	in := bufio.NewReaderSize(f, 1<<20)
	line, err := ratingLine(in)
	if err != nil || json.Unmarshal(line, &r.RatingsHead) != nil || r.Format == 0 {
		return nil, bad("does not begin as ratings do")
	}
	if r.Format != RatingsFormat {
		return nil, bad("format %d, and this version of gad reads %d", r.Format, RatingsFormat)
	}
	if r.Rows < 1 || r.Rows > layout.MaxRows {
		return nil, bad("%d rows", r.Rows)
	}
	at := int64(len(line))
	for i := range r.Rows {
		if line, err = ratingLine(in); err != nil {
			return nil, bad("row %d of %d is missing or too long: the file is cut short", i, r.Rows)
		}
		var row map[string]json.RawMessage
		var n int
		if json.Unmarshal(line, &row) != nil || json.Unmarshal(row["row"], &n) != nil || n != i {
			return nil, bad("line %d is not that of row %d", i+2, i)
		}
		r.lines = append(r.lines, at)
		at += int64(len(line))
		for _, name := range r.Columns {
			x := math.NaN()
			if v, ok := row[name]; ok && string(v) != "null" && json.Unmarshal(v, &x) != nil {
				return nil, bad("row %d: column %q is %s, not a number", i, name,
					layout.Preview(string(v), 40))
			}
			r.values[name] = append(r.values[name], x)
		}
	}
	if rest, err := in.ReadByte(); err == nil {
		return nil, bad("goes on behind its %d rows with %q", r.Rows, rest)
	}
	return r, nil
}

// ratingLine reads a line with its end.
func ratingLine(in *bufio.Reader) (line []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case err != bufio.ErrBufferFull:
			return nil, err
		case len(line) > maxRating:
			return nil, io.ErrShortBuffer
		}
	}
}

// column returns the values of a column and whether there is one; nil Ratings have none.
func (r *Ratings) column(name string) ([]float64, bool) {
	if r == nil || !slices.Contains(r.Columns, name) {
		return nil, false
	}
	return r.values[name], true
}

// Ratings returns the ratings of the set's choice, or nil.
func (s *Set) Ratings() *Ratings { return s.chosen.ratings }

// checkRatings returns an error for ratings of other rows.
func (s *Set) checkRatings(r *Ratings) error {
	other := ""
	if r.Rows != s.n {
		other = fmt.Sprintf("they have %d rows, the data %d", r.Rows, s.n)
	} else if digest, err := s.hashRows(); err != nil {
		return err
	} else if digest != r.Data {
		other = fmt.Sprintf("digest %.12s, the data's is %.12s", r.Data, digest)
	}
	if other != "" {
		return choiceErr("%s: ratings %s are of other data, or of the same read otherwise (%s): rate these with gad data rate", s.path, r.Path, other)
	}
	return nil
}

// ForTokenizer returns an error, which wraps ErrChoice, for ratings made with a tokenizer of
// another digest. A set without ratings has none.
func (s *Set) ForTokenizer(digest string) error {
	r := s.chosen.ratings
	if r == nil || r.Tokenizer == digest {
		return nil
	}
	return choiceErr("%s: ratings %s were made with another tokenizer (%.12s, the student's is %.12s): their lengths and likelihoods are not this student's: rate the data with it", s.path, r.Path, r.Tokenizer, digest)
}

// Answers returns, for each of the given rows, the sampled answers with their scores, and the
// teacher's.
func (s *Set) Answers(rows []int) (answers [][]RatedAnswer, teachers []RatedAnswer, err error) {
	r := s.chosen.ratings
	if r == nil || !r.Answers {
		return nil, nil, choiceErr("%s: there are no rated answers: give data.ratings, made by gad data rate --keep-answers", s.path)
	}
	f, err := folder.File(r.Path)
	if err != nil {
		return nil, nil, notThere(r.Path, err)
	}
	defer f.Close()
	for _, i := range rows {
		var line struct {
			Row     int           `json:"row"`
			Answers []RatedAnswer `json:"answers"`
			Teacher RatedAnswer   `json:"teacher"`
		}
		at := s.Before(i)
		in := bufio.NewReader(io.NewSectionReader(f, r.lines[at], maxRating))
		text, err := ratingLine(in)
		if err == nil {
			err = json.Unmarshal(text, &line)
		}
		if err != nil || line.Row != at || len(line.Answers) == 0 {
			return nil, nil, fmt.Errorf(
				"data: ratings %s: row %d: its answers cannot be read: the file has changed: %w",
				r.Path, at, ErrCorrupt)
		}
		answers, teachers = append(answers, line.Answers), append(teachers, line.Teacher)
	}
	return answers, teachers, nil
}
