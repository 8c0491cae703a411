// Package coach implements gad coach: a coach for --coach whose notes a language model writes, on
// each answer of the student (apps/judge).
package coach

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"gad/apps/judge"
	"gad/apps/judge/pipe"
	"gad/trainer/checker"
)

// Job returns the writing of notes by rules.
func Job(rules string) pipe.Job {
	return pipe.Job{
		Name: "coach", What: "notes", Unit: "answer", Setting: "coach.timeout",
		Ask: func(ctx context.Context, j *judge.Judge, groups []judge.Group,
			first bool) ([]pipe.Given, error) {
			return ask(ctx, j, groups, rules, first)
		},
		Asks: func(answers int) string { return fmt.Sprintf("%d for each", answers) },
		Expect: func(prompt, teacher float64, answers int) judge.Estimate {
			return judge.ExpectNotes(prompt, teacher, answers, rules)
		},
	}
}

// ask returns the notes on the answers of the groups.
func ask(ctx context.Context, j *judge.Judge, groups []judge.Group, rules string,
	first bool) ([]pipe.Given, error) {
	noted, err := j.Notes(ctx, groups, rules, first)
	given := make([]pipe.Given, len(noted))
	for g := range noted {
		for i, notes := range noted[g].Notes {
			if notes == "" {
				given[g].None++
				given[g].Null = cmp.Or(given[g].Null, noted[g].Null[i])
			}
			line, err := checker.Verdict{Score: math.NaN(), Notes: notes}.MarshalJSON()
			if err != nil {
				return nil, err
			}
			given[g].Lines = append(given[g].Lines, string(line))
		}
	}
	return given, err
}
