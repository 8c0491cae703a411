package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/internal/hostile"
)

// minimal is a whole tokenizer.json with one merge, for tests to spoil.
func minimal() map[string]any {
	vocab := map[string]any{"ab": 256}
	for b, r := range byteToRune {
		vocab[string(r)] = b
	}
	return map[string]any{
		"added_tokens": []any{map[string]any{"id": 257, "content": "<end>", "special": true,
			"normalized": false}},
		"normalizer":     nil,
		"pre_tokenizer":  map[string]any{"type": "ByteLevel", "add_prefix_space": false},
		"post_processor": nil,
		"decoder":        map[string]any{"type": "ByteLevel"},
		"model":          map[string]any{"type": "BPE", "vocab": vocab, "merges": []any{"a b"}},
	}
}

func filesOf(t testing.TB, top map[string]any) map[string][]byte {
	t.Helper()
	data, err := json.Marshal(top)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{fileTokenizer: data, fileConfig: []byte(`{"eos_token": "<end>"}`)}
}

func TestMinimal(t *testing.T) {
	tok, err := parse(filesOf(t, minimal()))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("abc<end>"); !slices.Equal(got, []int32{256, 'c', 257}) {
		t.Errorf("Encode = %v", got)
	}
	if got := tok.Encode("a\xff\xf0\x9f\x98b"); !slices.Equal(got, tok.Encode("a\ufffd\ufffdb")) {
		t.Errorf("bytes that are not UTF-8: ids %v", got)
	}
	if _, err := tok.ChatPrompt([]Message{{Role: "user", Content: "x"}}); !errors.Is(err,
		ErrNoChatTemplate) {
		t.Errorf("ChatPrompt without a template: %v", err)
	}
	if got := tok.Decode([]int32{-1, 1 << 30, 256}, false); got != "ab" {
		t.Errorf("Decode = %q", got)
	}
}

