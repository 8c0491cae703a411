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

// Walks are long: the thought has three words for each move, its place, the move and the way after it,
// and all that the next step needs is the last of them. So a student that goes on from a carry
// of a few steps (rollout.chunk, doc/thought.md) can do what one does that sees the whole thought.
//
// Every question lists as many moves, and the walk is a part of them, up to the word end: questions
// have the same length whatever the walk's. All places are seen in short walks too, so that a
// longer walk has more steps and nothing else that is new.

// The lengths of walks, in moves.
const (
	walksName = "walks"
	listed    = 97 // entries of a question: the longest walk and its end
	shortest  = 8
	taught    = 64 // the longest of all splits but Longer
	longest   = 96
)

// place is the name of a place in the list: one token, as a number of two digits is not.
func place(i int) string { return string("bcdfghjklmnpqrstvwxz"[(i-1)/5]) + string("aeiou"[(i-1)%5]) }

// Longer is the split of walks that are longer than those to train on.
const Longer = "longer"

var walkSplits = []string{Train, Test, Tune, Longer}

// walk is a question: the way at the start, and moves from the first of the walk on; what is listed
// before and behind the walk is read by nobody.
type walk struct {
	start, first, moves int
	ops                 [listed]int // of turnNames
}

func (w walk) prompt() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Facing %s, from %s:", ways[w.start], place(w.first))
	for i, op := range w.ops {
		name := turnNames[op]
		if i+1 == w.first+w.moves {
			name = "end"
		}
		fmt.Fprintf(&b, " %s %s", place(i+1), name)
	}
	return b.String()
}

func (w walk) answer() string {
	var b strings.Builder
	b.WriteString(ways[w.start])
	at, last := w.start, w.first+w.moves
	for i := w.first; i < last; i++ {
		name := turnNames[w.ops[i-1]]
		at = (at + turnBy[name]) % len(ways)
		fmt.Fprintf(&b, " %s %s %s", place(i), name, ways[at])
	}
	fmt.Fprintf(&b, " %s end now %s.", place(last), ways[at])
	return b.String()
}

// split is the side that the walk is on, whatever the seed.
func (w walk) split() string {
	if w.moves > taught {
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

// mostWalks bounds the rows of a split; no walk comes twice but by a chance that is none.
const mostWalks = 1_000_000

// makeWalks are the first n rows of a split under a seed; fewer are the beginning of more.
func makeWalks(seed uint64, split string, n int) ([]Row, error) {
	side := slices.Index(walkSplits, split)
	if side < 0 || n < 0 || n > mostWalks {
		return nil, fmt.Errorf("task: split %q, %d rows: must be one of %v, and 0 to %d rows", split,
			n, walkSplits, mostWalks)
	}
	rows := make([]Row, n)
	for i := range rows {
		next := uint64(0)
		draw := func(n int) int {
			next++
			return philox.IntN(n, seed, philox.Data, uint64(200+side), uint64(i), next)
		}
		for {
			w := walk{start: draw(len(ways)), moves: shortest + draw(taught-shortest+1)}
			if split == Longer {
				w.moves = taught + 1 + draw(longest-taught)
			}
			w.first = 1 + draw(listed-w.moves)
			for j := range w.ops {
				w.ops[j] = draw(len(turnNames))
			}
			if w.split() == split {
				answer := w.answer()
				rows[i] = Row{Prompt: w.prompt(), Answer: answer,
					Result: answer[strings.LastIndexByte(answer, ' ')+1 : len(answer)-1]}
				break
			}
		}
	}
	return rows, nil
}

// Walks is the folder of the task walks with as many rows as usual.
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

var walkQuestion = regexp.MustCompile(`^Facing (north|east|south|west), from ([a-z]+):((?: [a-z]+ [a-z]+)+)$`)

// checkWalk grades an answer to a walk; ok is false where prompt asks for none. The form says what
// is wrong first: a place, a move, or the way after it.
func checkWalk(prompt, answer string) (g Grade, ok bool) {
	m := walkQuestion.FindStringSubmatch(prompt)
	if m == nil {
		return g, false
	}
	entries := strings.Fields(m[3])
	if len(entries) != 2*listed {
		return g, false
	}
	w := walk{start: slices.Index(ways, m[1]), moves: -1}
	for i := range listed {
		if place(i+1) == m[2] {
			w.first = i + 1
		}
	}
	for i := range w.ops {
		if entries[2*i] != place(i+1) {
			return g, false
		}
		if name := entries[2*i+1]; name != "end" {
			w.ops[i] = max(0, slices.Index(turnNames, name))
		} else if w.first > 0 && i+1 >= w.first && w.moves < 0 {
			w.moves = i + 1 - w.first
		}
	}
	if w.moves < 1 {
		return g, false
	}
	right := w.answer()
	if answer == right {
		return Grade{true, "right"}, true
	}
	said, want := strings.Fields(answer), strings.Fields(right)
	at := 0
	for at < len(said) && at < len(want) && said[at] == want[at] {
		at++
	}
	form := []string{"wrong way", "wrong place", "wrong move"}[at%3]
	if at == len(said) {
		form = "unfinished"
	}
	return Grade{Form: form}, true
}

func walksREADME(f Folder) (string, error) {
	var b strings.Builder
	counts := maps.Clone(f.Counts)
	fmt.Fprintf(&b, "# The task %s\n\n%s.\n\n", f.Name, upper(f.About))
	fmt.Fprintf(&b, "Made by `gad task make %s` with seed %d; the student's weights are drawn with seed %d.\n\n", f.Name, f.Seed, f.StudentSeed)
	fmt.Fprintf(&b, `A question lists %d moves with names and says with which of them the walk begins; it ends at the word "end", which stands in
the place of a move. The teacher writes the way at the start, then for each move its name, the move, and the way after it:

    Facing north, from da: ba left be stay ... da right de right di stay do end du left ...
    north da right east de right south di stay south do end now south.

| file | rows | moves |
|---|---:|---|
| train.arrow | %d | %d to %d |
| test.arrow | %d | the same, held out |
| tune.arrow | %d | the same, to look at while settings are chosen |
| longer.arrow | %d | %d to %d: more chunks than in training |
| student/ | | an untrained model folder with its tokenizer |

All questions are of one length. A chunk of 64 tokens holds some 20 moves, and each later one with a carry of 16 has room for
16 more; an answer of %d moves has %d words.

    gad sft --model student --data train.arrow --output run rollout.chunk=64 rollout.carry=16 rollout.chunks=8
    gad eval --model run/global_step_N/actor --data longer.arrow --checker '"$GAD" task check %s'

## How an answer is graded

Right: the whole text is the teacher's, byte for byte. The labels of the others say what is wrong first.
`, listed, counts[Train], shortest, taught, counts[Test], counts[Tune], counts[Longer], taught+1,
		longest, longest, 4+3*longest, f.Name)
	return b.String(), nil
}
