package tokenizer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// NewGGML returns the values that llama.cpp assumes for a file with this tokenizer.ggml.model and
// tokenizer.ggml.pre ("" if the file has no such key). A reader overwrites them by the keys of the
// file.
func NewGGML(model, pre string) *GGML {
	g := &GGML{Model: model, Pre: pre, BOS: -1, EOS: -1, EOT: -1, EOM: -1, Unknown: -1, Pad: -1}
	switch model {
	case "gpt2":
		g.AddBOS = ggmlPreTokenizers[pre].addBOS
	case "llama":
		g.BOS, g.EOS, g.Unknown = 1, 2, 0
		g.AddBOS, g.SpacePrefix = true, true
	case "gemma4":
		g.AddBOS = true
	}
	return g
}

// ggmlMoreEnds are end tokens of answers that llama.cpp knows by their text, in addition to
// ggmlEnds.
var ggmlMoreEnds = []string{"<|call|>", "<|calls|>", "<|flush|>", "<EOT>", "_<EOT>", "[EOT]",
	"[EOS]", "<end_of_utterance>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["}

const ggmlWayOut = "use the model's Hugging Face folder"

// FromGGML returns the files of a Hugging Face tokenizer folder for a GGUF file's tokenizer:
// tokenizer.json, tokenizer_config.json, generation_config.json and, if there is a chat template,
// chat_template.jinja. The pre-tokenizer is the one in the model's own tokenizer.json, for which
// the name in the file stands.
func FromGGML(g *GGML) (map[string][]byte, error) {
	files, err := g.files()
	if err != nil {
		return nil, fmt.Errorf("tokenizer: GGUF: %w", err)
	}
	return files, nil
}

// part is a normalizer, pre-tokenizer, post-processor or decoder to be written.
type part map[string]any

// sequenceOf returns the parts as one: nil for none, else a Sequence if there are several.
func sequenceOf(key string, parts ...part) part {
	switch len(parts) {
	case 0:
		return nil
	case 1:
		return parts[0]
	}
	return part{"type": "Sequence", key: parts}
}

