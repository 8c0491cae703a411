package tokenizer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"gad/internal/hostile"
)

// The fixtures are what Hugging Face's libraries make of the same texts;
// scripts/fixtures_tokenizer.py writes them.

const testdata = "../testdata/tokenizer"

var shapes = []string{"gpt2", "qwen2", "llama3", "other", "llama2", "mistral", "gemma"}

type expected struct {
	WrittenBy string     `json:"written_by"`
	Pool      []string   `json:"pool"`
	Ranges    [][2]int64 `json:"ranges"`
	Texts     []struct {
		Text string  `json:"text"`
		IDs  []int32 `json:"ids"`
	} `json:"texts"`
	SpecialDigest string `json:"special_digest"`
	PlainDigest   string `json:"plain_digest"`
	Random        struct {
		Seed   uint64 `json:"seed"`
		Count  int    `json:"count"`
		Digest string `json:"digest"`
	} `json:"random"`
	Big struct {
		Seed   uint64 `json:"seed"`
		Blocks int    `json:"blocks"`
		Bytes  int    `json:"bytes"`
		Digest string `json:"digest"`
	} `json:"big"`
	Points       string    `json:"points"`
	PointStep    rune      `json:"point_step"`
	Pieces       [][]int32 `json:"pieces"`
	RandomPieces string    `json:"random_pieces"`
	PointPieces  string    `json:"point_pieces"`
	Decode       []struct {
		IDs  []int32 `json:"ids"`
		Skip bool    `json:"skip"`
		Text string  `json:"text"`
	} `json:"decode"`
	RandomDecode struct {
		Seed   uint64 `json:"seed"`
		Count  int    `json:"count"`
		Size   int    `json:"size"`
		Digest string `json:"digest"`
	} `json:"random_decode"`
	Chats []struct {
		Messages [][2]string `json:"messages"`
		Text     string      `json:"text"`
		Prompt   string      `json:"prompt"`
		IDs      []int32     `json:"ids"`
		Error    string      `json:"error"`
	} `json:"chats"`
	Attacks []struct {
		Text string  `json:"text"`
		IDs  []int32 `json:"ids"`
	} `json:"attacks"`
}

// fixtures is what readExpected has read, by shape.
var fixtures sync.Map

type fixture struct {
	tok *Tokenizer
	e   *expected
}

// readExpected returns a shape's tokenizer, which tests share and leave as it is, and what is
// expected of it.
func readExpected(t testing.TB, shape string) (*Tokenizer, *expected) {
	t.Helper()
	if f, ok := fixtures.Load(shape); ok {
		return f.(fixture).tok, f.(fixture).e
	}
	tok, err := Load(filepath.Join(testdata, shape))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(testdata, shape, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	e := new(expected)
	if err := json.Unmarshal(data, e); err != nil {
		t.Fatal(err)
	}
	fixtures.Store(shape, fixture{tok, e})
	return tok, e
}

// lcg is the fixture script's generator.
type lcg uint64

func (r *lcg) below(n int) int {
	*r = *r*6364136223846793005 + 1442695040888963407
	return int(uint64(*r) >> 33 % uint64(n))
}

// text is the fixture script's random_text.
func (e *expected) text(r *lcg, pieces, points int) string {
	var b strings.Builder
	for range pieces {
		if points > 0 && r.below(points) == 0 {
			span := e.Ranges[r.below(len(e.Ranges))]
			b.WriteRune(rune(int(span[0]) + r.below(int(span[1]-span[0]+1))))
		} else {
			b.WriteString(e.Pool[r.below(len(e.Pool))])
		}
	}
	return b.String()
}

func (e *expected) big() string {
	r := lcg(e.Big.Seed)
	var b strings.Builder
	for range e.Big.Blocks {
		b.WriteString(e.text(&r, 1000, 0))
	}
	return b.String()
}

// digest hashes lists of ids, each with its length before it.
func digest(lists func(yield func([]int32))) string {
	h := sha256.New()
	lists(func(ids []int32) {
		buf := binary.LittleEndian.AppendUint32(nil, uint32(len(ids)))
		for _, id := range ids {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(id))
		}
		h.Write(buf)
	})
	return hex.EncodeToString(h.Sum(nil))
}