// TestRefused spoils one thing at a time; the error must name it.
func TestRefused(t *testing.T) {
	t.Parallel()
	model := func(top map[string]any) map[string]any { return top["model"].(map[string]any) }
	vocab := func(top map[string]any) map[string]any { return model(top)["vocab"].(map[string]any) }
	decoders := func(types ...string) map[string]any {
		var list []any
		for _, kind := range types {
			list = append(list, map[string]any{"type": kind})
		}
		return map[string]any{"type": "Sequence", "decoders": list}
	}
	for name, c := range map[string]struct {
		spoil func(top map[string]any)
		want  string
	}{
		"model type": {func(f map[string]any) { model(f)["type"] = "Unigram" }, `type "Unigram"`},
		"dropout":    {func(f map[string]any) { model(f)["dropout"] = 0.1 }, "dropout"},
		"suffix": {func(f map[string]any) { model(f)["end_of_word_suffix"] = "</w>" },
			"end_of_word_suffix"},
		"no vocab":    {func(f map[string]any) { delete(model(f), "vocab") }, `"vocab"`},
		"unk unknown": {func(f map[string]any) { delete(vocab(f), "Ġ"); model(f)["unk_token"] = "<u>" }, `"unk_token": "<u>" is not`},
		"negative id": {func(f map[string]any) { vocab(f)["ab"] = -1 }, "id -1"},
		"huge id": {func(f map[string]any) { vocab(f)["ab"] = 2_000_000_000 },
			"id 2000000000"},
		"large id":        {func(f map[string]any) { vocab(f)["ab"] = 1000 }, "highest id 1000"},
		"id beyond int64": {func(f map[string]any) { vocab(f)["ab"] = json.Number("99999999999999999999") }, `token "ab"`},
		"fractional id":   {func(f map[string]any) { vocab(f)["ab"] = 1.5 }, `token "ab"`},
		"id twice": {func(f map[string]any) { vocab(f)["ab"] = 5 },
			"id 5: another token has it"},
		"merge unknown": {func(f map[string]any) { model(f)["merges"] = []any{"a zz"} },
			"merge 0"},
		"merge of one": {func(f map[string]any) { model(f)["merges"] = []any{"ab"} },
			"merge 0"},
		"merge of three": {
			func(f map[string]any) { model(f)["merges"] = []any{[]any{"a", "b", "c"}} }, "merge 0"},
		"merge of numbers": {func(f map[string]any) { model(f)["merges"] = []any{[]any{1, 2}} },
			"merge 0"},
		"merges absent": {func(f map[string]any) { delete(model(f), "merges") }, `"merges"`},
		"normalizer":    {func(f map[string]any) { f["normalizer"] = map[string]any{"type": "Lowercase"} }, `"Lowercase"`},
		"nested normalizer": {func(f map[string]any) {
			f["normalizer"] = map[string]any{"type": "Sequence",
				"normalizers": []any{map[string]any{"type": "Precompiled"}}}
		}, `"Precompiled"`},
		"pre-tokenizer": {func(f map[string]any) { f["pre_tokenizer"] = map[string]any{"type": "BertPreTokenizer"} }, `"BertPreTokenizer"`},
		"unigram": {func(f map[string]any) { model(f)["type"] = "Unigram" },
			"only BPE can be read: use a model with a BPE tokenizer"},
		"replacement": {func(f map[string]any) { f["pre_tokenizer"] = map[string]any{"type": "Metaspace"} }, `Metaspace with replacement ""`},
		"prepend_scheme": {func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Metaspace", "replacement": "_",
				"prepend_scheme": "last"}
		}, `"last"`},
		"add_prefix_space": {func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Metaspace", "replacement": "_",
				"prepend_scheme": "first", "add_prefix_space": false}
		}, "contradict"},
		"first behind a strip": {func(f map[string]any) {
			f["normalizer"] = map[string]any{"type": "Strip", "strip_left": true}
			f["pre_tokenizer"] = map[string]any{"type": "Metaspace", "replacement": "_",
				"prepend_scheme": "first"}
		}, `prepend_scheme "first" behind a Strip`},
		"replace without content": {func(f map[string]any) {
			f["normalizer"] = map[string]any{"type": "Replace",
				"pattern": map[string]any{"String": "a"}}
		}, "Replace without content"},
		"replace of nothing": {func(f map[string]any) {
			f["normalizer"] = map[string]any{"type": "Replace", "pattern": map[string]any{},
				"content": ""}
		}, "Replace with pattern"},
		"punctuation": {func(f map[string]any) { f["pre_tokenizer"] = map[string]any{"type": "Punctuation", "behavior": "x"} }, `behavior "x"`},
		"over characters, decoder of bytes": {func(f map[string]any) { f["pre_tokenizer"] = nil },
			"no ByteLevel step in pre_tokenizer"},
		"over bytes, decoder of characters": {
			func(f map[string]any) { f["decoder"] = map[string]any{"type": "Fuse"} },
			"has a ByteLevel step"},
		"over characters, no decoder": {
			func(f map[string]any) { f["pre_tokenizer"] = nil; f["decoder"] = nil }, "no decoder"},
		"both decoders": {
			func(f map[string]any) { f["decoder"] = decoders("ByteLevel", "Fuse") },
			"beside ByteLevel"},
		"bytes behind fuse": {
			func(f map[string]any) {
				f["pre_tokenizer"], f["decoder"] = nil,
					decoders("Fuse", "ByteFallback")
			}, "ByteFallback behind Fuse"},
		"two byte steps": {func(f map[string]any) {
			f["pre_tokenizer"], f["decoder"] = nil, decoders("ByteFallback", "ByteFallback")
		}, "two ByteFallback"},
		"strip of nothing": {
			func(f map[string]any) { f["pre_tokenizer"], f["decoder"] = nil, decoders("Strip") },
			"Strip with start 0"},
		"no pre-tokenizer": {func(f map[string]any) { f["pre_tokenizer"] = nil }, "pre_tokenizer"},
		"split behavior": {func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Split",
				"pattern": map[string]any{"Regex": "a"}, "behavior": "Taken"}
		}, "Taken"},
		"bad pattern": {func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Split",
				"pattern": map[string]any{"Regex": "(a"}, "behavior": "Isolated"}
		}, `"(a"`},
		"post-processor": {func(f map[string]any) { f["post_processor"] = map[string]any{"type": "BertProcessing"} }, `"BertProcessing"`},
		"post-processor id": {func(f map[string]any) {
			f["post_processor"] = map[string]any{"type": "TemplateProcessing",
				"single": []any{map[string]any{"SpecialToken": map[string]any{"id": "x"}},
					map[string]any{"Sequence": map[string]any{"id": "A"}}},
				"special_tokens": map[string]any{"x": map[string]any{"ids": []any{99999}}}}
		}, "99999"},
		"decoder":    {func(f map[string]any) { f["decoder"] = map[string]any{"type": "WordPiece"} }, `"WordPiece"`},
		"no decoder": {func(f map[string]any) { f["decoder"] = nil }, "decoder"},
		"added empty": {
			func(f map[string]any) {
				f["added_tokens"] = []any{
					map[string]any{"id": 257, "content": ""}}
			}, "without content"},
		"added null": {func(f map[string]any) { f["added_tokens"] = []any{nil} },
			"without content"},
		"added negative": {
			func(f map[string]any) {
				f["added_tokens"] = []any{
					map[string]any{"id": -7, "content": "<end>"}}
			}, "id -7"},
		"added huge": {
			func(f map[string]any) {
				f["added_tokens"] = []any{
					map[string]any{"id": 1 << 30, "content": "<end>"}}
			}, "1073741824"},
		"added on a taken id": {
			func(f map[string]any) {
				f["added_tokens"] = []any{
					map[string]any{"id": 5, "content": "<end>"}}
			}, "another token has it"},
		"added contradicts": {
			func(f map[string]any) {
				f["added_tokens"] = []any{
					map[string]any{"id": 257, "content": "ab"}}
			}, "vocabulary says 256"},
		"no model": {func(f map[string]any) { delete(f, "model") }, `"model"`},
	} {
		top := minimal()
		c.spoil(top)
		_, err := parse(filesOf(t, top))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one that says %s", name, err, c.want)
		}
	}
	for name, c := range map[string]struct{ file, text, want string }{
		"duplicate key":         {fileTokenizer, `{"model": {}, "model": {}}`, `"model": appears twice`},
		"duplicate token":       {fileTokenizer, `{"model": {"type": "BPE", "vocab": {"a": 1, "a": 2}}}`, `"a": appears twice`},
		"wrong case":            {fileTokenizer, `{"Model": {}}`, `"model"`},
		"trailing text":         {fileTokenizer, `{"model": {}} {}`, "after the JSON object"},
		"array":                 {fileTokenizer, `[]`, "not a JSON object"},
		"empty":                 {fileTokenizer, ``, "not JSON"},
		"eos unknown":           {fileConfig, `{"eos_token": "<none>"}`, `"<none>"`},
		"no eos":                {fileConfig, `{}`, "no end token"},
		"pad unknown":           {fileConfig, `{"eos_token": "<end>", "pad_token": "<none>"}`, `"<none>"`},
		"eos id outside":        {fileGeneration, `{"eos_token_id": 999}`, "999"},
		"eos id negative":       {fileGeneration, `{"eos_token_id": [257, -1]}`, "-1"},
		"eos id text":           {fileGeneration, `{"eos_token_id": "x"}`, "eos_token_id"},
		"template unparsable":   {fileTemplate, `{% for %}`, "cannot be parsed"},
		"template unclosed":     {fileTemplate, `{% if x %}`, "cannot be parsed"},
		"templates, no default": {fileConfig, `{"eos_token": "<end>", "chat_template": [{"name": "x", "template": "y"}]}`, "default"},
	} {
		files := filesOf(t, minimal())
		files[c.file] = []byte(c.text)
		_, err := parse(files)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), c.file) && c.file != fileTemplate {
			t.Errorf("%s: error %v, want one that names %s and says %s", name, err, c.file, c.want)
		}
	}
}

