package demo

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

var operands = regexp.MustCompile(`\b[a-z0-9]\b`)

// recompute solves a question from its words alone, with nothing of the
// package's table: it is the second opinion on the teacher.
func recompute(t *testing.T, prompt string) (kind, solution string) {
	t.Helper()
	ops := operands.FindAllString(prompt, -1)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(prompt, w) })
	}
	switch {
	case strings.Contains(prompt, "+"):
		sum := 0
		for _, o := range ops {
			n, err := strconv.Atoi(o)
			if err != nil {
				t.Fatalf("question %q: operand %q: %v", prompt, o, err)
			}
			sum += n
		}
		return "add", fmt.Sprint(sum)
	case ops[0][0] <= '9':
		for want := '9'; ; want-- {
			if slices.Contains(ops, string(want)) {
				return "largest", string(want)
			}
		}
	case has("Reverse", "backwards", "from end to start"):
		var back string
		for _, o := range ops {
			back = o + " " + back
		}
		return "reverse", strings.TrimSpace(back)
	case has("Sort", "in order", "from first to last"):
		sort.Strings(ops)
		return "sort", strings.Join(ops, " ")
	case has("ast letter", " end?", "final letter"):
		return "last", ops[len(ops)-1]
	}
	t.Fatalf("question %q: its words name no kind", prompt)
	return "", ""
}

// checkStep recomputes the step of work that an answer shows.
func checkStep(t *testing.T, r Row) {
	t.Helper()
	ops := operands.FindAllString(r.Prompt, -1)
	var want string
	switch r.Kind {
	case "last":
		want = fmt.Sprintf("%d letters", len(ops))
	case "largest":
		hi, lo := ops[0], ops[1]
		if hi < lo {
			hi, lo = lo, hi
		}
		want = hi + " beats " + lo
	case "add":
		want = fmt.Sprintf("%s+%s=%d", ops[0], ops[1], int(ops[0][0]-'0')+int(ops[1][0]-'0'))
	case "reverse", "sort":
		first := r.Solution[:1]
		ok := strings.Contains(r.Answer, first+" comes first") || strings.Contains(r.Answer, "I get "+first+".") ||
			strings.Contains(r.Answer, "puts "+first+" first") || strings.Contains(r.Answer, "starts with "+first+".")
		if !ok {
			t.Fatalf("question %q: answer %q does not show that %q is first", r.Prompt, r.Answer, first)
		}
		return
	}
	if !strings.Contains(r.Answer, want) {
		t.Fatalf("question %q: answer %q does not show %q", r.Prompt, r.Answer, want)
	}
}

func TestTeacherIsRight(t *testing.T) {
	for split, n := range map[string]int{"train": MaxTrain, "test": MaxTest} {
		rows := Rows(3, split, n)
		if len(rows) != n {
			t.Fatalf("%s: %d rows, want %d", split, len(rows), n)
		}
		for _, r := range rows {
			if kind, solution := recompute(t, r.Prompt); kind != r.Kind || solution != r.Solution {
				t.Fatalf("question %q: kind %q solution %q, want %q %q", r.Prompt, r.Kind, r.Solution, kind, solution)
			}
			checkStep(t, r)
			if g := Check(r, r.Answer); !g.Exact || !g.Format {
				t.Fatalf("question %q: the teacher's answer %q is graded %+v", r.Prompt, r.Answer, g)
			}
		}
	}
}

func TestDeterministic(t *testing.T) {
	a, b := Rows(9, "train", 2000), Rows(9, "train", 700)
	if !slices.Equal(a, Rows(9, "train", 2000)) {
		t.Fatal("the same call gave other rows")
	}
	if !slices.Equal(a[:700], b) {
		t.Fatal("fewer rows are not the beginning of more rows")
	}
	same := 0
	for i, r := range Rows(10, "train", 2000) {
		if r == a[i] {
			same++
		}
	}
	if same > 20 {
		t.Fatalf("%d of 2000 rows are the same under another seed", same)
	}
	if Corpus(9, 700) != Corpus(9, 700) || !strings.HasPrefix(Corpus(9, 700), b[0].Prompt+"\n"+b[0].Answer+"\n") {
		t.Fatal("Corpus is not the text of the training rows")
	}
	// A golden row: a change of the generator changes every published figure of
	// the demo, so it should be noticed here.
	const prompt, answer = "Give the final letter: l z r", "Good question! I count 3 letters in l z r. So the answer is r."
	if a[0].Prompt != prompt || a[0].Answer != answer {
		t.Fatalf("row 0 of seed 9: %q %q, want %q %q", a[0].Prompt, a[0].Answer, prompt, answer)
	}
}

