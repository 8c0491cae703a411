package task

import (
	"fmt"
	"slices"
	"strings"

	"gad/data"
	"gad/internal/philox"
)

// Notes say which form is wanted, and the next step of a walk. A model that has never seen notes
// does not know what they are for, so a task has rows that teach how to read them: noted rows.

// noted is the split of noted rows, which are made of those to train on.
const noted = "noted"

// noteDraws keeps the random numbers of noted rows apart from those of the splits.
const noteDraws = 100

// Noted returns noted rows of the rows to train on: for each row whose answer walks first, the
// question after notes (Notes) on an attempt at it, and the row's own answer, which is what the
// notes ask for. The attempts have every fault that Notes names. Notes stand in front, where they
// move nothing between a question and its answer, which is what so small a student goes by.
func Noted(seed uint64, rows []Row) (out []Row, err error) {
	for i, r := range rows {
		if r.Form != WalkFirst {
			continue
		}
		next := uint64(0)
		draw := func(n int) int {
			next++
			return philox.IntN(n, seed, philox.Data, noteDraws, uint64(i), next)
		}
		p, ok := problemOf(r.Prompt)
		if !ok {
			return nil, fmt.Errorf("task: noted rows: %q: not a question of this task", r.Prompt)
		}
		notes, err := Notes(r.Prompt, p.attempt(draw))
		if err != nil {
			return nil, err
		}
		r.Prompt = notes + " " + r.Prompt
		out = append(out, r)
	}
	return out, nil
}

// attempt draws an answer: three of eight state the result first, three leave the walk at a step or
// begin it elsewhere, one has neither wording and one is right.
func (p problem) attempt(draw func(int) int) string {
	switch kind := draw(8); {
	case kind < 3:
		return p.answer(ResultFirst)
	case kind < 6:
		at := draw(turns + 1)
		walk := p.walk()
		way := (slices.Index(ways, walk[at]) + 1 + draw(len(ways)-1)) % len(ways)
		walk[at] = ways[way]
		for j := at; j < turns; j++ {
			way = (way + turnBy[p.ops[j]]) % len(ways)
			walk[j+1] = ways[way]
		}
		return "By way of " + strings.Join(walk, " ") + ", now " + walk[turns] + "."
	case kind < 7:
		return "Now."
	}
	return p.answer(WalkFirst)
}

// messages returns rows as JSON objects of a file.
func messages(rows []Row) (lines []any) {
	for _, r := range rows {
		lines = append(lines,
			map[string]any{"content": []data.Message{{Role: "user", Content: r.Prompt}},
				"teacher_response": r.Answer})
	}
	return lines
}
