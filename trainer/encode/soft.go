package encode

import (
	"cmp"
	"slices"
	"strings"

	"gad/data"
	"gad/model"
)

// Soft returns the soft labels of an answer's tokens; without any, bad is the reason. Tokens of
// teacher and student are matched by their bytes alone: a teacher's token that spans the same bytes
// of the answer as a student's token labels it. Its alternatives that are one token of the
// student's are in the label; the rest is the label's tail. The answer's end is labelled if the
// teacher scored it.
func (e Encoder) Soft(r data.Row, answer []int32) (soft []data.SoftLabel, bad string) {
	const changed = "the student's tokenizer changes the text: its tokens do not write it"
	ends, ok := r.Logprobs.Spell(r.Teacher)
	if !ok {
		return nil, "the bytes of the tokens do not write the answer"
	}
	text := strings.TrimRight(r.Teacher, " \t\r\n")
	token := tokenStarts(r.Logprobs, ends, len(text))
	soft = make([]data.SoftLabel, len(answer))
	at, labels := 0, 0
	for i, id := range answer {
		piece, prefix := string(e.Tok.Piece(id)), ""
		// A tokenizer over characters puts a blank before a text, which is no byte of it.
		if i == 0 && strings.HasPrefix(piece, " ") && !strings.HasPrefix(text, " ") {
			piece, prefix = piece[1:], " "
		}
		last := i == len(answer)-1 && id == e.Tok.EndOfTurn() && at == len(text)
		if last {
			piece = ""
		} else if !strings.HasPrefix(text[at:], piece) {
			return nil, changed
		}
		j := token[at]
		if j >= 0 && (last && e.isEnd(r.Logprobs[j][0]) ||
			piece != "" && j < len(ends) && ends[j] == at+len(piece)) {
			if soft[i] = e.label(r.Logprobs[j], id, prefix); soft[i].IDs != nil {
				labels++
			}
		}
		at += len(piece)
	}
	if at < len(text) {
		return nil, changed
	}
	if labels == 0 {
		return nil, "no token of the teacher's is a token of the student's"
	}
	return soft, ""
}

// tokenStarts returns for each byte of a text of n bytes, and for its end, the teacher's token that
// begins there, or -1. ends is the result of Logprobs.Spell.
func tokenStarts(l data.Logprobs, ends []int, n int) []int {
	token := make([]int, n+1)
	for i := range token {
		token[i] = -1
	}
	from := 0
	for j := range l {
		if from > n {
			break
		}
		writes := j < len(ends) && ends[j] > from
		if token[from] < 0 && (writes || from == n) {
			token[from] = j
		}
		if j < len(ends) {
			from = ends[j]
		}
	}
	return token
}

// isEnd reports whether a token of the teacher's is the end of its answer.
func (e Encoder) isEnd(l data.Logprob) bool {
	return l.Bytes == "" || l.Bytes == string(e.Tok.Piece(e.Tok.EndOfTurn()))
}

// Logprobs converts a teacher's labels of an answer's tokens to the form of rows: the inverse of
// Soft, but for control tokens, which have no bytes, and tokens with equal bytes. An answer that is
// cut has as many labels as tokens.
func (e Encoder) Logprobs(r data.Row, answer []int32, labels []model.SoftLabel) data.Logprobs {
	text := strings.TrimRight(r.Teacher, " \t\r\n")
	out := make(data.Logprobs, len(labels))
	for i, id := range answer[:len(labels)] {
		// as in Soft
		blank := i == 0 && strings.HasPrefix(string(e.Tok.Piece(id)), " ") &&
			!strings.HasPrefix(text, " ")
		writes := func(id int32) (s string, ok bool) {
			if id == e.Tok.EndOfTurn() {
				return "", true
			}
			if s = string(e.Tok.Piece(id)); blank {
				s, ok = strings.CutPrefix(s, " ")
				return s, ok && s != ""
			}
			return s, s != "" && !e.Tok.Special(id)
		}
		at := []data.Logprob{{LogProb: data.NoLogProb}}
		at[0].Bytes, _ = writes(id)
		for k, other := range labels[i].IDs {
			logp := float32(max(data.NoLogProb, min(0, labels[i].Logp[k])))
			if other == id {
				at[0].LogProb = logp
			} else if s, ok := writes(other); ok {
				at = append(at, data.Logprob{Bytes: s, LogProb: logp})
			}
		}
		slices.SortStableFunc(at[1:],
			func(a, b data.Logprob) int { return cmp.Compare(b.LogProb, a.LogProb) })
		known := map[string]bool{}
		out[i] = slices.DeleteFunc(at, func(l data.Logprob) bool {
			twice := known[l.Bytes]
			known[l.Bytes] = true
			return twice
		})
	}
	return out
}

// label returns the label of token id, which is the first of at. prefix is put before the bytes of
// the others. A token that the teacher only calls unlikely is part of the tail.
func (e Encoder) label(at []data.Logprob, id int32, prefix string) (l data.SoftLabel) {
	for k, of := range at {
		as, ok := id, true
		switch {
		case k == 0:
			ok = of.LogProb > data.NoLogProb
		case e.isEnd(of):
			as = e.Tok.EndOfTurn()
		default:
			as, ok = e.Tok.Token([]byte(prefix + of.Bytes))
		}
		if ok && !slices.Contains(l.IDs, as) {
			l.IDs, l.LogProbs = append(l.IDs, as), append(l.LogProbs, of.LogProb)
		}
	}
	return l
}