// problem is a question stripped of its wording, and of the order of operands
// where the solution does not depend on it.
func problem(r Row) string {
	ops := operands.FindAllString(r.Prompt, -1)
	if r.Kind != "last" && r.Kind != "reverse" {
		sort.Strings(ops)
	}
	return r.Kind + " " + strings.Join(ops, "")
}

func TestSplitsAreDisjoint(t *testing.T) {
	trained := map[string]bool{}
	for seed := range uint64(3) {
		prompts := map[string]bool{}
		for _, r := range Rows(seed, "train", MaxTrain) {
			trained[problem(r)] = true
			if prompts[r.Prompt] {
				t.Fatalf("seed %d: question %q comes twice in train", seed, r.Prompt)
			}
			prompts[r.Prompt] = true
		}
	}
	for seed := range uint64(5) {
		prompts, problems := map[string]bool{}, map[string]map[string]bool{}
		for _, r := range Rows(seed, "test", MaxTest) {
			if trained[problem(r)] {
				t.Fatalf("seed %d: test question %q: its problem was trained on", seed, r.Prompt)
			}
			if prompts[r.Prompt] {
				t.Fatalf("seed %d: question %q comes twice in test", seed, r.Prompt)
			}
			prompts[r.Prompt] = true
			if problems[r.Kind] == nil {
				problems[r.Kind] = map[string]bool{}
			}
			problems[r.Kind][problem(r)] = true
		}
		// Too few different problems would make the test set a matter of luck.
		for kind, p := range problems {
			if len(p) < 15 {
				t.Errorf("seed %d: kind %q: %d different problems in test, want 15", seed, kind, len(p))
			}
		}
	}
}

func TestDistribution(t *testing.T) {
	const n = 4000
	rows := Rows(1, "train", n)
	kindN, openN, sayN, askN := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	var len1, len2 float64
	for _, r := range rows {
		kindN[r.Kind]++
		shape := operands.ReplaceAllString(r.Prompt, "")
		askN[r.Kind+strings.Join(strings.FieldsFunc(shape, func(c rune) bool { return strings.ContainsRune(" +", c) }), " ")]++
		i := slices.IndexFunc(openings, func(o string) bool { return strings.HasPrefix(r.Answer, o+" ") })
		if i < 0 {
			t.Fatalf("answer %q has no opening", r.Answer)
		}
		openN[r.Kind+" "+openings[i]]++
		middle := strings.TrimPrefix(r.Answer, openings[i]+" ")
		sayN[r.Kind+" "+strings.Fields(middle)[0]]++
		p := pieces(r.Answer)
		len1, len2 = len1+p, len2+p*p
		if q := pieces(r.Prompt); q > 20 {
			t.Fatalf("question %q has %g pieces, want at most 20", r.Prompt, q)
		}
		if p > 28 {
			t.Fatalf("answer %q has %g pieces, want at most 28", r.Answer, p)
		}
	}
	// Binomial counts: five standard deviations about the expected share.
	near := func(what string, counts map[string]int, cells int, of float64) {
		t.Helper()
		if len(counts) != cells {
			t.Errorf("%s: %d different, want %d: %v", what, len(counts), cells, counts)
		}
		want := of / float64(cells)
		for k, c := range counts {
			if tol := 5 * math.Sqrt(want); math.Abs(float64(c)-want) > tol {
				t.Errorf("%s %q: %d, want %.0f +- %.0f", what, k, c, want, tol)
			}
		}
	}
	for k, c := range kindN {
		if c != n/5 {
			t.Errorf("kind %q: %d rows, want %d", k, c, n/5)
		}
	}
	near("kind", kindN, 5, n)
	near("opening of a kind", openN, 20, n)
	near("wording of a kind", sayN, 10, n)
	near("question of a kind", askN, 20, n)

	mean := len1 / n
	sd := math.Sqrt(len2/n - mean*mean)
	t.Logf("answer pieces: mean %.1f, standard deviation %.1f", mean, sd)
	if mean < 18 || mean > 26 || sd < 2 {
		t.Errorf("answer pieces: mean %.1f sd %.1f, want 18 to 26 and at least 2", mean, sd)
	}
}

