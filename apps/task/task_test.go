package task

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gad/internal/hostile"
)

func find(t *testing.T, kind string) Kind {
	t.Helper()
	i := slices.IndexFunc(Kinds(), func(k Kind) bool { return k.Name == kind })
	if i < 0 {
		t.Fatalf("no kind %q", kind)
	}
	return Kinds()[i]
}

func rowsOf(t *testing.T, kind string, seed uint64, split string, n int) []Row {
	t.Helper()
	rows, err := find(t, kind).Make(seed, split, n)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// solve answers a question from its words alone, with nothing of the package's
// tables: it is the second opinion on the teacher.
func solve(prompt string) (walk []string) {
	words := strings.Fields(strings.NewReplacer("Facing ", "", ", go", "").Replace(prompt))
	left := map[string]string{"north": "west", "west": "south", "south": "east", "east": "north"}
	at := words[0]
	walk = []string{at}
	for _, turn := range words[1:] {
		switch turn {
		case "left":
			at = left[at]
		case "right":
			at = left[left[left[at]]]
		}
		walk = append(walk, at)
	}
	return walk
}

func TestTeacherIsRight(t *testing.T) {
	for _, k := range Kinds() {
		for split, n := range k.Rows {
			for _, r := range rowsOf(t, k.Name, 3, split, hostile.Share(n)) {
				walk := solve(r.Prompt)
				if len(walk) != turns+1 {
					t.Fatalf("question %q has %d turns", r.Prompt, len(walk)-1)
				}
				last := walk[turns]
				want := map[string]string{
					ResultFirst: "Now " + last + ", by way of " + strings.Join(walk, " ") + ".",
					WalkFirst:   "By way of " + strings.Join(walk, " ") + ", now " + last + ".",
				}
				if r.Result != last || r.Answer != want[r.Form] || r.Answer == "" {
					t.Fatalf("question %q: answer %q, form %q, result %q; want %q", r.Prompt,
						r.Answer, r.Form, r.Result, want)
				}
				if g, err := Check(r.Prompt, r.Answer); err != nil || g != (Grade{true, r.Form}) {
					t.Fatalf("question %q: the teacher's answer %q is graded %+v, %v", r.Prompt,
						r.Answer, g, err)
				}
			}
		}
	}
}

// Fewer rows are the beginning of more, and a golden row: a change of the
// generator changes every published figure, so it should be noticed here.
func TestDeterministic(t *testing.T) {
	a := rowsOf(t, "two-forms", 9, Train, 2000)
	if !slices.Equal(a[:700], rowsOf(t, "two-forms", 9, Train, 700)) {
		t.Fatal("fewer rows are not the beginning of more rows")
	}
	same := 0
	for i, r := range rowsOf(t, "two-forms", 10, Train, 2000) {
		if r == a[i] {
			same++
		}
	}
	if same > 20 {
		t.Fatalf("%d of 2000 rows are the same under another seed", same)
	}
	const prompt, answer = "Facing west, go stay right right stay right left stay left",
		"Now north, by way of west west north east east south east east north."
	if a[0].Prompt != prompt || a[0].Answer != answer {
		t.Fatalf("row 0 of seed 9: %q %q, want %q %q", a[0].Prompt, a[0].Answer, prompt, answer)
	}
}

// All rows that there are of each split, under several seeds: no question twice,
// none in two splits.
func TestSplitsAreDisjoint(t *testing.T) {
	t.Parallel()
	side, total := map[string]string{}, 0
	for _, split := range Splits {
		n := Max(split)
		total += n
		for seed := range uint64(hostile.Share(3)) {
			found := map[string]bool{}
			for _, r := range rowsOf(t, "few-rows", seed, split, n-n/8) {
				if found[r.Prompt] {
					t.Fatalf("seed %d: question %q comes twice in %s", seed, r.Prompt, split)
				}
				found[r.Prompt] = true
				if was, ok := side[r.Prompt]; ok && was != split {
					t.Fatalf("question %q is in %s and in %s", r.Prompt, was, split)
				}
				side[r.Prompt] = split
			}
		}
	}
	if total != 4*6561 {
		t.Errorf("%d problems in all splits, there are %d", total, 4*6561)
	}
	for _, k := range Kinds() {
		for split, n := range k.Rows {
			if n > Max(split) {
				t.Errorf("%s: %d rows of %s, there are %d", k.Name, n, split, Max(split))
			}
		}
	}
}

// Shifted questions turn the same way again and again, the others do not.
func TestShifted(t *testing.T) {
	changes := func(prompt string) (n int) {
		words := strings.Fields(prompt)[3:]
		for i := range words[1:] {
			if words[i] != words[i+1] {
				n++
			}
		}
		return n
	}
	for _, r := range rowsOf(t, "few-rows", 1, Shifted, 1000) {
		if changes(r.Prompt) > maxChanges {
			t.Fatalf("shifted question %q changes %d times", r.Prompt, changes(r.Prompt))
		}
	}
	mean := 0.0
	for _, r := range rowsOf(t, "few-rows", 1, Test, 1000) {
		if changes(r.Prompt) <= maxChanges {
			t.Fatalf("test question %q changes %d times", r.Prompt, changes(r.Prompt))
		}
		mean += float64(changes(r.Prompt)) / 1000
	}
	if mean < 4.5 || mean > 5.1 { // 7*2/3 = 4.67 over all problems
		t.Errorf("test questions change %.2f times", mean)
	}
}

// Shares within five standard deviations of what they should be.
func TestDistribution(t *testing.T) {
	const n = 8000
	for _, k := range Kinds() {
		forms, words := map[string]float64{}, map[string]float64{}
		for _, r := range rowsOf(t, k.Name, 1, Train, n) {
			forms[r.Form]++
			for i, w := range strings.Fields(
				strings.NewReplacer("Facing ", "", ",", "", "go ", "").Replace(r.Prompt)) {
				if i == 0 || i == 4 {
					words[w]++
				}
			}
		}
		near := func(what string, got, share float64) {
			if sd := math.Sqrt(n * share * (1 - share)); math.Abs(got-n*share) > 5*sd {
				t.Errorf("%s: %s: %.0f, want %.0f +- %.0f", k.Name, what, got, n*share, sd)
			}
		}
		near(ResultFirst, forms[ResultFirst], k.First)
		near(WalkFirst, forms[WalkFirst], 1-k.First)
		for _, w := range ways {
			near(w, words[w], 1.0/4)
		}
		for _, w := range turnNames {
			near(w, words[w], 1.0/3)
		}
	}
}

// Check against damaged answers: one word, one letter, one space is enough.
func TestCheckRejects(t *testing.T) {
	other := map[string]string{"north": "east", "east": "south", "south": "west", "west": "north"}
	rows := rowsOf(t, "few-rows", 4, Test, 200)
	for _, r := range rows {
		want := Grade{false, r.Form}
		grade := func(answer string) Grade {
			g, err := Check(r.Prompt, answer)
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		// Any one way replaced by another keeps the form and is wrong.
		words := strings.Split(r.Answer, " ")
		for i, w := range words {
			bare := strings.Trim(w, ",.")
			if other[bare] == "" {
				continue
			}
			bad := slices.Clone(words)
			bad[i] = strings.Replace(w, bare, other[bare], 1)
			if g := grade(strings.Join(bad, " ")); g != want {
				t.Fatalf("question %q: answer %q: %+v, want %+v", r.Prompt, strings.Join(bad, " "),
					g, want)
			}
		}
		// Any one byte left out, doubled or in the other case: never valid.
		for i := range r.Answer {
			for _, bad := range []string{r.Answer[:i] + r.Answer[i+1:],
				r.Answer[:i] + r.Answer[i:i+1] + r.Answer[i:],
				r.Answer[:i] + flip(r.Answer[i]) + r.Answer[i+1:]} {
				if bad != r.Answer && grade(bad).Valid {
					t.Fatalf("question %q: answer %q is valid", r.Prompt, bad)
				}
			}
		}
		// Cut anywhere: never valid, and of no form.
		for i := range r.Answer {
			if g := grade(r.Answer[:i]); g != (Grade{false, Other}) {
				t.Fatalf("question %q: answer %q: %+v", r.Prompt, r.Answer[:i], g)
			}
		}
		for _, c := range []struct {
			bad  string
			want Grade
		}{
			{"", Grade{false, Other}},
			{r.Result, Grade{false, Other}},
			{" " + r.Answer, Grade{false, Other}},
			{r.Answer + " ", Grade{false, Other}},
			{r.Answer + "\n", Grade{false, Other}},
			{r.Answer + " " + r.Answer, Grade{false, Other}},
			{strings.TrimSuffix(r.Answer, ".") + "..", Grade{false, Other}},
			{r.Prompt, Grade{false, Other}},
			// a walk too long
			{strings.Replace(r.Answer, "way of ", "way of "+other["north"]+" ", 1), want},
		} {
			if g := grade(c.bad); g != c.want {
				t.Fatalf("question %q: answer %q: %+v, want %+v", r.Prompt, c.bad, g, c.want)
			}
		}
		// The other form's right answer is right, another question's is not.
		walk := solve(r.Prompt)
		path, result := strings.Join(walk, " "), walk[len(walk)-1]
		if g := grade("Now " + result + ", by way of " + path + "."); g != (Grade{true, ResultFirst}) {
			t.Fatalf("result first: %+v", g)
		}
		if g := grade("By way of " + path + ", now " + result + "."); g != (Grade{true, WalkFirst}) {
			t.Fatalf("walk first: %+v", g)
		}
	}
	wrong := 0
	for i, r := range rows[1:] {
		if strings.Join(solve(r.Prompt), "") == strings.Join(solve(rows[i].Prompt), "") {
			continue
		}
		wrong++
		if g, err := Check(r.Prompt, rows[i].Answer); err != nil ||
			g != (Grade{false, rows[i].Form}) {
			t.Fatalf("another question's answer: %+v, %v", g, err)
		}
	}
	if wrong < 150 {
		t.Errorf("only %d answers of other questions", wrong)
	}
}

func flip(c byte) string {
	if s := strings.ToUpper(string(c)); s != string(c) {
		return s
	}
	return strings.ToLower(string(c))
}

func TestErrors(t *testing.T) {
	two := find(t, "two-forms")
	_, split := two.Make(1, "validation", 1)
	_, few := two.Make(1, Test, -1)
	_, many := two.Make(1, Test, Max(Test)+1)
	_, foreign := Check("What is 1+1?", "2")
	_, way := Check("Facing up, go left", "")
	for _, c := range []struct {
		err  error
		want string
	}{
		{split, `task: split "validation": unknown: use train, test, tune, shifted`},
		{few, `task: split "test": -1 rows: must be 0 to `},
		{many, `so that no question appears twice`},
		{foreign, `task: question "What is 1+1?": not a question of this task`},
		{way, `task: question "Facing up, go left": not a question of this task`},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
}

// README holds what Make makes: examples that are valid, shares, counts.
func TestREADME(t *testing.T) {
	for _, k := range Kinds() {
		text := k.README(5, 6, k.Rows)
		for split, n := range k.Rows {
			if !strings.Contains(text, "| "+split+".arrow | "+strconv.Itoa(n)+" |") {
				t.Errorf("%s: README does not name %d rows of %s", k.Name, n, split)
			}
		}
		if strings.Contains(text, "shifted.arrow") != (k.Rows[Shifted] > 0) ||
			!strings.Contains(text, "seed 5;") || !strings.Contains(text, "with seed 6.") {
			t.Errorf("%s: README:\n%s", k.Name, text)
		}
		var shown []string
		for line := range strings.Lines(text) {
			if s, ok := strings.CutPrefix(line, "    "); ok {
				shown = append(shown, strings.TrimSpace(s))
			}
		}
		for i, form := range []string{ResultFirst, WalkFirst} {
			if g, err := Check(shown[0], shown[1+i]); err != nil || g != (Grade{true, form}) {
				t.Errorf("%s: README's example %q %q: %+v, %v", k.Name, shown[0], shown[1+i], g,
					err)
			}
		}
	}
	if walk := solve(Example.Prompt); walk[len(walk)-1] != Example.Result {
		t.Errorf("example's result is %q", Example.Result)
	}
}

// Walks: the teacher is right, whatever is wrong is said, no walk is in two splits, and every word
// of an answer is one token.
func TestWalks(t *testing.T) {
	seen := map[string]string{}
	for _, split := range walkSplits {
		rows, err := makeWalks(7, split, 200)
		if err != nil {
			t.Fatal(err)
		}
		fewer, err := makeWalks(7, split, 20)
		if err != nil || !slices.Equal(fewer, rows[:20]) {
			t.Errorf("%s: fewer rows are not the beginning of more (%v)", split, err)
		}
		for _, r := range rows {
			if was := seen[r.Prompt]; was != "" {
				t.Errorf("%q is in %s and in %s", r.Prompt, was, split)
			}
			seen[r.Prompt] = split
			words := strings.Fields(r.Answer)
			rounds := (len(words) - 4) / 32
			if split == Longer != (rounds > mostRoundsTrained) || rounds < 1 || rounds > mostRounds ||
				len(words) != 32*rounds+4 {
				t.Errorf("%s: %d rounds in %q", split, rounds, r.Answer)
			}
			wrong := func(at int, word string) string {
				w := slices.Clone(words)
				w[at] = word
				return strings.Join(w, " ")
			}
			for answer, want := range map[string]Grade{r.Answer: {true, "right"},
				wrong(5, "zu"):                  {false, "wrong round"},
				wrong(6, "nine"):                {false, "wrong place"},
				wrong(7, "turn"):                {false, "wrong move"},
				wrong(8, "up"):                  {false, "wrong way"},
				strings.Join(words[:7], " "):    {false, "unfinished"},
				wrong(len(words)-1, "nowhere."): {false, "wrong end"}} {
				g, err := Check(r.Prompt, answer)
				if err != nil || g != want {
					t.Errorf("%q to %q: %+v, want %+v (%v)", answer, r.Prompt, g, want, err)
				}
			}
		}
	}
	if _, err := Check("Facing north, from ba until ba: oneleft", "x"); err == nil {
		t.Error("a question of one move is taken")
	}
}

// Notes name the first wrong step, whatever follows, and are never the answer's own text.
func TestNotes(t *testing.T) {
	const ask = "Facing north, go left stay right right left left stay right"
	walk := "north west west north east north west west north"
	for answer, want := range map[string]string{
		"By way of " + walk + ", now north.":                                     "Right.",
		"By way of " + walk + ", now south.":                                     "The walk ends north: now north.",
		"By way of north west west south east north west west north, now north.": "Facing west, go right: north.",
		"By way of south west, now west.":                                        "The walk begins north.",
		"By way of north west west, now west.":                                   "Facing west, go right: north.",
		"By way of " + walk + " east, now east.":                                 "The walk has 9 ways.",
		"Now north, by way of " + walk + ".":                                     "Walk first.",
		"":                                                                       "By way of the walk, now the result.",
		"north":                                                                  "By way of the walk, now the result.",
	} {
		if got, err := Notes(ask, answer); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", answer, got, err, want)
		}
	}
	walks, err := makeWalks(3, Train, 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range walks {
		words := strings.Fields(r.Answer)
		if got, err := Notes(r.Prompt, r.Answer); err != nil || got != "Right." {
			t.Errorf("%q, %v", got, err)
		}
		for at := 1; at < len(words); at++ {
			wrong := slices.Clone(words)
			wrong[at] = "x"
			got, err := Notes(r.Prompt, strings.Join(wrong, " "))
			if err != nil || !strings.HasPrefix(got, "After "+strings.Join(words[max(0, at-4):at], " ")) ||
				!strings.HasSuffix(got, " comes "+words[at]+".") {
				t.Errorf("word %d of %s: %q, %v", at, r.Answer, got, err)
			}
		}
	}
	if _, err := Notes("What is 1+1?", "2"); err == nil {
		t.Error("a question of no task has notes")
	}
}

// A noted row has a question to train on with notes that lead to its own answer, which walks first,
// and nothing that the teacher did not say: the answers are those of the rows.
func TestNoted(t *testing.T) {
	for _, k := range Kinds() {
		rows, err := k.Make(7, Train, 400)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Noted(7, rows)
		if err != nil {
			t.Fatal(err)
		}
		i, seen := 0, map[string]int{}
		for _, r := range rows {
			if r.Form != WalkFirst {
				continue
			}
			notes, ok := strings.CutSuffix(got[i].Prompt, " "+r.Prompt)
			if !ok || got[i].Answer != r.Answer {
				t.Fatalf("%s: %+v is not a noted row of %+v", k.Name, got[i], r)
			}
			p, _ := problemOf(r.Prompt)
			walk, word := p.walk(), strings.Fields(notes)
			switch word[0] {
			case "Facing": // "Facing west, go right: north.": a step of the walk
				from := strings.TrimSuffix(word[1], ",")
				found := false
				for j, op := range p.ops {
					found = found || walk[j] == from &&
						notes == "Facing "+from+", go "+op+": "+walk[j+1]+"."
				}
				if !found {
					t.Errorf("%s: %q is no step of %q", k.Name, notes, r.Prompt)
				}
			case "The":
				if want := "The walk begins " + walk[0] + "."; notes != want {
					t.Errorf("%s: %q, want %q", k.Name, notes, want)
				}
			}
			seen[word[0]]++
			i++
		}
		if i != len(got) {
			t.Errorf("%s: %d noted rows, want %d", k.Name, len(got), i)
		}
		for _, word := range []string{"Walk", "Facing", "By", "Right."} {
			if seen[word] == 0 {
				t.Errorf("%s: no notes begin with %s: %v", k.Name, word, seen)
			}
		}
		again, err := Noted(7, rows)
		if err != nil || !slices.Equal(again, got) {
			t.Errorf("%s: other rows with the same seed (%v)", k.Name, err)
		}
	}
}
