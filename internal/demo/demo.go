// Package demo makes the task of `gad demo`: questions about letters and
// digits, small enough for a transformer of a million parameters, and a teacher
// that answers them rightly and always in one style, worded at random.
//
// What the style is and how an answer is graded, Readme says to the user. The
// rules live in one table, kinds, from which questions are drawn, answers are
// written and the grader's patterns are built.
package demo

import (
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gad/internal/philox"
)

// The most rows that Rows gives of each split. Sums of three digits run out
// first, so that more rows would mean repeated questions.
const (
	MaxTrain = 15000
	MaxTest  = 1500
)

// testOneIn is the share of problems that belong to the test split: one in eight.
const testOneIn = 8

// Row is one question with the teacher's answer.
type Row struct {
	Prompt   string `json:"prompt"`
	Answer   string `json:"answer"`   // the teacher's, whole
	Kind     string `json:"kind"`     // last, largest, reverse, sort or add
	Solution string `json:"solution"` // what the answer must state, as the teacher spells it: "o c a t", "14"
}

// Grade says what is right about an answer. The two are independent: a right
// solution may come in another style, and the style may hold a wrong solution.
type Grade struct {
	Exact  bool // the answer closes with the signature and the right solution
	Format bool // the answer, from first to last byte, has the teacher's style
}

const signature = "So the answer is "

// openings start an answer; each is as likely as the others, whatever the question.
var openings = []string{"Sure!", "Let me see.", "Good question!", "Happy to help."}

// kind is one sort of question. Templates hold slots in braces: {q} is the
// operands as the question spells them, the others are named by pattern.
type kind struct {
	name    string
	ask     []string          // templates of the question
	say     []string          // templates of the teacher's middle sentence: question restated, one step of work
	join    string            // between operands
	ordered bool              // the solution depends on the operands' order
	pattern map[string]string // what a slot may hold in the teacher's style; {x} is the solution
	draw    func(*draws) []string
	solve   func(ops []string) (slots map[string]string) // the right content of each slot but {q}
	style   *regexp.Regexp                               // set by init
}

// Patterns of slots. Letters stand apart so that each is one token.
const (
	letter  = `[a-z]`
	digit   = `[0-9]`
	number  = `[1-9]?[0-9]`
	letters = letter + `(?: ` + letter + `){2,3}`
	longer  = letter + `(?: ` + letter + `){2,4}`
)

var kinds = []kind{{
	name:    "last",
	ask:     []string{"Last letter of {q}?", "What is the last letter of {q}?", "How does {q} end?", "Give the final letter: {q}"},
	say:     []string{"In {q} there are {n} letters.", "I count {n} letters in {q}."},
	join:    " ",
	ordered: true,
	pattern: map[string]string{"q": longer, "n": digit, "x": letter},
	draw:    func(d *draws) []string { return d.word(3 + d.intN(3)) },
	solve: func(ops []string) map[string]string {
		return map[string]string{"n": strconv.Itoa(len(ops)), "x": ops[len(ops)-1]}
	},
}, {
	name:    "largest",
	ask:     []string{"Largest of {q}?", "Which is the largest: {q}?", "What is the top digit in {q}?", "Give the largest: {q}"},
	say:     []string{"In {q} I see {hi} beats {lo}.", "First {hi} beats {lo} in {q}."},
	join:    " ",
	pattern: map[string]string{"q": digit + `(?: ` + digit + `){2,3}`, "hi": digit, "lo": digit, "x": digit},
	draw:    func(d *draws) []string { return d.distinct('0', 10, 3+d.intN(2)) },
	solve: func(ops []string) map[string]string {
		return map[string]string{"hi": max(ops[0], ops[1]), "lo": min(ops[0], ops[1]), "x": slices.Max(ops)}
	},
}, {
	name:    "reverse",
	ask:     []string{"Reverse: {q}", "Spell {q} backwards.", "What is {q} backwards?", "Give {q} from end to start."},
	say:     []string{"Reading {q} backwards, {e} comes first.", "From the end of {q} I get {e}."},
	join:    " ",
	ordered: true,
	pattern: map[string]string{"q": letters, "e": letter, "x": letters},
	draw:    func(d *draws) []string { return d.word(3 + d.intN(2)) },
	solve: func(ops []string) map[string]string {
		back := slices.Clone(ops)
		slices.Reverse(back)
		return map[string]string{"e": back[0], "x": strings.Join(back, " ")}
	},
}, {
	name:    "sort",
	ask:     []string{"Sort: {q}", "Put {q} in order.", "What is {q} in order?", "Give {q} from first to last."},
	say:     []string{"The alphabet puts {e} first in {q}.", "In order, {q} starts with {e}."},
	join:    " ",
	pattern: map[string]string{"q": letters, "e": letter, "x": letters},
	draw:    func(d *draws) []string { return d.distinct('a', 26, 3+d.intN(2)) },
	solve: func(ops []string) map[string]string {
		sorted := slices.Sorted(slices.Values(ops))
		return map[string]string{"e": sorted[0], "x": strings.Join(sorted, " ")}
	},
}, {
	name:    "add",
	ask:     []string{"Add {q}", "What is {q}?", "How much is {q}?", "Give the sum: {q}"},
	say:     []string{"In {q}, {a}+{b}={s}.", "First {a}+{b}={s} in {q}."},
	join:    "+",
	pattern: map[string]string{"q": digit + `\+` + digit + `\+` + digit, "a": digit, "b": digit, "s": number, "x": number},
	draw: func(d *draws) []string {
		return []string{strconv.Itoa(d.intN(10)), strconv.Itoa(d.intN(10)), strconv.Itoa(d.intN(10))}
	},
	solve: func(ops []string) map[string]string {
		// The operands are single digits.
		s := int(ops[0][0]-'0') + int(ops[1][0]-'0')
		return map[string]string{"a": ops[0], "b": ops[1], "s": strconv.Itoa(s), "x": strconv.Itoa(s + int(ops[2][0]-'0'))}
	},
}}

