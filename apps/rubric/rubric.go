// Package rubric implements gad rubric: a checker for --checker that scores by a language model,
// with a rubric for each prompt (apps/judge).
package rubric

import (
	"cmp"
	"context"
	"strconv"

	"gad/apps/judge"
	"gad/apps/judge/pipe"
)

// Job is a rubric's scores.
var Job = pipe.Job{
	Name: "rubric", What: "rubrics", Unit: "prompt",
	NeedsTeacher: "a rubric is made from it",
	Ask:          ask,
	Asks:         func(int) string { return "2 for each" },
	Expect:       judge.ExpectRubric,
}

// ask returns the scores of the groups.
func ask(ctx context.Context, j *judge.Judge, groups []judge.Group, first bool) ([]pipe.Given,
	error) {
	graded, err := j.Rubrics(ctx, groups, first)
	given := make([]pipe.Given, len(graded))
	for g := range graded {
		for i := range groups[g].Answers {
			line := "null"
			if scores := graded[g].Scores; scores != nil {
				line = strconv.FormatFloat(scores[i], 'g', -1, 64)
			}
			given[g].Lines = append(given[g].Lines, line)
		}
		if graded[g].Scores == nil {
			given[g].None, given[g].Null = 1, cmp.Or(graded[g].Null, "no reason")
		}
	}
	return given, err
}
