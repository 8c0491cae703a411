package algos

import (
	"fmt"
	"math"
)

// AlignBytes distributes the log-probabilities of a teacher's tokens of a text over a student's
// tokens of the same text, with another tokenizer. ends are the offsets in bytes at which tokens
// end; both lists ascend to the same length. With n_j the number of student tokens that share bytes
// with teacher token j,
//
//	aligned[i] = sum over the teacher's tokens j that share bytes with i of logp[j] / n_j
//
// so that the sum over the text stays the same. A student token without bytes gets NaN. A teacher
// token without bytes counts for the student token that has the next byte, or for the last one.
func AlignBytes(studentEnds, teacherEnds []int, logp []float64) ([]float64, error) {
	if len(teacherEnds) != len(logp) {
		return nil, fmt.Errorf("algos: alignment: %d tokens, and %d log-probabilities",
			len(teacherEnds), len(logp))
	}
	var lengths [2]int
	for k, ends := range [][]int{studentEnds, teacherEnds} {
		for i, end := range ends {
			if end < lengths[k] {
				return nil, fmt.Errorf("algos: alignment: token %d ends at byte %d, before it begins at %d", i, end, lengths[k])
			}
			lengths[k] = end
		}
	}
	if lengths[0] != lengths[1] {
		return nil, fmt.Errorf("algos: alignment: texts of %d and %d bytes", lengths[0], lengths[1])
	}
	out := make([]float64, len(studentEnds))
	var some []int // student tokens that have bytes
	at := 0
	for i, end := range studentEnds {
		if out[i] = math.NaN(); end > at {
			out[i] = 0
			some = append(some, i)
		}
		at = end
	}
	if len(some) == 0 {
		return out, nil
	}
	from, first := 0, 0 // of teacher token j; some[first] has byte from, or is the last
	for j, to := range teacherEnds {
		for first < len(some)-1 && studentEnds[some[first]] <= from {
			first++
		}
		behind := first + 1
		for behind < len(some) && studentEnds[some[behind-1]] < to {
			behind++
		}
		for _, i := range some[first:behind] {
			out[i] += logp[j] / float64(behind-first)
		}
		from = to
	}
	return out, nil
}