// TestSetsWithinSets: the engine of patterns would read the sets of Oniguruma, which the reference
// has, as other sets without an error.
func TestSetsWithinSets(t *testing.T) {
	for pattern, want := range map[string]string{`[[:punct:]]`: "a set within a set",
		`[a[bc]]+`: "a set within a set", `[\w&&[^a]]`: "a set within a set", `[\w&&\d]`: "a set within a set",
		`[\[a&\]]|\[[^\[]`: ""} {
		_, err := newFinder(pattern)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

// TestExplodingPattern holds that a pattern that would never end is refused; no machine is fast
// enough to end it, whatever the limit. Tests with patterns of their own do not run beside it.
func TestExplodingPattern(t *testing.T) {
	defer func(limit time.Duration) { matchTime = limit }(matchTime)
	matchTime /= 20
	top := minimal()
	top["pre_tokenizer"] = map[string]any{"type": "Split",
		"pattern": map[string]any{"Regex": "(a+)+$"}, "behavior": "Isolated"}
	if _, err := parse(filesOf(t, top)); err == nil ||
		!strings.Contains(err.Error(), "takes too long") {
		t.Errorf("error %v, want one that says takes too long", err)
	}
}

func TestLoadFolder(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), fileTokenizer) {
		t.Errorf("empty folder: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, fileTokenizer), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("folder in place of the file: %v", err)
	}
	// config.json gives the end tokens where nothing else does.
	dir = t.TempDir()
	files := filesOf(t, minimal())
	files[fileConfig] = []byte(`{}`)
	files[fileModel] = []byte(`{"eos_token_id": 257}`)
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := Load(dir)
	if err != nil || !slices.Equal(tok.EOS(), []int32{257}) {
		t.Errorf("end token of config.json: %v, %v", tok, err)
	}
	if err := os.WriteFile(filepath.Join(dir, fileSpecial), bytes.Repeat([]byte(" "), 1<<20+1),
		0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil ||
		!strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("file over its limit: %v", err)
	}
	carried := tok.Files()
	if len(carried) != 2 || !bytes.Equal(carried[fileTokenizer], files[fileTokenizer]) {
		t.Errorf("Files: %d files, want tokenizer.json and tokenizer_config.json unchanged",
			len(carried))
	}
}

// TestShapesOfTheFile reads what other writers of the format leave out or
// write in another way.
func TestShapesOfTheFile(t *testing.T) {
	for name, c := range map[string]struct {
		change func(top map[string]any)
		text   string
		want   []int32
	}{
		"merges as pairs": {
			func(f map[string]any) {
				f["model"].(map[string]any)["merges"] = []any{
					[]any{"a", "b"}}
			}, "abab", []int32{256, 256}},
		"a blank first": {
			func(f map[string]any) { f["pre_tokenizer"] = map[string]any{"type": "ByteLevel"} },
			"ab<end>ab", []int32{' ', 256, 257, ' ', 256}},
		"digits alone": {func(f map[string]any) {
			vocab := f["model"].(map[string]any)["vocab"].(map[string]any)
			vocab["12"] = 258
			f["model"].(map[string]any)["merges"] = []any{"1 2"}
			f["pre_tokenizer"] = map[string]any{"type": "Sequence",
				"pretokenizers": []any{map[string]any{"type": "Digits", "individual_digits": true},
					map[string]any{"type": "ByteLevel", "add_prefix_space": false}}}
		}, "a12", []int32{'a', '1', '2'}},
		"digits in runs": {func(f map[string]any) {
			vocab := f["model"].(map[string]any)["vocab"].(map[string]any)
			vocab["12"], vocab["a1"] = 258, 259
			f["model"].(map[string]any)["merges"] = []any{"a 1", "1 2"}
			f["pre_tokenizer"] = map[string]any{"type": "Sequence",
				"pretokenizers": []any{map[string]any{"type": "Digits"},
					map[string]any{"type": "ByteLevel", "add_prefix_space": false,
						"use_regex": false}}}
		}, "a12", []int32{'a', 258}},
		"no type": {func(f map[string]any) { delete(f["model"].(map[string]any), "type") }, "ab",
			[]int32{256}},
		"tokens behind": {func(f map[string]any) {
			f["post_processor"] = map[string]any{"type": "TemplateProcessing",
				"single": []any{map[string]any{"Sequence": map[string]any{"id": "A"}},
					map[string]any{"SpecialToken": map[string]any{"id": "<end>"}}},
				"special_tokens": map[string]any{"<end>": map[string]any{"ids": []any{257}}}}
		}, "ab", []int32{256, 257}},
	} {
		top := minimal()
		c.change(top)
		tok, err := parse(filesOf(t, top))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := tok.EncodeSpecial(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: EncodeSpecial(%q) = %v, want %v", name, c.text, got, c.want)
		}
	}
}

// TestMissingBytes reads a vocabulary without the bytes 4, 5 and 6 and wants the ids that
// the tokenizers library (0.23.3) gives: such bytes are left out, or become unk, or the
// tokens of the bytes of their letter in the byte alphabet (fallback 1: for 4 and 5,
// fallback 2: for 5 alone).
func TestMissingBytes(t *testing.T) {
	texts := []string{"a\x04b", "\x04", "\x04\x04", "a\x04\x05\x04b\x06", "ab\x04ab", "é\x04é",
		"\x05\x04", "\x04\x05\x04 a", "b\x05", "\x04a\x05b\x04"}
	for _, c := range []struct {
		unk      string
		fuse     bool
		fallback int
		want     [][]int32
	}{
		{"", false, 0, [][]int32{{256}, {}, {}, {256}, {256, 256}, {195, 169, 195, 169}, {},
			{32, 97}, {98}, {256}}},
		{"", false, 1, [][]int32{{97, 262, 260, 98}, {262, 260}, {262, 260, 262, 260},
			{97, 262, 260, 262, 261, 262, 260, 98}, {256, 262, 260, 256},
			{195, 169, 262, 260, 195, 169}, {262, 261, 262, 260},
			{262, 260, 262, 261, 262, 260, 32, 97}, {98, 262, 261},
			{262, 260, 97, 262, 261, 98, 262, 260}}},
		{"", false, 2, [][]int32{{256}, {}, {}, {97, 261, 260, 98}, {256, 256},
			{195, 169, 195, 169}, {261, 260}, {261, 260, 32, 97}, {98, 261, 260},
			{97, 261, 260, 98}}},
		{"", true, 0, [][]int32{{256}, {}, {}, {256}, {256, 256}, {195, 169, 195, 169}, {},
			{32, 97}, {98}, {256}}},
		{"", true, 1, [][]int32{{97, 262, 260, 98}, {262, 260}, {262, 260, 262, 260},
			{97, 262, 260, 262, 261, 262, 260, 98}, {256, 262, 260, 256},
			{195, 169, 262, 260, 195, 169}, {262, 261, 262, 260},
			{262, 260, 262, 261, 262, 260, 32, 97}, {98, 262, 261},
			{262, 260, 97, 262, 261, 98, 262, 260}}},
		{"", true, 2, [][]int32{{256}, {}, {}, {97, 261, 260, 98}, {256, 256}, {195, 169, 195, 169},
			{261, 260}, {261, 260, 32, 97}, {98, 261, 260}, {97, 261, 260, 98}}},
		{"<u>", false, 0, [][]int32{{97, 258, 98}, {258}, {258, 258}, {97, 258, 258, 258, 98, 258},
			{256, 258, 256}, {195, 169, 258, 195, 169}, {258, 258}, {258, 258, 258, 32, 97},
			{98, 258}, {258, 97, 258, 98, 258}}},
		{"<u>", false, 1, [][]int32{{97, 262, 260, 98}, {262, 260}, {262, 260, 262, 260},
			{97, 262, 260, 262, 261, 262, 260, 98, 258}, {256, 262, 260, 256},
			{195, 169, 262, 260, 195, 169}, {262, 261, 262, 260},
			{262, 260, 262, 261, 262, 260, 32, 97}, {98, 262, 261},
			{262, 260, 97, 262, 261, 98, 262, 260}}},
		{"<u>", false, 2, [][]int32{{97, 258, 98}, {258}, {258, 258},
			{97, 261, 260, 258, 258, 98, 258}, {256, 258, 256}, {195, 169, 258, 195, 169},
			{261, 260, 258}, {261, 260, 258, 258, 32, 97}, {98, 261, 260},
			{258, 97, 261, 260, 98, 258}}},
		{"<u>", true, 0, [][]int32{{97, 258, 98}, {258}, {258}, {97, 258, 98, 258}, {256, 258, 256},
			{195, 169, 258, 195, 169}, {258}, {258, 32, 97}, {98, 258}, {258, 97, 258, 98, 258}}},
		{"<u>", true, 1, [][]int32{{97, 262, 260, 98}, {262, 260}, {262, 260, 262, 260},
			{97, 262, 260, 262, 261, 262, 260, 98, 258}, {256, 262, 260, 256},
			{195, 169, 262, 260, 195, 169}, {262, 261, 262, 260},
			{262, 260, 262, 261, 262, 260, 32, 97}, {98, 262, 261},
			{262, 260, 97, 262, 261, 98, 262, 260}}},
		{"<u>", true, 2, [][]int32{{97, 258, 98}, {258}, {258}, {97, 261, 260, 258, 98, 258},
			{256, 258, 256}, {195, 169, 258, 195, 169}, {261, 260, 258}, {261, 260, 258, 32, 97},
			{98, 261, 260}, {258, 97, 261, 260, 98, 258}}},
	} {
		top := minimal()
		model := top["model"].(map[string]any)
		vocab := model["vocab"].(map[string]any)
		for _, b := range []int{4, 5, 6} {
			delete(vocab, string(byteToRune[b]))
		}
		vocab["<u>"] = 258
		model["fuse_unk"], model["byte_fallback"] = c.fuse, c.fallback > 0
		if c.unk != "" {
			model["unk_token"] = c.unk
		}
		switch c.fallback {
		case 1:
			vocab["<0x84>"], vocab["<0x85>"], vocab["<0xC4>"] = 260, 261, 262
		case 2:
			vocab["<0x85>"], vocab["<0xC4>"] = 260, 261
		}
		top["pre_tokenizer"] = map[string]any{"type": "ByteLevel", "add_prefix_space": false,
			"use_regex": false}
		tok, err := parse(filesOf(t, top))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time from the cache
			for i, text := range texts {
				if got := tok.Encode(text); !slices.Equal(got, c.want[i]) {
					t.Errorf("unk %q, fuse %v, fallback %d: Encode(%q) = %v, want %v", c.unk,
						c.fuse, c.fallback, text, got, c.want[i])
				}
			}
			long := strings.Repeat("ab\x04", 40) // over the heap
			if got := tok.Encode(long); c.unk == "" && c.fallback == 0 &&
				(len(got) != 40 || got[39] != 256) {
				t.Errorf("Encode of a long word with a byte left out: %v", got)
			}
		}
	}
}

