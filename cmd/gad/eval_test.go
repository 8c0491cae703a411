package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/apps/session/sessiontest"
	"gad/data"
)

// What the flags of eval, generate, logprobs and score say arrives: the commands themselves are
// tested in their packages.
func TestFlagsOfScoring(t *testing.T) {
	linked(t, "sft/global_step_60/actor=sft", "train/global_step_3/critic=critic", "student",
		"test.jsonl")
	printed, _ := does(t, "eval --model sft --model student --data test.jsonl --limit 4 "+
		"--max-response-length 6 --temperature 0.5 --against sft --checker \"sed 's/.*/0.5/'\" "+
		"--disc-steps 2 --disc-seeds 1 --disc-batch 1 --output rows.jsonl --json")
	for _, want := range []string{`"rows":4,`, `"temperature":0.5,`, `"check":0.5,`,
		`"reverse_kl":`, `"fresh_d_steps":2,`, `"fresh_d_seeds":1`} {
		if !strings.Contains(printed, want) {
			t.Errorf("lacks %s: %s", want, printed)
		}
	}
	printed, _ = does(t, "generate --model sft --data test.jsonl --limit 3 --output all.jsonl "+
		"-n 2 --max-new-tokens 5 --temperature 1 --seed 2")
	if !strings.Contains(printed, "6 answers to 3 rows") {
		t.Errorf("generate prints %q", printed)
	}
	for line, want := range map[string]int{
		"logprobs --temperature 0.5 --model sft --data rows.jsonl":              8,
		"logprobs --limit 3 --model sft --data all.jsonl":                       3,
		"score --max-response-length 3 --critic critic --data all.jsonl --json": 6,
	} {
		printed, _ := does(t, line)
		if got := sessiontest.Lines[rowOut](t, printed); len(got) != want ||
			strings.HasPrefix(line, "score") && !got[0].Truncated {
			t.Errorf("%s: %d rows, want %d: %s", line, len(got), want, printed)
		}
	}
}

// generateBegun returns the first line of the journal of gad generate --data: the settings of n
// answers to a prompt, of limit tokens at most.
func generateBegun(t *testing.T, dir, rows string, n, limit int, temperature float64) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	for _, e := range entries {
		if content := fileText(filepath.Join(dir, e.Name())); !e.IsDir() {
			fmt.Fprintf(sum, "%s %d\n%s", e.Name(), len(content), content)
		}
	}
	set, err := data.Open(rows, data.DefaultColumns())
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	return fmt.Sprintf(`{"key":"settings","record":{"model_sha256":"%x","data_digest":"%s","content_key":"content","teacher_key":"teacher_response","n":%d,"max_new_tokens":%d,"temperature":%g,"top_p":1,"min_p":0,"top_k":0,"seed":1,"device":"cpu","precision":"auto"}}`+"\n",
		sum.Sum(nil), set.Digest(), n, limit, temperature)
}

// The prompt may come from standard input; what is refused of it: TestReadPrompt of apps/generate.
func TestPromptFromStdin(t *testing.T) {
	linked(t, "train")
	const line = "generate --model train/global_step_3/actor --max-new-tokens 12 --temperature 1 --prompt "
	want, _ := does(t, line+`"Add 1+2+3"`)
	old := os.Stdin
	defer func() { os.Stdin = old }()
	for content, code := range map[string]int{"Add 1+2+3\n": exitDone, "\n": exitUsage} {
		put(t, "prompt", content)
		in, err := os.Open("prompt")
		if err != nil {
			t.Fatal(err)
		}
		os.Stdin = in
		got, printed, said := gad(words(line + "-")...)
		in.Close()
		if got != code || code == exitDone && printed != want {
			t.Errorf("%q: exit status %d, prints %q, says %q", content, got, printed, said)
		}
	}
}