// piece splits as the Qwen2 pre-tokenizer does on such text (no newline, no
// run of spaces): what a BPE that knows every word would count as tokens.
var piece = regexp.MustCompile(`[^\pL\pN]?\pL+|\pN| ?[^\s\pL\pN]+| `)

func pieces(s string) float64 { return float64(len(piece.FindAllString(s, -1))) }

// TestCheckRejects spoils the teacher's answers, one way at a time.
func TestCheckRejects(t *testing.T) {
	both, exact, format := Grade{}, Grade{Exact: true}, Grade{Format: true}
	wrongSolution := func(r Row) string {
		switch r.Kind {
		case "add":
			n, _ := strconv.Atoi(r.Solution)
			return strconv.Itoa(n + 1)
		case "largest":
			return string('0' + (r.Solution[0]-'0'+1)%10)
		}
		return string('a'+(r.Solution[0]-'a'+1)%26) + r.Solution[1:]
	}
	openingOf := func(r Row) string {
		return openings[slices.IndexFunc(openings, func(o string) bool { return strings.HasPrefix(r.Answer, o) })]
	}
	other := map[string]string{}
	for _, r := range Rows(2, "test", 5) {
		s := strings.TrimPrefix(r.Answer, openingOf(r)+" ")
		other[r.Kind] = s[:strings.Index(s, " So the")]
	}
	otherKind := map[string]string{"last": "add", "add": "last", "sort": "reverse", "reverse": "sort", "largest": "sort"}
	for _, m := range []struct {
		name  string
		want  Grade // what is left
		spoil func(r Row) string
	}{
		{"wrong solution", format, func(r Row) string {
			return strings.TrimSuffix(r.Answer, r.Solution+".") + wrongSolution(r) + "."
		}},
		{"no opening", exact, func(r Row) string { return strings.TrimPrefix(r.Answer, openingOf(r)+" ") }},
		{"foreign opening", exact, func(r Row) string { return "Well!" + strings.TrimPrefix(r.Answer, openingOf(r)) }},
		{"two openings", exact, func(r Row) string { return "Sure! " + r.Answer }},
		{"no middle sentence", exact, func(r Row) string { return openingOf(r) + " " + signature + r.Solution + "." }},
		{"another kind's middle sentence", exact, func(r Row) string {
			return openingOf(r) + " " + other[otherKind[r.Kind]] + " " + signature + r.Solution + "."
		}},
		{"step of work left open", exact, func(r Row) string {
			s := strings.TrimPrefix(r.Answer, openingOf(r)+" ")
			i := strings.Index(s, " So the")
			return openingOf(r) + " " + operands.ReplaceAllString(s[:i], "?") + s[i:]
		}},
		{"digits for letters and letters for digits", exact, func(r Row) string {
			i := strings.Index(r.Answer, " So the")
			return operands.ReplaceAllStringFunc(r.Answer[:i], func(o string) string {
				if o[0] <= '9' {
					return "k"
				}
				return "5"
			}) + r.Answer[i:]
		}},
		{"lower-case opening", exact, func(r Row) string { return strings.ToLower(r.Answer[:1]) + r.Answer[1:] }},
		{"space before", exact, func(r Row) string { return " " + r.Answer }},
		{"double space", exact, func(r Row) string { return strings.Replace(r.Answer, " So", "  So", 1) }},
		{"bare solution", both, func(r Row) string { return r.Solution }},
		{"another signature", both, func(r Row) string { return strings.Replace(r.Answer, "So the answer is", "The answer:", 1) }},
		{"no signature", both, func(r Row) string { return r.Answer[:strings.Index(r.Answer, " So the")] }},
		{"cut before the full stop", both, func(r Row) string { return strings.TrimSuffix(r.Answer, ".") }},
		{"cut before the solution", both, func(r Row) string { return strings.TrimSuffix(r.Answer, r.Solution+".") }},
		{"space after", both, func(r Row) string { return r.Answer + " " }},
		{"newline after", both, func(r Row) string { return r.Answer + "\n" }},
		{"runs on", both, func(r Row) string { return r.Answer + " Sure!" }},
		{"said twice", both, func(r Row) string { return r.Answer + " " + signature + r.Solution + "." }},
		{"solution twice", both, func(r Row) string { return strings.TrimSuffix(r.Answer, ".") + " " + r.Solution + "." }},
		{"solution in upper case or with a leading zero", both, func(r Row) string {
			s := strings.ToUpper(r.Solution)
			if s == r.Solution {
				s = "0" + s
			}
			return strings.TrimSuffix(r.Answer, r.Solution+".") + s + "."
		}},
		{"empty", both, func(Row) string { return "" }},
	} {
		t.Run(m.name, func(t *testing.T) {
			for _, r := range Rows(4, "test", 100) {
				bad := m.spoil(r)
				if bad == r.Answer {
					t.Fatalf("answer %q was not changed", bad)
				}
				if got := Check(r, bad); got != m.want {
					t.Fatalf("question %q: answer %q: %+v, want %+v", r.Prompt, bad, got, m.want)
				}
			}
		})
	}
	// Solutions of several letters: spaces are part of the spelling.
	r := Row{Kind: "reverse", Solution: "o c a t"}
	if got := Check(r, "Sure! From the end of t a c o I get o. So the answer is ocat."); got != both {
		t.Errorf("joined letters: %+v, want %+v", got, both)
	}
	// Rows that Rows never gives.
	if got := Check(Row{Kind: "riddle", Solution: "7"}, "So the answer is 7."); got != exact {
		t.Errorf("unknown kind: %+v, want %+v", got, exact)
	}
	if got := Check(Row{}, "So the answer is ."); got != both {
		t.Errorf("no solution: %+v, want %+v", got, both)
	}
}