// TestControlTokensOfMerges holds that no merge and no whole word writes a control token.
func TestControlTokensOfMerges(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		top := minimal()
		top["added_tokens"] = []any{map[string]any{"id": 256, "content": "ab", "special": true},
			map[string]any{"id": 257, "content": "<end>", "special": true}}
		top["model"].(map[string]any)["ignore_merges"] = ignore
		tok, err := parse(filesOf(t, top))
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.EncodeText("ab<end>"); slices.Contains(got, 256) ||
			slices.Contains(got, 257) {
			t.Errorf("ignore_merges %v: EncodeText makes control tokens: %v", ignore, got)
		}
		if got := tok.Encode("ab<end>"); !slices.Equal(got, []int32{256, 257}) {
			t.Errorf("ignore_merges %v: Encode = %v", ignore, got)
		}
	}
}

// TestLost counts the characters that a vocabulary lacks.
func TestLost(t *testing.T) {
	top := minimal()
	model := top["model"].(map[string]any)
	vocab := model["vocab"].(map[string]any)
	for _, b := range []int{4, 0xA9} {
		delete(vocab, string(byteToRune[b]))
	}
	top["normalizer"] = map[string]any{"type": "NFC"}
	for _, unk := range []string{"", "<end>"} {
		if unk != "" {
			vocab[unk] = 257
			model["unk_token"] = unk
		}
		tok, err := parse(filesOf(t, top))
		if err != nil {
			t.Fatal(err)
		}
		fate := "is left out"
		if unk != "" {
			fate = `becomes "<end>"`
		}
		for _, c := range []struct {
			text  string
			n     int
			first string
		}{{"", 0, ""}, {"abc d", 0, ""}, {"a\x04b\x04", 2, `U+0004 '\x04' `}, {"é\x04", 2, `U+00E9 'é' `}, {"e\u0301", 1, `U+00E9 'é' `}, {"ü<end>\x04", 1, `U+0004 '\x04' `}} {
			if c.n > 0 {
				c.first += fate
			}
			if n, first := tok.Lost(c.text); n != c.n || first != c.first {
				t.Errorf("Lost(%+q) = %d, %q, want %d, %q", c.text, n, first, c.n, c.first)
			}
		}
	}
	for _, shape := range []string{"gpt2", "llama2"} {
		tok, e := readExpected(t, shape)
		for _, c := range e.Texts {
			if n, first := tok.Lost(c.Text); n != 0 {
				t.Errorf("%s: Lost(%+q) = %d, %q", shape, c.Text, n, first)
			}
		}
	}
}

