package textmetrics

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(math.Abs(got-want) <= 1e-12) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

func TestWords(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{" ... -- ", nil},
		{"Police killed the gunman.", []string{"police", "killed", "the", "gunman"}},
		{"Don't  pay 3,50€ (x86_64)!", []string{"don", "t", "pay", "3", "50", "x86", "64"}},
		{"ÄRGER Straße ДОМ", []string{"ärger", "straße", "дом"}},
		{"e\u0301t\u00e9", []string{"\u00e9t\u00e9"}}, // NFC: both spellings of é are one
		{"我爱Go语言2", []string{"我", "爱", "go", "语", "言", "2"}},
		{"カタかな", []string{"カ", "タ", "か", "な"}},
		{"한국어 문장", []string{"한국어", "문장"}}, // Korean writes spaces
		{"हिन्दी", []string{"हिन्दी"}},    // marks stay inside their word
		{"\u0301a \u0301", []string{"a"}}, // a mark begins no word
		{"a\xffb", []string{"a", "b"}},
	} {
		if got := words(c.text, MaxWords); !slices.Equal(got, c.want) {
			t.Errorf("words(%q) = %q, want %q", c.text, got, c.want)
		}
	}
	for limit := range 4 {
		if got := words("我b c", limit); len(got) != min(limit, 3) {
			t.Errorf("words with limit %d = %q", limit, got)
		}
	}
}

// The sentences of Lin 2004, section 3.1: against S1, candidate S2 shares "police the gunman" (3 of
// 4) and S3 shares "the gunman" (2 of 4), although both share the same words.
func TestRougeL(t *testing.T) {
	const s1 = "police killed the gunman"
	for _, c := range []struct {
		cand, ref string
		want      float64
	}{
		{"police kill the gunman", s1, 3.0 / 4},
		{"the gunman kill police", s1, 2.0 / 4},
		{"Police KILLED: the gunman!", s1, 1},
		{"a b c d e", "a c e", 2 * 3.0 / 8},
		{"a a a", "a", 2 * 1.0 / 4},
		{"x y", "a b", 0},
		{"", "a", 0},
		{"a", "", 0},
		{"", "", 0},
		{"...", "...", 0},
		{"我爱你", "我也爱你", 2 * 3.0 / 7},
	} {
		near(t, fmt.Sprintf("RougeL(%q, %q)", c.cand, c.ref), RougeL(c.cand, c.ref), c.want)
		near(t, fmt.Sprintf("RougeL(%q, %q)", c.ref, c.cand), RougeL(c.ref, c.cand), c.want)
	}
}

// lcsTable is the textbook dynamic program.
func lcsTable(a, b []string) int {
	row := make([]int, len(b)+1)
	for _, x := range a {
		diag := 0
		for j, y := range b {
			up := row[j+1]
			if x == y {
				row[j+1] = diag + 1
			} else {
				row[j+1] = max(row[j+1], row[j])
			}
			diag = up
		}
	}
	return row[len(b)]
}

func TestLCSAgainstTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	text := func(n, vocab int) []string {
		w := make([]string, n)
		for i := range w {
			w[i] = fmt.Sprint(rng.IntN(vocab))
		}
		return w
	}
	// Lengths around the word size carry and masks meet; vocabularies of 1 and 2 use the kept masks
	// only, 1,000 none.
	for _, vocab := range []int{1, 2, 5, 50, 1000} {
		for _, n := range []int{1, 2, 63, 64, 65, 127, 128, 129, 300} {
			for _, m := range []int{1, 7, 64, 200} {
				a, b := text(n, vocab), text(m, vocab)
				if got, want := lcs(a, b), lcsTable(a, b); got != want {
					t.Fatalf("lcs of %d and %d words of %d: %d, want %d", n, m, vocab, got, want)
				}
			}
		}
	}
}

func TestRougeLHostileLength(t *testing.T) {
	if testing.Short() {
		t.Skip("half a second")
	}
	long := strings.Repeat("a b ", MaxWords) // twice the limit
	begin := time.Now()
	near(t, "RougeL of a long text with itself", RougeL(long, long), 1)
	if d := time.Since(begin); d > time.Minute {
		t.Errorf("took %v", d)
	}
	// Beyond the limit nothing counts.
	near(t, "RougeL beyond the limit",
		RougeL(strings.Repeat("a ", MaxWords)+"x", strings.Repeat("b ", MaxWords)+"x"), 0)
}

