package task

import (
	"fmt"
	"strings"
)

// README returns README.md of a kind's folder: the task, the files, how answers are graded. counts
// has the rows of each split.
func (k Kind) README(seed, studentSeed uint64, counts map[string]int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The task %s\n\n%s.\n\n", k.Name, upper(k.About))
	fmt.Fprintf(&b, "Made by `gad task make %s` with seed %d; the student's weights are drawn with seed %d.\n\n", k.Name, seed, studentSeed)
	fmt.Fprintf(&b, `A robot faces one of four ways and is told to turn %d times. The teacher says where it faces at the end. It is
always right, and words its answer in one of two forms, drawn at random:

    %s
    %s
    %s

| form | share of the teacher's answers |
|---|---:|
| result first ("Now ...") | %.0f %% |
| walk first ("By way of ...") | %.0f %% |

A small student can walk: each word of the walk is the word before it, turned once. It cannot see the result of %d
turns before it has walked: there it guesses, one in four.

`, turns, Example.Prompt, Example.Answer, exampleWalkFirst, 100*k.First, 100*(1-k.First), turns)
	b.WriteString("| file | rows | |\n|---|---:|---|\n")
	about := map[string]string{
		Train:   "to train on",
		Test:    "held out: the prompts of every table",
		Tune:    "held out too: to look at while settings are chosen, so that the test prompts stay unseen",
		Shifted: fmt.Sprintf("held out, from another distribution: runs of equal turns, at most %d changes; no other file has any", maxChanges),
	}
	for _, s := range Splits {
		if n, ok := counts[s]; ok {
			fmt.Fprintf(&b, "| %s.arrow | %d | %s |\n", s, n, about[s])
		}
	}
	b.WriteString(`| student/ | | an untrained model folder with its tokenizer |

The problem alone (the way at the start and the turns) decides its file, whatever the seed and the kind: no test
question was ever trained on. No question appears twice.

noted.arrow teaches how to read notes (gad opd --coach): the walk-first rows of train.arrow once more, with notes of
gad task notes on some attempt before the question (coach.template={notes} {prompt}).

## How an answer is graded

Valid: the whole text is one of the two right answers, byte for byte. The teacher itself is at 100 %. The form is the
wording of the whole text, right or wrong; what has neither wording is "other".

    gad eval --model STUDENT --data test.arrow --checker '"$GAD" task check ` + k.Name + `'
`)
	return b.String()
}

// Example is a question with its answer in the form ResultFirst.
var Example = Row{Prompt: exampleProblem.prompt(), Answer: exampleProblem.answer(ResultFirst),
	Result: "south", Form: ResultFirst}

var (
	exampleProblem = problem{start: 0,
		ops: strings.Fields("left left stay right stay left right left")}
	exampleWalkFirst = exampleProblem.answer(WalkFirst)
)

// upper returns s with a capital at its beginning.
func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