// TestLyingID holds that one huge id does not make a huge table.
func TestLyingID(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := parse(map[string][]byte{fileTokenizer: []byte(`{"model":{"type":"BPE","vocab":{"a":2147483646},"merges":[]}}`)})
	runtime.ReadMemStats(&after)
	if err == nil {
		t.Error("accepted")
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("allocated %d bytes", n)
	}
}

// Row 12: a damaged folder is refused or read as a tokenizer whose ids are all in
// range.
func TestHostileFormats(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	read := func(name string, others map[string][]byte) func(text []byte) error {
		dir := t.TempDir()
		for file, data := range others {
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return func(text []byte) error {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
			tok, err := Load(dir)
			if err != nil {
				return err
			}
			ids := tok.EncodeSpecial("ab <end> é😀\x00 12")
			chat, err := tok.ChatPrompt(
				[]Message{{Role: "system", Content: "Be kind."},
					{Role: "user", Content: "Hi <end>"}})
			if errors.Is(err, ErrNoChatTemplate) {
				err = nil
			}
			for _, id := range append(ids, chat...) {
				if id < 0 || int(id) >= tok.Size() {
					t.Errorf("%q: id %d outside 0..%d", text, id, tok.Size()-1)
				}
			}
			return err
		}
	}
	fixture := func(shape, file string) []byte {
		data, err := os.ReadFile(filepath.Join(testdata, shape, file))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.TrimSpace(data)
	}
	small := filesOf(t, minimal())[fileTokenizer]
	from, to := bytes.Index(small, []byte(`"vocab":{`))+100, bytes.LastIndex(small, []byte(`},"normalizer"`))-50
	words := []string{`{`, `}`, `[`, `]`, `"`, `,`, `:`, "null", "true", `\u0000`, `"Sequence"`, `"Split"`, `{"Regex":"(a+)+b"}`, `"merges":["a b"]`, `"id":2147483647`, `"special":true`}
	hostile.Format{
		Name: "tokenizer.json", Small: small, Whole: true, Words: words, Prefix: "tokenizer: ",
		Flip:  [][2]int{{0, from}, {to, len(small)}}, // and some of the vocabulary
		Seeds: [][]byte{fixture("qwen2", fileTokenizer), fixture("llama3", fileTokenizer)},
		Read:  read(fileTokenizer, map[string][]byte{fileGeneration: []byte(`{"eos_token_id":257}`)}),
	}.Try(t)
	config := []byte(`{"eos_token":{"content":"<end>"},"bos_token":"<end>","chat_template":[{"name":"default","template":"{{ messages[0].content }}<end>"}]}`)
	hostile.Format{
		Name: "tokenizer_config.json", Small: config, Whole: true, Prefix: "tokenizer: ",
		Words: append(words, `{{`, `}}`, `{%`, `"eos_token":null`, `"chat_template":"`),
		Seeds: [][]byte{[]byte(`{"eos_token": "<end>", "pad_token": "<end>", "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}`)},
		Read:  read(fileConfig, map[string][]byte{fileTokenizer: small}),
	}.Try(t)
	hostile.Format{
		Name: "chat template", Small: fixture("qwen2", fileTemplate), Prefix: "tokenizer: ",
		Seeds: [][]byte{fixture("llama3", fileTemplate), []byte(`{% macro f(n) %}{{ n * 2 }}{% endmacro %}{% set ns = namespace(s='a') %}{% for i in range(9) %}{% set ns.s = ns.s ~ f(i) | string %}{% endfor %}{{ ns.s.replace('a', 'b') | tojson }}`)},
		Words: templateWords,
		Read:  read(fileTemplate, map[string][]byte{fileTokenizer: small, fileConfig: []byte(`{"eos_token":"<end>"}`)}),
	}.Try(t)
}

// templateWords are pieces of Jinja.
var templateWords = []string{"{{", "}}", "{%", "%}", "{#", "#}", "-%}", "{%-", "for m in messages",
	"endfor", "if true", "endif", "else", "set x = ", "macro f(x)", "endmacro",
	"f(f(x))", "range(99999)", "messages", "loop.index", "namespace(a=1)", ".content", ".strip()",
	".split('a')", ".__class__", "['role']", "[0:2]", "[::-1]", " * 4096", " ~ x", " + x",
	" | join(',')", " | length", " | tojson", " | replace('a', 'aaaa')", " | indent(9999)",
	" is defined", " in ", "not ", "raise_exception('x')", "strftime_now('%Y')",
	"include 'x'", "import 'x' as y", "extends 'x'", "generation", "recursive", "break", "{'a': 1}",
	"'", "\"", "(", ")", "[", "]"}

func TestWordCacheIsBounded(t *testing.T) {
	tok, err := parse(filesOf(t, minimal()))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for i := range cacheWords + 10 {
		for v, k := i, 0; k < 5; k++ {
			b.WriteByte(byte('a' + v%16))
			v /= 16
		}
		b.WriteByte(' ')
	}
	first := tok.Encode(b.String())
	if again := tok.Encode(b.String()); !slices.Equal(again, first) {
		t.Error("words from the cache have other ids")
	}
	full := 0
	for i := range tok.model.cache.slots {
		c := tok.model.cache.slots[i].Load()
		if c == nil {
			continue
		}
		full++
		if want := tok.model.mergeShort(c.word, nil); !slices.Equal(c.ids, want) {
			t.Fatalf("%q is kept as %v, and is %v", c.word, c.ids, want)
		}
	}
	if full < cacheWords/2 {
		t.Errorf("%d of %d places hold a word", full, cacheWords)
	}
}

// TestLongWordsMergeAlike holds the heap to the scan on words that both can do.
func TestLongWordsMergeAlike(t *testing.T) {
	tok, e := readExpected(t, "gpt2")
	r := lcg(3)
	for range 2000 {
		w := e.text(&r, 1+r.below(6), 4)
		if len(w) == 0 || len(w) > shortMergeLen {
			continue
		}
		if a, b :=
			tok.model.mergeShort(w, nil),
			tok.model.mergeLong(tok.model.symbols(w, nil), nil); !slices.Equal(a, b) {
			t.Fatalf("%q: scan %v, heap %v", w, a, b)
		}
	}
	start := time.Now()
	tok.Encode(strings.Repeat("a", 1<<20))
	if d := time.Since(start); d > time.Minute {
		t.Errorf("one word of a megabyte took %v", d)
	}
}

// FuzzLoad feeds damaged tokenizer.json files: an error or a tokenizer whose
// ids are all in range, never a panic.
func FuzzLoad(f *testing.F) {
	seed, err := json.Marshal(minimal())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]},"added_tokens":[{"id":1,"content":"x"}]}`))
	f.Add([]byte(`{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"a+"}}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := parse(map[string][]byte{fileTokenizer: data, fileConfig: []byte(`{"eos_token": "<end>"}`)})
		if err != nil {
			return
		}
		for _, id := range tok.EncodeSpecial("ab <end> é😀\x00 12") {
			if id < 0 || int(id) >= tok.Size() {
				t.Fatalf("id %d outside 0..%d", id, tok.Size()-1)
			}
		}
	})
}