// files returns the files of a Hugging Face tokenizer folder.
func (g *GGML) files() (map[string][]byte, error) {
	pre, known := ggmlPreTokenizers[g.Pre]
	switch g.Model {
	case "gpt2":
		if !known {
			return nil, fmt.Errorf("tokenizer.ggml.pre: %q: this pre-tokenizer is not known: %s",
				g.Pre, ggmlWayOut)
		}
	case "llama", "gemma4":
		pre = ggmlSplits{text: true}
	case "bert", "t5", "rwkv", "plamo2", "hybriddna", "whitespace", "no_vocab", "none":
		return nil, fmt.Errorf("tokenizer.ggml.model: %q: is no byte-pair encoding: use a model with gpt2, llama or gemma4 here", g.Model)
	default:
		return nil,
			fmt.Errorf(
				"tokenizer.ggml.model: %q: is not known: use a model with gpt2, llama or gemma4 here",
				g.Model)
	}
	tokens, types, err := g.checkTokens()
	if err != nil {
		return nil, err
	}
	ends, err := g.ends(tokens, types)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Concat(ends, []int32{g.BOS}) {
		if id >= 0 && types[id] != GGMLAdded {
			types[id] = GGMLControl
		}
	}
	merges, err := g.merges(tokens, types)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{fileTokenizer: g.tokenizerJSON(tokens, types, merges, pre)}
	if g.ChatTemplate != "" {
		files[fileTemplate] = []byte(g.ChatTemplate)
	}
	if g.ToolTemplate != "" {
		files[fileToolUse] = []byte(g.ToolTemplate)
	}
	config := map[string]any{"add_bos_token": g.AddBOS, "add_eos_token": g.AddEOS,
		"clean_up_tokenization_spaces": false,
		"model_max_length":             1 << 30, "tokenizer_class": "PreTrainedTokenizerFast"}
	for key, id := range map[string]int32{"bos_token": g.BOS, "eos_token": ends[0],
		"unk_token": g.Unknown, "pad_token": g.Pad} {
		if id >= 0 {
			config[key] = tokens[id]
		}
	}
	generation := map[string]any{"eos_token_id": ends}
	if g.BOS >= 0 {
		generation["bos_token_id"] = g.BOS
	}
	if g.Pad >= 0 {
		generation["pad_token_id"] = g.Pad
	}
	for name, v := range map[string]any{fileConfig: config, fileGeneration: generation} {
		if files[name], err = indentedJSON(v); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return files, nil
}

// checkTokens returns the tokens and their types, or an error for a token that cannot be used.
func (g *GGML) checkTokens() (tokens []string, types []int32, err error) {
	n := len(g.Tokens)
	if n == 0 {
		return nil, nil, fmt.Errorf(
			"tokenizer.ggml.tokens: no tokens: the file is damaged, fetch it again")
	}
	types = slices.Clone(g.Types)
	if types == nil {
		types = slices.Repeat([]int32{GGMLNormal}, n)
	}
	if len(types) != n {
		return nil, nil, fmt.Errorf(
			"tokenizer.ggml.token_type: %d types of %d tokens: the file is damaged, fetch it again",
			len(types), n)
	}
	for key, id := range map[string]int32{"bos": g.BOS, "eos": g.EOS, "eot": g.EOT, "eom": g.EOM,
		"unknown": g.Unknown, "padding": g.Pad} {
		if id < -1 || int(id) >= n {
			return nil, nil, fmt.Errorf(
				"tokenizer.ggml.%s_token_id: %d: outside the %d tokens: correct it", key, id, n)
		}
	}
	tokens = slices.Clone(g.Tokens)
	seen := make(map[string]int, n)
	for id, token := range tokens {
		if token == "" {
			token = fmt.Sprintf("[EMPTY_%d]", id)
			tokens[id] = token
		}
		if !utf8.ValidString(token) {
			return nil, nil, fmt.Errorf("tokenizer.ggml.tokens: token %d, %q: is not UTF-8: the file is damaged, fetch it again", id, token)
		}
		if first, twice := seen[token]; twice {
			return nil, nil, fmt.Errorf("tokenizer.ggml.tokens: tokens %d and %d are both %q: the file is damaged, fetch it again", first, id, token)
		}
		seen[token] = id
		if token == fmt.Sprintf("[PAD%d]", id) { // filler of converters for rows of an embedding
			types[id] = GGMLUnused
		}
	}
	return tokens, types, nil
}

// ends returns the tokens that end an answer: the file's own, and as in llama.cpp control tokens of
// a known text.
func (g *GGML) ends(tokens []string, types []int32) ([]int32, error) {
	var ends []int32
	add := func(id int32) {
		if id >= 0 && !slices.Contains(ends, id) {
			ends = append(ends, id)
		}
	}
	add(g.EOS)
	add(g.EOT)
	add(g.EOM)
	ids := map[string]int32{}
	for id, token := range tokens {
		if types[id] == GGMLControl || types[id] == GGMLAdded {
			ids[token] = int32(id)
		}
	}
	has := func(token string) bool { _, ok := ids[token]; return ok }
	for _, token := range slices.Concat(ggmlEnds, ggmlMoreEnds) {
		id, ok := ids[token]
		switch {
		case !ok:
		// Where these are, the other is a part of answers.
		case token == "<|end|>" &&
			(has("<|return|>") && has("<|call|>") || has("<|flush|>") &&
				(has("<|call|>") || has("<|calls|>"))):
		case token == "</s>" && has("<|tool_response>"):
		default:
			add(id)
		}
	}
	if len(ends) == 0 {
		return nil, fmt.Errorf("tokenizer.ggml.eos_token_id: no end token here, and none by its text: answers could never end: %s", ggmlWayOut)
	}
	return ends, nil
}

// merges returns the pairs that join, by rank. No pair joins to a control token, so that texts
// cannot contain one.
func (g *GGML) merges(tokens []string, types []int32) ([][2]string, error) {
	joins := make(map[string]int32, len(tokens))
	for id, token := range tokens {
		if types[id] == GGMLNormal || types[id] == GGMLAdded {
			joins[token] = int32(id)
		}
	}
	if g.Model == "llama" {
		return g.mergesByScore(tokens, types, joins)
	}
	if len(g.Merges) == 0 {
		return nil, fmt.Errorf("tokenizer.ggml.merges: no merges: %s", ggmlWayOut)
	}
	all := make(map[string]bool, len(tokens))
	for _, token := range tokens {
		all[token] = true
	}
	merges := make([][2]string, 0, len(g.Merges))
	seen := make(map[string]bool, len(g.Merges))
	for i, m := range g.Merges {
		at := -1
		if m != "" {
			at = strings.IndexByte(m[1:], ' ') + 1
		}
		if at < 1 {
			return nil, fmt.Errorf("tokenizer.ggml.merges: merge %d, %q: must name two tokens: the file is damaged, fetch it again", i, clip(m))
		}
		left, right := m[:at], m[at+1:]
		if !all[left] || !all[right] || !all[left+right] {
			return nil, fmt.Errorf("tokenizer.ggml.merges: merge %d, %q: a part or the whole is not in the vocabulary: the file is damaged, fetch it again", i, clip(m))
		}
		_, ok1 := joins[left]
		_, ok2 := joins[right]
		_, ok3 := joins[left+right]
		if seen[m] || !ok1 || !ok2 || !ok3 {
			continue // of the same pair the first counts
		}
		seen[m] = true
		merges = append(merges, [2]string{left, right})
	}
	return merges, nil
}

// mergesByScore returns every pair of tokens whose joint text is a token. The reference ranks them
// by the score of that token, then by the length of the left part and of the right, the longer
// first (generate_merges of transformers, which converts SentencePiece models).
func (g *GGML) mergesByScore(tokens []string, types []int32,
	joins map[string]int32) ([][2]string, error) {
	if len(g.Scores) != len(tokens) {
		return nil,
			fmt.Errorf(
				"tokenizer.ggml.scores: %d scores of %d tokens: the file is damaged, fetch it again",
				len(g.Scores), len(tokens))
	}
	type pair struct {
		left, right string
		score       float32
		l, r        int // characters
		id, li, ri  int32
	}
	var pairs []pair
	for id, token := range tokens {
		if types[id] != GGMLNormal {
			continue
		}
		n, l := utf8.RuneCountInString(token), 0
		for i := range token {
			if i == 0 {
				continue
			}
			l++
			li, ok1 := joins[token[:i]]
			ri, ok2 := joins[token[i:]]
			if ok1 && ok2 {
				pairs = append(pairs, pair{token[:i], token[i:], g.Scores[id], l, n - l, int32(id),
					li, ri})
			}
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.l, a.l), cmp.Compare(b.r, a.r),
			cmp.Compare(a.id, b.id), cmp.Compare(a.li, b.li), cmp.Compare(a.ri, b.ri))
	})
	merges := make([][2]string, len(pairs))
	for i, p := range pairs {
		merges[i] = [2]string{p.left, p.right}
	}
	return merges, nil
}