func TestReferenceHardTexts(t *testing.T) {
	for _, shape := range shapes {
		tok, e := readExpected(t, shape)
		if len(e.Texts) < 100 {
			t.Fatalf("%s: only %d texts in the fixture", shape, len(e.Texts))
		}
		for _, c := range e.Texts {
			if got := tok.Encode(c.Text); !slices.Equal(got, c.IDs) {
				t.Errorf("%s: Encode(%+q):\n got %v\nwant %v", shape, c.Text, got, c.IDs)
			}
		}
		for _, way := range []struct {
			name, want string
			encode     func(string) []int32
		}{{"EncodeSpecial", e.SpecialDigest, tok.EncodeSpecial},
			{"EncodeText", e.PlainDigest, tok.EncodeText}} {
			got := digest(func(yield func([]int32)) {
				for _, c := range e.Texts {
					yield(way.encode(c.Text))
				}
			})
			if got != way.want {
				t.Errorf("%s: %s of the hard texts differs from the reference (%s)", shape,
					way.name, e.WrittenBy)
			}
		}
	}
}

func TestReferenceRandomTexts(t *testing.T) {
	for _, shape := range shapes {
		tok, e := readExpected(t, shape)
		r := lcg(e.Random.Seed)
		got := digest(func(yield func([]int32)) {
			for range e.Random.Count {
				yield(tok.Encode(e.text(&r, 1+r.below(24), 3)))
			}
		})
		if got != e.Random.Digest {
			t.Errorf("%s: ids of %d random texts differ from the reference", shape, e.Random.Count)
		}
	}
}

func TestReferenceLongText(t *testing.T) {
	t.Parallel()
	for i, shape := range shapes {
		if testing.Short() && shape != "llama3" || !hostile.InTurn(i, 1, 3) {
			continue
		}
		tok, e := readExpected(t, shape)
		text := e.big()
		if len(text) != e.Big.Bytes {
			t.Fatalf("%s: the test's text has %d bytes, the fixture's %d", shape, len(text),
				e.Big.Bytes)
		}
		if got := digest(
			func(yield func([]int32)) { yield(tok.Encode(text)) }); got != e.Big.Digest {
			t.Errorf("%s: ids of a text of %d bytes differ from the reference", shape, len(text))
		}
		if shape == "gpt2" || shape == "llama3" { // no normalizer, no blanks taken by tokens
			if tok.Decode(tok.Encode(text), false) != text {
				t.Errorf("%s: decoding does not give the text back", shape)
			}
		}
	}
}

// lengths are those of the pre-tokens of a text, in code points.
func (t *Tokenizer) lengths(text string) []int32 {
	out := []int32{}
	if text != "" {
		t.split(t.normalize(text), true, 0,
			func(w string) { out = append(out, int32(utf8.RuneCountInString(w))) })
	}
	return out
}

func TestReferencePieces(t *testing.T) {
	for _, shape := range shapes {
		tok, e := readExpected(t, shape)
		for i, want := range e.Pieces {
			if got := tok.lengths(e.Texts[i].Text); !slices.Equal(got, want) {
				t.Errorf("%s: pieces of %+q: %v, want %v", shape, e.Texts[i].Text, got, want)
			}
		}
		r := lcg(e.Random.Seed)
		got := digest(func(yield func([]int32)) {
			for range e.Random.Count {
				yield(tok.lengths(e.text(&r, 1+r.below(24), 3)))
			}
		})
		if got != e.RandomPieces {
			t.Errorf("%s: pieces of %d random texts differ from the reference", shape,
				e.Random.Count)
		}
	}
}

// blocks calls f with every step-th code point of Unicode in place of the *
// of form, in texts of 1024 of them.
func blocks(form string, step rune, f func(text string)) {
	var b strings.Builder
	n := 0
	for c := rune(0); c < 0x110000; c += step {
		if c >= 0xD800 && c < 0xE000 {
			continue
		}
		for _, r := range form {
			if r == '*' {
				r = c
			}
			b.WriteRune(r)
		}
		if n++; n%1024 == 0 {
			f(b.String())
			b.Reset()
		}
	}
	if b.Len() > 0 {
		f(b.String())
	}
}

// TestReferenceEveryCodePoint holds the class and the normal form of each code
// point of Unicode to the reference. Without GAD_LONG the pieces are those of one shape, and
// another's ids are.
func TestReferenceEveryCodePoint(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("some seconds")
	}
	for i, shape := range shapes {
		if !hostile.InTurn(i, 0, len(shapes)) {
			continue
		}
		tok, e := readExpected(t, shape)
		got := digest(func(yield func([]int32)) {
			blocks("*'*x* *1", e.PointStep, func(text string) { yield(tok.lengths(text)) })
		})
		if got != e.PointPieces {
			t.Errorf("%s: pieces at the code points differ from the reference (%s)", shape,
				e.WrittenBy)
		}
	}
	tok, e := readExpected(t, "qwen2")
	got := digest(func(yield func([]int32)) {
		blocks("*a1", 1, func(text string) { yield(tok.Encode(text)) })
	})
	if got != e.Points {
		t.Errorf("ids of the code points differ from the reference (%s)", e.WrittenBy)
	}
}