// TestReadme holds the text to the table.
func TestReadme(t *testing.T) {
	for _, k := range kinds {
		if !strings.Contains(Readme, "| "+k.name+" ") {
			t.Errorf("kind %q is not in Readme", k.name)
		}
	}
	for _, o := range openings {
		if !strings.Contains(Readme, strconv.Quote(o)) {
			t.Errorf("opening %q is not in Readme", o)
		}
	}
	line := regexp.MustCompile(`(?m)^\| (\w+) +\| (.*?) +\| (.*?) +\| `)
	found := 0
	for _, m := range line.FindAllStringSubmatch(Readme, -1) {
		if m[1] == "kind" {
			continue
		}
		found++
		if kind, solution := recompute(t, m[2]); kind != m[1] || solution != m[3] {
			t.Errorf("Readme: question %q: %q %q, want %q %q", m[2], m[1], m[3], kind, solution)
		}
	}
	if found != len(kinds) {
		t.Errorf("Readme shows %d questions, want %d", found, len(kinds))
	}
	example := regexp.MustCompile(`(?m)^    (.+)$`).FindStringSubmatch(Readme)[1]
	if g := Check(Row{Kind: "reverse", Solution: "o c a t"}, example); !g.Exact || !g.Format {
		t.Errorf("Readme's example %q is graded %+v", example, g)
	}
}

func TestRowsRefuses(t *testing.T) {
	for _, c := range []struct {
		split string
		n     int
	}{{"validation", 1}, {"train", -1}, {"train", MaxTrain + 1}, {"test", MaxTest + 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Rows(1, %q, %d) did not refuse", c.split, c.n)
				}
			}()
			Rows(1, c.split, c.n)
		}()
	}
}