// tokenizerJSON returns tokenizer.json.
func (g *GGML) tokenizerJSON(tokens []string, types []int32, merges [][2]string,
	pre ggmlSplits) []byte {
	var norms, splits, ends []part
	unk, fallback := "null", slices.Contains(types, GGMLByte)
	blanks := func(from, to string) part {
		return part{"type": "Replace", "pattern": part{"String": from}, "content": to}
	}
	if pre.text {
		if g.SpacePrefix {
			norms = append(norms, part{"type": "Prepend", "prepend": "▁"})
		}
		norms = append(norms, blanks(" ", "▁"))
		ends = append(ends, blanks("▁", " "), part{"type": "ByteFallback"}, part{"type": "Fuse"})
		if g.SpacePrefix {
			ends = append(ends, part{"type": "Strip", "content": " ", "start": 1, "stop": 0})
		}
		if g.Unknown >= 0 {
			unk = quote(tokens[g.Unknown])
		}
	} else {
		if pre.nfc {
			norms = append(norms, part{"type": "NFC"})
		}
		bytesToo := part{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
			"use_regex": false}
		for i, pattern := range pre.patterns {
			switch {
			case pattern == patternGPT2 && i == len(pre.patterns)-1:
				bytesToo["use_regex"] = true
			case pattern == patternDigit || pattern == patternDigit+"+":
				splits = append(splits, part{"type": "Digits",
					"individual_digits": pattern == patternDigit})
			default:
				splits = append(splits, part{"type": "Split", "pattern": part{"Regex": pattern},
					"behavior": "Isolated", "invert": false})
			}
		}
		splits = append(splits, bytesToo)
		ends = append(ends, part{"type": "ByteLevel", "add_prefix_space": false,
			"trim_offsets": true, "use_regex": true})
	}
	var b strings.Builder
	compact := func(v any) string { // only of maps and strings, which always encode
		data, _ := json.Marshal(v)
		return string(data)
	}
	b.WriteString("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [")
	comma := ""
	for id, token := range tokens {
		if types[id] == GGMLControl || types[id] == GGMLUnknown || types[id] == GGMLAdded {
			fmt.Fprintf(&b, "%s\n    {\"id\": %d, \"content\": %s, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": %v}",
				comma, id, quote(token), types[id] != GGMLAdded)
			comma = ","
		}
	}
	fmt.Fprintf(&b, "\n  ],\n  \"normalizer\": %s,\n  \"pre_tokenizer\": %s,\n  \"post_processor\": %s,\n  \"decoder\": %s,\n", compact(sequenceOf("normalizers", norms...)),
		compact(sequenceOf("pretokenizers", splits...)), compact(g.edges(tokens)),
		compact(sequenceOf("decoders", ends...)))
	fmt.Fprintf(&b, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": %s,\n    \"continuing_subword_prefix\": null,\n"+
		"    \"end_of_word_suffix\": null,\n    \"fuse_unk\": %v,\n    \"byte_fallback\": %v,\n    \"ignore_merges\": %v,\n    \"vocab\": {", unk, pre.text, fallback, pre.ignores)
	// Unused tokens at the end are rows of the embedding, and no tokens. Those between
	// others are: the ids of a vocabulary have no gaps.
	last := len(tokens)
	for last > 0 && types[last-1] == GGMLUnused {
		last--
	}
	for id, token := range tokens[:last] {
		if id > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n      %s: %d", quote(token), id)
	}
	b.WriteString("\n    },\n    \"merges\": [")
	for i, m := range merges {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n      [%s, %s]", quote(m[0]), quote(m[1]))
	}
	b.WriteString("\n    ]\n  }\n}\n")
	return []byte(b.String())
}

// edges returns the post-processor: the tokens around a text.
func (g *GGML) edges(tokens []string) part {
	single, pair := []part{}, []part{}
	special := part{}
	token := func(id int32) part {
		special[tokens[id]] = part{"id": tokens[id], "ids": []int32{id},
			"tokens": []string{tokens[id]}}
		return part{"SpecialToken": part{"id": tokens[id], "type_id": 0}}
	}
	for _, name := range []string{"A", "B"} {
		var around []part
		if g.AddBOS && g.BOS >= 0 {
			around = append(around, token(g.BOS))
		}
		around = append(around, part{"Sequence": part{"id": name, "type_id": 0}})
		if g.AddEOS && g.EOS >= 0 {
			around = append(around, token(g.EOS))
		}
		if pair = append(pair, around...); name == "A" {
			single = around
		}
	}
	if len(special) == 0 {
		return nil
	}
	return part{"type": "TemplateProcessing", "single": single, "pair": pair,
		"special_tokens": special}
}
