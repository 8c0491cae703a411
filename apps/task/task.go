// Package task makes tasks to train on, with an exact checker: a robot turns, a
// teacher says rightly where it ends up, in one of two forms drawn at random, and
// a small student can do only one of them.
//
// The kinds differ in how often the teacher uses which form and in how many of
// its answers there are. A student that copies the teacher (cross entropy, the
// forward Kullback-Leibler divergence) has to cover both forms; one that is
// judged by what it writes (the game, the reverse divergence) may drop the form
// that it cannot do. README tells the user the same with examples.
//
//	task.go     problems, answers, and how an answer is graded
//	walks.go    another task: long walks, for thoughts in chunks
//	readme.go   the README.md of a task
//	folder.go   the folder: rows and an untrained student
//	checker.go  the program for --checker
package task

import (
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strings"
	"sync"

	"gad/internal/philox"
)

// The splits. Which one a problem belongs to, the problem alone decides.
const (
	Train   = "train"
	Test    = "test"    // held out
	Tune    = "tune"    // held out too, to look at while settings are chosen
	Shifted = "shifted" // held out, and distributed otherwise: see maxChanges
)

// Splits are all splits, in the order in which they are written.
var Splits = []string{Train, Test, Tune, Shifted}

// turns is how many turns a question has: enough that a student of two layers
// cannot see the result before it has walked.
const turns = 8

// Out of every `shares` problems that are not shifted, this many are held out.
const (
	shares    = 32
	testShare = 3
	tuneShare = 2
	// a problem whose turn changes at most this often is in Shifted: "left left left stay stay stay
	// stay left"
	maxChanges = 2
)

var (
	ways      = []string{"north", "east", "south", "west"}
	turnNames = []string{"left", "stay", "right"}
	turnBy    = map[string]int{"left": 3, "stay": 0, "right": 1}
)

// The forms of an answer.
const (
	ResultFirst = "result first"
	WalkFirst   = "walk first"
	Other       = "other" // neither wording
)

// Kind is one sort of task.
type Kind struct {
	Name  string
	About string         // what it is and what is expected of it, for README and --help
	First float64        // probability that the teacher states the result first
	Rows  map[string]int // rows that are written of each split; a split that is absent is not
}

var kinds = []Kind{{
	Name:  "two-forms",
	About: "the student cannot do the more frequent of the teacher's two forms: the game should win",
	First: 0.75,
	Rows:  map[string]int{Train: 20000, Test: 2000, Tune: 1000},
}, {
	Name:  "few-rows",
	About: "few teacher answers; test prompts from the same and from another distribution",
	First: 0.6,
	Rows:  map[string]int{Train: 500, Test: 2000, Tune: 1000, Shifted: 1000},
}, {
	Name:  "unlearned",
	About: "the form that the student could do is so rare that the usual SFT has not learned it: the game should not win",
	First: 0.9,
	Rows:  map[string]int{Train: 20000, Test: 2000, Tune: 1000},
}}

// Kinds are all kinds.
func Kinds() []Kind { return slices.Clone(kinds) }

// Row is one question with the teacher's answer.
type Row struct {
	Prompt string
	Answer string // the teacher's, whole
	Result string // where the robot faces at the end: "south"
	Form   string // ResultFirst or WalkFirst
}

// problem is a question without its words.
type problem struct {
	start int      // index into ways
	ops   []string // of turnNames
}

// split is the side that the problem is on: the same under every seed and for
// every kind, so that a test question was never trained on.
func (p problem) split() string {
	changes := 0
	for i := 1; i < len(p.ops); i++ {
		if p.ops[i] != p.ops[i-1] {
			changes++
		}
	}
	if changes <= maxChanges {
		return Shifted
	}
	h := fnv.New64a()
	fmt.Fprint(h, p.start, p.ops)
	// The low bits of FNV see only the low bits of each byte; Philox mixes all.
	switch share := philox.IntN(shares, 0, philox.Data, 0, h.Sum64(), 0); {
	case share < testShare:
		return Test
	case share < testShare+tuneShare:
		return Tune
	}
	return Train
}

func (p problem) prompt() string {
	return "Facing " + ways[p.start] + ", go " + strings.Join(p.ops, " ")
}

// walk is all the ways that the robot faces, the first and the last included.
func (p problem) walk() []string {
	at, path := p.start, []string{ways[p.start]}
	for _, op := range p.ops {
		at = (at + turnBy[op]) % len(ways)
		path = append(path, ways[at])
	}
	return path
}

// answer is the right answer in a form.
func (p problem) answer(form string) string {
	path := p.walk()
	result, walked := path[len(path)-1], strings.Join(path, " ")
	if form == ResultFirst {
		return "Now " + result + ", by way of " + walked + "."
	}
	return "By way of " + walked + ", now " + result + "."
}