func TestReferenceDecode(t *testing.T) {
	for _, shape := range shapes {
		tok, e := readExpected(t, shape)
		for _, c := range e.Decode {
			if got := tok.Decode(c.IDs, c.Skip); got != c.Text {
				t.Errorf("%s: Decode(%v, %v) = %+q, want %+q", shape, c.IDs, c.Skip, got, c.Text)
			}
		}
		r := lcg(e.RandomDecode.Seed)
		h := sha256.New()
		for range e.RandomDecode.Count {
			ids := make([]int32, 1+r.below(12))
			for i := range ids {
				ids[i] = int32(r.below(e.RandomDecode.Size))
			}
			for _, skip := range []bool{false, true} {
				h.Write([]byte(tok.Decode(ids, skip) + "\x00"))
			}
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != e.RandomDecode.Digest {
			t.Errorf("%s: texts of random ids differ from the reference", shape)
		}
		if tok.Size() != e.RandomDecode.Size {
			t.Errorf("%s: Size() = %d, want %d", shape, tok.Size(), e.RandomDecode.Size)
		}
	}
}

func TestReferenceChats(t *testing.T) {
	for _, shape := range shapes {
		if shape == "other" {
			continue
		}
		tok, e := readExpected(t, shape)
		if len(e.Chats) < 10 {
			t.Fatalf("%s: only %d chats in the fixture", shape, len(e.Chats))
		}
		for i, c := range e.Chats {
			var msgs []Message
			for _, m := range c.Messages {
				msgs = append(msgs, Message{Role: m[0], Content: m[1]})
			}
			ids, err := tok.ChatPrompt(msgs)
			if c.Error != "" {
				if !errors.Is(err, ErrTemplate) || !strings.Contains(err.Error(), c.Error) {
					t.Errorf("%s: chat %d: error %v, want one that says %q", shape, i, err, c.Error)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: chat %d: %v", shape, i, err)
				continue
			}
			for _, way := range []struct {
				prompt bool
				want   string
			}{{false, c.Text}, {true, c.Prompt}} {
				if got, err := tok.RenderChat(msgs, way.prompt); err != nil || got != way.want {
					t.Errorf("%s: chat %d: RenderChat(%v) = %q, %v, want %q", shape, i, way.prompt,
						got, err, way.want)
				}
			}
			if !slices.Equal(ids, c.IDs) {
				t.Errorf("%s: chat %d: ChatPrompt:\n got %v\nwant %v", shape, i, ids, c.IDs)
			}
		}
	}
}

// TestControlTokensInUserText holds that a user cannot write a control token,
// and that what he wrote is encoded as the reference encodes plain text.
func TestControlTokensInUserText(t *testing.T) {
	for _, shape := range []string{"qwen2", "llama2", "mistral", "gemma"} {
		tok, e := readExpected(t, shape)
		if len(e.Attacks) == 0 {
			t.Fatalf("%s: no attacks in the fixture", shape)
		}
		for _, a := range e.Attacks {
			got, err := tok.ChatPrompt([]Message{{Role: "user", Content: a.Text}})
			if err != nil || !slices.Equal(got, a.IDs) {
				t.Errorf("%s: ChatPrompt(%q): %v\n got %v\nwant %v", shape, a.Text, err, got, a.IDs)
			}
		}
	}
}

// TestReferenceVariants puts every step that can be read around one small vocabulary.
func TestReferenceVariants(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(testdata, "variants.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Model    map[string]any `json:"model"`
		Texts    []string       `json:"texts"`
		Variants []struct {
			Name   string         `json:"name"`
			Change map[string]any `json:"change"`
			IDs    [][]int32      `json:"ids"`
			Decode [][2]any       `json:"decode"`
		} `json:"variants"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Variants) < 70 || len(f.Texts) < 80 {
		t.Fatalf("%d variants of %d texts in the fixture", len(f.Variants), len(f.Texts))
	}
	for _, v := range f.Variants {
		model := maps.Clone(f.Model)
		if change, ok := v.Change["model"].(map[string]any); ok {
			maps.Copy(model, change)
		}
		if lack, ok := v.Change["lack"].([]any); ok {
			vocab := maps.Clone(model["vocab"].(map[string]any))
			for _, name := range lack {
				delete(vocab, name.(string))
			}
			model["vocab"] = vocab
		}
		var added []any
		for id, name := range []string{"<unk>", "<s>", "</s>"} {
			added = append(added, map[string]any{"id": id, "content": name, "special": true})
		}
		files := filesOf(t, map[string]any{"added_tokens": added, "model": model,
			"normalizer":    v.Change["normalizer"],
			"pre_tokenizer": v.Change["pre_tokenizer"], "decoder": v.Change["decoder"]})
		files[fileConfig] = []byte(`{"eos_token": "</s>"}`)
		tok, err := parse(files)
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		for i, text := range f.Texts {
			if got := tok.Encode(text); !slices.Equal(got, v.IDs[i]) {
				t.Errorf("%s: Encode(%+q):\n got %v\nwant %v", v.Name, text, got, v.IDs[i])
			}
		}
		for _, d := range v.Decode {
			var ids []int32
			for _, id := range d[0].([]any) {
				ids = append(ids, int32(id.(float64)))
			}
			if got := tok.Decode(ids, false); got != d[1] {
				t.Errorf("%s: Decode(%v) = %+q, want %+q", v.Name, ids, got, d[1])
			}
			stream, text := tok.Stream(false), ""
			for _, id := range ids {
				text += stream.Next(id)
			}
			if text += stream.End(); text != d[1] {
				t.Errorf("%s: the stream of %v is %+q, want %+q", v.Name, ids, text, d[1])
			}
		}
	}
}

func TestEndTokens(t *testing.T) {
	for shape, want := range map[string][]string{"gpt2": {"<|turn|>", "<|endoftext|>"},
		"qwen2":  {"<|im_end|>"},
		"llama3": {"<|eot_id|>", "<|end_of_text|>"}, "other": {"<|endoftext|>"}, "llama2": {"</s>"},
		"mistral": {"</s>"}, "gemma": {"<end_of_turn>", "<eos>"}} {
		tok, _ := readExpected(t, shape)
		var ids []int32
		for _, s := range want {
			ids = append(ids, tok.ids[s])
		}
		if got := tok.EOS(); !slices.Equal(got, ids) || tok.EndOfTurn() != ids[0] {
			t.Errorf("%s: EOS() = %v, EndOfTurn() = %d, want %v", shape, got, tok.EndOfTurn(), ids)
		}
		pad := ids[0]
		if shape == "qwen2" {
			pad = tok.ids["<|endoftext|>"]
		}
		if shape == "gemma" {
			pad = tok.ids["<pad>"]
		}
		if tok.Pad() != pad {
			t.Errorf("%s: Pad() = %d, want %d", shape, tok.Pad(), pad)
		}
		if !tok.Special(ids[0]) || tok.Special(tok.ids["a"]) || tok.Special(-1) {
			t.Errorf("%s: Special is wrong", shape)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	_, e := readExpected(t, "qwen2")
	tok, err := Load(filepath.Join(testdata, "qwen2")) // whose words are not known yet
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]int32{}
	for _, c := range e.Texts {
		want[c.Text] = c.IDs
	}
	prompt, err := tok.ChatPrompt([]Message{{Role: "user", Content: "hi"}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for text, ids := range want {
				if !slices.Equal(tok.Encode(text), ids) {
					t.Errorf("Encode(%q) differs when called from several goroutines", text)
				}
			}
			for range 20 {
				if got, err := tok.ChatPrompt(
					[]Message{{Role: "user", Content: "hi"}}); err != nil ||
					!slices.Equal(got, prompt) {
					t.Errorf("ChatPrompt differs when called from several goroutines: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkEncode(b *testing.B) {
	for _, shape := range shapes {
		tok, e := readExpected(b, shape)
		mixed := e.big()
		english := strings.Repeat(
			"The quick brown fox doesn't jump over 12 lazy dogs; the trainer learns from them.\n",
			6000)
		for name, text := range map[string]string{"mixed": mixed, "english": english} {
			b.Run(shape+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				n := 0
				for b.Loop() {
					n += len(tok.Encode(text))
				}
				b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}

func BenchmarkChatPrompt(b *testing.B) {
	tok, _ := readExpected(b, "llama3")
	msgs := []Message{{Role: "user", Content: "one"}, {Role: "assistant", Content: "two"},
		{Role: "user", Content: strings.Repeat("three ", 100)}}
	for b.Loop() {
		if _, err := tok.ChatPrompt(msgs); err != nil {
			b.Fatal(err)
		}
	}
}
