package encode

import (
	"fmt"

	"gad/data"
	"gad/model"
)

// Ranked holds scored answers: for each row its first n sampled answers and the teacher's.
type Ranked struct {
	Seqs  []model.Seq // [S]
	Score []float64   // [S]
	Group []int       // [S] index of the answer's row
}

// RankedAnswers returns the scored answers to the rows of a batch, from the ratings of gad data
// rate.
func (e Encoder) RankedAnswers(set *data.Set, b Batch, n int) (r Ranked, err error) {
	answers, teachers, err := set.Answers(b.Indices())
	if err != nil {
		return r, err
	}
	add := func(p int, seq model.Seq, a data.RatedAnswer) {
		r.Seqs, r.Score, r.Group =
			append(r.Seqs, seq), append(r.Score, *a.Score), append(r.Group, p)
	}
	for p, row := range b {
		if why := e.whyUnrankable(answers[p], teachers[p], n); why != "" {
			return r, fmt.Errorf("data: ratings %s: row %d: %s: the file has changed",
				set.Ratings().Path, set.Before(row.Index), why)
		}
		for _, a := range answers[p][:n] {
			ids, err := e.checkIDs("answers", a.IDs)
			if err != nil {
				return r, fmt.Errorf("data: ratings %s: row %d: %w", set.Ratings().Path,
					set.Before(row.Index), err)
			}
			add(p, e.Seq(row.Prompt, Response{ids, !a.Truncated}), a)
		}
		add(p, row.Teacher, teachers[p])
	}
	return r, nil
}

// whyUnrankable returns why a row's answers cannot be ranked; "" if they can.
func (e Encoder) whyUnrankable(answers []data.RatedAnswer, teacher data.RatedAnswer, n int) string {
	if len(answers) < n {
		return "it has too few answers"
	}
	equal := true
	for _, a := range answers[:n] {
		switch {
		case a.Score == nil || teacher.Score == nil:
			return "a score is not finite"
		case len(a.IDs) == 0:
			return "an answer is empty"
		}
		equal = equal && *a.Score == *teacher.Score
	}
	if equal {
		return "all scores are equal"
	}
	return ""
}

// Rankable returns the rows whose answers can be ranked: the scores of the first n sampled answers
// and of the teacher's are finite, and not all equal. An error wraps data.ErrChoice if the ratings
// lack the answers that the settings ask for.
func (e Encoder) Rankable(set *data.Set, rows []int32, n int) (kept []int32, err error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: data: ratings %s: %s", data.ErrChoice, set.Ratings().Path,
			fmt.Sprintf(format, args...))
	}
	const some = 256
	for lo := 0; lo < len(rows); lo += some {
		var at []int
		for _, row := range rows[lo:min(lo+some, len(rows))] {
			at = append(at, int(row))
		}
		answers, teachers, err := set.Answers(at)
		if err != nil {
			return nil, err
		}
		if has := set.Ratings().N; has < n {
			return nil,
				bad("%d answers to a row, and rollout.n is %d: lower it, or rate with --n %[2]d",
					has, n)
		}
		for i, list := range answers {
			for _, a := range list {
				if len(a.IDs) > e.MaxResponse {
					return nil, bad("row %d: an answer of %d tokens, and data.max_response_length is %d: raise it, or rate with --max-new-tokens %[3]d", set.Before(at[i]), len(a.IDs), e.MaxResponse)
				}
			}
			if e.whyUnrankable(list, teachers[i], n) == "" {
				kept = append(kept, int32(at[i]))
			}
		}
	}
	if len(kept) == 0 {
		return nil, fmt.Errorf("data: ratings %s: none of %d rows can be ranked: in each all scores are equal, or one is not finite: rate with another judge, or with more answers", set.Ratings().Path, len(rows))
	}
	return kept, nil
}