func init() {
	for i := range kinds {
		k := &kinds[i]
		opening, middle := make([]string, len(openings)), make([]string, len(k.say))
		for j, s := range openings {
			opening[j] = regexp.QuoteMeta(s)
		}
		for j, s := range k.say {
			s = regexp.QuoteMeta(s)
			for slot, pattern := range k.pattern {
				s = strings.ReplaceAll(s, `\{`+slot+`\}`, pattern)
			}
			middle[j] = s
		}
		k.style = regexp.MustCompile(`^(?:` + strings.Join(opening, "|") + `) (?:` + strings.Join(middle, "|") + `) ` +
			signature + k.pattern["x"] + `\.$`)
	}
}

// draws is the sequence of random numbers of one row.
type draws struct {
	seed       uint64
	split, row uint64
	next       uint64
}

func (d *draws) intN(n int) int {
	v := philox.IntN(n, d.seed, philox.Data, d.split, d.row, d.next)
	d.next++
	return v
}

// word is n letters, repeats allowed.
func (d *draws) word(n int) []string {
	ops := make([]string, n)
	for i := range ops {
		ops[i] = string(rune('a' + d.intN(26)))
	}
	return ops
}

// distinct is n different characters out of the m from first on, in any order.
func (d *draws) distinct(first rune, m, n int) []string {
	ops := make([]string, 0, n)
	for len(ops) < n {
		if s := string(first + rune(d.intN(m))); !slices.Contains(ops, s) {
			ops = append(ops, s)
		}
	}
	return ops
}

// heldOut tells whether a problem belongs to the test split. It looks at the
// problem alone, not at seed or wording, so that a test question was never
// trained on in other words or under another seed; where the order of operands
// does not change the solution, all orders fall on one side.
func (k *kind) heldOut(ops []string) bool {
	if !k.ordered {
		ops = slices.Sorted(slices.Values(ops))
	}
	h := fnv.New64a()
	fmt.Fprint(h, k.name, ops)
	// The low bits of FNV see only the low bits of each byte; Philox mixes all.
	return philox.IntN(testOneIn, 0, philox.Data, 2, h.Sum64(), 0) == 0
}

// Rows returns the first n rows of a split, "train" or "test", under a seed.
// Kinds take turns, so that any n holds them in equal parts. No question comes
// twice, no problem is in both splits under any two seeds, and Rows(seed,
// split, m) for m < n is the beginning of Rows(seed, split, n). It panics at
// another split and at n outside [0, MaxTrain] or [0, MaxTest].
func Rows(seed uint64, split string, n int) []Row {
	var side uint64
	limit := MaxTrain
	switch split {
	case "train":
	case "test":
		side, limit = 1, MaxTest
	default:
		panic(fmt.Sprintf("demo: split %q: not one of train, test", split))
	}
	if n < 0 || n > limit {
		panic(fmt.Sprintf("demo: split %q: %d rows: must be 0 to %d", split, n, limit))
	}
	rows := make([]Row, 0, n)
	seen := make(map[string]bool, n)
	for i := range n {
		k := &kinds[i%len(kinds)]
		d := &draws{seed: seed, split: side, row: uint64(i)}
		for {
			ops := k.draw(d)
			q := strings.Join(ops, k.join)
			prompt := fill(k.ask[d.intN(len(k.ask))], map[string]string{"q": q})
			if k.heldOut(ops) != (side == 1) || seen[prompt] {
				continue
			}
			seen[prompt] = true
			slots := k.solve(ops)
			slots["q"] = q
			answer := openings[d.intN(len(openings))] + " " + fill(k.say[d.intN(len(k.say))], slots) + " " + signature + slots["x"] + "."
			rows = append(rows, Row{Prompt: prompt, Answer: answer, Kind: k.name, Solution: slots["x"]})
			break
		}
	}
	return rows
}

// fill puts values into a template's slots. No value holds a brace.
func fill(template string, slots map[string]string) string {
	for slot, value := range slots {
		template = strings.ReplaceAll(template, "{"+slot+"}", value)
	}
	return template
}

// Corpus returns text to train a tokenizer on: the questions and answers of
// Rows(seed, "train", n), one a line.
func Corpus(seed uint64, n int) string {
	var b strings.Builder
	for _, r := range Rows(seed, "train", n) {
		b.WriteString(r.Prompt + "\n" + r.Answer + "\n")
	}
	return b.String()
}

// Check grades an answer to the row's question. Nothing is trimmed, folded or
// repaired, since a discriminator would see such a difference as well.
//
// Exact: what follows the first "So the answer is " is the row's solution in
// the teacher's spelling, a full stop, and nothing more. A solution given
// without the signature, or given twice, does not count.
//
// Format: an opening of the teacher's, a middle sentence of the teacher's for
// this kind of question, and the signature, one space between them, with
// something of the right sort in each slot (letters for letters, a number for a
// sum). Which letters or digits stand there is not looked at, so that copying
// and computing badly costs Exact and not Format.
//
// A row of no known kind can have no Format, one without a solution no Exact.
func Check(r Row, answer string) Grade {
	_, stated, signed := strings.Cut(answer, signature)
	g := Grade{Exact: signed && r.Solution != "" && stated == r.Solution+"."}
	for i := range kinds {
		if kinds[i].name == r.Kind {
			g.Format = kinds[i].style.MatchString(answer)
		}
	}
	return g
}
