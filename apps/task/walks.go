package task

import (
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gad/data"
	"gad/internal/philox"
)

// The task walks: long walks of several rounds of eight moves. The thought has four words for each
// move: the round, the place in the round, the move and the direction after it. The next step needs
// only the last few words. So a student that continues from a carry of a few steps (rollout.chunk,
// doc/thought.md) can do as well as one that sees the whole thought.
//
// Rounds have names, and a walk has a range of them. All names occur in short walks too, so that a
// longer walk has more steps and no other novelty.

const (
	walksName         = "walks"
	mostRounds        = 12 // 96 moves
	mostRoundsTrained = 8  // rounds of the longest walk outside of Longer
)

var placeNames = []string{"one", "two", "three", "four", "five", "six", "seven", "eight"}

// round returns the name of a round, one token.
func round(i int) string { return string("bdfg"[i/3]) + string("aio"[i%3]) }

// Longer is the split of walks that are longer than the training walks.
const Longer = "longer"

var walkSplits = []string{Train, Test, Tune, Longer}

// walk is a question: the first direction, the first and the last round, and the moves of a round.
type walk struct {
	start, first, last int
	ops                [8]int // of turnNames
}

func (w walk) prompt() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Facing %s, from %s until %s:", ways[w.start], round(w.first), round(w.last))
	for i, op := range w.ops {
		b.WriteString(" " + placeNames[i] + turnNames[op])
	}
	return b.String()
}

func (w walk) answer() string {
	var b strings.Builder
	b.WriteString(ways[w.start])
	at := w.start
	for r := w.first; r <= w.last; r++ {
		for i, op := range w.ops {
			name := turnNames[op]
			at = (at + turnBy[name]) % len(ways)
			fmt.Fprintf(&b, " %s %s %s %s", round(r), placeNames[i], name, ways[at])
		}
	}
	fmt.Fprintf(&b, " end now %s.", ways[at])
	return b.String()
}

// split returns the split of the walk, whatever the seed.
func (w walk) split() string {
	if w.last-w.first >= mostRoundsTrained {
		return Longer
	}
	h := fnv.New64a()
	fmt.Fprint(h, w)
	switch share := philox.IntN(shares, 0, philox.Data, 200, h.Sum64(), 0); {
	case share < testShare:
		return Test
	case share < testShare+tuneShare:
		return Tune
	}
	return Train
}

// mostWalks bounds the rows of a split: there are some 1.6 million training walks, and 260,000
// longer ones.
const mostWalks = 100_000

// makeWalks returns the first n rows of a split for a seed. No walk appears twice, and a smaller n
// gives the beginning of the same rows.
func makeWalks(seed uint64, split string, n int) ([]Row, error) {
	side := slices.Index(walkSplits, split)
	if side < 0 || n < 0 || n > mostWalks {
		return nil, fmt.Errorf("task: split %q, %d rows: must be one of %v, and 0 to %d rows",
			split,
			n, walkSplits, mostWalks)
	}
	rows, seen := make([]Row, n), map[walk]bool{}
	for i := range rows {
		next := uint64(0)
		draw := func(n int) int {
			next++
			return philox.IntN(n, seed, philox.Data, uint64(200+side), uint64(i), next)
		}
		for {
			rounds := 1 + draw(mostRoundsTrained)
			if split == Longer {
				rounds = mostRoundsTrained + 1 + draw(mostRounds-mostRoundsTrained)
			}
			w := walk{start: draw(len(ways)), first: draw(mostRounds - rounds + 1)}
			w.last = w.first + rounds - 1
			for j := range w.ops {
				w.ops[j] = draw(len(turnNames))
			}
			if w.split() == split && !seen[w] {
				seen[w] = true
				answer := w.answer()
				rows[i] = Row{Prompt: w.prompt(), Answer: answer,
					Result: answer[strings.LastIndexByte(answer, ' ')+1 : len(answer)-1]}
				break
			}
		}
	}
	return rows, nil
}

