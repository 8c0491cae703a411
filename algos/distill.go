package algos

import (
	"fmt"
	"math"
	"slices"
)

// DistillAdvantages returns the advantages of on-policy distillation by policy gradient. For token
// t of response s, sampled from the student S and scored by the teacher T, it is
//
//	A[s][t] = log T(y_t) - log S(y_t)
//
// as a constant (the k1 estimator of KL(S || T) instead of a reward, without discount: Agarwal et
// al., arXiv 2306.13649, section 3, by its policy gradient). The expectation of -A grad log S over
// the student's tokens is the gradient of KL(S || T) at each token. Advantages are never
// normalised: their mean is the divergence that is to vanish.
//
// teacherST and studentST are natural logarithms [S][T_s] at temperature 1. reverseKL is the mean
// of -A over all tokens, nats: an unbiased estimate of KL(S || T) per token. The error is
// ErrNotFinite if a value is not finite.
func DistillAdvantages(teacherST, studentST [][]float32) (advST [][]float64, reverseKL float64,
	err error) {
	if len(teacherST) != len(studentST) {
		return nil, 0, fmt.Errorf(
			"algos: distillation: %d responses under the teacher, %d under the student",
			len(teacherST), len(studentST))
	}
	tokens := 0
	for s, teacher := range teacherST {
		if len(teacher) != len(studentST[s]) {
			return nil, 0, fmt.Errorf("algos: distillation: response %d has %d tokens under the teacher, %d under the student", s, len(teacher), len(studentST[s]))
		}
		row := make([]float64, len(teacher))
		for t, x := range teacher {
			row[t] = float64(x) - float64(studentST[s][t])
			if math.IsNaN(row[t]) || math.IsInf(row[t], 0) {
				return nil, 0, fmt.Errorf("algos: distillation: response %d: token %d: %w", s, t,
					ErrNotFinite)
			}
			reverseKL -= row[t]
		}
		tokens += len(row)
		advST = append(advST, row)
	}
	return advST, reverseKL / float64(max(tokens, 1)), nil
}

// AddTeacher mixes the advantages of distillation into others:
//
//	A[s][t] + weight * teacher[s][t]
//
// with teacherST from DistillAdvantages. Neither side is normalised. Rows of advST may be longer
// than a response; their padding stays. share is the teacher's part: the mean absolute value of
// weight * teacher, divided by that plus the mean absolute value of A; 0 if both are 0.
func AddTeacher(advST, teacherST [][]float64, weight float64) (mixedST [][]float64,
	share float64, err error) {
	if len(advST) != len(teacherST) {
		return nil, 0, fmt.Errorf(
			"algos: distillation: advantages of %d responses, %d under the teacher", len(advST),
			len(teacherST))
	}
	var own, theirs float64
	for s, teacher := range teacherST {
		if len(advST[s]) < len(teacher) {
			return nil, 0, fmt.Errorf("algos: distillation: response %d has %d advantages, %d tokens under the teacher", s, len(advST[s]), len(teacher))
		}
		row := slices.Clone(advST[s])
		for t, x := range teacher {
			own += math.Abs(row[t])
			theirs += math.Abs(weight * x)
			row[t] += float64(weight * x)
		}
		mixedST = append(mixedST, row)
	}
	if own+theirs > 0 {
		share = theirs / (own + theirs)
	}
	return mixedST, share, nil
}