func TestDistinctN(t *testing.T) {
	for _, c := range []struct {
		texts []string
		n     int
		want  float64
	}{
		{[]string{"a b a b"}, 1, 2.0 / 4},
		{[]string{"a b a b"}, 2, 2.0 / 3}, // ab ba ab
		{[]string{"a b", "a b"}, 2, 1.0 / 2},
		{[]string{"a b", "c d"}, 2, 2.0 / 2}, // no pair "b c"
		{[]string{"A b", "a B c"}, 1, 3.0 / 5},
		{[]string{"a"}, 2, 0},
		{nil, 1, 0},
		{[]string{"", "..."}, 1, 0},
		{[]string{"ab c", "a bc"}, 2, 1},
	} {
		near(t, fmt.Sprintf("DistinctN(%q, %d)", c.texts, c.n), DistinctN(c.texts, c.n), c.want)
	}
}

func TestRepeatFrac(t *testing.T) {
	for _, c := range []struct {
		ids  []int32
		want float64
	}{
		{nil, 0},
		{[]int32{1, 2, 3, 4}, 0},
		// its only run of 4 has no earlier one
		{[]int32{1, 1, 1, 1}, 0},
		{[]int32{1, 1, 1, 1, 1}, 4.0 / 5},          //
		{[]int32{1, 2, 3, 4, 1, 2, 3, 4}, 4.0 / 8}, // the second copy
		{[]int32{1, 2, 3, 4, 1, 2, 3}, 0},          // three tokens are no run
		// two overlapping runs, tokens counted once
		{[]int32{1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5}, 5.0 / 11},
		{[]int32{1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3, 4}, 8.0 / 14}, // two copies
		{[]int32{1, 2, 3, 4, 5, 6, 7, 8, 9}, 0},
	} {
		near(t, fmt.Sprintf("RepeatFrac(%v)", c.ids), RepeatFrac(c.ids), c.want)
	}
}

func TestPercentiles(t *testing.T) {
	xs := []float64{40, 10, 30, 20}
	want := []float64{10, 17.5, 25, 38.5, 40}
	for i, got := range Percentiles(xs, 0, 25, 50, 95, 100) {
		near(t, fmt.Sprintf("percentile %d", i), got, want[i])
	}
	if !slices.Equal(xs, []float64{40, 10, 30, 20}) {
		t.Errorf("xs was sorted in place: %v", xs)
	}
	near(t, "one value", Percentiles([]float64{7}, 90)[0], 7)
	inf := math.Inf(1)
	if got := Percentiles([]float64{1, inf, inf}, 100, 50, 75); got[0] != inf || got[1] != inf ||
		got[2] != inf || !math.IsInf(Percentiles([]float64{1, inf}, 50)[0], 1) {
		t.Errorf("with infinities: %v", got)
	}
	for _, none := range [][]float64{nil, {1, math.NaN(), 2}} {
		if got := Percentiles(none, 50); !math.IsNaN(got[0]) {
			t.Errorf("Percentiles(%v) = %v, want NaN", none, got)
		}
	}
}

func TestPanics(t *testing.T) {
	for want, f := range map[string]func(){
		"textmetrics: DistinctN: n 0: want at least 1": func() { DistinctN([]string{"a"}, 0) },
		"textmetrics: Percentiles: 101: want 0 to 100": func() { Percentiles([]float64{1}, 101) },
		"textmetrics: Percentiles: NaN: want 0 to 100": func() {
			Percentiles([]float64{1},
				math.NaN())
		},
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panic %v, want %q", got, want)
				}
			}()
			f()
		}()
	}
}

func BenchmarkRougeL1536(b *testing.B) {
	rng := rand.New(rand.NewPCG(3, 4))
	text := func() string {
		var s strings.Builder
		for range 1536 {
			fmt.Fprintf(&s, "w%d ", int(math.Exp(rng.Float64()*8)))
		}
		return s.String()
	}
	x, y := text(), text()
	for b.Loop() {
		RougeL(x, y)
	}
}
