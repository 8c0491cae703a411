package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The tokenizers of testdata as llama.cpp gets them: names of pre-tokenizers, ends,
// types, merges in the order of their ranks.
func TestGGML(t *testing.T) {
	trained, err := Train(strings.NewReader(strings.Repeat("the cat and the hat ", 50)),
		TrainOptions{VocabSize: 270})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tok            *Tokenizer
		pre            string
		bos, eos, last string // the last is of Ends
		addBOS         bool
	}{
		{trained, "qwen2", "<|endoftext|>", "<|im_end|>", "<|endoftext|>", false},
		{load(t, "gpt2"), "gpt-2", "<|endoftext|>", "<|turn|>", "<|endoftext|>", false},
		{load(t, "llama3"), "llama-bpe", "<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>",
			true},
	} {
		vocab := c.tok.Size() + 2
		g, err := c.tok.GGML(vocab)
		if err != nil {
			t.Fatal(err)
		}
		text := func(id int32) string { return g.Tokens[id] }
		if g.Pre != c.pre || text(g.BOS) != c.bos || text(g.EOS) != c.eos || text(g.EOT) != c.eos ||
			text(g.Ends[len(g.Ends)-1]) != c.last || g.AddBOS != c.addBOS || g.AddEOS {
			t.Errorf("%s: %s, bos %q (%v), eos %q, ends %v", c.pre, g.Pre, text(g.BOS), g.AddBOS,
				text(g.EOS), g.Ends)
		}
		if g.EOS != c.tok.EndOfTurn() || g.Pad != c.tok.Pad() ||
			!slices.Equal(g.Ends, c.tok.EOS()) {
			t.Errorf("%s: eos %d pad %d ends %v", c.pre, g.EOS, g.Pad, g.Ends)
		}
		if len(g.Tokens) != vocab || len(g.Types) != vocab ||
			g.Tokens[vocab-1] != fmt.Sprintf("[PAD%d]", vocab-1) || g.Types[vocab-1] != GGMLUnused {
			t.Errorf("%s: %d tokens, the last %q of type %d", c.pre, len(g.Tokens),
				g.Tokens[vocab-1], g.Types[vocab-1])
		}
		seen := map[string]bool{}
		for id, s := range g.Tokens {
			want := GGMLNormal
			switch {
			case id >= c.tok.Size():
				want = GGMLUnused
			case c.tok.Special(int32(id)):
				want = GGMLControl
			}
			if seen[s] || g.Types[id] != want {
				t.Errorf("%s: token %d %q: type %d, expected %d; twice: %v", c.pre, id, s,
					g.Types[id], want, seen[s])
			}
			seen[s] = true
		}
		var file struct {
			Model struct{ Merges []any }
		}
		if err := json.Unmarshal(c.tok.Files()[fileTokenizer], &file); err != nil {
			t.Fatal(err)
		}
		if len(g.Merges) != len(file.Model.Merges) {
			t.Fatalf("%s: %d merges of %d", c.pre, len(g.Merges), len(file.Model.Merges))
		}
		for i, m := range file.Model.Merges {
			want, ok := m.(string)
			if !ok {
				want = fmt.Sprint(m.([]any)[0], " ", m.([]any)[1])
			}
			if g.Merges[i] != want {
				t.Fatalf("%s: merge %d is %q, expected %q", c.pre, i, g.Merges[i], want)
			}
		}
		template := string(c.tok.Files()[fileTemplate])
		if template == "" {
			var conf struct {
				Template string `json:"chat_template"`
			}
			if err := json.Unmarshal(c.tok.Files()[fileConfig], &conf); err != nil {
				t.Fatal(err)
			}
			template = conf.Template
		}
		if g.ChatTemplate != template || template == "" {
			t.Errorf("%s: template %q", c.pre, g.ChatTemplate)
		}
	}
}