// sizes is how many problems each split has.
var sizes = sync.OnceValue(func() map[string]int {
	n := map[string]int{}
	every(func(p problem) { n[p.split()]++ })
	return n
})

// every calls f with each problem once.
func every(f func(problem)) {
	total := len(ways)
	for range turns {
		total *= len(turnNames)
	}
	for i := range total {
		p := problem{start: i % len(ways), ops: make([]string, turns)}
		for j, rest := 0, i/len(ways); j < turns; j, rest = j+1, rest/len(turnNames) {
			p.ops[j] = turnNames[rest%len(turnNames)]
		}
		f(p)
	}
}

// Max is the most rows of a split, 0 for one that there is not.
func Max(split string) int { return sizes()[split] }

// Make returns the first n rows of a split under a seed. No question comes
// twice, no problem is in two splits under any two seeds, and fewer rows are the
// beginning of more. Within a split, Shifted apart, all problems are equally
// likely.
func (k Kind) Make(seed uint64, split string, n int) ([]Row, error) {
	side := slices.Index(Splits, split)
	if side < 0 {
		return nil, fmt.Errorf("task: split %q: unknown: use %s", split, strings.Join(Splits, ", "))
	}
	if n < 0 || n > Max(split) {
		return nil,
			fmt.Errorf(
				"task: split %q: %d rows: must be 0 to %d, so that no question appears twice",
				split, n,
				Max(split))
	}
	rows, seen := make([]Row, 0, n), make(map[string]bool, n)
	for i := range n {
		next := uint64(0)
		draw := func(n int) int {
			next++
			return philox.IntN(n, seed, philox.Data, uint64(1+side), uint64(i), next)
		}
		for {
			p := problem{start: draw(len(ways)), ops: make([]string, turns)}
			if split == Shifted {
				p.runs(draw)
			} else {
				for j := range p.ops {
					p.ops[j] = turnNames[draw(len(turnNames))]
				}
			}
			if prompt := p.prompt(); p.split() == split && !seen[prompt] {
				seen[prompt] = true
				form := WalkFirst
				if philox.Float64(seed, philox.Data, uint64(1+side), uint64(i), 0) < k.First {
					form = ResultFirst
				}
				path := p.walk()
				rows = append(rows, Row{Prompt: prompt, Answer: p.answer(form),
					Result: path[len(path)-1], Form: form})
				break
			}
		}
	}
	return rows, nil
}

// runs draws turns that change at most maxChanges times. It finds some problems
// sooner than others; Make takes each once.
func (p problem) runs(draw func(int) int) {
	change := map[int]bool{}
	for range maxChanges {
		change[draw(turns)] = true
	}
	op := draw(len(turnNames))
	for j := range p.ops {
		if change[j] {
			op = draw(len(turnNames))
		}
		p.ops[j] = turnNames[op]
	}
}

// Corpus returns text to train a tokenizer on: the questions and answers, one a line.
func Corpus(rows []Row) string {
	var b strings.Builder
	for _, r := range rows {
		b.WriteString(r.Prompt + "\n" + r.Answer + "\n")
	}
	return b.String()
}

// Grade says what is right about an answer.
type Grade struct {
	Valid bool // the whole text is one of the teacher's two right answers
	// whose wording the whole text has, right or wrong: ResultFirst, WalkFirst or Other
	Form string
}

var question, resultFirst, walkFirst = func() (q, r, w *regexp.Regexp) {
	way, turn := "(?:"+strings.Join(ways, "|")+")", "(?:"+strings.Join(turnNames, "|")+")"
	path := way + "(?: " + way + ")*"
	return regexp.MustCompile(`^Facing (` + way + `), go (` + turn + `(?: ` + turn + `)*)$`),
		regexp.MustCompile(`^Now ` + way + `, by way of ` + path + `\.$`),
		regexp.MustCompile(`^By way of ` + path + `, now ` + way + `\.$`)
}()

// Check grades an answer to a question. Nothing is trimmed, folded or repaired,
// since a discriminator would see such a difference as well. A question that is
// not of these tasks is an error.
func Check(prompt, answer string) (Grade, error) {
	if w, ok := walkOf(prompt); ok {
		return checkWalk(w, answer), nil
	}
	m := question.FindStringSubmatch(prompt)
	if m == nil {
		return Grade{}, fmt.Errorf(
			"task: question %q: not a question of this task: they look like %q", prompt,
			"Facing north, go left stay right ...")
	}
	p := problem{start: slices.Index(ways, m[1]), ops: strings.Fields(m[2])}
	switch {
	case resultFirst.MatchString(answer):
		return Grade{answer == p.answer(ResultFirst), ResultFirst}, nil
	case walkFirst.MatchString(answer):
		return Grade{answer == p.answer(WalkFirst), WalkFirst}, nil
	}
	return Grade{Form: Other}, nil
}
