package tokenizer

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"gad/internal/hostile"
)

// corpusText is a text of n lines made of syllables.
func corpusText(n int) string {
	r := lcg(5)
	syllables := strings.Fields(
		"ta ke mi no ru shi ana ber cor dal est for gin hu ité über 日本 слово 123 it's we'll")
	var b strings.Builder
	for range n {
		for range 3 + r.below(9) {
			for range 1 + r.below(3) {
				b.WriteString(syllables[r.below(1+r.below(len(syllables)))])
			}
			b.WriteByte(' ')
		}
		b.WriteString([]string{"\n", ".\n", "!\n\n", "<|im_end|>\n  ", "\r\n",
			"e\u0301\n"}[r.below(6)])
	}
	return b.String()
}

func TestTrainRoundTrip(t *testing.T) {
	corpus := corpusText(3000)
	tok, err := Train(strings.NewReader(corpus), TrainOptions{VocabSize: 600})
	if err != nil {
		t.Fatal(err)
	}
	if tok.Size() != 600 {
		t.Errorf("Size() = %d, want 600", tok.Size())
	}
	files := tok.Files()
	if got, want :=
		slices.Sorted(maps.Keys(files)),
		[]string{fileGeneration, fileSpecial, fileTokenizer, fileConfig}; !slices.Equal(got, want) {
		t.Errorf("Files: %v, want %v", got, want)
	}
	dir := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	loaded, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{corpus, "text unlike the corpus: 😀 <|im_end|>\x00\u00e9", ""} {
		ids := tok.Encode(text)
		if !slices.Equal(loaded.Encode(text), ids) {
			t.Error("the loaded tokenizer gives other ids")
		}
		if got := loaded.Decode(ids, false); got != loaded.normalize(text) {
			t.Errorf("decodes to %.60q, want %.60q", got, text)
		}
	}
	if n := len(tok.Encode(corpus)); n*2 > len(corpus) {
		t.Errorf("%d bytes became %d tokens: nothing was learned", len(corpus), n)
	}
	if ids := tok.EncodeText("<|im_end|>"); len(ids) < 4 {
		t.Errorf("a control token of the corpus was learned as text: ids %v", ids)
	}
	end, text := tok.ids[turnEnd], tok.ids[endOfText]
	if !slices.Equal(loaded.EOS(), []int32{end, text}) || loaded.EndOfTurn() != end ||
		loaded.Pad() != text {
		t.Errorf("EOS %v, EndOfTurn %d, Pad %d, want [%d %d], %d, %d", loaded.EOS(),
			loaded.EndOfTurn(), loaded.Pad(), end, text, end, text)
	}
	rendered, err := loaded.RenderChat(
		[]Message{{Role: "system", Content: "s"}, {Role: "user", Content: " u\n"}}, true)
	if want := "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n u\n<|im_end|>\n<|im_start|>assistant\n"; err != nil || rendered != want {
		t.Errorf("RenderChat = %q, %v, want %q", rendered, err, want)
	}
}

// TestTrainDependsOnTheCorpusAlone: neither map order nor how the reader cuts
// the corpus may change a byte.
func TestTrainDependsOnTheCorpusAlone(t *testing.T) {
	corpus := corpusText(4000)
	for len(corpus) < trainBlock+trainBlock/4 { // more than one block
		corpus += corpus
	}
	n := 420
	first, err := Train(strings.NewReader(corpus), TrainOptions{VocabSize: n})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Train(iotest.HalfReader(strings.NewReader(corpus)), TrainOptions{VocabSize: n})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range first.Files() {
		if !bytes.Equal(data, again.Files()[name]) {
			t.Errorf("%s differs between two runs", name)
		}
	}
	// Cutting into blocks must not change what is counted.
	whole := map[string]int64{}
	controls := newMatcher([]matchEntry{{turnEnd, &addedToken{}}})
	cut, _ := newSplitter(patternQwen2)
	controls.split(corpus, false, func(s string) {
		cut(first.normalize(s), func(w string) { whole[w]++ })
	}, func(*addedToken) {})
	blocks, err := countWords(strings.NewReader(corpus), []string{turnEnd})
	if err != nil || !maps.Equal(whole, blocks) {
		t.Errorf("%d words counted in blocks, %d in one piece, %v", len(blocks), len(whole), err)
	}
}