// Patterns and the names that llama.cpp has for them, and what it has no name for.
func TestGGMLPre(t *testing.T) {
	split := func(pattern string) string {
		b, _ := json.Marshal(pattern)
		return fmt.Sprintf(`{"type": "Split", "pattern": {"Regex": %s}, "behavior": "Isolated", "invert": false}`, b)
	}
	const bytesOnly = `{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}`
	const gpt2 = `{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}`
	way := ": llama.cpp cannot express it: use the Hugging Face folder (gad export without --gguf)"
	for _, c := range []struct {
		pre     []string
		ignore  bool
		more    string // further keys of tokenizer.json
		added   string // further fields of the end token
		want    string
		refused string
	}{
		{[]string{split(patternQwen2), bytesOnly}, false, "", "", "qwen2", ""},
		{[]string{split(patternLlama3), bytesOnly}, true, "", "", "llama-bpe", ""},
		{[]string{split(patternLlama3), bytesOnly}, false, "", "", "smaug-bpe", ""},
		{[]string{split(patternQwen35), bytesOnly}, false, "", "", "qwen35", ""},
		{[]string{split(patternGPT4o), bytesOnly}, false, "", "", "gpt-4o differs", ""},
		{[]string{split(patternTekken), bytesOnly}, true, "", "", "tekken differs", ""},
		{[]string{split(patternTekken), bytesOnly}, false, "", "", "",
			`"model" has ignore_merges false with this pre_tokenizer` + way},
		{[]string{gpt2}, false, "", "", "gpt-2", ""},
		{[]string{split(patternGPT2), bytesOnly}, false, "", "", "gpt-2", ""},
		{[]string{`{"type": "Digits", "individual_digits": true}`, gpt2}, false, "", "", "smollm", ""},
		{[]string{split(patternQwen2), bytesOnly}, false, `"normalizer": {"type": "NFC"},`, "", "qwen2", ""},
		{[]string{`{"type": "Digits", "individual_digits": false}`, gpt2}, false, "", "", "", `"pre_tokenizer" has the pattern "\\p{N}+, 's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+...` + way},
		{[]string{split(`\w+`), bytesOnly}, false, "", "", "", `"pre_tokenizer" has the pattern "\\w+"` + way},
		{[]string{bytesOnly}, false, "", "", "", `"pre_tokenizer" has the pattern ""` + way},
		{[]string{split(patternQwen2), bytesOnly}, true, "", "", "", `"model" has ignore_merges true with this pre_tokenizer` + way},
		{[]string{`{"type": "ByteLevel", "add_prefix_space": true}`}, false, "", "", "", `"pre_tokenizer" has add_prefix_space true` + way},
		{[]string{gpt2}, false, `"normalizer": {"type": "NFKC"},`, "", "", `"normalizer" changes texts in another way than NFC` + way},
		{[]string{gpt2}, false, "", `, "lstrip": true`, "", `"added_tokens" has "<end>", which takes the blanks beside it (lstrip, rstrip)` + way},
		{[]string{gpt2}, false, "", `, "single_word": true`, "", `"added_tokens" has "<end>", which is found between blanks only (single_word)` + way},
		{[]string{gpt2}, false, processor("<a>", "<a>"), "", "", `"post_processor" puts 2 tokens before a text` + way},
		{[]string{gpt2}, false, processor("", "<a>"), "", "", `"post_processor" puts other tokens than the end of an answer behind a text` + way},
		{[]string{gpt2}, false, processor("<a>", "<end>"), "", "gpt-2 bos eos", ""},
	} {
		var vocab strings.Builder
		for b, r := range byteToRune {
			s, _ := json.Marshal(string(r))
			fmt.Fprintf(&vocab, "%s: %d, ", s, b)
		}
		files := map[string][]byte{
			fileTokenizer: []byte(fmt.Sprintf(`{"added_tokens": [{"id": 256, "content": "<end>", "special": true%s}, {"id": 257, "content": "<a>", "special": true}], %s
				"pre_tokenizer": {"type": "Sequence", "pretokenizers": [%s]}, "decoder": {"type": "ByteLevel"},
				"model": {"type": "BPE", "ignore_merges": %v, "vocab": {%s}, "merges": []}}`, c.added, c.more, strings.Join(c.pre, ","), c.ignore, strings.TrimSuffix(vocab.String(), ", "))),
			fileConfig: []byte(`{"eos_token": "<end>"}`),
		}
		tok, err := parse(files)
		if err != nil {
			t.Fatal(err)
		}
		g, err := tok.GGML(258)
		if c.refused != "" {
			if err == nil || err.Error() != "tokenizer: tokenizer.json: "+c.refused ||
				!errors.Is(err, ErrGGML) {
				t.Errorf("%v\nwant tokenizer: tokenizer.json: %s", err, c.refused)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		got := g.Pre
		if g.AddBOS {
			got += " bos"
		}
		if g.AddEOS {
			got += " eos"
		}
		if g.Differs != "" {
			got += " differs"
		}
		if got != c.want {
			t.Errorf("%q, ignore_merges %v: %q, expected %q", c.pre, c.ignore, got, c.want)
		}
	}
	if _, err := load(t, "qwen2").GGML(2000); err == nil || !strings.Contains(err.Error(), `"added_tokens" has "gizmo", which is found between blanks only`) {
		t.Errorf("added tokens with conditions: %v", err)
	}
	for shape, want := range map[string]string{
		"llama2":  `"added_tokens" has "gizmo", which is found between blanks only (single_word)`,
		"mistral": `"normalizer" leaves blanks as they are`} {
		if _, err := load(t, shape).GGML(2000); err == nil ||
			err.Error() != "tokenizer: tokenizer.json: "+want+way {
			t.Errorf("%s: %v", shape, err)
		}
	}
	// A vocabulary may lack bytes, unless something stands in for them.
	for _, unk := range []any{nil, "<end>"} {
		top := minimal()
		m := top["model"].(map[string]any)
		vocab := m["vocab"].(map[string]any)
		delete(vocab, string(byteToRune[4]))
		vocab["<end>"], m["unk_token"] = 257, unk
		tok, err := parse(filesOf(t, top))
		if err != nil {
			t.Fatal(err)
		}
		g, err := tok.GGML(258)
		if unk != nil && (err == nil || err.Error() != `tokenizer: tokenizer.json: "model" has unk_token or byte_fallback for bytes that have no token`+way) {
			t.Errorf("with unk: %v", err)
		}
		if unk == nil && (err != nil || g.Types[4] != GGMLUnused || g.Tokens[4] != "[PAD4]") {
			t.Errorf("without a byte: %v", err)
		}
	}
	if _, err := load(t, "other").GGML(2000); !errors.Is(err, ErrGGML) {
		t.Errorf("a pattern of its own: %v", err)
	}
}

// processor is a post-processor that puts tokens before and behind a text: with <a>
// behind, two before it.
func processor(before, behind string) string {
	ids := map[string]string{"<end>": `[256]`, "<a>": `[257]`}
	var parts []string
	if before != "" {
		if before == behind {
			ids[before] = `[257, 257]`
			behind = ""
		}
		parts = append(parts, fmt.Sprintf(`{"SpecialToken": {"id": %q, "type_id": 0}}`, before))
	}
	parts = append(parts, `{"Sequence": {"id": "A", "type_id": 0}}`)
	if behind != "" {
		parts = append(parts, fmt.Sprintf(`{"SpecialToken": {"id": %q, "type_id": 0}}`, behind))
	}
	return fmt.Sprintf(`"post_processor": {"type": "TemplateProcessing", "single": [%s], "special_tokens": {"<end>": {"ids": %s}, "<a>": {"ids": %s}}},`, strings.Join(parts, ","), ids["<end>"], ids["<a>"])
}

// Ends beyond end of turn: llama.cpp knows some by their text and has one place more.
func TestGGMLEnds(t *testing.T) {
	tok := load(t, "llama3")
	tok.eos = []int32{tok.endOfTurn, tok.ids["<|end_of_text|>"], tok.ids["<|start_header_id|>"]}
	g, err := tok.GGML(tok.Size())
	if err != nil || g.EOM != tok.ids["<|start_header_id|>"] {
		t.Fatalf("%v, eom %d", err, g.EOM)
	}
	tok.eos = append(tok.eos, tok.ids["<|end_header_id|>"])
	want := `tokenizer: tokenizer.json: "eos_token_id" has "<|start_header_id|>" and "<|end_header_id|>" beside the end of turn: llama.cpp cannot express it: remove all but two of eos_token_id in generation_config.json`
	if _, err := tok.GGML(tok.Size()); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

func load(t *testing.T, name string) *Tokenizer {
	t.Helper()
	tok, err := Load(filepath.Join("..", "testdata", "tokenizer", name))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}