// Walks returns the folder of the task walks with the default numbers of rows.
func Walks() Folder {
	return Folder{
		Name: walksName, Files: "train.arrow, test.arrow, longer.arrow, student and more",
		About:  "walks of 8 to 96 moves, for thoughts in chunks: each step of an answer needs the one before it",
		Splits: walkSplits, Most: func() int { return mostWalks },
		Counts: map[string]int{Train: 20000, Test: 1000, Tune: 500, Longer: 1000},
		Arrow:  true, MaxPosition: 1024, Vocab: 640,
		Rows: func(seed uint64, split string, n int) (rows Rows, err error) {
			made, err := makeWalks(seed, split, n)
			for _, r := range made {
				rows.Lines = append(rows.Lines,
					map[string]any{"content": []data.Message{{Role: "user", Content: r.Prompt}},
						"teacher_response": r.Answer})
			}
			rows.Corpus = Corpus(made)
			return rows, err
		},
		README: walksREADME,
	}
}

var walkQuestion = regexp.MustCompile(`^Facing (\w+), from (\w+) until (\w+):((?: \w+){8})$`)

// walkOf returns the walk that a prompt asks for; ok is false for other prompts.
func walkOf(prompt string) (w walk, ok bool) {
	m := walkQuestion.FindStringSubmatch(prompt)
	if m == nil {
		return w, false
	}
	w = walk{start: slices.Index(ways, m[1]), first: -1, last: -1}
	for i := range mostRounds {
		if round(i) == m[2] {
			w.first = i
		}
		if round(i) == m[3] {
			w.last = i
		}
	}
	for i, word := range strings.Fields(m[4]) {
		name, _ := strings.CutPrefix(word, placeNames[i])
		if w.ops[i] = slices.Index(turnNames, name); w.ops[i] < 0 {
			return w, false
		}
	}
	return w, w.start >= 0 && w.first >= 0 && w.last >= w.first
}

// checkWalk grades an answer to a walk. The form names the first mistake: a round, a place, a move,
// the direction after it, or the end.
func checkWalk(w walk, answer string) Grade {
	right := w.answer()
	if answer == right {
		return Grade{true, "right"}
	}
	said, want := strings.Fields(answer), strings.Fields(right)
	switch at := firstWrong(said, want); {
	case at == len(said):
		return Grade{Form: "unfinished"}
	case at >= len(want)-3:
		return Grade{Form: "wrong end"}
	default:
		return Grade{Form: []string{"wrong way", "wrong round", "wrong place", "wrong move"}[at%4]}
	}
}

// walksREADME returns README.md of the folder.
func walksREADME(f Folder) (string, error) {
	var b strings.Builder
	counts := maps.Clone(f.Counts)
	w := walk{first: 1, last: 3, ops: [8]int{0, 1, 2, 2, 0, 1, 1, 2}}
	answer := strings.Fields(w.answer())
	fmt.Fprintf(&b, "# The task %s\n\n%s.\n\n", f.Name, upper(f.About))
	fmt.Fprintf(&b, "Made by `gad task make %s` with seed %d; the student's weights are drawn with seed %d.\n\n", f.Name, f.Seed, f.StudentSeed)
	fmt.Fprintf(&b, `A robot makes the same eight moves in each of several rounds. The teacher writes the way at the start, then for each move the
round, its place, the move, and the way after it:

    %s
    %s ... %s

| file | rows | moves |
|---|---:|---|
| train.arrow | %d | 8 to %d, in rounds of 8 |
| test.arrow | %d | the same, held out |
| tune.arrow | %d | the same, to look at while settings are chosen |
| longer.arrow | %d | %d to %d: more chunks than in training |
| student/ | | an untrained model folder with its tokenizer |

An answer has four tokens for each move. A first chunk of 80 tokens has room for 19 moves, and each later one with a carry of 16,
which are four moves, for 16 more.

    gad sft --model student --data train.arrow --output run rollout.chunk=80 rollout.carry=16 rollout.chunks=8
    gad eval --model run/global_step_N/actor --data longer.arrow --checker '"$GAD" task check %s'

## How an answer is graded

Right: the whole text is the teacher's, byte for byte. The labels of the others say what is wrong first.
`, w.prompt(), strings.Join(answer[:13], " "), strings.Join(answer[len(answer)-7:], " "),
		counts[Train], 8*mostRoundsTrained, counts[Test], counts[Tune], counts[Longer],
		8*mostRoundsTrained+8,
		8*mostRounds,
		f.Name)
	return b.String(), nil
}