// TestTrainByHand follows Sennrich et al. (arXiv 1508.07909, algorithm 1) on a
// corpus small enough to count: "aab" 3 times, "ab" twice, "cb" twice.
func TestTrainByHand(t *testing.T) {
	// a b: 5; a a: 3; c b: 2. Then a ab: 3. Then c b: 2.
	names, merges := learn(map[string]int64{"aab": 3, "ab": 2, "cb": 2, "d": 9}, 300)
	if got, want := names[256:], []string{"ab", "aab", "cb"}; !slices.Equal(got, want) {
		t.Errorf("tokens %q, want %q", got, want)
	}
	if len(merges) != 3 || names[merges[1][0]] != "a" || names[merges[1][1]] != "ab" {
		t.Errorf("merges %v", merges)
	}
	// Of equals the smaller left id, then the smaller right id.
	if names, _ = learn(map[string]int64{"xy": 2, "xa": 2, "ba": 2},
		259); !slices.Equal(names[256:], []string{"ba", "xa", "xy"}) {
		t.Errorf("tokens %q, want ba, xa, xy", names[256:])
	}
	// Overlaps join from the left: aaa -> aa a.
	if names, _ = learn(map[string]int64{"aaa": 4}, 300); !slices.Equal(names[256:],
		[]string{"aa", "aaa"}) {
		t.Errorf("tokens %q, want aa, aaa", names[256:])
	}
}

func TestTrainRefuses(t *testing.T) {
	broken := errors.New("broken disk")
	for name, c := range map[string]struct {
		opt  TrainOptions
		want string
	}{
		"small":             {TrainOptions{VocabSize: 258}, "under 259"},
		"token twice":       {TrainOptions{VocabSize: 500, Special: []string{"<a>", "<a>"}}, `"<a>"`},
		"empty token":       {TrainOptions{VocabSize: 500, Special: []string{""}}, `""`},
		"foreign end":       {TrainOptions{VocabSize: 500, EndOfTurn: "<end>"}, `"<end>"`},
		"template's tokens": {TrainOptions{VocabSize: 500, Special: []string{"<a>"}}, turnEnd},
		"bad template": {TrainOptions{VocabSize: 500, ChatTemplate: "{% for %}"},
			"cannot be parsed"},
		"other end": {TrainOptions{VocabSize: 500,
			ChatTemplate: "{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}"},
			"end of turn"},
	} {
		if _, err := Train(strings.NewReader("some text some text"), c.opt); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one that says %s", name, err, c.want)
		}
	}
	if _, err := Train(strings.NewReader(""), TrainOptions{VocabSize: 500}); err == nil ||
		!strings.Contains(err.Error(), "empty") {
		t.Errorf("empty corpus: %v", err)
	}
	if _, err := Train(iotest.ErrReader(broken), TrainOptions{VocabSize: 500}); !errors.Is(err,
		broken) {
		t.Errorf("failing reader: %v", err)
	}
	tok, err := Train(strings.NewReader("ab"), TrainOptions{VocabSize: 5000})
	if err != nil || tok.Size() != 259 {
		t.Errorf("a corpus with nothing to join: %v", err)
	}
}

// TestTrainWithoutLines: a corpus of one line is cut between characters. Nothing else trains beside
// it.
func TestTrainWithoutLines(t *testing.T) {
	if !hostile.Long() {
		defer func(n int) { trainLine = n }(trainLine)
		trainLine /= 16 // the first cut is not at a multiple of a character
	}
	defer func(start time.Time) {
		if d := time.Since(start); d > time.Minute {
			t.Errorf("took %v", d)
		}
	}(time.Now())
	corpus := strings.Repeat("日本語のテキスト", (trainLine+3*trainBlock)/24)
	counts, err := countWords(strings.NewReader(corpus), nil)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for w, k := range counts {
		if strings.ContainsRune(w, '\ufffd') {
			t.Errorf("word %q was cut inside a character", w)
		}
		n += len(w) * int(k)
	}
	if n != len(corpus) {
		t.Errorf("%d bytes counted of %d", n, len(corpus))
	}
}

func BenchmarkTrain(b *testing.B) {
	corpus := corpusText(20000)
	b.SetBytes(int64(len(corpus)))
	for b.Loop() {
		if _, err := Train(strings.NewReader(corpus), TrainOptions{VocabSize: 2000}); err != nil {
			b.Fatal(err)
		}
	}
}
