package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Students whose tokenizer cannot be read: what is refused is named, with the way out.
func TestMistakesWithTokenizers(t *testing.T) {
	f, work := linked(t, "test.jsonl=rows.jsonl")
	for name, change := range map[string]func(top, model map[string]any){
		"unigram":     func(_, model map[string]any) { model["type"] = "Unigram" },
		"wordpiece":   func(_, model map[string]any) { model["type"] = "WordPiece" },
		"precompiled": func(top, _ map[string]any) { top["normalizer"] = map[string]any{"type": "Precompiled"} },
		"bert":        func(top, _ map[string]any) { top["pre_tokenizer"] = map[string]any{"type": "BertPreTokenizer"} },
		"nodecoder":   func(top, _ map[string]any) { top["pre_tokenizer"], top["decoder"] = nil, nil },
		"wordlevel":   func(top, _ map[string]any) { top["decoder"] = map[string]any{"type": "WordPiece"} },
	} {
		if err := os.CopyFS(name, os.DirFS(f.path("student"))); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(name, "tokenizer.json")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var top map[string]any
		if err := json.Unmarshal(text, &top); err != nil {
			t.Fatal(err)
		}
		change(top, top["model"].(map[string]any))
		if text, err = json.Marshal(top); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const way = "use a model with a BPE tokenizer, byte-level (GPT-2, Qwen2, Llama-3) or with byte_fallback (Llama-2, Mistral, Gemma)"
	sft := func(model string) string {
		return "sft --model " + model + " --data rows.jsonl --output run SET"
	}
	mistaken(t, []string{work}, []mistake{
		{sft("unigram"), 3, `tokenizer: unigram: tokenizer.json: "model": type "Unigram": only BPE can be read: ` + way},
		{sft("wordpiece"), 3, `tokenizer: wordpiece: tokenizer.json: "model": type "WordPiece": only BPE can be read: ` + way},
		{sft("precompiled"), 3, `tokenizer: precompiled: tokenizer.json: "normalizer": type "Precompiled": this normalizer cannot be read: ` + way},
		{sft("bert"), 3, `tokenizer: bert: tokenizer.json: "pre_tokenizer": type "BertPreTokenizer": this pre-tokenizer cannot be read: ` + way},
		{sft("nodecoder"), 3, `tokenizer: nodecoder: tokenizer.json: "decoder": no decoder: the reference would put blanks between tokens: add the decoder that belongs to the pre_tokenizer, such as Metaspace`},
		{sft("wordlevel"), 3, `tokenizer: wordlevel: tokenizer.json: "decoder": type "WordPiece": this decoder cannot be read: ` + way},
	})
}