// FuzzTemplate feeds chat templates: an error or a prompt, in time, and no
// control token that stands in the messages alone.
func FuzzTemplate(f *testing.F) {
	for _, shape := range []string{"qwen2", "llama3"} {
		source, err := os.ReadFile(filepath.Join(testdata, shape, fileTemplate))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(source))
	}
	for _, word := range templateWords {
		f.Add("{% for m in messages %}{{ m.content }}{% " + word + " %}{{ x" + word +
			" }}{% endfor %}")
	}
	f.Fuzz(func(t *testing.T, source string) {
		tok, err := withTemplate(t, source)
		if err != nil {
			return
		}
		start, before := time.Now(), hostile.TotalAlloc()
		ids, err := tok.ChatPrompt(
			[]Message{{Role: "user", Content: "a <end> b"}, {Role: "assistant", Content: "c"},
				{Role: "user", Content: "d"}})
		if took := time.Since(start); took > time.Minute {
			t.Errorf("took %v", took)
		}
		if used := hostile.TotalAlloc() - before; used > 2<<30 {
			t.Errorf("allocated %d bytes", used)
		}
		if err == nil && slices.Contains(ids, 257) && !strings.Contains(source, "<end>") &&
			!couldWrite(source) {
			t.Errorf("control token from a message: %v", ids)
		}
	})
}

// couldWrite says that a template could put <end> together from parts, or name
// it: that is its right.
func couldWrite(source string) bool {
	return strings.ContainsAny(source, "<>") || strings.Contains(source, "eos_token")
}
