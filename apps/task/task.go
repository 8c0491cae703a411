// Package task generates tasks to train on, with an exact checker: a robot turns, a teacher gives
// its final direction, always right, in one of two forms drawn at random, and a small student can
// do only one of the forms.
//
// The kinds differ in how often the teacher uses each form and in the number of its answers. A
// student that copies the teacher (cross entropy, the forward Kullback-Leibler divergence) has to
// cover both forms; a student that is judged by its own answers (the game, the reverse divergence)
// may drop the form that it cannot do. README explains this to the user with examples.
//
//	task.go     problems, answers, grades of answers: start here
//	walks.go    another task: long walks, for thoughts in chunks
//	readme.go   the README.md of a task
//	noted.go    rows with notes, to learn how to read them
//	folder.go   the folder: rows and an untrained student
//	checker.go  the programs for --checker and --coach
package task

import (
	"fmt"
	"hash/fnv"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gad/internal/philox"
)

// The splits. The problem alone decides its split.
const (
	Train   = "train"
	Test    = "test"    // held out
	Tune    = "tune"    // held out too, to choose settings by
	Shifted = "shifted" // held out, from another distribution: see maxChanges
)

// Splits lists all splits in writing order.
var Splits = []string{Train, Test, Tune, Shifted}

// turns is the number of turns in a question: too many for a student of two layers to give the
// result without walking first.
const turns = 8

// Shares of the problems outside Shifted that are held out, in shares.
const (
	shares    = 32
	testShare = 3
	tuneShare = 2
	// problems with at most so many changes of the turn are in Shifted: "left left left stay stay
	// stay stay left"
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

// Kind is a variant of the task.
type Kind struct {
	Name  string
	About string         // description and expected outcome, for README and --help
	First float64        // probability that the teacher states the result first
	Rows  map[string]int // default rows by split; an absent split is not written
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

// Kinds returns all kinds.
func Kinds() []Kind { return slices.Clone(kinds) }

// Row is one question with the teacher's answer.
type Row struct {
	Prompt string
	Answer string // the teacher's whole answer
	Result string // final direction: "south"
	Form   string // ResultFirst or WalkFirst
}

// problem is the content of a question.
type problem struct {
	start int      // index into ways
	ops   []string // of turnNames
}

// split returns the split of the problem: the same under every seed and for every kind, so that a
// test question is never trained on.
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
	io.WriteString(h, strconv.Itoa(p.start)+" ["+strings.Join(p.ops, " ")+"]")
	// The low bits of FNV see only the low bits of each byte; Philox mixes all.
	switch share := philox.IntN(shares, 0, philox.Data, 0, h.Sum64(), 0); {
	case share < testShare:
		return Test
	case share < testShare+tuneShare:
		return Tune
	}
	return Train
}

// prompt returns the question as text.
func (p problem) prompt() string {
	return "Facing " + ways[p.start] + ", go " + strings.Join(p.ops, " ")
}

// walk returns all directions that the robot faces, from the first to the last.
func (p problem) walk() []string {
	at, path := p.start, []string{ways[p.start]}
	for _, op := range p.ops {
		at = (at + turnBy[op]) % len(ways)
		path = append(path, ways[at])
	}
	return path
}

// answer returns the right answer in a form.
func (p problem) answer(form string) string {
	path := p.walk()
	result, walked := path[len(path)-1], strings.Join(path, " ")
	if form == ResultFirst {
		return "Now " + result + ", by way of " + walked + "."
	}
	return "By way of " + walked + ", now " + result + "."
}

// sizes returns the number of problems by split.
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

// Max returns the most rows of a split, 0 for an unknown split.
func Max(split string) int { return sizes()[split] }

// Make returns the first n rows of a split for a seed. No question appears twice, no problem is in
// two splits under any two seeds, and a smaller n gives the beginning of the same rows. Within a
// split other than Shifted all problems are equally likely.
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
			if p.split() != split {
				continue
			}
			if prompt := p.prompt(); !seen[prompt] {
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

// runs draws turns that change at most maxChanges times. Some problems are likelier than others;
// Make takes each once.
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

// Grade is the grade of an answer.
type Grade struct {
	Valid bool // the whole text is one of the teacher's two right answers
	// wording of the whole text, right or wrong: ResultFirst, WalkFirst or Other
	Form string
}

var question, resultFirst, walkFirst = func() (q, r, w *regexp.Regexp) {
	way, turn := "(?:"+strings.Join(ways, "|")+")", "(?:"+strings.Join(turnNames, "|")+")"
	path := way + "(?: " + way + ")*"
	return regexp.MustCompile(`^Facing (` + way + `), go (` + turn + `(?: ` + turn + `)*)$`),
		regexp.MustCompile(`^Now ` + way + `, by way of ` + path + `\.$`),
		regexp.MustCompile(`^By way of ` + path + `, now ` + way + `\.$`)
}()

// Check grades an answer to a question. It does not trim, fold or repair the text, since a
// discriminator would see such a difference too. A question of other tasks is an error.
func Check(prompt, answer string) (Grade, error) {
	if w, ok := walkOf(prompt); ok {
		return checkWalk(w, answer), nil
	}
	p, ok := problemOf(prompt)
	if !ok {
		return Grade{}, fmt.Errorf(
			"task: question %q: not a question of this task: they look like %q", prompt,
			"Facing north, go left stay right ...")
	}
	switch {
	case resultFirst.MatchString(answer):
		return Grade{answer == p.answer(ResultFirst), ResultFirst}, nil
	case walkFirst.MatchString(answer):
		return Grade{answer == p.answer(WalkFirst), WalkFirst}, nil
	}
	return Grade{Form: Other}, nil
}

// problemOf returns the problem of a question; ok is false for a question of other tasks.
func problemOf(prompt string) (p problem, ok bool) {
	m := question.FindStringSubmatch(prompt)
	if m == nil {
		return p, false
	}
	return problem{start: slices.Index(ways, m[1]), ops: strings.Fields(m[2])}, true
}
