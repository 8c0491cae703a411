package trainer

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"

	"gad/algos"
	"gad/tokenizer"
)

// A teacher with another tokenizer reads the answer's text in its own tokens. Its log-probabilities
// are distributed over the student's tokens by the bytes that both share (algos.AlignBytes).

// spelling is one answer in the tokens of student and teacher.
type spelling struct {
	ids []int32 // the teacher's tokens: the text, and the end if the answer has one
	// [tokens] byte of the compared text at which a token ends; without end tokens
	student, teacher []int
	spelled          bool // the teacher's tokens spell the text; otherwise nothing is compared
	whole            int  // student tokens that lie whole in the compared text
	end              bool // the last token of both is an end
	before           int  // student tokens of a branch's beginning, which is its parent's
}

// spell writes a student's answer in the teacher's tokens. Control tokens within it are text for
// the teacher, which finds them as improbable as they are. The answer's end becomes the teacher's
// end token with the same text, or else its end of a turn. Bytes after the last whole character,
// and tokens that have such bytes, are not compared.
func spell(own, theirs *tokenizer.Tokenizer, answer []int32, cut bool) spelling {
	var s spelling
	var ending int32
	if n := len(answer); n > 0 && !cut && slices.Contains(own.EOS(), answer[n-1]) {
		s.end, ending = true, theirs.EndOfTurn()
		for _, id := range theirs.EOS() {
			if bytes.Equal(theirs.Piece(id), own.Piece(answer[n-1])) {
				ending = id
			}
		}
		answer = answer[:n-1]
	}
	var text []byte
	for _, id := range answer {
		text = append(text, own.Piece(id)...)
		s.student = append(s.student, len(text))
	}
	shift := 0
	if decoded := own.Decode(answer, false); len(decoded) == len(text)-1 && text[0] == ' ' &&
		decoded == string(text[1:]) {
		shift = 1 // a blank that the student's tokenizer puts before every text
	}
	text = text[shift:]
	whole := 0
	for whole < len(text) {
		r, n := utf8.DecodeRune(text[whole:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		whole += n
	}
	text = text[:whole]
	for i, to := range s.student {
		if s.student[i] = min(max(0, to-shift), whole); to-shift <= whole {
			s.whole = i + 1
		}
	}
	s.ids = theirs.EncodeText(string(text))
	var spelled []byte
	for _, id := range s.ids {
		spelled = append(spelled, theirs.Piece(id)...)
		s.teacher = append(s.teacher, len(spelled))
	}
	if len(spelled) == len(text)+1 && spelled[0] == ' ' { // the teacher's leading blank
		spelled = spelled[1:]
		for j := range s.teacher {
			s.teacher[j] = max(0, s.teacher[j]-1)
		}
	}
	if !bytes.Equal(spelled, text) {
		return spelling{}
	}
	s.spelled = true
	if s.end {
		s.ids = append(s.ids, ending)
	}
	return s
}

// compares reports whether the answer's own token i has a log-probability from the teacher.
func (s spelling) compares(i int) bool {
	i += s.before
	if i == len(s.student) {
		return s.end
	}
	return i < s.whole && s.student[i] > 0 && (i == 0 || s.student[i] > s.student[i-1])
}

// alignLogp returns the teacher's log-probabilities for the answer's own tokens, from logp, the
// log-probabilities of s.ids. Tokens that are not compared keep the student's log-probabilities,
// own.
func (s spelling) alignLogp(logp, own []float32) ([]float32, error) {
	out := slices.Clone(own)
	if !s.spelled {
		return out, nil
	}
	n := len(s.teacher)
	if len(logp) != len(s.ids) {
		return nil, fmt.Errorf("trainer: %d tokens of the teacher, and %d log-probabilities",
			len(s.ids), len(logp))
	}
	aligned, err := algos.AlignBytes(s.student, s.teacher, float64s(logp[:n]))
	if err != nil {
		return nil, err
	}
	for i, x := range aligned[min(s.before, len(aligned)):] {
		if s.compares(i) {
			out[i] = float32(x)
		}
	}
	if s.end {
		out[len(out)-1] = logp[n]
	}
	return out, nil
}
