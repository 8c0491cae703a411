package main

import (
	"testing"
)

// Mistakes with the settings that say where encoded rows are kept.
func TestMistakesOfStart(t *testing.T) {
	f, work := linked(t, "test.jsonl=rows.jsonl")
	const sft = "sft --model MODEL --data rows.jsonl --output run SET "
	mistaken(t, []string{work, f.path("warmup")}, []mistake{
		{sft + "data.cache_dir=", 2, `settings: data.cache_dir is empty: name a folder, auto or none`},
		{sft + "data.cache_gb=0", 2, `settings: override "data.cache_gb=0": setting "data.cache_gb": "0": below the minimum 1`},
	})
}
